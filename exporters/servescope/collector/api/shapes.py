"""What the API's answers look like, as JSON; `openapi.py` describes the same shapes.

Numbers are encoded one column or series at a time: the interpreter does nothing else while it encodes one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.expressions import promql
from servescope.contract.figures import FIGURES
from servescope.contract.filling import describe_filling, is_over_window
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.metrics import METRICS
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import Series, Window
from servescope.contract.types import Band, Figure, Metric
from servescope.store.records import FigureTable, TargetStatus
from servescope.web.answers import json_bytes


def deployments_json(
    latest: Mapping[Deployment, tuple[int, Mapping[str, float]]], window_at: Callable[[int], int]
) -> bytes:
    """Every deployment with its latest figures; `window_at` is how long their window was at a time, in milliseconds."""
    return _object(
        deployments=_array(json_bytes(_latest_shown(each, *latest[each], window_at)) for each in sorted(latest))
    )


def _latest_shown(
    deployment: Deployment, time_ms: int, stored: Mapping[str, float], window_at: Callable[[int], int]
) -> dict[str, object]:
    figures = dict(stored)
    filled = figures.pop(FILLED_SERIES, None)
    filling = {"filled": filled, "text": describe_filling(filled, window_at(time_ms))} if filled is not None else None
    return {"deployment": labels_shown(deployment), "time_ms": time_ms, "figures": figures, "filling": filling}


def table_json(deployment: Deployment, table: FigureTable) -> bytes:
    """One deployment's figures over time, and how much of their window was there at each."""
    figures = {key: _column(column) for key, column in table.values.items() if key != FILLED_SERIES}
    filled = np.nan_to_num(table.values.get(FILLED_SERIES, np.ones(len(table.times))), nan=1.0)
    times = json_bytes(table.times.tolist())
    return _object(
        deployment=json_bytes(labels_shown(deployment)), times_ms=times, filled=_column(filled),
        figures=_object(**figures),
    )  # fmt: skip


def figures_json(start_ms: int, end_ms: int, tables: Sequence[bytes]) -> bytes:
    """The tables of all requested deployments."""
    return _object(start_ms=json_bytes(start_ms), end_ms=json_bytes(end_ms), deployments=_array(tables))


Points = dict[Series, tuple[list[int], list[float]]]
"""The times and values of series, where they had one."""


def collect_points(points: Points, windows: Iterable[Window]) -> int:
    """Add what the windows hold to the points of their series; returns how many samples that were."""
    added = 0
    for window in windows:
        for series, values in zip(window.series, window.values, strict=True):
            present = np.flatnonzero(~np.isnan(values))
            if len(present):
                times, held = points.setdefault(series, ([], []))
                times += window.times[present].tolist()
                held += values[present].tolist()
                added += len(present)
    return added


def samples_json(start_ms: int, end_ms: int, points: Mapping[Deployment, Points]) -> bytes:
    """The stored samples of each deployment, a row per series."""
    shown = (
        _object(deployment=json_bytes(labels_shown(deployment)), series=_array(_rows(of_series)))
        for deployment, of_series in points.items()
    )
    return _object(start_ms=json_bytes(start_ms), end_ms=json_bytes(end_ms), deployments=_array(shown))


class TargetShown(NamedTuple):
    """The state of a target, and its pace; the next scrape is None while it is scraped."""

    status: TargetStatus
    scrape_interval_ms: int
    next_scrape_ms: int | None


def targets_json(
    targets: Iterable[TargetShown],
    problems: Sequence[str],
    lists: Sequence[Mapping[str, object]],
    configuration: Mapping[str, object],
) -> bytes:
    """Every target, the lists they come from, what is wrong with them, and how the configuration was read."""
    return _object(
        targets=_array(json_bytes(_target_shown(each)) for each in targets),
        problems=json_bytes(list(problems)),
        lists=json_bytes(list(lists)),
        configuration=json_bytes(configuration),
    )


@functools.lru_cache(4)
def catalog_json(window: str) -> bytes:
    """Every metric and figure of the contract."""
    return json_bytes(
        {
            "metrics": [_metric_shown(metric) for metric in METRICS.values()],
            "figures": [_figure_shown(figure, window) for figure in FIGURES.values()],
        }
    )


def labels_shown(deployment: Deployment) -> dict[str, str]:
    """The labels of a deployment, empty ones too."""
    return {name: getattr(deployment, name) for name in DEPLOYMENT_LABELS}


def _rows(points: Points) -> Iterable[bytes]:
    for series in sorted(points):
        times, values = points[series]
        head = json_bytes({"name": series.name, "labels": dict(series.labels)}).removesuffix(b"}")
        yield b'%s,"times_ms":%s,"values":%s}' % (head, json_bytes(times), json_bytes(values))


def _column(values: NDArray[np.float64]) -> bytes:
    return json_bytes([None if value != value else value for value in values.tolist()])


def _object(**members: bytes) -> bytes:
    return b"{%s}" % b",".join(b"%s:%s" % (json_bytes(name), value) for name, value in members.items())


def _array(elements: Iterable[bytes]) -> bytes:
    return b"[%s]" % b",".join(elements)


def _target_shown(target: TargetShown) -> dict[str, object]:
    status = target.status
    # By name: what else the status comes to hold is not shown to everybody by itself.
    return {
        "target_id": status.target_id,
        "url": status.url,
        "identity": asdict(status.identity),
        "select": status.select,
        "source": status.source,
        "versions": status.versions,
        "state": status.state,
        "healthy": status.healthy,
        "last_scrape_ms": status.last_scrape_ms,
        "last_success_ms": status.last_success_ms,
        "starting_since_ms": status.starting_since_ms,
        "duration_seconds": status.duration_seconds,
        "samples": status.samples,
        "error": status.error,
        "scrape_interval_ms": target.scrape_interval_ms,
        "next_scrape_ms": target.next_scrape_ms,
        "coverage": {name: {**entry, "zero": entry.get("zero")} for name, entry in status.coverage.items()},
        "warnings": status.warnings,
        "missing_metrics": status.missing_metrics,
    }


def _metric_shown(metric: Metric) -> dict[str, object]:
    return {
        "name": metric.name,
        "kind": metric.kind,
        "unit": metric.unit,
        "component": metric.component,
        "help": metric.help,
        "absent": metric.absent,
        "labels": list(metric.labels),
        "label_values": {label: list(values) for label, values in metric.label_values.items()},
    }


def _figure_shown(figure: Figure, window: str) -> dict[str, object]:
    return {
        "name": figure.name,
        "title": figure.title,
        "group": figure.group,
        "unit": figure.unit,
        "help": figure.help,
        "better": figure.better,
        "idle": figure.idle,
        "over_window": is_over_window(figure.expression),
        "labels": list(figure.by),
        "exposed": figure.exposed,
        "record": figure.record(window),
        "promql": promql(figure.expression, window=window, by=(*DEPLOYMENT_LABELS, *figure.by)),
        "band": _band_shown(figure.band) if figure.band else None,
        "evidence": asdict(figure.band.evidence) if figure.band and figure.band.evidence else None,
    }


def _band_shown(band: Band) -> list[dict[str, Any]]:
    """The steps of a band in ascending order; the first has no start."""
    lowest = {"start": None, "inclusive": False, **asdict(band.lowest)}
    return [
        lowest,
        *({"start": step.start, "inclusive": step.inclusive, **asdict(step.rating)} for step in band.steps),
    ]
