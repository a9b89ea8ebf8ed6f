"""One deployment over time: every figure of the contract, by group."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app import frame, selection
from app.charts import charts, families, marks, tables
from app.charts.charts import Chart
from app.charts.families import Family
from app.charts.marks import TimelineMark
from app.data import queries, readings
from app.data.promised import Promises
from app.data.queries import Shown
from app.data.readings import FiguresAt
from app.elements import display, markup
from app.elements.plain import escape, join, plain, visible
from app.selection import TimeRange
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import REPLICA_START_TIME
from servescope.contract.types import Figure
from servescope.errors import ServescopeError
from servescope.store.history import History
from servescope.store.records import TargetStatus

TILES = (
    "request_rate",
    "request_error_share",
    "request_rejected_share",
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
        label_visibility="collapsed", format_func=lambda name: visible(describe(known[name])),
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
    frame.warn_of_clock(store, span.start_ms, span.end_ms)
    if newest is None:
        frame.nothing_in_range(store)
        return
    targets = queries.targets_by_deployment(store).get(one.deployment, [])
    moment = FiguresAt(queries.records(history)[-1], queries.read_window_ms(store, newest))
    tiles = [_rollout_tile(one), _replicas_tile(history)]
    tiles += [
        _tile(FIGURES[name], history, targets, span, one.promised, moment)
        for name in TILES
        if queries.has_values(history, name)
    ]
    st.html(markup.draw_tiles(tiles, frame.moment(span)))
    filling = [tables.EXPLAIN_FILLING, "Charts draw it dotted."] if queries.is_filling_at(history).any() else []
    st.caption(join([frame.explain_moment(store, span), *filling, *frame.name_places(store, [one.deployment])]))
    found = _read_marks(store, one, span, history)
    charts.let_numbers_paint()
    for group, members in families.by_group(history, one.promised).items():
        st.subheader(plain(group), anchor=False)
        charts.show_grid([_chart(family, history, one, span, found) for family in members if family.columns])
        _name_absent([figure for family in members for figure in family.absent], targets)


def _rollout_tile(one: Shown) -> tuple[str, str, str]:
    deployment = one.deployment
    return "Rollout", escape(deployment.rollout_phase or display.ABSENT), markup.chip(deployment.inference_stack)


def _replicas_tile(history: pd.DataFrame) -> tuple[str, str, str]:
    active, others = tables.draw_replicas(queries.records(history)[-1])
    return FIGURES["replica_count_by_status"].title, active or display.ABSENT, others


def _tile(
    figure: Figure,
    history: pd.DataFrame,
    targets: list[TargetStatus],
    span: TimeRange,
    promised: Promises,
    moment: FiguresAt,
) -> tuple[str, str, str]:
    """The figure at the end of the range, how that reads, and between what it moved in the range."""
    # The newest row, not the newest value: what has stopped being measured is absent now.
    value = float(history[figure.name].iloc[-1])
    why = queries.explain_value(figure, value, targets)
    reading = readings.read(figure, value, promised, moment)
    unit = "" if figure.unit in ("ratio", "seconds", "bytes") else figure.unit
    said = reading.rating.label if reading else moment.lacking(figure, promised) or unit
    whole = queries.whole_values(history, figure.name)
    ends = (display.format_bare(end, figure.unit) for end in (whole.min(), whole.max()))
    filling = moment.filling(figure)
    course = filling if whole.isna().all() else f"{selection.describe_length(span)}: {' – '.join(ends)}"
    below = "".join(markup.element("div", escape(line)) for line in dict.fromkeys((filling, course, why)) if line)
    return figure.title, tables.show_figure(figure, value, why, promised, moment), f"{escape(said)}{below}"


def _read_marks(store: History, one: Shown, span: TimeRange, history: pd.DataFrame) -> list[TimelineMark]:
    """What happened to the deployment in the range, with the key of its marks; a store that cannot say is named."""
    try:
        known = history[REPLICA_START_TIME].dropna() if REPLICA_START_TIME in history else pd.Series(dtype=float)
        starts = zip(known.index.tolist(), known.tolist(), strict=True)
        found = marks.find_marks(store.read_events(span.start_ms, span.end_ms), one.deployment, span, starts)
    except ServescopeError as error:
        st.caption(plain(f"Without marks of alerts, rollouts and replicas: {error}"))
        return []
    drawn = found[-marks.MOST :]
    if drawn:
        st.html(marks.draw_key(drawn))
    if len(found) > len(drawn):
        st.caption(f"Of {len(found)} marks in this range the newest {len(drawn)} are drawn.")
    return drawn


def _chart(family: Family, history: pd.DataFrame, one: Shown, span: TimeRange, found: list[TimelineMark]) -> Chart:
    lines = families.lines(family, history, one)
    return charts.draw_lines(
        lines, title=family.title, unit=family.unit, span=span, band=family.band, marks=found,
        objectives=() if family.objective is None else (family.objective,),
    )  # fmt: skip


def _name_absent(figures: list[Figure], targets: list[TargetStatus]) -> None:
    if figures:
        reasons = [f"{figure.title} ({queries.explain_absence(figure, targets)})" for figure in figures]
        st.caption(plain(f"Absent in this range: {'; '.join(reasons)}"))


show()
