"""The alerts: what fires and what is about to, and the runbook of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from app import frame, selection
from app.data import alarms, silences
from app.data.alarms import Alarm
from app.data.silences import Known, Silence, SilenceReader
from app.elements import display, markup
from app.elements.markup import cell, element, grid, heading
from app.elements.plain import Markdown, escape, plain
from servescope.alerting.alerts import ALERTS
from servescope.console import ALERTMANAGERS_VARIABLE
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
        first = _first_alert(store)
        names = list(ALERTS) if first else ["", *ALERTS]
        chosen = selection.choose(
            notes, "alert", names, first, st.selectbox, label="Runbook of",
            format_func=lambda name: f"{name} ({_describe_severity(ALERTS[name].severity)})" if name else "no alert",
        )  # fmt: skip
        if chosen:
            draw_runbook(chosen)
    with shown:
        frame.repeat(lambda: draw_alarms(store))


def _first_alert(store: History) -> str:
    """The alert that matters most now, whose runbook is shown unless another is chosen; "" while none does."""
    found = alarms.needing_action(alarms.read_alarms(store))
    return next((each.name for each in found if each.state != "resolved" and each.name in ALERTS), "")


def draw_alarms(store: History) -> None:
    """How many fire that need action, then each with its labels, then the silences."""
    found = alarms.read_alarms(store)
    known = _read_silences()
    frame.describe("alerts as they were last evaluated", list_alarms(found), "alerts")
    urgent = alarms.needing_action(found)
    counts = Counter(each.state for each in urgent)
    worst = Counter(each.severity for each in urgent if each.state == "firing")
    st.html(
        markup.draw_tiles(
            [
                ("Firing", _count("firing", counts["firing"]), _describe_severities(worst)),
                ("Pending", _count("pending", counts["pending"]), "condition holds, not yet for long enough"),
                ("Resolved", _count("resolved", counts["resolved"]), "kept for 15 minutes"),
            ],
            "now",
        )
    )
    unevaluated = alarms.unevaluated(store)
    if unevaluated:
        st.warning(plain(unevaluated))
    elif alarms.are_quiet(urgent):
        st.info("No alert is firing or pending.")
    if found:
        st.html(draw_table(found, known.silences if known else (), selection.range_parameters()))
    if known is not None:
        draw_silences(known)


def _read_silences() -> Known | None:
    """The silences of the Alertmanagers that the console was started with; None without any."""
    path = os.environ.get(ALERTMANAGERS_VARIABLE)
    return _silence_reader(Path(path)).read() if path else None


@st.cache_resource(max_entries=1, show_spinner=False)
def _silence_reader(path: Path) -> SilenceReader:
    return silences.open_reader(path)


def draw_silences(known: Known) -> None:
    """What is silenced until when, by whom and why; a line for each Alertmanager that does not answer."""
    st.markdown("**Silences**")
    for problem in known.problems:
        st.caption(f"{plain(problem)}")
    if known.silences:
        st.html(draw_silence_table(known.silences))
    elif not known.problems:
        st.caption("Nothing is silenced.")


def draw_silence_table(found: Sequence[Silence]) -> str:
    """The silences, those that hold now first; each leads to its Alertmanager."""
    heads = [heading("Silenced until", "since"), heading("What", "alerts with these labels"), heading("Why", "who")]
    zone = selection.reader_zone()
    rows = []
    for each in found:
        until = display.format_time(each.ends_ms, zone)
        begins = "since" if each.state == "active" else "begins"
        what = ", ".join(map(str, each.matchers))
        cells = [
            cell(
                "Silenced until",
                element("a", escape(until), "name", href=each.link, target="_blank", rel="noopener noreferrer"),
                escape(f"{begins} {display.format_time(each.starts_ms, zone)}"),
            ),
            cell("What", element("code", escape(what))),
            cell("Why", escape(each.comment or display.ABSENT), escape(each.by)),
        ]
        rows.append(element("tr", "".join(cells)))
    return grid("silences", heads, rows)


def _count(state: str, count: int) -> str:
    sign, status = _LOOKS[state]
    return element("span", f"{sign} {count}" if count else "0", f"value {status}" if count else "value")


def _describe_severities(worst: Counter[str]) -> str:
    return " · ".join(f"{worst[severity]} {severity}" for severity in alarms.SEVERITIES if worst[severity]) or "none"


def draw_table(found: Sequence[Alarm], silenced: Sequence[Silence], parameters: dict[str, str]) -> str:
    """The alerts in the order given, each with a link to its runbook and its deployment; silenced ones are marked."""
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
            cell("State", f"{state} {_silenced(each, silenced)}", escape(display.format_time(each.since_ms, zone))),
            cell("Alert", name, escape(_describe_severity(each.severity))),
            cell("About", about or display.ABSENT, escape(rest)),
            cell("What it says", escape(each.text or display.ABSENT)),
        ]
        rows.append(element("tr", "".join(cells)))
    return grid("alarms", heads, rows)


def _silenced(alarm: Alarm, found: Sequence[Silence]) -> str:
    """A mark where a silence holds the notifications of an alert back."""
    if alarm.state == "resolved" or not any(each.holds_back(alarm) for each in found):
        return ""
    return element("span", "silenced", "chip")


def _state(alarm: Alarm) -> str:
    if alarm.severity == "none":
        return element("span", alarm.word, "chip")
    sign, status = _LOOKS[alarm.state]
    return element("span", f"{sign} {alarm.state}", f"value band {status}")


def _describe_severity(severity: str) -> str:
    return "needs no action" if severity == "none" else severity


def list_alarms(found: Sequence[Alarm]) -> pd.DataFrame:
    """The alerts for a file."""
    return pd.DataFrame(
        [
            {"alert": each.name, "state": each.word, "severity": each.severity, "since_ms": each.since_ms,
             "about": each.place, "text": each.text}
            for each in found
        ],
        columns=["alert", "state", "severity", "since_ms", "about", "text"],
    )  # fmt: skip


def draw_runbook(name: str) -> None:
    """The runbook of an alert, with its queries and its rule."""
    alert = ALERTS[name]
    with st.container(border=True):
        st.markdown(f"**{plain(alert.name)}** · {plain(_describe_severity(alert.severity))} · {plain(alert.component)}")
        st.markdown(Markdown(alert.summary))
        for section in alarms.sections_of(alert):
            st.markdown(f"**{Markdown(section.title)}**\n\n{Markdown(section.text)}")
            if section.query:
                st.code(section.query, language="promql", wrap_lines=True)


show()
