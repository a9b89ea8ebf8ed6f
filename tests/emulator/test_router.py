"""What the routers choose, and what they expose of it."""

from __future__ import annotations

from collections import Counter

import pytest

from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.least_load import MAX_WAITING
from servescope.emulator.router.placement import Placed, Placement
from tests.emulator.support.routers import kv_router, least_load_router, place, prompt, read, stored


def test_prefix_wins_over_an_idle_worker() -> None:
    """A worker that has the prompt cached is taken, although it is a bit busier."""
    router = kv_router("a", "b")
    router.apply("b", stored(1, 1, 2, 3, 4))
    busy = place(router, prompt(7), ["b"])
    assert place(router, prompt(1, 2, 3, 4), ["a", "b"]).worker == "b"
    busy.end()


def test_load_wins_over_a_short_prefix() -> None:
    """A worker with little of the prompt cached and a lot to do is left alone; once it is done it is taken."""
    router = kv_router("a", "b")
    router.apply("b", stored(1, 1))
    busy = place(router, prompt(*range(50, 60)), ["b"])
    assert place(router, prompt(1, 2, 3, 4), ["a", "b"]).worker == "a"
    busy.end()
    assert place(router, prompt(1, 2, 3, 4), ["a", "b"]).worker == "b"


def test_shared_blocks_weigh_once_on_a_worker() -> None:
    """Requests in flight that share a prefix keep its blocks in the cache once: the worker is no busier for it."""
    router = kv_router("a", "b", weight=0.0)
    shared = [place(router, prompt(*range(20), 100 + number), ["a"]) for number in range(3)]
    apart = place(router, prompt(*range(200, 230)), ["b"])
    # 20 shared blocks, and of each request one of its own and the one its last token is in: 26, not 66.
    assert place(router, prompt(300), ["a", "b"]).worker == "a"
    for placement in (*shared[:2], apart):
        placement.end()
    assert place(router, prompt(301), ["a", "b"]).worker == "b"


def test_blocks_a_prompt_shares_with_those_in_flight_do_not_weigh() -> None:
    """What is there anyhow makes a worker no busier: the prompt goes where its front is in use."""
    router = kv_router("a", "b", weight=0.0)
    place(router, prompt(*range(20), 100), ["a"])
    place(router, prompt(*range(200, 206)), ["b"])
    assert place(router, prompt(*range(20), 300), ["a", "b"]).worker == "a"
    assert place(router, prompt(400), ["a", "b"]).worker == "b"


def test_weight_zero_balances_load_alone() -> None:
    """Without weight on overlap the cache does not matter."""
    router = kv_router("a", "b", weight=0.0)
    router.apply("b", stored(1, 1, 2, 3))
    place(router, prompt(9), ["b"])
    assert place(router, prompt(1, 2, 3), ["a", "b"]).worker == "a"


def test_temperature_spreads_choices() -> None:
    """At temperature 0 the least costly worker is always taken; a higher one takes others too, the more the higher."""
    shares = []
    for temperature in (0.0, 0.5, 5.0):
        router = kv_router("a", "b", temperature=temperature)
        router.apply("b", stored(1, 1, 2, 3, 4))
        chosen: Counter[str] = Counter()
        for _ in range(400):
            placement = place(router, prompt(1, 2, 3, 4), ["a", "b"])
            chosen[placement.worker] += 1
            placement.end()
        shares.append(chosen["a"] / 400)
    assert shares[0] == 0.0
    # With two workers the normalised costs are 0 and 1.
    assert shares[1] == pytest.approx(0.119, abs=0.05)
    assert shares[2] == pytest.approx(0.45, abs=0.08)


def test_equal_costs_are_shared_out() -> None:
    """Workers that cost the same get about the same."""
    router = kv_router("a", "b", "c", temperature=0.05)
    chosen: Counter[str] = Counter()
    for _ in range(600):
        placement = place(router, prompt(1), ["a", "b", "c"])
        chosen[placement.worker] += 1
        placement.end()
    assert min(chosen.values()) > 150


def test_router_reports_what_it_predicted_and_what_came_of_it() -> None:
    """The four token counters are booked with the worker's report; an attempt without one is counted as such."""
    router = kv_router("a", "b")
    router.apply("a", stored(1, 1, 2, 3))
    router.apply("b", stored(1, 1))
    placement = place(router, prompt(1, 2, 3), ["a", "b"])
    placement.report(32)
    placement.end()
    place(router, prompt(1, 2, 3), ["b"]).end()
    shown = read(router)
    assert shown["kv_cache_eligible_tokens_total"] == 49
    assert shown["kv_cache_predicted_tokens_total"] == shown["kv_cache_best_tokens_total"] == 48
    assert shown["kv_cache_reused_tokens_total"] == 32
    assert shown["router_unreported_decisions_total"] == 1


def test_least_load_takes_the_worker_with_fewest_requests() -> None:
    """Requests go where the fewest are in flight; ended ones no longer count."""
    router = least_load_router("a", "b")
    first = place(router, prompt(1), ["a"])
    assert place(router, prompt(1), ["a", "b"]).worker == "b"
    place(router, prompt(1), ["b"])
    first.end()
    assert place(router, prompt(1), ["a", "b"]).worker == "a"


def test_least_load_predicts_nothing() -> None:
    """Without an index there is a hit rate as the workers report it, but nothing predicted, nothing best, no state."""
    router = least_load_router("a")
    placement = place(router, prompt(1, 2), ["a"])
    placement.report(16)
    placement.end()
    shown = read(router)
    assert (shown["kv_cache_eligible_tokens_total"], shown["kv_cache_reused_tokens_total"]) == (33, 16)
    absent = ("kv_cache_predicted", "kv_cache_best", "kv_cache_hit_rate_skew", "kv_cache_hit_rate_eff", "router_index")
    assert not [name for name in shown if name.startswith(absent)]


def test_least_load_waits_for_a_worker_when_there_is_none() -> None:
    """What comes while no worker is there is placed in its order when one comes; what is taken back is not."""
    router = least_load_router()
    placed: list[str] = []

    def note(number: int) -> Placed:
        return lambda placement: placed.append(f"{number} {placement.worker if placement else None}")

    router.submit(prompt(1), note(1))
    take_back = router.submit(prompt(1), note(2))
    router.submit(prompt(1), note(3))
    assert (placed, router.queued_requests, router.queued_tokens) == ([], 3, 51)
    take_back()
    router.add_worker("a")
    assert placed == ["1 a", "3 a"]
    assert router.queued_requests == 0
    take_back()
    assert placed == ["1 a", "3 a"]


def test_least_load_keeps_no_more_than_it_can() -> None:
    """Without a worker there is an end to what waits: the next one is refused."""
    router = least_load_router()
    placed: list[Placement | None] = []
    for _ in range(MAX_WAITING + 1):
        router.submit(prompt(1), placed.append)
    assert placed == [None]
    assert router.queued_requests == MAX_WAITING


def test_paused_worker_takes_nothing_and_stays_known() -> None:
    """A worker that drains gets no new request; when it is resumed its cache is still known."""
    router = kv_router("a", "b")
    router.apply("b", stored(1, 1, 2, 3))
    router.pause_worker("b")
    assert place(router, prompt(1, 2, 3), ["a", "b"]).worker == "a"


def test_weight_and_temperature_can_be_replaced_while_it_runs() -> None:
    """A router with replaced weights uses them at once, and its configured ones again afterwards."""
    router = kv_router("a", "b")
    router.apply("b", stored(1, 1, 2, 3, 4))
    busy = place(router, prompt(9, 10), ["b"])

    def choose() -> str:
        placement = place(router, prompt(1, 2, 3, 4), ["a", "b"])
        placement.end()
        return placement.worker

    assert choose() == "b"
    router.apply_effects(RouterEffects(overlap_score_weight=0.0))
    assert choose() == "a"
    router.apply_effects(RouterEffects(temperature=1000.0))
    assert {choose() for _ in range(50)} == {"a", "b"}
    router.apply_effects(RouterEffects())
    assert choose() == "b"
    busy.end()
