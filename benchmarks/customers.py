"""What the export to customers costs: the CPU of a minute of fifty customers, and the memory.

The store has what emulated engines showed, each replica under a name of its own. CPU is that of this process, which
reads, projects, encodes and compresses as a lane does, and sends nothing.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks._storing import Target, emulate_hour
from servescope.contract.identity import IDENTITY_LABELS, Deployment, Identity
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Series, Snapshot, make_labels
from servescope.customers.points.points import StreamPoint
from servescope.customers.points.projection import Projector
from servescope.customers.points.reading import FleetState, IntervalReader
from servescope.customers.points.state_codec import dump_state
from servescope.customers.points.totals import Totals, dump_totals
from servescope.customers.policy.policy import Policy
from servescope.customers.transports import otlp
from servescope.customers.transports.batches import BatchLimit
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus

_CUSTOMERS, _REPLICAS = 50, 40
_STEP_MS, _MINUTE_MS = 15_000, 60_000
_START_MS = 1_800_000_000_000 // _MINUTE_MS * _MINUTE_MS
_MOST_BYTES = 3_000_000
_MOST_MEBIBYTES = 512


def run(_: argparse.Namespace) -> None:
    """Print the CPU of a minute of all customers, and the memory."""
    series, values = _engine(emulate_hour())
    print(f"\n## {_CUSTOMERS} customers of {_REPLICAS} replicas with {len(series)} series each, every minute\n")
    with tempfile.TemporaryDirectory(prefix="servescope-customers-") as folder:
        path = Path(folder) / "past.db"
        with Store(path) as store:
            _fill(store, series, values)
        # A process of its own, so that its memory is that of an export alone.
        with multiprocessing.get_context("spawn").Pool(1) as export:
            export.apply(_export, (path,))


def _export(path: Path) -> None:
    """Deliver as `servescope customers run` does, and print what it takes."""
    with Store(path, read_only=True) as store:
        minute, points = _live(store)
        print(f"{points:,} points a minute: {minute:.1f} s of CPU, {minute / 60:.0%} of one core")
        print(f"one customer: {minute / _CUSTOMERS:.3f} s a minute")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory: {most:.0f} MiB at most, wanted are {_MOST_MEBIBYTES}", flush=True)


def _engine(targets: Sequence[Target]) -> Target:
    """The target with most series, without its identity's labels, over an hour."""
    series, values = max(targets, key=lambda target: len(target[0]))
    named = tuple(
        Series(name, tuple(pair for pair in labels if pair[0] not in IDENTITY_LABELS)) for name, labels in series
    )
    return named, values


def _deployment(customer: int) -> Deployment:
    return Deployment("llama", f"chat-{customer}", "v2", "prod")


def _fill(store: Store, series: Sequence[Series], values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    """Two minutes and some before them; counters go on from hour to hour."""
    counts = np.array([METRICS[SAMPLE_FAMILIES[name]].kind != "gauge" for name, _ in series])
    gained = np.where(counts, values[:, -1], 0.0)
    per_hour = values.shape[1]
    for customer in range(_CUSTOMERS):
        for number in range(_REPLICAS):
            identity = Identity("llama", f"chat-{customer}", "v2", "prod", replica=f"engine-{number}")
            own = identity.labels()
            shown = tuple(Series(name, make_labels((*labels, *own))) for name, labels in series)
            store.set_target(TargetStatus(identity.target_id, "http://127.0.0.1/metrics", identity, healthy=True))
            with store.transaction():
                for scrape in range(-12, 9):
                    hours, place = divmod(scrape, per_hour)
                    row = values[:, place] + gained * (hours + 1)
                    store.append_scrape(identity.target_id, _START_MS + scrape * _STEP_MS, Snapshot(shown, row))
            while store.pack_due():
                pass


def _policy(customer: int) -> Policy:
    names = tuple(sorted(name for name, metric in METRICS.items() if metric.component == "engine"))
    labels = ("deployment_id", "outcome", "replica")
    return Policy(
        f"customer-{customer}", frozenset({_deployment(customer)}), names, labels=labels, replicas="plain",
        resolution="replica",
    )  # fmt: skip


class _Lane:
    """What a lane does with an edge, apart from sending."""

    def __init__(self, store: Store, customer: int) -> None:
        policy = _policy(customer)
        self._reader = IntervalReader(store, policy.deployments, policy.metrics, ())
        self._projector = Projector(policy)
        self._limit = BatchLimit(_MOST_BYTES, otlp.count_bytes)
        self._state: FleetState | None = None
        self._totals = Totals()

    def deliver(self, edges: Sequence[int]) -> Iterator[list[StreamPoint]]:
        """Read, project, encode, compress and keep the cursor of each edge."""
        for edge, state in self._reader.read(self._state, edges):
            projection = self._projector.project(edge, "cumulative", self._totals)
            for batch in self._limit.split(projection.points):
                gzip.compress(otlp.encode(batch, "cumulative").SerializeToString(), 6)
            dump_state(state)
            dump_totals(projection.totals)
            self._state, self._totals = state, projection.totals
            yield projection.points


def _live(store: Store) -> tuple[float, int]:
    """CPU seconds of one minute of all customers, and its points."""
    lanes = [_Lane(store, customer) for customer in range(_CUSTOMERS)]
    for lane in lanes:
        list(lane.deliver([_START_MS]))
    began = time.process_time()
    points = sum(len(found) for lane in lanes for found in lane.deliver([_START_MS + _MINUTE_MS]))
    return time.process_time() - began, points
