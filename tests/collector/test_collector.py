"""The running collector: targets that come, go and fail, restarts, and the command from its start to its end."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import aclosing
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from servescope.collector import command
from servescope.collector.collector import Collector
from servescope.collector.scrapes.pacing import format_instant, next_due_ms, scrape_offset_ms
from servescope.errors import UsageError
from servescope.sources.page import PageLimits
from servescope.sources.reader import ParsedText, Reader
from servescope.store.embedded import Store
from tests.support.answering import Handler, answering
from tests.support.collect_command import collecting, get, wait_until
from tests.support.prometheus import free_port
from tests.support.stepped_collector import (
    CHAT,
    CONFIGURATION,
    START,
    World,
    dynamo_page,
    page,
    vllm_page,
    write_targets,
)
from tests.support.waiting import deadline_seconds, wait_for_async


@pytest.mark.slow
async def test_a_flood_of_new_series_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    """No stretch of work that holds up other scrapes handles more than a thousand of the new series."""
    world = World(tmp_path)
    fresh = iter(range(10**6))

    def flood(count: float) -> str:
        return page(count) + "".join(
            f'queued_requests{{deployment_id="x",request="{next(fresh)}"}} 1\n' for _ in range(15_000)
        )

    async with aclosing(world):
        world.answers["a"] = 100.0
        write_targets(world.folder, "a")
        before = await world.step(100.0)
        assert before["queued_requests"] == 2
        world.pages["a"] = flood
        (watched,) = world.collector.fleet.watched
        looking_up = spy_on_layout(world.collector)
        world.seconds += 15
        scraping = asyncio.ensure_future(world.collector.scraping.scrape(watched))
        sizes, queued = [len(watched.recent)], set()
        while not scraping.done():
            await asyncio.sleep(0)
            sizes.append(len(watched.recent))
            if sizes[-1] != sizes[-2] and not scraping.done():
                figures = world.collector.evaluating.evaluate(world.collector.clock.now_ms).deployments[CHAT].figures
                queued.add(figures["queued_requests"])
        after = world.collector.evaluating.evaluate(world.collector.clock.now_ms).deployments[CHAT].figures

        assert scraping.result().outcome == "ok"
        assert max(later - earlier for earlier, later in pairwise(sizes)) <= 1_000
        assert looking_up
        assert max(looking_up) <= 1_000
        assert queued == {2}
        assert after["queued_requests"] == 15_002


def spy_on_layout(collector: Collector) -> list[int]:
    """How many new series each look-up of what they are summed into handles, from now on."""
    handled: list[int] = []
    layout = collector.fleet._deriver._layout(CHAT)
    look_up = layout._look_up

    def counted(member: Any, recent: Any) -> None:
        known = len(member.series)
        look_up(member, recent)
        handled.append(len(member.series) - known)

    layout._look_up = counted  # type: ignore[method-assign]
    return handled


@pytest.mark.slow
async def test_figures_follow_the_targets(tmp_path: Path) -> None:
    """Replicas that come and go change sums and counts; the one that went still counts for what it did."""
    world = World(tmp_path, "a", "b")
    world.answers = {"a": 0, "b": 0, "c": 0}
    async with aclosing(world):
        for count in range(30):
            figures = await world.step(count * 15)
        assert figures["output_tokens_per_second"] == pytest.approx(2.0)
        assert figures["queued_requests"] == 4
        assert figures['replica_count_by_status{status="active"}'] == 2

        write_targets(tmp_path, "a", "c")
        for count in (30, 31):
            figures = await world.step(count * 15)
        assert figures["queued_requests"] == 4
        assert figures['replica_count_by_status{status="active"}'] == 2
        assert 1.9 < figures["output_tokens_per_second"] < 2.1
        for count in range(32, 60):
            figures = await world.step(count * 15)
        assert figures["output_tokens_per_second"] == pytest.approx(2.0)
        assert world.collector.fleet.leaving == {}


async def test_no_metric_is_added_up_over_layers(tmp_path: Path) -> None:
    """A worker behind a frontend adds what the frontend cannot know, and never what it has counted already."""
    world = World(tmp_path, "frontend", "worker")
    world.pages = {"frontend": dynamo_page, "worker": vllm_page}
    async with aclosing(world):
        for count in range(30):
            figures = await world.step(count * 15)
        assert figures["output_tokens_per_second"] == pytest.approx(1.0)
        assert figures["queued_requests"] == 3
        assert figures["kv_cache_usage"] == 0.5
        worker = next(each for each in world.collector.fleet.watched if each.target.identity.replica == "worker")
        assert worker.status.coverage["output_tokens_total"]["status"] == "elsewhere"
        assert "chat/aggregated/frontend" in str(worker.status.coverage["output_tokens_total"]["reason"])

        world.answers["frontend"] = None
        for count in range(30, 60):
            figures = await world.step(count * 15)
        assert "output_tokens_per_second" not in figures, "the worker's count is used as the frontend's"


async def test_the_status_of_a_target_says_why_it_counted_nothing(tmp_path: Path) -> None:
    """No request, then a cache that is off, then one that reuses nothing; the same object while that is the same."""
    world = World(tmp_path, "worker")
    setup = 'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{}"}} 1\n'
    seen, same = [], []
    async with aclosing(world):
        for switch, tokens in (("False", 0), ("False", 40), ("False", 40), ("True", 80)):
            world.pages["worker"] = lambda count, switch=switch: vllm_page(count) + setup.format(switch)  # type: ignore[misc]  # a default binds
            await world.step(tokens)
            (worker,) = world.collector.fleet.watched
            seen.append(worker.status.coverage["kv_cache_reused_tokens_total"].get("zero"))
            same.append(worker.status.coverage)
            assert "zero" not in worker.status.coverage["queued_requests"]
    assert seen == [
        "no request has ended and no token was counted since its process started",
        'the prefix cache is off: vllm:cache_config_info has enable_prefix_caching="False"',
        'the prefix cache is off: vllm:cache_config_info has enable_prefix_caching="False"',
        "no token of a prompt was reused since its process started; "
        'a block of the cache has 16: vllm:cache_config_info has block_size="16"',
    ]
    assert same[1] is same[2]


async def test_a_target_that_leaves_supplies_no_more(tmp_path: Path) -> None:
    """Without it the metrics it supplied come from the others; when it returns, they come from it again."""
    world = World(tmp_path, "frontend", "worker")
    world.pages = {"frontend": dynamo_page, "worker": vllm_page}
    async with aclosing(world):
        seen = []
        for names in (("frontend", "worker"), ("worker",), ("frontend", "worker")):
            write_targets(tmp_path, *names)
            for count in range(2):
                await world.step(count)
            worker = next(each for each in world.collector.fleet.watched if each.target.identity.replica == "worker")
            seen.append(worker.status.coverage["output_tokens_total"]["status"])
        assert seen == ["elsewhere", "present", "elsewhere"]


def cache_page(count: float) -> str:
    """What an engine's own instruments, or a router's, say of `count` tokens a quarter of which was reused."""
    label = '{deployment_id="x"}'
    return (
        f"output_tokens_total{label} {count}\n"
        f"kv_cache_eligible_tokens_total{label} {count}\nkv_cache_reused_tokens_total{label} {count / 4}\n"
    )


def router_page(count: float) -> str:
    """What the router before it says: half of them were reused."""
    label = '{deployment_id="x"}'
    return (
        f"router_unreported_decisions_total{label} 0\n"
        f"kv_cache_eligible_tokens_total{label} {count}\nkv_cache_reused_tokens_total{label} {count / 2}\n"
    )


@pytest.mark.parametrize(
    ("pages", "hit_rate"),
    [({"router": router_page, "engine": cache_page, "native": vllm_page}, 0.5),
     ({"engine": cache_page, "native": vllm_page}, 0.25)],
    ids=["router", "engine"],
)  # fmt: skip
async def test_cache_metrics_are_those_of_the_outermost_layer(
    tmp_path: Path, pages: dict[str, Callable[[float], str]], hit_rate: float
) -> None:
    """A router's, else the engine's own; those of the layers behind, and native pages, are not added."""
    groups = [
        {"targets": [f"{name}:80"], "labels": {"replica": name, "role": "router" if name == "router" else "aggregated"}}
        for name in pages
    ]
    (tmp_path / "targets.json").write_text(json.dumps(groups))
    world = World(tmp_path)
    world.answers, world.pages = dict.fromkeys(pages, 0.0), pages
    async with aclosing(world):
        for step in range(30):
            figures = await world.step(step * 15)
        assert figures["kv_cache_hit_rate"] == pytest.approx(hit_rate)
        assert figures["output_tokens_per_second"] == pytest.approx(1.0)


async def test_a_failing_target_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its gauges end at once, the others' continue; it is logged once when it fails, and once when it is back."""
    world = World(tmp_path, "a", "b")

    caplog.set_level(logging.INFO)
    async with aclosing(world):
        await world.step(0)
        world.answers["b"] = None
        figures = [await world.step(1), await world.step(2)]
        world.answers["b"] = 3
        figures.append(await world.step(3))

        assert [each["queued_requests"] for each in figures] == [2, 2, 4]
        assert [each['replica_count_by_status{status="unhealthy"}'] for each in figures] == [1, 1, 0]
    lines = [record.getMessage() for record in caplog.records if "chat/aggregated/b" in record.getMessage()]
    assert len(lines) == 2
    assert lines[0].endswith("http://b:80/metrics: cannot connect: Connection refused")
    assert lines[1].endswith("answers again")


@pytest.mark.slow
async def test_a_large_text_is_read_while_others_are_scraped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes; its scrape is recorded all the same, also when several arrive together."""
    world = World(tmp_path, "a", "b", "c")
    others_done = threading.Event()
    parse = Reader.parse

    def parse_slowly(reader: Reader, body: bytes, limits: PageLimits, **parts: Any) -> ParsedText:
        if len(body) > 300_000:
            assert others_done.wait(deadline_seconds()), "nothing else was done meanwhile"
        return parse(reader, body, limits, **parts)

    def flood(count: float) -> str:
        series = (f'output_tokens_total{{deployment_id="x",n="{count}-{number}"}} 1' for number in range(7_000))
        return page(count) + "\n".join(series) + "\n"

    async with aclosing(world):
        monkeypatch.setattr(Reader, "parse", parse_slowly)
        await world.collector.discovering.discover()
        by_name = {watched.target.identity.replica: watched for watched in world.collector.fleet.watched}
        for count in range(2):
            world.seconds += 15
            world.answers = dict.fromkeys("abc", float(count))
            world.pages = {"a": flood, "c": flood}
            others_done.clear()
            large = [asyncio.create_task(world.collector.scraping.scrape(by_name[name])) for name in "ac"]
            await asyncio.sleep(0)
            assert (await world.collector.scraping.scrape(by_name["b"])).outcome == "ok"
            others_done.set()
            assert [(scrape.outcome, scrape.native_samples) for scrape in await asyncio.gather(*large)] == [
                ("ok", 7_003)
            ] * 2
        assert [watched.status.error for watched in world.collector.fleet.watched] == [None] * 3
        figures = world.collector.evaluating.evaluate(world.collector.clock.now_ms).deployments[CHAT].figures
        assert figures["queued_requests"] == 6


@pytest.mark.slow
async def test_a_target_that_flaps_is_logged_ever_more_rarely(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each change at first; then with how often it failed meanwhile, and at once again after it was steady."""
    world = World(tmp_path, "a")
    lines: dict[int, str] = {}

    async def go_on(step: int, count: float | None) -> None:
        world.answers["a"] = count
        caplog.clear()
        await world.step()
        for record in caplog.records:
            lines[step] = record.getMessage().partition(" ")[2]

    caplog.set_level(logging.INFO, "servescope.collector.scrapes.target_state")
    async with aclosing(world):
        for step in range(120):
            await go_on(step, None if step % 2 == 0 else 1)
        flapped = dict(lines)
        for step in range(120, 320):
            await go_on(step, 1)
        after = {step: line for step, line in lines.items() if step >= 120}
        lines.clear()
        await go_on(320, None)
        await go_on(321, 1)

        failed = "http://a:80/metrics: cannot connect: Connection refused"
        assert [flapped[step] for step in (0, 1)] == [failed, "answers again"]
        # A minute after it was logged, by when it has failed at steps 2 and 4; then two minutes later, and so on.
        assert flapped[5] == f"answers again; failed 2 more times since {format_instant(1000 * (START + 45))}"
        assert 3 < len(flapped) < 12
        failures = sum(counted(line) + (line.startswith(failed)) for line in (*flapped.values(), *after.values()))
        assert failures == 60
        assert len(after) <= 1
        assert lines == {320: failed, 321: "answers again"}


def counted(line: str) -> int:
    """How often a target failed without being logged, by a line of the log."""
    if "failed once more" in line:
        return 1
    found = re.search(r"failed (\d+) more times", line)
    return int(found[1]) if found else 0


async def test_figures_go_on_after_a_restart(tmp_path: Path) -> None:
    """A new collector on the same store has the figures of the old one at its first evaluation."""
    world = World(tmp_path, "a")

    async with aclosing(world):
        for count in range(30):
            await world.step(count * 15)
    world.open()
    async with aclosing(world):
        figures = await world.step(30 * 15)
        assert figures["output_tokens_per_second"] == pytest.approx(1.0)
        assert len(world.collector.fleet.watched[0].recent.window().times) >= 21
    with Store(tmp_path / "servescope.db", read_only=True) as store:
        table = store.read_figures(CHAT, 0, START * 2000)
        (window,) = store.read_samples(CHAT, ["output_tokens_total"], 0, START * 2000)
    assert len(table.times) == 31
    assert window.values[0].tolist() == [count * 15.0 for count in range(31)]


async def test_scrapes_are_written_as_they_come(tmp_path: Path) -> None:
    """A scrape is in the store without any evaluation, so that a process that is killed loses none but the last."""
    world = World(tmp_path, "a")
    world.answers = {"a": 1}
    async with aclosing(world):
        await world.collector.discovering.discover()
        (watched,) = world.collector.fleet.watched
        with Store(tmp_path / "servescope.db", read_only=True) as store:
            for count in range(1, 4):
                world.seconds += 15
                await world.collector.scraping.scrape(watched)
                await until_stored(store, watched.target.target_id, count)


async def until_stored(store: Store, target_id: str, count: int) -> None:
    await wait_for_async(lambda: len(store.read_scrapes(target_id, 0, START * 2000)) == count, "the stored scrapes")


@pytest.mark.slow
async def test_figures_go_on_while_the_store_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A store that another process locks is logged once; scrapes and figures continue; all is written afterwards."""
    world = World(tmp_path, "a")
    other = sqlite3.connect(tmp_path / "servescope.db", isolation_level=None)

    caplog.set_level(logging.INFO)
    async with aclosing(world):
        await world.step(0)
        await wait_for_async(lambda: world.collector.recorder.backlog() == 0, "the store")
        other.execute("BEGIN IMMEDIATE")
        for count in range(1, 4):
            figures = await world.step(count * 15)
        assert figures["output_tokens_per_second"] > 0
        await wait_for_async(lambda: world.collector.store_problem is not None, "the problem of the store")
        assert (world.collector.store_problem or "").endswith("servescope.db: database is locked")
        page = exposition_text(world.collector)
        assert "servescope_store_errors_total 1.0" in page
        other.execute("ROLLBACK")
        await wait_for_async(lambda: world.collector.store_problem is None, "the end of the problem")
    other.close()
    assert caplog.text.count("database is locked") == 1
    assert "the store is written again" in caplog.text
    with Store(tmp_path / "servescope.db", read_only=True) as store:
        assert store.read_figures(CHAT, 0, START * 2000).times.tolist() == [
            (START + 15 * n) * 1000 for n in range(1, 5)
        ]


def exposition_text(collector: Collector) -> str:
    return generate_latest(collector.telemetry).decode()


async def test_how_figures_were_derived_is_recorded(tmp_path: Path) -> None:
    """The store knows the window and the intervals, and when they changed."""
    write_targets(tmp_path, "a")
    for settings, seconds in (("", 0.0), ('window = "1m"', 600.0)):
        async with aclosing(World(tmp_path, settings=settings)) as world:
            world.seconds = START + seconds
            world.answers = {"a": 0}
            await world.step(0)
            await world.step(1)
    with Store(tmp_path / "servescope.db", read_only=True) as store:
        recorded = [store.settings_at((START + seconds) * 1000) for seconds in (0, 20, 600, 620)]
        assert store._connection.execute("SELECT count(*) FROM settings").fetchone() == (2,)
    assert [each and each.window_ms for each in recorded] == [300_000, 300_000, 300_000, 60_000]


async def test_targets_that_left_leave_the_list_of_targets(tmp_path: Path) -> None:
    """Their samples stay, with the end of their series among them."""
    world = World(tmp_path, "a", "b")
    world.answers = {"a": 1, "b": 1}
    async with aclosing(world):
        await world.step(1)
        write_targets(tmp_path, "b")
        await world.step(2)
    with Store(tmp_path / "servescope.db", read_only=True) as store:
        assert [status.identity.replica for status in store.targets()] == ["b"]
        gone, kept = store.read_samples(CHAT, ["output_tokens_total"], 0, START * 2000)
    assert (len(gone.times), len(kept.times)) == (2, 2)
    assert gone.values[0, 0] == 1
    assert gone.values[0, 1] != gone.values[0, 1]


async def test_a_target_that_returns_has_its_window_still(tmp_path: Path) -> None:
    """Gone for one look at the list only: nothing is forgotten, and it may answer at another address."""
    world = World(tmp_path, "a")
    async with aclosing(world):
        for count in range(30):
            await world.step(count * 15)
        write_targets(tmp_path)
        await world.step(seconds=1.0)
        write_targets(tmp_path, "a", labels={"__metrics_path__": "/elsewhere"})
        await world.step(30 * 15, seconds=14.0)
        figures = await world.step(31 * 15)

        assert world.asked[-1] == "http://a:80/elsewhere"
        assert figures["output_tokens_per_second"] == pytest.approx(1.0)


async def test_a_scrape_that_fails_inside_is_a_fault_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted where the alert on the collector's own faults looks; one that the target failed is not."""
    world = World(tmp_path, "a")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    async with aclosing(world):
        with monkeypatch.context() as broken:
            broken.setattr("servescope.sources.reader.Reader.parse", fail)
            await world.step(0)
        world.answers = {}
        await world.step(15)
        counted = {
            sample.labels["stage"]: sample.value
            for family in world.collector.telemetry.collect()
            for sample in family.samples
            if sample.name == "servescope_internal_errors_total" and sample.value
        }
        assert counted == {"scrape": 1}


def test_scrapes_are_spread_and_stay_in_place() -> None:
    """Targets are scraped at a moment of their own in every interval, the same after a restart."""
    offsets = [scrape_offset_ms(f"chat/aggregated/r{number}", 15_000) for number in range(200)]

    assert offsets == [scrape_offset_ms(f"chat/aggregated/r{number}", 15_000) for number in range(200)]
    assert all(sum(low <= offset < low + 5000 for offset in offsets) > 40 for low in (0, 5000, 10_000))


@pytest.mark.parametrize(
    ("now", "after", "due"),
    [(0, 0, 3), (2, 0, 3), (3, 0, 15_003), (15_002, 15_003, 30_003), (15_010, 15_003, 30_003), (99_999, 3, 105_003)],
)
def test_due_times_are_multiples_and_never_repeat(now: int, after: int, due: int) -> None:
    """The next offset within an interval, also when a sleep ended a moment too early."""
    assert next_due_ms(now, 15_000, 3, after_ms=after) == due


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return parser.parse_args(words)


def test_arguments_win_over_the_configuration(tmp_path: Path) -> None:
    """--store and --listen replace what the file says."""
    path = tmp_path / "servescope.toml"
    path.write_text(CONFIGURATION.format(settings=""))
    found = command.read_arguments(parse("--config", str(path), "--store", "/x.db", "--listen", "0.0.0.0:80")).collector

    assert (found.store, found.listen) == (Path("/x.db"), ("0.0.0.0", 80))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no --target given and no servescope.toml here; expected --config FILE or --target"),
        (["--config", "a.toml", "--target", "b"], "--config and --target are both given, expected one of them"),
        (["--config", "a.toml"], "no configuration file 'a.toml'"),
        (["--config", "a.toml", "--model-name", "m"], "--model-name goes with --target"),
        (["--target", "v1=ftp://x"], "target v1: 'ftp://x' is not a URL"),
        (["--target", "a", "--listen", "9900"], "--listen '9900' is not HOST:PORT"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    """Each names the argument and what was expected."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        command.read_arguments(parse(*words))

    assert message in str(refused.value)


@pytest.mark.slow
def test_the_command_collects_until_sigterm(tmp_path: Path) -> None:
    """Figures appear in the store and on /metrics, no secret anywhere, and SIGTERM ends it cleanly and soon."""
    port, counts = free_port(), count(10, 10)
    (tmp_path / "token").write_text("t0ps3cret")

    def answer(request: Handler) -> None:
        admitted = request.headers["Authorization"] == "Bearer t0ps3cret"
        request.reply(200 if admitted else 401, page(next(counts)) if admitted else "")

    settings = 'scrape_interval = "500ms"\nevaluation_interval = "500ms"\nwindow = "3s"'
    text = CONFIGURATION.format(settings=settings).replace(":0", f":{port}") + 'bearer_token_file = "token"\n'
    (tmp_path / "servescope.toml").write_text(text)
    log, base = tmp_path / "collect.log", f"http://127.0.0.1:{port}"

    with answering(answer) as url, collecting(folder=tmp_path) as process:
        listed = [{"targets": [url.removeprefix("http://")]}, {"targets": [f"127.0.0.1:{free_port()}"]}]
        (tmp_path / "targets.json").write_text(json.dumps(listed))
        wait_until(lambda: "output_tokens_per_second{" in get(f"{base}/metrics"), log)
        with Store(tmp_path / "servescope.db", read_only=True) as store:
            wait_until(lambda: "output_tokens_per_second" in store.latest_figures()[CHAT][1], log)
        healthy, failing = sorted(
            json.loads(get(f"{base}/api/v1/targets"))["targets"], key=lambda target: not target["healthy"]
        )
        seen = [get(f"{base}{path}") for path in ("/metrics", "/api/v1/targets", "/api/v1/deployments")]
        process.send_signal(signal.SIGTERM)
        code = process.wait(deadline_seconds())

    assert code == 0, log.read_text()
    assert (healthy["source"], healthy["error"]) == ("servescope", None)
    assert failing["error"].endswith("/metrics: cannot connect: Connection refused")
    assert "t0ps3cret" not in "".join(seen) + log.read_text()
    assert "Traceback" not in log.read_text()
    assert not (tmp_path / "servescope.db-wal").exists()
