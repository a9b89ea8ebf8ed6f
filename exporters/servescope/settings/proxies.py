"""Which hosts are reached through a proxy, by the settings or by the environment."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import unquote
from urllib.request import getproxies_environment

from servescope.settings.access import AccessError, make_basic
from servescope.settings.values import is_loopback


def bypasses_proxy(no_proxy: Sequence[str], host: str, port: int) -> bool:
    """Whether a host is reached without the proxy.

    Entries are `*`, an address, a network such as `10.0.0.0/8`, or a name, which matches itself and its subdomains
    (these alone when it begins with a dot); each but a network may end in `:port`.
    """
    return any(_matches(entry.strip().lower(), host.lower().strip("[]"), port) for entry in no_proxy)


def _matches(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, _, number = entry.rpartition(":")
    if name and number.isdigit() and (":" not in name or entry.startswith("[")):
        if int(number) != port:
            return False
        entry = name
    entry = entry.strip("[]").removeprefix("*")
    if entry.startswith("."):
        return host.endswith(entry)
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))


def environment_proxy(scheme: str, host: str, port: int) -> tuple[str, str | None] | None:
    """The URL and `Proxy-Authorization` of the proxy that the environment sets for a host; raises AccessError."""
    proxies = getproxies_environment()
    url = proxies.get(scheme)
    # As in other programs that read these variables, loopback is never proxied.
    if not url or is_loopback(host) or bypasses_proxy(proxies.get("no", "").split(","), host, port):
        return None
    match = re.fullmatch(r"(?:(https?)://)?(?:([^/@]*)@)?([^/@?#\s]+)/?", url)
    if match is None:
        raise AccessError(f"environment variable '{scheme}_proxy' holds no http or https URL")
    authorization = make_basic(unquote(match[2])) if match[2] else None
    return f"{match[1] or 'http'}://{match[3]}", authorization
