"""Every alert fires where it should, not before, not beside its boundary, and is over when what it tells of is."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.__main__ import FILES, GENERATED
from alerts.rules import alert_groups, alert_rule
from servescope.alerting.alerts import ALERTS
from servescope.alerting.records import Alert
from servescope.contract.identity import ENGINE_ROLES, ROLES
from tests.support.alert_mutants import mutants
from tests.support.alert_proofs import DEPLOYMENT, PROOFS, TARGET, absent_test, promtool_tests

Slopes = Mapping[str, float]
"""Counters by their increase per second."""


def run_promtool(promtool: Path, folder: Path, alert: Alert, tests: Sequence[dict[str, Any]]) -> str:
    """What promtool finds wrong with an alert's rule; "" when it passes its tests."""
    rules = folder / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": alert_groups([alert])}), encoding="utf-8")
    return promtool_errors(promtool, folder, [str(rules)], tests)


def surviving(
    promtool: Path, folder: Path, found: Sequence[tuple[str, Alert]], tests: Sequence[dict[str, Any]]
) -> list[str]:
    """Those of an alert's mutants that pass its tests; all stand in one file of rules, under names of their own."""
    names = [f"Mutant{number}" for number in range(len(found))]
    rules = [{**alert_rule(mutant), "alert": name} for name, (_, mutant) in zip(names, found, strict=True)]
    (folder / "rules.yml").write_text(json.dumps({"groups": [{"name": "mutants", "rules": rules}]}), encoding="utf-8")
    multiplied = [
        {
            **test,
            "alert_rule_test": [{**check, "alertname": name} for check in test["alert_rule_test"] for name in names],
        }
        for test in tests
    ]
    told = promtool_errors(promtool, folder, ["rules.yml"], multiplied)
    dead = set(re.findall(r"alertname: (Mutant\d+), time", told))
    assert dead or not told, told
    return [what for name, (what, _) in zip(names, found, strict=True) if name not in dead]


def promtool_errors(promtool: Path, folder: Path, rules: Sequence[str], tests: Sequence[dict[str, Any]]) -> str:
    """What promtool finds wrong with rules; "" when they pass their tests."""
    cases = folder / "cases.yml"
    document = {"rule_files": list(rules), "evaluation_interval": "1m", "tests": list(tests)}
    # JSON is YAML, and written in no time.
    cases.write_text(json.dumps(document), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", cases.name], cwd=folder, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_has_a_proof() -> None:
    """An alert without values at which it fires and values at which it is silent is not accepted."""
    assert ALERTS.keys() == PROOFS.keys()
    for name, proof in PROOFS.items():
        assert proof.silent or proof.is_always, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ALERTS)
def test_alert_is_as_it_is_proven_to_be(promtool: Path, tmp_path: Path, name: str) -> None:
    """Fires after `for`, with these words; silent beside every boundary and without data; resolves, kept as long."""
    assert run_promtool(promtool, tmp_path, ALERTS[name], proven(name)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ALERTS)
def test_alert_is_the_same_with_prometheus_3(promtool_3: Path, tmp_path: Path, name: str) -> None:
    """Left-open ranges move what goes by a range by one evaluation at most, and nothing else."""
    assert run_promtool(promtool_3, tmp_path, ALERTS[name], proven(name, is_left_open=True)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ALERTS)
def test_every_mutant_dies(promtool: Path, tmp_path: Path, name: str) -> None:
    """A comparison turned round, a threshold or a time shifted, a matcher or a condition dropped: the proof fails."""
    found = [("as it is", ALERTS[name]), *mutants(ALERTS[name])]

    assert surviving(promtool, tmp_path, found, proven(name)) == ["as it is"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["ServescopeTargetDown", "ServescopeTargetGone", "ServescopeTelemetryStale"])
def test_a_target_of_each_role_is_told_of(promtool: Path, tmp_path: Path, name: str, role: str) -> None:
    """Down, gone, and stale: engines, the router and the autoscaler alike; scaling down excuses engines alone."""
    told = f'"{TARGET["role"]}"'
    scaled_down = "silent: scaled down"

    def of_role(test: dict[str, Any]) -> dict[str, Any]:
        given = [{**each, "series": each["series"].replace(told, f'"{role}"')} for each in test["input_series"]]
        checks = deepcopy(test["alert_rule_test"])
        for check in checks:
            for alert in check["exp_alerts"]:
                alert["exp_labels"]["role"] = role
                words = alert["exp_annotations"]
                words["description"] = words["description"].replace(TARGET["role"], role)
        return {**test, "input_series": given, "alert_rule_test": checks}

    tests = [of_role(test) for test in promtool_tests(ALERTS[name], PROOFS[name]) if "router" not in test["name"]]
    excused = [test for test in tests if test["name"] == scaled_down]
    others = [test for test in tests if test["name"] != scaled_down]

    assert run_promtool(promtool, tmp_path, ALERTS[name], others) == ""
    for test in excused:
        assert (run_promtool(promtool, tmp_path, ALERTS[name], [test]) == "") == (role in ENGINE_ROLES)


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
    "ServescopeSpeculationNeedsTuning": (_speculation(0.9), _speculation(0.6)),
    "ServescopeCacheChurn": (_routing(0.6, 0.5, 0.5), _routing(0.6, 0.2, 0.6)),
    "ServescopeCacheEventsMissed": (_routing(0.6, 0.5, 0.5), _routing(0.1, 0.4, 0.4)),
    "ServescopeRoutingInefficient": (_routing(0.6, 0.5, 0.5), _routing(0.4, 0.4, 0.5)),
    "ServescopeCacheEventGaps": ({"router_index_event_gaps_total": 0.0}, {"router_index_event_gaps_total": 0.25}),
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
@pytest.mark.parametrize("version", ["promtool", "promtool_3"])
@pytest.mark.parametrize("name", COUNTED)
def test_a_counter_reset_neither_fires_nor_ends_an_alert(
    request: pytest.FixtureRequest, tmp_path: Path, version: str, name: str
) -> None:
    """One of two replicas restarts: what is well stays silent minute by minute, what is bad goes on firing."""
    well, bad = COUNTED[name]
    firing = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
    tests = [
        {
            "name": what,
            "interval": "1m",
            "input_series": list(_counted(slopes)),
            "promql_expr_test": [
                {"expr": firing, "eval_time": f"{at}m", "exp_samples": expected} for at in range(start, _END)
            ],
        }
        for what, slopes, start, expected in (
            ("well", well, 0, []),
            ("bad", bad, _RESET - 5, [{"labels": "{}", "value": 1}]),
        )
    ]
    rules = [str(GENERATED / file) for file in FILES]

    assert promtool_errors(request.getfixturevalue(version), tmp_path, rules, tests) == ""


def _counted(slopes: Slopes) -> Iterator[dict[str, str]]:
    """The counters of two replicas, of which the second restarts."""
    for key, slope in slopes.items():
        name, _, own = key.partition("{")
        step = slope * 60
        for replica in ("r0", "r1"):
            labels = ", ".join(f'{label}="{text}"' for label, text in {**DEPLOYMENT, "replica": replica}.items())
            began = 1000 * step or 7.0
            again = f"0+{step!r}x{_END - _RESET}"
            values = f"{began!r}+{step!r}x{_END}" if replica == "r0" else f"{began!r}+{step!r}x{_RESET - 1} {again}"
            yield {"series": f"{name}{{{labels}{', ' + own.removesuffix('}') if own else ''}}}", "values": values}


def proven(name: str, *, is_left_open: bool = False) -> list[dict[str, Any]]:
    """promtool's tests of an alert."""
    alert, proof = ALERTS[name], PROOFS[name]
    tests = list(promtool_tests(alert, proof, is_left_open=is_left_open))
    # Of these two, that nothing is there is what they fire at, or nothing to them.
    return tests if name in ("ServescopeCollectorGone", "ServescopeWatchdog") else [*tests, absent_test(alert, proof)]
