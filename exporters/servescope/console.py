"""`servescope console`: the Streamlit console on a collector's store, or on a Prometheus, as a child process.

It listens on 127.0.0.1 by default, and serves only requests whose Host is an address, `localhost` or a configured name;
`--auth` says how readers sign in. The pages are in `app/` of a checkout and in `servescope/_app` of an installed wheel.

What reads the file of an option is imported once it is given: all of it takes four times as long as the rest.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from servescope.emulator.server.control_client import EMULATOR_VARIABLE, ControlClient
from servescope.errors import ServescopeError, UsageError, how_to_install
from servescope.settings.command_line import (
    cannot_listen,
    configure_listen,
    format_address,
    reached_at,
    read_listen,
)
from servescope.settings.sign_in import DEFAULT_HEADER, SIGN_INS, SignIn, check_proxies, check_secrets
from servescope.settings.tables import read_document
from servescope.settings.values import is_loopback
from servescope.store.prometheus.options import OPTIONS, PROMETHEUS_VARIABLE, connect
from servescope.store.prometheus.options import configure as configure_access

DEFAULT_LISTEN = "127.0.0.1:8501"
STORE_VARIABLE = "SERVESCOPE_STORE"
"""The environment variable with the path of the store that the pages read."""
SIGN_IN_VARIABLE = "SERVESCOPE_CONSOLE_SIGN_IN"
"""The environment variable with how readers sign in and who may decide, as JSON without secrets."""
PLAN_VARIABLE = "SERVESCOPE_PLAN"
"""The environment variable with the path of the plan of the cutover that the pages judge."""
JOURNAL_VARIABLE = "SERVESCOPE_JOURNAL"
"""The environment variable with the path of the journal of that plan's runs and decisions."""
ALERTMANAGERS_VARIABLE = "SERVESCOPE_ALERTMANAGERS"
"""The environment variable with the path of the configuration whose Alertmanagers' silences the pages show."""
RULES_VARIABLE = "SERVESCOPE_RULES"
"""The options of the rules, whose objectives and stacks the pages show; empty for the catalog's."""
CUSTOMERS_VARIABLE = "SERVESCOPE_CUSTOMERS"
"""The environment variable with the path of the configuration of the export to customers; empty without its page."""
CURSORS_VARIABLE = "SERVESCOPE_CURSORS"
"""The environment variable with the path of the file that has what was delivered to those customers."""
HOSTS_VARIABLE = "SERVESCOPE_CONSOLE_HOSTS"
"""The environment variable with the host names, beside `localhost`, under which the console is served; spaced."""

STORE_SECONDS = 5.0
READY_SECONDS = 120.0
END_SECONDS = 5.0
_NEEDED = ("streamlit", "pandas", "altair")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


class ConsoleError(ServescopeError):
    """The console cannot start, or ended by itself."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--store", type=Path, metavar="PATH", help="the collector's store (default: servescope.db)")
    parser.add_argument(
        "--prometheus", metavar="URL", help="read a Prometheus that scrapes collectors, in place of a store"
    )
    configure_access(parser)
    parser.add_argument("--plan", type=Path, metavar="FILE", help="the plan of the cutover that the pages judge")
    parser.add_argument(
        "--journal", type=Path, metavar="FILE",
        help="the journal of the plan's runs and decisions (default: beside the plan, ending in .journal.db)",
    )  # fmt: skip
    parser.add_argument(
        "--alertmanagers", type=Path, metavar="FILE",
        help="show the silences of the Alertmanagers in this configuration, as a collector's servescope.toml",
    )  # fmt: skip
    parser.add_argument(
        "--rules",
        type=Path,
        metavar="FILE",
        help="show the objectives and the stacks of these options of `servescope rules`",
    )
    parser.add_argument(
        "--customers", type=Path, metavar="FILE",
        help="add a page on the export to the customers of this configuration (see `servescope customers`)",
    )  # fmt: skip
    parser.add_argument(
        "--cursors", type=Path, metavar="FILE",
        help="what was delivered to those customers (default: beside their configuration, *.cursors.db)",
    )  # fmt: skip
    parser.add_argument(
        "--emulator", metavar="URL",
        help="add a page that switches the faults of the emulated stack at this address (see `servescope emulate`)",
    )  # fmt: skip
    configure_listen(
        parser,
        f"address to serve on, port 0 for a free one; open it to others with --auth only (default: {DEFAULT_LISTEN})",
        aliases=("port", "address"),
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="host name under which browsers reach the console, beside localhost and addresses; may be repeated",
    )  # fmt: skip
    _configure_sign_in(parser)
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def _configure_sign_in(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sign-in", "who may read the pages, and who may decide")
    group.add_argument(
        "--auth", choices=SIGN_INS, default="none",
        help="how readers sign in: not at all, by OpenID Connect, or at a proxy in front (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--auth-secrets", type=Path, metavar="FILE",
        help="of oidc: TOML with the table [auth] of Streamlit's login (redirect_uri, cookie_secret, client_id, "
        "client_secret, server_metadata_url)",
    )  # fmt: skip
    group.add_argument(
        "--auth-header", metavar="NAME",
        help=f"of proxy: the header with the reader's name (default: {DEFAULT_HEADER})",
    )  # fmt: skip
    group.add_argument(
        "--auth-proxy", action="append", default=[], metavar="ADDRESS",
        help="of proxy: address or network whose header is believed; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--decider", action="append", default=[], metavar="NAME",
        help="who may write decisions and plans, as the sign-in names them; others only read; may be repeated",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Serve the console until Ctrl-C or SIGTERM."""
    _check_extra()
    pages = find_app()
    variables = _choose_hosts(arguments.allow_host) | _choose_emulator(arguments.emulator)
    variables |= _choose_alertmanagers(arguments.alertmanagers) | _choose_rules(arguments.rules)
    address, wanted = read_listen(arguments, default=DEFAULT_LISTEN)
    variables |= _choose_sign_in(arguments, is_local=is_loopback(address)) | _choose_plan(
        arguments.plan, arguments.journal
    )
    variables |= _choose_customers(arguments.customers, arguments.cursors)
    place, read = _choose_history(arguments)
    variables |= read
    port = _free_port(address, wanted)
    # A closed terminal ends us as Ctrl-C does; the child, in its own session, does not get its SIGHUP.
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    child = _launch(pages, variables, address, port, arguments.auth_secrets)
    try:
        _wait_until_ready(child, address, port)
        url = _url(address, port)
        print(f"servescope: the console is at {url}, on {place}; Ctrl-C ends it", flush=True)
        if not arguments.no_browser:
            _open_browser(url)
        code = child.wait()
    finally:
        _end(child)
    raise ConsoleError(f"the console ended by itself with code {code}")


def find_app() -> Path:
    """The script that Streamlit serves: of the installed wheel, else of the checkout this package is in."""
    package = Path(__file__).resolve().parent
    places = (package / "_app" / "server.py", package.parents[1] / "app" / "server.py")
    for place in places:
        if place.is_file():
            return place
    raise ConsoleError(f"the console's pages are in neither {places[0]} nor {places[1]}; install the wheel again")


def _check_extra() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"the console needs {', '.join(missing)}: {how_to_install('console')}")


def _choose_history(arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """What the pages read: in words, and as the environment variables of their process."""
    if arguments.prometheus is None:
        for option in OPTIONS:
            if getattr(arguments, option):
                raise UsageError(f"--{option.replace('_', '-')} goes with --prometheus")
        store = arguments.store or Path("servescope.db")
        _check_store(store)
        return str(store), {STORE_VARIABLE: str(store.resolve()), PROMETHEUS_VARIABLE: ""}
    if arguments.store is not None:
        raise UsageError("--store and --prometheus are both given, expected one of them")
    options = {name: getattr(arguments, name) for name in OPTIONS}
    _check_prometheus(arguments.prometheus, options)
    return arguments.prometheus, {PROMETHEUS_VARIABLE: json.dumps({"url": arguments.prometheus, **options})}


def _choose_emulator(url: str | None) -> dict[str, str]:
    """The emulator whose faults the pages switch, as their environment variable; empty without one."""
    if url is not None:
        ControlClient(url)  # raises UsageError for what is no URL
    return {EMULATOR_VARIABLE: url or ""}


def _choose_alertmanagers(path: Path | None) -> dict[str, str]:
    """The Alertmanagers, as the environment variable of the pages' process; raises ConfigurationError."""
    if path is None:
        return {ALERTMANAGERS_VARIABLE: ""}
    from servescope.collector.paging.settings import read_alertmanagers

    read_alertmanagers(path)
    return {ALERTMANAGERS_VARIABLE: str(path.resolve())}


def _choose_rules(path: Path | None) -> dict[str, str]:
    """The options of the rules, as the environment variable of the pages' process; raises ConfigurationError."""
    if path is None:
        return {RULES_VARIABLE: ""}
    from servescope.alerting.chosen import read_choices_file

    read_choices_file(path)
    return {RULES_VARIABLE: str(path.resolve())}


def _choose_sign_in(arguments: argparse.Namespace, *, is_local: bool) -> dict[str, str]:
    """How readers sign in, as the environment variable of the pages' process; raises UsageError."""
    kind, deciders = arguments.auth, tuple(arguments.decider)
    for option, value, wanted in (
        ("--auth-secrets", arguments.auth_secrets, "oidc"),
        ("--auth-header", arguments.auth_header, "proxy"),
        ("--auth-proxy", arguments.auth_proxy, "proxy"),
    ):
        if value and kind != wanted:
            raise UsageError(f"{option} goes with --auth {wanted}")
    if deciders and kind == "none":
        raise UsageError("--decider goes with --auth oidc or --auth proxy: without a sign-in names are not known")
    if kind == "oidc":
        if arguments.auth_secrets is None:
            raise UsageError("--auth oidc needs --auth-secrets FILE")
        if find_spec("authlib") is None:
            raise UsageError(f"--auth oidc needs authlib: {how_to_install('console')}")
        check_secrets(arguments.auth_secrets)
    if kind == "proxy" and not arguments.auth_proxy:
        raise UsageError("--auth proxy needs --auth-proxy ADDRESS: a header of anybody else could be made up")
    chosen = SignIn(
        kind,
        arguments.auth_header or DEFAULT_HEADER,
        check_proxies(arguments.auth_proxy),
        deciders,
        is_local=is_local,
    )
    return {SIGN_IN_VARIABLE: chosen.to_json()}


def _choose_plan(plan: Path | None, journal: Path | None) -> dict[str, str]:
    """The plan and its journal, as environment variables of the pages' process; raises UsageError."""
    if plan is None:
        if journal is not None:
            raise UsageError("--journal goes with --plan")
        return {PLAN_VARIABLE: "", JOURNAL_VARIABLE: ""}
    from servescope.cutover.plan.files import parse_plan
    from servescope.judge.journal.journal import CutoverJournal

    if plan.exists():
        document = read_document(plan, "plan")
        parse_plan(document, str(plan))
    elif not plan.parent.is_dir():
        raise UsageError(f"plan {str(plan)!r}: there is no directory {str(plan.parent)!r}")
    chosen = journal or plan.with_suffix(".journal.db")
    if chosen.exists():
        CutoverJournal(chosen).close()
    return {PLAN_VARIABLE: str(plan.resolve()), JOURNAL_VARIABLE: str(chosen.resolve())}


def _choose_customers(config: Path | None, cursors: Path | None) -> dict[str, str]:
    """The export to customers, as environment variables of the pages' process; raises UsageError."""
    if config is None:
        if cursors is not None:
            raise UsageError("--cursors goes with --customers")
        return {CUSTOMERS_VARIABLE: "", CURSORS_VARIABLE: ""}
    from servescope.customers.config import read_usable_policies
    from servescope.customers.lanes.cursors import CursorFile, find_cursors

    read_usable_policies(config)
    chosen = cursors or find_cursors(config)
    if chosen.exists():
        CursorFile(chosen).close()
    return {CUSTOMERS_VARIABLE: str(config.resolve()), CURSORS_VARIABLE: str(chosen.resolve())}


def _choose_hosts(names: Sequence[str]) -> dict[str, str]:
    """The host names to serve, as the environment variable of the pages' process; raises UsageError."""
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise UsageError(f"--allow-host {name!r} is no host name, expected one like 'console.example.com'")
    return {HOSTS_VARIABLE: " ".join(names)}


def _check_prometheus(url: str, options: Mapping[str, object]) -> None:
    """Query it once, so that an error is reported at the start; raises UsageError, and prints what it lacks."""
    from servescope.store.prometheus.history import SCRAPE_COLLECTOR, PrometheusHistory

    found = PrometheusHistory(connect(url, options)).listed_deployments()
    if not found:
        print(
            f"servescope: {url} holds no series of the contract; have it scrape a collector:\n\n{SCRAPE_COLLECTOR}",
            file=sys.stderr,
        )


def _check_store(path: Path) -> None:
    """Open the store once, so that an error is reported at the start and not on every page."""
    from servescope.store.embedded import Store

    if not path.exists():
        _wait_for_store(path)
    Store(path, read_only=True).close()


def _wait_for_store(path: Path) -> None:
    """Wait for the store of a collector that was started just before the console."""
    print(f"servescope: no store at {str(path)!r} yet, waiting {STORE_SECONDS:.0f} s for a collector", file=sys.stderr)
    deadline = time.monotonic() + STORE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise UsageError(
                f"no store at {str(path)!r}: start `servescope collect --store {path}`, or name another with --store"
            )
        time.sleep(0.1)
    # Its tables come a moment after the file.
    time.sleep(0.5)


def _url(address: str, port: int) -> str:
    return f"http://{format_address(reached_at(address), port)}"


def _free_port(address: str, wanted: int) -> int:
    """The port wanted, or a free one for 0; raises ServescopeError when it is taken."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        # As the server will bind it: a port whose last connections are still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, wanted))
        except OSError as error:
            raise cannot_listen(address, wanted, error) from error
        port: int = probe.getsockname()[1]
        return port


def _launch(
    pages: Path, variables: Mapping[str, str], address: str, port: int, secrets: Path | None
) -> subprocess.Popen[bytes]:
    options = {
        "server.address": address,
        "server.port": str(port),
        # Headless: no question for an e-mail address, no browser of its own.
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.serverAddress": reached_at(address),
        "browser.gatherUsageStats": "false",
        # One run a session: a new one interrupts the old one, and does not compute beside it.
        "runner.fastReruns": "false",
        # A full collection after each run, interrupted ones included, stops the server for longer than most runs take.
        "runner.postScriptGC": "false",
        # No page is written in bare expressions, for which each script would be parsed and changed.
        "runner.magicEnabled": "false",
        "logger.level": "warning",
        # What the readiness page takes, which is what is uploaded, has 1 MiB at most.
        "server.maxUploadSize": "2",
        "server.enableXsrfProtection": "true",
        "server.enableCORS": "true",
        # Pages of other sites, by default those of Streamlit's cloud, could have this one run by messages.
        "client.allowedOrigins": _url(address, port),
        # Without what is for those who develop a Streamlit app.
        "client.toolbarMode": "viewer",
    }
    if secrets is not None:
        options["secrets.files"] = str(secrets.resolve())
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    return subprocess.Popen(  # noqa: S603 - our own command line
        [sys.executable, "-m", "streamlit", "run", str(pages), *flags],
        stdin=subprocess.DEVNULL,
        # Streamlit's own announcement would repeat ours.
        stdout=subprocess.DEVNULL,
        # The peer of a request is whoever connected, and not whom a proxy says it speaks for: its own header is
        # believed by that address.
        env={**os.environ, **variables, "FORWARDED_ALLOW_IPS": ""},
        # A Ctrl-C in the terminal reaches us alone, and we end it.
        start_new_session=True,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )


def _end_with_parent() -> None:
    """Have the kernel end this process when its parent ends, killed or not; Linux only."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _wait_until_ready(child: subprocess.Popen[bytes], address: str, port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not _answers(_url(address, port)):
        if child.poll() is not None:
            raise ConsoleError(f"streamlit ended with code {child.returncode} before it served a page")
        if time.monotonic() > deadline:
            raise ConsoleError(f"streamlit did not answer on {address}:{port} within {READY_SECONDS:.0f} s")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        # Past a proxy of the environment, which does not reach this machine.
        with build_opener(ProxyHandler({})).open(f"{url}/_stcore/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _open_browser(url: str) -> None:
    import webbrowser

    # Without one the address just printed is enough.
    webbrowser.open(url)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
