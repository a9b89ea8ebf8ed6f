"""The alerts on the monitoring itself: servescope's collector, and the Prometheus and Alertmanager beside it."""

from __future__ import annotations

from typing import Final

from servescope.alerting.rules.choices import Name, bound, waited
from servescope.alerting.rules.records import (
    ALERTING,
    NUMBER,
    PERCENT,
    Absent,
    Alert,
    Always,
    Any,
    Because,
    Compare,
    FirstCheck,
    Quotient,
    Runbook,
    SelfMetric,
    by_cause,
)
from servescope.contract.bounds import (
    FAILED_NOTIFICATIONS,
    FAILING_RULES,
    LOOP_LAG,
    MISSED_EVALUATIONS,
    STORE_QUEUE_AGE,
    UNSENT_ALERTS,
)
from servescope.contract.expressions import Matchers, Pattern
from servescope.contract.own_metrics import (
    ALERTMANAGER_RELOADED,
    ALERTS_SENT,
    ALERTS_UNSENT,
    NOTIFICATIONS_FAILED,
    NOTIFICATIONS_TRIED,
    PROMETHEUS_RELOADED,
    RULE_EVALUATIONS,
    RULE_FAILURES,
    RULES_MISSED,
    SCRAPED_UP,
)

_LATE: Final = bound(LOOP_LAG)
_COLLECTOR: Final = ("instance",)
_RUNNING: Final = SelfMetric("servescope_build_info")
_ERRORS: Final = SelfMetric("servescope_internal_errors_total", (*_COLLECTOR, "stage"), increase_over="10m")
_PROBLEMS: Final = SelfMetric("servescope_discovery_problems", _COLLECTOR)
_QUEUE_AGE: Final = SelfMetric("servescope_store_queue_age_seconds", _COLLECTOR)
_CONFIGURED: Final = SelfMetric("servescope_configuration_reload_success", _COLLECTOR)
_UP: Final = SelfMetric(SCRAPED_UP, (*_COLLECTOR, "job"), (("job", (Name("collector_job"),)),))
_LAG: Final = Quotient(
    SelfMetric("servescope_event_loop_lag_seconds_sum", _COLLECTOR, increase_over="10m"),
    SelfMetric("servescope_event_loop_lag_seconds_count", _COLLECTOR, increase_over="10m"),
)

_COLLECTOR_ALERTS: Final = (
    Alert(
        "ServescopeCollectorGone", "critical", "collector", "servescope",
        Absent("servescope_build_info"),
        "No collector is running.",
        "No servescope collector is scraped: there is no data for any other alert.",
        Runbook(
            "There are no series of any collector: no collector is running, or Prometheus does not scrape it.",
            "Nothing by itself. The deployments are not monitored, and no other alert can fire.",
            "Check whether the collector runs and whether the targets page of Prometheus lists it.",
            "Start it, or fix the scrape configuration. Until then watch the gateway's own monitoring.",
            "None known.",
            FirstCheck(_RUNNING, "no line at all.", "a line for each collector that should run."),
            (),
            "Do not delete the collector's store or its state to make it start: read its log first.",
            "Whoever runs the collectors, now: until it is back nobody is notified of anything else.",
            "Each collector has a line.",
        ),
        "health", "servescope_build_info", for_="5m", panel="Collectors",
    ),
    Alert(
        "ServescopeInternalErrors", "warning", "collector", "servescope",
        Compare(_ERRORS, ">", 0.0),
        "The collector has internal errors again and again.",
        "The stage {{ $labels.stage }} of the collector keeps failing: within each 10 minutes of the last "
        f"{waited()}.",
        Runbook(
            "A bug in the collector that shows again and again: a single error, which the log has, fires no alert. "
            "Each error lost one scrape, one evaluation or one refresh of the target lists.",
            "Nothing. Figures have gaps.",
            "The collector's log has a traceback for each error, with the stage and the target.",
            "Report it with the log; the previous version may not be affected.",
            "None known.",
            FirstCheck(_ERRORS, "a stage stays above 0.", "a single peak that is over."),
            (),
            "Do not restart it in a loop: the log of the error is what is needed.",
            "Nobody at night, unless the stage `evaluate` fails: then alerts are missing, call whoever runs it.",
            "10 minutes pass without an error.",
        ),
        "health", "servescope_internal_errors_total", for_="15m",
    ),
    Alert(
        "ServescopeDiscoveryFails", "warning", "collector", "servescope",
        Compare(_PROBLEMS, ">", 0.0),
        "The collector cannot use a list of targets.",
        f"Number of problems with the lists of targets: {NUMBER}. Such a list keeps the targets that it named last.",
        Runbook(
            "A file or URL of targets cannot be read, has an invalid entry, lists a target twice, or no file matches "
            "the pattern. The collector goes on with the targets that the list named when it was last usable.",
            "Nothing: known targets are scraped. New replicas are not monitored, and removed ones look like failures.",
            "`/api/v1/targets` and the Sources page of the console name each list, its problem and what was expected.",
            "Fix the list: the job that writes it, the URL, the credentials.",
            "A file that is replaced while it is read: that is over after the next look.",
            FirstCheck(_PROBLEMS, "above 0 since one minute, on all collectors.", "0 again."),
            (),
            "Do not empty the list: a list that is valid and empty removes the targets.",
            "Whoever writes the lists, in the morning; now if a rollout is under way.",
            "The problem is no longer shown.",
        ),
        "health", "servescope_discovery_problems", for_="10m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeStoreBehind", "warning", "collector", "servescope",
        Compare(_QUEUE_AGE, ">", bound(STORE_QUEUE_AGE)),
        "Scrapes wait to be written to the store.",
        "The oldest scrape that is not written to the store has waited for {{ $value | humanizeDuration }}.",
        Runbook(
            "The store writes scrapes more slowly than they arrive, or not at all.",
            "Nothing. Scrapes that wait are lost if the collector stops; the console shows the past without them.",
            "Check the disk: is it full (`df -h`), slow (`iostat -x`), or is the file locked by another program?",
            "Free disk space, or move the store to a faster disk.",
            "A backup that reads the file.",
            FirstCheck(_QUEUE_AGE, "rising evenly: nothing is written.", "a saw, or falling: it catches up."),
            (),
            "Do not restart the collector before there is room: what waits would be lost.",
            "Whoever runs the collectors, if the disk is full and is not yours.",
            "The age stays below the limit.",
        ),
        "health", "servescope_store_queue_age_seconds", for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeConfigurationRefused", "warning", "collector", "servescope",
        Compare(_CONFIGURED, "==", 0.0),
        "The collector failed to reload its configuration.",
        "The last reload of the collector's configuration failed; the previous configuration stays active.",
        Runbook(
            "The configuration file was invalid when it was last read; the previous configuration stays active.",
            "Nothing; a restart would fail.",
            "The collector's log names the file, the key, the value and what was expected.",
            "Fix the file and reload.",
            "None known.",
            FirstCheck(_CONFIGURED, "0 since the minute of a change.", "no longer 0: a later reload succeeded."),
            (),
            "Do not restart the collector before the file is right: it would not start.",
            "Nobody at night: whoever changed the file, in the morning.",
            "A reload succeeds.",
        ),
        "health", "servescope_configuration_reload_success", for_="5m",
    ),
    Alert(
        "ServescopeCollectorDown", "warning", "collector", "servescope",
        Compare(_UP, "==", 0.0),
        "Prometheus cannot scrape a collector.",
        "Prometheus' scrapes of the collector {{ $labels.instance }} fail.",
        Runbook(
            "Prometheus lists this collector, but its scrapes fail.",
            "Nothing by itself. Targets that only this collector scrapes are missing from every figure.",
            "Check whether it runs; the targets page of Prometheus shows the error of the last scrape.",
            "Start it, or fix the address, credentials or certificate in the scrape configuration.",
            "A collector that was removed and is still listed.",
            FirstCheck(_UP, "a collector stays at 0.", "none is at 0: it was restarted."),
            (),
            "Do not remove it from the scrape configuration to silence it.",
            "Whoever runs the collectors: in the morning if another one scrapes the same targets, else now.",
            "Its scrapes succeed.",
        ),
        "health", SCRAPED_UP, for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeEventLoopLags", "warning", "collector", "servescope",
        Compare(_LAG, ">", _LATE),
        "The collector's event loop lags.",
        "The collector's event loop lagged by {{ $value | humanizeDuration }} on average over the last 10 minutes.",
        Runbook(
            f"The collector's event loop wakes up more than {_LATE:g} seconds late on average over 10 minutes: scrapes "
            "start late, and API requests wait.",
            "Nothing. Figures over short windows lose precision; scrapes are skipped if the lag grows.",
            "Check the collector's CPU, its number of targets and series, and whether another process uses the "
            "machine's CPU.",
            "Give it more CPU, or increase the scrape interval.",
            "A machine that was suspended.",
            FirstCheck(_LAG, "rising with the number of targets or series.", "a peak that is over."),
            (),
            "Do not add targets to this collector.",
            "Nobody at night, as long as scrapes are not skipped.",
            f"It is less than {_LATE:g} seconds late.",
        ),
        "health", "servescope_event_loop_lag_seconds", for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeSamplesDropped", "warning", "collector", "servescope",
        Compare(
            SelfMetric(
                "servescope_dropped_samples_total", ("instance", "reason"), (("reason", ("series_limit", "store")),),
                increase_over="10m",
            ),
            ">", 0.0,
        ),
        "The collector keeps dropping samples.",
        f"The collector dropped samples within each 10 minutes of the last {waited()}, for the reason "
        "{{ $labels.reason }}.",
        Runbook(
            "Samples of targets are dropped again and again: `series_limit` if a target has more series than the "
            "limit, `store` if the store failed for so long that the oldest samples had to be dropped.",
            "Nothing. Figures lack the dropped samples; with `store` only the past does.",
            "For `series_limit` the Sources page names the targets with too many series; for `store` the log shows the "
            "error.",
            "Raise max_held_series or drop labels at the target; free the store's disk.",
            "None known: what a rollout drops once, when it replaces all series, fires no alert.",
            FirstCheck(
                SelfMetric("servescope_dropped_samples_total", ("instance", "reason"), increase_over="10m"),
                "a reason stays above 0.",
                "a single peak: a rollout replaced all series.",
            ),
            (),
            "Do not raise the limit far beyond the memory the collector has.",
            "Nobody at night.",
            "10 minutes pass without a dropped sample.",
        ),
        "health", "servescope_dropped_samples_total", for_="15m",
    ),
)  # fmt: skip

# Of the rule files of this project; their groups have this prefix.
_OWN_GROUPS: Final[Matchers] = (("rule_group", (Pattern(".+;servescope-.+"),)),)


def _share(part: str, whole: str, by: tuple[str, ...], where: Matchers = ()) -> Quotient:
    """The increase of a counter for each increase of another, over ten minutes."""
    labels = ("instance", *by)
    return Quotient(
        SelfMetric(part, labels, where, increase_over="10m"), SelfMetric(whole, labels, increase_over="10m")
    )


_FAILING_RULES: Final = _share(RULE_FAILURES, RULE_EVALUATIONS, ("rule_group",), _OWN_GROUPS)
_MISSED: Final = _share(RULES_MISSED, RULE_EVALUATIONS, ("rule_group",), _OWN_GROUPS)
_UNSENT: Final = _share(ALERTS_UNSENT, ALERTS_SENT, ("alertmanager",))
_UNNOTIFIED: Final = _share(NOTIFICATIONS_FAILED, NOTIFICATIONS_TRIED, ("integration",))
_RELOADED: Final = SelfMetric(PROMETHEUS_RELOADED, ("instance",))

_ALERTING_ALERTS: Final = (
    Alert(
        "ServescopeRuleEvaluationFails", "warning", ALERTING, "servescope",
        Any((
            Because("errors", Compare(_FAILING_RULES, ">", bound(FAILING_RULES))),
            Because("missed", Compare(_MISSED, ">", bound(MISSED_EVALUATIONS)), "Rule evaluation missed"),
        )),
        "Prometheus fails to evaluate rules.",
        "Of the group {{ $labels.rule_group }} in Prometheus {{ $labels.instance }} " + by_cause({
            "errors": f"{NUMBER} rules fail at each evaluation.",
            "missed": f"{PERCENT} of the evaluations of the last 10 minutes were missed.",
        }),
        Runbook(
            "`errors`: rules of servescope's own groups return an error at most evaluations of the last 10 minutes, as "
            "of many-to-many matching, or of a query limit that was exceeded. `missed`: evaluating the group takes "
            "longer than its interval, so that the next evaluation is skipped. Groups of others in the same Prometheus "
            "are not looked at.",
            "Nothing by itself. Figures that the rules record are missing or have gaps, and alerts of the group do not "
            "fire, or later than their `for`.",
            "The rules page of Prometheus shows the last error of each rule, and how long the group's last evaluation "
            "took, to compare with its interval. Check the CPU usage of Prometheus.",
            "Fix what the error names. A match of many to many means that two collectors expose the same deployment "
            "and differ in a label that is not among the option `collector_labels`: name it there. `missed`: give "
            "Prometheus more CPU, or increase the evaluation interval.",
            "None known: an evaluation that fails once, or a machine that was suspended once, fires no alert.",
            FirstCheck(
                _FAILING_RULES,
                "a group stays above zero.",
                "all groups are at zero; evaluations are missed in a peak that is over, as Prometheus was restarted.",
            ),
            (),
            "Do not delete the group that fails: the alerts in it would be gone. Do not lengthen the interval beyond "
            "the windows of the rules.",
            "Whoever runs Prometheus, now if rules of a group of alerts fail: those do not fire. Nobody at night, as "
            "long as few evaluations are missed.",
            "The rules page shows no error, and no evaluation is missed.",
        ),
        "health", RULE_FAILURES, for_="15m", panel="Rule evaluation fails",
    ),
    Alert(
        "ServescopeNotificationsFail", "warning", ALERTING, "servescope",
        Any((
            Because("alertmanager", Compare(_UNNOTIFIED, ">", bound(FAILED_NOTIFICATIONS))),
            Because("prometheus", Compare(_UNSENT, ">", bound(UNSENT_ALERTS)), "Alerts unsent"),
        )),
        "Alerts do not reach whom they should notify.",
        by_cause({
            "alertmanager": f"{PERCENT} of the notifications of Alertmanager {{{{ $labels.instance }}}} through "
            "{{ $labels.integration }} failed within the last 10 minutes.",
            "prometheus": f"For each alert that Prometheus {{{{ $labels.instance }}}} sent to "
            f"{{{{ $labels.alertmanager }}}} within the last 10 minutes {NUMBER} requests failed.",
        }),
        Runbook(
            "`alertmanager`: a receiver rejects notifications, or is not reachable, again and again. `prometheus`: "
            "requests from Prometheus to this Alertmanager keep failing.",
            "Nothing by itself. People who are notified through this integration get no notifications. With a second "
            "Alertmanager nobody notices that the first is gone; without one nobody is notified of anything.",
            "Alertmanager's log has the receiver's response: an expired key, a deleted channel, a rate limit. For "
            "`prometheus`, check whether the Alertmanager runs and answers (`/-/healthy`), and the log of Prometheus.",
            "Fix the receiver or its secret; start the Alertmanager, or fix its address. Until then send pages through "
            "another integration, and watch the firing alerts in Prometheus.",
            "None known: a short outage of the receiver, after which Alertmanager retries, and an Alertmanager that "
            "restarts fire no alert.",
            FirstCheck(
                _UNNOTIFIED,
                "the integration of pages stays above zero, or every Alertmanager has no line: nobody is notified.",
                "only that of a chat: nobody misses a page.",
            ),
            (),
            "Do not silence alerts to get below a rate limit: find what repeats. Do not delete Alertmanager's data: "
            "silences would be lost.",
            "Whoever owns the receiver or runs Alertmanager, now if pages fail or none answers.",
            "The Watchdog arrives again, and no request fails any more.",
        ),
        "health", NOTIFICATIONS_FAILED, for_="15m", panel="Notifications fail",
    ),
    Alert(
        "ServescopeAlertingConfigurationRefused", "warning", ALERTING, "servescope",
        Any((
            Because("prometheus", Compare(_RELOADED, "==", 0.0)),
            Because(
                "alertmanager", Compare(SelfMetric(ALERTMANAGER_RELOADED, ("instance",)), "==", 0.0),
                "Alertmanager configuration refused",
            ),
        )),
        "Prometheus or Alertmanager failed to reload its configuration.",
        "The last reload of " + by_cause({
            "prometheus": "Prometheus {{ $labels.instance }} failed; its previous configuration and rules stay active.",
            "alertmanager": "Alertmanager {{ $labels.instance }} failed; its previous routes stay active.",
        }),
        Runbook(
            "The configuration was invalid when it was last reloaded, or a rule file of Prometheus or a template of "
            "Alertmanager was.",
            "Nothing: new rules or routes are not active, and a restart would fail.",
            "The log names the error; `promtool check config` or `amtool check-config` shows the same.",
            "Fix the file and reload.",
            "None known.",
            FirstCheck(_RELOADED, "0 since the minute of a change.", "no longer 0: a later reload succeeded."),
            (),
            "Do not restart it before the file is right: it would not start, and nobody would be notified.",
            "Nobody at night: whoever changed the file, in the morning.",
            "A reload succeeds.",
        ),
        "health", PROMETHEUS_RELOADED, for_="5m", panel="Prometheus configuration refused",
    ),
)  # fmt: skip

_WATCHDOG: Final = Alert(
    "ServescopeWatchdog", "none", "collector", "watchdog",
    Always(),
    "Watchdog: alerts are evaluated and sent.",
    "This alert always fires. A receiver that does not get it knows that alerting is broken.",
    Runbook(
        "Alerting works: rules are evaluated, and notifications are sent.",
        "Nothing while it fires. If it is missing, no other alert arrives either.",
        "If it is missing, check the receiver, Alertmanager and Prometheus, in this order.",
        "Fix the part that is broken.",
        "None: it always fires.",
        FirstCheck(
            _RUNNING,
            "no answer at all: Prometheus itself is gone.",
            "a line for each collector: Prometheus works, look at Alertmanager and at the receiver.",
        ),
        (),
        "Do not silence it: its absence would no longer be noticed.",
        "Whoever runs Alertmanager and Prometheus, now, if it stopped arriving: nobody is notified of anything.",
        "It arrives again.",
    ),
    "health", "servescope_build_info", for_="", waits_less="it always fires", panel="Collectors",
)  # fmt: skip

MONITORING_ALERTS: Final = (*_COLLECTOR_ALERTS, *_ALERTING_ALERTS, _WATCHDOG)
