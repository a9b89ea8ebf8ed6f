"""The objectives that users are promised, and how fast an error budget may burn before an alert fires."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.contract.expressions import FractionAbove, Ratio, rate
from servescope.contract.types import BurnWindow, Objective


def _percent(share: float) -> str:
    return f"{share * 100:.6g} %"


def latency_objective(name: str, goal: float, edge_seconds: float) -> Objective:
    """The objective of a latency: the share `goal` of requests is within an edge of the histogram."""
    title, metric, promise = _LATENCY_OBJECTIVES[name]
    text = promise.format(goal=_percent(goal), edge=f"{edge_seconds:g} s")
    return Objective(name, title, goal, FractionAbove(edge_seconds, metric), text)


def request_objective(goal: float) -> Objective:
    """The objective of requests: the share `goal` of them neither fails nor is refused."""
    bad = Ratio(rate("requests_total", outcome=("error", "rejected")), rate("requests_total"))
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

BURN_WINDOWS = (
    BurnWindow("critical", "5m", "1h", 14.4),
    BurnWindow("critical", "30m", "6h", 6.0),
    BurnWindow("warning", "2h", "1d", 3.0),
    BurnWindow("warning", "6h", "3d", 1.0),
)
"""Two percent of a 30-day budget within the hour, five within six hours, ten within a day, ten within three."""
