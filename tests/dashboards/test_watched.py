"""Every alert is shown: by a panel of its dashboard, with its own expression and the numbers it compares with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from dashboards.options import DEFAULTS
from dashboards.panels.conditions import Compiler
from dashboards.panels.panels import LIMIT
from dashboards.panels.panels import above as following
from dashboards.panels.queries import CUSTOMERS_VARIABLES, HEALTH_VARIABLES, SCOPE
from dashboards.watched import edges, starts
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.links import CUSTOMERS, HEALTH, compared, panel_title
from servescope.alerting.rules.records import Alert, BadRatio, Compare, Condition, FigureRef, Term
from servescope.contract.figures import FIGURES
from tests.support.boards import NAMES, panels, read_board

each_alert = pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)


def shown(alert: Alert) -> Any:
    """The panel that an alert leads to."""
    (panel,) = [each for each in panels(read_board(alert.dashboard)) if each["title"] == panel_title(alert)]
    return panel


@each_alert
def test_the_panel_asks_what_the_alert_asks(alert: Alert) -> None:
    """What the alert compares is drawn over the same series and windows, and so is what it is compared with."""
    asked = [target["expr"] for target in shown(alert)["targets"]]
    term = compared(alert.condition)
    own_variables = {HEALTH: HEALTH_VARIABLES, CUSTOMERS: CUSTOMERS_VARIABLES}
    compiler = Compiler(DEFAULTS, own_variables.get(alert.dashboard, SCOPE))

    if alert.panel or term is None:
        return
    if shown(alert)["type"] == "state-timeline":
        # Every condition is a lane of its own.
        assert asked == [compiler.condition(each) for each in alert.condition.conditions]  # type: ignore[union-attr]
        return
    # A floor of traffic may come after it.
    assert any(each.startswith(compiler.term(term)) for each in asked)
    for right in _others(alert.condition, term):
        (target,) = [each for each in shown(alert)["targets"] if each["expr"] == compiler.term(right)]
        assert target["legendFormat"].endswith(f" {LIMIT}")


def _others(condition: Condition, term: Term) -> Iterator[Term]:
    """The terms, not numbers, that a condition compares its own with."""
    if isinstance(condition, Compare):
        if condition.left == term and not isinstance(condition.right, float):
            yield condition.right
        return
    for each in getattr(condition, "conditions", ()) or (getattr(condition, "condition", None),):
        if each is not None:
            yield from _others(each, term)


@each_alert
def test_the_panel_shows_the_number_the_alert_compares_with(alert: Alert) -> None:
    """A step begins there: at the number itself where it belongs to what is above it, right behind it elsewhere."""
    steps = [step["value"] for step in shown(alert)["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    if alert.panel:
        return

    for edge, operator in edges(alert).items():
        assert set(starts(edge, operator)) <= set(steps), (edge, operator, steps)


@each_alert
def test_the_colour_is_the_alert_s(alert: Alert) -> None:
    """Beside each number, the side on which the alert holds is not green, and of a page it is red."""
    steps = shown(alert)["fieldConfig"]["defaults"]["thresholds"]["steps"]
    if alert.panel or not edges(alert):
        return
    bad = {"critical": {"red"}, "warning": {"red", "orange"}, "info": {"red", "orange", "yellow"}}[alert.severity]
    for edge, operator in edges(alert).items():
        below, above = math.nextafter(edge, -math.inf), following(edge)
        holds = {"<": below, "<=": edge, ">": above, ">=": edge, "==": edge}[operator]
        if _is_banded(alert):
            bad = {*bad, "yellow"}
        assert _color(steps, holds) in bad or isinstance(compared(alert.condition), BadRatio), (edge, operator, steps)
        if len(edges(alert)) == 1 and not _shares_its_panel(alert):
            well = {"<": edge, "<=": above, ">": edge, ">=": below, "==": above}[operator]
            assert _color(steps, well) == "green", (edge, operator, steps)


def _color(steps: Any, value: float) -> str:
    color: str = [step["color"] for step in steps if step["value"] is None or step["value"] <= value][-1]
    return color


def _shares_its_panel(alert: Alert) -> bool:
    """Whether other alerts, or a band, have a say in the panel's colours."""
    same = [each for each in ALERTS.values() if panel_title(each) == panel_title(alert)]
    return _is_banded(alert) or len(same) > 1


def _is_banded(alert: Alert) -> bool:
    """Whether the panel has the colours of a band, which are quieter."""
    term = compared(alert.condition)
    return isinstance(term, FigureRef) and FIGURES[term.figure].band is not None


PARTS_OF_AN_ALERTS_SHARE = {
    ("fleet", "Harm in total"),
    ("requests", "Failed or rejected by replica"),
    ("cutover", "Failed requests by stack"),
}
"""The share that an objective's alerts compare, over all deployments, of a stack or at one replica."""


def test_every_red_has_an_alert() -> None:
    """A panel that can turn red is one that an alert leads to, or shows the figure of one."""
    led_to = {(alert.dashboard, panel_title(alert)) for alert in ALERTS.values()}
    figures = {
        FIGURES[term.figure].record()
        for alert in ALERTS.values()
        for term in (compared(alert.condition),)
        if isinstance(term, FigureRef)
    }
    figures |= {
        term.objective.record("5m")
        for alert in ALERTS.values()
        for term in (compared(alert.condition),)
        if isinstance(term, BadRatio)
    }
    unexplained = {
        (name, panel["title"])
        for name in NAMES
        for panel in panels(read_board(name))
        if "red" in str(panel["fieldConfig"].get("defaults", {}).get("thresholds")) + _column_colors(panel)
        and (name, panel["title"]) not in {*led_to, *PARTS_OF_AN_ALERTS_SHARE}
        and not any(figure in target["expr"] for figure in figures for target in panel["targets"])
    }

    assert not unexplained


def _column_colors(panel: Any) -> str:
    return str([
        each["value"] for over in panel["fieldConfig"].get("overrides", ()) for each in over["properties"]
        if each["id"] == "thresholds"
    ])  # fmt: skip


def test_panels_made_for_alerts_stand_last() -> None:
    """In a row of their own, and no panel twice."""
    for name in NAMES:
        board = read_board(name)
        rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
        assert rows.count("Alert conditions") <= 1
        assert "Alert conditions" not in rows[:-1]
