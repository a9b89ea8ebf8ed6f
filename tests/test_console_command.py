"""`servescope console`: what it refuses, where it finds its pages, and that it ends what it started."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from servescope import console
from servescope.errors import UsageError
from servescope.store.embedded import Store
from tests.conftest import ROOT
from tests.support import commands
from tests.support.answering import answering
from tests.support.programs import end
from tests.support.waiting import deadline_seconds, wait_for

Run = Callable[..., commands.Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, only for what it refuses before it starts a server."""
    monkeypatch.setattr(console, "STORE_SECONDS", 0.0)
    monkeypatch.setattr(console, "_launch", lambda *_: pytest.fail("the console started"))
    return partial(commands.run, "console", "--no-browser")


@contextmanager
def started(store: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The console on a free port, ended by SIGTERM; gives the process and the address it announced."""
    words = ["-m", "servescope.cli", "console", "--no-browser", "--listen", "127.0.0.1:0", "--store", str(store)]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split(" is at ")[1].split(",")[0]
        finally:
            end(process)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A store without anything in it."""
    path = tmp_path / "servescope.db"
    Store(path).close()
    return path


def test_missing_store_is_named_with_the_remedy(tmp_path: Path, run: Run) -> None:
    """Without a store the command ends with code 2 and says how to get one."""
    answer = run("--store", str(tmp_path / "none.db"))

    assert answer.returncode == 2
    assert "none.db" in answer.stderr
    assert "servescope collect --store" in answer.stderr


@pytest.mark.slow
def test_a_collector_started_just_before_is_waited_for(tmp_path: Path) -> None:
    """The README's `collect … &` and `console` may be pasted at once: the store is not there yet."""
    path = tmp_path / "servescope.db"
    collecting = threading.Timer(1.5, lambda: Store(path).close())
    collecting.start()
    with started(path) as (_, address), urlopen(f"{address}/_stcore/health", timeout=deadline_seconds()) as answer:
        assert answer.status == 200
    collecting.join()


def test_address_that_is_not_the_machines_is_refused(empty: Path, run: Run) -> None:
    """An address of another machine ends the command with code 1, and is named."""
    answer = run("--store", str(empty), "--listen", "192.0.2.1:0")

    assert answer.returncode == 1
    assert "192.0.2.1" in answer.stderr


def test_foreign_store_is_refused(tmp_path: Path, run: Run) -> None:
    """A database of another program is refused by name, not shown empty."""
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE things (id INTEGER)")
    connection.close()

    answer = run("--store", str(tmp_path / "other.db"))

    assert answer.returncode == 2
    assert "another program" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["collect", "console"])
def test_a_directory_is_no_store(tmp_path: Path, command: str) -> None:
    """Both commands end with code 2 and the same message."""
    words = {"collect": ("--target", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"), "console": ()}
    answer = subprocess.run(
        [sys.executable, "-m", "servescope.cli", command, "--store", str(tmp_path), *words[command]],
        capture_output=True, text=True, timeout=deadline_seconds(), check=False,
    )  # fmt: skip

    assert answer.returncode == 2
    assert answer.stderr == f"servescope: error: store {str(tmp_path)!r} is a directory, expected a collector's file\n"


def test_text_file_is_refused(tmp_path: Path, run: Run) -> None:
    """A file that is no database is refused by name."""
    (tmp_path / "notes.txt").write_text("not a store, but long enough to be looked at as a database file\n" * 10)

    answer = run("--store", str(tmp_path / "notes.txt"))

    assert answer.returncode == 2
    assert "notes.txt" in answer.stderr


def test_busy_port_is_refused(empty: Path, run: Run) -> None:
    """A port that somebody listens on is named, with the flag that names another."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        by_alias = run("--store", str(empty), "--port", str(port))
        answer = run("--store", str(empty), "--listen", f"127.0.0.1:{port}")

    assert by_alias == answer
    assert (answer.returncode, answer.stderr) == (
        1,
        f"servescope: error: cannot listen on 127.0.0.1:{port}: Address already in use; name another address with "
        "--listen HOST:PORT\n",
    )


def test_impossible_port_is_refused(empty: Path, run: Run) -> None:
    """A number that is no port is refused with the range."""
    answer = run("--store", str(empty), "--port", "70000")

    assert answer.returncode == 2
    assert "port 70000 is not within 0 … 65535" in answer.stderr


def test_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Streamlit the error says what to install."""
    monkeypatch.setattr(console, "find_spec", lambda name: None if name == "streamlit" else object())

    with pytest.raises(UsageError, match=r"needs streamlit: pip install '\.\[console\]' in a checkout"):
        console._check_extra()


def test_checkout_has_its_pages_in_app() -> None:
    """In a checkout the pages of the working tree are shown."""
    assert console.find_app() == ROOT / "app" / "server.py"


@pytest.mark.slow
def test_console_serves_on_loopback_and_ends_on_sigterm(empty: Path) -> None:
    """It answers on 127.0.0.1 alone, and SIGTERM ends it and its server."""
    with started(empty) as (process, address):
        port = int(address.rpartition(":")[2])
        with urlopen(f"{address}/_stcore/health", timeout=deadline_seconds()) as answer:
            healthy = answer.status == 200
        listening = _listeners(port)

    assert healthy
    assert listening == {"0100007F"}
    assert process.returncode == 130
    assert _listeners(port) == set()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its killed parent")
def test_killed_console_leaves_no_server(empty: Path) -> None:
    """Killed outright, the command still takes its server with it."""
    with started(empty) as (process, address):
        port = int(address.rpartition(":")[2])
        process.kill()
        wait_for(lambda: not _listeners(port), "the end of its server")


def _listeners(port: int) -> set[str]:
    """The addresses, as Linux writes them, that listen on a port."""
    lines = [*Path("/proc/net/tcp").read_text().splitlines()[1:], *Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    sockets = [line.split() for line in lines]
    return {
        fields[1].rpartition(":")[0]
        for fields in sockets
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    }


def test_what_is_no_prometheus_is_refused(tmp_path: Path, run: Run) -> None:
    """A server that is none is recognised by its answer, and the message says what was expected."""
    with answering(lambda request: request.reply(200, "<html>Grafana</html>")) as url:
        answer = run("--prometheus", url)
    assert answer.returncode == 1
    assert f"Prometheus at {url}: no Prometheus answers there" in answer.stderr
    assert "not Prometheus' JSON (an HTML page, 'Grafana'); expected the base URL" in answer.stderr


def test_a_prometheus_that_cannot_be_reached_is_named(run: Run) -> None:
    """Without a Prometheus the command ends and says which, and why."""
    answer = run("--prometheus", "http://127.0.0.1:1")
    assert answer.returncode == 1
    assert "http://127.0.0.1:1" in answer.stderr
    assert "Connection refused" in answer.stderr


def test_a_store_and_a_prometheus_are_one_too_many(tmp_path: Path, run: Run) -> None:
    """One of them is read; what belongs to the other is refused."""
    assert "expected one of them" in run("--prometheus", "http://127.0.0.1:1", "--store", str(tmp_path / "s")).stderr
    assert "goes with --prometheus" in run("--bearer-token-file", "token").stderr
