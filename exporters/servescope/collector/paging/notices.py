"""What is told of an alert, and in which words: Alertmanager's API v2, and the body of its webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from servescope.collector.paging.states import Key

Shown = dict[str, Any]

# As Go writes a time that is none.
_NEVER: Final = "0001-01-01T00:00:00Z"
_WEBHOOK_VERSION: Final = "4"


@dataclass(frozen=True, slots=True)
class Notice:
    """An alert that fires, or fired until `ends_ms`, with all its labels and what there is to say of it."""

    key: Key
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_ms: int
    ends_ms: int | None
    source: str = ""

    @property
    def is_resolved(self) -> bool:
        """Whether it is over."""
        return self.ends_ms is not None

    @property
    def fingerprint(self) -> str:
        """By what Alertmanager knows an alert: 64-bit FNV-1a over its sorted labels."""
        found = 0xCBF29CE484222325
        for name, value in sorted(self.labels.items()):
            for byte in (*name.encode(), 255, *value.encode(), 255):
                found = ((found ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        return f"{found:016x}"


def post_to_alertmanager(notices: Sequence[Notice], valid_until_ms: int) -> list[Shown]:
    """The body of POST /api/v2/alerts; one that fires counts as resolved from `valid_until_ms` on unless told again."""
    posted = []
    for notice in notices:
        ends_ms = valid_until_ms if notice.ends_ms is None else notice.ends_ms
        shown: Shown = {
            "labels": dict(notice.labels),
            "annotations": dict(notice.annotations),
            "startsAt": tell_time(notice.starts_ms),
            "endsAt": tell_time(ends_ms),
        }
        if notice.source:
            shown["generatorURL"] = notice.source
        posted.append(shown)
    return posted


def post_to_webhook(notices: Sequence[Notice], source: str) -> Shown:
    """The body that Alertmanager sends to webhooks, of a group of one alert's notices; fires while any of them does."""
    name = notices[0].key[0]
    return {
        "version": _WEBHOOK_VERSION,
        "groupKey": f'{{}}:{{alertname="{name}"}}',
        "truncatedAlerts": 0,
        "status": "resolved" if all(notice.is_resolved for notice in notices) else "firing",
        "receiver": "servescope",
        "groupLabels": {"alertname": name},
        "commonLabels": _common([notice.labels for notice in notices]),
        "commonAnnotations": _common([notice.annotations for notice in notices]),
        "externalURL": source,
        "alerts": [
            {
                "status": "resolved" if notice.is_resolved else "firing",
                "labels": dict(notice.labels),
                "annotations": dict(notice.annotations),
                "startsAt": tell_time(notice.starts_ms),
                "endsAt": _NEVER if notice.ends_ms is None else tell_time(notice.ends_ms),
                "generatorURL": notice.source,
                "fingerprint": notice.fingerprint,
            }
            for notice in notices
        ],
    }


def tell_time(time_ms: int) -> str:
    """A time in milliseconds as RFC 3339."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def _common(each: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}
