"""How an engine's records become series: what each record adds to which counter, gauge and histogram.

Everything here runs in the thread that folds or reads, under the lock of the engine's instruments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.instruments.gen_ai import Ended
from servescope.instruments.ledger import Distribution, Ledger, Scalar, Trailing
from servescope.instruments.record_buffer import Mark, decode
from servescope.instruments.records import (
    BLANK,
    CODE,
    DECODE,
    DRAFTED,
    DURATION,
    FIRST,
    INPUT,
    INPUT_DUE,
    OK,
    OUTPUT,
    OUTPUT_DUE,
    TIMES,
    TRUNCATED,
    UNTIMED,
    EndedRequests,
    ends_of,
    judge_times,
    outcomes_of,
)
from servescope.instruments.values import MAX_SECONDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from servescope.instruments.records import Rows
    from servescope.instruments.resources import Resources

RatioParts = dict[str, tuple[float, float]]
"""Numerator and denominator of each ratio over its trailing window; several processes are added up by these."""


class EngineSeries:
    """The series of one engine process.

    `count_refused(kind, count, reason)` is called for records that are left out of the figures. The gauges are set by
    assigning to their `value`.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        draft_length: int,
        window_seconds: float,
        count_refused: Callable[[str, int, str], None],
    ) -> None:
        self._ledger = ledger
        self._draft_length = draft_length
        self._count_refused = count_refused
        self._watchers: list[Callable[[Ended], None]] = []
        self._in_flight_known = False
        self._moved_in = 0
        self._window_seconds = window_seconds
        self._lately_by_step = Trailing(window_seconds), Trailing(window_seconds)
        self._parts = [self]
        for metric in METRICS.values():
            if metric.component == "engine":
                self._ledger.family(metric)
        self._make_series()
        self._make_series_of_requests()

    def of_segment(self, name: str) -> EngineSeries:
        """The series of the requests of a segment, which count with those here; what has no segment is the same."""
        found = copy.copy(self)
        found._in_flight_known, found._moved_in = False, 0
        found._make_series_of_requests(name)
        self._parts.append(found)
        return found

    def _make_series_of_requests(self, segment: str = "") -> None:
        """The series that a segment has of its own; those of requests without one where it is empty."""
        scalar, distribution = self._ledger.scalar, self._ledger.distribution
        self._tps = distribution(METRICS["tps_per_request"], segment=segment)
        self._output_sizes = distribution(METRICS["output_tokens_per_request"], segment=segment)
        self._arrivals = scalar(METRICS["requests_started_total"], 0, segment=segment)
        self._ends = [scalar(METRICS["requests_total"], 0, outcome=outcome, segment=segment) for outcome in OUTCOMES]
        self._first_token_seconds = distribution(METRICS["time_to_first_token_seconds"], segment=segment)
        self._per_token_seconds = distribution(METRICS["time_per_output_token_seconds"], segment=segment)
        self._durations = distribution(METRICS["request_duration_seconds"], segment=segment)
        # Drafted and accepted tokens; a trailing sum needs them in the order of time, which one buffer keeps.
        self._lately_by_request = Trailing(self._window_seconds), Trailing(self._window_seconds)

    def _make_series(self) -> None:
        scalar, distribution = self._ledger.scalar, self._ledger.distribution
        self._input_tokens = scalar(METRICS["input_tokens_total"], 0)
        self._output_tokens = scalar(METRICS["output_tokens_total"], 0)
        self._input_sizes = distribution(METRICS["input_tokens_per_request"])
        self._concurrent = scalar(METRICS["concurrent_requests"])
        self._speculation_rate = scalar(METRICS["speculation_rate"])
        self._drafts = scalar(METRICS["spec_decode_num_drafts_total"])
        self._drafted = scalar(METRICS["spec_decode_num_draft_tokens_total"])
        self._accepted = scalar(METRICS["spec_decode_num_accepted_tokens_total"])
        by_position = METRICS["spec_decode_num_accepted_tokens_per_pos_total"]
        self._accepted_by_position = [
            scalar(by_position, None, position=str(position)) for position in range(self._draft_length)
        ]
        self._cpu = scalar(METRICS["cpu_usage"])
        self._memory = scalar(METRICS["memory_usage"])
        self._gpus: dict[str, tuple[Scalar, Scalar]] = {}
        self._truncated = scalar(METRICS["answers_truncated_total"])
        self._inter_token_seconds = distribution(METRICS["inter_token_latency_seconds"], shown=False)
        self.queued = scalar(METRICS["queued_requests"])
        self.kv_cache_usage = scalar(METRICS["kv_cache_usage"])
        self._preemptions = scalar(METRICS["preemptions_total"], 0)
        self._decode_seconds = scalar(METRICS["decode_seconds_total"], 0)
        self._transfer_seconds = distribution(METRICS["kv_transfer_seconds"], shown=False)
        self._transfer_wait_seconds = distribution(METRICS["kv_transfer_wait_seconds"], shown=False)
        self._transfer_bytes = scalar(METRICS["kv_transfer_bytes_total"])
        self.pending_transfers = scalar(METRICS["kv_transfers_pending"])

    def watch(self, watcher: Callable[[Ended], None]) -> None:
        """Call `watcher` with the requests that end from now on, batch by batch."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[Ended], None]) -> None:
        """Stop calling `watcher`."""
        self._watchers[:] = [one for one in self._watchers if one != watcher]

    def update(self, now: float) -> RatioParts:
        """Set the series that are computed at a reading; the parts of the ratios among them."""
        ended = sum(end.value or 0 for part in self._parts for end in part._ends)
        arrived = sum(part._arrivals.value or 0 for part in self._parts)
        # An engine that records its requests when they have ended does not report how many are in flight.
        in_flight = arrived - ended + sum(part._moved_in for part in self._parts)
        is_known = any(part._in_flight_known for part in self._parts)
        self._concurrent.value = in_flight if is_known or not arrived else None
        by_source = (*(part._lately_by_request for part in self._parts), self._lately_by_step)
        drafted, accepted = (sum(lately.sum(now) for lately in column) for column in zip(*by_source, strict=True))
        self._speculation_rate.value = accepted / drafted if drafted else None
        return {"speculation_rate": (accepted, drafted)}

    def show_resources(self, resources: Resources) -> None:
        """Set CPU, memory and GPUs to what is in use now."""
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

    # --- arrivals, moves, transfers -----------------------------------------------------------------------------------

    def book_starts(self, records: list[None], _: list[Mark]) -> None:
        """Requests that arrived."""
        self._in_flight_known = True
        self._arrivals.add(len(records))

    def book_moves(self, moves: list[int], _: list[Mark]) -> None:
        """Requests handed over: 1 into this process, -1 out of it."""
        self._in_flight_known = True
        self._moved_in += sum(moves)

    def book_transfers(self, records: list[tuple[float, float, int]], _: list[Mark]) -> None:
        """KV transfers: seconds, seconds waited, bytes."""
        import numpy as np

        seconds, waits, sizes = zip(*records, strict=True)
        self._transfer_seconds.observe(np.array(seconds))
        self._transfer_wait_seconds.observe(np.array(waits))
        self._transfer_bytes.add(sum(sizes))

    def book_drafts(self, counts: list[int], _: list[Mark]) -> None:
        """Drafts made."""
        self._drafts.add(sum(counts))

    def book_preemptions(self, counts: list[int], _: list[Mark]) -> None:
        """Preempted requests."""
        self._preemptions.add(sum(counts))

    # --- tokens as they come ------------------------------------------------------------------------------------------

    def book_first_tokens(self, records: list[bytes], _: list[Mark]) -> None:
        """First tokens: seconds from arrival, and the prompt's tokens."""
        rows = decode(records, doubles=1)
        self._input_tokens.add(int(rows[1].sum()))
        self._output_tokens.add(len(records))
        self._first_token_seconds.observe(self._sane_seconds(rows)[0])

    def book_batches(self, records: list[bytes], _: list[Mark]) -> None:
        """Tokens that came together: seconds since the ones before them, and how many."""
        rows = decode(records, doubles=1)
        self._output_tokens.add(int(rows[1].sum()))
        seconds, tokens, _ = self._sane_seconds(rows)
        # Tokens that came together share the time since the last ones.
        self._inter_token_seconds.observe(seconds / tokens, times=tokens)

    def _sane_seconds(self, rows: Rows) -> Rows:
        seconds = rows[0]
        sane = (seconds >= 0) & (seconds <= MAX_SECONDS)
        if sane.all():
            return rows
        first = seconds[~sane][0]
        reason = f"a token came {first:g} s after the one before it, or after the request's arrival"
        self._count_refused("out_of_range", int((~sane).sum()), reason)
        return rows[:, sane]

    # --- ends ---------------------------------------------------------------------------------------------------------

    def book_recorded(self, records: list[bytes], _: list[Mark]) -> None:
        """Whole requests without drafts."""
        self._book_whole(decode(records, doubles=TIMES))

    def book_speculated(self, records: list[bytes], marks: list[Mark]) -> None:
        """Whole requests with drafts."""
        rows = decode(records, doubles=TIMES)
        self._book_whole(rows)
        positions = slice(DRAFTED + 1, DRAFTED + 1 + self._draft_length)
        self._book_speculation(rows[DRAFTED], rows[positions], marks, self._lately_by_request)

    def _book_whole(self, rows: Rows) -> None:
        """Requests recorded at their end, of which nothing was counted before."""
        self._arrivals.add(rows.shape[1])
        # The prompt was read when a token came of it, or when the request ended well.
        prompt_read = rows[OUTPUT] > 0
        if not prompt_read.all():
            prompt_read |= outcomes_of(rows) == OK
        self._input_tokens.add(int(rows[INPUT] @ prompt_read))
        self._output_tokens.add(int(rows[OUTPUT].sum()))
        ended = self._book_ends(rows)
        self._first_token_seconds.observe(ended.timed[FIRST])

    def book_finished(self, records: list[bytes], _: list[Mark]) -> None:
        """Ends of requests that were counted as they ran."""
        rows = decode(records, doubles=TIMES)
        self._input_tokens.add(int(rows[INPUT_DUE].sum()))
        self._output_tokens.add(int(rows[OUTPUT_DUE].sum()))
        self._book_ends(rows)

    def _book_ends(self, rows: Rows) -> EndedRequests:
        """Book the outcomes and what is known of each request, but for the time to first token."""
        import numpy as np

        if self._watchers:
            self._show_ended(rows)
        self._count_ends(np.bincount(ends_of(rows), minlength=TRUNCATED + 1).tolist())
        ended = EndedRequests(rows)
        if len(ended.timed[0]) < len(rows[0]):
            self._refuse_untimed(rows)
        self._decode_seconds.add(float(ended.several[DECODE].sum()))
        for distribution, values, _ in self._observations(ended):
            distribution.observe(values)
        return ended

    def _count_ends(self, counts: list[int]) -> None:
        """Count requests by the code of their end."""
        *by_outcome, whole, truncated = counts
        by_outcome[OK] += whole + truncated
        for series, count in zip(self._ends, by_outcome, strict=True):
            series.add(count)
        if whole or truncated:
            # From the first answer of which it is known: before, 0 would claim that none was truncated.
            self._truncated.add(truncated)

    def _show_ended(self, rows: Rows) -> None:
        first_token, duration, decoding, code, _, output = rows[: OUTPUT + 1]
        lasted = (code < BLANK) & (duration >= 0) & (duration <= MAX_SECONDS)
        sane = (code < UNTIMED) & (first_token >= 0) & (decoding >= 0)
        timed = lasted & sane & (output > 0) & (first_token <= duration) & (decoding <= duration)
        ended = Ended(outcomes_of(rows), duration, first_token, output, lasted, timed)
        for watch in tuple(self._watchers):
            try:
                watch(ended)
            except Exception as error:
                self._count_refused("internal", len(output), f"{watch!r} raised {error!r}")

    def _observations(self, ended: EndedRequests) -> Iterator[tuple[Distribution, NDArray[np.float64], Rows]]:
        """What each histogram observes when requests end, with the rows that it is made of.

        Sizes and decode seconds are those of the same requests: tokens per second are their quotient.
        """
        lasted, timed, several, paced = ended.lasted, ended.timed, ended.several, ended.paced
        yield self._durations, lasted[DURATION], lasted
        yield self._input_sizes, timed[INPUT], timed
        yield self._output_sizes, timed[OUTPUT], timed
        yield self._per_token_seconds, (several[DURATION] - several[FIRST]) / (several[OUTPUT] - 1), several
        yield self._tps, (paced[OUTPUT] - 1) / paced[DECODE], paced

    def book_traces(self, traces: list[tuple[str, float, bytes]], _: list[Mark]) -> None:
        """Traces of requests: the id, Unix seconds, the start of the request's record."""
        import numpy as np

        rows = decode([record for _, _, record in traces], doubles=TIMES)
        # The added last row is the index of a column's trace; it survives filtering.
        ended = EndedRequests(np.vstack((rows, np.arange(len(traces)))))
        first_tokens = self._first_token_seconds, ended.timed[FIRST], ended.timed
        for distribution, values, kept in (first_tokens, *self._observations(ended)):
            which = kept[-1].astype(np.intp).tolist()
            distribution.exemplify(values, [traces[place][:2] for place in which])

    def _refuse_untimed(self, rows: Rows) -> None:
        """Count the requests whose times are impossible or missing; those without a token need none."""
        lasted, sane, ordered = judge_times(rows)
        code, output = rows[CODE], rows[OUTPUT]
        known, produced = code < BLANK, (output > 0) & (code < UNTIMED)
        self._refuse_rows(rows, known & ~lasted, "out_of_range")
        self._refuse_rows(rows, lasted & (output > 0) & known & (code >= UNTIMED), "first_token_missing")
        self._refuse_rows(rows, lasted & produced & ~sane, "out_of_range")
        self._refuse_rows(rows, sane & produced & ~ordered, "inconsistent")

    def _refuse_rows(self, rows: Rows, wrong: NDArray[np.bool_], kind: str) -> None:
        """Count requests whose times are left out of the figures, and log the first."""
        if not wrong.any():
            return
        first_token, duration, decoding, code, _, output = rows[: OUTPUT + 1, wrong][:, 0]
        came = f"after {first_token:g} s" if code < UNTIMED else "at an unknown time"
        reason = f"a request of {output:g} output tokens took {duration:g} s, its first token came {came}"
        reason += f", decoding took {decoding:g} s; it is left out of the figures made of these times"
        self._count_refused(kind, int(wrong.sum()), reason)

    # --- speculation --------------------------------------------------------------------------------------------------

    def book_steps(self, records: list[bytes], marks: list[Mark]) -> None:
        """Speculation by step: drafted tokens, and accepted ones by position."""
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
