"""`servescope customers run`: the lanes of all customers, the pages they scrape, and our own `/metrics`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import time
from collections.abc import Container, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from servescope.customers.config import read_policies, read_usable_policies
from servescope.customers.lanes.claimed_past import ClaimedPast, apply_claims, claim_past
from servescope.customers.lanes.cursors import CursorFile, NoCursorsError
from servescope.customers.lanes.listener import make_pull_application
from servescope.customers.lanes.program import CustomersProgram
from servescope.customers.lanes.prometheus_past import warn_of_prometheus
from servescope.customers.lanes.telemetry import CustomersTelemetry
from servescope.customers.policy.policy import Policy
from servescope.customers.policy.secrecy import warn_of_loose_files
from servescope.errors import ServescopeError
from servescope.exposition.negotiation import OPENMETRICS, TEXT, wants_openmetrics
from servescope.settings.clock import program_clock
from servescope.settings.command_line import cannot_listen, read_listen
from servescope.settings.signals import stop_at_signals
from servescope.settings.values import is_loopback
from servescope.store.history import History
from servescope.store.opening import open_history
from servescope.web.bounds import Bounds
from servescope.web.certificates import Certificates
from servescope.web.gate import GATE, Gate
from servescope.web.listening import Listener
from servescope.web.settings import ApiSettings, read_api_options

_logger = logging.getLogger(__name__)

Startable = tuple[tuple[Policy, ...], tuple[str, ...]]
"""The policies of the customers that can be delivered to, and the names of those that are left out."""


class _Addresses(NamedTuple):
    """Where it listens: for ourselves, and for customers, with their certificates."""

    own: tuple[str, int]
    pull: tuple[str, int]
    pull_certificates: Certificates | None


def serve_customers(arguments: argparse.Namespace, cursors_path: Path) -> int:
    """Deliver and serve until SIGINT or SIGTERM; raises ServescopeError when it cannot begin."""
    addresses = _Addresses(
        read_listen(arguments),
        read_listen(arguments, option="--pull-listen"),
        read_api_options(arguments, "pull").certificates(),
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # What is wrong with it is reported before anything is opened.
    startable = read_startable(arguments.config, _read_removed(cursors_path))
    with open_history(arguments) as history, CursorFile(cursors_path, deliver=True) as cursors:
        history = claim_past(history, arguments.config, startable[0])
        warn_of_prometheus(history, startable[0])
        asyncio.run(_serve_until_signalled(arguments.config, startable, history, cursors, addresses))
    return 0


def read_startable(config: Path, removed: Container[str] = ()) -> Startable:
    """The customers to begin with, and the names of those whose tables cannot be used, which is logged.

    Raises ConfigurationError when none can be used, or when it is not clear whose a deployment is.
    """
    policies, problems = read_usable_policies(config, removed)
    for problem in problems.values():
        if not policies:
            raise problem
        _logger.error("a customer is left out until the configuration is applied again (SIGHUP): %s", problem)
    warn_of_loose_files(policies)
    return policies, tuple(problems)


def _read_removed(cursors_path: Path) -> Mapping[str, int]:
    try:
        with CursorFile(cursors_path) as cursors:
            return cursors.removed()
    except NoCursorsError:
        return {}


async def _serve_until_signalled(
    config: Path, startable: Startable, history: History, cursors: CursorFile, addresses: _Addresses
) -> None:
    stop, reload = stop_at_signals(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    async with AsyncExitStack() as ends:
        program = CustomersProgram(history, cursors, program_clock())
        if isinstance(history, ClaimedPast):
            program.telemetry.count_claims = history.claimants.count_withheld
        ends.push_async_callback(program.close)
        await program.apply(*startable)
        own = Listener(make_application(program.telemetry, addresses.own[0]))
        await _listen(own, addresses.own, "/metrics", ends)
        pull = Listener(
            make_pull_application(program.pulls, program.telemetry, time.monotonic),
            certificates=addresses.pull_certificates,
        )
        await _listen(pull, addresses.pull, "/customers/NAME/metrics", ends)
        if not is_loopback(addresses.pull[0]) and addresses.pull_certificates is None:
            _logger.warning("customers' tokens cross the network unencrypted; --pull-cert-file encrypts them")
        tasks = [
            asyncio.create_task(_keep_applied(program, history, cursors, config, reload)),
            asyncio.create_task(program.end_removed()),
            asyncio.create_task(program.follow_clock()),
            asyncio.create_task(program.tidy()),
            asyncio.create_task(stop.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(listener: Listener, address: tuple[str, int], path: str, ends: AsyncExitStack) -> None:
    host, port = address
    try:
        await listener.start(host, port)
    except OSError as error:
        option = "--listen" if path == "/metrics" else "--pull-listen"
        raise cannot_listen(host, port, error, option=option) from error
    ends.push_async_callback(listener.close)
    for found in listener.addresses:
        _logger.info("serving %s on %s:%d", path, *found)


async def _keep_applied(
    program: CustomersProgram, history: History, cursors: CursorFile, config: Path, reload: asyncio.Event
) -> None:
    """Apply the configuration again at each SIGHUP; one that is wrong is reported, and the former one stays."""
    while True:
        await reload.wait()
        reload.clear()
        try:
            policies = read_policies(config, cursors.removed())
            apply_claims(history, config, policies)
            await program.apply(policies)
        except ServescopeError as error:
            _logger.error("the configuration is not applied: %s", error)  # noqa: TRY400 the text says all
        else:
            warn_of_loose_files(policies)
            _logger.info("the configuration was applied")


def make_application(telemetry: CustomersTelemetry, host: str) -> web.Application:
    """The web application of the operator's own page, listening on a host."""
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
