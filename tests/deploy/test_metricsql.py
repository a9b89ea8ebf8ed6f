"""How far figures on VictoriaMetrics are from Prometheus' on the same samples, as `docs/victoriametrics.md` says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.metrics import METRICS
from servescope.emulator.deployment.stack import V1, V2
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from tests.metricsql import compare_alerts, compare_rules
from tests.support import victoria_metrics as victoria
from tests.support.beside_victoria import SECONDS, both_servers, recording_rules
from tests.support.filled_prometheus import SCRAPE_SECONDS, START_SECONDS

_GAUGES = re.compile(r":(sum|avg|max|min)$")
# Shares of rare events, and latencies while they change: one event or scrape more in a window is much of them.
_UNEVEN = re.compile(r"_(bad|share):|unreported|skew|_seconds:")


@pytest.mark.proof
def test_figures_are_as_near_as_the_page_says(prometheus: Path, victoria_metrics: Path, tmp_path: Path) -> None:
    """Gauges are the same, rates and what is made of them within 8 %, conditions of alerts but for a few instants."""
    with both_servers(prometheus, victoria_metrics, tmp_path) as both:
        recorded = [each for each in compare_rules(both) if len(each.shares)]
        alerts = compare_alerts(both)

    assert len(recorded) > 50
    assert [each.name for each in recorded if each.only_prometheus or each.only_victoria] == []
    assert [each.name for each in recorded if _GAUGES.search(each.name) and each.within(1) > 1e-9] == []
    assert [each.name for each in recorded if not _UNEVEN.search(each.name) and each.within(1) > 0.08] == []
    assert {name for name, (ours, theirs) in alerts.items() if len(ours ^ theirs) > 3} == set()


@pytest.mark.proof
def test_judge_reads_the_same_increments(prometheus: Path, victoria_metrics: Path, tmp_path: Path) -> None:
    """Of each deployment: the same processes, blocks, gains, resets and gaps, but for the digits that are stored."""
    start_ms, end_ms = ((START_SECONDS + seconds) * 1000 for seconds in (0, SECONDS))
    with both_servers(prometheus, victoria_metrics, tmp_path) as both:
        urls = (f"http://127.0.0.1:{both.prometheus.port}", both.victoria.url)
        ours, theirs = (
            [
                each
                for deployment in (V1.identity, V2.identity)
                for each in PrometheusHistory(Prometheus(url)).read_increments(
                    deployment, list(METRICS), start_ms, end_ms
                )
            ]
            for url in urls
        )

    assert len(ours) > 5
    assert [each.target_id for each in ours] == [each.target_id for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.blocks.tolist() == other.blocks.tolist()
        assert set(one.series) == set(other.series)
        rows = [other.series.index(series) for series in one.series]
        np.testing.assert_allclose(one.gains, other.gains[rows], rtol=1e-9, atol=1e-9)
        for tally in ("scrapes", "failed", "resets", "gaps"):
            assert getattr(one.tallies, tally).tolist() == getattr(other.tallies, tally).tolist(), tally


@pytest.mark.slow
def test_a_fleet_that_is_first_scraped_in_mid_life_has_no_errors(victoria_metrics: Path, tmp_path: Path) -> None:
    """What its counters had before is not what happened now: of the errors of weeks, none is of these minutes."""
    labels = 'model_name="m",deployment_id="chat",inference_stack="v2",environment="live",rollout_phase=""'
    rule = next(each for each in recording_rules("victoriametrics") if "request_error_share" in each["record"])
    times = range(START_SECONDS, START_SECONDS + 600, SCRAPE_SECONDS)
    with victoria.running(victoria_metrics, tmp_path) as server:
        server.load(
            f'requests_total{{{labels},replica="r{replica}",outcome="{outcome}"}} {value} {at * 1000}\n'
            for replica in range(3)
            for number, at in enumerate(times)
            for outcome, value in (("success", 1_000_000 + 10 * number), ("error", 9))
        )
        (share,) = server.reader.query_range(
            rule["expr"], start_ms=times[2] * 1000, end_ms=times[-1] * 1000, step_ms=SCRAPE_SECONDS * 1000
        )

    assert len(share.values) == len(times) - 2
    assert set(share.values) == {0.0}
