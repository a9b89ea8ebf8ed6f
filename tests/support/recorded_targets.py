"""Recorded pages of engines, served by one light process: a port of loopback for each, and counters that advance.

A capture is one moment. Here everything that it counts advances evenly: every counter and every part of a histogram
gains what was captured once more in `PERIOD_SECONDS`, times the target's own speed; gauges keep their values. So each
rate is constant, and every ratio of rates is that of the capture, whichever targets it is formed over.

`python -m tests.support.recorded_targets SPECIFICATION` is the process. It prints the ports as one line of JSON; a line
of JSON on its standard input lists the targets that close every connection from then on. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tests.proofs.engines.captures import split_counted
from tests.support.page_connection import PageConnection

PERIOD_SECONDS = 60.0
_END_SECONDS = 20.0
# Targets that are alike and are asked at about the same time get the same text, so that many cost little.
_GRID_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Recording:
    """One target: the file whose page it serves, and how many times as fast as others it counts."""

    capture: str
    speed: float = 1.0


class RecordedTargets:
    """The targets while their process runs; `addresses` are as `HOST:PORT`, in the order they were given."""

    def __init__(self, addresses: Sequence[str], process: subprocess.Popen[str]) -> None:
        self.addresses = tuple(addresses)
        self._process = process

    def cut_off(self, targets: Collection[int]) -> None:
        """Let these targets, by their place, close every connection, and all others answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(sorted(targets)) + "\n")
        self._process.stdin.flush()


@contextmanager
def serving_recordings(recordings: Sequence[Recording], folder: Path) -> Iterator[RecordedTargets]:
    """So many targets for the length of the block; `folder` is for their specification."""
    specification = folder / "recordings.json"
    specification.write_text(json.dumps([asdict(each) for each in recordings]), encoding="utf-8")
    command = [sys.executable, "-m", "tests.support.recorded_targets", str(specification)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the recorded targets did not start: see the error above"
        yield RecordedTargets([f"127.0.0.1:{port}" for port in json.loads(line)], process)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --- The process ------------------------------------------------------------------------------------------------------


class _Page:
    """The page of a capture, as a template with a place for each value that counts."""

    def __init__(self, text: str) -> None:
        lines = list(split_counted(text))
        self._template = "".join(line.replace("%", "%%") + ("" if value is None else " %r\n") for line, value in lines)
        self._values = np.array([value for _, value in lines if value is not None])
        self._kept: dict[float, bytes] = {}

    def render(self, share: float) -> bytes:
        """The text after what it counts has happened once more in this share."""
        body = self._kept.get(share)
        if body is None:
            body = (self._template % tuple((self._values * (1 + share)).tolist())).encode()
            # The newest few are asked for again.
            self._kept = {**dict(list(self._kept.items())[-64:]), share: body}
        return body


@dataclass(slots=True)
class _State:
    """When counting began, in seconds since 1970, and the targets that do not answer."""

    began: float
    cut_off: frozenset[int] = frozenset()

    def answer(self, number: int, page: _Page, speed: float, _: bytes) -> bytes | None:
        """The page of a target now; None where it does not answer."""
        elapsed = round((time.time() - self.began) / _GRID_SECONDS) * _GRID_SECONDS
        return None if number in self.cut_off else page.render(elapsed * speed / PERIOD_SECONDS)


def _read_pages(recordings: Sequence[Recording]) -> dict[str, _Page]:
    captures = {each.capture for each in recordings}
    return {capture: _Page(Path(capture).read_text(encoding="utf-8")) for capture in captures}


async def _serve(recordings: Sequence[Recording]) -> None:
    loop, state = asyncio.get_running_loop(), _State(time.time())
    pages = _read_pages(recordings)
    ports = []
    for number, each in enumerate(recordings):
        made = partial(PageConnection, partial(state.answer, number, pages[each.capture], each.speed))
        server = await loop.create_server(made, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        state.cut_off = frozenset(json.loads(line))


def main() -> None:
    """Serve until standard input ends."""
    # A port and a connection or two for each target.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    (specification,) = map(Path, sys.argv[1:])
    asyncio.run(_serve([Recording(**each) for each in json.loads(specification.read_text(encoding="utf-8"))]))


if __name__ == "__main__":
    main()
