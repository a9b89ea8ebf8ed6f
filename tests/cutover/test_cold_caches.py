"""Cold caches and starts on seeded days: no harm while they last, and harm where they last for good."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import _judge_trials
from benchmarks._judge_experiments import NO_HARM, quantile_of
from benchmarks._judge_traffic import Harm, World
from benchmarks._judge_trials import Trial
from benchmarks._judge_worlds_tables import world_trials
from servescope.cutover.forecast.self_test import clopper_pearson
from tests.support.cold_caches import DECAYS, EMPTIED, EMPTIED_HOURLY, IDLED, LOST, RETURNED

SHARE = 0.25
DAYS = 300
COLD = (*IDLED.values(), *DECAYS.values(), RETURNED, EMPTIED)


@pytest.fixture(autouse=True)
def _kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial is made here: what was kept of another run says nothing of this judge."""
    monkeypatch.setattr(_judge_trials, "CACHE", tmp_path)


def _days(world: World, days: int, harm: Harm = NO_HARM) -> list[Trial]:
    return list(world_trials([world], days, SHARE, harms=(harm,)))


@pytest.mark.slow
@pytest.mark.parametrize("world", [IDLED[130.0], RETURNED, EMPTIED], ids=lambda world: world.name)
def test_a_cold_cache_is_no_harm(world: World) -> None:
    """Of v2 that idled, before the stage or in it, or whose caches were emptied, and the days end HEALTHY."""
    trials = _days(world, 1)

    assert [trial.cause for trial in trials if trial.degraded is not None] == []
    assert all(trial.healthy is not None for trial in trials)


@pytest.mark.slow
@pytest.mark.parametrize("world", [LOST, EMPTIED_HOURLY], ids=lambda world: world.name)
def test_a_cache_that_stays_cold_is_harm(world: World) -> None:
    """v2's caches reuse little from the fifth hour on: found within four hours, as no warm-up lasts longer."""
    (trial,) = _days(world, 1)

    assert trial.degraded is not None
    assert 300 < trial.degraded <= 300 + 240
    assert trial.cause.startswith("time_to_first_token_seconds")


@pytest.mark.proof
@pytest.mark.parametrize("world", COLD, ids=lambda world: world.name)
def test_cold_starts_are_rarely_degraded(world: World) -> None:
    """On at most one of twenty of three hundred days; two minutes of CPU each."""
    trials = _days(world, DAYS)
    wrong = [trial.cause.split("; ")[0] for trial in trials if trial.degraded is not None]

    assert len(wrong) <= 0.05 * DAYS, sorted(wrong)
    assert clopper_pearson(len(wrong), DAYS)[1] <= 0.08, sorted(wrong)
    assert sum(trial.healthy is not None for trial in trials) >= 0.95 * DAYS


@pytest.mark.proof
@pytest.mark.parametrize("world", [*IDLED.values(), DECAYS[20.0]], ids=lambda world: world.name)
def test_a_slower_stack_is_found_behind_its_cold_start(world: World) -> None:
    """20 % more until the first token, within four hours on nine of ten days, and never HEALTHY before."""
    trials = _days(world, 40, Harm("mean", 0.20))

    assert quantile_of([trial.degraded or math.inf for trial in trials], 0.9) <= 240
    assert [trial for trial in trials if (trial.healthy or math.inf) < (trial.degraded or math.inf)] == []
