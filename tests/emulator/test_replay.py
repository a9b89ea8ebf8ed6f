"""`servescope replay`: a trace through emulated workers, and through a cache alone."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope import cli
from servescope.emulator.deployment.sizing import WorkerSettings
from servescope.emulator.replay import ReplaySettings, replay
from servescope.emulator.reuse import UNLIMITED, measure_reuse
from servescope.emulator.workload.plans import ReplayedTraffic
from servescope.emulator.workload.traces import read_trace
from tests.support.drawing import examples

TRACES = Path(__file__).parent / "traces"
MOONCAKE = TRACES / "mooncake.jsonl"
AZURE = TRACES / "azure.csv"

# What the reference traces' own page states, in percent, for caches of these sizes.
SIZES = (1_000, 5_000, 20_000, 50_000, UNLIMITED)
PUBLISHED = {
    "conversation_trace.jsonl": (4.4, 11.0, 28.7, 35.5, 36.6),
    "synthetic_trace.jsonl": (8.2, 27.9, 57.1, 64.0, 64.0),
}


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What the command prints, when it succeeds."""
    assert cli.main(["replay", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.mark.proof
@pytest.mark.reference
@pytest.mark.parametrize("name", PUBLISHED)
def test_cache_alone_lands_on_the_published_reuse(
    reference: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """With an LRU of each published size the cache alone reuses the published share of blocks, within 0.1 points."""
    sizes = ",".join("unlimited" if size == UNLIMITED else str(size) for size in SIZES)
    printed = run(capsys, reference / "traces" / name, "--cache-only", "--blocks", sizes, "--format", "json")
    caches = json.loads(printed)["caches"]
    assert [100 * cache["reuse_ratio"] for cache in caches] == pytest.approx(PUBLISHED[name], abs=0.1)
    # Held as a whole, with the end evicted first, a prompt leaves more of its front to the next: a little more.
    for cache in caches:
        assert 0 <= cache["reuse_by_sequence_ratio"] - cache["reuse_ratio"] < 0.003


prompts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 6)), max_size=40)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(prompts=prompts, capacity=st.integers(1, 12))
def test_cache_alone_is_a_plain_lru(prompts: list[tuple[int, int, int]], capacity: int) -> None:
    """Block by block, the cache reuses what a dictionary in the order of the last use would."""
    # Prompts of a tree: the first block decides on the trunk, the second on the branch.
    named = [
        [(1 << 20) * trunk, *((trunk * 4 + branch + 1) * 1000 + at for at in range(length))]
        for trunk, branch, length in prompts
    ]
    order: OrderedDict[int, None] = OrderedDict()
    reused = 0
    for blocks in named:
        is_front = True
        for block in blocks:
            is_front = is_front and block in order
            reused += is_front
            order[block] = None
            order.move_to_end(block)
            if len(order) > capacity:
                order.popitem(last=False)
    measured = measure_reuse(named, capacity=capacity, block_tokens=512)
    assert measured.reused == reused
    assert measured.blocks == sum(map(len, named))
    assert measured.too_long == sum(len(blocks) > capacity for blocks in named)


def test_cache_of_no_limit_reuses_every_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    """The text names the trace and each cache: of 45 blocks 15 were there before."""
    printed = run(capsys, MOONCAKE, "--cache-only", "--blocks", "unlimited,2")
    blocks = [block for request in read_trace(MOONCAKE) for block in request.block_ids or ()]
    assert (len(blocks), len(set(blocks))) == (45, 30)
    assert "mooncake.jsonl (mooncake): 12 requests over 9 s, 20 248 prompt and 3 801 output tokens" in printed
    assert printed.splitlines()[2].split() == ["unlimited", "33.3", "%", "33.3", "%"]
    assert "7 prompts have more than 2 blocks: no sequence is held." in printed


def test_replay_prints_the_contract_s_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Every request ends, and the figures are those of the whole replay, in text and in JSON."""
    words = (MOONCAKE, "--workers", 2, "--hardware", "H200", "--tensor-parallel-size", 2)
    text = run(capsys, *words)
    assert "2 workers, each 2 x H200 with llama-3.3-70b" in text
    assert "arrivals come up to 3 s later than recorded, by the seed, as the trace rounds them" in text
    assert "later than recorded" not in run(capsys, *words, "--jitter", 0)
    assert "12 requests in" in text
    assert "12 ok" in text
    assert "Time to first token, p95" in text
    document = json.loads(run(capsys, *words, "--format", "json"))
    assert document["trace"]["requests"] == document["requests"] == document["outcomes"]["ok"] == 12
    assert document["replay"]["router"] == "kv"
    assert document["replay"]["jitter_seconds"] == 3.0
    figures = document["figures"]
    assert figures["input_tokens_per_request"] == pytest.approx(20_248 / 12)
    assert figures["output_tokens_per_second"] == pytest.approx(3_801 / document["seconds"])
    # One worker at a time has what another computed; one cache for all would find 15 blocks.
    assert 0 < figures["kv_cache_hit_rate"] <= figures["kv_cache_best_prefix_hit_rate"] <= 15 * 512 / 20_248
    assert figures["kv_cache_hit_rate_efficiency"] <= 1
    assert figures["speculation_rate"] is None
    assert document["preemptions"] == 0


@pytest.mark.slow
def test_one_seed_gives_one_replay(capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed prints the same JSON to the byte, another seed another."""
    first, again, other = (run(capsys, MOONCAKE, "--seed", seed, "--format", "json") for seed in (3, 3, 4))
    assert first == again
    assert first.replace('"seed": 3', '"seed": 4') != other


def test_the_router_finds_what_least_load_misses(tmp_path: Path) -> None:
    """On prompts that share their front the KV-aware router reuses more, and least load predicts nothing."""
    lines = [
        json.dumps({"timestamp": 500 * turn, "input_length": 4096, "output_length": 40,
                    "hash_ids": [family * 100 + block for block in range(7)] + [10_000 + 10 * turn + family]})
        for turn in range(40) for family in (turn % 5,)
    ]  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    kv, least = (
        replay(ReplayedTraffic(path), ReplaySettings(workers=4, router=router)) for router in ("kv", "least-load")
    )
    hit_rates = [report.figures["kv_cache_hit_rate"]["kv_cache_hit_rate"] for report in (kv, least)]
    assert hit_rates[0] > hit_rates[1] + 0.1
    assert least.figures["kv_cache_hit_rate_skew"] == {}


def test_a_wait_for_a_worker_is_in_the_time_to_first_token(tmp_path: Path) -> None:
    """Behind either router, or an overloaded one that keeps requests back would look faster than it is."""
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:17:{second:02},1000,40" for second in range(20) for _ in range(5)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    traffic, engine = ReplayedTraffic(path), WorkerSettings(max_batch_size=1)
    kv, least = (
        replay(traffic, ReplaySettings(workers=2, router=router, engine=engine)).figures["time_to_first_token_mean"][
            "time_to_first_token_mean"
        ]
        for router in ("kv", "least-load")
    )
    assert kv == pytest.approx(least, rel=0.1)
    assert least > 1


def test_requests_beyond_a_cache_end_as_client_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt that no worker's cache can hold is refused, and the rest is served."""
    document = json.loads(run(capsys, MOONCAKE, "--workers", 1, "--blocks", 8, "--format", "json"))
    assert document["outcomes"] == {"client_error": 1, "ok": 11}


def test_replay_takes_azure_traces_scaled_and_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """A trace without block ids is replayed too, as often and as fast as asked; nothing is reused."""
    document = json.loads(
        run(capsys, AZURE, "--workers", 1, "--repeat", 3, "--scale", 2, "--speed", 5, "--format", "json")
    )
    assert document["requests"] == 48
    assert document["figures"]["kv_cache_hit_rate"] == 0
    assert document["seconds"] < 30


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere.jsonl"], "cannot read trace 'nowhere.jsonl': No such file or directory"),
        ([MOONCAKE, "--workers", 0], "workers is 0, expected a whole number from 1 to 1000"),
        ([MOONCAKE, "--router", "random"], "unknown router 'random', supported: kv, least-load"),
        ([MOONCAKE, "--model", "gpt"], "unknown model 'gpt', supported: llama-3.1-8b"),
        ([MOONCAKE, "--jitter", "nan"], "jitter_seconds is nan, expected from 0"),
        ([MOONCAKE, "--blocks", "10,20"], "--blocks is '10,20', expected one whole number"),
        ([MOONCAKE, "--blocks", "0"], "--blocks is '0', expected a whole number from 1"),
        ([MOONCAKE, "--blocks", "9" * 5000], "expected a whole number from 1 to 1000000000"),
        ([MOONCAKE, "--cache-only", "--blocks", "9" * 5000], "expected a whole number from 1 to 1000000000"),
        ([MOONCAKE, "--speed", "1e-300"], "1 times at speed 1e-300, expected at most 366"),
        ([MOONCAKE, "--max-batch-size", 0], "max_batch_size is 0, expected 1 or more"),
        ([MOONCAKE, "--cache-only", "--blocks", "many"], "--blocks is 'many', expected a whole number from 1"),
        ([MOONCAKE, "--cache-only", "--workers", 2], "--workers has no meaning with --cache-only"),
        ([MOONCAKE, "--cache-only", "--tensor-parallel-size", 2], "--tensor-parallel-size has no meaning"),
        ([AZURE, "--cache-only"], "an Azure trace names no blocks, --cache-only needs a Mooncake one"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[object], complaint: str
) -> None:
    """Wrong usage ends with code 2 and a line that names the value and what is possible."""
    assert cli.main(["replay", *map(str, words)]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.proof
@pytest.mark.reference
def test_conversation_is_replayed_whole(reference: Path) -> None:
    """The public conversation on 16 workers: every request ends well, and most of what could be reused is."""
    report = replay(ReplayedTraffic(reference / "traces" / "conversation_trace.jsonl"), ReplaySettings())
    assert report.outcomes == {"ok": 12_031}
    hit_rate = report.figures["kv_cache_hit_rate"]["kv_cache_hit_rate"]
    assert 0.25 < hit_rate < 0.366
    assert report.figures["kv_cache_hit_rate_efficiency"]["kv_cache_hit_rate_efficiency"] > 0.8
