"""Which Host headers a server of ours accepts: the protection against DNS rebinding.

A web page whose name is rebound to this machine has the browser send that name as Host. An address, or `localhost`,
cannot be rebound.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from string import digits


def accepts_host(host: str, names: Collection[str] = ()) -> bool:
    """Whether a Host header is `localhost`, an IP address, or one of the configured names, with or without a port."""
    name = _without_port(host)
    if name == "localhost" or name in {each.lower() for each in names}:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    # Digits alone, or nothing, as in a URL (RFC 3986, section 3.2.3).
    has_port = (name.endswith("]") or host.count(":") == 1) and not port.strip(digits)
    return (name if has_port else host).lower()
