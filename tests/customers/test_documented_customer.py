"""The first customer of docs/customers.md: as it is written there, it is checked, tried and delivered to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Snapshot, make_labels
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.conftest import ROOT
from tests.support.commands import run
from tests.support.customer_edges import T0
from tests.support.customer_store import ENGINE_PAGE
from tests.support.otlp_receiver import Receiver

CHAT = Identity("llama", "chat", "v2", replica="pod-1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's two files, and a store in which its deployment was scraped once."""
    text = (ROOT / "docs" / "customers.md").read_text(encoding="utf-8")
    for name in ("servescope.toml", "customers.toml"):
        (block,) = re.findall(rf"(?ms)^```toml\n# {re.escape(name)}\b.*?\n(.*?)^```", text)
        (tmp_path / name).write_text(block, encoding="utf-8")
    with Store(tmp_path / "servescope.db") as store:
        store.set_target(TargetStatus(CHAT.target_id, "http://10.0.0.7:8000/metrics", CHAT, healthy=True))
        samples = [
            Sample(name, make_labels((*labels, *CHAT.labels())), seen.value)
            for (name, labels), seen in ENGINE_PAGE.items()
        ]
        store.append_scrape(CHAT.target_id, T0, Snapshot.of(samples))
        store.append_figures(CHAT.deployment(), T0, {"request_rate": 3.0, "time_to_first_token_p95": 0.4})
    return tmp_path


def test_it_takes_ten_lines(folder: Path) -> None:
    """Of a configuration that a reader types."""
    lines = (folder / "customers.toml").read_text(encoding="utf-8").splitlines()

    assert len([line for line in lines if line.strip()]) <= 10


def test_check_prints_what_it_receives(folder: Path) -> None:
    """Under its own names, summed over replicas, with a reason for the rest."""
    done = run(
        "customers", "check", "--config", str(folder / "customers.toml"), "--store", str(folder / "servescope.db")
    )

    assert done.returncode == 0, done.stderr
    assert 'requests_total{model_name="llama",outcome="ok",service="chat"}' in done.stdout
    assert "pod-1" not in done.stdout.partition("withheld")[0]
    assert re.search(r"request_rate\{.*\}: the figure is not listed under figures", done.stdout)


def test_test_reaches_a_receiver(folder: Path) -> None:
    """The destination needs no more than its protocol and address."""
    config = folder / "customers.toml"
    with Receiver() as receiver:
        written = config.read_text(encoding="utf-8")
        config.write_text(written.replace("http://127.0.0.1:4318", receiver.url), encoding="utf-8")
        done = run("customers", "test", "acme", "--config", str(config))

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(receiver.requests) == 1
