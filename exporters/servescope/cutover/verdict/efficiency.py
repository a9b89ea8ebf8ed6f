"""What v2 serves for its cost beside v1, at matched load: reported beside health, and never part of it.

Output tokens per GPU and second where both stacks show their GPUs, else per replica and second; and requests within the
objectives per replica and second. Blocks count in which neither stack queues or both do, and in which their GPUs are
about as busy or, where these are not shown, their replicas get about as many requests: an idle replica would make its
stack look wasteful, and a full one lavish.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JUDGED
from servescope.contract.objectives import OBJECTIVES
from servescope.cutover.comparison.calibration import online_factor
from servescope.cutover.conditions.conditions import ready_replicas
from servescope.cutover.conditions.load import MATCHED_RATIO
from servescope.cutover.evidence.folding import ArmArrays, ArmFold
from servescope.cutover.judgement import Efficiency
from servescope.cutover.statistics.effects import merged_sums, ratio_effects
from servescope.cutover.statistics.sequences import Floats, accumulate, half_width, information_wanted, zero_unknown
from servescope.cutover.verdict.stage import StageTrack
from servescope.increments.blocks import BLOCK_MS

Name = Literal["tokens_per_gpu_second", "tokens_per_replica_second", "goodput_per_replica_second"]
_BLOCK_SECONDS: Final = BLOCK_MS / 1000
_ALPHA: Final = 0.025
"""Of each side of an interval."""
_WANTED: Final = information_wanted(0.1)
_SERVED: Final[dict[Name, str]] = {
    "tokens_per_gpu_second": "the tokens per GPU",
    "tokens_per_replica_second": "the tokens per replica",
    "goodput_per_replica_second": "the requests within the objectives per replica",
}


def compare_efficiency(folded: ArmArrays, stage: StageTrack) -> tuple[Efficiency, ...]:
    """The efficiency of v2 over v1 in a stage; what was observed for less than an hour at matched load is left out."""
    arms = (folded.v1, folded.v2)
    matched = stage.usable & _matched(arms, stage)
    seconds = [ready_replicas(arm, stage.within) * _BLOCK_SECONDS for arm in arms]
    devices = [arm.gpus[:, stage.within].sum(axis=0) * _BLOCK_SECONDS for arm in arms]
    tokens = [zero_unknown(arm.traffic["output_tokens"][:, stage.within]).sum(axis=0) for arm in arms]
    shown = all(bool((each[matched] > 0.0).any()) for each in devices)
    found = [
        _compared("tokens_per_gpu_second" if shown else "tokens_per_replica_second",
                  tokens, devices if shown else seconds, matched),
    ]  # fmt: skip
    good = [_within_objectives(arm, stage.within) for arm in arms]
    if good[0] is not None and good[1] is not None:
        found.append(_compared("goodput_per_replica_second", [good[0], good[1]], seconds, matched))
    return tuple(each for each in found if each is not None)


def _matched(arms: tuple[ArmFold, ArmFold], stage: StageTrack) -> NDArray[np.bool_]:
    same = stage.loads[0].saturated == stage.loads[1].saturated
    busy = [_mean_level(arm, "gpu_usage", stage.within) for arm in arms]
    if all(bool(np.isfinite(each).any()) for each in busy):
        known = np.isfinite(busy[0]) & np.isfinite(busy[1]) & (busy[0] > 0.0) & (busy[1] > 0.0)
        ratio = np.where(known, busy[1], 1.0) / np.where(known, busy[0], 1.0)
        return np.asarray(same & known & (ratio <= MATCHED_RATIO) & (ratio >= 1.0 / MATCHED_RATIO))
    return np.asarray(stage.relation.free | stage.relation.both)


def _mean_level(arm: ArmFold, name: str, within: slice) -> Floats:
    values = arm.levels[name][:, within]
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def _within_objectives(arm: ArmFold, within: slice) -> Floats | None:
    """The requests that were surely within every objective: those that succeeded less those beyond any, (B,).

    None where a latency with an objective is not reported, or has no bucket edge there.
    """
    good = zero_unknown(arm.traffic["ok"][:, within]).sum(axis=0)
    for objective in OBJECTIVES.values():
        if not objective.edges_seconds or objective.counts != "requests":
            continue
        found = arm.distributions.get(JUDGED[f"{objective.name}_seconds"].histogram)
        if found is None or objective.edges_seconds[0] not in found.edges:
            return None
        first = found.edges.index(objective.edges_seconds[0]) + 1
        good = good - found.counts[first:, within].sum(axis=0)
    return np.asarray(np.maximum(good, 0.0))


def _compared(name: Name, served: list[Floats], cost: list[Floats], matched: NDArray[np.bool_]) -> Efficiency | None:
    served, cost = [each * matched for each in served], [each * matched for each in cost]
    blocks = ratio_effects(served[0][None], cost[0][None], served[1][None], cost[1][None], least_whole=1.0)
    path = accumulate(blocks.effects, blocks.sampling)
    known = np.flatnonzero(np.isfinite(blocks.sampling))
    if not known.size:
        return None
    estimate = float(path.estimate[-1])
    information = float(path.information[-1]) / online_factor(blocks, known, estimate)
    width = float(half_width(information, _ALPHA, _WANTED))
    if not math.isfinite(width):
        return None
    ratio, low, high = (math.exp(each) for each in (estimate, estimate - width, estimate + width))
    # Of the same blocks with the same weights, so that v2's ÷ v1's is the ratio.
    lasts = blocks.last[known]
    v1_served, v1_cost = (merged_sums(each[0], lasts - blocks.merged[known] + 1, lasts) for each in (served, cost))
    v1 = math.exp(float(np.average(np.log(v1_served / v1_cost), weights=1.0 / blocks.sampling[known])))
    return Efficiency(
        name=name,
        v1=v1,
        v2=v1 * ratio,
        ratio=ratio,
        low=low,
        high=high,
        sentence=f"v2 serves {ratio:.2f} × ({low:.2f}–{high:.2f}) {_SERVED[name]}",
    )
