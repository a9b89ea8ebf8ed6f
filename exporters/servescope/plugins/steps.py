"""The instruments of an engine that tells what each of its steps did, and of each request only how it ended."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.instruments.engine import EngineInstruments, ResourceReader
from servescope.instruments.instrument import MAX_SECONDS, Refused, member, shown, whole
from servescope.instruments.ledger import Distribution, Trailing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from servescope.contract.identity import Identity
    from servescope.instruments.journal import Mark

MOST_AT_ONCE = 65536
"""Seconds one call may tell: more requests than that are in no engine's batch."""


class StepInstruments(EngineInstruments):
    """What an engine exposes whose steps are told as they come, its requests when they end.

    Tokens, first tokens and the reuse of cached prompts are booked step by step; `record_request` books the end of a
    request and the figures made of the whole of it, but no tokens, which its steps have booked. Arrivals are not told,
    so `requests_started_total` is absent; how many requests are in flight is set as the engine counts them. Outcomes
    in `untold_outcomes` never come to the engine's notice and are absent, not 0.

    For the rest it is as EngineInstruments: any thread, no method raises, the constructor raises UsageError.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.perf_counter,
        draft_length: int = 8,
        ratio_window_seconds: float = 300.0,
        resources: ResourceReader | None = None,
        untold_outcomes: Collection[str] = (),
    ) -> None:
        super().__init__(
            identity, clock=clock, draft_length=draft_length, ratio_window_seconds=ratio_window_seconds,
            resources=resources,
        )  # fmt: skip
        self._make_cache_series()
        self._untold_outcomes = untold_outcomes
        self._untold = [
            series for outcome, series in zip(OUTCOMES, self._ends, strict=True) if outcome in untold_outcomes
        ]
        self._in_flight: int | None = None
        self._lately_cached = Trailing(ratio_window_seconds), Trailing(ratio_window_seconds)
        self._ended = self._journal(self._book_ended)
        self._step_tokens = self._journal(self._book_step_tokens)
        self._cache_use = self._journal(self._book_cache_use)
        self._firsts = self._journal(self._book_firsts)
        self._latencies = self._journal(self._book_latencies)

    def _start_over(self, identity: Identity) -> None:
        StepInstruments.__init__(
            self, identity, clock=self._clock, draft_length=self._draft_length,
            ratio_window_seconds=self._window_seconds, resources=self._resources,
            untold_outcomes=self._untold_outcomes,
        )  # fmt: skip

    # --- what a step did ----------------------------------------------------------------------------------------------

    def count_tokens(self, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count the tokens of prompts read in a step, cached ones included, and the tokens it generated."""
        try:
            self._step_tokens.write((whole("input_tokens", input_tokens), whole("output_tokens", output_tokens)))
        except Exception as error:
            self._refuse_error(error)

    def record_cache_use(self, *, eligible_tokens: int, reused_tokens: int) -> None:
        """Record of how many prompt tokens how many came from the engine's cache; both counters rise together."""
        try:
            eligible, reused = whole("eligible_tokens", eligible_tokens), whole("reused_tokens", reused_tokens)
            if reused > eligible:
                raise Refused("inconsistent", f"{reused} tokens were reused of {eligible} eligible ones")
            self._cache_use.write((self._now(), eligible, reused))
        except Exception as error:
            self._refuse_error(error)

    def observe_first_tokens(self, seconds: Sequence[float]) -> None:
        """For each request whose first token came in this step, the seconds since its arrival."""
        try:
            self._firsts.write(_packed("first tokens", seconds))
        except Exception as error:
            self._refuse_error(error)

    def observe_inter_token_latencies(self, seconds: Sequence[float]) -> None:
        """For each later token of this step, the seconds since the one before it of the same request."""
        try:
            self._latencies.write(_packed("inter-token latencies", seconds))
        except Exception as error:
            self._refuse_error(error)

    # --- what the engine counts ---------------------------------------------------------------------------------------

    def set_concurrent_requests(self, count: int) -> None:
        """Set how many requests are in flight now, queued ones included."""
        try:
            self._in_flight = whole("concurrent requests", count)
        except Exception as error:
            self._refuse_error(error)

    def count_ended(self, outcome: str, count: int = 1) -> None:
        """Count requests of which nothing is known but that they ended, and how."""
        try:
            self._ended.write((OUTCOMES.index(member("outcome", outcome, OUTCOMES)), whole("requests", count)))
        except Exception as error:
            self._refuse_error(error)

    def refuse_reading(self, what: str, error: Exception) -> None:
        """Count and log once that something of the engine's could not be read."""
        self._refuse("internal", f"{what} could not be read: {type(error).__name__}: {shown(error)}")

    # --- booking and reading, under the lock --------------------------------------------------------------------------

    def _make_cache_series(self) -> None:
        scalar = self._ledger.scalar
        self._eligible = scalar(METRICS["kv_cache_eligible_tokens_total"])
        self._reused = scalar(METRICS["kv_cache_reused_tokens_total"])
        self._hit_rate = scalar(METRICS["kv_cache_hit_rate"])

    def _book_rows(self, rows: NDArray[np.float64]) -> None:
        # Arrivals, tokens and times to first token are not those of requests that ended: steps told them.
        self._book_ends(rows)

    def _book_ended(self, records: list[tuple[int, int]], _: list[Mark]) -> None:
        for code, count in records:
            self._ends[code].add(count)

    def _book_step_tokens(self, records: list[tuple[int, int]], _: list[Mark]) -> None:
        self._input_tokens.add(sum(read for read, _ in records))
        self._output_tokens.add(sum(made for _, made in records))

    def _book_cache_use(self, records: list[tuple[float, int, int]], _: list[Mark]) -> None:
        for when, *tokens in records:
            for series, lately, count in zip((self._eligible, self._reused), self._lately_cached, tokens, strict=True):
                series.add(count)
                lately.add(when, count)

    def _book_firsts(self, records: list[bytes], _: list[Mark]) -> None:
        self._observe_sane(self._first_token_seconds, records, "a first token came {:g} s after its request")

    def _book_latencies(self, records: list[bytes], _: list[Mark]) -> None:
        self._observe_sane(self._inter_token_seconds, records, "a token came {:g} s after the one before it")

    def _observe_sane(self, series: Distribution, records: list[bytes], wrong: str) -> None:
        import numpy as np

        seconds = np.frombuffer(b"".join(records))
        sane = (seconds >= 0) & (seconds <= MAX_SECONDS)
        if not sane.all():
            self._count_refused("out_of_range", int((~sane).sum()), wrong.format(seconds[~sane][0]))
            seconds = seconds[sane]
        series.observe(seconds)

    def _before_reading(self) -> None:
        super()._before_reading()
        self._arrivals.value = None
        self._concurrent.value = self._in_flight
        for series in self._untold:
            series.value = series.value or None
        now = self._now()
        eligible, reused = (lately.sum(now) for lately in self._lately_cached)
        self._hit_rate.value = reused / eligible if eligible else None
        self._ratio_parts["kv_cache_hit_rate"] = reused, eligible


def _packed(what: str, seconds: Sequence[float]) -> bytes:
    """The seconds as doubles. Raises Refused, or what a value of another type causes."""
    if len(seconds) > MOST_AT_ONCE:
        raise Refused("out_of_range", f"{len(seconds)} {what} in one step, expected at most {MOST_AT_ONCE}")
    return array("d", seconds).tobytes()
