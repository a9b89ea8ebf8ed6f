"""The alerts: what fires and what is about to, and the runbook of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

import pandas as pd
import streamlit as st

from app import alarms, display, frame, markup, selection
from app.alarms import Alarm
from app.markup import cell, element, grid, heading
from servescope.alerting.alerts import ALERTS
from servescope.store.history import History

_LOOKS = {"firing": ("▲", "critical"), "pending": ("◷", "warning"), "resolved": ("✓", "good")}


def show() -> None:
    """The page."""
    selection.adopt_link()
    notes = st.container()
    st.subheader("Alerts", anchor=False)
    store = frame.open_store()
    shown, book = st.columns([3, 2], gap="large")
    with book:
        chosen = selection.choose(
            notes, "alert", list(ALERTS), _first_alert(store), st.selectbox, label="Runbook of",
            format_func=lambda name: f"{name} ({_describe_severity(ALERTS[name].severity)})",
        )  # fmt: skip
        draw_runbook(chosen)
    with shown:
        frame.repeat(lambda: draw_alarms(store))


def _first_alert(store: History) -> str:
    """The alert that matters most now, whose runbook is shown unless another is chosen."""
    found = alarms.needing_action(alarms.read_alarms(store, selection.now_ms()))
    return next((each.name for each in found if each.name in ALERTS), next(iter(ALERTS)))


def draw_alarms(store: History) -> None:
    """How many fire that need action, then each with its labels."""
    found = alarms.read_alarms(store, selection.now_ms())
    frame.describe("alerts as they were last evaluated", list_alarms(found), "alerts")
    urgent = alarms.needing_action(found)
    counts = Counter(each.state for each in urgent)
    worst = Counter(each.severity for each in urgent if each.state == "firing")
    st.html(
        markup.draw_tiles(
            [
                ("Firing", _count("firing", counts["firing"]), _describe_severities(worst)),
                ("Pending", _count("pending", counts["pending"]), "condition holds, not yet for long enough"),
                ("Resolved", _count("resolved", counts["resolved"]), "lately"),
            ]
        )
    )
    if not urgent:
        st.info("No alert is firing or pending.", icon=":material/notifications_off:")
    if found:
        st.html(draw_table(found, selection.range_parameters()))


def _count(state: str, count: int) -> str:
    sign, status = _LOOKS[state]
    return element("span", f"{sign} {count}" if count else "0", f"value {status}" if count else "value")


def _describe_severities(worst: Counter[str]) -> str:
    return " · ".join(f"{worst[severity]} {severity}" for severity in alarms.SEVERITIES if worst[severity]) or "none"


def draw_table(found: Sequence[Alarm], parameters: dict[str, str]) -> str:
    """The alerts in the order given, each with a link to its runbook and its deployment."""
    heads = [heading("State", "since"), heading("Alert", "severity"), heading("About"), heading("What it says")]
    zone = selection.reader_zone()
    rows = []
    for each in found:
        state = _state(each)
        deployment = each.labels.get("deployment_id", "")
        about = markup.link("deployment", deployment, {**parameters, "deployment": deployment}) if deployment else ""
        rest = each.place.removeprefix(deployment).removeprefix(" · ")
        name = markup.link("alerts", each.name, {"alert": each.name}, "name") if each.name in ALERTS else each.name
        cells = [
            cell("State", state, escape(display.format_time(each.since_ms, zone))),
            cell("Alert", name, escape(_describe_severity(each.severity))),
            cell("About", about or display.ABSENT, escape(rest)),
            cell("What it says", escape(each.text or display.ABSENT)),
        ]
        rows.append(element("tr", "".join(cells)))
    return grid("alarms", heads, rows)


def _state(alarm: Alarm) -> str:
    if alarm.severity == "none":
        return element("span", alarm.state, "chip")
    sign, status = _LOOKS[alarm.state]
    return element("span", f"{sign} {alarm.state}", f"value band {status}")


def _describe_severity(severity: str) -> str:
    return "needs no action" if severity == "none" else severity


def list_alarms(found: Sequence[Alarm]) -> pd.DataFrame:
    """The alerts for a file."""
    return pd.DataFrame(
        [
            {"alert": each.name, "state": each.state, "severity": each.severity, "since_ms": each.since_ms,
             "about": each.place, "text": each.text}
            for each in found
        ],
        columns=["alert", "state", "severity", "since_ms", "about", "text"],
    )  # fmt: skip


def draw_runbook(name: str) -> None:
    """The runbook of an alert, with its queries and its rule."""
    alert = ALERTS[name]
    with st.container(border=True):
        st.markdown(f"**{alert.name}** · {_describe_severity(alert.severity)} · {alert.component}")
        st.markdown(alert.summary)
        for section in alarms.sections_of(alert):
            st.markdown(f"**{section.title}**\n\n{section.text}")
            if section.query:
                st.code(section.query, language="promql", wrap_lines=True)


show()
