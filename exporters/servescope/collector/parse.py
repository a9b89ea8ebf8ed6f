"""Reading the text that a `/metrics` endpoint answers: Prometheus text 0.0.4, and OpenMetrics as far as it differs.

Timestamps, exemplars, units and `# EOF` are checked for their form and then left behind: a sample counts for the time
of its scrape. NaN and infinite values are dropped and counted. Everything else is kept as it was exposed, `_created`
samples included; what a name means is the source map's affair.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import cached_property

from servescope.errors import ServescopeError
from servescope.samples import Labels, Sample, format_edge, make_labels

# Quantifiers are possessive: nothing is tried twice, however hostile a line is.
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
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_COMMENT = re.compile(rf"#[ \t]*(HELP|TYPE)[ \t]+({_NAME})[ \t]*(.*)")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_JSON_START = re.compile(r'[\[{]\s*($|[\[{}\]\d]|"(?:[^"\\]|\\.)*"\s*:)')

_TEXT_SHOWN = 80


class ParseError(ServescopeError):
    """A body that is no exposition: the line (from 1), its text (cut), and what is wrong with it."""

    def __init__(self, line: int, text: str, cause: str) -> None:
        self.line = line
        self.text = text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}…"
        self.cause = cause
        super().__init__(f"line {line}: {cause}: {self.text!r}")


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
    def by_name(self) -> dict[str, list[Sample]]:
        """Samples by canonical name; where a family is exposed under both its spellings, the first is taken."""
        index: dict[str, list[Sample]] = {}
        for sample in self.samples:
            same = index.setdefault(canonical_name(sample.name), [])
            if not same or same[0].name == sample.name:
                same.append(sample)
        return index

    def has(self, native: str) -> bool:
        """Whether there is a sample of the series, or of the histogram, in either spelling of its name."""
        name = canonical_name(native)
        return name in self.by_name or f"{name}_count" in self.by_name or f"{name}_bucket" in self.by_name


def canonical_name(name: str) -> str:
    """The name with underscores for colons, as pipelines in between (OpenTelemetry, Ray) rewrite it."""
    return name.replace(":", "_")


def parse_exposition(body: bytes | str) -> Exposition:
    """The samples of a body.

    Raises ParseError with line, text and cause when it is no exposition; JSON and HTML are refused by their names.
    """
    exposition = Exposition()
    blocks: dict[str, Labels] = {}
    ended = False
    for number, raw in enumerate(_decode(body).split("\n"), start=1):
        line = raw.strip(" \t\r")
        if not line:
            continue
        if ended:
            raise ParseError(number, line, "text after '# EOF'")
        if line[0] == "#":
            ended = line == "# EOF"
            _read_comment(exposition, line)
        else:
            _read_sample(exposition, line, number, blocks)
    return exposition


def _decode(body: bytes | str) -> str:
    if isinstance(body, str):
        return body
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        before = body[: error.start]
        line = body.split(b"\n")[before.count(b"\n")]
        cause = "not text: a compressed or binary body" if b"\x00" in line else "not UTF-8"
        raise ParseError(before.count(b"\n") + 1, line.decode("utf-8", "replace"), cause) from error


def _read_comment(exposition: Exposition, line: str) -> None:
    match = _COMMENT.match(line)
    if match is None:
        return
    keyword, name, text = match.groups()
    if keyword == "TYPE":
        exposition.types[name] = text.strip().lower()
    else:
        exposition.helps[name] = _unescape(text)


def _read_sample(exposition: Exposition, line: str, number: int, blocks: dict[str, Labels]) -> None:
    match = _SAMPLE.fullmatch(line)
    value = _read_value(match[3]) if match else None
    if match is None or value is None:
        raise ParseError(number, line, _explain(line, exposition))
    if not math.isfinite(value):
        exposition.dropped += 1
        return
    exposition.samples.append(Sample(match[1], _labels_of(match[2] or "", line, number, blocks), value))


def _read_value(text: str) -> float | None:
    # Python's float takes more than an exposition may hold: underscores, other digits.
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _labels_of(block: str, line: str, number: int, blocks: dict[str, Labels]) -> Labels:
    """The labels of a block; the same text, which many series of a body share, is read once."""
    labels = blocks.get(block)
    if labels is None:
        labels = blocks[block] = _read_labels(block, line, number)
    return labels


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


def _explain(line: str, exposition: Exposition) -> str:
    """Why the line is no sample, in the words of somebody who has to mend it."""
    if not exposition.samples and line[0] in "[{" and _looks_like_json(line):
        return (
            "the body is JSON, not Prometheus text (TensorRT-LLM answers JSON statistics on /metrics, "
            "its Prometheus text is on /prometheus/metrics)"
        )
    if not exposition.samples and line[0] == "<":
        return "the body is HTML, not Prometheus text"
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
    except ValueError:
        return False
    return True
