"""Engines large enough for a recorded trace: the demo's are small, and most public prompts are long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.engine.hardware import DEFAULT_MODEL, size_engine
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.workload.traces import MOONCAKE_BLOCK_TOKENS, TraceSurvey
from servescope.migration.scaling import TokenScaling

# Where a trace names no blocks, any size will do; this is the demo's.
_AZURE_BLOCK_TOKENS: Final = 32
# No request of a trace is rejected because the queue is full.
_ENDLESS_QUEUE: Final = 1 << 30
# In flight, on average, until a v2 deployment of such engines grows: within the documented 50 000 to 150 000.
_TARGET_IN_FLIGHT_TOKENS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the workers of a replay are made of; `blocks` of cache each, None for what the memory holds.

    `precision` is that of the weights, None for fp8 where the GPU has it, else bf16.
    """

    hardware: str = "h100"
    model: str = DEFAULT_MODEL
    tensor_parallel_size: int = 4
    max_batch_size: int = 256
    max_num_tokens: int = 8192
    precision: str | None = None
    blocks: int | None = None


def size_for_trace(engine: EngineParameters, survey: TraceSurvey, settings: WorkerSettings) -> EngineParameters:
    """The engine, but made of these and able to take any request of a trace its cache has room for."""
    size = size_engine(
        settings.hardware,
        model=settings.model,
        tensor_parallel_size=settings.tensor_parallel_size,
        precision=settings.precision,
    )
    block_tokens = MOONCAKE_BLOCK_TOKENS if survey.format == "mooncake" else _AZURE_BLOCK_TOKENS
    return replace(
        engine,
        max_batch_size=settings.max_batch_size,
        max_num_tokens=settings.max_num_tokens,
        # An engine keeps room for what it drafts beyond the last token.
        max_seq_len=survey.longest_tokens + engine.tokens_per_decode,
        max_queue=_ENDLESS_QUEUE,
        block_tokens=block_tokens,
        cache_blocks=size.cache_blocks(block_tokens) if settings.blocks is None else settings.blocks,
        weights_bytes=size.weights_bytes,
        cache_bytes_per_token=size.cache_bytes_per_token,
        cost=size.cost,
    )


def fit_to_trace(plan: DeploymentPlan, survey: TraceSurvey) -> DeploymentPlan:
    """The plan of a deployment with engines that can serve a trace; the bounds on its replicas stay."""
    engine = size_for_trace(plan.engine, survey, WorkerSettings())
    scaling = plan.scaling
    if isinstance(scaling, TokenScaling):
        scaling = replace(scaling, target_in_flight_tokens=_TARGET_IN_FLIGHT_TOKENS)
    return replace(plan, engine=engine, scaling=scaling)
