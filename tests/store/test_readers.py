"""Processes that read all along, while rows come, are packed and deleted, see each scrape once and whole."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, Snapshot
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.support.waiting import deadline_seconds

CHAT = Deployment("llama", "chat", "v1")
NOW = 1_800_000_000_000
STEP = 15_000
SERIES = tuple(Series("output_tokens_total", (("n", str(number)),)) for number in range(20))


def _read_all_along(
    path: Path,
    ended: multiprocessing.synchronize.Event,
    read_once: multiprocessing.synchronize.Semaphore,
    found: multiprocessing.Queue[tuple[int, list[str]]],
) -> None:
    reads, faults, youngest = 0, [], 0
    with Store(path, read_only=True) as reader:
        while not ended.is_set() or not reads:
            (window,) = reader.read_samples(CHAT, ["output_tokens_total"], 0, NOW * 2)
            scrapes = reader.read_scrapes("chat/r0", 0, NOW * 2)
            figures = reader.read_figures(CHAT, 0, NOW * 2)
            for times in (window.times, np.array([time_ms for time_ms, _ in scrapes]), figures.times):
                if not (np.diff(times) == STEP).all():
                    faults.append(f"missing or doubled: {times.tolist()}")
            if window.times[-1] < youngest:
                faults.append(f"gone back to {window.times[-1]}")
            youngest = max(youngest, int(window.times[-1]))
            expected = (window.times - NOW) / STEP
            if not (window.values == expected).all():
                faults.append("a value is not that of its instant")
            if not (figures.values["figure"] == (figures.times - NOW) / STEP).all():
                faults.append("a figure is not that of its instant")
            reads += 1
            read_once.release()
            if faults:
                break
    found.put((reads, faults[:3]))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1_000, pytest.param(4_000, marks=pytest.mark.proof)])
def test_processes_read_while_rows_are_packed_and_deleted(tmp_path: Path, steps: int) -> None:
    """No reader ever misses a scrape, sees one twice, or sees time go back."""
    path = tmp_path / "servescope.db"
    identity = Identity("llama", "chat", "v1", replica="r0")
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue[tuple[int, list[str]]] = context.Queue()
    ended, reads = context.Event(), [context.Semaphore(0) for _ in range(2)]
    with Store(path) as store:
        store.set_target(
            TargetStatus("chat/r0", "http://r0/metrics", identity, "", "", True, None, None, None, 20, None)
        )
        _append(store, 0)
        readers = [
            context.Process(target=_read_all_along, args=(path, ended, each, found), daemon=True) for each in reads
        ]
        for reader in readers:
            reader.start()
        # Before each of these steps both have read once more.
        for step in range(1, steps):
            if step % (steps // 20) == 0:
                assert all(each.acquire(timeout=deadline_seconds()) for each in reads)
            _append(store, step)
            store.pack_due()
            if step % 20 == 0:
                with store.transaction():
                    store.prune(NOW + (step - 600) * STEP)
        ended.set()
        results = [found.get(timeout=deadline_seconds()) for _ in readers]
        for reader in readers:
            reader.join(deadline_seconds())

    assert [faults for _, faults in results] == [[], []]
    assert all(count >= 19 for count, _ in results)


def _append(store: Store, step: int) -> None:
    with store.transaction():
        store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(SERIES, np.full(20, float(step))))
        store.append_figures(CHAT, NOW + step * STEP, {"figure": float(step)})
