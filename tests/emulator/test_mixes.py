"""Generated mixes: what their prompts share, how they arrive, and what changes them while they run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import TrafficEffects
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.emulator.workload.portraits import portray
from servescope.emulator.workload.presets import PRESETS, find_preset
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.emulator.workload.traffic import Traffic
from servescope.errors import UsageError
from tests.emulator.conftest import Client, prompt_blocks
from tests.support.drawing import examples

BLOCK_TOKENS = 32


def start(mix: Mix, *, seed: int = 1, outcomes: tuple[str, ...] = ("ok",)) -> tuple[Traffic, VirtualClock, Client]:
    """Traffic of a mix that has started, for one deployment."""
    clock = VirtualClock()
    client = Client(clock, outcomes)
    traffic = Traffic(
        GeneratedTraffic(mix), clock=clock, seed=seed, block_tokens=BLOCK_TOKENS,
        sends={"all": client.send}, split={"all": 1.0},
    )  # fmt: skip
    traffic.start()
    return traffic, clock, client


mixes = st.builds(
    lambda system, documents, per_prompt, sizes: replace(
        Mix(requests_per_second=3.0, applications=3, output_range=(1, 300), abort_share=0.0, oversized_share=0.0),
        system_tokens=(min(system), max(system)),
        documents=documents,
        documents_per_prompt=min(per_prompt, max(documents, 1)),
        document_tokens=(1, 200),
        **sizes,
    ),
    system=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    documents=st.integers(0, 4),
    per_prompt=st.integers(1, 3),
    sizes=st.fixed_dictionaries(
        {
            "turns": st.floats(1.0, 8.0),
            "message_tokens": st.floats(1.0, 400.0),
            "output_tokens": st.floats(1.0, 300.0),
            "keeps_output": st.booleans(),
            "rewritten_tokens": st.integers(0, 500),
            "prompt_limit": st.integers(1000, 3000),
            "think_seconds": st.floats(0.1, 10.0),
            "arrivals": st.sampled_from(("poisson", "pareto")),
        }
    ),
)


@settings(max_examples=examples(15))
@given(mix=mixes, outcomes=st.lists(st.sampled_from(("ok", "error", "client_abort")), min_size=1, max_size=4))
def test_a_block_stands_for_all_before_it(mix: Mix, outcomes: list[str]) -> None:
    """In any mix a request names each full block once, and a block always follows the same blocks."""
    _, clock, client = start(mix, outcomes=tuple(outcomes))
    clock.run_until(200.0)
    before: dict[int, int | None] = {}
    for _, request in client.requests:
        assert 1 <= request.input_tokens <= mix.prompt_limit
        assert 1 <= request.output_tokens <= 300
        assert len(request.block_ids) == (request.input_tokens + request.output_tokens) // BLOCK_TOKENS
        assert len(set(request.block_ids)) == len(request.block_ids)
        for earlier, block in pairwise((None, *request.block_ids)):
            assert block is not None
            assert before.setdefault(block, earlier) == earlier
    assert [request.number for _, request in client.requests] == [*range(1, len(client.requests) + 1)]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_fit_the_demo_s_engines(name: str) -> None:
    """Every request of a preset, odd ones aside, fits an engine of 8 192 tokens with room for a draft."""
    _, clock, client = start(replace(PRESETS[name], oversized_share=0.0))
    clock.run_until(300.0)
    assert len(client.requests) > 100
    assert max(request.input_tokens + request.output_tokens for _, request in client.requests) <= 8192 - 4


def test_unknown_presets_are_refused() -> None:
    """An unknown preset is refused, and all there are are named."""
    with pytest.raises(UsageError, match="unknown preset 'chatty', known: agents, chat, chat-bursty, chat-diurnal"):
        find_preset("chatty")


@pytest.mark.slow
def test_documents_are_shared_and_questions_are_not() -> None:
    """Retrieval: prompts share system prompt and documents, in that order; what follows is each one's own."""
    mix = replace(PRESETS["retrieval"], turns=1.0, abort_share=0.0, oversized_share=0.0)
    _, clock, client = start(mix)
    clock.run_until(600.0)
    users = Counter(block for _, request in client.requests for block in prompt_blocks(request, BLOCK_TOKENS))
    shared = [sum(users[block] > 1 for block in prompt_blocks(request, BLOCK_TOKENS)) for _, request in client.requests]
    for (_, request), count in zip(client.requests, shared, strict=True):
        # What is shared is at the front, without a gap.
        assert all(users[block] > 1 for block in prompt_blocks(request, BLOCK_TOKENS)[:count])
        assert count * BLOCK_TOKENS <= mix.shared_tokens
    assert sum(shared) * BLOCK_TOKENS > 0.6 * sum(request.input_tokens for _, request in client.requests)


def test_agents_come_back_fast_with_all_they_said() -> None:
    """Agents: the next turn follows within seconds, and begins with the prompt and the answer before it."""
    mix = replace(PRESETS["agents"], abort_share=0.0, oversized_share=0.0, requests_per_second=1.0)
    _, clock, client = start(mix)
    clock.run_until(600.0)
    last: dict[int, tuple[float, WorkloadRequest]] = {}
    gaps = []
    for moment, request in client.requests:
        own = request.block_ids[-1] >> 20
        if own in last:
            earlier, previous = last[own]
            gaps.append(moment - earlier)
            assert request.block_ids[: len(previous.block_ids)] == previous.block_ids
        last[own] = (moment, request)
    assert len(gaps) > 300
    # Three seconds for the answer, and the time the tool takes.
    assert sum(gaps) / len(gaps) == pytest.approx(3.0 + mix.think_seconds, rel=0.1)


@pytest.mark.slow
def test_an_editor_keeps_the_file_and_rewrites_its_end() -> None:
    """Code completion: the next prompt begins as the one before up to what was rewritten, and never has the answer."""
    mix = replace(PRESETS["code-completion"], abort_share=0.0, oversized_share=0.0, rewritten_tokens=200)
    _, clock, client = start(mix)
    clock.run_until(300.0)
    answers = [
        block
        for _, request in client.requests
        for block in request.block_ids[request.input_tokens // BLOCK_TOKENS + 1 :]
    ]
    named = Counter(block for _, request in client.requests for block in request.block_ids)
    assert all(named[block] == 1 for block in answers)
    portrait = portray(mix)
    appended = portray(replace(mix, rewritten_tokens=0))
    assert portrait.reused_share < appended.reused_share - 0.02
    assert portrait.reused_share > 0.85


def test_a_completion_that_is_given_up_does_not_lose_the_file() -> None:
    """Where answers are not kept, a request that was given up changes nothing for the next one."""
    mix = replace(
        PRESETS["code-completion"], system_tokens=(64, 64), applications=1, message_tokens=300.0,
        oversized_share=0.0, prompt_limit=100_000, rewritten_tokens=0,
    )  # fmt: skip
    _, clock, client = start(mix, outcomes=("client_abort",))
    clock.run_until(200.0)
    turns = Counter(
        prompt_blocks(request, BLOCK_TOKENS)[2] for _, request in client.requests if request.input_tokens >= 96
    )
    assert turns.most_common(1)[0][1] > 10


def test_a_block_of_two_texts_is_nobody_else_s() -> None:
    """Of a system prompt only the blocks it fills are shared, not the one in which the conversation begins."""
    mix = replace(Mix(), applications=1, system_tokens=(100, 100), turns=1.0, oversized_share=0.0)
    _, clock, client = start(mix)
    clock.run_until(60.0)
    users = Counter(block for _, request in client.requests for block in prompt_blocks(request, BLOCK_TOKENS))
    shared = {block for block, count in users.items() if count > 1}
    assert len(shared) == 100 // BLOCK_TOKENS
    assert {users[block] for block in shared} == {len(client.requests)}


@pytest.mark.slow
def test_unique_prompts_share_nothing() -> None:
    """Unique: no block of a prompt comes twice."""
    assert portray(PRESETS["unique"]).reused_share == 0.0


@pytest.mark.slow
def test_shapes_of_arrivals_differ() -> None:
    """Bursts bring several times the mean, heavy tails long silences; independent arrivals neither."""
    calm = replace(Mix(), turns=1.0, day_amplitude=0.0, burst_factor=1.0, requests_per_second=4.0)
    bursty = replace(calm, burst_factor=10.0, burst_seconds=30.0, calm_seconds=240.0)
    heavy = replace(calm, arrivals="pareto", pareto_shape=1.4)
    assert portray(calm).busiest_ten_seconds < 2.0
    assert portray(bursty).busiest_ten_seconds > 4.0
    longest_silence = {}
    for name, mix in (("calm", calm), ("heavy", heavy)):
        _, clock, client = start(mix)
        clock.run_until(1800.0)
        longest_silence[name] = max(later - earlier for (earlier, _), (later, _) in pairwise(client.requests))
    assert longest_silence["heavy"] > 4 * longest_silence["calm"]


@pytest.mark.proof
def test_a_diurnal_day_has_a_night() -> None:
    """Over a day of 24 hours the fullest hours bring several times what the emptiest bring."""
    mix = replace(PRESETS["chat-diurnal"], requests_per_second=0.5, turns=1.0)
    _, clock, client = start(mix)
    clock.run_until(86_400.0)
    by_quarter = Counter(int(moment // 21_600) for moment, _ in client.requests)
    assert by_quarter[0] > 2 * by_quarter[2]
    assert len(client.requests) / 86_400 == pytest.approx(0.5, rel=0.05)


def test_effects_multiply_the_arrivals() -> None:
    """A factor shows at once, in both directions, and goes as it came."""
    mix = replace(Mix(), turns=1.0, day_amplitude=0.0, burst_factor=1.0, requests_per_second=4.0)
    traffic, clock, client = start(mix)
    for begin, factor in ((0.0, 1.0), (300.0, 3.0), (600.0, 0.0), (900.0, 0.25), (1200.0, 1.0)):
        traffic.apply_effects(TrafficEffects(rate_factor=factor))
        clock.run_until(begin + 299.999)
        assert len(client.since(begin)) / 300 == pytest.approx(4 * factor, rel=0.15)
        clock.run_until(begin + 300.0)


@pytest.mark.slow
def test_effects_make_clients_impatient() -> None:
    """A share of clients that hang up replaces that of the mix, for requests from now on."""
    traffic, clock, client = start(replace(Mix(), abort_share=0.0))
    clock.run_until(120.0)
    traffic.apply_effects(TrafficEffects(abort_share=0.5))
    clock.run_until(600.0)
    assert all(request.patience_seconds is None for moment, request in client.requests if moment < 120.0)
    impatient = [request.patience_seconds is not None for request in client.since(120.0)]
    assert sum(impatient) / len(impatient) == pytest.approx(0.5, abs=0.05)


def test_a_preset_replaces_the_mix_and_gives_it_back() -> None:
    """All prompts from now on are of the preset, at the same rate; afterwards the applications are those of before."""
    mix = replace(Mix(), day_amplitude=0.0, burst_factor=1.0, requests_per_second=4.0)
    traffic, clock, client = start(mix)
    clock.run_until(400.0)
    systems = {request.block_ids[0] for request in client.since(0.0) if request.block_ids}
    traffic.apply_effects(TrafficEffects(preset="unique"))
    clock.run_until(1000.0)
    unique = [request for request in client.since(400.0) if request.block_ids]
    fronts = Counter(request.block_ids[0] for request in unique)
    assert max(fronts.values()) == 1
    # The preset has bursts, so that five minutes of it are not the mean.
    assert len(client.since(700.0)) / 300 == pytest.approx(4.0, rel=0.3)
    traffic.apply_effects(TrafficEffects())
    clock.run_until(1400.0)
    assert {request.block_ids[0] for request in client.since(1000.0) if request.block_ids} <= systems


@pytest.mark.parametrize(
    ("effects", "complaint"),
    [
        (TrafficEffects(rate_factor=-1.0), r"rate_factor is -1\.0, expected 0 or more"),
        (TrafficEffects(rate_factor=float("nan")), "rate_factor is nan"),
        (TrafficEffects(abort_share=1.5), r"abort_share is 1\.5, expected a share in \[0, 1\]"),
        (TrafficEffects(preset="nope"), "unknown preset 'nope', known: agents"),
    ],
)
def test_impossible_effects_are_refused(effects: TrafficEffects, complaint: str) -> None:
    """Effects that cannot be are refused, and the traffic goes on as it was."""
    traffic, clock, client = start(Mix())
    with pytest.raises(UsageError, match=complaint):
        traffic.apply_effects(effects)
    clock.run_until(60.0)
    assert len(client.requests) > 100
