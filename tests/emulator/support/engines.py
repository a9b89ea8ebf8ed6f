"""One engine on a virtual clock, for tests to try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from servescope.contract.identity import Identity
from servescope.emulator.clock import VirtualClock
from servescope.emulator.engine.cache import CacheChanges
from servescope.emulator.engine.costs import StepCost
from servescope.emulator.engine.engine import Engine
from servescope.emulator.engine.gpu import EmulatedGpu
from servescope.emulator.engine.parameters import EngineParameters, EngineRole
from servescope.emulator.engine.serving import Serving
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.instruments.engine import EngineInstruments

# One token of prompt takes a millisecond, one step without prompts ten.
COST = StepCost(
    weights=0.010, per_prefill_token=0.001, per_decoding_sequence=0.0, per_draft_token=0.0, per_context_token=0.0
)
PLAIN = EngineParameters(block_tokens=16, cache_blocks=1000, error_share=0.0, cost=COST)


def make_engine(
    parameters: EngineParameters, clock: VirtualClock, *, role: EngineRole = "aggregated", **options: Any
) -> tuple[Engine, EngineInstruments]:
    """An engine with a GPU and instruments of its own."""
    gpu = EmulatedGpu(clock=clock, memory_bytes=parameters.gpu_memory_bytes)
    instruments = EngineInstruments(
        Identity("m", "d", "v2", replica=role, role=role),
        clock=clock.read,
        draft_length=max(parameters.draft_length, 1),
        resources=gpu,
    )
    options = {"seed": role, **options}
    return Engine(parameters, clock=clock, instruments=instruments, gpu=gpu, role=role, **options), instruments


@dataclass
class Bench:
    """One engine on a virtual clock, and all that comes out of it."""

    parameters: EngineParameters = PLAIN
    clock: VirtualClock = field(default_factory=VirtualClock)
    changes: list[CacheChanges] = field(default_factory=list)
    reused: dict[int, int] = field(default_factory=dict)
    outcomes: dict[int, str] = field(default_factory=dict)
    numbers: int = 0

    def __post_init__(self) -> None:
        publish = self.changes.append
        self.engine, self.instruments = make_engine(self.parameters, self.clock, seed="bench", publish=publish)

    def submit(
        self,
        input_tokens: int,
        output_tokens: int,
        *,
        stream: int | None = None,
        priority: int = 0,
        on_tokens: Callable[[int], None] | None = None,
        segment: str | None = None,
    ) -> Serving:
        """Send one request; those with the same stream begin with the same text."""
        self.numbers += 1
        number = self.numbers
        blocks = (input_tokens + output_tokens) // self.parameters.block_tokens
        base = (number if stream is None else 1000 + stream) * 100_000
        ids = tuple(range(base, base + blocks))
        request = WorkloadRequest(
            number, input_tokens, output_tokens, ids, priority=priority, segment=segment, on_tokens=on_tokens
        )

        def finished(outcome: str) -> None:
            assert number not in self.outcomes
            self.outcomes[number] = outcome

        return self.engine.submit(
            request, first_token=lambda cached: self.reused.__setitem__(number, cached), finished=finished
        )

    def read(self, name: str, **labels: str) -> float:
        """The value of a sample as a reader sees it; 0 when it is absent."""
        return sum(
            sample.value
            for sample in self.instruments.samples()
            if sample.name == name and set(labels.items()) <= set(sample.labels)
        )
