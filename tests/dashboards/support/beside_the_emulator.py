"""What an eventful hour has beside the emulated stack: a judge, the configured split, and other sources, made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from servescope.contract.identity import NEW_STACK, OLD_STACK
from servescope.cutover.judgement import VERDICTS
from tests.support.filled_prometheus import SCRAPE_SECONDS, START_SECONDS

_MODEL: Final = {"model_name": "llama-3.3-70b", "environment": "production"}
_NEW: Final = {**_MODEL, "deployment_id": "chat-v2", "inference_stack": NEW_STACK}
# The minute from which v2 is to have a share, and that share.
_PLANNED: Final = ((5, 0.10), (15, 0.25), (35, 0.50))
_PLAN: Final = {"plan": "chat", **_NEW}

# Each metric of the judgement: its ratio in healthy times, and while the draft is misaligned; and in how many minutes
# a stage gathers the information that it takes.
_RATIOS: Final[Mapping[str, tuple[float, float, float]]] = MappingProxyType(
    {
        "time_to_first_token_seconds": (0.62, 0.78, 9),
        "time_per_output_token_seconds": (0.55, 1.02, 7),
        "request_duration_seconds": (0.57, 0.98, 10),
        "tps_per_request": (1.85, 0.97, 8),
        "request_error_share": (1.03, 1.10, 12),
        "request_rejected_share": (0.96, 1.01, 14),
    }
)
_WORSE: Final = ("HEALTHY", "INCONCLUSIVE", "DEGRADED")
_JUDGED_MINUTE: Final = 8
_MISALIGNED: Final = (12, 36)


def beside_the_emulator(seconds: int, second: Callable[[int], int]) -> Iterator[bytes]:
    """The series, scrape by scrape; `second` is that of a minute of the hour."""
    drops = fallbacks = 0.0
    reused = dict.fromkeys(_HIT_RATES, 0.0)
    for after in range(SCRAPE_SECONDS, seconds + 1, SCRAPE_SECONDS):
        minute = (after - second(0)) / 60
        if 40 <= minute < 46:
            drops, fallbacks = drops + 12, fallbacks + 3
        for replica, (rate, cold) in _HIT_RATES.items():
            reused[replica] += SCRAPE_SECONDS * _PROMPT_TOKENS * (cold if 25 <= minute < 37 else rate)
        yield b"".join(
            _line(name, labels, value, after)
            for name, labels, value in (
                *_judged(minute),
                *_processes(after),
                ("router_index_events_dropped_total", {**_NEW, "replica": "router-0", "role": "router"}, drops),
                (
                    "router_fallbacks_total",
                    {**_NEW, "replica": "router-0", "role": "router", "reason": "stale index"},
                    fallbacks,
                ),
                *_hits(after, reused),
            )
        )


_Series = tuple[str, Mapping[str, str], float]


def _line(name: str, labels: Mapping[str, str], value: float, after: int) -> bytes:
    text = ",".join(f'{label}="{each}"' for label, each in labels.items())
    return f"{name}{{{text}}} {value} {START_SECONDS + after}\n".encode()


# Replicas that report their hits themselves: the share that each reuses, and while one of them is cold.
_HIT_RATES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {"engine-0": (0.71, 0.70), "engine-1": (0.68, 0.66), "engine-2": (0.73, 0.31)}
)
_PROMPT_TOKENS: Final = 2400.0


def _hits(after: int, reused: Mapping[str, float]) -> Iterator[_Series]:
    for replica, tokens in reused.items():
        labels = {**_MODEL, "deployment_id": "batch-v1", "inference_stack": OLD_STACK, "replica": replica}
        yield "kv_cache_eligible_tokens_total", labels, after * _PROMPT_TOKENS
        yield "kv_cache_reused_tokens_total", labels, round(tokens, 3)


def _processes(after: int) -> Iterator[_Series]:
    for number, (deployment, stack) in enumerate((("chat-v1", OLD_STACK), ("agents-v2", NEW_STACK))):
        labels = {**_MODEL, "deployment_id": deployment, "inference_stack": stack, "replica": "engine-host"}
        wave = after % 600 / 600
        yield "cpu_usage", labels, 3.5 + number + wave
        yield "memory_usage", labels, (24 + 6 * number + wave / 2) * 2**30


def _judged(minute: float) -> Iterator[_Series]:
    planned = max((share for since, share in _PLANNED if minute >= since), default=0.0)
    for stack, share in ((OLD_STACK, 1 - planned), (NEW_STACK, planned)):
        yield "servescope_configured_traffic_ratio", {**_MODEL, "inference_stack": stack}, share
    if minute < _JUDGED_MINUTE:
        return
    stage = sum(1 for since, _ in _PLANNED if minute >= since)
    within = minute - max(since for since, _ in _PLANNED if minute >= since)
    worst = max((_verdict_of(metric, minute, within) for metric in _RATIOS), key=_WORSE.index)
    for verdict in VERDICTS:
        yield "servescope_judgement", {**_PLAN, "verdict": verdict}, float(verdict == worst)
    yield "servescope_judgement_stage", _PLAN, stage
    yield "servescope_judgement_stages", _PLAN, 4
    yield "servescope_judgement_age_seconds", _PLAN, 15 + 60 * minute % 60
    yield "servescope_judgement_planned_share_ratio", _PLAN, planned
    yield "servescope_judgement_observed_share_ratio", _PLAN, planned * (0.93 + 0.1 * min(within / 12, 1.0))
    for metric in _RATIOS:
        yield from _of_metric(metric, minute, within)


def _of_metric(metric: str, minute: float, within: float) -> Iterator[_Series]:
    labels = {**_PLAN, "metric": metric}
    ratio, gathered = _ratio(metric, minute), _gathered(metric, within)
    wide = 0.28 - 0.2 * gathered
    found = _verdict_of(metric, minute, within)
    for verdict in VERDICTS:
        yield "servescope_judgement_metric_verdict", {**labels, "verdict": verdict}, float(verdict == found)
    yield "servescope_judgement_metric_ratio", labels, ratio
    yield "servescope_judgement_metric_ratio_low", labels, ratio * (1 - wide)
    yield "servescope_judgement_metric_ratio_high", labels, ratio * (1 + wide)
    yield (
        "servescope_judgement_metric_margin_ratio",
        labels,
        1.0 if metric.startswith("request_") and metric.endswith("_share") else 0.1,
    )
    yield "servescope_judgement_metric_information_ratio", labels, gathered


def _ratio(metric: str, minute: float) -> float:
    well, ill, _ = _RATIOS[metric]
    first, last = _MISALIGNED
    return ill if first <= minute < last else well


def _gathered(metric: str, within: float) -> float:
    return min(within / _RATIOS[metric][2], 1.0)


def _verdict_of(metric: str, minute: float, within: float) -> str:
    if metric == "tps_per_request" and 20 <= minute < 40:
        return "DEGRADED"
    return "HEALTHY" if _gathered(metric, within) > 0.8 else "INCONCLUSIVE"
