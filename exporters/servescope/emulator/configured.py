"""What the emulator makes of the hardware that a `config.yaml` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from servescope.emulator.hardware import DEFAULT_MODEL, PRECISIONS, list_hardware, list_models, size_engine
from servescope.emulator.sizing import WorkerSettings
from servescope.errors import UsageError


class ConfiguredWorkers(NamedTuple):
    """The workers nearest to a configuration, and what they are in words, with what they differ in."""

    settings: WorkerSettings
    text: str


def read_workers(config: Mapping[str, Any]) -> ConfiguredWorkers:
    """The workers of a `config.yaml` with a `trt_llm` block of either stack, which was found to be valid.

    Where the emulator does not have its GPU or its model, or the model does not fit, they are the emulator's usual
    ones, and the text says so.
    """
    trt_llm = config.get("trt_llm") or {}
    build, runtime = trt_llm.get("build") or {}, trt_llm.get("runtime") or {}
    sizes = {**build, **runtime}
    limits = {name: sizes[name] for name in ("max_batch_size", "max_num_tokens") if sizes.get(name) is not None}
    gpus = sizes.get("tensor_parallel_size") or sizes.get("tensor_parallel_count") or 1
    kind = str((config.get("resources") or {}).get("accelerator") or "").partition(":")[0]
    repository = str((build.get("checkpoint_repository") or {}).get("repo") or "")
    model = next((each for each in list_models() if each in repository.lower()), "")
    quantization = str(build.get("quantization_type") or "no_quant")
    precision = next((each for each in PRECISIONS if quantization.startswith(each)), "bf16")
    usual = WorkerSettings(**limits)
    instead = f"{usual.tensor_parallel_size} x {usual.hardware} with {DEFAULT_MODEL}"
    if kind.lower() not in list_hardware():
        return ConfiguredWorkers(usual, f"{instead} (the emulator has no GPU {kind or 'where none is configured'})")
    if not model:
        known = ", ".join(list_models())
        return ConfiguredWorkers(usual, f"{instead} (the emulator has no model like {repository}, only {known})")
    try:
        size_engine(kind, model=model, tensor_parallel_size=gpus, precision=precision)
    except UsageError as error:
        return ConfiguredWorkers(usual, f"{instead} ({error})")
    found = WorkerSettings(
        hardware=kind.lower(), model=model, tensor_parallel_size=gpus, precision=precision, **limits
    )  # fmt: skip
    return ConfiguredWorkers(found, f"{gpus} x {found.hardware} with {model} in {precision}")
