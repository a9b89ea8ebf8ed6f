"""The `[[deployments]]` of a configuration: their labels, targets, lists of targets and scrape settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from servescope.collector.targets.claims import CLAIM_SETTINGS, Claim, read_claim
from servescope.collector.targets.relabel import RELABEL_SETTINGS, Rule, read_rules
from servescope.contract.identity import (
    DEPLOYMENT_LABELS,
    IDENTITY_LABELS,
    ROLES,
    UNKNOWN_MODEL,
    Deployment,
    Identity,
)
from servescope.contract.metrics import SEGMENT
from servescope.errors import ConfigurationError
from servescope.settings.access import ACCESS_SETTINGS, Access, read_access
from servescope.settings.tables import REQUIRED, Setting, Table, located, read_document
from servescope.settings.values import check_authority, format_duration
from servescope.sources.maps import Values
from servescope.sources.page import DEFAULT_LIMITS, PageLimits
from servescope.sources.parts import Selects, is_splitting

SCRAPE_SETTINGS = (
    Setting("scrape_interval", ""),
    Setting("scrape_timeout", ""),
    Setting("max_body_bytes", ""),
    *(Setting(name, "") for name in DEFAULT_LIMITS.by_name()),
    Setting("max_scrapes_per_minute", ""),
    Setting("params", "{}"),
)
"""The keys of a table that say how targets are scraped; what is left out is as `[collector]` has it."""

_LISTED = (
    Setting("role", '"aggregated"'),
    Setting("source", ""),
    Setting("segment_label", '"segment"'),
    Setting("select", "{}"),
    Setting("scheme", '"http"'),
    Setting("metrics_path", '"/metrics"'),
    Setting("relabel", "[]"),
)

DEPLOYMENT_SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "deployments": (
        Setting("deployment_id", REQUIRED),
        Setting("model_name", ""),
        Setting("inference_stack", REQUIRED),
        Setting("environment", '""'),
        Setting("rollout_phase", '""'),
        Setting("fixed_labels", "false"),
        Setting("claims", ""),
        Setting("targets", "[]"),
        Setting("file_sd", "[]"),
        Setting("http_sd", "[]"),
        Setting("relabel", "[]"),
    ),
    "deployments.targets": (
        Setting("url", REQUIRED),
        Setting("replica", ""),
        Setting("role", '"aggregated"'),
        Setting("source", ""),
        Setting("segment_label", '"segment"'),
        Setting("select", "{}"),
        *SCRAPE_SETTINGS,
        *ACCESS_SETTINGS,
    ),
    "deployments.file_sd": (Setting("files", REQUIRED), *_LISTED, *SCRAPE_SETTINGS, *ACCESS_SETTINGS),
    "deployments.http_sd": (
        Setting("url", REQUIRED),
        Setting("refresh_interval", '"1m"'),
        Setting("list_access", "{}"),
        *_LISTED,
        *SCRAPE_SETTINGS,
        *ACCESS_SETTINGS,
    ),
    "deployments.claims": CLAIM_SETTINGS,
    "deployments.relabel": RELABEL_SETTINGS,
}
"""The tables below `[[deployments]]`; those of `relabel` may also be in a file_sd or an http_sd."""

_SHORTEST_REFRESH_MS = 1_000
_CARRIES_CREDENTIALS = "carries credentials; use bearer_token_file, headers_from_file or headers_from_env"

Parameters = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class ScrapeSettings(PageLimits):
    """How one target is scraped; `max_scrapes_per_minute` is shared by the targets of one host, None for no limit."""

    interval_ms: int = 15_000
    timeout_ms: int = 10_000
    max_body_bytes: int = 16_000_000
    max_scrapes_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One target as it is written; `replica` is "" for host:port, `source` None to identify it.

    `segment_label` is the label of its series that separates tenants, routes or priorities. `select` is which series
    are read, by their labels, where the page measures several deployments. `scraping` None is as the collector's own
    settings have it. Parameters are part of the URL.
    """

    url: str
    replica: str = ""
    role: str = "aggregated"
    source: str | None = None
    segment_label: str = SEGMENT
    select: Selects = ()
    access: Access = field(default_factory=Access)
    scraping: ScrapeSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSettings:
    """What holds for every target of one list, unless the list says otherwise."""

    role: str = "aggregated"
    source: str | None = None
    segment_label: str = SEGMENT
    select: Selects = ()
    scheme: str = "http"
    metrics_path: str = "/metrics"
    params: Parameters = ()
    relabel: tuple[Rule, ...] = ()
    access: Access = field(default_factory=Access)
    scraping: ScrapeSettings = field(default_factory=ScrapeSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiscoverySettings(ListSettings):
    """Files that list targets, as absolute glob patterns."""

    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpDiscoverySettings(ListSettings):
    """A URL that lists targets, asked every `refresh_interval_ms`; `list_access` is its own, `access` the targets'."""

    url: str
    refresh_interval_ms: int = 60_000
    list_access: Access = field(default_factory=Access)


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    """One deployment: its labels, where its targets come from, and the rules all of them go through last.

    With `fixed_labels` neither its lists nor rules can give a target other labels of a deployment, and no target of
    another deployment can have these. `claim` is which targets it may have, None for any that no other claims.
    """

    deployment: Deployment
    targets: tuple[TargetSettings, ...] = ()
    file_sd: tuple[FileDiscoverySettings, ...] = ()
    http_sd: tuple[HttpDiscoverySettings, ...] = ()
    relabel: tuple[Rule, ...] = ()
    fixed_labels: bool = False
    claim: Claim | None = None


class Collected(NamedTuple):
    """What a collector's configuration says of whose the targets of a deployment are, and who else may name some."""

    deployment: Deployment
    fixed_labels: bool
    has_lists: bool
    claim: Claim | None


def read_collected(path: Path) -> list[Collected]:
    """The deployments in a collector's configuration.

    Nothing of their targets is read, so that it needs no secret of theirs. Raises ConfigurationError.
    """
    root = Table(read_document(path, "configuration"), str(path), "")
    return [
        Collected(
            _read_labels(table),
            table.boolean("fixed_labels", default=False),
            bool(table.values.get("file_sd") or table.values.get("http_sd")),
            read_claim(table),
        )
        for table in root.tables("deployments", DEPLOYMENT_SETTINGS["deployments"])
    ]


def read_deployments(
    tables: Sequence[Table], directory: Path, scraping: ScrapeSettings, window_ms: int
) -> tuple[DeploymentSettings, ...]:
    """The deployments of a file in `directory`; `scraping` is what holds where they say nothing.

    Raises ConfigurationError, also for an interval that does not fit twice into the window.
    """
    return tuple(_Reader(directory, scraping, window_ms).deployment(table) for table in tables)


def read_limits(table: Table, default: PageLimits) -> dict[str, int]:
    """The limits of a text by name, those of `default` where the table does not have them."""
    return {name: table.whole_number(name, value) for name, value in default.by_name().items()}


def check_url(url: str, *, path: str = "/metrics") -> str:
    """The URL of a target, with the path where it has none; raises ValueError saying what is wrong."""
    match = re.fullmatch(r"(https?)://([^/?#\s]+)([^\s#]*)", url)
    if not match or not url.isprintable():
        raise ValueError("is not a URL, expected one such as 'http://127.0.0.1:8000/metrics'")
    scheme, authority, rest = match.groups()
    if "@" in authority:
        # The value is not shown: it holds a password.
        raise ValueError(_CARRIES_CREDENTIALS)
    try:
        check_authority(authority)
    except ValueError:
        if "@" in rest:  # as in http://user:pass/word@host: part of a password is in what was taken for the authority
            raise ValueError(_CARRIES_CREDENTIALS) from None
        raise
    return f"{scheme}://{authority}{rest if rest.startswith('/') and rest != '/' else path + rest.removeprefix('/')}"


def host_and_port(url: str) -> str:
    """The `host:port` of a checked URL, with the scheme's own port where it names none."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    if ":" in authority.rpartition("]")[2]:
        return authority
    return f"{authority}:{443 if scheme == 'https' else 80}"


def with_parameters(url: str, params: Parameters) -> str:
    """The URL with parameters behind those it has."""
    query = urlencode([(name, value) for name, values in params for value in values])
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


def slowest_interval_ms(deployments: Sequence[DeploymentSettings], default_ms: int) -> int:
    """The longest interval that any target is asked at; labels of lists may still say other ones."""
    intervals = [default_ms]
    for each in deployments:
        intervals += [target.scraping.interval_ms for target in each.targets if target.scraping]
        intervals += [listed.scraping.interval_ms for listed in (*each.file_sd, *each.http_sd)]
    return max(intervals)


class _Reader:
    def __init__(self, directory: Path, scraping: ScrapeSettings, window_ms: int) -> None:
        self._directory, self._scraping, self._window_ms = directory, scraping, window_ms

    def deployment(self, table: Table) -> DeploymentSettings:
        deployment = _read_labels(table)
        settings = DeploymentSettings(
            deployment,
            tuple(self.target(each) for each in _tables(table, "targets")),
            tuple(self.file_discovery(each) for each in _tables(table, "file_sd")),
            tuple(self.http_discovery(each) for each in _tables(table, "http_sd")),
            read_rules(_tables(table, "relabel")),
            fixed_labels=table.boolean("fixed_labels", default=False),
            claim=read_claim(table),
        )
        if not settings.targets and not settings.file_sd and not settings.http_sd:
            raise ConfigurationError(
                f"{table.origin}: {table.path}: deployment {deployment.deployment_id!r} has no targets; "
                f"expected [[deployments.targets]], [[deployments.file_sd]] or [[deployments.http_sd]]"
            )
        return settings

    def target(self, table: Table) -> TargetSettings:
        return TargetSettings(
            with_parameters(_read_url(table, "/metrics"), table.string_lists("params")),
            replica=table.string("replica", ""),
            role=table.choice("role", ROLES, "aggregated"),
            source=_read_source(table),
            segment_label=_read_segment_label(table),
            select=_read_select(table),
            access=read_access(table),
            scraping=self.scraping(table),
        )

    def file_discovery(self, table: Table) -> FileDiscoverySettings:
        patterns = table.strings("files")
        for pattern in patterns:
            if not pattern.endswith((".json", ".yml", ".yaml")):
                raise ConfigurationError(
                    f"{table.origin}: {table.key('files')}: {pattern!r} does not end in .json, .yml or .yaml"
                )
        files = tuple(str(self._directory / pattern) for pattern in patterns)
        return FileDiscoverySettings(files=files, **self.listed(table))

    def http_discovery(self, table: Table) -> HttpDiscoverySettings:
        interval = table.duration("refresh_interval", 60_000)
        if interval < _SHORTEST_REFRESH_MS:
            raise table.wrong("refresh_interval", f"at least {format_duration(_SHORTEST_REFRESH_MS)}")
        return HttpDiscoverySettings(
            url=_read_url(table, "/"),
            refresh_interval_ms=interval,
            list_access=read_access(table.table("list_access", ACCESS_SETTINGS)),
            **self.listed(table),
        )

    def listed(self, table: Table) -> dict[str, Any]:
        """What a file_sd and an http_sd have in common."""
        path = table.string("metrics_path", "/metrics")
        if not path.startswith("/"):
            raise table.wrong("metrics_path", "a path that begins with /")
        return {
            "role": table.choice("role", ROLES, "aggregated"),
            "source": _read_source(table),
            "segment_label": _read_segment_label(table),
            "select": _read_select(table),
            "scheme": table.choice("scheme", ("http", "https"), "http"),
            "metrics_path": path,
            "params": table.string_lists("params"),
            "relabel": read_rules(table.tables("relabel", RELABEL_SETTINGS)),
            "access": read_access(table),
            "scraping": self.scraping(table),
        }

    def scraping(self, table: Table) -> ScrapeSettings:
        default = self._scraping
        interval = table.duration("scrape_interval", default.interval_ms)
        limited = "max_scrapes_per_minute" in table.values
        settings = ScrapeSettings(
            interval,
            # An interval below the timeout lowers it: what is not said cannot be wrong.
            table.duration("scrape_timeout", min(default.timeout_ms, interval)),
            table.whole_number("max_body_bytes", default.max_body_bytes),
            table.whole_number("max_scrapes_per_minute", 1) if limited else None,
            **read_limits(table, default),
        )
        if haste := _explain_haste(table, interval):
            raise ConfigurationError(f"{table.origin}: {table.key('scrape_interval')}: {haste}")
        if settings.timeout_ms > interval:
            raise table.wrong("scrape_timeout", f"at most scrape_interval ({format_duration(interval)})")
        if 2 * interval > self._window_ms:
            raise table.wrong("scrape_interval", f"at most half of collector.window ({_half(self._window_ms)})")
        return settings


_REQUIRED_LABELS = ("deployment_id", "inference_stack")
_NEEDING_A_MODEL = ("fixed_labels", "claims")


def _read_labels(table: Table) -> Deployment:
    labels = {name: table.string(name, None if name in _REQUIRED_LABELS else "") for name in DEPLOYMENT_LABELS}
    if "model_name" not in table.values:
        if needing := [key for key in _NEEDING_A_MODEL if table.values.get(key)]:
            raise ConfigurationError(
                f"{table.origin}: {table.key('model_name')} is missing: {needing[0]} says whose labels these are, so "
                f"that no page may name the model"
            )
        labels["model_name"] = UNKNOWN_MODEL
    with located(f"{table.origin}: {table.path}"):
        return Identity(**labels).deployment()


def _tables(table: Table, key: str) -> list[Table]:
    return table.tables(key, DEPLOYMENT_SETTINGS[f"deployments.{key}"])


def _half(milliseconds: int) -> str:
    return format_duration(milliseconds // 2)


def _read_url(table: Table, path: str) -> str:
    url = table.string("url", None)
    try:
        return check_url(url, path=path)
    except ValueError as error:
        shown = "the value" if "@" in url else repr(url)
        raise ConfigurationError(f"{table.origin}: {table.key('url')}: {shown} {error}") from None


def _read_segment_label(table: Table) -> str:
    label = table.string("segment_label", SEGMENT)
    if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label) or label in (*IDENTITY_LABELS, "le"):
        raise table.wrong("segment_label", "a label of the target's series, which is none of its identity")
    return label


def _read_select(table: Table) -> Selects:
    """One table, or a list of them of which a series fits at least one."""
    value = table.values.get("select", {})
    if isinstance(value, list):
        selects = [_read_labels_selected(table, each) for each in value]
        if not value or not all(selects):
            raise table.wrong("select", _SELECTED)
        return tuple(selects)
    select = _read_labels_selected(table, value)
    return (select,) if select else ()


_SELECTED: Final = (
    "labels of the page's series with their values, such as { model = ['v2'] }, or a list of such tables, of which a "
    "series fits one"
)


def _read_labels_selected(table: Table, value: object) -> Values:
    select = Table({"select": value}, table.origin, table.path).string_lists("select")
    if any(not is_splitting(label) or not values for label, values in select):
        raise table.wrong("select", _SELECTED)
    return select


def _read_source(table: Table) -> str | None:
    if "source" not in table.values:
        return None
    from servescope.sources.map_files import load_sources

    return table.choice("source", tuple(sorted(load_sources())), "")


def _explain_haste(table: Table, interval_ms: int) -> str:
    """Why the source that is configured is not to be scraped at an interval, "" where it may be."""
    if (name := _read_source(table)) is None:
        return ""
    from servescope.sources.map_files import load_sources

    return load_sources()[name].explain_haste(interval_ms)
