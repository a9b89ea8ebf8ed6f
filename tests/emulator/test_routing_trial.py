"""A trace served behind both routers, and what `servescope migrate` makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from servescope.emulator.deployment.configured import read_workers
from servescope.emulator.routing_trial import try_routers
from servescope.emulator.workload.traces import MOONCAKE_BLOCK_TOKENS
from servescope.errors import UsageError
from servescope.migration.advice.routing_advice import advise_routing
from servescope.migration.report import migration_schema
from tests.support.commands import run

AZURE = Path(__file__).parent / "traces" / "azure.csv"
CONFIG = """\
resources: {accelerator: 'H100:4'}
trt_llm:
  build:
    checkpoint_repository: {source: HF, repo: meta-llama/Llama-3.3-70B-Instruct}
    quantization_type: fp8_kv
    tensor_parallel_count: 4
"""
PARSED: dict[str, Any] = {
    "resources": {"accelerator": "H100:4"},
    "trt_llm": {
        "build": {
            "checkpoint_repository": {"repo": "meta-llama/Llama-3.3-70B-Instruct"},
            "quantization_type": "fp8_kv",
            "tensor_parallel_count": 4,
        }
    },
}


def converse(*, sessions: int, turns: int, is_shared: bool) -> Iterator[dict[str, Any]]:
    """Requests of conversations that grow by three blocks a turn; or of as many blocks, none of them twice."""
    fresh = iter(range(10_000, 1 << 20))
    for turn in range(turns):
        for session in range(sessions):
            blocks = 3 * (turn + 1)
            ids = [session * 100 + at for at in range(blocks)] if is_shared else [next(fresh) for _ in range(blocks)]
            yield {
                # Not in step with the replicas, or each session would meet its own one by chance.
                "timestamp": 8_000 * turn + 200 * ((session * 7 + turn * 3) % sessions),
                "input_length": MOONCAKE_BLOCK_TOKENS * blocks,
                "output_length": 60,
                "hash_ids": ids,
            }  # fmt: skip


def write_trace(path: Path, *, is_shared: bool, sessions: int = 16, turns: int = 6) -> Path:
    """A trace of such requests."""
    requests = list(converse(sessions=sessions, turns=turns, is_shared=is_shared))
    requests.sort(key=lambda each: each["timestamp"])
    path.write_text("".join(f"{json.dumps(each)}\n" for each in requests), encoding="utf-8")
    return path


def test_conversations_pay(tmp_path: Path) -> None:
    """Each turn finds the one before on the replica that has it; least load sends it to any of four."""
    trial = try_routers(write_trace(tmp_path / "t.jsonl", is_shared=True), PARSED, replicas=4, cache_tokens=200_000)
    # All blocks of a prompt but the three new ones; of a prompt that is repeated to its end one is computed.
    assert trial.reachable_hit_rate == pytest.approx(sum(range(6)) / sum(range(1, 7)))
    assert trial.by_load.hit_rate < trial.kv_aware.hit_rate <= trial.reachable_hit_rate
    assert trial.kv_aware.hit_rate > 0.9 * trial.reachable_hit_rate
    assert trial.kv_aware.first_token_mean_seconds < trial.by_load.first_token_mean_seconds
    assert (trial.requests, trial.by_load.failed, trial.kv_aware.failed) == (96, 0, 0)
    assert trial.cache_tokens == 200_000 // MOONCAKE_BLOCK_TOKENS * MOONCAKE_BLOCK_TOKENS
    assert advise_routing(trial).answer == "pays"


def test_prompts_that_share_nothing_do_not(tmp_path: Path) -> None:
    """No router finds what is in no cache."""
    trial = try_routers(write_trace(tmp_path / "t.jsonl", is_shared=False), PARSED, replicas=4)
    assert trial.reachable_hit_rate == trial.kv_aware.hit_rate == 0
    assert advise_routing(trial).answer == "does not pay"


def test_one_replica_has_nothing_to_choose(tmp_path: Path) -> None:
    """Both routers find the same there, and the load is that of all."""
    trial = try_routers(write_trace(tmp_path / "t.jsonl", is_shared=True, sessions=9), PARSED, replicas=1)
    assert trial.by_load.hit_rate == trial.kv_aware.hit_rate > 0
    assert trial.by_load.load_imbalance == trial.kv_aware.load_imbalance == 1
    assert advise_routing(trial).answer == "does not pay"


@pytest.mark.slow
def test_the_configured_routing_is_the_one_that_is_tried(tmp_path: Path) -> None:
    """Without weight on caches v2's router finds less; a rule of `b10_routing_config` holds here as well."""
    trace = write_trace(tmp_path / "t.jsonl", is_shared=True)
    usual, blind = (
        try_routers(trace, PARSED, replicas=4, routing={"router_overlap_score_weight": weight}) for weight in (3.5, 0)
    )
    assert blind.kv_aware.hit_rate < usual.kv_aware.hit_rate
    with pytest.raises(UsageError, match="router_temperature is -1, expected a number of 0 or more"):
        try_routers(trace, PARSED, replicas=4, routing={"router_temperature": -1})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "4 x h100 with llama-3.3-70b"),
        ({"resources": {"accelerator": "T4"}}, "in place of yours (The emulator has no GPU T4)"),
        ({"resources": None}, "(The emulator has no GPU (none is in the file))"),
        ({"trt_llm": {"build": {"checkpoint_repository": {"repo": "a/b"}}}}, "(The emulator has no model like a/b)"),
        (
            {
                "resources": {"accelerator": "L4"},
                "trt_llm": {"build": {"checkpoint_repository": {"repo": "Llama-3.3-70B"}}},
            },
            "do not fit into 'l4'",
        ),
    ],
)
def test_the_workers_are_those_of_the_configuration(changed: dict[str, Any], expected: str) -> None:
    """Where the emulator has not got them, the text says what is emulated instead, and why."""
    workers = read_workers({**PARSED, **changed})
    assert expected in workers.text
    assert workers.text.startswith("4 x h100 with llama-3.3-70b")


def test_limits_of_the_configuration_bound_the_workers() -> None:
    """Of v1's build and of v2's runtime."""
    build = {**PARSED["trt_llm"]["build"], "max_batch_size": 8}
    assert read_workers({**PARSED, "trt_llm": {"build": build}}).settings.max_batch_size == 8
    runtime = {"max_num_tokens": 4096, "tensor_parallel_size": 8}
    found = read_workers({**PARSED, "trt_llm": {"build": build, "runtime": runtime}}).settings
    assert (found.max_batch_size, found.max_num_tokens, found.tensor_parallel_size) == (8, 4096, 8)


def test_the_report_answers_from_a_trace(tmp_path: Path) -> None:
    """With the figures behind the answer, as text and as JSON; for a file of v2 too."""
    trace = str(write_trace(tmp_path / "t.jsonl", is_shared=True))
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    words = ("--trace", trace, "--replicas", "4")
    text = run("migrate", str(config), *words).stdout
    assert "KV-aware routing: pays: " in text
    assert "t.jsonl (96 requests in 43 s) was replayed on 4 emulated replicas, each 4 x h100 with llama-3.3-70b" in text
    assert run("migrate", str(config), "--write").returncode == 0
    report = json.loads(run("migrate", str(config), *words, "--format", "json").stdout)
    jsonschema.Draft202012Validator(migration_schema()).validate(report)
    (advice,) = report["advice"]
    assert report["files"][0]["status"] == "unchanged"
    assert (advice["topic"], advice["answer"]) == ("routing", "pays")


def test_a_checkpoint_that_is_replaced_is_named_without_its_secrets(tmp_path: Path) -> None:
    """A signed URL of a model that the emulator has not got."""
    trace, config = write_trace(tmp_path / "t.jsonl", is_shared=True), tmp_path / "config.yaml"
    signed = "source: REMOTE_URL, repo: 'https://joe:hunter2hunter2@host/mine?sig=0123456789'"
    config.write_text(re.sub(r"source: HF, repo: [^}]*", signed, CONFIG), encoding="utf-8")
    done = run("migrate", str(config), "--trace", str(trace), "--replicas", "4")

    assert "The emulator has no model like https://••••••@host/mine?••••••" in done.stdout
    assert not [each for each in ("hunter2", "0123456789") if each in done.stdout + done.stderr]


def test_nothing_is_written_where_the_trace_is_wrong(tmp_path: Path) -> None:
    """The configuration is as it was, and there is no copy."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    done = run("migrate", str(config), "--write", "--trace", str(AZURE), "--replicas", "2")
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert config.read_text(encoding="utf-8") == CONFIG


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("model_name: x\n", 2, "config.yaml: has no trt_llm block, which --trace needs"),
        ("llm_config: {}\n", 2, "config.yaml: has no trt_llm block, which --trace needs"),
        ("trt_llm: {build: {}}\n", 2, "checkpoint_repository is missing"),
        (CONFIG + "    base_model: encoder\n", 3, "KV-aware routing: pays"),
    ],
)
def test_a_trace_needs_replicas(tmp_path: Path, text: str, code: int, expected: str) -> None:
    """A file without any is refused; one with errors has them reported, and one that is asked about is tried."""
    trace = write_trace(tmp_path / "t.jsonl", is_shared=True)
    config = tmp_path / "config.yaml"
    config.write_text(text, encoding="utf-8")
    done = run("migrate", str(config), "--trace", str(trace), "--replicas", "4")
    assert done.returncode == code
    assert expected in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--trace", "TRACE"], "--trace needs --replicas beside it"),
        (["--trace", "TRACE", "--replicas", "2", "--back"], "--trace is there beside --back"),
        (["--replicas", "4"], "--replicas has no meaning without --trace"),
        (["--trace", "TRACE", "--replicas", "0"], "replicas is 0, expected 1 to 1000"),
        (["--trace", "TRACE", "--replicas", "2", "--cache-tokens", "511"], "cache_tokens is 511, expected 512 or more"),
        (["--trace", "TRACE", "--replicas", "2", "--cache-tokens", "512"], "not one request was served"),
        (["--trace", str(AZURE), "--replicas", "2"], "names no blocks of its prompts"),
        (["--trace", "none.jsonl", "--replicas", "2"], "cannot read trace 'none.jsonl': No such file or directory"),
    ],
)
def test_wrong_usage(tmp_path: Path, words: list[str], expected: str) -> None:
    """An error in one line, and exit code 2."""
    trace = str(write_trace(tmp_path / "t.jsonl", is_shared=True, sessions=2, turns=2))
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    done = run("migrate", str(config), *(trace if word == "TRACE" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


@pytest.mark.proof
@pytest.mark.reference
def test_the_public_conversations_pay(reference: Path) -> None:
    """On sixteen replicas nearly four times as much comes from cache, and first tokens come sooner."""
    trial = try_routers(reference / "traces" / "conversation_trace.jsonl", PARSED, replicas=16)
    assert trial.kv_aware.hit_rate > 3 * trial.by_load.hit_rate
    assert trial.kv_aware.hit_rate < trial.reachable_hit_rate < 0.38
    assert advise_routing(trial).answer == "pays"
