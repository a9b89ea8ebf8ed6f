"""Tokens in flight of a v1 that does not report them: the real ones are within the band."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servescope.emulator.workload.mixes import Mix
from servescope.errors import UsageError
from servescope.migration.traffic.in_flight import reconstruct_in_flight
from servescope.migration.traffic.traffic import ServedTraffic
from tests.migration.conftest import SERVED_MIX
from tests.support.served_traffic import EmulatedPast, read_served, record_past

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def traffic(served_past: EmulatedPast) -> ServedTraffic:
    """What it served, as a store has it."""
    return read_served(served_past)


def check_band(past: EmulatedPast, traffic: ServedTraffic) -> float:
    """The real tokens are within the band, on average and in each block; returns the estimate ÷ the truth."""
    tokens = reconstruct_in_flight(traffic)
    band, truth = tokens.mean(), float(past.tokens.mean())
    assert band.low < truth < band.high
    assert (tokens.low <= past.tokens).all()
    assert (past.tokens <= tokens.high).all()
    return band.estimate / truth


def test_real_tokens_are_within_the_band(served_past: EmulatedPast, traffic: ServedTraffic) -> None:
    """The tokens that a token autoscaler would have seen lie in the band, and near the estimate."""
    assert check_band(served_past, traffic) == pytest.approx(1.0, abs=0.2)


def test_traffic_is_what_the_emulator_served(served_past: EmulatedPast, traffic: ServedTraffic) -> None:
    """Requests in flight are the emulator's, replicas its own, and every block is known."""
    assert traffic.name == "llama-3.3-70b/chat-v1"
    assert traffic.known.all()
    assert np.nanmean(traffic.concurrency) == pytest.approx(served_past.requests.mean(), rel=0.1)
    # Some of the requests that are sent are rejected or given up; all of them end.
    assert traffic.request_rate() == pytest.approx(SERVED_MIX.requests_per_second, rel=0.25)
    assert traffic.gpus_per_replica == 1
    assert 2 <= np.nanmin(traffic.replicas) <= np.nanmax(traffic.replicas) <= 6


def test_littles_law_takes_the_place_of_what_is_not_reported(served_past: EmulatedPast, traffic: ServedTraffic) -> None:
    """Where requests in flight are not reported they follow from durations, and the band says so."""
    tokens = reconstruct_in_flight(replace(traffic, concurrency=np.full(traffic.blocks.size, np.nan)))
    assert tokens.is_derived
    assert np.nanmean(tokens.concurrency) == pytest.approx(served_past.requests.mean(), rel=0.15)


@pytest.mark.parametrize("missing", ["input_tokens_per_request", "request_duration_seconds"])
def test_a_missing_histogram_is_named(traffic: ServedTraffic, missing: str) -> None:
    """Without a histogram that is needed nothing is reconstructed, and the error names it."""
    histograms = {name: each for name, each in traffic.histograms.items() if name != missing}
    with pytest.raises(UsageError, match=f"cannot be reconstructed without {missing}"):
        reconstruct_in_flight(replace(traffic, histograms=histograms))


def test_blocks_without_requests_in_flight_are_not_zero(traffic: ServedTraffic) -> None:
    """What is not known of a block stays unknown."""
    concurrency = traffic.concurrency.copy()
    concurrency[3:5] = np.nan
    tokens = reconstruct_in_flight(replace(traffic, concurrency=concurrency))
    assert np.isnan(tokens.estimate).tolist() == np.isnan(concurrency).tolist()


ALIKE = Mix(system_tokens=(1000, 1000), turns=1, message_spread=0.0, output_spread=0.0, output_range=(190, 190))
"""Requests of one size."""


@pytest.mark.proof
@pytest.mark.parametrize(
    "mix",
    [
        replace(ALIKE, requests_per_second=1.5, burst_factor=1.0, abort_share=0.0, oversized_share=0.0),
        replace(ALIKE, requests_per_second=4.0, message_spread=0.1, output_spread=0.1, output_range=(50, 400)),
        Mix(requests_per_second=3.0, message_spread=1.6, output_spread=1.4),
        Mix(requests_per_second=6.0, documents=0, output_tokens=600, output_range=(10, 4000)),
        Mix(requests_per_second=2.0, burst_factor=1.0, abort_share=0.2),
        Mix(requests_per_second=4.0, arrivals="pareto", turns=1),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_real_tokens_are_within_the_band_whatever_is_served(mix: Mix, seed: int, tmp_path: Path) -> None:
    """Sizes wide, narrow or the same, bursts, long outputs, clients that give up: the truth is in the band."""
    past = record_past(tmp_path / "v1.db", minutes=60, mix=mix, seed=seed)
    assert 0.5 < check_band(past, read_served(past)) < 2.0
