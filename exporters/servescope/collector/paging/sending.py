"""Telling receivers: each in a task of its own, so that one that hangs delays neither another nor an evaluation.

Nothing is queued: what a receiver is to be told is found anew from how alerts stand, until it has taken it. What waits
is therefore bounded by the alerts there are, and an alert that is over before a receiver came back is told as over.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Final, Literal
from urllib.parse import urlsplit

from servescope.alerting.alerts import ALERTS
from servescope.collector.paging.notices import Notice, Shown, post_to_alertmanager, post_to_webhook
from servescope.collector.paging.settings import AlertingSettings, ReceiverSettings
from servescope.collector.paging.states import RESOLVED_KEPT_MS, Key, Standing
from servescope.collector.scrape import ScrapeError
from servescope.collector.telemetry import Telemetry
from servescope.settings.access import Access

_logger = logging.getLogger(__name__)

Told = Literal["firing", "resolved"]
Post = Callable[[str, Access, bytes, float], Awaitable[None]]
"""Posts JSON to a URL within so many seconds; raises ScrapeError."""

BATCH: Final = 64
"""So many alerts are told to an Alertmanager at once, as by Prometheus."""

TIMEOUT_SECONDS: Final = 10.0
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_PROBLEM_TOLD_EVERY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Word:
    """What a receiver was told last of an alert: since when it fires, whether it is over, and when it was told."""

    starts_ms: int
    told: Told
    at_ms: int


@dataclass(frozen=True, slots=True)
class Bulletin:
    """What there is to tell at an evaluation: what fires, valid until `valid_until_ms`, and what did lately.

    `write` words what there is to say of one, which is done for those that are told only.
    """

    at_ms: int
    valid_until_ms: int
    standings: tuple[Standing, ...]
    write: Callable[[Standing], Notice]

    def notices(self, part: Sequence[Standing]) -> list[Notice]:
        """A part of it in words."""
        return [self.write(each) for each in part]


@dataclass(frozen=True, slots=True)
class _Alertmanager:
    """Told of what fires again and again, as by Prometheus, and of what is over for as long as that is kept."""

    settings: ReceiverSettings
    resend_ms: int

    @property
    def url(self) -> str:
        return f"{self.settings.url.rstrip('/')}/api/v2/alerts"

    def due(self, bulletin: Bulletin, words: Mapping[Key, Word]) -> Iterator[Sequence[Standing]]:
        found = [each for each in bulletin.standings if self._is_due(each, words.get(each.key), bulletin.at_ms)]
        for start in range(0, len(found), BATCH):
            yield found[start : start + BATCH]

    def _is_due(self, standing: Standing, word: Word | None, at_ms: int) -> bool:
        if standing.resolved_ms is not None and abs(at_ms - standing.resolved_ms) > RESOLVED_KEPT_MS:
            return False
        if word is None or word.starts_ms != standing.active.fired_ms or word.told != standing.state:
            return True
        return not 0 <= at_ms - word.at_ms <= self.resend_ms

    def body(self, bulletin: Bulletin, part: Sequence[Standing]) -> list[Shown]:
        return post_to_alertmanager(bulletin.notices(part), bulletin.valid_until_ms)


@dataclass(frozen=True, slots=True)
class _Webhook:
    """Told once of what fires, again after a long while, and once of what is over if it was told that it fires."""

    settings: ReceiverSettings
    source: str

    @property
    def url(self) -> str:
        return self.settings.url

    def due(self, bulletin: Bulletin, words: Mapping[Key, Word]) -> Iterator[Sequence[Standing]]:
        for _, group in groupby(bulletin.standings, key=lambda each: each.alert):
            of_alert = [each for each in group if self._is_meant(each)]
            due = {each.key for each in of_alert if self._is_due(each, words.get(each.key), bulletin.at_ms)}
            if due:
                # What fires is told together, with what is over since it was told last.
                yield [each for each in of_alert if each.state == "firing" or each.key in due]

    def _is_meant(self, standing: Standing) -> bool:
        # That it is over is told whoever was told that it fired, by former settings too.
        severities = self.settings.severities
        return not severities or standing.state == "resolved" or ALERTS[standing.alert].severity in severities

    def _is_due(self, standing: Standing, word: Word | None, at_ms: int) -> bool:
        if standing.state == "resolved":
            # That it is over is news to those only who take it to fire, be it since an earlier time that it did.
            return word is not None and word.told == "firing"
        is_known = word is not None and word.starts_ms == standing.active.fired_ms
        return not is_known or word is None or not 0 <= at_ms - word.at_ms < self.settings.repeat_ms

    def body(self, bulletin: Bulletin, part: Sequence[Standing]) -> Shown:
        return post_to_webhook(bulletin.notices(part), self.source)


_Receiver = _Alertmanager | _Webhook
"""Of each kind: where it is told, what is due to be told it, in parts, and how a part is posted."""


@dataclass(slots=True)
class _Line:
    """One receiver, what it was told, and the task that tells it."""

    name: str
    receiver: _Receiver
    access: Access
    words: dict[Key, Word] = field(default_factory=dict)
    problem: str | None = None
    told_problem: float = -_PROBLEM_TOLD_EVERY_SECONDS
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Sender:
    """Tells every receiver of the settings what the last bulletin says. Of one event loop.

    `on_told()` is called when a webhook took something, which is to be remembered over a restart.
    """

    def __init__(
        self, settings: AlertingSettings, post: Post | None, telemetry: Telemetry, on_told: Callable[[], None]
    ) -> None:
        self._post, self._telemetry, self._on_told = post, telemetry, on_told
        self._bulletin: Bulletin | None = None
        self._lines: dict[str, _Line] = {}
        self.go_by(settings)

    def go_by(self, settings: AlertingSettings) -> None:
        """Tell these receivers from now on; one that stays is not told anew of what it knows."""
        receivers = list(_receivers(settings))
        names = _names([each.settings.url for each in receivers])
        former, self._lines = self._lines, {}
        for name, receiver in zip(names, receivers, strict=True):
            identity = _identify(receiver)
            known = former.pop(identity, None)
            line = self._lines[identity] = known or _Line(name, receiver, receiver.settings.access)
            line.name, line.receiver, line.access = name, receiver, receiver.settings.access
            self._telemetry.know_receiver(name)
        for line in former.values():
            if line.task is not None:
                line.task.cancel()

    def words(self) -> dict[str, dict[Key, Word]]:
        """What every webhook was told, to be kept over a restart; an Alertmanager may be told anew at any time.

        Webhooks are named by what tells one URL from another without showing it.
        """
        return {each: dict(line.words) for each, line in self._lines.items() if isinstance(line.receiver, _Webhook)}

    def owed(self) -> set[Key]:
        """The alerts that a webhook takes to fire, of whose end it is to be told."""
        return {
            key
            for line in self._lines.values()
            if isinstance(line.receiver, _Webhook)
            for key, word in line.words.items()
            if word.told == "firing"
        }

    def recall(self, words: Mapping[str, Mapping[Key, Word]]) -> None:
        """Take up what webhooks were told before a restart."""
        for identity, known in words.items():
            if identity in self._lines:
                self._lines[identity].words.update(known)

    def problems(self) -> dict[str, str | None]:
        """Every receiver, and why it could not be told last, None when it could."""
        return {line.name: line.problem for line in self._lines.values()}

    def tell(self, bulletin: Bulletin) -> None:
        """Have all receivers told; returns at once."""
        self._bulletin = bulletin
        known = {each.key for each in bulletin.standings}
        for line in self._lines.values():
            self._forget(line, known)
            line.news.set()
            if self._post is not None and (line.task is None or line.task.done()):
                line.task = asyncio.create_task(self._keep_telling(line, self._post))

    def _forget(self, line: _Line, known: set[Key]) -> None:
        """Forget what there is nothing more to tell of; what was told to fire and never to be over is given up."""
        for key in [key for key in line.words if key not in known]:
            if line.words.pop(key).told == "firing":
                self._telemetry.count_notices(line.name, "dropped", 1)

    async def close(self) -> None:
        """Tell no more."""
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_telling(self, line: _Line, post: Post) -> None:
        pause = 0.0
        while True:
            await line.news.wait()
            line.news.clear()
            if await self._tell_line(line, post):
                pause = 0.0
                continue
            pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)
            # What is to be told then is what holds then.
            line.news.set()

    async def _tell_line(self, line: _Line, post: Post) -> bool:
        """Tell a receiver what it is to know now; False when it could not be told all of it."""
        bulletin = self._bulletin
        if bulletin is None:
            return True
        is_told = True
        for part in line.receiver.due(bulletin, line.words):
            started = time.perf_counter()
            try:
                body = json.dumps(
                    line.receiver.body(bulletin, part), ensure_ascii=False, separators=(",", ":")
                ).encode()
                await post(line.receiver.url, line.access, body, TIMEOUT_SECONDS)
            except ScrapeError as error:
                self._on_failure(line, line.access.conceal(str(error)), len(part))
                if error.outcome != "status":
                    return False
                # It answers, so that one part it does not take must not keep the others from it.
                is_told = False
                continue
            except Exception as error:
                # A mistake of ours in telling one must not end the telling of it.
                _logger.exception("receiver %s: could not be told", line.name)
                self._on_failure(line, line.access.conceal(f"{type(error).__name__}: {error}"), len(part))
                is_told = False
                continue
            self._telemetry.notification_seconds.observe(time.perf_counter() - started)
            self._telemetry.count_notices(line.name, "sent", len(part))
            for each in part:
                told: Told = "resolved" if each.state == "resolved" else "firing"
                line.words[each.key] = Word(each.active.fired_ms or 0, told, bulletin.at_ms)
            if isinstance(line.receiver, _Webhook):
                self._on_told()
        if is_told and line.problem is not None:
            _logger.info("receiver %s is told again", line.name)
            line.problem = None
        return is_told

    def _on_failure(self, line: _Line, problem: str, notices: int) -> None:
        self._telemetry.count_notices(line.name, "failed", notices)
        now = time.monotonic()
        if problem != line.problem or now - line.told_problem >= _PROBLEM_TOLD_EVERY_SECONDS:
            line.told_problem = now
            _logger.error("receiver %s could not be told: %s; tried again", line.name, problem)
        line.problem = problem


def _receivers(settings: AlertingSettings) -> Iterator[_Receiver]:
    source = f"{settings.external_url}/api/v1/alerts" if settings.external_url else ""
    yield from (_Alertmanager(each, settings.resend_ms) for each in settings.alertmanagers)
    yield from (_Webhook(each, source) for each in settings.webhooks)


def _identify(receiver: _Receiver) -> str:
    """What tells a receiver from all others, over a restart too, and shows nothing of a URL that may be a secret."""
    return hashlib.blake2b(f"{type(receiver).__name__} {receiver.url}".encode(), digest_size=16).hexdigest()


def _names(urls: Iterable[str]) -> list[str]:
    """What receivers are called: host and port, and a number where that is not one alone; paths may hold secrets."""
    hosts = [urlsplit(url).netloc for url in urls]
    numbers = {host: count(1) for host in hosts}
    return [host if hosts.count(host) == 1 else f"{host}#{next(numbers[host])}" for host in hosts]
