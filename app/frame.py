"""What every page has around its content: the store, the range picker, refreshing, a file of what is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import display, queries, selection
from app.queries import Shown
from app.selection import TimeRange
from servescope.collector.store import Store
from servescope.errors import ServescopeError

STORE_VARIABLE = "SERVESCOPE_STORE"
REFRESH = "5s"
"""How often a page whose range ends now reads the store again; charts too, but those change at every scrape only."""
CHART_REFRESH = "15s"
HERE = Path(__file__).resolve().parent


def store_path() -> Path:
    """The store the console was started for."""
    return Path(os.environ.get(STORE_VARIABLE, "servescope.db"))


def open_store() -> Store:
    """The store for reading; a page that cannot have it says why and ends."""
    try:
        return _open_store(store_path())
    except ServescopeError as error:
        st.error(str(error), icon=":material/database_off:")
        st.stop()


def _open_store(path: Path) -> Store:
    # A store that was replaced at the same path is another file, and must be opened anew.
    return _opened_store(path, path.stat().st_ino if path.exists() else 0)


@st.cache_resource(max_entries=2, show_spinner=False)
def _opened_store(path: Path, inode: int) -> Store:
    return queries.open_store(path)


def head(title: str, store: Store) -> tuple[TimeRange, DeltaGenerator]:
    """The page's title and the range picker beside it; gives the range, and where notes about the link go."""
    selection.adopt_link()
    notes = st.container()
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.subheader(title, anchor=False)
        with st.container(width="content"):
            span = selection.choose_range(notes, selection.default_range(store.time_range()))
    if not span.live:
        with st.container(horizontal=True, horizontal_alignment="right"), st.container(width=460):
            selection.choose_ends(span)
    return span, notes


def deployments(store: Store) -> dict[str, Shown]:
    """The store's deployments by name; an empty store shows how to start a collector, and the page ends."""
    known = queries.list_deployments(store)
    if not known:
        invite_collector()
        st.stop()
    return known


def invite_collector() -> None:
    """How to fill an empty store; looks again by itself."""
    path = store_path()
    st.info("Nothing has been collected into this store yet.", icon=":material/sensors:")
    st.markdown("Point a collector at what serves your models, and this page fills by itself:")
    st.code(f"servescope collect --store {path} --target http://127.0.0.1:8000/metrics", language="shell")
    st.markdown("or see two emulated stacks under the same traffic:")
    st.code("servescope demo", language="shell")
    st.caption(f"Reading {path.resolve()}")
    st.fragment(_look_again, run_every=REFRESH)()


def _look_again() -> None:
    if queries.list_deployments(_open_store(store_path())):
        st.rerun(scope="app")


def render(draw: Callable[[TimeRange], None], span: TimeRange, *, every: str = REFRESH) -> None:
    """Draw the page's content; again and again with the range moved on while it ends now."""

    def draw_now() -> None:
        draw(span.moved_to(selection.now_ms()) if span.live else span)

    repeat(draw_now, every=every if span.live else None)


def repeat(draw: Callable[[], None], *, every: str | None = REFRESH) -> None:
    """Draw the content below the widgets by itself, again and again unless `every` is None."""
    selection.publish_link()
    st.fragment(draw, run_every=every)()


def describe_range(
    span: TimeRange, newest_ms: float | None, frame: pd.DataFrame, name: str, *, every: str = REFRESH
) -> None:
    """The line above the content: what it covers, how fresh it is, and the file of it."""
    zone = selection.reader_zone()
    ends = f"{display.format_time(span.start_ms, zone)} – {display.format_time(span.end_ms, zone)}"
    newest = "" if newest_ms is None else f" · newest figures {display.format_time(newest_ms, zone)}"
    describe(f"{ends}{newest}", frame, name, every=every if span.live else None)


def describe(text: str, frame: pd.DataFrame, name: str, *, every: str | None = REFRESH) -> None:
    """The line above the content, and the file of what is shown."""
    refreshing = f" · refreshes every {every.removesuffix('s')} s" if every else ""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.caption(f"{text}{refreshing}")
        st.download_button(
            "CSV",
            data=lambda: frame.to_csv(index=False),
            file_name=f"servescope-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.csv",
            mime="text/csv",
            on_click="ignore",
            icon=":material/download:",
            type="tertiary",
            key=f"csv_{name}",
        )


def nothing_in_range(store: Store) -> None:
    """Say that the range holds nothing, and where there is something."""
    known = store.time_range()
    zone = selection.reader_zone()
    where = (
        f"The store holds figures from {display.format_time(known[0], zone)} to {display.format_time(known[1], zone)}."
        if known
        else "The store holds no figures yet."
    )
    st.info(f"No figures in this range. {where}", icon=":material/event_busy:")


def file_times(frame: pd.DataFrame) -> pd.DataFrame:
    """A history for a file: the time in UTC, then a column per figure."""
    times = pd.to_datetime(frame.index, unit="ms", utc=True)
    return frame.set_axis(times, axis=0).rename_axis("time").reset_index()
