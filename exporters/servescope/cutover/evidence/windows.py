"""The part of what was folded that a section of a stage is judged by: its evidence, and the blocks of a week before.

It needs no more: replicas that were there a week before are as warm as they get. So memory is that of six weeks at
most, however old a run or its stage is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import compress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.folding import ArmArrays, ArmFold, BucketCounts
from servescope.cutover.evidence.stages import StageSpan
from servescope.increments.blocks import BLOCK_MS

LEAD_MS: Final = 7 * 86_400_000
"""How much from before the evidence of a section is judged with it."""


def needed_from(span: StageSpan) -> int:
    """From when on blocks are needed to judge a stage, in milliseconds."""
    return span.evidence_ms - LEAD_MS


def window_of(folded: ArmArrays, span: StageSpan) -> ArmArrays:
    """What a stage is judged by: the same where that is all there is."""
    return cut(folded, needed_from(span), span.until_ms)


def cut(folded: ArmArrays, since_ms: int, until_ms: int) -> ArmArrays:
    """The blocks that end after one time and up to another, and the replicas that were there in them."""
    blocks = folded.blocks
    kept = np.flatnonzero((blocks + BLOCK_MS > since_ms) & (blocks + BLOCK_MS <= until_ms))
    if kept.size == blocks.size:
        return folded
    columns = slice(int(kept[0]), int(kept[-1]) + 1) if kept.size else slice(0, 0)
    return replace(folded, v1=_cut_arm(folded.v1, columns), v2=_cut_arm(folded.v2, columns))


def _cut_arm(arm: ArmFold, columns: slice) -> ArmFold:
    # One that is not there any more is not kept for ever; one that has not come is of the future.
    rows: NDArray[np.bool_] = np.asarray(arm.present[:, columns].any(axis=1))

    def change(values: NDArray[Any], *, is_by_replica: bool) -> NDArray[Any]:
        found = values[..., columns]
        return found if rows.all() or not is_by_replica else found[rows]

    changed: ArmFold = map_arrays(arm, change)
    by_replica = {each.name: getattr(arm, each.name) for each in fields(arm)}
    kept: dict[str, Any] = {
        name: tuple(compress(each, rows.tolist())) for name, each in by_replica.items() if isinstance(each, tuple)
    }
    return replace(changed, **kept)


def compacted(folded: ArmArrays) -> ArmArrays:
    """The same, each of its arrays as small as holds every number of it exactly.

    Most are whole numbers, and some the same in all blocks, as where nothing was torn.
    """

    def change(values: NDArray[Any], *, is_by_replica: bool) -> NDArray[Any]:
        if values.dtype != np.float64 or not values.size:
            return values
        one = values.reshape(-1)[0]
        if np.array_equal(values, np.broadcast_to(one, values.shape), equal_nan=True):
            return np.broadcast_to(one, values.shape)
        for kind in (np.uint8, np.uint16, np.float32):
            with np.errstate(invalid="ignore", over="ignore"):
                small = values.astype(kind)
            if np.array_equal(small.astype(float), values, equal_nan=True):
                return np.asarray(small)
        return values

    changed: ArmArrays = map_arrays(folded, change)
    return changed


def expanded(folded: ArmArrays) -> ArmArrays:
    """What was `compacted` as it was."""

    def change(values: NDArray[Any], *, is_by_replica: bool) -> NDArray[Any]:
        is_whole = values.dtype == np.float64 or values.dtype == np.bool_ or values.dtype == np.int64
        return values if is_whole else values.astype(float)

    changed: ArmArrays = map_arrays(folded, change)
    return changed


def map_arrays(value: Any, change: Callable[..., NDArray[Any]]) -> Any:
    """A fold, or a part of one, with each of its arrays changed; `is_by_replica` says which have replicas for first
    axis.
    """
    if isinstance(value, np.ndarray):
        return change(value, is_by_replica=value.ndim > 1)
    if isinstance(value, BucketCounts):
        return replace(value, counts=change(value.counts, is_by_replica=False))
    if isinstance(value, Mapping):
        return {name: map_arrays(each, change) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: map_arrays(getattr(value, each.name), change) for each in fields(value)})
    return value
