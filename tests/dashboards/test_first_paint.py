"""Opening a dashboard reads a bounded number of samples, counted as a real Prometheus counts them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks._first_paint import (
    MOST_SAMPLES,
    MOST_SAMPLES_OTHERWISE,
    Asked,
    estimate_samples,
    list_queries,
)
from benchmarks._fleet_history import BEFORE_SECONDS, Fleet, is_own, write_history
from benchmarks._rule_costs import MOST_SAMPLES_PER_MINUTE, list_groups, list_raw_objectives
from dashboards.__main__ import render
from dashboards.options import DEFAULTS, make_options
from tests.support.boards import NAMES, read_board
from tests.support.prometheus import Prometheus, running
from tests.support.promql import Selector, parse, walk

FLEET = Fleet(200)
RANGE_SECONDS = 6 * 3600
"""Of a day with the same steps: each moment reads as much."""
PAST = Asked("past", "avg_over_time((deployment:requests:rate5m > bool 0)[1h:1m])", 300)


@pytest.mark.parametrize("name", NAMES)
def test_opening_a_dashboard_stays_within_its_budget(name: str) -> None:
    """Over a day of 200 replicas, scraped every 15 seconds."""
    costs = {
        f"{asked.panel}: {asked.expression}": estimate_samples(asked, FLEET, scrape_seconds=15)
        for asked in list_queries(read_board(name), scrape_seconds=15)
    }

    dearest = max(costs, key=lambda asked: costs[asked])
    assert sum(costs.values()) <= MOST_SAMPLES.get(name, MOST_SAMPLES_OTHERWISE), f"the dearest is {dearest}"


@pytest.mark.slow
def test_rules_read_what_they_may() -> None:
    """Every minute, of 200 replicas; the objectives over whole windows alone would read more."""
    costs = {group.name: group.estimate(FLEET, scrape_seconds=15) for group in list_groups()}

    assert sum(costs.values()) <= MOST_SAMPLES_PER_MINUTE, costs
    assert list_raw_objectives().estimate(FLEET, scrape_seconds=15) > 30 * costs["servescope-objectives"]


def test_budgets_are_of_dashboards_there_are() -> None:
    """None is left of a dashboard that is gone."""
    assert MOST_SAMPLES.keys() <= set(NAMES)


def test_figures_computed_on_the_screen_cost_more_than_the_budget() -> None:
    """Budgets separate recorded figures from raw ones: with `figures = "raw"` two dashboards are beyond theirs."""
    files = render(make_options({"figures": "raw"}, origin="a test"))
    for name in ("requests", "cutover"):
        queries = list_queries(json.loads(files[f"{name}.json"]), scrape_seconds=15)
        assert sum(estimate_samples(asked, FLEET, scrape_seconds=15) for asked in queries) > 2 * MOST_SAMPLES[name]


@pytest.mark.slow
def test_samples_are_counted_as_prometheus_counts_them(prometheus: Path, tmp_path: Path) -> None:
    """Every query of every dashboard, over hours of four replicas scraped every minute: within two percent."""
    fleet, end, scrape = Fleet(4), 1_700_092_800, 60
    options = ("--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=100y")
    with running(prometheus, tmp_path, {}, options=options) as server:
        write_history(fleet, server.port, end_seconds=end, range_seconds=RANGE_SECONDS, scrape_seconds=scrape)
        for name in NAMES:
            for asked in (*list_queries(read_board(name), scrape_seconds=scrape), PAST):
                moments = RANGE_SECONDS // asked.step_seconds + 1 if asked.step_seconds else 1
                estimated = estimate_samples(asked, fleet, scrape_seconds=scrape) // asked.moments * moments
                # What is the same at every moment is evaluated once, and Prometheus counts it at each of them.
                if _is_written(asked) and "@ end()" not in asked.expression:
                    assert _count(server, asked, end) == pytest.approx(estimated, rel=0.02), (name, asked)


def _is_written(asked: Asked) -> bool:
    """Whether all it reads is in the history: not what programs report of themselves, nor what was long before."""
    selectors = [each for each in walk(parse(asked.expression)) if isinstance(each, Selector)]
    back = re.findall(r"(?:\[|offset )(\d+)([smhd])", asked.expression)
    seconds = sum(int(number) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[unit] for number, unit in back)
    return seconds <= BEFORE_SECONDS and not any(is_own(each.name) for each in selectors)


def _count(server: Prometheus, asked: Asked, end: int) -> int:
    times = {"start": str(end - RANGE_SECONDS), "end": str(end), "step": str(asked.step_seconds)}
    path, when = ("query_range", times) if asked.step_seconds else ("query", {"time": str(end)})
    answer = server.answer(f"/api/v1/{path}", query=asked.expression, stats="all", **when)
    assert answer["status"] == "success", answer
    count: int = answer["data"]["stats"]["samples"]["totalQueryableSamples"]
    return count


def test_the_defaults_scrape_as_the_budget_supposes() -> None:
    """Every 15 seconds."""
    assert DEFAULTS.scrape_interval == "15s"
