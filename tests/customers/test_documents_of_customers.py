"""What a customer is given: a document, a dashboard and alerts, with its names and nothing that it does not receive."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servescope.cli import main
from servescope.contract.identity import Deployment
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.customers.config import read_policies
from servescope.customers.documents.documents import make_bundles, render_document, render_files
from servescope.customers.documents.explaining import explain_snapshot
from servescope.customers.points.naming import describe_metric
from servescope.customers.policy.policy import Naming, Policy, Push
from servescope.customers.stored_names import TRANSLATIONS
from tests.customers.support.customer_points import push_to
from tests.customers.support.tenants import LOOK_ALIKES
from tests.support.customer_edges import fleet
from tests.support.customers_config import write_customers
from tests.support.documents import read_yaml
from tests.support.promtool import run


@pytest.fixture
def acme(tmp_path: Path) -> Policy:
    policy, _ = read_policies(write_customers(tmp_path))
    return policy


def alerts_of(policy: Policy) -> str:
    """The rules for its page, which is the only one of its destinations that answers PromQL."""
    (bundle,) = make_bundles(policy)
    return bundle.alerts


def queries(policy: Policy) -> Mapping[str, str]:
    """The query of each panel by its title."""
    (bundle,) = make_bundles(policy)
    panels = json.loads(bundle.dashboard)["panels"]
    return {panel["title"]: panel["targets"][0]["expr"] for panel in panels if panel["type"] == "timeseries"}


def test_the_document_lists_what_is_received_under_the_customers_names(acme: Policy) -> None:
    """Every metric, figure and label once; nothing else, and nothing of other customers."""
    text = render_document(acme)
    rows = [line.split("|")[1].strip(" `") for line in text.splitlines() if line.startswith("| `")]

    assert [row for row in rows if row in acme.metrics] == list(acme.metrics)
    assert {"service", "pod", "model_name", "outcome", "replica_key", "window"} <= set(rows)
    assert len(rows) == len(acme.metrics) + len(acme.figures) + 6
    assert "| `requests_total` | counter | requests | `outcome` | 5 |" in text
    assert "search" not in text
    assert "globex" not in text


def test_a_secret_in_a_url_is_not_shown(acme: Policy) -> None:
    """Some backends want their token in the query."""
    (push,) = acme.push
    text = render_document(replace(acme, push=(replace(push, url="https://a.example/v1/metrics?key=hunter2"),)))

    assert "`https://a.example/v1/metrics`" in text
    assert "hunter2" not in text


def test_the_dashboard_has_what_can_be_seen_of_the_metrics(acme: Policy) -> None:
    """Renamed metrics and labels, figures as they are exported, and no panel that would stay empty."""
    renamed = replace(acme, naming=Naming.PREFIX, prefix="acme_", renames={**acme.renames, "outcome": "result"})
    found = queries(renamed)

    assert found["Errors"].startswith('sum by (service, model_name) (rate(acme_requests_total{result="error"}[')
    assert found["Time to first token, p95"] == "acme_time_to_first_token_seconds_p95"
    assert "KV cache hit rate" not in found  # of the router only one counter is exported
    assert "Errors" not in queries(replace(acme, labels=("deployment_id", "replica"), renames={}))


def test_the_alerts_are_of_objectives_whose_metrics_are_exported(acme: Policy) -> None:
    """With windows in which each rate has some points."""
    text = alerts_of(acme)
    assert "AcmeTimeToFirstTokenBudgetBurn" in text
    assert "AcmeRequestsBudgetBurn" in text
    assert "[5m]" in text
    assert "[5m]" not in alerts_of(replace(acme, interval_ms=300_000))
    assert "BudgetBurn" not in alerts_of(replace(acme, metrics=("queued_requests",)))


def test_promtool_accepts_all_that_is_asked(acme: Policy, promtool: Path, tmp_path: Path) -> None:
    """The queries of panels are rules here."""
    rules: list[dict[str, Any]] = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries(acme).values())
    ]
    (tmp_path / "panels.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    (tmp_path / "alerts.yml").write_text(alerts_of(acme))
    (tmp_path / "empty.yml").write_text(alerts_of(replace(acme, metrics=(), figures=("request_rate",))))
    done = run(promtool, ["check", "rules", "--lint-fatal", "panels.json", "alerts.yml", "empty.yml"], tmp_path)

    assert done.returncode == 0, done.stdout
    assert len(rules) > 15


def test_all_three_files_are_written_of_any_policy(acme: Policy) -> None:
    """Also of one with figures alone."""
    files = render_files(replace(acme, metrics=()))

    assert sorted(files) == ["README.md", "alerts.yml", "dashboard.json"]
    assert describe_metric(acme, "requests_total").family not in files["dashboard.json"]


BY_OTLP = push_to("https://otlp.example/v1/metrics")


def to_backends(policy: Policy, *backends: str) -> Policy:
    """The policy with a destination for each of these, and no page."""
    pushes = [replace(BY_OTLP, name=name, stores_names_as=name) for name in backends]  # type: ignore[arg-type]
    return replace(policy, push=tuple(pushes), pull=None)


def test_there_is_a_dashboard_for_each_set_of_names(acme: Policy) -> None:
    """The page and remote write have the same; each backend of OTLP makes others, by which the files are called."""
    sent = replace(push_to("https://p.example/api/v1/write", protocol="remote-write"), name="primary")
    assert sorted(render_files(replace(acme, push=(sent,)))) == ["README.md", "alerts.yml", "dashboard.json"]

    files = render_files(replace(to_backends(acme, *TRANSLATIONS), pull=acme.pull))
    assert [name for name in files if name.startswith("dashboard")] == [
        *(f"dashboard-{name}.json" for name in TRANSLATIONS),
        "dashboard-pull.json",
    ]
    boards = [json.loads(text) for name, text in files.items() if name.startswith("dashboard")]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(boards)
    assert "- `dashboard-mimir.json` and `alerts-mimir.yml` have the names that are stored at `mimir`." in (
        files["README.md"].splitlines()
    )


@pytest.mark.parametrize(
    ("push", "why"),
    [
        (replace(BY_OTLP, stores_names_as="other"), "it has names and queries of its own"),
        (replace(BY_OTLP, temporality="delta"), "a rate of PromQL is of cumulative points, and it is sent deltas"),
    ],
    ids=["no PromQL", "deltas"],
)
def test_no_dashboard_is_claimed_where_its_queries_would_find_nothing(acme: Policy, push: Push, why: str) -> None:
    """The document says so, and has the names that are sent."""
    files = render_files(replace(acme, naming=Naming.OTEL, push=(push,), pull=None))

    assert [*files] == ["README.md"]
    assert f"- There is no dashboard for `push`, as {why}; it has the names of the tables above." in files["README.md"]
    assert "| `servescope.time_to_first_token` | histogram | seconds |" in files["README.md"]
    assert "## Names at" not in files["README.md"]


def test_names_with_dots_are_quoted_where_they_are_stored_so(acme: Policy) -> None:
    """Elsewhere they have none."""
    otel = replace(acme, naming=Naming.OTEL, renames={})

    assert queries(to_backends(otel, "victoriametrics"))["Errors"].startswith(
        'sum by ("service.name", "servescope.model_name") (rate({"servescope.requests",outcome="error"}['
    )
    assert queries(to_backends(otel, "victoriametrics-prometheus"))["Errors"].startswith(
        'sum by (service_name, servescope_model_name) (rate(servescope_requests_total{outcome="error"}['
    )
    assert queries(to_backends(otel, "prometheus"))["Errors"].startswith(
        'sum by (job) (rate(servescope_requests_total{outcome="error"}['
    )


def test_the_document_lists_each_name_that_is_stored_as_another(acme: Policy) -> None:
    """And those labels that no series has, which are of the resource."""
    text = render_document(replace(to_backends(acme, "prometheus"), naming=Naming.OTEL, renames={}))
    stored = text.partition("## Names at `prometheus`")[2].partition("##")[0]

    for row in (
        "| `servescope.time_to_first_token` | `servescope_time_to_first_token_seconds` |",
        "| `servescope.requests` | `servescope_requests_total` |",
        "| `service.name` | `job` |",
        "| `service.instance.id` | `instance` |",
        "| `servescope.model_name` | in `target_info`, not on series |",
    ):
        assert row in stored  # fmt: skip
    assert "outcome" not in stored


def test_a_deployment_that_falls_silent_has_an_alert_of_its_own(acme: Policy, promtool: Path, tmp_path: Path) -> None:
    """Which names it; those that go on, and deployments in another phase of a rollout, have none."""
    chat = next(iter(acme.deployments))
    silent = [replace(chat, deployment_id="search", rollout_phase=phase) for phase in ("", "stable")]
    text = alerts_of(replace(acme, deployments=acme.deployments | {*silent}))
    labels = 'service="chat",model_name="llama"'
    rules = read_yaml(text)["groups"][0]["rules"]
    assert len([rule for rule in rules if rule["alert"] == "AcmeMetricsMissing"]) == 2
    (tmp_path / "alerts.yml").write_text(text)
    summary = "no concurrent_requests of llama search arrived for 5m; ask the provider for a delivery statement"
    expected = {
        "exp_labels": {"severity": "warning", "service": "search", "model_name": "llama"},
        "exp_annotations": {"summary": summary},
    }
    case = {
        "interval": "1m",
        "input_series": [{"series": f"concurrent_requests{{{labels}}}", "values": "1x30"}],
        "alert_rule_test": [{"eval_time": "20m", "alertname": "AcmeMetricsMissing", "exp_alerts": [expected]}],
    }
    (tmp_path / "test.json").write_text(
        json.dumps({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [case]})
    )
    done = run(promtool, ["test", "rules", "test.json"], tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_deployments_may_have_any_name(acme: Policy, promtool: Path, tmp_path: Path) -> None:
    """Each is asked for by its own: quotes, patterns, separators of lines and characters beyond the basic plane."""
    deployments = frozenset(Deployment("llama", name, "v2") for name in LOOK_ALIKES)
    text = alerts_of(replace(acme, deployments=deployments, labels=("deployment_id",)))
    rules = read_yaml(text)["groups"][0]["rules"]
    asked = [rule["expr"] for rule in rules if rule["alert"] == "AcmeMetricsMissing"]
    named = [re.fullmatch(r'absent_over_time\(concurrent_requests\{service="(.*)"\}\[5m\]\)', each) for each in asked]
    (tmp_path / "alerts.yml").write_text(text, encoding="utf-8")

    assert {re.sub(r"\\(.)", r"\1", each[1]) for each in named if each} == {*LOOK_ALIKES}
    assert run(promtool, ["check", "rules", "alerts.yml"], tmp_path).returncode == 0


def test_of_figures_alone_silence_is_noticed_too(acme: Policy) -> None:
    """By one that is 0 while a deployment is idle; not by one that is absent then."""
    assert "absent_over_time(request_rate{" in alerts_of(replace(acme, metrics=(), figures=("request_rate",)))
    assert "MetricsMissing" not in alerts_of(replace(acme, metrics=(), figures=("time_to_first_token_p95",)))


def test_a_document_names_no_deployment_that_the_policy_withholds(acme: Policy) -> None:
    """Neither in its text nor in a query; of several deployments, what is exported of each distinguishes them."""
    policy = replace(to_backends(acme, *TRANSLATIONS), labels=("environment",), resolution="deployment", renames={})
    text = "".join(render_files(policy).values())

    assert "chat" not in text
    assert "chat" in "".join(render_files(replace(policy, labels=("deployment_id",))).values())
    assert "The resource in OTLP has `service.name` in any case: `prod`." in text
    assert "in any case: `acme`." in render_document(replace(policy, labels=()))


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or prints the document."""
    config = write_customers(tmp_path)
    assert main(["customers", "document", "globex", "--config", str(config)]) == 0
    printed = capsys.readouterr().out
    assert main(["customers", "document", "globex", "--config", str(config), "--output", str(tmp_path / "out")]) == 0

    assert (tmp_path / "out" / "README.md").read_text() == printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "alerts.yml", "dashboard.json"]


def test_how_much_of_its_window_a_figure_has_is_none_that_is_withheld(acme: Policy) -> None:
    """A deployment whose window fills is explained as any other."""
    deployment = next(iter(acme.deployments))
    figures = {deployment: {FILLED_SERIES: 0.2, "kv_cache_hit_rate": 0.5}}
    withheld = explain_snapshot(acme, fleet(figures=figures)).withheld

    assert any("kv_cache_hit_rate" in each.text for each in withheld)
    assert not any(FILLED_SERIES in each.text for each in withheld)
