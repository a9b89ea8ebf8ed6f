"""What a customer is given: a document, a dashboard and alerts, with its names and nothing that it does not receive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servescope.cli import main
from servescope.customers.bundle import render_alerts, render_dashboard
from servescope.customers.config import read_policies
from servescope.customers.documents import render_document, render_files
from servescope.customers.naming import describe_metric
from servescope.customers.policy import Naming, Policy
from tests.support.customers_config import write_customers
from tests.support.promtool import run


@pytest.fixture
def acme(tmp_path: Path) -> Policy:
    policy, _ = read_policies(write_customers(tmp_path))
    return policy


def queries(policy: Policy) -> Mapping[str, str]:
    """The query of each panel by its title."""
    panels = json.loads(render_dashboard(policy))["panels"]
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
    text = render_alerts(acme)
    assert "AcmeTimeToFirstTokenBudgetBurn" in text
    assert "AcmeRequestsBudgetBurn" in text
    assert "[5m]" in text
    assert "[5m]" not in render_alerts(replace(acme, interval_ms=300_000))
    assert "BudgetBurn" not in render_alerts(replace(acme, metrics=("queued_requests",)))


def test_promtool_accepts_all_that_is_asked(acme: Policy, promtool: Path, tmp_path: Path) -> None:
    """The queries of panels are rules here."""
    rules: list[dict[str, Any]] = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries(acme).values())
    ]
    (tmp_path / "panels.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    (tmp_path / "alerts.yml").write_text(render_alerts(acme))
    (tmp_path / "empty.yml").write_text(render_alerts(replace(acme, metrics=(), figures=("request_rate",))))
    done = run(promtool, ["check", "rules", "panels.json", "alerts.yml", "empty.yml"], tmp_path)

    assert done.returncode == 0, done.stdout
    assert len(rules) > 15


def test_all_three_files_are_written_of_any_policy(acme: Policy) -> None:
    """Also of one with figures alone."""
    files = render_files(replace(acme, metrics=()))

    assert sorted(files) == ["README.md", "alerts.yml", "dashboard.json"]
    assert describe_metric(acme, "requests_total").family not in files["dashboard.json"]


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or prints the document."""
    config = write_customers(tmp_path)
    assert main(["customers", "document", "globex", "--config", str(config)]) == 0
    printed = capsys.readouterr().out
    assert main(["customers", "document", "globex", "--config", str(config), "--output", str(tmp_path / "out")]) == 0

    assert (tmp_path / "out" / "README.md").read_text() == printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "alerts.yml", "dashboard.json"]
