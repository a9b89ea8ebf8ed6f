"""The alerts: what is told to people of a deployment, of its telemetry, and of servescope itself.

Every number here that a value is compared with is the catalog's. What users feel is critical; what explains it, or will
be felt later, is a warning; what only wants tuning is information and calls nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.alerting.cache import cache_alerts, speculation_alerts
from servescope.alerting.choices import CATALOG_CHOICES, Choices, share
from servescope.alerting.cutover import cutover_alerts
from servescope.alerting.evaluation import duration_ms
from servescope.alerting.records import (
    NUMBER,
    PERCENT,
    WHO,
    Alert,
    All,
    Any,
    Compare,
    Condition,
    Measured,
    Over,
    Runbook,
    Shown,
    burns,
)
from servescope.alerting.scaling import autoscaling_alerts, replica_alerts
from servescope.alerting.telemetry import self_alerts, telemetry_alerts
from servescope.contract.bounds import QUEUE_FLOOR, REQUEST_TRAFFIC
from servescope.contract.expressions import level, rate
from servescope.contract.objectives import BURN_WINDOWS
from servescope.contract.types import BurnWindow, Objective

_LONGEST_TRAFFIC = "6h"
_QUEUED = Shown("queued_requests")
_SLO_FIGURES = {
    "time_to_first_token": "time_to_first_token_p95",
    "time_per_output_token": "time_per_output_token_p95",
    "requests": "request_error_share",
}


def make_alerts(its: Choices = CATALOG_CHOICES) -> Mapping[str, Alert]:
    """Every alert by name, with the numbers that are chosen."""
    alerts = (
        *speculation_alerts(its), *cache_alerts(its), *autoscaling_alerts(its), *replica_alerts(its),
        *_serving_alerts(its), *_objective_alerts(its), *cutover_alerts(its), *telemetry_alerts(its),
        *self_alerts(its),
    )  # fmt: skip
    return MappingProxyType({alert.name: alert for alert in alerts})


def _serving_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on engines that do not keep up."""
    return (
        Alert(
            "ServescopeUpButNotServing", "critical", "engine", "serving",
            All((
                Compare(Measured(level("concurrent_requests"), ("replica",)), ">", 0.0),
                Compare(Measured(rate("output_tokens_total"), ("replica",)), "==", 0.0),
                Compare(Measured(rate("input_tokens_total"), ("replica",)), "==", 0.0),
            )),
            "A replica takes requests and computes nothing.",
            f"Replica {{{{ $labels.replica }}}} of {WHO} has {NUMBER} requests in flight and no token comes of it.",
            Runbook(
                "The replica answers scrapes and health checks and has requests, but neither reads prompts nor writes "
                "tokens.",
                "Its requests hang until they time out, and the router goes on sending more.",
                "Look at its log and its GPU: a collective that waits, a device that fell off, a deadlock.",
                "Take it out of routing and restart it; keep a dump of its stacks.",
                "An engine that books its tokens only at a request's end, on requests of more than ten minutes.",
            ),
            "requests", "concurrent_requests", wait="5m", keep="5m", panel="Up but not serving",
        ),
        Alert(
            "ServescopeQueueGrowing", "warning", "engine", "serving",
            All((
                Compare(_QUEUED, ">", Over("avg", _QUEUED, "5m", before="10m")),
                Compare(_QUEUED, ">=", its.value(QUEUE_FLOOR)),
            )),
            "Requests arrive faster than they are served.",
            f"{NUMBER} requests of {WHO} are queued, more than ten minutes ago.",
            Runbook(
                f"The queue has {its.value(QUEUE_FLOOR):g} requests or more and keeps growing.",
                "First tokens come later and later, until requests are refused or time out.",
                "Compare the requests a second with before, and the batch and the KV cache in use: more traffic, or "
                "engines that serve less?",
                "Add replicas; see the alerts on the autoscaler when it does not.",
                "A batch of offline requests sent at once.",
            ),
            "requests", "queued_requests", wait="15m", keep="5m",
        ),
    )  # fmt: skip


def _objective_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on budgets that burn."""
    return tuple(
        _burning(its, each, severity) for each in its.objectives.values() for severity in ("critical", "warning")
    )


def _burning(its: Choices, objective: Objective, severity: str) -> Alert:
    rows = [row for row in BURN_WINDOWS if row.severity == severity]
    condition: Condition = Any(tuple(burns(objective, row, _traffic_over(its, row)) for row in rows))
    camel = "".join(word.capitalize() for word in objective.name.split("_"))
    quick = severity == "critical"
    table = " or ".join(f"{row.factor:g} times over {row.long} and {row.short}" for row in rows)
    return Alert(
        f"Servescope{camel}Budget{'BurnsFast' if quick else 'Burns'}",
        "critical" if quick else "warning", "slo", f"slo-{objective.name.replace('_', '-')}",
        condition,
        f"{objective.title}: the error budget burns {'fast' if quick else 'away'}.",
        f"{PERCENT} of what {WHO} serves breaks its promise: {objective.promise}.",
        Runbook(
            f"The promise is that {objective.promise}. The budget of {share(objective.budget)} bad ones in 30 days "
            "burns "
            f"faster than it bears: {table}.",
            "Users feel it." if quick else "Users feel it now and then; the budget is gone before the month is.",
            "Compare replicas: is it one, or all? Compare with the last change, the queue and the KV cache in use.",
            "Undo the last change; take a bad replica out; add replicas when the queue is the cause.",
            "Requests that are slow by their nature, such as very long prompts, in a new share of the traffic. A few "
            "bad ones among few: on average over the longer window, or six hours of it, "
            f"{its.value(REQUEST_TRAFFIC):g} requests a second are enough for this to be told.",
        ),
        "requests", _SLO_FIGURES[objective.name], wait="2m" if quick else "15m", keep="10m",
        waits_less="both windows must burn, the longer one for an hour or more" if quick else "",
    )  # fmt: skip


def _traffic_over(its: Choices, row: BurnWindow) -> Condition:
    """Enough requests for a share over the row's windows to say something.

    Over the longer one, or in an idle night a single bad request among a few is a share that pages. Six hours are
    enough to tell, and as long as the past of figures is held for.
    """
    stretch = min(row.long, _LONGEST_TRAFFIC, key=duration_ms)
    return Compare(Over("avg", Shown("request_rate"), stretch), ">=", its.value(REQUEST_TRAFFIC))


ALERTS = make_alerts()
"""Every alert by name, with the catalog's numbers."""
