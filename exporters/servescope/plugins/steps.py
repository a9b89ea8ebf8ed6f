"""The instruments of an engine that reports what each of its steps did, and of each request only how it ended."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.instruments.booking import EngineSeries, RatioParts
from servescope.instruments.engine import EngineInstruments, ResourceReader
from servescope.instruments.ledger import Distribution, Ledger, Trailing
from servescope.instruments.records import TRUNCATED, end_code
from servescope.instruments.resources import ResourceMeter, Resources
from servescope.instruments.values import MAX_SECONDS, Refused, member, shown, whole

if TYPE_CHECKING:
    from servescope.contract.identity import Identity
    from servescope.instruments.record_buffer import Mark
    from servescope.instruments.records import Rows

LONGEST_DRAFT = 64
"""Draft positions with a series of their own; the last one includes those beyond it."""

MOST_AT_ONCE = 65536
"""Most times in one call: no engine has more requests in a batch."""


class StepInstruments(EngineInstruments):
    """What an engine exposes that reports its steps as they happen, and its requests when they end.

    Tokens, first tokens and the reuse of cached prompts are booked step by step; `record_request` books the end of a
    request and the figures made of the whole of it, but no tokens, which its steps have booked. Arrivals are not
    reported, so `requests_started_total` is absent; how many requests are in flight is set as the engine counts them.
    Outcomes in `unreported_outcomes` are never reported by the engine and are absent, not 0.

    For the rest it is as EngineInstruments: any thread, no method raises, the constructor raises UsageError.
    """

    _series: StepSeries

    def __init__(
        self,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.perf_counter,
        draft_length: int = 8,
        ratio_window_seconds: float = 300.0,
        resources: ResourceReader | None = None,
        unreported_outcomes: Collection[str] = (),
    ) -> None:
        self._unreported_outcomes = unreported_outcomes
        super().__init__(
            identity, clock=clock, draft_length=draft_length, ratio_window_seconds=ratio_window_seconds,
            resources=resources,
        )  # fmt: skip
        series = self._series
        self._ended = self._buffer(series.book_ended)
        self._step_tokens = self._buffer(series.book_step_tokens)
        self._cache_use = self._buffer(series.book_cache_use)
        self._firsts = self._buffer(series.book_firsts)
        self._latencies = self._buffer(series.book_latencies)

    def _make_series(self) -> StepSeries:
        return StepSeries(
            self._ledger,
            draft_length=self._draft_length,
            window_seconds=self._window_seconds,
            count_refused=self._count_refused,
            unreported_outcomes=self._unreported_outcomes,
        )

    def _start_over(self, identity: Identity) -> None:
        StepInstruments.__init__(
            self, identity, clock=self._clock, draft_length=self._draft_length,
            ratio_window_seconds=self._window_seconds, resources=self._resources,
            unreported_outcomes=self._unreported_outcomes,
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
            self._series.in_flight = whole("concurrent requests", count)
        except Exception as error:
            self._refuse_error(error)

    def count_ended(self, outcome: str, count: int = 1, *, truncated: bool | None = None) -> None:
        """Count requests of which nothing is known but that they ended, and how."""
        try:
            code = end_code(OUTCOMES.index(member("outcome", outcome, OUTCOMES)), truncated)
            self._ended.write((code, whole("requests", count)))
        except Exception as error:
            self._refuse_error(error)

    def refuse_reading(self, what: str, error: Exception) -> None:
        """Count and log once that something of the engine's could not be read."""
        self._refuse("internal", f"{what} could not be read: {type(error).__name__}: {shown(error)}")


class EngineResources:
    """The GPUs of this process, and CPU and memory of its container: the server process alone is not the engine."""

    def __init__(self, meter: ResourceMeter) -> None:
        self._meter = meter

    def read(self) -> Resources:
        """What the meter reads, without that of the process alone."""
        resources = self._meter.read()
        return resources if self._meter.scope != "process" else Resources(gpus=resources.gpus)


class StepSeries(EngineSeries):
    """The series of an engine that reports its steps; `in_flight` is how many requests it counts now, None before."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        draft_length: int,
        window_seconds: float,
        count_refused: Callable[[str, int, str], None],
        unreported_outcomes: Collection[str],
    ) -> None:
        super().__init__(ledger, draft_length=draft_length, window_seconds=window_seconds, count_refused=count_refused)
        self.in_flight: int | None = None
        self._eligible = ledger.scalar(METRICS["kv_cache_eligible_tokens_total"])
        self._reused = ledger.scalar(METRICS["kv_cache_reused_tokens_total"])
        self._hit_rate = ledger.scalar(METRICS["kv_cache_hit_rate"])
        self._lately_cached = Trailing(window_seconds), Trailing(window_seconds)
        self._unreported = [
            series for outcome, series in zip(OUTCOMES, self._ends, strict=True) if outcome in unreported_outcomes
        ]

    def _book_whole(self, rows: Rows) -> None:
        # Arrivals, tokens and times to first token were reported by the steps.
        self._book_ends(rows)

    def book_ended(self, records: list[tuple[int, int]], _: list[Mark]) -> None:
        """Ends of which nothing else is known: their code, and how many."""
        counts = [0] * (TRUNCATED + 1)
        for code, count in records:
            counts[code] += count
        self._count_ends(counts)

    def book_step_tokens(self, records: list[tuple[int, int]], _: list[Mark]) -> None:
        """Tokens of steps: read, and generated."""
        self._input_tokens.add(sum(read for read, _ in records))
        self._output_tokens.add(sum(made for _, made in records))

    def book_cache_use(self, records: list[tuple[float, int, int]], _: list[Mark]) -> None:
        """Reuse of the cache: the time, eligible tokens, reused tokens."""
        for when, *tokens in records:
            for series, lately, count in zip((self._eligible, self._reused), self._lately_cached, tokens, strict=True):
                series.add(count)
                lately.add(when, count)

    def book_firsts(self, records: list[bytes], _: list[Mark]) -> None:
        """Seconds to first tokens."""
        self._observe_sane(self._first_token_seconds, records, "a first token came {:g} s after its request")

    def book_latencies(self, records: list[bytes], _: list[Mark]) -> None:
        """Seconds between tokens."""
        self._observe_sane(self._inter_token_seconds, records, "a token came {:g} s after the one before it")

    def _observe_sane(self, series: Distribution, records: list[bytes], wrong: str) -> None:
        import numpy as np

        seconds = np.frombuffer(b"".join(records))
        sane = (seconds >= 0) & (seconds <= MAX_SECONDS)
        if not sane.all():
            self._count_refused("out_of_range", int((~sane).sum()), wrong.format(seconds[~sane][0]))
            seconds = seconds[sane]
        series.observe(seconds)

    def update(self, now: float) -> RatioParts:
        """Set the series that are computed at a reading; the parts of the ratios among them."""
        parts = super().update(now)
        self._arrivals.value = None
        self._concurrent.value = self.in_flight
        for series in self._unreported:
            series.value = series.value or None
        eligible, reused = (lately.sum(now) for lately in self._lately_cached)
        self._hit_rate.value = reused / eligible if eligible else None
        return {**parts, "kv_cache_hit_rate": (reused, eligible)}


def _packed(what: str, seconds: Sequence[float]) -> bytes:
    """The seconds as doubles. Raises Refused, or what a value of another type causes."""
    if len(seconds) > MOST_AT_ONCE:
        raise Refused("out_of_range", f"{len(seconds)} {what} in one step, expected at most {MOST_AT_ONCE}")
    return array("d", seconds).tobytes()
