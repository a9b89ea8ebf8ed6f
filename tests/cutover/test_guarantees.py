"""The judge on a few synthetic days of known truth, with wide bounds; `python -m benchmarks judge` has thousands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import _judge_trials
from benchmarks._judge_errors import median_delays
from benchmarks._judge_experiments import AT_MARGIN, BEYOND_MARGIN, FIRST_TOKEN, NO_HARM
from benchmarks._judge_traffic import Confounder, Harm
from benchmarks._judge_trials import PLAIN, Order, Trial, run_trials

pytestmark = pytest.mark.slow

SLOWER, ERRING = Harm("mean", 0.20), Harm("errors", 4.0)
LATE = Confounder(warm_up_minutes=20.0)
IDLE = Confounder(replicas_factor=3)


@pytest.fixture(scope="module", name="trials", params=[(1, 3), pytest.param((2, 8), marks=pytest.mark.proof)])
def _trials(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[list[Trial]]:
    """A quarter of the requests on v2, on so many days after each of so many pasts."""
    pasts, days = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_judge_trials, "CACHE", tmp_path_factory.mktemp("trials"))
        orders = [
            Order(2, (NO_HARM,), rivals=True),
            Order(days, (NO_HARM, SLOWER, BEYOND_MARGIN)),
            Order(2, (AT_MARGIN, ERRING, Harm("tps", 0.2), Harm("tail", 0.344), Harm("one pod", 0.5))),
            Order(1, (NO_HARM,), LATE),
            Order(1, (NO_HARM,), IDLE),
        ]
        yield [trial for past in range(pasts) for trial in run_trials(0.25, past, orders)]


def test_equal_stacks_are_not_degraded(trials: list[Trial]) -> None:
    """At most one of sixteen days of watching ends in a false DEGRADED, where one in twenty is allowed."""
    equal = _with(trials, NO_HARM)

    assert len(equal) in (3, 16)
    assert sum(trial.degraded is not None for trial in equal) <= 1


def test_equal_stacks_are_proven_so(trials: list[Trial]) -> None:
    """The time to the first token within two hours on half of the days, everything within the day on nearly all."""
    equal = _with(trials, NO_HARM)

    assert sum((trial.metrics[FIRST_TOKEN].healthy or 1e9) <= 120 for trial in equal) >= len(equal) // 2
    assert sum(trial.healthy is not None for trial in equal) >= 0.8 * len(equal)


def test_a_slower_stack_is_degraded_soon_and_never_healthy(trials: list[Trial]) -> None:
    """20 % more until the first token is found within two hours on nearly all days; 1.5 × the margin never passes."""
    slower = _with(trials, SLOWER)
    assert sum((trial.degraded or 1e9) <= 120 for trial in slower) >= 0.85 * len(slower)
    assert [
        trial for harm in (SLOWER, BEYOND_MARGIN) for trial in _with(trials, harm) if trial.healthy is not None
    ] == []


@pytest.mark.parametrize("kind", ["errors", "tps", "tail"])
def test_other_harms_are_degraded_for_what_they_are(trials: list[Trial], kind: str) -> None:
    """Errors, slow decoding and a slow tail are found within three hours, by the metric that they harm."""
    harmed = [trial for trial in trials if trial.harm.kind == kind]
    metric = {"errors": "request_error_share", "tps": "tps_per_request"}.get(kind, FIRST_TOKEN)

    assert len(harmed) in (2, 4)
    assert all(trial.metrics[metric].degraded is not None and (trial.degraded or 1e9) <= 180 for trial in harmed)


def test_harm_of_one_replica_is_neither_degraded_nor_healthy(trials: list[Trial]) -> None:
    """It is that replica's, and v2 is not HEALTHY while it lasts."""
    harmed = [trial for trial in trials if trial.harm.kind == "one pod"]

    assert [(trial.degraded, trial.healthy) for trial in harmed] == [(None, None)] * len(harmed)
    assert harmed
    assert all(f"{FIRST_TOKEN}: one replica" in trial.cause for trial in harmed)


def test_intervals_hold_the_truth(trials: list[Trial]) -> None:
    """At every look of a day, on nearly all days, whether v2 is equal or 15 % slower."""
    for harm in (NO_HARM, BEYOND_MARGIN):
        metrics = [trial.metrics[FIRST_TOKEN] for trial in _with(trials, harm)]
        missed = [each for each in metrics if each.missed_low is not None or each.missed_high is not None]
        assert len(missed) <= 0.2 * len(metrics)


def test_what_confounds_is_no_harm(trials: list[Trial]) -> None:
    """Equal stacks are not DEGRADED while v2 warms up; beside idle replicas nothing is proven healthy either."""
    late, idle = ([trial for trial in trials if trial.confounder == each] for each in (LATE, IDLE))

    assert {trial.degraded for trial in late} == {None}
    assert {(trial.degraded, trial.healthy) for trial in idle} == {(None, None)}
    assert all("load" in trial.cause for trial in idle)


def _with(trials: list[Trial], harm: Harm) -> list[Trial]:
    return [trial for trial in trials if trial.harm == harm and trial.confounder == PLAIN]


def test_errors_are_found_as_soon_as_is_demanded() -> None:
    """Five times the errors at 5 % are found in 40 minutes in the median; a few hundred days leave it some room."""
    delays = median_delays(0.05, 5.0, days=200)
    assert delays["from mean load"] <= 50.0
    assert delays["from any hour, alpha undivided"] <= delays["from any hour"]
