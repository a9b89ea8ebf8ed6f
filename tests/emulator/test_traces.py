"""Recorded traces: what is read from them, what is refused, and how their requests arrive."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import TrafficEffects
from servescope.emulator.workload.plans import ReplayedTraffic
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.emulator.workload.traces import read_trace, survey_trace
from servescope.emulator.workload.traffic import Traffic
from servescope.errors import TraceError, UsageError
from tests.emulator.conftest import Client, make_traffic, prompt_blocks
from tests.support.drawing import examples

TRACES = Path(__file__).parent / "traces"
MOONCAKE = TRACES / "mooncake.jsonl"
AZURE = TRACES / "azure.csv"

A_REQUEST = '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}'
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
# With a fixed time, so that the test has the same name in every process.
PACKED = gzip.compress(A_REQUEST.encode(), mtime=0)
AN_AZURE_REQUEST = "2023-11-16 18:17:03.9799600,4808,10"


def replay(
    plan: ReplayedTraffic, *, seed: int = 1, block_tokens: int = 512, split: tuple[float, ...] = (1.0,)
) -> tuple[Traffic, VirtualClock, list[Client]]:
    """A replay that has started."""
    clock = VirtualClock()
    clients = [Client(clock, seconds=1.0) for _ in split]
    traffic = make_traffic(plan, clock, clients, seed=seed, block_tokens=block_tokens, split=split)
    traffic.start()
    return traffic, clock, clients


def replay_all(plan: ReplayedTraffic, *, seed: int = 1, block_tokens: int = 512) -> list[tuple[float, WorkloadRequest]]:
    """When each request of a whole replay came."""
    traffic, clock, (client,) = replay(plan, seed=seed, block_tokens=block_tokens)
    while not traffic.ended:
        clock.run_until(clock.now + 10.0)
    return client.requests


def write(tmp_path: Path, text: str | bytes) -> Path:
    """A file of that content."""
    path = tmp_path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_mooncake_is_read() -> None:
    """Each object is a request: milliseconds, sizes, and an id for each 512 tokens of the prompt."""
    requests = list(read_trace(MOONCAKE))
    assert requests[0] == (0.0, 1300, 40, [0, 1, 2])
    assert requests[-1].seconds == 9.0
    survey = survey_trace(MOONCAKE)
    assert (survey.format, survey.requests, survey.moments, survey.seconds) == ("mooncake", 12, 4, 9.0)
    assert survey.quantum_seconds == 3.0


def test_azure_is_read() -> None:
    """Each line is a request: a time with seven digits of the second, and sizes; it names no blocks."""
    requests = list(read_trace(AZURE))
    assert [request[1:] for request in requests[:2]] == [(4808, 10, None), (3180, 8, None)]
    assert requests[1].seconds - requests[0].seconds == pytest.approx(0.0520003, abs=1e-7)
    survey = survey_trace(AZURE)
    assert (survey.format, survey.requests, survey.quantum_seconds) == ("azure", 8, 0.0)


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_mean_nothing(tmp_path: Path, end: str, mark: str) -> None:
    """CRLF, a byte-order mark, empty lines at the end and a last line without an end are read like any."""
    text = (end or "\n").join([A_REQUEST, A_REQUEST]) + end * 3
    assert len(list(read_trace(write(tmp_path, mark + text)))) == 2
    text = (end or "\n").join([AZURE_HEADER, AN_AZURE_REQUEST]) + end
    assert len(list(read_trace(write(tmp_path, mark + text)))) == 1


def altered(**values: object) -> str:
    """The request as a line, with other values; None leaves a field out."""
    record = {**json.loads(A_REQUEST), **values}
    return json.dumps({name: value for name, value in record.items() if value is not None})


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ("{", r":2: is not JSON \(.*\), expected an object"),
        ("[" * 100_000, r":2: is not JSON \(.*\), expected an object"),
        ("[1]", r":2: '\[1\]' is not an object, expected one with timestamp, input_length, output_length, hash_ids"),
        ("", r":2: is empty, expected a request"),
        (altered(output_length=None), ":2: 'output_length' is missing, expected timestamp, input_length"),
        (altered(timestamp=float("nan")), ":2: timestamp is nan, expected milliseconds from 0"),
        (altered(timestamp=float("inf")), ":2: timestamp is inf, expected"),
        (altered(timestamp=-1), ":2: timestamp is -1, expected"),
        (altered(timestamp="0"), ":2: timestamp is '0', expected"),
        (altered(timestamp=True), ":2: timestamp is True, expected"),
        (altered(input_length=-5), ":2: input_length is -5, expected a whole number of tokens from 1 to 100000000"),
        (altered(input_length=0, hash_ids=[]), ":2: input_length is 0, expected"),
        (altered(input_length=1.5), r":2: input_length is 1\.5, expected"),
        (altered(output_length=float("nan")), ":2: output_length is nan, expected"),
        (altered(output_length=10**30), ":2: output_length is 1000000000000000000000000000000, expected"),
        (altered(hash_ids=[0]), ":2: hash_ids names 1 blocks, expected 2: one for each 512 tokens of input_length 700"),
        (altered(hash_ids=[0, 1, 2]), ":2: hash_ids names 3 blocks, expected 2"),
        (altered(hash_ids="01"), ":2: hash_ids is '01', expected a list"),
        (altered(hash_ids=[0, -1]), ":2: hash_ids has -1, expected whole numbers from 0 to 1099511627775"),
        (altered(hash_ids=[0, 1.0]), r":2: hash_ids has 1\.0, expected"),
        (altered(hash_ids=[7, 7]), ":2: hash_ids names a block twice"),
    ],
)
def test_malformed_mooncake_is_refused(tmp_path: Path, second: str, complaint: str) -> None:
    """A wrong line is refused with its number, what is there and what was expected."""
    path = write(tmp_path, f"{A_REQUEST}\n{second}\n{A_REQUEST}\n")
    for read in (survey_trace, lambda path: list(read_trace(path))):
        with pytest.raises(TraceError, match=complaint) as raised:
            read(path)
        assert raised.value.line == 2


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ("2023-11-16 18:17:03.9799600,4808", ":3: has 2 fields, expected 3: TIMESTAMP,ContextTokens,GeneratedTokens"),
        ("yesterday,1,1", ":3: TIMESTAMP is 'yesterday', expected a time such as"),
        ("2023-11-31 18:17:04,1,1", ":3: TIMESTAMP is '2023-11-31 18:17:04', expected"),
        ("2023-11-16 18:17:04,-4,1", ":3: ContextTokens is '-4', expected a whole number"),
        ("2023-11-16 18:17:04,4,NaN", ":3: GeneratedTokens is 'NaN', expected"),
        ("2023-11-16 18:17:04,4,", ":3: GeneratedTokens is '', expected"),
        ("2023-11-16 18:17:04,1_000,1", ":3: ContextTokens is '1_000', expected"),
        ("2023-11-16 18:17:02,4,1", ":3: arrives 1.97996 s before the line above, expected times in order"),
        ("2023-11-16 18:17:04+02:00,4,1", ":3: arrives 7199.98 s before the line above"),
    ],
)
def test_malformed_azure_is_refused(tmp_path: Path, second: str, complaint: str) -> None:
    """A wrong line is refused with its number, what is there and what was expected."""
    with pytest.raises(TraceError, match=complaint.replace("+", r"\+")):
        survey_trace(write(tmp_path, f"{AZURE_HEADER}\n{AN_AZURE_REQUEST}\n{second}\n"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "the trace is empty, expected at least one request"),
        ("\n\n", "the trace is empty"),
        (AZURE_HEADER, "the trace is empty"),
        ("time,in,out\n", r":1: 'time,in,out' is neither a JSON object \(Mooncake\) nor the header 'TIMESTAMP,"),
        (PACKED, r"is compressed \(gzip\), which is not read here: unpack it first"),
        (A_REQUEST.encode("utf-16"), ":1: is UTF-16, expected UTF-8"),
        (A_REQUEST.encode() + b"\n\xff\n", r":2: is not UTF-8 \(.* at byte 1\)"),
        (A_REQUEST.encode() + b"\n" + b" " * (17 << 20), ":2: is longer than 16 MiB, expected one request per line"),
        (f"{altered(timestamp=2000)}\n{altered(timestamp=1500)}\n",
         r":2: arrives 0\.5 s before the line above, expected times in order"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str | bytes, complaint: str) -> None:
    """Empty, foreign, packed and disordered files are refused, saying what was expected."""
    with pytest.raises(TraceError, match=complaint):
        survey_trace(write(tmp_path, content))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A file that is not there and a directory are refused by name."""
    with pytest.raises(TraceError, match=r"cannot read trace '.*nowhere': No such file"):
        survey_trace(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="is not a file"):
        survey_trace(tmp_path)


def test_block_ids_are_the_traces_and_the_answer_is_private() -> None:
    """A request's blocks are the trace's as far as they are full; those its answer fills are nobody else's."""
    requests = [request for _, request in replay_all(ReplayedTraffic(MOONCAKE))]
    assert [list(request.block_ids[: request.input_tokens // 512]) for request in requests[:3]] == [
        [0, 1],
        [0, 3, 4],
        [0],
    ]
    answers = [block for request in requests for block in request.block_ids[request.input_tokens // 512 :]]
    assert answers
    assert len(set(answers)) == len(answers)
    assert min(answers) > 2**40
    for request in requests:
        assert len(request.block_ids) == (request.input_tokens + request.output_tokens) // 512


def test_blocks_of_a_trace_can_be_cut() -> None:
    """An engine of smaller blocks finds the same prefixes: a block of the trace is several of its own."""
    plan = ReplayedTraffic(MOONCAKE)
    for (_, whole), (_, cut) in zip(replay_all(plan), replay_all(plan, block_tokens=32), strict=True):
        full = whole.input_tokens // 512
        assert [block // 16 for block in cut.block_ids[: full * 16 : 16]] == list(whole.block_ids[:full])
        assert len(set(cut.block_ids)) == len(cut.block_ids) == (cut.input_tokens + cut.output_tokens) // 32
    with pytest.raises(UsageError, match="block size is 48 tokens, expected a divisor of 512"):
        replay(plan, block_tokens=48)


def test_azure_prompts_share_nothing() -> None:
    """A trace without block ids is of prompts that have nothing in common, in any repetition."""
    blocks = [
        block
        for _, request in replay_all(ReplayedTraffic(AZURE, repeat=2), block_tokens=48)
        for block in request.block_ids
    ]
    assert blocks
    assert len(set(blocks)) == len(blocks)


def test_quantised_arrivals_are_spread() -> None:
    """Arrivals that were rounded come within what they were rounded to, in order, from the seed."""
    first, again, other = (replay_all(ReplayedTraffic(MOONCAKE), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert [moment for moment, _ in first] != [moment for moment, _ in other]
    recorded = list(read_trace(MOONCAKE))
    for (moment, request), line in zip(first, recorded, strict=True):
        assert line.seconds <= moment < line.seconds + 3.0
        assert request.input_tokens == line.input_tokens
    assert len({moment for moment, _ in first}) == len(first)
    exact = replay_all(ReplayedTraffic(MOONCAKE, jitter_seconds=0.0))
    assert [moment for moment, _ in exact] == pytest.approx([line.seconds for line in recorded])


def test_exact_arrivals_stay_as_they_are() -> None:
    """What was not rounded is replayed at its time, from the first request on; a speed divides the times."""
    recorded = [line.seconds for line in read_trace(AZURE)]
    times = [moment - recorded[0] for moment in recorded]
    assert [moment for moment, _ in replay_all(ReplayedTraffic(AZURE))] == pytest.approx(times)
    fast = replay_all(ReplayedTraffic(AZURE, speed=4.0))
    assert [moment for moment, _ in fast] == pytest.approx([moment / 4 for moment in times])


def test_repetitions_bring_the_same_prompts() -> None:
    """A repetition follows one mean gap after the last, with the same blocks."""
    once = replay_all(ReplayedTraffic(MOONCAKE, jitter_seconds=0.0))
    thrice = replay_all(ReplayedTraffic(MOONCAKE, repeat=3, jitter_seconds=0.0))
    assert len(thrice) == 3 * len(once)
    for (moment, request), (later, repeated) in zip(once, thrice[2 * len(once) :], strict=True):
        assert later - moment == pytest.approx(2 * 12.0)
        full = request.input_tokens // 512
        assert repeated.block_ids[:full] == request.block_ids[:full]


def test_copies_share_among_themselves_only() -> None:
    """Twice the load is the same requests from other clients: prefixes within a copy, none between copies."""
    doubled = replay_all(ReplayedTraffic(MOONCAKE, scale=2.0))
    once = replay_all(ReplayedTraffic(MOONCAKE))
    assert len(doubled) == 2 * len(once)
    assert [moment for moment, _ in doubled] == sorted(moment for moment, _ in doubled)
    prompts = [prompt_blocks(request, 512) for _, request in doubled]
    own = [prompt for prompt in prompts if prompt and prompt[0] < 2**40]
    others = [prompt for prompt in prompts if prompt and prompt[0] >= 2**40]
    assert sorted(own) == sorted(filter(None, (prompt_blocks(request, 512) for _, request in once)))
    assert sorted(tuple(block % 2**40 for block in prompt) for prompt in others) == sorted(own)
    assert {block for prompt in others for block in prompt}.isdisjoint(block for prompt in own for block in prompt)


@pytest.mark.slow
def test_a_trace_is_thinned_by_chance(tmp_path: Path) -> None:
    """A scale below 1 keeps that share of the requests, at their times; above 1 the fraction is by chance."""
    lines = [altered(timestamp=moment * 1000, hash_ids=[0, moment + 1]) for moment in range(2000)]
    path = write(tmp_path, "\n".join(lines))
    thinned = replay_all(ReplayedTraffic(path, scale=0.25, speed=1000.0))
    assert len(thinned) / 2000 == pytest.approx(0.25, abs=0.03)
    assert {round(moment * 1e6) % 1000 for moment, _ in thinned} == {0}
    assert len(replay_all(ReplayedTraffic(path, scale=2.5, speed=1000.0))) / 2000 == pytest.approx(2.5, abs=0.05)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"speed": 0.0}, r"speed is 0\.0, expected above 0"),
        ({"speed": float("inf")}, "speed is inf"),
        ({"speed": float("nan")}, "speed is nan"),
        ({"scale": -1.0}, r"scale is -1\.0, expected above 0, at most 64"),
        ({"repeat": 0}, "repeat is 0, expected a whole number from 1"),
        ({"jitter_seconds": -1.0}, r"jitter_seconds is -1\.0, expected from 0 to 3600"),
    ],
)
def test_impossible_replays_are_refused(values: dict[str, float], complaint: str) -> None:
    """A replay that cannot be is refused, naming the parameter and its range."""
    with pytest.raises(UsageError, match=complaint):
        ReplayedTraffic(MOONCAKE, **values)  # type: ignore[arg-type] # each is a number


def families(clients: list[Client]) -> list[set[int]]:
    """The second blocks that each client has seen."""
    return [{prompt_blocks(request, 512)[1] for _, request in client.requests} for client in clients]


@pytest.mark.slow
def test_prompts_that_begin_alike_go_to_one_deployment(tmp_path: Path) -> None:
    """New beginnings follow the shares, at any time; what began somewhere stays there, as conversations do."""
    lines = [
        altered(timestamp=turn * 1000, input_length=1024, hash_ids=[0, family])
        for turn in range(4)
        for family in range(1, 1001 if turn < 2 else 2001)
    ]
    traffic, clock, clients = replay(ReplayedTraffic(write(tmp_path, "\n".join(lines))), split=(0.7, 0.3))
    clock.run_until(1.999)
    first, second = families(clients)
    assert first.isdisjoint(second)
    assert len(second) == pytest.approx(300, abs=50)
    traffic.split.set_share("1", 0.8)
    for client in clients:
        client.requests.clear()
    clock.run_until(10.0)
    assert traffic.ended
    later_first, later_second = families(clients)
    assert later_first.isdisjoint(later_second)
    assert first < later_first
    assert second < later_second
    assert len(later_second - second) == pytest.approx(800, abs=50)


def test_effects_change_a_replay() -> None:
    """More load is the trace faster; impatient clients hang up; a preset comes in the trace's place, at its rate."""
    plan = ReplayedTraffic(MOONCAKE, repeat=200)
    traffic, clock, (client,) = replay(plan)
    clock.run_until(300.0)
    calm = len(client.requests)
    traffic.apply_effects(TrafficEffects(rate_factor=2.0, abort_share=1.0))
    clock.run_until(600.0)
    assert len(client.requests) - calm == pytest.approx(2 * calm, abs=6)
    assert all(request.patience_seconds is None for _, request in client.requests[:calm])
    assert all(request.patience_seconds is not None for _, request in client.requests[calm:])
    traffic.apply_effects(TrafficEffects(preset="unique"))
    client.requests.clear()
    clock.run_until(1200.0)
    assert len(client.requests) / 600 == pytest.approx(1.0, rel=0.25)
    assert all(request.block_ids[0] > 2**40 for _, request in client.requests if request.block_ids)
    # Time went on in the trace: 300 s, 300 s twice as fast, and 600 s.
    traffic.apply_effects(TrafficEffects())
    client.requests.clear()
    clock.run_until(1500.0)
    assert len(client.requests) == pytest.approx(300, abs=12)
    assert {request.input_tokens for _, request in client.requests} == {
        line.input_tokens for line in read_trace(MOONCAKE)
    }


def test_a_trace_can_stand_still() -> None:
    """At a rate of 0 nothing comes; afterwards the trace goes on where it was."""
    traffic, clock, (client,) = replay(ReplayedTraffic(MOONCAKE, jitter_seconds=0.0))
    clock.run_until(4.0)
    traffic.apply_effects(TrafficEffects(rate_factor=0.0))
    clock.run_until(1000.0)
    assert len(client.requests) == 6
    traffic.apply_effects(TrafficEffects())
    clock.run_until(1002.0)
    assert len(client.requests) == 9
    clock.run_until(1010.0)
    assert traffic.ended
    assert [round(moment, 6) for moment, _ in client.requests[6:]] == [1002.0] * 3 + [1005.0] * 3


# Denser than a generated mix can be.
@example(gaps=[0, 1], scale=1.0, speed=11.0, repeat=1, jitter=None)
@settings(max_examples=examples(50))
@given(
    gaps=st.lists(st.integers(0, 4000), min_size=1, max_size=30),
    scale=st.floats(0.2, 3.0),
    speed=st.floats(0.1, 50.0),
    repeat=st.integers(1, 3),
    jitter=st.none() | st.floats(0.0, 10.0),
)
def test_arrivals_are_in_order_and_within_their_moment(
    tmp_path_factory: pytest.TempPathFactory,
    gaps: list[int],
    scale: float,
    speed: float,
    repeat: int,
    jitter: float | None,
) -> None:
    """Whatever the trace and the replay, requests come in order, and none after the next recorded moment."""
    moments = [sum(gaps[: place + 1]) for place in range(len(gaps))]
    lines = [
        altered(timestamp=moment, input_length=place + 1, hash_ids=[place]) for place, moment in enumerate(moments)
    ]
    path = write(tmp_path_factory.mktemp("trace"), "\n".join(lines))
    sent = replay_all(ReplayedTraffic(path, scale=scale, speed=speed, repeat=repeat, jitter_seconds=jitter))
    assert [moment for moment, _ in sent] == sorted(moment for moment, _ in sent)
    assert [request.number for _, request in sent] == [*range(1, len(sent) + 1)]
    if scale >= 1:
        assert len(sent) >= repeat * len(gaps) * int(scale)
    distinct = sorted(set(moments))
    mean_gap = (distinct[-1] - distinct[0]) / (len(distinct) - 1) / 1000 if len(distinct) > 1 else 1.0
    ends = dict(zip(distinct, [*distinct[1:], distinct[-1] + 1000 * mean_gap], strict=True))
    span = (distinct[-1] - distinct[0]) / 1000 + mean_gap
    for moment, request in sent:
        recorded = moments[request.input_tokens - 1]
        within = moment * speed % span
        least, most = (recorded - distinct[0]) / 1000, (ends[recorded] - distinct[0]) / 1000
        assert least - 1e-6 <= within <= most + 1e-6 or span - within < 1e-6


@pytest.mark.slow
def test_a_trace_is_never_held_whole(tmp_path: Path) -> None:
    """Looking at a trace and replaying it needs no more memory than a few of its lines."""
    ids = list(range(200))
    path = tmp_path / "trace"
    with path.open("w") as file:
        for moment in range(2000):
            file.write(altered(timestamp=moment, input_length=512 * len(ids), hash_ids=ids) + "\n")
    clock = VirtualClock()
    tracemalloc.start()
    try:
        traffic = Traffic(
            ReplayedTraffic(path), clock=clock, seed=1, block_tokens=512,
            sends={"none": lambda request, finished: None}, split={"none": 1.0},
        )  # fmt: skip
        traffic.start()
        clock.run_until(3.0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert traffic.requests_sent == 2000
    assert path.stat().st_size > 1_500_000
    assert most < 200_000


def test_rounded_arrivals_are_found(tmp_path: Path) -> None:
    """In a trace of ours with the columns and the moments of the public conversation, which are multiples of 3 s."""
    random = Random(7)
    moments = [3000 * moment for moment in range(100) for _ in range(random.randint(1, 15))]
    lines = [altered(timestamp=moment, input_length=random.randint(1, 512), hash_ids=[0]) for moment in moments]
    survey = survey_trace(write(tmp_path, "\n".join(lines)))
    assert survey.requests == len(moments)
    assert survey.quantum_seconds == 3.0


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "requests", "quantum"),
    [
        ("conversation_trace.jsonl", 12_031, 3.0),
        ("synthetic_trace.jsonl", 3_993, 0.0),
        ("AzureLLMInferenceTrace_code.csv", 8_819, 0.0),
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 0.0),
    ],
)
def test_public_traces_are_read(reference: Path, name: str, requests: int, quantum: float) -> None:
    """The public traces are read whole, and only the conversation's arrivals are found to be rounded."""
    survey = survey_trace(reference / "traces" / name)
    assert survey.requests == requests
    assert survey.quantum_seconds == pytest.approx(quantum, abs=0.01)
