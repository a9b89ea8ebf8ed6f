"""Two deployments side by side: judged over the range as a cutover would be, and every figure over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import frame, selection
from app.charts import charts, families, tables
from app.charts.charts import Chart, Dash
from app.cutovers import comparison, cutovers, verdicts
from app.cutovers.comparison import Compared
from app.data import queries
from app.data.queries import Shown
from app.data.readings import objective_line
from app.elements import markup
from app.elements.plain import escape, plain, visible
from app.selection import TimeRange
from servescope.contract.figures import FIGURES, GROUPS
from servescope.contract.identity import Deployment
from servescope.contract.types import Figure
from servescope.cutover.plan.plan import CutoverPlan
from servescope.errors import ServescopeError
from servescope.store.embedded import Store
from servescope.store.history import History
from servescope.store.prometheus.history import PrometheusHistory

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
    columns = st.columns([4, 4, 1], vertical_alignment="bottom")
    left, right = (
        _choose(column, notes, label, name, known, default)
        for column, label, name, default in zip(columns, ("Left", "Right"), ("left", "right"), pair, strict=False)
    )
    columns[2].button("Swap", help="left and right", on_click=_swap, args=(left.name, right.name))
    if left.name == right.name:
        selection.publish_link()
        st.info("Both sides show the same deployment; choose another for one of them.")
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
        chosen = selection.choose(
            notes, name, list(known), default, st.selectbox, label=plain(label), format_func=visible
        )  # fmt: skip
    return known[chosen]


def _swap(left: str, right: str) -> None:
    selection.remember("left", right)
    selection.remember("right", left)


def draw_comparison(store: History, left: Shown, right: Shown, span: TimeRange) -> None:
    """What the judge says of the range, then a chart per figure that either has."""
    histories = {one.name: queries.read_history(store, one.deployment, span) for one in (left, right)}
    newest = max((float(history.index.max()) for history in histories.values() if len(history)), default=None)
    if newest is None:
        frame.describe_range(span, newest, pd.DataFrame(), "compare", every=frame.CHART_REFRESH)
        frame.nothing_in_range(store)
        return
    compared = _judge(store, left, right, span)
    listed = pd.DataFrame() if compared is None else comparison.list_metrics(compared)
    frame.describe_range(span, newest, listed, "compare", every=frame.CHART_REFRESH)
    numbers, headlines = st.columns([10, 10], gap="medium")
    with numbers:
        if compared is not None:
            _draw_compared(compared, left, right)
        levels = queries.read_levels(histories[left.name], histories[right.name])
        st.html(tables.draw_levels(levels, left, right, _swatches(left, right)))
        st.caption(
            "Rates and levels averaged over the range; ratios and quantiles, which cannot be, are drawn only. "
            "While the window of a rate was filling, after a first scrape or a gap, it is dotted and not averaged."
        )
    charts.let_numbers_paint()
    with headlines:
        charts.show_grid(_charts(HEADLINES, histories, (left, right), span), columns=2)
    for group in GROUPS:
        rest = [
            figure.name for figure in queries.DRAWN.values() if figure.group == group and figure.name not in HEADLINES
        ]
        drawn = _charts(rest, histories, (left, right), span)
        if drawn:
            st.subheader(plain(group), anchor=False)
            charts.show_grid(drawn)


def _judge(store: History, left: Shown, right: Shown, span: TimeRange) -> Compared | None:
    """What the judge says of the range in whole blocks; None, with the reason shown, where it cannot."""
    judged = comparison.whole_blocks(span, selection.now_ms())
    if judged.end_ms <= judged.start_ms:
        st.info("The range is too short to judge: blocks are five minutes long.")
        return None
    if judged.end_ms - judged.start_ms > comparison.LONGEST_MS:
        st.info("The range is too long to judge: at most 31 days are.")
        return None
    try:
        with st.spinner("Judging the range", show_time=True):
            plan = cutovers.read_plan()
            planned = None if isinstance(plan, cutovers.Missing) else plan
            return _compared(store, left.deployment, right.deployment, judged.start_ms, judged.end_ms, planned)
    except ServescopeError as error:
        st.info(plain(error))
        return None


@st.cache_resource(max_entries=8, show_spinner=False, hash_funcs={Store: id, PrometheusHistory: id})
def _compared(
    store: History, left: Deployment, right: Deployment, start_ms: int, end_ms: int, planned: CutoverPlan | None
) -> Compared:
    return comparison.compare(store, left, right, TimeRange(start_ms, end_ms, live=False), planned)


def _draw_compared(compared: Compared, left: Shown, right: Shown) -> None:
    judgement, zone = compared.judgement, selection.reader_zone()
    line = f"{verdicts.verdict_chip(judgement.verdict)} {escape(comparison.explain_verdict(compared))}"
    st.html(markup.element("div", line, "scope judged-line"))
    shown = [each for each in judgement.metrics if verdicts.has_data(each)]
    folded = [each for each in judgement.metrics if each not in shown]
    swatches = _swatches(left, right)
    if shown:
        st.html(comparison.draw_table(compared, shown, left, right, swatches, zone))
    if folded:
        with st.expander(f"{len(folded)} without data on either side"):
            st.html(comparison.draw_table(compared, folded, left, right, swatches, zone))
    margins = "the documented ones" if compared.planned is None else f"those of the plan {compared.planned}"
    st.caption(
        f"{plain(right.name)} judged beside {plain(left.name)} as a cutover would be: ratios of sums over the range, "
        f"with intervals that account for noise as {plain(left.name)} showed it before the range, for prompts and for "
        f"load. Margins are {plain(margins)}."
    )


def _swatches(left: Shown, right: Shown) -> tuple[str, str]:
    return tables.swatch(left.color), tables.swatch(right.color, _right_dash(left, right))


def _right_dash(left: Shown, right: Shown) -> Dash:
    """Of two deployments of one stack, which have one hue, the right one is dashed."""
    return (6, 3) if left.color == right.color else (1, 0)


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
            families.draw_key(one.name, histories[one.name], columns[one.name][label], one.color, dash)
            for one, dash in zip(shown, ((1, 0), _right_dash(*shown)), strict=True)
            if label in columns[one.name]
        ]
        # No chart of a status that no replica had.
        if not label or any((line.values > 0).any() for line in lines):
            title = f"{figure.title}, {label}" if label else figure.title
            promised = (objective_line(figure, one.promised) for one in shown)
            yield charts.draw_lines(
                lines, title=title, unit=figure.unit, span=span, band=figure.band,
                objectives=tuple(dict.fromkeys(each for each in promised if each is not None)),
            )  # fmt: skip


show()
