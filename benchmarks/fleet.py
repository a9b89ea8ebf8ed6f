"""One collector, pinned to one core, on a simulated fleet of vLLM engines: the CPU it uses and the scrapes it misses.

The fleet is a process of its own and its CPU is not counted. What is measured begins when the figures' window is full.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import _fleet
from benchmarks._pages import SAMPLES
from benchmarks._processes import Measured, collecting

_TARGETS = 1000
_INTERVAL_SECONDS = 15
_WINDOW_SECONDS = 300
_SECONDS = 120
_MOST_CPU = 0.5


@dataclass(frozen=True, slots=True)
class Scraped:
    """The scrapes of a stretch of time; `lateness` is in seconds, behind each target's most punctual one."""

    made: int
    missed: int
    lateness: Sequence[float]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    group = parser.add_argument_group("fleet")
    group.add_argument("--targets", type=int, default=_TARGETS, metavar="N", help="engines (default: %(default)s)")
    group.add_argument("--seconds", type=int, default=_SECONDS, metavar="S", help="measured (default: %(default)s)")
    group.add_argument(
        "--warm-up", type=int, default=_WINDOW_SECONDS + _INTERVAL_SECONDS, metavar="S",
        help="seconds before that; the default, %(default)s, fills the window of the figures",
    )  # fmt: skip
    group.add_argument("--profile", type=Path, metavar="FILE", help="run the collector under cProfile, which slows it")


def run(arguments: argparse.Namespace) -> None:
    """Print what a collector on one core uses for the fleet, and what it missed."""
    cores = sorted(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="servescope-fleet-") as name,
        _fleet.serving(arguments.targets, Path(name) / "targets") as fleet,
    ):
        folder = Path(name)
        settings = {
            "scrape_interval": f"{_INTERVAL_SECONDS}s",
            "evaluation_interval": f"{_INTERVAL_SECONDS}s",
            "window": f"{_WINDOW_SECONDS}s",
        }
        configuration, port = _fleet.write_configuration(fleet, folder, settings)
        with collecting(configuration, port, cores=cores[:1], profile=arguments.profile) as collector:
            time.sleep(arguments.warm_up)
            _measure(collector, fleet, arguments.seconds)
            samples = collector.stored_samples()
        scrapes = len(fleet.scrapes("servescope"))
        _print_store(folder, scrapes * samples / fleet.targets)


def _measure(collector: Measured, fleet: _fleet.Fleet, seconds: int) -> None:
    began, cpu = time.time(), collector.cpu_seconds()
    time.sleep(seconds)
    ended, used = time.time(), collector.cpu_seconds() - cpu
    resident = collector.resident_bytes()
    scraped = _scrapes_within(fleet.arrivals("servescope"), fleet.targets, began, ended)
    own = {(each.name, each.labels.get("outcome", "")): each.value for each in collector.samples()}
    share = used / (ended - began)
    print(f"{fleet.targets} targets of {SAMPLES} samples every {_INTERVAL_SECONDS} s, the collector on one core,")
    print(f"figures over {_WINDOW_SECONDS} s every {_INTERVAL_SECONDS} s, {ended - began:.0f} s measured")
    _say("of the core", f"{share:.1%}", f"at most {_MOST_CPU:.0%}")
    _say("CPU per sample", f"{used / scraped.made / SAMPLES * 1e6:.2f} µs" if scraped.made else "none scraped")
    _say("scrapes made, missed", f"{scraped.made}, {scraped.missed}", "0 missed")
    _say("scrapes since the start, by outcome", _outcomes(own))
    late = np.array(scraped.lateness or [math.nan]) * 1000
    _say("lateness p50, p99, most", ", ".join(f"{value:.0f} ms" for value in np.quantile(late, [0.5, 0.99, 1])))
    _say("resident memory", f"{resident / 1e6:.0f} MB")
    for stage, text in (("evaluation", "an evaluation"), ("store_append", "a write to the store")):
        total, count = (own[f"servescope_{stage}_duration_seconds_{part}", ""] for part in ("sum", "count"))
        _say(f"{text}, mean", f"{total / count * 1000:.0f} ms" if count else "none")


def _scrapes_within(arrivals: Mapping[int, Sequence[float]], targets: int, began: float, ended: float) -> Scraped:
    """What came in a stretch of time, and which beats of the targets passed without a scrape."""
    made, missed = 0, 0
    lateness: list[float] = []
    for target in range(targets):
        within = [moment for moment in arrivals.get(target, ()) if began <= moment < ended]
        # Each target has a beat of its own; how far off it a scrape came is seen from the target's most punctual one.
        first = within[0] if within else began
        beats = [round((moment - first) / _INTERVAL_SECONDS) for moment in within]
        on_beat = [moment - beat * _INTERVAL_SECONDS for moment, beat in zip(within, beats, strict=True)]
        made += len(within)
        missed += max(0, _beats_until(ended - first) - len(set(beats)))
        lateness += [moment - min(on_beat) for moment in on_beat]
    return Scraped(made, missed, lateness)


def _beats_until(seconds: float) -> int:
    """How many scrapes are due from one on for so long; one that may still be late is not."""
    return int(max(0.0, seconds - _INTERVAL_SECONDS / 2) // _INTERVAL_SECONDS) + 1


def _outcomes(own: Mapping[tuple[str, str], float]) -> str:
    by_outcome = Counter(
        {outcome: int(value) for (name, outcome), value in own.items() if name == "servescope_scrapes_total"}
    )
    return ", ".join(f"{count} {outcome}" for outcome, count in by_outcome.most_common() if count) or "none"


def _print_store(folder: Path, samples: float) -> None:
    size = sum(path.stat().st_size for path in folder.glob("servescope.db*"))
    _say("store", f"{size / 1e6:.1f} MB, {size / samples:.2f} bytes a sample" if samples else "empty")


def _say(what: str, value: str, target: str = "") -> None:
    print(f"  {what:<36} {value}" + (f"  ({target})" if target else ""), flush=True)
