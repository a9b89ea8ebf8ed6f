"""What v2 serves for its cost: measured at matched load, with an interval, and never part of the verdict."""

from dataclasses import replace

import numpy as np
import pytest

from servescope.contract.samples import Series, make_labels
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.judgement import Efficiency, Judgement
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from tests.support.cutover_evidence import Side, Story, evidence_of, frozen_of, plan_of

STORY = Story(past_hours=26, hours=4, v1=Side(replicas=6), v2=Side(replicas=2))


def _judged(story: Story, evidence: Evidence | None = None) -> Judgement:
    frozen = frozen_of(story) if evidence is None else freeze(plan_of(story.share), evidence, story.started_ms)
    evidence = evidence or evidence_of(story)
    return judge(frozen, evidence, (Decision("start", story.started_ms, stage=0),), story.end_ms)


def _by_name(judgement: Judgement) -> dict[str, Efficiency]:
    return {each.name: each for each in judgement.efficiency}


def _with_gpus(target: TargetIncrements, count: int, usage: float) -> TargetIncrements:
    levels = np.full((count, target.blocks.size), usage)
    return replace(
        target,
        gauges=(*target.gauges, *(Series("gpu_usage", make_labels({"gpu": str(gpu)})) for gpu in range(count))),
        levels=np.concatenate([target.levels, levels]),
        above=np.concatenate([target.above, np.full(levels.shape, np.nan)]),
    )


@pytest.mark.slow
def test_the_same_load_on_as_many_replicas_is_as_efficient() -> None:
    """The interval has one, and the sentence says both in a person's words."""
    found = _by_name(_judged(STORY))
    tokens, goodput = found["tokens_per_replica_second"], found["goodput_per_replica_second"]
    for each in (tokens, goodput):
        assert each.low < 1.0 < each.high
        assert each.high / each.low < 1.6
        assert each.ratio == pytest.approx(each.v2 / each.v1, rel=0.1)
    assert (
        tokens.sentence == f"v2 serves {tokens.ratio:.2f} × ({tokens.low:.2f}–{tokens.high:.2f}) the tokens per replica"
    )


@pytest.mark.slow
def test_half_the_gpus_for_the_same_tokens_are_twice_as_efficient() -> None:
    """Per GPU where both stacks show theirs, as busy as each other, whatever a replica is."""
    evidence = evidence_of(STORY)
    shown = tuple(
        _with_gpus(target, 4 if target.identity.inference_stack == "v1" else 2, 0.7) for target in evidence.targets
    )
    found = _by_name(_judged(STORY, replace(evidence, targets=shown)))
    assert "tokens_per_replica_second" not in found
    per_gpu = found["tokens_per_gpu_second"]
    assert per_gpu.low < 2.0 < per_gpu.high
    assert per_gpu.low > 1.4
    assert per_gpu.sentence.endswith("the tokens per GPU")


@pytest.mark.slow
def test_an_idle_stack_is_not_called_wasteful() -> None:
    """Where the load does not match there is no efficiency, neither by requests nor by how busy the GPUs are."""
    idle = replace(STORY, share=0.02)
    assert _judged(idle).efficiency == ()
    evidence = evidence_of(STORY)
    shown = tuple(
        _with_gpus(target, 1, 0.9 if target.identity.inference_stack == "v1" else 0.1) for target in evidence.targets
    )
    assert _judged(STORY, replace(evidence, targets=shown)).efficiency == ()


def test_less_than_an_hour_says_nothing() -> None:
    """Before twelve blocks the noise is not known."""
    evidence = evidence_of(STORY)
    frozen = frozen_of(STORY)
    start = Decision("start", STORY.started_ms, stage=0)
    assert judge(frozen, evidence, (start,), STORY.started_ms + 11 * BLOCK_MS).efficiency == ()


@pytest.mark.slow
def test_slower_requests_beyond_the_objectives_cost_goodput_and_not_tokens() -> None:
    """Four times the time to first token moves many beyond its objective."""
    found = _by_name(_judged(replace(STORY, v2=Side(replicas=2, first_token=4.0))))
    assert found["goodput_per_replica_second"].high < 0.97
    assert found["tokens_per_replica_second"].low < 1.0 < found["tokens_per_replica_second"].high
