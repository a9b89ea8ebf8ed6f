"""Tenants of the emulated traffic: their requests are counted apart, and one of them can be slow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import EngineEffects
from servescope.emulator.faults.kinds import find_kind
from servescope.emulator.workload.mixes import SMALL_TENANT, Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.emulator.workload.requests import Finished, WorkloadRequest
from servescope.emulator.workload.traffic import Traffic
from tests.emulator.support.engines import Bench


def sent(mix: Mix, seconds: float) -> list[WorkloadRequest]:
    """What one deployment is sent, which answers after a second."""
    clock, requests = VirtualClock(), list[WorkloadRequest]()

    def send(request: WorkloadRequest, finished: Finished) -> None:
        requests.append(request)
        clock.schedule(1.0, lambda: finished("ok"))

    traffic = Traffic(
        GeneratedTraffic(mix), clock=clock, seed=1, block_tokens=32, sends={"all": send}, split={"all": 1.0}
    )
    traffic.start()
    clock.run_until(seconds)
    return requests


def test_conversations_are_of_tenants_and_the_same_otherwise() -> None:
    """A few are of the small tenant; the traffic is that without tenants."""
    mix = Mix(requests_per_second=20.0)
    plain, requests = sent(mix, 600.0), sent(replace(mix, tenants=5), 600.0)

    counts = Counter(request.segment for request in requests)
    assert set(counts) == {SMALL_TENANT, *(f"tenant-{number}" for number in range(1, 5))}
    assert counts[SMALL_TENANT] / len(requests) == pytest.approx(0.03, abs=0.015)
    assert [replace(request, segment=None) for request in requests] == plain
    assert {request.segment for request in plain} == {None}


def test_a_slow_tenant_waits_and_nobody_else_does() -> None:
    """Its first tokens come later by what the fault says, on the page as in what clients get."""
    effects = find_kind("tenant-slow").effects(2.0).engine
    found = []
    for each in (EngineEffects(), effects):
        bench = Bench()
        bench.engine.apply_effects(each)
        for number, segment in enumerate((SMALL_TENANT, "tenant-1", None)):
            bench.clock.schedule(20.0 * number, partial(bench.submit, 160, 5, segment=segment))
        bench.clock.run_until(100.0)
        sums = {
            dict(sample.labels).get("segment", ""): sample.value
            for sample in bench.instruments.samples()
            if sample.name == "time_to_first_token_seconds_sum"
        }
        assert bench.engine.in_flight == 0
        found.append(sums)

    usual, slow = found
    assert slow[SMALL_TENANT] == pytest.approx(usual[SMALL_TENANT] + 2.0)
    assert slow["tenant-1"] == pytest.approx(usual["tenant-1"])
    assert slow[""] == pytest.approx(usual[""])


def test_a_client_that_hangs_up_while_it_waits_is_an_abort() -> None:
    """It is in flight until then, and nowhere afterwards."""
    bench = Bench()
    bench.engine.apply_effects(find_kind("tenant-slow").effects(5.0).engine)
    serving = bench.submit(160, 5, segment=SMALL_TENANT)
    bench.clock.run_until(1.0)
    assert bench.engine.in_flight == 1
    bench.engine.abort(serving)
    bench.clock.run_until(20.0)

    assert bench.engine.in_flight == 0
    ended = {
        dict(sample.labels)["outcome"]: sample.value
        for sample in bench.instruments.samples()
        if sample.name == "requests_total" and ("segment", SMALL_TENANT) in sample.labels
    }
    assert ended == {"client_abort": 1, "ok": 0, "client_error": 0, "rejected": 0, "error": 0}
