"""The routers, and the index of the KV-aware one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.emulator.cache import CacheChanges
from servescope.emulator.clock import VirtualClock
from servescope.emulator.router import (
    BlockEvent,
    BlockIndex,
    KvRouter,
    KvRouterParameters,
    LeastLoadRouter,
    parse_routing,
)
from servescope.emulator.workload import Request
from servescope.errors import UsageError
from servescope.identity import Identity
from servescope.router import RouterInstruments

BLOCK = 16
IDENTITY = Identity("m", "d", "v2", replica="router-0", role="router")


def kv_router(*workers: str, weight: float = 3.5, temperature: float = 0.0) -> KvRouter:
    """A router over workers with empty caches."""
    router = KvRouter(
        KvRouterParameters(weight, temperature),
        clock=VirtualClock(),
        block_tokens=BLOCK,
        instruments=RouterInstruments(IDENTITY),
        seed="r",
    )
    for worker in workers:
        router.add_worker(worker)
    return router


def least_load_router(*workers: str) -> LeastLoadRouter:
    """A least-load router over idle workers."""
    router = LeastLoadRouter(clock=VirtualClock(), instruments=RouterInstruments(IDENTITY), seed="r")
    for worker in workers:
        router.add_worker(worker)
    return router


def stored(sequence: int, *blocks: int) -> BlockEvent:
    """An event of blocks that came into a cache."""
    return BlockEvent(sequence, CacheChanges(blocks, ()))


def removed(sequence: int, *blocks: int) -> BlockEvent:
    """An event of blocks that left a cache."""
    return BlockEvent(sequence, CacheChanges((), blocks))


def prompt(*blocks: int) -> Request:
    """A request whose prompt is these blocks and one token more."""
    return Request(1, len(blocks) * BLOCK + 1, 10, blocks)


def read(router: KvRouter | LeastLoadRouter) -> dict[str, float]:
    """The router's samples, by name and by the state or reason they carry."""
    shown = {}
    for sample in router.instruments.samples():
        extra = [value for name, value in sample.labels if name in ("state", "reason", "le")]
        shown["/".join([sample.name, *extra])] = sample.value
    return shown


def test_prefix_wins_over_an_idle_worker() -> None:
    """A worker that has the prompt cached is taken, although it is a bit busier."""
    router = kv_router("a", "b")
    router.apply("b", stored(1, 1, 2, 3, 4))
    busy = router.place(prompt(7), ["b"])
    assert router.place(prompt(1, 2, 3, 4), ["a", "b"]).worker == "b"
    busy.end()


def test_load_wins_over_a_short_prefix() -> None:
    """A worker with little of the prompt cached and a lot to do is left alone; once it is done it is taken."""
    router = kv_router("a", "b")
    router.apply("b", stored(1, 1))
    busy = router.place(prompt(*range(50, 60)), ["b"])
    assert router.place(prompt(1, 2, 3, 4), ["a", "b"]).worker == "a"
    busy.end()
    assert router.place(prompt(1, 2, 3, 4), ["a", "b"]).worker == "b"


def test_weight_zero_balances_load_alone() -> None:
    """Without weight on overlap the cache does not matter."""
    router = kv_router("a", "b", weight=0.0)
    router.apply("b", stored(1, 1, 2, 3))
    router.place(prompt(9), ["b"])
    assert router.place(prompt(1, 2, 3), ["a", "b"]).worker == "a"


def test_temperature_spreads_choices() -> None:
    """At temperature 0 the least costly worker is always taken; a higher one takes others too, the more the higher."""
    shares = []
    for temperature in (0.0, 0.5, 5.0):
        router = kv_router("a", "b", temperature=temperature)
        router.apply("b", stored(1, 1, 2, 3, 4))
        chosen: Counter[str] = Counter()
        for _ in range(400):
            placement = router.place(prompt(1, 2, 3, 4), ["a", "b"])
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
        placement = router.place(prompt(1), ["a", "b", "c"])
        chosen[placement.worker] += 1
        placement.end()
    assert min(chosen.values()) > 150


def test_router_reports_what_it_predicted_and_what_came_of_it() -> None:
    """The four token counters are booked with the worker's report; an attempt without one is counted as such."""
    router = kv_router("a", "b")
    router.apply("a", stored(1, 1, 2, 3))
    router.apply("b", stored(1, 1))
    placement = router.place(prompt(1, 2, 3), ["a", "b"])
    placement.report(32)
    placement.end()
    router.place(prompt(1, 2, 3), ["b"]).end()
    shown = read(router)
    assert shown["kv_cache_eligible_tokens_total"] == 49
    assert shown["kv_cache_predicted_tokens_total"] == shown["kv_cache_best_tokens_total"] == 48
    assert shown["kv_cache_reused_tokens_total"] == 32
    assert shown["router_unreported_decisions_total"] == 1


def test_missing_events_are_noticed() -> None:
    """A gap in a worker's sequence is counted, and the index is no longer called exact."""
    router = kv_router("a")
    router.apply("a", stored(1, 1))
    assert read(router)["router_index_state/exact"] == 1
    router.apply("a", stored(4, 2))
    shown = read(router)
    assert shown["router_index_event_gaps_total"] == 2
    assert (shown["router_index_state/exact"], shown["router_index_state/degraded"]) == (0, 1)


def test_event_of_a_gone_worker_changes_nothing() -> None:
    """What was under way when a worker went does not come back into the index."""
    router = kv_router("a", "b")
    router.apply("a", stored(1, 1))
    router.remove_worker("a")
    router.apply("a", stored(2, 2))
    router.add_worker("c")
    assert router.index.cached_blocks("b") == router.index.cached_blocks("c") == set()


def test_least_load_takes_the_worker_with_fewest_requests() -> None:
    """Requests go where the fewest are in flight; ended ones no longer count."""
    router = least_load_router("a", "b")
    first = router.place(prompt(1), ["a"])
    assert router.place(prompt(1), ["a", "b"]).worker == "b"
    router.place(prompt(1), ["b"])
    first.end()
    assert router.place(prompt(1), ["a", "b"]).worker == "a"


def test_least_load_predicts_nothing() -> None:
    """Without an index there is a hit rate as the workers report it, but nothing predicted, nothing best, no state."""
    router = least_load_router("a")
    placement = router.place(prompt(1, 2), ["a"])
    placement.report(16)
    placement.end()
    shown = read(router)
    assert (shown["kv_cache_eligible_tokens_total"], shown["kv_cache_reused_tokens_total"]) == (33, 16)
    absent = ("kv_cache_predicted", "kv_cache_best", "kv_cache_hit_rate_skew", "kv_cache_hit_rate_eff", "router_index")
    assert not [name for name in shown if name.startswith(absent)]


@given(
    histories=st.lists(
        st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 8))), max_size=6), min_size=1, max_size=4
    ),
    wanted=st.lists(st.integers(0, 8), unique=True),
)
def test_index_agrees_with_a_plain_set_per_worker(
    histories: list[list[tuple[bool, set[int]]]], wanted: list[int]
) -> None:
    """Whatever the workers store and remove, overlaps are what one gets by looking into each cache."""
    index = BlockIndex()
    caches: dict[str, set[int]] = {}
    for position, history in enumerate(histories):
        worker = f"engine-{position}"
        index.add_worker(worker)
        caches[worker] = set()
        for sequence, (comes, blocks) in enumerate(history, start=1):
            event = (stored if comes else removed)(sequence, *blocks)
            caches[worker] = caches[worker] | blocks if comes else caches[worker] - blocks
            assert index.apply(worker, event) == 0
    expected = [
        next((at for at, block in enumerate(wanted) if block not in cache), len(wanted)) for cache in caches.values()
    ]
    assert index.count_overlaps(wanted, list(caches)) == expected
    for worker, cache in caches.items():
        assert index.cached_blocks(worker) == cache
    for worker in list(caches):
        index.remove_worker(worker)
    index.add_worker("new")
    assert index.cached_blocks("new") == set()


@pytest.mark.parametrize("name", ["router_overlap_score_weight", "router_temperature"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_impossible_parameters_are_refused(name: str, value: float) -> None:
    """Weights and temperatures below 0 or endless are refused by their documented names."""
    with pytest.raises(UsageError, match=f"{name} is {value!r}"):
        parse_routing({name: value})
