"""The demo as a newcomer meets it: from its start to live figures of both stacks, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from servescope.cli import main
from servescope.store.embedded import Store
from tests.support.prometheus import free_port
from tests.support.waiting import deadline_seconds, wait_for


def heed_interrupts() -> None:
    # A shell starts background jobs with SIGINT ignored, and a test run may be one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def demo(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "servescope.cli", "demo", "--no-browser", "--listen", f"127.0.0.1:{port}",
         "--directory", folder],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_interrupts,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill() if process.poll() is None else None
        process.communicate()


def answers(port: int) -> bool | None:
    try:
        with urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=deadline_seconds()) as answer:
            return answer.status == 200 or None
    except (URLError, OSError):
        return None


def children_of(pid: int) -> set[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    direct = {int(word) for word in listing.stdout.split()}
    return direct.union(*(children_of(child) for child in direct))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def clock_ms(folder: Path) -> float:
    """Since when the emulated clock has the pace that it has: it loses pace on a slow machine, and its file says so."""
    return float((folder / "clock").read_text().partition("=")[2].partition("*")[0]) * 1000


def live_figures(folder: Path, opened_ms: float) -> dict[str, dict[str, float]] | None:
    """The figures of both deployments once they are of after the opening."""
    with Store(folder / "servescope.db", read_only=True) as reader:
        found = reader.latest_figures().items()
    latest = {
        deployment.deployment_id: figures for deployment, (at_ms, figures) in found if at_ms > opened_ms + 300_000
    }
    shown = {"time_to_first_token_p95", "tps_per_request", "kv_cache_hit_rate"}
    return latest if len(latest) == 2 and all(shown <= figures.keys() for figures in latest.values()) else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending",
    [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.proof) for each in (signal.SIGTERM, signal.SIGHUP))],
)
def test_demo_shows_both_stacks_and_ends_whole(tmp_path: Path, ending: signal.Signals) -> None:
    """Both deployments show figures; Ctrl-C, SIGTERM or a closed terminal ends each process started."""
    port = free_port()
    with demo(tmp_path, port) as process:
        wait_for(lambda: answers(port), "the console", process=process)
        opened_ms = clock_ms(tmp_path)
        figures = wait_for(lambda: live_figures(tmp_path, opened_ms), "figures of both", process=process)
        started = children_of(process.pid)
        process.send_signal(ending)
        process.wait(timeout=deadline_seconds())

    assert figures.keys() == {"chat-v1", "chat-v2"}
    assert len(started) >= 3
    assert not [pid for pid in started if is_alive(pid)]


@pytest.mark.slow
def test_demo_names_the_part_that_failed(tmp_path: Path) -> None:
    """A port that is taken ends the demo with the part, the port and no traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with demo(tmp_path, port) as process:
            output, _ = process.communicate(timeout=deadline_seconds())

    assert process.returncode == 1
    assert f"{port}" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--directory", "{file}"], "servescope: error: cannot make directory '{file}': File exists"),
        (["--directory", "{file}/below"], "servescope: error: cannot make directory '{file}/below': Not a directory"),
        (["--port", "99999"], "servescope: error: port 99999 is not within 0 … 65535"),
    ],
)
def test_demo_refuses_impossible_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """With code 2 and the value, before any part is started."""
    file = tmp_path / "file"
    file.touch()

    assert main(["demo", "--no-browser", *(word.format(file=file) for word in words)]) == 2
    assert capsys.readouterr().err == message.format(file=file) + "\n"
