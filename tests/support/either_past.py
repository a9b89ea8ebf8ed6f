"""The same past twice: in a store, and in a Prometheus that was filled with what the store exported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS
from servescope.increments.blocks import BLOCK_MS
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from servescope.store.exporting.openmetrics import write_openmetrics
from servescope.store.exporting.selection import Selection
from servescope.store.records import TargetStatus
from tests.support.fake_targets import FakeTarget, Incident
from tests.support.past import INTERVAL_MS, a_day_ago, make_blocks, remembering

MINUTES = 70


@dataclass(frozen=True)
class EitherPast:
    """A store, the address of a Prometheus with the same samples, and from when to when they are."""

    store: Path
    url: str
    start_ms: int
    end_ms: int


@contextmanager
def either_past(prometheus: Path, promtool: Path, folder: Path, *, scraped: str = "") -> Iterator[EitherPast]:
    """Seventy minutes of both stacks; `scraped` are labels of where the Prometheus scraped them, as PromQL text."""
    start_ms, end_ms = write_store(folder / "s.db")
    with Store(folder / "s.db", read_only=True) as store:
        write_openmetrics(
            store, Selection(tuple(store.deployments()), tuple(METRICS), start_ms, end_ms), folder / "past.om"
        )
    if scraped:
        text = (folder / "past.om").read_text(encoding="utf-8")
        (folder / "past.om").write_text(re.sub(r"(?m)^(\w+)\{", rf"\1{{{scraped},", text), encoding="utf-8")
    make_blocks(folder / "past.om", promtool, folder / "prometheus")
    with remembering(prometheus, folder / "prometheus") as running:
        yield EitherPast(folder / "s.db", f"http://127.0.0.1:{running.port}", start_ms, end_ms)


def write_store(path: Path) -> tuple[int, int]:
    """Fill a new store with seventy minutes of both stacks; from when to when they are."""
    start_ms = a_day_ago() // BLOCK_MS * BLOCK_MS
    end_ms = start_ms + MINUTES * 60_000
    with Store(path) as store, store.transaction():
        for target in targets():
            reader, name = Reader(target.identity), target.identity.target_id
            status = TargetStatus(name, "http://x", target.identity, "servescope", last_success_ms=end_ms - INTERVAL_MS)
            store.set_target(status)
            for time_ms in range(start_ms, end_ms, INTERVAL_MS):
                elapsed = (time_ms - start_ms) / 1000
                text = None if target.failure(elapsed) else target.exposition(elapsed)
                snapshot = None if text is None else reader.read(text.encode()).snapshot
                store.append_scrape(name, time_ms + 1_000, snapshot)
    return start_ms, end_ms


def targets() -> list[FakeTarget]:
    """Two replicas of each stack; one of v2 restarts, and is not scraped for a while."""
    incidents = (Incident(2_500, restart=True), Incident(3_100, 3_400, answer="500"))
    return [
        FakeTarget(
            f"{stack}-{number}",
            Identity("llama", f"chat-{stack}", stack, "production", replica=f"{stack}-{number}"),
            seed=10 * number + len(stack) + int(stack[1]),
            incidents=incidents if (stack, number) == ("v2", 1) else (),
        )
        for stack in ("v1", "v2")
        for number in range(2)
    ]


def close(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, numbers within a part in a million million."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-12, abs=1e-12)
    return bool(one == other)
