"""The decisions: who decided what, when, why and on which evidence; and the form for the next one.

The console records them and never moves traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

import streamlit as st

from app import access, frame, selection
from app.access import PageReader
from app.cutovers import cutovers, journals
from app.cutovers.cutovers import Missing
from app.cutovers.timeline import DECISION_WORDS
from app.elements import display
from app.elements.plain import plain
from servescope.cutover.evidence.evidence import Decision, DecisionKind
from servescope.errors import ServescopeError
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import CutoverRun, next_stage, write_decision
from servescope.store.history import History

_KINDS: Final[Mapping[DecisionKind, str]] = {
    "advance": "Advance to the next stage",
    "hold": "Hold at this stage",
    "rollback": "Roll back, which ends the run",
    "acknowledge": "Acknowledge the proven harm",
    "exclude": "Exclude a time span from the judgement",
}
_WRITTEN = "decision_written"


def show() -> None:
    """The page."""
    selection.adopt_link()
    st.subheader("Decisions", anchor=False)
    store = frame.open_store()
    try:
        run = cutovers.current_run()
    except ServescopeError as error:
        frame.show_error(error)
        return
    if isinstance(run, Missing):
        cutovers.explain_missing(run)
        return
    form, log = st.columns([2, 3], gap="large")
    with form:
        draw_form(store, run, access.current_reader())
    with log:
        frame.repeat(draw_log)


# --- The next decision ------------------------------------------------------------------------------------------------


def draw_form(store: History, run: CutoverRun, reader: PageReader) -> None:
    """The form of a decision."""
    written = st.session_state.pop(_WRITTEN, None)
    if written:
        st.success(plain(written))
    if run.ended:
        st.info(plain(f"{cutovers.describe_end(run)} Start another on the Plan page."))
        return
    if not reader.decides:
        st.info(plain(reader.why_not))
        return
    kinds = [kind for kind in _KINDS if kind != "advance" or run.stage + 1 < len(run.frozen.plan.stages)]
    kind = st.selectbox("Decision", kinds, format_func=lambda kind: _describe_kind(kind, run))
    by = reader.name or st.text_input("By", key="decided_by", placeholder="your name")
    if "advance" not in kinds:
        st.caption("This is the plan's last stage: there is none to advance to.")
    if reader.name:
        st.caption(f"as {plain(reader.name)}")
    reason = st.text_area("Reason", key="decided_reason", placeholder="one sentence for the change record", height=80)
    span = _choose_span() if kind == "exclude" else (None, None)
    force = kind == "exclude" and st.checkbox("Although harm was proven since it began", key="excluded_by_force")
    st.caption(
        "The journal keeps it together with the judgement of this moment, and it cannot be changed later. "
        "The console never moves traffic: change the share where your traffic is configured."
    )
    if st.button("Record the decision", type="primary"):
        _write(store, run, Decision(kind, selection.now_ms(), by.strip(), reason.strip(), None, *span), force=force)


def _describe_kind(kind: DecisionKind, run: CutoverRun) -> str:
    if kind != "advance":
        return _KINDS[kind]
    stage = next_stage(run)
    share = display.format_planned(run.frozen.plan.stages[stage].share)
    return f"Advance to stage {stage + 1} of {len(run.frozen.plan.stages)}, {share} on v2"


def _choose_span() -> tuple[int | None, int | None]:
    zone = selection.reader_zone()
    now = datetime.fromtimestamp(selection.now_ms() / 1000, zone).replace(tzinfo=None, second=0, microsecond=0)
    begin, end = st.columns(2)
    ends = (
        begin.datetime_input(plain(f"From ({zone})"), value=now, key="excluded_from", step=60),
        end.datetime_input(plain(f"To ({zone})"), value=now, key="excluded_to", step=60),
    )
    first, last = (round(each.replace(tzinfo=zone).timestamp() * 1000) for each in ends)
    return first, last


def _write(store: History, run: CutoverRun, decision: Decision, *, force: bool) -> None:
    """Append it to the journal, with the judgement that stands now; an error is shown and nothing is written."""
    path = cutovers.journal_path()
    if path is None:
        return
    try:
        evidence, changes = cutovers.judge_now(store, run)
        if decision.kind == "advance":
            decision = replace(decision, stage=next_stage(run))
        with CutoverJournal(path) as journal:
            write_decision(journal, run, decision, evidence, changes=changes, force=force)
    except ServescopeError as error:
        st.error(plain(error))
        return
    st.session_state[_WRITTEN] = f"Recorded: {decision.by} {DECISION_WORDS[decision.kind]}."
    st.rerun()


# --- What was decided -------------------------------------------------------------------------------------------------


def draw_log() -> None:
    """Every decision of the plan's runs, the newest first, each with its evidence."""
    plan = cutovers.read_plan()
    runs = [] if isinstance(plan, Missing) else cutovers.read_runs(plan.name)
    rows = [(run, entry) for run in reversed(runs) for entry in reversed(run.entries) if entry.kind != "judgement"]
    frame.describe(
        f"decisions of {len(runs)} run{'s' * (len(runs) != 1)}", journals.list_decisions(rows), "decisions",
        document=lambda: journals.export_runs(runs),
    )  # fmt: skip
    st.html(journals.draw_decisions(rows, selection.reader_zone()))
    if rows:
        last = runs[-1].entries[-1].hash[:16]
        st.caption(
            f"Each entry contains the hash of the one before it; the last is {plain(last)}…. "
            "`servescope judge verify` checks the whole chain."
        )


show()
