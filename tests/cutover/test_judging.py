"""The judge: what it says of a cutover, from made-up evidence of known truth."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Decision, DecisionKind, Evidence
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.plan import FrozenPlan, Stage
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import TargetIncrements
from tests.support.cutover_evidence import Side, Story, evidence_of, frozen_of, metric_of, plan_of

V1 = Side(replicas=6)
V2 = Side(replicas=2)
STORY = Story(past_hours=26, hours=3, v1=V1, v2=V2)


def judged(story: Story, *, at_ms: int | None = None, decisions: tuple[Decision, ...] = ()) -> Judgement:
    """The judgement at the end of a story, or at another time of it."""
    evidence = evidence_of(story)
    return judge(frozen_of(story), evidence, (start(story), *decisions), at_ms or story.end_ms)


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


@pytest.mark.slow
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
    found = metric_of(judgement, metric)

    assert (judgement.verdict, judgement.advice, judgement.severity) == ("DEGRADED", "roll back", "beyond margin")
    assert found.verdict == "DEGRADED"
    assert found.title in found.reason


@pytest.mark.slow
def test_a_stack_without_traffic_is_no_data() -> None:
    """No request to v2 is neither health nor harm."""
    judgement = judged(replace(STORY, share=0.0))

    assert judgement.verdict == "NO DATA"
    assert judgement.advice == "hold"


def test_an_idle_replica_is_not_compared() -> None:
    """One v2 replica with 1 % of the requests carries far less than one of v1, and the reason says so."""
    judgement = judged(replace(STORY, share=0.01, v2=Side(replicas=1)))

    assert judgement.verdict == "INCONCLUSIVE"
    assert any("load not matched" in each.reason for each in judgement.metrics)


@pytest.mark.slow
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
    frozen = frozen_of(STORY)
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


@pytest.mark.slow
def test_warming_up_has_a_cost_of_its_own() -> None:
    """How long it took is stated, and the verdict is of what followed."""
    judgement = judged(replace(STORY, v2=replace(V2, warm=False)))

    assert judgement.verdict == "HEALTHY"
    assert judgement.v2 is not None
    assert judgement.v2.cold_start_seconds is not None
    assert any("warming up took v2" in note for note in judgement.notes)


@pytest.mark.slow
def test_warming_up_that_does_not_end_is_said() -> None:
    """A replica that restarts every hour is compared after four hours of it, and just restarted never HEALTHY."""
    story = replace(STORY, hours=9)
    evidence = evidence_of(story)
    hourly = [
        replace(target, started_ms=(target.blocks // 3_600_000 * 3_600_000).astype(float))
        if target.identity.replica == "v2-0"
        else target
        for target in evidence.targets
    ]
    restarted = replace(evidence, targets=tuple(hourly))
    judgement = judge(frozen_of(story), restarted, (start(story),), story.end_ms - 45 * 60_000)

    assert judgement.verdict == "INCONCLUSIVE"
    assert any(note.startswith("1 replica of v2 did not become warm within 4 h of a day") for note in judgement.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("first_token", "cost"), [(1.5, r"cost [\d.]+ request-seconds"), (0.7, "cost nothing")])
def test_a_cold_start_that_was_not_slower_cost_nothing(first_token: float, cost: str) -> None:
    """An excess is stated where there is one, and never a negative number."""
    notes = judged(replace(STORY, v2=replace(V2, warm=False, first_token=first_token))).notes
    (note,) = (each for each in notes if each.startswith("warming up took v2"))

    assert re.search(cost, note), note


def test_before_the_first_block_closes_nothing_is_said_of_the_prompts() -> None:
    """Right after a stage began the mix waits for its first block, and does not claim that prompts are not reported."""
    judgement = judged(STORY, at_ms=STORY.started_ms + 60_000)

    assert judgement.mix is not None
    assert judgement.mix.reason == "no block of this stage has closed yet"


def test_other_prompts_are_no_verdict_on_the_stack() -> None:
    """Where v2 gets longer prompts, nothing is claimed of what prompts move, and the mix says so."""
    judgement = judged(replace(STORY, v2=replace(V2, prompts=1.4, first_token=1.2)))

    assert judgement.mix is not None
    assert judgement.mix.refused
    assert {each.cause for each in judgement.metrics if each.name.endswith("seconds")} == {"mix"}


def test_without_a_past_the_noise_is_learnt_first() -> None:
    """One replica each shows no noise: for three hours nothing is claimed of latencies, and the note says why."""
    story = replace(STORY, hours=6, share=0.5, v1=Side(replicas=1), v2=Side(replicas=1, slower=1.3))
    early, late = judged(story, at_ms=story.started_ms + 2 * 3_600_000), judged(story)

    assert early.verdict == "INCONCLUSIVE"
    assert {each.cause for each in early.metrics if each.name.endswith("seconds")} == {"uncalibrated"}
    assert late.verdict == "DEGRADED"
    assert any(note.startswith("uncalibrated: v1's past was too short") for note in late.notes)


# --- Stages and decisions ---------------------------------------------------------------------------------------------


def decided(kind: DecisionKind, story: Story, hours: float, **values: int) -> Decision:
    """A decision so many hours into a story."""
    return Decision(kind, story.started_ms + round(hours * 3_600_000), by="ann", reason="as planned", **values)


def judged_in_stages(story: Story, *decisions: Decision, at_ms: int | None = None) -> Judgement:
    """The judgement of a plan whose two stages have the same share."""
    evidence = evidence_of(story)
    plan = replace(plan_of(story.share), stages=(Stage(story.share, least_hours=2.9), Stage(story.share + 0.01)))
    frozen = freeze(plan, evidence, story.started_ms)
    return judge(frozen, evidence, (start(story), *decisions), at_ms or story.end_ms)


@pytest.mark.slow
def test_a_late_regression_is_found() -> None:
    """Though the hours before it were good, within half an hour."""
    story = replace(STORY, hours=8, v2=replace(V2, slower=1.3, from_hour=6.0))
    judgement = judged(story)
    degraded = [change for change in judgement.changes if change.verdict == "DEGRADED"]

    assert judgement.verdict == "DEGRADED"
    assert 0 < degraded[0].at_ms - (story.started_ms + 6 * 3_600_000) <= 1_800_000
    assert "became worse" in degraded[0].reason


@pytest.mark.slow
def test_a_stage_is_proven_anew() -> None:
    """What the stage before proved does not count, and the stage is the journal's."""
    early = judged_in_stages(STORY, decided("advance", STORY, 2.9, stage=1))
    late = judged_in_stages(STORY, decided("advance", STORY, 1.5, stage=1))

    assert (early.stage.index, early.verdict) == (1, "INCONCLUSIVE")
    assert (late.stage.index, late.verdict) == (1, "HEALTHY")


@pytest.mark.slow
def test_a_stage_lasts_as_long_as_it_has_to() -> None:
    """Proof alone does not end it before."""
    judgement = judged_in_stages(STORY, at_ms=STORY.started_ms + 165 * 60_000)

    assert judgement.verdict == "INCONCLUSIVE"
    assert "has to last longer" in judgement.reason


@pytest.mark.slow
def test_harm_of_a_stage_is_latched_in_the_next() -> None:
    """Until it is acknowledged; advancing alone is no acknowledgement."""
    story = replace(STORY, hours=4, v2=replace(V2, errors=0.02))
    recovered = replace(story, v2=replace(V2, errors=0.002))
    harmed, good = evidence_of(story), evidence_of(recovered)
    cut = story.started_ms + 2 * 3_600_000
    targets = tuple(_spliced(one, other, cut) for one, other in zip(harmed.targets, good.targets, strict=True))
    evidence = replace(harmed, targets=targets)
    plan = replace(plan_of(0.25), stages=(Stage(0.25), Stage(0.26)))
    frozen = freeze(plan, evidence, story.started_ms)
    journal = (start(story), decided("advance", story, 2.0, stage=1))
    judgement = judge(frozen, evidence, journal, story.end_ms)
    acknowledged = judge(frozen, evidence, (*journal, decided("acknowledge", story, 3.0)), story.end_ms)

    assert (judgement.verdict, judgement.live) == ("DEGRADED", "HEALTHY")
    assert judgement.reason.startswith("harm was proven and nobody has acknowledged it: Errors")
    assert [each.reason.partition(": Errors")[0] for each in judgement.changes if each.stage == 1] == [
        "harm was proven and nobody has acknowledged it"
    ]
    assert (acknowledged.verdict, acknowledged.latched_since_ms) == ("HEALTHY", None)


def _spliced(before: TargetIncrements, after: TargetIncrements, cut_ms: int) -> TargetIncrements:
    return replace(before, gains=np.where(before.blocks < cut_ms, before.gains, after.gains))


SLOW_HOUR = replace(STORY, hours=6, v2=replace(V2, slower=1.5, from_hour=1.0))


def recovered(story: Story) -> Evidence:
    """A story whose v2 is as v1 again from its second hour on."""
    harmed, good = evidence_of(story), evidence_of(replace(story, v2=V2))
    cut = story.started_ms + 2 * 3_600_000
    targets = tuple(_spliced(one, other, cut) for one, other in zip(harmed.targets, good.targets, strict=True))
    return replace(harmed, targets=targets)


def judged_excluding(hour: float, *decisions: Decision) -> Judgement:
    """The judgement after six hours of a slow second hour that was left out at an hour of the cutover, whole."""
    evidence, begin_ms = recovered(SLOW_HOUR), SLOW_HOUR.started_ms + 3_600_000
    excluded = decided("exclude", SLOW_HOUR, hour, start_ms=begin_ms, end_ms=begin_ms + 3_600_000)
    return judge(
        frozen_of(SLOW_HOUR), evidence, (start(SLOW_HOUR), excluded, *decisions),
        SLOW_HOUR.started_ms + 6 * 3_600_000,
    )  # fmt: skip


@pytest.mark.slow
def test_an_excluded_span_does_not_count() -> None:
    """A deploy that slows v2 for an hour is left out before it happens, and listed with its reason."""
    judgement = judged_excluding(0.9)

    assert judgement.verdict == "HEALTHY", judgement.reason
    assert [each.verdict for each in judgement.changes if each.verdict == "DEGRADED"] == []
    assert judgement.excluded_harm == ()
    begin_ms = SLOW_HOUR.started_ms + 3_600_000
    assert judgement.missed == ((begin_ms, begin_ms + 3_600_000, "as planned"),)


@pytest.mark.slow
def test_nothing_is_healthy_while_the_present_is_excluded() -> None:
    """What nobody looks at is not proven, whatever was proven before it."""
    story, hours = replace(STORY, hours=6), 3_600_000
    evidence, frozen = evidence_of(story), frozen_of(story)
    span = {"start_ms": STORY.started_ms + 4 * hours, "end_ms": STORY.started_ms + 50 * hours}
    journal = (start(STORY), decided("exclude", STORY, 3.9, **span))
    verdicts = [judge(frozen, evidence, journal, STORY.started_ms + hour * hours) for hour in (4, 5)]

    assert [each.verdict for each in verdicts] == ["HEALTHY", "INCONCLUSIVE"]
    assert verdicts[1].reason == "the present is excluded from the judgement"


@pytest.mark.slow
def test_harm_that_is_excluded_afterwards_stays_known() -> None:
    """The latch and the changes stay until somebody acknowledges the harm, and the exclusion is said until the end."""
    judgement = judged_excluding(2.5)
    acknowledged = judged_excluding(2.5, decided("acknowledge", SLOW_HOUR, 3.0))
    before = judge(
        frozen_of(SLOW_HOUR), recovered(SLOW_HOUR), (start(SLOW_HOUR),),
        SLOW_HOUR.started_ms + 9_000_000,
    )  # fmt: skip

    assert (judgement.verdict, judgement.live) == ("DEGRADED", "HEALTHY")
    assert judgement.changes[: len(before.changes)] == before.changes
    assert judgement.latched_since_ms == before.latched_since_ms
    assert (acknowledged.verdict, acknowledged.latched_since_ms) == ("HEALTHY", None)
    assert [each.by for each in acknowledged.excluded_harm] == ["ann"]
    assert acknowledged.to_json()["excluded_harm"][0]["reason"] == "as planned"


@pytest.mark.slow
def test_a_rollback_ends_the_run() -> None:
    """What comes after is not judged, and no silence after it is stale."""
    story = replace(STORY, hours=6, v2=replace(V2, slower=1.5, from_hour=5.0))
    judgement = judged(story, decisions=(decided("rollback", story, 4.9),), at_ms=story.end_ms + 3_600_000)

    assert judgement.live == "HEALTHY", judgement.reason
    assert "rolled back by ann: as planned" in judgement.notes
    assert judgement.changes[-1].verdict == "HEALTHY"


@pytest.mark.slow
def test_a_run_that_was_rolled_back_is_not_healthy() -> None:
    """Nothing of it is served any more, so that no gate may be open, whatever was proven; harm stays what it was."""
    for story, verdict, words in (
        (STORY, "INCONCLUSIVE", "the run was rolled back, and was HEALTHY until then: all 6 required"),
        (replace(STORY, v2=replace(V2, slower=1.5)), "DEGRADED", "than on v1 ("),
    ):
        judgement = judged(story, decisions=(decided("rollback", story, 2.9),))

        assert judgement.verdict == verdict
        assert words in judgement.reason
        assert judgement.advice != "go on"


@pytest.mark.parametrize("planned", [0.05, 0.9, 1.0])
def test_a_share_off_the_plan_proves_nothing_of_the_stage(planned: float) -> None:
    """What is proven is of the share that was seen: the verdict waits, with both shares, and with what to do."""
    evidence = evidence_of(replace(STORY, hours=6))
    frozen = freeze(plan_of(planned), evidence, STORY.started_ms)
    judgement = judge(frozen, evidence, (start(STORY),), STORY.started_ms + 6 * 3_600_000)

    assert judgement.verdict == "INCONCLUSIVE"
    said = rf"v2 had 2[45][.0-9]* % of the requests in the last hour, the plan says {100 * planned:g} %: move"
    assert re.match(said, judgement.reason), judgement.reason
    assert judgement.advice == "hold"
    assert judgement.stage.differs
    assert {each.cause for each in judgement.metrics if each.required} <= {"share", "needs data"}


def test_a_share_off_the_plan_is_seen_where_an_hour_has_few_requests() -> None:
    """Three hundred an hour may be 20 % or 50 % where conversations stay together; those of some hours may not."""
    story = replace(STORY, hours=10, share=0.2, requests_per_minute=5.0, v1=Side(replicas=4), v2=Side(replicas=1))
    evidence = evidence_of(story)
    plan = plan_of(0.5, required=("time_to_first_token_seconds", "tps_per_request"))
    judgement = judge(freeze(plan, evidence, story.started_ms), evidence, (start(story),), story.end_ms)

    assert judgement.verdict == "INCONCLUSIVE"
    assert "the plan says 50 %" in judgement.reason
    assert "HEALTHY" not in {each.verdict for each in judgement.changes}


@pytest.mark.slow
def test_a_stage_is_proven_once_its_share_is_reached() -> None:
    """Only what was seen at the share of the plan counts as health, and harm counts at any share."""
    before, after = (evidence_of(replace(STORY, share=share, hours=6)) for share in (0.2, 0.3))
    moved_ms = STORY.started_ms + 2 * 3_600_000
    targets = tuple(_spliced(one, other, moved_ms) for one, other in zip(before.targets, after.targets, strict=True))
    evidence = replace(before, targets=targets)
    frozen = freeze(plan_of(0.3), evidence, STORY.started_ms)
    verdicts = [
        judge(frozen, evidence, (start(STORY),), moved_ms + minutes * 60_000).verdict for minutes in (0, 30, 240)
    ]
    harmed = evidence_of(replace(STORY, share=0.2, v2=replace(V2, slower=1.5)))
    degraded = judge(freeze(plan_of(0.3), harmed, STORY.started_ms), harmed, (start(STORY),), STORY.end_ms)

    assert verdicts == ["INCONCLUSIVE", "INCONCLUSIVE", "HEALTHY"]
    assert degraded.verdict == "DEGRADED"


def test_a_share_near_the_planned_one_is_as_planned() -> None:
    """Traffic is never divided exactly; a note says a difference that does not matter to the proof."""
    evidence = evidence_of(replace(STORY, share=0.87, v1=replace(V1, replicas=2), v2=replace(V2, replicas=13), hours=6))
    frozen = freeze(plan_of(0.9), evidence, STORY.started_ms)
    judgement = judge(frozen, evidence, (start(STORY),), STORY.started_ms + 6 * 3_600_000)

    assert judgement.verdict == "HEALTHY", judgement.reason
    assert any(note.startswith("v2 gets 87") for note in judgement.notes)


def test_the_last_stages_need_a_holdback() -> None:
    """Before the stage that leaves v1 nothing, the judgement asks for a control."""
    evidence = evidence_of(STORY)
    judgement = judge(freeze(plan_of(0.25, 1.0), evidence, STORY.started_ms), evidence, (start(STORY),), STORY.end_ms)

    assert any(note.startswith("v1 needs a holdback of 5 %") for note in judgement.notes)


def test_the_same_is_said_with_json() -> None:
    """At its top as published, and times by RFC 3339."""
    values = judged(STORY).to_json()

    assert list(values)[:7] == ["verdict", "reason", "at", "plan", "plan_hash", "stage", "metrics"]
    assert values["at"].endswith("Z")
    first = values["metrics"][0]
    assert {"name", "verdict", "reason", "ratio", "low", "high", "margin", "information", "eta_seconds"} <= set(first)
    assert next(each for each in values["metrics"] if each["name"] == "speculation_rate")["margin"] is None


@pytest.mark.slow
def test_a_run_that_was_rolled_back_waits_for_nothing() -> None:
    """Where nothing had been proven yet, the page, the command and the report promise no more than what there was."""
    story = replace(STORY, requests_per_minute=60.0, hours=1)
    going_on = judged(story)
    judgement = judged(story, decisions=(decided("rollback", story, 0.99),))

    assert any(each.eta_seconds or each.flips for each in going_on.metrics if each.required)
    assert judgement.reason.startswith("the run was rolled back, and was INCONCLUSIVE until then")
    assert not judgement.waits_for
    assert not any(each.eta_seconds or each.flips or "to be settled" in each.reason for each in judgement.metrics)


def test_nobody_acknowledges_what_was_not_proven() -> None:
    """An acknowledgement of a v2 that never harmed is in the journal, and not said of harm."""
    harmed = replace(STORY, v2=replace(V2, first_token=1.3))
    acknowledged = decided("acknowledge", STORY, 2.9)

    assert judged(STORY, decisions=(acknowledged,)).acknowledged is None
    found = judged(harmed, decisions=(acknowledged,)).acknowledged
    assert found is not None
    assert found.by == "ann"


def test_the_last_scrape_of_an_arm_is_the_one_that_is_said_to_be_old() -> None:
    """Not the end of the last block: a verdict that is stale and the table below it have the same time."""
    evidence = evidence_of(STORY)
    scraped_ms = STORY.end_ms - 100_000
    evidence = replace(evidence, last_scrape_ms=dict.fromkeys(evidence.last_scrape_ms, scraped_ms))
    judgement = judge(frozen_of(STORY), evidence, (start(STORY),), scraped_ms + 600_000)

    assert judgement.reason == "v1 was last scraped 10 min ago"
    for arm in (judgement.v1, judgement.v2):
        assert arm is not None
        assert arm.last_scrape_ms == scraped_ms
