"""A past in which every metric of the contract rises or stands, with every label value, and every figure is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, product
from pathlib import Path
from typing import Final

from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, REPLICA_START_TIME
from servescope.contract.samples import Labels, Sample, Snapshot, format_edge, make_labels
from servescope.contract.types import Metric
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus

SCRAPE_MS: Final = 15_000
_EVENTS: Final = 3
"""How many events of each kind there are between two scrapes."""


def write_full_past(path: Path, until_ms: Mapping[Identity, int], start_ms: int) -> None:
    """Scrapes and figures of each replica from a time until its own."""
    with Store(path) as store, store.transaction():
        for identity, end_ms in until_ms.items():
            store.set_target(
                TargetStatus(identity.target_id, "http://127.0.0.1:9/metrics", identity, scrape_interval_ms=SCRAPE_MS)
            )
            for number, time_ms in enumerate(range(start_ms, end_ms + 1, SCRAPE_MS), 1):
                snapshot = Snapshot.of(list(_page(identity, number, start_ms)))
                store.append_scrape(identity.target_id, time_ms, snapshot)
                store.append_figures(identity.deployment(), time_ms, dict.fromkeys(_figure_keys(), 0.5))


def _page(identity: Identity, number: int, start_ms: int) -> Iterator[Sample]:
    for metric in METRICS.values():
        for labels in _label_sets(metric, identity):
            if metric.kind == "histogram":
                yield from _histogram(metric, labels, number)
            elif metric.name == REPLICA_START_TIME:
                yield Sample(metric.name, labels, start_ms / 1000)
            else:
                yield Sample(metric.name, labels, float(_EVENTS * number) if metric.kind == "counter" else 0.5)


def _label_sets(metric: Metric, identity: Identity) -> Iterator[Labels]:
    for values in product(*(metric.label_values.get(label, ("0",)) for label in metric.labels)):
        yield make_labels((*identity.labels(), *zip(metric.labels, values, strict=True)))


def _histogram(metric: Metric, labels: Labels, number: int) -> Iterator[Sample]:
    assert metric.edges is not None
    edges = (*map(format_edge, metric.edges), "+Inf")
    for edge, count in zip(edges, accumulate([_EVENTS * number] * len(edges)), strict=True):
        yield Sample(f"{metric.name}_bucket", make_labels((*labels, ("le", edge))), float(count))
    yield Sample(f"{metric.name}_count", labels, float(count))
    yield Sample(f"{metric.name}_sum", labels, float(count))


def _figure_keys() -> Iterator[str]:
    values = {label: known[:1] for metric in METRICS.values() for label, known in metric.label_values.items()}
    for figure in FIGURES.values():
        yield figure_key(figure.name, {label: values.get(label, ("0",))[0] for label in figure.by})
