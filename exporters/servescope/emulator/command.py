"""`servescope emulate`: an emulated v1 and v2 deployment, their /metrics, and the files a collector needs."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from servescope.emulator import serving_options
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.deployment.sizing import fit_to_trace
from servescope.emulator.deployment.stack import V1, V2, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.faults.faults import Fault, Faults, parse_fault
from servescope.emulator.server.control_client import TOKEN_VARIABLE
from servescope.emulator.traffic_arguments import configure_traffic, plan_traffic
from servescope.emulator.workload.plans import ReplayedTraffic, TrafficPlan
from servescope.emulator.workload.traces import survey_trace
from servescope.errors import UsageError, require_extra
from servescope.settings.command_line import configure_listen, read_listen
from servescope.settings.values import format_instant

if TYPE_CHECKING:
    from servescope.emulator.server.server import RunningEmulator

_LISTEN = "127.0.0.1:0"
_STACKS: dict[str, tuple[DeploymentPlan, ...]] = {
    "both": (V1, V2),
    "v1": (V1,),
    "v2": (V2,),
    "v2-disaggregated": (V2_DISAGGREGATED,),
}
_SAID_BY_SCENARIO = (
    "stack", "seed", "share_v2", "preset", "requests_per_second", "trace", "trace_speed", "trace_scale",
    "trace_repeat", "trace_jitter",
)  # fmt: skip
# Longer than that no thread can wait.
_MOST_SECONDS = 1e9


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope emulate`."""
    parser.add_argument(
        "--stack",
        choices=list(_STACKS),
        default="both",
        help="the deployments: v1 with least-load routing, v2 with KV-aware routing, v2 with separate prefill and "
        "decode workers, or v1 and v2 (default: %(default)s)",
    )
    configure_listen(
        parser,
        "address of the OpenAI API and of all /metrics; host 0.0.0.0 for every address of the machine, port 0 for a "
        f"free one (default: {_LISTEN})",
        aliases=("port", "address"),
    )
    parser.add_argument(
        "--advertise",
        default="",
        metavar="HOST",
        help="host in the lists of targets, when scrapers reach this machine by a name (default: that of --listen)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="FOLDER",
        default=Path("emulated"),
        help="folder for servescope.toml and the lists of targets (default: ./emulated)",
    )
    parser.add_argument(
        "--speed-up",
        type=float,
        default=1.0,
        metavar="X",
        help="run X times as fast as the wall clock: latencies on /metrics are the same, rates per wall-clock second "
        "are X times as high (default: 1)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="the same seed gives the same traffic (default: 1)"
    )
    parser.add_argument(
        "--traffic",
        choices=("generated", "none"),
        default="generated",
        help="traffic beside the clients of the API: conversations or a trace, by the options below, or none "
        "(default: %(default)s)",
    )
    configure_traffic(parser)
    parser.add_argument(
        "--share-v2", type=float, metavar="SHARE", help="share of the traffic v2 gets, with v1 beside it (default: 0.5)"
    )
    serving_options.configure(parser)
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="switch this fault on at the start, as KIND[:INTENSITY][@DEPLOYMENT[/REPLICA]]; may be repeated; "
        "`servescope faults kinds` lists the kinds",
    )
    parser.add_argument(
        "--scenario",
        type=Path,
        metavar="FILE",
        help="read deployments, traffic, faults and seed from a TOML file, such as those in examples/scenarios; "
        "--fault adds more",
    )
    parser.add_argument("--seconds", type=float, metavar="SECONDS", help="end after so long (default: at Ctrl-C)")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="PATH",
        help="serve nothing: run the scenario as fast as this machine can, record it into a new store, and end",
    )
    parser.add_argument(
        "--hours", type=float, metavar="N", help="with --record: hours of the scenario to record (default: 24)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the emulator until Ctrl-C, or for `--seconds`."""
    if arguments.record is not None:
        return _record(arguments)
    if arguments.hours is not None:
        raise UsageError("--hours has no meaning without --record")
    require_extra("emulator", "aiohttp")
    from servescope.emulator.server import server
    from servescope.emulator.server.control import Control

    if arguments.seconds is not None and not 0 < arguments.seconds <= _MOST_SECONDS:
        raise UsageError(f"--seconds is {arguments.seconds!r}, expected a number above 0, at most {_MOST_SECONDS:g}")
    stack, scheduled = _build_stack(arguments)
    address, port = read_listen(arguments, default=_LISTEN)
    served = serving_options.prepare(arguments, stack)
    try:
        faults = Faults(stack, scheduled)
        for text in arguments.fault:
            faults.switch_on(parse_fault(text))
        control = Control(faults, token=os.environ.get(TOKEN_VARIABLE) or None)
        running = server.start(
            arguments.directory,
            address=address,
            advertised=arguments.advertise,
            port=port,
            speed_up=arguments.speed_up,
            stack=stack,
            add_routes=[*served.add_routes, control.add_routes],
            pages=served.pages,
        )
        try:
            _announce(running, stack)
            running.wait(arguments.seconds)
        finally:
            running.close()
    finally:
        served.close()
    return 0


def _record(arguments: argparse.Namespace) -> int:
    if arguments.scenario is None:
        raise UsageError("--record goes with --scenario, which says what is recorded")
    _check_said_by_scenario(arguments, "listen", "port", "address", "speed_up", "traffic", "fault", "seconds")
    from servescope.emulator.scenario.recording import record
    from servescope.emulator.scenario.scenario import read_scenario

    began, hours = time.perf_counter(), arguments.hours or 24.0

    def report(recorded: float) -> None:
        left = (time.perf_counter() - began) * (hours / recorded - 1.0)
        sys.stderr.write(f"servescope: {recorded:.4g} h of {hours:.4g} h are recorded, about {left:.0f} s are left\n")

    recording = record(
        read_scenario(arguments.scenario), arguments.record, hours=hours, faces=arguments.metrics, report=report
    )
    took = time.perf_counter() - began
    _say(f"recorded {recording.requests} requests into {recording.path} in {took:.0f} s")
    _say(f"from {format_instant(recording.start_ms)} to {format_instant(recording.end_ms)}")
    return 0


def _build_stack(arguments: argparse.Namespace) -> tuple[EmulatedStack, Sequence[Fault]]:
    if arguments.scenario is None:
        return _build_preset(arguments), ()
    from servescope.emulator.scenario.scenario import read_scenario

    _check_said_by_scenario(arguments)
    scenario = read_scenario(arguments.scenario)
    return scenario.build(quiet=arguments.traffic == "none"), scenario.faults


def _check_said_by_scenario(arguments: argparse.Namespace, *senseless: str) -> None:
    """Refuse options that the scenario's file replaces, and those that have no sense here."""
    parser = argparse.ArgumentParser()
    configure(parser)
    usual = parser.parse_args([])
    for option in (*_SAID_BY_SCENARIO, *senseless):
        if getattr(arguments, option) != getattr(usual, option):
            why = "beside --record" if option in senseless else "beside --scenario, expected it in the file"
            raise UsageError(f"--{option.replace('_', '-')} is given {why}")


def _build_preset(arguments: argparse.Namespace) -> EmulatedStack:
    plans = list(_STACKS[arguments.stack])
    if len(plans) < 2 and arguments.share_v2 is not None:
        raise UsageError(f"--share-v2 goes with --stack both, not with --stack {arguments.stack}")
    share_v2 = 0.5 if arguments.share_v2 is None else arguments.share_v2
    traffic = _plan_traffic(arguments)
    if isinstance(traffic, ReplayedTraffic):
        survey = survey_trace(traffic.trace)
        plans = [fit_to_trace(plan, survey) for plan in plans]
    quiet = arguments.traffic == "none"
    if len(plans) > 1:
        v1, v2 = plans
        return EmulatedStack(seed=arguments.seed, traffic=traffic, share_v2=share_v2, v1=v1, v2=v2, quiet=quiet)
    return EmulatedStack.of([(plans[0], 1.0)], traffic=traffic, seed=arguments.seed, quiet=quiet)


def _plan_traffic(arguments: argparse.Namespace) -> TrafficPlan:
    traffic = plan_traffic(arguments)
    asked = [name for name in ("preset", "requests_per_second", "trace") if getattr(arguments, name) is not None]
    if arguments.traffic == "none" and asked:
        raise UsageError(f"--{asked[0].replace('_', '-')} has no meaning beside --traffic none")
    return traffic


def _announce(running: RunningEmulator, stack: EmulatedStack) -> None:
    names = " and ".join(deployment.plan.identity.deployment_id for deployment in stack.deployments)
    _say(f"emulated {names} at {running.url}, which lists their /metrics")
    _say(f"OpenAI API: {running.url}/v1")
    for path in running.file_sd_paths:
        _say(f"targets: {path}")
    _say(f"collect them: servescope collect --config {running.config_path}")
    _say(f"switch faults: servescope faults --url {running.url}")


def _say(line: str) -> None:
    sys.stdout.write(f"servescope: {line}\n")
    sys.stdout.flush()
