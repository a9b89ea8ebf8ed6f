"""What the pages ask of the store, as data frames; no widgets here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from app.data.promised import Promises, choices, promises_of
from app.elements.colors import color_stacks
from servescope.alerting.rules.promises import objectives_of
from servescope.contract.expressions import Level, Rate, leaves
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.filling import DEFAULT_WINDOW_MS, is_over_window
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.metrics import METRICS, REPLICA_START_TIME, REPLICA_STATUSES
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.types import DEFAULT_WINDOW, Figure
from servescope.settings.clock import program_clock
from servescope.sources.zeros import explain_figure
from servescope.store.embedded import Store
from servescope.store.history import History
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.prometheus.options import connect
from servescope.store.records import TargetStatus

if TYPE_CHECKING:
    from app.selection import TimeRange

MAX_POINTS = 240
"""Points a chart draws of one line; more could not be distinguished at the width of a small multiple."""
SPARK_POINTS = 60
# A figure of the past is the last one written within this time before the range's end.
_LAST_VALUE_MS = 5 * 60_000
# Points further apart than this many usual steps have a hole between them.
_HOLE_STEPS = 2.5
OBSERVED = ("present", "derived", "approximate")
"""The coverages under which a metric has a value."""
COVERAGES = (*OBSERVED, "elsewhere", "impossible")


DRAWN = {name: figure for name, figure in FIGURES.items() if name != REPLICA_START_TIME}
"""The figures of charts and averages: without a date, which is neither; charts mark the restarts."""

Trend = list[tuple[float, float]]
"""Where in a range (0 … 1), and the value there; NaN where absent."""
Record = dict[str, Any]
"""One row of a frame, by column name."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A deployment as the console names it: `name` is unique in the store and used in links, `index` its place among
    all, `color` the hue of its stack, `promised` the objectives that it is held to.
    """

    deployment: Deployment
    name: str
    index: int
    color: str
    promised: Promises = field(default_factory=objectives_of, compare=False)


def read_window_ms(store: History, time_ms: float) -> int:
    """The window that figures of a time cover, in milliseconds; what it is by default where none was recorded."""
    recorded = store.settings_at(int(time_ms))
    return DEFAULT_WINDOW_MS if recorded is None else recorded.window_ms


def describe_window(store: History, time_ms: float) -> str:
    """The window that figures of a time cover, as the collector recorded it; what it is by default when it did not."""
    recorded = store.settings_at(int(time_ms))
    if recorded is None:
        return f"the collector's own window ({DEFAULT_WINDOW.removesuffix('m')} minutes by default)"
    minutes, rest = divmod(recorded.window_ms, 60_000)
    return f"{minutes} min" if not rest else f"{recorded.window_ms / 1000:g} s"


def open_store(path: Path) -> Store:
    """The collector's store, for reading."""
    return Store(path, read_only=True, now_ms=program_clock().now_ms)


def open_prometheus(url: str, options: Mapping[str, Any]) -> PrometheusHistory:
    """A Prometheus to read from, with the options by which it lets us in."""
    return PrometheusHistory(connect(url, options))


def list_deployments(store: History) -> dict[str, Shown]:
    """Every deployment of the store by its name, sorted."""
    deployments = sorted(
        store.listed_deployments(), key=lambda one: (one.deployment_id, one.inference_stack, one.labels())
    )
    names = _name_deployments(deployments)
    chosen, targets = choices(), targets_by_deployment(store)
    hues = color_stacks((one.inference_stack for one in deployments), chosen.old_stack, chosen.new_stack)
    return {
        name: Shown(one, name, index, hues[one.inference_stack], promises_of(targets.get(one, ())))
        for index, (one, name) in enumerate(zip(deployments, names, strict=True))
    }


def cutover_pair(known: Sequence[Shown]) -> tuple[Shown, Shown] | None:
    """Two deployments of one model on different stacks, as in a cutover; None without such."""
    for place, one in enumerate(known):
        for other in known[place + 1 :]:
            same_model = one.deployment.model_name == other.deployment.model_name
            if same_model and one.deployment.inference_stack != other.deployment.inference_stack:
                return one, other
    return None


def _name_deployments(deployments: Sequence[Deployment]) -> list[str]:
    # The id alone wherever it is unique; during a cutover the same id may run on two stacks.
    forms = [
        [one.deployment_id for one in deployments],
        [f"{one.deployment_id} · {one.inference_stack}" for one in deployments],
        [" · ".join(getattr(one, label) for label in DEPLOYMENT_LABELS) for one in deployments],
    ]
    counts = [Counter(form) for form in forms]
    return [
        next((form[i] for form, count in zip(forms, counts, strict=True) if count[form[i]] == 1), forms[-1][i])
        for i in range(len(deployments))
    ]


def read_fleet(store: History, shown: Iterable[Shown], span: TimeRange) -> pd.DataFrame:
    """One row per deployment, by its name: `time_ms` of its figures and a column per figure key, NaN where absent.

    A live range shows the latest figures, another one the last before its end. A deployment that has none within the
    range has NaN everywhere, but for `time_ms` when it has older ones.
    """
    latest = store.latest_figures() if span.live else {}
    rows: dict[str, dict[str, float]] = {}
    for one in shown:
        found = latest.get(one.deployment) if span.live else _last_figures(store, one.deployment, span)
        time_ms, values = found or (math.nan, {})
        rows[one.name] = {"time_ms": float(time_ms), **(values if time_ms >= span.start_ms else {})}
    return pd.DataFrame.from_dict(rows, orient="index")


def _last_figures(store: History, deployment: Deployment, span: TimeRange) -> tuple[int, dict[str, float]] | None:
    start_ms = max(span.start_ms, span.end_ms - _LAST_VALUE_MS)
    table = store.read_figures(deployment, start_ms, span.end_ms)
    if not len(table.times):
        return None
    values = {key: float(column[-1]) for key, column in table.values.items() if not np.isnan(column[-1])}
    return int(table.times[-1]), values


def read_trends(store: History, shown: Iterable[Shown], span: TimeRange, figure: str) -> dict[str, Trend]:
    """One figure of each deployment over the range, coarsely; NaN where absent, and while its window was filling."""
    return {one.name: _read_trend(store, one.deployment, span, figure) for one in shown}


def _read_trend(store: History, deployment: Deployment, span: TimeRange, figure: str) -> Trend:
    names = [figure, FILLED_SERIES]
    table = store.read_figures(deployment, span.start_ms, span.end_ms, names=names, max_points=SPARK_POINTS)
    frame = _mark_holes(pd.DataFrame(dict(table.values), index=table.times))
    places = (frame.index.to_numpy() - span.start_ms) / (span.end_ms - span.start_ms)
    return list(zip(places.tolist(), whole_values(frame, figure).tolist(), strict=True))


def read_history(
    store: History, deployment: Deployment, span: TimeRange, *, max_points: int = MAX_POINTS
) -> pd.DataFrame:
    """A deployment's figures over the range: indexed by `time_ms`, a column per figure key, NaN where absent.

    Where nothing was written for a while a row of NaN is added, so that no line is drawn across the gap.
    """
    table = store.read_figures(deployment, span.start_ms, span.end_ms, max_points=max_points)
    frame = pd.DataFrame(dict(table.values), index=pd.Index(table.times, name="time_ms"))
    return _mark_holes(frame)


def _mark_holes(frame: pd.DataFrame) -> pd.DataFrame:
    times = frame.index.to_numpy()
    steps = np.diff(times)
    if len(steps) < 2:
        return frame
    holes = np.flatnonzero(steps > _HOLE_STEPS * np.median(steps))
    if not len(holes):
        return frame
    middles = times[holes] + steps[holes] // 2
    return frame.reindex(np.sort(np.concatenate([times, middles]))).rename_axis("time_ms")


def is_filling_at(frame: pd.DataFrame) -> pd.Series[bool]:
    """At which instants of a history the window was filling."""
    filled = frame.get(FILLED_SERIES)
    return pd.Series(False, frame.index) if filled is None else filled < 1.0


def filling_of(frame: pd.DataFrame, key: str) -> pd.Series[bool]:
    """At which instants of a history the window of a figure key was filling; at none where it is over none."""
    is_over = is_over_window(FIGURES[key.partition("{")[0]].expression)
    return is_filling_at(frame) if is_over else pd.Series(False, frame.index)


def whole_values(frame: pd.DataFrame, key: str) -> pd.Series[float]:
    """The values of a figure key over whole windows; NaN where it was filling."""
    values: pd.Series[float] = frame[key].mask(filling_of(frame, key))
    return values


def figure_columns(frame: pd.DataFrame, figure: Figure) -> dict[str, str]:
    """The figure's columns that hold any value: key by the value of its extra label, `""` where it has none."""
    keys = [key for key in frame.columns if key == figure.name or key.startswith(f"{figure.name}{{")]
    return {label_value(key): key for key in keys if frame[key].notna().any()}


def has_values(frame: pd.DataFrame, key: str) -> bool:
    """Whether a figure key has any value in the frame."""
    return key in frame and bool(frame[key].notna().any())


def label_value(key: str) -> str:
    """The value of a figure key's first extra label: `active` of `replica_count_by_status{status="active"}`."""
    return key.partition('="')[2].partition('"')[0]


def label_order(label: str) -> tuple[int, int, str]:
    """Statuses in their own order, numbers by size, other texts by letter."""
    if label in REPLICA_STATUSES:
        return REPLICA_STATUSES.index(label), 0, label
    return len(REPLICA_STATUSES), int(label) if label.isdecimal() else 0, label


def read_levels(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """The rates and levels of two histories: `figure`, `label`, and their averages over the range, `left` and `right`.

    Only of these is the average over time what happened: that of a rate is the sum over the range ÷ its length. An
    average of ratios or quantiles would be neither. Instants at which the window of a rate was filling are left out.
    """
    rows = []
    for figure in DRAWN.values():
        if not isinstance(figure.expression, Rate | Level):
            continue
        of_left, of_right = figure_columns(left, figure), figure_columns(right, figure)
        for label in sorted({*of_left, *of_right}, key=label_order):
            averages = [
                float(whole_values(frame, columns[label]).mean()) if label in columns else float("nan")
                for frame, columns in ((left, of_left), (right, of_right))
            ]
            rows.append((figure.name, label, *averages))
    return pd.DataFrame(rows, columns=["figure", "label", "left", "right"])


def read_sources(store: History) -> pd.DataFrame:
    """One row per target: its state, and how many contract metrics have each coverage.

    Failing ones come first, then those that are not understood, then those with warnings, of which each is a line.
    """
    targets = sorted(
        store.targets(),
        key=lambda one: (
            one.healthy,
            one.state == "not_understood",
            not one.warnings,
            one.identity.deployment_id,
            one.identity.inference_stack,
            one.target_id,
        ),
    )
    return pd.DataFrame([_source_row(one) for one in targets], columns=list(_SOURCE_COLUMNS))


_SOURCE_COLUMNS = (
    "target_id", "url", "deployment_id", "inference_stack", "model_name", "role", "replica", "source", "versions",
    "state", "healthy", "last_scrape_ms", "last_success_ms", "starting_since_ms", "duration_seconds", "samples",
    "error", "warnings", "missing_metrics", *COVERAGES,
)  # fmt: skip


def _source_row(target: TargetStatus) -> tuple[object, ...]:
    identity = target.identity
    counts = count_coverage(target)
    return (
        target.target_id, target.url, identity.deployment_id, identity.inference_stack, identity.model_name,
        identity.role, identity.replica, target.source, target.versions, target.state, target.healthy,
        target.last_scrape_ms,
        target.last_success_ms, math.nan if target.starting_since_ms is None else target.starting_since_ms,
        target.duration_seconds, math.nan if target.samples is None else target.samples, target.error or "",
        "\n".join(target.warnings), len(target.missing_metrics), *(counts[status] for status in COVERAGES),
    )  # fmt: skip


def count_coverage(target: TargetStatus) -> dict[str, int]:
    """How many contract metrics have each coverage at this target."""
    counts = Counter(entry["status"] for entry in target.coverage.values())
    return {status: counts[status] for status in COVERAGES}


def read_coverage(target: TargetStatus) -> pd.DataFrame:
    """One row per contract metric: its component, how this target covers it, from what native series, why not, and why
    it is 0.

    A metric that is missing, as it was there before, says what fed it then.
    """
    # A text that is missing is empty: in a frame None would become NaN.
    rows = [
        (name, METRICS[name].component, *(entry.get(part) or "" for part in ("status", "native", "reason", "zero")))
        for name, entry in ((name, _entry(target, name)) for name in METRICS if name in target.coverage)
    ]
    return pd.DataFrame(rows, columns=["metric", "component", "status", "native", "reason", "zero"])


def _entry(target: TargetStatus, name: str) -> Mapping[str, str | None]:
    former = target.missing_metrics.get(name)
    if former is None:
        return target.coverage[name]
    return {
        **target.coverage[name],
        "status": "missing",
        "reason": f"no longer exposed; its native series was {former}",
    }


def records(frame: pd.DataFrame) -> list[Record]:
    """The rows, each by column name."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def fleet_row(fleet: pd.DataFrame, name: str) -> Record:
    """A deployment's row of the fleet."""
    return {str(column): value for column, value in fleet.loc[name].to_dict().items()}


def count_replicas(row: Mapping[str, float]) -> dict[str, float]:
    """How many replicas have each status, of those statuses that are known."""
    counts = {
        status: row.get(figure_key("replica_count_by_status", {"status": status}), math.nan)
        for status in REPLICA_STATUSES
    }
    return {status: count for status, count in counts.items() if not math.isnan(count)}


def targets_by_deployment(store: History) -> Mapping[Deployment, list[TargetStatus]]:
    """The targets of each deployment."""
    grouped: dict[Deployment, list[TargetStatus]] = {}
    for target in store.targets():
        grouped.setdefault(target.identity.deployment(), []).append(target)
    return grouped


def count_unread(targets: Mapping[Deployment, Sequence[TargetStatus]], shown: Iterable[Shown]) -> dict[str, int]:
    """By the name of each deployment, how many of its targets answer and are not understood."""
    return {
        one.name: sum(target.state == "not_understood" for target in targets.get(one.deployment, ())) for one in shown
    }


def explain_value(figure: Figure, value: float | None, targets: Sequence[TargetStatus]) -> str:
    """Why a figure of a deployment is 0 or absent, as far as its targets' coverage shows; "" of any other value."""
    if value is None or math.isnan(value):
        return explain_absence(figure, targets)
    return explain_figure(figure.expression, _zeros(targets), absent=False) if value == 0 else ""


def _zeros(targets: Sequence[TargetStatus]) -> dict[str, str]:
    """Why metrics are 0 of which none of the targets that supply them has counted anything."""
    said: dict[str, list[str]] = {}
    for target in targets:
        for name, entry in target.coverage.items():
            if entry["status"] in OBSERVED:
                said.setdefault(name, []).append(entry.get("zero") or "")
    return {name: "; ".join(dict.fromkeys(texts)) for name, texts in said.items() if all(texts)}


def explain_absence(figure: Figure, targets: Sequence[TargetStatus]) -> str:
    """Why a deployment does not show a figure, as far as its targets' coverage shows."""
    if targets and all(target.state == "not_understood" for target in targets):
        return "its targets answer, and no source map reads what they expose: see the Sources page"
    if targets and not any(target.coverage for target in targets):
        # Of targets known from a Prometheus alone.
        return "no value in this window; the coverage of its targets is not stored here"
    for metric in _metrics_of(figure):
        reason = _explain_metric(metric, targets)
        if reason:
            return reason
    return explain_figure(figure.expression, _zeros(targets), absent=True) or "nothing to measure in this window"


def _metrics_of(figure: Figure) -> list[str]:
    # The sum, count and buckets of a histogram are known by the histogram's name.
    names = (
        name if name in METRICS else name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket")
        for name in leaves(figure.expression)
    )
    return sorted(dict.fromkeys(names))


def _explain_metric(metric: str, targets: Sequence[TargetStatus]) -> str | None:
    entries = [target.coverage[metric] for target in targets if metric in target.coverage]
    if any(entry["status"] in OBSERVED for entry in entries):
        return None
    reasons = [entry["reason"] for entry in entries if entry["status"] == "impossible" and entry["reason"]]
    known = METRICS.get(metric)
    return f"{metric}: {reasons[0] if reasons else known.absent if known else 'not observed'}"
