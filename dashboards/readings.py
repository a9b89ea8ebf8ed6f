"""How each figure is read: what is usual, and what to look at first. Where a figure has a band, the band says it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.contract.types import Band

READINGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "request_rate": (
            "follows your traffic; compare with the same hour of another day.",
            "if it falls while clients still send, look at queued requests and at replicas.",
        ),
        "request_error_share": (
            "0, or a few in ten thousand.",
            "find the replica that fails on the engine dashboard, then read its log.",
        ),
        "request_rejected_share": (
            "0 while there is capacity.",
            "look whether the autoscaler stands at its limit, and at queued requests.",
        ),
        "client_abort_share": (
            "steady; it rises when answers become slow.",
            "compare with the time to first token: clients that wait too long leave.",
        ),
        "concurrent_requests": (
            "follows traffic times duration.",
            "if it grows at the same request rate, requests take longer: look at latency.",
        ),
        "queued_requests": (
            "near 0; short peaks are usual.",
            "if it keeps growing, look whether requests run at all, then at KV cache in use and replicas.",
        ),
        "time_to_first_token_p50": ("steady for a given prompt length.", "look at queued requests and input tokens."),
        "time_to_first_token_p95": (
            "a few times the median.",
            "look at queued requests, then at prompt lengths and the cache hit rate.",
        ),
        "time_to_first_token_p99": (
            "a few times the 95th percentile at most.",
            "look at the heatmap for a second mode: a slow replica or very long prompts.",
        ),
        "time_per_output_token_p50": ("steady for a model and its hardware.", "look at requests in flight a replica."),
        "time_per_output_token_p95": (
            "up to twice the median.",
            "look at requests in flight a replica, preemptions and the speculation rate.",
        ),
        "inter_token_latency_p95": (
            "near the time per output token; higher where prefills interrupt decoding.",
            "look at chunked prefill and prompt lengths.",
        ),
        "request_duration_p50": ("follows the length of answers.", "look at output tokens per request."),
        "request_duration_p95": (
            "follows the length of answers.",
            "tell by time to first token and time per output token which phase became slow.",
        ),
        "tps_per_request": (
            "steady for a model and its hardware; falls as more requests share a replica.",
            "look at requests in flight a replica and at the speculation rate.",
        ),
        "input_tokens_per_second": ("follows traffic.", "if it is 0 while requests are queued, nothing is served."),
        "output_tokens_per_second": ("follows traffic.", "if it is 0 while requests are in flight, decoding hangs."),
        "input_tokens_per_request": ("a matter of the traffic.", "if it changes, latency and autoscaling change too."),
        "output_tokens_per_request": ("a matter of the traffic.", "a sudden fall can mean truncated answers."),
        "spec_decode_accepted_tokens_per_second": (
            "falls gently from position 0 on.",
            "where late positions collapse, shorten the draft (max_draft_len).",
        ),
        "kv_cache_hit_rate": (
            "by model and traffic: watch its change, not its level.",
            "if it drops, look at skew, at replicas that came or went, and at the mix of prompts.",
        ),
        "kv_cache_best_prefix_hit_rate": (
            "a little above the hit rate.",
            "if it is far above the hit rate, the router passes over cached prefixes: look at efficiency.",
        ),
        "kv_cache_usage": (
            "high under load, below 100 %.",
            "where it stays at 100 %, look at preemptions and add replicas or KV cache.",
        ),
        "preemptions_rate": ("0.", "KV cache is short: lower concurrency, add replicas or KV cache."),
        "router_event_gap_rate": ("0.", "look at the event stream between workers and router, and the index's state."),
        "router_unreported_rate": ("0.", "look for workers that died or never answered."),
        "replica_count_by_status": (
            "active replicas equal the desired scale; others only for a short time.",
            "look at the failed replicas' last log lines; for those that start for long, at images and weights.",
        ),
        "autoscaler_in_flight_tokens": ("follows traffic.", "compare with the target of one replica times replicas."),
        "autoscaler_avg_in_flight_tokens": ("the same, smoothed.", "this is the value decisions are made of."),
        "autoscaler_avg_num_requests": ("follows traffic.", "compare with requests in flight of the engines."),
        "autoscaler_avg_num_workers": ("equals active replicas.", "look at unhealthy replicas where it is lower."),
        "autoscaler_desired_scale": (
            "within the bounds of the deployment.",
            "above the scale sent for long: the limit holds it back, raise max_replica.",
        ),
        "autoscaler_policy_desired_scale": ("near the raw one.", "above it while scaling down slowly, which is meant."),
        "autoscaler_rounded_desired_scale": (
            "equals active replicas.",
            "if replicas do not follow within minutes, look at the orchestrator's capacity.",
        ),
        "autoscaler_phase_in_flight_tokens": (
            "follows traffic; prompts make prefill's, answers decode's.",
            "the phase that grows alone is the one to give workers.",
        ),
        "autoscaler_phase_desired_scale": (
            "about the same for both phases; the larger is the desired scale.",
            "if one phase stays far above the other, change how many workers of each a unit has.",
        ),
        "kv_transfer_p95": (
            "steady for a prompt length and a link.",
            "look at the link between prefill and decode workers, then at prompt lengths.",
        ),
        "kv_transfer_wait_p95": (
            "near 0.",
            "decode workers have no room: look at their KV cache and requests in flight.",
        ),
        "kv_transfers_pending": ("near 0.", "look at the wait for transfers and at room on decode workers."),
        "kv_transfer_bytes_per_second": ("follows input tokens.", "compare with what the link can carry."),
        "cpu_usage": ("well below the limit.", "look at tokenisation and the router's process."),
        "memory_usage": ("steady after the start.", "if it keeps growing, plan a restart and look for a leak."),
        "gpu_usage": ("high under load.", "if it is low while requests are queued, the engine waits for something."),
        "gpu_memory_usage": ("steady after the start.", "compare with the share given to the KV cache."),
    }
)


def read_figure(name: str, band: Band | None) -> tuple[str, str]:
    """What is usual of a figure, and what to do first when it is not."""
    return _read_band(band) if band is not None else READINGS[name]


def _read_band(band: Band) -> tuple[str, str]:
    starts = ["", *(f"{'from' if step.inclusive else 'above'} {_percent(step.start)}" for step in band.steps)]
    ends = [*(f"{'below' if step.inclusive else 'up to'} {_percent(step.start)}" for step in band.steps), ""]
    verdicts = [band.lowest, *(step.verdict for step in band.steps)]
    spans = [
        (", ".join(filter(None, (start, end))), verdict)
        for start, end, verdict in zip(starts, ends, verdicts, strict=True)
    ]
    usual = "; ".join(f"{span} ({verdict.label})" for span, verdict in spans if verdict.status == "good")
    advice = "\n".join(
        f"- {span} ({verdict.label}): {verdict.advice}" for span, verdict in spans if verdict.status != "good"
    )
    return f"{usual}.", f"by where it stands:\n{advice}"


def _percent(share: float) -> str:
    return f"{share * 100:g} %".replace("-", "−")
