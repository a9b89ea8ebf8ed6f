"""What belongs to a verdict without deciding it: the stage, the arms, their prompts, what was missed, what to know."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from servescope.contract.identity import replica_of
from servescope.contract.samples import Labels
from servescope.cutover.comparison.outliers import TIMED
from servescope.cutover.conditions.load import load_range, recent_load
from servescope.cutover.conditions.warmth import MOST_SECONDS
from servescope.cutover.evidence import shares
from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.evidence.folding import ArmArrays, ArmFold
from servescope.cutover.evidence.stages import Course
from servescope.cutover.judgement import ArmState, PromptMix, StageState
from servescope.cutover.plan.plan import CutoverPlan, FrozenPlan
from servescope.cutover.verdict.ended import ScrapedBlocks
from servescope.cutover.verdict.stage import StageTrack
from servescope.cutover.verdict.tracks import DEGRADED, MetricTrack
from servescope.increments.blocks import BLOCK_MS
from servescope.settings.values import format_instant, format_wait

_CHANCE: Final = 0.01
"""How often a share that is as planned may be said to differ."""


def stage_state(frozen: FrozenPlan, stage: StageTrack) -> StageState:
    """The stage, with the share that v2 is observed to have."""
    planned = frozen.plan.stages[stage.span.index]
    requests = [float(each.requests.sum()) for each in stage.loads]
    observed = requests[1] / sum(requests) if sum(requests) > 0.0 else None
    differs = observed is not None and _share_differs(stage, planned.share, observed)
    return StageState(
        index=stage.span.index, count=len(frozen.plan.stages), share=planned.share, observed_share=observed,
        differs=differs,
        since_ms=stage.span.begun_ms,
        earliest_end_ms=stage.span.begun_ms + round(planned.least_hours * 3_600_000),
    )  # fmt: skip


def _share_differs(stage: StageTrack, planned: float, observed: float) -> bool:
    """Whether v2's share is not the planned one, by more than is immaterial and than chance explains."""
    if not 0.0 < planned < 1.0:
        return observed != planned
    v1, v2 = (each.requests for each in stage.loads)
    evidence = shares.log_evidence_of_mismatch(v1, v2, planned, dispersion=shares.CONVERSATION)
    return shares.differs(observed, planned) and bool(evidence[-1] >= -math.log(_CHANCE))


def last_scrape(arm: ArmFold, evidence: Evidence) -> int | None:
    """When any replica of an arm was last scraped, in milliseconds; None where none ever was."""
    return max(
        (evidence.last_scrape_ms[replica] for replica in arm.replicas if replica in evidence.last_scrape_ms),
        default=None,
    )


def arm_state(arm: ArmFold, evidence: Evidence, stage: StageTrack, index: int) -> ArmState:
    """How well an arm was observed in the stage: v1 has the index 0."""
    within = stage.within
    carried, coverage = stage.loads[index], stage.coverage[index]
    counts = {
        name: float(getattr(arm, name)[:, within].sum()) for name in ("scrapes", "failed", "torn", "resets", "gaps")
    }
    parts = [evidence_parts(track, index) for track in stage.tracks.values() if track.plan.required]
    return ArmState(
        deployments=tuple(sorted(set(arm.deployments))),
        replicas=int((arm.present[:, within].any(axis=1)).sum()),
        scrapes=int(counts["scrapes"]),
        expected=round(float(coverage.expected[-1])) if coverage.expected.size else 0,
        failed=int(counts["failed"]), torn=int(counts["torn"]), resets=int(counts["resets"]), gaps=int(counts["gaps"]),
        requests=float(carried.requests.sum()),
        warm=bool(stage.blocks.size) and not _cold(arm, stage, index),
        cold_start_seconds=stage.warmth[index].seconds,
        saturated_share=float(carried.saturated.mean()) if carried.saturated.size else 0.0,
        requests_per_replica_second=recent_load(carried.per_replica),
        last_scrape_ms=last_scrape(arm, evidence),
        covered=min((each for each, _ in parts if each is not None), default=None),
        rejected=max((each for _, each in parts if each is not None), default=None),
    )  # fmt: skip


def evidence_parts(track: MetricTrack, arm: int) -> tuple[float | None, float | None]:
    """The parts of an arm's requests that the evidence of a metric has, and that were thrown away; v1 is 0."""
    if track.judged.kind == "band" or not track.codes.size:
        return None, None
    found = track.coverage[arm]
    return float(found.covered[-1]), float(found.rejected[-1])


def _cold(arm: ArmFold, stage: StageTrack, index: int) -> bool:
    """Whether a replica that served in the last block is not warm yet."""
    last = stage.within.stop - 1
    served = np.nan_to_num(arm.traffic["requests"][:, last]) > 0.0
    return bool((served & ~stage.warmth[index].usable[:, last]).any())


def prompt_mix(frozen: FrozenPlan, stage: StageTrack) -> PromptMix:
    """How far apart the prompts of both arms are."""
    mix = stage.mix
    if not stage.blocks.size:
        return PromptMix(None, False, False, False, "no block of this stage has closed yet")
    if mix is None:
        return PromptMix(None, False, False, False, "at least one arm does not report the tokens of its prompts")
    distance, chance = float(mix.distance[-1]), float(mix.chance[-1])
    differs, refused = bool(mix.differs[-1]), bool(mix.refused[-1])
    moved = (
        f"{100 * distance:.0f} % of the requests have prompts of another size than on v1, "
        f"{100 * chance:.0f} % by chance"
    )
    if not differs:
        return PromptMix(distance, False, False, False, f"the arms get the same prompts: {moved}")
    if refused:
        return PromptMix(
            distance, True, False, True, f"the arms get different prompts: {moved}, too many to adjust for"
        )
    adjusted = bool(frozen.slopes)
    how = "adjusted by v1's own slopes" if adjusted else "and v1's past does not show what that moves"
    return PromptMix(distance, True, adjusted, False, f"the arms get different prompts: {moved}; {how}")


def missed_spans(scraped: ScrapedBlocks, end_ms: int, course: Course) -> tuple[tuple[int, int, str], ...]:
    """The spans of the run up to a time in which nothing was scraped, and those that were excluded."""
    found = [(each.start_ms, each.end_ms, each.reason) for each in course.excluded]
    since_ms = course.since_ms
    for arm, name in zip(scraped.arms, ("v1", "v2"), strict=True):
        # v1 was there before the run began: samples of its beginning may not be held any more.
        began = name == "v1"
        start: int | None = None
        for block, here in zip(scraped.blocks.tolist(), arm.tolist(), strict=True):
            if block + BLOCK_MS <= since_ms:
                continue
            began = began or here
            if began and not here and start is None:
                start = block
            if here and start is not None:
                found.append((start, block, f"{name} was not scraped"))
                start = None
        if start is not None:
            found.append((start, end_ms, f"{name} was not scraped"))
    return tuple(sorted(found))


def uncalibrated_of(frozen: FrozenPlan) -> list[str]:
    """The metrics whose noise v1's past does not show though it has data of them."""
    return sorted(
        name for name, noise in frozen.noise.items() if not noise.calibrated and name not in frozen.unobservable
    )


def notes_of(
    frozen: FrozenPlan, folded: ArmArrays, stage: StageTrack, evidence: Evidence, course: Course
) -> tuple[str, ...]:
    """What else is to be known of a judgement, a sentence each."""
    notes = [*evidence.problems, *evidence.warnings]
    if course.rolled_back is not None:
        notes.append(f"rolled back by {course.rolled_back.by}: {course.rolled_back.reason}")
    uncalibrated = uncalibrated_of(frozen)
    if uncalibrated:
        notes.append(
            "uncalibrated: v1's past was too short, or has one replica only, so that the noise is estimated while the "
            f"cutover runs, and how replicas differ for good is not known ({', '.join(uncalibrated)})"
        )
    if folded.v2.replicas and not np.isfinite(folded.v2.started).any():
        notes.append("no source shows when v2's processes began: a restart is found where a counter falls")
    warmth = stage.warmth[1]
    overdue = int(warmth.overdue[:, stage.within].any(axis=1).sum())
    if overdue:
        notes.append(
            f"{overdue} replica{'s' if overdue > 1 else ''} of v2 did not become warm within "
            f"{format_wait(MOST_SECONDS)} of a day, and what they serve since is compared as it is"
        )
    if warmth.seconds is not None and warmth.cost.requests > 0.0:
        cost, requests = warmth.cost.excess, f"{warmth.cost.requests:.0f} requests"
        # Below 0 the cold requests were faster than warm ones, which is their noise and no gain.
        paid = f"cost {cost:.4g} request-seconds over {requests}"
        if cost <= 0.0:
            paid = f"cost nothing: its {requests} until then were not slower than v1's"
        notes.append(f"warming up took v2 up to {format_wait(warmth.seconds)} and {paid}")
    notes.extend(_section_notes(stage))
    notes.extend(_answer_notes(stage))
    notes.extend(_replica_notes(folded, stage))
    notes.extend(each for each in (load_note(frozen, stage), *_share_notes(frozen, folded, stage, evidence)) if each)
    notes.extend(configuration_notes(frozen.plan, evidence))
    return tuple(notes)


def _answer_notes(stage: StageTrack) -> list[str]:
    """That requests last longer as their answers are longer: by v2, or by users who ask it for more."""
    duration, answers = (stage.tracks.get(name) for name in ("request_duration_seconds", "output_tokens_per_request"))
    if duration is None or answers is None or answers.plan.better != "lower":
        return []
    if not stage.blocks.size or not duration.codes[-1] == answers.codes[-1] == DEGRADED:
        return []
    longer, _ = answers.shown(len(answers.codes) - 1)
    if longer is None:
        return []
    return [
        f"v2's answers are {100.0 * math.expm1(longer.cost):.0f} % longer than v1's, so that requests last longer: "
        "time per output token says whether v2 is slower, and users of one stack only may ask for longer answers"
    ]


def _section_notes(stage: StageTrack) -> list[str]:
    """Of a stage that is older than its evidence, which part of it is judged."""
    if not stage.span.section:
        return []
    lasted = format_wait((stage.span.until_ms - stage.span.begun_ms) / 1000)
    return [
        f"the stage has lasted for {lasted}: it is judged by what was observed since "
        f"{format_instant(stage.span.evidence_ms)}, and harm from before is known until it is acknowledged"
    ]


_MOST_NAMED: Final = 3


def _replica_notes(folded: ArmArrays, stage: StageTrack) -> list[str]:
    """Which replicas were left out of their arm and for how long, and that a single one cannot be."""
    notes = []
    for name, arm, found in zip(("v1", "v2"), (folded.v1, folded.v2), stage.outliers, strict=True):
        blocks = (~found.kept).sum(axis=1)
        longest = [replica for replica in np.argsort(-blocks, kind="stable").tolist() if blocks[replica]]
        each = [
            f"{replica_of(arm.replicas[replica])} for {format_wait(float(blocks[replica]) * BLOCK_MS / 1000)}"
            for replica in longest[:_MOST_NAMED]
        ]
        if len(longest) > _MOST_NAMED:
            each.append(f"{len(longest) - _MOST_NAMED} more")
        if each:
            notes.append(f"left out of {name}, as one replica alone differed from the others: {', '.join(each)}")
    timed = [track.v2.below for track in stage.tracks.values() if track.judged.kind in TIMED]
    if stage.outliers[1].kept.all() and max((int((each > 0.0).any(axis=1).sum()) for each in timed), default=0) == 1:
        notes.append("v2 has one replica: what slows that one alone cannot be distinguished from v2 itself")
    return notes


def configuration_notes(plan: CutoverPlan, evidence: Evidence) -> list[str]:
    """Where the last deploy of an arm was reported with another configuration than the plan records."""
    deployed: dict[str, tuple[str, str]] = {}
    for event in sorted(evidence.events, key=lambda each: each.time_ms):
        found = dict(event.detail).get("configuration", "")
        if event.kind == "deploy" and found:
            about = {
                arm.name
                for arm in (plan.v1, plan.v2)
                for target in evidence.targets
                if arm.selects(target.identity) and {*event.labels} <= {*target.identity.labels()}
            }
            deployed |= dict.fromkeys(about, (found, event.text))
    return [
        f"{name} runs another configuration than the plan records: its deploy {text!r} reports {found[:16]}, and "
        f"the plan has {plan.configurations[name][:16]}"
        for name, (found, text) in sorted(deployed.items())
        if name in plan.configurations and found != plan.configurations[name]
    ]


def load_note(frozen: FrozenPlan, stage: StageTrack) -> str | None:
    """That the verdict is of the load seen, where v1's busiest hours have not been; None where they have."""
    seen = load_range(stage.loads[1].per_replica[stage.relation.free])
    if seen is None or frozen.top_load is None or seen[1] >= frozen.top_load:
        return None
    return (
        f"at the load seen: {seen[0]:.2g} to {seen[1]:.2g} requests per replica and second, while the busiest third of "
        f"v1's past began at {frozen.top_load:.2g}"
    )


def _share_notes(frozen: FrozenPlan, folded: ArmArrays, stage: StageTrack, evidence: Evidence) -> list[str]:
    plan = frozen.plan
    share, state = plan.stages[stage.span.index].share, stage_state(frozen, stage)
    notes = []
    if state.differs and state.observed_share is not None:
        seen = 100 * state.observed_share
        notes.append(f"v2 gets {seen:.1f} % of the requests, and this stage plans {100 * share:.1f} %")
    configured = _configured_share(folded, evidence, stage)
    if configured is not None and shares.differs(configured, min(max(share, 1e-6), 1.0 - 1e-6)):
        notes.append(
            f"v2 is configured to get {100 * configured:.1f} % of the requests, "
            f"and this stage plans {100 * share:.1f} %"
        )
    later = [each.share for each in plan.stages[stage.span.index + 1 :]]
    if any(each > 1.0 - plan.holdback for each in (share, *later[:1])):
        notes.append(
            f"v1 needs a holdback of {100 * plan.holdback:.0f} % of the requests: with less there is no control, "
            "and nothing can be proven"
        )
    return notes


def _configured_share(folded: ArmArrays, evidence: Evidence, stage: StageTrack) -> float | None:
    """The share that was configured last for v2's stacks, as far as the event log says; None where it does not."""
    until = stage.span.until_ms
    ratios: dict[Labels, float] = {}
    for event in sorted(evidence.events, key=lambda each: each.time_ms):
        ratio = dict(event.detail).get("ratio")
        if event.kind == "traffic_split" and event.time_ms <= until and ratio:
            ratios[event.labels] = float(ratio)
    stacks = {target.identity.inference_stack for target in evidence.targets if target.target_id in folded.v2.replicas}
    found = [ratio for labels, ratio in ratios.items() if dict(labels).get("inference_stack") in stacks]
    return found[0] if len(found) == 1 else None
