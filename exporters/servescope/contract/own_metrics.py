"""The series about the monitoring itself: `servescope_*` of our own programs, Prometheus', Alertmanager's.

The collector, the judge and the customers' export expose their own from these records. Of Prometheus and Alertmanager
only those are listed that the health dashboard and alerts read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from servescope.contract.identity import DEPLOYMENT_LABELS, GROUP_LABELS, IDENTITY_LABELS
from servescope.contract.types import Kind

Program = Literal["collector", "rules", "translate", "judge", "customers", "prometheus", "alertmanager"]
"""What has a series; those of `rules` are recorded by the generated rules alone."""
OwnUnit = Literal[
    "alerts", "bytes", "bytes/s", "connections", "cores", "errors", "errors/s", "events", "events/s", "problems",
    "ratio", "requests", "requests/s", "rows", "samples", "samples/s", "scrapes", "scrapes/s", "seconds", "series",
    "stages", "state", "targets", "tasks",
]  # fmt: skip
"""Units of series about the monitoring; a `state` is 1 or 0."""


COLLECTOR_JOB = "servescope"
"""The `job` under which a Prometheus scrapes the collectors."""

PROBED_JOB = "servescope-targets"
"""The `job` under which a Prometheus scrapes targets through translators (`servescope translate`)."""

TRANSLATE_JOB = "servescope-translate"
"""The `job` under which a Prometheus scrapes the translators themselves."""

AGENTS_JOB = "servescope-agents"
"""The `job` under which a Prometheus scrapes the agents that scrape targets for it."""

STORAGE_JOB, PROXY_JOB, EVALUATOR_JOB = "victoria-metrics", "vmauth", "vmalert"
"""The `job`s of VictoriaMetrics' storage nodes, of the proxies in front of them, and of what evaluates the rules."""

JUDGE_JOB = "servescope-judge"
"""The `job` under which a Prometheus scrapes the judges (`servescope judge watch`)."""

CUSTOMERS_JOB = "servescope-customers"
"""The `job` under which a Prometheus scrapes the customers' exports (`servescope customers run`)."""

LANE_LABELS = ("customer", "destination")
"""The labels of a lane: the customer, and its name of the destination."""

JUDGED_LABELS = ("plan", *GROUP_LABELS)
"""The labels of a judgement: its plan, and the labels that all targets of v2 share, as notifications about v2 have."""

JUDGEMENT_AGE_SECONDS = 300.0
"""An older judgement does not say whether the cutover is healthy."""

SCRAPE_AGE_SERIES = "servescope_target_scrape_age_seconds"
"""Its series are there while the target is listed, whether its scrapes succeed or not."""

TARGET_UNDERSTOOD = "servescope_target_understood"
TARGET_LACKS = "servescope_target_lacks"
"""1 where a source map reads what a target exposes, 0 where none does; absent while its scrapes fail."""

UNSEEN_SERIES = "servescope_target_unseen"
"""Its series are there while nothing says of a target whether it is up: what would scrape or translate it is gone."""

COVERAGE_SERIES, MOST_SCRAPES_SERIES = "servescope_window_coverage_ratio", "servescope_window_scrapes"
"""How much of the window of a deployment's rates is there, and how many scrapes a target has in a window at most."""

FILLED_SERIES = "servescope_window_filled_ratio"
"""How far back over the window of a deployment's figures its scrapes reach; also its key among stored figures, where it
is there only while that is less than all of it.
"""

CLOCK_SERIES, CLOCK_OFFSET_SERIES = "servescope_clock_seconds", "servescope_clock_offset_seconds"
"""The time of a collector, and how far the times of collectors, agents and samples are from Prometheus'."""

COVERED_RATIO = 0.9
"""A window of which less is there is not whole: a scrape more or less, and one that is late, are no gap."""

RULE_FAILURES = "prometheus_rule_evaluation_failures_total"
RULE_EVALUATIONS = "prometheus_rule_group_iterations_total"
RULES_MISSED = "prometheus_rule_group_iterations_missed_total"
ALERTS_SENT = "prometheus_notifications_sent_total"
ALERTS_UNSENT = "prometheus_notifications_errors_total"
PROMETHEUS_RELOADED = "prometheus_config_last_reload_successful"
NOTIFICATIONS_TRIED = "alertmanager_notifications_total"
NOTIFICATIONS_FAILED = "alertmanager_notifications_failed_total"
ALERTMANAGER_RELOADED = "alertmanager_config_last_reload_successful"
SCRAPED_UP = "up"
FOREIGN_SERIES = frozenset({
    RULE_FAILURES, RULE_EVALUATIONS, RULES_MISSED, ALERTS_SENT, ALERTS_UNSENT, PROMETHEUS_RELOADED,
    NOTIFICATIONS_TRIED, NOTIFICATIONS_FAILED, ALERTMANAGER_RELOADED, SCRAPED_UP,
})  # fmt: skip
"""Series that Prometheus and Alertmanager expose about themselves; a Prometheus that scrapes both has them."""

UNSCRAPED = "the collector is not scraped"
UNPROBED = "the target is not scraped through a translator"
UNRECORDED = "no Prometheus evaluates recording.rules.yml"
UNTRANSLATED = "no translator runs, or it is not scraped"
UNEXPORTED = "the customers' export does not run, or is not scraped"
UNWATCHED = "no judge watches the cutover, or it is not scraped"


@dataclass(frozen=True, slots=True)
class OwnMetric:
    """One metric about the monitoring; `labels` are all it has, those of a deployment or a target included.

    `absent` is what it means when the metric is missing.
    """

    name: str
    kind: Kind
    unit: OwnUnit
    help: str
    labels: tuple[str, ...] = ()
    absent: str = UNSCRAPED
    program: Program = "collector"

    @property
    def family(self) -> str:
        """The name without a counter's suffix."""
        return self.name.removesuffix("_total")


def _of_process(name: str, kind: Kind, unit: OwnUnit, text: str) -> OwnMetric:
    return OwnMetric(name, kind, unit, text, absent="the collector does not run on Linux")


_COLLECTOR = (
    OwnMetric("servescope_scrapes_total", "counter", "scrapes", "Scrapes, by how they ended.", ("outcome",)),
    OwnMetric(
        "servescope_scrape_duration_seconds", "histogram", "seconds",
        "From the start of a scrape until its samples were translated.",
    ),
    OwnMetric(
        "servescope_scrape_lateness_seconds", "histogram", "seconds",
        "How long after it was due a scrape began.",
    ),
    OwnMetric(
        "servescope_missed_scrapes_total", "counter", "scrapes",
        "Scrapes skipped because the one before them, or the collector, was late.",
    ),
    OwnMetric("servescope_samples_scraped_total", "counter", "samples", "Native samples read from targets."),
    OwnMetric(
        "servescope_dropped_samples_total", "counter", "samples", "Samples dropped, by reason.", ("reason",),
        absent="none was dropped",
    ),
    OwnMetric("servescope_series", "gauge", "series", "Contract series held in memory."),
    OwnMetric(
        "servescope_discovery_duration_seconds", "histogram", "seconds",
        "Reading all lists of targets once and applying what changed.",
    ),
    OwnMetric(
        "servescope_discovery_problems", "gauge", "problems", "Problems with the lists of targets now."
    ),
    OwnMetric(
        "servescope_discovered_targets", "gauge", "targets",
        "Targets in lists and configuration, by whether relabelling kept or dropped them.", ("result",),
        absent="no list was read yet",
    ),
    OwnMetric(
        "servescope_configuration_reload_success", "gauge", "state",
        "1 when the configuration was applied at its last reload, 0 when it was refused.",
    ),
    OwnMetric(
        "servescope_configuration_reload_timestamp_seconds", "gauge", "seconds",
        "When the configuration was last applied, seconds since 1970.",
    ),
    OwnMetric(
        "servescope_evaluation_duration_seconds", "histogram", "seconds",
        "Deriving the figures of all deployments once.",
    ),
    OwnMetric("servescope_render_duration_seconds", "histogram", "seconds", "Writing one /metrics page."),
    OwnMetric("servescope_tasks", "gauge", "tasks", "Tasks of the event loop now."),
    OwnMetric(
        "servescope_event_loop_lag_seconds", "histogram", "seconds",
        "How much later than requested the event loop woke, measured once a second.",
    ),
    OwnMetric(
        "servescope_store_append_duration_seconds", "histogram", "seconds", "One transaction of scrapes and figures."
    ),
    OwnMetric(
        "servescope_store_backlog_rounds", "gauge", "scrapes",
        "Scrapes and evaluations that wait to be written to the store.",
    ),
    OwnMetric(
        "servescope_store_queue_age_seconds", "gauge", "seconds",
        "How long the oldest scrape that is not stored yet has waited.",
    ),
    OwnMetric("servescope_store_bytes", "gauge", "bytes", "Size of the store's file and its write-ahead log."),
    OwnMetric(
        "servescope_store_pruned_rows_total", "counter", "rows",
        "Scrapes, evaluations and blocks of increments deleted by retention.",
    ),
    OwnMetric(
        "servescope_store_future_rows_total", "counter", "rows",
        "Scrapes, evaluations and blocks of increments dropped, as the clock was set back to before them.",
    ),
    OwnMetric(CLOCK_SERIES, "gauge", "seconds", "The collector's time, in seconds since 1970."),
    OwnMetric(
        "servescope_clock_steps_total", "counter", "events",
        "How often the collector's clock was set: back by more than 5 s, forward by more than ten minutes.",
        ("direction",),
    ),
    OwnMetric("servescope_store_errors_total", "counter", "errors", "Writes to the store that failed."),
    OwnMetric(
        "servescope_internal_errors_total", "counter", "errors",
        "Internal errors of the collector, by stage; each lost a scrape, an evaluation, or a reading of the lists.",
        ("stage",),
    ),
    OwnMetric(
        "servescope_api_requests_total", "counter", "requests", "Requests answered, by HTTP status.", ("status",),
        absent="no request was answered yet",
    ),
    OwnMetric(
        "servescope_api_request_duration_seconds", "histogram", "seconds",
        "From a request's headers until its answer was ready; sending it is not included.",
    ),
    OwnMetric(
        "servescope_api_refused_total", "counter", "requests", "Requests and connections refused, by reason.",
        ("reason",),
    ),
    OwnMetric("servescope_api_connections", "gauge", "connections", "Connections of clients now."),
    OwnMetric(
        FILLED_SERIES, "gauge", "ratio",
        "Ratio of the window of a deployment's figures that its scrapes reach back over: below 1 after the first "
        "scrape and after a gap, when rates are too low by the rest.",
        (*DEPLOYMENT_LABELS, "window"), absent="no target of the deployment was scraped within the window",
    ),
    OwnMetric(
        "servescope_targets", "gauge", "targets",
        "Targets of each deployment, by how their last scrape ended; `unseen` ones are recorded by rules.",
        (*DEPLOYMENT_LABELS, "health"), absent="there is no target",
    ),
    OwnMetric(
        "servescope_target_up", "gauge", "state",
        "1 when the target answered its last scrape with metrics, as in Prometheus' `up`, else 0.",
        IDENTITY_LABELS, absent="there is no target, or none was scraped yet",
    ),
    OwnMetric(
        TARGET_UNDERSTOOD, "gauge", "state",
        "1 when a source map reads the metrics that the target answered with, 0 when none does.",
        IDENTITY_LABELS, absent="there is no target that answers",
    ),
    OwnMetric(
        "servescope_target_info", "gauge", "state",
        "1, with the source that the target was identified as, its version, and where in the deployment it measures; "
        "also the version of the translator, where it was probed.",
        (*IDENTITY_LABELS, "source", "version", "layer", "translator"),
        absent="there is no target, or none was scraped yet",
    ),
    OwnMetric(
        "servescope_target_samples", "gauge", "samples", "Contract samples of the target's last scrape.",
        IDENTITY_LABELS, absent="there is no target, or none was scraped yet",
    ),
    OwnMetric(
        "servescope_target_scrape_duration_seconds", "gauge", "seconds", "Duration of the target's last scrape.",
        IDENTITY_LABELS, absent="there is no target, or none was scraped yet",
    ),
    OwnMetric(
        "servescope_target_missing_metrics", "gauge", "series",
        "Contract metrics that the target exposed before and does not expose now; without a collector, within the last "
        "hour.",
        IDENTITY_LABELS, absent="there is no target, or none was scraped yet",
    ),
    OwnMetric(
        TARGET_LACKS, "gauge", "state",
        "1 for each contract metric that the target exposed before and does not expose now.",
        (*IDENTITY_LABELS, "metric"), absent="no target lacks a metric",
    ),
    OwnMetric(
        SCRAPE_AGE_SERIES, "gauge", "seconds",
        "Time since the target last answered a scrape with metrics; exposed while the target is listed.",
        IDENTITY_LABELS, absent="there is no target, or none was scraped yet",
    ),
    OwnMetric(
        "servescope_configured_traffic_ratio", "gauge", "ratio",
        "Ratio of a model's requests that the configuration assigns to each inference stack.",
        ("model_name", "environment", "inference_stack"), absent="no traffic split is configured",
    ),
    OwnMetric(
        "servescope_alerts", "gauge", "alerts", "Alerts that are pending or firing, by their name.",
        ("alertname", "alertstate"), absent="none is pending or firing",
    ),
    OwnMetric("servescope_alerting_duration_seconds", "histogram", "seconds", "Evaluating all alerts once."),
    OwnMetric(
        "servescope_alerts_left_out_total", "counter", "events",
        "Alerts dropped at an evaluation, as the most that may be pending or firing already were.",
    ),
    OwnMetric(
        "servescope_notifications_total", "counter", "events",
        "Alerts sent to receivers, by result.", ("receiver", "result"),
        absent="no receiver is configured",
    ),
    OwnMetric(
        "servescope_notification_duration_seconds", "histogram", "seconds",
        "Sending one notification to one receiver, where that succeeded.",
    ),
    OwnMetric("servescope_build_info", "gauge", "state", "1, with the version as label.", ("version",)),
    _of_process("process_cpu_seconds_total", "counter", "seconds", "CPU time the collector's process used."),
    _of_process("process_resident_memory_bytes", "gauge", "bytes", "Memory the collector's process has in use."),
    _of_process("process_virtual_memory_bytes", "gauge", "bytes", "Address space of the collector's process."),
    _of_process("process_start_time_seconds", "gauge", "seconds", "When the collector began, seconds since 1970."),
    _of_process("process_open_fds", "gauge", "connections", "Files and connections the collector has open."),
    _of_process("process_max_fds", "gauge", "connections", "Files and connections it may have open."),
)  # fmt: skip


_RULES = (
    OwnMetric(
        CLOCK_OFFSET_SERIES, "gauge", "seconds",
        "How far a clock is ahead of Prometheus', below 0 behind it: of collectors and Prometheus agents, and, where "
        "it is more than 90 s, of what sets the time of a target's samples.",
        ("job", "instance"), absent=f"{UNRECORDED}, or no clock is known", program="rules",
    ),
    OwnMetric(
        UNSEEN_SERIES, "gauge", "state",
        "1 while nothing says of a target whether it is up, by what is gone: the `collector` or the `agent` that "
        "scraped it, or the `translator` that read it.",
        (*IDENTITY_LABELS, "why"), absent="every target is seen", program="rules",
    ),
    OwnMetric(
        MOST_SCRAPES_SERIES, "gauge", "scrapes", "Scrapes that the last 5 minutes have of one target, at most.",
        (*DEPLOYMENT_LABELS, "role"), absent=UNRECORDED, program="rules",
    ),
    OwnMetric(
        COVERAGE_SERIES, "gauge", "ratio",
        "Ratio of the usual scrapes of a deployment's targets that are there of the last 5 minutes: below 1, rates and "
        "what is summed from them are too low by what is missing.",
        DEPLOYMENT_LABELS, absent=UNRECORDED, program="rules",
    ),
)  # fmt: skip


def _of_probe(name: str, unit: OwnUnit, text: str, *labels: str, absent: str = UNPROBED) -> OwnMetric:
    return OwnMetric(f"servescope_probe_{name}", "gauge", unit, text, (*IDENTITY_LABELS, *labels), absent, "translate")


def _of_translator(
    name: str, kind: Kind, unit: OwnUnit, text: str, *labels: str, absent: str = UNTRANSLATED
) -> OwnMetric:
    return OwnMetric(f"servescope_probe_{name}", kind, unit, text, labels, absent, "translate")


_TRANSLATE = (
    _of_probe("success", "state", "1 when the target was read and translated, else 0."),
    _of_probe("failed", "state", "1, with the reason why a probe failed.", "reason", absent="the probe succeeded"),
    _of_probe("duration_seconds", "seconds", "From the request for a probe until the target was translated."),
    _of_probe(
        "metrics", "series", "Contract metrics that the target supplies, without those taken from what is in front "
        "of it.", absent="the probe failed",
    ),
    _of_translator("requests_total", "counter", "requests", "Probes, by how they ended.", "outcome"),
    _of_translator(
        "refused_total", "counter", "requests", "Requests for a probe that were refused, by what was wrong.", "reason"
    ),
    _of_translator(
        "request_duration_seconds", "histogram", "seconds", "From the request for a probe until its page was rendered."
    ),
    _of_translator(
        "translation_duration_seconds", "histogram", "seconds", "Parsing, translating and rendering one page."
    ),
    _of_translator("in_progress", "gauge", "requests", "Probes in progress now."),
    _of_translator("samples_total", "counter", "samples", "Native samples read from targets."),
    _of_translator(
        "dropped_samples_total", "counter", "samples", "Samples dropped, by reason.", "reason",
        absent="none was dropped",
    ),
    _of_translator("cached_series", "gauge", "series", "Series of the page layouts that are kept."),
    _of_translator("build_info", "gauge", "state", "1, with the version of the translator as label.", "version"),
    _of_translator(
        "reload_success", "gauge", "state",
        "1 when the configuration was applied at its last reload, 0 when it was refused.",
    ),
)  # fmt: skip


def _of_judgement(
    name: str, unit: OwnUnit, text: str, *labels: str, absent: str = "nothing was judged yet"
) -> OwnMetric:
    return OwnMetric(f"servescope_judgement{name}", "gauge", unit, text, (*JUDGED_LABELS, *labels), absent, "judge")


_UNKNOWN_RATIO = "the metric has no interval: it lies in a band, or there is no data"

_JUDGE = (
    _of_judgement("", "state", "1 for the verdict of the last judgement, 0 for the others.", "verdict"),
    _of_judgement(
        "_severity", "state", "1 for the severity (`beyond margin`, `probable`) of a DEGRADED verdict, else 0.",
        "severity",
    ),
    _of_judgement("_latched", "state", "1 while harm was proven that nobody has acknowledged, else 0."),
    _of_judgement(
        "_age_seconds", "seconds", "Time since the last judgement; it grows while judging fails.", absent=UNWATCHED
    ),
    _of_judgement("_stage", "stages", "The stage that is judged, counted from 1."),
    _of_judgement("_stages", "stages", "Stages of the plan."),
    _of_judgement("_planned_share_ratio", "ratio", "Share of the requests that v2 is to have in this stage."),
    _of_judgement(
        "_observed_share_ratio", "ratio", "Share of the requests that v2 has had in this stage.",
        absent="no request was observed in this stage",
    ),
    _of_judgement(
        "_metric_verdict", "state", "1 for the verdict of a metric, 0 for the others.", "metric", "verdict"
    ),
    _of_judgement(
        "_metric_ratio", "ratio", "The metric's value on v2 divided by that on v1.", "metric", absent=_UNKNOWN_RATIO
    ),
    _of_judgement(
        "_metric_ratio_low", "ratio", "Lower end of the interval of the metric's ratio, valid at every look.", "metric",
        absent=_UNKNOWN_RATIO,
    ),
    _of_judgement(
        "_metric_ratio_high", "ratio", "Upper end of the interval of the metric's ratio, valid at every look.",
        "metric", absent=_UNKNOWN_RATIO,
    ),
    _of_judgement(
        "_metric_margin_ratio", "ratio", "Relative change for the worse that v2 must be proven to stay below.",
        "metric", absent="the metric lies in a band",
    ),
    _of_judgement(
        "_metric_information_ratio", "ratio",
        "Information gathered about a metric, divided by what settles it at the present estimate.", "metric",
        absent="how much is needed is not known",
    ),
    _of_judgement(
        "_metric_eta_seconds", "seconds", "Time until a metric is settled at the rate of the last hour.", "metric",
        absent="the metric is settled, or cannot be at this rate",
    ),
    _of_judgement(
        "_info", "state", "1, with the hash of the frozen plan, the run and the version of the judge as labels.",
        "plan_hash", "run", "version", absent=UNWATCHED,
    ),
    OwnMetric(
        "servescope_judgement_duration_seconds", "histogram", "seconds",
        "Reading the evidence of one judgement and making it.", ("plan",), UNWATCHED, "judge",
    ),
    OwnMetric(
        "servescope_judgement_errors_total", "counter", "errors", "Attempts to judge that failed.",
        ("plan",), UNWATCHED, "judge",
    ),
)  # fmt: skip


def _of_prometheus(
    name: str, kind: Kind, unit: OwnUnit, text: str, labels: tuple[str, ...] = (), absent: str = ""
) -> OwnMetric:
    return OwnMetric(name, kind, unit, text, labels, absent or "Prometheus does not scrape itself", "prometheus")


def _of_alertmanager(name: str, kind: Kind, unit: OwnUnit, text: str, labels: tuple[str, ...] = ()) -> OwnMetric:
    return OwnMetric(name, kind, unit, text, labels, "Prometheus does not scrape Alertmanager", "alertmanager")


def _of_lane(
    name: str, kind: Kind, unit: OwnUnit, text: str, *labels: str, absent: str = "no edge was delivered yet"
) -> OwnMetric:
    return OwnMetric(f"servescope_customer{name}", kind, unit, text, (*LANE_LABELS, *labels), absent, "customers")


_CUSTOMERS = (
    OwnMetric(
        "servescope_customer_lanes", "gauge", "tasks", "Destinations that are delivered to.", (), UNEXPORTED,
        "customers",
    ),
    _of_lane(
        "_lag_seconds", "gauge", "seconds",
        "How far behind a destination is: time since the last edge that it acknowledged, or since its lane began.",
        absent=UNEXPORTED,
    ),
    _of_lane(
        "_failing_seconds", "gauge", "seconds",
        "Since when a destination has accepted no request that was sent; 0 when the last one was accepted.",
        absent=UNEXPORTED,
    ),
    _of_lane("_exported_series", "gauge", "series", "Streams with a point at the last edge."),
    _of_lane(
        "_withheld_series", "gauge", "series", "Series withheld from a customer at the last edge, by reason.", "reason"
    ),
    _of_lane("_sent_points_total", "counter", "samples", "Points sent, repeated ones included.", absent=UNEXPORTED),
    _of_lane("_sent_bytes_total", "counter", "bytes", "Bytes of the requests that were answered.", absent=UNEXPORTED),
    _of_lane(
        "_clock_skew_seconds", "gauge", "seconds", "How far the destination's clock is ahead of ours.",
        absent="the destination sends no time",
    ),
    _of_lane(
        "_acknowledged_points_total", "counter", "samples", "Points that a destination accepted.", absent=UNEXPORTED
    ),
    _of_lane(
        "_dropped_points_total", "counter", "samples",
        "Points that a destination does not get: refused for good, or too old.", "reason", absent="none was dropped",
    ),
    _of_lane(
        "_requests_total", "counter", "requests", "Requests to a destination: `ok`, or why they failed.", "outcome",
        absent=UNEXPORTED,
    ),
    OwnMetric(
        "servescope_customer_scrapes_total", "counter", "requests",
        "Requests for a customer's page with its token, by HTTP status: 429 too many, 503 no current figures.",
        ("customer", "status"), "it was not scraped yet", "customers",
    ),
    _of_lane("_request_duration_seconds", "histogram", "seconds", "One request to a destination.", absent=UNEXPORTED),
    _of_lane(
        "_last_success_timestamp_seconds", "gauge", "seconds",
        "When a destination last accepted a request, seconds since 1970.", absent="it never did since the start",
    ),
    _of_lane(
        "_gaps_total", "counter", "events", "Times of which points are missing at a destination, by reason.", "reason",
        absent="there was none",
    ),
    _of_lane(
        "_gap_seconds_total", "counter", "seconds", "How long those were altogether.", "reason",
        absent="there was none",
    ),
    _of_lane(
        "_recent_gap_seconds", "gauge", "seconds",
        "How long the gaps that were found within the last hour are altogether.", absent=UNEXPORTED,
    ),
    _of_lane(
        "_internal_errors_total", "counter", "errors",
        "Errors of the export itself: the store or the cursors cannot be read, or a mistake of ours.",
        absent=UNEXPORTED,
    ),
)  # fmt: skip

_OTHERS = (
    OwnMetric(
        SCRAPED_UP, "gauge", "state", "1 when Prometheus' last scrape of the collector succeeded, else 0.",
        ("instance", "job"), absent="Prometheus has no collector among its targets",
    ),
    _of_prometheus("prometheus_build_info", "gauge", "state", "1, with the version as label.", ("version",)),
    _of_prometheus(
        RULE_FAILURES, "counter", "errors", "Rules whose evaluation failed, by group.",
        ("rule_group",), "Prometheus does not scrape itself, or has no rules",
    ),
    _of_prometheus(
        RULE_EVALUATIONS, "counter", "events", "Evaluations of a group that were due, missed ones included.",
        ("rule_group",), "Prometheus does not scrape itself, or has no rules",
    ),
    _of_prometheus(
        RULES_MISSED, "counter", "errors",
        "Evaluations of a group skipped because the one before was not over.",
        ("rule_group",), "Prometheus does not scrape itself, or has no rules",
    ),
    _of_prometheus(
        "prometheus_rule_group_last_duration_seconds", "gauge", "seconds", "How long a group's last evaluation took.",
        ("rule_group",), "Prometheus does not scrape itself, or has no rules",
    ),
    _of_prometheus(
        "prometheus_rule_group_interval_seconds", "gauge", "seconds", "How often a group is evaluated.",
        ("rule_group",), "Prometheus does not scrape itself, or has no rules",
    ),
    _of_prometheus(
        ALERTS_SENT, "counter", "events", "Alerts sent to each Alertmanager.",
        ("alertmanager",), "Prometheus does not scrape itself, or knows no Alertmanager",
    ),
    _of_prometheus(
        ALERTS_UNSENT, "counter", "errors", "Alerts that an Alertmanager did not accept.",
        ("alertmanager",), "Prometheus does not scrape itself, or knows no Alertmanager",
    ),
    _of_prometheus(
        "prometheus_notifications_dropped_total", "counter", "events",
        "Alerts dropped because no Alertmanager accepted them or the queue was full.",
    ),
    _of_prometheus(
        "prometheus_notifications_alertmanagers_discovered", "gauge", "targets", "Alertmanagers Prometheus knows of."
    ),
    _of_prometheus(
        PROMETHEUS_RELOADED, "gauge", "state",
        "1 when Prometheus applied its configuration at its last reload, 0 when it refused it.",
    ),
    _of_alertmanager("alertmanager_build_info", "gauge", "state", "1, with the version as label.", ("version",)),
    _of_alertmanager(
        NOTIFICATIONS_TRIED, "counter", "events", "Notifications Alertmanager sent or tried to.",
        ("integration",),
    ),
    _of_alertmanager(
        NOTIFICATIONS_FAILED, "counter", "errors", "Notifications that could not be sent.",
        ("integration",),
    ),
    _of_alertmanager(
        "alertmanager_alerts", "gauge", "alerts", "Alerts in Alertmanager, by state.", ("state",)
    ),
    _of_alertmanager(
        ALERTMANAGER_RELOADED, "gauge", "state",
        "1 when Alertmanager applied its configuration at its last reload, 0 when it refused it.",
    ),
)  # fmt: skip


OWN_METRICS: Mapping[str, OwnMetric] = MappingProxyType(
    {metric.name: metric for metric in (*_COLLECTOR, *_RULES, *_TRANSLATE, *_JUDGE, *_CUSTOMERS, *_OTHERS)}
)
"""Every metric about the monitoring, by its name in an exposition."""


def own_family(sample: str) -> OwnMetric | None:
    """The metric that a sample's name belongs to, None for any other sample."""
    found = OWN_METRICS.get(sample)
    if found is None:
        for suffix in ("_bucket", "_sum", "_count"):
            family = OWN_METRICS.get(sample.removesuffix(suffix))
            if sample.endswith(suffix) and family is not None and family.kind == "histogram":
                return family
    return found
