"""What the pages show of a run: its judgement, and what the folded evidence says beside it; no widgets here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from app.charts.distributions import TITLES, EdgeShares, compare_distributions
from app.selection import TimeRange
from servescope.contract.events import Event
from servescope.cutover.conditions.replica_warmth import warm_arms
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.evidence.folding import ArmArrays
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.plan import FrozenPlan
from servescope.increments.blocks import BLOCK_MS

_BEFORE_MS = 12 * BLOCK_MS


class WarmReplicas(NamedTuple):
    """How many replicas of an arm are warm enough to be compared, of those that serve."""

    warm: int
    serving: int


@dataclass(frozen=True, slots=True)
class CutoverView:
    """A run of a plan as it is shown: its judgement, and beside it what the evidence says.

    `share` is v2's share of the requests by the start of each block, NaN where neither arm had any; `warm` are v1's and
    v2's replicas, warm ones of those that served in the last block; `span` reaches from an hour before the start to the
    judgement.
    """

    frozen: FrozenPlan
    decisions: tuple[Decision, ...]
    judgement: Judgement
    share: pd.Series[float]
    warm: tuple[WarmReplicas, WarmReplicas]
    distributions: tuple[EdgeShares, ...]
    events: tuple[Event, ...]
    span: TimeRange


def make_view(
    frozen: FrozenPlan,
    decisions: tuple[Decision, ...],
    folded: ArmArrays,
    events: Sequence[Event],
    judgement: Judgement,
) -> CutoverView:
    """What is shown of a judgement and the evidence it was made from."""
    span = TimeRange(frozen.started_ms - _BEFORE_MS, max(judgement.at_ms, frozen.started_ms + BLOCK_MS), live=True)
    share = observe_share(folded)
    drawn = (compare_distributions(metric, folded, judgement.stage.since_ms) for metric in TITLES)
    return CutoverView(
        frozen=frozen,
        decisions=decisions,
        judgement=judgement,
        share=share[(share.index >= span.start_ms) & (share.index <= span.end_ms)],
        warm=count_warm(frozen, folded),
        distributions=tuple(each for each in drawn if each is not None),
        events=tuple(each for each in events if span.start_ms <= each.time_ms <= span.end_ms),
        span=span,
    )


def count_warm(frozen: FrozenPlan, folded: ArmArrays) -> tuple[WarmReplicas, WarmReplicas]:
    """The replicas of both arms in the last block: an autoscaler's young ones are not warm yet."""
    if not folded.blocks.size:
        return WarmReplicas(0, 0), WarmReplicas(0, 0)
    v1, v2 = (
        WarmReplicas(int((serves & warmth.usable[:, -1]).sum()), int(serves.sum()))
        for arm, warmth in zip((folded.v1, folded.v2), warm_arms(frozen, folded), strict=True)
        for serves in (np.nan_to_num(arm.traffic["requests"][:, -1]) > 0.0,)
    )
    return v1, v2


def observe_share(folded: ArmArrays) -> pd.Series[float]:
    """v2's share of the requests that both arms finished, by the start of the block."""
    v1, v2 = (np.nansum(arm.traffic["requests"], axis=0) for arm in (folded.v1, folded.v2))
    total = v1 + v2
    share = np.divide(v2, total, out=np.full(total.shape, np.nan), where=total > 0.0)
    return pd.Series(share, index=folded.blocks)
