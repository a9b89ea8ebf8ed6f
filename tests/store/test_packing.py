"""Packing rows into packs changes nothing: every row is read back as it was appended, in whatever order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Series, Snapshot, make_labels
from servescope.store.embedded import Store
from servescope.store.packing.codec import decode_block, decode_stamps, encode_block, encode_stamps
from servescope.store.packing.packing import Row
from servescope.store.records import StoreError, TargetStatus, TooLargeError
from servescope.store.schema import SCRAPES
from servescope.store.writer import RetentionLimits, StoreWriter, WriteBatch
from tests.support.waiting import deadline_seconds, wait_for

CHAT = Deployment("llama", "chat", "v1")
NOW = 1_800_000_000_000
STEP = 15_000
HISTOGRAM = "request_duration_seconds"


@pytest.fixture
def store(store: Store) -> Store:
    store.set_target(status("r0"))
    return store


def status(replica: str) -> TargetStatus:
    identity = Identity("llama", "chat", "v1", replica=replica)
    return TargetStatus(
        f"chat/{replica}", f"http://{replica}/metrics", identity, "vllm", "", True, NOW, NOW, 0.01, 3, None
    )


def series(replica: str = "r0") -> tuple[Series, ...]:
    own = {"replica": replica}
    buckets = [Series(f"{HISTOGRAM}_bucket", make_labels({**own, "le": edge})) for edge in ("0.5", "1.0", "+Inf")]
    rest = [f"{HISTOGRAM}_sum", f"{HISTOGRAM}_count", "output_tokens_total", "kv_cache_usage"]
    return (*buckets, *(Series(name, make_labels(own)) for name in rest))


SERIES = series()


def values(step: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([step, 2 * step, 3 * step + 1, 0.1 * step, 3 * step + 1, 50.0 * step, 1 / (step + 1)])


def snapshot(step: int) -> Snapshot:
    return Snapshot(SERIES, values(step))


def append(store: Store, steps: range, *, target: str = "chat/r0") -> None:
    with store.transaction():
        for step in steps:
            store.append_scrape(target, NOW + step * STEP, snapshot(step))


def pack_all(store: Store) -> int:
    packed = 0
    while store.pack_due() or store.pack_idle(NOW * 2):
        packed += 1
    return packed


def read(store: Store, target: str = "chat/r0") -> list[tuple[int, list[tuple[Series, float]] | None]]:
    return [
        (time_ms, None if each is None else list(zip(each.series, each.values.tolist(), strict=True)))
        for time_ms, each in store.read_scrapes(target, 0, NOW * 2)
    ]


def as_appended(steps: range) -> list[tuple[int, list[tuple[Series, float]] | None]]:
    return [(NOW + step * STEP, list(zip(SERIES, values(step).tolist(), strict=True))) for step in steps]


def spans_of_runs(store: Store) -> list[tuple[int, int, int]]:
    """The first and the last instant of each pack of scrapes, and how many rows it has."""
    query = "SELECT start_ms, end_ms, count FROM runs WHERE kind = ? ORDER BY start_ms"
    return store._connection.execute(query, (SCRAPES,)).fetchall()


def count(store: Store, table: str) -> int:
    return int(store._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


RNG = np.random.default_rng(4)
BLOCKS = {
    "whole": np.cumsum(RNG.integers(0, 9, (5, 240)), axis=1).astype(float),
    "decimals": RNG.integers(-900, 900, (4, 50)) / 100,
    "ten thousandths": RNG.integers(0, 10**9, (2, 50)) / 10_000,
    "mixed": np.vstack([RNG.random((2, 30)), RNG.integers(0, 5, (3, 30)), RNG.random((1, 30)) * 1e300]),
    "minus zero": np.array([[0.0, -0.0, 0.0, 1.0]]),
    "extremes": np.array([[5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 2.0**53, -(2.0**53) + 1]]),
    "beyond whole": np.array([[2.0**53, 2.0**60, 2.0**63, -(2.0**63), 1e19]]),
    "largest steps": np.array([[-(2.0**53) + 1, 2.0**53 - 1] * 3, [2.0**53 - 1, -(2.0**53) + 1] * 3]),
    "one instant": np.array([[1.0], [0.1], [7.0]]),
    "one value": np.array([[3.25]]),
    "reset": np.array([[100.0, 200.0, 0.0, 5.0], [300.0, 400.0, 1.0, 6.0]]),
}


@pytest.mark.parametrize("name", sorted(BLOCKS))
@pytest.mark.parametrize("links", ["none", "all"])
def test_blocks_are_read_back_bit_by_bit(name: str, links: str) -> None:
    """Whatever the numbers, and whichever of them are encoded as differences to the one before."""
    block = BLOCKS[name]
    chained = np.full(len(block), links == "all")

    assert decode_block(encode_block(block, chained)).tobytes() == block.tobytes()


def test_random_blocks_are_read_back_bit_by_bit() -> None:
    """Any bits that make a finite number."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        shape = rng.integers(1, 20, 2)
        block = rng.integers(0, 2**64, shape, dtype=np.uint64).view(np.float64)
        block = np.where(np.isfinite(block), block, np.round(rng.random(shape) * 10 ** rng.integers(0, 9), 2))
        chained = rng.random(len(block)) < 0.5
        assert decode_block(encode_block(block, chained)).tobytes() == block.tobytes()


def test_instants_are_read_back() -> None:
    """Irregular ones, far apart ones, and which layout each had."""
    times = np.array([0, 1, 5, 15_003, 29_998, 4_000_000_000_000], dtype=np.int64)
    layouts = np.array([0, 0, 65_535, 1, 1, 7], dtype=np.uint16)

    found = decode_stamps(encode_stamps(times, layouts))

    assert found[0].tolist() == times.tolist()
    assert found[1].tolist() == layouts.tolist()


@pytest.mark.parametrize("damage", [b"", b"\x01", b"no block at all, but long enough", None])
def test_a_damaged_block_is_reported(damage: bytes | None) -> None:
    """Neither nonsense nor a crash: a StoreError."""
    body = encode_block(BLOCKS["mixed"], np.zeros(6, dtype=bool))
    for place in range(0, len(body), 7):
        flipped = body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]
        with pytest.raises(StoreError, match="a stored block is damaged"):
            decode_block(flipped if damage is None else damage)


def test_packed_scrapes_are_read_back_as_appended(store: Store) -> None:
    """Every series in its order, every value, and few rows are left."""
    append(store, range(1000))
    expected = read(store)
    packed = pack_all(store)

    # Those of its increments, which are few, are one, which the newest joins when no more come.
    assert packed == 5 + 2
    assert count(store, "recent_scrapes") == 0
    assert read(store) == expected == as_appended(range(1000))
    assert [len(window.times) for window in store.read_samples(CHAT, [HISTOGRAM], NOW, NOW + 999 * STEP)] == [1000]


def test_layouts_that_change_and_scrapes_that_fail_share_a_run(store: Store) -> None:
    """A series that comes, goes, or changes its place is absent exactly where it was, and failures stay failures."""
    layouts = [SERIES, SERIES[:4], (*reversed(SERIES),), (), (*SERIES, Series("later_total", ()))]
    choose = random.Random(5)
    expected: list[tuple[int, list[tuple[Series, float]] | None]] = []
    for step in range(300):
        chosen = choose.choice(layouts) if step % 7 else None
        shown = None if chosen is None else Snapshot(chosen, np.arange(len(chosen)) * step / 4)
        store.append_scrape("chat/r0", NOW + step * STEP, shown)
        expected.append(
            (NOW + step * STEP, None if shown is None else list(zip(shown.series, shown.values.tolist(), strict=True)))
        )
    (before,) = store.read_samples(CHAT, ["later_total", HISTOGRAM], NOW, NOW * 2)

    pack_all(store)
    (after,) = store.read_samples(CHAT, ["later_total", HISTOGRAM], NOW, NOW * 2)

    assert read(store) == expected
    assert {*after.series} == {*before.series}
    for row, each in enumerate(before.series):
        np.testing.assert_array_equal(after.values[after.series.index(each)], before.values[row])


def test_the_same_series_are_the_same_tuple(store: Store) -> None:
    """A cache by the tuple's identity works over packed and recent scrapes alike."""
    append(store, range(300))
    store.pack_due()
    append(store, range(300, 310))

    scrapes = store.read_scrapes("chat/r0", 0, NOW * 2)

    assert len(scrapes) == 310
    assert len({id(each.series) for _, each in scrapes if each is not None}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("order", ["ascending", "older", "within", "shuffled"])
def test_scrapes_may_come_in_any_order(store: Store, order: str) -> None:
    """An imported past is read in its order in time, before what is stored or in the middle of it."""
    steps = {
        "ascending": [*range(400)],
        "older": [*range(200, 400), *range(200)],
        "within": [*range(0, 400, 2), *range(1, 400, 2)],
        "shuffled": random.Random(1).sample(range(400), 400),
    }[order]
    for step in steps:
        append(store, range(step, step + 1))
        store.pack_due()
    assert read(store) == as_appended(range(400))
    pack_all(store)

    assert read(store) == as_appended(range(400))
    spans = spans_of_runs(store)
    assert all(former[1] < later[0] for former, later in pairwise(spans))
    assert sum(rows for *_, rows in spans) == 400


def test_the_same_time_again_replaces_what_is_packed(store: Store) -> None:
    """The newer row counts, before and after it is packed."""
    append(store, range(240))
    pack_all(store)
    store.append_scrape("chat/r0", NOW + 7 * STEP, None)
    store.append_scrape("chat/r0", NOW + 8 * STEP, Snapshot(SERIES[:1], np.array([-1.0])))
    expected = as_appended(range(240))
    expected[7:9] = [(NOW + 7 * STEP, None), (NOW + 8 * STEP, [(SERIES[0], -1.0)])]

    assert read(store) == expected
    pack_all(store)
    assert read(store) == expected
    assert len(spans_of_runs(store)) == 1
    (window,) = store.read_samples(CHAT, [HISTOGRAM], NOW, NOW * 2)
    assert np.isnan(window.values[:, 7]).all()


def test_a_gap_ends_a_run(store: Store) -> None:
    """Scrapes of last week and of today are no pack: it would be kept until today is old."""
    append(store, range(50))
    append(store, range(40_000, 40_100))
    pack_all(store)

    assert 2 <= count(store, "runs") <= 4
    assert store.prune(NOW + 1_000 * STEP, increments_before_ms=0) == 50
    assert read(store) == as_appended(range(40_000, 40_100))


def test_a_run_goes_once_all_of_it_is_old(store: Store) -> None:
    """Its newest scrape decides, so that a few older ones stay with it."""
    append(store, range(240))
    pack_all(store)

    assert store.prune(NOW + 239 * STEP, increments_before_ms=0) == 0
    assert len(read(store)) == 240
    assert store.prune(NOW + 239 * STEP + 1, increments_before_ms=0) == 240
    assert read(store) == []
    assert store.prune(NOW + 240 * STEP) == 12
    assert [count(store, table) for table in ("runs", "chunks")] == [0, 0]


def test_what_packed_rows_refer_to_survives_retention(store: Store) -> None:
    """A shape, a target and a deployment live as long as any pack of theirs."""
    append(store, range(240))
    store.append_figures(CHAT, NOW, {"a": 1.0})
    pack_all(store)
    store.unlist_targets([])
    store.prune(NOW)

    assert store.deployments() == [CHAT]
    assert read(store) == as_appended(range(240))
    store.prune(NOW + 10**9)
    assert [count(store, table) for table in ("targets", "statuses", "coverages", "deployments")] == [0] * 4
    assert [count(store, table) for table in ("layouts", "shapes")] == [0, 0]


def test_figures_are_packed_too(store: Store) -> None:
    """They are read back by name and time, thinned or not, and the latest is found wherever it lies."""
    with store.transaction():
        for step in range(1000):
            figures = {f"figure_{number}": number + step / 3 for number in range(40)}
            if step % 3 == 0:
                figures["at_times"] = float(step)
            store.append_figures(CHAT, NOW + step * STEP, figures)
    before = store.read_figures(CHAT, NOW + STEP, NOW + 998 * STEP)
    thinned = store.read_figures(CHAT, NOW, NOW * 2, names=["figure_7"], max_points=50)
    latest = store.latest_figures()

    pack_all(store)
    after = store.read_figures(CHAT, NOW + STEP, NOW + 998 * STEP)

    assert count(store, "recent_figures") == 0
    assert after.times.tolist() == before.times.tolist()
    assert [*after.values] == [*before.values]
    for key, column in before.values.items():
        np.testing.assert_array_equal(after.values[key], column)
    again = store.read_figures(CHAT, NOW, NOW * 2, names=["figure_7"], max_points=50)
    assert (again.times.tolist(), again.values["figure_7"].tolist()) == (
        thinned.times.tolist(),
        thinned.values["figure_7"].tolist(),
    )
    assert store.latest_figures() == latest
    assert store.time_range() == (NOW, NOW + 999 * STEP)


def test_a_series_explosion_is_packed_in_small_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes that each show other series make short packs, never a huge matrix, and nothing is lost."""
    monkeypatch.setattr("servescope.store.packing.packing._RUN_NUMBERS", 60_000)
    with store.transaction():
        for step in range(200):
            shown = tuple(Series("x_total", (("id", f"{step}-{number}"),)) for number in range(10))
            store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(shown, np.full(10, float(step))))
    pack_all(store)

    assert 2 <= count(store, "runs") <= 4
    scrapes = read(store)
    assert [len(each or ()) for _, each in scrapes] == [10] * 200
    assert all(each is not None and each[0][1] == step for step, (_, each) in enumerate(scrapes))


def test_only_the_chunks_that_are_asked_for_are_read(store: Store) -> None:
    """A damaged chunk of one metric stops no other; the error names the chunk."""
    append(store, range(240))
    pack_all(store)
    layout = [series.name for series in SERIES]
    bodies = dict(store._connection.execute("SELECT id, body FROM chunks").fetchall())
    store._connection.execute("UPDATE chunks SET body = ? WHERE id = ?", (b"?" * 40, min(bodies)))

    (window,) = store.read_samples(CHAT, ["output_tokens_total"], NOW, NOW * 2)

    assert window.values[0].tolist() == [values(step)[layout.index("output_tokens_total")] for step in range(240)]
    with pytest.raises(StoreError, match=r"servescope.db: pack 1, chunk 0: a stored block is damaged"):
        store.read_samples(CHAT, [HISTOGRAM], NOW, NOW * 2)


@pytest.mark.slow
def test_a_size_limit_deletes_the_oldest(store: Store) -> None:
    """The file stays within it, whatever comes, and what is left is the youngest."""
    limit = 1_500_000
    rng = np.random.default_rng(1)
    wide = tuple(Series("x", (("n", str(number)),)) for number in range(200))
    for hour in range(15):
        with store.transaction():
            for step in range(hour * 240, hour * 240 + 240):
                store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(wide, rng.random(200)))
        pack_all(store)
        while store.prune_to_size(limit):
            pass

    scrapes = store.read_scrapes("chat/r0", 0, NOW * 2)
    assert scrapes[-1][0] == NOW + (15 * 240 - 1) * STEP
    assert 0 < len(scrapes) < 15 * 240
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store.path.stat().st_size < limit + 1_500_000


@pytest.mark.slow
def test_a_target_that_always_shows_other_series_does_not_cost_the_others_their_past(store: Store) -> None:
    """The names of series that are gone count for the size as well, and go with them."""
    store.set_target(status("r1"))
    rng = np.random.default_rng(1)
    limit = 800_000
    for hour in range(6):
        with store.transaction():
            for step in range(hour * 240, hour * 240 + 240):
                store.append_scrape("chat/r0", NOW + step * STEP, snapshot(step))
                other = tuple(Series("x", (("n", rng.bytes(8).hex()),)) for _ in range(20))
                store.append_scrape("chat/r1", NOW + step * STEP, Snapshot(other, np.ones(20)))
        pack_all(store)
        with store.transaction():
            store.prune(0)
            while store.prune_to_size(limit):
                pass
    used = store._retention.used_bytes()

    assert used <= limit
    assert len(read(store)) > 240
    while store.prune(NOW * 2):
        pass
    assert [count(store, table) for table in ("layouts", "shapes", "runs")] == [0, 0, 0]


@pytest.mark.slow
def test_a_flood_of_series_is_packed_a_little_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The series of few rows are in memory at once, and are not held afterwards; what waits is packed in its turn."""
    monkeypatch.setattr("servescope.store.packing.recent._KEYS_PACKED", 1000)
    monkeypatch.setattr("servescope.store.packing.layouts._KEYS_HELD", 500)
    written: list[int] = []
    write_pack = store._packs._write

    def count_series(kind: int, owner: int, rows: Sequence[Row]) -> None:
        written.append(len({key for row in rows for key in row.keys or ()}))
        write_pack(kind, owner, rows)

    monkeypatch.setattr(store._packs, "_write", count_series)
    appended = []
    with store.transaction():
        for step in range(120):
            shown = tuple(Series("x", (("n", f"{step}-{number}"),)) for number in range(100))
            store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(shown, np.full(100, float(step))))
            appended.append(shown)
    pack_all(store)

    found = store.read_scrapes("chat/r0", 0, NOW * 2)
    assert [each.series for _, each in found if each] == appended
    assert max(written) <= 1200
    assert sum(map(len, store._layouts._keys.values())) <= 500


@pytest.mark.parametrize("packed", [True, False])
def test_a_flood_of_series_is_not_read_at_once(store: Store, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    """It is refused with what to ask for instead, before most of it is read; less of it is read."""
    monkeypatch.setattr("servescope.store.embedded.MOST_NUMBERS", 100_000)
    with store.transaction():
        for step in range(240):
            flood = tuple(Series("output_tokens_total", (("n", f"{step}-{number}"),)) for number in range(20))
            store.append_scrape("chat/r0", NOW + step * STEP, Snapshot((*SERIES, *flood), np.full(27, float(step))))
    if packed:
        pack_all(store)

    with pytest.raises(TooLargeError, match="too many to be read at once; ask for fewer names or a shorter time"):
        store.read_samples(CHAT, ["output_tokens_total"], NOW, NOW * 2)
    (part,) = store.read_samples(CHAT, ["output_tokens_total"], NOW + 220 * STEP, NOW + 239 * STEP)
    assert part.times.tolist() == [NOW + step * STEP for step in range(220, 240)]
    assert np.isfinite(part.values).sum() == 20 * 20 + 20 * sum(each.name == "output_tokens_total" for each in SERIES)
    (other,) = store.read_samples(CHAT, [HISTOGRAM], NOW, NOW * 2)
    assert len(other.times) == 240


def test_figures_of_a_long_time_are_read_a_point_a_stretch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, a picture of them has so many points, each the last of its stretch."""
    monkeypatch.setattr("servescope.store.embedded.MOST_NUMBERS", 100)
    with store.transaction():
        for step in range(2000):
            store.append_figures(CHAT, NOW + step * STEP, {"a": float(step), "b": 1.0})
    pack_all(store)

    with pytest.raises(TooLargeError, match="shorter time"):
        store.read_figures(CHAT, NOW, NOW + 1999 * STEP)
    table = store.read_figures(CHAT, NOW, NOW + 1999 * STEP, max_points=20)
    assert 10 < len(table.times) <= 20
    assert table.times[-1] == NOW + 1999 * STEP
    assert table.values["a"].tolist() == ((table.times - NOW) / STEP).tolist()


def test_layouts_that_are_shown_again_are_there_again(store: Store) -> None:
    """A layout that was deleted as unused is written again for its next row."""
    other = tuple(Series("x", (("n", str(number)),)) for number in range(3))
    for hour in range(4):
        shown = SERIES if hour % 2 == 0 else other
        for step in range(hour * 240, hour * 240 + 240):
            store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(shown, np.ones(len(shown))))
        pack_all(store)
        store.prune(NOW)

        assert count(store, "layouts") <= 2
    found = store.read_scrapes("chat/r0", 0, NOW * 2)
    assert [len(each.series) for _, each in found if each] == [7] * 240 + [3] * 240 + [7] * 240 + [3] * 240


@pytest.mark.slow
def test_targets_that_left_leave_nothing_in_memory(store: Store) -> None:
    """Neither how many rows they had nor how many they may have."""
    for number in range(20):
        store.set_target(status(f"gone-{number}"))
        append(store, range(240), target=f"chat/gone-{number}")
    pack_all(store)
    store.unlist_targets([])
    while store.prune(NOW * 2):
        pass

    parts = (store, store._owners, store._layouts, store._packs, store._recent, store._packer)
    held = [len(each) for part in parts for each in vars(part).values() if isinstance(each, (dict, set))]
    assert sum(held) == len(store._layouts._shapes) + len(store._layouts._keys)


def test_a_size_limit_deletes_recent_rows_when_there_is_nothing_else(store: Store) -> None:
    """Before the first pack is packed, the oldest tenth of the time goes."""
    wide = tuple(Series("x", (("n", str(number)),)) for number in range(2000))
    with store.transaction():
        for step in range(100):
            store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(wide, np.random.default_rng(step).random(2000)))

    assert store.prune_to_size(1_000_000) > 0
    scrapes = store.read_scrapes("chat/r0", 0, NOW * 2)
    assert 0 < len(scrapes) < 70
    assert scrapes[-1][0] == NOW + 99 * STEP


@pytest.mark.slow
def test_a_lowered_limit_shrinks_the_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages set free are returned to the file system once they are much of the file."""
    monkeypatch.setattr("servescope.store.tables.retention._FEWEST_FREE_PAGES", 64)
    rng = np.random.default_rng(1)
    wide = tuple(Series("x", (("n", str(number)),)) for number in range(400))
    for hour in range(8):
        with store.transaction():
            for step in range(hour * 240, hour * 240 + 240):
                store.append_scrape("chat/r0", NOW + step * STEP, Snapshot(wide, rng.random(400)))
        pack_all(store)
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    former = store.path.stat().st_size
    while store.prune_to_size(1_000_000):
        pass
    for _ in range(10):
        store.prune(0)
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    assert store.path.stat().st_size < former / 2


def test_the_writer_packs_in_between(path: Path, store: Store) -> None:
    """Rounds that are only submitted are packed, and old ones deleted, without an error."""
    failed: list[object] = []
    pruned: list[int] = []
    writer = StoreWriter(
        store, on_written=lambda _: None, on_error=failed.append, on_dropped=failed.append, on_pruned=pruned.append
    )
    for step in range(600):
        writer.submit(WriteBatch(scrapes=[("chat/r0", NOW + step * STEP, snapshot(step))], targets=[status("r0")]))
    writer.submit(
        WriteBatch(
            figures=[(CHAT, NOW + 600 * STEP, {"a": 1.0})],
            listed=frozenset({"chat/r0"}),
            keep=RetentionLimits(NOW + 300 * STEP, 0),
        )
    )
    with Store(path, read_only=True) as reader:
        wait_for(lambda: count(reader, "runs") and pruned, "packing and pruning")
        ended = writer.close(deadline_seconds())
        found = read(reader)

    assert (ended, failed) == (True, [])
    assert pruned
    assert found[-300:] == as_appended(range(300, 600))


def test_rows_of_an_idle_target_are_packed_where_no_figures_are_stored(path: Path, store: Store) -> None:
    """Its rows are idle by the time of the other targets' scrapes."""
    failed: list[object] = []
    writer = StoreWriter(store, on_written=lambda _: None, on_error=failed.append, on_dropped=failed.append)
    writer.submit(WriteBatch(targets=[status("r0"), status("r1")]))
    for step in range(10):
        writer.submit(WriteBatch(scrapes=[("chat/r0", NOW + step * STEP, snapshot(step))]))
    writer.submit(WriteBatch(scrapes=[("chat/r1", NOW + 200 * STEP, snapshot(200))]))
    writer.submit(WriteBatch(listed=frozenset({"chat/r1"}), keep=RetentionLimits(NOW - 1000 * STEP, 0)))
    with Store(path, read_only=True) as reader:
        wait_for(lambda: spans_of_runs(reader), "packing")
        packed = len(spans_of_runs(reader)), count(reader, "recent_scrapes")
    writer.close()

    assert (packed, failed) == ((1, 1), [])


def test_contract_histograms_are_chunks_of_their_own(store: Store) -> None:
    """Every metric of the contract has chunks of its own, so that reading one reads no other."""
    shown = tuple(
        Series(f"{name}_bucket" if metric.kind == "histogram" else name, ()) for name, metric in METRICS.items()
    )
    store.append_scrape("chat/r0", NOW, Snapshot(shown, np.ones(len(shown))))
    pack_all(store)

    assert count(store, "chunks") == len(METRICS)
