"""Several active replicas of a router."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.stack import V2
from servescope.emulator.router.configuration import DecisionCost, KvRouterParameters, RouterRuntime
from servescope.emulator.router.placement import Placement
from servescope.emulator.router.replicas import RouterReplicas
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.errors import UsageError
from servescope.instruments.router import RouterInstruments
from tests.emulator.support.routers import AT_ONCE, BLOCK, identity, place, prompt, stored


def replicas(
    count: int, *workers: str, clock: VirtualClock, runtime: RouterRuntime = AT_ONCE, weight: float = 3.5
) -> RouterReplicas:
    """So many replicas, over workers with empty caches."""
    router = RouterReplicas(
        KvRouterParameters(weight, 0.0),
        clock=clock,
        block_tokens=BLOCK,
        identify=identity,
        seed="r",
        runtime=replace(runtime, replicas=count),
    )
    for worker in workers:
        router.add_worker(worker)
    return router


def value(instruments: RouterInstruments, name: str) -> float:
    """A figure of one replica."""
    return sum(sample.value for sample in instruments.samples() if sample.name == name)


def test_requests_are_spread_and_each_replica_has_its_own_page() -> None:
    """One after the other; what each decided is in its own figures alone."""
    router = replicas(3, "a", clock=VirtualClock())
    for _ in range(7):
        place(router, prompt(1)).report(0)
    counts = {name: value(shown, "kv_cache_eligible_tokens_total") for name, shown in router.processes.items()}
    assert counts == {"router-0": 3 * 17, "router-1": 2 * 17, "router-2": 2 * 17}


def test_replica_that_is_down_is_passed_over() -> None:
    """While it restarts the others take all requests, and none waits for it; when all are down they wait."""
    clock = VirtualClock()
    router = replicas(2, "a", clock=clock)
    router.restart("router-0")
    for _ in range(4):
        place(router, prompt(1)).report(0)
    counts = {name: value(shown, "kv_cache_eligible_tokens_total") for name, shown in router.processes.items()}
    assert counts == {"router-0": 0, "router-1": 4 * 17}
    router.restart("router-1")
    placed: list[Placement | None] = []
    router.submit(prompt(1), placed.append)
    assert placed == []
    clock.run_until(3.0)
    assert [each.worker for each in placed if each] == ["a"]


def test_every_replica_knows_every_cache() -> None:
    """Each follows the workers' events itself."""
    router = replicas(2, "a", "b", clock=VirtualClock())
    router.apply("b", stored(1, 1, 2, 3))
    assert [place(router, prompt(1, 2, 3)).worker for _ in range(2)] == ["b", "b"]


def test_what_one_has_in_flight_the_others_learn_a_little_later() -> None:
    """Before the news a worker looks idle to the others, after it busy; and free again when the request has ended."""
    clock = VirtualClock()
    router = replicas(2, "a", "b", clock=clock)
    first = place(router, prompt(*range(50)))
    assert first.worker == "a"
    early = place(router, prompt(*range(100, 150)))
    assert early.worker == "a"
    early.end()
    clock.run_until(1.0)
    place(router, prompt(7)).end()
    assert place(router, prompt(*range(200, 210))).worker == "b"
    first.end()
    clock.run_until(2.0)
    place(router, prompt(7)).end()
    assert place(router, prompt(*range(300, 310))).worker == "a"


def test_replica_that_restarts_is_told_what_the_others_have() -> None:
    """It has lost what it knew of the load; a moment after it is back it knows again what is its peers'."""
    clock = VirtualClock()
    router = replicas(2, "a", "b", clock=clock)
    busy = place(router, prompt(*range(50)))
    assert busy.worker == "a"
    clock.run_until(1.0)
    router.restart("router-1")
    clock.run_until(1.0 + 2.0 + 0.1)
    assert place(router, prompt(*range(100, 110))).worker == "b"
    with pytest.raises(UsageError, match="unknown router 'router-2', known: router-0, router-1"):
        router.restart("router-2")


def test_worker_that_comes_back_is_idle_to_all() -> None:
    """What replicas had on a worker that died is nothing to them once it is back under its name."""
    clock = VirtualClock()
    router = replicas(2, "a", "b", clock=clock)
    busy = place(router, prompt(*range(50)))
    clock.run_until(1.0)
    router.remove_worker("a")
    router.add_worker("a")
    clock.run_until(2.0)
    for known in router.routers.values():
        placed: list[Placement | None] = []
        known.pause_worker("b")
        known.submit(prompt(1), placed.append)
        assert [each.worker for each in placed if each] == ["a"]
    busy.end()
    clock.run_until(3.0)
    assert {worker.active_blocks for known in router.routers.values() for worker in known._workers.values()} <= {0, 4}


@pytest.mark.slow
def test_more_replicas_relieve_the_bottleneck() -> None:
    """Where one router's decisions queue for seconds, three of them answer in milliseconds."""
    waits = {}
    for count in (1, 3):
        clock = VirtualClock()
        workers = [f"engine-{number}" for number in range(64)]
        router = replicas(count, *workers, clock=clock, runtime=RouterRuntime(decision=DecisionCost()))
        for number in range(64 * 8 * 10):
            request = WorkloadRequest(number, 100 * BLOCK, 1, ())
            clock.schedule(
                number / (64 * 8),
                partial(router.submit, request, lambda placement: placement.end() if placement else None),
            )
        clock.run_until(10.0)
        shown = router.processes.values()
        waits[count] = sum(value(each, "router_decision_seconds_sum") for each in shown) / sum(
            value(each, "router_decision_seconds_count") for each in shown
        )
    assert waits[1] > 1.0
    assert waits[3] < 0.01


def test_deployment_shows_each_replica_as_a_target_of_its_own() -> None:
    """A plan with three routers has three of them to scrape, all at work; one can die and come back."""
    clock = VirtualClock()
    plan = replace(V2, router=RouterRuntime(replicas=3))
    deployment = EmulatedDeployment(plan, clock=clock, seed=1)
    outcomes: list[str] = []
    for number in range(30):
        clock.schedule(number / 10, partial(deployment.send, prompt(1, 2, number=number), outcomes.append))
    clock.run_until(60.0)
    routers = [target for target in deployment.targets() if target.identity.role == "router"]
    assert [target.identity.replica for target in routers] == ["router-0", "router-1", "router-2"]
    assert [value(target.instruments, "router_candidates_count") for target in routers] == [10, 10, 10]  # type: ignore[arg-type] # a router's
    generation = deployment.generation
    deployment.restart("router-1")
    assert deployment.generation > generation
    shown = {target.identity.replica: target.instruments for target in deployment.targets()}
    assert value(shown["router-1"], "router_candidates_count") == 0  # type: ignore[arg-type] # a router's
    assert value(shown["router-0"], "router_candidates_count") == 10  # type: ignore[arg-type] # a router's
    clock.run_until(70.0)
    assert len(outcomes) == 30
