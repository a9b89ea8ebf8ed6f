"""`servescope translate`: answer probes until Ctrl-C or SIGTERM; SIGHUP reads the configuration again."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from servescope.collector.command import allow_connections, warn_of_openness
from servescope.errors import ServescopeError, require_extra
from servescope.settings.command_line import cannot_listen, configure_listen, read_listen
from servescope.settings.signals import stop_at_signals

if TYPE_CHECKING:
    from aiohttp.web import Application

    from servescope.translate.config import ProbeConfiguration
    from servescope.translate.prober import Prober

_logger = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope translate`."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", default=Path("translate.toml"),
        help="configuration (default: %(default)s)",
    )  # fmt: skip
    configure_listen(parser, "address to serve on (default: the configuration's)")
    parser.add_argument("--check", action="store_true", help="read the configuration, and end")
    parser.add_argument("--verbose", action="store_true", help="log every probe that fails")


def run(arguments: argparse.Namespace) -> int:
    """Translate until SIGINT or SIGTERM."""
    require_extra("collector", "aiohttp")
    configuration = _read(arguments)
    if arguments.check:
        return 0
    level = logging.DEBUG if arguments.verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.INFO)
    allow_connections()
    asyncio.run(_serve(configuration, arguments))
    return 0


def _read(arguments: argparse.Namespace) -> ProbeConfiguration:
    from servescope.translate.config import read_probe_configuration

    configuration = read_probe_configuration(arguments.config)
    if arguments.listen is None:
        return configuration
    return replace(configuration, listen=read_listen(arguments))


async def _serve(configuration: ProbeConfiguration, arguments: argparse.Namespace) -> None:
    from servescope.collector.scrapes.fetch import HttpFetch
    from servescope.translate.allowed import AllowedResolver
    from servescope.translate.prober import Prober
    from servescope.translate.serve import make_translate_application
    from servescope.translate.telemetry import ProbeTelemetry
    from servescope.web.connections import open_session
    from servescope.web.listening import Listener

    resolver = AllowedResolver(configuration.networks, configuration.claims)
    async with open_session(resolver) as session:
        prober = Prober(configuration, HttpFetch(session, redirects=0), resolver, ProbeTelemetry())
        application = make_translate_application(prober)
        stop = stop_at_signals()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: _reload(prober, application, arguments))
        listener = Listener(application, certificates=configuration.api.certificates())
        try:
            await listener.start(*configuration.listen)
        except OSError as error:
            raise cannot_listen(*configuration.listen, error) from error
        scheme = "http" if configuration.api.tls_cert_file is None else "https"
        for address in listener.addresses:
            _logger.info("translating at %s://%s:%d/probe", scheme, *address)
        warn_of_openness(configuration.listen[0], configuration.api)
        await stop.wait()
        _logger.info("stopping")
        await listener.close()


def _reload(prober: Prober, application: Application, arguments: argparse.Namespace) -> None:
    """Read the configuration again; one that is wrong is logged, and the former stays. The listener stays as it is."""
    from servescope.translate.serve import apply_configuration

    try:
        apply_configuration(prober, application, _read(arguments))
    except ServescopeError as error:
        prober.telemetry.reload_success.set(0)
        _logger.warning("not reloaded: %s", error)
    else:
        prober.telemetry.reload_success.set(1)
        _logger.info("reloaded")
