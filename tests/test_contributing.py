"""What CONTRIBUTING.md says to add can be added: its code blocks, applied to a copy of the tree, are all it takes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.waiting import deadline_seconds

BLOCK = re.compile(r"(?ms)^([^\n]*):\n\n```(?:python|toml|text)\n(.*?)^```")
CHANGES = [
    section.partition("\n")[0]
    for section in re.split(r"(?m)^## ", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    if BLOCK.search(section)
]
PARTS = [
    *sorted(str(folder.relative_to(ROOT)) for folder in (ROOT / "tests").iterdir() if [*folder.glob("test_*.py")]),
    "tests/test_*.py",
]
"""What the fast suite is run by: one part is done within the time that a test has."""
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "-m")
GENERATORS = (
    ["alerts"],
    ["dashboards"],
    # Traffic is emulated for that page, by which nothing changes that is added.
    ["docs.generate", "--but", "scenarios.md"],
    ["tests.pages"],
)
GUARDS = (
    "tests/alerts/test_alerts.py",
    "tests/alerts/test_rules.py",
    "tests/alerts/test_runbooks.py",
    "tests/contract/test_catalog.py",
    "tests/dashboards/test_options.py",
    "tests/emulator/test_fault_kinds.py",
    "tests/sources/test_families.py",
    "tests/sources/test_hostile_pages.py",
    "tests/sources/test_inspection.py",
    "tests/sources/test_pages.py",
    "tests/sources/test_sources.py",
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


def run(tree: Path, *words: str, may_return: Collection[int] = (0,)) -> str:
    """The output of a Python module run in the tree; fails with it when the module fails."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tree,
        env={
            **os.environ,
            "SERVESCOPE_REFERENCE": os.environ.get("SERVESCOPE_REFERENCE", str(ROOT.parent / "shared")),
            "PYTHONPATH": str(tree / "exporters"),
            # Each run reads what the first of them compiled.
            "PYTHONDONTWRITEBYTECODE": "",
        },
        capture_output=True,
        text=True,
        timeout=deadline_seconds(240),
    )
    assert done.returncode in may_return, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with one of each added and everything generated anew."""
    return copy_with(CHANGES[-1], tmp_path_factory.mktemp("contributing"))


@pytest.fixture(scope="module")
def changed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the tree after one of the changes, each of which uses those before it."""
    copy = copy_with(request.param, tmp_path_factory.mktemp("contributing"))
    yield copy
    shutil.rmtree(copy)


def copy_with(last: str, copy: Path) -> Path:
    """A copy of the tree with the changes up to this one, everything generated anew, and committed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    # What is compiled is valid for files of the same size and time.
    for compiled in ROOT.glob("[a-z]*/**/__pycache__"):
        shutil.copytree(compiled, copy / compiled.relative_to(ROOT), dirs_exist_ok=True)
    (copy / ".cache").symlink_to(ROOT / ".cache")  # promtool is there
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    until = re.search(rf"(?ms)\A.*^## {re.escape(last)}$.*?(?=^## |\Z)", page)
    assert until is not None
    for instruction, code in BLOCK.findall(until[0]):
        apply(instruction, code, copy)
    for words in GENERATORS:
        run(copy, *words)
    # Some tests list the files of the checkout.
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=copy, check=True)
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
    # Of the mutants those of the alert that was added, and of the engines the one: the others are as they were.
    maps = (ROOT / "exporters" / "servescope" / "sources").glob("*.toml")
    others = " or ".join(sorted(path.stem for path in maps if path.stem != "servescope"))
    chosen = f"(not test_every_mutant_dies or ServescopeRequestsPaused) and not ({others})"
    run(tree, *PYTEST, "not slow and not proof", "-x", "-k", chosen, *GUARDS)


@pytest.mark.slow
def test_a_page_is_read_by_the_source_map_that_was_added(tree: Path) -> None:
    """`servescope inspect` identifies it and reports the metric that the map takes."""
    printed = run(tree, "servescope.cli", "inspect", "tests/pages/turbine-2.txt")
    assert "Turbine, 2 (source map 'turbine')" in printed
    assert re.search(r"(?m)^.*concurrent_requests\b.*\b3\b", printed)


@pytest.mark.proof
@pytest.mark.parametrize("changed", CHANGES[CHANGES.index("Add a panel") :], indirect=True)
def test_what_is_generated_is_the_catalog(changed: Path) -> None:
    """From the change on that shows the figure, which reads the metric."""
    run(changed, *PYTEST, "proof", "tests/proofs/drift")


@pytest.mark.proof
@pytest.mark.parametrize("changed", CHANGES, indirect=True)
@pytest.mark.parametrize("part", PARTS)
def test_no_fast_test_breaks_that_the_page_does_not_mention(changed: Path, part: str) -> None:
    """After each change, with what it is added to; tests of this page itself are left out."""
    files = sorted(str(file.relative_to(changed)) for file in changed.glob(part) if file.name != Path(__file__).name)
    # 5 where none of these files has a fast test.
    run(changed, *PYTEST, "not slow and not proof and not real", *files, may_return=(0, 5))
