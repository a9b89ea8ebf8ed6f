"""Events that arrive together: clusters count once, in both arms, and independent events as much as ever."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.contract.judged import JUDGED
from servescope.cutover.comparison.clusters import cluster, incidents, pairs_in
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.comparison.paths import ArmSums, Levels, MetricPath, events_path
from servescope.cutover.evidence.folding import ReplicaSums
from servescope.cutover.plan.files import preset_metrics
from servescope.cutover.plan.plan import FrozenPlan, Noise
from servescope.cutover.statistics.counts import log_evidence_above
from servescope.cutover.statistics.sequences import Floats
from tests.support.cutover_evidence import Story, evidence_of, plan_of
from tests.support.drawing import examples, trials

ERRORS = next(each for each in preset_metrics() if each.name == "request_error_share")
NOISE = Noise(0.0, 0.0, 0.0, 8.0, 576, calibrated=True)
LEVELS = Levels(harm=0.05, weight=1.0, low=0.05 / 6, high=0.04)
_FAMILY = sum(JUDGED[each.name].part for each in preset_metrics() if each.required)
NEEDED = -math.log(0.05 * JUDGED["request_error_share"].part / _FAMILY)
"""What evidence of errors has to reach, as Holm's correction asks of the first of the required metrics."""

Draw = tuple[ReplicaSums, ReplicaSums]

counted = hnp.arrays(np.float64, (3, 12), elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.0, 8.0, 50.0]))
served = hnp.arrays(np.float64, (3, 12), elements=st.integers(60, 300).map(float))


def drawn(
    random: np.random.Generator, replicas: tuple[int, int], rates: tuple[float, float] = (0.002, 0.002), *,
    size: int = 1, blocks: int = 288,
) -> Draw:  # fmt: skip
    """Both arms with 125 requests to each replica and block, which fail so often, so many at once."""
    arms = []
    for count, rate in zip(replicas, rates, strict=True):
        requests = random.poisson(125.0, (count, blocks)).astype(float)
        events = size * random.poisson(requests * rate / size)
        arms.append(ReplicaSums(np.minimum(events, requests).astype(float), requests))
    return arms[0], arms[1]


def path_of(arms: Draw, noise: Noise = NOISE) -> MetricPath:
    """The path of errors, with nothing known of the past unless the noise does."""
    v1, v2 = (ArmSums(each.above, each.below) for each in arms)
    return events_path(ERRORS, noise, v1, v2, LEVELS)


def found(arms: Draw, noise: Noise = NOISE) -> float:
    """The blocks until harm is proven."""
    harmful = path_of(arms, noise).harm >= NEEDED
    return float(np.argmax(harmful) + 1) if harmful.any() else math.inf


def test_of_a_replica_that_fails_unlike_its_neighbours_one_event_counts() -> None:
    """Once for as long as that goes on; where all replicas fail, where there is no other, and of few
    events all count.
    """
    events = np.array(
        [[0.0, 50.0, 50.0, 0.0, 30.0, 4.0], [1.0, 0.0, 1.0, 0.0, 35.0, 0.0], [0.0, 0.0, 0.0, 2.0, 28.0, 0.0]]
    )
    requests = np.full(events.shape, 100.0)
    kept = incidents(events, requests)

    assert kept[:, :3].tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    np.testing.assert_array_equal(kept[:, 3:], events[:, 3:])
    np.testing.assert_array_equal(incidents(events[:1], requests[:1]), events[:1])


@pytest.mark.slow
@trials("days", 24, 120)
@pytest.mark.parametrize(("replicas", "size"), [((9, 3), 50), ((6, 6), 50), ((9, 3), 20), ((6, 6), 5)])
def test_clusters_are_no_harm_though_none_was_seen_before(replicas: tuple[int, int], size: int, days: int) -> None:
    """Of days with errors that come so many at a time, at most one in twenty but for chance."""
    random = np.random.default_rng(size)
    alarms = [found(drawn(random, replicas, size=size)) < math.inf for _ in range(days)]

    assert sum(alarms) <= days // 12


@pytest.mark.slow
@trials("days", 24, 120)
@pytest.mark.parametrize("size", [10, 20])
def test_a_cluster_of_a_whole_arm_is_no_harm_though_errors_are_rare(size: int, days: int) -> None:
    """So many at once, spread over all replicas of either arm, where hardly anything else fails: of days, as above."""
    random = np.random.default_rng(size)
    alarms = 0
    for _ in range(days):
        arms = drawn(random, (9, 3), (0.0001, 0.0001))
        for arm, daily in zip(arms, (3.0, 1.0), strict=True):
            for block in np.flatnonzero(random.random(288) < daily / 288):
                arm.above[:, block] += random.multinomial(size, np.full(len(arm.above), 1 / len(arm.above)))
        alarms += found(arms) < math.inf

    assert alarms <= days // 12


@pytest.mark.slow
def test_independent_errors_are_found_as_soon_as_without_clusters() -> None:
    """Ten times as many in five minutes or ten, five times as many within a quarter of an hour, on most days."""
    random = np.random.default_rng(4)

    assert np.median([found(drawn(random, (9, 3), (0.002, 0.02), blocks=24)) for _ in range(60)]) <= 2
    assert np.median([found(drawn(random, (9, 3), (0.002, 0.01), blocks=48)) for _ in range(60)]) <= 3


@pytest.mark.slow
def test_a_past_of_many_errors_shows_that_they_do_not_come_together() -> None:
    """After two days of them ten times as many are found at once; after two days without any a cluster may be new."""
    random = np.random.default_rng(8)
    pairs = pairs_in(drawn(random, (12, 0), blocks=576)[0])
    known, unknown = (replace(NOISE, pairs=each) for each in (pairs, ()))
    days = [drawn(random, (9, 3), (0.002, 0.02), blocks=24) for _ in range(60)]

    assert np.mean([found(day, known) for day in days]) < np.mean([found(day, unknown) for day in days])
    assert pairs_in(drawn(random, (12, 0), (0.0, 0.0), blocks=576)[0]) == ()


def test_a_plan_without_pairs_keeps_its_hash() -> None:
    """The key is there where the past had errors, is read again, and is missing where it had none."""
    frozen = freeze(plan_of(), evidence_of(Story(past_hours=26, hours=1)), Story(past_hours=26, hours=1).started_ms)
    bare = replace(frozen, noise={name: replace(each, pairs=()) for name, each in frozen.noise.items()})

    assert frozen.noise[ERRORS.name].pairs
    assert FrozenPlan.from_json(json.loads(json.dumps(frozen.to_json()))).hash() == frozen.hash() != bare.hash()
    assert "pairs" not in json.dumps(bare.to_json())
    assert FrozenPlan.from_json(bare.to_json()).hash() == bare.hash()


def test_five_times_as_many_clusters_are_found() -> None:
    """Within a day on most days, as there are a few clusters an hour and not hundreds of errors."""
    random = np.random.default_rng(5)
    days = [found(drawn(random, (6, 6), (0.002, 0.01), size=50)) for _ in range(20)]

    assert np.median(days) <= 144


@pytest.mark.slow
@trials("days", 60, 400)
def test_the_evidence_of_equal_stacks_is_small(days: int) -> None:
    """Its mean is one at most but for chance, as that of an e-value, of independent events and of clusters."""
    random = np.random.default_rng(6)
    for size in (1, 50):
        values = [math.exp(path_of(drawn(random, (4, 4), size=size, blocks=24)).harm[-1]) for _ in range(days)]
        assert np.mean(np.minimum(values, 100.0)) <= 1.3


@pytest.mark.slow
@given(counted, served, counted, served, st.integers(1, 11))
@settings(max_examples=examples(60))
def test_what_a_block_proves_follows_from_it_and_those_before(
    e1: Floats, n1: Floats, e2: Floats, n2: Floats, blocks: int
) -> None:
    """However many follow; and the dispersion of a block is the same whatever happens to be v2's in it."""
    arms = ReplicaSums(e1, n1), ReplicaSums(e2, n2)
    first = ReplicaSums(e1[:, :blocks], n1[:, :blocks]), ReplicaSums(e2[:, :blocks], n2[:, :blocks])
    whole, part = path_of(arms), path_of(first)

    for name in ("bounded", "flood"):
        np.testing.assert_array_equal(getattr(whole, name)[:blocks], getattr(part, name))
    for name in ("harm", "low", "high"):
        np.testing.assert_allclose(getattr(whole, name)[:blocks], getattr(part, name), rtol=1e-12, atol=1e-12)
    assert (cluster(*arms, 1.0).dispersion >= 1.0).all()


@given(counted, served, counted, served)
@settings(max_examples=examples(60))
def test_the_interval_contains_what_was_counted(e1: Floats, n1: Floats, e2: Floats, n2: Floats) -> None:
    """It is never reversed, and nothing is proven below the margin while more than that was counted."""
    path = path_of((ReplicaSums(e1, n1), ReplicaSums(e2, n2)))
    known = np.isfinite(path.cost)

    assert (path.low <= path.high).all()
    assert ((path.low <= path.cost) & (path.cost <= path.high))[known].all()
    material = np.cumsum(e2.sum(axis=0)) / np.cumsum(n2.sum(axis=0)) >= 0.001
    assert not (path.bounded & known & material & (path.cost >= math.log(2.0))).any()


def test_rare_events_are_not_proven_rare_where_they_come_together() -> None:
    """v1 has clusters, and v2 had none so far: that may be luck; without clusters it is proof."""
    random = np.random.default_rng(7)
    v1, v2 = drawn(random, (9, 3), (0.004, 0.0), size=50, blocks=72)
    calm = ReplicaSums(np.zeros_like(v1.above), v1.below)

    assert path_of((calm, v2)).bounded[-1]
    assert not path_of((v1, v2)).bounded[-1]


def test_past_dispersion_still_counts() -> None:
    """What v1's past has shown of bursts takes its part of the evidence, as far as a block has that many events."""
    random = np.random.default_rng(8)
    arms = drawn(random, (9, 3), (0.01, 0.03), blocks=12)
    plain, wide = (cluster(*arms, past) for past in (1.0, 5.0))

    assert (wide.dispersion >= plain.dispersion).all()
    assert (wide.dispersion <= np.maximum(1.0, wide.events.v1_events + wide.events.v2_events)).all()
    evidence = [log_evidence_above(each.events, 1.0, dispersion=each.dispersion)[-1] for each in (plain, wide)]
    assert evidence[1] < 0.5 * evidence[0]
