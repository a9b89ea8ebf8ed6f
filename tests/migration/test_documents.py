"""The vendor's documents line by line: what each of them rules is said of a case that breaks it, and of no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.migration.documents.table import DOCUMENTS, DocumentCase, find_mistake, read_table
from tests.support.commands import run

ROWS = [row for document in DOCUMENTS for row in read_table(document)]
CASES = [row for row in ROWS if not row.verdict.startswith(("no rule", "see "))]
LINES = {"S1": 40, "S2": 85, "S3": 166, "S4": 838, "S5": 174}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_rules_is_what_is_said(document: str, tmp_path: Path) -> None:
    """Every case of its table."""
    cases = [row for row in CASES if row.document == document]
    mistakes = {row.name: mistake for row in cases if (mistake := find_mistake(row, tmp_path))}

    assert mistakes == {}


def test_the_tables_are_of_every_line() -> None:
    """Each line has a case, or states no rule; and no row is beyond the document."""
    for document, lines in LINES.items():
        covered = {line for row in ROWS if row.document == document for line in range(row.first, row.last + 1)}
        assert covered == set(range(1, lines + 1)), document


@pytest.mark.reference
def test_the_documents_have_these_lines(reference: Path) -> None:
    """As many as the tables are of."""
    for document, name in DOCUMENTS.items():
        text = (reference / "reference" / "seeds" / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) == LINES[document], document


def test_the_tables_have_as_many_cases_as_they_say() -> None:
    """Lines of all documents, those with a rule, cases, and verdicts."""
    ruled = [row for row in ROWS if row.verdict != "no rule"]
    lines = {(row.document, line) for row in ruled for line in range(row.first, row.last + 1)}
    verdicts = Counter(row.verdict.partition(" ")[0] for row in ruled)

    assert (sum(LINES.values()), len(lines), len(CASES)) == (1303, 1013, 800)
    assert verdicts == {
        "error": 327, "ok": 293, "warning": 98, "says": 57, "see": 14, "becomes": 9, "lacks": 5, "good": 4,
        "without": 3, "critical": 3, "none": 1,
    }  # fmt: skip


@pytest.mark.parametrize("row", [row for row in ROWS if row.verdict.startswith("see ")], ids=lambda row: row.name)
def test_what_another_test_holds_is_held_by_it(row: DocumentCase) -> None:
    """The test that a row names is there."""
    file, _, name = row.verdict.removeprefix("see ").partition("::")

    assert f"\ndef {name}(" in (ROOT / "tests" / "migration" / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("beside", "severity"),
    [(["uv.lock", "pyproject.toml"], ""), (["pyproject.toml"], ""), (["uv.lock"], "error"), ([], "warning")],
)
def test_a_lock_needs_its_project_beside_it(beside: list[str], severity: str, tmp_path: Path) -> None:
    """An error where the lock is there alone, a warning where the configuration may have been copied alone."""
    (tmp_path / "deps").mkdir()
    for name in beside:
        (tmp_path / "deps" / name).touch()
    (tmp_path / "config.yaml").write_text("requirements_file: ./deps/uv.lock\n", encoding="utf-8")
    done = run("migrate", str(tmp_path / "config.yaml"))

    said = (
        f"{severity}: {tmp_path}/config.yaml:1:20: requirements_file is './deps/uv.lock', which needs a pyproject.toml"
    )
    assert (said in done.stdout) if severity else ("requirements_file" not in done.stdout)
    assert done.returncode == (2 if severity == "error" else 0)
