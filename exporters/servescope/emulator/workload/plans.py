"""The plan of the traffic, as a scenario's `[traffic]` configures it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.presets import PRESETS
from servescope.emulator.workload.traces import TraceSurvey
from servescope.errors import ConfigurationError, UsageError
from servescope.settings.tables import Table, located


@dataclass(frozen=True, slots=True)
class GeneratedTraffic:
    """Conversations of a mix, drawn from the seed."""

    mix: Mix = field(default_factory=Mix)


@dataclass(frozen=True, slots=True)
class ReplayedTraffic:
    """The requests of a recorded trace, Mooncake's JSON Lines or Azure's CSV.

    Time passes `speed` times as fast as recorded. Below a `scale` of 1 each request is kept by that chance, and so less
    of what it would share is in a cache. Above it each is sent that many times, a fraction by chance: a copy is another
    client's, which shares prompts with the requests of its own copy as those of the trace do, and nothing with others.
    All is replayed `repeat` times, with the same prompts. Arrivals come up to `jitter_seconds` (of the trace) later,
    drawn from the seed, but before the next recorded moment; None takes what the trace rounds its times to, if it does.
    """

    trace: Path
    speed: float = 1.0
    scale: float = 1.0
    repeat: int = 1
    jitter_seconds: float | None = None

    def __post_init__(self) -> None:
        self._require(0 < self.speed <= MOST_SPEED, "speed", f"above 0, at most {MOST_SPEED:g}")
        self._require(0 < self.scale <= MOST_SCALE, "scale", f"above 0, at most {MOST_SCALE:g}")
        self._require(1 <= self.repeat <= MOST_REPEAT, "repeat", f"a whole number from 1 to {MOST_REPEAT}")
        jitter = self.jitter_seconds
        self._require(jitter is None or 0 <= jitter <= MOST_JITTER, "jitter_seconds", f"from 0 to {MOST_JITTER:g}")

    def find_jitter(self, survey: TraceSurvey) -> float:
        """By how many seconds of the trace an arrival may come later."""
        return survey.quantum_seconds if self.jitter_seconds is None else self.jitter_seconds

    def _require(self, holds: bool, name: str, expected: str) -> None:
        if not holds:
            raise UsageError(f"{name} is {getattr(self, name)!r}, expected {expected}")


MOST_SPEED: Final = 1e6
MOST_SCALE: Final = 64.0
MOST_REPEAT: Final = 1_000_000
MOST_JITTER: Final = 3600.0

TrafficPlan = GeneratedTraffic | ReplayedTraffic

_MIX_FIELDS = tuple(each.name for each in fields(Mix))
_ARRIVAL_FIELDS = (
    "requests_per_second", "arrivals", "pareto_shape", "day_seconds", "day_amplitude", "day_start_seconds",
    "burst_factor", "burst_seconds", "calm_seconds",
)  # fmt: skip
_REPLAY_FIELDS = tuple(each.name for each in fields(ReplayedTraffic))


def parse_traffic(table: Table, *, folder: Path = Path()) -> TrafficPlan:
    """The plan of a table `[traffic]`; a trace's path is relative to `folder`. Raises ConfigurationError.

    `trace` makes a replay, with `speed`, `scale`, `repeat` and `jitter_seconds`; without it the traffic is generated,
    of a `preset` and any field of a mix. What is in the file of a trace is looked at when the traffic is built.
    """
    table.check_keys(("preset", *_MIX_FIELDS, *_REPLAY_FIELDS))
    with located(f"{table.origin}: {table.path}"):
        return _parse_replay(table, folder) if "trace" in table.values else _parse_mix(table)


def parse_own_mix(table: Table, shared: TrafficPlan) -> Mix:
    """The mix of one deployment's conversations: a preset or the shared one, with what the table has otherwise.

    Arrivals are those of all traffic. Raises ConfigurationError.
    """
    table.check_keys(("preset", *_MIX_FIELDS))
    for name in _ARRIVAL_FIELDS:
        if name in table.values:
            raise table.wrong(name, "none: conversations arrive as [traffic] says, whatever deployment gets them")
    if not isinstance(shared, GeneratedTraffic):
        raise ConfigurationError(
            f"{table.origin}: {table.path}: expected none beside a trace, whose prompts are its own"
        )
    with located(f"{table.origin}: {table.path}"):
        usual = PRESETS[table.choice("preset", sorted(PRESETS), "")] if "preset" in table.values else shared.mix
        own: dict[str, Any] = {
            name: _read_like(table, name, getattr(usual, name)) for name in _MIX_FIELDS if name in table.values
        }
        arrivals: dict[str, Any] = {name: getattr(shared.mix, name) for name in _ARRIVAL_FIELDS}
        return replace(usual, **arrivals, **own)


def _parse_replay(table: Table, folder: Path) -> ReplayedTraffic:
    for name in ("preset", *_MIX_FIELDS):
        if name in table.values:
            raise table.wrong(name, f"none beside a trace, which takes {', '.join(_REPLAY_FIELDS[1:])}")
    samples: Mapping[str, object] = {"speed": 1.0, "scale": 1.0, "repeat": 1, "jitter_seconds": 0.0}
    values = {name: _read_like(table, name, sample) for name, sample in samples.items() if name in table.values}
    return ReplayedTraffic(folder / table.string("trace", None), **values)  # type: ignore[arg-type] # as the samples


def _parse_mix(table: Table) -> GeneratedTraffic:
    for name in _REPLAY_FIELDS:
        if name in table.values:
            raise table.wrong(name, "it beside `trace` only")
    preset = PRESETS[table.choice("preset", sorted(PRESETS), "chat")]
    values = {name: getattr(preset, name) for name in _MIX_FIELDS}
    for name in _MIX_FIELDS:
        if name in table.values:
            values[name] = _read_like(table, name, values[name])
    return GeneratedTraffic(Mix(**values))


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
