"""The judge: a pure function of the evidence, a frozen plan and what people decided.

Every verdict is found after each block of the whole run, so that it is the same whether blocks are judged as they come,
all at once, or replayed a year later; and so that harm stays known until somebody acknowledges it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from servescope.contract.judged import JudgedMetric
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.cutover import judgement
from servescope.cutover.comparison.comparability import is_replaced
from servescope.cutover.comparison.paths import ArmSums
from servescope.cutover.comparison.spans import Span
from servescope.cutover.conditions.warmth import OLD_SECONDS
from servescope.cutover.evidence import shares
from servescope.cutover.evidence.coverage import HOUR_BLOCKS, STALE_INTERVALS
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.folding import ArmArrays, fold, joined
from servescope.cutover.evidence.stages import Course, StageSpan, course_of
from servescope.cutover.evidence.windows import cut, window_of
from servescope.cutover.plan.plan import FrozenPlan
from servescope.cutover.statistics.sequences import Floats
from servescope.cutover.statistics.slow_fractions import SlowFractions, latest_difference, slow_fractions
from servescope.cutover.verdict import context, wording
from servescope.cutover.verdict.alarms import firing_pages
from servescope.cutover.verdict.efficiency import compare_efficiency
from servescope.cutover.verdict.ended import EndedStages, Harm, decided_before
from servescope.cutover.verdict.overall import overall_ratio
from servescope.cutover.verdict.scope import scope_of
from servescope.cutover.verdict.segments import explain_harm, judged_segments, segment_notes
from servescope.cutover.verdict.stage import StageTrack, judge_stage
from servescope.cutover.verdict.tracks import CODES, DEGRADED, HEALTHY, INCONCLUSIVE, MetricTrack
from servescope.cutover.verdict.waiting import TIMED, waiting_for
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.settings.values import format_wait

_BEFORE_MS = round(OLD_SECONDS * 1000) + 2 * BLOCK_MS
"""How much before the start is folded: replicas that were there already are warm."""
_LONGEST_SECONDS: Final = 90 * 86_400.0
"""A metric that takes longer at the present rate is not settled by it."""
NOTHING_ENDED: Final = EndedStages()


def judge(frozen: FrozenPlan, evidence: Evidence, decisions: Sequence[Decision], at_ms: int) -> judgement.Judgement:
    """The judgement of a cutover at `at_ms`, from everything that was observed and decided until then."""
    return judge_folded(frozen, fold_evidence(frozen, evidence, decisions, at_ms), evidence, decisions, at_ms)


def fold_evidence(
    frozen: FrozenPlan,
    evidence: Evidence,
    decisions: Sequence[Decision],
    at_ms: int,
    former: ArmArrays | None = None,
) -> ArmArrays:
    """The evidence as arrays, from an hour before the start to the last block that is closed.

    With `former`, the same of an earlier time, the evidence need only have the blocks since then.
    """
    course = course_of(frozen.plan, frozen.started_ms, decisions, at_ms)
    part = fold_evidence_part(frozen, evidence, course, course.end_ms, former)
    return part if former is None else joined([former, part])


def first_block(course: Course) -> int:
    """When the first block begins that is folded of a run, in milliseconds."""
    return -(-(course.since_ms - _BEFORE_MS) // BLOCK_MS) * BLOCK_MS


def fold_evidence_part(
    frozen: FrozenPlan, evidence: Evidence, course: Course, end_ms: int, former: ArmArrays | None = None
) -> ArmArrays:
    """As `fold_evidence`, but only the blocks after `former`, the part before them, up to a time at most."""
    targets, faults = _distinct(evidence)
    folded = fold(
        frozen.plan, targets, first_block(course), min(end_ms, evidence.observed_until_ms),
        layers=frozen.layers, edges=frozen.read_edges(), former=former,
    )  # fmt: skip
    return replace(folded, faults=tuple(dict.fromkeys((*folded.faults, *faults))))


def _distinct(evidence: Evidence) -> tuple[list[TargetIncrements], list[str]]:
    """One of the targets of each name, of those whose blocks can be read, and what is wrong with others."""
    counted = Counter(target.target_id for target in evidence.targets)
    faults = [f"target {name!r} is there twice" for name, count in sorted(counted.items()) if count > 1]
    distinct = {}
    whole = not evidence.targets or not (np.concatenate([each.blocks for each in evidence.targets]) % BLOCK_MS).any()
    for target in evidence.targets:
        is_ordered = target.blocks.size < 2 or bool((target.blocks[1:] > target.blocks[:-1]).all())
        if not is_ordered or (not whole and (target.blocks % BLOCK_MS).any()):
            faults.append(f"the blocks of target {target.target_id!r} are not in order")
        if is_ordered:
            distinct[target.target_id] = target
    return list(distinct.values()), faults


def judge_folded(
    frozen: FrozenPlan, folded: ArmArrays, evidence: Evidence, decisions: Sequence[Decision], at_ms: int,
    ended: EndedStages = NOTHING_ENDED,
) -> judgement.Judgement:  # fmt: skip
    """The judgement from evidence that is folded already (`fold_evidence`).

    Of stages that have `ended`, as far as they are known, the blocks need not be there.
    """
    course = course_of(frozen.plan, frozen.started_ms, decisions, at_ms)
    ended = end_stages(frozen, folded, evidence, course, ended)
    scraped = ended.scraped.and_of(folded)
    folded = window_of(folded, course.stages[-1])
    evidence = replace(evidence, problems=(*evidence.problems, *_problems(folded)))
    stage = judge_stage(frozen, folded, evidence, course, course.stages[-1])
    run = _follow(ended, stage, _former(frozen, folded, evidence, course, course.stages[-1]), course)
    effects = ended.effects_with(frozen, stage)
    stale = find_stale(frozen, folded, evidence, course, at_ms)
    rolled_back = course.rolled_back
    metrics = tuple(
        _metric(
            frozen, stage, track, stale, overall_ratio(frozen, effects[name], name), is_over=rolled_back is not None
        )
        for name, track in stage.tracks.items()
    )
    live, reason = _overall(stage, metrics, stale)
    latched_ms = run.latched_ms
    verdict: judgement.Verdict = "DEGRADED" if latched_ms is not None else live
    severity = _severity(live, stage, run)
    if latched_ms is not None and live != "DEGRADED":
        reason = f"{_latched(run.latched_reason)}; now it would be {live}: {reason}"
    elif latched_ms is not None and severity == "beyond margin" and not _is_severe(stage, stage.blocks.size - 1):
        reason = f"{_latched(run.latched_reason)}; what is proven now is not beyond the margin"
    if verdict == "HEALTHY" and context.load_note(frozen, stage) is not None:
        reason = f"{reason}, at the load seen"
    if verdict != "DEGRADED" and rolled_back is not None:
        reason = f"the run was rolled back, and was {verdict} until then: {reason}"
        # A gate that were open would let go on what somebody has ended.
        verdict = "INCONCLUSIVE" if verdict == "HEALTHY" else verdict
    alerts = firing_pages(frozen.plan, evidence.events, at_ms)
    incomparable = {
        track.plan.name: track.comparability.reason
        for track in stage.tracks.values()
        if track.comparability and not is_replaced(track.judged, folded)
    }
    looked_at = [each for each, track in zip(metrics, stage.tracks.values(), strict=True)
                 if not is_replaced(track.judged, folded)]  # fmt: skip
    return judgement.Judgement(
        verdict=verdict,
        reason=reason,
        at_ms=at_ms,
        plan=frozen.plan.name,
        plan_hash=frozen.hash(),
        stage=context.stage_state(frozen, stage),
        metrics=metrics,
        advice=_advice(verdict, live, severity, alerts),
        severity=severity,
        live=live,
        latched_since_ms=latched_ms,
        v1=context.arm_state(folded.v1, evidence, stage, 0),
        v2=context.arm_state(folded.v2, evidence, stage, 1),
        mix=context.prompt_mix(frozen, stage),
        efficiency=compare_efficiency(folded, stage),
        changes=run.changes,
        missed=context.missed_spans(scraped, folded.v1.end_ms(), course),
        incomparable=incomparable,
        notes=(*context.notes_of(frozen, folded, stage, evidence, course), *segment_notes(stage.segments)),
        alerts=alerts,
        waits_for=_waits_for(stage, metrics) if live == "INCONCLUSIVE" and rolled_back is None else "",
        rolled_back=_decided(rolled_back),
        acknowledged=_decided(_acknowledged(decisions, run.changes, at_ms)),
        excluded_harm=_excluded_harm(course, run.changes),
        scope=scope_of(frozen, looked_at, incomparable),
        segments=judged_segments(stage.segments),
    )


def _acknowledged(
    decisions: Sequence[Decision], changes: Sequence[judgement.VerdictChange], at_ms: int
) -> Decision | None:  # fmt: skip
    """The last acknowledgement of harm that had been proven by then."""
    harm_ms = min((each.at_ms for each in changes if each.verdict == "DEGRADED"), default=math.inf)
    found = (each for each in reversed(decisions) if each.kind == "acknowledge" and harm_ms <= each.at_ms <= at_ms)
    return next(found, None)


def _decided(decision: Decision | None) -> judgement.Decided | None:
    return None if decision is None else judgement.Decided(decision.at_ms, decision.by, decision.reason)


def _waits_for(stage: StageTrack, metrics: Sequence[judgement.MetricJudgement]) -> str:
    """What the required metrics wait for beside data, each thing once."""
    deciding = [each for each in metrics if each.decides] or [each for each in metrics if each.required]
    causes = dict.fromkeys(each.cause for each in deciding if each.verdict == "INCONCLUSIVE")
    return "; ".join(filter(None, (waiting_for(stage, cause) for cause in causes))) if stage.blocks.size else ""


def _problems(folded: ArmArrays) -> list[str]:
    """What makes the evidence itself unusable."""
    return [
        *folded.faults,
        *(f"target {name!r} has a series twice" for name in sorted(folded.v1.doubled | folded.v2.doubled)),
        *(f"target {name!r} is in both arms" for name in sorted({*folded.v1.replicas} & {*folded.v2.replicas})),
    ]


# --- The whole run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    changes: tuple[judgement.VerdictChange, ...]
    latched_ms: int | None
    latched_reason: str
    latched_severe: bool
    harm: Harm


def end_stages(
    frozen: FrozenPlan, folded: ArmArrays, evidence: Evidence, course: Course, ended: EndedStages = NOTHING_ENDED
) -> EndedStages:
    """What all stages of a course but the last leave, from what those leave that are known already.

    The evidence is that of the blocks of the others, and of a week before each (`windows`).
    """
    for span in course.stages[len(ended.spans) : -1]:
        window = window_of(folded, span)
        known = replace(evidence, problems=(*evidence.problems, *_problems(window)))
        stage = judge_stage(frozen, window, known, course, span)
        run = _follow(ended, stage, _former(frozen, window, known, course, span), course)
        ended = EndedStages(
            (*ended.spans, span), run.changes, run.harm, ended.effects_with(frozen, stage),
            ended.scraped.and_of(cut(folded, 0, span.until_ms)), decided_before(course, span.until_ms),
        )  # fmt: skip
    return ended


_Former = Sequence[tuple[int, StageTrack]]


def _former(frozen: FrozenPlan, folded: ArmArrays, evidence: Evidence, course: Course, span: StageSpan) -> _Former:
    """A stage as it was until each span of it was left out, with when that was: what was known then stays known."""
    return [
        (each.at_ms, judge_stage(frozen, folded, evidence, course.before(each), span))
        for each in course.excluded
        if each.start_ms < min(each.at_ms, span.until_ms)
        and each.end_ms > span.evidence_ms
        and each.at_ms > span.since_ms
    ]


def _follow(before: EndedStages, latest: StageTrack, former: _Former, course: Course) -> _Run:
    """The run up to the end of a stage, from what the stages before it left."""
    changes: list[judgement.VerdictChange] = list(before.changes)
    began = before.harm.began_ms
    latched = before.harm.latched_ms
    latched_reason, severe = before.harm.reason, before.harm.severe
    acknowledged = list(course.acknowledged_ms)
    for block, start_ms in enumerate(latest.blocks.tolist()[latest.own :], latest.own):
        end_ms = start_ms + BLOCK_MS
        stage = next((each for until_ms, each in former if end_ms <= until_ms), latest)
        code = int(stage.codes[block])
        if latched is not None and any(latched <= each < end_ms for each in acknowledged):
            latched = None
        if code != DEGRADED:
            began = None
        else:
            begins, began = began is None, began or end_ms
            if latched is None and begins:
                latched, latched_reason, severe = end_ms, _reason_at(stage, block), _is_severe(stage, block)
            elif latched is not None and not severe and _is_severe(stage, block):
                latched_reason, severe = _reason_at(stage, block), True
        shown: judgement.Verdict = "DEGRADED" if latched is not None else CODES[code]
        if not changes or changes[-1].verdict != shown or changes[-1].stage != stage.span.index:
            reason = _reason_at(stage, block) if code == DEGRADED or shown != "DEGRADED" else _latched(latched_reason)
            changes.append(judgement.VerdictChange(end_ms, stage.span.index, shown, reason))
    harm = Harm(began, latched, latched_reason, severe)
    if latched is not None and any(latched <= each for each in acknowledged):
        latched = None
    return _Run(tuple(changes), latched, latched_reason, severe, harm)


def _is_severe(stage: StageTrack, block: int) -> bool:
    """Whether harm is beyond the margin after a block."""
    return bool(stage.outage[block]) or any(
        track.gates and track.causes[block] in judgement.SEVERE for track in stage.tracks.values()
    )


def _latched(reason: str) -> str:
    return f"harm was proven and nobody has acknowledged it: {reason}"


def _excluded_harm(course: Course, changes: Sequence[judgement.VerdictChange]) -> tuple[judgement.Exclusion, ...]:
    """The spans that were left out when harm had been proven since they began, or was proven when they did."""
    ends = [*(each.at_ms for each in changes[1:]), math.inf]
    harm = [(each.at_ms, end) for each, end in zip(changes, ends, strict=False) if each.verdict == "DEGRADED"]
    return tuple(
        each for each in course.excluded if any(begun <= each.at_ms and end > each.start_ms for begun, end in harm)
    )


def _reason_at(stage: StageTrack, block: int) -> str:
    """Why the verdict over all metrics is what it is after a block."""
    if stage.outage[block]:
        return "v2 was offered requests and none of them succeeded"
    code = int(stage.codes[block])
    if code == INCONCLUSIVE and stage.off_plan[block]:
        return _off_plan(stage, block)
    if code == INCONCLUSIVE and not stage.usable[block]:
        return "the present is excluded from the judgement"
    harm = _harm_in_segments(stage, block) if code == INCONCLUSIVE else ""
    if harm:
        return harm
    required = [track for track in stage.tracks.values() if track.gates]
    left = [track for track in stage.tracks.values() if track.plan.required and not track.is_judged]
    deciding = [track for track in required or left if int(track.codes[block]) == code]
    if code == HEALTHY:
        proven = f"all {len(required)} required metrics are proven within their margins"
        others = f" (and {len(left) - 1} more)" if left[1:] else ""
        return f"{proven}, without {wording.explain(left[0], block)}{others}" if left else proven
    held = [track for track in stage.tracks.values() if track.plan.role == "guard" and track.codes[block] == DEGRADED]
    if not deciding and held:
        first, more = max(held, key=lambda track: _weight(track, block)), len(held) - 1
        others = f" (and {more} more)" if more else ""
        return f"{wording.explain(first, block)}{others}: a guard, which keeps the verdict from being HEALTHY"
    if not deciding:
        return "all required metrics are proven within their margins, and the stage has to last longer"
    first = max(deciding, key=lambda track: (track.causes[block] in judgement.SEVERE, _weight(track, block)))
    more = len(deciding) - 1
    others = f" (and {more} more)" if more else ""
    return f"{wording.explain(first, block)}{others}"


def _harm_in_segments(stage: StageTrack, block: int) -> str:
    return "" if stage.segments is None else explain_harm(stage.segments, block)


def _off_plan(stage: StageTrack, block: int) -> str:
    seen = 100 * shares.recent_share(*(each.requests for each in stage.loads))[block]
    return (
        f"v2 had {seen:.3g} % of the requests in the last hour, the plan says {100 * stage.share:g} %: move the "
        "traffic to the stage's share, or begin the stage that has this one"
    )


def _weight(track: MetricTrack, block: int) -> float:
    """How much a metric has to do with a verdict: the one with the strongest evidence is named."""
    if track.causes[block] == "objective":
        return math.inf
    if track.causes[block] == "gross harm while warming":
        return float(track.value[block])
    return float(track.path.harm[block]) if track.path is not None else 0.0


# --- The present ------------------------------------------------------------------------------------------------------


def find_stale(frozen: FrozenPlan, folded: ArmArrays, evidence: Evidence, course: Course, at_ms: int) -> str:
    """Which arm was not scraped any more, as a sentence; "" where both were, or the run is over."""
    if course.rolled_back is not None:
        return ""
    limit = STALE_INTERVALS * evidence.scrape_interval_ms
    whole = frozen.plan.stages[course.stages[-1].index].share >= 1.0
    for arm, name in ((folded.v1, "v1"), (folded.v2, "v2")):
        if not arm.replicas or (whole and name == "v1"):
            continue
        last = context.last_scrape(arm, evidence) or evidence.observed_until_ms
        if at_ms - last > limit:
            return f"{name} was last scraped {format_wait((at_ms - last) / 1000)} ago"
    if at_ms - evidence.observed_until_ms > BLOCK_MS + limit:
        return f"nothing was scraped for {format_wait((at_ms - evidence.observed_until_ms) / 1000)}"
    return ""


def _overall(
    stage: StageTrack, metrics: Sequence[judgement.MetricJudgement], stale: str
) -> tuple[judgement.Verdict, str]:
    if not stage.blocks.size:
        return ("NO DATA", f"{stale}") if stale else (
            "INCONCLUSIVE", "the stage has only begun: its first block of five minutes is not complete yet"
        )  # fmt: skip
    block = stage.blocks.size - 1
    code = int(stage.codes[block])
    if stale and code != DEGRADED:
        return "NO DATA", stale
    if (
        code == INCONCLUSIVE
        and not stage.off_plan[block]
        and stage.usable[block]
        and not _harm_in_segments(stage, block)
    ):
        waiting = [each for each in metrics if each.decides and each.verdict == "INCONCLUSIVE"]
        if waiting:
            longest = max(waiting, key=lambda each: each.eta_seconds if each.eta_seconds is not None else math.inf)
            others = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
            return "INCONCLUSIVE", f"{longest.reason}{others}"
    return CODES[code], _reason_at(stage, block)


def _advice(
    verdict: judgement.Verdict, live: judgement.Verdict, severity: Literal["beyond margin", "probable"] | None,
    alerts: Sequence[judgement.FiringAlert],
) -> judgement.Advice:  # fmt: skip
    """Harm beyond the margin that nobody has acknowledged is gone back from, unless health has been proven since."""
    if live == "HEALTHY":
        return "hold" if verdict != "HEALTHY" or any(each.arm == "v2" for each in alerts) else "go on"
    return "roll back" if severity == "beyond margin" else "hold"


def _severity(live: judgement.Verdict, stage: StageTrack, run: _Run) -> Literal["beyond margin", "probable"] | None:
    """That of the worst harm that nobody has acknowledged, else of harm that is proven now."""
    if live != "DEGRADED" and run.latched_ms is None:
        return None
    severe = run.latched_severe if run.latched_ms is not None else _is_severe(stage, stage.blocks.size - 1)
    return "beyond margin" if severe else "probable"


def _metric(
    frozen: FrozenPlan, stage: StageTrack, track: MetricTrack, stale: str, overall: judgement.OverallRatio | None,
    *, is_over: bool,
) -> judgement.MetricJudgement:  # fmt: skip
    """The judgement of a metric after the last block of a stage; of a run that is over nothing is settled any more."""
    plan, judged = track.plan, track.judged
    band = (plan.low, plan.high) if judged.kind == "band" else None
    shared: dict[str, Any] = {
        "name": plan.name, "title": judged.title, "unit": judged.unit, "better": judged.better,
        "required": plan.required, "margin": plan.margin, "floor": plan.floor, "band": band, "overall": overall,
        "guard": plan.role == "guard", "counted": _counted(judged),
    }  # fmt: skip
    if not stage.blocks.size:
        reason = f"{judged.title}: no block of this stage is complete yet"
        return judgement.MetricJudgement(verdict="INCONCLUSIVE", cause="needs data", reason=reason, **shared)
    block = stage.blocks.size - 1
    verdict, cause = CODES[int(track.codes[block])], track.causes[block]
    eta, wanted = (None, None) if cause.startswith("explained") else _eta(track, block)
    path = track.path
    if path is not None and cause == "needs data" and path.information[block] > 0.0 and wanted is None:
        cause = "pods too few" if frozen.noise[plan.name].pod_tau2 > 0.0 else cause
    track = replace(track, causes=np.append(track.causes[:-1], [cause]))
    eta = eta if cause in TIMED and not is_over else None
    shown, parts = track.shown(block)
    reason = wording.explain(track, block, eta, (shown, parts))
    if stale and verdict != "DEGRADED":
        verdict, cause, reason = "NO DATA", "stale", f"{judged.title}: {stale}"
    ratio, low, high = _ratios(track, shown)
    return judgement.MetricJudgement(
        verdict=verdict, cause=cause, reason=reason, ratio=ratio, low=low, high=high,
        information=0.0 if path is None else float(path.information[block]), information_wanted=wanted,
        eta_seconds=eta if verdict == "INCONCLUSIVE" else None,
        v1=None if judged.kind == "band" else _figures(track, shown, 0), v2=_figures(track, shown, 1),
        edges=_edges(frozen, track), flips="" if is_over else _flips(stage, track, verdict, eta),
        notes=(*track.notes, *wording.sensitivity_notes(track, block)), sensitivity=_sensitivity(track, block),
        compared=_compared(track, shown, stage),
        spans=tuple(judgement.EffectSpan(*_times(track, each), *_ratios(track, each)) for each in parts), **shared,
    )  # fmt: skip


def _counted(judged: JudgedMetric) -> str:
    if judged.kind == "events" and not judged.of_requests:
        return "replica-hours"
    if judged.kind != "ratio":
        return ""
    return METRICS[SAMPLE_FAMILIES[judged.below[0].series]].unit if judged.below else "× 1 000 tokens"


def _sensitivity(track: MetricTrack, block: int) -> judgement.SensitivityJudgement | None:
    found = track.sensitivity
    if found is None:
        return None
    ratio, low, high = _ratios(track, found.paths.left.whole(block + 1))
    if ratio is None:
        return None
    v1_reused, v2_reused, v1_load, v2_load = (
        float(each[block]) if math.isfinite(each[block]) else None
        for each in (*found.stage.reused, *found.stage.loads)
    )  # fmt: skip
    sign = -1.0 if track.plan.better == "higher" else 1.0
    by_reuse, by_load = (math.exp(sign * float(each[block])) for each in (found.paths.by_reuse, found.paths.by_load))
    return judgement.SensitivityJudgement(
        v1_reused, v2_reused, v1_load, v2_load, by_reuse, by_load, ratio, low, high,
        explained=bool(found.explained[block]), harmful=bool(found.harmful[block]),
    )  # fmt: skip


def _flips(stage: StageTrack, track: MetricTrack, verdict: judgement.Verdict, eta: float | None) -> str:
    """What would change the verdict: what is waited for before any limit counts."""
    block = stage.blocks.size - 1
    waits = waiting_for(stage, track.causes[block]) if verdict == "INCONCLUSIVE" else ""
    return waits or wording.flips(track, block, verdict, eta)


def _times(track: MetricTrack, span: Span) -> tuple[int, int]:
    return track.begins_ms + span.first * BLOCK_MS, track.begins_ms + span.end * BLOCK_MS


def _compared(track: MetricTrack, shown: Span | None, stage: StageTrack) -> judgement.ComparedBlocks | None:
    return (
        None
        if shown is None
        else judgement.ComparedBlocks(*_times(track, shown), shown.blocks, int(stage.usable.sum()))
    )


def _ratios(track: MetricTrack, shown: Span | None) -> tuple[float | None, float | None, float | None]:
    """v2 ÷ v1 with its limits, whichever direction is good."""
    if shown is None:
        return None, None, None
    costs = (shown.cost, shown.low, shown.high)
    if track.plan.better == "higher":
        costs = (-costs[0], -costs[2], -costs[1])
    ratio, low, high = (float(math.exp(each)) if math.isfinite(each) and abs(each) < 700 else None for each in costs)
    return ratio, (0.0 if costs[1] == -math.inf and ratio is not None else low), high


def _eta(track: MetricTrack, block: int) -> tuple[float | None, float | None]:
    """Seconds until the metric is settled at the rate of the last hour, and the information that settles it."""
    path = track.path
    # How long a replica stays worse than the others nobody knows.
    if path is None or track.causes[block] == "one replica":
        return None, None
    wanted, now = float(path.wanted()[block]), float(path.information[block])
    if not math.isfinite(wanted):
        return None, None
    before = max(0, block - HOUR_BLOCKS)
    gained = now - (float(path.information[before]) if block >= HOUR_BLOCKS else 0.0)
    blocks = min(block + 1, HOUR_BLOCKS)
    if wanted <= now:
        # Of events, where enough is gathered, what users saw is still beyond the margin: until when nobody knows.
        return (None if track.judged.kind == "events" else 0.0), wanted
    eta = (wanted - now) / gained * blocks * BLOCK_MS / 1000 if gained > 0.0 else math.inf
    return (eta if eta < _LONGEST_SECONDS else None), wanted


def _figures(track: MetricTrack, shown: Span | None, arm: int) -> judgement.ArmFigures:
    """What an arm did in the blocks that are shown, and beside it in everything."""
    sums = (track.v1, track.v2)[arm]
    covered, rejected = context.evidence_parts(track, arm)
    if shown is None:
        below = float(sums.below.sum())
        level = float(track.value[-1]) if track.value.size and math.isfinite(track.value[-1]) else None
        return judgement.ArmFigures(level, below, covered=covered, rejected=rejected)
    value: float | None = shown.v1
    if arm == 1:
        change = -shown.cost if track.plan.better == "higher" else shown.cost
        value = shown.v1 * math.exp(change) if math.isfinite(change) else None
    count, events = shown.counts[arm], None if shown.events is None else shown.events[arm]
    if value is None and events is not None and count > 0.0:
        value = events / count
    above, whole = (0.0, 0.0) if track.everything is None else track.everything[arm]
    return judgement.ArmFigures(
        value if value is not None and math.isfinite(value) else None, count, events,
        _incidents(sums, slice(shown.first, shown.end)) if events is not None else None,
        everything=above / whole if whole > 0.0 else None, everything_count=whole,
        covered=covered, rejected=rejected,
    )  # fmt: skip


def _incidents(sums: ArmSums, within: slice) -> judgement.Incidents:
    happened, served = sums.above[:, within] > 0.0, sums.below[:, within] > 0.0
    return judgement.Incidents(
        int(happened.sum()), int((happened | served).sum()),
        int(happened.any(axis=1).sum()), int((happened | served).any(axis=1).sum()),
    )  # fmt: skip


def _edges(frozen: FrozenPlan, track: MetricTrack) -> tuple[judgement.EdgeJudgement, ...]:
    if track.v1.slow is None or track.v2.slow is None:
        return ()
    found = []
    for index, edge in enumerate(frozen.edges.get(track.plan.name, ())):
        (n1, slow1), (n2, slow2) = track.v1.slow_at(index), track.v2.slow_at(index)
        if n1.sum() <= 0.0 or n2.sum() <= 0.0:
            continue
        strata = slow_fractions(n1, slow1, n2, slow2)
        difference, low, high = latest_difference(
            strata, edge.tau2, alpha=frozen.plan.alpha_health / 2, wanted=edge.wanted
        )
        if math.isfinite(low):
            shares_above = _slow_shares(strata, n1, slow1)
            found.append(judgement.EdgeJudgement(edge.edge, *shares_above, difference, low, high, low > edge.floor))
    return tuple(found)


def _slow_shares(strata: SlowFractions, requests: Floats, slow: Floats) -> tuple[float, float]:
    """v1's share above an edge in the blocks that are compared, weighted as the difference is, and v2's beside it."""
    weight = float(strata.weight.sum())
    own = np.divide(slow, requests, out=np.zeros_like(slow), where=requests > 0.0)
    v1 = float(strata.weight @ own) / weight
    return v1, v1 + float(strata.excess.sum()) / weight
