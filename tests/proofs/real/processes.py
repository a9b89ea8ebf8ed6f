"""Processes that live as long as a `with` block: each in its own group, ended by its id whatever happens."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servescope.errors import ServescopeError

END_SECONDS = 20.0


class ProcessError(ServescopeError):
    """A process we started ended early, or was not ready in time."""


@contextmanager
def running(
    name: str, command: Sequence[str], logs: Path, *, environment: Mapping[str, str] | None = None
) -> Iterator[Started]:
    """A process with its output in `logs`; it and its children are asked to end, then killed."""
    log = logs / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        yield Started(name, process, log)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # A child may outlive its parent; the group keeps its id until the last member is gone.
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def pick_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on now.

    Below 32768: Dynamo reads DYN_SYSTEM_PORT as a signed 16-bit number, and Linux hands out ports above to clients.
    """
    ports: list[int] = []
    for port in random.sample(range(20000, 32768), 200):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise ProcessError(f"fewer than {count} free ports found from 20000 to 32767")


@dataclass(frozen=True, slots=True)
class Started:
    """A process we started, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise when it has ended, with the end of its log."""
        code = self.process.poll()
        if code is not None:
            raise ProcessError(f"{self.name} ended with {code}; end of {self.log}:\n{self.tail()}")

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-1500:]


def wait_until(ready: Callable[[], bool], what: str, *, seconds: float, processes: Sequence[Started] = ()) -> float:
    """Seconds until `ready` holds; raises when they are over, or when one of the processes has ended."""
    start = time.monotonic()
    while not ready():
        for started in processes:
            started.check()
        if time.monotonic() - start > seconds:
            tails = "".join(f"\n{started.log}: {started.tail()}" for started in processes)
            raise ProcessError(f"{what}: not within {seconds:.0f} s{tails}")
        time.sleep(0.25)
    return time.monotonic() - start


def read_page(url: str, seconds: float = 60.0) -> bytes:
    """The body of a URL on this machine, as soon as it answers 200; raises when it does not in time."""
    pages: list[bytes] = []

    def answers() -> bool:
        body = read(url)
        if body is not None:
            pages.append(body)
        return body is not None

    wait_until(answers, url, seconds=seconds)
    return pages[-1]


def read(url: str) -> bytes | None:
    """The body of a URL on this machine; None while nothing answers 200 there."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            body: bytes = response.read()
            return body
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None
