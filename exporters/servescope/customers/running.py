"""`servescope customers run`: the lanes of all customers, and a listener with the pages of customers and operators."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from servescope.collector.api.bounds import Bounds
from servescope.collector.api.gate import GATE, Gate
from servescope.collector.api.listening import Listener
from servescope.collector.api.settings import ApiSettings
from servescope.customers.config import read_policies
from servescope.customers.cursors import CursorFile
from servescope.customers.program import CustomersProgram
from servescope.customers.telemetry import CustomersTelemetry
from servescope.errors import ServescopeError, UsageError
from servescope.exposition.negotiation import OPENMETRICS, TEXT, wants_openmetrics
from servescope.settings.clock import program_clock
from servescope.settings.values import parse_address
from servescope.store.history import History
from servescope.store.opening import open_past

_logger = logging.getLogger(__name__)


def serve_customers(arguments: argparse.Namespace, cursors_path: Path) -> int:
    """Deliver and serve until SIGINT or SIGTERM; raises ServescopeError when it cannot begin."""
    try:
        host, port = parse_address(arguments.listen)
    except ValueError:
        raise UsageError(f"--listen {arguments.listen!r} is not HOST:PORT, such as 127.0.0.1:9920") from None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    read_policies(arguments.config)  # what is wrong with it is said before anything is opened
    with open_past(arguments) as history, CursorFile(cursors_path, deliver=True) as cursors:
        asyncio.run(_serve_until_signalled(arguments.config, history, cursors, host, port))
    return 0


async def _serve_until_signalled(config: Path, history: History, cursors: CursorFile, host: str, port: int) -> None:
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    program = CustomersProgram(history, cursors, program_clock())
    listener = Listener(make_application(program.telemetry, host))
    try:
        await listener.start(host, port)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ServescopeError(f"cannot listen on {host}:{port}: {reason}") from error
    for address in listener.addresses:
        _logger.info("serving http://%s:%d/metrics", *address)
    tasks = [
        asyncio.create_task(_keep_applied(program, config, reload)),
        asyncio.create_task(program.tidy()),
        asyncio.create_task(stop.wait()),
    ]
    try:
        await program.apply(read_policies(config))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await program.close()
        await listener.close()


async def _keep_applied(program: CustomersProgram, config: Path, reload: asyncio.Event) -> None:
    """Apply the configuration again at each SIGHUP; one that is wrong is reported, and the former one stays."""
    while True:
        await reload.wait()
        reload.clear()
        try:
            await program.apply(read_policies(config))
        except ServescopeError as error:
            _logger.error("the configuration is not applied: %s", error)  # noqa: TRY400 the text says all
        else:
            _logger.info("the configuration was applied")


def make_application(telemetry: CustomersTelemetry, host: str) -> web.Application:
    """The web application of the export on a host: the operator's pages."""
    gate = Gate(Bounds(), ApiSettings().tokens(), telemetry, listens_on=host)
    application = web.Application(middlewares=[gate.pass_through])
    application[GATE] = gate

    async def metrics(request: web.Request) -> web.Response:
        openmetrics = wants_openmetrics(request.headers.get("Accept"))
        render = generate_openmetrics if openmetrics else generate_latest
        return web.Response(body=render(telemetry), headers={"Content-Type": OPENMETRICS if openmetrics else TEXT})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    application.router.add_get("/metrics", metrics)
    application.router.add_get("/healthz", healthy)
    return application
