"""Points of customers' streams, as a projection makes them."""

from __future__ import annotations

from collections.abc import Mapping

from servescope.contract.samples import make_labels
from servescope.customers.points.points import Descriptor, HistogramValue, Stream, StreamPoint
from servescope.customers.policy.policy import Protocol, Push, Temporality
from servescope.settings.access import Access

REQUESTS = Descriptor("servescope.requests", "requests_total", "{request}", "Requests.", "counter", whole=True)
BUSY = Descriptor("servescope.busy_time", "busy_seconds_total", "s", "Busy.", "counter")
WAITING = Descriptor("servescope.requests_waiting", "requests_waiting", "{request}", "Waiting.", "gauge")
TTFT = Descriptor(
    "servescope.time_to_first_token", "time_to_first_token_seconds", "s", "Time to the first token.", "histogram"
)
T0 = 1_790_000_000_000
MINUTE = 60_000


def stream(metric: Descriptor, *, resource: Mapping[str, str] | None = None, **attributes: str) -> Stream:
    """A stream of a deployment, unless another resource is given."""
    labels = resource or {"deployment_id": "chat"}
    return Stream(metric, make_labels(labels), make_labels(attributes), (("service.name", "chat"),))


def point(
    of: Stream, value: float | HistogramValue | None, *, at_ms: int = T0 + MINUTE, start_ms: int | None = T0
) -> StreamPoint:
    """A point; one of a gauge or without a value has no start."""
    has_start = of.metric.kind != "gauge" and value is not None
    return StreamPoint(of, start_ms if has_start else None, at_ms, value)


def kind_of_each(at_ms: int = T0 + MINUTE) -> list[StreamPoint]:
    """One point of each kind, two counters of which one has whole values."""
    values: Mapping[Descriptor, float | HistogramValue] = {
        REQUESTS: 7.0,
        BUSY: 1.25,
        WAITING: 3.0,
        TTFT: HistogramValue((0.1, 1.0), (2, 1, 1), 4.5),
    }
    return [point(stream(metric), value, at_ms=at_ms, start_ms=T0) for metric, value in values.items()]


def push_to(
    url: str,
    *,
    access: Access | None = None,
    protocol: Protocol = "otlp-http",
    temporality: Temporality = "cumulative",
    gzip: bool = True,
    timeout_seconds: float = 30.0,
) -> Push:
    """A destination."""
    return Push(
        protocol,
        url,
        access or Access(),
        temporality,
        gzip=gzip,
        most_bytes=3_000_000,
        timeout_seconds=timeout_seconds,
    )
