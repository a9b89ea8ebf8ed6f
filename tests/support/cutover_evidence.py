"""Evidence of a cutover made up: two arms of replicas whose requests, latencies and errors are drawn block by block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.contract.samples import Series, format_edge, make_labels
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.judgement import Judgement, MetricJudgement
from servescope.cutover.plan.files import preset_metrics
from servescope.cutover.plan.plan import Arm, CutoverPlan, FrozenPlan, Stage
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements

Floats = NDArray[np.float64]
START_MS = 1_800_000_000_000 // BLOCK_MS * BLOCK_MS
INTERVAL_MS = 15_000
SCRAPES = BLOCK_MS // INTERVAL_MS
HOUR = 12
"""Blocks of an hour."""

_CDF = np.vectorize(NormalDist().cdf, otypes=[np.float64])


@dataclass(frozen=True)
class Side:
    """What one arm does: its replicas, and how its requests turn out, as factors of the usual.

    `slowest`, `truncated`, `unended` and `aborted` are shares of its requests that take five times as long, end half
    way through the answer, never end, and are left by their client; `tokens` is how long answers are. A replica has
    `gpus`, restarts so often a day, and its cache's use grows by `creep` an hour.
    They turn out so from this hour of the cutover on. At any time `at_limit` of the answers end at a limit of their
    length, None where that is not reported. Replicas that are not `warm` start with the cutover, others have served for
    hours.
    """

    replicas: int = 4
    slower: float = 1.0
    first_token: float = 1.0
    errors: float = 0.002
    rejected: float = 0.0
    prompts: float = 1.0
    tokens: float = 1.0
    truncated: float = 0.0
    slowest: float = 0.0
    unended: float = 0.0
    aborted: float = 0.0
    at_limit: float | None = None
    gpus: int = 0
    restarts: float = 0.0
    creep: float = 0.0
    from_hour: float = 0.0
    warm: bool = True
    layer: str = "process"
    source: str = "servescope"
    role: str = "aggregated"


@dataclass(frozen=True)
class Story:
    """A cutover: hours of v1 alone, then hours with the share of requests that v2 has."""

    past_hours: int = 24
    hours: int = 12
    share: float = 0.25
    requests_per_minute: float = 600.0
    v1: Side = field(default_factory=Side)
    v2: Side = field(default_factory=Side)
    seed: int = 1

    @property
    def started_ms(self) -> int:
        """When the cutover starts."""
        return START_MS + self.past_hours * HOUR * BLOCK_MS

    @property
    def end_ms(self) -> int:
        """When the last block ends."""
        return self.started_ms + self.hours * HOUR * BLOCK_MS


def plan_of(*shares: float, required: tuple[str, ...] | None = None) -> CutoverPlan:
    """The least plan with stages of these shares; with `required`, of these of its metrics only."""
    metrics = tuple(each for each in preset_metrics() if required is None or each.name in required)
    return CutoverPlan(
        "chat",
        Arm("v1", ({"deployment_id": "chat-v1"},)),
        Arm("v2", ({"deployment_id": "chat-v2"},)),
        tuple(Stage(share) for share in shares or (0.25,)),
        metrics,
    )


@cache
def evidence_of(story: Story) -> Evidence:
    """The increments of both arms, scraped without a failure until the story ends."""
    random = np.random.default_rng(story.seed)
    past, during = story.past_hours * HOUR, story.hours * HOUR
    per_block = np.full(past + during, story.requests_per_minute * BLOCK_MS / 60_000)
    share = np.concatenate([np.zeros(past), np.full(during, story.share)])
    targets = []
    for name, side, part in (("v1", story.v1, 1.0 - share), ("v2", story.v2, share)):
        for replica in range(side.replicas):
            expected = per_block * part / side.replicas
            first = 0 if name == "v1" else past - 1
            late = past + round(side.from_hour * HOUR) - first
            target = _target(random, name, replica, side, expected[first:], first, max(late, 0))
            targets.append(_served_before(target) if name == "v2" and side.warm else target)
    last = {target.target_id: story.end_ms for target in targets}
    return Evidence(tuple(targets), story.end_ms, INTERVAL_MS, last)


@cache
def frozen_of(story: Story, *, coverage: float | None = None) -> FrozenPlan:
    """The least plan with a stage at the story's share, frozen when its cutover starts."""
    plan = plan_of(story.share)
    plan = plan if coverage is None else replace(plan, coverage=coverage)
    return freeze(plan, evidence_of(story), story.started_ms)


_LEAD = 2 * HOUR + 2
"""Blocks before the cutover that a judge looks at."""


def _served_before(target: TargetIncrements) -> TargetIncrements:
    """The same with what its first blocks are like before them, as it has served for hours already."""
    lead = target.at(1 + np.arange(_LEAD - 1) % (target.blocks.size - 1))
    kept = target.at(slice(1, None))
    return replace(
        kept,
        blocks=kept.blocks[0] + BLOCK_MS * np.arange(1 - _LEAD, kept.blocks.size),
        gains=np.concatenate([lead.gains, kept.gains], axis=1),
        levels=np.concatenate([lead.levels, kept.levels], axis=1),
        above=np.concatenate([lead.above, kept.above], axis=1),
        started_ms=np.concatenate([lead.started_ms, kept.started_ms]),
        tallies=Tallies(
            *(np.concatenate([getattr(each.tallies, field.name) for each in (lead, kept)]) for field in fields(Tallies))
        ),
    )


def _target(
    random: np.random.Generator, name: str, replica: int, side: Side, expected: Floats, first: int, late: int
) -> TargetIncrements:
    identity = Identity("llama", f"chat-{name}", name, replica=f"{name}-{replica}", role=side.role)
    blocks = START_MS + BLOCK_MS * (first + np.arange(expected.size))
    requests = random.poisson(expected).astype(float)
    rows: dict[Series, Floats] = {}
    changed = np.arange(expected.size) >= late
    errors = np.where(changed, side.errors, Side().errors)
    failed = random.binomial(requests.astype(int), errors).astype(float)
    rejected = random.binomial(requests.astype(int), side.rejected).astype(float)
    left = _some_of(random, requests, side.aborted, changed)
    ok = np.maximum(requests - failed - rejected - left, 0.0)
    outcomes = dict.fromkeys(OUTCOMES, np.zeros(expected.size)) | {
        "ok": ok, "error": failed, "rejected": rejected, "client_abort": left
    }  # fmt: skip
    for outcome, values in outcomes.items():
        rows[Series("requests_total", make_labels({"outcome": outcome}))] = values
    rows[Series("requests_started_total", ())] = requests + _some_of(random, requests, side.unended, changed)
    slower = np.where(changed, side.slower, 1.0)
    first_token = np.where(changed, side.first_token, 1.0)
    for histogram, median, spread in (
        ("time_to_first_token_seconds", 0.35 * slower * first_token, 0.7),
        ("time_per_output_token_seconds", 0.03 * slower, 0.3),
        ("request_duration_seconds", 6.0 * slower, 0.6),
        ("tps_per_request", 33.0 / slower, 0.3),
        ("input_tokens_per_request", np.where(changed, 900.0 * side.prompts, 900.0), 1.0),
        ("output_tokens_per_request", np.where(changed, 200.0 * side.tokens, 200.0), 0.6),
    ):
        share, factor = (side.truncated, 0.5) if histogram.startswith("output") else (side.slowest, 5.0)
        other = _some_of(random, ok, 0.0 if histogram.startswith(("input", "tps")) else share, changed)
        rows |= _histogram(random, histogram, ok - other, median, spread)
        if other.any():
            # Of those that take longer, or end half way through.
            for series, values in _histogram(random, histogram, other, factor * median, spread).items():
                rows[series] = rows[series] + values
    outputs = rows[Series("output_tokens_per_request_sum", ())]
    rows[Series("output_tokens_total", ())] = outputs
    rows[Series("decode_seconds_total", ())] = (outputs - ok) * 0.03 * slower
    rows[Series("preemptions_total", ())] = np.zeros(expected.size)
    if side.at_limit is not None:
        rows[Series("answers_truncated_total", ())] = _some_of(random, ok, side.at_limit, ok >= 0.0)
    zeros = np.zeros(expected.size, dtype=np.int64)
    gauges = (
        Series("queued_requests", ()), Series("kv_cache_usage", ()), Series("concurrent_requests", ()),
        *(Series("gpu_usage", make_labels({"gpu": str(number)})) for number in range(side.gpus)),
    )  # fmt: skip
    hours = np.maximum(np.arange(expected.size) - late, 0) / HOUR
    used = 0.4 + side.creep * hours
    levels = np.array([np.zeros(expected.size), used, requests / 50.0, *([np.full(expected.size, 0.6)] * side.gpus)])
    began = START_MS - 7 * 24 * 3_600_000 if side.warm else blocks[0] - 1000
    # Not all of them at once.
    restarts = np.floor((hours / 24.0 + replica / 24.0 / side.replicas) * side.restarts)
    return TargetIncrements(
        target_id=identity.target_id,
        identity=identity,
        blocks=blocks,
        series=tuple(rows),
        gains=np.array(list(rows.values())),
        gauges=gauges,
        levels=levels,
        above=np.array([np.zeros(expected.size)] * 2 + [np.full(expected.size, np.nan)] * (1 + side.gpus)),
        started_ms=np.maximum.accumulate(np.where(np.diff(restarts, prepend=0.0) > 0.0, blocks + 1000.0, began)),
        tallies=Tallies(np.full(expected.size, SCRAPES, dtype=np.int64), zeros, zeros, zeros, zeros),
        source=side.source,
        layer=side.layer,
    )


@cache
def _buckets(name: str) -> tuple[Series, ...]:
    """The series of a histogram's buckets."""
    edges = METRICS[name].edges or ()
    return tuple(Series(f"{name}_bucket", make_labels({"le": format_edge(edge)})) for edge in (*edges, math.inf))


def _some_of(random: np.random.Generator, requests: Floats, share: float, changed: NDArray[np.bool_]) -> Floats:
    """So many of the requests, once the side does as it does; without any nothing is drawn."""
    if not share:
        return np.zeros(requests.size)
    return random.binomial(requests.astype(int), np.where(changed, share, 0.0)).astype(float)


def _histogram(
    random: np.random.Generator, name: str, count: Floats, median: Floats, spread: float
) -> Mapping[Series, Floats]:
    """Observations that are log-normal: their counts by edge, and their sum."""
    edges = METRICS[name].edges
    assert edges is not None
    medians, which = np.unique(median, return_inverse=True)
    below = _CDF((np.log(edges) - np.log(medians)[:, None]) / spread)
    shares = np.maximum(np.diff(below, axis=1, prepend=0.0, append=1.0), 0.0)
    counts = random.multinomial(count.astype(int), (shares / shares.sum(axis=1, keepdims=True))[which]).astype(float)
    cumulative = np.cumsum(counts, axis=1).T
    mean = median * math.exp(spread**2 / 2)
    deviation = mean * math.sqrt(math.exp(spread**2) - 1.0)
    total = count * mean + np.sqrt(count) * deviation * random.standard_normal(count.size)
    rows = dict(zip(_buckets(name), cumulative, strict=True))
    # As each observation lies within its bucket; those above the last edge have no upper end.
    ends = np.array([0.0, *edges, math.inf])
    most = np.where(counts > 0.0, counts, 0.0) @ np.array([*edges, edges[-1]])
    most = np.where(counts[:, -1] > 0.0, math.inf, most)
    total = np.clip(total, counts @ ends[:-1], most)
    return {
        **rows,
        Series(f"{name}_sum", ()): np.where(count > 0, total, 0.0),
        Series(f"{name}_count", ()): count,
    }


def metric_of(judgement: Judgement, name: str) -> MetricJudgement:
    """One metric of a judgement."""
    return next(each for each in judgement.metrics if each.name == name)


def slowed(target: TargetIncrements, name: str, factors: Floats) -> TargetIncrements:
    """A target whose histogram is of values so many times as large in each block, (B,): its sums and its buckets."""
    edges = np.array(METRICS[name].edges)
    rows = {each: row for row, each in enumerate(target.series)}
    buckets = [rows[Series(f"{name}_bucket", make_labels({"le": format_edge(edge)}))] for edge in edges]
    gains = target.gains.copy()
    gains[rows[Series(f"{name}_sum", ())]] *= factors
    for block in np.flatnonzero(factors != 1.0):
        below = np.concatenate([[0.0], gains[buckets, block]])
        gains[buckets, block] = np.interp(edges / factors[block], np.concatenate([[0.0], edges]), below)
    return replace(target, gains=gains)
