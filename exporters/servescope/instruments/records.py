"""The records of an engine's requests: bytes on the hot path, rows of numbers when they are booked.

A record is doubles, then counts, filled up to a multiple of a double. Packing integers as integers is twice as fast as
packing them as doubles, and refuses at no cost what is not a count.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from servescope.contract.metrics import OUTCOMES
from servescope.instruments.values import MAX_SECONDS, Refused, finite, shown, whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.float64]
    """Records as floats: one row per number of a record, one column per request."""

# A record's code is its outcome's, plus what is missing: the time of the first token, or all but the outcome. Of what
# was ok and is known to have ended by itself, or at a limit of its length, it is one of two codes beyond the outcomes'.
CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
OK, ERROR = CODES["ok"], CODES["error"]
WHOLE, TRUNCATED = len(OUTCOMES), len(OUTCOMES) + 1
ALL_OK = frozenset((OK, WHOLE, TRUNCATED))
UNTIMED = 8
BLANK = 16
_END_MASK = 7

TIMES = 3
FIRST, DURATION, DECODE, CODE, INPUT, OUTPUT, DRAFTED = range(7)
INPUT_DUE, OUTPUT_DUE = 6, 7
"""Rows of a request that was counted as it ran: the tokens that its end still has to count."""

_RECORDED = struct.Struct("3d4I")  # times; code, input, output, drafted
RECORDED_BYTES = _RECORDED.size
pack_recorded = _RECORDED.pack
pack_finished = struct.Struct("3d5I0d").pack  # times; code, input, output, input due, output due
pack_tokens = struct.Struct("dI0d").pack  # seconds; tokens

# A decode time below a clock's resolution has no rate.
_LEAST_SECONDS = 1e-9


def end_code(code: int, truncated: object) -> int:
    """The code of a request that ended with the outcome of `code`, and of why its answer did. Raises Refused."""
    if truncated is None:
        return code
    if not isinstance(truncated, bool):
        raise Refused("wrong_type", f"truncated is {shown(truncated)}, expected True, False or None")
    if code != OK:
        return code
    return TRUNCATED if truncated else WHOLE


def pack_with_gaps(
    code: int,
    time_to_first_token: object,
    duration: object,
    decode_seconds: object,
    input_tokens: object,
    output_tokens: object,
) -> bytes:
    """The record of a request whose times may be None, which is unknown. Raises Refused."""
    read, made = whole("input_tokens", input_tokens), whole("output_tokens", output_tokens)
    lasted = finite("duration", duration)
    if not made or time_to_first_token is None:
        return pack_recorded(0.0, lasted, 0.0, code + UNTIMED, read, made, 0)
    first_token = finite("time_to_first_token", time_to_first_token)
    if made == 1:
        decoding = 0.0
    elif decode_seconds is None:
        decoding = lasted - first_token
    else:
        decoding = finite("decode_seconds", decode_seconds)
    return pack_recorded(first_token, lasted, decoding, code, read, made, 0)


class EndedRequests:
    """The columns of requests' rows by what is known of them; each set lies within the one before it.

    `lasted` have a duration, `timed` had tokens at known times, `several` had more than one token, and `paced` spent a
    measurable time on decoding.
    """

    __slots__ = ("lasted", "paced", "several", "timed")

    def __init__(self, rows: Rows) -> None:
        lasted, sane, ordered = judge_times(rows)
        timed = sane & ordered & (rows[OUTPUT] > 0) & (rows[CODE] < UNTIMED)
        if timed.all():
            self.lasted = self.timed = rows
        else:
            self.lasted = rows[:, lasted & (rows[CODE] < BLANK)]
            self.timed = rows[:, timed]
        self.several = _where(self.timed, self.timed[OUTPUT] > 1)
        self.paced = _where(self.several, self.several[DECODE] >= _LEAST_SECONDS)


def judge_times(rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Which durations are possible; which of these have all times possible; and which times are in order."""
    first_token, duration, decoding = rows[:TIMES]
    lasted = (duration >= 0) & (duration <= MAX_SECONDS)
    sane = lasted & (first_token >= 0) & (decoding >= 0)
    return lasted, sane, (first_token <= duration) & (decoding <= duration)


def ends_of(rows: Rows) -> NDArray[np.intp]:
    """The codes of the rows' ends, without the flags of what is missing."""
    import numpy as np

    codes: NDArray[np.intp] = rows[CODE].astype(np.intp)
    return codes & _END_MASK


def outcomes_of(rows: Rows) -> NDArray[np.intp]:
    """The codes of the rows' outcomes, whyever their answers ended."""
    ends = ends_of(rows)
    ends[ends >= WHOLE] = OK
    return ends


def _where(rows: Rows, which: NDArray[np.bool_]) -> Rows:
    """The chosen columns; the rows themselves, uncopied, when all are chosen."""
    return rows if which.all() else rows[:, which]
