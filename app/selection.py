"""What the reader has selected: kept in the link, so that a copied link shows the same page, and in the session, so
that it survives going from page to page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.elements.display import format_wait
from app.elements.plain import plain
from servescope.errors import UsageError
from servescope.settings.clock import program_clock
from servescope.settings.values import format_instant, parse_instant

PRESETS: Mapping[str, int] = {
    "15m": 15 * 60,
    "1h": 3_600,
    "3h": 3 * 3_600,
    "6h": 6 * 3_600,
    "24h": 86_400,
    "2d": 2 * 86_400,
    "7d": 7 * 86_400,
}
"""Ranges that end now, in seconds."""
CUSTOM = "custom"
DEFAULT_RANGE = "1h"
YOUNG_RANGE = "15m"
"""The default while a store holds no more than this."""
_PUBLISHED, _SHOWN = "published_link", "shown_selections"
# The years that every time zone can show.
_EARLIEST_MS, _END_MS = 0, parse_instant("9999-01-01T00:00:00Z")
# A live page's range moves in steps, so that charts are redrawn only when there can be new figures.
_LIVE_STEP_MS = 5_000


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A stretch of time in milliseconds; `live` when it ends now and moves on."""

    start_ms: int
    end_ms: int
    live: bool

    def moved_to(self, now_ms: int) -> TimeRange:
        """The same length of time, ending now."""
        end_ms = -(-now_ms // _LIVE_STEP_MS) * _LIVE_STEP_MS
        return TimeRange(end_ms - (self.end_ms - self.start_ms), end_ms, self.live)

    def query(self) -> dict[str, str]:
        """The query parameters that select an absolute range."""
        return {"from": format_instant(self.start_ms), "to": format_instant(self.end_ms)}


def parse_range(parameters: Mapping[str, str], now_ms: int) -> TimeRange:
    """The range that parameters select: `range` a preset, or `custom` with `from` and `to` as ISO 8601.

    Raises UsageError when a value is not understood.
    """
    name = parameters["range"]
    if name == CUSTOM:
        return _absolute_range(parameters)
    if name not in PRESETS:
        raise UsageError(f"unknown range {name!r}, supported: {', '.join((*PRESETS, CUSTOM))}")
    return TimeRange(now_ms - PRESETS[name] * 1000, now_ms, live=True).moved_to(now_ms)


def _absolute_range(parameters: Mapping[str, str]) -> TimeRange:
    start_ms = _parse_instant("from", parameters.get("from", ""))
    end_ms = _parse_instant("to", parameters.get("to", ""))
    if start_ms >= end_ms:
        raise UsageError(f"from {parameters['from']!r} is not before to {parameters['to']!r}")
    return TimeRange(start_ms, end_ms, live=False)


def _parse_instant(name: str, text: str) -> int:
    try:
        time_ms = parse_instant(text)
    except ValueError as error:
        raise UsageError(f"{name} {text!r} is not a time, expected one like '2026-11-20T14:05:00Z'") from error
    if not _EARLIEST_MS <= time_ms < _END_MS:
        raise UsageError(f"{name} {text!r} is out of range, expected a time from 1970 to 9998")
    return time_ms


def describe_length(span: TimeRange) -> str:
    """How long a range is, as the picker calls it where that offers it."""
    seconds = (span.end_ms - span.start_ms) / 1000
    return next((name for name, length in PRESETS.items() if length == seconds), format_wait(seconds))


def adopt_link() -> None:
    """Apply the selection of the link, unless this page wrote it itself; every page begins with it."""
    link = st.query_params.to_dict()
    st.session_state[_SHOWN] = []
    if link == st.session_state.get(_PUBLISHED):
        return
    # A hand-written link may give only the ends of a range.
    if "from" in link:
        link.setdefault("range", CUSTOM)
    for name, value in link.items():
        remember(name, value)


def publish_link() -> None:
    """Write the selection of this page's widgets into the link, in one step of the browser's history."""
    link = {name: value for name in st.session_state[_SHOWN] if (value := current(name)) is not None}
    if st.query_params.to_dict() != link:
        st.query_params.from_dict(link)
    st.session_state[_PUBLISHED] = link


def current(name: str) -> str | None:
    """The value selected in this browser session, from the link or a widget on any page; None without one."""
    return st.session_state.get(_memory(name))


def remember(name: str, value: str | None) -> None:
    """Select for this session; None selects nothing."""
    st.session_state[_memory(name)] = value


def choose(
    notes: DeltaGenerator,
    name: str,
    options: Sequence[str],
    default: str,
    widget: Callable[..., Any],
    **arguments: Any,
) -> str:
    """One of the options, by a widget whose choice is in the link; a link's unknown value is noted and replaced.

    The option "" is that nothing is chosen, and in no link.
    """
    value = current(name)
    if value is not None and value not in options:
        shown = ", ".join(list(filter(None, options))[:6]) + (" …" if len(options) > 6 else "")
        note(notes, f"unknown {name} {value!r}, supported: {shown}{f'; showing {default!r}' if default else ''}")
        value = None
    value = default if value is None else value
    remember(name, value or None)
    st.session_state[_SHOWN].append(name)
    key = f"choose_{name}"
    if st.session_state.get(key) != value:
        st.session_state[key] = value

    def keep() -> None:
        # A segmented control can be emptied by a second click; that keeps the choice.
        remember(name, value if st.session_state[key] is None else st.session_state[key])

    widget(options=options, key=key, on_change=keep, **arguments)
    return value


def note(notes: DeltaGenerator, text: str) -> None:
    """Say at the top of the page that a link could not be followed as it is."""
    notes.warning(plain(text))


def _memory(name: str) -> str:
    return f"selected_{name}"


def type_text(name: str, label: str, **arguments: Any) -> str:
    """A text, by a field whose content is in the link."""
    st.session_state[_SHOWN].append(name)
    key = f"type_{name}"
    value = current(name) or ""
    if st.session_state.get(key) != value:
        st.session_state[key] = value
    st.text_input(plain(label), key=key, on_change=lambda: remember(name, st.session_state[key] or None), **arguments)
    return value


def choose_rows(
    notes: DeltaGenerator, find: str, placeholder: str, state: str, states: Mapping[str, str]
) -> tuple[str, str]:
    """What the rows of a table have to hold, and the state they have to be in: a field and a box, both in the link.

    `find` and `state` are their names in the link, `states` the titles of the states; "any" is among them.
    """
    text_column, state_column = st.columns([3, 1], vertical_alignment="bottom")
    with text_column:
        text = type_text(find, "Find", placeholder=placeholder, label_visibility="collapsed")
    with state_column:
        chosen = choose(
            notes, state, list(states), "any", st.selectbox, label="State", label_visibility="collapsed",
            format_func=states.__getitem__,
        )  # fmt: skip
    return text, chosen


def reader_zone() -> tzinfo:
    """The time zone of the reader's browser; UTC when it is not known."""
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):  # the browser's name may be that of a folder
        return UTC


def now_ms() -> int:
    """The time now, in milliseconds; in the demo that of the emulation."""
    return program_clock().now_ms()


def choose_range(notes: DeltaGenerator, default: str) -> TimeRange:
    """The time range, by a picker whose choice is in the link; a link that is not understood shows the default."""
    try:
        chosen = parse_range({"range": default, **range_parameters()}, now_ms())
    except UsageError as error:
        note(notes, f"{error}; showing the last {default}")
        for name in ("range", "from", "to"):
            remember(name, None)
        chosen = parse_range({"range": default}, now_ms())
    _keep_ends(None if chosen.live else chosen)
    choose(notes, "range", [*PRESETS, CUSTOM], default, _range_picker(chosen))
    st.session_state[_SHOWN] += ["from", "to"]
    return chosen


def default_range(held: tuple[int, int] | None) -> str:
    """The range shown when none is selected, by the first and last time of what the store holds."""
    young = held is None or held[1] - held[0] <= PRESETS[YOUNG_RANGE] * 1000
    return YOUNG_RANGE if young else DEFAULT_RANGE


def range_parameters() -> dict[str, str]:
    """The query parameters of the selected range, for links between pages."""
    values = {name: current(name) for name in ("range", "from", "to")}
    return {name: value for name, value in values.items() if value is not None}


def _range_picker(chosen: TimeRange) -> Callable[..., Any]:
    def picker(*, key: str, on_change: Callable[[], None], options: Sequence[str]) -> None:
        def changed() -> None:
            _keep_ends(chosen if st.session_state[key] == CUSTOM else None)
            on_change()

        st.segmented_control(
            "Time range",
            options,
            key=key,
            on_change=changed,
            format_func=lambda name: name.capitalize() if name == CUSTOM else name,
            label_visibility="collapsed",
        )

    return picker


def _keep_ends(chosen: TimeRange | None) -> None:
    ends = chosen.query() if chosen else {"from": None, "to": None}
    for name, value in ends.items():
        remember(name, value)


def choose_ends(chosen: TimeRange) -> None:
    """The ends of an absolute range, by two pickers in the reader's time zone."""
    zone = reader_zone()
    start, end = st.columns(2)
    for column, label, name, time_ms in (
        (start, "From", "from", chosen.start_ms),
        (end, "To", "to", chosen.end_ms),
    ):
        key = f"choose_{name}"
        # To the minute, as the picker has it: it would report anything finer as a change.
        local = datetime.fromtimestamp(time_ms / 1000, zone).replace(tzinfo=None, second=0, microsecond=0)
        st.session_state[key] = local
        column.datetime_input(
            plain(f"{label} ({zone})"),
            key=key,
            step=60,
            on_change=lambda name=name, key=key: _remember_end(name, st.session_state[key], zone),
        )


def _remember_end(name: str, local: datetime | None, zone: tzinfo) -> None:
    if local is not None:
        remember(name, format_instant(round(local.replace(tzinfo=zone).timestamp() * 1000)))
