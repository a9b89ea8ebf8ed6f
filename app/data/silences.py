"""The silences of the Alertmanagers that the collector's configuration names; read beside the page, never in its way.

An Alertmanager that is slow or fails is named in a line; what it answered last stays shown.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request

from app.data.alarms import Alarm
from servescope.collector.paging.settings import ReceiverSettings, read_alertmanagers
from servescope.errors import ServescopeError
from servescope.store.prometheus.client import make_opener

TIMEOUT_SECONDS: Final = 4.0
FIRST_SECONDS: Final = 1.0
"""How long a page waits for an Alertmanager that has not answered yet."""
AGAIN_SECONDS: Final = 15.0
_MOST_BYTES: Final = 4_000_000
_CHUNK_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Matcher:
    """What a label of a silenced alert has to be."""

    name: str
    value: str
    is_regex: bool
    is_equal: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels have it; a label that is missing is empty, as in Alertmanager."""
        value = labels.get(self.name, "")
        return self._found(value) is self.is_equal

    def _found(self, value: str) -> bool:
        if not self.is_regex:
            return value == self.value
        try:
            return re.fullmatch(self.value, value) is not None
        except re.error:
            return False

    def __str__(self) -> str:
        sign = ("=~" if self.is_equal else "!~") if self.is_regex else ("=" if self.is_equal else "!=")
        return f'{self.name}{sign}"{self.value}"'


@dataclass(frozen=True, slots=True)
class Silence:
    """One silence that is active or will be: until when, of what, who made it and why, and where it is managed."""

    state: str
    starts_ms: int
    ends_ms: int
    matchers: tuple[Matcher, ...]
    by: str
    comment: str
    link: str

    def holds_back(self, alarm: Alarm) -> bool:
        """Whether notifications of an alert are held back by it now."""
        labels = {**alarm.labels, "alertname": alarm.name, "severity": alarm.severity}
        return self.state == "active" and all(each.matches(labels) for each in self.matchers)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the silences now: those that were read, and a line for each Alertmanager that did not answer."""

    silences: tuple[Silence, ...]
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Reading:
    """One Alertmanager: what it answered last, and the request that is under way."""

    settings: ReceiverSettings
    found: tuple[Silence, ...] = ()
    problem: str = ""
    asked_at: float | None = None
    pending: Future[tuple[Silence, ...]] | None = None
    waited: bool = False


class SilenceReader:
    """Reads the silences of every Alertmanager in threads of its own, at most one request to each at a time."""

    def __init__(self, alertmanagers: Iterable[ReceiverSettings]) -> None:
        self._readings = [_Reading(each) for each in alertmanagers]
        self._threads = ThreadPoolExecutor(max(1, len(self._readings)), thread_name_prefix="silences")

    def read(self) -> Known:
        """What is known now; asks again what is old, and waits a moment for who has never answered."""
        for reading in self._readings:
            self._ask(reading)
        # Once alone: a page that is drawn again is not held up again.
        wait([each.pending for each in self._readings if each.pending is not None and not each.waited], FIRST_SECONDS)
        for reading in self._readings:
            reading.waited = True
            _collect(reading)
        silences = [silence for each in self._readings for silence in each.found]
        return Known(
            tuple(sorted(silences, key=lambda each: (each.state != "active", each.ends_ms))),
            tuple(f"Alertmanager {each.settings.url}: {each.problem}" for each in self._readings if each.problem),
        )

    def _ask(self, reading: _Reading) -> None:
        recent = reading.asked_at is not None and time.monotonic() - reading.asked_at < AGAIN_SECONDS
        if reading.pending is None and not recent:
            reading.asked_at = time.monotonic()
            reading.pending = self._threads.submit(fetch_silences, reading.settings)


def _collect(reading: _Reading) -> None:
    pending = reading.pending
    if pending is None:
        return
    if not pending.done():
        reading.problem = reading.problem or "no answer yet"
        return
    reading.pending = None
    error = pending.exception()
    if error is None:
        reading.found, reading.problem = pending.result(), ""
    else:
        reading.problem = str(error)


class SilencesError(ServescopeError):
    """The silences of an Alertmanager could not be read; the text is why."""


def open_reader(path: Path) -> SilenceReader:
    """A reader of the Alertmanagers that a configuration names; raises ConfigurationError."""
    return SilenceReader(read_alertmanagers(path))


def fetch_silences(settings: ReceiverSettings) -> tuple[Silence, ...]:
    """The silences of an Alertmanager that have not expired, by its API v2; raises SilencesError."""
    base = settings.url.rstrip("/")
    try:
        headers = {"Accept": "application/json", **settings.access.request_headers()}
        request = Request(f"{base}/api/v2/silences", headers=headers)  # noqa: S310  the scheme is checked
        with make_opener(settings.access, base).open(request, timeout=TIMEOUT_SECONDS) as response:
            answer = json.loads(_read_all(response))
        if not isinstance(answer, list):
            raise SilencesError("the answer to /api/v2/silences is no list; expected the base URL of an Alertmanager")
        return tuple(_parse(each, base) for each in answer if each["status"]["state"] != "expired")
    except TimeoutError:
        raise SilencesError(f"no answer within {TIMEOUT_SECONDS:g} s") from None
    except HTTPError as error:
        raise SilencesError(f"HTTP status {error.code} to /api/v2/silences") from None
    except URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise SilencesError(settings.access.conceal(f"cannot be reached: {reason}")) from None
    except (OSError, HTTPException) as error:
        raise SilencesError(f"the answer ended early: {type(error).__name__}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SilencesError(f"the answer to /api/v2/silences is not Alertmanager's: {type(error).__name__}") from None


def _read_all(response: Any) -> bytes:
    """The body; one that drips or never ends is given up."""
    deadline, body = time.monotonic() + TIMEOUT_SECONDS, b""
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise SilencesError(f"the answer has more than {_MOST_BYTES} bytes")
        if time.monotonic() > deadline:
            raise SilencesError(f"no complete answer within {TIMEOUT_SECONDS:g} s")
    return body


def _parse(document: Mapping[str, Any], base: str) -> Silence:
    return Silence(
        state=str(document["status"]["state"]),
        starts_ms=_parse_time(document["startsAt"]),
        ends_ms=_parse_time(document["endsAt"]),
        matchers=tuple(
            Matcher(str(each["name"]), str(each["value"]), bool(each["isRegex"]), bool(each.get("isEqual", True)))
            for each in document["matchers"]
        ),
        by=str(document.get("createdBy", "")),
        comment=str(document.get("comment", "")),
        link=f"{base}/#/silences/{document['id']}",
    )


def _parse_time(text: str) -> int:
    return round(1000 * datetime.fromisoformat(text).timestamp())
