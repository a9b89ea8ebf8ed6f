"""Health: servescope itself, and the Prometheus and the Alertmanager beside it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dashboards.board import Board
from dashboards.composed import among_collectors
from dashboards.options import Options
from dashboards.panels import SERIES_COLORS, UNITS, NoData, Panel, Row, absent_own
from dashboards.queries import HEALTH_VARIABLES, Query, compile_own, legend
from servescope.alerting.links import HEALTH
from servescope.contract.expressions import Expression, Level, Quantile, Ratio, leaves, level, rate
from servescope.contract.own_metrics import OWN_METRICS, OwnUnit

NAME = HEALTH

_COLLECTOR = ("instance",)

# Red is for what is broken.
_TARGET_COLORS: Mapping[str, str] = MappingProxyType({"up": "green", "down": "red", "unknown": "orange"})


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "Health",
        "Can what the other dashboards show be believed? Collectors, their store, and whoever evaluates and sends "
        "alerts.",
        (
            Row("Does it collect?", (*_collecting(options), *_dropping(options))),
            Row("Does it keep up?", _keeping(options)),
            Row("Who asks it, and what it needs", _asked(options)),
            Row("Are alerts evaluated and sent?", (*_evaluating(options), *_sending(options))),
        ),
        own_variables=HEALTH_VARIABLES,
    )


def _collecting(options: Options) -> tuple[Panel, ...]:
    return (
        _panel(
            "Collectors", level("servescope_build_info", "max"), options, unit="state", by=("instance", "version"),
            meaning="1 for each collector that Prometheus scrapes.",
            normal="one line for each collector you run, all of one version but during an upgrade.",
            first="where one is missing, look whether it runs, and at Prometheus' page of targets.",
        ),
        _panel(
            "Targets by health", level("servescope_targets"), options, unit="targets", by=("health",), stacked=True,
            colors=_TARGET_COLORS,
            normal="all `up`; some `unknown` for a moment after a start.",
            first="Target down below names those that fail; their last scrape is on the console's page Sources.",
        ),
        _panel(
            "Scrapes by outcome", rate("servescope_scrapes_total"), options, unit="scrapes/s", by=("outcome",),
            normal="nearly all `ok`.", first="the outcome says what went wrong; the log says at which target.",
        ),
        _quantiles(
            "Scrape duration", "servescope_scrape_duration_seconds", options,
            normal="far below the scrape interval.",
            first="for long ones look at the targets' own /metrics, then at the collector's CPU.",
        ),
        _quantiles(
            "Scrape lateness", "servescope_scrape_lateness_seconds", options, normal="milliseconds.",
            first="the collector has too much to do: look at event loop lag and CPU.",
        ),
        _panel(
            "Scrapes left out", rate("servescope_missed_scrapes_total"), options, unit="scrapes/s", by=_COLLECTOR,
            normal="0.", first="targets answer too slowly, or the collector is late: compare lateness and duration.",
        ),
    )  # fmt: skip


def _dropping(options: Options) -> tuple[Panel, ...]:
    return (
        _panel(
            "Samples read", rate("servescope_samples_scraped_total"), options, unit="samples/s", by=_COLLECTOR,
            normal="steady; it follows the number of targets.",
            first="if it falls while targets are up, look for missing metrics.",
        ),
        _panel(
            "Samples left out", rate("servescope_dropped_samples_total"), options, unit="samples/s", by=("reason",),
            normal="none.", first="the reason says which limit was met; the log says at which target.",
        ),
        _panel(
            "Series held", level("servescope_series"), options, unit="series", by=_COLLECTOR,
            normal="steady; it follows targets and their buckets.",
            first="if it grows without end, look for targets whose labels change with each scrape.",
        ),
    )  # fmt: skip


def _keeping(options: Options) -> tuple[Panel, ...]:
    return (
        _quantiles(
            "Evaluation duration", "servescope_evaluation_duration_seconds", options,
            normal="far below the evaluation interval.",
            first="look at series held and CPU.",
        ),
        _quantiles(
            "Event loop lag", "servescope_event_loop_lag_seconds", options, normal="milliseconds.",
            first="something keeps the loop busy: compare scrape and evaluation durations.",
        ),
        _panel(
            "Store backlog", level("servescope_store_backlog_rounds"), options, unit="scrapes", by=_COLLECTOR,
            normal="near 0.", first="look at the disk: full, slow, or the file locked by another program.",
        ),
        _quantiles(
            "Store transaction", "servescope_store_append_duration_seconds", options, normal="milliseconds.",
            first="look at the disk the store is on.",
        ),
        _panel(
            "Store errors", rate("servescope_store_errors_total"), options, unit="errors/s", by=_COLLECTOR,
            normal="0.", first="the log says what failed; what was to be written waits and is tried again.",
        ),
        _panel(
            "Store size", level("servescope_store_bytes"), options, unit="bytes", by=_COLLECTOR,
            normal="grows until retention deletes as much as comes.",
            first="compare with the room on its disk; shorten retention.",
        ),
        _panel(
            "Discovery problems", level("servescope_discovery_problems"), options, unit="problems", by=_COLLECTOR,
            normal="0.", first="`/api/v1/targets` names the lists and what is wrong with them.",
        ),
        _panel(
            "Targets listed", level("servescope_discovered_targets"), options, unit="targets", by=("result",),
            normal="as many `kept` as you run.", first="if many are `dropped`, look at the lists' relabelling.",
        ),
    )  # fmt: skip


def _asked(options: Options) -> tuple[Panel, ...]:
    return (
        _panel(
            "API requests", rate("servescope_api_requests_total"), options, unit="requests/s", by=("status",),
            normal="mostly 200.", first="for 401 look at tokens, for 503 at refused requests.",
        ),
        _panel(
            "API requests refused", rate("servescope_api_refused_total"), options, unit="requests/s", by=("reason",),
            normal="0.", first="the reason says which bound was met; raise it, or ask who asks so much.",
        ),
        _quantiles(
            "API answers", "servescope_api_request_duration_seconds", options, normal="milliseconds.",
            first="ask for shorter stretches of time, or look at the disk the store is on.",
        ),
        _panel(
            "API connections", level("servescope_api_connections"), options, unit="connections", by=_COLLECTOR,
            normal="few.", first="look who keeps connections open.",
        ),
        _panel(
            "Collector CPU", rate("process_cpu_seconds_total"), options, unit="cores", by=_COLLECTOR, is_common=True,
            normal="well below one core.", first="lengthen the scrape interval before it comes near one.",
        ),
        _panel(
            "Collector memory", level("process_resident_memory_bytes"), options, unit="bytes", by=_COLLECTOR,
            is_common=True, normal="steady after the first hour.", first="compare with series held.",
        ),
    )  # fmt: skip


def _evaluating(options: Options) -> tuple[Panel, ...]:
    return (
        _panel(
            "Rule failures", rate("prometheus_rule_evaluation_failures_total"), options, unit="errors/s",
            by=("rule_group",), normal="0.", first="Prometheus' page of rules shows the error beside the rule.",
        ),
        _panel(
            "Rule evaluations left out", rate("prometheus_rule_group_iterations_missed_total"), options,
            unit="errors/s", by=("rule_group",), normal="0.",
            first="the group takes longer than its interval: look at the panel beside this one.",
        ),
        _panel(
            "Time rules take",
            Ratio(
                Level("prometheus_rule_group_last_duration_seconds", "max"),
                Level("prometheus_rule_group_interval_seconds", "max"),
            ),
            options, unit="ratio", by=("rule_group",),
            meaning="A group's last evaluation, as a share of the interval it has.",
            normal="below 50 %.", first="give Prometheus more CPU, or a longer interval.",
        ),
        _panel(
            "Prometheus took up its configuration", level("prometheus_config_last_reload_successful", "max"), options,
            unit="state", by=_COLLECTOR, normal="1.",
            first="Prometheus' log names the line; `promtool check config` too.",
        ),
    )  # fmt: skip


def _sending(options: Options) -> tuple[Panel, ...]:
    return (
        _panel(
            "Alerts the collector holds", level("servescope_alerts"), options, unit="alerts", by=("alertstate",),
            normal="the Watchdog alone is `firing`.", first="the dashboard of what fires shows why.",
        ),
        _panel(
            "Told by the collector", rate("servescope_notifications_total"), options, unit="events/s",
            by=("receiver", "result"), normal="only `sent`; empty where Prometheus tells.",
            first="the collector's log says what the receiver answered.",
        ),
        _quantiles(
            "Evaluating alerts", "servescope_alerting_duration_seconds", options,
            normal="far below the evaluation interval.", first="compare with the evaluation of figures.",
        ),
        _panel(
            "Alerts sent to Alertmanager", rate("prometheus_notifications_sent_total"), options, unit="events/s",
            by=("alertmanager",), normal="above 0 at all times: the Watchdog is sent again and again.",
            first="if it is 0, look whether rules are loaded and Alertmanagers known.",
        ),
        _panel(
            "Alerts Alertmanager did not take", rate("prometheus_notifications_errors_total"), options,
            unit="errors/s", by=("alertmanager",), normal="0.", first="look whether that Alertmanager runs.",
        ),
        _panel(
            "Alerts given up", rate("prometheus_notifications_dropped_total"), options, unit="events/s",
            by=_COLLECTOR, normal="0.", first="no Alertmanager took them: nobody was told.",
        ),
        _panel(
            "Alertmanagers known", level("prometheus_notifications_alertmanagers_discovered", "max"), options,
            unit="targets", by=_COLLECTOR, normal="as many as you run.", first="mend Prometheus' `alerting` section.",
        ),
        _panel(
            "Notifications", rate("alertmanager_notifications_total"), options, unit="events/s", by=("integration",),
            normal="above 0 for the receiver of the Watchdog.", first="if it is 0, look at Alertmanager's routes.",
        ),
        _panel(
            "Notifications failed", rate("alertmanager_notifications_failed_total"), options, unit="errors/s",
            by=("integration",), normal="0.", first="Alertmanager's log says what the receiver answered.",
        ),
        _panel(
            "Alerts held by Alertmanager", level("alertmanager_alerts"), options, unit="alerts", by=("state",),
            normal="the Watchdog alone is `active`.",
            first="`suppressed` ones are silenced or inhibited: look by what.",
        ),
        _panel(
            "Alertmanager took up its configuration", level("alertmanager_config_last_reload_successful", "max"),
            options, unit="state", by=_COLLECTOR, normal="1.", first="Alertmanager's log names the line; `amtool` too.",
        ),
    )  # fmt: skip


def _panel(
    title: str,
    expression: Expression,
    options: Options,
    *,
    unit: OwnUnit,
    by: tuple[str, ...],
    normal: str,
    first: str,
    meaning: str = "",
    stacked: bool = False,
    is_common: bool = False,
    colors: Mapping[str, str] = SERIES_COLORS,
) -> Panel:
    """An expression over series about the monitoring, told by the series' own help unless `meaning` is given.

    `is_common` where every program has such series: then those of collectors are kept.
    """
    names = sorted(leaves(expression))
    text = compile_own(expression, options, by=by)
    return Panel(
        title=title,
        kind="timeseries",
        queries=(Query(among_collectors(text, options) if is_common else text, legend(options, *by)),),
        unit=UNITS[unit],
        meaning=meaning or OWN_METRICS[names[0]].help,
        normal=normal,
        first=first,
        no_data=absent_own(names[0]),
        axis=(0.0, 1.0) if unit == "ratio" else None,
        stacked=stacked,
        colors=colors,
    )


def _quantiles(title: str, histogram: str, options: Options, *, normal: str, first: str) -> Panel:
    return Panel(
        title=title,
        kind="timeseries",
        queries=tuple(
            Query(compile_own(Quantile(share, histogram), options, by=()), f"p{share * 100:g}")
            for share in (0.5, 0.95, 0.99)
        ),
        unit=UNITS["seconds"],
        meaning=OWN_METRICS[histogram].help,
        normal=normal,
        first=first,
        no_data=NoData("idle", "nothing happened in the window"),
    )
