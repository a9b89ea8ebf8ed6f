"""What a lane reads of the store at its edges: totals, gains, starts and ends, however the edges are divided."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Series, Snapshot, make_labels
from servescope.customers.points import reading
from servescope.customers.points.edges import IntervalSnapshot, TargetInterval
from servescope.customers.points.reading import FleetState, IntervalReader
from servescope.store import embedded
from servescope.store.embedded import Store
from servescope.store.records import RecordedSettings, TargetStatus
from tests.support.drawing import examples
from tests.support.scraped_pasts import ERROR, OK, QUEUED, START, T0, TOKENS, Page, histogram, pasts

ENGINE = Identity("llama", "chat-v1", "v1", replica="engine-0")
OTHER = Identity("llama", "chat-v1", "v1", replica="engine-1")
METRICS = ("output_tokens_total", "requests_total", "queued_requests", "time_to_first_token_seconds")
MINUTE = 60_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "past.db") as store:
        yield store


def fill(store: Store, scrapes: Mapping[int, Page], identity: Identity = ENGINE) -> None:
    """The scrapes in the store; an empty one failed."""
    store.set_target(TargetStatus(identity.target_id, "http://127.0.0.1/metrics", identity, healthy=True))
    own = identity.labels()
    for time_ms, page in scrapes.items():
        samples = [Sample(name, make_labels((*labels, *own)), value) for (name, labels), value in page.items()]
        store.append_scrape(identity.target_id, time_ms, Snapshot.of(samples) if samples else None)


def counted(tokens: float, started: float | None = None, **more: float) -> Page:
    """A page with a counter, and whatever else."""
    named = {"ok": OK, "error": ERROR, "queued": QUEUED}
    page = {TOKENS: tokens, **{named[name]: value for name, value in more.items()}}
    return page if started is None else {**page, START: started / 1000}


def read(store: Store, edges: Sequence[int], state: FleetState | None = None) -> list[IntervalSnapshot]:
    reader = IntervalReader(store, [ENGINE.deployment()], METRICS, ())
    return [edge for edge, _ in reader.read(state, edges)]


def of(edge: IntervalSnapshot, series: Series, identity: Identity = ENGINE) -> tuple[float, float, float, bool]:
    """Value, gain, count and end of a series at an edge."""
    target = _target(edge, identity)
    row = target.series.index(series)
    return tuple(part[row].item() for part in (target.values, target.gains, target.counted, target.ended))


def since(edge: IntervalSnapshot, identity: Identity = ENGINE) -> int:
    """Since when the counters of a target count."""
    return _target(edge, identity).since_ms


def _target(edge: IntervalSnapshot, identity: Identity) -> TargetInterval:
    (target,) = (target for target in edge.targets if target.identity == identity)
    return target


def test_an_edge_has_the_last_scrape_before_it_and_what_was_gained_since_the_edge_before(store: Store) -> None:
    """Scrapes after an edge belong to the next one; what was counted before the lane began is none of its counts."""
    fill(
        store, {T0 - 5_000: counted(10, T0 - 100_000), T0 + 55_000: counted(25, T0 - 100_000), T0 + 61_000: counted(40)}
    )
    first, second = read(store, [T0, T0 + MINUTE])

    value, gain, count, ended = of(first, TOKENS)
    assert (value, count, ended) == (10, 0, False)
    assert np.isnan(gain)  # a lane begins there
    assert of(second, TOKENS) == (25, 15, 15, False)
    assert (since(first), since(second)) == (T0, T0)


def test_a_restart_between_two_edges_loses_nothing(store: Store) -> None:
    """Gain and count have what was counted before and after."""
    born, again = T0 - 100_000, T0 + 35_000
    fill(store, {
        T0: counted(10, born), T0 + 15_000: counted(12, born), T0 + 30_000: counted(15, born),
        T0 + 45_000: counted(3, again), T0 + 60_000: counted(4, again),
    })  # fmt: skip
    _, edge = read(store, [T0, T0 + MINUTE])

    assert of(edge, TOKENS) == (4, 5 + 4, 5 + 4, False)
    assert since(edge) == T0


def test_without_a_start_time_a_counter_that_fell_has_begun_anew(store: Store) -> None:
    """What it counted before is not lost."""
    fill(store, {T0: counted(10), T0 + 30_000: counted(15), T0 + 45_000: counted(3)})
    _, edge = read(store, [T0, T0 + MINUTE])

    assert of(edge, TOKENS) == (3, 5 + 3, 5 + 3, False)


def test_a_replica_that_joins_counts_from_its_start(store: Store) -> None:
    """An edge without it was there before, so that all it counted is a gain, if it says when it began."""
    fill(store, {T0: counted(10), T0 + 60_000: counted(10)})
    fill(store, {T0 + 50_000: counted(7, T0 + 20_000)}, OTHER)
    _, edge = read(store, [T0, T0 + MINUTE])

    assert of(edge, TOKENS, OTHER) == (7, 7, 7, False)
    assert (since(edge), since(edge, OTHER)) == (T0, T0 + 20_000)


def test_a_replica_that_was_there_before_it_was_seen_counts_from_its_first_sight(store: Store) -> None:
    """Whosever its traffic was: all of its counters have one baseline."""
    fill(store, {T0: counted(10), T0 + 60_000: counted(10)})
    old = T0 - 400_000
    fill(store, {T0 + 35_000: counted(700, old, ok=90, error=9), T0 + 50_000: counted(703, old, ok=92, error=9)}, OTHER)
    _, edge = read(store, [T0, T0 + MINUTE])

    assert [of(edge, each, OTHER)[2] for each in (TOKENS, OK, ERROR)] == [3, 2, 0]
    assert since(edge, OTHER) == T0 + 35_000


def test_what_a_deployment_counted_before_it_was_the_customers_is_not_read(store: Store) -> None:
    """Neither by a lane that was there before, nor by one that begins; also of a process that began before."""
    moved = T0 + 40_000
    fill(store, {
        T0 + at * 1_000: counted(100 + at, T0 + 20_000, ok=at) for at in (25, 35, 45, 55, 70, 85, 100, 115)
    })  # fmt: skip
    fill(store, {T0: counted(1)}, OTHER)
    for first in (T0, T0 + MINUTE):
        reader = IntervalReader(store, [ENGINE.deployment()], METRICS, (), {ENGINE.deployment(): moved})
        edge = [edge for edge, _ in reader.read(None, range(first, T0 + 2 * MINUTE + 1, MINUTE))][-1]
        began = max(first, T0 + 45_000)
        assert since(edge) == began
        assert of(edge, TOKENS)[2] == 115 - (began - T0 if began == T0 + 45_000 else 55_000) / 1000
        assert [target.identity for target in edge.targets] == [ENGINE]


def test_what_a_lane_knew_of_a_deployment_before_it_was_anothers_is_forgotten(store: Store) -> None:
    """When the owner changes back, what was counted in between is not a gain; figures wait for their window."""
    fill(store, {T0 + at * 15_000: counted(10 * at) for at in range(40)})
    deployment = ENGINE.deployment()
    for at in range(40):
        store.append_figures(deployment, T0 + at * 15_000, {"request_rate": float(at)})

    def reader(since_ms: int) -> IntervalReader:
        return IntervalReader(store, [deployment], METRICS, ("request_rate",), {deployment: since_ms})

    (_, state) = list(reader(0).read(None, [T0 + MINUTE]))[-1]
    back = T0 + 130_000
    found = [edge for edge, _ in reader(back).read(state, range(T0 + 2 * MINUTE, T0 + 9 * MINUTE, MINUTE))]
    assert [sum(len(edge.targets) for edge in found[:1]), of(found[1], TOKENS)[2]] == [0, 30]
    assert since(found[-1]) == T0 + 135_000
    shown = [edge.time_ms for edge in found if edge.figures]
    assert shown == [T0 + minutes * MINUTE for minutes in (8,)]


def test_a_window_that_became_shorter_shows_nothing_from_before_the_customers_time(store: Store) -> None:
    """A lane that is behind reads figures of both windows; each is called by its own."""
    deployment, hour_ms, shorter = ENGINE.deployment(), 60 * MINUTE, T0 + 20 * MINUTE
    store.record_settings(T0, RecordedSettings(hour_ms, 15_000, 15_000, "left-open"))
    store.record_settings(shorter, RecordedSettings(5 * MINUTE, 15_000, 15_000, "left-open"))
    for time_ms in range(T0, T0 + 30 * MINUTE, 15_000):
        store.append_figures(deployment, time_ms, {"request_rate": 1.0})
    reader = IntervalReader(store, [deployment], METRICS, ("request_rate",), {deployment: T0 + MINUTE})
    state = FleetState(T0 + MINUTE)
    found = [edge for edge, _ in reader.read(state, range(T0 + 2 * MINUTE, T0 + 26 * MINUTE, MINUTE))]
    assert not [edge.time_ms for edge in found if edge.figures and edge.time_ms < shorter]
    assert {edge.window_ms for edge in found if edge.time_ms < shorter} == {hour_ms}
    assert {edge.window_ms for edge in found if edge.time_ms >= shorter} == {5 * MINUTE}


def test_buckets_that_change_begin_anew_with_all_of_their_replica(store: Store) -> None:
    """So that no count falls, and all have one baseline still; nothing of what was gained is lost."""

    def page(tokens: int, edge: float, low: int, total: int) -> Page:
        return {TOKENS: tokens, **histogram({edge: low, math.inf: total}, total, float(total))}

    fill(store, {
        T0: page(10, 0.1, 1, 2), T0 + 50_000: page(20, 0.1, 2, 4),
        T0 + 70_000: page(25, 0.1, 3, 5), T0 + 85_000: page(30, 0.5, 4, 6), T0 + 115_000: page(40, 0.5, 5, 9),
        T0 + 175_000: page(50, 0.5, 6, 11),
    })  # fmt: skip
    edges = read(store, [T0 + minute * MINUTE for minute in range(4)])

    assert [of(edge, TOKENS)[2] for edge in edges] == [0, 10, 20, 30]
    assert [since(edge) for edge in edges] == [T0, T0, T0 + MINUTE, T0 + MINUTE]
    low, high = (Series("time_to_first_token_seconds_bucket", (("le", le),)) for le in ("0.5", "+Inf"))
    assert [of(edges[3], each)[2] for each in (low, high)] == [3, 6]


def test_an_outcome_that_appears_counts_from_zero(store: Store) -> None:
    """Its siblings were there without it."""
    fill(store, {T0: counted(1, ok=5), T0 + 30_000: counted(1, ok=6), T0 + 45_000: counted(1, ok=6, error=2)})
    _, edge = read(store, [T0, T0 + MINUTE])

    assert of(edge, ERROR) == (2, 2, 2, False)
    assert of(edge, OK)[2] == 1


def test_a_target_that_fails_ends_and_goes_on_when_it_is_back(store: Store) -> None:
    """After two and a half intervals its series end; what it counted meanwhile is a gain of the edge it is back at."""
    fill(store, {T0: counted(10), T0 + 15_000: {}, T0 + 30_000: {}, T0 + 45_000: {}, T0 + 110_000: counted(19)})
    edges = read(store, [T0, T0 + 30_000, T0 + 60_000, T0 + 90_000, T0 + 120_000])

    assert of(edges[1], TOKENS)[0] == 10
    value, _, _, ended = of(edges[2], TOKENS)
    assert np.isnan(value)
    assert ended
    assert edges[3].targets == ()
    assert of(edges[4], TOKENS) == (19, 9, 9, False)


def test_what_a_target_counted_before_it_left_is_not_lost(store: Store) -> None:
    """Its last gain and count are those of the edge at which it ends."""
    fill(store, {T0: counted(10, queued=4), T0 + 15_000: counted(12, queued=5), T0 + 20_000: {}})
    _, edge, after = read(store, [T0, T0 + MINUTE, T0 + 2 * MINUTE])

    value, *rest = of(edge, TOKENS)
    assert np.isnan(value)
    assert rest == [2, 2, True]
    assert after.targets == ()


def test_gauges_are_those_of_the_last_scrape(store: Store) -> None:
    """They end by themselves."""
    fill(store, {T0: counted(1, queued=4), T0 + 30_000: counted(1, queued=6), T0 + 90_000: counted(1)})
    first, second, third = read(store, [T0, T0 + MINUTE, T0 + 2 * MINUTE])

    assert of(first, QUEUED)[0] == 4
    assert of(second, QUEUED)[0::3] == (6, False)
    value, _, _, ended = of(third, QUEUED)
    assert np.isnan(value)
    assert ended


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(past=pasts().filter(lambda past: list(past) == sorted(past)))  # a clock set back is another story
def test_dividing_the_edges_changes_nothing(tmp_path_factory: pytest.TempPathFactory, past: dict[int, Page]) -> None:
    """Edges one by one, from the state of the one before, are those of one run; gains add up over longer intervals."""
    with Store(tmp_path_factory.mktemp("past") / "past.db") as store:
        fill(store, past)
        ends = (min(past) // MINUTE + 1) * MINUTE, (max(past) // MINUTE + 2) * MINUTE
        edges = range(ends[0], ends[1], MINUTE)
        reader = IntervalReader(store, [ENGINE.deployment()], METRICS, ())
        at_once = [edge for edge, _ in reader.read(None, edges)]
        state: FleetState | None = None
        for known in at_once:
            ((edge, state),) = IntervalReader(store, [ENGINE.deployment()], METRICS, ()).read(state, [known.time_ms])
            _compare(edge, known)
        for before, after in pairwise(at_once):
            _check_counts(before.targets, after)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(past=pasts().filter(lambda past: list(past) == sorted(past)))
def test_a_long_time_is_read_in_parts(tmp_path_factory: pytest.TempPathFactory, past: dict[int, Page]) -> None:
    """After an outage: the edge then has what each part gained, and what is there at its end."""
    with Store(tmp_path_factory.mktemp("past") / "past.db") as store, pytest.MonkeyPatch.context() as patch:
        fill(store, past)
        edges = range((min(past) // MINUTE + 1) * MINUTE, (max(past) // MINUTE + 3) * MINUTE, MINUTE)
        reader = IntervalReader(store, [ENGINE.deployment()], METRICS, ())
        ((first, began),) = reader.read_some(None, edges[:1])
        known, gained, state = first, dict[Series, float](), began
        for time_ms in edges[1:]:
            ((known, state),) = reader.read_some(state, [time_ms])
            for name, gain in _gains(known):
                gained[name] = gained.get(name, 0.0) + gain
        patch.setattr(reading, "READ_MS", MINUTE)
        ((edge, after),) = reader.read_some(began, edges[-1:])
        assert (edge.time_ms, edge.before_ms, after.boundary_ms) == (known.time_ms, first.time_ms, state.boundary_ms)
        assert {name: value for name, (value, *_) in _shown(edge).items() if value != "absent"} == {
            name: value for name, (value, *_) in _shown(known).items() if value != "absent"
        }
        assert dict(_gains(edge)).items() <= gained.items()
        assert not {name for name, gain in gained.items() if gain} - dict(_gains(edge)).keys()


def test_a_lane_goes_on_after_more_than_the_store_reads_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a fleet after a weekend; what was counted meanwhile is carried on."""
    hours = range(0, 8 * 3_600_000, 60_000)
    fill(store, {T0 - 5_000 + at_ms: counted(100 + at_ms / 1000) for at_ms in hours})
    monkeypatch.setattr(embedded, "MOST_NUMBERS", 200)
    reader = IntervalReader(store, [ENGINE.deployment()], METRICS, ())
    ((_, state),) = reader.read_some(None, [T0])
    ((edge, _),) = reader.read_some(state, [T0 + hours[-1]])
    assert of(edge, TOKENS)[1] == hours[-1] / 1000


def _gains(edge: IntervalSnapshot) -> Iterator[tuple[Series, float]]:
    """What each series gained, nothing where that is not known."""
    for target in edge.targets:
        yield from zip(target.series, np.nan_to_num(target.gains).tolist(), strict=True)


def _compare(edge: IntervalSnapshot, known: IntervalSnapshot) -> None:
    assert (edge.time_ms, edge.before_ms) == (known.time_ms, known.before_ms)
    assert _shown(edge) == _shown(known)


def _shown(edge: IntervalSnapshot) -> dict[Series, tuple[float | str, ...]]:
    """What an edge has of its series."""
    return {
        name: tuple("absent" if each != each else each for each in (value, gain, count, ended, target.since_ms))
        for target in edge.targets
        for name, value, gain, count, ended in zip(
            target.series,
            *map(np.ndarray.tolist, (target.values, target.gains, target.counted, target.ended)),
            strict=True,
        )
        if value == value or ended
    }


def _check_counts(before: Sequence[TargetInterval], after: IntervalSnapshot) -> None:
    """What a target counted rises by what it gained since its baseline, which is no earlier than before."""
    assert after.before_ms is not None
    was = {target.identity: target for target in before}
    for target in after.targets:
        former = was.get(target.identity)
        if former is None or target.since_ms != former.since_ms:
            assert former is None or target.since_ms == after.before_ms
            continue
        known = dict(zip(former.series, former.counted.tolist(), strict=True))
        for row, name in enumerate(target.series):
            if name in known and not np.isnan([known[name], target.counted[row]]).any():
                assert target.counted[row] == known[name] + np.nan_to_num(target.gains[row], nan=0.0), name


def test_replicas_with_the_same_series_share_them(store: Store) -> None:
    """In whatever lane: thousands of replicas have the names of their series in memory once."""
    for identity in (ENGINE, OTHER):
        fill(store, {T0 - 5_000: counted(10, ok=1)}, identity)
    of_one, of_another = read(store, [T0]), read(store, [T0])
    targets = [target for edge in (*of_one, *of_another) for target in edge.targets]

    assert len(targets) == 4
    assert len({id(target.series) for target in targets}) == 1


def test_fewer_edges_are_read_at_once_of_more_series(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of a past is held in memory until it is delivered."""
    fill(store, {T0 + minute * MINUTE - 5_000: counted(10 * minute, ok=minute) for minute in range(1, 31)})
    reader = IntervalReader(store, [ENGINE.deployment()], METRICS, ())
    ((_, state),) = reader.read_some(None, [T0 + MINUTE, T0 + 2 * MINUTE])
    edges = [T0 + minute * MINUTE for minute in range(2, 31)]
    assert [edge.time_ms for edge, _ in reader.read_some(state, edges)] == edges

    monkeypatch.setattr(reading, "_RUN_VALUES", 8)
    assert [edge.time_ms for edge, _ in reader.read_some(state, edges)] == edges[:4]
    assert [edge.time_ms for edge, _ in reader.read(state, edges)] == edges
