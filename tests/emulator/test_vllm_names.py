"""Engines that show themselves in vLLM's names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from servescope.contract.metrics import OUTCOMES
from servescope.emulator.deployment.deployment import EmulatedDeployment, EmulatedTarget
from servescope.emulator.deployment.stack import V1, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.faces.faces import make_pages
from servescope.emulator.faces.pages import Pages
from servescope.emulator.faults.faults import Faults, parse_fault
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.exposition.rendering import render
from servescope.sources.inspection import Report, inspect
from servescope.sources.map_files import load_sources
from servescope.sources.parse import parse_exposition
from tests.conftest import PAGES

CAPTURE = "vllm-0.32.0-1.txt"


@pytest.fixture(scope="module")
def pages() -> tuple[EmulatedStack, Pages]:
    """A stack after two minutes with every outcome, and its engines' pages."""
    engine = replace(V1.engine, error_share=0.02, max_queue=1)
    stack = EmulatedStack(
        v1=replace(V1, engine=engine),
        mix=replace(Mix(), requests_per_second=20.0, abort_share=0.1, oversized_share=0.02),
    )
    made = make_pages(["vllm"], stack.deployments)
    stack.clock.run_until(120.0)
    return stack, made


def first_engine(deployment: EmulatedDeployment) -> EmulatedTarget:
    """The first engine of a deployment."""
    return next(target for target in deployment.targets() if target.identity.role == "aggregated")


def report(page: bytes) -> Report:
    """What the contract gets from a page."""
    return inspect([parse_exposition(page)], subject="page")


@pytest.mark.parametrize("number", [0, 1])
def test_every_mapped_metric_is_found(pages: tuple[EmulatedStack, Pages], number: int) -> None:
    """The page is recognised as vLLM's, and the stock map finds in it all that it takes from any."""
    stack, made = pages
    seen = report(made.render(first_engine(stack.deployments[number])))
    assert seen.source is not None
    assert (seen.source.name, seen.identification.versions) == ("vllm", "newer than 0.13, read up to 0.32")
    mapped = {name for name, metric in load_sources()["vllm"].metrics.items() if metric.alternatives}
    found = {entry.name: entry for entry in seen.entries if entry.kind == "metric" and entry.value is not None}
    # Its engines transfer no KV by a connector of vLLM.
    assert mapped - set(found) == {"kv_transfer_seconds", "kv_transfer_bytes_total"}


def test_fresh_page_is_known_as_vllms() -> None:
    """Before the first request everything is there, at 0, as in a fresh vLLM."""
    stack = EmulatedStack(quiet=True)
    made = make_pages(["vllm"], stack.deployments)
    page = made.render(first_engine(stack.deployments[1]))
    seen = report(page)
    assert seen.source is not None
    assert seen.source.name == "vllm"
    assert b'vllm:inter_token_latency_seconds_bucket{engine="0",model_name="llama-3.3-70b",le="0.01"} 0.0\n' in page


@pytest.mark.parametrize("number", [0, 1])
def test_figures_are_the_same_both_ways(pages: tuple[EmulatedStack, Pages], number: int) -> None:
    """Whatever the contract gets from vLLM's names is what it gets from its own, of the same engine."""
    stack, made = pages
    target = first_engine(stack.deployments[number])
    ours, theirs = report(render(target.instruments)), report(made.render(target))
    own = {(entry.name, entry.kind, entry.measure): entry for entry in ours.entries}
    compared = set()
    for entry in theirs.entries:
        other = own[entry.name, entry.kind, entry.measure]
        # Of these the contract has finer edges, between which a quantile lies elsewhere.
        finer = re.match(r"(request_duration|time_per_output_token)_p\d", entry.name)
        if entry.value is None or other.value is None or finer:
            continue
        assert entry.value == pytest.approx(other.value, rel=1e-9), entry.name
        if entry.name != "requests_total":
            assert {part: value for part, value in entry.parts if value} == {
                part: value for part, value in other.parts if value
            }
        compared.add(entry.name)
    assert {"input_tokens_total", "requests_total", "time_to_first_token_seconds", "tps_per_request"} <= compared
    assert {"speculation_rate", "concurrent_requests", "kv_cache_usage", "decode_seconds_total"} <= compared


def test_outcomes_are_told_as_vllm_tells_them(pages: tuple[EmulatedStack, Pages]) -> None:
    """Each of the five outcomes comes back as itself."""
    stack, made = pages
    target = first_engine(stack.deployments[0])
    (ours,) = [entry for entry in report(render(target.instruments)).entries if entry.name == "requests_total"]
    (theirs,) = [entry for entry in report(made.render(target)).entries if entry.name == "requests_total"]
    assert dict(theirs.parts) == dict(ours.parts)
    outcomes = {f'requests_total{{outcome="{outcome}"}}' for outcome in OUTCOMES}
    assert {part for part, value in ours.parts if value > 0} == outcomes


def test_truncated_answers_are_read_from_finish_reasons() -> None:
    """As many as the engine counts; the others that are ok have stopped by themselves."""
    stack = EmulatedStack(mix=replace(Mix(), requests_per_second=20.0))
    made = make_pages(["vllm"], stack.deployments)
    Faults(stack, [parse_fault("answers-truncated:0.3")])
    stack.clock.run_until(120.0)
    target = first_engine(stack.deployments[0])
    ours, theirs = (
        {entry.name: entry.value or 0.0 for entry in report(page).entries}
        for page in (render(target.instruments), made.render(target))
    )
    assert theirs["answers_truncated_total"] == ours["answers_truncated_total"] > 0
    assert theirs["answer_truncated_share"] == ours["answer_truncated_share"] == pytest.approx(0.3, abs=0.1)


def test_decoding_after_another_engines_first_token_is_counted() -> None:
    """A decode worker's histogram has as many requests as its sum is of, and no part of their time is negative."""
    traffic = GeneratedTraffic(replace(Mix(), abort_share=0.0))
    stack = EmulatedStack.of([(V2_DISAGGREGATED, 1.0)], traffic=traffic)
    made = make_pages(["vllm"], stack.deployments)
    stack.clock.run_until(60.0)
    target = next(target for target in stack.targets() if target.identity.role == "decode")
    page = made.render(target).decode()
    decode, ended, prefill = (
        [float(value) for value in re.findall(rf"^vllm:{name}_seconds_(?:count|sum)\{{.*\}} (\S+)$", page, re.M)]
        for name in ("request_decode_time", "request_time_per_output_token", "request_prefill_time")
    )
    assert decode[0] == ended[0] > 0
    assert decode[1] > 0
    assert prefill == [0.0, 0.0]


def test_reused_tokens_are_those_the_router_booked() -> None:
    """The tokens that all engines of a deployment reused are those reported to its router."""
    stack = EmulatedStack()
    stack.clock.run_until(60.0)
    for deployment in stack.deployments:
        reused = sum(replica.engine.reused_tokens for replica in deployment.replicas.values())
        (router,) = [target for target in deployment.targets() if target.identity.role == "router"]
        text = render(router.instruments).decode()
        (booked,) = re.findall(r"^kv_cache_reused_tokens_total\{.*\} (\S+)$", text, re.M)
        assert 0 < reused == float(booked)


def test_only_engines_are_listed(pages: tuple[EmulatedStack, Pages]) -> None:
    """vLLM has no router and no autoscaler: theirs are served in their own names, but not listed."""
    stack, made = pages
    for target in stack.targets():
        assert made.lists(target) == (target.identity.role == "aggregated")
        if not made.lists(target):
            assert made.render(target) == render(target.instruments)


def test_types_and_edges_are_those_of_the_source_map(pages: tuple[EmulatedStack, Pages]) -> None:
    """Of every series that the map takes, but for the time that a counter began at, and transfers of KV; its edges."""
    stack, made = pages
    page = made.render(first_engine(stack.deployments[1])).decode()
    written = (PAGES / CAPTURE).read_text()
    assert {name for name, _ in declared(written).items() - declared(page).items()} == {
        "vllm:generation_tokens_created",
        "vllm:nixl_xfer_time_seconds",
        "vllm:nixl_bytes_transferred",
    }
    mapped = load_sources()["vllm"].metrics.values()
    with_edges = {term.native for metric in mapped if metric.edges for one in metric.alternatives for term in one.terms}
    # Not of a release that is emulated, and not of transfers.
    with_edges -= {"vllm:nixl_xfer_time_seconds", "vllm:time_per_output_token_seconds"}
    assert len(with_edges) == 4
    for name in with_edges:
        assert bucket_edges(page)[name] == bucket_edges(written)[name]


@pytest.mark.reference
def test_names_types_labels_and_edges_are_the_real_ones(pages: tuple[EmulatedStack, Pages], reference: Path) -> None:
    """Every series is one of a real vLLM 0.32, with its type and label names, and with its edges where it has them."""
    stack, made = pages
    page = made.render(first_engine(stack.deployments[1])).decode()
    real = (reference / "captures" / CAPTURE).read_text()
    assert declared(page).items() <= declared(real).items()
    for name, labels in label_names(page).items():
        assert labels <= label_names(real)[name], name
    for name, edges in bucket_edges(page).items():
        expected = bucket_edges(real)[name]
        # The sizes end with the longest context, which is another one there.
        assert edges[:5] == expected[:5] if name.endswith("_tokens") else edges == expected, name


def declared(page: str) -> dict[str, str]:
    """The type of each metric."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))


def label_names(page: str) -> dict[str, set[str]]:
    """The names of each series' labels."""
    return {
        name: set(re.findall(r'(\w+)="', labels))
        for name, labels in re.findall(r"^([a-z][\w:]*)(\{.*\})? \S+$", page, re.M)
    }


def bucket_edges(page: str) -> dict[str, list[str]]:
    """The edges of each histogram."""
    edges: dict[str, list[str]] = {}
    for name, edge in re.findall(r'^([a-z][\w:]*)_bucket\{.*le="([^"]+)".*\} \S+$', page, re.M):
        edges.setdefault(name, []).append(edge)
    return {name: list(dict.fromkeys(found)) for name, found in edges.items()}


def test_restarted_replica_begins_at_zero() -> None:
    """A process that comes back shows the counters of its new life."""
    stack = EmulatedStack()
    made = make_pages(["vllm"], stack.deployments)
    stack.clock.run_until(100.0)
    deployment = stack.deployments[1]
    name = first_engine(deployment).identity.replica
    deployment.restart(name)
    stack.clock.run_until(100.0)
    target = next(target for target in deployment.targets() if target.identity.replica == name)
    page = made.render(target).decode()
    assert re.search(r"^vllm:prompt_tokens_total\{.*\} 0\.0$", page, re.M)
    assert re.search(r"^vllm:request_queue_time_seconds_count\{.*\} 0\.0$", page, re.M)
