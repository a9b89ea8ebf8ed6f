"""The options of the rules, read from a TOML file that is refused as a whole if it is invalid.

One file serves the dashboards too: labels, selector, window, scrape interval, thresholds and prefix are top-level keys
shared by both; options of the alerts are in the table [alerts].
"""

from __future__ import annotations

import math
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
from servescope.alerting.alerts import ALERTS, make_alerts
from servescope.alerting.choices import CATALOG_CHOICES, Choices
from servescope.alerting.feeding import can_hold, metrics_of
from servescope.alerting.promises import LATENCIES, Edges, edges_of, list_edges, objectives_of, promise
from servescope.alerting.promql import alert_promql, term_promql
from servescope.alerting.records import TEAM, Alert, Severity, Term
from servescope.contract.bounds import BOUNDS
from servescope.contract.expressions import Expression, promql
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.objectives import BURN_WINDOWS, INSTEAD_OF, OBJECTIVES, request_objective
from servescope.contract.types import Band, Objective
from servescope.errors import ConfigurationError
from servescope.settings.tables import Setting, Table, read_document
from servescope.settings.values import format_duration, parse_duration
from servescope.sources.map_files import load_sources

SECRETS: Final = "/etc/alertmanager/secrets"
"""The folder of the receivers' secrets, one file each; the configuration contains none."""

_LONGEST_EVALUATION_SECONDS = 300.0
_LONGEST_WINDOW_DAYS = 31
_LONGEST_WAIT = "1d"
_SEVERITIES: Final[Mapping[str, Severity]] = MappingProxyType(
    {"critical": "critical", "warning": "warning", "info": "info"}
)
# Those that rules, routes and Prometheus write themselves.
_TAKEN: Final = ("alertname", "alertstate", "component", "family", "severity", "instance", "job", "plan")
_URL = re.compile(r"https?://[^\s/?#]+[^\s?#]*\Z")
_PATH = re.compile(r"[^\s?#]+\Z")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}\Z")
# The value of a label that is written into expressions and texts.
_VALUE = re.compile(r"[^\s\"'\\{}](?:[^\n\r\t\"'\\{}]{0,126}[^\s\"'\\{}])?\Z")
_A_VALUE = "the value of a label, without quotes, braces and backslashes"
# With a lower goal the fastest burn rate would need more than 100% bad requests and could never page.
_LEAST_GOAL = math.ceil(100 * (1 - 1 / max(row.factor for row in BURN_WINDOWS))) / 100

ALERT_SETTINGS: Final = (
    Setting("grafana", '"http://localhost:3000"'),
    Setting("team", f'"{TEAM}"'),
    Setting("evaluation_interval", '"15s"'),
    Setting("old_stack", f'"{CATALOG_CHOICES.old_stack}"'),
    Setting("new_stack", f'"{CATALOG_CHOICES.new_stack}"'),
    Setting("collector_job", f'"{CATALOG_CHOICES.collector_job}"'),
    Setting("sources", "[]"),
    Setting("disabled", "[]"),
    Setting("secrets", f'"{SECRETS}"'),
    Setting("templates", f'"{TEMPLATES_FOLDER}"'),
    Setting("bounds", "{}"),
    Setting("objectives", "{}"),
    Setting("waits", "{}"),
    Setting("severities", "{}"),
    Setting("labels", "{}"),
    Setting("receivers", "{}"),
    Setting("migration_windows", "[]"),
)
"""The keys of [alerts] with their defaults; those from `bounds` on are tables."""

OBJECTIVE_SETTINGS: Final = (Setting("goal", ""), Setting("seconds", ""))
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
    and `templates` folders on Alertmanager's machine; `disabled` names alerts to leave out. With `sources`, alerts on
    metrics that none of these sources has are left out as well. `severities` and `labels` are those of single alerts,
    by name, the labels in addition to those that every alert has.
    """

    common: shared.Options = shared.DEFAULTS
    grafana: str = "http://localhost:3000"
    team: str = TEAM
    evaluation_interval: str = "15s"
    choices: Choices = CATALOG_CHOICES
    sources: tuple[str, ...] = ()
    disabled: frozenset[str] = frozenset()
    severities: Mapping[str, Severity] = field(default_factory=lambda: MappingProxyType({}))
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    secrets: str = SECRETS
    templates: str = TEMPLATES_FOLDER
    receivers: Mapping[str, Receiver] = field(default_factory=lambda: DEFAULT_RECEIVERS)
    migration_windows: tuple[Span, ...] = ()

    def alerts(self) -> Mapping[str, Alert]:
        """The enabled alerts by name, with the chosen numbers."""
        chosen = ALERTS if self.choices == CATALOG_CHOICES else make_alerts(self.choices)
        had = metrics_of(self.sources)
        return MappingProxyType(
            {
                name: replace(alert, severity=self.severities.get(name, alert.severity))
                for name, alert in chosen.items()
                if name not in self.disabled and can_hold(alert.condition, had)
            }
        )

    def rule_expression(self, alert: Alert) -> str:
        """When an alert is active, as PromQL."""
        return self.expression(alert_promql(alert, self.common.window, self.scope, **self._labelling))

    def term(self, term: Term) -> str:
        """A term of an alert's condition as PromQL."""
        return self.expression(term_promql(term, self.common.window, self.scope, **self._labelling))

    def compile(self, expression: Expression, *, window: str, by: Sequence[str]) -> str:
        """An expression over the contract's series as PromQL, per value of the labels in `by`."""
        by = (*by, *self.common.extra_labels)
        collectors = self.common.collector_labels
        return self.expression(promql(expression, window=window, by=by, scope=self.scope, collectors=collectors))

    @property
    def _labelling(self) -> dict[str, Any]:
        return {"extra": self.common.extra_labels, "collectors": self.common.collector_labels}

    @property
    def scope(self) -> str:
        """The matchers for every selector of series that are not recorded, "" for none."""
        return self.common.selector.rstrip(", ")

    def expression(self, promql: str) -> str:
        """A PromQL expression with renamed identity labels."""
        # In PromQL a label's name cannot be anything else: metric names are longer, and values are quoted.
        return self._renamed(promql, r"\b({labels})\b")

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
        return re.sub(pattern.format(labels="|".join(names)), lambda match: names[match[1]], text)


DEFAULTS = Options()


def read_options(path: Path) -> Options:
    """The options of a TOML file, with defaults for missing ones.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    return make_options(read_document(path, "options"), origin=str(path))


def make_options(document: Mapping[str, object], *, origin: str) -> Options:
    """The options from a parsed document; `origin` is what errors call it."""
    common = shared.make_options(document, origin=origin)
    table = Table(document, origin, "").table(shared.ALERTS_TABLE, ALERT_SETTINGS)
    sources = _sources(table) or common.engines
    options = Options(
        common=common,
        grafana=_matching(table, "grafana", DEFAULTS.grafana, _URL, "a URL such as 'https://grafana.example'").rstrip(
            "/"
        ),
        team=_matching(table, "team", DEFAULTS.team, _NAME, "a name of letters, digits and hyphens"),
        evaluation_interval=_evaluation_interval(table, common),
        choices=Choices(
            bands=_bands(common),
            bounds=_bounds(table.table("bounds", [Setting(name, "") for name in BOUNDS])),
            objectives=_objectives(table.table("objectives", [Setting(name, "") for name in OBJECTIVES]), sources),
            waits=_waits(table.table("waits", [Setting(name, "") for name in ALERTS])),
            old_stack=_matching(table, "old_stack", CATALOG_CHOICES.old_stack, _VALUE, _A_VALUE),
            new_stack=_matching(table, "new_stack", CATALOG_CHOICES.new_stack, _VALUE, _A_VALUE),
            collector_job=_matching(table, "collector_job", CATALOG_CHOICES.collector_job, _VALUE, _A_VALUE),
        ),
        sources=sources,
        disabled=_disabled(table),
        severities=_severities(table.table("severities", [Setting(name, "") for name in ALERTS])),
        labels=_labels(table.table("labels", [Setting(name, "") for name in ALERTS]), common),
        secrets=_matching(table, "secrets", SECRETS, _PATH, "a folder").rstrip("/"),
        templates=_matching(table, "templates", TEMPLATES_FOLDER, _PATH, "a folder").rstrip("/"),
        receivers=_receivers(table),
        migration_windows=tuple(_span(each) for each in table.tables("migration_windows", MIGRATION_SETTINGS)),
    )
    if options.choices.old_stack == options.choices.new_stack:
        raise table.wrong("new_stack", f"another stack than old_stack ({options.choices.old_stack!r})")
    _check_scrape_interval(options, origin)
    return options


def _matching(table: Table, key: str, default: str, form: re.Pattern[str], expected: str) -> str:
    value = table.string(key, default)
    # Annotations are Prometheus templates.
    if not form.match(value) or "{{" in value:
        raise table.wrong(key, expected)
    return value


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


def _bands(common: shared.Options) -> Mapping[str, Band]:
    moved = {figure: common.band(figure) for figure in common.thresholds}
    return MappingProxyType({figure: band for figure, band in moved.items() if band is not None})


def _bounds(table: Table) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for name in table.values:
        bound = BOUNDS[name]
        most = "" if bound.most == float("inf") else f" and at most {bound.most:g}"
        found[name] = _number(table, name, bound.least, bound.most, f"a number of at least {bound.least:g}{most}")
    return MappingProxyType(found)


def _waits(table: Table) -> Mapping[str, str]:
    """How long alerts wait, as durations of one unit."""
    return MappingProxyType({name: _wait(table, name) for name in table.values})


def _wait(table: Table, name: str) -> str:
    expected = f"a duration from 0s to {_LONGEST_WAIT}, such as 30m"
    try:
        milliseconds = parse_duration(table.string(name, ""))
    except ValueError:
        raise table.wrong(name, expected) from None
    if milliseconds % 1000 or milliseconds > parse_duration(_LONGEST_WAIT):
        raise table.wrong(name, expected)
    return format_duration(milliseconds) if milliseconds else ""


def _number(table: Table, key: str, least: float, most: float, expected: str) -> float:
    value = table.values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise table.wrong(key, expected)
    if value == float("inf"):
        raise table.wrong(key, expected)
    return float(value)


def _objectives(table: Table, sources: tuple[str, ...]) -> Mapping[str, Objective]:
    found = dict(objectives_of(sources))
    for name in table.values:
        chosen = table.table(name, OBJECTIVE_SETTINGS)
        goal = OBJECTIVES[name].goal
        if "goal" in chosen.values:
            goal = _number(
                chosen, "goal", _LEAST_GOAL, 0.99999, f"a share of at least {_LEAST_GOAL:g} and below 1, such as 0.995"
            )
        if name in LATENCIES:
            found[name] = _latency(chosen, name, goal, edges_of(name, sources), table)
        elif "seconds" in chosen.values:
            raise chosen.wrong("seconds", f"nothing: {name!r} is no latency")
        else:
            found[name] = request_objective(goal)
    return MappingProxyType(found)


def _latency(chosen: Table, name: str, goal: float, edges: Edges, objectives: Table) -> Objective:
    """An objective at a latency that the histogram of at least one engine counts exactly, and all others above it."""
    if not edges:
        other = INSTEAD_OF.get(name, "")
        without = f" without {other}, which has an objective of its own" if other else ""
        raise objectives.wrong(name, f"no such objective: none of the sources shows {name}_seconds{without}")
    if "seconds" not in chosen.values:
        return promise(name, goal, edges)
    value = chosen.values["seconds"]
    if isinstance(value, bool) or not any(value in each for releases in edges.values() for each in releases):
        raise chosen.wrong("seconds", f"an edge of the histogram: {list_edges(edges)}")
    seconds = float(str(value))
    for source, releases in edges.items():
        highest = min(each[-1] for each in releases)
        if seconds > highest:
            raise chosen.wrong("seconds", f"at most {highest:g}, the highest edge of {source}")
    return promise(name, goal, edges, seconds)


def _sources(table: Table) -> tuple[str, ...]:
    names = table.strings("sources", [])
    for name in names:
        if name not in load_sources():
            raise ConfigurationError(
                f"{table.origin}: {table.key('sources')}: no source {name!r}, known: {', '.join(load_sources())}"
            )
    return tuple(names)


def _disabled(table: Table) -> frozenset[str]:
    names = table.strings("disabled", [])
    for name in names:
        if name not in ALERTS:
            raise ConfigurationError(
                f"{table.origin}: {table.key('disabled')}: no alert {name!r}, known: {', '.join(ALERTS)}"
            )
    return frozenset(names)


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
        for label, value in labels.items():
            if label in taken:
                raise table.wrong(name, f"labels that are not among {', '.join(sorted(taken))}")
            if not isinstance(value, str) or not _VALUE.match(value) or "{{" in value:
                raise table.wrong(name, f"{_A_VALUE}, for {label!r}")
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
