"""The alerts that page somebody, alone: with what they read, in every format."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from alerts.__main__ import main
from alerts.options import make_options
from alerts.rules import render_bundle
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.records import ALERTING
from servescope.generating.rules import Format
from tests.support.commands import run_main
from tests.support.documents import read_yaml
from tests.support.promtool import run

PAGES = {name for name, alert in ALERTS.items() if alert.severity == "critical"}


@cache
def _groups(form: str) -> list[dict[str, Any]]:
    """The groups of a document with pages alone, as the command writes it."""
    done = run_main(main, "--format", form, "--pages-only")
    assert done.returncode == 0, done.stderr
    document = read_yaml(done.stdout)
    groups: list[dict[str, Any]] = document.get("groups") or document["spec"]["groups"]
    return groups


@cache
def _every_recorded() -> frozenset[str]:
    groups = read_yaml(render_bundle("prometheus"))["groups"]
    return frozenset(rule["record"] for group in groups for rule in group["rules"] if "record" in rule)


@pytest.mark.slow
@pytest.mark.parametrize("form", get_args(Format))
def test_pages_come_with_what_they_read(form: str) -> None:
    """Every page and no other alert; what is recorded is read, and what is read is recorded."""
    rules = [rule for group in _groups(form) for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    read = {name for rule in rules for name in re.findall(r"[a-z][\w:]+", f"{rule['expr']} {rule.get('annotations')}")}

    assert {rule["alert"] for rule in rules if "alert" in rule} == PAGES
    assert all(group["rules"] for group in _groups(form))
    assert recorded == read & _every_recorded() < _every_recorded()


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in get_args(Format) if form not in ("victoriametrics", "vmrule")])
def test_prometheus_loads_pages_alone(both_promtools: Path, tmp_path: Path, form: str) -> None:
    """With every lint fatal; the functions of VictoriaMetrics are no PromQL."""
    kept = [{key: group[key] for key in ("name", "interval", "rules")} for group in _groups(form)]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": kept}), encoding="utf-8")
    done = run(both_promtools, ["check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.json"], tmp_path)

    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_files_hold_pages_alone(promtool: Path, tmp_path: Path) -> None:
    """Of rules and runbooks; a file in which nothing is left has no group."""
    assert run_main(main, "--output", str(tmp_path), "--pages-only").returncode == 0
    done = run(promtool, ["check", "rules", *sorted(tmp_path.glob("*.rules.yml"))], tmp_path)

    assert done.returncode == 0, done.stdout
    assert {path.stem for path in (tmp_path / "runbooks").glob("Servescope*.md")} == PAGES
    assert read_yaml((tmp_path / "histograms.rules.yml").read_text(encoding="utf-8")) == {"groups": []}


def test_what_starts_with_five_is_five() -> None:
    """The options of the page are read, and are pages and the Watchdog."""
    page = (Path(__file__).parents[2] / "docs" / "paging.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page.partition("## Start with five")[2].partition("\n## ")[0], re.MULTILINE)
    only = re.findall(r'"(\w+)"', page.partition("only = [")[2].partition("]")[0])

    assert [*listed, "ServescopeWatchdog"] == only
    assert {*listed} <= PAGES
    assert make_options({"alerts": {"only": only}}, origin="five.toml").alerts().keys() == {*only}


def test_alerts_on_shared_servers_are_left_out() -> None:
    """Those on the Prometheus and the Alertmanager, and none on a collector."""
    ours, shared = (make_options({"alerts": {"watch_servers": each}}, origin="x").alerts() for each in (True, False))

    assert ours.keys() - shared.keys() == {name for name, alert in ALERTS.items() if alert.component == ALERTING}
    assert "ServescopeRuleEvaluationFails" not in shared
    assert "ServescopeCollectorDown" in shared


def test_our_servers_alone_are_watched() -> None:
    """Their matchers are in every selector of a series of Prometheus or Alertmanager, and in no other."""
    options = make_options({"alerts": {"servers": 'job="ours", '}}, origin="x")
    for name, alert in options.alerts().items():
        expression = options.rule_expression(alert)
        selectors = re.findall(r"\b(?:prometheus|alertmanager)_\w+(?:{.*?})?", expression)
        assert all('job="ours"' in each for each in selectors), name
        assert bool(selectors) == ('job="ours"' in expression) == (alert.component == ALERTING), name
