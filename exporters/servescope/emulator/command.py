"""`servescope emulate`: an emulated v1 and v2 deployment, their /metrics, and the files a collector needs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from servescope.emulator.control_client import TOKEN_VARIABLE
from servescope.emulator.faults import Fault, Faults, parse_fault
from servescope.emulator.sizing import fit_to_trace
from servescope.emulator.stack import V1, V2, EmulatedStack
from servescope.emulator.traffic_arguments import configure_traffic, plan_traffic
from servescope.emulator.workload import ReplayedTraffic, survey_trace
from servescope.errors import UsageError

_ADDRESS = "127.0.0.1"
_SAID_BY_SCENARIO = (
    "seed", "share_v2", "trace", "preset", "requests_per_second", "trace_speed", "trace_scale", "trace_repeat",
    "trace_jitter",
)  # fmt: skip
# Longer than that no thread can wait.
_MOST_SECONDS = 1e9


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope emulate`."""
    parser.add_argument("--port", type=int, default=0, help="port of all /metrics (default: a free one)")
    parser.add_argument(
        "--address",
        default=_ADDRESS,
        metavar="HOST",
        help="address to listen on; 0.0.0.0 is every one of the machine (default: %(default)s)",
    )
    parser.add_argument(
        "--advertise",
        default="",
        metavar="HOST",
        help="what the lists of targets call this machine, where others reach it by a name (default: the address)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("emulated"),
        help="where servescope.toml and the lists of targets go (default: ./emulated)",
    )
    parser.add_argument(
        "--speed-up",
        type=float,
        default=1.0,
        metavar="X",
        help="let time pass X times as fast: latencies stay as they are, rates per wall-clock second become X times "
        "as high (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same traffic (default: 1)")
    configure_traffic(parser)
    parser.add_argument(
        "--share-v2", type=float, default=0.5, metavar="SHARE", help="share of the traffic v2 gets (default: 0.5)"
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND[:INTENSITY][@DEPLOYMENT[/REPLICA]]",
        help="have this fault from the start, any number of them; `servescope faults kinds` lists what there is",
    )
    parser.add_argument(
        "--scenario",
        type=Path,
        metavar="FILE",
        help="take deployments, traffic, faults and seed from a TOML file, as examples/*.toml are; --fault adds more",
    )
    parser.add_argument("--seconds", type=float, metavar="N", help="end after N seconds (default: with Ctrl-C)")


def run(arguments: argparse.Namespace) -> int:
    """Run the emulator until Ctrl-C, or for the seconds asked for."""
    _require_extra()
    from servescope.emulator import server
    from servescope.emulator.control import Control

    if arguments.seconds is not None and not 0 < arguments.seconds <= _MOST_SECONDS:
        raise UsageError(f"--seconds is {arguments.seconds!r}, expected a number above 0, at most {_MOST_SECONDS:g}")
    stack, scheduled = _build_stack(arguments)
    faults = Faults(stack, scheduled)
    for text in arguments.fault:
        faults.switch_on(parse_fault(text))
    control = Control(faults, token=os.environ.get(TOKEN_VARIABLE) or None)
    running = server.start(
        arguments.directory,
        address=arguments.address,
        advertised=arguments.advertise,
        port=arguments.port,
        speed_up=arguments.speed_up,
        stack=stack,
        add_routes=[control.add_routes],
    )
    try:
        names = ", ".join(deployment.plan.identity.deployment_id for deployment in stack.deployments)
        _say(f"emulated deployments {names} at {running.url}, which lists their /metrics")
        for path in running.file_sd_paths:
            _say(f"targets: {path}")
        _say(f"collect them: servescope collect --config {running.config_path}")
        _say(f"switch faults: servescope faults --url {running.url}")
        running.wait(arguments.seconds)
    finally:
        running.close()
    return 0


def _build_stack(arguments: argparse.Namespace) -> tuple[EmulatedStack, Sequence[Fault]]:
    """The stack that was asked for, and the faults its scenario has for it."""
    if arguments.scenario is not None:
        return _build_scenario(arguments)
    traffic, v1, v2 = plan_traffic(arguments), V1, V2
    if isinstance(traffic, ReplayedTraffic):
        survey = survey_trace(traffic.trace)
        v1, v2 = fit_to_trace(v1, survey), fit_to_trace(v2, survey)
    stack = EmulatedStack(seed=arguments.seed, traffic=traffic, share_v2=arguments.share_v2, v1=v1, v2=v2)
    return stack, ()


def _build_scenario(arguments: argparse.Namespace) -> tuple[EmulatedStack, Sequence[Fault]]:
    from servescope.emulator.scenario import read_scenario

    parser = argparse.ArgumentParser()
    configure(parser)
    usual = vars(parser.parse_args([]))
    for option in _SAID_BY_SCENARIO:
        if usual.get(option) != vars(arguments).get(option):
            raise UsageError(f"--{option.replace('_', '-')} is given beside --scenario, expected it in the file")
    scenario = read_scenario(arguments.scenario)
    return scenario.build(), scenario.faults


def _require_extra() -> None:
    from importlib.util import find_spec

    if find_spec("aiohttp") is None:
        raise UsageError("extra 'emulator' is not installed: pip install 'servescope[emulator]'")


def _say(line: str) -> None:
    sys.stdout.write(f"servescope: {line}\n")
    sys.stdout.flush()
