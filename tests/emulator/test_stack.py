"""The whole emulated stack on a virtual clock, seen through its instruments."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.replica import ColdStart
from servescope.emulator.deployment.stack import V1, V2, EmulatedStack
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.errors import UsageError
from servescope.exposition.rendering import render
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling
from tests.emulator.conftest import forget
from tests.support.drawing import examples


def totals(deployment: EmulatedDeployment) -> dict[str, float]:
    """The sum of each metric over all targets of a deployment, labels aside."""
    sums: dict[str, float] = defaultdict(float)
    for target in deployment.targets():
        for sample in target.instruments.samples():
            sums[sample.name] += sample.value
    return sums


def exposition(stack: EmulatedStack) -> bytes:
    """All that the stack shows."""
    return b"".join(render(target.instruments) for target in stack.targets())


def test_both_deployments_look_alive_within_a_minute() -> None:
    """After a minute each has several active replicas, traffic, tokens and no refused observation."""
    stack = EmulatedStack(seed=1)
    stack.clock.run_until(60.0)
    for deployment in stack.deployments:
        shown = totals(deployment)
        assert deployment.count_replicas()["active"] >= 2
        assert shown["requests_total"] > 60
        assert shown["output_tokens_total"] > 5_000
        assert shown["concurrent_requests"] > 0
        assert shown["servescope_instrument_errors_total"] == 0


@pytest.mark.slow
def test_v2_is_what_its_documents_promise() -> None:
    """Under the same traffic v2 reuses more, answers sooner, decodes faster and drafts better, all within reason."""
    stack = EmulatedStack(seed=1)
    stack.clock.run_until(240.0)
    v1, v2 = (totals(deployment) for deployment in stack.deployments)
    hit_rate, ttft, speculation, tps = (
        [shown[over] / shown[under] for shown in (v1, v2)]
        for over, under in [
            ("kv_cache_reused_tokens_total", "kv_cache_eligible_tokens_total"),
            ("time_to_first_token_seconds_sum", "time_to_first_token_seconds_count"),
            ("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"),
            ("output_tokens_per_request_sum", "decode_seconds_total"),
        ]
    )
    assert 0.35 < hit_rate[0] < 0.55 < hit_rate[1] < 0.75
    assert 0.1 < ttft[1] < ttft[0] < 0.8
    assert 0.40 < speculation[0] < 0.45
    assert 0.80 < speculation[1] < 0.85
    assert 40 < tps[0] < tps[1] < 90
    assert 0.9 < v2["kv_cache_reused_tokens_total"] / v2["kv_cache_best_tokens_total"] < 1.0
    skew = v2["kv_cache_predicted_tokens_total"] - v2["kv_cache_reused_tokens_total"]
    assert -0.05 < skew / v2["kv_cache_eligible_tokens_total"] < 0.15


@pytest.mark.slow
def test_requests_are_conserved_over_the_whole_stack() -> None:
    """Whatever the traffic sent was started somewhere, and has ended or is in flight."""
    # Bounds that keep every replica, so that no counter goes away with one.
    stack = EmulatedStack(
        seed=3,
        v1=replace(V1, scaling=ConcurrencyScaling(min_replica=3, initial_replicas=3, max_replica=3)),
        v2=replace(V2, scaling=TokenScaling(min_replica=3, initial_replicas=3, max_replica=3)),
    )
    for moment in range(1, 31):
        stack.clock.run_until(moment * 10.0)
        shown = [totals(deployment) for deployment in stack.deployments]
        unplaced = sum(deployment.router.queued_requests for deployment in stack.deployments)
        assert sum(part["requests_started_total"] for part in shown) + unplaced == stack.traffic.requests_sent
        for part in shown:
            assert part["requests_started_total"] == part["requests_total"] + part["concurrent_requests"]
    outcomes = {
        dict(sample.labels)["outcome"]
        for target in stack.targets()
        for sample in target.instruments.samples()
        if sample.name == "requests_total" and sample.value > 0
    }
    assert {"ok", "client_abort", "client_error", "error"} <= outcomes


@pytest.mark.slow
def test_one_seed_gives_one_history() -> None:
    """The same seed gives the same expositions to the byte, another seed others."""
    first, again, other = (EmulatedStack(seed=seed, epoch=1_700_000_000) for seed in (5, 5, 6))
    for stack in (first, again, other):
        stack.clock.run_until(60.0)
    assert exposition(first) == exposition(again) != exposition(other)


requests = st.lists(
    st.tuples(st.floats(0.0, 2.0), st.integers(0, 5), st.integers(33, 900), st.integers(1, 60)), min_size=1, max_size=40
)


@pytest.mark.slow
def test_steps_reported_together_count_the_same() -> None:
    """Every series is the same but the buckets of the inter-token latency, whose sum and count are."""
    stepwise, together = (
        EmulatedStack(
            v1=replace(V1, engine=replace(V1.engine, reports_together=each)),
            v2=replace(V2, engine=replace(V2.engine, reports_together=each)),
            epoch=1_700_000_000,
        )
        for each in (False, True)
    )
    pages = []
    for stack in (stepwise, together):
        stack.clock.run_until(90.0)
        pages.append(
            {
                sample[:2]: sample.value
                for target in stack.targets()
                for sample in target.instruments.samples()
                if sample.name != "inter_token_latency_seconds_bucket"
            }
        )

    assert pages[1] == pytest.approx(pages[0])


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(requests=requests, cache_blocks=st.integers(32, 90))
def test_index_is_what_the_engines_have(requests: list[tuple[float, int, int, int]], cache_blocks: int) -> None:
    """Once all events have arrived, the router knows exactly what every engine has cached."""
    clock = VirtualClock()
    plan = replace(V2, engine=replace(V2.engine, cache_blocks=cache_blocks))
    deployment = EmulatedDeployment(plan, clock=clock, seed=1)
    for number, (wait, stream, input_tokens, output_tokens) in enumerate(requests):
        clock.run_until(clock.now + wait)
        blocks = tuple(stream * 1000 + index for index in range((input_tokens + output_tokens) // 32))
        deployment.send(WorkloadRequest(number, input_tokens, output_tokens, blocks), forget)
    clock.run_until(clock.now + 120.0)
    index = deployment.router.index  # type: ignore[attr-defined] # v2's router has one
    for name, replica in deployment.replicas.items():
        assert replica.engine.in_flight == 0
        assert index.cached_blocks(name) == replica.engine.cache.cached_blocks()
    assert totals(deployment)["router_index_event_gaps_total"] == 0


def test_replicas_start_serve_drain_and_go() -> None:
    """Load brings replicas that serve only after their cold start; without load they drain and are gone."""
    scaling = TokenScaling(
        target_in_flight_tokens=16_000, max_replica=4,
        autoscaling_window=30, scale_down_delay=30, scale_down_half_life_seconds=60,
    )  # fmt: skip
    plan = replace(V2, scaling=scaling, cold_start=ColdStart(0.0, 25.0, 10.0, 5.0))
    clock = VirtualClock()
    deployment = EmulatedDeployment(plan, clock=clock, seed=1)
    for number in range(240):
        clock.schedule(number / 3, partial(deployment.send, fresh_request(number), forget))

    clock.run_until(30.0)
    first = deployment.count_replicas()
    assert first["active"] == 1
    assert first["starting"] > 0
    names = {target.identity.replica for target in deployment.targets()}
    assert names == {"engine-0", "router-0", "autoscaler-0"}

    clock.run_until(80.0)
    assert deployment.count_replicas()["active"] > 1
    serving = [target.identity.replica for target in deployment.targets() if target.identity.role == "aggregated"]
    assert len(serving) > 1

    clock.run_until(900.0)
    assert deployment.count_replicas() == {"starting": 0, "active": 1, "draining": 0, "unhealthy": 0, "failed": 0}
    shown = {
        dict(sample.labels)["status"]: sample.value
        for sample in deployment.autoscaler.instruments.samples()
        if sample.name == "replica_count_by_status"
    }
    assert (shown["active"], shown["starting"], shown["draining"]) == (1, 0, 0)


def fresh_request(number: int) -> WorkloadRequest:
    """A request that shares nothing with any other."""
    return WorkloadRequest(number, 4000, 300, tuple(number * 1000 + index for index in range(4300 // 32)))


def test_draining_replica_finishes_what_it_has() -> None:
    """A replica that is given up takes nothing new, serves what it has to the end, and loses no request."""
    clock = VirtualClock()
    scaling = TokenScaling(
        min_replica=1,
        initial_replicas=2,
        max_replica=2,
        autoscaling_window=5,
        scale_down_delay=5,
        scale_down_half_life_seconds=1,
    )
    deployment = EmulatedDeployment(replace(V2, scaling=scaling), clock=clock, seed=1)
    clock.run_until(1.0)
    outcomes: list[str] = []
    for number in range(6):
        deployment.send(fresh_request(number), outcomes.append)
    clock.run_until(6.0)
    assert deployment.count_replicas() == {"starting": 0, "active": 1, "draining": 1, "unhealthy": 0, "failed": 0}
    draining = deployment.replicas["engine-1"].engine.in_flight
    assert draining > 0
    deployment.send(fresh_request(99), outcomes.append)
    assert deployment.replicas["engine-1"].engine.in_flight == draining
    clock.run_until(120.0)
    assert list(deployment.replicas) == ["engine-0"]
    assert len(outcomes) == 7
    with pytest.raises(KeyError):
        deployment.router.index.cached_blocks("engine-1")  # type: ignore[attr-defined] # v2's router has one


def test_share_of_v2_decides_where_conversations_go() -> None:
    """With a share of 1 v1 gets nothing and shows zeros, not gaps."""
    stack = EmulatedStack(share_v2=1.0)
    stack.clock.run_until(60.0)
    v1, v2 = (totals(deployment) for deployment in stack.deployments)
    assert v1["requests_started_total"] == 0
    assert v2["requests_started_total"] == stack.traffic.requests_sent


def test_impossible_stacks_are_refused() -> None:
    """A share beyond 1 and deployments of different block sizes are refused with their values."""
    with pytest.raises(UsageError, match=r"share of v2 is 1\.5"):
        EmulatedStack(share_v2=1.5)
    with pytest.raises(UsageError, match="block sizes are 16 and 32"):
        EmulatedStack(v1=replace(V1, engine=replace(V1.engine, block_tokens=16)))
    with pytest.raises(UsageError, match="requests_per_second is -1"):
        EmulatedStack(mix=Mix(requests_per_second=-1.0))
