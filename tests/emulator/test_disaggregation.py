"""Disaggregated serving: units of prefill and decode workers, KV between them, and what a collector makes of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target as ScrapedTarget
from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.disaggregation import Disaggregation, KvNetwork, parse_disaggregation
from servescope.emulator.deployment.stack import V2, EmulatedStack
from servescope.emulator.effects import DeploymentEffects, EngineEffects, RouterEffects
from servescope.emulator.engine.costs import TransferCost
from servescope.emulator.router.configuration import RouterRuntime
from servescope.emulator.server.server import format_configuration, format_file_sd
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.emulator.workload.requests import Cancel, WorkloadRequest
from servescope.errors import UsageError
from servescope.exposition.rendering import render
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling
from servescope.store.embedded import Store
from tests.emulator.conftest import deploy, forget, shown
from tests.support.drawing import examples

FIXED = TokenScaling(min_replica=2, initial_replicas=2, max_replica=2)
PLAN = replace(
    V2,
    engine=replace(V2.engine, error_share=0.0, max_queue=50),
    disaggregation=Disaggregation(1, 2),
    scaling=FIXED,
)


def request(number: int, *, input_tokens: int = 2000, output_tokens: int = 100) -> WorkloadRequest:
    """One that shares nothing with any other."""
    blocks = tuple(number * 1000 + index for index in range((input_tokens + output_tokens) // 32))
    return WorkloadRequest(number, input_tokens, output_tokens, blocks)


def test_unit_is_read_as_documented() -> None:
    """The documented fields give a unit; without them, or with false, there is none."""
    counts = {"prefill_workers_per_replica": 1, "decode_workers_per_replica": 2}
    unit = parse_disaggregation({"is_disaggregated": True, "b10_disagg_config": counts})
    assert unit == Disaggregation(1, 2)
    assert unit.roles == ("prefill", "decode", "decode")
    assert parse_disaggregation({}) is None
    assert parse_disaggregation({"is_disaggregated": False}) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"b10_disagg_config": {}}, "b10_disagg_config needs is_disaggregated to be true, which is false or absent"),
        ({"is_disaggregated": False, "b10_disagg_config": {}}, "b10_disagg_config needs is_disaggregated to be true"),
        ({"is_disaggregated": True},
         "b10_disagg_config is missing: is_disaggregated is true, expected prefill_workers"),
        ({"is_disaggregated": "yes"}, "is_disaggregated is 'yes', expected true or false"),
        ({"is_disaggregated": True, "b10_disagg_config": 3}, "b10_disagg_config is 3, expected a mapping"),
        ({"is_disaggregated": True, "b10_disagg_config": {}}, "prefill_workers_per_replica is missing"),
        ({"is_disaggregated": True, "b10_disagg_config": {"prefill_workers_per_replica": 1}},
         "decode_workers_per_replica is missing"),
        *(
            (
                {
                    "is_disaggregated": True,
                    "b10_disagg_config": {"prefill_workers_per_replica": wrong, "decode_workers_per_replica": 1},
                },
                f"prefill_workers_per_replica is {shown}, expected a whole number of 1 or more",
            )
            for wrong, shown in ((0, "0"), (-1, "-1"), (1.5, "1.5"), (True, "true"), ("2", "'2'"))
        ),
        (
            {
                "is_disaggregated": True,
                "b10_disagg_config": {"prefill_workers": 1, "decode_workers_per_replica": 1},
            },
            "b10_disagg_config.prefill_workers is an unknown field, did you mean 'prefill_workers_per_replica'",
        ),
    ],
)  # fmt: skip
def test_what_the_documents_reject_is_refused(config: Mapping[str, object], message: str) -> None:
    """Counts without the switch, the switch without both counts, and counts below one, each by name."""
    with pytest.raises(UsageError, match=message):
        parse_disaggregation(config)


def test_units_are_not_scaled_by_concurrency() -> None:
    """A v1 autoscaler knows no phases, so that a plan with both is refused."""
    with pytest.raises(UsageError, match="scales on its tokens in flight"):
        replace(PLAN, scaling=ConcurrencyScaling())


def test_transfers_share_one_link_per_worker() -> None:
    """Two from one sender go after each other, two of different workers at once, each at the links' speed."""
    clock = VirtualClock()
    network = KvNetwork(clock=clock)
    done: dict[str, tuple[float, float, float]] = {}

    def note(name: str, waited: float, took: float) -> None:
        done[name] = clock.now, waited, took

    for name, sender, receiver in (("first", "p0", "d0"), ("second", "p0", "d1"), ("apart", "p1", "d1")):
        network.send(sender, receiver, 5.0, lambda waited, took, name=name: note(name, waited, took))  # type: ignore[misc] # a default binds
    clock.run_until(100.0)
    assert done == {"first": (5.0, 0.0, 5.0), "apart": (5.0, 0.0, 5.0), "second": (10.0, 5.0, 5.0)}


def test_transfers_slow_down_on_their_way() -> None:
    """A factor stretches what is left of a transfer, and all that come after."""
    clock = VirtualClock()
    network = KvNetwork(clock=clock)
    ends: list[float] = []
    network.send("p0", "d0", 10.0, lambda waited, took: ends.append(clock.now))
    clock.run_until(4.0)
    network.set_factor(3.0)
    clock.run_until(100.0)
    network.send("p0", "d0", 1.0, lambda waited, took: ends.append(clock.now))
    clock.run_until(200.0)
    assert ends == [pytest.approx(4.0 + 3 * 6.0), pytest.approx(103.0)]


def test_cancelled_transfer_frees_its_links() -> None:
    """The next one begins at once, and the one that was given up never ends."""
    clock = VirtualClock()
    network = KvNetwork(clock=clock)
    ends: list[tuple[str, float]] = []
    first = network.send("p0", "d0", 10.0, lambda waited, took: ends.append(("first", clock.now)))
    network.send("p1", "d0", 10.0, lambda waited, took: ends.append(("second", clock.now)))
    clock.run_until(2.0)
    assert ends == []
    network.cancel(first)
    network.cancel(first)
    clock.run_until(100.0)
    assert ends == [("second", 12.0)]
    network.send("p1", "d0", 1.0, lambda waited, took: ends.append(("third", clock.now)))
    clock.run_until(200.0)
    assert ends[1:] == [("third", 101.0)]


def test_prefill_and_decode_workers_share_each_request() -> None:
    """Prompts and first tokens are computed by the one role, the rest by the other; together each counts once."""
    deployment, clock = deploy(PLAN)
    outcomes: list[str] = []
    for number in range(20):
        clock.schedule(number * 0.3, partial(deployment.send, request(number), outcomes.append))
    clock.run_until(60.0)
    assert outcomes == ["ok"] * 20
    whole, prefill, decode = shown(deployment), shown(deployment, role="prefill"), shown(deployment, role="decode")
    assert whole["requests_started_total"] == whole["requests_total"] == 20
    assert whole["input_tokens_total"] == prefill["input_tokens_total"] == 20 * 2000
    assert whole["time_to_first_token_seconds_count"] == prefill["time_to_first_token_seconds_count"] == 20
    assert prefill["output_tokens_total"] == 20
    assert decode["output_tokens_total"] == 20 * 99
    assert whole["output_tokens_per_request_sum"] == whole["output_tokens_total"] == 20 * 100
    assert decode["tps_per_request_count"] == whole["tps_per_request_count"] == 20
    assert decode["kv_transfer_bytes_total"] == 20 * 2000 * PLAN.engine.cache_bytes_per_token
    assert "spec_decode_num_draft_tokens_total" not in prefill
    assert whole["kv_cache_eligible_tokens_total"] == 20 * 2000
    assert whole["servescope_instrument_errors_total"] == 0


def test_roles_and_names_are_right_everywhere() -> None:
    """Each process says its role, under a name that says it too; a replica that is counted is a whole unit."""
    deployment, _ = deploy(PLAN)
    assert [(target.identity.replica, target.identity.role) for target in deployment.targets()] == [
        ("prefill-0", "prefill"),
        ("decode-0", "decode"),
        ("decode-1", "decode"),
        ("prefill-1", "prefill"),
        ("decode-2", "decode"),
        ("decode-3", "decode"),
        ("router-0", "router"),
        ("autoscaler-0", "autoscaler"),
    ]
    assert shown(deployment, status="active")["replica_count_by_status"] == 2
    assert not deployment.is_gone("/chat-v2/decode-3/metrics")
    assert not deployment.is_gone("/chat-v2/decode-4/metrics")


@pytest.mark.slow
def test_slow_transfers_delay_all_but_the_first_token() -> None:
    """Time to first token stays, while the second token, the transfers and their wait take longer."""

    def mean(effects: DeploymentEffects, name: str) -> float:
        deployment, clock = deploy(PLAN)
        deployment.apply_effects(effects)
        for number in range(40):
            clock.schedule(number * 0.4, partial(deployment.send, request(number), forget))
        clock.run_until(120.0)
        return means(deployment)[name]

    slow = DeploymentEffects(transfer_factor=30.0)
    usual = DeploymentEffects()
    for name, factor in (("kv_transfer_seconds", 30.0), ("kv_transfer_wait_seconds", 3.0)):
        assert mean(slow, name) > 0.9 * factor * mean(usual, name)
    assert mean(slow, "time_per_output_token_seconds") > 1.3 * mean(usual, "time_per_output_token_seconds")
    assert mean(slow, "time_to_first_token_seconds") == pytest.approx(mean(usual, "time_to_first_token_seconds"))


def test_what_is_not_sent_is_computed_again() -> None:
    """The second token waits for the prompt, and no transfer is counted; what was sent before goes on."""

    def serve(**effects: bool) -> dict[str, float]:
        deployment, clock = deploy(PLAN)
        deployment.apply_effects(DeploymentEffects(**effects))
        outcomes: list[str] = []
        for number in range(20):
            clock.schedule(number * 0.4, partial(deployment.send, request(number), outcomes.append))
        clock.run_until(120.0)
        assert outcomes == ["ok"] * 20
        return means(deployment)

    usual, skipped = serve(), serve(transfers_skipped=True)
    assert "kv_transfer_seconds" in usual
    assert "kv_transfer_seconds" not in skipped
    assert skipped["time_per_output_token_seconds"] > usual["time_per_output_token_seconds"]
    assert skipped["time_to_first_token_seconds"] == pytest.approx(usual["time_to_first_token_seconds"])


def means(deployment: EmulatedDeployment) -> dict[str, float]:
    """The mean of each histogram that has observations."""
    values = shown(deployment)
    return {
        name.removesuffix("_count"): values[f"{name.removesuffix('_count')}_sum"] / count
        for name, count in values.items()
        if name.endswith("_count") and count
    }


def send_kv() -> tuple[EmulatedDeployment, VirtualClock, str, list[str]]:
    """A deployment while KV is on its way, its clock, the worker that sends it, and the outcomes of the request."""
    deployment, clock = deploy(replace(PLAN, kv_transfer=TransferCost(bytes_per_second=100e6)))
    outcomes: list[str] = []
    deployment.send(request(1), outcomes.append)
    clock.run_until(3.0)
    sender = next(name for name, replica in deployment.replicas.items() if replica.sending)
    return deployment, clock, sender, outcomes


def test_kv_finds_another_worker_when_its_receiver_dies() -> None:
    """What was on its way to a worker that died goes to another one; what had come there has failed."""
    deployment, clock, sender, outcomes = send_kv()
    (receiver,) = [name for name, replica in deployment.replicas.items() if replica.requests and name != sender]
    assert shown(deployment, replica=sender)["kv_transfers_pending"] == 1
    deployment.fail(receiver)
    clock.run_until(30.0)
    assert outcomes == ["ok"]
    assert shown(deployment, replica=sender)["kv_transfers_pending"] == 0
    assert shown(deployment)["kv_transfer_seconds_count"] == 1


def test_request_ends_with_the_worker_that_holds_its_kv() -> None:
    """When the prefill worker dies before the KV has left it, the request has failed."""
    deployment, clock, sender, outcomes = send_kv()
    deployment.restart(sender)
    assert outcomes == ["error"]
    clock.run_until(30.0)
    assert outcomes == ["error"]
    assert all(replica.requests == 0 for replica in deployment.replicas.values())


def test_without_decode_workers_computed_prompts_wait() -> None:
    """They keep their blocks, and go on once a decode worker is there; a client may hang up meanwhile."""
    deployment, clock = deploy(replace(PLAN, scaling=TokenScaling()))
    for name in ("decode-0", "decode-1"):
        deployment.fail(name)
    outcomes: list[str] = []
    hang_ups = [deployment.send(request(number), outcomes.append) for number in range(3)]
    clock.run_until(5.0)
    assert shown(deployment, role="prefill")["kv_transfers_pending"] == 3
    assert shown(deployment, role="prefill")["kv_cache_usage"] > 0
    hang_ups[1]()
    assert outcomes == ["client_abort"]
    clock.run_until(120.0)
    assert outcomes == ["client_abort", "ok", "ok"]


@pytest.mark.slow
@pytest.mark.parametrize(("input_tokens", "output_tokens", "needed_by"), [(6000, 20, "prefill"), (200, 900, "decode")])
def test_units_follow_the_phase_that_needs_more(input_tokens: int, output_tokens: int, needed_by: str) -> None:
    """Long prompts scale units for prefill, long answers for decode, and both roles grow together."""
    scaling = TokenScaling(
        target_in_flight_tokens=4000, max_replica=4, autoscaling_window=60, scale_down_delay=60,
        scale_down_half_life_seconds=60, prefill_target_in_flight_tokens=8000,
    )  # fmt: skip
    deployment, clock = deploy(replace(PLAN, scaling=scaling))
    for number in range(240):
        arriving = request(number, input_tokens=input_tokens, output_tokens=output_tokens)
        clock.schedule(number * 0.5, partial(deployment.send, arriving, forget))
    clock.run_until(110.0)
    needs = {phase: shown(deployment, phase=phase)["autoscaler_phase_desired_scale"] for phase in ("prefill", "decode")}
    assert max(needs, key=needs.__getitem__) == needed_by
    assert shown(deployment)["autoscaler_desired_scale"] == max(needs.values()) > 1
    tokens = shown(deployment)
    assert tokens["autoscaler_phase_in_flight_tokens"] == tokens["autoscaler_in_flight_tokens"] > 0
    units = sum(deployment.count_replicas().values())
    assert units > 1
    roles = Counter(replica.identity.role for replica in deployment.replicas.values())
    assert roles == {"prefill": units, "decode": 2 * units}
    clock.run_until(900.0)
    assert deployment.count_replicas()["active"] == 1
    assert deployment.in_flight == 0


moves = st.lists(
    st.tuples(
        st.floats(0.0, 1.5),
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 3000), st.integers(1, 200)),
            st.tuples(st.just("hang up"), st.integers(0, 30), st.just(0)),
            st.tuples(st.sampled_from(["fail", "restart"]), st.integers(0, 8), st.just(0)),
            st.tuples(st.just("scale"), st.integers(1, 3), st.just(0)),
            st.tuples(st.just("slow"), st.integers(1, 200), st.just(0)),
            st.tuples(st.just("freeze"), st.integers(0, 8), st.integers(0, 1)),
            st.tuples(st.just("deafen"), st.integers(0, 1), st.just(0)),
            st.tuples(st.just("restart router"), st.just(0), st.just(0)),
        ),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(moves=moves, disaggregated=st.booleans(), routers=st.integers(1, 2))
def test_requests_are_conserved_whatever_happens(
    moves: list[tuple[float, tuple[str, int, int]]], disaggregated: bool, routers: int
) -> None:
    """Every request that was sent ends once or is in flight, under failures, restarts, scaling and freezes."""
    plan = replace(
        PLAN,
        engine=replace(PLAN.engine, cache_blocks=260, error_share=0.05),
        disaggregation=PLAN.disaggregation if disaggregated else None,
        scaling=TokenScaling(min_replica=1, initial_replicas=2, max_replica=3, scale_down_delay=1e9),
        drain_seconds=20.0,
        router=RouterRuntime(replicas=routers),
    )
    deployment, clock = deploy(plan)
    ended: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    hang_ups: list[Cancel] = []

    def end(number: int, outcome: str) -> None:
        ended[number] += 1
        outcomes[outcome] += 1

    for wait, (what, first, second) in moves:
        clock.run_until(clock.now + wait)
        names = list(deployment.replicas)
        if what == "send":
            number = len(hang_ups)
            arriving = request(number, input_tokens=first, output_tokens=second)
            hang_ups.append(deployment.send(arriving, lambda outcome, number=number: end(number, outcome)))  # type: ignore[misc] # a default binds
        elif what == "hang up" and hang_ups:
            hang_ups[first % len(hang_ups)]()
        elif what == "scale":
            deployment.fleet.scale_to(first)
        elif what == "deafen":
            deployment.router.apply_effects(RouterEffects(event_loss_share=float(first)))
        elif what == "restart router":
            deployment.restart("router-0")
        elif what == "slow":
            deployment.apply_effects(DeploymentEffects(transfer_factor=float(first)))
        elif names and what == "freeze":
            engine = deployment.replicas[names[first % len(names)]].engine
            engine.apply_effects(EngineEffects(frozen=bool(second)))
        elif names and what in ("fail", "restart"):
            getattr(deployment, what)(names[first % len(names)])
        assert set(ended.values()) <= {1}
        assert outcomes == deployment.outcomes
        assert len(hang_ups) == sum(outcomes.values()) + deployment.in_flight
        check_books(deployment)
    deployment.apply_effects(DeploymentEffects())
    deployment.router.apply_effects(RouterEffects())
    for replica in deployment.replicas.values():
        replica.engine.apply_effects(EngineEffects())
    clock.run_until(clock.now + 2000.0)
    assert sum(outcomes.values()) == len(hang_ups)
    check_books(deployment)
    for replica in deployment.replicas.values():
        assert replica.requests == replica.sending == replica.engine.in_flight == 0
        assert replica.engine.cache.held == 0


def check_books(deployment: EmulatedDeployment) -> None:
    """What is in flight is somewhere exactly once: in the router, in an engine, or turned away."""
    held = sum(replica.engine.in_flight for replica in deployment.replicas.values())
    assert deployment.in_flight == held + deployment.router.queued_requests
    assert all(replica.requests >= replica.sending >= 0 for replica in deployment.replicas.values())


@pytest.mark.slow
def test_collector_counts_each_request_once(tmp_path: Path) -> None:
    """Requests, tokens, first tokens, speeds and hits derived from all pages are those of the clients, counted once."""
    plan = replace(PLAN, scaling=TokenScaling(min_replica=3, initial_replicas=3, max_replica=3))
    mix = Mix(requests_per_second=4.0, abort_share=0.0, oversized_share=0.0)
    stack = EmulatedStack.of([(plan, 1.0)], traffic=GeneratedTraffic(mix), seed=2)
    (deployment,) = stack.deployments
    stack.clock.run_until(60.0)
    before, figures, after = asyncio.run(collect(stack, tmp_path, seconds=300.0))
    seconds = 300.0
    requests = after["requests_total"] - before["requests_total"]
    assert requests > 500
    assert figures["request_rate"] == pytest.approx(requests / seconds, rel=0.03)
    for figure, counter in (
        ("input_tokens_per_second", "input_tokens_total"),
        ("output_tokens_per_second", "output_tokens_total"),
        ("kv_transfer_bytes_per_second", "kv_transfer_bytes_total"),
    ):
        assert figures[figure] == pytest.approx((after[counter] - before[counter]) / seconds, rel=0.03)
    # The clients' own counts: each prompt and each answer once.
    assert after["input_tokens_total"] == pytest.approx(after["input_tokens_per_request_sum"], rel=0.05)
    ended = sum(deployment.outcomes.values())
    assert after["requests_started_total"] == ended + deployment.in_flight - deployment.router.queued_requests
    assert after["requests_total"] == ended
    prefill_hits = after["kv_cache_reused_tokens_total"] / after["kv_cache_eligible_tokens_total"]
    assert figures["kv_cache_hit_rate"] == pytest.approx(prefill_hits, abs=0.03)
    assert figures["concurrent_requests"] == deployment.in_flight - deployment.router.queued_requests
    assert 0.05 < figures["time_to_first_token_mean"] < 1.0
    assert 40 < figures["tps_per_request"] < 120
    assert figures['replica_count_by_status{status="active"}'] == 3
    assert figures['autoscaler_phase_in_flight_tokens{phase="decode"}'] > 0


async def collect(
    stack: EmulatedStack, folder: Path, *, seconds: float
) -> tuple[dict[str, float], Mapping[str, float], dict[str, float]]:
    """The sums of the pages when scraping began, the figures over so much time, and the sums at its end."""
    (deployment,) = stack.deployments
    (folder / "targets").mkdir()
    configuration_text = format_configuration(stack.deployments).replace('window = "1m"', f'window = "{seconds:g}s"')
    (folder / "servescope.toml").write_text(configuration_text)
    listed = format_file_sd(deployment.targets(), "127.0.0.1:9")
    (folder / "targets" / f"{deployment.plan.identity.deployment_id}.json").write_text(listed)
    pages = {target.path: target.instruments for target in deployment.targets()}

    async def fetch(scraped: ScrapedTarget, _: Limits, /) -> bytes:
        return render(pages[urlsplit(scraped.url).path])

    configuration = read_configuration(folder / "servescope.toml")
    store = Store(folder / "servescope.db")
    history = Store(folder / "servescope.db", read_only=True)
    start = 1_800_000_000.0 - stack.clock.now
    collector = Collector(configuration, store, history, fetch, clock=lambda: start + stack.clock.now)
    try:
        await collector.discovering.discover()
        before = shown(deployment)
        end = stack.clock.now + seconds
        while True:
            for watched in collector.fleet.watched:
                await collector.scraping.scrape(watched)
            if stack.clock.now >= end:
                break
            stack.clock.run_until(stack.clock.now + 5.0)
        (derivation,) = collector.evaluating.evaluate(collector.clock.now_ms).deployments.values()
        return before, derivation.figures, shown(deployment)
    finally:
        await asyncio.to_thread(collector.close)
