"""The points of a customer's streams at a boundary: what its policy lets through, under its names, and nothing else."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from types import MappingProxyType
from typing import Final, NamedTuple

from servescope.contract.expressions import Level
from servescope.contract.figures import FIGURES, parse_figure_key
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, Deployment, Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Series, make_labels
from servescope.customers.points import naming
from servescope.customers.points.edges import IntervalSnapshot, TargetInterval
from servescope.customers.points.hashing import ReplicaHash
from servescope.customers.points.layout import ExportedObject, ExportLayout, Value
from servescope.customers.points.points import Descriptor, HistogramValue, Stream, StreamPoint
from servescope.customers.points.quotas import SeriesQuota
from servescope.customers.points.totals import StreamKey, StreamTotal, Totals, add_histograms
from servescope.customers.policy.policy import Policy, Temporality
from servescope.settings.values import format_duration

_logger = logging.getLogger(__name__)

FORGET_MS: Final = 86_400_000
"""How long the total of a stream that ended is kept, so that it goes on when it comes back."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The points of a boundary, in order of time for each stream; what was withheld, in series, by reason.

    `foreign` is of no deployment of the customer; `ratio` one of several series, which cannot be added up; `label`: the
    label that distinguishes figures is not exported; `incomplete`: a histogram lacks a part; `quota`: it is used up.
    `totals` are what the next boundary goes on from, once the points are acknowledged.
    """

    points: list[StreamPoint]
    withheld: Counter[str]
    totals: Totals


class _Source(NamedTuple):
    """What one series of a target contributes to a stream: its value, what it gained, and whether it ended.

    `counted` is what it counted since `since_ms` of its target, `edges` are those of a histogram.
    """

    value: Value | None
    gain: Value | None
    counted: Value | None
    ended: bool
    edges: tuple[float, ...]
    target: TargetInterval


class _Plan(NamedTuple):
    """The stream of each object of a target."""

    layout: ExportLayout
    keys: tuple[StreamKey, ...]
    streams: tuple[Stream, ...]


class Projector:
    """Projects the boundaries of one customer, one after the other. Not thread safe.

    Equal boundaries with equal totals bring equal points. Raises AccessError when the key that replicas are hashed with
    cannot be read: no replica is ever exported by its own name instead.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._labels = frozenset(naming.exported_labels(policy))
        self._metrics = {name: naming.describe_metric(policy, name) for name in policy.metrics}
        self._figures = {name: naming.describe_figure(policy, name) for name in policy.figures}
        hashes = policy.replicas == "hashed" and "replica" in self._labels
        self._hash = ReplicaHash(policy.key.path, policy.name) if hashes and policy.key else None
        self._quota = SeriesQuota(policy)
        self._layouts: dict[int, tuple[tuple[Series, ...], ExportLayout]] = {}
        self._plans: dict[tuple[Identity, str], _Plan] = {}
        self._streams: dict[StreamKey, Stream] = {}

    def project(self, snapshot: IntervalSnapshot, temporality: Temporality, totals: Totals) -> Projection:
        """The points of a boundary; `totals` are those of the boundary before."""
        key_id = self._hash.refresh() if self._hash else ""
        if totals.key_id not in ("", key_id) and key_id:
            _logger.info("customer %s: replicas have other names from now on, by key %s", self._policy.name, key_id)
        withheld: Counter[str] = Counter()
        theirs = [target for target in snapshot.targets if target.identity.deployment() in self._policy.deployments]
        withheld["foreign"] += sum(len(target.series) for target in snapshot.targets) - sum(
            len(target.series) for target in theirs
        )
        planned = [(target, self._plan(target, key_id)) for target in theirs]
        self._forget(planned, key_id)
        withheld["incomplete"] += sum(len(plan.layout.incomplete) for _, plan in planned)
        points = [*self._ends_of_former_names(theirs, key_id, totals.key_id, snapshot.time_ms)]
        streams: dict[StreamKey, StreamTotal] = {}
        for key, sources in _gather(planned).items():
            points += self._points(key, sources, snapshot, temporality, totals, streams, withheld)
        streams |= _recent(totals.streams, streams, snapshot.time_ms)
        shown, figures = self._figure_points(snapshot, totals.figures, withheld)
        kept = self._quota.keep([*points, *figures], withheld)
        return Projection(kept, +withheld, Totals(streams, shown, key_id))

    def streams_of(self, target: TargetInterval) -> list[tuple[ExportedObject, Stream]]:
        """The objects of a target that the policy lists, and the stream that each is exported as, or is part of."""
        plan = self._plan(target, self._hash.refresh() if self._hash else "")
        return list(zip(plan.layout.objects, plan.streams, strict=True))

    # --- Which series are which stream ---

    def _plan(self, target: TargetInterval, key_id: str) -> _Plan:
        layout = self._layout(target.series)
        known = self._plans.get((target.identity, key_id))
        if known is None or known.layout is not layout:
            resource = self._identity_labels(target.identity, key_id)
            keys = tuple(StreamKey(each.metric, make_labels((*resource, *each.labels))) for each in layout.objects)
            streams = tuple(self._stream(key, self._metrics[key.metric]) for key in keys)
            known = self._plans[target.identity, key_id] = _Plan(layout, keys, streams)
        return known

    def _layout(self, series: tuple[Series, ...]) -> ExportLayout:
        known = self._layouts.get(id(series))
        if known is None or known[0] is not series:
            known = self._layouts[id(series)] = (series, ExportLayout(series, self._metrics, self._labels))
        return known[1]

    def _identity_labels(self, identity: Identity | Deployment, key_id: str) -> list[tuple[str, str]]:
        names = IDENTITY_LABELS if isinstance(identity, Identity) else DEPLOYMENT_LABELS
        labels = [(name, getattr(identity, name)) for name in names if name in self._labels]
        if self._hash is None or not isinstance(identity, Identity):
            return labels
        hashed = self._hash.name(identity.replica, key_id) if identity.replica else ""
        return [*((name, hashed if name == "replica" else value) for name, value in labels), (naming.KEY_LABEL, key_id)]

    def _stream(self, key: StreamKey, descriptor: Descriptor) -> Stream:
        known = self._streams.get(key)
        if known is None:
            resource = {name: value for name, value in key.labels if name in naming.RESOURCE_LABELS}
            attributes = {name: value for name, value in key.labels if name not in naming.RESOURCE_LABELS}
            known = self._streams[key] = Stream(
                descriptor,
                naming.rename_labels(self._policy, resource),
                naming.rename_labels(self._policy, attributes),
                naming.service_attributes(self._policy, resource),
            )
        return known

    def _forget(self, planned: Sequence[tuple[TargetInterval, _Plan]], key_id: str) -> None:
        """Forget what is of targets that are gone, once there is more of that than of those that are there."""
        if len(self._plans) > 2 * len(planned) + 16:
            present = {(target.identity, key_id) for target, _ in planned}
            self._plans = {place: plan for place, plan in self._plans.items() if place in present}
        if len(self._streams) > 2 * sum(len(plan.streams) for _, plan in planned) + 1000:
            self._streams.clear()
        if len(self._layouts) > 2 * len(planned) + 16:
            series = {id(target.series) for target, _ in planned}
            self._layouts = {place: layout for place, layout in self._layouts.items() if place in series}

    # --- Points ---

    def _points(
        self,
        key: StreamKey,
        sources: Sequence[_Source],
        snapshot: IntervalSnapshot,
        temporality: Temporality,
        totals: Totals,
        streams: dict[StreamKey, StreamTotal],
        withheld: Counter[str],
    ) -> Iterator[StreamPoint]:
        """The points of a stream, of one series or the sum of several; a total to go on from is put into `streams`."""
        stream = self._stream(key, self._metrics[key.metric])
        present = [source.value for source in sources if source.value is not None]
        ends = not present and any(source.ended for source in sources)
        if stream.metric.kind == "gauge":
            over = MERGED_GAUGES.get(key.metric)
            numbers = [value for value in present if not isinstance(value, HistogramValue)]
            if over is None and (len(sources) > 1 or self._policy.resolution == "deployment"):
                withheld["ratio"] += len(present)
            elif numbers:
                yield StreamPoint(stream, None, snapshot.time_ms, max(numbers) if over == "max" else sum(numbers))
            elif ends:
                yield StreamPoint(stream, None, snapshot.time_ms, None)
            return
        gain = _sum(source.gain for source in sources)
        if temporality == "delta":
            if gain is not None and snapshot.before_ms is not None:
                yield StreamPoint(stream, snapshot.before_ms, snapshot.time_ms, gain)
            return
        if self._is_of_one_target(key, sources, totals):
            counted = _sum(source.counted for source in sources)
            total = None if counted is None else StreamTotal(sources[0].target.since_ms, counted)
        else:
            total = _advance(totals.streams.get(key), gain, gain if gain is not None else _sum(present), snapshot)
            if total is not None and (present or ends or gain is not None):
                streams[key] = total if present else StreamTotal(total.start_ms, total.value, snapshot.time_ms)
        if present and total is not None:
            yield StreamPoint(stream, total.start_ms, snapshot.time_ms, total.value)
        elif not present and (ends or gain is not None):
            if gain is not None and total is not None:
                # What was counted before the last series ended comes before the mark of its end.
                yield StreamPoint(stream, total.start_ms, snapshot.time_ms - 1, total.value)
            sent = total.value if total is not None else None
            edges = sent.edges if isinstance(sent, HistogramValue) else sources[0].edges
            yield StreamPoint(stream, None, snapshot.time_ms, None, edges)

    def _is_of_one_target(self, key: StreamKey, sources: Sequence[_Source], totals: Totals) -> bool:
        """Whether what the sources counted is the total: targets that a sum has lost would be missing in it."""
        is_replicas = self._policy.resolution == "replica" and key not in totals.streams
        return is_replicas and all(source.target is sources[0].target for source in sources)

    def _ends_of_former_names(
        self, targets: Sequence[TargetInterval], key_id: str, former_id: str, time_ms: int
    ) -> Iterator[StreamPoint]:
        """The ends of all series that replicas had under the key that was in use before."""
        if self._hash is None or former_id in ("", key_id) or not self._hash.has(former_id):
            return
        for target in targets:
            plan = self._plan(target, former_id)
            values, ended = plan.layout.read(target.values), target.ended[plan.layout.first_rows].tolist()
            for stream, value, has_ended, edges in zip(plan.streams, values, ended, plan.layout.edges, strict=True):
                if value is not None or has_ended:
                    yield StreamPoint(stream, None, time_ms, None, edges)

    def _figure_points(
        self, snapshot: IntervalSnapshot, before: frozenset[StreamKey], withheld: Counter[str]
    ) -> tuple[frozenset[StreamKey], list[StreamPoint]]:
        """The figures that are shown, and their points, with the ends of those that were shown before."""
        points = []
        shown: set[StreamKey] = set()
        window = format_duration(snapshot.window_ms)
        for deployment, figures in snapshot.figures.items():
            if deployment not in self._policy.deployments:
                withheld["foreign"] += len(figures)
                continue
            resource = self._identity_labels(deployment, "")
            for figure_key, value in figures.items():
                name, own = parse_figure_key(figure_key)
                if name not in self._figures:
                    continue
                if any(label not in self._labels for label, _ in own):
                    withheld["label"] += 1
                    continue
                key = StreamKey(name, make_labels((*resource, *own, (naming.WINDOW_LABEL, window))))
                shown.add(key)
                points.append(StreamPoint(self._stream(key, self._figures[name]), None, snapshot.time_ms, value))
        gone = [key for key in sorted(before - shown) if key.metric in self._figures]
        points += [
            StreamPoint(self._stream(key, self._figures[key.metric]), None, snapshot.time_ms, None) for key in gone
        ]
        return frozenset(shown), points


def _gather(planned: Sequence[tuple[TargetInterval, _Plan]]) -> dict[StreamKey, list[_Source]]:
    gathered: dict[StreamKey, list[_Source]] = {}
    for target, plan in planned:
        layout = plan.layout
        sources = zip(
            layout.read(target.values),
            layout.read(target.gains),
            layout.read(target.counted),
            target.ended[layout.first_rows].tolist(),
            layout.edges,
            repeat(target),
        )
        for key, source in zip(plan.keys, sources, strict=True):
            gathered.setdefault(key, []).append(_Source(*source))
    return gathered


def _merged_gauges() -> Mapping[str, str]:
    """How gauges of several series are one: as the derived figure of the same metric has it."""
    over = {
        figure.expression.name: figure.expression.over
        for figure in FIGURES.values()
        if isinstance(figure.expression, Level) and figure.expression.over != "avg"
    }
    additive = {
        metric.name: "sum"
        for metric in METRICS.values()
        if metric.kind == "gauge" and metric.unit not in ("ratio", "seconds")
    }
    return MappingProxyType({**additive, **over})


MERGED_GAUGES: Final = _merged_gauges()
"""Gauges that can be merged: by their "sum", or by their "max"."""


def _sum(values: Iterable[Value | None]) -> Value | None:
    """The sum of those that are known; None without any."""
    known = [value for value in values if value is not None]
    return reduce(_add, known) if known else None


def _add(first: Value, second: Value) -> Value:
    if isinstance(first, HistogramValue):
        return add_histograms(first, second) if isinstance(second, HistogramValue) else first
    return first + second if not isinstance(second, HistogramValue) else first


def _advance(
    total: StreamTotal | None, gain: Value | None, shape: Value | None, snapshot: IntervalSnapshot
) -> StreamTotal | None:
    """The total with `gain` added, unchanged where that is None.

    A new total replaces one that is None, or a histogram that lacks an edge of `shape`, the sum of what the series show
    now. It counts from the boundary before and has what was gained since; without a gain, or at a lane's first
    boundary, it counts from this boundary and is 0, or None where no series shows a value.
    """
    if total is None or _is_coarser(total.value, shape):
        if gain is not None and snapshot.before_ms is not None:
            return StreamTotal(snapshot.before_ms, gain)
        return None if shape is None else StreamTotal(snapshot.time_ms, _nothing(shape))
    return StreamTotal(total.start_ms, total.value if gain is None else _add(total.value, gain))


def _is_coarser(total: Value, shape: Value | None) -> bool:
    if not isinstance(total, HistogramValue) or not isinstance(shape, HistogramValue):
        return False
    return not {*shape.edges} <= {*total.edges}


def _nothing(shape: Value) -> Value:
    if isinstance(shape, HistogramValue):
        return HistogramValue(shape.edges, (0,) * len(shape.counts), 0.0)
    return 0.0


def _recent(
    before: Mapping[StreamKey, StreamTotal], now: Mapping[StreamKey, StreamTotal], time_ms: int
) -> dict[StreamKey, StreamTotal]:
    """The totals of streams that ended, which are forgotten after a day."""
    return {
        key: StreamTotal(total.start_ms, total.value, total.ended_ms or time_ms)
        for key, total in before.items()
        if key not in now and time_ms - (total.ended_ms or time_ms) < FORGET_MS
    }
