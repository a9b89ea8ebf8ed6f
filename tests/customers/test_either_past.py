"""What a customer receives is the same from a store, a Prometheus and a VictoriaMetrics that hold the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from servescope.contract.identity import Deployment
from servescope.contract.metrics import METRICS
from servescope.customers.points.points import HistogramValue, StreamPoint
from servescope.customers.points.projection import Projector
from servescope.customers.points.reading import IntervalReader
from servescope.customers.points.totals import Totals
from servescope.customers.policy.policy import Policy
from servescope.settings.values import format_instant
from servescope.store.embedded import Store
from servescope.store.history import History
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from tests.support import victoria_metrics as victoria
from tests.support.commands import run
from tests.support.either_past import EitherPast, either_past
from tests.support.past import in_milliseconds

pytestmark = [pytest.mark.slow, pytest.mark.proof]

MINUTE = 60_000
_DEPLOYMENT = """
deployment_id = "chat-v2"
model_name = "llama"
inference_stack = "v2"
environment = "production"
"""
COLLECTOR = f"""
[[deployments]]{_DEPLOYMENT}
fixed_labels = true
claims = {{ collectors = ["127.0.0.1:9900"], jobs = ["servescope"] }}
targets = [{{ url = "http://127.0.0.1:9/metrics" }}]
"""
CUSTOMERS = f"""
collector = "servescope.toml"
[[customers]]
name = "acme"
metrics = ["engine"]
labels = ["deployment_id", "outcome"]
[[customers.deployments]]{_DEPLOYMENT}
[[customers.push]]
protocol = "otlp-http"
url = "https://acme.example/v1/metrics"
"""
V2 = Deployment("llama", "chat-v2", "v2", "production")
"""Its second replica restarts, and does not answer for a while."""


def _order(point: StreamPoint) -> tuple[object, ...]:
    stream = point.stream
    return point.time_ms, stream.metric.name, stream.resource, stream.attributes, point.start_ms or 0


@dataclass(frozen=True)
class Pasts:
    """The store, and a Prometheus and a VictoriaMetrics with what it exported."""

    past: EitherPast
    victoria: str

    def history(self, url: str) -> PrometheusHistory:
        """What answers at a URL, as a customer's export reads it."""
        return PrometheusHistory(Prometheus(url).only_whole(), clock=lambda: self.past.end_ms / 1000)

    def points(self, history: History, temporality: Literal["cumulative", "delta"]) -> list[StreamPoint]:
        """What a receiver gets in an hour, a minute at a time, with a run of several minutes after a pause."""
        policy = Policy(
            "acme", frozenset({V2}), tuple(sorted(METRICS)), labels=("deployment_id", "outcome", "replica"),
            replicas="plain", resolution="replica",
        )  # fmt: skip
        reader, projector = IntervalReader(history, policy.deployments, policy.metrics, ()), Projector(policy)
        first = self.past.start_ms + 5 * MINUTE
        runs: Sequence[Sequence[int]] = [
            *([first + minute * MINUTE] for minute in range(40)),
            [first + minute * MINUTE for minute in range(40, 55)],
        ]
        found: list[StreamPoint] = []
        state, totals = None, Totals()
        for edges in runs:
            for edge, after in reader.read(state, edges):
                projection = projector.project(edge, temporality, totals)
                found += projection.points
                state, totals = after, projection.totals
        return sorted(found, key=_order)


@pytest.fixture(scope="module")
def pasts(
    prometheus: Path, promtool: Path, victoria_metrics: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pasts]:
    """Seventy minutes of both stacks, three times."""
    folder = tmp_path_factory.mktemp("pasts")
    with (
        either_past(prometheus, promtool, folder, scraped='job="servescope",instance="127.0.0.1:9900"') as past,
        victoria.running(victoria_metrics, folder / "victoria") as other,
    ):
        other.load(in_milliseconds(folder / "past.om"))
        yield Pasts(past, other.url)


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_a_receiver_gets_the_same_of_every_past(pasts: Pasts, temporality: Literal["cumulative", "delta"]) -> None:
    """Each point with its stream, times and value: restarts, failed scrapes and series that end included.

    A VictoriaMetrics stores twelve digits of a number, of which deltas are differences.
    """
    with Store(pasts.past.store, read_only=True) as store:
        stored = pasts.points(store, temporality)
    assert len(stored) > 1_000
    for url, most in ((pasts.past.url, 0.0), (pasts.victoria, 1e-9)):
        queried = pasts.points(pasts.history(url), temporality)
        assert len(queried) == len(stored)
        for ours, theirs in zip(stored, queried, strict=True):
            assert replace(theirs, value=None) == replace(ours, value=None)
            assert _numbers(theirs.value) == pytest.approx(_numbers(ours.value), rel=most, abs=most)


def _numbers(value: float | HistogramValue | None) -> list[float]:
    if isinstance(value, HistogramValue):
        return [value.sum, *value.counts]
    return [] if value is None else [value]


def test_increments_are_the_same_of_both_servers(pasts: Pasts) -> None:
    """What a judge reads: gains, levels, resets, gaps and failed scrapes of each block."""
    names = ("requests_total", "time_to_first_token_seconds", "queued_requests", "kv_cache_usage")
    ours, theirs = (
        pasts.history(url).read_increments(V2, names, pasts.past.start_ms, pasts.past.end_ms)
        for url in (pasts.past.url, pasts.victoria)
    )
    assert [each.identity for each in ours] == [each.identity for each in theirs] != []
    for our, their in zip(ours, theirs, strict=True):
        assert our.blocks.tolist() == their.blocks.tolist()
        for name in ("scrapes", "failed", "torn", "resets", "gaps"):
            assert getattr(our.tallies, name).tolist() == getattr(their.tallies, name).tolist(), name
        for rows, field in (("series", "gains"), ("gauges", "levels"), ("gauges", "above")):
            named = dict(zip(getattr(their, rows), getattr(their, field), strict=True))
            for series, row in zip(getattr(our, rows), getattr(our, field), strict=True):
                np.testing.assert_allclose(row, named[series], rtol=1e-9, atol=1e-9, err_msg=str(series))
    assert sum(each.tallies.resets.sum() for each in ours) > 0


def test_check_shows_what_is_exported_of_every_past(pasts: Pasts, tmp_path: Path) -> None:
    """The command itself; figures, which this store does not hold, are withheld by the policy."""
    (tmp_path / "servescope.toml").write_text(COLLECTOR, encoding="utf-8")
    (tmp_path / "customers.toml").write_text(CUSTOMERS, encoding="utf-8")
    at = format_instant(pasts.past.end_ms - MINUTE)

    def exported(*past: str) -> str:
        done = run("customers", "check", "--config", str(tmp_path / "customers.toml"), "--at", at, *past)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("  withheld, ")[0]

    stored = exported("--store", str(pasts.past.store))
    assert "output_tokens_total" in stored
    assert exported("--prometheus", pasts.past.url) == exported("--prometheus", pasts.victoria) == stored
