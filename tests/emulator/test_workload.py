"""The traffic."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from servescope.emulator.clock import VirtualClock
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.emulator.workload.traffic import Traffic
from servescope.errors import UsageError
from tests.emulator.conftest import Client, make_traffic

QUIET = Mix(abort_share=0.0, oversized_share=0.0)


def build(
    mix: Mix, clock: VirtualClock, clients: list[Client], *, seed: int = 1, split: tuple[float, ...] = (1.0,)
) -> Traffic:
    """Generated traffic of a mix."""
    return make_traffic(GeneratedTraffic(mix), clock, clients, seed=seed, split=split)


def generate(mix: Mix, seconds: float, *, seed: int = 1, split: tuple[float, ...] = (1.0,)) -> list[Client]:
    """What each of several deployments is sent."""
    clock = VirtualClock()
    clients = [Client(clock) for _ in split]
    build(mix, clock, clients, seed=seed, split=split).start()
    clock.run_until(seconds)
    return clients


def test_one_seed_gives_one_traffic() -> None:
    """The same seed gives the same requests, another seed others."""
    first, again, other = (generate(Mix(), 120.0, seed=seed)[0].sent for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_rate_is_what_was_asked_for() -> None:
    """Over whole days, bursts included, requests come at the rate of the mix."""
    seconds = 4 * QUIET.day_seconds
    (client,) = generate(replace(QUIET, requests_per_second=4.0), seconds)
    assert len(client.sent) / seconds == pytest.approx(4.0, rel=0.1)


def test_traffic_varies_over_the_day() -> None:
    """More arrives in the first half of a day than in the second."""
    (client,) = generate(replace(QUIET, day_amplitude=0.8, burst_factor=1.0, turns=1.0), QUIET.day_seconds)
    half = [generated.number for generated in client.sent]
    assert half == sorted(half)
    (morning,) = generate(replace(QUIET, day_amplitude=0.8, burst_factor=1.0, turns=1.0), QUIET.day_seconds / 2)
    assert len(morning.sent) > 1.5 * (len(client.sent) - len(morning.sent))


def test_traffic_is_split_by_share() -> None:
    """Each deployment gets its share of the conversations; one with share 0 gets nothing."""
    three_quarters, quarter, nothing = generate(QUIET, 1500.0, split=(0.75, 0.25, 0.0))
    total = len(three_quarters.sent) + len(quarter.sent)
    assert len(quarter.sent) / total == pytest.approx(0.25, abs=0.05)
    assert nothing.sent == []


def test_sizes_are_those_of_the_mix() -> None:
    """Prompts stay within the client's limit, outputs within their range."""
    (client,) = generate(QUIET, 600.0)
    assert all(400 <= request.input_tokens <= 6000 for request in client.sent)
    assert all(50 <= request.output_tokens <= 400 for request in client.sent)
    assert min(request.output_tokens for request in client.sent) < 80
    assert max(request.input_tokens for request in client.sent) > 5000


def test_turns_extend_what_was_said_before() -> None:
    """A turn's prompt begins with the blocks of the turn before, its answer included, and is longer."""
    (client,) = generate(QUIET, 300.0)
    conversations: dict[int, list[WorkloadRequest]] = {}
    for request in client.sent:
        conversations.setdefault(request.block_ids[-1] >> 20, []).append(request)
    followed = [turns for turns in conversations.values() if len(turns) > 1]
    assert len(followed) > 50
    for turns in followed:
        for before, after in pairwise(turns):
            assert after.block_ids[: len(before.block_ids)] == before.block_ids
            assert after.input_tokens > before.input_tokens + before.output_tokens


def test_conversations_share_system_prompts_and_nothing_else() -> None:
    """Two conversations have a block in common only at their front, where the application's prompt is."""
    (client,) = generate(QUIET, 300.0)
    requests = {request.block_ids[-1] >> 20: request for request in client.sent}
    fronts = {request.block_ids[0] for request in requests.values()}
    assert len(fronts) <= QUIET.applications < len(requests)
    blocks = [block for request in requests.values() for block in request.block_ids]
    shared = {block for block in blocks if block >> 20 < QUIET.applications}
    own = [block for block in blocks if block not in shared]
    assert len(own) == len(set(own))


def test_failed_request_starts_the_conversation_afresh() -> None:
    """After an error the next turn shares nothing with the last but the system prompt."""
    clock = VirtualClock()
    client = Client(clock, ("error",))
    build(QUIET, clock, [client]).start()
    clock.run_until(120.0)
    streams = [request.block_ids[-1] >> 20 for request in client.sent]
    assert len(streams) == len(set(streams))


def test_some_clients_hang_up_and_some_ask_too_much() -> None:
    """Impatient clients and oversized prompts come in the shares of the mix."""
    (client,) = generate(Mix(abort_share=0.2, oversized_share=0.1), 900.0)
    impatient = [request for request in client.sent if request.patience_seconds is not None]
    oversized = [request for request in client.sent if request.input_tokens == 50_000]
    assert len(impatient) / len(client.sent) == pytest.approx(0.2, abs=0.02)
    assert len(oversized) / len(client.sent) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requests_per_second", 0.0),
        ("requests_per_second", float("nan")),
        ("applications", 0),
        ("turns", 0.5),
        ("day_amplitude", 1.0),
        ("burst_factor", 0.5),
        ("abort_share", 1.5),
        ("oversized_share", -0.1),
        ("think_seconds", 0.0),
    ],
)
def test_impossible_mixes_are_refused(name: str, value: float) -> None:
    """A mix that cannot be is refused, naming the parameter and its value."""
    with pytest.raises(UsageError, match=f"{name} is {value!r}, expected"):
        Mix(**{name: value})  # type: ignore[arg-type] # each is a number


def test_share_can_be_changed_while_it_runs() -> None:
    """New conversations follow the new shares, the others stay where they began."""
    clock = VirtualClock()
    clients = [Client(clock), Client(clock)]
    # Without a limit no conversation starts afresh, so that its last block identifies it.
    traffic = build(replace(QUIET, prompt_limit=10**6), clock, clients, split=(1.0, 0.0))
    traffic.start()
    clock.run_until(300.0)
    assert clients[1].sent == []
    begun = {request.block_ids[-1] >> 20 for request in clients[0].sent}
    traffic.split.set_share("1", 1.0)
    assert traffic.split.shares == {"0": 0.0, "1": 1.0}
    before = len(clients[0].sent)
    clock.run_until(600.0)
    later = {request.block_ids[-1] >> 20 for request in clients[0].sent[before:]}
    assert set() < later <= begun
    assert len(clients[1].sent) > 2 * len(clients[0].sent[before:])


def test_conversations_follow_a_new_share_within_its_time() -> None:
    """Those under way move one by one, and only as many as have to; after that time the shares are seen."""
    clock = VirtualClock()
    clients = [Client(clock), Client(clock)]
    traffic = build(replace(QUIET, turns=60.0, prompt_limit=10**6), clock, clients, split=(0.75, 0.25))
    traffic.start()
    clock.run_until(400.0)
    before = {request.block_ids[-1] >> 20 for request in clients[1].sent}
    traffic.split.set_share("1", 0.5, 100.0)
    seen = []
    for end in (450.0, 500.0, 700.0):
        counts = [len(client.sent) for client in clients]
        clock.run_until(end)
        grown = [len(client.sent) - count for client, count in zip(clients, counts, strict=True)]
        seen.append(grown[1] / sum(grown))
    stayed = {request.block_ids[-1] >> 20 for request in clients[0].sent[counts[0] :]}

    assert 0.25 < seen[0] < 0.47 < seen[2]
    assert seen[2] == pytest.approx(0.5, abs=0.06)
    assert not stayed & before


def test_one_deployment_can_have_a_mix_of_its_own() -> None:
    """Its prompts are longer, and it gets as many requests as its share says, however long its conversations are."""
    clock = VirtualClock()
    clients = [Client(clock), Client(clock)]
    own = replace(QUIET, message_tokens=2100.0, turns=1.0)
    mixed = GeneratedTraffic(replace(QUIET, prompt_limit=10**6))
    mixes = {"1": replace(own, prompt_limit=10**6)}
    traffic = make_traffic(mixed, clock, clients, seed=3, split=(0.5, 0.5), mixes=mixes)
    traffic.start()
    clock.run_until(1500.0)
    requests = clients[1].sent
    longer = sum(request.input_tokens - 1000 for request in requests) / len(requests)

    assert len(clients[1].sent) == pytest.approx(len(clients[0].sent), rel=0.15)
    assert longer == pytest.approx(2100, rel=0.2)


def test_the_other_deployments_share_what_is_left() -> None:
    """Giving one deployment a share keeps the proportions of the others; what had nothing gets equal parts."""
    clock = VirtualClock()
    traffic = build(QUIET, clock, [Client(clock) for _ in range(3)], split=(0.5, 0.3, 0.2))
    traffic.split.set_share("0", 0.0)
    assert traffic.split.shares == pytest.approx({"0": 0.0, "1": 0.6, "2": 0.4})
    traffic.split.set_share("2", 1.0)
    traffic.split.set_share("2", 0.5)
    assert traffic.split.shares == pytest.approx({"0": 0.25, "1": 0.25, "2": 0.5})


def test_impossible_shares_are_refused() -> None:
    """Unknown deployments and shares outside 0 to 1 are refused, and change nothing."""
    clock = VirtualClock()
    traffic = build(QUIET, clock, [Client(clock), Client(clock)], split=(0.5, 0.5))
    with pytest.raises(UsageError, match="unknown deployment 'chat-v3', known: 0, 1"):
        traffic.split.set_share("chat-v3", 0.5)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match=r"expected a share in \[0, 1\]"):
            traffic.split.set_share("0", share)
    assert traffic.split.shares == {"0": 0.5, "1": 0.5}
    with pytest.raises(UsageError, match="there is no other deployment"):
        build(QUIET, clock, [Client(clock)]).split.set_share("0", 0.5)
    with pytest.raises(UsageError, match="expected one above 0"):
        generate(QUIET, 1.0, split=(0.0, 0.0))
