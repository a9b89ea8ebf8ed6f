"""How to read each figure: its normal values, and what to check otherwise; a figure's band says both."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.contract.types import Band

READINGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "request_rate": (
            "follows your traffic; compare with the same hour of another day.",
            "if it drops while clients keep sending, check the queued requests and the replicas.",
        ),
        "request_error_share": (
            "0, or a few in ten thousand.",
            "find the failing replica on the dashboard Engine and requests, then read its log.",
        ),
        "request_rejected_share": (
            "0 while there is capacity.",
            "check whether the autoscaler is at its limit, and the queued requests.",
        ),
        "client_abort_share": (
            "steady; it rises when answers become slow.",
            "compare with the time to first token: clients give up when they wait too long.",
        ),
        "client_error_share": (
            "steady and low.",
            "compare with the last change of a limit, of the gateway and of the clients.",
        ),
        "request_unended_share": (
            "near 0, above it while the traffic grows.",
            "if it stays above 0, requests hang: compare the requests in flight by replica.",
        ),
        "concurrent_requests": (
            "follows request rate × duration.",
            "if it grows at the same request rate, requests take longer: check the latency.",
        ),
        "queued_requests": (
            "near 0; short peaks are usual.",
            "if it keeps growing, check whether requests are processed at all, then the KV cache usage and the "
            "replicas.",
        ),
        "time_to_first_token_p50": (
            "steady for a given prompt length.",
            "check the queued requests and the input tokens.",
        ),
        "time_to_first_token_p95": (
            "a few times the median.",
            "check the queued requests, then prompt lengths and the cache hit rate.",
        ),
        "time_to_first_token_p99": (
            "a few times the 95th percentile at most.",
            "check the heatmap for a second band: a slow replica or very long prompts.",
        ),
        "time_per_output_token_p50": (
            "steady for a model and its hardware.",
            "check the requests in flight per replica.",
        ),
        "time_per_output_token_p95": (
            "up to twice the median.",
            "check the requests in flight per replica, preemptions and the speculation rate.",
        ),
        "inter_token_latency_p95": (
            "near the time per output token; higher if prefills interrupt decoding.",
            "check chunked prefill and prompt lengths.",
        ),
        "request_duration_p50": ("follows the length of answers.", "check the output tokens per request."),
        "request_duration_p95": (
            "follows the length of answers.",
            "compare the time to first token and the time per output token to find the slow phase.",
        ),
        "tps_per_request": (
            "steady for a model and its hardware; falls as more requests share a replica.",
            "check the requests in flight per replica and the speculation rate.",
        ),
        "input_tokens_per_second": (
            "follows traffic.",
            "if it is 0 while requests are queued, no request is served: check the engines.",
        ),
        "output_tokens_per_second": (
            "follows traffic.",
            "if it is 0 while requests are in flight, decoding is stuck: check the engines.",
        ),
        "input_tokens_per_request": (
            "depends on the traffic.",
            "if it changes, latency and autoscaling change as well.",
        ),
        "output_tokens_per_request": (
            "depends on the traffic.",
            "if it drops suddenly, check the share of answers that end at a limit.",
        ),
        "answer_truncated_share": (
            "steady; it depends on the limits that clients ask for.",
            "if it rises with the same clients, check the stack's own limits: the longest context and answer.",
        ),
        "spec_decode_accepted_tokens_per_draft": (
            "well above 0, and below the length of a draft.",
            "if it is near 0, drafts save nothing: check the speculation rate.",
        ),
        "spec_decode_accepted_tokens_per_second": (
            "decreases slowly from position 0 on.",
            "if late positions collapse, shorten the draft (max_draft_len).",
        ),
        "kv_cache_hit_rate": (
            "depends on model and traffic: watch its changes, not its level.",
            "if it drops, check the skew, replicas that were added or removed, and the mix of prompts.",
        ),
        "kv_cache_best_prefix_hit_rate": (
            "a little above the hit rate.",
            "if it is far above the hit rate, the router ignores cached prefixes: check the efficiency.",
        ),
        "kv_cache_usage": (
            "high under load, below 100 %.",
            "if it stays at 100 %, check preemptions; add replicas or KV cache.",
        ),
        "preemptions_rate": ("0.", "the KV cache is too small: lower the concurrency, or add replicas or KV cache."),
        "router_event_gap_rate": (
            "0.",
            "check the event stream between workers and router, and the state of the index.",
        ),
        "router_unreported_rate": ("0.", "check for workers that died or never answered."),
        "replica_count_by_status": (
            "as many active replicas as desired; other statuses only for a short time.",
            "read the last log lines of failed replicas; for slow starts check images and weights.",
        ),
        "autoscaler_in_flight_tokens": ("follows traffic.", "compare with the target per replica × replicas."),
        "autoscaler_avg_in_flight_tokens": ("the same, smoothed.", "decisions are based on this value."),
        "autoscaler_avg_num_requests": ("follows traffic.", "compare with the requests in flight of the engines."),
        "autoscaler_avg_num_workers": ("equals active replicas.", "if it is lower, check for unhealthy replicas."),
        "autoscaler_desired_scale": (
            "within the bounds of the deployment.",
            "if it stays above the scale sent, the upper bound limits it: raise max_replica.",
        ),
        "autoscaler_policy_desired_scale": (
            "near the raw one.",
            "it is above the raw one while scaling down slowly, as intended.",
        ),
        "autoscaler_rounded_desired_scale": (
            "equals active replicas.",
            "if replicas do not follow within minutes, check the orchestrator's capacity.",
        ),
        "autoscaler_phase_in_flight_tokens": (
            "follows traffic; prompts count for prefill, answers for decode.",
            "if one phase grows alone, add workers to it.",
        ),
        "autoscaler_phase_desired_scale": (
            "about the same for both phases; the larger is the desired scale.",
            "if one phase stays far above the other, change how many workers of each a unit has.",
        ),
        "kv_transfer_p95": (
            "steady for a prompt length and a link.",
            "check the link between prefill and decode workers, then prompt lengths.",
        ),
        "kv_transfer_wait_p95": (
            "near 0.",
            "if it grows, decode workers are full: check their KV cache and requests in flight.",
        ),
        "kv_transfers_pending": (
            "near 0.",
            "if it grows, check the KV transfer wait and the free KV cache of the decode workers.",
        ),
        "kv_transfer_bytes_per_second": ("follows input tokens.", "compare with the bandwidth of the link."),
        "cpu_usage": ("well below the limit.", "check tokenization and the router's process."),
        "memory_usage": ("steady after the start.", "if it keeps growing, look for a memory leak and plan a restart."),
        "gpu_usage": (
            "high under load.",
            "if it is low while requests are queued, find out what the engine waits for.",
        ),
        "gpu_memory_usage": ("steady after the start.", "compare with the share reserved for the KV cache."),
        "gpu_error_rate": (
            "0.",
            "find the GPU by its replica, drain it, and have its machine checked; errors that repeat need a new GPU.",
        ),
        "gpu_last_error": (
            "0, or a code that has been there for long.",
            "look the code up in NVIDIA's list of XID errors: 48, 63, 64, 74, 79, 94 and 95 are of the hardware, 13, "
            "31 and 43 most often of the program.",
        ),
    }
)


def read_figure(name: str, band: Band | None) -> tuple[str, str]:
    """A figure's normal values, and what to check otherwise."""
    return _read_band(band) if band is not None else READINGS[name]


def _read_band(band: Band) -> tuple[str, str]:
    starts = ["", *(f"{'from' if step.inclusive else 'above'} {_percent(step.start)}" for step in band.steps)]
    ends = [*(f"{'below' if step.inclusive else 'up to'} {_percent(step.start)}" for step in band.steps), ""]
    ratings = [band.lowest, *(step.rating for step in band.steps)]
    spans = [
        (", ".join(filter(None, (start, end))), rating)
        for start, end, rating in zip(starts, ends, ratings, strict=True)
    ]
    usual = "; ".join(f"{span} ({rating.label})" for span, rating in spans if rating.status == "good")
    advice = "\n".join(
        f"- {span} ({rating.label}): {rating.advice}" for span, rating in spans if rating.status != "good"
    )
    return f"{usual}.", f"depending on the value:\n{advice}"


def _percent(share: float) -> str:
    return f"{share * 100:g} %".replace("-", "−")
