"""What other canary judges say of a synthetic cutover: their rules, written from their sources, on the same requests.

Kayenta's judge compares minute by minute (Mann–Whitney); Argo Rollouts and Flagger compare v2 with a fixed threshold
and count failures; the naive test is a z-test of the means so far, repeated at every look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from benchmarks._judge_requests import BLOCKS_PER_DAY, Floats, Requests
from benchmarks._judge_traffic import Cutover, Harm, Past, suffer
from servescope.contract.metrics import METRICS
from servescope.increments.blocks import BLOCK_MS

MINUTES: Final = BLOCKS_PER_DAY * BLOCK_MS // 60_000

RIVALS: Final = ("kayenta", "kayenta, 10 % allowed", "argo", "flagger", "naive z-test")

_FIRST_TOKEN: Final = "time_to_first_token_seconds"
_JUDGED: Final = (_FIRST_TOKEN, "time_per_output_token_seconds", "request_duration_seconds", "tps_per_request")
_MINUTES_PER_BLOCK: Final = BLOCK_MS // 60_000


@dataclass(frozen=True, slots=True, eq=False)
class MinuteFigures:
    """What a dashboard shows of one stack, minute by minute, (n,) each, NaN where there was no request.

    `means` and `p95` are by metric; a percentile is interpolated in a bucket as `histogram_quantile` does it.
    """

    requests: Floats
    failed: Floats
    means: Mapping[str, Floats]
    p95: Mapping[str, Floats]
    squares: Floats


def observe(cutover: Cutover, requests: Requests) -> MinuteFigures:
    """A stack's figures by minute since the stage began."""
    stage = int(np.searchsorted(requests.blocks, cutover.stage_ms))
    # Within their block requests come evenly; their lengths say nothing of when.
    minute = (requests.block - stage) * _MINUTES_PER_BLOCK + (requests.chance * 1e6 % 1 * _MINUTES_PER_BLOCK).astype(
        int
    )
    during = minute >= 0
    served = during & ~requests.failed
    minute, done = minute[during], minute[served]
    values = _values(requests, served)
    count = np.bincount(done, minlength=MINUTES).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = {name: np.bincount(done, each, minlength=MINUTES) / count for name, each in values.items()}
    p95 = {name: _percentiles(name, values[name], done, MINUTES) for name in (_FIRST_TOKEN,)}
    failed = np.bincount(minute[requests.failed[during]], minlength=MINUTES).astype(float)
    squares: Floats = np.bincount(done, values[_FIRST_TOKEN] ** 2, minlength=MINUTES).astype(float)
    return MinuteFigures(np.bincount(minute, minlength=MINUTES).astype(float), failed, means, p95, squares)


def judge_by_rivals(cutover: Cutover, harm: Harm, v1: MinuteFigures, usual: float) -> dict[str, float | None]:
    """The minute at which each rival rejects v2 within a day of watching; None where it never does.

    `v1` are `observe`d, `usual` is v1's `usual_p95`: both are the same for every harm.
    """
    requests = suffer(cutover, harm)
    v2 = observe(cutover, requests)
    return {
        "kayenta": _first(_kayenta(v1, v2, allowed=1.0), 60),
        "kayenta, 10 % allowed": _first(_kayenta(v1, v2, allowed=1.1), 60),
        "argo": _counting(cutover, requests, usual, failures=4),
        "flagger": _counting(cutover, requests, usual, failures=10),
        "naive z-test": _first(_naive(v1, v2), _MINUTES_PER_BLOCK),
    }


def usual_p95(past: Past) -> float:
    """v1's 95th percentile of the first token over its past, from its buckets: what a threshold is set by."""
    total = np.zeros(0)
    for target in past.targets:
        rows = [row for row, series in enumerate(target.series) if series.name == f"{_FIRST_TOKEN}_bucket"]
        gained = target.gains[rows].sum(axis=1)
        total = gained if not len(total) else total + gained
    return float(_interpolate(np.array(METRICS[_FIRST_TOKEN].edges), total[:, np.newaxis])[0])


def _values(requests: Requests, served: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> dict[str, Floats]:
    first, per_token = requests.first_token[served], requests.per_token[served]
    duration = first + per_token * (requests.output[served] - 1)
    return dict(zip(_JUDGED, (first, per_token, duration, 1 / per_token), strict=True))


# --- Kayenta ----------------------------------------------------------------------------------------------------------


def _kayenta(v1: MinuteFigures, v2: MinuteFigures, *, allowed: float) -> list[bool]:
    """Whether each hourly analysis fails: every metric is critical, so that one classified as harm fails it.

    NetflixACAJudge of spinnaker/kayenta a69573be: a 98 % interval of the shift by ranks, harm when it is beyond a
    quarter of the estimated shift and the ratio of means reaches `allowedIncrease`; points without data are removed.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        pairs = [(v1.p95[_FIRST_TOKEN], v2.p95[_FIRST_TOKEN], 1)]
        pairs += [(v1.means[name], v2.means[name], -1 if name.startswith("tps") else 1) for name in _JUDGED[1:]]
        pairs += [(v1.failed / v1.requests, v2.failed / v2.requests, 1)]
    hours = range(0, MINUTES, 60)
    return [
        any(_harmful(a[hour : hour + 60], b[hour : hour + 60], sign, allowed) for a, b, sign in pairs) for hour in hours
    ]


def _harmful(control: Floats, experiment: Floats, sign: int, allowed: float) -> bool:
    control, experiment = control[np.isfinite(control)], experiment[np.isfinite(experiment)]
    n = len(control) * len(experiment)
    if not n:
        return False  # NoData, which is no failure of the metric
    shifts = np.sort(np.subtract.outer(experiment, control).ravel())
    estimate = float(np.median(shifts))
    spread = math.sqrt(n * (len(control) + len(experiment) + 1) / 12)
    rank = max(0, int(n / 2 - NormalDist().inv_cdf(0.99) * spread))
    low, high = float(shifts[rank]), float(shifts[n - 1 - rank])
    if sign < 0:
        estimate, low = -estimate, -high
    mean = float(control.mean())
    ratio = float(experiment.mean()) / mean if mean else math.inf
    return low > 0.25 * abs(estimate) and (ratio >= allowed if sign > 0 else ratio <= 1 / allowed)


# --- Thresholds -------------------------------------------------------------------------------------------------------


def _counting(cutover: Cutover, requests: Requests, usual: float, *, failures: int) -> float | None:
    """When so many checks have failed: v2's 95th percentile of 5 minutes above 1.25 × v1's usual one, or errors > 1 %.

    Argo Rollouts with `failureLimit: 3` fails at the fourth failure of the run, Flagger with `threshold: 10` at the
    tenth; neither counter falls on success (argoproj/argo-rollouts 9f8d111d8, fluxcd/flagger 15bd6ad5).
    """
    stage = int(np.searchsorted(requests.blocks, cutover.stage_ms))
    block = requests.block - stage
    served = (block >= 0) & ~requests.failed
    slow = _percentiles(_FIRST_TOKEN, requests.first_token[served], block[served], BLOCKS_PER_DAY)
    offered = np.bincount(block[block >= 0], minlength=BLOCKS_PER_DAY)
    failed = np.bincount(block[(block >= 0) & requests.failed], minlength=BLOCKS_PER_DAY)
    with np.errstate(invalid="ignore"):
        bad = (slow > 1.25 * usual) | (failed > 0.01 * offered)
    reached = np.flatnonzero(np.cumsum(bad) >= failures)
    return float((reached[0] + 1) * _MINUTES_PER_BLOCK) if len(reached) else None


# --- A z-test, repeated -----------------------------------------------------------------------------------------------


def _naive(v1: MinuteFigures, v2: MinuteFigures) -> list[bool]:
    """Whether the means of the first token differ to the worse at 5 %, one-sided, at each look every five minutes."""
    looks = slice(_MINUTES_PER_BLOCK - 1, None, _MINUTES_PER_BLOCK)
    means, variances = [], []
    for arm in (v1, v2):
        count = arm.requests - arm.failed
        total = np.cumsum(np.nan_to_num(arm.means[_FIRST_TOKEN]) * count)[looks]
        count, squares = np.cumsum(count)[looks], np.cumsum(arm.squares)[looks]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / count
            means.append(mean)
            variances.append((squares / count - mean**2) / count)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (means[1] - means[0]) / np.sqrt(variances[0] + variances[1])
    return [bool(each > NormalDist().inv_cdf(0.95)) for each in z]


def _first(rejected: list[bool], minutes: int) -> float | None:
    return float((rejected.index(True) + 1) * minutes) if True in rejected else None


def _percentiles(name: str, values: Floats, place: np.ndarray[tuple[int], np.dtype[np.int64]], places: int) -> Floats:
    """The 95th percentile at each place, (places,), NaN where there is no value."""
    edges = np.array(METRICS[name].edges)
    width = len(edges) + 1
    counts = np.bincount(np.searchsorted(edges, values) * places + place, minlength=width * places)
    return _interpolate(edges, np.cumsum(counts.reshape(width, places), axis=0).astype(float))


def _interpolate(edges: Floats, cumulative: Floats) -> Floats:
    """The 95th percentile by cumulative buckets, (edges + 1, places), as Prometheus interpolates it."""
    total = cumulative[-1]
    wanted = 0.95 * total
    bucket = np.minimum((cumulative < wanted).sum(axis=0), len(edges) - 1)
    upper, lower = edges[bucket], np.where(bucket > 0, edges[bucket - 1], 0.0)
    place = np.arange(len(total))
    below = np.where(bucket > 0, cumulative[bucket - 1, place], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = lower + (upper - lower) * np.minimum(1.0, (wanted - below) / (cumulative[bucket, place] - below))
    return np.asarray(np.where(total > 0, found, np.nan))
