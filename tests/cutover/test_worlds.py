"""The judge in worlds where judges are fooled, on hundreds of seeded days each: `make proofs` runs them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import _judge_trials
from benchmarks._judge_experiments import NO_HARM, quantile_of
from benchmarks._judge_traffic import Harm
from benchmarks._judge_trials import Order, Trial, run_trials
from benchmarks._judge_worlds import WORLDS
from benchmarks._judge_worlds_tables import GROSS, world_trials
from servescope.cutover.forecast.self_test import clopper_pearson

SHARE = 0.25
DAYS = 300
MOST, MOST_WITHIN = 0.05, 0.08
"""At most so many days are false alarms, and the 95 % interval of their share ends below that."""
FOOLING = ("neighbours", "moving-neighbours", "tenants", "clustered-errors", "outage", "cold-cache-180")
ALARMING = {
    "neighbours": (2, 4, 8, 14), "tenants": (7, 9, 13, 17), "clustered-errors": (1, 5, 7, 8), "outage": (0, 1, 2, 3),
    "cold-cache-180": (0, 1, 2, 3), "cold-cache-130": (0, 1, 2, 3), "storms": (0, 1, 2, 3),
}  # fmt: skip
"""Pasts after whose first day a judge alarms that has a fast lane without v1, and trusts ages and single replicas."""
SLOWER, ERRING = Harm("mean", 0.20), Harm("errors", 4.0)

pytestmark = pytest.mark.proof


@pytest.fixture(autouse=True)
def _kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial is made here: what was kept of another run says nothing of this judge."""
    monkeypatch.setattr(_judge_trials, "CACHE", tmp_path)


@pytest.mark.parametrize("name", FOOLING)
def test_equal_stacks_are_rarely_degraded(name: str) -> None:
    """In a day of watching, at most one in twenty of three hundred; a minute and a half of CPU each."""
    trials = list(world_trials([WORLDS[name]], DAYS, SHARE, harms=(NO_HARM,)))
    wrong = [trial for trial in trials if trial.degraded is not None]

    assert len(trials) == DAYS
    causes = sorted({trial.cause.split("; ")[0] for trial in wrong})
    assert len(wrong) <= MOST * DAYS, f"{len(wrong)} of {DAYS}: {causes}"
    assert clopper_pearson(len(wrong), DAYS)[1] <= MOST_WITHIN, f"{len(wrong)} of {DAYS}: {causes}"


@pytest.mark.parametrize("name", ALARMING)
def test_days_that_fool_a_simpler_judge(name: str) -> None:
    """At most one of four days on which a judge is fooled that has none of what these worlds need."""
    world = WORLDS[name]
    trials = [trial for past in ALARMING[name] for trial in run_trials(SHARE, past, [Order(1, (NO_HARM,))], world)]

    assert len(trials) == 4
    assert [trial.cause for trial in trials if trial.degraded is not None][1:] == []


@pytest.mark.parametrize("name", FOOLING)
def test_equal_stacks_are_still_proven_so(name: str) -> None:
    """No alarm is saved by saying nothing: on most of forty days the verdict is HEALTHY within the day."""
    trials = list(world_trials([WORLDS[name]], 40, SHARE, harms=(NO_HARM,)))

    assert sum(trial.healthy is not None for trial in trials) >= 24
    assert _without_data(trials) <= 0.01


@pytest.mark.parametrize("harm", [SLOWER, ERRING], ids=["slower", "erring"])
@pytest.mark.parametrize("name", FOOLING)
def test_harm_is_found_there_all_the_same(name: str, harm: Harm) -> None:
    """20 % more until the first token, and five times the errors, on nine of ten days, and hardly ever HEALTHY."""
    trials = list(world_trials([WORLDS[name]], 40, SHARE, harms=(harm,)))

    assert sum(trial.degraded is not None for trial in trials) >= 36
    assert sum((trial.healthy or math.inf) < (trial.degraded or math.inf) for trial in trials) <= 2


@pytest.mark.parametrize("harm", GROSS, ids=["5 times", "10 times"])
def test_gross_harm_is_found_while_warming(harm: Harm) -> None:
    """A v2 that is many times slower from its start is DEGRADED within twenty minutes on nine of ten days."""
    trials = list(world_trials([WORLDS["fresh"]], 36, SHARE, harms=(harm,)))

    assert quantile_of([trial.degraded or math.inf for trial in trials], 0.9) <= 20


def test_a_plain_start_is_no_gross_harm() -> None:
    """A v2 that is 80 % slower while it warms up is DEGRADED on no more days than one that is warm."""
    trials = list(world_trials([WORLDS["fresh"]], 60, SHARE, harms=(NO_HARM,)))

    assert sum(trial.degraded is not None for trial in trials) <= 3


@pytest.mark.parametrize("name", ["fresh", "cold-cache-100"])
def test_a_slow_replica_is_not_hidden_by_its_warming(name: str) -> None:
    """While others are warm and equal, one that takes 2.5 times as long is hardly ever passed over to HEALTHY."""
    trials = list(world_trials([WORLDS[name]], 40, SHARE, harms=(Harm("one pod", 0.50),)))

    assert sum((trial.healthy or math.inf) < (trial.degraded or math.inf) for trial in trials) <= 2


def _without_data(trials: list[Trial]) -> float:
    """The share of all looks that were NO DATA."""
    return sum(share for trial in trials for cause, share in trial.looks.items() if cause.startswith("NO DATA")) / len(
        trials
    )
