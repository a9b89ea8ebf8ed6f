"""`servescope migrate`: configurations moved from v1 to v2, and the drafts of what comes next: the cutover's files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from servescope.errors import UsageError, require_extra
from servescope.migration import command

if TYPE_CHECKING:
    from servescope.migration.advice.advice import Advice
    from servescope.migration.advice.routing_advice import RoutingTrial
    from servescope.migration.moves import Move
    from servescope.migration.report import FileReport
    from servescope.migration.traffic.token_target import TokenTargets
    from servescope.migration.traffic.traffic import ServedTraffic


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.configure(parser)
    advice = parser.add_argument_group("whether what v2 adds pays, from this traffic and from a trace of requests")
    advice.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="serve a trace that names its blocks (Mooncake's JSON Lines) behind v1's and v2's router",
    )  # fmt: skip
    advice.add_argument(
        "--replicas", type=int, metavar="N", help="how many replicas serve it (default: as many as v1 had)"
    )
    advice.add_argument(
        "--cache-tokens", type=int, metavar="N", help="KV cache of a replica (default: what its memory holds)"
    )
    advice.add_argument(
        "--first-token-target", type=float, metavar="SECONDS", help="what 95%% of first tokens have to keep"
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
    _check_advice(arguments)
    numbers = command.measure(arguments)
    # Before any file is written: a trace may be wrong.
    trial = _try_routers(arguments, numbers) if arguments.trace is not None else None
    found = command.migrate(arguments, numbers)
    code = command.show(found, arguments, numbers, _advise(arguments, numbers, trial))
    served = numbers.traffic if numbers is not None else None
    return write_drafts(found, wanted, served) or code if wanted else code


def _check_advice(arguments: argparse.Namespace) -> None:
    from servescope.migration.traffic.measuring import CHOOSING

    is_measured = any(getattr(arguments, name) is not None for name in CHOOSING)
    for name in ("replicas", "cache_tokens"):
        if arguments.trace is None and getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning without --trace")
    if arguments.trace is not None and arguments.replicas is None and not is_measured:
        raise UsageError("--trace needs --replicas beside it: how many replicas serve the traffic")
    if arguments.trace is not None and arguments.back:
        raise UsageError("--trace is there beside --back: v1 has one router only")
    target = arguments.first_token_target
    if target is not None and not is_measured:
        raise UsageError("--first-token-target goes with --deployment, --store or --prometheus")
    if target is not None and not 0 < target < 1e6:
        raise UsageError(f"--first-token-target is {target:g}, expected a number of seconds above 0")


def _try_routers(arguments: argparse.Namespace, numbers: TokenTargets | None) -> RoutingTrial | None:
    """The trace behind both routers; None for a configuration with errors or questions that has no replicas yet.

    Raises UsageError where there is no configuration to try, and for what is no trace.
    """
    from servescope.emulator.routing_trial import try_routers
    from servescope.migration.advice.routing_advice import count_replicas
    from servescope.migration.fields.masking import mask_values
    from servescope.migration.files import read_options

    found = command.migrate(argparse.Namespace(**{**vars(arguments), "write": False}), numbers)
    if len(found) != 1:
        raise UsageError(f"--trace goes with one configuration, found {len(found)}")
    move = found[0].translation
    config = (move.new or move.document).value if move is not None else None
    if found[0].status == "error":
        return None
    if not isinstance(config, dict) or not config.get("trt_llm"):
        if found[0].status == "asked":
            return None
        raise UsageError(f"{found[0].name}: has no trt_llm block, which --trace needs: it describes the replicas")
    llm_config = read_options(arguments, numbers).body.body.get("llm_config") or {}
    return try_routers(
        arguments.trace,
        mask_values(config),  # what is replaced is named
        replicas=arguments.replicas
        if numbers is None or arguments.replicas is not None
        else count_replicas(numbers.traffic),
        cache_tokens=arguments.cache_tokens,
        routing=llm_config.get("b10_routing_config"),
    )


def _advise(
    arguments: argparse.Namespace, numbers: TokenTargets | None, trial: RoutingTrial | None
) -> tuple[Advice, ...]:
    if numbers is None and trial is None:
        return ()
    from servescope.migration.advice.advising import advise

    traffic = numbers.traffic if numbers is not None else None
    return tuple(advise(traffic, trial, arguments.first_token_target))


def write_drafts(found: list[FileReport], wanted: Mapping[str, Path], served: ServedTraffic | None) -> int:
    """Write the drafts that are wanted; raises UsageError, and writes none, where one of them cannot be made."""
    from servescope.migration.moves import read_move

    if len(found) != 1:
        raise UsageError(f"--{next(iter(wanted))} goes with one configuration, found {len(found)}")
    if found[0].status in ("asked", "error"):
        return 0  # the report says why, and so does its exit code
    texts = {path: make_draft(name, read_move(found[0]), served) for name, path in wanted.items()}
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


def make_draft(name: str, move: Move, served: ServedTraffic | None = None) -> str:
    """One of `DRAFTS` for a move; the rehearsal is under the traffic that was served, where it is known."""
    return DRAFTS[name][1](move, served)


def _draft_plan(move: Move, _: ServedTraffic | None) -> str:
    from servescope.judge.drafting import draft_plan

    return draft_plan(move)


def _draft_collector(move: Move, _: ServedTraffic | None) -> str:
    from servescope.judge.drafting import draft_collector

    return draft_collector(move)


def _draft_rehearsal(move: Move, served: ServedTraffic | None) -> str:
    from servescope.emulator.scenario.rehearsing import draft_rehearsal

    return draft_rehearsal(move, served)


def _draft_checklist(move: Move, _: ServedTraffic | None) -> str:
    from servescope.migration.translation.checklist import make_checklist, write_checklist

    return write_checklist(move.model, make_checklist(move.changes, move.llm_config))


DRAFTS: Final[Mapping[str, tuple[str, Callable[[Move, ServedTraffic | None], str]]]] = MappingProxyType({
    "plan": ("draft the plan of the cutover, for `servescope judge`", _draft_plan),
    "collector": ("draft the collector's [[deployments]] and [[traffic_split]]", _draft_collector),
    "emulate": ("draft a scenario of the cutover, for `servescope emulate`", _draft_rehearsal),
    "checklist": ("write what to watch after the move, as Markdown", _draft_checklist),
})  # fmt: skip
"""What is drafted, by option: its help, and what makes it."""
