"""The alert on requests that are served and no longer exposed: no other alert can see what becomes of them."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.failures import TELEMETRY
from servescope.alerting.rules import listing, records
from servescope.alerting.rules.choices import bound
from servescope.contract.bounds import STEADY_TRAFFIC

_FLOOR: Final = bound(STEADY_TRAFFIC)
# A deployment is the same whatever model it serves.
_DEPLOYMENT: Final = ("deployment_id", "environment")
_RATE: Final = records.FigureRef("request_rate")
_LATELY: Final = records.Subquery("max", records.Total(_RATE, listing.ANY_PHASE), "6h")
_IN_FLIGHT: Final = records.Total(records.FigureRef("concurrent_requests"), _DEPLOYMENT)
_UP: Final = records.Extreme("max", listing.target_up(listing.ENGINES), _DEPLOYMENT)

_NOT_EXPOSED: Final = records.Except(
    records.Compare(_LATELY, ">=", _FLOOR), records.Present(records.Extreme("max", _RATE, _DEPLOYMENT))
)
# An engine may expose its requests from the first one on; until then none is in flight.
_IDLE: Final = records.Compare(records.Subquery("max", _IN_FLIGHT, "10m", every="1m"), "==", 0.0)

EXPOSURE_ALERTS: Final = (
    records.Alert(
        "ServescopeRequestsNotExposed", "critical", "telemetry", "telemetry",
        records.Except(
            records.Except(records.All((_NOT_EXPOSED, records.Compare(_UP, "==", 1.0))), _IDLE), listing.RETIRED
        ),
        "The requests of a deployment are no longer exposed.",
        f"{records.WHO} had {records.NUMBER} requests per second within the last 6 hours. Its engines answer scrapes, "
        "and no longer expose requests and their outcomes: nobody is notified when they fail.",
        records.Runbook(
            f"An engine of the deployment can be scraped, there were {_FLOOR:g} requests per second or more within the "
            "last 6 hours, and for minutes nothing has said how many requests end. Its requests in flight are above 0, "
            "or are not exposed either. It is judged by the deployment's name, whatever model it serves. The alert "
            "ends 6 hours after the last request that was seen.",
            "Nothing by itself. Alerts on failed requests, on latency and on traffic have no data of this deployment, "
            "and look healthy.",
            "What changed in the minute in which the requests ended: a release that renamed its metrics, an argument "
            "that switches them off, or a router that counted them and is gone? `servescope inspect` compares the "
            "response with the source maps.",
            "Roll back the release, or set the source map of the new version in the target's list. Until then send "
            "requests to the deployment, and watch the gateway's own errors.",
            "An engine that was restarted, gets no requests, and exposes neither requests nor how many are in flight "
            "before the first one.",
            records.FirstCheck(
                _RATE,
                "the deployment's line ended, and its engines are up.",
                "the line is there again.",
                records.by_replica("request_rate"),
                "Replicas without a line expose no requests. All of them: a release, or what counted the requests.",
                lowest=True,
            ),
            (TELEMETRY,),
            "Do not read a quiet dashboard as health meanwhile. Do not continue the rollout.",
            "Whoever made the last change of the deployment, now.",
            "The deployment has a request rate again.",
        ),
        "requests", "request_rate", for_="7m", keep_firing_for="5m", panel="Requests",
    ),
)  # fmt: skip
