"""Evidence that is as sharp late as it is early, without more false alarms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.cutover.statistics.change import log_evidence_of_harm, log_mixed, restart_weights, schedule
from servescope.cutover.statistics.effects import BlockEffects
from servescope.cutover.statistics.sequences import Floats


def _evidence(effects: Floats, variance: float = 0.008, **options: float) -> Floats:
    size = effects.size
    blocks = BlockEffects(effects, np.full(size, variance), np.ones(size, dtype=np.int64), np.arange(size))
    starts, weights = schedule(size)
    return log_evidence_of_harm(
        blocks, blocks.sampling, bound=0.0, alpha=0.05, wanted=440.0, starts=starts, weights=weights, **options
    )


def test_a_late_regression_is_found_as_soon_as_an_early_one() -> None:
    """+20 % that begins after 0, 6 and 12 hours is found within 45 minutes each."""
    random = np.random.default_rng(4)
    for onset in (0, 72, 144):
        delays = []
        for _ in range(40):
            effects = random.normal(size=288) * math.sqrt(0.008)
            effects[onset:] += math.log(1.2)
            found = np.flatnonzero(_evidence(effects)[onset:] > math.log(20.0))
            delays.append(int(found[0]) + 1)
        assert np.median(delays) * 5 <= 45


@pytest.mark.slow
def test_a_day_without_harm_seldom_shows_any() -> None:
    """At most 5 % of days at alpha 5 %, restarts included."""
    random = np.random.default_rng(5)
    crossed = [(_evidence(random.normal(size=288) * math.sqrt(0.008)) > math.log(20.0)).any() for _ in range(400)]
    assert np.mean(crossed) <= 0.05


def test_evidence_never_changes_when_later_blocks_come() -> None:
    """Restarts that are still to come have their weight from the first block on."""
    effects = np.random.default_rng(6).normal(size=100) * 0.1 + 0.05
    np.testing.assert_allclose(_evidence(effects)[:40], _evidence(effects[:40]), atol=1e-12)


def test_lasting_differences_of_replicas_limit_the_evidence() -> None:
    """An effect that replicas may explain is no harm however long it lasts."""
    effects = np.full(288, 0.05)
    assert _evidence(effects)[-1] > math.log(20.0)
    assert _evidence(effects, persistent=0.0025).max() < math.log(20.0)


def test_a_merged_block_over_a_restart_belongs_to_the_sequences_before() -> None:
    """It does not enter the one that begins within it."""
    blocks = BlockEffects(np.array([0.0, 2.0]), np.full(2, 0.01), np.array([23, 3]), np.array([22, 25]))
    evidence = log_evidence_of_harm(
        blocks, blocks.sampling, bound=0.0, alpha=0.05, wanted=440.0, starts=np.array([0, 24]),
        weights=np.array([0.0, 1.0]),
    )  # fmt: skip
    assert evidence.tolist() == [0.0, 0.0]


@given(st.integers(1, 5000), st.floats(0.01, 1.0))
def test_weights_sum_to_no_more_than_the_stage_has(blocks: int, weight: float) -> None:
    """However long a stage lasts."""
    _, weights = schedule(blocks, stage_weight=weight)
    assert 0.6 * weight <= weights.sum() <= weight * (1.0 + 1e-12)
    assert (np.diff(restart_weights(400)) <= 1e-15).all()


def test_mixed_evidence_is_the_weighted_mean() -> None:
    """With what is missing to one counted as one."""
    mixed = log_mixed(np.log(np.array([[4.0, 1.0], [10.0, 2.0]])), np.array([0.5, 0.25]))
    assert np.exp(mixed).tolist() == pytest.approx([2.0 + 2.5 + 0.25, 0.5 + 0.5 + 0.25])
