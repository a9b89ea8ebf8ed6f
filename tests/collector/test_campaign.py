"""Every series' rate, increase and level is to the last bit what a real Prometheus computes of random histories."""

from __future__ import annotations

import math
import os
import random
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from servescope.collector.figures.rates import read_recent
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.contract.samples import Series, Snapshot, make_labels
from servescope.increments.extrapolation import LOOKBACK_MS, Floats, Range, WindowBounds, window_changes
from tests.support.prometheus import Point, Prometheus, running
from tests.support.waiting import deadline_seconds

pytestmark = pytest.mark.slow

SEED = 11
TARGETS, SERIES, SCRAPES = 36, 28, 170
INTERVAL_MS = 15_000
WINDOWS = {"5m": 300_000, "90s": 90_000}
SLACK_MS = 45_000
# SERVESCOPE_CAMPAIGN=4000 makes it long.
INSTANTS = int(os.environ.get("SERVESCOPE_CAMPAIGN", "60"))
LEVEL_INSTANTS = 12


@dataclass(frozen=True)
class Target:
    """The scrapes of one target, in milliseconds; None for one that failed."""

    scrapes: Sequence[tuple[int, Snapshot | None]]

    @property
    def times(self) -> list[int]:
        """When samples were scraped."""
        return [time_ms for time_ms, snapshot in self.scrapes if snapshot is not None]


@dataclass
class Tally:
    """How many values were compared, and which differ."""

    compared: int = 0
    absent: int = 0
    differences: list[str] | None = None

    def compare(self, what: str, ours: Mapping[Series, float], theirs: Mapping[Series, float], shown: int) -> None:
        """Compare the values of all series at one instant, bit by bit; `shown` series may have one."""
        self.differences = self.differences or []
        for series in ours.keys() | theirs.keys():
            our, their = ours.get(series), theirs.get(series)
            self.compared += 1
            if our != their:
                self.differences.append(f"{what} {dict(series.labels)}: {our!r}, in Prometheus {their!r}")
        self.absent += shown - len(ours.keys() | theirs.keys())


def _draw_target(chance: random.Random, number: int, start_ms: int) -> Target:
    """The random life of one target."""
    names = [Series("x", make_labels({"target": str(number), "n": str(each)})) for each in range(SERIES)]
    steady = chance.random() < 0.4
    troubled = chance.random() < 0.6
    lives = [_draw_life(chance) for _ in names]
    values = [chance.choice((0.0, 0.0, 1.0, 1e9, 0.1, -3.0)) for _ in names]
    time_ms = start_ms + chance.randrange(INTERVAL_MS)
    scrapes: list[tuple[int, Snapshot | None]] = []
    for step in range(SCRAPES):
        time_ms += INTERVAL_MS if steady else INTERVAL_MS + chance.randrange(-3_000, 3_000)
        if troubled and chance.random() < 0.02:
            time_ms += INTERVAL_MS * chance.randrange(1, 40)
        restarted = chance.random() < (0.03 if troubled else 0.004)
        for row in range(SERIES):
            values[row] = _next_value(chance, values[row], restarted, step)
        failed = troubled and chance.random() < 0.06
        rows = [
            row for row, (first, last, gaps) in enumerate(lives) if first <= step <= last and chance.random() >= gaps
        ]
        found = Snapshot(tuple(names[row] for row in rows), np.array([values[row] for row in rows]))
        scrapes.append((time_ms, None if failed else found))
    return Target(_with_one_list(scrapes))


def _draw_life(chance: random.Random) -> tuple[int, int, float]:
    """From which scrape to which a series is shown, and in what share of them it is missing."""
    first = chance.randrange(SCRAPES) if chance.random() < 0.2 else 0
    last = chance.randrange(SCRAPES) if chance.random() < 0.2 else SCRAPES
    return first, last, chance.choice((0.0, 0.0, 0.0, 0.05, 0.5))


def _next_value(chance: random.Random, value: float, restarted: bool, step: int) -> float:
    if restarted and chance.random() < 0.8:  # a torn page: some of its counters are as before
        return chance.choice((0.0, chance.random(), value / 2))
    if step % 40 > 30:  # idle
        return value
    return value + chance.choice((0.0, 1.0, 7.0, chance.random(), chance.expovariate(1e-3), chance.random() * 1e-9))


def _with_one_list(scrapes: list[tuple[int, Snapshot | None]]) -> list[tuple[int, Snapshot | None]]:
    """The scrapes, those that repeat their series with the same list of them, as a reader gives them."""
    last: tuple[Series, ...] = ()
    kept: list[tuple[int, Snapshot | None]] = []
    for time_ms, snapshot in scrapes:
        if snapshot is not None:
            last = last if last == snapshot.series else snapshot.series
            snapshot = Snapshot(last, snapshot.values)
        kept.append((time_ms, snapshot))
    return kept


@pytest.fixture(scope="module")
def targets() -> list[Target]:
    """The history, of the last hours."""
    chance = random.Random(SEED)
    start_ms = int(time.time() * 1000) // 60_000 * 60_000 - 5 * 3_600_000
    return [_draw_target(chance, number, start_ms) for number in range(TARGETS)]


@pytest.fixture(scope="module")
def blocks(targets: Sequence[Target], promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the history as the data of a Prometheus."""
    folder = tmp_path_factory.mktemp("campaign")
    text = folder / "history.txt"
    text.write_text("".join(_history_lines(targets)), encoding="utf-8")
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", text, folder / "data"],
        check=True, capture_output=True, timeout=deadline_seconds(120),
    )  # fmt: skip
    return folder


def _history_lines(targets: Sequence[Target]) -> Iterator[str]:
    lines: dict[Series, list[str]] = {}
    for target in targets:
        for time_ms, snapshot in target.scrapes:
            for name, labels, value in snapshot.samples() if snapshot else ():
                text = ",".join(f'{label}="{text}"' for label, text in labels)
                lines.setdefault(Series(name, labels), []).append(
                    f"{name}{{{text}}} {value!r} {time_ms // 1000}.{time_ms % 1000:03d}\n"
                )
    yield "# TYPE x unknown\n"
    for each in lines.values():
        yield from each
    yield "# EOF\n"


@pytest.fixture(scope="module", params=["2", "3"])
def asked(
    request: pytest.FixtureRequest, blocks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Prometheus, WindowBounds]]:
    """A Prometheus over the history, and the bounds of its ranges."""
    binary = request.getfixturevalue("prometheus" if request.param == "2" else "prometheus_3")
    folder = tmp_path_factory.mktemp(f"prometheus-{request.param}")
    (folder / "data").symlink_to(blocks / "data")
    with running(binary, folder, {}, options=["--storage.tsdb.retention.time=10y"]) as server:
        yield server, "closed" if request.param == "2" else "left-open"


def _instants(targets: Sequence[Target]) -> list[int]:
    chance = random.Random(SEED + 1)
    first, last = min(target.times[0] for target in targets), max(target.times[-1] for target in targets)
    found = {chance.randrange(first, last + 400_000) for _ in range(INSTANTS // 3)}
    while len(found) < INSTANTS:
        on_sample = chance.choice(chance.choice(targets).times)
        found.add(on_sample + chance.choice((0, *WINDOWS.values())) + chance.choice((-1, 0, 0, 1)))
    return sorted(found)


def _answers(points: Sequence[Point]) -> dict[Series, float]:
    return {Series("x", tuple(pair for pair in point.labels if pair[0] != "__name__")): point.value for point in points}


def _present(series: Sequence[Series | None], values: Floats) -> dict[Series, float]:
    """The values by series, absent ones and rows without a series left out."""
    return {
        each: value
        for each, value in zip(series, values.tolist(), strict=True)
        if each is not None and not math.isnan(value)
    }


def test_rates_through_the_rings_are_prometheus_to_the_bit(
    targets: Sequence[Target], asked: tuple[Prometheus, WindowBounds]
) -> None:
    """Scrape by scrape, with instants in between and somewhat behind: over millions of samples no bit differs."""
    prometheus, bounds = asked
    recents = [RecentScrapes(max(WINDOWS.values()), SLACK_MS) for _ in targets]
    waiting = [list(reversed(target.scrapes)) for target in targets]
    chance, tally = random.Random(SEED + 2), Tally()
    for number, at_ms in enumerate(_instants(targets)):
        # An evaluation may come a little late: scrapes after its instant are there already.
        until = at_ms + chance.choice((0, 0, SLACK_MS))
        for recent, scrapes in zip(recents, waiting, strict=True):
            while scrapes and scrapes[-1][0] <= until:
                recent.append(*scrapes.pop())
        window = "90s" if number % 4 == 0 else "5m"
        function = "increase" if number % 5 == 0 else "rate"
        within = Range(at_ms, WINDOWS[window], bounds)
        changes = read_recent(recents, within).changes
        ours = changes.rates(within) if function == "rate" else changes.increases()
        theirs = _answers(prometheus.query(f"{function}(x[{window}])", at_ms=at_ms))
        rows = [series for recent in recents for series in recent.rows]
        tally.compare(f"{function} over {window} at {at_ms}", _present(rows, ours), theirs, TARGETS * SERIES)

    print(f"\n{bounds}: {tally.compared} rates and increases compared, {tally.absent} times both have none")
    assert not tally.differences, f"{len(tally.differences)} differ:\n" + "\n".join(tally.differences[:12])
    assert tally.compared > INSTANTS * TARGETS * SERIES / 2
    assert tally.absent > INSTANTS


def test_rates_over_stored_windows_are_prometheus_to_the_bit(
    targets: Sequence[Target], asked: tuple[Prometheus, WindowBounds]
) -> None:
    """The general path, which reads every sample, gives the same bits as well."""
    prometheus, bounds = asked
    windows = [_recent(target, 86_400_000).window() for target in targets]
    rows = [series for window in windows for series in window.series]
    tally = Tally()
    for at_ms in _instants(targets)[:300:6]:
        within = Range(at_ms, WINDOWS["5m"], bounds)
        ours = np.concatenate([window_changes(window, within).rates(within) for window in windows])
        theirs = _answers(prometheus.query("rate(x[5m])", at_ms=at_ms))
        tally.compare(f"rate at {at_ms}", _present(rows, ours), theirs, TARGETS * SERIES)

    print(f"\n{bounds}: {tally.compared} rates over windows compared")
    assert not tally.differences, f"{len(tally.differences)} differ:\n" + "\n".join(tally.differences[:12])
    assert tally.compared > min(INSTANTS, 300) / 6 * TARGETS * SERIES / 2


def _recent(target: Target, window_ms: int) -> RecentScrapes:
    recent = RecentScrapes(window_ms, SLACK_MS)
    for scrape in target.scrapes:
        recent.append(*scrape)
    return recent


def test_the_last_value_is_held_as_long_as_prometheus_holds_it(
    targets: Sequence[Target], asked: tuple[Prometheus, WindowBounds]
) -> None:
    """Five minutes, to the millisecond; Prometheus 3 drops it exactly then, Prometheus 2 a millisecond later."""
    prometheus, bounds = asked
    tally = Tally()
    ended = [target for target in targets if target.scrapes[-1][1] is not None][:LEVEL_INSTANTS]
    for target in ended:
        recent = _recent(target, max(WINDOWS.values()))
        shown = set(recent.latest()[0])
        for beside in (-1, 0, 1):
            at_ms = target.times[-1] + LOOKBACK_MS + beside
            ours = _present(recent.rows, read_recent([recent], Range(at_ms, LOOKBACK_MS, bounds)).levels)
            number = dict(next(iter(shown)).labels)["target"]
            theirs = _answers(prometheus.query(f'x{{target="{number}"}}', at_ms=at_ms))
            # Written as blocks, series that ended before the last scrape have no stale marker.
            theirs = {series: value for series, value in theirs.items() if series in shown}
            tally.compare(f"level at {at_ms}", ours, theirs, len(shown))

    assert not tally.differences, f"{len(tally.differences)} differ:\n" + "\n".join(tally.differences[:12])
    assert tally.compared > 100
    assert tally.absent > 100
