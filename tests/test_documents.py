"""What README and docs/ say can be done: their links lead somewhere, and their commands are those there are."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from servescope.cli import COMMANDS
from servescope.emulator.scenario import read_scenario
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCENARIOS = sorted((ROOT / "examples" / "scenarios").glob("*.toml"))


def list_commands() -> Iterator[tuple[str, str]]:
    """Every `servescope …` line of the pages' console blocks and of the scenarios' comments, with where it stands."""
    for page in PAGES:
        for block in re.findall(r"(?ms)^```(?:console|shell|bash|sh)?\n(.*?)^```", page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("servescope "):
                    yield page.name, line
    for scenario in SCENARIOS:
        for line in re.findall(r"(?m)^#\s+(servescope .*)$", scenario.read_text(encoding="utf-8")):
            yield scenario.name, line


def name_anchors(page: Path) -> set[str]:
    """What `#…` may say of a page, by GitHub's rule."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link within the checkout names a file that is there and, behind a #, one of its headings."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in name_anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize(("place", "line"), list(list_commands()))
def test_documented_commands_exist(place: str, line: str) -> None:
    """Every option and choice in them is one that the command takes."""
    words = shlex.split(re.split(r"\s[&|<>;]", line)[0], comments=True)
    module = importlib.import_module(COMMANDS[words[1]][0])
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.configure(parser)
    _, unknown = parser.parse_known_args(words[2:])
    assert unknown == [], f"{place}: {line}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_to_begin_with_are_read(path: Path) -> None:
    """Each describes deployments, and says in its first lines how it is run."""
    read_scenario(path)
    assert f"servescope emulate --scenario examples/scenarios/{path.name}" in path.read_text(encoding="utf-8")
