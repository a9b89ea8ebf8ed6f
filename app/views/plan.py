"""The plan: edited and checked as the judge reads it, frozen at the start of a run, with the runs so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import streamlit as st

from app import access, frame, selection
from app.access import PageReader
from app.cutovers import cutovers, journals, plans
from app.cutovers.cutovers import Missing
from app.cutovers.journals import JudgedRun
from app.data import queries
from app.data.queries import Shown
from app.elements.plain import plain, visible
from servescope.cutover.forecast.duration import StageForecast, forecast_stages
from servescope.cutover.plan.files import check_arms
from servescope.cutover.plan.plan import CutoverPlan
from servescope.errors import ServescopeError
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.case import freeze_plan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import start_run
from servescope.judge.reading import read_evidence
from servescope.store.embedded import Store
from servescope.store.history import History
from servescope.store.prometheus.history import PrometheusHistory

_TEXT: Final = "plan_text"
_DONE: Final = "plan_done"
_FORECAST: Final = "plan_forecast"
_STARTED: Final = "plan_started"


def show() -> None:
    """The page."""
    selection.adopt_link()
    st.subheader("Plan", anchor=False)
    store = frame.open_store()
    known = list(queries.list_deployments(store).values())
    reader = access.current_reader()
    written, read = st.columns([1, 1], gap="large")
    with written:
        text = draw_editor(known, reader)
    with read:
        plan = draw_check(store, text)
    selection.publish_link()
    if plan is not None:
        st.subheader("Stages", anchor=False)
        st.html(plans.draw_stages(plan))
        draw_forecast(store, plan)
        draw_start(store, plan, text, reader)
    draw_runs(store)


# --- The text ---------------------------------------------------------------------------------------------------------


def draw_editor(known: Sequence[Shown], reader: PageReader) -> str:
    """The plan's text, as it is in the file at first; without a file the least plan for what is observed here."""
    path = cutovers.plan_path()
    if _TEXT not in st.session_state:
        st.session_state[_TEXT] = _read_file(path) or plans.propose_plan(known)
    where = path.name if path else "not saved: start the console with --plan FILE"
    text: str = st.text_area(plain(f"Plan ({where})"), key=_TEXT, height=420, help=plain(path) if path else None)
    done = st.session_state.pop(_DONE, None)
    if done:
        st.success(plain(done))
    with st.container(horizontal=True):
        st.button("Check", help="runs by itself when you leave the text")
        saved = path is not None and text == _read_file(path)
        if path is not None and reader.decides and not saved and st.button("Save"):
            _save(path, text)
        st.download_button(
            "TOML", data=text, file_name=path.name if path else "plan.toml", mime="application/toml",
            on_click="ignore", type="tertiary",
        )  # fmt: skip
    if not reader.decides:
        st.caption(plain(reader.why_not))
    return text


def _read_file(path: Path | None) -> str:
    """The text of the file; empty where there is none."""
    if path is None or not path.exists():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        st.error(plain(f"cannot read plan {str(path)!r}: {error}"))
        return ""


def _save(path: Path, text: str) -> None:
    """Write the file, whole or not at all; a text that is no plan is not written."""
    try:
        cutovers.parse_text(text, path.name)
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except (OSError, ServescopeError) as error:
        st.error(plain(error))
        return
    st.session_state[_DONE] = f"Saved to {path}."
    st.rerun()


# --- What the text means ----------------------------------------------------------------------------------------------


def draw_check(store: History, text: str) -> CutoverPlan | None:
    """The parser's own error, or what the plan says; whether its arms select what is observed."""
    frame.name_unseen(text)
    path = cutovers.plan_path()
    try:
        plan = cutovers.parse_text(text, path.name if path else "plan")
    except ServescopeError as error:
        st.error(plain(error))
        return None
    try:
        check_arms(plan, [target.identity for target in store.targets()])
    except ServescopeError as error:
        st.warning(plain(error))
    else:
        st.success(plain(f"The plan {plan.name!r} can be judged: both of its arms are observed here."))
    st.html(plans.draw_metrics(plan))
    return plan


# --- How long it takes ------------------------------------------------------------------------------------------------


def draw_forecast(store: History, plan: CutoverPlan) -> None:
    """How long each stage needs to settle each metric, from v1's own past; computed when it is asked for."""
    if st.button("How long would each stage take?"):
        st.session_state[_FORECAST] = plan.hash()
    if st.session_state.get(_FORECAST) != plan.hash():
        return
    try:
        with st.status("Reading v1's past", expanded=True) as status:
            status.write(f"{plan.calibration_hours:g} hours of what v1 did, and how it varied")
            stages = _forecast(store, plan.hash(), plan, selection.now_ms() // BLOCK_MS * BLOCK_MS)
            status.update(label="Forecast from v1's own noise and traffic", state="complete", expanded=False)
    except ServescopeError as error:
        st.info(plain(error))
        return
    st.html(plans.draw_forecast(stages))
    st.caption(
        "First line: the time after which half of all cutovers to a v2 that equals v1 are settled. Second line: the "
        "smallest harm that half of them find within a day."
    )


@st.cache_resource(max_entries=4, show_spinner=False, hash_funcs={Store: id, PrometheusHistory: id})
def _forecast(store: History, plan_hash: str, _plan: CutoverPlan, at_ms: int) -> tuple[StageForecast, ...]:
    frozen = freeze_plan(store, _plan, at_ms)
    evidence = read_evidence(store, _plan, at_ms - round(_plan.calibration_hours * 3_600_000), at_ms)
    return forecast_stages(frozen, evidence)


# --- The start --------------------------------------------------------------------------------------------------------


def draw_start(store: History, plan: CutoverPlan, text: str, reader: PageReader) -> None:
    """What freezes the plan as it is saved and opens a run of it; a run that is under way is ended by that."""
    path, journal = cutovers.plan_path(), cutovers.journal_path()
    if path is None or journal is None or not reader.decides:
        return
    if text != _read_file(path):
        st.caption("Save the plan to start a run of it.")
        return
    started = st.session_state.pop(_STARTED, None)
    if started:
        st.success(plain(started))
    runs = cutovers.read_runs(plan.name)
    under_way = bool(runs) and not runs[-1].ended
    with st.expander("Start a run of this plan"):
        st.markdown(
            "Starting measures v1's noise from its past, freezes it with the plan under one hash, and opens a run. "
            "A frozen plan cannot be edited: a changed plan needs a new run."
        )
        by = reader.name or st.text_input("By", key="started_by", placeholder="your name")
        reason = st.text_input("Reason", key="started_reason", placeholder="one sentence for the change record")
        replace = under_way and st.checkbox(f"End run {runs[-1].number:d}, which is under way", key="started_replace")
        if st.button("Freeze and start", type="primary"):
            _start(store, plan, by.strip(), reason.strip(), replace=replace)


def _start(store: History, plan: CutoverPlan, by: str, reason: str, *, replace: bool) -> None:
    journal_path = cutovers.journal_path()
    if journal_path is None:
        return
    if not by or not reason:
        st.error("Enter who starts the run, and why.")
        return
    try:
        with st.status("Freezing the plan", expanded=True) as status:
            status.write(f"reading {plan.calibration_hours:g} hours of v1's past")
            frozen = freeze_plan(store, plan, selection.now_ms())
            status.write("adding the run to the journal")
            with CutoverJournal(journal_path) as journal:
                run = start_run(journal, frozen, by=by, reason=reason, replace=replace)
    except ServescopeError as error:
        st.error(plain(error))
        return
    st.session_state[_STARTED] = (
        f"Run {run.number} has started with stage 1 of {len(plan.stages)}; hash {frozen.hash()[:16]}…"
    )
    st.rerun()


# --- The runs ---------------------------------------------------------------------------------------------------------


def draw_runs(store: History) -> None:
    """Every run in the journal, the newest first; a rollback and a second attempt are runs of their own."""
    st.subheader("Runs", anchor=False)
    if cutovers.journal_path() is None:
        st.info("No journal is configured, so no run is kept.")
        st.code(
            f"servescope console --plan {visible(cutovers.plan_path() or 'PLAN.toml')} --journal JOURNAL.db",
            language="shell",
        )
        return
    try:
        runs = cutovers.read_runs()
    except ServescopeError as error:
        frame.show_error(error)
        return
    if not runs:
        st.info("No run was started yet.")
        return
    st.html(journals.draw_runs(runs, selection.reader_zone(), _judge_last(store)))
    frame.describe("the runs in the journal", journals.list_runs(runs), "runs", every=None)


def _judge_last(store: History) -> JudgedRun | None:
    """The verdict now on the run that this console shows; None without one, or where it cannot be judged."""
    try:
        run = cutovers.current_run()
        if isinstance(run, Missing) or run.ended:
            return None
        judgement = cutovers.read_view(store, run).judgement
    except ServescopeError:
        return None
    return JudgedRun(run.number, judgement.verdict, judgement.reason)


show()
