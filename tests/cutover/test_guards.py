"""Harm beyond speed and errors: none of it is HEALTHY with the documented preset, and the reason names it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest

from benchmarks import _judge_trials
from benchmarks._judge_experiments import NO_HARM
from benchmarks._judge_guards import HARMS
from benchmarks._judge_traffic import Harm
from benchmarks._judge_trials import Order, Trial, run_trials
from servescope.cutover.evidence.derived import cache_in_a_day
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.cutover.verdict.judge import judge
from tests.support.cutover_evidence import Side, Story, evidence_of, frozen_of, metric_of
from tests.support.drawing import trials

pytestmark = pytest.mark.slow

V1 = Side(replicas=9)


def judged(v2: Side, v1: Side = V1, hours: int = 8) -> Judgement:
    """A quarter of the requests on v2, with the documented preset."""
    story = Story(hours=hours, requests_per_minute=300.0, v1=v1, v2=v2, seed=3)
    return judge(
        frozen_of(story), evidence_of(story), [Decision("start", story.started_ms, stage=0)], story.end_ms
    )  # fmt: skip


@pytest.mark.parametrize(
    ("v2", "v1", "hours", "said"),
    [
        (Side(replicas=3, tokens=0.5), V1, 4, "Output tokens per request is 5"),
        (Side(replicas=3, tokens=2.0), V1, 4, "Output tokens per request is"),
        (Side(replicas=3, truncated=0.1), V1, 8, "Output tokens per request is"),
        (Side(replicas=3, at_limit=0.05), Side(replicas=9, at_limit=0.01), 4, "Truncated answers happen"),
        (Side(replicas=3, unended=0.03), V1, 4, "began and ended in no counter"),
        (Side(replicas=3, unended=0.004), V1, 8, "Requests that never end"),
        (Side(replicas=3, aborted=0.03), V1, 4, "Aborted by clients"),
        (Side(replicas=3, gpus=2), Side(replicas=9, gpus=1), 4, "GPU-seconds per 1 000 output tokens is worse"),
        (Side(replicas=3, slowest=0.01), V1, 8, "Slow"),
        (Side(replicas=3, restarts=6.0), V1, 16, "Restarts happen on v2 and not on v1"),
        (Side(replicas=3, creep=0.03), V1, 10, "KV cache use in a day will be"),
    ],
    ids=[
        "half as long", "twice as long", "10 % truncated", "5 % at a limit", "3 % never end", "0.4 % never end",
        "counted as aborts", "twice the GPUs", "1 % five times slower", "six restarts a day", "a creeping cache",
    ],
)  # fmt: skip
def test_harm_beyond_speed_and_errors_is_not_healthy(v2: Side, v1: Side, hours: int, said: str) -> None:
    """At the end, whatever it was before; the advice is to hold."""
    judgement = judged(v2, v1, hours)

    assert judgement.verdict != "HEALTHY"
    assert judgement.advice == "hold"
    assert said in judgement.reason or any(
        said in each.reason for each in judgement.metrics if each.guard and each.verdict == "DEGRADED"
    )


def test_requests_that_last_longer_as_their_answers_are_longer_are_noted() -> None:
    """Beside the harm, which v2 may have caused; what lasts longer for another reason has no such note."""
    slower = Side(replicas=3, slower=1.3)
    for v2, said in ((replace(slower, tokens=1.3), "v2's answers are "), (slower, "")):
        judgement = judged(v2, hours=4)
        assert metric_of(judgement, "request_duration_seconds").verdict == "DEGRADED"
        found = [each for each in judgement.notes if each.startswith("v2's answers")]
        assert [each[: len(said)] for each in found] == ([said] if said else [])


def test_equal_stacks_are_healthy_with_every_guard() -> None:
    """And the scope says what was looked at, and what cannot be seen."""
    judgement = judged(Side(replicas=3, gpus=1, at_limit=0.1), Side(replicas=9, gpus=1, at_limit=0.1))

    assert judgement.verdict == "HEALTHY"
    assert [each.name for each in judgement.metrics if each.guard and each.verdict == "DEGRADED"] == []
    covered, guards = judgement.scope.covers
    assert "Errors" in covered
    assert "GPU-seconds per 1 000 output tokens" in guards
    assert "Truncated answers" in guards
    assert any("words are not read" in each for each in judgement.scope.unseen)
    # The cost by replicas is neither missing nor unseen where that by GPUs is compared.
    assert "replica_seconds_per_1000_output_tokens" not in judgement.incomparable
    assert not [each for each in judgement.scope.unseen if "Replica-seconds" in each]


def test_answers_at_a_limit_are_compared_where_both_stacks_report_them() -> None:
    """What one of them does not report holds nothing, and is not among what was looked at."""
    judgement = judged(Side(replicas=3, at_limit=0.2), V1, hours=8)

    assert judgement.verdict == "HEALTHY"
    assert metric_of(judgement, "answer_truncated_share").verdict == "NO DATA"
    assert not any("Truncated answers" in each for each in judgement.scope.covers)


@pytest.mark.parametrize(
    ("rise", "swing", "full"),
    [(0.02, 0.0, True), (0.0, 0.2, False), (-0.02, 0.0, False), (0.02, 0.2, True)],
    ids=["leaks", "a day's swing on both", "empties", "leaks within the swing"],
)
def test_a_cache_that_fills_beside_v1_is_full_within_a_day(rise: float, swing: float, full: bool) -> None:
    """What both do alike is load."""
    hours = np.arange(12 * 12) / 12
    noise = np.random.default_rng(1).normal(0.0, 0.02, (2, 3, hours.size))
    day = 0.4 + swing * np.sin(hours * np.pi / 12)
    v1, v2 = day + noise[0], day + rise * hours + noise[1]

    assert (cache_in_a_day(v1, v2)[-1] > 1.0) == full


def test_without_a_control_a_morning_is_no_leak() -> None:
    """Of v2 alone the present use is all that is known."""
    v2 = np.tile(np.linspace(0.1, 0.8, 144), (3, 1))

    assert cache_in_a_day(np.full((0, 144), np.nan), v2)[-1] < 1.0


@cache
def trials_of(share: float, pasts: int) -> list[Trial]:
    """Six days of equal stacks after each of so many pasts; with a quarter of the requests on v2 two of each harm."""
    orders = [Order(6, (NO_HARM,)), *([Order(2, tuple(HARMS))] if share == 0.25 else [])]
    with TemporaryDirectory() as folder, patch.object(_judge_trials, "CACHE", Path(folder)):
        return [trial for past in range(pasts) for trial in run_trials(share, past, orders)]


@trials("pasts", 1, 50)
@pytest.mark.parametrize("share", [pytest.param(0.05, marks=pytest.mark.proof), 0.25])
def test_equal_stacks_are_seldom_withheld(pasts: int, share: float) -> None:
    """Harm of a guard is called proven within a day in at most one cutover of twenty of two equal stacks."""
    equal = [trial for trial in trials_of(share, pasts) if trial.harm == NO_HARM]
    days = 6 * pasts

    assert len(equal) == days
    assert sum(bool(trial.guards) for trial in equal) <= 0.05 * days + 2.0 * (0.05 * days) ** 0.5


@trials("pasts", 1, 50)
@pytest.mark.parametrize("harm", HARMS, ids=HARMS.values())
def test_most_quiet_harm_is_found_within_a_day(pasts: int, harm: Harm) -> None:
    """By a guard, or as harm of what is required, in nine cutovers of ten; and hardly any ends HEALTHY."""
    found = [trial for trial in trials_of(0.25, pasts) if trial.harm == harm]
    days = 2 * pasts

    assert len(found) == days
    assert sum(bool(trial.guards) or trial.degraded is not None for trial in found) >= 0.9 * days
    assert sum(trial.last != "HEALTHY" for trial in found) >= 0.9 * days
