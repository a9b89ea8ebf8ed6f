"""The three server metrics of OpenTelemetry's GenAI conventions, counted from finished requests.

They are not derived from the contract's histograms, whose populations differ: the conventions want durations by how the
request ended, and the times per token of successes alone. So requests are counted again, at the conventions' bounds,
from the moment somebody exports them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servescope.contract.metrics import OUTCOMES
from servescope.instruments.exponential import ExponentialState
from servescope.instruments.ledger import Distribution

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_OK = OUTCOMES.index("ok")


@dataclass(frozen=True, slots=True)
class Convention:
    """One metric of the conventions: its name, and the bucket bounds they ask for, in seconds."""

    name: str
    help: str
    edges: tuple[float, ...]


REQUEST_DURATION = Convention(
    "gen_ai.server.request.duration",
    "Generative AI server request duration such as time-to-last byte or last output token.",
    tuple(0.01 * 2**power for power in range(14)),
)
TIME_PER_OUTPUT_TOKEN = Convention(
    "gen_ai.server.time_per_output_token",
    "Time per output token generated after the first token for successful responses.",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
TIME_TO_FIRST_TOKEN = Convention(
    "gen_ai.server.time_to_first_token",
    "Time to generate first token for successful responses.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """Requests that ended, one per index: seconds from arrival, output tokens, the outcome as its index in OUTCOMES.

    `lasted` marks those with a known duration, `timed` those whose time to first token is known too and fits it.
    """

    outcome: NDArray[np.intp]
    duration: NDArray[np.float64]
    first_token: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    lasted: NDArray[np.bool_]
    timed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Counted:
    """One histogram: of which metric, of requests that ended with which error, and its counts by bucket."""

    convention: Convention
    error: str | None
    counts: list[int]
    sum: float
    exponential: ExponentialState | None


class GenAiHistograms:
    """The histograms of one engine's requests since this was made; any thread may book and read.

    With `exponential` the values are counted in exponential buckets too.
    """

    def __init__(self, *, exponential: bool = False) -> None:
        self.since = time.time()
        self._lock = threading.Lock()
        self._durations = [_Histogram(REQUEST_DURATION, exponential) for _ in OUTCOMES]
        self._per_token = _Histogram(TIME_PER_OUTPUT_TOKEN, exponential)
        self._first_token = _Histogram(TIME_TO_FIRST_TOKEN, exponential)

    def book(self, ended: Ended) -> None:
        """Count requests that ended."""
        with self._lock:
            for outcome, histogram in enumerate(self._durations):
                histogram.observe(ended.duration[ended.lasted & (ended.outcome == outcome)])
            succeeded = ended.timed & (ended.outcome == _OK)
            first_token, duration = ended.first_token[succeeded], ended.duration[succeeded]
            followers = ended.output_tokens[succeeded] - 1
            several = followers > 0
            self._first_token.observe(first_token)
            self._per_token.observe((duration - first_token)[several] / followers[several])

    def counted(self) -> list[Counted]:
        """The histograms that have counted anything."""
        with self._lock:
            counted = [
                histogram.read(None if outcome == "ok" else outcome)
                for outcome, histogram in zip(OUTCOMES, self._durations, strict=True)
            ]
            counted += [self._per_token.read(), self._first_token.read()]
        return [one for one in counted if sum(one.counts)]


class _Histogram:
    def __init__(self, convention: Convention, exponential: bool) -> None:
        self._convention = convention
        self._distribution = Distribution(convention.name, (), convention.edges, shown=True)
        if exponential:
            self._distribution.keep_exponential()

    def observe(self, values: NDArray[np.float64]) -> None:
        self._distribution.observe(values)

    def read(self, error: str | None = None) -> Counted:
        counts, total = self._distribution.counted()
        return Counted(self._convention, error, counts, total, self._distribution.exponential())
