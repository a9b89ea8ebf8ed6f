"""The worlds that judges are tried in: what happens there is what they say, and v2 is as good as v1 in each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks._judge_requests import BLOCKS_PER_DAY, BLOCKS_PER_HOUR, EPOCH_MS, Floats, Requests, Weather
from benchmarks._judge_traffic import CLEAN, REPLICAS, Cutover, Harm, Past, Scene, World, draw_cutover, show, suffer
from benchmarks._judge_worlds import (
    CLUSTER,
    CLUSTERS_PER_REPLICA_DAY,
    MOVING_MINUTES,
    MOVING_PER_DAY,
    NEIGHBOUR_FACTORS,
    NEIGHBOURS_PER_REPLICA_DAY,
    OUTAGE_SHARES,
    WORLDS,
)
from servescope.increments.blocks import BLOCK_MS

SHARE = 0.25
V1_REPLICAS, V2_REPLICAS = REPLICAS[SHARE]
EQUAL = [name for name in WORLDS if not name.startswith(("cold-cache", "fresh"))]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "errors_wide"), [(3, 6.0), pytest.param(6, 3.0, marks=pytest.mark.proof)])
@pytest.mark.parametrize("name", EQUAL)
def test_equal_arms_are_equal_over_many_days(name: str, count: int, errors_wide: float) -> None:
    """The mean of v2 ÷ v1 over days is 1 to within some standard errors, of first tokens and of failures."""
    days = list(_days(WORLDS[name], count))
    ratios = np.array([_mean(each.v2) / _mean(each.v1) for each in days])
    errors = np.array([each.v2.failed.mean() - each.v1.failed.mean() for each in days])
    for found in (np.log(ratios), errors):
        assert abs(found.mean()) <= errors_wide * found.std(ddof=1) / np.sqrt(len(days))


def test_a_world_adds_to_the_same_requests() -> None:
    """Draws of a world's own leave those of the seed as they are: the same day with an outage, and without one."""
    plain, failing = (next(_days(WORLDS[name], 1)) for name in ("clean", "outage"))

    for one, other in ((plain.v1, failing.v1), (plain.v2, failing.v2)):
        assert (one.first_token == other.first_token).all()
        assert (one.failed <= other.failed).all()
        assert (one.failed != other.failed).any()


def test_few_requests_own_much_of_a_heavy_tail() -> None:
    """The slowest 2 % own two fifths of the sum, and a tenth where tails are light."""
    owned = {}
    for name in ("clean", "heavy-tails"):
        waits = np.sort(next(_days(WORLDS[name], 1)).v1.first_token)
        owned[name] = waits[-len(waits) // 50 :].sum() / waits.sum()

    assert owned["heavy-tails"] == pytest.approx(0.4, abs=0.05)
    assert owned["clean"] == pytest.approx(0.1, abs=0.03)


def test_bursts_are_of_both_arms() -> None:
    """Arrivals of a block differ from the last block's far more than by chance, and in both arms at once."""
    counts = {}
    for name in ("clean", "bursts"):
        cutover = next(_days(WORLDS[name], 1))
        counts[name] = np.array([_arrivals(arm) / _arrivals(arm).mean() for arm in (cutover.v1, cutover.v2)])

    plain, bursty = counts["clean"], counts["bursts"]
    assert np.diff(np.log(bursty)).std(axis=1).min() > 2.0 * np.diff(np.log(plain)).std(axis=1).max()
    assert np.corrcoef(np.diff(np.log(bursty)))[0, 1] > 0.5


def test_neighbours_slow_single_replicas_of_either_arm() -> None:
    """Some four episodes a day among twelve replicas, each of one replica, by as much as is stated, in v1's past as
    well.
    """
    episodes = dict.fromkeys(("v1", "v2", "past"), 0)
    slowest = []
    for seed in range(60):
        v1, v2 = _weather("neighbours", seed)
        past, _ = _weather("neighbours", seed, past=True)
        for arm, weather in (("v1", v1), ("v2", v2), ("past", past)):
            slower = np.asarray(weather.slower)
            episodes[arm] += int(((slower[:, 1:] > 0.0) & (slower[:, :-1] == 0.0)).sum())
            slowest += list(slower[slower > 0.0])

    for arm, replicas in (("v1", V1_REPLICAS), ("v2", V2_REPLICAS), ("past", V1_REPLICAS + V2_REPLICAS)):
        assert episodes[arm] / 60 == pytest.approx(NEIGHBOURS_PER_REPLICA_DAY * replicas, rel=0.25)
    assert np.exp(min(slowest)) >= NEIGHBOUR_FACTORS[0]
    assert np.median(np.exp(slowest)) == pytest.approx(np.sqrt(np.prod(NEIGHBOUR_FACTORS)), rel=0.1)


def test_neighbours_that_move_slow_one_replica_of_an_arm_after_the_other() -> None:
    """One of v2's three at a time for a twentieth of the day, v1's as often each, and all of them in their turn."""
    v1, v2 = (
        np.array([np.asarray(_weather("moving-neighbours", seed)[arm].slower) > 0.0 for seed in range(60)])
        for arm in (0, 1)
    )

    assert v2.mean() == pytest.approx(v1.mean(), rel=0.25)
    assert v2.any(axis=1).mean() == pytest.approx(MOVING_PER_DAY * sum(MOVING_MINUTES) / 2 / 1440, rel=0.25)
    assert (v2.sum(axis=1) > 1).mean() <= 0.01
    assert np.asarray(v2.any(axis=2)).all(axis=1).mean() > 0.5


def test_errors_come_fifty_at_a_time() -> None:
    """So many failures of one replica and block, beside the usual ones; over days as many in each arm as is stated."""
    clusters, replica_days = 0, 0
    for seed in range(60):
        for weather, replicas in zip(_weather("clustered-errors", seed), (V1_REPLICAS, V2_REPLICAS), strict=True):
            assert weather.clusters is not None
            assert set(np.unique(weather.clusters)) <= {0, CLUSTER, 2 * CLUSTER}
            clusters, replica_days = clusters + int(weather.clusters.sum()) // CLUSTER, replica_days + replicas
    assert clusters / replica_days == pytest.approx(CLUSTERS_PER_REPLICA_DAY, rel=0.2)

    failed = _by_block(next(_days(WORLDS["clustered-errors"], 1)).v1)
    plain = _by_block(next(_days(CLEAN, 1)).v1)
    assert failed.var() / failed.mean() > 5.0
    assert plain.var() / plain.mean() == pytest.approx(1.2, abs=0.3)


def test_an_outage_is_of_both_arms_and_of_no_past() -> None:
    """The same share of both arms' requests fails in the same half hour of the stage; before it nothing does."""
    cutover = next(_days(WORLDS["outage"], 1))

    shares = [_by_block(arm) / _arrivals(arm) for arm in (cutover.v1, cutover.v2)]
    down = [set(np.flatnonzero(each > 0.2)) for each in shares]
    assert down[0] == down[1]
    assert 2 <= len(down[0]) <= 6
    assert min(down[0]) > 24
    assert OUTAGE_SHARES[0] - 0.1 <= shares[1][min(down[0])] <= OUTAGE_SHARES[1]
    assert not np.any(_weather("outage", 1, past=True)[0].failing)


def test_storms_bring_load_with_their_errors() -> None:
    """Where requests fail, more of them come, in both arms at once."""
    for seed in range(20):
        v1, v2 = _weather("storms", seed)
        failing, demand = np.asarray(v2.failing)[0], np.asarray(v2.demand)
        assert ((failing > 0.0) == (demand > 1.0)).all()
        assert (np.asarray(v1.demand) == demand).all()


def test_tenants_are_wholly_on_one_arm() -> None:
    """In each block a tenant's requests are on one arm; some move in a day, and v2 has its share over days."""
    shares = []
    for seed in range(20):
        both = [weather.tenants for weather in _weather("tenants", seed)]
        present = []
        for each in both:
            assert each is not None
            present.append(np.diff(each.shares, axis=1, prepend=0.0) > 1e-12)
        assert not (present[0] & present[1]).any()
        assert (present[1].any(axis=0) & present[0].any(axis=0)).any()
        shares.append(float(np.mean(_weather("tenants", seed)[1].demand)) * SHARE)
    assert np.mean(shares) == pytest.approx(SHARE, rel=0.1)


@pytest.mark.slow
def test_reuse_explains_how_arms_differ_and_length_does_not() -> None:
    """Of the variance between the arms' blocks, reuse leaves half and the prompts' lengths nearly all."""
    left = []
    for cutover in _days(WORLDS["sessions"], 6, pasts=6):
        (seconds1, reuse1, prompts1), (seconds2, reuse2, prompts2) = map(_explaining, (cutover.v1, cutover.v2))
        effect = np.log(seconds2 / seconds1)
        left.append([_unexplained(effect, each) for each in (reuse2 - reuse1, prompts2 - prompts1)])
    by_reuse, by_length = np.mean(left, axis=0)
    assert by_reuse == pytest.approx(0.5, abs=0.1)
    assert by_length > 0.9


@pytest.mark.parametrize("minutes", [100, 130, 180])
def test_a_cold_cache_fills_while_it_is_slow(minutes: int) -> None:
    """v2 runs for so long without a request, is then half as slow again, and like v1 when its cache is full."""
    cutover = next(_days(WORLDS[f"cold-cache-{minutes}"], 1))
    lead = int(np.searchsorted(cutover.v2.blocks, cutover.stage_ms))

    assert _arrivals(cutover.v2)[:lead].sum() == 0
    assert {each.started_ms[0] for each in show(cutover).targets if each.target_id.endswith("/v2-0")} <= {
        cutover.stage_ms - minutes * 60_000
    }
    (seconds1, reuse1, _), (seconds2, reuse2, _) = map(_explaining, (cutover.v1, cutover.v2))
    hour = slice(lead + BLOCKS_PER_HOUR, lead + 3 * BLOCKS_PER_HOUR)
    assert seconds2[lead] / seconds1[lead] > 1.4
    assert np.median(seconds2[hour] / seconds1[hour]) == pytest.approx(1.0, abs=0.12)
    assert reuse2[lead] < 0.4 * reuse1[lead]
    assert np.median(reuse2[hour]) == pytest.approx(np.median(reuse1[hour]), rel=0.1)


def test_replicas_come_and_go_with_the_load() -> None:
    """More of them at the peak than in the night, requests only at those that run, each fresh one slower at first."""
    cutover = next(_days(WORLDS["autoscaled"], 1))
    for arm in (cutover.v1, cutover.v2):
        lives = arm.lives
        assert lives is not None
        assert lives.alive[arm.replica, arm.block].all()
        running = lives.alive.sum(axis=0)
        assert running.max() >= 1.5 * running.min()
        assert np.corrcoef(running, _arrivals(arm))[0, 1] > 0.8
        fresh = lives.started_ms > arm.blocks[0]
        assert fresh.any()
        first = lives.alive.argmax(axis=1)[fresh]
        assert (np.asarray(_weather("autoscaled", 0)[0].slower) >= 0.0).all()
        assert (lives.started_ms[fresh] == arm.blocks[first]).all()


@pytest.mark.slow
def test_a_harm_is_added_to_what_happens() -> None:
    """Clusters stay when errors are multiplied, and every first token is slower by the size, reused or not."""
    cutover = next(_days(WORLDS["clustered-errors"], 1))
    erring = suffer(cutover, Harm("errors", 4.0))
    assert (cutover.v2.failed <= erring.failed).all()
    assert erring.failed.mean() - cutover.v2.failed.mean() == pytest.approx(0.008, rel=0.15)

    sessions = next(_days(WORLDS["sessions"], 1))
    slower = suffer(sessions, Harm("mean", 0.2))
    begun = sessions.v2.blocks[sessions.v2.block] >= sessions.stage_ms
    assert (slower.first_token / sessions.v2.first_token)[begun] == pytest.approx(1.2)


def _days(world: World, count: int, *, pasts: int = 1) -> Iterator[Cutover]:
    for seed in range(pasts):
        # Nothing is judged here, so nobody needs the requests of v1's past.
        past = Past((), np.zeros(V1_REPLICAS), world.setting, SHARE, EPOCH_MS + seed * BLOCK_MS, world)
        yield from (draw_cutover(past, day) for day in range(count // pasts))


def _weather(name: str, seed: int, *, past: bool = False) -> tuple[Weather, Weather]:
    """A day of a world's weather, or a day before v2 had a replica."""
    blocks = EPOCH_MS + BLOCK_MS * np.arange(BLOCKS_PER_DAY, dtype=np.int64)
    replicas = (V1_REPLICAS + V2_REPLICAS, 0) if past else (V1_REPLICAS, V2_REPLICAS)
    world = WORLDS[name]
    rng = np.random.Generator(np.random.SFC64([6, seed, past]))
    return world.weather(rng, Scene(world.setting, blocks, BLOCKS_PER_DAY if past else 24, SHARE, replicas))


def _mean(arm: Requests) -> float:
    # What no law of large numbers holds for is compared by its middle.
    return float(np.exp(np.log(arm.first_token[~arm.failed]).mean()))


def _arrivals(arm: Requests) -> Floats:
    return np.bincount(arm.block, minlength=len(arm.blocks)).astype(np.float64)


def _by_block(arm: Requests) -> Floats:
    return np.bincount(arm.block, arm.failed, minlength=len(arm.blocks)).astype(np.float64)


def _explaining(arm: Requests) -> tuple[Floats, Floats, Floats]:
    """By block the mean seconds to the first token, the share of prompt tokens reused, the mean of ln prompt tokens."""
    assert arm.reused is not None
    count, seconds, tokens, reused, logarithms = (
        np.bincount(arm.block, each, minlength=len(arm.blocks))
        for each in (np.ones(len(arm.block)), arm.first_token, arm.prompt, arm.reused, np.log(arm.prompt))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return seconds / count, reused / tokens, logarithms / count


def _unexplained(effect: Floats, by: Floats) -> float:
    """The share of the variance that a line leaves."""
    return 1.0 - float(np.corrcoef(effect, by)[0, 1]) ** 2
