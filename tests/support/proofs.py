"""What commands that run real programs for minutes have in common."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from servescope.errors import ServescopeError
from tests.support.markers import Markers

ROOT = Path(__file__).parents[2]


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all of them have."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument(
        "--environments", type=Path, default=ROOT / ".cache" / "real", help="where programs are installed"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="put the results into this page")
    parser.add_argument("--keep", action="store_true", help="keep logs and what else was written")
    return parser


def parse(
    parser: argparse.ArgumentParser, words: Sequence[str] | None, markers: Markers, **fewest: int
) -> argparse.Namespace:
    """The arguments; those of `fewest` are so many or more, and a report has the markers."""
    arguments = parser.parse_args(words)
    for name, least in fewest.items():
        if (given := getattr(arguments, name)) < least:
            parser.error(f"--{name} is {given}, expected {least} or more")
    if arguments.report is not None:
        try:
            markers.check(arguments.report)
        except ServescopeError as error:
            parser.error(str(error))
    return arguments


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Reads names with commas between, each of those known."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name {name!r}, supported: {', '.join(known)}")
        return names

    return read


def run_in_folder(program: str, prove: Callable[[Path], int], *, keep: bool) -> int:
    """What `prove` returns, given a folder that is gone afterwards unless `keep`; 1 for an error, which it prints.

    SIGTERM ends it as Ctrl-C does, so that it ends what it started.
    """
    signal.signal(signal.SIGTERM, _end)
    folder = Path(tempfile.mkdtemp(prefix=f"servescope-{program.rpartition('.')[2]}-"))
    try:
        return prove(folder)
    except (ServescopeError, subprocess.TimeoutExpired) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if keep:
            print(f"logs and what else there was are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
