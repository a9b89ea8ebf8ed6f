"""A collector that runs while its configuration, its lists and its targets' pace change."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from servescope.collector.config import Configuration
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.deployments import HttpDiscoverySettings
from servescope.collector.targets.target import Target
from servescope.errors import ServescopeError
from servescope.web.connections import FetchError
from tests.collector.support.reloaded_collector import START, TARGET, TARGETS, World, playing, text
from tests.support.collect_command import collecting, get, wait_until
from tests.support.prometheus import free_port
from tests.support.stepped_collector import page
from tests.support.waiting import deadline_seconds


def gaps(times: Sequence[float]) -> list[float]:
    """What lies between one instant and the next."""
    return [after - before for before, after in pairwise(times)]


def exposed(world: World) -> dict[str, float]:
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in world.collector.telemetry.collect()
        for sample in family.samples
    }


async def test_a_reload_adds_and_retires_targets(tmp_path: Path) -> None:
    """Targets come and go with the file; those that stay keep their samples, their counts and their pace."""
    world = World(tmp_path, text("a", "b"))
    async with playing(world):
        await world.advance(60)
        before = exposed(world)["servescope_scrapes_total{ok}"]
        (a,) = [each for each in world.collector.fleet.watched if each.target.identity.replica == "a"]
        world.write(text("a", "c"))
        loading = await world.collector.reload()
        await world.advance(30)

        assert (loading.error, loading.needs_restart) == (None, ())
        assert [each.target.identity.replica for each in world.collector.fleet.watched] == ["a", "c"]
        assert a in world.collector.fleet.watched
        assert world.scraped()["a"] == len(world.times("a")) >= 6
        assert world.scraped()["c"] == len(world.times("c")) >= 2
        assert {round(gap) for gap in gaps(world.times("a")[1:])} == {15}
        assert exposed(world)["servescope_scrapes_total{ok}"] > before
        assert exposed(world)["servescope_configuration_reload_success"] == 1
        assert exposed(world)["servescope_configuration_reload_timestamp_seconds"] == START + 60


async def test_a_bad_file_changes_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with it, everything continues as before until a valid one is loaded."""
    world = World(tmp_path, text("a"))
    doubled = text("a") + TARGET.format(name="a", keys="")
    async with playing(world):
        await world.advance(30)
        for bad, cause in (
            ("[collector", "not TOML"),
            (text("a", settings='window = "1s"'), "collector.window: '1s' is wrong"),
            (doubled, "target 'http://a:80/metrics' is listed twice in deployment 'chat'"),
            (
                text("a", settings='scrape_interval = "4m"\nwindow = "10m"'),
                "expected at most half of the running window (5m)",
            ),
            (text("a", settings='window = "1m"\nretention = "2m"'), "expected at least the running window (5m)"),
        ):
            world.write(bad)
            with pytest.raises(ServescopeError) as refused:
                await world.collector.reload()
            assert cause in str(refused.value)
            assert world.collector.loading.error == str(refused.value)
            assert exposed(world)["servescope_configuration_reload_success"] == 0
            assert exposed(world)["servescope_configuration_reload_timestamp_seconds"] == START
            assert "the configuration is not applied, the former one stays: " in caplog.text
        await world.advance(30)
        assert len(world.times("a")) >= 4
        world.write(text("a", "b"))
        assert (await world.collector.reload()).error is None
        assert exposed(world)["servescope_configuration_reload_success"] == 1


async def test_settings_change_at_once_or_say_that_they_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new interval holds from now on, though the target rests for long; a new address waits for a restart."""
    world = World(tmp_path, text("a", settings='scrape_interval = "2m"'))
    async with playing(world):
        await world.advance(1)
        world.write(text("a", settings='scrape_interval = "5s"\nstore = "other.db"\nwindow = "10m"'))
        loading = await world.collector.reload()
        await world.advance(20)

        assert loading.needs_restart == ("store", "window")
        assert "setting 'window' of the configuration has changed; the change needs a restart" in caplog.text
        assert world.collector.fleet.settings.window_ms == 300_000
        assert len(world.times("a")) == 5
        assert not (tmp_path / "other.db").exists()


async def test_without_a_file_there_is_nothing_to_reload(tmp_path: Path) -> None:
    """A collector with targets from the command line says so and keeps running."""
    world = World(tmp_path, text("a"))
    world.collector._reread = None
    async with playing(world):
        with pytest.raises(ServescopeError, match="started without a configuration file; there is none to read again"):
            await world.collector.reload()
        await world.advance(30)
        assert len(world.times("a")) >= 2


LISTED = """
[[deployments.http_sd]]
url = "http://inventory.example/{name}"
refresh_interval = "{interval}"
"""
INVENTORY = "http://inventory.example/chat"


def groups(*names: str) -> bytes:
    return json.dumps([{"targets": [f"{name}:80"], "labels": {"replica": name}} for name in names]).encode()


async def test_lists_are_asked_again_and_again(tmp_path: Path) -> None:
    """Targets follow the answers; a failure keeps those of the last one, and is reported."""
    world = World(tmp_path, TARGETS.format(settings="") + LISTED.format(name="chat", interval="20s"))
    world.lists[INVENTORY] = groups("a")
    async with playing(world):
        await world.advance(1)
        first = world.scraped()
        world.lists[INVENTORY] = groups("a", "b")
        await world.advance(21)
        second = world.scraped()
        world.lists[INVENTORY] = FetchError("unreachable", "cannot connect: Connection refused")
        await world.advance(21)
        third, problems = world.scraped(), world.collector.problems
        world.lists[INVENTORY] = groups()
        await world.advance(21)

        assert (sorted(first), sorted(second), sorted(third)) == (["a"], ["a", "b"], ["a", "b"])
        assert problems == [f"http_sd {INVENTORY!r}: cannot connect: Connection refused; its former 2 targets are kept"]
        assert (world.collector.fleet.watched, world.collector.problems) == ([], [])


async def test_a_service_of_lists_is_left_alone_when_it_asks_for_it(tmp_path: Path) -> None:
    """Its refusal is reported, its former targets stay, and it is asked again after its Retry-After."""
    world = World(tmp_path, TARGETS.format(settings="") + LISTED.format(name="chat", interval="20s"))
    world.lists[INVENTORY] = groups("a")
    async with playing(world):
        await world.advance(10)
        world.lists[INVENTORY] = FetchError("rate_limited", "HTTP status 429", retry_after_seconds=100)
        await world.advance(100)
        held = len(world.lists_asked)
        await world.advance(25)
        assert (held, len(world.lists_asked)) == (2, 3)
        assert sorted(world.scraped()) == ["a"]


async def test_a_list_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    """Neither the start nor other lists and targets wait for it."""
    both = text("a") + LISTED.format(name="chat", interval="20s") + LISTED.format(name="slow", interval="20s")
    world = World(tmp_path, both)
    world.lists[INVENTORY] = groups("b")
    answer = world.fetch_list

    async def fetch_list(settings: HttpDiscoverySettings, /) -> bytes:
        if settings.url.endswith("slow"):
            await asyncio.Event().wait()
        return await answer(settings)

    world.collector.discovering._fetch_list = fetch_list
    async with playing(world):
        await world.advance(40)
        assert sorted(world.scraped()) == ["a", "b"]
        assert min(world.scraped().values()) >= 2


async def test_a_reload_keeps_what_lists_said(tmp_path: Path) -> None:
    """Their targets stay though the service is away; a list that is gone takes its targets with it."""
    other = LISTED.format(name="other", interval="20s")
    world = World(tmp_path, TARGETS.format(settings="") + LISTED.format(name="chat", interval="20s") + other)
    world.lists = {INVENTORY: groups("a"), "http://inventory.example/other": groups("b")}
    async with playing(world):
        await world.advance(30)
        world.lists[INVENTORY] = FetchError("unreachable", "away")
        world.write(TARGETS.format(settings="") + LISTED.format(name="chat", interval="10s"))
        await world.collector.reload()
        at_once = world.scraped()
        world.lists_asked.clear()
        await world.advance(45)

        assert sorted(at_once) == ["a"]
        assert world.scraped()["a"] == len(world.times("a")) >= 3
        assert world.lists_asked == [INVENTORY] * 5
        assert [key.place for key in world.collector.discovering.discovery.http_lists()] == [INVENTORY]


async def test_a_list_that_a_reload_brings_is_asked(tmp_path: Path) -> None:
    """Though there was no target before it, and is none yet."""
    world = World(tmp_path, TARGETS.format(settings="") + LISTED.format(name="other", interval="20s"))
    world.lists = {INVENTORY: groups("a"), "http://inventory.example/other": groups()}
    async with playing(world):
        await world.advance(1)
        world.write(TARGETS.format(settings="") + LISTED.format(name="chat", interval="20s"))
        await world.collector.reload()
        await world.advance(1)
        assert sorted(world.scraped()) == ["a"]


async def test_a_fault_of_our_own_leaves_the_former_configuration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its trace and counted, and the next reload is a new one."""
    world = World(tmp_path, text("a"))
    read = world.collector._reread

    def fail() -> Configuration:
        raise RuntimeError("no one thought of this")

    async with playing(world):
        world.collector._reread = fail
        with pytest.raises(ServescopeError, match="a fault in the collector: RuntimeError: no one thought of this"):
            await world.collector.reload()
        assert exposed(world)["servescope_internal_errors_total{reload}"] == 1
        assert exposed(world)["servescope_configuration_reload_success"] == 0
        assert "RuntimeError: no one thought of this" in caplog.text
        world.collector._reread = read
        assert (await world.collector.reload()).error is None


async def test_every_target_has_its_own_pace(tmp_path: Path) -> None:
    """Its interval counts for its scrapes and for how long its samples are fresh."""
    world = World(tmp_path, text("quick") + TARGET.format(name="slow", keys='scrape_interval = "2m"'))
    async with playing(world):
        await world.advance(300)
        quick, slow = sorted(world.collector.fleet.watched, key=lambda each: each.target.identity.replica)
        assert len(world.times("quick")) in (20, 21, 22)
        assert {round(gap) for gap in gaps(world.times("slow")[1:])} == {120}
        assert (world.collector.fleet.health(quick), world.collector.fleet.health(slow)) == ("up", "up")
        for watched in (quick, slow):
            assert watched.next_scrape_ms is not None
            assert 0 <= watched.next_scrape_ms - world.seconds * 1000 <= watched.target.scraping.interval_ms


@pytest.mark.slow
async def test_targets_of_one_host_share_its_limit(tmp_path: Path) -> None:
    """Four targets at 15 s on a host of six scrapes a minute: six a minute, evenly, each its share."""
    target = '[[deployments.targets]]\nurl = "http://export.example/metrics?r={0}"\nreplica = "{0}"\n'
    names = ["a", "b", "c", "d"]
    limited = "".join(target.format(name) + "max_scrapes_per_minute = 6\n" for name in names)
    world = World(tmp_path, TARGETS.format(settings="") + limited + TARGET.format(name="other", keys=""))
    async with playing(world):
        await world.advance(600)
        turns = sorted(moment for name in names for moment in world.times(name))
        assert min(gaps(turns)) >= 9.99
        assert len(turns) in (60, 61)
        assert all(len(world.times(name)) >= 14 for name in names)
        assert len(world.times("other")) >= 40
        assert all(world.collector.fleet.health(each) == "up" for each in world.collector.fleet.watched)
        assert world.collector.problems == []


async def test_who_asks_to_be_left_alone_is(tmp_path: Path) -> None:
    """It is counted and reported, and asked again at its next interval, not before; others are read meanwhile."""
    world = World(tmp_path, text("a", "b"))
    world.refusals["a"] = [None, FetchError("rate_limited", "HTTP status 429", retry_after_seconds=100)]
    async with playing(world):
        await world.advance(60)
        a, _ = world.collector.fleet.watched
        refused = world.times("a")[1]
        assert len(world.times("a")) == 2
        assert a.held_until_ms == round((START + refused + 100) * 1000)
        assert "HTTP status 429; next attempt after 2027-01-15 08:0" in str(a.status.error)
        assert a.next_scrape_ms is not None
        assert a.next_scrape_ms >= a.held_until_ms
        assert exposed(world)["servescope_scrapes_total{rate_limited}"] == 1
        assert world.collector.fleet.health(a) != "up"
        await world.advance(120)
        assert 100 <= world.times("a")[2] - refused <= 116
        assert a.status.healthy
        assert len(world.times("b")) >= 12


@pytest.mark.slow
async def test_one_refusal_holds_all_of_a_limited_host(tmp_path: Path) -> None:
    """The limit is the host's, so is its refusal; afterwards the turns are evenly spaced again."""
    target = '[[deployments.targets]]\nurl = "http://export.example/metrics?r={0}"\nreplica = "{0}"\n'
    limited = "".join(target.format(name) + "max_scrapes_per_minute = 6\n" for name in ("a", "b", "c"))
    world = World(tmp_path, TARGETS.format(settings="") + limited)
    world.refusals["b"] = [FetchError("rate_limited", "HTTP status 429", retry_after_seconds=120)]
    async with playing(world):
        await world.advance(300)
        refused = world.times("b")[0]
        turns = sorted(moment for moment, _ in world.asked)
        assert [turn for turn in turns if refused < turn < refused + 119.99] == []
        after = [turn for turn in turns if turn >= refused + 119.99]
        assert len(after) >= 10
        assert min(gaps(after)) >= 9.99


@pytest.mark.slow
async def test_a_refusal_that_says_nothing_is_waited_out_longer_each_time(tmp_path: Path) -> None:
    """Half a minute, a minute, two: it is not hammered; a success starts anew."""
    world = World(tmp_path, text("a"))
    world.refusals["a"] = [*[FetchError("rate_limited", "HTTP status 429")] * 3, None]
    async with playing(world):
        await world.advance(400)
        times = world.times("a")
        waits = gaps(times)
        assert all(least <= wait <= least + 15.1 for least, wait in zip((30, 60, 120), waits[:3], strict=True))
        assert round(waits[3]) == 15
        assert world.collector.fleet.watched[0].refusals == 0


def post(url: str) -> tuple[int, dict[str, object]]:
    try:
        with urlopen(Request(url, method="POST"), timeout=deadline_seconds(5)) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow
def test_the_command_reloads_on_sighup_and_by_post(tmp_path: Path) -> None:
    """A new target is scraped; a bad file is refused and reported; nothing stops meanwhile."""
    port, log = free_port(), tmp_path / "collect.log"
    base, path = f"http://127.0.0.1:{port}", tmp_path / "servescope.toml"

    def write(*names: str) -> None:
        path.write_text(text(*names).replace(":0", f":{port}"), encoding="utf-8")

    def replicas() -> list[str]:
        return [each["identity"]["replica"] for each in json.loads(get(f"{base}/api/v1/targets"))["targets"]]

    write("a.invalid")
    with collecting(folder=tmp_path) as process:
        wait_until(lambda: get(f"{base}/-/healthy"), log)
        write("a.invalid", "b.invalid")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: replicas() == ["a.invalid", "b.invalid"], log)
        path.write_text("[collector", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "servescope_configuration_reload_success 0" in get(f"{base}/metrics"), log)
        refused = post(f"{base}/-/reload")
        shown = json.loads(get(f"{base}/api/v1/targets"))["configuration"]
        write("b.invalid")
        taken = post(f"{base}/-/reload")
        left = replicas()
        process.send_signal(signal.SIGINT)
        code = process.wait(deadline_seconds())

    assert (code, left) == (0, ["b.invalid"]), log.read_text()
    assert refused[0] == 400
    assert "not TOML" in str(refused[1]["error"])
    assert shown["error"] == refused[1]["error"]
    assert (taken[0], taken[1]["error"], taken[1]["needs_restart"]) == (200, None, [])
    assert abs(time.time() * 1000 - float(str(taken[1]["loaded_ms"]))) < 60_000
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "more", "message"),
    [("doubled", "doubled", "is listed twice in deployment"), ("port", "", "cannot listen on 127.0.0.1:")],
)
def test_a_collector_that_cannot_run_leaves_no_store(tmp_path: Path, wrong: str, more: str, message: str) -> None:
    """Doubled targets, a taken port: neither leaves a store, or its lock, behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if wrong == "port" else free_port()
        added = TARGET.format(name="a", keys="") if more == "doubled" else more
        (tmp_path / "servescope.toml").write_text(text("a").replace(":0", f":{port}") + added)
        with collecting(folder=tmp_path) as process:
            code = process.wait(deadline_seconds())

    log = (tmp_path / "collect.log").read_text()
    assert code == (1 if wrong == "port" else 2), log
    assert message in log
    assert sorted(each.name for each in tmp_path.iterdir()) == ["collect.log", "servescope.toml"]


async def test_a_change_while_a_scrape_is_under_way_lets_it_finish(tmp_path: Path) -> None:
    """Another interval stops no scrape that has begun."""
    world = World(tmp_path, text("a"))
    begun, go_on = asyncio.Event(), asyncio.Event()
    begins: list[float] = []

    async def fetch(target: Target, _: Limits, /) -> bytes:
        begins.append(world.seconds)
        begun.set()
        await go_on.wait()
        return page(1).encode()

    world.collector.scraping._fetch = fetch
    async with playing(world):
        await world.advance(1)
        await begun.wait()
        world.write(text("a", settings='scrape_interval = "5s"'))
        await world.collector.reload()
        go_on.set()
        await world.advance(11)
        (watched,) = world.collector.fleet.watched
        assert watched.recent.window().times.tolist() == [round(moment * 1000) for moment in begins]
        assert len(begins) >= 3


async def test_a_mistake_of_ours_ends_neither_scraping_nor_evaluating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is, it costs the scrape or the evaluation it happens in, and is counted."""
    world = World(tmp_path, text("a", "b"))

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    async with playing(world):
        (a,) = [each for each in world.collector.fleet.watched if each.target.identity.replica == "a"]
        await world.advance(30)
        recent = RecentScrapes(300_000, 30_000)
        monkeypatch.setattr(recent, "append", fail)
        a.recent = recent
        monkeypatch.setattr(world.collector.recorder, "record_figures", fail)
        before = exposed(world)
        await world.advance(60)
        after = exposed(world)

        failed = {
            stage: after[f"servescope_internal_errors_total{{{stage}}}"]
            - before[f"servescope_internal_errors_total{{{stage}}}"]
            for stage in ("scrape", "evaluate")
        }
        assert failed == {"scrape": 4, "evaluate": 4}
        assert len(world.times("b")) >= 6
