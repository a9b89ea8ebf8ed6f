"""Every alert fires where it should, not before, not beside its boundary, and is over when what it tells of is."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.alerting import alert_groups
from servescope.alerting import Alert
from servescope.alerts import ALERTS
from tests.alert_mutants import mutants
from tests.alert_proofs import PROOFS, absent_test, promtool_tests


def run_promtool(promtool: Path, folder: Path, alert: Alert, tests: Sequence[dict[str, Any]]) -> str:
    """What promtool finds wrong with an alert's rule; "" when it passes its tests."""
    rules = folder / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": alert_groups([alert])}), encoding="utf-8")
    cases = folder / "cases.yml"
    document = {"rule_files": [rules.name], "evaluation_interval": "1m", "tests": list(tests)}
    cases.write_text(yaml.safe_dump(document, sort_keys=False, width=10_000), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", cases.name], cwd=folder, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_has_a_proof() -> None:
    """An alert without values at which it fires and values at which it is silent is not accepted."""
    assert ALERTS.keys() == PROOFS.keys()
    for name, proof in PROOFS.items():
        assert proof.silent or proof.is_always, name


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
    tests = proven(name)

    survivors = [what for what, mutant in mutants(ALERTS[name]) if not run_promtool(promtool, tmp_path, mutant, tests)]

    assert survivors == []


def proven(name: str, *, is_left_open: bool = False) -> list[dict[str, Any]]:
    """promtool's tests of an alert."""
    alert, proof = ALERTS[name], PROOFS[name]
    tests = list(promtool_tests(alert, proof, is_left_open=is_left_open))
    # Of these two, that nothing is there is what they fire at, or nothing to them.
    return tests if name in ("ServescopeCollectorGone", "ServescopeWatchdog") else [*tests, absent_test(alert, proof)]
