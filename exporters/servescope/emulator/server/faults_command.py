"""`servescope faults`: the switches of a running emulator, on the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from servescope.emulator.faults.faults import parse_fault
from servescope.emulator.faults.kinds import KINDS, describe_kind
from servescope.emulator.faults.truths import Truth
from servescope.emulator.server.control_client import EMULATOR_VARIABLE, TOKEN_VARIABLE, ControlClient
from servescope.errors import UsageError

_WIDTH = 22


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope faults`."""
    parser.add_argument(
        "action", nargs="?", choices=("list", "kinds", "on", "off"), default="list",
        help="list the faults that are on (default), list every kind, switch faults on, switch faults off",
    )  # fmt: skip
    parser.add_argument(
        "fault", nargs="*", metavar="FAULT",
        help="on: KIND[:INTENSITY][@DEPLOYMENT[/REPLICA]]; off: its number, or 'all'",
    )  # fmt: skip
    parser.add_argument(
        "--url", metavar="URL", default=os.environ.get(EMULATOR_VARIABLE, ""),
        help=f"URL of the emulator, as `servescope emulate` prints it (default: ${EMULATOR_VARIABLE}); its token, if "
        f"it has one, is read from ${TOKEN_VARIABLE}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, metavar="SECONDS", help="on: switch it off again after so long by the emulator's clock"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="format of the output (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Send the request and print the answer."""
    if arguments.action in ("list", "kinds") and arguments.fault:
        raise UsageError(f"{arguments.fault[0]!r} is one word too many for `faults {arguments.action}`")
    if arguments.seconds is not None and arguments.action != "on":
        raise UsageError("--seconds goes with `faults on`")
    if arguments.action == "kinds":
        _print(arguments, list(_describe_kinds()), [describe_kind(kind) for kind in KINDS.values()])
        return 0
    if not arguments.url:
        raise UsageError(f"no emulator URL is given, expected --url URL or {EMULATOR_VARIABLE}")
    client = ControlClient(arguments.url, token=os.environ.get(TOKEN_VARIABLE))
    if arguments.action == "on":
        _switch_on(client, arguments)
    elif arguments.action == "off":
        _switch_off(client, arguments)
    else:
        found = client.read()
        _print(arguments, list(_describe_list(found)), {name: found[name] for name in ("active", "scheduled")})
    return 0


def _switch_on(client: ControlClient, arguments: argparse.Namespace) -> None:
    if not arguments.fault:
        raise UsageError("which fault? name one as KIND[:INTENSITY][@DEPLOYMENT[/REPLICA]]; `faults kinds` lists them")
    # All are checked before one is switched on.
    faults = [parse_fault(text) for text in arguments.fault]
    switched = [
        client.switch_on(
            fault.kind.name,
            None if fault.kind.intensity is None else fault.intensity,
            deployment=fault.deployment,
            replica=fault.replica,
            seconds=arguments.seconds,
        )
        for fault in faults
    ]
    _print(arguments, [line for each in switched for line in _describe_active(each)], switched)


def _switch_off(client: ControlClient, arguments: argparse.Namespace) -> None:
    if not arguments.fault:
        raise UsageError("which fault? give its number, as `faults list` shows, or 'all'")
    if arguments.fault == ["all"]:
        ended = client.switch_all_off()
    else:
        for word in arguments.fault:
            if not (word.isascii() and word.isdigit() and len(word) <= 9):
                raise UsageError(
                    f"{word!r} is not the number of a fault, expected one as `faults list` shows, or 'all'"
                )
        ended = [client.switch_off(int(word)) for word in arguments.fault]
    _print(arguments, [f"off: {_spell(each)}" for each in ended] or ["none was on"], ended)


def _describe_list(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["active"]:
        yield "no fault is on; `servescope faults kinds` lists what there is"
    for each in found["active"]:
        yield from _describe_active(each)
    for each in found["scheduled"]:
        end = "" if each["end_seconds"] is None else f" to {each['end_seconds']:g} s"
        yield f"scheduled: {_spell(each)}, from {each['start_seconds']:g} s{end}; now {found['now_seconds']:.0f} s"


def _describe_active(each: Mapping[str, Any]) -> Iterator[str]:
    affected = f" (in {', '.join(each['affects'])})" if each.get("affects") else ""
    yield f"{each['id']}: {_spell(each)}{affected}, on for {each['on_for_seconds']:.0f} s"
    yield f"   {each['summary']}"
    yield from (f"   truth: {Truth(**truth).describe()}" for truth in each["truths"])


def _spell(each: Mapping[str, Any]) -> str:
    intensity = "" if each["intensity"] is None else f":{each['intensity']:g}"
    place = f"@{each['deployment']}" if each["deployment"] else ""
    return f"{each['kind']}{intensity}{place}{'/' + each['replica'] if each['replica'] else ''}"


def _describe_kinds() -> Iterator[str]:
    for kind in KINDS.values():
        yield f"{kind.name:<{_WIDTH}} {kind.summary}"
        if kind.intensity is not None:
            each = kind.intensity
            yield f"{'':<{_WIDTH}} :{each.default:g} ({each.lowest:g} … {each.highest:g}) {each.meaning}"


def _print(arguments: argparse.Namespace, lines: list[str], value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) if arguments.format == "json" else "\n".join(lines)
    sys.stdout.write(f"{text}\n")
