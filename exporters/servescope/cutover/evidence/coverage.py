"""How completely an arm was observed, block by block: what turns missing data into NO DATA, and never into health."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.folding import ArmFold, ArmName
from servescope.cutover.statistics.sequences import Floats
from servescope.increments.blocks import BLOCK_MS

LEAST_SCRAPES: Final = 0.8
"""The share of the expected scrapes below which an arm is not observed."""
STALE_INTERVALS: Final = 3
HOUR_BLOCKS: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class ArmCoverage:
    """What is known of an arm after each block of a stage, (B,) each.

    `scraped` is whether a replica was scraped in the block; `seen` whether one was so far; `share` and `recent` are the
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

    A replica is expected from the first block that it is seen in to the latest so far: one that ended is not, one that
    comes back was, but for blocks before its process began.
    """
    present = arm.present[:, within]
    scrapes = arm.scrapes[:, within]
    attempts = scrapes + arm.failed[:, within]
    replicas, blocks = present.shape
    if not replicas or not blocks:
        nothing = np.zeros(blocks)
        no = np.zeros(blocks, dtype=np.bool_)
        return ArmCoverage(no, no, nothing, nothing, nothing, nothing)
    each = BLOCK_MS / interval_ms
    # In its first block a replica came when it came; later it is expected as often as the interval says.
    is_first = present & (np.arange(blocks) == present.argmax(axis=1)[:, None])
    wanted = np.where(is_first, attempts, np.where(_away(arm, within), 0.0, each))
    expected = _up_to_latest(np.where(usable, wanted, 0.0), present).sum(axis=0)
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


def _up_to_latest(values: Floats, present: NDArray[np.bool_]) -> Floats:
    """The running sums from the first block that a replica is `present` in to the latest so far, all (P, B)."""
    if present.all():
        return np.asarray(np.cumsum(values, axis=1))
    latest = np.maximum.accumulate(np.where(present, np.arange(present.shape[1]), -1), axis=1)
    running = np.cumsum(np.where(latest >= 0, values, 0.0), axis=1)
    return np.asarray(np.take_along_axis(running, np.maximum(latest, 0), axis=1))


def _away(arm: ArmFold, within: slice) -> NDArray[np.bool_]:
    """Where a replica was not scraped, (P, B), and its next process had not begun: a name that is used again."""
    if arm.present[:, within].all():
        return np.zeros(arm.present[:, within].shape, dtype=np.bool_)
    later = np.fmin.accumulate(arm.started[:, within][:, ::-1], axis=1)[:, ::-1]
    with np.errstate(invalid="ignore"):
        return np.asarray(~arm.present[:, within] & (arm.blocks[within] + BLOCK_MS <= later))


def _of_last_hour(running: Floats) -> Floats:
    return trailing_sum(np.diff(running, prepend=0.0))


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.asarray(np.divide(above, below, out=np.ones_like(above), where=below > 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class ServedRequests:
    """What an arm's P replicas served in each block of a stage, whether it was observed or not: `each` is (P, B)
    requests.

    `expected` are by kind of replica, a layer and a role, those that they served so far, (K, B); `members`, (K, P), are
    the replicas of each kind. `torn` is where something was rejected, (P, B), `scraped` where a scrape succeeded,
    `present` where one was tried.
    """

    arm: ArmName
    replicas: tuple[str, ...]
    each: Floats
    members: NDArray[np.bool_]
    expected: Floats
    torn: NDArray[np.bool_]
    scraped: NDArray[np.bool_]
    present: NDArray[np.bool_]
    _known: list[tuple[NDArray[np.bool_], _Reported]] = field(default_factory=list, repr=False)

    def reported(self, known: NDArray[np.bool_]) -> _Reported:
        """What of the requests a metric has that is `known`, (P, B); most metrics are known of the same replicas."""
        for each, found in self._known:
            if np.array_equal(each, known):
                return found
        self._known.append((known, _reported(self, known)))
        return self._known[-1][1]

    def missing(self, reporting: NDArray[np.bool_], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Where a replica, of a kind that reports a metric so far, (K, B), has none that is known, (P, B)."""
        return np.asarray((self.members.T.astype(float) @ reporting > 0.0) & ~known)


@dataclass(frozen=True, slots=True, eq=False)
class MetricCoverage:
    """Of the requests of an arm, the parts that the evidence of a metric has, after each of B blocks, (B,) each.

    `covered` is since the stage began, or of the last hour where that is less; `lately` of the last blocks; `rejected`
    the part that was thrown away since the stage began. The metric is `known`, (P, B), of what was `served`, and kinds
    of replicas are `reporting` it so far, (K, B); counters lack the part `missed` where they are known, (B,), and the
    part `unanswered` began and has not ended. A plan asks for `wanted`.
    """

    covered: Floats
    lately: Floats
    rejected: Floats
    known: NDArray[np.bool_]
    reporting: NDArray[np.bool_]
    missed: Floats
    unanswered: Floats
    served: ServedRequests
    wanted: float

    def counted(self) -> Floats:
        """What the evidence has of the requests that ended or are counted in part: harm may be claimed of it, (B,)."""
        found = self.served.reported(self.known).covered * (1.0 - self.missed)
        return np.asarray(np.minimum(found, self.lately))

    def short(self) -> NDArray[np.bool_]:
        """Where less is covered than the plan asks for."""
        return self.covered < self.wanted - _ROUNDING

    def lost_until(self, block: int) -> Floats:
        """The requests that are lost by replica up to a block, each as long as it is known to have been
        there: (P, B').
        """
        there = np.logical_or.accumulate(self.served.present[:, block::-1], axis=1)[:, ::-1]
        missing = self.served.missing(self.reporting, self.known)
        return np.asarray((self.served.each * missing)[:, : block + 1] * there)

    def thrown_away(self) -> NDArray[np.bool_]:
        """Where at least half of what is not covered was thrown away."""
        return (self.rejected > 0.0) & (2.0 * self.rejected >= 1.0 - self.covered)


def served_requests(
    name: ArmName, arm: ArmFold, within: slice, usable: NDArray[np.bool_], interval_ms: int
) -> ServedRequests:
    """The requests of a stage's blocks that are `usable`, (B,).

    Where a replica does not say how many it had, it had as many as the others of its kind in that block, or had so far,
    as far as it was to be scraped then.
    """
    scrapes, present = arm.scrapes[:, within], arm.present[:, within]
    attempted = np.minimum(1.0, (scrapes + arm.failed[:, within]) * interval_ms / BLOCK_MS)
    # A replica that comes back was there meanwhile.
    attempted = np.where(present, attempted, np.where(_away(arm, within), 0.0, 1.0))
    kinds = _kinds(arm)
    apart = tuple(dict.fromkeys(kinds))
    members = np.array([[each == kind for each in kinds] for kind in apart], dtype=np.bool_)
    members = members.reshape(len(apart), len(kinds))
    said = np.where(present, arm.served[:, within], np.nan)
    each = np.where(np.isfinite(said), said, attempted * (members.T.astype(float) @ _usual(said, members)))
    each = np.where(usable & np.logical_or.accumulate(present, axis=1), each, 0.0)
    running = _up_to_latest(each, present)
    scraped = scrapes > 0.0
    return ServedRequests(
        name,
        arm.replicas,
        each,
        members,
        members.astype(float) @ running,
        (arm.torn[:, within] > 0.0) & scraped,
        scraped,
        present,
    )


def _kinds(arm: ArmFold) -> list[tuple[str, str]]:
    """The kind of each replica: one that was never scraped is of the layer that most others of its role have."""
    common = Counter(kind for kind in arm.kinds if kind[0])
    by_role = {role: layer for (layer, role), _ in reversed(common.most_common())}
    return [(layer or by_role.get(role, ""), role) for layer, role in arm.kinds]


def _usual(said: Floats, members: NDArray[np.bool_]) -> Floats:
    """How many requests one replica of each kind has in each block, or had so far where none says, (K, B)."""
    known = np.isfinite(said)
    total, count = (members.astype(float) @ each for each in (np.where(known, said, 0.0), known.astype(float)))
    so_far = _ratio(np.cumsum(total, axis=1), np.cumsum(count, axis=1))
    return np.asarray(np.divide(total, count, out=so_far, where=count > 0.0))


_ROUNDING: Final = 1e-9


def metric_coverage(
    served: ServedRequests, known: NDArray[np.bool_], missed: Floats, unanswered: Floats, *, recent: int, wanted: float
) -> MetricCoverage:
    """How much of what was served a metric is `known` of, (P, B); `recent` blocks are the last ones.

    Where it is known, the part `missed`, (B,), is not counted all the same, and of the part `unanswered`, (B,), nobody
    knows yet how it turns out.

    Every replica of a kind of which one reports the metric is to report it. Another kind is another layer, or does
    another part of the work.
    """
    found = served.reported(known)
    return MetricCoverage(
        covered=found.covered * (1.0 - np.maximum(missed, unanswered)),
        lately=_covered_of_last(found.has, found.expected, recent),
        rejected=found.rejected,
        known=known,
        reporting=found.reporting,
        missed=missed,
        unanswered=unanswered,
        served=served,
        wanted=wanted,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Reported:
    """What evidence `has` of the requests that are `expected` so far, as in `MetricCoverage`, (B,) each."""

    reporting: NDArray[np.bool_]
    expected: Floats
    has: Floats
    covered: Floats
    rejected: Floats


def _reported(served: ServedRequests, known: NDArray[np.bool_]) -> _Reported:
    reporting = _ever(served.members, known)
    if served.torn.any():
        reporting |= _ever(served.members, served.torn) & ~reporting.any(axis=0)
    expected = (served.expected * reporting).sum(axis=0)
    has = np.cumsum(np.where(known, served.each, 0.0).sum(axis=0))
    thrown = np.zeros(has.size)
    if served.torn.any():
        thrown = np.cumsum((served.each * (served.missing(reporting, known) & served.torn)).sum(axis=0))
    return _Reported(
        reporting,
        expected,
        has,
        np.minimum(_ratio(has, expected), _covered_of_last(has, expected, HOUR_BLOCKS)),
        np.asarray(np.divide(thrown, expected, out=np.zeros_like(expected), where=expected > 0.0)),
    )


def _ever(members: NDArray[np.bool_], found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where something was found of a replica of each kind so far, (K, B)."""
    each = np.array([found[kind].any(axis=0) for kind in members], dtype=np.bool_)
    return np.logical_or.accumulate(each.reshape(len(members), found.shape[1]), axis=1)


def _covered_of_last(has: Floats, expected: Floats, blocks: int) -> Floats:
    return _ratio(*(trailing_sum(np.diff(each, prepend=0.0), blocks) for each in (has, expected)))


def trailing_sum(values: Floats, blocks: int = HOUR_BLOCKS) -> Floats:
    """The sum of each block and those before it, as many as asked for in all: (..., B)."""
    running = np.concatenate([np.zeros((*values.shape[:-1], blocks)), np.cumsum(values, axis=-1)], axis=-1)
    return np.asarray(running[..., blocks:] - running[..., :-blocks])
