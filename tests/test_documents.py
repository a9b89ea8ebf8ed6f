"""The documentation: its links resolve, its commands and its first example run, its index and glossary are complete."""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import re
import shlex
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.feeding import can_hold, metrics_of
from servescope.cli import COMMANDS
from servescope.emulator.faults.kinds import KINDS
from servescope.emulator.scenario.scenario import read_scenario
from tests.conftest import ROOT
from tests.support.waiting import deadline_seconds

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
LINKED = [
    *PAGES,
    *sorted(DOCS.glob("adr/*.md")),
    *sorted(DOCS.glob("engines/*.md")),
    *sorted((ROOT / "alerts/generated/runbooks").glob("*.md")),
]
MOST_LINES = 400
SOURCES = re.findall(r"(?m)^SOURCES := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"))[0].split()
# A name is looked for where one begins: within each of them again takes ten times as long.
CITED = re.compile(r"(?<![\w./-])[\w./-]*\w\.md\b(?:#[\w-]+)?|\bADR \d+|\([1-9]\d?\.\d+(?:, [1-9]\d?\.\d+)*\)")
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


@cache
def name_anchors(page: Path) -> set[str]:
    """What `#…` may say of a page, by GitHub's rule."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_resolve() -> None:
    """Every link within the checkout names a file that exists and, behind a #, one of its headings."""
    broken = []
    for page in LINKED:
        text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if link.startswith(("http://", "https://")):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in name_anchors(target)):
                broken.append((page.name, link))
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


@pytest.mark.parametrize("folder", [".", "docs", "deploy", "app", "benchmarks", "examples", "exporters"])
def test_nothing_is_installed_from_an_index_by_our_name(folder: str) -> None:
    """Nobody owns the name there: whoever took it would be installed. A checkout or the path of a wheel is named."""
    places = (ROOT / folder).glob("*.*") if folder in (".", "docs") else (ROOT / folder).rglob("*.*")
    wrong = [
        (str(path.relative_to(ROOT)), line)
        for path in places
        if path.suffix in (".md", ".py", ".toml", ".yaml", ".yml", ".service")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"""\bpipx? .*\binstall\b.*['"\s]servescope(?![-\w./])""", line)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_to_begin_with_are_read(path: Path) -> None:
    """Each describes deployments, and says in its first lines how it is run."""
    read_scenario(path)
    assert f"servescope emulate --scenario examples/scenarios/{path.name}" in path.read_text(encoding="utf-8")


def test_the_index_names_every_page_once() -> None:
    """A page that the index lacks is found by nobody; one named twice has two places in the four parts."""
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| \[[^\]]+\]\(([^)#]+)\) \|", index)
    named = sorted(link for link in rows if "/" not in link)
    assert named == sorted(page.name for page in DOCS.glob("*.md") if page.name != "README.md")
    assert re.findall(r"(?m)^## (.*)$", index) == [
        "Start", "How-to", "Reference", "Why, and how it is proven",
    ]  # fmt: skip


def glossary() -> dict[str, str]:
    """The terms of the glossary with what stands below each."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    return {term: meaning.strip() for term, meaning in re.findall(r"(?m)^### (.*)\n\n((?:(?!^### ).*\n?)*)", text)}


def name_missing(code: str) -> Iterator[str]:
    """What is not there of that which docstrings and comments of a module say to be the reason of something."""
    return (cited for cited in _name_cited(code) if not is_there(cited))


def _name_cited(code: str) -> Iterator[str]:
    if all(map(is_there, CITED.findall(code))):
        return  # to parse a module takes long
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from CITED.findall(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield from CITED.findall(token.string)


@cache
def is_there(cited: str) -> bool:
    """Whether a citation names a page of the checkout and, behind a #, one of its headings."""
    if decision := re.fullmatch(r"ADR (\d+)", cited):
        return any((DOCS / "adr").glob(f"{int(decision[1]):04}-*.md"))
    path, _, anchor = cited.partition("#")
    return (ROOT / path).is_file() and (not anchor or anchor in name_anchors(ROOT / path))


@pytest.mark.parametrize("folder", SOURCES)
def test_what_code_cites_is_there(folder: str) -> None:
    """A page, a heading or a decision; a bare number of a chapter is of a page that nobody can find."""
    modules = sorted((ROOT / folder).rglob("*.py")) if (ROOT / folder).is_dir() else [ROOT / folder]
    assert modules
    missing = [
        (str(module.relative_to(ROOT)), cited)
        for module in modules
        for cited in name_missing(module.read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_what_is_missing_is_found() -> None:
    """In docstrings and comments, and not in other texts."""
    code = '''"""As docs/no.md, docs/judge.md#no, ADR 99 and METHOD.md say (4.6), unlike (0.5, 1) and docs/judge.md."""
page = "out/page.md"
"""Its mean (4.3, 4.7)."""
edge = 1  # (10.2)
'''
    assert sorted(name_missing(code)) == [
        "(10.2)", "(4.3, 4.7)", "(4.6)", "ADR 99", "METHOD.md", "docs/judge.md#no", "docs/no.md",
    ]  # fmt: skip


def test_the_glossary_defines_terms_that_are_used() -> None:
    """Each in one line, in the order of the alphabet, and used by a page besides the glossary."""
    pages = [page for page in LINKED if page.name != "glossary.md"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).lower()
    terms = glossary()
    assert list(terms) == sorted(terms)
    assert [term for term, meaning in terms.items() if "\n" in meaning or not meaning.endswith(".")] == []
    assert [term for term in terms if not re.search(rf"\b{re.escape(term)}s?\b", text)] == []


def test_pages_are_short_enough_to_read() -> None:
    """A page written by hand has at most 400 lines; what a command writes may be longer."""
    too_long = []
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        written_by_hand = re.sub(r"(?s)<!-- (\w+): (?:written|generated) by .*?<!-- end of \1 -->", "", text)
        if not text.startswith("<!-- Generated by") and len(written_by_hand.splitlines()) > MOST_LINES:
            too_long.append(page.name)
    assert too_long == []


def test_the_readme_counts_the_faults() -> None:
    """No more than there are kinds."""
    (count,) = re.findall(r"any of over (\d+) faults", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert int(count) < len(KINDS)


def test_tables_are_whole() -> None:
    """Each begins with a header and its separator: a row behind a blank line is text."""
    torn = []
    for page in LINKED:
        text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text(encoding="utf-8"))
        tables = re.findall(r"(?m)(?:^\|.*\n?)+", text)
        torn += [(page.name, each) for each in tables if not re.match(r"\|.*\|\n\|(?: ?:?-+:? ?\|)+", each)]
    assert torn == []


def test_the_first_example_runs() -> None:
    """The README's lines for embedders, on a free port, expose the request they record."""
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 1
    code = blocks[0].replace("port=9100", "port=0").replace("\nserve(", "\nserver = serve(")
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    try:
        with urlopen(names["server"].url, timeout=deadline_seconds()) as answer:
            page = answer.read().decode()
    finally:
        names["server"].close()
    assert re.search(r'(?m)^requests_total\{.*outcome="ok".*\} 1$', page)


def test_what_was_received_in_other_names_is_what_the_pages_of_engines_say_is_alive() -> None:
    """An alert that reached its receiver in an engine's names holds with what its map reads."""
    text = (DOCS / "alerts.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `([\w-]+)` \| \[(\w+)\]", text)
    assert {face for face, _ in rows} == {"sglang", "epp"}
    assert [row for row in rows if not can_hold(ALERTS[row[1]].condition, metrics_of(row[:1]))] == []
