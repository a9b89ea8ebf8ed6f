"""The table `[alerting]` of the configuration: which alerts are evaluated, and which receivers are notified."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from servescope.alerting.alerts import ALERTS
from servescope.alerting.chosen import read_choices_file
from servescope.alerting.rules.choices import CATALOG_CHOICES, Choices
from servescope.alerting.rules.evaluation import is_evaluated_by_collector
from servescope.alerting.rules.links import RUNBOOKS, is_runbooks
from servescope.alerting.rules.records import Severity
from servescope.collector.paging.annotations import Links
from servescope.collector.targets.deployments import check_url
from servescope.contract.samples import Labels, make_labels
from servescope.errors import ConfigurationError, suggest
from servescope.settings.access import ACCESS_SETTINGS, Access, read_access
from servescope.settings.tables import REQUIRED, Setting, Table, read_document
from servescope.settings.values import check_authority

ALERTING_SETTINGS = {
    "alerting": (
        Setting("only", "[]"),
        Setting("disable", "[]"),
        Setting("options", '""'),
        Setting("external_labels", "{}"),
        Setting("runbooks", f'"{RUNBOOKS}"'),
        Setting("grafana", '"http://localhost:3000"'),
        Setting("external_url", '""'),
        Setting("resend_interval", '"1m"'),
        Setting("alertmanagers", "[]"),
        Setting("webhooks", "[]"),
    ),
    "alerting.alertmanagers": (Setting("url", REQUIRED), *ACCESS_SETTINGS),
    "alerting.webhooks": (
        Setting("url", REQUIRED),
        Setting("repeat_interval", '"4h"'),
        Setting("severities", "[]"),
        *ACCESS_SETTINGS,
    ),
}
"""The keys of `[alerting]` and of the tables in it."""

# Labels of alerts that routes and receivers rely on.
_TAKEN = ("alertname", "severity", "component", "family", "team")


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """A receiver's URL and access.

    A webhook is sent alerts of these `severities` (all when empty), and those that still fire again after `repeat_ms`.
    """

    url: str = field(repr=False)
    access: Access = field(default_factory=Access)
    repeat_ms: int = 4 * 3_600_000
    severities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlertingSettings:
    """Which alerts are evaluated, and which receivers are notified; times in milliseconds.

    `only` are the alerts to evaluate (all when empty), without those of `disable`. `choices` are the values that they
    have in place of the catalog's.
    """

    choices: Choices = CATALOG_CHOICES
    only: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    external_labels: Labels = ()
    links: Links = field(default_factory=Links)
    external_url: str = ""
    resend_ms: int = 60_000
    alertmanagers: tuple[ReceiverSettings, ...] = ()
    webhooks: tuple[ReceiverSettings, ...] = ()

    def names(self) -> list[str]:
        """The chosen alerts, including those that a collector cannot evaluate."""
        return [name for name in self.only or ALERTS if name not in self.disable]


def read_alerting(table: Table, directory: Path) -> AlertingSettings:
    """The settings of `[alerting]`, with paths relative to a directory.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    default = AlertingSettings()
    options = table.string("options", "")
    only, disable = _read_names(table, "only"), _read_names(table, "disable")
    _check_any_left(table, only, disable)
    return AlertingSettings(
        choices=read_choices_file(directory / options) if options else CATALOG_CHOICES,
        only=only,
        disable=disable,
        external_labels=_read_labels(table),
        links=Links(
            _read_runbooks(table, "runbooks", default.links.runbooks),
            _read_url(table, "grafana", default.links.grafana),
        ),
        external_url=_read_url(table, "external_url", ""),
        resend_ms=table.duration("resend_interval", default.resend_ms),
        alertmanagers=tuple(_read_receiver(each) for each in _receivers(table, "alertmanagers")),
        webhooks=tuple(_read_receiver(each) for each in _receivers(table, "webhooks")),
    )


def read_alertmanagers(path: Path) -> tuple[ReceiverSettings, ...]:
    """The Alertmanagers that a configuration names, whatever else is in it; raises ConfigurationError without any."""
    document = read_document(path, "configuration")
    alerting = Table(document, str(path), "").table("alerting", ALERTING_SETTINGS["alerting"])
    found = tuple(_read_receiver(each) for each in _receivers(alerting, "alertmanagers"))
    if not found:
        raise ConfigurationError(f"{path}: names no Alertmanager, expected at least one [[alerting.alertmanagers]]")
    return found


def _read_names(table: Table, key: str) -> tuple[str, ...]:
    names = table.strings(key, [])
    for name in names:
        if name not in ALERTS:
            hint = suggest(name, ALERTS) or f"known: {', '.join(ALERTS)}"
            raise ConfigurationError(f"{table.origin}: {table.key(key)}: unknown alert {name!r}; {hint}")
    return tuple(names)


def _check_any_left(table: Table, only: Sequence[str], disable: Sequence[str]) -> None:
    """A configuration that evaluates no alert at all must be refused."""
    for name in only:
        if not is_evaluated_by_collector(ALERTS[name]):
            raise ConfigurationError(
                f"{table.origin}: {table.key('only')}: a collector cannot evaluate {name!r}, expected some of: "
                f"{', '.join(each for each, alert in ALERTS.items() if is_evaluated_by_collector(alert))}"
            )
    if only and not set(only) - set(disable):
        raise ConfigurationError(
            f"{table.origin}: {table.key('disable')}: disables every alert of {table.key('only')!r}, expected "
            f"one to be left: {', '.join(only)}"
        )


def _read_labels(table: Table) -> Labels:
    labels = table.string_map("external_labels")
    for name in labels:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
            raise ConfigurationError(f"{table.origin}: {table.key('external_labels')}: {name!r} is not a label's name")
        if name in _TAKEN:
            raise ConfigurationError(
                f"{table.origin}: {table.key('external_labels')}: alerts already have a label {name!r}, expected "
                f"another name"
            )
    return make_labels(labels)


def _read_runbooks(table: Table, key: str, default: str) -> str:
    runbooks = table.string(key, default)
    if not is_runbooks(runbooks):
        raise table.wrong(key, "a URL such as 'https://books.example/llm' or one with '{alert}'")
    return runbooks


def _read_url(table: Table, key: str, default: str) -> str:
    """A base URL; Alertmanager refuses alerts whose links are not URLs."""
    base = table.string(key, default).rstrip("/")
    found = re.fullmatch(r"https?://([^\s/?#]+)(?:[^\s?#%]|%[0-9a-fA-F]{2})*", base)
    try:
        if base:
            check_authority(found[1] if found else "")
    except ValueError:
        raise table.wrong(key, "a URL such as 'https://host.example.com'") from None
    return base


def _receivers(table: Table, key: str) -> Sequence[Table]:
    tables = table.tables(key, ALERTING_SETTINGS[f"alerting.{key}"])
    urls = [str(each.values["url"]).rstrip("/") for each in tables]
    if len(set(urls)) < len(urls):
        raise ConfigurationError(f"{table.origin}: {table.key(key)}: the same url is listed twice")
    if key == "alertmanagers":
        for each, url in zip(tables, urls, strict=True):
            if "?" in url or "/api/" in f"{url}/":
                raise ConfigurationError(
                    f"{each.origin}: {each.key('url')}: expected the base URL of an Alertmanager, without '/api/…' and "
                    f"'?…', such as 'http://alertmanager:9093'"
                )
    return tables


def _read_receiver(table: Table) -> ReceiverSettings:
    url = table.string("url", None)
    try:
        url = check_url(url, path="")
    except ValueError as error:
        # URLs of webhooks hold secrets, so the message leaves them out.
        raise ConfigurationError(f"{table.origin}: {table.key('url')}: the URL {error}") from None
    repeat_ms = table.duration("repeat_interval", ReceiverSettings(url).repeat_ms)
    severities = table.strings("severities", [])
    if not set(severities) <= set(get_args(Severity)):
        raise table.wrong("severities", f"some of {', '.join(get_args(Severity))}")
    return ReceiverSettings(url, read_access(table), repeat_ms, tuple(severities))
