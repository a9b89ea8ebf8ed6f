"""The objectives that users are promised, and how fast an error budget may burn before an alert fires."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from servescope.contract.expressions import FractionAbove, Ratio, increase, rate
from servescope.contract.types import BurnWindow, Objective


def _percent(share: float) -> str:
    return f"{share * 100:.6g} %"


def latency_objective(name: str, goal: float, edges_seconds: tuple[float, ...]) -> Objective:
    """The objective of a latency: the share `goal` of requests, or of tokens, is within an edge of the histogram.

    Engines whose histogram lacks the first edge are held to the first of the others that they have.
    """
    title, metric, promise, counts = _LATENCY_OBJECTIVES[name]
    first, *others = edges_seconds
    within = f"{first:g} s"
    if others:
        within += f" ({' or '.join(f'{edge:g} s' for edge in others)} where the engine does not count that edge)"
    text = promise.format(goal=_percent(goal), edge=within)
    return Objective(name, title, goal, FractionAbove(first, metric, tuple(others)), text, counts)


def request_objective(goal: float) -> Objective:
    """The objective of requests: the share `goal` of them neither fails nor is refused."""
    bad = Ratio(rate("requests_total", outcome=("error", "rejected")), rate("requests_total"))
    promise = f"{_percent(goal)} of requests neither fail in the stack nor are refused by it"
    return Objective("requests", "Requests", goal, bad, promise)


_LATENCY_OBJECTIVES: Mapping[str, tuple[str, str, str, Literal["requests", "tokens"]]] = {
    "time_to_first_token": (
        "Time to first token", "time_to_first_token_seconds", "{goal} of requests have their first token within {edge}",
        "requests",
    ),
    "time_per_output_token": (
        "Time per output token", "time_per_output_token_seconds",
        "{goal} of requests take no longer per output token than {edge}", "requests",
    ),
    "inter_token_latency": (
        "Inter-token latency", "inter_token_latency_seconds",
        "{goal} of tokens after a request's first follow the one before within {edge}", "tokens",
    ),
}  # fmt: skip

INSTEAD_OF: Mapping[str, str] = MappingProxyType({"inter_token_latency": "time_per_output_token_seconds"})
"""An objective that is only for engines without this metric, which says more of a request."""

OBJECTIVES: Mapping[str, Objective] = MappingProxyType({
    objective.name: objective
    for objective in (
        latency_objective("time_to_first_token", 0.99, (2.5,)),
        latency_objective("time_per_output_token", 0.99, (0.1,)),
        latency_objective("inter_token_latency", 0.99, (0.12,)),
        request_objective(0.999),
    )
})  # fmt: skip
"""By name, with the edge of a latency that is wanted; `alerting.promises` has those that engines count."""

BASE_WINDOW = "5m"
"""Over which increases are recorded for objectives; windows longer than `LONGEST_READ` sum them."""

LONGEST_READ = "1h"
"""The longest window of an objective over which counters are read."""

OBJECTIVES_INTERVAL = "1m"
"""How often the rules of objectives are evaluated."""

ENDED = increase("requests_total")
"""The requests that ended within a window of an objective."""


def record_ended(window: str) -> str:
    """The name of the recording rule of `ENDED`."""
    return f"deployment:requests:increase{window}"


BURN_WINDOWS = (
    BurnWindow("critical", "5m", "1h", 14.4),
    BurnWindow("critical", "30m", "6h", 6.0),
    BurnWindow("warning", "2h", "1d", 3.0),
    BurnWindow("warning", "6h", "3d", 1.0),
)
"""Two percent of a 30-day budget within the hour, five within six hours, ten within a day, ten within three."""
