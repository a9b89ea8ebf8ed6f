"""The options of the dashboards, read from a TOML file that is refused as a whole if it is invalid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from servescope.alerting.alerts import make_alerts
from servescope.alerting.chosen import ALERTS_TABLE, THRESHOLDS_TABLE, read_choices
from servescope.alerting.rules.choices import CATALOG_CHOICES, Choices
from servescope.alerting.rules.links import RUNBOOKS, is_runbooks, runbook_url
from servescope.alerting.rules.records import Alert
from servescope.contract.expressions import COLLECTOR_LABELS
from servescope.contract.figures import FIGURES
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.types import DEFAULT_WINDOW, Band, Bound, Objective
from servescope.errors import ConfigurationError
from servescope.settings.tables import Table, read_document
from servescope.sources.map_files import load_sources

FIGURE_SOURCES = ("recorded", "raw")
HISTOGRAM_FORMS = ("both", "classic")
TIMEZONES = ("browser", "utc")

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w)\Z")
_MATCHERS = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(,\s*|\Z)')
_PREFIX = re.compile(r"[a-z][a-z0-9-]{0,19}\Z")
# Labels that series, alerts and rules already have: an identity label with such a name would be overwritten.
_TAKEN_LABELS = sorted(
    {
        "__name__", "alertname", "alertstate", "component", "family", "instance", "job", "le", "reason", "severity",
        "team",
    }.union(*(metric.labels for metric in METRICS.values()))
)  # fmt: skip
_NO_TEXTS = ("labels", "engines", "extra_labels", "collector_labels")
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class Options:
    """How the dashboards are written.

    `runbooks` is the URL of an alert's runbook, with {alert} for its name; by default the console's, and one without
    {alert} is a folder of the generated pages.
    `labels` renames identity labels, `selector` adds matchers to every query. `extra_labels` distinguish deployments
    beside the identity labels; of series that differ in `collector_labels` alone one counts. `figures` selects whether
    figures of a deployment are read from the recording rules over `window`, or computed over the displayed range.
    `histograms` selects whether panels can show native histograms too, which not every database has.
    `engines` are the source maps in use; empty for all. `choices` are the tables [thresholds] and [alerts]: the
    numbers, objectives and stacks of the rules.
    """

    prefix: str = "servescope"
    folder: str = "servescope"
    runbooks: str = RUNBOOKS
    datasource: str = ""
    datasource_regex: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    selector: str = ""
    extra_labels: tuple[str, ...] = ()
    collector_labels: tuple[str, ...] = COLLECTOR_LABELS
    figures: str = "recorded"
    histograms: str = "both"
    window: str = DEFAULT_WINDOW
    scrape_interval: str = "15s"
    refresh: str = "30s"
    time_from: str = "now-1h"
    timezone: str = "browser"
    engines: tuple[str, ...] = ()
    choices: Choices = CATALOG_CHOICES

    def alerts(self) -> Mapping[str, Alert]:
        """All alerts by name, with the chosen numbers and names."""
        return self._alerts

    # Each dashboard asks for them.
    @cached_property
    def _alerts(self) -> Mapping[str, Alert]:
        return make_alerts(self.choices)

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """The objectives by name, at the chosen goals and latencies."""
        return self.choices.objectives

    def bound(self, bound: Bound) -> float:
        """The value of a bound, which the alerts compare with."""
        return self.choices.number(bound.name)

    def label(self, name: str) -> str:
        """The label's name in this Prometheus: identity labels can be renamed, others cannot."""
        return self.labels.get(name, name)

    def group(self, labels: Iterable[str]) -> tuple[str, ...]:
        """The labels of a group, or those that two sides are matched on: renamed, and the extra ones."""
        return (*map(self.label, labels), *self.extra_labels)

    def runbook_url(self, alert: str) -> str:
        """The URL of an alert's runbook."""
        return runbook_url(self.runbooks, alert)

    def band(self, figure: str) -> Band | None:
        """The figure's band, with the operator's thresholds."""
        return self.choices.bands.get(figure) or FIGURES[figure].band


DEFAULTS = Options()


def read_options(path: Path) -> Options:
    """The options of a TOML file, with defaults for missing ones.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    return make_options(read_document(path, "options"), origin=str(path))


def make_options(document: Mapping[str, object], *, origin: str) -> Options:
    """The options from a parsed document; `origin` is what errors call it.

    Of the table [alerts] only the choices are read, so that one file serves `python -m alerts` too.
    """
    whole = document
    document = {key: value for key, value in document.items() if key not in (ALERTS_TABLE, THRESHOLDS_TABLE)}
    known = [THRESHOLDS_TABLE if each.name == "choices" else each.name for each in fields(Options)]
    Table(document, origin, "").check_keys([*known, ALERTS_TABLE])
    texts: dict[str, Any] = {key: value for key, value in document.items() if key not in _NO_TEXTS}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise _wrong(origin, key, value, "a text")
    labels = _labels(document.get("labels", {}), origin)
    # An identity label may be named as one of the collector's would be otherwise.
    collectors = tuple(label for label in COLLECTOR_LABELS if label not in labels.values())
    options = replace(
        DEFAULTS,
        labels=MappingProxyType(labels),
        engines=_engines(document.get("engines", []), origin),
        extra_labels=_label_names(document, "extra_labels", (), origin),
        collector_labels=_label_names(document, "collector_labels", collectors, origin),
        **texts,
    )
    _check(options, origin)
    return replace(options, choices=read_choices(whole, origin=origin, engines=options.engines))


def _wrong(origin: str, key: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(f"{origin}: {key} is {value!r}, expected {expected}")


def _labels(value: object, origin: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _wrong(origin, "labels", value, "a table [labels]")
    for label, name in value.items():
        if label not in IDENTITY_LABELS:
            raise ConfigurationError(
                f"{origin}: labels: no identity label {label!r}, known: {', '.join(IDENTITY_LABELS)}"
            )
        if not is_label(name):
            raise _wrong(origin, f"labels.{label}", name, "the name of a label that Prometheus stores")
        if name in _TAKEN_LABELS:
            raise _wrong(origin, f"labels.{label}", name, f"a name that is not one of {', '.join(_TAKEN_LABELS)}")
    names = [value.get(label, label) for label in IDENTITY_LABELS]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{origin}: labels: two identity labels are named {name!r}, expected each once")
    return dict(value)


def _label_names(document: Mapping[str, object], key: str, default: tuple[str, ...], origin: str) -> tuple[str, ...]:
    value = document.get(key, list(default))
    if not isinstance(value, list) or not all(map(is_label, value)):
        raise _wrong(origin, key, value, "a list of labels such as ['cluster']")
    return tuple(dict.fromkeys(value))


def _engines(value: object, origin: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong(origin, "engines", value, "a list of engines")
    known = load_sources()
    for engine in value:
        if engine not in known:
            raise ConfigurationError(f"{origin}: engines: unknown engine {engine!r}, supported: {', '.join(known)}")
    return tuple(dict.fromkeys(value))


def _check(options: Options, origin: str) -> None:
    for key, allowed in (("figures", FIGURE_SOURCES), ("histograms", HISTOGRAM_FORMS), ("timezone", TIMEZONES)):
        value = getattr(options, key)
        if value not in allowed:
            raise _wrong(origin, key, value, f"one of {', '.join(allowed)}")
    identity = [options.label(name) for name in IDENTITY_LABELS]
    taken = {
        "extra_labels": sorted({*_TAKEN_LABELS, *identity, *options.collector_labels}),
        "collector_labels": sorted({*_TAKEN_LABELS, *identity} - {"instance", "job"}),
    }
    for key, names in taken.items():
        for name in getattr(options, key):
            if name in names:
                raise _wrong(origin, key, name, f"names that are not among {', '.join(names)}")
    for key in ("window", "scrape_interval", "refresh"):
        if not _is_duration(getattr(options, key)):
            raise _wrong(origin, key, getattr(options, key), "a duration such as '30s' or '5m'")
    if not _PREFIX.match(options.prefix):
        raise _wrong(origin, "prefix", options.prefix, "at most 20 small letters, digits and hyphens")
    if not is_runbooks(options.runbooks):
        raise _wrong(
            origin, "runbooks", options.runbooks, "a URL such as 'https://books.example/llm' or one with '{alert}'"
        )
    matchers(options.selector, "selector", origin)
    if not _is_pattern(options.datasource_regex):
        raise _wrong(origin, "datasource_regex", options.datasource_regex, "a regular expression")
    if not options.time_from.startswith("now-") or not _is_duration(options.time_from[4:]):
        raise _wrong(origin, "time_from", options.time_from, "a time such as 'now-1h'")
    interval = seconds(options.scrape_interval)
    if seconds(options.window) < 4 * interval:
        raise _wrong(origin, "window", options.window, f"at least four scrape intervals of {options.scrape_interval}")
    if seconds(options.refresh) < interval:
        raise _wrong(
            origin, "refresh", options.refresh, f"no less than the scrape interval of {options.scrape_interval}"
        )


def matchers(text: str, key: str, origin: str) -> str:
    """The text, which is matchers of a selector; raises ConfigurationError."""
    if _MATCHERS.sub("", text):
        raise _wrong(origin, key, text, """matchers such as 'cluster="eu"'""")
    for label, how, value, _ in _MATCHERS.findall(text):
        if label == "__name__":
            raise _wrong(origin, key, text, "matchers of labels: the metrics' names are there already")
        if how in ("=~", "!~") and not _is_pattern(value):
            raise _wrong(origin, key, text, f"regular expressions, which {value!r} is not")
    return text


def is_label(name: object) -> bool:
    """Whether it can be the name of a label."""
    return isinstance(name, str) and _LABEL.match(name) is not None and not name.startswith("__")


def _is_duration(text: str) -> bool:
    return _DURATION.match(text) is not None and seconds(text) > 0


def _is_pattern(text: str) -> bool:
    """Whether it is a regular expression, checked with Python's syntax instead of Prometheus' and the browser's."""
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def seconds(duration: str) -> float:
    """The seconds of a Prometheus duration of one unit."""
    found = _DURATION.match(duration)
    if found is None:
        raise ValueError(duration)
    return int(found[1]) * _UNIT_SECONDS[found[2]]
