"""What docs/upgrade.md promises of the files that a release writes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from servescope.customers.lanes.cursors import CursorFile
from servescope.errors import ServescopeError
from servescope.judge.journal.journal import CutoverJournal
from servescope.store.embedded import Store
from tests.conftest import ROOT


def _open_store(path: Path) -> None:
    Store(path).close()


def _open_cursors(path: Path) -> None:
    CursorFile(path, deliver=True).close()


def _open_journal(path: Path) -> None:
    with CutoverJournal(path) as journal:
        journal.append("start", at_ms=0, plan="chat", run=1)


@pytest.mark.parametrize(
    ("name", "open_file"), [("store", _open_store), ("cursors", _open_cursors), ("journal", _open_journal)]
)
def test_page_has_the_version_of_each_file_and_another_one_is_refused(
    name: str, open_file: Callable[[Path], None], tmp_path: Path
) -> None:
    """The error names the file and both versions, and the file is left as it is."""
    page = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
    (promised,) = re.findall(rf"^\| \[{name}\].* \| (\d+) \|", page, re.MULTILINE)
    path = tmp_path / f"{name}.db"
    open_file(path)
    with sqlite3.connect(path) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(ServescopeError, match=rf"{name}.*\b{version + 1}\b.*\b{version}\b"):
        open_file(path)

    assert int(promised) == version
    assert path.read_bytes() == before
