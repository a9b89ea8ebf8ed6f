"""Where the figures come from: each target's health, and how it covers the contract."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app import frame, selection
from app.charts import tables
from app.data import queries
from app.elements import display, markup
from app.elements.plain import escape, plain, visible
from servescope.store.history import History
from servescope.store.records import TargetStatus

VIEWS = {"targets": "Targets", "coverage": "Coverage of the contract"}
STATES = {"any": "Any state", "failing": "Failing", "unread": "Not understood", "warnings": "With warnings"}
_FOUND_BY = ("target_id", "url", "deployment_id", "model_name", "inference_stack", "role", "replica", "source")
# For how long the page says that the clock was set back.
_CLOCK_SHOWN_MS = 86_400_000

NOT_IN_PROMETHEUS = (
    "A Prometheus does not store a target's address, its coverage of the contract, or why it fails: open the console "
    "on the collector's store, query the collector's /api/v1/targets, or ask a translator, /probe?target=HOST:PORT."
)


def show() -> None:
    """The page."""
    selection.adopt_link()
    notes = st.container()
    st.subheader("Sources", anchor=False)
    store = frame.open_store()
    names = sorted(target.target_id for target in store.targets())
    if problems := store.unidentified():
        st.warning(plain(f"Not shown, as they have no identity: {'; '.join(problems)}."))
    if not names:
        frame.invite_collector(store)
        return
    view = selection.choose(
        notes, "view", list(VIEWS), "targets", st.segmented_control, label="View", label_visibility="collapsed",
        format_func=VIEWS.__getitem__,
    )  # fmt: skip
    if view == "targets":
        text, state = selection.choose_rows(
            notes, "find", "Find a target, deployment, model, stack, role or source", "state", STATES
        )
        frame.repeat(lambda: draw_targets(store, text, state))
    else:
        chosen = selection.choose(notes, "target", names, names[0], st.selectbox, label="Target", format_func=visible)
        frame.repeat(lambda: draw_coverage(store, chosen))


def filter_sources(sources: pd.DataFrame, text: str, state: str) -> pd.DataFrame:
    """The targets whose names hold every word of the text, in this state."""
    words = text.lower().split()
    kept = [
        all(word in " ".join(str(record[name]) for name in _FOUND_BY).lower() for word in words)
        and _is_in(record, state)
        for record in queries.records(sources)
    ]
    return sources[kept]


def _is_in(record: queries.Record, state: str) -> bool:
    is_unread = bool(record["state"] == "not_understood")
    if state == "warnings":
        return bool(record["healthy"]) and bool(record["warnings"])
    return {"any": True, "unread": is_unread, "failing": not (record["healthy"] or is_unread)}[state]


def draw_targets(store: History, text: str = "", state: str = "any") -> None:
    """The targets that the filters leave, failing ones first."""
    every = queries.read_sources(store)
    sources = filter_sources(every, text, state)
    shown = "" if len(sources) == len(every) else f" · {len(sources)} of {len(every)} targets"
    frame.describe(f"each target's last scrape{shown}", sources, "sources")
    now_ms = selection.now_ms()
    frame.warn_of_clock(store, now_ms - _CLOCK_SHOWN_MS, now_ms)
    known = not store.prometheus_url
    if sources.empty:
        st.info("No target matches.")
        return
    st.html(markup.draw_tiles(_summarise(sources, sources_known=known), "at the last scrapes"))
    if known:
        st.html(tables.draw_coverage_key())
    st.html(tables.draw_sources(sources, now_ms=now_ms, parameters=selection.range_parameters(), sources_known=known))
    if not known:
        st.caption(NOT_IN_PROMETHEUS)


def draw_coverage(store: History, chosen: str) -> None:
    """One target's coverage of the contract, metric by metric."""
    target = next((one for one in store.targets() if one.target_id == chosen), None)
    if target is None:
        st.info(f"{plain(chosen)} is no longer a target.")
        return
    if store.prometheus_url:
        st.info(NOT_IN_PROMETHEUS)
        return
    coverage = queries.read_coverage(target)
    frame.describe("the contract at this target's last scrape", coverage, "coverage")
    st.html(markup.draw_tiles(_describe(target, selection.now_ms())))
    if target.warnings:
        st.html(tables.draw_warnings(target.warnings))
    if coverage.empty:
        st.info("Nothing was scraped from this target yet.")
        return
    st.html(tables.draw_coverage_key())
    st.html(tables.draw_metrics(coverage))


def _describe(target: TargetStatus, now_ms: int) -> list[tuple[str, str, str]]:
    identity = target.identity
    (health, status), starting = tables.describe_health(target.state, target.starting_since_ms, now_ms)
    said = display.as_sentence(
        target.error or (f"{len(target.warnings)} warnings, below" if target.warnings else "no error")
    )
    bar, observed = tables.draw_coverage(queries.count_coverage(target), len(target.missing_metrics))
    return [
        ("Deployment", escape(identity.deployment_id), escape(f"{identity.inference_stack} · {identity.model_name}")),
        ("Role", escape(identity.role), escape(identity.replica or display.ABSENT)),
        ("Source", escape(target.source or "not identified"), escape(_describe_read(target))),
        ("Health", markup.element("span", f"{health} {starting}".rstrip(), f"value {status}"), escape(said)),
        ("Scrape", display.format_value(target.duration_seconds, "seconds"), tables.describe_samples(target.samples)),
        ("Coverage", bar, observed),
    ]


def _describe_read(target: TargetStatus) -> str:
    """Which versions the target is of, and which of its series are read where the page measures several deployments."""
    versions = target.versions or display.ABSENT
    return f"{versions} · series with {target.select}" if target.select else versions


def _in_deployments(count: int) -> str:
    return f"of {count} deployment{'' if count == 1 else 's'}"


def _summarise(sources: pd.DataFrame, *, sources_known: bool) -> list[tuple[str, str, str]]:
    """The tiles above the table: how many targets there are, and how they are."""
    healthy = int(sources["healthy"].sum())
    unread = int((sources["state"] == "not_understood").sum())
    failing = len(sources) - healthy - unread
    starting = int(((sources["state"] == "down") & sources["starting_since_ms"].notna()).sum())
    kinds = sources["source"].replace("", "not identified").value_counts()
    warned = int(((sources["warnings"] != "") & sources["healthy"]).sum())
    slowest = sources["duration_seconds"].max()
    return [
        ("Targets", str(len(sources)), _in_deployments(sources["deployment_id"].nunique())),
        (
            "Healthy",
            markup.element("span", str(healthy), "value good" if healthy else "value"),
            markup.element("span", f"{warned} of them with warnings", "value warning")
            if warned
            else "their last scrape succeeded",
        ),
        (
            "Failing",
            markup.element("span", str(failing), "value critical" if failing > starting else "value"),
            markup.element("span", f"{unread} more answer, not understood", "value warning")
            if unread
            else f"{starting} of them {'has' if starting == 1 else 'have'} not answered yet"
            if starting
            else "their last scrape failed",
        ),
        ("Slowest", escape(display.format_value(slowest, "seconds")), "from request to answer"),
        ("Samples", display.format_bare(float(sources["samples"].sum(min_count=1)), "1"), "in all of them"),
        ("Sources", str(len(kinds)), escape(" · ".join(f"{count} {name}" for name, count in kinds.items())))
        if sources_known or sources["source"].any()
        else ("Sources", display.ABSENT, "not stored in a Prometheus"),
    ]


show()
