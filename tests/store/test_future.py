"""What a clock that was ahead has left in a store: readers do not see it, and the writer drops it in one piece."""

from __future__ import annotations

import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servescope.contract.events import Event
from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, Snapshot, make_labels
from servescope.errors import UsageError
from servescope.increments.blocks import BLOCK_MS
from servescope.settings.clock import AHEAD_MS
from servescope.store.embedded import Store
from servescope.store.opening import open_history, read_time
from servescope.store.packing.layouts import SeriesLayouts
from servescope.store.prometheus.options import OPTIONS
from servescope.store.records import AheadError, KeptAlert, RecordedSettings, StoreError, TargetStatus, UntimelyError
from servescope.store.tables.future import FutureRows
from servescope.store.writer import RetentionLimits, StoreWriter, WriteBatch
from tests.support.commands import run
from tests.support.waiting import wait_for

CHAT = Deployment("llama", "chat", "v1")
T0 = 6_000_000 * BLOCK_MS
STEP = 15_000
EVER = 1 << 41
IDENTITY = Identity("llama", "chat", "v1", replica="r0")
TARGET = IDENTITY.target_id
TOKENS, QUEUED = (Series(name, make_labels({"replica": "r0"})) for name in ("output_tokens_total", "queued_requests"))
SETTINGS = RecordedSettings(300_000, 15_000, 15_000, "closed")
ALERT = KeptAlert("A", (("deployment_id", "chat"),), T0, T0, None, None, {"hook": (T0, "firing", T0)}, 1.0)


def at(step: float) -> int:
    return T0 + round(step * STEP)


def status(step: int) -> TargetStatus:
    return TargetStatus(TARGET, "http://r0/metrics", IDENTITY, "vllm", "", True, at(step), at(step), 0.01, 2, None)


def fill(store: Store, steps: range, *, real: float | None = None) -> None:
    """Scrape and evaluate at some steps; a token each, counted up to step `real` where that is another time's."""
    ahead = 0.0 if real is None else steps[0] - real
    with store.transaction():
        store.set_target(status(steps[-1]))
        for step in steps:
            store.append_scrape(TARGET, at(step), Snapshot((TOKENS, QUEUED), np.array([1e6 + step - ahead, 2.0])))
            store.append_figures(CHAT, at(step), {"request_rate": float(step)})
            store.append_sums(at(step), {CHAT: [1.0, float(step)]})
        store.append_events([Event(at(steps[-1]), "alert_fired", (("alertname", f"A{steps[-1]}"),), "A fires")])


def pack(store: Store) -> None:
    while store.pack_due() or store.pack_idle(EVER):
        pass


def everything(store: Store) -> dict[str, Any]:
    """All that a reader gets."""
    (increments,) = store.read_increments(CHAT, ["output_tokens_total", "queued_requests"], 0, EVER) or (None,)
    (window,) = store.read_samples(CHAT, ["output_tokens_total"], 0, EVER) or (None,)
    figures = store.read_figures(CHAT, 0, EVER)
    return {
        "scrapes": [(time, each and each.values.tolist()) for time, each in store.read_scrapes(TARGET, 0, EVER)],
        "samples": window and (window.times.tolist(), window.values.tolist()),
        "figures": (figures.times.tolist(), {key: each.tolist() for key, each in figures.values.items()}),
        "thinned": store.read_figures(CHAT, 0, EVER, max_points=7).times.tolist(),
        "latest": store.latest_figures(),
        "increments": increments
        and (
            increments.blocks.tolist(),
            np.nan_to_num(increments.gains, nan=-1.0).tolist(),
            increments.levels.tolist(),
        ),
        "ranges": (store.time_range(), store.held_range()),
        "sums": store.read_sums(until_ms=EVER),
        "alerts": store.read_alerts(),
        "statuses": [(each.last_scrape_ms, each.last_success_ms, each.healthy) for each in store.targets()],
        "settings": store.settings_at(EVER),
    }


ROWS: dict[str, Callable[[Store], None]] = {"recent": lambda _: None, "packed": pack}


@pytest.mark.slow
@pytest.mark.parametrize("kept", ROWS)
@pytest.mark.parametrize("now", [303.0, 461.3, 579.0])
def test_what_is_later_than_the_clock_is_as_if_it_had_never_been(tmp_path: Path, now: float, kept: str) -> None:
    """For a reader by the clock, and for everybody once it is dropped: also blocks that are computed afterwards."""
    steps = range(int(now) + 1)
    with Store(tmp_path / "a.db") as ahead, Store(tmp_path / "b.db") as right:
        for each in (ahead, right):
            each.record_settings(at(0), SETTINGS)
            fill(each, steps)
            ROWS[kept](each)
        fill(ahead, range(500 if now < 500 else 580, 600), real=now)
        ROWS[kept](ahead)
        with Store(tmp_path / "a.db", read_only=True, now_ms=lambda: at(now)) as reader:
            seen = everything(reader)
        ahead.now_ms = lambda: at(now)
        event = ahead.drop_future()
        expected = everything(right)
        # A status of the future says no more than when its target was scraped last.
        expected["statuses"] = [(at(steps[-1]), None, False)]
        assert event is not None
        assert everything(ahead) == expected
        assert seen == expected
        ahead.now_ms = right.now_ms = lambda: EVER
        with Store(tmp_path / "a.db", read_only=True) as reader:
            assert everything(reader) == expected
        for each in (ahead, right):
            fill(each, range(steps[-1] + 1, 700))
            each.close_blocks(EVER)
        assert everything(ahead) == everything(right)


@pytest.mark.parametrize("kept", ROWS)
def test_only_the_clock_that_was_ahead_is_in_the_store(store: Store, kept: str) -> None:
    """All of it goes, and what the targets are stays."""
    fill(store, range(40))
    ROWS[kept](store)
    store.now_ms = lambda: at(-40)
    event = store.drop_future()
    assert event is not None
    assert (store.time_range(), store.held_range(), store.read_scrapes(TARGET, 0, EVER)) == (None, None, [])
    assert [(each.target_id, each.last_scrape_ms) for each in store.targets()] == [(TARGET, None)]
    assert store.deployments() == [CHAT]
    store.now_ms = lambda: at(0)
    fill(store, range(-39, 0))
    assert store.time_range() == (at(-39), at(-1))


def test_the_event_log_says_what_was_dropped(store: Store) -> None:
    """Events themselves happened, if not later than now: they stay, in their order."""
    fill(store, range(41))
    fill(store, range(100, 140), real=41)
    store.append_events([Event(at(200), "deploy", (), "chat 1.5", (("by", "ci"),))])
    store.now_ms = lambda: at(50)
    event = store.drop_future()
    assert event == Event(
        at(50), "clock_set_back", (),
        "the clock was set back from 2027-01-15T08:50:00Z to 2027-01-15T08:12:30Z: what was stored as later is "
        "dropped, 40 scrapes and 40 evaluations",
        (
            ("from_ms", str(at(200))), ("to_ms", str(at(50))), ("first_ms", str(at(100))),
            ("missing_from_ms", str(at(11))),
            ("scrapes", "40"), ("figures", "40"), ("increments", "2"),
        ),
    )  # fmt: skip
    assert [(each.time_ms, each.kind, each.text) for each in store.read_events(0, EVER)] == [
        (at(40), "alert_fired", "A fires"),
        (at(50), "alert_fired", "A fires"),
        (at(50), "deploy", "chat 1.5"),
        (at(50), "clock_set_back", event.text),
    ]
    assert store.drop_future() is None


@pytest.mark.parametrize(
    "append",
    [
        lambda store: store.append_events([Event(at(90), "deploy", (), "chat 1.5")]),
        lambda store: store.record_settings(at(90), SETTINGS),
        lambda store: store.append_sums(at(90), {CHAT: [1.0]}),
    ],
    ids=["event", "settings", "sums"],
)
def test_what_is_later_is_found_without_a_scrape_or_figures(store: Store, append: Callable[[Store], None]) -> None:
    """As a clock that was set back twice leaves it, or one that was ahead of a collector without targets."""
    store.now_ms = lambda: at(90)
    assert store.drop_future() is None
    append(store)
    store.now_ms = lambda: at(50)
    event = store.drop_future()
    assert event is not None
    assert dict(event.detail)["from_ms"] == str(at(90))
    assert {each.time_ms for each in store.read_events(0, EVER)} == {at(50)}
    assert store.drop_future() is None


def test_alerts_settings_and_statuses_are_not_of_later_than_now(store: Store) -> None:
    """They are as of now: an alert still fires, and figures are derived as they were last."""
    other = replace(SETTINGS, window_ms=600_000)
    fill(store, range(40))
    store.record_settings(at(0), SETTINGS)
    store.record_settings(at(90), other)
    ahead = replace(ALERT, since_ms=at(90), fired_ms=at(91), kept_ms=at(92), sent={"hook": (at(91), "firing", at(93))})
    store.write_alerts([ALERT, ahead])
    fill(store, range(90, 100), real=40)
    store.now_ms = lambda: at(50)
    for is_dropped in (False, True):
        assert is_dropped == (is_dropped and store.drop_future() is not None)
        assert store.read_alerts() == [ALERT, replace(ALERT, since_ms=at(50), fired_ms=at(50), kept_ms=at(50),
                                        sent={"hook": (at(50), "firing", at(50))})]  # fmt: skip
    assert store.settings_at(at(49)) == SETTINGS
    assert store.settings_at(at(51)) == other
    (found,) = store.targets()
    assert (found.last_scrape_ms, found.last_success_ms, found.healthy) == (at(39), None, False)
    assert found.error == "its last scrape is of 2027-01-15T08:24:45Z, later than now: the clock was set back"


def test_a_small_correction_of_the_clock_drops_nothing(store: Store) -> None:
    """NTP makes them all day."""
    fill(store, range(40))
    store.now_ms = lambda: at(39) - AHEAD_MS
    assert store.drop_future() is None
    assert len(store.read_scrapes(TARGET, 0, EVER)) == 40
    store.now_ms = lambda: at(39) - AHEAD_MS - 1
    assert store.drop_future() is not None
    assert len(store.read_scrapes(TARGET, 0, EVER)) == 39


def test_more_than_an_hour_is_dropped_only_once_the_clock_is_believed(store: Store) -> None:
    """A clock that is a year behind for a minute costs no history; a reader by it sees nothing meanwhile."""
    fill(store, range(600))
    pack(store)
    former = everything(store)
    for now in (at(0) - 365 * 86_400_000, at(200)):
        store.now_ms = lambda now=now: now  # type: ignore[misc]
        with pytest.raises(AheadError, match=r"the clock shows .*, but .* hours of what is stored are later, until "):
            store.drop_future()
    store.now_ms = lambda: EVER
    assert everything(store) == former
    store.now_ms = lambda: at(200)
    assert store.drop_future(believed=True) is not None
    assert len(store.read_scrapes(TARGET, 0, EVER)) == 201


def test_what_is_of_another_time_is_refused_by_name(store: Store) -> None:
    """What is later than now; and of scrapes that follow each other, what comes before the last."""
    store.set_target(status(0))
    one = Snapshot((TOKENS,), np.array([1.0]))
    store.now_ms = lambda: at(10)
    store.append_scrape(TARGET, at(10) + AHEAD_MS, one, follows=True)
    appends: list[tuple[Callable[[int], None], str]] = [
        (lambda time: store.append_scrape(TARGET, time, one), f"a scrape of '{TARGET}'"),
        (lambda time: store.append_figures(CHAT, time, {"request_rate": 1.0}), "the figures of 'chat'"),
        (lambda time: store.append_sums(time, {CHAT: [1.0]}), "the sums of objectives"),
    ]
    for append, what in appends:
        with pytest.raises(UntimelyError, match=f"{what} of .*11:15Z is refused: it is later than now, .*02:30Z"):
            append(at(45))
    with pytest.raises(
        UntimelyError, match=r"02:15Z is refused: it is before what is stored, until .*02:35Z"
    ) as raised:
        store.append_scrape(TARGET, at(9), one, follows=True)
    assert raised.value.numbers == 1
    # A past that is imported comes in any order.
    store.append_scrape(TARGET, at(8), one)
    assert [time for time, _ in store.read_scrapes(TARGET, 0, EVER)] == [at(8), at(10) + AHEAD_MS]


def test_it_is_dropped_as_a_whole_or_not_at_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies, or fails, half-way leaves the store as it was."""
    fill(store, range(300))
    pack(store)
    fill(store, range(400, 420), real=300)
    former = everything(store)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    store.now_ms = lambda: at(290)
    with monkeypatch.context() as patched:
        patched.setattr(SeriesLayouts, "forget_after", fail)
        with pytest.raises(ZeroDivisionError):
            store.drop_future()
    store.now_ms = lambda: EVER
    assert everything(store) == former
    store.now_ms = lambda: at(290)
    assert store.drop_future() is not None
    assert len(store.read_scrapes(TARGET, 0, EVER)) == 291


def test_names_of_series_stay_as_long_as_rows_have_them(store: Store) -> None:
    """A layout that was marked as used a year ahead is used from now on, for rows that are read for days."""
    fill(store, range(10))
    year = 365 * 24 * 240
    fill(store, range(year, year + 10), real=10)
    store.now_ms = lambda: at(10)
    assert store.drop_future() is not None
    for hour in range(6):
        steps = range(11 + hour * 240, 251 + hour * 240)
        store.now_ms = lambda last=steps[-1]: at(last)  # type: ignore[misc]
        pack(store)
        fill(store, steps)
        store.prune(0)
        assert len(store.read_scrapes(TARGET, at(11), EVER)) == steps[-1] - 10
        for table in ("layouts", "shapes"):
            with closing(store._connection.execute(f"SELECT max(used_ms) FROM {table}")) as used:
                assert used.fetchone()[0] <= at(steps[-1])


def test_a_damaged_run_that_reaches_into_the_future_is_dropped(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can divide it; what lies before it stays."""
    fill(store, range(240))
    pack(store)
    fill(store, range(240, 480))
    pack(store)
    (run,) = store._connection.execute("SELECT max(id) FROM runs WHERE kind = 0").fetchone()
    store._connection.execute("UPDATE chunks SET body = x'00' WHERE id >> 16 = ?", (run,))
    store.now_ms = lambda: at(470)
    assert store.drop_future() is not None
    assert "it is dropped, as it has rows later than now" in caplog.text
    assert [time for time, _ in store.read_scrapes(TARGET, 0, EVER)][-1] < at(300)


def test_damaged_states_keep_nothing_from_being_dropped(store: Store) -> None:
    """Of alerts and targets: what is kept next replaces them."""
    fill(store, range(40))
    store.write_alerts([ALERT])
    store._connection.execute("UPDATE alerts SET state = '[]'")
    store._connection.execute("UPDATE statuses SET status = '[]'")
    store.now_ms = lambda: at(30)
    assert store.drop_future() is not None
    with pytest.raises(StoreError, match="damaged"):
        store.read_alerts()
    assert len(store.read_scrapes(TARGET, 0, EVER)) == 31


class Writing:
    """A writer by a clock that a test sets, and what it reported."""

    def __init__(self, path: Path) -> None:
        self.path, self.now_ms = path, at(0)
        self.set_back: list[Event] = []
        self.refused: list[UntimelyError] = []
        self.errors: list[object] = []
        self.begin()

    def begin(self) -> None:
        """Begin to write."""
        self.store = Store(self.path, now_ms=lambda: self.now_ms)
        self.writer = StoreWriter(
            self.store,
            on_written=lambda _: None,
            on_error=self.errors.append,
            on_dropped=self.errors.append,
            on_set_back=self.set_back.append,
            on_refused=self.refused.extend,
        )

    def scrape(self, step: int, *, clock: float | None = None, keep: RetentionLimits | None = None) -> None:
        """Submit a scrape and an evaluation of a step, by a clock that shows that step unless it is another."""
        self.now_ms = at(step if clock is None else clock)
        self.writer.submit(
            WriteBatch(
                scrapes=[(TARGET, at(step), Snapshot((TOKENS,), np.array([float(step)])))],
                figures=[(CHAT, at(step), {"request_rate": 1.0})],
                sums=(at(step), {CHAT: [1.0, 1.0]}),
                targets=[status(step)],
                keep=keep,
            )
        )
        wait_for(lambda: not self.writer.backlog(), "the store")

    def stored(self) -> list[int]:
        with Store(self.store.path, read_only=True) as reader:
            return [(time - T0) // STEP for time, _ in reader.read_scrapes(TARGET, 0, EVER)]


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    made = Writing(tmp_path / "servescope.db")
    yield made
    made.writer.close()
    assert made.errors == []


def test_the_writer_drops_what_is_later_before_it_writes_on(writing: Writing) -> None:
    for step in (*range(10), *range(50, 54), *range(14, 20)):
        writing.scrape(step)
    assert writing.stored() == [*range(10), *range(14, 20)]
    assert [dict(event.detail)["scrapes"] for event in writing.set_back] == ["4"]
    assert writing.refused == []


def test_what_waited_while_the_clock_was_set_back_is_refused(writing: Writing) -> None:
    """A round of a time that is later than now by the time it is written, and one before what is stored."""
    writing.scrape(10)
    writing.scrape(50, clock=11)
    writing.scrape(9, clock=11)
    assert writing.stored() == [10]
    assert [str(error).split(" is refused: it is ")[1][:12] for error in writing.refused] == [
        *["later than n"] * 3, *["before what "] * 3,
    ]  # fmt: skip


def test_a_clock_far_behind_stores_nothing_and_costs_nothing(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is right again; one that stays so for an hour is believed."""
    monkeypatch.setattr("servescope.store.writer._VERIFY_SECONDS", 0.0)
    writing.now_ms = at(600)
    fill(writing.store, range(600))
    for step in range(100, 104):
        writing.scrape(step)
    held = writing.writer.held
    assert held is not None
    assert "2.0 hours of what is stored are later" in held
    assert len(writing.refused) == 3 * 4
    assert (writing.stored(), len(writing.store.read_sums(until_ms=EVER))) == ([*range(600)], 104)
    writing.scrape(601)
    assert (writing.stored()[-2:], writing.writer.held, writing.set_back) == ([599, 601], None, [])
    writing.scrape(100)
    monkeypatch.setattr("servescope.store.writer._BELIEVED_SECONDS", 0.0)
    writing.scrape(101)
    assert writing.stored() == [*range(102)]
    assert (writing.writer.held, len(writing.set_back)) == (None, 1)


def test_retention_by_a_clock_that_was_set_forward_waits_for_an_hour(writing: Writing) -> None:
    """Also where the collector began meanwhile, and again and again."""
    for step in range(10):
        writing.scrape(step)
    ahead = 30 * 5_760
    for minute in range(0, 64, 2):
        step = ahead + 4 * minute
        keep = RetentionLimits(at(step) - 86_400_000, at(step) - 86_400_000, None, at(step))
        writing.scrape(step, keep=keep)
        if minute in (10, 20, 30):
            writing.writer.close()
            writing.begin()
        wait_for(lambda: writing.writer._keep is None, "retention")
        if minute < 60:
            assert writing.stored()[:10] == [*range(10)]
    assert writing.stored()[0] == ahead


def test_what_is_too_old_goes_also_where_no_target_is_left(writing: Writing) -> None:
    """A collector without deployments stores no figures any more, but time passes."""
    for step in range(10):
        writing.scrape(step)
    for step in range(10, 1_000, 10):
        writing.now_ms = at(step)
        day = RetentionLimits(at(step) - 7_200_000, 0, None, at(step))
        writing.writer.submit(WriteBatch(sums=(at(step), {}), keep=day if step == 990 else None))
    wait_for(lambda: not writing.stored(), "retention")


def test_another_file_at_the_path_is_cleaned_as_well(writing: Writing, tmp_path: Path) -> None:
    """Such as a copy from while the clock was ahead."""
    for step in (*range(10), 100, 101):
        writing.scrape(step)
    with Store(writing.store.path, read_only=True) as reader:
        shutil.copyfile(reader.path, tmp_path / "copy")
        reader._connection.execute("VACUUM INTO ?", (str(tmp_path / "whole"),))
    writing.scrape(12)
    (tmp_path / "whole").replace(writing.store.path)
    writing.scrape(13)
    assert writing.stored() == [*range(10), 13]
    writing.errors.clear()


def test_future_rows_are_counted_by_blocks(store: Store) -> None:
    """Wherever they are: the most of any target."""
    fill(store, range(600))
    for _ in range(2):
        future: FutureRows = store._future
        assert future.covered_ms(at(400)) == 9 * BLOCK_MS
        pack(store)


def test_commands_read_nothing_of_later_than_now(tmp_path: Path) -> None:
    """By the clock of the program, whatever the store has."""
    path, now_ms = tmp_path / "servescope.db", round(time.time() * 1000)
    with Store(path) as written:
        for seconds in (-60, -45, 540, 555):
            at_ms = now_ms + seconds * 1000
            written.set_target(replace(status(0), last_scrape_ms=at_ms, last_success_ms=at_ms))
            written.append_scrape(TARGET, at_ms, Snapshot((TOKENS,), np.array([float(seconds + 100)])))
            written.append_figures(CHAT, at_ms, {"request_rate": 1.0})
    out = tmp_path / "out.txt"
    done = run("export", "--store", str(path), "--format", "openmetrics", "--out", str(out))
    assert done.returncode == 0
    stamps = [float(line.split()[-1]) for line in out.read_text().splitlines() if not line.startswith("#")]
    assert sorted(set(stamps)) == [(now_ms + seconds * 1000) / 1000 for seconds in (-60, -45)]
    with open_history(Namespace(store=path, prometheus=None, **dict.fromkeys(OPTIONS))) as past:
        assert past.time_range() == (now_ms - 60_000, now_ms - 45_000)
        assert [each.last_success_ms for each in past.targets()] == [None]
    with pytest.raises(UsageError, match=r"--at '2099-01-01T00:00:00Z' is later than now, "):
        read_time("--at", "2099-01-01T00:00:00Z")
