"""The alerts on the targets' telemetry: failing scrapes, targets that left the lists, metrics that are missing."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.failures import TELEMETRY, UNREACHABLE
from servescope.alerting.rules.choices import bound, in_words
from servescope.alerting.rules.listing import (
    ANY_PHASE,
    COLLECTED,
    ENGINES,
    EXPECTED,
    GONE,
    NONE_WANTED_LATELY,
    RETIRED,
    START_GRACE,
    TARGET_STARTING,
    TARGET_UP,
    lately_listed,
    scrape_age,
    starting,
    target_up,
    unless_unused,
    unseen,
)
from servescope.alerting.rules.records import (
    LISTED,
    PERCENT,
    WHO,
    Alert,
    All,
    Any,
    Compare,
    Count,
    Except,
    Extreme,
    FirstCheck,
    Present,
    Quotient,
    Runbook,
    Scaled,
    SelfMetric,
    Subquery,
)
from servescope.contract.bounds import MOST_GONE, SCRAPE_AGE, SEVERAL_DOWN, TARGETS_DOWN
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS
from servescope.contract.own_metrics import TARGET_LACKS, TARGET_UNDERSTOOD

_FEW: Final = bound(TARGETS_DOWN)


def _counted(health: str) -> Extreme:
    """How many targets of a deployment are up, or down."""
    targets = SelfMetric("servescope_targets", (*DEPLOYMENT_LABELS, "health"), (("health", (health,)),))
    return Extreme("max", targets, DEPLOYMENT_LABELS)


_TARGET: Final = "{{ $labels.role }} {{ $labels.replica }} of " + WHO
_ENGINES_UP: Final = Extreme("max", target_up(ENGINES), ANY_PHASE)
# Replicas that replace those of a deployment are no first start of it, though the new ones are not up yet.
_DOWN: Final = Except(
    Except(Except(Compare(_ENGINES_UP, "==", 0.0), NONE_WANTED_LATELY), RETIRED), starting(_ENGINES_UP, "3h")
)
_WATCHED: Final = Except(Except(Present(_ENGINES_UP), NONE_WANTED_LATELY), RETIRED)
_RESTARTING: Final = All((
    Compare(Subquery("max", TARGET_UP, START_GRACE, every="1m"), ">", 0.0),
    Compare(_counted("down"), "<=", Scaled(_counted("up"), _FEW)),
))  # fmt: skip
"""A target that was up lately, while nearly all of its deployment are."""
_MISSING: Final = SelfMetric("servescope_target_missing_metrics", IDENTITY_LABELS)
_UNDERSTOOD: Final = SelfMetric(TARGET_UNDERSTOOD, IDENTITY_LABELS)
_AGE_LIMIT: Final = bound(SCRAPE_AGE)
_MOST: Final = bound(MOST_GONE)

TELEMETRY_ALERTS: Final = (
    Alert(
        "ServescopeTargetDown", "warning", "telemetry", "telemetry",
        Except(Except(Compare(target_up(), "==", 0.0), TARGET_STARTING), _RESTARTING),
        "A target cannot be scraped.",
        f"Scrapes of {_TARGET} fail: the target does not answer, answers too late, or its response is incomplete.",
        Runbook(
            "The collector gets no complete response from this target. Its part of every figure is missing. Where no "
            f"more than {_FEW:%} as many targets of the deployment are down as are up, a target that was up has "
            f"{in_words(START_GRACE)} to be restarted.",
            "Nothing, if only the scrape fails. If the target itself is down, the requests it had are lost and the "
            "others have more to do.",
            "The Sources page of the console and `/api/v1/targets` show the error of the last scrape. Does the target "
            "answer a request? Then only its metrics do not.",
            "Fix what the error names: the address, the credentials, the timeout, a proxy that truncates responses. "
            "If the target is down, let the orchestrator replace it.",
            "A replica that was removed and is still listed; a new one that takes longer than "
            f"{in_words(START_GRACE)} to start, before which the alert cannot fire unless it was up; one of a few that "
            "is restarted under its name, as of a StatefulSet, and loads weights for more than 10 minutes.",
            FirstCheck(
                Extreme("min", target_up(), ANY_PHASE),
                "0, and level: a target of the deployment does not answer.",
                "no target of it is at 0 any more.",
                target_up(),
                "Each line is a target. Several at 0 at the same minute: a change, a network policy or a machine that "
                "they share.",
                lowest=True,
            ),
            (TELEMETRY, UNREACHABLE),
            "Do not remove the target from the list to silence it: nobody would notice if it fails for good.",
            "Nobody at night, as long as others of its role answer: if none does, another alert pages.",
            "The target's scrapes succeed.",
        ),
        "health", "servescope_target_up", for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeTelemetryStale", "warning", "telemetry", "telemetry",
        # One that no translator answers for is not known to be down while a page says so of the fleet.
        Except(
            Except(Compare(scrape_age(), ">", _AGE_LIMIT), Compare(target_up(), "==", 0.0)), Present(unseen())
        ),
        "A target has not been scraped for too long.",
        f"The last scrape of {_TARGET} was {{{{ $value | humanizeDuration }}}} ago, and no scrape has failed since.",
        Runbook(
            f"The last scrape of the target succeeded more than {_AGE_LIMIT:g} seconds ago, and none was attempted "
            "since.",
            "Nothing by itself. Figures are computed without the target, and nobody would notice if it failed.",
            "Check whether its host has reached its limit of scrapes per minute, and the missed scrapes of the "
            "collector.",
            "Raise the limit or the interval; give the collector more CPU.",
            "A target with a scrape interval of about this length.",
            FirstCheck(
                Extreme("max", scrape_age(), ANY_PHASE),
                "rising: the target is not scraped at all.",
                "a saw whose teeth are as long as the scrape interval.",
                scrape_age(),
                "Targets of one host alone: its limit. Targets of all hosts: the collector does not keep up.",
            ),
            (),
            "Do not restart the target: it was not asked.",
            "Nobody at night, unless all targets of a deployment are stale: then whoever runs the collectors.",
            f"The age stays below {_AGE_LIMIT:g} seconds.",
        ),
        "health", "servescope_target_scrape_age_seconds", for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeDeploymentDown", "critical", "telemetry", "telemetry",
        _DOWN,
        "No engine of a deployment can be scraped.",
        f"The scrapes of all engines of {WHO} fail.",
        Runbook(
            "The scrapes of every listed engine of the deployment fail. Either no engine serves, or none is reachable "
            "from the collector. The alerts on what users notice cannot fire meanwhile. The alert stays active for up "
            "to a day if the engines then vanish from the lists of targets: a list without engines is no recovery.",
            "Most likely every request fails. If not, nobody would be notified when requests fail.",
            "Send a request yourself: if it is answered, only the scrapes fail. Then check one engine: does it run, "
            "and does its port answer, also from the collector's machine? The last lines of its log name a lack of GPU "
            "memory, a missing file, or a lost GPU.",
            "Roll back to the last working version; route the traffic to the other stack; fix the network if only the "
            "scrapes fail.",
            "A network policy, a certificate or credentials that affect only the collector; a new deployment that is "
            f"listed and takes longer than {in_words(START_GRACE)} to start. After scaling to zero the first replica "
            "has 20 minutes to start before the alert can fire. A stack whose configured share of the traffic is 0 is "
            "left out.",
            FirstCheck(
                _ENGINES_UP,
                "0: no engine of the deployment answers.",
                "1: at least one answers again.",
                target_up(ENGINES),
                "Each line is an engine. All at 0 at the same minute: a change, the network, or what they share. One "
                "after the other: requests or memory end them.",
                lowest=True,
            ),
            (UNREACHABLE,),
            "Do not remove the engines from the list to silence it. Do not restart all of them before you have saved "
            "the log of one.",
            "The owner of the deployment, now, if a request of yours is not answered and a rollback does not help.",
            "One engine answers, and a request of yours is answered.",
        ),
        "health", "servescope_target_up", for_="5m", keep_firing_for="5m",
        lasts=Except(unless_unused(lately_listed(ENGINES)), Compare(_ENGINES_UP, "==", 1.0)),
    ),
    Alert(
        "ServescopeDeploymentGone", "warning", "telemetry", "telemetry",
        All((GONE, COLLECTED)),
        "No engine of a deployment is listed any more.",
        f"{WHO} had engines within the last day, and none of them is listed now.",
        Runbook(
            "All engines of the deployment have disappeared from the lists of targets. The alert stays active for a "
            "day, or until an engine is listed again.",
            "Nothing, if the deployment was removed on purpose. Otherwise it is not monitored, and nobody is notified "
            "when it fails.",
            "Check first whether the deployment still runs: send it a request. Then open the Sources page of the "
            "console: a list with a problem keeps its former targets, so an empty list without a problem is what the "
            "orchestrator reported.",
            "Fix the list, or the relabelling that drops its targets; start the deployment if it should run. If it "
            "was removed on purpose, set its stack's share to 0 in `[[traffic_split]]`, or silence the alert for a "
            "day.",
            "A deployment that was removed on purpose. Deployments that are scaled to zero, whose configured share "
            "of the traffic is 0, or that had no requests when they left while their model has another deployment, "
            "are left out.",
            FirstCheck(
                Extreme("min", scrape_age(ENGINES), ANY_PHASE),
                "the deployment has no line, and it answers requests: nobody watches it.",
                "the deployment has no line, and somebody removed it.",
                scrape_age(ENGINES),
                "Each line is an engine that is listed. Lines that ended one after the other: a scale-down. All at the "
                "same minute: the list.",
            ),
            (),
            "Do not empty or rewrite lists by hand before you know who writes them: the next writing would undo it.",
            "The owner of the deployment, now, if it serves and is not watched; else nobody.",
            "An engine of the deployment is listed.",
        ),
        "health", "servescope_targets", for_="5m", panel="Targets of each deployment",
    ),
    Alert(
        "ServescopeMostDeploymentsGone", "critical", "telemetry", "telemetry",
        All((Compare(Quotient(Count(GONE), Count(EXPECTED)), ">", _MOST), COLLECTED)),
        "Most deployments are no longer listed.",
        f"{PERCENT} of the deployments that were listed within the last day have no engine in the lists of targets.",
        Runbook(
            f"More than {_MOST:%} of the deployments of the last day have disappeared from the lists of targets: "
            "usually the source of the lists failed, and seldom the deployments. One page replaces the tickets of "
            "ServescopeDeploymentGone.",
            "Nothing, if only the lists failed. But whatever happens to the users of these deployments, nobody is "
            "notified.",
            "Send a request to one of the deployments. If it answers, only the lists are wrong: the Sources page of "
            "the console names each list, its number of targets and its problem. If it does not, the cluster or its "
            "network failed.",
            "Restore the source of the lists: the orchestrator's API, the job that writes the files, the credentials. "
            "Until then watch the gateway's own monitoring.",
            "Several deployments that were removed within a day: set the shares of their stacks to 0, or silence it.",
            FirstCheck(
                Quotient(Count(GONE), Count(EXPECTED)),
                f"above {_MOST:%}, since one minute.",
                "falling: the lists come back.",
                Extreme("min", scrape_age(ENGINES), ANY_PHASE),
                "Each line is a deployment that is still listed: what do those that are missing have in common?",
            ),
            (),
            "Do not restart the collector: it would start with the lists as they are now.",
            "Whoever owns the orchestrator or the job that writes the lists, now.",
            "The deployments are listed again.",
        ),
        "health", "servescope_targets", for_="5m", keep_firing_for="5m", panel="Targets of each deployment",
    ),
    Alert(
        "ServescopeMostDeploymentsDown", "critical", "telemetry", "telemetry",
        All((
            Compare(Quotient(Count(_DOWN), Count(_WATCHED)), ">", _MOST),
            Compare(Count(_DOWN), ">=", bound(SEVERAL_DOWN)),
        )),
        "Most deployments cannot be scraped.",
        f"The scrapes of all engines fail on {PERCENT} of the deployments.",
        Runbook(
            f"On more than {_MOST:%} of the deployments, and on {bound(SEVERAL_DOWN):g} or more, no engine can be "
            "scraped: they have one cause, such as the network of the collector, a certificate or a network policy, "
            "or the cluster is down. One page replaces those of ServescopeDeploymentDown, ServescopeRouterDown and "
            "ServescopePhaseDown.",
            "Nothing, if only the collector cannot reach them. If the cluster is down every request fails. Either way "
            "nobody is notified of what users notice meanwhile.",
            "Send a request to one of the deployments from a machine other than the collector's. If it answers, only "
            "the scrapes fail: the Sources page of the console names the error, which is the same for all of them.",
            "If only the scrapes fail: restore the network, the policy, the certificate or the credentials of the "
            "collector; until then watch the gateway's own monitoring. If the cluster is down, follow its owner's plan "
            "for that, and route the traffic elsewhere.",
            "A change of a network policy or of credentials that affects the collector alone. New deployments have "
            f"{in_words(START_GRACE)} to start before they count as down.",
            FirstCheck(
                Quotient(Count(_DOWN), Count(_WATCHED)),
                f"above {_MOST:%}, since one minute.",
                "falling: deployments answer again.",
                _ENGINES_UP,
                "Each line is a deployment. All at 0 at the same minute: what they share with the collector, or with "
                "one another.",
                lowest=True,
            ),
            (UNREACHABLE,),
            "Do not restart engines before one of them is known not to answer: they may serve as always.",
            "Whoever owns the network of the collector, now; the owner of the cluster if a request is not answered.",
            "Most deployments are scraped again; those that are not have pages of their own.",
        ),
        "health", "servescope_target_up", for_="3m", keep_firing_for="10m", panel="Targets of each deployment",
        waits_less="it must be known before the pages of single deployments that it replaces, though the first of them "
        "fails minutes before most do",
    ),
    Alert(
        "ServescopeMetricsMissing", "warning", "telemetry", "telemetry",
        Any((Compare(_MISSING, ">", 0.0), Compare(_UNDERSTOOD, "==", 0.0))),
        "A target answers, and metrics of it cannot be read.",
        f"{_TARGET} answers, and no longer exposes {LISTED} that it exposed before, or no source map reads what it "
        "exposes. An upgrade may have renamed them.",
        Runbook(
            "The target answers, but metrics of the contract that it exposed before are missing, or no source map "
            "reads its page: `servescope_target_understood` is 0.",
            "Nothing by itself. Figures and alerts computed from them have no data, and look healthy.",
            "The Sources page of the console names them, or the nearest engine; `servescope inspect` compares the "
            "response with the source maps. Did its version or its arguments change?",
            "Set the source map of the new version in the target's list, or write one; or restore the argument that "
            "exposes the metrics.",
            "A feature that was switched off, such as speculative decoding; an engine that was restarted, has had no "
            "request since, and exposes some metrics only from its first request on.",
            FirstCheck(
                Extreme("max", _MISSING, ANY_PHASE),
                "up since the minute of a rollout; 0 where no source map reads it.",
                "0: all metrics are there again.",
                _MISSING,
                "All replicas alike: a new version or new arguments. A single one: it differs from the others, or it "
                "had no request yet.",
            ),
            (TELEMETRY,),
            "Do not read a quiet dashboard as health meanwhile.",
            "Nobody at night, unless a rollout is under way: then whoever does it, to stop it.",
            "No metric is missing.",
        ),
        "health", "servescope_target_missing_metrics", keep_firing_for="5m",
        lists=SelfMetric(TARGET_LACKS, (*IDENTITY_LABELS, "metric")),
    ),
)  # fmt: skip
