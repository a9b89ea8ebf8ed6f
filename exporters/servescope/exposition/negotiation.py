"""What a scraper asks for in its Accept and Accept-Encoding headers (RFC 9110, 12.5)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# No scraper's header is a quarter as long; finding unterminated quotes takes time quadratic in a header's length.
_LONGEST = 1024

# A comma or semicolon within quotes is no separator.
_ELEMENT = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_PART = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*")+')
_QUALITY = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\Z")

_TEXT_TYPE, _TEXT_VERSION = "text/plain", "0.0.4"
_OPENMETRICS_TYPE, _OPENMETRICS_VERSION = "application/openmetrics-text", "1.0.0"


@dataclass(frozen=True, slots=True)
class _Wish:
    """One element of a header: what is named, the version it is narrowed to, and its quality, 0 to 1."""

    name: str
    version: str | None
    quality: float


@functools.lru_cache(32)  # a scraper always sends the same
def wants_openmetrics(accept: str | None) -> bool:
    """Whether an Accept header prefers OpenMetrics 1.0 to the text format 0.0.4.

    Of equal qualities OpenMetrics is chosen when it is named; a client that names neither gets text, and so does one
    that accepts neither, since a page is of more use to a scraper than an error.
    """
    wishes = list(_wishes(accept or ""))
    named, openmetrics = _quality(wishes, _OPENMETRICS_TYPE, _OPENMETRICS_VERSION)
    _, text = _quality(wishes, _TEXT_TYPE, _TEXT_VERSION)
    return openmetrics > text or (named and openmetrics == text > 0)


@functools.lru_cache(32)
def wants_gzip(accept_encoding: str | None) -> bool:
    """Whether an Accept-Encoding header accepts gzip, and does not prefer the uncompressed page."""
    qualities = {wish.name: wish.quality for wish in _wishes(accept_encoding or "")}
    gzip = max((qualities[name] for name in ("gzip", "x-gzip") if name in qualities), default=qualities.get("*", 0.0))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _quality(wishes: list[_Wish], media_type: str, version: str) -> tuple[bool, float]:
    """Whether the type is named, and the quality of the most specific element that covers it; 0 when none does."""
    patterns = ((media_type, version), (media_type, None), (f"{media_type.partition('/')[0]}/*", None), ("*/*", None))
    for narrowness, (name, wanted) in enumerate(patterns):
        found = [wish.quality for wish in wishes if wish.name == name and wish.version == wanted]
        if found:
            return narrowness < 2, max(found)
    return False, 0.0


def _wishes(header: str) -> Iterator[_Wish]:
    """The elements of the header; one with an invalid quality is ignored."""
    for element in _ELEMENT.findall(header[:_LONGEST]):
        name, *parameters = [part.strip() for part in _PART.findall(element)] or [""]
        values = dict(_parameter(parameter) for parameter in parameters)
        quality = values.get("q", "1")
        if name and _QUALITY.match(quality):
            yield _Wish(name.lower(), values.get("version"), float(quality))


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip().lower(), value.strip().strip('"')
