"""The generated rules and Alertmanager's configuration with all their durations divided: hours that pass in minutes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from alerts.fleet import UNASKED_SECONDS
from servescope.errors import UsageError

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
_PART = re.compile(r"(\d+)(ms|[smhdwy])")
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
# The places of durations in PromQL: a range or both parts of a subquery in brackets, and what follows `offset`.
_IN_PROMQL = re.compile(r"(?<=\[)[^\]]+(?=\])|(?<=\boffset )-?\S+")
_OF_RULES = {"interval", "for", "keep_firing_for", "query_offset"}
_OF_ALERTMANAGER = {"group_wait", "group_interval", "repeat_interval", "resolve_timeout"}


def milliseconds(duration: str) -> int:
    """A duration as Prometheus writes it, such as `1h30m`, in milliseconds; raises UsageError."""
    if not _DURATION.fullmatch(duration):
        raise UsageError(f"duration {duration!r} is not understood, expected one like '5m' or '1h30m'")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(duration))


def divided(duration: str, times: int) -> str:
    """A duration divided by `times`; raises UsageError where that is no whole number of milliseconds."""
    whole = milliseconds(duration)
    if whole % times:
        raise UsageError(f"{duration} divided by {times} is no whole number of milliseconds")
    return f"{whole // times}ms"


def compress_promql(expression: str, times: int) -> str:
    """An expression whose ranges and offsets are divided by `times`; names with a window in them stay."""
    return _IN_PROMQL.sub(
        lambda found: _DURATION.sub(lambda duration: divided(duration[0], times), found[0]), expression
    )


def compress_waited(expression: str, times: int) -> str:
    """An expression that asks how long ago a target was asked, with those seconds divided by `times`.

    For scrapers whose intervals are divided as well.
    """
    return re.sub(rf"(?<=[<>=] ){UNASKED_SECONDS}\b", f"{UNASKED_SECONDS / times:g}", expression)


def compress_rules(document: Mapping[str, Any], times: int) -> dict[str, Any]:
    """A rule file's document whose durations are divided by `times`."""
    return {"groups": [_compress_group(group, times) for group in document["groups"]]}


def _compress_group(group: Mapping[str, Any], times: int) -> dict[str, Any]:
    rules = []
    for rule in group["rules"]:
        shorter = {key: divided(value, times) if key in _OF_RULES else value for key, value in rule.items()}
        rules.append({**shorter, "expr": compress_promql(rule["expr"], times)})
    shorter = {key: divided(value, times) if key in _OF_RULES else value for key, value in group.items()}
    return {**shorter, "rules": rules}


def compress_alertmanager(document: Any, times: int) -> Any:
    """Alertmanager's configuration, or a part of it, whose waits and intervals are divided by `times`."""
    if isinstance(document, Mapping):
        return {
            key: divided(value, times) if key in _OF_ALERTMANAGER else compress_alertmanager(value, times)
            for key, value in document.items()
        }
    if isinstance(document, list):
        return [compress_alertmanager(each, times) for each in document]
    return document
