"""Samples and figures as Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, Deployment
from servescope.contract.metrics import METRICS
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import Series, Window, make_labels
from servescope.store.embedded import Store
from servescope.store.exporting.output import replacing
from servescope.store.exporting.selection import LONGEST_MS, ROWS, Selection, read_windows, stretches

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Pick = Callable[[NDArray[np.intp]], dict[str, Any]]
    """What the columns of rows are, but for their time and value, by the numbers of their series."""

CONTRACT_LABELS: Final = tuple(sorted({label for metric in METRICS.values() for label in metric.labels}))
"""The labels of the contract beyond the identity's, each a column of its own."""
FIGURE_LABELS: Final = tuple(sorted({label for figure in FIGURES.values() for label in figure.by}))
"""The labels of figures beyond the deployment's, each a column of its own."""
_SAMPLE_LABELS: Final = (*IDENTITY_LABELS, *CONTRACT_LABELS)
_FIGURE_LABELS: Final = (*DEPLOYMENT_LABELS, *FIGURE_LABELS)


def samples_schema() -> pa.Schema:
    """The columns of exported samples; `le` is a bucket's edge, `labels` the native labels that no column is for."""
    import pyarrow as pa

    native = pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False)
    return _schema("metric", _SAMPLE_LABELS, pa.field("le", pa.float64()), native)


def figures_schema() -> pa.Schema:
    """The columns of exported figures, one row per deployment, instant, figure and value of its extra label."""
    return _schema("figure", _FIGURE_LABELS)


def _schema(name: str, labels: Sequence[str], *more: pa.Field) -> pa.Schema:
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field(name, text, nullable=False),
            *(pa.field(label, text) for label in labels),
            *more,
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
    with replacing(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROWS)
            written += table.num_rows
    return written


def _sample_tables(store: Store, selection: Selection) -> Iterator[pa.Table]:
    for deployment in selection.deployments:
        for name in selection.names:
            for window in read_windows(store, deployment, name, selection.start_ms, selection.end_ms):
                yield from _tables_of(window, samples_schema(), _sample_columns(window.series))


def _sample_columns(series: Sequence[Series]) -> Pick:
    import pyarrow as pa

    labels = [dict(each.labels) for each in series]
    edges = pa.array([float(each["le"]) if "le" in each else None for each in labels], pa.float64())
    named = {*_SAMPLE_LABELS, "le"}
    others = pa.array(
        [[pair for pair in each.items() if pair[0] not in named] for each in labels], pa.map_(pa.string(), pa.string())
    )
    return _columns("metric", _SAMPLE_LABELS, series, {"le": edges, "labels": others})


def _columns(name: str, labels: Sequence[str], series: Sequence[Series], more: Mapping[str, pa.Array]) -> Pick:
    """The names and these labels of series, as columns of texts, beside more."""
    import pyarrow as pa

    known = [dict(each.labels) for each in series]
    own: dict[str, list[str | None]] = {name: [each.name for each in series]}
    own |= {label: [each.get(label) for each in known] for label in labels}
    columns = {name: pa.array(values, pa.string()).dictionary_encode() for name, values in own.items()} | dict(more)

    def pick(rows: NDArray[np.intp]) -> dict[str, Any]:
        chosen = pa.array(rows)
        return {name: column.take(chosen) for name, column in columns.items()}

    return pick


def _tables_of(window: Window, schema: pa.Schema, pick: Pick) -> Iterator[pa.Table]:
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
    # With all figures comes where their window was filling.
    names = {*selection.names, *([FILLED_SERIES] if FIGURES.keys() <= set(selection.names) else [])}
    for deployment in selection.deployments:
        for first_ms, last_ms in stretches(selection.start_ms, selection.end_ms, LONGEST_MS):
            table = store.read_figures(deployment, first_ms, last_ms)
            keys = [key for key in table.values if key.partition("{")[0] in names]
            if len(table.times) and keys:
                series = tuple(_figure_series(key, deployment) for key in keys)
                window = Window(series, table.times, np.stack([table.values[key] for key in keys]))
                yield from _tables_of(window, schema, _columns("figure", _FIGURE_LABELS, series, {}))


def _figure_series(key: str, deployment: Deployment) -> Series:
    name, _, block = key.partition("{")
    # A key has at most one extra label of a closed or plain value, as the catalog makes them.
    label, _, value = block.removesuffix('"}').partition('="')
    return Series(name, make_labels((*deployment.labels(), *([(label, value)] if label else []))))
