"""Real receivers: what a Prometheus and a VictoriaMetrics stored of a customer's points, against the store itself.

The expected values are made of the stored scrapes here, with none of the code that exports.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from servescope.contract.identity import Deployment
from servescope.contract.samples import Labels, Series, make_labels
from servescope.customers.points.edges import IntervalSnapshot
from servescope.customers.points.points import Accepted, StreamPoint
from servescope.customers.points.projection import Projector
from servescope.customers.points.reading import IntervalReader
from servescope.customers.points.totals import Totals
from servescope.customers.policy.policy import Policy, Push, Temporality
from servescope.customers.transports.otlp import encode
from servescope.customers.transports.remote_write_sender import RemoteWriteSender
from servescope.settings.clock import ProgramClock
from servescope.store.embedded import Store
from tests.customers.support.customer_export import ENGINE, Exported, exporting
from tests.customers.support.customer_points import push_to
from tests.customers.support.otlp_rules import Ledger
from tests.customers.support.sending import send
from tests.support import prometheus as prometheus_server
from tests.support import victoria_metrics as victoria_metrics_server
from tests.support.filled_prometheus import RETENTION
from tests.support.prometheus import Prometheus, Range
from tests.support.recorded_stack import MINUTES, SCRAPE_MS, START_MS, recorded_minutes
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

MINUTE = 60_000
EDGES = [START_MS + number * MINUTE for number in range(2, MINUTES + 1)]
EXPORTED = ("output_tokens_total", "requests_total", "queued_requests", "time_to_first_token_seconds")
LABELS = ("deployment_id", "replica", "outcome")

# The significant digits that VictoriaMetrics keeps of a value.
DIGITS = 1e-11

Values = dict[tuple[Labels, int], float]
"""Values by the labels of their series, its name among them, and their time."""


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[Store, frozenset[Deployment]]]:
    with Store(recorded_minutes(), read_only=True) as opened:
        yield opened, frozenset(opened.deployments())


def policy_of(deployments: frozenset[Deployment]) -> Policy:
    return Policy("acme", deployments, EXPORTED, labels=LABELS, replicas="plain", resolution="replica")


def read_edges(store: Store, policy: Policy) -> list[IntervalSnapshot]:
    reader = IntervalReader(store, policy.deployments, policy.metrics, ())
    return [edge for edge, _ in reader.read(None, EDGES)]


def project(policy: Policy, edges: Iterable[IntervalSnapshot], temporality: Temporality) -> list[list[StreamPoint]]:
    """The points of each edge."""
    projector, totals, found = Projector(policy), Totals(), []
    for edge in edges:
        projection = projector.project(edge, temporality, totals)
        totals = projection.totals
        found.append(projection.points)
    return found


def deliver(push: Push, batches: Sequence[Sequence[StreamPoint]]) -> None:
    """Send every batch, each of which is accepted in full."""
    outcomes = asyncio.run(send(push, *(batch for batch in batches if batch)))
    for batch, outcome in zip((batch for batch in batches if batch), outcomes, strict=True):
        assert isinstance(outcome, Accepted), outcome
        assert (outcome.points, outcome.rejected) == (len(batch), 0), outcome.message


async def deliver_by_remote_write(url: str, batches: Iterable[Sequence[StreamPoint]]) -> str:
    """Send every batch, all of which are accepted; the version that the receiver was found to take."""
    with ThreadPoolExecutor(1) as executor:
        sender = RemoteWriteSender(push_to(url, protocol="remote-write"), executor)
        for batch in batches:
            assert (await sender.send(batch)).points == len(batch)
        await sender.close()
    return sender.version


def stored_scrapes(store: Store, deployments: Iterable[Deployment]) -> Iterator[tuple[Series, list[tuple[int, float]]]]:
    """Every exported series of every target under the labels that leave, and its scrapes, NaN where it is absent."""
    for deployment in deployments:
        for window in store.read_samples(deployment, EXPORTED, START_MS, EDGES[-1]):
            for series, values in zip(window.series, window.values.tolist(), strict=True):
                labels = make_labels(pair for pair in series.labels if pair[0] in (*LABELS, "le"))
                yield Series(series.name, labels), list(zip(window.times.tolist(), values, strict=True))


def expected_at_edges(store: Store, deployments: Iterable[Deployment]) -> Values:
    """At each edge, of a target with a scrape within two and a half intervals, what counters gained, gauges are."""
    found: Values = {}
    for series, scrapes in stored_scrapes(store, deployments):
        labels = make_labels((*series.labels, ("__name__", series.name)))
        for edge in EDGES:
            fresh = [value for time_ms, value in scrapes if edge - 2.5 * SCRAPE_MS < time_ms <= edge]
            if fresh and not math.isnan(fresh[-1]):
                found[labels, edge] = fresh[-1] if series.name == "queued_requests" else gained(scrapes, edge)
    return found


def gained(scrapes: Iterable[tuple[int, float]], until_ms: int) -> float:
    """What a counter counted from the first edge on, restarts added."""
    counted = [(time_ms, value) for time_ms, value in scrapes if not math.isnan(value) and time_ms <= until_ms]
    base = [value for time_ms, value in counted if time_ms <= EDGES[0]][-1:]
    later = [value for time_ms, value in counted if time_ms > EDGES[0]]
    steps = pairwise([*(base or [0.0]), *later])
    return math.fsum(after - before if after >= before else after for before, after in steps)


def expected_gains(store: Store, deployments: Iterable[Deployment]) -> dict[str, float]:
    """What all counters of a name counted between the first edge and the last."""
    gains: dict[str, float] = {}
    for series, scrapes in stored_scrapes(store, deployments):
        gains[series.name] = gains.get(series.name, 0.0) + gained(scrapes, EDGES[-1])
    return gains


def at_edges(ranges: Iterable[Range]) -> Values:
    """What a receiver has at the edges, stale markers left out; its own points of resets are not at one."""
    return {
        (found.labels, time_ms): value
        for found in ranges
        for time_ms, value in zip(found.times, found.values, strict=True)
        if time_ms in EDGES and not math.isnan(value)
    }


@contextmanager
def remote_write_prometheus(binary: Path, folder: Path) -> Iterator[tuple[Prometheus, str]]:
    """A Prometheus that receives remote write, and its URL for it."""
    options = (*RETENTION, "--web.enable-remote-write-receiver")
    with prometheus_server.running(binary, folder, {}, options=options) as server:
        yield server, f"http://127.0.0.1:{server.port}/api/v1/write"


def read_all(server: Prometheus) -> list[Range]:
    return server.read_samples('{deployment_id!=""}', end_ms=EDGES[-1], range_ms=EDGES[-1] - START_MS)


def same(found: Values, expected: Values, *, within: float = 0.0) -> None:
    """The same series at the same times, and values that differ by no larger share."""
    assert len(expected) > 500
    assert found.keys() == expected.keys()
    assert {key: value for key, value in found.items() if not math.isclose(value, expected[key], rel_tol=within)} == {}


@pytest.mark.parametrize(("binary", "version"), [("prometheus", "1.0"), ("prometheus_3", "2.0")])
def test_prometheus_has_by_remote_write_what_the_store_has(
    store: tuple[Store, frozenset[Deployment]],
    binary: str,
    version: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """By the version that each knows: every value of every series at every edge."""
    past, deployments = store
    policy = policy_of(deployments)
    with remote_write_prometheus(request.getfixturevalue(binary), tmp_path) as (server, url):
        batches = project(policy, read_edges(past, policy), "cumulative")
        assert asyncio.run(deliver_by_remote_write(url, batches)) == version
        same(at_edges(read_all(server)), expected_at_edges(past, deployments))


def test_prometheus_scrapes_from_the_page_what_the_store_has(prometheus: Path, tmp_path: Path) -> None:
    """With the customer's token each value that it stores is that of an edge; with another it stores nothing."""
    (tmp_path / "other.token").write_text("another-token\n", encoding="utf-8")
    with exporting(tmp_path) as exported, exported.running():
        exported.wait_for_points(2)
        jobs = [_scraping(exported, name) for name in ("acme", "other")]
        with prometheus_server.running(prometheus, tmp_path / "prometheus", {"scrape_configs": jobs}) as server:

            def scraped() -> list[Range]:
                now_ms = ProgramClock().now_ms()
                return server.read_samples("output_tokens_total", end_ms=now_ms, range_ms=600_000)

            wait_for(lambda: any(len({*each.values}) > 5 for each in scraped()), "six values in Prometheus")
            (found,) = scraped()
    labels = dict(found.labels)
    assert (labels["job"], labels["deployment_id"]) == ("acme", "chat")
    assert "engine-0" not in labels.values()
    with Store(tmp_path / "past.db", read_only=True) as past:
        scrapes = past.read_scrapes(ENGINE.target_id, 0, 2**60)
    at_edge = [snapshot.values[0] for time_ms, snapshot in scrapes if snapshot is not None and time_ms % 10_000 == 0]
    assert any({*found.values} <= {value - begun for value in at_edge} for begun in at_edge)


def _scraping(exported: Exported, name: str) -> dict[str, object]:
    """A job of Prometheus that scrapes the customer's page with the token of this name."""
    return {
        "job_name": name,
        "metrics_path": "/customers/acme/metrics",
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "authorization": {"credentials_file": str(exported.folder / f"{name}.token")},
        "static_configs": [{"targets": [exported.pull_address]}],
    }


def test_victoria_metrics_has_what_the_store_has(
    store: tuple[Store, frozenset[Deployment]], victoria_metrics: Path, tmp_path: Path
) -> None:
    """By OTLP and by remote write, each into one of its own."""
    past, deployments = store
    policy = policy_of(deployments)
    batches = project(policy, read_edges(past, policy), "cumulative")
    expected = expected_at_edges(past, deployments)
    for protocol in ("otlp-http", "remote-write"):
        with victoria_metrics_server.running(victoria_metrics, tmp_path / protocol) as server:
            if protocol == "otlp-http":
                deliver(push_to(server.otlp_url), batches)
            else:
                assert asyncio.run(deliver_by_remote_write(server.remote_write_url, batches)) == "1.0"
            found = at_edges(server.read_samples('{deployment_id!=""}'))
            same(
                {(canonical(labels), time_ms): value for (labels, time_ms), value in found.items()},
                expected,
                within=DIGITS,
            )


def canonical(labels: Labels) -> Labels:
    """Labels with the text of `le` as the contract has it, and without those of OTLP's scope and service."""
    return make_labels(
        (name, value if name != "le" or value == "+Inf" else repr(float(value)))
        for name, value in labels
        if not name.startswith(("scope", "service."))
    )


def test_deltas_add_up_to_what_was_counted(
    store: tuple[Store, frozenset[Deployment]], victoria_metrics: Path, tmp_path: Path
) -> None:
    """Of deployments, across restarts: what VictoriaMetrics stored of them."""
    past, deployments = store
    policy = replace(policy_of(deployments), resolution="deployment", labels=("deployment_id", "outcome"))
    edges = read_edges(past, policy)
    gains = {name: gain for name, gain in expected_gains(past, deployments).items() if name != "queued_requests"}
    with victoria_metrics_server.running(victoria_metrics, tmp_path) as server:
        deltas = project(policy, edges, "delta")
        deliver(push_to(server.otlp_url, temporality="delta"), deltas)
        for name, gain in gains.items():
            stored = server.read_samples(f'{{__name__="{name}"}}')
            assert math.fsum(value for one in stored for value in one.values) == pytest.approx(gain), name
    assert gains["requests_total"] > 100


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("resolution", ["replica", "deployment"])
def test_every_point_is_by_the_rules_of_the_data_model(
    store: tuple[Store, frozenset[Deployment]], temporality: Temporality, resolution: str
) -> None:
    """Across restarts, and the same total by both temporalities."""
    past, deployments = store
    policy = replace(policy_of(deployments), resolution=resolution)  # type: ignore[arg-type]
    ledger = Ledger()
    for batch in project(policy, read_edges(past, policy), temporality):
        ledger.take(encode(batch, temporality))

    assert not ledger.broken
    tokens = sum(ledger.total(key) for key in ledger.named("output_tokens_total"))
    assert tokens == pytest.approx(expected_gains(past, deployments)["output_tokens_total"])
