"""The options by which commands and the console access a Prometheus."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from servescope.errors import UsageError
from servescope.settings.access import Access, Tls
from servescope.settings.values import split_header

if TYPE_CHECKING:
    from servescope.store.prometheus.client import Prometheus

PROMETHEUS_VARIABLE: Final = "SERVESCOPE_PROMETHEUS"
"""The environment variable with the Prometheus that the console's pages read, as JSON for `connect`."""


def configure(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the arguments for access to a Prometheus."""
    parser.add_argument("--bearer-token-file", metavar="FILE", help="token to send to the Prometheus, read anew")
    parser.add_argument("--username", metavar="NAME", help="for basic authentication, with --password-file")
    parser.add_argument("--password-file", metavar="FILE", help="password for basic authentication, read anew")
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE",
        help="header to send to the Prometheus, such as X-Scope-OrgID=tenant; may be repeated",
    )  # fmt: skip
    parser.add_argument("--ca-file", metavar="FILE", help="trust the Prometheus by these certificates alone")


def configure_history(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the arguments that choose a history: a store, or a Prometheus and the access to it; and as of when."""
    parser.add_argument("--store", type=Path, metavar="PATH", help="the collector's store (default: servescope.db)")
    parser.add_argument("--prometheus", metavar="URL", help="a Prometheus that has the series, in place of a store")
    configure(parser)
    parser.add_argument(
        "--at", metavar="TIME", help="as of when: 2026-11-20T14:00:00Z, or 2h for two hours ago (default: now)"
    )


def open_prometheus(url: str, arguments: argparse.Namespace) -> Prometheus:
    """The Prometheus that a command's arguments name; raises UsageError."""
    options = {name: getattr(arguments, name) for name in OPTIONS}
    return connect(url, options)


OPTIONS: Final = ("bearer_token_file", "username", "password_file", "header", "ca_file")
"""The arguments of `configure`, which `connect` reads."""


def connect(url: str, options: Mapping[str, Any]) -> Prometheus:
    """The Prometheus at `url`, accessed with these options; raises UsageError."""
    from servescope.store.prometheus.client import Prometheus  # with numpy, which most who only read options do without

    headers = tuple(_split_header(each) for each in options.get("header") or ())
    if (options.get("username") is None) != (options.get("password_file") is None):
        raise UsageError("--username and --password-file go together")
    if options.get("username") is not None and options.get("bearer_token_file") is not None:
        raise UsageError("--username and --bearer-token-file are both given, expected one of them")
    access = Access(
        headers=headers,
        bearer_token_file=options.get("bearer_token_file"),
        basic_auth_username=options.get("username"),
        basic_auth_password_file=options.get("password_file"),
        tls=Tls(ca_file=options.get("ca_file")),
    )
    problem = access.find_problem()
    if problem:
        raise UsageError(f"access to the Prometheus: {problem}")
    return Prometheus(url, access)


def _split_header(text: str) -> tuple[str, str]:
    header = split_header(text)
    if header is None:
        # The value may be a secret, so the text is not shown.
        raise UsageError("--header is not NAME=VALUE, such as X-Scope-OrgID=tenant")
    return header
