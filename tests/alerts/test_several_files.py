"""Several option files in one Prometheus: each records and judges the deployments that it covers, and no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from alerts.options import COVERS, DEFAULTS, Options, make_options
from alerts.rules import alert_groups, recorded, render_bundle
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.promql import is_on_deployments
from servescope.alerting.rules.records import labels_of
from servescope.contract.metrics import METRICS
from servescope.contract.samples import format_edge
from servescope.contract.types import Metric
from tests.support.alert_proofs import stories_of
from tests.support.alert_stories import DEPLOYMENT, beside_each_other, series
from tests.support.documents import read_yaml
from tests.support.promtool import Suite, check_firing, failures, unit_test

MINUTES = 16
BURNS = "ServescopeRequestsBudgetBurnsFast"


def _options(**alerts: Any) -> Options:
    return make_options({"alerts": alerts}, origin="options.toml")


@cache
def _live() -> Options:
    return _options(covers={"environment": "live"})


@cache
def _staging() -> Options:
    return _options(
        covers={"environment": ["staging", "test"]},
        fleet=False,
        objectives={"requests": {"goal": 0.95}},
        objectives_of=[{"deployment_id": "strict", "requests": {"goal": 0.9995}}],
    )


def _groups(*files: Options) -> list[dict[str, Any]]:
    """All rules of these files; here, in one file, each group needs a name of its own."""
    found = [(number, [*recorded(each).values(), *alert_groups(options=each)]) for number, each in enumerate(files)]
    return [{**group, "name": f"{group['name']}-{number}"} for number, groups in found for group in groups]


def _names(options: Options) -> set[str]:
    return {rule["record"] for group in recorded(options).values() for rule in group["rules"]}


# --- Whole files ------------------------------------------------------------------------------------------------------


def _deployment(name: str, environment: str, per_minute: int, failed: float) -> dict[str, str]:
    """Every metric of a deployment's only replica, of whose requests a share fails."""
    target = {
        **DEPLOYMENT, "deployment_id": name, "environment": environment, "replica": "r0", "role": "aggregated",
        "instance": f"{name}-{environment}", "job": "engines",
    }  # fmt: skip
    ended = {"ok": 1 - failed, "error": failed}
    found = {series("up", target): f"1x{MINUTES}"}
    for metric in METRICS.values():
        for name, own in _exposed(metric):
            step = per_minute * ended.get(own.get("outcome", ""), 1.0)
            found[series(name, {**target, **own})] = f"{step}+{0 if metric.kind == 'gauge' else step}x{MINUTES}"
    return found


def _exposed(metric: Metric) -> Iterator[tuple[str, dict[str, str]]]:
    for values in product(*(metric.label_values.get(label, ("some",)) for label in metric.labels)):
        own = dict(zip(metric.labels, values, strict=True))
        if metric.edges is None:
            yield metric.name, own
            continue
        for edge in (*map(format_edge, metric.edges), "+Inf"):
            yield f"{metric.name}_bucket", {**own, "le": edge}
        yield f"{metric.name}_sum", own
        yield f"{metric.name}_count", own


def _selected(names: Iterable[str], matcher: str) -> str:
    """How many of these series the rules have recorded, by name: the others have the job of what exposes them."""
    return f'count(count by (__name__) ({{__name__=~"{"|".join(names)}",job="",{matcher}}}))'


def _is(expression: str, value: int) -> dict[str, Any]:
    samples = [{"labels": "{}", "value": value}] if value else []
    return {"expr": expression, "eval_time": f"{MINUTES - 1}m", "exp_samples": samples}


@pytest.mark.slow
def test_each_deployment_is_judged_by_the_file_that_covers_it(each_promtool: Path, tmp_path: Path) -> None:
    """No rule fails on a sample that the other file has written, and none records what the other file covers."""
    given = {
        **_deployment("chat", "live", 60, 0.02),
        **_deployment("chat", "staging", 120, 0.02),
        **_deployment("strict", "staging", 180, 0.02),
    }
    names = _names(_staging())
    paged = {("chat", "live"): True, ("chat", "staging"): False, ("strict", "staging"): True}
    judged = [
        *(
            check_firing(BURNS, MINUTES - 1, pages, f'deployment_id="{name}",environment="{environment}"')
            for (name, environment), pages in paged.items()
        ),
        check_firing("ServescopeWatchdog", MINUTES - 1, 1),
        _is("count(deployment:requests:rate5m)", 3),
        _is("count(deployment:requests_objective_all:increase5m)", 3),
        _is("count(deployment:requests_objective:budget)", 3),
        _is("count(servescope_build_info)", 1),
    ]
    alone = [
        _is(_selected(names, 'environment!~"staging|test"'), 0),
        _is('count(ALERTS{environment!="staging"})', 0),
        # But for what only targets that are not seen, or engines with other edges, have.
        _is(f"""{_selected(names, 'environment="staging"')} > bool {0.85 * len(names)}""", 1),
    ]
    # Whole files take long to evaluate: often enough for the windows of five minutes.
    suites = {
        "together": Suite([unit_test(given, judged)], _groups(_live(), _staging()), interval="3m"),
        "alone": Suite([unit_test(given, alone)], _groups(_staging()), interval="3m"),
    }

    assert failures(each_promtool, tmp_path, suites) == {}


# --- Alert by alert ---------------------------------------------------------------------------------------------------


def _fire_once(promtool: Path, folder: Path, names: Iterable[str], *, is_left_open: bool) -> dict[str, str]:
    """What fails where a second file, of another environment, has the rules of these alerts as well."""
    of_stories = ["e", *map(str, range(60))]
    here, there = _options(covers={"environment": of_stories}), _options(covers={"environment": "x"}, fleet=False)
    suites = {}
    for name in names:
        (own,), *others = (
            alert_groups([each.alerts()[name]] if name in each.alerts() else [], each) for each in (here, there)
        )
        again = [{**group, "name": "of the other file"} for other in others for group in other]
        stories = beside_each_other(stories_of(name, is_left_open=is_left_open))
        suites[name] = Suite(stories, [own, *again])
    return failures(promtool, folder, suites)


@pytest.mark.slow
def test_alerts_fire_once_where_a_second_file_has_them_too(promtool: Path, tmp_path: Path) -> None:
    """On figures, a collector's series and raw ones; and one that the other file does not have."""
    names = (
        "ServescopeCacheEventsMissed", "ServescopeTelemetryStale", "ServescopeUpButNotServing",
        "ServescopeCutoverDegraded",
    )  # fmt: skip

    assert _fire_once(promtool, tmp_path, names, is_left_open=False) == {}


@pytest.mark.proof
def test_every_alert_fires_once(each_promtool: Path, tmp_path: Path, is_left_open: bool) -> None:
    """By the stories that prove it."""
    assert _fire_once(each_promtool, tmp_path, ALERTS, is_left_open=is_left_open) == {}


# --- What is written --------------------------------------------------------------------------------------------------


def test_alerts_on_the_fleet_are_in_one_file() -> None:
    """As they are without other files; all others have the labels by which files differ."""
    live, staging = _live().alerts(), _staging().alerts()

    assert live.keys() == ALERTS.keys()
    assert staging.keys() == {name for name, alert in ALERTS.items() if is_on_deployments(alert)}
    assert all({*COVERS} <= {*labels_of(alert.condition)} for alert in staging.values())
    for name in live.keys() - staging.keys():
        assert _live().rule_expression(live[name]) == DEFAULTS.rule_expression(ALERTS[name])
    assert _names(_live()) - _names(_staging()) == {"servescope_build_info", "servescope_clock_offset_seconds"}


def test_documents_of_several_files_have_names_of_their_own() -> None:
    """In Kubernetes and in Mimir, where one would replace the other."""
    assert read_yaml(render_bundle("prometheusrule", _staging()))["metadata"]["name"] == "servescope-staging-test"
    assert read_yaml(render_bundle("mimir", _live()))["namespace"] == "servescope-live"
