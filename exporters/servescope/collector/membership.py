"""The shards as they stand now: those of the configuration, or those a watched file lists."""

from __future__ import annotations

import logging
from pathlib import Path

from servescope.collector.config import Configuration
from servescope.collector.scrape import Fetch, Limits, ScrapeError
from servescope.collector.shards import ShardSettings, check_member, find_owner
from servescope.collector.signature import Signature, sign_file
from servescope.collector.targets import DiscoveryError, Target, read_target_groups
from servescope.errors import ConfigurationError
from servescope.identity import Identity

_logger = logging.getLogger(__name__)

# A member's answer, decompressed; a page of scrapes has a tenth of it.
_MOST_BYTES = 128_000_000
_UNREADABLE = (OSError, UnicodeDecodeError, DiscoveryError)
_MEMBER = Identity("servescope", "collectors", "servescope")


def check_part(configuration: Configuration) -> None:
    """Raise ConfigurationError unless deployments are there for a collector that scrapes, and for no other."""
    shards = configuration.shards
    scrapes = shards is None or shards.own is not None
    if scrapes and not configuration.deployments:
        raise ConfigurationError(f"{configuration.origin}: no deployments; one that scrapes needs [[deployments]]")
    if not scrapes and configuration.deployments:
        raise ConfigurationError(
            f"{configuration.origin}: shards: no 'self'; a collector with [[deployments]] needs it, or --shard, "
            f"and one that gathers from shards has no [[deployments]]"
        )


def check_members(settings: ShardSettings) -> None:
    """Raise ConfigurationError unless it can be told who the shards are."""
    path = settings.members_file
    if path is None:
        return
    try:
        _read_members(path)
    except _UNREADABLE as error:
        raise ConfigurationError(_tell(path, error)) from error


class Membership:
    """The members, and whose a target is. Not thread safe.

    A file that cannot be used, or lists no member, keeps the former members, and `problems` says so; at the start it is
    a ConfigurationError.
    """

    def __init__(self, settings: ShardSettings) -> None:
        self._settings = settings
        self._signature: Signature | None = None
        self._owners: dict[str, str] = {}
        self.members = tuple(sorted(settings.members))
        self.problems: tuple[str, ...] = ()
        self.refresh()
        if not self.members:
            raise ConfigurationError("; ".join(self.problems))

    def refresh(self) -> None:
        """Read the file when it changed."""
        path = self._settings.members_file
        if path is None:
            return
        try:
            signature = sign_file(path)
            if signature == self._signature:
                return
            members = _read_members(path)
        except _UNREADABLE as error:
            # The former file may come back as it was.
            self._signature = None
            kept = f"; the former {len(self.members)} members are kept" if self.members else ""
            self._report(f"{_tell(path, error)}{kept}")
            return
        self._signature, self.problems = signature, ()
        if members != self.members:
            _logger.info("the shards are %s", ", ".join(members))
            self.members, self._owners = members, {}

    def find_owner(self, target_id: str) -> str:
        """The member a target belongs to."""
        owner = self._owners.get(target_id) or find_owner(target_id, self.members)
        assert owner is not None  # noqa: S101  there is always a member
        self._owners[target_id] = owner
        return owner

    def forget_others(self, target_ids: frozenset[str]) -> None:
        """Keep in memory the owners of these targets only."""
        if len(self._owners) > len(target_ids):
            self._owners = {name: owner for name, owner in self._owners.items() if name in target_ids}

    def _report(self, problem: str) -> None:
        if (problem,) != self.problems:
            _logger.warning("%s", problem)
        self.problems = (problem,)


def _read_members(path: Path) -> tuple[str, ...]:
    """The members in a file of Prometheus' `file_sd` format, which may serve to scrape them too."""
    members = set()
    for address, labels in read_target_groups(path.read_text(encoding="utf-8"), path):
        try:
            members.add(check_member(f"{labels.get('__scheme__', 'http')}://{address}"))
        except ValueError as error:
            raise DiscoveryError(f"member {address!r} {error}") from None
    if not members:
        raise DiscoveryError("it lists no member")
    return tuple(sorted(members))


def _tell(path: Path, error: Exception) -> str:
    return f"shards: members_file {path}: {error}"


class MemberClient:
    """Asks members over HTTP, in the way targets are asked: bounded, and with credentials that may rotate."""

    def __init__(self, fetch: Fetch, settings: ShardSettings, timeout_seconds: float) -> None:
        self._fetch, self._access = fetch, settings.access
        self._limits = Limits(timeout_seconds, _MOST_BYTES, 1)

    async def ask(self, member: str, path: str) -> bytes:
        """A member's answer; raises ScrapeError, which does not show our credentials even where the answer did."""
        try:
            return await self._fetch(Target(f"{member}{path}", _MEMBER, None, self._access), self._limits)
        except ScrapeError as error:
            raise ScrapeError(error.outcome, self._access.conceal(str(error))) from error
