"""`servescope collect` with a configuration of the test's own, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from servescope.store.records import StoreError
from tests.support.waiting import deadline_seconds, wait_for

COLLECT = (sys.executable, "-m", "servescope.cli", "collect")


@contextmanager
def collecting(*words: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command until the end of the block; its log is `collect.log` in the folder."""
    with (folder / "collect.log").open("wb") as log:
        process = subprocess.Popen([*COLLECT, *words], cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def get(url: str) -> Any:
    """The text of an answer."""
    with urlopen(url, timeout=deadline_seconds(5)) as answer:
        return answer.read().decode()


def wait_until(ready: Callable[[], object], log: Path) -> None:
    """Wait for a condition; errors of a collector that does not answer yet count as not true."""
    wait_for(ready, "the collector", ignoring=(URLError, OSError, StoreError), log=log)
