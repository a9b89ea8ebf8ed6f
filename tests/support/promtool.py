"""Prometheus' own unit tests of rules, run by promtool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import deadline_seconds

_SECONDS = 300.0


@dataclass(frozen=True)
class Suite:
    """Rules, as files or as groups of a rule file, and promtool's tests of them, evaluated every `interval`.

    Groups are evaluated in their order.
    """

    tests: Sequence[Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]] = ()
    files: Sequence[Path] = ()
    interval: str = "1m"


def failures(promtool: Path, folder: Path, suites: Mapping[str, Suite]) -> dict[str, str]:
    """What promtool prints of each suite that fails, by its name; one run of promtool for all of them."""
    for name, suite in suites.items():
        # JSON is YAML, and PyYAML takes seconds for it.
        _write(folder / f"{name}.rules.json", {"groups": suite.groups})
        document = {
            "rule_files": [f"{name}.rules.json", *map(str, suite.files)],
            "evaluation_interval": suite.interval,
            "group_eval_order": [group["name"] for group in suite.groups],
            "tests": suite.tests,
        }
        _write(folder / f"{name}.json", document)
    done = run(promtool, ["test", "rules", *(f"{name}.json" for name in suites)], folder)
    # In the order of the suites; only Prometheus 2 prints their names, too.
    _, *printed = re.split(r"^  (?=SUCCESS$|FAILED:$)", done.stdout, flags=re.MULTILINE)
    failed = {name: text for name, text in zip(suites, printed, strict=True) if text.startswith("FAILED:")}
    assert bool(failed) == bool(done.returncode), done.stdout
    return failed


def unit_test(given: Mapping[str, str], checks: Iterable[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
    """A test of promtool: series by their values, a step a minute, and queries with the samples they give."""
    series = [{"series": name, "values": values} for name, values in given.items()]
    return {"interval": "1m", "input_series": series, "promql_expr_test": [*checks], **more}


def check_firing(alert: str, minute: int, fires: int, *matchers: str) -> dict[str, Any]:
    """A query of a unit test: whether one alert, or so many, of the name and these matchers fire at a minute."""
    chosen = ", ".join((f'alertname="{alert}"', *matchers, 'alertstate="firing"'))
    samples = [{"labels": "{}", "value": int(fires)}] if fires else []
    return {"expr": f"count(ALERTS{{{chosen}}})", "eval_time": f"{minute}m", "exp_samples": samples}


def run(program: Path, arguments: Iterable[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """A finished promtool or amtool, with its errors among its output."""
    return subprocess.run(
        [program, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=deadline_seconds(_SECONDS),
    )  # fmt: skip


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")
