"""A store that is damaged under a running collector costs the store alone: the rest goes on, a new store begins."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from servescope.store.embedded import Store
from servescope.store.records import StoreError
from tests.store.support.collecting import Collecting, collecting
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

_PAGE = 16_384


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collecting]:
    """One collector, whose store every test damages in its own way."""
    folder = tmp_path_factory.mktemp("damage")
    with collecting(folder, folder / "servescope.db") as collector:
        yield collector


def overwrite(path: Path, start: int, end: int | None = None) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xaa" * ((path.stat().st_size if end is None else end) - start))


def remove(path: Path, *endings: str) -> None:
    for ending in endings:
        Path(f"{path}{ending}").unlink()


def replace_by_an_empty_store(path: Path) -> None:
    Store(path.with_name("other.db")).close()
    path.with_name("other.db").replace(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "middle overwritten": lambda path: overwrite(path, _PAGE),
    "head overwritten": lambda path: overwrite(path, 0, 200),
    "schema overwritten": lambda path: overwrite(path, 100, 2_100),
    "truncated": lambda path: os.truncate(path, 2 * _PAGE),
    "emptied": lambda path: os.truncate(path, 0),
    "removed": Path.unlink,
    "all removed": lambda path: remove(path, "", "-lock", "-wal", "-shm"),
    "another store": replace_by_an_empty_store,
    "log removed": lambda path: remove(path, "-wal"),
    "log and index removed": lambda path: remove(path, "-wal", "-shm"),
    "log truncated": lambda path: os.truncate(f"{path}-wal", 0),
}


def checkpoint(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_costs_the_store_alone(running: Collecting, damage: str) -> None:
    """Targets are scraped and shown on, the damage is reported, and scrapes after it are in a sound store."""
    last = running.wait_for_scrapes()
    wait_for(lambda: last in running.stored(), "a scrape in the store")
    if damage != "log truncated":
        # All of it is in the file then; the log would otherwise write over the damage.
        checkpoint(running.store)
    errors = running.own("servescope_store_errors_total")

    DAMAGES[damage](running.store)
    running.wait_for_scrapes()
    wait_for(lambda: running.own("servescope_store_errors_total") > errors, "a report of the damage", log=running.log)
    wait_for(lambda: running.store_problem() is None, "a sound store", log=running.log)
    last = running.wait_for_scrapes()
    wait_for(lambda: last in running.stored(), "a scrape in it", ignoring=(StoreError,), log=running.log)

    with closing(sqlite3.connect(running.store)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert "Traceback" not in running.log.read_text()


def test_a_file_of_another_program_in_its_place_is_left_alone(running: Collecting) -> None:
    """It is reported; scrapes wait until it is gone, and are stored then."""
    other = running.store.with_name("other")
    other.write_text("notes, long enough to be looked at " * 100)
    other.replace(running.store)
    wait_for(lambda: "file is not a database" in (running.store_problem() or ""), "a report", log=running.log)
    last = running.wait_for_scrapes()

    assert running.store.read_text().startswith("notes")
    running.store.unlink()
    wait_for(lambda: last in running.stored(), "the scrape", ignoring=(StoreError,), log=running.log)
    assert running.store_problem() is None


def test_an_overwritten_log_costs_the_store_alone(running: Collecting) -> None:
    """It is not noticed before its pages are read; until then, and while it is reported, targets are scraped on."""
    overwrite(Path(f"{running.store}-wal"), 0)
    for _ in range(3):
        running.wait_for_scrapes()

    assert running.get("/-/healthy") == "ok\n"
    assert "Traceback" not in running.log.read_text()
