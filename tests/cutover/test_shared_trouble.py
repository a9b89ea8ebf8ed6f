"""Errors that are nobody's fault: clusters of them, an outage and storms that both stacks have, for days of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import _judge_trials
from benchmarks._judge_experiments import NO_HARM
from benchmarks._judge_traffic import Harm
from benchmarks._judge_worlds import WORLDS
from benchmarks._judge_worlds_tables import world_trials
from servescope.cutover.forecast.self_test import clopper_pearson

ERRING = Harm("errors", 4.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "days"), [(0.25, 1), *(pytest.param(each, 300, marks=pytest.mark.proof) for each in (0.05, 0.25, 0.5))]
)
@pytest.mark.parametrize("world", ["clustered-errors", "outage", "storms"])
def test_trouble_that_both_have_is_no_harm_and_hides_none(
    world: str, share: float, days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal stacks are DEGRADED on one day of twenty at most; five times the errors are, on all days, within hours."""
    monkeypatch.setattr(_judge_trials, "CACHE", tmp_path)
    trials = list(world_trials([WORLDS[world]], days, share, harms=(NO_HARM, ERRING)))
    equal, erring = ([trial for trial in trials if trial.harm == harm] for harm in (NO_HARM, ERRING))
    alarms = [trial.cause for trial in equal if trial.degraded is not None]

    assert (len(equal), len(erring)) == (days, days)
    assert len(alarms) <= 0.05 * days, alarms
    assert days < 300 or clopper_pearson(len(alarms), days)[1] <= 0.08
    assert all(trial.healthy is None for trial in erring)
    assert sum((trial.degraded or 1e9) <= 180 for trial in erring) >= (0.5 if share < 0.25 else 0.95) * days
