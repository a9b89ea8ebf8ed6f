"""Every deployment in one table: what it runs, what is asked of it, how well it answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import frame, selection
from app.charts import tables
from app.cutovers import cutovers
from app.data import queries, readings
from app.data.queries import Shown
from app.data.readings import FiguresAt, Meaning
from app.elements import display, markup
from app.elements.plain import escape, join, plain, visible
from app.selection import TimeRange
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import Deployment
from servescope.contract.metrics import REPLICA_STATUSES
from servescope.contract.types import Figure, Status
from servescope.store.records import TargetStatus

ALL = "all"
SORTS = {
    "name": "Name",
    "attention": "Attention first",
    **{name: FIGURES[name].title for name in tables.FLEET_FIGURES},
}


def show() -> None:
    """The page."""
    store = frame.open_store()
    span, notes = frame.head("Fleet", store)
    known = frame.deployments(store)
    if (missing := cutovers.first_step()) is not None:
        cutovers.mention(missing)
    shown, sort = _select(notes, list(known.values()))

    def draw(span: TimeRange) -> None:
        fleet = queries.read_fleet(store, shown, span)
        if fleet.empty:
            st.info("No deployment matches.")
            return
        newest = fleet["time_ms"].max()
        outside = math.isnan(newest) or newest < span.start_ms
        ordered = sort_fleet(fleet, shown, sort, queries.read_window_ms(store, span.end_ms))
        frame.describe_range(span, None if outside else newest, tables.fleet_rows(fleet, ordered), "fleet")
        frame.warn_of_clock(store, span.start_ms, span.end_ms)
        targets = queries.targets_by_deployment(store)
        if outside:
            frame.nothing_in_range(store)
            if troubles := _name_troubles(shown, targets):
                st.warning(f"Targets: {plain(troubles)}. The Sources page says why.")
            return

        times = fleet["time_ms"].to_dict()

        def explain(name: str, figure: Figure, value: float | None) -> str:
            if not times[name] >= span.start_ms:
                return "no figures in this range"
            return queries.explain_value(figure, value, targets.get(known[name].deployment, []))

        now_ms, window_ms = selection.now_ms() if span.live else span.end_ms, queries.read_window_ms(store, span.end_ms)
        st.html(markup.draw_tiles(summarise(fleet, shown, now_ms, window_ms), frame.moment(span)))
        st.html(tables.draw_reading_key())
        trends = queries.read_trends(store, shown, span, tables.SPARK_FIGURE)
        parameters = selection.range_parameters()
        seen = [one for one in ordered if times[one.name] >= span.start_ms]
        unread = queries.count_unread(targets, shown) if span.live else {}
        draw_table = partial(
            tables.draw_fleet, now_ms=now_ms, window_ms=window_ms, parameters=parameters, unread=unread
        )
        st.html(draw_table(fleet, seen, trends, explain))
        named = [one.deployment for one in shown]
        lacking = [*frame.name_missing_rules(store), *frame.name_uncovered(store, span, named)]
        places = frame.name_places(store, named)
        filling = (
            [f"In italics: the window is filling. {tables.EXPLAIN_FILLING}"]
            if queries.is_filling_at(fleet).any()
            else []
        )
        st.caption(join([frame.explain_moment(store, span), *filling, *_name_left_out(fleet), *lacking, *places]))
        unseen = [one for one in ordered if one not in seen]
        if unseen:
            troubles = _name_troubles(unseen, targets)
            why = f" ({troubles})" if troubles else ""
            with st.expander(f"{len(unseen)} without figures in this range{plain(why)}"):
                st.html(draw_table(fleet, unseen, trends, explain))

    frame.render(draw, span)


def _name_troubles(shown: Sequence[Shown], targets: Mapping[Deployment, Sequence[TargetStatus]]) -> str:
    """How many targets of deployments fail, and how many answer and are not understood; "" where none does."""
    states: Counter[str] = Counter(target.state for one in shown for target in targets.get(one.deployment, ()))
    said = (("down", "failing"), ("not_understood", "not understood"))
    counts = [f"{states[state]} {words}" for state, words in said if states[state]]
    return ", ".join(counts)


def _select(notes: DeltaGenerator, known: Sequence[Shown]) -> tuple[list[Shown], str]:
    """The deployments that the filters leave, and how to sort them."""
    stacks = sorted({one.deployment.inference_stack for one in known})
    text_column, stack_column, sort_column = st.columns([2, 1, 1], vertical_alignment="bottom")
    with text_column:
        text = selection.type_text(
            "find", "Find", placeholder="Find a deployment, model or environment", label_visibility="collapsed",
        )  # fmt: skip
    with stack_column:
        stack = selection.choose(
            notes, "stack", [ALL, *stacks], ALL, st.selectbox, label="Stack", label_visibility="collapsed",
            format_func=lambda name: "All stacks" if name == ALL else visible(name),
        )  # fmt: skip
    with sort_column:
        sort = selection.choose(
            notes, "sort", list(SORTS), "name", st.selectbox, label="Sort by", label_visibility="collapsed",
            format_func=lambda name: f"Sort by: {SORTS[name]}",
        )  # fmt: skip
    wanted = [one for one in known if stack in (ALL, one.deployment.inference_stack) and _matches(one, text)]
    return wanted, sort


def _matches(one: Shown, text: str) -> bool:
    words = " ".join(value for _, value in one.deployment.labels()).lower()
    return all(part in words for part in text.lower().split())


def worst_reading(one: Shown, moment: FiguresAt) -> Meaning | None:
    """The reading of a deployment's figures that asks for most attention; None when none of them has one."""
    return readings.worst(_read_all(one, moment))


def _read_all(one: Shown, moment: FiguresAt) -> Iterator[Meaning]:
    # Before all others that are as bad: where nothing answers, nothing else needs to be read.
    row = moment.figures
    replicas = readings.read_replicas(queries.count_replicas(row))
    found = (readings.read(figure, row.get(name), one.promised, moment) for name, figure in FIGURES.items())
    return (reading for reading in (replicas, *found) if reading is not None)


def sort_fleet(fleet: pd.DataFrame, shown: Sequence[Shown], sort: str, window_ms: int) -> list[Shown]:
    """The deployments by name, by need of attention, or by a figure, highest first and absent last."""

    def key(one: Shown) -> tuple[float, int]:
        row = queries.fleet_row(fleet, one.name)
        if sort == "name":
            return 0.0, one.index
        if sort == "attention":
            reading = worst_reading(one, FiguresAt(row, window_ms))
            return -float(reading.weight if reading else -1), one.index
        value = float(row.get(sort, float("nan")))
        return (math.inf if math.isnan(value) else -value), one.index

    return sorted(shown, key=key)


def summarise(fleet: pd.DataFrame, shown: Sequence[Shown], now_ms: int, window_ms: int) -> list[tuple[str, str, str]]:
    """The tiles above the table: sums over the deployments that have figures now, and how many need attention."""
    fleet = fleet[[tables.is_current(time_ms, now_ms) for time_ms in fleet["time_ms"]]]
    current = [one for one in shown if one.name in fleet.index]
    moments = {one.name: FiguresAt(queries.fleet_row(fleet, one.name), window_ms) for one in current}
    read = [[*_read_all(one, moments[one.name])] for one in current]
    stacks = Counter(one.deployment.inference_stack for one in shown).most_common(3)
    replicas = {
        status: _total(fleet, figure_key("replica_count_by_status", {"status": status})) for status in REPLICA_STATUSES
    }
    others = " · ".join(
        f"{display.format_number(count)} {status}" for status, count in replicas.items() if count and status != "active"
    )
    return [
        (
            "Deployments",
            str(len(shown)),
            escape(" · ".join(f"{count} {stack}" for stack, count in stacks)),
        ),
        ("Active replicas", display.format_bare(replicas["active"], "replicas"), others or "none in transition"),
        _total_tile(fleet, "request_rate", "concurrent_requests", moments.values()),
        _total_tile(fleet, "input_tokens_per_second", None, moments.values()),
        _total_tile(fleet, "output_tokens_per_second", None, moments.values()),
        ("Harm to users", *_count_readings(read, harm=True)),
        ("To tune", *_count_readings(read, harm=False)),
    ]


def _name_left_out(fleet: pd.DataFrame) -> list[str]:
    """The columns in which every row would be a dash, in a sentence; none where there is no such column."""
    absent = [
        FIGURES[name].title for column in tables.FLEET_COLUMNS if not tables.is_shown(fleet, column)
        for name in (column.upper, column.lower) if name
    ]  # fmt: skip
    return [f"No deployment here has {', '.join(absent)}."] if absent else []


def _total_tile(
    fleet: pd.DataFrame, name: str, below: str | None, moments: Iterable[FiguresAt]
) -> tuple[str, str, str]:
    figure = FIGURES[name]
    value, said = display.format_bare(_total(fleet, name), figure.unit), str(figure.unit)
    if below is not None:
        other = FIGURES[below]
        said = f"{said} · {display.format_bare(_total(fleet, below), other.unit)} {other.title.lower()}"
    filling = sorted({text for each in moments if name in each.figures and (text := each.filling(figure))})
    if not filling:
        return figure.title, value, said
    value = markup.element("span", value, "value filling", data_tip=tables.EXPLAIN_FILLING, tabindex="0")
    return figure.title, value, said + markup.element("div", escape(filling[0]))


def _total(fleet: pd.DataFrame, key: str) -> float | None:
    if key not in fleet or fleet[key].isna().all():
        return None
    return float(fleet[key].sum())


def _count_readings(read: Sequence[Sequence[Meaning]], *, harm: bool) -> tuple[str, str]:
    """How many deployments are beyond an objective, or outside a band that is about tuning, and how far."""
    found = [readings.worst(each for each in of_one if each.harm is harm) for of_one in read]
    silent = sum(each is not None and each.rating is readings.NONE_ACTIVE for each in found)
    counts = Counter(each.rating.status for each in found if each is not None)
    if not counts:
        return display.ABSENT, "nothing to judge"
    far, near = ("far beyond an objective", "beyond") if harm else ("to tune soon", "to tune")
    said: tuple[tuple[int, Status, str], ...] = (
        (silent, "critical", "without an active replica"),
        (counts["critical"] - silent, "critical", far),
        (counts["warning"], "warning", near),
    )
    parts = [
        markup.element("span", f"{count} {words}", f"value {status}" if harm else "")
        for count, status, words in said
        if count
    ]
    all_good = "all within their objectives" if harm else "all within their bands"
    return str(counts["critical"] + counts["warning"]), " · ".join(parts) or all_good


show()
