"""What the customers' export says of itself: the `servescope_customer_*` series of its `/metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servescope.contract.own_metrics import LANE_LABELS, OWN_METRICS
from servescope.customers.lanes.cursors import LaneId
from servescope.customers.points.points import Accepted
from servescope.customers.policy.policy import Pull
from servescope.settings.clock import ProgramClock
from servescope.web.telemetry import ApiTelemetry, make_counter, make_histogram

_RECENT_MS: Final = 3_600_000
_COUNTERS: Final = (
    "sent_points",
    "sent_bytes",
    "acknowledged_points",
    "dropped_points",
    "requests",
    "gaps",
    "gap_seconds",
)


class CustomersTelemetry(ApiTelemetry):
    """The series of one process; its methods may be called from any thread."""

    def __init__(self, clock: ProgramClock) -> None:
        super().__init__()
        registry = self._registry
        self._clock = clock
        self._counters = {name: make_counter(f"servescope_customer_{name}_total", registry) for name in _COUNTERS}
        self._errors = make_counter("servescope_customer_internal_errors_total", registry)
        self._scrapes = make_counter("servescope_customer_scrapes_total", registry)
        self._seconds = make_histogram("servescope_customer_request_duration_seconds", registry)
        self._lanes: dict[LaneId, LaneTelemetry] = {}
        self.count_claims: Callable[[str], int] = lambda _customer: 0
        """How many series claim a deployment of a customer and may not, where that is compared."""
        ProcessCollector(registry=registry)
        registry.register(_Levels(self, clock))

    def count_scrape(self, customer: str, status: int) -> None:
        """Book a request for a customer's page that had its token."""
        self._scrapes.labels(customer, str(status)).inc()

    def lane(self, lane: LaneId) -> LaneTelemetry:
        """The series of one lane, from now on."""
        found = self._lanes[lane] = LaneTelemetry(self, lane, self._clock)
        return found

    def retire(self, lane: LaneId) -> None:
        """End the series of a lane."""
        self._lanes.pop(lane, None)
        if lane.destination == Pull.name:
            self._scrapes.remove_by_labels({"customer": lane.customer})
        for counter in (*self._counters.values(), self._errors, self._seconds):
            counter.remove_by_labels(dict(zip(LANE_LABELS, (lane.customer, lane.destination), strict=True)))


class LaneTelemetry:
    """The series of one lane."""

    def __init__(self, telemetry: CustomersTelemetry, lane: LaneId, clock: ProgramClock) -> None:
        self._telemetry, self._labels, self._clock = telemetry, (lane.customer, lane.destination), clock
        self.boundary_ms = clock.now_ms()
        self.last_success_ms: int | None = None
        self.failing_since_ms: int | None = None
        self.skew_seconds: float | None = None
        self.exported: int | None = None
        self._gaps: list[tuple[int, int]] = []
        self.withheld: Mapping[str, int] = {}
        for name in ("sent_points", "sent_bytes", "acknowledged_points"):
            telemetry._counters[name].labels(*self._labels)
        telemetry._counters["requests"].labels(*self._labels, "ok")
        telemetry._errors.labels(*self._labels)

    def _count(self, name: str, amount: float, *labels: str) -> None:
        self._telemetry._counters[name].labels(*self._labels, *labels).inc(amount)

    def set_boundary(self, boundary_ms: int) -> None:
        """Set the last boundary that was acknowledged; before the first, when the lane began."""
        self.boundary_ms = boundary_ms

    def set_exported(self, streams: int, withheld: Counter[str]) -> None:
        """Set how many streams have a point at a boundary, and how many series were withheld, by reason."""
        self.exported, self.withheld = streams, withheld

    def count_request(self, seconds: float, points: int, accepted: Accepted) -> None:
        """Book a request that was answered, with the points that were sent in it."""
        self.failing_since_ms = None
        self.last_success_ms = self._clock.now_ms()
        self._telemetry._seconds.labels(*self._labels).observe(seconds)
        self._count("requests", 1, "ok")
        self._count("sent_points", points)
        self._count("acknowledged_points", points - accepted.rejected)
        self._count("sent_bytes", accepted.sent_bytes)
        if accepted.skew_seconds is not None:
            self.skew_seconds = accepted.skew_seconds

    def count_failure(self, reason: str, seconds: float, points: int) -> None:
        """Book a request that failed."""
        if self.failing_since_ms is None:
            self.failing_since_ms = self._clock.now_ms()
        self._telemetry._seconds.labels(*self._labels).observe(seconds)
        self._count("requests", 1, reason)
        self._count("sent_points", points)

    def count_dropped(self, reason: str, points: int) -> None:
        """Book points that are given up."""
        self._count("dropped_points", points, reason)

    def count_gap(self, reason: str, length_ms: int) -> None:
        """Book a time of which points are missing."""
        self._count("gaps", 1, reason)
        self._count("gap_seconds", length_ms / 1000, reason)
        self._gaps.append((self._clock.now_ms(), length_ms))

    def count_internal_error(self) -> None:
        """Book an error of the export itself."""
        self._telemetry._errors.labels(*self._labels).inc()

    def recent_gap_seconds(self, now_ms: int) -> float:
        """How long the gaps are that were found within the last hour."""
        self._gaps = [gap for gap in self._gaps if now_ms - gap[0] < _RECENT_MS]
        return sum(length_ms for _, length_ms in self._gaps) / 1000

    def failing_seconds(self, now_ms: int) -> float:
        """Since when the destination has accepted nothing that was sent."""
        return 0.0 if self.failing_since_ms is None else max(now_ms - self.failing_since_ms, 0) / 1000

    def lag_seconds(self, now_ms: int) -> float:
        """How far behind the lane is; of a cursor from the future, how long nothing is sent."""
        return abs(now_ms - self.boundary_ms) / 1000


class _Levels(Collector):
    """The gauges of all lanes, at the time they are scraped."""

    def __init__(self, telemetry: CustomersTelemetry, clock: ProgramClock) -> None:
        self._telemetry, self._clock = telemetry, clock

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        lanes = OWN_METRICS["servescope_customer_lanes"]
        yield GaugeMetricFamily(lanes.name, lanes.help, len(self._telemetry._lanes))
        families: dict[str, GaugeMetricFamily] = {}
        now_ms = self._clock.now_ms()
        for lane, known in list(self._telemetry._lanes.items()):
            for name, value, *labels in _levels(known, now_ms, self._telemetry.count_claims(lane.customer)):
                record = OWN_METRICS[f"servescope_customer_{name}"]
                family = families.setdefault(name, GaugeMetricFamily(record.name, record.help, labels=record.labels))
                family.add_metric((lane.customer, lane.destination, *labels), value)
        yield from families.values()


def _levels(lane: LaneTelemetry, now_ms: int, claims: int) -> Iterator[tuple[str, float] | tuple[str, float, str]]:
    yield "lag_seconds", lane.lag_seconds(now_ms)
    yield "recent_gap_seconds", lane.recent_gap_seconds(now_ms)
    yield "failing_seconds", lane.failing_seconds(now_ms)
    if lane.exported is not None:
        yield "exported_series", float(lane.exported)
        withheld = {**lane.withheld, "claim": claims} if claims else lane.withheld
        for reason, count in sorted(withheld.items()):
            yield "withheld_series", float(count), reason
    if lane.skew_seconds is not None:
        yield "clock_skew_seconds", lane.skew_seconds
    if lane.last_success_ms is not None:
        yield "last_success_timestamp_seconds", lane.last_success_ms / 1000
