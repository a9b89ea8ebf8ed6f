"""Secrets in what a server answers: found however they are written there, and replaced.

A text is read as it is and with its escapes resolved (percent, backslash, HTML, quoted-printable, up to three within
one another), without case and white space. In each reading every secret is looked for as it is, in hexadecimal digits,
and in Base64 of both alphabets at each of its three alignments, so also within a longer text that was encoded.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote

CONCEALED: Final = "[secret]"
MOST_CHARACTERS: Final = 2_000
"""A text beyond is cut: what a server says is shown in a few lines, and takes time to search."""
SHORTEST: Final = 4
"""Shorter secrets are words of every text: they are concealed as part of what was sent only."""

_LONGEST_RUN: Final = 8
_LONG: Final = 128
_MOST_READINGS: Final = 24
_DEEPEST: Final = 3


def conceal(text: str, sent: Iterable[str], *, most: int = MOST_CHARACTERS) -> str:
    """The text without the secrets in what was sent, which are values of headers; cut after `most` characters.

    Of a secret of eight characters or more no run remains that is longer than half of it, or than seven characters (of
    one of more than 64, fifteen), and before a cut (`…`) nothing of its beginning but three characters.
    """
    if len(text) > most:
        text = f"{text[:most]}…"
    search = _make_search(tuple(filter(None, sent)))
    if not search:
        return text
    parts: list[str] = []
    at = 0
    for start, end in sorted(place for reading in _read(text) for place in search.find(reading)):
        if start > at or not parts:
            parts += [text[at:start], CONCEALED]
        at = max(at, end)
    return "".join([*parts, text[at:]])


def secrets_of_query(url: str) -> tuple[str, ...]:
    """The query of a URL, and the values in it."""
    query = url.partition("?")[2]
    return (query, *(value for _, value in parse_qsl(query)))


# --- Reading a text ---------------------------------------------------------------------------------------------------


class _Reading(NamedTuple):
    """A text with escapes resolved, and where in the original each of its characters begins and ends."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]


def _resolve_backslash(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    if digits:
        return chr(int(digits, 16))
    return chr(int(found[4], 8)) if found[4] else "" if found[5] in "abefnrtv0" else found[5]


def _resolve_byte(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    return chr(int(digits, 16) if digits else int(found[4]))


_ESCAPES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r"%([0-9a-fA-F]{2})"), lambda found: chr(int(found[1], 16))),
    (
        re.compile(
            r"\\(?:[xX]([0-9a-fA-F]{2})|U000([0-9a-fA-F]{5})|[uU]([0-9a-fA-F]{4})|([0-3][0-7]{2})|([^xXuU]))", re.DOTALL
        ),
        _resolve_backslash,
    ),
    (
        re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});?"),
        lambda found: html.unescape(found[0]),
    ),
    (re.compile(r"=(?:([0-9a-fA-F]{2})|\s+)"), lambda found: chr(int(found[1], 16)) if found[1] else ""),
    # Bytes one by one, as Go and Rust print them: 0x5a, 5a:71, 90 113.
    (
        re.compile(
            r"(?<![0-9a-zA-Z])(?:0[xX]([0-9a-fA-F]{2})|([0-9a-fA-F]{2})(?=[:-])|(?<=[:-])([0-9a-fA-F]{2})|(\d{2,3}))[\s,:-]*"
        ),
        _resolve_byte,
    ),
)


def _read(text: str) -> Iterator[_Reading]:
    """The text, and the text with one kind of escapes after the other resolved."""
    level = [_Reading(text, range(len(text)), range(1, len(text) + 1))]
    seen = {text}
    for _ in range(_DEEPEST + 1):
        yield from level
        deeper = []
        for reading, (escape, resolve) in ((reading, each) for reading in level for each in _ESCAPES):
            resolved = _resolve(reading, escape, resolve)
            if resolved.text not in seen and len(seen) < _MOST_READINGS:
                seen.add(resolved.text)
                deeper.append(resolved)
        level = deeper


def _resolve(reading: _Reading, escape: re.Pattern[str], resolve: Callable[[re.Match[str]], str]) -> _Reading:
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for found in escape.finditer(reading.text):
        new = resolve(found)
        parts += [reading.text[at : found.start()], new]
        starts += [*reading.starts[at : found.start()], *[reading.starts[found.start()]] * len(new)]
        ends += [*reading.ends[at : found.start()], *[reading.ends[found.end() - 1]] * len(new)]
        at = found.end()
    if not at:
        return reading
    return _Reading("".join([*parts, reading.text[at:]]), [*starts, *reading.starts[at:]], [*ends, *reading.ends[at:]])


_SAME: Final = str.maketrans("-_", "+/")
"""The two alphabets of Base64 become one."""


def _fold(text: str) -> list[str]:
    """What each character counts as: nothing where it is white space, or not to be seen."""
    return [each.casefold() if each.isprintable() and each != " " else "" for each in text.translate(_SAME)]


# --- What is looked for -----------------------------------------------------------------------------------------------

# Behind what an escape that was cut itself may have left.
_CUT: Final = re.compile(r"(?:%[0-9a-f]?|\\[xu]?[0-9a-f]{0,3}|&#?[0-9a-z]{0,6}|=[0-9a-f]?)?(?:…|\.\.\.)")
_BASE64: Final = re.compile(r"[0-9a-zA-Z+/_-]")


class _Form(NamedTuple):
    """A secret as it may be written: runs of `least` of its characters are looked for, its first `edge` before a cut.

    `is_packed` says that the characters before and behind a run have a part of the secret in them.
    """

    text: str
    least: int
    edge: int
    is_packed: bool = False


class _Search:
    """The runs of all forms, by length, and their beginnings."""

    def __init__(self, forms: Iterable[_Form]) -> None:
        self._runs: dict[tuple[int, bool], set[str]] = {}
        self._beginnings: set[str] = set()
        for form in forms:
            runs, last = self._runs.setdefault((form.least, form.is_packed), set()), len(form.text) - form.least
            # Of a long one runs that touch, and not each that begins at a character, which takes memory and time.
            step = 1 if len(form.text) <= _LONG else form.least
            runs |= {form.text[at : at + form.least] for at in (*range(0, last, step), last)}
            self._beginnings |= {form.text[:size] for size in range(form.edge, form.least)}
        self._sizes = sorted({len(each) for each in self._beginnings})

    def __bool__(self) -> bool:
        return bool(self._runs)

    def find(self, reading: _Reading) -> Iterator[tuple[int, int]]:
        """Where in the original something of a secret begins and ends."""
        folded = _fold(reading.text)
        text = "".join(folded)
        found = list(self._find(text))
        if not found:
            return
        # One character may become several, or none.
        places = [at for at, each in enumerate(folded) for _ in each]
        for start, end, is_packed in found:
            first, last = places[start], places[end - 1]
            if is_packed:
                first -= first > 0 and _BASE64.match(reading.text, first - 1) is not None
                last += _BASE64.match(reading.text, last + 1) is not None
            yield reading.starts[first], reading.ends[last]

    def _find(self, text: str) -> Iterator[tuple[int, int, bool]]:
        for (least, is_packed), runs in self._runs.items():
            for at in range(len(text) - least + 1):
                if text[at : at + least] in runs:
                    yield at, at + least, is_packed
        for cut in _CUT.finditer(text):
            for start in (cut.start() - size for size in self._sizes if size <= cut.start()):
                if text[start : cut.start()] in self._beginnings:
                    yield start, cut.start(), False


@lru_cache(256)
def _make_search(sent: tuple[str, ...]) -> _Search:
    return _Search({form for value in sent for secret in _take_apart(value) for form in _spell(*secret)})


def _take_apart(value: str) -> Iterator[tuple[str, bool]]:
    """The secrets in the value of a header; those that are marked are looked for as a whole only.

    The scheme before it (`Bearer`) is none. Where there are several parts, as in a cookie, each is one without its
    name. Of basic authentication the password is one.
    """
    scheme, _, rest = value.strip().partition(" ")
    if not rest or "=" in scheme:
        scheme, rest = "", value.strip()
    yield value.strip(), True
    yield rest.strip(), False
    for part in re.split(r"[\s;,]+", rest):
        yield part.partition("=")[2].strip('"'), False
    if scheme.lower() == "basic":
        yield from _decode_pair(rest)


def _decode_pair(text: str) -> Iterator[tuple[str, bool]]:
    try:
        pair = base64.b64decode(text).decode("utf-8", "replace")
    except ValueError:
        return
    yield pair, True
    yield pair.partition(":")[2], False


def _spell(secret: str, is_whole: bool) -> Iterator[_Form]:
    size = len(secret)
    if size < SHORTEST:
        return
    least = size if is_whole or size < _LONGEST_RUN else min(_LONGEST_RUN, size // 2 + 1)
    edge = least if is_whole else SHORTEST
    encoded = (secret.replace(" ", "+"), quote(secret, safe=""), json.dumps(secret)[1:-1], html.escape(secret))
    for text in {secret, secret.upper(), secret.lower(), *encoded}:
        data = text.encode()
        for plain in {text, data.decode("latin-1")}:
            yield from _limit("".join(_fold(plain)), least, edge)
        yield from _limit(data.hex(), 2 * least, 2 * edge)
        for packed in _pack(data):
            runs = len(packed) if least == size else 8 * least // 6 - 1
            yield from _limit("".join(_fold(packed)), runs, 8 * edge // 6, is_packed=True)
            # Basic authentication is in Base64 already when a server encodes what it got.
            for twice in _pack(packed.encode()) if text == secret else ():
                again = len(twice) if least == size else 8 * runs // 6 - 1
                yield from _limit("".join(_fold(twice)), again, 8 * edge // 3, is_packed=True)


def _pack(data: bytes) -> Iterator[str]:
    """What Base64 makes of data within other data, by its alignment: the characters that have nothing else in them."""
    for before in range(3):
        first, last = -(-8 * before // 6), 8 * (before + len(data)) // 6
        yield base64.b64encode(bytes(before) + data).decode()[first:last]


def _limit(text: str, least: int, edge: int, *, is_packed: bool = False) -> Iterator[_Form]:
    if len(text) >= SHORTEST:
        yield _Form(text, min(least, len(text)), edge, is_packed)
