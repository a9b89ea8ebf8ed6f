"""The alerts on the autoscaler."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.capacity import SCALING, START
from servescope.alerting.rules.choices import bound, waited
from servescope.alerting.rules.listing import target_up
from servescope.alerting.rules.records import (
    NUMBER,
    WHO,
    Alert,
    All,
    Any,
    Because,
    Compare,
    Except,
    FigureRef,
    FirstCheck,
    OverTime,
    Present,
    Runbook,
    Scaled,
    by_cause,
    by_replica,
)
from servescope.contract.bounds import REQUESTED_KEPT
from servescope.contract.expressions import Matchers

_WANTED: Final = FigureRef("autoscaler_desired_scale")
_SENT: Final = FigureRef("autoscaler_rounded_desired_scale")
_ACTIVE: Final = FigureRef("replica_count_by_status", (("status", ("active",)),))
_LEAST: Final = FigureRef("autoscaler_min_replicas")
_MOST: Final = FigureRef("autoscaler_max_replicas")
_AUTOSCALERS: Final[Matchers] = (("role", ("autoscaler",)),)
_KEPT: Final = bound(REQUESTED_KEPT)

_SILENT: Final = Except(
    All((Present(OverTime("max", _SENT, "6h")), Present(FigureRef("concurrent_requests")))), Present(_SENT)
)
_FROZEN: Final = All((
    Compare(OverTime("changes", FigureRef("autoscaler_in_flight_tokens"), "15m"), "==", 0.0),
    Compare(OverTime("min", FigureRef("concurrent_requests"), "15m"), ">", 0.0),
    Compare(FigureRef("output_tokens_per_second"), ">", 0.0),
))  # fmt: skip

AUTOSCALING_ALERTS: Final = (
    Alert(
        "ServescopeAutoscalerPinned", "warning", "autoscaler", "scaling",
        # Where both bounds are the same, somebody decided how many replicas there are.
        Except(Compare(_WANTED, ">", _SENT), Compare(_LEAST, ">=", _MOST)),
        "The autoscaler is at its maximum number of replicas.",
        f"The load of {WHO} requires {NUMBER} replicas, more than the autoscaler may request.",
        Runbook(
            "The raw desired scale is above the scale sent to the orchestrator. Only the upper bound causes this, "
            "since rounding goes up and scaling up is not delayed. A deployment whose lower bound is its upper bound "
            "has a fixed size and does not fire it.",
            "Requests queue, and users wait longer for the first word, for as long as the load lasts.",
            "Check whether the tokens in flight belong to real traffic or to requests that hang: does the request rate "
            "rise with them?",
            "Raise max_replica, or target_in_flight_tokens if latency allows; otherwise limit the traffic.",
            "An upper bound set on purpose as a budget, above the lower bound or of an autoscaler that does not report "
            "its bounds; silence the alert then.",
            FirstCheck(
                _WANTED,
                "above the scale sent, and rising.",
                "falling: the load ends by itself.",
                by_replica("concurrent_requests"),
                "All replicas hold about as much: the load is real. One holds far more: its requests hang, and more "
                "replicas do not help.",
            ),
            (SCALING,),
            "Do not raise max_replica beyond the GPUs there are: replicas that wait for a GPU help nobody.",
            "Whoever owns the budget of GPUs, if an alert on an objective pages too.",
            "The raw scale is not above the scale sent.",
        ),
        "scale", "autoscaler_desired_scale", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeReplicasBelowDesired", "warning", "autoscaler", "scaling",
        # Of thousands of replicas a few are always starting; of a few, a single missing one is more than this share.
        Compare(_ACTIVE, "<", Scaled(_SENT, _KEPT)),
        "Fewer replicas are active than the autoscaler requested.",
        f"{WHO} has had less than {_KEPT:%} of the requested replicas active for {waited()}; {NUMBER} are active now.",
        Runbook(
            f"Less than {_KEPT:%} of the requested replicas are active. The orchestrator did not provide them: there "
            "is no capacity or no GPU, or replicas fail or start slowly.",
            "Requests queue, as too few replicas serve the load.",
            "Check the replicas by status: many `starting` ones mean a slow start, `failed` ones mean an error, and "
            "neither means that none were started: ask the orchestrator why (`kubectl get events`).",
            "Free or add capacity; fix the image or the volume that replicas start from.",
            f"A cold start that always takes longer than {waited()}.",
            FirstCheck(
                FigureRef("replica_count_by_status"),
                "`active` stays below the scale sent.",
                "`starting` replicas are becoming `active`.",
                by_replica("replica_start_time_seconds"),
                "Each line is when a process began: new ones are starting, and missing ones have none yet.",
            ),
            (START, SCALING),
            "Do not lower the desired scale to silence it: the load stays.",
            "Whoever owns the machines, if no GPU is free; now if a queue grows.",
            "As many replicas are active as were requested.",
        ),
        "scale", "replica_count_by_status", for_="15m", keep_firing_for="5m", panel="Replicas",
    ),
    Alert(
        "ServescopeAutoscalerInactive", "warning", "autoscaler", "scaling",
        Any((
            Because("silent", _SILENT),
            Because("frozen", _FROZEN, "Autoscaler frozen"),
        )),
        "An autoscaler no longer reports or measures the load.",
        f"The autoscaler of {WHO} " + by_cause({
            "silent": f"reports no desired scale any more; its maximum over the last 6 hours was {NUMBER}.",
            "frozen": "reports in-flight tokens that have not changed for 15 minutes, although requests are being "
            "served.",
        }),
        Runbook(
            "`silent`: the deployment is still monitored and had an autoscaler within the last 6 hours, but there is "
            "no desired scale now, as the autoscaler's target fails, is no longer listed, or does not expose it. "
            "`frozen`: requests have been in flight and produced tokens all the time, which changes the number of "
            "tokens in flight, but the autoscaler's gauge of them is constant.",
            "Nothing while the load stays the same. When it grows, no replicas are added and requests queue; when it "
            "falls, too many stay.",
            "Check the targets with the role autoscaler, then its log, its leader election, and whether it still "
            "reaches the workers it counts.",
            "Restart it; set the replicas by hand until it follows the load.",
            "A deployment whose autoscaler was removed on purpose; the alert resolves after 6 hours.",
            FirstCheck(
                _SENT,
                "the line of the deployment ends; or it goes on, and the tokens in flight are a straight line while "
                "requests come and go.",
                "the line goes on, and the tokens in flight move with the requests: a scrape failed for a while.",
                target_up(_AUTOSCALERS),
                "A line at zero is an autoscaler that is listed and does not answer; no line is one that is not "
                "listed.",
                lowest=True,
            ),
            (SCALING,),
            "Do not scale down by hand meanwhile: nothing would scale up again. Do not trust the desired scale.",
            "Whoever runs the autoscaler, now if the traffic is about to rise, else in the morning.",
            "The desired scale is reported again, and the tokens in flight move with the load.",
        ),
        "scale", "autoscaler_rounded_desired_scale", keep_firing_for="5m",
    ),
)  # fmt: skip
