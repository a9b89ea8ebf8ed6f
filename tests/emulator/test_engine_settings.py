"""An engine as a scenario's tables describe it."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.emulator.engine.hardware import size_engine
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.scenario.engine_settings import ENGINE_SETTINGS, RUNTIME_SETTINGS, EngineSettings, parse_engine
from servescope.errors import ConfigurationError
from servescope.settings.tables import Table

EAGLE = {"decoding_type": "EAGLE", "speculative_model_dir": "/models/eagle", "max_draft_len": 2}


def parse(
    engine: dict[str, object],
    runtime: dict[str, object] | None = None,
    *,
    directory: Path = Path(),
    speculation: dict[str, object] | None = None,
) -> EngineSettings:
    """The engine of a deployment with these tables."""
    whole = Table({"engine": engine, "runtime": runtime or {}}, "scenario.toml", "deployments[0]")
    return parse_engine(
        whole.table("engine", ENGINE_SETTINGS),
        whole.table("runtime", RUNTIME_SETTINGS),
        directory=directory,
        speculation=speculation,
    )


def test_nothing_said_is_the_demos_engine_with_the_documented_batch() -> None:
    """Cost and cache are those of the demo; batch sizes are the documented defaults."""
    parameters = parse({}).parameters
    assert parameters.cost == EngineParameters().cost
    assert (parameters.max_batch_size, parameters.max_num_tokens, parameters.chunked_prefill) == (256, 8192, True)
    assert parameters.speculation is None


def test_hardware_decides_cost_cache_and_transfer() -> None:
    """Cost, weights, cache and KV transfer follow from the GPUs; what is said beside them wins."""
    settings = parse({"hardware": "H200"}, {"tensor_parallel_size": 2})
    size = size_engine("h200", tensor_parallel_size=2)
    assert settings.parameters.cost == size.cost
    assert settings.parameters.cache_blocks == size.cache_tokens // 32
    assert settings.transfer == size.transfer
    assert parse({"hardware": "h200", "cache_blocks": 77}).parameters.cache_blocks == 77


def test_calibration_decides_the_cost(tmp_path: Path) -> None:
    """Points of a file beside the scenario decide the cost, and the log has how well it fits."""
    (tmp_path / "points.csv").write_text("decoding,seconds\n1,0.011\n2,0.012\n8,0.018\n", encoding="utf-8")
    settings = parse({"hardware": "h100", "calibration": "points.csv"}, directory=tmp_path)
    assert settings.parameters.cost.weights == pytest.approx(0.010)
    assert settings.parameters.cost.per_decoding_sequence == pytest.approx(0.001)
    assert settings.calibration is not None
    assert settings.calibration.residual_ratio < 1e-9


@pytest.mark.parametrize(("second", "warned"), [("0.012", False), ("0.032", True)])
def test_poor_fit_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, second: str, warned: bool) -> None:
    """How well the points fit is logged with its place, as a warning when that is badly."""
    (tmp_path / "points.csv").write_text(f"decoding,seconds\n1,0.011\n2,{second}\n8,0.018\n", encoding="utf-8")
    with caplog.at_level("INFO", logger="servescope"):
        parse({"calibration": "points.csv"}, directory=tmp_path)
    (record,) = caplog.records
    assert (record.levelname == "WARNING") == warned
    assert "scenario.toml: deployments[0].engine.calibration: calibrated on 3 points: off by" in record.getMessage()


def test_speculation_is_as_documented() -> None:
    """The documented block decides kind and length; chances can be said beside it."""
    engine = {"acceptance": [0.9, 0.5], "acceptance_drift": 0.1}
    speculation = parse(engine, speculation=dict(EAGLE)).parameters.speculation
    assert speculation is not None
    assert speculation.drift_per_hour == 0.1
    assert (speculation.decoding_type, speculation.acceptance) == ("Eagle", (0.9, 0.5))


@pytest.mark.parametrize(
    ("engine", "runtime", "speculation", "message"),
    [
        ({"hardware": "h101"}, {}, None, r"deployments\[0\].engine: unknown hardware 'h101', supported: a100, h100"),
        ({"hardware": "h100", "model": "gpt"}, {}, None, "unknown model 'gpt', supported: llama"),
        ({"hardware": "a100", "precision": "fp8"}, {}, None, "precision 'fp8'.*supported: bf16"),
        ({"hardware": "a100"}, {}, None, "do not fit into 'a100'.*tensor_parallel_size 4"),
        ({}, {"tensor_parallel_size": 2}, None, "tensor_parallel_size: 2 is wrong, expected it only beside"),
        ({"hardware": "h200", "block_tokens": 10**9}, {}, None, "block_tokens: 1000000000 is wrong"),
        ({}, {"max_batch_size": 5000}, None, "max_batch_size: 5000 is wrong, expected a whole number from 1 to 2048"),
        ({}, {"max_num_tokens": 64}, None, "max_num_tokens: 64 is wrong, expected a whole number from 65 to 131072"),
        ({}, {"max_batch": 5}, None, "unknown key 'deployments.*max_batch'; did you mean 'max_batch_size'"),
        ({"error_share": float("nan")}, {}, None, "error_share: nan is wrong"),
        ({"max_queue": -1}, {}, None, "max_queue: -1 is wrong"),
        ({"calibration": "none.csv"}, {}, None, "engine.calibration: cannot read .*none.csv"),
        ({"acceptance": [0.5]}, {}, None, "acceptance: .* only beside a speculative_config"),
        ({"acceptance_drift": 0.1}, {}, None, "acceptance_drift: .* only beside a speculative_config"),
        ({"acceptance_drift": 1}, {}, EAGLE, "acceptance_drift: 1 is wrong, expected a share of 0 or more and below 1"),
        ({"acceptance": [1.5]}, {}, EAGLE, "acceptance: .* a list of chances"),
        ({}, {}, {"decoding_type": "medusa"}, "speculative_config.decoding_type is 'medusa', expected one of"),
    ],
)
def test_wrong_engines_are_refused_with_their_place(
    engine: dict[str, object], runtime: dict[str, object], speculation: dict[str, object] | None, message: str
) -> None:
    """An impossible setting is refused with its place, its value, and what was expected."""
    with pytest.raises(ConfigurationError, match=rf"scenario.toml: .*{message}"):
        parse(engine, runtime, speculation=speculation)
