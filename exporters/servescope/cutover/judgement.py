"""What a judge returns: a verdict with its reason, metric by metric, and what would change it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from servescope.settings.values import format_instant

Verdict = Literal["HEALTHY", "DEGRADED", "INCONCLUSIVE", "NO DATA"]
VERDICTS: Final[tuple[Verdict, ...]] = ("HEALTHY", "DEGRADED", "INCONCLUSIVE", "NO DATA")

Cause = Literal[
    "better", "not worse", "proven cost", "beyond margin", "probable", "objective", "out of band", "in band",
    "needs data", "mix", "load", "warming", "pods too few", "incomparable", "uncalibrated", "no control",
    "load range", "arm missing", "metric absent", "stale", "quiet", "scrapes missing", "torn", "too few", "query error",
    "one replica",
]  # fmt: skip
"""Why a metric has its verdict, in a word for programs; the reason beside it is for people."""

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
    """What one arm did for a metric since the stage began: `value` is its mean or ratio in the metric's unit.

    `count` are the requests, observations or tokens below the line, `events` those that happened of an events metric.
    """

    value: float | None
    count: float
    events: float | None = None
    incidents: Incidents | None = None


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
class MetricJudgement:
    """The judgement of one metric.

    `ratio` is v2 ÷ v1, whichever direction is good, with the interval `low` … `high` that holds at every look; None
    where there is none. `margin` is a positive fraction, None of a band, which has `band`. `information` has been
    gathered, of the `information_wanted` that settles it at the present estimate; `eta_seconds` until then at the rate
    of the last hour, None where it is settled or never will be. `flips` says what would change the verdict.
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


@dataclass(frozen=True, slots=True)
class ArmState:
    """How well one arm was observed since the stage began."""

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
    """What v2 serves for the cost, v2 ÷ v1 at matched load, with its interval; never gates."""

    name: Literal["tokens_per_gpu_second", "tokens_per_replica_second", "goodput_per_replica_second"]
    v1: float
    v2: float
    ratio: float
    low: float
    high: float
    sentence: str


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """The moment a verdict began."""

    at_ms: int
    stage: int
    verdict: Verdict
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
class Judgement:
    """One judgement of a cutover.

    `reason` is one sentence. `severity` is that of a DEGRADED verdict. `latched_since_ms` is when harm was proven that
    nobody has acknowledged yet, `live` what the verdict would be without it. `missed` are the spans that were not
    observed, with why; `incomparable` what either stack cannot report or reports otherwise, by metric.
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
