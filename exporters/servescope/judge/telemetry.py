"""What a judge says about its judgement and itself: the `servescope_judgement…` series of its `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servescope import __version__
from servescope.contract.identity import GROUP_LABELS
from servescope.contract.own_metrics import OWN_METRICS
from servescope.cutover.judgement import VERDICTS, Judgement, MetricJudgement
from servescope.judge.report.latest import Latest
from servescope.settings.clock import ProgramClock
from servescope.web.telemetry import ApiTelemetry, make_counter, make_histogram

_SEVERITIES: Final = ("beyond margin", "probable")


class JudgeTelemetry(ApiTelemetry):
    """The series of one judge; `collect` belongs to the event loop, as does what it reads."""

    def __init__(self, latest: Latest, clock: ProgramClock) -> None:
        super().__init__()
        registry = self._registry
        plan = latest.run.plan
        self._seconds = make_histogram("servescope_judgement_duration_seconds", registry).labels(plan)
        self._errors = make_counter("servescope_judgement_errors_total", registry).labels(plan)
        ProcessCollector(registry=registry)
        registry.register(_Judgements(latest, clock))

    def count_judgement(self, seconds: float, *, failed: bool) -> None:
        """Book one attempt to judge."""
        self._seconds.observe(seconds)
        if failed:
            self._errors.inc()


class _Judgements(Collector):
    """The gauges of the last judgement, at the time they are scraped."""

    def __init__(self, latest: Latest, clock: ProgramClock) -> None:
        self._latest, self._clock = latest, clock

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        now_ms = self._clock.now_ms()
        judgement = self._latest.judgement(now_ms)
        found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        for name, labels, value in (*self._state(judgement, now_ms), *_metric_values(judgement)):
            if value is not None:
                found.setdefault(name, []).append((labels, float(value)))
        shared = [self._latest.run.frozen.judged.get(label, "") for label in GROUP_LABELS]
        for name, samples in found.items():
            record = OWN_METRICS[name]
            family = GaugeMetricFamily(name, record.help, labels=record.labels)
            for labels, value in samples:
                family.add_metric((judgement.plan, *shared, *labels), value)
            yield family

    def _state(self, judgement: Judgement, now_ms: int) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
        for verdict in VERDICTS:
            yield "servescope_judgement", (verdict,), verdict == judgement.verdict
        for severity in _SEVERITIES:
            yield "servescope_judgement_severity", (severity,), severity == judgement.severity
        yield "servescope_judgement_latched", (), judgement.latched_since_ms is not None
        yield "servescope_judgement_age_seconds", (), self._latest.age_seconds(now_ms)
        yield "servescope_judgement_stage", (), judgement.stage.index + 1
        yield "servescope_judgement_stages", (), judgement.stage.count
        yield "servescope_judgement_planned_share_ratio", (), judgement.stage.share
        yield "servescope_judgement_observed_share_ratio", (), judgement.stage.observed_share
        run = str(self._latest.run.number)
        yield "servescope_judgement_info", (judgement.plan_hash, run, __version__), 1.0


def _metric_values(judgement: Judgement) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    for metric in judgement.metrics:
        for verdict in VERDICTS:
            yield "servescope_judgement_metric_verdict", (metric.name, verdict), verdict == metric.verdict
        labels = (metric.name,)
        yield "servescope_judgement_metric_ratio", labels, metric.ratio
        yield "servescope_judgement_metric_ratio_low", labels, metric.low
        yield "servescope_judgement_metric_ratio_high", labels, metric.high
        yield "servescope_judgement_metric_margin_ratio", labels, metric.margin
        yield "servescope_judgement_metric_information_ratio", labels, _gathered(metric)
        yield "servescope_judgement_metric_eta_seconds", labels, metric.eta_seconds


def _gathered(metric: MetricJudgement) -> float | None:
    return metric.information / metric.information_wanted if metric.information_wanted else None
