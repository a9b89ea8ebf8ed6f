"""Evidence of a cutover of several segments: tenants with their own share of the requests and their own speed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, OUTCOMES, SAMPLE_FAMILIES, SEGMENT
from servescope.contract.samples import Series, make_labels
from servescope.cutover.evidence.evidence import Evidence
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements
from tests.support.cutover_evidence import HOUR, INTERVAL_MS, SCRAPES, START_MS, Floats, Story

LATENCIES = {
    "time_to_first_token_seconds": (0.35, 0.7),
    "time_per_output_token_seconds": (0.03, 0.3),
    "request_duration_seconds": (6.0, 0.6),
    "tps_per_request": (33.0, 0.3),
    "output_tokens_per_request": (200.0, 0.6),
}
"""Median and spread of what is observed of a request, which is log-normal."""
PACED = frozenset({"time_to_first_token_seconds", "time_per_output_token_seconds", "request_duration_seconds"})
"""Those that a slower stack makes longer."""


@dataclass(frozen=True)
class Tenant:
    """A segment: its part of the requests of either arm, how slow its requests are on both, and on v2 beside v1.

    `wander` is the standard deviation of the logarithm by which its requests take longer on either arm alone, for about
    an hour each: a few conversations of long prompts are on one of them.
    """

    part: float
    usual: float = 1.0
    slower: float = 1.0
    errors: float = 0.002
    v2_errors: float = 0.002
    v1_part: float | None = None
    from_hour: float = 0.0
    wander: float = 0.0


def tenants_of(count: int, slower: float = 1.0, part: float = 0.03, wander: float = 0.0) -> dict[str, Tenant]:
    """So many tenants, of whom the first has `part` of the requests and may be slower on v2, and others ever fewer."""
    rest = 1.0 / np.arange(2, count + 1)
    rest *= (1.0 - part) / rest.sum()
    found = {"tenant b": Tenant(part, slower=slower, wander=wander)}
    return found | {
        f"tenant {number}": Tenant(each, 0.7 + 0.05 * (number % 13), wander=wander) for number, each in enumerate(rest)
    }


def segmented(story: Story, tenants: Mapping[str, Tenant]) -> Evidence:
    """What both arms count of a story whose requests are those of the tenants; load goes up and down by the day.

    Histograms have no buckets here.
    """
    random = np.random.default_rng(story.seed)
    past, during = story.past_hours * HOUR, story.hours * HOUR
    hours = np.arange(past + during) / HOUR
    load = story.requests_per_minute * BLOCK_MS / 60_000 * (1.0 + 0.4 * np.sin(hours / 24.0 * 2.0 * math.pi))
    # What all replicas of both arms share in a block, and what each arm has of its own.
    shared = np.exp(0.1 * random.standard_normal(hours.size))
    share = np.concatenate([np.zeros(past), np.full(during, story.share)])
    targets = []
    for name, side, part in (("v1", story.v1, 1.0 - share), ("v2", story.v2, share)):
        first = 0 if name == "v1" else past - 26
        own = shared * side.slower
        wanders = {segment: each.wander * _wander(random, hours.size) for segment, each in tenants.items()}
        for replica in range(side.replicas):
            expected = (load * np.maximum(part, 0.02 if name == "v2" else 0.0) / side.replicas)[first:]
            since = hours[first:] - story.past_hours
            pace = own[first:] * np.exp(0.015 * random.standard_normal() + 0.06 * random.standard_normal(since.size))
            blocks = START_MS + BLOCK_MS * (first + np.arange(expected.size))
            targets.append(
                _target(
                    random,
                    name,
                    replica,
                    tenants,
                    expected,
                    pace,
                    blocks,
                    since,
                    {segment: np.exp(each[first:]) for segment, each in wanders.items()},
                )
            )
    last = {target.target_id: story.end_ms for target in targets}
    return Evidence(tuple(targets), story.end_ms, INTERVAL_MS, last)


def _target(
    random: np.random.Generator, name: str, replica: int, tenants: Mapping[str, Tenant], expected: Floats, pace: Floats,
    blocks: np.ndarray, since: Floats, wanders: Mapping[str, Floats],
) -> TargetIncrements:  # fmt: skip
    identity = Identity("llama", f"chat-{name}", name, replica=f"{name}-{replica}")
    rows: dict[Series, Floats] = {}
    outputs = decoding = np.zeros(expected.size)
    for segment, tenant in tenants.items():
        part = tenant.part if name == "v2" or tenant.v1_part is None else tenant.v1_part
        requests = random.poisson(expected * part).astype(float)
        late = (since >= tenant.from_hour) & (name == "v2")
        failed = random.binomial(requests.astype(int), np.where(late, tenant.v2_errors, tenant.errors)).astype(float)
        ok = requests - failed
        slower = pace * wanders[segment] * tenant.usual * np.where(late, tenant.slower, 1.0)
        own = (SEGMENT, segment)
        rows[Series("requests_started_total", make_labels([own]))] = requests
        for outcome in OUTCOMES:
            values = {"ok": ok, "error": failed}.get(outcome, np.zeros(expected.size))
            rows[Series("requests_total", make_labels([own, ("outcome", outcome)]))] = values
        for histogram, (median, spread) in LATENCIES.items():
            factor = slower
            if histogram not in PACED:
                factor = 1.0 / slower if histogram == "tps_per_request" else np.ones_like(slower)
            mean = median * factor * math.exp(spread**2 / 2)
            # The sum of log-normal values is nearly a gamma of the same mean and variance.
            shape = ok / (math.exp(spread**2) - 1.0)
            total = np.where(ok > 0.0, random.gamma(np.maximum(shape, 1e-9)) * mean * (math.exp(spread**2) - 1.0), 0.0)
            rows[Series(f"{histogram}_sum", make_labels([own]))] = total
            rows[Series(f"{histogram}_count", make_labels([own]))] = ok
        outputs = outputs + rows[Series("output_tokens_per_request_sum", make_labels([own]))]
        decoding = decoding + rows[Series("request_duration_seconds_sum", make_labels([own]))]
    rows[Series("output_tokens_total", ())] = outputs
    rows[Series("decode_seconds_total", ())] = decoding
    zeros = np.zeros(expected.size, dtype=np.int64)
    nothing = np.zeros(expected.size)
    return TargetIncrements(
        target_id=identity.target_id, identity=identity, blocks=blocks.astype(np.int64), series=tuple(rows),
        gains=np.array(list(rows.values())),
        gauges=(Series("queued_requests", ()), Series("kv_cache_usage", ()), Series("concurrent_requests", ())),
        levels=np.array([nothing, np.full(expected.size, 0.4), expected / 50.0]),
        above=np.array([nothing, nothing, np.full(expected.size, np.nan)]),
        started_ms=np.full(expected.size, float(START_MS - 7 * 24 * 3_600_000)),
        tallies=Tallies(np.full(expected.size, SCRAPES, dtype=np.int64), zeros, zeros, zeros, zeros),
        source="servescope", layer="process",
    )  # fmt: skip


def _wander(random: np.random.Generator, size: int) -> Floats:
    """A path of mean 0 and variance 1 that forgets itself within about an hour."""
    kept = math.exp(-1.0 / HOUR)
    steps = random.standard_normal(size) * math.sqrt(1.0 - kept**2)
    path = np.empty(size)
    path[0] = random.standard_normal()
    for block in range(1, size):
        path[block] = kept * path[block - 1] + steps[block]
    return path


def without_segments(evidence: Evidence) -> Evidence:
    """The same from sources that do not keep segments apart: their series added up."""
    return replace(evidence, targets=tuple(map(_together, evidence.targets)))


def _together(target: TargetIncrements) -> TargetIncrements:
    sums: dict[Series, Floats] = {}
    for series, gains in zip(target.series, target.gains, strict=True):
        optional = METRICS[SAMPLE_FAMILIES[series.name]].optional
        key = Series(series.name, tuple(pair for pair in series.labels if pair[0] not in optional))
        sums[key] = sums.get(key, 0.0) + gains
    return replace(target, series=tuple(sums), gains=np.array(list(sums.values())))
