"""Reads what an operator chose about the alerts: [thresholds] and [alerts] of the options of rules and dashboards.

Rules, dashboards, the collector and the console read the same file, so that all show the same objectives and name the
same stacks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.choices import CATALOG_CHOICES, Choices
from servescope.alerting.rules.promises import LATENCIES, Edges, edges_of, list_edges, objectives_of, promise
from servescope.contract.bounds import BOUNDS
from servescope.contract.expressions import describe_selector
from servescope.contract.figures import FIGURES
from servescope.contract.identity import GROUP_LABELS
from servescope.contract.objectives import BURN_WINDOWS, INSTEAD_OF, OBJECTIVES, request_objective
from servescope.contract.types import Band, Objective
from servescope.errors import ConfigurationError
from servescope.settings.tables import Setting, Table, read_document
from servescope.settings.values import format_duration, parse_duration
from servescope.sources.map_files import load_sources

ALERTS_TABLE: Final = "alerts"
THRESHOLDS_TABLE: Final = "thresholds"
CHOICE_SETTINGS: Final = (
    Setting("old_stack", f'"{CATALOG_CHOICES.old_stack}"'),
    Setting("new_stack", f'"{CATALOG_CHOICES.new_stack}"'),
    Setting("collector_job", f'"{CATALOG_CHOICES.collector_job}"'),
    Setting("sources", "[]"),
    Setting("bounds", "{}"),
    Setting("objectives", "{}"),
    Setting("waits", "{}"),
    Setting("objectives_of", "[]"),
)
"""The keys of [alerts] that are read here, with their defaults."""
OBJECTIVE_SETTINGS: Final = (Setting("goal", ""), Setting("seconds", ""))
OBJECTIVES_OF_SETTINGS: Final = tuple(Setting(key, "") for key in (*GROUP_LABELS, *OBJECTIVES))
"""The keys of [[alerts.objectives_of]]: the labels of its deployments, and their objectives."""

# The value of a label that is written into expressions and texts.
LABEL_VALUE: Final = re.compile(r"[^\s\"'\\{}](?:[^\n\r\t\"'\\{}]{0,126}[^\s\"'\\{}])?\Z")
A_LABEL_VALUE: Final = "the value of a label, without quotes, braces and backslashes"
_LONGEST_WAIT = "1d"
# With a lower goal the fastest burn rate would need more than 100% bad requests and could never page.
_LEAST_GOAL = math.ceil(100 * (1 - 1 / max(row.factor for row in BURN_WINDOWS))) / 100


def read_choices_file(path: Path) -> Choices:
    """The choices in a file of options; raises ConfigurationError."""
    document = read_document(path, "options")
    engines = document.get("engines", [])
    if not isinstance(engines, list) or not all(isinstance(each, str) for each in engines):
        raise ConfigurationError(f"{path}: engines is {engines!r}, expected a list of engines")
    return read_choices(document, origin=str(path), engines=tuple(engines))


def read_choices(document: Mapping[str, object], *, origin: str, engines: tuple[str, ...]) -> Choices:
    """The choices in the tables [thresholds] and [alerts] of a document; other keys are not looked at.

    Without `sources` the objectives are those of the `engines`. Raises ConfigurationError.
    """
    values = document.get(ALERTS_TABLE, {})
    known = [setting.key for setting in CHOICE_SETTINGS]
    own = {key: each for key, each in values.items() if key in known} if isinstance(values, Mapping) else values
    table = Table({ALERTS_TABLE: own}, origin, "").table(ALERTS_TABLE, CHOICE_SETTINGS)
    choices = Choices(
        bands=_bands(document.get(THRESHOLDS_TABLE, {}), origin),
        bounds=_bounds(table.table("bounds", [Setting(name, "") for name in BOUNDS])),
        objectives=_objectives(table, chosen_sources(table) or engines),
        waits=_waits(table.table("waits", [Setting(name, "") for name in ALERTS])),
        old_stack=matching(table, "old_stack", CATALOG_CHOICES.old_stack, LABEL_VALUE, A_LABEL_VALUE),
        new_stack=matching(table, "new_stack", CATALOG_CHOICES.new_stack, LABEL_VALUE, A_LABEL_VALUE),
        collector_job=matching(table, "collector_job", CATALOG_CHOICES.collector_job, LABEL_VALUE, A_LABEL_VALUE),
    )
    if choices.old_stack == choices.new_stack:
        raise table.wrong("new_stack", f"another stack than old_stack ({choices.old_stack!r})")
    return choices


def matching(table: Table, key: str, default: str, form: re.Pattern[str], expected: str) -> str:
    """The text at a key, which has a form and contains no template of Prometheus; raises ConfigurationError."""
    value = table.string(key, default)
    # Annotations are Prometheus templates.
    if not form.match(value) or "{{" in value:
        raise table.wrong(key, expected)
    return value


def chosen_sources(table: Table) -> tuple[str, ...]:
    """The sources that the table names; raises ConfigurationError."""
    names = table.strings("sources", [])
    for name in names:
        if name not in load_sources():
            raise ConfigurationError(
                f"{table.origin}: {table.key('sources')}: no source {name!r}, known: {', '.join(load_sources())}"
            )
    return tuple(names)


def _bands(value: object, origin: str) -> Mapping[str, Band]:
    """The bands of figures with the thresholds in a table."""

    def wrong(key: str, value: object, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{origin}: {key} is {value!r}, expected {expected}")

    if not isinstance(value, Mapping):
        raise wrong(THRESHOLDS_TABLE, value, f"a table [{THRESHOLDS_TABLE}]")
    banded = {figure.name: figure.band for figure in FIGURES.values() if figure.band is not None}
    bands: dict[str, Band] = {}
    for figure, edges in value.items():
        if figure not in banded:
            raise ConfigurationError(f"{origin}: {THRESHOLDS_TABLE}: no band of {figure!r}, known: {', '.join(banded)}")
        key, band = f"{THRESHOLDS_TABLE}.{figure}", banded[figure]
        count = len(band.steps)
        if (
            not isinstance(edges, list)
            or len(edges) != count
            or any(isinstance(edge, bool) or not isinstance(edge, int | float) for edge in edges)
            or not all(math.isfinite(edge) for edge in edges)
        ):
            raise wrong(key, edges, f"a list of {count} numbers")
        if any(lower >= upper for lower, upper in pairwise(edges)):
            raise wrong(key, edges, "ascending numbers")
        if FIGURES[figure].unit == "ratio" and any(abs(edge) > 1 for edge in edges):
            raise wrong(key, edges, "shares such as 0.4, not percent")
        steps = tuple(replace(step, start=float(edge)) for step, edge in zip(band.steps, edges, strict=True))
        bands[figure] = replace(band, steps=steps)
    return MappingProxyType(bands)


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
    """The objectives, each with those of the deployments that have others."""
    known = objectives_of(sources)
    chosen = _chosen_objectives(table.table("objectives", [Setting(name, "") for name in OBJECTIVES]), known, sources)
    found = {**known, **chosen}
    others: dict[str, list[tuple[str, Objective]]] = {}
    for row in table.tables("objectives_of", OBJECTIVES_OF_SETTINGS):
        labels = [label for label in GROUP_LABELS if label in row.values]
        if not labels or len(labels) == len(row.values):
            raise ConfigurationError(
                f"{row.origin}: {row.path}: has {', '.join(row.values) or 'no key'}, expected one or more of "
                f"{', '.join(GROUP_LABELS)}, and of {', '.join(OBJECTIVES)}"
            )
        where = tuple((label, (matching(row, label, "", LABEL_VALUE, A_LABEL_VALUE),)) for label in labels)
        own = Table({name: row.values[name] for name in OBJECTIVES if name in row.values}, row.origin, row.path)
        for name, objective in _chosen_objectives(own, found, sources).items():
            for path, before in others.setdefault(name, []):
                if set(before.where) <= set(where):
                    raise ConfigurationError(
                        f"{row.origin}: {row.key(name)}: never counts, as {path} has all deployments of "
                        f"{describe_selector(where)} and the first counts; expected it before that one"
                    )
            others[name].append((row.path, replace(objective, where=where)))
    return MappingProxyType(
        {
            name: replace(objective, others=tuple(each for _, each in others.get(name, ())))
            for name, objective in found.items()
        }
    )


def _chosen_objectives(
    table: Table, defaults: Mapping[str, Objective], sources: tuple[str, ...]
) -> Mapping[str, Objective]:
    """The objectives in a table, with goals and latencies of the `defaults` where it has none."""
    found: dict[str, Objective] = {}
    for name in table.values:
        chosen = table.table(name, OBJECTIVE_SETTINGS)
        goal = defaults[name].goal if name in defaults else OBJECTIVES[name].goal
        if "goal" in chosen.values:
            goal = _number(
                chosen, "goal", _LEAST_GOAL, 0.99999, f"a share of at least {_LEAST_GOAL:g} and below 1, such as 0.995"
            )
        if name in LATENCIES:
            found[name] = _latency(chosen, goal, edges_of(name, sources), table, defaults.get(name, OBJECTIVES[name]))
        elif "seconds" in chosen.values:
            raise chosen.wrong("seconds", f"nothing: {name!r} is no latency")
        else:
            found[name] = request_objective(goal)
    return found


def _latency(chosen: Table, goal: float, edges: Edges, objectives: Table, default: Objective) -> Objective:
    """An objective at a latency that the histogram of at least one engine counts exactly, and all others above it."""
    name = default.name
    if not edges:
        other = INSTEAD_OF.get(name, "")
        without = f" without {other}, which has an objective of its own" if other else ""
        raise objectives.wrong(name, f"no such objective: none of the sources shows {name}_seconds{without}")
    seconds = default.edges_seconds[0]
    if "seconds" in chosen.values:
        value = chosen.values["seconds"]
        if isinstance(value, bool) or not any(value in each for releases in edges.values() for each in releases):
            raise chosen.wrong("seconds", f"an edge of the histogram: {list_edges(edges)}")
        seconds = float(str(value))
        for source, releases in edges.items():
            highest = min(each[-1] for each in releases)
            if seconds > highest:
                raise chosen.wrong("seconds", f"at most {highest:g}, the highest edge of {source}")
    promised = promise(name, goal, edges, seconds)
    if promised is None:
        raise objectives.wrong(name, f"`seconds`, as no edge is {seconds:g} or above: {list_edges(edges)}")
    return promised
