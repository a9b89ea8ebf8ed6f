"""What the collector says about itself: the `servescope_*` series of its `/metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics_core import Metric

from servescope import __version__
from servescope.collector.scrape import OUTCOMES, Scrape
from servescope.expressions import Vector
from servescope.samples import make_labels

STAGES = ("discover", "scrape", "evaluate", "refill", "reload", "gather", "alert")
"""Where a fault of the collector's own can happen without ending it; in reading a text it is the outcome `internal`."""

REFUSALS = ("busy", "connections", "host", "origin", "oversized", "slow_reader", "token")
"""Why a client is turned away, or its connection ended."""

NOTIFIED = ("sent", "failed", "dropped")
"""What becomes of telling a receiver: a failed one is tried again, a dropped one was over before it could be told."""

RELAYED = ("kept", "known", "overlapping", "future", "unlisted", "unreadable")
"""What becomes of a scrape that a shard relayed: only one after the target's last is kept."""

_LOOP_PROBE_SECONDS = 1.0
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Telemetry:
    """Counts of the collector's own work; every method may be called from any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._scrapes = Counter("servescope_scrapes", "Scrapes, by how they ended.", ["outcome"], registry=registry)
        for outcome in OUTCOMES:
            self._scrapes.labels(outcome)
        self._scrape_seconds = Histogram(
            "servescope_scrape_duration_seconds",
            "From the start of a scrape until its samples were translated.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._samples = Counter("servescope_samples_scraped", "Native samples read from targets.", registry=registry)
        self._dropped = Counter(
            "servescope_dropped_samples", "Samples left out, by reason.", ["reason"], registry=registry
        )
        self._series = Gauge("servescope_series", "Contract series held in memory.", registry=registry)
        self._problems = Gauge(
            "servescope_discovery_problems", "Things wrong with the lists of targets now.", registry=registry
        )
        self.evaluation_seconds = Histogram(
            "servescope_evaluation_duration_seconds",
            "Deriving the figures of all deployments once.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.failures = Counter(
            "servescope_internal_errors",
            "Faults of the collector's own, by stage; each cost one scrape, one evaluation, or one look at the lists.",
            ["stage"],
            registry=registry,
        )
        for stage in STAGES:
            self.failures.labels(stage)
        self._store_backlog = Gauge(
            "servescope_store_backlog_rounds",
            "Scrapes and evaluations that wait to be written to the store.",
            registry=registry,
        )
        self._store_age = Gauge(
            "servescope_store_queue_age_seconds",
            "For how long the oldest scrape that is not stored yet has waited.",
            registry=registry,
        )
        self._store_bytes = Gauge(
            "servescope_store_bytes", "Size of the store's file and its write-ahead log.", registry=registry
        )
        self.store_pruned = Counter(
            "servescope_store_pruned_rows", "Scrapes and evaluations deleted by retention.", registry=registry
        )
        self.store_seconds = Histogram(
            "servescope_store_append_duration_seconds",
            "One transaction of scrapes and figures.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.store_errors = Counter("servescope_store_errors", "Writes to the store that failed.", registry=registry)
        self._reload_success = Gauge(
            "servescope_configuration_reload_success",
            "Whether the configuration could be taken up when it was last read.",
            registry=registry,
        )
        self._reload_seconds = Gauge(
            "servescope_configuration_reload_timestamp_seconds",
            "When the configuration was last taken up, seconds since 1970.",
            registry=registry,
        )
        self._listed = Gauge(
            "servescope_discovered_targets",
            "Targets that lists and configuration name, by what relabelling did with them.",
            ["result"],
            registry=registry,
        )
        self._register_api(registry)
        self._register_pace(registry)
        self._register_alerting(registry)
        build = Gauge("servescope_build_info", "1, with the version as label.", ["version"], registry=registry)
        build.labels(__version__).set(1)

    def _register_pace(self, registry: CollectorRegistry) -> None:
        """What is measured of the collector's own pace, and of its process."""
        self.discovery_seconds = Histogram(
            "servescope_discovery_duration_seconds",
            "Looking at the lists of targets, or at the shards, once and taking up what changed.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.render_seconds = Histogram(
            "servescope_render_duration_seconds", "Writing one /metrics page.", buckets=_SECONDS, registry=registry
        )
        self.scrape_lateness = Histogram(
            "servescope_scrape_lateness_seconds",
            "How long after the instant it was due a scrape began.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.missed_scrapes = Counter(
            "servescope_missed_scrapes",
            "Scrapes left out because the one before them, or the collector, was late.",
            registry=registry,
        )
        self.loop_lag = Histogram(
            "servescope_event_loop_lag_seconds",
            "How much later than asked for the event loop woke, tried once a second.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.relayed_scrapes = Counter(
            "servescope_relayed_scrapes",
            "Scrapes that shards relayed, by what became of them.",
            ["result"],
            registry=registry,
        )
        for result in RELAYED:
            self.relayed_scrapes.labels(result)
        ProcessCollector(registry=registry)

    def _register_api(self, registry: CollectorRegistry) -> None:
        """What is counted of those who ask the collector."""
        self._api_requests = Counter(
            "servescope_api_requests", "Requests answered, by HTTP status.", ["status"], registry=registry
        )
        self._api_seconds = Histogram(
            "servescope_api_request_duration_seconds",
            "From a request's headers until its answer was made; sending it is not included.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.api_refused = Counter(
            "servescope_api_refused", "Requests and connections turned away, by reason.", ["reason"], registry=registry
        )
        for reason in REFUSALS:
            self.api_refused.labels(reason)
        self.api_connections = Gauge("servescope_api_connections", "Connections of clients now.", registry=registry)

    def _register_alerting(self, registry: CollectorRegistry) -> None:
        """What is measured of alerts, and of telling them."""
        self.alerting_seconds = Histogram(
            "servescope_alerting_duration_seconds",
            "Evaluating all alerts once.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._left_out = Counter(
            "servescope_alerts_left_out",
            "Alerts that were not taken up at an evaluation, since as many as may be were pending or firing.",
            registry=registry,
        )
        self.notification_seconds = Histogram(
            "servescope_notification_duration_seconds",
            "Telling one receiver once, where that succeeded.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._notices = Counter(
            "servescope_notifications",
            "Alerts that receivers were told, or were to be told, by what became of it.",
            ["receiver", "result"],
            registry=registry,
        )

    def know_receiver(self, receiver: str) -> None:
        """Have a receiver's counts begin at 0."""
        for result in NOTIFIED:
            self._notices.labels(receiver, result)

    def count_notices(self, receiver: str, result: str, count: int) -> None:
        """Book alerts that a receiver was told, or was to be told."""
        self._notices.labels(receiver, result).inc(count)

    def count_left_out(self, alerts: int) -> None:
        """Book alerts that were too many."""
        self._left_out.inc(alerts)

    def read(self, names: Collection[str]) -> dict[str, Vector]:
        """The values of some series by their labels; none for a name that there is not."""
        found: dict[str, Vector] = {}
        for family in self._registry.restricted_registry(names).collect():
            for sample in family.samples:
                if sample.name in names:
                    found.setdefault(sample.name, {})[make_labels(sample.labels)] = float(sample.value)
        return found

    def count_request(self, status: int, seconds: float) -> None:
        """Book one request to the collector."""
        self._api_requests.labels(str(status)).inc()
        self._api_seconds.observe(seconds)

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
        """Keep how the configuration was read last, and when it was last taken up."""
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

    def collect(self) -> Iterable[Metric]:
        """The series as prometheus_client's families."""
        return self._registry.collect()


async def watch_event_loop(telemetry: Telemetry) -> None:
    """Book once a second how late the event loop wakes, until cancelled."""
    while True:
        asked = time.perf_counter() + _LOOP_PROBE_SECONDS
        await asyncio.sleep(_LOOP_PROBE_SECONDS)
        telemetry.loop_lag.observe(max(0.0, time.perf_counter() - asked))
