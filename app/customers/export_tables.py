"""The tables of the page of customers, as HTML and for files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple

import pandas as pd

from app.customers.exports import Destination, State, address_of
from app.elements import display
from app.elements.markup import cell, element, grid, heading, link
from app.elements.plain import escape
from servescope.contract.bounds import LANE_LAG
from servescope.customers.documents.explaining import Explanation
from servescope.customers.lanes.cursors import Gap
from servescope.customers.policy.policy import Pull
from servescope.settings.values import format_instant

MOST_ROWS: Final = 200
"""A longer table is cut, and says so: the file has all of it."""
LOOKS: Final[Mapping[State, tuple[str, str, str]]] = {
    "late": ("▲ late", "critical", f"more than {display.format_wait(LANE_LAG.value)} behind: an alert fires"),
    "behind": ("◷ behind", "warning", "more than two intervals behind: it catches up, or the destination fails"),
    "waiting": ("◷ nothing yet", "warning", "no request was accepted yet"),
    "unlisted": (
        "not configured",
        "quiet",
        "the configuration has no such destination, or its table is wrong",
    ),
    "current": ("✓ current", "good", "less than two intervals behind"),
}
REASONS: Final[Mapping[str, str]] = {
    "age": "not accepted for longer than max_age",
    "retention": "no longer in the store",
    "imported": "imported behind what was delivered",
    "moved": "of deployments that are another's since",
    "clock": "the clock was ahead of it",
    "refused": "refused by the destination",
    "too_large": "too large for the destination",
    "credentials": "refused: credentials",
    "protocol": "the destination is no such receiver",
}


# --- The destinations -------------------------------------------------------------------------------------------------


def draw_destinations(found: Sequence[Destination], zone: tzinfo, parameters: Mapping[str, str]) -> str:
    """The destinations in the order given, each with its last problem below."""
    heads = [
        heading("Customer", "destination"),
        heading("State", "behind"),
        heading("Delivered until"),
        heading("Points", "requests, in the range", numeric=True),
        heading("Missing", "in the range"),
        heading("Sent to", "protocol"),
    ]
    return grid("exports", heads, [_destination_row(each, zone, parameters) for each in found])


def _destination_row(one: Destination, zone: tzinfo, parameters: Mapping[str, str]) -> str:
    lane, status = one.lane, one.status
    word, look, tip = LOOKS[one.state]
    lag = status.describe_lag(display.format_age(status.lag_seconds or 0.0))
    until = display.ABSENT if status.boundary_ms is None else display.format_time(status.boundary_ms, zone)
    name = link("customers", lane.customer, {**parameters, "export": "statement", "customer": lane.customer}, "name")
    requests = sum(each.requests for each in one.statement.deliveries)
    cells = [
        cell("Customer", name, escape(lane.destination)),
        cell("State", element("span", word, _band(look), data_tip=tip, tabindex="0"), escape(lag)),
        cell("Delivered until", escape(until)),
        cell("Points", display.format_number(one.points), f"{display.format_number(requests)} requests", "number"),
        cell("Missing", *_missing(one)),
        cell("Sent to", escape(address_of(one.to, lane.customer)) or display.ABSENT, _protocol(one)),
    ]
    row = element("tr", "".join(cells))
    if status.problem is None:
        return row
    at_ms, text = status.problem
    kind, after = ("error", "") if one.is_failing else ("note", " It accepted points since.")
    shown = f"{display.format_time(at_ms, zone)}: {display.as_sentence(text)}{after}"
    return row + element("tr", element("td", escape(shown), kind, colspan=str(len(cells))), kind)


def _band(look: str) -> str:
    return "quiet" if look == "quiet" else f"value band {look}"


def _missing(one: Destination) -> tuple[str, str]:
    gaps = one.statement.gaps
    rejected = sum(each.rejected for each in one.statement.deliveries)
    below = f"{display.format_number(rejected)} points rejected" if rejected else ""
    if not gaps:
        return element("span", "nothing", "quiet"), below
    reasons = sorted({REASONS.get(gap.reason, gap.reason) for gap in gaps})
    shown = f"{display.format_wait(one.gap_seconds)} in {count(len(gaps), 'gap')}"
    return element("span", escape(shown), "value warning"), escape("; ".join([*reasons, *([below] if below else [])]))


def _protocol(one: Destination) -> str:
    if one.to is None:
        return ""
    if isinstance(one.to, Pull):
        return f"scraped, at most {one.to.requests_per_minute} times a minute"
    return escape(f"{one.to.protocol}, {one.to.temporality}")


def list_destinations(found: Sequence[Destination]) -> pd.DataFrame:
    """The destinations for a file."""
    rows = [
        {
            "customer": each.lane.customer, "destination": each.lane.destination, "state": each.state,
            "delivered_until": _instant(each.status.boundary_ms), "lag_seconds": each.status.lag_seconds,
            "points": each.points, "gaps": len(each.statement.gaps), "gap_seconds": each.gap_seconds,
            "problem_at": _instant(each.status.problem[0]) if each.status.problem else None,
            "problem": each.status.problem[1] if each.status.problem else None,
        }
        for each in found
    ]  # fmt: skip
    columns = [
        "customer", "destination", "state", "delivered_until", "lag_seconds", "points", "gaps", "gap_seconds",
        "problem_at", "problem",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _instant(time_ms: int | None) -> str | None:
    return None if time_ms is None else format_instant(time_ms)


# --- The statement ----------------------------------------------------------------------------------------------------


def draw_statement(found: Sequence[Destination], zone: tzinfo) -> str:
    """What each destination received hour by hour, with the gaps where they are."""
    heads = [
        heading("Destination"),
        heading("From", "to"),
        heading("Received"),
        heading("Points", numeric=True),
        heading("Rejected", numeric=True),
        heading("Requests", numeric=True),
    ]
    rows = [row for each in found for row in _statement_rows(each, zone)]
    return grid("statement", heads, [*rows[:MOST_ROWS], *_cut(len(rows), len(heads))])


def _statement_rows(one: Destination, zone: tzinfo) -> list[str]:
    name = escape(one.lane.destination)

    def row(ends: tuple[int, int], received: str, *numbers: str) -> tuple[int, str]:
        first, last = (display.format_time(time_ms, zone) for time_ms in ends)
        cells = [
            cell("Destination", name),
            cell("From", escape(first), escape(f"to {last}")),
            cell("Received", received),
        ]
        cells += [
            cell(label, number, "", "number")
            for label, number in zip(("Points", "Rejected", "Requests"), numbers, strict=True)
        ]
        return ends[0], element("tr", "".join(cells))

    rows = [
        row(
            (each.first_ms, each.last_ms), count(each.boundaries, "interval"),
            *(f"{number:,}" for number in (each.points, each.rejected, each.requests)),
        )
        for each in one.statement.deliveries
    ] + [
        row((gap.start_ms, gap.end_ms), _gap_words(gap), f"{gap.points:,}" if gap.points else display.ABSENT, "", "")
        for gap in one.statement.gaps
    ]  # fmt: skip
    return [drawn for _, drawn in sorted(rows)]


def _gap_words(gap: Gap) -> str:
    why = escape(REASONS.get(gap.reason, gap.reason))
    return f"{element('span', 'missing', 'value band warning')} {why}"


def list_statement(found: Sequence[Destination]) -> pd.DataFrame:
    """The statement for a file: deliveries and gaps, a row each."""
    rows = []
    for each in found:
        of = {"customer": each.lane.customer, "destination": each.lane.destination}
        rows += [
            {**of, "from": format_instant(one.first_ms), "to": format_instant(one.last_ms), "missing": "",
             "intervals": one.boundaries, "points": one.points, "rejected": one.rejected, "requests": one.requests}
            for one in each.statement.deliveries
        ] + [
            {**of, "from": format_instant(gap.start_ms), "to": format_instant(gap.end_ms), "missing": gap.reason,
             "intervals": None, "points": gap.points or None, "rejected": None, "requests": None}
            for gap in each.statement.gaps
        ]  # fmt: skip
    columns = ["customer", "destination", "from", "to", "missing", "intervals", "points", "rejected", "requests"]
    return pd.DataFrame(rows, columns=columns)


# --- What is exported, and what is withheld ---------------------------------------------------------------------------


class WithheldGroup(NamedTuple):
    """The series of one metric that are withheld for one reason."""

    metric: str
    reason: str
    series: int


def group_withheld(explanation: Explanation) -> list[WithheldGroup]:
    """What is withheld, by reason and metric."""
    counted = Counter((each.reason, _name(each.text)) for each in explanation.withheld)
    return [WithheldGroup(metric, reason, count) for (reason, metric), count in sorted(counted.items())]


def draw_withheld(groups: Sequence[WithheldGroup]) -> str:
    """Each reason with its series, and the metrics it is the reason for."""
    by_reason: dict[str, list[WithheldGroup]] = {}
    for each in groups:
        by_reason.setdefault(each.reason, []).append(each)
    rows = [
        element("tr", "".join((
            cell("Why", escape(display.as_sentence(reason))),
            cell("Series", f"{sum(each.series for each in listed):,}", "", "number"),
            cell("Metrics", element("code", escape(", ".join(each.metric for each in listed)))),
        )))
        for reason, listed in by_reason.items()
    ]  # fmt: skip
    return grid("withheld", [heading("Why"), heading("Series", numeric=True), heading("Metrics")], rows)


def draw_received(explanation: Explanation) -> str:
    """Each metric under the customer's name for it, with the series that are received."""
    received: Counter[str] = Counter()
    native: Counter[str] = Counter()
    kinds: dict[str, str] = {}
    for each in explanation.received:
        name = _name(each.text)
        received[name] += each.series
        native[name] += each.sources
        kinds[name] = each.kind
    rows = [
        element("tr", "".join((
            element("th", element("code", escape(name)), scope="row"),
            cell("Kind", escape(kinds[name])),
            cell("Series", f"{count:,}", "", "number"),
            cell("Of", f"{native[name]:,}", "", "number"),
        )))
        for name, count in sorted(received.items())
    ]  # fmt: skip
    heads = [
        heading("Metric", "as the customer calls it"), heading("Kind"), heading("Series", numeric=True),
        heading("Of", "native series", numeric=True),
    ]  # fmt: skip
    return grid("received", heads, rows)


def draw_labels(explanation: Explanation) -> str:
    """The labels that are not exported, and why."""
    rows = [
        element("tr", element("th", element("code", escape(name)), scope="row") + cell("Why", escape(reason)))
        for name, reason in explanation.labels
    ]
    return grid("labels", [heading("Label that is not exported"), heading("Why")], rows)


def list_explanation(explanation: Explanation) -> pd.DataFrame:
    """Every series for a file: received, or withheld with the reason."""
    rows = [{"series": each.text, "received_as": each.series, "withheld": ""} for each in explanation.received]
    rows += [{"series": each.text, "received_as": 0, "withheld": each.reason} for each in explanation.withheld]
    return pd.DataFrame(rows, columns=["series", "received_as", "withheld"])


def _name(text: str) -> str:
    return text.partition("{")[0]


# --- Offboarding ------------------------------------------------------------------------------------------------------


class OffboardingStep(NamedTuple):
    """A step of an offboarding: what to do, how it is now, and whether it is done; None where that is not known."""

    what: str
    now: str
    done: bool | None


def draw_steps(steps: Iterable[OffboardingStep]) -> str:
    """The steps, each with its mark."""
    marks = {True: ("✓ done", "value band good"), False: ("to do", "value band warning"), None: ("check", "quiet")}
    rows = [
        element("tr", "".join((
            cell("State", element("span", *marks[each.done])),
            cell("Step", escape(each.what), escape(each.now)),
        )))
        for each in steps
    ]  # fmt: skip
    return grid("offboarding", [heading("State"), heading("Step", "as it is now")], rows)


def count(number: int, what: str) -> str:
    """So many of something: `1 row`, `3 rows`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def _cut(count: int, columns: int) -> Iterable[str]:
    if count > MOST_ROWS:
        text = f"and {count - MOST_ROWS:,} more: the file has all of them"
        yield element("tr", element("td", text, "quiet", colspan=str(columns)))
