"""Which alerts can fire with an engine's metrics: an alert on metrics that it does not expose is left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from servescope.alerting.rules import records
from servescope.alerting.rules.promises import counts_edge_of
from servescope.contract.expressions import leaves
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import COUNTED_STATUSES, METRICS, SAMPLE_FAMILIES
from servescope.contract.objectives import ENDED
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED, MetricMap


def metrics_of(sources: Iterable[str]) -> frozenset[str]:
    """The metrics that one of these sources, or another target beside it, exposes; all metrics without sources."""
    maps = [load_sources()[name] for name in sources]
    if not maps:
        return frozenset(METRICS)
    return frozenset(name for source in maps for name, each in source.metrics.items() if _is_had(each))


def _is_had(metric: MetricMap) -> bool:
    return bool(metric.alternatives) or metric.status in (*SUPPLIED, "elsewhere")


def can_fire(alert: records.Alert, sources: tuple[str, ...]) -> bool:
    """Whether the alert can fire with what these sources, or targets beside them, expose at its histograms' edges."""
    promised = [term.objective for term in records.terms(alert.condition) if isinstance(term, records.BadRatio)]
    had = metrics_of(sources)
    return can_hold(alert.condition, had) and all(counts_edge_of(each, sources) for each in promised)


def can_hold(condition: records.Condition, had: frozenset[str]) -> bool:
    """Whether the condition can hold anywhere when these metrics are all there are."""

    def holds(part: records.Condition) -> bool:
        counted = [term.condition for term in records.terms(part) if isinstance(term, records.Count)]
        return all(can_hold(each, had) for each in counted) if counted else _read(part) <= had

    return records.holds_by(condition, holds)


def on_causes_held(alert: records.Alert, had: frozenset[str]) -> records.Alert:
    """An alert on several causes without those that cannot hold when these metrics are all there are."""
    match alert.condition:
        case records.Any(conditions) if all(isinstance(each, records.Because) for each in conditions):
            kept = tuple(each for each in conditions if can_hold(each, had))
            return replace(alert, condition=records.Any(kept))
        case _:
            return alert


def _read(condition: records.Condition) -> set[str]:
    names: set[str] = set()
    for term in records.terms(condition):
        match term:
            case records.FigureRef("replica_count_by_status", (("status", statuses),)) if {*statuses} <= {
                *COUNTED_STATUSES
            }:
                continue  # the collector counts its own targets where no source reports them
            case records.FigureRef(figure, _):
                names |= leaves(FIGURES[figure].expression)
            case records.AdHocExpression(expression):
                names |= leaves(expression)
            case records.BadRatio(objective, _):
                names |= leaves(objective.bad)
            case records.RequestsEnded():
                names |= leaves(ENDED)
            case _:
                continue
    return {SAMPLE_FAMILIES.get(name, name) for name in names}
