"""The engine: what it does to requests, seen through its own instruments."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.emulator.engine.speculation import Speculation
from servescope.errors import UsageError
from tests.emulator.support.engines import PLAIN, Bench
from tests.support.drawing import examples


def test_request_takes_its_prefill_and_a_step_per_token() -> None:
    """Alone, a request gets its first token after its prefill and the others one step apart each."""
    bench = Bench()
    bench.submit(100, 11)
    bench.clock.run_until(60.0)
    assert bench.outcomes == {1: "ok"}
    assert bench.read("time_to_first_token_seconds_sum") == pytest.approx(0.110)
    assert bench.read("decode_seconds_total") == pytest.approx(10 * 0.010)
    assert bench.read("request_duration_seconds_sum") == pytest.approx(0.210)
    assert (bench.read("input_tokens_total"), bench.read("output_tokens_total")) == (100, 11)


def test_sequences_are_decoded_together() -> None:
    """A batch of five takes as many steps as one sequence alone."""
    alone, batch = Bench(), Bench()
    alone.submit(16, 101)
    for _ in range(5):
        batch.submit(16, 101)
    for bench in (alone, batch):
        bench.clock.run_until(60.0)
    assert batch.read("output_tokens_total") == 505
    assert batch.read("decode_seconds_total") / 5 == pytest.approx(alone.read("decode_seconds_total"), rel=0.1)


def test_long_prompts_are_prefilled_in_chunks() -> None:
    """With chunked prefill, decoding goes on between the chunks of a long prompt; without, it waits for all of it."""
    gaps = []
    for chunked in (True, False):
        bench = Bench(replace(PLAIN, max_num_tokens=2000 if not chunked else 101, chunked_prefill=chunked))
        bench.submit(16, 100)
        bench.clock.run_until(0.1)
        before = bench.read("output_tokens_total")
        bench.submit(1000, 10)
        bench.clock.run_until(0.6)
        gaps.append(bench.read("output_tokens_total") - before)
    assert gaps[0] >= 4
    assert gaps[1] <= 1


def test_prefix_computed_before_is_reused() -> None:
    """The second of two equal prompts finds all full blocks but the last token's, and starts sooner."""
    bench = Bench()
    bench.submit(160, 5, stream=1)
    bench.clock.run_until(10.0)
    bench.submit(160, 5, stream=1)
    bench.clock.run_until(20.0)
    assert bench.reused == {1: 0, 2: 144}
    assert bench.read("time_to_first_token_seconds_sum") == pytest.approx(0.170 + 0.026)


def test_answer_is_reused_by_the_next_turn() -> None:
    """A prompt that repeats a request and its answer finds both in the cache, the token not yet computed aside."""
    bench = Bench()
    bench.submit(160, 65, stream=1)
    bench.clock.run_until(10.0)
    bench.submit(400, 5, stream=1)
    bench.clock.run_until(20.0)
    assert bench.reused[2] == 224


def test_speculation_counts_drafts_and_saves_steps() -> None:
    """Every decode step drafts for every sequence; positions accepted follow the chances, and so does the speed."""
    sure = Bench(replace(PLAIN, speculation=Speculation((1.0, 1.0, 0.0))))
    sure.submit(16, 31)
    sure.clock.run_until(60.0)
    # Ten steps of one token and the two accepted after it.
    assert sure.read("decode_seconds_total") == pytest.approx(10 * 0.010)
    assert sure.read("spec_decode_num_draft_tokens_total") == 30
    assert sure.read("spec_decode_num_accepted_tokens_total") == 20
    assert [sure.read("spec_decode_num_accepted_tokens_per_pos_total", position=str(at)) for at in range(3)] == [
        10,
        10,
        0,
    ]


@pytest.mark.slow
def test_acceptance_falls_along_the_draft() -> None:
    """Each position is accepted by its own chance times those of the positions before it."""
    bench = Bench(replace(PLAIN, max_seq_len=200_000, cache_blocks=20_000, speculation=Speculation((0.8, 0.5))))
    bench.submit(16, 100_000)
    bench.clock.run_until(10_000.0)
    steps = bench.read("spec_decode_num_draft_tokens_total") / 2
    first, second = (
        bench.read("spec_decode_num_accepted_tokens_per_pos_total", position=position) / steps for position in "01"
    )
    assert first == pytest.approx(0.8, abs=0.02)
    assert second == pytest.approx(0.4, abs=0.02)


def test_no_speculation_no_series() -> None:
    """Without speculation its counters are absent."""
    bench = Bench()
    bench.submit(16, 10)
    bench.clock.run_until(10.0)
    assert not [sample for sample in bench.instruments.samples() if sample.name.startswith("spec_decode")]


def test_preempted_requests_still_finish() -> None:
    """When the cache is too small for all, the youngest give way, are computed again, and nothing is lost."""
    bench = Bench(replace(PLAIN, cache_blocks=20))
    for _ in range(4):
        bench.submit(100, 150)
    bench.clock.run_until(600.0)
    assert bench.outcomes == dict.fromkeys(range(1, 5), "ok")
    assert bench.read("preemptions_total") > 0
    assert bench.read("output_tokens_total") == 600
    assert bench.read("time_to_first_token_seconds_count") == 4


def test_preempted_request_comes_before_those_who_wait() -> None:
    """A preempted request is admitted again before one that had not begun."""
    bench = Bench(replace(PLAIN, cache_blocks=20, max_batch_size=2))
    bench.submit(100, 150)
    bench.submit(100, 150)
    bench.submit(200, 5)  # no room for it beside either of the others
    bench.clock.run_until(600.0)
    assert bench.read("preemptions_total") > 0
    assert list(bench.outcomes) == [1, 2, 3]


def test_queue_that_is_full_rejects() -> None:
    """Beyond the batch and the queue a request is rejected at once; the others are served."""
    bench = Bench(replace(PLAIN, max_batch_size=1, max_queue=2))
    for _ in range(4):
        bench.submit(16, 10)
    assert bench.outcomes == {4: "rejected"}
    assert bench.read("queued_requests") == 2
    bench.clock.run_until(10.0)
    assert sorted(bench.outcomes.items()) == [(1, "ok"), (2, "ok"), (3, "ok"), (4, "rejected")]


@pytest.mark.parametrize(("input_tokens", "output_tokens"), [(8000, 400), (0, 10), (10, 0)])
def test_impossible_requests_are_the_clients_error(input_tokens: int, output_tokens: int) -> None:
    """A request longer than the model takes, or empty, is refused at once and costs nothing."""
    bench = Bench()
    bench.submit(input_tokens, output_tokens)
    assert bench.outcomes == {1: "client_error"}
    assert bench.engine.in_flight == 0


def test_hung_up_requests_leave_their_blocks() -> None:
    """A client that hangs up, waiting or running, counts as an abort, and its blocks can be had again."""
    bench = Bench(replace(PLAIN, max_batch_size=1))
    running, waiting = bench.submit(100, 100), bench.submit(100, 100)
    bench.clock.run_until(0.3)
    bench.engine.abort(waiting)
    bench.engine.abort(running)
    bench.engine.abort(running)
    assert bench.outcomes == {1: "client_abort", 2: "client_abort"}
    assert bench.engine.cache.held == 0
    assert bench.read("kv_cache_usage") == 0
    bench.clock.run_until(10.0)
    assert bench.read("requests_total", outcome="client_abort") == 2


def test_failing_requests_count_as_errors() -> None:
    """Requests fail by the share asked for, before or between their tokens."""
    bench = Bench(replace(PLAIN, error_share=1.0, max_queue=100))
    for _ in range(20):
        bench.submit(16, 10)
    bench.clock.run_until(60.0)
    assert set(bench.outcomes.values()) == {"error"}
    assert 0 < bench.read("output_tokens_total") < 200


def test_in_flight_tokens_follow_the_phases() -> None:
    """A queued request weighs its prompt, one in prefill what is not cached of it, a decoding one all it has."""
    bench = Bench(replace(PLAIN, max_batch_size=1))
    bench.submit(160, 5, stream=1)
    bench.clock.run_until(10.0)
    assert bench.engine.in_flight_tokens == 0
    bench.submit(160, 50, stream=1)
    bench.submit(300, 10)
    assert bench.engine.in_flight_tokens == (160 - 144) + 300
    bench.clock.run_until(10.0 + 0.026 + 0.010 + 0.001)
    assert bench.engine.in_flight_tokens == (160 + 2) + 300


def test_gpu_is_busy_while_it_computes() -> None:
    """Of the time since the last look it was busy as long as there were steps; its memory is weights and cache."""
    bench = Bench()
    bench.submit(100, 11)
    bench.clock.run_until(2.0)
    assert bench.read("gpu_usage", gpu="0") == pytest.approx(0.210 / 2.0)
    bench.clock.run_until(4.0)
    assert bench.read("gpu_usage", gpu="0") == 0.0
    assert bench.read("gpu_memory_usage", gpu="0") == 70e9 + 16_000 * 327_680
    assert not [sample for sample in bench.instruments.samples() if sample.name in ("cpu_usage", "memory_usage")]


arrivals = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),  # seconds after the one before
        st.integers(1, 260),  # prompt
        st.integers(1, 60),  # output
        st.integers(0, 3),  # stream
        st.one_of(st.none(), st.floats(0.0, 2.0)),  # patience
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    arrivals=arrivals,
    cache_blocks=st.integers(21, 60),
    batch=st.integers(1, 8),
    budget=st.integers(4, 300),
    chunked=st.booleans(),
    drafts=st.integers(0, 3),
)
def test_conservation(
    arrivals: list[tuple[float, int, int, int, float | None]],
    cache_blocks: int,
    batch: int,
    budget: int,
    chunked: bool,
    drafts: int,
) -> None:
    """Started = outcomes + in flight, blocks within capacity, always; in the end nothing is held, all is booked."""
    speculation = Speculation((0.7,) * drafts) if drafts else None
    bench = Bench(
        replace(
            PLAIN,
            cache_blocks=cache_blocks, max_batch_size=batch, max_num_tokens=budget, chunked_prefill=chunked,
            error_share=0.1, max_queue=5, speculation=speculation,
        )
    )  # fmt: skip
    servings = []
    for wait, input_tokens, output_tokens, stream, patience in arrivals:
        bench.clock.run_until(bench.clock.now + wait)
        serving = bench.submit(input_tokens, output_tokens, stream=stream)
        servings.append(serving)
        if patience is not None:
            bench.clock.schedule(patience, partial(bench.engine.abort, serving))
        assert bench.engine.cache.occupied <= cache_blocks
        started = bench.read("requests_started_total")
        assert started == bench.read("requests_total") + bench.read("concurrent_requests") == len(servings)
        assert bench.read("concurrent_requests") == bench.engine.in_flight
    bench.clock.run_until(bench.clock.now + 3600.0)
    assert len(bench.outcomes) == len(servings) == bench.read("requests_total")
    assert bench.engine.in_flight == bench.engine.in_flight_tokens == bench.engine.cache.held == 0
    assert bench.read("output_tokens_total") == sum(serving.generated for serving in servings)
    for serving in servings:
        if bench.outcomes[serving.request.number] == "ok":
            assert serving.generated == serving.request.output_tokens
    assert bench.read("servescope_instrument_errors_total") == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_batch_size", 0), ("cache_blocks", 0), ("max_queue", -1), ("error_share", 2.0), ("max_num_tokens", 0)],
)
def test_impossible_engines_are_refused(name: str, value: float) -> None:
    """Sizes of nothing and shares beyond 1 are refused by name and value."""
    with pytest.raises(UsageError, match=f"{name} is {value!r}"):
        replace(PLAIN, **{name: value})  # type: ignore[arg-type] # each is a number


@pytest.mark.parametrize("acceptance", [(), (1.1,), (-0.1, 0.5)])
def test_impossible_acceptance_is_refused(acceptance: tuple[float, ...]) -> None:
    """Speculation without a draft, or with chances beyond 0 to 1, is refused."""
    with pytest.raises(UsageError, match="acceptance is"):
        Speculation(acceptance)
