"""The alerts on the replicas that an orchestrator runs."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.capacity import START
from servescope.alerting.playbooks.failures import ERRORS, UNREACHABLE
from servescope.alerting.rules.choices import bound, in_words, waited
from servescope.alerting.rules.listing import (
    ANY_PHASE,
    ENGINES,
    NONE_WANTED_LATELY,
    RETIRED,
    START_GRACE,
    starting,
    target_up,
)
from servescope.alerting.rules.records import (
    NUMBER,
    WHO,
    Alert,
    All,
    Any,
    Compare,
    Except,
    FigureRef,
    FirstCheck,
    OverTime,
    Present,
    Runbook,
    Scaled,
    Subquery,
    Total,
    by_replica,
)
from servescope.contract.bounds import ACTIVE_REPLICAS, FAILED_SHARE, FAILURES_REPEATED
from servescope.contract.identity import DEPLOYMENT_LABELS

_ACTIVE: Final = FigureRef("replica_count_by_status", (("status", ("active",)),))
_STARTING: Final = FigureRef("replica_count_by_status", (("status", ("starting",)),))
_FAILED: Final = FigureRef("replica_count_by_status", (("status", ("failed",)),))
_LAST_START: Final = FigureRef("replica_start_time_seconds")
_FAILURES: Final = bound(FAILURES_REPEATED)
_SHARE: Final = bound(FAILED_SHARE)
# Of thousands of replicas one is always being restarted; of a few, a single one is more than this share.
_TOLERATED: Final = Scaled(Total(FigureRef("replica_count_by_status"), DEPLOYMENT_LABELS), _SHARE)

REPLICA_ALERTS: Final = (
    Alert(
        "ServescopeReplicasFailed", "warning", "autoscaler", "replicas",
        Any((
            Compare(_FAILED, ">", _TOLERATED),
            All((
                Compare(OverTime("max", _FAILED, "30m"), ">", _TOLERATED),
                Compare(OverTime("changes", _FAILED, "30m"), ">=", _FAILURES),
            )),
        )),
        "Replicas have failed, or fail repeatedly.",
        f"Number of failed replicas of {WHO}, now or repeatedly within the last 30 minutes: {NUMBER}, more than "
        f"{_SHARE:%} of all.",
        Runbook(
            f"More than {_SHARE:%} of the replicas, which is at least one, ended with an error and have not been "
            f"replaced; or as many failed at once within 30 minutes, and the number of failed ones changed "
            f"{_FAILURES:g} times or more: a crash loop.",
            "The requests on these replicas failed, and their caches are lost. The others have more to do.",
            "Read the last log of a failed replica: GPU out of memory, a device error, a missing file. If replicas "
            "fail repeatedly, find out when: right after the start points to the image or its configuration, later to "
            "the load.",
            "Let the orchestrator replace it; drain the machine if all of its replicas fail. In a crash loop roll back "
            "to the last working version.",
            "Replicas that are stopped by hand one after the other.",
            FirstCheck(
                FigureRef("replica_count_by_status"),
                "`failed` above 0, and `active` below what was requested; or `starting` and `failed` take turns.",
                "`failed` falls and `active` is level again: they were replaced.",
                by_replica("replica_start_time_seconds"),
                "Each line is when a process began. Replicas that are missing failed; one that keeps rising fails "
                "repeatedly. All of them: the version, or a request that ends whoever gets it.",
            ),
            (ERRORS, START),
            "Do not delete a failed replica before you have its log. Do not add replicas in a crash loop: they fail as "
            "well.",
            "Whoever owns the machines, if all replicas of one machine fail; whoever made the last change, now, if a "
            "rollback is not yours to do.",
            "No replica is `failed`, and none has failed for 30 minutes.",
        ),
        "scale", "replica_count_by_status", for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeColdStartSlow", "warning", "autoscaler", "replicas",
        Any((
            Except(
                Compare(OverTime("min", _STARTING, "5m"), ">", 0.0),
                # In a rolling update one starts after the other, and each of them is soon active.
                Any((
                    Compare(_ACTIVE, ">", OverTime("min", _ACTIVE, "5m")),
                    Compare(_LAST_START, ">", OverTime("min", _LAST_START, "5m")),
                )),
            ),
            # What ends each start before its time may be what wanted it: then no replica is missing in between.
            All((
                Present(OverTime("max", _STARTING, "30m")),
                Compare(OverTime("changes", _STARTING, "30m"), ">=", _FAILURES),
                Compare(Subquery("max", Total(_ACTIVE, DEPLOYMENT_LABELS), "30m", every="1m"), "==", 0.0),
            )),
        )),
        "Replicas take too long to start.",
        f"{NUMBER} replicas of {WHO} or more are starting, and none has become active for more than "
        f"{waited('5m')}.",
        Runbook(
            f"There has been at least one starting replica at all times for {waited('5m')}, and within that time no "
            "replica became active and no process of the deployment began. Or the number of starting ones changed "
            f"{_FAILURES:g} times or more within 30 minutes while none was active: starts are given up before they are "
            "done.",
            "Nothing at a low load. At a high load requests queue, as the capacity that was requested is missing. "
            "Without any active replica every request fails or waits.",
            "Find out what the start waits for: a machine, the image, the weights, compilation, or the health check. "
            "If `starting` comes and goes, find out who ends the start: an autoscaler that scales to zero sooner than "
            "a start takes, a deadline of the orchestrator, or a liveness probe.",
            "If it waits for a machine or an image, that is the orchestrator's: free a GPU, or choose another machine. "
            "If the process runs, its log says how far it is. For the next time: keep the weights close to the "
            "machines, or raise min_replica so that bursts do not wait for a start. If starts are given up, raise "
            "min_replica at once, and then the time or the probe that ends them.",
            "A rolling update whose new replicas replace old ones within one scrape, on an engine that does not show "
            "when its process began.",
            FirstCheck(
                FigureRef("replica_count_by_status"),
                "`starting` is level or comes and goes, `active` is not rising.",
                "`starting` falls and `active` rises: it was only slow.",
                by_replica("replica_start_time_seconds"),
                "A replica with a line runs a process that loads or compiles. One without has no process yet: the "
                "orchestrator, the image or the machine.",
            ),
            (START,),
            "Do not delete the starting replica to start it again: it begins from nothing.",
            "Whoever owns the machines, if no GPU is free and a queue grows.",
            "The replicas are active.",
        ),
        "scale", "replica_count_by_status", for_="15m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeNoActiveReplica", "critical", "autoscaler", "replicas",
        Except(
            Except(Except(Compare(_ACTIVE, "<", bound(ACTIVE_REPLICAS)), NONE_WANTED_LATELY), RETIRED),
            starting(Total(_ACTIVE, ANY_PHASE), "3h"),
        ),
        "A deployment has no active replica.",
        f"{WHO} has no active replica, and its autoscaler did not scale it to zero.",
        Runbook(
            "No replica is active, although the deployment was not scaled to zero.",
            "Every request fails or waits.",
            "Look at the last change of the deployment, and at the log of one replica: did it start and fail, or was "
            "it never started?",
            "Route the traffic to the other stack first. Then roll back to the last working version.",
            "A deployment that was removed by hand while its autoscaler still requests replicas; one whose first "
            f"replicas take longer than {in_words(START_GRACE)} to start. After scaling to zero the first replica has "
            "20 minutes to start before the alert can fire.",
            FirstCheck(
                FigureRef("replica_count_by_status"),
                "`active` at 0, and nothing is `starting`.",
                "something is `starting`: see how far it is.",
                target_up(ENGINES),
                "Each line is an engine that is listed: one at 1 answers, whatever the orchestrator counts.",
                lowest=True,
            ),
            (UNREACHABLE, START),
            "Do not scale to zero and up again: that loses what is already starting.",
            "The owner of the deployment and whoever owns the machines, now.",
            "A replica is active, and a request of yours is answered.",
        ),
        "scale", "replica_count_by_status", for_="5m", keep_firing_for="5m",
    ),
)  # fmt: skip
