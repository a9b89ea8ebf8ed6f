"""Where the commands of a page are run: a folder, an environment without anything else, and servers on loopback."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.conftest import ROOT
from tests.documented.pages import Command
from tests.support.answering import Handler, answering
from tests.support.programs import end
from tests.support.prometheus import free_port
from tests.support.waiting import deadline_seconds, wait_for

ENGINE: Final = 8000
"""The port at which the pages have an engine."""
_LISTENS: Final[Mapping[tuple[str, ...], int]] = {
    ("collect",): 9900,
    ("translate",): 9905,
    ("judge", "watch"): 9910,
    ("customers", "run"): 9920,
    ("console",): 8501,
    ("emulate",): 9800,
    ("demo",): 8501,
}
"""The commands that serve until they are ended, with the port they have without --listen."""
_HOSTS: Final = re.compile(r"(?:127\.0\.0\.1|localhost|10\.0\.0\.\d+|prometheus|vmauth|servescope-judge):(\d{4,5})\b")
_FOLDERS: Final = ("exporters", "app", "alerts", "dashboards", "deploy", "examples", "docs", "tests", "benchmarks")
_FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")


class Place:
    """A folder that is a checkout, with servers that are ended at the end, or when another takes their port.

    Each port of the pages is a free one here, and each host of theirs is 127.0.0.1; `instead` is what else is written
    otherwise, `binaries` are programs of others by their names.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], binaries: Mapping[str, Path]) -> None:
        self.folder = folder
        self.variables = dict(variables)
        self.binaries = binaries
        self.instead: dict[str, str] = {}
        self._ports: dict[int, int] = {}
        self._servers: dict[int, tuple[str, subprocess.Popen[bytes], Path]] = {}
        self.closing = ExitStack()
        folder.mkdir()
        for name in _FOLDERS:
            (folder / name).symlink_to(ROOT / name)
        for name in _FILES:
            shutil.copy(ROOT / name, folder / name)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.closing:
            problems = self._end_all()
        assert kind is not None or not problems, "\n".join(problems)

    def write(self, name: str, text: str) -> None:
        """A file that the page says is there; its addresses are those here."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.substitute(text), encoding="utf-8")

    def port(self, documented: int) -> int:
        """The port here of a port of the pages."""
        return self._ports.setdefault(documented, free_port())

    def set_port(self, documented: int, port: int) -> None:
        """Have a port of the pages be that of a server that is there already."""
        self._ports[documented] = port

    def serve_engine(self, page: Path) -> None:
        """An engine at the pages' port, with this `/metrics`."""
        body = page.read_bytes()

        def answer(handler: Handler) -> None:
            handler.reply(200, body)

        url = self.closing.enter_context(answering(answer))
        self.set_port(ENGINE, int(url.rpartition(":")[2]))

    def substitute(self, text: str) -> str:
        """A text of a page with the addresses and the names of here."""
        for documented, here in self.instead.items():
            text = text.replace(documented, here)

        def replaced(found: re.Match[str]) -> str:
            return f"127.0.0.1:{self.port(int(found[1]))}"

        return _HOSTS.sub(replaced, text.replace("0.0.0.0", "127.0.0.1"))

    def run(self, command: Command, codes: Iterable[int] = (0,)) -> None:
        """Run a command, or start it and wait until it serves; fails with what it printed."""
        text = self.substitute(command.text.removeprefix(".venv/bin/")).removesuffix("&").strip()
        # An error that is answered is one.
        text = re.sub(r"^curl ", "curl --fail ", text)
        if exported := re.fullmatch(r"export (\w+)=(\S*)", text):
            self.variables[exported[1]] = exported[2]
        elif (serving := _serving(text)) is not None:
            self._start(text, serving)
        else:
            done = self._run(text)
            shown = f"{command}\n{text}\ncode {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            assert done.returncode in codes, shown
            assert "Traceback" not in done.stderr, shown
            assert "the judge failed" not in done.stdout, shown

    def end_servers(self) -> None:
        """End every server, the last one first; each has to end on SIGTERM by itself, without a traceback."""
        problems = self._end_all()
        assert not problems, "\n".join(problems)

    def _run(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", text], cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False,
            timeout=deadline_seconds(1800), stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def _start(self, text: str, usual: int) -> None:
        words = shlex.split(text)
        if "--listen" in words:
            port = int(words[words.index("--listen") + 1].rpartition(":")[2])
        else:
            port = self.port(usual)
            text = f"{text} --listen 127.0.0.1:{port}"
        if "console" in words or "demo" in words:
            text = f"{text} --no-browser"
        if words[1:3] == ["customers", "run"]:
            text = f"{text} --pull-listen 127.0.0.1:{self.port(9921)}"
        if port in self._servers:
            problem = self._end(port)
            assert not problem, problem
        log = self.folder / f"server-{port}-{len(self._servers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {text}"], cwd=self.folder, env=self.variables, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._servers[port] = (text, process, log)
        wait_for(lambda: _listens(port) and log.stat().st_size, text, process=process, log=log, seconds=180)

    def _end_all(self) -> list[str]:
        return [problem for port in reversed(list(self._servers)) if (problem := self._end(port))]

    def _end(self, port: int) -> str:
        """End the server at a port; what is wrong with how it ended, or ""."""
        text, process, log = self._servers.pop(port)
        running = process.poll() is None
        end(process)
        printed = log.read_text(encoding="utf-8", errors="replace")
        if running and process.returncode in (0, 130) and "Traceback" not in printed:
            return ""
        return f"{text} ended with code {process.returncode}{'' if running else ' by itself'}:\n{printed[-4000:]}"


def _serving(text: str) -> int | None:
    """The usual port of a command that serves until it is ended; None for others."""
    words = shlex.split(text) if "\n" not in text else []
    if words[:1] != ["servescope"] or "--record" in words or "--check" in words:
        return None
    return next((port for verbs, port in _LISTENS.items() if tuple(words[1 : 1 + len(verbs)]) == verbs), None)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
