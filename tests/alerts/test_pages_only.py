"""The alerts that page somebody, alone: with what they read, in every format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from alerts.__main__ import main
from alerts.options import make_options
from alerts.rules import render_bundle
from servescope.alerting.alerts import ALERTS
from servescope.alerting.records import ALERTING
from servescope.generating.rules import Format
from tests.support.promtool import run

PAGES = {name for name, alert in ALERTS.items() if alert.severity == "critical"}


def _groups(text: str) -> list[dict[str, Any]]:
    document = yaml.safe_load(text)
    groups: list[dict[str, Any]] = document.get("groups") or document["spec"]["groups"]
    return groups


def _written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr("sys.argv", ["alerts", *words])
    assert main() == 0
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("form", get_args(Format))
def test_pages_come_with_what_they_read(
    both_promtools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Every page and no other alert; what is recorded is read, and what is read is recorded. Prometheus loads it."""
    groups = _groups(_written(monkeypatch, capsys, "--format", form, "--pages-only"))
    rules = [rule for group in groups for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    every = {
        rule["record"] for group in _groups(render_bundle("prometheus")) for rule in group["rules"] if "record" in rule
    }
    read = {name for rule in rules for name in re.findall(r"[a-z][\w:]+", f"{rule['expr']} {rule.get('annotations')}")}

    assert {rule["alert"] for rule in rules if "alert" in rule} == PAGES
    assert all(group["rules"] for group in groups)
    assert recorded == read & every < every
    if form in ("victoriametrics", "vmrule"):
        return  # its functions are no PromQL
    kept = [{key: group[key] for key in ("name", "interval", "rules")} for group in groups]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": kept}), encoding="utf-8")
    done = run(both_promtools, ["check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yml"], tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_files_hold_pages_alone(
    promtool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of rules and runbooks; a file in which nothing is left has no group."""
    _written(monkeypatch, capsys, "--output", str(tmp_path), "--pages-only")
    done = run(promtool, ["check", "rules", *sorted(tmp_path.glob("*.rules.yml"))], tmp_path)

    assert done.returncode == 0, done.stdout
    assert {path.stem for path in (tmp_path / "runbooks").glob("Servescope*.md")} == PAGES
    assert yaml.safe_load((tmp_path / "histograms.rules.yml").read_text(encoding="utf-8")) == {"groups": []}


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
