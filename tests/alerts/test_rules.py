"""The rules as a whole: what a reader, Prometheus and Alertmanager expect of every one of them."""

from __future__ import annotations

import json
import re
import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from alerts.__main__ import FILES, GENERATED
from alerts.alertmanager import RECEIVERS, configuration, inhibitions
from alerts.dividing import divide
from alerts.objectives import objective_group
from alerts.options import DEFAULTS
from alerts.recording import HEADER
from alerts.rules import alert_rule, annotations_of, metricsql, render_alert_rules, render_bundle
from alerts.runbooks import queries_of
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.links import causes_of, panel_title
from servescope.alerting.rules.promql import alert_promql
from servescope.alerting.rules.records import PERCENT, Alert, BadRatio, FigureRef, labels_of, terms
from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND, SPECULATION_BAND
from servescope.contract.bounds import (
    ABORTS_TRAFFIC,
    ANSWERS_TRAFFIC,
    BAD_REQUESTS,
    COMPARED_TRAFFIC,
    DRAFT_TRAFFIC,
    HANGING_FLOOR,
    PROMPT_TRAFFIC,
    SLOW_TRAFFIC,
    UNANSWERED_RATE,
)
from servescope.contract.figures import FIGURES
from servescope.contract.objectives import BURN_WINDOWS, OBJECTIVES
from servescope.contract.own_metrics import OWN_METRICS
from servescope.contract.types import Step
from servescope.generating.rules import Format
from tests.support.alert_stories import minutes
from tests.support.boards import elements
from tests.support.documents import read_yaml
from tests.support.prometheus import running
from tests.support.recording_rules import RECORDING_FILES, is_of_catalog

DASHBOARDS = {
    board["uid"]: board
    for path in (GENERATED.parents[1] / "dashboards" / "generated").glob("*.json")
    for board in (json.loads(path.read_text(encoding="utf-8")),)
}
PAGES = {
    "ServescopeNoActiveReplica", "ServescopeUpButNotServing", "ServescopeDeploymentDown", "ServescopeCollectorGone",
    "ServescopeCutoverDegraded", "ServescopeRouterDown", "ServescopeTrafficGone", "ServescopeMostDeploymentsGone",
    "ServescopePhaseDown", "ServescopeKvTransfersStuck", "ServescopeMostDeploymentsDown", "ServescopeFleetUnseen",
    "ServescopeAnswerLengthChanged", "ServescopeRouterHotSpot", "ServescopeRequestsNotExposed",
    *(name for name in ALERTS if name.endswith("BurnsFast")),
}  # fmt: skip
"""What users feel, or what blinds everybody."""


@pytest.fixture(params=ALERTS)
def alert(request: pytest.FixtureRequest) -> Alert:
    return ALERTS[request.param]


def test_names_and_labels_are_those_of_the_convention(alert: Alert) -> None:
    """CamelCase behind the product's name, a severity that is routed, and who is responsible."""
    assert re.fullmatch(r"Servescope(?:[A-Z][a-z]+)+", alert.name)
    assert alert.severity in RECEIVERS
    assert all(alert_rule(alert)["labels"].values())
    assert alert_rule(alert)["labels"].keys() == {"severity", "component", "family", "team"}


def test_only_what_users_feel_pages() -> None:
    """Causes are warnings."""
    assert {name for name, alert in ALERTS.items() if alert.severity == "critical"} == PAGES


def test_a_notification_says_what_where_and_what_to_do(alert: Alert) -> None:
    """The summary is one sentence without a value, the description uses only labels its condition has."""
    annotations = annotations_of(alert)

    assert annotations["summary"].endswith(".")
    assert "{{" not in annotations["summary"]
    assert set(re.findall(r"\$labels\.(\w+)", annotations["description"])) <= set(labels_of(alert.condition))
    assert all("humanize" in value for value in re.findall(r"{{ (\$value.*?) }}", annotations["description"]))
    assert set(re.findall(r"\$labels\.(\w+)", annotations["headline"])) <= set(labels_of(alert.condition))
    assert re.fullmatch(rf"https?://\S+[/=]{alert.name}", annotations["runbook_url"])
    assert alert.figure in FIGURES or alert.figure in OWN_METRICS


def _of_cause(cause: str, found: re.Match[str]) -> str:
    return found[2] if found[1] == cause else ""


def test_an_alert_leads_to_the_panel_that_shows_it(alert: Alert) -> None:
    """The dashboard and its panel are there, and so is each variable that is set, from a label the alert has."""
    url = annotations_of(alert)["dashboard_url"]
    for cause, each in causes_of(alert).items() or {"": alert}.items():
        of_cause = re.sub(r"{{ if eq \$labels\.cause `(.+?)` }}(\d+){{ end }}", partial(_of_cause, cause), url)
        uid, panel, chosen = re.fullmatch(r".+/d/([\w-]+)\?viewPanel=panel-(\d+)(.*)", of_cause).groups()  # type: ignore[union-attr]
        board = DASHBOARDS[uid]
        assert panel_title(each) in [shown["title"] for shown in elements(board) if shown["id"] == int(panel)]
    set_to = dict(re.findall(r"&var-(\w+)={{ \$labels\.(\w+) \| urlquery }}", chosen))
    variables = {variable["name"]: variable.get("query") for variable in board["templating"]["list"]}

    assert "".join(f"&var-{name}={{{{ $labels.{label} | urlquery }}}}" for name, label in set_to.items()) == chosen
    assert set(set_to.values()) <= set(labels_of(alert.condition))
    for name, label in set_to.items():
        assert variables[name]["query"].endswith(f", {label})")
    assert "from=" not in url


def test_links_set_what_the_alert_is_about() -> None:
    """The deployment and, where it is one, the replica; of a cutover, both stacks stay on the screen."""
    urls = {name: annotations_of(ALERTS[name])["dashboard_url"] for name in ALERTS}
    deployment = "var-deployment={{ $labels.deployment_id | urlquery }}"
    replica = "var-replica={{ $labels.replica | urlquery }}"

    assert deployment in urls["ServescopeQueueGrowing"]
    assert replica not in urls["ServescopeQueueGrowing"]
    assert deployment in urls["ServescopeUpButNotServing"]
    assert replica in urls["ServescopeUpButNotServing"]
    assert deployment in urls["ServescopeTargetDown"]
    assert deployment not in urls["ServescopeNewStackWorse"]
    assert "var-model={{ $labels.model_name | urlquery }}" in urls["ServescopeNewStackWorse"]
    assert "var-" not in urls["ServescopeWatchdog"]


def test_it_waits_long_enough_or_says_why_not(alert: Alert) -> None:
    """Five minutes, or a reason."""
    assert minutes(alert.for_) >= 5 or alert.waits_less


def test_the_expression_compares_and_matches_explicitly(alert: Alert) -> None:
    """No topk, no bare counter, no match on all labels by chance."""
    expression = alert_rule(alert)["expr"]

    assert re.search(r"[<>=!]=|[<>]|unless", expression)
    # Whether there is a collector at all, and how many deployments there are, concerns every deployment.
    assert not re.search(r"topk|bottomk|on \(\)(?! \((?:servescope_build_info|count))", expression)
    assert not re.search(r"\b(?:and|or|unless|/|[<>]=?) (?=deployment:)(?!on)", expression)
    assert not re.search(r"_total(?:{[^}]*})?(?!\w|{|\[)", expression)


def test_ratios_carry_a_floor_of_traffic(alert: Alert) -> None:
    """A share, or a latency, of next to nothing says nothing."""
    absent_when_idle = {name for name, figure in FIGURES.items() if figure.idle == "absent"}
    needs_traffic = any(
        isinstance(term, BadRatio) or (isinstance(term, FigureRef) and term.figure in absent_when_idle)
        for term in terms(alert.condition)
    )
    floors = (
        f"rate(spec_decode_num_draft_tokens_total[5m])))) >= {DRAFT_TRAFFIC.value:g}",
        f"rate(kv_cache_eligible_tokens_total[5m])))) >= {PROMPT_TRAFFIC.value:g}",
        f"deployment:requests:rate5m >= {COMPARED_TRAFFIC.value:g}",
        f"deployment:requests:rate5m >= {ABORTS_TRAFFIC.value:g}",
        f"avg_over_time(deployment:requests:rate5m[8m]) >= {ANSWERS_TRAFFIC.value:g}",
        f"deployment:concurrent_requests:sum >= {HANGING_FLOOR.value:g}",
        f"rate(time_per_output_token_seconds_count[5m])))) >= {SLOW_TRAFFIC.value:g}",
        f"avg_over_time(deployment:requests:rate5m[1h] offset 30m) >= {UNANSWERED_RATE.value:g}",
        f"deployment:requests:increase1h) >= {BAD_REQUESTS.value:g}",
        f"deployment:requests:increase1d) >= {BAD_REQUESTS.value:g}",
    )

    assert not needs_traffic or any(floor in alert_promql(alert) for floor in floors)


def test_a_per_cent_sign_has_one_form() -> None:
    """With a space before it, as in the console: in values, in bounds and in objectives."""
    text = render_alert_rules(DEFAULTS)
    values = [each for each in re.findall(r"{{ \$value \|[^}]*}}", text) if "Percentage" in each]

    assert values
    assert {each.replace('printf "%.2g" | ', "") for each in values} == {PERCENT}
    assert re.findall(r"\d%", text) == []


@pytest.mark.parametrize(
    ("name", "threshold", "text"),
    [
        ("ServescopeSpeculationBelowBreakEven", SPECULATION_BAND.steps[0], "40 %"),
        ("ServescopeCacheEventsMissed", SKEW_BAND.steps[0], "-15 %"),
        ("ServescopeCacheChurn", SKEW_BAND.steps[-1], "+30 %"),
        ("ServescopeRoutingInefficient", EFFICIENCY_BAND.steps[0], "90 %"),
    ],
)
def test_a_bands_number_is_the_same_everywhere(name: str, threshold: Step, text: str) -> None:
    """In the catalog, the rule, the runbook and what the notification says."""
    alert = ALERTS[name]

    assert f" {threshold.start:g}" in alert_rule(alert)["expr"]
    assert f" {threshold.start:g}" in (GENERATED / "runbooks" / f"{name}.md").read_text(encoding="utf-8")
    assert text in alert.description or text in alert.runbook.meaning


def test_every_recorded_series_that_is_read_is_recorded() -> None:
    """No rule reads a series that nothing writes, and every objective's share is read."""
    files = (*RECORDING_FILES, "alerting.rules.yml")
    documents = [read_yaml((GENERATED / name).read_text(encoding="utf-8")) for name in files]
    rules = [rule for document in documents for group in document["groups"] for rule in group["rules"]]
    recorded = [rule["record"] for rule in rules if is_of_catalog(rule)]
    read = {name for rule in rules for name in re.findall(r"\bdeployment:\w+:\w+", rule["expr"])}

    assert len(recorded) == len(set(recorded))
    assert read <= set(recorded)
    assert {rule["record"] for rule in objective_group()["rules"]} <= read
    assert all(re.fullmatch(r"deployment:\w+:\w+", name) for name in recorded)


def test_the_table_of_burn_rates_is_the_known_one() -> None:
    """Four rows, from quick and steep to slow and even; the short window is a twelfth of the long one."""
    assert [row.factor for row in BURN_WINDOWS] == sorted((row.factor for row in BURN_WINDOWS), reverse=True)
    assert all(minutes(first.long) < minutes(second.long) for first, second in pairwise(BURN_WINDOWS))
    assert all(minutes(row.long) == 12 * minutes(row.short) for row in BURN_WINDOWS)
    assert {name: objective.budget for name, objective in OBJECTIVES.items()} == {
        "time_to_first_token": 0.01,
        "time_per_output_token": 0.01,
        "inter_token_latency": 0.01,
        "requests": 0.001,
    }


@pytest.mark.slow
@pytest.mark.parametrize("version", ["prometheus", pytest.param("prometheus_3", marks=pytest.mark.proof)])
def test_prometheus_answers_every_query_of_every_runbook(
    request: pytest.FixtureRequest, tmp_path: Path, version: str
) -> None:
    """A query that a runbook gives can be executed."""
    queries = {query for alert in ALERTS.values() for query in (*queries_of(alert), alert_promql(alert))}

    with running(request.getfixturevalue(version), tmp_path, {}) as prometheus:
        answers = {query: prometheus.query(query, at_ms=1_000_000) for query in sorted(queries)}

    assert len(answers) > len(ALERTS)
    assert {query for query, answer in answers.items() if answer} == {
        alert_promql(ALERTS[name]) for name in ("ServescopeWatchdog", "ServescopeCollectorGone")
    }


@pytest.mark.parametrize("name", FILES)
def test_promtool_finds_nothing_to_criticise(both_promtools: Path, name: str) -> None:
    """With every lint fatal, on both versions."""
    command = [str(both_promtools), "check", "rules", "--lint=all", "--lint-fatal", str(GENERATED / name)]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_bundles_hold_every_rule() -> None:
    """For the operator, Thanos and Mimir: the same rules in the same order, in their envelopes."""
    plain = read_yaml(render_bundle("prometheus"))["groups"]
    count = sum(len(read_yaml(write(DEFAULTS))["groups"][0]["rules"]) for write in list(FILES.values())[:-1])
    operator = read_yaml(render_bundle("prometheusrule"))
    mimir = read_yaml(render_bundle("mimir"))

    assert sum(len(group["rules"]) for group in plain) == count + len(ALERTS)
    assert (operator["kind"], operator["spec"]["groups"]) == ("PrometheusRule", plain)
    assert mimir["namespace"] == "servescope"
    assert sorted(map(str, _rules(mimir["groups"]))) == sorted(map(str, _rules(plain)))
    thanos = read_yaml(render_bundle("thanos"))["groups"]
    assert thanos == [{**group, "partial_response_strategy": "abort"} for group in plain]


@pytest.mark.slow
@pytest.mark.parametrize("form", get_args(Format))
def test_a_document_says_what_is_needed_to_keep_alerts_firing(form: Format) -> None:
    """Each has `keep_firing_for`, and the first version that knows it at its beginning."""
    header, needed = render_bundle(form).splitlines()[:2]

    assert header == HEADER.rstrip()
    assert re.fullmatch(r"# Needs [\w ,.]*\d[\w ,.]*: earlier ones lack `keep_firing_for`, .*", needed)
    assert "keep_firing_for:" in render_bundle(form)


def _rules(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.slow
def test_mimir_takes_each_group_and_may_evaluate_it_anywhere() -> None:
    """Within Mimir's default limits of rules and groups; no recording rule reads what another group records."""
    groups = read_yaml(render_bundle("mimir", tenants=("team-a", "team-b")))["groups"]

    assert max(len(group["rules"]) for group in groups) <= 20
    assert len(groups) <= 70
    assert len({group["name"] for group in groups}) == len(groups)
    assert all(group["source_tenants"] == ["team-a", "team-b"] for group in groups)
    for group in groups:
        before: set[str] = set()
        for rule in group["rules"]:
            if "record" in rule:
                assert set(re.findall(r"deployment:\w+:\w+", rule["expr"])) <= before, rule["record"]
                before.add(rule["record"])


def test_rules_that_belong_together_are_not_divided() -> None:
    """What is read stays before the rule that reads it, whichever other rules are between them."""
    rules = [
        {"record": "a:x:sum", "expr": "sum(x)"}, {"record": "a:y:sum", "expr": "sum(y)"},
        {"record": "a:x:twice", "expr": "2 * a:x:sum"}, {"alert": "Z", "expr": "z > 1"},
    ]  # fmt: skip

    groups = divide({"name": "g", "interval": "15s", "rules": rules}, most=2)

    assert [group["name"] for group in groups] == ["g-1", "g-2"]
    assert sorted([rule["expr"] for rule in group["rules"]] for group in groups) == [
        ["sum(x)", "2 * a:x:sum"], ["sum(y)", "z > 1"],
    ]  # fmt: skip
    assert divide({"name": "g", "rules": rules}, most=4)[0]["name"] == "g"


@pytest.mark.slow
def test_rules_of_victoriametrics_have_the_gains_of_prometheus() -> None:
    """They are all rules, and no `rate` or `increase` of MetricsQL's own is left."""
    plain, theirs = (read_yaml(render_bundle(form))["groups"] for form in ("prometheus", "victoriametrics"))
    expressions = [rule["expr"] for group in theirs for rule in group["rules"]]

    assert [[{**rule, "expr": ""} for rule in group["rules"]] for group in plain] == [
        [{**rule, "expr": ""} for rule in group["rules"]] for group in theirs
    ]
    assert not any(re.search(r"\b(rate|increase|changes)\(", expression) for expression in expressions)
    assert metricsql("changes(a[1h]) > 3", "15s") == "changes_prometheus(a[1h]) > 3"
    assert metricsql("sum(increase(a_total[1h])) > 2", "1m") == "sum(increase_prometheus(a_total[1h1m])) > 2"
    # When a sample was, of a series that is still there.
    assert metricsql('timestamp(a{x="y"})', "15s") == '(timestamp(a{x="y"}[5m]) and default_rollup(a{x="y"}[5m]))'
    rate = 'sum(rate(a_total{x="y"}[5m])) > 2'
    assert metricsql(rate, "15s") == 'sum((increase_prometheus(a_total{x="y"}[5m15s]) / 300)) > 2'


# --- Alertmanager -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_alert_reaches_its_receiver(amtool: Path, alert: Alert) -> None:
    """Page, ticket, chat, or the one who expects the Watchdog."""
    labels = {**dict.fromkeys(labels_of(alert.condition), "x"), "alertname": alert.name, **alert.labels}
    command = [
        str(amtool), "config", "routes", "test", f"--config.file={GENERATED / 'alertmanager.yml'}",
        f"--verify.receivers={RECEIVERS[alert.severity]}", *(f"{key}={value}" for key, value in labels.items()),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_what_mutes_has_every_label_that_must_be_equal() -> None:
    """Labels missing on both sides are equal: every alert on either side of an inhibition has those it names."""
    for rule in inhibitions():
        sources = [each for each in ALERTS.values() if _is_matched(each, rule["source_matchers"])]
        targets = [each for each in ALERTS.values() if _is_matched(each, rule["target_matchers"])]

        assert sources
        assert targets
        for source in sources:
            assert set(rule.get("equal", ())) <= _labels_of_alert(source), source.name
        for target in targets:
            # One without the deployment's name is never equal to a source, whose name is never empty.
            missing = set(rule.get("equal", ())) - _labels_of_alert(target)
            assert not missing or "deployment_id" in missing, target.name


def test_information_and_the_watchdog_call_nobody() -> None:
    """Neither goes to the page or the ticket; the watchdog is repeated by the minute."""
    routes: list[dict[str, Any]] = configuration()["route"]["routes"]
    by_severity = {route["matchers"][0]: route for route in routes}

    assert by_severity['severity="info"']["receiver"] == "chat"
    assert by_severity['severity="none"']["receiver"] == "watchdog"
    assert by_severity['severity="none"']["repeat_interval"] == "1m"


def test_notifications_are_grouped_by_deployment() -> None:
    """One for all alerts and replicas of a deployment, none for two deployments; each wait of a group is set."""
    route = configuration()["route"]
    of_severities = [each for each in route["routes"] if each["receiver"] != "watchdog"]

    assert route["group_by"] == ["model_name", "deployment_id", "inference_stack", "environment"]
    for each in of_severities:
        assert "group_by" not in each
        (of_none,) = each["routes"]
        assert of_none["matchers"] == ['deployment_id=""']
        assert of_none["group_by"] == ["component", "model_name", "environment", "plan"]
    assert {"group_wait", "group_interval", "repeat_interval"} <= route.keys()
    assert all("repeat_interval" in each for each in route["routes"])


def test_only_a_page_mutes_a_page() -> None:
    """Whatever the severity of an alert is made by options."""
    for rule in inhibitions():
        is_of_pages = 'severity="critical"' in rule["source_matchers"]
        assert is_of_pages or 'severity=~"warning|info"' in rule["target_matchers"], rule


def test_no_secret_stands_in_the_configuration() -> None:
    """Only the files they are in."""
    text = (GENERATED / "alertmanager.yml").read_text(encoding="utf-8")

    assert text.count("credentials_file: /etc/alertmanager/secrets/") == len(RECEIVERS)
    assert not re.search(r"credentials:|password:|api_url:", text)


def _labels_of_alert(alert: Alert) -> set[str]:
    return {*labels_of(alert.condition), *alert.labels, "alertname"}


def _is_matched(alert: Alert, matchers: list[str]) -> bool:
    values = {"deployment_id": "", **dict.fromkeys(labels_of(alert.condition), "x"), **alert.labels}
    values["alertname"] = alert.name
    for matcher in matchers:
        found = re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', matcher)
        assert found is not None, matcher
        name, operator, value = found.groups()
        is_equal = re.fullmatch(value, values[name]) is not None
        if is_equal == (operator == "!="):
            return False
    return True
