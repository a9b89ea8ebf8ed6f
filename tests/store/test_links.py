"""A store's path that is a symbolic link, or one of several names: resolved once, or refused, by every command."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, Snapshot
from servescope.customers.lanes.cursors import CursorFile
from servescope.cutover.plan.files import parse_plan
from servescope.demo.opening import STORE, put_files
from servescope.errors import UsageError
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import start_run
from servescope.settings.tables import read_document
from servescope.store.embedded import Store
from servescope.store.records import StoreError, TargetStatus
from servescope.store.writer import StoreWriter, WriteBatch
from tests.support.commands import Done, run
from tests.support.customers_config import write_customers
from tests.support.cutover_plans import LEAST_PLAN, frozen_plan
from tests.support.waiting import wait_for

NOW = 1_700_000_000_000
IDENTITY = Identity("llama", "chat", "v1", replica="r0")
STATUS = TargetStatus(IDENTITY.target_id, "http://r0", IDENTITY, "vllm", "1", True, NOW, NOW, 0.1, 1, None)
TOKENS = Series("output_tokens_total", ())


class Disks:
    """Two disks, and the links of one to the other."""

    def __init__(self, folder: Path) -> None:
        self.small, self.big = folder / "small", folder / "big"
        self.small.mkdir()
        self.big.mkdir()
        self.real = self.big / "servescope.db"

    def names(self) -> list[str]:
        """What is in the folder of the links."""
        return sorted(each.name for each in self.small.iterdir())


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(tmp_path)


def absolute(disks: Disks) -> Path:
    (disks.small / "link.db").symlink_to(disks.real)
    return disks.small / "link.db"


def relative(disks: Disks) -> Path:
    (disks.small / "link.db").symlink_to(Path("..") / "big" / "servescope.db")
    return disks.small / "link.db"


def chain(disks: Disks) -> Path:
    (disks.small / "second.db").symlink_to(disks.real)
    (disks.small / "link.db").symlink_to("second.db")
    return disks.small / "link.db"


def parent(disks: Disks) -> Path:
    (disks.small / "current").symlink_to(disks.big)
    return disks.small / "current" / "servescope.db"


def grandparent(disks: Disks) -> Path:
    (disks.big / "a").mkdir()
    disks.real = disks.big / "a" / "servescope.db"
    (disks.small / "current").symlink_to(disks.big)
    return disks.small / "current" / "a" / "servescope.db"


LINKS: list[Callable[[Disks], Path]] = [absolute, relative, chain, parent, grandparent]


class Writing:
    """A writer on a path."""

    def __init__(self, path: Path) -> None:
        self.errors: list[StoreError] = []
        self.store = Store.begin(path)
        self.writer = StoreWriter(
            self.store, on_written=lambda _: None, on_error=self.errors.append, on_dropped=lambda _: None
        )
        self.step = 0

    def scrape(self, times: int = 1) -> None:
        """Write scrapes, each in a transaction of its own."""
        for _ in range(times):
            snapshot = Snapshot((TOKENS,), np.array([float(self.step)]))
            self.writer.submit(
                WriteBatch(targets=[STATUS], scrapes=[(IDENTITY.target_id, NOW + self.step * 15_000, snapshot)])
            )
            self.step += 1
            wait_for(lambda: not self.writer.backlog(), "the store")


@pytest.fixture
def begin() -> Iterator[Callable[[Path], Writing]]:
    made: list[Writing] = []

    def begin(path: Path) -> Writing:
        made.append(Writing(path))
        return made[-1]

    yield begin
    for each in made:
        each.writer.close()


Begin = Callable[[Path], Writing]


def stored(path: Path) -> int:
    """How many scrapes a reader finds."""
    with Store(path, read_only=True) as reader:
        return len(reader.read_scrapes(IDENTITY.target_id, 0, 1 << 41))


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("make", LINKS)
def test_a_link_stays_a_link(disks: Disks, begin: Begin, make: Callable[[Disks], Path], exists: bool) -> None:
    """All is written where it leads to, also where nothing is there yet; the log and the lock are beside that."""
    link = make(disks)
    if exists:
        Store(disks.real).close()
    former = disks.names()
    writing = begin(link)
    writing.scrape(10)
    assert writing.errors == []
    assert disks.names() == former
    assert not disks.real.is_symlink()
    assert sorted(each.name for each in disks.real.parent.iterdir() if each.name != "a") == [
        f"servescope.db{ending}" for ending in ("", "-lock", "-shm", "-wal")
    ]
    assert (stored(link), stored(disks.real)) == (10, 10)


@pytest.mark.parametrize("first", ["the link", "the file"])
def test_one_store_has_one_writer_by_whatever_name(disks: Disks, begin: Begin, first: str) -> None:
    """Two collectors would take its log from each other."""
    link = absolute(disks)
    paths = [link, disks.real] if first == "the link" else [disks.real, link]
    begin(paths[0]).scrape()
    for path in paths:
        with pytest.raises(StoreError, match=rf"another collector \(process {os.getpid()}\) is writing it"):
            Store.begin(path)


def test_a_link_that_is_changed_is_that_of_the_next_start(disks: Disks, begin: Begin) -> None:
    """Who has begun goes on with the file it began with; who begins now is led elsewhere."""
    link = absolute(disks)
    writing = begin(link)
    writing.scrape(3)
    link.unlink()
    link.symlink_to(disks.small / "other.db")
    writing.scrape(3)
    assert (writing.errors, stored(disks.real)) == ([], 6)
    other = begin(link)
    other.scrape(2)
    writing.scrape()
    assert (stored(link), stored(disks.small / "other.db"), stored(disks.real)) == (2, 2, 7)


@pytest.mark.parametrize("move", [shutil.move, shutil.copy2], ids=["moved", "copied"])
def test_a_file_that_gives_way_to_a_link_is_followed(
    disks: Disks, begin: Begin, move: Callable[[Path, Path], object]
) -> None:
    """As when it is moved to a larger disk under a collector that runs: nothing that was written is lost."""
    path = disks.small / "servescope.db"
    writing = begin(path)
    writing.scrape(5)
    with Store(path, read_only=True) as reader:
        assert len(reader.read_scrapes(IDENTITY.target_id, 0, 1 << 41)) == 5
        if move is shutil.copy2:
            writing.store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        move(path, disks.real)
        path.unlink(missing_ok=True)
        path.symlink_to(disks.real)
        writing.scrape(5)
        assert len(reader.read_scrapes(IDENTITY.target_id, 0, 1 << 41)) == 10
    assert "the one at its place now is written" in str(writing.errors[0])
    assert path.is_symlink()
    assert (stored(path), stored(disks.real)) == (10, 10)
    assert sorted(set(disks.names()) - {"servescope.db-lock"}) == ["servescope.db"]
    writing.writer.close()
    with sqlite3.connect(disks.real) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_links_in_a_circle_are_refused(disks: Disks) -> None:
    """Whoever opens them."""
    path = disks.small / "a.db"
    path.symlink_to("b.db")
    (disks.small / "b.db").symlink_to("a.db")
    for open_ in (Store, Store.begin, CursorFile, CutoverJournal):
        with pytest.raises(UsageError, match=r"a.db' is a symbolic link that leads in a circle"):
            open_(path)


def test_a_link_to_nowhere_is_no_store_yet(disks: Disks) -> None:
    """A reader says so; where its folder is missing, so does a writer. Neither leaves anything behind."""
    link = absolute(disks)
    with pytest.raises(StoreError, match=r"no store at '.*/big/servescope.db'"):
        Store(link, read_only=True)
    disks.big.rmdir()
    with pytest.raises(StoreError, match=r"big/servescope.db: cannot be written: No such file or directory"):
        Store.begin(link)
    assert disks.names() == ["link.db"]


def test_a_link_to_what_is_no_file_is_refused(disks: Disks) -> None:
    """A folder, a pipe, a device: as without a link."""
    link = disks.small / "link.db"
    for kind in (disks.big, Path("/dev/null")):
        link.unlink(missing_ok=True)
        link.symlink_to(kind)
        with pytest.raises(UsageError, match=r"is a directory|is not a regular file"):
            Store.begin(link)


def test_several_names_are_refused(disks: Disks, begin: Begin) -> None:
    """By each of them; once there is one again, nothing is lost."""
    path, other = disks.small / "servescope.db", disks.small / "other.db"
    writing = begin(path)
    writing.scrape(3)
    other.hardlink_to(path)
    for name in (path, other):
        for read_only in (True, False):
            with pytest.raises(UsageError, match=rf"store '{name}' has 2 names \(hard links\), by each of which it"):
                Store(name, read_only=read_only)
    assert not (disks.small / "other.db-lock").exists()
    # Who has it open needs no name.
    writing.scrape(3)
    assert writing.errors == []
    other.unlink()
    assert stored(path) == 6


def test_cursors_are_beside_the_file_that_a_link_leads_to(disks: Disks) -> None:
    """And have one writer by whatever name."""
    disks.real = disks.big / "acme.cursors.db"
    link = absolute(disks)
    with CursorFile(link, deliver=True) as cursors:
        assert cursors.lanes() == []
        assert cursors.is_delivering()
        for path in (link, disks.real):
            with pytest.raises(StoreError, match="another `servescope customers run`"):
                CursorFile(path, deliver=True)
            with CursorFile(path) as reader:
                assert reader.is_delivering()
    assert disks.names() == ["link.db"]
    (disks.small / "second.db").hardlink_to(disks.real)
    for path in (link, disks.real, disks.small / "second.db"):
        for deliver in (True, False):
            with pytest.raises(UsageError, match=r"has 2 names \(hard links\)"):
                CursorFile(path, deliver=deliver)


STORE_COMMANDS = {
    "collect": "collect --target http://127.0.0.1:1/metrics --listen 127.0.0.1:0 --store {db}",
    "console": "console --store {db} --no-browser --listen 127.0.0.1:0",
    "export": "export --store {db} --format openmetrics --out {folder}/out.txt",
    "judge plan": "judge plan --plan {folder}/cutover.toml --store {db}",
    "judge start": "judge start --plan {folder}/cutover.toml --by ada --reason go --store {db}",
    "judge run": "judge run --plan {folder}/cutover.toml --since 1h --store {db}",
    "judge explain": "judge explain --plan {folder}/cutover.toml --since 1h --store {db}",
    "judge report": "judge report --plan {folder}/cutover.toml --since 1h --out {folder}/r.html --store {db}",
    "judge watch": "judge watch --plan {folder}/cutover.toml --listen 127.0.0.1:0 --store {db}",
    "judge decide": "judge decide hold --plan {folder}/cutover.toml --by ada --reason wait --store {db}",
    "migrate": "migrate {folder}/v1.yaml --store {db} --past 1h",
    "customers check": "customers check --config {folder}/customers.toml --store {db}",
    "customers run": "customers run --config {folder}/customers.toml --cursors {folder}/c.db --store {db}",
}
CURSOR_COMMANDS = {
    "customers run": "customers run --config {folder}/customers.toml --cursors {db} --store {folder}/plain.db",
    "customers status": "customers status --config {folder}/customers.toml --cursors {db}",
    "customers statement": "customers statement acme --config {folder}/customers.toml --cursors {db}",
    "customers remove": "customers remove acme --config {folder}/customers.toml --cursors {db}",
    "console": "console --store {folder}/plain.db --customers {folder}/customers.toml --cursors {db} --no-browser",
}


def command(words: str, disks: Disks, db: Path) -> Done:
    """A command of `servescope` with a path for its store or its cursors."""
    plan = disks.small / "cutover.toml"
    plan.write_text(LEAST_PLAN)
    with CutoverJournal(disks.small / "cutover.journal.db") as journal:
        start_run(journal, frozen_plan(parse_plan(read_document(plan, "plan"), str(plan))), replace=True)
    write_customers(disks.small)
    (disks.small / "v1.yaml").write_text("max_batch_size: 8\n")
    if not (disks.small / "plain.db").exists():
        Store(disks.small / "plain.db").close()
    return run(*(word.format(db=db, folder=disks.small) for word in words.split()))


@pytest.mark.parametrize("name", STORE_COMMANDS)
def test_every_command_refuses_a_store_of_several_names(disks: Disks, name: str) -> None:
    """Before it does anything."""
    pytest.importorskip("streamlit")
    with Store(disks.real) as store:
        store.set_target(STATUS)
    (disks.big / "other.db").hardlink_to(disks.real)
    done = command(STORE_COMMANDS[name], disks, disks.big / "other.db")
    assert (done.returncode, "has 2 names (hard links)" in done.stderr) == (2, True), done.stderr
    assert sorted(each.name for each in disks.big.iterdir() if not each.name.startswith("servescope.db-")) == [
        "other.db", "servescope.db",
    ]  # fmt: skip


@pytest.mark.parametrize("name", CURSOR_COMMANDS)
def test_every_command_refuses_cursors_of_several_names(disks: Disks, name: str) -> None:
    """Before it does anything."""
    pytest.importorskip("streamlit")
    CursorFile(disks.real, deliver=True).close()
    (disks.big / "other.db").hardlink_to(disks.real)
    done = command(CURSOR_COMMANDS[name], disks, disks.big / "other.db")
    assert (done.returncode, "has 2 names (hard links)" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("name", ["export", "judge plan", "judge run", "judge explain", "judge report"])
def test_commands_read_through_links_and_leave_them(disks: Disks, name: str) -> None:
    """As they read the file itself."""
    link = chain(disks)
    with Store(disks.real) as store:
        store.set_target(STATUS)
        store.append_figures(Deployment("llama", "chat", "v1"), NOW, {"request_rate": 1.0})
    former = {each.name for each in disks.small.iterdir()}
    direct, through = (command(STORE_COMMANDS[name], disks, path) for path in (disks.real, link))
    assert (through.returncode, through.stdout) == (direct.returncode, direct.stdout)
    added = {each.name for each in disks.small.iterdir()} - former
    assert not {each for each in added if each.startswith(("link.db", "second.db"))}
    assert link.is_symlink()


def test_the_demo_begins_where_a_link_of_its_folder_leads_to(disks: Disks) -> None:
    """In place of an earlier one, whose files it removes."""
    (disks.small / "demo").symlink_to(disks.big)
    for _ in range(2):
        put_files(disks.small / "demo", 1e9)
    assert (disks.small / "demo").is_symlink()
    assert not (disks.big / STORE).is_symlink()
    with Store(disks.small / "demo" / STORE, read_only=True) as store:
        assert store.path == disks.big / STORE
