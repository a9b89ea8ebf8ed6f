"""What several processes have recorded, added up: counters and histograms summed, gauges by a rule, ratios recomputed.

A `State` is everything one process has recorded since its start, in a form to send through a socket: a layout that
rarely changes, and one number per series.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from servescope.contract.metrics import METRICS, OTHER_SEGMENT, OUTCOMES, PROCESS_RATIOS, REPLICA_START_TIME, SEGMENT
from servescope.contract.samples import Labels, Sample, Series, make_labels
from servescope.contract.types import Metric
from servescope.instruments.instrument import Instruments

MAX_SERIES = 50_000
"""Most series that are kept of processes that have ended."""
_ROOM_FOR_OTHERS = 2_000
"""So many of them are kept for what is beyond the bound and counts as one: more than ten identities need."""

GROUP_PROCESSES = Metric(
    "servescope_group_processes",
    "gauge",
    "workers",
    "engine",
    "Processes of the group that are connected, the one that answers included.",
    labels=("group",),
)
GROUP_STATE_AGE = Metric(
    "servescope_group_state_age_seconds",
    "gauge",
    "seconds",
    "engine",
    "Age of the oldest process state on this page; it grows while a process hangs.",
    labels=("group",),
)
GROUP_PROCESSES_ENDED = Metric(
    "servescope_group_processes_ended_total",
    "counter",
    "events",
    "engine",
    "Processes of the group that have ended; what they counted stays in the sums.",
    labels=("group",),
)

Families = list[tuple[Metric, list[Sample]]]
SeriesFamilies = tuple[tuple[Metric, tuple[Series, ...]], ...]

_MAX_LAYOUT = 2**26

# Shares are averaged. Devices, a router's index and an autoscaler's decisions are the same in each process.
_AVERAGED = frozenset({"kv_cache_usage"})
_SEEN_BY_EACH = frozenset({"gpu_usage", "gpu_memory_usage", "router_index_state"})
_PER_SCOPE = frozenset({"cpu_usage", "memory_usage"})


class FormatError(ValueError):
    """What another process sent is not a state."""


@dataclass(frozen=True, slots=True)
class State:
    """What one process has recorded, or what the processes that have ended had.

    `values` has one number per series of `families`, then two per series of `ratios`: what its numerator and its
    denominator summed to over the process's trailing window. `scope` says where CPU and memory were read: empty for
    the process itself, or a text that all processes of one cgroup share.
    """

    families: SeriesFamilies = ()
    ratios: tuple[Series, ...] = ()
    scope: str = ""
    values: tuple[float, ...] = ()

    def layout(self) -> bytes:
        """All but the values, as bytes."""
        families = [[_metric_fields(metric), series] for metric, series in self.families]
        # Labels repeat on every line: compressed they are a twentieth.
        return zlib.compress(json.dumps([families, self.ratios, self.scope]).encode(), 1)

    def packed_values(self) -> bytes:
        """The values, as bytes."""
        return struct.pack(f"<{len(self.values)}d", *self.values)

    def same_layout(self, other: State) -> bool:
        """Whether the two differ in values alone."""
        return (self.families, self.ratios, self.scope) == (other.families, other.ratios, other.scope)

    def with_values(self, packed: bytes | memoryview) -> State:
        """The state of this layout with other values. Raises FormatError when their number is another."""
        expected = sum(len(series) for _, series in self.families) + 2 * len(self.ratios)
        if len(packed) != 8 * expected:
            raise FormatError(f"a state has {len(packed)} bytes of values, expected {8 * expected}")
        return replace(self, values=struct.unpack(f"<{expected}d", packed))

    def samples(self) -> Families:
        """The families with their samples."""
        values = iter(self.values)
        return [
            (metric, [Sample(name, labels, next(values)) for name, labels in series])
            for metric, series in self.families
        ]


def read_layout(raw: bytes | memoryview) -> State:
    """A state without values, of the layout's bytes. Raises FormatError."""
    try:
        families, ratios, scope = json.loads(zlib.decompressobj().decompress(raw, _MAX_LAYOUT))
        return State(
            tuple((_metric(fields), tuple(map(_series, series))) for fields, series in families),
            tuple(map(_series, ratios)),
            str(scope),
        )
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise FormatError(f"a state's layout cannot be read: {error}") from error


def state_of(families: Families, ratios: Sequence[tuple[Series, float, float]] = (), scope: str = "") -> State:
    """The state made of these families, and of the numerator and denominator of each ratio."""
    values = [sample.value for _, samples in families for sample in samples]
    values += [part for _, numerator, denominator in ratios for part in (numerator, denominator)]
    return State(
        tuple((metric, tuple(Series(*sample[:2]) for sample in samples)) for metric, samples in families),
        tuple(series for series, _, _ in ratios),
        scope,
        tuple(values),
    )


def read_instruments(instruments: Iterable[Instruments]) -> State:
    """What the instruments of this process have recorded."""
    families: dict[str, tuple[Metric, list[Sample]]] = {}
    ratios: list[tuple[Series, float, float]] = []
    scope = ""
    for one in instruments:
        for metric, samples in one.families():
            # What a member counted stays when it ends: its start says nothing about the sums of all.
            if metric.name == REPLICA_START_TIME:
                continue
            families.setdefault(metric.name, (metric, []))[1].extend(samples)
        labels = one.identity.labels()
        ratios += [(Series(name, labels), *parts) for name, parts in one._ratio_parts.items()]
        found = getattr(getattr(one, "_resources", None), "scope", "process")
        scope = scope if found == "process" else str(found)
    return state_of(list(families.values()), ratios, scope)


class OwnState:
    """The state of this process, read anew each time; its layout is serialized only when it changes."""

    def __init__(self, instruments: Iterable[Instruments]) -> None:
        self._instruments = tuple(instruments)
        self._layout: tuple[State, bytes] = State(), State().layout()

    def read(self) -> tuple[State, bytes]:
        """The state now, and its layout as bytes."""
        state = read_instruments(self._instruments)
        if not state.same_layout(self._layout[0]):
            self._layout = state, state.layout()
        return state, self._layout[1]


def add_up(states: Iterable[State]) -> Families:
    """One page of several processes: no series twice."""
    pages: dict[str, tuple[Metric, dict[Series, _Cell]]] = {}
    ratios: dict[Series, list[float]] = {}
    for state in states:
        values = iter(state.values)
        for metric, series in state.families:
            make = _cell_of(metric)
            page = pages.setdefault(metric.name, (metric, {}))[1]
            for one in series:
                value = next(values)
                if one not in page:
                    page[one] = make()
                page[one].add(value, state.scope)
        for one in state.ratios:
            parts = ratios.setdefault(one, [0.0, 0.0])
            parts[0] += next(values)
            parts[1] += next(values)
    for name in PROCESS_RATIOS:
        if name in pages:
            pages[name][1].clear()
    for one, (numerator, denominator) in ratios.items():
        if denominator:
            pages.setdefault(one.name, (METRICS[one.name], {}))[1][one] = _Sum(numerator / denominator)
    return [(metric, [Sample(*one, cell.value()) for one, cell in page.items()]) for metric, page in pages.values()]


def settle(state: State, ended: Series) -> State:
    """What remains of a process that has ended: its counts. Its requests in flight ended with it, by an error.

    `ended` is the series that counts the process.
    """
    lost: dict[Series, float] = {}
    for metric, samples in state.samples():
        if metric.name == "concurrent_requests":
            for sample in samples:
                labels = make_labels((*sample.labels, ("outcome", OUTCOMES[-1])))
                lost[Series("requests_total", labels)] = max(sample.value, 0.0)
    kept = [
        (metric, [sample._replace(value=sample.value + lost.get(Series(*sample[:2]), 0.0)) for sample in samples])
        for metric, samples in state.samples()
        if metric.kind != "gauge"
    ]
    return state_of([*kept, (GROUP_PROCESSES_ENDED, [Sample(*ended, 1.0)])])


def keep_counts(remainder: State, settled: State) -> State:
    """What the processes that have ended counted together; bounded, however many they are.

    Beyond the bound segments count as `OTHER_SEGMENT`, as they do in a process, and further identities not at all.
    """
    known = {series for _, family in remainder.families for series in family}
    room = MAX_SERIES - len(known)
    fitting: Families = []
    for metric, samples in settled.samples():
        kept: list[Sample] = []
        # The buckets, count and sum of a histogram are one: it fits as a whole.
        for _, group in groupby(samples, lambda sample: [pair for pair in sample.labels if pair[0] != "le"]):
            own = list(group)
            for samples_of_one, spare in (own, room - _ROOM_FOR_OTHERS), (list(map(_as_other, own)), room):
                new = {Series(*sample[:2]) for sample in samples_of_one} - known
                if len(new) <= max(spare, 0):
                    known |= new
                    room -= len(new)
                    kept += samples_of_one
                    break
        fitting.append((metric, kept))
    return state_of(add_up([remainder, state_of(fitting)]))


def _as_other(sample: Sample) -> Sample:
    """The sample as one of the segment of all others, when it is of a segment."""
    labels = [(name, OTHER_SEGMENT if name == SEGMENT else value) for name, value in sample.labels]
    return sample._replace(labels=make_labels(labels))


class _Sum:
    """Counts, and gauges of what each process has of its own."""

    __slots__ = ("_value",)

    def __init__(self, value: float = 0.0) -> None:
        self._value = value

    def add(self, value: float, scope: str) -> None:
        self._value += value

    def value(self) -> float:
        return self._value


class _Mean(_Sum):
    __slots__ = ("_count",)

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def add(self, value: float, scope: str) -> None:
        self._value += value
        self._count += 1

    def value(self) -> float:
        return self._value / self._count


class _Most(_Sum):
    __slots__ = ()

    def add(self, value: float, scope: str) -> None:
        self._value = max(self._value, value)


class _SumOverScopes(_Sum):
    """Processes of one cgroup all report the cgroup's use: it counts once; the use of single processes is summed."""

    __slots__ = ("_by_scope",)

    def __init__(self) -> None:
        super().__init__()
        self._by_scope: dict[str, float] = {}

    def add(self, value: float, scope: str) -> None:
        if scope:
            self._by_scope[scope] = max(self._by_scope.get(scope, 0.0), value)
        else:
            self._value += value

    def value(self) -> float:
        return self._value + sum(self._by_scope.values())


_Cell = _Sum


def _cell_of(metric: Metric) -> type[_Sum] | type[_Mean] | type[_Most] | type[_SumOverScopes]:
    if metric.kind != "gauge":
        return _Sum
    if metric.name in _AVERAGED:
        return _Mean
    if metric.name in _PER_SCOPE:
        return _SumOverScopes
    if metric.name in _SEEN_BY_EACH or metric.component == "autoscaler":
        return _Most
    return _Sum


def _metric_fields(metric: Metric) -> list[Any]:
    if metric.name in METRICS:
        return [metric.name]
    return [metric.name, metric.kind, metric.unit, metric.component, metric.help, metric.absent, metric.labels]


def _metric(fields: list[Any]) -> Metric:
    if len(fields) == 1:
        return METRICS[fields[0]]
    name, kind, unit, component, text, absent, labels = fields
    return Metric(name, kind, unit, component, text, absent, tuple(labels))


def _series(raw: list[Any]) -> Series:
    name, labels = raw
    pairs: Labels = tuple((str(label), str(value)) for label, value in labels)
    return Series(str(name), pairs)
