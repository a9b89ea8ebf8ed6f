"""What traffic there shall be, as a scenario's `[traffic]` says it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from servescope.collector.tables import Table
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.presets import PRESETS
from servescope.errors import ConfigurationError, UsageError


@dataclass(frozen=True, slots=True)
class GeneratedTraffic:
    """Conversations of a mix, drawn from the seed."""

    mix: Mix = field(default_factory=Mix)


TrafficPlan = GeneratedTraffic

_MIX_FIELDS = tuple(each.name for each in fields(Mix))


def parse_traffic(table: Table, *, folder: Path = Path()) -> TrafficPlan:
    """The plan of a table `[traffic]`; a trace's path is relative to `folder`. Raises ConfigurationError.

    `preset` and any field of a mix make generated traffic.
    """
    table.check_keys(("preset", *_MIX_FIELDS))
    return _parse_mix(table)


def _parse_mix(table: Table) -> GeneratedTraffic:
    preset = PRESETS[table.choice("preset", sorted(PRESETS), "chat")]
    values = {name: getattr(preset, name) for name in _MIX_FIELDS}
    for name in _MIX_FIELDS:
        if name in table.values:
            values[name] = _read_like(table, name, values[name])
    try:
        return GeneratedTraffic(Mix(**values))
    except UsageError as error:
        raise ConfigurationError(f"{table.origin}: {table.path}: {error}") from None


def _read_like(table: Table, key: str, sample: object) -> object:
    """The value at a key, which must be of the kind of `sample`."""
    value = table.values[key]
    if isinstance(sample, tuple):
        if not isinstance(value, list) or len(value) != len(sample) or not all(_is_whole(each) for each in value):
            raise table.wrong(key, "a range of two whole numbers, as [400, 1600]")
        return tuple(value)
    if isinstance(sample, bool):
        return table.boolean(key, default=sample)
    if isinstance(sample, str):
        return table.string(key, None)
    if isinstance(sample, int):
        if not _is_whole(value):
            raise table.wrong(key, "a whole number")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise table.wrong(key, "a number")
    return float(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
