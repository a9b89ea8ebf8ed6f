"""What an arm is given beside the length of its prompts: how much of them its caches hold, and how many requests.

Conversations and tenants that keep to a replica, or to an arm, move its latency by how much of their prompts is reused
more than by how long these are, and by how many requests they send. What one unit of either moves a metric by is
learned in v1's past and frozen with the plan. The features are the logarithm of the share of prompt tokens that were
computed, 1 − reused ÷ eligible, and the load, requests per replica and second: a latency grows ever faster with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.comparison.calibration import BLOCKS_PER_HOUR, LAG_BLOCKS, long_run_variance
from servescope.cutover.evidence.folding import ArmFold
from servescope.cutover.plan.plan import Slope
from servescope.cutover.statistics.change import RESTART_BLOCKS
from servescope.cutover.statistics.effects import BlockEffects, merged_sums
from servescope.cutover.statistics.mix import SURE_ERRORS, Prompts, PromptSlope, feature, fit, within_blocks
from servescope.cutover.statistics.sequences import Floats, zero_unknown
from servescope.increments.blocks import BLOCK_MS

_LEAST_TOKENS = 1.0
"""Prompt tokens of a block without which its share is not known."""
_LEAST_COMPUTED = 0.01
"""The share of prompt tokens that is computed at least: of a prompt its last token always is."""


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Prompt tokens that were computed, and all of them where reuse is reported; requests, and over how many seconds of
    replicas.

    Per replica and block, (P, B), or of an arm per block, (B,); 0 where not known.
    """

    computed: Floats
    eligible: Floats
    requests: Floats
    replica_seconds: Floats

    def of(self, chosen: NDArray[np.bool_]) -> Given:
        """Those of a group of replicas together, (P,)."""
        return Given(*(each[chosen].sum(axis=0) for each in self._all()))

    def hourly(self) -> Given:
        """Those of whole hours, (P, B / 12)."""
        return Given(*(_merged(each) for each in self._all()))

    def over(self, blocks: BlockEffects) -> Given:
        """Those of an arm in merged blocks, (K,)."""
        return Given(*(merged_sums(each, blocks.last - blocks.merged + 1, blocks.last) for each in self._all()))

    def _all(self) -> tuple[Floats, Floats, Floats, Floats]:
        return self.computed, self.eligible, self.requests, self.replica_seconds

    def share_computed(self) -> Floats:
        """The logarithm of the share of prompt tokens that was computed, NaN where reuse is not known."""
        known = self.eligible >= _LEAST_TOKENS
        shares = np.divide(self.computed, self.eligible, out=np.ones_like(self.eligible), where=known)
        return np.where(known, np.log(np.maximum(shares, _LEAST_COMPUTED)), np.nan)

    def load(self) -> Floats:
        """Requests per replica and second, NaN where there are none."""
        known = (self.requests > 0.0) & (self.replica_seconds > 0.0)
        nothing = np.full(self.requests.shape, np.nan)
        return np.asarray(np.divide(self.requests, self.replica_seconds, out=nothing, where=known))


def given_of(arm: ArmFold) -> Given:
    """What each replica of an arm was given, (P, B). More reused than there were tokens cannot be, and is not known."""
    eligible, reused = arm.traffic["eligible"], arm.traffic["reused"]
    known = (reused <= eligible) & (eligible > 0.0)
    requests = zero_unknown(arm.traffic["requests"])
    seconds = np.where(requests > 0.0, BLOCK_MS / 1000, 0.0)
    return Given(np.where(known, eligible - reused, 0.0), np.where(known, eligible, 0.0), requests, seconds)


@dataclass(frozen=True, slots=True)
class Learned:
    """The slopes of a metric on reuse and on load, None where v1's past shows none; and on length beside reuse.

    `cv2` is the variance of what they explain of one observation, as far as it does not last from block to block.
    """

    reuse: Slope | None
    load: Slope | None
    prompts: float | None
    cv2: float


def learn(
    timed: Prompts, given: Given, prompts: Prompts | None, sign: float, *, length: float = 0.0
) -> Learned | None:  # fmt: skip
    """How what v1's replicas were given moved a metric before the cutover; None where that shows nothing.

    `timed` is the metric's sum and of how many requests, per replica and block, (P, B), 0 where not known; `prompts`
    are those that effects are adjusted by, with the slope `length`, None where they are not. Slopes count in the
    direction of `sign`, 1 or −1, alone: computing and serving more takes time, and what says otherwise is explained by
    something else.
    """
    # Chance among few requests moves the share of tokens more than the metric, so that the slope comes out too small
    # within blocks; within hours it does so less, where these show it.
    found = _learn_reuse(_hourly(timed), given.hourly(), None if prompts is None else _hourly(prompts))
    found = found or _learn_reuse(timed, given, prompts)
    reuse, on_length = found if found is not None and found[0].slope * sign > 0.0 else (None, None)
    rest = feature(timed)
    cv2 = 0.0
    if reuse is not None:
        explained = reuse.slope * given.share_computed()
        rest, cv2 = rest - explained, _variance_of_one(explained, timed.requests)
    if prompts is not None:
        # Prompts may be longer at the hours of the highest load.
        rest = rest - (length if on_length is None else on_length) * feature(prompts)
    load = _learn_load(rest, timed.requests, given)
    if load is not None and load.slope * sign <= 0.0:
        load = None
    if reuse is None and load is None:
        return None
    if load is not None:
        # Requests come by chance: their number varies by itself.
        cv2 += (load.slope * float(np.nanmean(given.load()))) ** 2
    return Learned(reuse, load, on_length, cv2)


def _learn_reuse(timed: Prompts, given: Given, prompts: Prompts | None) -> tuple[Slope, float | None] | None:
    """The slope on reuse, and that on length beside it, between replicas at the same time: load explains nothing."""
    lengths = () if prompts is None else (feature(prompts),)
    found = within_blocks(timed.requests, feature(timed), given.share_computed(), *lengths)
    if found is None:
        return None
    weights, y, w, *known = found
    on_length = None
    if known:
        of_y, of_w = fit(weights, y, known[0]), fit(weights, w, known[0])
        if of_y is None or of_w is None:
            return None
        # The slope beside length is that of what length explains of neither (Frisch and Waugh 1933).
        on_length = of_y[0], of_w[0]
        y, w = y - on_length[0] * known[0], w - on_length[1] * known[0]
    fitted = fit(weights, y, w)
    if fitted is None or abs(fitted[0]) <= SURE_ERRORS * fitted[1]:
        return None
    return Slope(*fitted), None if on_length is None else on_length[0] - fitted[0] * on_length[1]


def _hourly(values: Prompts) -> Prompts:
    return Prompts(*(_merged(each) for each in (values.tokens, values.requests)))


def _merged(values: Floats) -> Floats:
    """Sums over whole hours, (P, B) to (P, B / 12)."""
    hours = values.shape[1] // BLOCKS_PER_HOUR
    return np.asarray(values[:, : hours * BLOCKS_PER_HOUR].reshape(len(values), hours, BLOCKS_PER_HOUR).sum(axis=2))


def _variance_of_one(explained: Floats, requests: Floats) -> float:
    """The variance of what is explained of one request, by how it steps from block to block: without what lasts."""
    steps, counts = np.diff(explained, axis=1), 0.5 * (requests[:, 1:] + requests[:, :-1])
    known = np.isfinite(steps) & (counts > 0.0)
    return float((counts * np.square(steps) / 2.0)[known].mean()) if known.any() else 0.0


def _learn_load(means: Floats, requests: Floats, given: Given) -> Slope | None:
    """From block to block, of all replicas together: those of one block get like loads, and differ by chance."""
    weights = np.where(np.isfinite(means), requests, 0.0)
    whole = weights.sum(axis=0)
    loads = given.of(np.ones(len(requests), dtype=np.bool_)).load()
    known = (whole > 0.0) & np.isfinite(loads)
    if known.sum() <= 2 * LAG_BLOCKS:
        return None
    y = (weights * zero_unknown(means)).sum(axis=0)[known] / whole[known]
    x = loads[known] - loads[known].mean()
    base = float(x @ x)
    if base <= 0.0:
        return None
    slope = float(x @ y) / base
    scores = x * (y - y.mean() - slope * x)
    error = math.sqrt(max(0.0, long_run_variance(scores, LAG_BLOCKS)) * x.size) / base
    return Slope(slope, error) if abs(slope) > SURE_ERRORS * error else None


def beside(length: PromptSlope | None, slope: float | None) -> PromptSlope | None:
    """How length moves a metric beside reuse, where that was learned."""
    return length if length is None or slope is None else replace(length, slope=slope)


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """The effects, ln(v2 ÷ v1), and what the arms' different reuse and load explain of them in each block, (K,)."""

    whole: BlockEffects
    reuse: Floats
    load: Floats

    def worse(self, sign: float) -> Moved:
        """The same of what so far makes v2 worse, in the direction of `sign`: what makes it better excuses nothing, and
        does not count against v2 either."""
        reuse, load = (np.where(sign * self.mean(part) > 0.0, part, 0.0) for part in (self.reuse, self.load))
        return replace(self, reuse=reuse, load=load)

    def left(self) -> BlockEffects:
        """The effects without that."""
        return replace(self.whole, effects=self.whole.effects - self.reuse - self.load)

    def explained(self, cv2: float, requests: tuple[Floats, Floats]) -> BlockEffects:
        """What is explained as effects of their own; `requests` are each arm's observations per block, (B,)."""
        firsts = self.whole.last - self.whole.merged + 1
        first, second = (1.0 / np.maximum(merged_sums(each, firsts, self.whole.last), 1.0) for each in requests)
        sampling = np.where(np.isfinite(self.whole.sampling), cv2 * (first + second), np.inf)
        return replace(self.whole, effects=self.reuse + self.load, sampling=sampling)

    def mean(self, part: Floats, blocks: float = math.inf) -> Floats:
        """The mean of a part, weighted as effects are, of the stage or of so many latest five-minute blocks, (K,)."""
        weights = np.where(np.isfinite(self.whole.sampling), 1.0 / self.whole.sampling, 0.0)
        above, below = (np.concatenate([[0.0], np.cumsum(each)]) for each in (weights * part, weights))
        first = np.searchsorted(self.whole.last, self.whole.last - blocks, side="right")
        whole = below[1:] - below[first]
        return np.asarray(np.divide(above[1:] - above[first], whole, out=np.zeros_like(whole), where=whole > 0.0))

    def unsure(self, reuse: Slope | None, load: Slope | None) -> Floats:
        """The variance that the errors of the slopes leave in the mean effect, of the stage or since the latest restart
        of evidence, (K,): no waiting averages it out."""
        variance = np.zeros_like(self.reuse)
        for slope, part in ((reuse, self.reuse), (load, self.load)):
            if slope is not None:
                largest = np.maximum(np.abs(self.mean(part)), np.abs(self.mean(part, RESTART_BLOCKS)))
                variance = variance + np.square(largest * slope.error / slope.slope)
        return variance


def explain(
    whole: BlockEffects, beside_reuse: BlockEffects, reuse: Slope | None, load: Slope | None, v1: Given, v2: Given
) -> Moved:
    """What the arms' different reuse and load explain of effects; `beside_reuse` are those adjusted by the slope on
    length that was learned beside reuse.

    A block that an arm does not report is left as it is: nothing explains it. What the arms were given is per
    five-minute block, (B,).
    """
    first, second = v1.over(whole), v2.over(whole)
    nothing = np.zeros_like(whole.effects)
    by_reuse = by_load = nothing
    if reuse is not None:
        difference = second.share_computed() - first.share_computed()
        moved = whole.effects - beside_reuse.effects + reuse.slope * difference
        by_reuse = np.where(np.isfinite(difference), moved, 0.0)
    if load is not None:
        by_load = zero_unknown(load.slope * (second.load() - first.load()))
    return Moved(whole, by_reuse, by_load)
