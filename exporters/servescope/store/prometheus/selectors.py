"""Series selectors and instants in the form the Prometheus API expects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime


def format_time(time_ms: int) -> str:
    """An instant as text, which the API reads exactly; a float would lose some milliseconds."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def selector(matchers: Iterable[tuple[str, str]] = (), *, names: Sequence[str] = (), extra: str = "") -> str:
    """A series selector: labels with their values, any of the names, and more matchers in braces."""
    parts = [f'{label}="{escape(value)}"' for label, value in matchers]
    if names:
        parts.append(f'__name__=~"{"|".join(escape(re.escape(name)) for name in names)}"')
    inner = extra.strip().removeprefix("{").removesuffix("}").strip().rstrip(",")
    return f"{{{','.join([*([inner] if inner else []), *parts])}}}"


def escape(text: str) -> str:
    """The text escaped for the quotes of a PromQL string."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
