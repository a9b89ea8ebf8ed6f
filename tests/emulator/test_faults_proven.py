"""Every fault does what it says: the stack is well, the fault is on and its truths hold, it is off and they do not.

All of it is read through a collector on the emulated pages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from servescope.emulator.fault_kinds import KINDS
from servescope.emulator.faults import Fault, make_fault, parse_fault
from servescope.emulator.stack import V1, V2, EmulatedStack
from servescope.emulator.workload import GeneratedTraffic, Mix
from tests.emulator.observed_stack import ObservedStack, tell_broken

HEALTHY_SECONDS = 120.0
RECOVERY_SECONDS = 180.0
# Steady, so that what moves is moved by the fault.
STEADY = Mix(requests_per_second=4.0, burst_factor=1.0, day_amplitude=0.0)
FULL = Mix(requests_per_second=6.0, burst_factor=1.0, day_amplitude=0.0)
# Kinds whose truths need more than the steady traffic.
TRAFFIC = {"throughput-regression": FULL}
BESIDE = {"cold-start-slow": "traffic-surge:3"}


@contextmanager
def observed(folder: Path, mix: Mix = STEADY, *, both: bool = False, seed: int = 1) -> Iterator[ObservedStack]:
    """The demo's v2 deployment under steady traffic, or both of the demo's."""
    plans = [(V1, 1.0), (V2, 1.0)] if both else [(V2, 1.0)]
    with ObservedStack(EmulatedStack.of(plans, traffic=GeneratedTraffic(mix), seed=seed), folder) as stack:
        yield stack


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Let the collector not tell of every scrape that a fault lets fail."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def prove(stack: ObservedStack, fault: Fault, deployment: str = "chat-v2") -> None:
    """The fault's truths do not hold before it, hold while it is on, and do not hold after it."""
    truths = fault.kind.truths(fault.intensity)
    moving = tuple(truth for truth in truths if not truth.unmoved)
    stack.run(HEALTHY_SECONDS)
    before = stack.see(deployment)
    already = [truth.describe() for truth in moving if truth.holds(before.get(truth.key), before=before.get(truth.key))]
    assert not already

    beside = [stack.faults.switch_on(parse_fault(text)) for text in (BESIDE.get(fault.kind.name),) if text]
    on = stack.faults.switch_on(fault)
    stack.run(fault.kind.shows_after_seconds)
    assert tell_broken(truths, stack.see(deployment, fault), before) == []

    for each in (on, *beside):
        stack.faults.switch_off(each.number)
    stack.run(RECOVERY_SECONDS)
    after = stack.see(deployment)
    still = [truth.describe() for truth in moving if truth.holds(after.get(truth.key), before=before.get(truth.key))]
    assert not still


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "kv-transfer-slow"])
def test_truths_hold_while_it_is_on(kind: str, tmp_path: Path) -> None:
    """Healthy, then the truths of the fault at its default intensity, then healthy again."""
    with observed(tmp_path, TRAFFIC.get(kind, STEADY)) as stack:
        prove(stack, make_fault(kind))
