"""The judge: what it says of a cutover, from made-up evidence of known truth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.cutover.evidence import Decision, Evidence
from servescope.cutover.freezing import freeze
from servescope.cutover.judgement import Judgement
from servescope.cutover.judging import judge
from servescope.cutover.plan import FrozenPlan
from tests.support.cutover_evidence import Side, Story, evidence_of, plan_of

V1 = Side(pods=6)
V2 = Side(pods=2)
STORY = Story(past_hours=26, hours=3, v1=V1, v2=V2)


def judged(story: Story, *, at_ms: int | None = None, decisions: tuple[Decision, ...] = ()) -> Judgement:
    """The judgement at the end of a story, or at another time of it."""
    evidence = evidence_of(story)
    return judge(frozen_of(story, evidence), evidence, (start(story), *decisions), at_ms or story.end_ms)


def frozen_of(story: Story, evidence: Evidence) -> FrozenPlan:
    """The least plan, frozen when the story's cutover starts."""
    return freeze(plan_of(story.share), evidence, story.started_ms)


def start(story: Story) -> Decision:
    """The first entry of the journal."""
    return Decision("start", story.started_ms, stage=0)


def test_an_equal_stack_is_proven_healthy() -> None:
    """Every required metric is proven within its margin, and the advice is to go on."""
    judgement = judged(STORY)

    assert judgement.verdict == "HEALTHY"
    assert judgement.advice == "go on"
    assert [each.verdict for each in judgement.metrics if each.required] == ["HEALTHY"] * 6
    assert all(each.high is not None and each.high < 1.1 for each in judgement.metrics if each.name.endswith("seconds"))


@pytest.mark.parametrize(
    ("v2", "metric"),
    [
        (replace(V2, first_token=1.3), "time_to_first_token_seconds"),
        (replace(V2, slower=1.3), "tps_per_request"),
        (replace(V2, errors=0.01), "request_error_share"),
        (replace(V2, rejected=0.08), "request_rejected_share"),
    ],
    ids=["first token", "slower", "errors", "rejections"],
)
def test_harm_is_proven_and_named(v2: Side, metric: str) -> None:
    """Its metric is DEGRADED, the reason says by how much, and the advice is to roll back."""
    judgement = judged(replace(STORY, v2=v2))
    found = next(each for each in judgement.metrics if each.name == metric)

    assert (judgement.verdict, judgement.advice, judgement.severity) == ("DEGRADED", "roll back", "beyond margin")
    assert found.verdict == "DEGRADED"
    assert found.title in found.reason


def test_a_stack_without_traffic_is_no_data() -> None:
    """No request to v2 is neither health nor harm."""
    judgement = judged(replace(STORY, share=0.0))

    assert judgement.verdict == "NO DATA"
    assert judgement.advice == "hold"


def test_an_idle_replica_is_not_compared() -> None:
    """One v2 replica with 1 % of the requests carries far less than one of v1, and the reason says so."""
    judgement = judged(replace(STORY, share=0.01, v2=Side(pods=1)))

    assert judgement.verdict == "INCONCLUSIVE"
    assert any("load not matched" in each.reason for each in judgement.metrics)


def test_harm_stays_until_it_is_acknowledged() -> None:
    """The verdict latches; an acknowledgement shows the live one again."""
    story = replace(STORY, v2=replace(V2, first_token=1.3))
    judgement = judged(story, decisions=(Decision("acknowledge", story.end_ms - 1, by="ann", reason="seen"),))

    assert judged(story).latched_since_ms is not None
    assert judgement.latched_since_ms is None
    assert judgement.live == "DEGRADED"


def test_an_hour_without_scrapes_is_stale() -> None:
    """What was healthy is NO DATA once nothing is scraped any more."""
    judgement = judged(STORY, at_ms=STORY.end_ms + 3_600_000)

    assert judgement.verdict == "NO DATA"
    assert "scraped" in judgement.reason


def test_a_frozen_plan_survives_json() -> None:
    """And judges the same."""
    evidence = evidence_of(STORY)
    frozen = frozen_of(STORY, evidence)
    again = FrozenPlan.from_json(frozen.to_json())

    assert again == frozen
    assert judge(again, evidence, (start(STORY),), STORY.end_ms) == judge(
        frozen, evidence, (start(STORY),), STORY.end_ms
    )


def test_cold_replicas_are_not_compared() -> None:
    """Harm of the first minutes of a replica is no harm of the stack, and the reason says that it warms up."""
    story = replace(STORY, hours=1, v2=replace(V2, warm=False, first_token=1.5))
    judgement = judged(story, at_ms=story.started_ms + 45 * 60_000)

    assert judgement.verdict == "INCONCLUSIVE"
    assert "warming up" in judgement.reason


def test_warming_up_has_a_cost_of_its_own() -> None:
    """How long it took is stated, and the verdict is of what followed."""
    judgement = judged(replace(STORY, v2=replace(V2, warm=False)))

    assert judgement.verdict == "HEALTHY"
    assert judgement.v2 is not None
    assert judgement.v2.cold_start_seconds is not None
    assert any("warming up took v2" in note for note in judgement.notes)


def test_other_prompts_are_no_verdict_on_the_stack() -> None:
    """Where v2 gets longer prompts, nothing is claimed of what prompts move, and the mix says so."""
    judgement = judged(replace(STORY, v2=replace(V2, prompts=1.4, first_token=1.2)))

    assert judgement.mix is not None
    assert judgement.mix.refused
    assert {each.cause for each in judgement.metrics if each.name.endswith("seconds")} == {"mix"}
