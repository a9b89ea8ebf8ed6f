"""What the pages show of a cutover: the judgement of a run, and what it was made from; no widgets here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from app.distributions import TITLES, EdgeShares, compare_distributions
from app.selection import TimeRange
from servescope.contract.events import Event
from servescope.contract.increments import BLOCK_MS, TargetIncrements
from servescope.cutover.evidence import Decision, Evidence
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan import Arm, FrozenPlan

_BEFORE_MS = 12 * BLOCK_MS


@dataclass(frozen=True, slots=True)
class CutoverView:
    """A run of a plan as it is shown: its judgement, and beside it what the evidence says.

    `share` is v2's share of the requests by the start of each block, NaN where neither arm had any; `span` reaches from
    an hour before the start to the last scrape.
    """

    frozen: FrozenPlan
    decisions: tuple[Decision, ...]
    judgement: Judgement
    share: pd.Series[float]
    distributions: tuple[EdgeShares, ...]
    events: tuple[Event, ...]
    span: TimeRange


def make_view(
    frozen: FrozenPlan, decisions: tuple[Decision, ...], evidence: Evidence, judgement: Judgement
) -> CutoverView:
    """What is shown of a judgement and its evidence."""
    v1, v2 = (_targets_of(arm, evidence) for arm in (frozen.plan.v1, frozen.plan.v2))
    start_ms = decisions[0].at_ms if decisions else frozen.started_ms
    span = TimeRange(start_ms - _BEFORE_MS, max(judgement.at_ms, start_ms + BLOCK_MS), live=True)
    share = observe_share(v1, v2)
    drawn = (
        compare_distributions(metric, v1, v2, judgement.stage.since_ms, evidence.observed_until_ms) for metric in TITLES
    )
    return CutoverView(
        frozen=frozen,
        decisions=decisions,
        judgement=judgement,
        share=share[(share.index >= span.start_ms) & (share.index <= span.end_ms)],
        distributions=tuple(each for each in drawn if each is not None),
        events=tuple(each for each in evidence.events if span.start_ms <= each.time_ms <= span.end_ms),
        span=span,
    )


def _targets_of(arm: Arm, evidence: Evidence) -> list[TargetIncrements]:
    return [target for target in evidence.targets if arm.selects(target.identity)]


def observe_share(v1: list[TargetIncrements], v2: list[TargetIncrements]) -> pd.Series[float]:
    """v2's share of the requests that both arms finished, by the start of the block."""
    counts = [_count_requests(arm) for arm in (v1, v2)]
    both = pd.DataFrame({"v1": counts[0], "v2": counts[1]}).fillna(0.0).sort_index()
    total = both["v1"] + both["v2"]
    share: pd.Series[float] = both["v2"] / total.where(total > 0.0)
    return share


def _count_requests(arm: list[TargetIncrements]) -> pd.Series[float]:
    parts = []
    for target in arm:
        rows = [row for row, series in enumerate(target.series) if series.name == "requests_total"]
        if rows:
            parts.append(pd.Series(np.nansum(target.gains[rows], axis=0), index=target.blocks))
    if not parts:
        return pd.Series(dtype=float)
    joined = pd.concat(parts)
    counted: pd.Series[float] = joined.groupby(level=0).sum()
    return counted
