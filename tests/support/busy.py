"""`python -m tests.support.busy -- COMMAND...`: run a command while two endless loops keep each core busy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

LOOPS_PER_CORE = 2
_LOOP = "while True: pass"


@contextmanager
def keeping_busy() -> Iterator[None]:
    """Two endless loops for each core, for the length of a `with` block."""
    cores = os.cpu_count() or 1
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(LOOPS_PER_CORE * cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_busy(command: Sequence[str]) -> int:
    """The exit code of a command that shares every core with two loops; they end with it."""
    with keeping_busy():
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:2] != ["--"] or not sys.argv[2:]:
        sys.exit("usage: python -m tests.support.busy -- COMMAND...")
    sys.exit(run_busy(sys.argv[2:]))
