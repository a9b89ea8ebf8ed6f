"""Series selectors and instants in the form the Prometheus API expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from servescope.contract.samples import escape_label_value

MOST_TEXT: Final = 15_500
"""The length of a query, as a VictoriaMetrics takes none above 16 KiB."""

T = TypeVar("T")


def format_time(time_ms: int) -> str:
    """An instant as text, which the API reads exactly; a float would lose some milliseconds."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def selector(matchers: Iterable[tuple[str, str]] = (), *, names: Sequence[str] = (), extra: str = "") -> str:
    """A series selector: labels with their values, any of the names, and more matchers in braces."""
    parts = [f'{label}="{escape_label_value(value)}"' for label, value in matchers]
    if names:
        parts.append(f'__name__=~"{"|".join(escape_label_value(re.escape(name)) for name in names)}"')
    inner = extra.strip().removeprefix("{").removesuffix("}").strip().rstrip(",")
    return f"{{{','.join([*([inner] if inner else []), *parts])}}}"


def split(elements: Iterable[T], length: Callable[[T], int], most: int = MOST_TEXT) -> Iterator[list[T]]:
    """The elements in parts whose lengths are at most so much together, unless one alone is longer."""
    part: list[T] = []
    total = 0
    for element in elements:
        total += length(element)
        if part and total > most:
            yield part
            part, total = [], length(element)
        part.append(element)
    if part:
        yield part
