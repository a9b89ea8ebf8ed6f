"""Shards: who they are, how they are configured, and which of them a target belongs to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from servescope.collector.access import ACCESS_SETTINGS, Access, read_access
from servescope.collector.tables import Setting, Table
from servescope.errors import ConfigurationError

SHARD_SETTINGS = (
    Setting("members", "[]"),
    Setting("members_file", ""),
    Setting("self", ""),
    Setting("catch_up", '"1h"'),
    *ACCESS_SETTINGS,
)
"""The keys of `[shards]`."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """The collectors that divide the targets among themselves: `members`, or a `members_file` that lists them.

    `own` is the member this collector is; a collector that is none gathers from them all. `catch_up_ms` is how far back
    one that gathers asks for what it missed.
    """

    members: tuple[str, ...] = ()
    members_file: Path | None = None
    own: str | None = None
    catch_up_ms: int = 3_600_000
    access: Access = field(default_factory=Access)


def read_shards(table: Table, directory: Path) -> ShardSettings:
    """The settings of `[shards]`; raises ConfigurationError."""
    if ("members" in table.values) == ("members_file" in table.values):
        raise ConfigurationError(f"{table.origin}: {table.path}: expected either 'members' or 'members_file'")
    expected = "the base URL of a collector such as 'http://collector-0:9900'"
    try:
        members = [check_member(member) for member in (table.strings("members") if "members" in table.values else [])]
    except ValueError:
        raise table.wrong("members", f"a list of them, each {expected}") from None
    if len(set(members)) < len(members):
        raise table.wrong("members", "every member once")
    file = table.string("members_file", "")
    return ShardSettings(
        tuple(members),
        directory / file if file else None,
        table.parsed("self", check_member, None, expected),
        table.duration("catch_up", ShardSettings().catch_up_ms),
        read_access(table),
    )


def check_member(url: str) -> str:
    """The base URL of a shard in the one form it is compared in; raises ValueError saying what is wrong."""
    match = re.fullmatch(r"(https?)://(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::(\d{1,5}))?/?", url)
    if not match:
        raise ValueError("is not the base URL of a collector, expected one such as 'http://collector-0:9900'")
    scheme, host, port = match.groups()
    if port is not None and not 0 < int(port) <= 65535:
        raise ValueError(f"has no port {port}, expected one from 1 to 65535")
    return f"{scheme}://{host.lower()}:{int(port) if port else 443 if scheme == 'https' else 80}"


def find_owner(target_id: str, members: Iterable[str]) -> str | None:
    """The member a target belongs to, None without members.

    Rendezvous hashing: each member draws a number for the target, and the highest wins. All that know the same members
    agree, whatever their order; a member that joins or leaves moves only what it gains or had.
    https://doi.org/10.1109/90.663936
    """
    return max(members, key=lambda member: (_draw(target_id, member), member), default=None)


def _draw(target_id: str, member: str) -> bytes:
    # No URL holds a line break, so that no two pairs read the same.
    return hashlib.blake2b(f"{member}\n{target_id}".encode(), digest_size=8).digest()
