"""The alerts on the monitoring itself: servescope's collector, and the Prometheus and Alertmanager beside it."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import Name, bound
from servescope.alerting.records import Alert, Always, Compare, Gone, Own, Quotient, Runbook
from servescope.contract.bounds import LOOP_LAG, STORE_QUEUE_AGE
from servescope.contract.own_metrics import (
    ALERTMANAGER_RELOADED,
    ALERTS_UNSENT,
    NOTIFICATIONS_FAILED,
    PROMETHEUS_RELOADED,
    RULE_FAILURES,
    RULES_MISSED,
    SCRAPED_UP,
)

_LAG: Final = bound(LOOP_LAG)

_COLLECTOR_ALERTS: Final = (
    Alert(
        "ServescopeCollectorGone", "critical", "collector", "servescope",
        Gone("servescope_build_info"),
        "No collector is running.",
        "No servescope collector is scraped: there is no data for any other alert.",
        Runbook(
            "There are no series of any collector: no collector is running, or Prometheus does not scrape it.",
            "The deployments are not monitored, and no other alert can fire.",
            "Check whether the collector runs and whether the targets page of Prometheus lists it.",
            "Start it, or fix the scrape configuration.",
            "None known.",
        ),
        "health", "servescope_build_info", wait="5m", panel="Collectors",
    ),
    Alert(
        "ServescopeInternalErrors", "warning", "collector", "servescope",
        Compare(Own("servescope_internal_errors_total", ("stage",), increase_over="10m"), ">", 0.0),
        "The collector has internal errors.",
        "The stage {{ $labels.stage }} of the collector failed within the last 10 minutes.",
        Runbook(
            "A bug in the collector. Each error lost one scrape, one evaluation or one refresh of the target lists.",
            "Figures have gaps.",
            "The collector's log has a traceback for each error.",
            "Report it with the log; the previous version may not be affected.",
            "None known.",
        ),
        "health", "servescope_internal_errors_total", wait="5m",
    ),
    Alert(
        "ServescopeStoreBehind", "warning", "collector", "servescope",
        Compare(Own("servescope_store_queue_age_seconds"), ">", bound(STORE_QUEUE_AGE)),
        "Scrapes wait to be written to the store.",
        "The oldest scrape that is not written to the store has waited for {{ $value | humanizeDuration }}.",
        Runbook(
            "The store writes scrapes more slowly than they arrive, or not at all.",
            "Scrapes that wait are lost if the collector stops; the console shows the past without them.",
            "Check the disk: is it full, slow, or is the file locked by another program?",
            "Free disk space, or move the store to a faster disk.",
            "A backup that reads the file.",
        ),
        "health", "servescope_store_queue_age_seconds", wait="5m", keep="5m",
    ),
    Alert(
        "ServescopeConfigurationRefused", "warning", "collector", "servescope",
        Compare(Own("servescope_configuration_reload_success"), "==", 0.0),
        "The collector failed to reload its configuration.",
        "The last reload of the collector's configuration failed; the previous configuration stays active.",
        Runbook(
            "The configuration file was invalid when it was last read; the previous configuration stays active.",
            "None yet; a restart would fail.",
            "The collector's log names the file, the key, the value and what was expected.",
            "Fix the file and reload.",
            "None known.",
        ),
        "health", "servescope_configuration_reload_success", wait="5m",
    ),
    Alert(
        "ServescopeCollectorDown", "warning", "collector", "servescope",
        Compare(Own(SCRAPED_UP, ("instance", "job"), (("job", (Name("collector_job"),)),)), "==", 0.0),
        "Prometheus cannot scrape a collector.",
        "Prometheus' scrapes of the collector {{ $labels.instance }} fail.",
        Runbook(
            "Prometheus lists this collector, but its scrapes fail.",
            "Targets that only this collector scrapes are missing from every figure.",
            "Check whether it runs; the targets page of Prometheus shows the error of the last scrape.",
            "Start it, or fix the address, credentials or certificate in the scrape configuration.",
            "A collector that was removed and is still listed.",
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
            ">", _LAG,
        ),
        "The collector's event loop lags.",
        "The collector's event loop lagged by {{ $value | humanizeDuration }} on average over the last 10 minutes.",
        Runbook(
            f"The collector's event loop wakes up more than {_LAG:g} seconds late on average over 10 minutes: scrapes "
            "start late, and API requests wait.",
            "Figures over short windows lose precision; scrapes are skipped if the lag grows.",
            "Check the collector's CPU, its number of targets and series, and whether another process uses the "
            "machine's CPU.",
            "Give it more CPU, or increase the scrape interval.",
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
        "The collector drops samples.",
        "The collector dropped samples within the last 10 minutes, for the reason {{ $labels.reason }}.",
        Runbook(
            "Samples of targets were dropped: `series_limit` if a target has more series than the limit, `store` if "
            "the store failed for so long that the oldest samples had to be dropped.",
            "Figures lack the dropped samples; with `store` only the past does.",
            "The Sources page names the targets with too many series; the log shows the store's error.",
            "Raise max_held_series or drop labels at the target; free the store's disk.",
            "A rollout that replaces all series within one window.",
        ),
        "health", "servescope_dropped_samples_total", wait="5m",
    ),
)  # fmt: skip

_PROMETHEUS_ALERTS: Final = (
    Alert(
        "ServescopeRuleEvaluationFails", "warning", "prometheus", "servescope",
        Compare(Own(RULE_FAILURES, ("rule_group",), increase_over="10m"), ">", 0.0),
        "Prometheus fails to evaluate rules.",
        "Rules of the group {{ $labels.rule_group }} failed within the last 10 minutes.",
        Runbook(
            "A rule's query returned an error: many-to-many matching, or a query limit was exceeded.",
            "Figures that the rule records are missing, and alerts of the group do not fire.",
            "The rules page of Prometheus shows the last error of each rule.",
            "Fix what the error names. The usual cause is two collectors that expose the same deployment with the same "
            "labels.",
            "Failing rules of others in the same Prometheus; they are counted as well.",
        ),
        "health", RULE_FAILURES, wait="5m",
    ),
    Alert(
        "ServescopeRuleEvaluationMissed", "warning", "prometheus", "servescope",
        Compare(Own(RULES_MISSED, ("rule_group",), increase_over="10m"), ">", 0.0),
        "Prometheus misses rule evaluations.",
        "Evaluations of the rule group {{ $labels.rule_group }} were missed within the last 10 minutes.",
        Runbook(
            "Evaluating the group takes longer than its interval, so that the next evaluation is skipped.",
            "Figures have gaps, and alerts fire later than their `for`.",
            "Compare the duration of the group's last evaluation with its interval; check the CPU usage of Prometheus.",
            "Give Prometheus more CPU, or increase the evaluation interval.",
            "A machine that was suspended.",
        ),
        "health", RULES_MISSED, wait="5m",
    ),
    Alert(
        "ServescopeAlertsUnsent", "warning", "prometheus", "servescope",
        Compare(Own(ALERTS_UNSENT, ("alertmanager",), increase_over="10m"), ">", 0.0),
        "Prometheus fails to send alerts to an Alertmanager.",
        "Sending alerts to {{ $labels.alertmanager }} failed within the last 10 minutes.",
        Runbook(
            "Requests from Prometheus to this Alertmanager failed.",
            "None with a second Alertmanager; without one nobody is notified of anything.",
            "Check whether the Alertmanager runs and answers, and the log of Prometheus.",
            "Start it, or fix its address.",
            "An Alertmanager that restarts.",
        ),
        "health", ALERTS_UNSENT, wait="5m",
    ),
    Alert(
        "ServescopeNotificationsFail", "warning", "alertmanager", "servescope",
        Compare(Own(NOTIFICATIONS_FAILED, ("integration",), increase_over="10m"), ">", 0.0),
        "Alertmanager fails to send notifications.",
        "Notifications through {{ $labels.integration }} failed within the last 10 minutes.",
        Runbook(
            "A receiver rejected notifications, or was not reachable.",
            "People who are notified through this integration get no notifications.",
            "Alertmanager's log has the receiver's response: an expired key, a deleted channel, a rate limit.",
            "Fix the receiver or its secret; check that the Watchdog arrives again.",
            "A short outage of the receiver, after which Alertmanager retries.",
        ),
        "health", NOTIFICATIONS_FAILED, wait="5m",
    ),
    Alert(
        "ServescopePrometheusConfigurationRefused", "warning", "prometheus", "servescope",
        Compare(Own(PROMETHEUS_RELOADED, ("instance",)), "==", 0.0),
        "Prometheus failed to reload its configuration.",
        "The last reload of Prometheus {{ $labels.instance }} failed; its previous configuration and rules stay "
        "active.",
        Runbook(
            "The configuration or a rule file of Prometheus was invalid when it was last reloaded.",
            "None yet: new rules are not active, and a restart would fail.",
            "The log of Prometheus names the file and the line; `promtool check config` shows the same.",
            "Fix the file and reload.",
            "None known.",
        ),
        "health", PROMETHEUS_RELOADED, wait="5m",
    ),
    Alert(
        "ServescopeAlertmanagerConfigurationRefused", "warning", "alertmanager", "servescope",
        Compare(Own(ALERTMANAGER_RELOADED, ("instance",)), "==", 0.0),
        "Alertmanager failed to reload its configuration.",
        "The last reload of Alertmanager {{ $labels.instance }} failed; its previous routes stay active.",
        Runbook(
            "The configuration or the templates of Alertmanager were invalid when it was last reloaded.",
            "None yet: new routes are not active, and a restart would fail.",
            "The log of Alertmanager names the error; `amtool check-config` shows the same.",
            "Fix the file and reload.",
            "None known.",
        ),
        "health", ALERTMANAGER_RELOADED, wait="5m",
    ),
)  # fmt: skip

_WATCHDOG: Final = Alert(
    "ServescopeWatchdog", "none", "collector", "watchdog",
    Always(),
    "Watchdog: alerts are evaluated and sent.",
    "This alert always fires. A receiver that does not get it knows that alerting is broken.",
    Runbook(
        "Alerting works: rules are evaluated, and notifications are sent.",
        "None while it fires. If it is missing, no other alert arrives either.",
        "If it is missing, check the receiver, Alertmanager and Prometheus, in this order.",
        "Fix the part that is broken.",
        "None: it always fires.",
    ),
    "health", "servescope_build_info", wait="", waits_less="it always fires", panel="Collectors",
)  # fmt: skip

MONITORING_ALERTS: Final = (*_COLLECTOR_ALERTS, *_PROMETHEUS_ALERTS, _WATCHDOG)
