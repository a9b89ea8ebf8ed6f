"""What a deployment served, read from a store or a Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import ENGINE_ROLES, GROUP_LABELS, OLD_STACK, Deployment
from servescope.contract.judged import Part
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import format_series
from servescope.errors import UsageError
from servescope.increments.batches import (
    MEASURED_LAYERS,
    Processes,
    TargetBatch,
    batches,
    measured_layer,
    read_histogram,
    sum_counters,
    sum_gauges,
)
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.migration.traffic.traffic import Floats, ServedHistogram, ServedTraffic
from servescope.settings.values import format_instant
from servescope.store.history import History

SERVED_HISTOGRAMS: Final = (
    "input_tokens_per_request", "output_tokens_per_request", "request_duration_seconds",
    "time_to_first_token_seconds", "time_per_output_token_seconds",
)  # fmt: skip
SERVED_COUNTERS: Final = (
    "requests_total", "input_tokens_total", "output_tokens_total", "decode_seconds_total", "preemptions_total",
    "kv_cache_eligible_tokens_total", "kv_cache_reused_tokens_total", "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
)  # fmt: skip
_GAUGES: Final = ("concurrent_requests", "queued_requests", "kv_cache_usage", "gpu_usage")
_FAMILIES: Final = (*SERVED_HISTOGRAMS, *SERVED_COUNTERS, *_GAUGES)
_REPORTING: Final = "replicas that report kv_cache_usage"
_DAY_MS: Final = 86_400_000
"""What is read at once: a store refuses more than a day and a half of two hundred replicas."""
_SETTLING_MS: Final = 35_000
"""How long after its end a block may still get scrapes: two intervals of 15 s, and five seconds to be written."""


def find_deployment(history: History, chosen: str | None) -> tuple[Deployment, ...]:
    """The deployment that was chosen by its id, or by labels as `model_name=chat,environment=production`.

    Without a choice it is the only one of v1. It is returned once for each rollout phase it was in. Raises UsageError
    where none or several fit, with those there are, and ServescopeError where the history cannot be read.
    """
    known = history.deployments()
    wanted = _read_choice(chosen)
    found = [each for each in known if all(getattr(each, label) == value for label, value in wanted.items())]
    groups = {tuple(getattr(each, label) for label in GROUP_LABELS) for each in found}
    if len(groups) == 1:
        return tuple(found)
    asked = f"--deployment {chosen}" if chosen is not None else "a deployment of v1"
    listed = "; ".join(sorted({_label_text(each) for each in (found or known)})) or "none"
    if not groups:
        raise UsageError(f"{asked}: is not there, expected one of: {listed}")
    raise UsageError(f"{asked}: {len(groups)} deployments fit, expected --deployment with labels of one of: {listed}")


def read_traffic(history: History, deployments: Sequence[Deployment], start_ms: int, end_ms: int) -> ServedTraffic:
    """What a deployment served in the blocks that lie within start and end, and have closed.

    Raises UsageError where nothing of it was scraped in that time, or where prefill and decode have workers of their
    own, and ServescopeError where the history cannot be read.
    """
    first_ms = -(-start_ms // BLOCK_MS) * BLOCK_MS
    blocks = np.arange(first_ms, (end_ms - _SETTLING_MS) // BLOCK_MS * BLOCK_MS, BLOCK_MS, dtype=np.int64)
    reading = _TrafficReading(blocks)
    for begin_ms in range(first_ms, end_ms, _DAY_MS):
        targets: list[TargetIncrements] = []
        for deployment in deployments:
            targets += history.read_increments(deployment, _FAMILIES, begin_ms, min(begin_ms + _DAY_MS, end_ms))
        reading.add(targets)
    traffic = reading.traffic(tuple(deployments), history.remarks())
    if not traffic.known.any():
        where = f"{deployments[0].model_name}/{deployments[0].deployment_id}"
        span = f"{format_instant(start_ms)} to {format_instant(end_ms)}"
        raise UsageError(f"{where}: nothing was scraped from {span}, expected a time in which it served")
    return traffic


def _read_choice(chosen: str | None) -> dict[str, str]:
    if chosen is None:
        return {"inference_stack": OLD_STACK}
    if "=" not in chosen:
        return {"deployment_id": chosen}
    pairs = [each.partition("=")[::2] for each in chosen.split(",")]
    unknown = next((label for label, _ in pairs if label not in GROUP_LABELS), None)
    if unknown is not None:
        raise UsageError(f"--deployment has the label {unknown!r}, expected: {', '.join(GROUP_LABELS)}")
    return dict(pairs)


def _label_text(deployment: Deployment) -> str:
    return ",".join(f"{label}={value}" for label in GROUP_LABELS if (value := getattr(deployment, label)))


class _BlockSums:
    """Sums over targets of r rows by block: not known where no target was there, or where those of one are not."""

    def __init__(self, rows: int, blocks: int) -> None:
        self._sums = np.zeros((rows, blocks))
        self._there = np.zeros(blocks, dtype=bool)
        self._unknown = np.zeros(blocks, dtype=bool)

    def add(self, columns: NDArray[np.int64], share: Floats, values: Floats) -> None:
        """Add the values, (T, r, n), of targets that were there for a share, (T, n), of the blocks of these columns."""
        there = share[:, None] > 0
        self._there[columns] |= there.any(axis=(0, 1))
        self._unknown[columns] |= (there & np.isnan(values)).any(axis=(0, 1))
        self._sums[:, columns] += np.nansum(np.where(there, values, 0.0), axis=0)

    def merge(self, other: _BlockSums, rows: Sequence[int]) -> None:
        """Add some rows of other sums."""
        self._there |= other._there
        self._unknown |= other._unknown
        self._sums += other._sums[list(rows)]

    def values(self) -> Floats:
        """The sums, (r, n), NaN where they are not known."""
        return np.where(self._there & ~self._unknown, self._sums, np.nan)


class _TrafficReading:
    """Adds the increments of targets up over blocks.

    Each metric is taken from the outermost layer of the deployment that shows it, replicas are counted innermost. A
    target that was not scraped in a block, although it should have been, counts as not there.
    """

    def __init__(self, blocks: NDArray[np.int64]) -> None:
        self._blocks = blocks
        self._replicas = _BlockSums(1, blocks.size)
        self._sums: dict[str, _BlockSums] = {}
        self._buckets: dict[str, dict[tuple[float, ...], _BlockSums]] = {}
        self._gpus: list[int] = []
        self._absent = 0

    def add(self, targets: Sequence[TargetIncrements]) -> None:
        """Add targets of other blocks than those before."""
        for target in targets:
            if target.identity.role in ("prefill", "decode"):
                raise UsageError(
                    f"{target.identity.deployment_id}: prefill and decode have workers of their own, expected a "
                    "deployment whose replicas serve whole requests, as v1's do"
                )
        outermost, innermost = _find_layers(targets)
        most = self._most_scrapes(targets)
        for batch in batches(targets, self._blocks):
            scrapes, failed = batch.tallies["scrapes"], batch.tallies["failed"]
            share = np.where(scrapes > 0, (scrapes + failed) / most[batch.columns], 0.0)
            target = batch.targets[0]
            if target.identity.role in ENGINE_ROLES and _layer_of(target, "requests_total") == innermost:
                self._replicas.add(batch.columns, share, share[:, None])
                self._absent += int(((failed > 0) & (scrapes == 0)).sum())
                if gpus := len(batch.gauges.by_name.get("gpu_usage", [])):
                    self._gpus += [gpus] * len(batch.targets)
            self._add_gauges(batch, share, outermost)
            self._add_counters(batch, share, outermost)
            self._add_histograms(batch, share, outermost)

    def traffic(self, deployments: tuple[Deployment, ...], remarks: tuple[str, ...]) -> ServedTraffic:
        """All that was added."""
        sums = {name: each.values()[0] for name, each in self._sums.items()}
        unknown = np.full(self._blocks.size, np.nan)
        usage, reporting = (sums.pop(name, unknown) for name in ("kv_cache_usage", _REPORTING))
        with np.errstate(invalid="ignore", divide="ignore"):
            cache_usage = usage / reporting
        if self._absent:
            remarks += (f"{self._absent} times a replica could not be scraped for five minutes: taken as absent",)
        return ServedTraffic(
            deployments=deployments,
            blocks=self._blocks,
            replicas=self._replicas.values()[0],
            concurrency=sums.pop("concurrent_requests", unknown),
            queued=sums.pop("queued_requests", unknown),
            cache_usage=cache_usage,
            requests=sums.get("requests_total", unknown),
            histograms={name: _share_edges(found, self._blocks.size) for name, found in self._buckets.items()},
            counters=sums,
            gpus_per_replica=float(np.median(self._gpus)) if self._gpus else None,
            remarks=remarks,
        )

    def _most_scrapes(self, targets: Sequence[TargetIncrements]) -> Floats:
        """The most scrapes that any target had in each block, 1 at least: what one that was there all along has."""
        most = np.ones(self._blocks.size)
        for batch in batches(targets, self._blocks):
            made = (batch.tallies["scrapes"] + batch.tallies["failed"]).max(axis=0)
            most[batch.columns] = np.maximum(most[batch.columns], made)
        return most

    def _add_gauges(self, batch: TargetBatch, share: Floats, outermost: dict[str, str]) -> None:
        for name in ("concurrent_requests", "queued_requests", "kv_cache_usage"):
            values = sum_gauges(batch, (Part(name),)) if _is_at(batch, name, outermost) else None
            if values is not None:
                self._add(name, batch, share, values * share)
                if name == "kv_cache_usage":
                    self._add(_REPORTING, batch, share, share)

    def _add_counters(self, batch: TargetBatch, share: Floats, outermost: dict[str, str]) -> None:
        processes = Processes(batch, {})
        for name in SERVED_COUNTERS:
            for text, part in _parts_of(batch, name) if _is_at(batch, name, outermost) else ():
                values = sum_counters(batch, (part,), processes)
                if values is not None:
                    self._add(text, batch, share, values)

    def _add(self, name: str, batch: TargetBatch, share: Floats, values: Floats) -> None:
        sums = self._sums.setdefault(name, _BlockSums(1, self._blocks.size))
        sums.add(batch.columns, share, values[:, None])

    def _add_histograms(self, batch: TargetBatch, share: Floats, outermost: dict[str, str]) -> None:
        for name in SERVED_HISTOGRAMS:
            found = read_histogram(batch, name) if _is_at(batch, name, outermost) else None
            if found is not None and found.edges:
                sums = self._buckets.setdefault(name, {}).setdefault(
                    found.edges, _BlockSums(len(found.edges) + 2, self._blocks.size)
                )
                whole = [found.cumulative, found.count[:, None], found.total[:, None]]
                sums.add(batch.columns, share, np.concatenate(whole, axis=1))


def _is_at(batch: TargetBatch, name: str, outermost: dict[str, str]) -> bool:
    return outermost.get(name) == _layer_of(batch.targets[0], name)


def _find_layers(targets: Sequence[TargetIncrements]) -> tuple[dict[str, str], str]:
    """The outermost layer of each metric, and the innermost of all."""
    found: dict[str, set[int]] = {}
    every = {MEASURED_LAYERS.index("frontend")}
    for target in targets:
        for each in (*target.series, *target.gauges):
            family = SAMPLE_FAMILIES.get(each.name, "")
            if family in _FAMILIES:
                found.setdefault(family, set()).add(MEASURED_LAYERS.index(_layer_of(target, family)))
        if target.identity.role in ENGINE_ROLES:
            every.add(MEASURED_LAYERS.index(_layer_of(target, "requests_total")))
    return {family: MEASURED_LAYERS[min(layers)] for family, layers in found.items()}, MEASURED_LAYERS[max(every)]


def _layer_of(target: TargetIncrements, family: str) -> str:
    return measured_layer(target.layer, target.identity.role, family)


def _parts_of(batch: TargetBatch, name: str) -> Iterator[tuple[str, Part]]:
    """A counter, and where it has labels of its own each of its series, and how they are picked."""
    yield name, Part(name)
    labels = METRICS[name].labels
    for row in batch.rows.by_name.get(name, []) if labels else ():
        own = tuple(pair for pair in batch.rows.series[row].labels if pair[0] in labels)
        yield format_series(name, own), Part(name, tuple((label, (value,)) for label, value in own))


def _share_edges(by_edges: dict[tuple[float, ...], _BlockSums], blocks: int) -> ServedHistogram:
    """The histograms of all replicas at the edges that they share."""
    shared = tuple(sorted(set.intersection(*(set(edges) for edges in by_edges))))
    sums = _BlockSums(len(shared) + 2, blocks)
    for edges, each in by_edges.items():
        sums.merge(each, [*(edges.index(edge) for edge in shared), len(edges), len(edges) + 1])
    values = sums.values()
    return ServedHistogram(shared, np.diff(values[:-1], axis=0, prepend=0.0), values[-1])
