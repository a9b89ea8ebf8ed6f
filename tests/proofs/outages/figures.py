"""What rules recorded of a deployment while parts were dead, beside what they recorded before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from servescope.contract.own_metrics import COVERAGE_SERIES, COVERED_RATIO
from servescope.contract.samples import Labels
from tests.proofs.outages.systems import Running, Scale
from tests.support.past_one_machine import find_named
from tests.support.prometheus import Range

RATIO: Final = 0.01
"""So far a ratio may be off: one engine of a deployment of which half a scrape had been sent when its agent died."""
RATIO_NAMED: Final = 0.03
"""At the first evaluation of a receiver that was away, when each agent has sent half of a scrape of some engine."""
# What is formed over more than five minutes grows until that has passed.
_GROWING = re.compile(r":(?:increase|rate)(?!5m)")
_SHARES = ("ratio", "p50", "p95", "p99", "mean", "avg")
_REPLICAS_BY_STATUS = "deployment:replica_count_by_status:sum"
_HEALTH = ("servescope_target_scrape_age_seconds", "servescope_target_up")
_NOTHING = 1e-9
"""Closer to 0 is what rounding leaves of the difference of two equal rates: how far it is off is not relative then."""
_RECENT_INTERVALS = 1.5
"""A scrape that is older is one of a target that was not scraped since: what rules read is some seconds old."""


@dataclass(frozen=True, slots=True)
class Compared:
    """So many recorded values, the shares that a ratio was off by at most, and a total of which no target was named as
    missing, nor its window marked, and what was wrong.
    """

    values: int
    ratio_off: float
    total_off: float
    wrong: Sequence[str]


def read_recorded(running: Running, deployment: str, at_ms: int) -> dict[Labels, float]:
    """What is recorded of a deployment at a moment."""
    return {point.labels: point.value for point in running.reader.query(_figures(deployment), at_ms=at_ms)}


def compare(
    running: Running, deployment: str, truth: Mapping[Labels, float], scale: Scale, began_ms: int, ended_ms: int
) -> Compared:
    """Everything that was recorded of a deployment between two moments, beside what is true of it.

    A total may be too low while the health of the targets, or the age of their scrapes, names some that are missing, or
    while a window is marked as not whole; meanwhile their replicas are counted as unhealthy. Where another scraper
    continues, an engine is scraped at other seconds of the interval: a total may be off by as much of the window as an
    interval is.
    """

    def read(selector: str) -> list[Range]:
        return running.reader.read_samples(selector, end_ms=ended_ms, range_ms=ended_ms - began_ms)

    ages, healthy = (read(f'{name}{{deployment_id="{deployment}"}}') for name in _HEALTH)
    named = find_named(ages, healthy, scale.replicas, _RECENT_INTERVALS * scale.interval_seconds)
    marked = [
        at
        for each in read(f'{COVERAGE_SERIES}{{deployment_id="{deployment}"}}')
        for at, covered in zip(each.times, each.values, strict=True)
        if covered < COVERED_RATIO
    ]
    figures = [each for each in read(_figures(deployment)) if not _GROWING.search(_name(each.labels))]
    found = {each.labels for each in figures}
    wrong = [
        f"{deployment} {_name(labels)} is absent"
        for labels in truth.keys() - found
        if not _GROWING.search(_name(labels))
    ]
    values, ratio_off, total_off = 0, 0.0, 0.0
    for each in figures:
        name, true = _name(each.labels), truth[each.labels]
        is_ratio = any(word in name.rpartition(":")[2] for word in _SHARES)
        for at, value in zip(each.times, each.values, strict=True):
            off = abs(value - true) / (abs(true) if abs(true) > _NOTHING else 1)
            is_named = any(at - scale.window_seconds * 1000 <= moment <= at for moment in named)
            is_named = is_named or any(abs(at - moment) <= scale.evaluation_seconds * 1000 for moment in marked)
            may_be_low = is_named and not is_ratio and (value <= true or name == _REPLICAS_BY_STATUS)
            values += 1
            if is_ratio:
                ratio_off = max(ratio_off, off)
            elif not is_named:
                total_off = max(total_off, off)
            total = scale.interval_seconds / scale.window_seconds
            allowed = total if not is_ratio else RATIO_NAMED if is_named else RATIO
            if off > allowed and not may_be_low:
                wrong.append(f"{deployment} {name} {value:g} in place of {true:g} at {at}, missing named: {is_named}")
    return Compared(values, ratio_off, total_off, wrong)


def _figures(deployment: str) -> str:
    return f'{{__name__=~"deployment:.+",deployment_id="{deployment}"}}'


def _name(labels: Labels) -> str:
    return dict(labels)["__name__"]
