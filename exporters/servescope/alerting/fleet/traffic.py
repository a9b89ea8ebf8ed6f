"""The alerts on requests that no longer arrive: no router is left, or a model's traffic stopped."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.routing import ROUTER
from servescope.alerting.rules import listing
from servescope.alerting.rules.choices import bound, in_words
from servescope.alerting.rules.records import (
    WHO,
    Alert,
    All,
    Compare,
    Condition,
    Disappeared,
    Except,
    Extreme,
    FigureRef,
    FirstCheck,
    Present,
    Runbook,
    Scaled,
    Subquery,
    Total,
    by_replica,
)
from servescope.contract.bounds import STEADY_SHARE, STEADY_TRAFFIC
from servescope.contract.identity import IDENTITY_LABELS

MODEL_LABELS: Final = listing.MODEL_LABELS
_FLOOR: Final = bound(STEADY_TRAFFIC)
_STEADY: Final = bound(STEADY_SHARE)
_DEPLOYMENT: Final = ("deployment_id", "environment")
_SERVED: Final = Total(FigureRef("request_rate"), MODEL_LABELS)
_IN_FLIGHT: Final = Total(FigureRef("concurrent_requests"), MODEL_LABELS)
# Without the minutes in which the rate fell to 0.
_HOUR_BEFORE: Final = Subquery("min", _SERVED, "1h", every="1m", before="15m")
_HIGHEST: Final = Subquery("max", _SERVED, "1h", every="1m", before="15m")
_KNOWN_FOR_AN_HOUR: Final = Present(Subquery("max", _SERVED, "5m", every="1m", before="75m"))
_DAY_BEFORE: Final = Subquery("min", _SERVED, "1h", before="23h")
"""The hour that begins with this time of the day before."""

_STOPPED: Final = All((
    Except(Compare(_SERVED, "==", 0.0), Compare(_IN_FLIGHT, ">", 0.0)),
    Compare(_HOUR_BEFORE, ">=", _FLOOR),
    _KNOWN_FOR_AN_HOUR,
))  # fmt: skip
_UNANSWERED: Final = Except(
    Compare(Subquery("max", _SERVED, listing.REMEMBERED), ">", 0.0), Compare(_IN_FLIGHT, ">", 0.0)
)
_SERVES: Final = All((
    Present(Subquery("max", Total(FigureRef("request_rate"), (*_DEPLOYMENT, "model_name")), "3h")),
    Compare(Total(FigureRef("request_rate"), _DEPLOYMENT), ">", 0.0),
))  # fmt: skip
"""A deployment that had the model within three hours serves requests now, of this model or another."""

_UNLISTED: Final = Disappeared(
    listing.scrape_age(), "1h", tuple(label for label in IDENTITY_LABELS if label not in MODEL_LABELS)
)
"""No target of the model is listed any more."""

_NONE_WANTED: Final = Except(
    Compare(Extreme("max", listing.SENT, MODEL_LABELS), "==", 0.0),
    # Of a stack without an autoscaler it is not known how many are wanted.
    Compare(Extreme("max", listing.target_up(listing.ENGINES), MODEL_LABELS), "==", 1.0),
)


def _unless_given_up(condition: Condition) -> Condition:
    """The condition, without models whose traffic does not come back for a good reason."""
    return Except(Except(Except(condition, _SERVES), _UNLISTED), _NONE_WANTED)


_ROUTERS_UP: Final = Extreme("max", listing.target_up(listing.ROUTERS), listing.ANY_PHASE)

_FALL: Final = FirstCheck(
    _SERVED,
    "a fall to 0 within a minute, on all stacks: a failure.",
    "a slow decline over an hour: clients stopped.",
    by_replica("request_rate"),
    "All replicas of all stacks end at the same minute: what is before them failed. One stack after the other: "
    "somebody moved or stopped the traffic.",
)

TRAFFIC_ALERTS: Final = (
    Alert(
        "ServescopeRouterDown", "critical", "telemetry", "telemetry",
        Except(
            Except(
                Except(Compare(_ROUTERS_UP, "==", 0.0), listing.starting(_ROUTERS_UP, "3h")), listing.NONE_WANTED_LATELY
            ),
            listing.RETIRED,
        ),
        "No router of a deployment can be scraped.",
        f"The scrapes of all routers of {WHO} fail.",
        Runbook(
            "The scrapes of every listed router of the deployment fail. Engines behind a dead router are healthy and "
            "idle: no alert on engines fires. One router of several that fails is a ticket of ServescopeTargetDown. "
            "The alert stays active for up to a day if the routers then vanish from the lists of targets.",
            "Requests are refused or time out before they reach an engine. None of them is in any figure of the "
            "engines.",
            "Compare with the request rate of its engines: if that is 0 the router is dead, if it is as before only "
            "the scrapes fail. On the router's machine: does the process run, and does its port answer? The end of "
            "its log has the reason: a panic, a lack of memory, a lost connection to discovery.",
            "Restart the router, or start a second one; roll back its last change; route the traffic to the other "
            "stack of the model.",
            "A network policy, a certificate or credentials that affect only the collector: then requests are served "
            "as before. A router that was removed on purpose and is still listed. A stack whose configured share of "
            "the traffic is 0, or that is scaled to zero, is left out. A new router has "
            f"{in_words(listing.START_GRACE)} to start, after which ServescopeTargetDown names it as well.",
            FirstCheck(
                _ROUTERS_UP,
                "0: no router of the deployment answers.",
                "1: at least one answers again.",
                listing.target_up(listing.ROUTERS),
                "Each line is a router. All at 0 at the same minute: a change or the network. One after the other: "
                "load or memory.",
                lowest=True,
            ),
            (ROUTER,),
            "Do not restart the engines: they are healthy, and their caches would be lost.",
            "Whoever owns the gateway, now, if the router does not stay up.",
            "The request rate of the engines is as before.",
        ),
        "health", "servescope_target_up", for_="5m", keep_firing_for="5m",
        lasts=Except(listing.unless_unused(listing.lately_listed(listing.ROUTERS)), Compare(_ROUTERS_UP, "==", 1.0)),
    ),
    Alert(
        "ServescopeTrafficGone", "critical", "traffic", "traffic",
        _unless_given_up(All((_STOPPED, Compare(_DAY_BEFORE, ">=", _FLOOR)))),
        "A model gets no requests any more.",
        f"No stack of {{{{ $labels.model_name }}}} has served a request for 10 minutes. In the hour before, and in "
        f"this hour of the day before, there were at least {_FLOOR:g} requests per second at all times.",
        Runbook(
            "The engines of the model can be scraped, no request ended within 5 minutes on any of its stacks, none is "
            f"in flight, and there were at least {_FLOOR:g} requests per second in the whole hour before and in the "
            "hour that began at this time of the day before. A stack that a cutover drains does not count: the "
            "requests of all stacks are summed. The alert stays active until requests are served again, for at most a "
            "day. It ends when no engine of the model is listed any more, when its autoscaler requests no replica, "
            "and when its deployment serves another model.",
            "Most likely every request fails before it reaches an engine: in the gateway, in DNS, in the load "
            "balancer, or in the router. If not, clients have stopped sending.",
            "Send a request through the public address. A refused connection or a bad gateway points to the gateway "
            "or the router, a refused key to the keys, an unknown model to a renamed one. A good answer means that "
            "clients stopped: ask the largest one. Then send a request to an engine directly: if it answers, the "
            "engines are not the cause.",
            "Roll back the last change of the gateway or the router; restore the route to the model.",
            "A batch job of more than an hour that ended, and ran longer the day before; a model whose clients moved "
            "to another model: remove it from the lists, or silence it until it is removed.",
            _FALL,
            (ROUTER,),
            "Do not restart engines and do not scale down: the traffic comes back at once when the route does.",
            "Whoever owns the gateway, now.",
            "The request rate is as before.",
        ),
        "requests", "request_rate", for_="5m", keep_firing_for="5m", panel="Requests",
        lasts=_unless_given_up(_UNANSWERED),
    ),
    Alert(
        "ServescopeTrafficStopped", "warning", "traffic", "traffic",
        _unless_given_up(
            All((Except(_STOPPED, Present(_DAY_BEFORE)), Compare(_HOUR_BEFORE, ">=", Scaled(_HIGHEST, _STEADY))))
        ),
        "A model that is new gets no requests any more.",
        "No stack of {{ $labels.model_name }} has served a request for 10 minutes. In the hour before there were at "
        f"least {_FLOOR:g} requests per second at all times; what is usual at this time of the day is not known yet.",
        Runbook(
            "As ServescopeTrafficGone, of a model of which there are no figures of this time of the day before: no "
            "request ended within 5 minutes on any of its stacks, none is in flight, and there were at least "
            f"{_FLOOR:g} requests per second in the whole hour before, and no less than {_STEADY:%} of the hour's "
            "highest rate: traffic that declines as in an evening does not count. Whether its traffic ends every day "
            "at this time is not known, so it is a ticket.",
            "Nothing, if its clients stopped sending. Otherwise every request fails before it reaches an engine.",
            "Ask who sends requests to the model whether they stopped. If they did not, send a request through the "
            "public address: an error names the gateway, the keys, the router or the name of the model.",
            "If requests fail, roll back the last change of the gateway or the router, or restore the route.",
            "A model whose traffic ends at this time of every day; a test or a batch job that ended.",
            _FALL,
            (ROUTER,),
            "Do not restart engines and do not scale down: the traffic comes back at once when the route does.",
            "Nobody at night, unless users of the model are known to wait: then whoever owns the gateway.",
            "The request rate is as before, or it is known that clients stopped.",
        ),
        "requests", "request_rate", for_="5m", keep_firing_for="5m", panel="Requests",
        lasts=_unless_given_up(_UNANSWERED),
    ),
)  # fmt: skip
