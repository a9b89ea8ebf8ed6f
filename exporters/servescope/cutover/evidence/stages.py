"""What people decided, as spans of time: which stage was when, what is left out, what was acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Exclusion
from servescope.cutover.plan.plan import CutoverPlan
from servescope.increments.blocks import BLOCK_MS

SECTION_MS: Final = 28 * 86_400_000
"""How long a stage is judged by the same evidence: the next four weeks are another section of it."""
OVERLAP_MS: Final = 7 * 86_400_000
"""How much from before a later section is evidence of it, so that what was proven still is when it begins."""


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A section of a stage that has begun: the stage's index in the plan, and from when to when it is judged by it.

    `section` counts them within the stage. All times are in milliseconds.
    """

    index: int
    since_ms: int
    until_ms: int
    section: int = 0

    @property
    def begun_ms(self) -> int:
        """When the stage began."""
        return self.since_ms - self.section * SECTION_MS

    @property
    def evidence_ms(self) -> int:
        """From when on its evidence is."""
        return self.since_ms - OVERLAP_MS if self.section else self.since_ms


def section_part(section: int) -> float:
    """The part of a stage's probability of error that a section of it has: all that may ever come have one together.

    Most stages have one section, so that the others share a hundredth.
    """
    return 1.0 - _LATER_PART if section == 0 else _LATER_PART / (section * (section + 1))


_LATER_PART: Final = 0.01


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a cutover up to a time.

    `stages` are the sections of those that have begun, each up to the next or to the end; `excluded` are the spans that
    are left out; `acknowledged_ms` when harm was acknowledged; `rolled_back` the decision that ended it.
    """

    stages: tuple[StageSpan, ...]
    excluded: tuple[Exclusion, ...]
    acknowledged_ms: tuple[int, ...]
    rolled_back: Decision | None

    @property
    def since_ms(self) -> int:
        """When the first stage began."""
        return self.stages[0].since_ms

    @property
    def end_ms(self) -> int:
        """Up to when it is judged."""
        return self.stages[-1].until_ms

    def usable(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the blocks no excluded span touches, (B,)."""
        kept = np.ones(blocks.shape, dtype=np.bool_)
        for each in self.excluded:
            kept &= (blocks >= each.end_ms) | (blocks + BLOCK_MS <= each.start_ms)
        return kept

    def before(self, excluding: Exclusion) -> Course:
        """The course as it was until a span was left out."""
        index = self.excluded.index(excluding)
        return replace(self, excluded=self.excluded[:index])


def course_of(plan: CutoverPlan, started_ms: int, decisions: Sequence[Decision], at_ms: int) -> Course:
    """The course up to `at_ms`: the stage is that of the last `advance`, stage 0 before any; a rollback ends it."""
    made = sorted((each for each in decisions if each.at_ms <= at_ms), key=lambda each: each.at_ms)
    starts = [each.at_ms for each in made if each.kind == "start"]
    since_ms = min(starts[0] if starts else started_ms, at_ms)
    rolled_back = next((each for each in made if each.kind == "rollback"), None)
    end_ms = at_ms if rolled_back is None else max(since_ms, rolled_back.at_ms)
    begun = [(0, since_ms)]
    begun.extend(
        (min(max(each.stage, 0), len(plan.stages) - 1), each.at_ms)
        for each in made
        if each.kind == "advance" and each.stage is not None and since_ms <= each.at_ms <= end_ms
    )
    ends = [*(since for _, since in begun[1:]), end_ms]
    return Course(
        stages=tuple(
            each for (index, since), until in zip(begun, ends, strict=True) for each in _sections(index, since, until)
        ),
        excluded=tuple(
            Exclusion(each.start_ms, each.end_ms, each.at_ms, each.by, each.reason)
            for each in made
            if each.kind == "exclude" and each.start_ms is not None and each.end_ms is not None
        ),
        acknowledged_ms=tuple(each.at_ms for each in made if each.kind == "acknowledge"),
        rolled_back=rolled_back,
    )


def _sections(index: int, since_ms: int, until_ms: int) -> list[StageSpan]:
    begins = list(range(since_ms, until_ms, SECTION_MS)) or [since_ms]
    ends = [*begins[1:], until_ms]
    return [StageSpan(index, *span, number) for number, span in enumerate(zip(begins, ends, strict=True))]
