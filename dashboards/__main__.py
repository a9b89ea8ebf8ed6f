"""`python -m dashboards` writes `dashboards/generated/`; with `--check` it only says what is out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from dashboards.board import Board, board_uid, render_board
from dashboards.boards import cache, customers, cutover, fleet, health, phases, requests, scale, speculation
from dashboards.engines import keep_filled
from dashboards.options import DEFAULTS, Options, read_options
from dashboards.packaging import is_current, package
from dashboards.watched import watch
from servescope.errors import ServescopeError, UsageError
from servescope.generating.dashboards import configure
from servescope.settings.command_line import CommandParser, report_error

GENERATED = Path(__file__).parent / "generated"
BOARDS: tuple[Callable[[Options], Board], ...] = tuple(
    watch(module.make) for module in (fleet, cutover, requests, speculation, cache, scale, phases, health, customers)
)


def render(options: Options = DEFAULTS, format_: str = "json") -> Mapping[str, str]:
    """Every file by its name."""
    made = (keep_filled(make(options), options) for make in BOARDS)
    return dict(
        package(board_uid(board.name, options), board.name, render_board(board, options), options, format_)
        for board in made
        # One that has no panel left is no dashboard.
        if board.rows
    )


def main() -> int:
    """`run` for a checkout: 1 when a file differs from what the catalog says, 2 for wrong options."""
    parser = CommandParser(
        prog="python -m dashboards", description="Write the Grafana dashboards compiled from the catalog."
    )
    configure(parser, GENERATED)
    try:
        return run(parser.parse_args())
    except ServescopeError as error:
        return report_error(error)


def run(arguments: argparse.Namespace) -> int:
    """Write the files, or check them: 1 when one differs; raises UsageError for what is wrong or cannot be written."""
    files = render(read_options(arguments.options) if arguments.options else DEFAULTS, arguments.format)
    try:
        return _check(arguments.output, files) if arguments.check else _write(arguments.output, files)
    except OSError as error:
        raise UsageError(f"--output {str(arguments.output)!r} cannot be written: {error.strerror}") from error


def _check(folder: Path, files: Mapping[str, str]) -> int:
    stale = [name for name, text in files.items() if not is_current(folder / name, text)]
    strangers = [path.name for path in sorted(folder.glob("*")) if path.name not in files]
    for name in stale:
        sys.stderr.write(f"{folder / name} is out of date: run this without --check\n")
    for name in strangers:
        # Writing leaves it where it is: it may be somebody's own.
        sys.stderr.write(f"{folder / name} is no dashboard that is written with these options: remove it\n")
    return 1 if stale or strangers else 0


def _write(folder: Path, files: Mapping[str, str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        if not is_current(folder / name, text):
            (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
