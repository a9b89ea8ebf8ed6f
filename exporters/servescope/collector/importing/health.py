"""Which replicas were healthy when, by the scrapes of an import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.collector.figures.derive import count_targets
from servescope.collector.importing.targets import TargetStretch, is_within
from servescope.contract.identity import ENGINE_ROLES, Deployment
from servescope.contract.samples import Sample, Window


class TargetHealth(NamedTuple):
    """When one target was scraped, whether that succeeded, and how long each scrape counts.

    `role` is None where it is unknown.
    """

    times: NDArray[np.int64]
    healthy: NDArray[np.bool_]
    role: str | None
    lasting_ms: int

    @classmethod
    def of(cls, window: Window) -> TargetHealth:
        """The health of a stored target."""
        role = dict(window.series[0].labels).get("role") if window.series else None
        healthy = np.isfinite(window.values).sum(axis=0) > 0
        return cls(window.times, healthy, role, _lasting_ms(window.times))

    def within(self, start_ms: int, end_ms: int) -> bool:
        """Whether there was a scrape from start to end, both included."""
        return is_within(self.times, start_ms, end_ms)

    def is_healthy(self, at_ms: int) -> bool | None:
        """Whether the last scrape succeeded; None when it is too long ago, or of no replica."""
        last = int(np.searchsorted(self.times, at_ms, side="right")) - 1
        if self.role not in ENGINE_ROLES or last < 0 or at_ms - int(self.times[last]) > self.lasting_ms:
            return None
        return bool(self.healthy[last])


def _lasting_ms(times: NDArray[np.int64]) -> int:
    """How long a target counts after its last scrape: two of its intervals and a half."""
    return int(2.5 * np.median(np.diff(times))) if len(times) > 1 else 60_000


def failed_healths(stretches: Sequence[TargetStretch]) -> list[TargetHealth]:
    """The health of targets without a successful scrape in the stretch, whose role is not stored."""
    healths = []
    for stretch in stretches:
        scraped = {time_ms: succeeded for _, part in stretch.parts for time_ms, succeeded in part.items()}
        if scraped and not any(scraped.values()):
            times = np.array(sorted(scraped), dtype=np.int64)
            role = stretch.member.status.identity.role
            healths.append(TargetHealth(times, np.zeros(len(times), dtype=bool), role, _lasting_ms(times)))
    return healths


def count_replicas(deployment: Deployment, healths: Sequence[TargetHealth], at_ms: int) -> list[Sample]:
    """The replicas of a deployment by status at an instant."""
    counted = [healthy for each in healths if (healthy := each.is_healthy(at_ms)) is not None]
    return count_targets(deployment, counted) if counted else []
