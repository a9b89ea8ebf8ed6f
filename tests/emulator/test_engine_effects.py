"""What an engine does when something is wrong with it, each effect with the figure that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.emulator.effects import EngineEffects
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.engine.speculation import Speculation, speculate
from tests.emulator.support.engines import COST, PLAIN, Bench

SPECULATIVE = replace(PLAIN, speculation=Speculation((0.9, 0.8, 0.7)), max_seq_len=100_000, cache_blocks=10_000)


def decode(effects: EngineEffects, parameters: EngineParameters = PLAIN, tokens: int = 100) -> Bench:
    """One request of `tokens` served from beginning to end under the effects."""
    bench = Bench(parameters)
    bench.engine.apply_effects(effects)
    bench.submit(100, tokens)
    bench.clock.run_until(10_000.0)
    return bench


def test_parts_of_a_step_are_stretched_apart() -> None:
    """A prefill factor lengthens the time to first token and nothing else, a decode factor the tokens after it."""
    plain, prefill, slow = (
        decode(effects)
        for effects in (EngineEffects(), EngineEffects(prefill_factor=3.0), EngineEffects(decode_factor=1.5))
    )
    ttft, decoding = "time_to_first_token_seconds_sum", "decode_seconds_total"
    assert prefill.read(ttft) == pytest.approx(3 * plain.read(ttft))
    assert prefill.read(decoding) == pytest.approx(plain.read(decoding))
    assert slow.read(ttft) == pytest.approx(plain.read(ttft))
    assert slow.read(decoding) == pytest.approx(1.5 * plain.read(decoding))


def test_effects_take_hold_in_the_middle_of_a_leap() -> None:
    """A factor set while a long answer is on its way slows the rest of it, from the step after the one in progress."""
    bench = Bench(replace(PLAIN, block_tokens=4096, cache_blocks=8))
    bench.submit(100, 101)
    bench.clock.run_until(0.110 + 50 * 0.010 + 0.001)
    bench.engine.apply_effects(EngineEffects(decode_factor=4.0))
    bench.clock.run_until(60.0)
    assert bench.read("decode_seconds_total") == pytest.approx(51 * 0.010 + 49 * 0.040)


def test_smaller_batch_serves_fewer_at_once() -> None:
    """A third of the batch takes three times as long for a batch of requests; at least one is always served."""
    seconds = []
    for factor in (1.0, 0.34, 0.01):
        bench = Bench(replace(PLAIN, max_batch_size=3, max_queue=10))
        bench.engine.apply_effects(EngineEffects(batch_factor=factor))
        for _ in range(3):
            bench.submit(16, 101)
        bench.clock.run_until(60.0)
        assert set(bench.outcomes.values()) == {"ok"}
        seconds.append(bench.read("request_duration_seconds_sum"))
    assert seconds[1] == seconds[2] > 1.9 * seconds[0]


def test_requests_that_hang_are_in_flight_until_their_clients_leave() -> None:
    """Half of them are served as ever, the others are in no queue; when the fault is over, their clients hang up."""
    bench = Bench(replace(PLAIN, max_queue=100))
    bench.engine.apply_effects(EngineEffects(hang_share=0.5))
    for _ in range(40):
        bench.submit(16, 2)
    bench.clock.run_until(60.0)
    hanging = bench.engine.in_flight
    assert 10 <= hanging <= 30
    assert (set(bench.outcomes.values()), len(bench.outcomes)) == ({"ok"}, 40 - hanging)
    assert bench.engine.queued == 0
    bench.engine.apply_effects(EngineEffects())
    assert bench.engine.in_flight == 0
    assert list(bench.outcomes.values()).count("client_abort") == hanging


@pytest.mark.slow
def test_misaligned_draft_is_accepted_less() -> None:
    """Factors lower the share accepted, of all positions or of late ones only, and the answer takes more steps."""
    plain, all_, late = (
        decode(EngineEffects(acceptance_factors=factors), SPECULATIVE, tokens=20_000)
        for factors in ((), (0.5,), (1.0, 0.2))
    )

    def rate(bench: Bench, position: str) -> float:
        drafted = bench.read("spec_decode_num_draft_tokens_total") / 3
        return bench.read("spec_decode_num_accepted_tokens_per_pos_total", position=position) / drafted

    assert rate(plain, "0") == pytest.approx(0.90, abs=0.02)
    assert rate(all_, "0") == pytest.approx(0.45, abs=0.02)
    assert rate(all_, "1") == pytest.approx(0.45 * 0.4, abs=0.02)
    assert rate(late, "0") == pytest.approx(0.90, abs=0.02)
    assert rate(late, "1") == pytest.approx(0.90 * 0.16, abs=0.02)
    assert all_.engine.steps > late.engine.steps > plain.engine.steps


@pytest.mark.slow
def test_alignment_drifts() -> None:
    """With a drift the share accepted falls with time; without one it stays."""
    rates = []
    for drift in (0.0, 0.9):
        speculation = Speculation((0.8,), drift_per_hour=drift)
        bench = Bench(replace(SPECULATIVE, speculation=speculation, max_seq_len=2_000_000, cache_blocks=150_000))
        bench.submit(16, 1_900_000)
        for _ in range(2):
            before = [bench.read(f"spec_decode_num_{name}_tokens_total") for name in ("accepted", "draft")]
            bench.clock.run_until(bench.clock.now + 600.0)
            after = [bench.read(f"spec_decode_num_{name}_tokens_total") for name in ("accepted", "draft")]
            rates.append((after[0] - before[0]) / (after[1] - before[1]))
    # The mean of 0.8 x 0.1 to the power of the hours, each minute as at its beginning, over ten minutes and ten more.
    assert rates == pytest.approx([0.8, 0.8, 0.677, 0.461], abs=0.015)


def test_more_requests_fail() -> None:
    """The share of failures comes on top of the engine's own."""
    failed = []
    for share in (0.0, 0.4):
        bench = Bench(replace(PLAIN, error_share=0.1, max_queue=10_000, max_batch_size=256))
        bench.engine.apply_effects(EngineEffects(error_share=share))
        for _ in range(2000):
            bench.submit(16, 4)
        bench.clock.run_until(600.0)
        failed.append(bench.read("requests_total", outcome="error") / 2000)
    assert failed == pytest.approx([0.1, 1 - 0.9 * 0.6], abs=0.03)


def test_churn_loses_what_is_idle() -> None:
    """Each second a share of the idle blocks is gone and said to be; what a sequence holds stays."""
    bench = Bench(replace(PLAIN, cache_blocks=1000))
    bench.submit(1600, 5, stream=1)
    bench.clock.run_until(10.0)
    idle = len(bench.engine.cache.idle_blocks())
    assert idle == 100
    bench.submit(320, 2000, stream=2)
    bench.engine.apply_effects(EngineEffects(churn_share=0.5))
    bench.clock.run_until(13.5)
    assert len(bench.engine.cache.idle_blocks()) == 13  # half three times, to whole blocks
    assert bench.engine.cache.held >= 20
    follower: set[int] = set()
    for changes in bench.changes:
        follower = (follower - set(changes.removed)) | set(changes.stored)
    assert follower == bench.engine.cache.cached_blocks()
    bench.engine.apply_effects(EngineEffects())
    bench.clock.run_until(20.0)
    assert len(bench.engine.cache.idle_blocks()) == 13


def test_drafting_and_verifying_cost_time() -> None:
    """A draft that is never right costs what drafting and verifying take, per step; one that is right saves more."""
    cost = replace(COST, per_draft_token=0.0005)
    wrong, right, none = (
        decode(EngineEffects(), replace(PLAIN, cost=cost, speculation=speculation), tokens=101)
        for speculation in (Speculation((0.0, 0.0), 0.001), Speculation((1.0, 1.0), 0.001), None)
    )
    seconds = "decode_seconds_total"
    assert none.read(seconds) == pytest.approx(100 * 0.010)
    assert wrong.read(seconds) == pytest.approx(100 * (0.010 + 2 * 0.001 + 2 * 0.0005))
    # Thirty-three steps of three tokens and one of the last.
    assert right.read(seconds) == pytest.approx(34 * 0.013)
    assert speculate("Eagle").draft_seconds > 0


def test_attention_makes_long_prompts_dearer_than_their_length() -> None:
    """With a cost per pair a prompt twice as long takes more than twice as long, chunked or not."""
    cost = replace(COST, weights=0.0, per_prefill_pair=1e-6)
    seconds = []
    for tokens, budget in ((1000, 8192), (2000, 8192), (2000, 300)):
        bench = Bench(replace(PLAIN, cost=cost, max_num_tokens=budget))
        bench.submit(tokens, 1)
        bench.clock.run_until(60.0)
        seconds.append(bench.read("time_to_first_token_seconds_sum"))
    assert seconds[0] == pytest.approx(1000 * 0.001 + 1e-6 * 1000 * 1001 / 2)
    assert seconds[1:] == pytest.approx([2000 * 0.001 + 1e-6 * 2000 * 2001 / 2] * 2)


def test_those_of_higher_priority_go_first() -> None:
    """In the queue a request passes those of lower priority, not those of its own, and not one that had begun."""
    bench = Bench(replace(PLAIN, max_batch_size=1, max_queue=10))
    for priority in (0, 0, 5, 5, 1):
        bench.submit(16, 10, priority=priority)
    bench.clock.run_until(60.0)
    assert list(bench.outcomes) == [1, 3, 4, 5, 2]


def test_process_that_dies_ends_its_requests() -> None:
    """Running or waiting, its requests end as errors, and so do those that still come; nothing is done any more."""
    bench = Bench(replace(PLAIN, max_batch_size=1))
    for _ in range(3):
        bench.submit(100, 100)
    bench.clock.run_until(0.5)
    bench.engine.fail()
    bench.submit(100, 100)
    assert set(bench.outcomes.values()) == {"error"}
    assert len(bench.outcomes) == 4
    steps = bench.engine.steps
    bench.clock.run_until(10.0)
    assert bench.engine.steps == steps
    assert bench.engine.in_flight == bench.engine.cache.held == 0


def test_client_that_hangs_up_within_its_token() -> None:
    """A client may hang up in the very moment it gets a token; the request ends once, and the others go on."""
    bench = Bench()
    serving = bench.submit(100, 50, on_tokens=lambda tokens: bench.engine.abort(serving))
    bench.submit(100, 50)
    bench.clock.run_until(60.0)
    assert bench.outcomes == {1: "client_abort", 2: "ok"}
    assert bench.engine.cache.held == 0
    assert bench.read("output_tokens_total") == 51
