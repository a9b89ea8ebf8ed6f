"""What follows from the series a text exposes, whatever their values: its source, its translation, what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.metrics import PROCESS_RATIOS, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series, Snapshot, format_series
from servescope.sources.identification import Identification, identify
from servescope.sources.maps import Source
from servescope.sources.parse import Exposition, explain_half_histogram, expose
from servescope.sources.parts import WHOLE_PAGE, PagePart
from servescope.sources.segments import SegmentNames
from servescope.sources.translate import Plan, plan_translation

_MOST_NAMED = 5
_TEXT_SHOWN = 80


@dataclass(slots=True, eq=False)
class SeriesPlan:
    """What follows from which series of a text have a finite value (`finite`, one per series) for a part of it."""

    series: tuple[Series, ...]
    finite: NDArray[np.bool_]
    part: PagePart = WHOLE_PAGE
    stored: StoredSeries | None = None
    dropped: int = field(init=False)
    repeated: list[str] = field(init=False)
    warnings: tuple[str, ...] = field(init=False)
    _exposition: Exposition | None = None
    _identification: Identification | None = None
    _plans: dict[str, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        exposition = self.exposition()
        self.dropped, self.repeated = exposition.dropped, exposition.repeated
        self.warnings = tuple(self._explain())

    def _explain(self) -> list[str]:
        warnings = []
        if self.repeated:
            cause = "series are exposed more than once, the first value of each is used"
            warnings.append(f"{cause} ({len(self.repeated)}): {list_first(self.repeated)}")
        if self.dropped:
            series = [self.series[place] for place in np.flatnonzero(~self.finite)[: _MOST_NAMED + 1].tolist()]
            names = list_first([format_series(*each) for each in series], self.dropped)
            warnings.append(f"samples dropped, as they are NaN or infinite ({self.dropped}): {names}")
        if cut_off := explain_half_histogram(self.series):
            warnings.append(cut_off)
        if absent := self.part.absent(self.series):
            warnings.append(f"no series of the page has the labels that are selected: {list_first(absent)}")
        if unclaimed := self.part.unclaimed(self.series):
            cause = f"{sum(unclaimed.values())} series are of no deployment, as no target selects their labels"
            warnings.append(f"{cause} ({len(unclaimed)}): {list_first(list(unclaimed))}")
        return warnings

    def exposition(self) -> Exposition:
        """An exposition of these series, whose values have no meaning."""
        if self._exposition is None:
            self._exposition = expose(self.series, np.where(self.finite, 0.0, np.nan))
        return self._exposition

    def identify(self) -> Identification:
        """The source that the names are of."""
        if self._identification is None:
            self._identification = identify(self.exposition())
        return self._identification

    def is_unused(self, source: Source) -> bool:
        """Whether the names are those that a source exposes before its first request, or no series is in the part."""
        when = source.first_use.when
        if not any(self.part.has(each.labels) for each in self.series):
            return True
        return bool(when) and all(map(self.exposition().has, when))

    def plan(self, source: Source, identity: Labels, segments: SegmentNames | None = None) -> Plan:
        """The translation, made once per source; the labels of the identity and the segments must be the same each
        time."""
        plan = self._plans.get(source.name)
        if plan is None:
            plan = self._plans[source.name] = plan_translation(self.exposition(), source, identity, segments, self.part)
        return plan

    def release(self) -> None:
        """Free what is only needed when something changes."""
        self._exposition = None


class StoredSeries:
    """The series of a translation that are stored, and how its values become their snapshot.

    Left out are series that appear before in the same text, ratios of a single process, and the metrics in `elsewhere`,
    which are taken from other targets. When the series are those of `former`, in whatever order the text has them, they
    are the same tuple: a page that is written from an unordered map then costs the later stages no more than another.
    """

    __slots__ = ("_kept", "_part", "dropped", "elsewhere", "plan")

    def __init__(self, plan: Plan, elsewhere: Mapping[str, str], former: tuple[Series, ...]) -> None:
        self.plan: Final = plan
        self.elsewhere: Final = elsewhere
        self.dropped: Counter[str] = Counter()
        seen: set[Series] = set()
        places = []
        for place, series in enumerate(plan.series):
            if series.name in PROCESS_RATIOS or SAMPLE_FAMILIES.get(series.name) in elsewhere:
                continue
            if series in seen:
                self.dropped["duplicate"] += 1
                continue
            seen.add(series)
            places.append(place)
        if len(places) == len(former) and seen == set(former):
            place_of = {plan.series[place]: place for place in places}
            kept = plan.keep(np.array([place_of[series] for series in former], dtype=np.intp)).show_as(former)
        else:
            kept = plan.keep(np.array(places, dtype=np.intp))
        self._kept = kept
        self._part: tuple[bytes, tuple[Series, ...]] = b"", ()

    def snapshot(self, native: NDArray[np.float64], former: tuple[Series, ...]) -> tuple[Snapshot, list[str]]:
        """The snapshot of native values, and the series dropped because their values overflow."""
        series, values = self._kept.series, self._kept.apply(native)
        finite = np.isfinite(values)
        if finite.all():
            return Snapshot(series, values), []
        mask = finite.tobytes()
        # A translator does this in several threads at once, so the part is read once.
        kept, part = self._part
        if mask != kept:
            part = tuple(series[place] for place in np.flatnonzero(finite).tolist())
            part = former if part == former else part
            self._part = mask, part
        overflown = [format_series(*series[place]) for place in np.flatnonzero(~finite).tolist()]
        return Snapshot(part, values[finite]), overflown


def list_first(texts: list[str], count: int | None = None) -> str:
    """The first few of the texts, each cut, and how many more there are; `count` where the texts are not all."""
    more = (len(texts) if count is None else count) - _MOST_NAMED
    return ", ".join(cut(text) for text in texts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def cut(text: str) -> str:
    """The first 80 characters of a text."""
    return text if len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + "…"
