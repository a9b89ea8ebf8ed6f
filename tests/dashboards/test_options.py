"""What an operator chooses is in every dashboard, and nothing of the defaults beside it; what is wrong is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alerts.options import make_options as make_alert_options
from dashboards.__main__ import main, render
from dashboards.board import Board
from dashboards.engines import keep_filled
from dashboards.options import DEFAULTS, Options, make_options, read_options
from dashboards.panels.queries import HISTOGRAMS
from servescope.alerting.rules.links import causes_of, panel_path
from servescope.contract.bands import SPECULATION_BAND
from servescope.contract.figures import FIGURES
from servescope.contract.identity import IDENTITY_LABELS
from servescope.errors import ConfigurationError
from servescope.sources.map_files import load_sources
from tests.support.boards import elements, expressions, variable_queries
from tests.support.commands import run_main

OTHER = """
prefix = "llm"
datasource = "Mimir"
selector = 'cluster="eu"'
window = "10m"
scrape_interval = "30s"
refresh = "1m"
time_from = "now-6h"
timezone = "utc"

[labels]
model_name = "served_model"
deployment_id = "release"
inference_stack = "engine"
environment = "env"
rollout_phase = "rollout"
replica = "pod"
role = "part"

[thresholds]
speculation_rate = [0.35, 0.75]
"""


@pytest.fixture
def other(tmp_path: Path) -> dict[str, str]:
    """The dashboards as an operator with a Prometheus unlike ours wants them."""
    path = tmp_path / "options.toml"
    path.write_text(OTHER, encoding="utf-8")
    return dict(render(read_options(path)))


def test_nothing_of_the_defaults_is_left(other: dict[str, str]) -> None:
    """No label, window, prefix or time of ours is in a query, a variable, a link or a table."""
    for text in other.values():
        board = json.loads(text)
        queries = [expression for _, expression in (*expressions(board), *variable_queries(board))]
        queries += [target["legendFormat"] for panel in elements(board) for target in panel.get("targets", [])]
        for label in IDENTITY_LABELS:
            # Variables keep their names, whatever the labels are called.
            assert not any(re.search(rf"(?<!\$)\b{label}\b", query) for query in queries), label
        # The windows in which a budget burns are the objectives' own.
        assert "rate5m" not in text.replace("_objective_bad:ratio_rate5m", "")
        # Jobs are those of `deploy/`.
        assert not re.search(r'"servescope-(?!agents|translate)', text)
        assert "/d/servescope" not in text
        assert (board["refresh"], board["time"]["from"], board["timezone"]) == ("1m", "now-6h", "utc")
        assert board["templating"]["list"][0]["current"]["value"] == "Mimir"


def test_every_selector_has_the_matchers_wanted(other: dict[str, str]) -> None:
    """In panels, annotations and variables."""
    for text in other.values():
        board = json.loads(text)
        for _, expression in (*expressions(board), *variable_queries(board)):
            assert expression.count('cluster="eu"') == expression.count("{") - expression.count("{{")


@pytest.mark.slow
def test_moved_thresholds_are_in_the_panels_and_their_prose(other: dict[str, str]) -> None:
    """The steps, the colours' order and the text that describes them."""
    board = json.loads(other["speculation.json"])
    (panel,) = [panel for panel in elements(board) if panel["title"] == "Speculation rate"]

    assert [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 0.35, 0.75]
    assert "from 75 %" in panel["description"]
    assert "80 %" not in panel["description"]


def test_raw_figures_need_no_recording_rules() -> None:
    """With `figures = "raw"` no query reads a recorded series."""
    files = render(make_options({"figures": "raw"}, origin="options.toml"))

    assert not any("deployment:" in text for text in files.values())


@pytest.mark.slow
def test_classic_histograms_need_no_functions_of_native_ones() -> None:
    """With `histograms = "classic"` no query reads a native histogram, and there is nothing to switch."""
    both = render()
    for name, text in render(make_options({"histograms": "classic"}, origin="options.toml")).items():
        assert "histogram_count" not in text
        assert f"${HISTOGRAMS}" not in text
        variables = [each["name"] for each in json.loads(text)["templating"]["list"]]
        assert variables == [
            each["name"] for each in json.loads(both[name])["templating"]["list"] if each["name"] != HISTOGRAMS
        ]


def test_without_a_file_the_defaults_hold() -> None:
    """An empty file changes nothing."""
    assert make_options({}, origin="options.toml") == DEFAULTS
    assert DEFAULTS.band("speculation_rate") == SPECULATION_BAND


BANDED = ", ".join(figure.name for figure in FIGURES.values() if figure.band)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"colour": "blue"}, "options.toml: unknown key 'colour'; known: prefix, folder, runbooks, datasource, "),
    ({"refresh": 30}, "options.toml: refresh is 30, expected a text"),
    ({"refresh": "soon"}, "options.toml: refresh is 'soon', expected a duration such as '30s' or '5m'"),
    ({"refresh": "5s"}, "options.toml: refresh is '5s', expected no less than the scrape interval of 15s"),
    ({"window": "30s"}, "options.toml: window is '30s', expected at least four scrape intervals of 15s"),
    ({"figures": "guessed"}, "options.toml: figures is 'guessed', expected one of recorded, raw"),
    ({"timezone": "CET"}, "options.toml: timezone is 'CET', expected one of browser, utc"),
    ({"time_from": "yesterday"}, "options.toml: time_from is 'yesterday', expected a time such as 'now-1h'"),
    ({"prefix": "Our LLMs"}, "options.toml: prefix is 'Our LLMs', expected at most 20 small letters"),
    ({"refresh": "0s"}, "options.toml: refresh is '0s', expected a duration such as"),
    ({"scrape_interval": "0s"}, "options.toml: scrape_interval is '0s', expected a duration such as"),
    ({"time_from": "now-0h"}, "options.toml: time_from is 'now-0h', expected a time such as 'now-1h'"),
    ({"selector": 'cluster=~"("'}, "expected regular expressions, which '(' is not"),
    ({"datasource_regex": "("}, "options.toml: datasource_regex is '(', expected a regular expression"),
    (
        {"labels": {"replica": "status"}},
        "options.toml: labels.replica is 'status', expected a name that is not one of ",
    ),
    ({"labels": {"replica": "le"}}, "options.toml: labels.replica is 'le', expected a name that is not one of "),
    ({"thresholds": {"speculation_rate": [40, 80]}}, "speculation_rate is [40, 80], expected shares such as 0.4, "),
    ({"selector": "cluster=eu"}, "options.toml: selector is 'cluster=eu', expected matchers such as"),
    ({"labels": {"model": "m"}}, "options.toml: labels: no identity label 'model', known: model_name, "),
    ({"labels": {"replica": "a-b"}}, "options.toml: labels.replica is 'a-b', expected the name of a label"),
    ({"labels": {"replica": "role"}}, "options.toml: labels: two identity labels are named 'role'"),
    ({"engines": "vllm"}, "options.toml: engines is 'vllm', expected a list of engines"),
    ({"engines": ["vlm"]}, "options.toml: engines: unknown engine 'vlm', supported: baseten, cadvisor, dcgm, "),
    ({"extra_labels": "cluster"}, "options.toml: extra_labels is 'cluster', expected a list of labels such as "),
    ({"extra_labels": ["a-b"]}, "options.toml: extra_labels is ['a-b'], expected a list of labels such as "),
    ({"extra_labels": ["replica"]}, "options.toml: extra_labels is 'replica', expected names that are not among "),
    ({"extra_labels": ["pod"]}, "options.toml: extra_labels is 'pod', expected names that are not among "),
    ({"labels": {"replica": "pod"}, "collector_labels": ["pod"]}, "collector_labels is 'pod', expected names that "),
    ({"collector_labels": ["le"]}, "options.toml: collector_labels is 'le', expected names that are not among "),
    ({"labels": "pod"}, "options.toml: labels is 'pod', expected a table [labels]"),
    ({"thresholds": {"kv_cache_usage": [0.9]}}, f"no band of 'kv_cache_usage', known: {BANDED}"),
    ({"thresholds": {"speculation_rate": [0.8, 0.4]}}, "speculation_rate is [0.8, 0.4], expected ascending numbers"),
    ({"thresholds": {"speculation_rate": [0.8]}}, "speculation_rate is [0.8], expected a list of 2 numbers"),
    ({"thresholds": {"speculation_rate": [0.4, True]}}, "expected a list of 2 numbers"),
    ({"thresholds": {"speculation_rate": [0.4, float("nan")]}}, "expected a list of 2 numbers"),
]


@pytest.mark.parametrize(("document", "message"), WRONG, ids=[next(iter(document)) for document, _ in WRONG])
def test_what_is_wrong_is_refused(document: dict[str, Any], message: str) -> None:
    """With file, key, value and what there is instead."""
    with pytest.raises(ConfigurationError) as refused:
        make_options(document, origin="options.toml")

    assert message in str(refused.value)


def _titles(**options: Any) -> dict[str, set[str]]:
    files = render(make_options(options, origin="options.toml"))
    boards = {name.removesuffix(".json"): json.loads(text) for name, text in files.items()}
    return {name: {panel["title"] for panel in elements(board)} for name, board in boards.items()}


@pytest.mark.slow
def test_panels_that_no_engine_in_use_can_fill_are_left_out() -> None:
    """vLLM alone reports no waiting transfers and no router's index, and keeps the rest; our instruments fill all."""
    everything, vllm = _titles(), _titles(engines=["vllm"])

    assert "In flight by role" in vllm["phases"]
    assert "KV transfer, p95" in vllm["phases"]
    assert "Wait for KV transfer, p95" in everything["phases"] - vllm["phases"]
    assert "KV transfers" in everything["phases"] - _titles(engines=["llamacpp"])["phases"], "a row without panels"
    assert {"Index state", "Hit rate skew", "Cache event gaps"} <= everything["cache"] - vllm["cache"]
    assert {"KV cache hit rate", "KV cache in use", "Preemptions"} <= vllm["cache"]
    assert {"Speculation rate by replica", "Drafted and accepted"} <= vllm["speculation"] <= everything["speculation"]
    assert {"Replicas", "No active replica"} <= vllm["scale"]
    assert "Desired scale, raw" not in vllm["scale"]
    assert vllm["health"] == everything["health"]
    assert not {title for title in vllm["requests"] if title.startswith("Inter-token latency")}
    assert _titles(engines=["vllm", "servescope", "dynamo-frontend"]) == everything


@pytest.mark.slow
def test_no_dashboard_links_to_one_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no panel left is not written."""

    def keep(board: Board, options: Options) -> Board:
        return replace(board, rows=()) if board.name == "speculation" else keep_filled(board, options)

    monkeypatch.setattr("dashboards.__main__.keep_filled", keep)
    files = render(make_options({"engines": ["vllm"]}, origin="options.toml"))

    assert "speculation.json" not in files
    for text in files.values():
        assert "/d/servescope-speculation" not in text


@pytest.mark.slow
def test_what_another_target_beside_an_engine_tells_is_kept() -> None:
    """A Dynamo worker leaves requests to its frontend, which is there too; speculation it does not know."""
    mocker = _titles(engines=["dynamo-mocker"])

    assert {"Requests", "Time to first token"} <= mocker["requests"]
    assert "Speculation rate" not in mocker["speculation"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", load_sources())
def test_alerts_of_the_same_file_lead_to_panels_that_are_kept(engine: str) -> None:
    """Engines that are named once leave out panels and the alerts that lead to them alike."""
    document = {"engines": [engine]}
    kept = {
        f"{board['uid']}?viewPanel=panel-{panel['id']}"
        for board in map(json.loads, render(make_options(document, origin="options.toml")).values())
        for panel in elements(board)
    }
    alerts = make_alert_options(document, origin="options.toml").alerts()

    assert alerts
    assert {panel_path(each) for alert in alerts.values() for each in causes_of(alert).values() or [alert]} <= kept


@pytest.mark.slow
def test_the_command_writes_to_a_folder_and_reports_what_is_wrong(tmp_path: Path) -> None:
    """It finds the folder current or out of date, and refuses a wrong file in one line."""
    run = partial(run_main, main)
    (tmp_path / "options.toml").write_text(OTHER, encoding="utf-8")
    (tmp_path / "wrong.toml").write_text("refresh = 'soon'", encoding="utf-8")
    words = ("--options", str(tmp_path / "options.toml"), "--output", str(tmp_path / "out"))

    assert run(*words).returncode == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(render())
    assert run(*words, "--check").returncode == 0
    (tmp_path / "out" / "fleet.json").write_text("{}", encoding="utf-8")
    stale = run(*words, "--check")
    assert (stale.returncode, stale.stderr.count("\n")) == (1, 1)
    assert "fleet.json is out of date: run this without --check" in stale.stderr
    (tmp_path / "out" / "fleet.yaml").write_text("", encoding="utf-8")
    assert run(*words).returncode == 0
    left = run(*words, "--check")
    assert (left.returncode, left.stderr.count("\n")) == (1, 1)
    assert "fleet.yaml is no dashboard that is written with these options: remove it" in left.stderr
    wrong = run("--options", str(tmp_path / "wrong.toml"))
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    nowhere = run("--output", str(tmp_path / "wrong.toml"))
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1)
    assert "cannot be written" in nowhere.stderr
    assert run("--check").returncode == 0
