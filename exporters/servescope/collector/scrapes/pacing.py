"""When each target may be scraped: at its own interval, within its host's limit, not while it asks for rest.

Instants are of the wall clock, in milliseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime

from servescope.collector.targets.target import Target

_MINUTE_MS = 60_000
_FIRST_HOLD_MS = 30_000
_LONGEST_HOLD_MS = 600_000
_SHORTEST_HOLD_MS = 1_000
# As long as a server may ask for (`fetch`); what is held for longer was held before the clock was set back.
_LONGEST_HELD_MS = 3_600_000


class Host:
    """One host that may be asked so often a minute, whoever of its targets it is for: turns, evenly spaced."""

    def __init__(self) -> None:
        self.apart_ms = 0
        self.targets = 0
        self.held_until_ms = 0
        self._next_ms = 0

    def reserve(self, now_ms: int) -> int:
        """The next turn, which is taken by this."""
        self.held_until_ms = believe_hold(self.held_until_ms, now_ms)
        self._next_ms = believe_hold(self._next_ms, now_ms + self.apart_ms * self.targets)
        turn = max(now_ms, self._next_ms, self.held_until_ms)
        self._next_ms = turn + self.apart_ms
        return turn

    def hold(self, until_ms: int) -> None:
        """No turn before an instant; turns already given that lie before it do not count."""
        self.held_until_ms = max(self.held_until_ms, until_ms)

    def set_back(self, by_ms: int) -> None:
        """Wait as long as before: the clock was set back."""
        self.held_until_ms -= by_ms
        self._next_ms -= by_ms


class Pacer:
    """The pace of all targets; hosts without `max_scrapes_per_minute` have no limit."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Know who is scraped from now on; a host that stays goes on with the turns it has given."""
        limits: dict[str, list[int]] = {}
        counts: dict[str, int] = {}
        pages: list[Target] = []
        for target in targets:
            # What several targets read parts of is scraped once.
            if target.part.select and any(target.shares_page(each) for each in pages):
                continue
            pages.append(target)
            counts[target.host] = counts.get(target.host, 0) + 1
            limit = target.scraping.max_scrapes_per_minute
            if limit is not None:
                limits.setdefault(target.host, []).append(limit)
        self._hosts = {name: self._hosts.get(name) or Host() for name in limits}
        for name, host in self._hosts.items():
            # Where targets of one host have different limits, the host has the lowest.
            host.apart_ms = -(-_MINUTE_MS // min(limits[name]))
            host.targets = counts[name]

    def set_back(self, by_ms: int) -> None:
        """Have all hosts wait as long as before: the clock was set back."""
        for host in self._hosts.values():
            host.set_back(by_ms)

    def host(self, target: Target) -> Host | None:
        """The limited host of a target, None when it has no limit."""
        return self._hosts.get(target.host)

    def interval_ms(self, target: Target) -> int:
        """How often a target really is scraped: at its interval, or as its host's limit leaves room."""
        host = self.host(target)
        return max(target.scraping.interval_ms, host.apart_ms * host.targets) if host else target.scraping.interval_ms

    def find_problems(self, window_ms: int) -> list[str]:
        """Which hosts have so many targets for their limit that no figure comes of them."""
        return [
            f"host {name!r}: {host.targets} targets share {_MINUTE_MS // host.apart_ms} scrapes a minute, "
            f"one each {host.apart_ms * host.targets / 1000:g} s; figures need two within the window "
            f"({window_ms / 1000:g} s)"
            for name, host in self._hosts.items()
            if 2 * host.apart_ms * host.targets > window_ms
        ]


def hold_ms(retry_after_seconds: float | None, refusals: int) -> int:
    """How long a target is left alone that refused so many scrapes in a row: as it asks, or twice as long each time."""
    if retry_after_seconds is not None:
        return max(_SHORTEST_HOLD_MS, round(retry_after_seconds * 1000))
    return min(_LONGEST_HOLD_MS, _FIRST_HOLD_MS << min(refusals - 1, 10))


def believe_hold(until_ms: int, now_ms: int) -> int:
    """The end of a hold; 0 when it is further ahead than any can be: the clock was set back meanwhile."""
    return until_ms if until_ms <= now_ms + _LONGEST_HELD_MS else 0


def format_instant(instant_ms: int) -> str:
    """An instant as people read it, in UTC."""
    return datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def scrape_offset_ms(target_id: str, interval_ms: int) -> int:
    """Where in each interval a target is scraped: by hash, so that targets spread and a restart changes nothing."""
    digest = hashlib.blake2b(target_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % interval_ms


def next_due_ms(now_ms: int, interval_ms: int, offset_ms: int, *, after_ms: int) -> int:
    """The next instant at `offset_ms` within an interval, later than now; never `after_ms` itself again.

    A sleep may end a moment early, and would otherwise meet the instant it was for a second time.
    """
    due = (now_ms - offset_ms) // interval_ms * interval_ms + offset_ms + interval_ms
    return due + interval_ms if due == after_ms else due
