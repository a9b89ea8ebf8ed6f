"""The programs a benchmark measures from outside: how they are started, pinned and ended, and what they used so far."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_START_SECONDS = 60.0
_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A process, and where it answers over HTTP."""

    pid: int
    url: str

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far, the kernel's part included."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_bytes(self) -> int:
        """Memory it holds now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE

    def read(self, path: str) -> bytes:
        """The answer to a GET."""
        with urlopen(f"{self.url}{path}", timeout=120) as answer:
            body: bytes = answer.read()
            return body


@contextmanager
def collecting(
    configuration: Path, port: int, *, cores: Sequence[int] = (), profile: Path | None = None
) -> Iterator[Measured]:
    """`servescope collect` with this configuration, which listens on `port`, for the length of the block.

    It may run on `cores` alone, where any are given. With `profile` it runs under cProfile, whose figures lie there in
    the end; it is slower then.
    """
    profiler = ["-m", "cProfile", "-o", str(profile)] if profile else []
    command = [sys.executable, *profiler, "-m", "servescope.cli", "collect", "--config", str(configuration)]
    if cores:
        command = [sys.executable, "-c", _PINNED, ",".join(map(str, cores)), *command]
    with (configuration.parent / "collector.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    with ending(process):
        collector = Measured(process.pid, f"http://127.0.0.1:{port}")
        _wait_until_ready(collector, process, configuration.parent / "collector.log")
        yield collector


# Pins itself and becomes the command, so that every thread of it inherits the cores.
_PINNED = """
import os, sys
os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the process after the block, by closing its input and by SIGTERM."""
    try:
        yield
    finally:
        if process.stdin:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(collector: Measured, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _is_ready(collector):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the collector did not start: {log.read_text(encoding='utf-8')[-2000:]}")
        time.sleep(0.2)


def _is_ready(collector: Measured) -> bool:
    try:
        collector.read("/-/ready")
    except (URLError, OSError):
        return False
    return True
