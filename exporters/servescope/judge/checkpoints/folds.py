"""The blocks of a run, folded in parts of a day as they are read: only those that its current stage needs are kept.

A part is final a day after its end: what is stored later does not count. Of a stage that has ended only what it leaves
is kept, once its last part is final. So memory is that of the longest stage, and reading that of a day or two, however
old the run is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.evidence.folding import ArmArrays, joined
from servescope.cutover.evidence.stages import Course
from servescope.cutover.evidence.windows import compacted, cut, expanded, needed_from
from servescope.cutover.plan.plan import FrozenPlan
from servescope.cutover.verdict.ended import EndedStages
from servescope.cutover.verdict.judge import NOTHING_ENDED, end_stages, fold_evidence_part
from servescope.increments.blocks import BLOCK_MS

FINAL_MS: Final = 86_400_000
"""How long after its end a part may still change, as blocks are stored late."""
_WORTHWHILE: Final = 24
"""Blocks from which a part is kept compact."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Consecutive parts of a run, as far as its first stage needs them that has not ended, and what others left.

    `end_ms` is up to when they reach, 0 before the first.
    """

    folded: tuple[ArmArrays, ...] = ()
    ended: EndedStages = field(default_factory=lambda: NOTHING_ENDED)

    @property
    def end_ms(self) -> int:
        """Up to when they reach, 0 before the first block."""
        return self.folded[-1].v1.end_ms() if self.folded else 0

    def with_evidence(
        self, frozen: FrozenPlan, evidence: Evidence, course: Course, end_ms: int
    ) -> tuple[Parts, tuple[ArmArrays, ...]]:
        """With the blocks that end up to a time and were read after these; and what was added.

        Where a stage ends a part does, so that it is judged from nothing that is later.
        """
        parts, added = self, []
        ends = [span.until_ms for span in course.stages[:-1] if self.end_ms < span.until_ms < end_ms]
        for until_ms in (*ends, end_ms):
            former = parts.folded[-1] if parts.folded else None
            part = fold_evidence_part(frozen, evidence, course, until_ms, former)
            part = compacted(part) if part.blocks.size >= _WORTHWHILE else part
            added.append(part)
            parts = parts.with_part(frozen, part, evidence, course)
        return parts, tuple(added)

    def with_part(self, frozen: FrozenPlan, part: ArmArrays, evidence: Evidence, course: Course) -> Parts:
        """With the part that follows, without those that no stage needs any more."""
        folded = (*self.folded, part) if part.blocks.size or not self.folded else (
            *self.folded[:-1], replace(self.folded[-1], faults=part.faults)
        )  # fmt: skip
        ended = self.ended
        done = [span for span in course.stages[:-1] if span.until_ms // BLOCK_MS * BLOCK_MS <= part.v1.end_ms()]
        if len(done) > len(ended.spans):
            known = replace(course, stages=course.stages[: len(done) + 1])
            ended = end_stages(frozen, expanded(joined(folded)), evidence, known, ended)
        since_ms = needed_from(course.stages[len(ended.spans)])
        needed = [each for each in folded[:-1] if each.v1.end_ms() > since_ms]
        return Parts((*needed, folded[-1]), ended)

    def window(self, course: Course) -> ArmArrays:
        """The blocks that the last stage is judged by."""
        return cut(expanded(joined(self.folded)), needed_from(course.stages[-1]), course.end_ms)
