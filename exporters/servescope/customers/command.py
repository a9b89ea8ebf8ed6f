"""`servescope customers`: export to customers' own backends, by push and by pull, and what was delivered."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from servescope.errors import require_extra
from servescope.settings.command_line import configure_listen
from servescope.store.prometheus.options import configure_history

DEFAULT_LISTEN: Final = "127.0.0.1:9920"
DEFAULT_PULL_LISTEN: Final = "127.0.0.1:9921"
FORMATS: Final = ("text", "json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their arguments."""
    added = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, summary: str, *, cursors: bool = True, history: bool = False) -> argparse.ArgumentParser:
        found = added.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        found.add_argument(
            "--config", type=Path, required=True, metavar="FILE", help="the customers and their policies (TOML)"
        )
        if cursors:
            found.add_argument(
                "--cursors", type=Path, metavar="FILE",
                help="what was delivered to whom (default: beside the configuration, *.cursors.db)",
            )  # fmt: skip
        if history:
            configure_history(found)
        return found

    run = verb("run", "deliver to all customers until Ctrl-C; SIGHUP reads the configuration again", history=True)
    configure_listen(run, "address of its own /metrics, for the operator", default=DEFAULT_LISTEN)
    configure_listen(
        run, "address of the pages that customers scrape", option="--pull-listen", default=DEFAULT_PULL_LISTEN
    )
    run.add_argument("--pull-cert-file", metavar="FILE", help="serve customers' pages with this certificate")
    run.add_argument("--pull-key-file", metavar="FILE", help="and this key")
    run.add_argument("--pull-client-ca-file", metavar="FILE", help="only to clients with certificates of these")
    _add_check(
        verb(
            "check", "show what each customer would receive, and why the rest is withheld", cursors=False, history=True
        )
    )
    document = verb("document", "write what a customer is given to read and to load", cursors=False)
    document.add_argument("customer", metavar="NAME", help="the customer")
    document.add_argument(
        "--output", type=Path, metavar="FOLDER",
        help="write README.md, and dashboards with their alerts, there (default: print the document alone)",
    )  # fmt: skip
    test = verb(
        "test", "send one labelled point to each destination of a customer, and explain the answer", cursors=False
    )
    test.add_argument("customer", metavar="NAME", help="the customer")
    test.add_argument("--destination", metavar="NAME", help="this destination alone")
    _add_format(verb("status", "show until when each destination has what it is to receive, and the last problem"))
    statement = verb("statement", "show what a customer received of a span, and which times are missing")
    statement.add_argument("customer", metavar="NAME", help="the customer")
    statement.add_argument("--from", dest="from_", metavar="TIME", default="1d", help="its start (default: a day ago)")
    statement.add_argument("--to", metavar="TIME", default="0s", help="its end (default: now)")
    _add_format(statement)
    remove = verb("remove", "stop delivering to a customer, and delete its cursors and keys for good")
    remove.add_argument("customer", metavar="NAME", help="the customer")
    remove.add_argument("--undo", action="store_true", help="admit a customer again that was removed; it begins anew")


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--customer", metavar="NAME", help="this customer alone")
    parser.add_argument(
        "--diff", type=Path, metavar="FILE", help="what the configuration adds and removes since this one"
    )
    parser.add_argument("--summary", action="store_true", help="count series by metric and reason, and list none")
    _add_format(parser)


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb; returns its exit code."""
    require_extra("customers", "google.protobuf", "aiohttp")
    from servescope.customers import verbs

    return verbs.VERBS[arguments.verb](arguments)
