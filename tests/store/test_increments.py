"""Increments in the store: those of the scrapes, whatever happens to the collector and to the order of scrapes."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Sample, Series, Snapshot, make_labels
from servescope.increments.accumulation import block_of, compute_increments
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from servescope.store.writer import RetentionLimits, StoreWriter, WriteBatch
from tests.support.scraped_pasts import ERROR, OK, QUEUED, START, T0, TOKENS, Page, histogram, pasts
from tests.support.waiting import wait_for

IDENTITY = Identity("llama", "chat", "v2", replica="0")
CHAT = IDENTITY.deployment()
TARGET = IDENTITY.target_id
STATUS = TargetStatus(TARGET, "http://r0", IDENTITY, "vllm", "0.32", layer="engine")
EVER = 1 << 42


@pytest.fixture
def store(store: Store) -> Store:
    store.set_target(STATUS)
    return store


def append(store: Store, seconds: float, page: Page, target: str = TARGET) -> None:
    """Add a scrape; an empty page is a scrape that failed."""
    store.append_scrape(target, T0 + round(seconds * 1000), snapshot(page))


def snapshot(page: Page) -> Snapshot | None:
    own = IDENTITY.labels()
    samples = [Sample(each.name, make_labels((*each.labels, *own)), value) for each, value in page.items()]
    return Snapshot.of(samples) if samples else None


def read(store: Store) -> TargetIncrements:
    (found,) = store.read_increments(CHAT, list(METRICS), -BLOCK_MS, EVER)
    return found


def known(found: TargetIncrements) -> dict[tuple[int, Series], float]:
    """The gains, levels and shares that are known, by block."""
    rows = [
        *zip(found.series, found.gains, strict=True),
        *zip(found.gauges, found.levels, strict=True),
        *zip((Series(f"{each.name} above", each.labels) for each in found.gauges), found.above, strict=True),
    ]
    return {
        (block, series): float(values[at])
        for series, values in rows
        for at, block in enumerate(found.blocks.tolist())
        if not math.isnan(values[at])
    }


def happened(found: TargetIncrements) -> dict[int, list[float]]:
    names = ("scrapes", "failed", "torn", "resets", "gaps")
    counts = [getattr(found.tallies, name).tolist() for name in names]
    return {block: [each[at] for each in counts] for at, block in enumerate(found.blocks.tolist())}


def test_a_block_is_stored_with_the_first_scrape_after_it(store: Store) -> None:
    """The one on its edge is its last; series have no labels of the identity, which is there once."""
    for second in (15, 30, 300):
        append(store, second, {TOKENS: second, QUEUED: 1.0, START: 17.0})
        assert store.read_increments(CHAT, ["output_tokens_total"], -BLOCK_MS, EVER) == []
    append(store, 315, {TOKENS: 400, QUEUED: 1.0, START: 17.0})
    found = read(store)
    assert (found.identity, found.source, found.versions, found.layer) == (IDENTITY, "vllm", "0.32", "engine")
    assert (found.blocks.tolist(), found.series, found.gains.tolist()) == ([T0], (TOKENS,), [[285.0]])
    assert (found.gauges, found.levels.tolist(), found.above.tolist()) == ((QUEUED,), [[1.0]], [[1.0]])
    assert found.started_ms.tolist() == [17_000.0]


def test_only_blocks_between_start_and_end_and_metrics_asked_for_are_read(store: Store) -> None:
    for second in range(15, 1300, 15):
        append(store, second, {TOKENS: second, **histogram({0.1: second, math.inf: second}, second, 1.0)})
    (found,) = store.read_increments(CHAT, ["output_tokens_total"], T0 + 1, T0 + 3 * BLOCK_MS)
    assert found.blocks.tolist() == [T0 + BLOCK_MS, T0 + 2 * BLOCK_MS]
    assert found.series == (TOKENS,)
    (found,) = store.read_increments(CHAT, ["time_to_first_token_seconds"], T0, T0 + BLOCK_MS)
    stem = "time_to_first_token_seconds"
    assert [each.name for each in found.series] == [f"{stem}_{part}" for part in ("bucket", "bucket", "count", "sum")]


def test_each_of_many_targets_has_its_own_increments(store: Store) -> None:
    """Some targets are looked up together, of whatever layout; one of another deployment is not among them."""
    names = [f"r{number:03}" for number in range(150)]
    owners = [replace(IDENTITY, replica=name) for name in names]
    others = [replace(each, inference_stack="v1") for each in owners[:3]]
    for number, identity in enumerate([*others, *owners]):
        store.set_target(replace(STATUS, target_id=identity.target_id, identity=identity))
        shown = {TOKENS: 0.0, OK: 0.0} if number % 3 else {TOKENS: 0.0}
        append(store, 15, shown, identity.target_id)
        append(store, 300, dict.fromkeys(shown, float(number)), identity.target_id)
        append(store, 315, dict.fromkeys(shown, 1000.0), identity.target_id)
    found = {each.target_id: each for each in store.read_increments(CHAT, list(METRICS), -BLOCK_MS, EVER)}
    assert list(found) == [each.target_id for each in owners]
    for number, identity in enumerate(owners, start=len(others)):
        increments = found[identity.target_id]
        assert {each.name for each in increments.series} == {TOKENS.name, *([OK.name] if number % 3 else [])}
        assert increments.gains[:, 0].tolist() == [number] * len(increments.series)


def test_a_collector_that_restarts_completes_the_block_that_was_open(path: Path, store: Store) -> None:
    append(store, 15, {TOKENS: 1})
    append(store, 30, {TOKENS: 5})
    store.close()
    with Store(path) as again:
        again.set_target(STATUS)
        append(again, 60, {TOKENS: 9})
        append(again, 315, {TOKENS: 10})
        assert known(read(again)) == {(T0, TOKENS): 8}


def test_the_block_of_a_target_that_left_is_closed_once(path: Path, store: Store) -> None:
    """It gets no more scrapes, so that another's, or the time, has to close its block; after a restart as well."""
    append(store, 15, {TOKENS: 1})
    append(store, 30, {TOKENS: 5})
    store.close_blocks(T0 + BLOCK_MS)
    assert store.read_increments(CHAT, ["output_tokens_total"], 0, EVER) == []
    store.close()
    with Store(path) as again:
        again.close_blocks(T0 + BLOCK_MS + 1)
        assert known(read(again)) == {(T0, TOKENS): 4}
        append(again, 45, {TOKENS: 7})
        again.close_blocks(T0 + BLOCK_MS + 1)
        assert known(read(again)) == {(T0, TOKENS): 6}


def test_the_writer_closes_the_blocks_of_idle_targets(path: Path, store: Store) -> None:
    failed: list[object] = []
    writer = StoreWriter(store, on_written=lambda _: None, on_error=failed.append, on_dropped=failed.append)
    other = Identity("llama", "chat", "v2", replica="1")
    writer.submit(WriteBatch(targets=[STATUS, TargetStatus(other.target_id, "http://r1", other)]))
    for count in (1, 2):
        writer.submit(WriteBatch(scrapes=[(TARGET, T0 + count * 15_000, snapshot({TOKENS: count}))]))
    writer.submit(
        WriteBatch(scrapes=[(other.target_id, T0 + 400_000, snapshot({TOKENS: 1}))], keep=RetentionLimits(0, 0))
    )
    with Store(path, read_only=True) as reader:
        wait_for(lambda: reader.read_increments(CHAT, ["output_tokens_total"], 0, EVER), "increments")
        assert known(read(reader)) == {(T0, TOKENS): 1}
    writer.close()
    assert failed == []


def test_a_transaction_that_fails_leaves_no_increments(store: Store) -> None:
    append(store, 15, {TOKENS: 1})
    append(store, 30, {TOKENS: 2})
    with suppress(ZeroDivisionError), store.transaction():
        append(store, 315, {TOKENS: 3})
        raise ZeroDivisionError
    assert store.read_increments(CHAT, ["output_tokens_total"], 0, EVER) == []
    append(store, 330, {TOKENS: 3})
    assert known(read(store)) == {(T0, TOKENS): 1}


def test_an_outcome_that_is_not_shown_any_more_is_not_known(store: Store) -> None:
    """It may go on unseen; that it were 0 would be health that nobody observed."""
    for second in range(15, 1000, 15):
        append(store, second, {OK: second} if second > 500 else {OK: second, ERROR: second})
    found = read(store)
    gains = found.gains[found.series.index(ERROR)]

    assert (gains > 0.0).tolist() == [True, True, False]
    assert np.isnan(gains[2])


def test_a_scrape_that_comes_late_is_counted(store: Store) -> None:
    """In its own block, and in the next one, which goes on from it."""
    append(store, 280, {TOKENS: 1})
    append(store, 310, {TOKENS: 10})
    append(store, 610, {TOKENS: 20})
    append(store, 295, {TOKENS: 4})
    append(store, 625, {TOKENS: 21})
    append(store, 910, {TOKENS: 22})
    gains = {block: gain for (block, _), gain in known(read(store)).items()}
    assert gains == {T0: 3, T0 + BLOCK_MS: 6, T0 + 2 * BLOCK_MS: 1}


def test_increments_survive_the_scrapes_they_were_computed_from(store: Store) -> None:
    """A late scrape does not replace them by what the few scrapes that are left would give."""
    for second in range(15, 700, 15):
        append(store, second, {TOKENS: second})
    former = known(read(store))
    store.prune(T0 + 10**9, increments_before_ms=0)
    append(store, 200, {TOKENS: 200})
    append(store, 915, {TOKENS: 915})
    assert known(read(store)).items() >= former.items()


def test_increments_can_be_stored_without_scrapes(store: Store) -> None:
    """Packed or not, what was appended is read; appended again it replaces what was there."""
    blocks = T0 + np.arange(600) * BLOCK_MS
    counts = np.arange(600)
    zeros = np.zeros(600, dtype=np.int64)
    written = TargetIncrements(
        TARGET, IDENTITY, blocks, (OK, ERROR), np.array([counts * 2.0, np.where(counts % 7, counts / 3, np.nan)]),
        (QUEUED,), counts[None] / 7, counts[None] % 2 / 2.0, np.where(counts > 50, 1.8e12, np.nan),
        Tallies(counts, zeros + 1, zeros + 2, zeros + 3, zeros + 4), "vllm", "0.32", "engine",
    )  # fmt: skip
    store.append_increments(written)
    for _ in range(3):
        found = read(store)
        assert found.blocks.tolist() == blocks.tolist()
        assert known(found) == known(written)
        assert happened(found) == happened(written)
        assert found.started_ms.tolist() == pytest.approx(written.started_ms.tolist(), nan_ok=True)
        while store.pack_due():
            pass
        store.append_increments(written)
    spans = store._connection.execute("SELECT start_ms, end_ms, count FROM runs ORDER BY start_ms").fetchall()
    assert len(spans) <= 4
    # The newest block is not packed yet.
    assert sum(count for _, _, count in spans) == 599


def test_increments_have_a_retention_of_their_own(store: Store) -> None:
    for second in range(15, 3000, 15):
        append(store, second, {TOKENS: second})
    while store.prune(T0 + 3_000_000, increments_before_ms=T0 + 1_800_000):
        pass
    assert store.read_samples(CHAT, ["output_tokens_total"], 0, EVER) == []
    assert read(store).blocks.tolist() == [T0 + number * BLOCK_MS for number in range(5, 9)]
    store.unlist_targets([])
    assert len(store.read_increments(CHAT, list(METRICS), 0, EVER)) == 1
    while store.prune(T0 + 10**10):
        pass
    assert store.deployments() == []


@pytest.mark.slow
def test_a_limit_on_the_size_leaves_increments_when_scrapes_are_gone(store: Store) -> None:
    """Scrapes go first, down to a day of them, then increments down to a day, and then the rest."""
    store.set_target(replace(STATUS, scrape_interval_ms=600_000))
    chance, empty = np.random.default_rng(1), store._retention.used_bytes()
    series = [Series("input_tokens_total", (("k", str(number)),)) for number in range(200)]
    for day in range(3):
        with store.transaction():
            for second in range(0, 86_400, 600):
                values = chance.random(len(series))
                append(store, 86_400 * day + second, dict(zip(series, values.tolist(), strict=True)))
    while store.pack_due():
        pass
    used = store._retention.used_bytes() - empty
    spans = {}
    for share in (0.8, 0.45):
        limit = int(empty + used * share)
        while store.prune_to_size(limit):
            pass
        assert store._retention.used_bytes() <= limit
        spans[share] = len(store.read_scrapes(TARGET, 0, EVER)) / 144, len(read(store).blocks) / 144
    assert spans[0.8][0] < 2.5
    assert spans[0.8][1] > 2.9
    assert spans[0.45][1] < 2.5


@pytest.mark.slow
def test_increments_need_little_room(store: Store) -> None:
    """A day of a replica with an engine's histograms: below two bytes a number."""
    chance = np.random.default_rng(2)
    edges = [*(METRICS["time_to_first_token_seconds"].edges or ()), math.inf]
    buckets = [Series("time_to_first_token_seconds_bucket", (("le", str(edge)),)) for edge in edges]
    gains = chance.poisson(3, (len(buckets), 288)).cumsum(axis=0).astype(float)
    ones = np.ones(288, dtype=np.int64)
    before = store._retention.used_bytes()
    for replica in range(40):
        identity = Identity("llama", "chat", "v2", replica=str(replica))
        store.set_target(TargetStatus(identity.target_id, "http://r", identity))
        store.append_increments(
            TargetIncrements(
                identity.target_id, identity, T0 + np.arange(288) * BLOCK_MS, tuple(buckets), gains, (),
                np.zeros((0, 288)), np.zeros((0, 288)), np.full(288, np.nan), Tallies(ones, ones, ones, ones, ones),
            )
        )  # fmt: skip
    while store.pack_due():
        pass
    assert (store._retention.used_bytes() - before) / (40 * 288 * len(buckets)) < 2


EARLIER_AFTER_LATER = {1_210_000: {TOKENS: 5.0}, 1_225_000: {TOKENS: 6.0}, 1_185_000: {TOKENS: 7.0}}
EARLIER_BEFORE_A_RESTART = {1_821_000: {TOKENS: 5.0}, 1_796_000: {TOKENS: 6.0}, 1_811_000: {TOKENS: 7.0}}


@pytest.mark.slow
@example(EARLIER_AFTER_LATER, 1000, {2})
@example(EARLIER_BEFORE_A_RESTART, 1, {2})
@given(pasts(), st.sampled_from([1, 5, 1000]), st.sets(st.integers(0, 44), max_size=3))
def test_stored_increments_are_those_of_the_stored_scrapes(
    scrapes: dict[int, Page], rows: int, restarts: set[int]
) -> None:
    """Whatever is scraped, in the order in which it comes, with restarts of the collector and packing in between."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "servescope.db"
        store = Store(path)
        store.set_target(STATUS)
        for number, (time_ms, page) in enumerate(scrapes.items()):
            if number in restarts:
                store.close()
                store = Store(path)
            store.append_scrape(TARGET, time_ms, snapshot(page))
            if number % rows == 0:
                store.pack_idle(EVER)
        store.close_blocks(EVER)
        (window,) = store.read_samples(CHAT, [*METRICS, START.name], 0, EVER)
        stored = read(store)
        store.close()
    raw = compute_increments(TARGET, IDENTITY, window, start_ms=-BLOCK_MS, end_ms=EVER, interval_ms=15_000)
    assert set(stored.blocks.tolist()) == {block_of(time_ms) for time_ms in scrapes}
    assert happened(stored) == happened(raw)
    assert known(stored) == pytest.approx(known(raw))
