"""Notifies receivers: each in a task of its own, so that one that hangs delays neither another nor an evaluation.

There is no queue: what to send to a receiver is computed from the current alerts and what it accepted last. Pending
notifications are therefore bounded by the number of alerts, and an alert that resolved while a receiver was down is
sent as resolved.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal
from urllib.parse import urlsplit

from servescope.alerting.alerts import ALERTS
from servescope.alerting.grouping import group_labels
from servescope.collector.paging.payloads import AlertPayload, Json, alertmanager_payload, webhook_payload
from servescope.collector.paging.settings import AlertingSettings, ReceiverSettings
from servescope.collector.paging.states import RESOLVED_KEPT_MS, AlertInstance, Key
from servescope.collector.telemetry import Telemetry
from servescope.settings.access import Access
from servescope.settings.concealing import secrets_of_query
from servescope.web.connections import FetchError

_logger = logging.getLogger(__name__)

SentState = Literal["firing", "resolved"]
Post = Callable[[str, Access, bytes, float], Awaitable[None]]
"""Posts JSON to a URL within so many seconds; raises FetchError."""

MAX_ALERTS_PER_REQUEST: Final = 64
"""The most alerts in one request to an Alertmanager, as with Prometheus."""

TIMEOUT_SECONDS: Final = 10.0
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_PROBLEM_LOGGED_EVERY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class LastSent:
    """What a receiver accepted last for an alert: when the alert began to fire, its state, and when that was sent."""

    starts_ms: int
    state: SentState
    at_ms: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The firing and recently resolved alerts of one evaluation; firing ones are valid until `valid_until_ms`.

    `to_payload` renders one alert, which is done only for those that are sent.
    """

    at_ms: int
    valid_until_ms: int
    instances: tuple[AlertInstance, ...]
    to_payload: Callable[[AlertInstance], AlertPayload]

    def payloads(self, part: Sequence[AlertInstance]) -> list[AlertPayload]:
        """Some of its alerts, rendered."""
        return [self.to_payload(each) for each in part]


@dataclass(frozen=True, slots=True)
class _Alertmanager:
    """Is sent firing alerts at every resend interval, and resolved ones for `RESOLVED_KEPT_MS`, as by Prometheus."""

    settings: ReceiverSettings
    resend_ms: int

    @property
    def url(self) -> str:
        return f"{self.settings.url.rstrip('/')}/api/v2/alerts"

    def due(self, batch: Batch, last_sent: Mapping[Key, LastSent]) -> Iterator[Sequence[AlertInstance]]:
        found = [each for each in batch.instances if self._is_due(each, last_sent.get(each.key), batch.at_ms)]
        for start in range(0, len(found), MAX_ALERTS_PER_REQUEST):
            yield found[start : start + MAX_ALERTS_PER_REQUEST]

    def _is_due(self, instance: AlertInstance, sent: LastSent | None, at_ms: int) -> bool:
        if instance.resolved_ms is not None and abs(at_ms - instance.resolved_ms) > RESOLVED_KEPT_MS:
            return False
        if sent is None or sent.starts_ms != instance.active.fired_ms or sent.state != instance.state:
            return True
        return not 0 <= at_ms - sent.at_ms <= self.resend_ms

    def body(self, batch: Batch, part: Sequence[AlertInstance]) -> list[Json]:
        return alertmanager_payload(batch.payloads(part), batch.valid_until_ms)


@dataclass(frozen=True, slots=True)
class _Webhook:
    """Is sent firing alerts once and again after `repeat_ms`, and resolved ones if it was sent that they fire."""

    settings: ReceiverSettings
    source: str

    @property
    def url(self) -> str:
        return self.settings.url

    def due(self, batch: Batch, last_sent: Mapping[Key, LastSent]) -> Iterator[Sequence[AlertInstance]]:
        groups: dict[tuple[str, ...], list[AlertInstance]] = {}
        for each in filter(self._matches, batch.instances):
            groups.setdefault(_group_of(each), []).append(each)
        for group in groups.values():
            due = {each.key for each in group if self._is_due(each, last_sent.get(each.key), batch.at_ms)}
            if due:
                # One notification holds all that fires, and what resolved since the last one.
                yield [each for each in group if each.state == "firing" or each.key in due]

    def _matches(self, instance: AlertInstance) -> bool:
        # A receiver that was sent the firing alert is sent its end, even if its severities changed meanwhile.
        severities = self.settings.severities
        return not severities or instance.state == "resolved" or ALERTS[instance.alert].severity in severities

    def _is_due(self, instance: AlertInstance, sent: LastSent | None, at_ms: int) -> bool:
        if instance.state == "resolved":
            # Also when it was sent as firing since an earlier time.
            return sent is not None and sent.state == "firing"
        is_known = sent is not None and sent.starts_ms == instance.active.fired_ms
        return not is_known or sent is None or not 0 <= at_ms - sent.at_ms < self.settings.repeat_ms

    def body(self, batch: Batch, part: Sequence[AlertInstance]) -> Json:
        return webhook_payload(batch.payloads(part), self.source)


_Receiver = _Alertmanager | _Webhook


@dataclass(slots=True)
class _Channel:
    """One receiver, what it accepted last, and the task that sends to it."""

    name: str
    receiver: _Receiver
    access: Access
    last_sent: dict[Key, LastSent] = field(default_factory=dict)
    # When the last notification of an alert failed: others are sent before it, and of failed ones the first to fail.
    failed: dict[Key, float] = field(default_factory=dict)
    problem: str | None = None
    problem_logged_at: float = -_PROBLEM_LOGGED_EVERY_SECONDS
    is_due: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def secrets(self) -> tuple[str, ...]:
        """What is secret of the receiver's URL: of a webhook all behind its host."""
        url = self.receiver.url
        return (urlsplit(url).path, *secrets_of_query(url)) if isinstance(self.receiver, _Webhook) else ()


class Notifier:
    """Sends the latest batch to every receiver of the settings. Belongs to one event loop.

    `on_sent()` is called when a webhook accepted a notification, which has to be stored for a restart.
    """

    def __init__(
        self, settings: AlertingSettings, post: Post | None, telemetry: Telemetry, on_sent: Callable[[], None]
    ) -> None:
        self._post, self._telemetry, self._on_sent = post, telemetry, on_sent
        self._batch: Batch | None = None
        self._channels: dict[str, _Channel] = {}
        self.apply(settings)

    def apply(self, settings: AlertingSettings) -> None:
        """Send to these receivers from now on; one that stays is not sent again what it accepted."""
        receivers = list(_receivers(settings))
        names = _names([each.settings.url for each in receivers])
        former, self._channels = self._channels, {}
        for name, receiver in zip(names, receivers, strict=True):
            identity = _identify(receiver)
            known = former.pop(identity, None)
            channel = self._channels[identity] = known or _Channel(name, receiver, receiver.settings.access)
            channel.name, channel.receiver, channel.access = name, receiver, receiver.settings.access
            self._telemetry.add_receiver(name)
        for channel in former.values():
            if channel.task is not None:
                channel.task.cancel()

    def last_sent(self) -> dict[str, dict[Key, LastSent]]:
        """What every webhook accepted last, to be stored for a restart; an Alertmanager may be sent anything again.

        Webhooks are named by a hash of their URL, which may hold a secret.
        """
        return {
            identity: dict(channel.last_sent)
            for identity, channel in self._channels.items()
            if isinstance(channel.receiver, _Webhook)
        }

    def owed(self) -> set[Key]:
        """The alerts that a webhook was sent as firing, so that their end has to be sent as well."""
        return {
            key
            for channel in self._channels.values()
            if isinstance(channel.receiver, _Webhook)
            for key, sent in channel.last_sent.items()
            if sent.state == "firing"
        }

    def restore(self, last_sent: Mapping[str, Mapping[Key, LastSent]]) -> None:
        """Restore what webhooks accepted before a restart."""
        for identity, known in last_sent.items():
            if identity in self._channels:
                self._channels[identity].last_sent.update(known)

    def forget_after(self, time_ms: int) -> None:
        """Have nothing be accepted later than an instant, to which the clock was set back."""
        for channel in self._channels.values():
            # An Alertmanager is sent all again, with the times of the present.
            sent_once = channel.last_sent if isinstance(channel.receiver, _Webhook) else {}
            channel.last_sent = {
                key: LastSent(min(sent.starts_ms, time_ms), sent.state, min(sent.at_ms, time_ms))
                for key, sent in sent_once.items()
            }

    def problems(self) -> dict[str, str | None]:
        """Every receiver, and why the last notification to it failed; None where it succeeded."""
        return {channel.name: channel.problem for channel in self._channels.values()}

    def send(self, batch: Batch) -> None:
        """Have a batch sent to all receivers; returns at once."""
        self._batch = batch
        known = {each.key for each in batch.instances}
        for channel in self._channels.values():
            self._forget(channel, known)
            channel.is_due.set()
            if self._post is not None and (channel.task is None or channel.task.done()):
                channel.task = asyncio.create_task(self._send_loop(channel, self._post))

    def _forget(self, channel: _Channel, known: set[Key]) -> None:
        """Forget alerts that are no longer kept; one sent as firing and never as resolved counts as dropped."""
        channel.failed = {key: at for key, at in channel.failed.items() if key in known}
        for key in [key for key in channel.last_sent if key not in known]:
            if channel.last_sent.pop(key).state == "firing":
                self._telemetry.count_notifications(channel.name, "dropped", 1)

    async def close(self) -> None:
        """Stop sending."""
        tasks = [channel.task for channel in self._channels.values() if channel.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_loop(self, channel: _Channel, post: Post) -> None:
        pause = 0.0
        while True:
            await channel.is_due.wait()
            channel.is_due.clear()
            if await self._send_due(channel, post):
                pause = 0.0
                continue
            pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)
            # What is sent after the pause is what is current then.
            channel.is_due.set()

    async def _send_due(self, channel: _Channel, post: Post) -> bool:
        """Send all that is due to a receiver; False when it did not accept all of it."""
        batch = self._batch
        if batch is None:
            return True
        is_sent = True
        # A receiver may hang on one notification and accept the others: what failed last time is sent last.
        due = sorted(
            channel.receiver.due(batch, channel.last_sent),
            key=lambda part: max(channel.failed.get(each.key, 0.0) for each in part),
        )
        for part in due:
            # A slow receiver takes longer than an evaluation; what it gets must not have expired meanwhile.
            batch = self._batch or batch
            started = time.perf_counter()
            try:
                body = json.dumps(
                    channel.receiver.body(batch, part), ensure_ascii=False, separators=(",", ":")
                ).encode()
                await post(channel.receiver.url, channel.access, body, TIMEOUT_SECONDS)
            except FetchError as error:
                self._on_failure(channel, channel.access.conceal(str(error), *channel.secrets()), part)
                if error.outcome == "timeout" and isinstance(channel.receiver, _Webhook):
                    self._owe_end(channel, batch.at_ms, part)
                if error.outcome not in ("status", "rate_limited"):
                    return False
                # The receiver answers: it may accept the other parts.
                is_sent = False
                continue
            except Exception as error:
                # An error of our own in one notification must not end the loop.
                fault = channel.access.conceal_fault(*channel.secrets())
                _logger.error(  # noqa: TRY400  the traceback is in the text, concealed
                    "receiver %s: notification failed inside the collector\n%s", channel.name, fault
                )
                self._on_failure(
                    channel, channel.access.conceal(f"{type(error).__name__}: {error}", *channel.secrets()), part
                )
                is_sent = False
                continue
            self._telemetry.notification_seconds.observe(time.perf_counter() - started)
            self._telemetry.count_notifications(channel.name, "sent", len(part))
            for each in part:
                channel.failed.pop(each.key, None)
                state: SentState = "resolved" if each.state == "resolved" else "firing"
                channel.last_sent[each.key] = LastSent(each.active.fired_ms or 0, state, batch.at_ms)
            if isinstance(channel.receiver, _Webhook):
                self._on_sent()
        if is_sent and channel.problem is not None:
            _logger.info("receiver %s accepts notifications again", channel.name)
            channel.problem = None
        return is_sent

    def _owe_end(self, channel: _Channel, at_ms: int, part: Sequence[AlertInstance]) -> None:
        """A webhook may show alerts that it did not answer for in time: they stay due, and so will their end be."""
        for each in part:
            sent = channel.last_sent.get(each.key)
            if each.state == "firing" and (sent is None or sent.state != "firing"):
                channel.last_sent[each.key] = LastSent(0, "firing", at_ms)
        self._on_sent()

    def _on_failure(self, channel: _Channel, problem: str, part: Sequence[AlertInstance]) -> None:
        self._telemetry.count_notifications(channel.name, "failed", len(part))
        now = time.monotonic()
        channel.failed |= dict.fromkeys((each.key for each in part), now)
        if problem != channel.problem or now - channel.problem_logged_at >= _PROBLEM_LOGGED_EVERY_SECONDS:
            channel.problem_logged_at = now
            _logger.error("receiver %s: notification failed, will retry: %s", channel.name, problem)
        channel.problem = problem


def _group_of(instance: AlertInstance) -> tuple[str, ...]:
    """The severity and the labels that the alerts of one webhook's notification share."""
    of_rule = ALERTS[instance.alert].labels
    labels = {"alertname": instance.alert, **of_rule, **dict(instance.labels)}
    return (of_rule["severity"], *(text for pair in group_labels(labels).items() for text in pair))


def _receivers(settings: AlertingSettings) -> Iterator[_Receiver]:
    source = f"{settings.external_url}/api/v1/alerts" if settings.external_url else ""
    yield from (_Alertmanager(each, settings.resend_ms) for each in settings.alertmanagers)
    yield from (_Webhook(each, source) for each in settings.webhooks)


def _identify(receiver: _Receiver) -> str:
    """A hash of kind and URL: the same over a restart, without showing a URL that may hold a secret."""
    return hashlib.blake2b(f"{type(receiver).__name__} {receiver.url}".encode(), digest_size=16).hexdigest()


def _names(urls: Iterable[str]) -> list[str]:
    """The receivers' names: host and port, with a number where several share them; paths may hold secrets."""
    hosts = [urlsplit(url).netloc for url in urls]
    numbers = {host: count(1) for host in hosts}
    return [host if hosts.count(host) == 1 else f"{host}#{next(numbers[host])}" for host in hosts]
