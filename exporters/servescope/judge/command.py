"""`servescope judge`: plan, start, run, watch, explain, report, decide and verify a cutover."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from servescope.cutover.evidence.evidence import DECISION_KINDS
from servescope.judge import verbs
from servescope.judge.ending import ended_in_time
from servescope.settings.command_line import configure_listen
from servescope.store.prometheus.options import configure_history

FORMATS: Final = ("text", "json")
DEFAULT_LISTEN: Final = "127.0.0.1:9910"
_DECIDED: Final = tuple(kind for kind in DECISION_KINDS if kind != "start")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their arguments."""
    parser.epilog = (
        "exit codes: of `run` 0 HEALTHY, 10 DEGRADED, 11 INCONCLUSIVE, 12 NO DATA; of every verb 1 on failure, 2 on "
        "wrong usage or plan; of `verify` 0 or 1"
    )
    added = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, summary: str, *, plan: bool = True, history: bool = True) -> argparse.ArgumentParser:
        found = added.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        found.add_argument("--plan", type=Path, required=plan, metavar="FILE", help="the plan of the cutover (TOML)")
        found.add_argument(
            "--journal", type=Path, metavar="FILE", help="the journal of runs (default: beside the plan, *.journal.db)"
        )
        found.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: text)")
        if history:
            configure_history(found)
        return found

    verb("plan", "show how long each stage needs at each share to settle each metric, before anything is moved")
    start = verb("start", "freeze the plan and begin a run of it at its first stage")
    start.add_argument("--replace", action="store_true", help="end the run that is under way")
    _add_person(start, required=False)
    run = verb("run", "judge once; the exit code is the verdict")
    _add_since(run)
    watch = verb("watch", "judge until Ctrl-C; serve the judgement, the gate and metrics")
    _add_watch(watch)
    explain = verb("explain", "judge once, and show of each metric how it was judged and what would change that")
    explain.add_argument("--metric", metavar="NAME", help="only this metric")
    _add_since(explain)
    report = verb("report", "write the report of a run as one HTML file")
    report.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    _add_since(report)
    decide = verb("decide", "write a decision to the journal, with the judgement it was made on")
    decide.add_argument("kind", choices=_DECIDED, metavar="DECISION", help=", ".join(_DECIDED))
    _add_person(decide, required=True)
    decide.add_argument("--from", dest="from_", metavar="TIME", help="where an excluded span begins")
    decide.add_argument("--to", metavar="TIME", help="where an excluded span ends")
    decide.add_argument("--force", action="store_true", help="exclude a span although harm was proven since it began")
    verify = verb(
        "verify", "check that the journal is whole and, with a history, that what is kept of the run is what it says",
        plan=False,
    )  # fmt: skip
    verify.add_argument("--head", metavar="HASH", help="the hash of an entry that must be there, as a report has it")


def _add_since(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="TIME", help="judge one stage that began then, without a journal")
    parser.add_argument(
        "--stage", type=int, metavar="N", help="the stage that is judged with --since, from 1 (default: 1)"
    )


def _add_person(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--by", required=required, default="", metavar="NAME", help="who decides")
    parser.add_argument("--reason", required=required, default="", metavar="TEXT", help="why")


def _add_watch(parser: argparse.ArgumentParser) -> None:
    configure_listen(parser, default=DEFAULT_LISTEN)
    parser.add_argument("--gate-token-file", metavar="FILE", help="bearer tokens that clients need, one a line")
    parser.add_argument("--gate-token-env", metavar="NAME", help="environment variable with such a token")
    parser.add_argument("--gate-cert-file", metavar="FILE", help="serve TLS with this certificate")
    parser.add_argument("--gate-key-file", metavar="FILE", help="and this key")
    parser.add_argument("--gate-client-ca-file", metavar="FILE", help="only to clients with certificates of these")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb; returns its exit code."""
    with ended_in_time():
        return verbs.VERBS[arguments.verb](arguments)
