"""What the conditions of alerts read, found in them once: which figures, how far back, which counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from servescope.alerting.rules import records
from servescope.alerting.rules.evaluation import duration_ms
from servescope.collector.figures.derive import ExtraExpression
from servescope.contract.expressions import Increase, Level, Rate
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.own_metrics import FOREIGN_SERIES
from servescope.contract.types import Objective
from servescope.errors import UsageError
from servescope.increments.extrapolation import LOOKBACK_MS


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the conditions of some alerts read; spans are in milliseconds.

    `figures` are read by name, `pasts` over a span of time. `measured` and `badness` name the expressions of `asked`,
    which are derived beside the figures. `budgets` are the windows of objectives that are longer than scrapes are kept,
    and of the requests that ended. `own` are the collector's own series with how long ago they are read, `counters`
    those whose increase is read. `lately` are the terms that are sampled now and then, for their maximum or minimum
    over a past window.
    """

    figures: frozenset[str]
    pasts: Mapping[records.FigureRef, int]
    asked: tuple[ExtraExpression, ...]
    measured: Mapping[records.AdHocExpression, str]
    badness: Mapping[records.BadRatio, str]
    budgets: Mapping[records.BadRatio | records.RequestsEnded, int]
    own: Mapping[str, int]
    counters: Mapping[str, int]
    lately: tuple[records.Subquery, ...]


def requirements_of(alerts: Iterable[records.Alert], window_ms: int) -> Requirements:
    """The requirements of these alerts, for figures over `window_ms`."""
    return _requirements_of(tuple(alerts), window_ms)


@lru_cache(8)
def _requirements_of(alerts: tuple[records.Alert, ...], window_ms: int) -> Requirements:
    conditions = [condition for alert in alerts for condition in records.conditions_of(alert)]
    found = [term for condition in conditions for term in records.terms(condition)]
    pasts: dict[records.FigureRef, int] = {}
    own: dict[str, int] = {}
    counters: dict[str, int] = {}
    for term in found:
        match term:
            case records.OverTime(_, shown, window, before):
                _raise_to(pasts, shown, duration_ms(window) + duration_ms(before))
            case records.SelfMetric(name, _, _, increase_over) if name not in FOREIGN_SERIES:
                _raise_to(counters if increase_over else own, name, duration_ms(increase_over))
    for listed in (alert.lists for alert in alerts if alert.lists):
        _raise_to(own, listed.name, 0)
    for part in (each for condition in conditions for each in records.within(condition)):
        if isinstance(part, records.Disappeared) and part.own.name not in FOREIGN_SERIES:
            _raise_to(own, part.own.name, duration_ms(part.before))
    measured = {term: f"measured {number}" for number, term in enumerate(_each(found, records.AdHocExpression))}
    badness = {term: duration_ms(term.window) for term in _each(found, records.BadRatio)}
    held_ms = max(window_ms, LOOKBACK_MS)
    short = {
        term: f"{term.objective.name} over {term.window}" for term, span_ms in badness.items() if span_ms <= held_ms
    }
    for term in measured:
        _check_adds_up(term)
    asked = [ExtraExpression(name, term.expression, term.by) for term, name in measured.items()]
    asked += [
        ExtraExpression(asked_name(name, each), each.bad, (), badness[term])
        for term, name in short.items()
        for each in variants(term.objective)
    ]
    return Requirements(
        frozenset(term.figure for term in found if isinstance(term, records.FigureRef)),
        MappingProxyType(pasts),
        tuple(asked),
        MappingProxyType(measured),
        MappingProxyType(short),
        MappingProxyType(
            {term: span_ms for term, span_ms in badness.items() if term not in short}
            | {term: duration_ms(term.window) for term in _each(found, records.RequestsEnded)}
        ),
        MappingProxyType(own),
        MappingProxyType(counters),
        tuple(_each(found, records.Subquery)),
    )


def objectives_of(requirements: Requirements) -> tuple[Objective, ...]:
    """The objectives that are read over windows longer than scrapes are kept, with their variants."""
    read = [term.objective for term in requirements.budgets if isinstance(term, records.BadRatio)]
    return tuple(dict.fromkeys(each for objective in read for each in variants(objective)))


def variants(objective: Objective) -> tuple[Objective, ...]:
    """An objective, and what some deployments are promised instead."""
    return (objective, *objective.others)


def asked_name(name: str, variant: Objective) -> str:
    """The name of the expression of one variant of a bad share."""
    return f"{name} {variant.where}" if variant.where else name


def _check_adds_up(term: records.AdHocExpression) -> None:
    """Only sums can be added up over several deployments."""
    adds_up = isinstance(term.expression, Rate | Increase) or (
        isinstance(term.expression, Level) and term.expression.over == "sum"
    )
    if set(term.level) != set(DEPLOYMENT_LABELS) and not adds_up:
        raise UsageError(f"{term.expression} over {', '.join(term.level)}: expected a rate, an increase or a sum")


_Kind = TypeVar("_Kind")
_Key = TypeVar("_Key")


def _each(found: Iterable[object], kind: type[_Kind]) -> list[_Kind]:
    return list(dict.fromkeys(term for term in found if isinstance(term, kind)))


def _raise_to(spans: dict[_Key, int], key: _Key, span_ms: int) -> None:
    spans[key] = max(spans.get(key, 0), span_ms)
