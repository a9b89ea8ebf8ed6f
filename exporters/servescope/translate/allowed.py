"""Which addresses the names of targets may lead to.

A name is checked as it is asked for, and again by the addresses it is resolved to, on which the connection is opened.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from servescope.collector.targets.claims import Claims
from servescope.settings.addresses import IPAddress, IPNetwork, unmapped
from servescope.web.resolver import Resolver

# Where clouds serve machines their credentials and settings, beside link-local addresses: Alibaba, Azure, Oracle; AWS,
# Google, Oracle.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe"),
    )
)
# What names of a cluster, or of a network of one's own, end with.
_INTERNAL = (".svc", ".cluster.local", ".local", ".internal")
_ISATAP = (0x5EFE, 0x2005EFE)


def permits(networks: Sequence[IPNetwork], host: str, address: str) -> bool:
    """Whether a name may lead to an address: one of the networks, or, where there are none, no special address.

    Special are loopback, which only `localhost` may lead to, those of clouds' metadata, link-local, multicast,
    unspecified and reserved addresses, and IPv6 addresses that are a way to an IPv4 address which is not public. Names
    of a cluster lead to no public address.
    """
    found = unmapped(ipaddress.ip_address(address.partition("%")[0]))
    if networks:
        return any(found in network for network in networks)
    if host == "localhost":
        return found.is_loopback
    if host.endswith(_INTERNAL) and found.is_global:
        return False
    return not _is_special(found) and not any(_is_special(each) or not each.is_global for each in _embedded(found))


def _is_special(address: IPAddress) -> bool:
    return address in _METADATA or (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
    )


def _embedded(address: IPAddress) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address is a way to, by 6to4, Teredo or ISATAP; those of NAT64 are reserved."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    number = int(address)
    found = [address.sixtofour, *(address.teredo or ())]
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        found.append(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    return [each for each in found if each is not None]


class AllowedResolver(Resolver):
    """Looks up names, and refuses the addresses that `networks` does not permit, or that `claims` has for others.

    Both may be replaced at any time.
    """

    def __init__(self, networks: Sequence[IPNetwork], claims: Claims) -> None:
        super().__init__(self._refuse)
        self.networks, self.claims = networks, claims

    def _refuse(self, host: str, port: int, address: str) -> str | None:
        if not permits(self.networks, host, address):
            return "which the configuration does not allow"
        return self.claims.refuse_lead(host, port, address)
