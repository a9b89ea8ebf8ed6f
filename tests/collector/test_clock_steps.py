"""A collector's clock that is ahead for a while, or behind: what it stores and shows, then and afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import aclosing, suppress
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from servescope.collector.evaluation import Evaluation
from servescope.collector.scrapes.pacing import Host
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.contract.samples import Sample
from servescope.increments.accumulation import GAP_INTERVALS
from servescope.increments.blocks import BLOCK_MS
from servescope.settings.clock import AHEAD_MS, CLOCK_VARIABLE, EmulatedTime
from servescope.store.embedded import Store
from tests.collector.support import paging
from tests.collector.support.skewed_collector import EVERY, PER_SECOND, Skewed, gained, increase
from tests.support.answering import Handler, answering
from tests.support.collect_command import collecting, wait_until
from tests.support.drawing import examples
from tests.support.prometheus import free_port
from tests.support.served_collector import run_for_a_while, scene
from tests.support.stepped_collector import CHAT, START
from tests.support.waiting import wait_for

RATE = "output_tokens_per_second"
NAME = "ServescopeReplicasFailed"
YEAR = 365 * 86_400.0


def value(families: Iterable[object], name: str, **labels: str) -> float:
    """A series of the collector's own."""
    samples: list[Sample] = [sample for family in families for sample in family.samples]  # type: ignore[attr-defined]
    (found,) = [each.value for each in samples if each.name == name and dict(each.labels) == labels]
    return float(found)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", ["never", "while ahead", "afterwards", "twice"])
@pytest.mark.parametrize("ahead", [pytest.param(600.0, marks=pytest.mark.proof), YEAR])
async def test_a_clock_that_was_ahead_for_a_minute_leaves_nothing(
    tmp_path: Path, ahead: float, restarts: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is stored grows by the truth, nothing of it is later than the clock, and figures are right at once."""
    world = Skewed(tmp_path)
    async with aclosing(world):
        await world.count(24)
        world.set_clock(ahead)
        await world.count(2)
        if restarts in ("while ahead", "twice"):
            await world.restart()
        await world.count(2)
        world.settle()
        caplog.clear()
        if restarts in ("afterwards", "twice"):
            await world.restart(ahead=0.0)
        world.set_clock(0.0)
        after = await world.count(4)
        newest, now = world.newest(), world.seconds
        await world.count(20)
        world.settle()

        scrapes = world.scrapes()
        assert [time for time, _ in scrapes] == [START + EVERY * n for n in (*range(1, 25), *range(29, 53))]
        assert increase([count for _, count in scrapes]) == PER_SECOND * EVERY * 51
        assert counted(world) == 2 * PER_SECOND * EVERY * 51
        assert newest <= now
        assert [figures[RATE] for figures in after] == pytest.approx([2 * PER_SECOND] * 4)
        (event,) = world.events()
        assert event.text.startswith("the clock was set back from ")
        assert dict(event.detail)["scrapes"] == "8"
        assert int(dict(event.detail)["from_ms"]) == round((START + EVERY * 28 + ahead) * 1000)
        assert sum(record.getMessage() == event.text for record in caplog.records) == 1
        assert event.text in (world.collector.recorder.clock_problem or "")
        await world.count(1, every=3600.0)
        assert world.collector.recorder.clock_problem is None


@pytest.mark.slow
async def test_small_corrections_of_the_clock_drop_nothing(tmp_path: Path) -> None:
    """NTP sets it a few seconds back and forth, also while the collector is restarted."""
    world = Skewed(tmp_path)
    async with aclosing(world):
        await world.count(4)
        for ahead in (3.0, 0.0, -3.0, 1.0, -4.0, 0.0):
            world.set_clock(ahead)
            await world.count(2)
            await world.restart()
            await world.count(2)
        assert len(world.scrapes()) == 28
        assert world.events() == []
        assert value(world.collector.telemetry.collect(), "servescope_clock_steps_total", direction="back") == 0
        # One that comes before the last one is left out, and says so.
        world.set_clock(-4.0)
        await world.count(1, every=1.0)
        (status, _) = (watched.status for watched in world.collector.fleet.watched)
        assert "the clock was set; a scrape of 2027-01-15 08:06:57 UTC is dropped, as it is" in (status.error or "")
        assert len(world.scrapes()) == 28


@pytest.mark.slow
async def test_a_clock_that_is_far_behind_for_a_minute_costs_that_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No history; figures and alerts go on meanwhile, and why nothing is stored is said by name."""
    monkeypatch.setattr("servescope.store.writer._VERIFY_SECONDS", 0.0)
    world = Skewed(tmp_path)
    async with aclosing(world):
        await world.count(80, every=60.0)
        former = world.scrapes()
        for ahead in (-YEAR, -3 * 3600.0):
            world.set_clock(ahead)
            (_, figures) = await world.count(2)
            assert figures["queued_requests"] == 4.0
            world.settle()
            assert world.scrapes() == former
            assert "hours of what is stored are later, until 2027-01-15T09:2" in (
                world.collector.recorder.clock_problem or ""
            )
            assert world.collector.store_problem == world.collector.recorder.clock_problem
            await world.restart()
            await world.count(2)
            assert world.scrapes() == former
            world.set_clock(0.0)
            await world.count(1)
            former = world.scrapes()
        await world.count(20)
        scrapes = world.scrapes()
        assert len(scrapes) == 80 + 2 + 20
        assert increase([count for _, count in scrapes]) == PER_SECOND * (world.true - START - 60.0)
        assert (world.collector.recorder.clock_problem, world.events()) == (None, [])


async def test_a_scrape_that_ran_while_the_clock_was_set_back_is_of_no_time(tmp_path: Path) -> None:
    """It began by the clock that was ahead: it is left out by name, and the next one is as good as any."""
    world = Skewed(tmp_path)
    async with aclosing(world):
        await world.count(4)
        world.set_clock(600.0)
        await world.count(2)
        fetch = world.fetch

        async def fetch_slowly(target: Target, limits: Limits, /) -> bytes:
            world.set_clock(0.0)
            return await fetch(target, limits)

        watched = world.collector.fleet.watched[0]
        world.collector.scraping._fetch = fetch_slowly
        scrape = await world.collector.scraping.scrape(watched)
        assert scrape.outcome == "clock"
        assert "a scrape of 2027-01-15 08:11:30 UTC is dropped, as it is 2027-01-15 08:01:30 UTC" in (
            scrape.error or ""
        )
        assert value(world.collector.telemetry.collect(), "servescope_scrapes_total", outcome="clock") == 1
        await world.count(4)
        assert [time - START for time, _ in world.scrapes()] == [EVERY * n for n in (1, 2, 3, 4, 7, 8, 9, 10)]


async def test_a_target_waits_no_longer_than_it_asked_to(tmp_path: Path) -> None:
    """What it asked for while the clock was ahead ends as long after now as it did then; so does its host's limit."""
    world = Skewed(tmp_path)
    async with aclosing(world):
        await world.count(2)
        world.set_clock(600.0)
        await world.count(1)
        watched = world.collector.fleet.watched[0]
        watched.held_until_ms = world.collector.clock.now_ms + 60_000
        host = Host()
        host.apart_ms, host.targets = 1_000, 1
        host.hold(watched.held_until_ms)
        world.collector.fleet.pacer._hosts = {watched.target.host: host}
        world.set_clock(0.0)
        await world.count(1)
        assert watched.held_until_ms == world.collector.clock.now_ms + 60_000
        assert host.reserve(world.collector.clock.now_ms) == watched.held_until_ms


async def test_no_evaluation_is_of_later_than_now(tmp_path: Path) -> None:
    """One that was due when the clock was set back is left out; the next is due by the clock as it is."""
    world = Skewed(tmp_path)
    instants: list[int] = []
    async with aclosing(world):
        await world.count(4)
        loop = world.collector.evaluating
        evaluate = loop.evaluate

        async def sleep(seconds: float) -> None:
            world.pass_seconds(seconds)
            if len(instants) == 3:
                world.set_clock(-600.0)
            if len(instants) == 6:
                raise asyncio.CancelledError

        def noting(at_ms: int) -> Evaluation:
            instants.append(at_ms - START * 1000)
            assert at_ms <= world.collector.clock.now_ms
            return evaluate(at_ms)

        world.collector.clock.sleep = sleep
        loop.evaluate = noting  # type: ignore[method-assign]
        with suppress(asyncio.CancelledError):
            await loop.run()
    assert instants == [75_000, 90_000, 105_000, -465_000, -450_000, -435_000]


async def test_the_api_and_the_page_name_what_a_clock_costs(tmp_path: Path) -> None:
    """How often it was set, what was dropped and refused; and the reason, for an hour."""
    async with scene(tmp_path) as stage:
        await run_for_a_while(stage)
        assert (await stage.get_json("/api/v1/status"))["clock_problem"] is None
        for ahead in (600.0, -600.0, 86_400.0, -86_400.0):
            await stage.written()
            await stage.step(15.0 + ahead)
        await stage.written()
        shown = await stage.get_json("/api/v1/status")
        assert "Z: the clock was set back from 2027-01-" in shown["clock_problem"]
        assert shown["store"]["newest_ms"] <= shown["time_ms"]
        found = {
            name: value for (name, labels), value in (await stage.series()).items() if "direction" not in dict(labels)
        }
        # Each time four scrapes, the figures of two deployments, and the four blocks that the leap had closed.
        assert found["servescope_store_future_rows_total"] == 2 * (4 + 2 + 4)
        steps = {
            dict(labels)["direction"]: count
            for (name, labels), count in (await stage.series()).items()
            if name == "servescope_clock_steps_total"
        }
        assert steps == {"back": 2, "forward": 1}
        events = (await stage.get_json("/api/v1/events"))["events"]
        assert [event["kind"] for event in events].count("clock_set_back") == 2
        await stage.step(3600.0)
        assert (await stage.get_json("/api/v1/status"))["clock_problem"] is None


@pytest.mark.slow
async def test_sums_of_objectives_outlast_a_clock_that_is_a_year_ahead(tmp_path: Path) -> None:
    """What was counted before is neither thinned out by it nor forgotten, in the store and in memory."""
    world = Skewed(tmp_path)
    async with aclosing(world):
        await world.count(30)
        world.settle()
        former = world.collector.recorder.history.read_sums(until_ms=1 << 41)
        world.set_clock(YEAR)
        await world.count(140)
        world.settle()
        world.set_clock(0.0)
        await world.count(70)
        world.settle()
        after = world.collector.recorder.history.read_sums(until_ms=1 << 41)
        assert after[:30] == former
        kept = world.collector.alerts.view.budgets._kept.times.tolist()
        assert kept == [time_ms for time_ms, _ in after]
        # All that was counted, whatever the clock showed.
        ((_, first), (_, last)) = after[0], after[-1]
        grown = np.array(last[CHAT]) - np.array(first[CHAT])
        assert grown.max() == 2 * PER_SECOND * EVERY * 239


def counted(world: Skewed) -> float:
    """How many requests of both targets were counted for objectives."""
    with world.raw() as store:
        sums = store.read_sums(until_ms=1 << 41)
    return max(sums[-1][1][CHAT][1:])


@pytest.mark.slow
async def test_alerts_are_of_no_later_than_now_and_notify_nobody_twice(tmp_path: Path) -> None:
    """One that fired while the clock was ahead goes on firing, since it was set right; its end is sent once."""
    async with aclosing(paging.Scene(tmp_path, paging.WEBHOOK)) as scene:
        await scene.steps(2)
        scene.seconds += 600
        scene.failed = 1
        await scene.steps(21)
        sent = scene.receivers.sent(NAME)
        assert [state for _, state, _ in sent] == ["firing"]
        scene.seconds -= 600
        await scene.step()
        now_ms = scene.collector.clock.now_ms
        (alert,) = (each for each in scene.collector.alerts.shown if each.name == NAME)
        assert (alert.state, alert.fired_ms) == ("firing", now_ms)
        await scene.steps(8)
        assert scene.receivers.sent(NAME) == sent
        await scene.restart()
        await scene.steps(2)
        assert scene.receivers.sent(NAME) == sent
        wait_for(lambda: not scene.collector.recorder.backlog(), "the store")
        with Store(tmp_path / "servescope.db", read_only=True) as store:
            (kept,) = (each for each in store.read_alerts() if each.alert == NAME)
            assert max(kept.since_ms, kept.fired_ms or 0, *(last for *_, last in kept.sent.values())) <= now_ms
            fired = [event for event in store.read_events(0, 1 << 41) if event.kind == "alert_fired"]
        assert len([event for event in fired if NAME in event.text]) == 1
        scene.failed = 0
        await scene.steps(25)
        assert [state for _, state, _ in scene.receivers.sent(NAME)] == ["firing", "resolved"]


AHEAD = st.sampled_from([0.0, 1.0, -1.0, 3.0, -3.0, 20.0, -20.0, 150.0, -150.0, 600.0, -600.0, 86_400.0, YEAR, -YEAR])
ACTS = st.one_of(
    st.tuples(st.just("count"), st.integers(1, 8)),
    st.tuples(st.just("clock"), AHEAD),
    st.tuples(st.just("restart"), AHEAD),
    st.tuples(st.just("restart"), st.none()),
)
SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def check(world: Skewed, figures: list[dict[str, float]]) -> None:
    """Nothing is of later than now, nothing is counted twice, and nothing is missing but in a gap that is seen."""
    truth = PER_SECOND * (world.true - START)
    assert world.newest() <= world.seconds + AHEAD_MS / 1000
    scrapes = world.scrapes()
    times, counts = [time for time, _ in scrapes], [count for _, count in scrapes]
    assert times == sorted(times)
    assert counts == sorted(counts)
    assert increase(counts) == counts[-1] - counts[0] <= truth
    far = sum(
        later - earlier
        for (before, earlier), (after, later) in pairwise(scrapes)
        if after - before > GAP_INTERVALS * EVERY
    )
    blocks = world.increments()
    if blocks is not None:
        closed_ms = int(blocks.blocks[-1]) + BLOCK_MS
        closed = [count for time, count in scrapes if time * 1000 <= closed_ms]
        assert gained(blocks) <= closed[-1] - closed[0]
        assert gained(blocks) >= closed[-1] - closed[0] - far
    assert counted(world) <= 2 * truth
    for each in figures:
        # Of both targets; what two scrapes show is extrapolated to twice their distance at most.
        assert 0 <= each.get(RATE, 0.0) * 300.0 <= 2 * 2 * truth + 1e-6


async def play_steps(folder: Path, acts: list[tuple[str, float | None]]) -> None:
    async with aclosing(Skewed(folder)) as world:
        seen = await world.count(4)
        for kind, value in acts:
            if kind == "clock":
                world.set_clock(value or 0.0)
            elif kind == "restart":
                await world.restart(ahead=value)
            else:
                seen += await world.count(int(value or 0))
                world.settle()
                check(world, seen)
        world.set_clock(0.0)
        seen += await world.count(46)
        check(world, seen)
        assert seen[-1][RATE] == pytest.approx(2 * PER_SECOND)


@pytest.mark.slow
@settings(SLOW, max_examples=examples(25))
# Set back twice: when it is for the second time, the store has nothing but the event of the first.
@example([("clock", -600.0), ("restart", -YEAR), ("count", 1)])
@given(st.lists(ACTS, max_size=10))
def test_whatever_is_done_to_the_clock_the_truth_is_stored(acts: list[tuple[str, float | None]]) -> None:
    """Over any steps of the clock, restarts and scrapes."""
    with TemporaryDirectory() as folder:
        asyncio.run(play_steps(Path(folder), acts))


@pytest.mark.proof
@settings(SLOW, max_examples=300)
@given(st.lists(ACTS, max_size=24))
def test_whatever_is_done_to_the_clock_at_length(acts: list[tuple[str, float | None]]) -> None:
    """The same over more and longer sequences."""
    with TemporaryDirectory() as folder:
        asyncio.run(play_steps(Path(folder), acts))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_a_collectors_clock_is_set_forward_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Ten minutes ahead for a while; the process goes on, or is killed and started again after it was set right."""
    clock, store = tmp_path / "clock", tmp_path / "servescope.db"
    monkeypatch.setenv(CLOCK_VARIABLE, str(clock))

    def set_clock(ahead: float) -> None:
        EmulatedTime(time.time(), time.time() + ahead, 1.0).write(clock)

    def read() -> list[tuple[int, float]]:
        with Store(store, read_only=True) as opened:
            found = [opened.read_scrapes(each.target_id, 0, 1 << 41) for each in opened.targets()]
        return [(time_ms, float(snapshot.values[0])) for time_ms, snapshot in chain(*found) if snapshot is not None]

    def is_ahead(time_ms: int) -> bool:
        return time_ms > time.time() * 1000 + 100_000

    def page(request: Handler) -> None:
        count = time.time_ns() // 1_000_000
        request.reply(200, f'output_tokens_total{{deployment_id="x"}} {count}\n', Content_Type="text/plain")

    set_clock(0.0)
    with answering(page) as url:
        (tmp_path / "servescope.toml").write_text(
            f'[collector]\nlisten = "127.0.0.1:{free_port()}"\nscrape_interval = "250ms"\nscrape_timeout = "250ms"\n'
            f'evaluation_interval = "250ms"\nwindow = "10s"\n[[deployments]]\ndeployment_id = "chat"\n'
            f'model_name = "m"\ninference_stack = "v1"\n[[deployments.targets]]\nurl = "{url}/metrics"\n'
        )
        log = tmp_path / "collect.log"
        with collecting(folder=tmp_path) as process:
            wait_until(lambda: len(read()) > 4, log)
            set_clock(600.0)
            wait_until(lambda: sum(is_ahead(time_ms) for time_ms, _ in read()) > 4, log)
            if killed:
                process.kill()
                process.wait()
            set_clock(0.0)
            former = len(read())
            if not killed:
                wait_until(lambda: not any(is_ahead(time_ms) for time_ms, _ in read()) and len(read()) > former, log)
        if killed:
            with collecting(folder=tmp_path):
                wait_until(lambda: not any(is_ahead(time_ms) for time_ms, _ in read()) and len(read()) > former, log)
        counts = [count for _, count in read()]
        assert counts == sorted(counts)
        assert increase(counts) == counts[-1] - counts[0]
        assert "what was stored as later is dropped" in log.read_text()
        assert "Traceback" not in log.read_text()
