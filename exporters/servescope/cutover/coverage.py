"""How completely an arm was observed, block by block: what turns missing data into NO DATA, and never into health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.increments import BLOCK_MS
from servescope.cutover.folding import ArmFold
from servescope.cutover.sequences import Floats

LEAST_SCRAPES: Final = 0.8
"""The share of the expected scrapes below which an arm is not observed."""
STALE_INTERVALS: Final = 3
HOUR_BLOCKS: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class ArmCoverage:
    """What is known of an arm after each block of a stage, (B,) each.

    `scraped` is whether a pod was scraped in the block; `seen` whether one was so far; `share` and `recent` are the
    scrapes that succeeded out of those expected since the stage began, and within the last hour.
    """

    scraped: NDArray[np.bool_]
    seen: NDArray[np.bool_]
    expected: Floats
    succeeded: Floats
    share: Floats
    recent: Floats

    def complete(self) -> NDArray[np.bool_]:
        """Where enough scrapes succeeded."""
        return (self.share >= LEAST_SCRAPES) & (self.recent >= LEAST_SCRAPES)


def arm_coverage(arm: ArmFold, within: slice, usable: NDArray[np.bool_], interval_ms: int) -> ArmCoverage:
    """The coverage over the blocks of a stage; those that are not `usable`, (B,), neither count nor are expected.

    A pod is expected from the first block that it is seen in to the latest so far: one that ended is not, one that
    comes back was.
    """
    present = arm.present[:, within]
    scrapes = arm.scrapes[:, within]
    attempts = scrapes + arm.failed[:, within]
    pods, blocks = present.shape
    if not pods or not blocks:
        nothing = np.zeros(blocks)
        no = np.zeros(blocks, dtype=np.bool_)
        return ArmCoverage(no, no, nothing, nothing, nothing, nothing)
    each = BLOCK_MS / interval_ms
    number = np.arange(blocks)
    first = np.where(present.any(axis=1), present.argmax(axis=1), blocks)
    latest = np.maximum.accumulate(np.where(present, number, -1), axis=1)
    # In its first block a pod came when it came; later it is expected as often as the interval says.
    begun = np.where(present & (number == first[:, None]), attempts, 0.0)
    counted = np.concatenate([[0.0], np.cumsum(usable)])
    later = np.where(
        latest > first[:, None], counted[latest + 1] - counted[np.minimum(first, blocks - 1) + 1][:, None], 0.0
    )
    expected = np.cumsum(np.where(usable, begun, 0.0).sum(axis=0)) + each * later.sum(axis=0)
    # The pace of a scrape loop is not exact, so one scrape more in a block does not make up for others.
    succeeded = np.cumsum(np.where(usable, np.minimum(scrapes, each), 0.0).sum(axis=0))
    scraped = np.asarray((scrapes > 0.0).any(axis=0))
    return ArmCoverage(
        scraped=scraped,
        seen=np.asarray(np.logical_or.accumulate(scraped)),
        expected=expected,
        succeeded=succeeded,
        share=_ratio(succeeded, expected),
        recent=_ratio(_of_last_hour(succeeded), _of_last_hour(expected)),
    )


def _of_last_hour(running: Floats) -> Floats:
    return trailing_sum(np.diff(running, prepend=0.0))


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.asarray(np.divide(above, below, out=np.ones_like(above), where=below > 0.0))


def known_share(known: NDArray[np.bool_], scraped: NDArray[np.bool_], last: int) -> Floats:
    """The share of the pods' blocks whose metric is known, of those scraped so far or, where less, in the `last`: (B,).

    Both are per pod and block, (P, B). Pods that never report the metric do not count: it is of another layer.
    """
    reports = np.logical_or.accumulate(known, axis=1) & scraped
    above, below = ((each & reports).sum(axis=0).astype(float) for each in (known, scraped))
    return np.minimum(
        _ratio(np.cumsum(above), np.cumsum(below)), _ratio(trailing_sum(above, last), trailing_sum(below, last))
    )


def trailing_sum(values: Floats, blocks: int = HOUR_BLOCKS) -> Floats:
    """The sum of each block and those before it, as many as asked for in all: (..., B)."""
    running = np.concatenate([np.zeros((*values.shape[:-1], blocks)), np.cumsum(values, axis=-1)], axis=-1)
    return np.asarray(running[..., blocks:] - running[..., :-blocks])
