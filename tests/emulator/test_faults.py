"""Faults switched on and off on a running stack: where they are, when, how they end, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.stack import V1, V2, EmulatedStack
from servescope.emulator.effects import DeploymentEffects, EngineEffects, ExpositionEffects
from servescope.emulator.engine.engine import Engine
from servescope.emulator.faults.faults import Fault, Faults, make_fault, parse_fault
from servescope.emulator.faults.kinds import KINDS
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.errors import UsageError
from servescope.exposition.rendering import render
from servescope.migration.scaling import TokenScaling
from tests.support.drawing import examples

QUIET = Mix(requests_per_second=2.0, burst_factor=1.0, day_amplitude=0.0)


def build(mix: Mix = QUIET, *, seed: int = 1) -> EmulatedStack:
    """The demo's two deployments under little traffic."""
    return EmulatedStack.of([(V1, 0.5), (V2, 0.5)], traffic=GeneratedTraffic(mix), seed=seed, epoch=1_700_000_000)


class AppliedEffects:
    """The effects that a stack's engines were given last."""

    def __init__(self, stack: EmulatedStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engines: dict[int, EngineEffects] = {}
        self._stack = stack
        engines = self.engines
        apply = Engine.apply_effects

        def note(engine: Engine, effects: EngineEffects) -> None:
            engines[id(engine)] = effects
            apply(engine, effects)

        monkeypatch.setattr(Engine, "apply_effects", note)

    def engine(self, deployment: str, replica: str) -> EngineEffects:
        """The effects of a replica's present engine."""
        engine = find(self._stack, deployment).replicas[replica].engine
        return self.engines.get(id(engine), EngineEffects())


def find(stack: EmulatedStack, name: str) -> EmulatedDeployment:
    return next(each for each in stack.deployments if each.plan.identity.deployment_id == name)


def add_a_replica(stack: EmulatedStack, faults: Faults) -> None:
    """Start a fourth replica of v2, which the autoscaler does not take away, and wait until it serves."""
    faults.switch_on(parse_fault("orchestrator-stuck@chat-v2"))
    find(stack, "chat-v2").fleet.scale_to(4)
    stack.clock.run_until(60.0)


def test_fault_is_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the whole stack, in one deployment or in one replica, and nowhere else; off, it is nowhere."""
    stack = build()
    applied = AppliedEffects(stack, monkeypatch)
    faults = Faults(stack)
    slow = EngineEffects(prefill_factor=1.5, decode_factor=1.5)

    one = faults.switch_on(parse_fault("latency-regression@chat-v2/engine-1"))
    assert applied.engine("chat-v2", "engine-1") == slow
    assert applied.engine("chat-v2", "engine-0") == applied.engine("chat-v1", "engine-1") == EngineEffects()

    faults.switch_off(one.number)
    faults.switch_on(parse_fault("latency-regression@chat-v2"))
    assert [applied.engine("chat-v2", f"engine-{number}") for number in range(3)] == [slow] * 3
    assert applied.engine("chat-v1", "engine-0") == EngineEffects()

    faults.switch_all_off()
    faults.switch_on(parse_fault("latency-regression"))
    assert applied.engine("chat-v1", "engine-2") == applied.engine("chat-v2", "engine-2") == slow

    faults.switch_all_off()
    assert set(applied.engines.values()) == {EngineEffects()}
    assert not faults.active


def test_several_faults_compose_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two faults in one replica are both in it; one of them off leaves the other."""
    stack = build()
    applied = AppliedEffects(stack, monkeypatch)
    faults = Faults(stack)
    first = faults.switch_on(parse_fault("latency-regression:1@chat-v2"))
    faults.switch_on(parse_fault("latency-regression:0.5@chat-v2/engine-0"))
    faults.switch_on(parse_fault("error-burst:0.5"))
    assert applied.engine("chat-v2", "engine-0") == EngineEffects(prefill_factor=3, decode_factor=3, error_share=0.5)
    assert applied.engine("chat-v2", "engine-1") == EngineEffects(prefill_factor=2, decode_factor=2, error_share=0.5)
    faults.switch_off(first.number)
    assert applied.engine("chat-v2", "engine-0") == EngineEffects(
        prefill_factor=1.5, decode_factor=1.5, error_share=0.5
    )
    assert applied.engine("chat-v2", "engine-1") == EngineEffects(error_share=0.5)


def test_new_replicas_and_new_processes_have_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that starts later, and one that restarts, are as slow as those that were there."""
    stack = build()
    applied = AppliedEffects(stack, monkeypatch)
    faults = Faults(stack)
    faults.switch_on(parse_fault("latency-regression:1@chat-v2"))
    deployment = find(stack, "chat-v2")
    deployment.restart("engine-0")
    add_a_replica(stack, faults)
    assert len(deployment.replicas) > 3
    assert {applied.engine("chat-v2", name).decode_factor for name in deployment.replicas} == {2.0}


def test_fault_of_one_replica_stays_there_and_moves_on_when_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the oldest active replica, named in the list, and in another one once that has left."""
    stack = build()
    applied = AppliedEffects(stack, monkeypatch)
    faults = Faults(stack)
    active = faults.switch_on(parse_fault("bad-replica:4@chat-v2"))
    assert active.as_json(0.0)["affects"] == ["chat-v2/engine-0"]
    assert applied.engine("chat-v2", "engine-0").decode_factor == 4.0
    assert applied.engine("chat-v2", "engine-1") == EngineEffects()

    del find(stack, "chat-v2").replicas["engine-0"]
    stack.clock.run_until(2.0)
    assert active.as_json(2.0)["affects"] == ["chat-v2/engine-1"]
    assert applied.engine("chat-v2", "engine-1").decode_factor == 4.0


@pytest.mark.slow
def test_deployments_and_traffic_get_their_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with a deployment's replicas and with the traffic reaches them, and ends."""
    stack = build()
    faults = Faults(stack)
    scaled = faults.switch_on(parse_fault("autoscaler-pinned:1@chat-v2"))
    assert find(stack, "chat-v2").effects == DeploymentEffects(max_replica=1)
    assert find(stack, "chat-v1").effects == DeploymentEffects()
    faults.switch_off(scaled.number)
    assert find(stack, "chat-v2").effects == DeploymentEffects()

    before = stack.traffic.requests_sent
    stack.clock.run_until(60.0)
    calm = stack.traffic.requests_sent - before
    faults.switch_on(parse_fault("traffic-surge:5"))
    stack.clock.run_until(180.0)
    assert (stack.traffic.requests_sent - before - calm) / 2 > 2 * calm


def test_exposition_faults_are_of_single_targets() -> None:
    """One target's page is distorted, a router's too; the others' are not, and off it is no more."""
    stack = build()
    faults = Faults(stack)
    faults.switch_on(parse_fault("truncated-exposition:0.75@chat-v2/router-0"))
    faults.switch_on(parse_fault("clock-skew:60@chat-v2"))
    effects = {target.path: faults.exposition(target) for target in stack.targets()}
    assert effects["/chat-v2/router-0/metrics"] == ExpositionEffects(kept_share=0.25, clock_offset_seconds=60.0)
    assert effects["/chat-v2/engine-0/metrics"] == ExpositionEffects(clock_offset_seconds=60.0)
    assert effects["/chat-v1/router-0/metrics"] == ExpositionEffects()
    faults.switch_all_off()
    assert all(faults.exposition(target) == ExpositionEffects() for target in stack.targets())


def test_processes_restart_in_turn() -> None:
    """One replica after the other dies and comes back, at the pace asked for, until it is switched off."""
    stack = build()
    faults = Faults(stack)
    stack.clock.run_until(30.0)
    deployment = find(stack, "chat-v2")
    on = faults.switch_on(parse_fault("counters-reset:10@chat-v2"))
    stack.clock.run_until(61.0)
    processes = [replica.processes for replica in deployment.replicas.values()]
    assert processes == [3, 2, 2]
    faults.switch_off(on.number)
    stack.clock.run_until(120.0)
    assert [replica.processes for replica in deployment.replicas.values()] == processes
    assert {replica.processes for replica in find(stack, "chat-v1").replicas.values()} == {1}


def test_restarts_switched_on_again_keep_one_pace() -> None:
    """Off and on again within one interval begins anew: there are not two rounds of restarts after it."""
    stack = build()
    faults = Faults(stack)
    stack.clock.run_until(30.0)
    deployment = find(stack, "chat-v2")
    for _ in range(3):
        on = faults.switch_on(parse_fault("counters-reset:10@chat-v2/engine-1"))
        stack.clock.run_until(stack.clock.now + 1.0)
        faults.switch_off(on.number)
    faults.switch_on(parse_fault("counters-reset:10@chat-v2/engine-1"))
    before = deployment.replicas["engine-1"].processes
    stack.clock.run_until(stack.clock.now + 25.0)
    assert deployment.replicas["engine-1"].processes - before == 3
    assert deployment.replicas["engine-0"].processes == 1


def test_schedule_is_kept() -> None:
    """A scheduled fault is listed, comes at its time, and goes at its end."""
    stack = build()
    faults = Faults(stack, [make_fault("error-burst", start_seconds=30.0, end_seconds=50.0), make_fault("clock-skew")])
    assert [(fault.kind.name, fault.intensity) for fault in faults.scheduled] == [("error-burst", 0.2)]
    assert [each.fault.kind.name for each in faults.active.values()] == ["clock-skew"]
    stack.clock.run_until(30.0)
    assert [each.fault.kind.name for each in faults.active.values()] == ["clock-skew", "error-burst"]
    assert faults.active[2].since_seconds == 30.0
    stack.clock.run_until(50.0)
    assert [each.fault.kind.name for each in faults.active.values()] == ["clock-skew"]
    assert not faults.scheduled


def test_fault_for_some_seconds_ends_by_itself() -> None:
    """A fault that was given a time ends after it, and not before; ended by hand, nothing happens at its time."""
    stack = build()
    faults = Faults(stack)
    faults.switch_on(make_fault("error-burst"), seconds=20.0)
    second = faults.switch_on(make_fault("clock-skew"), seconds=10.0)
    faults.switch_off(second.number)
    stack.clock.run_until(19.9)
    assert list(faults.active) == [1]
    stack.clock.run_until(20.1)
    assert not faults.active


def test_scheduled_replica_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario may name a replica that is not there yet: the fault is in it once it is."""
    stack = build()
    applied = AppliedEffects(stack, monkeypatch)
    add_a_replica(stack, Faults(stack, [make_fault("latency-regression", 1, deployment="chat-v2", replica="engine-3")]))
    assert applied.engine("chat-v2", "engine-3").decode_factor == 2.0
    assert applied.engine("chat-v2", "engine-2") == EngineEffects()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("error-burst@chat-v3", "'error-burst': unknown deployment 'chat-v3', known: chat-v1, chat-v2"),
        ("error-burst@chat-v2/engine-9", "unknown replica 'engine-9' in 'chat-v2', known: engine-0, engine-1, .*"),
        ("error-burst@chat-v2/router-0", "unknown replica 'router-0' in 'chat-v2', known: engine-0"),
        ("clock-skew@chat-v2/router-1", "unknown replica 'router-1' in 'chat-v2', known: engine-0, .*router-0, .*"),
        ("router-deaf@chat-v1", "'router-deaf': there is no KV-aware router in deployment 'chat-v1'"),
        ("kv-transfer-slow", "'kv-transfer-slow': there is no KV transfer .* in any deployment"),
    ],
)  # fmt: skip
def test_places_that_are_not_there_are_refused(text: str, message: str) -> None:
    """A deployment, a replica or a part that is not there is named, with what there is; nothing is on after it."""
    faults = Faults(build())
    with pytest.raises(UsageError, match=message):
        faults.switch_on(parse_fault(text))
    assert not faults.active


def test_fault_that_is_not_on_cannot_be_switched_off() -> None:
    """A number that is none, or no more, is refused with those that are on."""
    faults = Faults(build())
    with pytest.raises(UsageError, match="no fault 1 is on; on: none"):
        faults.switch_off(1)
    first = faults.switch_on(make_fault("clock-skew"))
    faults.switch_on(make_fault("error-burst"))
    faults.switch_off(first.number)
    with pytest.raises(UsageError, match="no fault 1 is on; on: 2"):
        faults.switch_off(first.number)


def test_schedule_for_a_deployment_that_is_not_there_is_refused() -> None:
    """What can be known to be wrong of a scenario is refused before it runs."""
    with pytest.raises(UsageError, match="unknown deployment 'chat-v3'"):
        Faults(build(), [make_fault("error-burst", deployment="chat-v3", start_seconds=60.0)])


def page(stack: EmulatedStack) -> bytes:
    """What all targets expose, but when they began: that is by the wall clock."""
    lines = b"".join(render(target.instruments) for target in stack.targets()).splitlines()
    return b"\n".join(line for line in lines if not line.startswith(b"replica_start_time_seconds"))


def test_stack_with_switches_is_the_stack_without() -> None:
    """Switches that nobody touches change nothing; a fault on and at once off leaves the same history as well."""
    plain, switched, touched = build(), build(), build()
    Faults(switched)
    faults = Faults(touched)
    for stack in (plain, switched, touched):
        stack.clock.run_until(20.0)
    faults.switch_off(faults.switch_on(make_fault("error-burst")).number)
    for stack in (plain, switched, touched):
        stack.clock.run_until(60.0)
    assert page(plain) == page(switched) == page(touched)


placed = st.sampled_from([kind for kind in KINDS.values() if not kind.part]).flatmap(
    lambda kind: st.sampled_from([("", ""), ("chat-v2", "")] if "deployment" in kind.scopes else [("", "")]).map(
        lambda place: make_fault(kind.name, deployment=place[0], replica=place[1])
    )
)


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None)
@given(steps=st.lists(st.tuples(placed, st.booleans(), st.floats(1.0, 30.0)), min_size=1, max_size=6))
def test_requests_are_conserved_whatever_is_on(steps: list[tuple[Fault, bool, float]]) -> None:
    """Faults that come and go at any moment lose no request: sent = ended + in flight, in every deployment."""
    stack = build(seed=2)
    faults = Faults(stack)
    for fault, off, seconds in steps:
        active = faults.switch_on(fault)
        stack.clock.run_until(stack.clock.now + seconds)
        if off:
            faults.switch_off(active.number)
        accounted = sum(sum(each.outcomes.values()) + each.in_flight for each in stack.deployments)
        assert accounted == stack.traffic.requests_sent


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["engine-frozen", "counters-reset", "replica-crash-loop", "cache-churn"])
def test_same_seed_gives_the_same_history_with_faults(kind: str) -> None:
    """Two stacks of one seed with the same faults at the same times show the same bytes."""

    def history() -> bytes:
        stack = build()
        Faults(stack, [make_fault(kind, deployment="chat-v2", start_seconds=10.0, end_seconds=50.0)])
        stack.clock.run_until(90.0)
        return page(stack)

    assert history() == history()


@pytest.mark.slow
def test_a_bound_holds_for_scalings_of_any_size() -> None:
    """A pinned autoscaler sends no more than its bound, whatever the load wants."""
    scaling = TokenScaling(target_in_flight_tokens=500, min_replica=1, initial_replicas=2, max_replica=6)
    stack = EmulatedStack.of([(replace(V2, scaling=scaling), 1.0)], traffic=GeneratedTraffic(QUIET))
    Faults(stack, [make_fault("autoscaler-pinned", 2)])
    stack.clock.run_until(200.0)
    assert len(stack.deployments[0].replicas) == 2
