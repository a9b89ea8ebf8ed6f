"""Allow-lists of customers' deployments: which are demanded and refused, and what is said of what is withheld."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from servescope.collector.targets.claims import Claim, Claims
from servescope.contract.identity import Deployment
from servescope.contract.samples import make_labels
from servescope.customers.config import read_policies
from servescope.customers.lanes.claimed_past import Claimants
from servescope.customers.lanes.cursors import LaneId
from servescope.customers.lanes.telemetry import CustomersTelemetry
from servescope.customers.policy.policy import Policy
from servescope.errors import ConfigurationError
from servescope.settings.addresses import read_pattern
from servescope.settings.clock import ProgramClock
from tests.support.answering import Handler, answering
from tests.support.commands import run
from tests.support.customers_config import COLLECTOR, write_customers

CHAT = Deployment("llama", "chat", "v2")
SEARCH = Deployment("llama", "search", "v2")


def write(folder: Path, chat: str, search: str) -> Path:
    """The customers of two deployments, with these lines in the collector's tables of them."""
    path = write_customers(folder)
    first, _, rest = COLLECTOR.partition("fixed_labels = true\n")
    middle, _, end = rest.partition("fixed_labels = true\n")
    text = f"{first}fixed_labels = true\n{chat}\n{middle}fixed_labels = true\n{search}\n{end}"
    (folder / "servescope.toml").write_text(text, encoding="utf-8")
    return path


def claims(**lists: list[str]) -> str:
    return f"claims = {{ {', '.join(f'{key} = {json.dumps(values)}' for key, values in lists.items())} }}"


LISTED = 'file_sd = [{ files = ["x.json"] }]'
A, B, BOTH = ["10.0.1.0/24:8000"], ["10.0.2.0/24:8000"], ["10.0.0.0/16:*"]


@pytest.mark.parametrize("listed", [LISTED, 'http_sd = [{ url = "http://inventory.example/" }]'])
def test_a_deployment_with_lists_needs_the_addresses_that_are_its_own(tmp_path: Path, listed: str) -> None:
    """The error names what to add; jobs and namespaces, which a collector does not know, do not suffice."""
    for lacking in ("", claims(jobs=["engines"])):
        with pytest.raises(ConfigurationError, match=r"deployment_id='chat'.*lists of targets could name another's.*"):
            read_policies(write(tmp_path, f"{lacking}\n{listed}", ""))
    assert len(read_policies(write(tmp_path, f"{claims(targets=A)}\n{listed}", ""))) == 2
    assert len(read_policies(write(tmp_path, "", ""))) == 2


@pytest.mark.parametrize(
    ("chat", "search", "refused"),
    [
        (claims(targets=A), claims(targets=B), False),
        (claims(targets=A), claims(targets=BOTH), True),
        (claims(targets=A, namespaces=["a"]), claims(targets=BOTH, namespaces=["b"]), False),
        # A collector reads addresses alone.
        (f"{claims(targets=A, namespaces=['a'])}\n{LISTED}", claims(targets=BOTH, namespaces=["b"]), True),
        (claims(jobs=["x"]), claims(jobs=["x", "y"]), True),
        (claims(collectors=["c:9900"]), claims(collectors=["c:9900"]), False),
    ],
)
def test_nothing_may_claim_deployments_of_two_customers(tmp_path: Path, chat: str, search: str, refused: bool) -> None:
    """Nor of a customer whose own table cannot be used."""
    path = write(tmp_path, chat, search)
    if not refused:
        assert len(read_policies(path)) == 2
        return
    with pytest.raises(ConfigurationError, match=r"claim both .*'search'.* and .*'chat'.* of customer 'acme'"):
        read_policies(path)
    with pytest.raises(ConfigurationError, match="claim both"):
        read_policies(path, removed={"globex": 1})


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_prometheus_is_read_with_allow_lists_only(tmp_path: Path, verb: str) -> None:
    """The error says which deployment of whom lacks one, and what to add; a store needs none."""
    path = write(tmp_path, claims(targets=A), "")

    def answer(handler: Handler) -> None:
        handler.reply(200, json.dumps({"status": "success", "data": []}))

    with answering(answer) as url:
        done = run("customers", verb, "--config", str(path), "--prometheus", url)

    assert done.returncode == 2
    assert "servescope.toml: model_name='llama', deployment_id='search', inference_stack='v2' of customer 'globex'" in (
        done.stderr
    )
    assert "has no [deployments.claims]" in done.stderr
    assert "list which targets, collectors, jobs, namespaces or clusters may claim it" in done.stderr


class StoppedClock(ProgramClock):
    """A clock that goes on when the test says so."""

    ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms


def place(instance: str, **labels: str) -> tuple[tuple[str, str], ...]:
    return make_labels({"instance": instance, "job": "engines", **labels})


@pytest.fixture
def claimants() -> Claimants:
    """Of two customers' deployments."""
    found = Claimants(ProgramClock())
    lists = ((CHAT, Claim((read_pattern("10.0.1.0/24:8000"),))), (SEARCH, Claim((read_pattern("10.0.2.0/24:8000"),))))
    policies = (
        Policy("acme", frozenset({CHAT}), ("requests_total",), ("request_rate",)),
        Policy("globex", frozenset({SEARCH}), ("requests_total",)),
    )
    found.apply(Claims(lists), policies)
    return found


def test_what_is_withheld_is_logged_once_counted_and_explained(
    claimants: Claimants, caplog: pytest.LogCaptureFixture
) -> None:
    """For the customer whose deployment is claimed, and for no other."""
    assert claimants.admits(CHAT, place("10.0.1.7:8000"))
    assert not claimants.admits(CHAT, place("10.0.2.7:8000"))
    assert not claimants.admits(Deployment("llama", "unknown", "v2"), place("10.0.2.7:8000"))
    for series in (12, 12, 0):
        claimants.withhold(CHAT, place("10.0.2.7:8000", namespace="x\ny"), series)
    telemetry = CustomersTelemetry(ProgramClock())
    telemetry.count_claims = claimants.count_withheld
    for customer in ("acme", "globex"):
        telemetry.lane(LaneId(customer, "push")).set_boundary(1)
        telemetry.lane(LaneId(customer, "push")).exported = 3

    (said,) = caplog.messages
    assert said.startswith(r'customer acme: what {instance="10.0.2.7:8000",job="engines",namespace="x\ny"} exposes as')
    assert (claimants.count_withheld("acme"), claimants.count_withheld("globex")) == (12, 0)
    shown = generate_latest(telemetry).decode()
    assert 'servescope_customer_withheld_series{customer="acme",destination="push",reason="claim"} 12.0' in shown
    assert 'customer="globex",destination="push",reason' not in shown
    (target, why), (figures, until) = claimants.explain(Policy("acme", frozenset({CHAT}), figures=("request_rate",)))
    assert re.fullmatch(r"target\{.*10\.0\.2\.7.*\} \(12 series\)", target)
    assert why == "it is not in [deployments.claims] of the deployment that it claims"
    assert figures.startswith('figures{deployment_id="chat"')
    assert "within the last 11 minutes" in until
    assert claimants.explain(Policy("globex", frozenset({SEARCH}))) == []


def test_a_claimant_that_left_is_no_longer_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Once nothing of it can be in any figure; when it comes back it is named again."""
    clock = StoppedClock()
    claimants = Claimants(clock)
    claimants.apply(Claims(), [Policy("acme", frozenset({CHAT}), ("requests_total",))])
    claimants.withhold(CHAT, place("10.0.2.7:8000", pod="x" * 10_000), 5)
    clock.ms += 650_000
    assert claimants.count_withheld("acme") == 5
    clock.ms += 20_000
    assert (claimants.count_withheld("acme"), claimants.explain(Policy("acme", frozenset({CHAT})))) == (0, [])
    claimants.withhold(CHAT, place("10.0.2.7:8000", pod="x" * 10_000), 5)
    assert len(caplog.messages) == 2
    assert all(len(message) < 1_000 for message in caplog.messages)


@pytest.mark.slow
def test_so_many_claimants_are_named_and_no_more(claimants: Claimants, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who is a new one all the time fills neither memory nor log; all of it is withheld."""
    for number in range(3_000):
        claimants.withhold(CHAT, place(f"10.9.{number // 250}.{number % 250}:8000"), 1)

    assert len(caplog.messages) == 1_000
    assert caplog.messages[-1].endswith("; further ones are withheld without being named")
    assert claimants.count_withheld("acme") == 1_000
    assert not claimants.admits(CHAT, place("10.9.9.9:8000"))
