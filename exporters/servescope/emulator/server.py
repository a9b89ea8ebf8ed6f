"""The emulated stack as a scraper meets it: every process's `/metrics` over HTTP, and files that list them."""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from servescope.emulator.clock import WallClockRunner
from servescope.emulator.deployment import Deployment, Target
from servescope.emulator.stack import EmulatedStack
from servescope.errors import ServescopeError, UsageError
from servescope.exposition import render

ADDRESS = "127.0.0.1"
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - told from other addresses, not listened on by itself
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Short, so that a newcomer sees figures move within the first minute.
_SCRAPE_INTERVAL = "5s"
_WINDOW = "1m"


class RunningEmulator:
    """An emulated stack that follows the wall clock and serves its metrics, until `close`.

    `url` is its address; `config_path` a collector configuration for both deployments; `file_sd_paths` the lists of
    targets that configuration names, kept up to date as replicas come and go.
    """

    def __init__(
        self, stack: EmulatedStack, directory: Path, *, address: str, advertised: str, port: int, speed_up: float
    ) -> None:
        self._stack = stack
        self._runner = WallClockRunner(stack.clock, speed_up=speed_up, after_tick=self._follow_targets)
        self._paths: dict[str, Target] = {}
        self._written_generation = -1
        _make_directory(directory / "targets")
        self._server = _bind(address, port, self)
        self._authority = f"{advertised}:{self._server.server_port}"
        self.url = f"http://{self._authority}"
        self.config_path = directory / "servescope.toml"
        self.file_sd_paths = [
            directory / "targets" / f"{deployment.plan.identity.deployment_id}.json" for deployment in stack.deployments
        ]
        self._serving = threading.Thread(
            target=self._server.serve_forever, name="servescope-emulator-http", daemon=True
        )

    def start(self) -> None:
        """Serve, write the files and let time pass; once the configuration is there, everything is."""
        self._serving.start()
        self._follow_targets()
        _replace_file(self.config_path, format_configuration(self._stack.deployments))
        self._runner.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the emulation ends, at most `seconds`; raises ServescopeError when it failed."""
        self._runner.wait(seconds)
        failure = self._runner.failure
        if isinstance(failure, ServescopeError):
            raise failure
        if failure is not None:
            raise ServescopeError(f"the emulation failed: {failure!r}") from failure

    def close(self) -> None:
        """Stop time and the server; the files stay."""
        self._runner.close()
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

    def answer(self, path: str) -> tuple[HTTPStatus, bytes]:
        """What a GET of `path` is answered; 410 for a replica that is gone. For any thread."""
        if self._runner.failure is not None:
            return HTTPStatus.INTERNAL_SERVER_ERROR, b"the emulation has failed\n"
        # Under the lock, so that a scrape sees all figures of one moment.
        with self._runner.lock:
            target = self._paths.get(path)
            if target is not None:
                return HTTPStatus.OK, render(target.instruments)
            if path == "/":
                return HTTPStatus.OK, "".join(f"{self.url}{path}\n" for path in self._paths).encode()
            if any(deployment.is_gone(path) for deployment in self._stack.deployments):
                return HTTPStatus.GONE, b"this replica is gone\n"
        return HTTPStatus.NOT_FOUND, b"nothing here, / lists what there is\n"

    def _follow_targets(self) -> None:
        """Serve and list what exists now, if that changed."""
        with self._runner.lock:
            if self._stack.generation == self._written_generation:
                return
            self._written_generation = self._stack.generation
            by_deployment = [deployment.targets() for deployment in self._stack.deployments]
            paths = {target.path: target for targets in by_deployment for target in targets}
            self._paths = paths
        for path, targets in zip(self.file_sd_paths, by_deployment, strict=True):
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
) -> RunningEmulator:
    """An emulated stack that runs, its files in `directory`; `port` 0 takes a free one.

    It listens on `address`; the lists of targets name it `advertised`, which is the address when left out, or
    127.0.0.1 when that is every address of the machine. The first `warm_up_seconds` of its life pass at once, so that
    there is traffic from the first scrape on.
    """
    stack = stack or EmulatedStack()
    stack.clock.run_until(warm_up_seconds)
    name = advertised or (ADDRESS if address in _EVERYWHERE else address)
    running = RunningEmulator(stack, directory, address=address, advertised=name, port=port, speed_up=speed_up)
    try:
        running.start()
    except BaseException:
        running.close()
        raise
    return running


def format_file_sd(targets: list[Target], address: str) -> str:
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


def format_configuration(deployments: list[Deployment]) -> str:
    """A collector configuration that collects all deployments; its paths are relative to the file."""
    lines = [
        "# Written by `servescope emulate`; `servescope collect --config` reads it.",
        "[collector]",
        'store = "servescope.db"',
        f'scrape_interval = "{_SCRAPE_INTERVAL}"',
        f'scrape_timeout = "{_SCRAPE_INTERVAL}"',
        f'evaluation_interval = "{_SCRAPE_INTERVAL}"',
        f'window = "{_WINDOW}"',
    ]
    for deployment in deployments:
        identity = deployment.plan.identity
        lines += ["", "[[deployments]]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in identity.labels()]
        lines += ["[[deployments.file_sd]]", f'files = ["targets/{identity.deployment_id}.json"]']
    return "\n".join(lines) + "\n"


def _replace_file(path: Path, text: str) -> None:
    """Write a file in one move: whoever reads it sees the old text or the new, never half of one."""
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


def _bind(address: str, port: int, running: RunningEmulator) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds; a client that says nothing does not hold a thread for ever

        def do_GET(self) -> None:
            status, body = running.answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing: a line per scrape tells nobody anything."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    try:
        return Server((address, port), Handler)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {address}:{port}: {error}") from error
