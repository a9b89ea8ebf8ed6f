"""What every page has around its content: the store, the range picker, refreshing, the download of what is shown."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Container
from pathlib import Path

import pandas as pd
import streamlit as st
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype
from streamlit.delta_generator import DeltaGenerator

from app import selection
from app.data import queries
from app.data.queries import Shown
from app.elements import display
from app.elements.plain import Markdown, code, disarm, find_unseen, plain, visible
from app.selection import TimeRange
from app.turns import take_turn
from servescope.contract.identity import Deployment
from servescope.errors import ServescopeError
from servescope.store.embedded import Store
from servescope.store.history import History
from servescope.store.prometheus.history import SCRAPE_COLLECTOR, PrometheusHistory
from servescope.store.prometheus.options import PROMETHEUS_VARIABLE
from servescope.store.prometheus.places import describe_places

STORE_VARIABLE = "SERVESCOPE_STORE"
REFRESH = "5s"
"""How often a page whose range ends now reads the store again; charts too, but those change at every scrape only."""
CHART_REFRESH = "15s"
HERE = Path(__file__).resolve().parent


def store_path() -> Path:
    """The store the console was started for."""
    return Path(os.environ.get(STORE_VARIABLE, "servescope.db"))


def open_store() -> History:
    """The store, or the Prometheus, for reading; the page ends with an error when it cannot be opened."""
    try:
        return open_history()
    except ServescopeError as error:
        show_error(error)
        st.stop()


def show_error(error: ServescopeError) -> None:
    """Show an error in place of the content that could not be read."""
    st.error(plain(error))


def open_history() -> History:
    """The same without an end to the page; raises ServescopeError."""
    asked = os.environ.get(PROMETHEUS_VARIABLE)
    return _open_prometheus(asked) if asked else _open_store(store_path())


@st.cache_resource(max_entries=2, show_spinner=False)
def _open_prometheus(asked: str) -> PrometheusHistory:
    options = json.loads(asked)
    return queries.open_prometheus(options["url"], options)


def _open_store(path: Path) -> Store:
    # A store that was replaced at the same path is another file, and must be opened again.
    return _opened_store(path, path.stat().st_ino if path.exists() else 0)


@st.cache_resource(max_entries=2, show_spinner=False)
def _opened_store(path: Path, inode: int) -> Store:
    return queries.open_store(path)


def head(title: str, store: History) -> tuple[TimeRange, DeltaGenerator]:
    """The page's title and the range picker beside it; gives the range, and where notes about the link go."""
    selection.adopt_link()
    notes = st.container()
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.subheader(plain(title), anchor=False)
        with st.container(width="content"):
            span = selection.choose_range(notes, selection.default_range(store.time_range()))
    if not span.live:
        with st.container(horizontal=True, horizontal_alignment="right"), st.container(width=460):
            selection.choose_ends(span)
    return span, notes


def deployments(store: History) -> dict[str, Shown]:
    """The store's deployments by name; an empty store shows how to start a collector, and the page ends."""
    known = queries.list_deployments(store)
    if not known:
        invite_collector(store)
        st.stop()
    return known


def invite_collector(store: History) -> None:
    """How to fill an empty store, or what a Prometheus lacks; checks again by itself."""
    if store.prometheus_url:
        _invite_scraping(store.prometheus_url)
    else:
        _invite_collecting()
    _repeat_in_turn(_look_again, REFRESH)


def _invite_scraping(url: str) -> None:
    st.info(plain(f"The Prometheus at {url} holds no series of the contract."))
    st.markdown("Have it scrape what a collector exposes; this goes into its `prometheus.yml`:")
    st.code(SCRAPE_COLLECTOR, language="yaml")
    st.markdown("with a collector pointed at what serves your models:")
    st.code("servescope collect --target http://127.0.0.1:8000/metrics", language="shell")
    st.markdown("If it scraped engines already, import their past into a store and open the console on that:")
    st.code(
        f"servescope import --from {visible(url)} --store servescope.db --deployment ID --match '{{job=\"vllm\"}}'\n"
        "servescope console --store servescope.db",
        language="shell",
    )


def _invite_collecting() -> None:
    path = store_path()
    st.info("Nothing has been collected into this store yet.")
    st.markdown("Point a collector at what serves your models, and this page fills by itself:")
    st.code(f"servescope collect --store {visible(path)} --target http://127.0.0.1:8000/metrics", language="shell")
    st.markdown("or see two emulated stacks under the same traffic:")
    st.code("servescope demo", language="shell")
    st.caption(plain(f"Reading {path.resolve()}"))


def _look_again() -> None:
    try:
        found = queries.list_deployments(open_history())
    except ServescopeError as error:
        show_error(error)
        return
    if found:
        st.rerun(scope="app")


def render(draw: Callable[[TimeRange], None], span: TimeRange, *, every: str = REFRESH) -> None:
    """Draw the page's content; again and again with the range moved on while it ends now."""

    def draw_now() -> None:
        draw(span.moved_to(selection.now_ms()) if span.live else span)

    repeat(draw_now, every=every if span.live else None)


def repeat(draw: Callable[[], None], *, every: str | None = REFRESH) -> None:
    """Draw the content below the widgets by itself, again and again unless `every` is None."""

    def draw_if_read() -> None:
        above = st.container()
        try:
            draw()
            with above:
                _mark_partial()
        except ServescopeError as error:
            # A Prometheus may be unreachable for a moment; the page tries again by itself.
            show_error(error)

    selection.publish_link()
    _repeat_in_turn(draw_if_read, every)


def _repeat_in_turn(draw: Callable[[], None], every: str | None) -> None:
    def draw_in_turn() -> None:
        with take_turn():
            draw()

    st.fragment(draw_in_turn, run_every=every)()


def _mark_partial() -> None:
    """Warn of figures that are made of a part of the series only."""
    store = open_history()
    if missing := store.partial():
        st.warning(
            f"{plain(store.prometheus_url)} gave partial answers: figures may lack replicas, and deployments may be "
            f"missing. {plain('; '.join(missing))}",
        )


def describe_range(
    span: TimeRange, newest_ms: float | None, frame: pd.DataFrame, name: str, *, every: str = REFRESH
) -> None:
    """The line above the content: what it covers, how fresh it is, and the file of it."""
    zone = selection.reader_zone()
    ends = f"{display.format_time(span.start_ms, zone)} – {display.format_time(span.end_ms, zone)}"
    newest = "" if newest_ms is None else f" · newest figures {display.format_time(newest_ms, zone)}"
    describe(f"{ends}{newest}", frame, name, every=every if span.live else None)


def describe(
    text: str,
    frame: pd.DataFrame,
    name: str,
    *,
    every: str | None = REFRESH,
    document: Callable[[], str] | None = None,
) -> None:
    """The line above the content, and the files of what is shown: CSV, and JSON where there is a `document`."""
    refreshing = f" · refreshes every {every.removesuffix('s')} s" if every else ""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.caption(plain(f"{text}{refreshing}"))
        with st.container(horizontal=True, width="content"):
            if document is not None:
                _offer("JSON", document, name, "application/json")
            _offer("CSV", lambda: write_csv(frame), name, "text/csv")


def write_csv(frame: pd.DataFrame) -> str:
    """A table as CSV, in which every text is quoted and none is computed by a spreadsheet."""
    texts = {
        name: values.map(lambda value: disarm(value) if isinstance(value, str) else value)
        for name, values in frame.items()
        if not (is_numeric_dtype(values) or is_datetime64_any_dtype(values))
    }
    written = frame.assign(**{str(name): values for name, values in texts.items()}).rename(columns=disarm)
    return written.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC)


def _offer(kind: str, content: Callable[[], str], name: str, mime: str) -> None:
    st.download_button(
        plain(kind),
        data=content,
        file_name=f"servescope-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.{kind.lower()}",
        mime=mime,
        on_click="ignore",
        type="tertiary",
        key=f"{kind.lower()}_{name}",
    )


def name_unseen(text: str) -> None:
    """Name what the text of a file has that cannot be seen, as marks that show it in another order than it is read."""
    found = find_unseen(text)
    if found:
        shown = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
        st.warning(plain(f"The text has characters that cannot be seen: {shown}"))


def moment(span: TimeRange) -> str:
    """When the figures of a page are of that show no course: now, or the end of the range."""
    return "now" if span.live else f"at {display.format_day_minute(span.end_ms, selection.reader_zone())}"


def explain_moment(store: History, span: TimeRange) -> str:
    """What the moment of a page's figures and its range mean, in a sentence or two."""
    window, length = (
        queries.describe_window(store, span.end_ms),
        selection.describe_length(span),
    )
    when = "Now is" if span.live else "The figures are those of"
    return (
        f"{when} the last evaluation in the range, over {window}; the range of {length} is that of trends and charts."
    )


def warn_of_clock(store: History, start_ms: int, end_ms: int) -> None:
    """Warn that the collector's clock was set back within a time, and of what was dropped; of the last two times."""
    for event in store.clock_set_back(start_ms, end_ms, most=2):
        at = display.format_time(event.time_ms, selection.reader_zone())
        st.warning(plain(f"{at}: {event.text}."))


def name_missing_rules(store: History) -> list[Markdown]:
    """A sentence for each file of rules that a Prometheus does not evaluate, and what is missing without it."""
    return [
        Markdown(f"The Prometheus does not evaluate {code(file)}: {plain(effect)}.")
        for file, effect in store.missing_rules().items()
    ]


def name_uncovered(store: History, span: TimeRange, deployments: Container[Deployment]) -> list[Markdown]:
    """A sentence for each of the deployments of whose window scrapes are missing, so that their totals are too low."""
    return [
        Markdown(
            f"Totals of {code(deployment.deployment_id)} ({plain(deployment.inference_stack)}) are too low: of their "
            f"window {plain(display.format_share(share))} of the usual scrapes are there."
        )
        for deployment, share in sorted(store.uncovered(span.end_ms).items())
        if deployment in deployments
    ]


def name_places(store: History, deployments: Container[Deployment]) -> list[Markdown]:
    """A sentence for each of the deployments that several clusters or tenants of a Prometheus have."""
    return [
        Markdown(
            f"{code(deployment.deployment_id)} ({plain(deployment.inference_stack)}) has targets in "
            f"{plain(' and in '.join(describe_places(places)))}: its figures are of all of them together."
        )
        for deployment, places in store.spread().items()
        if deployment in deployments
    ]


def nothing_in_range(store: History) -> None:
    """State that the range has no figures, and which range has some."""
    known = store.time_range()
    holder = "Prometheus" if store.prometheus_url else "store"
    zone = selection.reader_zone()
    ends = [display.format_time(time_ms, zone) for time_ms in known or ()]
    where = (
        f"The {holder} holds figures from {ends[0]} to {ends[1]}." if ends else f"The {holder} holds no figures yet."
    )
    st.info(plain(f"No figures in this range. {where}"))


def file_times(frame: pd.DataFrame) -> pd.DataFrame:
    """A history for a file: the time in UTC, then a column per figure."""
    times = pd.to_datetime(frame.index, unit="ms", utc=True)
    return frame.set_axis(times, axis=0).rename_axis("time").reset_index()
