"""Every metric of the contract, with the closed sets of its label values and the bucket edges of its histograms."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.contract.types import Metric, Unit

OUTCOMES = ("ok", "client_abort", "client_error", "rejected", "error")
"""How a request can end; only `error` and `rejected` are failures of the stack."""

REPLICA_STATUSES = ("starting", "active", "draining", "unhealthy", "failed")
COUNTED_STATUSES = ("active", "unhealthy")
"""Statuses of the replicas that the collector counts by itself where no source reports them."""
BROKEN_STATUSES = ("unhealthy", "failed")
"""Statuses of the replicas that should serve requests and do not."""
INDEX_STATES = ("exact", "degraded", "recovering")
GPU_ERROR_CAUSES = ("memory", "link")
"""What of a GPU failed: memory that was taken out of use, or the link to other GPUs."""
RECOVERY_SOURCES = ("events", "inventory", "snapshot", "nothing")
"""What a router rebuilds its index from: events sent again, a worker's whole list, a file, or nothing."""

SEGMENT = "segment"
"""The label of the requests of one tenant, route, priority or class of prompts, where a source keeps them apart."""
OTHER_SEGMENT = "other"
MOST_SEGMENTS = 50
"""Values of the label `segment` that a process or a source has at most; the requests of all others are `other`."""

PHASES = ("prefill", "decode")
"""The phases that disaggregated serving gives to workers of their own."""

# Histogram edges are vLLM 0.32's, so that stacks share edges.
_TIME_TO_FIRST_TOKEN_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_PER_TOKEN_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
# Fast decoders stay below vLLM's first edge of 10 ms, so these are added.
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


_ENGINE_METRICS = (
    Metric(
        "tps_per_request",
        "histogram",
        "tokens/s",
        "engine",
        "Output tokens per second of one request: (output tokens - 1) / seconds from first to last token; "
        "none below two output tokens.",
        edges=_TOKENS_PER_SECOND_EDGES,
        optional=(SEGMENT,),
    ),
    Metric(
        "input_tokens_total",
        "counter",
        "tokens",
        "engine",
        "Prompt tokens processed, cached ones included.",
        absent="the engine does not count tokens",
    ),
    Metric(
        "output_tokens_total",
        "counter",
        "tokens",
        "engine",
        "Tokens generated.",
        absent="the engine does not count tokens",
    ),
    Metric(
        "input_tokens_per_request",
        "histogram",
        "tokens",
        "engine",
        "Prompt tokens of each finished request that produced a token.",
        absent="the engine does not observe the size of each request",
        edges=_TOKEN_EDGES,
    ),
    Metric(
        "output_tokens_per_request",
        "histogram",
        "tokens",
        "engine",
        "Output tokens of each finished request that produced a token.",
        absent="the engine does not observe the size of each request",
        edges=_TOKEN_EDGES,
        optional=(SEGMENT,),
    ),
    Metric(
        "concurrent_requests",
        "gauge",
        "requests",
        "engine",
        "Requests in flight, queued ones included.",
        absent="the engine does not report its load",
    ),
    Metric(
        "speculation_rate",
        "gauge",
        "ratio",
        "engine",
        "Draft tokens accepted / drafted, over this process's trailing window.",
        absent="speculation is off, or nothing was drafted",
    ),
    Metric(
        "spec_decode_num_drafts_total",
        "counter",
        "drafts",
        "engine",
        "Drafts made, one for each sequence and step.",
        absent="speculation is off, or the engine counts draft tokens only",
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
        "gpu_errors_total",
        "counter",
        "errors",
        "engine",
        "Errors of each GPU that it could not correct, by cause.",
        absent="no exporter of GPUs reports errors",
        labels=("gpu", "cause"),
        label_values=MappingProxyType({"cause": GPU_ERROR_CAUSES}),
    ),
    Metric(
        "gpu_last_error",
        "gauge",
        "code",
        "engine",
        "Code of the last error of each GPU that its driver reported (NVIDIA's XID), 0 without one.",
        absent="no exporter of GPUs reports errors",
        labels=("gpu",),
    ),
    Metric(
        "requests_started_total",
        "counter",
        "requests",
        "engine",
        "Requests that arrived.",
        absent="the engine counts requests when they end",
        optional=(SEGMENT,),
    ),
    Metric(
        "requests_total",
        "counter",
        "requests",
        "engine",
        "Requests that ended, by outcome; stop, length and repetition are ok.",
        absent="the engine does not count requests",
        labels=("outcome",),
        label_values=MappingProxyType({"outcome": OUTCOMES}),
        optional=(SEGMENT,),
    ),
    Metric(
        "answers_truncated_total",
        "counter",
        "requests",
        "engine",
        "Requests that ended ok as their answer reached a limit of its length; their outcome is counted as well.",
        absent="it is not reported why answers end",
    ),
    Metric(
        "time_to_first_token_seconds",
        "histogram",
        "seconds",
        "engine",
        "From a request's arrival to its first token.",
        absent="the engine does not time requests",
        edges=_TIME_TO_FIRST_TOKEN_EDGES,
        optional=(SEGMENT,),
    ),
    Metric(
        "time_per_output_token_seconds",
        "histogram",
        "seconds",
        "engine",
        "(Duration - time to first token) / (output tokens - 1), one observation per request of two tokens or more.",
        absent="the engine measures the gaps between tokens, and no request by itself",
        edges=_TIME_PER_OUTPUT_TOKEN_EDGES,
        optional=(SEGMENT,),
    ),
    Metric(
        "request_duration_seconds",
        "histogram",
        "seconds",
        "engine",
        "From a request's arrival to its end.",
        absent="the engine does not time requests",
        edges=_DURATION_EDGES,
        optional=(SEGMENT,),
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
    Metric(
        "queued_requests",
        "gauge",
        "requests",
        "engine",
        "Requests waiting to be scheduled.",
        absent="the engine does not report its load",
    ),
    Metric(
        "kv_cache_usage",
        "gauge",
        "ratio",
        "engine",
        "Share of the KV cache in use.",
        absent="the engine does not report it",
    ),
    Metric(
        "preemptions_total",
        "counter",
        "preemptions",
        "engine",
        "Requests preempted to free KV cache.",
        absent="the engine does not count them",
    ),
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
        "Prompt tokens the worker reports as reused from its cache.",
        absent="the workers do not report what they reuse",
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
        absent="no router counts them",
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
        absent="the router keeps no index, or does not report its state",
        labels=("state",),
        label_values=MappingProxyType({"state": INDEX_STATES}),
    ),
    Metric(
        "router_candidates",
        "histogram",
        "workers",
        "router",
        "Workers that could have been chosen, per attempt.",
        absent="no router reports it",
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
        absent="no router reports it",
        edges=_TIME_TO_FIRST_TOKEN_EDGES,
    ),
    Metric(
        "router_queued_requests",
        "gauge",
        "requests",
        "router",
        "Requests the router has not placed yet: their decision is due, or all workers are saturated.",
        absent="the router does not report it",
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
        "Rebuilds of the index after a gap or a restart, by what it was rebuilt from.",
        absent="the router keeps no index, or does not report it",
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
    *(
        Metric(
            f"autoscaler_{bound}_replicas", "gauge", "replicas", "autoscaler",
            f"The {adjective} replicas that the autoscaler may request.",
            absent="the autoscaler does not show its bounds",
        )
        for bound, adjective in (("min", "fewest"), ("max", "most"))
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

REPLICA_START_TIME = "replica_start_time_seconds"
"""What distinguishes a restart from a counter that went on: every target has its own, whichever layer it is of."""

_PROCESS_METRICS = (
    Metric(
        REPLICA_START_TIME,
        "gauge",
        "seconds",
        "process",
        "When the process began whose counters these are, seconds since 1970.",
        absent="the source does not show it; restarts are then seen by counters that fall",
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in (*_ENGINE_METRICS, *_ROUTER_METRICS, *_AUTOSCALER_METRICS, *_PROCESS_METRICS)}
)


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
"""Gauges an instrument exposes of its own process, for setups without a collector, which derives its own."""
