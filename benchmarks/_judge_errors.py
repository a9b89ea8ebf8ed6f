"""Five times the errors, in the setting of the published delays: thousands of days of counts, judged as errors are.

The delays that are demanded of errors were simulated from an hour of mean load on, while it rises, which a few of the
trials begin at. So the counts alone are drawn here, of many days, and the evidence that the least plan asks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from benchmarks._judge_requests import BLOCKS_PER_DAY, EPOCH_MS, Floats, Setting, load_at
from benchmarks._judge_trials import BLOCK_MINUTES, one_stage
from servescope.contract.judged import JUDGED
from servescope.cutover.statistics.change import schedule
from servescope.cutover.statistics.counts import EventCounts, log_evidence_above
from servescope.increments.blocks import BLOCK_MS

ERRORS: Final = "request_error_share"
_DAYS: Final = 2000
_FACTOR: Final = 5.0
_HOUR_BLOCKS: Final = 3_600_000 // BLOCK_MS


def median_delays(share: float, factor: float, days: int = _DAYS) -> Mapping[str, float]:
    """Median minutes until v2's errors are DEGRADED, from mean load or any hour on, and with all of alpha_harm."""
    plan = one_stage(share)
    part = JUDGED[ERRORS].part
    family = sum(JUDGED[each.name].part for each in plan.metrics if each.required)
    levels = {"from mean load": plan.alpha_harm * part / family, "from any hour": plan.alpha_harm * part / family,
              "from any hour, alpha undivided": plan.alpha_harm}  # fmt: skip
    rng = np.random.Generator(np.random.SFC64([4, round(share * 1000), round(factor * 10)]))
    found: dict[str, list[float]] = {name: [] for name in levels}
    for _ in range(days):
        hours = {"from mean load": 0, "from any hour": int(rng.integers(24))}
        for name, hour in hours.items():
            evidence = _evidence(rng, share, factor, hour)
            for each, level in levels.items():
                if each.startswith(name):
                    found[each].append(_first(evidence, level))
    return {name: float(np.quantile(each, 0.5, method="inverted_cdf")) for name, each in found.items()}


def _evidence(rng: np.random.Generator, share: float, factor: float, hour: int) -> Floats:
    setting = Setting()
    load = load_at(EPOCH_MS + BLOCK_MS * (np.arange(BLOCKS_PER_DAY) + hour * _HOUR_BLOCKS), setting)
    v1, v2 = rng.poisson(load * (1 - share)), rng.poisson(load * share)
    counts = EventCounts(
        rng.binomial(v1, setting.error_share).astype(float), v1.astype(float),
        rng.binomial(v2, setting.error_share * factor).astype(float), v2.astype(float),
    )  # fmt: skip
    starts, weights = schedule(BLOCKS_PER_DAY)
    return log_evidence_above(counts, 1.0, starts=starts, weights=weights)


def _first(evidence: Floats, level: float) -> float:
    crossed = np.flatnonzero(evidence >= -math.log(level))
    return (crossed[0] + 1) * BLOCK_MINUTES if crossed.size else math.inf


def errors_alone() -> Iterator[str]:
    """The table of the medians, by share."""
    shares = (0.01, 0.05, 0.25)
    delays = {share: median_delays(share, _FACTOR) for share in shares}
    yield f"| errors × {_FACTOR:g}, median minutes | " + " | ".join(f"{share:.0%}" for share in shares) + " |"
    yield "| --- " * (len(shares) + 1) + "|"
    for name in delays[shares[0]]:
        yield f"| {name} | " + " | ".join(f"{delays[share][name]:.0f}" for share in shares) + " |"
