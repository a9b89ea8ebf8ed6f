"""Prompt mix: whether it differs, by how much, and what adjusting for it takes away."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.cutover.statistics.effects import mean_effects
from servescope.cutover.statistics.mix import (
    Prompts,
    PromptSlope,
    adjusted_effects,
    distance,
    feature,
    learn_slope,
    log_evidence_of_difference,
)
from servescope.cutover.statistics.sequences import Floats
from tests.support.drawing import examples

TOKENS_CV2 = math.expm1(1.0)
CV2 = math.expm1(0.49)
histograms = hnp.arrays(np.float64, (6, 20), elements=st.integers(0, 30).map(float))


def _requests(
    replicas: int, blocks: int, mean: float, *, shift: float = 0.0, seed: int = 1
) -> tuple[Floats, Floats, Prompts]:
    """Counts, sums of a latency that grows with the prompt, and the prompts: (P, B) each."""
    random = np.random.default_rng(seed)
    counts = random.poisson(mean, (replicas, blocks))
    sums, tokens = np.zeros(counts.shape), np.zeros(counts.shape)
    for replica, block in np.ndindex(counts.shape):
        size = random.normal(size=counts[replica, block]) + shift
        tokens[replica, block] = (800.0 * np.exp(size)).sum()
        own = random.normal(size=size.size) * math.sqrt(0.49 - 0.35**2)
        sums[replica, block] = (0.35 * np.exp(0.35 * size + own)).sum()
    return counts.astype(float), sums, Prompts(tokens, counts.astype(float))


def _log_mean(counts: Floats, sums: Floats) -> Floats:
    return np.log(np.where(counts > 0.0, sums, np.nan) / np.where(counts > 0.0, counts, 1.0))


@pytest.fixture(scope="module")
def slope() -> PromptSlope:
    """What a day of four replicas of v1 shows."""
    counts, sums, prompts = _requests(4, 288, 40.0)
    found = learn_slope(_log_mean(counts, sums), prompts, CV2, TOKENS_CV2)
    assert found is not None
    return found


def test_the_slope_is_that_of_the_requests(slope: PromptSlope) -> None:
    """Its error is honest, and prompts explain a sixth of the variance of a lognormal latency's mean."""
    assert slope.slope == pytest.approx(0.26, abs=0.05)
    assert 0.0 < slope.error < 0.03
    assert slope.explained == pytest.approx(0.17, abs=0.06)


def test_adjusting_removes_what_different_prompts_did(slope: PromptSlope) -> None:
    """Equal stacks, prompts a fifth longer in v2: the plain effect is 7 %, the adjusted one about 2 %."""
    n1, s1, p1 = _requests(1, 400, 200.0, seed=2)
    n2, s2, p2 = _requests(1, 400, 40.0, shift=0.2, seed=3)
    plain = mean_effects(n1[0], s1[0], n2[0], s2[0], CV2)
    adjusted = adjusted_effects(plain, slope, p1.together(), p2.together())
    assert plain.effects.mean() == pytest.approx(0.07, abs=0.01)
    assert abs(adjusted.effects.mean()) < 0.027


def test_adjusting_makes_equal_mixes_more_precise(slope: PromptSlope) -> None:
    """The realised variance falls, and is the predicted one."""
    n1, s1, p1 = _requests(1, 400, 400.0, seed=4)
    n2, s2, p2 = _requests(1, 400, 40.0, seed=5)
    plain = mean_effects(n1[0], s1[0], n2[0], s2[0], CV2)
    adjusted = adjusted_effects(plain, slope, p1.together(), p2.together())
    assert adjusted.effects.var() < 0.95 * plain.effects.var()
    assert adjusted.effects.var() == pytest.approx(float(adjusted.sampling.mean()), rel=0.2)


def test_a_block_without_prompts_is_left_out(slope: PromptSlope) -> None:
    """Its variance is infinite, and its effect no NaN."""
    count = np.full(3, 50.0)
    blocks = mean_effects(count, count, count, count, CV2)
    known = Prompts(np.full(3, 1e5), count)
    found = adjusted_effects(blocks, slope, known, Prompts(np.array([1e5, 0.0, 1e5]), count))
    assert np.isfinite(found.sampling).tolist() == [True, False, True]
    assert np.isfinite(found.effects).all()


def test_replicas_that_show_no_slope_have_none() -> None:
    """One replica, or too few blocks."""
    counts, sums, prompts = _requests(2, 60, 30.0)
    assert learn_slope(_log_mean(counts, sums)[:1], Prompts(prompts.tokens[:1], prompts.requests[:1]), CV2, 1.0) is None
    assert learn_slope(_log_mean(counts, sums)[:, :5], Prompts(prompts.tokens[:, :5], counts[:, :5]), CV2, 1.0) is None


def test_a_metric_that_prompts_do_not_move_has_a_slope_of_zero() -> None:
    """Where that is known closely; where it is not, there is no slope."""
    _, _, prompts = _requests(4, 288, 40.0)
    random = np.random.default_rng(6)
    found = learn_slope(0.05 * random.normal(size=prompts.tokens.shape), prompts, 0.1, TOKENS_CV2)
    assert found is not None
    assert (found.slope, found.explained) == (0.0, 0.0)
    assert learn_slope(2.0 * random.normal(size=prompts.tokens.shape), prompts, 0.1, TOKENS_CV2) is None


def test_equal_prompts_that_change_with_time_seldom_differ() -> None:
    """At most 5 % of days, though the mix itself follows the hour."""
    random = np.random.default_rng(7)
    found = []
    for _ in range(200):
        hours = np.arange(96) / 96.0
        logits = np.sin(2.0 * np.pi * (hours[:, None] + np.arange(8) / 8.0))
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        v1 = random.multinomial(300, shares).T.astype(float)
        v2 = random.multinomial(30, shares).T.astype(float)
        found.append(log_evidence_of_difference(v1, v2).max() > math.log(20.0))
    assert np.mean(found) <= 0.05


def test_a_different_mix_is_found_and_measured() -> None:
    """A distance of 0.10 within hours, and 0 has no more distance than chance makes."""
    random = np.random.default_rng(8)
    base = np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    moved = base + np.array([-0.05, -0.05, 0.0, 0.05, 0.05])
    v1 = random.multinomial(300, base, 96).T.astype(float)
    v2 = random.multinomial(60, moved, 96).T.astype(float)
    assert int(np.argmax(log_evidence_of_difference(v1, v2) > math.log(20.0))) <= 24
    found, chance = distance(v1.sum(axis=1), v2.sum(axis=1)) or (0.0, 0.0)
    assert found == pytest.approx(0.10, abs=0.02)
    assert chance < 0.02
    same, chance = distance(v1.sum(axis=1), random.multinomial(500, base).astype(float)) or (1.0, 0.0)
    assert same < 3.0 * chance


@pytest.mark.slow
@given(histograms, histograms)
@settings(max_examples=examples(40))
def test_evidence_is_symmetric_and_never_changes_later(v1: Floats, v2: Floats) -> None:
    """Which arm is called v2 does not matter, nor do blocks that come later, while the same arm is the smaller one."""
    v2 = v2 + v1 + 1.0
    np.testing.assert_allclose(log_evidence_of_difference(v1, v2), log_evidence_of_difference(v2, v1), atol=1e-9)
    np.testing.assert_allclose(
        log_evidence_of_difference(v1, v2)[:9], log_evidence_of_difference(v1[:, :9], v2[:, :9]), atol=1e-9
    )


def test_no_requests_have_no_distance() -> None:
    """None, and the feature of none is NaN."""
    assert distance(np.zeros(4), np.ones(4)) is None
    assert np.isnan(feature(Prompts(np.zeros(1), np.zeros(1)))).all()


def test_effects_are_left_as_they_are_until_prompts_are_reported() -> None:
    """A block that comes later, with the first prompts known, changes nothing of the blocks before it."""
    count, nothing = np.full(4, 500.0), np.zeros(4)
    blocks = mean_effects(count, 0.5 * count, count, 0.6 * count, CV2)
    slope = PromptSlope(slope=0.5, error=0.0, explained=0.3, tokens_cv2=TOKENS_CV2)
    late = Prompts(np.array([0.0, 0.0, 4e5, 0.0]), count)
    found = adjusted_effects(blocks, slope, late, late)
    unknown = adjusted_effects(blocks, slope, Prompts(nothing, nothing), Prompts(nothing, nothing))

    assert found.sampling[:2] == pytest.approx(blocks.sampling[:2])
    assert found.effects[:2] == pytest.approx(blocks.effects[:2])
    assert found.sampling[3] == np.inf
    assert unknown.effects == pytest.approx(blocks.effects)


def test_evidence_of_other_prompts_depends_on_the_past_alone() -> None:
    """Also where v2 becomes the larger arm: what was found before does not change."""
    random = np.random.default_rng(5)
    v1, v2 = (random.poisson(mean, size=(6, 40)).astype(float) for mean in (30.0, np.linspace(2.0, 200.0, 40)))
    whole = log_evidence_of_difference(v1, v2)

    assert v2[:, :10].sum() < v1[:, :10].sum()
    assert v2.sum() > v1.sum()
    assert log_evidence_of_difference(v1[:, :10], v2[:, :10]) == pytest.approx(whole[:10])
