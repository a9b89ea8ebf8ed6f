"""The span of time that a command is asked for."""

from __future__ import annotations

from servescope.errors import UsageError
from servescope.settings.values import format_instant, parse_duration, parse_instant


def read_span(start: str | None, end: str | None, now_ms: int) -> tuple[int, int]:
    """Start and end in milliseconds; each an instant in ISO 8601, or a duration before the end. Raises UsageError."""
    end_ms = now_ms if end is None else read_instant("--end", end, now_ms)
    start_ms = 0 if start is None else read_instant("--start", start, end_ms)
    if start_ms >= end_ms:
        raise UsageError(f"--start {start!r} is not before the end, {format_instant(end_ms)}")
    return start_ms, end_ms


def read_instant(option: str, text: str, before_ms: int) -> int:
    """Milliseconds of an instant in ISO 8601, or of a duration before another; raises UsageError naming the option."""
    try:
        found_ms = before_ms - parse_duration(text)
    except ValueError:
        try:
            found_ms = parse_instant(text)
        except ValueError:
            expected = "expected one like '2026-11-20T14:00:00Z' or '12h'"
            raise UsageError(f"{option} {text!r} is no time, {expected}") from None
    if found_ms < 0:
        raise UsageError(f"{option} {text!r} is before 1970")
    return found_ms
