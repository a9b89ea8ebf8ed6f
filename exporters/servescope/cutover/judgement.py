"""What a judge returns: a verdict with its reason, metric by metric, and what would change it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from servescope.contract.limits import describe_band, describe_worse
from servescope.settings.values import format_instant

Verdict = Literal["HEALTHY", "DEGRADED", "INCONCLUSIVE", "NO DATA"]
VERDICTS: Final[tuple[Verdict, ...]] = ("HEALTHY", "DEGRADED", "INCONCLUSIVE", "NO DATA")

Cause = Literal[
    "better", "not worse", "proven cost", "beyond margin", "probable", "objective", "out of band", "in band",
    "needs data", "mix", "load", "warming", "pods too few", "incomparable", "uncalibrated", "no control",
    "load range", "share", "arm missing", "metric absent", "stale", "quiet", "scrapes missing", "torn", "too few",
    "query error", "explained by reuse", "explained by load", "gross harm while warming", "uncovered", "rejected",
    "prompts unknown", "one replica", "unaccounted", "unseen", "never run",
]  # fmt: skip
"""Why a metric has its verdict, in a word for programs; the reason beside it is for people."""

SEVERE: Final[frozenset[Cause]] = frozenset({"beyond margin", "objective", "gross harm while warming"})
"""The causes of harm that call for a rollback."""

Advice = Literal["go on", "hold", "roll back"]


@dataclass(frozen=True, slots=True)
class Incidents:
    """Where the events of an arm happened: in how many blocks of five minutes of one replica, and on how many replicas.

    `of_blocks` and `of_replicas` are those that had requests.
    """

    blocks: int
    of_blocks: int
    replicas: int
    of_replicas: int


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """What one arm did for a metric in the blocks and on the replicas that its ratio is of, in the metric's unit.

    v1's `value` is the mean over these blocks, geometric and weighted as the ratio is; v2's is that times the ratio, so
    that v2's ÷ v1's is the ratio. Of events, v1's is the share of its requests. `count` are the requests,
    observations or tokens below the line in these blocks, `events` those that happened of an events metric.
    `everything` is the plain mean or ratio since the stage began: of all blocks that are not excluded and all replicas,
    warm or not; `everything_count` what it is among.
    `covered` is the part of the arm's requests that the evidence has, 0 … 1, since the stage began or of the last hour,
    whichever is less, and `rejected` the part that was thrown away as counters contradict each other; None of a band.
    """

    value: float | None
    count: float
    events: float | None = None
    incidents: Incidents | None = None
    everything: float | None = None
    everything_count: float | None = None
    covered: float | None = None
    rejected: float | None = None


@dataclass(frozen=True, slots=True)
class EffectSpan:
    """v2 ÷ v1 in a part of the stage, with its interval; None where there is none."""

    since_ms: int
    until_ms: int
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ComparedBlocks:
    """The blocks that a ratio is of: from when until when, how many, and of how many since the stage began."""

    since_ms: int
    until_ms: int
    blocks: int
    of_blocks: int


@dataclass(frozen=True, slots=True)
class EdgeJudgement:
    """The share of observations above one bucket edge: v2's minus v1's with its interval, and v1's and v2's own."""

    edge: float
    v1: float
    v2: float
    difference: float
    low: float
    high: float
    harmful: bool


@dataclass(frozen=True, slots=True)
class OverallRatio:
    """v2 ÷ v1 over all stages of the run with its 95 % interval, valid at every look; reported, and never gating."""

    ratio: float
    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class SensitivityJudgement:
    """A metric without what the arms' different reuse of prompts and load explain of it: reported beside it.

    `v1_reused` and `v2_reused` are the shares of prompt tokens that were reused since the stage began, None where that
    is not reported; `v1_load` and `v2_load` requests per replica and second. `by_reuse` and `by_load` are the factors
    of v2 ÷ v1 that they explain, and `ratio` the rest of it, with its interval. `explained` says that harm is proven,
    and not without that; `harmful` that it is proven without that as well.
    """

    v1_reused: float | None
    v2_reused: float | None
    v1_load: float | None
    v2_load: float | None
    by_reuse: float
    by_load: float
    ratio: float
    low: float | None
    high: float | None
    explained: bool
    harmful: bool


@dataclass(frozen=True, slots=True)
class MetricJudgement:
    """The judgement of one metric.

    `ratio` is v2 ÷ v1, whichever direction is good, with the interval `low` … `high` that holds at every look; None
    where there is none. `margin` is a positive fraction, None of a band, which has `band`. `information` has been
    gathered, of the `information_wanted` that settles it at the present estimate; `eta_seconds` until then at the rate
    of the last hour, None where it is settled or never will be. `flips` says what would change the verdict.
    `compared` are the blocks that the ratio is of. `spans` are those between which the effect is proven to have
    changed, oldest first, none where it has not: the ratio then is of the latest that harms where the verdict is
    DEGRADED, and of all of them where it is not. `counted` is the unit of what a ratio or events are among, "" of
    requests and observations. Harm of a `guard` keeps the verdict over all metrics from being HEALTHY. `limit` is
    margin or band as people read it, "" without either.
    """

    name: str
    title: str
    unit: str
    better: Literal["higher", "lower"] | None
    required: bool
    verdict: Verdict
    cause: Cause
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    floor: float | None = None
    band: tuple[float | None, float | None] | None = None
    information: float = 0.0
    information_wanted: float | None = None
    eta_seconds: float | None = None
    v1: ArmFigures | None = None
    v2: ArmFigures | None = None
    edges: tuple[EdgeJudgement, ...] = ()
    flips: str = ""
    notes: tuple[str, ...] = ()
    overall: OverallRatio | None = None
    compared: ComparedBlocks | None = None
    spans: tuple[EffectSpan, ...] = ()
    counted: str = ""
    guard: bool = False
    sensitivity: SensitivityJudgement | None = None
    limit: str = field(init=False)

    def __post_init__(self) -> None:
        limit = "" if self.margin is None else describe_worse(self.name, self.margin, self.better)
        if self.band is not None:
            limit = describe_band(*self.band, self.unit)
        object.__setattr__(self, "limit", limit)

    @property
    def decides(self) -> bool:
        """Whether the verdict over all metrics is of it: it is required, and of no source that was never run."""
        return self.required and self.cause != "never run"


@dataclass(frozen=True, slots=True)
class ArmState:
    """How well one arm was observed since the stage began.

    `requests_per_replica_second` is of the last hour, over which loads are compared.
    `covered` and `rejected` are those of the required metric of which the evidence has least (`ArmFigures`).
    """

    deployments: tuple[str, ...]
    replicas: int
    scrapes: int
    expected: int
    failed: int
    torn: int
    resets: int
    gaps: int
    requests: float
    warm: bool
    cold_start_seconds: float | None
    saturated_share: float
    requests_per_replica_second: float | None
    last_scrape_ms: int | None
    covered: float | None = None
    rejected: float | None = None


@dataclass(frozen=True, slots=True)
class PromptMix:
    """How far apart the prompts of the arms are: the total variation distance over shared edges, 0 … 1.

    `adjusted` says that ratios were adjusted by v1's own slopes; `refused` that the distance is too large for that.
    """

    distance: float | None
    differs: bool
    adjusted: bool
    refused: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What v2 serves for the cost, v2 ÷ v1 at matched load, with its interval; never gates.

    `v1` is of the same blocks with the same weights as the ratio, and `v2` that times the ratio.
    """

    name: Literal["tokens_per_gpu_second", "tokens_per_replica_second", "goodput_per_replica_second"]
    v1: float
    v2: float
    ratio: float
    low: float
    high: float
    sentence: str


SegmentFinding = Literal["harm", "no harm found", "not compared", "no data"]


@dataclass(frozen=True, slots=True)
class SegmentMetricJudgement:
    """A metric of one segment: v2 ÷ v1 with its interval, None where there is none.

    `harmful` says that it is proven to be worse than the metric's margin, over all segments and metrics together.
    """

    name: str
    title: str
    better: Literal["higher", "lower"]
    ratio: float | None
    low: float | None
    high: float | None
    harmful: bool

    @property
    def cost(self) -> float:
        """By how much v2 is worse, as a logarithm; −∞ where there is no ratio."""
        change = math.log(self.ratio) if self.ratio else -math.inf
        return -change if self.better == "higher" and self.ratio else change


@dataclass(frozen=True, slots=True)
class SegmentJudgement:
    """One segment since the stage began: its requests on both arms, and its shares of theirs, 0 … 1.

    `no data` is one that an arm had no requests of, `not compared` one with too few so far, or beyond the number of
    segments that are compared. `harm` withholds HEALTHY while it is found, and never makes DEGRADED.
    """

    name: str
    finding: SegmentFinding
    v1_requests: float
    v2_requests: float
    v1_share: float | None
    v2_share: float | None
    metrics: tuple[SegmentMetricJudgement, ...] = ()

    @property
    def worst(self) -> SegmentMetricJudgement | None:
        """The metric that harms, or is worst, of those that have a ratio."""
        known = [each for each in self.metrics if each.ratio is not None]
        return max(known, key=lambda each: (each.harmful, each.cost), default=None)


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """The moment a verdict began."""

    at_ms: int
    stage: int
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A span that somebody left out: from when to when, and who decided that when and why."""

    start_ms: int
    end_ms: int
    at_ms: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class StageState:
    """The stage that is judged: its index from 0, the planned and the observed share of v2, when it began and may end.

    `differs` says that the observed share is not the planned one.
    """

    index: int
    count: int
    share: float
    observed_share: float | None
    differs: bool
    since_ms: int
    earliest_end_ms: int


@dataclass(frozen=True, slots=True)
class FiringAlert:
    """An alert that pages somebody and fires on an arm; `replica` is "" where it is of the whole deployment."""

    name: str
    arm: Literal["v1", "v2"]
    since_ms: int
    summary: str
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """Who decided something, when and why."""

    at_ms: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What a verdict `covers`, and what is `unseen` by this plan and these sources: a sentence each."""

    covers: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """One judgement of a cutover.

    `reason` is one sentence. `severity` is that of a DEGRADED verdict. `latched_since_ms` is when harm was proven that
    nobody has acknowledged yet, `live` what the verdict would be without it. `missed` are the spans that were not
    observed, with why; `incomparable` what either stack cannot report or reports otherwise, by metric. `alerts` are
    those that page somebody and fire on an arm. `waits_for` is what keeps required metrics from being settled where
    more of the same data does not, and how to get it, "" where nothing does or harm is proven. `rolled_back` ended the
    run, and `acknowledged` the last latch; None where nobody did. `excluded_harm` are the spans that were left out
    although harm had been proven since they began. `segments` are those that any arm keeps apart, with
    the most requests first.
    """

    verdict: Verdict
    reason: str
    at_ms: int
    plan: str
    plan_hash: str
    stage: StageState
    metrics: tuple[MetricJudgement, ...]
    advice: Advice
    severity: Literal["beyond margin", "probable"] | None = None
    live: Verdict | None = None
    latched_since_ms: int | None = None
    v1: ArmState | None = None
    v2: ArmState | None = None
    mix: PromptMix | None = None
    efficiency: tuple[Efficiency, ...] = ()
    changes: tuple[VerdictChange, ...] = ()
    missed: tuple[tuple[int, int, str], ...] = ()
    incomparable: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    alerts: tuple[FiringAlert, ...] = ()
    waits_for: str = ""
    rolled_back: Decided | None = None
    acknowledged: Decided | None = None
    excluded_harm: tuple[Exclusion, ...] = ()
    scope: Scope = Scope()
    segments: tuple[SegmentJudgement, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The judgement by the published schema: times in RFC 3339, absent values null, no number infinite."""
        values: dict[str, Any] = _as_json(asdict(self))
        return {key: values[key] for key in _TOP} | values


_TOP: Final = ("verdict", "reason", "at", "plan", "plan_hash", "stage", "metrics")


def _as_json(value: Any) -> Any:
    """JSON of dataclasses as dictionaries; a key that ends with `_ms` becomes a time without that ending."""
    if isinstance(value, dict):
        return dict(_entry(key, each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _entry(key: str, value: Any) -> tuple[str, Any]:
    if key == "missed":
        return key, [
            {"start": format_instant(start), "end": format_instant(end), "reason": why} for start, end, why in value
        ]
    if key.endswith("_ms"):
        return key.removesuffix("_ms"), None if value is None else format_instant(value)
    return key, _as_json(value)
