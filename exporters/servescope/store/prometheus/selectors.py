"""Series selectors and instants in the form the Prometheus API expects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from servescope.contract.samples import escape_label_value


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
