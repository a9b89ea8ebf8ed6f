"""What values of a configuration are made of: durations, sizes, addresses and names of headers."""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime

_DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
LONGEST_DURATION_MS = 3653 * _DURATION_UNITS["d"]
_DURATION = re.compile(r"(\d+)(ms|[smhdw])")


def parse_duration(text: str) -> int:
    """Milliseconds of a Prometheus duration such as `15s`, `1h30m`, `7d`; raises ValueError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration")
    return sum(int(number) * _DURATION_UNITS[unit] for number, unit in parts)


_SIZE = re.compile(r"(\d{1,6})(?:\.(\d{1,3}))?(KB|MB|GB|TB)")
_SIZE_POWERS = {"KB": 1, "MB": 2, "GB": 3, "TB": 4}


def parse_size(text: str) -> int:
    """Bytes of a size such as `500MB` or `1.5GB`, in powers of 1000; raises ValueError."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size")
    return round(float(f"{match[1]}.{match[2] or 0}") * 1000.0 ** _SIZE_POWERS[match[3]])


def format_duration(milliseconds: int) -> str:
    """The shortest Prometheus duration in one unit: `5m`, `90s`, `1d`."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds % _DURATION_UNITS[unit] == 0:
            return f"{milliseconds // _DURATION_UNITS[unit]}{unit}"
    return f"{milliseconds}ms"


def parse_instant(text: str) -> int:
    """Milliseconds of a time in ISO 8601; raises ValueError."""
    moment = datetime.fromisoformat(text)
    # A time without a zone is read as UTC: a command, or a link, must mean the same to everybody.
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def format_instant(time_ms: int) -> str:
    """A time in ISO 8601, in UTC and whole seconds."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def format_wait(seconds: float) -> str:
    """How long something takes, in the two largest units that matter: `25 min`, `1 h 20 min`, `2 d 4 h`."""
    minutes = max(1, round(seconds / 60))
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    # Beyond a few hours five minutes more or less are not known.
    hours, minutes = divmod(5 * round(minutes / 5), 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3_600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def format_percent(share: float, digits: int = 0) -> str:
    """A share in percent: `71.4 %`."""
    return f"{100 * share:.{digits}f} %"


_HIGHEST_PORT = 65535


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` (`[::1]:9900` for IPv6); raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/\s]+)):(\d{1,5})", text)
    if not match or int(match[3]) > _HIGHEST_PORT:
        raise ValueError(f"{text!r} is not host:port")
    return match[1] or match[2], int(match[3])


def check_authority(authority: str) -> None:
    """Raise ValueError unless this is the `host` or `host:port` of a URL, without credentials."""
    match = re.fullmatch(r"(?:\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::(\d{1,5}))?", authority)
    if not match or int(match[1] or 0) > _HIGHEST_PORT:
        raise ValueError(f"has no valid host and port: {authority!r}")


def is_loopback(host: str) -> bool:
    """Whether a host, or an address to listen on, can be reached from this machine only."""
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def split_header(text: str) -> tuple[str, str] | None:
    """The name and the value of a header as `NAME=VALUE` or, as curl takes it, `NAME: VALUE`; None where it is none."""
    name, *rest = re.split("[=:]", text, maxsplit=1)
    return (name.strip(), rest[0].strip()) if rest and check_header_name(name.strip()) else None


def check_header_name(name: str) -> bool:
    """Whether this is a valid name of a header (RFC 9110, section 5.6.2)."""
    return re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is not None
