"""The catalog as facts, in the form in which the files are read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.listing import unknown
from servescope.alerting.rules.promises import objectives_of
from servescope.alerting.rules.promql import is_kept_unknown
from servescope.alerting.rules.records import (
    Absent,
    AdHocExpression,
    Alert,
    Always,
    BadRatio,
    Compare,
    FigureRef,
    RequestsEnded,
    Scaled,
    SelfMetric,
    Shifted,
    conditions_of,
    labels_of,
)
from servescope.contract.bounds import ALL_BAD, BOUNDS
from servescope.contract.expressions import Level, Rate, leaves
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.objectives import BASE_WINDOW, BURN_WINDOWS, ENDED, record_ended
from servescope.contract.types import Band, Figure
from servescope.settings.values import format_duration, parse_duration
from tests.proofs.drift.facts import PAGE, Facts, Key
from tests.support.promql import Derived, parse

WINDOW = "5m"
UNITS: Mapping[str, str] = {
    "bytes": "bytes", "bytes/s": "Bps", "cores": "suffix:cores", "ratio": "percentunit", "requests/s": "reqps",
    "seconds": "s", "code": "none",
}  # fmt: skip
"""Grafana's own units; all others of the catalog are counted, `count:<unit>`."""


def read_catalog(files: Mapping[Key, object]) -> Facts:
    """The catalog's facts; which panels and runbooks exist is taken from the files, their content is not."""
    return {
        **dict(_page()),
        **dict(_recording_rules()),
        **dict(_alert_rules()),
        **dict(_runbooks(files)),
        **dict(_panels(files)),
    }


def _page() -> Iterator[tuple[Key, object]]:
    for metric in METRICS.values():
        labels = tuple((label, metric.label_values.get(label, ())) for label in (*metric.labels, *metric.optional))
        missing = f"{metric.absent[0].upper()}{metric.absent[1:]}"
        yield (PAGE, f"metric {metric.name}"), (
            metric.component, metric.kind, metric.unit, labels, metric.help, missing,
        )  # fmt: skip
        if metric.edges is not None:
            yield (PAGE, f"edges {metric.name}"), metric.edges
    for figure in FIGURES.values():
        yield (PAGE, f"figure {figure.name}"), _figure(figure)
        if figure.band is not None:
            yield (PAGE, f"band {figure.name}"), _band(figure.band)


def _figure(figure: Figure) -> tuple[object, ...]:
    facts = [
        {"zero": "0 when idle", "absent": "absent when idle"}[figure.idle],
        f"recorded as `{figure.record()}`",
        *([f"{figure.better} is better"] if figure.better else []),
        *([f"exposed as `{figure.exposed}`"] if figure.exposed else []),
        *([f"one for each {', '.join(f'`{label}`' for label in figure.by)}"] if figure.by else []),
    ]
    windows = () if isinstance(figure.expression, Level) else (WINDOW,)
    return (
        figure.group, figure.title, figure.help, figure.unit, figure.expression, figure.by, windows,
        tuple(sorted(facts)),
    )  # fmt: skip


def _band(band: Band) -> tuple[object, ...]:
    lowest = (None, band.lowest.status, band.lowest.label, band.lowest.advice)
    return (
        lowest,
        *(
            ((step.start, step.inclusive), step.rating.status, step.rating.label, step.rating.advice)
            for step in band.steps
        ),
    )


def _recording_rules() -> Iterator[tuple[Key, object]]:
    for figure in FIGURES.values():
        windows = frozenset() if isinstance(figure.expression, Level) else frozenset({WINDOW})
        yield (
            ("recording.rules.yml", figure.record()),
            Derived(figure.expression, (*DEPLOYMENT_LABELS, *figure.by), windows),
        )
    for name in RECORDED_HISTOGRAMS:
        yield (
            ("histograms.rules.yml", record_buckets(name)),
            Derived(Rate(f"{name}_bucket"), DEPLOYMENT_LABELS, frozenset({WINDOW})),
        )
    file = "objectives.rules.yml"
    for objective in objectives_of().values():
        share, bad, count = (
            each(BASE_WINDOW) for each in (objective.record, objective.record_bad, objective.record_all)
        )
        yield (file, share), Derived(objective.bad, DEPLOYMENT_LABELS, frozenset({BASE_WINDOW}))
        yield (file, count), Derived(objective.all, DEPLOYMENT_LABELS, frozenset({BASE_WINDOW}))
        yield (file, bad), parse(f"{share} * {count}")
        for window in ("30m", "1h"):
            yield (file, objective.record(window)), Derived(objective.bad, DEPLOYMENT_LABELS, frozenset({window}))
        for window in ("2h", "6h", "1d", "3d"):
            yield (
                (file, objective.record(window)),
                parse(f"sum_over_time({bad}[{window}]) / (sum_over_time({count}[{window}]) > 0)"),
            )
    yield (file, record_ended("1h")), Derived(ENDED, DEPLOYMENT_LABELS, frozenset({"1h"}))
    for row in BURN_WINDOWS[1:]:
        # Evaluated every minute, each request is in five of them.
        ended = f"sum_over_time({objectives_of()['requests'].record_all(BASE_WINDOW)}[{row.long}]) / 5"
        yield (file, record_ended(row.long)), parse(ended)


# --- Alerts -----------------------------------------------------------------------------------------------------------


def _alert_rules() -> Iterator[tuple[Key, object]]:
    for alert in ALERTS.values():
        about = f"alert {alert.name}"
        # What is kept while its targets are not seen has no value then.
        kept = is_kept_unknown(alert)
        unseen = unknown(labels_of(alert.condition))
        numbers = [*_numbers(conditions_of(alert)), *([("*", -math.inf), *_numbers(unseen)] if kept else [])]
        read = {*_names(conditions_of(alert)), *(_names(unseen) if kept else ())}
        yield ("alerting.rules.yml", f"{about}, compared"), tuple(sorted(numbers))
        yield (
            ("alerting.rules.yml", f"{about}, reads"),
            tuple(sorted(read | ({"ALERTS"} if kept or alert.lasts else set()))),
        )
        yield ("alerting.rules.yml", f"{about}, labels"), tuple(sorted(alert.labels.items()))
        yield ("alerting.rules.yml", f"{about}, waits and keeps"), (alert.for_ or None, alert.keep_firing_for or None)


def _numbers(part: object) -> Iterator[tuple[str, float]]:
    match part:
        case Absent() | Always():
            yield "==", 1.0
        case Compare(left, operator, float(right)):
            yield operator, right
            yield from _numbers(left)
        case Scaled(inner, factor):
            yield "*", factor
            yield from _numbers(inner)
        case Shifted(inner, by):
            yield ("-" if by < 0 else "+"), abs(by)
            yield from _numbers(inner)
        case _:
            for each in _parts(part):
                yield from _numbers(each)


def _names(part: object) -> Iterator[str]:
    match part:
        case FigureRef(figure):
            yield FIGURES[figure].record()
        case SelfMetric(name) | Absent(name):
            yield name
        case AdHocExpression(expression):
            yield from leaves(expression)
        case BadRatio(objective, window):
            yield objective.record(window)
        case RequestsEnded(window):
            yield record_ended(window)
        case _:
            for each in _parts(part):
                yield from _names(each)


def _parts(part: object) -> Iterator[object]:
    if isinstance(part, tuple):
        yield from part
    elif is_dataclass(part) and not isinstance(part, AdHocExpression | BadRatio):
        for each in fields(part):
            yield getattr(part, each.name)


def numbers_of_the_catalog() -> dict[float, str]:
    """Every number that an alert may compare with, and its origin."""
    found = {0.0: "nothing at all", 1.0: "there is one"}
    for figure in FIGURES.values():
        for step in figure.band.steps if figure.band else ():
            found[step.start] = f"a step of {figure.name}"
    for name, bound in BOUNDS.items():
        found[bound.value] = name
    found[ALL_BAD] = "all requests are bad"
    for objective in objectives_of().values():
        for row in BURN_WINDOWS:
            found[round(row.factor * objective.budget, 12)] = f"{row.factor:g} times the budget of {objective.name}"
    return found


# --- Runbooks ---------------------------------------------------------------------------------------------------------


def _runbooks(files: Mapping[Key, object]) -> Iterator[tuple[Key, object]]:
    for alert in ALERTS.values():
        page = f"{alert.name}.md"
        yield (page, "says the rule's own expression"), True
        yield (page, "severity and wait"), (alert.severity, alert.for_ or None)
        for key in ((page, "numbers in prose"), ("alerting.rules.yml", f"description of {alert.name}, numbers")):
            said = files.get(key, frozenset())
            # A text may leave out numbers of its rule, but contains no other.
            yield key, frozenset(said) & _allowed_numbers(alert) if isinstance(said, frozenset) else frozenset()


def _allowed_numbers(alert: Alert) -> frozenset[str]:
    numbers = {abs(value) for _, value in _numbers(conditions_of(alert))}
    signed = {value for _, value in _numbers(conditions_of(alert))}
    # 0 is nothing, whatever the rule compares with.
    texts = {"0", *(f"{value:g}" for value in numbers | signed), *_durations(alert)}
    for objective in objectives_of().values():
        if objective.name.replace("_", "-") in alert.family:
            edges = objective.edges_seconds
            texts |= {f"{value:g}" for value in (objective.goal, objective.budget, *edges)} | {"30d"}
            rows = [row for row in BURN_WINDOWS if row.severity == alert.severity]
            texts |= {text for row in rows for text in (f"{row.factor:g}", row.short, row.long)}
    return frozenset(texts)


def _durations(alert: Alert) -> Iterator[str]:
    """The windows, the offsets and the wait of an alert, and a window with the wait after it."""
    windows = {WINDOW, *_windows(conditions_of(alert))}
    yield from (alert.for_, alert.keep_firing_for, *windows)
    yield from (format_duration(parse_duration(window) + parse_duration(alert.for_ or "0s")) for window in windows)


def _windows(part: object) -> Iterator[str]:
    if isinstance(part, str) and re.fullmatch(r"\d+[smhd]", part):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _windows(each)
    elif is_dataclass(part):
        for each in fields(part):
            yield from _windows(getattr(part, each.name))


def required_numbers(alert: Alert) -> frozenset[str]:
    """The numbers that an alert's texts must contain: the steps of its figure's band."""
    figure = FIGURES.get(alert.figure)
    edges = {step.start for step in figure.band.steps} if figure is not None and figure.band is not None else set()
    return frozenset(f"{abs(value):g}" for _, value in _numbers(conditions_of(alert)) if value in edges)


def objective_records() -> set[str]:
    """The recorded shares of bad requests over every window that alerts on budgets have."""
    return {
        objective.record(window)
        for objective in objectives_of().values()
        for row in BURN_WINDOWS
        for window in (row.short, row.long)
    }


# --- Panels -----------------------------------------------------------------------------------------------------------


def _panels(files: Mapping[Key, object]) -> Iterator[tuple[Key, object]]:
    figures = {figure.record(): figure for figure in FIGURES.values()}
    objectives = objective_records()
    numbers = _step_numbers()
    for key, said in files.items():
        kind, of, rest = key[1].partition(" of ")
        if not of or not key[0].endswith(".json"):
            continue
        record = rest.rpartition(", of ")[2]
        if kind == "numbers in steps":
            yield key, said & numbers if isinstance(said, frozenset) else said
        elif record not in figures and record not in objectives:
            yield key, f"nothing is recorded as {record}"
        elif kind == "unit":
            yield key, _unit(figures[record].unit) if record in figures else _unit("ratio")
        else:
            band = figures[record].band if record in figures else None
            # Colours without a band are those of an alert, whose numbers are looked at above.
            yield key, _steps_of(band) if band is not None else said


def _step_numbers() -> frozenset[float | None]:
    """What a colour may begin at: the base, the catalog's numbers, and the next ones above them."""
    edges = {edge for objective in objectives_of().values() for edge in objective.edges_seconds}
    known = {*numbers_of_the_catalog(), *(objective.goal for objective in objectives_of().values()), *edges}
    return frozenset({None, *known, *(-number for number in known), *map(_next_above, known)})


def _next_above(number: float) -> float:
    """Above 0 a number that a person can read: no rate or share of ours is smaller."""
    return math.nextafter(number, math.inf) if number else 1e-9


# A figure for tuning has colours a step below those of harm.
_QUIETER = {"good": "good", "warning": "quiet warning", "critical": "warning"}


def _unit(unit: str) -> str:
    return UNITS.get(unit, f"count:{unit}")


def _steps_of(band: Band) -> tuple[tuple[float | None, str], ...]:
    """The steps of a panel: the band's, where a start that belongs to the stretch below is the next number above it."""
    return (
        (None, _QUIETER[band.lowest.status]),
        *(
            (step.start if step.inclusive else _next_above(step.start), _QUIETER[step.rating.status])
            for step in band.steps
        ),
    )
