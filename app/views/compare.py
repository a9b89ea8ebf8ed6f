"""Two deployments side by side: every figure in numbers, then over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import charts, display, families, frame, queries, selection, tables
from app.charts import Chart, Line
from app.queries import Shown
from app.selection import TimeRange
from servescope.contract.figures import FIGURES, GROUPS
from servescope.contract.types import Figure
from servescope.store.history import History

# What a cutover is decided on, beside the table; the others follow below.
HEADLINES = (
    "request_rate", "concurrent_requests", "request_error_share", "request_rejected_share",
    "time_to_first_token_p50", "time_to_first_token_p95", "tps_per_request", "request_duration_p95",
    "output_tokens_per_second", "queued_requests", "speculation_rate", "kv_cache_hit_rate",
    "kv_cache_hit_rate_skew", "kv_cache_hit_rate_efficiency", "kv_cache_usage", "gpu_usage",
)  # fmt: skip


def show() -> None:
    """The page."""
    store = frame.open_store()
    span, notes = frame.head("Compare", store)
    known = frame.deployments(store)
    pair = default_pair(list(known.values()))
    columns = st.columns([6, 6, 1], vertical_alignment="bottom")
    left, right = (
        _choose(column, notes, label, name, known, default)
        for column, label, name, default in zip(columns, ("Left", "Right"), ("left", "right"), pair, strict=False)
    )
    columns[2].button("", icon=":material/swap_horiz:", help="swap", on_click=_swap, args=(left.name, right.name))
    if left.name == right.name:
        selection.publish_link()
        st.info("Both sides show the same deployment; choose another for one of them.", icon=":material/join:")
        return

    def draw(span: TimeRange) -> None:
        draw_comparison(store, left, right, span)

    frame.render(draw, span, every=frame.CHART_REFRESH)


def default_pair(known: list[Shown]) -> tuple[str, str]:
    """Two deployments of one model on different stacks, as in a cutover; without such, the first two."""
    pair = queries.cutover_pair(known)
    if pair is not None:
        return pair[0].name, pair[1].name
    return known[0].name, known[min(1, len(known) - 1)].name


def _choose(
    column: DeltaGenerator, notes: DeltaGenerator, label: str, name: str, known: Mapping[str, Shown], default: str
) -> Shown:
    with column:
        return known[selection.choose(notes, name, list(known), default, st.selectbox, label=label)]


def _swap(left: str, right: str) -> None:
    selection.remember("left", right)
    selection.remember("right", left)


def draw_comparison(store: History, left: Shown, right: Shown, span: TimeRange) -> None:
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

    window = queries.describe_window(store, newest)
    numbers, headlines = st.columns([9, 11], gap="medium")
    with numbers:
        st.html(tables.draw_comparison(table, left, right, explain))
        st.caption(
            f"Medians over the range of figures that each cover {window}; ratio is right ÷ left. "
            "A reading compares two medians only: it does not account for noise or for different load."
        )
    charts.let_numbers_paint()
    with headlines:
        charts.show_grid(_charts(HEADLINES, histories, (left, right), span), columns=2)
    for group in GROUPS:
        rest = [figure.name for figure in FIGURES.values() if figure.group == group and figure.name not in HEADLINES]
        drawn = _charts(rest, histories, (left, right), span)
        if drawn:
            st.subheader(group, anchor=False)
            charts.show_grid(drawn)


def _charts(
    names: Iterable[str], histories: Mapping[str, pd.DataFrame], shown: tuple[Shown, Shown], span: TimeRange
) -> list[Chart]:
    """The charts of these figures, both deployments' lines in each; one per value of a figure's extra label."""
    return [
        chart
        for name in names
        if families.is_closed(FIGURES[name])
        for chart in _figure_charts(FIGURES[name], histories, shown, span)
    ]


def _figure_charts(
    figure: Figure, histories: Mapping[str, pd.DataFrame], shown: tuple[Shown, Shown], span: TimeRange
) -> Iterator[Chart]:
    columns = {one.name: queries.figure_columns(histories[one.name], figure) for one in shown}
    for label in sorted({label for found in columns.values() for label in found}, key=queries.label_order):
        lines = [
            _line(one, histories[one.name][columns[one.name][label]]) for one in shown if label in columns[one.name]
        ]
        # No chart of a status that no replica had.
        if not label or any((line.values > 0).any() for line in lines):
            title = f"{figure.title}, {label}" if label else figure.title
            yield charts.draw_lines(lines, title=title, unit=figure.unit, span=span, band=figure.band)


def _line(one: Shown, values: pd.Series[float]) -> Line:
    color, dash = display.series_style(one.index)
    return Line(one.name, values, color, dash)


show()
