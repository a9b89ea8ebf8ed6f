"""What the emulator makes of the hardware that a `config.yaml` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from servescope.emulator.deployment.sizing import WorkerSettings
from servescope.emulator.engine.hardware import DEFAULT_MODEL, PRECISIONS, list_hardware, list_models, size_engine
from servescope.errors import UsageError


class ConfiguredHardware(NamedTuple):
    """The emulator's `hardware`, `model` and `precision` by name, and what they are; or nothing, and why."""

    names: Mapping[str, Any]
    text: str


class ConfiguredWorkers(NamedTuple):
    """The workers nearest to a configuration, and what they are in words, with what they differ in."""

    settings: WorkerSettings
    text: str


def find_hardware(config: Mapping[str, Any], tensor_parallel_size: int) -> ConfiguredHardware:
    """The emulator's names for what a `config.yaml` with a `trt_llm` block runs on, which was found to be valid."""
    build = config["trt_llm"].get("build") or {}
    kind = str((config.get("resources") or {}).get("accelerator") or "").partition(":")[0]
    repository = str((build.get("checkpoint_repository") or {}).get("repo") or "")
    model = next((each for each in list_models() if each in repository.lower()), "")
    if kind.lower() not in list_hardware():
        return ConfiguredHardware({}, f"The emulator has no GPU {kind or '(none is in the file)'}.")
    if not model:
        return ConfiguredHardware({}, f"The emulator has no model like {repository or '(none is in the file)'}.")
    quantization = str(build.get("quantization_type") or "no_quant")
    precision = next((each for each in PRECISIONS if quantization.startswith(each)), "bf16")
    try:
        size_engine(kind, model=model, tensor_parallel_size=tensor_parallel_size, precision=precision)
    except UsageError as error:
        return ConfiguredHardware({}, f"{error}.")
    names = {"hardware": kind.lower(), "model": model, "precision": precision}
    return ConfiguredHardware(names, f"{quantization} on {kind}, of {repository}.")


def read_workers(config: Mapping[str, Any]) -> ConfiguredWorkers:
    """The workers of a `config.yaml` of either stack; where the emulator has not got them, its usual ones."""
    sizes = {**(config["trt_llm"].get("build") or {}), **(config["trt_llm"].get("runtime") or {})}
    limits = {name: sizes[name] for name in ("max_batch_size", "max_num_tokens") if sizes.get(name) is not None}
    gpus = sizes.get("tensor_parallel_size") or sizes.get("tensor_parallel_count") or 1
    found = find_hardware(config, gpus)
    if found.names:
        settings = WorkerSettings(**found.names, tensor_parallel_size=gpus, **limits)
        return ConfiguredWorkers(settings, f"{gpus} x {settings.hardware} with {settings.model}")
    usual = WorkerSettings(**limits)
    instead = f"{usual.tensor_parallel_size} x {usual.hardware} with {DEFAULT_MODEL}"
    return ConfiguredWorkers(usual, f"{instead} in place of yours ({found.text.removesuffix('.')})")
