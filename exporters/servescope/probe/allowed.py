"""Which addresses the names of targets may lead to.

A name is checked as it is asked for, and again by the addresses it is resolved to, on which the connection is opened.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from servescope.collector.claims import Claims
from servescope.collector.resolver import Resolver
from servescope.settings.addresses import IPNetwork, unmapped

# Where clouds serve machines their credentials and settings, beside link-local addresses: Alibaba, Azure, Oracle; AWS,
# Google, Oracle.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe"),
    )
)


def permits(networks: Sequence[IPNetwork], host: str, address: str) -> bool:
    """Whether a name may lead to an address: one of the networks, or, where there are none, no special address.

    Special are loopback, which only `localhost` may lead to, those of clouds' metadata, link-local, multicast,
    unspecified and reserved addresses.
    """
    found = unmapped(ipaddress.ip_address(address.partition("%")[0]))
    if networks:
        return any(found in network for network in networks)
    if host == "localhost":
        return found.is_loopback
    return found not in _METADATA and not (
        found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
    )


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
