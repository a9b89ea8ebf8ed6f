"""What the counters of an arm lack beside each other over a stage, which is too little to be seen in one block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import SPEED, JudgedMetric
from servescope.cutover.evidence.agreement import DURATION, HANDING_OVER, IN_FLIGHT, LEAST, peer_of
from servescope.cutover.evidence.coverage import trailing_sum
from servescope.cutover.evidence.folding import ArmFold, ReplicaSums
from servescope.cutover.statistics.sequences import Floats, zero_unknown
from servescope.increments.accumulation import SAME_START_MS
from servescope.increments.blocks import BLOCK_MS


def in_flight(arm: ArmFold, within: slice) -> tuple[Floats, Floats]:
    """By how many requests the counters of an arm may differ up to each block of a stage: those in flight, (B,), and
    as many of them as the durations of those that ended explain, (B,).

    Those of every process that was there so far: what was in flight when one ended is in no counter's end.
    """
    flying = zero_unknown(arm.levels["concurrent_requests"][:, within])
    explained = flying
    lasting = arm.metrics.get(DURATION)
    if lasting is not None:
        above = lasting.above[:, within] / (BLOCK_MS / 1000)
        explained = np.where(np.isfinite(above), above, flying)
        flying = np.fmax(flying, above)
    processes = count_processes(arm.started[:, within])
    most, ending = (np.maximum.accumulate(each, axis=1) * processes for each in (flying, explained))
    return np.asarray(LEAST + IN_FLIGHT * most.sum(axis=0)), np.asarray(LEAST + IN_FLIGHT * ending.sum(axis=0))


def count_processes(started: Floats) -> Floats:
    """How many processes a replica has had up to each block, from when the latest of them began, (P, B)."""
    latest = np.fmax.accumulate(started, axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(1.0 + np.cumsum(np.diff(latest, prepend=latest[:, :1], axis=1) > SAME_START_MS, axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Shortfall:
    """What the counters of an arm lack beside each other after each of the B blocks of a stage.

    `of_requests` is the part that the counter of requests lacks, (B,); `counts` are the observations of the histograms
    of the processes that count requests, (P, B), `slack` the requests by which they may differ, (B,). `unanswered` is
    the part that began and has not ended, (B,), beyond what is in flight where requests last as long as they do.
    """

    arm: ArmFold
    within: slice
    usable: NDArray[np.bool_]
    slack: Floats
    counts: Mapping[str, Floats]
    of_requests: Floats
    unanswered: Floats

    def part(self, judged: JudgedMetric) -> Floats:
        """The part of an arm's requests that a metric's own counters lack beside others of the same processes, (B,).

        It is of the stage so far or of the last hour, whichever is more: what is too little to be seen in one block of
        one process adds up. Of events it is what their requests lack, of a histogram what it lacks of the requests that
        it is to have. What may be `in_flight` is none of it.
        """
        if judged.kind == "events":
            return self.of_requests
        own = _of_one_layer(self.arm, judged.histogram)
        if own is None:
            return np.zeros(self.usable.size)
        sources = self.arm.layers[judged.histogram].sources
        peer = peer_of(judged.histogram, sources, self.counts, self.arm.traffic["ok"])
        pairs = [] if peer is None else [(peer, own.below)]
        return _most_missed(pairs, self.within, self.usable, self.slack)


def arm_shortfall(arm: ArmFold, required: Set[str], within: slice, usable: NDArray[np.bool_]) -> Shortfall:
    """What the counters of an arm lack in a stage's blocks that are `usable`, (B,), beside the `required` ones."""
    counts = {name: sums.below for name in sorted(required) if (sums := _of_one_layer(arm, name)) is not None}
    slack, ending = in_flight(arm, within)
    handed = any(role in HANDING_OVER for _, role in arm.kinds)
    begun = [] if handed else [(arm.traffic["started"], arm.traffic["requests"])]
    pairs = [*((each, arm.traffic["requests"]) for each in counts.values()), *begun]
    return Shortfall(
        arm, within, usable, slack, counts, _most_missed(pairs, within, usable, slack),
        _most_missed(begun, within, usable, ending),
    )  # fmt: skip


def _most_missed(
    pairs: Sequence[tuple[Floats, Floats]], within: slice, usable: NDArray[np.bool_], slack: Floats
) -> Floats:
    missed = [_missed(one[:, within], other[:, within], usable, slack) for one, other in pairs]
    return np.asarray(np.max([np.zeros(usable.size), *missed], axis=0))


def _of_one_layer(arm: ArmFold, histogram: str) -> ReplicaSums | None:
    """A histogram that an arm takes from the processes whose requests it counts, which see the same ones."""
    here, requests = arm.layers.get(histogram), arm.layers.get("requests_total")
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
