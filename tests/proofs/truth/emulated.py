"""The emulated side: our router and engines on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.deployment.stack import V2
from servescope.emulator.engine.costs import StepCost
from servescope.emulator.router.configuration import KvRouterParameters
from servescope.emulator.router.kv import KvRouter
from servescope.emulator.router.placement import Router
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.migration.scaling import TokenScaling
from tests.proofs.truth.figures import Figures
from tests.proofs.truth.settings import (
    BLOCK_TOKENS,
    CONCURRENCY,
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    MAX_SEQ_LEN,
    WORKERS,
    Prompt,
    Setting,
)

# Close to what the mock workers wait for: 5.7 ms a step while little of the cache is in use, 15 µs a prompt token, and
# what grows with the square of a prompt.
COST = StepCost(
    weights=5.7e-3, per_prefill_token=15e-6, per_prefill_pair=8.4e-10, per_decoding_sequence=0.0, per_context_token=0.0
)


class _ClampedRouter(KvRouter):
    """Ours, but for one thing that Dynamo does otherwise: the prompt's part of a cost is never below 0."""

    def cost(self, prompt_blocks: int, overlap_blocks: int, active_blocks: int) -> float:
        return max(super().cost(prompt_blocks, overlap_blocks, 0), 0.0) + active_blocks


def clamp_costs(router: Router) -> None:
    """Let a router of ours weigh as Dynamo does in that."""
    assert type(router) is KvRouter, router
    router.__class__ = _ClampedRouter


def run_emulated(setting: Setting, prompts: Sequence[Prompt]) -> Figures:
    """The figures of our router when the prompts are sent in their order, so many at once as to the real one."""
    clock = VirtualClock()
    deployment = EmulatedDeployment(_plan(setting), clock=clock, seed=1)
    if setting.clamped:
        clamp_costs(deployment.router)
    requests = iter(_make_requests(prompts))
    in_flight = 0

    def send_next(outcome: str) -> None:
        nonlocal in_flight
        in_flight -= 1
        assert outcome == "ok", outcome
        clock.schedule(0.0, send)

    def send() -> None:
        nonlocal in_flight
        request = next(requests, None)
        if request is not None:
            in_flight += 1
            deployment.send(request, send_next)

    for _ in range(CONCURRENCY):
        clock.schedule(0.0, send)
    clock.run_until(1.0)
    while in_flight:
        clock.run_until(clock.now + 1.0)
    return read_figures(deployment)


def _plan(setting: Setting) -> DeploymentPlan:
    engine = replace(
        V2.engine,
        max_batch_size=MAX_BATCH_SIZE,
        max_num_tokens=MAX_NUM_TOKENS,
        max_seq_len=MAX_SEQ_LEN,
        max_queue=CONCURRENCY,
        block_tokens=BLOCK_TOKENS,
        cache_blocks=setting.cache_blocks,
        error_share=0.0,
        cost=COST,
        speculation=None,
    )
    return replace(
        V2,
        engine=engine,
        scaling=TokenScaling(min_replica=WORKERS, initial_replicas=WORKERS, max_replica=WORKERS),
        routing=KvRouterParameters(setting.weight, setting.temperature),
        event_seconds=0.002,
    )


def _make_requests(prompts: Sequence[Prompt]) -> Iterator[WorkloadRequest]:
    """The prompts with the chained ids of their blocks; what is generated is shared with nothing."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    ids = count(1)
    for number, prompt in enumerate(prompts):
        blocks, parent = [], 0
        for start in range(0, len(prompt.tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            content = (parent, prompt.tokens[start : start + BLOCK_TOKENS])
            if content not in known:
                known[content] = next(ids)
            parent = known[content]
            blocks.append(parent)
        full = (len(prompt.tokens) + prompt.output_tokens) // BLOCK_TOKENS
        blocks += [next(ids) for _ in range(full - len(blocks))]
        yield WorkloadRequest(number, len(prompt.tokens), prompt.output_tokens, tuple(blocks))


def read_figures(deployment: EmulatedDeployment) -> Figures:
    """What the deployment's router has counted."""
    values = {sample.name: sample.value for sample in deployment.router.instruments.samples()}
    return Figures(*(values[f"kv_cache_{part}_tokens_total"] for part in ("eligible", "predicted", "reused", "best")))
