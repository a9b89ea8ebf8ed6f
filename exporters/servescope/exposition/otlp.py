"""The instruments pushed by OTLP, through an exporter of the opentelemetry-sdk (extra `otlp`).

    pusher = push(engine, endpoint="http://127.0.0.1:4318/v1/metrics", temporality="delta")
    ...
    pusher.close()

Nothing of the SDK is called when something is recorded: a thread reads the instruments every `interval_seconds`,
makes the SDK's data points of it, and gives them to its exporter. What that thread needs of each request, exponential
buckets and the `gen_ai.server.*` histograms, is counted as requests are folded, and only where somebody pushes.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from servescope import __version__
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.samples import Labels, Sample
from servescope.contract.types import Metric, Unit
from servescope.errors import ServescopeError, UsageError
from servescope.exposition.exposition import require_distinct
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.exponential import ExponentialState
from servescope.instruments.gen_ai import GenAiHistograms
from servescope.instruments.instrument import Instruments, require_positive

if TYPE_CHECKING:
    from types import TracebackType

    from opentelemetry.sdk.metrics import Exemplar
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.resources import Resource

    from servescope.contract.openmetrics import Traced

Temporality = Literal["cumulative", "delta"]
HistogramKind = Literal["explicit", "exponential"]

NAMESPACE = "servescope"

UNITS: Mapping[Unit, str] = {
    "bytes": "By", "bytes/s": "By/s", "cores": "{cpu}", "decisions": "{decision}", "decisions/s": "{decision}/s",
    "events": "{event}", "events/s": "{event}/s", "preemptions": "{preemption}", "preemptions/s": "{preemption}/s",
    "ratio": "1", "recoveries": "{recovery}", "replicas": "{replica}", "requests": "{request}",
    "requests/s": "{request}/s", "seconds": "s", "tokens": "{token}", "tokens/s": "{token}/s", "workers": "{worker}",
}  # fmt: skip
"""The catalog's units as UCUM has them, which OpenTelemetry wants."""

_CLOSE_SECONDS = 10.0

_logger = logging.getLogger("servescope")


class MetricExporter(Protocol):
    """What `exporter=` takes: a metric exporter of the opentelemetry-sdk."""

    def export(self, metrics_data: sdk.MetricsData, timeout_millis: float = ...) -> object:
        """Send, and tell whether it went well; retries are the exporter's."""

    def shutdown(self, timeout_millis: float = ...) -> None:
        """Give up what is being sent."""


def push(
    *instruments: Instruments,
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
    temporality: Temporality | None = None,
    histograms: HistogramKind | None = None,
    interval_seconds: float = 60.0,
    resource_attributes: Mapping[str, str] | None = None,
    operation_name: str = "chat",
    provider_name: str | None = None,
    exporter: MetricExporter | None = None,
) -> OtlpPusher:
    """Push the instruments' figures every `interval_seconds` from a thread of its own, until closed.

    `endpoint` is the whole URL, `http://host:4318/v1/metrics`; None leaves it, and `headers`, to the environment
    variables of OpenTelemetry. So do `temporality` and `histograms`, whose defaults are cumulative and explicit.
    `resource_attributes` are added to those made of the identity, and win. `operation_name` and `provider_name` are
    attributes of the `gen_ai.server.*` metrics; the provider is the identity's inference stack unless told.
    `exporter` is one of your own instead, for gRPC or a client certificate.

    One pusher per destination: each has a temporality and a state of its own. Raises UsageError for what is none of
    these, and ServescopeError without the extra.
    """
    require_distinct(instruments)
    for one in instruments:
        if not isinstance(one, Instruments):
            raise UsageError(f"{one!r} cannot be pushed, expected instruments of this process: each pushes its own")
    if exporter is not None and (endpoint is not None or headers is not None):
        raise UsageError("got an exporter and an endpoint or headers, expected one: the exporter holds its own")
    if exporter is not None and not all(callable(getattr(exporter, name, None)) for name in ("export", "shutdown")):
        raise UsageError(f"exporter is {exporter!r}, expected a metric exporter of the opentelemetry-sdk")
    if headers is not None and not _is_texts(headers):
        raise UsageError("headers are no mapping of texts to texts (not shown here: they may hold credentials)")
    if resource_attributes is not None and not isinstance(resource_attributes, Mapping):
        raise UsageError(f"resource_attributes are {resource_attributes!r}, expected a mapping of texts to texts")
    settings = _Settings(
        _choose("temporality", temporality, get_args(Temporality), _TEMPORALITY_VARIABLE),
        _choose("histograms", histograms, get_args(HistogramKind), _HISTOGRAM_VARIABLE),
        {_require_text("a resource attribute's name", name): _require_text(f"resource attribute {name!r}", value)
         for name, value in (resource_attributes or {}).items()},
        _require_text("operation_name", operation_name),
        None if provider_name is None else _require_text("provider_name", provider_name),
    )  # fmt: skip
    interval_seconds = require_positive("interval_seconds", interval_seconds)
    sources = [_Source(one, settings) for one in instruments]
    _require_distinct_resources(sources)
    return OtlpPusher(sources, settings, exporter or _http_exporter(endpoint, headers), interval_seconds)


class OtlpPusher:
    """A running export; `exported` and `failed` count its attempts. Closing it twice does nothing.

    What a failed export carried is in the next one: cumulative figures have it in any case, and deltas are counted
    from the last export that was acknowledged. Where an acknowledgement is lost on its way, a delta comes twice.
    """

    def __init__(
        self, sources: list[_Source], settings: _Settings, exporter: MetricExporter, interval_seconds: float
    ) -> None:
        self.exported = 0
        self.failed = 0
        self._exporter = exporter
        self._settings = settings
        self._interval_seconds = interval_seconds
        self._sources = sources
        self._acknowledged = _Acknowledged()
        self._failing = False
        self._exporting = threading.Lock()
        self._closing = threading.Event()
        self._process = os.getpid()
        for source in sources:
            source.open()
        self._thread = threading.Thread(target=self._run, name="servescope-otlp", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def flush(self) -> bool:
        """Export now, in the caller's thread; whether the receiver acknowledged it. Not for an event loop."""
        if self._closing.is_set() or os.getpid() != self._process:
            return False
        return self._export()

    def close(self, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Export once more, and end; an export that takes longer than `timeout_seconds` is given up.

        In a forked child, where the thread is not, it does nothing.
        """
        if self._closing.is_set() or os.getpid() != self._process:
            return
        self._closing.set()
        atexit.unregister(self.close)
        self._thread.join(timeout_seconds)
        self._exporter.shutdown()
        for source in self._sources:
            source.close()

    def __enter__(self) -> OtlpPusher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_seconds):
            self._export()
        self._export()

    def _export(self) -> bool:
        with self._exporting:
            cause = None
            try:
                now = time.time()
                read = [(source, source.read()) for source in self._sources]
                acknowledged = self._send(read, now)
            except Exception as error:
                # Whatever an exporter raises, the thread goes on: what was not acknowledged is in the next export.
                acknowledged, cause = False, error
            if acknowledged:
                self._acknowledged = _Acknowledged(now, {one.key: one.value for _, series in read for one in series})
                self.exported += 1
            else:
                self.failed += 1
            self._tell(acknowledged, cause)
            return acknowledged

    def _send(self, read: list[tuple[_Source, list[_Series]]], now: float) -> bool:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = _metrics_data(read, self._acknowledged if self._settings.temporality == "delta" else None, now)
        return self._exporter.export(data) is MetricExportResult.SUCCESS

    def _tell(self, acknowledged: bool, cause: Exception | None) -> None:
        """Log the first failure of a row, and the success that ends it."""
        if acknowledged and self._failing:
            _logger.info("OTLP exports are acknowledged again")
        elif not acknowledged and not self._failing:
            reason = "" if cause is None else f": {cause!r}"
            _logger.warning("an OTLP export failed%s; its figures are sent again with the next ones", reason)
        self._failing = not acknowledged


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Settings:
    temporality: Temporality
    histograms: HistogramKind
    resource_attributes: Mapping[str, str]
    operation_name: str
    provider_name: str | None


@dataclass(frozen=True, slots=True)
class _Buckets:
    """An explicit histogram's state: the counts of its buckets, `+Inf` last, and the sum."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def minus(self, earlier: _Buckets) -> _Buckets:
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return _Buckets(self.edges, counts, self.sum - earlier.sum)


_Value = float | _Buckets | ExponentialState
_Key = tuple[Labels, str, Labels]


@dataclass(frozen=True, slots=True)
class _Family:
    """What a metric is by OTLP; the values of a whole one are integers."""

    name: str
    description: str
    unit: str
    kind: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Series:
    """One series as it stands: whose it is, since when it was counted (Unix seconds), its buckets' exemplars."""

    owner: Labels
    family: _Family
    attributes: Labels
    value: _Value
    since: float
    exemplars: Sequence[Traced] = ()

    @property
    def key(self) -> _Key:
        return self.owner, self.family.name, self.attributes


class _Source:
    """One instruments object, which is one resource of OpenTelemetry."""

    def __init__(self, instruments: Instruments, settings: _Settings) -> None:
        self._instruments = instruments
        self._settings = settings
        self._exponential = settings.histograms == "exponential"
        self._gen_ai: GenAiHistograms | None = None
        identity = instruments.identity
        self.service_name = identity.deployment_id
        self.instance_id = identity.replica or f"{identity.role}-{uuid.uuid4()}"

    def open(self) -> None:
        """Have counted what only a pusher needs."""
        # Made once: the SDK's detectors need threads, which cannot be started when the process ends.
        self.resource = self._make_resource()
        if self._exponential:
            self._instruments.keep_exponential()
        if isinstance(self._instruments, EngineInstruments):
            self._gen_ai = GenAiHistograms(exponential=self._exponential)
            self._instruments.watch_ended(self._gen_ai.book)

    def close(self) -> None:
        """Have it counted no more; exponential buckets are kept, since another pusher may read them."""
        if self._gen_ai is not None and isinstance(self._instruments, EngineInstruments):
            self._instruments.unwatch_ended(self._gen_ai.book)

    def read(self) -> list[_Series]:
        return [*self._read_contract(), *self._read_conventions()]

    def _make_resource(self) -> Resource:
        from opentelemetry.sdk.resources import Resource

        identity = self._instruments.identity
        attributes = {
            "service.name": self.service_name,
            "service.instance.id": self.instance_id,
            "deployment.environment.name": identity.environment,
            **{f"{NAMESPACE}.{name}": getattr(identity, name) for name in IDENTITY_LABELS if name != "environment"},
        }
        told = {name: value for name, value in attributes.items() if value}
        return Resource.create({**told, **self._settings.resource_attributes})

    def _read_contract(self) -> Iterator[_Series]:
        since = self._instruments.created_at
        exponentials = self._instruments.exponentials() if self._exponential else {}
        for metric, samples, exemplars in self._instruments.exemplified():
            family = _family(metric)
            if metric.kind != "histogram":
                for sample in samples:
                    yield _Series(*_split(sample.labels, family), sample.value, since)
                continue
            for labels, buckets in _histograms(samples):
                state = exponentials.get(metric.name)
                value, begun = (buckets, since) if state is None else (state, state.since)
                yield _Series(*_split(labels, family), value, begun, list(exemplars.values()))

    def _read_conventions(self) -> Iterator[_Series]:
        if self._gen_ai is None:
            return
        identity, settings = self._instruments.identity, self._settings
        attributes = {
            "gen_ai.operation.name": settings.operation_name,
            "gen_ai.provider.name": settings.provider_name or identity.inference_stack,
            "gen_ai.request.model": identity.model_name,
        }
        for told in self._gen_ai.tell():
            family = _Family(told.convention.name, told.convention.help, "s", "histogram")
            value = told.exponential or _Buckets(told.convention.edges, tuple(told.counts), told.sum)
            error = {} if told.error is None else {"error.type": told.error}
            labels = tuple(sorted({**attributes, **error}.items()))
            yield _Series(identity.labels(), family, labels, value, self._gen_ai.since)


def name_of(metric: Metric) -> str:
    """The metric's name by OTLP: in a namespace, and without the unit or `_total`, which unit and kind tell."""
    name = metric.documented.removeprefix(f"{NAMESPACE}_")
    if metric.unit == "seconds":
        name = name.removesuffix("_seconds") + ("_time" if metric.kind == "counter" else "")
    return f"{NAMESPACE}.{name}"


def _family(metric: Metric) -> _Family:
    whole = metric.kind == "counter" and metric.unit != "seconds"
    return _Family(name_of(metric), metric.help, UNITS[metric.unit], metric.kind, whole)


def _split(labels: Labels, family: _Family) -> tuple[Labels, _Family, Labels]:
    """Whose a series is, and the attributes that are left."""
    owner = tuple(pair for pair in labels if pair[0] in IDENTITY_LABELS)
    return owner, family, tuple(pair for pair in labels if pair[0] not in IDENTITY_LABELS)


def _histograms(samples: Iterable[Sample]) -> Iterator[tuple[Labels, _Buckets]]:
    """The histograms of a family, whose samples are flat and stand together by series."""
    for labels, flat in groupby(samples, lambda sample: tuple(pair for pair in sample.labels if pair[0] != "le")):
        edges: list[float] = []
        cumulative = [0]
        total = 0.0
        for sample in flat:
            if sample.name.endswith("_bucket"):
                edges.append(float(dict(sample.labels)["le"]))
                cumulative.append(int(sample.value))
            elif sample.name.endswith("_sum"):
                total = sample.value
        counts = tuple(upper - lower for lower, upper in pairwise(cumulative))
        yield labels, _Buckets(tuple(edge for edge in edges if edge != math.inf), counts, total)


# --- sending ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Acknowledged:
    """What the receiver has: every series as it stood at `at` (Unix seconds); None before the first export."""

    at: float | None = None
    values: Mapping[_Key, _Value] = field(default_factory=dict)

    def rest(self, series: _Series) -> tuple[_Value, float]:
        """What the receiver does not have of the series, and since when it came."""
        since = series.since if self.at is None else max(self.at, series.since)
        before = self.values.get(series.key)
        return series.value if before is None else _subtract(series.value, before), since


def _subtract(value: _Value, before: _Value) -> _Value:
    if isinstance(value, _Buckets):
        return value.minus(cast("_Buckets", before))
    if isinstance(value, ExponentialState):
        return value.minus(cast("ExponentialState", before))
    return value - cast("float", before)


def _metrics_data(
    read: list[tuple[_Source, list[_Series]]], acknowledged: _Acknowledged | None, now: float
) -> sdk.MetricsData:
    """The points to send; of deltas what the receiver has not acknowledged, cumulative ones when that is None."""
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope = InstrumentationScope(NAMESPACE, __version__)
    resources = []
    for source, series in read:
        families: dict[str, list[_Series]] = {}
        for one in series:
            families.setdefault(one.family.name, []).append(one)
        metrics = [_metric(family, acknowledged, now) for family in families.values()]
        resources.append(sdk.ResourceMetrics(source.resource, [sdk.ScopeMetrics(scope, metrics, "")], ""))
    return sdk.MetricsData(resources)


def _metric(series: list[_Series], acknowledged: _Acknowledged | None, now: float) -> sdk.Metric:
    from opentelemetry.sdk.metrics import export as sdk

    family = series[0].family
    data: sdk.DataT
    if family.kind == "gauge":
        data = sdk.Gauge([_number(one, one.value, one.since, now) for one in series])
    else:
        temporality = sdk.AggregationTemporality
        kind = temporality.CUMULATIVE if acknowledged is None else temporality.DELTA
        rests = [(one, *((one.value, one.since) if acknowledged is None else acknowledged.rest(one))) for one in series]
        if family.kind == "counter":
            data = sdk.Sum([_number(*rest, now) for rest in rests], kind, is_monotonic=True)
        elif isinstance(series[0].value, ExponentialState):
            data = sdk.ExponentialHistogram([_exponential(*rest, now) for rest in rests], kind)
        else:
            data = sdk.Histogram([_explicit(*rest, now) for rest in rests], kind)
    return sdk.Metric(family.name, family.description, family.unit, data)


def _number(series: _Series, value: _Value, since: float, now: float) -> sdk.NumberDataPoint:
    from opentelemetry.sdk.metrics import export as sdk

    number = cast("float", value)
    if series.family.whole:
        number = round(number)
    return sdk.NumberDataPoint(dict(series.attributes), _nanoseconds(since), _nanoseconds(now), number)


def _explicit(series: _Series, value: _Value, since: float, now: float) -> sdk.HistogramDataPoint:
    from opentelemetry.sdk.metrics import export as sdk

    buckets = cast("_Buckets", value)
    return sdk.HistogramDataPoint(
        dict(series.attributes), _nanoseconds(since), _nanoseconds(now), sum(buckets.counts), buckets.sum,
        buckets.counts, buckets.edges, *_NO_EXTREMES, _exemplars(series, since),
    )  # fmt: skip


def _exponential(series: _Series, value: _Value, since: float, now: float) -> sdk.ExponentialHistogramDataPoint:
    from opentelemetry.sdk.metrics import export as sdk

    state = cast("ExponentialState", value)
    scale, offset, counts = state.buckets()
    return sdk.ExponentialHistogramDataPoint(
        dict(series.attributes), _nanoseconds(since), _nanoseconds(now), state.count, state.sum, scale, state.zeros,
        sdk.Buckets(offset, counts), sdk.Buckets(0, []), 0, *_NO_EXTREMES, _exemplars(series, since),
    )  # fmt: skip


# Least and greatest are not kept; OTLP lets them be absent, though the SDK's types do not say so.
_NO_EXTREMES = cast("tuple[float, float]", (None, None))


def _exemplars(series: _Series, since: float) -> list[Exemplar]:
    """The exemplars that came since then; a trace id that is not OpenTelemetry's goes along as an attribute."""
    from opentelemetry.sdk.metrics import Exemplar

    told = []
    for exemplar in series.exemplars:
        if exemplar.time < since:
            continue
        trace = _trace_number(exemplar.trace_id)
        # The span is not known. The SDK sends a trace beside a span only: zero is none.
        ids = (None, None) if trace is None else (0, trace)
        attributes = {"trace_id": exemplar.trace_id} if trace is None else {}
        told.append(Exemplar(attributes, exemplar.value, _nanoseconds(exemplar.time), *ids))
    return told


def _trace_number(trace_id: str) -> int | None:
    """The id as OpenTelemetry has it, of 32 hexadecimal digits; None when it is another."""
    if len(trace_id) == 32:
        with contextlib.suppress(ValueError):
            return int(trace_id, 16) or None
    return None


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


# --- construction -----------------------------------------------------------------------------------------------------

_TEMPORALITY_VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_HISTOGRAM_VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_ENVIRONMENT = {
    "cumulative": "cumulative", "delta": "delta", "lowmemory": "delta",
    "explicit_bucket_histogram": "explicit", "base2_exponential_bucket_histogram": "exponential",
}  # fmt: skip


def _choose(name: str, given: str | None, supported: tuple[str, ...], variable: str) -> Any:
    """What is given, else what the environment says, else the first; an unknown one raises UsageError."""
    if given is not None:
        if given not in supported:
            raise UsageError(f"unknown {name} {given!r}, supported: {', '.join(supported)}")
        return given
    told = os.environ.get(variable, "").strip()
    if not told:
        return supported[0]
    meant = _ENVIRONMENT.get(told.lower())
    if meant not in supported:
        known = ", ".join(word for word, meaning in _ENVIRONMENT.items() if meaning in supported)
        raise UsageError(f"{variable} is {told!r}, supported: {known}")
    return meant


def _is_texts(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(text, str) for pair in given.items() for text in pair)


def _require_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is {value!r}, expected a text")
    return value


def _require_distinct_resources(sources: Iterable[_Source]) -> None:
    """Raises UsageError when a backend could not tell two instruments apart: it may look at no more than these two."""
    seen = set()
    for source in sources:
        resource = source.service_name, source.instance_id
        if resource in seen:
            raise UsageError(
                f"two instruments have one service.name {source.service_name!r} and service.instance.id "
                f"{source.instance_id!r}: give each a replica of its own"
            )
        seen.add(resource)


def _http_exporter(endpoint: str | None, headers: Mapping[str, str] | None) -> MetricExporter:
    if endpoint is not None and not str(endpoint).startswith(("http://", "https://")):
        raise UsageError(f"endpoint is {endpoint!r}, expected a URL such as 'http://127.0.0.1:4318/v1/metrics'")
    try:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise ServescopeError("extra 'otlp' is not installed: pip install 'servescope[otlp]'") from error
    # Points repeat their names and bounds: they shrink to a fortieth.
    variables = ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION")
    compression = None if any(os.environ.get(variable) for variable in variables) else Compression.Gzip
    return OTLPMetricExporter(endpoint, headers=headers, compression=compression)
