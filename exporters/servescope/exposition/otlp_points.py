"""OTLP's data points of series: cumulative ones, or deltas from what the receiver has acknowledged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from servescope import __version__
from servescope.contract.samples import Labels
from servescope.exposition.otlp_names import NAMESPACE, SCHEMA_URL, OtlpMetric
from servescope.instruments.exponential import ExponentialState

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import Exemplar
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.resources import Resource

    from servescope.contract.openmetrics import Traced


@dataclass(frozen=True, slots=True)
class Buckets:
    """An explicit histogram's state: the counts of its buckets, `+Inf` last, and the sum."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def minus(self, earlier: Buckets) -> Buckets:
        """What was counted after an earlier state of the same histogram."""
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return Buckets(self.edges, counts, self.sum - earlier.sum)


Value = float | Buckets | ExponentialState
Key = tuple[Labels, str, Labels]


@dataclass(frozen=True, slots=True)
class SeriesState:
    """One series now: its identity's labels, since when it was counted (Unix seconds), its buckets' exemplars."""

    owner: Labels
    metric: OtlpMetric
    attributes: Labels
    value: Value
    since: float
    exemplars: Sequence[Traced] = ()

    @property
    def key(self) -> Key:
        """What identifies the series."""
        return self.owner, self.metric.name, self.attributes


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the receiver has: every series as it was at `at` (Unix seconds); None before the first export."""

    at: float | None = None
    values: Mapping[Key, Value] = field(default_factory=dict)

    def rest(self, series: SeriesState) -> tuple[Value, float]:
        """The part of the series that the receiver does not have, and since when it was counted."""
        since = series.since if self.at is None else max(self.at, series.since)
        before = self.values.get(series.key)
        return series.value if before is None else _subtract(series.value, before), since


def _subtract(value: Value, before: Value) -> Value:
    if isinstance(value, Buckets):
        return value.minus(cast("Buckets", before))
    if isinstance(value, ExponentialState):
        return value.minus(cast("ExponentialState", before))
    return value - cast("float", before)


def metrics_data(
    read: Iterable[tuple[Resource, list[SeriesState]]], acknowledged: Acknowledged | None, now: float
) -> sdk.MetricsData:
    """The points to send: the difference to what was acknowledged, or cumulative ones when that is None."""
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope = InstrumentationScope(NAMESPACE, __version__, SCHEMA_URL)
    resources = []
    for resource, series in read:
        families: dict[str, list[SeriesState]] = {}
        for one in series:
            families.setdefault(one.metric.name, []).append(one)
        metrics = [_metric(family, acknowledged, now) for family in families.values()]
        resources.append(sdk.ResourceMetrics(resource, [sdk.ScopeMetrics(scope, metrics, SCHEMA_URL)], SCHEMA_URL))
    return sdk.MetricsData(resources)


def _metric(series: list[SeriesState], acknowledged: Acknowledged | None, now: float) -> sdk.Metric:
    from opentelemetry.sdk.metrics import export as sdk

    metric = series[0].metric
    data: sdk.DataT
    if metric.kind == "gauge":
        data = sdk.Gauge([_number(one, one.value, one.since, now) for one in series])
    else:
        temporality = sdk.AggregationTemporality
        kind = temporality.CUMULATIVE if acknowledged is None else temporality.DELTA
        rests = [(one, *((one.value, one.since) if acknowledged is None else acknowledged.rest(one))) for one in series]
        if metric.kind == "counter":
            data = sdk.Sum([_number(*rest, now) for rest in rests], kind, is_monotonic=True)
        elif isinstance(series[0].value, ExponentialState):
            data = sdk.ExponentialHistogram([_exponential(*rest, now) for rest in rests], kind)
        else:
            data = sdk.Histogram([_explicit(*rest, now) for rest in rests], kind)
    return sdk.Metric(metric.name, metric.description, metric.unit, data)


def _number(series: SeriesState, value: Value, since: float, now: float) -> sdk.NumberDataPoint:
    from opentelemetry.sdk.metrics import export as sdk

    number = cast("float", value)
    if series.metric.whole:
        number = round(number)
    return sdk.NumberDataPoint(dict(series.attributes), _nanoseconds(since), _nanoseconds(now), number)


def _explicit(series: SeriesState, value: Value, since: float, now: float) -> sdk.HistogramDataPoint:
    from opentelemetry.sdk.metrics import export as sdk

    buckets = cast("Buckets", value)
    return sdk.HistogramDataPoint(
        dict(series.attributes), _nanoseconds(since), _nanoseconds(now), sum(buckets.counts), buckets.sum,
        buckets.counts, buckets.edges, *_NO_EXTREMES, _exemplars(series, since),
    )  # fmt: skip


def _exponential(series: SeriesState, value: Value, since: float, now: float) -> sdk.ExponentialHistogramDataPoint:
    from opentelemetry.sdk.metrics import export as sdk

    state = cast("ExponentialState", value)
    scale, offset, counts = state.buckets()
    return sdk.ExponentialHistogramDataPoint(
        dict(series.attributes), _nanoseconds(since), _nanoseconds(now), state.count, state.sum, scale, state.zeros,
        sdk.Buckets(offset, counts), sdk.Buckets(0, []), 0, *_NO_EXTREMES, _exemplars(series, since),
    )  # fmt: skip


# Minimum and maximum are not kept; OTLP allows that, though the SDK's types do not say so.
_NO_EXTREMES = cast("tuple[float, float]", (None, None))


def _exemplars(series: SeriesState, since: float) -> list[Exemplar]:
    """The exemplars that came since then; a trace id that is not OpenTelemetry's becomes an attribute."""
    from opentelemetry.sdk.metrics import Exemplar

    exemplars = []
    for exemplar in series.exemplars:
        if exemplar.time < since:
            continue
        trace = _trace_number(exemplar.trace_id)
        # The span is not known. The SDK sends a trace beside a span only: zero is none.
        ids = (None, None) if trace is None else (0, trace)
        attributes = {"trace_id": exemplar.trace_id} if trace is None else {}
        exemplars.append(Exemplar(attributes, exemplar.value, _nanoseconds(exemplar.time), *ids))
    return exemplars


def _trace_number(trace_id: str) -> int | None:
    """The id as a number when it has OpenTelemetry's 32 hexadecimal digits; else None."""
    if len(trace_id) == 32:
        with contextlib.suppress(ValueError):
            return int(trace_id, 16) or None
    return None


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
