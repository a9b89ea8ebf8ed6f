"""What a deployment served, read from a store or a Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.batches import (
    PLACES,
    Processes,
    TargetBatch,
    batches,
    place_of,
    read_histogram,
    sum_counters,
    sum_gauges,
)
from servescope.contract.identity import ENGINE_ROLES, GROUP_LABELS, OLD_STACK, Deployment
from servescope.contract.increments import BLOCK_MS, TargetIncrements
from servescope.contract.judged import Part
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import format_series
from servescope.errors import UsageError
from servescope.migration.traffic import Floats, ServedHistogram, ServedTraffic
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
_DAY_MS: Final = 86_400_000
"""What is read at once: a store refuses more than a day and a half of two hundred replicas."""
_SETTLING_MS: Final = 35_000
"""How long after its end a block may still get scrapes: two intervals of 15 s, and five seconds to be written."""


def find_deployment(past: History, chosen: str | None) -> tuple[Deployment, ...]:
    """The deployment that was chosen by its id, or by labels as `model_name=chat,environment=production`.

    Without a choice it is the only one of v1. It is returned once for each rollout phase it was in. Raises UsageError
    where none or several fit, with those there are, and ServescopeError where the past cannot be read.
    """
    known = past.deployments()
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


def read_traffic(past: History, deployments: Sequence[Deployment], start_ms: int, end_ms: int) -> ServedTraffic:
    """What a deployment served in the blocks that lie within start and end, and have closed.

    Raises UsageError where nothing of it was scraped in that time, or where prefill and decode have workers of their
    own, and ServescopeError where the past cannot be read.
    """
    first_ms = -(-start_ms // BLOCK_MS) * BLOCK_MS
    blocks = np.arange(first_ms, (end_ms - _SETTLING_MS) // BLOCK_MS * BLOCK_MS, BLOCK_MS, dtype=np.int64)
    reading = _TrafficReading(blocks)
    for begin_ms in range(first_ms, end_ms, _DAY_MS):
        targets: list[TargetIncrements] = []
        for deployment in deployments:
            targets += past.read_increments(deployment, _FAMILIES, begin_ms, min(begin_ms + _DAY_MS, end_ms))
        reading.add(targets)
    if not np.isfinite(reading.replicas).any():
        where = f"{deployments[0].model_name}/{deployments[0].deployment_id}"
        span = f"{format_instant(start_ms)} to {format_instant(end_ms)}"
        raise UsageError(f"{where}: nothing was scraped from {span}, expected a time in which it served")
    return reading.traffic(tuple(deployments), past.remarks())


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
    """Adds the increments of targets up over blocks; what a replica does not know leaves the sum of its block unknown.

    Each metric is taken from the outermost place of the deployment that shows it, replicas are counted innermost.
    """

    def __init__(self, blocks: NDArray[np.int64]) -> None:
        self._blocks = blocks
        self.replicas = np.full(blocks.size, np.nan)
        self._gauges: dict[str, Floats] = {}
        self._counters: dict[str, Floats] = {}
        self._buckets: dict[str, dict[tuple[float, ...], tuple[Floats, Floats]]] = {}
        self._usage_weights = np.zeros(blocks.size)
        self._gpus: list[int] = []

    def add(self, targets: Sequence[TargetIncrements]) -> None:
        """Add targets of other blocks than those before."""
        for target in targets:
            if target.identity.role in ("prefill", "decode"):
                raise UsageError(
                    f"{target.identity.deployment_id}: prefill and decode have workers of their own, expected a "
                    "deployment whose replicas serve whole requests, as v1's do"
                )
        outermost, innermost = _find_places(targets)
        scraped = self._most_scrapes(targets)
        for batch in batches(targets, self._blocks):
            place = _place(batch.targets[0], "requests_total")
            share = (batch.tallies["scrapes"] + batch.tallies["failed"]) / scraped[batch.columns]
            if place == innermost and batch.targets[0].identity.role in ENGINE_ROLES:
                _add(self.replicas, batch.columns, share.sum(axis=0))
                self._count_gpus(batch)
            self._add_gauges(batch, share, outermost)
            self._add_counters(batch, outermost)
            self._add_histograms(batch, outermost)

    def traffic(self, deployments: tuple[Deployment, ...], remarks: tuple[str, ...]) -> ServedTraffic:
        """All that was added."""
        unknown = np.full(self._blocks.size, np.nan)
        requests = [values for series, values in self._counters.items() if series.startswith("requests_total")]
        usage = self._gauges.get("kv_cache_usage", unknown)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_usage = usage / self._usage_weights
        return ServedTraffic(
            deployments=deployments,
            blocks=self._blocks,
            replicas=self.replicas,
            concurrency=self._gauges.get("concurrent_requests", unknown),
            queued=self._gauges.get("queued_requests", unknown),
            cache_usage=mean_usage,
            requests=_sum_known(requests) if requests else unknown,
            histograms={name: _share_edges(found) for name, found in self._buckets.items()},
            counters=self._counters,
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

    def _count_gpus(self, batch: TargetBatch) -> None:
        rows = batch.gauges.by_name.get("gpu_usage", [])
        if rows:
            self._gpus += [len(rows)] * len(batch.targets)

    def _add_gauges(self, batch: TargetBatch, share: Floats, outermost: dict[str, str]) -> None:
        for name in _GAUGES[:3]:
            if outermost.get(name) != _place(batch.targets[0], name):
                continue
            values = sum_gauges(batch, (Part(name),))
            if values is None:
                continue
            sums = self._gauges.setdefault(name, np.full(self._blocks.size, np.nan))
            _add(sums, batch.columns, (values * share).sum(axis=0))
            if name == "kv_cache_usage":
                self._usage_weights[batch.columns] += share.sum(axis=0)

    def _add_counters(self, batch: TargetBatch, outermost: dict[str, str]) -> None:
        processes = Processes(batch, {})
        for name in SERVED_COUNTERS:
            if outermost.get(name) != _place(batch.targets[0], name):
                continue
            for text, part in _parts_of(batch, name):
                values = sum_counters(batch, (part,), processes)
                if values is not None:
                    sums = self._counters.setdefault(text, np.full(self._blocks.size, np.nan))
                    # A replica's first and last scrapes lie within a block: what it did beyond them is not known.
                    _add(sums, batch.columns, np.nansum(values, axis=0))

    def _add_histograms(self, batch: TargetBatch, outermost: dict[str, str]) -> None:
        for name in SERVED_HISTOGRAMS:
            if outermost.get(name) != _place(batch.targets[0], name):
                continue
            found = read_histogram(batch, name)
            if found is None or not found.edges:
                continue
            size = self._blocks.size
            by_edges = self._buckets.setdefault(name, {})
            counts, totals = by_edges.setdefault(found.edges, (np.zeros((len(found.edges) + 1, size)), np.zeros(size)))
            whole = np.concatenate([found.cumulative, found.count[:, None]], axis=1)
            counts[:, batch.columns] += np.nansum(np.diff(whole, axis=1, prepend=0.0), axis=0)
            totals[batch.columns] += np.nansum(found.total, axis=0)


def _find_places(targets: Sequence[TargetIncrements]) -> tuple[dict[str, str], str]:
    """The outermost place of each metric, and the innermost of all."""
    found: dict[str, set[int]] = {}
    every = {PLACES.index("frontend")}
    for target in targets:
        for each in (*target.series, *target.gauges):
            family = SAMPLE_FAMILIES.get(each.name, "")
            if family in _FAMILIES:
                found.setdefault(family, set()).add(PLACES.index(_place(target, family)))
        if target.identity.role in ENGINE_ROLES:
            every.add(PLACES.index(_place(target, "requests_total")))
    return {family: PLACES[min(places)] for family, places in found.items()}, PLACES[max(every)]


def _place(target: TargetIncrements, family: str) -> str:
    return place_of(target.layer, target.identity.role, family)


def _parts_of(batch: TargetBatch, name: str) -> Iterator[tuple[str, Part]]:
    """A counter's series by the labels of its own, and how they are picked."""
    labels = METRICS[name].labels
    if not labels:
        yield name, Part(name)
        return
    for row in batch.rows.by_name.get(name, []):
        own = tuple(pair for pair in batch.rows.series[row].labels if pair[0] in labels)
        yield format_series(name, own), Part(name, tuple((label, (value,)) for label, value in own))


def _add(sums: Floats, columns: NDArray[np.int64], values: Floats) -> None:
    """Add values to sums that are NaN where nothing was added yet."""
    before = sums[columns]
    sums[columns] = np.where(np.isnan(before), values, before + values)


def _sum_known(parts: Sequence[Floats]) -> Floats:
    stacked = np.stack(parts)
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))


def _share_edges(by_edges: dict[tuple[float, ...], tuple[Floats, Floats]]) -> ServedHistogram:
    """The histograms of all replicas at the edges that they share."""
    shared = tuple(sorted(set.intersection(*(set(edges) for edges in by_edges))))
    cumulative = [
        np.cumsum(counts, axis=0)[[*(edges.index(edge) for edge in shared), len(edges)]]
        for edges, (counts, _) in by_edges.items()
    ]
    counts = np.diff(np.sum(cumulative, axis=0), axis=0, prepend=0.0)
    return ServedHistogram(shared, counts, np.sum([totals for _, totals in by_edges.values()], axis=0))
