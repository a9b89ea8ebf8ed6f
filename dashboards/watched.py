"""Alert conditions: each is shown by a panel of its dashboard, with its threshold.

A panel with the alert's title gets the threshold; for other alerts a panel is made of the alert's expression, in a
row at the end of the dashboard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels import panels
from dashboards.panels.colors import NEUTRAL, STATUS_COLORS
from dashboards.panels.conditions import Compiler
from dashboards.panels.queries import Query, legend
from servescope.alerting.rules import records
from servescope.alerting.rules.evaluation import OPERATORS
from servescope.alerting.rules.links import causes_of, compared, panel_title
from servescope.contract.expressions import Expression, Level, Matchers, leaves
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.objectives import BURN_WINDOWS, ENDED
from servescope.contract.own_metrics import OWN_METRICS, OwnUnit
from servescope.contract.types import Status, Unit
from servescope.errors import UsageError

_STATUSES: Mapping[str, Status] = {"critical": "critical", "warning": "warning", "info": "warning"}
_WORST: Sequence[Status] = ("good", "warning", "critical")


def watch(make: Callable[[Options], Board]) -> Callable[[Options], Board]:
    """The dashboard of `make` with the alerts that link to it."""

    def made(options: Options) -> Board:
        board = make(options)
        compiler = Compiler(options, board.variables)
        by_title: dict[str, list[records.Alert]] = {}
        for alert in options.alerts().values():
            if alert.dashboard == board.name:
                for each in causes_of(alert).values() or (alert,):
                    by_title.setdefault(panel_title(each), []).append(each)
        own = {panel.title for row in board.rows for panel in row.panels}
        rows = tuple(
            replace(
                row, panels=tuple(_with_lines(panel, by_title.get(panel.title, ()), compiler) for panel in row.panels)
            )
            for row in board.rows
        )
        others = tuple(_panel(title, alerts, compiler) for title, alerts in by_title.items() if title not in own)
        return replace(board, rows=(*rows, panels.Row("Alert conditions", others, collapsed=True)) if others else rows)

    return made


def holding_panel(name: str, options: Options, *, unit: Unit, normal: str) -> panels.Panel:
    """An alert's condition with its values; empty while it does not hold."""
    alert = options.alerts()[name]
    return panels.Panel(
        title=panel_title(alert),
        kind="timeseries",
        queries=(Query(Compiler(options).condition(alert.condition), _legend(alert.condition, options)),),
        unit=panels.UNITS[unit],
        meaning=alert.runbook.meaning,
        normal=normal,
        first=f"{alert.runbook.diagnosis} {alert.runbook.mitigation}",
        no_data=panels.NoData("off", "the condition does not hold, or its series are not exposed"),
    )


def conditions_panel(
    name: str, options: Options, words: Sequence[str], *, title: str, beside: records.Condition, normal: str
) -> panels.Panel:
    """One more condition, then those that must all hold for an alert: a lane for each and deployment while it holds."""
    alert = options.alerts()[name]
    compiler = Compiler(options)
    parts = (beside, *alert.condition.conditions) if isinstance(alert.condition, records.All) else ()
    term = compared(beside)
    if len(parts) != len(words) or term is None:
        raise UsageError(f"{name} has {len(parts)} conditions, {len(words)} are described")
    return panels.Panel(
        title=title,
        kind="state-timeline",
        queries=tuple(
            Query(compiler.condition(part), f"{_legend(part, options)} {word}")
            for part, word in zip(parts, words, strict=True)
        ),
        unit=panels.UNITS[_unit(term)],
        meaning=f"{alert.runbook.meaning} A lane is filled while its condition holds; the alert fires when "
        f"{' and '.join(words[1:])} hold together.",
        normal=normal,
        first=f"{alert.runbook.diagnosis} {alert.runbook.mitigation}",
        no_data=panels.NoData(
            "off", "nothing happened in the window, or the engine reports neither replicas nor cache hits"
        ),
        states=MappingProxyType({panels.EVERY: ("holds", NEUTRAL)}),
        width=24,
    )


def _with_lines(panel: panels.Panel, alerts: Sequence[records.Alert], compiler: Compiler) -> panels.Panel:
    """A panel of the dashboard with the lines of the alerts that lead to it; a band has its own."""
    if not alerts or panel.kind in ("table", "state-timeline"):
        return panel
    lines = [query for query in _lines(alerts, compiler) if query.expression not in _expressions(panel)]
    # A number of another unit says nothing of what the panel shows.
    comparable = [alert for alert in alerts if _unit_of(alert) in ("", panel.unit)]
    return replace(
        panel,
        queries=(*panel.queries, *lines),
        overlay=(*panel.overlay, panels.LIMIT) if lines else panel.overlay,
        thresholds=_steps(comparable) if len(panel.thresholds) == 1 and comparable else panel.thresholds,
    )


def _unit_of(alert: records.Alert) -> str:
    """The unit of the numbers that an alert compares, "" without a comparison."""
    term = compared(alert.condition)
    return "" if term is None else panels.UNITS[_unit(term)]


def _expressions(panel: panels.Panel) -> set[str]:
    return {query.expression for query in panel.queries}


def _panel(title: str, alerts: Sequence[records.Alert], compiler: Compiler) -> panels.Panel:
    condition = alerts[0].condition
    term = compared(condition)
    if term is None:
        queries: tuple[Query, ...] = (Query(compiler.condition(condition), _legend(condition, compiler.options)),)
        unit, no_data = "none", _absence_of_all(condition)
    else:
        queries = tuple(_values(term, compiler))
        unit, no_data = panels.UNITS[_unit(term)], _absence(term)
    # Of hundreds of targets or of every group of rules nobody could distinguish the lines.
    is_many = term is not None and bool(_MANY & {*records.labels_of(term)})
    lowest = any(operator in ("<", "<=", "==") for alert in alerts for operator in edges(alert).values())
    if is_many:
        queries = tuple(_worst_lately(query, lowest=lowest) for query in queries)
    lines = tuple(_lines(alerts, compiler))
    thresholds = _steps(alerts)
    runbook = alerts[0].runbook
    names = " and ".join(f"`{alert.name}`" for alert in alerts)
    return panels.Panel(
        title=title,
        kind="timeseries",
        queries=(*queries, *lines),
        unit=unit,
        meaning=f"{runbook.meaning} {_WHICH.format('lowest' if lowest else 'highest')}" if is_many else runbook.meaning,
        normal=f"no alert is active; {names} {'fire' if len(alerts) > 1 else 'fires'} {_thresholds(alerts)}.",
        first=f"{runbook.diagnosis} {runbook.mitigation}",
        no_data=no_data,
        thresholds=thresholds,
        axis=_axis(unit, thresholds, term),
        overlay=(panels.LIMIT,) if lines else (),
        # The state is the alert's subject: its colour would be alarming while it is at 0.
        colors=MappingProxyType({}),
        ranked=("min" if lowest else "max") if is_many else "",
        width=12 if is_many else 8,
    )


_MANY: Final = frozenset({"replica", "rule_group"})
_WHICH: Final = f"The {panels.MOST_LINES} series with the {{}} values within the last hour shown."


def _worst_lately(query: Query, *, lowest: bool) -> Query:
    kept = panels.ranked_lately(panels.MOST_LINES, query.expression, lowest=lowest)
    # Without brackets: a term has operators that bind more tightly.
    return replace(query, expression=f"{query.expression} and {kept}")


# --- What is drawn ----------------------------------------------------------------------------------------------------


def _values(term: records.Term, compiler: Compiler) -> Iterator[Query]:
    """The series that alerts compare; for an objective its bad share over windows of pages and tickets."""
    if isinstance(term, records.BadRatio):
        for window in dict.fromkeys(
            (BURN_WINDOWS[0].short, BURN_WINDOWS[2].short, *(row.long for row in BURN_WINDOWS))
        ):
            share = compiler.term(records.BadRatio(term.objective, window))
            yield Query(share, f"{legend(compiler.options, *panels.WHO)} {window}")
    else:
        yield Query(compiler.term(term), _legend(term, compiler.options))


def _lines(alerts: Sequence[records.Alert], compiler: Compiler) -> Iterator[Query]:
    """The series that alerts compare with, where that is not a number."""
    seen: set[str] = set()
    for alert in alerts:
        for compare in _comparisons(alert.condition):
            if isinstance(compare.right, float) or compare.left != compared(alert.condition):
                continue
            expression = compiler.term(compare.right)
            if expression not in seen:
                seen.add(expression)
                yield Query(expression, f"{_legend(compare.right, compiler.options)} {panels.LIMIT}")


def _legend(value: records.Term | records.Condition, options: Options) -> str:
    labels = records.labels_of(value)
    if isinstance(value, records.SelfMetric) and not labels:
        return legend(options, "instance")
    settled = {"rollout_phase", *(("model_name",) if "deployment_id" in labels else ())}
    return legend(options, *(label for label in labels if label not in settled))


def _comparisons(condition: records.Condition) -> list[records.Compare]:
    """The comparisons that all or any of must hold."""
    return [each for each in records.decisive(condition) if isinstance(each, records.Compare)]


# --- Where it changes -------------------------------------------------------------------------------------------------


def edges(alert: records.Alert) -> dict[float, str]:
    """The numbers that an alert compares its panel's series with, each with the operator."""
    return {
        compare.right: compare.operator
        for compare in _comparisons(alert.condition)
        if isinstance(compare.right, float) and _is_shown(compare, alert)
    }


def _is_shown(compare: records.Compare, alert: records.Alert) -> bool:
    term = compared(alert.condition)
    if isinstance(term, records.BadRatio):
        return isinstance(compare.left, records.BadRatio) and compare.left.objective == term.objective
    return compare.left == term


def starts(edge: float, operator: str) -> tuple[float, ...]:
    """The values from which a comparison with `edge` has another result; Grafana's steps include their value."""
    following = panels.above(edge)
    return {"<": (edge,), ">=": (edge,), ">": (following,), "<=": (following,)}.get(operator, (edge, following))


def _steps(alerts: Sequence[records.Alert]) -> tuple[panels.Threshold, ...]:
    """The color of each value by the most severe alert that holds for it; none if no alert compares with a number."""
    found = sorted({
        start for alert in alerts for edge, operator in edges(alert).items() for start in starts(edge, operator)
    })  # fmt: skip
    if not found:
        return (panels.Threshold("text"),)
    return (
        panels.Threshold(STATUS_COLORS[_status(-math.inf, alerts)]),
        *(panels.Threshold(STATUS_COLORS[_status(start, alerts)], start) for start in found),
    )


def _status(value: float, alerts: Sequence[records.Alert]) -> Status:
    held = [_STATUSES[alert.severity] for alert in alerts if edges(alert) and _holds(value, alert)]
    return max(held, key=_WORST.index, default="good")


def _holds(value: float, alert: records.Alert) -> bool:
    """Whether the alert's condition can hold while the panel's series has this value."""

    def holds(part: records.Condition) -> bool:
        if not isinstance(part, records.Compare) or not isinstance(part.right, float) or not _is_shown(part, alert):
            return True
        return bool(OPERATORS[part.operator](value, part.right))

    return records.holds_by(_about_panel(alert), holds)


def _about_panel(alert: records.Alert) -> records.Condition:
    """The alert's condition without alternatives that compare nothing the panel shows: they hold at any value of it."""
    if not isinstance(alert.condition, records.Any):
        return alert.condition
    shown = [each for each in alert.condition.conditions if any(_is_shown(one, alert) for one in _comparisons(each))]
    return records.Any(tuple(shown))


def _thresholds(alerts: Sequence[records.Alert]) -> str:
    """The values at which the alerts fire, as a phrase."""
    words = {"<": "below", "<=": "at or below", ">": "above", ">=": "at or above", "==": "at", "!=": "unless at"}
    numbers = dict.fromkeys(f"{words[how]} {edge:g}" for alert in alerts for edge, how in edges(alert).items())
    across = any(
        not isinstance(compare.right, float) and compare.left == compared(alert.condition)
        for alert in alerts
        for compare in _comparisons(alert.condition)
    )
    texts = [" or ".join(numbers), "beyond the dashed line" if across else ""]
    return " and ".join(filter(None, texts)) or "while the panel shows a series"


# --- Units and emptiness ----------------------------------------------------------------------------------------------


_PER_SECOND: Mapping[Unit, Unit] = {
    "bytes": "bytes/s", "decisions": "decisions/s", "events": "events/s", "preemptions": "preemptions/s",
    "requests": "requests/s", "tokens": "tokens/s",
}  # fmt: skip


def _unit(term: records.Term) -> Unit | OwnUnit:
    match term:
        case records.FigureRef(figure, _):
            return FIGURES[figure].unit
        case records.SelfMetric(name, _, _, _):
            return OWN_METRICS[name].unit
        case records.AdHocExpression(Level(name, _, _)):
            return METRICS[name].unit
        case records.AdHocExpression(expression):
            names = leaves(expression)
            return _PER_SECOND[METRICS[SAMPLE_FAMILIES[names.pop()]].unit] if len(names) == 1 else "ratio"
        case records.Quotient(records.SelfMetric(name, _, _, _), _) if name.endswith("_sum"):
            return _unit(records.SelfMetric(name.removesuffix("_sum")))
        case records.BadRatio() | records.Budget() | records.Quotient():
            return "ratio"
        case records.RequestsEnded() | records.Product():
            return "requests"
        case records.OverTime("changes", _, _, _):
            return "events"
        case records.OverTime(_, shown, _, _) | records.Extreme(_, shown, _) | records.Total(shown):
            return _unit(shown)
        case records.Subquery(_, of):
            return _unit(of)
        case records.Count():
            return "alerts"
        case records.Scaled(inner, _) | records.Shifted(inner, _):
            return _unit(inner)


def _absence(term: records.Term) -> panels.NoData:
    match term:
        case (
            records.SelfMetric(name, _, _, _)
            | records.Quotient(records.SelfMetric(name, _, _, _), _)
            | records.Extreme(_, records.SelfMetric(name, _, _, _), _)
        ):
            return panels.absent_own(name)
        case records.Quotient(records.FigureRef() as numerator, _):
            declared = _absence(numerator)
            return panels.NoData(declared.absence, f"{declared.text}; or nothing happened in the window")
    expression, idle = _expression(term)
    declared = panels.absence(expression, idle=idle)
    wanted = {label: values[0] for label, values in _where(term) if len(values) == 1}
    if "inference_stack" in wanted:
        return panels.NoData("off", f"no deployment runs the stack {wanted['inference_stack']}; or {declared.text}")
    if wanted and not idle:
        return panels.NoData(declared.absence, f"{declared.text}; or nothing happened in the window")
    return declared


def _absence_of_all(condition: records.Condition) -> panels.NoData:
    """Why a condition without a comparison can have no series: usually because all is well."""
    off = [_absence(term) for term in records.terms(condition) if isinstance(term, records.FigureRef)]
    reasons = dict.fromkeys(each.text for each in off if each.absence == "off")
    return panels.NoData("off" if reasons else "idle", "; or ".join(["nothing happened in the window", *reasons]))


def _where(term: records.Term) -> Matchers:
    match term:
        case records.FigureRef(_, where) | records.OverTime(_, records.FigureRef(_, where), _, _):
            return where
        case _:
            return ()


def _expression(term: records.Term) -> tuple[Expression, bool]:
    """What a term is made of, and whether it is absent without traffic."""
    match term:
        case records.FigureRef(figure, _):
            return FIGURES[figure].expression, FIGURES[figure].idle == "absent"
        case records.AdHocExpression(expression):
            return expression, False
        case records.BadRatio(objective, _) | records.Budget(objective, _):
            return objective.bad, True
        case records.OverTime(_, shown, _, _) | records.Extreme(_, shown, _) | records.Total(shown):
            return _expression(shown)
        case records.Subquery(_, of):
            return _expression(of)
        case records.Quotient(numerator, _):
            return _expression(numerator)[0], True
        case records.RequestsEnded():
            return ENDED, False
        case records.Product(_, inner) | records.Scaled(inner, _) | records.Shifted(inner, _):
            return _expression(inner)
        case _:
            raise TypeError(term)


_LOWEST_SHARE, _MIDDLE_SHARE = 1e-6, 0.5


def _axis(unit: str, thresholds: Sequence[panels.Threshold], term: records.Term | None) -> tuple[float, float] | None:
    """Shares from 0 to 1; with a highest step near 0 only up to twice that step, so that it is visible."""
    if unit.startswith("count:"):
        return 0.0, 1.0
    if unit != panels.UNITS["ratio"]:
        return None
    if isinstance(term, records.FigureRef) and term.figure in panels.HARM_FIGURES:
        return panels.HARM_AXIS
    highest = max((each.value for each in thresholds if each.value is not None), default=1.0)
    return (0.0, 2 * highest) if _LOWEST_SHARE < highest < _MIDDLE_SHARE else (0.0, 1.0)
