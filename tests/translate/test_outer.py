"""`behind`: no metric is answered both of what is in front and of what is behind it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from servescope.collector.scrapes.scrape import Limits
from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.exposition.rendering import render
from servescope.sources.layers import Supply
from servescope.sources.reader import Reader
from servescope.translate.outer import NOTHING, read_outer
from servescope.translate.translation import Translator, Wanted
from tests.conftest import PAGES
from tests.support.filled_prometheus import make_stack

LIMITS = Limits(10.0, 16_000_000)
ENGINES = ("vllm-0.32.0-1", "vllm-0.13era-1", "dynamo-mocker-1.6.1-1")
FRONTENDS = {"dynamo-frontend-1.6.1-1": "frontend,router", "dynamo-frontend-0.8dev-1": "frontend,router"}
OF_EACH = {name for name, metric in METRICS.items() if metric.component == "process"}
TOKENS = {"input_tokens_total", "output_tokens_total", "kv_cache_eligible_tokens_total", "kv_cache_reused_tokens_total"}
PROXIES = {
    "sglang-router-0.3.2-1": ("sglang-router", {"requests_total", "concurrent_requests"}),
    "vllm-router-0.1.17-1": ("vllm-router", {"requests_total", "concurrent_requests"}),
    "ray-serve-2.60.0-1": (
        "ray-serve",
        {"requests_total", "request_duration_seconds", "concurrent_requests", "queued_requests"},
    ),
    "litellm-1.106.2-1": ("litellm", {*TOKENS, "requests_total", "request_duration_seconds"}),
}


def probed(body: bytes, behind: str, configured: Mapping[str, frozenset[str]] | None = None) -> set[str]:
    """The metrics that a probe of this text answers."""
    outer = read_outer(behind, configured or {})
    translated = Translator(1_000_000).translate("one", body, Wanted(None, outer, ()), LIMITS)
    return {SAMPLE_FAMILIES[series.name] for series in translated.contract.series}


def collected(outer: bytes, inner: bytes, role: str) -> set[str]:
    """The metrics that a collector takes from the target behind, once it has scraped both."""
    supply = Supply()
    front = Reader(Identity("m", "d", "v", replica="front", role=role), supply=supply)
    behind = Reader(Identity("m", "d", "v", replica="behind"), supply=supply)
    front.read(outer)
    return {SAMPLE_FAMILIES[series.name] for series in behind.read(inner).snapshot.series}


@pytest.fixture(scope="module")
def instruments() -> dict[str, bytes]:
    """A page of our instruments by role, after some traffic."""
    stack = make_stack()
    stack.clock.run_until(30.0)
    return {target.identity.role: render(target.instruments) for target in stack.targets()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("front", ["router", "aggregated", *FRONTENDS])
def test_a_metric_is_of_one_layer(front: str, engine: str, captures: Path, instruments: Mapping[str, bytes]) -> None:
    """What is in front and what is behind answer no metric both; behind it is nothing that a collector leaves out."""
    if front in FRONTENDS:
        outer, behind, role = (captures / f"{front}.txt").read_bytes(), FRONTENDS[front], "router"
    else:
        outer, role = instruments[front], front
        behind = "router" if front == "router" else "instruments"
    inner = (captures / f"{engine}.txt").read_bytes()
    answered = probed(inner, behind)
    assert (probed(outer, "") & answered) - OF_EACH == set()
    assert answered <= collected(outer, inner, role)
    assert answered < probed(inner, "") or "mocker" in engine


@pytest.mark.parametrize("page", PROXIES)
def test_a_proxy_is_in_front_by_the_name_of_its_map(page: str, any_captures: Path) -> None:
    """Requests are the proxy's, and what it does not report is the engine's behind it."""
    outer, inner = (PAGES / f"{page}.txt").read_bytes(), (any_captures / "vllm-0.32.0-1.txt").read_bytes()
    name, supplied = PROXIES[page]
    answered = probed(inner, name)
    assert (probed(outer, "") & answered) - OF_EACH == set()
    assert probed(inner, "") - answered == supplied
    assert answered == collected(outer, inner, "router")


def test_the_layer_that_is_in_front_is_answered_whole(captures: Path) -> None:
    """A frontend is behind nothing, whatever a scraper says of all targets of a deployment."""
    frontend = (captures / "dynamo-frontend-1.6.1-1.txt").read_bytes()
    assert probed(frontend, "frontend,router") == probed(frontend, "")


def test_a_layer_of_ones_own_is_what_its_metrics_say(captures: Path) -> None:
    """An older frontend that lacks a metric leaves it to the engines."""
    page = (captures / "vllm-0.32.0-1.txt").read_bytes()
    own = {"gateway": frozenset({"requests_total", "request_duration_seconds"})}
    assert probed(page, "") - probed(page, "gateway", own) == own["gateway"]


def test_names_are_in_any_order_and_unknown_ones_named() -> None:
    """One name is one key of what is kept."""
    assert read_outer(" router , frontend", {}) == read_outer("frontend,router,", {})
    assert read_outer("", {}) == NOTHING
    with pytest.raises(ValueError, match="gateway"):
        read_outer("frontend,gateway", {})


def test_combinations_leave_out_what_any_of_them_supplies() -> None:
    """At the outermost place that measures it."""
    for one, other in product(("frontend", "instruments"), ("router", "instruments")):
        both = read_outer(f"{one},{other}", {}).layers
        for name in (one,) if other == "router" and one == "frontend" else (one, other):
            assert read_outer(name, {}).layers.keys() <= both.keys()
            assert all(both[metric] <= layer for metric, layer in read_outer(name, {}).layers.items())
