"""The arguments of `servescope emulate` for its traffic."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic, ReplayedTraffic, TrafficPlan
from servescope.emulator.workload.presets import PRESETS, find_preset
from servescope.errors import UsageError

_OF_A_TRACE: Final = {
    "trace_speed": "speed",
    "trace_scale": "scale",
    "trace_repeat": "repeat",
    "trace_jitter": "jitter_seconds",
}
_OF_A_MIX: Final = ("preset", "requests_per_second")


def configure_traffic(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--preset", metavar="NAME", help=f"kind of traffic: {', '.join(sorted(PRESETS))} (default: chat)"
    )
    parser.add_argument(
        "--requests-per-second",
        type=float,
        metavar="N",
        help=f"average rate over all deployments (default: {Mix().requests_per_second:g})",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="replay a Mooncake or Azure trace; engines are sized for it"
    )
    parser.add_argument("--trace-speed", type=float, metavar="X", help="arrivals X times as fast (default: 1)")
    parser.add_argument("--trace-scale", type=float, metavar="X", help="X times as many requests (default: 1)")
    parser.add_argument("--trace-repeat", type=int, metavar="N", help="replay it N times (default: 1)")
    parser.add_argument(
        "--trace-jitter", type=float, metavar="SECONDS", help="spread arrivals (default: what the trace rounds to)"
    )


def plan_traffic(arguments: argparse.Namespace) -> TrafficPlan:
    """The traffic those arguments ask for; raises UsageError for arguments that do not go together."""
    if arguments.trace is None:
        _refuse(arguments, _OF_A_TRACE, "has no meaning without --trace")
        mix = find_preset("chat" if arguments.preset is None else arguments.preset)
        if arguments.requests_per_second is not None:
            mix = replace(mix, requests_per_second=arguments.requests_per_second)
        return GeneratedTraffic(mix)
    _refuse(arguments, _OF_A_MIX, "has no meaning beside --trace")
    values = {field: getattr(arguments, name) for name, field in _OF_A_TRACE.items()}
    return ReplayedTraffic(arguments.trace, **{name: value for name, value in values.items() if value is not None})


def _refuse(arguments: argparse.Namespace, names: Iterable[str], why: str) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} {why}")
