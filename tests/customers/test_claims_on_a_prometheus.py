"""What customers receive of a Prometheus in which others have their labels: nothing of these, and that is said."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from servescope.collector.targets.claims import Claim, Claims
from servescope.contract.identity import Deployment
from servescope.contract.samples import format_series, make_labels
from servescope.customers.config import read_policies
from servescope.customers.documents.explaining import explain_policy
from servescope.customers.lanes.claimed_past import Claimants, ClaimedPast, claim_past
from servescope.customers.points.points import StreamPoint
from servescope.customers.points.projection import Projector
from servescope.customers.points.reading import IntervalReader
from servescope.customers.points.totals import Totals
from servescope.customers.policy.policy import Policy
from servescope.settings.addresses import read_pattern
from servescope.settings.clock import program_clock
from servescope.store.history import History
from servescope.store.prometheus.client import Prometheus as Client
from servescope.store.prometheus.history import PrometheusHistory
from tests.customers.support.claimed_pasts import (
    MINUTES,
    Story,
    Target,
    deployment_of,
    fits,
    scraped_at,
    stories,
    write_past,
)
from tests.support import victoria_metrics as victoria
from tests.support.answering import Handler, answering
from tests.support.drawing import examples
from tests.support.otlp_receiver import Receiver
from tests.support.past import a_day_ago, in_milliseconds, make_blocks, remembering
from tests.support.past_one_machine import AGENTS, agent_text, free_address
from tests.support.programs import answers, program
from tests.support.prometheus import Prometheus, running
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow

MINUTE = 60_000


@contextmanager
def holding(told: Sequence[Story], prometheus: Path, promtool: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """The URL of a Prometheus that holds these stories, and when they begin."""
    folder.mkdir()
    start_ms = a_day_ago()
    write_past(told, start_ms, folder / "past.om")
    make_blocks(folder / "past.om", promtool, folder / "prometheus")
    with remembering(prometheus, folder / "prometheus") as running:
        yield f"http://127.0.0.1:{running.port}", start_ms


def leaving(past: ClaimedPast, deployment: Deployment, start_ms: int) -> dict[tuple[Any, ...], Any]:
    """What leaves of a deployment in all minutes, by stream and time; figures without their ends."""
    policy = Policy(
        "acme", frozenset({deployment}), ("requests_total",), ("queued_requests", "request_rate"),
        labels=("replica", "outcome"), replicas="plain", resolution="replica",
    )  # fmt: skip
    reader = IntervalReader(past, policy.deployments, policy.metrics, policy.figures)
    projector, totals = Projector(policy), Totals()
    points: list[StreamPoint] = []
    for edge, _ in reader.read(None, [start_ms + minute * MINUTE for minute in range(1, MINUTES)]):
        projection = projector.project(edge, "cumulative", totals)
        points, totals = points + projection.points, projection.totals
    return {
        (each.stream.metric.name, each.stream.attributes, each.time_ms, each.start_ms): each.value
        for each in points
        if each.value is not None or each.stream.metric.name == "requests_total"
    }


def check(told: Sequence[Story], url: str, start_ms: int) -> None:
    """What leaves is what would leave without the others; figures may be absent while they are there."""
    claims = Claims(
        (deployment_of(number, mixed=mixed), story.claim)
        for number, story in enumerate(told)
        for mixed in (True, False)
    )
    claimants = Claimants(program_clock())
    claimants.apply(claims, ())
    end_s = (start_ms + MINUTES * MINUTE) / 1000
    past = ClaimedPast(PrometheusHistory(Client(url).only_whole(), clock=lambda: end_s), claimants)
    for number, story in enumerate(told):
        mixed, alone = (leaving(past, deployment_of(number, mixed=each), start_ms) for each in (True, False))
        counted = {key: value for key, value in alone.items() if key[0] == "requests_total"}
        assert counted
        assert {key: value for key, value in mixed.items() if key[0] == "requests_total"} == counted
        figures = {key: value for key, value in alone.items() if key not in counted}
        assert {key: value for key, value in mixed.items() if key not in counted}.items() <= figures.items()
        withheld = {key[2] for key in figures.keys() - mixed.keys()}
        there = [
            (start_ms + each.first * MINUTE, start_ms + min(each.last, MINUTES) * MINUTE) for each in story.strangers
        ]
        assert all(any(first - MINUTE <= at <= last + 12 * MINUTE for first, last in there) for at in withheld)
        shown = {key[2] for key in mixed if key not in counted}
        assert not any(first <= at <= last + 5 * MINUTE for first, last in there for at in shown)


OURS = {"instance": "10.0.1.7:8000", "job": "engines", "namespace": "chat", "cluster": "eu"}
THEIRS = {"instance": "10.0.2.7:8000", "job": "engines", "namespace": "evil", "cluster": "eu"}
TOLD = [
    Story(claim, (Target(OURS, "r0", 0, MINUTES, 1),), (Target(THEIRS, replica, 10, 14, 1_000),), recorded)
    for claim in (Claim((read_pattern("10.0.1.0/24:8000"),)), Claim(namespaces=frozenset({"chat"})))
    for replica in ("r0", "r1")
    for recorded in (True, False)
]
"""Claims by address and by namespace, of which a rule records and does not, beside a replica of that name and not."""


def test_nothing_of_a_stranger_leaves(prometheus: Path, promtool: Path, tmp_path: Path) -> None:
    """By address and by namespace, for the minutes that it is there."""
    with holding(TOLD[::3], prometheus, promtool, tmp_path / "x") as (url, start_ms):
        check(TOLD[::3], url, start_ms)


# Each example takes seconds, so that none is shrunk.
SLOW = settings(
    max_examples=examples(20), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@pytest.mark.proof
@SLOW
@given(told=st.lists(stories(), min_size=6, max_size=12))
def test_nothing_of_what_may_not_claim_leaves(
    prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory, told: list[Story]
) -> None:
    """Whatever job, namespace, cluster, instance and replica it has, and whenever it is there."""
    with holding(told, prometheus, promtool, tmp_path_factory.mktemp("past") / "x") as (url, start_ms):
        check(told, url, start_ms)


@pytest.mark.proof
def test_a_victoria_metrics_is_read_alike(victoria_metrics: Path, tmp_path: Path) -> None:
    """Of the same deployments."""
    start_ms = a_day_ago()
    write_past(TOLD, start_ms, tmp_path / "past.om")
    with victoria.running(victoria_metrics, tmp_path / "victoria") as other:
        other.load(in_milliseconds(tmp_path / "past.om"))
        check(TOLD, other.url, start_ms)


def test_figures_are_those_of_collectors_that_may_claim_the_deployment(
    prometheus: Path, promtool: Path, tmp_path: Path
) -> None:
    """Not those that another page exposes under its labels, also where nobody else exposes any."""
    start_ms, chat = a_day_ago(), deployment_of(0, mixed=True)
    collector, other = ({"job": "servescope", "instance": f"127.0.0.1:{port}"} for port in (9900, 9))
    lines = []
    for number in range(40):
        seconds = start_ms / 1000 + 15 * number
        for page, value in ((collector, 5.0), (other, 999.0)):
            labels = {**dict(chat.labels()), **page}
            target = {**labels, "replica": "r0", "role": "aggregated"}
            lines += [
                f"{format_series('up', make_labels(page))} 1 {seconds}",
                f"{format_series('servescope_target_up', make_labels(target))} 1 {seconds}",
                f"{format_series('queued_requests', make_labels(target))} {value} {seconds}",
                f"{format_series('request_rate', make_labels({**labels, 'window': '5m'}))} {value} {seconds}",
                f"{format_series('deployment:requests:rate5m', make_labels(labels))} {value} {seconds}",
            ]
    (tmp_path / "past.om").write_text("\n".join([*sorted(set(lines)), "# EOF\n"]), encoding="utf-8")
    make_blocks(tmp_path / "past.om", promtool, tmp_path / "prometheus")
    policy = Policy("acme", frozenset({chat}), ("queued_requests",), ("request_rate",))
    with remembering(prometheus, tmp_path / "prometheus") as held:
        past = PrometheusHistory(
            Client(f"http://127.0.0.1:{held.port}").only_whole(), clock=lambda: start_ms / 1000 + 600
        )
        received, named = [], []
        for pattern in ("127.0.0.1:9900", "127.0.0.1:9", "10.0.0.1:9900"):
            claimants = Claimants(program_clock())
            claimants.apply(Claims([(chat, Claim(collectors=(read_pattern(pattern),)))]), [policy])
            received.append(exported(policy, ClaimedPast(past, claimants), start_ms + 540_000))
            named.append("".join(text for text, _ in claimants.explain(policy)))

    assert received == [
        {"queued_requests": 5.0, "request_rate": 5.0},
        {"queued_requests": 999.0, "request_rate": 999.0},
        {},
    ]
    assert [('"127.0.0.1:9900"' in each, '"127.0.0.1:9"' in each) for each in named] == [
        (False, True), (True, False), (True, True),
    ]  # fmt: skip


@settings(max_examples=examples(200))
@given(story=stories())
def test_a_place_is_admitted_as_the_page_says(story: Story) -> None:
    """Each restriction that there is has to fit."""
    for target in (*story.own, *story.strangers):
        assert story.claim.admits_series(scraped_at(target.place)) is fits(story.claim, target.place)


CHAT = {"model_name": "llama", "deployment_id": "chat", "inference_stack": "v2"}
PAGE = "".join(
    f'vllm:{name}{{engine="0",model_name="m"}} {value}\n'
    for name, value in (
        ("num_requests_running", "RUNNING"),
        ("num_requests_waiting", 0.0),
        ("generation_tokens_total", 7.0),
        ("kv_cache_usage_perc", 0.5),
        ("prefix_cache_queries_total", 0.0),
        ("inter_token_latency_seconds_count", 0.0),
    )
)
OWN, FOREIGN = 3.0, 170.0
COLLECTOR = """
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
fixed_labels = true
claims = { targets = ["{own}"], jobs = ["servescope-targets"] }
"""
CUSTOMERS = """
collector = "servescope.toml"
[[customers]]
name = "acme"
metrics = ["concurrent_requests"]
figures = ["queued_requests"]
labels = ["deployment_id"]
interval = "10s"
[[customers.deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
since = "2026-01-01T00:00:00Z"
[[customers.push]]
protocol = "otlp-http"
url = "{url}"
"""


@dataclass
class Fleet:
    """An engine of a customer and one of somebody else, which a Prometheus scrapes by the job of an agent."""

    folder: Path
    own: str
    foreign: str
    asked: list[str]
    prometheus: Prometheus

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.prometheus.port}"

    def scraped(self, expression: str) -> dict[str, tuple[float, Mapping[str, str]]]:
        """What an instant query returns now, by the instance."""
        points = self.prometheus.query(expression, at_ms=time.time_ns() // 1_000_000)
        return {dict(point.labels)["instance"]: (point.value, dict(point.labels)) for point in points}

    def list_foreign(self, **labels: str) -> None:
        """Have somebody else's list name their engine with the customer's labels."""
        groups = [{"targets": [self.foreign], "labels": {**CHAT, **labels}}]
        fresh = self.folder / "targets" / "other.new"
        fresh.write_text(json.dumps(groups), encoding="utf-8")
        fresh.rename(self.folder / "targets" / "other.json")

    def write_customers(self, url: str = "https://acme.example/v1/metrics") -> Path:
        path = self.folder / "customers.toml"
        path.write_text(CUSTOMERS.replace("{url}", url), encoding="utf-8")
        return path


@contextmanager
def fleet(prometheus: Path, folder: Path, *, enforced: bool) -> Iterator[Fleet]:
    """Scraped every second through a translator, which reads the claims where they are enforced."""
    asked: list[str] = []

    def engine(running: float) -> Any:
        def answer(handler: Handler) -> None:
            asked.append(handler.headers["Host"])
            handler.reply(200, PAGE.replace("RUNNING", str(running)), Content_Type="text/plain")

        return answering(answer)

    with ExitStack() as started:
        own, foreign = (started.enter_context(engine(running)).removeprefix("http://") for running in (OWN, FOREIGN))
        (folder / "servescope.toml").write_text(COLLECTOR.replace("{own}", own), encoding="utf-8")
        translate = '[translate]\ntargets = ["127.0.0.1:1-65535"]\n' + 'collector = "servescope.toml"\n' * enforced
        (folder / "translate.toml").write_text(translate, encoding="utf-8")
        address = free_address()
        command = [
            sys.executable,
            "-m",
            "servescope.cli",
            "translate",
            "--config",
            "translate.toml",
            "--listen",
            address,
        ]
        process = started.enter_context(program(command, folder / "translate.log"))
        wait_for(lambda: answers(f"http://{address}/-/ready"), "the translator", process=process)
        text = agent_text(0).replace(f"modulus: {AGENTS}", "modulus: 1").replace("translate:9905", address)
        document = yaml.safe_load(text.replace("/etc/prometheus", str(folder)).replace("refresh_interval: 15s", ""))
        job = {key: document[key] for key in ("scrape_configs",)}
        job["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        (folder / "targets").mkdir()
        listed = json.dumps([{"targets": [own], "labels": CHAT}])
        (folder / "targets" / "chat.json").write_text(listed, encoding="utf-8")
        server = started.enter_context(running(prometheus, folder / "prometheus", job))
        found = Fleet(folder, own, foreign, asked, server)
        wait_for(lambda: own in found.scraped("concurrent_requests"), "the customer's engine")
        yield found


FORGED = {
    "job": "servescope-targets-of-mine", "namespace": "chat", "cluster": "eu", "__metrics_path__": "/metrics",
    "__param_job": "servescope-targets", "__param_namespace": "chat", "__param_native": "1",
}  # fmt: skip


def test_a_list_with_anothers_labels_brings_nothing_into_its_stream(prometheus: Path, tmp_path: Path) -> None:
    """The foreign engine is scraped as the deployment's; the export leaves it out, and says so."""
    with fleet(prometheus, tmp_path, enforced=False) as found:
        found.list_foreign(**FORGED, instance=found.own, __param_target=found.own, __param_deployment_id="other")
        config = found.write_customers()
        labels = wait_for(lambda: found.scraped("concurrent_requests").get(found.foreign), "the foreign engine")[1]
        (policy,) = policies = read_policies(config)
        past = PrometheusHistory(Client(found.url).only_whole())
        now_ms = time.time_ns() // 1_000_000
        everything = exported(policy, past, now_ms)
        claimed = claim_past(past, config, policies)
        explained = explain_policy(policy, claimed, now_ms + policy.interval_ms)
        received = exported(policy, claimed, now_ms)

    assert everything == {"concurrent_requests": OWN + FOREIGN, "queued_requests": 0.0}
    assert received == {"concurrent_requests": OWN}
    assert {name: labels.get(name) for name in ("job", "namespace", "cluster")} == {
        "job": "servescope-targets", "namespace": None, "cluster": None,
    }  # fmt: skip
    withheld = {each.text: each.reason for each in explained.withheld}
    (target,) = [text for text in withheld if text.startswith("target{")]
    assert f'instance="{found.foreign}",job="servescope-targets"' in target
    assert withheld[target] == "it is not in [deployments.claims] of the deployment that it claims"
    assert any(text.startswith('figures{deployment_id="chat"') for text in withheld)


def exported(policy: Policy, past: History, at_ms: int) -> dict[str, Any]:
    """What the customer receives of an instant."""
    reader = IntervalReader(past, policy.deployments, policy.metrics, policy.figures)
    ((edge, _),) = reader.read(None, [at_ms])
    points = Projector(policy).project(edge, "cumulative", Totals()).points
    return {point.stream.metric.name: point.value for point in points}


def test_a_translator_asks_no_engine_for_a_deployment_that_it_may_not_claim(prometheus: Path, tmp_path: Path) -> None:
    """Whatever its list sends along; what is scraped is the customer's alone, and the log says what was refused."""
    with fleet(prometheus, tmp_path, enforced=True) as found:
        for labels in (FORGED, {**FORGED, "__param_deployment_id": "other"}):
            found.list_foreign(**labels, __param_target=found.own, instance=found.own)
            wait_for(lambda: found.foreign in found.scraped("up == 0"), "a scrape that is refused")
            found.folder.joinpath("targets", "other.json").unlink()
            wait_for(lambda: found.foreign not in found.scraped("up"), "the list to be gone")
        assert found.scraped("concurrent_requests").keys() == {found.own}
        log = (tmp_path / "translate.log").read_text(encoding="utf-8")

    assert set(found.asked) == {found.own}
    assert (
        f"refused: target '{found.foreign}' may not claim the deployment model_name='llama', deployment_id='chat'"
        in log
    )


@pytest.mark.proof
def test_a_receiver_gets_nothing_of_it(prometheus: Path, tmp_path: Path) -> None:
    """The export itself, before, while and after somebody else's list is there; its log and its page say so."""
    with fleet(prometheus, tmp_path, enforced=False) as found, Receiver() as receiver:
        config = found.write_customers(receiver.url)
        own, pull = free_address(), free_address()
        command = [
            sys.executable, "-m", "servescope.cli", "customers", "run", "--config", str(config), "--prometheus",
            found.url, "--listen", own, "--pull-listen", pull,
        ]  # fmt: skip
        log = tmp_path / "customers.log"
        with program(command, log) as process:
            wait_for(lambda: values(receiver, "queued_requests"), "figures", process=process, log=log)
            found.list_foreign(**FORGED)
            wait_for(lambda: found.foreign in found.scraped("concurrent_requests"), "the foreign engine")
            wait_for(lambda: found.foreign in log.read_text(encoding="utf-8"), "what the log says", log=log)
            seen = len(values(receiver, "concurrent_requests"))
            wait_for(lambda: len(values(receiver, "concurrent_requests")) > seen + 1, "more points", log=log)
            with urlopen(f"http://{own}/metrics", timeout=deadline_seconds()) as answer:
                page = answer.read().decode()
            broken = re.sub("claims = .*", "", (tmp_path / "servescope.toml").read_text(encoding="utf-8"))
            (tmp_path / "servescope.toml").write_text(broken, encoding="utf-8")
            process.send_signal(signal.SIGHUP)
            wait_for(
                lambda: "the configuration is not applied" in log.read_text(encoding="utf-8"), "a refusal", log=log
            )
            seen = len(values(receiver, "concurrent_requests"))
            wait_for(lambda: len(values(receiver, "concurrent_requests")) > seen, "the former claims", log=log)

    assert set(values(receiver, "concurrent_requests")) == {OWN}
    said = log.read_text(encoding="utf-8")
    assert said.count(f'instance="{found.foreign}",job="servescope-targets"') == 1
    assert "has no [deployments.claims]" in said
    assert re.search(r'servescope_customer_withheld_series\{customer="acme",.*,reason="claim"\} [1-9]', page), page


def values(receiver: Receiver, name: str) -> list[float]:
    """What a receiver got of a gauge."""
    return [
        point.as_double
        for request in list(receiver.requests)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.gauge.data_points
        if metric.name == name and not point.flags
    ]
