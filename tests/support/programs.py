"""Programs that a test starts: ended by their own process, and killed when they do not end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.support.waiting import deadline_seconds

_END_SECONDS = 20.0
_ANSWER_SECONDS = 5.0


@contextmanager
def program(
    command: Sequence[str], log: Path, *, environment: Mapping[str, str] = os.environ
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of a `with` block; it runs in the folder of its log, which holds all it writes."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=log.parent, stdout=output, stderr=output, env=environment)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, and kill it when it does not."""
    process.terminate()
    try:
        process.wait(deadline_seconds(_END_SECONDS))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    """Whether a GET of this URL is answered with success."""
    try:
        with urlopen(url, timeout=deadline_seconds(_ANSWER_SECONDS)):
            return True
    except OSError:
        return False
