"""The synthetic cutovers that the judge is proven on: their truth is what it is said to be."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._judge_requests import Floats, Setting
from benchmarks._judge_traffic import (
    LEAD_BLOCKS,
    PAST_BLOCKS,
    REPLICAS,
    Confounder,
    Harm,
    HarmKind,
    Past,
    draw_cutover,
    draw_past,
    show,
    show_past,
)
from servescope.cutover.evidence.evidence import Evidence
from servescope.increments.blocks import BLOCK_MS

SHARE = 0.25
# No drift and no differing replicas, so that the day's mean is the truth to within its sampling.
STILL = Setting(replica_spread=0.0, replica_drift=0.0, stack_drift=0.0)


@pytest.fixture(scope="module", name="past")
def _past() -> Past:
    return draw_past(7, SHARE, STILL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "mean", "tail", "bimodal", "one pod"])
def test_a_harm_moves_the_mean_by_its_size(kind: HarmKind, past: Past) -> None:
    """However the harm is spread over requests and replicas, v2's mean is worse by its size, and v1's is not."""
    size = 0.0 if kind == "none" else 0.3
    shown = show(draw_cutover(past, 1), Harm(kind, size))

    ratio = _mean(shown, "v2") / _mean(shown, "v1")

    assert ratio == pytest.approx(1 + size, rel=0.02)


def test_a_step_begins_at_its_hour(past: Past) -> None:
    """Before its hour v2 is as good as v1, after it worse by the size."""
    cutover = draw_cutover(past, 2)
    step, name = Harm("step", 0.5, hour=12.0), "time_to_first_token_seconds_sum"

    until_noon = [_total(show(cutover, harm, until_block=144), "v2", name) for harm in (step, Harm())]
    assert until_noon[0] == until_noon[1]
    whole = [_total(show(cutover, harm), "v2", name) for harm in (step, Harm())]
    assert whole[0] - until_noon[0] == pytest.approx(1.5 * (whole[1] - until_noon[1]))


def test_errors_and_speed_are_harmed_by_their_size(past: Past) -> None:
    """Errors are multiplied; tokens per second fall by the size."""
    cutover = draw_cutover(past, 3)
    plain, erring = show(cutover), show(cutover, Harm("errors", 4.0))
    slow = show(cutover, Harm("tps", 0.2))

    label = (("outcome", "error"),)
    assert _total(erring, "v2", "requests_total", label) == pytest.approx(
        5 * _total(plain, "v2", "requests_total", label), rel=0.2
    )
    speed = [
        _total(each, "v2", "tps_per_request_sum") / _total(each, "v2", "tps_per_request_count")
        for each in (plain, slow)
    ]
    assert speed[1] / speed[0] == pytest.approx(0.8, rel=0.05)


def test_the_past_is_v1_alone_and_both_have_their_share_after(past: Past) -> None:
    """v2 has no block before its lead; then the shares are the planned ones, of as many replicas as bear like loads."""
    cutover = draw_cutover(past, 5)

    before = show_past(cutover)
    v2 = [each for each in before.targets if each.identity.inference_stack == "v2"]
    assert min(each.blocks[0] for each in v2) == cutover.stage_ms - LEAD_BLOCKS * BLOCK_MS
    assert sum(len(each.blocks) >= PAST_BLOCKS for each in before.targets) == sum(REPLICAS[SHARE])
    assert max(each.blocks[-1] for each in before.targets) == cutover.stage_ms - BLOCK_MS
    requests = {stack: _sums(show(cutover), stack)[1].sum() for stack in ("v1", "v2")}
    assert requests["v2"] / sum(requests.values()) == pytest.approx(SHARE, rel=0.02)


def test_mixes_differ_by_their_distance(past: Past) -> None:
    """The prompts' lengths are as far apart as asked, at shared edges a little less."""
    shown = show(draw_cutover(past, 6, Confounder(mix_distance=0.2)))

    shares = [
        np.diff(
            [0.0]
            + [
                _total(shown, stack, series.name, series.labels)
                for series in shown.targets[0].series
                if series.name == "input_tokens_per_request_bucket"
            ]
        )
        for stack in ("v1", "v2")
    ]
    v1, v2 = (each / each.sum() for each in shares)
    assert np.abs(v1 - v2).sum() / 2 == pytest.approx(0.2, abs=0.02)


def _mean(shown: Evidence, stack: str) -> float:
    total, count = _sums(shown, stack)
    return float(total.sum() / count.sum())


def _sums(shown: Evidence, stack: str) -> tuple[Floats, Floats]:
    """Seconds to the first token and requests in the last day's blocks, (288,) each."""
    chosen = [each for each in shown.targets if each.identity.inference_stack == stack and len(each.series)]
    last = max(each.blocks[-1] for each in chosen)
    day = last - BLOCK_MS * np.arange(287, -1, -1)
    totals = []
    for name in ("time_to_first_token_seconds_sum", "time_to_first_token_seconds_count"):
        total = np.zeros(288)
        for each in chosen:
            row = [series.name for series in each.series].index(name)
            _, here, there = np.intersect1d(day, each.blocks, return_indices=True)
            total[here] += each.gains[row, there]
        totals.append(total)
    return totals[0], totals[1]


def _total(shown: Evidence, stack: str, name: str, labels: tuple[tuple[str, str], ...] = ()) -> float:
    """What a counter gained since v2 gets requests."""
    start = min(each.blocks[0] for each in shown.targets if each.identity.inference_stack == "v2")
    return float(
        sum(
            each.gains[row, each.blocks >= start].sum()
            for each in shown.targets
            if each.identity.inference_stack == stack
            for row, series in enumerate(each.series)
            if series == (name, labels)
        )
    )
