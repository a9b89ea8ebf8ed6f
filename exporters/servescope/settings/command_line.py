"""What all commands have in common: their parser, the form of their errors, and the address they listen on."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

from servescope.errors import ServescopeError, UsageError, suggest
from servescope.settings.values import parse_address

WRONG_USAGE: Final = 2
"""The exit code for wrong arguments, and for a file that is missing or wrong."""
FAILED: Final = 1
"""The exit code for what fails while a command runs: a port that is in use, a server that does not answer."""

_CREDENTIALS: Final = re.compile(r"\S*[:/]\S*@\S*")
_ALIAS: Final = "alias until the next release"


def report_error(error: ServescopeError | str) -> int:
    """Print an error as every command does, and return its exit code."""
    sys.stderr.write(f"servescope: error: {error}\n")
    return WRONG_USAGE if isinstance(error, UsageError) else FAILED


class CommandParser(argparse.ArgumentParser):
    """A parser that names the word that was probably meant, and never shows the credentials of a URL."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and end with code 2."""
        self.print_usage(sys.stderr)
        report_error(_CREDENTIALS.sub("(a URL with credentials)", message))
        self.exit(WRONG_USAGE)

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As of argparse, after unknown options are refused: the error of argparse would be of one that is missing."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:  # otherwise most of the words are the verb's
            self._refuse_unknown(words)
        return super().parse_known_args(words, namespace)

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = self._option_string_actions
        for word in words[: words.index("--")] if "--" in words else words:
            option = word.partition("=")[0]
            if option.startswith("--") and not any(each.startswith(option) for each in known):
                self.error(f"unknown option {option!r}{_hint(option, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _hint(str(value), map(str, action.choices or ()))
            raise


def _hint(word: str, known: Iterable[str]) -> str:
    near = suggest(word, known)
    return f"; {near}" if near else ""


# --- The address to listen on -----------------------------------------------------------------------------------------


_EXAMPLE: Final = "127.0.0.1:9900"


def configure_listen(
    parser: argparse.ArgumentParser,
    what: str = "address to serve on",
    *,
    option: str = "--listen",
    default: str | None = None,
    aliases: Sequence[str] = (),
) -> None:
    """Add `--listen HOST:PORT`, and `port` and `address` as its aliases; `what` says a default that is computed."""
    shown = what if default is None else f"{what} (default: {default})"
    parser.add_argument(option, default=default, metavar="HOST:PORT", help=shown)
    if "port" in aliases:
        parser.add_argument("--port", type=int, metavar="N", help=f"{_ALIAS}: the port of {option}")
    if "address" in aliases:
        parser.add_argument("--address", metavar="HOST", help=f"{_ALIAS}: the host of {option}")


def read_listen(arguments: argparse.Namespace, *, option: str = "--listen", default: str = _EXAMPLE) -> tuple[str, int]:
    """Host and port of `--listen` or of its aliases, `default` without them; raises UsageError."""
    text = getattr(arguments, option.strip("-").replace("-", "_"))
    port, address = getattr(arguments, "port", None), getattr(arguments, "address", None)
    if text is not None and (port is not None or address is not None):
        raise UsageError(
            f"{option} is given beside --port or --address, its aliases, expected {option} HOST:PORT alone"
        )
    try:
        host, usual = parse_address(default if text is None else text)
    except ValueError:
        raise UsageError(f"{option} {text!r} is not HOST:PORT, such as {default}") from None
    port = usual if port is None else port
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port!r} is not within 0 … 65535")
    return host if address is None else address, port


def cannot_listen(host: str, port: int, error: OSError, *, option: str = "--listen") -> ServescopeError:
    """The error of an address that cannot be listened on, with the option that names another."""
    # asyncio puts a sentence of its own, with the address again, into strerror; failed look-ups have negative numbers.
    number = error.errno or 0
    cause = os.strerror(number) if number > 0 else re.sub(r"^\[Errno -?\d+\] | \(while .*\)$", "", str(error))
    return ServescopeError(
        f"cannot listen on {format_address(host, port)}: {cause}; name another address with {option} HOST:PORT"
    )


def format_address(host: str, port: int) -> str:
    """`HOST:PORT` as it is written in URLs and options: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reached_at(host: str) -> str:
    """The host that reaches a server from its own machine: loopback for one that listens on every address."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
