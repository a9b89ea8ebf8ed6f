"""The JSON bodies of notifications: Alertmanager's API v2 and its webhook format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from servescope.alerting.grouping import group_labels
from servescope.collector.paging.states import Key
from servescope.store.prometheus.selectors import format_time

Json = dict[str, Any]

# Go's zero time.
_NEVER: Final = "0001-01-01T00:00:00Z"
_WEBHOOK_VERSION: Final = "4"


@dataclass(frozen=True, slots=True)
class AlertPayload:
    """A firing alert, or one resolved at `ends_ms`, with all its labels and annotations; times in milliseconds."""

    key: Key
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_ms: int
    ends_ms: int | None
    source: str = ""

    @property
    def is_resolved(self) -> bool:
        """Whether the alert is resolved."""
        return self.ends_ms is not None

    @property
    def fingerprint(self) -> str:
        """Alertmanager's fingerprint of the alert: 64-bit FNV-1a over its sorted labels."""
        found = 0xCBF29CE484222325
        for name, value in sorted(self.labels.items()):
            for byte in (*name.encode(), 255, *value.encode(), 255):
                found = ((found ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        return f"{found:016x}"


def alertmanager_payload(alerts: Sequence[AlertPayload], valid_until_ms: int) -> list[Json]:
    """The body of POST /api/v2/alerts; a firing alert resolves at `valid_until_ms` unless it is sent again."""
    posted = []
    for alert in alerts:
        ends_ms = valid_until_ms if alert.ends_ms is None else alert.ends_ms
        body: Json = {
            "labels": dict(alert.labels),
            "annotations": dict(alert.annotations),
            "startsAt": format_time(alert.starts_ms),
            "endsAt": format_time(ends_ms),
        }
        if alert.source:
            body["generatorURL"] = alert.source
        posted.append(body)
    return posted


def webhook_payload(alerts: Sequence[AlertPayload], source: str) -> Json:
    """The body of Alertmanager's webhooks for alerts of one group; its status is firing while any of them is."""
    shared = group_labels(alerts[0].labels)
    written = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(shared.items()))
    return {
        "version": _WEBHOOK_VERSION,
        "groupKey": f'{{}}/{{severity="{alerts[0].labels["severity"]}"}}:{{{written}}}',
        "truncatedAlerts": 0,
        "status": "resolved" if all(alert.is_resolved for alert in alerts) else "firing",
        "receiver": "servescope",
        "groupLabels": shared,
        "commonLabels": _common([alert.labels for alert in alerts]),
        "commonAnnotations": _common([alert.annotations for alert in alerts]),
        "externalURL": source,
        "alerts": [
            {
                "status": "resolved" if alert.is_resolved else "firing",
                "labels": dict(alert.labels),
                "annotations": dict(alert.annotations),
                "startsAt": format_time(alert.starts_ms),
                "endsAt": _NEVER if alert.ends_ms is None else format_time(alert.ends_ms),
                "generatorURL": alert.source,
                "fingerprint": alert.fingerprint,
            }
            for alert in alerts
        ],
    }


def _common(each: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}
