"""The alerts on the autoscaler."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import bound, waited
from servescope.alerting.records import NUMBER, WHO, Alert, All, Compare, Except, Over, Present, Runbook, Shown
from servescope.contract.bounds import SCALE_CHANGES

_WANTED: Final = Shown("autoscaler_desired_scale")
_SENT: Final = Shown("autoscaler_rounded_desired_scale")
_ACTIVE: Final = Shown("replica_count_by_status", (("status", ("active",)),))
_STARTING: Final = Shown("replica_count_by_status", (("status", ("starting",)),))
_LEAST: Final = Shown("autoscaler_min_replicas")
_MOST: Final = Shown("autoscaler_max_replicas")
_CHANGES: Final = bound(SCALE_CHANGES)

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
            "Requests queue, and the time to first token grows, for as long as the load lasts.",
            "Compare the raw scale with the one sent. Check whether the tokens in flight belong to real traffic or to "
            "stuck requests.",
            "Raise max_replica, or target_in_flight_tokens if latency allows; otherwise limit the traffic.",
            "An upper bound set on purpose as a budget, above the lower bound or of an autoscaler that does not report "
            "its bounds; silence the alert then.",
        ),
        "scale", "autoscaler_desired_scale", keep="5m",
    ),
    Alert(
        "ServescopeReplicasBelowDesired", "warning", "autoscaler", "scaling",
        Compare(_ACTIVE, "<", _SENT),
        "Fewer replicas are active than the autoscaler requested.",
        f"{WHO} has had fewer active replicas than requested for {waited()}; {NUMBER} are active now.",
        Runbook(
            "The orchestrator did not provide the requested replicas: there is no capacity or no GPU, or replicas fail "
            "or start slowly.",
            "Too few replicas serve the load: requests queue.",
            "Check the replicas by status: many `starting` ones mean a slow start, `failed` ones mean an error, and "
            "neither means that none were started.",
            "Free or add capacity; fix the image or the volume that replicas start from.",
            f"A cold start that always takes longer than {waited()}.",
        ),
        "scale", "replica_count_by_status", wait="15m", keep="5m", panel="Replicas",
    ),
    Alert(
        "ServescopeReplicasAboveDesired", "info", "autoscaler", "scaling",
        Compare(_ACTIVE, ">", _SENT),
        "More replicas are active than the autoscaler requested.",
        f"{WHO} has had more active replicas than requested for {waited()}; {NUMBER} are active now.",
        Runbook(
            "Replicas that the autoscaler no longer requests are still running and serving requests.",
            "None for users; it costs GPUs.",
            "Check whether replicas are draining, and which long requests keep them.",
            "Remove the replicas at the orchestrator; check whether something else scales the deployment too.",
            "Replicas added by hand on purpose.",
        ),
        "scale", "replica_count_by_status", wait="15m", keep="5m", panel="Replicas",
    ),
    Alert(
        "ServescopeAutoscalerOvershoots", "warning", "autoscaler", "scaling",
        All((
            Compare(_STARTING, ">", 0.0),
            Compare(_ACTIVE, ">", _WANTED),
            # Replicas that a lower bound requests start whatever the load.
            Compare(_SENT, ">", Over("min", _SENT, "1h")),
        )),
        "Replicas are starting that the load no longer requires.",
        f"{NUMBER} replicas of {WHO} are starting, although the active ones are already more than the load requires.",
        Runbook(
            "While new replicas were starting, the load went down, or its average still included a queue that is gone: "
            "more replicas are starting than are needed.",
            "None for users now; scaling down again loses caches.",
            "Compare the tokens in flight with their average, and with the time a replica takes to start.",
            "Increase autoscaling_window, or raise min_replica if bursts are usual.",
            "A short burst that is over before its replicas have started.",
        ),
        "scale", "autoscaler_desired_scale", wait="5m",
    ),
    Alert(
        "ServescopeAutoscalerFlapping", "warning", "autoscaler", "scaling",
        Compare(Over("changes", _SENT, "1h"), ">=", _CHANGES),
        "The desired scale keeps changing.",
        f"The scale sent for {WHO} changed {_CHANGES:g} times or more within the last hour.",
        Runbook(
            f"The requested number of replicas changed {_CHANGES:g} times or more within an hour.",
            "Caches are lost and filled again, and cold starts are paid for capacity that is soon removed.",
            "Compare the changes with the traffic. If the traffic does not rise and fall with them, the averaging "
            "windows are too short for its noise.",
            "Increase autoscaling_window, scale_down_delay and scale_down_half_life_seconds.",
            "A steep rise of the traffic, in as many steps upwards.",
        ),
        "scale", "autoscaler_rounded_desired_scale", wait="5m",
    ),
    Alert(
        "ServescopeAutoscalerInactive", "warning", "autoscaler", "scaling",
        Except(All((Present(Over("max", _SENT, "6h")), Present(Shown("concurrent_requests")))), Present(_SENT)),
        "An autoscaler stopped reporting.",
        f"The autoscaler of {WHO} reports no desired scale any more; its maximum over the last 6 hours was {NUMBER}.",
        Runbook(
            "The deployment is still monitored and had an autoscaler within the last 6 hours, but there is no desired "
            "scale now: the autoscaler's target fails, is no longer listed, or does not expose it.",
            "No replicas are added when the load grows, and the alerts on scaling cannot fire.",
            "Check the targets with the role autoscaler, then its log and its leader election.",
            "Restart it; set the replicas by hand until it is back.",
            "A deployment whose autoscaler was removed on purpose; the alert resolves after 6 hours.",
        ),
        "scale", "autoscaler_rounded_desired_scale", keep="5m",
    ),
    Alert(
        "ServescopeAutoscalerFrozen", "warning", "autoscaler", "scaling",
        All((
            Compare(Over("changes", Shown("autoscaler_in_flight_tokens"), "15m"), "==", 0.0),
            Compare(Over("min", Shown("concurrent_requests"), "15m"), ">", 0.0),
            Compare(Shown("output_tokens_per_second"), ">", 0.0),
        )),
        "An autoscaler no longer measures the load.",
        f"The in-flight tokens that the autoscaler of {WHO} reports have not changed for 15 minutes, although requests "
        "are being served.",
        Runbook(
            "Requests have been in flight and produced tokens all the time, which changes the number of tokens in "
            "flight, but the autoscaler's gauge of them is constant.",
            "It scales by an outdated load: no new replicas when the load grows, too many when it falls.",
            "Check the autoscaler's log, and whether it still reaches the workers it counts.",
            "Restart it; set the replicas by hand until it follows the load.",
            "None known.",
        ),
        "scale", "autoscaler_in_flight_tokens", keep="5m",
    ),
)  # fmt: skip
