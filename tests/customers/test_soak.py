"""The export for three days of its clock on replicas that come and go: nothing in the process may grow."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.customers.support.customer_export import CUSTOMERS, ORIGIN, REPLICAS, exporting, fill_with_churn
from tests.soak import find_trends, sample_process

MINUTES = 4
SPEED = 72 * 60 / MINUTES
"""So that a day, for which what ended is remembered, is over within the first third of the run."""
INTERVAL = 300


@pytest.mark.proof
def test_replicas_that_come_and_go_let_nothing_grow(tmp_path: Path) -> None:
    """Memory, open files and threads of a process that pushes, and serves a page."""
    customers = CUSTOMERS.replace('interval = "10s"', f'interval = "{INTERVAL}s"')
    times: list[float] = []
    samples: dict[str, list[float]] = defaultdict(list)
    with (
        exporting(tmp_path, fill_with_churn, speed=SPEED, customers=customers, interval=INTERVAL) as exported,
        exported.running() as process,
    ):
        exported.wait_for_points(3)
        while exported.clock.now() < ORIGIN + MINUTES * 60 * SPEED:
            exported.wait_for_intervals(2)
            times.append(exported.clock.now())
            for name, value in sample_process(process.pid).items():
                samples[name].append(value)
        received = len(exported.receiver.requests)
    replicas = {
        pair.value.string_value
        for request in exported.receiver.requests
        for resource in request.resource_metrics
        for pair in resource.resource.attributes
        if pair.key.endswith("replica")
    }
    trends = find_trends(times, samples)

    for each in trends:
        print(f"{each.name}: {each.mean:.1f}, at most {each.peak:.1f}, {each.growth:+.2f} of {each.allowed:.2f}")
    assert received > MINUTES * 60 * SPEED / INTERVAL / 2
    assert len(replicas) > 10 * REPLICAS
    assert [each for each in trends if not each.flat] == []
