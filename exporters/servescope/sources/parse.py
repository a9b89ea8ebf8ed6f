"""Reading the text that a `/metrics` endpoint answers: Prometheus text 0.0.4, and OpenMetrics as far as it differs.

Timestamps, exemplars, units and `# EOF` are checked for their form and then left behind: a sample counts for the time
of its scrape. NaN and infinite values are dropped and counted. Everything else is kept as it was exposed, `_created`
samples included; what a name means is the source map's affair.

A target shows the same lines at every scrape, with other values behind them. `learn_page` reads a text line by line,
which is what a text means, and keeps its layout as a `Page`; a page reads the next text of that layout by comparing.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import Labels, Sample, Series, format_edge, format_series, make_labels
from servescope.errors import ServescopeError

# Quantifiers are possessive: no line is matched twice, and no state is kept for each of its characters.
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_TEXT = r'"(?:[^"\\]++|\\.)*+"'
_BLOCK = rf'\{{((?:[^"{{}}]++|{_TEXT})*+)\}}'
_NUMBER = r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
_SAMPLE = re.compile(
    rf"({_NAME})(?:[ \t]*{_BLOCK}[ \t]*|[ \t]+)"
    r"([^ \t]+)"  # value
    rf"(?:[ \t]+{_NUMBER})?"  # timestamp
    rf"(?:[ \t]+#[ \t]*{_BLOCK}[ \t]+{_NUMBER}(?:[ \t]+{_NUMBER})?)?"  # exemplar
)
_LABEL = re.compile(r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|$)')
_COMMENT = re.compile(rf"#[ \t]*(HELP|TYPE)[ \t]+({_NAME})[ \t]*(.*)")
# What may stand behind the head of a line, which ends where its value begins. Matches no more than _SAMPLE does.
_TAILS = re.compile(
    rf"^([^ \t\r\n]++)(?:[ \t]++{_NUMBER})?+"
    rf"(?:[ \t]++#[ \t]*+\{{(?:[^\"{{}}\n]++|\"(?:[^\"\\\n]++|\\.)*+\")*+\}}[ \t]++{_NUMBER}(?:[ \t]++{_NUMBER})?+)?+"
    r"[ \t\r]*+\n".encode(),
    re.MULTILINE,
)
# Python's float takes more than an exposition may hold: underscores, other digits, space around the number.
_VALUE_CHARACTERS: Final = b"+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUE = re.compile(rf"[{re.escape(_VALUE_CHARACTERS.decode())}]+")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_JSON_START = re.compile(r'[\[{]\s*($|[\[{}\]\d]|"(?:[^"\\]++|\\.)*+"\s*:)')

_TEXT_SHOWN = 80
_LONGEST_EDGE = 24  # the canonical text of an edge, which may be longer than the edge as it was exposed
_MOST_BYTES = 16_000_000
_ENTRY_BYTES = 300  # about what a line takes beside its text
_LINE_BYTES = 120  # about what the text of one takes
# Of a generation, whatever few series there are: targets that come one after the other share what they show.
_LEAST_BYTES = 500_000
# TYPE, HELP and UNIT of a sample of its own, and as many lines of other kinds.
_LINES_PER_SAMPLE = 6


class ParseError(ServescopeError):
    """A body that is no exposition: the line (from 1), its text (cut), and what is wrong with it."""

    def __init__(self, line: int, text: str, cause: str) -> None:
        self.line = line
        self.text = text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}…"
        self.cause = cause
        super().__init__(f"line {line}: {cause}: {self.text!r}")


class LimitError(ParseError):
    """A body that is more than a target may show; `outcome` is that of its scrape."""

    def __init__(self, outcome: str, line: int, text: str, cause: str) -> None:
        super().__init__(line, text, cause)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class PageLimits:
    """What a body may hold: samples, labels of one, bytes of a label's name or value, bytes of a line."""

    max_series: int = 20_000
    max_labels: int = 64
    max_label_bytes: int = 4096
    max_line_bytes: int = 65_536


DEFAULT_LIMITS: Final = PageLimits()


@dataclass
class Exposition:
    """What one body exposes, in its order.

    `types` and `helps` are by the family's name as it was declared; `dropped` counts samples left out because their
    value was NaN or infinite. Labels with an empty value are left out; `le` has its canonical text.
    """

    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    dropped: int = 0

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Where in `samples` those of a canonical name are; of a family under both its spellings, the first's."""
        index: dict[str, list[int]] = {}
        for place, sample in enumerate(self.samples):
            same = index.setdefault(canonical_name(sample.name), [])
            if not same or self.samples[same[0]].name == sample.name:
                same.append(place)
        return index

    @cached_property
    def by_name(self) -> dict[str, list[Sample]]:
        """Samples by canonical name; where a family is exposed under both its spellings, the first is taken."""
        return {name: [self.samples[place] for place in places] for name, places in self.places.items()}

    @cached_property
    def repeated(self) -> list[str]:
        """The series that stand there before, as text, once for each time they stand there again."""
        seen: set[tuple[str, Labels]] = set()
        again = []
        for name, labels, _ in self.samples:
            if (name, labels) in seen:
                again.append(format_series(name, labels))
            seen.add((name, labels))
        return again

    def has(self, native: str) -> bool:
        """Whether there is a sample of the series, or of the histogram, in either spelling of its name."""
        name = canonical_name(native)
        return name in self.places or f"{name}_count" in self.places or f"{name}_bucket" in self.places


class _Generation:
    """What was read, or read again, since the last generation ended; `room` is in bytes."""

    __slots__ = ("heads", "lines", "pairs", "room", "texts")

    def __init__(self, room: int) -> None:
        self.room = room
        self.heads: dict[bytes, tuple[bytes, Series]] = {}
        self.texts: dict[str, str] = {}
        self.pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self.lines: dict[bytes, bytes] = {}


class Lexicon:
    """What was read before, so that it is read once and kept once, whichever target shows it; bounded.

    What nobody has shown for a generation is forgotten: targets that left leave nothing behind. A generation ends when
    it has taken half of `most_bytes`, or about as much as all series that are held take (`fit`). Safe from several
    threads.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = self._generation_bytes = most_bytes // 2
        # Held where generations change; what another thread adds meanwhile is in one of them, or is read again.
        self._changing = threading.Lock()
        self._now, self._before = _Generation(self._generation_bytes), _Generation(0)

    def fit(self, series: int) -> None:
        """So many series are held now: a generation need not be larger than what they take."""
        fitting = min(max(series * (_ENTRY_BYTES + _LINE_BYTES), _LEAST_BYTES), self._most_bytes)
        with self._changing:
            self._now.room += fitting - self._generation_bytes
            self._generation_bytes = fitting

    def find(self, head: bytes) -> tuple[bytes, Series] | None:
        """The head, and the series that a line beginning with it is of; None when it is not known."""
        known = self._now.heads.get(head)
        if known is None:
            known = self._before.heads.get(head)
            if known is not None:
                self._make_room(head)
                self._now.heads[head] = known
        return known

    def keep(self, head: bytes, name: str, labels: Labels) -> tuple[bytes, Series]:
        """Take up what a head means."""
        self._make_room(head)
        name = self._now.texts.setdefault(name, self._before.texts.get(name, name))
        known = self._now.heads[head] = head, Series(name, labels)
        return known

    def keep_labels(self, labels: Labels) -> Labels:
        """The same labels, of pairs that are kept once."""
        now, before = self._now.pairs, self._before.pairs
        return tuple([now.get(pair) or now.setdefault(pair, before.get(pair, pair)) for pair in labels])

    def keep_line(self, line: bytes) -> bytes:
        """A line without a sample, kept once."""
        known = self._now.lines.get(line)
        if known is None:
            self._make_room(line)
            known = self._now.lines[line] = self._before.lines.get(line, line)
        return known

    def _make_room(self, text: bytes) -> None:
        with self._changing:
            self._now.room -= len(text) + _ENTRY_BYTES
            if self._now.room < 0:
                self._before, self._now = self._now, _Generation(self._generation_bytes)


class Page:
    """The layout of a body: its lines without samples, and the heads of the others, which end where a value begins.

    `series` are of the n samples in their order, those whose value was NaN or infinite included.
    """

    __slots__ = ("_fixed_bytes", "_heads", "_is_other", "_is_sample", "_longest_head", "_others", "series")

    def __init__(self, is_sample: bytearray, others: Sequence[bytes], heads: Sequence[bytes], series: list[Series]):
        self.series: Final = tuple(series)
        self._heads = tuple(heads)
        self._others = tuple(others)
        self._is_sample = bytes(is_sample)
        self._is_other = self._is_sample.translate(bytes((1, 0)) + bytes(254))
        self._fixed_bytes = sum(map(len, (*heads, *others))) + len(is_sample) - 1
        self._longest_head = max(map(len, heads), default=0)

    def read(self, body: bytes, limits: PageLimits | None = None) -> NDArray[np.float64] | None:
        """The (n,) values of a body of this layout, NaN and infinities included.

        None when the body is of another layout, or is none at all, or is beyond the limits that the page was learnt
        under: then it is to be learnt.
        """
        # One part more than there should be tells that there are more, however many.
        lines = body.split(b"\n", len(self._is_sample))
        if len(lines) != len(self._is_sample) or tuple(compress(lines, self._is_other)) != self._others:
            return None
        rests = list(map(bytes.removeprefix, compress(lines, self._is_sample), self._heads))
        text = b"\n".join(rests)
        # A line that does not begin with its head kept it, and so is longer than it should be.
        if len(text) - max(len(rests) - 1, 0) != len(body) - self._fixed_bytes:
            return None
        if limits is not None and not self._fits(lines, len(text), limits):
            return None
        if text.translate(None, _VALUE_CHARACTERS + b"\n"):
            # A match is the whole of its line, so as many matches as lines are all the lines.
            values = _TAILS.findall(text + b"\n")
            if len(values) != len(rests) or b"".join(values).translate(None, _VALUE_CHARACTERS):
                return None
            rests = values
        try:
            return np.fromiter(map(float, rests), np.float64, len(rests))
        except ValueError:
            return None

    def _fits(self, lines: list[bytes], rest_bytes: int, limits: PageLimits) -> bool:
        return self._longest_head + rest_bytes <= limits.max_line_bytes or max(map(len, lines)) <= limits.max_line_bytes


def canonical_name(name: str) -> str:
    """The name with underscores for colons, as pipelines in between (OpenTelemetry, Ray) rewrite it."""
    return name.replace(":", "_")


def parse_exposition(body: bytes | str, limits: PageLimits | None = None) -> Exposition:
    """The samples of a body.

    Raises ParseError with line, text and cause when it is no exposition (JSON and HTML are named), and LimitError when
    it is beyond the limits.
    """
    learner = _Learner(Lexicon(), limits)
    learner.read(body)
    exposition = expose(learner.series, np.array(learner.values, dtype=np.float64))
    exposition.types, exposition.helps = learner.types, learner.helps
    return exposition


def expose(series: Sequence[Series], values: NDArray[np.float64]) -> Exposition:
    """The exposition of series and their (n,) values; without types and helps."""
    samples = [
        Sample(name, labels, value)
        for (name, labels), value in zip(series, values.tolist(), strict=True)
        if math.isfinite(value)
    ]
    return Exposition(samples=samples, dropped=len(series) - len(samples))


def learn_page(body: bytes, lexicon: Lexicon, limits: PageLimits | None = None) -> tuple[Page, NDArray[np.float64]]:
    """The layout of a body, for reading later ones, and its values as `Page.read` gives them.

    Raises ParseError as `parse_exposition` does, and LimitError when the body is beyond the limits.
    """
    learner = _Learner(lexicon, limits)
    learner.read(body)
    return learner.page(), np.array(learner.values, dtype=np.float64)


class _Learner:
    """Reads one body line by line."""

    def __init__(self, lexicon: Lexicon, limits: PageLimits | None) -> None:
        self._lexicon, self._limits = lexicon, limits
        self.types: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.values: list[float] = []
        self.series: list[Series] = []
        self._heads: list[bytes] = []
        self._others: list[bytes] = []
        self._is_sample = bytearray()
        self._blocks: dict[str, Labels] = {}
        self._ended = False

    def page(self) -> Page:
        return Page(self._is_sample, self._others, self._heads, self.series)

    def read(self, body: bytes | str) -> None:
        # Lone surrogates, which only a text can hold, are kept apart from everything else.
        raw = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
        _check_text(body)
        if self._limits is not None:
            _check_lines(raw, self._limits)
        for number, line in enumerate(raw.split(b"\n"), start=1):
            self._is_sample.append(self._read_known(line) or self._read_line(line, number))

    def _read_known(self, line: bytes) -> bool:
        """Read a line whose beginning was met before; True when it is one."""
        if self._ended:
            return False
        # What follows the last space of a line is its value, unless a time stamp or an exemplar stands there.
        end = line.rfind(b" ") + 1
        known = self._lexicon.find(line[:end])
        value = None if known is None else _read_value(line[end:])
        if known is None:
            end = line.find(b"} ") + 2 if b"} " in line else line.find(b" ") + 1
            known = self._lexicon.find(line[:end])
            tail = None if known is None else _TAILS.fullmatch(line[end:] + b"\n")
            value = None if tail is None else _read_value(tail[1])
        if known is None or value is None or self._may_exceed(line, known[1].labels):
            return False
        self._keep(*known, value)
        return True

    def _may_exceed(self, line: bytes, labels: Labels) -> bool:
        """Whether a sample may be beyond the limits; those that it was read under may have been others'."""
        limits = self._limits
        return limits is not None and (
            len(line) > limits.max_line_bytes
            or len(self.series) >= limits.max_series
            or len(labels) > limits.max_labels
            or len(line) + _LONGEST_EDGE > limits.max_label_bytes
        )

    def _keep(self, head: bytes, series: Series, value: float) -> None:
        self._heads.append(head)
        self.series.append(series)
        self.values.append(value)

    def _read_line(self, raw: bytes, number: int) -> bool:
        """Read any line; True when it is a sample."""
        whole = raw.decode("utf-8", "surrogatepass")
        line = whole.strip(" \t\r")
        if self._limits is not None and len(raw) > self._limits.max_line_bytes:
            cause = f"a line of {len(raw)} bytes, above the limit of {self._limits.max_line_bytes} (max_line_bytes)"
            raise LimitError("line_too_long", number, line, cause)
        if line and self._ended:
            raise ParseError(number, line, "text after '# EOF'")
        if line and line[0] != "#":
            start = len(whole) - len(whole.lstrip(" \t\r"))
            self._read_sample(line, number, whole[:start])
            return True
        if line:
            self._ended = line == "# EOF"
            self._read_comment(line)
        self._others.append(self._lexicon.keep_line(raw))
        return False

    def _read_comment(self, line: str) -> None:
        match = _COMMENT.match(line)
        if match is None:
            return
        keyword, name, text = match.groups()
        if keyword == "TYPE":
            self.types[name] = text.strip().lower()
        else:
            self.helps[name] = _unescape(text)

    def _read_sample(self, line: str, number: int, before: str) -> None:
        match = _SAMPLE.fullmatch(line)
        value = _read_value(match[3]) if match else None
        if match is None or value is None:
            raise ParseError(number, line, _explain(line, first=not self.series))
        name, labels = match[1], self._labels_of(match[2] or "", line, number)
        if self._limits is not None and len(self.series) >= self._limits.max_series:
            cause = f"more samples than the limit of {self._limits.max_series} (max_series)"
            raise LimitError("too_many_series", number, line, cause)
        head = (before + line[: match.start(3)]).encode("utf-8", "surrogatepass")
        self._keep(*self._lexicon.keep(head, name, labels), value)

    def _labels_of(self, block: str, line: str, number: int) -> Labels:
        """The labels of a block; the same text, which many series of a body share, is read once."""
        labels = self._blocks.get(block)
        if labels is None:
            labels = self._blocks[block] = self._lexicon.keep_labels(_read_labels(block, line, number))
            if self._limits is not None:
                _check_labels(labels, line, number, self._limits)
        return labels


def _check_text(body: bytes | str) -> None:
    if isinstance(body, str):
        return
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        number = body.count(b"\n", 0, error.start) + 1
        line = body[body.rfind(b"\n", 0, error.start) + 1 :].partition(b"\n")[0]
        raise ParseError(number, line.decode("utf-8", "replace"), _name_encoding(body, line)) from error


def _name_encoding(body: bytes, line: bytes) -> str:
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16, expected UTF-8"
    return "not text: a compressed or binary body" if b"\x00" in line else "not UTF-8"


def _check_lines(body: bytes, limits: PageLimits) -> None:
    """Refuse what would be a list of millions of lines before it is one."""
    lines, most = body.count(b"\n"), _LINES_PER_SAMPLE * limits.max_series + _LINES_PER_SAMPLE
    if lines > most:
        cause = f"{lines} lines, above the {most} of as many samples as are allowed, {limits.max_series} (max_series)"
        raise LimitError("too_many_series", most, "", cause)


def _check_labels(labels: Labels, line: str, number: int, limits: PageLimits) -> None:
    if len(labels) > limits.max_labels:
        cause = f"{len(labels)} labels, above the limit of {limits.max_labels} (max_labels)"
        raise LimitError("too_many_labels", number, line, cause)
    for label, value in labels:
        for what, text in (("name", label), ("value", value)):
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > limits.max_label_bytes:
                which = f"label {label[:40]!r}: a {what} of {size} bytes"
                cause = f"{which}, above the limit of {limits.max_label_bytes} (max_label_bytes)"
                raise LimitError("label_too_long", number, line, cause)


def _read_value(text: str | bytes) -> float | None:
    if isinstance(text, bytes):
        if not text or text.translate(None, _VALUE_CHARACTERS):
            return None
    elif not _VALUE.fullmatch(text):
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _read_labels(block: str, line: str, number: int) -> Labels:
    pairs: dict[str, str] = {}
    block = block.strip(" \t")
    position = 0
    while position < len(block):
        match = _LABEL.match(block, position)
        if match is None:
            raise ParseError(number, line, f'expected label="value" at {block[position : position + 40]!r}')
        if match[1] in pairs:
            raise ParseError(number, line, f"label {match[1]!r} stands twice")
        pairs[match[1]] = _unescape(match[2])
        position = match.end()
    if "le" in pairs:
        pairs["le"] = _canonical_edge(pairs["le"])
    return make_labels(pairs)


def _canonical_edge(text: str) -> str:
    value = _read_value(text)
    return text if value is None or math.isnan(value) else format_edge(value)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)


def _explain(line: str, *, first: bool) -> str:
    """Why the line is no sample, in the words of somebody who has to mend it; `first` while there was none before."""
    if line[0] == "\ufeff" and len(line) > 1:
        inner = _explain(line[1:], first=first) if not _SAMPLE.fullmatch(line[1:]) and line[1] != "#" else ""
        return inner if inner.startswith("the body is") else "a byte order mark stands before the text"
    if first and line[0] in "[{" and _looks_like_json(line):
        return (
            "the body is JSON, not Prometheus text (TensorRT-LLM answers JSON statistics on /metrics, "
            "its Prometheus text is on /prometheus/metrics)"
        )
    if first and line[0] == "<":
        return "the body is HTML, not Prometheus text"
    if "\x00" in line:
        return "not text: a compressed or binary body"
    head = re.match(rf"{_NAME}[ \t]*(?:{_BLOCK})?", line)
    if head is None:
        return "expected a metric name"
    rest = line[head.end() :].split()
    if not rest:
        return "no value"
    if rest[0][0] == "{":
        return "labels are not closed"
    return (
        "expected a timestamp or an exemplar after the value"
        if _read_value(rest[0]) is not None
        else (f"{rest[0]!r} is not a number")
    )


def _looks_like_json(line: str) -> bool:
    if _JSON_START.match(line):
        return True
    try:
        json.loads(line)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True
