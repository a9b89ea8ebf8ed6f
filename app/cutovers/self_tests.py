"""A self-test in HTML and for a file: the rate of false alarms that was measured, and the smallest harm that shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from app.elements import display
from app.elements.markup import cell, element, grid, heading
from app.elements.plain import escape
from servescope.contract.judged import JUDGED
from servescope.contract.limits import describe_worse
from servescope.cutover.forecast.self_test import SelfTest, SelfTestShare, clopper_pearson

ALLOWED_ALARMS = 0.05
"""The rate of false alarms that the judge is built to stay below."""


def draw_shares(test: SelfTest) -> str:
    """By share, how many splits raised a false alarm, with the interval of the rate, and how many were settled."""
    heads = [
        heading("Share of v2", "replicas"),
        heading("Splits", numeric=True),
        heading("False alarms", "of all", numeric=True),
        heading("Rate", "95 % interval", numeric=True),
        heading("Proven healthy", "of all", numeric=True),
        heading("Reading"),
    ]
    rows = [_row(_share(each), display.format_replicas(each.replicas), each) for each in test.shares]
    if len(test.shares) > 1:
        rows.append(_row("All shares", "together", _together(test.shares)))
    return grid("self-test", heads, rows)


def _share(share: SelfTestShare) -> str:
    """The share of v2, of whole replicas: more than two digits say nothing."""
    return display.format_planned(float(f"{share.share:.2g}"))


def _together(shares: Sequence[SelfTestShare]) -> SelfTestShare:
    """The splits of all shares as if they were of one."""
    splits, alarms = sum(each.splits for each in shares), sum(each.alarms for each in shares)
    low, high = clopper_pearson(alarms, splits)
    return SelfTestShare(math.nan, 0, splits, alarms, low, high, sum(each.healthy for each in shares), {})


def _row(name: str, below: str, share: SelfTestShare) -> str:
    rate = share.alarms / share.splits
    ends = f"{display.format_share(share.alarm_low)} – {display.format_share(share.alarm_high)}"
    cells = [
        element(
            "th",
            element("div", name) + element("div", below, "lower"),
            scope="row",
        ),
        cell("Splits", str(share.splits), "", "number"),
        cell("False alarms", str(share.alarms), "", "number"),
        cell("Rate", display.format_share(rate), ends, "number"),
        cell("Proven healthy", str(share.healthy), display.format_share(share.healthy / share.splits), "number"),
        cell("Reading", *describe_rate(share)),
    ]
    return element("tr", "".join(cells))


def describe_rate(share: SelfTestShare) -> tuple[str, str]:
    """Whether the interval of the rate is within what the judge promises, with a sign and a word."""
    if share.alarm_low > ALLOWED_ALARMS:
        return element("span", "✕ above 5 %", "value critical"), "a DEGRADED here is often a false alarm"
    if share.alarm_high <= ALLOWED_ALARMS:
        return element("span", "✓ below 5 %", "value good"), "as the judge promises"
    return element("span", "? may be above 5 %", "value warning"), "too few splits to exclude it"


def draw_detectable(test: SelfTest) -> str:
    """The smallest harm that a day at each share is expected to show, metric by metric."""
    names = list(dict.fromkeys(name for share in test.shares for name in share.detectable))
    heads = [heading("Smallest harm found within a day")]
    heads += [heading(f"{_share(share)} on v2", numeric=True) for share in test.shares]
    rows = []
    for name in names:
        values = (describe_harm(name, share.detectable.get(name)) for share in test.shares)
        cells = "".join(cell("Harm", escape(value), "", "number") for value in values)
        rows.append(element("tr", element("th", escape(JUDGED[name].title), scope="row") + cells))
    return grid("detectable", heads, rows)


def describe_harm(name: str, harm: float | None) -> str:
    """A harm as it is said: a factor of events, or a percentage to the worse."""
    if harm is None:
        return "none"
    judged = JUDGED[name]
    if harm < 0.001 and judged.kind != "events":
        return "under 0.1 % worse"
    # Of an expectation no more digits are known.
    return describe_worse(name, float(f"{harm:.2g}"), judged.better)


def describe_extent(test: SelfTest) -> str:
    """How much was judged: `200 splits of v1, each watched for 24 h`, and why there are fewer than asked for."""
    fewer = (
        f" of the {test.wanted} asked for, as its replicas divide in no other way" if test.splits < test.wanted else ""
    )
    return f"{test.splits} splits of v1{fewer}, each watched for {display.format_wait(3600 * test.hours)}"


def list_shares(test: SelfTest) -> pd.DataFrame:
    """The self-test for a file, one row per share."""
    return pd.DataFrame(
        [
            {
                "share": each.share, "replicas": each.replicas, "splits": each.splits, "alarms": each.alarms,
                "alarm_low": each.alarm_low, "alarm_high": each.alarm_high, "healthy": each.healthy,
                **{f"detectable_{name}": harm for name, harm in each.detectable.items()},
            }
            for each in test.shares
        ]
    )  # fmt: skip
