"""What the counters of an arm lack beside each other over a stage, which is too little to be seen in one block."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
from numpy.typing import NDArray

from servescope.contract.incrementing import SAME_START_MS
from servescope.contract.increments import BLOCK_MS
from servescope.contract.judged import SPEED, JudgedMetric
from servescope.cutover.agreement import DURATION, HANDING_OVER, IN_FLIGHT, LEAST, peer_of
from servescope.cutover.coverage import trailing_sum
from servescope.cutover.folding import ArmFold, PodSums
from servescope.cutover.sequences import Floats


def in_flight(arm: ArmFold, within: slice) -> Floats:
    """By how many requests the counters of an arm may differ up to each block of a stage: those in flight, (B,).

    Those of every process that was there so far: what was in flight when one ended is in no counter's end.
    """
    flying = np.nan_to_num(arm.levels["concurrent_requests"][:, within])
    lasting = arm.metrics.get(DURATION)
    if lasting is not None:
        flying = np.maximum(flying, np.nan_to_num(lasting.above[:, within]) / (BLOCK_MS / 1000))
    most = np.maximum.accumulate(flying, axis=1) * _processes(arm.started[:, within])
    return np.asarray(LEAST + IN_FLIGHT * most.sum(axis=0))


def _processes(started: Floats) -> Floats:
    """How many processes a pod has had up to each block, from when the latest of them began, (P, B)."""
    latest = np.fmax.accumulate(started, axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(1.0 + np.cumsum(np.diff(latest, prepend=latest[:, :1], axis=1) > SAME_START_MS, axis=1))


def missed_part(
    arm: ArmFold, judged: JudgedMetric, required: Set[str], within: slice, usable: NDArray[np.bool_], slack: Floats
) -> Floats:
    """The part of an arm's requests that a metric's own counters lack beside others of the same processes, (B,).

    It is of the stage so far or of the last hour, whichever is more: what is too little to be seen in one block of one
    process adds up. Of events it is what their requests lack, of a histogram what it lacks of the requests that it is
    to have. The `slack`, what may be `in_flight`, is none of it. The others are those that are `required`.
    """
    counts = {name: sums.below for name in required if (sums := _of_one_place(arm, name)) is not None}
    ended = arm.traffic["requests"]
    if judged.kind == "events":
        handed = any(role in HANDING_OVER for _, role in arm.kinds)
        whole = [*counts.values(), *([] if handed else [arm.traffic["started"]])]
        pairs = [(each, ended) for each in whole]
    else:
        pairs = _beside_peer(arm, judged.histogram, counts)
    missed = [_missed(one[:, within], other[:, within], usable, slack) for one, other in pairs]
    return np.asarray(np.max([np.zeros(usable.size), *missed], axis=0))


def _beside_peer(arm: ArmFold, histogram: str, counts: Mapping[str, Floats]) -> list[tuple[Floats, Floats]]:
    own = _of_one_place(arm, histogram)
    if own is None:
        return []
    peer = peer_of(histogram, arm.places[histogram].sources, counts, arm.traffic["ok"])
    return [] if peer is None else [(peer, own.below)]


def _of_one_place(arm: ArmFold, histogram: str) -> PodSums | None:
    """A histogram that an arm takes from the processes whose requests it counts, which see the same ones."""
    here, requests = arm.places.get(histogram), arm.places.get("requests_total")
    if here is None or requests is None or here.name != requests.name:
        return None
    return arm.metrics.get(f"{SPEED} histogram" if histogram == SPEED else histogram)


def _missed(whole: Floats, part: Floats, usable: NDArray[np.bool_], slack: Floats) -> Floats:
    """What `part` lacks of `whole`, of blocks in which both are known: (B,)."""
    known = np.isfinite(whole) & np.isfinite(part) & usable
    sums = [np.where(known, each, 0.0).sum(axis=0) for each in (whole, part)]
    both = [[total(each) for each in sums] for total in (np.cumsum, trailing_sum)]
    missed = [np.maximum(0.0, one - other - slack) / np.maximum(one, 1.0) for one, other in both]
    return np.asarray(np.maximum(*missed))
