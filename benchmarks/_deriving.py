"""What deriving every figure costs: milliseconds an evaluation, beside reading the same windows sample by sample.

The targets show the contract's series, counters and histograms above all, over a full window of 5 minutes at 15 s. Each
line is the best of a few repeats, since other work on the machine can only slow one down.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alerts.recording import render_recording_rules
from servescope.collector.figures.derive import Derivation, Deriver, Members, derive_figures
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.contract.figures import FIGURES
from servescope.contract.identity import Deployment, Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Labels, Series, Snapshot, Window, format_edge, format_series, make_labels
from tests.support.prometheus import Prometheus, running
from tests.tools import prometheus_binary, promtool_binary

_SERIES = 30_000
_INTERVAL_MS = 15_000
_WINDOW_MS = 300_000
_SCRAPES = 24
_START_MS = 1_800_000_000_000
_REPEATS = 20
_MOST_MILLISECONDS = 10.0
_NEW_SERIES = 5_000
_PROMETHEUS_SECONDS = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """How the series spread over targets, and these over deployments."""

    targets: int
    deployments: int = 1

    def __str__(self) -> str:
        spread = f", {self.deployments} deployments" if self.deployments > 1 else ""
        return f"{self.targets} x {_SERIES // self.targets} series{spread}"


_SHAPES = (Shape(1), Shape(20), Shape(300), Shape(300, 10))


class Fleet:
    """The recent scrapes of a shape's targets, filled scrape by scrape."""

    def __init__(self, shape: Shape, total: int = _SERIES) -> None:
        self.at_ms = _START_MS
        self.source = np.random.default_rng(20)
        self.recents: list[RecentScrapes] = []
        self.append_seconds: list[float] = []
        self._series: list[tuple[Series, ...]] = []
        self._values: list[NDArray[np.float64]] = []
        self._deployments: list[Deployment] = []
        each = total // shape.targets
        for number in range(shape.targets):
            identity = Identity("llama", f"chat-{number % shape.deployments}", "v1", replica=f"r{number}")
            # Beginning elsewhere in the contract, so that small targets together show all of it.
            series = tuple(islice(_contract_series(identity.labels(), number * each), each))
            self.recents.append(RecentScrapes(_WINDOW_MS, 2 * _INTERVAL_MS))
            self._series.append(series)
            self._values.append(np.zeros(each))
            self._deployments.append(identity.deployment())
        for _ in range(_SCRAPES):
            self.scrape()

    def scrape(self) -> None:
        """One more scrape of every target."""
        self.at_ms += _INTERVAL_MS
        spent = 0.0
        for number, recent in enumerate(self.recents):
            self._values[number] = self._counted(number)
            snapshot = Snapshot(self._series[number], self._values[number])
            started = time.perf_counter()
            recent.append(self.at_ms + number * 37 % _INTERVAL_MS, snapshot)
            spent += time.perf_counter() - started
        self.append_seconds.append(spent)

    def _counted(self, number: int) -> NDArray[np.float64]:
        """What a target's next scrape shows."""
        values: NDArray[np.float64] = self._values[number] + self.source.integers(0, 50, len(self._values[number]))
        return values

    def restart(self) -> None:
        """All counters of all targets begin anew."""
        self._values = [np.zeros(len(values)) for values in self._values]

    def add(self, count: int) -> None:
        """Every target shows so many more series."""
        for number, series in enumerate(self._series):
            more = [each._replace(labels=(*each.labels, ("zone", "b"))) for each in series[:count]]
            self._series[number] = (*series, *more)
            self._values[number] = np.concatenate((self._values[number], np.zeros(count)))

    def members(self) -> dict[Deployment, Members]:
        """The recent scrapes of each deployment's targets."""
        recents: dict[Deployment, list[RecentScrapes]] = {}
        for deployment, recent in zip(self._deployments, self.recents, strict=True):
            recents.setdefault(deployment, []).append(recent)
        return {deployment: Members(own) for deployment, own in recents.items()}

    @property
    def now_ms(self) -> int:
        """Just after the last scrape."""
        return self.at_ms + _INTERVAL_MS


def contract_size() -> int:
    """How many series a target has that shows the contract once."""
    return sum(1 for metric in METRICS.values() for _ in _metric_series(metric.name))


def _contract_series(labels: Labels, first: int) -> Iterator[Series]:
    """The contract's series, from the one of this number on, and then again for another engine."""
    parts = [part for metric in METRICS.values() for part in _metric_series(metric.name)]
    for count, (name, own) in enumerate(cycle(parts[first % len(parts) :] + parts[: first % len(parts)])):
        yield Series(name, make_labels((*labels, *own, ("engine", str(count // len(parts))))))


def _metric_series(name: str) -> Iterator[tuple[str, Labels]]:
    metric = METRICS[name]
    sets: list[Labels] = [()]
    for label in metric.labels:
        sets = [(*each, (label, value)) for each in sets for value in metric.label_values.get(label, ("0", "1"))]
    for labels in sets:
        if metric.edges is None:
            yield name, labels
            continue
        yield from ((f"{name}_bucket", (*labels, ("le", format_edge(edge)))) for edge in (*metric.edges, math.inf))
        yield from ((f"{name}{suffix}", labels) for suffix in ("_sum", "_count"))


def run() -> None:
    """Print what an evaluation costs in each shape, in each trouble, and what a series costs in memory."""
    print(f"deriving all {len(FIGURES)} figures of {_SERIES} series over 5m at 15s, milliseconds an evaluation")
    for shape in _SHAPES:
        fleet = Fleet(shape)
        derive = _deriving(fleet)
        ours, reading = _best(derive, _REPEATS), _best(_reading_windows(fleet), 2)
        names = {key.partition("{")[0] for each in derive() for key in each.figures}
        assert names == set(FIGURES), f"not derived: {set(FIGURES) - names}"
        _print(str(shape), ours, f"1/{reading / ours:.0f} of reading the windows sample by sample ({reading:.0f} ms)")
        _print("  in a round of scrapes, appending", min(fleet.append_seconds[-8:]) * 1e3, "")
        memory = sum(recent.nbytes for recent in fleet.recents) / _SERIES
        print(f"  {'arrays of a series over the window':<46} {memory:7.0f} bytes, {memory / _SCRAPES:.1f} a sample")
    _print_prometheus()
    print("the same while something happens")
    for shape in (Shape(1), Shape(300)):
        for name, disturb in _TROUBLES.items():
            fleet = Fleet(shape)
            derive = _deriving(fleet)
            derive()
            disturb(fleet)
            fleet.scrape()
            started = time.perf_counter()
            derive()
            first = (time.perf_counter() - started) * 1e3
            fleet.scrape()
            _print(f"{shape}: {name}", _best(derive, _REPEATS), f"{first:.1f} ms the first time")


_TROUBLES: dict[str, Callable[[Fleet], None]] = {
    "all restarted": Fleet.restart,
    "a new series each": lambda fleet: fleet.add(1),
    f"{_NEW_SERIES} new series": lambda fleet: fleet.add(_NEW_SERIES // len(fleet.recents)),
}


def _print_prometheus() -> None:
    """What a Prometheus 2 takes for the recording rules over the same scrapes, as it says itself."""
    server, promtool = prometheus_binary(), promtool_binary()
    if server is None or promtool is None:
        print("  no Prometheus here: left out; `python -m tests.tools` prepares it or says why it cannot be had")
        return
    fleet = Fleet(Shape(300))
    ours = _best(_deriving(fleet), _REPEATS)
    with tempfile.TemporaryDirectory(prefix="servescope-") as name:
        folder = Path(name)
        (folder / "history.txt").write_text("".join(_history(fleet)), encoding="utf-8")
        history, data = str(folder / "history.txt"), str(folder / "data")
        command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", history, data]
        subprocess.run(command, check=True, capture_output=True)
        (folder / "rules.yml").write_text(render_recording_rules("5m", "1s"), encoding="utf-8")
        with running(server, folder, {"rule_files": [str(folder / "rules.yml")]}) as prometheus:
            theirs = [_evaluation_milliseconds(prometheus) for _ in range(_PROMETHEUS_SECONDS)]
            recorded = prometheus.query('{__name__=~"deployment:.*"}', at_ms=int(time.time() * 1000))
    names = {dict(point.labels)["__name__"] for point in recorded}
    assert len(names) == len(FIGURES), f"Prometheus recorded only {sorted(names)}"
    best = min(theirs[2:])
    print(f"  {'the recording rules in Prometheus 2.42':<46} {best:7.2f} ms  {best / ours:.0f} times ours")


def _evaluation_milliseconds(prometheus: Prometheus) -> float:
    time.sleep(1.0)
    return sum(float(rule["evaluationTime"]) for rule in prometheus.rules()) * 1e3


def _history(fleet: Fleet) -> Iterator[str]:
    """All scrapes as OpenMetrics, their last one now."""
    later_ms = int(time.time() * 1000) - fleet.now_ms
    for window in (recent.window() for recent in fleet.recents):
        stamps = [f"{(at_ms + later_ms) / 1000:.3f}" for at_ms in window.times.tolist()]
        for (name, labels), values in zip(window.series, window.values.tolist(), strict=True):
            series = format_series(name, labels)
            yield from (f"{series} {value} {stamp}\n" for value, stamp in zip(values, stamps, strict=True))
    yield "# EOF\n"


def _deriving(fleet: Fleet) -> Callable[[], Sequence[Derivation]]:
    deriver, members = Deriver(_WINDOW_MS), fleet.members()

    def derive() -> list[Derivation]:
        found = deriver.derive(members, fleet.now_ms).values()
        return [each for each in found if isinstance(each, Derivation)]

    return derive


def _reading_windows(fleet: Fleet) -> Callable[[], Sequence[Derivation]]:
    windows: list[list[Window]] = [[recent.window() for recent in own.recents] for own in fleet.members().values()]
    return lambda: [derive_figures(each, at_ms=fleet.now_ms, window_ms=_WINDOW_MS) for each in windows]


def _best(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds of the fastest of so many."""
    best = math.inf
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best * 1e3


def _print(name: str, milliseconds: float, beside: str) -> None:
    target = "" if milliseconds < _MOST_MILLISECONDS else f" above the {_MOST_MILLISECONDS:.0f} ms it may take;"
    print(f"  {name:<46} {milliseconds:7.2f} ms {target} {beside}".rstrip())


if __name__ == "__main__":
    run()
