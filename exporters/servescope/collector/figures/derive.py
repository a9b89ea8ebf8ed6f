"""From scrapes to figures: all figures of every deployment at an instant.

`Deriver` does it for the running collector, over the recent scrapes of all deployments at once; `derive_figures` for
windows of samples from anywhere, one deployment at a time. Both give the same figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from servescope.collector.figures.grouping import Assembly, Layout, Named
from servescope.collector.figures.rates import read_recent
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.contract.expressions import Expression, Vector, leaves
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.filling import is_filling
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.metrics import COUNTED_STATUSES, METRICS
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import Labels, Sample, Window, make_labels
from servescope.contract.types import Figure
from servescope.increments.extrapolation import Range, WindowBounds, filled_ratio
from servescope.increments.program import Program
from servescope.increments.readings import WindowReadings, derive, evaluate_increases
from servescope.settings.values import format_duration

REPLICAS: Final = METRICS["replica_count_by_status"]


@dataclass(frozen=True, slots=True)
class Derivation:
    """The figures of one deployment at an instant, absent ones left out.

    `figures` are by key; `exposed` are those that have a name of their own on `/metrics`, as samples; `counted` the
    replicas by status, when the collector had to count them itself. `asked` is what was asked for beside the figures,
    by its name, each value by the labels of its group. `filled` is the part of the window (0 to 1) over which the
    scrapes of its target with the longest past reach back; None where no scrape in the window succeeded.
    """

    figures: dict[str, float]
    exposed: list[Sample]
    counted: Sequence[Sample]
    asked: dict[str, Vector] = field(default_factory=dict)
    filled: float | None = None

    @property
    def stored(self) -> dict[str, float]:
        """What is stored of it: the figures, and `filled` while the window is not whole."""
        if self.filled is None or not is_filling(self.filled):
            return self.figures
        return {**self.figures, FILLED_SERIES: self.filled}


@dataclass(frozen=True, slots=True)
class ExtraExpression:
    """An expression that is derived beside the figures, over a window of its own where it has one.

    The window is one that `RecentScrapes` holds: at most the figures' own, or five minutes. `name` is no figure's.
    """

    name: str
    expression: Expression
    by: tuple[str, ...] = ()
    window_ms: int | None = None

    @property
    def exposed(self) -> None:
        """It is not on `/metrics`."""


class Members(NamedTuple):
    """What a deployment's figures are derived from: its targets' scrapes, and the replicas the collector counts."""

    recents: Sequence[RecentScrapes]
    counted: Sequence[Sample] = ()


_COUNTED_FIGURES: Final = tuple(figure for figure in FIGURES.values() if REPLICAS.name in leaves(figure.expression))


class Deriver:
    """Derives the figures of all deployments, evaluation by evaluation.

    Equal to the recording rules on the same scrapes: the same expressions, grouped by the same labels. It keeps which
    series make up which figure for as long as a deployment is asked for. What is `asked` for beside the figures is
    derived together with them. Not thread safe.
    """

    def __init__(self, window_ms: int, bounds: WindowBounds = "closed", asked: Sequence[ExtraExpression] = ()) -> None:
        self._window_ms, self._bounds = window_ms, bounds
        self._program = Program((*FIGURES.values(), *asked))
        # By window, the numbers of those that are derived over it; what has none has the figures'.
        self._numbers: dict[int, list[int]] = {window_ms: list(range(len(FIGURES)))}
        for number, each in enumerate(asked, start=len(FIGURES)):
            self._numbers.setdefault(each.window_ms or window_ms, []).append(number)
        self._layouts: dict[Deployment, Layout] = {}
        self._assembly: Assembly | None = None
        self._assembled: list[tuple[Layout, int]] = []
        self._replica_leaves = self._program.leaves_of[REPLICAS.name]

    def look_up(self, deployment: Deployment, recent: RecentScrapes) -> None:
        """Look up the series that are new in a target's scrapes; the next evaluation looks up the rest."""
        try:
            self._layout(deployment).look_up(recent)
        except Exception:  # the evaluation raises it again, and reports it
            self._layouts.pop(deployment, None)

    def derive(self, members: Mapping[Deployment, Members], at_ms: int) -> dict[Deployment, Derivation | Exception]:
        """The figures of each deployment, or why there are none.

        They are derived together; where that fails, one by one, so that samples of one deployment that cannot be
        evaluated cost no other its figures.
        """
        self._layouts = {each: self._layout(each) for each in members}
        try:
            return dict(self._derive_together(members, at_ms))
        except Exception:  # the second attempt reports it for each deployment
            return {each: self._derive_alone(each, own, at_ms) for each, own in members.items()}

    def _layout(self, deployment: Deployment) -> Layout:
        layout = self._layouts.get(deployment)
        if layout is None:
            layout = self._layouts[deployment] = Layout(self._program, format_duration(self._window_ms))
        return layout

    def _derive_alone(self, deployment: Deployment, own: Members, at_ms: int) -> Derivation | Exception:
        # What was known of its series may be what is wrong.
        self._layouts.pop(deployment, None)
        self._layout(deployment)
        try:
            return self._derive_together({deployment: own}, at_ms)[deployment]
        except Exception as error:  # a bug of ours, whatever it is; the caller reports it
            return error

    def _derive_together(self, members: Mapping[Deployment, Members], at_ms: int) -> dict[Deployment, Derivation]:
        assembly = self._assemble(members)
        derived = [Derivation({}, [], ()) for _ in members]
        for window_ms, numbers in self._numbers.items():
            within = Range(at_ms, window_ms, self._bounds)
            sums = assembly.add_up(read_recent(assembly.recents, within), within)
            values = self._program.run(sums)
            for number in numbers:
                self._tell(derived, number, assembly.names[number], values[number].tolist())
            if window_ms == self._window_ms:
                added_up = sums
        reported = assembly.reported(added_up, self._replica_leaves).tolist()
        within = Range(at_ms, self._window_ms, self._bounds)
        return {
            deployment: replace(
                each if is_reported else _stand_in(each, own.counted),
                filled=_longest(recent.filled(within) for recent in own.recents),
            )
            for (deployment, own), each, is_reported in zip(members.items(), derived, reported, strict=True)
        }

    def _tell(
        self, derived: Sequence[Derivation], number: int, names: Sequence[tuple[int, Named]], values: Sequence[float]
    ) -> None:
        """Add what was derived of one figure, or of one that was asked for, to its deployments' derivations."""
        figure = self._program.figures[number]
        if number >= len(FIGURES):
            for (owner, named), value in zip(names, values, strict=False):
                if value == value:
                    derived[owner].asked.setdefault(figure.name, {})[named.group] = value
            return
        for (owner, named), value in zip(names, values, strict=False):
            if value == value:
                derived[owner].figures[named.key] = value
                if figure.exposed is not None:
                    derived[owner].exposed.append(Sample(figure.exposed, named.labels, value))

    def _assemble(self, members: Mapping[Deployment, Members]) -> Assembly:
        """All layouts put together; the last time's unless anything changed."""
        layouts = [self._layouts[deployment] for deployment in members]
        for layout, own in zip(layouts, members.values(), strict=True):
            layout.update(own.recents)
        versions = [(layout, layout.version) for layout in layouts]
        if self._assembly is None or versions != self._assembled:
            self._assembly, self._assembled = Assembly(self._program, layouts), versions
        return self._assembly


def _stand_in(derivation: Derivation, counted: Sequence[Sample]) -> Derivation:
    """The derivation with the replicas that the collector counted itself, where nothing reports them."""
    for figure in _COUNTED_FIGURES if counted else ():
        by = (*DEPLOYMENT_LABELS, *figure.by)
        for labels, value in evaluate_increases(figure.expression, counted, by=by).items():
            derivation.figures[figure_key(figure.name, _own_labels(figure, labels))] = value
    return replace(derivation, counted=counted)


def _longest(filled: Iterable[float | None]) -> float | None:
    """The largest part that any target has of the window: one that is new to a deployment does not begin it anew."""
    return max((each for each in filled if each is not None), default=None)


def _filled(window: Window, within: Range) -> float | None:
    """The part of a range over which a target's scrapes reach back that had any sample."""
    shown = ~np.isnan(window.values).all(axis=0)
    times = window.times[shown & (window.times >= within.first_ms) & (window.times <= within.at_ms)]
    return filled_ratio(int(times[0]), int(times[-1]), len(times), within) if len(times) else None


def _own_labels(figure: Figure, group: Labels) -> dict[str, str]:
    return {name: text for name, text in group if name in figure.by}


def derive_figures(
    windows: Sequence[Window],
    *,
    at_ms: int,
    window_ms: int,
    bounds: WindowBounds = "closed",
    counted: Sequence[Sample] = (),
) -> Derivation:
    """Every figure of one deployment from the windows of its targets.

    Equal to the recording rules on the same scrapes: the same expressions, grouped by the same labels. `counted` are
    the replicas by status as the collector sees them (`count_targets`), used when no target reports them.
    """
    readings = WindowReadings(windows, at_ms=at_ms, window_ms=window_ms, bounds=bounds)
    by_key: dict[str, float] = {}
    exposed: list[Sample] = []
    window = ("window", format_duration(window_ms))
    derived = derive(_FIGURES, readings)
    for figure, values in zip(FIGURES.values(), derived, strict=True):
        for labels, value in values.items():
            by_key[figure_key(figure.name, _own_labels(figure, labels))] = value
            if figure.exposed is not None:
                exposed.append(Sample(figure.exposed, make_labels((*labels, window)), value))
    is_reported = any(readings.add_up(_FIGURES.leaves[number]) for number in _FIGURES.leaves_of[REPLICAS.name])
    within = Range(at_ms, window_ms, bounds)
    filled = _longest(_filled(each, within) for each in windows)
    return _stand_in(Derivation(by_key, exposed, (), filled=filled), () if is_reported else counted)


_FIGURES: Final = Program(FIGURES.values())


def count_targets(deployment: Deployment, healthy: Iterable[bool]) -> list[Sample]:
    """Replicas by status as the collector sees its own targets: scraped is active, failing is unhealthy.

    Marked `derived="true"`, for deployments whose replicas nothing else counts.
    """
    states = list(healthy)
    counts = dict(zip(COUNTED_STATUSES, (sum(states), len(states) - sum(states)), strict=True))
    return [
        Sample(
            REPLICAS.name,
            make_labels((*deployment.labels(), ("derived", "true"), (REPLICAS.labels[0], status))),
            float(count),
        )
        for status, count in counts.items()
    ]
