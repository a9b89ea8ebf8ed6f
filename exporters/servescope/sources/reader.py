"""How one target's texts are understood, from bytes to contract samples.

Everything that depends only on which series a text shows is found out once and kept while it shows the same ones:
where each value stands, the source, the translation, what may be stored. A text like the one before costs a comparison
of its lines and a few operations on one array; any other is read line by line, to the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, PROCESS_RATIOS, SAMPLE_FAMILIES
from servescope.contract.samples import Series, Snapshot, format_series
from servescope.errors import ServescopeError
from servescope.sources.layers import ByDepth, Supply, tell_depth
from servescope.sources.maps import SUPPLIED, Identification, Source, identify, load_sources
from servescope.sources.parse import (
    DEFAULT_LIMITS,
    Exposition,
    Lexicon,
    LimitError,
    Page,
    PageLimits,
    ParseError,
    expose,
    learn_page,
)
from servescope.sources.translate import Coverage, Plan, plan_translation

_ALL_METRICS = frozenset(METRICS)
_MOST_LAYOUTS = 4
_MOST_NAMED = 5
_TEXT_SHOWN = 80


class ReadError(ServescopeError):
    """A text that brought nothing; `outcome` is that of its scrape."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Reading(NamedTuple):
    """What a text brought: contract samples, how many native ones it had, and how many were dropped by reason."""

    snapshot: Snapshot
    native_samples: int
    dropped: Mapping[str, int]


class Reader:
    """How one target's texts are understood: its source, kept from its first success, and what it covers.

    A metric that another target of the deployment supplies from further out (`supply`) is left to that one, never added
    to it: a frontend and the workers behind it see the same requests.

    When a metric that was observed is observed no more, the source is identified anew: the target may have been
    upgraded to a release with other names. When no source fits, the one before stays as long as it finds anything; one
    that is pinned in the configuration stays always. `missing` are the metrics that
    were observed once and are not now, with the native series that fed them; `warnings` say what else is wrong with the
    last text that could be read. `lexicon` may be shared by all readers.
    """

    def __init__(
        self,
        identity: Identity,
        source: str | None = None,
        *,
        supply: Supply | None = None,
        lexicon: Lexicon | None = None,
    ) -> None:
        self._identity = identity
        self._configured = source
        self._supply = supply or Supply()
        self._lexicon = lexicon or Lexicon()
        self._limits = DEFAULT_LIMITS
        self._page: Page | None = None
        self._layouts: dict[bytes, _Layout] = {}
        self._source: Source | None = None
        self._plan: Plan | None = None
        self._way: _Way | None = None
        self._series: tuple[Series, ...] = ()
        self._ever_supplied: frozenset[str] = frozenset()
        self._supplied_at: ByDepth = {}
        self._observed: frozenset[str] = frozenset()
        self._fed_by: dict[str, str] = {}
        self._elsewhere: dict[str, str] = {}
        self._elsewhere_is_of: tuple[int, ByDepth] | None = None
        self.versions = ""
        # Kept from scrape to scrape while they stay the same, which they nearly always do.
        self.coverage: dict[str, dict[str, str | None]] = {}
        self.missing: dict[str, str] = {}
        self.warnings: tuple[str, ...] = ()

    @property
    def source(self) -> str | None:
        """The name of the source, None until the first success."""
        return self._source.name if self._source else None

    def read(self, body: bytes, limits: PageLimits = DEFAULT_LIMITS) -> Reading:
        """What a text brings; raises ReadError."""
        return self.take(self.study(body, limits))

    def study(self, body: bytes, limits: PageLimits = DEFAULT_LIMITS) -> Studied:
        """What a text says, which nothing goes by until it is taken up; raises ReadError.

        It may be called in another thread while nothing else is asked of the reader: all that takes long is here.
        """
        page, values = self._parse(body, limits)
        finite = np.isfinite(values)
        key = b"" if finite.all() else finite.tobytes()
        layout = self._layouts.get(key) if self._shows_as_before(page) else None
        if layout is None:
            layout = _Layout(page.series, finite)
            source = self._source or self._pinned or layout.identify().source
            if source is not None:
                # Made here, where it delays nothing else; `take` makes another where others supply more by then.
                layout.way = _Way(layout.plan(source, self._identity), self._elsewhere, self._series)
        return Studied(page, values, limits, key, layout)

    def take(self, studied: Studied) -> Reading:
        """What the last text studied brings; raises ReadError."""
        page, values, limits, key, layout = studied
        if not self._shows_as_before(page) or (key not in self._layouts and len(self._layouts) >= _MOST_LAYOUTS):
            self._layouts = {}
        self._page, self._limits, self._layouts[key] = page, limits, layout
        try:
            way = self._admit(layout, self._translate(layout))
        finally:
            layout.settle()
        native = values[layout.finite] if layout.dropped else values
        snapshot, overflown = way.read(native, self._series)
        self._series = snapshot.series
        dropped = Counter(way.dropped)
        dropped["not_finite"] += layout.dropped + len(overflown)
        dropped["duplicate"] += len(layout.repeated)
        self._keep_warnings(layout, overflown)
        return Reading(snapshot, len(values), +dropped)

    # --- Parse --------------------------------------------------------------------------------------------------------

    def _parse(self, body: bytes, limits: PageLimits) -> tuple[Page, NDArray[np.float64]]:
        """The page of a text, and its values."""
        if self._page is not None and limits == self._limits:
            values = self._page.read(body, limits)
            if values is not None:
                return self._page, values
        page, values = _learn(body, self._lexicon, limits)
        return page, values

    def _shows_as_before(self, page: Page) -> bool:
        return self._page is not None and (page is self._page or page.series == self._page.series)

    # --- Translate ----------------------------------------------------------------------------------------------------

    def _translate(self, layout: _Layout) -> Plan:
        source = self._source or self._identify(layout)
        plan = layout.plan(source, self._identity)
        if plan is self._plan:
            return plan
        observed = _observed(plan.coverage)
        if not self._observed <= observed:
            again = self._identify_anew(layout, source, plan)
            if again is not source:
                source, plan = again, layout.plan(again, self._identity)
                observed = _observed(plan.coverage)
        if self._configured is not None and not plan.natives.size and not layout.is_unused(source):
            raise _wrong_source(layout, source)
        self._note_supplied(source, observed)
        self._source, self._observed, self._plan = source, observed, plan
        self._note_missing(plan.coverage)
        return plan

    @property
    def _pinned(self) -> Source | None:
        """The source that the configuration says."""
        return load_sources()[self._configured] if self._configured is not None else None

    def _identify(self, layout: _Layout) -> Source:
        if (source := self._pinned) is not None:
            self.versions = source.tell_versions(layout.exposition())
            return source
        found = layout.identify()
        if found.source is None:
            near = f"; the nearest is {found.nearest!r}" if found.nearest else ""
            raise ReadError("unknown_source", f"no known source: {found.reason}{near}")
        self.versions = found.versions
        return found.source

    def _identify_anew(self, layout: _Layout, source: Source, plan: Plan) -> Source:
        """The source of a text that lacks a metric: one renamed series, or a NaN, must not cost all the others."""
        if self._configured is None and plan.natives.size and layout.identify().source is None:
            return source
        return self._identify(layout)

    def _note_supplied(self, source: Source, observed: frozenset[str]) -> None:
        """Once supplied is supplied for good: a figure must not jump when this target fails."""
        if source is self._source and observed <= self._ever_supplied:
            return
        self._ever_supplied |= observed
        supplied: dict[int, frozenset[str]] = {}
        for name in self._ever_supplied:
            depth = tell_depth(source, self._identity.role, name)
            supplied[depth] = supplied.get(depth, frozenset()) | {name}
        self._supplied_at = supplied

    def _note_missing(self, coverage: Mapping[str, Coverage]) -> None:
        for name, each in coverage.items():
            if each.status in SUPPLIED and each.native is not None:
                self._fed_by[name] = each.native
        missing = {name: native for name, native in self._fed_by.items() if name not in self._observed}
        if missing != self.missing:
            self.missing = missing

    # --- Admit --------------------------------------------------------------------------------------------------------

    def _admit(self, layout: _Layout, plan: Plan) -> _Way:
        """The way of a plan's values into the store, without what is taken from other targets."""
        elsewhere = self._taken_from_others()
        way = layout.way
        if way is None or way.plan is not plan or way.elsewhere is not elsewhere:
            way = layout.way = _Way(plan, elsewhere, self._series)
        if way is not self._way:
            self._way = way
            coverage = {
                name: {"status": each.status, "native": each.native, "reason": each.reason}
                for name, each in _hand_over(plan.coverage, elsewhere).items()
            }
            if coverage != self.coverage:
                self.coverage = coverage
        return way

    def _taken_from_others(self) -> dict[str, str]:
        """The metrics that other targets supply from further out, with those targets' names."""
        self._supply.note(self._identity.target_id, self._supplied_at)
        is_of = self._elsewhere_is_of
        if is_of is not None and is_of[0] == self._supply.version and is_of[1] is self._supplied_at:
            return self._elsewhere
        elsewhere: dict[str, str] = {}
        for place, (depth, names) in enumerate(sorted(self._supplied_at.items())):
            # What this target does not supply is told of as well, once.
            elsewhere |= self._supply.outside(depth, names if place else _ALL_METRICS)
        self._elsewhere_is_of = self._supply.version, self._supplied_at
        if elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
        return self._elsewhere

    def _keep_warnings(self, layout: _Layout, overflown: list[str]) -> None:
        warnings = layout.warnings
        if self.missing:
            told = [f"{name} (was {native})" for name, native in self.missing.items()]
            warnings = (f"metrics that were there are not there any more ({len(told)}): {_list(told)}", *warnings)
        if overflown:
            warnings = (*warnings, f"samples left out, as their values overflow ({len(overflown)}): {_list(overflown)}")
        if warnings != self.warnings:
            self.warnings = warnings


class Studied(NamedTuple):
    """A text that was studied: its page and values, and what follows from the series that have a finite one."""

    page: Page
    values: NDArray[np.float64]
    limits: PageLimits
    key: bytes
    layout: _Layout


def _learn(body: bytes, lexicon: Lexicon, limits: PageLimits) -> tuple[Page, NDArray[np.float64]]:
    try:
        page, values = learn_page(body, lexicon, limits)
    except LimitError as error:
        raise ReadError(error.outcome, f"line {error.line}: {error.cause} in {_shortened(error.text)}") from error
    except ParseError as error:
        cause = f"line {error.line}: {error.cause} in {_shortened(error.text)}"
        if error.line > 1 and error.line == body.count(b"\n") + 1:
            raise ReadError("truncated", f"the answer ended within its last line; {cause}") from error
        raise ReadError("malformed", cause) from error
    if not page.series:
        raise ReadError("empty", "no samples in the answer")
    # A number that lost its last digits is a number still.
    if not body.endswith(b"\n") and not body.rstrip(b" \t\r").endswith(b"\n# EOF"):
        last = body.rpartition(b"\n")[2].decode("utf-8", "replace")
        raise ReadError("truncated", f"the last line has no end, so the answer may be cut: {_shortened(last)}")
    return page, values


@dataclass(slots=True, eq=False)
class _Layout:
    """What follows from which series a text shows with a finite value, whatever the values are."""

    series: tuple[Series, ...]
    finite: NDArray[np.bool_]
    way: _Way | None = None
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
        told = []
        if self.repeated:
            first = "the first value of each is taken"
            told.append(f"{len(self.repeated)} series stand there again, {first}: {_list(self.repeated)}")
        if self.dropped:
            series = [self.series[place] for place in np.flatnonzero(~self.finite)[: _MOST_NAMED + 1].tolist()]
            names = _list([format_series(*each) for each in series], self.dropped)
            told.append(f"samples left out, as they are NaN or infinite ({self.dropped}): {names}")
        return told

    def exposition(self) -> Exposition:
        """The exposition, whose values do not matter; of any finite ones."""
        if self._exposition is None:
            self._exposition = expose(self.series, np.where(self.finite, 0.0, np.nan))
        return self._exposition

    def identify(self) -> Identification:
        if self._identification is None:
            self._identification = identify(self.exposition())
        return self._identification

    def is_unused(self, source: Source) -> bool:
        """Whether the names are those that a source shows before anything is asked of it."""
        when = source.first_use.when
        return bool(when) and all(map(self.exposition().has, when))

    def plan(self, source: Source, identity: Identity) -> Plan:
        """The translation; the identity is the same one each time."""
        plan = self._plans.get(source.name)
        if plan is None:
            plan = self._plans[source.name] = plan_translation(self.exposition(), source, identity)
        return plan

    def settle(self) -> None:
        """Let go of what is no longer needed while nothing changes."""
        self._exposition = None


class _Way:
    """How a plan's values become a snapshot of what may be stored.

    That is finite values, each series once, no ratio of a single process, nothing that is taken from elsewhere. The
    series are `former` where they are the same, in whatever order the text shows them: a page that is written from an
    unordered map then costs the stages behind no more than any other.
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

    def read(self, native: NDArray[np.float64], former: tuple[Series, ...]) -> tuple[Snapshot, list[str]]:
        """The snapshot of native values, and the series left out because theirs are too large."""
        series, values = self._kept.series, self._kept.apply(native)
        finite = np.isfinite(values)
        if finite.all():
            return Snapshot(series, values), []
        mask = finite.tobytes()
        if mask != self._part[0]:
            part = tuple(series[place] for place in np.flatnonzero(finite).tolist())
            self._part = mask, former if part == former else part
        overflown = [format_series(*series[place]) for place in np.flatnonzero(~finite).tolist()]
        return Snapshot(self._part[1], values[finite]), overflown


def _wrong_source(layout: _Layout, source: Source) -> ReadError:
    found = layout.identify()
    looks = f"it is {found.source.name!r}" if found.source else found.reason
    return ReadError(
        "unknown_source", f"source = {source.name!r} is configured, but it finds nothing in the answer: {looks}"
    )


def _hand_over(coverage: Mapping[str, Coverage], elsewhere: Mapping[str, str]) -> Mapping[str, Coverage]:
    """The coverage of a target whose metrics in `elsewhere` are taken from the targets named there."""
    return {
        name: Coverage(
            "elsewhere", each.native, f"taken from {elsewhere[name]}, which sees the deployment from outside"
        )
        if name in elsewhere and each.status in SUPPLIED
        else each
        for name, each in coverage.items()
    }


def _observed(coverage: Mapping[str, Coverage]) -> frozenset[str]:
    return frozenset(name for name, each in coverage.items() if each.status in SUPPLIED)


def _list(texts: list[str], count: int | None = None) -> str:
    """The first few of the texts, of as many as there are."""
    more = (len(texts) if count is None else count) - _MOST_NAMED
    return ", ".join(_cut(text) for text in texts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shortened(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + "…"
