"""Leaping over steps shows what going step by step shows, and conserves what engines conserve, whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from servescope.contract.samples import Sample
from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import EngineEffects
from servescope.emulator.engine.cache import CacheChanges
from servescope.emulator.engine.costs import StepCost
from servescope.emulator.engine.engine import Engine
from servescope.emulator.engine.parameters import EngineParameters, EngineRole
from servescope.emulator.engine.serving import Serving
from servescope.emulator.engine.speculation import Speculation
from servescope.emulator.workload.requests import WorkloadRequest
from tests.emulator.support.engines import make_engine
from tests.support.drawing import examples

# Numbers of which no sums meet, so that no step ends at the very moment at which something else happens.
COST = StepCost(
    weights=0.01037, per_prefill_token=0.000137, per_prefill_pair=1.1e-9, per_decoding_sequence=0.00041,
    per_draft_token=0.00011, per_context_token=1.7e-7,
)  # fmt: skip


@dataclass
class World:
    """One engine, or a prefill and a decode engine, and everything that can be seen of them."""

    parameters: EngineParameters
    leaps: bool
    disaggregated: bool = False
    clock: VirtualClock = field(default_factory=VirtualClock)
    published: list[tuple[float, CacheChanges]] = field(default_factory=list)
    outcomes: dict[int, tuple[float, str]] = field(default_factory=dict)
    reused: dict[int, int] = field(default_factory=dict)
    servings: list[tuple[Engine, Serving]] = field(default_factory=list)
    generated: int = 0

    def __post_init__(self) -> None:
        roles: list[EngineRole] = ["prefill", "decode"] if self.disaggregated else ["aggregated"]
        self.engines = [self._engine(role) for role in roles]

    def _engine(self, role: EngineRole) -> Engine:
        def publish(changes: CacheChanges) -> None:
            self.published.append((self.clock.now, changes))

        return make_engine(self.parameters, self.clock, role=role, publish=publish, leaps=self.leaps)[0]

    def submit(self, input_tokens: int, output_tokens: int, stream: int, priority: int, followed: bool) -> None:
        """Send a request to the first engine; `followed` by its client token by token."""
        number = len(self.reused) + len(self.servings) + len(self.outcomes) + 1
        base = 100_000 * stream
        # What is generated to the last stream has no ids: nobody will ever ask for it again.
        named_tokens = input_tokens + (0 if stream == 3 else output_tokens)
        request = WorkloadRequest(
            number,
            input_tokens,
            output_tokens,
            range(base, base + named_tokens // self.parameters.block_tokens),
            priority=priority,
            on_tokens=self._follow if followed else None,
        )
        finished = partial(self._finish, number)
        first = self.engines[0]
        if self.disaggregated:
            serving = first.submit(
                request, first_token=partial(self._first, number), finished=finished,
                handed_over=lambda serving: self.clock.schedule(0.0713, lambda: self._fetch(serving)),
            )  # fmt: skip
        else:
            serving = first.submit(request, first_token=partial(self._first, number), finished=finished)
        self.servings.append((first, serving))

    def _follow(self, tokens: int) -> None:
        self.generated += tokens

    def _first(self, number: int, cached: int) -> None:
        self.reused[number] = cached

    def _finish(self, number: int, outcome: str) -> None:
        assert number not in self.outcomes
        self.outcomes[number] = self.clock.now, outcome

    def _fetch(self, serving: Serving) -> None:
        if not serving.ended:
            prefilled = self.engines[0].release(serving)
            finished = partial(self._finish, prefilled.request.number)
            self.servings.append((self.engines[1], self.engines[1].submit_prefilled(prefilled, finished=finished)))

    def abort(self, which: int) -> None:
        """Hang up on one of the requests there were."""
        if self.servings:
            engine, serving = self.servings[which % len(self.servings)]
            engine.abort(serving)

    def read(self) -> list[list[Sample]]:
        """What a scraper sees of each engine, but when it was made: that is by the wall clock."""
        return [
            [sample for sample in engine.instruments.samples() if sample.name != "replica_start_time_seconds"]
            for engine in self.engines
        ]

    def sum(self, name: str) -> float:
        """The sum of a figure over all engines."""
        return sum(sample.value for samples in self.read() for sample in samples if sample.name == name)


effects = st.builds(
    EngineEffects,
    prefill_factor=st.sampled_from([1.0, 1.7]),
    decode_factor=st.sampled_from([1.0, 2.3]),
    batch_factor=st.sampled_from([1.0, 0.3]),
    acceptance_factors=st.sampled_from([(), (0.4,), (1.0, 0.2)]),
    error_share=st.sampled_from([0.0, 0.5]),
    frozen=st.sampled_from([False, False, True]),
    churn_share=st.sampled_from([0.0, 0.5]),
)
actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"), st.integers(1, 200), st.integers(1, 150), st.integers(0, 3), st.integers(0, 1),
            st.sampled_from([False, False, False, True]),
        ),
        st.tuples(st.just("abort"), st.integers(0, 20)),
        st.tuples(st.just("effects"), effects),
        st.tuples(st.just("wait"), st.floats(0.001, 1.5)),
        st.tuples(st.just("watch")),
    ),
    max_size=30,
)  # fmt: skip
engines = st.builds(
    EngineParameters,
    max_batch_size=st.integers(1, 6),
    max_num_tokens=st.sampled_from([7, 64, 1000]),
    max_queue=st.just(6),
    block_tokens=st.sampled_from([8, 64]),
    cache_blocks=st.integers(46, 70),
    error_share=st.just(0.1),
    cost=st.just(COST),
    speculation=st.sampled_from([None, Speculation((0.8, 0.6), 0.00017, drift_per_hour=0.9)]),
)


def act(world: World, action: tuple[object, ...]) -> None:
    """Let one thing happen."""
    kind, *values = action
    if kind == "submit":
        world.submit(*values)  # type: ignore[arg-type] # as drawn
    elif kind == "abort":
        world.abort(*values)  # type: ignore[arg-type] # as drawn
    elif kind == "effects":
        for engine in world.engines:
            engine.apply_effects(*values)  # type: ignore[arg-type] # as drawn
    elif kind == "wait":
        world.clock.run_until(world.clock.now + values[0])  # type: ignore[operator] # as drawn


def check_conservation(world: World) -> None:
    """Requests, blocks and tokens add up, now as at any time."""
    started, ended = world.sum("requests_started_total"), world.sum("requests_total")
    assert started == len({serving.request.number for _, serving in world.servings})
    assert ended == len(world.outcomes)
    for engine, samples in zip(world.engines, world.read(), strict=True):
        shown = next(sample.value for sample in samples if sample.name == "concurrent_requests")
        assert shown == engine.in_flight
        check_blocks(engine, [serving for each, serving in world.servings if each is engine and serving.lease])
    assert started == ended + sum(engine.in_flight for engine in world.engines)
    assert world.sum("output_tokens_total") == sum(
        serving.generated for _, serving in world.servings if serving.request.number not in handed_over(world)
    ) + sum(serving.generated for engine, serving in world.servings if engine.role == "decode")
    drafted = world.sum("spec_decode_num_draft_tokens_total")
    accepted = world.sum("spec_decode_num_accepted_tokens_total")
    assert 0 <= accepted <= drafted
    assert accepted == world.sum("spec_decode_num_accepted_tokens_per_pos_total")
    assert world.sum("servescope_instrument_errors_total") == 0


def handed_over(world: World) -> set[int]:
    """The requests that another engine went on with."""
    return {serving.request.number for engine, serving in world.servings if engine.role == "decode"}


def check_blocks(engine: Engine, holders: list[Serving]) -> None:
    """Held + idle + free = capacity, shared blocks held by their leases; all KV came from somewhere and has a block."""
    cache = engine.cache
    leases = [serving.lease for serving in holders if serving.lease is not None]
    shared = {block for lease in leases for block in lease.block_ids[: lease.shared]}
    assert cache.held == len(shared) + sum(lease.private for lease in leases)
    assert shared.isdisjoint(cache.idle_blocks())
    assert cache.held + len(cache.idle_blocks()) == cache.occupied <= cache.capacity
    tokens = engine.count_tokens()
    gained = tokens.prefilled + tokens.reused + tokens.transferred + tokens.decoded
    assert gained == tokens.dropped + sum(serving.computed for serving in holders)
    for serving in holders:
        assert serving.lease is not None
        assert serving.lease.shared * cache.block_tokens <= serving.computed
        assert serving.computed <= serving.lease.blocks * cache.block_tokens
        assert serving.cached_tokens is not None
        assert serving.cached_tokens < serving.request.input_tokens


SMALL = EngineParameters(
    max_batch_size=2, max_num_tokens=7, max_queue=6, block_tokens=8, cache_blocks=46, error_share=0.1, cost=COST
)


# A preempted request may be admitted again in the next step; one that finds less cached begins with less.
@pytest.mark.slow
@example(
    parameters=SMALL,
    disaggregated=False,
    actions=[
        ("submit", 1, 1, 0, 0, False), ("submit", 1, 105, 0, 0, False), ("submit", 1, 1, 0, 0, False),
        ("submit", 1, 1, 0, 0, False), ("submit", 153, 106, 1, 1, False),
    ],
)  # fmt: skip
@example(
    parameters=replace(SMALL, max_batch_size=3, max_num_tokens=64, cache_blocks=49),
    disaggregated=False,
    actions=[
        ("submit", 32, 104, 2, 0, True), ("submit", 15, 33, 3, 0, False), ("submit", 195, 136, 3, 0, False),
        ("submit", 137, 131, 3, 1, False), ("submit", 22, 138, 3, 1, False), ("submit", 129, 28, 3, 0, False),
        ("abort", 13), ("effects", EngineEffects(batch_factor=0.3, churn_share=0.5)), ("watch",),
        ("submit", 193, 125, 0, 0, False), ("wait", 1.3393315828862766), ("submit", 106, 138, 0, 1, False),
        ("watch",), ("submit", 110, 18, 1, 0, True), ("submit", 169, 8, 2, 0, False), ("submit", 18, 148, 1, 0, False),
        ("effects", EngineEffects(prefill_factor=1.7, error_share=0.5, churn_share=0.5)), ("abort", 3), ("abort", 16),
        ("submit", 199, 8, 3, 0, True), ("submit", 71, 90, 0, 1, False), ("wait", 0.7651432776276446),
        ("wait", 1.4691944286099392),
    ],
)  # fmt: skip
@settings(max_examples=examples(400, few=15))
@given(parameters=engines, disaggregated=st.booleans(), actions=actions)
def test_leaps_show_what_single_steps_show(
    parameters: EngineParameters, disaggregated: bool, actions: list[tuple[object, ...]]
) -> None:
    """Every figure at every read, every cache event and every end is the same, to the last bit and at the same time."""
    compare_with_single_steps(parameters, disaggregated, actions)


def compare_with_single_steps(
    parameters: EngineParameters, disaggregated: bool, actions: list[tuple[object, ...]]
) -> None:
    leaping, stepping = (World(parameters, leaps, disaggregated) for leaps in (True, False))
    for action in actions:
        for world in (leaping, stepping):
            act(world, action)
        for _ in range(40 if action[0] == "watch" else 0):
            for world in (leaping, stepping):
                world.clock.run_until(world.clock.now + 0.0031)
            assert leaping.read() == stepping.read()
            assert [engine.in_flight_tokens_by_phase() for engine in leaping.engines] == [
                engine.in_flight_tokens_by_phase() for engine in stepping.engines
            ]
    for world in (leaping, stepping):
        for engine in world.engines:
            engine.apply_effects(EngineEffects())
        world.clock.run_until(world.clock.now + 600.0)
    assert leaping.read() == stepping.read()
    assert leaping.published == stepping.published
    assert (leaping.outcomes, leaping.reused, leaping.generated) == (
        stepping.outcomes,
        stepping.reused,
        stepping.generated,
    )
    assert [engine.steps for engine in leaping.engines] == [engine.steps for engine in stepping.engines]
    assert [engine.count_tokens() for engine in leaping.engines] == [
        engine.count_tokens() for engine in stepping.engines
    ]


@pytest.mark.slow
@settings(max_examples=examples(400, few=15))
@given(parameters=engines, disaggregated=st.booleans(), actions=actions)
def test_conservation_under_effects(
    parameters: EngineParameters, disaggregated: bool, actions: list[tuple[object, ...]]
) -> None:
    """Tokens, blocks and requests add up at every moment, over roles, aborts, preemption and effects that change."""
    check_history(parameters, disaggregated, actions)


def check_history(parameters: EngineParameters, disaggregated: bool, actions: list[tuple[object, ...]]) -> None:
    world = World(parameters, leaps=True, disaggregated=disaggregated)
    for action in actions:
        act(world, action)
        check_conservation(world)
    for engine in world.engines:
        engine.apply_effects(EngineEffects())
    world.clock.run_until(world.clock.now + 3600.0)
    check_conservation(world)
    assert all(engine.in_flight == engine.in_flight_tokens == engine.cache.held == 0 for engine in world.engines)
    follower: set[int] = set()
    if not disaggregated:
        for _, changes in world.published:
            follower = (follower - set(changes.removed)) | set(changes.stored)
        assert follower == world.engines[0].cache.cached_blocks()


def test_leap_is_a_few_events() -> None:
    """A thousand tokens of one sequence within its blocks are a handful of the clock's events, not a thousand."""
    world = World(EngineParameters(block_tokens=2048, cost=COST, error_share=0.0), leaps=True)
    events = 0
    schedule_at = world.clock.schedule_at

    def count(time_seconds: float, action: object) -> None:
        nonlocal events
        events += 1
        schedule_at(time_seconds, action)  # type: ignore[arg-type] # as it came

    world.clock.schedule_at = count  # type: ignore[method-assign] # to look on
    world.submit(100, 1000, 1, 0, followed=False)
    world.clock.run_until(600.0)
    assert world.sum("output_tokens_total") == 1000
    assert world.engines[0].steps == 1000
    assert events <= 5


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_engine_stands_still(frozen: bool) -> None:
    """Frozen, nothing comes out of an engine that takes requests; its queue and cache look as they last did."""
    world = World(EngineParameters(cost=COST, error_share=0.0, max_queue=0), leaps=True)
    world.submit(100, 200, 1, 0, followed=False)
    world.clock.run_until(0.5)
    engine = world.engines[0]
    engine.apply_effects(EngineEffects(frozen=frozen))
    world.clock.run_until(0.6)
    tokens, steps, usage = world.sum("output_tokens_total"), engine.steps, world.sum("kv_cache_usage")
    world.submit(100, 200, 2, 0, followed=False)
    world.submit(100, 200, 3, 0, followed=False)
    world.clock.run_until(1.5)
    stood_still = (world.sum("output_tokens_total"), engine.steps) == (tokens, steps)
    assert stood_still == frozen
    assert (world.sum("queued_requests") == 0 and world.sum("kv_cache_usage") == usage) == frozen
    engine.apply_effects(EngineEffects())
    world.clock.run_until(60.0)
    assert [outcome for _, outcome in world.outcomes.values()].count("ok") == (
        3 if frozen else 1 + len(world.reused) - 1
    )
