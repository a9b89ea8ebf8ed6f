"""Run the proof on other real programs: `python -m tests.proofs.real.programs`, or `--help`.

One program after the other, each by itself. A program that cannot be run on this machine is skipped by name. Ends with
0 when every claim holds, 1 when one does not or a program cannot be had, 2 for wrong arguments. Everything listens on
127.0.0.1 and is ended by its process id.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.proofs.real.claims import STORED, Claim, Ledger, claim_order
from tests.proofs.real.client import Counts, merge, send_all
from tests.proofs.real.collector import SCRAPE_SECONDS, Collector, run_collector
from tests.proofs.real.coverage import claim_coverage, claim_inspection
from tests.proofs.real.engines import Engine, capture
from tests.proofs.real.environments import EnvironmentsError
from tests.proofs.real.programs import litellm, llamacpp, ray_serve, sglang_router, vllm_router
from tests.proofs.real.programs.pages import write_page
from tests.proofs.real.programs.program import Program, Running, UnavailableError
from tests.proofs.real.report import MARKERS, Section, conclude, describe_run, print_claims
from tests.proofs.real.traffic import Job, make_burst, make_streams, make_traffic
from tests.support.proofs import make_parser, names_of, parse, run_in_folder

CONCURRENCY = 4
WARM_UP = 12
FEWEST_REQUESTS = 20
LEAVING = 12
FAILING = 4
BREAKING, LONG_ANSWER = 6, 200
DYING_AFTER_SECONDS = 1.0
GONE_SECONDS = 5.0
"""After which a router knows that its workers are gone."""

PROGRAMS: Mapping[str, Program] = {
    program.name: program
    for programs in (llamacpp, sglang_router, vllm_router, litellm, ray_serve)
    for program in programs.PROGRAMS
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the proof as the arguments ask."""
    arguments = _parse(words)
    return run_in_folder("tests.proofs.real.programs", lambda folder: _prove(arguments, folder), keep=arguments.keep)


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(
        "tests.proofs.real.programs",
        "Real routers, gateways and servers under traffic, and the contract against the client's counts.",
    )
    parser.add_argument(
        "--programs", type=names_of(PROGRAMS), default=list(PROGRAMS), help=f"of {', '.join(PROGRAMS)} (default: all)"
    )
    parser.add_argument("--requests", type=int, default=60, metavar="N", help="requests to be finished by each")
    parser.add_argument("--capture", type=Path, metavar="DIR", help="save each target's /metrics there")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="put a small page of each program there")
    return parse(parser, words, MARKERS, requests=FEWEST_REQUESTS)


def _prove(arguments: argparse.Namespace, folder: Path) -> int:
    facts, sections = {}, []
    start = time.monotonic()
    for name in arguments.programs:
        logs = folder / name
        logs.mkdir()
        try:
            seen, claimed = _prove_program(PROGRAMS[name], arguments, logs)
        except UnavailableError as error:
            seen, claimed = f"skipped: {error}", []
            print(f"\n{name}: {seen}", flush=True)
        except EnvironmentsError as error:
            # What the others showed stays.
            claimed = [Section(f"{name}: {error}", [Claim(name, "can be installed", 0.0, 1.0, 1.0)])]
            seen = "cannot be installed"
            print_claims(claimed[0])
        facts[name] = seen
        sections += claimed
    return _conclude(arguments, facts, sections, time.monotonic() - start)


def _prove_program(program: Program, arguments: argparse.Namespace, logs: Path) -> tuple[str, list[Section]]:
    """What the client saw of a program, and the claims about it."""
    network = program.network() if program.network else nullcontext()
    with network, program.run(arguments.environments, logs) as started:
        engine = started.engine
        capture([engine], arguments.capture, "fresh")
        shown = write_page(program, started, arguments.pages) if arguments.pages else Counts()
        # Every series exists, and counts, before the collector first looks: what it sees rise is what was sent since.
        usual = _send(engine, _usual(program, 1, WARM_UP, wrong=1))
        warm_up = merge([shown, usual, *_disturb(program, started, 1, kill=False)])
        time.sleep(max(2.0, program.refresh_seconds))
        with run_collector([engine], logs) as collector:
            patient = _send(engine, _usual(program, 2, arguments.requests, wrong=2))
            patient = merge([patient, _burst(program, engine, 2)])
            _settle(program, collector)
            stored = _claim_increases(program, patient, collector)
            impatient = merge(_disturb(program, started, 3, kill=True))
            _settle(program, collector)
            capture([engine], arguments.capture, "1")
            sent = merge([warm_up, patient, impatient])
            sections = [stored, _claim_totals(program, engine, sent, collector)]
    for section in sections:
        print_claims(section)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(sent.outcomes().items()))
    return f"{engine.version}, ready in {engine.ready_seconds:.0f} s; {outcomes}", sections


def _usual(program: Program, seed: int, requests: int, *, wrong: int) -> list[Job]:
    return make_traffic(seed, requests, wrong=wrong, as_text=program.as_text)


def _burst(program: Program, engine: Engine, seed: int) -> Counts:
    return _send(engine, make_burst(seed, program.burst, as_text=program.as_text), concurrency=program.burst)


def _disturb(program: Program, started: Running, seed: int, *, kill: bool) -> list[Counts]:
    """A burst, clients that leave, workers that fail, one that dies while it answers, and in the end nobody there."""
    engine, workers = started.engine, started.workers
    parts = [
        _burst(program, engine, seed),
        _send(engine, make_traffic(seed, LEAVING, leaving=LEAVING, as_text=program.as_text)),
    ]
    if workers is not None and workers.emulated:
        # What goes on for clients that are gone is to end well.
        workers.wait_until_idle()
        workers.fail(1.0)
        parts.append(_send(engine, make_traffic(seed, FAILING)))
        workers.fail(0.0)
    if kill and started.kill is not None:
        streams = [job for each in range(BREAKING) for job in make_streams(each, 1, max_tokens=LONG_ANSWER)]
        parts.append(asyncio.run(_send_while_dying(started.kill, engine, streams)))
        parts.append(_send(engine, make_traffic(seed + 1, LEAVING)))
    if kill and workers is not None:
        workers.kill_all()
        time.sleep(GONE_SECONDS)
        parts.append(_send(engine, make_traffic(seed + 2, FAILING)))
    return parts


def _send(engine: Engine, jobs: Sequence[Job], *, concurrency: int = CONCURRENCY) -> Counts:
    return asyncio.run(send_all(engine.base_url, jobs, concurrency=concurrency))


async def _send_while_dying(kill: Callable[[], Counts], engine: Engine, jobs: Sequence[Job]) -> Counts:
    """Send all at once, and end one of the processes behind the program while they answer."""
    flight = asyncio.create_task(send_all(engine.base_url, jobs, concurrency=len(jobs)))
    await asyncio.sleep(DYING_AFTER_SECONDS)
    return merge([await asyncio.to_thread(kill), await flight])


def _settle(program: Program, collector: Collector) -> None:
    time.sleep(program.refresh_seconds)
    collector.wait_for_scrapes()


def _claim_increases(program: Program, patient: Counts, collector: Collector) -> Section:
    read = collector.stored_increases(program.name, STORED)
    ranges = program.claim(Ledger(patient), patient)
    # The reasons are those of ranges; what is exact needs none.
    claims = [
        Claim(program.name, what, read.get(what), low, high, "" if low == high else why)
        for what, (low, high, why) in ranges.items()
        if what.partition("{")[0] in STORED
    ]
    return Section(f"{program.name}: increases in the store while no client left", claims)


def _claim_totals(program: Program, engine: Engine, sent: Counts, collector: Collector) -> Section:
    own, targets = collector.totals()[program.name], collector.targets()
    ranges = program.claim(Ledger(sent), sent)
    claims = [Claim(program.name, what, own.get(what), low, high, why) for what, (low, high, why) in ranges.items()]
    if own.get("spec_decode_num_draft_tokens_total"):
        claims += claim_order(program.name, own)
    claims += claim_coverage(program.name, targets, own)
    claims += [claim for target in engine.targets for claim in claim_inspection(program.name, target, targets)]
    return Section(f"{program.name}: totals, with clients that left, failures and overload", claims)


def _conclude(arguments: argparse.Namespace, facts: dict[str, str], sections: Sequence[Section], seconds: float) -> int:
    print("\n" + "\n".join(f"{name}: {seen}" for name, seen in facts.items()))
    run = {"Run": describe_run(seconds), "Collected": f"every {SCRAPE_SECONDS} s by `servescope collect`"}
    return conclude(arguments.report, {**run, **facts}, sections)


if __name__ == "__main__":
    sys.exit(main())
