"""`servescope inspect`: read an exposition from a URL or a file, and print what the contract gets from it."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.deployments import ScrapeSettings, check_url
from servescope.collector.targets.target import Target
from servescope.contract.identity import Identity
from servescope.contract.metrics import SEGMENT
from servescope.errors import UsageError, require_extra
from servescope.settings.access import SPEAKS_TLS, Access, Proxy
from servescope.settings.values import split_header
from servescope.sources.inspection import InspectionError, inspect
from servescope.sources.map_files import load_sources
from servescope.sources.parse import Exposition, ParseError, parse_exposition
from servescope.sources.parts import PagePart, read_select
from servescope.sources.report import render_json, render_text
from servescope.web.connections import FetchError

TIMEOUT_SECONDS = 10.0
LEAST_SECONDS, MOST_SECONDS = 0.001, 1e9
_SCHEMES = ("http", "https")
_ACCESS: Final = Access(proxy=Proxy(from_environment=True))
_LIMITS: Final = {
    "max_body_bytes": "bytes of an exposition",
    "max_series": "samples",
    "max_labels": "labels of one sample",
    "max_label_bytes": "bytes of a label's name or value",
    "max_line_bytes": "bytes of one line",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope inspect`."""
    parser.add_argument("exposition", metavar="URL|FILE", help="a /metrics endpoint, or a file with what one answered")
    parser.add_argument("later", metavar="LATER_FILE", nargs="?", help="what the same endpoint answered later")
    parser.add_argument(
        "--seconds", type=float, metavar="SECONDS", help="between the two files; a URL is read twice, so long apart"
    )
    parser.add_argument("--source", metavar="NAME", help=f"use this source map: {', '.join(load_sources())}")
    parser.add_argument(
        "--segment-label",
        metavar="LABEL",
        default=SEGMENT,
        help="label of its series that separates tenants, routes or priorities (default: %(default)s)",
    )
    parser.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="LABEL=VALUE",
        help="read only series with this label, of a page that measures several deployments; may be repeated, and "
        "'--select or' begins another set of labels, of which a series fits one",
    )
    group = parser.add_argument_group("access", "what is sent with the request to a URL; no value of it is printed")
    group.add_argument("--bearer-token-file", metavar="FILE", help="send the bearer token in this file")
    group.add_argument("--bearer-token-env", metavar="VARIABLE", help="send the bearer token in this variable")
    group.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="send this header; may be repeated"
    )
    parser.add_argument("--all", action="store_true", help="list the families that the map ignores, with the reasons")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="text (default) or json")
    defaults = ScrapeSettings()
    for name, what in _LIMITS.items():
        option, default = f"--{name.replace('_', '-')}", getattr(defaults, name)
        parser.add_argument(option, type=int, default=default, metavar="N", help=f"most {what} (default: {default})")


def run(arguments: argparse.Namespace) -> int:
    """Inspect and print; 1 when the source is unknown."""
    check_arguments(arguments)
    report = inspect(
        _read_expositions(arguments),
        subject=arguments.exposition,
        seconds=arguments.seconds,
        source_name=arguments.source,
        segment_label=arguments.segment_label,
        part=_read_part(arguments),
    )
    is_text = arguments.format == "text"
    sys.stdout.write(render_text(report, all_families=arguments.all) if is_text else render_json(report))
    return 0 if report.source else 1


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse arguments that contradict one another or name nothing; raises UsageError."""
    seconds, later = arguments.seconds, arguments.later
    if arguments.source is not None and arguments.source not in load_sources():
        raise UsageError(f"unknown source {arguments.source!r}, supported: {', '.join(load_sources())}")
    if seconds is not None and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds is {seconds!r}, expected {LEAST_SECONDS:g} to {MOST_SECONDS:g}")
    for name in _LIMITS:
        if getattr(arguments, name) < 1:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is {getattr(arguments, name)}, expected a whole number above 0")
    _read_part(arguments)
    access = _read_access(arguments)
    if _is_url(arguments.exposition):
        if later is not None:
            raise UsageError(f"a URL is read twice with --seconds SECONDS, without a later file: {_shown(later)}")
        require_extra("collector", "aiohttp")
    elif access != _ACCESS:
        raise UsageError(f"a token or a header is sent to a URL, and {_shown(arguments.exposition)} is a file")
    elif seconds is not None and later is None:
        raise UsageError(
            f"--seconds with the file {_shown(arguments.exposition)} alone, expected a later file, or a URL"
        )
    if later is not None and _is_url(later):
        raise UsageError(f"the later exposition is {_shown(later)}, expected a file")


def _read_part(arguments: argparse.Namespace) -> PagePart:
    try:
        return PagePart(read_select(arguments.select))
    except ValueError as error:
        raise UsageError(f"--select {error}") from None


def _read_access(arguments: argparse.Namespace) -> Access:
    """What is sent with a request, as a target's access keys say it; raises UsageError, which shows no value."""
    access = replace(
        _ACCESS,
        headers=tuple(map(_read_header, arguments.header)),
        bearer_token_file=arguments.bearer_token_file,
        bearer_token_env=arguments.bearer_token_env,
    )
    problem = access.find_problem()
    if problem is not None:
        raise UsageError(problem)
    return access


def _read_header(argument: str) -> tuple[str, str]:
    """The name and the value of a header."""
    header = split_header(argument)
    if header is None:
        # The value is not shown: it may be a secret.
        raise UsageError("--header is not NAME=VALUE, such as X-Api-Key=1234")
    return header


def _is_url(text: str) -> bool:
    """Whether the text is a URL; raises UsageError for one that cannot be fetched."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        return False
    if scheme.lower() not in _SCHEMES:
        raise UsageError(f"unsupported scheme {scheme!r} in {_shown(text)}, supported: {', '.join(_SCHEMES)}")
    try:
        check_url(text)
    except ValueError as error:
        if "@" in text:
            raise UsageError(
                "the URL carries credentials, which inspect does not send; use --bearer-token-file or --header"
            ) from None
        raise UsageError(f"{text!r} {error}") from None
    return True


def _shown(argument: str) -> str:
    """A URL or the name of a file as an error quotes it; one that may hold a password is not shown."""
    return "the value given" if "@" in argument and ":" in argument else repr(argument)


# --- Reading ----------------------------------------------------------------------------------------------------------


def _read_expositions(arguments: argparse.Namespace) -> tuple[Exposition, ...]:
    limits = Limits(TIMEOUT_SECONDS, **{name: getattr(arguments, name) for name in _LIMITS})
    if _is_url(arguments.exposition):
        access = _read_access(arguments)
        return asyncio.run(_fetch_expositions(arguments.exposition, access, arguments.seconds, limits))
    names = [name for name in (arguments.exposition, arguments.later) if name is not None]
    return tuple(_parse(_read_file(name, limits), name, limits) for name in names)


async def _fetch_expositions(url: str, access: Access, seconds: float | None, limits: Limits) -> tuple[Exposition, ...]:
    """The exposition at a URL, fetched as the collector does, and again after the seconds."""
    from servescope.collector.scrapes.fetch import HttpFetch
    from servescope.web.connections import open_session

    target = Target(check_url(url), Identity("inspected", "inspected", "inspected"), access=access)
    async with open_session() as session:
        fetch = HttpFetch(session)
        try:
            earlier = parse_exposition(await fetch(target, limits), limits)
            if seconds is None:
                return (earlier,)
            await asyncio.sleep(seconds)
            return earlier, parse_exposition(await fetch(target, limits), limits)
        except (FetchError, ParseError) as error:
            # A proxy of the environment may answer with the credentials that it was sent.
            raise InspectionError(access.conceal(f"{target.url}: {error}{_hint(target.url, error)}")) from error


def _hint(url: str, error: FetchError | ParseError) -> str:
    """What to try where a server cut off a request in plain HTTP."""
    is_cut_off = isinstance(error, FetchError) and str(error).startswith(("connection lost", "not HTTP"))
    return f"; {SPEAKS_TLS}" if is_cut_off and url.lower().startswith("http:") else ""


def _read_file(name: str, limits: Limits) -> bytes:
    try:
        with Path(name).open("rb") as file:
            body = file.read(limits.max_body_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = f"; for a URL write 'http://{name}'" if re.match(r"[\w.-]+:\d+(/[^@]*)?$", name) else ""
        raise UsageError(f"cannot read {_shown(name)}: {reason.lower()}{hint}") from error
    if len(body) > limits.max_body_bytes:
        raise UsageError(f"{name}: the file exceeds {limits.max_body_bytes} bytes (max_body_bytes)")
    return body


def _parse(body: bytes, origin: str, limits: Limits) -> Exposition:
    try:
        return parse_exposition(body, limits)
    except ParseError as error:
        ended = "the text ended within its last line; " if error.is_at_end(body) else ""
        raise UsageError(f"{origin}: {ended}{error}") from error
