"""The numbers from traffic for a person, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from servescope.contract.judged import IN_FLIGHT_TOKENS_PER_WORKER
from servescope.increments.blocks import BLOCK_MS
from servescope.migration.traffic.in_flight import MARGIN, TokenBand
from servescope.migration.traffic.simulation import TargetSimulation
from servescope.migration.traffic.token_target import SizeSummary, TokenTargets
from servescope.migration.traffic.traffic import Floats
from servescope.settings.json_schema import closed_object
from servescope.settings.values import format_instant, format_percent

_SIZES: Final = {
    "input_tokens_per_request": ("prompt", "tokens"),
    "output_tokens_per_request": ("output", "tokens"),
    "request_duration_seconds": ("duration", "s"),
    "time_to_first_token_seconds": ("first token", "s"),
}


def describe_targets(numbers: TokenTargets) -> str:
    """The numbers from traffic, in lines."""
    return "\n".join(_describe(numbers)) + "\n"


def targets_json(numbers: TokenTargets) -> dict[str, Any]:
    """The numbers from traffic as `migration_schema` describes them; null is what is not known."""
    traffic = numbers.traffic
    return {
        "deployment": traffic.name,
        "start": format_instant(traffic.start_ms),
        "end": format_instant(traffic.end_ms),
        "known_hours": numbers.known_hours,
        "request_rate": _number(traffic.request_rate()),
        "sizes": {name: asdict(each) for name, each in numbers.sizes.items()},
        "tokens_per_request": numbers.tokens_per_request,
        "concurrency": _mean(numbers.tokens.concurrency),
        "replicas": _mean(traffic.replicas),
        "in_flight_tokens": {
            "margin": MARGIN,
            "per_request": asdict(numbers.tokens.per_request),
            "mean": asdict(numbers.tokens.mean()),
            "per_replica": {f"p{100 * share:g}": asdict(band) for share, band in numbers.per_replica.items()},
        },
        "documented": {
            "range": list(IN_FLIGHT_TOKENS_PER_WORKER),
            "formula": asdict(numbers.formula) if numbers.formula is not None else None,
        },
        "capacity": asdict(numbers.capacity),
        "blocks": {
            "start": [int(each) for each in traffic.blocks],
            "in_flight_tokens": {name: _numbers(getattr(numbers.tokens, name)) for name in ("low", "estimate", "high")},
            "concurrency": _numbers(numbers.tokens.concurrency),
        },
        "served": _simulation_json(numbers.served),
        "simulations": [_simulation_json(each) for each in numbers.simulations],
        "recommended": {
            **asdict(numbers.recommendation),
            "band": asdict(numbers.recommended_band),
            "replica_hours": [each.replica_hours for each in numbers.uncertain],
        },
        "notes": list(numbers.notes),
    }


def _describe(numbers: TokenTargets) -> Iterator[str]:
    traffic, tokens = numbers.traffic, numbers.tokens
    yield (
        f"What {traffic.name} served from {format_instant(traffic.start_ms)} to {format_instant(traffic.end_ms)}, "
        f"{numbers.known_hours:.1f} hours of which are known:"
    )
    rate = traffic.request_rate()
    shown = f"{rate:.2f} requests a second" if math.isfinite(rate) else "requests are not counted"
    yield (
        f"  {shown}; {np.nanmean(tokens.concurrency):.1f} in flight on average, {np.nanmax(tokens.concurrency):.1f} "
        f"in the busiest five minutes; {np.nanmean(traffic.replicas):.1f} replicas"
    )
    for name, (title, unit) in _SIZES.items():
        if name in numbers.sizes:
            yield f"  {title}: {_describe_size(numbers.sizes[name], unit)}"
    yield (
        f"  tokens in flight: {_band(tokens.mean())} on average, {_band(tokens.per_request)} for each request in flight"
    )
    for share, band in numbers.per_replica.items():
        yield f"    of a replica, in {format_percent(share)} of the time up to: {_band(band)}"
    yield "    v1 does not report them. They are a band because histograms do not say which sizes had which durations:"
    yield "    its bounds are the extreme ways to couple them, with the requests in flight as they are reported and as"
    yield f"    they follow from durations. Where sizes hardly vary, that is ±{format_percent(MARGIN)}, and more for"
    yield "    few requests. Tokens are assumed to come at a steady pace."
    yield ""
    yield "  target_in_flight_tokens:"
    low, high = IN_FLIGHT_TOKENS_PER_WORKER
    yield f"    documented: {low:,.0f} to {high:,.0f} to begin with [S1]"
    formula = numbers.formula
    if formula is not None:
        yield (
            f"    documented formula: {formula.concurrency_target:g} × {formula.tokens_per_request:,.0f} tokens per "
            f"request = {formula.target:,} [S1]; nine times out of ten, so many requests have {formula.low:,.0f} to "
            f"{formula.high:,.0f} tokens"
        )
    else:
        yield (
            f"    documented formula: concurrency_target × {numbers.tokens_per_request:,.0f} tokens per request "
            "(--concurrency-target) [S1]"
        )
    yield ""
    yield from _describe_table(numbers)
    yield ""
    chosen = numbers.recommendation
    yield f"  {'Recommended' if chosen.is_met else 'No good target'}: {chosen.target:,}, {chosen.reason}."
    band = numbers.recommended_band
    first, last = (each.replica_hours for each in numbers.uncertain)
    yield (
        f"    At the bounds of the band, {band.low:,.0f} and {band.high:,.0f} have the same effect; {chosen.target:,} "
        f"itself takes {first:,.1f} to {last:,.1f} replica-hours there."
    )
    yield "    Watch autoscaler_in_flight_tokens of v2's first replicas against it, and move the target by it."
    yield from (f"  note: {note}" for note in numbers.notes)


def _describe_table(numbers: TokenTargets) -> Iterator[str]:
    has_gpus = numbers.capacity.gpus is not None
    hours = "GPU-hours" if has_gpus else "replica-hours"
    yield (
        f"  {'target':>9} {'replicas':>11} {hours:>13} {'at max':>7} {'beyond':>7} {'caches lost':>12} "
        f"{'95 % below':>11}"
    )
    for each in (numbers.served, *numbers.simulations):
        name = "v1 was" if each.target is None else f"{each.target:,.0f}"
        cost = each.gpu_hours if each.gpu_hours is not None else each.replica_hours
        replicas = f"{np.nanmean(each.replicas):.1f} ({np.nanmin(each.replicas):.0f}–{np.nanmax(each.replicas):.0f})"
        yield (
            f"  {name:>9} {replicas:>11} {cost:>13,.1f} {each.at_maximum_share:>7.0%} {each.beyond_share:>7.2%} "
            f"{each.stopped:>12} {each.most_tokens:>11,.0f}"
        )
    yield "  beyond: share of the requests in flight beyond what the replicas carry at once; 95 % below: tokens of a"
    yield "  replica; by means of five minutes, so that shorter peaks are not seen"


def _describe_size(size: SizeSummary, unit: str) -> str:
    if unit == "s":
        return f"{size.mean:.2f} s on average, median {size.p50:.2f}, 90 % {size.p90:.2f}, 99 % {size.p99:.2f}"
    return f"{size.mean:,.0f} {unit} on average, median {size.p50:,.0f}, 90 % {size.p90:,.0f}, 99 % {size.p99:,.0f}"


def _band(band: TokenBand) -> str:
    return f"about {band.estimate:,.0f} (between {band.low:,.0f} and {band.high:,.0f})"


def _simulation_json(simulation: TargetSimulation) -> dict[str, Any]:
    return {
        "target": simulation.target,
        "max_replica": simulation.max_replica,
        "replica_hours": simulation.replica_hours,
        "gpu_hours": simulation.gpu_hours,
        "at_maximum_share": simulation.at_maximum_share,
        "beyond_share": simulation.beyond_share,
        "started": simulation.started,
        "stopped": simulation.stopped,
        "usual_tokens_per_replica": simulation.usual_tokens,
        "most_tokens_per_replica": simulation.most_tokens,
        "replicas": _numbers(simulation.replicas),
        "beyond": _numbers(simulation.beyond),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(values: Floats) -> list[float | None]:
    return [_number(each) for each in values.tolist()]


def _mean(values: Floats) -> float | None:
    return _number(float(np.nanmean(values)))


# --- The schema -------------------------------------------------------------------------------------------------------


def targets_schema() -> dict[str, Any]:
    """The JSON Schema of `targets_json`."""
    text, number, count = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
    maybe = {"type": ["number", "null"]}
    series = {"type": "array", "items": maybe}
    band = closed_object({"low": number, "estimate": number, "high": number})
    size = closed_object(dict.fromkeys(("count", "mean", "p50", "p90", "p99"), number))
    formula = closed_object({
        "concurrency_target": number, "tokens_per_request": number, "target": count, "low": number, "high": number,
    })  # fmt: skip
    simulation = closed_object({
        "target": {**maybe, "description": "null of what v1 did."},
        "max_replica": count, "replica_hours": number, "gpu_hours": maybe, "at_maximum_share": number,
        "beyond_share": {**number, "description": "Of the requests in flight, those that replicas do not carry."},
        "started": count,
        "stopped": {**count, "description": "Replicas that were stopped, each with its cache."},
        "usual_tokens_per_replica": number,
        "most_tokens_per_replica": {**number, "description": "Not exceeded in 95 % of the time."},
        "replicas": series, "beyond": series,
    })  # fmt: skip
    return closed_object({
        "deployment": text, "start": text, "end": text, "known_hours": number, "request_rate": maybe,
        "sizes": {"type": "object", "additionalProperties": size, "description": "By metric."},
        "tokens_per_request": number, "concurrency": maybe, "replicas": maybe,
        "in_flight_tokens": closed_object({
            "margin": {**number, "description": "The share by which the bounds of a block go beyond its hour's."},
            "per_request": band, "mean": band, "per_replica": {"type": "object", "additionalProperties": band},
        }),
        "documented": closed_object({
            "range": {"type": "array", "items": number}, "formula": {"anyOf": [formula, {"type": "null"}]},
        }),
        "capacity": closed_object({"requests": number, "tokens": maybe, "start_seconds": number, "gpus": maybe}),
        "blocks": {
            **closed_object({
                "start": {"type": "array", "items": count},
                "in_flight_tokens": closed_object({"low": series, "estimate": series, "high": series}),
                "concurrency": series,
            }),
            "description": f"By block of {BLOCK_MS // 1000} seconds, starts in milliseconds; null is not known.",
        },
        "served": simulation,
        "simulations": {"type": "array", "items": simulation},
        "recommended": closed_object({
            "target": count, "reason": text, "is_met": {"type": "boolean"}, "band": band,
            "replica_hours": {"type": "array", "items": number, "description": "At both bounds of the band."},
        }),
        "notes": {"type": "array", "items": text},
    })  # fmt: skip
