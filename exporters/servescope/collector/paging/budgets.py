"""Error budgets: the bad share of an objective, and the requests that ended, over windows longer than scrapes are held.

The increases of counters are summed per deployment, and the sums are kept at instants that are the further apart the
older they are. The share over a window is the quotient of two differences of sums. It is exact for a window whose start
is earlier by at most 1/120 of its length, or by 15 s and an evaluation interval, and one scrape. Prometheus'
extrapolation to the window's ends cancels out where all targets were there throughout.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.alerting.rules.labelled import NOTHING, Keys, Labelled
from servescope.collector.paging.recent_values import RecentValues
from servescope.contract.expressions import FractionAbove, Matchers, Rate, Ratio, matches
from servescope.contract.identity import Deployment
from servescope.contract.objectives import ENDED
from servescope.contract.samples import Series, Snapshot
from servescope.contract.types import Objective
from servescope.errors import UsageError
from servescope.increments.extrapolation import Floats, step_gains

Sums = Mapping[Deployment, Sequence[float]]
"""By deployment, the increase of each part since it was first seen, then the number of comparisons of each.

Stored sums begin with a checksum of the parts.
"""

SPACING_MS: Final = 15_000
"""The least time between instants that are kept."""

FULL_MS: Final = 3_600_000
"""Every instant is kept for this long, then every second one for as long again, every fourth for twice as long …"""

_THINNED_EVERY: Final = 64
_MOST_SERIES: Final = 1_000


class _Part(NamedTuple):
    """Counters that are summed: those of a name that match, and with `edges` the buckets of the first that there is."""

    name: str
    where: Matchers
    edges: tuple[float, ...]

    def holds(self, series: Series, known: Collection[float]) -> bool:
        """Whether the part counts a series, of a target whose buckets of this name have the edges `known`."""
        if series.name != self.name:
            return False
        labels = dict(series.labels)
        if not matches(labels, self.where):
            return False
        return not self.edges or _edge(labels) == next((edge for edge in self.edges if edge in known), math.nan)


class _Shares(NamedTuple):
    """An objective's share as a quotient of two parts; with `is_rest` it is 1 minus that quotient."""

    above: int
    below: int
    is_rest: bool


@dataclass(slots=True)
class _Counted:
    """A target's counters: their indexes in a scrape, the parts they add to, and their values."""

    deployment: Deployment
    series: tuple[Series, ...]
    places: NDArray[np.intp]
    into: Floats
    values: Floats
    # The last value of counters that the target does not expose at the moment.
    last: dict[Series, float]


class Budgets:
    """The bad shares of objectives over long windows, per deployment. Not thread safe."""

    def __init__(self, objectives: Iterable[Objective], longest_ms: int) -> None:
        parts: dict[_Part, int] = {}
        self._shares = {each: _shares_of(each, parts) for each in objectives}
        self._ended = parts.setdefault(_Part(ENDED.name, ENDED.where, ()), len(parts))
        self._parts = tuple(parts)
        # Recognizes sums that another release stored for other objectives.
        self._mark = float(zlib.crc32(repr(self._parts).encode()))
        self._longest_ms = longest_ms
        self._counted: dict[str, _Counted] = {}
        self._sums: dict[Deployment, Floats] = {}
        # The deployments with sums, and their labels.
        self._labelled: list[Deployment] = []
        self._keys = NOTHING.keys
        # A row per kept instant; a column per deployment and part, for the sum and for the number of comparisons.
        self._kept: RecentValues[int] = RecentValues(2 * longest_ms)
        # The first column key of each deployment.
        self._firsts: dict[Deployment, int] = {}
        self._next_first = 0
        self._since_thinned = 0

    # --- Counting -----------------------------------------------------------------------------------------------------

    def count(self, target_id: str, deployment: Deployment, snapshot: Snapshot, *, is_known: bool = False) -> None:
        """Add a target's increases since its last scrape; with `is_known` only remember its values."""
        counted = self._counted.get(target_id)
        if counted is None or counted.series is not snapshot.series or counted.deployment != deployment:
            counted = self._counted[target_id] = self._place(deployment, snapshot.series, counted)
        if not counted.places.size:
            return
        values = snapshot.values[counted.places]
        # An infinite value would stay in the sums for ever.
        values = np.where(np.isfinite(values), values, np.nan)
        if not is_known:
            with np.errstate(invalid="ignore"):
                grown = step_gains(counted.values, values, values < counted.values)
            compared = ~np.isnan(grown)
            sums = self._sums.get(deployment)
            if sums is None:
                sums = self._sums[deployment] = np.zeros(2 * len(self._parts))
            sums[: len(self._parts)] += counted.into @ np.where(compared, grown, 0.0)
            sums[len(self._parts) :] += counted.into @ compared
        counted.values = values

    def keep_targets(self, targets: Collection[str]) -> None:
        """Forget all other targets."""
        for target_id in self._counted.keys() - set(targets):
            del self._counted[target_id]

    def _place(self, deployment: Deployment, series: tuple[Series, ...], former: _Counted | None) -> _Counted:
        """The indexes of a target's counters; those it exposed before are compared with their last values."""
        last: dict[Series, float] = {}
        if former is not None and former.deployment == deployment:
            shown = (former.series[place] for place in former.places.tolist())
            last = {**former.last, **dict(zip(shown, former.values.tolist(), strict=True))}
        names = {part.name for part in self._parts}
        edges: dict[str, set[float]] = {}
        for each in series:
            if each.name in names:
                edges.setdefault(each.name, set()).add(_edge(dict(each.labels)))
        found = [
            (place, [float(part.holds(each, edges[each.name])) for part in self._parts])
            for place, each in enumerate(series)
            if each.name in names
        ]
        found = [(place, into) for place, into in found if any(into)]
        places = np.array([place for place, _ in found], dtype=np.intp)
        into = np.array([each for _, each in found], dtype=np.float64).reshape(-1, len(self._parts)).T
        values = np.array([last.pop(series[place], math.nan) for place in places.tolist()], dtype=np.float64)
        kept = dict(list(last.items())[-_MOST_SERIES:])
        return _Counted(deployment, series, places, into, values, kept)

    # --- Keeping ------------------------------------------------------------------------------------------------------

    def keep(self, at_ms: int) -> Sums | None:
        """Keep the sums of an instant unless it is too close to the last one; returns what to store."""
        times = self._kept.times
        if len(times) and 0 <= at_ms - int(times[-1]) < SPACING_MS:
            return None
        sums = {deployment: sums.tolist() for deployment, sums in self._sums.items()}
        self._append(at_ms, sums)
        return {deployment: [self._mark, *own] for deployment, own in sums.items()}

    def thin(self, at_ms: int, deployments: Collection[Deployment]) -> list[int] | None:
        """Every 64th time, drop instants that are closer together than needed, and deployments that are gone.

        Returns the dropped instants; None the other times.
        """
        self._since_thinned += 1
        if self._since_thinned < _THINNED_EVERY:
            return None
        self._since_thinned = 0
        times = self._kept.times
        kept = _spaced(times, self._kept.believed_ms(at_ms), self._longest_ms)
        forgotten: list[int] = times[~kept].tolist()
        self._kept.retain(kept)
        self._forget_past(deployments)
        return forgotten

    def restore(self, rows: Iterable[tuple[int, Sums]]) -> int | None:
        """Restore stored sums, ascending by time; returns the time of the last.

        Sums of other objectives than the current ones are skipped.
        """
        last_ms: int | None = None
        sums: Sums = {}
        for last_ms, stored in rows:
            sums = {deployment: own[1:] for deployment, own in stored.items() if own[:1] == [self._mark]}
            self._append(last_ms, sums)
        self._sums = {deployment: np.array(own) for deployment, own in sums.items()}
        return last_ms

    def _append(self, at_ms: int, sums: Sums) -> None:
        values: dict[int, float] = {}
        for deployment, own in sums.items():
            first = self._firsts.get(deployment)
            if first is None:
                first = self._firsts[deployment] = self._next_first
                self._next_first += len(own)
            values.update(zip(range(first, first + len(own)), own, strict=True))
        self._kept.append(at_ms, values)

    def _forget_past(self, deployments: Collection[Deployment]) -> None:
        """Forget deployments that are gone and whose sums did not change in all the kept time."""
        oldest = self._kept.latest(int(self._kept.times[0])) if len(self._kept.times) else None
        if oldest is None:
            return
        first = self._kept.by_key(oldest[1])
        for deployment in [each for each in self._sums if each not in deployments]:
            sums, start = self._sums[deployment].tolist(), self._firsts.get(deployment, -1)
            if all(first.get(start + part) == value for part, value in enumerate(sums)):
                del self._sums[deployment], self._firsts[deployment]
                self._kept.drop(range(start, start + len(sums)))

    # --- Reading ------------------------------------------------------------------------------------------------------

    def shares(self, window_ms: int, at_ms: int) -> dict[Objective, Labelled]:
        """The bad share of every objective over the window that ends now, absent where nothing was counted."""
        if not self._sums:
            return dict.fromkeys(self._shares, NOTHING)
        grown = self._grown(window_ms, at_ms)
        count = len(self._parts)
        keys = self._group_keys()
        found: dict[Objective, Labelled] = {}
        for objective, (above, below, is_rest) in self._shares.items():
            with np.errstate(invalid="ignore", divide="ignore"):
                quotients = grown[:, above] / grown[:, below]
            known = (grown[:, below] > 0) & (grown[:, count + above] > 0)
            shares = 1.0 - quotients if is_rest else quotients
            found[objective] = Labelled(keys, shares).where(known)
        return found

    def ended(self, window_ms: int, at_ms: int) -> Labelled:
        """The number of requests that ended over the window that ends now, absent where nothing was counted."""
        if not self._sums:
            return NOTHING
        grown = self._grown(window_ms, at_ms)
        return Labelled(self._group_keys(), grown[:, self._ended]).where(grown[:, len(self._parts) + self._ended] > 0)

    def _grown(self, window_ms: int, at_ms: int) -> Floats:
        """The increases since the window's start, of each part and of its comparisons, (deployments, 2 parts)."""
        now = np.array([*self._sums.values()])
        start = self._kept.latest(at_ms - window_ms)
        return now if start is None else now - self._row(start[1])

    def _group_keys(self) -> Keys:
        deployments = list(self._sums)
        if deployments != self._labelled:
            self._labelled, self._keys = deployments, Keys([each.labels() for each in deployments])
        return self._keys

    def _row(self, values: Floats) -> Floats:
        """The sums of a kept instant, (deployments, parts); 0 for a deployment that did not exist then."""
        width = 2 * len(self._parts)
        columns = self._kept.columns
        if list(columns)[::width] == [self._firsts.get(deployment) for deployment in self._sums]:
            return np.nan_to_num(values.reshape(-1, width))
        was = np.zeros((len(self._sums), width))
        for row, deployment in enumerate(self._sums):
            for part in range(width):
                column = columns.get(self._firsts.get(deployment, -width) + part)
                if column is not None:
                    was[row, part] = values[column]
        return np.nan_to_num(was)


def _spaced(times: NDArray[np.int64], at_ms: int, longest_ms: int) -> NDArray[np.bool_]:
    """Which instants to keep: the first in each cell of time, growing with age, within the longest window."""
    ages = np.maximum(at_ms - times, 0)
    tiers = np.floor(np.log2(np.maximum(ages / FULL_MS, 1.0))).astype(np.int64)
    widths = SPACING_MS << tiers
    # A tier's cells align with those of the next one, so that an instant is kept until its tier ends.
    cells = times // widths
    kept = np.ones(len(times), dtype=np.bool_)
    kept[1:] = (cells[1:] != cells[:-1]) | (tiers[1:] != tiers[:-1])
    # One instant older than the longest window is its start.
    spent = int(np.searchsorted(times, at_ms - longest_ms, side="right")) - 1
    kept[: max(spent, 0)] = False
    if spent >= 0:
        kept[spent] = True
    return kept


def _shares_of(objective: Objective, parts: dict[_Part, int]) -> _Shares:
    def number(part: _Part) -> int:
        return parts.setdefault(part, len(parts))

    match objective.bad:
        case Ratio(Rate(above, where), Rate(below, whole)):
            return _Shares(number(_Part(above, where, ())), number(_Part(below, whole, ())), is_rest=False)
        case FractionAbove(histogram=histogram):
            bucket = _Part(f"{histogram}_bucket", (), objective.bad.edges)
            count = _Part(f"{histogram}_count", (), ())
            return _Shares(number(bucket), number(count), is_rest=True)
        case _:
            raise UsageError(
                f"objective {objective.name!r}: expected a ratio of two rates, or a fraction above an edge"
            )


def _edge(labels: Mapping[str, str]) -> float:
    """The upper edge of a bucket, NaN for a series that is none."""
    try:
        return float(labels.get("le", ""))
    except ValueError:
        return math.nan
