"""The alerts on the export to customers. A Prometheus that scrapes `servescope customers run` evaluates them."""

from __future__ import annotations

from typing import Final

from servescope.alerting.rules.choices import bound, waited
from servescope.alerting.rules.links import CUSTOMERS
from servescope.alerting.rules.records import (
    Alert,
    All,
    Any,
    Because,
    Compare,
    Disappeared,
    FirstCheck,
    Runbook,
    SelfMetric,
    by_cause,
)
from servescope.contract.bounds import LANE_FAILING, LANE_LAG
from servescope.contract.own_metrics import LANE_LABELS

_LANE: Final = "{{ $labels.customer }} ({{ $labels.destination }})"
_LAG: Final = SelfMetric("servescope_customer_lag_seconds", LANE_LABELS)
_FAILING: Final = SelfMetric("servescope_customer_failing_seconds", LANE_LABELS)
_EXPORTED: Final = SelfMetric("servescope_customer_exported_series", LANE_LABELS)
_GAPS: Final = SelfMetric("servescope_customer_recent_gap_seconds", LANE_LABELS)
_LANES: Final = SelfMetric("servescope_customer_lanes", ("job", "instance"))

EXPORT_ALERTS: Final = (
    Alert(
        "ServescopeCustomerExportFails", "warning", "customers", "customers",
        Any((
            Because("refused", Compare(_FAILING, ">", bound(LANE_FAILING))),
            Because(
                "late", All((Compare(_LAG, ">", bound(LANE_LAG)), Compare(_FAILING, "<=", bound(LANE_FAILING)))), "Lag",
            ),
        )),
        "A customer's metrics do not arrive, or late.",
        f"{_LANE} " + by_cause({
            "refused": "has accepted nothing for {{ $value | humanizeDuration }}.",
            "late": "is {{ $value | humanizeDuration }} behind, and accepts what is sent.",
        }),
        Runbook(
            f"`refused`: no request to this destination was accepted for more than {bound(LANE_FAILING):g} seconds, "
            "and it is tried again and again. `late`: it accepts requests, and the last points that it accepted are "
            f"more than {bound(LANE_LAG):g} seconds old, as it catches up after an outage, or more is owed than is "
            "sent. Nothing is lost yet: what is owed is read from the store.",
            "The customer's dashboards end or are late, and their alerts on missing data may fire. Their requests to "
            "the model are not affected.",
            "`servescope customers status` shows the last error of each destination; `servescope customers test NAME` "
            "sends one point and explains the answer. `credentials` and `tls` are on one of the two sides; "
            "`throttled`, `unavailable` and `timeout` are at the customer's. Without an error: compare points a minute "
            "with the quota of the customer, and the duration of requests with the interval. If the lag rises for all "
            "customers, the store cannot be read, or the process has too little CPU: its log and internal errors say "
            "which.",
            "`credentials`: renew the token; its file is read again, without a restart. `tls`: compare the "
            "certificate's names and dates. `unreachable`: check the proxy and what the network lets out. A quota that "
            "is too low: raise it, or export fewer series. Slow requests: have larger ones (`max_request_size`). All "
            "customers: give the process a core of its own. Otherwise ask the customer. Then let it catch up "
            "by itself.",
            "A backend under maintenance that was announced, the first minutes after an outage, or a new destination "
            "that receives the past first.",
            FirstCheck(
                _FAILING,
                "the line rises and does not fall back; or it is at the bottom, and the lag rises or stays high.",
                "the line falls to the bottom again and again: single requests fail, and are repeated. The lag falls: "
                "at that rate it is back soon.",
            ),
            (),
            "Do not remove the customer to end the alert: that deletes what is owed. Do not restart the export again "
            "and again: each restart repeats what was in flight.",
            "The customer's contact, when the answer comes from their side and lasts longer than an hour; whoever runs "
            "the collectors, if the lag rises for all customers. What is older than `max_age`, a day by default, is "
            "given up.",
            "The line is at the bottom, and the lag is less than two intervals.",
        ),
        CUSTOMERS, "servescope_customer_failing_seconds", for_="10m", panel="Failing",
    ),
    Alert(
        "ServescopeCustomerGetsNothing", "warning", "customers", "customers",
        Compare(_EXPORTED, "==", 0.0),
        "A customer is exported no series at all.",
        f"No series of {_LANE} has been exported for {waited()}: the policy withholds all, or there are none.",
        Runbook(
            "At the last edges there was nothing to send. Either none of the customer's deployments reports a metric "
            "that the policy allows, or a quota or a rule withholds every series.",
            "The customer sees nothing, while their deployments may be well.",
            "`servescope customers check --customer NAME` lists what would be exported and why each other series is "
            "withheld. Are the deployments listed there with targets? If not, their labels changed.",
            "Correct the deployment's labels in the policy, or the quota. A deployment that is retired: remove it from "
            "the policy.",
            "Deployments that are scaled to zero: derived figures and counters end with their last replica.",
            FirstCheck(
                _EXPORTED,
                "the line is at 0.",
                "the line is above 0, or the deployments are scaled to zero on purpose.",
            ),
            (),
            "Do not open the policy to everything to see whether that helps: it is the customers' wall.",
            "Nobody at night. In the morning the owner of the policy.",
            "Series are exported again.",
        ),
        CUSTOMERS, "servescope_customer_exported_series", for_="15m", panel="Exported series",
    ),
    Alert(
        "ServescopeCustomerExportGap", "warning", "customers", "customers",
        Compare(_GAPS, ">", 0.0),
        "A customer lacks metrics of some time for good.",
        f"Within the last hour points of {{{{ $value | humanizeDuration }}}} were given up for {_LANE}.",
        Runbook(
            "Points of some time were given up. The reason `age`: the destination did not accept them for too long; "
            "`retention`: the store does not have them any more; `imported`: a past was imported behind what was "
            "delivered; others are the destination's refusals. Counters go on without loss; what is missing is when "
            "within the gap they rose.",
            "The customer's graphs have a hole. Sums over longer times are right.",
            "`servescope customers statement NAME` names the gaps and why. For refusals the log has the "
            "destination's words: points that are too old for it, too many series, names that it does not take.",
            "Tell the customer which time is missing. `age` and `retention`: keep the store longer than the longest "
            "outage. Refusals: correct the preset or the naming, and look with `servescope customers test NAME`.",
            "An outage of the customer's that was longer than agreed.",
            FirstCheck(
                _GAPS,
                "the line rises again and again.",
                "it rose once, after a known outage.",
            ),
            (),
            "Do not replay the past by hand into the same destination: points would be doubled.",
            "The customer's contact, in the morning, with the statement.",
            "No further gap for an hour.",
        ),
        CUSTOMERS, "servescope_customer_recent_gap_seconds", for_="5m", panel="Gaps",
    ),
    Alert(
        "ServescopeCustomersExportGone", "warning", "customers", "customers",
        Disappeared(_LANES, "6h", ("instance",), at_any_time=True),
        "The export to customers is gone.",
        "Customers were exported to within the last 6 hours, and the process is not scraped any more.",
        Runbook(
            "`servescope customers run` does not run, or Prometheus cannot scrape it.",
            "No customer receives metrics: their dashboards end, and their alerts on missing data fire.",
            "Check whether it runs, its log, and the targets page of Prometheus.",
            "Start it with the same configuration and cursors: it sends what is owed, in order. If it refuses to "
            "start, its message names the key of the configuration.",
            "An export that was stopped for good: the alert resolves 6 hours later.",
            FirstCheck(
                _LANES,
                "the line ends.",
                "the line goes on: only this alert is late.",
            ),
            (),
            "Do not delete the cursors: without them it begins anew, and what is owed is lost.",
            "Whoever runs the collectors, now: within the hour customers notice.",
            "The line goes on, and lags fall.",
        ),
        CUSTOMERS, "servescope_customer_lanes", for_="5m", panel="Destinations",
    ),
)  # fmt: skip
