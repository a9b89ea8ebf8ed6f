"""Warm-up: when a replica is declared warm, when it may be compared, and what the cold start cost."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.contract.increments import BLOCK_MS
from servescope.cutover.folding import fold
from servescope.cutover.sequences import Floats
from servescope.cutover.warming import Timed, warm_mean_of, warm_pods
from servescope.cutover.warmth import MOST_SECONDS, cold_start_cost, is_flat, is_settled, lives, warmth
from tests.support.cutover_evidence import START_MS, Story, evidence_of, plan_of

BLOCKS = 160
AGES: Floats = np.arange(1, BLOCKS + 1, dtype=np.float64) * np.float64(300.0)
NO_RATES = np.full(BLOCKS, np.nan)


def _cold(minutes: float, *, seed: int = 1, size: float = 0.8) -> Floats:
    time = np.arange(BLOCKS) * 5.0
    noise = np.random.default_rng(seed).normal(size=BLOCKS) * 0.05
    return np.asarray(size * np.exp(-time / max(minutes, 1e-9)) + noise, dtype=np.float64)


@pytest.mark.parametrize("minutes", [10.0, 20.0, 60.0])
def test_a_decaying_start_is_over_when_the_comparison_begins(minutes: float) -> None:
    """What is left of a start that was 80 % slower is less than 6 % in the first block that is compared."""
    for seed in range(30):
        found = warmth(AGES, np.full(BLOCKS, 30.0), NO_RATES, [_cold(minutes, seed=seed)])
        assert found.declared is not None
        assert found.usable_from is not None
        assert found.usable_from > min(2 * found.declared, MOST_SECONDS / 300 - 1)
        assert 0.8 * math.exp(-found.usable_from * 5.0 / minutes) < 0.06


def test_a_replica_that_started_warm_waits_for_the_least_evidence_only() -> None:
    """It is declared within the hour, and compared after the same time again."""
    found = warmth(AGES, np.full(BLOCKS, 30.0), NO_RATES, [_cold(0.0, size=0.0)])
    assert found.declared is not None
    assert found.declared <= 12
    assert found.seconds == (found.declared + 1) * 300.0


def test_a_replica_that_was_old_at_first_sight_is_warm() -> None:
    """From the first block on."""
    found = warmth(AGES + np.float64(7200.0), np.full(BLOCKS, 30.0), NO_RATES, [_cold(0.0)])
    assert (found.declared, found.usable_from) == (0, 0)


def test_an_idle_replica_never_becomes_warm() -> None:
    """Without requests there is no declaration, however old it grows."""
    nothing = np.full(BLOCKS, np.nan)
    assert warmth(AGES, np.zeros(BLOCKS), NO_RATES, [nothing]).declared is None


def test_a_rising_hit_rate_delays_the_declaration() -> None:
    """Until it is flat for half an hour."""
    rising = np.minimum(0.6, np.arange(BLOCKS) * 0.02)
    found = warmth(AGES, np.full(BLOCKS, 30.0), rising, [_cold(0.0, size=0.0)])
    assert found.declared is not None
    assert found.declared >= 30
    assert is_flat(np.full(6, 0.4))
    assert is_flat(NO_RATES)
    assert not is_flat(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    assert not is_flat(np.array([0.4, 0.4]))


@given(hnp.arrays(np.float64, 40, elements=st.floats(-1, 1)), st.integers(1, 40))
def test_later_blocks_never_change_a_declaration(effects: Floats, length: int) -> None:
    """What was declared at some block is declared there from a shorter past, too."""
    requests, rates = np.full(40, 30.0), np.full(40, np.nan)
    whole = warmth(AGES[:40], requests, rates, [effects])
    part = warmth(AGES[:length], requests[:length], rates[:length], [effects[:length]])
    if whole.declared is not None and whole.declared < length:
        assert part.declared == whole.declared
    else:
        assert part.declared is None


def test_a_restart_begins_a_new_life() -> None:
    """A fall of the age at a block's end."""
    assert lives(np.array([300.0, 600.0, 120.0, 420.0])) == [(0, 2), (2, 4)]
    assert lives(AGES) == [(0, BLOCKS)]


def test_a_step_that_has_just_ended_is_not_settled() -> None:
    """The cut lies in the later half."""
    assert not is_settled(np.r_[np.full(12, 0.8), np.full(5, 0.0)] + 0.01 * np.sin(np.arange(17)))
    assert is_settled(np.r_[np.full(4, 0.8), np.full(24, 0.0)] + 0.01 * np.sin(np.arange(28)))


def test_the_cost_is_the_excess_over_warm_requests() -> None:
    """In the metric's unit times requests; blocks that nothing warm is known of are left out."""
    cost = cold_start_cost(np.array([10.0, 20.0, 5.0]), np.array([12.0, 12.0, 9.0]), np.array([0.5, 0.5, np.nan]))
    assert (cost.requests, cost.excess) == (30.0, 9.0)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_restart_ends_no_earlier_comparison(is_known: bool) -> None:
    """Whether or not a source shows when its process began: what was warm before stays so, and it has to warm anew."""
    story, restart = Story(past_hours=8, hours=1), 40
    targets = list(evidence_of(story).targets)
    begun = np.where(targets[1].blocks >= START_MS + restart * BLOCK_MS, START_MS + restart * BLOCK_MS, 0.0)
    targets[1] = replace(
        targets[1], started_ms=begun if is_known else np.full(begun.size, np.nan),
        tallies=replace(targets[1].tallies, resets=(np.arange(begun.size) == restart).astype(np.int64)),
    )  # fmt: skip
    arm = fold(plan_of(), targets, START_MS, story.end_ms).v1
    timed = arm.metrics["time_to_first_token_seconds"]
    mean = warm_mean_of(timed)
    found = warm_pods(arm, [Timed(timed, mean, mean)], np.full(mean.size, 100.0))

    assert found.usable[1, restart - 1]
    assert not found.usable[1, restart]
    assert found.rearmed[restart]
    assert found.usable[1, -1]
