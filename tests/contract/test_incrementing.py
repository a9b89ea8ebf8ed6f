"""Increments per block: against a plain implementation of the same rules, and each rule by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.contract.identity import Identity
from servescope.contract.samples import Series, Window, make_labels
from servescope.increments.accumulation import block_of, compute_increments, memory_ms
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from tests.support.scraped_pasts import ERROR, OK, QUEUED, START, T0, TOKENS, Page, histogram, pasts

_IDENTITY = Identity("llama", "chat", "v2", replica="0")
_INTERVAL_MS = 15_000


def _window(scrapes: Mapping[int, Page]) -> Window:
    times = sorted(scrapes)
    series = tuple(dict.fromkeys(each for time_ms in times for each in scrapes[time_ms]))
    values = np.array([[scrapes[time_ms].get(each, np.nan) for time_ms in times] for each in series])
    return Window(series, np.array(times, dtype=np.int64), values.reshape(len(series), len(times)))


def _compute(scrapes: Mapping[int, Page]) -> TargetIncrements:
    return compute_increments(
        "t", _IDENTITY, _window(scrapes), start_ms=-BLOCK_MS, end_ms=1 << 42, interval_ms=_INTERVAL_MS
    )


def _gains(found: TargetIncrements, series: Series) -> list[float]:
    return [float(value) for value in found.gains[found.series.index(series)]]


def _at(*seconds_and_pages: tuple[float, Page]) -> dict[int, Page]:
    return {T0 + round(seconds * 1000): page for seconds, page in seconds_and_pages}


_BEGAN = T0 / 1000


@pytest.mark.parametrize(
    ("series", "scrapes", "gains", "happened"),
    [
        # The scrape on the right edge of a block belongs to it, the one on the left edge to the block before.
        (TOKENS, [(-15, {TOKENS: 1}), (0, {TOKENS: 5}), (15, {TOKENS: 7}), (300, {TOKENS: 12})], [4, 7],
         {"scrapes": [2, 2]}),
        (TOKENS, [(15, {TOKENS: 10}), (30, {TOKENS: 4}), (45, {TOKENS: 5})], [5], {"resets": [1]}),
        (TOKENS, [(15, {TOKENS: 10}), (30, {TOKENS: 10, QUEUED: 1})], [0], {}),
        (TOKENS, [(15, {TOKENS: 10})], [math.nan], {}),
        # It could not be scraped at 15 s: one that began at 20 s counted all since, one of 10 s maybe not.
        (TOKENS, [(15, {}), (30, {TOKENS: 10, START: _BEGAN + 20})], [10], {"failed": [1], "scrapes": [1]}),
        (TOKENS, [(15, {}), (30, {TOKENS: 10, START: _BEGAN + 10})], [math.nan], {"failed": [1], "scrapes": [1]}),
        (ERROR, [(15, {OK: 10}), (30, {OK: 12}), (45, {OK: 14, ERROR: 3}), (315, {OK: 15, ERROR: 3})],
         [3, math.nan], {}),
        (ERROR, [(15, {OK: 10, ERROR: 3}), (30, {OK: 12, ERROR: 3})], [0], {}),
        # Whether it has not happened yet, or goes on unseen, is for who reads them to say.
        (ERROR, [(15, {OK: 1}), (30, {OK: 2}), (330, {OK: 3}), (345, {OK: 4, ERROR: 1})], [math.nan, 1], {}),
        (TOKENS, [(270, {TOKENS: 1}), (310, {TOKENS: 9}), (325, {TOKENS: 10})], [math.nan, 1], {"gaps": [0, 1]}),
        (TOKENS, [(290, {TOKENS: 1}), (310, {TOKENS: 9})], [math.nan, 8], {}),
        (TOKENS, [(15, {TOKENS: 1}), (200, {TOKENS: 9})], [8], {"gaps": [0]}),
    ],
    ids=[
        "edges of blocks", "a fall is a reset", "first sight", "one scrape", "began since the scrape before",
        "began before it", "an outcome beside others", "an outcome seen first", "an outcome not shown",
        "a gap across an edge", "near an edge", "a gap within a block",
    ],
)  # fmt: skip
def test_a_counter_gains(
    series: Series, scrapes: list[tuple[float, Page]], gains: list[float], happened: dict[str, list[int]]
) -> None:
    """In each block, and what happened to it there."""
    found = _compute(_at(*scrapes))
    assert _gains(found, series) == pytest.approx(gains, nan_ok=True)
    assert {name: getattr(found.tallies, name).tolist() for name in happened} == happened


def test_a_start_time_that_moved_is_a_reset_though_nothing_fell() -> None:
    found = _compute(
        _at((15, {TOKENS: 10, START: 1.0}), (30, {TOKENS: 12, START: 1.2}), (45, {TOKENS: 30, START: 1500.0}))
    )
    assert _gains(found, TOKENS) == [32]
    assert found.tallies.resets.tolist() == [1]
    assert found.started_ms.tolist() == [1_500_000.0]


def test_a_segment_that_appears_beside_others_began_at_zero() -> None:
    """Its first observations are gains, as its first requests are; without any other they are a baseline."""
    one, other = (
        {
            Series(each.name, make_labels((*each.labels, ("segment", segment)))): value
            for each, value in histogram({0.1: count, math.inf: count}, count, count * 0.05).items()
        }
        for segment, count in (("a", 5.0), ("b", 3.0))
    )
    count = Series("time_to_first_token_seconds_count", (("segment", "b"),))
    found = _compute(_at((15, one), (30, {**one, **other}), (45, {**one, **other})))
    assert _gains(found, count) == [3]
    assert found.tallies.torn.tolist() == [0]
    alone = _compute(_at((15, {TOKENS: 1}), (30, other), (45, other)))
    assert _gains(alone, count) == [0]


def test_a_torn_histogram_is_dropped_from_its_scrape_and_the_next_one_has_the_gain() -> None:
    whole = histogram({0.1: 5, math.inf: 9}, 9, 3.0)
    torn = histogram({0.1: 5, math.inf: 10}, 11, 3.5)
    later = histogram({0.1: 6, math.inf: 12}, 12, 4.0)
    found = _compute(_at((15, whole), (30, torn), (45, later)))
    assert found.gains[:, 0].tolist() == [1, 3, 3, 1.0]
    assert [each.name.rpartition("_")[2] for each in found.series] == ["bucket", "bucket", "count", "sum"]
    assert found.tallies.torn.tolist() == [1]


def test_a_histogram_of_which_only_parts_fell_is_torn() -> None:
    found = _compute(
        _at(
            (15, histogram({0.1: 5, math.inf: 9}, 9, 3.0)),
            (30, histogram({0.1: 4, math.inf: 9}, 9, 3.0)),
            (45, histogram({0.1: 4, math.inf: 10}, 10, 3.5)),
        )
    )
    assert found.gains[:, 0].tolist() == [0, 1, 1, 0.5]
    assert (found.tallies.torn.tolist(), found.tallies.resets.tolist()) == ([1], [0])


def test_a_restarted_histogram_is_reset_as_one_though_its_empty_buckets_rise() -> None:
    """After a restart a bucket that was empty may be higher than before; its count fell."""
    found = _compute(
        _at((15, histogram({0.1: 0, math.inf: 90}, 90, 300.0)), (30, histogram({0.1: 2, math.inf: 3}, 3, 5.0)))
    )
    assert found.gains[:, 0].tolist() == [2, 3, 3, 5.0]
    assert (found.tallies.torn.tolist(), found.tallies.resets.tolist()) == ([0], [1])


def test_other_buckets_begin_anew() -> None:
    """A version with other edges has other series: first sight, not torn."""
    found = _compute(
        _at(
            (15, histogram({0.1: 5, math.inf: 9}, 9, 3.0)),
            (30, histogram({0.5: 1, math.inf: 2}, 2, 1.0)),
            (45, histogram({0.5: 2, math.inf: 4}, 4, 1.5)),
        )
    )
    gains = dict(zip(found.series, found.gains[:, 0].tolist(), strict=True))
    assert gains[Series("time_to_first_token_seconds_bucket", (("le", "0.5"),))] == 1
    assert gains[Series("time_to_first_token_seconds_count", ())] == 2
    assert found.tallies.torn.tolist() == [0]


def test_levels_are_means_over_scrapes_and_the_share_above_saturation() -> None:
    found = _compute(_at((15, {QUEUED: 0}), (30, {QUEUED: 3}), (45, {}), (60, {OK: 1}), (75, {QUEUED: 3})))
    assert found.gauges == (QUEUED,)
    assert found.levels.tolist() == [[2.0]]
    assert found.above.tolist() == [[pytest.approx(2 / 3)]]


def test_nothing_is_known_of_no_scrapes() -> None:
    found = compute_increments(
        "t",
        _IDENTITY,
        Window((), np.zeros(0, dtype=np.int64), np.zeros((0, 0))),
        start_ms=0,
        end_ms=BLOCK_MS,
        interval_ms=_INTERVAL_MS,
    )
    assert (found.gains.shape, found.levels.shape, len(found.blocks)) == ((0, 0), (0, 0), 0)


@dataclass
class _Plain:
    """The rules, scrape by scrape and object by object, of a page of one counter, two outcomes and one histogram."""

    interval_ms: int = _INTERVAL_MS
    gains: dict[tuple[int, Series], float] = field(default_factory=dict)
    happened: dict[tuple[int, str], int] = field(default_factory=dict)
    seen: dict[str, tuple[int, dict[Series, float], float | None]] = field(default_factory=dict)
    success: int | None = None
    outcomes_then: bool = False
    attempts: list[int] = field(default_factory=list)

    def feed(self, time_ms: int, page: Page) -> None:
        block = block_of(time_ms)
        self._note(block, "scrapes" if page else "failed")
        if page:
            events = {self._object(time_ms, name, own, page.get(START)) for name, own in _objects(page)}
            self._note(block, "resets", "reset" in events)
            self._note(block, "gaps", "gap" in events)
            self.success = time_ms
            self.outcomes_then = OK in page or ERROR in page
        self.attempts.append(time_ms)

    def _object(self, time_ms: int, name: str, own: dict[Series, float], start: float | None) -> str:
        block, memory = block_of(time_ms), memory_ms(self.interval_ms)
        if name == "histogram" and _is_torn(own):
            self._note(block, "torn")
            return "torn"
        former = self.seen.get(name)
        self.seen[name] = (time_ms, own, start)
        event = "gain"
        if former is not None and time_ms - former[0] <= memory and former[1].keys() == own.keys():
            since, before, start_then = float(former[0]), former[1], former[2]
            gain = {each: value - before[each] for each, value in own.items()}
            moved = start is not None and start_then is not None and abs(start - start_then) > 1
            if moved or gain[_total(own)] < 0:
                gain, event = own, "reset"
            elif min(gain.values()) < 0 or (name == "histogram" and _is_torn(gain)):
                self._note(block, "torn")
                return "torn"
        else:
            success = self.success if self.success is not None and time_ms - self.success <= memory else None
            earlier = [each for each in self.attempts if time_ms - each <= memory]
            if not earlier:
                return "baseline"
            since = float(earlier[0] if success is None else success)
            if start is not None and round(start * 1000) > since:
                since = max(since, round(start * 1000))
            elif success is None or not name.startswith("outcome") or not self.outcomes_then:
                return "baseline"
            gain = own
        if time_ms - since > 2.5 * self.interval_ms and block_of(round(since)) != block:
            return "gap"
        for each, value in gain.items():
            self.gains[block, each] = self.gains.get((block, each), 0.0) + value
        return event

    def _note(self, block: int, what: str, count: int = 1) -> None:
        self.happened[block, what] = self.happened.get((block, what), 0) + count


def _objects(page: Page) -> list[tuple[str, dict[Series, float]]]:
    found: dict[str, dict[Series, float]] = {}
    for series, value in page.items():
        if series.name.startswith("time"):
            found.setdefault("histogram", {})[series] = value
        elif series not in (START, QUEUED):
            found[f"{'outcome' if series in (OK, ERROR) else ''}{series}"] = {series: value}
    return list(found.items())


def _total(own: Mapping[Series, float]) -> Series:
    return next((each for each in own if each.name.endswith("_count")), next(iter(own)))


def _is_torn(own: Mapping[Series, float]) -> bool:
    buckets = [value for each, value in own.items() if each.name.endswith("_bucket")]
    return sorted(buckets) != buckets or buckets[-1] != own[_total(own)]


@pytest.mark.slow
@given(pasts())
def test_increments_are_those_of_a_plain_implementation(scrapes: dict[int, Page]) -> None:
    found, plain = _compute(scrapes), _Plain()
    for time_ms in sorted(scrapes):
        plain.feed(time_ms, scrapes[time_ms])
    expected = {
        block: {name: plain.happened.get((block, name), 0) for name in ("scrapes", "failed", "torn", "resets", "gaps")}
        for block in sorted({block_of(time_ms) for time_ms in scrapes})
    }
    got_tallies = {
        block: {name: int(getattr(found.tallies, name)[at]) for name in ("scrapes", "failed", "torn", "resets", "gaps")}
        for at, block in enumerate(found.blocks.tolist())
    }
    assert got_tallies == expected
    for at, block in enumerate(found.blocks.tolist()):
        got = {each: float(found.gains[row, at]) for row, each in enumerate(found.series)}
        want = {each: plain.gains.get((block, each), math.nan) for each in found.series}
        assert got == pytest.approx(want, nan_ok=True), block


@pytest.mark.slow
@given(pasts(), st.integers(0, 12))
def test_a_block_needs_no_scrapes_from_before_memory(scrapes: dict[int, Page], number: int) -> None:
    """Computed from its own scrapes and those within memory, a block has what it has computed with all of them."""
    whole = _compute(scrapes)
    if not len(whole.blocks):
        return
    at = number % len(whole.blocks)
    block = int(whole.blocks[at])
    lead = block - memory_ms(_INTERVAL_MS)
    near = {time_ms: page for time_ms, page in scrapes.items() if lead <= time_ms <= block + BLOCK_MS}
    alone = compute_increments(
        "t", _IDENTITY, _window(near), start_ms=block, end_ms=block + BLOCK_MS, interval_ms=_INTERVAL_MS
    )
    assert alone.blocks.tolist() == [block]
    got = dict(zip(alone.series, alone.gains[:, 0].tolist(), strict=True))
    want = {each: float(whole.gains[row, at]) for row, each in enumerate(whole.series)}
    assert got == pytest.approx({each: want[each] for each in got}, nan_ok=True)
    for each in ("scrapes", "failed", "torn", "resets", "gaps"):
        assert getattr(alone.tallies, each).tolist() == [getattr(whole.tallies, each)[at]]
