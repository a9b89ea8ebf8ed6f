"""The same judgement from a store, and from a Prometheus that was filled with what the store exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servescope.contract.identity import Identity
from servescope.contract.increments import BLOCK_MS
from servescope.contract.metrics import METRICS
from servescope.settings.values import format_instant
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from servescope.store.exporting.openmetrics import write_openmetrics
from servescope.store.exporting.selection import Selection
from servescope.store.records import TargetStatus
from tests.support.commands import run
from tests.support.cutover_plans import LEAST_PLAN
from tests.support.fake_targets import FakeTarget, Incident
from tests.support.past import INTERVAL_MS, a_day_ago, make_blocks, remembering

pytestmark = [pytest.mark.slow, pytest.mark.proof]

MINUTES = 70
SINCE_MINUTES = 35


@dataclass(frozen=True)
class Pasts:
    """A store, the address of a Prometheus with the same samples, a plan, and when to judge."""

    store: Path
    url: str
    plan: Path
    since_ms: int
    at_ms: int

    def judge(self, *past: str) -> tuple[int, Any]:
        """The exit code and the judgement."""
        done = run(
            "judge", "run", "--plan", str(self.plan), "--since", format_instant(self.since_ms), "--at",
            format_instant(self.at_ms), "--format", "json", *past,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


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


@pytest.fixture(scope="module")
def pasts(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pasts]:
    """Seventy minutes of both stacks."""
    folder = tmp_path_factory.mktemp("pasts")
    start_ms = a_day_ago() // BLOCK_MS * BLOCK_MS
    end_ms = start_ms + MINUTES * 60_000
    with Store(folder / "s.db") as store, store.transaction():
        for target in targets():
            reader, name = Reader(target.identity), target.identity.target_id
            status = TargetStatus(name, "http://x", target.identity, "servescope", last_success_ms=end_ms - INTERVAL_MS)
            store.set_target(status)
            for time_ms in range(start_ms, end_ms, INTERVAL_MS):
                elapsed = (time_ms - start_ms) / 1000
                text = None if target.failure(elapsed) else target.exposition(elapsed)
                snapshot = None if text is None else reader.read(text.encode()).snapshot
                store.append_scrape(name, time_ms + 1_000, snapshot)
    with Store(folder / "s.db", read_only=True) as store:
        write_openmetrics(
            store, Selection(tuple(store.deployments()), tuple(METRICS), start_ms, end_ms), folder / "past.om"
        )
    make_blocks(folder / "past.om", promtool, folder / "prometheus")
    plan = folder / "cutover.toml"
    plan.write_text(f'calibration = "30m"\n{LEAST_PLAN}', encoding="utf-8")
    with remembering(prometheus, folder / "prometheus") as running:
        url = f"http://127.0.0.1:{running.port}"
        since_ms = start_ms + SINCE_MINUTES * 60_000
        yield Pasts(folder / "s.db", url, plan, since_ms, end_ms - 60_000)


def test_store_and_prometheus_give_one_judgement(pasts: Pasts) -> None:
    """Each verdict, reason, ratio and limit, and what each arm did; what a Prometheus lacks is noted."""
    code, stored = pasts.judge("--store", str(pasts.store))
    other_code, queried = pasts.judge("--prometheus", pasts.url)

    assert code == other_code
    assert stored["v2"]["resets"] > 0
    assert stored["v2"]["failed"] > 0
    assert set(stored["notes"]) < set(queried["notes"])
    for judgement in (stored, queried):
        # A plan has the sources of its start in what it says is not observable; an export has no sources.
        del judgement["plan_hash"], judgement["notes"]
        for arm in ("v1", "v2"):
            # A store counts these over all series, a Prometheus over those that are judged.
            del judgement[arm]["resets"], judgement[arm]["gaps"], judgement[arm]["torn"]
    assert close(queried, json.loads(json.dumps(stored).replace(" (servescope)", ""))), (queried, stored)


def close(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, numbers within a part in a million million."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-12, abs=1e-12)
    return bool(one == other)
