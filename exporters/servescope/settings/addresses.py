"""Addresses of targets, `HOST:PORT`, and patterns of them: names in which `*` is any characters, and networks."""

from __future__ import annotations

import ipaddress
import re
from fnmatch import fnmatchcase
from typing import NamedTuple

from servescope.errors import ConfigurationError
from servescope.settings.tables import Table

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_HIGHEST_PORT = 65_535
_LONGEST_NAME = 253
_AUTHORITY = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([\d*-]{1,11})")
_LABEL = r"[a-z0-9_*](?:[a-z0-9_*-]{0,61}[a-z0-9_*])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# What the system's resolver takes for an address in an old spelling: 127.1, 0x7f000001, 2130706433.
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")


class Address(NamedTuple):
    """A target as it is asked for: a name in small letters, or an IP address, and a port."""

    host: str | IPAddress
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.host}]:{self.port}" if isinstance(self.host, ipaddress.IPv6Address) else f"{self.host}:{self.port}"
        )


class TargetPattern(NamedTuple):
    """Hosts, by a name that may have `*` or by a network, and a range of ports."""

    host: str | IPNetwork
    lowest: int
    highest: int

    def matches(self, address: Address) -> bool:
        """Whether it allows a target; names match no network, and addresses no name."""
        if not self.lowest <= address.port <= self.highest:
            return False
        if isinstance(self.host, str) or isinstance(address.host, str):
            return isinstance(self.host, str) and isinstance(address.host, str) and fnmatchcase(address.host, self.host)
        return address.host in self.host

    def overlaps(self, other: TargetPattern) -> bool:
        """Whether there is a target that both allow; a name and a network have none in common."""
        if self.highest < other.lowest or other.highest < self.lowest:
            return False
        if isinstance(self.host, str) or isinstance(other.host, str):
            return (
                isinstance(self.host, str) and isinstance(other.host, str) and _have_common_name(self.host, other.host)
            )
        return self.host.version == other.host.version and self.host.overlaps(other.host)


def read_address(text: str) -> Address:
    """A target such as `10.0.0.7:8000`, `vllm-0.engines:8000`, `[fd00::7]:8000`; raises ValueError."""
    host, port = _split(text)
    found = _read_ip(host)
    is_host = "*" not in host and (found is not None or ("[" not in text and _is_name(host)))
    if not is_host or not port.isdigit() or not 0 < int(port) <= _HIGHEST_PORT:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return Address(host if found is None else found, int(port))


def read_pattern(text: str) -> TargetPattern:
    """A pattern such as `10.0.0.0/8:8000-8100`, `*.engines.svc:8000`, `[fd00::/8]:*`; raises ValueError."""
    host, ports = _split(text)
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", f"1-{_HIGHEST_PORT}" if ports == "*" else ports)
    lowest, highest = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < lowest <= highest <= _HIGHEST_PORT:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if "%" in host:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if "[" in text or "/" in host or _read_ip(host) is not None:
        return TargetPattern(ipaddress.ip_network(host), lowest, highest)
    if not _is_name(host):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return TargetPattern(host, lowest, highest)


def _split(text: str) -> tuple[str, str]:
    match = _AUTHORITY.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return (match[1] or match[2]).lower().removesuffix("."), match[3]


def _read_ip(host: str) -> IPAddress | None:
    # A zone behind % may be any text, and names an interface of this machine.
    if "%" in host:
        return None
    try:
        return unmapped(ipaddress.ip_address(host))
    except ValueError:
        return None


def unmapped(address: IPAddress) -> IPAddress:
    """The IPv4 address where this is one written in IPv6."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_name(host: str) -> bool:
    return (
        len(host) <= _LONGEST_NAME
        and _NAME.fullmatch(host) is not None
        and _NUMBER.fullmatch(host.rpartition(".")[2]) is None
    )


def read_patterns(table: Table, key: str, default: list[str] | None = None) -> tuple[TargetPattern, ...]:
    """The patterns listed at a key; raises ConfigurationError."""
    patterns = []
    for text in table.strings(key, default):
        try:
            patterns.append(read_pattern(text))
        except ValueError:
            raise ConfigurationError(
                f"{table.origin}: {table.key(key)}: {text!r} is wrong, expected HOST:PORT such as '10.0.0.0/8:8000', "
                "'*.engines.svc:8000-8010', '[fd00::/8]:*'"
            ) from None
    return tuple(patterns)


def _have_common_name(one: str, other: str) -> bool:
    """Whether there is a name that matches both patterns."""
    seen: set[tuple[int, int]] = set()
    left = [(0, 0)]
    while left:
        place = first, second = left.pop()
        if place in seen:
            continue
        seen.add(place)
        here, there = one[first : first + 1], other[second : second + 1]
        if not here and not there:
            return True
        if here == "*":
            left.append((first + 1, second))
        if there == "*":
            left.append((first, second + 1))
        if here == there or (here == "*" and there) or (there == "*" and here):
            left.append((first + (here != "*"), second + (there != "*")))
    return False
