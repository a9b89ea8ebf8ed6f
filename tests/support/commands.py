"""Commands of `servescope`, run in this process: starting an interpreter takes longer than most of them do."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from servescope.cli import main


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run(*words: str) -> Done:
    """Run a command as a user does."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        code = main(words)
    return Done(code, output.getvalue(), errors.getvalue())
