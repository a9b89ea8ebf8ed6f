"""What is counted of the clients of an HTTP API, the collector's or the judge's; and series made from their records."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from servescope.contract.own_metrics import OWN_METRICS

REFUSALS = ("busy", "connections", "host", "origin", "oversized", "slow_reader", "token")
"""Why a client is turned away, or its connection ended."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ApiTelemetry:
    """Counts of an API's requests and connections, in a registry of its own; any thread may call every method."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._api_requests = make_counter("servescope_api_requests_total", registry)
        self._api_seconds = make_histogram("servescope_api_request_duration_seconds", registry)
        self.api_refused = make_counter("servescope_api_refused_total", registry)
        for reason in REFUSALS:
            self.api_refused.labels(reason)
        self.api_connections = make_gauge("servescope_api_connections", registry)

    def count_request(self, status: int, seconds: float) -> None:
        """Book one request."""
        self._api_requests.labels(str(status)).inc()
        self._api_seconds.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The series as prometheus_client's families; when a counter began is left out."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            if family.samples:
                yield family


def make_counter(name: str, registry: CollectorRegistry) -> Counter:
    """The counter of a record of `OWN_METRICS`."""
    record = OWN_METRICS[name]
    return Counter(record.family, record.help, record.labels, registry=registry)


def make_gauge(name: str, registry: CollectorRegistry) -> Gauge:
    """The gauge of a record of `OWN_METRICS`."""
    record = OWN_METRICS[name]
    return Gauge(record.name, record.help, record.labels, registry=registry)


def make_histogram(name: str, registry: CollectorRegistry) -> Histogram:
    """The histogram of a record of `OWN_METRICS`, with the edges of all our own."""
    record = OWN_METRICS[name]
    return Histogram(record.name, record.help, record.labels, registry=registry, buckets=_SECONDS)
