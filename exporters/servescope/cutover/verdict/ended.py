"""What a stage leaves once it has ended: changes, whether harm is still known, what it adds to the overall ratio.

It follows from the stage's own blocks and from what the stages before it left, so that these blocks are needed no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.folding import ArmArrays
from servescope.cutover.evidence.stages import Course, StageSpan
from servescope.cutover.judgement import VerdictChange
from servescope.cutover.plan.plan import FrozenPlan
from servescope.cutover.verdict.overall import StageEffects, stage_effects
from servescope.cutover.verdict.stage import StageTrack


@dataclass(frozen=True, slots=True, eq=False)
class Harm:
    """Since when the verdict is DEGRADED, and since when harm is known that nobody has acknowledged, with why.

    `severe` says that it was beyond the margin at some time since.
    """

    began_ms: int | None = None
    latched_ms: int | None = None
    reason: str = ""
    severe: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ScrapedBlocks:
    """In which blocks a replica of each arm was scraped: their starts, (B,), and v1's and v2's, (2, B)."""

    blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    arms: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((2, 0), dtype=np.bool_))

    def and_of(self, folded: ArmArrays) -> ScrapedBlocks:
        """With the blocks of a fold that come after these."""
        new = folded.blocks > self.blocks[-1] if self.blocks.size else np.ones(folded.blocks.size, dtype=np.bool_)
        arms = np.array([(arm.scrapes[:, new] > 0.0).any(axis=0) for arm in (folded.v1, folded.v2)])
        return ScrapedBlocks(
            np.concatenate([self.blocks, folded.blocks[new]]), np.concatenate([self.arms, arms], axis=1)
        )


@dataclass(frozen=True, slots=True, eq=False)
class EndedStages:
    """What the stages leave that have ended, `spans`; `effects` are by metric, one for each stage.

    `decided` is what else it follows from: what was excluded of them, and when harm was acknowledged in them.
    """

    spans: tuple[StageSpan, ...] = ()
    changes: tuple[VerdictChange, ...] = ()
    harm: Harm = field(default_factory=Harm)
    effects: Mapping[str, tuple[StageEffects | None, ...]] = field(default_factory=dict)
    scraped: ScrapedBlocks = field(default_factory=ScrapedBlocks)
    decided: tuple[object, ...] = ()

    def is_of(self, course: Course) -> bool:
        """Whether this is what the first stages of a course leave, and there is another."""
        count = len(self.spans)
        is_begun = count < len(course.stages) and self.spans == course.stages[:count]
        return is_begun and (not count or self.decided == decided_before(course, self.spans[-1].until_ms))

    def effects_with(self, frozen: FrozenPlan, stage: StageTrack) -> dict[str, tuple[StageEffects | None, ...]]:
        """By metric what these stages and another add to its overall ratio."""
        return {name: (*self.effects.get(name, ()), stage_effects(frozen, stage, name)) for name in stage.tracks}


def decided_before(course: Course, until_ms: int) -> tuple[object, ...]:
    """What was excluded from before a time, and when harm was acknowledged before it."""
    excluded = tuple(each for each in course.excluded if each.start_ms < until_ms)
    return excluded, tuple(each for each in course.acknowledged_ms if each < until_ms)
