"""The tables of `docs/scale.md`: what was measured of each system, and what more targets would take."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks._cluster import Part, Span, System, quantiles
from tests.support.markers import Markers

PAGE: Final = Path(__file__).parent.parent / "docs" / "scale.md"
MARKERS: Final = Markers(
    "<!-- cluster: written by `python -m benchmarks cluster --cluster-write`, do not edit -->",
    "<!-- end of cluster -->",
)
_TARGETS: Final = (10_000, 100_000)
_INTERVAL_SECONDS: Final = 15
_HOLDING: Final = ("collector", "receiver", "storages")
_SPREAD: Final = ("translators", "agents", "vmagents")
_BUSY: Final = 0.7
"""How much of a core one program is to use at most: what it has to catch up with after a pause needs the rest."""


def render(span: Span, systems: Sequence[System]) -> str:
    """The tables, the first system being what the others are compared with."""
    cores = len(os.sched_getaffinity(0))
    lines = [
        f"Simulated engines, on {cores} cores, of which their own server used some; one system after the other, "
        f"{span.seconds} s each after {span.warm_up} s.",
        "Rules and figures over 5 minutes, every 15 s, when as much was there as had been scraped by then.",
        f"A sample is one of the contract, of which an engine has {systems[0].series / systems[0].targets:.0f}; "
        "one that is scraped twice, or kept twice, counts once.",
        "",
        *_measured(systems),
        "",
        f"From these costs, for targets scraped every {_INTERVAL_SECONDS} s:",
        "",
        *_computed(systems),
    ]
    return "\n".join(lines) + "\n"


def _measured(systems: Sequence[System]) -> Iterator[str]:
    one = systems[0]
    own = one.parts[0].cpu_seconds / one.samples
    for system in systems:
        yield f"- {system.name}: {system.targets:,} engines, each scraped every {system.interval} s"
    yield ""
    yield "| | CPU a sample | beside one collector | memory | a series |"
    yield "|---|---:|---:|---:|---:|"
    for system in systems:
        whole = sum(part.cpu_seconds for part in system.parts) / system.samples
        memory = sum(part.resident_bytes for part in system.parts)
        yield _row(system.name, whole, whole / own, memory, system.series)
        for part in system.parts if len(system.parts) > 1 else ():
            cpu = system.cpu_per_sample(part)
            yield _row(f"· {part.programs} {part.name}", cpu, cpu / own, part.resident_bytes, system.series)
    yield ""
    yield "| | bytes a sample |"
    yield "|---|---:|"
    for system in systems:
        for what, size in (*system.wire.items(), *system.disk.items()):
            yield f"| {system.name}: {what} | {size:.1f} |"
    yield ""
    yield "| | from scrape to queryable, median | 99 % | the console's page of the fleet |"
    yield "|---|---:|---:|---:|"
    for system in systems:
        median, most = quantiles(system.lag_seconds)
        shown = f"{most:.2f} s" if len(system.lag_seconds) > 1 else ""
        yield f"| {system.name} | {median:.2f} s | {shown} | {system.paint_seconds:.2f} s, {system.painted} shown |"


def _row(name: str, seconds: float, ratio: float, memory: float, series: float) -> str:
    return (
        f"| {name} | {seconds * 1e6:.2f} µs | {ratio:.1f} × | {memory / 1e6:,.0f} MB | {memory / series:,.0f} bytes |"
    )


def _computed(systems: Sequence[System]) -> Iterator[str]:
    yield "| | " + " | ".join(f"{number:,} targets" for number in _TARGETS) + " |"
    yield "|---|" + "---:|" * len(_TARGETS)
    held = systems[0].series / systems[0].targets
    rates = [number * held / _INTERVAL_SECONDS for number in _TARGETS]
    yield _cells("samples a second", (f"{rate / 1e6:.1f} M" for rate in rates))
    for system in systems:
        for part in system.parts:
            cores = [system.cpu_per_sample(part) * rate for rate in rates]
            yield _cells(f"{system.name}: {part.name}", (_programs(part, each) for each in cores))
            # Between scrapes a translator and an agent remember little; what holds the series grows with them.
            if part.name in _HOLDING:
                memory = part.resident_bytes / system.series * held
                yield _cells(f"{system.name}: memory of {part.name}", (_gigabytes(memory * n) for n in _TARGETS))
        for what, size in system.wire.items():
            yield _cells(f"{system.name}: {what}", (f"{size * rate * 8 / 1e6:,.0f} Mbit/s" for rate in rates))


def _programs(part: Part, cores: float) -> str:
    if part.name not in _SPREAD:
        return f"{cores:.1f} cores"
    return f"{cores:.1f} cores, {max(part.programs, math.ceil(cores / _BUSY))} programs"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.0f} GB"


def _cells(name: str, values: Iterator[str]) -> str:
    return f"| {name} | {' | '.join(values)} |"
