"""The instruments of an inference engine: requests from arrival to their end, tokens, speculation, caches, resources.

    engine = EngineInstruments(Identity("llama-70b", "chat-v2", "v2", replica="engine-0"))
    request = engine.start_request(input_tokens=812)     # it arrived
    request.first_token()
    request.tokens(4)                                    # four more, as they come; optional
    request.finish("ok", output_tokens=128)              # exactly once

or, for an engine that has the numbers already, `engine.record_request(...)` at the end of each request.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from servescope.contract.metrics import MOST_SEGMENTS, OTHER_SEGMENT, OUTCOMES
from servescope.errors import UsageError
from servescope.instruments.booking import EngineSeries
from servescope.instruments.instrument import Instruments
from servescope.instruments.record_buffer import RecordBuffer
from servescope.instruments.records import (
    BLANK,
    CODES,
    ERROR,
    RECORDED_BYTES,
    end_code,
    pack_finished,
    pack_recorded,
    pack_with_gaps,
)
from servescope.instruments.request import EngineRecorder, HandedOver, RecordRequest, Request, UncountedRequest
from servescope.instruments.values import (
    MAX_TOKENS,
    Refused,
    finite,
    label_value,
    member,
    require_positive,
    require_whole,
    shown,
    whole,
)

if TYPE_CHECKING:
    from servescope.contract.identity import Identity
    from servescope.instruments.gen_ai import Ended
    from servescope.instruments.ledger import Ledger
    from servescope.instruments.resources import Resources

_LONGEST_TRACE_ID = 64
_MOST_BYTES = 2**63
_READER_SECONDS = 1.0

# These return floats and cannot fail: they need no guard.
_TRUSTED_CLOCKS = (time.perf_counter, time.monotonic, time.time)


class ResourceReader(Protocol):
    """What `resources=` accepts: an object that reads the resources of this process, such as ResourceMeter."""

    def read(self) -> Resources:
        """The resources in use now; called by readers, never on the hot path.

        When it raises, or a value is negative, NaN or of another type, or a share above 1, the whole reading is left
        out, and that is counted.
        """


class EngineInstruments(Instruments):
    """What one engine process exposes.

    `draft_length` is the most draft tokens per step and sequence, which is the number of positions for which accepted
    tokens are counted. `speculation_rate` covers the trailing `ratio_window_seconds`. `clock` returns seconds and never
    goes back. `resources` is read at each reading.

    Any thread may call any method; one request is driven by one thread at a time, but may be finished by another.
    No method raises: invalid values are counted in `servescope_instrument_errors_total` and logged once per kind. The
    constructor raises UsageError, and loads numpy; importing this module does not.
    """

    roles = ("aggregated", "prefill", "decode")

    segment: str | None = None
    """That of the requests that are begun without one."""

    record_request: RecordRequest
    """Record a whole request that has ended: `RecordRequest` documents the arguments."""

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
            expected = "an object with read(), such as servescope.instruments.resources.ResourceMeter()"
            raise UsageError(f"resources is {resources!r}, expected {expected}")
        window_seconds = require_positive("ratio_window_seconds", ratio_window_seconds)
        self._draft_length = draft_length
        self._window_seconds = window_seconds
        self._positions = struct.Struct(f"{draft_length}I0d")
        self._pack_step = struct.Struct(f"I{draft_length}I0d").pack
        self._resources = resources
        self._series = series = self._make_series()
        self._show_refusals()
        # In the order of folding: traces before their requests and ends before starts, so that no reading has the first
        # without the second. Neither ends nor starts of requests in flight are ever dropped, or they would not
        # add up.
        self._traced = self._buffer(series.book_traces)
        self._finished = self._buffer(series.book_finished, droppable=False)
        self._recorded = self._buffer(series.book_recorded)
        self._speculated = self._buffer(series.book_speculated, window_seconds=window_seconds)
        self._batches = self._buffer(series.book_batches)
        self._first_tokens = self._buffer(series.book_first_tokens)
        self._steps = self._buffer(series.book_steps, window_seconds=window_seconds)
        self._drafts = self._buffer(series.book_drafts)
        self._preempted = self._buffer(series.book_preemptions)
        self._transferred = self._buffer(series.book_transfers)
        self._moved = self._buffer(series.book_moves, droppable=False)
        self._started = self._buffer(series.book_starts)
        self._tick = clock if clock in _TRUSTED_CLOCKS else self._now
        self._segments: dict[str, _SegmentRecorder] = {}
        self.record_request = self._make_record_request(self)

    def _make_series(self) -> EngineSeries:
        return EngineSeries(
            self._ledger,
            draft_length=self._draft_length,
            window_seconds=self._window_seconds,
            count_refused=self._count_refused,
        )

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

    def start_request(self, input_tokens: int, *, trace_id: str | None = None, segment: str | None = None) -> Request:
        """A request that arrives now, with so many prompt tokens, cached ones included; in flight until finished.

        `trace_id`, at most 64 printable ASCII characters, links the figures the request ends with to its trace.
        `segment` is the tenant, route, priority or class of prompts that it is of: it counts in series with this label
        then, and not in those without. A process has `MOST_SEGMENTS` of them; requests of any further one are those of
        the segment `other`. The first request of a segment may wait for a reader.
        """
        try:
            tokens = input_tokens
            if type(tokens) is not int or not 0 <= tokens <= MAX_TOKENS:
                tokens = whole("input_tokens", input_tokens)
        except Exception as error:
            self._refuse_error(error)
            tokens = 0
        recorder: EngineRecorder = self if segment is None else self._recorder_of(segment)
        request = Request(recorder, tokens, self._tick(), trace_id)
        return request if recorder._started.write(None) else UncountedRequest(recorder, tokens, 0.0, None)

    def take_over(self, handed_over: HandedOver) -> Request:
        """Continue a request that another engine process started and handed over; in flight here until finished.

        Its start, its prompt, its first token and what came before are counted there, and nowhere else; the tokens
        from now on, its outcome and its sizes and times as a whole are counted here. Both use the same clock.
        """
        self._moved.write(1)
        segment = handed_over.segment
        return Request.resume(self if segment is None else self._recorder_of(segment), handed_over)

    def _recorder_of(self, segment: str) -> EngineRecorder:
        """What the requests of a segment are recorded with; these instruments where it is refused."""
        try:
            found = self._segments.get(segment)
            return self._new_segment(label_value("segment", segment)) if found is None else found
        except Exception as error:
            self._refuse_error(error)
            return self

    def _new_segment(self, segment: str) -> _SegmentRecorder:
        # Readers go through the series and buffers under the lock. A signal handler or a finalizer may have interrupted
        # one on this very thread, which would never release it.
        if not self._lock.acquire(timeout=_READER_SECONDS):
            raise Refused("dropped", f"segment {shown(segment)} came while a reader did not end; counted in none")
        try:
            if segment not in self._segments and len(self._segments.keys() - {OTHER_SEGMENT}) >= MOST_SEGMENTS:
                segment = OTHER_SEGMENT
            if segment not in self._segments:
                self._segments[segment] = _SegmentRecorder(segment, self, self._series.of_segment(segment))
            return self._segments[segment]
        finally:
            self._lock.release()

    # --- speculation --------------------------------------------------------------------------------------------------

    def record_speculation(self, draft_tokens: int, accepted_by_position: Sequence[int]) -> None:
        """Record one step's draft tokens, and how many were accepted at each position, summed over the batch.

        `record_speculation(0, ())` says that speculation is on: its counters are then exposed, at 0.
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

    def count_drafts(self, count: int) -> None:
        """Count the drafts of one step, one for each sequence that had one; for engines that know how many."""
        try:
            self._drafts.write(whole("drafts", count))
        except Exception as error:
            self._refuse_error(error)

    # --- state of the engine ------------------------------------------------------------------------------------------

    def set_queued_requests(self, count: int) -> None:
        """Set how many requests wait to be scheduled now."""
        try:
            self._series.queued.value = whole("queued requests", count)
        except Exception as error:
            self._refuse_error(error)

    def set_kv_cache_usage(self, share: float) -> None:
        """Set the share of the KV cache in use now, from 0 to 1."""
        try:
            self._series.kv_cache_usage.value = finite("KV cache usage", share, 1.0)
        except Exception as error:
            self._refuse_error(error)

    def count_preemptions(self, count: int = 1) -> None:
        """Count requests preempted to free KV cache."""
        try:
            self._preempted.write(whole("preemptions", count))
        except Exception as error:
            self._refuse_error(error)

    def record_kv_transfer(self, seconds: float, *, waited_seconds: float, size_bytes: int) -> None:
        """Record a KV transfer to this worker; `waited_seconds` of it passed between first token and transfer."""
        try:
            times = finite("seconds", seconds), finite("waited_seconds", waited_seconds)
            self._transferred.write((*times, whole("size_bytes", size_bytes, _MOST_BYTES)))
        except Exception as error:
            self._refuse_error(error)

    def set_pending_kv_transfers(self, count: int) -> None:
        """Set how many requests have their prompt computed here and their KV still to be sent to another worker."""
        try:
            self._series.pending_transfers.value = whole("pending KV transfers", count)
        except Exception as error:
            self._refuse_error(error)

    # --- called by requests -------------------------------------------------------------------------------------------

    def _write_end(self, request: Request, outcome: object, output_tokens: object, truncated: object) -> None:
        code = self._end_code(outcome, truncated)
        try:
            record = request._pack_end(code, output_tokens)
        except Exception as error:
            self._refuse_error(error)
            record = pack_finished(0.0, 0.0, 0.0, code + BLANK, 0, 0, 0, 0)
        recorder = request._engine
        recorder._finished.write(record)
        if request._trace_id is not None:
            self._write_trace(recorder, request._trace_id, record)

    def _write_trace(self, recorder: EngineRecorder, trace_id: object, record: bytes) -> None:
        """Keep the trace of a request that was just recorded; all records of requests begin with the same fields."""
        try:
            # Printable ASCII can be written to any page.
            if type(trace_id) is not str or not (trace_id.isascii() and trace_id.isprintable()):
                raise Refused("wrong_type", f"trace_id is {shown(trace_id)}, expected printable ASCII text")
            if not 0 < len(trace_id) <= _LONGEST_TRACE_ID:
                expected = f"1 to {_LONGEST_TRACE_ID} characters"
                raise Refused("out_of_range", f"trace_id is {shown(trace_id)}, expected {expected}")
            recorder._traced.write((trace_id, time.time(), record[:RECORDED_BYTES]))
        except Exception as error:
            self._refuse_error(error)

    # --- refusing -----------------------------------------------------------------------------------------------------

    def _end_code(self, outcome: object, truncated: object) -> int:
        """The code of an end; an unknown outcome is an error: a false alarm is better than a missed one."""
        try:
            code = CODES[member("outcome", outcome, OUTCOMES)]
        except Exception as error:
            self._refuse("unknown_value", f"{error}; counted as {OUTCOMES[ERROR]!r}")
            return ERROR
        try:
            return end_code(code, truncated)
        except Exception as error:
            self._refuse_error(error)
            return code

    def _record_slowly(self, recorder: EngineRecorder, outcome: object, truncated: object, *numbers: object) -> bytes:
        """Record a request with an unknown number; or its outcome alone, when a number is refused."""
        code = self._end_code(outcome, truncated)
        try:
            record = pack_with_gaps(code, *numbers)
        except Exception as error:
            self._refuse_error(error)
            record = pack_recorded(0.0, 0.0, 0.0, code + BLANK, 0, 0, 0)
        recorder._recorded.write(record)
        return record

    def _record_speculation_slowly(
        self, draft_tokens: object, accepted_by_position: Iterable[object], *, declared: bool
    ) -> None:
        """Record draft tokens with numbers for fewer positions than there are; nothing when a number is refused."""
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

    # --- for exporters that count ended requests themselves ------------------------------------------------------

    def watch_ended(self, watch: Callable[[Ended], None]) -> None:
        """Call `watch` with the requests that end from now on, batch by batch, in the thread that folds."""
        with self._lock:
            self._fold_buffers()
            self._series.watch(watch)

    def unwatch_ended(self, watch: Callable[[Ended], None]) -> None:
        """Stop calling it."""
        with self._lock:
            self._series.unwatch(watch)

    # --- the hot path -------------------------------------------------------------------------------------------------

    def _make_record_request(self, recorder: EngineRecorder) -> RecordRequest:
        """The function with everything it needs bound: looking that up in each call costs a fifth more."""
        codes, recorded, speculated = CODES, recorder._recorded, recorder._speculated
        append_recorded, append_speculated = recorded.append, speculated.append
        pack_plain, pack_positions = pack_recorded, self._positions.pack
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
            segment: str | None = None,
            truncated: bool | None = None,
        ) -> None:
            if segment is not None:
                self._recorder_of(segment).record_request(
                    outcome, input_tokens, output_tokens, time_to_first_token, duration, decode_seconds, draft_tokens,
                    accepted_by_position, trace_id, truncated=truncated,
                )  # fmt: skip
                return
            try:
                code = codes[outcome] if truncated is None else end_code(codes[outcome], truncated)
                # One record of fixed size in one append is what makes this cheap. Only a tuple is known to be finite.
                if accepted_by_position:
                    if type(accepted_by_position) is not tuple:
                        accepted_by_position = self._by_position(accepted_by_position)
                    packed = pack_speculated(
                        time_to_first_token, duration, decode_seconds, code, input_tokens, output_tokens,
                        draft_tokens, pack_positions(*accepted_by_position),
                    )  # fmt: skip
                    append_speculated(packed)
                    buffer = speculated
                else:
                    packed = pack_plain(
                        time_to_first_token, duration, decode_seconds, code, input_tokens, output_tokens, 0
                    )
                    if draft_tokens or accepted_by_position != ():
                        self._record_speculation_slowly(draft_tokens, accepted_by_position, declared=False)
                    append_recorded(packed)
                    buffer = recorded
            except Exception:
                packed = self._record_slowly(
                    recorder,
                    outcome,
                    truncated,
                    time_to_first_token,
                    duration,
                    decode_seconds,
                    input_tokens,
                    output_tokens,
                )
                self._record_speculation_slowly(draft_tokens, accepted_by_position, declared=False)
            else:
                if len(buffer.records) >= buffer.stop_at:
                    buffer.stop()
            if trace_id is not None:
                self._write_trace(recorder, trace_id, packed)

        record.__doc__ = RecordRequest.__call__.__doc__
        return record

    # --- reading, under the lock --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Ledger]:
        # Asking the kernel and the driver takes milliseconds: not under the lock.
        resources = self._read_resources()
        with super()._reading() as ledger:
            if resources is not None:
                self._series.show_resources(resources)
            yield ledger

    def _read_resources(self) -> Resources | None:
        if self._resources is None:
            return None
        from servescope.instruments.resources import Resources, checked

        try:
            return checked(self._resources.read())
        except Exception as error:
            self._refuse("internal", f"resources could not be read: {shown(error)}")
            return Resources()  # those read before are not in use now

    def _before_reading(self) -> None:
        self._ratio_parts = self._series.update(self._now())


class _SegmentRecorder:
    """The requests of one segment of an engine; made under the lock of its instruments.

    What no segment has of its own, such as the gaps between tokens, is written to the engine's buffers.
    """

    def __init__(self, segment: str, engine: EngineInstruments, series: EngineSeries) -> None:
        self.segment: str | None = segment
        self._engine = engine
        self._tick: Callable[[], float] = engine._tick
        self._batches, self._moved = engine._batches, engine._moved
        # In the order of folding: ends before starts, as those of the engine.
        self._traced: RecordBuffer[tuple[str, float, bytes]] = engine._buffer(series.book_traces)
        self._finished: RecordBuffer[bytes] = engine._buffer(series.book_finished, droppable=False)
        self._recorded: RecordBuffer[bytes] = engine._buffer(series.book_recorded)
        self._speculated: RecordBuffer[bytes] = engine._buffer(
            series.book_speculated, window_seconds=engine._window_seconds
        )
        self._first_tokens: RecordBuffer[bytes] = engine._buffer(series.book_first_tokens)
        self._started: RecordBuffer[None] = engine._buffer(series.book_starts)
        self.record_request: RecordRequest = engine._make_record_request(self)

    @property
    def _epoch(self) -> object:
        # That of the engine now: a forked child begins another.
        return self._engine._epoch

    def _write_end(self, request: Request, outcome: object, output_tokens: object, truncated: object) -> None:
        self._engine._write_end(request, outcome, output_tokens, truncated)

    def _refuse(self, kind: str, reason: str) -> None:
        self._engine._refuse(kind, reason)

    def _refuse_error(self, error: Exception) -> None:
        self._engine._refuse_error(error)
