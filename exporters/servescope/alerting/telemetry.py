"""The alerts on the targets' telemetry: failing scrapes, targets that left the lists, metrics that are missing."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import bound
from servescope.alerting.records import (
    NUMBER,
    WHO,
    Alert,
    All,
    Any,
    Compare,
    Except,
    Extreme,
    Over,
    Own,
    Present,
    Runbook,
    Shown,
    Vanished,
)
from servescope.alerting.replicas import NONE_WANTED_LATELY
from servescope.contract.bounds import SCRAPE_AGE
from servescope.contract.identity import DEPLOYMENT_LABELS, ENGINE_ROLES, IDENTITY_LABELS, ROLES

_ENGINES: Final = (("role", ENGINE_ROLES),)
_OTHERS: Final = (("role", tuple(role for role in ROLES if role not in ENGINE_ROLES)),)
_TARGET_UP: Final = Own("servescope_target_up", IDENTITY_LABELS)
_ENGINES_UP: Final = Own("servescope_target_up", IDENTITY_LABELS, _ENGINES)
# Whether a target is up is unknown until it was scraped; the age of its last scrape is known while it is listed.
_AGE: Final = Own("servescope_target_scrape_age_seconds", IDENTITY_LABELS)
_ENGINES_AGE: Final = Own("servescope_target_scrape_age_seconds", IDENTITY_LABELS, _ENGINES)
_OTHERS_AGE: Final = Own("servescope_target_scrape_age_seconds", IDENTITY_LABELS, _OTHERS)
_TARGET: Final = "{{ $labels.role }} {{ $labels.replica }} of " + WHO

_SENT: Final = Shown("autoscaler_rounded_desired_scale")
# A rollout that enters another phase is the same deployment, though its series have other labels.
_PHASE: Final = "rollout_phase"
_DEPLOYMENT_IN_ANY_PHASE: Final = tuple(label for label in DEPLOYMENT_LABELS if label != _PHASE)
# Without a collector nothing is listed: one alert says so, and not one for each deployment.
_COLLECTED: Final = Present(Own("servescope_build_info"))
_SCALED_DOWN: Final = Compare(_SENT, "<", Over("max", _SENT, "1h"))
_SCALED_TO_ZERO: Final = Compare(_SENT, "==", 0.0)
_AGE_LIMIT: Final = bound(SCRAPE_AGE)

TELEMETRY_ALERTS: Final = (
    Alert(
        "ServescopeTargetDown", "warning", "telemetry", "telemetry",
        Compare(_TARGET_UP, "==", 0.0),
        "A target cannot be scraped.",
        f"Scrapes of {_TARGET} fail: the target does not answer, answers too late, or its response is incomplete.",
        Runbook(
            "The collector gets no complete response from this target. Its part of every figure is missing.",
            "None by itself; figures are computed from the other targets.",
            "The Sources page of the console and `/api/v1/targets` show the error of the last scrape.",
            "Fix what the error names: the address, the credentials, the timeout, a proxy that truncates responses.",
            "A replica that was removed and is still listed.",
        ),
        "health", "servescope_target_up", wait="5m", keep="5m",
    ),
    Alert(
        "ServescopeTargetGone", "info", "telemetry", "telemetry",
        All((
            Any((
                Except(Vanished(_AGE, "30m", (_PHASE,)), _SCALED_DOWN),
                Vanished(_OTHERS_AGE, "30m", (_PHASE,)),
            )),
            _COLLECTED,
        )),
        "A target is no longer listed.",
        f"{_TARGET} was scraped 30 minutes ago and is no longer discovered.",
        Runbook(
            "Discovery no longer lists a target that it listed 30 minutes ago, and the autoscaler did not scale down.",
            "None by itself; but nobody would notice if the target failed.",
            "Compare with the replicas that the orchestrator runs: was the target replaced, or is it missing from the "
            "list?",
            "Fix the list, or the relabelling that drops the target.",
            "A rollout, which replaces each replica by one with another name; scaling down by hand.",
        ),
        "health", "servescope_target_up", wait="5m",
    ),
    Alert(
        "ServescopeTelemetryStale", "warning", "telemetry", "telemetry",
        Except(Compare(_AGE, ">", _AGE_LIMIT), Compare(_TARGET_UP, "==", 0.0)),
        "A target has not been scraped for too long.",
        f"The last scrape of {_TARGET} was {{{{ $value | humanizeDuration }}}} ago, and no scrape has failed since.",
        Runbook(
            f"The last scrape of the target succeeded more than {_AGE_LIMIT:g} seconds ago, and none was attempted "
            "since.",
            "Figures are computed without the target, and nobody would notice if it failed.",
            "Check whether its host has reached its limit of scrapes per minute, and the missed scrapes of the "
            "collector.",
            "Raise the limit or the interval; give the collector more CPU.",
            "A target with a scrape interval of about this length.",
        ),
        "health", "servescope_target_scrape_age_seconds", wait="5m", keep="5m",
    ),
    Alert(
        "ServescopeDeploymentDown", "critical", "telemetry", "telemetry",
        Except(Compare(Extreme("max", _ENGINES_UP, DEPLOYMENT_LABELS), "==", 0.0), NONE_WANTED_LATELY),
        "No engine of a deployment can be scraped.",
        f"The scrapes of all engines of {WHO} fail.",
        Runbook(
            "The scrapes of every listed engine of the deployment fail. Either no engine serves, or none is reachable "
            "from the collector. The alerts on what users notice cannot fire meanwhile.",
            "Most likely every request fails. If not, nobody would be notified when requests fail.",
            "Send a request yourself. Then check one engine: is it running, and does its port answer, also from the "
            "collector's machine?",
            "Roll back to the last working version; route the traffic to the other stack; fix the network if only the "
            "scrapes fail.",
            "A network policy, a certificate or credentials that affect only the collector; a new deployment that is "
            "listed and takes longer than 5 minutes to start. After scaling to zero the first replica has 20 minutes "
            "to start before the alert can fire.",
        ),
        "health", "servescope_target_up", wait="5m", keep="5m",
    ),
    Alert(
        "ServescopeDeploymentGone", "warning", "telemetry", "telemetry",
        All((
            Except(
                Except(
                    Present(Extreme("min", _ENGINES_AGE, DEPLOYMENT_LABELS, before="30m")),
                    Present(Extreme("min", _ENGINES_AGE, _DEPLOYMENT_IN_ANY_PHASE)),
                ),
                _SCALED_TO_ZERO,
            ),
            _COLLECTED,
        )),
        "No engine of a deployment is listed any more.",
        f"{WHO} had engines 30 minutes ago, and none of them is discovered now.",
        Runbook(
            "All engines of the deployment have disappeared from the lists of targets.",
            "None if the deployment was removed. Otherwise it is not monitored, and nobody is notified when it fails.",
            "Check whether the deployment still runs, and the discovery problems on the Sources page.",
            "Fix the list, or the relabelling that drops its targets; start the deployment if it should run.",
            "A deployment that was removed on purpose.",
        ),
        "health", "servescope_target_up", wait="5m",
    ),
    Alert(
        "ServescopeMetricsMissing", "warning", "telemetry", "telemetry",
        Compare(Own("servescope_target_missing_metrics", IDENTITY_LABELS), ">", 0.0),
        "A target no longer exposes metrics that it exposed before.",
        f"Number of metrics that {_TARGET} no longer exposes: {NUMBER}. An upgrade may have renamed them.",
        Runbook(
            "The target answers, but metrics of the contract that it exposed before are missing.",
            "Figures and alerts computed from them have no data, and look healthy.",
            "The Sources page of the console names them; `servescope inspect` compares the response with the source "
            "maps.",
            "Set the source map of the new version in the target's list, or write one.",
            "A feature that was switched off, such as speculative decoding; an engine that was restarted, has had no "
            "request since, and exposes some metrics only from its first request on.",
        ),
        "health", "servescope_target_missing_metrics", keep="5m",
    ),
    Alert(
        "ServescopeScrapesTruncated", "warning", "telemetry", "telemetry",
        Compare(
            Own("servescope_scrapes_total", ("outcome",), (("outcome", ("truncated",)),), increase_over="10m"),
            ">", 0.0,
        ),
        "Responses of targets are truncated.",
        "Scrapes ended before the response was complete within the last 10 minutes.",
        Runbook(
            "Connections end before the response is complete. Truncated responses are discarded.",
            "Figures of those targets are missing.",
            "The Sources page names the targets; look for a proxy with a limit on size or time.",
            "Raise that limit, or scrape the target without the proxy.",
            "A target that is killed while it answers.",
        ),
        "health", "servescope_scrapes_total", wait="5m",
    ),
)  # fmt: skip
