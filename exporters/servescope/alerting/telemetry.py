"""The alerts on what the others are seen by: the targets' telemetry, and servescope, Prometheus and Alertmanager."""

from __future__ import annotations

from servescope.alerting.choices import Choices
from servescope.alerting.records import (
    NUMBER,
    WHO,
    Alert,
    All,
    Always,
    Any,
    Compare,
    Except,
    Extreme,
    Gone,
    Over,
    Own,
    Present,
    Quotient,
    Runbook,
    Shown,
    Vanished,
)
from servescope.alerting.scaling import NONE_WANTED_LATELY
from servescope.contract.bounds import LOOP_LAG, SCRAPE_AGE, STORE_QUEUE_AGE
from servescope.contract.identity import DEPLOYMENT_LABELS, ENGINE_ROLES, IDENTITY_LABELS, ROLES
from servescope.contract.own_metrics import (
    ALERTMANAGER_RELOADED,
    ALERTS_UNSENT,
    NOTIFICATIONS_FAILED,
    PROMETHEUS_RELOADED,
    RULE_FAILURES,
    RULES_MISSED,
    SCRAPED_UP,
)

_ENGINES = (("role", ENGINE_ROLES),)
_OTHERS = (("role", tuple(role for role in ROLES if role not in ENGINE_ROLES)),)
_TARGET_UP = Own("servescope_target_up", IDENTITY_LABELS)
_ENGINES_UP = Own("servescope_target_up", IDENTITY_LABELS, _ENGINES)
# Whether a target is up is unknown while it is not scraped; its last scrape's age is known as long as it is listed.
_AGE = Own("servescope_target_scrape_age_seconds", IDENTITY_LABELS)
_ENGINES_AGE = Own("servescope_target_scrape_age_seconds", IDENTITY_LABELS, _ENGINES)
_OTHERS_AGE = Own("servescope_target_scrape_age_seconds", IDENTITY_LABELS, _OTHERS)
_TARGET = "{{ $labels.role }} {{ $labels.replica }} of " + WHO

_SENT = Shown("autoscaler_rounded_desired_scale")
# A rollout that goes into another phase is no other deployment, though its series are others.
_PHASE = "rollout_phase"
_DEPLOYMENT_IN_ANY_PHASE = tuple(label for label in DEPLOYMENT_LABELS if label != _PHASE)
# Without a collector nothing is listed: that is told once, and not for each deployment.
_COLLECTED = Present(Own("servescope_build_info"))
_SCALED_DOWN = Compare(_SENT, "<", Over("max", _SENT, "1h"))
_GIVEN_UP = Compare(_SENT, "==", 0.0)


def telemetry_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on the targets' telemetry."""
    return (
        Alert(
            "ServescopeTargetDown", "warning", "telemetry", "telemetry",
            Compare(_TARGET_UP, "==", 0.0),
            "A target cannot be scraped.",
            f"The scrapes of {_TARGET} fail: it does not answer, too late, or its text is cut off.",
            Runbook(
                "The collector gets no whole text from this target. Its part of every figure is missing.",
                "None by itself; figures are those of the other targets.",
                "The page Sources of the console, or `/api/v1/targets`, says how its last scrape ended.",
                "Mend what that says: the address, credentials, a longer timeout, a proxy that cuts bodies off.",
                "A replica that was taken away and is still listed.",
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
            f"{_TARGET} was scraped half an hour ago and is on no list any more.",
            Runbook(
                "Discovery does not name a target that it named half an hour ago, and the autoscaler did not scale "
                "down.",
                "None by itself; nobody would see it fail.",
                "Compare with the replicas that the orchestrator runs: replaced, or forgotten?",
                "Mend the list, or the relabelling that drops it.",
                "A rollout, in which each replica is replaced by one of another name; scaling down by hand.",
            ),
            "health", "servescope_target_up", wait="5m",
        ),
        Alert(
            "ServescopeTelemetryStale", "warning", "telemetry", "telemetry",
            Except(
                Compare(_AGE, ">", its.value(SCRAPE_AGE)),
                Compare(_TARGET_UP, "==", 0.0),
            ),
            "A target has not been scraped for long.",
            f"The last scrape of {_TARGET} is {{{{ $value | humanizeDuration }}}} old, though none has failed.",
            Runbook(
                f"The last scrape of the target succeeded, more than {its.value(SCRAPE_AGE):g} seconds ago, and none "
                "was tried "
                "since.",
                "Figures go on as if it were not there, and nobody sees it fail.",
                "Look whether its host is at its limit of scrapes a minute, and at the scrapes that the collector "
                "missed.",
                "Raise the limit or the interval; give the collector more CPU.",
                "A target with a scrape interval about as long.",
            ),
            "health", "servescope_target_scrape_age_seconds", wait="5m", keep="5m",
        ),
        Alert(
            "ServescopeDeploymentDown", "critical", "telemetry", "telemetry",
            Except(Compare(Extreme("max", _ENGINES_UP, DEPLOYMENT_LABELS), "==", 0.0), NONE_WANTED_LATELY),
            "No engine of a deployment answers.",
            f"Not one scrape of an engine of {WHO} succeeds.",
            Runbook(
                "Every engine of the deployment that is listed fails its scrapes. Either none serves, or none can be "
                "seen; "
                "the alerts on what its users feel cannot be told any more.",
                "Most likely every request fails. If not, nobody would be told when they do.",
                "Send a request yourself. Then look at one engine: does it run, does its port answer, from the "
                "collector's machine too?",
                "Go back to the last version that ran; send the traffic to the other stack; mend the network when "
                "only the "
                "scrapes fail.",
                "A network policy, a certificate or credentials that shut out the collector alone; a new deployment "
                "that is listed and takes longer than five minutes to start. After scaling to zero the first replica "
                "has twenty minutes, in which nothing is told.",
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
                    _GIVEN_UP,
                ),
                _COLLECTED,
            )),
            "No engine of a deployment is listed any more.",
            f"{WHO} had engines half an hour ago, and discovery names none of them now.",
            Runbook(
                "All engines of the deployment have left the lists of targets.",
                "None, if it was taken down. Otherwise nobody sees it, and nobody is told when it fails.",
                "Look whether the deployment still runs, and at the problems of discovery on the page Sources.",
                "Mend the list, or the relabelling that drops its targets; start the deployment if it should run.",
                "A deployment that was taken down on purpose.",
            ),
            "health", "servescope_target_up", wait="5m",
        ),
        Alert(
            "ServescopeMetricsMissing", "warning", "telemetry", "telemetry",
            Compare(Own("servescope_target_missing_metrics", IDENTITY_LABELS), ">", 0.0),
            "A target no longer shows metrics that it showed.",
            f"{NUMBER} metrics that {_TARGET} showed are missing, as after an upgrade that renamed them.",
            Runbook(
                "The target answers, and contract metrics that it had before are not in its text.",
                "Figures and alerts made of them are blind, and look healthy.",
                "The page Sources of the console names them; `servescope inspect` compares the text with the source "
                "maps.",
                "Name the new version's source map in the target's list, or write one.",
                "A feature that was switched off, such as speculation; an engine that was restarted and has had no "
                "request since, where it shows some metrics from its first request on.",
            ),
            "health", "servescope_target_missing_metrics", keep="5m",
        ),
        Alert(
            "ServescopeScrapesTruncated", "warning", "telemetry", "telemetry",
            Compare(
                Own("servescope_scrapes_total", ("outcome",), (("outcome", ("truncated",)),), increase_over="10m"),
                ">", 0.0,
            ),
            "Texts of targets end in the middle.",
            "Scrapes ended in the middle of the text within the last ten minutes.",
            Runbook(
                "Connections end before the text does. What came is not used: half a text is no reading.",
                "Figures of those targets are missing.",
                "The page Sources says which targets; look for a proxy with a limit of size or time.",
                "Raise that limit, or scrape the target without the proxy.",
                "A target that is killed while it answers.",
            ),
            "health", "servescope_scrapes_total", wait="5m",
        ),
    )  # fmt: skip


def self_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on servescope itself, and on the Prometheus and the Alertmanager that tell of it."""
    return (
        Alert(
            "ServescopeCollectorGone", "critical", "collector", "servescope",
            Gone("servescope_build_info"),
            "Nothing is collected.",
            "No servescope collector is scraped: everything else here is blind.",
            Runbook(
                "There is no series of any collector: it does not run, or Prometheus does not scrape it.",
                "Nobody sees the deployments, and no other alert can be told.",
                "Look whether the collector runs and whether Prometheus' page of targets names it.",
                "Start it, or mend the scrape configuration.",
                "None known.",
            ),
            "health", "servescope_build_info", wait="5m", panel="Collectors",
        ),
        Alert(
            "ServescopeInternalErrors", "warning", "collector", "servescope",
            Compare(Own("servescope_internal_errors_total", ("stage",), increase_over="10m"), ">", 0.0),
            "The collector fails at its own work.",
            "The stage {{ $labels.stage }} of the collector failed within the last ten minutes.",
            Runbook(
                "A fault of the collector's own: each cost one scrape, one evaluation, or one look at the lists.",
                "Figures have holes.",
                "Its log has each fault with where it happened.",
                "Report it with the log; the version before may not have it.",
                "None known.",
            ),
            "health", "servescope_internal_errors_total", wait="5m",
        ),
        Alert(
            "ServescopeStoreBehind", "warning", "collector", "servescope",
            Compare(Own("servescope_store_queue_age_seconds"), ">", its.value(STORE_QUEUE_AGE)),
            "Scrapes wait to be stored.",
            "The oldest scrape that is not stored yet has waited for {{ $value | humanizeDuration }}.",
            Runbook(
                "The store takes scrapes more slowly than they come, or not at all.",
                "What waits is lost if the collector ends; the console shows the past without it.",
                "Look at the disk: full, slow, or the file locked by another program.",
                "Free the disk, or move the store to a faster one.",
                "A backup that reads the file.",
            ),
            "health", "servescope_store_queue_age_seconds", wait="5m", keep="5m",
        ),
        Alert(
            "ServescopeConfigurationRefused", "warning", "collector", "servescope",
            Compare(Own("servescope_configuration_reload_success"), "==", 0.0),
            "The collector's configuration was refused.",
            "The collector works on with the configuration before: the file it was given last is wrong.",
            Runbook(
                "The file could not be taken up when it was last read; the one before is in force.",
                "None yet; a restart would fail.",
                "The collector's log names file, key, value and what was expected.",
                "Mend the file and reload.",
                "None known.",
            ),
            "health", "servescope_configuration_reload_success", wait="5m",
        ),
        Alert(
            "ServescopeCollectorDown", "warning", "collector", "servescope",
            Compare(Own(SCRAPED_UP, ("instance", "job"), (("job", (its.collector_job,)),)), "==", 0.0),
            "Prometheus cannot scrape a collector.",
            "The scrapes of the collector {{ $labels.instance }} fail.",
            Runbook(
                "Prometheus lists this collector and gets nothing of it.",
                "What it alone collects is missing from every figure.",
                "Look whether it runs; Prometheus' page of targets says how its scrape ends.",
                "Start it, or mend address, credentials or certificate in the scrape configuration.",
                "A collector that was taken away and is still listed.",
            ),
            "health", SCRAPED_UP, wait="5m", keep="5m",
        ),
        Alert(
            "ServescopeEventLoopLags", "warning", "collector", "servescope",
            Compare(
                Quotient(
                    Own("servescope_event_loop_lag_seconds_sum", ("instance",), increase_over="10m"),
                    Own("servescope_event_loop_lag_seconds_count", ("instance",), increase_over="10m"),
                ),
                ">", its.value(LOOP_LAG),
            ),
            "The collector does not keep its pace.",
            "Its event loop woke {{ $value | humanizeDuration }} late on average over the last ten minutes.",
            Runbook(
                f"The collector's event loop wakes more than {its.value(LOOP_LAG):g} seconds later than it asked to, "
                "on average "
                "over ten minutes: scrapes begin late, and answers wait.",
                "Figures of short windows lose precision; scrapes are left out when it grows worse.",
                "Look at its CPU, at the targets and series it holds, and at the machine: is something else taking the "
                "CPU?",
                "Give it more CPU, or lengthen the scrape interval.",
                "A machine that was suspended.",
            ),
            "health", "servescope_event_loop_lag_seconds", wait="5m", keep="5m",
        ),
        Alert(
            "ServescopeSamplesDropped", "warning", "collector", "servescope",
            Compare(
                Own(
                    "servescope_dropped_samples_total", ("reason",), (("reason", ("series_limit", "store")),),
                    increase_over="10m",
                ),
                ">", 0.0,
            ),
            "The collector leaves out samples.",
            "Samples were left out within the last ten minutes, by reason {{ $labels.reason }}.",
            Runbook(
                "Samples of targets were left out: `series_limit` when a target has more series than are held of one, "
                "`store` when the store failed for so long that the oldest were given up.",
                "Figures lack what was left out; with `store` the past does.",
                "The page Sources names the targets with too many series; the log says what is wrong with the store.",
                "Raise max_held_series or drop labels at the target; free the store's disk.",
                "A rollout that brings all series anew within one window.",
            ),
            "health", "servescope_dropped_samples_total", wait="5m",
        ),
        Alert(
            "ServescopeRuleEvaluationFails", "warning", "prometheus", "servescope",
            Compare(Own(RULE_FAILURES, ("rule_group",), increase_over="10m"), ">", 0.0),
            "Prometheus fails to evaluate rules.",
            "Rules of the group {{ $labels.rule_group }} failed within the last ten minutes.",
            Runbook(
                "The query of a rule ended in an error: many series match where one may, or a limit was met.",
                "Figures that the rule records are missing, alerts of the group are not told.",
                "Prometheus' page of rules shows each rule's last error.",
                "Mend what the error names, mostly two collectors that show the same deployment with the same labels.",
                "Rules of others in the same Prometheus; theirs are counted too.",
            ),
            "health", RULE_FAILURES, wait="5m",
        ),
        Alert(
            "ServescopeRuleEvaluationMissed", "warning", "prometheus", "servescope",
            Compare(Own(RULES_MISSED, ("rule_group",), increase_over="10m"), ">", 0.0),
            "Prometheus leaves out evaluations of rules.",
            "Evaluations of the group {{ $labels.rule_group }} were left out within the last ten minutes.",
            Runbook(
                "Evaluating the group takes longer than its interval, so that the next one is left out.",
                "Figures have holes, and alerts come later than their `for` says.",
                "Compare the duration of the group's last evaluation with its interval; look at the CPU of Prometheus.",
                "Give Prometheus more CPU; evaluate the rules at a longer interval.",
                "A machine that was suspended.",
            ),
            "health", RULES_MISSED, wait="5m",
        ),
        Alert(
            "ServescopeAlertsUnsent", "warning", "prometheus", "servescope",
            Compare(Own(ALERTS_UNSENT, ("alertmanager",), increase_over="10m"), ">", 0.0),
            "Prometheus fails to send alerts to an Alertmanager.",
            "Alerts for {{ $labels.alertmanager }} could not be sent within the last ten minutes.",
            Runbook(
                "Requests of Prometheus to this Alertmanager failed.",
                "With a second Alertmanager none; without one nobody is told of anything.",
                "Look whether that Alertmanager runs and answers, and at the log of Prometheus.",
                "Start it, or mend its address.",
                "An Alertmanager that restarts.",
            ),
            "health", ALERTS_UNSENT, wait="5m",
        ),
        Alert(
            "ServescopeNotificationsFail", "warning", "alertmanager", "servescope",
            Compare(Own(NOTIFICATIONS_FAILED, ("integration",), increase_over="10m"), ">", 0.0),
            "Alertmanager fails to notify.",
            "Notifications by {{ $labels.integration }} failed within the last ten minutes.",
            Runbook(
                "A receiver refused notifications, or could not be reached.",
                "Whoever is called that way is not told.",
                "Alertmanager's log has the receiver's answer: an expired key, a channel that is gone, a limit.",
                "Mend the receiver or its secret; watch that the Watchdog arrives again.",
                "One outage of the receiver's, which Alertmanager tries again.",
            ),
            "health", NOTIFICATIONS_FAILED, wait="5m",
        ),
        Alert(
            "ServescopePrometheusConfigurationRefused", "warning", "prometheus", "servescope",
            Compare(Own(PROMETHEUS_RELOADED, ("instance",)), "==", 0.0),
            "The configuration of Prometheus was refused.",
            "Prometheus {{ $labels.instance }} works on with the configuration and the rules before.",
            Runbook(
                "Prometheus could not take up its configuration or a file of rules when it was last told to.",
                "None yet: new rules are not in force, and a restart would fail.",
                "Its log names the file and the line; `promtool check config` says the same.",
                "Mend the file and reload.",
                "None known.",
            ),
            "health", PROMETHEUS_RELOADED, wait="5m",
        ),
        Alert(
            "ServescopeAlertmanagerConfigurationRefused", "warning", "alertmanager", "servescope",
            Compare(Own(ALERTMANAGER_RELOADED, ("instance",)), "==", 0.0),
            "The configuration of Alertmanager was refused.",
            "Alertmanager {{ $labels.instance }} works on with the routes before.",
            Runbook(
                "Alertmanager could not take up its configuration or its templates when it was last told to.",
                "None yet: new routes are not in force, and a restart would fail.",
                "Its log names what is wrong; `amtool check-config` says the same.",
                "Mend the file and reload.",
                "None known.",
            ),
            "health", ALERTMANAGER_RELOADED, wait="5m",
        ),
        Alert(
            "ServescopeWatchdog", "none", "collector", "watchdog",
            Always(),
            "Alerts are evaluated and sent.",
            "This alert always fires. Who expects it and does not get it knows that alerts do not arrive.",
            Runbook(
                "All is well: rules are evaluated, and notifications go out.",
                "None. Its absence is what harms: no alert arrives.",
                "When it does not come, follow the path back: receiver, Alertmanager, Prometheus.",
                "Mend the part of the path that is broken.",
                "None: it always fires.",
            ),
            "health", "servescope_build_info", wait="", waits_less="it always fires", panel="Collectors",
        ),
    )  # fmt: skip
