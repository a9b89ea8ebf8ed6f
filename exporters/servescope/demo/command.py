"""`servescope demo`: a cutover from an emulated v1 to an emulated v2 under way, collected, judged and shown.

The emulator is in this process; the collector and the console are the commands a user has. All are on 127.0.0.1 only
and end together. Their clock is the emulation's, which runs faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from servescope.errors import ServescopeError, UsageError, how_to_install
from servescope.settings.clock import CLOCK_VARIABLE
from servescope.settings.command_line import (
    cannot_listen,
    configure_listen,
    format_address,
    reached_at,
    read_listen,
)

if TYPE_CHECKING:
    from servescope.demo.pacing import Pace
    from servescope.emulator.server.server import RunningEmulator

_CONSOLE = "127.0.0.1:8501"
_COLLECTOR_PORT, _EMULATOR_PORT = 9900, 9800
# Generous: a part that ended is noticed at once, and the first start on a slow machine compiles what it imports.
READY_SECONDS = 180
END_SECONDS = 10


@dataclass(frozen=True, slots=True)
class _Part:
    """One command of the demo, running as a process of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope demo`."""
    configure_listen(
        parser, f"address of the console (default: {_CONSOLE}, or a free port where that is in use)", aliases=("port",)
    )
    parser.add_argument(
        "--directory", type=Path, metavar="FOLDER",
        help="keep configuration, store and logs here (default: a temporary folder)",
    )  # fmt: skip
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C, or until one of its parts ends."""
    _require_extras()
    chosen = arguments.listen is not None or arguments.port is not None
    host, wanted = read_listen(arguments, default=_CONSOLE)
    # A terminal that is closed ends the demo as Ctrl-C does; its parts would not all get the signal.
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    with _folder(arguments.directory) as folder:
        parts: list[_Part] = []
        port = _choose_port(host, wanted, or_another=not chosen)
        url = f"http://{format_address(reached_at(host), port)}"
        running: RunningEmulator | None = None
        try:
            running, pace = _start(parts, folder, format_address(host, port), url, no_browser=arguments.no_browser)
            print(f"servescope: the demo runs; the console is at {url}")
            print("servescope: Ctrl-C ends it", flush=True)
            _wait_for_end(parts, running, pace)
        finally:
            _end(parts)
            if running is not None:
                running.close()
    return 0


def _require_extras() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("aiohttp", "pandas", "streamlit") if find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {', '.join(missing)}: {how_to_install('all')}")


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        try:
            chosen.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make directory {str(chosen)!r}: {error.strerror}") from error
        yield chosen.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="servescope-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _choose_port(host: str, wanted: int, *, or_another: bool = True) -> int:
    """The port wanted, or a free one when something else has it; raises ServescopeError where that is not allowed."""
    problem = OSError()
    for port in (wanted, 0) if or_another else (wanted,):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                problem = error
                continue
            return int(probe.getsockname()[1])
    raise cannot_listen(host, wanted, problem)


def _start(
    parts: list[_Part], folder: Path, listen: str, url: str, *, no_browser: bool
) -> tuple[RunningEmulator, Pace]:
    """Start emulator, console and collector, as early as each can start, and have time pass once all answer.

    The console takes longest, so it starts first, on an empty store; meanwhile the past is written into it.
    """
    from servescope.demo import opening
    from servescope.demo.pacing import FULL_SPEED, Pace
    from servescope.emulator.server import server
    from servescope.emulator.server.control import Control

    opens_at = opening.choose_opening()
    opening.put_files(folder, opens_at)
    store, emulator = str(folder / opening.STORE), _choose_port("127.0.0.1", _EMULATOR_PORT)
    words = ["--plan", str(folder / opening.PLAN), "--journal", str(folder / opening.JOURNAL), "--listen", listen]
    words += ["--emulator", f"http://127.0.0.1:{emulator}", *(["--no-browser"] if no_browser else [])]
    console = _launch("console", ["--store", store, *words], folder)
    parts.append(console)
    opened = opening.open_cutover(folder, opens_at)
    pace = Pace(folder / opening.CLOCK, folder / opening.STORE, opens_at, opening.INTERVAL_SECONDS)
    running = server.start(
        folder,
        port=emulator,
        speed_up=FULL_SPEED,
        source=lambda: opened.opened_seconds + pace.now() - opens_at,
        warm_up_seconds=0.0,
        stack=opened.stack,
        add_routes=[Control(opened.faults).add_routes],
        configuration=opened.configuration,
    )
    try:
        collector_listen = f"127.0.0.1:{_choose_port('127.0.0.1', _COLLECTOR_PORT)}"
        words = ["--config", str(running.config_path), "--store", store, "--listen", collector_listen]
        collector = _launch("collect", words, folder)
        parts.append(collector)
        collects, shows = f"http://{collector_listen}/-/healthy", f"{url}/_stcore/health"
        _wait_until(lambda: _answers(collects), parts, collector, "the collector did not answer")
        _wait_until(lambda: _answers(shows), parts, console, "the console did not answer")
        pace.start()
    except BaseException:
        running.close()
        raise
    return running, pace


def _launch(command: str, words: Sequence[str], folder: Path) -> _Part:
    log = folder / f"{command}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-m", "servescope.cli", command, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", CLOCK_VARIABLE: str(folder / "clock")},
        )
    return _Part(command, process, log)


def _answers(url: str) -> bool:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=2) as answer:  # noqa: S310 - our own
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _wait_until(ready: Callable[[], bool], parts: Sequence[_Part], awaited: _Part, complaint: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not ready():
        _raise_if_ended(parts)
        if time.monotonic() > deadline:
            raise ServescopeError(f"{complaint} within {READY_SECONDS} s: {_tail(awaited.log)}")
        time.sleep(0.1)


def _wait_for_end(parts: Sequence[_Part], running: RunningEmulator, pace: Pace) -> None:
    while True:
        _raise_if_ended(parts)
        pace.adjust()
        running.wait(0.5)


def _raise_if_ended(parts: Sequence[_Part]) -> None:
    for part in parts:
        code = part.process.poll()
        if code is not None:
            cause = _tail(part.log).removeprefix("servescope: error: ")
            raise ServescopeError(f"`servescope {part.name}` ended with code {code}: {cause}")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"nothing in {log}"


def _end(parts: Sequence[_Part]) -> None:
    """End every part, the last started first, and wait for each; one that does not end in time is killed."""
    for part in reversed(parts):
        if part.process.poll() is None:
            part.process.terminate()
    deadline = time.monotonic() + END_SECONDS
    for part in reversed(parts):
        try:
            part.process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            part.process.kill()
            part.process.wait()
