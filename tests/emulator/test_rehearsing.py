"""Rehearsals of a migrated configuration: what is emulated of it, and that the judge judges it."""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope import cli
from servescope.contract.identity import Deployment
from servescope.emulator.deployment.disaggregation import Disaggregation
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.scenario.rehearsing import PAST_HOURS, draft_rehearsal
from servescope.emulator.scenario.scenario import Scenario, make_scenario
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.errors import UsageError
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.drafting import draft_plan
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling
from servescope.migration.traffic.traffic import ServedHistogram, ServedTraffic
from tests.support.configurations import draw_configuration
from tests.support.drawing import examples
from tests.support.migrations import V1, move_of

SIZED = """\
model_name: big
resources: {accelerator: "H100:2"}
trt_llm:
  build:
    checkpoint_repository: {source: HF, repo: meta-llama/Llama-3.3-70B-Instruct}
    quantization_type: fp8_kv
    tensor_parallel_count: 2
    max_batch_size: 64
    max_seq_len: 16384
"""


def scenario_of(text: str, **answers: object) -> Scenario:
    """The rehearsal of a configuration, as the emulator reads it."""
    draft = draft_rehearsal(move_of(text, **answers))  # type: ignore[arg-type] # those of move_of
    return make_scenario(tomllib.loads(draft), origin="rehearsal.toml", directory=Path())


def plans_of(text: str, **answers: object) -> tuple[DeploymentPlan, DeploymentPlan]:
    """The two deployments of a rehearsal."""
    v1, v2 = scenario_of(text, **answers).deployments
    return v1.plan, v2.plan


def test_v1_is_emulated_as_it_was_and_v2_as_configured() -> None:
    """Lookahead and concurrency before; after it what the Management API was given."""
    v1, v2 = plans_of(V1, n_gram=True, target=12_000)

    assert (v1.identity.inference_stack, v2.identity.inference_stack) == ("v1", "v2")
    assert v1.identity.model_name == v2.identity.model_name == "Mine 70B"
    assert v1.engine.speculation is not None
    assert v1.engine.speculation.decoding_type == "lookahead"
    assert v2.engine.speculation is not None
    assert v2.engine.speculation.decoding_type == "NGram"
    assert isinstance(v1.scaling, ConcurrencyScaling)
    assert isinstance(v2.scaling, TokenScaling)
    assert v2.scaling.target_in_flight_tokens == 12_000
    assert (v1.routing, v2.routing is not None) == (None, True)


def test_routing_and_disaggregation_are_those_of_the_llm_config() -> None:
    """With the weights, temperatures and workers that it names."""
    _, v2 = plans_of(V1, llm_config="""{
        "is_disaggregated": true, "b10_disagg_config": {"prefill_workers_per_replica": 1,
        "decode_workers_per_replica": 2}, "b10_routing_config": {"router_temperature": 0.25},
        "speculative_config": {"decoding_type": "eagle", "speculative_model_dir": "/e", "max_draft_len": 2}
    }""")  # fmt: skip

    assert v2.disaggregation == Disaggregation(1, 2)
    assert v2.routing is not None
    assert v2.routing.router_temperature == 0.25
    assert v2.engine.speculation is not None
    assert v2.engine.speculation.draft_length == 2


def test_known_hardware_is_emulated_and_unknown_is_said() -> None:
    """A preset of the GPU and the model gives speed and memory; without one the draft says whose they are."""
    v1, v2 = plans_of(SIZED)

    assert v1.engine.weights_bytes == v2.engine.weights_bytes == round(70.6e9)
    assert (v1.engine.max_batch_size, v2.engine.max_seq_len) == (64, 16384)
    assert "fp8_kv on H100, of meta-llama/Llama-3.3-70B-Instruct." in draft_rehearsal(move_of(SIZED))
    for text, why in (
        (SIZED.replace("H100:2", "H100_40GB:2"), "The emulator has no GPU H100_40GB."),
        (SIZED.replace("Llama-3.3-70B", "other"), "The emulator has no model like meta-llama/other-Instruct."),
        (SIZED.replace("fp8_kv", "no_quant").replace("H100:2", "H100").replace("count: 2", "count: 1"),
         "the weights of 'llama-3.3-70b' (141 GB) do not fit"),
    ):  # fmt: skip
        draft = draft_rehearsal(move_of(text))
        assert why in draft
        assert "speed and memory are not those of your GPUs" in draft


def test_a_made_traffic_is_said_to_be_made() -> None:
    """Nobody is to take its figures for those of his clients."""
    assert "# No traffic was measured: these are the emulator's own conversations" in draft_rehearsal(move_of(V1))


def test_v2_comes_after_the_calibration_and_gets_the_stages_of_the_plan() -> None:
    """One share after the other, as long as each stage lasts at least."""
    scenario = scenario_of(V1)

    assert scenario.deployments[1].plan.opens_seconds == PAST_HOURS * 3600
    assert [(each.share, each.start_seconds / 3600 - PAST_HOURS) for each in scenario.shares] == [
        (0.01, 0), (0.05, 1.5), (0.25, 4), (0.5, 8.5), (0.95, 15),
    ]  # fmt: skip


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 10**6))
def test_every_configuration_can_be_rehearsed(seed: int) -> None:
    """Or is refused with the reason: a sequence without room for a prompt and an answer."""
    text = yaml.safe_dump(draw_configuration(random.Random(seed)))
    if "max_seq_len: 1\n" in text:
        with pytest.raises(UsageError, match="have no room for a prompt and an answer"):
            scenario_of(text)
    else:
        assert len(scenario_of(text).deployments) == 2


@pytest.mark.parametrize("length", [65, 1000])
def test_what_the_emulator_cannot_is_refused_with_its_reason(length: int) -> None:
    """No instrument distinguishes so many positions of a draft."""
    config = f'{{"speculative_config": {{"decoding_type": "NGram", "max_draft_len": {length}}}}}'

    with pytest.raises(UsageError, match=rf"cannot be rehearsed: .*draft length is {length}, expected 1 to 64"):
        scenario_of(V1, llm_config=config)


def rehearse(folder: Path, past_hours: float, hours: float, stage: int, since: str, at: str) -> int:
    """Draft, record and judge as the draft's own remarks have it; gives the judge's exit code."""
    move = move_of(V1.replace("runtime: {", "runtime: {kv_cache_free_gpu_mem_fraction: 0.9, "), n_gram=True)
    scenario, plan, store = (folder / name for name in ("rehearsal.toml", "cutover.toml", "rehearsal.db"))
    scenario.write_text(draft_rehearsal(move, past_hours=past_hours), encoding="utf-8")
    plan.write_text(draft_plan(move), encoding="utf-8")
    cli.main(["emulate", "--scenario", str(scenario), "--record", str(store), "--hours", str(hours)])
    words = ["--plan", str(plan), "--store", str(store), "--since", since, "--at", at, "--stage", str(stage)]
    return cli.main(["judge", "run", *words])


@pytest.mark.slow
def test_a_rehearsal_runs_and_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both arms are observed; after so little nothing is proven."""
    code = rehearse(tmp_path, 0.5, 1.25, 1, "2026-01-01T00:30:00Z", "2026-01-01T01:15:00Z")
    said = capsys.readouterr().out

    assert code == 11, said
    assert "INCONCLUSIVE: hold" in said
    assert "plan mine-70b, stage 1 of 5 (1 % on v2, observed" in said


@pytest.mark.proof
def test_a_whole_rehearsal_is_settled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A day of v1 calibrates, and at half of the traffic the required metrics are compared at a matched load."""
    at = "2026-01-02T14:54:00Z"
    rehearse(tmp_path, PAST_HOURS, PAST_HOURS + 15, 4, "2026-01-02T08:30:00Z", at)
    said = capsys.readouterr().out

    assert "uncalibrated" not in said
    assert "load not matched" not in said
    assert "\nErrors  " in said


def served_day(blocks: int = 288) -> ServedTraffic:
    """A day of four replicas, whose rate follows the sun: 12 requests in flight, 600 tokens in and 100 out."""
    times = np.arange(blocks) * BLOCK_MS
    angle = 2 * np.pi * (times / 3_600_000 - 15.0) / 24
    requests = 300 * 3.0 * (1 + 0.3 * np.cos(angle))
    sizes = {
        f"{side}_tokens_per_request": ServedHistogram(
            (mean / 2, 2.0 * mean), np.stack([0 * requests, requests, 0 * requests]), mean * requests
        )
        for side, mean in (("input", 600.0), ("output", 100.0))
    }
    full = np.full(blocks, 4.0)
    return ServedTraffic(
        (Deployment("big", "big-v1", "v1"),), times, full, 3 * full, 0 * full, 0.5 + 0 * full, requests, sizes, {}, None
    )  # fmt: skip


def mix_of(served: ServedTraffic, text: str = V1) -> Mix:
    """The traffic of a rehearsal as it was served."""
    draft = draft_rehearsal(move_of(text), served)
    traffic = make_scenario(tomllib.loads(draft), origin="rehearsal.toml", directory=Path()).traffic
    assert isinstance(traffic, GeneratedTraffic)
    return traffic.mix


def test_a_rehearsal_has_the_traffic_that_was_measured() -> None:
    """Its rate, its sizes, its day; v1 with the replicas and the concurrency that it had."""
    mix = mix_of(served_day())

    assert mix.requests_per_second == pytest.approx(3.0, rel=1e-3)
    assert mix.output_tokens == pytest.approx(100.0)
    assert mix.system_tokens[0] + mix.message_tokens == pytest.approx(600.0)
    assert mix.day_amplitude == pytest.approx(0.3, abs=1e-3)
    assert mix.day_factor(15 * 3600.0) == pytest.approx(1.3, abs=1e-3)
    draft = draft_rehearsal(move_of(V1), served_day())
    assert "# As big/big-v1 was observed: 3 requests a second of 600 tokens in and" in draft
    v1 = make_scenario(tomllib.loads(draft), origin="x", directory=Path()).deployments[0].plan
    assert isinstance(v1.scaling, ConcurrencyScaling)
    assert v1.scaling.initial_replicas == 4
    assert v1.scaling.concurrency_target * 0.45 == pytest.approx(3.0, rel=0.01)


def test_less_than_a_day_has_no_day() -> None:
    """Nobody knows then when its peak is."""
    assert mix_of(served_day(blocks=100)).day_amplitude == 0.0


def test_measured_prompts_fit_into_the_engines() -> None:
    """A sequence shorter than what was measured takes what fits."""
    mix = mix_of(served_day(), V1.replace("build:", "build:\n    max_seq_len: 256", 1))

    assert mix.prompt_limit + mix.output_range[1] <= 256


@pytest.mark.parametrize("lacking", ["requests", "sizes"])
def test_what_was_not_observed_is_not_made_up(lacking: str) -> None:
    """A rate or sizes that are missing refuse the rehearsal, by what is missing."""
    served = served_day()
    served = replace(served, requests=served.requests * np.nan) if lacking == "requests" else replace(
        served, histograms={}
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"big/big-v1: cannot be rehearsed: .* was not observed"):
        draft_rehearsal(move_of(V1), served)
