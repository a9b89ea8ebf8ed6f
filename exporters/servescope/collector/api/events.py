"""Events over HTTP: the log as JSON, and a deploy that somebody reports."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from servescope.collector.api.parameters import QueryRange
from servescope.contract.events import Event
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.samples import make_labels
from servescope.settings.clock import AHEAD_MS
from servescope.settings.values import format_instant
from servescope.store.schema import LATEST_MS
from servescope.web.answers import RequestError, json_bytes

MOST_BODY_BYTES: Final = 16_384
MOST_TEXT: Final = 1_024
TEXT: Final = r"[^\x00-\x1f\x7f]+"
"""What the texts of a deploy match."""
HASH: Final = r"[0-9a-f]{64}"
"""What the hash of a configuration matches."""
MOST_EVENTS_SHOWN: Final = 10_000
"""The events of one answer, the last ones where there are more."""

_KEYS: Final = ("text", "by", "labels", "time_ms", "configuration")


def event_json(event: Event) -> dict[str, Any]:
    """An event as the API shows it."""
    return {
        "time_ms": event.time_ms,
        "kind": event.kind,
        "labels": dict(event.labels),
        "text": event.text,
        "detail": dict(event.detail),
    }


def events_json(asked: QueryRange, events: Sequence[Event]) -> bytes:
    """The events of a time."""
    return json_bytes({**asked._asdict(), "events": [event_json(each) for each in events]})


async def read_deploy(request: web.Request, now_ms: int) -> Event:
    """The deploy that the body of a request reports; raises RequestError naming what is wrong."""
    body = await request.content.read(MOST_BODY_BYTES + 1)
    while len(body) <= MOST_BODY_BYTES and not request.content.at_eof():
        body += await request.content.read(MOST_BODY_BYTES + 1 - len(body))
    if len(body) > MOST_BODY_BYTES:
        raise RequestError(
            f"the body has more than {MOST_BODY_BYTES} bytes", status=413, headers={"Connection": "close"}
        )
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError('the body is no JSON, expected one like {"text": "chat 1.5", "by": "ci"}') from None
    if not isinstance(given, dict):
        raise RequestError("the body is no object, expected the keys text and by")
    for key in given:
        if key not in _KEYS:
            raise RequestError(f"unknown key {key[:100]!r}, supported: {', '.join(_KEYS)}")
    time_ms = given.get("time_ms", now_ms)
    if not isinstance(time_ms, int) or isinstance(time_ms, bool) or not 0 <= time_ms <= LATEST_MS:
        raise RequestError(f"time_ms is wrong, expected a whole number from 0 to {LATEST_MS}")
    if time_ms > now_ms + AHEAD_MS:
        raise RequestError(
            f"time_ms is wrong, {format_instant(time_ms)} is later than now, {format_instant(now_ms)}, by our clock"
        )
    labels = given.get("labels", {})
    if not isinstance(labels, dict) or not set(labels) <= set(IDENTITY_LABELS):
        raise RequestError(f"labels is wrong, expected an object of some of {', '.join(IDENTITY_LABELS)}")
    pairs = {name: _text(value, f"labels.{name}") for name, value in labels.items()}
    detail = {"by": _text(given.get("by"), "by")}
    if "configuration" in given:
        detail["configuration"] = _text(given["configuration"], "configuration")
        if not re.fullmatch(HASH, detail["configuration"]):
            raise RequestError("configuration is wrong, expected a hash of 64 hexadecimal digits")
    return Event(time_ms, "deploy", make_labels(pairs), _text(given.get("text"), "text"), make_labels(detail))


def _text(value: object, name: str) -> str:
    # Half a character, which JSON can carry, is none that UTF-8 can hold.
    is_text = isinstance(value, str) and re.fullmatch(TEXT, value) and not re.search("[\ud800-\udfff]", value)
    if not isinstance(value, str) or not is_text or len(value) > MOST_TEXT:
        raise RequestError(f"{name} is wrong, expected 1 to {MOST_TEXT} characters, none of control")
    return value
