"""The alerts on the autoscaler, and on the replicas it orders."""

from __future__ import annotations

from servescope.alerting.choices import Choices
from servescope.alerting.records import NUMBER, WHO, Alert, All, Compare, Except, Over, Present, Runbook, Shown
from servescope.contract.bounds import ACTIVE_REPLICAS, FAILURES_REPEATED, SCALE_CHANGES

_WANTED = Shown("autoscaler_desired_scale")
_SENT = Shown("autoscaler_rounded_desired_scale")
COLD_START = "20m"
# Who scales to zero has no replica until the first that is ordered again has started.
NONE_WANTED_LATELY = Compare(Over("min", _SENT, COLD_START), "==", 0.0)
"""The autoscaler asks for no replica, or did not until a cold start ago."""


def autoscaling_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on the autoscaler."""
    return (
        Alert(
            "ServescopeAutoscalerPinned", "warning", "autoscaler", "scaling",
            Compare(_WANTED, ">", _SENT),
            "The load asks for more replicas than the bound allows.",
            f"The load of {WHO} asks for {NUMBER} replicas, more than the autoscaler may order.",
            Runbook(
                "The raw desired scale is above what is sent to the orchestrator, which only the upper bound can do: "
                "rounding goes up, and scaling up does not wait.",
                "Requests queue, and first tokens come later, for as long as the load lasts.",
                "Compare raw and sent scale; look whether the tokens in flight are those of traffic or of requests "
                "stuck.",
                "Raise max_replica, or target_in_flight_tokens if latency allows; otherwise limit the traffic.",
                "A bound that is meant as a budget; then silence it.",
            ),
            "scale", "autoscaler_desired_scale", keep="5m",
        ),
        Alert(
            "ServescopeReplicasBelowDesired", "warning", "autoscaler", "scaling",
            Compare(_replicas("active"), "<", _SENT),
            "Fewer replicas serve than the autoscaler ordered.",
            f"{WHO} has {NUMBER} active replicas, fewer than ordered, for fifteen minutes.",
            Runbook(
                "The orchestrator has not brought what was ordered: no room, no GPU, replicas that fail or start "
                "slowly.",
                "The load meets too few replicas: requests queue.",
                "Look at the replicas by status: `starting` is slow, `failed` is broken, neither means nobody "
                "started any.",
                "Free or add capacity; mend the image or the volume that replicas start from.",
                "A cold start that always takes longer than fifteen minutes.",
            ),
            "scale", "replica_count_by_status", wait="15m", keep="5m", panel="Replicas",
        ),
        Alert(
            "ServescopeReplicasAboveDesired", "info", "autoscaler", "scaling",
            Compare(_replicas("active"), ">", _SENT),
            "More replicas serve than the autoscaler ordered.",
            f"{WHO} has {NUMBER} active replicas, more than ordered, for fifteen minutes.",
            Runbook(
                "Replicas that the autoscaler gave up are still there and take requests.",
                "None that users notice; it costs GPUs.",
                "Look whether replicas drain, and which long requests keep them.",
                "Tell the orchestrator; look for a second one who scales by hand.",
                "Replicas added by hand on purpose.",
            ),
            "scale", "replica_count_by_status", wait="15m", keep="5m", panel="Replicas",
        ),
        Alert(
            "ServescopeAutoscalerOvershoots", "warning", "autoscaler", "scaling",
            All((
                Compare(_replicas("starting"), ">", 0.0),
                Compare(_replicas("active"), ">", _WANTED),
                # Those that a lower bound asks for start whatever the load.
                Compare(_SENT, ">", Over("min", _SENT, "1h")),
            )),
            "Replicas are starting that the load no longer asks for.",
            f"{NUMBER} replicas of {WHO} are starting, and the active ones alone are more than the load asks for.",
            Runbook(
                "While new workers started, the load passed, or its average still counted a queue that is gone: more "
                "is "
                "on the way than is needed.",
                "None that users notice now; scaling down again costs caches.",
                "Compare tokens in flight with their average, and the time a replica takes to start.",
                "Lengthen autoscaling_window, or raise min_replica if bursts are usual.",
                "A short burst that is over before its replicas are there.",
            ),
            "scale", "autoscaler_desired_scale", wait="5m",
        ),
        Alert(
            "ServescopeAutoscalerFlapping", "warning", "autoscaler", "scaling",
            Compare(Over("changes", _SENT, "1h"), ">=", its.value(SCALE_CHANGES)),
            "The autoscaler changes its mind again and again.",
            f"The scale sent for {WHO} changed {its.value(SCALE_CHANGES):g} times or more within the hour.",
            Runbook(
                f"The ordered number of replicas changed {its.value(SCALE_CHANGES):g} times or more within an hour.",
                "Caches are lost and filled again; cold starts are paid for capacity that soon goes.",
                "Compare the changes with the traffic: without a tide in it, the windows are too short for its noise.",
                "Lengthen autoscaling_window, scale_down_delay and scale_down_half_life_seconds.",
                "A steep rise of the traffic, in as many steps upwards.",
            ),
            "scale", "autoscaler_rounded_desired_scale", wait="5m",
        ),
        Alert(
            "ServescopeAutoscalerInactive", "warning", "autoscaler", "scaling",
            Except(All((Present(Over("max", _SENT, "6h")), Present(Shown("concurrent_requests")))), Present(_SENT)),
            "An autoscaler reports no more.",
            f"The autoscaler of {WHO} sent {NUMBER} replicas at most within six hours, and reports nothing now.",
            Runbook(
                "The deployment had an autoscaler within the last six hours and is still seen, but no desired scale "
                "is: "
                "its target fails, has left the lists, or shows it no more.",
                "Nobody adds replicas when the load grows, and the alerts on scaling are blind.",
                "Look at the targets of the role autoscaler, then at its log and at its leader election.",
                "Restart it; set the replicas by hand for as long as it is gone.",
                "A deployment whose autoscaler was taken away on purpose: over six hours later.",
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
            "An autoscaler no longer sees the load.",
            f"The tokens in flight that the autoscaler of {WHO} reports have not changed for fifteen minutes, while "
            "requests are served.",
            Runbook(
                "Requests are in flight without a break and write tokens, which changes the tokens in flight all the "
                "time; "
                "the autoscaler's gauge of them stands still.",
                "It decides by what was: no replicas when the load grows, too many when it falls.",
                "Look at the autoscaler's log, and whether it still reaches the workers it counts.",
                "Restart it; set the replicas by hand until it follows the load.",
                "None known.",
            ),
            "scale", "autoscaler_in_flight_tokens", keep="5m",
        ),
    )  # fmt: skip


def replica_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on the replicas."""
    return (
        Alert(
            "ServescopeReplicasFailed", "warning", "autoscaler", "replicas",
            Compare(_replicas("failed"), ">", 0.0),
            "Replicas have failed.",
            f"{NUMBER} replicas of {WHO} have failed.",
            Runbook(
                "Replicas ended in failure and have not come back.",
                "Less capacity, and the requests they had are lost.",
                "Read the last log of a failed replica: memory of the GPU, a device error, a missing file.",
                "Let the orchestrator replace it; drain the machine when all of its replicas fail.",
                "None known.",
            ),
            "scale", "replica_count_by_status", wait="5m", keep="5m",
        ),
        Alert(
            "ServescopeReplicaCrashLoop", "warning", "autoscaler", "replicas",
            Compare(Over("changes", _replicas("failed"), "30m"), ">=", its.value(FAILURES_REPEATED)),
            "Replicas fail, are started again, and fail again.",
            f"Failed replicas of {WHO} came or went {its.value(FAILURES_REPEATED):g} times or more within half an "
            "hour.",
            Runbook(
                f"The number of failed replicas changed {its.value(FAILURES_REPEATED):g} times or more within half "
                "an hour.",
                "Every failure loses the requests of its replica; what it had cached is gone.",
                "Read why they ended: right after their start it is the image or its configuration, later the load.",
                "Go back to the last version that ran; take the machine out when all of it is on one.",
                "Replicas that are ended one by one on purpose, by hand.",
            ),
            "scale", "replica_count_by_status", wait="5m", keep="15m",
        ),
        Alert(
            "ServescopeColdStartSlow", "warning", "autoscaler", "replicas",
            Compare(Over("min", _replicas("starting"), "5m"), ">", 0.0),
            "Replicas take long until they serve.",
            f"{NUMBER} replicas of {WHO} or more have been starting for over twenty minutes.",
            Runbook(
                "There has been a starting replica for twenty minutes without a break.",
                "Capacity that was ordered is not there: requests queue while the load is high.",
                "Look at what the start waits for: image, weights, compilation, health check.",
                "Keep weights near, or raise min_replica so that bursts do not wait for a start.",
                "Replicas that start one after the other without a break, each fast enough.",
            ),
            "scale", "replica_count_by_status", wait="15m", keep="5m",
        ),
        Alert(
            "ServescopeNoActiveReplica", "critical", "autoscaler", "replicas",
            Except(
                Compare(_replicas("active"), "<", its.value(ACTIVE_REPLICAS)),
                NONE_WANTED_LATELY,
            ),
            "No replica serves.",
            f"{WHO} has no active replica, and its autoscaler did not ask for that.",
            Runbook(
                "No replica is active, though none was given up on purpose.",
                "Every request fails or waits.",
                "Look at the replicas by status, and at the last change of the deployment.",
                "Go back to the last version that ran; send the traffic to the other stack.",
                "A deployment taken down by hand while its autoscaler still orders replicas; one whose first replicas "
                "take longer than five minutes to start. After scaling to zero the first has twenty minutes, in which "
                "nothing is told.",
            ),
            "scale", "replica_count_by_status", wait="5m", keep="5m",
        ),
    )  # fmt: skip


def _replicas(status: str) -> Shown:
    return Shown("replica_count_by_status", (("status", (status,)),))
