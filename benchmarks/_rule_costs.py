"""What evaluating the rules costs: the samples of each group in a minute, as Prometheus counts them, and the time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from alerts.options import DEFAULTS, Options
from alerts.rules import render_bundle
from benchmarks._first_paint import Asked, estimate_samples
from benchmarks._fleet_history import Fleet
from dashboards.options import seconds
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.objectives import BURN_WINDOWS, ENDED, OBJECTIVES_INTERVAL
from tests.support.prometheus import Prometheus

MOST_SAMPLES_PER_MINUTE = 15e6
"""What all rules may read in a minute, of 200 replicas that are scraped every 15 s."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of rules: its name, how often it is evaluated a minute, and its expressions."""

    name: str
    per_minute: float
    expressions: tuple[str, ...]

    def estimate(self, fleet: Fleet, *, scrape_seconds: int) -> float:
        """The samples that it reads in a minute."""
        asked = (Asked(self.name, expression, 0) for expression in self.expressions)
        return self.per_minute * sum(estimate_samples(each, fleet, scrape_seconds=scrape_seconds) for each in asked)


def list_groups(options: Options = DEFAULTS) -> list[Group]:
    """The groups of all rules."""
    groups: list[dict[str, Any]] = yaml.safe_load(render_bundle("prometheus", options))["groups"]
    return [
        Group(group["name"], 60 / seconds(group["interval"]), tuple(rule["expr"] for rule in group["rules"]))
        for group in groups
    ]


def list_raw_objectives() -> Group:
    """The objectives as rules that read scraped series over each whole window."""
    windows = dict.fromkeys(window for row in BURN_WINDOWS for window in (row.short, row.long))
    expressions = [
        *(
            DEFAULTS.compile(each.bad, window=window, by=DEPLOYMENT_LABELS)
            for each in DEFAULTS.choices.objectives.values()
            for window in windows
        ),
        *(DEFAULTS.compile(ENDED, window=row.long, by=DEPLOYMENT_LABELS) for row in BURN_WINDOWS),
    ]
    return Group("objectives over whole windows", 60 / seconds(OBJECTIVES_INTERVAL), tuple(expressions))


def without_collectors() -> Options:
    """The options of rules in which every series counts, as where one collector is all there ever is."""
    return replace(DEFAULTS, common=replace(DEFAULTS.common, collector_labels=()))


def print_rules(server: Prometheus, fleet: Fleet, *, scrape_seconds: int, at_seconds: int) -> None:
    """Print each group's cost, with and without counting the series of several collectors once."""
    print("rules, by the minute; samples in millions: read by Prometheus at this scrape interval, computed at 15 s")
    print("group                              rules     read   at 15 s  seconds of a minute  one collector")
    plain = {group.name: group for group in list_groups(without_collectors())}
    total = 0.0
    for group in [*list_groups(), list_raw_objectives()]:
        read, took = _ask(server, group.expressions, at_seconds)
        alone = _ask(server, plain[group.name].expressions, at_seconds)[1] if group.name in plain else 0.0
        usual = group.estimate(fleet, scrape_seconds=15)
        total += usual if group.name in plain else 0.0
        once = f"{took / alone:.2f} times" if alone else ""
        print(
            f"{group.name:<33} {len(group.expressions):6} {read * group.per_minute / 1e6:8.2f} {usual / 1e6:9.1f} "
            f"{took * group.per_minute:20.2f}  {once}"
        )
    within = "within" if total <= MOST_SAMPLES_PER_MINUTE else "BEYOND"
    print(f"all rules at 15 s: {total / 1e6:.1f} million samples a minute, {within} {MOST_SAMPLES_PER_MINUTE / 1e6:g}")


def _ask(server: Prometheus, expressions: Iterable[str], at_seconds: int) -> tuple[int, float]:
    """The samples that the expressions read at once, and the seconds that they take, the best of three each."""
    costs = [min(_times(server, expression, at_seconds)) for expression in expressions]
    return sum(samples for _, samples in costs), sum(took for took, _ in costs)


def _times(server: Prometheus, expression: str, at_seconds: int) -> Iterator[tuple[float, int]]:
    for _ in range(3):
        started = time.perf_counter()
        answer = server.answer("/api/v1/query", query=expression, time=str(at_seconds), stats="all")
        took = time.perf_counter() - started
        assert answer["status"] == "success", answer
        yield took, answer["data"]["stats"]["samples"]["totalQueryableSamples"]
