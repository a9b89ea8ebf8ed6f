"""The cutover: whether to go on, hold or roll back, why, and what that rests on."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app import frame, selection
from app.charts import charts, distributions
from app.cutovers import answer, cutovers, emulated, timeline, verdicts
from app.cutovers.cutovers import Missing
from app.cutovers.judging import CutoverView
from app.elements import display
from app.elements.plain import plain
from app.readiness import readiness_tables
from servescope.cutover.judgement import Judgement
from servescope.errors import ServescopeError


def show() -> None:
    """The page."""
    selection.adopt_link()
    store = frame.open_store()
    st.subheader("Cutover", anchor=False)

    def draw() -> None:
        run = cutovers.current_run()
        if isinstance(run, Missing):
            cutovers.explain_missing(run)
            return
        emulated.draw_controls(store, run)
        try:
            cutovers.check_plan(run)
        except ServescopeError as error:
            st.warning(f"{plain(error)}. Judged as it was frozen.")
        draw_cutover(cutovers.read_view(store, run))

    frame.repeat(draw)


def draw_cutover(view: CutoverView) -> None:
    """The answer, then what it rests on."""
    judgement, zone = view.judgement, selection.reader_zone()
    frame.describe(
        f"plan {judgement.plan} · {judgement.plan_hash[:12]} · judged {display.format_time(judgement.at_ms, zone)}",
        list_metrics(judgement),
        "cutover",
    )
    st.html(answer.draw_answer(judgement, zone, view.frozen.plan.stages))
    st.html(verdicts.draw_state(judgement, view.warm[1]))
    st.html(verdicts.draw_forest(judgement, zone))
    charts.let_numbers_paint()
    stages = view.frozen.plan.stages
    charts.show(timeline.draw_share(view.share, stages, view.decisions, view.span))
    charts.show(timeline.draw_lanes(judgement.changes, stages, view.decisions, view.events, view.span))
    if view.distributions:
        st.subheader("Distributions since the stage began, at the bucket edges of both stacks", anchor=False)
        charts.show_grid([distributions.draw_distribution(each) for each in view.distributions])
    observed, lacking = st.columns([1, 1], gap="medium")
    with observed:
        st.html(verdicts.draw_arms(judgement, view.warm, zone))
    with lacking:
        st.html(verdicts.draw_gaps(judgement, zone))
    if judgement.segments:
        st.subheader("Segments since the stage began", anchor=False)
        st.html(verdicts.draw_segments(judgement))
    if view.frozen.plan.checklist:
        with st.expander("After the move"):
            st.html(readiness_tables.draw_checklist(view.frozen.plan.checklist))


def list_metrics(judgement: Judgement) -> pd.DataFrame:
    """The judgement's metrics for a file, one row each."""
    return pd.DataFrame(
        [
            {
                "metric": each.name, "required": each.required, "verdict": each.verdict, "cause": each.cause,
                "ratio": each.ratio, "low": each.low, "high": each.high, "margin": each.margin,
                "v1": each.v1.value if each.v1 else None, "v2": each.v2.value if each.v2 else None,
                "v1_everything": each.v1.everything if each.v1 else None,
                "v2_everything": each.v2.everything if each.v2 else None,
                "compared_blocks": each.compared.blocks if each.compared else None,
                "information": each.information, "information_wanted": each.information_wanted,
                "eta_seconds": each.eta_seconds, "reason": each.reason,
            }
            for each in judgement.metrics
        ]
    )  # fmt: skip


show()
