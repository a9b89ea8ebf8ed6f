"""What is waited for where more of the same data settles nothing, and how to get it."""

from __future__ import annotations

from typing import Final

from servescope.cutover.conditions.load import MATCHED_RATIO, recent_load
from servescope.cutover.evidence.coverage import HOUR_BLOCKS
from servescope.cutover.judgement import Cause
from servescope.cutover.verdict.stage import StageTrack
from servescope.settings.values import format_wait

TIMED: Final[frozenset[Cause]] = frozenset({"needs data"})
"""The causes of which it can be said how long they last."""


def waiting_for(stage: StageTrack, cause: Cause) -> str:
    """What a metric with this cause waits for and how to get it, as a clause; "" where it waits for time alone."""
    match cause:
        case "load":
            return f"like loads in half of the last hour: {_loads(stage)}"
        case "warming":
            return _warming(stage)
        case "mix":
            return "the same prompts on both arms: route requests or sessions to them at random"
        case "pods too few":
            return "more replicas of either arm: those there are differ too much"
        case "uncalibrated":
            return "three hours of both arms, from which the noise is estimated"
        case "share":
            return f"{100 * stage.share:g} % of the requests on v2, as the stage plans"
        case "prompts unknown":
            return "the sizes of prompts of all requests, which an arm does not report any more"
        case "rejected":
            return "counters that do not contradict each other: look at the replicas whose blocks are thrown away"
        case "incomparable":
            return "the same metric from both arms"
        case "never run":
            return "a release of servescope whose source map was compared with the running program"
        case "no control":
            return "requests on v1: keep a holdback there"
        case _:
            return ""


def _loads(stage: StageTrack) -> str:
    """How the loads differ in the last hour, and what makes them alike."""
    saturated = [bool(each.saturated[-HOUR_BLOCKS:].mean() >= 0.5) for each in stage.loads]
    match saturated:
        case [True, True]:
            return "both stacks queue requests, add replicas to both until neither does"
        case [False, True]:
            return "v2 queues requests and v1 does not, add replicas to v2 or move traffic back to v1"
        case [True, False]:
            return "v1 queues requests and v2 does not, add replicas to v1 or move more traffic to v2"
    v1, v2 = (recent_load(each.per_replica) for each in stage.loads)
    if not v1 or not v2:
        return "an arm had no requests"
    seen = f"a replica of v2 serves {v2:.2g} requests/s and one of v1 {v1:.2g}"
    if v2 > v1 * MATCHED_RATIO:
        return f"{seen}, add replicas to v2 or remove some of v1 until that is at most {MATCHED_RATIO:g} times v1's"
    if v1 > v2 * MATCHED_RATIO:
        return (
            f"{seen}, remove replicas of v2 or add some to v1 until that is at least {1 / MATCHED_RATIO:.2g} times v1's"
        )
    return f"{seen}, which is alike: wait until it was for half an hour"


def _warming(stage: StageTrack) -> str:
    took = stage.warmth[1].seconds
    so_far = f"; warming up took up to {format_wait(took)} so far" if took is not None else ""
    return f"warm replicas of v2 that get most of its requests: restart and add none meanwhile{so_far}"
