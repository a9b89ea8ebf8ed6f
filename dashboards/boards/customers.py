"""Customers: what is exported to each, how far behind each destination is, and what it lacks."""

from __future__ import annotations

from dataclasses import replace

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels.own_panels import own_panel, own_quantiles
from dashboards.panels.panels import NoData, Panel, Row, Threshold
from dashboards.panels.queries import CUSTOMERS_VARIABLES
from servescope.alerting.rules.links import CUSTOMERS
from servescope.contract.bounds import LANE_FAILING, LANE_LAG
from servescope.contract.expressions import level, rate
from servescope.contract.own_metrics import LANE_LABELS

NAME = CUSTOMERS


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "Customers",
        "What `servescope customers run` exports to customers' own backends: how far behind each destination is, what "
        "it refuses, and what of a customer's series is withheld.",
        (
            Row("Delivery", _delivering(options)),
            Row("What is exported", _exporting(options)),
        ),
        own_variables=CUSTOMERS_VARIABLES,
    )


def _delivering(options: Options) -> tuple[Panel, ...]:
    lag = own_panel(
        "Lag", level("servescope_customer_lag_seconds", "max"), options, unit="seconds", by=LANE_LABELS,
        normal="up to two intervals of the customer.",
        first="if it rises while Failing is at 0, more is owed than is sent: compare the quota and the request time.",
    )  # fmt: skip
    failing = own_panel(
        "Failing", level("servescope_customer_failing_seconds", "max"), options, unit="seconds", by=LANE_LABELS,
        normal="0.",
        first="`servescope customers status` has the last error, `servescope customers test` explains it.",
    )  # fmt: skip
    return (
        replace(lag, ranked="max", thresholds=(Threshold("text"), Threshold("yellow", LANE_LAG.value))),
        replace(failing, ranked="max", thresholds=(Threshold("text"), Threshold("yellow", LANE_FAILING.value))),
        own_panel(
            "Requests by outcome", rate("servescope_customer_requests_total"), options, unit="requests/s",
            by=("customer", "outcome"), normal="only `ok`.",
            first="the outcome is the reason: credentials, tls, throttled, unavailable, timeout, refused.",
        ),
        own_quantiles(
            "Request time", "servescope_customer_request_duration_seconds", options,
            normal="far below the customers' interval.",
            first="if it grows, the destination is slow: ask the customer.",
        ),
        own_panel(
            "Gaps", level("servescope_customer_recent_gap_seconds", "max"), options, unit="seconds", by=LANE_LABELS,
            normal="0.",
            first="`servescope customers statement` names the missing times and why.",
        ),
        own_panel(
            "Destinations", level("servescope_customer_lanes"), options, unit="tasks", by=(),
            normal="as many as are configured.", first="if the line ends, `servescope customers run` does not run.",
        ),
    )  # fmt: skip


def _exporting(options: Options) -> tuple[Panel, ...]:
    return (
        own_panel(
            "Exported series", level("servescope_customer_exported_series"), options, unit="series", by=LANE_LABELS,
            normal="steady; it follows the number of replicas.",
            first="at 0, `servescope customers check` shows why each series is withheld.",
        ),
        own_panel(
            "Withheld series", level("servescope_customer_withheld_series"), options, unit="series",
            by=("customer", "reason"), happened=NoData("idle", "nothing is withheld"),
            normal="steady: what the policy withholds.",
            first="if `quota` appears, the customer has more replicas than the quota allows.",
        ),
        own_panel(
            "Points acknowledged", rate("servescope_customer_acknowledged_points_total"), options, unit="samples/s",
            by=LANE_LABELS, normal="steady.", first="compare with Failing and Lag.",
        ),
        own_panel(
            "Points dropped", rate("servescope_customer_dropped_points_total"), options, unit="samples/s",
            by=("customer", "reason"), normal="none.", happened=NoData("idle", "no point was dropped"),
            first="the reason says whether they were refused or too old; the log has the destination's words.",
        ),
        own_panel(
            "Bytes sent", rate("servescope_customer_sent_bytes_total"), options, unit="bytes/s", by=LANE_LABELS,
            normal="steady.", first="compare with the number of series.",
        ),
        own_panel(
            "Clock skew", level("servescope_customer_clock_skew_seconds", "max"), options, unit="seconds",
            by=LANE_LABELS, normal="within a second.",
            first="if it is minutes, points are refused as too old or too new: correct the clock that is wrong.",
        ),
    )  # fmt: skip
