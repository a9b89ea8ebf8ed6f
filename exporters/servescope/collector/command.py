"""`servescope collect`: scrape targets, derive figures, store and serve them, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import shlex
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from servescope.alerting.rules.links import RUNBOOKS
from servescope.collector.config import DEFAULT_FILE, Configuration, configure_targets, read_configuration
from servescope.contract.identity import UNKNOWN_MODEL
from servescope.errors import ServescopeError, UsageError, require_extra
from servescope.settings.clock import program_clock
from servescope.settings.command_line import cannot_listen, configure_listen, read_listen
from servescope.settings.signals import stop_at_signals

if TYPE_CHECKING:
    from servescope.collector.collector import Collector
    from servescope.web.listening import Listener
    from servescope.web.settings import ApiSettings

_logger = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope collect`."""
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"configuration (default: {DEFAULT_FILE})")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="[NAME=]URL",
        help="scrape this URL, without a configuration; repeat it, with one NAME for the replicas of one deployment",
    )
    parser.add_argument(
        "--model-name", metavar="NAME", help="model of all --target deployments (default: what their pages name)"
    )
    parser.add_argument("--inference-stack", metavar="NAME", help="stack of all --target deployments (default: NAME)")
    parser.add_argument("--store", type=Path, metavar="PATH", help="the store (default: the configuration's)")
    configure_listen(parser, "address to serve on (default: the configuration's)")
    parser.add_argument("--verbose", action="store_true", help="log more")


def run(arguments: argparse.Namespace) -> int:
    """Collect until SIGINT or SIGTERM."""
    require_extra("collector", "aiohttp")
    configuration = read_arguments(arguments)
    level = logging.DEBUG if arguments.verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.INFO)
    allow_connections()
    asyncio.run(_collect_until_signalled(configuration, _rereading(arguments)))
    return 0


def allow_connections() -> None:
    """Open as many files as the system lets us: each target keeps a connection, and 1024 are the usual allowance."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError) as error:
        # Some systems name a limit that they do not grant.
        _logger.warning("at most %d files can be open at a time, a target needs one: %s", soft, error)


def _rereading(arguments: argparse.Namespace) -> Callable[[], Configuration] | None:
    return None if arguments.target else lambda: read_arguments(arguments)


def read_arguments(arguments: argparse.Namespace) -> Configuration:
    """The configuration that the command line selects."""
    configuration = _choose_configuration(arguments)
    settings = configuration.collector
    if arguments.store is not None:
        settings = replace(settings, store=arguments.store)
    if arguments.listen is not None:
        settings = replace(settings, listen=read_listen(arguments))
    return replace(configuration, collector=settings)


def _choose_configuration(arguments: argparse.Namespace) -> Configuration:
    if arguments.config is not None and arguments.target:
        raise UsageError("--config and --target are both given, expected one of them")
    if arguments.target:
        model_name, stack = arguments.model_name or UNKNOWN_MODEL, arguments.inference_stack
        return configure_targets(arguments.target, model_name=model_name, inference_stack=stack)
    for option in ("model_name", "inference_stack"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} goes with --target; the configuration names its own")
    path = arguments.config or Path(DEFAULT_FILE)
    if arguments.config is None and not path.exists():
        raise UsageError(f"no --target given and no {DEFAULT_FILE} here; expected --config FILE or --target [NAME=]URL")
    return read_configuration(path)


async def _collect_until_signalled(
    configuration: Configuration, reread: Callable[[], Configuration] | None = None
) -> None:
    stop, reload = stop_at_signals(), asyncio.Event()
    if reread is not None:
        # Without a file SIGHUP keeps its default: it ends the collector when the terminal is closed.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    await collect(configuration, stop, reload=reload, reread=reread)


async def collect(
    configuration: Configuration,
    stop: asyncio.Event,
    *,
    reload: asyncio.Event | None = None,
    reread: Callable[[], Configuration] | None = None,
) -> None:
    """Scrape, derive, store and serve until `stop` is set; then the store is closed. Raises ServescopeError.

    Whenever `reload` is set, the configuration that `reread` returns is applied.
    """
    from servescope.collector.collector import Collector
    from servescope.collector.discovery.targets import check_targets
    from servescope.collector.scrapes.fetch import HttpFetch
    from servescope.store.embedded import Store
    from servescope.web.connections import open_session
    from servescope.web.resolver import Resolver

    # Before there is a store: a configuration that cannot run leaves nothing behind.
    check_targets(configuration)
    await _check_address(*configuration.collector.listen)
    resolver = Resolver()
    async with open_session(resolver) as scraping, open_session() as session:
        fetch, others = HttpFetch(scraping), HttpFetch(session)
        store = await asyncio.to_thread(Store.begin, configuration.collector.store)
        history = Store(configuration.collector.store, read_only=True, opened=False)
        try:
            clock = program_clock()
            collector = Collector(
                configuration,
                store,
                history,
                fetch,
                clock=clock.now,
                sleep=clock.sleep,
                fetch_list=others.list_targets,
                reread=reread,
                post=others.post,
            )
            # By the configuration that is applied; a connection that is open is used again.
            resolver.refuse = lambda *lead: collector.discovering.discovery.rights.claims.refuse_lead(*lead)
        except BaseException:
            store.close()
            history.close()
            raise
        try:
            listener = await _serve(collector, configuration.api)
            try:
                await _run_until(collector, stop, reload or asyncio.Event())
            finally:
                await listener.close()
        finally:
            await asyncio.to_thread(collector.close)


async def _reload_when_asked(collector: Collector, reload: asyncio.Event) -> None:
    while True:
        await reload.wait()
        reload.clear()
        # The error is in the log, on /metrics and in the API.
        with suppress(ServescopeError):
            await collector.reload()


async def _run_until(collector: Collector, stop: asyncio.Event, reload: asyncio.Event) -> None:
    reloading = asyncio.create_task(_reload_when_asked(collector, reload))
    running = asyncio.create_task(collector.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    reloading.cancel()
    running.cancel()
    try:
        await running
    except asyncio.CancelledError:
        _logger.info("stopping")


async def _check_address(host: str, port: int) -> None:
    """Raise ServescopeError when the address cannot be listened on."""
    try:
        trial = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    trial.close()
    await trial.wait_closed()


async def _serve(collector: Collector, api: ApiSettings) -> Listener:
    from servescope.collector.api.serve import make_application
    from servescope.web.listening import Listener

    host, port = collector.fleet.settings.listen
    listener = Listener(make_application(collector, api), certificates=api.certificates())
    try:
        await listener.start(host, port)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    scheme = "http" if api.tls_cert_file is None else "https"
    for address in listener.addresses:
        _logger.info("serving %s://%s:%d/metrics", scheme, *address)
    store = shlex.quote(str(collector.fleet.settings.store))
    _logger.info("to see it: servescope console --store %s, at %s", store, RUNBOOKS.partition("/alerts")[0])
    warn_of_openness(host, api)
    return listener


def warn_of_openness(host: str, api: ApiSettings) -> None:
    """Log what anybody could read who reaches the address."""
    from servescope.settings.values import is_loopback

    if is_loopback(host):
        return
    if not api.tokens().required:
        _logger.warning(
            "ANYBODY WHO REACHES %s CAN READ EVERYTHING: no bearer token is configured; "
            "set bearer_token_file under [api], or listen on 127.0.0.1",
            host,
        )
    elif api.tls_cert_file is None:
        _logger.warning(
            "bearer tokens travel to %s in the clear; set tls_cert_file and tls_key_file under [api], "
            "unless something in front of the collector speaks TLS",
            host,
        )
