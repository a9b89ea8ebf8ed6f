"""What happened to a deployment, as marks of its charts: alerts, deploys and shares of the traffic, replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.elements import markup
from app.elements.colors import HARM_COLORS, NEUTRAL, ROLLOUT
from app.elements.plain import escape
from app.selection import TimeRange
from servescope.contract.events import Event, EventKind
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment

MOST: Final = 60
"""The marks drawn at most, the newest; nobody could distinguish more."""


@dataclass(frozen=True, slots=True)
class MarkLook:
    """How a kind of mark is drawn: what the key calls it, its colour, and its shape there and as a character."""

    name: str
    color: str
    shape: str
    sign: str


ALERT: Final = MarkLook("alert fires", HARM_COLORS["critical"], "triangle-down", "▼")
LOOKS: Final[Mapping[EventKind, MarkLook]] = {
    "alert_fired": ALERT,
    "deploy": MarkLook("rollout", ROLLOUT, "triangle-up", "▲"),
    "traffic_split": MarkLook("configured share", ROLLOUT, "diamond", "◆"),
    "target_appeared": MarkLook("replica appeared", NEUTRAL, "circle", "●"),
    "target_gone": MarkLook("replica gone", NEUTRAL, "cross", "✚"),
    "target_changed": MarkLook("replica changed", NEUTRAL, "square", "■"),
    "import": MarkLook("past imported", NEUTRAL, "triangle-right", "▶"),
    "clock_set_back": MarkLook("clock set back", NEUTRAL, "triangle-left", "◀"),
}


RESTARTED: Final = MarkLook("replica restarted", NEUTRAL, "arrow", "↻")


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """One thing that happened: when, until when an alert fired (None for what happened at once), and what."""

    start_ms: int
    end_ms: int | None
    look: MarkLook
    text: str


def find_marks(
    events: Iterable[Event], deployment: Deployment, span: TimeRange, starts: Iterable[tuple[float, float]] = ()
) -> list[TimelineMark]:
    """The marks of a deployment within the span, in the order of time: of what is about it (`concerns`), and restarts.

    `starts` are times (ms) with the last start of a replica (s, Unix time) as it was known then.
    """
    ours = sorted((each for each in events if concerns(each, deployment)), key=lambda each: each.time_ms)
    found: list[TimelineMark] = []
    fired: dict[object, Event] = {}
    for event in ours:
        if event.kind == "alert_fired":
            fired.setdefault(event.labels, event)
        elif event.kind == "alert_resolved":
            begun = fired.pop(event.labels, None)
            # One that fired before the span began.
            found.append(_alert(event, span.start_ms if begun is None else begun.time_ms, event.time_ms))
        else:
            found.append(TimelineMark(event.time_ms, None, LOOKS[event.kind], event.text))
    found += [_alert(event, event.time_ms, span.end_ms) for event in fired.values()]
    appeared = [event.time_ms for event in ours if event.kind == "target_appeared"]
    found += _find_restarts(starts, appeared, span)
    return sorted((each for each in found if each.start_ms <= span.end_ms), key=lambda each: each.start_ms)


def _alert(event: Event, start_ms: int, end_ms: int) -> TimelineMark:
    return TimelineMark(start_ms, end_ms, ALERT, f"{dict(event.labels).get('alertname', 'an alert')} fires")


def _find_restarts(
    starts: Iterable[tuple[float, float]], appeared: Sequence[int], span: TimeRange
) -> Iterator[TimelineMark]:
    """Starts of replicas that did not appear then, whose own marks say so."""
    latest_ms = float(span.start_ms)
    for time_ms, start_seconds in starts:
        start_ms = 1000.0 * start_seconds
        if not start_ms > latest_ms:  # known already, before the span, or absent
            continue
        latest_ms = start_ms
        if not any(start_ms <= each <= time_ms for each in appeared):
            yield TimelineMark(round(start_ms), None, RESTARTED, "a replica restarted")


def concerns(event: Event, deployment: Deployment) -> bool:
    """Whether an event is about a deployment: it names it, its model or its stack, and no other, or is about all."""
    if event.kind == "clock_set_back":
        return True
    about = {name: value for name, value in event.labels if name in DEPLOYMENT_LABELS and value}
    # Phases change in a rollout, and an event has that of its time.
    about.pop("rollout_phase", None)
    own = dict(deployment.labels())
    return bool(about) and all(own.get(name) == value for name, value in about.items())


def draw_key(marks: Sequence[TimelineMark]) -> str:
    """What the marks of the charts mean, and how many there are of each."""
    looks = [look for look in (*LOOKS.values(), RESTARTED) if any(each.look is look for each in marks)]
    entries = "".join(
        markup.element(
            "span",
            markup.element("b", look.sign, "sign", style=f"color:{look.color}")
            + f" {escape(look.name)} ({sum(each.look is look for each in marks)})",
        )
        for look in looks
    )
    return markup.element("div", "In the charts:" + entries, "scope legend")
