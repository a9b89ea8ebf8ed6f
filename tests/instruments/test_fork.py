"""Instruments, resources and servers in a forked child: it starts from nothing, and nothing hangs."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable

import pytest

from servescope.contract.identity import Identity
from servescope.exposition.rendering import render
from servescope.exposition.serving import serve
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.resources import ResourceMeter
from servescope.instruments.router import RouterInstruments
from servescope.instruments.testing import value
from servescope.plugins.steps import StepInstruments
from tests.instruments.conftest import assert_values
from tests.support.waiting import deadline_seconds

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

IDENTITY = Identity("llama-70b", "chat-v2", "v2", replica="engine-0")


def in_child(claim: Callable[[], bool]) -> bool:
    """Whether the claim holds in a forked child, which answers in time."""
    child = os.fork()
    if child == 0:
        held = False
        try:
            held = claim()
        finally:
            os._exit(0 if held else 1)
    descriptor = os.pidfd_open(child)
    ended, _, _ = select.select([descriptor], [], [], deadline_seconds())
    os.close(descriptor)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert ended, "the child did not end in time"
    return status == 0


def test_a_child_starts_from_nothing_under_its_own_replica() -> None:
    """What the parent counted, set and has in flight is not the child's; its series have a replica of their own."""
    engine = EngineInstruments(IDENTITY)
    router = RouterInstruments(Identity("llama-70b", "chat-v2", "v2", role="router"))
    autoscaler = AutoscalerInstruments(Identity("llama-70b", "chat-v2", "v2", role="autoscaler"))
    engine.start_request(5).finish()
    engine.set_queued_requests(3)
    router.count_event_gaps(2)
    autoscaler.set_replicas({"active": 2})

    def claim() -> bool:
        assert_values(engine, requests_started_total=0, queued_requests=None)
        assert value(router, "router_index_event_gaps_total") is None
        assert value(autoscaler, "replica_count_by_status", status="active") is None
        assert value(router, "kv_cache_reused_tokens_total", replica=os.getpid()) == 0
        engine.start_request(5).first_token()
        assert value(engine, "requests_started_total", replica=f"engine-0-{os.getpid()}") == 1
        return f'replica="engine-0-{os.getpid()}"'.encode() in render(engine)

    assert in_child(claim)
    assert value(engine, "requests_started_total", replica="engine-0") == 1
    assert value(engine, "queued_requests") == 3


def test_instruments_of_steps_start_from_nothing_too() -> None:
    """Their own series are reset too: the child counts its own, and none of its parent's."""
    engine = StepInstruments(IDENTITY, unreported_outcomes=("client_error",))
    engine.count_tokens(input_tokens=5, output_tokens=7)
    engine.record_cache_use(eligible_tokens=10, reused_tokens=5)
    engine.set_concurrent_requests(3)
    engine.samples()

    def claim() -> bool:
        assert_values(engine, concurrent_requests=None, kv_cache_hit_rate=None)
        engine.count_tokens(input_tokens=1, output_tokens=2)
        engine.record_cache_use(eligible_tokens=10, reused_tokens=2)
        engine.count_ended("ok", 4)
        assert_values(engine, output_tokens_total=2, kv_cache_reused_tokens_total=2, kv_cache_hit_rate=0.2)
        assert value(engine, "requests_total", outcome="client_error") is None
        return value(engine, "requests_total", outcome="ok") == 4

    assert in_child(claim)
    assert value(engine, "kv_cache_hit_rate") == 0.5


def test_a_grandchild_is_named_after_the_first_of_its_line() -> None:
    """The suffix does not grow from fork to fork."""
    engine = EngineInstruments(IDENTITY)

    def claim() -> bool:
        return in_child(lambda: engine.identity.replica == f"engine-0-{os.getpid()}")

    assert in_child(claim)


def test_what_the_parent_began_is_not_ended_in_the_child() -> None:
    """A request or an attempt copied by the fork is refused there, and ends in the parent."""
    engine = EngineInstruments(IDENTITY)
    router = RouterInstruments(Identity("llama-70b", "chat-v2", "v2", role="router"))
    request = engine.start_request(5)
    attempt = router.route(eligible_tokens=10, predicted_tokens=5, best_tokens=5, candidates=2)

    def claim() -> bool:
        request.first_token()
        request.tokens(2)
        request.finish()
        attempt.report(5)
        assert value(engine, "servescope_instrument_errors_total", kind="inherited") == 3
        assert value(router, "servescope_instrument_errors_total", kind="inherited") == 1
        assert_values(engine, concurrent_requests=0, output_tokens_total=0)
        return value(router, "kv_cache_eligible_tokens_total") == 0

    assert in_child(claim)
    request.finish()
    attempt.report(5)
    assert value(engine, "requests_total", outcome="ok") == 1
    assert value(router, "kv_cache_reused_tokens_total") == 5


@pytest.mark.slow
@pytest.mark.parametrize("forks", [8, pytest.param(100, marks=pytest.mark.proof)])
def test_a_fork_amid_recording_and_rendering_does_not_hang(forks: int) -> None:
    """Whatever lock another thread holds at the fork, the child records and renders."""
    meter = ResourceMeter()
    engine = EngineInstruments(IDENTITY, resources=meter)
    ended = threading.Event()

    def record() -> None:
        while not ended.is_set():
            request = engine.start_request(1)
            request.tokens(3)
            request.finish()

    def read() -> None:
        while not ended.is_set():
            render(engine)

    def claim() -> bool:
        engine.start_request(1).finish()
        meter.read()
        return value(engine, "requests_started_total") == 1 and b"requests_total" in render(engine)

    threads = [threading.Thread(target=target) for target in (record, read, read)]
    for thread in threads:
        thread.start()
    try:
        assert all(in_child(claim) for _ in range(forks))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert value(engine, "requests_started_total") == value(engine, "requests_total", outcome="ok")


def test_a_child_does_not_hold_the_parents_port() -> None:
    """When the parent stops serving, its port is free, though a child lives on."""
    engine = EngineInstruments(IDENTITY)
    with serve(engine) as server:
        release, held = os.pipe()
        ready, runs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(held)
            os.write(runs, b"!")
            os.read(release, 1)
            os._exit(0)
        # Until it runs for the first time, it has all that the parent had.
        os.read(ready, 1)
        with urllib.request.urlopen(server.url) as answer:
            assert b"requests_total" in answer.read()
        port = server.port
    try:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
    finally:
        os.close(held)
        for end in (release, ready, runs):
            os.close(end)
        os.waitpid(child, 0)
