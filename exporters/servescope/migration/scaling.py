"""How many replicas the autoscalers of the two stacks want: pure policies, which the emulator and simulations share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from servescope.contract.judged import IN_FLIGHT_TOKENS_PER_WORKER
from servescope.errors import UsageError
from servescope.migration.fields.llm_config import AUTOSCALING, AUTOSCALING_SETTINGS

MOST_REPLICAS = 1000
"""How many replicas a deployment may have; each is emulated whole, in the memory of one process."""


class SlidingWindow:
    """The values of the last `seconds`, taken at even intervals, and in any case the last one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, value: float) -> None:
        """Add a value, and drop those that are too old."""
        self._values.append((now, value))
        self._sum += value
        while self._values[0][0] <= now - self._seconds and len(self._values) > 1:
            self._sum -= self._values.popleft()[1]

    def mean(self) -> float:
        """The mean of the values; there must be one. Of whole numbers it is exact."""
        return self._sum / len(self._values)

    def highest(self) -> float:
        """The highest of the values; there must be one."""
        return max(value for _, value in self._values)


@dataclass(frozen=True, slots=True)
class TokenScaling:
    """How v2 scales: the documented names and defaults; times in seconds.

    `target_in_flight_tokens` is per worker. Where prefill and decode have workers of their own it is that of both,
    unless `prefill_target_in_flight_tokens` (ours) gives prefill another.
    """

    target_in_flight_tokens: float = IN_FLIGHT_TOKENS_PER_WORKER[0]
    min_replica: int = AUTOSCALING_SETTINGS.keys["min_replica"].default
    max_replica: int = 8
    initial_replicas: int = AUTOSCALING_SETTINGS.keys["min_replica"].default
    autoscaling_window: float = AUTOSCALING_SETTINGS.keys["autoscaling_window"].default
    scale_down_delay: float = AUTOSCALING_SETTINGS.keys["scale_down_delay"].default
    scale_down_half_life_seconds: float = AUTOSCALING.keys["scale_down_half_life_seconds"].default
    prefill_target_in_flight_tokens: float | None = None

    def __post_init__(self) -> None:
        if self.prefill_target_in_flight_tokens is not None:
            _check_positive(self, ["prefill_target_in_flight_tokens"])
        _check_bounds(self.min_replica, self.initial_replicas, self.max_replica)
        _check_positive(self, ["target_in_flight_tokens", "autoscaling_window", "scale_down_half_life_seconds"])
        _check_delay(self.scale_down_delay)


class TokenDecision(NamedTuple):
    """What v2's policy makes of a desired scale: within its bounds, and rounded to whole replicas."""

    policy: float
    replicas: int


class TokenPolicy:
    """v2's policy: up at once; down only to the most that was desired within the scale-down delay, and no faster than
    the half-life lets the count decay.
    """

    def __init__(self, scaling: TokenScaling) -> None:
        self._scaling = scaling
        self._wanted = SlidingWindow(scaling.scale_down_delay)
        self._wanted.add(0.0, scaling.initial_replicas)
        self._policy = float(scaling.initial_replicas)
        self._decided_at = 0.0

    def decide(self, now: float, desired: float, most_replicas: int | None = None) -> TokenDecision:
        """The replicas for a desired scale, at even intervals of seconds; `most_replicas` replaces the upper bound."""
        self._wanted.add(now, desired)
        decay = 0.5 ** ((now - self._decided_at) / self._scaling.scale_down_half_life_seconds)
        self._decided_at = now
        self._policy = _bound(max(self._wanted.highest(), self._policy * decay), self._scaling, most_replicas)
        return TokenDecision(self._policy, int(_bound(_round_up(self._policy), self._scaling, most_replicas)))


@dataclass(frozen=True, slots=True)
class ConcurrencyScaling:
    """How v1 scales: the documented names and defaults; times in seconds, utilisation in percent."""

    concurrency_target: float = 16
    target_utilization_percentage: float = 45
    min_replica: int = 1
    max_replica: int = 8
    initial_replicas: int = 1
    autoscaling_window: float = 60.0
    scale_down_delay: float = 900.0

    def __post_init__(self) -> None:
        _check_bounds(self.min_replica, self.initial_replicas, self.max_replica)
        _check_positive(self, ["concurrency_target", "target_utilization_percentage", "autoscaling_window"])
        _check_delay(self.scale_down_delay)


class ConcurrencyPolicy:
    """v1's policy: so many replicas that each has its target of requests in flight, on average over the window.

    Up at once; down only to the most it wanted within the scale-down delay, by at most half of the replicas, and then
    not again before the delay is over once more.
    """

    def __init__(self, scaling: ConcurrencyScaling) -> None:
        self._scaling = scaling
        self._requests = SlidingWindow(scaling.autoscaling_window)
        self._wanted = SlidingWindow(scaling.scale_down_delay)
        self._wanted.add(0.0, scaling.initial_replicas)
        self._replicas = scaling.initial_replicas
        self._next_step_at = 0.0

    def decide(self, now: float, requests: float, most_replicas: int | None = None) -> int:
        """The replicas for so many requests in flight, at even intervals of seconds."""
        self._requests.add(now, requests)
        per_replica = self._scaling.concurrency_target * self._scaling.target_utilization_percentage / 100
        self._wanted.add(now, _round_up(self._requests.mean() / per_replica))
        self._step(now, int(_bound(self._wanted.highest(), self._scaling, None)))
        return int(_bound(self._replicas, self._scaling, most_replicas))

    def _step(self, now: float, wanted: int) -> None:
        if wanted >= self._replicas:
            self._replicas = wanted
        elif now >= self._next_step_at:
            # Of an odd number, the smaller half is stopped.
            self._replicas = max(wanted, self._replicas - max(self._replicas // 2, 1))
            self._next_step_at = now + self._scaling.scale_down_delay


def _check_bounds(lowest: int, initial: int, highest: int) -> None:
    if not 1 <= lowest <= initial <= highest:
        raise UsageError(
            f"min_replica {lowest!r}, initial_replicas {initial!r}, max_replica {highest!r}: expected 1 <= min <= "
            "initial <= max"
        )
    if highest > MOST_REPLICAS:
        raise UsageError(f"max_replica is {highest!r}, expected {MOST_REPLICAS} at most")


def _check_positive(parameters: object, names: Sequence[str]) -> None:
    for name in names:
        if not 0 < getattr(parameters, name) < math.inf:
            raise UsageError(f"{name} is {getattr(parameters, name)!r}, expected a number above 0")


def _check_delay(seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise UsageError(f"scale_down_delay is {seconds!r}, expected a number of 0 or more")


def _round_up(replicas: float) -> int:
    """The next whole number, forgiving what floating point adds to one."""
    return math.ceil(replicas - 1e-9)


def _bound(replicas: float, scaling: TokenScaling | ConcurrencyScaling, most: int | None) -> float:
    """The number within the bounds; an upper bound below the lower one wins."""
    highest = scaling.max_replica if most is None else most
    return min(max(replicas, scaling.min_replica), highest)
