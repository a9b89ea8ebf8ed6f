"""Every alert fires where it should, not before, not beside its boundary, and is over when its cause is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from alerts.rules import alert_groups, alert_rule
from servescope.alerting.alerts import ALERTS
from servescope.contract.identity import ENGINE_ROLES, ROLES
from tests.alerts.support.incidents import rule_groups
from tests.support.alert_mutants import EQUIVALENT, mutants
from tests.support.alert_proofs import LONG, PROOFS, stories_of
from tests.support.alert_stories import DEPLOYMENT, TARGET, beside_each_other, promtool_tests
from tests.support.promtool import Suite, check_firing, failures, unit_test

_TRIED_ELSEWHERE = frozenset(
    {"ServescopeAnswerLengthChanged", "ServescopeRequestsNotExposed", "ServescopeQueueGrowing"}
)
"""Their stories last hours or days; incidents have them fire and stay silent in promtool."""
_OF_A_DAY = ("ServescopeTrafficGone", "ServescopeTrafficStopped")
"""Their stories are of a day by the minute: a minute for promtool, and as many for each mutant."""
_ALL = pytest.mark.parametrize(
    "names",
    [
        ALERTS.keys() - LONG - _TRIED_ELSEWHERE,
        *(
            pytest.param(each, marks=pytest.mark.proof)
            for each in (LONG - {*_OF_A_DAY}, _TRIED_ELSEWHERE, *({name} for name in _OF_A_DAY))
        ),
    ],
)
Slopes = Mapping[str, float]
"""Counters by their increase per second."""


def test_every_alert_has_a_proof() -> None:
    """An alert without values at which it fires and values at which it is silent is not accepted."""
    assert ALERTS.keys() == PROOFS.keys()
    for name, proof in PROOFS.items():
        assert proof.silent or proof.is_always, name


@pytest.mark.slow
@_ALL
def test_alerts_are_as_they_are_proven_to_be(promtool: Path, tmp_path: Path, names: Set[str]) -> None:
    """They fire after `for`, with these words, are silent beside every boundary and without data, and resolve."""
    suites = {name: Suite(beside_each_other(stories_of(name)), alert_groups([ALERTS[name]])) for name in sorted(names)}

    assert failures(promtool, tmp_path, suites) == {}


@pytest.mark.proof
def test_alerts_are_the_same_with_prometheus_3(promtool_3: Path, tmp_path: Path) -> None:
    """Left-open ranges move what depends on a range by one evaluation at most, and nothing else."""
    suites = {
        name: Suite(beside_each_other(stories_of(name, is_left_open=True)), alert_groups([alert]))
        for name, alert in ALERTS.items() if name not in _OF_A_DAY
    }  # fmt: skip

    assert failures(promtool_3, tmp_path, suites) == {}


@pytest.mark.proof
@pytest.mark.parametrize("name", [name for name in ALERTS if name not in _OF_A_DAY])
def test_every_mutant_dies_in_prometheus_too(promtool: Path, tmp_path: Path, name: str) -> None:
    """Each of an alert's mutants, under a name of its own in one file of rules: promtool finds it wrong in a story."""
    found = [("as it is", ALERTS[name]), *mutants(ALERTS[name])]
    alive = {f"Mutant{number}": each for number, each in enumerate(found)}
    for story in beside_each_other(stories_of(name)):
        # One that lasts reads whether it fired itself.
        rules = [
            {**rule, "alert": alias, "expr": rule["expr"].replace(f'"{name}"', f'"{alias}"')}
            for alias, rule in ((alias, alert_rule(mutant)) for alias, (_, mutant) in alive.items())
        ]
        checks = [{**check, "alertname": alias} for check in story["alert_rule_test"] for alias in alive]
        counts = [
            {**check, "expr": check["expr"].replace(f'"{name}"', f'"{alias}"')}
            for check in story.get("promql_expr_test", ()) for alias in alive
        ]  # fmt: skip
        test = {**story, "alert_rule_test": checks, "promql_expr_test": counts}
        suite = Suite([test], [{"name": "mutants", "rules": rules}])
        printed = failures(promtool, tmp_path, {name: suite}).get(name, "")
        for dead in set(re.findall(r"alertname(?:: |=\\?\")(Mutant\d+)", printed)):
            del alive[dead]

    assert [what for what, _ in alive.values()] == ["as it is", *EQUIVALENT.get(name, [])]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ServescopeTargetDown", "ServescopeTelemetryStale"])
def test_an_alert_covers_targets_of_each_role(promtool: Path, tmp_path: Path, name: str) -> None:
    """Down, gone, and stale: engines, the router and the autoscaler alike; scaling down excuses engines alone."""
    groups = alert_groups([ALERTS[name]])
    stories = [story for story in promtool_tests(ALERTS[name], PROOFS[name]) if "router" not in story["name"]]
    scaled_down = [story for story in stories if story["name"] == "silent: scaled down"]
    others = beside_each_other(story for story in stories if story not in scaled_down)
    suites = {
        f"{role}{what}": Suite([_of_role(story, role) for story in each], groups)
        for role in ROLES
        for what, each in (("", others), (" scaled down", scaled_down))
        if each
    }
    excused = {f"{role} scaled down" for role in ROLES if scaled_down and role not in ENGINE_ROLES}

    assert failures(promtool, tmp_path, suites).keys() == excused


def _of_role(story: Mapping[str, Any], role: str) -> dict[str, Any]:
    quoted = f'"{TARGET["role"]}"'
    given = [{**each, "series": each["series"].replace(quoted, f'"{role}"')} for each in story["input_series"]]
    checks = deepcopy(story["alert_rule_test"])
    for check in checks:
        for alert in check["exp_alerts"]:
            alert["exp_labels"]["role"] = role
            annotations = alert["exp_annotations"]
            annotations["description"] = annotations["description"].replace(TARGET["role"], role)
    return {**story, "input_series": given, "alert_rule_test": checks}


# --- From the counters of two replicas, through the recording rules, over a reset -------------------------------------


def _speculation(rate: float) -> Slopes:
    return {"spec_decode_num_draft_tokens_total": 100.0, "spec_decode_num_accepted_tokens_total": 100.0 * rate}


def _routing(predicted: float, reused: float, best: float) -> Slopes:
    names = ("eligible", "predicted", "reused", "best")
    shares = (1.0, predicted, reused, best)
    return {f"kv_cache_{name}_tokens_total": 1000.0 * share for name, share in zip(names, shares, strict=True)}


def _requests(error: float) -> Slopes:
    return {'requests_total{outcome="ok"}': 10 * (1 - error), 'requests_total{outcome="error"}': 10 * error}


def _latencies(metric: str, edge: str, late: float) -> Slopes:
    return {
        'requests_total{outcome="ok"}': 10.0,
        f'{metric}_bucket{{le="{edge}"}}': 10 * (1 - late),
        f'{metric}_bucket{{le="+Inf"}}': 10.0,
        f"{metric}_count": 10.0,
    }


COUNTED: Mapping[str, tuple[Slopes, Slopes]] = {
    "ServescopeSpeculationBelowBreakEven": (_speculation(0.9), _speculation(0.3)),
    "ServescopeCacheChurn": (_routing(0.6, 0.5, 0.5), _routing(0.6, 0.2, 0.6)),
    "ServescopeCacheEventsMissed": (_routing(0.6, 0.5, 0.5), _routing(0.1, 0.4, 0.4)),
    "ServescopeRoutingInefficient": (_routing(0.6, 0.5, 0.5), _routing(0.4, 0.4, 0.5)),
    "ServescopeRequestsBudgetBurnsFast": (_requests(0.0), _requests(0.05)),
    "ServescopeRequestsBudgetBurns": (_requests(0.0), _requests(0.05)),
    "ServescopeTimeToFirstTokenBudgetBurnsFast": (
        _latencies("time_to_first_token_seconds", "2.5", 0.0),
        _latencies("time_to_first_token_seconds", "2.5", 0.2),
    ),
    "ServescopeTimePerOutputTokenBudgetBurnsFast": (
        _latencies("time_per_output_token_seconds", "0.1", 0.0),
        _latencies("time_per_output_token_seconds", "0.1", 0.2),
    ),
}
_RESET, _END = 50, 80


@pytest.mark.slow
def test_a_counter_reset_neither_fires_nor_ends_an_alert(each_promtool: Path, tmp_path: Path) -> None:
    """One of two replicas restarts: what is well stays silent minute by minute, what is bad goes on firing."""
    series = [
        each
        for name, (well, bad) in COUNTED.items()
        for where, slopes in ((f"{name}-well", well), (f"{name}-bad", bad))
        for each in _counted(slopes, where)
    ]
    checks = [
        check_firing(name, at, where == "bad", f'deployment_id="{name}-{where}"')
        for name in COUNTED
        for where, start in (("well", 0), ("bad", _RESET - 5))
        for at in range(start, _END)
    ]
    test = {"name": "a reset", "interval": "1m", "input_series": series, "promql_expr_test": checks}

    assert failures(each_promtool, tmp_path, {"reset": Suite([test], rule_groups(COUNTED, "1m"))}) == {}


def _counted(slopes: Slopes, deployment: str) -> Iterator[dict[str, str]]:
    """The counters of two replicas of a deployment, of which the second restarts."""
    for key, slope in slopes.items():
        name, _, own = key.partition("{")
        step = slope * 60
        for replica in ("r0", "r1"):
            identity = {**DEPLOYMENT, "deployment_id": deployment, "replica": replica}
            labels = ", ".join(f'{label}="{text}"' for label, text in identity.items())
            began = 1000 * step or 7.0
            again = f"0+{step!r}x{_END - _RESET}"
            values = f"{began!r}+{step!r}x{_END}" if replica == "r0" else f"{began!r}+{step!r}x{_RESET - 1} {again}"
            yield {"series": f"{name}{{{labels}{', ' + own.removesuffix('}') if own else ''}}}", "values": values}


# --- What is remembered ends after a day ------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_gone_is_missed_for_a_day(each_promtool: Path, tmp_path: Path) -> None:
    """A deployment that left the lists, and a model whose traffic ended: silent before, then active for a day."""
    steps = 27 * 12
    identity = ", ".join(f'{label}="{text}"' for label, text in TARGET.items())
    deployment = ", ".join(f'{label}="{text}"' for label, text in DEPLOYMENT.items())
    other, idle = (each.replace('deployment_id="d"', 'deployment_id="other"') for each in (identity, deployment))
    given = {
        f"servescope_target_scrape_age_seconds{{{identity}}}": "15x24",
        # Another deployment of the model is listed, and serves none of its requests either.
        f"servescope_target_scrape_age_seconds{{{other}}}": f"15x{steps}",
        "servescope_build_info{}": f"1x{steps}",
        f"deployment:requests:rate5m{{{deployment}}}": f"5x24 stale _x{steps - 25}",
        f"deployment:requests:rate5m{{{idle}}}": f"0x{steps}",
        f"deployment:concurrent_requests:sum{{{deployment}}}": f"2x24 0x{steps - 25}",
    }
    names = ("ServescopeDeploymentGone", "ServescopeTrafficStopped")
    checks = [
        check_firing(name, minute, fires)
        for name in names
        for minute, fires in ((115, False), (150, True), (25 * 60, True), (26 * 60 + 30, False))
    ]
    groups = alert_groups([ALERTS[name] for name in names])
    suite = Suite([unit_test(given, checks, interval="5m")], groups, interval="5m")

    assert failures(each_promtool, tmp_path, {"a day": suite}) == {}
