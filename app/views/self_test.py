"""The self-test: v1's own history divided into two equal stacks, and how often the judge calls one of them harmed."""

from __future__ import annotations

from typing import Final

import streamlit as st

from app import frame, selection, turns
from app.cutovers import cutovers, self_tests
from app.cutovers.cutovers import Missing
from app.elements import display
from app.elements.plain import plain
from servescope.cutover.forecast.self_test import SelfTest, run_self_test
from servescope.cutover.plan.plan import CutoverPlan
from servescope.errors import ServescopeError
from servescope.judge.reading import read_evidence
from servescope.store.history import History

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


def draw_self_test(store: History, plan: CutoverPlan) -> None:
    """What it does, the button that runs it, and what it found last."""
    end_ms = _end_ms(plan)
    st.markdown(
        "How often does the judge raise a false alarm **on this deployment**? The self-test splits v1's replicas into "
        "two groups, treats one as v2, and judges past hours with this plan. Both groups run the same stack, so every "
        "DEGRADED is a false alarm."
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        splits = st.selectbox("Splits", SPLITS, index=2, width=160)
        started = st.button("Run the self-test", type="primary")
    results = _results()
    key = (plan.hash(), end_ms // _DAY_MS)
    if started:
        results[key] = _run(store, plan, end_ms, splits)
    test = results.get(key)
    if test is None:
        before = display.format_day_minute(end_ms, selection.reader_zone())
        st.caption(f"Reads up to three days of v1's history before {plain(before)}; 200 splits take a few minutes.")
        return
    if not test.shares:
        st.info(plain(display.as_sentence(test.sentence)))
        return
    frame.describe(self_tests.describe_extent(test), self_tests.list_shares(test), "self-test", every=None)
    st.html(self_tests.draw_shares(test))
    st.caption(
        "A false alarm is a DEGRADED of any metric at any time of a split. Splits share replicas and hours: with few "
        "of either, the true interval is wider than the one shown."
    )
    st.html(self_tests.draw_detectable(test))


def _run(store: History, plan: CutoverPlan, end_ms: int, splits: int) -> SelfTest:
    bar = st.progress(0.0, text="Reading v1's past")

    def show_progress(done: int, total: int) -> None:
        bar.progress(done / total, text=f"{done:d} of {total:d} splits judged")
        turns.pass_turn_on()

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
    return {}


show()
