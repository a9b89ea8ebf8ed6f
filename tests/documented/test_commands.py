"""Every command of the pages runs as it is written, in order, where only the wheel is installed."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from servescope.cli import COMMANDS
from tests.conftest import ROOT
from tests.documented.not_run import starts_without_a_command, why_not
from tests.documented.pages import PAGES, Command, read_commands, unmarked_commands
from tests.documented.place import Place
from tests.documented.stages import BEFORE, CODES, STAGES
from tests.support.installed import build_wheel, install_wheel
from tests.support.waiting import deadline_seconds

ALL = [command for page in PAGES for command in read_commands(page)]
RUN = [page for page in dict.fromkeys(command.page for command in ALL) if any(
    command.page == page and why_not(command) is None for command in ALL
)]  # fmt: skip
EVERY_TIME = (
    "README.md", "docs/alert-rules.md", "docs/api.md", "docs/cutover.md", "docs/dashboards.md", "docs/faults.md",
    "docs/translate.md",
)  # fmt: skip
"""The pages whose commands `make test` runs; those of the others run in `make proofs`."""
PROMETHEUS = ("docs/history.md", "docs/judge-gates.md", "docs/migration.md", "docs/victoriametrics.md")
"""The pages that ask a Prometheus."""
TRACES = ("docs/scenarios.md",)
"""The pages that replay recorded traces; their commands build on nothing, and each takes minutes."""


def chapters() -> Iterator[ParameterSet]:
    """The commands that are run in one place, with their marks: those of a page, or one that needs none before it."""
    for page in RUN:
        marks = [pytest.mark.slow, *([] if page in EVERY_TIME else [pytest.mark.proof])]
        commands = [command for command in ALL if command.page == page and why_not(command) is None]
        if page not in TRACES:
            yield pytest.param(commands, marks=marks, id=page)
            continue
        for command in commands:
            yield pytest.param([command], marks=[*marks, pytest.mark.reference], id=str(command)[:70])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment variables of a virtual environment with the wheel, which is beside it."""
    folder = tmp_path_factory.mktemp("installed")
    variables = install_wheel(build_wheel(folder), folder / "environment")
    pip = folder / "environment" / "bin" / "pip"
    pip.write_text('#!/bin/sh\nexec python -m pip "$@"\n', encoding="utf-8")
    pip.chmod(0o755)
    return {
        **variables, "WHEELS": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # What is installed from a path is built with what is here, as is all that it depends on; 0 means "without".
        "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0",
    }  # fmt: skip


@pytest.mark.parametrize("commands", list(chapters()))
def test_commands_run(
    commands: list[Command], installed: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In the order of the page, each with the exit code of success; what serves is ended by SIGTERM."""
    page = commands[0].page
    names = ("prometheus", "promtool") if page in PROMETHEUS else ()
    binaries = {name: request.getfixturevalue(name) for name in names}
    with Place(tmp_path / "checkout", {**installed, "HOME": str(tmp_path)}, binaries) as place:
        for binary in binaries.values():
            place.variables["PATH"] += f":{binary.parent}"
        for wheel in Path(installed["WHEELS"]).glob("*.whl"):
            shutil.copy(wheel, place.folder)
            if page != "README.md":
                # Built once more there alone.
                place.instead["pip install '.["] = f"pip install '{wheel}["
        if page in TRACES:
            place.variables["TRACES"] = str(request.getfixturevalue("reference") / "traces")
        for prepare in STAGES.get(page, ()):
            prepare(place)
        for command in commands:
            for (where, start), change in BEFORE.items():
                if where == page and command.text.startswith(start):
                    change(place)
            place.run(command, next((codes for start, codes in CODES.items() if command.text.startswith(start)), (0,)))


def test_every_command_is_run_or_listed() -> None:
    """What is not listed with the reason why it is not run begins with a program that is here."""
    programs = {"servescope", "python", "pip", "curl", "cp", "export", "promtool"}
    words = {command.text.split()[0]: str(command) for command in ALL if why_not(command) is None}
    unknown = [text for word, text in words.items() if word not in programs and "=" not in word]
    assert unknown == [], "run it, or list it in tests/documented/not_run.py"


def test_what_is_not_run_is_there() -> None:
    """A command that is listed with the reason why it is not run is a command of a page."""
    assert starts_without_a_command(ALL) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_marked_as_such(page: Path) -> None:
    """A block that is marked as no language has none: it would not be run."""
    assert unmarked_commands(page) == []


def parse(text: str) -> None:
    """Have the parser of the command read its options, as far as it is one of ours; raises on what it does not know."""
    words = shlex.split(re.split(r"\s[&|<>;]", text)[0])
    while words and "=" in words[0]:
        del words[0]
    if words[:1] == ["servescope"]:
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(COMMANDS[words[1]][0]).configure(parser)
        _, unknown = parser.parse_known_args(words[2:])
        assert unknown == [], text
    if words[:1] == ["make"]:
        targets = re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
        assert words[1] in targets, text
    if words[:2] == ["python", "-m"] and words[2].split(".")[0] in ("tests", "benchmarks"):
        unknown = [word for word in words[3:] if word[2:] and word.startswith("--") and word not in help_of(words[2])]
        assert unknown == [], text


@cache
def help_of(module: str) -> str:
    """What a module of ours prints of its options."""
    words = [sys.executable, "-m", module, "--help"]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=deadline_seconds()
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", [each for each in ALL if why_not(each)], ids=lambda command: command.text[:60])
def test_commands_that_cannot_run_here_are_read(command: Command) -> None:
    """By the parser of the command, where it is one of ours."""
    parse(command.text.removeprefix(".venv/bin/"))
