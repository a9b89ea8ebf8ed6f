"""The collector's own series that follow from its state: targets, scrape ages, alerts, configured traffic."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from servescope.collector.exposition import TARGET_GAUGES, Gauges, read_lacking, read_target_gauge
from servescope.collector.fleet import TargetRegistry
from servescope.collector.paging.manager import AlertManager
from servescope.collector.targets.traffic_split import ConfiguredTraffic
from servescope.collector.telemetry import Telemetry
from servescope.contract.expressions import Vector
from servescope.contract.own_metrics import SCRAPE_AGE_SERIES, TARGET_LACKS
from servescope.contract.samples import make_labels

CONFIGURED_TRAFFIC: Final = "servescope_configured_traffic_ratio"
_TARGETS: Final = "servescope_targets"


class OwnSeries:
    """Reads them from a fleet; `traffic_split` is what each stack is to get of the requests."""

    def __init__(
        self,
        fleet: TargetRegistry,
        alerts: AlertManager,
        telemetry: Telemetry,
        traffic_split: Sequence[ConfiguredTraffic],
    ) -> None:
        self.traffic_split = traffic_split
        self._fleet, self._alerts, self._telemetry = fleet, alerts, telemetry

    def gauges(self) -> list[Gauges]:
        """What `/metrics` shows of the state now, beside the telemetry."""
        fleet = self._fleet
        return [
            Gauges(_TARGETS, list(self._counted_targets().items())),
            Gauges(SCRAPE_AGE_SERIES, list(fleet.scrape_ages())),
            Gauges(CONFIGURED_TRAFFIC, list(self._configured_traffic().items())),
            Gauges("servescope_alerts", self._alerts.counts()),
            Gauges("servescope_tasks", [((), float(len(asyncio.all_tasks())))]),
        ]

    def read(self, names: Collection[str]) -> dict[str, Vector]:
        """The series of these names that `/metrics` shows, by their labels."""
        fleet, found = self._fleet, self._telemetry.read(names)
        scraped = [
            (each.status, each.labels)
            for each in fleet.shown
            if each.status.last_scrape_ms is not None and fleet.health(each) != "unknown"
        ]
        for name in TARGET_GAUGES:
            if name in names:
                found[name] = dict(read_target_gauge(name, scraped))
        found[TARGET_LACKS] = read_lacking(scraped)
        found[_TARGETS] = self._counted_targets()
        found[SCRAPE_AGE_SERIES] = dict(fleet.scrape_ages())
        found[CONFIGURED_TRAFFIC] = self._configured_traffic()
        return found

    def _counted_targets(self) -> Vector:
        """How many targets of each deployment have which health."""
        listed = self._fleet.shown
        counts = Counter((watched.deployment, self._fleet.health(watched)) for watched in listed)
        return {
            make_labels((*deployment.labels(), ("health", health))): float(count)
            for (deployment, health), count in sorted(counts.items())
        }

    def _configured_traffic(self) -> Vector:
        return {each.labels(): each.ratio for each in self.traffic_split}
