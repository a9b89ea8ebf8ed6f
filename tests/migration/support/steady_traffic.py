"""Requests of nearly one size, served at a steady pace: what a collector sees of them, and the tokens in flight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Deployment
from servescope.contract.metrics import METRICS
from servescope.increments.blocks import BLOCK_MS
from servescope.migration.traffic.traffic import BLOCK_SECONDS, ServedHistogram, ServedTraffic

Floats = NDArray[np.float64]

_SCRAPE_SECONDS = 30
_BEFORE_SECONDS = 1200


class SteadyMix(NamedTuple):
    """Requests a second, tokens of a prompt and of an answer, seconds to the first token and for each after it.

    `spread` is the sigma of the log-normal distribution of sizes and of the time to the first token, 0 for constants.
    """

    rate: float
    prompt: int
    output: int
    first: float
    pace: float
    spread: float


def serve_steadily(mix: SteadyMix, *, hours: int) -> tuple[ServedTraffic, Floats]:
    """What is seen of so many hours by block of five minutes, and the mean tokens in flight of each, (n,)."""
    random, blocks = np.random.default_rng(1), hours * 12
    seconds = int(blocks * BLOCK_SECONDS)
    arrivals = np.sort(
        random.uniform(-_BEFORE_SECONDS, seconds, random.poisson(mix.rate * (seconds + _BEFORE_SECONDS)))
    )
    prompts, outputs, firsts = (
        size * np.exp(random.normal(0.0, mix.spread, arrivals.size)) for size in (mix.prompt, mix.output, mix.first)
    )
    prompts, outputs = np.rint(prompts), np.maximum(np.rint(outputs), 2.0)
    decoding = (outputs - 1) * mix.pace
    ends = arrivals + firsts + decoding
    tokens = np.zeros(seconds)
    from_second, to_second = (np.clip(np.ceil(each), 0, seconds).astype(int) for each in (arrivals, ends))
    begun, ended_before = (np.bincount(each, minlength=seconds + 1)[:-1] for each in (from_second, to_second))
    requests = np.cumsum(begun - ended_before).astype(float)
    each_request = (from_second, to_second, arrivals + firsts, decoding, prompts, outputs)
    for begin, end, answered, lasts, prompt, output in zip(*(each.tolist() for each in each_request), strict=True):
        done = (np.arange(begin, end) - answered) / lasts
        tokens[begin:end] += prompt + output * np.minimum(np.maximum(done, 0.0), 1.0)
    column = np.floor(ends / BLOCK_SECONDS).astype(int)
    ended = (column >= 0) & (column < blocks)

    def count(values: Floats) -> Floats:
        return np.bincount(column[ended], values[ended], blocks).astype(np.float64)

    def histogram(name: str, values: Floats) -> ServedHistogram:
        edges = METRICS[name].edges or ()
        counts = np.zeros((len(edges) + 1, blocks))
        np.add.at(counts, (np.searchsorted(edges, values[ended]), column[ended]), 1.0)
        return ServedHistogram(edges, counts, count(values))

    traffic = ServedTraffic(
        deployments=(Deployment("llama", "chat-v1", "v1"),),
        blocks=np.arange(blocks, dtype=np.int64) * BLOCK_MS,
        replicas=np.full(blocks, 2.0),
        concurrency=requests[::_SCRAPE_SECONDS].reshape(blocks, -1).mean(axis=1),
        queued=np.zeros(blocks),
        cache_usage=np.full(blocks, np.nan),
        requests=count(np.ones(ends.size)),
        histograms={
            name: histogram(name, values)
            for name, values in (
                ("input_tokens_per_request", prompts),
                ("output_tokens_per_request", outputs),
                ("request_duration_seconds", ends - arrivals),
                ("time_to_first_token_seconds", firsts),
                ("time_per_output_token_seconds", decoding / (outputs - 1)),
            )
        },
        counters={"decode_seconds_total": count(decoding)},
        gpus_per_replica=None,
    )
    return traffic, tokens.reshape(blocks, -1).mean(axis=1)
