"""The collector's configuration: `servescope.toml`, read whole and refused whole.

Every table's keys are listed once, with their defaults, in `SETTINGS`; `docs/collector.md` is checked against it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from servescope.collector.paging.settings import ALERTING_SETTINGS, AlertingSettings, read_alerting
from servescope.collector.targets.deployments import (
    DEPLOYMENT_SETTINGS,
    DeploymentSettings,
    ScrapeSettings,
    TargetSettings,
    check_url,
    host_and_port,
    read_deployments,
    read_limits,
)
from servescope.collector.targets.traffic_split import TRAFFIC_SPLIT_SETTINGS, ConfiguredTraffic, read_traffic_split
from servescope.contract.identity import UNKNOWN_MODEL, Deployment
from servescope.errors import ConfigurationError, UsageError
from servescope.increments.extrapolation import WindowBounds
from servescope.settings.tables import Setting, Table, read_document
from servescope.settings.values import format_duration, parse_address
from servescope.sources.page import DEFAULT_LIMITS, PageLimits
from servescope.web.settings import API_SETTINGS, ApiSettings, read_api

DEFAULT_FILE = "servescope.toml"
DEFAULT_PORT = 9900
# The pages of a new file and the rows of the last hour need some room before there is anything to delete.
_LEAST_RETENTION_BYTES = 16_000_000

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
        Setting("increments_retention", '"35d"'),
        Setting("retention_size", ""),
        Setting("max_body_bytes", "16000000"),
        *(Setting(name, str(value)) for name, value in DEFAULT_LIMITS.by_name().items()),
        Setting("max_held_series", "50000"),
        Setting("window_bounds", '"closed"'),
    ),
    "api": API_SETTINGS,
    **ALERTING_SETTINGS,
    **DEPLOYMENT_SETTINGS,
    "traffic_split": TRAFFIC_SPLIT_SETTINGS,
}


@dataclass(frozen=True, slots=True)
class CollectorSettings(PageLimits):
    """How the collector runs; times in milliseconds."""

    listen: tuple[str, int] = ("127.0.0.1", DEFAULT_PORT)
    store: Path = Path("servescope.db")
    scrape_interval_ms: int = 15_000
    scrape_timeout_ms: int = 10_000
    evaluation_interval_ms: int = 15_000
    discovery_interval_ms: int = 5_000
    window_ms: int = 300_000
    retention_ms: int = 7 * 86_400_000
    increments_retention_ms: int = 35 * 86_400_000
    retention_bytes: int | None = None
    max_body_bytes: int = 16_000_000
    max_held_series: int = 50_000
    window_bounds: WindowBounds = "closed"

    def scraping(self) -> ScrapeSettings:
        """How a target is scraped that has no settings of its own."""
        return ScrapeSettings(self.scrape_interval_ms, self.scrape_timeout_ms, self.max_body_bytes, **self.by_name())


@dataclass(frozen=True, slots=True)
class Configuration:
    """All of `servescope.toml`; `origin` names the file, or the command line.

    `traffic_split` is what each stack is to get of the requests; `alerting` says which alerts there are, and who is
    notified.
    """

    collector: CollectorSettings
    deployments: tuple[DeploymentSettings, ...]
    origin: str
    api: ApiSettings = field(default_factory=ApiSettings)
    traffic_split: tuple[ConfiguredTraffic, ...] = ()
    alerting: AlertingSettings = field(default_factory=AlertingSettings)


def read_configuration(path: Path) -> Configuration:
    """The configuration in a TOML file; paths in it are relative to the file.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    document = read_document(path, "configuration")
    return make_configuration(document, origin=str(path), directory=path.resolve().parent)


def make_configuration(document: Mapping[str, object], *, origin: str, directory: Path) -> Configuration:
    """The configuration from a parsed document; `origin` is what errors call it."""
    root = Table(document, origin, "")
    # What to import from a Prometheus is read by the import alone.
    root.check_keys(("collector", "api", "alerting", "deployments", "traffic_split", "import"))
    api = read_api(root.table("api", SETTINGS["api"]), directory)
    collector = _read_collector(root.table("collector", SETTINGS["collector"]), directory)
    tables = root.tables("deployments", SETTINGS["deployments"])
    deployments = read_deployments(tables, directory, collector.scraping(), collector.window_ms)
    if not deployments:
        raise ConfigurationError(f"{origin}: no deployments; expected at least one [[deployments]] table")
    _check_deployments_differ(deployments, origin)
    splits = root.tables("traffic_split", SETTINGS["traffic_split"])
    traffic_split = read_traffic_split(splits, [each.deployment for each in deployments])
    alerting = read_alerting(root.table("alerting", SETTINGS["alerting"]), directory)
    return Configuration(collector, deployments, origin, api, traffic_split, alerting)


def configure_targets(
    targets: Sequence[str], *, model_name: str = UNKNOWN_MODEL, inference_stack: str | None = None
) -> Configuration:
    """The configuration for `--target [NAME=]URL` arguments: one deployment per name, or per host:port without one.

    A URL may leave out `http://` and `/metrics`. The stack is called like the deployment unless given, and the model is
    taken from the pages. Raises UsageError naming the argument.
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


def _read_collector(table: Table, directory: Path) -> CollectorSettings:
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
        increments_retention_ms=table.duration("increments_retention", default.increments_retention_ms),
        retention_bytes=table.size("retention_size", _LEAST_RETENTION_BYTES),
        max_body_bytes=table.whole_number("max_body_bytes", default.max_body_bytes),
        **read_limits(table, default),
        max_held_series=table.whole_number("max_held_series", default.max_held_series),
        window_bounds=_read_bounds(table),
    )
    if settings.scrape_timeout_ms > interval:
        raise table.wrong("scrape_timeout", f"at most scrape_interval ({format_duration(interval)})")
    if settings.window_ms < 2 * interval:
        raise table.wrong("window", f"at least twice scrape_interval ({format_duration(interval)})")
    if settings.retention_ms < settings.window_ms:
        raise table.wrong("retention", f"at least window ({format_duration(settings.window_ms)})")
    return settings


def _read_bounds(table: Table) -> WindowBounds:
    choice = table.choice("window_bounds", get_args(WindowBounds), CollectorSettings().window_bounds)
    return "left-open" if choice == "left-open" else "closed"


def _check_deployments_differ(deployments: Sequence[DeploymentSettings], origin: str) -> None:
    seen: set[Deployment] = set()
    for settings in deployments:
        if settings.deployment in seen:
            raise ConfigurationError(
                f"{origin}: deployment {settings.deployment.deployment_id!r} is listed twice with the same labels; "
                f"put its targets into one [[deployments]] table"
            )
        seen.add(settings.deployment)
    for unnamed in (each for each in seen if each.model_name == UNKNOWN_MODEL):
        if any(each != unnamed and replace(each, model_name=UNKNOWN_MODEL) == unnamed for each in seen):
            raise ConfigurationError(
                f"{origin}: deployment {unnamed.deployment_id!r} is listed twice with labels that differ in model_name "
                f"alone, and one has none: its pages may name the other's model; set model_name in both"
            )
