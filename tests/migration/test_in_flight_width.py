"""Where sizes hardly vary the band of tokens in flight is as wide as it says, and the tokens in flight are in it."""

from __future__ import annotations

import numpy as np
import pytest

from servescope.migration.traffic import in_flight
from servescope.migration.traffic.in_flight import MARGIN, reconstruct_in_flight
from tests.migration.support.steady_traffic import SteadyMix, serve_steadily

pytestmark = pytest.mark.slow

MIXES = {
    "one now and then": SteadyMix(rate=0.12, prompt=2000, output=200, first=0.1, pace=0.02, spread=0.0),
    "one at a time": SteadyMix(rate=0.02, prompt=2000, output=1000, first=0.1, pace=0.05, spread=0.0),
    "five long ones": SteadyMix(rate=0.1, prompt=2000, output=1000, first=0.1, pace=0.05, spread=0.0),
    "few short ones": SteadyMix(rate=1.5, prompt=2000, output=200, first=0.1, pace=0.02, spread=0.0),
    "more of them": SteadyMix(rate=3.0, prompt=2000, output=200, first=0.1, pace=0.02, spread=0.0),
    "long answers": SteadyMix(rate=0.5, prompt=2000, output=1000, first=0.5, pace=0.02, spread=0.0),
    "long prompts": SteadyMix(rate=1.0, prompt=10_000, output=500, first=1.0, pace=0.02, spread=0.0),
    "as long as a third of a block": SteadyMix(rate=0.3, prompt=20_000, output=2000, first=2.0, pace=0.05, spread=0.0),
    "answers without prompts": SteadyMix(rate=0.1, prompt=1, output=4000, first=0.5, pace=0.05, spread=0.0),
}
HELD = 0.95
"""The share of blocks that the documentation promises."""


def find_held(mix: SteadyMix) -> tuple[float, float]:
    """The share of blocks whose tokens in flight are within their band, and the mean width of these, as a share."""
    traffic, truth = serve_steadily(mix, hours=5)
    tokens = reconstruct_in_flight(traffic)
    is_held = (tokens.low <= truth) & (truth <= tokens.high)
    return float(is_held.mean()), float((tokens.high - tokens.low).mean() / tokens.estimate.mean())


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("spread", [0.0, 0.03, 0.1])
def test_tokens_of_requests_of_one_size_are_in_the_band(mix: SteadyMix, spread: float) -> None:
    """In as many blocks as is promised, and by a band that is no narrower than it says."""
    held, width = find_held(mix._replace(spread=spread))

    assert held >= HELD
    assert width >= 2 * MARGIN


@pytest.mark.parametrize("name", ["long prompts", "five long ones"])
def test_margin_and_chance_are_what_holds_constant_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without both fewer blocks are in the band than is promised; with them it is still narrow."""
    assert find_held(MIXES[name])[1] < 0.4
    monkeypatch.setattr(in_flight, "MARGIN", 0.0)
    monkeypatch.setattr(in_flight, "_chance", lambda requests, seconds, *, is_scraped: 0.0 * requests)
    assert find_held(MIXES[name])[0] < HELD


def test_a_gauge_that_is_off_by_chance_is_not_trusted_alone() -> None:
    """The bounds are of the fewest and the most requests in flight that gauge and durations give."""
    traffic, _ = serve_steadily(MIXES["few short ones"], hours=2)
    tokens = reconstruct_in_flight(traffic)
    derived = traffic.histograms["request_duration_seconds"].totals / 300
    held = tokens.per_request

    assert not np.allclose(traffic.concurrency, derived, rtol=0.05)
    assert tokens.low == pytest.approx(0.95 * held.low * np.minimum(traffic.concurrency, derived), rel=0.04)
    assert tokens.high == pytest.approx(1.05 * held.high * np.maximum(traffic.concurrency, derived), rel=0.04)


def test_few_requests_are_off_by_chance() -> None:
    """Beyond the margin the band is wider the fewer requests there are, and the longer they last."""

    def find_width(rate: float, output: int) -> float:
        return find_held(SteadyMix(rate=rate, prompt=2000, output=output, first=0.1, pace=0.05, spread=0.0))[1]

    assert find_width(0.02, 1000) > find_width(0.1, 1000) > find_width(1.0, 1000)
    assert find_width(0.1, 1000) > find_width(1.0, 100)
