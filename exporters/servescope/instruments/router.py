"""The instruments of a KV-aware router: what it predicted, what workers reused, and the health of its index.

router = RouterInstruments(Identity("llama-70b", "chat-v2", "v2", replica="router-0", role="router"))
attempt = router.route(eligible_tokens=812, predicted_tokens=512, best_tokens=640, candidates=4)
attempt.report(reused_tokens=496)                    # what the worker says; or attempt.abandon()
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from servescope.contract.metrics import INDEX_STATES, METRICS, RECOVERY_SOURCES
from servescope.instruments.instrument import Instruments
from servescope.instruments.ledger import Scalar, Trailing
from servescope.instruments.record_buffer import decode
from servescope.instruments.values import Refused, finite, inherited, member, require_positive, shown, whole

if TYPE_CHECKING:
    from servescope.contract.identity import Identity
    from servescope.instruments.record_buffer import Mark

_pack_decision = struct.Struct("d2I").pack  # queue wait; candidates, 1 with an index
_pack_pace = struct.Struct("2d").pack  # decision latency, busy seconds
_pack_report = struct.Struct("4I").pack  # eligible, predicted, reused, best tokens

MAX_REASONS = 16
"""Distinct fallback reasons that get a series; further ones are counted under the reason `other`."""

_LONGEST_REASON = 64
_OTHER = "other"


class RouterInstruments(Instruments):
    """What one router process exposes.

    The four ratios cover the trailing `ratio_window_seconds`. `clock` returns seconds and never goes back.

    Any thread may call any method. No method raises: invalid values are counted in `servescope_instrument_errors_total`
    and logged once per kind. The constructor raises UsageError, and loads numpy; importing this module does not.
    """

    roles = ("router",)

    def __init__(
        self,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.perf_counter,
        ratio_window_seconds: float = 300.0,
    ) -> None:
        super().__init__(identity, clock=clock)
        window_seconds = require_positive("ratio_window_seconds", ratio_window_seconds)
        self._window_seconds = window_seconds
        self._make_series()
        self._lately = [Trailing(window_seconds) for _ in range(4)]
        self._index_state: str | None = None
        self._queued: int | None = None
        self._indexed = False
        self._decisions = self._buffer(self._book_decisions)
        self._reports = self._buffer(self._book_reports, window_seconds=window_seconds)
        self._reasons = self._buffer(self._book_reasons)
        self._unreported = self._buffer(self._book_unreported)
        self._gaps = self._buffer(self._book_gaps)
        self._drops = self._buffer(self._book_drops)
        self._paces = self._buffer(self._book_paces)
        self._recoveries = self._buffer(self._book_recoveries)

    def _start_over(self, identity: Identity) -> None:
        RouterInstruments.__init__(self, identity, clock=self._clock, ratio_window_seconds=self._window_seconds)

    def route(
        self,
        *,
        eligible_tokens: int,
        predicted_tokens: int | None,
        best_tokens: int | None,
        candidates: int,
        queue_wait_seconds: float = 0.0,
        fallback_reason: str | None = None,
    ) -> Attempt:
        """A routing attempt decided now; it ends with the worker's report, or is abandoned.

        `eligible_tokens` are all prompt tokens of the attempt, not rounded to blocks; `predicted_tokens` those cached
        on the chosen worker and `best_tokens` the most cached on any worker that could have been chosen, both by the
        index: None when the router keeps none. `candidates` is how many could have been chosen. `fallback_reason`,
        a short fixed text, says why the index was not used; None when it was.
        """
        try:
            wait = finite("queue_wait_seconds", queue_wait_seconds)
            self._decisions.write(_pack_decision(wait, whole("candidates", candidates), predicted_tokens is not None))
        except Exception as error:
            self._refuse_error(error)
        if fallback_reason is not None:
            self._write_reason(fallback_reason)
        try:
            return Attempt(self, *_check_prediction(eligible_tokens, predicted_tokens, best_tokens))
        except Exception as error:
            self._refuse_error(error)
            return _VoidAttempt(self, 0, 0, 0)

    def count_event_gaps(self, count: int = 1) -> None:
        """Count cache events missing from a worker's sequence; a count of 0 exposes the series at 0."""
        try:
            self._gaps.write(whole("event gaps", count))
        except Exception as error:
            self._refuse_error(error)

    def count_dropped_events(self, count: int = 1) -> None:
        """Count cache events that could not be applied; a count of 0 exposes the series at 0."""
        try:
            self._drops.write(whole("dropped events", count))
        except Exception as error:
            self._refuse_error(error)

    def set_index_state(self, state: str) -> None:
        """Set the state the index is in now, one of `metrics.INDEX_STATES`."""
        try:
            self._index_state = member("index state", state, INDEX_STATES)
        except Exception as error:
            self._refuse_error(error)

    def record_decision(self, seconds: float, *, busy_seconds: float) -> None:
        """Record how long a decision took from the request's arrival, without its wait for a free worker.

        The router worked on this decision for `busy_seconds` of it; the request waited for the rest.
        """
        try:
            self._paces.write(_pack_pace(finite("seconds", seconds), finite("busy_seconds", busy_seconds)))
        except Exception as error:
            self._refuse_error(error)

    def set_queued_requests(self, count: int) -> None:
        """Set how many requests are not routed yet: undecided, or all workers are saturated."""
        try:
            self._queued = whole("queued requests", count)
        except Exception as error:
            self._refuse_error(error)

    def count_recovery(self, source: str, count: int = 1) -> None:
        """Count that the index was brought up to date from `source`, one of `metrics.RECOVERY_SOURCES`.

        A count of 0 exposes the series at 0.
        """
        try:
            source = member("recovery source", source, RECOVERY_SOURCES)
            self._recoveries.write((source, whole("recoveries", count)))
        except Exception as error:
            self._refuse_error(error)

    # --- called by attempts -------------------------------------------------------------------------------------------

    def _write_report(self, eligible: int, predicted: int, reused: int, best: int) -> None:
        self._reports.write(_pack_report(eligible, predicted, reused, best))

    def _write_unreported(self) -> None:
        self._unreported.write(None)

    def _write_reason(self, reason: object) -> None:
        try:
            if not isinstance(reason, str) or not 0 < len(reason) <= _LONGEST_REASON:
                expected = f"a text of 1 to {_LONGEST_REASON} characters"
                raise Refused("wrong_type", f"fallback_reason is {shown(reason)}, expected {expected}")
            # Half a character raises here: no page can hold it, and the fold would lose other reasons with it.
            self._reasons.write(str.encode(reason).decode())
        except Exception as error:
            self._refuse_error(error)

    # --- booking and reading, under the lock --------------------------------------------------------------------------

    def _make_series(self) -> None:
        scalar, distribution = self._ledger.scalar, self._ledger.distribution
        self._eligible = scalar(METRICS["kv_cache_eligible_tokens_total"], 0)
        self._predicted = scalar(METRICS["kv_cache_predicted_tokens_total"])
        self._reused = scalar(METRICS["kv_cache_reused_tokens_total"], 0)
        self._best = scalar(METRICS["kv_cache_best_tokens_total"])
        self._hit_rate = scalar(METRICS["kv_cache_hit_rate"])
        self._skew = scalar(METRICS["kv_cache_hit_rate_skew"])
        self._best_hit_rate = scalar(METRICS["kv_cache_best_prefix_hit_rate"])
        self._efficiency = scalar(METRICS["kv_cache_hit_rate_efficiency"])
        self._unreported_decisions = scalar(METRICS["router_unreported_decisions_total"], 0)
        self._event_gaps = scalar(METRICS["router_index_event_gaps_total"])
        self._events_dropped = scalar(METRICS["router_index_events_dropped_total"])
        states = METRICS["router_index_state"]
        self._states = {state: self._ledger.scalar(states, state=state) for state in INDEX_STATES}
        self._candidates = distribution(METRICS["router_candidates"])
        self._ledger.family(METRICS["router_fallbacks_total"])
        self._fallbacks: dict[str, Scalar] = {}
        self._queue_wait = distribution(METRICS["router_queue_wait_seconds"])
        self._queue = scalar(METRICS["router_queued_requests"])
        self._decision = distribution(METRICS["router_decision_seconds"], shown=False)
        self._busy = scalar(METRICS["router_decision_busy_seconds_total"])
        recoveries = METRICS["router_index_recoveries_total"]
        self._recovered = {source: scalar(recoveries, source=source) for source in RECOVERY_SOURCES}
        self._show_refusals()

    def _book_decisions(self, records: list[bytes], _: list[Mark]) -> None:
        waits, candidates, indexed = decode(records, doubles=1)
        self._queue_wait.observe(waits)
        self._candidates.observe(candidates)
        if indexed.any():
            self._show_index()

    def _book_reports(self, records: list[bytes], marks: list[Mark]) -> None:
        columns = decode(records, doubles=0)
        for tokens, lately in zip(columns, self._lately, strict=True):
            lately.add_marked(tokens, marks)
        eligible, predicted, reused, best = (int(tokens.sum()) for tokens in columns)
        self._eligible.add(eligible)
        self._reused.add(reused)
        if self._indexed:
            self._predicted.add(predicted)
            self._best.add(best)

    def _book_reasons(self, reasons: list[str], _: list[Mark]) -> None:
        for reason, count in Counter(reasons).items():
            self._fallback(reason).add(count)

    def _book_unreported(self, records: list[None], _: list[Mark]) -> None:
        self._unreported_decisions.add(len(records))

    def _book_gaps(self, counts: list[int], _: list[Mark]) -> None:
        self._event_gaps.add(sum(counts))

    def _book_drops(self, counts: list[int], _: list[Mark]) -> None:
        self._events_dropped.add(sum(counts))

    def _book_paces(self, records: list[bytes], _: list[Mark]) -> None:
        latencies, busy = decode(records, doubles=2)
        self._decision.observe(latencies)
        self._busy.add(float(busy.sum()))

    def _book_recoveries(self, counts: list[tuple[str, int]], _: list[Mark]) -> None:
        for source, count in counts:
            self._recovered[source].add(count)

    def _fallback(self, reason: str) -> Scalar:
        if reason not in self._fallbacks and len(self._fallbacks) >= MAX_REASONS:
            reason = _OTHER
        if reason not in self._fallbacks:
            self._fallbacks[reason] = self._ledger.scalar(METRICS["router_fallbacks_total"], 0, reason=reason)
        return self._fallbacks[reason]

    def _show_index(self) -> None:
        self._indexed = True
        self._predicted.add(0)
        self._best.add(0)

    def _before_reading(self) -> None:
        if self._index_state is not None:
            for state, series in self._states.items():
                series.value = int(state == self._index_state)
        self._queue.value = self._queued
        now = self._now()
        eligible, predicted, reused, best = (lately.sum(now) for lately in self._lately)
        self._hit_rate.value = reused / eligible if eligible else None
        indexed = self._indexed and eligible
        self._skew.value = (predicted - reused) / eligible if indexed else None
        self._best_hit_rate.value = best / eligible if indexed else None
        self._efficiency.value = reused / best if indexed and best else None
        self._ratio_parts = {"kv_cache_hit_rate": (reused, eligible)}
        if self._indexed:
            self._ratio_parts |= {
                "kv_cache_hit_rate_skew": (predicted - reused, eligible),
                "kv_cache_best_prefix_hit_rate": (best, eligible),
                "kv_cache_hit_rate_efficiency": (reused, best),
            }


class Attempt:
    """One routing attempt, made by `RouterInstruments.route`: reported or abandoned, exactly once, by any thread."""

    __slots__ = ("_best", "_eligible", "_open", "_predicted", "_router")

    def __init__(self, router: RouterInstruments, eligible: int, predicted: int, best: int) -> None:
        self._router = router
        self._eligible = eligible
        self._predicted = predicted
        self._best = best
        self._open = router._epoch

    def report(self, reused_tokens: int) -> None:
        """The worker reused so many of the prompt's tokens from its cache: updates the four token counters.

        An impossible report is refused; the attempt then counts as unreported.
        """
        if not self._close("report"):
            return
        router = self._router
        try:
            reused = whole("reused_tokens", reused_tokens)
            if reused > self._eligible:
                raise Refused("inconsistent", f"{reused} tokens were reused of {self._eligible} eligible ones")
            router._write_report(self._eligible, self._predicted, reused, self._best)
        except Exception as error:
            router._refuse_error(error)
            router._write_unreported()

    def abandon(self) -> None:
        """No report will come: the attempt counts as unreported."""
        if self._close("abandon"):
            self._router._write_unreported()

    def _close(self, call: str) -> bool:
        try:
            # A slot can be deleted once: of several threads that end an attempt, one gets past here.
            epoch = self._open
            del self._open
        except AttributeError:
            self._router._refuse("finished_twice", f"{call}() was called on a routing attempt that had ended")
            return False
        if epoch is not self._router._epoch:
            self._router._refuse_error(inherited(call))
            return False
        return True


class _VoidAttempt(Attempt):
    """An attempt whose tokens were refused: it counts as unreported, however it ends."""

    __slots__ = ()

    def report(self, reused_tokens: int) -> None:
        self.abandon()


def _check_prediction(eligible: object, predicted: object, best: object) -> tuple[int, int, int]:
    """Eligible, predicted and best tokens, 0 where there is no index. Raises Refused."""
    all_tokens = whole("eligible_tokens", eligible)
    cached = 0 if predicted is None else whole("predicted_tokens", predicted)
    most = 0 if best is None else whole("best_tokens", best)
    if max(cached, most) > all_tokens:
        raise Refused(
            "inconsistent", f"predicted_tokens {cached} or best_tokens {most} exceed eligible_tokens {all_tokens}"
        )
    return all_tokens, cached, most
