"""Random damage to the evidence of a cutover: pods, blocks, series and scrapes that are lost or spoiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servescope.contract.increments import BLOCK_MS, TargetIncrements
from servescope.cutover.evidence import Evidence

Damage = Callable[[Evidence, np.random.Generator], Evidence]


def lose_pods(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Some pods, of either arm."""
    kept = random.random(len(evidence.targets)) > random.uniform(0.1, 0.9)
    return replace(evidence, targets=tuple(each for each, keep in zip(evidence.targets, kept, strict=True) if keep))


def lose_blocks(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Some blocks of every pod, each by chance."""
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
    """The series of one metric, of some pods."""
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


DAMAGES: tuple[Damage, ...] = (
    lose_pods, lose_blocks, lose_a_span, lose_a_metric, spoil_values, lose_scrapes, restart,
)  # fmt: skip


def _each(evidence: Evidence, change: Callable[[TargetIncrements], TargetIncrements]) -> Evidence:
    return replace(evidence, targets=tuple(change(target) for target in evidence.targets))
