"""The contract: every metric, derived figure and band, written once.

Instruments, source maps, the collector, PromQL rules, dashboards, alerts, docs and the console are compiled from the
records here. A metric's name, a formula or a threshold written anywhere else is a bug.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, get_args

from servescope.contract.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Quantile,
    Rate,
    Ratio,
    level,
    mean,
    rate,
)
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.samples import format_series, make_labels
from servescope.errors import UsageError

Kind = Literal["counter", "gauge", "histogram"]
Component = Literal["engine", "router", "autoscaler"]
Unit = Literal[
    "bytes", "bytes/s", "cores", "decisions", "decisions/s", "events", "events/s", "preemptions", "preemptions/s",
    "ratio", "recoveries", "replicas", "requests", "requests/s", "seconds", "tokens", "tokens/s", "workers",
]  # fmt: skip
Status = Literal["good", "warning", "critical"]

OUTCOMES = ("ok", "client_abort", "client_error", "rejected", "error")
"""How a request can end; only `error` and `rejected` count as harm done by the stack."""

REPLICA_STATUSES = ("starting", "active", "draining", "unhealthy", "failed")
INDEX_STATES = ("exact", "degraded", "recovering")
RECOVERY_SOURCES = ("events", "inventory", "snapshot", "nothing")
"""What a router's index is brought up to date from: events sent again, a worker's whole list, a file, or nothing."""

PHASES = ("prefill", "decode")
"""The phases that disaggregated serving gives to workers of their own."""

DEFAULT_WINDOW = "5m"

# Histogram edges are vLLM 0.32's, so that stacks share edges.
_TIME_TO_FIRST_TOKEN_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_PER_TOKEN_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
# Fast decoders stay below vLLM's first edge of 10 ms: these tell them apart.
_TIME_PER_OUTPUT_TOKEN_EDGES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, *_PER_TOKEN_EDGES)
_VLLM_DURATION_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
# The GenAI conventions' edges are among them, so that projecting to gen_ai.server.request.duration is exact.
_GEN_AI_DURATION_EDGES = tuple(0.01 * 2**power for power in range(14))
_DURATION_EDGES = tuple(sorted({*_VLLM_DURATION_EDGES, *_GEN_AI_DURATION_EDGES}))
_TOKEN_EDGES = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_TOKENS_PER_SECOND_EDGES = (
    1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 750.0, 1000.0, 2000.0,
    5000.0,
)  # fmt: skip
_CANDIDATE_EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the contract, as it is exposed.

    `labels` are those beyond the identity labels; `label_values` gives the closed sets among them; `edges` the
    finite bucket edges our instruments use (a source keeps its own); `absent` says what it means when the metric is
    missing. Raises UsageError for what no exposition could hold.
    """

    name: str
    kind: Kind
    unit: Unit
    component: Component
    help: str
    absent: str = "not observed"
    labels: tuple[str, ...] = ()
    label_values: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    edges: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check_name(self)
        _check_labels(self)
        if self.edges is not None:
            _check_edges(self)

    @property
    def documented(self) -> str:
        """The name the metric has in the documents, without the exposition's suffix."""
        return self.name.removesuffix("_total")


_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_RESERVED_SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created", "_info")
_RESERVED_LABELS = (*IDENTITY_LABELS, "le", "quantile")


def _check_name(metric: Metric) -> None:
    if metric.kind not in get_args(Kind):
        raise UsageError(
            f"metric {metric.name!r}: unknown kind {metric.kind!r}, supported: {', '.join(get_args(Kind))}"
        )
    if metric.unit not in get_args(Unit):
        raise UsageError(
            f"metric {metric.name!r}: unknown unit {metric.unit!r}, supported: {', '.join(get_args(Unit))}"
        )
    if not _NAME.match(metric.name):
        raise UsageError(f"metric name {metric.name!r} is not allowed, expected letters, digits and underscores")
    if metric.kind == "counter" and not metric.name.endswith("_total"):
        raise UsageError(f"counter {metric.name!r} has no '_total', expected it at the end of a counter's name")
    if metric.documented.endswith(_RESERVED_SUFFIXES) or (
        metric.kind != "counter" and metric.name != metric.documented
    ):
        suffixes = ", ".join(_RESERVED_SUFFIXES)
        raise UsageError(f"{metric.kind} {metric.name!r} ends with a suffix that means something else: {suffixes}")


def _check_labels(metric: Metric) -> None:
    for label in metric.labels:
        if not _NAME.match(label) or label.startswith("__"):
            raise UsageError(
                f"metric {metric.name!r}: label {label!r} is not allowed, expected letters and underscores"
            )
        if label in _RESERVED_LABELS:
            raise UsageError(
                f"metric {metric.name!r}: label {label!r} is taken, reserved: {', '.join(_RESERVED_LABELS)}"
            )
    if len(set(metric.labels)) != len(metric.labels):
        raise UsageError(f"metric {metric.name!r}: a label is named twice in {metric.labels!r}")
    strangers = metric.label_values.keys() - set(metric.labels)
    if strangers:
        raise UsageError(
            f"metric {metric.name!r}: values are given for {sorted(strangers)!r}, labels: {metric.labels!r}"
        )


def _check_edges(metric: Metric) -> None:
    edges = metric.edges or ()
    if metric.kind != "histogram":
        raise UsageError(f"{metric.kind} {metric.name!r} has edges {edges!r}, expected them of a histogram only")
    if not edges or not all(math.isfinite(edge) for edge in edges):
        raise UsageError(f"histogram {metric.name!r} has edges {edges!r}, expected at least one, all finite")
    for lower, upper in pairwise(edges):
        if lower >= upper:
            raise UsageError(f"histogram {metric.name!r}: edge {upper!r} follows {lower!r}, expected ascending edges")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a value stands within its band: `label` says it in a few words, `advice` what to do."""

    status: Status
    label: str
    advice: str


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of a band from `start` upwards; `inclusive` tells whether `start` itself belongs to it."""

    start: float
    inclusive: bool
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Band:
    """How the values of a figure are read: `lowest` below the first step, then the steps in ascending order."""

    lowest: Verdict
    steps: tuple[Step, ...]

    def judge(self, value: float) -> Verdict:
        """The verdict on a value."""
        verdict = self.lowest
        for step in self.steps:
            if value > step.start or (step.inclusive and value == step.start):
                verdict = step.verdict
        return verdict


@dataclass(frozen=True, slots=True)
class Figure:
    """One derived figure: what is shown of a deployment, per deployment and per value of the labels in `by`.

    `exposed` is its name on the collector's `/metrics`, beside a `window` label; None where it would only repeat the
    sum of a contract gauge. `idle` says what an idle deployment shows: 0, or nothing.
    """

    name: str
    title: str
    group: str
    unit: Unit
    expression: Expression
    help: str
    better: Literal["higher", "lower"] | None
    idle: Literal["zero", "absent"]
    by: tuple[str, ...] = ()
    band: Band | None = None
    exposed: str | None = None
    recorded: tuple[str, str] = ("", "")

    def record(self, window: str = DEFAULT_WINDOW) -> str:
        """The name of its recording rule, `deployment:metric:operation`."""
        metric, operation = self.recorded
        # Prometheus' own convention: a rate is no total any more.
        return f"deployment:{metric.removesuffix('_total')}:{operation}{window if operation.endswith('rate') else ''}"


def _by_name(metrics: Iterable[Metric]) -> Mapping[str, Metric]:
    return MappingProxyType({metric.name: metric for metric in metrics})


_ENGINE_METRICS = (
    Metric(
        "tps_per_request",
        "histogram",
        "tokens/s",
        "engine",
        "Output tokens per second of one request: (output tokens - 1) / seconds from first to last token; "
        "none below two output tokens.",
        edges=_TOKENS_PER_SECOND_EDGES,
    ),
    Metric("input_tokens_total", "counter", "tokens", "engine", "Prompt tokens processed, cached ones included."),
    Metric("output_tokens_total", "counter", "tokens", "engine", "Tokens generated."),
    Metric(
        "input_tokens_per_request",
        "histogram",
        "tokens",
        "engine",
        "Prompt tokens of each finished request that produced a token.",
        edges=_TOKEN_EDGES,
    ),
    Metric(
        "output_tokens_per_request",
        "histogram",
        "tokens",
        "engine",
        "Output tokens of each finished request that produced a token.",
        edges=_TOKEN_EDGES,
    ),
    Metric("concurrent_requests", "gauge", "requests", "engine", "Requests in flight, queued ones included."),
    Metric(
        "speculation_rate",
        "gauge",
        "ratio",
        "engine",
        "Draft tokens accepted / drafted, over this process's trailing window.",
        absent="speculation is off, or nothing was drafted",
    ),
    Metric(
        "spec_decode_num_draft_tokens_total",
        "counter",
        "tokens",
        "engine",
        "Draft tokens proposed.",
        absent="speculation is off",
    ),
    Metric(
        "spec_decode_num_accepted_tokens_total",
        "counter",
        "tokens",
        "engine",
        "Draft tokens accepted by the main model.",
        absent="speculation is off",
    ),
    Metric(
        "spec_decode_num_accepted_tokens_per_pos_total",
        "counter",
        "tokens",
        "engine",
        "Draft tokens accepted, by their position in the draft, from 0.",
        absent="speculation is off",
        labels=("position",),
    ),
    Metric("cpu_usage", "gauge", "cores", "engine", "CPU cores used.", absent="not measured there"),
    Metric("memory_usage", "gauge", "bytes", "engine", "Memory used.", absent="not measured there"),
    Metric(
        "gpu_usage",
        "gauge",
        "ratio",
        "engine",
        "Share of time each GPU was busy.",
        absent="no GPU, or it cannot be read",
        labels=("gpu",),
    ),
    Metric(
        "gpu_memory_usage",
        "gauge",
        "bytes",
        "engine",
        "Memory used on each GPU.",
        absent="no GPU, or it cannot be read",
        labels=("gpu",),
    ),
    Metric(
        "requests_started_total",
        "counter",
        "requests",
        "engine",
        "Requests that arrived.",
        absent="the engine counts requests when they end",
    ),
    Metric(
        "requests_total",
        "counter",
        "requests",
        "engine",
        "Requests that ended, by outcome; stop, length and repetition are ok.",
        labels=("outcome",),
        label_values=MappingProxyType({"outcome": OUTCOMES}),
    ),
    Metric(
        "time_to_first_token_seconds",
        "histogram",
        "seconds",
        "engine",
        "From a request's arrival to its first token.",
        edges=_TIME_TO_FIRST_TOKEN_EDGES,
    ),
    Metric(
        "time_per_output_token_seconds",
        "histogram",
        "seconds",
        "engine",
        "(Duration - time to first token) / (output tokens - 1), one observation per request of two tokens or more.",
        absent="the engine measures the gaps between tokens, and no request by itself",
        edges=_TIME_PER_OUTPUT_TOKEN_EDGES,
    ),
    Metric(
        "request_duration_seconds",
        "histogram",
        "seconds",
        "engine",
        "From a request's arrival to its end.",
        edges=_DURATION_EDGES,
    ),
    Metric(
        "inter_token_latency_seconds",
        "histogram",
        "seconds",
        "engine",
        "Between two tokens of a request, for every token after its first.",
        absent="the engine does not report tokens as they come",
        edges=_TIME_PER_OUTPUT_TOKEN_EDGES,
    ),
    Metric("queued_requests", "gauge", "requests", "engine", "Requests waiting to be scheduled."),
    Metric("kv_cache_usage", "gauge", "ratio", "engine", "Share of the KV cache in use."),
    Metric("preemptions_total", "counter", "preemptions", "engine", "Requests preempted to free KV cache."),
    Metric(
        "decode_seconds_total",
        "counter",
        "seconds",
        "engine",
        "Seconds from first to last token, summed over finished requests.",
    ),
    Metric(
        "kv_transfer_seconds",
        "histogram",
        "seconds",
        "engine",
        "Time a request's KV took from the worker that prefilled it to this one, which decodes.",
        absent="this worker receives no KV",
        edges=_TIME_TO_FIRST_TOKEN_EDGES,
    ),
    Metric(
        "kv_transfer_wait_seconds",
        "histogram",
        "seconds",
        "engine",
        "From a request's first token to the start of its KV's transfer to this worker.",
        absent="this worker receives no KV",
        edges=_TIME_TO_FIRST_TOKEN_EDGES,
    ),
    Metric(
        "kv_transfer_bytes_total",
        "counter",
        "bytes",
        "engine",
        "KV that came to this worker from those that prefilled it.",
        absent="this worker receives no KV",
    ),
    Metric(
        "kv_transfers_pending",
        "gauge",
        "requests",
        "engine",
        "Requests whose prompt is computed and whose KV has not left this worker yet; it holds their blocks.",
        absent="this worker sends no KV",
    ),
)

_ROUTER_METRICS = (
    Metric(
        "kv_cache_eligible_tokens_total",
        "counter",
        "tokens",
        "router",
        "Prompt tokens of routing attempts whose worker reported.",
    ),
    Metric(
        "kv_cache_predicted_tokens_total",
        "counter",
        "tokens",
        "router",
        "Prompt tokens cached on the chosen worker, by the router's index.",
        absent="the router keeps no index of the workers' caches",
    ),
    Metric(
        "kv_cache_reused_tokens_total",
        "counter",
        "tokens",
        "router",
        "Prompt tokens the worker says it reused from its cache.",
        absent="the workers do not tell what they reuse",
    ),
    Metric(
        "kv_cache_best_tokens_total",
        "counter",
        "tokens",
        "router",
        "Most prompt tokens cached on any worker that could have been chosen, by the router's index.",
        absent="the router keeps no index of the workers' caches",
    ),
    Metric(
        "kv_cache_hit_rate",
        "gauge",
        "ratio",
        "router",
        "Reused / eligible prompt tokens, over this process's trailing window.",
        absent="no prompt token was eligible",
    ),
    Metric(
        "kv_cache_hit_rate_skew",
        "gauge",
        "ratio",
        "router",
        "(Predicted - reused) / eligible prompt tokens, over this process's trailing window.",
        absent="no prompt token was eligible, or there is no index",
    ),
    Metric(
        "kv_cache_best_prefix_hit_rate",
        "gauge",
        "ratio",
        "router",
        "Best / eligible prompt tokens, over this process's trailing window.",
        absent="no prompt token was eligible, or there is no index",
    ),
    Metric(
        "kv_cache_hit_rate_efficiency",
        "gauge",
        "ratio",
        "router",
        "Reused / best prompt tokens, over this process's trailing window.",
        absent="no worker had a prefix cached, or there is no index",
    ),
    Metric(
        "router_unreported_decisions_total",
        "counter",
        "decisions",
        "router",
        "Routing attempts that never got their worker's report.",
        absent="there is no router that counts them",
    ),
    Metric(
        "router_index_event_gaps_total",
        "counter",
        "events",
        "router",
        "Cache events missing from the workers' sequences.",
        absent="the router counts no gaps",
    ),
    Metric(
        "router_index_events_dropped_total",
        "counter",
        "events",
        "router",
        "Cache events that arrived and could not be applied.",
        absent="the router counts no drops",
    ),
    Metric(
        "router_index_state",
        "gauge",
        "ratio",
        "router",
        "1 for the state the router's index is in, 0 for the others.",
        absent="the router keeps no index, or does not tell its state",
        labels=("state",),
        label_values=MappingProxyType({"state": INDEX_STATES}),
    ),
    Metric(
        "router_candidates",
        "histogram",
        "workers",
        "router",
        "Workers that could have been chosen, per attempt.",
        absent="there is no router that tells",
        edges=_CANDIDATE_EDGES,
    ),
    Metric(
        "router_fallbacks_total",
        "counter",
        "decisions",
        "router",
        "Routing attempts decided without the index, by reason.",
        absent="none happened",
        labels=("reason",),
    ),
    Metric(
        "router_queue_wait_seconds",
        "histogram",
        "seconds",
        "router",
        "Time a request waited in the router's queue.",
        absent="there is no router that tells",
        edges=_TIME_TO_FIRST_TOKEN_EDGES,
    ),
    Metric(
        "router_queued_requests",
        "gauge",
        "requests",
        "router",
        "Requests the router has not placed yet: their decision is due, or all workers are saturated.",
        absent="the router does not tell",
    ),
    Metric(
        "router_decision_seconds",
        "histogram",
        "seconds",
        "router",
        "Time from a request's arrival to its decision, the wait for a free worker not included.",
        absent="the router does not measure its decisions",
        edges=_TIME_PER_OUTPUT_TOKEN_EDGES,
    ),
    Metric(
        "router_decision_busy_seconds_total",
        "counter",
        "seconds",
        "router",
        "Time spent deciding; its rate is the share in use of a router that makes one decision at a time.",
        absent="the router does not measure its decisions",
    ),
    Metric(
        "router_index_recoveries_total",
        "counter",
        "recoveries",
        "router",
        "How often the index was brought up to date after a gap or a restart, by what it was made from.",
        absent="the router keeps no index, or does not tell",
        labels=("source",),
        label_values=MappingProxyType({"source": RECOVERY_SOURCES}),
    ),
)


def _autoscaler(name: str, unit: Unit, text: str) -> Metric:
    return Metric(name, "gauge", unit, "autoscaler", text, absent="no token-based autoscaler is observed")


_AUTOSCALER_METRICS = (
    Metric(
        "replica_count_by_status", "gauge", "replicas", "autoscaler", "Replicas by lifecycle status.",
        absent="nothing reports replicas; the collector counts its own targets",
        labels=("status",),
        label_values=MappingProxyType({"status": REPLICA_STATUSES}),
    ),
    _autoscaler(
        "autoscaler_in_flight_tokens", "tokens",
        "Tokens in flight over all workers and the router's queue: prompts queued, uncached prompts in prefill, "
        "prompts and output of decoding requests.",
    ),
    _autoscaler(
        "autoscaler_avg_in_flight_tokens", "tokens",
        "Sliding-window average of the tokens in flight, the value decisions use.",
    ),
    _autoscaler("autoscaler_avg_num_requests", "requests", "Sliding-window average of the requests in flight."),
    _autoscaler("autoscaler_avg_num_workers", "workers", "Sliding-window average of the healthy workers."),
    _autoscaler(
        "autoscaler_desired_scale", "replicas",
        "Raw desired replicas: average tokens in flight / target tokens in flight.",
    ),
    _autoscaler(
        "autoscaler_policy_desired_scale", "replicas",
        "Desired replicas after bounds, scale-down delay and half-life.",
    ),
    _autoscaler(
        "autoscaler_rounded_desired_scale", "replicas",
        "Desired replicas sent to the orchestrator: rounded up, within bounds.",
    ),
    Metric(
        "autoscaler_phase_in_flight_tokens", "gauge", "tokens", "autoscaler",
        "Tokens in flight by phase: prefill has prompts queued and uncached prompts computed, decode the prompts and "
        "output of requests whose KV is on its way, that wait for room, or that decode.",
        absent="the deployment is not disaggregated",
        labels=("phase",),
        label_values=MappingProxyType({"phase": PHASES}),
    ),
    Metric(
        "autoscaler_phase_desired_scale", "gauge", "replicas", "autoscaler",
        "Raw desired replication units by phase: average tokens in flight / target tokens in flight of its workers in "
        "one unit; the larger of the two is the desired scale.",
        absent="the deployment is not disaggregated",
        labels=("phase",),
        label_values=MappingProxyType({"phase": PHASES}),
    ),
)  # fmt: skip

METRICS: Mapping[str, Metric] = _by_name((*_ENGINE_METRICS, *_ROUTER_METRICS, *_AUTOSCALER_METRICS))


def _sample_families() -> Mapping[str, str]:
    families = {name: name for name in METRICS}
    for metric in METRICS.values():
        if metric.kind == "histogram":
            families |= {f"{metric.name}{part}": metric.name for part in ("_bucket", "_sum", "_count")}
    return MappingProxyType(families)


SAMPLE_FAMILIES: Mapping[str, str] = _sample_families()
"""The metric that a sample's name belongs to: a histogram has samples of three names."""

PROCESS_RATIOS = (
    "speculation_rate",
    "kv_cache_hit_rate",
    "kv_cache_hit_rate_skew",
    "kv_cache_best_prefix_hit_rate",
    "kv_cache_hit_rate_efficiency",
)
"""Gauges an instrument shows of its own process, for those who scrape nothing else; the collector derives its own."""


# --- Bands ------------------------------------------------------------------------------------------------------------

SPECULATION_BAND = Band(
    lowest=Verdict(
        "critical", "costs more than it saves", "Disable speculation, or shorten the draft (max_draft_len)."
    ),
    steps=(
        Step(0.40, True, Verdict("warning", "tune", "Tune the draft model, or change the decoding type.")),
        Step(
            0.80,
            True,
            Verdict("good", "well aligned", "Nothing to do: the draft agrees with the main model."),
        ),
    ),
)

SKEW_BAND = Band(
    lowest=Verdict(
        "critical", "missed cache events",
        "Workers reuse far more than the router knows of: check the event stream for gaps and the index's state.",
    ),
    steps=(
        Step(
            -0.15, True,
            Verdict("warning", "behind the caches", "The router's index lags: watch event gaps and drops."),
        ),
        Step(-0.05, True, Verdict("good", "normal", "The router predicts what workers reuse.")),
        Step(
            0.15, False,
            Verdict("warning", "some churn", "Blocks are evicted between prediction and service: watch KV cache use."),
        ),
        Step(
            0.30, False,
            Verdict(
                "critical", "cache churn",
                "Workers lose what the router counts on: add replicas or KV cache, or lower concurrency.",
            ),
        ),
    ),
)  # fmt: skip

EFFICIENCY_BAND = Band(
    lowest=Verdict(
        "warning", "hits traded for balance",
        "The router passes over cached prefixes: check saturation, router_overlap_score_weight and router_temperature.",
    ),
    steps=(Step(0.90, True, Verdict("good", "normal", "The router takes nearly every hit there is.")),),
)  # fmt: skip


# --- Derived figures --------------------------------------------------------------------------------------------------

_ALL_REQUESTS = rate("requests_total")
_ELIGIBLE = rate("kv_cache_eligible_tokens_total")
_PREDICTED = rate("kv_cache_predicted_tokens_total")
_REUSED = rate("kv_cache_reused_tokens_total")
_BEST = rate("kv_cache_best_tokens_total")


def _share_of_requests(
    name: str, title: str, outcome: str, text: str, better: Literal["lower"] | None = "lower"
) -> Figure:
    return Figure(
        name, title, "Requests", "ratio", Ratio(rate("requests_total", outcome=outcome), _ALL_REQUESTS), text,
        better=better, idle="absent", exposed=name, recorded=(name, "ratio_rate"),
    )  # fmt: skip


def _latency(name: str, metric: str, title: str, which: str) -> Figure:
    """A quantile (`p95`) or the mean of a latency histogram."""
    expression: Expression = mean(metric) if which == "mean" else Quantile(int(which[1:]) / 100, metric)
    told = "Mean" if which == "mean" else "Median" if which == "p50" else f"{which[1:]}th percentile"
    return Figure(
        f"{name}_{which}", f"{title}, {which}", "Latency", "seconds", expression,
        f"{told}: {METRICS[metric].help[0].lower()}{METRICS[metric].help[1:]}",
        better="lower", idle="absent", exposed=f"{metric}_{which}", recorded=(metric, f"{which}_rate"),
    )  # fmt: skip


def _throughput(name: str, title: str, group: str, metric: str, unit: Unit, text: str) -> Figure:
    return Figure(
        name, title, group, unit, rate(metric), text,
        better=None, idle="zero", exposed=name, recorded=(metric, "rate"),
    )  # fmt: skip


def _mean_size(name: str, title: str) -> Figure:
    return Figure(
        name, title, "Tokens", "tokens", mean(name), f"Mean {title.lower()}.",
        better=None, idle="absent", exposed=f"{name}_mean", recorded=(name, "mean_rate"),
    )  # fmt: skip


def _gauge(
    name: str,
    title: str,
    group: str,
    *,
    over: Literal["sum", "avg", "max"] = "sum",
    better: Literal["higher", "lower"] | None = None,
    by: tuple[str, ...] = (),
) -> Figure:
    metric = METRICS[name]
    return Figure(
        name, title, group, metric.unit, level(name, over), metric.help,
        better=better, idle="zero", by=by, recorded=(name, over),
    )  # fmt: skip


def _cache_ratio(
    name: str,
    title: str,
    expression: Expression,
    text: str,
    better: Literal["higher"] | None,
    band: Band | None = None,
) -> Figure:
    return Figure(
        name, title, "KV cache and router", "ratio", expression, text,
        better=better, idle="absent", band=band, exposed=name, recorded=(name, "ratio_rate"),
    )  # fmt: skip


_FIGURES = (
    _throughput("request_rate", "Requests", "Requests", "requests_total", "requests/s", "Requests ended a second."),
    _share_of_requests("request_error_share", "Errors", "error", "Share of requests that failed in the stack."),
    _share_of_requests("request_rejected_share", "Rejected", "rejected", "Share of requests the stack refused."),
    _share_of_requests(
        # No harm of the stack's, and engines notice a client that leaves each in their own way, or never.
        "client_abort_share", "Aborted by clients", "client_abort", "Share of requests whose client went away.",
        better=None,
    ),
    _gauge("concurrent_requests", "In flight", "Requests"),
    _gauge("queued_requests", "Queued", "Requests", better="lower"),
    *(
        _latency("time_to_first_token", "time_to_first_token_seconds", "Time to first token", which)
        for which in ("p50", "p95", "p99", "mean")
    ),
    *(
        _latency("time_per_output_token", "time_per_output_token_seconds", "Time per output token", which)
        for which in ("p50", "p95", "mean")
    ),
    _latency("inter_token_latency", "inter_token_latency_seconds", "Inter-token latency", "p95"),
    *(
        _latency("request_duration", "request_duration_seconds", "Request duration", which)
        for which in ("p50", "p95", "mean")
    ),
    Figure(
        "tps_per_request", "Tokens per second per request", "Tokens", "tokens/s",
        Ratio(
            Difference(Rate("output_tokens_per_request_sum"), Rate("output_tokens_per_request_count")),
            rate("decode_seconds_total"),
        ),
        "Output tokens after the first / seconds from first to last token, over all finished requests: "
        "a token-weighted mean.",
        better="higher", idle="absent", exposed="tps_per_request_mean", recorded=("tps_per_request", "ratio_rate"),
    ),
    _throughput(
        "input_tokens_per_second", "Input tokens", "Tokens", "input_tokens_total", "tokens/s",
        "Prompt tokens processed a second, cached ones included.",
    ),
    _throughput(
        "output_tokens_per_second", "Output tokens", "Tokens", "output_tokens_total", "tokens/s",
        "Tokens generated a second.",
    ),
    _mean_size("input_tokens_per_request", "Input tokens per request"),
    _mean_size("output_tokens_per_request", "Output tokens per request"),
    Figure(
        "speculation_rate", "Speculation rate", "Speculation", "ratio",
        Ratio(rate("spec_decode_num_accepted_tokens_total"), rate("spec_decode_num_draft_tokens_total")),
        "Draft tokens the main model accepted / draft tokens proposed.",
        better="higher", idle="absent", band=SPECULATION_BAND, exposed="speculation_rate",
        recorded=("speculation_rate", "ratio_rate"),
    ),
    Figure(
        "spec_decode_accepted_tokens_per_second", "Accepted by draft position", "Speculation", "tokens/s",
        rate("spec_decode_num_accepted_tokens_per_pos_total"),
        "Draft tokens accepted a second, by their position in the draft.",
        better=None, idle="zero", by=("position",), exposed="spec_decode_accepted_tokens_per_second",
        recorded=("spec_decode_num_accepted_tokens_per_pos_total", "rate"),
    ),
    _cache_ratio(
        "kv_cache_hit_rate", "KV cache hit rate", Ratio(_REUSED, _ELIGIBLE),
        "Prompt tokens workers reused / prompt tokens routed. Watch its change, not its level.", "higher",
    ),
    _cache_ratio(
        "kv_cache_hit_rate_skew", "Hit rate skew", Ratio(Difference(_PREDICTED, _REUSED), _ELIGIBLE),
        "What the router predicted minus what workers reused, as a share of prompt tokens; about +0.10 is usual.",
        None, SKEW_BAND,
    ),
    _cache_ratio(
        "kv_cache_best_prefix_hit_rate", "Best possible hit rate", Ratio(_BEST, _ELIGIBLE),
        "The hit rate had every request gone to the worker with the longest cached prefix.", "higher",
    ),
    _cache_ratio(
        "kv_cache_hit_rate_efficiency", "Routing efficiency", Ratio(_REUSED, _BEST),
        "Prompt tokens workers reused / the most any worker had cached.", "higher", EFFICIENCY_BAND,
    ),
    # The one kind of ratio without counters: how full each replica's cache is, averaged over replicas of one size.
    _gauge("kv_cache_usage", "KV cache in use", "KV cache and router", over="avg"),
    *(
        Figure(
            f"{name}_{which}", f"{title}, {which}", "KV cache and router", "seconds", expression, text,
            better="lower", idle="absent", exposed=f"{metric}_{which}", recorded=(metric, f"{which}_rate"),
        )
        for name, title, metric, text in (
            ("kv_transfer", "KV transfer", "kv_transfer_seconds", "How long KV takes from prefill to decode workers."),
            (
                "kv_transfer_wait", "Wait for KV transfer", "kv_transfer_wait_seconds",
                "How long computed KV waits before its transfer begins.",
            ),
        )
        for which, expression in (("p95", Quantile(0.95, metric)), ("mean", mean(metric)))
    ),
    _throughput(
        "kv_transfer_bytes_per_second", "KV transferred", "KV cache and router", "kv_transfer_bytes_total", "bytes/s",
        "KV that goes from prefill to decode workers each second.",
    ),
    _gauge("kv_transfers_pending", "KV transfers pending", "KV cache and router", better="lower"),
    _throughput(
        "preemptions_rate", "Preemptions", "KV cache and router", "preemptions_total", "preemptions/s",
        "Requests preempted a second to free KV cache.",
    ),
    _throughput(
        "router_event_gap_rate", "Cache event gaps", "KV cache and router", "router_index_event_gaps_total", "events/s",
        "Cache events a second missing from the workers' sequences.",
    ),
    _throughput(
        "router_unreported_rate", "Unreported decisions", "KV cache and router", "router_unreported_decisions_total",
        "decisions/s", "Routing attempts a second that never got their worker's report.",
    ),
    _gauge("replica_count_by_status", "Replicas", "Replicas and autoscaler", by=("status",)),
    _gauge("autoscaler_in_flight_tokens", "Tokens in flight", "Replicas and autoscaler", over="max"),
    _gauge("autoscaler_avg_in_flight_tokens", "Tokens in flight, average", "Replicas and autoscaler", over="max"),
    _gauge("autoscaler_avg_num_requests", "Requests in flight, average", "Replicas and autoscaler", over="max"),
    _gauge("autoscaler_avg_num_workers", "Healthy workers, average", "Replicas and autoscaler", over="max"),
    _gauge("autoscaler_desired_scale", "Desired scale, raw", "Replicas and autoscaler", over="max"),
    _gauge("autoscaler_policy_desired_scale", "Desired scale, after policy", "Replicas and autoscaler", over="max"),
    _gauge("autoscaler_rounded_desired_scale", "Desired scale, sent", "Replicas and autoscaler", over="max"),
    _gauge(
        "autoscaler_phase_in_flight_tokens", "Tokens in flight by phase", "Replicas and autoscaler", over="max",
        by=("phase",),
    ),
    _gauge(
        "autoscaler_phase_desired_scale", "Desired scale by phase, raw", "Replicas and autoscaler", over="max",
        by=("phase",),
    ),
    _gauge("cpu_usage", "CPU", "Resources"),
    _gauge("memory_usage", "Memory", "Resources"),
    _gauge("gpu_usage", "GPU busy", "Resources", over="avg"),
    _gauge("gpu_memory_usage", "GPU memory", "Resources"),
)  # fmt: skip

FIGURES: Mapping[str, Figure] = MappingProxyType({figure.name: figure for figure in _FIGURES})
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(figure.group for figure in _FIGURES))
"""Headings under which figures are shown, in order."""


RECORDED_HISTOGRAMS = ("time_to_first_token_seconds", "time_per_output_token_seconds", "request_duration_seconds")
"""Histograms whose buckets are recorded per deployment, for what is shown of several deployments together."""


def record_buckets(histogram: str, window: str = DEFAULT_WINDOW) -> str:
    """The name of the recording rule of a histogram's buckets: how many observations a second are in each."""
    return f"deployment:{histogram}_bucket:rate{window}"


def figure_key(name: str, labels: Mapping[str, str]) -> str:
    """A figure and its extra labels as text: `replica_count_by_status{status="active"}`; the bare name without any."""
    return format_series(name, make_labels(labels))


# --- What alerts are bound by, beside the bands -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """A number that an alert compares with and no band has; `meaning` says what is on its other side.

    `least` and `most` are what an operator may put in its place.
    """

    name: str
    value: float
    unit: Unit
    meaning: str
    least: float = 0.0
    most: float = math.inf


DRAFT_TRAFFIC = Bound("draft_traffic", 1.0, "tokens/s", "fewer tokens drafted say nothing about the draft")
LATE_POSITION = Bound(
    "late_position",
    0.10,
    "ratio",
    "a draft position accepted less often than this share of the first costs more than it brings",
    most=1.0,
)
PROMPT_TRAFFIC = Bound("prompt_traffic", 100.0, "tokens/s", "fewer prompt tokens routed say nothing about the caches")
HIT_RATE_KEPT = Bound(
    "hit_rate_kept", 0.70, "ratio", "a hit rate below this share of what it was has dropped", most=1.0
)
EVENT_GAPS = Bound("event_gaps", 0.0, "events/s", "any gap that stays leaves the router's index wrong")
SCALE_CHANGES = Bound(
    "scale_changes",
    6.0,
    "events",
    "as many changes of the desired scale within the hour are flapping",
    least=1.0,
)
FAILURES_REPEATED = Bound(
    "failures_repeated",
    4.0,
    "events",
    "as many changes of the failed replicas within half an hour are a crash loop",
    least=1.0,
)
ACTIVE_REPLICAS = Bound("active_replicas", 1.0, "replicas", "fewer active ones serve nobody", least=1.0)
QUEUE_FLOOR = Bound("queue_floor", 10.0, "requests", "a shorter queue is no queue to speak of")
REQUEST_TRAFFIC = Bound("request_traffic", 0.02, "requests/s", "fewer requests say nothing about an objective")
STORE_QUEUE_AGE = Bound(
    "store_queue_age", 60.0, "seconds", "scrapes that wait longer for the store would be lost with the process"
)
WORSE_TIMES = Bound(
    "worse_times", 1.2, "ratio", "a latency as many times that of the stack it replaces is worse", least=1.0
)
WORSE_ERRORS = Bound(
    "worse_errors",
    0.01,
    "ratio",
    "a share of errors higher by this than that of the stack it replaces is worse",
    most=1.0,
)
WORSE_SPEED = Bound(
    "worse_speed",
    0.8,
    "ratio",
    "tokens per second per request below this share of the replaced stack's are worse",
    most=1.0,
)
COMPARED_TRAFFIC = Bound(
    "compared_traffic", 0.1, "requests/s", "fewer requests of either stack do not tell which of the two is worse"
)
SHARE_MARGIN = Bound(
    "share_margin",
    0.10,
    "ratio",
    "a stack's share of the requests this far from the configured one is another",
    most=1.0,
)
SHARE_TRAFFIC = Bound("share_traffic", 1.0, "requests/s", "shares of fewer requests differ by chance")
SCRAPE_AGE = Bound("scrape_age", 300.0, "seconds", "an older scrape says nothing of the present")
LOOP_LAG = Bound("loop_lag", 0.1, "seconds", "an event loop that wakes later on average does not keep its pace")

BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        bound.name: bound
        for bound in (
            DRAFT_TRAFFIC,
            LATE_POSITION,
            PROMPT_TRAFFIC,
            HIT_RATE_KEPT,
            EVENT_GAPS,
            SCALE_CHANGES,
            FAILURES_REPEATED,
            ACTIVE_REPLICAS,
            QUEUE_FLOOR,
            REQUEST_TRAFFIC,
            STORE_QUEUE_AGE,
            WORSE_TIMES,
            WORSE_ERRORS,
            WORSE_SPEED,
            COMPARED_TRAFFIC,
            SHARE_MARGIN,
            SHARE_TRAFFIC,
            SCRAPE_AGE,
            LOOP_LAG,
        )
    }
)

OLD_STACK, NEW_STACK = "v1", "v2"
"""The stacks of a cutover, by their `inference_stack`."""

COLLECTOR_JOB = "servescope"
"""The `job` under which a Prometheus scrapes the collectors."""

RULE_FAILURES = "prometheus_rule_evaluation_failures_total"
RULES_MISSED = "prometheus_rule_group_iterations_missed_total"
ALERTS_UNSENT = "prometheus_notifications_errors_total"
PROMETHEUS_RELOADED = "prometheus_config_last_reload_successful"
NOTIFICATIONS_FAILED = "alertmanager_notifications_failed_total"
ALERTMANAGER_RELOADED = "alertmanager_config_last_reload_successful"
SCRAPED_UP = "up"
FOREIGN_SERIES = frozenset({
    RULE_FAILURES, RULES_MISSED, ALERTS_UNSENT, PROMETHEUS_RELOADED, NOTIFICATIONS_FAILED, ALERTMANAGER_RELOADED,
    SCRAPED_UP,
})  # fmt: skip
"""What Prometheus and Alertmanager say of themselves; a Prometheus that scrapes both has them."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What users are promised: the share `goal` of requests, over 30 days, is not among `bad`.

    `bad` is a share of requests or observations, 0 … 1, as an expression over a window.
    """

    name: str
    title: str
    goal: float
    bad: Expression
    promise: str

    @property
    def budget(self) -> float:
        """The share that may be bad."""
        # Rounded: 1 - 0.999 is not 0.001 in binary.
        return round(1.0 - self.goal, 12)

    @property
    def edge_seconds(self) -> float | None:
        """The latency that is promised, None where the promise is of another kind."""
        return self.bad.edge if isinstance(self.bad, FractionAbove) else None

    def record(self, window: str) -> str:
        """The name of the recording rule of its bad share."""
        return f"deployment:{self.name}_objective_bad:ratio_rate{window}"


def _percent(share: float) -> str:
    return f"{share * 100:.6g} %"


def latency_objective(name: str, goal: float, edge_seconds: float) -> Objective:
    """The objective of a latency: the share `goal` of requests is within an edge of the histogram's."""
    title, metric, promise = _LATENCY_OBJECTIVES[name]
    told = promise.format(goal=_percent(goal), edge=f"{edge_seconds:g} s")
    return Objective(name, title, goal, FractionAbove(edge_seconds, metric), told)


def request_objective(goal: float) -> Objective:
    """The objective of requests: the share `goal` of them neither fails nor is refused."""
    bad = Ratio(rate("requests_total", outcome=("error", "rejected")), _ALL_REQUESTS)
    promise = f"{_percent(goal)} of requests neither fail in the stack nor are refused by it"
    return Objective("requests", "Requests", goal, bad, promise)


_LATENCY_OBJECTIVES = {
    "time_to_first_token": (
        "Time to first token", "time_to_first_token_seconds", "{goal} of requests have their first token within {edge}",
    ),
    "time_per_output_token": (
        "Time per output token", "time_per_output_token_seconds",
        "{goal} of requests take no longer than {edge} per output token",
    ),
}  # fmt: skip

OBJECTIVES: Mapping[str, Objective] = MappingProxyType({
    objective.name: objective
    for objective in (
        latency_objective("time_to_first_token", 0.99, 2.5),
        latency_objective("time_per_output_token", 0.99, 0.1),
        request_objective(0.999),
    )
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """A row of the table that tells a burning budget: over both windows more than `factor` times what it bears."""

    severity: Literal["critical", "warning"]
    short: str
    long: str
    factor: float


BURN_WINDOWS = (
    BurnWindow("critical", "5m", "1h", 14.4),
    BurnWindow("critical", "30m", "6h", 6.0),
    BurnWindow("warning", "2h", "1d", 3.0),
    BurnWindow("warning", "6h", "3d", 1.0),
)
"""Two percent of a 30-day budget within the hour, five within six hours, ten within a day, ten within three."""
