"""A store that fails costs the store: the rest goes on, the failure is reported, and it recovers as soon as it can."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, Snapshot
from servescope.store.embedded import Store
from servescope.store.records import RecordedSettings, StoreError, TargetStatus
from servescope.store.schema import SCRAPES
from servescope.store.writer import StoreWriter, WriteBatch
from tests.support.waiting import wait_for

CHAT = Deployment("llama", "chat", "v1")
NOW = 1_800_000_000_000
STEP = 15_000
SHOWN = tuple(Series("output_tokens_total", (("n", str(number)),)) for number in range(500))
STATUS = TargetStatus(
    "chat/r0", "http://r0/metrics", Identity("llama", "chat", "v1", replica="r0"), "", "", True, NOW, NOW, 0.01, 1, None
)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servescope.store.writer._FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("servescope.store.writer._LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("servescope.store.tables.file.BUSY_SECONDS", 0.1)


class Writing:
    """A writer and what it reported; `scrape` submits the next scrape of one target."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path)
        self.errors: list[StoreError] = []
        self.dropped: list[WriteBatch] = []
        self.written = 0
        self.step = 0
        self.writer = StoreWriter(
            self.store, on_written=self._on_written, on_error=self.errors.append, on_dropped=self.dropped.append
        )
        self.submit(WriteBatch(targets=[STATUS], settings=(NOW, RecordedSettings(300_000, 15_000, 15_000, "closed"))))

    def _on_written(self, _: float) -> None:
        self.written += 1

    def submit(self, round_: WriteBatch) -> None:
        self.writer.submit(round_)

    def scrape(self) -> int:
        values = np.random.default_rng(self.step).random(len(SHOWN))
        self.submit(WriteBatch(scrapes=[("chat/r0", NOW + self.step * STEP, Snapshot(SHOWN, values))]))
        self.step += 1
        return self.step - 1

    def settle(self) -> None:
        wait_for(lambda: self.writer.backlog() == 0, "all that waits to be written")

    def stored(self) -> list[int]:
        with Store(self.path, read_only=True) as reader:
            return [(time_ms - NOW) // STEP for time_ms, _ in reader.read_scrapes("chat/r0", 0, NOW * 2)]


@pytest.fixture
def writing(path: Path) -> Iterator[Writing]:
    writing = Writing(path)
    yield writing
    writing.writer.close()


def test_a_full_disk_is_waited_out(writing: Writing) -> None:
    """What comes meanwhile waits, its age is reported, and all of it is stored once there is room again."""
    for _ in range(10):
        writing.scrape()
    writing.settle()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The log may not grow beyond what it is: as on a full disk, writes to it fail.
    resource.setrlimit(resource.RLIMIT_FSIZE, (writing.store.size_bytes() // 2, limit[1]))
    try:
        for _ in range(40):
            writing.scrape()
        wait_for(lambda: len(writing.errors) >= 3, "a third try")
        waiting, age = writing.writer.backlog(), writing.writer.age_seconds()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    writing.settle()

    assert (waiting, age > 0) == (40, True)
    assert writing.stored() == [*range(50)]
    assert writing.dropped == []
    assert writing.writer.age_seconds() == 0


def test_while_the_store_fails_memory_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the backlog the oldest scrapes are dropped and reported; the youngest are stored afterwards."""
    monkeypatch.setattr("servescope.store.writer._MOST_ROUNDS", 20)
    writing = Writing(path)
    writing.settle()
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(100):
            writing.scrape()
        wait_for(lambda: writing.errors, "a report")
        other.execute("ROLLBACK")
    other.close()
    writing.settle()
    writing.writer.close()

    assert 60 <= len(writing.dropped) <= 80
    stored = writing.stored()
    assert stored[-20:] == [*range(80, 100)]
    assert len(stored) + len(writing.dropped) == 100


@contextmanager
def _set(writing: Writing, pragma: str, value: int, restored: int) -> Iterator[None]:
    for each, number in ((pragma, value), (pragma, restored)):
        with writing.store._lock:
            writing.store._connection.execute(f"PRAGMA {each} = {number}")
        if number == value:
            yield


@contextmanager
def _locked(writing: Writing) -> Iterator[None]:
    with closing(sqlite3.connect(writing.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("refusing", "problem"),
    [
        (lambda writing: _set(writing, "max_page_count", 1, 1_000_000), "database or disk is full"),
        (lambda writing: _set(writing, "query_only", 1, 0), "attempt to write a readonly database"),
        (_locked, "database is locked"),
    ],
    ids=["full", "read-only", "locked"],
)
def test_a_file_that_refuses_what_is_written_is_waited_for(
    writing: Writing, refusing: Callable[[Writing], AbstractContextManager[None]], problem: str
) -> None:
    """By SQLite's message, with the file's name, at every try; nothing is lost."""
    writing.scrape()
    writing.settle()
    with refusing(writing):
        for _ in range(30):
            writing.scrape()
        wait_for(lambda: len(writing.errors) >= 2, "a second try")
    writing.settle()

    assert {str(error) for error in writing.errors} == {f"store {writing.path}: {problem}"}
    assert writing.stored() == [*range(31)]


def _flip_head(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * 100)


def _flip_pages(path: Path) -> None:
    with path.open("r+b") as file:
        for page in range(1, path.stat().st_size // 16_384):
            file.seek(page * 16_384)
            file.write(b"\xaa" * 64)


def _truncate(path: Path) -> None:
    os.truncate(path, 2 * 16_384)


@pytest.mark.parametrize("damage", [_flip_head, _flip_pages, _truncate])
def test_a_file_damaged_under_the_writer_is_set_aside(writing: Writing, damage: Callable[[Path], None]) -> None:
    """It is renamed, a new one is begun, and no scrape since then is lost."""
    for _ in range(10):
        writing.scrape()
    writing.settle()
    with writing.store._lock:
        writing.store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # What is in the cache is not read again, so that damage would show later only.
        writing.store._connection.execute("PRAGMA shrink_memory")
        damage(writing.path)
    for _ in range(20):
        writing.scrape()
        wait_for(lambda: writing.errors or not writing.writer.backlog(), "the scrape, or the damage")
    wait_for(lambda: any("a new one is begun" in str(error) for error in writing.errors), "a new store")
    writing.settle()

    (aside,) = (name for name in writing.path.parent.glob("servescope.db.corrupt-*") if name.suffix != ".db-wal")
    assert str(aside) in " ".join(str(error) for error in writing.errors)
    with sqlite3.connect(writing.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    with Store(writing.path, read_only=True) as reader:
        assert [target.target_id for target in reader.targets()] == ["chat/r0"]
        assert reader.settings_at(NOW * 2) == RecordedSettings(300_000, 15_000, 15_000, "closed")
    assert writing.stored()[-1] == 29
    assert writing.dropped == []


def test_a_damaged_file_is_set_aside_at_the_start(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The collector begins a new one and logs the new name of the former file."""
    with Store(path) as store:
        store.set_target(STATUS)
    with path.open("r+b") as file:
        # The page of the schema, behind the head that says whose file it is.
        file.seek(100)
        file.write(b"\xaa" * 2_000)

    with pytest.raises(StoreError, match="malformed"):
        Store(path)
    with Store.begin(path) as store:
        assert store.targets() == []

    (aside,) = path.parent.glob("servescope.db.corrupt-*")
    assert f"it is now {aside}, and a new store is begun" in caplog.text


def test_a_log_cut_off_loses_its_end_only(path: Path) -> None:
    """What a crash of the machine leaves of the write-ahead log is read up to where it is whole."""
    with Store(path) as store:
        store.set_target(STATUS)
        for step in range(40):
            store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(SHOWN, np.full(500, float(step))))
        for ending in ("", "-wal"):
            shutil.copy(f"{path}{ending}", path.parent / f"copy.db{ending}")
    log = path.parent / "copy.db-wal"
    os.truncate(log, log.stat().st_size * 2 // 3)

    with Store.begin(path.parent / "copy.db") as store:
        times = [(time_ms - NOW) // STEP for time_ms, _ in store.read_scrapes("chat/r0", 0, NOW * 2)]
        assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert times == [*range(len(times))]
    assert 5 < len(times) < 40


def test_a_file_that_was_removed_is_begun_anew(writing: Writing) -> None:
    """So is one that was replaced; open readers follow."""
    writing.scrape()
    writing.settle()
    with Store(writing.path, read_only=True) as reader:
        for ending in ("", "-wal", "-shm"):
            Path(f"{writing.path}{ending}").unlink()
        second = writing.scrape()
        writing.settle()

        times = [(time_ms - NOW) // STEP for time_ms, _ in reader.read_scrapes("chat/r0", 0, NOW * 2)]
    assert times == [second]
    assert [str(error) for error in writing.errors] == [
        f"store {writing.path}: the file was removed, replaced or out of reach; the one at its place now is written"
    ]


@pytest.mark.parametrize("with_reader", [False, True])
def test_a_file_in_its_place_gets_nothing_of_the_former_log(writing: Writing, with_reader: bool) -> None:
    """SQLite would write the former file's log to it, pages of the one among those of the other."""
    first = writing.scrape()
    writing.settle()
    former = writing.path.with_name("former.db")
    with Store(writing.path, read_only=True) as reader:
        Store(writing.path.with_name("other.db")).close()
        writing.path.rename(former)
        writing.path.with_name("other.db").rename(writing.path)
        if with_reader:
            reader.read_scrapes("chat/r0", 0, NOW * 2)
        steps = []
        for _ in range(3):
            steps.append(writing.scrape())
            writing.settle()
        times = [(time_ms - NOW) // STEP for time_ms, _ in reader.read_scrapes("chat/r0", 0, NOW * 2)]
    stored = writing.stored()
    writing.writer.close()

    assert times == stored == steps
    with closing(sqlite3.connect(writing.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with Store(former) as store:
        assert [(time_ms - NOW) // STEP for time_ms, _ in store.read_scrapes("chat/r0", 0, NOW * 2)] == [first]


def test_a_new_file_gets_its_targets_before_the_scrapes_that_wait(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when writing them failed at first: a store that does not know a target refuses its scrapes."""
    writing.scrape()
    writing.settle()
    write, failures = WriteBatch.write, [StoreError("disk full")]

    def fail_once(round_: WriteBatch, store: Store) -> None:
        if failures:
            raise failures.pop()
        write(round_, store)

    monkeypatch.setattr(WriteBatch, "write", fail_once)
    for ending in ("", "-wal", "-shm"):
        Path(f"{writing.path}{ending}").unlink()
    second = writing.scrape()
    writing.settle()

    assert (writing.stored(), writing.dropped) == ([second], [])


def test_a_file_that_was_emptied_is_begun_anew(writing: Writing) -> None:
    """SQLite itself would go on for long without an error, and lose all of it in the end."""
    first = writing.scrape()
    writing.settle()
    with writing.store._lock:
        writing.store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with Store(writing.path, read_only=True) as reader:
        assert [(time_ms - NOW) // STEP for time_ms, _ in reader.read_scrapes("chat/r0", 0, NOW * 2)] == [first]
        os.truncate(writing.path, 0)
        second = writing.scrape()
        writing.settle()
        third = writing.scrape()
        writing.settle()
        times = [(time_ms - NOW) // STEP for time_ms, _ in reader.read_scrapes("chat/r0", 0, NOW * 2)]
    writing.writer.close()

    assert times == writing.stored() == [second, third]
    assert len(writing.errors) == 1


def test_a_directory_that_vanished_is_waited_for(tmp_path: Path) -> None:
    """While it is gone all scrapes wait; when it is back a store is begun in it."""
    folder = tmp_path / "data"
    folder.mkdir()
    writing = Writing(folder / "servescope.db")
    writing.scrape()
    writing.settle()
    folder.rename(tmp_path / "elsewhere")
    second = writing.scrape()
    wait_for(lambda: len(writing.errors) >= 2, "a second try")
    folder.mkdir()
    writing.settle()
    stored = writing.stored()
    with pytest.raises(StoreError, match="another collector"):
        Store(writing.path)
    writing.writer.close()

    assert stored == [second]
    assert str(writing.errors[0]) == f"store {writing.path}: cannot be written: No such file or directory"
    assert writing.dropped == []


def test_a_file_that_comes_back_with_its_directory_is_written_on(tmp_path: Path) -> None:
    """As one that was unmounted for a while: the same file is written, and read, on."""
    folder = tmp_path / "data"
    folder.mkdir()
    writing = Writing(folder / "servescope.db")
    first = writing.scrape()
    writing.settle()
    with Store(writing.path, read_only=True) as reader:
        folder.rename(tmp_path / "elsewhere")
        second = writing.scrape()
        wait_for(lambda: len(writing.errors) >= 2, "a second try")
        with pytest.raises(StoreError, match="no store at"):
            reader.read_scrapes("chat/r0", 0, NOW * 2)
        (tmp_path / "elsewhere").rename(folder)
        writing.settle()
        times = [(time_ms - NOW) // STEP for time_ms, _ in reader.read_scrapes("chat/r0", 0, NOW * 2)]
    writing.writer.close()

    assert times == [first, second]
    assert writing.dropped == []


@pytest.mark.parametrize(
    "wound",
    [
        "UPDATE layouts SET keys = x'00' WHERE id IN (SELECT layout FROM recent_scrapes)",
        "UPDATE recent_scrapes SET body = x'00'",
    ],
)
def test_damaged_rows_of_one_target_do_not_keep_others_from_being_packed(
    path: Path, wound: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are dropped and reported; reading them before is a StoreError."""
    other = dataclasses.replace(STATUS, target_id="chat/r1")
    shown = tuple(Series("requests_total", (("n", str(number)),)) for number in range(3))
    with Store(path) as store:
        with store.transaction():
            store.set_target(STATUS)
            store.set_target(other)
            for step in range(240):
                store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(SHOWN, np.full(len(SHOWN), 1.0)))
        store._connection.execute(wound)
        store._forget()
        with store.transaction():
            for step in range(240):
                store.append_scrape("chat/r1", NOW + step * STEP, Snapshot(shown, np.ones(3)))
        with pytest.raises(StoreError, match="damaged"):
            store.read_samples(CHAT, ["output_tokens_total"], 0, NOW * 2)
        with pytest.raises(StoreError, match="damaged"):
            store.read_scrapes("chat/r0", 0, NOW * 2)
        while store.pack_due():
            pass

        packed = store._connection.execute(f"SELECT count(*) FROM runs WHERE kind = {SCRAPES}").fetchone()
        left = store._connection.execute("SELECT count(*) FROM recent_scrapes").fetchone()
        assert (packed, left) == ((1,), (0,))
        assert len(store.read_scrapes("chat/r1", 0, NOW * 2)) == 240
        assert store.read_scrapes("chat/r0", 0, NOW * 2) == []
    assert len([record for record in caplog.records if "it is dropped" in record.message]) == 1
