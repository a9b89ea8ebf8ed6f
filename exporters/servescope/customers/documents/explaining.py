"""What a policy exports of the series that there are, and why each other one is withheld."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from servescope.contract.figures import FIGURES, parse_figure_key
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import Labels, format_series, make_labels
from servescope.customers.lanes.claimed_past import ClaimedPast
from servescope.customers.points.edges import IntervalSnapshot, TargetInterval
from servescope.customers.points.layout import ExportLayout
from servescope.customers.points.naming import metric_labels
from servescope.customers.points.points import Stream
from servescope.customers.points.projection import MERGED_GAUGES, Projector
from servescope.customers.points.quotas import count_series
from servescope.customers.points.reading import IntervalReader
from servescope.customers.points.totals import Totals
from servescope.customers.policy.policy import Policy
from servescope.store.history import History

GEN_AI: Final = (
    "gen_ai.*: not exported; the instruments push these themselves by OTLP, of the requests that each process saw, "
    "which are others than those of the series here"
)


@dataclass(frozen=True, slots=True, order=True)
class ExportedSeries:
    """One stream that the customer receives: how it is written, as how many series, and of how many native ones."""

    text: str
    kind: str
    series: int
    sources: int


@dataclass(frozen=True, slots=True, order=True)
class WithheldSeries:
    """A native series, or a figure, that the customer does not receive, and why."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one customer receives at a boundary, and what it does not.

    `labels` are by name why labels that series have are not exported.
    """

    customer: str
    time_ms: int
    interval_ms: int
    received: tuple[ExportedSeries, ...]
    withheld: tuple[WithheldSeries, ...]
    labels: tuple[tuple[str, str], ...]

    @property
    def series(self) -> int:
        """How many series the customer receives, as Prometheus counts them."""
        return sum(each.series for each in self.received)

    @property
    def samples_per_minute(self) -> float:
        """How many samples those are in a minute."""
        return self.series * 60_000 / self.interval_ms


def explain_policy(policy: Policy, history: History, now_ms: int) -> Explanation:
    """What the policy exports of what there was last at a time; raises ServescopeError."""
    boundary_ms = now_ms // policy.interval_ms * policy.interval_ms
    reader = IntervalReader(history, policy.deployments, METRICS, FIGURES)
    ((snapshot, _),) = reader.read(None, [boundary_ms])
    explanation = explain_snapshot(policy, snapshot)
    if not isinstance(history, ClaimedPast):
        return explanation
    strangers = (WithheldSeries(*each) for each in history.claimants.explain(policy))
    return replace(explanation, withheld=(*strangers, *explanation.withheld))


def explain_snapshot(policy: Policy, snapshot: IntervalSnapshot) -> Explanation:
    """What the policy exports of a boundary that has all metrics and figures."""
    projector = Projector(policy)
    points = projector.project(snapshot, "cumulative", Totals()).points
    costs = {point.stream: count_series(point.value) for point in points if point.value is not None}
    sources: dict[Stream, int] = dict.fromkeys(costs, 0)
    withheld: list[WithheldSeries] = []
    labels: dict[str, str] = {}
    for target in snapshot.targets:
        withheld += _unlisted(policy, target)
        for each, stream in projector.streams_of(target):
            if stream in costs:
                sources[stream] += 1
                labels |= _dropped_labels(policy, target, each.native)
            else:
                withheld.append(WithheldSeries(_native(target, each.metric, each.native), _reason(policy, each.metric)))
        withheld += _incomplete(policy, target)
    withheld += _unlisted_figures(policy, snapshot)
    received = [
        ExportedSeries(describe_stream(stream), stream.metric.kind, cost, max(sources[stream], 1))
        for stream, cost in costs.items()
    ]
    return Explanation(
        policy.name,
        snapshot.time_ms,
        policy.interval_ms,
        tuple(sorted(received)),
        tuple(sorted(withheld)),
        tuple(sorted(labels.items())),
    )


def describe_stream(stream: Stream) -> str:
    """The stream as text, `name{label="value"}`, under the customer's names."""
    return format_series(stream.metric.name, make_labels((*stream.resource, *stream.attributes)))


def _native(target: TargetInterval, metric: str, own: Labels) -> str:
    return format_series(metric, make_labels((*target.identity.labels(), *own)))


def _reason(policy: Policy, metric: str) -> str:
    if METRICS[metric].kind == "gauge" and metric not in MERGED_GAUGES:
        instead = f"; take the figure {metric!r}" if metric in FIGURES else ""
        return f"a ratio, of which there is no sum over several series{instead}"
    return "the quota is used up" if policy.quotas.series or policy.quotas.samples_per_minute else "it has no value"


def _unlisted(policy: Policy, target: TargetInterval) -> Iterator[WithheldSeries]:
    others = METRICS.keys() - set(policy.metrics)
    layout = ExportLayout(target.series, others, ())
    values = layout.read(target.values)
    for each, value in zip(layout.objects, values, strict=True):
        if value is not None:
            yield WithheldSeries(_native(target, each.metric, each.native), _why_unlisted(policy, each.metric))


def _why_unlisted(policy: Policy, metric: str) -> str:
    if policy.resolution == "deployment" and METRICS[metric].kind == "gauge" and metric not in MERGED_GAUGES:
        return _reason(policy, metric)
    return "the metric is not listed under metrics"


def _incomplete(policy: Policy, target: TargetInterval) -> Iterator[WithheldSeries]:
    layout = ExportLayout(target.series, policy.metrics, ())
    for metric, own in layout.incomplete:
        yield WithheldSeries(_native(target, metric, own), "the histogram lacks its sum, its count or all buckets")


def _unlisted_figures(policy: Policy, snapshot: IntervalSnapshot) -> Iterator[WithheldSeries]:
    for deployment, figures in snapshot.figures.items():
        for key in figures:
            name, own = parse_figure_key(key)
            # How much of their window the others have is no figure of a deployment.
            if name == FILLED_SERIES:
                continue
            text = format_series(name, make_labels((*deployment.labels(), *own)))
            if (FIGURES[name].exposed or name) in policy.metrics:
                yield WithheldSeries(text, "the metric of that name is exported, which it would only repeat")
            elif name not in policy.figures:
                yield WithheldSeries(text, "the figure is not listed under figures")
            elif missing := [label for label, _ in own if label not in policy.labels]:
                yield WithheldSeries(text, f"label {missing[0]!r} is not listed under labels")


def _dropped_labels(policy: Policy, target: TargetInterval, native: Labels) -> dict[str, str]:
    """Why labels of a series that is exported are not exported with it."""
    of_contract = (*IDENTITY_LABELS, *metric_labels())
    names: Iterable[str] = (label for label, _ in (*target.identity.labels(), *native))
    return {
        name: "not listed under labels" if name in of_contract else "none of the contract's: it never leaves"
        for name in names
        if name not in policy.labels
    }


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What a change of the configuration adds to what a customer receives, and removes."""

    customer: str
    added: tuple[ExportedSeries, ...]
    removed: tuple[ExportedSeries, ...]


def compare_explanations(former: Sequence[Explanation], now: Sequence[Explanation]) -> list[PolicyChange]:
    """The changes for each customer of either, by name; those without any are left out."""
    before = {each.customer: {series.text: series for series in each.received} for each in former}
    after = {each.customer: {series.text: series for series in each.received} for each in now}
    changes = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, {}), after.get(name, {})
        added = tuple(series for text, series in new.items() if text not in old)
        removed = tuple(series for text, series in old.items() if text not in new)
        if added or removed:
            changes.append(PolicyChange(name, added, removed))
    return changes
