"""Commands, run in this process: starting an interpreter takes longer than most of them do."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

from servescope import cli


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run(*words: str) -> Done:
    """Run a command of `servescope` as a user does."""
    return _done(lambda: cli.main(words))


def run_main(main: Callable[[], int], *words: str) -> Done:
    """Run the `main` of a module, which reads its words from the command line, as `python -m` does."""
    with patch("sys.argv", ["command", *words]):
        return _done(main)


def _done(main: Callable[[], int]) -> Done:
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            code = main()
        except SystemExit as error:  # of argparse
            code = int(error.code or 0)
    return Done(code, output.getvalue(), errors.getvalue())
