"""Text as tokens and back: a tokenizer without a vocabulary, ids of blocks, and answers that mean nothing.

A token is a short piece of text: at most six letters with the space before them, three digits, or two other signs. That
comes near the four characters per token that English has in common tokenizers. Its id is a hash of the piece, so that
any text has ids, the same ones everywhere. What is generated is cut into the tokens it was generated as.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from struct import Struct

HIGHEST_ID = 2**31 - 1

_PIECE = re.compile(
    r" ?[A-Za-z\u00c0-\u024f]{1,6}"
    r"|[^\W\d_]{1,2}"  # scripts with more to a letter
    r"| ?\d{1,3}"
    r"| ?(?:[^\w\s]|_){1,2}"
    r"|\s{1,8}"
    r"|.",
    re.DOTALL,
)
# Ids below these are the marks of a conversation, which no text can forge.
_LOWEST_ID = 256
_END = 1
_ANSWER = 2
_TOOLS = 3
_NAME = 4
_ROLES = {"system": 16, "developer": 17, "user": 18, "assistant": 19, "tool": 20, "function": 21}
_WORDS = (
    "water", "stone", "light", "river", "cloud", "field", "night", "paper", "glass", "house", "voice", "music",
    "green", "quiet", "early", "small", "round", "under", "over", "near", "then", "when", "again", "often",
    "road", "wind", "rain", "snow", "leaf", "tree", "bird", "fish", "hand", "door", "wall", "roof",
    "walks", "turns", "keeps", "finds", "holds", "opens", "brings", "leaves", "rests", "grows", "falls", "stays",
)  # fmt: skip
_SENTENCE = 12

# Beyond the ids that generated traffic counts up from 0, and within the signed integers of other languages.
_BLOCK_MARK = 1 << 62
_pack_id = Struct("<I").pack


def tokenize(text: str) -> list[int]:
    """The ids of the text's tokens, each 0 … HIGHEST_ID."""
    span = HIGHEST_ID + 1 - _LOWEST_ID
    return [_LOWEST_ID + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % span for piece in _PIECE.findall(text)]


def tokenize_conversation(messages: Iterable[Mapping[str, str]], *, tools: object = None) -> list[int]:
    """The ids of a conversation up to where the answer begins.

    Each message has a `role`, one of ROLES, its `content`, and perhaps a `name`. It is tokenized by itself, so that a
    conversation's next turn begins with the tokens it had before, the answer included.
    """
    ids: list[int] = []
    if tools:
        ids += [_TOOLS, *tokenize(json.dumps(tools, sort_keys=True, ensure_ascii=False)), _END]
    for message in messages:
        role = message["role"]
        ids.append(_ANSWER if role == "assistant" else _ROLES[role])
        if message.get("name"):
            ids += [_NAME, *tokenize(message["name"])]
        ids += [*tokenize(message["content"]), _END]
    return [*ids, _ANSWER]


ROLES = tuple(_ROLES)


def chain_blocks(ids: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """Ids of the full blocks of a sequence of tokens; each identifies its tokens and all before them."""
    chained: list[int] = []
    parent = b""
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        packed = b"".join(map(_pack_id, ids[start : start + block_tokens]))
        parent = blake2b(parent + packed, digest_size=8).digest()
        chained.append(int.from_bytes(parent) >> 2 | _BLOCK_MARK)
    return tuple(chained)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: `tokens`, and the `text` of them up to a stop sequence; `finish` is `stop` or `length`."""

    tokens: tuple[int, ...]
    text: str
    finish: str
    _ends: tuple[int, ...]

    def text_of(self, first: int, last: int) -> str:
        """The text of the tokens from `first` up to but without `last`."""
        begin = self._ends[first - 1] if first else 0
        return self.text[begin : self._ends[last - 1]] if last > first else ""

    def end_after(self, tokens: int, *, truncated: bool) -> Answer:
        """The answer if it had ended after so many of its tokens: at a limit where it is `truncated`, or by itself."""
        finish = "length" if truncated else "stop"
        if tokens >= len(self.tokens):
            return replace(self, finish=finish)
        return Answer(self.tokens[:tokens], self.text_of(0, tokens), finish, self._ends[:tokens])


def compose_answer(key: str, *, natural: int | None, limit: int, fewest: int = 0, stop: Sequence[str] = ()) -> Answer:
    """An answer that the same `key` composes again, which would end by itself after `natural` tokens, None for never.

    It ends for `length` when it is cut at `limit` tokens, 1 or more, before that; with the token that completes one of
    `stop` behind the `fewest` first tokens when that comes sooner, its text then ends before the stop sequence.
    """
    ends_itself = natural is not None and natural <= limit
    pieces = _draw_pieces(random.Random(f"answer-{key}"), natural if natural is not None and ends_itself else limit)
    text = "".join(pieces)
    ends = list(accumulate(map(len, pieces)))
    finish = "stop" if ends_itself else "length"
    searched = ends[min(fewest, len(ends)) - 1] if fewest else 0
    found = [(text.find(sequence, searched), len(sequence)) for sequence in stop]
    complete = [(at + length, at) for at, length in found if at >= 0]
    if complete:
        last, cut = min(complete)
        kept = next(index for index, end in enumerate(ends, 1) if end >= last)
        pieces, ends, text, finish = pieces[:kept], ends[:kept], text[:cut], "stop"
    return Answer(tuple(tokenize("".join(pieces))), text, finish, tuple(ends))


def _draw_pieces(source: random.Random, count: int) -> list[str]:
    pieces: list[str] = []
    for index in range(count):
        place = index % _SENTENCE
        if place == _SENTENCE - 1:
            pieces.append(".")
            continue
        word = source.choice(_WORDS)
        word = word.capitalize() if place == 0 else word
        pieces.append(f" {word}" if index else word)
    return pieces


def embed(ids: Sequence[int], dimensions: int) -> list[float]:
    """A vector of length 1 that the same tokens give again; it means nothing."""
    digest = blake2b(b"".join(map(_pack_id, ids)), digest_size=16).hexdigest()
    source = random.Random(f"embedding-{digest}")
    values = [source.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(value * value for value in values) ** 0.5
    return [value / length for value in values]
