"""Samples as OpenMetrics, from which promtool creates the blocks of a Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import numpy as np

from servescope.contract import openmetrics
from servescope.contract.identity import IDENTITY_LABELS, Deployment
from servescope.contract.metrics import METRICS
from servescope.contract.own_metrics import OWN_METRICS
from servescope.contract.samples import Labels, Series, Window, format_series, format_value
from servescope.contract.types import Metric
from servescope.store.embedded import Store
from servescope.store.exporting.output import replacing
from servescope.store.exporting.selection import Selection, read_windows, stretches
from servescope.store.prometheus.targets import TARGET_INFO, TARGET_UP
from servescope.store.records import TargetStatus, TooLargeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Health: TypeAlias = dict[Labels, list[tuple[NDArray[np.int64], NDArray[np.bool_]]]]

# A family is put in order within so many samples.
_BATCH_SAMPLES = 2_000_000
# All metrics at once, to see which scrapes brought any.
_HEALTH_MS = 600_000


def write_openmetrics(store: Store, selection: Selection, path: Path) -> int:
    """Write the native contract samples with their times, and what a collector exposes of scrapes; returns how many.

    That is `servescope_target_up`, and `servescope_target_info` with what is known of the target now.

    The text is input for `promtool tsdb create-blocks-from openmetrics`. The lines of a family are together, and in it
    those of each metric; in a family with too many samples, those of each stretch of time.
    """
    written = 0
    with replacing(path) as file:
        for name in selection.names:
            written += _write_family(file, store, selection, METRICS[name])
        written += _write_health(file, store, selection)
        file.write(openmetrics.END)
    return written


def _write_family(file: IO[bytes], store: Store, selection: Selection, metric: Metric) -> int:
    written = 0
    for deployment in selection.deployments:
        for windows in _batches(read_windows(store, deployment, metric.name, selection.start_ms, selection.end_ms)):
            if not written:
                file.write(openmetrics.head(metric))
            written += _write_batch(file, windows)
    return written


def _batches(windows: Iterable[Window]) -> Iterator[list[Window]]:
    """Consecutive windows, as many as may be in memory at once."""
    batch: list[Window] = []
    size = 0
    for window in windows:
        if batch and size + window.values.size > _BATCH_SAMPLES:
            yield batch
            batch, size = [], 0
        batch.append(window)
        size += window.values.size
    if batch:
        yield batch


def _write_batch(file: IO[bytes], windows: Sequence[Window]) -> int:
    """Each metric of the family together, its points in the order of time, a histogram's buckets within a point."""
    metrics: dict[Labels, list[tuple[Window, list[int]]]] = {}
    for window in windows:
        rows: dict[Labels, list[int]] = {}
        for row, series in enumerate(window.series):
            rows.setdefault(tuple(pair for pair in series.labels if pair[0] != "le"), []).append(row)
        for labels, own in rows.items():
            metrics.setdefault(labels, []).append((window, own))
    return sum(_write_points(file, window, own) for parts in metrics.values() for window, own in parts)


def _write_points(file: IO[bytes], window: Window, rows: Sequence[int]) -> int:
    ordered = sorted(rows, key=lambda row: _place_in_point(window.series[row]))
    prefixes = [format_series(*window.series[row]) for row in ordered]
    written = 0
    for time_ms, column in zip(window.times.tolist(), window.values[ordered].T.tolist(), strict=True):
        moment = _format_moment(time_ms)
        lines = [
            f"{prefix} {format_value(value)} {moment}\n"
            for prefix, value in zip(prefixes, column, strict=True)
            if value == value
        ]
        file.write("".join(lines).encode())
        written += len(lines)
    return written


def _place_in_point(series: Series) -> tuple[int, float]:
    """Buckets by their edge, then sum and count."""
    edge = dict(series.labels).get("le")
    return (0, float(edge)) if edge is not None else (1, 0.0)


def _write_health(file: IO[bytes], store: Store, selection: Selection) -> int:
    """Each scrape as 1, or 0 where it failed, as a failed one has no samples; and which source and layer it was of."""
    health: _Health = {}
    for deployment in selection.deployments:
        health |= _health_of(store, deployment, selection.start_ms, selection.end_ms)
    infos = {target.identity.labels(): target.info_labels() for target in store.targets()}
    known = {
        infos[labels]: [(times, np.ones_like(brought)) for times, brought in parts]
        for labels, parts in health.items()
        if labels in infos
    }
    return _write_gauge(file, TARGET_UP, health) + _write_gauge(file, TARGET_INFO, known)


def _write_gauge(file: IO[bytes], name: str, values: _Health) -> int:
    """A gauge of the collector that is 1 or 0."""
    if values:
        file.write(f"# HELP {name} {OWN_METRICS[name].help}\n# TYPE {name} gauge\n".encode())
    written = 0
    for labels, parts in values.items():
        prefix = format_series(name, labels)
        for times, flags in parts:
            lines = zip(times.tolist(), flags.tolist(), strict=True)
            file.writelines(f"{prefix} {float(flag)!r} {_format_moment(at)}\n".encode() for at, flag in lines)
            written += len(times)
    return written


def _health_of(store: Store, deployment: Deployment, start_ms: int, end_ms: int) -> _Health:
    """When the scrapes of a deployment's targets were, by their identity labels, and whether each brought something."""
    found: _Health = {}
    listed = [target for target in store.targets() if target.identity.deployment() == deployment]
    for first_ms, last_ms in stretches(start_ms, end_ms, _HEALTH_MS):
        for identity, health in _health_within(store, deployment, listed, first_ms, last_ms):
            found.setdefault(identity, []).append(health)
    return found


def _health_within(
    store: Store, deployment: Deployment, listed: Sequence[TargetStatus], first_ms: int, last_ms: int
) -> Iterator[tuple[Labels, tuple[NDArray[np.int64], NDArray[np.bool_]]]]:
    """The same of a stretch that is read at once, or in halves."""
    try:
        windows = store.read_samples(deployment, list(METRICS), first_ms, last_ms)
    except TooLargeError:
        if first_ms == last_ms:
            raise
        middle_ms = (first_ms + last_ms) // 2
        yield from _health_within(store, deployment, listed, first_ms, middle_ms)
        yield from _health_within(store, deployment, listed, middle_ms + 1, last_ms)
        return
    seen = set()
    # Targets that have left the configuration since are known by their series alone.
    for window in windows:
        if window.series:
            identity = tuple(pair for pair in window.series[0].labels if pair[0] in IDENTITY_LABELS)
            seen.add(identity)
            yield identity, (window.times, np.isfinite(window.values).sum(axis=0) > 0)
    for target in listed:
        identity = target.identity.labels()
        scrapes = [] if identity in seen else store.read_scrapes(target.target_id, first_ms, last_ms)
        if scrapes:
            times = np.array([time_ms for time_ms, _ in scrapes], dtype=np.int64)
            yield identity, (times, np.array([snapshot is not None for _, snapshot in scrapes], dtype=np.bool_))


def _format_moment(time_ms: int) -> str:
    return f"{time_ms // 1000}.{time_ms % 1000:03d}"
