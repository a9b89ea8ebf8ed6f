"""What leaves: points of a customer's streams, after its policy; transports encode them and look at nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from servescope.contract.samples import Labels
from servescope.contract.types import Kind


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The header of an exported metric, in the customer's naming.

    `name` is the metric's name for OTLP and `family` its name in an exposition or in remote write, without `_bucket`
    and the like; both follow the policy. `unit` is in UCUM. `kind` is "counter", "gauge" or "histogram". `whole` says
    that values are integers.
    """

    name: str
    family: str
    unit: str
    help: str
    kind: Kind
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a customer: its metric, and its labels as they are exported: `resource` and `attributes`.

    In an exposition and in remote write both are labels of the series; their names never overlap. `service` are the
    attributes of the resource that OTLP alone has: `service.name` at least, unless `resource` has it.
    """

    metric: Descriptor
    resource: Labels
    attributes: Labels
    service: Labels


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """A histogram: its finite upper `edges`, the count of each bucket by itself, that of `+Inf` last, and the sum."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """One point of a stream.

    It covers (`start_ms`, `time_ms`]; a gauge has no start, and neither has a point whose `value` is None, by which a
    stream ends. A counter's value is its total since `start_ms`, which is the start of the count when the points are
    cumulative, and the time of the point before when they are deltas. `edges` are those of a histogram that ends: each
    of its buckets is a series in Prometheus.
    """

    stream: Stream
    start_ms: int | None
    time_ms: int
    value: float | HistogramValue | None
    edges: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A receiver's answer to one request: what it took and refused, in points; `message` is its own text.

    `sent_bytes` is the size of the request as it was sent, before compression over gRPC; `skew_seconds` how far the
    receiver's clock is ahead of ours, None when it sends no time.
    """

    points: int
    rejected: int = 0
    message: str = ""
    sent_bytes: int = 0
    skew_seconds: float | None = None

    @classmethod
    def in_part(
        cls, sent: int, rejected: int, message: str = "", *, sent_bytes: int = 0, skew_seconds: float | None = None
    ) -> Accepted:
        """The answer of a receiver that says of how many of the points sent it `rejected`, which may be any number."""
        bounded = min(max(rejected, 0), sent)
        if bounded and not message:
            message = "it does not say why"
        if bounded != rejected:
            message = f"it says that it rejected {rejected} of {sent} points; {message}"
        return cls(sent - bounded, bounded, message, sent_bytes, skew_seconds)
