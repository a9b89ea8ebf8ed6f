"""The emulated stack for a scraper: every process's `/metrics` over HTTP, and files that list them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from servescope.emulator.clock import WallClockRunner
from servescope.emulator.deployment.deployment import EmulatedDeployment, EmulatedTarget
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.faces.pages import OwnPages, Pages
from servescope.errors import ServescopeError, UsageError
from servescope.settings.command_line import cannot_listen

ADDRESS = "127.0.0.1"
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on by itself
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HOST = re.compile(r"[A-Za-z0-9._-]*|\[?[0-9A-Fa-f:.]+\]?")
# Short, so that a newcomer sees figures move within the first minute.
_SCRAPE_INTERVAL = "5s"
_WINDOW = "1m"
_BACKLOG = 1024
# Answers under way when the server ends have this long to end.
_LINGERING_SECONDS = 1.0

_http_logger = logging.getLogger(f"{__name__}.http")


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a line of the HTTP server's log is an error of ours: clients get their own errors as answers."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_http_logger.addFilter(_is_ours)

RouteAdder = Callable[[web.Application, "RunningEmulator"], object]
"""Adds what else the server answers to its application, before it serves."""


Expose = Callable[[web.Request, EmulatedTarget, bytes], Awaitable[web.StreamResponse]]
"""Answers a scrape of a target whose page is given."""


class RunningEmulator:
    """An emulated stack that follows the wall clock and serves its metrics, until `close`.

    `url` is its address; `config_path` a collector configuration for all deployments; `file_sd_paths` the lists of
    targets that configuration names, kept up to date as replicas come and go. `expose` answers a scrape with the page
    of its target; replace it to answer otherwise. `runner` is what moves the `stack` and must be asked (`call`) to
    change anything of it.
    """

    def __init__(
        self,
        stack: EmulatedStack,
        directory: Path,
        *,
        address: str,
        advertised: str,
        port: int,
        speed_up: float,
        add_routes: Sequence[RouteAdder] = (),
        pages: Pages | None = None,
        configuration: str | None = None,
        source: Callable[[], float] | None = None,
    ) -> None:
        self._configuration = configuration
        self.stack = stack
        self._pages = pages or OwnPages()
        self.runner = WallClockRunner(stack.clock, speed_up=speed_up, source=source, after_tick=self._follow_targets)
        self.expose: Expose = _show
        self._paths: dict[str, EmulatedTarget] = {}
        self._written_generation = -1
        _make_directory(directory / "targets")
        self._claim = _Claim(directory)
        try:
            self._socket = _bind(address, port)
        except BaseException:
            self._claim.release()
            raise
        host = f"[{advertised}]" if ":" in advertised and not advertised.startswith("[") else advertised
        self._authority = f"{host}:{self._socket.getsockname()[1]}"
        self.url = f"http://{self._authority}"
        self.config_path = directory / "servescope.toml"
        self.file_sd_paths = [
            directory / "targets" / f"{deployment.plan.identity.deployment_id}.json" for deployment in stack.deployments
        ]
        application = web.Application()
        for add in add_routes:
            add(application, self)
        application.router.add_get("/{path:.*}", self._get)
        self._server = _Server(application, self._socket)

    def start(self) -> None:
        """Serve, write the files and start the clock; the configuration is written last."""
        self._server.start()
        self._follow_targets()
        _replace_file(self.config_path, self._configuration or format_configuration(self.stack.deployments))
        self.runner.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the emulation ends, at most `seconds`; raises ServescopeError when it failed."""
        self.runner.wait(seconds)
        failure = self.runner.failure
        if isinstance(failure, ServescopeError):
            raise failure
        if failure is not None:
            raise ServescopeError(f"the emulation failed: {failure!r}") from failure

    def close(self) -> None:
        """Stop time and the server; the files stay."""
        self.runner.close()
        self._server.close()
        self._claim.release()

    async def call(self, action: Callable[[], Any]) -> Any:
        """What `action` returns, done to the stack at the present moment; for handlers of the server.

        Raises an HTTP 500 when the emulation has failed or ended.
        """
        try:
            return await asyncio.wrap_future(self.runner.call(action))
        except ServescopeError as error:
            if self.runner.failure is None and not self.runner.wait(0.0):
                raise
            raise web.HTTPInternalServerError(text="the emulation has failed\n") from error

    async def _get(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        found: _Page = await self.call(lambda: self._find(path))
        if found.target is not None:
            return await self.expose(request, found.target, found.body)
        return web.Response(status=found.status, body=found.body, headers={"Content-Type": _CONTENT_TYPE})

    def _find(self, path: str) -> _Page:
        """The target at `path`; 410 for a replica that is gone. In the thread of the stack."""
        # All of it at once, so that a scrape sees all figures of one moment.
        target = self._paths.get(path)
        if target is not None:
            return _Page(200, self._pages.render(target), target)
        if path == "/":
            return _Page(200, "".join(f"{self.url}{path}\n" for path in self._paths).encode())
        if any(deployment.is_gone(path) for deployment in self.stack.deployments):
            return _Page(410, b"this replica is gone\n")
        return _Page(404, b"nothing here, / lists what there is\n")

    def _follow_targets(self) -> None:
        """Serve and list what exists now, if that changed."""
        with self.runner.lock:
            if self.stack.generation == self._written_generation:
                return
            self._written_generation = self.stack.generation
            by_deployment = [deployment.targets() for deployment in self.stack.deployments]
            self._paths = {target.path: target for targets in by_deployment for target in targets}
            listed = [[target for target in targets if self._pages.lists(target)] for targets in by_deployment]
        for path, targets in zip(self.file_sd_paths, listed, strict=True):
            _replace_file(path, format_file_sd(targets, self._authority))


def start(
    directory: Path,
    *,
    address: str = ADDRESS,
    advertised: str = "",
    port: int = 0,
    speed_up: float = 1.0,
    warm_up_seconds: float = 120.0,
    stack: EmulatedStack | None = None,
    add_routes: Sequence[RouteAdder] = (),
    pages: Pages | None = None,
    configuration: str | None = None,
    source: Callable[[], float] | None = None,
) -> RunningEmulator:
    """An emulated stack that runs, its files in `directory`; `port` 0 takes a free one.

    It listens on `address`; the lists of targets name it `advertised`, which is the address when left out, or
    127.0.0.1 when that is every address of the machine. The first `warm_up_seconds` of its life pass at once, so that
    there is traffic from the first scrape on. `add_routes` add what it answers beside `/metrics`; `pages` are
    how that shows the targets, in the contract's own names when left out. `configuration` is what it writes for a
    collector, `format_configuration` of its deployments when left out. With `source`, which returns how many seconds of
    the stack's clock are to have passed, time passes as it says and `speed_up` is how fast it passes at most.
    """
    if not _HOST.fullmatch(advertised):
        raise UsageError(f"advertised host is {advertised!r}, expected a name or an address, such as emulator")
    stack = stack or EmulatedStack()
    name = advertised or (ADDRESS if address in _EVERYWHERE else address)
    running = RunningEmulator(
        stack,
        directory,
        address=address,
        advertised=name,
        port=port,
        speed_up=speed_up,
        add_routes=add_routes,
        pages=pages,
        configuration=configuration,
        source=source,
    )
    try:
        stack.clock.run_until(warm_up_seconds)
        running.start()
    except BaseException:
        running.close()
        raise
    return running


def format_file_sd(targets: list[EmulatedTarget], address: str) -> str:
    """The targets as Prometheus reads them from a file."""
    entries = [
        {
            "targets": [address],
            "labels": {
                "replica": target.identity.replica,
                "role": target.identity.role,
                "__metrics_path__": target.path,
            },
        }
        for target in targets
    ]
    return json.dumps(entries, indent=2) + "\n"


def format_configuration(
    deployments: list[EmulatedDeployment], *, scrape_interval: str = _SCRAPE_INTERVAL, window: str = _WINDOW
) -> str:
    """A collector configuration that collects all deployments; its paths are relative to the file."""
    lines = [
        "# Written by `servescope emulate`; `servescope collect --config` reads it.",
        "[collector]",
        'store = "servescope.db"',
        f'scrape_interval = "{scrape_interval}"',
        f'scrape_timeout = "{scrape_interval}"',
        f'evaluation_interval = "{scrape_interval}"',
        f'window = "{window}"',
    ]
    for deployment in deployments:
        identity = deployment.plan.identity
        lines += ["", "[[deployments]]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in identity.labels()]
        lines += ["[[deployments.file_sd]]", f'files = ["targets/{identity.deployment_id}.json"]']
    return "\n".join(lines) + "\n"


def _replace_file(path: Path, text: str) -> None:
    """Write a file in one move: a reader finds the old text or the new one, never a part of it."""
    unfinished = path.with_name(f".{path.name}.new")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise ServescopeError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make directory {str(directory)!r}: {error.strerror}") from error


def _bind(address: str, port: int) -> socket.socket:
    try:
        # Every address of the machine means its IPv4 ones too, as which it is advertised.
        both = address == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((address, port), family=_family(address), backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise cannot_listen(address, port, error) from error


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class _Page(NamedTuple):
    status: int
    body: bytes
    target: EmulatedTarget | None = None


async def _show(_: web.Request, target: EmulatedTarget, page: bytes) -> web.StreamResponse:
    return web.Response(body=page, headers={"Content-Type": _CONTENT_TYPE})


class _Claim:
    """A lock on a directory for one emulator; it ends with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        path = directory / ".emulator.lock"
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UsageError(
                f"an emulator already writes to {str(directory)!r}; end it, or give this one a --directory of its own"
            ) from error

    def release(self) -> None:
        """Release the directory; without effect when called again."""
        # The file stays: removing it could remove it from under the next holder's lock.
        self._file.close()


class _Server:
    """An HTTP server in a thread of its own."""

    def __init__(self, application: web.Application, listening: socket.socket) -> None:
        self._application = application
        self._socket = listening
        self._ready: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="servescope-emulator-http", daemon=True)

    def start(self) -> None:
        """Serve; returns when the first request can come."""
        self._thread.start()
        self._ready.result()

    def close(self) -> None:
        """End all connections and the thread; without effect on one that never started, but for its socket."""
        if self._thread.ident is not None:
            if self._loop is not None and self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A handler whose client went away is cancelled, and with it what it asked of the stack.
        runner = web.AppRunner(
            self._application,
            access_log=None,
            logger=_http_logger,
            handler_cancellation=True,
            shutdown_timeout=_LINGERING_SECONDS,
        )
        try:
            await runner.setup()
            await web.SockSite(runner, self._socket, backlog=_BACKLOG).start()
        except BaseException as error:
            self._ready.set_exception(error)
            await runner.cleanup()
            return
        self._ready.set_result(None)
        await self._stop.wait()
        await runner.cleanup()
