"""The verbs of `servescope customers`: each takes its arguments, prints, and returns an exit code."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from servescope.customers.config import find_policy, read_policies, read_usable_policies
from servescope.customers.documents import statements
from servescope.customers.documents.checking import check
from servescope.customers.documents.documents import document
from servescope.customers.documents.probe import send_probe
from servescope.customers.lanes.cursors import CursorFile, LaneId, find_cursors, lanes_of
from servescope.customers.running import serve_customers
from servescope.errors import UsageError
from servescope.settings.clock import program_clock
from servescope.settings.json_text import print_json
from servescope.store.spans import read_instant


def run(arguments: argparse.Namespace) -> int:
    """Deliver until SIGINT or SIGTERM."""
    if arguments.at is not None:
        raise UsageError("--at does not go with `run`, which delivers the present")
    return serve_customers(arguments, _cursors_of(arguments))


def status(arguments: argparse.Namespace) -> int:
    """Print the status of every destination of the configuration, and of those that are no longer in it."""
    with CursorFile(_cursors_of(arguments)) as cursors:
        policies = read_policies(arguments.config, cursors.removed())
        configured = [lane for policy in policies for lane in lanes_of(policy)]
        others = [lane for lane in cursors.lanes() if lane not in configured]
        statuses = statements.read_statuses(cursors, [*configured, *others], program_clock().now_ms())
    if arguments.format == "json":
        print_json([each.to_json() for each in statuses])
    else:
        sys.stdout.write(statements.describe_statuses(statuses))
    return 0


def statement(arguments: argparse.Namespace) -> int:
    """Print what a customer received of a span."""
    now_ms = program_clock().now_ms()
    start_ms = read_instant("--from", arguments.from_, now_ms)
    end_ms = read_instant("--to", arguments.to, now_ms)
    if start_ms >= end_ms:
        raise UsageError(f"--from {arguments.from_} is not before --to {arguments.to}")
    with CursorFile(_cursors_of(arguments)) as cursors:
        policy = find_policy(read_policies(arguments.config, cursors.removed()), arguments.customer)
        lanes = {*lanes_of(policy), *(lane for lane in cursors.lanes() if lane.customer == policy.name)}
        found = [statements.read_statement(cursors, lane, start_ms, end_ms) for lane in sorted(lanes, key=_by_name)]
    if arguments.format == "json":
        print_json([each.to_json() for each in found])
    else:
        sys.stdout.write("".join(map(statements.describe_statement, found)))
    return 0


def remove(arguments: argparse.Namespace) -> int:
    """End the export to a customer, and delete all of it but its table in the configuration."""
    name = arguments.customer
    with CursorFile(_cursors_of(arguments)) as cursors:
        removed = cursors.removed()
        if arguments.undo:
            if name not in removed:
                raise UsageError(f"customer {name!r} was not removed")
            cursors.readmit(name)
            sys.stdout.write(f"customer {name}: admitted again; its lanes begin anew\n")
            return 0
        policies, problems = read_usable_policies(arguments.config)
        if name in problems and name not in removed:
            raise problems[name]  # the table names the key that is to be deleted
        policy = next((each for each in policies if each.name == name), None)
        known = {*(each.name for each in policies), *removed, *(lane.customer for lane in cursors.lanes())}
        if name not in known:
            raise UsageError(f"no customer {name!r}, known: {', '.join(sorted(known)) or 'none'}")
        keys = [Path(policy.key.path)] if policy is not None and policy.key is not None else []
        removal = statements.remove_customer(cursors, name, keys, program_clock().now_ms())
    sys.stdout.write(removal.describe())
    if policy is not None:
        sys.stdout.write(f"Now delete the table of {name} from {arguments.config}.\n")
    return 0


def test(arguments: argparse.Namespace) -> int:
    """Send a probe to the destinations of a customer; 1 when one is not accepted."""
    policy = find_policy(read_policies(arguments.config), arguments.customer)
    chosen = [push for push in policy.push if arguments.destination in (None, push.name)]
    if not chosen:
        known = ", ".join(push.name for push in policy.push) or "none: it has only a page that it scrapes"
        raise UsageError(
            f"customer {policy.name!r} has no destination {arguments.destination or 'to push to'!r}, known: {known}"
        )
    accepted = True
    for push in chosen:
        outcome = asyncio.run(send_probe(policy, push, program_clock().now_ms()))
        sys.stdout.write(outcome.describe(policy.most_age_ms))
        accepted &= outcome.is_accepted
    return 0 if accepted else 1


def _cursors_of(arguments: argparse.Namespace) -> Path:
    """The file of cursors: as it is given, or beside the configuration."""
    given: Path | None = arguments.cursors
    return given if given is not None else find_cursors(Path(arguments.config))


def _by_name(lane: LaneId) -> tuple[str, str]:
    return lane.customer, lane.destination


VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = MappingProxyType(
    {
        "run": run,
        "check": check,
        "document": document,
        "test": test,
        "status": status,
        "statement": statement,
        "remove": remove,
    }
)
"""Each verb by its name."""
