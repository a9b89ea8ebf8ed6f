"""The state of an instrument: the series it has booked so far, read as samples or as exposition text.

Nothing here is safe from several threads; an instrument books and reads under its lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from servescope.contract.openmetrics import with_exemplars
from servescope.contract.samples import Labels, Sample, Series, format_edge, format_series, format_value, make_labels
from servescope.contract.types import Metric
from servescope.instruments.exponential import Exponential, ExponentialState
from servescope.instruments.record_buffer import RESOLUTION, Mark

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Exemplar(NamedTuple):
    """One observation of a histogram with the trace it comes from; `time` is when it was recorded, in Unix seconds."""

    trace_id: str
    value: float
    time: float


Exemplars = dict[tuple[str, Labels], Exemplar]
"""Exemplars by the name and labels of their bucket."""


class Scalar:
    """One counter or gauge series; `value` None means that it is absent."""

    __slots__ = ("_head", "_labels", "_name", "_text", "_text_value", "value")

    def __init__(self, name: str, labels: Labels, value: float | None) -> None:
        self.value = value
        self._name = name
        self._labels = labels
        self._head = f"{format_series(name, labels)} ".encode()
        self._text = b""
        self._text_value: float | None = None  # the value in the text

    def add(self, amount: float) -> None:
        """Increase the series; it starts at 0 when it was absent."""
        self.value = (self.value or 0) + amount

    def samples(self) -> list[Sample]:
        """The series' sample; none when it is absent."""
        return [] if self.value is None else [Sample(self._name, self._labels, float(self.value))]

    def text(self) -> bytes:
        """The series' line; empty when it is absent."""
        value = self.value
        if value != self._text_value:
            self._text = b"" if value is None else b"%b%b\n" % (self._head, _number(value))
            self._text_value = value
        return self._text


class Distribution:
    """One histogram series over fixed edges; absent until something is observed when made with `shown` False."""

    __slots__ = (
        "_counts", "_edges", "_exemplars", "_exponential", "_heads", "_shown", "_sum", "_template", "_text", "labels",
    )  # fmt: skip

    def __init__(self, name: str, labels: Labels, edges: tuple[float, ...], *, shown: bool) -> None:
        import numpy as np

        self.labels = labels
        self._edges: NDArray[np.float64] = np.array(edges)
        self._counts: NDArray[np.int64] = np.zeros(len(edges) + 1, dtype=np.int64)
        self._sum = 0.0
        self._exponential: Exponential | None = None
        self._exemplars: dict[int, Exemplar] = {}
        self._shown = shown
        self._text: bytes | None = None  # None when it has changed
        bounds = [*map(format_edge, edges), "+Inf"]
        self._heads = [(f"{name}_bucket", make_labels((*labels, ("le", bound)))) for bound in bounds]
        self._heads += [(f"{name}_count", labels), (f"{name}_sum", labels)]
        lines = [format_series(*head).replace("%", "%%") for head in self._heads]
        # Filling one template per series is most of what rendering costs; bytes are twice as fast to format as text.
        self._template = ("".join(f"{line} %d\n" for line in lines[:-1]) + f"{lines[-1]} %b\n").encode()

    def observe(self, values: NDArray[np.float64], times: NDArray[np.float64] | None = None) -> None:
        """Book the values, each as often as `times` says; all are finite, none is negative."""
        import numpy as np

        if not len(values):
            return
        self._shown = True
        if self._exponential is not None:
            self._exponential.observe(values, times)
        self._text = None
        buckets = self._edges.searchsorted(values)
        size = len(self._counts)
        if times is None:
            self._counts += np.bincount(buckets, minlength=size)
            self._sum += float(np.add.reduce(values))
        else:
            # Weights are whole and far below 2**53, so bincount's floats are exact.
            self._counts += np.bincount(buckets, weights=times, minlength=size).astype(np.int64)
            self._sum += float(values @ times)

    def exemplify(self, values: NDArray[np.float64], traces: Sequence[tuple[str, float]]) -> None:
        """Keep, of values observed, the latest of each bucket with its trace: an identifier and Unix seconds."""
        buckets: list[int] = self._edges.searchsorted(values).tolist()
        latest = {bucket: place for place, bucket in enumerate(buckets)}
        for bucket, place in latest.items():
            trace_id, time = traces[place]
            self._exemplars[bucket] = Exemplar(trace_id, float(values[place]), time)

    def exemplars(self) -> list[Exemplar | None]:
        """The latest exemplar of each bucket, `+Inf` last; None where there was none."""
        return [self._exemplars.get(bucket) for bucket in range(len(self._counts))]

    def samples(self) -> list[Sample]:
        """Cumulative buckets, count and sum; none when the series is absent."""
        if not self._shown:
            return []
        return [
            Sample(name, labels, float(value))
            for (name, labels), value in zip(self._heads, self._values(), strict=True)
        ]

    def text(self) -> bytes:
        """The series' lines; empty when it is absent."""
        if not self._shown:
            return b""
        if self._text is None:
            counts = self._counts.cumsum().tolist()
            self._text = self._template % (*counts, counts[-1], _number(self._sum))
        return self._text

    def counted(self) -> tuple[list[int], float]:
        """The values counted in each bucket, `+Inf` last, and their sum."""
        return self._counts.tolist(), self._sum

    def keep_exponential(self) -> None:
        """From now on, count values in exponential buckets too."""
        if self._exponential is None:
            self._exponential = Exponential()

    def exponential(self) -> ExponentialState | None:
        """What the exponential buckets hold; None when they are not kept."""
        return None if self._exponential is None else self._exponential.state()

    def _values(self) -> list[float]:
        cumulative: list[float] = self._counts.cumsum().tolist()
        return [*cumulative, cumulative[-1], self._sum]


class Ledger:
    """All series of one instrument by family, in the order in which they are exposed."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._families: dict[str, tuple[Metric, list[Scalar | Distribution]]] = {}
        self._is_exponential = False

    def scalar(self, metric: Metric, value: float | None = None, **labels: str) -> Scalar:
        """A new counter or gauge series of the metric."""
        series = Scalar(metric.name, make_labels((*self._labels, *labels.items())), value)
        self.family(metric).append(series)
        return series

    def distribution(self, metric: Metric, *, shown: bool = True, **labels: str) -> Distribution:
        """A new histogram series of the metric, over the catalog's edges."""
        if metric.edges is None:
            raise ValueError(f"metric {metric.name!r} has no edges, expected a histogram of the catalog")
        series = Distribution(metric.name, make_labels((*self._labels, *labels.items())), metric.edges, shown=shown)
        if self._is_exponential:
            series.keep_exponential()
        self.family(metric).append(series)
        return series

    def samples(self) -> list[Sample]:
        """Every sample, family by family."""
        return [sample for _, family in self._families.values() for series in family for sample in series.samples()]

    def families(self) -> Iterator[tuple[Metric, list[Sample]]]:
        """Every family with its samples; the list is empty where all its series are absent."""
        for metric, family in self._families.values():
            yield metric, [sample for series in family for sample in series.samples()]

    def text(self) -> list[tuple[Metric, list[bytes]]]:
        """The lines of every family that has any, without HELP and TYPE."""
        texts = [(metric, [series.text() for series in family]) for metric, family in self._families.values()]
        return [(metric, lines) for metric, lines in texts if any(lines)]

    def openmetrics(self) -> list[tuple[Metric, list[bytes]]]:
        """The same with the exemplars, as OpenMetrics has them."""
        texts = [
            (metric, [with_exemplars(series.text(), _exemplars(series)) for series in family])
            for metric, family in self._families.values()
        ]
        return [(metric, lines) for metric, lines in texts if any(lines)]

    def exemplified(self) -> Iterator[tuple[Metric, list[Sample], Exemplars]]:
        """Every family with its samples, and the exemplars of its buckets by their series."""
        for metric, family in self._families.values():
            samples: list[Sample] = []
            exemplars: Exemplars = {}
            for series in family:
                own = series.samples()
                samples += own
                # A histogram's buckets come first among its samples, as its exemplars do.
                for sample, exemplar in zip(own, _exemplars(series), strict=False):
                    if exemplar is not None:
                        exemplars[sample.name, sample.labels] = exemplar
            yield metric, samples, exemplars

    def keep_exponential(self) -> None:
        """From now on, count every histogram's values in exponential buckets too."""
        self._is_exponential = True
        for _, family in self._families.values():
            for series in family:
                if isinstance(series, Distribution):
                    series.keep_exponential()

    def exponentials(self) -> dict[Series, ExponentialState]:
        """What the exponential buckets hold, by the histogram's name and labels."""
        states = {
            Series(name, series.labels): series.exponential()
            for name, (_, family) in self._families.items()
            for series in family
            if isinstance(series, Distribution)
        }
        return {series: state for series, state in states.items() if state is not None}

    def family(self, metric: Metric) -> list[Scalar | Distribution]:
        """The metric's series so far; a metric's place in the order is that of its first call."""
        return self._families.setdefault(metric.name, (metric, []))[1]


class Trailing:
    """A sum over a trailing window of seconds.

    Amounts within `RESOLUTION` of the window may be kept as one, and then leave it together, with the latest of them.
    """

    __slots__ = ("_entries", "_resolution", "_window")

    def __init__(self, window_seconds: float) -> None:
        self._window = window_seconds
        self._resolution = window_seconds * RESOLUTION
        self._entries: list[list[float]] = []  # [first time, last time, sum], ascending

    def add(self, time: float, amount: float) -> None:
        """Count `amount` at `time`, which is not before any earlier call's time; not at all when it is NaN."""
        entries = self._entries
        if math.isnan(time):
            return
        if entries and time - entries[-1][0] < self._resolution:
            entries[-1][1] = time
            entries[-1][2] += amount
        else:
            self._forget(time)
            entries.append([time, time, amount])

    def add_marked(self, amounts: NDArray[np.float64], marks: list[Mark]) -> None:
        """Count each amount at the time of the first mark that includes it."""
        upto = amounts.cumsum()
        before = 0.0
        for count, time in marks:
            until = float(upto[count - 1])
            self.add(time, until - before)
            before = until

    def sum(self, now: float) -> float:
        """What came in the window up to `now`; 0 when nothing did."""
        self._forget(now)
        return sum(entry[2] for entry in self._entries)

    def _forget(self, now: float) -> None:
        entries = self._entries
        gone = 0
        while gone < len(entries) and entries[gone][1] < now - self._window:
            gone += 1
        del entries[:gone]


def _exemplars(series: Scalar | Distribution) -> Sequence[Exemplar | None]:
    """The exemplars of a histogram's buckets; empty where there is none, which is the usual case."""
    return series.exemplars() if isinstance(series, Distribution) and series._exemplars else ()


def _number(value: float) -> bytes:
    """A value's text: a whole number without a point, which is the same number and half as long."""
    return b"%d" % value if abs(value) < 1e15 and value == int(value) else format_value(value).encode()
