"""Random damage to the evidence of a cutover: replicas, blocks, series and scrapes that are lost or spoiled."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.evidence import Evidence
from servescope.increments.blocks import BLOCK_MS, TargetIncrements

Damage = Callable[[Evidence, np.random.Generator], Evidence]


def lose_replicas(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Some replicas, of either arm."""
    kept = random.random(len(evidence.targets)) > random.uniform(0.1, 0.9)
    return replace(evidence, targets=tuple(each for each, keep in zip(evidence.targets, kept, strict=True) if keep))


def lose_blocks(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Some blocks of every replica, each by chance."""
    part = random.uniform(0.02, 0.9)
    return _each(evidence, lambda target: target.at(random.random(target.blocks.size) > part))


def lose_a_span(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """All blocks of a span, of one arm or both."""
    start = random.integers(0, 60) * BLOCK_MS
    end = evidence.observed_until_ms - start
    begin = end - random.integers(1, 60) * BLOCK_MS
    arms = [("v1",), ("v2",), ("v1", "v2")][random.integers(0, 3)]

    def cut(target: TargetIncrements) -> TargetIncrements:
        if target.identity.inference_stack not in arms:
            return target
        return target.at((target.blocks < begin) | (target.blocks >= end))

    return _each(evidence, cut)


def lose_a_metric(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """The series of one metric, of some replicas."""
    names = sorted({each.name.split("_bucket")[0] for target in evidence.targets for each in target.series})
    if not names:
        return evidence
    name = names[random.integers(0, len(names))]
    part = random.uniform(0.0, 1.0)

    def drop(target: TargetIncrements) -> TargetIncrements:
        if random.random() < part:
            return target
        kept = [row for row, each in enumerate(target.series) if not each.name.startswith(name)]
        return replace(target, series=tuple(target.series[row] for row in kept), gains=target.gains[kept])

    return _each(evidence, drop)


def spoil_values(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Gains here and there that no counter can have."""
    part, bad = random.uniform(0.001, 0.3), [np.nan, np.inf, -1.0][random.integers(0, 3)]

    def spoil(target: TargetIncrements) -> TargetIncrements:
        return replace(target, gains=np.where(random.random(target.gains.shape) < part, bad, target.gains))

    return _each(evidence, spoil)


def lose_scrapes(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Scrapes of every block, with what was counted in them."""
    part = random.uniform(0.05, 0.9)

    def thin(target: TargetIncrements) -> TargetIncrements:
        lost = random.binomial(target.tallies.scrapes, part)
        share = np.divide(lost, target.tallies.scrapes, out=np.zeros(lost.size), where=target.tallies.scrapes > 0)
        tallies = replace(target.tallies, scrapes=target.tallies.scrapes - lost, failed=target.tallies.failed + lost)
        return replace(target, gains=_floor(target.gains, 1.0 - share), tallies=tallies)

    return _each(evidence, thin)


def _floor(gains: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.floor(gains * part))


def restart(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Processes that begin anew."""

    def again(target: TargetIncrements) -> TargetIncrements:
        fell = random.random(target.blocks.size) < random.uniform(0.0, 0.2)
        return replace(target, tallies=replace(target.tallies, resets=fell.astype(np.int64)))

    return _each(evidence, again)


def negate(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Counters of some blocks that were answered with the wrong sign."""
    return _alter(evidence, random, lambda gains: -gains)


def thin(evidence: Evidence, random: np.random.Generator, whole: float = 0.3) -> Evidence:
    """Counters of some blocks of which a part was lost on the way."""
    left = random.uniform(0.0, 0.6)
    return _alter(evidence, random, lambda gains: _floor(gains, np.asarray(left)), whole=whole)


def duplicate(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """One counter that was added up twice, or more often; of all of them it could not be told from more requests."""
    times = float(random.integers(2, 6))
    return _alter(evidence, random, lambda gains: times * gains, whole=0.0)


def scale_sums(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """The sums of a histogram in another unit than its buckets."""
    factor = float(random.choice([0.001, 0.05, 0.2, 5.0, 20.0, 1000.0]))
    return _alter(evidence, random, lambda gains: factor * gains, ending="_sum")


def swap(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """The sums of two histograms exchanged, on some replicas."""
    part = random.uniform(0.2, 1.0)

    def exchange(target: TargetIncrements) -> TargetIncrements:
        sums = [row for row, each in enumerate(target.series) if each.name.endswith("_sum")]
        if len(sums) < 2 or random.random() > part:
            return target
        one, other = random.choice(sums, size=2, replace=False)
        gains = np.array(target.gains)
        gains[[one, other]] = gains[[other, one]]
        return replace(target, gains=gains)

    return _each(evidence, exchange)


def delay(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """One counter that is some blocks late, on some replicas."""
    part, late = random.uniform(0.2, 1.0), int(random.integers(1, 4))

    def shift(target: TargetIncrements) -> TargetIncrements:
        name = _family(target, random)
        if not name or random.random() > part:
            return target
        rows = [row for row, each in enumerate(target.series) if each.name.startswith(name)]
        gains = np.array(target.gains)
        gains[rows] = np.roll(gains[rows], late, axis=1)
        return replace(target, gains=gains)

    return _each(evidence, shift)


def _alter(
    evidence: Evidence,
    random: np.random.Generator,
    change: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    ending: str = "",
    whole: float = 0.3,
) -> Evidence:
    """The gains of one family of series, or as often as `whole` of all, changed in some blocks of one arm or both."""
    arms = [("v1",), ("v2",), ("v1", "v2")][random.integers(0, 3)]
    name = _family(evidence.targets[0], random) if evidence.targets and random.random() >= whole else ""
    part = random.uniform(0.02, 1.0)

    def alter(target: TargetIncrements) -> TargetIncrements:
        if target.identity.inference_stack not in arms:
            return target
        rows = [
            row
            for row, each in enumerate(target.series)
            if each.name.startswith(name) and each.name.endswith(ending)
        ]  # fmt: skip
        cells = np.ix_(np.array(rows, dtype=np.intp), np.flatnonzero(random.random(target.blocks.size) < part))
        gains = np.array(target.gains)
        gains[cells] = change(gains[cells])
        return replace(target, gains=gains)

    return _each(evidence, alter)


def _family(target: TargetIncrements, random: np.random.Generator) -> str:
    """The name of a metric that a target has; "" of one that has none."""
    names = sorted({_PART.sub("", each.name) for each in target.series})
    return str(random.choice(names)) if names else ""


_PART = re.compile("_(bucket|sum|count)$")

DAMAGES: tuple[Damage, ...] = (
    lose_replicas, lose_blocks, lose_a_span, lose_a_metric, spoil_values, lose_scrapes, restart, negate, thin,
    duplicate, scale_sums, swap, delay,
)  # fmt: skip


def _each(evidence: Evidence, change: Callable[[TargetIncrements], TargetIncrements]) -> Evidence:
    return replace(evidence, targets=tuple(change(target) for target in evidence.targets))
