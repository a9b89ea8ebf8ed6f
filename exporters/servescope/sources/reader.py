"""How one target's texts are read, from bytes to contract samples.

A text with the lines of the one before, but for their values, costs a comparison of its lines and a few operations on
one array; any other is parsed line by line, with the same result. The translation depends on the source and on which
series have a finite value: it is kept for several such sets, until the series change. Which of the translated samples
are stored depends on what other targets supply too, and is computed anew when that changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import ENGINE_ROLES, SEVERAL_MODELS, UNKNOWN_MODEL, Identity
from servescope.contract.measured_layers import layer_order
from servescope.contract.metrics import METRICS, SEGMENT
from servescope.contract.samples import Series, Snapshot
from servescope.errors import ServescopeError
from servescope.sources.cache import SeriesCache
from servescope.sources.layers import ByLayer, Supply
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED, Source
from servescope.sources.page import DEFAULT_LIMITS, LearnedPage, PageLimits
from servescope.sources.parse import LimitError, ParseError, explain_cut, learn_page
from servescope.sources.parts import WHOLE_PAGE, PagePart
from servescope.sources.segments import SegmentNames
from servescope.sources.series_plan import SeriesPlan, StoredSeries, cut, list_first
from servescope.sources.translate import Coverage, Plan
from servescope.sources.zeros import Facts, read_facts

_ALL_METRICS = frozenset(METRICS)
# What describes the target itself is taken from each, whichever layer it is of.
_OF_ITS_OWN = frozenset(name for name, metric in METRICS.items() if metric.component == "process")
_MOST_PLANS = 4
_NO_REPLICA: Final = "give the target the role 'auxiliary', or 'autoscaler' where it shows what scales the deployment"

NOT_UNDERSTOOD: Final = "unknown_source"
"""The outcome of a text that is an exposition, and that no source map reads, or not the one that is configured."""


class ReadError(ServescopeError):
    """A text from which nothing can be read; `outcome` is that of its scrape."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Reading(NamedTuple):
    """Contract samples of a text, how many native ones it had, and how many of them were dropped by reason."""

    snapshot: Snapshot
    native_samples: int
    dropped: Mapping[str, int]


class ModelNames:
    """The models that the pages of one deployment name, each as it was written first; shared by its targets' readers.

    A frontend may write in small letters what its workers write as it is.
    """

    def __init__(self) -> None:
        self._written: dict[str, str] = {}

    def write(self, name: str) -> str:
        """The name as it was written first."""
        return self._written.setdefault(name.casefold(), name)

    @property
    def only(self) -> str | None:
        """The one model of the deployment; None without one, or with several."""
        return next(iter(self._written.values())) if len(self._written) == 1 else None


class Reader:
    """Reads the texts of one target; keeps its source from the first success on.

    A metric that another target of the deployment supplies from further out (`supply`) is taken from that one and
    never added up: a frontend and the workers behind it measure the same requests.

    When a metric that was observed is missing, the source is identified again: the target may have been upgraded to a
    release with other names. If none fits, the former source stays while it finds anything; one that is set in the
    configuration stays always. `facts` are how the engine is set up, as far as its last text shows. `missing` are the
    metrics that were observed once and are not now, with the native series they came from; `warnings` are about the
    last text that could be read. `cache` may be shared by all readers.
    `segment_label` is the native label that separates segments, of which there are `MOST_SEGMENTS` at most; `part` is
    which series are read of a page that measures several deployments.

    With `models` the identity's `model_name` is what the page names, as soon as it names one, unless `may_be` refuses
    the identity: `SEVERAL_MODELS` where it names several. `identity` changes with it.
    """

    def __init__(
        self,
        identity: Identity,
        source: str | None = None,
        *,
        supply: Supply | None = None,
        cache: SeriesCache | None = None,
        segment_label: str = SEGMENT,
        part: PagePart = WHOLE_PAGE,
        models: ModelNames | None = None,
        may_be: Callable[[Identity], bool] = lambda _: True,
    ) -> None:
        self._segments = SegmentNames(segment_label)
        self._part = part
        self.identity, self._labels = identity, identity.labels()
        self._models, self._may_be = models, may_be
        if models is not None and identity.model_name not in (UNKNOWN_MODEL, SEVERAL_MODELS):
            models.write(identity.model_name)
        self._configured = source
        self._supply = supply or Supply()
        self._cache = cache or SeriesCache()
        self._limits = DEFAULT_LIMITS
        self._page: LearnedPage | None = None
        self._plans: dict[bytes, SeriesPlan] = {}
        self._source: Source | None = None
        self._plan: Plan | None = None
        self._stored: StoredSeries | None = None
        self._series: tuple[Series, ...] = ()
        self._ever_supplied: frozenset[str] = frozenset()
        self._supplied_at: ByLayer = {}
        self._observed: frozenset[str] = frozenset()
        self._also = ""
        self._fed_by: dict[str, str] = {}
        self._elsewhere: dict[str, str] = {}
        self._elsewhere_is_of: tuple[int, ByLayer] | None = None
        self.versions = ""
        # The same objects from scrape to scrape while they are equal, which they nearly always are.
        self.coverage: dict[str, dict[str, str | None]] = {}
        self.facts: Facts = {}
        self.missing: dict[str, str] = {}
        self.warnings: tuple[str, ...] = ()

    @property
    def source(self) -> str | None:
        """The name of the source, None until the first success."""
        return self._source.name if self._source else None

    @property
    def layer(self) -> str:
        """Where in the deployment the source measures, "" until the first success."""
        return self._source.layer if self._source else ""

    def read(self, body: bytes, limits: PageLimits = DEFAULT_LIMITS) -> Reading:
        """Parse a text and commit it; raises ReadError."""
        return self.commit(self.parse(body, limits))

    def parse(
        self, body: bytes, limits: PageLimits = DEFAULT_LIMITS, *, parsed: ParsedText | None = None
    ) -> ParsedText:
        """Parse without changing state but `identity`; `commit` changes the rest. Raises ReadError.

        `parsed` is the same text as the reader of another part of it has parsed it.
        May run in another thread while nothing else is called on the reader: all that takes long is here.
        """
        page, values = (parsed.page, parsed.values) if parsed is not None else self._read_values(body, limits)
        finite = np.isfinite(values)
        key = b"" if finite.all() else finite.tobytes()
        series_plan = self._plans.get(key) if self._has_same_series(page) else None
        if series_plan is None:
            series_plan = SeriesPlan(page.series, finite, self._part)
            source = self._source or self._configured_source or series_plan.identify().source
            if source is not None:
                self._follow_models(source, series_plan)
                # Made here, where it delays nothing else; `commit` makes another where others supply more by then.
                plan = series_plan.plan(source, self._labels, self._segments)
                series_plan.stored = StoredSeries(plan, self._elsewhere, self._series)
        return ParsedText(page, values, limits, key, series_plan)

    def commit(self, parsed: ParsedText) -> Reading:
        """The reading of the text parsed last; raises ReadError."""
        page, values, limits, key, series_plan = parsed
        if not self._has_same_series(page) or (key not in self._plans and len(self._plans) >= _MOST_PLANS):
            self._plans = {}
        self._page, self._limits, self._plans[key] = page, limits, series_plan
        try:
            stored = self._select(series_plan, self._translate(series_plan))
        finally:
            series_plan.release()
        native = values[series_plan.finite] if series_plan.dropped else values
        snapshot, overflown = stored.snapshot(native, self._series)
        self.facts = read_facts(stored.plan.fact_places, native)
        self._series = snapshot.series
        dropped = Counter(stored.dropped)
        dropped["not_finite"] += series_plan.dropped + len(overflown)
        dropped["duplicate"] += len(series_plan.repeated)
        self._update_warnings(series_plan, overflown)
        return Reading(snapshot, len(values), +dropped)

    # --- Parse --------------------------------------------------------------------------------------------------------

    def _read_values(self, body: bytes, limits: PageLimits) -> tuple[LearnedPage, NDArray[np.float64]]:
        if self._page is not None and limits == self._limits:
            values = self._page.read(body, limits)
            if values is not None:
                return self._page, values
        return parse_page(body, self._cache, limits)

    def _has_same_series(self, page: LearnedPage) -> bool:
        return self._page is not None and (page is self._page or page.series == self._page.series)

    # --- The model ----------------------------------------------------------------------------------------------------

    def _follow_models(self, source: Source, series_plan: SeriesPlan) -> None:
        """Take the model's name from a text with other series than before, if it names one."""
        if self._models is None:
            return
        own = (sample for sample in series_plan.exposition().samples if self._part.has(sample.labels))
        if named := source.models(own):
            self._become(self._models.write(named[0]) if len(named) == 1 else SEVERAL_MODELS)

    def take_model_of_others(self) -> None:
        """Where no page of the target has named a model, take the one that the others of its deployment have."""
        if self._models is not None and self._models.only is not None and self.identity.model_name == UNKNOWN_MODEL:
            self._become(self._models.only)

    def _become(self, model_name: str) -> None:
        identity = replace(self.identity, model_name=model_name)
        if identity != self.identity and self._may_be(identity):
            self.identity, self._labels = identity, identity.labels()
            self._plans, self._plan, self._stored, self._elsewhere_is_of = {}, None, None, None

    # --- Translate ----------------------------------------------------------------------------------------------------

    def _translate(self, series_plan: SeriesPlan) -> Plan:
        source = self._source or self._identify(series_plan)
        plan = series_plan.plan(source, self._labels, self._segments)
        if plan is self._plan:
            return plan
        observed = _observed(plan.coverage)
        if not self._observed <= observed:
            again = self._identify_again(series_plan, source, plan)
            if again is not source:
                source, plan = again, series_plan.plan(again, self._labels, self._segments)
                observed = _observed(plan.coverage)
        if self._configured is not None:
            check_source(series_plan, source, plan)
        self._update_supplied(source, observed)
        self._source, self._observed, self._plan = source, observed, plan
        self._update_missing(plan.coverage)
        return plan

    @property
    def _configured_source(self) -> Source | None:
        return load_sources()[self._configured] if self._configured is not None else None

    def _identify(self, series_plan: SeriesPlan) -> Source:
        source, self.versions = choose_source(series_plan, self._configured_source)
        self._also = series_plan.identify().explain_others() if self._configured is None else ""
        return source

    def _identify_again(self, series_plan: SeriesPlan, source: Source, plan: Plan) -> Source:
        """The source of a text that lacks a metric; one renamed series, or a NaN, must not lose all the others."""
        if self._configured is None and plan.natives.size and series_plan.identify().source is None:
            return source
        return self._identify(series_plan)

    def _update_supplied(self, source: Source, observed: frozenset[str]) -> None:
        """Add what is observed now; a metric once supplied stays, so that no figure jumps when this target fails."""
        if source is self._source and observed <= self._ever_supplied:
            return
        self._ever_supplied |= observed
        supplied: dict[int, frozenset[str]] = {}
        for name in self._ever_supplied - _OF_ITS_OWN:
            layer = layer_order(source.layer, self.identity.role, name)
            supplied[layer] = supplied.get(layer, frozenset()) | {name}
        self._supplied_at = supplied

    def _update_missing(self, coverage: Mapping[str, Coverage]) -> None:
        for name, each in coverage.items():
            if each.status in SUPPLIED and each.native is not None:
                self._fed_by[name] = each.native
        missing = {name: native for name, native in self._fed_by.items() if name not in self._observed}
        if missing != self.missing:
            self.missing = missing

    # --- Select -------------------------------------------------------------------------------------------------------

    def _select(self, series_plan: SeriesPlan, plan: Plan) -> StoredSeries:
        """The series of a translation that are stored, without those that are taken from other targets."""
        elsewhere = self._taken_from_others()
        stored = series_plan.stored
        if stored is None or stored.plan is not plan or stored.elsewhere is not elsewhere:
            stored = series_plan.stored = StoredSeries(plan, elsewhere, self._series)
        if stored is not self._stored:
            self._stored = stored
            coverage = {
                name: {"status": each.status, "native": each.native, "reason": each.explain()}
                for name, each in _mark_elsewhere(plan.coverage, elsewhere).items()
            }
            if coverage != self.coverage:
                self.coverage = coverage
        return stored

    def _taken_from_others(self) -> dict[str, str]:
        """The metrics that other targets supply from further out, with those targets' names."""
        self._supply.update(self.identity.target_id, self._supplied_at)
        is_of = self._elsewhere_is_of
        if is_of is not None and is_of[0] == self._supply.version and is_of[1] is self._supplied_at:
            return self._elsewhere
        elsewhere: dict[str, str] = {}
        for place, (layer, names) in enumerate(sorted(self._supplied_at.items())):
            # Of the outermost, also metrics that this target does not supply.
            elsewhere |= self._supply.further_out(layer, names if place else _ALL_METRICS)
        self._elsewhere_is_of = self._supply.version, self._supplied_at
        if elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
        return self._elsewhere

    def _update_warnings(self, series_plan: SeriesPlan, overflown: list[str]) -> None:
        warnings = series_plan.warnings
        if self.missing:
            names = [f"{name} (was {native})" for name, native in self.missing.items()]
            warnings = (f"metrics that were exposed are missing ({len(names)}): {list_first(names)}", *warnings)
        if self._also:
            warnings = (*warnings, self._also)
        if self.layer == "around" and self.identity.role in ENGINE_ROLES:
            own = f"{self.source!r} is no replica, and its role is {self.identity.role!r}"
            warnings = (*warnings, f"{own}: {_NO_REPLICA}")
        if overflown:
            cause = f"samples dropped, as their values overflow ({len(overflown)})"
            warnings = (*warnings, f"{cause}: {list_first(overflown)}")
        if warnings != self.warnings:
            self.warnings = warnings


class ParsedText(NamedTuple):
    """A text that was parsed: its page and values, and the plan for the series that have a finite one."""

    page: LearnedPage
    values: NDArray[np.float64]
    limits: PageLimits
    key: bytes
    series_plan: SeriesPlan


def parse_page(body: bytes, cache: SeriesCache, limits: PageLimits) -> tuple[LearnedPage, NDArray[np.float64]]:
    """A text's page and the values of its series; raises ReadError, also for a text that has none or may be cut."""
    try:
        page, values = learn_page(body, cache, limits)
    except LimitError as error:
        raise ReadError(error.outcome, f"line {error.line}: {error.cause} in {_quoted(error.text)}") from error
    except ParseError as error:
        cause = f"line {error.line}: {error.cause} in {_quoted(error.text)}"
        if error.is_at_end(body):
            raise ReadError("truncated", f"the answer ended within its last line; {cause}") from error
        raise ReadError("malformed", cause) from error
    if not page.series:
        raise ReadError("empty", "no samples in the answer")
    if cut_off := explain_cut(body):
        raise ReadError("truncated", cut_off)
    return page, values


def choose_source(series_plan: SeriesPlan, configured: Source | None) -> tuple[Source, str]:
    """The source of a text, which may be configured, and the versions that its names imply; raises ReadError."""
    if configured is not None:
        return configured, configured.implied_versions(series_plan.exposition())
    found = series_plan.identify()
    if found.source is None:
        raise ReadError(NOT_UNDERSTOOD, f"it answers, and no source map reads what it exposes: {found.explain()}")
    return found.source, found.versions


def check_source(series_plan: SeriesPlan, source: Source, plan: Plan) -> None:
    """Raise ReadError when a configured source finds nothing in a text, and not because nothing happened yet.

    What any process exposes about itself is not enough.
    """
    found_names = {plan.series[place].name for place in plan.into.tolist()}
    if not found_names <= _OF_ITS_OWN or series_plan.is_unused(source):
        return
    found = series_plan.identify()
    looks = f"it is {found.source.name!r}" if found.source else found.explain()
    raise ReadError(
        NOT_UNDERSTOOD, f"source = {source.name!r} is configured, but it finds nothing in the answer: {looks}"
    )


def _mark_elsewhere(coverage: Mapping[str, Coverage], elsewhere: Mapping[str, str]) -> Mapping[str, Coverage]:
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


def _quoted(text: str) -> str:
    return repr(cut(text))
