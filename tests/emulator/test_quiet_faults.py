"""Faults that neither slow the stack down nor make it fail: what each does, and the series that show it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from servescope.emulator.deployment.disaggregation import Disaggregation
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.deployment.stack import V1, V2, EmulatedStack
from servescope.emulator.effects import EngineEffects
from servescope.emulator.engine.engine import Engine
from servescope.emulator.engine.speculation import Speculation, speculate
from servescope.emulator.faults.composition import compose
from servescope.emulator.faults.faults import Faults, make_fault, parse_fault
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.exposition.rendering import render
from tests.emulator.support.engines import PLAIN, Bench

EPOCH = 1_800_000_000.0
WIDE = replace(PLAIN, max_queue=10_000, max_batch_size=64, cache_blocks=100_000)


def serve(effects: EngineEffects, requests: int = 400, tokens: int = 40) -> Bench:
    """So many requests of 16 prompt tokens each, one every 0.1 s, served under the effects."""
    bench = Bench(WIDE)
    bench.engine.apply_effects(effects)
    for _ in range(requests):
        bench.submit(16, tokens)
        bench.clock.run_until(bench.clock.now + 0.1)
    bench.clock.run_until(bench.clock.now + 60.0)
    return bench


def ended(bench: Bench, outcome: str) -> float:
    """How many requests the engine's series say have ended so."""
    return bench.read("requests_total", outcome=outcome)


# --- Answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "tokens"), [(0.5, 20), (0.95, 38), (0.01, 1)])
def test_short_answers_end_well(factor: float, tokens: int) -> None:
    """Every answer has its share of the tokens, one at least, and counts as complete."""
    bench = serve(EngineEffects(answer_factor=factor), requests=20)
    assert ended(bench, "ok") == 20
    assert bench.read("output_tokens_per_request_sum") == bench.read("output_tokens_total") == 20 * tokens
    assert read(bench.engine, "answers_truncated_total") == 0


def test_truncated_answers_are_a_share() -> None:
    """A quarter of the answers end somewhere on their way, the others are whole, and all count as complete."""
    bench = serve(EngineEffects(truncated_share=0.25))
    assert ended(bench, "ok") == 400
    assert bench.read("answers_truncated_total") == pytest.approx(100, abs=20)
    # Of a quarter half of the tokens is left on average.
    assert bench.read("output_tokens_total") / (400 * 40) == pytest.approx(1 - 0.25 / 2, abs=0.03)


def test_streams_are_cut_as_if_clients_had_hung_up() -> None:
    """A share has its first token and a part of the answer, and is counted as aborted by the client."""
    bench = serve(EngineEffects(cut_share=0.25))
    assert ended(bench, "client_abort") == pytest.approx(100, abs=20)
    assert ended(bench, "ok") == 400 - ended(bench, "client_abort")
    assert bench.read("time_to_first_token_seconds_count") == 400
    assert bench.read("output_tokens_total") / (400 * 40) == pytest.approx(1 - 0.25 / 2, abs=0.03)


def test_refused_requests_are_not_served() -> None:
    """A share ends as the client's error at once, without a token; the stack counts no error of its own."""
    bench = serve(EngineEffects(client_error_share=0.18))
    refused = ended(bench, "client_error")
    assert refused == pytest.approx(72, abs=20)
    assert (ended(bench, "ok"), ended(bench, "error")) == (400 - refused, 0)
    assert bench.read("output_tokens_total") == (400 - refused) * 40


# --- Requests that leak -----------------------------------------------------------------------------------------------


def test_lost_requests_start_and_never_end() -> None:
    """Their clients leave and their blocks are free again; the series have them in flight, also after the fault."""
    bench = serve(EngineEffects(lost_share=0.1))
    lost = list(bench.outcomes.values()).count("client_abort")
    assert lost == pytest.approx(40, abs=15)
    bench.engine.apply_effects(EngineEffects())
    bench.submit(16, 40)
    bench.clock.run_until(bench.clock.now + 60.0)
    assert bench.read("requests_started_total") == 401
    assert bench.read("requests_total") == ended(bench, "ok") == 401 - lost
    assert bench.read("concurrent_requests") == lost
    assert (bench.engine.in_flight, bench.engine.cache.held) == (0, 0)


@pytest.mark.slow
def test_lost_requests_are_forgotten_with_their_process() -> None:
    """A deployment goes on serving beside what it lost, and a restarted replica has nothing in flight."""
    stack = EmulatedStack.of([(V1, 1.0)], traffic=GeneratedTraffic(Mix(requests_per_second=3.0)), seed=1)
    faults = Faults(stack, [parse_fault("requests-lost:0.5")])
    stack.clock.run_until(300.0)
    (deployment,) = stack.deployments
    assert len(faults.active) == 1
    flying = {name: read(replica.engine, "concurrent_requests") for name, replica in deployment.replicas.items()}
    assert sum(flying.values()) > deployment.in_flight + 100
    deployment.restart("engine-0")
    assert read(deployment.replicas["engine-0"].engine, "concurrent_requests") == 0


def read(engine: Engine, name: str) -> float:
    """A series of a replica's page."""
    return next(sample.value for sample in engine.instruments.samples() if sample.name == name)


# --- The slow tail ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speculation", [None, speculate("Eagle", acceptance=(0.9, 0.8, 0.7))])
def test_slow_requests_take_five_times_as_long(speculation: Speculation | None) -> None:
    """The first token and those after it, of a request alone, come five times as late as those of any other."""
    seconds = []
    for share in (0.0, 1.0):
        bench = Bench(replace(PLAIN, speculation=speculation))
        bench.engine.apply_effects(EngineEffects(slow_share=share))
        bench.submit(100, 401)
        bench.clock.run_until(600.0)
        assert bench.outcomes == {1: "ok"}
        assert bench.read("output_tokens_total") == 401
        seconds.append([bench.read("time_to_first_token_seconds_sum"), bench.read("decode_seconds_total")])
    (first, rest), (slow_first, slow_rest) = seconds
    assert slow_first == pytest.approx(5 * first)
    assert slow_rest == pytest.approx(5 * rest, rel=0.02)


def test_the_others_are_as_fast_as_before() -> None:
    """Of a hundred requests in one batch a tenth is slow; the median is what it is without them."""

    def durations(share: float) -> list[float]:
        bench = Bench(replace(WIDE, max_batch_size=100))
        bench.engine.apply_effects(EngineEffects(slow_share=share))
        ends: dict[int, float] = {}
        bench.engine.watch_ended(lambda serving, _: ends.__setitem__(serving.request.number, bench.clock.now))
        for _ in range(100):
            bench.submit(16, 200)
        bench.clock.run_until(600.0)
        return sorted(ends.values())

    usual, slow = durations(0.0), durations(0.1)
    assert slow[50] == pytest.approx(usual[50], rel=0.02)
    assert 2 <= sum(seconds > 3 * usual[-1] for seconds in slow) <= 20


def test_preempted_while_it_waits_for_its_turn() -> None:
    """Slow requests in a cache that is too small for all of them lose their blocks, and end all the same."""
    bench = Bench(replace(PLAIN, cache_blocks=30, max_queue=100))
    bench.engine.apply_effects(EngineEffects(slow_share=0.5))
    for _ in range(12):
        bench.submit(64, 100)
    bench.clock.run_until(3600.0)
    assert list(bench.outcomes.values()) == ["ok"] * 12
    assert bench.read("preemptions_total") > 0
    assert bench.read("output_tokens_total") == 1200
    assert bench.engine.cache.held == 0


def test_slow_requests_wait_while_the_engine_is_frozen() -> None:
    """The first token that is due in a freeze comes after it."""
    bench = Bench()
    bench.engine.apply_effects(EngineEffects(slow_share=1.0))
    bench.submit(100, 2)
    bench.clock.run_until(0.2)
    bench.engine.apply_effects(EngineEffects(slow_share=1.0, frozen=True))
    bench.clock.run_until(30.0)
    assert bench.read("output_tokens_total") == 0
    bench.engine.apply_effects(EngineEffects())
    bench.clock.run_until(60.0)
    assert bench.outcomes == {1: "ok"}
    assert bench.read("time_to_first_token_seconds_sum") > 29.0


# --- GPUs and memory --------------------------------------------------------------------------------------------------


def test_wasted_gpus_are_as_busy_as_the_one() -> None:
    """Twice the GPUs for the same tokens: each has its series, with the same use of time and memory."""
    plain, waste = serve(EngineEffects(), requests=20), serve(EngineEffects(gpu_factor=2), requests=20)
    for name in ("gpu_usage", "gpu_memory_usage"):
        assert waste.read(name, gpu="0") == waste.read(name, gpu="1") == plain.read(name) > 0
    assert waste.read("output_tokens_total") == plain.read("output_tokens_total")
    waste.engine.apply_effects(EngineEffects())
    assert waste.read("gpu_memory_usage") == plain.read("gpu_memory_usage")


def test_leaked_blocks_fill_the_cache() -> None:
    """A tenth of the cache an hour: usage grows in a line, to the end, and no request has room any more."""
    bench = Bench(replace(PLAIN, max_queue=100))
    bench.submit(1600, 5)
    bench.clock.run_until(10.0)
    bench.engine.apply_effects(EngineEffects(leak_per_hour=0.1))
    seen = []
    for hour in (1, 5, 9):
        bench.clock.run_until(10.0 + hour * 3600)
        seen.append(bench.read("kv_cache_usage"))
    assert seen == pytest.approx([0.1, 0.5, 0.9], abs=0.001)
    assert bench.engine.cache.occupied == 1000  # the hundred that are idle, too
    bench.clock.run_until(11 * 3600.0)
    assert (bench.read("kv_cache_usage"), bench.engine.cache.cached_blocks()) == (1.0, set())
    bench.submit(16, 2)
    bench.clock.run_until(12 * 3600.0)
    assert bench.engine.queued == 1
    follower: set[int] = set()
    for changes in bench.changes:
        follower = (follower - set(changes.removed)) | set(changes.stored)
    assert follower == set()


def test_leak_ends_with_the_fault_and_the_room_comes_back_with_a_restart() -> None:
    """What has leaked stays gone when the fault is off; a new process has all of its cache."""
    stack = EmulatedStack.of([(V1, 1.0)], traffic=GeneratedTraffic(Mix()), seed=1, quiet=True)
    faults = Faults(stack)
    on = faults.switch_on(parse_fault("kv-creep:0.5"))
    stack.clock.run_until(3600.0)
    faults.switch_off(on.number)
    (deployment,) = stack.deployments
    usage = deployment.replicas["engine-0"].engine.cache.usage
    stack.clock.run_until(7200.0)
    assert deployment.replicas["engine-0"].engine.cache.usage == usage == pytest.approx(0.5, abs=0.01)
    deployment.restart("engine-0")
    assert deployment.replicas["engine-0"].engine.cache.usage == 0.0


# --- Replicas and router ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_replica_restarts_so_often_a_day() -> None:
    """Six times each in 24 hours, never two at once, and the times at which processes began say so."""
    two = replace(V1, scaling=replace(V1.scaling, min_replica=2, initial_replicas=2, max_replica=2))
    stack = EmulatedStack.of([(two, 1.0)], traffic=GeneratedTraffic(Mix()), seed=1, quiet=True, epoch=EPOCH)
    Faults(stack, [make_fault("restarts", start_seconds=60.0)])
    (deployment,) = stack.deployments
    began: dict[str, set[float]] = {"engine-0": set(), "engine-1": set()}
    for hour in range(25):
        stack.clock.run_until(hour * 3600.0 - 60.0)
        for name, starts in began.items():
            starts.add(read(deployment.replicas[name].engine, "replica_start_time_seconds") - EPOCH)
    # The start of all is none of them.
    assert sorted(began["engine-0"]) == [0, *(60 + hour * 3600 for hour in range(0, 24, 4))]
    assert sorted(began["engine-1"]) == [0, *(60 + hour * 3600 for hour in range(2, 24, 4))]


@pytest.mark.parametrize("plan", [V1, V2], ids=["least load", "by cache"])
def test_hot_spot_gets_what_its_share_says(plan: DeploymentPlan) -> None:
    """With all of the share one replica starts every request; with less the others get the rest; without, all alike."""
    shares = [count_on_oldest(plan, share) for share in (1.0, 0.5, None)]
    assert shares[0] == 1.0
    assert 0.55 < shares[1] < 0.85
    assert shares[2] < 0.5


def count_on_oldest(plan: DeploymentPlan, share: float | None) -> float:
    """The share of the requests that the oldest of three replicas has started."""
    mix = Mix(requests_per_second=2.0, burst_factor=1.0, day_amplitude=0.0)
    stack = EmulatedStack.of([(plan, 1.0)], traffic=GeneratedTraffic(mix), seed=1)
    if share is not None:
        Faults(stack).switch_on(make_fault("router-hot-spot", share))
    stack.clock.run_until(60.0)
    replicas = stack.deployments[0].replicas.values()
    started = [read(replica.engine, "requests_started_total") for replica in replicas]
    return started[0] / sum(started)


# --- All of them ------------------------------------------------------------------------------------------------------

QUIET = (
    "answers-short", "answers-truncated", "requests-lost", "client-cuts", "client-errors", "tail-slow", "gpu-waste",
    "kv-creep", "restarts", "router-hot-spot",
)  # fmt: skip
DISAGGREGATED = replace(
    V2, disaggregation=Disaggregation(1, 2), scaling=replace(V2.scaling, min_replica=1, initial_replicas=2)
)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [V1, V2, DISAGGREGATED], ids=["v1", "v2", "disaggregated"])
def test_all_at_once_are_the_same_each_time(plan: DeploymentPlan) -> None:
    """Every process shows the same page in a second run of the seed, in every kind of deployment."""

    def run() -> list[bytes]:
        mix = Mix(requests_per_second=2.0)
        stack = EmulatedStack.of([(plan, 1.0)], traffic=GeneratedTraffic(mix), seed=3, epoch=EPOCH)
        Faults(stack, [parse_fault(name) for name in QUIET if name != "router-hot-spot"])
        stack.clock.run_until(180.0)
        return [render(target.instruments) for target in stack.targets()]

    first = run()
    assert first == run()
    assert b"requests_total{" in b"".join(first)


@pytest.mark.slow
def test_the_worker_that_decodes_ends_a_request_as_the_one_that_prefilled_it_drew() -> None:
    """Answers are short, and the lost ones uncounted, where another worker generates all but their first token."""

    def count(*faults: str) -> dict[str, float]:
        mix = Mix(requests_per_second=2.0, abort_share=0.0)
        stack = EmulatedStack.of([(DISAGGREGATED, 1.0)], traffic=GeneratedTraffic(mix), seed=3)
        Faults(stack, [parse_fault(text) for text in faults])
        stack.clock.run_until(120.0)
        samples = [
            each for replica in stack.deployments[0].replicas.values() for each in replica.engine.instruments.samples()
        ]
        return {
            name: sum(each.value for each in samples if each.name == name)
            for name in ("output_tokens_per_request_sum", "output_tokens_per_request_count", "concurrent_requests")
        }

    usual, short, lost = count(), count("answers-short:0.25"), count("requests-lost:0.5")
    tokens, fewer = (
        seen["output_tokens_per_request_sum"] / seen["output_tokens_per_request_count"] for seen in (usual, short)
    )
    assert fewer == pytest.approx(tokens / 4, rel=0.15)
    assert lost["concurrent_requests"] > usual["concurrent_requests"] + 40


def test_two_of_a_kind_add_up() -> None:
    """Shares combine as chances, factors multiply, leaks add, and the more frequent restarts count."""
    kinds = [parse_fault(name).effects for name in QUIET]
    both = compose([*kinds, *kinds])
    assert both.engine.answer_factor == 0.25
    assert both.engine.gpu_factor == 4
    assert both.engine.leak_per_hour == pytest.approx(0.1)
    assert both.engine.lost_share == pytest.approx(1 - 0.97**2)
    assert both.restart_each_seconds == 14_400
    shares = [getattr(both.engine, each.name) for each in fields(both.engine) if each.name.endswith("_share")]
    assert all(0 <= share <= 1 for share in (*shares, both.router.hot_share))
