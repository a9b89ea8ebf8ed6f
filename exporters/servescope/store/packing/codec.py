"""The encoding of blocks of series over time, and of their instants: few bytes, decoded bit by bit.

A block is a matrix of k series by n instants, of finite numbers. Series that hold whole numbers, or whole numbers
divided by 10 … 10 000, are kept as differences in time of 64-bit integers; the buckets of a histogram, one behind the
other, as differences of neighbours before that, which undoes their cumulation. The others are XORed with their former
value. What is left is narrowed to the bytes it needs, its bytes are grouped by place, and all of it is deflated.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.store.records import StoreError

Matrix = NDArray[np.float64]

_SCALES: Final = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
_FLOAT: Final = 255
# Beyond this a float64 does not hold every whole number, and differences of differences could leave 64 bits.
_LARGEST_WHOLE: Final = 2.0**53
_LEVEL: Final = 6
_HEAD: Final = struct.Struct("<BHHB")
_FORM: Final = 1
_WIDTHS: Final = (1, 2, 4, 8)


def encode_block(values: Matrix, chained: NDArray[np.bool_]) -> bytes:
    """The bytes of k series by n instants; `chained` marks series best encoded as differences to the one before.

    n and k are 1 … 65 535. The values must be finite.
    """
    series, instants = values.shape
    scales, whole = _as_whole_numbers(values)
    is_whole = scales != _FLOAT
    # A link is only of use, and only exact, between whole numbers of one scale.
    links = chained & is_whole & np.concatenate(([False], is_whole[:-1] & (scales[1:] == scales[:-1])))
    firsts, steps, width = _encode_whole(whole, links, is_whole)
    parts = (
        scales.tobytes(),
        np.packbits(links).tobytes(),
        _by_place(firsts),
        _by_place(steps),
        _encode_floats(values[~is_whole]),
    )
    return _HEAD.pack(_FORM, series, instants, width) + zlib.compress(b"".join(parts), _LEVEL)


def decode_block(body: bytes) -> Matrix:
    """The matrix that `encode_block` was given. Raises StoreError when the bytes are not such a block."""
    try:
        return _decode_block(body)
    except (zlib.error, struct.error, ValueError, IndexError) as error:
        raise StoreError(f"a stored block is damaged: {error}") from error


def encode_stamps(times: NDArray[np.int64], layouts: NDArray[np.uint16]) -> bytes:
    """The instants of a pack, ascending, in milliseconds, and a number for each."""
    seconds = _zigzag(np.diff(np.diff(times, prepend=times[:1]), prepend=0)).view("<i8")
    return zlib.compress(
        struct.pack("<Hq", len(times), times[0]) + _by_place(seconds.view("<u8")) + layouts.astype("<u2").tobytes(), 9
    )


def decode_stamps(body: bytes) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """What `encode_stamps` was given. Raises StoreError when the bytes are not such stamps."""
    try:
        raw = zlib.decompress(body)
        count, first = struct.unpack_from("<Hq", raw)
        head = struct.calcsize("<Hq")
        second = _unzigzag(_from_places(raw[head : head + 8 * count], 8, (count,)))
        layouts = np.frombuffer(raw, "<u2", count, head + 8 * count)
        return first + np.cumsum(np.cumsum(second)), layouts
    except (zlib.error, struct.error, ValueError) as error:
        raise StoreError(f"the stored instants of a pack are damaged: {error}") from error


def _decode_block(body: bytes) -> Matrix:
    form, series, instants, width = _HEAD.unpack_from(body)
    if form != _FORM or width not in _WIDTHS:
        raise ValueError(f"form {form}, width {width}")
    raw = zlib.decompress(memoryview(body)[_HEAD.size :])
    scales = np.frombuffer(raw, np.uint8, series)
    is_whole = scales != _FLOAT
    whole, at = int(is_whole.sum()), series
    bits = (series + 7) // 8
    links = np.unpackbits(np.frombuffer(raw, np.uint8, bits, at), count=series).astype(bool)
    at += bits
    values = np.empty((series, instants))
    if whole:
        firsts = _from_places(raw[at : at + 8 * whole], 8, (whole, 1))
        at += 8 * whole
        size = width * whole * (instants - 1)
        steps = _from_places(raw[at : at + size], width, (whole, instants - 1))
        at += size
        values[is_whole] = _decode_whole(firsts, steps, links[is_whole], scales[is_whole])
    if whole < series:
        values[~is_whole] = _decode_floats(raw[at:], series - whole, instants)
    return values


def _as_whole_numbers(values: Matrix) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Per series the scale by which all its values are whole numbers, `_FLOAT` where there is none; and those."""
    scales = np.full(len(values), _FLOAT, dtype=np.uint8)
    whole = np.zeros(values.shape, dtype=np.int64)
    left = np.arange(len(values))
    for number, scale in enumerate(_SCALES):
        scaled = values[left] * scale
        fits = (np.abs(scaled) < _LARGEST_WHOLE).all(axis=1)
        left, scaled = left[fits], np.rint(scaled[fits])
        # Bit by bit, so that -0.0 stays what it is; dividing rounds to the float64 that the decimal number has.
        same = ((scaled.astype(np.int64) / scale).view(np.int64) == values[left].view(np.int64)).all(axis=1)
        scales[left[same]] = number
        whole[left[same]] = scaled[same].astype(np.int64)
        left = left[~same]
        if not len(left):
            break
    return scales, whole


def _encode_whole(
    whole: NDArray[np.int64], links: NDArray[np.bool_], is_whole: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], int]:
    """First values and steps of the whole series, both zigzagged and as narrow as they may be, and the steps' width."""
    linked = whole.copy()
    linked[links] -= whole[np.flatnonzero(links) - 1]
    linked = linked[is_whole]
    firsts = _zigzag(linked[:, :1])
    steps = _zigzag(np.diff(linked, axis=1))
    largest = int(steps.max()) if steps.size else 0
    width = next(width for width in _WIDTHS if largest < 1 << (8 * width))
    return firsts, steps.astype(f"<u{width}"), width


def _decode_whole(
    firsts: NDArray[np.uint64], steps: NDArray[np.uint64], links: NDArray[np.bool_], scales: NDArray[np.uint8]
) -> Matrix:
    whole = np.empty((len(firsts), steps.shape[1] + 1), dtype=np.int64)
    whole[:, :1] = _unzigzag(firsts)
    whole[:, 1:] = _unzigzag(steps)
    np.cumsum(whole, axis=1, out=whole)
    if links.any():
        _cumulate(whole, links)
    values: Matrix = whole / np.array(_SCALES)[scales][:, np.newaxis]
    return values


def _cumulate(whole: NDArray[np.int64], links: NDArray[np.bool_]) -> None:
    """Add to each linked row the one before it, from chain to chain."""
    starts = np.flatnonzero(~links)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(links)], strict=True):
        if end - start > 1:
            np.cumsum(whole[start:end], axis=0, out=whole[start:end])


def _encode_floats(values: Matrix) -> bytes:
    bits = values.view("<u8")
    changed = bits.copy()
    changed[:, 1:] ^= bits[:, :-1]
    return _by_place(changed)


def _decode_floats(raw: bytes, series: int, instants: int) -> Matrix:
    bits = _from_places(raw, 8, (series, instants))
    return np.bitwise_xor.accumulate(bits, axis=1).view("<f8")


def _zigzag(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _unzigzag(numbers: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    wide = numbers.astype(np.uint64)
    return (wide >> np.uint64(1)).view(np.int64) ^ -(wide & np.uint64(1)).view(np.int64)


def _by_place(numbers: NDArray[np.unsignedinteger]) -> bytes:
    """The bytes of all numbers by place: all the lowest ones, then the next; equal ones lie together so."""
    if numbers.itemsize == 1:
        return numbers.tobytes()
    flat = np.ascontiguousarray(numbers).reshape(-1)
    return flat.view(np.uint8).reshape(len(flat), numbers.itemsize).T.tobytes()


def _from_places(raw: bytes, width: int, shape: tuple[int, ...]) -> NDArray[np.unsignedinteger]:
    planes = np.frombuffer(raw, np.uint8).reshape(width, -1)
    return np.ascontiguousarray(planes.T).view(f"<u{width}").reshape(shape)
