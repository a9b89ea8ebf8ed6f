"""What schemathesis cannot know of the API: which of its requests are wrong though each parameter alone is right."""

from __future__ import annotations

from typing import Any

import schemathesis

from servescope.collector.api.parameters import MOST_SAMPLES_RANGE_MS
from servescope.store.schema import LATEST_MS

# Whatever the clock of the collector that is tried shows, it is later.
_EARLIER_MS = 1_600_000_000_000


@schemathesis.hook  # type: ignore[untyped-decorator] # of a package whose types are skipped
def before_call(_: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    """Put times in order, near each other for samples, and of a deploy before now, which OpenAPI cannot demand.

    Wrong ones stay wrong.
    """
    query, body = case.query, case.body
    if isinstance(body, dict) and isinstance(time_ms := body.get("time_ms"), int) and time_ms <= LATEST_MS:
        body["time_ms"] = min(time_ms, _EARLIER_MS)
    if not case.path.startswith(("/api/v1/figures", "/api/v1/samples", "/api/v1/events")) or "start_ms" not in query:
        return
    start, end = _time(query["start_ms"]), _time(query.get("end_ms", LATEST_MS))
    if start is not None and end is not None:
        start, end = min(start, end), max(start, end)
        if case.path == "/api/v1/samples":
            end = min(end, start + MOST_SAMPLES_RANGE_MS)
        query |= {"start_ms": start, "end_ms": end}


def _time(value: object) -> int | None:
    """The time that a parameter's value stands for; None when it is none."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and int(text) <= LATEST_MS else None
