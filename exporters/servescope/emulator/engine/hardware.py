"""The cost and cache of an engine on a kind of GPU, from data sheets: `hardware.toml` has the numbers and sources.

Each part of a step takes what bounds it: prompts take compute, weights and context are read from memory, tensor
parallelism divides both and adds two all-reduces per layer. The parts are added up as if nothing overlapped, so a step
of prompts and decoding together comes out rather too long than too short.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final, TypedDict, cast

from servescope.emulator.engine.costs import StepCost, TransferCost
from servescope.errors import UsageError

DEFAULT_MODEL: Final = "llama-3.3-70b"

PRECISIONS: Final = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""The precisions weights may have, and their bytes. KV is kept in 2 bytes per value with bf16, in 1 otherwise."""

_TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)


class _Shares(TypedDict):
    compute: float
    attention: float
    memory: float
    link: float
    network: float
    cache: float


class _Fixed(TypedDict):
    step_seconds: float
    sequence_seconds: float
    link_seconds: float
    transfer_seconds: float


class _Presets(TypedDict):
    shares: _Shares
    fixed: _Fixed
    gpus: dict[str, dict[str, float]]
    models: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class EngineSize:
    """What an engine costs, and what it holds, on given GPUs; bytes are those of all its GPUs together."""

    cost: StepCost
    transfer: TransferCost
    weights_bytes: int
    cache_bytes_per_token: int
    cache_tokens: int

    def cache_blocks(self, block_tokens: int) -> int:
        """How many blocks of so many tokens the memory beside the weights has room for."""
        return self.cache_tokens // block_tokens


def list_hardware() -> tuple[str, ...]:
    """The names of the GPUs there are presets for."""
    return tuple(_load()["gpus"])


def list_models() -> tuple[str, ...]:
    """The names of the models there are presets for."""
    return tuple(_load()["models"])


def size_engine(
    hardware: str, *, model: str = DEFAULT_MODEL, tensor_parallel_size: int = 1, precision: str | None = None
) -> EngineSize:
    """An engine that serves `model` on `tensor_parallel_size` GPUs of one kind; names in any case.

    `precision` is one of `PRECISIONS`, fp8 where the GPU has it when left out, else bf16. Raises UsageError for what is
    unknown, for a precision the GPU does not have, and when the model does not fit.
    """
    presets = _load()
    hardware, gpu = _find(hardware, presets["gpus"], "hardware")
    model, shape = _find(model, presets["models"], "model")
    if tensor_parallel_size not in _TENSOR_PARALLEL_SIZES:
        sizes = ", ".join(map(str, _TENSOR_PARALLEL_SIZES))
        raise UsageError(f"tensor_parallel_size is {tensor_parallel_size!r}, supported: {sizes}")
    precision = _find_precision(hardware, gpu, precision)
    shares, fixed, gpus = presets["shares"], presets["fixed"], tensor_parallel_size
    weights_bytes = shape["parameters"] * PRECISIONS[precision]
    kv_bytes = shape["layers"] * shape["kv_values"] * (2 if precision == "bf16" else 1)
    room = gpu["memory_bytes"] * shares["cache"] * gpus - weights_bytes
    if room < kv_bytes:
        raise _does_not_fit(hardware, gpu, model, weights_bytes, shares["cache"])
    memory = gpu["memory_bytes_per_second"] * shares["memory"] * gpus
    # Attention is computed in bf16 whatever the weights are.
    attention = gpu["bf16_flops"] * shares["attention"] * gpus
    # Two operations per parameter and token.
    token_seconds = 2 * shape.get("active_parameters", shape["parameters"]) / (
        gpu[f"{precision}_flops"] * shares["compute"] * gpus
    ) + _all_reduce_seconds(shape, gpu, shares, gpus)
    all_reduces = 2 * shape["layers"] * fixed["link_seconds"] if gpus > 1 else 0.0
    return EngineSize(
        cost=StepCost(
            # A batch of any size soon needs every expert, so all weights are read.
            weights=fixed["step_seconds"] + all_reduces + weights_bytes / memory,
            per_prefill_token=token_seconds,
            # Scores and values: two products of the width, two operations each.
            per_prefill_pair=4 * shape["layers"] * shape["attention_width"] / attention,
            per_decoding_sequence=token_seconds + fixed["sequence_seconds"],
            per_draft_token=token_seconds,
            per_context_token=kv_bytes / memory,
        ),
        transfer=TransferCost(
            fixed_seconds=fixed["transfer_seconds"],
            bytes_per_token=kv_bytes,
            bytes_per_second=gpu["network_bytes_per_second"] * shares["network"] * gpus,
        ),
        weights_bytes=round(weights_bytes),
        cache_bytes_per_token=round(kv_bytes),
        cache_tokens=int(room / kv_bytes),
    )


def _all_reduce_seconds(shape: Mapping[str, float], gpu: Mapping[str, float], shares: _Shares, gpus: int) -> float:
    """What exchanging one token's activations takes: two all-reduces per layer, each sending them nearly twice."""
    sent = 2 * shape["layers"] * shape["hidden_size"] * 2 * 2 * (gpus - 1) / gpus
    return sent / (gpu["link_bytes_per_second"] * shares["link"])


def _find_precision(hardware: str, gpu: Mapping[str, float], precision: str | None) -> str:
    has = [name for name in PRECISIONS if f"{name}_flops" in gpu]
    if precision is None:
        return "fp8" if "fp8" in has else "bf16"
    if precision.lower() not in has:
        raise UsageError(
            f"precision {precision!r} is not one that {hardware!r} computes in, supported: {', '.join(has)}"
        )
    return precision.lower()


def _does_not_fit(
    hardware: str, gpu: Mapping[str, float], model: str, weights_bytes: float, share: float
) -> UsageError:
    # A tenth more than the weights, or there would be no room for any request.
    enough = [size for size in _TENSOR_PARALLEL_SIZES if gpu["memory_bytes"] * share * size > 1.1 * weights_bytes]
    advice = f"expected tensor_parallel_size {enough[0]} or more" if enough else "expected larger GPUs"
    fit = [f"the weights of {model!r} ({weights_bytes / 1e9:.0f} GB) do not fit into {hardware!r}"]
    return UsageError(f"{fit[0]} ({gpu['memory_bytes'] / 1e9:.0f} GB each), {advice}")


def _find(name: str, presets: Mapping[str, dict[str, float]], what: str) -> tuple[str, dict[str, float]]:
    for known, preset in presets.items():
        if name.lower() == known:
            return known, preset
    raise UsageError(f"unknown {what} {name!r}, supported: {', '.join(presets)}")


@cache
def _load() -> _Presets:
    text = resources.files("servescope.emulator").joinpath("hardware.toml").read_text(encoding="utf-8")
    return cast(_Presets, tomllib.loads(text))
