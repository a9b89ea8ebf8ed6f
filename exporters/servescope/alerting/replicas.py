"""The alerts on the replicas that an orchestrator runs."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import bound, waited
from servescope.alerting.listing import NONE_WANTED_LATELY, RETIRED
from servescope.alerting.records import NUMBER, WHO, Alert, Any, Compare, Except, Over, Runbook, Shown
from servescope.contract.bounds import ACTIVE_REPLICAS, FAILURES_REPEATED

_ACTIVE: Final = Shown("replica_count_by_status", (("status", ("active",)),))
_STARTING: Final = Shown("replica_count_by_status", (("status", ("starting",)),))
_FAILED: Final = Shown("replica_count_by_status", (("status", ("failed",)),))
_LAST_START: Final = Shown("replica_start_time_seconds")
_FAILURES: Final = bound(FAILURES_REPEATED)

REPLICA_ALERTS: Final = (
    Alert(
        "ServescopeReplicasFailed", "warning", "autoscaler", "replicas",
        Compare(_FAILED, ">", 0.0),
        "Replicas have failed.",
        f"Number of failed replicas of {WHO}: {NUMBER}.",
        Runbook(
            "Replicas ended with an error and have not been replaced.",
            "Less capacity; the requests on these replicas were lost.",
            "Read the last log of a failed replica: GPU out of memory, a device error, a missing file.",
            "Let the orchestrator replace it; drain the machine if all of its replicas fail.",
            "None known.",
        ),
        "scale", "replica_count_by_status", wait="5m", keep="5m",
    ),
    Alert(
        "ServescopeReplicaCrashLoop", "warning", "autoscaler", "replicas",
        Compare(Over("changes", _FAILED, "30m"), ">=", _FAILURES),
        "Replicas fail repeatedly.",
        f"The number of failed replicas of {WHO} changed {_FAILURES:g} times or more within the last 30 minutes.",
        Runbook(
            f"The number of failed replicas changed {_FAILURES:g} times or more within 30 minutes.",
            "Every failure loses the requests and the cache of a replica.",
            "Find out when they fail: right after the start points to the image or its configuration, later to the "
            "load.",
            "Roll back to the last working version; drain the machine if all failures are on one.",
            "Replicas that are stopped by hand one after the other.",
        ),
        "scale", "replica_count_by_status", wait="5m", keep="15m",
    ),
    Alert(
        "ServescopeColdStartSlow", "warning", "autoscaler", "replicas",
        Except(
            Compare(Over("min", _STARTING, "5m"), ">", 0.0),
            # In a rolling update one starts after the other, and each of them is soon active.
            Any((
                Compare(_ACTIVE, ">", Over("min", _ACTIVE, "5m")),
                Compare(_LAST_START, ">", Over("min", _LAST_START, "5m")),
            )),
        ),
        "Replicas take too long to start.",
        f"{NUMBER} replicas of {WHO} or more are starting, and none has become active for more than "
        f"{waited('5m')}.",
        Runbook(
            f"There has been at least one starting replica at all times for {waited('5m')}, and within that time no "
            "replica became active and no process of the deployment began.",
            "Requested capacity is missing: requests queue while the load is high.",
            "Find out what the start waits for: image, weights, compilation, health check.",
            "Keep the weights close to the machines, or raise min_replica so that bursts do not wait for a start.",
            "A rolling update whose new replicas replace old ones within one scrape, on an engine that does not show "
            "when its process began.",
        ),
        "scale", "replica_count_by_status", wait="15m", keep="5m",
    ),
    Alert(
        "ServescopeNoActiveReplica", "critical", "autoscaler", "replicas",
        Except(Except(Compare(_ACTIVE, "<", bound(ACTIVE_REPLICAS)), NONE_WANTED_LATELY), RETIRED),
        "A deployment has no active replica.",
        f"{WHO} has no active replica, and its autoscaler did not scale it to zero.",
        Runbook(
            "No replica is active, although the deployment was not scaled to zero.",
            "Every request fails or waits.",
            "Check the replicas by status, and the last change of the deployment.",
            "Roll back to the last working version; route the traffic to the other stack.",
            "A deployment that was removed by hand while its autoscaler still requests replicas; one whose first "
            "replicas take longer than 5 minutes to start. After scaling to zero the first replica has 20 minutes to "
            "start before the alert can fire.",
        ),
        "scale", "replica_count_by_status", wait="5m", keep="5m",
    ),
)  # fmt: skip
