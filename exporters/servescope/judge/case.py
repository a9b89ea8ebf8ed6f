"""A case: a run of a plan, or a plan that is judged without a journal, and the history that it is judged from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from servescope.contract.events import Event
from servescope.cutover.comparison.freezing import freeze_from
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.folding import ArmArrays
from servescope.cutover.evidence.stages import course_of
from servescope.cutover.forecast.duration import StageForecast, forecast_stages
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.files import check_arms
from servescope.cutover.plan.plan import CutoverPlan, FrozenPlan
from servescope.cutover.verdict.judge import find_stale, first_block, judge_folded
from servescope.errors import ServescopeError
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.checkpoints.checkpoints import Checkpoint
from servescope.judge.checkpoints.folds import FINAL_MS, Parts
from servescope.judge.reading import closed_until, find_identities, last_scraped, read_evidence, refresh_evidence
from servescope.settings.clock import AHEAD_MS
from servescope.settings.values import format_instant
from servescope.store.history import History

BEFORE_MS: Final = 3_600_000
"""How much is read from before a start: replicas that were there already are warm."""
_AFRESH_BLOCKS: Final = 12
_READ_MS: Final = 86_400_000
"""What is read of a run at once: a store refuses more than a day and a half of two hundred replicas."""
_NOTHING: Final = Parts()


def _keep_nothing(_: Sequence[ArmArrays], __: int) -> None:
    """Where no file is to keep what was folded."""


class EvidenceError(ServescopeError):
    """The history did not answer, or not wholly, so that nothing new is known."""


def freeze_plan(history: History, plan: CutoverPlan, started_ms: int) -> FrozenPlan:
    """The plan frozen at a time from what was observed before it.

    Raises UsageError when its arms overlap or select nothing, EvidenceError when the history cannot be read.
    """
    evidence = read_calibration(history, plan, started_ms)
    known = find_identities(history, evidence)
    check_arms(plan, known)
    return replace(freeze_from(plan, evidence, started_ms), judged=plan.v2.shared_labels(known))


def read_calibration(history: History, plan: CutoverPlan, started_ms: int) -> Evidence:
    """What was observed before a start, as far back as the plan calibrates; raises EvidenceError."""
    since_ms = started_ms - round(plan.calibration_hours * 3_600_000)
    # Nothing is frozen from events, which are of two days here.
    evidence = read_evidence(history, plan, since_ms, started_ms, events_from_ms=started_ms)
    if evidence.problems:
        raise EvidenceError(f"plan {plan.name!r} cannot be frozen: {'; '.join(evidence.problems)}")
    return evidence


def forecast_case(history: History, plan: CutoverPlan, at_ms: int) -> tuple[StageForecast, ...]:
    """What each stage is expected to settle, from v1's past before a time; v2 need not be there yet.

    Raises UsageError when the arms overlap or v1 selects nothing, EvidenceError when the history cannot be read.
    """
    evidence = read_calibration(history, plan, at_ms)
    known = find_identities(history, evidence)
    if any(plan.v2.selects(each) for each in known) or not any(plan.v1.selects(each) for each in known):
        check_arms(plan, known)
    return forecast_stages(freeze_from(plan, evidence, at_ms), evidence)


@dataclass(frozen=True, slots=True)
class FoldedCase:
    """What was observed of a run: the blocks that its stage is judged by, and the evidence that was read last.

    `parts` are all that is kept of it, with what earlier stages left, `final` those that do not change any more.
    """

    folded: ArmArrays
    evidence: Evidence
    parts: Parts
    final: Parts

    def judge(self, frozen: FrozenPlan, decisions: Sequence[Decision], at_ms: int) -> Judgement:
        """The judgement from it."""
        return judge_folded(frozen, self.folded, self.evidence, decisions, at_ms, self.parts.ended)


def fold_case(
    history: History, frozen: FrozenPlan, decisions: Sequence[Decision], at_ms: int, known: Parts = _NOTHING,
    keep: Callable[[Sequence[ArmArrays], int], None] = _keep_nothing,
) -> FoldedCase:  # fmt: skip
    """What was observed of a run from an hour before its start until `at_ms`.

    Only what is newer than the `known` parts is read. Parts that are final are passed to `keep`, with the scrape
    interval in milliseconds they were read with. Where the history cannot be read wholly, the `problems` of the
    evidence say so, and nothing newer is read: what it would have counts as missing.
    """
    course = course_of(frozen.plan, frozen.started_ms, decisions, at_ms)
    begin_ms = _start_ms(frozen, decisions) - BEFORE_MS
    parts = final = known
    last_scrapes: dict[str, int] = {}
    settled_ms = 3 * BLOCK_MS
    while True:
        # What is folded without a block yet ends at 0.
        known_ms = max(begin_ms, parts.end_ms)
        end_ms = _part_end(begin_ms, known_ms)
        until_ms = min(at_ms, end_ms + settled_ms)
        events_from_ms = begin_ms if until_ms == at_ms else until_ms
        evidence = read_evidence(history, frozen.plan, known_ms, until_ms, events_from_ms=events_from_ms)
        if evidence.problems:
            # No more is read, and what there would be is missing.
            until_ms, closed_ms = at_ms, closed_until(at_ms, evidence.scrape_interval_ms)
            evidence = replace(evidence, observed_until_ms=closed_ms)
        last_scrapes |= evidence.last_scrape_ms
        is_last = until_ms == at_ms
        parts, added = parts.with_evidence(frozen, evidence, course, course.end_ms if is_last else end_ms)
        if is_last:
            window = parts.window(course)
            evidence = replace(evidence, last_scrape_ms=last_scraped(window) | last_scrapes)
            return FoldedCase(window, evidence, parts, final)
        settled_ms = max(settled_ms, until_ms - closed_until(until_ms, evidence.scrape_interval_ms) + BLOCK_MS)
        if parts.end_ms == end_ms <= at_ms - FINAL_MS:
            final = parts
            keep(added, evidence.scrape_interval_ms)


def _part_end(begin_ms: int, known_ms: int) -> int:
    """Where the part ends that begins when everything before is known: a store is read a day at a time."""
    size = _READ_MS - 3 * BLOCK_MS
    first_ms = begin_ms // BLOCK_MS * BLOCK_MS
    return first_ms + ((known_ms - first_ms) // size + 1) * size


def resume_case(
    history: History, frozen: FrozenPlan, decisions: Sequence[Decision], at_ms: int, checkpoint: Checkpoint | None
) -> FoldedCase:
    """As `fold_case`, from what a checkpoint has of the run; parts that are final since are kept in it."""
    if checkpoint is None:
        return fold_case(history, frozen, decisions, at_ms)
    known = restore_case(frozen, decisions, at_ms, checkpoint)
    return fold_case(history, frozen, decisions, at_ms, known, checkpoint.append)


def restore_case(frozen: FrozenPlan, decisions: Sequence[Decision], at_ms: int, checkpoint: Checkpoint) -> Parts:
    """What a checkpoint has of a run that is final at a time."""
    course = course_of(frozen.plan, frozen.started_ms, decisions, at_ms)
    known, checkpoint.after = _NOTHING, ""
    for part in checkpoint.sound(first_block(course)):
        end_ms = part.folded.v1.end_ms()
        if end_ms > at_ms - FINAL_MS:
            break
        read = Evidence((), end_ms, part.interval_ms)
        known, checkpoint.after = known.with_part(frozen, part.folded, read, course), part.hash
    return known


def judge_case(
    history: History,
    frozen: FrozenPlan,
    decisions: Sequence[Decision],
    at_ms: int,
    checkpoint: Checkpoint | None = None,
) -> Judgement:
    """The judgement at a time, from all that is held of the run."""
    return resume_case(history, frozen, decisions, at_ms, checkpoint).judge(frozen, decisions, at_ms)


def _start_ms(frozen: FrozenPlan, decisions: Sequence[Decision]) -> int:
    return next((each.at_ms for each in decisions if each.kind == "start"), frozen.started_ms)


def check_decisions(decisions: Sequence[Decision], now_ms: int) -> None:
    """Raise EvidenceError for a decision of later than now, by a clock that was ahead: what it began is not known."""
    if any(each.kind == "rollback" and each.at_ms <= now_ms for each in decisions):
        return
    for each in decisions:
        if each.at_ms > now_ms + AHEAD_MS:
            by = f" by {each.by}" if each.by else ""
            raise EvidenceError(
                f"the {each.kind} of {format_instant(each.at_ms)}{by} is later than now, {format_instant(now_ms)}: a "
                "clock was ahead, and nothing is judged until then. Wait, end the run with `servescope judge decide "
                "rollback`, or begin another with `servescope judge start --replace`"
            )


class WatchedCase:
    """A case that is judged again and again: only blocks that have closed since are read, and folded, each time.

    Where none has, and nothing was decided, only who was scraped is looked at. Once an hour, and where a stage has
    ended, all that is not final is read afresh, so that what was stored late counts, too. `folded` and `events` are
    what the last judgement was made from.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self.folded: ArmArrays | None = None
        self.events: tuple[Event, ...] = ()
        self._known, self._final = _NOTHING, _NOTHING
        self._checkpoint: Checkpoint | None = None
        self._run = ""
        self._read_ms = self._judged_ms = 0
        self._made: _Made | None = None

    def judge(
        self, frozen: FrozenPlan, decisions: Sequence[Decision], at_ms: int, checkpoint: Checkpoint | None = None
    ) -> Judgement:
        """The judgement now, from nothing that is later, and from what a checkpoint has. Raises EvidenceError."""
        check_decisions(decisions, at_ms)
        begin_ms = _start_ms(frozen, decisions) - BEFORE_MS
        # Where the clock was set back, what was read is of later.
        is_later, is_known = self._judged_ms <= at_ms, at_ms < self._read_ms + _AFRESH_BLOCKS * BLOCK_MS
        self._judged_ms = at_ms
        made = tuple(each for each in decisions if each.at_ms <= at_ms)
        course = course_of(frozen.plan, frozen.started_ms, made, at_ms)
        if frozen.hash() != self._run or not is_later or not self._final.ended.is_of(course):
            self._run, self._final, is_known = frozen.hash(), _NOTHING, False
        # Where a stage has ended just now, it is judged from nothing that is later.
        ended = self._known.ended
        if not is_known or not ended.is_of(course) or len(ended.spans) < len(course.stages) - 1:
            self._known, self.folded, self._made, self._read_ms = self._final, None, None, at_ms
        if self.folded is not None and self._made is not None and not self._has_closed(self._made.evidence, at_ms):
            folded = self.folded
            evidence = refresh_evidence(self._history, frozen.plan, self._made.evidence, begin_ms, at_ms)
        else:
            # It may be as large as all else together.
            self.folded = None
            if self._known.end_ms:
                keep = _keep_nothing if self._checkpoint is None else self._checkpoint.append
                case = fold_case(self._history, frozen, made, at_ms, self._known, keep)
            else:
                self._checkpoint = checkpoint
                case = resume_case(self._history, frozen, made, at_ms, checkpoint)
            folded, evidence = case.folded, case.evidence
            self._known = case.parts
            if case.final.end_ms > self._final.end_ms:
                self._final = case.final
        if evidence.problems:
            self.folded = self._made = None
            self._known = self._final
            raise EvidenceError("; ".join(evidence.problems))
        return self._judge(frozen, made, folded, evidence, at_ms)

    def _judge(
        self, frozen: FrozenPlan, decisions: tuple[Decision, ...], folded: ArmArrays, evidence: Evidence, at_ms: int
    ) -> Judgement:
        last, former = self._made, self.folded
        self.folded = folded
        stale = find_stale(
            frozen, self.folded, evidence, course_of(frozen.plan, frozen.started_ms, decisions, at_ms), at_ms
        )
        is_same = former is not None and former.v1.end_ms() == self.folded.v1.end_ms() > 0
        if (
            is_same
            and last is not None
            and not stale
            and last.said == (decisions, evidence.warnings, "", evidence.events)
        ):
            judgement = replace(last.judgement, at_ms=at_ms)
        else:
            judgement = judge_folded(frozen, self.folded, evidence, decisions, at_ms, self._known.ended)
        self.events = evidence.events
        self._made = _Made(judgement, evidence, (decisions, evidence.warnings, stale, evidence.events))
        return judgement

    def _has_closed(self, evidence: Evidence, at_ms: int) -> bool:
        """Whether a block may have closed since the last judgement."""
        if self.folded is None or not self.folded.v1.end_ms():
            return True
        return closed_until(at_ms, evidence.scrape_interval_ms) >= self.folded.v1.end_ms() + BLOCK_MS


@dataclass(frozen=True, slots=True)
class _Made:
    """The last judgement, its evidence, and what else it follows from: decisions, warnings, who was stale, events."""

    judgement: Judgement
    evidence: Evidence
    said: tuple[tuple[Decision, ...], tuple[str, ...], str, tuple[Event, ...]]
