"""Names of cache blocks: which ids belong to what, so that nothing is shared that should not be.

A stream is text without a branch; a block is named by the stream its last token belongs to and its place
in the prompt. All ids fit in 63 bits:

    0 … 2^55          blocks of a recorded trace, its own numbers first; or generated streams
    2^56 … 2^60       generated streams beside a trace
    2^60 … 2^61       documents of generated prompts
    2^62 … 2^63       what only one recorded request has: its output, and its prompt where the trace names no blocks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

BLOCKS_PER_STREAM: Final = 1 << 20
STREAMS_BESIDE_TRACE: Final = 1 << 36
_DOCUMENT_STREAMS: Final = 1 << 40
_BLOCKS_PER_TRACE: Final = 1 << 49
_PRIVATE: Final = 1 << 62
_64_BITS: Final = (1 << 64) - 1


def name_document(stream: int, document: int) -> int:
    """The stream of a document that follows a stream: the same after the same, another after another."""
    return _DOCUMENT_STREAMS + _scatter(stream, document) % _DOCUMENT_STREAMS


def count_shared(blocks: Sequence[int], applications: int) -> int:
    """How many generated blocks are of one of the first `applications` streams, or of a document."""
    streams = np.fromiter(blocks, dtype=np.int64, count=len(blocks)) // BLOCKS_PER_STREAM
    return int(np.count_nonzero((streams < applications) | (streams >= _DOCUMENT_STREAMS)))


def name_private(number: int, first: int, end: int) -> range:
    """Ids of the blocks `first` to `end` of request `number` that no other request has."""
    start = _PRIVATE + (number % _DOCUMENT_STREAMS) * BLOCKS_PER_STREAM
    return range(start + first, start + end)


def name_trace_block(block: int, parts: int, part: int, copy: int) -> int:
    """The id of one of the `parts` that a block of a trace is cut into, in the `copy`th copy of all prompts."""
    return copy * _BLOCKS_PER_TRACE + block * parts + part


def _scatter(first: int, second: int) -> int:
    """One number made of two, well spread over 64 bits (splitmix64)."""
    mixed = (first * 0x9E3779B97F4A7C15 + second + 1) & _64_BITS
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return mixed ^ (mixed >> 31)
