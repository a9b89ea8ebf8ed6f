"""Observes every alert from Prometheus to the receivers, several times a second."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.proofs.live.receivers import Notification
from tests.proofs.live.stack import LiveStack

_EVERY_SECONDS: Final = 0.4
CALLING: Final = ("page", "ticket")
"""The receivers that notify people."""


@dataclass(frozen=True, slots=True)
class Received:
    """An alert that a receiver was sent: `at` is of `time.monotonic`, `status` is `firing` or `resolved`."""

    at: float
    receiver: str
    name: str
    deployment: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Muting:
    """An alert that Alertmanager inhibited because of the alerts `by`."""

    at: float
    name: str
    deployment: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """How many messages people were sent: those that opened a page or a ticket, and what was added to an open one."""

    pages: int = 0
    tickets: int = 0
    updates: int = 0

    def __str__(self) -> str:
        counted = ((self.pages, "page"), (self.tickets, "ticket"), (self.updates, "update"))
        return ", ".join(f"{number} {word}{'s' if number > 1 else ''}" for number, word in counted if number)


class Watch:
    """A thread that polls the stack; everything it has seen can be read at any time."""

    def __init__(self, stack: LiveStack) -> None:
        self._stack = stack
        self._lock = threading.Lock()
        self._fired: dict[tuple[str, str], list[float]] = {}
        self._muted: list[Muting] = []
        self._received: list[Received] = []
        self._notifications: list[Notification] = []
        self._ended = threading.Event()
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._look_regularly, name="servescope-live-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @staticmethod
    def now() -> float:
        """The moment, as the times of notifications are."""
        return time.monotonic()

    def received(self, *, since: float = 0.0) -> list[Received]:
        """The alerts that receivers were sent, in order."""
        with self._lock:
            sent = self._stack.receivers.sent(len(self._notifications))
            self._notifications += sent
            self._received += [received for each in sent for received in _read(each)]
            return self._received[bisect_left(self._received, since, key=lambda received: received.at) :]

    def messages(self, concerns: Callable[[str, str], bool], *, since: float, until: float = math.inf) -> Messages:
        """How many messages there were of alerts whose name and deployment it concerns.

        A group of alerts is one message; a notification with alerts that the one before did not have updates it.
        """
        self.received()
        opened: dict[tuple[str, str], set[tuple[tuple[str, str], ...]]] = {}
        updates = 0
        for each in self._notifications:
            if not since <= each.at <= until or each.receiver not in CALLING:
                continue
            firing = {
                tuple(sorted(alert["labels"].items()))
                for alert in each.alerts
                if alert["status"] == "firing" and concerns(*_key(alert["labels"]))
            }
            if firing:
                known = opened.setdefault((each.receiver, each.body["groupKey"]), set())
                updates += bool(known) and not firing <= known
                known |= firing
        receivers = [receiver for receiver, _ in opened]
        pages, tickets = map(receivers.count, CALLING)
        return Messages(pages, tickets, updates)

    def was_firing(self, name: str, deployment: str, *, since: float) -> bool:
        """Whether Prometheus has had the alert firing since then."""
        with self._lock:
            times = self._fired.get((name, deployment), [])
            return bool(times) and times[-1] >= since

    def fired(self, *, since: float, until: float) -> set[tuple[str, str]]:
        """The alerts that Prometheus had firing in between, with their deployments."""
        with self._lock:
            return {key for key, times in self._fired.items() if any(since <= at <= until for at in times)}

    def muted(self, *, since: float, until: float) -> list[Muting]:
        """The alerts that Alertmanager inhibited in between."""
        with self._lock:
            return [each for each in self._muted if since <= each.at <= until]

    def _look_regularly(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            try:
                self._look()
            except (OSError, ValueError, KeyError) as error:
                # A busy server is asked again; one that stays away shows as alerts that are not seen.
                self.failures.append(repr(error))

    def _look(self) -> None:
        firing, received, now = self._stack.firing(), self._stack.received(), time.monotonic()
        by_fingerprint = {alert["fingerprint"]: alert["labels"]["alertname"] for alert in received}
        with self._lock:
            for alert in firing:
                if alert["state"] == "firing":
                    self._fired.setdefault(_key(alert["labels"]), []).append(now)
            for alert in received:
                by = tuple(sorted({by_fingerprint.get(each, "") for each in alert["status"]["inhibitedBy"]} - {""}))
                if by:
                    self._muted.append(Muting(now, *_key(alert["labels"]), by))


def _read(sent: Notification) -> Iterator[Received]:
    """The alerts of a notification."""
    for alert in sent.alerts:
        yield Received(
            sent.at, sent.receiver, *_key(alert["labels"]), alert["status"], alert["labels"], alert["annotations"]
        )  # fmt: skip


def _key(labels: Mapping[str, Any]) -> tuple[str, str]:
    return labels["alertname"], labels.get("deployment_id", "")
