"""`servescope migrate`: configurations moved from v1 to v2, and the drafts of what comes next: the cutover's files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from servescope.errors import UsageError, require_extra
from servescope.migration import command

if TYPE_CHECKING:
    from servescope.migration.moves import Move
    from servescope.migration.report import FileReport
    from servescope.migration.token_target import TokenTargets


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.configure(parser)
    trial = parser.add_argument_group("a trial of both routers, for one configuration")
    trial.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="whether KV-aware routing pays: replay a trace that names its blocks (Mooncake's JSON Lines)",
    )  # fmt: skip
    trial.add_argument("--replicas", type=int, metavar="N", help="how many replicas serve it")
    trial.add_argument(
        "--cache-tokens", type=int, metavar="N", help="KV cache of a replica (default: what its memory holds)"
    )
    drafts = parser.add_argument_group("drafts, of one configuration; a file that is there is not replaced")
    for name, (what, _) in DRAFTS.items():
        drafts.add_argument(f"--{name}", type=Path, metavar="FILE", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Migrate every file, write the drafts; returns the exit code."""
    require_extra("migrate", "yaml")
    wanted = {name: path for name in DRAFTS if (path := getattr(arguments, name)) is not None}
    if wanted and (arguments.check or arguments.back):
        other = "--check, which writes nothing" if arguments.check else "--back"
        raise UsageError(f"--{next(iter(wanted))} is there beside {other}")
    _check_trial(arguments)
    numbers = command.measure(arguments)
    found = command.migrate(arguments, numbers)
    if arguments.trace is not None:
        found = [_try_routers(found, arguments, numbers)]
    code = command.show(found, arguments, numbers)
    return write_drafts(found, wanted) or code if wanted else code


def _check_trial(arguments: argparse.Namespace) -> None:
    for name in ("replicas", "cache_tokens"):
        if arguments.trace is None and getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning without --trace")
    if arguments.trace is not None and arguments.replicas is None:
        raise UsageError("--trace needs --replicas beside it: how many replicas serve the traffic")


def _try_routers(found: list[FileReport], arguments: argparse.Namespace, numbers: TokenTargets | None) -> FileReport:
    """The report with advice on KV-aware routing; raises UsageError where there is no configuration to try."""
    from servescope.emulator.routing_trial import try_routers
    from servescope.migration.files import read_options
    from servescope.migration.routing_advice import advise_routing

    if len(found) != 1:
        raise UsageError(f"--trace goes with one configuration, found {len(found)}")
    (report,) = found
    if report.translation is None or report.status == "error":
        return report  # an error is in the report, and a body of the Management API has no replicas
    llm_config = read_options(arguments, numbers).body.body.get("llm_config") or {}
    trial = try_routers(
        arguments.trace,
        report.translation.document.value,
        replicas=arguments.replicas,
        cache_tokens=arguments.cache_tokens,
        routing=llm_config.get("b10_routing_config"),
    )
    return replace(report, advice=(*report.advice, advise_routing(trial)))


def write_drafts(found: list[FileReport], wanted: Mapping[str, Path]) -> int:
    """Write the drafts that are wanted; raises UsageError, and writes none, where one of them cannot be made."""
    from servescope.migration.moves import read_move

    if len(found) != 1:
        raise UsageError(f"--{next(iter(wanted))} goes with one configuration, found {len(found)}")
    if found[0].status in ("asked", "error"):
        return 0  # the report says why, and so does its exit code
    texts = {path: make_draft(name, read_move(found[0])) for name, path in wanted.items()}
    for path in texts:
        if os.path.lexists(path):
            raise UsageError(f"{path}: is there already; nothing was drafted")
    for path, text in texts.items():
        try:
            _create(path, text)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
        sys.stderr.write(f"servescope: drafted {path}\n")
    return 0


def _create(path: Path, text: str) -> None:
    """Write a new file, whole or not at all."""
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise


def make_draft(name: str, move: Move) -> str:
    """One of `DRAFTS` for a move."""
    return DRAFTS[name][1](move)


def _draft_plan(move: Move) -> str:
    from servescope.judge.drafting import draft_plan

    return draft_plan(move)


def _draft_collector(move: Move) -> str:
    from servescope.judge.drafting import draft_collector

    return draft_collector(move)


def _draft_rehearsal(move: Move) -> str:
    from servescope.emulator.rehearsing import draft_rehearsal

    return draft_rehearsal(move)


def _draft_checklist(move: Move) -> str:
    from servescope.migration.checklist import make_checklist, write_checklist

    return write_checklist(move.model, make_checklist(move.changes, move.llm_config))


DRAFTS: Final[Mapping[str, tuple[str, Callable[[Move], str]]]] = MappingProxyType({
    "plan": ("draft the plan of the cutover, for `servescope judge`", _draft_plan),
    "collector": ("draft the collector's [[deployments]] and [[traffic_split]]", _draft_collector),
    "emulate": ("draft a scenario of the cutover, for `servescope emulate`", _draft_rehearsal),
    "checklist": ("write what to watch after the move, as Markdown", _draft_checklist),
})  # fmt: skip
"""What is drafted, by option: its help, and what makes it."""
