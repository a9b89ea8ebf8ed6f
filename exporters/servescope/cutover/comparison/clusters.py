"""Events that arrive together: what one cause fails at once is one cluster, however many requests it hits.

Errors of fifty requests that were in flight when an engine died prove no more than one error does. Of a replica that
fails far more often than its neighbours in the same block, one event is kept, and none of the blocks in which that
goes on; so it is with what an arm fails as a whole. What else varies more than independent events is estimated from
the blocks before, in both arms: v1 against its own mean, since nothing that v1 does is v2's, and v2 against the block
before, since what lasts may be its harm (docs/judge-method.md#clusters).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.folding import ReplicaSums
from servescope.cutover.statistics.counts import CLUSTER_BLOCKS, WORSE_RATIOS, EventCounts, log_cluster, log_independent
from servescope.cutover.statistics.sequences import Floats

_ALONE: Final = 4.0
"""Events of one replica that are no cluster, whatever its neighbours have."""
_PARTS: Final = 4
_BESIDE: Final = 3.0
"""A replica that has more than so many times what its neighbours have, and `_ALONE` more, has a cluster."""
_PRIOR_PAIRS: Final = 300.0
"""Squared events for which what is expected counts when it is estimated how far events arrive together."""
_MANY: Final = 60.0
"""A block with so many events varies about twice as much as independent ones would, until such blocks were seen."""
_STEEP: Final = 2
"""It is as likely as not one cluster; of a block with fewer that probability falls with this power of their number."""
_PRIOR_EVENTS: Final = 5.0
_CLASSES: Final = 10
_CLASS_BITS: Final = 2.0
"""Blocks are as large as others where their events differ by less than a factor of four."""
_EXPLAINED_BY: Final = np.array([1.0, *WORSE_RATIOS, *(1.0 / each for each in WORSE_RATIOS)])


@dataclass(frozen=True, slots=True, eq=False)
class Clustered:
    """The events of both arms with clusters counted once; `dispersion`, (B,), is what they vary by beyond that.

    `clustered`, (B,), is the probability that all events of a block are one cluster of a whole arm. `variation`, (B,),
    is by how much the raw events of an arm vary more than independent ones. Each is known before the block that it is
    of but for how many events that has, and dispersion and variation are at least 1.
    """

    events: EventCounts
    dispersion: Floats
    clustered: Floats
    variation: Floats


def cluster(v1: ReplicaSums, v2: ReplicaSums, frozen: float, past: tuple[float, ...] = ()) -> Clustered:
    """The events of the arms' replicas as clusters.

    `frozen` is the dispersion that v1's past has shown, at least 1, and `past` how many pairs of events (`pairs_in`).
    """
    events = [incidents(arm.above, arm.below) for arm in (v1, v2)]
    whole = EventCounts(events[0].sum(axis=0), v1.below.sum(axis=0), events[1].sum(axis=0), v2.below.sum(axis=0))
    together, unseen, varied = _online(whole, past)
    dispersion = _dispersion(whole, together, frozen)
    clustered = np.maximum(CLUSTER_BLOCKS, unseen * np.minimum(0.5, (_events(whole) / _MANY) ** _STEEP))
    if events[0] is not v1.above or events[1] is not v2.above:
        raw = replace(whole, v1_events=v1.above.sum(axis=0), v2_events=v2.above.sum(axis=0))
        varied = _online(raw, ())[2]
    return Clustered(_once(whole, dispersion, clustered), dispersion, clustered, np.maximum(frozen, varied))


def incidents(events: Floats, requests: Floats) -> Floats:
    """The events of each replica and block, (P, B), of which a replica that fails unlike its neighbours keeps one.

    It keeps it in the first of the blocks in which that goes on. A replica without neighbours keeps its events.
    """
    some = np.flatnonzero((events > _ALONE).any(axis=0)) if events.size else np.array([], dtype=np.int64)
    if not some.size:
        return events
    failing, served = events[:, some], requests[:, some]
    rates = np.divide(failing, served, out=np.full(failing.shape, np.inf), where=served > 0.0)
    serving = (served > 0.0).sum(axis=0)
    # The lower quarter: of three replicas, two may have a cluster each.
    quarter = np.take_along_axis(np.sort(rates, axis=0), np.maximum(0, (serving - 1) // _PARTS)[None], axis=0)
    usual = np.where(np.isfinite(quarter), quarter, 0.0) * served
    unlike = np.zeros(events.shape, dtype=np.bool_)
    unlike[:, some] = failing > _ALONE + _BESIDE * usual
    goes_on = np.zeros_like(unlike)
    goes_on[:, 1:] = unlike[:, :-1]
    return np.where(unlike, np.where(goes_on, 0.0, 1.0), events)


def pairs_in(past: ReplicaSums) -> tuple[float, ...]:
    """How many pairs of events the blocks of one arm had in a past, by the size of the block; () for none."""
    nothing = np.zeros(past.above.shape[1])
    events, requests = incidents(past.above, past.below).sum(axis=0), past.below.sum(axis=0)
    _, pairs, _, _ = _squares(EventCounts(events, requests, nothing, nothing))
    return tuple(pairs.sum(axis=1).tolist()) if pairs.any() else ()


def _online(counts: EventCounts, past: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """From the blocks before each one, (B,): the correlation of two events of a block, how far none of its size was
    seen, in the past neither, from 0 to 1, and the arms' variation.

    Of a block with N events in all, 1 + (N − 1)·correlation is by how much they vary more. It is of blocks with about
    as many events or fewer: a storm says nothing of the quiet hours around it.
    """
    excess, pairs, squares, expected = _squares(counts)
    whole = _events(counts)
    chosen = np.minimum(_size_class(whole) + 1, _CLASSES - 1), np.arange(whole.size)
    excess, pairs = (_so_far(np.cumsum(each, axis=0))[chosen] for each in (excess, pairs))
    seen = pairs + np.cumsum(past or [0.0] * _CLASSES)[chosen[0]]
    varied = (_PRIOR_EVENTS + _so_far(squares)) / (_PRIOR_EVENTS + _so_far(expected))
    together = (_PRIOR_PAIRS * whole / _MANY**2 + excess) / (_PRIOR_PAIRS + pairs)
    return np.clip(together, 0.0, 1.0), _PRIOR_PAIRS / (_PRIOR_PAIRS + seen), np.maximum(1.0, varied)


def _squares(counts: EventCounts) -> tuple[Floats, Floats, Floats, Floats]:
    """Of each block what independent events do not explain of the squares, and the pairs, in the row of its size,
    (`_CLASSES`, B); and the squares and what independent events explain, (B,)."""
    size = counts.v1_events.size
    excess, pairs = np.zeros((_CLASSES, size)), np.zeros((_CLASSES, size))
    squares, expected = np.zeros(size), np.zeros(size)
    before = (_so_far(counts.v1_events), _so_far(counts.v1_requests))
    previous = (_shifted(counts.v2_events), _shifted(counts.v2_requests))
    for events, requests, (past, served) in (
        (counts.v1_events, counts.v1_requests, before), (counts.v2_events, counts.v2_requests, previous),
    ):  # fmt: skip
        known = (requests > 0.0) & (served > 0.0)
        part = np.divide(requests, served, out=np.zeros(size), where=known)
        mean = past * part
        variance = np.where(known, (past + events) * part, 0.0)
        squared = np.where(known, np.square(events - mean), 0.0)
        both = np.where(known, events + mean, 0.0)
        blocks = np.arange(size)
        excess[_size_class(both), blocks] += squared - variance
        pairs[_size_class(both), blocks] += np.maximum(0.0, both * (both - 1.0))
        squares, expected = squares + squared, expected + variance
    return excess, pairs, squares, expected


def _dispersion(counts: EventCounts, together: Floats, frozen: float) -> Floats:
    events = _events(counts)
    found = np.maximum(frozen, 1.0 + np.maximum(events - 1.0, 0.0) * together)
    # All that happen in a block are at most one cluster.
    return np.asarray(np.minimum(found, np.maximum(events, 1.0)))


def _once(counts: EventCounts, dispersion: Floats, clustered: Floats) -> EventCounts:
    """The counts without the events of blocks in which what an arm failed as a whole in the block before goes on."""
    independent = log_independent(counts, _EXPLAINED_BY, dispersion, clustered)
    apart = np.all(independent < log_cluster(counts, _EXPLAINED_BY, clustered), axis=0)
    v2_side = np.asarray(counts.v2_events > counts.share() * _events(counts))
    kept = np.ones(apart.size, dtype=np.bool_)
    kept[1:] = ~(apart[1:] & apart[:-1] & (v2_side[1:] == v2_side[:-1]))
    return EventCounts(
        np.where(kept, counts.v1_events, 0.0), counts.v1_requests,
        np.where(kept, counts.v2_events, 0.0), counts.v2_requests,
    )  # fmt: skip


def _events(counts: EventCounts) -> Floats:
    return counts.v1_events + counts.v2_events


def _size_class(events: Floats) -> NDArray[np.int64]:
    return np.minimum(np.log2(np.maximum(events, 1.0)) // _CLASS_BITS, _CLASSES - 1).astype(np.int64)


def _so_far(values: Floats) -> Floats:
    """The sums of the blocks before each one, along the last axis."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)[..., :-1]], axis=-1)


def _shifted(values: Floats) -> Floats:
    """The value of the block before each one, 0 for the first."""
    return np.concatenate([[0.0], values])[: values.size]
