"""Figures, targets and samples of the past, whatever holds them.

`History` is what the console and a judge read; a `Store` is one, and so is a `PrometheusHistory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from servescope.contract.events import Event
from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Labels, Window
from servescope.increments.blocks import TargetIncrements
from servescope.store.records import FigureTable, KeptAlert, RecordedSettings, TargetStatus


class History(Protocol):
    """Figures, targets and samples of the past; times in milliseconds. Raises ServescopeError."""

    @property
    def settle_ms(self) -> int:
        """How long after an instant all is there that was scraped up to it, unless it is late."""

    @property
    def prometheus_url(self) -> str:
        """Where the Prometheus is that it is; "" of a store."""
        return ""

    def deployments(self) -> list[Deployment]:
        """Every deployment it holds something of. Raises PartialError where some may be missing."""

    def listed_deployments(self) -> list[Deployment]:
        """The same without those that a partial answer lacks, which `partial` reports."""
        return self.deployments()

    def latest_figures(self) -> dict[Deployment, tuple[int, dict[str, float]]]:
        """The last figures of each deployment, and when they are from.

        While their window is not whole, `FILLED_SERIES` is how much of it (0 to 1) is there.
        """

    def read_figures(
        self,
        deployment: Deployment,
        start_ms: int,
        end_ms: int,
        *,
        names: Sequence[str] | None = None,
        max_points: int | None = None,
    ) -> FigureTable:
        """A deployment's figures from start to end, both included; `names` are figure keys, all when None.

        At most about `max_points` instants, of which the last is the newest there is. `FILLED_SERIES` is a key too, NaN
        while the window is whole.
        """

    def targets(self) -> list[TargetStatus]:
        """The latest status of every target, by target id."""

    def time_range(self) -> tuple[int, int] | None:
        """When the first and the last figures are from; None when there are none."""

    def read_samples(self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int) -> list[Window]:
        """The native samples of a deployment's targets, one window each; `names` are metrics of the contract."""

    def scrape_intervals(self) -> Mapping[Identity, int]:
        """How far the scrapes of targets are apart, at least of those whose samples were read."""

    def read_increments(
        self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int
    ) -> list[TargetIncrements]:
        """The increments of a deployment's targets in the blocks that lie between start and end, and have closed.

        `names` are metrics of the contract, gauges of `JUDGED_GAUGES` among them.
        """

    def read_events(self, start_ms: int, end_ms: int) -> list[Event]:
        """What happened from start to end, both included, in the order of time."""

    def clock_set_back(self, start_ms: int, end_ms: int, *, most: int) -> list[Event]:
        """The last times, at most so many, at which a collector's clock was set back from start to end."""
        return []

    def read_alerts(self) -> list[KeptAlert]:
        """The alerts that are pending or firing, or were resolved lately; a value that is not known is NaN."""
        return []

    def settings_at(self, time_ms: int) -> RecordedSettings | None:
        """How the figures of a time were derived; None when that is not known, as by a Prometheus."""
        return None

    def partial(self) -> tuple[str, ...]:
        """What its last answers said of parts that are missing in them; empty while all were whole."""
        return ()

    def missing_rules(self) -> Mapping[str, str]:
        """The generated files of rules that it should evaluate and does not, and what is missing without each."""
        return {}

    def uncovered(self, at_ms: int) -> Mapping[Deployment, float]:
        """The deployments whose window was not whole then: their totals are those of this share of it (0 to 1)."""
        return {}

    def spread(self) -> Mapping[Deployment, list[Labels]]:
        """The deployments with targets in several clusters, namespaces or tenants, and which these are."""
        return {}

    def unidentified(self) -> tuple[str, ...]:
        """The problems of targets whose labels are no identity, so that no page shows them."""
        return ()

    def remarks(self) -> tuple[str, ...]:
        """What it does not hold of increments and events, and what its answers warned of, for those who judge by it."""
        return ()
