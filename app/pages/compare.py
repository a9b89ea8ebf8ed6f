"""Two deployments side by side: every figure in numbers, then over time."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import charts, display, families, frame, queries, selection, tables
from app.charts import Chart, Line
from app.queries import Shown
from app.selection import TimeRange
from servescope.catalog import FIGURES, GROUPS, Figure
from servescope.collector.store import Store


def show() -> None:
    """The page."""
    span, notes = frame.head("Compare")
    store = frame.open_store()
    known = frame.deployments(store)
    pair = default_pair(list(known.values()))
    columns = st.columns([6, 6, 1], vertical_alignment="bottom")
    left, right = (
        _choose(column, notes, label, name, known, default)
        for column, label, name, default in zip(columns, ("Left", "Right"), ("left", "right"), pair, strict=False)
    )
    columns[2].button("", icon=":material/swap_horiz:", help="swap", on_click=_swap, args=(left.name, right.name))
    if left.name == right.name:
        st.info("Both sides show the same deployment; choose another for one of them.", icon=":material/join:")
        return

    def draw(span: TimeRange) -> None:
        draw_comparison(store, left, right, span)

    frame.render(draw, span, every=frame.CHART_REFRESH)


def default_pair(known: list[Shown]) -> tuple[str, str]:
    """Two deployments of one model on different stacks, as in a cutover; without such, the first two."""
    for one in known:
        for other in known[one.index + 1 :]:
            same_model = one.deployment.model_name == other.deployment.model_name
            if same_model and one.deployment.inference_stack != other.deployment.inference_stack:
                return one.name, other.name
    return known[0].name, known[min(1, len(known) - 1)].name


def _choose(
    column: DeltaGenerator, notes: DeltaGenerator, label: str, name: str, known: Mapping[str, Shown], default: str
) -> Shown:
    with column:
        return known[selection.choose(notes, name, list(known), default, st.selectbox, label=label)]


def _swap(left: str, right: str) -> None:
    selection.remember("left", right)
    selection.remember("right", left)


def draw_comparison(store: Store, left: Shown, right: Shown, span: TimeRange) -> None:
    """The table of both, then a chart per figure that either has."""
    histories = {one.name: queries.read_history(store, one.deployment, span) for one in (left, right)}
    newest = max((float(history.index.max()) for history in histories.values() if len(history)), default=None)
    table = queries.read_comparison(histories[left.name], histories[right.name])
    named = table.rename(columns={"left": left.name, "right": right.name})
    frame.describe_range(span, newest, named, "compare", every=frame.CHART_REFRESH)
    if newest is None:
        frame.nothing_in_range(store)
        return
    targets = queries.targets_by_deployment(store)
    deployments = {one.name: one.deployment for one in (left, right)}

    def explain(name: str, figure: Figure) -> str:
        return queries.explain_absence(figure, targets.get(deployments[name], []))

    st.html(tables.draw_comparison(table, left, right, explain))
    st.caption(f"Medians over the range of figures that each cover {queries.WINDOW_WORDS}; ratio is right ÷ left.")
    for group in GROUPS:
        drawn = _charts(group, histories, (left, right), span)
        if drawn:
            st.subheader(group, anchor=False)
            charts.show_grid(drawn)


def _charts(
    group: str, histories: Mapping[str, pd.DataFrame], shown: tuple[Shown, Shown], span: TimeRange
) -> list[Chart]:
    """The group's charts: both deployments' lines of one figure, or of one value of its extra label."""
    drawn: list[Chart] = []
    for figure in FIGURES.values():
        if figure.group != group or not families.is_closed(figure):
            continue
        columns = {one.name: queries.figure_columns(histories[one.name], figure) for one in shown}
        labels = sorted({label for found in columns.values() for label in found}, key=families.label_order)
        for label in labels:
            title = f"{figure.title}, {label}" if label else figure.title
            lines = [
                _line(one, histories[one.name][columns[one.name][label]]) for one in shown if label in columns[one.name]
            ]
            if not label or any((line.values > 0).any() for line in lines):
                chart = charts.draw_lines(lines, title=title, unit=figure.unit, span=span, band=figure.band)
                drawn.append(chart)
    return drawn


def _line(one: Shown, values: pd.Series[float]) -> Line:
    color, dash = display.series_style(one.index)
    return Line(one.name, values, color, dash)


show()
