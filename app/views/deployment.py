"""One deployment over time: every figure of the contract, by group."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app import charts, display, families, frame, markup, queries, selection, tables
from app.charts import Chart
from app.families import Family
from app.queries import Shown
from app.selection import TimeRange
from servescope.contract.figures import FIGURES
from servescope.contract.types import Figure
from servescope.store.history import History
from servescope.store.records import TargetStatus

TILES = (
    "request_rate",
    "request_error_share",
    "time_to_first_token_p95",
    "tps_per_request",
    "output_tokens_per_second",
    "speculation_rate",
    "kv_cache_hit_rate",
    "kv_cache_hit_rate_skew",
    "kv_cache_hit_rate_efficiency",
)


def show() -> None:
    """The page."""
    store = frame.open_store()
    span, notes = frame.head("Deployment", store)
    known = frame.deployments(store)
    name = selection.choose(
        notes, "deployment", list(known), next(iter(known)), st.selectbox, label="Deployment",
        label_visibility="collapsed", format_func=lambda name: describe(known[name]),
    )  # fmt: skip
    one = known[name]

    def draw(span: TimeRange) -> None:
        draw_deployment(store, one, span)

    frame.render(draw, span, every=frame.CHART_REFRESH)


def describe(one: Shown) -> str:
    """A deployment with what distinguishes it, for a list."""
    deployment = one.deployment
    rest = (deployment.model_name, deployment.inference_stack, deployment.environment, deployment.rollout_phase)
    return " · ".join((one.name, *(part for part in rest if part and part not in one.name)))


def draw_deployment(store: History, one: Shown, span: TimeRange) -> None:
    """Its latest figures as tiles, then the charts."""
    history = queries.read_history(store, one.deployment, span)
    newest = float(history.index.max()) if len(history) else None
    frame.describe_range(
        span, newest, frame.file_times(history), one.name.replace(" · ", "-"), every=frame.CHART_REFRESH
    )
    if newest is None:
        frame.nothing_in_range(store)
        return
    targets = queries.targets_by_deployment(store).get(one.deployment, [])
    st.html(markup.draw_tiles(_tile(FIGURES[name], history, targets) for name in TILES))
    charts.let_numbers_paint()
    for group, members in families.by_group(history).items():
        st.subheader(group, anchor=False)
        charts.show_grid([_chart(family, history, one, span) for family in members if family.columns])
        _name_absent([figure for family in members for figure in family.absent], targets)


def _tile(figure: Figure, history: pd.DataFrame, targets: list[TargetStatus]) -> tuple[str, str, str]:
    # The newest row, not the newest value: what has stopped being measured is absent now.
    value = float(history[figure.name].iloc[-1]) if figure.name in history else float("nan")
    absence = queries.explain_absence(figure, targets)
    verdict = display.judge(figure, value)
    unit = "" if figure.unit in ("ratio", "seconds", "bytes") else figure.unit
    return figure.title, tables.show_figure(figure, value, absence), verdict.label if verdict else unit


def _chart(family: Family, history: pd.DataFrame, one: Shown, span: TimeRange) -> Chart:
    lines = families.lines(family, history, one.index)
    return charts.draw_lines(lines, title=family.title, unit=family.unit, span=span, band=family.band)


def _name_absent(figures: list[Figure], targets: list[TargetStatus]) -> None:
    if figures:
        reasons = [f"{figure.title} ({queries.explain_absence(figure, targets)})" for figure in figures]
        st.caption(f"Absent in this range: {'; '.join(reasons)}")


show()
