"""Texts from outside as what they are: in Markdown, in HTML, in files; what cannot be seen is shown by its escape.

Streamlit reads Markdown in nearly every text that it is given, labels and hints included. So each text that is not
written in the pages' own code passes through `plain`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final

# Characters that take no room, or that of a space, and are no control characters: fillers, joiners and selectors.
_UNSEEN: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for first, last in ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF)) for code in range(first, last + 1)
}

# Between the groups of a number, as the judge writes it, a no-break space is what it looks like.
_GROUPS: Final = re.compile(r"(?<=\d)\xa0(?=\d{3}(?!\d))", re.ASCII)

# What has a spreadsheet compute a cell, in the width of other scripts too.
_COMPUTED: Final = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")

# What Streamlit makes of a word after it has read the Markdown, so that no escape prevents it: links, addresses,
# icons, pictures of faces, arrows.
_MADE_OVER: Final = re.compile(
    r"://|www\.|@|:material/|:(?!\d\d:)[\w+-]+:|^(?:<->|->|<-|--|>=|<=|~=)$", re.IGNORECASE | re.ASCII
)
# What begins Markdown within a line, and at its beginning.
_SIGN: Final = re.compile(r"[\\`*\[\]<&|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=\S)")
_FIRST: Final = re.compile(r"^(\s*\d*)(>|[-+#=.)](?=\s|$)|[-=](?=[-=\s]*$)|#(?=#*(?:\s|$)))")
_ICON: Final = ":material/"
# A word, and the quotes and stops around it.
_EDGES: Final = re.compile(r"([('\"\[]*)(.*?)([)'\"\],.;:!?]*)", re.DOTALL)


class Markdown(str):
    """Markdown of the pages' own, which `plain` leaves as it is."""

    __slots__ = ()


def visible(text: object) -> str:
    """A text in which all can be seen: marks of direction, spaces of no width and the like as their escapes."""
    parts = _GROUPS.split(str(text))
    return "\xa0".join(
        "".join(_escape(each) if each != "\n" and _is_unseen(each) else each for each in part) for part in parts
    )


def visible_lines(text: str) -> str:
    """The same of a file's text, which keeps its tabs."""
    return "\t".join(map(visible, text.split("\t")))


def find_unseen(text: str) -> list[str]:
    """Where a file's text has what cannot be seen, line by line: `line 3: \\u202e`."""
    lines = (
        (number, dict.fromkeys(_escape(each) for each in line if each != "\t" and _is_unseen(each)))
        for number, line in enumerate(text.splitlines(), 1)
    )
    return [f"line {number}: {' '.join(found)}" for number, found in lines if found]


def plain(text: object) -> Markdown:
    """Markdown that reads as the text; words that would be made over even so are in the type of code."""
    if isinstance(text, Markdown):
        return text
    lines = (_plain_line(line) for line in visible(text).strip().split("\n"))
    return Markdown("\\\n".join(lines))


def code(text: object) -> Markdown:
    """Markdown that has the text in the type of code."""
    # Streamlit replaces this in the source of a Markdown, code included.
    pieces = visible(text).replace("\n", "\\n").split(_ICON)
    return Markdown("&#58;".join([_span(pieces[0]), *(_span(f"material/{piece}") for piece in pieces[1:])]))


def join(sentences: Iterable[str]) -> Markdown:
    """Markdown of sentences one after the other, each of them plain."""
    return Markdown(" ".join(map(plain, sentences)))


def disarm(text: str) -> str:
    """A text for a file that a spreadsheet opens, which would compute it otherwise; a number stays one."""
    return f"'{text}" if text.startswith(_COMPUTED) and not _is_number(text) else text


def escape(text: object) -> str:
    """HTML that reads as the text."""
    return html.escape(visible(text))


def _plain_line(line: str) -> str:
    return _FIRST.sub(r"\1\\\2", "".join(map(_plain_word, re.split(r"(\s+)", line))))


def _plain_word(word: str) -> str:
    if not _MADE_OVER.search(word):
        return _SIGN.sub(r"\\\g<0>", word)
    before, core, behind = _EDGES.fullmatch(word).groups()  # type: ignore[union-attr] # any word matches
    return _SIGN.sub(r"\\\g<0>", before) + code(core) + _SIGN.sub(r"\\\g<0>", behind)


def _span(text: str) -> str:
    if not text:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_unseen(character: str) -> bool:
    return not character.isprintable() or character in _UNSEEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
