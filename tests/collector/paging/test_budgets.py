"""Bad shares over windows of days: how far they may differ from those of a store of all scrapes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.alerting.rules.labelled import Labelled
from servescope.alerting.rules.promises import objectives_of
from servescope.collector.paging.budgets import SPACING_MS, Budgets
from servescope.contract.identity import Deployment
from servescope.contract.samples import Series, Snapshot
from servescope.contract.types import Objective
from servescope.increments.extrapolation import Floats

START = 1_800_000_000_000
STEP = 15_000
DAY = 86_400_000
CHAT = Deployment("llama", "chat", "v1")
REQUESTS = objectives_of()["requests"]
LATENCY = objectives_of()["time_to_first_token"]
SERIES = tuple(Series("requests_total", (("outcome", outcome),)) for outcome in ("ok", "error", "client_abort"))
WINDOWS = (1_800_000, 3_600_000, 7_200_000, 21_600_000, DAY, 3 * DAY)


def share(found: Mapping[Objective, Labelled]) -> float | None:
    return found[REQUESTS].vector().get(CHAT.labels())


@pytest.mark.proof
@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.3))
def test_a_share_is_that_of_a_window_at_most_slightly_longer(seed: int, resets: float) -> None:
    """With any traffic, and counters that reset more or less often."""
    _check_four_days(seed, resets)


@pytest.mark.slow
def test_a_share_with_resets_is_that_of_a_window_at_most_slightly_longer() -> None:
    """Over four days of bursts, with counters that reset."""
    _check_four_days(seed=7, resets=0.3)


def _check_four_days(seed: int, resets: float) -> None:
    """Shares are exactly those of all increases since an instant at most 1/120 of the window before its start.

    Traffic comes in bursts, so that a window of another length would have another share.
    """
    source = np.random.default_rng(seed)
    steps = 4 * DAY // STEP
    grown = source.poisson(np.repeat(source.exponential(3.0, (steps // 40 + 1, 3)), 40, axis=0)[:steps])
    budgets = Budgets((REQUESTS,), WINDOWS[-1])
    values = np.zeros(3)
    counted = np.zeros((steps + 1, 3))
    checked = 0
    for step in range(steps):
        is_reset = source.random() < resets / 100
        before, values = values, grown[step] * 1.0 if is_reset else values + grown[step]
        at_ms = START + step * STEP
        budgets.count("chat/r0", CHAT, Snapshot(SERIES, values))
        # A counter that starts again and is at once beyond what it was looks like one that went on.
        seen = np.where(values < before, values, values - before)
        # The first scrape is compared with nothing.
        counted[step + 1] = counted[step] + (seen if step else 0)
        budgets.keep(at_ms)
        budgets.thin(at_ms, (CHAT,))
        if step % 997 == 996:
            for window_ms in WINDOWS:
                _check(share(budgets.shares(window_ms, at_ms)), counted, step, window_ms)
                checked += 1
    assert checked > 100
    # Bounded however long it runs: an hour whole, and a few hundred instants of each twofold of age.
    assert len(budgets._kept.times) < 2_500


def _check(found: float | None, counted: Floats, step: int, window_ms: int) -> None:
    allowed_ms = max(window_ms / 120, SPACING_MS + STEP)
    latest = max(step - window_ms // STEP, -1)
    earliest = max(step - math.ceil((window_ms + allowed_ms) / STEP), -1)
    candidates = []
    for start in range(earliest, latest + 1):
        grown = counted[step + 1] - counted[start + 1]
        candidates.append(grown[1] / grown.sum())
    assert found is not None
    assert min(abs(found - each) for each in candidates) < 1e-9


def test_an_objective_without_its_bucket_has_no_share() -> None:
    """As in Prometheus: without a bucket of that edge there is no share, rather than one of 100%."""
    budgets = Budgets((LATENCY,), DAY)
    count, bucket = "time_to_first_token_seconds_count", "time_to_first_token_seconds_bucket"
    series = (Series(count, ()), Series(bucket, (("le", "1"),)))
    for step in range(3):
        budgets.count("chat/r0", CHAT, Snapshot(series, np.array([10.0, 5.0]) * step))
    assert budgets.shares(3_600_000, START)[LATENCY].vector() == {}
    edge = (series[0], Series(bucket, (("le", "2.5"),)))
    for step in range(3, 6):
        budgets.count("chat/r1", CHAT, Snapshot(edge, np.array([10.0, 5.0]) * step))
    assert budgets.shares(3_600_000, START)[LATENCY].vector() == {CHAT.labels(): 1 - 10 / 40}


def test_each_target_is_held_to_the_first_edge_that_it_has() -> None:
    """Of two engines in a deployment, one counts 2.5 s and the other 4.7 s: each is counted at its own edge."""
    budgets = Budgets((LATENCY,), DAY)
    names = ("time_to_first_token_seconds_count", "time_to_first_token_seconds_bucket")
    for target, edges in {"r0": ("2.5", "5"), "r1": ("2.2", "4.7")}.items():
        shown = (Series(names[0], ()), *(Series(names[1], (("le", edge),)) for edge in edges))
        for step in (1, 2):
            budgets.count(f"chat/{target}", CHAT, Snapshot(shown, np.array([10.0, 4.0, 8.0]) * step))
    # Four within 2.5 s at the first and eight within 4.7 s at the second, of twenty.
    assert budgets.shares(3_600_000, START)[LATENCY].vector() == {CHAT.labels(): pytest.approx(1 - 12 / 20)}


def test_requests_that_ended_are_counted_by_deployment() -> None:
    """Whatever their outcome, over a restart; none where nothing was compared yet."""
    budgets = Budgets((REQUESTS,), DAY)
    assert budgets.ended(3_600_000, START).vector() == {}
    for values in ([90.0, 1.0, 3.0], [100.0, 2.0, 3.0], [5.0, 1.0, 0.0]):
        budgets.count("chat/r0", CHAT, Snapshot(SERIES, np.array(values)))
    assert budgets.ended(3_600_000, START).vector() == {CHAT.labels(): 11.0 + 6.0}


def test_sums_continue_after_a_restart() -> None:
    """Stored sums are restored, and increases before the restart are not counted again."""
    first = Budgets((REQUESTS,), DAY)
    kept = []
    for step in range(100):
        first.count("chat/r0", CHAT, Snapshot(SERIES, np.array([9.0, 1.0, 0.0]) * step))
        kept.append((START + step * STEP, first.keep(START + step * STEP)))
    second = Budgets((REQUESTS,), DAY)
    known_ms = second.restore([(at_ms, sums) for at_ms, sums in kept if sums is not None])
    assert known_ms == START + 99 * STEP
    second.count("chat/r0", CHAT, Snapshot(SERIES, np.array([9.0, 1.0, 0.0]) * 99), is_known=True)
    second.count("chat/r0", CHAT, Snapshot(SERIES, np.array([9.0, 11.0, 0.0]) * 100))
    found = share(second.shares(3_600_000, known_ms + STEP))
    assert found == pytest.approx((99 + 1001) / (990 + 9 + 1001))


def test_a_target_that_shows_other_series_is_compared_with_what_it_showed_before() -> None:
    """A counter that is back after a while counts what it grew by meanwhile, as over a range in Prometheus."""
    budgets = Budgets((REQUESTS,), DAY)
    budgets.count("chat/r0", CHAT, Snapshot(SERIES, np.array([100.0, 10.0, 0.0])))
    budgets.count("chat/r0", CHAT, Snapshot(SERIES[:1], np.array([190.0])))
    budgets.count("chat/r0", CHAT, Snapshot(SERIES, np.array([190.0, 20.0, 0.0])))
    assert share(budgets.shares(3_600_000, START)) == pytest.approx(10 / 100)


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_a_counter_without_a_finite_value_is_not_counted(wrong: float) -> None:
    """An infinite sum would stay infinite, and there would be no share any more."""
    budgets = Budgets((REQUESTS,), DAY)
    for errors in (0.0, wrong, 10.0, 20.0):
        budgets.count("chat/r0", CHAT, Snapshot(SERIES, np.array([90.0, errors, 0.0])))
    budgets.count("chat/r0", CHAT, Snapshot(SERIES, np.array([180.0, 30.0, 0.0])))
    assert share(budgets.shares(3_600_000, START)) == pytest.approx(20 / 110)


def test_stored_sums_of_other_objectives_are_skipped() -> None:
    """As another release may have stored; new increases are not mixed with them."""
    former = Budgets((LATENCY, REQUESTS), DAY)
    former.count("chat/r0", CHAT, Snapshot(SERIES, np.array([0.0, 0.0, 0.0])))
    former.count("chat/r0", CHAT, Snapshot(SERIES, np.array([50.0, 50.0, 0.0])))
    kept = former.keep(START)
    budgets = Budgets((REQUESTS,), DAY)
    assert kept is not None
    assert budgets.restore([(START, kept)]) == START
    for step in range(2):
        budgets.count("chat/r0", CHAT, Snapshot(SERIES, np.array([90.0, 10.0, 0.0]) * step))
    assert share(budgets.shares(3_600_000, START + STEP)) == pytest.approx(0.1)
