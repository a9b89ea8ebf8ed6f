"""A tiny token-based autoscaler with the instruments in it: `python -m examples.autoscaler`.

It scales on tokens in flight, averaged over a window, and shows each stage of its decision, so that a gap between what
it wants and what there is can be seen. Time here is a count of evaluations.
"""

from __future__ import annotations

import math
import random
import sys
from collections import deque

from servescope import AutoscalerInstruments, Identity
from servescope.exposition.rendering import render

TARGET_IN_FLIGHT_TOKENS = 50_000
MIN_REPLICA, MAX_REPLICA = 1, 8
WINDOW = 10
STARTING_FOR = 3
HALF_LIFE = 15.0
"""All in evaluations."""


class TinyAutoscaler:
    """Follows need upwards at once, and downwards by half in every half-life."""

    def __init__(self, instruments: AutoscalerInstruments) -> None:
        self._instruments = instruments
        self._tokens: deque[float] = deque(maxlen=WINDOW)
        self._requests: deque[float] = deque(maxlen=WINDOW)
        self._workers: deque[int] = deque(maxlen=WINDOW)
        self._policy = float(MIN_REPLICA)
        self._active = MIN_REPLICA
        self._starting: list[int] = []

    def evaluate(self, in_flight_tokens: float, requests: int) -> int:
        """Decide once; returns the number of replicas sent to the orchestrator."""
        self._start_replicas()
        self._tokens.append(in_flight_tokens)
        self._requests.append(requests)
        self._workers.append(self._active)
        desired = mean(self._tokens) / TARGET_IN_FLIGHT_TOKENS
        decayed = desired + (self._policy - desired) * 0.5 ** (1 / HALF_LIFE)
        self._policy = min(max(desired, decayed, MIN_REPLICA), MAX_REPLICA)
        rounded = min(math.ceil(self._policy), MAX_REPLICA)
        self._instruments.evaluated(
            in_flight_tokens=in_flight_tokens,
            avg_in_flight_tokens=mean(self._tokens),
            avg_num_requests=mean(self._requests),
            avg_num_workers=mean(self._workers),
            desired_scale=desired,
            policy_desired_scale=self._policy,
            rounded_desired_scale=rounded,
        )
        self._order(rounded)
        self._instruments.set_replicas({"active": self._active, "starting": len(self._starting)})
        self._instruments.set_bounds(min_replicas=MIN_REPLICA, max_replicas=MAX_REPLICA)
        return rounded

    def _start_replicas(self) -> None:
        self._starting = [left - 1 for left in self._starting]
        self._active += self._starting.count(0)
        self._starting = [left for left in self._starting if left]

    def _order(self, wanted: int) -> None:
        missing = wanted - self._active - len(self._starting)
        self._starting += [STARTING_FOR] * max(missing, 0)
        while missing < 0 and self._starting:
            self._starting.pop()
            missing += 1
        self._active += min(missing, 0)


def mean(values: deque[float] | deque[int]) -> float:
    """The mean of a window that is never empty."""
    return sum(values) / len(values)


def run(evaluations: int) -> bytes:
    """Evaluate so many times under a wave of load, and return the autoscaler's page."""
    instruments = AutoscalerInstruments(Identity("tiny-1b", "example", "examples", role="autoscaler"))
    autoscaler, generator = TinyAutoscaler(instruments), random.Random(1)
    for evaluation in range(evaluations):
        requests = round(40 * (1.2 + math.sin(evaluation / 20)) * generator.uniform(0.8, 1.2))
        autoscaler.evaluate(in_flight_tokens=requests * 4_000.0, requests=requests)
    return render(instruments)


if __name__ == "__main__":
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 200).decode())
