"""What an operator chooses is in every rule, runbook and route, and nothing of the defaults beside it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alerts.__main__ import FILES, main, render
from alerts.alertmanager import configuration
from alerts.options import ALERT_SETTINGS, DEFAULTS, Options, make_options, read_options
from alerts.receivers import DEFAULT_RECEIVERS, KINDS, RECEIVER_SETTINGS
from alerts.rules import alert_groups, annotations_of, render_bundle
from dashboards.__main__ import render as render_dashboards
from dashboards.options import Options as CommonOptions
from dashboards.options import read_options as read_dashboard_options
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.links import CUSTOMERS
from servescope.alerting.rules.promises import LATENCIES, objectives_of
from servescope.contract.bounds import BOUNDS
from servescope.contract.figures import FIGURES
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.objectives import OBJECTIVES
from servescope.errors import ConfigurationError
from servescope.sources.map_files import load_sources
from tests.conftest import ROOT
from tests.support.alert_proofs import PROOFS
from tests.support.alert_stories import beside_each_other, promtool_tests, rendered
from tests.support.boards import elements
from tests.support.commands import run_main
from tests.support.documents import read_yaml
from tests.support.promtool import Suite, failures, run

OTHER = """
prefix = "llm"
selector = 'cluster="eu"'
window = "10m"
scrape_interval = "30s"
refresh = "1m"
runbooks = "https://books.example/llm"

[labels]
model_name = "served_model"
deployment_id = "release"
inference_stack = "engine"
environment = "env"
rollout_phase = "stage"
replica = "pod"
role = "part"

[thresholds]
speculation_rate = [0.35, 0.75]
kv_cache_hit_rate_skew = [-0.2, -0.1, 0.125, 0.45]

[alerts]
grafana = "https://grafana.example/"
team = "inference"
evaluation_interval = "30s"
old_stack = "vllm-0.32"
new_stack = "trtllm"
collector_job = "llm-collectors"
disabled = ["ServescopeRouterHotSpot", "ServescopeAutoscalerPinned"]
secrets = "/run/secrets"
templates = "/srv/templates/"

[alerts.bounds]
worse_times = 1.5
hit_rate_kept = 0.625
hot_share = 0.65
ended_kept = 0.6
worse_speed = 0.85
queue_floor = 50
seen_share = 0.75

[alerts.objectives.time_to_first_token]
goal = 0.95
seconds = 1.0

[alerts.objectives.requests]
goal = 0.995

[alerts.receivers.page]
kind = "pagerduty"

[alerts.receivers.ticket]
kind = "email"
to = "tickets@example.org"
from = "alerts@example.org"
smarthost = "mail.example.org:587"
username = "alerts"

[alerts.receivers.chat]
kind = "slack"
channel = "#llm"

[alerts.receivers.watchdog]
kind = "webhook"
url = "https://deadman.example/ping"

[[alerts.migration_windows]]
from = 2026-12-01T22:30:00+01:00
until = 2026-12-03T04:00:00Z
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of an operator with a Prometheus, stacks and services unlike ours."""
    found = tmp_path / "options.toml"
    found.write_text(OTHER, encoding="utf-8")
    return found


@pytest.fixture
def other(path: Path) -> Options:
    return read_options(path)


def _rules(options: Options) -> list[dict[str, Any]]:
    groups = read_yaml(render_bundle("prometheus", options))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.slow
def test_without_a_file_the_defaults_hold() -> None:
    """An empty file changes nothing."""
    assert render(make_options({}, origin="options.toml")) == render(DEFAULTS)


@pytest.mark.slow
def test_nothing_of_the_defaults_is_left(other: Options) -> None:
    """No label, window, link, stack, number, team or receiver of ours in any file."""
    files = render(other)
    labels = "|".join(IDENTITY_LABELS)
    for name, text in files.items():
        queries = [rule["expr"] for rule in _rules(other)] if name in FILES else re.findall(r"```promql\n(.*?)\n", text)
        assert not [query for query in queries if re.search(rf"\b(?:{labels})\b", query)], name
        assert not re.search(rf"[lL]abels\.(?:{labels})\b", text), name
        assert "rate5m" not in text.replace("objective_bad:ratio_rate5m", ""), name
        assert not re.search(r"localhost|127\.0\.0\.1|/etc/alertmanager|/d/servescope|: runbooks/|9095", text), name
        assert not re.search(r'job="servescope"|team: serving|interval: 15s|="v[12]"|\bof v1\b', text), name
        assert not re.search(r"\b40 %|\b80 %|\b70 %|1\.2 times|within 2\.5 s|99\.9 %|\+30 %", text), name
        assert "ServescopeRouterHotSpot" not in text, name
        assert "ServescopeAutoscalerPinned" not in text, name
    assert not re.search(rf"\b(?:{labels})\b", files["alertmanager.yml"])


@pytest.mark.slow
def test_values_that_are_called_as_a_label_stay(path: Path) -> None:
    """Renamed is what a matcher compares, not what it compares with."""
    path.write_text(OTHER.replace('"eu"', '"replica-eu"').replace('"trtllm"', '"new-role"'), encoding="utf-8")
    text = render_bundle("prometheus", read_options(path))

    assert 'cluster="replica-eu"' in text
    assert 'engine="new-role"' in text
    assert not re.search(r"pod-eu|new-part", text)


@pytest.mark.slow
def test_what_is_chosen_is_there(other: Options) -> None:
    """In rules, runbooks and links alike."""
    files = render(other)
    rules = {rule["alert"]: rule for rule in _rules(other) if "alert" in rule}
    slower = rules["ServescopeNewStackWorse"]
    churn = rules["ServescopeCacheChurn"]

    assert slower["expr"].startswith(
        '((label_replace((deployment:time_to_first_token_seconds:p95_rate10m{engine="trtllm"} > '
        "on (served_model, env) group_left () (1.5 * max by (served_model, env) "
        '(deployment:time_to_first_token_seconds:p95_rate10m{engine="vllm-0.32"})))'
    )
    assert "more than 1.5 times that of vllm-0.32" in slower["annotations"]["description"]
    assert "$labels.release" in slower["annotations"]["description"]
    assert slower["annotations"]["runbook_url"].startswith("https://books.example/llm/Servescope")
    assert slower["annotations"]["dashboard_url"].startswith("https://grafana.example/d/llm-cutover")
    assert slower["labels"]["team"] == "inference"
    assert "> 0.45)" in churn["expr"]
    assert "Above +45 % cached blocks are evicted" in churn["annotations"]["description"]
    assert "below 62.5 % of its own average" in files["runbooks/ServescopeCacheHitRateDropped.md"]
    assert (
        "95 % of requests have their first token within 1 s"
        in files["runbooks/ServescopeTimeToFirstTokenBudgetBurns.md"]
    )
    burning = rules["ServescopeTimeToFirstTokenBudgetBurnsFast"]["expr"]
    assert "> 0.72)" in burning
    assert 'le="1.0"' in files["objectives.rules.yml"]


@pytest.mark.slow
def test_every_selector_of_a_raw_series_has_the_matchers(other: Options) -> None:
    """Recorded ones have no such label, and what Prometheus and Alertmanager say of themselves is not narrowed."""
    for rule in _rules(other):
        for name, matchers in re.findall(r"(?<![\w:])([a-z_]+(?:_[a-z]+)+)({[^}]*})?(?=[\[ )]|$)", rule["expr"]):
            is_series = name in METRICS or name.startswith("servescope_") or name.endswith("_bucket")
            if is_series:
                assert 'cluster="eu"' in matchers, rule


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "collector_labels = []\n"])
def test_prometheus_accepts_what_is_chosen(each_promtool: Path, tmp_path: Path, path: Path, more: str) -> None:
    """With every lint fatal."""
    path.write_text(more + OTHER, encoding="utf-8")
    rules = tmp_path / "rules.yml"
    rules.write_text(render_bundle("prometheus", read_options(path)), encoding="utf-8")
    done = run(each_promtool, ["check", "rules", "--lint=all", "--lint-fatal", rules], tmp_path)

    assert done.returncode == 0, done.stdout


RENAMED = [
    "ServescopeNewStackWorse", "ServescopeTrafficSplitNotAsConfigured", "ServescopeCacheEventsMissed",
    "ServescopeNoActiveReplica", "ServescopeTelemetryStale", "ServescopeUpButNotServing", "ServescopeDeploymentDown",
]  # fmt: skip


@pytest.mark.slow
def test_alerts_under_other_labels_are_proven_alike(promtool: Path, tmp_path: Path, path: Path) -> None:
    """The same stories with the labels' other names: they fire and are silent as they did."""
    labels_alone = path.read_text(encoding="utf-8").split("[labels]")[1].split("[thresholds]")[0]
    path.write_text(f"[labels]{labels_alone}", encoding="utf-8")
    options = read_options(path)
    suites = {name: Suite(_renamed(name, options), alert_groups([ALERTS[name]], options)) for name in RENAMED}

    assert failures(promtool, tmp_path, suites) == {}


def _renamed(name: str, options: Options) -> list[dict[str, Any]]:
    """An alert's stories with the labels that an operator chose."""
    stories = beside_each_other(promtool_tests(ALERTS[name], PROOFS[name]))
    for story in stories:
        for each in story["input_series"]:
            each["series"] = re.sub(r"(\w+)(?==\")", lambda label: options.label(label[1]), each["series"])
        for check in story["alert_rule_test"]:
            for expected in check["exp_alerts"]:
                expected["exp_labels"] = {options.label(key): text for key, text in expected["exp_labels"].items()}
    return stories


@pytest.mark.slow
def test_a_single_alert_has_another_severity_and_more_labels(amtool: Path, tmp_path: Path) -> None:
    """In its rule, its route, its runbook and what a page lists; every other alert is as it was."""
    document: dict[str, Any] = {
        "alerts": {
            "severities": {"ServescopeQueueGrowing": "critical", "ServescopeUpButNotServing": "info"},
            "labels": {"ServescopeQueueGrowing": {"team": "platform", "owner": "gpu"}},
        }
    }
    options = make_options(document, origin="options.toml")
    files = render(options)
    rules = {rule["alert"]: rule for rule in _rules(options) if "alert" in rule}
    usual = {rule["alert"]: rule for rule in _rules(DEFAULTS) if "alert" in rule}
    growing = rules["ServescopeQueueGrowing"]

    assert growing["labels"] == {
        "severity": "critical", "component": "engine", "family": "serving", "team": "platform", "owner": "gpu",
    }  # fmt: skip
    assert "also_firing" in growing["annotations"]
    assert "also_firing" not in rules["ServescopeUpButNotServing"]["annotations"]
    assert "Severity critical." in files["runbooks/ServescopeQueueGrowing.md"]
    assert {name for name in rules if rules[name] != usual[name]} == set(document["alerts"]["severities"])
    path = tmp_path / "alertmanager.yml"
    path.write_text(files["alertmanager.yml"], encoding="utf-8")
    labels = [f"{key}={text}" for key, text in {**growing["labels"], "deployment_id": "d"}.items()]
    command = [str(amtool), "config", "routes", "test", f"--config.file={path}", "--verify.receivers=page", *labels]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- Many clusters, pairs of collectors -------------------------------------------------------------------------------

CLUSTERS = {"extra_labels": ["cluster", "namespace"]}


@pytest.mark.slow
def test_extra_labels_are_in_every_group_and_match() -> None:
    """Of rules, boards and Alertmanager; what has no labels at all has none of them either."""
    options = make_options(CLUSTERS, origin="options.toml")
    texts = [rule["expr"] for rule in _rules(options)]
    for text in render_dashboards(options.common).values():
        board = json.loads(text)
        asked = [target["expr"] for panel in elements(board) for target in panel.get("targets", ())]
        assert all('cluster=~"$cluster",namespace=~"$namespace"' in each for each in asked), board["uid"]
        assert [each["name"] for each in board["templating"]["list"]][1:3] == ["cluster", "namespace"]
        texts += asked
    for text in texts:
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", text):
            assert {"cluster", "namespace"} <= set(labels.split(", ")), text
    document = configuration(options=options)
    groups = [document["route"], *(each for route in document["route"]["routes"] for each in route.get("routes", ()))]
    assert all(each["group_by"][-2:] == ["cluster", "namespace"] for each in groups)
    assert all({"cluster", "namespace"} <= set(rule["equal"]) for rule in document["inhibit_rules"])
    alert = ALERTS["ServescopeUpButNotServing"]
    assert "&var-cluster={{ $labels.cluster | urlquery }}" in annotations_of(alert, options)["dashboard_url"]


@pytest.mark.slow
def test_clusters_are_not_mixed(each_promtool: Path, tmp_path: Path, is_left_open: bool) -> None:
    """What happens in one cluster fires there as it does alone, while the same deployment is well in another."""
    options = make_options({"extra_labels": ["cluster"]}, origin="options.toml")
    suites = {
        name: Suite(_in_clusters(name, options, is_left_open=is_left_open), alert_groups([ALERTS[name]], options))
        for name in (*RENAMED, "ServescopeTargetDown")
    }

    assert failures(each_promtool, tmp_path, suites) == {}


def _in_clusters(name: str, options: Options, *, is_left_open: bool) -> list[dict[str, Any]]:
    """An alert's stories in one of two clusters; in the other, all goes on as it began."""
    stories = beside_each_other(promtool_tests(ALERTS[name], PROOFS[name], is_left_open=is_left_open))
    for story in stories:
        here = [{**each, "series": _with(each["series"], cluster="eu")} for each in story["input_series"]]
        there = [
            {"series": _with(each["series"], cluster="us"), "values": _going_on(each)} for each in story["input_series"]
        ]
        story["input_series"] = [*here, *there]
        for check in story["alert_rule_test"]:
            for expected in check["exp_alerts"]:
                labels = expected["exp_labels"]
                url = annotations_of(ALERTS[name], options)["dashboard_url"]
                labels["cluster"] = "eu"
                expected["exp_annotations"]["dashboard_url"] = rendered(url, labels, 0.0)
    return stories


def _with(series: str, **labels: str) -> str:
    pairs = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{series.removesuffix('}')}, {pairs}}}"


def _going_on(series: dict[str, str]) -> str:
    """The values of a series whose first two go on: a counter rises, a gauge stays."""
    first, second, *others = series["values"].split()
    if first == "_":
        return " ".join(["_"] * (len(others) + 2))
    is_counter = series["series"].partition("{")[0].endswith(("_total", "_sum", "_count"))
    step = float(second) - float(first) if is_counter else 0.0
    return f"{first}{step:+}x{len(others) + 1}"


@pytest.mark.slow
def test_two_collectors_make_no_second_alert(promtool: Path, tmp_path: Path) -> None:
    """The same stories from two collectors: one alert each, without the labels of either."""
    suites = {}
    for name in RENAMED:
        stories = beside_each_other(promtool_tests(ALERTS[name], PROOFS[name]))
        for story in stories:
            story["input_series"] = [
                each if is_recorded else {**each, "series": _with(each["series"], instance=collector, pod=collector)}
                for each in story["input_series"]
                # What a rule has recorded is of no collector.
                for is_recorded in (each["series"].startswith("deployment:"),)
                for collector in ("a", "b")[: 1 if is_recorded else 2]
            ]
        suites[name] = Suite(stories, alert_groups([ALERTS[name]]))

    assert failures(promtool, tmp_path, suites) == {}


@pytest.mark.slow
def test_one_file_serves_the_dashboards_too(path: Path) -> None:
    """What concerns alerts alone is left alone there."""
    boards = dict(render_dashboards(read_dashboard_options(path)))

    assert all(
        '"served_model"' in text or "served_model" in text for name, text in boards.items() if CUSTOMERS not in name
    )


EXAMPLE = ROOT / "examples" / "options.toml"


def test_the_example_has_every_option() -> None:
    """Each key there is, and each name of a table whose names are known."""
    document = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    alerts = document["alerts"]

    assert document.keys() == {each.name for each in fields(CommonOptions) if each.name != "choices"} | {
        "thresholds",
        "alerts",
    }
    assert list(document["labels"]) == list(IDENTITY_LABELS)
    assert document["thresholds"].keys() == {figure.name for figure in FIGURES.values() if figure.band}
    assert alerts.keys() == {setting.key for setting in ALERT_SETTINGS} - {"objectives_of"}
    assert list(alerts["bounds"]) == list(BOUNDS)
    assert list(alerts["objectives"]) == list(OBJECTIVES)
    assert list(alerts["receivers"]) == list(DEFAULT_RECEIVERS)
    written = re.findall(r"(?m)^(?:#: )?(\w+) = ", EXAMPLE.read_text(encoding="utf-8"))
    assert {setting.key for setting in RECEIVER_SETTINGS} <= set(written)


@pytest.mark.slow
def test_the_example_has_the_defaults() -> None:
    """Rules and dashboards of it are those that are committed."""
    assert render(read_options(EXAMPLE)) == render()
    assert render_dashboards(read_dashboard_options(EXAMPLE)) == render_dashboards()


def test_the_examples_in_the_example_are_read(tmp_path: Path) -> None:
    """Each in place of the default above it."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for key in re.findall(r"(?m)^#: (\w+) = ", text):
        text = re.sub(rf"(?m)^{key} = .*\n(?=#: {key} = )", "", text)
    changed = re.sub(r"(?m)^url = .*\n(?=#: )|^kind = .*\n(?=url = .*\n#: )", "", text).replace("#: ", "")
    (tmp_path / "mine.toml").write_text(changed, encoding="utf-8")

    options = read_options(tmp_path / "mine.toml")

    assert {name: receiver.kind for name, receiver in options.receivers.items()} == {
        "page": "pagerduty", "ticket": "email", "chat": "slack", "watchdog": "webhook",
    }  # fmt: skip
    assert options.common.extra_labels == ("cluster", "namespace")
    assert options.labels == {"ServescopeColdStartSlow": {"team": "capacity", "owner": "inference"}}
    assert len(options.migration_windows) == 1


@pytest.mark.slow
def test_the_command_writes_into_a_folder_and_refuses_what_is_wrong(tmp_path: Path, path: Path) -> None:
    """Whole, or nothing at all."""
    run = partial(run_main, main)
    folder = tmp_path / "written"
    done = run("--options", str(path), "--output", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    written = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert written == set(render(read_options(path)))
    assert run("--options", str(path), "--output", str(folder), "--check").returncode == 0

    path.write_text("[alerts]\ndisabled = ['ServescopeNothing']\n", encoding="utf-8")
    done = run("--options", str(path), "--output", str(tmp_path / "other"))
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"servescope: error: {path}: alerts.disabled: no alert 'ServescopeNothing', known: Servescope"
    )
    assert not (tmp_path / "other").exists()
    assert run("--options", str(path)).returncode == 2


def test_alerts_that_an_engine_cannot_feed_are_left_out() -> None:
    """By vLLM's own page there is no router and no autoscaler; with our instruments beside it, there is everything."""

    def names(*sources: str) -> set[str]:
        return set(make_options({"alerts": {"sources": list(sources)}}, origin="options.toml").alerts())

    others = {"ServescopeCacheChurn", "ServescopeAutoscalerPinned", "ServescopeReplicasFailed"}
    assert not others & names("vllm")
    assert others <= names("vllm", "servescope")
    assert names("vllm") >= {
        "ServescopeSpeculationBelowBreakEven", "ServescopeUpButNotServing", "ServescopeRequestsBudgetBurnsFast",
        "ServescopeTrafficSplitNotAsConfigured", "ServescopeDeploymentDown", "ServescopeWatchdog",
        "ServescopeNoActiveReplica", "ServescopeCacheHitRateDropped", "ServescopeMostDeploymentsGone",
        "ServescopeMostDeploymentsDown",
    }  # fmt: skip
    between_tokens = {"ServescopeInterTokenLatencyBudgetBurnsFast", "ServescopeInterTokenLatencyBudgetBurns"}
    per_token = {"ServescopeTimePerOutputTokenBudgetBurnsFast", "ServescopeTimePerOutputTokenBudgetBurns"}
    assert not between_tokens & names("vllm", "servescope")
    assert between_tokens <= names("dynamo-frontend")
    assert not per_token & names("dynamo-frontend")
    assert names("vllm", "servescope", "dynamo-frontend") == names("vllm", "servescope") | between_tokens
    assert names() == ALERTS.keys()


@pytest.mark.slow
def test_an_objective_takes_the_edges_of_the_engines_in_use() -> None:
    """The rule, the description and the runbook have the edges of those engines and no others."""
    seconds = {"time_to_first_token": {"seconds": 2.2}}
    dynamo = make_options({"alerts": {"sources": ["dynamo-frontend"], "objectives": seconds}}, origin="options.toml")
    mixed = make_options(
        {"alerts": {"sources": ["dynamo-frontend", "vllm"], "objectives": seconds}}, origin="options.toml"
    )

    assert set(re.findall(r'first_token_seconds_bucket{le="([^"]+)"', render(dynamo)["objectives.rules.yml"])) == {
        "2.2"
    }
    assert set(re.findall(r'first_token_seconds_bucket{le="([^"]+)"', render(mixed)["objectives.rules.yml"])) == {
        "2.2", "2.5",
    }  # fmt: skip
    alert = "ServescopeTimeToFirstTokenBudgetBurnsFast"
    limit = "within 2.2 s (2.5 s where the engine does not count that edge)"
    assert limit in mixed.alerts()[alert].description
    assert limit in render(mixed)[f"runbooks/{alert}.md"]
    assert "within 2.2 s." in dynamo.alerts()[alert].description


def test_a_source_whose_edges_are_not_known_has_no_objective_of_that_latency() -> None:
    """It takes nothing from others; and only a source that nobody here ran has none."""
    first_token = "time_to_first_token"
    assert first_token not in objectives_of(("baseten",))
    assert objectives_of(("baseten", "vllm"))[first_token] == objectives_of(("vllm",))[first_token]
    without = {
        source.evidence
        for source in load_sources().values()
        for latency in LATENCIES
        if (metric := source.metrics[f"{latency}_seconds"]).alternatives and not metric.edges
    }
    assert without == {"read"}


@pytest.mark.slow
def test_alerts_wait_as_long_as_is_chosen() -> None:
    """In the rule, in the description and in the runbook; other alerts as before, and none at all with 0s."""
    waits = {"ServescopeColdStartSlow": "90m", "ServescopeQueueGrowing": "0s"}
    options = make_options({"alerts": {"waits": waits}}, origin="options.toml")
    rules = {
        rule["alert"]: rule
        for group in read_yaml(render(options)["alerting.rules.yml"])["groups"]
        for rule in group["rules"]
    }

    assert rules["ServescopeColdStartSlow"]["for"] == "90m"
    assert "for more than 95 minutes" in rules["ServescopeColdStartSlow"]["annotations"]["description"]
    assert "at all times for 95 minutes" in render(options)["runbooks/ServescopeColdStartSlow.md"]
    assert "for more than 20 minutes" in ALERTS["ServescopeColdStartSlow"].description
    assert "for" not in rules["ServescopeQueueGrowing"]
    assert rules["ServescopeReplicasFailed"]["for"] == ALERTS["ServescopeReplicasFailed"].for_


# --- Alertmanager -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_alertmanager_accepts_receivers_of_every_kind(amtool: Path, tmp_path: Path, other: Options) -> None:
    """Pagers, mail, chat, webhooks and none, each with its secret in a file of its own."""
    none = make_options(
        {"alerts": {"receivers": {name: {"kind": "none"} for name in other.receivers}}}, origin="options.toml"
    )
    path = tmp_path / "alertmanager.yml"
    for options in (other, none, DEFAULTS):
        path.write_text(render(options)["alertmanager.yml"], encoding="utf-8")
        done = subprocess.run([amtool, "check-config", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    kinds = {receiver.kind for options in (other, none) for receiver in options.receivers.values()}
    assert kinds == set(KINDS)
    assert {receiver.secret for receiver in other.receivers.values()} == {
        "page_routing_key", "ticket_password", "chat_slack_url", "watchdog_token",
    }  # fmt: skip
    text = render(other)["alertmanager.yml"]
    for receiver in other.receivers.values():
        assert f"/run/secrets/{receiver.secret}" in text
    assert "secrets" not in str(configuration(options=none)["receivers"])


def test_a_migration_window_is_cut_at_midnight_utc(other: Options) -> None:
    """A night, a day and a morning; without any there is one that never comes."""
    (interval,) = configuration(options=other)["time_intervals"]
    (never,) = configuration()["time_intervals"]

    assert interval["time_intervals"] == [
        {"times": [{"start_time": start, "end_time": end}], "days_of_month": [day], "months": ["12"], "years": ["2026"]}
        for start, end, day in (("21:30", "24:00", "1"), ("00:00", "24:00", "2"), ("00:00", "04:00", "3"))
    ]
    assert never["time_intervals"] == [{"days_of_month": ["31"], "months": ["february"]}]


# --- Refused ----------------------------------------------------------------------------------------------------------

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"colour": "blue"}, "unknown key 'colour'; known: "),
    ({"alerts": {"team": 3}}, "alerts.team: 3 is wrong, expected a string"),
    ({"alerts": {"teams": "a"}}, "unknown key 'alerts.teams'; did you mean 'team'?"),
    ({"alerts": {"team": "a b"}}, "alerts.team: 'a b' is wrong, expected a name"),
    ({"alerts": {"grafana": "grafana"}}, "alerts.grafana: 'grafana' is wrong, expected a URL"),
    ({"selector": '__name__="up"'}, "selector is '__name__=\"up\"', expected matchers of labels"),
    ({"alert": {}}, "unknown key 'alert'; did you mean 'alerts'?"),
    ({"alerts": {"servers": "ours"}}, "alerts.servers is 'ours', expected matchers such as"),
    ({"alerts": {"covers": "live"}}, "alerts.covers: 'live' is wrong, expected a table of strings, or of lists of"),
    ({"alerts": {"covers": {"replica": "r0"}}}, "unknown key 'alerts.covers.replica'; known: model_name, environment"),
    ({"alerts": {"covers": {"environment": []}}}, "alerts.covers.environment: () is wrong, expected the value of a"),
    (
        {
            "alerts": {
                "covers": {"environment": "live"},
                "objectives_of": [{"environment": "staging", "requests": {"goal": 0.95}}],
            }
        },
        "alerts.objectives_of: environment staging has no deployment that alerts.covers has",
    ),
    ({"alerts": {"watch_servers": "no"}}, "alerts.watch_servers: 'no' is wrong, expected "),
    ({"alerts": {"only": ["ServescopeNothing"]}}, "alerts.only: no alert 'ServescopeNothing', known: "),
    ({"runbooks": "runbooks"}, "runbooks is 'runbooks', expected a URL such as 'https://books.example/llm'"),
    ({"runbooks": "https://books.example/{name}"}, "expected a URL such as"),
    ({"alerts": {"severities": {"Nothing": "info"}}}, "unknown key 'alerts.severities.Nothing'"),
    ({"alerts": {"severities": {"ServescopeQueueGrowing": "loud"}}}, "'loud' is wrong, expected one of critical, "),
    ({"alerts": {"severities": {"ServescopeWatchdog": "info"}}}, "expected nothing: its receiver expects it all "),
    ({"alerts": {"labels": {"ServescopeQueueGrowing": "a"}}}, "'a' is wrong, expected a table of labels such as "),
    ({"alerts": {"labels": {"ServescopeQueueGrowing": {"family": "a"}}}}, "Growing.family: 'a' is wrong, "),
    ({"alerts": {"labels": {"ServescopeQueueGrowing": {"replica": "a"}}}}, "expected labels that are not among "),
    ({"alerts": {"labels": {"ServescopeQueueGrowing": {"a-b": "a"}}}}, "expected a table of labels such as "),
    ({"alerts": {"labels": {"ServescopeQueueGrowing": {"owner": "{{ a }}"}}}}, "Growing.owner: '{{ a }}' is "),
    ({"alerts": {"disabled": ["Nothing"]}}, "alerts.disabled: no alert 'Nothing', known: ServescopeSpeculation"),
    ({"alerts": {"sources": ["vlm"]}}, "alerts.sources: no source 'vlm', known: baseten, cadvisor, dcgm, "),
    ({"alerts": {"disabled": "Nothing"}}, "alerts.disabled: 'Nothing' is wrong, expected a list of strings"),
    ({"alerts": {"evaluation_interval": "10m"}}, "alerts.evaluation_interval: '10m' is wrong, expected a duration of "
     "at most 5m and at most window (5m)"),
    ({"alerts": {"evaluation_interval": "soon"}}, "alerts.evaluation_interval: 'soon' is wrong"),
    ({"alerts": {"new_stack": "v1"}}, "alerts.new_stack: 'v1' is wrong, expected another stack than old_stack ('v1')"),
    ({"scrape_interval": "2m", "refresh": "2m", "window": "10m"}, "scrape_interval is '2m', expected at most 75s"),
    ({"labels": {"model": "m"}}, "labels: no identity label 'model', known: model_name, "),
    ({"labels": {"rollout_phase": "phase"}}, "labels.rollout_phase is 'phase', expected a name that is not one of "),
    ({"labels": {"replica": "__replica__"}}, "labels.replica is '__replica__', expected the name of a label that "),
    ({"labels": {"replica": "severity"}}, "labels.replica is 'severity', expected a name that is not one of "),
    ({"thresholds": {"speculation_rate": [0.8, 0.4]}}, "is [0.8, 0.4], expected ascending numbers"),
    ({"alerts": {"bounds": {"worse_time": 2}}}, "unknown key 'alerts.bounds.worse_time'; did you mean 'worse_times'?"),
    ({"alerts": {"bounds": {"worse_times": 0.5}}}, "alerts.bounds.worse_times: 0.5 is wrong, expected a number of at "
     "least 1"),
    ({"alerts": {"bounds": {"hit_rate_kept": 70}}}, "alerts.bounds.hit_rate_kept: 70 is wrong, expected a number of at "
     "least 0 and at most 1"),
    ({"alerts": {"bounds": {"queue_floor": float("inf")}}}, "alerts.bounds.queue_floor: inf is wrong"),
    ({"alerts": {"bounds": {"queue_floor": float("nan")}}}, "alerts.bounds.queue_floor: nan is wrong"),
    ({"alerts": {"bounds": {"queue_floor": True}}}, "alerts.bounds.queue_floor: True is wrong"),
    ({"alerts": {"waits": {"ServescopeQueueGrowin": "30m"}}}, "unknown key 'alerts.waits.ServescopeQueueGrowin'; did "
     "you mean 'ServescopeQueueGrowing'?"),
    ({"alerts": {"waits": {"ServescopeQueueGrowing": "soon"}}}, "alerts.waits.ServescopeQueueGrowing: 'soon' is wrong, "
     "expected a duration from 0s to 1d, such as 30m"),
    ({"alerts": {"waits": {"ServescopeQueueGrowing": "2d"}}}, "alerts.waits.ServescopeQueueGrowing: '2d' is wrong"),
    ({"alerts": {"waits": {"ServescopeQueueGrowing": 30}}}, "alerts.waits.ServescopeQueueGrowing: 30 is wrong"),
    ({"alerts": {"objectives": {"latency": {}}}}, "unknown key 'alerts.objectives.latency'; known: time_to_first"),
    ({"alerts": {"objectives": {"requests": {"goal": 99.9}}}}, "alerts.objectives.requests.goal: 99.9 is wrong, "
     "expected a share"),
    ({"alerts": {"objectives": {"requests": {"seconds": 1}}}}, "alerts.objectives.requests.seconds: 1 is wrong, "
     "expected nothing: 'requests' is no latency"),
    ({"alerts": {"objectives": {"time_to_first_token": {"seconds": 1.1}}}},
     "alerts.objectives.time_to_first_token.seconds: 1.1 is wrong, expected an edge of the histogram: dynamo-frontend "
     "has 0.0022, "),
    ({"alerts": {"sources": ["vllm"], "objectives": {"time_to_first_token": {"seconds": 2.2}}}},
     "alerts.objectives.time_to_first_token.seconds: 2.2 is wrong, expected an edge of the histogram: vllm has 0.001"),
    ({"alerts": {"objectives": {"time_to_first_token": {"seconds": 640}}}},
     "alerts.objectives.time_to_first_token.seconds: 640 is wrong, expected at most 480, the highest edge of dynamo-"),
    ({"alerts": {"sources": ["vllm"], "objectives": {"inter_token_latency": {"goal": 0.95}}}},
     "alerts.objectives.inter_token_latency: a table is wrong, expected no such objective: none of the sources "
     "shows inter_token_latency_seconds without time_per_output_token_seconds, which has an objective of its own"),
    ({"alerts": {"sources": ["dynamo-frontend"], "objectives": {"time_per_output_token": {"goal": 0.95}}}},
     "expected no such objective: none of the sources shows time_per_output_token_seconds"),
    # Its fast alert could never fire: 14.4 times what such a budget allows is more than all requests.
    ({"alerts": {"objectives_of": [{"tenant": "a", "requests": {"goal": 0.95}}]}},
     "unknown key 'alerts.objectives_of[0].tenant'; known: model_name, deployment_id, inference_stack, environment, "),
    ({"alerts": {"objectives_of": [{"environment": "live"}]}},
     "alerts.objectives_of[0]: has environment, expected one or more of model_name, deployment_id, inference_stack, "),
    ({"alerts": {"objectives_of": [{"requests": {"goal": 0.95}}]}}, "alerts.objectives_of[0]: has requests, expected "),
    ({"alerts": {"objectives_of": [{"environment": 'a"b', "requests": {"goal": 0.95}}]}},
     "alerts.objectives_of[0].environment: 'a\"b' is wrong, expected the value of a label, without quotes"),
    ({"alerts": {"sources": ["vllm"], "objectives_of": [
        {"environment": "live", "time_to_first_token": {"seconds": 2}},
    ]}}, "alerts.objectives_of[0].time_to_first_token.seconds: 2 is wrong, expected an edge of the histogram: vllm h"),
    ({"alerts": {"objectives_of": [
        {"environment": "live", "requests": {"goal": 0.95}},
        {"deployment_id": "chat", "environment": "live", "requests": {"goal": 0.99}},
    ]}}, "alerts.objectives_of[1].requests: never counts, as alerts.objectives_of[0] has all deployments of "
     "deployment_id chat environment live and the first counts; expected it before that one"),
    ({"alerts": {"objectives": {"requests": {"goal": 0.9}}}}, "alerts.objectives.requests.goal: 0.9 is wrong, "
     "expected a share of at least 0.94 and below 1"),
    # These would always hold, or never.
    ({"alerts": {"bounds": {"hanging_times": 0}}}, "alerts.bounds.hanging_times: 0 is wrong"),
    ({"alerts": {"bounds": {"failures_repeated": 0}}}, "alerts.bounds.failures_repeated: 0 is wrong"),
    ({"alerts": {"bounds": {"active_replicas": 0}}}, "alerts.bounds.active_replicas: 0 is wrong"),
    # These would be rules that Prometheus does not load.
    ({"alerts": {"old_stack": 'v"1'}}, "alerts.old_stack: 'v\"1' is wrong, expected the value of a label"),
    ({"alerts": {"new_stack": ""}}, "alerts.new_stack: '' is wrong, expected the value of a label"),
    ({"alerts": {"collector_job": "a\nb"}}, "alerts.collector_job: 'a\\nb' is wrong, expected the value of a label"),
    ({"alerts": {"new_stack": "{{ nothing }}"}}, "alerts.new_stack: '{{ nothing }}' is wrong"),
    ({"alerts": {"grafana": "https://grafana/{{.Nothing}}"}}, "alerts.grafana: 'https://grafana/{{.Nothing}}' is"),
    ({"alerts": {"receivers": {"phone": {"kind": "none"}}}}, "unknown key 'alerts.receivers.phone'; known: page, "),
    ({"alerts": {"receivers": {"page": {}}}}, "alerts.receivers.page: 'kind' is missing"),
    ({"alerts": {"receivers": {"page": {"kind": "fax"}}}}, "alerts.receivers.page.kind: 'fax' is wrong, expected one "
     "of none, webhook, slack, pagerduty, email"),
    ({"alerts": {"receivers": {"page": {"kind": "webhook"}}}}, "alerts.receivers.page.url is missing, expected a "
     "URL"),
    ({"alerts": {"receivers": {"page": {"kind": "slack", "channel": "#a", "url": "http://a"}}}},
     "alerts.receivers.page.url: 'http://a' is wrong, expected no such key for the kind 'slack', which has channel"),
    ({"alerts": {"migration_windows": [{"from": NOON}]}}, "alerts.migration_windows[0]: 'until' is missing"),
    ({"alerts": {"migration_windows": [{"from": "noon", "until": NOON}]}}, "alerts.migration_windows[0].from: 'noon' "
     "is wrong, expected a date and time of a whole minute with its offset"),
    ({"alerts": {"migration_windows": [{"from": NOON, "until": NOON}]}}, "alerts.migration_windows[0].until: "),
    ({"alerts": {"migration_windows": [{"from": NOON, "until": NOON.replace(year=2027)}]}}, "less than 31 days after"),
    ({"alerts": {"migration_windows": [{"from": NOON.replace(tzinfo=None), "until": NOON}]}},
     "alerts.migration_windows[0].from: 2026-12-01T12:00:00 is wrong, expected a date and time of a whole "),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), WRONG)
def test_what_is_wrong_is_refused(document: dict[str, Any], message: str) -> None:
    """With the file, the key, the value and what was expected or there is."""
    with pytest.raises(ConfigurationError) as caught:
        make_options(document, origin="options.toml")

    assert str(caught.value).startswith("options.toml: ")
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Missing, or not TOML."""
    with pytest.raises(ConfigurationError, match="no options file"):
        read_options(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not TOML"):
        read_options(tmp_path / "bad.toml")


def test_the_example_of_the_page_is_taken() -> None:
    """As it is, and by the dashboards too."""
    page = (ROOT / "docs" / "alert-rules.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    options = make_options(tomllib.loads(example), origin="alert-rules.md")

    assert options.label("replica") == "pod"
    assert options.receivers["page"].kind == "pagerduty"
    assert len(options.migration_windows) == 1


def test_the_reference_lists_every_key() -> None:
    """`docs/alert-rules.md` has a row for each key, with its default, each bound and each kind of receiver."""
    page = (ROOT / "docs" / "alert-rules.md").read_text(encoding="utf-8")

    for setting in ALERT_SETTINGS:
        assert f"| `{setting.key}` | `{setting.default.strip(chr(34))}` |" in page.replace('`"', "`").replace(
            '"`', "`"
        ), setting
    for bound in BOUNDS.values():
        assert f"| `{bound.name}` | {bound.value:g} | {bound.unit} |" in page
    for objective in OBJECTIVES.values():
        assert f"`{objective.name}`" in page
    for kind in KINDS:
        assert f"| `{kind}` |" in page
    for setting in RECEIVER_SETTINGS:
        assert f"`{setting.key}`" in page
