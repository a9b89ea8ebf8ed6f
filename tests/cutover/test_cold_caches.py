"""Cold caches and starts on seeded days: no harm while they last, and harm where they last for good."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from benchmarks import _judge_trials
from benchmarks._judge_experiments import NO_HARM, quantile_of
from benchmarks._judge_requests import BLOCKS_PER_HOUR, Floats, Weather
from benchmarks._judge_traffic import Confounder, Harm, Scene, World
from benchmarks._judge_trials import Trial
from benchmarks._judge_worlds import CACHE_HITS, CACHE_SETTING, FILLING_MINUTES, cold_cache
from benchmarks._judge_worlds_tables import world_trials
from servescope.cutover.forecast.self_test import clopper_pearson

Rng = np.random.Generator


def _world(name: str, v2: Callable[[Floats], Weather]) -> World:
    """`v2` is its weather by the hours since the stage began, those of each block's middle."""

    def weather(_: Rng, scene: Scene) -> tuple[Weather, Weather]:
        hours = (np.arange(len(scene.blocks)) - scene.lead + 0.5) / BLOCKS_PER_HOUR
        return Weather(hits=np.array(CACHE_HITS)), v2(hours)

    return World(name, name, CACHE_SETTING, weather)


def _filled(hours: Floats) -> Floats:
    """The hit rate of a cache that was empty so many hours ago; a full one's before."""
    minutes = np.maximum(hours * 60.0, 0.0)
    return np.asarray(np.where(hours < 0.0, CACHE_HITS, CACHE_HITS * (1.0 - np.exp(-minutes / FILLING_MINUTES))))


def _idle(hours: Floats) -> Weather:
    idle = (hours >= 4.0) & (hours < 7.0)
    return Weather(demand=np.where(idle, 0.0, 1.0), hits=_filled(hours - 7.0))


DECAYS: Final = {
    minutes: World(f"decay-{minutes:g}", "a start that decays", confounder=Confounder(warm_up_minutes=minutes))
    for minutes in (10.0, 20.0, 60.0)
}
"""v2 starts with the stage, 80 % slower, which decays with this time constant."""
IDLED: Final = {minutes: cold_cache(minutes) for minutes in (100.0, 130.0, 300.0)}
"""v2 had run for so long without a request when the stage begins."""
RETURNED: Final = _world("returned", _idle)
"""Warm, then three hours without a request, then back with an empty cache."""
EMPTIED: Final = _world("emptied", lambda hours: Weather(hits=_filled(hours - 5.0)))
"""Without a restart, five hours into the stage."""
EMPTIED_HOURLY: Final = _world(
    "emptied-hourly", lambda hours: Weather(hits=_filled(np.where(hours < 5.0, -1.0, hours % 1.0)))
)
"""Again and again: what v2's users get is a cold cache."""
LOST: Final = _world("lost", lambda hours: Weather(hits=np.where(hours < 5.0, CACHE_HITS, 0.1)))
"""What is reused stays low: v2's routing broke it."""
NEVER: Final = _world("never", lambda hours: Weather(hits=np.full(len(hours), 0.1)))


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
