"""Edits of mappings in a text: entries deleted, inserted and renamed by splicing, every other character untouched."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from servescope.migration.document.document import BREAK, Document, DocumentError, is_same
from servescope.migration.document.json_document import read_named
from servescope.migration.document.nodes import DocumentNode, MappingEntry

_SPACES: Final = re.compile(r"[ \t]*")
_COMMENT: Final = re.compile(r"[ \t]*(#[^\n\r\x85\u2028\u2029]*)")
_BLANK_OR_COMMENT: Final = re.compile(r"(?:[ \t\n\r\x85\u2028\u2029]|(?<![^\s])#[^\n\r\x85\u2028\u2029]*)*")


@dataclass(frozen=True, slots=True)
class TextEdit:
    """`text[start:end]` becomes `text_`; nothing of the text where both are the same."""

    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True)
class EntryText:
    """An entry to insert: its key and value as they are written, and the comments it has above and behind it."""

    key: str
    value: str
    above: tuple[str, ...] = ()
    behind: str = ""


@dataclass(frozen=True, slots=True)
class RemovedComment:
    """A comment that an edit removes, with its line."""

    line: int
    text: str


class EditedMapping:
    """A mapping of a document whose entries are edited; `owner` is the entry it is the value of.

    Raises DocumentError where the mapping is an alias or has a merge (`<<`) in it: what an anchor has is not moved.
    """

    def __init__(self, document: Document, owner: MappingEntry) -> None:
        node = owner.value
        if node.alias is not None:
            raise document.error(node, f"alias *{node.alias} spans keys that are moved: write its mapping out here")
        for entry in node.entries:
            if entry.is_merge:
                name = f"*{entry.value.alias}" if entry.value.alias else "a mapping"
                what = f"a merge (<<) of {name} spans keys that are moved: write its keys out here"
                raise document.error(entry.key, what)
            if entry.key.alias is not None:
                raise document.error(entry.key, f"alias *{entry.key.alias} is a key here: write the key out")
        self._document = document
        self._text = document.text
        self._owner = owner
        self._node = node
        self._entries = node.entries
        self._newline = match.group() if (match := BREAK.search(document.text)) else "\n"

    @property
    def is_quoted(self) -> bool:
        """Whether keys are written in double quotes, as JSON has them."""
        return bool(self._entries) and self._entries[0].key.style == '"'

    def entry(self, key: str) -> MappingEntry:
        """The entry with this key, which has to be there."""
        return next(each for each in self._entries if each.key.value == key)

    def piece(self, key: str, name: str | None = None) -> EntryText:
        """An entry as a piece with its comments, under another name where one is given."""
        at = [each.key.value for each in self._entries].index(key)
        entry = self._entries[at]
        written = self._write_key(entry.key, name)
        value = self._text[entry.value.start : entry.value.end]
        if BREAK.search(value) or "#" in value or not value:
            value = _write(entry.value.value)
        inner = [each.text for each in self._comments(entry.key.end, entry.value.start, [])]
        inner += [each.text for each in self._comments(entry.value.start, entry.value.end, [entry])]
        if self._node.is_flow:
            start, tail, end = self._flow_extent(at)
            above = self._comments(start, self._head(entry), [])
            return EntryText(written, value, (*(each.text for each in above), *inner), self._behind(tail, end))
        first, last = self._block_extent(at)
        above = self._comments(first, self._head(entry), [])
        line_end = self._line_end(entry.value.end)
        below = [each.text for each in self._comments(line_end, last, [])]
        behind = self._text[entry.value.end : line_end]
        return EntryText(written, value, (*(each.text for each in above), *inner, *below), behind.rstrip())

    def rename(self, key: str, name: str) -> TextEdit:
        """The edit that gives a key another name, in its quotes."""
        node = self.entry(key).key
        return TextEdit(node.start, node.end, self._write_key(node, name))

    def rewrite(self, deleted: Collection[str], inserted: Sequence[EntryText]) -> list[TextEdit]:
        """The edits that delete entries and insert pieces before all others."""
        gone = [at for at, each in enumerate(self._entries) if each.key.value in deleted]
        if self._node.is_flow:
            return self._rewrite_flow(gone, inserted)
        return self._rewrite_block(gone, inserted)

    def insert_after(self, key: str, piece: EntryText) -> list[TextEdit]:
        """The edit that inserts a piece behind the entry with this key; the value may be several lines of a block."""
        at = [each.key.value for each in self._entries].index(key)
        if self._node.is_flow:
            return [TextEdit(self._entries[at].value.end, self._entries[at].value.end, f", {piece.key}: {piece.value}")]
        _, last = self._block_extent(at)
        lines = self._newline.join(_lines(piece, self._indent))
        if last == len(self._text) and not _ends_line(self._text):
            return [TextEdit(last, last, f"{self._newline}{lines}")]
        return [TextEdit(last, last, f"{lines}{self._newline}")]

    def write_mapping(self, pieces: Sequence[EntryText]) -> str:
        """Pieces as the value of an entry of this mapping: lines below the key in a block, braces in a flow."""
        if not pieces:
            return "{}"
        if self._node.is_flow:
            return "{" + self._join_flow(pieces, " " * (self._column + 2)) + "}"
        step = self._step()
        lines = [line for piece in pieces for line in _lines(piece, self._indent + step)]
        return self._newline + self._newline.join(lines)

    def removed_comments(self, key: str) -> list[RemovedComment]:
        """The comments of an entry: above it, within it, and behind it."""
        at = [each.key.value for each in self._entries].index(key)
        start, end = self._block_extent(at) if not self._node.is_flow else self._flow_extent(at)[::2]
        return self._comments(start, end, [self._entries[at]])

    # --- Lines and comments ------------------------------------------------------------------------------------------

    @property
    def _column(self) -> int:
        return self._column_of(self._head(self._entries[0])) if self._entries else self._column_of(self._node.start)

    @property
    def _indent(self) -> str:
        return " " * self._column

    def _column_of(self, position: int) -> int:
        return position - self._line_start(position)

    def _step(self) -> str:
        """By how much a block within this one is indented: as the first that there is."""
        for entry in self._entries:
            if entry.value.entries and not entry.value.is_flow and entry.value.alias is None:
                has_properties = self._text[entry.value.start] in "&!"
                first = entry.value.entries[0].key.start if has_properties else entry.value.start
                return " " * max(1, self._column_of(first) - self._column)
        return "  "

    def _line_start(self, position: int) -> int:
        ends = [match.end() for match in BREAK.finditer(self._text, max(0, position - 4096), position)]
        if not ends and position > 4096:
            ends = [match.end() for match in BREAK.finditer(self._text, 0, position)]
        start = ends[-1] if ends else 0
        return start + 1 if start == 0 and self._text.startswith("\ufeff") else start

    def _line_end(self, position: int) -> int:
        match = BREAK.search(self._text, position)
        return match.start() if match else len(self._text)

    def _next_line(self, position: int) -> int:
        match = BREAK.search(self._text, position)
        return match.end() if match else len(self._text)

    def _head(self, entry: MappingEntry) -> int:
        """Where an entry begins: its key, or the `?` before it."""
        at = entry.key.start
        floor = self._node.start
        # Between a `?` and its key there are only blanks and comments.
        start = self._text.rfind("?", floor, at)
        while start >= 0:
            between = self._text[start + 1 : at]
            blank = _BLANK_OR_COMMENT.fullmatch(between)
            if blank and (not between or between[0].isspace()) and not self._is_commented(start):
                return start
            if not blank:
                break
            start = self._text.rfind("?", floor, start)
        return at

    def _is_commented(self, position: int) -> bool:
        return "#" in self._text[self._line_start(position) : position]

    def _comments(self, start: int, end: int, entries: Sequence[MappingEntry]) -> list[RemovedComment]:
        """The comments of a range, outside of the scalars of the entries."""
        scalars = [node for entry in entries for each in (entry.key, entry.value) for node in each.walk()
                   if node.kind == "scalar" or node.alias]  # fmt: skip
        starts = [node.start for node in scalars]
        found = []
        line, counted = len(BREAK.findall(self._text, 0, start)) + 1, start
        for match in re.finditer(
            r"(?:^|(?<=[\s\ufeff]))#[^\n\r\x85\u2028\u2029]*", self._text[start:end], re.MULTILINE
        ):
            at = start + match.start()
            if at and not (self._text[at - 1].isspace() or self._text[at - 1] == "\ufeff"):
                continue
            before = bisect_right(starts, at)
            if not before or at >= scalars[before - 1].end:
                line += len(BREAK.findall(self._text, counted, at))
                counted = at
                found.append(RemovedComment(line, match.group().rstrip()))
        return found

    def _write_key(self, key: DocumentNode, name: str | None) -> str:
        written = self._text[key.start : key.end]
        if name is None and not BREAK.search(written):
            return written
        quote = key.style if key.style in ("'", '"') else ""
        return f"{quote}{name or key.value}{quote}"

    # --- Blocks ------------------------------------------------------------------------------------------------------

    def _block_extent(self, at: int) -> tuple[int, int]:
        """The lines of an entry: from the comments above it to those below it that are indented deeper."""
        entry = self._entries[at]
        head = self._head(entry)
        column = self._column_of(head)
        first = self._line_start(head)
        floor = self._next_line(self._entries[at - 1].value.end if at else self._owner.key.end)
        while first > floor:
            above = self._line_start(self._break_before(first))
            match = _COMMENT.match(self._text, above)
            if above < floor or match is None or match.start(1) - above != column:
                break
            first = above
        last = self._next_line(entry.value.end)
        limit = self._line_start(self._head(self._entries[at + 1])) if at + 1 < len(self._entries) else len(self._text)
        while last < limit:
            match = _COMMENT.match(self._text, last)
            if match is None or match.start(1) - last <= column:
                break
            last = self._next_line(last)
        return first, last

    def _break_before(self, position: int) -> int:
        """The beginning of the line break that ends right before a position."""
        return position - 2 if self._text[position - 2 : position] == "\r\n" else position - 1

    def _owns_line(self, at: int) -> bool:
        head = self._head(self._entries[at])
        return not self._text[self._line_start(head) : head].strip()

    def _rewrite_block(self, gone: Sequence[int], inserted: Sequence[EntryText]) -> list[TextEdit]:
        entries = self._entries
        if len(gone) == len(entries) and not inserted:
            return self._empty_block(gone)
        edits = []
        if inserted:
            edits.append(self._insert_block(gone, inserted))
        for at in gone:
            if not self._owns_line(at):
                # The first entry of a block that begins behind `: ` or `- `.
                if len(gone) == len(entries):
                    edits.append(TextEdit(self._head(entries[at]), entries[at].value.end, ""))
                else:
                    kept = next(each for each in range(len(entries)) if each not in gone)
                    edits.append(TextEdit(self._head(entries[at]), self._head(entries[kept]), ""))
                continue
            first, last = self._block_extent(at)
            if not self._owns_line(0) and 0 in gone and first < self._first_kept(gone):
                continue  # within the range that is deleted with the first entry
            edits.append(TextEdit(first, last, ""))
        return edits

    def _first_kept(self, gone: Sequence[int]) -> int:
        kept = [at for at in range(len(self._entries)) if at not in gone]
        return self._head(self._entries[kept[0]]) if kept else len(self._text)

    def _insert_block(self, gone: Sequence[int], inserted: Sequence[EntryText]) -> TextEdit:
        text = self._newline.join(line for piece in inserted for line in _lines(piece, self._indent))
        if self._owns_line(0):
            first, _ = self._block_extent(0)
            return TextEdit(first, first, text + self._newline)
        head = self._head(self._entries[0])
        more = "" if len(gone) == len(self._entries) else self._newline + self._indent
        return TextEdit(head, head, text.removeprefix(self._indent) + more)

    def _empty_block(self, gone: Sequence[int]) -> list[TextEdit]:
        first = self._head(self._entries[0])
        owner = self._owner
        colon = self._text.index(":", owner.key.end)
        at = colon + 1
        if self._node.start < first and self._text[self._node.start] in "&!":
            match = re.compile(r"(?:[&!]\S*[ \t]*)+").match(self._text, self._node.start)
            at = self._node.start + len(match.group().rstrip()) if match else at
        if not self._owns_line(0):
            return [TextEdit(first, self._node.end, "{}")]
        edits = [TextEdit(*self._block_extent(each), "") for each in gone]
        return [TextEdit(at, at, " {}"), *edits]

    # --- Flows -------------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> int:
        if self._text[self._node.start] == "{":
            return self._node.start
        match = re.compile(r"(?:[&!]\S*\s+)+").match(self._text, self._node.start)
        return match.end() if match else self._node.start

    @property
    def _close(self) -> int:
        return self._node.end - 1

    def _separator(self, at: int) -> int | None:
        end = max(self._entries[at].value.end, self._entries[at].key.end)
        blank = _BLANK_OR_COMMENT.match(self._text, end)
        position = blank.end() if blank else end
        return position if self._text[position : position + 1] == "," else None

    def _flow_extent(self, at: int) -> tuple[int, int, int]:
        """Where an entry begins with the comments above it, where its value ends, and where it ends with its comma."""
        entry = self._entries[at]
        tail = max(entry.value.end, entry.key.end)
        comma = self._separator(at)
        end = tail if comma is None else comma + 1
        if match := _COMMENT.match(self._text, end):
            end = match.end()
        head = self._head(entry)
        floor = self._flow_extent(at - 1)[2] if at else self._open + 1
        between = self._text[floor:head]
        start = floor + (len(between) - len(between.lstrip()))
        return start, tail, end

    def _behind(self, tail: int, end: int) -> str:
        """The comment after a value and its comma, with a space before it."""
        found = self._comments(tail, end, [])
        return "  " + " ".join(each.text for each in found) if found else ""

    def _rewrite_flow(self, gone: Sequence[int], inserted: Sequence[EntryText]) -> list[TextEdit]:
        count = len(self._entries)
        if len(gone) == count:
            joined = self._join_flow(inserted, self._indent)
            if not count:
                return [TextEdit(self._open + 1, self._close, joined)]
            start, end = self._flow_extent(0)[0], self._flow_extent(count - 1)[2]
            if not inserted:
                start, end = self._open + 1, self._close
            return [TextEdit(start, end, joined)]
        edits = []
        if inserted:
            start = self._flow_extent(0)[0]
            lines = bool(BREAK.search(self._text, self._open, start))
            edits.append(TextEdit(start, start, self._join_flow(inserted, self._indent, lines=lines, more=True)))
        kept = [at for at in range(count) if at not in gone]
        for at in gone:
            if at < kept[-1]:
                following = self._flow_extent(at + 1)[0]
                edits.append(TextEdit(self._flow_extent(at)[0], following, ""))
        if kept[-1] < count - 1:
            edits += self._cut_flow(kept[-1])
        return edits

    def _cut_flow(self, last: int) -> Iterator[TextEdit]:
        """Delete all entries behind this one, and its comma where the mapping ended without one."""
        _, tail, begin = self._flow_extent(last)
        end = self._flow_extent(len(self._entries) - 1)[2]
        comma = self._separator(last)
        if comma is not None and self._separator(len(self._entries) - 1) is None:
            yield TextEdit(comma, comma + 1, "")
        has_comment = bool(self._comments(tail, begin, []))
        if has_comment and not BREAK.match(self._text, _spaces(self._text, end)):
            begin = _spaces(self._text, self._next_line(begin))
        yield TextEdit(max(begin, (comma or begin - 1) + 1), end, "")

    def _join_flow(self, pieces: Sequence[EntryText], indent: str, *, lines: bool = False, more: bool = False) -> str:
        """Pieces between braces: on one line, or each on its own where one has comments."""
        if not lines and not any(piece.above or piece.behind.strip() for piece in pieces):
            return ", ".join(f"{piece.key}: {piece.value}" for piece in pieces) + (", " if more else "")
        written = []
        for number, piece in enumerate(pieces):
            comma = "," if more or number + 1 < len(pieces) else ""
            written += [*piece.above, f"{piece.key}: {piece.value}{comma}{piece.behind}"]
        separator = self._newline + indent
        ends_in_comment = bool(pieces[-1].behind.strip())
        return separator.join(written) + (separator if more or ends_in_comment else "")


def apply(document: Document, edits: Sequence[TextEdit], intended: object) -> Document:
    """The document with the edits in it, which has to read as `intended`; raises DocumentError where it does not."""
    text = document.text
    parts: list[str] = []
    at = 0
    for edit in sorted(_merge(edits), key=lambda edit: (edit.start, edit.end)):
        if edit.start < at:
            raise DocumentError(document.origin, 0, 0, "the edits of this file overlap; it was left as it is")
        parts += [text[at : edit.start], edit.new]
        at = edit.end
    result = "".join([*parts, text[at:]])
    if not _ends_line(text) and _ends_line(result) and at == len(text):
        result = result[: -2 if result.endswith("\r\n") else -1]
    try:
        edited = read_named(result, document.origin)
    except DocumentError as error:
        raise DocumentError(document.origin, 0, 0, f"cannot be edited in place: {error.what}") from error
    if not is_same(edited.value, intended):
        raise DocumentError(document.origin, 0, 0, "cannot be edited in place: the result would not mean the same")
    return edited


def _merge(edits: Sequence[TextEdit]) -> list[TextEdit]:
    """Edits without those that are within another one."""
    deletions = [(edit.start, edit.end) for edit in edits if edit.start < edit.end and not edit.new]
    return [edit for edit in edits if edit.new or not any(
        low <= edit.start and edit.end <= high and (low, high) != (edit.start, edit.end) for low, high in deletions
    )]  # fmt: skip


def _lines(piece: EntryText, indent: str) -> list[str]:
    value = piece.value if piece.value[:1] in ("\n", "\r") else f" {piece.value}"
    behind = piece.behind if not piece.behind or piece.behind[0].isspace() else f"  {piece.behind}"
    return [*(f"{indent}{comment}" for comment in piece.above), f"{indent}{piece.key}:{value}{behind}"]


def _write(value: object) -> str:
    """A scalar as YAML and JSON write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _ends_line(text: str) -> bool:
    return text.endswith(("\n", "\r", "\x85", "\u2028", "\u2029"))


def _spaces(text: str, position: int) -> int:
    match = _SPACES.match(text, position)
    return match.end() if match else position


def quoted(piece: EntryText) -> EntryText:
    """A piece in double quotes, as JSON has it."""
    value = piece.value if re.fullmatch(r"-?[\d.]+|true|false|null|[\[{].*", piece.value) else f'"{piece.value}"'
    return replace(piece, key=f'"{piece.key}"', value=value)
