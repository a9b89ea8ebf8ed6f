"""The tokens in flight on a deployment that does not report them, as a band.

v1 reports requests in flight, and the sizes and durations of requests, but not which sizes had which durations. By
Little's law the tokens in flight are, on average, the requests that arrive times the tokens that each holds times how
long it holds them: of a request its prompt from its arrival to its end, and of its output half, as it grows from first
to last token. So the mean over requests of prompt × duration and of output × decoding time is what is missing, and
`coupling` bounds it. The documented definition counts of a prompt in prefill only the part that is not cached: the
lower bound leaves out all time before the first token.

How many requests are in flight is known from two sides: a gauge that is read at each scrape, which of few requests is
off by chance, and Little's law, which is off by those that began in one block and ended in another. The bounds are of
the lower and of the higher of both, less and more by what few requests are off by chance, and leave a margin for blocks
that differ from their hour: where sizes hardly vary, and how they come together does not matter, that is what the band
is wide.

What is assumed: the tokens of one request come at a steady pace; and within an hour the requests in flight are as those
that ended. Requests that ended without a token hold nothing, although they wait with their prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from servescope.errors import UsageError
from servescope.migration.traffic.coupling import bound_product, spread_most, spread_part
from servescope.migration.traffic.traffic import BLOCK_SECONDS, Flags, Floats, ServedTraffic, SizeDistribution

NEEDED: Final = ("input_tokens_per_request", "output_tokens_per_request", "request_duration_seconds")
"""The histograms without which nothing is reconstructed."""

_USED: Final = ("time_to_first_token_seconds", "time_per_output_token_seconds")
_DECODING: Final = "decode_seconds_total"
_HOUR_BLOCKS: Final = 12
_FEWEST_REQUESTS: Final = 50
"""With fewer requests in an hour, those of all hours are taken."""
_PARTS: Final = 4000
MARGIN: Final = 0.05
"""The share by which each bound of a block goes beyond what its hour had."""
_OF_A_PART: Final = 12**-0.5
"""The standard deviation of a part that is anything from none to all."""
_OF_GROWTH: Final = 0.1
"""At least that of what a request holds in such a part, where answers are all it holds."""
_SCRAPE_SECONDS: Final = 60
"""As seldom as gauges are taken to be scraped."""


@dataclass(frozen=True, slots=True)
class TokenBand:
    """A number of tokens: the bounds of it, and where it is if size and duration have the usual relation.

    The estimate takes prompts to be independent of how long requests last, and outputs to be as long as they take.
    """

    low: float
    estimate: float
    high: float

    def scaled(self, factor: float) -> TokenBand:
        """All three times a factor."""
        return TokenBand(self.low * factor, self.estimate * factor, self.high * factor)


@dataclass(frozen=True, slots=True, eq=False)
class ReconstructedTokens:
    """Tokens in flight over a deployment by block, (n,), NaN where requests in flight are not known.

    `per_request` is the band of what one request in flight holds, over all blocks and without the margin of a block.
    `is_derived` says that the requests in flight are not reported, and follow from how many ended and how long they
    took.
    """

    low: Floats
    estimate: Floats
    high: Floats
    concurrency: Floats
    per_request: TokenBand
    is_derived: bool

    def mean(self) -> TokenBand:
        """The mean over the blocks that are known."""
        return TokenBand(*(float(np.nanmean(each)) for each in (self.low, self.estimate, self.high)))

    def per_replica(self, replicas: Floats, share: float) -> TokenBand:
        """A quantile over the blocks of the tokens in flight per replica."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found = [each / replicas for each in (self.low, self.estimate, self.high)]
        return TokenBand(*(float(np.nanquantile(np.where(np.isfinite(each), each, np.nan), share)) for each in found))


def reconstruct_in_flight(traffic: ServedTraffic) -> ReconstructedTokens:
    """The tokens in flight of what a deployment served.

    Raises UsageError naming the histogram that is missing, or where no request ended.
    """
    missing = [name for name in NEEDED if traffic.pool(name) is None]
    if missing:
        raise UsageError(
            f"{traffic.name}: tokens in flight cannot be reconstructed without {' and '.join(missing)}: the source "
            "reports no such histogram, or no request ended in this time"
        )
    complete = _complete(traffic)
    if not complete.any():
        raise UsageError(f"{traffic.name}: sizes and durations are never known of all replicas at once")
    whole = _hold(traffic, complete)
    reported, derived = _concurrency(traffic)
    is_derived = not np.isfinite(reported).any()
    concurrency = derived if is_derived else reported
    fewest, most = np.minimum(concurrency, np.fmin(derived, np.inf)), np.maximum(concurrency, np.fmax(derived, 0.0))
    bands = np.full((3, traffic.blocks.size), np.nan)
    for hour in _hours(traffic):
        duration = traffic.pool("request_duration_seconds", hour & complete)
        is_enough = duration is not None and duration.count >= _FEWEST_REQUESTS
        held = _hold(traffic, hour & complete) if is_enough and not _missing(traffic, hour & complete) else whole
        lasting = duration if duration is not None else _pool(traffic, "request_duration_seconds", complete)
        chance = _chance(most[hour], lasting.mean, is_scraped=not is_derived)
        bands[0, hour] = (1 - MARGIN) * held.low * np.maximum(fewest[hour] - chance, 0.0)
        bands[1, hour] = held.estimate * concurrency[hour]
        bands[2, hour] = (1 + MARGIN) * held.high * (most[hour] + chance)
    if not np.isfinite(concurrency).any():
        raise UsageError(f"{traffic.name}: neither requests in flight nor ended requests are known, expected one")
    return ReconstructedTokens(bands[0], bands[1], bands[2], concurrency, whole, is_derived)


def _complete(traffic: ServedTraffic) -> Flags:
    """The blocks in which all is known that the deployment reports of sizes and durations, so that it fits together."""
    needed = [traffic.histograms[name].totals for name in (*NEEDED, *_USED) if name in traffic.histograms]
    needed += [traffic.counters[name] for name in (_DECODING,) if name in traffic.counters]
    return np.asarray(np.isfinite(np.stack(needed)).all(axis=0))


def _hours(traffic: ServedTraffic) -> Iterator[Flags]:
    hours = np.arange(traffic.blocks.size) // _HOUR_BLOCKS
    for hour in range(int(hours[-1]) + 1):
        yield hours == hour


def _missing(traffic: ServedTraffic, blocks: Flags) -> bool:
    return any(traffic.pool(name, blocks) is None for name in NEEDED)


def _concurrency(traffic: ServedTraffic) -> tuple[Floats, Floats]:
    """Requests in flight by block: as they are reported, and by Little's law from the durations of those that ended."""
    durations = traffic.histograms["request_duration_seconds"].totals
    return traffic.concurrency, np.where(np.isfinite(traffic.requests), durations / BLOCK_SECONDS, np.nan)


def _chance(requests: Floats, seconds: float, *, is_scraped: bool) -> Floats:
    """By how many requests a block may be off by chance, twice the standard deviation, where each lasts so long.

    Of those that are in flight at an edge of the block, a part of their time, and of what they hold then, is in it. A
    gauge that is scraped counts each once too often or too seldom. The better count is off by the less of both.
    """
    many = requests + 1.0  # none that was seen may be one
    within = np.sqrt(2 * many) * min(seconds / BLOCK_SECONDS, 1.0)
    counted = _OF_A_PART * within
    if is_scraped:
        counted = np.minimum(counted, _SCRAPE_SECONDS / 2 * np.sqrt(many / (BLOCK_SECONDS * max(seconds, 1e-3))))
    return 2 * (counted + _OF_GROWTH * within)


def _hold(traffic: ServedTraffic, blocks: Flags) -> TokenBand:
    """The tokens that one request in flight holds, of the requests that ended in some blocks, of which there are."""
    prompts, outputs, durations = (_pool(traffic, name, blocks) for name in NEEDED)
    first_tokens = traffic.pool("time_to_first_token_seconds", blocks)
    ended = max(durations.count, prompts.count)
    prompt, output, lasting = (spread_most(each, ended) for each in (prompts, outputs, durations))
    least_prompt, most_prompt = 0.0, bound_product(prompt, lasting)[1]
    least_output, most_output = 0.0, bound_product(output, lasting)[1]
    decoded = _decoded_seconds(traffic, blocks)
    if decoded is not None:
        decoding = spread_part(lasting, decoded / ended)
        least_prompt = bound_product(prompt, decoding)[0]
        least_output, most_output = bound_product(output, decoding)
        least_output = max(least_output, _least_decoded(traffic, blocks, decoded) / ended)
    low, high = least_prompt + least_output / 2, most_prompt + most_output / 2
    seconds = durations.total / ended
    estimate = _estimate(prompts, outputs, durations, first_tokens) * prompts.count / ended
    return TokenBand(low, min(max(estimate, low), high), high).scaled(1 / seconds)


def _pool(traffic: ServedTraffic, name: str, blocks: Flags) -> SizeDistribution:
    found = traffic.pool(name, blocks)
    if found is None:
        raise ValueError(f"no {name} in these blocks")
    return found


def _decoded_seconds(traffic: ServedTraffic, blocks: Flags) -> float | None:
    """The decoding time of all requests together; None where it is not reported."""
    seconds = traffic.counters.get(_DECODING)
    return float(np.nansum(seconds[blocks])) if seconds is not None and np.isfinite(seconds[blocks]).any() else None


def _least_decoded(traffic: ServedTraffic, blocks: Flags, decoded: float) -> float:
    """The least sum of output × decoding time: with D the decoding time of a request and T its seconds per token,
    output × D is at least D² / T, whose sum is at least (ΣD)² / ΣT by Cauchy and Schwarz; 0 where T is not known.
    """
    paces = traffic.pool("time_per_output_token_seconds", blocks)
    return decoded**2 / paces.total if paces is not None and paces.total > 0 else 0.0


def _estimate(
    prompts: SizeDistribution,
    outputs: SizeDistribution,
    durations: SizeDistribution,
    first_tokens: SizeDistribution | None,
) -> float:
    """The token-seconds of a request with a token, prompts independent of durations, the longest outputs lasting
    longest.
    """
    waiting = first_tokens.mean if first_tokens is not None else 0.0
    together = float((outputs.spread_evenly(_PARTS) * durations.spread_evenly(_PARTS)).mean())
    return prompts.mean * durations.mean + max(together - outputs.mean * waiting, 0.0) / 2
