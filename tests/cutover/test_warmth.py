"""Warm-up: when a replica is declared warm, when it may be compared, and what the cold start cost."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.contract.samples import Series
from servescope.cutover.conditions.replica_warmth import ArmWarmth, Timed, warm_mean_of, warm_replicas
from servescope.cutover.conditions.warmth import (
    MOST_SECONDS,
    cold_start_cost,
    collapses,
    is_flat,
    is_settled,
    lives,
    overdue,
    warm_up_seconds,
    warmth,
)
from servescope.cutover.evidence.folding import ArmFold, fold
from servescope.cutover.statistics.sequences import Floats
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from tests.support.cutover_evidence import START_MS, Side, Story, evidence_of, plan_of, slowed

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


# --- What a replica served --------------------------------------------------------------------------------------------

STORY = Story(past_hours=10, hours=1, v1=Side(replicas=4))
TIMED = "time_to_first_token_seconds"


def _arm(change: Callable[[TargetIncrements], TargetIncrements], *, requests_per_minute: float = 600.0) -> ArmFold:
    """Ten hours of four replicas that are old and serve, of which the second is changed."""
    targets = list(evidence_of(replace(STORY, requests_per_minute=requests_per_minute)).targets)
    targets[1] = change(targets[1])
    return fold(plan_of(), targets, START_MS, STORY.end_ms).v1


def _warmed(arm: ArmFold) -> ArmWarmth:
    """By the first token, beside the other three replicas."""
    timed = arm.metrics[TIMED]
    others = np.ones(arm.present.shape, dtype=np.bool_)
    others[1] = False
    usual = np.nan_to_num(arm.traffic["requests"]).mean(axis=0)
    return warm_replicas(arm, [Timed(timed, warm_mean_of(timed), warm_mean_of(timed, others))], usual)


def _idle(first: int, end: int) -> Callable[[TargetIncrements], TargetIncrements]:
    """Without a request in these blocks."""

    def change(target: TargetIncrements) -> TargetIncrements:
        gains = target.gains.copy()
        gains[:, first:end] = 0.0
        return replace(target, gains=gains)

    return change


def _slow(first: int, end: int, factor: float = 1.5) -> Callable[[TargetIncrements], TargetIncrements]:
    """First tokens so many times later in these blocks."""

    def change(target: TargetIncrements) -> TargetIncrements:
        within = np.arange(target.blocks.size)
        return slowed(target, TIMED, np.where((within >= first) & (within < end), factor, 1.0))

    return change


def _reusing(rates: Floats) -> Callable[[TargetIncrements], TargetIncrements]:
    """With these shares of its prompt tokens reused, block by block."""

    def change(target: TargetIncrements) -> TargetIncrements:
        eligible = np.full(target.blocks.size, 10_000.0)
        series = (
            *target.series,
            Series("kv_cache_eligible_tokens_total", ()),
            Series("kv_cache_reused_tokens_total", ()),
        )
        return replace(target, series=series, gains=np.vstack([target.gains, eligible, eligible * rates]))

    return change


def test_a_replica_that_serves_as_it_is_first_seen_is_warm() -> None:
    """Old as its process is, from the first block on, and a pause of forty minutes changes nothing."""
    assert _warmed(_arm(lambda target: target)).usable.all()
    assert _warmed(_arm(_idle(40, 48))).usable.all()


@pytest.mark.parametrize(("first", "end"), [(0, 6), (0, 30), (40, 54)], ids=["at first", "for hours", "in between"])
def test_a_replica_that_idled_warms_up(first: int, end: int) -> None:
    """Old as its process is, it is not compared at its first request, but half an hour later if it is as good."""
    usable = _warmed(_arm(_idle(first, end))).usable

    assert not usable[1, end : end + 6].any()
    assert usable[1, end + 6 :].all()
    assert usable[[0, 2, 3]].all()


def test_a_slow_replica_that_idled_waits_until_it_is_settled() -> None:
    """As long as that takes, and once more: it is compared after an hour and a half."""
    changed = _arm(lambda target: _slow(30, target.blocks.size)(_idle(0, 30)(target)))
    usable = _warmed(changed).usable

    assert not usable[1, 30 : 30 + 18].any()
    assert usable[1, 30 + 36 :].all()


def test_few_requests_are_no_idle_time() -> None:
    """Where replicas get one request in a quarter of an hour, none of them is left out for getting none for an hour."""
    assert _warmed(_arm(_idle(40, 56), requests_per_minute=0.25)).usable.all()


def test_an_emptied_cache_warms_up_again() -> None:
    """Without a restart: from the block on in which the hit rate collapsed, and the verdict waits."""
    rates = np.full(132, 0.6)
    rates[60:72] = 0.6 * (1.0 - np.exp(-(np.arange(12) + 0.5) / 3.0))
    warmed = _warmed(_arm(lambda target: _slow(60, 66)(_reusing(rates)(target))))

    assert warmed.usable[1, :60].all()
    assert not warmed.usable[1, 60:66].any()
    assert warmed.rearmed[60]
    assert warmed.usable[1, 100:].all()


def test_a_cache_that_stays_empty_is_compared() -> None:
    """A hit rate that fell for good is what v2 does: half an hour shows it."""
    warmed = _warmed(_arm(lambda target: _slow(60, 132)(_reusing(np.where(np.arange(132) < 60, 0.6, 0.1))(target))))

    assert not warmed.usable[1, 60]
    assert warmed.usable[1, 67:].all()


def test_a_hit_rate_that_wanders_is_no_collapse() -> None:
    """Nor is one that was low before, or a second fall within two hours."""
    random = np.random.default_rng(3)
    assert not np.isfinite(collapses(np.clip(0.5 + 0.1 * random.standard_normal(2000), 0.0, 1.0))).any()
    assert not np.isfinite(collapses(np.r_[np.full(10, 0.6), np.full(10, 0.05)])).any()

    twice = np.r_[np.full(30, 0.6), 0.05, np.full(10, 0.6), 0.05, np.full(30, 0.6), 0.05]
    assert np.flatnonzero(np.isfinite(collapses(twice))).tolist() == [30, 72]


def test_no_replica_warms_up_for_ever() -> None:
    """Neither one whose hit rate rises all day, nor one that restarts every hour: they are compared then."""
    rising = warmth(AGES, np.full(BLOCKS, 30.0), np.linspace(0.0, 1.0, BLOCKS), [_cold(0.0, size=0.0)])
    assert rising.usable_from == 48

    def hourly(target: TargetIncrements) -> TargetIncrements:
        return _slow(0, target.blocks.size)(
            replace(target, started_ms=(target.blocks // 3_600_000 * 3_600_000).astype(float))
        )

    warmed = _warmed(_arm(hourly))
    assert not warmed.usable[1, :48].any()
    assert warmed.usable[1, 48:].all()
    assert warmed.overdue[1, 48:].any()


def test_replicas_that_replace_each_other_do_not_warm_up_for_ever() -> None:
    """Each is fresh under a name of its own: after four hours of a day in which most were, they are compared."""
    cold = np.zeros((1, 400), dtype=np.bool_)
    cold[0, 10:100] = True
    late = overdue(cold)
    assert not late[0, :58].any()
    assert late[0, 58 : 52 + 288].all()
    assert not late[0, 340 + 48 :].any()


def test_a_slow_replica_keeps_the_fresh_ones_beside_it_from_being_compared_first() -> None:
    """Else v2 would be proven by its fast replicas alone."""
    story = Story(past_hours=3, hours=3, v2=Side(replicas=3, warm=False))
    targets = [
        _slow(0, 60, 1.6)(target) if target.identity.replica == "v2-0" else target
        for target in evidence_of(story).targets
    ]
    folded = fold(plan_of(), targets, START_MS, story.end_ms)
    timed = warm_mean_of(folded.v1.metrics[TIMED])
    usual = np.full(timed.size, 100.0)
    found = warm_replicas(folded.v2, [Timed(folded.v2.metrics[TIMED], timed, timed)], usual)

    assert not found.usable[:, : 36 + 15].any()
    assert found.usable[:, -1].all()


def test_how_long_fresh_replicas_are_expected_to_take() -> None:
    """Half an hour after they are as good, or until they have served enough, and four hours at most."""
    assert warm_up_seconds(1.0) == 1800.0
    assert warm_up_seconds(1.0, slow_seconds=2400.0) == 4200.0
    assert warm_up_seconds(50.0 / 3500.0) == 3600.0
    assert warm_up_seconds(0.0) == warm_up_seconds(1.0, slow_seconds=86_400.0) == MOST_SECONDS


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
    found = warm_replicas(arm, [Timed(timed, mean, mean)], np.full(mean.size, 100.0))

    assert found.usable[1, restart - 1]
    assert not found.usable[1, restart]
    assert found.rearmed[restart]
    assert found.usable[1, -1]
