"""The command line: one module per command, imported when the command runs."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

from servescope.errors import ServescopeError
from servescope.settings.command_line import FAILED, WRONG_USAGE, CommandParser, report_error

COMMANDS = {
    "demo": ("servescope.demo.command", "show an emulated v1 and v2 deployment in the console"),
    "collect": ("servescope.collector.command", "scrape targets, derive figures, store and serve them"),
    "translate": (
        "servescope.translate.command",
        "translate one target a request, for scrapers that exist: /probe?target=HOST:PORT",
    ),
    "console": ("servescope.console", "open the console on a collector's store, or on a Prometheus"),
    "customers": (
        "servescope.customers.command",
        "export to customers' own backends: run, check, document, test, status, statement, remove",
    ),
    "judge": (
        "servescope.judge.command",
        "judge whether a cutover is healthy: plan, start, run, watch, explain, report, decide, verify",
    ),
    "migrate": (
        "servescope.migrate",
        "move configurations from v1 to v2: what changes, what is asked, and why",
    ),
    "inspect": (
        "servescope.collector.inspecting",
        "show what an exposition is and which metrics of the contract it has",
    ),
    "rules": (
        "servescope.generating.rules",
        "write recording rules, alerts, runbooks and Alertmanager's configuration",
    ),
    "dashboards": ("servescope.generating.dashboards", "write the Grafana dashboards"),
    "import": ("servescope.collector.importing.command", "import the past that a Prometheus holds into a store"),
    "export": ("servescope.store.exporting.command", "write what a store holds as Parquet or OpenMetrics"),
    "emulate": (
        "servescope.emulator.command",
        "run an emulated stack: its traffic, its /metrics, an OpenAI API, faults",
    ),
    "faults": (
        "servescope.emulator.server.faults_command",
        "switch faults of a running emulator: list, kinds, on, off",
    ),
    "replay": (
        "servescope.emulator.replay",
        "serve a recorded trace of requests by emulated workers, on a virtual clock",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code is 0, 1 for a failure and 2 for wrong usage."""
    signal.signal(signal.SIGTERM, _end_on_sigterm)
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _make_parser()
    try:
        if not words:
            parser.print_help(sys.stderr)
            return WRONG_USAGE
        if words[0] not in COMMANDS:
            parser.parse_args(words)  # answers --help and --version, refuses the rest
        command = import_module(COMMANDS[words[0]][0])
        code: int = command.run(make_command_parser(words[0]).parse_args(words[1:]))
        # A verdict whose text was not written, as on a full disk, must not end with code 0.
        print(end="", flush=True)
    except ServescopeError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away, as `servescope inspect … | head` does.
        sys.stderr.close()
        return FAILED
    except OSError as error:
        # The disk is full, or the like: the operating system's own words say what failed.
        return report_error(str(error))
    return code


def make_command_parser(name: str) -> CommandParser:
    """The parser of one command."""
    module_name, summary = COMMANDS[name]
    parser = CommandParser(prog=f"servescope {name}", description=f"{summary[0].upper()}{summary[1:]}.")
    import_module(module_name).configure(parser)
    return parser


def _make_parser() -> argparse.ArgumentParser:
    from importlib.metadata import version

    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    parser = CommandParser(
        prog="servescope",
        description="Observability for LLM serving stacks.",
        epilog=f"commands:\n{listing}\n\n`servescope COMMAND --help` describes each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"servescope {version('servescope')}")
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    return parser


def _end_on_sigterm(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
