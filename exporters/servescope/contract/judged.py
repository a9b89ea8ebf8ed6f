"""The metrics that a judge of a cutover knows: how each is computed, which change harms, and what a plan defaults to.

Every one is a ratio of sums: of what is counted (`above`) and of what it is counted among (`below`). What the sources
of the two stacks mean by a metric may differ, though its name is the same: their source maps say how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND, SPECULATION_BAND
from servescope.contract.expressions import Difference, Expression, Increase, Level, Matchers, Rate, Ratio, mean, rate
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.objectives import OBJECTIVES
from servescope.contract.types import Band, Status
from servescope.errors import ExpressionError

MetricRole = Literal["required", "guard", "reported"]
"""What a metric decides: it has to be proven healthy and its harm is DEGRADED, its harm keeps a cutover from being
HEALTHY, or nothing."""

MetricKind = Literal["mean", "ratio", "events", "band"]
"""How a metric is judged: the mean of a histogram, a ratio of two counters' sums, counts of events among requests, or
a level that has to lie within a band on v2 alone."""

DEFAULT_MARGIN: Final = 0.10
DEFAULT_FLOOR: Final = 0.02
"""Relative changes for the worse: the one that v2 must be proven to stay below, and the one that does not matter."""
DEFAULT_ALPHA_HARM: Final = 0.05
DEFAULT_ALPHA_HEALTH: Final = 0.04
"""Probabilities of error: that a cutover without harm is ever DEGRADED, and a metric at its margin ever HEALTHY."""
DEFAULT_HOLDBACK: Final = 0.05
"""The share of the requests that v1 keeps as a control until the end."""
DEFAULT_CALIBRATION_DAYS: Final = 2
"""How much of v1's past shows its noise."""
LEAST_COUNT: Final = 20.0
"""Observations of either arm below which a metric is NO DATA."""
DEFAULT_COVERAGE: Final = 0.95
"""The part of each arm's requests that the evidence of a required metric has to have."""
DRAFTED_STAGES: Final = ((0.01, 1.0), (0.05, 2.0), (0.25, 4.0), (0.5, 6.0), (0.95, 24.0))
"""The stages of a drafted plan, v2's share and the least hours of each; the last leaves v1 a holdback as a control."""
ERRORS_PART: Final = 10.0
FIRST_TOKEN_PART: Final = 3.0
"""Rare events and noisy first tokens show harm last, the others many times sooner: so these have larger parts."""
DEFAULT_EVENTS_MARGIN: Final = 1.0
"""Twice as many events as on v1."""
IMMATERIAL_RATE: Final = OBJECTIVES["requests"].budget
"""Events per request that are within any objective: rarer ones are healthy, however many times v1's they are."""
IMMATERIAL_RESTARTS: Final = 1.0 / 24.0
"""Restarts of a replica an hour that do not matter: one a day."""
DEFAULT_LENGTH_MARGIN: Final = 0.04
DEFAULT_LENGTH_FLOOR: Final = 0.02
"""Relative changes of how long answers are: where one in ten is half as long, the mean is 5 % less."""
DEFAULT_COST_MARGIN: Final = 0.50
DEFAULT_COST_FLOOR: Final = 0.25
"""Relative changes of what a token costs; clients whose answers are short cost more for each token on either stack."""
DEFAULT_TRUNCATED_FLOOR: Final = 0.25
"""How many answers reach the limits that clients set is theirs as well: so much more of them does not matter."""
DEFAULT_TAIL_FLOOR: Final = 0.25
"""A tail moves by more than the mean where replicas differ: so much more of it does not matter."""
IN_FLIGHT_TOKENS_PER_WORKER: Final = (50_000.0, 150_000.0)
"""The documented starting range of `target_in_flight_tokens`."""


class Part(NamedTuple):
    """Series of one name that are added up, or subtracted with the factor -1."""

    series: str
    where: Matchers = ()
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class JudgedMetric:
    """A metric that can be judged; `better` is None of a band, and where a change either way is harm.

    `expression` is None of what is computed from more than series of one name, `families` of the contract
    (`cutover.evidence.derived`). `histogram` is the one whose mean it is, or whose tail, "" where there is none.
    `part` is its part of the probability of a false
    alarm, which metrics share in proportion. `required`, `margin`, `floor`, `low` and `high` are
    what a plan has that does not say otherwise; `preset` means that such a plan has the metric at all. A mechanism
    explains others and is never required: it depends on the traffic, the draft and its definition. A `guard` need not
    be proven healthy, and its proven harm keeps a cutover from being HEALTHY. `least` is what has to be counted among
    before anything is claimed, `of_requests` whether that are requests, and `immaterial` the rate below which events
    do not matter.
    """

    name: str
    title: str
    unit: str
    kind: MetricKind
    better: Literal["higher", "lower"] | None
    expression: Ratio | None
    histogram: str = ""
    part: float = 1.0
    preset: bool = True
    required: bool = True
    margin: float | None = None
    floor: float | None = None
    low: float | None = None
    high: float | None = None
    guard: bool = False
    made_of: tuple[str, ...] = ()
    least: float = LEAST_COUNT
    of_requests: bool = True
    immaterial: float = IMMATERIAL_RATE

    @property
    def warms(self) -> bool:
        """Whether replicas are warm once it no longer falls, and one that alone is slow is found by it."""
        return self.kind in ("mean", "ratio") and not self.guard

    @property
    def timed(self) -> bool:
        """Whether it is worse of a replica that warms up, or of one that alone is slow."""
        return self.warms or bool(self.made_of and self.histogram)

    @property
    def families(self) -> tuple[str, ...]:
        """The metrics of the contract that it is computed from."""
        return self.made_of or tuple({SAMPLE_FAMILIES[part.series]: None for part in (*self.above, *self.below)})

    @property
    def above(self) -> tuple[Part, ...]:
        """What is counted."""
        return () if self.expression is None else tuple(_parts(self.expression.numerator, 1.0))

    @property
    def below(self) -> tuple[Part, ...]:
        """What it is counted among."""
        return () if self.expression is None else tuple(_parts(self.expression.denominator, 1.0))

    @property
    def gauge(self) -> bool:
        """Whether it is made of gauges' levels, and not of counters' gains."""
        return self.expression is not None and isinstance(self.expression.denominator, Level)


def _parts(expression: Expression, factor: float) -> list[Part]:
    match expression:
        case Rate(name, where) | Increase(name, where) | Level(name, _, where):
            return [Part(name, where, factor)]
        case Difference(left, right):
            return [*_parts(left, factor), *_parts(right, -factor)]
        case _:
            raise ExpressionError(f"no sum of series: {expression!r}")


def _range(band: Band, statuses: tuple[Status, ...]) -> tuple[float | None, float | None]:
    """Where the values of these statuses begin and end; None where they have no end."""
    starts = [step.start for step in band.steps if step.rating.status in statuses]
    ends = [step.start for step in band.steps if step.rating.status not in statuses and step.start > starts[0]]
    return starts[0], ends[0] if ends else None


def _time(name: str, title: str, *, preset: bool = True, part: float = 1.0) -> JudgedMetric:
    return JudgedMetric(
        name, title, METRICS[name].unit, "mean", "lower", mean(name), histogram=name, part=part,
        preset=preset, required=preset,
        margin=DEFAULT_MARGIN, floor=DEFAULT_FLOOR,
    )  # fmt: skip


def _events(
    name: str,
    title: str,
    expression: Ratio,
    *,
    required: bool,
    part: float = 1.0,
    guard: bool = False,
    floor: float = 0.0,
) -> JudgedMetric:
    return JudgedMetric(
        name,
        title,
        "ratio",
        "events",
        "lower",
        expression,
        part=part,
        required=required,
        margin=DEFAULT_EVENTS_MARGIN,
        floor=floor,
        guard=guard,
    )


def _share(
    name: str, title: str, *, required: bool, part: float = 1.0, guard: bool = False, floor: float = 0.0
) -> JudgedMetric:
    return _events(name, title, _ratio(name), required=required, part=part, guard=guard, floor=floor)


def _tail(histogram: str, title: str) -> JudgedMetric:
    """The share of observations above the edge that about one in a hundred of v1's past exceeded."""
    return JudgedMetric(
        f"{histogram.removesuffix('_seconds')}_tail_share", title, "ratio", "events", "lower", None, histogram,
        required=False, guard=True, made_of=(histogram,), margin=DEFAULT_EVENTS_MARGIN, floor=DEFAULT_TAIL_FLOOR,
    )  # fmt: skip


def _cost(name: str, title: str, made_of: tuple[str, ...]) -> JudgedMetric:
    return JudgedMetric(
        name, title, "s", "ratio", "lower", None, required=False, guard=True, made_of=made_of,
        margin=DEFAULT_COST_MARGIN, floor=DEFAULT_COST_FLOOR,
    )  # fmt: skip


def _band(
    name: str, title: str, unit: str, expression: Ratio, within: tuple[float | None, float | None]
) -> JudgedMetric:
    return JudgedMetric(
        name, title, unit, "band", None, expression, required=False, low=within[0], high=within[1]
    )  # fmt: skip


def _ratio(figure: str) -> Ratio:
    expression = FIGURES[figure].expression
    if not isinstance(expression, Ratio):
        raise ExpressionError(f"figure {figure!r} is no ratio")
    return expression


SPEED: Final = "tps_per_request"
"""Judged by its histogram's mean where both arms have one, and else token-weighted, as its figure is."""

ANSWER_TOKENS: Final = "output_tokens_per_request"
GPU_COST: Final = "gpu_seconds_per_1000_output_tokens"
REPLICA_COST: Final = "replica_seconds_per_1000_output_tokens"
"""Compared where an arm does not show its GPUs."""
CACHE_IN_A_DAY: Final = "kv_cache_usage_in_a_day"
"""Where the use of the KV cache is a day later if it goes on rising as it does beside v1's."""

_JUDGED = (
    JudgedMetric(
        SPEED, "Tokens per second per request", METRICS[SPEED].unit, "ratio", "higher",
        _ratio(SPEED), margin=DEFAULT_MARGIN, floor=DEFAULT_FLOOR,
    ),
    _time("time_to_first_token_seconds", "Time to first token", part=FIRST_TOKEN_PART),
    _time("time_per_output_token_seconds", "Time per output token"),
    _time("request_duration_seconds", "Request duration"),
    _share("request_error_share", "Errors", required=True, part=ERRORS_PART),
    _share("request_rejected_share", "Rejections", required=True),
    _share("client_abort_share", "Aborted by clients", required=False, guard=True),
    _events(
        "preemptions_per_request", "Preemptions", Ratio(rate("preemptions_total"), rate("requests_total")),
        required=False,
    ),
    _time("inter_token_latency_seconds", "Inter-token latency", preset=False),
    _band(
        "in_flight_tokens_per_worker", "In-flight tokens per worker", "tokens",
        Ratio(Level("autoscaler_avg_in_flight_tokens", "max"), Level("autoscaler_avg_num_workers", "max")),
        IN_FLIGHT_TOKENS_PER_WORKER,
    ),
    _band(
        "speculation_rate", "Speculation rate", "ratio", _ratio("speculation_rate"),
        _range(SPECULATION_BAND, ("good", "warning")),
    ),
    _band(
        "kv_cache_hit_rate_skew", "Hit rate skew", "ratio", _ratio("kv_cache_hit_rate_skew"),
        _range(SKEW_BAND, ("good",)),
    ),
    _band(
        "kv_cache_hit_rate_efficiency", "Routing efficiency", "ratio", _ratio("kv_cache_hit_rate_efficiency"),
        _range(EFFICIENCY_BAND, ("good",)),
    ),
    JudgedMetric(
        "request_unended_share", "Requests that never end", "ratio", "events", "lower", None, required=False,
        guard=True, made_of=("requests_started_total", "requests_total"), margin=DEFAULT_EVENTS_MARGIN, floor=0.0,
    ),
    JudgedMetric(
        ANSWER_TOKENS, "Output tokens per request", METRICS[ANSWER_TOKENS].unit, "mean", None, mean(ANSWER_TOKENS),
        histogram=ANSWER_TOKENS, required=False, guard=True, margin=DEFAULT_LENGTH_MARGIN, floor=DEFAULT_LENGTH_FLOOR,
    ),
    _tail("time_to_first_token_seconds", "Slow first tokens"),
    _tail("time_per_output_token_seconds", "Slowly decoded answers"),
    JudgedMetric(
        "restarts_per_replica_hour", "Restarts", "restarts/h", "events", "lower", None, required=False, guard=True,
        made_of=("requests_total",), margin=DEFAULT_EVENTS_MARGIN, floor=0.0, least=1.0, of_requests=False,
        immaterial=IMMATERIAL_RESTARTS,
    ),
    _cost(GPU_COST, "GPU-seconds per 1 000 output tokens", ("gpu_usage", "output_tokens_total")),
    _cost(REPLICA_COST, "Replica-seconds per 1 000 output tokens", ("output_tokens_total",)),
    JudgedMetric(
        CACHE_IN_A_DAY, "KV cache use in a day", "ratio", "band", None, None, required=False, guard=True,
        made_of=("kv_cache_usage",), high=1.0,
    ),
    _share(
        "answer_truncated_share", "Truncated answers", required=False, guard=True, floor=DEFAULT_TRUNCATED_FLOOR
    ),
)  # fmt: skip

JUDGED: Mapping[str, JudgedMetric] = MappingProxyType({metric.name: metric for metric in _JUDGED})

SPEED_HISTOGRAM: Final = JudgedMetric(
    SPEED, "Tokens per second per request", METRICS[SPEED].unit, "mean", "higher", mean(SPEED),
    histogram=SPEED, margin=DEFAULT_MARGIN, floor=DEFAULT_FLOOR,
)  # fmt: skip
"""The mean of the speeds of requests, where both arms have the histogram."""

PROMPT_SIZES: Final = METRICS["input_tokens_per_request"].name
"""The histogram that shows the prompt mix."""
