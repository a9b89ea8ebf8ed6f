"""The instruments of an inference engine: requests from arrival to their end, tokens, speculation, caches, resources.

    engine = EngineInstruments(Identity("llama-70b", "chat-v2", "v2", replica="engine-0"))
    request = engine.start_request(input_tokens=812)     # it arrived
    request.first_token()
    request.tokens(4)                                    # four more, as they come; optional
    request.finish("ok", output_tokens=128)              # exactly once

or, for an engine that holds the numbers already, `engine.record_request(...)` at the end of each request.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.errors import UsageError
from servescope.instruments.gen_ai import Ended
from servescope.instruments.instrument import (
    MAX_SECONDS,
    MAX_TOKENS,
    Instruments,
    Refused,
    decode,
    finite,
    inherited,
    member,
    require_positive,
    require_whole,
    shown,
    whole,
)
from servescope.instruments.ledger import Distribution, Ledger, Scalar, Trailing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from servescope.contract.identity import Identity
    from servescope.instruments.journal import Mark
    from servescope.instruments.resources import Resources

    _Rows = NDArray[np.float64]

# A record's code is its outcome's, plus what is missing: when the first token came, or all but the outcome.
_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_OK, _ERROR = _CODES["ok"], _CODES["error"]
_OUTCOME_MASK = 7
_UNTIMED = 8
_BLANK = 16

# What is shorter than a clock's tick took no time that a rate could be made of.
_LEAST_SECONDS = 1e-9

# Records are doubles, then counts, filled up to a multiple of a double. Packing integers as integers is twice as quick
# as packing them as doubles, and refuses for free what is no count.
_RECORDED = struct.Struct("3d4I")  # times; code, input, output, drafted
_pack_recorded = _RECORDED.pack
_pack_finished = struct.Struct("3d5I0d").pack  # times; code, input, output, input due, output due
_TIMES = 3
_FIRST, _DURATION, _DECODE, _CODE, _INPUT, _OUTPUT, _DRAFTED = range(7)
_INPUT_DUE, _OUTPUT_DUE = 6, 7
_pack_tokens = struct.Struct("dI0d").pack  # seconds; tokens

_LONGEST_TRACE_ID = 64
_MOST_BYTES = 2**63
_MOST_CORES = 1e6

# These return floats and do not fail: they need no guard.
_TRUSTED_CLOCKS = (time.perf_counter, time.monotonic, time.time)


class RecordRequest(Protocol):
    """The function that `EngineInstruments.record_request` is."""

    def __call__(
        self,
        outcome: str,
        input_tokens: int,
        output_tokens: int,
        time_to_first_token: float | None,
        duration: float,
        decode_seconds: float | None,
        draft_tokens: int = 0,
        accepted_by_position: Sequence[int] = (),
        trace_id: str | None = None,
    ) -> None:
        """Record a whole request that has ended, for engines that hold the numbers; it counts its start too.

        `outcome` is one of `metrics.OUTCOMES`. Tokens are whole; times are seconds: `time_to_first_token` and
        `duration` from arrival, `decode_seconds` from first to last token. They are not looked at when no token came;
        None means not known: decode seconds then end with the request, and without a time to first token the request
        is left out of the figures that need one. Draft tokens and those accepted are those of the whole request.
        `trace_id`, at most 64 printable ASCII characters, links the request's figures to its trace.

        Quickest by position, `accepted_by_position` a tuple of `draft_length` counts, and without a trace.
        """


class ResourceReader(Protocol):
    """What `resources=` takes: something to read the resources of this process from, such as ResourceMeter."""

    def read(self) -> Resources:
        """The resources in use now; called by readers, never on the hot path.

        None of a reading is shown when it raises, or a value is negative, NaN or of another type, or a share above 1;
        that is counted.
        """


class EngineInstruments(Instruments):
    """What one engine process exposes.

    `draft_length` is the most draft tokens per step and sequence, which is the number of positions accepted tokens
    are counted by. `speculation_rate` covers the trailing `ratio_window_seconds`. `clock` returns seconds and never
    goes back. `resources` is read at each reading.

    Any thread may call any method; one request is driven by one thread at a time, but may be finished by another.
    No method raises: wrong values are counted in `servescope_instrument_errors_total` and logged once per kind. The
    constructor raises UsageError. It loads numpy, importing this module does not.
    """

    roles = ("aggregated", "prefill", "decode")

    record_request: RecordRequest
    """Record a whole request that has ended: see `RecordRequest`, which has the arguments."""

    def __init__(
        self,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.perf_counter,
        draft_length: int = 8,
        ratio_window_seconds: float = 300.0,
        resources: ResourceReader | None = None,
    ) -> None:
        super().__init__(identity, clock=clock)
        require_whole("draft_length", draft_length, 1, 64)
        if resources is not None and not callable(getattr(resources, "read", None)):
            expected = "something to read, such as servescope.instruments.resources.ResourceMeter()"
            raise UsageError(f"resources is {resources!r}, expected {expected}")
        window_seconds = require_positive("ratio_window_seconds", ratio_window_seconds)
        self._draft_length = draft_length
        self._window_seconds = window_seconds
        self._positions = struct.Struct(f"{draft_length}I0d")
        self._pack_step = struct.Struct(f"I{draft_length}I0d").pack
        self._resources = resources
        self._make_series()
        # Drafted and accepted tokens; a trailing sum takes them in the order of time, which one journal keeps.
        self._lately_by_request = Trailing(window_seconds), Trailing(window_seconds)
        self._lately_by_step = Trailing(window_seconds), Trailing(window_seconds)
        # In the order of folding: traces before what they are traces of and ends before starts, so that no reading has
        # the one without the other. Neither ends nor starts of requests in flight are ever dropped, or they would not
        # add up.
        self._traced = self._journal(self._book_traces)
        self._finished = self._journal(self._book_finished, droppable=False)
        self._recorded = self._journal(self._book_recorded)
        self._speculated = self._journal(self._book_speculated, window_seconds=window_seconds)
        self._batches = self._journal(self._book_batches)
        self._first_tokens = self._journal(self._book_first_tokens)
        self._steps = self._journal(self._book_steps, window_seconds=window_seconds)
        self._preempted = self._journal(self._book_preemptions)
        self._transferred = self._journal(self._book_transfers)
        self._moved = self._journal(self._book_moves, droppable=False)
        self._moved_in = 0
        self._started = self._journal(self._book_starts)
        self._in_flight_known = False
        self._watchers: tuple[Callable[[Ended], None], ...] = ()
        self._tick = clock if clock in _TRUSTED_CLOCKS else self._now
        self.record_request = self._make_record_request()

    def _start_over(self, identity: Identity) -> None:
        EngineInstruments.__init__(
            self,
            identity,
            clock=self._clock,
            draft_length=self._draft_length,
            ratio_window_seconds=self._window_seconds,
            resources=self._resources,
        )

    # --- requests -----------------------------------------------------------------------------------------------------

    def start_request(self, input_tokens: int, *, trace_id: str | None = None) -> Request:
        """A request that arrives now, with that many prompt tokens, cached ones included; in flight until finished.

        `trace_id`, at most 64 printable ASCII characters, links the figures the request ends with to its trace.
        """
        try:
            tokens = input_tokens
            if type(tokens) is not int or not 0 <= tokens <= MAX_TOKENS:
                tokens = whole("input_tokens", input_tokens)
        except Exception as error:
            self._refuse_error(error)
            tokens = 0
        request = Request(self, tokens, self._tick(), trace_id)
        return request if self._started.write(None) else _UncountedRequest(self, tokens, 0.0, None)

    def take_over(self, handed_over: HandedOver) -> Request:
        """Go on with a request that another engine process began and handed over; in flight here until finished.

        Its start, its prompt, its first token and what came before are counted there, and nowhere else; the tokens
        from now on, its outcome and its sizes and times as a whole are counted here. Both use the same clock.
        """
        request = Request(self, handed_over.input_tokens, handed_over.arrival, None)
        request._first, request._last = handed_over.first_token, handed_over.last_token
        request._output = handed_over.output_tokens
        self._moved.write(1)
        return request

    # --- speculation --------------------------------------------------------------------------------------------------

    def record_speculation(self, draft_tokens: int, accepted_by_position: Sequence[int]) -> None:
        """Record one step's draft tokens, and how many were accepted at each position, summed over the batch.

        `record_speculation(0, ())` says that speculation is on: its counters are then shown, at 0.
        """
        try:
            len(accepted_by_position)
            record = self._pack_step(draft_tokens, *accepted_by_position)
        except Exception:
            self._record_speculation_slowly(draft_tokens, accepted_by_position, declared=True)
            return
        steps = self._steps
        steps.append(record)
        if len(steps.records) >= steps.stop_at:
            steps.stop()

    # --- state of the engine ------------------------------------------------------------------------------------------

    def set_queued_requests(self, count: int) -> None:
        """Set how many requests wait to be scheduled now."""
        try:
            self._queued.value = whole("queued requests", count)
        except Exception as error:
            self._refuse_error(error)

    def set_kv_cache_usage(self, share: float) -> None:
        """Set the share of the KV cache in use now, from 0 to 1."""
        try:
            self._kv_cache_usage.value = finite("KV cache usage", share, 1.0)
        except Exception as error:
            self._refuse_error(error)

    def count_preemptions(self, count: int = 1) -> None:
        """Count requests preempted to free KV cache."""
        try:
            self._preempted.write(whole("preemptions", count))
        except Exception as error:
            self._refuse_error(error)

    def record_kv_transfer(self, seconds: float, *, waited_seconds: float, size_bytes: int) -> None:
        """Record KV that has come to this worker, `waited_seconds` of it spent between first token and transfer."""
        try:
            times = finite("seconds", seconds), finite("waited_seconds", waited_seconds)
            self._transferred.write((*times, whole("size_bytes", size_bytes, _MOST_BYTES)))
        except Exception as error:
            self._refuse_error(error)

    def set_pending_kv_transfers(self, count: int) -> None:
        """Set how many requests have their prompt computed here and their KV still to be sent to another worker."""
        try:
            self._pending_transfers.value = whole("pending KV transfers", count)
        except Exception as error:
            self._refuse_error(error)

    # --- called by requests -------------------------------------------------------------------------------------------

    def _write_end(self, request: Request, outcome: object, output_tokens: object) -> None:
        code = self._outcome_code(outcome)
        try:
            record = self._pack_end(request, code, output_tokens)
        except Exception as error:
            self._refuse_error(error)
            record = _pack_finished(0.0, 0.0, 0.0, code + _BLANK, 0, 0, 0, 0)
        self._finished.write(record)
        if request._trace_id is not None:
            self._write_trace(request._trace_id, record)

    def _write_trace(self, trace_id: object, record: bytes) -> None:
        """Remember the trace of a request that was just recorded; all records of requests begin alike."""
        try:
            # What is printable ASCII can be written into any page.
            if type(trace_id) is not str or not (trace_id.isascii() and trace_id.isprintable()):
                raise Refused("wrong_type", f"trace_id is {shown(trace_id)}, expected printable ASCII text")
            if not 0 < len(trace_id) <= _LONGEST_TRACE_ID:
                expected = f"1 to {_LONGEST_TRACE_ID} characters"
                raise Refused("out_of_range", f"trace_id is {shown(trace_id)}, expected {expected}")
            self._traced.write((trace_id, time.time(), record[: _RECORDED.size]))
        except Exception as error:
            self._refuse_error(error)

    def _pack_end(self, request: Request, code: int, output_tokens: object) -> bytes:
        now = self._tick()
        written = request._output
        output = written if output_tokens is None else self._output_or_written(output_tokens, written)
        duration = now - request._arrival
        if request._first is None:
            # The prompt was read when a token came of it, or when the request ended well.
            input_due = request._input if output or code == _OK else 0
            return _pack_finished(0.0, duration, 0.0, code + _UNTIMED, request._input, output, input_due, output)
        last = now if output > written else request._last
        times = request._first - request._arrival, duration, last - request._first
        return _pack_finished(*times, code, request._input, output, 0, output - written)

    def _output_or_written(self, output_tokens: object, written: int) -> int:
        try:
            output = whole("output_tokens", output_tokens)
            if output < written:
                raise Refused("inconsistent", f"output_tokens is {output}, but {written} were told as they came")
        except Exception as error:
            self._refuse_error(error)
            return written
        return output

    # --- refusing -----------------------------------------------------------------------------------------------------

    def _outcome_code(self, outcome: object) -> int:
        """The outcome's code; an unknown outcome is an error: a false alarm is better than a false all-clear."""
        try:
            return _CODES[member("outcome", outcome, OUTCOMES)]
        except Exception as error:
            self._refuse("unknown_value", f"{error}; counted as {OUTCOMES[_ERROR]!r}")
            return _ERROR

    def _record_slowly(self, outcome: object, *numbers: object) -> bytes:
        """Record a request with a number that is not known; or its outcome alone, when one is not taken."""
        code = self._outcome_code(outcome)
        try:
            record = _pack_with_gaps(code, *numbers)
        except Exception as error:
            self._refuse_error(error)
            record = _pack_recorded(0.0, 0.0, 0.0, code + _BLANK, 0, 0, 0)
        self._recorded.write(record)
        return record

    def _record_speculation_slowly(
        self, draft_tokens: object, accepted_by_position: Iterable[object], *, declared: bool
    ) -> None:
        """Record draft tokens with numbers for fewer positions than there are; none when a number is not taken."""
        try:
            counts = self._by_position(accepted_by_position)
            if declared or draft_tokens or counts:
                padded = counts + (0,) * (self._draft_length - len(counts))
                self._steps.write(self._pack_step(whole("draft_tokens", draft_tokens), *padded))
        except Exception as error:
            self._refuse_error(error)

    def _by_position(self, accepted: Iterable[object]) -> tuple[int, ...]:
        """Accepted tokens by position. Raises Refused when there are more positions than there can be."""
        counts = tuple(whole("accepted tokens", count) for count in islice(accepted, self._draft_length + 1))
        if len(counts) > self._draft_length:
            raise Refused(
                "out_of_range",
                f"accepted_by_position {shown(accepted)} has more positions than draft_length {self._draft_length}",
            )
        return counts

    # --- for those who count ended requests in ways of their own ------------------------------------------------------

    def watch_ended(self, watch: Callable[[Ended], None]) -> None:
        """Have `watch` called with the requests that end from now on, batch by batch, by the thread that folds."""
        with self._lock:
            self._fold_journals()
            self._watchers = (*self._watchers, watch)

    def unwatch_ended(self, watch: Callable[[Ended], None]) -> None:
        """Have it called no more."""
        with self._lock:
            self._watchers = tuple(one for one in self._watchers if one != watch)

    # --- the hot path -------------------------------------------------------------------------------------------------

    def _make_record_request(self) -> RecordRequest:
        """The function with all that it needs bound: looking it up in each call costs a fifth more."""
        codes, recorded, speculated = _CODES, self._recorded, self._speculated
        append_recorded, append_speculated = recorded.append, speculated.append
        pack_recorded, pack_positions = _pack_recorded, self._positions.pack
        pack_speculated = struct.Struct(f"3d4I{self._positions.size}s").pack

        def record(
            outcome: str,
            input_tokens: int,
            output_tokens: int,
            time_to_first_token: float | None,
            duration: float,
            decode_seconds: float | None,
            draft_tokens: int = 0,
            accepted_by_position: Sequence[int] = (),
            trace_id: str | None = None,
        ) -> None:
            try:
                # One record of fixed size in one append is what makes this cheap. Only a tuple is sure to end.
                if accepted_by_position:
                    if type(accepted_by_position) is not tuple:
                        accepted_by_position = self._by_position(accepted_by_position)
                    packed = pack_speculated(
                        time_to_first_token, duration, decode_seconds, codes[outcome], input_tokens, output_tokens,
                        draft_tokens, pack_positions(*accepted_by_position),
                    )  # fmt: skip
                    append_speculated(packed)
                    journal = speculated
                else:
                    packed = pack_recorded(
                        time_to_first_token, duration, decode_seconds, codes[outcome], input_tokens, output_tokens, 0
                    )
                    if draft_tokens or accepted_by_position != ():
                        self._record_speculation_slowly(draft_tokens, accepted_by_position, declared=False)
                    append_recorded(packed)
                    journal = recorded
            except Exception:
                packed = self._record_slowly(
                    outcome, time_to_first_token, duration, decode_seconds, input_tokens, output_tokens
                )
                self._record_speculation_slowly(draft_tokens, accepted_by_position, declared=False)
            else:
                if len(journal.records) >= journal.stop_at:
                    journal.stop()
            if trace_id is not None:
                self._write_trace(trace_id, packed)

        record.__doc__ = RecordRequest.__call__.__doc__
        return record

    # --- booking, under the lock --------------------------------------------------------------------------------------

    def _make_series(self) -> None:
        scalar, distribution = self._ledger.scalar, self._ledger.distribution
        self._tps = distribution(METRICS["tps_per_request"])
        self._input_tokens = scalar(METRICS["input_tokens_total"], 0)
        self._output_tokens = scalar(METRICS["output_tokens_total"], 0)
        self._input_sizes = distribution(METRICS["input_tokens_per_request"])
        self._output_sizes = distribution(METRICS["output_tokens_per_request"])
        self._concurrent = scalar(METRICS["concurrent_requests"])
        self._speculation_rate = scalar(METRICS["speculation_rate"])
        self._drafted = scalar(METRICS["spec_decode_num_draft_tokens_total"])
        self._accepted = scalar(METRICS["spec_decode_num_accepted_tokens_total"])
        by_position = METRICS["spec_decode_num_accepted_tokens_per_pos_total"]
        self._accepted_by_position = [
            scalar(by_position, None, position=str(position)) for position in range(self._draft_length)
        ]
        self._cpu = scalar(METRICS["cpu_usage"])
        self._memory = scalar(METRICS["memory_usage"])
        self._ledger.family(METRICS["gpu_usage"])
        self._ledger.family(METRICS["gpu_memory_usage"])
        self._gpus: dict[str, tuple[Scalar, Scalar]] = {}
        self._arrivals = scalar(METRICS["requests_started_total"], 0)
        self._ends = [scalar(METRICS["requests_total"], 0, outcome=outcome) for outcome in OUTCOMES]
        self._first_token_seconds = distribution(METRICS["time_to_first_token_seconds"])
        self._per_token_seconds = distribution(METRICS["time_per_output_token_seconds"])
        self._durations = distribution(METRICS["request_duration_seconds"])
        self._inter_token_seconds = distribution(METRICS["inter_token_latency_seconds"], shown=False)
        self._queued = scalar(METRICS["queued_requests"])
        self._kv_cache_usage = scalar(METRICS["kv_cache_usage"])
        self._preemptions = scalar(METRICS["preemptions_total"], 0)
        self._decode_seconds = scalar(METRICS["decode_seconds_total"], 0)
        self._transfer_seconds = distribution(METRICS["kv_transfer_seconds"], shown=False)
        self._transfer_wait_seconds = distribution(METRICS["kv_transfer_wait_seconds"], shown=False)
        self._transfer_bytes = scalar(METRICS["kv_transfer_bytes_total"])
        self._pending_transfers = scalar(METRICS["kv_transfers_pending"])
        self._show_refusals()

    def _book_moves(self, moves: list[int], _: list[Mark]) -> None:
        self._in_flight_known = True
        self._moved_in += sum(moves)

    def _book_transfers(self, records: list[tuple[float, float, int]], _: list[Mark]) -> None:
        import numpy as np

        seconds, waits, sizes = zip(*records, strict=True)
        self._transfer_seconds.observe(np.array(seconds))
        self._transfer_wait_seconds.observe(np.array(waits))
        self._transfer_bytes.add(sum(sizes))

    def _book_starts(self, records: list[None], _: list[Mark]) -> None:
        self._in_flight_known = True
        self._arrivals.add(len(records))

    def _book_recorded(self, records: list[bytes], _: list[Mark]) -> None:
        self._book_rows(decode(records, doubles=_TIMES))

    def _book_rows(self, rows: _Rows) -> None:
        self._arrivals.add(rows.shape[1])
        # The prompt was read when a token came of it, or when the request ended well.
        prompt_read = (rows[_OUTPUT] > 0) | (_outcomes(rows) == _OK)
        self._input_tokens.add(int(rows[_INPUT] @ prompt_read))
        self._output_tokens.add(int(rows[_OUTPUT].sum()))
        figures = self._book_ends(rows)
        self._first_token_seconds.observe(figures.timed[_FIRST])

    def _book_finished(self, records: list[bytes], _: list[Mark]) -> None:
        rows = decode(records, doubles=_TIMES)
        self._input_tokens.add(int(rows[_INPUT_DUE].sum()))
        self._output_tokens.add(int(rows[_OUTPUT_DUE].sum()))
        self._book_ends(rows)

    def _book_ends(self, rows: _Rows) -> _Figures:
        """Book the outcomes and what is known of each request, but for the time to first token."""
        import numpy as np

        if self._watchers:
            self._show_ended(rows)
        ends = np.bincount(_outcomes(rows), minlength=len(OUTCOMES))
        for series, count in zip(self._ends, ends.tolist(), strict=True):
            series.add(count)
        figures = _Figures(rows)
        if len(figures.timed[0]) < len(rows[0]):
            self._refuse_untimed(rows)
        self._decode_seconds.add(float(figures.several[_DECODE].sum()))
        for distribution, values, _ in self._observations(figures):
            distribution.observe(values)
        return figures

    def _show_ended(self, rows: NDArray[np.float64]) -> None:
        first_token, duration, decoding, code, _, output = rows[: _OUTPUT + 1]
        lasted = (code < _BLANK) & (duration >= 0) & (duration <= MAX_SECONDS)
        sane = (code < _UNTIMED) & (first_token >= 0) & (decoding >= 0)
        timed = lasted & sane & (output > 0) & (first_token <= duration) & (decoding <= duration)
        ended = Ended(_outcomes(rows), duration, first_token, output, lasted, timed)
        for watch in self._watchers:
            try:
                watch(ended)
            except Exception as error:
                self._count_refused("internal", len(output), f"{watch!r} raised {error!r}")

    def _observations(self, figures: _Figures) -> Iterator[tuple[Distribution, NDArray[np.float64], _Rows]]:
        """What each histogram observes when requests end, with the rows that it is made of.

        Sizes and decode seconds are those of the same requests: tokens per second are their quotient.
        """
        lasted, timed, several, paced = figures.lasted, figures.timed, figures.several, figures.paced
        yield self._durations, lasted[_DURATION], lasted
        yield self._input_sizes, timed[_INPUT], timed
        yield self._output_sizes, timed[_OUTPUT], timed
        yield self._per_token_seconds, (several[_DURATION] - several[_FIRST]) / (several[_OUTPUT] - 1), several
        yield self._tps, (paced[_OUTPUT] - 1) / paced[_DECODE], paced

    def _book_traces(self, traces: list[tuple[str, float, bytes]], _: list[Mark]) -> None:
        import numpy as np

        rows = decode([record for _, _, record in traces], doubles=_TIMES)
        # A last row tells which trace a column is of, whatever is filtered out.
        figures = _Figures(np.vstack((rows, np.arange(len(traces)))))
        first_tokens = self._first_token_seconds, figures.timed[_FIRST], figures.timed
        for distribution, values, kept in (first_tokens, *self._observations(figures)):
            which = kept[-1].astype(np.intp).tolist()
            distribution.exemplify(values, [traces[place][:2] for place in which])

    def _refuse_untimed(self, rows: _Rows) -> None:
        """Count the requests whose times cannot be, or are missing; those that had no token need none."""
        lasted, sane, ordered = _judge_times(rows)
        code, output = rows[_CODE], rows[_OUTPUT]
        known, produced = code < _BLANK, (output > 0) & (code < _UNTIMED)
        self._refuse_rows(rows, known & ~lasted, "out_of_range")
        self._refuse_rows(rows, lasted & (output > 0) & known & (code >= _UNTIMED), "first_token_missing")
        self._refuse_rows(rows, lasted & produced & ~sane, "out_of_range")
        self._refuse_rows(rows, sane & produced & ~ordered, "inconsistent")

    def _refuse_rows(self, rows: _Rows, wrong: NDArray[np.bool_], kind: str) -> None:
        """Count requests whose times are left out of the figures, and tell of the first."""
        if not wrong.any():
            return
        first_token, duration, decoding, code, _, output = rows[: _OUTPUT + 1, wrong][:, 0]
        came = f"after {first_token:g} s" if code < _UNTIMED else "at an unknown time"
        reason = f"a request of {output:g} output tokens took {duration:g} s, its first token came {came}"
        reason += f", decoding took {decoding:g} s; it is left out of the figures made of these times"
        self._count_refused(kind, int(wrong.sum()), reason)

    def _book_first_tokens(self, records: list[bytes], _: list[Mark]) -> None:
        rows = decode(records, doubles=1)
        self._input_tokens.add(int(rows[1].sum()))
        self._output_tokens.add(len(records))
        self._first_token_seconds.observe(self._sane_seconds(rows)[0])

    def _book_batches(self, records: list[bytes], _: list[Mark]) -> None:
        rows = decode(records, doubles=1)
        self._output_tokens.add(int(rows[1].sum()))
        seconds, tokens, _ = self._sane_seconds(rows)
        # Tokens that came together share the time since the last ones.
        self._inter_token_seconds.observe(seconds / tokens, times=tokens)

    def _sane_seconds(self, rows: _Rows) -> NDArray[np.float64]:
        seconds = rows[0]
        sane = (seconds >= 0) & (seconds <= MAX_SECONDS)
        if sane.all():
            return rows
        first = seconds[~sane][0]
        reason = f"a token came {first:g} s after the one before it, or after the request's arrival"
        self._count_refused("out_of_range", int((~sane).sum()), reason)
        return rows[:, sane]

    def _book_preemptions(self, counts: list[int], _: list[Mark]) -> None:
        self._preemptions.add(sum(counts))

    def _book_speculated(self, records: list[bytes], marks: list[Mark]) -> None:
        rows = decode(records, doubles=_TIMES)
        self._book_rows(rows)
        positions = slice(_DRAFTED + 1, _DRAFTED + 1 + self._draft_length)
        self._book_speculation(rows[_DRAFTED], rows[positions], marks, self._lately_by_request)

    def _book_steps(self, records: list[bytes], marks: list[Mark]) -> None:
        columns = decode(records, doubles=0)
        self._book_speculation(columns[0], columns[1 : 1 + self._draft_length], marks, self._lately_by_step)

    def _book_speculation(
        self,
        drafted: NDArray[np.float64],
        by_position: NDArray[np.float64],
        marks: list[Mark],
        lately: tuple[Trailing, Trailing],
    ) -> None:
        import numpy as np

        accepted = np.add.reduce(by_position)
        impossible = accepted > drafted
        if impossible.any():
            reason = f"{accepted[impossible][0]:g} of {drafted[impossible][0]:g} draft tokens were accepted"
            self._count_refused("inconsistent", int(impossible.sum()), reason)
            drafted, accepted, by_position = (
                np.where(impossible, 0.0, given) for given in (drafted, accepted, by_position)
            )
        self._drafted.add(int(drafted.sum()))
        self._accepted.add(int(accepted.sum()))
        for series, count in zip(self._accepted_by_position, by_position.sum(axis=1).tolist(), strict=True):
            series.add(int(count))
        for trailing, amounts in zip(lately, (drafted, accepted), strict=True):
            trailing.add_marked(amounts, marks)

    # --- reading, under the lock --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Ledger]:
        # Asking the kernel and the driver takes milliseconds: not under the lock.
        resources = self._read_resources()
        with super()._reading() as ledger:
            if resources is not None:
                self._show_resources(resources)
            yield ledger

    def _read_resources(self) -> Resources | None:
        if self._resources is None:
            return None
        from servescope.instruments.resources import Resources

        try:
            return _checked(self._resources.read())
        except Exception as error:
            self._refuse("internal", f"resources could not be read: {shown(error)}")
            return Resources()  # those read before are not in use now

    def _show_resources(self, resources: Resources) -> None:
        self._cpu.value = resources.cpu_cores
        self._memory.value = resources.memory_bytes
        for busy, used in self._gpus.values():
            busy.value = used.value = None
        for gpu in resources.gpus:
            busy, used = self._gpu_series(gpu.index)
            busy.value, used.value = gpu.busy_ratio, gpu.memory_bytes

    def _gpu_series(self, index: str) -> tuple[Scalar, Scalar]:
        if index not in self._gpus:
            scalar = self._ledger.scalar
            self._gpus[index] = (
                scalar(METRICS["gpu_usage"], gpu=index),
                scalar(METRICS["gpu_memory_usage"], gpu=index),
            )
        return self._gpus[index]

    def _before_reading(self) -> None:
        ended = sum(end.value or 0 for end in self._ends)
        arrived = self._arrivals.value or 0
        # An engine that records its requests when they have ended does not tell how many are in flight.
        in_flight = arrived - ended + self._moved_in
        self._concurrent.value = in_flight if self._in_flight_known or not arrived else None
        now = self._now()
        by_source = (self._lately_by_request, self._lately_by_step)
        drafted, accepted = (sum(lately.sum(now) for lately in column) for column in zip(*by_source, strict=True))
        self._speculation_rate.value = accepted / drafted if drafted else None
        self._ratio_parts = {"speculation_rate": (accepted, drafted)}


def _checked(told: Resources) -> Resources:
    """The same, of types and in ranges that a page can hold. Raises Refused, or what a value of another type causes."""
    from servescope.instruments.resources import Gpu, Resources

    def amount(name: str, value: float | None, most: float) -> float | None:
        return None if value is None else finite(name, value, most)

    def size(value: int | None) -> int | None:
        return None if value is None else whole("memory_bytes", value, _MOST_BYTES)

    gpus = [
        Gpu(str.encode(gpu.index).decode(), amount("busy_ratio", gpu.busy_ratio, 1.0), size(gpu.memory_bytes))
        for gpu in told.gpus
    ]
    return Resources(amount("cpu_cores", told.cpu_cores, _MOST_CORES), size(told.memory_bytes), tuple(gpus))


class _Figures:
    """The columns of requests' rows that figures are made of, each set within the one before it.

    `lasted` have a duration, `timed` had tokens at known times, `several` had more than one token, and to those of
    `paced` decoding took time.
    """

    __slots__ = ("lasted", "paced", "several", "timed")

    def __init__(self, rows: _Rows) -> None:
        lasted, sane, ordered = _judge_times(rows)
        timed = sane & ordered & (rows[_OUTPUT] > 0) & (rows[_CODE] < _UNTIMED)
        if timed.all():
            self.lasted = self.timed = rows
        else:
            self.lasted = rows[:, lasted & (rows[_CODE] < _BLANK)]
            self.timed = rows[:, timed]
        self.several = _where(self.timed, self.timed[_OUTPUT] > 1)
        self.paced = _where(self.several, self.several[_DECODE] >= _LEAST_SECONDS)


def _judge_times(rows: _Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Which durations can be; of these, which have all times possible; and which times are in order."""
    first_token, duration, decoding = rows[:_TIMES]
    lasted = (duration >= 0) & (duration <= MAX_SECONDS)
    sane = lasted & (first_token >= 0) & (decoding >= 0)
    return lasted, sane, (first_token <= duration) & (decoding <= duration)


def _where(rows: _Rows, which: NDArray[np.bool_]) -> _Rows:
    """The columns chosen; the rows as they are, uncopied, when that is all."""
    return rows if which.all() else rows[:, which]


def _outcomes(rows: _Rows) -> NDArray[np.intp]:
    """The codes of the rows' outcomes, without what they say is missing."""
    import numpy as np

    codes: NDArray[np.intp] = rows[_CODE].astype(np.intp)
    return codes & _OUTCOME_MASK


class HandedOver(NamedTuple):
    """A request between two engine processes: what is known of it, times as the clock of the first tells them."""

    input_tokens: int
    output_tokens: int
    arrival: float
    first_token: float
    last_token: float


class Request:
    """One request in flight, made by `EngineInstruments.start_request`.

    One thread at a time drives it; any thread may finish it, and of several that do one counts.
    """

    __slots__ = ("_arrival", "_engine", "_first", "_input", "_last", "_open", "_output", "_trace_id")

    def __init__(self, engine: EngineInstruments, input_tokens: int, arrival: float, trace_id: str | None) -> None:
        self._engine = engine
        self._input = input_tokens
        self._arrival = self._last = arrival
        self._first: float | None = None
        self._output = 0
        self._open = engine._epoch
        self._trace_id = trace_id

    def first_token(self) -> None:
        """The first token came now: it counts as one output token, and the prompt's tokens as read."""
        engine = self._engine
        try:
            epoch = self._open  # the slot of a request that has ended is empty, and raises
        except AttributeError:
            engine._refuse("after_finish", "first_token() was called after finish()")
            return
        if epoch is not engine._epoch:
            engine._refuse_error(inherited("first_token"))
            return
        try:
            if self._first is not None:
                raise Refused("first_token_twice", "first_token() was called twice on one request")
            self._begin(engine._tick())
        except Exception as error:
            engine._refuse_error(error)

    def tokens(self, count: int) -> None:
        """`count` more tokens came now, together; the first call may stand for `first_token()`, its token included.

        Optional: it makes output tokens count as they come, and gives the inter-token latency.
        """
        engine = self._engine
        try:
            epoch = self._open
        except AttributeError:
            engine._refuse("after_finish", "tokens() was called after finish()")
            return
        if epoch is not engine._epoch:
            engine._refuse_error(inherited("tokens"))
            return
        try:
            if type(count) is not int or not 0 <= count <= MAX_TOKENS:
                count = whole("tokens", count)
            if not count:
                return
            now = engine._tick()
            if self._first is None:
                self._begin(now)
                count -= 1
            if count:
                batches = engine._batches
                batches.append(_pack_tokens(now - self._last, count))
                if len(batches.records) >= batches.stop_at:
                    batches.stop()
                self._output += count
                self._last = now
        except Exception as error:
            engine._refuse_error(error)

    def finish(self, outcome: str = "ok", output_tokens: int | None = None) -> None:
        """The request ended now, exactly once, with one of `metrics.OUTCOMES`; stop, length and repetition are ok.

        `output_tokens` are all of the request; None when those told by `first_token` and `tokens` are all. With more,
        the last token came now.
        """
        try:
            # A slot can be deleted once: of several threads that finish a request, one gets past here.
            epoch = self._open
            del self._open
        except AttributeError:
            self._engine._refuse("finished_twice", "finish() was called twice on one request")
            return
        if epoch is self._engine._epoch:
            self._engine._write_end(self, outcome, output_tokens)
        else:
            self._engine._refuse_error(inherited("finish"))

    def hand_over(self) -> HandedOver | None:
        """Leave the rest to another engine process: from now on not in flight here, and without an outcome here.

        None, and nothing changes, when there is nothing to hand over: it has ended, or its first token has not come.
        """
        engine = self._engine
        if self._first is None:
            engine._refuse("first_token_missing", "hand_over() was called before the first token")
            return None
        try:
            epoch = self._open
            del self._open
        except AttributeError:
            engine._refuse("after_finish", "hand_over() was called after finish()")
            return None
        if epoch is not engine._epoch:
            engine._refuse_error(inherited("hand_over"))
            return None
        engine._moved.write(-1)
        return HandedOver(self._input, self._output, self._arrival, self._first, self._last)

    def _begin(self, now: float) -> None:
        self._engine._first_tokens.write(_pack_tokens(now - self._arrival, self._input))
        self._first = self._last = now
        self._output = 1


class _UncountedRequest(Request):
    """A request that came when too many records were waiting: counted as dropped, and nothing else."""

    __slots__ = ()

    def hand_over(self) -> HandedOver | None:
        return None

    def first_token(self) -> None:
        pass

    def tokens(self, count: int) -> None:
        pass

    def finish(self, outcome: str = "ok", output_tokens: int | None = None) -> None:
        pass


def _pack_with_gaps(
    code: int,
    time_to_first_token: object,
    duration: object,
    decode_seconds: object,
    input_tokens: object,
    output_tokens: object,
) -> bytes:
    """A record of a request whose times may be None, not known. Raises Refused."""
    read, made = whole("input_tokens", input_tokens), whole("output_tokens", output_tokens)
    lasted = finite("duration", duration)
    if not made or time_to_first_token is None:
        return _pack_recorded(0.0, lasted, 0.0, code + _UNTIMED, read, made, 0)
    first_token = finite("time_to_first_token", time_to_first_token)
    if made == 1:
        decoding = 0.0
    elif decode_seconds is None:
        decoding = lasted - first_token
    else:
        decoding = finite("decode_seconds", decode_seconds)
    return _pack_recorded(first_token, lasted, decoding, code, read, made, 0)
