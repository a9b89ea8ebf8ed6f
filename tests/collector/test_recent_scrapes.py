"""The recent scrapes of a target: what is held, what is forgotten, and what a flood of series may cost."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from servescope.collector.figures.rates import read_recent
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.contract.samples import Sample, Series, Snapshot, Window
from servescope.increments.extrapolation import Range, WindowBounds, window_changes, window_levels

NOW = 1_800_000_000_000
WINDOW_MS = 300_000
INTERVAL_MS = 15_000


def columns(window: Window) -> dict[int, dict[Series, float]]:
    """The window by time and series, without what was absent."""
    return {
        time: {series: value for series, value in zip(window.series, column, strict=True) if not math.isnan(value)}
        for time, column in zip(window.times.tolist(), window.values.T.tolist(), strict=True)
    }


@pytest.mark.slow
def test_recent_scrapes_equals_a_plain_list_over_any_history() -> None:
    """Whatever series come and go, over many times the time held, it holds exactly the last scrapes."""
    chance = random.Random(7)
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    hold_ms = WINDOW_MS + INTERVAL_MS
    history: dict[int, dict[Series, float]] = {}
    time_ms = NOW
    for step in range(2000):
        time_ms += chance.choice([INTERVAL_MS, INTERVAL_MS, 1, 1000, 200_000])
        present = [number for number in range(200) if chance.random() < 0.3 and abs(number - step / 10) < 60]
        chance.shuffle(present)
        samples = [Sample(f"s{number}", (("n", str(number)),), chance.random()) for number in present]
        failed = chance.random() < 0.1
        recent.append(time_ms, None if failed else Snapshot.of(samples))
        history[time_ms] = {} if failed else {Series(each.name, each.labels): each.value for each in samples}
        history = {time: each for time, each in history.items() if time >= time_ms - hold_ms}

        assert columns(recent.window()) == history


def test_recent_scrapes_shows_its_last_scrape() -> None:
    """The list of series is the scrape's own while it repeats; a failed scrape shows nothing; the values are a copy."""
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    nothing = recent.latest()[0]
    recent.append(NOW, Snapshot.of([Sample("a", (), 1.0), Sample("b", (), 2.0)]))
    snapshot = Snapshot.of([Sample("b", (), 3.0)])
    recent.append(NOW + 1, snapshot)
    series, values = recent.latest()
    recent.append(NOW + 2, None)
    failed = recent.latest()[0]
    recent.append(NOW + 3, Snapshot(snapshot.series, np.array([4.0])))

    assert nothing == failed == ()
    assert series is recent.latest()[0] is snapshot.series
    np.testing.assert_array_equal(values, [3.0])
    np.testing.assert_array_equal(recent.latest()[1], [4.0])


def test_recent_scrapes_refuse_a_time_that_does_not_advance() -> None:
    """Scrapes come one after the other."""
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    recent.append(NOW, None)
    with pytest.raises(ValueError, match="is not after the last one"):
        recent.append(NOW, None)


def test_recent_scrapes_is_spent_when_nothing_is_left_in_the_window() -> None:
    """A target that left may be forgotten once its last scrape matters no more."""
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    empty = recent.is_spent(NOW)
    recent.append(NOW, None)

    assert (empty, recent.is_spent(NOW + WINDOW_MS), recent.is_spent(NOW + WINDOW_MS + INTERVAL_MS + 1)) == (
        True,
        False,
        True,
    )


def numbered(*numbers: int) -> tuple[Series, ...]:
    return tuple(Series("x_total", (("n", f"{number:09}"),)) for number in numbers)


def counted(series: Sequence[Series], value: float) -> Snapshot:
    return Snapshot(tuple(series), np.full(len(series), value))


def rates_of(recent: RecentScrapes, at_ms: int) -> dict[Series, float]:
    within = Range(at_ms, WINDOW_MS)
    rates = read_recent([recent], within).changes.rates(within).tolist()
    return {
        series: rate
        for series, rate in zip(recent.rows, rates, strict=True)
        if series is not None and not math.isnan(rate)
    }


def test_new_series_beyond_the_limit_are_left_out_and_known_ones_go_on() -> None:
    """What was kept of the scrape is given back, so that the store keeps the same."""
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS, max_series=3)
    whole = counted(numbered(1, 2), 1.0)

    assert recent.append(NOW, whole) is whole
    kept = recent.append(NOW + 1, counted(numbered(7, 1, 8, 2), 2.0))
    assert kept is not None
    assert kept.series == numbered(7, 1, 2)
    assert kept.values.tolist() == [2.0, 2.0, 2.0]
    assert (len(recent), recent.left_out) == (3, 1)
    assert recent.append(NOW + 2, counted(numbered(1, 2, 7), 3.0)) is not None
    assert (len(recent), recent.left_out) == (3, 0)


def test_there_is_room_again_when_old_series_have_left_the_window() -> None:
    """The very scrape after which a series is in no scrape held any more; also where the page stays the same."""
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS, max_series=2)
    recent.append(NOW, counted(numbered(1, 2), 1.0))
    series = numbered(1, 3)
    left_out = []
    for step in range(1, 30):
        recent.append(NOW + step * INTERVAL_MS, counted(series, 1.0 + step))
        left_out.append(recent.left_out)

    assert left_out[:21] == [1] * 21
    assert left_out[21:] == [0] * 8
    assert rates_of(recent, NOW + 29 * INTERVAL_MS).keys() == set(series)


@pytest.mark.slow
def test_a_target_that_always_shows_new_series_costs_what_its_limit_says() -> None:
    """2 000 new ones a scrape, over ten windows: memory does not grow, the figures of the stable ones stay right."""
    recent, steady = RecentScrapes(WINDOW_MS, INTERVAL_MS, max_series=8_000), numbered(*range(100))
    numbers = iter(range(1000, 10**9))
    peaks = []
    tracemalloc.start()
    try:
        for step in range(60):
            fresh = numbered(*(next(numbers) for _ in range(2_000)))
            recent.append(NOW + step * INTERVAL_MS, counted((*steady, *fresh), 2.0 * step))
            if step % 20 == 19:
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    rates = rates_of(recent, NOW + 59 * INTERVAL_MS)

    assert len(recent) <= 8_000
    # 24 scrapes of 8 bytes, the series themselves, and as much again while the arrays grow.
    assert max(peaks) < 8_000 * 3_000
    assert peaks[2] < 1.2 * peaks[1]
    assert [rates[series] for series in steady] == pytest.approx([2 / 15] * 100)


def test_new_series_get_their_rows_in_parts_and_change_nothing_until_the_scrape_is_added() -> None:
    """Each part is at most a thousand series; what is read in between is as before, and then as if added at once."""
    recents = [RecentScrapes(WINDOW_MS, INTERVAL_MS, max_series=5_000) for _ in range(2)]
    parts, plain = recents
    for recent in recents:
        recent.append(NOW, counted(numbered(*range(100)), 1.0))
        recent.append(NOW + INTERVAL_MS, counted(numbered(*range(100)), 4.0))
    before = rates_of(parts, NOW + INTERVAL_MS)
    flood, time_ms = counted(numbered(*range(50, 6_000)), 7.0), NOW + 2 * INTERVAL_MS
    sizes = [len(parts)]
    for _ in parts.reserve(time_ms, flood.series):
        sizes.append(len(parts))
        assert rates_of(parts, NOW + INTERVAL_MS) == before
    kept = [recent.append(time_ms, flood) for recent in recents]
    again = counted(flood.series, 8.0)
    assert list(parts.reserve(time_ms + 1, again.series)) == []  # nothing is looked up for series as before
    for recent in recents:
        recent.append(time_ms + 1, again)

    assert max(later - earlier for earlier, later in pairwise(sizes)) == 1_000
    assert kept[0] is not None
    assert kept[1] is not None
    assert kept[0].series == kept[1].series
    assert columns(parts.window()) == columns(plain.window())
    assert rates_of(parts, time_ms + 1) == rates_of(plain, time_ms + 1)


def test_series_of_a_scrape_that_was_never_added_are_forgotten() -> None:
    """As of one that is cancelled half-way: they leave the window like series that went away."""
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    recent.append(NOW, counted(numbered(1), 1.0))
    next(recent.reserve(NOW + 1, numbered(*range(1, 3_000))))
    held = len(recent)
    for step in range(1, 30):
        recent.append(NOW + step * INTERVAL_MS, counted(numbered(1), 1.0 + step))

    assert (held, len(recent)) == (1_000, 1)
    assert rates_of(recent, NOW + 29 * INTERVAL_MS).keys() == set(numbered(1))


def test_memory_is_given_back_after_a_flood() -> None:
    """Memory of a flood is freed, and nothing of the series that stay is lost."""
    recent, steady = RecentScrapes(WINDOW_MS, INTERVAL_MS), numbered(*range(10))
    for step in range(80):
        flood = numbered(*range(100, 5_000)) if step < 10 else ()
        value = 3.0 * step if step != 75 else 1.0
        recent.append(NOW + step * INTERVAL_MS, counted((*flood, *steady), value))
    at_ms = NOW + 79 * INTERVAL_MS
    changes = window_changes(recent.window(), Range(at_ms, WINDOW_MS))

    assert len(recent) == 10
    assert recent.nbytes < 100_000
    assert list(rates_of(recent, at_ms).values()) == changes.rates(Range(at_ms, WINDOW_MS)).tolist()


def test_a_ring_forgets_all_series_of_a_target_that_fails_for_longer_than_it_holds() -> None:
    """Nothing is left to read; when the target is back it begins anew."""
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    recent.append(NOW, counted(numbered(1, 2), 1.0))
    for step in range(1, 25):
        recent.append(NOW + step * INTERVAL_MS, None)
    forgotten = len(recent)
    recent.append(NOW + 25 * INTERVAL_MS, counted(numbered(2), 100.0))
    recent.append(NOW + 26 * INTERVAL_MS, counted(numbered(2), 115.0))

    assert forgotten == 0
    assert columns(recent.window())[NOW + 25 * INTERVAL_MS] == {numbered(2)[0]: 100.0}
    assert len(rates_of(recent, NOW + 26 * INTERVAL_MS)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("bounds", ["closed", "left-open"])
def test_rates_from_rings_are_those_of_the_windows_to_the_bit(bounds: WindowBounds) -> None:
    """Whatever comes, goes, fails or starts again: what is noted at arrival gives what reading every sample gives."""
    chance = random.Random(8)
    for _ in range(25):
        recents = [RecentScrapes(chance.choice((60_000, 300_000)), 2 * INTERVAL_MS, max_series=60) for _ in range(3)]
        values: dict[tuple[int, int], float] = {}
        times = [NOW + chance.randrange(INTERVAL_MS) for _ in recents]
        for step in range(60):
            for number, recent in enumerate(recents):
                times[number] += chance.choice((15_000, 15_000, 15_003, 1, 40_000, 800_000 if step == 30 else 15_000))
                recent.append(times[number], _drawn_scrape(chance, values, number, step))
        for _ in range(10):
            at_ms = chance.choice(times) + chance.choice((0, 60_000, 1, chance.randrange(-100_000, 100_000)))
            _compare_readings(recents, Range(at_ms, chance.choice((60_000, 300_000)), bounds))


def _drawn_scrape(
    chance: random.Random, values: dict[tuple[int, int], float], target: int, step: int
) -> Snapshot | None:
    if chance.random() < 0.07:
        return None
    missing = chance.choice((0.0, 0.0, 0.0, 0.02, 0.3))
    samples = []
    for number in range(40):
        key = (target, number + (step // 7 * 40 if number > 25 else 0))
        step_up = chance.choice((0.0, 1.0, 2.7, chance.random()))
        values[key] = chance.choice((0.0, 1.5)) if chance.random() < 0.02 else values.get(key, 0.0) + step_up
        if chance.random() >= missing and (number <= 30 or chance.random() < 0.5):
            samples.append(Sample("x_total", (("n", str(key[1])),), values[key]))
    if chance.random() < 0.2:
        chance.shuffle(samples)
    return Snapshot.of(samples)


def _compare_readings(recents: Sequence[RecentScrapes], within: Range) -> None:
    readings = read_recent(recents, within)
    end = 0
    for recent in recents:
        start, end = end, end + len(recent.rows)
        held = [row for row, series in enumerate(recent.rows, start) if series is not None]
        window = recent.window()
        expected = window_changes(window, within)
        np.testing.assert_array_equal(readings.changes.rates(within)[held], expected.rates(within))
        np.testing.assert_array_equal(readings.changes.increases()[held], expected.increases())
        np.testing.assert_array_equal(readings.levels[held], window_levels(window, within))
