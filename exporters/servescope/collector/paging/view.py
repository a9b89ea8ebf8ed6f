"""What conditions read at one evaluation: figures and their past, the collector's own series, error budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from servescope.alerting.rules import records
from servescope.alerting.rules.evaluation import Instant, Readings, duration_ms, values_of
from servescope.alerting.rules.labelled import NOTHING, Floats, Keys, Labelled, Rows, labelled_values
from servescope.collector.figures.derive import Derivation
from servescope.collector.paging.budgets import Budgets
from servescope.collector.paging.recent_values import RecentValues, reduced
from servescope.collector.paging.requirements import Requirements, asked_name, objectives_of, variants
from servescope.contract.expressions import Matchers, Vector, matches
from servescope.contract.figures import parse_figure_key
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.samples import Labels, make_labels
from servescope.contract.types import Objective
from servescope.increments.extrapolation import LOOKBACK_MS, Range, WindowBounds, sample_changes
from servescope.store.records import FigureTable


class _Rows(NamedTuple):
    """A figure's label sets, and the row of each among the values of all deployments."""

    keys: Keys
    rows: Rows


class _Past:
    """Recent values of series by their labels, read as `Labelled`."""

    def __init__(self, span_ms: int) -> None:
        self.values: RecentValues[Labels] = RecentValues(span_ms)
        self._keys = NOTHING.keys

    def append(self, at_ms: int, found: Labelled) -> None:
        """Append the values of an instant."""
        self.values.append_each(at_ms, found.keys.labels, found.values)

    def labelled(self, values: Floats) -> Labelled:
        """Values (keys,) by their labels, absent ones left out."""
        self._keys = self._keys.updated(list(self.values.columns))
        return Labelled(self._keys, values).present()

    def reduced(self, function: str, within: Range) -> Labelled:
        """An aggregate of the values of a time range."""
        return self.labelled(reduced(function, self.values.between(within.first_ms, within.at_ms)[1]))


class CollectorView:
    """The view of the last evaluation; see `servescope.alerting.rules.evaluation.View`. Not thread safe."""

    def __init__(self, requirements: Requirements, bounds: WindowBounds) -> None:
        self.requirements = requirements
        self._bounds = bounds
        longest_ms = max(requirements.budgets.values(), default=0)
        self.budgets = Budgets(objectives_of(requirements), longest_ms)
        self._pasts = {shown: _Past(span_ms) for shown, span_ms in requirements.pasts.items()}
        self._owns = {name: _Past(span_ms + LOOKBACK_MS) for name, span_ms in requirements.own.items() if span_ms}
        self._counters: RecentValues[tuple[str, Labels]] = RecentValues(max(requirements.counters.values(), default=0))
        self._samples = {lately: _Past(span_ms_of(lately)) for lately in requirements.lately}
        # The figures' keys of each deployment at the last evaluation, and where the values of each figure are.
        self._known: list[tuple[Deployment, list[str]]] = []
        self._rows: dict[str, _Rows] = {}
        self.at_ms = 0
        self._figures: dict[str, Labelled] = {}
        # The values of each expression that conditions read beside figures, of all deployments.
        self._asked: dict[str, Vector] = {}
        self._own: dict[str, Labelled] = {}
        self._increases: dict[int, dict[tuple[str, Labels], float]] = {}
        self._listed: dict[records.SelfMetric, dict[tuple[str, ...], list[str]]] = {}
        self._shares: dict[int, dict[Objective, Labelled]] = {}

    # --- Updating -----------------------------------------------------------------------------------------------------

    def update(self, at_ms: int, deployments: Mapping[Deployment, Derivation], own: Mapping[str, Vector]) -> None:
        """Replace the evaluation: its instant, figures, and the collector's own series."""
        self.at_ms, self._asked = at_ms, {each.name: {} for each in self.requirements.asked}
        self._increases, self._shares, self._listed = {}, {}, {}
        self._own = {name: labelled_values(found, self._current(name).keys) for name, found in own.items()}
        self._figures = self._of_all(deployments)
        for derivation in deployments.values():
            for name, values in derivation.asked.items():
                self._asked[name].update(values)
        for shown, past in self._pasts.items():
            past.append(at_ms, self.figure(shown))
        for name, before in self._owns.items():
            before.append(at_ms, self._current(name))
        counted = {
            (name, labels): value for name in self.requirements.counters for labels, value in own.get(name, {}).items()
        }
        self._counters.append(at_ms, counted)
        at = Instant(self)
        for lately, samples in self._samples.items():
            if _is_due(lately, samples.values, at_ms):
                samples.append(at_ms, labelled_values(values_of(lately.of, at)))

    def _of_all(self, deployments: Mapping[Deployment, Derivation]) -> dict[str, Labelled]:
        """The figures that conditions read, each of all deployments."""
        known = [(deployment, list(derivation.figures)) for deployment, derivation in deployments.items()]
        if known != self._known:
            self._known, self._rows = known, self._find_rows(known)
        values = np.fromiter(
            chain.from_iterable(derivation.figures.values() for derivation in deployments.values()), np.float64
        )
        return {name: Labelled(found.keys, values[found.rows]) for name, found in self._rows.items()}

    def _find_rows(self, known: Iterable[tuple[Deployment, list[str]]]) -> dict[str, _Rows]:
        found: dict[str, dict[Labels, int]] = {name: {} for name in self.requirements.figures}
        keys = ((deployment, key) for deployment, of_it in known for key in of_it)
        for row, (deployment, key) in enumerate(keys):
            name, own = _parse_key(key)
            if name in found:
                found[name][make_labels((*deployment.labels(), *own))] = row
        return {
            name: _Rows(Keys(list(rows)), np.fromiter(rows.values(), np.intp, len(rows)))
            for name, rows in found.items()
        }

    def restore(self, tables: Mapping[Deployment, FigureTable]) -> None:
        """Restore past figures after a restart."""
        for shown, span_ms in self.requirements.pasts.items():
            instants: dict[int, Vector] = {}
            for deployment, table in tables.items():
                for key, column in table.values.items():
                    name, own = _parse_key(key)
                    if name == shown.figure and matches(dict(own), shown.where):
                        labels = make_labels((*deployment.labels(), *own))
                        for at_ms, value in zip(table.times.tolist(), column.tolist(), strict=True):
                            if value == value:
                                instants.setdefault(at_ms, {})[labels] = value
            past = self._pasts[shown] = _Past(span_ms)
            for at_ms in sorted(instants):
                past.append(at_ms, labelled_values(instants[at_ms]))

    def restore_samples(self, lately: records.Subquery, figure: str, tables: Mapping[Deployment, FigureTable]) -> None:
        """Restore what is sampled for a term, as the sums of a figure by the term's labels, at each `every`.

        Of a deployment the last value within each `every` counts.
        """
        by, every_ms = records.labels_of(lately), duration_ms(lately.every)
        instants: dict[int, Vector] = {}
        for deployment, table in tables.items():
            group = tuple(pair for pair in deployment.labels() if pair[0] in by)
            pairs = zip(table.times.tolist(), table.values[figure].tolist(), strict=True)
            last = {at_ms // every_ms * every_ms: value for at_ms, value in pairs if value == value}
            for step_ms, value in last.items():
                sums = instants.setdefault(step_ms, {})
                sums[group] = sums.get(group, 0.0) + value
        for at_ms in sorted(instants):
            self._samples[lately].append(at_ms, labelled_values(instants[at_ms]))

    # --- Reading ------------------------------------------------------------------------------------------------------

    def figure(self, shown: records.FigureRef) -> Labelled:
        """A figure's values now."""
        return self._figures.get(shown.figure, NOTHING).matching(shown.where)

    def over(self, over: records.OverTime) -> Labelled:
        """An aggregate of a figure over a past window."""
        return self._pasts[over.shown].reduced(over.function, self._within(over.window, over.before))

    def own(self, own: records.SelfMetric, before: str = "") -> Labelled:
        """A series of the collector's own now, or at the last evaluation at least `before` ago; or its increase."""
        if own.increase_over:
            return labelled_values(self._increase(own))
        found = self._earlier(own.name, duration_ms(before)) if before else self._current(own.name)
        return found.matching(own.where)

    def listed(self, own: records.SelfMetric, labels: Mapping[str, str]) -> list[str]:
        """The values of the last label of a series of the collector's own now, of those with the other labels."""
        known = self._listed.get(own)
        *others, last = own.by
        if known is None:
            known = self._listed[own] = {}
            for found in map(dict, self.own(own).keys.labels):
                known.setdefault(tuple(found.get(label, "") for label in others), []).append(found[last])
        return sorted(known.get(tuple(labels.get(label, "") for label in others), []))

    def highest(self, own: records.SelfMetric, window: str) -> Labelled:
        """The highest values of a series of the collector's own at the evaluations of a past window."""
        past = self._owns.get(own.name)
        return NOTHING if past is None else past.reduced("max", self._within(window)).matching(own.where)

    def lately(self, lately: records.Subquery) -> Labelled:
        """The maximum or minimum of a term at the samples of a past window."""
        return self._samples[lately].reduced(lately.function, self._within(lately.window, lately.before))

    def _within(self, window: str, before: str = "") -> Range:
        return Range(self.at_ms - duration_ms(before), duration_ms(window), self._bounds)

    def measured(self, measured: records.AdHocExpression) -> Vector:
        """An expression over the figures' window, summed where it spans several deployments."""
        values = self._asked.get(self.requirements.measured[measured], {})
        return values if measured.level == DEPLOYMENT_LABELS else _summed(values.items(), measured.labels)

    def badness(self, badness: records.BadRatio) -> Readings:
        """An objective's bad share, of each deployment by what it is promised.

        It is computed from held scrapes where the window is short enough, else from `Budgets`.
        """
        objective = badness.objective
        if not objective.others:
            return self._share(badness, objective)
        return {
            labels: value
            for each in variants(objective)
            for labels, value in _vector(self._share(badness, each)).items()
            if objective.of(dict(labels)) == each
        }

    def _share(self, badness: records.BadRatio, objective: Objective) -> Readings:
        name = self.requirements.badness.get(badness)
        if name is not None:
            return self._asked.get(asked_name(name, objective), {})
        window_ms = self.requirements.budgets[badness]
        shares = self._shares.get(window_ms)
        if shares is None:
            shares = self._shares[window_ms] = self.budgets.shares(window_ms, self.at_ms)
        return shares[objective]

    def ended(self, ended: records.RequestsEnded) -> Labelled:
        """The number of requests that ended over a window of objectives."""
        return self.budgets.ended(self.requirements.budgets[ended], self.at_ms)

    def _current(self, name: str) -> Labelled:
        return self._own.get(name, NOTHING)

    def _earlier(self, name: str, before_ms: int) -> Labelled:
        past = self._owns.get(name)
        found = None if past is None else past.values.latest(self.at_ms - before_ms)
        if past is None or found is None or found[0] < self.at_ms - before_ms - LOOKBACK_MS:
            return NOTHING
        return past.labelled(found[1])

    def _increase(self, own: records.SelfMetric) -> Vector:
        window_ms = duration_ms(own.increase_over)
        increases = self._increases.get(window_ms)
        if increases is None:
            within = Range(self.at_ms, window_ms, self._bounds)
            times, values = self._counters.between(within.first_ms, self.at_ms)
            rows = np.ascontiguousarray(values.T)
            found = sample_changes(np.broadcast_to(times, rows.shape), rows, within).increases()
            increases = self._increases[window_ms] = self._counters.by_key(found)
        meant = (
            (labels, value)
            for (name, labels), value in increases.items()
            if name == own.name and _is_meant(labels, own.where)
        )
        return _summed(meant, own.by)


def span_ms_of(lately: records.Subquery) -> int:
    """How far back a term is read, in milliseconds."""
    return duration_ms(lately.window) + duration_ms(lately.before)


def _vector(found: Readings) -> Vector:
    return found.vector() if isinstance(found, Labelled) else found


def _is_due(lately: records.Subquery, samples: RecentValues[Labels], at_ms: int) -> bool:
    """Whether a step of `every` began since the last sample; one that is later than now was of another clock."""
    every_ms, times = duration_ms(lately.every), samples.times
    return not len(times) or int(times[-1]) // every_ms != at_ms // every_ms


def _summed(values: Iterable[tuple[Labels, float]], by: Sequence[str]) -> Vector:
    summed: Vector = {}
    for labels, value in values:
        group = tuple(pair for pair in labels if pair[0] in by)
        summed[group] = summed.get(group, 0.0) + value
    return summed


# The same labels are matched at every evaluation.
@lru_cache(1 << 15)
def _is_meant(labels: Labels, where: Matchers) -> bool:
    return matches(dict(labels), where)


_parse_key = lru_cache(4096)(parse_figure_key)
