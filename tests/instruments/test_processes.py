"""Process groups: real processes, forked, spawned, stopped and killed, add up as if they were one."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import multiprocessing
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.request import urlopen

import pytest

from servescope.contract.identity import Identity
from servescope.errors import ServescopeError, UsageError
from servescope.exposition.registry import PrometheusCollector
from servescope.exposition.rendering import render, render_openmetrics
from servescope.exposition.web import AsgiApp
from servescope.instruments import aggregation, keeper, member, processes
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.processes import ProcessGroup
from servescope.instruments.router import RouterInstruments
from servescope.instruments.testing import value
from servescope.plugins.steps import StepInstruments
from tests.conftest import ROOT
from tests.instruments.conftest import assert_values
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="process groups need Linux's abstract sockets"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

IDENTITY = Identity("llama-70b", "chat-v2", "v2", replica="engine-0")


@pytest.fixture
def name() -> str:
    """A group of this test's own."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def nothing_left(name: str) -> Iterator[None]:
    """A group leaves no file, no shared memory, no socket and no descriptor behind."""
    before = _files(), _descriptors()
    yield
    assert eventually(lambda: name not in Path("/proc/net/unix").read_text())
    assert _files() == before[0]
    assert eventually(lambda: _descriptors() <= before[1])


def _files() -> set[str]:
    folders = (tempfile.gettempdir(), "/dev/shm")
    names = {entry.name for folder in folders for entry in Path(folder).iterdir()}
    return {name for name in names if "servescope" in name or "test-" in name}


def _descriptors() -> int:
    """How many sockets and events this process has open."""
    opened = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            opened.append(str(entry.readlink()))
    return sum(target.startswith(("socket:", "anon_inode:[eventfd]")) for target in opened)


def eventually(claim: Callable[[], Any]) -> bool:
    """True once the claim holds; a group that cannot be read yet does not fulfil it."""
    return bool(wait_for(claim, "the group", ignoring=(ServescopeError,)))


def serve_requests(engine: EngineInstruments, count: int) -> None:
    for _ in range(count):
        request = engine.start_request(10)
        request.tokens(3)
        request.finish()


def started(group: ProcessGroup) -> float | None:
    return value(group, "requests_started_total")


def balanced(group: ProcessGroup) -> bool:
    """Arrivals = outcomes + in flight, in one reading."""
    sums = dict.fromkeys(("requests_started_total", "requests_total", "concurrent_requests"), 0.0)
    for sample in group.samples():
        if sample.name in sums:
            sums[sample.name] += sample.value
    return sums["requests_started_total"] == sums["requests_total"] + sums["concurrent_requests"]


@contextlib.contextmanager
def forked(work: Callable[[], None]) -> Iterator[int]:
    """A forked child that does its work, then waits to be killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
            signal.pause()
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        end(child)


def end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


MEMBER = """
    import sys, threading, time
    from servescope import EngineInstruments, Identity
    from servescope.instruments.processes import ProcessGroup
    from servescope.instruments.testing import value

    def serve_requests(count):
        for _ in range(count):
            request = engine.start_request(10)
            request.tokens(3)
            request.finish()

    engine = EngineInstruments(Identity("llama-70b", "chat-v2", "v2", replica="engine-0"))
    group = ProcessGroup(sys.argv[1], engine, interval_seconds=0.2)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "requests":
            serve_requests(int(arguments[0]))
            print("done", flush=True)
        elif command == "hammer":
            threading.Thread(target=serve_requests, args=(10**9,), daemon=True).start()
            print("done", flush=True)
        elif command == "read":
            try:
                print(value(group, *arguments), flush=True)
            except Exception as error:
                print(error, flush=True)
"""


class Member:
    """A process of its own that belongs to the group, and obeys commands."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(MEMBER), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def send(self, *command: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*command, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def read(self, *arguments: object) -> float:
        return float(self.send("read", *arguments))

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        """Close its input, and wait until it has ended by itself."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(deadline_seconds())

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


def test_a_group_of_one_is_what_its_instruments_are(name: str) -> None:
    """The same series and values but when it began, and three about the group."""
    engine = EngineInstruments(IDENTITY)
    engine.record_speculation(10, (3, 1))
    serve_requests(engine, 3)
    with ProcessGroup(name, engine) as group:
        ours = [line for line in render(group).splitlines() if b"servescope_group" not in line]
        alone = [line for line in render(engine).splitlines() if b"replica_start_time" not in line]
        assert sorted(ours) == sorted(alone)
        assert render_openmetrics(group).endswith(b"# EOF\n")
        assert value(group, "servescope_group_processes", group=name) == 1
        assert value(group, "servescope_group_processes_ended_total") == 0
        assert {family.name for family in PrometheusCollector(group).collect()} >= {"requests", "concurrent_requests"}


def test_counts_and_loads_are_summed_and_shares_averaged(name: str) -> None:
    """Each gauge by its rule; a ratio is computed from the summed tokens, not averaged."""
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine) as group:

        def work() -> None:
            serve_requests(engine, 4)
            engine.start_request(1)
            engine.set_queued_requests(5)
            engine.set_kv_cache_usage(0.9)
            engine.record_speculation(90, (9,))

        serve_requests(engine, 2)
        engine.set_queued_requests(2)
        engine.set_kv_cache_usage(0.1)
        engine.record_speculation(10, (10,))
        with forked(work):
            assert eventually(lambda: started(group) == 7)
            assert eventually(lambda: value(group, "spec_decode_num_draft_tokens_total") == 100)
            assert value(group, "requests_total", outcome="ok") == 6
            assert_values(group, request_duration_seconds_count=6, concurrent_requests=1, queued_requests=7)
            assert_values(group, kv_cache_usage=pytest.approx(0.5), speculation_rate=pytest.approx(19 / 100))
            assert value(group, "servescope_group_processes") == 2
            assert balanced(group)


def test_answers_at_a_limit_add_up(name: str) -> None:
    """The counter is there once any process knows of an answer whether it was truncated."""
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine) as group:
        assert value(group, "answers_truncated_total") is None
        engine.start_request(1).finish(truncated=True)
        with forked(lambda: engine.start_request(1).finish(truncated=True)):
            assert eventually(lambda: value(group, "answers_truncated_total") == 2)
            assert value(group, "requests_total", outcome="ok") == 2


def test_the_hit_rate_of_an_engine_that_reports_its_steps_is_on_the_page(name: str) -> None:
    """It is computed from the tokens, as a router's is."""
    engine = StepInstruments(IDENTITY)
    engine.record_cache_use(eligible_tokens=10, reused_tokens=4)
    with ProcessGroup(name, engine) as group:
        assert value(group, "kv_cache_hit_rate") == pytest.approx(0.4)


def test_what_every_process_sees_alike_is_not_summed(name: str) -> None:
    """A router's index state and an autoscaler's decisions are one thing seen twice; skew is made of sums."""
    router = RouterInstruments(Identity("llama-70b", "chat-v2", "v2", role="router"))
    autoscaler = AutoscalerInstruments(Identity("llama-70b", "chat-v2", "v2", role="autoscaler"))
    with ProcessGroup(name, router, autoscaler) as group:

        def work() -> None:
            router.set_index_state("degraded")
            autoscaler.set_replicas({"active": 3})
            router.route(eligible_tokens=300, predicted_tokens=200, best_tokens=200, candidates=2).report(100)

        router.set_index_state("exact")
        autoscaler.set_replicas({"active": 2})
        router.route(eligible_tokens=100, predicted_tokens=100, best_tokens=100, candidates=2).report(100)
        with forked(work):
            assert eventually(lambda: value(group, "kv_cache_eligible_tokens_total") == 400)
            assert value(group, "replica_count_by_status", status="active") == 3
            assert value(group, "router_index_state", state="degraded") == 1
            assert value(group, "router_index_state", state="exact") == 1
            assert_values(group, kv_cache_hit_rate=pytest.approx(0.5), kv_cache_hit_rate_skew=pytest.approx(0.25))


def test_ranks_with_replicas_of_their_own_stay_apart(name: str) -> None:
    """Series are added up by their labels: ranks with different labels remain different series."""
    ranks = [EngineInstruments(Identity("llama-70b", "chat-v2", "v2", replica=f"dp{rank}")) for rank in range(2)]
    with ProcessGroup(name, ranks[0]) as group, ProcessGroup(name, ranks[1]):
        for rank, engine in enumerate(ranks):
            serve_requests(engine, rank + 1)
        assert eventually(lambda: value(group, "requests_total", outcome="ok", replica="dp1") == 2)
        assert value(group, "requests_total", outcome="ok", replica="dp0") == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_children_of_multiprocessing_leave_their_last_state(name: str, method: str) -> None:
    """A worker that exits normally loses nothing, however short it lived."""
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine) as group:
        context: Any = multiprocessing.get_context(method)
        workers = [context.Process(target=_work, args=(name, 20)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(deadline_seconds())
            assert worker.exitcode == 0
            worker.close()
        expected = 3 * 20
        assert eventually(lambda: value(group, "requests_total", outcome="ok") == expected)
        # The resource tracker of spawned children is not ours; forked ones also leave the copy they were forked with.
        assert eventually(lambda: (value(group, "servescope_group_processes_ended_total") or 0) >= 3)
        assert value(group, "servescope_group_processes") == 1


def _work(name: str, count: int) -> None:
    engine = EngineInstruments(IDENTITY)
    ProcessGroup(name, engine)
    serve_requests(engine, count)


@pytest.mark.parametrize("role", ["auto", "member"])
def test_a_process_that_leaves_before_its_thread_ran_loses_nothing(
    name: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short-lived worker on a busy machine: its counts are handed over as it ends."""
    engine, worker = EngineInstruments(IDENTITY), EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine) as group:
        run = member.Member._run

        def run_late(late: member.Member) -> None:
            wait_for(lambda: late._part.closing, "the group to be closed")
            run(late)

        monkeypatch.setattr(member.Member, "_run", run_late)
        monkeypatch.setattr(processes, "_JOIN_SECONDS", 0.0)
        with ProcessGroup(name, worker, role=role, wait_seconds=1e-3):
            serve_requests(worker, 20)
        assert eventually(lambda: value(group, "servescope_group_processes_ended_total") == 1)
        assert value(group, "requests_total", outcome="ok") == 20
        assert value(group, "servescope_group_processes") == 1


def test_what_a_process_sent_is_read_though_it_left_before_it_was_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last state and its leave wait behind its introduction, to which the keeper can no longer answer."""
    engine, worker = EngineInstruments(IDENTITY), EngineInstruments(IDENTITY)
    ask, left = keeper.Keeper._ask, threading.Event()

    def ask_late(asking: keeper.Keeper, process: keeper._Process) -> None:
        left.wait(deadline_seconds())
        ask(asking, process)

    with ProcessGroup(name, engine) as group:
        monkeypatch.setattr(keeper.Keeper, "_ask", ask_late)
        with ProcessGroup(name, worker):
            # Recorded after it introduced itself.
            serve_requests(worker, 20)
        left.set()
        assert eventually(lambda: value(group, "servescope_group_processes_ended_total") == 1)
        assert value(group, "requests_total", outcome="ok") == 20


def test_the_first_process_has_joined_when_it_goes_on(name: str) -> None:
    """However short its readings wait: a child that it forks at once finds it, and does not keep the group itself."""
    with ProcessGroup(name, EngineInstruments(IDENTITY), wait_seconds=1e-9) as group:
        assert group._member.joined.is_set()


def test_a_killed_process_stays_in_the_sums_and_its_gauges_go(name: str) -> None:
    """Sums never fall; what it had in flight ended by an error, so that arrivals still are outcomes and in flight."""
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine) as group:

        def work() -> None:
            serve_requests(engine, 4)
            engine.start_request(1)
            engine.start_request(1)
            engine.set_queued_requests(2)

        with forked(work) as child:
            assert eventually(lambda: value(group, "queued_requests") == 2)
            assert value(group, "concurrent_requests") == 2
            end(child)
            assert eventually(lambda: value(group, "servescope_group_processes_ended_total") == 1)
            assert started(group) == 6
            assert value(group, "requests_total", outcome="ok") == 4
            assert value(group, "requests_total", outcome="error") == 2
            assert_values(group, concurrent_requests=0, queued_requests=None)
            assert balanced(group)
        with forked(work):
            assert eventually(lambda: started(group) == 12)  # the next generation begins beside what stays


@pytest.mark.slow
def test_memory_does_not_grow_with_generations(name: str) -> None:
    """Ended processes become one sum."""
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine) as group:
        for generation in range(12):
            with forked(lambda: serve_requests(engine, 1)):
                assert eventually(lambda: started(group) == generation + 1)  # noqa: B023 - asked within the loop
        assert eventually(lambda: value(group, "servescope_group_processes_ended_total") == 12)
        keeper = group._member._keeper
        assert keeper._processes == {}
        assert sum(len(series) for _, series in keeper._remainder.families) < 500
        assert len(group.samples()) < 500


@pytest.mark.slow
def test_sums_do_not_fall_when_workers_that_end_had_more_segments_than_are_kept(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond the bound are the segment of all others; requests without one are what they were."""
    monkeypatch.setattr(aggregation, "MAX_SERIES", 3_000)
    with ProcessGroup(name, EngineInstruments(IDENTITY)) as group:
        for worker in range(4):
            engine = EngineInstruments(IDENTITY)
            serve_requests(engine, 1)
            for segment in range(5):
                engine.start_request(1, segment=f"{worker}-{segment}").finish("ok")
            with ProcessGroup(name, engine):
                assert eventually(lambda: value(group, "servescope_group_processes") == 2)
        assert eventually(lambda: value(group, "servescope_group_processes_ended_total") == 4)
        samples = group.samples()
        assert sum(sample.value for sample in samples if sample.name == "requests_started_total") == 4 * 6
        assert sum(sample.value for sample in samples if sample.name == "request_duration_seconds_count") == 4 * 6
        assert value(group, "requests_started_total", segment="") == 4
        assert value(group, "requests_started_total", segment="0-0") == 1
        assert value(group, "requests_started_total", segment="3-4") is None
        assert len(samples) < 3_500


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.proof)])
def test_the_keeper_killed_again_and_again_loses_no_counts(name: str, kills: int) -> None:
    """Another process replaces it with all it knew: what a page once showed never falls, and arrivals add up."""
    members = [Member(name) for _ in range(3)]
    try:
        for count, member in enumerate(members, 1):
            member.send("requests", 10 * count)
        assert eventually(lambda: all(member.send("read", "requests_started_total") == "60.0" for member in members))
        shown = 60.0
        for _ in range(kills):
            members.append(Member(name))
            members[-1].send("requests", 5)
            shown += 5
            assert eventually(lambda: members[-1].send("read", "requests_started_total") == str(shown))  # noqa: B023
            # The first to come keeps the group: it is killed as it records.
            members[0].send("hammer")
            for _ in range(5):
                now = members[1].read("requests_started_total")
                assert now >= shown
                shown = now
            members.pop(0).kill()
            for _ in range(10):
                answers = [member.send("read", "requests_started_total") for member in members]
                for answer in answers:
                    assert float(answer) >= shown
                    shown = max(shown, float(answer))
        ended = members[0].read("servescope_group_processes_ended_total")
        assert ended == kills
    finally:
        for member in members:
            with member:
                pass


@pytest.mark.slow
def test_the_last_state_of_a_keeper_that_leaves_is_kept(name: str) -> None:
    """It hands over before it ends; the others continue."""
    with Member(name) as first:
        first.send("requests", 7)
        with Member(name) as second:
            assert eventually(lambda: second.send("read", "requests_started_total") == "7.0")
            first.send("requests", 5)
            first.close()
            assert eventually(lambda: second.send("read", "requests_started_total") == "12.0")
            assert second.read("servescope_group_processes_ended_total") == 1


def stop(process: int) -> None:
    """Stop a process, so that it hangs until it is continued."""
    os.kill(process, signal.SIGSTOP)
    stat = Path(f"/proc/{process}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the process to stop")


def state_age(group: ProcessGroup) -> float:
    age = value(group, "servescope_group_state_age_seconds")
    assert age is not None
    return age


@pytest.mark.slow
def test_a_page_does_not_wait_for_ever_for_a_process_that_hangs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last state is used, beside what others counted since, and its age shown; once it goes on, all is fresh."""
    # However long it hangs, each page waits for it again, and only `wait_seconds` end that.
    monkeypatch.setattr("servescope.instruments.keeper._HANGS_SECONDS", 1e6)
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine, wait_seconds=0.1) as group, forked(lambda: serve_requests(engine, 4)) as child:
        assert eventually(lambda: started(group) == 4)
        stop(child)
        serve_requests(engine, 1)
        assert eventually(lambda: started(group) == 5)
        assert eventually(lambda: state_age(group) > 1.0)
        stale = state_age(group)
        os.kill(child, signal.SIGCONT)
        assert eventually(lambda: state_age(group) < stale)
        assert started(group) == 5


@pytest.mark.slow
def test_a_process_known_to_hang_is_not_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that waits without end for it does not block the next one; when it goes on, both are complete."""
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine, wait_seconds=1e6) as group, forked(lambda: serve_requests(engine, 4)) as child:
        assert eventually(lambda: started(group) == 4)
        stop(child)
        monkeypatch.setattr("servescope.instruments.keeper._HANGS_SECONDS", 0.0)
        waited: list[float | None] = []
        reader = threading.Thread(target=lambda: waited.append(started(group)))
        reader.start()
        wait_for(lambda: group._member._keeper._rounds, "the first page to be asked for")
        assert started(group) == 4
        assert not waited
        os.kill(child, signal.SIGCONT)
        reader.join(deadline_seconds())
        assert waited == [4]


@pytest.mark.slow
def test_a_keeper_that_hangs_blocks_no_page_of_the_others(name: str) -> None:
    """The last known page is shown, with its age; without one there is an error, not a wrong sum."""
    with Member(name) as keeper:
        keeper.send("requests", 3)
        with Member(name) as member:
            assert eventually(lambda: member.send("read", "requests_started_total") == "3.0")
            stop(keeper.process.pid)
            assert member.read("requests_started_total") == 3
            assert eventually(lambda: member.read("servescope_group_state_age_seconds") > 0.5)
            stale = member.read("servescope_group_state_age_seconds")
            engine = EngineInstruments(IDENTITY)
            with ProcessGroup(name, engine) as group, pytest.raises(ServescopeError, match="cannot be read"):
                group.samples()
            keeper.process.send_signal(signal.SIGCONT)
            assert eventually(lambda: member.read("servescope_group_state_age_seconds") < stale)


@pytest.mark.slow
def test_forks_amid_readings_join_and_add_up(name: str) -> None:
    """Children forked while others record and read begin from nothing; every request is counted once."""
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine) as group, contextlib.ExitStack() as children:
        for count in range(1, 9):
            serve_requests(engine, 1)
            children.enter_context(forked(lambda: serve_requests(engine, 10)))
            assert eventually(lambda: started(group) == 11 * count)  # noqa: B023 - asked within the loop
        assert value(group, "servescope_group_processes") == 9
        assert balanced(group)


def test_a_thread_that_goes_on_in_a_forked_child_counts_nothing_twice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gevent's do: the child's own thread is the one that takes part."""
    engine = EngineInstruments(IDENTITY)
    with ProcessGroup(name, engine, interval_seconds=0.05) as group:
        group._join_in_child()
        serve_requests(engine, 1)
        assert eventually(lambda: started(group) == 1)
        snapshots = Mock()
        monkeypatch.setattr(group._member._keeper, "_send_snapshot", snapshots)
        wait_for(lambda: snapshots.call_count >= 10, "ten intervals")
        assert started(group) == 1
        assert value(group, "servescope_group_processes") == 1


def test_a_process_that_cannot_be_looked_up_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper without a free descriptor would count those that it then admits again twice."""
    living = keeper._Process("token", os.getpid(), keeper.start_of(os.getpid()) or "")
    with monkeypatch.context() as full:
        full.setattr(Path, "read_text", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert not living.ended()
    assert keeper._Process("token", os.getpid(), "another start").ended()


@pytest.mark.slow
def test_any_process_of_the_group_shows_all_of_it(name: str) -> None:
    """A scrape that reaches any worker shows the whole engine."""
    with Member(name) as one, Member(name) as other:
        one.send("requests", 3)
        other.send("requests", 4)
        assert eventually(lambda: one.send("read", "requests_started_total") == "7.0")
        assert eventually(lambda: other.send("read", "requests_started_total") == "7.0")
        one.send("requests", 1)
        assert other.read("requests_started_total") == 8  # asked anew, not as of the last interval


def test_a_wrong_construction_is_refused(name: str) -> None:
    """The message names the value and what was expected; nothing is begun."""
    engine = EngineInstruments(IDENTITY)
    other = EngineInstruments(Identity("llama-70b", "chat-v1", "v1"))
    wrong: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("group name is 'a b'", ("a b", engine), {}),
        ("group name is ''", ("", engine), {}),
        ("unknown role 'boss'", (name, engine), {"role": "boss"}),
        ("no instruments given", (name,), {}),
        ("'engine' are no instruments", (name, "engine"), {}),
        ("are of 2 deployments", (name, engine, other), {}),
        ("have one identity", (name, engine, EngineInstruments(IDENTITY)), {}),
        ("interval_seconds is 0", (name, engine), {"interval_seconds": 0}),
        ("wait_seconds is nan", (name, engine), {"wait_seconds": float("nan")}),
    ]
    for message, arguments, keywords in wrong:
        with pytest.raises(UsageError, match=message):
            ProcessGroup(*arguments, **keywords)
    with ProcessGroup(name, engine), pytest.raises(UsageError, match="in a group already"):
        ProcessGroup(name, engine)


def test_a_group_refuses_a_process_of_another_deployment(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two engines that chose one name do not add up; the second says so, once."""
    caplog.set_level(logging.WARNING, "servescope")
    ours = EngineInstruments(IDENTITY)
    other = EngineInstruments(Identity("llama-70b", "chat-v1", "v1"))
    serve_requests(other, 5)
    with ProcessGroup(name, ours) as group:
        assert started(group) == 0
        with ProcessGroup(name, other) as stranger:
            assert eventually(lambda: stranger._member.refused)
            with pytest.raises(ServescopeError, match="of another deployment"):
                stranger.samples()
        assert started(group) == 0
    assert sum("another deployment" in record.getMessage() for record in caplog.records) == 1


def test_garbage_from_another_process_breaks_nothing(name: str) -> None:
    """A connection that sends nonsense is closed; the group continues."""
    engine = EngineInstruments(IDENTITY)
    hello = json.dumps({"token": "x", "deployment": dict(IDENTITY.deployment().labels()), "standby": False}).encode()
    frame = struct.Struct("<cI").pack
    nonsense = [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(b"S", 12) + b"0" * 12,
        frame(b"H", 4) + b"null",
        frame(b"H", len(hello)) + hello + frame(b"L", 3) + b"abc",
        frame(b"H", len(hello)) + hello + frame(b"S", 9) + b"0" * 9,
        frame(b"H", 2**31),
        b"",
    ]
    with ProcessGroup(name, engine) as group:
        serve_requests(engine, 2)
        assert started(group) == 2
        for words in nonsense:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(group._member.address)
                connection.sendall(words)
                if words:
                    connection.settimeout(5)
                    with contextlib.suppress(ConnectionResetError):
                        while connection.recv(4096):
                            pass
        assert started(group) == 2
        assert eventually(lambda: value(group, "servescope_group_processes") == 1)


def test_a_machine_without_abstract_sockets_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems than Linux the constructor says what to do instead."""
    monkeypatch.setattr("servescope.instruments.processes.sys.platform", "darwin")
    with pytest.raises(ServescopeError, match="needs Linux"):
        ProcessGroup(name, EngineInstruments(IDENTITY))


def test_the_code_of_the_documentation_runs(name: str) -> None:
    """The blocks of docs/processes.md, one after another: the server's page is the group's, and the app is one."""
    page = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", page)
    assert len(blocks) == 2
    namespace: dict[str, Any] = {}
    try:
        for block in blocks:
            exec(compile(block.replace("chat-v2-engine-0", name), "docs/processes.md", "exec"), namespace)
        with urlopen(namespace["server"].url, timeout=deadline_seconds()) as answer:
            assert f'servescope_group_processes{{deployment_id="chat-v2",group="{name}"'.encode() in answer.read()
        assert isinstance(namespace["make_metrics_app"](), AsgiApp)
    finally:
        namespace["server"].close()
        for group in list(processes._groups):
            group.close()
