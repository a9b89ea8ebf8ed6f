"""What leaves of any past keeps the rules of the data model, and adds up to the same in every form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Sample, Snapshot, make_labels
from servescope.customers.points.edges import IntervalSnapshot
from servescope.customers.points.projection import Projector
from servescope.customers.points.reading import IntervalReader
from servescope.customers.points.totals import Totals, dump_totals, load_totals
from servescope.customers.policy.policy import Policy, Resolution, Temporality
from servescope.customers.transports.otlp import encode
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.customers.support.otlp_rules import Ledger
from tests.support.drawing import examples
from tests.support.scraped_pasts import Page, pasts

MINUTE: Final = 60_000
CHAT: Final = Deployment("llama", "chat", "v2")
METRICS: Final = ("output_tokens_total", "queued_requests", "requests_total", "time_to_first_token_seconds")
# Labels that distinguish all series, and labels by which some are summed.
LABELS: Final[Mapping[Resolution, tuple[tuple[str, ...], ...]]] = {
    "replica": (("replica", "outcome"), ("replica",)),
    "deployment": (("outcome",), ()),
}
ordered = pasts().filter(lambda past: list(past) == sorted(past))  # a clock set back is another story


@pytest.mark.slow
@settings(
    max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(first=ordered, second=ordered | st.just({}))
def test_any_past_keeps_the_rules(
    tmp_path_factory: pytest.TempPathFactory, first: dict[int, Page], second: dict[int, Page]
) -> None:
    """Restarts, gaps, torn histograms, replicas that come and go: times rise, nothing overlaps, nothing falls."""
    edges = read_edges(tmp_path_factory.mktemp("past") / "past.db", {"pod-1": first, "pod-2": second})
    temporalities: tuple[Temporality, ...] = ("cumulative", "delta")
    for resolution, temporality in product(LABELS, temporalities):
        for labels in LABELS[resolution]:
            policy = Policy("acme", frozenset({CHAT}), METRICS, labels=labels, replicas="plain", resolution=resolution)
            ledger = deliver(policy, temporality, edges)
            assert ledger.broken == [], (resolution, temporality, labels)
            assert tokens(ledger) == pytest.approx(gained(edges)), (resolution, temporality, labels)


def read_edges(path: Path, replicas: Mapping[str, dict[int, Page]]) -> list[IntervalSnapshot]:
    """The edges of a lane over the scrapes of these replicas."""
    with Store(path) as store:
        for replica, past in replicas.items():
            identity = replace(Identity("llama", "chat", "v2"), replica=replica)
            store.set_target(TargetStatus(identity.target_id, "http://127.0.0.1/metrics", identity, healthy=True))
            for time_ms, page in past.items():
                samples = [
                    Sample(name, make_labels((*labels, *identity.labels())), value)
                    for (name, labels), value in page.items()
                ]
                store.append_scrape(identity.target_id, time_ms, Snapshot.of(samples) if samples else None)
        times = [time_ms for past in replicas.values() for time_ms in past]
        edges = range((min(times) // MINUTE + 1) * MINUTE, (max(times) // MINUTE + 4) * MINUTE, MINUTE)
        return [edge for edge, _ in IntervalReader(store, [CHAT], METRICS, ()).read(None, edges)]


def deliver(policy: Policy, temporality: Temporality, edges: list[IntervalSnapshot]) -> Ledger:
    """What a receiver has of the edges, each sent by a process of its own."""
    ledger, totals = Ledger(), Totals()
    for edge in edges:
        projection = Projector(policy).project(edge, temporality, totals)
        ledger.take(encode(projection.points, temporality))
        totals = load_totals(dump_totals(projection.totals))
    return ledger


def tokens(ledger: Ledger) -> float:
    """The output tokens of all streams."""
    return math.fsum(ledger.total(key) for key in ledger.named("output_tokens_total"))


def gained(edges: list[IntervalSnapshot]) -> float:
    """The output tokens that were counted after the first edge."""
    return math.fsum(
        gain
        for edge in edges[1:]
        for target in edge.targets
        for series, gain in zip(target.series, target.gains.tolist(), strict=True)
        if series.name == "output_tokens_total" and gain == gain
    )
