"""A Prometheus as the judge's past: the judgement of a store, from one that was filled with its export."""

from __future__ import annotations

import json
import math
import random
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from servescope.contract.metrics import METRICS
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement, MetricJudgement
from servescope.cutover.plan.files import parse_plan
from servescope.cutover.plan.plan import FrozenPlan
from servescope.emulator.deployment.stack import V1, EmulatedStack
from servescope.emulator.faults.faults import Faults, parse_fault
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.exposition.rendering import render
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.case import freeze_plan, judge_case
from servescope.migration.scaling import ConcurrencyScaling
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from servescope.store.exporting.openmetrics import write_openmetrics
from servescope.store.exporting.selection import Selection
from servescope.store.history import History
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.records import RecordedSettings, TargetStatus
from tests.support.answering import Handler, answering
from tests.support.past import Scraped, a_day_ago, make_blocks, remembering, write_blocks

Lie = Callable[[Mapping[str, Any], random.Random], Mapping[str, Any] | None]
"""What becomes of one series of an answer; None of one that is left out."""

_PART: Final = 0.1
"""Of the answers that are damaged."""


def _samples(change: Callable[[str], str]) -> Lie:
    def lie(series: Mapping[str, Any], drawn: random.Random) -> Mapping[str, Any]:
        del drawn
        return {**series, "values": [[time, change(value)] for time, value in series["values"]]}

    return lie


def _some_samples(series: Mapping[str, Any], drawn: random.Random) -> Mapping[str, Any] | None:
    left = [each for each in series["values"] if drawn.random() < 0.5]
    return {**series, "values": left} if left else None


LIES: Final[Mapping[str, Lie]] = {
    "negated": _samples(lambda value: f"-{value}".replace("--", "")),
    "zero": _samples(lambda _: "0"),
    "halved": _samples(lambda value: str(0.5 * float(value))),
    "emptied": lambda *_: None,
    "without some samples": _some_samples,
    "without some series": lambda series, drawn: series if drawn.random() < 0.5 else None,
}


@contextmanager
def lying(url: str, deployment_id: str, lie: Lie, seed: int) -> Iterator[str]:
    """The base URL of the server; the seed decides which queries have damaged answers, whenever they are asked."""

    def answer(handler: Handler) -> None:
        asked = urlencode(handler.parameters, doseq=True)
        with urlopen(f"{url}{handler.path.partition('?')[0]}?{asked}") as response:  # on loopback
            body = response.read()
        drawn = random.Random(zlib.crc32(f"{seed} {handler.parameters.get('query')}".encode()))
        damaged = handler.path.partition("?")[0].endswith(("/query", "/query_range")) and drawn.random() < _PART
        handler.reply(200, _damage(body, deployment_id, lie, drawn) if damaged else body)

    with answering(answer) as base:
        yield base


def _damage(body: bytes, deployment_id: str, lie: Lie, drawn: random.Random) -> str:
    document = json.loads(body)
    result = [
        changed
        for series in document["data"]["result"]
        if (changed := lie(series, drawn) if _is_of(series, deployment_id) else series) is not None
    ]
    return json.dumps({**document, "data": {**document["data"], "result": result}})


def _is_of(series: Any, deployment_id: str) -> bool:
    """Whether it is a series of the deployment with samples."""
    return isinstance(series, dict) and series["metric"].get("deployment_id") == deployment_id and "values" in series


pytestmark = pytest.mark.proof

INTERVAL_MS = 30_000
LATER_MS = 13_000
"""How long after the collector's scrapes those of the Prometheus are that scrapes by itself."""
PAST_HOURS, HOURS = 0.5, 1.0
TOLERANCE = 0.1
"""By how much the logarithms of a ratio and of both ends of its interval may differ, as a share of a wide one's."""
PLAN = """\
[arms]
v1 = { deployment_id = "chat-v1" }
v2 = { deployment_id = "chat-v2" }

[[stages]]
share = 0.5
"""


@dataclass(frozen=True)
class Pasts:
    """The same cutover as three pasts, which began and ended then."""

    store: Path
    backfilled: PrometheusHistory
    scraped: PrometheusHistory
    started_ms: int
    end_ms: int


@pytest.fixture(scope="module", params=["latency-regression:1.5", "error-burst:0.03"])
def pasts(
    request: pytest.FixtureRequest, prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pasts]:
    """Two equal stacks, of which v2 gets a fault when the cutover begins."""
    folder = tmp_path_factory.mktemp("pasts")
    start_ms = a_day_ago() // BLOCK_MS * BLOCK_MS
    started_ms = start_ms + round(PAST_HOURS * 3_600_000)
    end_ms = started_ms + round(HOURS * 3_600_000)
    scrapes = _emulate(folder / "s.db", request.param, start_ms, started_ms, end_ms)
    with Store(folder / "s.db", read_only=True) as store:
        selection = Selection(tuple(store.deployments()), tuple(METRICS), start_ms, end_ms)
        write_openmetrics(store, selection, folder / "past.om")
    make_blocks(folder / "past.om", promtool, folder / "backfilled")
    write_blocks(scrapes, promtool, folder / "scraped")
    with (
        remembering(prometheus, folder / "backfilled") as backfilled,
        remembering(prometheus, folder / "scraped") as scraped,
    ):
        both = [
            PrometheusHistory(Prometheus(f"http://127.0.0.1:{each.port}"), clock=lambda: end_ms / 1000)
            for each in (backfilled, scraped)
        ]
        yield Pasts(folder / "s.db", both[0], both[1], started_ms, end_ms)


def _emulate(path: Path, fault: str, start_ms: int, started_ms: int, end_ms: int) -> list[Scraped]:
    """Fill a store as a collector does; returns what a Prometheus would have scraped some seconds later each time."""
    scaling = ConcurrencyScaling(min_replica=2, initial_replicas=2, max_replica=2)
    old = replace(V1, scaling=scaling)
    new = replace(old, identity=replace(V1.identity, deployment_id="chat-v2", inference_stack="v2"))
    stack = EmulatedStack.of([(old, 0.5), (new, 0.5)], traffic=GeneratedTraffic(Mix(requests_per_second=3.0)))
    faults = Faults(stack, ())
    readers: dict[str, Reader] = {}
    scraped: list[Scraped] = []
    with Store(path) as store:
        store.record_settings(start_ms, RecordedSettings(BLOCK_MS, BLOCK_MS, INTERVAL_MS, "closed"))
        for time_ms in range(start_ms, end_ms + 1, INTERVAL_MS):
            if time_ms == started_ms:
                faults.switch_on(parse_fault(f"{fault}@chat-v2"))
            stack.clock.run_until((time_ms - start_ms) / 1000)
            with store.transaction():
                for target in stack.targets():
                    name = target.identity.target_id
                    reader = readers.setdefault(name, Reader(target.identity))
                    snapshot = reader.read(render(target.instruments)).snapshot
                    store.set_target(
                        TargetStatus(
                            name, "", target.identity, "servescope", healthy=True, last_success_ms=time_ms,
                            layer="process", scrape_interval_ms=INTERVAL_MS,
                        )
                    )  # fmt: skip
                    store.append_scrape(name, time_ms, snapshot)
            stack.clock.run_until((time_ms + LATER_MS - start_ms) / 1000)
            scraped += [
                Scraped(
                    time_ms + LATER_MS,
                    {"job": "engines", "instance": f"{target.identity.target_id.partition('#')[0]}:8000"},
                    render(target.instruments).decode(),
                )
                for target in stack.targets()
            ]
    return scraped


def _judge(history: History, frozen: FrozenPlan, at_ms: int) -> Judgement:
    return judge_case(history, frozen, (Decision("start", frozen.started_ms, stage=0),), at_ms)


def test_a_prometheus_has_the_judgements_of_a_store(pasts: Pasts) -> None:
    """Frozen plans and judgements after every twenty minutes: the same where it was filled, near where it scraped."""
    plan = parse_plan(tomllib.loads(PLAN), "cutover.toml")
    proven = 0
    with Store(pasts.store, read_only=True) as store:
        frozen = freeze_plan(cast(History, store), plan, pasts.started_ms)
        theirs = freeze_plan(pasts.backfilled, plan, pasts.started_ms)
        own = freeze_plan(pasts.scraped, plan, pasts.started_ms)
        for name, noise in frozen.noise.items():
            assert theirs.noise[name].tau2 == pytest.approx(noise.tau2, rel=1e-6, abs=1e-12), name
            assert theirs.noise[name].cv2 == pytest.approx(noise.cv2, rel=1e-6), name
        assert theirs.layers == frozen.layers
        for at_ms in range(pasts.started_ms + 1_200_000, pasts.end_ms + 1, 1_200_000):
            ours = _judge(cast(History, store), frozen, at_ms)
            same, near = _judge(pasts.backfilled, frozen, at_ms), _judge(pasts.scraped, own, at_ms)
            assert (same.verdict, same.reason) == (ours.verdict, ours.reason)
            proven += _compare(ours, same, near)
    assert proven


def _compare(ours: Judgement, same: Judgement, near: Judgement) -> int:
    """Compare metric by metric; returns how many of ours are proven."""
    opposite = {"HEALTHY": "DEGRADED", "DEGRADED": "HEALTHY"}
    proven = 0
    for our, filled, scraped in zip(ours.metrics, same.metrics, near.metrics, strict=True):
        assert (filled.name, filled.verdict, filled.cause) == (our.name, our.verdict, our.cause)
        assert scraped.verdict != opposite.get(our.verdict), (our.name, our.verdict, scraped.verdict)
        proven += our.verdict in opposite
        for end in ("ratio", "low", "high"):
            mine, theirs, others = (getattr(each, end) for each in (our, filled, scraped))
            if mine is None:
                assert theirs is None
                continue
            assert theirs == pytest.approx(mine, rel=1e-6), (our.name, end)
            if others is not None and 0 < mine < math.inf and our.verdict in opposite:
                assert abs(math.log(others / mine)) <= TOLERANCE * _width(our), (our.name, end, mine, others)
    return proven


def _width(judged: MetricJudgement) -> float:
    """The logarithm of how wide an interval is: of rare errors it is wide, and its ends move with one more request."""
    if judged.low is None or judged.high is None or not 0 < judged.low <= judged.high < math.inf:
        return 1.0
    return max(1.0, math.log(judged.high / judged.low))


@pytest.mark.parametrize("lie", LIES)
def test_a_prometheus_that_damages_answers_loses_nothing_silently(pasts: Pasts, lie: str) -> None:
    """Of a tenth of its answers: what stays undecided has nearly all of v2's requests, the rest is NO DATA, or harm."""
    plan = parse_plan(tomllib.loads(PLAN), "cutover.toml")
    frozen = freeze_plan(pasts.backfilled, plan, pasts.started_ms)
    whole = _requests(_judge(pasts.backfilled, frozen, pasts.end_ms))
    for seed in range(6):
        with lying(pasts.backfilled.prometheus.url, "chat-v2", LIES[lie], seed) as url:
            damaged = PrometheusHistory(Prometheus(url), clock=lambda: pasts.end_ms / 1000)
            judgement = _judge(damaged, frozen, pasts.end_ms)
        assert judgement.live != "HEALTHY"
        if judgement.live == "INCONCLUSIVE":
            assert _requests(judgement) >= 0.9 * whole, (seed, judgement.reason)


def _requests(judgement: Judgement) -> float:
    assert judgement.v2 is not None
    return judgement.v2.requests
