"""How the prompts of both arms differ through a stage: found by evidence, measured as a distance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import PROMPT_SIZES
from servescope.cutover.evidence.folding import ArmArrays
from servescope.cutover.statistics.mix import MOST_DISTANCE, log_evidence_of_difference
from servescope.cutover.statistics.sequences import Floats

_SURE: Final = math.log(1.0 / 0.01)
"""Evidence from which the prompts are taken to differ: by chance in one cutover of a hundred."""
_MATERIAL: Final = 0.02
"""A distance below this moves no figure by more than its floor."""


@dataclass(frozen=True, slots=True, eq=False)
class MixPath:
    """The prompts of both arms after each block, (B,): their total variation distance since the stage began, what
    chance makes of it, whether they differ, and whether by more than an adjustment is trusted with."""

    distance: Floats
    chance: Floats
    differs: NDArray[np.bool_]
    refused: NDArray[np.bool_]


def prompt_histograms(folded: ArmArrays, within: slice) -> tuple[Floats, Floats] | None:
    """The requests of both arms per shared bucket of prompt tokens and block, (E, B) each; None where one has none."""
    arms = [arm.distributions.get(PROMPT_SIZES) for arm in (folded.v1, folded.v2)]
    if arms[0] is None or arms[1] is None:
        return None
    shared = [edge for edge in arms[0].edges if edge in arms[1].edges]
    counts = []
    for arm in (arms[0], arms[1]):
        cumulative = np.cumsum(arm.counts[:, within], axis=0)
        chosen = cumulative[[*(arm.edges.index(edge) for edge in shared), len(arm.edges)]]
        counts.append(np.diff(chosen, axis=0, prepend=0.0))
    return counts[0], counts[1]


def judge_mix(histograms: tuple[Floats, Floats] | None, usable: NDArray[np.bool_]) -> MixPath | None:
    """The path of the mix over the blocks of a stage that are usable; None where prompts are not reported."""
    if histograms is None or not usable.size:
        return None
    v1, v2 = (np.where(usable, each, 0.0) for each in histograms)
    # A block of one arm alone says nothing of the other, and an arm that is all of it has nothing to differ from.
    both = (v1.sum(axis=0) > 0.0) & (v2.sum(axis=0) > 0.0)
    v1, v2 = v1 * both, v2 * both
    seen = [np.cumsum(each, axis=1) for each in (v1, v2)]
    totals = [np.maximum(each.sum(axis=0), 1.0) for each in seen]
    pooled = (seen[0] + seen[1]) / (totals[0] + totals[1])
    chance = 0.5 * np.sqrt(2.0 / np.pi * pooled * (1.0 - pooled) * (1.0 / totals[0] + 1.0 / totals[1])).sum(axis=0)
    distance = 0.5 * np.abs(seen[0] / totals[0] - seen[1] / totals[1]).sum(axis=0)
    beyond = distance - chance
    sure = np.maximum.accumulate(log_evidence_of_difference(v1, v2)) >= _SURE
    differs = sure & (beyond > _MATERIAL)
    return MixPath(distance, chance, differs, differs & (beyond > MOST_DISTANCE))
