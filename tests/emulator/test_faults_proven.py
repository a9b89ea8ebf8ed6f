"""Every fault does what it says: the stack is well, the fault is on and its truths hold, it is off and they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from servescope.emulator.deployment.disaggregation import Disaggregation
from servescope.emulator.deployment.stack import V1, V2
from servescope.emulator.faults.faults import Fault, make_fault, parse_fault
from servescope.emulator.faults.kinds import GROUPS, KINDS
from servescope.emulator.workload.mixes import Mix
from tests.support.observed_stack import STEADY, ObservedStack, Seen, list_broken, observed

pytestmark = pytest.mark.usefixtures("quiet")

HEALTHY_SECONDS = 120.0
RECOVERY_SECONDS = 180.0
FULL = Mix(requests_per_second=6.0, burst_factor=1.0, day_amplitude=0.0)
LIGHT = replace(STEADY, requests_per_second=2.0)
# Kinds whose truths need more than the steady traffic.
TRAFFIC = {"throughput-regression": FULL, "autoscaler-pinned": FULL}
BESIDE = {
    "cold-start-slow": "traffic-surge:3", "autoscaler-frozen": "traffic-surge:3",
    "orchestrator-stuck": "autoscaler-pinned:1",
}  # fmt: skip
# Kinds whose harm outlasts them, until the processes restart.
LASTING = ("requests-lost", "kv-creep")
# One of each group, so that the fast suite knows when a group's faults no longer reach what they are in.
FAST = (
    "draft-misaligned", "router-losing-events", "replica-crash-loop", "error-burst", "client-aborts",
    "truncated-exposition",
)  # fmt: skip
STARTING = 'replica_count_by_status{status="starting"}'
PLANS = dict.fromkeys(
    ("kv-transfer-slow", "kv-transfer-stuck", "kv-transfer-skipped"),
    replace(V2, disaggregation=Disaggregation(1, 2), scaling=replace(V2.scaling, min_replica=1, initial_replicas=2)),
)
STRENGTHS = (
    "draft-misaligned:0.3", "draft-misaligned:1", "draft-late-positions:0.4", "router-deaf:0.5",
    "router-losing-events:0.05", "router-losing-events:0.9", "cache-churn:0.02", "cache-churn:1", "router-balances:0.8",
    "autoscaler-pinned:2", "cold-start-slow:30", "replica-crash-loop:2", "latency-regression:0.2",
    "latency-regression:3", "throughput-regression:0.7", "error-burst:0.05", "error-burst:1", "bad-replica:10",
    "kv-transfer-slow:3", "kv-transfer-slow:100", "client-aborts:0.1", "client-aborts:0.9", "traffic-surge:2",
    "router-hot-spot:0.6", "restarts:1440", "requests-lost:0.01", "requests-lost:0.3", "client-errors:0.6",
    "client-cuts:0.5", "answers-short:0.8", "answers-short:0.1", "answers-truncated:0.5", "answers-truncated:1",
    "tail-slow:0.1", "tail-slow:0.3", "gpu-waste:8", "kv-creep:1", "kv-creep:6", "slow-exposition:60",
    "truncated-exposition:0.05", "counters-reset:60", "clock-skew:3600",
)  # fmt: skip


def prove(stack: ObservedStack, fault: Fault, before: Seen | None = None) -> Seen:
    """The fault's truths do not hold before it, hold while it is on, and do not hold after it: what is seen then."""
    deployment = "chat-v2"
    truths = fault.kind.truths(fault.intensity)
    moving = tuple(truth for truth in truths if not truth.unmoved)
    if before is None:
        stack.run(HEALTHY_SECONDS)
        before = stack.see(deployment)
    already = [truth.describe() for truth in moving if truth.holds(before.get(truth.key), before=before.get(truth.key))]
    assert not already

    beside = [stack.faults.switch_on(parse_fault(text)) for text in (BESIDE.get(fault.kind.name),) if text]
    on = stack.faults.switch_on(fault)
    stack.run(fault.kind.shows_after_seconds)
    assert list_broken(truths, stack.see(deployment, fault), before) == []

    for each in (on, *beside):
        stack.faults.switch_off(each.number)
    if fault.kind.name in LASTING:
        for restarted in stack.stack.deployments:
            for name in list(restarted.replicas):
                restarted.restart(name)
    stack.run(RECOVERY_SECONDS)
    after = stack.see(deployment)
    still = [truth.describe() for truth in moving if truth.holds(after.get(truth.key), before=before.get(truth.key))]
    assert not still
    return after


def test_fast_proofs_are_one_of_each_group() -> None:
    """No group of faults is left to `make proofs` alone."""
    assert [group for group, kinds in GROUPS.items() for kind in kinds if kind.name in FAST] == list(GROUPS)


@pytest.mark.slow
def test_truths_of_one_of_each_group_hold_in_turn(tmp_path: Path) -> None:
    """One after the other in one stack: as it recovers from one, it is before the next."""
    with observed(tmp_path, LIGHT) as stack:
        seen = None
        for kind in FAST:
            seen = prove(stack, make_fault(kind), seen)


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_truths_hold_while_it_is_on(kind: str, tmp_path: Path) -> None:
    """Healthy, then the truths of the fault at its default intensity, then healthy again."""
    with observed(tmp_path, TRAFFIC.get(kind, STEADY), PLANS.get(kind, V2)) as stack:
        prove(stack, make_fault(kind))


@pytest.mark.proof
def test_slow_start_shows_by_its_load_alone_soon_over(tmp_path: Path) -> None:
    """The surge that the slow start is proven under brings replicas that serve long before that."""
    with observed(tmp_path) as stack:
        stack.run(HEALTHY_SECONDS)
        stack.faults.switch_on(parse_fault(BESIDE["cold-start-slow"]))
        stack.run(KINDS["cold-start-slow"].shows_after_seconds)
        seen = stack.see("chat-v2")
        assert not KINDS["cold-start-slow"].truths(10.0)[0].holds(seen.get(STARTING), before=0.0)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["autoscaler-frozen", "orchestrator-stuck"])
def test_what_stands_still_would_have_moved(name: str, tmp_path: Path) -> None:
    """Under what it is proven under, and without the fault, the figure leaves the bounds it stays in."""
    with observed(tmp_path) as stack:
        stack.run(HEALTHY_SECONDS)
        before = stack.see("chat-v2")
        stack.faults.switch_on(parse_fault(BESIDE[name]))
        stack.run(KINDS[name].shows_after_seconds)
        (stays,) = KINDS[name].truths(1.0)
        assert not stays.holds(stack.see("chat-v2").get(stays.key), before=before.get(stays.key))


@pytest.mark.proof
def test_fault_of_one_deployment_leaves_the_other(tmp_path: Path) -> None:
    """v1 stays as it was while v2's draft no longer fits, one of its replicas is frozen and its clients meet errors."""
    with observed(tmp_path, STEADY, V1, V2) as stack:
        stack.run(HEALTHY_SECONDS)
        before = stack.see("chat-v1")
        for text in ("draft-misaligned", "error-burst:0.5", "metric-renamed"):
            stack.faults.switch_on(parse_fault(f"{text}@chat-v2"))
        stack.run(120.0)
        after, faulty = stack.see("chat-v1"), stack.see("chat-v2")
    for figure in ("speculation_rate", "request_rate", "time_per_output_token_mean", "time_to_first_token_mean"):
        assert after[figure] == pytest.approx(before[figure], rel=0.35)
    assert after["request_error_share"] < 0.02
    assert faulty["speculation_rate"] < 0.4
    assert faulty["request_error_share"] > 0.25
    assert "time_to_first_token_p50" not in faulty


@pytest.mark.proof
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_truths_hold_whatever_the_seed(kind: str, seed: int, tmp_path: Path) -> None:
    """They are of the fault, not of the traffic that happens to be."""
    with observed(tmp_path, TRAFFIC.get(kind, STEADY), PLANS.get(kind, V2), seed=seed) as stack:
        prove(stack, make_fault(kind))


@pytest.mark.proof
@pytest.mark.parametrize("text", STRENGTHS)
def test_truths_hold_at_other_intensities(text: str, tmp_path: Path) -> None:
    """What a kind says of an intensity other than its default is true as well."""
    fault = parse_fault(text)
    kind = fault.kind.name
    with observed(tmp_path, TRAFFIC.get(kind, STEADY), PLANS.get(kind, V2)) as stack:
        prove(stack, fault)
