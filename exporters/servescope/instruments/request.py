"""One request of an engine while it runs: its first token, its tokens, its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from servescope.instruments.record_buffer import RecordBuffer
from servescope.instruments.records import ALL_OK, UNTIMED, pack_finished, pack_tokens
from servescope.instruments.values import MAX_TOKENS, Refused, inherited, whole

__all__ = ["Request"]


class HandedOver(NamedTuple):
    """A request between two engine processes: what is known of it, times by the first process's clock."""

    input_tokens: int
    output_tokens: int
    arrival: float
    first_token: float
    last_token: float
    segment: str | None = None


class RecordRequest(Protocol):
    """The signature of `EngineInstruments.record_request`."""

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
        segment: str | None = None,
        truncated: bool | None = None,
    ) -> None:
        """Record a whole request that has ended, for engines that have the numbers; it counts its start too.

        `outcome` is one of `metrics.OUTCOMES`. Tokens are whole; times are seconds: `time_to_first_token` and
        `duration` from arrival, `decode_seconds` from first to last token. They are ignored when no token came; None
        means unknown: decode seconds then end with the request, and without a time to first token the request is left
        out of the figures that need one. Draft tokens and those accepted are those of the whole request.
        `trace_id`, at most 64 printable ASCII characters, links the request's figures to its trace; `segment` is as in
        `EngineInstruments.start_request`, and `truncated` as in `Request.finish`.

        Fastest by position, with `accepted_by_position` a tuple of `draft_length` counts, and without a trace.
        """


class EngineRecorder(Protocol):
    """What requests are recorded with: the instruments of an engine, or what one `segment` of it has of its own."""

    segment: str | None
    record_request: RecordRequest
    _tick: Callable[[], float]
    _traced: RecordBuffer[tuple[str, float, bytes]]
    _finished: RecordBuffer[bytes]
    _recorded: RecordBuffer[bytes]
    _speculated: RecordBuffer[bytes]
    _first_tokens: RecordBuffer[bytes]
    _started: RecordBuffer[None]
    _batches: RecordBuffer[bytes]
    _moved: RecordBuffer[int]

    @property
    def _epoch(self) -> object: ...

    def _write_end(self, request: Request, outcome: object, output_tokens: object, truncated: object) -> None: ...

    def _refuse(self, kind: str, reason: str) -> None: ...

    def _refuse_error(self, error: Exception) -> None: ...


class Request:
    """One request in flight, made by `EngineInstruments.start_request`.

    One thread at a time drives it; any thread may finish it, and of several that do one counts.
    """

    __slots__ = ("_arrival", "_engine", "_first", "_input", "_last", "_open", "_output", "_trace_id")

    def __init__(self, engine: EngineRecorder, input_tokens: int, arrival: float, trace_id: str | None) -> None:
        self._engine = engine
        self._input = input_tokens
        self._arrival = self._last = arrival
        self._first: float | None = None
        self._output = 0
        self._open = engine._epoch
        self._trace_id = trace_id

    @classmethod
    def resume(cls, engine: EngineRecorder, handed_over: HandedOver) -> Request:
        """A request that another engine process began, in the state in which it was handed over."""
        request = cls(engine, handed_over.input_tokens, handed_over.arrival, None)
        request._first, request._last = handed_over.first_token, handed_over.last_token
        request._output = handed_over.output_tokens
        return request

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
        """`count` more tokens came now, together; the first call may replace `first_token()`, its token included.

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
                batches.append(pack_tokens(now - self._last, count))
                if len(batches.records) >= batches.stop_at:
                    batches.stop()
                self._output += count
                self._last = now
        except Exception as error:
            engine._refuse_error(error)

    def finish(self, outcome: str = "ok", output_tokens: int | None = None, *, truncated: bool | None = None) -> None:
        """The request ended now, exactly once, with one of `metrics.OUTCOMES`; stop, length and repetition are ok.

        `output_tokens` are all of the request; None when `first_token` and `tokens` have counted them all. With more,
        the last token came now. `truncated` says of an answer that is ok whether it ended at a limit of its length,
        and not by itself; None where that is not known, and then for every request.
        """
        try:
            # A slot can be deleted once: of several threads that finish a request, one gets past here.
            epoch = self._open
            del self._open
        except AttributeError:
            self._engine._refuse("finished_twice", "finish() was called twice on one request")
            return
        if epoch is self._engine._epoch:
            self._engine._write_end(self, outcome, output_tokens, truncated)
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
        return HandedOver(self._input, self._output, self._arrival, self._first, self._last, engine.segment)

    def _begin(self, now: float) -> None:
        self._engine._first_tokens.write(pack_tokens(now - self._arrival, self._input))
        self._first = self._last = now
        self._output = 1

    def _pack_end(self, code: int, output_tokens: object) -> bytes:
        """The record of the request's end, which is now; of the tokens, those not counted yet are due."""
        now = self._engine._tick()
        written = self._output
        output = written if output_tokens is None else self._output_or_written(output_tokens, written)
        duration = now - self._arrival
        if self._first is None:
            # The prompt was read when a token came of it, or when the request ended well.
            input_due = self._input if output or code in ALL_OK else 0
            return pack_finished(0.0, duration, 0.0, code + UNTIMED, self._input, output, input_due, output)
        last = now if output > written else self._last
        times = self._first - self._arrival, duration, last - self._first
        return pack_finished(*times, code, self._input, output, 0, output - written)

    def _output_or_written(self, output_tokens: object, written: int) -> int:
        try:
            output = whole("output_tokens", output_tokens)
            if output < written:
                raise Refused("inconsistent", f"output_tokens is {output}, but {written} were counted as they came")
        except Exception as error:
            self._engine._refuse_error(error)
            return written
        return output


class UncountedRequest(Request):
    """A request that came when too many records were waiting: counted as dropped, and nothing else."""

    __slots__ = ()

    def hand_over(self) -> HandedOver | None:
        """Nothing to hand over."""
        return None

    def first_token(self) -> None:
        """Not counted."""

    def tokens(self, count: int) -> None:
        """Not counted."""

    def finish(self, outcome: str = "ok", output_tokens: int | None = None, *, truncated: bool | None = None) -> None:
        """Not counted."""
