"""Health: servescope itself, and the Prometheus and the Alertmanager beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from dashboards.board import Board, own_components
from dashboards.options import Options
from dashboards.panels.colors import ALERT_COLORS, NEUTRAL
from dashboards.panels.firing import own_firing_panel
from dashboards.panels.own_panels import own_panel, own_quantiles, own_stat
from dashboards.panels.panels import MOST_LINES, NoData, Panel, Row, Threshold, above, absent_own, worst_lately
from dashboards.panels.queries import HEALTH_VARIABLES
from servescope.alerting.rules.links import HEALTH
from servescope.contract.bounds import SCRAPE_AGE, STORE_QUEUE_AGE
from servescope.contract.expressions import Level, Matchers, Ratio, level, rate

NAME = HEALTH

_COLLECTOR = ("instance",)

# Red is for what is broken.
_TARGET_COLORS: Mapping[str, str] = MappingProxyType(
    {"up": "green", "down": "red", "unknown": "orange", "unseen": "purple"}
)
_LIST_COLORS: Mapping[str, str] = MappingProxyType({"kept": "green", "dropped": NEUTRAL})
_STATUS_COLORS: Mapping[str, str] = MappingProxyType({r"[23]\d\d": "green", r"4\d\d": "yellow", r"5\d\d": "orange"})


_FAILING: Matchers = (("health", ("down", "not_understood")),)
_NONE = (Threshold("green"), Threshold("orange", above(0.0)))
_AT_LEAST_ONE = (Threshold("orange"), Threshold("green", 1.0))


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "Health",
        "The health of the monitoring itself: collectors, their store, and the Prometheus and Alertmanager that "
        "evaluate and send alerts. Check it before you trust the other dashboards.",
        (
            Row("At a glance", (*_headline(options), own_firing_panel(own_components(NAME), options))),
            Row("Scraping", (*_collecting(options), *_dropping(options)), collapsed=True),
            Row("Performance", _keeping(options), collapsed=True),
            Row("API and resources", _asked(options), collapsed=True),
            Row("Alerting", (*_evaluating(options), *_sending(options)), collapsed=True),
        ),
        own_variables=HEALTH_VARIABLES,
    )


def _headline(options: Options) -> tuple[Panel, ...]:
    """What of the monitoring works, as one line of numbers: collecting, evaluating, notifying."""
    return (
        own_stat(
            "Collectors up", Level("servescope_build_info", "sum"), options, unit="tasks", steps=_AT_LEAST_ONE,
            meaning="Collectors that Prometheus scrapes.", normal="as many as you run.",
            first="if it is 0 or empty, check whether they run, and the targets page of Prometheus.",
        ),
        own_stat(
            "Targets that fail", Level("servescope_targets", "sum", _FAILING), options, unit="targets", steps=_NONE,
            meaning="Targets that do not answer, or whose answer no source map reads.", normal="0.",
            first="the panel Target down names them; the Sources page of the console shows their errors.",
        ),
        own_stat(
            "Oldest scrape", level("servescope_target_scrape_age_seconds", "max"), options, unit="seconds",
            steps=(Threshold("green"), Threshold("orange", options.choices.number(SCRAPE_AGE.name))),
            meaning="How long ago the target that waits longest was scraped.", normal="about a scrape interval.",
            first="if it grows, the collector is overloaded, or a host is at its limit of scrapes.",
        ),
        own_stat(
            "Failed rules", rate("prometheus_rule_evaluation_failures_total"), options, unit="errors/s", steps=_NONE,
            meaning="Evaluations of rules that fail per second in Prometheus.", normal="0.",
            first="the panel Rule evaluation fails names the groups, the rules page of Prometheus the rules.",
        ),
        own_stat(
            "Alertmanagers", level("prometheus_notifications_alertmanagers_discovered", "max"), options,
            unit="targets", steps=_AT_LEAST_ONE,
            meaning="Alertmanagers that Prometheus sends alerts to.", normal="as many as you run.",
            first="if it is 0, fix the `alerting` section of Prometheus: nobody is notified.",
        ),
        own_stat(
            "Alerts lost", rate("prometheus_notifications_dropped_total"), options, unit="events/s", steps=_NONE,
            meaning="Alerts per second that Prometheus dropped, since no Alertmanager accepted them.", normal="0.",
            first="check whether an Alertmanager runs: nobody is notified.",
        ),
        own_stat(
            "Notifications lost", rate("alertmanager_notifications_failed_total"), options, unit="errors/s",
            steps=_NONE, meaning="Notifications of Alertmanager that fail per second.", normal="0.",
            first="the panel Notifications fail names the kind of receiver, Alertmanager's log its response.",
        ),
        own_stat(
            "Not stored for", level("servescope_store_queue_age_seconds", "max"), options, unit="seconds",
            steps=(Threshold("green"), Threshold("orange", options.choices.number(STORE_QUEUE_AGE.name))),
            meaning="How long the oldest scrape that is not stored yet has waited.", normal="seconds.",
            first="if it grows, check the disk of the store: full, slow, or the file locked by another program.",
        ),
    )  # fmt: skip


def _collecting(options: Options) -> tuple[Panel, ...]:
    return (
        own_panel(
            "Collectors", level("servescope_build_info", "max"), options, unit="state", by=("instance", "version"),
            meaning="1 for each collector that Prometheus scrapes.",
            normal="one line per collector that you run; all have the same version except during an upgrade.",
            first="if one is missing, check whether it runs, and the targets page of Prometheus.",
        ),
        own_panel(
            "Translators", level("servescope_probe_build_info", "max"), options, unit="state",
            by=("instance", "version"),
            meaning="1 for each translator that Prometheus scrapes: it reads targets for Prometheus, in place of a "
            "collector.",
            normal="one line per translator that you run; all have the same version except during an upgrade.",
            first="if one is missing, check whether it runs, and the targets page of Prometheus.",
        ),
        own_panel(
            "Targets by health", level("servescope_targets"), options, unit="targets", by=("health",), stacked=True,
            colors=_TARGET_COLORS,
            normal="all `up`; some `unknown` for a moment after a start. Nothing asks those that are `unseen`.",
            first="the panel Target down names failing targets; the Sources page of the console shows their last "
            "scrape.",
        ),
        own_panel(
            "Targets of each deployment", level("servescope_targets"), options, unit="targets", by=("deployment_id",),
            normal="as many as the orchestrator runs.",
            first="if one falls to 0 its list is empty: send the deployment a request; the Sources page of the console "
            "names the lists and their problems.",
        ),
        own_panel(
            "Scrapes by outcome", rate("servescope_scrapes_total"), options, unit="scrapes/s", by=("outcome",),
            happened=absent_own("servescope_scrapes_total"),
            normal="nearly all `ok`.",
            first="the label `outcome` names the error; the collector's log names the target.",
        ),
        own_quantiles(
            "Scrape duration", "servescope_scrape_duration_seconds", options,
            normal="far below the scrape interval.",
            first="if it grows, check the response time of the targets' /metrics, then the collector's CPU.",
        ),
        own_quantiles(
            "Scrape lateness", "servescope_scrape_lateness_seconds", options, normal="milliseconds.",
            first="if it grows, the collector is overloaded: check the event loop lag and CPU.",
        ),
        own_panel(
            "Missed scrapes", rate("servescope_missed_scrapes_total"), options, unit="scrapes/s", by=_COLLECTOR,
            normal="0.",
            first="targets answer too slowly, or the collector is overloaded: compare lateness and duration.",
        ),
    )  # fmt: skip


def _dropping(options: Options) -> tuple[Panel, ...]:
    return (
        own_panel(
            "Samples read", rate("servescope_samples_scraped_total"), options, unit="samples/s", by=_COLLECTOR,
            normal="steady; it follows the number of targets.",
            first="if it drops while targets are up, check for missing metrics.",
        ),
        own_panel(
            "Dropped samples", rate("servescope_dropped_samples_total"), options, unit="samples/s", by=("reason",),
            normal="none.", first="the label `reason` names the limit; the collector's log names the target.",
        ),
        own_panel(
            "Series held", level("servescope_series"), options, unit="series", by=_COLLECTOR,
            normal="steady; it follows the number of targets and of their buckets.",
            first="if it keeps growing, look for targets whose labels change with each scrape.",
        ),
    )  # fmt: skip


def _keeping(options: Options) -> tuple[Panel, ...]:
    return (
        own_quantiles(
            "Evaluation duration", "servescope_evaluation_duration_seconds", options,
            normal="far below the evaluation interval.",
            first="if it grows, check the series held and the CPU.",
        ),
        own_quantiles(
            "Event loop lag", "servescope_event_loop_lag_seconds", options, normal="milliseconds.",
            first="if it grows, compare scrape and evaluation durations to find what blocks the loop.",
        ),
        own_panel(
            "Store backlog", level("servescope_store_backlog_rounds"), options, unit="scrapes", by=_COLLECTOR,
            normal="near 0.", first="if it grows, check the disk: full, slow, or the file locked by another program.",
        ),
        own_quantiles(
            "Store transaction", "servescope_store_append_duration_seconds", options, normal="milliseconds.",
            first="if it grows, check the disk of the store.",
        ),
        own_panel(
            "Store errors", rate("servescope_store_errors_total"), options, unit="errors/s", by=_COLLECTOR,
            normal="0.", first="the log has the error; pending writes are retried.",
        ),
        own_panel(
            "Store size", level("servescope_store_bytes"), options, unit="bytes", by=_COLLECTOR,
            normal="grows until retention deletes as much as is written.",
            first="compare with the free disk space; shorten the retention if needed.",
        ),
        own_panel(
            "Discovery problems", level("servescope_discovery_problems"), options, unit="problems", by=_COLLECTOR,
            normal="0.", first="`/api/v1/targets` names the lists and their errors.",
        ),
        own_panel(
            "Targets listed", level("servescope_discovered_targets"), options, unit="targets", by=("result",),
            colors=_LIST_COLORS,
            normal="as many `kept` as you run.", first="if many are `dropped`, check the relabelling of the lists.",
        ),
    )  # fmt: skip


def _asked(options: Options) -> tuple[Panel, ...]:
    return (
        own_panel(
            "API requests", rate("servescope_api_requests_total"), options, unit="requests/s", by=("status",),
            colors=_STATUS_COLORS,
            normal="mostly 200.", first="for 401 check the tokens, for 503 the refused requests.",
        ),
        own_panel(
            "API requests refused", rate("servescope_api_refused_total"), options, unit="requests/s", by=("reason",),
            happened=NoData("idle", "none was refused"), normal="none.",
            first="the label `reason` names the limit; raise it, or find the client that sends so many requests.",
        ),
        own_quantiles(
            "API request duration", "servescope_api_request_duration_seconds", options, normal="milliseconds.",
            first="if it grows, query shorter time ranges, or check the disk of the store.",
        ),
        own_panel(
            "API connections", level("servescope_api_connections"), options, unit="connections", by=_COLLECTOR,
            normal="few.", first="if there are many, find the client that keeps them open.",
        ),
        own_panel(
            "Collector CPU", rate("process_cpu_seconds_total"), options, unit="cores", by=_COLLECTOR, is_common=True,
            normal="well below one core.", first="increase the scrape interval before it gets close to one core.",
        ),
        own_panel(
            "Collector memory", level("process_resident_memory_bytes"), options, unit="bytes", by=_COLLECTOR,
            is_common=True, normal="steady after the first hour.", first="if it grows, compare with the series held.",
        ),
    )  # fmt: skip


def _evaluating(options: Options) -> tuple[Panel, ...]:
    return (
        own_panel(
            "Rule failures", rate("prometheus_rule_evaluation_failures_total"), options, unit="errors/s",
            by=_COLLECTOR, normal="0.",
            first="the panel Rule evaluation fails names the groups, the rules page of Prometheus the rules.",
        ),
        own_panel(
            "Missed rule evaluations", rate("prometheus_rule_group_iterations_missed_total"), options,
            unit="errors/s", by=_COLLECTOR, normal="0.",
            first="a group takes longer than its interval: check the rule evaluation time.",
        ),
        own_panel(
            "Prometheus configuration reload", level("prometheus_config_last_reload_successful", "max"), options,
            unit="state", by=_COLLECTOR, normal="1.",
            first="at 0, the log of Prometheus names the line; `promtool check config` shows the same.",
        ),
        _evaluation_time(options),
    )  # fmt: skip


def _evaluation_time(options: Options) -> Panel:
    """How much of its interval each group of rules takes; of many groups the slowest."""
    panel = own_panel(
        "Rule evaluation time",
        Ratio(
            Level("prometheus_rule_group_last_duration_seconds", "max"),
            Level("prometheus_rule_group_interval_seconds", "max"),
        ),
        options, unit="ratio", by=("rule_group",),
        meaning=f"The duration of a group's last evaluation as a share of its interval, for the {MOST_LINES} groups "
        "with the highest values within the last hour shown.",
        normal="below 50 %.", first="if it grows, give Prometheus more CPU, or increase the interval.",
    )  # fmt: skip
    (query,) = panel.queries
    return replace(panel, queries=(worst_lately(MOST_LINES, query),), ranked="max", width=12)


def _sending(options: Options) -> tuple[Panel, ...]:
    return (
        own_panel(
            "Alerts in the collector", level("servescope_alerts"), options, unit="alerts", by=("alertstate",),
            colors=ALERT_COLORS,
            normal="only the Watchdog is `firing`.", first="open the dashboard that the firing alert links to.",
        ),
        own_panel(
            "Notifications of the collector", rate("servescope_notifications_total"), options, unit="events/s",
            by=("receiver", "result"), normal="only `sent`; empty if Prometheus sends the alerts.",
            first="the collector's log has the receiver's response.",
        ),
        own_quantiles(
            "Alert evaluation duration", "servescope_alerting_duration_seconds", options,
            normal="far below the evaluation interval.",
            first="if it grows, compare with the evaluation duration of figures.",
        ),
        own_panel(
            "Alerts sent to Alertmanager", rate("prometheus_notifications_sent_total"), options, unit="events/s",
            by=("alertmanager",), normal="above 0 at all times, since the Watchdog is sent repeatedly.",
            first="if it is 0, check whether rules are loaded and Alertmanagers discovered.",
        ),
        own_panel(
            "Alerts rejected by Alertmanager", rate("prometheus_notifications_errors_total"), options,
            unit="errors/s", by=("alertmanager",), normal="0.", first="check whether that Alertmanager runs.",
        ),
        own_panel(
            "Alerts dropped by Prometheus", rate("prometheus_notifications_dropped_total"), options, unit="events/s",
            by=_COLLECTOR, normal="0.",
            first="no Alertmanager accepted them, so nobody was notified: check the Alertmanagers.",
        ),
        own_panel(
            "Alertmanagers discovered", level("prometheus_notifications_alertmanagers_discovered", "max"), options,
            unit="targets", by=_COLLECTOR, normal="as many as you run.",
            first="if one is missing, fix the `alerting` section of Prometheus.",
        ),
        own_panel(
            "Notifications", rate("alertmanager_notifications_total"), options, unit="events/s", by=("integration",),
            happened=NoData("idle", "no notification was sent, or Alertmanager is not scraped"),
            normal="a line for the receiver of the Watchdog.",
            first="if there is none, check the routes of Alertmanager.",
        ),
        own_panel(
            "Failed notifications", rate("alertmanager_notifications_failed_total"), options, unit="errors/s",
            by=_COLLECTOR, normal="0.",
            first="the panel Notifications fail names the kind of receiver, Alertmanager's log its response.",
        ),
        own_panel(
            "Alerts in Alertmanager", level("alertmanager_alerts"), options, unit="alerts", by=("state",),
            colors=ALERT_COLORS,
            normal="only the Watchdog is `active`.",
            first="`suppressed` alerts are silenced or inhibited: Alertmanager's UI shows by what.",
        ),
        own_panel(
            "Alertmanager configuration reload", level("alertmanager_config_last_reload_successful", "max"),
            options, unit="state", by=_COLLECTOR, normal="1.",
            first="at 0, the log of Alertmanager names the line; `amtool check-config` shows the same.",
        ),
    )  # fmt: skip
