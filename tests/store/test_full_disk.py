"""A collector that starts on a full disk scrapes, derives and reports at once, and stores as soon as there is room."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servescope.store.embedded import Store
from servescope.store.records import StoreError
from tests.store.support.collecting import Collecting, collecting
from tests.support.waiting import wait_for

# No file of the process may grow: as on a full disk, every write fails.
_WITHOUT_ROOM = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
from servescope.cli import main
raise SystemExit(main())
"""


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """The folder of a file system of 2 MB without a free byte."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system takes root")
    try:
        fill(folder)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filling").open("wb", buffering=0) as filling:
        while os.statvfs(folder).f_bavail:
            filling.write(bytes(4096))


def assert_waits_and_stores(running: Collecting, problem: str, make_room: Callable[[], object]) -> None:
    running.wait_for_scrapes()
    wait_for(lambda: running.own("servescope_store_errors_total") >= 2, "a second try")
    assert problem in (running.store_problem() or "")
    wait_for(lambda: running.get("/-/ready").startswith("ok, but nothing is stored"), "figures without a store")
    wait_for(lambda: "output_tokens_per_second{" in running.get("/metrics"), "a figure")
    make_room()
    wait_for(lambda: running.store_problem() is None, "the store", log=running.log)
    last = running.wait_for_scrapes()
    wait_for(lambda: last in running.stored(), "the last scrape")

    scrapes = running.scrapes()
    stored = [number for number in scrapes if number is not None]
    assert stored == sorted(stored)
    # An answer that came too late on a busy machine is a scrape that failed, and stored as such.
    assert len({*range(1, stored[-1] + 1)} - {*stored}) <= scrapes.count(None)
    assert "Traceback" not in (log := running.log.read_text())
    assert log.count(f"{problem}; what was scraped waits") == 1


@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True], ids=["no store", "a store"])
def test_a_collector_starts_where_no_file_can_grow(tmp_path: Path, existing: bool) -> None:
    """All scrapes since the start are stored once files can grow again."""
    path = tmp_path / "servescope.db"
    if existing:
        Store(path).close()
    with collecting(tmp_path, path, sys.executable, "-c", _WITHOUT_ROOM) as running:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        assert_waits_and_stores(
            running,
            "cannot be used as a store: disk I/O error",
            lambda: resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, unlimited),
        )


@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True], ids=["no store", "a store"])
def test_a_collector_starts_on_a_full_file_system(full: Path, tmp_path: Path, existing: bool) -> None:
    """The log, the API and the error name the full disk; nothing is left beside the store."""
    path = full / "servescope.db"
    if existing:
        (full / "filling").unlink()
        Store(path).close()
        fill(full)
    problem = "disk I/O error: No space left on device" if existing else "database or disk is full"
    with collecting(tmp_path, path) as running:
        assert_waits_and_stores(running, problem, (full / "filling").unlink)
    assert {each.name for each in full.iterdir()} == {"servescope.db", "servescope.db-lock"}


@pytest.mark.parametrize("call", ["open", "ftruncate", "pwrite"])
def test_a_lock_file_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Where it cannot be created, that is the error; the process number in it is not worth one."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    if call != "open":
        Store(tmp_path / "servescope.db").close()
        return
    with pytest.raises(StoreError, match=r"servescope.db: cannot be written: No space left on device") as caught:
        Store(tmp_path / "servescope.db")
    assert caught.value.retryable
