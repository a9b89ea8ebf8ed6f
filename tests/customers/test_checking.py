"""`servescope customers check`: exactly what a customer would receive, why the rest is withheld, and what changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servescope.cli import main
from tests.support.customer_store import write_store
from tests.support.customers_config import CUSTOMERS, write_customers

RATIO = "a ratio, of which there is no sum over several series; take the figure 'kv_cache_usage'"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_customers(tmp_path)
    write_store(tmp_path / "servescope.db")
    return tmp_path


def run(folder: Path, *options: str) -> int:
    named = ["check", "--config", str(folder / "customers.toml"), "--store", str(folder / "servescope.db")]
    return main(["customers", *named, *options])


def test_every_series_is_received_or_withheld_with_its_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under the customer's names; what another customer has is not mentioned."""
    path = folder / "customers.toml"
    path.write_text(CUSTOMERS.replace('"outcome", "replica"]', '"outcome", "replica"]\nreplicas = "plain"').replace(
        'replica_key_file = "acme.key"\n', ""), encoding="utf-8")  # fmt: skip
    assert run(folder, "--customer", "acme") == 0
    out = capsys.readouterr().out

    assert out == (Path(__file__).parent / "check_acme.txt").read_text(encoding="utf-8")
    assert "search" not in out


def test_a_summary_counts_by_metric_and_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names no series."""
    assert run(folder, "--summary") == 0
    out = capsys.readouterr().out

    assert "    time_to_first_token_seconds: 10\n" in out
    assert "    router_index_state: 2: the metric is not listed under metrics\n" in out
    assert "customer globex" in out
    assert "{" not in out


def test_what_a_change_adds_and_removes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rename is both; a customer that stays as it is is left out."""
    (folder / "old.toml").write_text((folder / "customers.toml").read_text())
    assert run(folder, "--diff", str(folder / "old.toml")) == 0
    assert capsys.readouterr().out == "every customer would receive what it receives now\n"
    (folder / "customers.toml").write_text(
        CUSTOMERS.replace('["requests_total"]', '["requests_total", "queued_requests"]\nlabels = ["model_name"]')
    )
    assert run(folder, "--diff", str(folder / "old.toml")) == 0

    assert capsys.readouterr().out == (
        "customer globex: 2 added, 1 removed\n"
        "- requests_total\n"
        '+ queued_requests{model_name="llama"}\n'
        '+ requests_total{model_name="llama"}\n'
    )


def test_json_has_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For machines."""
    assert run(folder, "--format", "json", "--customer", "globex") == 0
    (globex,) = json.loads(capsys.readouterr().out)

    assert (globex["customer"], globex["series"], globex["samples_per_minute"]) == ("globex", 1, 1.0)
    assert globex["received"] == [{"text": "requests_total", "kind": "counter", "series": 1, "sources": 1}]
    assert {"text": 'kv_cache_usage{deployment_id="search",engine="0",inference_stack="v2",model_name="llama",'
            'replica="pod-1",role="aggregated"}',
            "reason": RATIO} in globex["withheld"]  # fmt: skip


def test_a_figure_that_would_repeat_a_metric_is_withheld_as_such(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group of figures has some that are metrics as well."""
    text = CUSTOMERS.replace('["requests_total"]', '["queued_requests"]\nfigures = ["all"]')
    (folder / "customers.toml").write_text(text)
    assert run(folder, "--summary", "--customer", "globex") == 0

    out = capsys.readouterr().out
    assert "    queued_requests: 1\n" in out
    assert "    queued_requests: 1: the metric of that name is exported, which it would only repeat\n" in out


def test_wrong_arguments_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown customer, an old configuration that is wrong."""
    assert run(folder, "--customer", "initech") == 2
    assert capsys.readouterr().err == "servescope: error: no customer 'initech', known: acme, globex\n"
    (folder / "old.toml").write_text("customers = 1\n")
    assert run(folder, "--diff", str(folder / "old.toml")) == 2
    assert "old.toml: customers: 1 is wrong, expected tables [[customers]]" in capsys.readouterr().err
