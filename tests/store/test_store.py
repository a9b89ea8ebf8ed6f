"""The embedded store: what is written is read back, by anyone, after any end; and nothing else gets in."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Sample, Snapshot, make_labels
from servescope.store.embedded import Store
from servescope.store.records import StoreError, StorePathError, TargetStatus
from servescope.store.writer import StoreWriter, WriteBatch
from tests.support.waiting import deadline_seconds

CHAT = Deployment("llama", "chat", "v1")
CODE = Deployment("llama", "code", "v2", environment="production", rollout_phase="promoting")
NOW = 1_800_000_000_000
COVERAGE = {"output_tokens_total": {"status": "present", "native": "vllm:generation_tokens_total", "reason": None}}


def status(replica: str = "r0", *, deployment: Deployment = CHAT, healthy: bool = True) -> TargetStatus:
    identity = Identity(
        deployment.model_name, deployment.deployment_id, deployment.inference_stack, deployment.environment,
        deployment.rollout_phase, replica,
    )  # fmt: skip
    return TargetStatus(
        f"{deployment.deployment_id}/{replica}", f"http://{replica}/metrics", identity, "vllm", "0.32", healthy, NOW,
        NOW if healthy else None, 0.012, 3, None if healthy else "http://r0/metrics: no answer", COVERAGE,
    )  # fmt: skip


def samples(*values: float, replica: str = "r0") -> list[Sample]:
    return [
        Sample("x_bucket", make_labels({"replica": replica, "le": str(i)}), value) for i, value in enumerate(values)
    ]


def snapshot(*values: float, replica: str = "r0") -> Snapshot:
    return Snapshot.of(samples(*values, replica=replica))


def read_scrapes(store: Store, target_id: str, start_ms: int, end_ms: int) -> list[tuple[int, list[Sample] | None]]:
    scrapes = store.read_scrapes(target_id, start_ms, end_ms)
    return [(time_ms, None if each is None else each.samples()) for time_ms, each in scrapes]


def test_figures_are_read_back_as_written(store: Store) -> None:
    """Each figure has its column; where it was absent there is NaN, whichever figures the other instants had."""
    store.append_figures(CHAT, NOW, {"request_rate": 0.1, 'x{status="active"}': 2.0})
    store.append_figures(CHAT, NOW + 15_000, {"request_rate": 0.3})
    store.append_figures(CHAT, NOW + 30_000, {})
    store.append_figures(CHAT, NOW + 45_000, {"kv_cache_usage": 1e-300, "request_rate": 0.1})

    table = store.read_figures(CHAT, NOW, NOW + 45_000)

    assert table.times.tolist() == [NOW, NOW + 15_000, NOW + 30_000, NOW + 45_000]
    assert sorted(table.values) == ["kv_cache_usage", "request_rate", 'x{status="active"}']
    np.testing.assert_array_equal(table.values["request_rate"], [0.1, 0.3, np.nan, 0.1])
    np.testing.assert_array_equal(table.values["kv_cache_usage"], [np.nan, np.nan, np.nan, 1e-300])
    np.testing.assert_array_equal(table.values['x{status="active"}'], [2.0, np.nan, np.nan, np.nan])


def test_figures_are_chosen_by_time_and_name(store: Store) -> None:
    """Both ends count; a name that was never stored is all NaN; nothing stored is an empty table."""
    for minute in range(5):
        store.append_figures(CHAT, NOW + minute * 60_000, {"a": minute, "b": -minute})

    table = store.read_figures(CHAT, NOW + 60_000, NOW + 180_000, names=["b", "never"])
    nothing = store.read_figures(CODE, 0, NOW * 2, names=["b"])

    assert table.values["b"].tolist() == [-1, -2, -3]
    assert np.isnan(table.values["never"]).all()
    assert (nothing.times.tolist(), nothing.values["b"].tolist()) == ([], [])
    assert store.read_figures(CHAT, NOW + 1, NOW).times.tolist() == []


@pytest.mark.parametrize("points", [1, 2, 7, 50, 100, 5000])
def test_fewer_points_are_the_last_of_each_bucket(store: Store, points: int) -> None:
    """At most `max_points` instants come back, each one that was stored, with its own values, the last among them."""
    with store.transaction():
        for step in range(100):
            store.append_figures(CHAT, NOW + step * 15_000, {"a": float(step)})

    table = store.read_figures(CHAT, NOW, NOW + 99 * 15_000, max_points=points)

    assert len(table.times) <= points
    assert len(table.times) >= min(points, 100) // 2
    assert table.values["a"].tolist() == [(time - NOW) / 15_000 for time in table.times.tolist()]
    assert table.values["a"][-1] == 99


def test_a_moving_range_keeps_its_points(store: Store) -> None:
    """Buckets do not move with the range: the same instants are shown a moment later."""
    with store.transaction():
        for step in range(400):
            store.append_figures(CHAT, NOW + step * 15_000, {"a": float(step)})

    former = store.read_figures(CHAT, NOW, NOW + 300 * 15_000, max_points=30).times.tolist()
    later = store.read_figures(CHAT, NOW + 15_000, NOW + 301 * 15_000, max_points=30).times.tolist()

    assert len(set(former[1:-1]) - set(later)) == 0


def test_latest_figures_are_those_of_the_last_instant(store: Store) -> None:
    """One instant per deployment, also when it had no figure."""
    store.append_figures(CHAT, NOW, {"a": 1.0})
    store.append_figures(CODE, NOW, {"a": 2.0})
    store.append_figures(CODE, NOW + 1, {})

    assert store.latest_figures() == {CHAT: (NOW, {"a": 1.0}), CODE: (NOW + 1, {})}
    assert store.deployments() == [CHAT, CODE]
    assert store.time_range() == (NOW, NOW + 1)


def test_an_empty_store_says_so(store: Store) -> None:
    """No data is an answer."""
    assert store.deployments() == []
    assert store.latest_figures() == {}
    assert store.targets() == []
    assert store.time_range() is None
    assert store.read_samples(CHAT, ["x"], 0, NOW) == []


def test_the_same_instant_again_replaces_it(store: Store) -> None:
    """A repeated time is one row."""
    store.append_figures(CHAT, NOW, {"a": 1.0, "b": 1.0})
    store.append_figures(CHAT, NOW, {"a": 2.0})

    assert store.latest_figures() == {CHAT: (NOW, {"a": 2.0})}


def test_scrapes_are_read_back_bit_by_bit(store: Store) -> None:
    """Every finite number survives the packing, as do no samples at all, and a scrape that failed."""
    numbers = samples(0.0, -0.0, 1.0, 1.0, 3.0, 1e308, 5e-324, 0.1, 2.0**53 + 2, -7.25)
    store.set_target(status())
    store.append_scrape("chat/r0", NOW, Snapshot.of(numbers))
    store.append_scrape("chat/r0", NOW + 1, None)
    store.append_scrape("chat/r0", NOW + 2, Snapshot.of([]))
    store.append_scrape("chat/r0", NOW + 3, snapshot(4.0))

    read = read_scrapes(store, "chat/r0", NOW, NOW + 3)

    assert read == [(NOW, numbers), (NOW + 1, None), (NOW + 2, []), (NOW + 3, samples(4.0))]
    assert str(read[0][1]) == str(numbers)
    assert read_scrapes(store, "chat/nobody", 0, NOW) == []


def test_samples_are_read_per_target_and_native_series(store: Store) -> None:
    """A window per target with every scrape in it; a histogram's name brings its buckets, sum and count."""
    labels = make_labels({"replica": "r0"})
    name = "request_duration_seconds"
    store.set_target(status("r0"))
    store.set_target(status("r1"))
    store.set_target(status("r9", deployment=CODE))
    first = [
        Sample(f"{name}_bucket", (("le", "+Inf"),), 1.0), Sample(f"{name}_sum", labels, 0.5),
        Sample(f"{name}_count", labels, 1.0), Sample("output_tokens_total", labels, 9.0),
    ]  # fmt: skip
    store.append_scrape("chat/r0", NOW, Snapshot.of(first))
    store.append_scrape("chat/r0", NOW + 15_000, None)
    store.append_scrape("chat/r0", NOW + 30_000, Snapshot.of([Sample(f"{name}_sum", labels, 0.75)]))
    store.append_scrape("code/r9", NOW, snapshot(1.0))

    (window,) = store.read_samples(CHAT, [name], NOW, NOW + 60_000)

    assert [series.name for series in window.series] == [f"{name}_bucket", f"{name}_sum", f"{name}_count"]
    assert window.times.tolist() == [NOW, NOW + 15_000, NOW + 30_000]
    np.testing.assert_array_equal(window.values[1], [0.5, np.nan, 0.75])
    np.testing.assert_array_equal(window.values[0], [1.0, np.nan, np.nan])


def test_targets_show_their_latest_status(store: Store) -> None:
    """A later status replaces a former one; a target that is no longer listed keeps only its samples."""
    store.set_target(status("r0"))
    store.set_target(status("r1"))
    store.append_scrape("chat/r1", NOW, snapshot(1.0))
    store.set_target(status("r0", healthy=False))
    store.unlist_targets(["chat/r0"])

    assert store.targets() == [status("r0", healthy=False)]
    assert len(store.read_samples(CHAT, ["x_bucket"], 0, NOW)) == 1
    store.set_target(status("r1"))
    assert [each.target_id for each in store.targets()] == ["chat/r0", "chat/r1"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_value_that_is_not_finite_gets_in(store: Store, value: float) -> None:
    """NaN and infinity are refused, and nothing of their row is kept."""
    store.set_target(status())
    with pytest.raises(StoreError, match="not finite"):
        store.append_figures(CHAT, NOW, {"a": 1.0, "b": value})
    with pytest.raises(StoreError, match="'chat/r0' is not finite"):
        store.append_scrape("chat/r0", NOW, snapshot(1.0, value))

    assert store.read_figures(CHAT, 0, NOW).times.tolist() == []
    assert read_scrapes(store, "chat/r0", 0, NOW) == []


def test_an_unknown_target_is_refused(store: Store) -> None:
    """Scrapes belong to a target whose identity is known."""
    with pytest.raises(StoreError, match="unknown target 'chat/r0'; set_target comes first"):
        store.append_scrape("chat/r0", NOW, None)


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    """What raises inside takes everything along, and the next transaction works."""

    def fail() -> None:
        with store.transaction():
            store.append_figures(CHAT, NOW, {"a": 1.0})
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    with store.transaction():
        store.append_figures(CODE, NOW, {"a": 1.0})

    assert store.deployments() == [CODE]


def test_retention_deletes_what_is_older(store: Store) -> None:
    """Figures and scrapes are deleted by age, then the targets, deployments and layouts that nothing refers to."""
    day = 86_400_000
    for target in (status("r0"), status("r9", deployment=CODE)):
        store.set_target(target)
    for hours in range(48):
        store.append_figures(CHAT, NOW + hours * 3_600_000, {"a": 1.0})
        store.append_scrape("chat/r0", NOW + hours * 3_600_000, snapshot(1.0))
    store.append_figures(CODE, NOW, {"b": 1.0})
    store.append_scrape("code/r9", NOW, snapshot(2.0, replica="r9"))
    store.unlist_targets(["chat/r0"])

    gone = store.prune(NOW + day)

    # A scrape an hour: each closes the block of the one before.
    assert gone == 24 + 24 + 24 + 1 + 1
    assert store.deployments() == [CHAT]
    assert store.time_range() == (NOW + day, NOW + 47 * 3_600_000)
    assert len(read_scrapes(store, "chat/r0", 0, NOW * 2)) == 24
    unused = "SELECT count(*) FROM layouts WHERE id NOT IN (SELECT layout FROM recent_scrapes UNION "
    unused += "SELECT layout FROM recent_figures UNION SELECT layout FROM recent_increments)"
    assert store._connection.execute(unused).fetchone() == (0,)
    assert store._connection.execute("SELECT count(*) FROM targets").fetchone() == (1,)


def test_retention_goes_in_small_steps(store: Store) -> None:
    """One call deletes no more than it may, so that writing is never held up for long; a block was closed as well."""
    store.set_target(status())
    for step in range(30):
        store.append_figures(CHAT, NOW + step, {"a": 1.0})
        store.append_scrape("chat/r0", NOW + step, snapshot(1.0))

    assert [store.prune(NOW + 100, rows=25) for _ in range(4)] == [25, 25, 11, 0]


def test_layouts_in_use_survive_retention(store: Store) -> None:
    """A list of series used for longer than the retention is not deleted under its rows, however old its first use."""
    store.set_target(status())
    for hours in range(72):
        store.append_figures(CHAT, NOW + hours * 3_600_000, {"a": float(hours)})
        store.append_scrape("chat/r0", NOW + hours * 3_600_000, snapshot(float(hours)))
        store.prune(NOW + (hours - 24) * 3_600_000)

    assert read_scrapes(store, "chat/r0", 0, NOW * 2)[-1][1] == samples(71.0)
    assert store.read_figures(CHAT, 0, NOW * 2).values["a"].tolist() == [float(hours) for hours in range(47, 72)]


def test_readers_read_while_it_is_written(path: Path, store: Store) -> None:
    """A reader sees whole transactions, and never holds up the writer."""
    store.append_figures(CHAT, NOW, {"a": 1.0})
    with Store(path, read_only=True) as reader:
        with store.transaction():
            store.append_figures(CHAT, NOW + 1, {"a": 2.0})
            before = reader.latest_figures()
        after = reader.latest_figures()

        assert (before, after) == ({CHAT: (NOW, {"a": 1.0})}, {CHAT: (NOW + 1, {"a": 2.0})})
        with pytest.raises(StoreError, match="attempt to write a readonly database"):
            reader.append_figures(CHAT, NOW, {"a": 1.0})


def test_threads_may_share_a_reader(path: Path, store: Store) -> None:
    """A console's threads read through one store."""
    for step in range(200):
        store.append_figures(CHAT, NOW + step, {"a": float(step)})
    found: list[int] = []
    with Store(path, read_only=True) as reader:
        threads = [
            threading.Thread(target=lambda: found.append(len(reader.read_figures(CHAT, 0, NOW * 2).times)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert found == [200] * 8


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_foreign_database_is_refused(path: Path, journal: str, read_only: bool) -> None:
    """It is left alone, and no lock and no log is created beside it."""
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    former = path.read_bytes()

    with pytest.raises(StoreError, match=r"servescope.db: the file belongs to another program \(application id 0\)"):
        Store(path, read_only=read_only)
    assert [(each, each.read_bytes()) for each in path.parent.iterdir()] == [(path, former)]


@pytest.mark.parametrize("begin", [Store, Store.begin, partial(Store, read_only=True)])
def test_a_file_that_is_no_database_is_refused(path: Path, begin: Callable[[Path], Store]) -> None:
    """It is left alone, also at the start of a collector, and nothing is created beside it."""
    path.write_text("not a database, but long enough to be looked at" * 100)
    former = path.read_bytes()

    with pytest.raises(StoreError, match="cannot be used as a store: file is not a database"):
        begin(path)
    assert [(each, each.read_bytes()) for each in path.parent.iterdir()] == [(path, former)]


@pytest.mark.parametrize("begin", [Store, Store.begin, partial(Store, read_only=True)])
@pytest.mark.parametrize(
    ("create", "kind"), [(Path.mkdir, "a directory"), (os.mkfifo, "not a regular file")], ids=["directory", "fifo"]
)
def test_what_is_no_file_is_refused(
    path: Path, begin: Callable[[Path], Store], create: Callable[[Path], None], kind: str
) -> None:
    """No later try can succeed, so a collector does not start; nothing is created beside it."""
    create(path)

    with pytest.raises(
        StorePathError, match=rf"^store '.*servescope.db' is {kind}, expected a collector's file$"
    ) as raised:
        begin(path)
    assert not raised.value.retryable
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("version", [0, 1, 2, 9])
def test_a_file_of_another_schema_is_refused(path: Path, version: int) -> None:
    """It is left alone, also at the start of a collector; the error names both versions and what to do."""
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    Path(f"{path}-lock").unlink()
    former = path.read_bytes()
    expected = (
        rf"servescope.db: has schema version {version}, this servescope expects 4; open it with the servescope that "
        "wrote it, or give another path for a new store"
    )

    for begin in (Store, Store.begin, partial(Store, read_only=True)):
        with pytest.raises(StoreError, match=expected):
            begin(path)
    assert [(each, each.read_bytes()) for each in path.parent.iterdir()] == [(path, former)]


def test_a_missing_store_is_said_to_be_missing(path: Path, tmp_path: Path) -> None:
    """A reader makes no file; a writer says when it cannot."""
    with pytest.raises(StoreError, match=r"no store at '.*servescope.db'; a running `servescope collect` makes one"):
        Store(path, read_only=True)
    assert not path.exists()
    with pytest.raises(StoreError, match=r"nowhere/x\.db: cannot be written: No such file or directory"):
        Store(tmp_path / "nowhere" / "x.db")
    path.touch()
    with pytest.raises(StoreError, match="the file is empty; a running `servescope collect` fills it"):
        Store(path, read_only=True)


def test_pages_are_large_and_the_log_is_ahead(store: Store) -> None:
    """16 KB pages, WAL, marked as ours."""
    names = ("page_size", "journal_mode", "application_id", "user_version")
    pragmas = [store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert pragmas == [16384, "wal", int.from_bytes(b"SVSC", "big"), 4]


def test_the_writer_writes_rounds_in_its_own_thread(path: Path, store: Store) -> None:
    """A round is there for readers once it was written; closing writes what waits and closes the store."""
    written: list[float] = []
    failed: list[object] = []
    writer = StoreWriter(store, on_written=written.append, on_error=failed.append, on_dropped=failed.append)
    for step in range(3):
        writer.submit(
            WriteBatch(
                scrapes=[("chat/r0", NOW + step, snapshot(float(step)))],
                figures=[(CHAT, NOW + step, {"a": float(step)})],
                targets=[status()],
            )
        )

    assert writer.close(deadline_seconds())
    assert (1 <= len(written) <= 3, failed) == (True, [])
    with Store(path, read_only=True) as reader:
        assert reader.read_figures(CHAT, 0, NOW * 2).values["a"].tolist() == [0.0, 1.0, 2.0]
        assert len(read_scrapes(reader, "chat/r0", 0, NOW * 2)) == 3
    Store(path).close()


def test_a_round_that_no_store_could_take_stops_no_other(path: Path, store: Store) -> None:
    """It is dropped and reported; what comes after it is written."""
    errors: list[StoreError] = []
    dropped: list[WriteBatch] = []
    writer = StoreWriter(store, on_written=lambda _: None, on_error=errors.append, on_dropped=dropped.append)
    writer.submit(WriteBatch(figures=[(CHAT, 1 << 80, {"a": 0.0})]))
    writer.submit(WriteBatch(figures=[(CHAT, NOW, {"a": 1.0})]))

    assert writer.close(deadline_seconds())
    assert [round_.figures[0][1] for round_ in dropped] == [1 << 80]
    assert ["cannot be stored" in str(error) for error in errors] == [True]
    with Store(path, read_only=True) as reader:
        assert reader.read_figures(CHAT, 0, NOW * 2).values["a"].tolist() == [1.0]
