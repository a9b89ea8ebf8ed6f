"""The programs a benchmark measures from outside: how they are started, pinned and ended, and what they used so far."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_START_SECONDS = 60.0
_END_SECONDS = 60.0
_OF_ITSELF = ("servescope_", "prometheus_", "process_", "vm")


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

    def samples(self) -> Iterator[Sample]:
        """What it exposes of itself, without what it scraped."""
        lines = [line for line in self.read("/metrics").decode().splitlines() if line.startswith(_OF_ITSELF)]
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            yield from family.samples

    def series(self) -> Mapping[str, float]:
        """The same without labels; series of several labels add up."""
        found = defaultdict[str, float](float)
        for sample in self.samples():
            found[sample.name] += sample.value
        return found

    def stored_samples(self) -> int:
        """How many samples a collector stores when it has scraped every target once."""
        return sum(status["samples"] for status in json.loads(self.read("/api/v1/targets"))["targets"])

    def is_ready(self) -> bool:
        """Whether a program of servescope is."""
        try:
            self.read("/-/ready")
        except (URLError, OSError):
            return False
        return True


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
    with serving(command, port, configuration.parent / "collector.log") as collector:
        yield collector


@contextmanager
def serving(command: Sequence[str], port: int, log: Path) -> Iterator[Measured]:
    """A program of servescope, ready, for the length of the block; raises RuntimeError when it does not start."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    with ending(process):
        program, deadline = Measured(process.pid, f"http://127.0.0.1:{port}"), time.monotonic() + _START_SECONDS
        while not program.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command} did not start: {log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.1)
        yield program


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
