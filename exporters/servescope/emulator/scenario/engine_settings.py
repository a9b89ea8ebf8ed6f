"""An engine as a scenario describes it: the documented `runtime`, `speculative_config`, and what it runs on."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from servescope.emulator.engine.calibration import Calibration, calibrate
from servescope.emulator.engine.costs import TransferCost
from servescope.emulator.engine.hardware import DEFAULT_MODEL, EngineSize, size_engine
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.engine.speculation import Speculation, parse_speculation
from servescope.settings.tables import Setting, Table, located

ENGINE_SETTINGS: Final = (
    Setting("hardware", ""),
    Setting("model", DEFAULT_MODEL),
    Setting("precision", ""),
    Setting("calibration", ""),
    Setting("max_queue", "4"),
    Setting("cache_blocks", "3000"),
    Setting("block_tokens", "32"),
    Setting("error_share", "0.002"),
    Setting("pace_spread", "0"),
    Setting("cold_slowdown", "0"),
    Setting("cold_decay", '"20m"'),
    Setting("acceptance", ""),
    Setting("acceptance_drift", "0"),
)
"""The keys of `[deployments.engine]`."""

RUNTIME_SETTINGS: Final = (
    Setting("max_seq_len", "8192"),
    Setting("max_batch_size", "256"),
    Setting("max_num_tokens", "8192"),
    Setting("tensor_parallel_size", "1"),
    Setting("enable_chunked_prefill", "true"),
)
"""The keys of `[deployments.runtime]`, with the documented names, and defaults where there are documented ones."""

_logger = logging.getLogger(__name__)

# Off by more than this, a step's time says little of the engine it was measured on.
_POOR_FIT = 0.1

# The documented ranges.
_MOST_SEQUENCE_TOKENS = 1_048_576
_MOST_SEQUENCES = 2048
_BATCH_TOKENS = 65, 131_072


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """An engine's parameters, what a KV transfer from it costs, and how well its cost fits, if it was calibrated."""

    parameters: EngineParameters
    transfer: TransferCost
    calibration: Calibration | None


def parse_engine(
    engine: Table, runtime: Table, *, directory: Path, speculation: Mapping[str, object] | None = None
) -> EngineSettings:
    """The engine these tables describe; both were checked against the settings above.

    With `hardware` cost and cache follow from it, with `calibration`, a file relative to `directory`, the cost does
    from its points; with neither they are those of the demo's engine. `speculation` is a `speculative_config`, or v1's
    `speculator`. Raises ConfigurationError, which says where.
    """
    size = _size(engine, runtime)
    calibration = _calibration(engine, directory)
    plain = EngineParameters()
    block_tokens = engine.whole_number("block_tokens", plain.block_tokens)
    cost = calibration.cost if calibration else size.cost if size else plain.cost
    cache_blocks = size.cache_blocks(block_tokens) if size else plain.cache_blocks
    if cache_blocks < 1 and "cache_blocks" not in engine.values:
        raise engine.wrong(
            "block_tokens", f"blocks that fit into the cache of {size.cache_tokens if size else 0} tokens"
        )
    least, most = _BATCH_TOKENS
    with located(f"{runtime.origin}: {runtime.path}"):
        parameters = EngineParameters(
            max_batch_size=_bounded(runtime, "max_batch_size", 256, 1, _MOST_SEQUENCES),
            max_num_tokens=_bounded(runtime, "max_num_tokens", 8192, least, most),
            max_seq_len=_bounded(runtime, "max_seq_len", plain.max_seq_len, 1, _MOST_SEQUENCE_TOKENS),
            max_queue=_bounded(engine, "max_queue", plain.max_queue, 0, 1_000_000),
            chunked_prefill=runtime.boolean("enable_chunked_prefill", default=True),
            block_tokens=block_tokens,
            cache_blocks=engine.whole_number("cache_blocks", cache_blocks or 1),
            error_share=_share(engine, "error_share", plain.error_share),
            weights_bytes=size.weights_bytes if size else plain.weights_bytes,
            cache_bytes_per_token=size.cache_bytes_per_token if size else plain.cache_bytes_per_token,
            cost=cost,
            speculation=_speculation(engine, speculation),
            pace_spread=_number(engine, "pace_spread", 1.0),
            cold_slowdown=_number(engine, "cold_slowdown", 100.0),
            cold_decay_seconds=engine.duration("cold_decay", round(plain.cold_decay_seconds * 1000)) / 1000,
        )
    return EngineSettings(parameters, size.transfer if size else TransferCost(), calibration)


def _size(engine: Table, runtime: Table) -> EngineSize | None:
    if not engine.string("hardware", ""):
        for table, key in ((engine, "model"), (engine, "precision"), (runtime, "tensor_parallel_size")):
            if key in table.values:
                raise table.wrong(key, f"it only beside {engine.key('hardware')}, which it says nothing without")
        return None
    with located(f"{engine.origin}: {engine.path}"):
        return size_engine(
            engine.string("hardware", None),
            model=engine.string("model", DEFAULT_MODEL),
            tensor_parallel_size=_bounded(runtime, "tensor_parallel_size", 1, 1, 8),
            precision=engine.string("precision", None) if "precision" in engine.values else None,
        )


def _calibration(engine: Table, directory: Path) -> Calibration | None:
    if "calibration" not in engine.values:
        return None
    with located(f"{engine.origin}: {engine.key('calibration')}"):
        found = calibrate(directory / engine.string("calibration", None))
    level = logging.WARNING if found.residual_ratio > _POOR_FIT else logging.INFO
    _logger.log(level, "%s: %s: %s", engine.origin, engine.key("calibration"), found.describe())
    return found


def _speculation(engine: Table, speculation: Mapping[str, object] | None) -> Speculation | None:
    acceptance = engine.values.get("acceptance")
    if speculation is None:
        for key in ("acceptance", "acceptance_drift"):
            if key in engine.values:
                raise engine.wrong(key, "it only beside a speculative_config")
        return None
    drift = _share(engine, "acceptance_drift", 0.0)
    if drift == 1:
        raise engine.wrong("acceptance_drift", "a share of 0 or more and below 1")
    if acceptance is None:
        return replace(_parsed(engine, speculation, None), drift_per_hour=drift)
    numbers = acceptance if isinstance(acceptance, list) else []
    if not numbers or not all(isinstance(each, int | float) and 0 <= each <= 1 for each in numbers):
        raise engine.wrong("acceptance", "a list of chances from 0 to 1, one for each position of the draft")
    return replace(_parsed(engine, speculation, [float(each) for each in numbers]), drift_per_hour=drift)


def _parsed(engine: Table, speculation: Mapping[str, object], acceptance: list[float] | None) -> Speculation:
    with located(f"{engine.origin}: {engine.path.rpartition('.')[0]}"):
        return parse_speculation(speculation, acceptance=acceptance)


def _bounded(table: Table, key: str, default: int, least: int, most: int) -> int:
    value = table.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise table.wrong(key, f"a whole number from {least} to {most}")
    return value


def _number(table: Table, key: str, most: float) -> float:
    value = table.values.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise table.wrong(key, f"a number from 0 to {most:g}")
    return float(value)


def _share(table: Table, key: str, default: float) -> float:
    value = table.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 or math.isnan(value):
        raise table.wrong(key, "a share from 0 to 1")
    return float(value)
