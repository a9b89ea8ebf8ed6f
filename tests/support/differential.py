"""A scraped scenario in a real Prometheus, frozen, and its values beside servescope's from the same samples."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alerts.recording import render_recording_rules
from servescope.contract.expressions import Expression, Quantile, Vector, promql
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.samples import Labels, Series, Window
from servescope.contract.types import Figure
from servescope.increments.extrapolation import WindowBounds
from servescope.increments.readings import WindowReadings, compute
from tests.support.fake_targets import FakeTarget, serving
from tests.support.prometheus import Prometheus, Range, running
from tests.support.waiting import wait_for

RELATIVE, ABSOLUTE = 1e-9, 1e-12


# No multiple of a scrape interval, so that rules are evaluated at every distance from a scrape.
RULE_INTERVAL = "530ms"


# A rule is evaluated at its time, while a scrape of just before may still be on its way into the store.
COMMIT_MARGIN_MS = 60


LONGEST_INTERVAL_MS = 300


@dataclass(frozen=True)
class Scenario:
    """Fake targets by job, each job's scrape interval and timeout, for how long, and the window of the rules."""

    targets: Mapping[str, Sequence[FakeTarget]]
    scrapes: Mapping[str, tuple[str, str]]
    seconds: float
    window: str


@dataclass(frozen=True)
class Frozen:
    """What Prometheus holds at the end, and the same as windows; `busy` says when its store lagged behind."""

    prometheus: Prometheus
    windows: Sequence[Window]
    recorded: Sequence[Range]
    busy: Mapping[str, NDArray[np.int64]]
    start_ms: int
    end_ms: int
    folder: Path


@dataclass
class Comparison:
    """The tally of a comparison: values compared, absences agreed upon, and what differs."""

    values: int = 0
    identical: int = 0
    flips: int = 0
    largest_relative: float = 0.0
    largest_absolute: float = 0.0
    differences: list[str] = field(default_factory=list)
    present: dict[str, int] = field(default_factory=dict)

    def compare(
        self, name: str, at_ms: int, ours: Vector, theirs: Vector, flipped: tuple[Vector, Vector] | None
    ) -> None:
        """Compare one expression at one instant; `flipped` are a quantile's values on both sides of its rank."""
        for group in ours.keys() | theirs.keys():
            self.values += 1
            self.present[name] = self.present.get(name, 0) + 1
            our, their = ours.get(group), theirs.get(group)
            if our is not None and their is not None and abs(our - their) <= _tolerance(their):
                self._count(our, their)
            elif flipped and their is not None and _is_between(flipped, group, their):
                self.flips += 1
            else:
                self.differences.append(f"{name} {dict(group)} at {at_ms}: {our!r}, in Prometheus {their!r}")

    def _count(self, our: float, their: float) -> None:
        self.identical += our == their
        if _tolerance(their) > ABSOLUTE:
            self.largest_relative = max(self.largest_relative, abs(our - their) / abs(their))
        else:
            self.largest_absolute = max(self.largest_absolute, abs(our - their))

    def report(self, what: str) -> None:
        """Print the tally, and fail on any difference or on too few comparisons."""
        print(
            f"\n{what}: {self.values} values compared, {self.identical} bit-identical, "
            f"{self.flips} quantiles on a bucket's edge; largest difference {self.largest_relative:.1e} relative, "
            f"{self.largest_absolute:.1e} absolute where that is the wider tolerance"
        )
        assert not self.differences, f"{len(self.differences)} differ:\n" + "\n".join(self.differences[:12])


def _tolerance(value: float) -> float:
    return max(ABSOLUTE, RELATIVE * abs(value))


def play(binary: Path, folder: Path, scenario: Scenario) -> None:
    """Have a Prometheus scrape the targets for the length of the scenario, and record the compiled rules."""
    rules = folder / "recording.rules.yml"
    rules.write_text(render_recording_rules(scenario.window, RULE_INTERVAL), encoding="utf-8")
    discovery = {job: folder / f"{job}.json" for job in scenario.targets}
    config = {
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": job,
                "scrape_interval": interval,
                "scrape_timeout": timeout,
                "file_sd_configs": [{"files": [str(discovery[job])]}],
            }
            for job, (interval, timeout) in scenario.scrapes.items()
        ],
    }
    with ExitStack() as stack:
        served = [stack.enter_context(serving(targets, discovery[job])) for job, targets in scenario.targets.items()]
        server = stack.enter_context(running(binary, folder, config))

        def is_over() -> bool:
            for each in served:
                each.write_discovery()
            return min(each.elapsed() for each in served) >= scenario.seconds

        wait_for(is_over, "the end of the scenario", seconds=scenario.seconds + 60)
        unhealthy = [rule for rule in server.rules() if rule["health"] != "ok"]
        assert not unhealthy


def read(prometheus: Prometheus, folder: Path) -> Frozen:
    """All that the Prometheus has of a scenario that was played to it."""
    now_ms = int(time.time() * 1000)
    everything = prometheus.read_samples('{__name__!=""}', end_ms=now_ms, range_ms=180_000)
    ups = [found for found in everything if label(found, "__name__") == "up"]
    markers = {label(up, "instance"): list(_stale_markers(prometheus, up)) for up in ups}
    windows = [_window(up, markers[label(up, "instance")], everything) for up in ups]
    times = np.concatenate([window.times for window in windows])
    return Frozen(
        prometheus,
        windows,
        [found for found in everything if label(found, "__name__").startswith("deployment:")],
        _busy_times(
            everything, [(label(up, "job"), marker) for up in ups for marker in markers[label(up, "instance")]]
        ),
        int(times.min()),
        int(times.max()),
        folder,
    )


def _window(up: Range, markers: Sequence[int], everything: Iterable[Range]) -> Window:
    """One target's samples: at every scrape, failed ones too, and at the stale markers of its leaving discovery."""
    target = label(up, "instance")
    times = np.array(sorted({*up.times, *markers}), dtype=np.int64)
    found = [one for one in everything if label(one, "instance") == target and _is_of_the_contract(one)]
    values = np.full((len(found), len(times)), np.nan)
    for row, one in enumerate(found):
        values[row, np.searchsorted(times, one.times)] = one.values
    series = tuple(Series(label(one, "__name__"), without(one.labels, "__name__", "instance", "job")) for one in found)
    return Window(series, times, values)


def _stale_markers(prometheus: Prometheus, up: Range) -> Iterator[int]:
    # The API shows no stale markers, but `up` is absent from the very millisecond of one.
    instance = label(up, "instance")
    for last, following in zip(up.times, [*up.times[1:], up.times[-1] + 10_000], strict=True):
        if following - last > 2 * LONGEST_INTERVAL_MS:
            end = min(following - 1, last + 10_000)
            (held,) = prometheus.query_range(f'up{{instance="{instance}"}}', start_ms=last, end_ms=end, step_ms=1)
            first_missing = last + len(held.times)
            assert held.times[-1] == first_missing - 1
            if first_missing <= end:
                yield first_missing


def _busy_times(everything: Iterable[Range], markers: Iterable[tuple[str, int]]) -> dict[str, NDArray[np.int64]]:
    """By job, (n, 2): from when to when samples of a time already past were yet to be stored."""
    # The markers of a target that left are written after two more intervals, with the time of the first.
    busy: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for job, moment in markers:
        busy[job].append((moment, moment + 3 * LONGEST_INTERVAL_MS))
    for found in everything:
        if label(found, "__name__") == "scrape_duration_seconds":
            for moment, seconds in zip(found.times, found.values, strict=True):
                busy[label(found, "job")].append((moment, moment + math.ceil(seconds * 1000) + COMMIT_MARGIN_MS))
    return {job: np.array(spans, dtype=np.int64) for job, spans in busy.items()}


def label(found: Range, name: str) -> str:
    """A label of the samples, empty where they have none of that name."""
    return dict(found.labels).get(name, "")


def without(labels: Labels, *names: str) -> Labels:
    """The labels but those of these names."""
    return tuple(pair for pair in labels if pair[0] not in names)


def _is_of_the_contract(found: Range) -> bool:
    name = label(found, "__name__")
    return name != "up" and not name.startswith("scrape_")


def instants(frozen: Frozen, window_ms: int, *, samples: int = 25, others: int = 70) -> list[int]:
    """Instants to evaluate at: at the edges of windows that end or begin on so many samples, and anywhere."""
    source = random.Random(5)
    first, last = frozen.start_ms + 200, frozen.end_ms
    on_samples = [int(source.choice(source.choice(frozen.windows).times)) for _ in range(samples)]
    aligned = [moment + shift + beside for moment in on_samples for shift in (0, window_ms) for beside in (-1, 0, 1)]
    anywhere = [source.randint(first, last) for _ in range(others)]
    return sorted({moment for moment in (*aligned, *anywhere) if moment <= last})


Named = Mapping[str, tuple[Expression, tuple[str, ...]]]


def figures() -> Named:
    """Every figure's expression and labels."""
    return {name: (figure.expression, _by(figure)) for name, figure in FIGURES.items()}


def _by(figure: Figure) -> tuple[str, ...]:
    return (*DEPLOYMENT_LABELS, *figure.by)


def ask(prometheus: Prometheus, expressions: Named, at_ms: int, window: str) -> dict[str, Vector]:
    """Prometheus' values of all expressions, asked at once: each answer is marked with the expression's name."""
    marked = [
        f'label_replace({promql(expression, window=window, by=by)}, "expression", "{name}", "", "")'
        for name, (expression, by) in expressions.items()
    ]
    answers: dict[str, Vector] = {name: {} for name in expressions}
    for point in prometheus.query(" or ".join(marked), at_ms=at_ms):
        answers[dict(point.labels)["expression"]][without(point.labels, "expression")] = point.value
    return answers


def compare_at(
    comparison: Comparison,
    frozen: Frozen,
    expressions: Named,
    at_ms: int,
    window: str,
    window_ms: int,
    bounds: WindowBounds = "closed",
) -> None:
    """Compare all these expressions at one instant."""
    readings = WindowReadings(frozen.windows, at_ms=at_ms, window_ms=window_ms, bounds=bounds)
    theirs = ask(frozen.prometheus, expressions, at_ms, window)
    for name, (expression, by) in expressions.items():
        comparison.compare(
            name, at_ms, compute(expression, readings, by), theirs[name], flipped_values(expression, readings, by)
        )


def flipped_values(expression: Expression, readings: WindowReadings, by: Sequence[str]) -> tuple[Vector, Vector] | None:
    """A quantile a hair below and above its rank: on a bucket's edge, the order of a sum decides between them."""
    if not isinstance(expression, Quantile):
        return None
    quantile, histogram = expression.quantile, expression.histogram
    below, above = quantile * (1 - 1e-12), min(1.0, quantile * (1 + 1e-12))
    return compute(Quantile(below, histogram), readings, by), compute(Quantile(above, histogram), readings, by)


def _is_between(bounds: tuple[Vector, Vector], group: Labels, value: float) -> bool:
    low, high = bounds[0].get(group, math.inf), bounds[1].get(group, -math.inf)
    return low * (1 - RELATIVE) <= value <= high * (1 + RELATIVE)
