"""A `/metrics` page as if all that it counts had happened in one block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Series
from servescope.cutover.evidence.folding import ArmFold, fold
from servescope.cutover.plan.plan import CutoverPlan
from servescope.increments.batches import TargetBatch, batches
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements
from servescope.sources.reader import Reader

_IDENTITY = Identity("llama", "chat-v1", "v1", replica="r")


@dataclass(frozen=True)
class WholePage:
    """The increments of a page, alone as a batch, and the histograms that it has."""

    target: TargetIncrements
    batch: TargetBatch
    histograms: tuple[str, ...]

    def fold(self, plan: CutoverPlan) -> ArmFold:
        """It as v1 of a plan."""
        return fold(plan, [self.target], 0, BLOCK_MS).v1


def as_batch(page: bytes) -> WholePage:
    """A page of a source that is known."""
    reader = Reader(_IDENTITY)
    own = set(_IDENTITY.labels())
    totals: dict[Series, float] = {}
    for sample in reader.read(page).snapshot.samples():
        series = Series(sample.name, tuple(pair for pair in sample.labels if pair not in own))
        totals[series] = totals.get(series, 0.0) + sample.value
    kinds = {series: METRICS[SAMPLE_FAMILIES[series.name]] for series in totals if series.name in SAMPLE_FAMILIES}
    counters = tuple(series for series, metric in kinds.items() if metric.kind != "gauge")
    none = np.zeros(1, dtype=np.int64)
    target = TargetIncrements(
        _IDENTITY.target_id, _IDENTITY, none, counters, np.array([[totals[each]] for each in counters]), (),
        np.zeros((0, 1)), np.zeros((0, 1)), np.full(1, np.nan), Tallies(none + 20, none, none, none, none),
        source=reader.source or "", layer=reader.layer,
    )  # fmt: skip
    (batch,) = batches([target], none)
    return WholePage(
        target, batch, tuple(sorted({metric.name for metric in kinds.values() if metric.kind == "histogram"}))
    )
