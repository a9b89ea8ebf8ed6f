"""What follows at each block from the blocks before it alone, computed in pieces, and each piece once.

A judge computes it again whenever a block has closed. The pieces that are complete follow from the same numbers as the
last time, which their digests say, so that only the last one is computed: for a stage of a year that is minutes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_KNOWN: Final = 1024
"""Series of which pieces are known: some for each metric, and each segment, of each run that a process judges."""

_MOST_COMPARED: Final = 16
"""Series of which inputs are kept: those of one run, or of two."""


class Piece(NamedTuple):
    """What was found for the blocks of a piece, (N, k), and what the next one needs of it."""

    found: NDArray[np.float64]
    state: Any


_known: OrderedDict[bytes, tuple[tuple[bytes, ...], tuple[Piece, ...]]] = OrderedDict()
_lock: Final = Lock()


def compute_pieces(
    compute: Callable[[slice, Any], Piece],
    inputs: Sequence[NDArray[Any]],
    parameters: object,
    width: int,
    state: Any = None,
) -> NDArray[np.float64]:
    """What `compute` gives for the K blocks of the inputs, (..., K) each, `width` at a time: (N, K).

    It is given the columns of a piece and the state that the piece before left, and may use the inputs up to its last
    column, and the parameters, whose `repr` says all of them.
    """
    size = inputs[0].shape[-1]
    pieces = [slice(first, min(first + width, size)) for first in range(0, max(size, 1), width)]
    digests = _digests(inputs, parameters, [piece for piece in pieces if piece.stop - piece.start == width])
    with _lock:
        former, done = _known.get(digests[0], ((), ())) if digests else ((), ())
    shared = next((index for index, pair in enumerate(zip(digests, former, strict=False)) if pair[0] != pair[1]),
                  min(len(digests), len(former)))  # fmt: skip
    found = list(done[:shared])
    for piece in pieces[shared:]:
        found.append(compute(piece, found[-1].state if found else state))
    if digests:
        with _lock:
            _known[digests[0]] = digests, tuple(found[: len(digests)])
            _known.move_to_end(digests[0])
            while len(_known) > _MOST_KNOWN:
                _known.popitem(last=False)
    return np.concatenate([each.found for each in found], axis=1)


class _Compared(NamedTuple):
    """The inputs of complete pieces, what was found of these, and what the next one needs."""

    inputs: tuple[NDArray[Any], ...]
    found: tuple[Any, ...]
    state: Any


_compared: OrderedDict[bytes, _Compared] = OrderedDict()


def compare_pieces(
    compute: Callable[[slice, Any], tuple[Any, Any]],
    inputs: tuple[NDArray[Any], ...],
    parameters: object,
    width: int,
    state: Any,
) -> list[Any]:
    """As `compute_pieces`, for inputs of all replicas, which are compared with those of the last time: digests of them
    take longer.

    What `compute` gives for each piece is not looked into. Where anything of complete pieces has changed, all are
    computed anew.
    """
    size = inputs[0].shape[-1]
    complete = size // width
    key = _digests(inputs, parameters, [slice(0, min(width, size))])[0]
    with _lock:
        former = _compared.get(key)
    found: list[Any] = []
    kept: _Compared | None = None
    if former is not None and len(former.found) <= complete:
        known = len(former.found) * width
        both = zip(former.inputs, inputs, strict=True)
        if all(np.array_equal(one[..., :known], other[..., :known]) for one, other in both):
            # Those of the last time are let go: the ones of now are there anyway.
            found, state, kept = list(former.found), former.state, former._replace(inputs=inputs)
    for first in range(len(found) * width, size, width):
        piece, state = compute(slice(first, min(first + width, size)), state)
        found.append(piece)
        if len(found) == complete:
            kept = _Compared(inputs, tuple(found), state)
    if kept is not None:
        with _lock:
            _compared[key] = kept
            _compared.move_to_end(key)
            while len(_compared) > _MOST_COMPARED:
                _compared.popitem(last=False)
    return found


def _digests(inputs: Sequence[NDArray[Any]], parameters: object, pieces: Sequence[slice]) -> tuple[bytes, ...]:
    """Of each piece that of all the inputs up to its end."""
    digest, found = blake2b(repr(parameters).encode(), digest_size=16), []
    for piece in pieces:
        for each in inputs:
            digest.update(np.ascontiguousarray(each[..., piece]).data)
        found.append(digest.copy().digest())
    return tuple(found)
