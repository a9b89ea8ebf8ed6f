"""Worlds in which caches of v2 are cold: after an idle time, in the middle of a stage, again and again, or for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from benchmarks._judge_requests import BLOCKS_PER_HOUR, Floats, Weather
from benchmarks._judge_traffic import Confounder, Scene, World
from benchmarks._judge_worlds import CACHE_HITS, CACHE_SETTING, FILLING_MINUTES, cold_cache

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
