"""The tables `[[customers.push]]` and `[customers.pull]`: where a customer's points go, and who may read its page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast, get_args
from urllib.parse import parse_qsl, urlsplit

from servescope.customers.policy.policy import LEFT_OUT, OtlpBackend, Protocol, Pull, Push, Temporality
from servescope.customers.policy.presets import PRESETS, Preset
from servescope.errors import ConfigurationError, ServescopeError
from servescope.settings.access import ACCESS_SETTINGS, Access, read_access
from servescope.settings.proxies import bypasses_proxy
from servescope.settings.tables import REQUIRED, Setting, Table
from servescope.settings.values import check_authority, is_loopback
from servescope.web.tokens import Tokens

PUSH_SETTINGS: Final = (
    Setting("name", '"push"'),
    Setting("preset", ""),
    Setting("protocol", ""),
    Setting("url", REQUIRED),
    Setting("temporality", '"cumulative"'),
    Setting("gzip", "true"),
    Setting("max_request_size", '"3MB"'),
    Setting("timeout", '"10s"'),
    Setting("backfill", ""),
    Setting("stores_names_as", '"prometheus"'),
    *ACCESS_SETTINGS,
)
PULL_SETTINGS: Final = (Setting("token_file", REQUIRED), Setting("requests_per_minute", "6"))

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_URL: Final = re.compile(r"(https?)://([^/?#\s@]+)(/[^\s#]*)?")
_SECRET_PARAMETER: Final = re.compile(r"(?i)auth|token|secret|key|pass|pwd|credential|sig|session|jwt|^p$")
_PATHS: Final = {"otlp-http": "/v1/metrics", "remote-write": "/api/v1/write", "otlp-grpc": ""}
_LEAST_REQUEST_BYTES: Final = 1_000_000
_LONGEST_TIMEOUT_MS: Final = 120_000


def read_pushes(tables: Sequence[Table]) -> tuple[Push, ...]:
    """The destinations of a customer; raises ConfigurationError."""
    pushes: dict[str, Push] = {}
    for table in tables:
        push = _read_push(table)
        if push.name in pushes:
            raise table.wrong("name", "another name than that of the customer's other destinations")
        pushes[push.name] = push
    return tuple(pushes.values())


def read_pull(table: Table, directory: Path) -> Pull:
    """The page of a customer; raises ConfigurationError, also for a token that cannot be read."""
    path = directory / table.string("token_file", None)
    try:
        Tokens(file=path)
    except ServescopeError as error:
        raise ConfigurationError(f"{table.origin}: {table.key('token_file')}: {error}") from None
    return Pull(str(path), table.whole_number("requests_per_minute", 6))


def _read_push(table: Table) -> Push:
    name = table.string("name", "push")
    if not _NAME.fullmatch(name) or name == Pull.name:
        raise table.wrong("name", f"small letters, digits, - and _, at most 63, and not {Pull.name!r}")
    if name in (Pull.name, LEFT_OUT):
        raise table.wrong("name", f"another name: {name!r} has a meaning of its own")
    preset = PRESETS[table.choice("preset", tuple(PRESETS), "")] if "preset" in table.values else None
    protocol = _read_protocol(table, preset)
    url = _read_url(table, protocol)
    access = _read_access(table, url, protocol, preset)
    timeout_ms = table.duration("timeout", 10_000)
    if timeout_ms > _LONGEST_TIMEOUT_MS:
        raise table.wrong("timeout", "at most 2m")
    return Push(
        protocol,
        url,
        access,
        temporality=_read_temporality(table, protocol, preset),
        gzip=table.boolean("gzip", default=True),
        most_bytes=table.size("max_request_size", _LEAST_REQUEST_BYTES) or 3_000_000,
        timeout_seconds=timeout_ms / 1000,
        backfill_ms=table.duration("backfill", 1) if "backfill" in table.values else 0,
        name=name,
        stores_names_as=_read_backend(table, protocol, preset),
    )


def _read_backend(table: Table, protocol: Protocol, preset: Preset | None) -> OtlpBackend:
    default: OtlpBackend = preset.stores_names_as if preset else "prometheus"
    backend = cast("OtlpBackend", table.choice("stores_names_as", get_args(OtlpBackend), default))
    if protocol == "remote-write" and "stores_names_as" in table.values:
        raise table.wrong("stores_names_as", "no such key: what remote write sends has the names that are stored")
    if default == "other" and backend != "other" and preset is not None:
        raise table.wrong("stores_names_as", f'"other": {preset.title} answers no PromQL')
    return backend


def _read_protocol(table: Table, preset: Preset | None) -> Protocol:
    if preset is None and "protocol" not in table.values:
        raise ConfigurationError(
            f"{table.origin}: {table.path}: 'protocol' is missing; expected one of {', '.join(get_args(Protocol))}, or "
            f"a preset: {', '.join(PRESETS)}"
        )
    return cast("Protocol", table.choice("protocol", get_args(Protocol), preset.protocol if preset else ""))


def _read_temporality(table: Table, protocol: Protocol, preset: Preset | None) -> Temporality:
    default = preset.temporality if preset else "cumulative"
    temporality = cast("Temporality", table.choice("temporality", get_args(Temporality), default))
    if protocol == "remote-write" and temporality == "delta":
        raise table.wrong("temporality", '"cumulative": remote write has no other')
    if preset is not None and preset.only and temporality != preset.temporality:
        raise table.wrong("temporality", f'"{preset.temporality}": {preset.title} takes no other')
    return temporality


def _read_url(table: Table, protocol: Protocol) -> str:
    url = table.string("url", None)
    if "@" in url:
        # The value is not in the error: it may hold a password.
        raise ConfigurationError(
            f"{table.origin}: {table.key('url')}: the value carries credentials; use bearer_token_file, "
            f"headers_from_file or basic_auth_username"
        )
    match = _URL.fullmatch(url)
    try:
        check_authority(match[2] if match else "")
    except ValueError:
        raise _wrong_url(table, f"a URL such as 'https://otlp.example{_PATHS[protocol]}'") from None
    path = match[3] if match and match[3] not in (None, "/") else ""
    if protocol == "otlp-grpc" and path:
        raise _wrong_url(table, "a URL without a path, such as 'https://otlp.example:4317'")
    return url if path else f"{url.rstrip('/')}{_PATHS[protocol]}"


def _read_access(table: Table, url: str, protocol: Protocol, preset: Preset | None) -> Access:
    access = read_access(table)
    if access.tls.insecure_skip_verify:
        raise table.wrong("tls_insecure_skip_verify", "false: anybody could pose as the customer; use tls_ca_file")
    if protocol == "otlp-grpc" and (access.proxy.url or "").startswith("https:"):
        raise table.wrong("proxy_url", "an http URL, as OTLP over gRPC takes no other proxy")
    if url.startswith("http://") and (secrets := _list_secrets(url, access)) and not _stays_here(url, access):
        raise _wrong_url(table, f"https://, as {' and '.join(secrets)} would be sent in the clear")
    if preset is None:
        return access
    names = access.header_names()
    if preset.needs and preset.needs.lower() not in names:
        raise ConfigurationError(
            f"{table.origin}: {table.path}: {preset.title} needs the header {preset.needs!r}; set it under "
            f"headers_from_file"
        )
    added = tuple(pair for pair in preset.headers if pair[0].lower() not in names)
    return replace(access, headers=(*access.headers, *added))


def _wrong_url(table: Table, expected: str) -> ConfigurationError:
    """The error for a URL, without its query, which may hold a secret."""
    place, mark, _ = table.string("url", None).partition("?")
    shown = f"{place}?…" if mark else place
    return ConfigurationError(f"{table.origin}: {table.key('url')}: {shown!r} is wrong, expected {expected}")


def _list_secrets(url: str, access: Access) -> list[str]:
    """The headers and the parameters of a URL that count as credentials."""
    parameters = [name for name, _ in parse_qsl(url.partition("?")[2]) if _SECRET_PARAMETER.search(name)]
    return [*(f"header {each!r}" for each in access.credentials()), *(f"parameter {each!r}" for each in parameters)]


def _stays_here(url: str, access: Access) -> bool:
    """Whether nobody else's network is on the way to a URL, nor on that to the proxy before it."""
    parts, proxy = urlsplit(url), access.proxy
    host = parts.hostname or ""
    is_direct = proxy.url is None or bypasses_proxy(proxy.no_proxy, host, parts.port or 80)
    return is_loopback(host) and (is_direct or is_loopback(urlsplit(proxy.url or "").hostname or ""))
