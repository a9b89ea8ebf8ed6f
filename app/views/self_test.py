"""The self-test: v1's own history divided into two equal stacks, and how often the judge calls one of them harmed."""

from __future__ import annotations

from typing import Final

import streamlit as st

from app import cutovers, display, frame, selection, self_tests
from app.cutovers import Missing
from app.verdicts import as_sentence
from servescope.cutover.plan import CutoverPlan
from servescope.cutover.self_test import SelfTest, run_self_test
from servescope.errors import ServescopeError
from servescope.judge.reading import Past, read_evidence
from servescope.settings.values import format_instant

SPLITS: Final = (20, 100, 200, 500)
_DAY_MS: Final = 86_400_000


def show() -> None:
    """The page."""
    selection.adopt_link()
    st.subheader("Self-test", anchor=False)
    store = frame.open_store()
    try:
        plan = cutovers.read_plan()
        if isinstance(plan, Missing):
            cutovers.explain_missing(plan)
            return
        draw_self_test(store, plan)
    except ServescopeError as error:
        frame.show_error(error)


def draw_self_test(store: Past, plan: CutoverPlan) -> None:
    """What it does, the button that runs it, and what it found last."""
    end_ms = _end_ms(plan)
    st.markdown(
        "How far can the judge be trusted **here**? A part of v1's replicas is called v2 and judged with this plan over"
        " hours that are past. Both parts are the same stack, so every DEGRADED is a false alarm."
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        splits = st.selectbox("Divisions", SPLITS, index=2, width=160)
        started = st.button("Run the self-test", type="primary", icon=":material/science:")
    results = _results()
    key = (plan.hash(), end_ms // _DAY_MS)
    if started:
        results[key] = _run(store, plan, end_ms, splits)
    test = results.get(key)
    if test is None:
        st.caption(f"It reads up to three days of v1 before {format_instant(end_ms)}; 200 divisions take minutes.")
        return
    if not test.shares:
        st.info(as_sentence(test.sentence), icon=":material/science_off:")
        return
    frame.describe(as_sentence(test.sentence), self_tests.list_shares(test), "self-test", every=None)
    st.html(self_tests.draw_shares(test))
    st.caption(
        f"False alarms over {display.format_wait(3600 * test.hours)} of watching, over all metrics together. Divisions "
        "share replicas and hours, so that the interval is narrower than it should be where there are few of either."
    )
    st.html(self_tests.draw_detectable(test))


def _run(store: Past, plan: CutoverPlan, end_ms: int, splits: int) -> SelfTest:
    bar = st.progress(0.0, text="Reading v1's past")

    def show_progress(done: int, total: int) -> None:
        bar.progress(done / total, text=f"{done} of {total} divisions judged")

    start_ms = end_ms - round(plan.calibration_hours * 3_600_000) - _DAY_MS
    test = run_self_test(plan, read_evidence(store, plan, start_ms, end_ms), splits=splits, progress=show_progress)
    bar.empty()
    return test


def _end_ms(plan: CutoverPlan) -> int:
    """Before the cutover began, as v1 was alone then; now without a run."""
    runs = cutovers.read_runs(plan.name)
    return runs[-1].frozen.started_ms if runs else selection.now_ms()


@st.cache_resource
def _results() -> dict[tuple[str, int], SelfTest]:
    """The self-tests of this console, for all sessions."""
    return {}


show()
