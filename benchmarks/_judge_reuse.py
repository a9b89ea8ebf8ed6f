"""How much of what differs between halves of a public trace's sessions is reuse of prompts, how much length and load.

Sessions keep to one of twelve replicas by a hash, each with a cache of its own, and six replicas are compared with the
other six, minute by minute. A trace has no latencies, so its requests wait by a stated law: one at a time per replica,
for a fixed time and a time for each prompt token that is not cached. The slopes are those that the judge learns, from
replicas of another hashing of the same trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks._judge_requests import Floats
from benchmarks._judge_traces import place
from servescope.cutover.comparison.given import Given, learn
from servescope.cutover.statistics.mix import Prompts, feature, learn_slope
from servescope.emulator.workload.traces import TraceRequest, read_trace

FIXED_SECONDS: Final = 0.15
TOKEN_SECONDS: Final = 1 / 8_000
"""About what a large model takes to prefill on one node."""
REPLICAS: Final = 12
HASHINGS: Final = 20
FILLING_MINUTES: Final = 10
"""Minutes of a trace in which caches fill: they are left out."""


@dataclass(frozen=True, slots=True)
class LeftOfVariance:
    """What differs between halves, as a standard deviation of logarithms; and what is left of its variance, 0 … 1,
    adjusted for the length of prompts alone, for their reuse alone, and for both."""

    trace: str
    spread: float
    length: float
    reuse: float
    both: float


def compare_left(folder: Path) -> Iterator[str]:
    """A table of a folder's traces."""
    yield "| of a minute | halves differ by | length leaves | reuse leaves | both leave |"
    yield "| --- | --- | --- | --- | --- |"
    for each in left_in_traces(folder):
        cells = (each.spread, each.length, each.reuse, each.both)
        yield f"| trace {each.trace} | " + " | ".join(f"{cell:.0%}" for cell in cells) + " |"


def left_in_traces(folder: Path) -> Iterator[LeftOfVariance]:
    """That of each trace of a folder that says what can be cached."""
    for path in sorted(folder.glob("*.jsonl")):
        requests = list(read_trace(path))
        if requests[0].block_ids:
            yield left_of_variance(path.stem, requests)


def left_of_variance(name: str, requests: Sequence[TraceRequest], hashings: int = HASHINGS) -> LeftOfVariance:
    """That of a trace over so many ways to hash its sessions; without a slope everything is left."""
    hashed = [_Hashed(requests, hashing) for hashing in range(hashings)]
    found = np.array([_variances(past, now) for past, now in zip(hashed[-1:] + hashed, hashed, strict=False)])
    whole, *left = np.nanmean(found, axis=0)
    return LeftOfVariance(name, float(np.sqrt(whole)), *(float(each / whole) for each in left))


def _variances(past: _Hashed, now: _Hashed) -> list[float]:
    length = learn_slope(feature(past.waited), past.prompts, 1.0, 1.0)
    alone = learn(past.waited, past.given, None, 1.0)
    beside = learn(past.waited, past.given, past.prompts, 1.0)
    waited, sizes, computed = now.differences()
    left = [waited, waited, waited, waited]
    if length is not None:
        left[1] = waited - length.slope * sizes
    if alone is not None and alone.reuse is not None:
        left[2] = waited - alone.reuse.slope * computed
    if beside is not None and beside.reuse is not None:
        left[3] = waited - (beside.prompts or 0.0) * sizes - beside.reuse.slope * computed
    return [float(np.nanvar(each)) for each in left]


class _Hashed:
    """One hashing of a trace's sessions: what each replica was given in each minute, and how long requests waited.

    A trace is an hour, so that a minute takes the place of the judge's blocks of five.
    """

    def __init__(self, requests: Sequence[TraceRequest], hashing: int) -> None:
        began = requests[0].seconds
        minutes = int((requests[-1].seconds - began) // 60)
        counted, prompt, computed, waited = np.zeros((4, REPLICAS, minutes))
        free = np.zeros(REPLICAS)
        for each, replica, cached in place(requests, hashing, REPLICAS):
            free[replica] = (
                max(free[replica], each.seconds) + FIXED_SECONDS + TOKEN_SECONDS * (each.input_tokens - cached)
            )
            cell = replica, min(int((each.seconds - began) // 60), minutes - 1)
            counted[cell] += 1
            prompt[cell] += each.input_tokens
            computed[cell] += each.input_tokens - cached
            waited[cell] += free[replica] - each.seconds
        counted, prompt, computed, waited = (
            each[:, FILLING_MINUTES:] for each in (counted, prompt, computed, waited)
        )  # fmt: skip
        self.waited, self.prompts = Prompts(waited, counted), Prompts(prompt, counted)
        self.given = Given(computed, prompt, counted, np.where(counted > 0.0, 60.0, 0.0))

    def differences(self) -> tuple[Floats, Floats, Floats]:
        """By how much the second half of the replicas waits longer, gets longer prompts and computes more of them."""
        first = np.arange(REPLICAS) < REPLICAS // 2
        halves = [
            (feature(self.waited.of(half)), feature(self.prompts.of(half)), self.given.of(half).share_computed())
            for half in (first, ~first)
        ]
        waited, sizes, computed = (after - before for before, after in zip(*halves, strict=True))
        return waited, sizes, computed
