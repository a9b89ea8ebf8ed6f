"""Which targets may be probed: patterns of host and port, and the networks that names may lead to.

A name is checked as it is asked for, and again by the addresses it is resolved to, on which the connection is opened.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from aiohttp.abc import ResolveResult

from servescope.collector.resolver import Resolver

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_HIGHEST_PORT = 65_535
_LONGEST_NAME = 253
_AUTHORITY = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([\d*-]{1,11})")
_LABEL = r"[a-z0-9_*](?:[a-z0-9_*-]{0,61}[a-z0-9_*])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# What the system's resolver takes for an address in an old spelling: 127.1, 0x7f000001, 2130706433.
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
# Where clouds serve machines their credentials and settings, beside link-local addresses: Alibaba, Azure, Oracle; AWS,
# Google, Oracle.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe"),
    )
)


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
        return _unmapped(ipaddress.ip_address(host))
    except ValueError:
        return None


def _unmapped(address: IPAddress) -> IPAddress:
    """The IPv4 address where this is one written in IPv6."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_name(host: str) -> bool:
    return (
        len(host) <= _LONGEST_NAME
        and _NAME.fullmatch(host) is not None
        and _NUMBER.fullmatch(host.rpartition(".")[2]) is None
    )


def permits(networks: Sequence[IPNetwork], host: str, address: str) -> bool:
    """Whether a name may lead to an address: one of the networks, or, where there are none, no special address.

    Special are loopback, which only `localhost` may lead to, those of clouds' metadata, link-local, multicast,
    unspecified and reserved addresses.
    """
    found = _unmapped(ipaddress.ip_address(address.partition("%")[0]))
    if networks:
        return any(found in network for network in networks)
    if host == "localhost":
        return found.is_loopback
    return found not in _METADATA and not (
        found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
    )


class AllowedResolver(Resolver):
    """Looks up names, and refuses the addresses that `networks` does not permit; they may be replaced at any time."""

    def __init__(self, networks: Sequence[IPNetwork]) -> None:
        super().__init__()
        self.networks = networks

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The permitted addresses of a host; raises OSError where there is none."""
        found = await super().resolve(host, port, family)
        permitted = [each for each in found if permits(self.networks, host, each["host"])]
        if not permitted:
            refused = ", ".join(each["host"] for each in found)
            raise OSError(None, f"it leads to {refused}, which the configuration does not allow")
        return permitted
