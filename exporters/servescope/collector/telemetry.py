"""What the collector says about itself: the `servescope_*` series of its `/metrics`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector

from servescope import __version__
from servescope.collector.scrapes.scrape import OUTCOMES, Scrape
from servescope.contract.expressions import Vector
from servescope.contract.own_metrics import CLOCK_SERIES
from servescope.contract.samples import make_labels
from servescope.web.telemetry import ApiTelemetry, make_counter, make_gauge, make_histogram

_logger = logging.getLogger(__name__)

STAGES = ("discover", "scrape", "evaluate", "refill", "reload", "alert")
"""Where a fault of the collector's own can happen without ending it; in reading a text it is the outcome `internal`."""

NOTIFIED = ("sent", "failed", "dropped")
"""The results of notifying a receiver: a failed one is repeated, a dropped one was resolved before it was sent."""

_LOOP_PROBE_SECONDS = 1.0


class Telemetry(ApiTelemetry):
    """Counts of the collector's own work; every method may be called from any thread."""

    def __init__(self) -> None:
        super().__init__()
        registry = self._registry
        self._scrapes = make_counter("servescope_scrapes_total", registry)
        for outcome in OUTCOMES:
            self._scrapes.labels(outcome)
        self._scrape_seconds = make_histogram("servescope_scrape_duration_seconds", registry)
        self._samples = make_counter("servescope_samples_scraped_total", registry)
        self._dropped = make_counter("servescope_dropped_samples_total", registry)
        self._series = make_gauge("servescope_series", registry)
        self._problems = make_gauge("servescope_discovery_problems", registry)
        self.evaluation_seconds = make_histogram("servescope_evaluation_duration_seconds", registry)
        self.failures = make_counter("servescope_internal_errors_total", registry)
        for stage in STAGES:
            self.failures.labels(stage)
        self._store_backlog = make_gauge("servescope_store_backlog_rounds", registry)
        self._store_age = make_gauge("servescope_store_queue_age_seconds", registry)
        self._store_bytes = make_gauge("servescope_store_bytes", registry)
        self.store_pruned = make_counter("servescope_store_pruned_rows_total", registry)
        self.future_rows = make_counter("servescope_store_future_rows_total", registry)
        self.clock = make_gauge(CLOCK_SERIES, registry)
        self._steps = make_counter("servescope_clock_steps_total", registry)
        for direction in ("back", "forward"):
            self._steps.labels(direction)
        self.store_seconds = make_histogram("servescope_store_append_duration_seconds", registry)
        self.store_errors = make_counter("servescope_store_errors_total", registry)
        self._reload_success = make_gauge("servescope_configuration_reload_success", registry)
        self._reload_seconds = make_gauge("servescope_configuration_reload_timestamp_seconds", registry)
        self._listed = make_gauge("servescope_discovered_targets", registry)
        self._register_pace(registry)
        self._register_alerting(registry)
        build = make_gauge("servescope_build_info", registry)
        build.labels(__version__).set(1)

    def _register_pace(self, registry: CollectorRegistry) -> None:
        """What is measured of the collector's own pace, and of its process."""
        self.discovery_seconds = make_histogram("servescope_discovery_duration_seconds", registry)
        self.render_seconds = make_histogram("servescope_render_duration_seconds", registry)
        self.scrape_lateness = make_histogram("servescope_scrape_lateness_seconds", registry)
        self.missed_scrapes = make_counter("servescope_missed_scrapes_total", registry)
        self.loop_lag = make_histogram("servescope_event_loop_lag_seconds", registry)
        ProcessCollector(registry=registry)

    def _register_alerting(self, registry: CollectorRegistry) -> None:
        self.alerting_seconds = make_histogram("servescope_alerting_duration_seconds", registry)
        self._left_out = make_counter("servescope_alerts_left_out_total", registry)
        self.notification_seconds = make_histogram("servescope_notification_duration_seconds", registry)
        self._notices = make_counter("servescope_notifications_total", registry)

    def report_fault(self, stage: str, message: str, error: BaseException | None = None) -> None:
        """Count and log an error of ours: this one, or else the one that is being handled."""
        self.failures.labels(stage).inc()
        _logger.error("%s", message, exc_info=error or True)

    def add_receiver(self, receiver: str) -> None:
        """Expose a receiver's counters, starting at 0."""
        for result in NOTIFIED:
            self._notices.labels(receiver, result)

    def count_notifications(self, receiver: str, result: str, count: int) -> None:
        """Count alerts that were sent to a receiver, or were to be sent."""
        self._notices.labels(receiver, result).inc(count)

    def count_left_out(self, alerts: int) -> None:
        """Count alerts beyond the limit."""
        self._left_out.inc(alerts)

    def read(self, names: Collection[str]) -> dict[str, Vector]:
        """The values of some series by their labels; none for a name that there is not."""
        found: dict[str, Vector] = {}
        for family in self._registry.restricted_registry(names).collect():
            for sample in family.samples:
                if sample.name in names:
                    found.setdefault(sample.name, {})[make_labels(sample.labels)] = float(sample.value)
        return found

    def count_step(self, *, is_back: bool) -> None:
        """Book that the clock was set."""
        self._steps.labels("back" if is_back else "forward").inc()

    def count_scrape(self, scrape: Scrape) -> None:
        """Book one scrape."""
        self._scrapes.labels(scrape.outcome).inc()
        if scrape.outcome == "internal":
            self.failures.labels("scrape").inc()
        self._scrape_seconds.observe(scrape.duration_seconds)
        self._samples.inc(scrape.native_samples)
        self.count_dropped(scrape.dropped)

    def count_dropped(self, samples: Mapping[str, int]) -> None:
        """Book samples that were left out, by reason."""
        for reason, count in samples.items():
            self._dropped.labels(reason).inc(count)

    def set_state(self, *, series: int, problems: int) -> None:
        """Keep how many series are held and how many discovery problems there are."""
        self._series.set(series)
        self._problems.set(problems)

    def set_loading(self, *, success: bool, loaded_seconds: float) -> None:
        """Set how the configuration was read last, and when it was last applied."""
        self._reload_success.set(success)
        self._reload_seconds.set(loaded_seconds)

    def set_discovered(self, *, kept: int, dropped: int) -> None:
        """Keep how many targets the lists name, and how many of them relabelling dropped."""
        self._listed.labels("kept").set(kept)
        self._listed.labels("dropped").set(dropped)

    def set_store(self, *, backlog: int, age_seconds: float, size_bytes: int) -> None:
        """Keep what waits to be stored, for how long the oldest of it has, and how large the store is."""
        self._store_backlog.set(backlog)
        self._store_age.set(age_seconds)
        self._store_bytes.set(size_bytes)


async def watch_event_loop(telemetry: Telemetry) -> None:
    """Book once a second how late the event loop wakes, until cancelled."""
    while True:
        asked = time.perf_counter() + _LOOP_PROBE_SECONDS
        await asyncio.sleep(_LOOP_PROBE_SECONDS)
        telemetry.loop_lag.observe(max(0.0, time.perf_counter() - asked))
