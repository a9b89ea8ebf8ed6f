"""What a deployment served, read from a store or a Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import ENGINE_ROLES, GROUP_LABELS, OLD_STACK, Deployment
from servescope.contract.judged import Part
from servescope.contract.measured_layers import MEASURED_LAYERS
from servescope.contract.metrics import METRICS
from servescope.contract.samples import format_series, pick_labels
from servescope.errors import UsageError
from servescope.increments.batches import (
    BlockSums,
    Processes,
    TargetBatch,
    batches,
    find_layers,
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
_REPLICAS: Final = "replicas"
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


class _TrafficReading:
    """Adds the increments of targets up over blocks.

    Each metric is taken from the outermost layer of the deployment that shows it, replicas are counted innermost. A
    target that was not scraped in a block, although it should have been, counts as not there.
    """

    def __init__(self, blocks: NDArray[np.int64]) -> None:
        self._blocks = blocks
        self._sums = BlockSums(blocks.size)
        self._histograms = BlockSums(blocks.size)
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
        found = find_layers(targets, _FAMILIES)
        outermost = {name: MEASURED_LAYERS[min(each.order for each in seen)] for name, seen in found.items()}
        engines = (target for target in targets if target.identity.role in ENGINE_ROLES)
        innermost = max(
            (target.measured_layer("requests_total") for target in engines),
            key=MEASURED_LAYERS.index,
            default=MEASURED_LAYERS[0],
        )
        most = self._most_scrapes(targets)
        for batch in batches(targets, self._blocks):
            scrapes, failed = batch.tallies["scrapes"], batch.tallies["failed"]
            share = np.where(scrapes > 0, (scrapes + failed) / most[batch.columns], 0.0)
            target = batch.targets[0]
            if target.identity.role in ENGINE_ROLES and target.measured_layer("requests_total") == innermost:
                self._add(_REPLICAS, batch, share, share)
                self._absent += int(((failed > 0) & (scrapes == 0)).sum())
                if gpus := len(batch.gauges.by_name.get("gpu_usage", [])):
                    self._gpus += [gpus] * len(batch.targets)
            self._add_gauges(batch, share, outermost)
            self._add_counters(batch, share, outermost)
            self._add_histograms(batch, share, outermost)

    def traffic(self, deployments: tuple[Deployment, ...], remarks: tuple[str, ...]) -> ServedTraffic:
        sums = {name: _known(rows)[0] for name, (_, rows) in self._sums.shared().items()}
        unknown = np.full(self._blocks.size, np.nan)
        usage, reporting = (sums.pop(name, unknown) for name in ("kv_cache_usage", _REPORTING))
        with np.errstate(invalid="ignore", divide="ignore"):
            cache_usage = usage / reporting
        if self._absent:
            remarks += (f"{self._absent} times a replica could not be scraped for five minutes: taken as absent",)
        return ServedTraffic(
            deployments=deployments,
            blocks=self._blocks,
            replicas=sums.pop(_REPLICAS, unknown),
            concurrency=sums.pop("concurrent_requests", unknown),
            queued=sums.pop("queued_requests", unknown),
            cache_usage=cache_usage,
            requests=sums.get("requests_total", unknown),
            histograms={name: _histogram(edges, rows) for name, (edges, rows) in self._histograms.shared().items()},
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
        self._sums.add(name, batch.columns, _rows(share, values[:, None]))

    def _add_histograms(self, batch: TargetBatch, share: Floats, outermost: dict[str, str]) -> None:
        processes = Processes(batch, {})
        for name in SERVED_HISTOGRAMS:
            found = read_histogram(batch, name, processes) if _is_at(batch, name, outermost) else None
            if found is not None and found.edges:
                rows = _rows(share, found.cumulative, found.count[:, None], found.total[:, None])
                self._histograms.add(name, batch.columns, rows, found.edges)


def _is_at(batch: TargetBatch, name: str, outermost: dict[str, str]) -> bool:
    return outermost.get(name) == batch.targets[0].measured_layer(name)


def _parts_of(batch: TargetBatch, name: str) -> Iterator[tuple[str, Part]]:
    """A counter, and where it has labels of its own each of its series, and how they are picked."""
    yield name, Part(name)
    labels = METRICS[name].labels
    rows = batch.rows.by_name.get(name, []) if labels else []
    # Series that differ in another label are one of its own.
    for own in dict.fromkeys(pick_labels(batch.rows.series[row].labels, labels) for row in rows):
        yield format_series(name, own), Part(name, tuple((label, (value,)) for label, value in own))


def _rows(share: Floats, *values: Floats) -> Floats:
    """The sums of the values, each (T, r, n), over targets that were there for a share, (T, n), of their blocks.

    Two more rows: how many were there, and how many of those have values that are not known.
    """
    there = share[:, None] > 0
    shown = np.where(there, np.concatenate(values, axis=1), 0.0)
    flags = [there[:, 0], np.isnan(shown).any(axis=1)]
    return np.concatenate([np.nansum(shown, axis=0), [each.sum(axis=0) for each in flags]])


def _known(rows: Floats) -> Floats:
    """The sums, (r, B): not known where no target was there, or where those of one are not."""
    return np.where((rows[-2] > 0) & (rows[-1] == 0), rows[:-2], np.nan)


def _histogram(edges: tuple[float, ...], rows: Floats) -> ServedHistogram:
    values = _known(rows)
    return ServedHistogram(edges, np.diff(values[:-1], axis=0, prepend=0.0), values[-1])
