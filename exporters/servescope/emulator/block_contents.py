"""Which tokens a block of the cache holds, for those who need their ids."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

from servescope.emulator.tokens import HIGHEST_ID

_MOST_BLOCKS = 65_536
_unpack_ids = Struct("<16I").unpack


class BlockContents:
    """The tokens of blocks by their ids, for any thread: those of the blocks that clients sent, and made-up ones.

    Generated traffic has blocks without text; such a block, and one beyond the 65 536 that were named last, holds
    tokens drawn from its id, always the same.
    """

    def __init__(self) -> None:
        # Packed: tens of thousands of tuples of numbers would be some hundred megabytes.
        self._tokens: OrderedDict[int, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, block_ids: Sequence[int], ids: Sequence[int], block_tokens: int) -> None:
        """Record the tokens of these blocks, in their order."""
        with self._lock:
            for place, block in enumerate(block_ids):
                self._tokens.pop(block, None)
                self._tokens[block] = array("I", ids[place * block_tokens : (place + 1) * block_tokens])
            while len(self._tokens) > _MOST_BLOCKS:
                self._tokens.popitem(last=False)

    def tokens(self, block: int, block_tokens: int) -> list[int]:
        """The tokens of a block."""
        with self._lock:
            known = self._tokens.get(block)
        return list(known) if known is not None else _make_up(block, block_tokens)


def _make_up(block: int, count: int) -> list[int]:
    ids: list[int] = []
    for part in range(-(-count // 16)):
        digest = blake2b(f"{block}-{part}".encode(), digest_size=64).digest()
        ids += (number & HIGHEST_ID for number in _unpack_ids(digest))
    return ids[:count]
