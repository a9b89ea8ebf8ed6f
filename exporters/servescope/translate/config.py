"""The configuration of `servescope translate`, read whole and refused whole; `docs/translate.md` lists the keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.claims import Claims
from servescope.collector.targets.deployments import Parameters, read_collected, read_limits
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Labels, make_labels
from servescope.errors import ConfigurationError
from servescope.settings.access import ACCESS_SETTINGS, Access, read_access
from servescope.settings.addresses import Address, IPNetwork, TargetPattern, read_patterns
from servescope.settings.tables import REQUIRED, Setting, Table, read_document
from servescope.settings.values import parse_address
from servescope.sources.map_files import load_sources
from servescope.sources.page import DEFAULT_LIMITS
from servescope.translate.outer import NOTHING, Outer, names_in_front, read_outer
from servescope.web.settings import API_SETTINGS, ApiSettings, read_api

DEFAULT_FILE = "translate.toml"
DEFAULT_PORT = 9905

SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "translate": (
        Setting("listen", f'"127.0.0.1:{DEFAULT_PORT}"'),
        Setting("targets", "[]"),
        Setting("networks", "[]"),
        Setting("collector", ""),
        Setting("scrape_timeout", '"10s"'),
        Setting("timeout_offset", '"500ms"'),
        Setting("max_probes", "128"),
        Setting("max_probes_per_target", "4"),
        Setting("max_connections", "4096"),
        Setting("max_cached_series", "300000"),
        Setting("max_body_bytes", "16000000"),
        *(Setting(name, str(value)) for name, value in DEFAULT_LIMITS.by_name().items()),
    ),
    "api": API_SETTINGS,
    "targets": (
        Setting("match", REQUIRED),
        Setting("scheme", '"http"'),
        Setting("metrics_path", '"/metrics"'),
        Setting("params", "{}"),
        Setting("source", ""),
        Setting("behind", '""'),
        Setting("labels", "{}"),
        # Through a proxy nobody here would see which address a name leads to.
        *(setting for setting in ACCESS_SETTINGS if "proxy" not in setting.key),
    ),
    "behind": (Setting("name", REQUIRED), Setting("metrics", REQUIRED)),
}


@dataclass(frozen=True, slots=True)
class TargetRule:
    """How the targets of some patterns are asked, and what is said of them where a request does not.

    `labels` are of their identity: every series of theirs has them.
    """

    patterns: tuple[TargetPattern, ...]
    scheme: str = "http"
    path: str = "/metrics"
    params: Parameters = ()
    source: str | None = None
    behind: Outer = NOTHING
    labels: Labels = ()
    access: Access = field(default_factory=Access)


@dataclass(frozen=True, slots=True)
class ProbeConfiguration:
    """All of `translate.toml`; times in milliseconds. The rules are tried in their order, the first that fits is used.

    `limits` are those of one probe, its longest time included; `outers` the metrics of each `[[behind]]`; `claims` are
    which targets may claim which deployments.
    """

    rules: tuple[TargetRule, ...]
    limits: Limits
    listen: tuple[str, int] = ("127.0.0.1", DEFAULT_PORT)
    networks: tuple[IPNetwork, ...] = ()
    claims: Claims = field(default_factory=Claims)
    timeout_offset_ms: int = 500
    max_probes: int = 128
    max_probes_per_target: int = 4
    max_connections: int = 4096
    max_cached_series: int = 300_000
    outers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    api: ApiSettings = field(default_factory=ApiSettings)

    def rule_for(self, address: Address) -> TargetRule | None:
        """How a target is asked, None for one that is not allowed."""
        return next((rule for rule in self.rules if any(each.matches(address) for each in rule.patterns)), None)


def read_probe_configuration(path: Path) -> ProbeConfiguration:
    """The configuration in a TOML file; paths in it are relative to the file.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    root = Table(read_document(path, "configuration"), str(path), "")
    root.check_keys(tuple(SETTINGS))
    table = root.table("translate", SETTINGS["translate"])
    api = read_api(root.table("api", SETTINGS["api"]), path.resolve().parent)
    outers = dict(_read_outer(each) for each in root.tables("behind", SETTINGS["behind"]))
    rules = [_read_rule(each, outers) for each in root.tables("targets", SETTINGS["targets"])]
    plain = read_patterns(table, "targets", [])
    if plain:
        rules.append(TargetRule(plain))
    if not rules:
        raise ConfigurationError(
            f"{path}: no target is allowed; expected translate.targets such as ['10.0.0.0/8:8000'], or [[targets]]"
        )
    limits = Limits(
        timeout_seconds=table.duration("scrape_timeout", 10_000) / 1000,
        max_body_bytes=table.whole_number("max_body_bytes", 16_000_000),
        **read_limits(table, DEFAULT_LIMITS),
    )
    listen = ("127.0.0.1", DEFAULT_PORT)
    return ProbeConfiguration(
        tuple(rules),
        limits,
        listen=table.parsed("listen", parse_address, listen, f"host:port such as '127.0.0.1:{DEFAULT_PORT}'"),
        networks=tuple(_read_network(table, each) for each in table.strings("networks", [])),
        claims=_read_claims(table, path.resolve().parent),
        timeout_offset_ms=table.duration("timeout_offset", 500),
        max_probes=table.whole_number("max_probes", 128),
        max_probes_per_target=table.whole_number("max_probes_per_target", 4),
        max_connections=table.whole_number("max_connections", 4096),
        max_cached_series=table.whole_number("max_cached_series", 300_000),
        outers=outers,
        api=api,
    )


def _read_rule(table: Table, outers: Mapping[str, frozenset[str]]) -> TargetRule:
    path = table.string("metrics_path", "/metrics")
    if not path.startswith("/") or not path.isprintable() or set(path) & set(" #?"):
        raise table.wrong("metrics_path", "a path that begins with /, without a query")
    behind = table.string("behind", "")
    try:
        outer = read_outer(behind, outers)
    except ValueError:
        raise table.wrong("behind", f"names of {', '.join((*names_in_front(), *outers))}") from None
    source = table.choice("source", tuple(sorted(load_sources())), "") if "source" in table.values else None
    return TargetRule(
        read_patterns(table, "match"),
        scheme=table.choice("scheme", ("http", "https"), "http"),
        path=path,
        params=table.string_lists("params"),
        source=source,
        behind=outer,
        labels=_read_labels(table),
        access=read_access(table),
    )


def _read_network(table: Table, text: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ConfigurationError(
            f"{table.origin}: {table.key('networks')}: {text!r} is wrong, expected a network such as '10.0.0.0/8'"
        ) from None


def _read_claims(table: Table, directory: Path) -> Claims:
    if "collector" not in table.values:
        return Claims()
    path = directory / table.string("collector", None)
    claims = Claims((each.deployment, each.claim) for each in read_collected(path))
    if not claims:
        raise table.wrong("collector", f"a configuration with [deployments.claims]; {str(path)!r} has none")
    return claims


def _read_labels(table: Table) -> Labels:
    labels = table.string_map("labels")
    unknown = sorted(labels.keys() - set(IDENTITY_LABELS))
    if unknown:
        raise ConfigurationError(
            f"{table.origin}: {table.key('labels')}: unknown label {unknown[0]!r}, "
            f"supported: {', '.join(IDENTITY_LABELS)}"
        )
    return make_labels(labels)


def _read_outer(table: Table) -> tuple[str, frozenset[str]]:
    name, metrics = table.string("name", None), frozenset(table.strings("metrics"))
    if name in names_in_front() or "," in name:
        raise table.wrong("name", f"a name without a comma, and none of {', '.join(names_in_front())}")
    unknown = sorted(metrics - METRICS.keys())
    if unknown:
        raise ConfigurationError(f"{table.origin}: {table.key('metrics')}: {unknown[0]!r} is no metric of the contract")
    return name, metrics
