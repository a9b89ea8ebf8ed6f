"""`servescope export`: what a store holds, as Parquet for analysis or as OpenMetrics for a Prometheus.

Both are written piece by piece: no more than one metric of one deployment over a stretch of time is in memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from servescope.collector.importing import read_span
from servescope.contract import openmetrics
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, Deployment
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Labels, Series, Window, format_series, format_value, make_labels
from servescope.contract.types import Metric
from servescope.errors import UsageError
from servescope.store.embedded import Store
from servescope.store.observed import TARGET_UP
from servescope.store.records import TargetStatus, TooLargeError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

FORMATS = ("parquet", "openmetrics")
TABLES = ("samples", "figures")
ROWS: Final = 250_000
"""Rows of a row group at most, and about how many samples are in memory at once."""
# A family of OpenMetrics is put in order within so many samples.
_BATCH_SAMPLES = 2_000_000
_SHORTEST_MS = 60_000
_LONGEST_MS = 6 * 3_600_000
# All metrics at once, to see which scrapes brought any.
_HEALTH_MS = 600_000
# Figures begin up to a window behind the first scrape.
_MARGIN_MS = 3_600_000

CONTRACT_LABELS: Final = tuple(sorted({label for metric in METRICS.values() for label in metric.labels}))
"""The labels of the contract beyond the identity's, each a column of its own."""
FIGURE_LABELS: Final = tuple(sorted({label for figure in FIGURES.values() for label in figure.by}))


@dataclass(frozen=True, slots=True)
class Selection:
    """What is exported: deployments, metrics or figures by name, and the time from start to end, both included."""

    deployments: tuple[Deployment, ...]
    names: tuple[str, ...]
    start_ms: int
    end_ms: int


# --- Parquet ----------------------------------------------------------------------------------------------------------


def samples_schema() -> pa.Schema:
    """The columns of exported samples; `le` is a bucket's edge, `labels` the native labels that no column is for."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("metric", text, nullable=False),
            *(pa.field(label, text) for label in (*IDENTITY_LABELS, *CONTRACT_LABELS)),
            pa.field("le", pa.float64()),
            pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
            pa.field("value", pa.float64(), nullable=False),
        ]
    )


def figures_schema() -> pa.Schema:
    """The columns of exported figures, one row per deployment, instant, figure and value of its extra label."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("figure", text, nullable=False),
            *(pa.field(label, text) for label in (*DEPLOYMENT_LABELS, *FIGURE_LABELS)),
            pa.field("value", pa.float64(), nullable=False),
        ]
    )


def write_samples(store: Store, selection: Selection, path: Path) -> int:
    """Write the native contract samples as Parquet; returns how many."""
    return _write_parquet(path, samples_schema(), _sample_tables(store, selection))


def write_figures(store: Store, selection: Selection, path: Path) -> int:
    """Write the figures as Parquet; returns how many values."""
    return _write_parquet(path, figures_schema(), _figure_tables(store, selection))


def _write_parquet(path: Path, schema: pa.Schema, tables: Iterator[pa.Table]) -> int:
    import pyarrow.parquet as pq

    written = 0
    with _replacing(path) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROWS)
            written += table.num_rows
    return written


def _sample_tables(store: Store, selection: Selection) -> Iterator[pa.Table]:
    for deployment in selection.deployments:
        for name in selection.names:
            for window in _windows(store, deployment, name, selection.start_ms, selection.end_ms):
                yield from _tables_of(window, samples_schema(), _sample_columns(window.series))


def _sample_columns(series: Sequence[Series]) -> Callable[[NDArray[np.intp]], dict[str, Any]]:
    """What the columns of rows are, but for their time and value, by the numbers of their series."""
    import pyarrow as pa

    labels = [dict(each.labels) for each in series]
    own: dict[str, list[str | None]] = {"metric": [each.name for each in series]}
    own |= {label: [each.get(label) for each in labels] for label in (*IDENTITY_LABELS, *CONTRACT_LABELS)}
    named = {*IDENTITY_LABELS, *CONTRACT_LABELS, "le"}
    texts = {name: pa.array(values, pa.string()).dictionary_encode() for name, values in own.items()}
    edges = pa.array([float(each["le"]) if "le" in each else None for each in labels], pa.float64())
    others = pa.array(
        [[pair for pair in each.items() if pair[0] not in named] for each in labels], pa.map_(pa.string(), pa.string())
    )

    def pick(rows: NDArray[np.intp]) -> dict[str, Any]:
        chosen = pa.array(rows)
        return {name: column.take(chosen) for name, column in (texts | {"le": edges, "labels": others}).items()}

    return pick


def _tables_of(
    window: Window, schema: pa.Schema, pick: Callable[[NDArray[np.intp]], dict[str, Any]]
) -> Iterator[pa.Table]:
    """A window's samples, series by series, as tables of a row group's size."""
    import pyarrow as pa

    rows, columns = np.nonzero(window.values == window.values)
    for first in range(0, len(rows), ROWS):
        some, at = rows[first : first + ROWS], columns[first : first + ROWS]
        picked = pick(some) | {
            "time": pa.array(window.times[at], pa.timestamp("ms", tz="UTC")),
            "value": pa.array(window.values[some, at]),
        }
        yield pa.table([picked[name] for name in schema.names], schema=schema)


def _figure_tables(store: Store, selection: Selection) -> Iterator[pa.Table]:
    schema = figures_schema()
    for deployment in selection.deployments:
        for first_ms, last_ms in _stretches(selection.start_ms, selection.end_ms, _LONGEST_MS):
            table = store.read_figures(deployment, first_ms, last_ms)
            keys = [key for key in table.values if key.partition("{")[0] in selection.names]
            if len(table.times) and keys:
                series = tuple(_figure_series(key, deployment) for key in keys)
                window = Window(series, table.times, np.stack([table.values[key] for key in keys]))
                yield from _tables_of(window, schema, _figure_columns(series))


def _figure_series(key: str, deployment: Deployment) -> Series:
    name, _, block = key.partition("{")
    # A key has at most one extra label of a closed or plain value, as the catalog makes them.
    label, _, value = block.removesuffix('"}').partition('="')
    return Series(name, make_labels((*deployment.labels(), *([(label, value)] if label else []))))


def _figure_columns(series: Sequence[Series]) -> Callable[[NDArray[np.intp]], dict[str, Any]]:
    import pyarrow as pa

    labels = [dict(each.labels) for each in series]
    own: dict[str, list[str | None]] = {"figure": [each.name for each in series]}
    own |= {label: [each.get(label) for each in labels] for label in (*DEPLOYMENT_LABELS, *FIGURE_LABELS)}
    texts = {name: pa.array(values, pa.string()).dictionary_encode() for name, values in own.items()}

    def pick(rows: NDArray[np.intp]) -> dict[str, Any]:
        chosen = pa.array(rows)
        return {name: column.take(chosen) for name, column in texts.items()}

    return pick


# --- OpenMetrics ------------------------------------------------------------------------------------------------------


def write_openmetrics(store: Store, selection: Selection, path: Path) -> int:
    """Write the native contract samples with their times, and `servescope_target_up` of each scrape; returns how many.

    The text is what `promtool tsdb create-blocks-from openmetrics` takes. A family stands together, and in it metric
    by metric; one with too many samples for that, stretch of time by stretch.
    """
    written = 0
    with _replacing(path) as partial, partial.open("wb") as file:
        for name in selection.names:
            written += _write_family(file, store, selection, METRICS[name])
        written += _write_health(file, store, selection)
        file.write(openmetrics.END)
    return written


def _write_family(file: IO[bytes], store: Store, selection: Selection, metric: Metric) -> int:
    written = 0
    for deployment in selection.deployments:
        for windows in _batches(_windows(store, deployment, metric.name, selection.start_ms, selection.end_ms)):
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
    """Each scrape as 1, or 0 where it failed: from the samples alone a failed one could not be told from none."""
    head = f"# HELP {TARGET_UP} 1 when the scrape succeeded, else 0.\n# TYPE {TARGET_UP} gauge\n"
    written = 0
    for deployment in selection.deployments:
        for labels, parts in _health_of(store, deployment, selection.start_ms, selection.end_ms).items():
            prefix = format_series(TARGET_UP, labels)
            for times, brought in parts:
                if not written:
                    file.write(head.encode())
                lines = zip(times.tolist(), brought.tolist(), strict=True)
                file.writelines(f"{prefix} {float(up)!r} {_format_moment(at)}\n".encode() for at, up in lines)
                written += len(times)
    return written


def _health_of(
    store: Store, deployment: Deployment, start_ms: int, end_ms: int
) -> dict[Labels, list[tuple[NDArray[np.int64], NDArray[np.bool_]]]]:
    """When the scrapes of a deployment's targets were, by their identity labels, and whether each brought something."""
    found: dict[Labels, list[tuple[NDArray[np.int64], NDArray[np.bool_]]]] = {}
    listed = [target for target in store.targets() if target.identity.deployment() == deployment]
    for first_ms, last_ms in _stretches(start_ms, end_ms, _HEALTH_MS):
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
    # Targets that were taken from the configuration since are known by their series alone.
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


# --- Reading the store in pieces --------------------------------------------------------------------------------------


def _windows(store: Store, deployment: Deployment, name: str, start_ms: int, end_ms: int) -> Iterator[Window]:
    """The windows of one metric that have samples, in stretches of time short enough for about `ROWS` of them."""
    first_ms, span_ms = start_ms, _SHORTEST_MS
    while first_ms <= end_ms:
        last_ms = min(first_ms + span_ms - 1, end_ms)
        try:
            windows = store.read_samples(deployment, [name], first_ms, last_ms)
        except TooLargeError:
            if first_ms == last_ms:
                raise
            span_ms = (last_ms - first_ms + 1) // 2
            continue
        size = sum(window.values.size for window in windows)
        yield from (window for window in windows if window.series)
        first_ms = last_ms + 1
        span_ms = min(_LONGEST_MS, span_ms * max(1, min(8, ROWS // max(1, size)))) if size < ROWS else span_ms // 2 + 1


def _stretches(start_ms: int, end_ms: int, length_ms: int) -> Iterator[tuple[int, int]]:
    for first_ms in range(start_ms, end_ms + 1, length_ms):
        yield first_ms, min(first_ms + length_ms - 1, end_ms)


class _replacing:  # noqa: N801  used as a verb, like open
    """Writes beside the file and then moves it there, so that a file that is there is whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(f"{path.name}.partial")

    def __enter__(self) -> Path:
        if self._path.is_dir() or not self._path.parent.is_dir():
            raise UsageError(f"--out {str(self._path)!r} is no file that can be written, expected one in a directory")
        return self._partial

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)


# --- The command ------------------------------------------------------------------------------------------------------


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope export`."""
    parser.add_argument(
        "--store",
        type=Path,
        default=Path("servescope.db"),
        metavar="FILE",
        help="the store to read (default: servescope.db)",
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the file to write")
    parser.add_argument(
        "--table", choices=TABLES, default="samples",
        help="native contract samples, or figures (Parquet only) (default: samples)",
    )  # fmt: skip
    parser.add_argument(
        "--deployment", action="append", default=[], metavar="NAME", help="only this deployment_id; may be repeated"
    )
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME",
        help="only this metric of the contract, or this figure; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--start", metavar="TIME", help="from when: 2026-11-20T14:00:00Z, or 12h before the end (default: all)"
    )
    parser.add_argument("--end", metavar="TIME", help="until when (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Export, and say what was written."""
    if arguments.format == "parquet" and find_spec("pyarrow") is None:
        raise UsageError("extra 'export' is not installed: pip install 'servescope[export]'")
    if arguments.format == "openmetrics" and arguments.table == "figures":
        raise UsageError("figures are not written as OpenMetrics: a Prometheus derives them with the recording rules")
    with Store(arguments.store, read_only=True) as store:
        selection = _select(store, arguments)
        if arguments.format == "openmetrics":
            written = write_openmetrics(store, selection, arguments.out)
        elif arguments.table == "figures":
            written = write_figures(store, selection, arguments.out)
        else:
            written = write_samples(store, selection, arguments.out)
    size = os.stat(arguments.out).st_size  # noqa: PTH116
    print(f"servescope: {written} {arguments.table} in {arguments.out}, {size} bytes", file=sys.stderr)
    return 0


def _select(store: Store, arguments: argparse.Namespace) -> Selection:
    deployments = tuple(_pick_deployments(store, arguments.deployment))
    known: Mapping[str, object] = FIGURES if arguments.table == "figures" else METRICS
    for name in arguments.metric:
        if name not in known:
            what = "figure" if arguments.table == "figures" else "metric of the contract"
            raise UsageError(f"unknown {what} {name!r}, known: {', '.join(known)}")
    held = store.held_range() or (0, 0)
    start_ms, end_ms = held[0] - _MARGIN_MS, held[1] + _MARGIN_MS
    if arguments.end is not None or arguments.start is not None:
        now_ms = end_ms if arguments.end is None else round(time.time() * 1000)
        asked = read_span(arguments.start, arguments.end, now_ms)
        start_ms, end_ms = max(start_ms, asked[0]), min(end_ms, asked[1])
    return Selection(deployments, tuple(arguments.metric or known), start_ms, end_ms)


def _pick_deployments(store: Store, wanted: Sequence[str]) -> Iterator[Deployment]:
    known = store.deployments()
    names = {deployment.deployment_id for deployment in known}
    for name in wanted:
        if name not in names:
            raise UsageError(f"unknown deployment {name!r}, in the store: {', '.join(sorted(names)) or 'none'}")
    yield from (deployment for deployment in known if not wanted or deployment.deployment_id in wanted)
