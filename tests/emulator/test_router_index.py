"""The router's index: it follows its workers, notices what it missed, and comes back from a restart."""

from __future__ import annotations

import json
import logging
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.configuration import Recovery, RouterRuntime
from servescope.emulator.router.index import BlockIndex
from servescope.emulator.router.snapshots import IndexSnapshot, SnapshotError, WorkerSnapshot, decode, encode
from servescope.errors import UsageError
from tests.emulator.support.routers import (
    AT_ONCE,
    Worker,
    followed,
    kv_router,
    place,
    prompt,
    read,
    removed,
    state,
    stored,
    with_snapshots,
)
from tests.support.drawing import examples


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


@settings(deadline=None)
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


def test_event_that_is_known_changes_nothing() -> None:
    """An event that was under way while its worker sent its inventory comes too late to matter, and is no gap."""
    index = BlockIndex()
    index.add_worker("a")
    index.replace("a", (1, 2), sequence=5)
    assert index.apply("a", removed(4, 1)) == 0
    assert index.apply("a", stored(5, 9)) == 0
    assert (index.cached_blocks("a"), index.sequence("a")) == ({1, 2}, 5)
    assert index.apply("a", removed(6, 1)) == 0
    assert index.cached_blocks("a") == {2}


def test_gap_is_mended_by_the_events_after_it() -> None:
    """The worker sends again what was missed, and the index is exact again, without the events from before."""
    clock, router, worker = followed()
    worker.change(stored=(1, 2))
    worker.miss(stored=(3,), removed=(1,))
    worker.change(stored=(4,))
    assert state(router) == "degraded"
    assert router.index.cached_blocks("a") == {1, 2, 4}
    clock.run_until(1.1)
    assert state(router) == "recovering"
    clock.run_until(2.0)
    assert state(router) == "exact"
    assert router.index.cached_blocks("a") == worker.cached == {2, 3, 4}
    shown = read(router)
    assert shown["router_index_event_gaps_total"] == 1
    assert shown["router_index_recoveries_total/events"] == 1
    assert shown["router_index_recoveries_total/inventory"] == 0


def test_gap_longer_than_what_a_worker_keeps_takes_its_inventory() -> None:
    """When the missed events are gone, the worker sends its whole inventory."""
    clock, router, worker = followed(kept=3)
    worker.change(stored=(1, 2))
    worker.lost = True
    for block in range(10, 20):
        worker.change(stored=(block,), removed=(block - 1,))
    worker.lost = False
    worker.change(stored=(4,))
    clock.run_until(2.0)
    assert router.index.cached_blocks("a") == worker.cached
    shown = read(router)
    assert shown["router_index_recoveries_total/inventory"] == 1
    assert shown["router_index_recoveries_total/events"] == 0


def test_router_that_does_not_recover_stays_degraded() -> None:
    """With recovery off it asks for nothing, however long it waits; with recovery on again, it does."""
    clock, router, worker = followed()
    router.apply_effects(RouterEffects(recovers=False))
    worker.miss(stored=(1,))
    worker.change(stored=(2,))
    clock.run_until(600.0)
    assert state(router) == "degraded"
    assert router.index.cached_blocks("a") == {2}
    router.apply_effects(RouterEffects())
    clock.run_until(602.0)
    assert state(router) == "exact"
    assert router.index.cached_blocks("a") == {1, 2}


def test_deaf_router_does_not_know_that_it_is() -> None:
    """When no event arrives at all no number is missing: the index says exact, and knows nothing."""
    clock, router, worker = followed()
    router.apply_effects(RouterEffects(event_loss_share=1.0))
    for block in range(20):
        worker.change(stored=(block,))
    clock.run_until(60.0)
    assert state(router) == "exact"
    assert router.index.cached_blocks("a") == set()
    router.apply_effects(RouterEffects())
    worker.change(stored=(20,))
    assert state(router) == "degraded"
    clock.run_until(62.0)
    assert router.index.cached_blocks("a") == worker.cached


def test_share_of_events_is_lost() -> None:
    """With a loss of a third about a third of the events are missed, and counted."""
    _, router, worker = followed()
    router.apply_effects(RouterEffects(event_loss_share=1 / 3, recovers=False))
    for block in range(600):
        worker.change(stored=(block,))
    assert 150 <= read(router)["router_index_event_gaps_total"] <= 250


def test_delayed_events_arrive_late_and_in_their_order() -> None:
    """A delay holds events back; when it ends, none overtakes those still under way."""
    clock, router, worker = followed()
    router.apply_effects(RouterEffects(event_delay_seconds=5.0))
    worker.change(stored=(1,))
    clock.run_until(4.0)
    assert router.index.cached_blocks("a") == set()
    router.apply_effects(RouterEffects())
    worker.change(removed=(1,))
    clock.run_until(6.0)
    assert router.index.cached_blocks("a") == set()
    shown = read(router)
    assert shown["router_index_event_gaps_total"] == 0
    worker.change(stored=(2,))
    assert router.index.cached_blocks("a") == {2}


steps = st.lists(
    st.tuples(
        st.sampled_from(["change", "lose", "hear", "wait", "restart", "leave"]),
        st.sampled_from(["a", "b"]),
        st.sets(st.integers(0, 9), max_size=4),
        st.sets(st.integers(0, 9), max_size=4),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(steps=steps, kept=st.integers(1, 6))
def test_index_comes_true_whatever_happened(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, set[int], set[int]]], kept: int
) -> None:
    """After lost events, restarts and workers that come back, a little quiet makes the index what the caches are."""
    clock = VirtualClock()
    directory = tmp_path_factory.mktemp("index")
    router = kv_router(clock=clock, runtime=with_snapshots(directory, every_seconds=0.7))
    workers = {name: Worker(router, name, kept=kept) for name in ("a", "b")}
    for number, (step, name, comes, goes) in enumerate(steps):
        worker = workers[name]
        if step == "change":
            worker.change(stored=tuple(comes - goes), removed=tuple(goes))
        elif step in ("lose", "hear"):
            worker.lost = step == "lose"
        elif step == "wait":
            clock.run_until(clock.now + 0.5)
        elif step == "restart":
            router.restart("router-0")
        else:
            router.remove_worker(name)
            workers[name] = Worker(router, name, stream=str(number), kept=kept)
    for worker in workers.values():
        worker.lost = False
        worker.change(stored=(100,))
    clock.run_until(clock.now + 10.0)
    for worker in workers.values():
        worker.change(stored=(101,))
    clock.run_until(clock.now + 10.0)
    assert state(router) == "exact"
    for name, worker in workers.items():
        assert router.index.cached_blocks(name) == worker.cached
        assert set(router.index.cached_by_worker()[name]) == worker.cached


def test_restart_recovers_from_the_snapshot_and_the_events_after_it(tmp_path: Path) -> None:
    """The index is what the caches are again, of hundreds of events only those after the snapshot were sent again."""
    clock, router, worker = followed(runtime=with_snapshots(tmp_path))
    for block in range(500):
        worker.change(stored=(block,), removed=(block - 100,) if block >= 100 else ())
    clock.run_until(60.0)
    for block in range(500, 503):
        worker.change(stored=(block,))
    router.restart("router-0")
    assert state(router) == "recovering"
    assert router.index.is_empty
    worker.change(stored=(503,))
    clock.run_until(62.1)
    assert state(router) == "recovering"
    assert router.index.cached_blocks("a") == set(range(400, 500))
    worker.change(stored=(504,))
    clock.run_until(63.0)
    assert state(router) == "exact"
    assert router.index.cached_blocks("a") == worker.cached
    assert worker.asked_after == [500]
    shown = read(router)
    assert shown["router_index_recoveries_total/snapshot"] == 1
    assert shown["router_index_recoveries_total/events"] == 1
    assert shown["router_index_event_gaps_total"] == 0


def test_restart_without_a_snapshot_asks_the_workers() -> None:
    """With nothing on disk every worker is asked, and the index comes back all the same."""
    clock = VirtualClock()
    router = kv_router(clock=clock)
    workers = [Worker(router, name, kept=2) for name in ("a", "b")]
    for worker in workers:
        for block in range(5):
            worker.change(stored=(block,))
    router.restart("router-0")
    clock.run_until(3.0)
    assert state(router) == "exact"
    assert [router.index.cached_blocks(worker.name) for worker in workers] == [{0, 1, 2, 3, 4}] * 2
    shown = read(router)
    assert shown["router_index_recoveries_total/nothing"] == 1
    assert shown["router_index_recoveries_total/inventory"] == 2


def test_router_that_knows_nothing_says_so() -> None:
    """Until it has heard of the caches it decides by load alone, and counts that as a fallback."""
    recovery = Recovery(restart_seconds=0.5, answer_seconds=5.0)
    clock, router, worker = followed(runtime=replace(AT_ONCE, recovery=recovery))
    worker.change(stored=(1, 2))
    router.restart("router-0")
    clock.run_until(1.0)
    place(router, prompt(1, 2, 3), ["a"])
    shown = read(router)
    assert shown["router_fallbacks_total/index recovering"] == 1
    clock.run_until(6.0)
    place(router, prompt(1, 2, 3), ["a"]).report(32)
    assert read(router)["kv_cache_predicted_tokens_total"] == 32


def test_snapshot_of_a_worker_that_came_back_anew_is_not_used(tmp_path: Path) -> None:
    """A worker that died since the snapshot has other blocks under the same event numbers: it is asked for all."""
    clock = VirtualClock()
    router = kv_router(clock=clock, runtime=with_snapshots(tmp_path))
    first = Worker(router, "a")
    for block in range(5):
        first.change(stored=(block,))
    clock.run_until(60.0)
    router.remove_worker("a")
    second = Worker(router, "a", stream="2")
    for block in range(50, 60):
        second.change(stored=(block,))
    router.restart("router-0")
    clock.run_until(63.0)
    assert router.index.cached_blocks("a") == second.cached


def test_snapshot_of_an_earlier_emulation_is_not_used(tmp_path: Path) -> None:
    """Its workers had the same names and numbers and other blocks: only what this router wrote is its own."""
    for blocks in (range(5), range(50, 60)):
        clock = VirtualClock()
        router = kv_router(clock=clock, runtime=with_snapshots(tmp_path))
        worker = Worker(router, "a")
        for block in blocks:
            worker.change(stored=(block,))
        if blocks.start == 0:
            clock.run_until(60.0)
    assert list(tmp_path.iterdir())
    router.restart("router-0")
    clock.run_until(10.0)
    assert router.index.cached_blocks("a") == worker.cached == set(range(50, 60))


def test_restart_begins_counting_anew() -> None:
    """A new process has new counters, as a scraper expects of one."""
    clock = VirtualClock()
    router = kv_router("a", clock=clock)
    place(router, prompt(1), ["a"]).report(0)
    assert read(router)["kv_cache_eligible_tokens_total"] == 17
    router.restart("router-0")
    assert read(router)["kv_cache_eligible_tokens_total"] == 0
    with pytest.raises(UsageError, match="unknown router 'router-9', known: router-0"):
        router.restart("router-9")


SNAPSHOT = IndexSnapshot({"a": WorkerSnapshot("a/1", 7, {3, 1, 2}), "b": WorkerSnapshot("b/1", 0, set())})


def test_snapshot_is_read_as_it_was_written() -> None:
    """Workers, streams, numbers and blocks, ids beyond 64 bits too."""
    snapshot = IndexSnapshot({**SNAPSHOT.workers, "c": WorkerSnapshot("c/9", 2**40, [-5, 2**80])})
    read_back = decode(encode(snapshot, router="r", block_tokens=16), router="r", block_tokens=16)
    assert {name: (w.stream, w.sequence, set(w.block_ids)) for name, w in read_back.workers.items()} == {
        "a": ("a/1", 7, {1, 2, 3}), "b": ("b/1", 0, set()), "c": ("c/9", 2**40, {-5, 2**80}),
    }  # fmt: skip


ENCODED = encode(SNAPSHOT, router="r", block_tokens=16)


def with_body(index: object) -> bytes:
    """A whole file with the right checksum and this index."""
    head = json.loads(ENCODED.partition(b"\n")[0])
    body = json.dumps(index).encode()
    return json.dumps({**head, "crc32": zlib.crc32(body)}).encode() + b"\n" + body + b"\n"


@pytest.mark.parametrize(
    ("content", "router", "block_tokens", "expected"),
    [
        (ENCODED, "other", 16, "router is 'r', expected 'other'"),
        (ENCODED, "r", 32, "block_tokens is 16, expected 32"),
        (ENCODED.replace(b'"version": 1', b'"version": 2'), "r", 16, "version is 2, expected 1"),
        (with_body({"a": {"stream": "a/1", "sequence": 1, "blocks": ["x"]}}), "r", 16,
         "worker 'a' has no stream, sequence and blocks"),
    ],
    ids=["router", "blocks", "version", "shape"],
)  # fmt: skip
def test_foreign_snapshot_is_refused(content: bytes, router: str, block_tokens: int, expected: str) -> None:
    """One of another router, over other blocks, of a later release, or of another shape, is not guessed at."""
    with pytest.raises(SnapshotError, match=expected):
        decode(content, router=router, block_tokens=block_tokens)


@settings(deadline=None)
@given(cut=st.integers(0, 150), flip=st.integers(0, 150))
def test_damaged_snapshot_is_refused(cut: int, flip: int) -> None:
    """Cut off anywhere, or with any byte of its index changed, it is refused; nothing else is raised."""
    at = ENCODED.index(b"\n") + 1
    at += flip % (len(ENCODED) - at - 1)
    for damaged in (ENCODED[:cut], ENCODED[:at] + bytes([ENCODED[at] ^ 1]) + ENCODED[at + 1 :]):
        if damaged.rstrip(b"\n") != ENCODED.rstrip(b"\n"):
            with pytest.raises(SnapshotError):
                decode(damaged, router="r", block_tokens=16)


def test_restart_with_a_damaged_snapshot_begins_empty_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is named with what is wrong with it, the index begins empty, recovers from the workers, and goes on."""
    clock, router, worker = followed(runtime=with_snapshots(tmp_path))
    worker.change(stored=(1, 2))
    clock.run_until(60.0)
    (path,) = tmp_path.iterdir()
    assert path.name == "d-router-0.json"
    path.write_bytes(path.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING):
        router.restart("router-0")
        clock.run_until(62.1)
    assert state(router) == "recovering"
    assert router.index.is_empty
    assert "d-router-0.json' is refused: its checksum is wrong" in caplog.text
    clock.run_until(63.0)
    assert router.index.cached_blocks("a") == {1, 2}
    assert read(router)["router_index_recoveries_total/nothing"] == 1
    clock.run_until(125.0)
    assert decode(path.read_bytes(), router="d-router-0", block_tokens=16).workers["a"].sequence == 1


def test_snapshot_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disk that refuses is logged; the router goes on without a snapshot."""
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    clock, router, worker = followed(runtime=with_snapshots(blocked))
    worker.change(stored=(1,))
    clock.run_until(61.0)
    assert "cannot write the index snapshot" in caplog.text
    assert state(router) == "exact"


def test_degraded_index_is_not_written(tmp_path: Path) -> None:
    """A snapshot with holes would be taken for whole: it waits until the index is exact."""
    clock, router, worker = followed(runtime=with_snapshots(tmp_path, every_seconds=10.0))
    router.apply_effects(RouterEffects(recovers=False))
    worker.miss(stored=(1,))
    worker.change(stored=(2,))
    clock.run_until(25.0)
    assert list(tmp_path.iterdir()) == []
    router.apply_effects(RouterEffects())
    clock.run_until(35.0)
    assert [path.name for path in tmp_path.iterdir()] == ["d-router-0.json"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"gap_seconds": -1.0}, "gap_seconds is -1.0, expected a number of 0 or more"),
        ({"snapshot_seconds": 0.0}, "snapshot_seconds is 0.0, expected a number above 0"),
        ({"restart_seconds": float("nan")}, "restart_seconds is nan, expected a number of 0 or more"),
    ],
)
def test_impossible_recoveries_are_refused(change: dict[str, float], expected: str) -> None:
    """Times below 0, or none at all, are refused by their names."""
    with pytest.raises(UsageError, match=expected):
        RouterRuntime(recovery=Recovery(**change))  # type: ignore[arg-type] # numbers all
