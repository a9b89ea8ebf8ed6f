"""Stores of an older servescope become stores of today: everything in them stays, or the file stays as it was."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from servescope.collector.store import KeptAlert, Store, StoreError, TargetStatus
from servescope.identity import Deployment, Identity
from servescope.samples import Series, Snapshot
from tests.former_store import write_former_store

NOW = 1_800_000_000_000
STEP = 15_000
DEPLOYMENTS = (Deployment("llama", "chat", "v1"), Deployment("llama", "code", "v2", environment="production"))
SHOWN = tuple(Series("output_tokens_total", (("n", str(number)),)) for number in range(30))
COVERAGE = {"output_tokens_total": {"status": "present", "native": "vllm:generation_tokens_total", "reason": None}}
Scrapes = list[tuple[str, int, Snapshot | None]]
Figures = list[tuple[Deployment, int, dict[str, float]]]


def targets() -> list[TargetStatus]:
    return [
        TargetStatus(
            f"{each.deployment_id}/{replica}", "http://x/metrics",
            Identity(each.model_name, each.deployment_id, each.inference_stack, each.environment, "", replica),
            "vllm", "0.32", True, NOW, NOW, 0.01, 30, None, COVERAGE,
        )
        for each in DEPLOYMENTS
        for replica in ("r0", "r1")
    ]  # fmt: skip


def contents(steps: int) -> tuple[Scrapes, Figures]:
    rng = np.random.default_rng(3)
    scrapes: Scrapes = []
    for target in targets():
        for step in range(steps):
            shown = SHOWN if step % 50 else SHOWN[:12]
            snapshot = None if step % 37 == 5 else Snapshot(shown, rng.integers(0, 9, len(shown)) * step / 8)
            scrapes.append((target.target_id, NOW + step * STEP + step % 3, snapshot))
    figures: Figures = [
        (each, NOW + step * STEP, {"request_rate": rng.random(), "queued_requests": float(step % 9)})
        for each in DEPLOYMENTS
        for step in range(steps)
    ]
    return scrapes, figures


def write(path: Path, steps: int = 700) -> tuple[Scrapes, Figures]:
    scrapes, figures = contents(steps)
    write_former_store(path, targets(), scrapes, figures)
    return scrapes, figures


def check(store: Store, scrapes: Scrapes, figures: Figures) -> None:
    read: Scrapes = [
        (target.target_id, time_ms, snapshot)
        for target in targets()
        for time_ms, snapshot in store.read_scrapes(target.target_id, 0, NOW * 2)
    ]
    assert [each[:2] for each in read] == [each[:2] for each in scrapes]
    for (_, _, found), (_, _, expected) in zip(read, scrapes, strict=True):
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found.series == expected.series
            assert found.values.tobytes() == expected.values.tobytes()
    for deployment in DEPLOYMENTS:
        table = store.read_figures(deployment, 0, NOW * 2)
        expected_figures = [(time_ms, values) for each, time_ms, values in figures if each == deployment]
        assert table.times.tolist() == [time_ms for time_ms, _ in expected_figures]
        for key, column in table.values.items():
            assert column.tolist() == [values[key] for _, values in expected_figures]
    assert store.targets() == targets()
    assert store.deployments() == [*DEPLOYMENTS]


def test_an_older_store_is_upgraded_bit_by_bit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every scrape, failed or not, every figure and every target is there afterwards, and it goes on being written."""
    path = tmp_path / "servescope.db"
    scrapes, figures = write(path)

    with caplog.at_level(logging.INFO), Store(path) as store:
        check(store, scrapes, figures)
        pragmas = [
            store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "auto_vacuum")
        ]
        store.append_scrape("chat/r0", NOW * 2, None)
        assert store._connection.execute("PRAGMA user_version").fetchone() == (3,)
        tables = {name for (name,) in store._connection.execute("SELECT name FROM sqlite_schema")}
    assert not any(name.startswith("former_") for name in tables)
    assert "upgrading from schema 1 to 3: 4200 scrapes and figures" in caplog.text
    assert "upgraded 56 %" in caplog.text
    assert pragmas == [0, 2]
    with Store(path, read_only=True) as reader:
        assert reader.read_scrapes("chat/r0", NOW * 2, NOW * 2) == [(NOW * 2, None)]


def test_a_reader_of_an_older_store_says_how_to_upgrade(tmp_path: Path) -> None:
    """It changes nothing by itself."""
    path = tmp_path / "servescope.db"
    write(path, 10)
    former = path.read_bytes()

    with pytest.raises(StoreError, match=r"schema 1, this one reads 3\); start `servescope collect` on it once"):
        Store(path, read_only=True)
    assert path.read_bytes() == former


def test_an_upgrade_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    """A damaged row is named, and the older servescope can go on reading the rest."""
    path = tmp_path / "servescope.db"
    write(path, 300)
    connection = sqlite3.connect(path, isolation_level=None)
    key = connection.execute("SELECT max(id) FROM scrapes WHERE body IS NOT NULL").fetchone()[0]
    connection.execute("UPDATE scrapes SET body = x'00112233' WHERE id = ?", (key,))
    before = connection.execute("SELECT count(*), sum(length(body)) FROM scrapes").fetchone()

    with pytest.raises(StoreError, match=rf"cannot be upgraded: a row of time {key & ((1 << 44) - 1)} is damaged"):
        Store(path)

    assert connection.execute("SELECT count(*), sum(length(body)) FROM scrapes").fetchone() == before
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()


@pytest.mark.slow
def test_an_upgrade_that_is_killed_can_begin_again(tmp_path: Path) -> None:
    """SIGKILL in the middle of it leaves the former store, readable, and the next start upgrades it."""
    path = tmp_path / "servescope.db"
    scrapes, figures = write(path, 3_000)
    for _ in range(3):
        words = [sys.executable, "-c", _UPGRADE, str(path)]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, env=os.environ)
        assert process.stderr is not None
        assert b"upgrading from schema 1" in process.stderr.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM scrapes").fetchone() == (len(scrapes),)
        connection.close()

    with Store(path) as store:
        check(store, scrapes, figures)


_UPGRADE = """
import logging, sys
from servescope.collector.store import Store
logging.basicConfig(level=logging.INFO, format="%(message)s")
Store(sys.argv[1])
"""


def test_a_store_that_knew_nothing_of_alerts_gets_their_tables(tmp_path: Path) -> None:
    """What schema 2 had stays untouched; a reader says how to upgrade until then."""
    path = tmp_path / "servescope.db"
    with Store(path) as store:
        for status in targets():
            store.set_target(status)
        store.append_scrape("chat/r0", NOW, None)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("DROP TABLE sums; DROP TABLE alerts; PRAGMA user_version = 2;")
    connection.close()
    with pytest.raises(StoreError, match="schema 2, this one reads 3"):
        Store(path, read_only=True)

    kept = KeptAlert("ServescopeWatchdog", (("a", "b"),), NOW, NOW, None, None, {"hook:80": (NOW, "firing", NOW)}, 1.0)
    with Store(path) as store:
        assert store.read_scrapes("chat/r0", 0, NOW * 2) == [(NOW, None)]
        assert (store.read_alerts(), store.read_sums(until_ms=NOW * 2)) == ([], [])
        store.write_alerts([kept])
        for step in range(4):
            store.append_sums(NOW + step * STEP, {DEPLOYMENTS[0]: [1.0, step + 0.5]})
        store.forget_sums([NOW + STEP])
        # A clock that was set back: what it had said of later is taken back.
        store.append_sums(NOW + 3 * STEP, {DEPLOYMENTS[1]: [7.0]})
    with Store(path, read_only=True) as reader:
        assert reader.read_alerts() == [kept]
        assert reader.read_sums(until_ms=NOW * 2) == [
            (NOW, {DEPLOYMENTS[0]: [1.0, 0.5]}), (NOW + 2 * STEP, {DEPLOYMENTS[0]: [1.0, 2.5]}),
            (NOW + 3 * STEP, {DEPLOYMENTS[1]: [7.0]}),
        ]  # fmt: skip
