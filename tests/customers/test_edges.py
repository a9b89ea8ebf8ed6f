"""What a lane reads of the store at its edges: totals, gains, starts and ends, however the edges are divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Series, Snapshot, make_labels
from servescope.customers import reading
from servescope.customers.edges import FleetEdge, TargetEdge
from servescope.customers.reading import EdgeReader, FleetState
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.support.scraped_pasts import ERROR, OK, QUEUED, START, T0, TOKENS, Page, pasts

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


def read(store: Store, edges: Sequence[int], state: FleetState | None = None) -> list[FleetEdge]:
    reader = EdgeReader(store, [ENGINE.deployment()], METRICS, ())
    return [edge for edge, _ in reader.read(state, edges)]


def of(edge: FleetEdge, series: Series, identity: Identity = ENGINE) -> tuple[float, float, int, bool]:
    """Value, gain, start and end of a series at an edge."""
    (target,) = (target for target in edge.targets if target.identity == identity)
    row = target.series.index(series)
    return tuple(part[row].item() for part in (target.values, target.gains, target.starts_ms, target.ended))


def test_an_edge_has_the_last_scrape_before_it_and_what_was_gained_since_the_edge_before(store: Store) -> None:
    """Scrapes after an edge belong to the next one."""
    fill(
        store, {T0 - 5_000: counted(10, T0 - 100_000), T0 + 55_000: counted(25, T0 - 100_000), T0 + 61_000: counted(40)}
    )
    first, second = read(store, [T0, T0 + MINUTE])

    value, gain, start, ended = of(first, TOKENS)
    assert (value, start, ended) == (10, T0 - 100_000, False)
    assert np.isnan(gain)  # a lane begins there
    assert of(second, TOKENS) == (25, 15, T0 - 100_000, False)


def test_a_restart_between_two_edges_loses_nothing(store: Store) -> None:
    """The gain has what was counted before and after, and the state before the restart is a point of its own."""
    born, again = T0 - 100_000, T0 + 35_000
    fill(store, {
        T0: counted(10, born), T0 + 15_000: counted(12, born), T0 + 30_000: counted(15, born),
        T0 + 45_000: counted(3, again), T0 + 60_000: counted(4, again),
    })  # fmt: skip
    _, edge = read(store, [T0, T0 + MINUTE])

    assert of(edge, TOKENS) == (4, 5 + 4, again, False)
    (reset,) = edge.targets[0].resets
    row = edge.targets[0].series.index(TOKENS)
    assert (reset.time_ms, reset.values[row], reset.starts_ms[row]) == (T0 + 30_000, 15, born)


def test_a_restart_that_the_edge_before_showed_has_no_point_of_its_own(store: Store) -> None:
    """What began anew counts since that edge, so that no two points overlap."""
    fill(store, {T0 - 1_000: counted(10, T0 - 90_000), T0 + 14_000: counted(3, T0 - 500)})
    _, edge = read(store, [T0, T0 + MINUTE // 2])

    assert of(edge, TOKENS) == (3, 3, T0, False)
    assert edge.targets[0].resets == ()


def test_without_a_start_time_a_counter_that_fell_counts_since_the_scrape_before(store: Store) -> None:
    """The first sight of it is its baseline."""
    fill(store, {T0: counted(10), T0 + 30_000: counted(15), T0 + 45_000: counted(3)})
    first, edge = read(store, [T0, T0 + MINUTE])

    assert of(first, TOKENS)[2] == T0
    assert of(edge, TOKENS) == (3, 5 + 3, T0 + 30_000, False)


def test_a_replica_that_joins_counts_from_its_start(store: Store) -> None:
    """An edge without it was there before, so that all it counted is a gain, if it says when it began."""
    fill(store, {T0: counted(10), T0 + 60_000: counted(10)})
    fill(store, {T0 + 50_000: counted(7, T0 + 20_000)}, OTHER)
    _, edge = read(store, [T0, T0 + MINUTE])

    assert of(edge, TOKENS, OTHER) == (7, 7, T0 + 20_000, False)


def test_an_outcome_that_appears_counts_from_zero(store: Store) -> None:
    """Its siblings were there without it."""
    fill(store, {T0: counted(1, ok=5), T0 + 30_000: counted(1, ok=6), T0 + 45_000: counted(1, ok=6, error=2)})
    _, edge = read(store, [T0, T0 + MINUTE])

    assert of(edge, ERROR) == (2, 2, T0 + 30_000, False)


def test_a_target_that_fails_ends_and_goes_on_when_it_is_back(store: Store) -> None:
    """After two and a half intervals its series end; what it counted meanwhile is a gain of the edge it is back at."""
    fill(store, {T0: counted(10), T0 + 15_000: {}, T0 + 30_000: {}, T0 + 45_000: {}, T0 + 110_000: counted(19)})
    edges = read(store, [T0, T0 + 30_000, T0 + 60_000, T0 + 90_000, T0 + 120_000])

    assert of(edges[1], TOKENS)[0] == 10
    value, _, _, ended = of(edges[2], TOKENS)
    assert np.isnan(value)
    assert ended
    assert edges[3].targets == ()
    assert of(edges[4], TOKENS) == (19, 9, T0, False)


def test_what_a_target_counted_before_it_left_is_not_lost(store: Store) -> None:
    """Its last counts have a point of their own, at their scrape, unless the edge before had shown them."""
    fill(store, {T0: counted(10, queued=4), T0 + 15_000: counted(12, queued=5), T0 + 20_000: {}})
    _, edge, after = read(store, [T0, T0 + MINUTE, T0 + 2 * MINUTE])

    value, gain, _, ended = of(edge, TOKENS)
    assert np.isnan(value)
    assert (gain, ended) == (2, True)
    (last,) = edge.targets[0].resets
    assert (last.time_ms, last.values[edge.targets[0].series.index(TOKENS)]) == (T0 + 15_000, 12)
    assert np.isnan(last.values[edge.targets[0].series.index(QUEUED)])
    assert after.targets == ()


def test_gauges_are_those_of_the_last_scrape(store: Store) -> None:
    """They have no start, and end by themselves."""
    fill(store, {T0: counted(1, queued=4), T0 + 30_000: counted(1, queued=6), T0 + 90_000: counted(1)})
    first, second, third = read(store, [T0, T0 + MINUTE, T0 + 2 * MINUTE])

    assert of(first, QUEUED)[0] == 4
    assert of(second, QUEUED)[2:] == (0, False)
    value, _, _, ended = of(third, QUEUED)
    assert np.isnan(value)
    assert ended


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(past=pasts().filter(lambda past: list(past) == sorted(past)))  # a clock set back is another story
def test_dividing_the_edges_changes_nothing(tmp_path_factory: pytest.TempPathFactory, past: dict[int, Page]) -> None:
    """Edges one by one, from the state of the one before, are those of one run; gains add up over longer intervals."""
    with Store(tmp_path_factory.mktemp("past") / "past.db") as store:
        fill(store, past)
        ends = (min(past) // MINUTE + 1) * MINUTE, (max(past) // MINUTE + 2) * MINUTE
        edges = range(ends[0], ends[1], MINUTE)
        reader = EdgeReader(store, [ENGINE.deployment()], METRICS, ())
        at_once = [edge for edge, _ in reader.read(None, edges)]
        state: FleetState | None = None
        for known in at_once:
            ((edge, state),) = EdgeReader(store, [ENGINE.deployment()], METRICS, ()).read(state, [known.time_ms])
            _compare(edge, known)
        for before, after in pairwise(at_once):
            _check_starts(before.targets, after)


def _compare(edge: FleetEdge, known: FleetEdge) -> None:
    assert (edge.time_ms, edge.before_ms) == (known.time_ms, known.before_ms)
    assert _shown(edge) == _shown(known)


def _shown(edge: FleetEdge) -> dict[Series, tuple[float | str, ...]]:
    """What an edge has of its series, apart from when those began to count that are not there all the time."""
    return {
        name: tuple("absent" if each != each else each for each in (value, gain, ended))
        for target in edge.targets
        for name, value, gain, ended in zip(
            target.series, target.values.tolist(), target.gains.tolist(), target.ended.tolist(), strict=True
        )
        if value == value or ended
    }


def _check_starts(before: Sequence[TargetEdge], after: FleetEdge) -> None:
    """A counter that goes on has its start; another begins where the points before it ended."""
    assert after.before_ms is not None
    was = {(target.identity, name): row for target in before for row, name in enumerate(target.series)}
    for target in after.targets:
        for row, name in enumerate(target.series):
            if np.isnan(target.values[row]) or not target.starts_ms[row] or (target.identity, name) not in was:
                continue
            former = next(one for one in before if one.identity == target.identity)
            place = was[target.identity, name]
            if np.isnan(former.values[place]):
                continue
            assert target.starts_ms[row] == former.starts_ms[place] or target.starts_ms[row] >= after.before_ms, name


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
    reader = EdgeReader(store, [ENGINE.deployment()], METRICS, ())
    ((_, state),) = reader.read_some(None, [T0 + MINUTE, T0 + 2 * MINUTE])
    edges = [T0 + minute * MINUTE for minute in range(2, 31)]
    assert [edge.time_ms for edge, _ in reader.read_some(state, edges)] == edges

    monkeypatch.setattr(reading, "_RUN_VALUES", 8)
    assert [edge.time_ms for edge, _ in reader.read_some(state, edges)] == edges[:4]
    assert [edge.time_ms for edge, _ in reader.read(state, edges)] == edges
