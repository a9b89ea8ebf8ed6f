"""Parse the text that a `/metrics` endpoint answers: Prometheus text 0.0.4, and OpenMetrics as far as it differs.

Comments are ignored, timestamps and exemplars checked for their form: a sample has the time of its scrape.
NaN and infinite values are dropped and counted. Everything else is kept as it was exposed, `_created` samples
included; the source map says what a name means.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import Labels, Sample, Series, format_edge, format_series, make_labels
from servescope.errors import ServescopeError
from servescope.sources.cache import SeriesCache
from servescope.sources.grammar import (
    BLOCK,
    ESCAPE,
    ESCAPED,
    JSON_START,
    LABEL,
    NAME,
    SAMPLE,
    TAILS,
    read_value,
)
from servescope.sources.json_bodies import name_json
from servescope.sources.page import LearnedPage, PageLimits

_TEXT_SHOWN = 80
_LONGEST_EDGE = 24  # the canonical text of an edge, which may be longer than the edge as it was exposed
# TYPE, HELP and UNIT of a sample of its own, and as many lines of other kinds.
_LINES_PER_SAMPLE = 6


class ParseError(ServescopeError):
    """A body is no exposition: the number of the line (from 1), its text (cut), and the cause."""

    def __init__(self, line: int, text: str, cause: str) -> None:
        self.line = line
        self.text = text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}…"
        self.cause = cause
        super().__init__(f"line {line}: {cause}: {self.text!r}")

    def is_at_end(self, body: bytes) -> bool:
        """Whether it is the last line of the body that has no end, as where a body was cut."""
        return self.line > 1 and self.line == body.count(b"\n") + 1


class LimitError(ParseError):
    """A body is beyond the limits; `outcome` is that of its scrape."""

    def __init__(self, outcome: str, line: int, text: str, cause: str) -> None:
        super().__init__(line, text, cause)
        self.outcome = outcome


@dataclass
class Exposition:
    """The samples of one body, in its order.

    `dropped` counts those that were dropped for a value that is NaN or infinite. Labels with an empty value are left
    out; `le` has its canonical text. `cut` says why the body may be cut, "" where it seems whole.
    """

    samples: list[Sample] = field(default_factory=list)
    dropped: int = 0
    cut: str = ""

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """The indexes in `samples` by canonical name; of a family that has both spellings, those of the first."""
        index: dict[str, list[int]] = {}
        for place, sample in enumerate(self.samples):
            same = index.setdefault(canonical_name(sample.name), [])
            if not same or self.samples[same[0]].name == sample.name:
                same.append(place)
        return index

    @cached_property
    def by_name(self) -> dict[str, list[Sample]]:
        """Samples by canonical name; of a family that has both spellings, those of the first."""
        return {name: [self.samples[place] for place in places] for name, places in self.places.items()}

    @cached_property
    def families(self) -> tuple[str, ...]:
        """The names of its families as they are exposed, in their order: of a histogram or summary, that of its parts.

        Samples that end in `_created` have none: client libraries add them to counters and histograms.
        """
        names = dict.fromkeys(sample.name for sample in self.samples if not sample.name.endswith("_created"))
        return tuple(dict.fromkeys(_family_of(name, names) for name in names))

    @cached_property
    def repeated(self) -> list[str]:
        """The series exposed more than once, as text, one entry per repetition."""
        seen: set[tuple[str, Labels]] = set()
        again = []
        for name, labels, _ in self.samples:
            if (name, labels) in seen:
                again.append(format_series(name, labels))
            seen.add((name, labels))
        return again

    def has(self, native: str) -> bool:
        """Whether the series, or the histogram, has a sample, in either spelling of its name."""
        name = canonical_name(native)
        return name in self.places or f"{name}_count" in self.places or f"{name}_bucket" in self.places


def _family_of(name: str, names: Mapping[str, None]) -> str:
    family = re.sub("_(bucket|sum|count)$", "", name)
    return family if {f"{family}_sum", f"{family}_count"} <= names.keys() else name


def canonical_name(name: str) -> str:
    """The name with underscores for colons, as pipelines in between (OpenTelemetry, Ray) rewrite it."""
    return name.replace(":", "_")


def sample_names(native: str) -> tuple[str, str, str]:
    """The canonical names of samples by which `Exposition.has` finds the series, or the histogram, of this name."""
    name = canonical_name(native)
    return name, f"{name}_count", f"{name}_bucket"


def parse_exposition(body: bytes | str, limits: PageLimits | None = None) -> Exposition:
    """The samples of a body.

    Raises ParseError with line, text and cause when it is no exposition (JSON and HTML are named), and LimitError when
    it is beyond the limits.
    """
    learner = _Learner(SeriesCache(), limits)
    learner.read(body)
    exposition = expose(learner.series, np.array(learner.values, dtype=np.float64))
    exposition.cut = explain_cut(body)
    return exposition


def explain_cut(body: bytes | str) -> str:
    """Why a body that can be parsed may be cut all the same; "" where its last line has its end.

    A number that lost its last digits is still a number.
    """
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    if not raw or raw.endswith(b"\n") or raw.rstrip(b" \t\r").endswith(b"\n# EOF"):
        return ""
    last = raw.rpartition(b"\n")[2].decode("utf-8", "replace")
    return f"the last line has no end, so the answer may be cut: {last[:_TEXT_SHOWN]!r}"


def explain_half_histogram(series: Sequence[Series]) -> str:
    """That a body ends with a bucket of a histogram of which it has no sum and no count; "" where it does not."""
    family, bucket, _ = series[-1].name.rpartition("_bucket") if series else ("", "", "")
    if not bucket or any(name in (f"{family}_sum", f"{family}_count") for name, _ in series):
        return ""
    return f"the answer ends with a bucket of {family!r}, of which it has no sum and no count, so it may be cut"


def expose(series: Sequence[Series], values: NDArray[np.float64]) -> Exposition:
    """The exposition of series and their (n,) values."""
    samples = [
        Sample(name, labels, value)
        for (name, labels), value in zip(series, values.tolist(), strict=True)
        if math.isfinite(value)
    ]
    return Exposition(samples=samples, dropped=len(series) - len(samples))


def learn_page(
    body: bytes, cache: SeriesCache, limits: PageLimits | None = None
) -> tuple[LearnedPage, NDArray[np.float64]]:
    """The layout of a body, to read later bodies with, and its values as `LearnedPage.read` returns them.

    Raises ParseError and LimitError as `parse_exposition` does.
    """
    learner = _Learner(cache, limits)
    learner.read(body)
    return learner.page(), np.array(learner.values, dtype=np.float64)


class _Learner:
    def __init__(self, cache: SeriesCache, limits: PageLimits | None) -> None:
        self._cache, self._limits = cache, limits
        self.values: list[float] = []
        self.series: list[Series] = []
        self._heads: list[bytes] = []
        self._others: list[bytes] = []
        self._is_sample = bytearray()
        self._blocks: dict[str, Labels] = {}
        self._ended = False
        self._body = b""

    def page(self) -> LearnedPage:
        return LearnedPage(self._is_sample, self._others, self._heads, self.series)

    def read(self, body: bytes | str) -> None:
        # A str can hold lone surrogates, which keep bytes of their own that no UTF-8 has.
        raw = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
        _check_text(body)
        self._body = raw
        if self._limits is not None:
            _check_lines(raw, self._limits)
        for number, line in enumerate(raw.split(b"\n"), start=1):
            self._is_sample.append(self._read_known(line) or self._read_line(line, number))

    def _read_known(self, line: bytes) -> bool:
        """Read a line whose head is in the cache; False when it is not, or needs to be parsed."""
        if self._ended:
            return False
        # What follows the last space of a line is its value, unless it has a time stamp or an exemplar.
        end = line.rfind(b" ") + 1
        known = self._cache.get(line[:end])
        value = None if known is None else read_value(line[end:])
        if known is None:
            end = line.find(b"} ") + 2 if b"} " in line else line.find(b" ") + 1
            known = self._cache.get(line[:end])
            tail = None if known is None else TAILS.fullmatch(line[end:] + b"\n")
            value = None if tail is None else read_value(tail[1])
        if known is None or value is None or self._may_exceed(line, known[1].labels):
            return False
        self._keep(*known, value)
        return True

    def _may_exceed(self, line: bytes, labels: Labels) -> bool:
        """Whether a sample may be beyond the limits; it may have been parsed under those of another target."""
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
        self._others.append(self._cache.intern_line(raw))
        return False

    def _read_sample(self, line: str, number: int, before: str) -> None:
        match = SAMPLE.fullmatch(line)
        value = read_value(match[3]) if match else None
        if match is None or value is None:
            raise ParseError(number, line, _explain(line, b"" if self.series else self._body))
        name, labels = match[1], self._labels_of(match[2] or "", line, number)
        if self._limits is not None and len(self.series) >= self._limits.max_series:
            name, count = Counter(each.name for each in self.series).most_common(1)[0]
            most = f"{count} of these are of {name[:_TEXT_SHOWN]!r}"
            cause = f"more samples than the limit of {self._limits.max_series} (max_series), {most}"
            raise LimitError("too_many_series", number, line, cause)
        head = (before + line[: match.start(3)]).encode("utf-8", "surrogatepass")
        self._keep(*self._cache.add(head, name, labels), value)

    def _labels_of(self, block: str, line: str, number: int) -> Labels:
        """The labels of a block; a text that many series of a body share is parsed once."""
        labels = self._blocks.get(block)
        if labels is None:
            labels = self._blocks[block] = self._cache.intern_labels(_read_labels(block, line, number))
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
    """Refuse millions of lines before they are split into a list."""
    lines, most = body.count(b"\n"), _LINES_PER_SAMPLE * limits.max_series + _LINES_PER_SAMPLE
    if lines > most:
        cause = f"{lines} lines, above the {most} that {limits.max_series} samples may have (max_series)"
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


def _read_labels(block: str, line: str, number: int) -> Labels:
    pairs: dict[str, str] = {}
    block = block.strip(" \t")
    position = 0
    while position < len(block):
        match = LABEL.match(block, position)
        if match is None:
            raise ParseError(number, line, f'expected label="value" at {block[position : position + 40]!r}')
        if match[1] in pairs:
            raise ParseError(number, line, f"label {match[1]!r} is given twice")
        pairs[match[1]] = _unescape(match[2])
        position = match.end()
    if "le" in pairs:
        pairs["le"] = _canonical_edge(pairs["le"])
    return make_labels(pairs)


def _canonical_edge(text: str) -> str:
    value = read_value(text)
    return text if value is None or math.isnan(value) else format_edge(value)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return ESCAPE.sub(lambda match: ESCAPED.get(match[1], match[0]), text)


def _explain(line: str, body: bytes) -> str:
    """Why the line is no sample, for the person who has to fix it; `body` is its own while no sample came before it."""
    if line[0] == "\ufeff" and len(line) > 1:
        inner = _explain(line[1:], body) if not SAMPLE.fullmatch(line[1:]) and line[1] != "#" else ""
        return inner if inner.startswith("the body is") else "a byte order mark precedes the text"
    if body and line[0] in "[{" and _looks_like_json(line):
        named = name_json(body)
        return f"the body is JSON, not Prometheus text{f': {named}' if named else ''}"
    if body and line[0] == "<":
        return "the body is HTML, not Prometheus text"
    if "\x00" in line:
        return "not text: a compressed or binary body"
    head = re.match(rf"{NAME}[ \t]*(?:{BLOCK})?", line)
    if head is None:
        return "expected a metric name"
    rest = line[head.end() :].split()
    if not rest:
        return "no value"
    if rest[0][0] == "{":
        return "labels are not closed"
    return (
        "expected a timestamp or an exemplar after the value"
        if read_value(rest[0]) is not None
        else (f"{rest[0]!r} is not a number")
    )


def _looks_like_json(line: str) -> bool:
    if JSON_START.match(line):
        return True
    try:
        json.loads(line)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True
