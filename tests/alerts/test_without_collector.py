"""Rules in place of a collector: what it says of targets, from their scrapes and probes, and the alerts on that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from alerts.fleet import fleet_rules
from alerts.options import Options, make_options
from alerts.rules import alert_groups
from alerts.without_collector import without_collector_group
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.records import SelfMetric, conditions_of, terms
from servescope.contract.own_metrics import OWN_METRICS
from tests.alerts.support.probed_stories import concerns_targets, probed
from tests.support.alert_proofs import stories_of
from tests.support.alert_stories import DEPLOYMENT, STALE, TARGET, beside_each_other, series
from tests.support.promtool import Suite, failures, unit_test

OF_COLLECTORS = {
    "counters that were not read", "scraped every eight minutes", "scraped by no collector", "counters just read",
    "counters that were not read, with a router of that name", "another of that name was not read", "no collector",
}  # fmt: skip
"""Stories that only a collector can cause: a Prometheus scrapes each listed target at every interval, or it is down."""
NEVER = {"ServescopeTelemetryStale"}
"""Alerts that cannot fire without a collector."""
QUICK = ("ServescopeTargetDown", "ServescopeRouterDown")

OF_TARGETS = sorted(
    name
    for name in ALERTS.keys() - NEVER
    for read in ([term for each in conditions_of(ALERTS[name]) for term in terms(each)],)
    if any(isinstance(term, SelfMetric) and term.name.startswith("servescope_target") for term in read)
)
"""The alerts that read a collector's series of targets."""


def _suites(names: Iterable[str], *, is_left_open: bool = False) -> dict[str, Suite]:
    return {
        name: Suite(
            beside_each_other(
                probed(story)
                for story in stories_of(name, is_left_open=is_left_open)
                if concerns_targets(story)
                and story["name"].partition(": ")[2] not in OF_COLLECTORS
                # Of the targets of a story, and of no more, the rules count themselves how many are up.
                and not any(each["series"].startswith("servescope_targets{") for each in story["input_series"])
            ),
            [without_collector_group(), *alert_groups([ALERTS[name]])],
        )
        for name in names
    }


@pytest.mark.slow
def test_alerts_on_targets_are_the_same_without_a_collector(promtool: Path, tmp_path: Path) -> None:
    """They fire and resolve at the same minutes, with the same words, on what a scrape and a probe leave behind."""
    assert failures(promtool, tmp_path, _suites(QUICK)) == {}


@pytest.mark.proof
@pytest.mark.parametrize("name", OF_TARGETS)
def test_every_alert_on_targets_is_the_same_without_a_collector(
    both_promtools: Path, tmp_path: Path, is_left_open: bool, name: str
) -> None:
    """Each story, with the Prometheus of Debian's stable suite and with Prometheus 3."""
    suites = _suites([name], is_left_open=is_left_open)

    assert failures(both_promtools, tmp_path, suites) == {}


def test_what_is_recorded_is_a_collectors_series() -> None:
    """Under its name, and each series that alerts read of targets; what no collector has is about the fleet."""
    read = {
        term.name
        for name in OF_TARGETS
        for condition in conditions_of(ALERTS[name])
        for term in terms(condition)
        if isinstance(term, SelfMetric) and term.name.startswith("servescope_target")
    }
    recorded = {rule["record"] for rule in (*without_collector_group()["rules"], *fleet_rules())}

    assert read <= recorded <= {*OWN_METRICS, "replica_count_by_status"}
    assert "servescope_target_up" in read


# --- The rules by themselves ------------------------------------------------------------------------------------------

_PROBED = {**TARGET, "job": "servescope-targets", "instance": "10.0.0.7:8000"}
_SCRAPED = {**TARGET, "replica": "direct", "job": "ours", "instance": "10.0.0.8:8000"}
_OTHER_SCRAPER = {**_PROBED, "pod": "agent-1"}
_UNKNOWN = {"job": "prometheus", "instance": "localhost:9090"}

# By the minute: the target answers, is down, has no translator, answers, and left the list.
_UP = f"1 1 1 1 0 0 1 1 {STALE} _"
_SUCCESS = f"1 1 0 0 {STALE} _ 1 1 {STALE} _"
_HEALTH: list[float | None] = [1, 1, 0, 0, 0, 0, 1, 1, None, None]
_DOWN = [None if value is None else 1 - value for value in _HEALTH]
_AGE: list[float | None] = [0, 0, 60, 120, 180, 240, 0, 0, None, None]


def _recorded(record: str, labels: Mapping[str, str], values: Iterable[float | None]) -> list[dict[str, Any]]:
    return [
        {
            "expr": series(record, labels),
            "eval_time": f"{minute}m",
            "exp_samples": [] if value is None else [{"labels": series(record, labels), "value": value}],
        }
        for minute, value in enumerate(values)
    ]


def _check(
    promtool: Path, folder: Path, given: Mapping[str, str], checks: list[dict[str, Any]], options: Options | None = None
) -> Mapping[str, str]:
    group = without_collector_group(options) if options else without_collector_group()
    return failures(promtool, folder, {"rules": Suite([unit_test(given, checks)], [group])})


@pytest.mark.slow
def test_a_target_is_up_by_its_probe_and_listed_by_its_scrape(both_promtools: Path, tmp_path: Path) -> None:
    """Down as its probe says or when no translator answers; its age grows meanwhile; nothing once it is not listed."""
    given = {
        series("up", _PROBED): _UP,
        series("servescope_probe_success", _PROBED): _SUCCESS,
        series("servescope_probe_metrics", _PROBED): f"27 27 {STALE} _ _ _ 25 28 {STALE} _",
        series("servescope_probe_duration_seconds", _PROBED): f"0.5 0.5 2 2 {STALE} _ 0.5 0.5 {STALE} _",
        series("scrape_duration_seconds", _PROBED): f"0.6 0.6 2.1 2.1 10 10 0.6 0.6 {STALE} _",
        series("up", _UNKNOWN): "1x9",
    }
    counted = {health: {**DEPLOYMENT, "health": health} for health in ("up", "down")}
    replicas = {**DEPLOYMENT, "derived": "true"}
    seconds = [0.5, 0.5, 2, 2, 10, 10, 0.5, 0.5, None, None]
    checks = [
        *_recorded("servescope_target_up", TARGET, _HEALTH),
        *_recorded("servescope_target_scrape_age_seconds", TARGET, _AGE),
        *_recorded("servescope_target_scrape_duration_seconds", TARGET, seconds),
        *_recorded("servescope_target_missing_metrics", TARGET, [0, 0, None, None, None, None, 2, 0, None, None]),
        *_recorded("servescope_targets", counted["up"], [value or None for value in _HEALTH]),
        *_recorded("servescope_targets", counted["down"], [1 if value == 0 else None for value in _HEALTH]),
        *_recorded("replica_count_by_status", {**replicas, "status": "active"}, _HEALTH),
        *_recorded("replica_count_by_status", {**replicas, "status": "unhealthy"}, _DOWN),
        *_recorded("servescope_build_info", {}, [1, 1, 1, 1, None, None, 1, 1, None, None]),
    ]

    assert _check(both_promtools, tmp_path, given, checks) == {}


@pytest.mark.slow
def test_targets_that_expose_the_contract_themselves_are_up_by_their_scrape(promtool: Path, tmp_path: Path) -> None:
    """Of two Prometheus that scrape the same target one counts: the one that reaches it."""
    given = {
        series("up", _SCRAPED): "1 0 1",
        series("up", _PROBED): "1 1 1",
        series("servescope_probe_success", _PROBED): "1 0 0",
        series("up", _OTHER_SCRAPER): "1 1 1",
        series("servescope_probe_success", _OTHER_SCRAPER): "1 1 0",
    }
    direct = {**TARGET, "replica": "direct"}
    checks = [
        *_recorded("servescope_target_up", direct, [1, 0, 1]),
        *_recorded("servescope_target_up", TARGET, [1, 1, 0]),
        *_recorded("servescope_target_scrape_age_seconds", direct, [0, 60, 0]),
        *_recorded("servescope_target_scrape_age_seconds", TARGET, [0, 0, 60]),
        *_recorded("servescope_targets", {**DEPLOYMENT, "health": "up"}, [2, 1, 1]),
        *_recorded("servescope_targets", {**DEPLOYMENT, "health": "down"}, [None, 1, 1]),
    ]

    assert _check(promtool, tmp_path, given, checks) == {}


@pytest.mark.slow
def test_a_deployment_is_counted_whole_where_every_series_counts(promtool: Path, tmp_path: Path) -> None:
    """Without labels of collectors the targets keep where they are scraped, and the counts do not."""
    given = {series("up", _SCRAPED): "1", series("up", _OTHER_SCRAPER): "1", series("up", _PROBED): "0"}
    checks = [
        *_recorded("servescope_targets", {**DEPLOYMENT, "health": "up"}, [2]),
        *_recorded("servescope_targets", {**DEPLOYMENT, "health": "down"}, [1]),
        *_recorded("replica_count_by_status", {**DEPLOYMENT, "derived": "true", "status": "active"}, [2]),
    ]

    options = make_options({"collector_labels": []}, origin="options.toml")
    assert _check(promtool, tmp_path, given, checks, options) == {}


@pytest.mark.slow
def test_what_answers_and_is_not_understood_is_up_and_no_replica(both_promtools: Path, tmp_path: Path) -> None:
    """As in Prometheus: neither an unhealthy replica nor an active one, and of a state of its own."""
    given = {
        series("up", _PROBED): "1 1 1",
        series("servescope_probe_success", _PROBED): "1 0 0",
        series("servescope_probe_failed", {**_PROBED, "reason": "unknown_source"}): f"_ 1 {STALE}",
        series("servescope_probe_failed", {**_PROBED, "reason": "timeout"}): "_ _ 1",
    }
    replicas = {**DEPLOYMENT, "derived": "true"}
    checks = [
        *_recorded("servescope_target_up", TARGET, [1, 1, 0]),
        *_recorded("servescope_target_understood", TARGET, [1, 0, None]),
        *_recorded("servescope_target_scrape_age_seconds", TARGET, [0, 0, 60]),
        *_recorded("servescope_targets", {**DEPLOYMENT, "health": "up"}, [1, None, None]),
        *_recorded("servescope_targets", {**DEPLOYMENT, "health": "not_understood"}, [None, 1, None]),
        *_recorded("servescope_targets", {**DEPLOYMENT, "health": "down"}, [None, None, 1]),
        *_recorded("replica_count_by_status", {**replicas, "status": "active"}, [1, None, 0]),
        *_recorded("replica_count_by_status", {**replicas, "status": "unhealthy"}, [0, None, 1]),
    ]

    assert _check(both_promtools, tmp_path, given, checks) == {}


_NOT_UNDERSTOOD = [{**TARGET, "deployment_id": f"d{number}", "replica": f"r{number}"} for number in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("scraped_by", ["collector", "translator"])
def test_no_alert_calls_a_fleet_down_that_answers_and_is_not_understood(
    promtool: Path, tmp_path: Path, scraped_by: str
) -> None:
    """Every deployment at once, for half an hour: one ticket each says that its metrics cannot be read, and no page."""
    given = {series("servescope_build_info", {"version": "1", "job": "servescope", "instance": "c"}): "1x40"}
    given[series("up", {"job": "servescope", "instance": "c"})] = "1x40"
    for labels in _NOT_UNDERSTOOD:
        if scraped_by == "collector":
            given |= {
                series("servescope_target_up", labels): "1x40",
                series("servescope_target_understood", labels): "0x40",
                series("servescope_target_scrape_age_seconds", labels): "0x40",
            }
        else:
            probed_at = {**labels, "job": "servescope-targets", "instance": labels["replica"]}
            given |= {
                series("up", probed_at): "1x40",
                series("servescope_probe_success", probed_at): "0x40",
                series("servescope_probe_failed", {**probed_at, "reason": "unknown_source"}): "1x40",
            }
    about_targets = [ALERTS[name] for name in OF_TARGETS] + [ALERTS["ServescopeTelemetryStale"]]
    groups = [*([without_collector_group()] if scraped_by == "translator" else []), *alert_groups(about_targets)]
    check = {
        "expr": 'count by (alertname) (ALERTS{alertstate=~"pending|firing"})',
        "eval_time": "35m",
        "exp_samples": [{"labels": '{alertname="ServescopeMetricsMissing"}', "value": len(_NOT_UNDERSTOOD)}],
    }

    assert failures(promtool, tmp_path, {"fleet": Suite([unit_test(given, [check])], groups)}) == {}


@pytest.mark.slow
def test_replicas_are_counted_where_nothing_reports_them(promtool: Path, tmp_path: Path) -> None:
    """Engines alone, and not those of a deployment whose autoscaler says how many there are."""
    router = {**TARGET, "replica": "front", "role": "router", "job": "servescope-targets"}
    reported = {**TARGET, "deployment_id": "scaled", "replica": "a", "role": "autoscaler", "status": "active"}
    given = {
        series("up", _PROBED): "1 1",
        series("up", router): "1 1",
        series("up", {**_PROBED, "deployment_id": "scaled"}): "1 1",
        series("replica_count_by_status", reported): "_ 4",
    }
    checks = [
        {
            "expr": "sum by (deployment_id, status) (replica_count_by_status) > 0",
            "eval_time": "1m",
            "exp_samples": [
                {"labels": '{deployment_id="d", status="active"}', "value": 1},
                {"labels": '{deployment_id="scaled", status="active"}', "value": 4},
            ],
        }
    ]

    assert _check(promtool, tmp_path, given, checks) == {}


@pytest.mark.slow
def test_labels_and_matchers_are_those_of_the_options(promtool: Path, tmp_path: Path) -> None:
    """What alerts and dashboards with the same options ask for has the labels they ask for."""
    options = make_options(
        {
            "selector": 'cluster="eu", ', "extra_labels": ["cluster"], "labels": {"deployment_id": "release"},
            "collector_labels": ["instance", "job", "node"],
        },
        origin="options.toml",
    )  # fmt: skip
    identity = {"release" if name == "deployment_id" else name: value for name, value in TARGET.items()}
    scraped = {**identity, "job": "x", "instance": "a", "node": "n"}
    given = {
        series("up", {**scraped, "cluster": "eu"}): "1 0",
        series("up", {**scraped, "cluster": "us", "replica": "r1"}): "1 1",
    }
    of_cluster = {**identity, "cluster": "eu"}
    checks = [
        *_recorded("servescope_target_up", of_cluster, [1, 0]),
        *_recorded("servescope_target_scrape_age_seconds", of_cluster, [0, 60]),
        *_recorded("servescope_build_info", {"cluster": "eu"}, [1, None]),
        {"expr": "count(servescope_target_up)", "eval_time": "0m", "exp_samples": [{"labels": "{}", "value": 1}]},
    ]

    assert _check(promtool, tmp_path, given, checks, options) == {}
