"""The instruments in a prometheus_client registry, beside metrics of your own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from servescope.contract import openmetrics
from servescope.exposition.rendering import require_distinct
from servescope.instruments.instrument import Exposed

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as PrometheusMetric

__all__ = ["PrometheusCollector"]


class PrometheusCollector:
    """The instruments as a collector for a prometheus_client registry.

        REGISTRY.register(PrometheusCollector(engine))

    Raises UsageError when two instruments have one identity.
    """

    def __init__(self, *instruments: Exposed) -> None:
        require_distinct(instruments)
        self._instruments = instruments

    def collect(self) -> Iterator[PrometheusMetric]:
        """The families with their samples now; absent ones are left out."""
        return (family for family in self._families() if family.samples)

    def describe(self) -> Iterator[PrometheusMetric]:
        """Every possible family, so that a registry finds clashing names at registration."""
        return iter(self._families())

    def _families(self) -> list[PrometheusMetric]:
        from prometheus_client.metrics_core import Metric as PrometheusMetric

        families: dict[str, PrometheusMetric] = {}
        for one in self._instruments:
            for metric, samples, exemplars in one.exemplified():
                # The library names a counter's family without `_total`, and its samples with it.
                family = families.setdefault(
                    metric.name,
                    PrometheusMetric(metric.documented, metric.help, metric.kind, openmetrics.unit_of(metric)),
                )
                for sample in samples:
                    exemplar = exemplars.get((sample.name, sample.labels))
                    family.add_sample(
                        sample.name, dict(sample.labels), sample.value,
                        exemplar=None if exemplar is None else openmetrics.for_prometheus_client(exemplar),
                    )  # fmt: skip
        return list(families.values())
