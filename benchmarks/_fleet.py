"""A simulated fleet: a process of its own that serves as many vLLM engines over loopback HTTP and notes each scrape.

`python -m benchmarks._fleet TARGETS DIRECTORY` is that process. Each engine has a port, as engines on machines of their
own have, so a scraper keeps a connection to each. The process ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks._pages import Page, make_shape
from benchmarks._processes import ending
from tests.support.page_connection import PageConnection
from tests.support.prometheus import free_port

REPLICAS = 20
"""Engines of a deployment."""

_MODELS = 5
_START_SECONDS = 60.0
_READY = "fleet.json"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet that serves: `lists` are files of `file_sd`, one a deployment of `REPLICAS` engines."""

    targets: int
    lists: Sequence[Path]
    control: str

    def arrivals(self, agent: str) -> dict[int, list[float]]:
        """When each engine was scraped by that agent so far, in seconds of the wall clock, ascending."""
        with urlopen(f"{self.control}/{agent}", timeout=30) as answer:
            return {int(target): times for target, times in json.loads(answer.read()).items()}

    def scrapes(self, agent: str) -> list[float]:
        """The same whichever the engine is."""
        return [at for times in self.arrivals(agent).values() for at in times]


def write_configuration(fleet: Fleet, folder: Path, settings: Mapping[str, str]) -> tuple[Path, int]:
    """A collector's configuration for the whole fleet, with these keys of `[collector]`, and the port it listens on."""
    port = free_port()
    lines = ["[collector]", f'listen = "127.0.0.1:{port}"', 'store = "servescope.db"']
    lines += [f'{key} = "{value}"' for key, value in settings.items()]
    for number, path in enumerate(fleet.lists):
        lines += ["[[deployments]]", f'deployment_id = "chat-{number}"', f'model_name = "{model_of(number)}"']
        lines += ['inference_stack = "vllm"', "[[deployments.file_sd]]", f'files = ["{path}"]']
    configuration = folder / "servescope.toml"
    configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return configuration, port


def model_of(deployment: int) -> str:
    """The model that the engines of a deployment serve."""
    return f"llama-{deployment % _MODELS}"


@contextmanager
def serving(targets: int, folder: Path) -> Iterator[Fleet]:
    """A fleet of so many engines for the length of the block; its lists of targets lie in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks._fleet", str(targets), str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    with ending(process):
        ready = _wait_for(folder / _READY, process)
        lists = [folder / name for name in ready["lists"]]
        yield Fleet(targets, lists, f"http://127.0.0.1:{ready['control']}")


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> Any:
    deadline = time.monotonic() + _START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the simulated fleet did not start; see its output above")
        time.sleep(0.1)
    return json.loads(path.read_text(encoding="utf-8"))


# --- The process ------------------------------------------------------------------------------------------------------


class _Arrivals:
    """When each engine was scraped, by the agent that did."""

    def __init__(self) -> None:
        self._times: dict[str, dict[int, list[float]]] = {}

    def render(self, number: int, page: Page, request: bytes) -> bytes:
        """The page of an engine; the request is noted."""
        _, _, rest = request.lower().partition(b"user-agent: ")
        agent = rest.partition(b"/")[0].decode("latin-1")
        self._times.setdefault(agent, {}).setdefault(number, []).append(time.time())
        return page.render()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What `Fleet.arrivals` asks for."""
        request = await reader.readuntil(b"\r\n\r\n")
        agent = request.split(b" ", 2)[1].decode("latin-1").removeprefix("/")
        body = json.dumps(self._times.get(agent, {})).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()


async def _serve(targets: int, folder: Path) -> None:
    loop, arrivals = asyncio.get_running_loop(), _Arrivals()
    shapes = [make_shape(model_of(number), number) for number in range(_MODELS)]
    ports = []
    for number in range(targets):
        page = Page(shapes[number // REPLICAS % _MODELS], number)
        server = await loop.create_server(
            partial(PageConnection, partial(arrivals.render, number, page)),
            "127.0.0.1",
            0,
        )
        ports.append(server.sockets[0].getsockname()[1])
    control = await asyncio.start_server(arrivals.answer, "127.0.0.1", 0)
    lists = [_write_list(folder, number, ports) for number in range(-(-targets // REPLICAS))]
    ready = {"lists": lists, "control": control.sockets[0].getsockname()[1]}
    (folder / f"{_READY}.new").write_text(json.dumps(ready), encoding="utf-8")
    (folder / f"{_READY}.new").rename(folder / _READY)
    await loop.run_in_executor(None, sys.stdin.buffer.read)


def _write_list(folder: Path, deployment: int, ports: Sequence[int]) -> str:
    """The engines of one deployment as `file_sd` lists them, each with its number as `replica`."""
    name = f"deployment-{deployment:03}.json"
    first = deployment * REPLICAS
    groups = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"replica": f"engine-{first + number}"}}
        for number, port in enumerate(ports[first : first + REPLICAS])
    ]
    (folder / name).write_text(json.dumps(groups), encoding="utf-8")
    return name


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks._fleet")
    parser.add_argument("targets", type=int)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    # A port and a connection or two for each engine.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_serve(arguments.targets, arguments.folder))


if __name__ == "__main__":
    main()
