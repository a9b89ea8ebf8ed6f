"""The instruments pushed by OTLP, through an exporter of the opentelemetry-sdk (extra `otlp`).

    pusher = push(engine, endpoint="http://127.0.0.1:4318/v1/metrics", temporality="delta")
    ...
    pusher.close()

Recording calls nothing of the SDK: a thread reads the instruments every `interval_seconds`, makes the SDK's data points
and passes them to its exporter. What that thread needs of each request, exponential buckets and the `gen_ai.server.*`
histograms, is counted as requests are folded, and only where somebody pushes.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.samples import Labels, Sample, Series
from servescope.errors import ServescopeError, UsageError, how_to_install
from servescope.exposition.otlp_names import (
    SCHEMA_URL,
    describe,
    describe_gen_ai,
    gen_ai_attributes,
    resource_attributes,
)
from servescope.exposition.otlp_points import Acknowledged, Buckets, SeriesState, metrics_data
from servescope.exposition.rendering import require_distinct
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.gen_ai import GenAiHistograms
from servescope.instruments.instrument import Instruments
from servescope.instruments.values import require_positive
from servescope.settings.closing import Closing

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.resources import Resource

__all__ = ["push"]

Temporality = Literal["cumulative", "delta"]
HistogramKind = Literal["explicit", "exponential"]

_CLOSE_SECONDS = 10.0

_logger = logging.getLogger("servescope")


class MetricExporter(Protocol):
    """What `exporter=` takes: a metric exporter of the opentelemetry-sdk."""

    def export(self, metrics_data: sdk.MetricsData, timeout_millis: float = ...) -> object:
        """Send, and return whether it succeeded; retries are the exporter's."""

    def shutdown(self, timeout_millis: float = ...) -> None:
        """Abandon what is being sent."""


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
    `resource_attributes` are added to those made of the identity, and override them. `operation_name` and
    `provider_name` are attributes of the `gen_ai.server.*` metrics; the default provider is the identity's inference
    stack. `exporter` is one of your own instead, for gRPC or a client certificate.

    One pusher per destination: each has a temporality and a state of its own. Raises UsageError for invalid arguments,
    and ServescopeError without the extra.
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


class OtlpPusher(Closing):
    """A running export; `exported` and `failed` count its attempts. Closing it twice does nothing.

    What a failed export carried is in the next one: cumulative figures include it in any case, and deltas are counted
    from the last export that was acknowledged. Where an acknowledgement is lost, a delta is delivered twice.
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
        self._acknowledged = Acknowledged()
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

    def _run(self) -> None:
        # gevent goes on with its threads in a forked child, where this does nothing.
        while not self._closing.wait(self._interval_seconds):
            self.flush()
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
                self._acknowledged = Acknowledged(now, {one.key: one.value for _, series in read for one in series})
                self.exported += 1
            else:
                self.failed += 1
            self._log_change(acknowledged, cause)
            return acknowledged

    def _send(self, read: list[tuple[_Source, list[SeriesState]]], now: float) -> bool:
        from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value
        from opentelemetry.sdk.metrics.export import MetricExportResult

        acknowledged = self._acknowledged if self._settings.temporality == "delta" else None
        data = metrics_data([(source.resource, series) for source, series in read], acknowledged, now)
        # As the SDK's readers do: where requests are instrumented, an export is none of the application's.
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        try:
            return self._exporter.export(data) is MetricExportResult.SUCCESS
        finally:
            detach(token)

    def _log_change(self, acknowledged: bool, cause: Exception | None) -> None:
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
        """Start counting what only a pusher needs."""
        # Made once: the SDK's detectors need threads, which cannot be started when the process ends.
        self.resource = self._make_resource()
        if self._exponential:
            self._instruments.keep_exponential()
        if isinstance(self._instruments, EngineInstruments):
            self._gen_ai = GenAiHistograms(exponential=self._exponential)
            self._instruments.watch_ended(self._gen_ai.book)

    def close(self) -> None:
        """Stop counting it; exponential buckets are kept, since another pusher may read them."""
        if self._gen_ai is not None and isinstance(self._instruments, EngineInstruments):
            self._instruments.unwatch_ended(self._gen_ai.book)

    def read(self) -> list[SeriesState]:
        return [*self._read_contract(), *self._read_conventions()]

    def _make_resource(self) -> Resource:
        from opentelemetry.sdk.resources import Resource

        attributes = resource_attributes(self._instruments.identity, self.instance_id)
        return Resource.create({**attributes, **self._settings.resource_attributes}, SCHEMA_URL)

    def _read_contract(self) -> Iterator[SeriesState]:
        since = self._instruments.created_at
        exponentials = self._instruments.exponentials() if self._exponential else {}
        for metric, samples, exemplars in self._instruments.exemplified():
            described = describe(metric)
            if metric.kind != "histogram":
                for sample in samples:
                    owner, attributes = _split(sample.labels)
                    yield SeriesState(owner, described, attributes, sample.value, since)
                continue
            for labels, buckets in _histograms(samples):
                owner, attributes = _split(labels)
                state = exponentials.get(Series(metric.name, labels))
                value, begun = (buckets, since) if state is None else (state, state.since)
                own = [each for (_, bucket), each in exemplars.items() if _without_edge(bucket) == labels]
                yield SeriesState(owner, described, attributes, value, begun, own)

    def _read_conventions(self) -> Iterator[SeriesState]:
        if self._gen_ai is None:
            return
        identity, settings = self._instruments.identity, self._settings
        for counted in self._gen_ai.counted():
            value = counted.exponential or Buckets(counted.convention.edges, tuple(counted.counts), counted.sum)
            attributes = gen_ai_attributes(
                identity,
                operation_name=settings.operation_name,
                provider_name=settings.provider_name,
                error=counted.error,
            )
            metric = describe_gen_ai(counted.convention)
            yield SeriesState(identity.labels(), metric, tuple(sorted(attributes.items())), value, self._gen_ai.since)


def _split(labels: Labels) -> tuple[Labels, Labels]:
    """The identity's labels of a series, and its attributes, which are the others."""
    owner = tuple(pair for pair in labels if pair[0] in IDENTITY_LABELS)
    return owner, tuple(pair for pair in labels if pair[0] not in IDENTITY_LABELS)


def _without_edge(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "le")


def _histograms(samples: Iterable[Sample]) -> Iterator[tuple[Labels, Buckets]]:
    """The histograms of a family, whose samples are flat and grouped by series."""
    for labels, flat in groupby(samples, lambda sample: _without_edge(sample.labels)):
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
        yield labels, Buckets(tuple(edge for edge in edges if edge != math.inf), counts, total)


# --- construction -----------------------------------------------------------------------------------------------------

_TEMPORALITY_VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_HISTOGRAM_VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_ENVIRONMENT = {
    "cumulative": "cumulative", "delta": "delta", "lowmemory": "delta",
    "explicit_bucket_histogram": "explicit", "base2_exponential_bucket_histogram": "exponential",
}  # fmt: skip


def _choose(name: str, given: str | None, supported: tuple[str, ...], variable: str) -> Any:
    """The given value, else the environment's, else the first; an unknown one raises UsageError."""
    if given is not None:
        if given not in supported:
            raise UsageError(f"unknown {name} {given!r}, supported: {', '.join(supported)}")
        return given
    configured = os.environ.get(variable, "").strip()
    if not configured:
        return supported[0]
    meant = _ENVIRONMENT.get(configured.lower())
    if meant not in supported:
        known = ", ".join(text for text, meaning in _ENVIRONMENT.items() if meaning in supported)
        raise UsageError(f"{variable} is {configured!r}, supported: {known}")
    return meant


def _is_texts(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(text, str) for pair in given.items() for text in pair)


def _require_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is {value!r}, expected a text")
    return value


def _require_distinct_resources(sources: Iterable[_Source]) -> None:
    """Raises UsageError when two have the same name and instance id: a backend may look at no other attribute."""
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
        raise ServescopeError(f"extra 'otlp' is not installed: {how_to_install('otlp')}") from error
    # Points repeat their names and bounds: they shrink to a fortieth.
    variables = ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION")
    compression = None if any(os.environ.get(variable) for variable in variables) else Compression.Gzip
    return OTLPMetricExporter(endpoint, headers=headers, compression=compression)
