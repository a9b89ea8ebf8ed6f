"""Shards: whose a target is, what becomes of it while shards come and go, and what a parent makes of it all."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qs, urlsplit

import aiohttp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from servescope.collector.access import Access
from servescope.collector.api.bounds import Bounds
from servescope.collector.collector import Collector
from servescope.collector.config import Configuration, make_configuration
from servescope.collector.membership import MemberClient, Membership
from servescope.collector.openapi import describe
from servescope.collector.parent import Parent
from servescope.collector.relay import (
    Relayed,
    RelayError,
    RelayLog,
    Told,
    digest_text,
    read_layouts,
    read_page,
    write_page,
)
from servescope.collector.scrape import Limits, ScrapeError
from servescope.collector.serve import make_application
from servescope.collector.shard import Shard
from servescope.collector.shards import ShardSettings, check_member, find_owner
from servescope.collector.store import Round, Store, StoreError, TargetStatus
from servescope.collector.targets import Target
from servescope.errors import ConfigurationError
from servescope.identity import Deployment, Identity
from servescope.samples import Series, Snapshot
from tests.loopback import running
from tests.test_collector import CONFIGURATION, collecting, dynamo_page, free_port, get, page, vllm_page, wait_until

START = 1_800_000_000
TARGETS = [f"chat/aggregated/r{number}#{number:08x}" for number in range(3000)]
MEMBERS = [f"http://collector-{number}:9900" for number in range(8)]

# --- Whose a target is ------------------------------------------------------------------------------------------------


@given(st.permutations(MEMBERS), st.text(min_size=1))
def test_all_members_agree(members: list[str], target_id: str) -> None:
    """A target has one owner, in whatever order its members are known."""
    assert find_owner(target_id, members) == find_owner(target_id, MEMBERS)


@pytest.mark.parametrize("count", range(1, 8))
def test_a_member_that_joins_moves_only_what_it_gains(count: int) -> None:
    """It takes its share from all others, no target changes between them; and leaving is joining backwards."""
    before = {target: find_owner(target, MEMBERS[:count]) for target in TARGETS}
    after = {target: find_owner(target, MEMBERS[: count + 1]) for target in TARGETS}
    moved = [target for target in TARGETS if before[target] != after[target]]

    assert {after[target] for target in moved} == {MEMBERS[count]}
    assert {before[target] for target in moved} == set(MEMBERS[:count])
    # Four standard deviations of a fair draw, so that the bound holds for any even hash.
    share = 1 / (count + 1)
    assert abs(len(moved) - share * len(TARGETS)) < 4 * (len(TARGETS) * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("count", range(2, 9))
def test_shares_are_even(count: int) -> None:
    """No member has more than a fair draw gives."""
    owners = [find_owner(target, MEMBERS[:count]) for target in TARGETS]
    share = 1 / count
    for member in MEMBERS[:count]:
        assert abs(owners.count(member) - share * len(TARGETS)) < 4 * (len(TARGETS) * share * (1 - share)) ** 0.5


def test_nobody_owns_a_target_without_members() -> None:
    assert find_owner("chat", []) is None


@pytest.mark.parametrize(
    ("url", "member"),
    [
        ("http://collector-0:9900", "http://collector-0:9900"),
        ("http://Collector-0:09900/", "http://collector-0:9900"),
        ("https://[::1]", "https://[::1]:443"),
    ],
)
def test_one_member_has_one_spelling(url: str, member: str) -> None:
    """Members are compared as text, so that each shard must come to the same one."""
    assert check_member(url) == member


@pytest.mark.parametrize("url", ["collector-0:9900", "ftp://a:1", "http://a:1/metrics", "http://u:p@a:1", "http://a:0"])
def test_other_urls_are_no_members(url: str) -> None:
    with pytest.raises(ValueError, match=r"is not the base URL|has no port"):
        check_member(url)


# --- Configuration ----------------------------------------------------------------------------------------------------


def configure(folder: Path, shards: dict[str, object], *, scrapes: bool = True) -> Configuration:
    document: dict[str, object] = {"shards": shards}
    if scrapes:
        targets = [{"url": "http://a:1"}]
        document["deployments"] = [
            {"deployment_id": "chat", "model_name": "m", "inference_stack": "v1", "targets": targets}
        ]
    return make_configuration(document, origin="servescope.toml", directory=folder)


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ({}, "shards: expected either 'members' or 'members_file'"),
        ({"members": ["http://a:1"], "members_file": "m.json"}, "expected either 'members' or 'members_file'"),
        ({"members": ["a:1"]}, r"shards.members: \['a:1'\] is wrong, expected a list of them, each the base URL"),
        ({"members": ["http://a:1", "http://A:1/"]}, "expected every member once"),
        ({"members": ["http://a:1"], "self": "a"}, "shards.self: 'a' is wrong, expected the base URL of a collector"),
        ({"members": ["http://a:1"], "own": "a"}, "unknown key 'shards.own'"),
        ({"members": ["http://a:1"], "catch_up": "soon"}, "shards.catch_up: 'soon' is wrong, expected a duration"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, shards: dict[str, object], message: str) -> None:
    """Each error names the key, the value and what was expected."""
    with pytest.raises(ConfigurationError, match=message):
        configure(tmp_path, shards)


def test_only_one_that_gathers_has_no_deployments(tmp_path: Path) -> None:
    """A shard needs targets to share, as a collector that is alone does."""
    configure(tmp_path, {"members": ["http://a:1"]}, scrapes=False)
    with pytest.raises(ConfigurationError, match="no deployments"):
        configure(tmp_path, {"members": ["http://a:1"], "self": "http://a:1"}, scrapes=False)


def write_members(folder: Path, *names: str) -> None:
    groups = [{"targets": [f"{name}:9900" for name in names]}]
    (folder / "fresh-members").write_text(json.dumps(groups))
    (folder / "fresh-members").replace(folder / "members.json")


def test_a_file_of_members_is_watched(tmp_path: Path) -> None:
    """Members come and go with it; what cannot be used, or lists nobody, changes nothing and is told."""
    file = tmp_path / "members.json"
    with pytest.raises(ConfigurationError, match=r"shards: members_file .*members.json: .*No such file"):
        Membership(ShardSettings(members_file=file))
    write_members(tmp_path, "a", "b")
    membership = Membership(ShardSettings(members_file=file))
    assert membership.members == ("http://a:9900", "http://b:9900")

    for text, problem in (("[]", "it lists no member"), ("{", "not JSON"), ('[{"targets": ["a/b"]}]', "base URL")):
        file.write_text(text)
        membership.refresh()
        assert membership.members == ("http://a:9900", "http://b:9900")
        assert problem in membership.problems[0]
        assert "the former 2 members are kept" in membership.problems[0]
    write_members(tmp_path, "a", "b", "c")
    membership.refresh()
    assert (len(membership.members), membership.problems) == (3, ())
    file.rename(tmp_path / "elsewhere")
    membership.refresh()
    assert "the former 3 members are kept" in membership.problems[0]
    (tmp_path / "elsewhere").rename(file)
    membership.refresh()
    assert (len(membership.members), membership.problems) == (3, ())


def test_what_a_member_sends_back_is_not_shown(tmp_path: Path) -> None:
    """The credentials of `[shards]` are for the members alone, whatever one of them answers."""
    (tmp_path / "token").write_text("t0ps3cret")
    access = Access(bearer_token_file=str(tmp_path / "token"))

    async def refuse(target: Target, _: Limits, /) -> bytes:
        raise ScrapeError("status", f"HTTP status 401 no {target.access.request_headers()['Authorization']}")

    members = MemberClient(refuse, ShardSettings(access=access), 1.0)
    with pytest.raises(ScrapeError, match=r"HTTP status 401 no .*\[secret\]") as raised:
        asyncio.run(members.ask("http://a:1", "/api/v1/shard"))

    assert "t0ps3cret" not in str(raised.value)


# --- Pages ------------------------------------------------------------------------------------------------------------


def status(name: str, **changes: object) -> TargetStatus:
    known: dict[str, object] = {
        "url": f"http://{name}/metrics",
        "identity": Identity("m", "chat", "v1", replica=name),
        "source": "vllm",
        "versions": "0.32",
        "healthy": True,
        "last_scrape_ms": 5,
        "last_success_ms": 5,
        "duration_seconds": 0.5,
        "samples": 3,
        "error": None,
        "coverage": {"queued_requests": {"status": "supplied", "native": "x", "reason": None}},
    }
    return TargetStatus(target_id=name, **{**known, **changes})  # type: ignore[arg-type]


def snapshot(*values: float) -> Snapshot:
    series = tuple(Series("up", (("place", str(place)),)) for place in range(len(values)))
    return Snapshot(series, np.array(values))


values = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=6)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | values), max_size=8))
def test_a_page_says_what_was_scraped(scrapes: list[tuple[str, list[float] | None]]) -> None:
    """Every value arrives bit for bit, in its scrape, and a failed scrape as one that failed."""
    relayed = [
        Relayed(name, time_ms, None if each is None else snapshot(*each))
        for time_ms, (name, each) in enumerate(scrapes)
    ]
    targets = [Told(status(name), 15_000, 10_000) for name in "abc"]
    told = [(scrape, None if scrape.snapshot is None else "digest") for scrape in relayed]
    body = write_page(cursor="r-1", complete=True, now_ms=7, listed="ab", targets=targets, scrapes=told)
    read = read_page(body)

    assert (read.cursor, read.complete, read.now_ms, read.listed) == ("r-1", True, 7, frozenset("ab"))
    assert read.targets == {each.status.target_id: each for each in targets}
    assert [(name, time_ms) for name, time_ms, _, _ in read.scrapes] == [each[:2] for each in relayed]
    for (_, _, digest, array), (_, each) in zip(read.scrapes, scrapes, strict=True):
        assert (digest is None) == (each is None)
        assert array.tobytes() == np.array(each or [], dtype=np.float64).tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": "AAAA"}, "while decompressing"),
        ({"values": "?"}, "not base64"),
        ({"scrapes": [[0, 5, "d", 4]]}, "not the 4 its scrapes need"),
        ({"scrapes": [[0, 5, "d", 10**9]]}, "has 1000000000 values"),
        ({"scrapes": [[7, 5, "d", 3]]}, "IndexError"),
        ({"scrapes": [[0, -5, "d", 3]]}, "-5 is no time"),
        ({"targets": [{}]}, "KeyError"),
        ({"listed": 5}, "TypeError"),
    ],
)
def test_another_page_is_refused(changes: dict[str, object], message: str) -> None:
    """What is wrong with an answer is told, and nothing of it is taken."""
    told = [(Relayed("a", 5, snapshot(1, 2, 3)), "d")]
    body = write_page(
        cursor="r-1", complete=True, now_ms=7, listed="a", targets=[Told(status("a"), 15_000, 10_000)], scrapes=told
    )
    with pytest.raises(RelayError, match=message):
        read_page(json.dumps({**json.loads(body), **changes}).encode())


def test_a_page_without_finite_values_is_refused() -> None:
    told = [(Relayed("a", 5, snapshot(1, float("nan"))), "d")]
    body = write_page(
        cursor="r-1", complete=True, now_ms=7, listed="a", targets=[Told(status("a"), 15_000, 10_000)], scrapes=told
    )
    with pytest.raises(RelayError, match="not finite"):
        read_page(body)


def test_a_layout_is_what_its_digest_says() -> None:
    """One that was mixed up would give values to the wrong series."""
    shape = {"shared": [["a", "1"]], "series": [["up", [["b", "2"]]]]}
    digest = digest_text('[["up",[["a","1"],["b","2"]]]]')
    assert read_layouts(json.dumps({"layouts": {digest: shape}}).encode()) == {
        digest: (Series("up", (("a", "1"), ("b", "2"))),)
    }
    with pytest.raises(RelayError, match="is not what its digest says"):
        read_layouts(json.dumps({"layouts": {"0" * 32: shape}}).encode())


def test_a_log_is_followed_from_a_cursor() -> None:
    """Each scrape comes once; a cursor that is older than what is held, or of another run, cannot be followed."""
    log = RelayLog()
    start = log.cursor
    for time_ms in range(0, 500, 100):
        log.append(Relayed("a", time_ms, snapshot(1)), now_ms=time_ms, hold_ms=1000)
    first, cursor, complete = log.after(start)
    log.append(Relayed("a", 600, None), now_ms=600, hold_ms=1000)
    second, _, _ = log.after(cursor)

    assert complete
    assert [each.time_ms for each in first + second] == [0, 100, 200, 300, 400, 600]
    log.append(Relayed("a", 5000, None), now_ms=5000, hold_ms=1000)
    for wrong in (start, RelayLog().cursor, "", "x-y", f"{cursor}0"):
        with pytest.raises(RelayError, match="cursor"):
            log.after(wrong)


def test_a_log_is_bounded() -> None:
    """By the values it holds, whatever the time; the last scrape is there, however large."""
    log = RelayLog(most_values=10)
    for time_ms in range(9):
        log.append(Relayed("a", time_ms, snapshot(1, 2, 3)), now_ms=0, hold_ms=1000)
    assert [each.time_ms for each in log.between(-1, 9)] == [6, 7, 8]
    log.append(Relayed("a", 9, snapshot(*range(20))), now_ms=0, hold_ms=1000)
    assert [each.time_ms for each in log.between(-1, 9)] == [9]


# --- Shards that come and go ------------------------------------------------------------------------------------------

C = TypeVar("C", bound=Collector)
CHAT, DUO = Deployment("llama", "chat", "v1"), Deployment("llama", "duo", "v2")
SCRAPING = """
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
[[deployments.file_sd]]
files = ["{folder}/chat.json"]
[[deployments]]
deployment_id = "duo"
model_name = "llama"
inference_stack = "v2"
[[deployments.file_sd]]
files = ["{folder}/duo.json"]
"""


class Fleet:
    """Targets that count, shards that scrape them, a parent, and one collector that scrapes them all.

    The clock stands still within a step, so that whoever scrapes a target in it sees the same at the same instant.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = float(START)
        self.began: dict[str, float] = {}
        self.shards: dict[str, Shard] = {}
        self.unreachable: set[str] = set()
        self.stores_hang = False
        self.write_targets("chat", *(f"r{number}" for number in range(12)))
        self.write_targets("duo", "frontend", "worker-0", "worker-1", "worker-2")
        self.single = self._open("single", Collector, "")
        self.parent: Parent

    def write_targets(self, deployment: str, *names: str) -> None:
        for name in names:
            self.began.setdefault(name, self.seconds)
        groups = [{"targets": [f"{name}:80"], "labels": {"replica": name}} for name in names]
        (self.folder / "fresh").write_text(json.dumps(groups))
        (self.folder / "fresh").replace(self.folder / f"{deployment}.json")

    def join(self, name: str) -> None:
        """Start a shard; it is no member yet."""
        self.shards[name] = self._open(name, Shard, f'self = "http://{name}:9900"')

    def open_parent(self) -> None:
        self.parent = self._open("parent", Parent, "", scrapes=False)

    def _open(self, name: str, kind: type[C], own: str, *, scrapes: bool = True) -> C:
        text = f'[collector]\nstore = "{name}.db"\n'
        if kind is not Collector:
            text += f'[shards]\nmembers_file = "members.json"\n{own}\n'
        if scrapes:
            text += SCRAPING.format(folder=self.folder)
        configuration = make_configuration(tomllib.loads(text), origin=name, directory=self.folder)
        path = configuration.collector.store
        store = Store(path)
        return kind(configuration, store, Store(path, read_only=True), self.fetch, clock=lambda: self.seconds)

    def truth(self, name: str) -> float:
        """What a target has counted up to now, each at its own pace."""
        pace = 1 + sum(name.encode()) % 7
        return round((self.seconds - self.began[name]) * pace)

    async def fetch(self, target: Target, _: Limits, /) -> bytes:
        url = urlsplit(target.url)
        assert url.hostname is not None
        if url.port == 9900:
            return await self.relay(url.hostname, url.path, parse_qs(url.query))
        name = target.identity.replica
        kind = dynamo_page if name == "frontend" else vllm_page if name.startswith("worker") else page
        return kind(self.truth(name)).encode()

    async def relay(self, name: str, path: str, query: dict[str, list[str]]) -> bytes:
        """A shard's answer, as its server gives it."""
        if name in self.unreachable or name not in self.shards:
            raise ScrapeError("unreachable", "cannot connect: Connection refused")
        shard = self.shards[name]
        if path == "/api/v1/shard":
            return json.dumps(shard.tell()).encode()
        if path == "/api/v1/layouts":
            return json.dumps({"layouts": shard.layouts(query["digest"][0].split(","))}).encode()
        assert path == "/api/v1/scrapes"
        if "after" in query:
            return await shard.page_after(query["after"][0])
        if "since_ms" in query:
            return await shard.past_page(int(query["since_ms"][0]), int(query["until_ms"][0]))
        return await shard.first_page()

    async def scrape(self) -> None:
        """15 seconds later every collector looks at its lists and scrapes what it has."""
        self.seconds += 15
        for collector in (self.single, *self.shards.values()):
            await collector.discover()
            for watched in collector.watched:
                await collector.scrape(watched)
        for shard in self.shards.values():
            shard.evaluate(shard.now_ms)
            await self._let_write(shard)

    async def _let_write(self, shard: Shard) -> None:
        """Time stands still here, but not for the thread that writes the store."""
        while shard._writer.backlog() and not self.stores_hang:  # noqa: ASYNC110  it is another thread that writes
            await asyncio.sleep(0.001)

    async def step(self) -> None:
        """Scrape, gather, and hold the figures of the parent against those of the collector that scrapes all."""
        await self.scrape()
        await self.parent.gather()
        self.check_figures()

    def check_figures(self) -> None:
        mine = self.parent.evaluate(self.parent.now_ms).deployments
        theirs = self.single.evaluate(self.single.now_ms).deployments
        assert set(mine) == set(theirs)
        for deployment, derived in theirs.items():
            assert mine[deployment].figures == pytest.approx(derived.figures, rel=1e-9, abs=1e-12)

    def scraped_by(self) -> dict[str, list[str]]:
        """Which shards scrape each target now."""
        found: dict[str, list[str]] = {}
        for name, shard in self.shards.items():
            for watched in shard.watched:
                found.setdefault(watched.target.identity.replica, []).append(name)
        return found

    async def close(self) -> None:
        for collector in (self.single, self.parent, *self.shards.values()):
            await asyncio.to_thread(collector.close)

    async def leave(self, name: str) -> None:
        """End a shard as a signal does."""
        await asyncio.to_thread(self.shards.pop(name).close)


def play(folder: Path, *names: str, act: Callable[[Fleet], Awaitable[None]]) -> None:
    """Act with a fleet of these shards, three steps after it began."""

    async def run() -> None:
        write_members(folder, *names)
        fleet = Fleet(folder)
        for name in names:
            fleet.join(name)
        fleet.open_parent()
        try:
            await fleet.scrape()
            await fleet.parent.gather()
            for _ in range(2):
                await fleet.scrape()
                await fleet.parent.gather()
            await act(fleet)
        finally:
            await fleet.close()

    asyncio.run(run())


def test_a_shard_holds_series_and_looks_up_no_figures(tmp_path: Path) -> None:
    """Which figures a series is part of is the affair of who derives them."""

    async def act(fleet: Fleet) -> None:
        for shard in fleet.shards.values():
            assert shard._deriver._layouts == {}
            held = sum(len(watched.ring) for watched in shard.watched)
            page = [sample for family in shard.telemetry.collect() for sample in family.samples]
            assert held > 0
            assert [sample.value for sample in page if sample.name == "servescope_series"] == [held]

    play(tmp_path, "s0", "s1", act=act)


def stored(folder: Path, store: str, deployment: Deployment) -> dict[str, list[tuple[int, float]]]:
    """The requests, or tokens, that each target of a deployment is known to have counted, by time."""
    with Store(folder / store, read_only=True) as opened:
        windows = opened.read_samples(deployment, ["requests_total", "output_tokens_total"], 0, 2 * START * 1000)
    found: dict[str, list[tuple[int, float]]] = {}
    for window in windows:
        for series, row in zip(window.series, window.values, strict=True):
            if series.name == "output_tokens_total":
                points = [
                    (int(at), value) for at, value in zip(window.times, row.tolist(), strict=True) if value == value
                ]
                found[dict(series.labels)["replica"]] = points
    return found


def test_shards_divide_the_targets(tmp_path: Path) -> None:
    """Each target is scraped by the one it belongs to, none by two, and the parent's figures are those of one."""

    async def act(fleet: Fleet) -> None:
        for _ in range(25):
            await fleet.step()
        by_target = fleet.scraped_by()
        assert len(by_target) == 16
        assert all(len(shards) == 1 for shards in by_target.values())
        assert {shard for (shard,) in by_target.values()} == {"a", "b", "c"}
        assert fleet.parent.problems == []
        figures = fleet.parent.evaluation.deployments[DUO].figures if fleet.parent.evaluation else {}
        # Frontend and workers are on different shards, and still nothing is added up over layers.
        assert len({by_target[name][0] for name in ("frontend", "worker-0", "worker-1", "worker-2")}) > 1
        assert figures["output_tokens_per_second"] == pytest.approx(fleet.truth("frontend") / (fleet.seconds - START))
        assert all(shard.evaluation is None or not shard.evaluation.deployments for shard in fleet.shards.values())

    play(tmp_path, "a", "b", "c", act=act)


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_while_shards_come_and_go(tmp_path: Path) -> None:
    """From one shard to two, to three, one leaves in order, one dies: each scrape is there once, and true."""

    async def act(fleet: Fleet) -> None:
        for _ in range(10):
            await fleet.step()
        for name, members in (("b", "ab"), ("c", "abc")):
            fleet.join(name)
            write_members(tmp_path, *members)
            for _ in range(10):
                await fleet.step()
            assert all(len(shards) == 1 for shards in fleet.scraped_by().values())
            assert fleet.shards[name].watched
        write_members(tmp_path, "b", "c")
        for _ in range(4):
            await fleet.step()
        assert fleet.shards["a"].watched == [], "it still has targets though the others have them all"
        assert "none of the members" in fleet.shards["a"].problems[0]
        await fleet.leave("a")
        for _ in range(5):
            await fleet.step()
        assert fleet.parent.problems == []
        died = fleet.seconds
        lost = {watched.target.identity.replica for watched in fleet.shards["b"].watched}
        fleet.unreachable.add("b")
        await fleet.leave("b")
        # Three rounds nobody scrapes its targets, then the others take them over.
        for _ in range(3):
            await fleet.scrape()
            await fleet.parent.gather()
        write_members(tmp_path, "c")
        for _ in range(30):
            await fleet.scrape()
            await fleet.parent.gather()
        fleet.check_figures()
        assert lost
        missed.update(dict.fromkeys(lost, died))

    missed: dict[str, float] = {}
    play(tmp_path, "a", act=act)
    for deployment, names in ((CHAT, {f"r{number}" for number in range(12)}), (DUO, {"frontend"})):
        gathered, truth = stored(tmp_path, "parent.db", deployment), stored(tmp_path, "single.db", deployment)
        for name in names:
            gap = [missed[name] + 15 * step for step in (1, 2, 3)] if name in missed else []
            expected = [(at, value) for at, value in truth[name] if at / 1000 not in gap]
            assert gathered[name] == expected, name
            assert gathered[name][-1][1] - gathered[name][0][1] == truth[name][-1][1] - truth[name][0][1]


def test_a_target_is_kept_until_its_new_owner_has_it(tmp_path: Path) -> None:
    """A member that is listed before it runs takes nothing away from the others."""

    async def act(fleet: Fleet) -> None:
        write_members(tmp_path, "a", "b", "late")
        for _ in range(5):
            await fleet.step()
        assert set(fleet.scraped_by()) == {*(f"r{number}" for number in range(12)), *fleet.began}
        assert any("'http://late:9900' does not answer" in problem for problem in fleet.shards["a"].problems)
        fleet.join("late")
        await fleet.step()
        both = [name for name, shards in fleet.scraped_by().items() if len(shards) == 2]
        await fleet.step()
        assert both
        assert all(len(shards) == 1 for shards in fleet.scraped_by().values())
        assert "late" in {name for (name,) in fleet.scraped_by().values()}
        assert fleet.shards["a"].problems == []

    play(tmp_path, "a", "b", act=act)


def test_answers_that_overtake_one_another_are_no_counter_reset(tmp_path: Path) -> None:
    """Of two shards that scrape a target within a moment, the later may have been answered first."""

    async def act(fleet: Fleet) -> None:
        async def overtaken(target: Target, limits: Limits, /) -> bytes:
            fleet.seconds -= 1
            try:
                return await fleet.fetch(target, limits)
            finally:
                fleet.seconds += 1

        write_members(tmp_path, "a", "late")
        fleet.join("late")
        late = fleet.shards["late"]
        late._clock = lambda: fleet.seconds + 0.005
        late._fetch = overtaken
        await fleet.step()
        assert {len(shards) for shards in fleet.scraped_by().values()} == {1, 2}
        late._fetch = fleet.fetch
        for _ in range(3):
            await fleet.scrape()
            await fleet.parent.gather()
        assert {len(shards) for shards in fleet.scraped_by().values()} == {1}

    play(tmp_path, "a", act=act)
    truth = stored(tmp_path, "single.db", CHAT)
    for name, points in stored(tmp_path, "parent.db", CHAT).items():
        assert [value for _, value in points] == [value for _, value in truth[name]]


def test_targets_of_a_silent_shard_are_unknown(tmp_path: Path) -> None:
    """They count neither as active nor as failing, it is said whose figures lack them; what was missed comes later."""

    async def act(fleet: Fleet) -> None:
        for _ in range(3):
            await fleet.step()
        lost = {watched.target.target_id for watched in fleet.shards["b"].watched}
        fleet.unreachable.add("b")
        for _ in range(4):
            await fleet.scrape()
            await fleet.parent.gather()
        figures = fleet.parent.evaluate(fleet.parent.now_ms).deployments[CHAT].figures
        chat = len([name for name in lost if name.startswith("chat/")])
        assert figures['replica_count_by_status{status="active"}'] == 12 - chat
        assert figures['replica_count_by_status{status="unhealthy"}'] == 0
        (problem,) = fleet.parent.problems
        assert f"{len(lost)} targets are unknown, and figures of 'chat', 'duo' lack them" in problem
        gauges = {gauge.name: dict(gauge.values) for gauge in fleet.parent.own_gauges()}
        assert gauges["servescope_shard_up"] == {(("shard", "http://a:9900"),): 1, (("shard", "http://b:9900"),): 0}
        unknown = [each.status for each in fleet.parent.watched if each.target.target_id in lost]
        assert all((each.error or "").startswith("unknown: shard http://b:9900") for each in unknown)

        fleet.unreachable.clear()
        await fleet.step()
        assert fleet.parent.problems == []

    play(tmp_path, "a", "b", act=act)
    assert stored(tmp_path, "parent.db", CHAT) == stored(tmp_path, "single.db", CHAT)


@pytest.mark.parametrize("steps", [3, 40])
def test_a_parent_that_was_away_catches_up(tmp_path: Path, steps: int) -> None:
    """From the shards' memory, or from their stores when it was away for longer; its figures are whole at once."""

    async def act(fleet: Fleet) -> None:
        await asyncio.to_thread(fleet.parent.close)
        for _ in range(steps):
            await fleet.scrape()
        fleet.open_parent()
        for _ in range(steps):
            await fleet.parent.gather()
        fleet.check_figures()
        for _ in range(2):
            await fleet.step()

    play(tmp_path, "a", "b", act=act)
    assert stored(tmp_path, "parent.db", CHAT) == stored(tmp_path, "single.db", CHAT)


def test_a_parent_that_was_away_while_targets_moved_catches_up(tmp_path: Path) -> None:
    """What one shard scraped of a target before, and another after, is put together in the order of time."""

    async def act(fleet: Fleet) -> None:
        fleet.join("0")
        await asyncio.to_thread(fleet.parent.close)
        for _ in range(5):
            await fleet.scrape()
        write_members(tmp_path, "0", "a", "b")
        for _ in range(5):
            await fleet.scrape()
        fleet.open_parent()
        await fleet.parent.gather()
        fleet.check_figures()

    play(tmp_path, "a", "b", act=act)
    assert stored(tmp_path, "parent.db", CHAT) == stored(tmp_path, "single.db", CHAT)


def test_a_parent_that_begins_without_a_shard_knows_its_targets(tmp_path: Path) -> None:
    """From its own store, until the shard says what it has now."""

    async def act(fleet: Fleet) -> None:
        fleet.parent.evaluate(fleet.parent.now_ms)
        await asyncio.to_thread(fleet.parent.close)
        lost = {watched.target.target_id for watched in fleet.shards["b"].watched}
        fleet.unreachable.add("b")
        for _ in range(4):
            await fleet.scrape()
        fleet.open_parent()
        await fleet.parent.gather()
        unknown = {each.target.target_id for each in fleet.parent.watched if fleet.parent.health(each) == "unknown"}
        assert unknown == lost
        assert fleet.parent.problems[0].startswith("shard 'http://b:9900' does not answer")
        fleet.unreachable.clear()
        fleet.write_targets("chat", "r0")
        await fleet.scrape()
        await fleet.parent.gather()
        assert {each.target.identity.replica for each in fleet.parent.watched if each.deployment == CHAT} == {"r0"}

    play(tmp_path, "a", "b", act=act)


def test_what_is_not_written_yet_is_kept_to_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a shard's store cannot be written, a parent that was away gets from its memory what the store lacks."""

    def fail(*_: object) -> None:
        raise StoreError("disk full")

    async def act(fleet: Fleet) -> None:
        await asyncio.to_thread(fleet.parent.close)
        fleet.stores_hang = True
        monkeypatch.setattr("servescope.collector.shard._BEHIND_SECONDS", 0.0)
        with monkeypatch.context() as patched:
            patched.setattr(Round, "write", fail)
            for _ in range(20):
                await fleet.scrape()
            fleet.open_parent()
            await fleet.parent.gather()
        fleet.check_figures()

    play(tmp_path, "a", "b", act=act)
    assert stored(tmp_path, "parent.db", CHAT) == stored(tmp_path, "single.db", CHAT)


def test_a_shard_that_was_started_anew_is_followed_on(tmp_path: Path) -> None:
    """Its log begins anew; what it scraped before is in its store."""

    async def act(fleet: Fleet) -> None:
        await fleet.scrape()
        await fleet.leave("a")
        fleet.join("a")
        for _ in range(3):
            await fleet.step()

    play(tmp_path, "a", "b", act=act)
    assert stored(tmp_path, "parent.db", CHAT) == stored(tmp_path, "single.db", CHAT)


def test_targets_that_leave_the_lists_leave_the_parent(tmp_path: Path) -> None:
    """With their last scrapes counted, and their series ended as by a collector that scrapes them itself."""

    async def act(fleet: Fleet) -> None:
        await fleet.scrape()
        # The parent does not look between the last scrape of a target and its end.
        fleet.write_targets("chat", *(f"r{number}" for number in range(1, 13)))
        for _ in range(30):
            await fleet.step()
        assert {each.target.identity.replica for each in fleet.parent.watched if each.deployment == CHAT} == {
            f"r{number}" for number in range(1, 13)
        }
        assert fleet.parent._leaving == {}

    play(tmp_path, "a", "b", act=act)
    assert stored(tmp_path, "parent.db", CHAT) == stored(tmp_path, "single.db", CHAT)


def test_scrapes_from_the_future_are_left_out(tmp_path: Path) -> None:
    """A shard whose clock is wrong must not shut out what comes after it was set right; it is told of."""

    async def act(fleet: Fleet) -> None:
        shard = fleet.shards["a"]
        shard._clock = lambda: fleet.seconds + 7200
        await fleet.scrape()
        await fleet.parent.gather()
        assert "the clock of shard 'http://a:9900' is 7200 s ahead of this collector's" in fleet.parent.problems
        assert all((each.status.last_scrape_ms or 0) <= fleet.parent.now_ms for each in fleet.parent.watched)
        assert all((each.ring.last_ms or 0) <= fleet.parent.now_ms for each in fleet.parent.watched)
        shard._clock = lambda: fleet.seconds
        for _ in range(26):
            await fleet.scrape()
            await fleet.parent.gather()
        fleet.check_figures()
        assert fleet.parent.problems == []

    play(tmp_path, "a", "b", act=act)


def test_a_wrong_answer_of_one_shard_costs_only_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told what was wrong with it, and what was missed comes when it is right again."""

    async def act(fleet: Fleet) -> None:
        relay = fleet.relay

        async def mix_up(name: str, path: str, query: dict[str, list[str]]) -> bytes:
            return b'{"cursor": 5}' if name == "a" and path == "/api/v1/scrapes" else await relay(name, path, query)

        fleet.relay = mix_up  # type: ignore[method-assign, method-assign]
        await fleet.scrape()
        await fleet.parent.gather()
        (problem,) = fleet.parent.problems
        assert "shard 'http://a:9900' does not answer: not a page of scrapes: KeyError" in problem
        fleet.relay = relay  # type: ignore[method-assign]
        await fleet.step()

    play(tmp_path, "a", "b", act=act)
    assert stored(tmp_path, "parent.db", CHAT) == stored(tmp_path, "single.db", CHAT)


def test_a_configuration_without_self_needs_one_to_scrape(tmp_path: Path) -> None:
    """Else a shared configuration started without --shard would scrape nothing and say nothing."""
    configuration = configure(tmp_path, {"members": ["http://a:1"]})
    with pytest.raises(ConfigurationError, match=r"no 'self'; a collector with .* needs it, or --shard"):
        Parent(configuration, None, None, None)  # type: ignore[arg-type]


def test_reads_of_a_shards_past_wait_in_line_with_the_others(tmp_path: Path) -> None:
    """A store is read by so many requests at once, whatever they ask for; nobody's catching up goes beyond that."""

    async def act(fleet: Fleet) -> None:
        shard = fleet.shards["a"]
        free, begun = threading.Event(), threading.Event()
        read_scrapes = shard.history.read_scrapes

        def held(*asked: Any) -> Any:
            begun.set()
            free.wait(10)
            return read_scrapes(*asked)

        shard.history.read_scrapes = held  # type: ignore[assignment, method-assign]
        await fleet.step()
        path = f"/api/v1/scrapes?since_ms=0&until_ms={START * 1000 + 60_000}"
        application = make_application(shard, bounds=Bounds(reads=1, waiting_reads=0))
        async with running(application) as url, aiohttp.ClientSession(url) as session:
            first = asyncio.create_task(session.get(path))
            await asyncio.to_thread(begun.wait, 10)
            async with session.get(path) as second:
                refused = second.status, await second.json()
            free.set()
            async with await first as answer:
                assert answer.status == 200
        assert refused == (503, {"error": "1 reads of the store are under way, ask again"})

    play(tmp_path, "a", "b", act=act)


def check_answer(path: str, status: int, body: bytes) -> None:
    """Hold an answer against what the API's description says of it."""
    document = describe()
    operation = document["paths"][path.partition("?")[0]]["get"]
    schema = {"$ref": "#/components/schemas/Error"}
    if status == 200:
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(json.loads(body))


def test_pages_over_http(tmp_path: Path) -> None:
    """A shard answers with pages and with what is wrong with a request; a parent is no shard."""
    asked = {
        "/api/v1/shard": 200,
        "/api/v1/scrapes": 200,
        "/api/v1/scrapes?after=nonsense": 200,
        f"/api/v1/scrapes?since_ms=0&until_ms={START * 1000 + 60_000}": 200,
        "/api/v1/scrapes?since_ms=2&until_ms=1": 400,
        "/api/v1/scrapes?after=x&since_ms=1": 400,
        "/api/v1/scrapes?since_ms=soon": 400,
        "/api/v1/layouts?digest=a,b": 200,
        "/api/v1/layouts": 400,
        f"/api/v1/layouts?digest={','.join('a' * 51)}": 400,
        f"/api/v1/layouts?digest={digest_text('x')}": 200,
    }

    async def act(fleet: Fleet) -> None:
        async with running(make_application(fleet.shards["a"])) as url, aiohttp.ClientSession(url) as session:
            for path, status in asked.items():
                async with session.get(path) as answer:
                    assert answer.status == status, path
                    body = await answer.read()
                check_answer(path, status, body)
                if path.startswith("/api/v1/scrapes") and status == 200:
                    read = read_page(body)
                    assert (read.gap, bool(read.scrapes)) == ("after" in path, "since" in path), path
        async with running(make_application(fleet.parent)) as url, aiohttp.ClientSession(url) as session:
            async with session.get("/api/v1/scrapes") as answer:
                assert answer.status == 404
                assert (await answer.json())["error"].startswith("this collector is no shard")
            async with session.get("/metrics") as answer:
                assert 'servescope_shard_up{shard="http://a:9900"} 1.0\n' in await answer.text()

    play(tmp_path, "a", act=act)


# --- Processes --------------------------------------------------------------------------------------------------------


class _Counting(BaseHTTPRequestHandler):
    """Targets that count every answer they give; all that each one ever said is kept."""

    said: ClassVar[dict[str, list[float]]] = {}
    frozen = False

    def do_GET(self) -> None:
        said = self.said.setdefault(self.path, [])
        if not said or not self.frozen:
            said.append(said[-1] + 10 if said else 0.0)
        body = page(said[-1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def counting() -> Iterator[int]:
    _Counting.said, _Counting.frozen = {}, False
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Counting)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


SETTINGS = """
[collector]
scrape_interval = "500ms"
evaluation_interval = "500ms"
discovery_interval = "200ms"
window = "5s"
[shards]
members_file = "../members.json"
"""
REPLICAS = {f"r{number}" for number in range(12)}


def shown(port: int) -> set[str]:
    """The replicas of which a collector's /metrics has contract samples."""
    text = str(get(f"http://127.0.0.1:{port}/metrics"))
    return set(re.findall(r'^output_tokens_total\{.*replica="(r\d+)"', text, re.MULTILINE))


@pytest.mark.slow
def test_processes_lose_nothing_while_shards_come_and_go(tmp_path: Path, counting: int) -> None:
    """One shard, two, three, one leaves and one is killed: a parent has each target's whole count, once."""
    groups = [
        {"targets": [f"127.0.0.1:{counting}"], "labels": {"replica": name, "__metrics_path__": f"/{name}"}}
        for name in sorted(REPLICAS)
    ]
    (tmp_path / "targets.json").write_text(json.dumps(groups))
    ports = {name: free_port() for name in ("a", "b", "c", "parent")}
    logs = {name: tmp_path / name / "collect.log" for name in ports}

    def list_members(*names: str) -> None:
        members = [{"targets": [f"127.0.0.1:{ports[name]}" for name in names]}]
        (tmp_path / "fresh").write_text(json.dumps(members))
        (tmp_path / "fresh").replace(tmp_path / "members.json")

    def start(name: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        words = ["--config", "servescope.toml", "--listen", f"127.0.0.1:{ports[name]}"]
        text = SETTINGS
        if name != "parent":
            words += ["--shard", f"http://127.0.0.1:{ports[name]}"]
            text += CONFIGURATION.partition("[[deployments]]")[1] + CONFIGURATION.partition("[[deployments]]")[2]
        (folder / "servescope.toml").write_text(text.replace("targets.json", "../targets.json"))
        return stack.enter_context(collecting(*words, folder=folder))

    def divided(*names: str) -> bool:
        """Whether the shards' pages are disjoint and together complete."""
        pages = [shown(ports[name]) for name in names]
        return all(pages) and sum(map(len, pages)) == len(REPLICAS) and set().union(*pages) == REPLICAS

    def gathered(replicas: set[str] = REPLICAS) -> bool:
        return shown(ports["parent"]) == replicas

    with ExitStack() as stack:
        list_members("a")
        processes = {"a": start("a"), "parent": start("parent")}
        wait_until(lambda: divided("a") and gathered(), logs["a"])
        list_members("a", "b")
        processes["b"] = start("b")
        wait_until(lambda: divided("a", "b"), logs["b"])
        processes["c"] = start("c")
        list_members("a", "b", "c")
        wait_until(lambda: divided("a", "b", "c"), logs["c"])
        wait_until(gathered, logs["parent"])

        list_members("b", "c")
        wait_until(lambda: json.loads(get(f"http://127.0.0.1:{ports['a']}/api/v1/targets"))["targets"] == [], logs["a"])
        processes["a"].send_signal(signal.SIGTERM)
        assert processes["a"].wait(10) == 0
        wait_until(lambda: divided("b", "c"), logs["b"])
        lost = shown(ports["b"])
        processes["b"].kill()
        wait_until(lambda: gathered(REPLICAS - lost), logs["parent"])
        problems = json.loads(get(f"http://127.0.0.1:{ports['parent']}/api/v1/targets"))["problems"]
        assert any(f"{len(lost)} targets are unknown, and figures of 'chat' lack them" in each for each in problems)
        metrics = get(f"http://127.0.0.1:{ports['parent']}/metrics")
        assert f'servescope_shard_up{{shard="http://127.0.0.1:{ports["b"]}"}} 0.0\n' in metrics
        list_members("c")
        wait_until(gathered, logs["parent"])
        _Counting.frozen = True
        time.sleep(1.5)
        processes["parent"].send_signal(signal.SIGTERM)
        assert processes["parent"].wait(10) == 0

    found = stored(tmp_path, "parent/servescope.db", Deployment("llama", "chat", "v1"))
    assert set(found) == REPLICAS
    for name, points in found.items():
        said = _Counting.said[f"/{name}"]
        values = [value for _, value in points]
        assert values == sorted(values), f"{name} counts backwards"
        assert (values[0], values[-1]) == (said[0], said[-1]), f"{name} does not have the whole count"
    for log in logs.values():
        assert "Traceback" not in log.read_text()
