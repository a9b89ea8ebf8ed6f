"""What a translator says about itself: the `servescope_probe_*` series of its `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import ProcessCollector

from servescope import __version__
from servescope.collector.scrapes.scrape import OUTCOMES
from servescope.translate.slots import BUSY
from servescope.web.telemetry import ApiTelemetry, make_counter, make_gauge, make_histogram

REFUSED = ("target", "claim", "source", "behind", "parameter", "busy")
"""What can be wrong with a request for a probe, and that there are too many of them."""


class ProbeTelemetry(ApiTelemetry):
    """Counts of a translator's work."""

    def __init__(self) -> None:
        super().__init__()
        registry = self._registry
        self._outcomes = make_counter("servescope_probe_requests_total", registry)
        for outcome in (*OUTCOMES, "translator", BUSY):
            self._outcomes.labels(outcome)
        self.refused = make_counter("servescope_probe_refused_total", registry)
        for reason in REFUSED:
            self.refused.labels(reason)
        self._seconds = make_histogram("servescope_probe_request_duration_seconds", registry)
        self.translation_seconds = make_histogram("servescope_probe_translation_duration_seconds", registry)
        self.in_progress = make_gauge("servescope_probe_in_progress", registry)
        self._samples = make_counter("servescope_probe_samples_total", registry)
        self._dropped = make_counter("servescope_probe_dropped_samples_total", registry)
        self.cached_series = make_gauge("servescope_probe_cached_series", registry)
        self.reload_success = make_gauge("servescope_probe_reload_success", registry)
        self.reload_success.set(1)
        make_gauge("servescope_probe_build_info", registry).labels(__version__).set(1)
        ProcessCollector(registry=registry)

    def count_probe(self, outcome: str, seconds: float) -> None:
        """Book how one probe ended."""
        self._outcomes.labels(outcome).inc()
        self._seconds.observe(seconds)

    def count_samples(self, native: int, dropped: Mapping[str, int]) -> None:
        """Book what one page had."""
        self._samples.inc(native)
        for reason, count in dropped.items():
            self._dropped.labels(reason).inc(count)
