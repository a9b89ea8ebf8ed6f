"""What CONTRIBUTING.md says to add can be added: its code blocks, applied to a copy of the tree, are all it takes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.waiting import deadline_seconds

BLOCK = re.compile(r"(?ms)^([^\n]*):\n\n```(?:python|toml|text)\n(.*?)^```")
GENERATORS = ("alerts", "dashboards", "docs.generate")
GUARDS = (
    "tests/alerts/test_alerts.py",
    "tests/alerts/test_rules.py",
    "tests/alerts/test_runbooks.py",
    "tests/contract/test_catalog.py",
    "tests/dashboards/test_options.py",
    "tests/drift",
    "tests/emulator/test_fault_kinds.py",
    "tests/sources",
    "tests/test_generated.py",
)


def apply(instruction: str, code: str, tree: Path) -> None:
    """Do to the tree what an instruction of the page says to do with its code block."""
    *_, path = re.findall(r"`([^`]+)`", instruction)
    file = tree / path
    if instruction.startswith("Create"):
        assert not file.exists()
        file.write_text(code, encoding="utf-8")
    elif instruction.startswith("Append"):
        file.write_text(f"{file.read_text(encoding='utf-8').rstrip()}\n\n{code}", encoding="utf-8")
    elif found := re.search(r"[Aa]dd it to `(\w+)` in ", instruction):
        # Before the bracket that closes the tuple, or the mapping within MappingProxyType.
        start = re.compile(rf"(?m)^{found[1]}\b.*[({{]\n(    {{\n)?").search(text := file.read_text(encoding="utf-8"))
        assert start is not None, instruction
        indent = "    " if start[1] else ""
        end = re.compile(rf"(?m)^{indent}[)}}]").search(text, start.end())
        assert end is not None, instruction
        block = textwrap.indent(code, f"    {indent}")
        file.write_text(text[: end.start()] + block + text[end.start() :], encoding="utf-8")
    elif found := re.match(r"Add it after the line `(.*)` in `[^`]+`$", instruction):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        (place,) = (number for number, line in enumerate(lines) if line.strip() == found[1])
        indent = lines[place][: -len(lines[place].lstrip())]
        file.write_text("".join((*lines[: place + 1], textwrap.indent(code, indent), *lines[place + 1 :])), "utf-8")
    else:
        pytest.fail(f"not understood: {instruction}")


def run(tree: Path, *words: str) -> str:
    """The output of a Python module run in the tree; fails with it when the module fails."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tree,
        env={
            **os.environ,
            "SERVESCOPE_REFERENCE": os.environ.get("SERVESCOPE_REFERENCE", str(ROOT.parent / "shared")),
            "PYTHONPATH": str(tree / "exporters"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=deadline_seconds(240),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with one of each added and everything generated anew."""
    copy = tmp_path_factory.mktemp("contributing")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("docs/pictures/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    (copy / ".cache").symlink_to(ROOT / ".cache")  # promtool is there
    for instruction, code in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        apply(instruction, code, copy)
    for generator in GENERATORS:
        run(copy, generator)
    return copy


@pytest.mark.slow
def test_what_is_generated_has_what_was_added(tree: Path) -> None:
    """Docs, rules, dashboards and runbooks follow from the definitions alone."""

    def read(path: str) -> str:
        return (tree / path).read_text(encoding="utf-8")

    assert "requests_paused_total" in read("docs/metrics.md")
    assert "deployment:requests_paused:rate5m" in read("alerts/generated/recording.rules.yml")
    assert "deployment:requests_paused:rate5m" in read("dashboards/generated/speculation.json")
    assert "alert: ServescopeRequestsPaused" in read("alerts/generated/alerting.rules.yml")
    assert "offline requests" in read("alerts/generated/runbooks/ServescopeRequestsPaused.md")
    assert any("| `decode-slow` |" in page.read_text(encoding="utf-8") for page in (tree / "docs").glob("*.md"))


@pytest.mark.slow
def test_guards_pass_with_what_was_added(tree: Path) -> None:
    """The tests that hold each definition to its rules accept one of each, and so does ruff."""
    run(tree, "ruff", "check", "--no-cache", "exporters", "dashboards", "tests")
    # Of the mutants those of the alert that was added: the others' are as they were.
    chosen = "not test_every_mutant_dies or ServescopeRequestsPaused"
    run(tree, "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not proof", "-k", chosen, *GUARDS)


@pytest.mark.slow
def test_a_page_is_read_by_the_source_map_that_was_added(tree: Path) -> None:
    """`servescope inspect` identifies it and reports the metric that the map takes."""
    page = tree / "turbine.txt"
    page.write_text("# TYPE turbine_requests_running gauge\nturbine_requests_running 3\n", encoding="utf-8")
    printed = run(tree, "servescope.cli", "inspect", str(page))
    assert "Turbine, 2 (source map 'turbine')" in printed
    assert re.search(r"(?m)^.*concurrent_requests\b.*\b3\b", printed)
