"""The history of a Prometheus without what was scraped where it may not be of its deployment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from servescope.contract.figures import FIGURES, parse_figure_key
from servescope.contract.identity import Deployment
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import Labels
from servescope.contract.types import DEFAULT_WINDOW
from servescope.increments.extrapolation import LOOKBACK_MS
from servescope.settings.values import parse_duration
from servescope.store.prometheus.batches import AskedTargets
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.figure_queries import read_names
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.prometheus.places import PLACE_LABELS, place_of
from servescope.store.prometheus.steps import read_steps
from servescope.store.prometheus.targets import PROBE_SUCCESS, UP
from servescope.store.records import FigureTable

_STEP_MS: Final = 30_000
_KEPT_SECONDS: Final = 4.0
FIGURES_MS: Final = parse_duration(DEFAULT_WINDOW) + LOOKBACK_MS + 60_000
"""How long a sample may have to do with what rules record: their window, how far back their result is taken from, and
how late they are evaluated."""
_COUNTED: Final = "replica_count_by_status"
_HEALTH: Final = (UP, PROBE_SUCCESS, _COUNTED)
"""What replicas are counted by where no collector does it."""


class Admission(Protocol):
    """Which places may be of which deployments. Safe from several threads."""

    def admits(self, deployment: Deployment, place: Labels) -> bool:
        """Whether series that were scraped at a place may be of a deployment."""

    def withhold(self, deployment: Deployment, place: Labels, series: int) -> None:
        """Book a place within what was read that may not be of the deployment, and how many series are left out.

        0 is a part of figures, which are left out because of it.
        """


class AdmittedHistory(PrometheusHistory):
    """A Prometheus of which is read what an admission admits.

    Samples of other places are left out. A collector's figures are those of pages that are admitted. Figures that rules
    record, or that are computed, over all that claims to be of a deployment are absent for as long as they may contain
    something of another place.
    """

    def __init__(self, prometheus: Prometheus, admission: Admission, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(prometheus, clock=clock)
        self.admission = admission

    def _is_admitted(self, deployment: Deployment, place: Labels, series: int = 0) -> bool:
        admitted = self.admission.admits(deployment, place)
        if not admitted and series:
            self.admission.withhold(deployment, place, series)
        return admitted

    def _admit_figures(self, deployment: Deployment, kind: str, table: FigureTable) -> FigureTable:
        """NaN where figures may be those of others as well."""
        if kind == "exposed" or not len(table.times):
            return table
        values = dict(table.values)
        counted = [key for key in values if parse_figure_key(key)[0] == _COUNTED]
        summed = [key for key in values if key not in counted and key != FILLED_SERIES]
        for keys, read in ((counted, _HEALTH), (summed, _inputs(summed))):
            if keys:
                mixed = self._are_mixed(deployment, read, table.times)
                values |= {key: np.where(mixed, np.nan, values[key]) for key in keys}
        return FigureTable(table.times, values)

    def _are_mixed(self, deployment: Deployment, names: Sequence[str], times: NDArray[np.int64]) -> NDArray[np.bool_]:
        """At which of the times something made of these series may have a part that is not admitted."""
        first = (int(times[0]) - FIGURES_MS) // _STEP_MS * _STEP_MS
        last = -(-int(times[-1]) // _STEP_MS) * _STEP_MS
        wanted = AskedTargets(deployment).select(names)
        # Of several names together, as this function alone keeps them apart.
        there = f"last_over_time({wanted}[{_STEP_MS + 1}ms])"
        found = self._keep(
            (there, first, last),
            _KEPT_SECONDS,
            lambda: list(
                read_steps(self._whole, f"group by ({', '.join(PLACE_LABELS)}) ({there})", first, last, _STEP_MS)
            ),
        )
        others = [track for track in found if not self.admission.admits(deployment, place_of(track.labels))]
        for track in others:
            self.admission.withhold(deployment, place_of(track.labels), 0)
        seen = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(track.times for track in others)]))
        mixed: NDArray[np.bool_] = np.searchsorted(seen, times - FIGURES_MS) < np.searchsorted(
            seen, times + _STEP_MS, "right"
        )
        return mixed


def _inputs(keys: Sequence[str]) -> tuple[str, ...]:
    """The names of the series that figures are made of."""
    return tuple(sorted({name for key in keys for name in read_names(FIGURES[parse_figure_key(key)[0]])}))
