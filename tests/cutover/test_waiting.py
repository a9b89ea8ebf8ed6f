"""What is waited for where more of the same data settles nothing: it is said, how to get it, and no time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.cutover.plan.plan import Stage
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.report.text import describe_judgement
from tests.cutover.support.cutover_worlds import Phase, make_world
from tests.cutover.support.failing import with_failures
from tests.support.cutover_evidence import Side, metric_of


@pytest.mark.slow
def test_loads_that_differ_say_how_to_make_them_alike() -> None:
    """An idle v2 has too many replicas, a busy one too few: with the loads of both, and without a time."""
    for replicas, wanted in ((8, "remove replicas of v2"), (1, "add replicas to v2")):
        judgement = make_world(Phase(Side(replicas=replicas), 4), v1=Side(replicas=6)).judge()
        assert judgement.verdict == "INCONCLUSIVE"
        assert "like loads" in judgement.waits_for
        assert wanted in judgement.waits_for
        assert "requests/s" in judgement.waits_for
        waiting = [each for each in judgement.metrics if each.cause == "load"]
        assert waiting
        assert all(each.eta_seconds is None and wanted in each.flips for each in waiting)
        assert f"waits for {judgement.waits_for}" in describe_judgement(judgement)


def test_queues_say_where_replicas_are_missing() -> None:
    """v2 alone queues, at like loads."""
    judgement = make_world(Phase(Side(replicas=2), 4, queues=True), v1=Side(replicas=6)).judge()
    assert "v2 queues requests and v1 does not" in judgement.waits_for


def test_a_share_off_the_plan_is_waited_for_by_every_metric() -> None:
    """Errors as well: no time is said for what no time settles, early in the stage and after hours."""
    world = make_world(Phase(Side(replicas=2), 4), v1=Side(replicas=6))
    frozen = replace(world.frozen, plan=replace(world.frozen.plan, stages=(Stage(0.9),)))
    for minutes in (15, 60, 240):
        judgement = replace(world, frozen=frozen).judge(world.story.started_ms + minutes * 60_000)
        required = [each for each in judgement.metrics if each.required]
        assert {each.cause for each in required} == {"share"}
        assert [each.eta_seconds for each in required] == [None] * len(required)
        assert "90 % of the requests on v2" in judgement.waits_for
        assert "to be settled in" not in describe_judgement(judgement)


@pytest.mark.slow
def test_no_time_is_said_that_nobody_waits() -> None:
    """In the first hour of few requests, where rounding errors are all that was gathered."""
    world = make_world(Phase(Side(replicas=1), 2), v1=Side(replicas=3), requests_per_minute=12.0)
    for block in range(1, 25, 3):
        judgement = world.judge(world.story.started_ms + block * BLOCK_MS)
        assert all((each.eta_seconds or 0.0) < 90 * 86_400 for each in judgement.metrics)


def test_no_time_is_said_while_what_users_saw_is_beyond_the_margin() -> None:
    """One replica fails on and on: that counts once, and proves neither harm nor, however long one waits, health."""
    world = make_world(Phase(Side(replicas=3), 4), v1=Side(replicas=9), requests_per_minute=1500.0)
    failing = with_failures(
        world.evidence, world.story, lambda stack, replica, _: 0.04 * (stack == "v2" and replica == 0)
    )
    judgement = replace(world, evidence=failing).judge()
    errors = metric_of(judgement, "request_error_share")

    assert (judgement.verdict, errors.cause, errors.eta_seconds) == ("INCONCLUSIVE", "needs data", None)
    assert "to be settled in" not in describe_judgement(judgement)


@pytest.mark.slow
def test_nothing_is_waited_for_but_data_where_data_settles_it() -> None:
    """At the beginning of a stage, with a time until it is settled; and where all is proven."""
    world = make_world(Phase(Side(replicas=2), 6), v1=Side(replicas=6), requests_per_minute=1200.0)
    early, late = world.judge(world.story.started_ms + 45 * 60_000), world.judge()
    assert (early.verdict, early.waits_for) == ("INCONCLUSIVE", "")
    assert any(each.eta_seconds for each in early.metrics if each.cause == "needs data")
    assert (late.verdict, late.waits_for) == ("HEALTHY", "")


@pytest.mark.slow
def test_the_loads_that_are_shown_are_those_that_are_compared() -> None:
    """v2 had as many replicas for its share as v1 for hours, and has four times as many for one: not the mean of it."""
    judgement = make_world(Phase(Side(replicas=2), 4), Phase(Side(replicas=8), 2), v1=Side(replicas=6)).judge()

    assert "load" in {each.cause for each in judgement.metrics}
    assert judgement.v1 is not None
    assert judgement.v2 is not None
    v1, v2 = (each.requests_per_replica_second or 0.0 for each in (judgement.v1, judgement.v2))
    assert v1 > 1.5 * v2
    assert f"a replica of v2 serves {v2:.2g} requests/s and one of v1 {v1:.2g}" in judgement.waits_for
