"""Every derived figure: its expression over metrics, its texts, its exposed name and the name of its recording rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND, SPECULATION_BAND
from servescope.contract.expressions import Difference, Expression, Quantile, Rate, Ratio, level, mean, rate
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Labels, format_series, make_labels
from servescope.contract.types import DEFAULT_WINDOW, Band, Figure, Unit

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
    statistic = "Mean" if which == "mean" else "Median" if which == "p50" else f"{which[1:]}th percentile"
    return Figure(
        f"{name}_{which}", f"{title}, {which}", "Latency", "seconds", expression,
        f"{statistic}: {METRICS[metric].help[0].lower()}{METRICS[metric].help[1:]}",
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
        # No failure of the stack; engines detect a client that leaves in different ways, or never.
        "client_abort_share", "Aborted by clients", "client_abort", "Share of requests whose client went away.",
        better=None,
    ),
    _share_of_requests(
        "client_error_share", "Client errors", "client_error", "Share of requests refused as the client's mistake.",
        better=None,
    ),
    Figure(
        "request_unended_share", "Started minus ended", "Requests", "ratio",
        Ratio(Difference(rate("requests_started_total"), _ALL_REQUESTS), rate("requests_started_total")),
        "Requests that started minus those that ended, as a share of those that started; 0 on average, and negative "
        "while more end than start.",
        better="lower", idle="absent", exposed="request_unended_share",
        recorded=("request_unended_share", "ratio_rate"),
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
        # No failure of the stack: most limits are what clients ask for.
        "answer_truncated_share", "Answers that end at a limit", "Tokens", "ratio",
        Ratio(rate("answers_truncated_total"), rate("requests_total", outcome="ok")),
        "Share of answers that ended at a limit of their length, of the client's or of the stack, and not by "
        "themselves.",
        better=None, idle="absent", exposed="answer_truncated_share", recorded=("answer_truncated_share", "ratio_rate"),
    ),
    Figure(
        "speculation_rate", "Speculation rate", "Speculation", "ratio",
        Ratio(rate("spec_decode_num_accepted_tokens_total"), rate("spec_decode_num_draft_tokens_total")),
        "Draft tokens the main model accepted / draft tokens proposed.",
        better="higher", idle="absent", band=SPECULATION_BAND, exposed="speculation_rate",
        recorded=("speculation_rate", "ratio_rate"),
    ),
    Figure(
        "spec_decode_accepted_tokens_per_draft", "Accepted tokens per draft", "Speculation", "tokens",
        Ratio(rate("spec_decode_num_accepted_tokens_total"), rate("spec_decode_num_drafts_total")),
        "Draft tokens the main model accepted of each draft, on average; a step yields one token more.",
        better="higher", idle="absent", exposed="spec_decode_accepted_tokens_per_draft",
        recorded=("spec_decode_accepted_tokens_per_draft", "ratio_rate"),
    ),
    _throughput(
        "spec_decode_draft_tokens_per_second", "Draft tokens", "Speculation", "spec_decode_num_draft_tokens_total",
        "tokens/s", "Draft tokens proposed a second.",
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
    _throughput(
        "kv_cache_eligible_tokens_per_second", "Prompt tokens routed", "KV cache and router",
        "kv_cache_eligible_tokens_total", "tokens/s", "Prompt tokens that the router sent to workers a second.",
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
    _gauge("autoscaler_min_replicas", "Lower bound of the scale", "Replicas and autoscaler", over="max"),
    _gauge("autoscaler_max_replicas", "Upper bound of the scale", "Replicas and autoscaler", over="max"),
    # Of targets that are restarted, the last one that was.
    _gauge("replica_start_time_seconds", "Last start of a replica", "Replicas and autoscaler", over="max"),
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
    _throughput(
        "gpu_error_rate", "GPU errors", "Resources", "gpu_errors_total", "errors/s",
        "Errors a second that GPUs could not correct: rows of memory taken out of use, and errors of links.",
    ),
    _gauge("gpu_last_error", "Last GPU error", "Resources", over="max"),
)  # fmt: skip

FIGURES: Mapping[str, Figure] = MappingProxyType({figure.name: figure for figure in _FIGURES})
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(figure.group for figure in _FIGURES))
"""The headings of figures, in order."""


RECORDED_HISTOGRAMS = ("time_to_first_token_seconds", "time_per_output_token_seconds", "request_duration_seconds")
"""Histograms whose buckets are recorded per deployment, to compute quantiles over several deployments."""


def record_buckets(histogram: str, window: str = DEFAULT_WINDOW) -> str:
    """The name of the recording rule of a histogram's buckets: how many observations a second are in each."""
    return f"deployment:{histogram}_bucket:rate{window}"


def figure_key(name: str, labels: Mapping[str, str]) -> str:
    """A figure and its extra labels as text: `replica_count_by_status{status="active"}`; the bare name without any."""
    return format_series(name, make_labels(labels))


_KEY_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def parse_figure_key(key: str) -> tuple[str, Labels]:
    """The figure and its extra labels that `figure_key` wrote."""
    name, _, labels = key.partition("{")
    pairs = _KEY_LABEL.findall(labels)
    return name, make_labels((label, _ESCAPED.sub(_unescape, value)) for label, value in pairs)


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
