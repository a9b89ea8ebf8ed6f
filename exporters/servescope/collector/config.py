"""The collector's configuration: `servescope.toml`, read whole and refused whole.

Every table's keys are listed once, with their defaults, in `SETTINGS`; `docs/collector.md` is checked against it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from servescope.collector.access import Access, check_header_name
from servescope.errors import ConfigurationError, IdentityError, UsageError
from servescope.identity import DEPLOYMENT_LABELS, ROLES, Deployment, Identity

DEFAULT_PORT = 9900
REQUIRED: Final = "required"

T = TypeVar("T")


class Setting(NamedTuple):
    """One key of the configuration and its default as it would stand in the file; "" where there is none."""

    key: str
    default: str


_ACCESS = (
    Setting("bearer_token_file", ""),
    Setting("bearer_token_env", ""),
    Setting("headers", "{}"),
    Setting("headers_from_env", "{}"),
    Setting("headers_from_file", "{}"),
)

SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "collector": (
        Setting("listen", f'"127.0.0.1:{DEFAULT_PORT}"'),
        Setting("store", '"servescope.db"'),
        Setting("scrape_interval", '"15s"'),
        Setting("scrape_timeout", '"10s"'),
        Setting("evaluation_interval", '"15s"'),
        Setting("discovery_interval", '"5s"'),
        Setting("window", '"5m"'),
        Setting("retention", '"7d"'),
        Setting("max_body_bytes", "16000000"),
        Setting("max_series", "20000"),
    ),
    "deployments": (
        Setting("deployment_id", REQUIRED),
        Setting("model_name", REQUIRED),
        Setting("inference_stack", REQUIRED),
        Setting("environment", '""'),
        Setting("rollout_phase", '""'),
        Setting("targets", "[]"),
        Setting("file_sd", "[]"),
    ),
    "deployments.targets": (
        Setting("url", REQUIRED),
        Setting("replica", ""),
        Setting("role", '"aggregated"'),
        Setting("source", ""),
        *_ACCESS,
    ),
    "deployments.file_sd": (
        Setting("files", REQUIRED),
        Setting("role", '"aggregated"'),
        Setting("source", ""),
        *_ACCESS,
    ),
}


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """How the collector runs; times in milliseconds."""

    listen: tuple[str, int] = ("127.0.0.1", DEFAULT_PORT)
    store: Path = Path("servescope.db")
    scrape_interval_ms: int = 15_000
    scrape_timeout_ms: int = 10_000
    evaluation_interval_ms: int = 15_000
    discovery_interval_ms: int = 5_000
    window_ms: int = 300_000
    retention_ms: int = 7 * 86_400_000
    max_body_bytes: int = 16_000_000
    max_series: int = 20_000


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One target as it is written; `replica` is "" for host:port, `source` None to identify it."""

    url: str
    replica: str = ""
    role: str = "aggregated"
    source: str | None = None
    access: Access = field(default_factory=Access)


@dataclass(frozen=True, slots=True)
class FileDiscoverySettings:
    """Files that list targets, as absolute glob patterns, and what holds for every target in them."""

    files: tuple[str, ...]
    role: str = "aggregated"
    source: str | None = None
    access: Access = field(default_factory=Access)


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    """One deployment: its labels, and where its targets come from."""

    deployment: Deployment
    targets: tuple[TargetSettings, ...] = ()
    file_sd: tuple[FileDiscoverySettings, ...] = ()


@dataclass(frozen=True, slots=True)
class Configuration:
    """All of `servescope.toml`; `origin` names the file, or the command line."""

    collector: CollectorSettings
    deployments: tuple[DeploymentSettings, ...]
    origin: str


def read_configuration(path: Path) -> Configuration:
    """The configuration in a TOML file; paths in it are relative to the file.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"no configuration file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is no TOMLDecodeError
        raise ConfigurationError(f"{path}: not TOML: {error}") from error
    return make_configuration(document, origin=str(path), directory=path.resolve().parent)


def make_configuration(document: Mapping[str, object], *, origin: str, directory: Path) -> Configuration:
    """The configuration from a parsed document; `origin` is what errors call it."""
    root = _Table(document, origin, "")
    root.check_keys(("collector", "deployments"))
    collector = _read_collector(root.table("collector", SETTINGS["collector"]), directory)
    deployments = tuple(
        _read_deployment(table, directory) for table in root.tables("deployments", SETTINGS["deployments"])
    )
    if not deployments:
        raise ConfigurationError(f"{origin}: no deployments; expected at least one [[deployments]] table")
    _check_deployments_differ(deployments, origin)
    return Configuration(collector, deployments, origin)


def configure_targets(
    targets: Sequence[str], *, model_name: str = "default", inference_stack: str | None = None
) -> Configuration:
    """The configuration for `--target [NAME=]URL` arguments: one deployment per name, or per host:port without one.

    A URL may leave out `http://` and `/metrics`. The stack is called like the deployment unless given. Raises
    UsageError naming the argument.
    """
    by_name: dict[str, list[TargetSettings]] = {}
    for argument in targets:
        name, url = _split_target(argument)
        by_name.setdefault(name or host_and_port(url), []).append(TargetSettings(url))
    deployments = tuple(
        DeploymentSettings(Deployment(model_name, name, inference_stack or name), tuple(listed))
        for name, listed in by_name.items()
    )
    return Configuration(CollectorSettings(), deployments, "command line")


_DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_LONGEST_MS = 3653 * _DURATION_UNITS["d"]
_DURATION = re.compile(r"(\d+)(ms|[smhdw])")


def parse_duration(text: str) -> int:
    """Milliseconds of a Prometheus duration such as `15s`, `1h30m`, `7d`; raises ValueError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration")
    return sum(int(number) * _DURATION_UNITS[unit] for number, unit in parts)


def format_duration(milliseconds: int) -> str:
    """The shortest Prometheus duration in one unit: `5m`, `90s`, `1d`."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds % _DURATION_UNITS[unit] == 0:
            return f"{milliseconds // _DURATION_UNITS[unit]}{unit}"
    return f"{milliseconds}ms"


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` (`[::1]:9900` for IPv6); raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/\s]+)):(\d{1,5})", text)
    if not match or int(match[3]) > 65535:
        raise ValueError(f"{text!r} is not host:port")
    return match[1] or match[2], int(match[3])


def check_url(url: str) -> str:
    """The URL of a target, with `/metrics` where it has no path; raises ValueError saying what is wrong."""
    match = re.fullmatch(r"(https?)://([^/?#\s]+)([^\s#]*)", url)
    if not match or not url.isprintable():
        raise ValueError("is not a URL, expected one such as 'http://127.0.0.1:8000/metrics'")
    scheme, authority, rest = match.groups()
    if "@" in authority:
        # The value is not shown: it holds a password.
        raise ValueError("carries credentials; use bearer_token_file, headers_from_file or headers_from_env")
    if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d+)?", authority):
        raise ValueError(f"has no host in {authority!r}")
    if ":" in authority.rpartition("]")[2]:
        parse_address(authority)
    path = rest if rest.startswith("/") and rest != "/" else f"/metrics{rest.removeprefix('/')}"
    return f"{scheme}://{authority}{path}"


def host_and_port(url: str) -> str:
    """The `host:port` of a checked URL, with the scheme's own port where it names none."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    if ":" in authority.rpartition("]")[2]:
        return authority
    return f"{authority}:{443 if scheme == 'https' else 80}"


def _split_target(argument: str) -> tuple[str, str]:
    match = re.fullmatch(r"(?:([A-Za-z0-9][\w.-]*)=)?(\S+)", argument)
    if not match:
        raise UsageError(f"target {argument!r} is not [NAME=]URL")
    name, url = match[1] or "", match[2]
    try:
        return name, check_url(url if "://" in url else f"http://{url}")
    except ValueError as error:
        shown = "the URL" if "@" in url else repr(url)
        raise UsageError(f"target {name or 'without a name'}: {shown} {error}") from None


def _read_collector(table: _Table, directory: Path) -> CollectorSettings:
    default = CollectorSettings()
    interval = table.duration("scrape_interval", default.scrape_interval_ms)
    settings = CollectorSettings(
        listen=table.parsed("listen", parse_address, default.listen, "host:port such as '127.0.0.1:9900'"),
        store=directory / table.string("store", str(default.store)),
        scrape_interval_ms=interval,
        # An interval below the default timeout lowers it: what is not said cannot be wrong.
        scrape_timeout_ms=table.duration("scrape_timeout", min(default.scrape_timeout_ms, interval)),
        evaluation_interval_ms=table.duration("evaluation_interval", default.evaluation_interval_ms),
        discovery_interval_ms=table.duration("discovery_interval", default.discovery_interval_ms),
        window_ms=table.duration("window", default.window_ms),
        retention_ms=table.duration("retention", default.retention_ms),
        max_body_bytes=table.whole_number("max_body_bytes", default.max_body_bytes),
        max_series=table.whole_number("max_series", default.max_series),
    )
    if settings.scrape_timeout_ms > interval:
        raise table.wrong("scrape_timeout", f"at most scrape_interval ({format_duration(interval)})")
    if settings.window_ms < 2 * interval:
        raise table.wrong("window", f"at least twice scrape_interval ({format_duration(interval)})")
    if settings.retention_ms < settings.window_ms:
        raise table.wrong("retention", f"at least window ({format_duration(settings.window_ms)})")
    return settings


def _read_deployment(table: _Table, directory: Path) -> DeploymentSettings:
    labels = {name: table.string(name, None if name in _REQUIRED_LABELS else "") for name in DEPLOYMENT_LABELS}
    try:
        deployment = Identity(**labels).deployment()
    except IdentityError as error:
        raise ConfigurationError(f"{table.origin}: {table.path}: {error}") from error
    targets = tuple(_read_target(each) for each in table.tables("targets", SETTINGS["deployments.targets"]))
    files = tuple(
        _read_file_discovery(each, directory) for each in table.tables("file_sd", SETTINGS["deployments.file_sd"])
    )
    if not targets and not files:
        raise ConfigurationError(
            f"{table.origin}: {table.path}: deployment {deployment.deployment_id!r} has no targets; "
            f"expected [[deployments.targets]] or [[deployments.file_sd]]"
        )
    return DeploymentSettings(deployment, targets, files)


_REQUIRED_LABELS = ("model_name", "deployment_id", "inference_stack")


def _read_target(table: _Table) -> TargetSettings:
    try:
        url = check_url(table.string("url", None))
    except ValueError as error:
        shown = "the value" if "@" in table.string("url", None) else repr(table.string("url", None))
        raise ConfigurationError(f"{table.origin}: {table.key('url')}: {shown} {error}") from None
    return TargetSettings(
        url,
        replica=table.string("replica", ""),
        role=table.choice("role", ROLES, "aggregated"),
        source=_read_source(table),
        access=_read_access(table),
    )


def _read_file_discovery(table: _Table, directory: Path) -> FileDiscoverySettings:
    patterns = table.strings("files")
    for pattern in patterns:
        if not pattern.endswith((".json", ".yml", ".yaml")):
            raise ConfigurationError(
                f"{table.origin}: {table.key('files')}: {pattern!r} does not end in .json, .yml or .yaml"
            )
    return FileDiscoverySettings(
        tuple(str(directory / pattern) for pattern in patterns),
        role=table.choice("role", ROLES, "aggregated"),
        source=_read_source(table),
        access=_read_access(table),
    )


def _read_source(table: _Table) -> str | None:
    if "source" not in table.values:
        return None
    from servescope.sources import load_sources

    return table.choice("source", tuple(sorted(load_sources())), "")


def _read_access(table: _Table) -> Access:
    access = Access(
        headers=tuple(table.string_map("headers").items()),
        headers_from_env=tuple(table.string_map("headers_from_env").items()),
        headers_from_file=tuple(table.string_map("headers_from_file").items()),
        bearer_token_env=table.string("bearer_token_env", "") or None,
        bearer_token_file=table.string("bearer_token_file", "") or None,
        directory=str(Path(table.origin).resolve().parent),
    )
    for kind in ("headers", "headers_from_env", "headers_from_file"):
        for name in table.string_map(kind):
            if not check_header_name(name):
                raise ConfigurationError(f"{table.origin}: {table.key(kind)}: {name!r} is not a header name")
    problem = access.find_problem()
    if problem:
        raise ConfigurationError(f"{table.origin}: {table.path}: {problem}")
    return access


def _check_deployments_differ(deployments: Sequence[DeploymentSettings], origin: str) -> None:
    seen: set[Deployment] = set()
    for settings in deployments:
        if settings.deployment in seen:
            raise ConfigurationError(
                f"{origin}: deployment {settings.deployment.deployment_id!r} is listed twice with the same labels; "
                f"put its targets into one [[deployments]] table"
            )
        seen.add(settings.deployment)


class _Table:
    """A TOML table that knows where it stands, so that every error names file and key."""

    def __init__(self, values: Mapping[str, object], origin: str, path: str) -> None:
        self.values = values
        self.origin = origin
        self.path = path

    def key(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, expected: str) -> ConfigurationError:
        """The error for the value that stands at a key."""
        value = self.values.get(key)
        return ConfigurationError(f"{self.origin}: {self.key(key)}: {value!r} is wrong, expected {expected}")

    def check_keys(self, known: Sequence[str]) -> None:
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise ConfigurationError(f"{self.origin}: unknown key {self.key(key)!r}; {hint}")

    def table(self, key: str, settings: Sequence[Setting]) -> _Table:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"a table [{self.key(key)}]")
        return self._checked(value, self.key(key), settings)

    def tables(self, key: str, settings: Sequence[Setting]) -> list[_Table]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            spelled = re.sub(r"\[\d+\]", "", self.key(key))
            raise self.wrong(key, f"tables [[{spelled}]]")
        return [self._checked(each, f"{self.key(key)}[{index}]", settings) for index, each in enumerate(value)]

    def _checked(self, values: Mapping[str, object], path: str, settings: Sequence[Setting]) -> _Table:
        table = _Table(values, self.origin, path)
        table.check_keys([setting.key for setting in settings])
        for setting in settings:
            if setting.default == REQUIRED and setting.key not in values:
                raise ConfigurationError(f"{self.origin}: {path}: {setting.key!r} is missing")
        return table

    def string(self, key: str, default: str | None) -> str:
        """The string at a key; with `default` None it must be there and not empty."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self.wrong(key, "a string" if default is not None else "a string that is not empty")
        return value

    def strings(self, key: str) -> list[str]:
        value = self.values.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise self.wrong(key, "a list of strings")
        return list(value)

    def string_map(self, key: str) -> dict[str, str]:
        value = self.values.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            # Header values may be secrets: they are never shown.
            raise ConfigurationError(f"{self.origin}: {self.key(key)}: expected a table of strings")
        return dict(value)

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self.values.get(key, default)
        if value not in choices:
            raise self.wrong(key, f"one of {', '.join(choices)}")
        return str(value)

    def whole_number(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "a whole number above 0")
        return value

    def duration(self, key: str, default: int) -> int:
        expected = "a duration above 0 such as '15s', '5m', '1h30m', '7d', at most ten years"
        milliseconds = self.parsed(key, parse_duration, default, expected)
        if not 0 < milliseconds <= _LONGEST_MS:
            raise self.wrong(key, expected)
        return milliseconds

    def parsed(self, key: str, parse: Callable[[str], T], default: T, expected: str) -> T:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, expected)
        try:
            return parse(value)
        except ValueError:
            raise self.wrong(key, expected) from None
