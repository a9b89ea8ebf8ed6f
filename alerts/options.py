"""The options of the rules, read from a TOML file that is refused as a whole if it is invalid.

One file serves the dashboards too: labels, selector, window, scrape interval, thresholds and prefix are top-level keys
shared by both; options of the alerts are in the table [alerts].
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from alerts.receivers import (
    DEFAULT_RECEIVERS,
    RECEIVER_SETTINGS,
    TEMPLATES_FOLDER,
    Receiver,
    read_receiver,
)
from dashboards import options as shared
from servescope.alerting.alerts import ALERTS
from servescope.alerting.chosen import (
    A_LABEL_VALUE,
    ALERTS_TABLE,
    CHOICE_SETTINGS,
    LABEL_VALUE,
    chosen_sources,
    matching,
)
from servescope.alerting.feeding import can_hold, metrics_of, on_causes_held
from servescope.alerting.rules.choices import Choices
from servescope.alerting.rules.promql import alert_promql, is_on_deployments, term_promql
from servescope.alerting.rules.records import ALERTING, TEAM, Alert, Severity, Term
from servescope.contract.expressions import Expression, Matchers, describe_selector, matchers_promql, matches, promql
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.objectives import BURN_WINDOWS
from servescope.errors import ConfigurationError
from servescope.settings.tables import Setting, Table, read_document

SECRETS: Final = "/etc/alertmanager/secrets"
"""The folder of the receivers' secrets, one file each; the configuration contains none."""

_LONGEST_EVALUATION_SECONDS = 300.0
_LONGEST_WINDOW_DAYS = 31
_SEVERITIES: Final[Mapping[str, Severity]] = MappingProxyType(
    {"critical": "critical", "warning": "warning", "info": "info"}
)
# Those that rules, routes and Prometheus write themselves.
_TAKEN: Final = ("alertname", "alertstate", "component", "family", "severity", "instance", "job", "plan")
_URL = re.compile(r"https?://[^\s/?#]+[^\s?#]*\Z")
_PATH = re.compile(r"[^\s?#]+\Z")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}\Z")

ALERT_SETTINGS: Final = (
    Setting("grafana", '"http://localhost:3000"'),
    Setting("team", f'"{TEAM}"'),
    Setting("evaluation_interval", '"15s"'),
    *CHOICE_SETTINGS[:4],
    Setting("only", "[]"),
    Setting("disabled", "[]"),
    Setting("covers", "{}"),
    Setting("fleet", "true"),
    Setting("watch_servers", "true"),
    Setting("servers", '""'),
    Setting("secrets", f'"{SECRETS}"'),
    Setting("templates", f'"{TEMPLATES_FOLDER}"'),
    *CHOICE_SETTINGS[4:],
    Setting("severities", "{}"),
    Setting("labels", "{}"),
    Setting("receivers", "{}"),
    Setting("migration_windows", "[]"),
)
"""The keys of [alerts] with their defaults; those from `bounds` on are tables."""

COVERS: Final = ("model_name", "environment")
"""The labels of `covers`: no rule compares or adds what differs in them."""

MIGRATION_SETTINGS: Final = (Setting("from", "required"), Setting("until", "required"))


@dataclass(frozen=True, slots=True)
class Span:
    """The time of a planned migration, in UTC and whole minutes."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Options:
    """How the rules, the runbooks and Alertmanager's configuration are written.

    `common` are the options shared with the dashboards. `grafana` is the base URL of links to panels, `secrets`
    and `templates` folders on Alertmanager's machine; `only` names the alerts to write, all if empty, and
    `disabled` those to leave out. With `sources`, alerts on
    metrics that none of these sources has are left out as well, and without `watch_servers` those on the Prometheus and
    the Alertmanager that evaluate and send the others; `servers` are matchers for the series of these two. With
    `pages_only` there are only pages, and what they read. Rules on deployments are on those that it `covers`, and
    without `fleet` there are no others. `severities` and `labels` are those of single alerts,
    by name, the labels in addition to those that every alert has.
    """

    common: shared.Options = shared.DEFAULTS
    grafana: str = "http://localhost:3000"
    team: str = TEAM
    evaluation_interval: str = "15s"
    sources: tuple[str, ...] = ()
    only: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    covers: Matchers = ()
    fleet: bool = True
    watch_servers: bool = True
    servers: str = ""
    pages_only: bool = False
    severities: Mapping[str, Severity] = field(default_factory=lambda: MappingProxyType({}))
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    secrets: str = SECRETS
    templates: str = TEMPLATES_FOLDER
    receivers: Mapping[str, Receiver] = field(default_factory=lambda: DEFAULT_RECEIVERS)
    migration_windows: tuple[Span, ...] = ()

    def alerts(self) -> Mapping[str, Alert]:
        """The enabled alerts by name, with the chosen numbers."""
        had = metrics_of(self.sources)
        chosen = (
            replace(on_causes_held(alert, had), severity=self.severities.get(name, alert.severity))
            for name, alert in self.common.alerts().items()
            if (name in self.only or not self.only) and name not in self.disabled and can_hold(alert.condition, had)
        )
        return MappingProxyType(
            {
                alert.name: alert
                for alert in chosen
                if (self.watch_servers or alert.component != ALERTING)
                and (self.fleet or is_on_deployments(alert))
                and (not self.pages_only or alert.severity == "critical")
            }
        )

    def rule_expression(self, alert: Alert) -> str:
        """When an alert is active, as PromQL."""
        return self.expression(alert_promql(alert, self.common.window, covers=self.covers, **self._labelling))

    def term(self, term: Term, alert: Alert) -> str:
        """A term of an alert's condition, or of its runbook, as PromQL."""
        covers = self.covers if is_on_deployments(alert) else ()
        return self.expression(term_promql(term, self.common.window, covers=covers, **self._labelling))

    def compile(self, expression: Expression, *, window: str, by: Sequence[str], where: Matchers = ()) -> str:
        """An expression over the contract's series as PromQL, per value of the labels in `by`, of those `where`."""
        by = (*by, *self.common.extra_labels)
        collectors = self.common.collector_labels
        scope = matchers_promql(where, self.scope)[1:-1]
        return self.expression(promql(expression, window=window, by=by, scope=scope, collectors=collectors))

    @property
    def choices(self) -> Choices:
        """The chosen numbers and names."""
        return self.common.choices

    @property
    def _labelling(self) -> dict[str, Any]:
        common = self.common
        servers = self.servers.rstrip(", ")
        scope = common.selector.rstrip(", ")
        return {"scope": scope, "extra": common.extra_labels, "collectors": common.collector_labels, "servers": servers}

    @property
    def scope(self) -> str:
        """The matchers for every selector of series of deployments that are not recorded, "" for none."""
        return matchers_promql(self.covers, self.common.selector.rstrip(", "))[1:-1]

    @property
    def on_all(self) -> Options:
        """These options for what is not about the deployments that they cover, but about all, or none."""
        return replace(self, covers=())

    def recorded(self, name: str, where: Matchers = ()) -> str:
        """The selector of a series that one of these rules records for the deployments `where`."""
        return f"{name}{matchers_promql((*where, *self.covers))}"

    def expression(self, promql: str) -> str:
        """A PromQL expression with renamed identity labels."""
        # In PromQL a label's name cannot be anything else: metric names are longer. What a matcher compares with stays;
        # label_replace has names in quotes, too.
        return self._renamed(promql, r'[=~]\s*"(?:[^"\\]|\\.)*"|\b({labels})\b')

    def template(self, text: str) -> str:
        """A text with renamed labels in `$labels.…` of Prometheus or `Labels.…` of Alertmanager."""
        return self._renamed(text, r"(?<=[Ll]abels\.)({labels})\b")

    def label(self, name: str) -> str:
        """The label's name, renamed if the options say so."""
        return self.common.label(name)

    def _renamed(self, text: str, pattern: str) -> str:
        names = self.common.labels
        if not names:
            return text
        return re.sub(pattern.format(labels="|".join(names)), lambda match: names.get(match[1], match[0]), text)


DEFAULTS = Options()


def read_options(path: Path) -> Options:
    """The options of a TOML file, with defaults for missing ones.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    return make_options(read_document(path, "options"), origin=str(path))


def make_options(document: Mapping[str, object], *, origin: str) -> Options:
    """The options from a parsed document; `origin` is what errors call it."""
    common = shared.make_options(document, origin=origin)
    table = Table(document, origin, "").table(ALERTS_TABLE, ALERT_SETTINGS)
    options = Options(
        common=common,
        grafana=matching(table, "grafana", DEFAULTS.grafana, _URL, "a URL such as 'https://grafana.example'").rstrip(
            "/"
        ),
        team=matching(table, "team", DEFAULTS.team, _NAME, "a name of letters, digits and hyphens"),
        evaluation_interval=_evaluation_interval(table, common),
        sources=chosen_sources(table) or common.engines,
        only=_names(table, "only"),
        disabled=_names(table, "disabled"),
        covers=_covers(table, common),
        fleet=table.boolean("fleet", default=True),
        watch_servers=table.boolean("watch_servers", default=True),
        servers=shared.matchers(table.string("servers", ""), f"{ALERTS_TABLE}.servers", origin),
        severities=_severities(table.table("severities", [Setting(name, "") for name in ALERTS])),
        labels=_labels(table.table("labels", [Setting(name, "") for name in ALERTS]), common),
        secrets=matching(table, "secrets", SECRETS, _PATH, "a folder").rstrip("/"),
        templates=matching(table, "templates", TEMPLATES_FOLDER, _PATH, "a folder").rstrip("/"),
        receivers=_receivers(table),
        migration_windows=tuple(_span(each) for each in table.tables("migration_windows", MIGRATION_SETTINGS)),
    )
    _check_scrape_interval(options, origin)
    return options


def _evaluation_interval(table: Table, common: shared.Options) -> str:
    value = table.string("evaluation_interval", DEFAULTS.evaluation_interval)
    expected = f"a duration of at most 5m and at most window ({common.window})"
    try:
        seconds = shared.seconds(value)
    except ValueError:
        raise table.wrong("evaluation_interval", expected) from None
    if not 0 < seconds <= min(_LONGEST_EVALUATION_SECONDS, shared.seconds(common.window)):
        raise table.wrong("evaluation_interval", expected)
    return value


def _names(table: Table, key: str) -> frozenset[str]:
    names = table.strings(key, [])
    for name in names:
        if name not in ALERTS:
            raise ConfigurationError(f"{table.origin}: {table.key(key)}: no alert {name!r}, known: {', '.join(ALERTS)}")
    return frozenset(names)


def _covers(table: Table, common: shared.Options) -> Matchers:
    """The labels of the deployments that the rules are for, which those of `objectives_of` do not exclude."""
    covers = table.string_lists("covers")
    own = Table(dict(covers), table.origin, table.key("covers"))
    own.check_keys(COVERS)
    for label, values in covers:
        if not values or not all(map(LABEL_VALUE.match, values)):
            raise own.wrong(label, f"{A_LABEL_VALUE}, or a list of them")
    for objective in common.objectives.values():
        for each in objective.others:
            labels = {label: value for label, (value,) in each.where}
            if not matches(labels, tuple(pair for pair in covers if pair[0] in labels)):
                raise ConfigurationError(
                    f"{table.origin}: {table.key('objectives_of')}: {describe_selector(each.where)} has no deployment "
                    f"that {table.key('covers')} has"
                )
    return covers


def _severities(table: Table) -> Mapping[str, Severity]:
    found: dict[str, Severity] = {}
    for name in table.values:
        if ALERTS[name].severity == "none":
            raise table.wrong(name, "nothing: its receiver expects it all the time")
        found[name] = _SEVERITIES[table.choice(name, tuple(_SEVERITIES), "")]
    return MappingProxyType(found)


def _labels(table: Table, common: shared.Options) -> Mapping[str, Mapping[str, str]]:
    """More labels of single alerts; `team` replaces that of all alerts."""
    taken = {*_TAKEN, *map(common.label, IDENTITY_LABELS), *common.extra_labels}
    found: dict[str, Mapping[str, str]] = {}
    for name in table.values:
        labels = table.values[name]
        if not isinstance(labels, Mapping) or not all(map(shared.is_label, labels)):
            raise table.wrong(name, 'a table of labels such as { owner = "inference" }')
        own = Table(labels, table.origin, table.key(name))
        for label, value in labels.items():
            if label in taken:
                raise own.wrong(label, f"labels that are not among {', '.join(sorted(taken))}")
            if not isinstance(value, str) or not LABEL_VALUE.match(value) or "{{" in value:
                raise own.wrong(label, A_LABEL_VALUE)
        found[name] = MappingProxyType({str(label): str(value) for label, value in labels.items()})
    return MappingProxyType(found)


def _receivers(table: Table) -> Mapping[str, Receiver]:
    listed = table.table("receivers", [Setting(name, "") for name in DEFAULT_RECEIVERS])
    chosen = {name: read_receiver(name, listed.table(name, RECEIVER_SETTINGS)) for name in listed.values}
    return MappingProxyType({**DEFAULT_RECEIVERS, **chosen})


def _span(table: Table) -> Span:
    start, end = _moment(table, "from"), _moment(table, "until")
    if not start < end:
        raise table.wrong("until", f"a time after 'from' ({start.isoformat()})")
    if (end - start).days >= _LONGEST_WINDOW_DAYS:
        raise table.wrong("until", f"a time less than {_LONGEST_WINDOW_DAYS} days after 'from' ({start.isoformat()})")
    return Span(start, end)


def _moment(table: Table, key: str) -> datetime:
    value = table.values[key]
    if not isinstance(value, datetime) or value.tzinfo is None or value.second or value.microsecond:
        raise table.wrong(key, "a date and time of a whole minute with its offset, such as 2026-12-01T22:00:00Z")
    return value.astimezone(UTC)


def _check_scrape_interval(options: Options, origin: str) -> None:
    """Every window of every rule must hold four scrapes."""
    needed = 4 * shared.seconds(options.common.scrape_interval)
    windows = {*(row.short for row in BURN_WINDOWS), *_ranges(options)}
    shortest = min(windows, key=shared.seconds)
    if shared.seconds(shortest) < needed:
        most = f"{shared.seconds(shortest) / 4:g}s"
        raise ConfigurationError(
            f"{origin}: scrape_interval is {options.common.scrape_interval!r}, expected at most {most}: rules look at "
            f"the last {shortest}, which has to hold four scrapes"
        )


def _ranges(options: Options) -> set[str]:
    conditions = (options.rule_expression(alert) for alert in options.alerts().values())
    return {window for condition in conditions for window in re.findall(r"\[(\w+)\]", condition)}
