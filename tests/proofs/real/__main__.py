"""Run the proof on real engines: `python -m tests.proofs.real`, or `--help`.

Ends with 0 when every claim holds, 1 when one does not or an engine cannot be had, 2 for wrong arguments. Everything
listens on 127.0.0.1 and is ended by its process id.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.proofs.real import claims
from tests.proofs.real.arrangements import claim_arrangements
from tests.proofs.real.client import Counts, merge, send_all
from tests.proofs.real.collector import SCRAPE_SECONDS, WINDOW, Collector, run_collector
from tests.proofs.real.coverage import claim_coverage, claim_inspection
from tests.proofs.real.engines import PLUGIN, RUNNERS, Engine, capture
from tests.proofs.real.report import MARKERS, Section, conclude, describe_run, print_claims
from tests.proofs.real.textless import claim_textless
from tests.proofs.real.traffic import make_burst, make_traffic
from tests.support.proofs import make_parser, names_of, parse, run_in_folder

CONCURRENCY = 4
BURST = 40
BURSTS_AT_MOST = 4
WARM_UP = 24
FEWEST_REQUESTS = 20
LEAVING = 4

FIGURES_TITLE = f"Figures of the last {WINDOW} on the API, while no client left"

Ledgers = dict[str, Counts]


def main(words: Sequence[str] | None = None) -> int:
    """Run the proof as the arguments ask."""
    arguments = _parse(words)
    return run_in_folder("tests.proofs.real", lambda folder: _prove(arguments, folder), keep=arguments.keep)


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(
        "tests.proofs.real", "Real engines under traffic, and the contract against what the client counted."
    )
    parser.add_argument(
        "--engines", type=names_of(RUNNERS), default=list(RUNNERS), help="of vllm, dynamo (default: both)"
    )
    parser.add_argument("--requests", type=int, default=120, metavar="N", help="requests to be finished by each engine")
    parser.add_argument("--capture", type=Path, metavar="DIR", help="save each target's /metrics there")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="take pictures of the console there")
    parser.add_argument(
        "--hold", type=float, default=0.0, metavar="SECONDS", help="go on with light traffic at the end"
    )
    arguments = parse(parser, words, MARKERS, requests=FEWEST_REQUESTS)
    if arguments.pictures is not None and set(arguments.engines) != set(RUNNERS):
        parser.error(f"--pictures shows {' and '.join(RUNNERS)} side by side, expected both in --engines")
    return arguments


def _prove(arguments: argparse.Namespace, folder: Path) -> int:
    start = time.monotonic()
    with ExitStack() as stack:
        runs = [RUNNERS[name](arguments.environments, folder) for name in arguments.engines]
        engines = [stack.enter_context(run) for run in runs]
        watched = [*engines, *(engine.inside for engine in engines if engine.inside is not None)]
        capture(watched, arguments.capture, "fresh")
        # Every series exists, and counts, before the collector first looks: what it sees rise is what was sent since.
        warm_up = asyncio.run(_send(engines, seed=1, requests=WARM_UP, leaving=LEAVING))
        capture(watched, arguments.capture, "1")
        collector = stack.enter_context(run_collector(watched, folder))
        patient = asyncio.run(_send(engines, seed=2, requests=arguments.requests))
        collector.wait_for_scrapes()
        sections = _compare_increases(watched, collector, patient)
        impatient = asyncio.run(_send(engines, seed=3, requests=arguments.requests // 4, leaving=4 * LEAVING))
        collector.wait_for_scrapes()
        capture(watched, arguments.capture, "2")
        sent = {name: merge([warm_up[name], patient[name], impatient[name]]) for name in patient}
        sections += _compare_totals(watched, collector, sent)
        if "dynamo" in arguments.engines:
            sections.append(Section("Tokens without text", claim_textless(arguments.environments, folder)))
        _hold(engines, collector, arguments.hold)
        if arguments.pictures is not None:
            # Imported here: it needs a browser, which the rest does not.
            from tests.proofs.real.pictures import take_pictures

            sections.append(Section("Console", take_pictures(collector.store, arguments.pictures, arguments.engines)))
    if "vllm" in arguments.engines:
        # After the others have ended: two cores are few for it.
        arranged = claim_arrangements(arguments.environments, folder)
        sections.append(Section("The plugin in servers arranged otherwise", arranged))
    return _conclude(arguments, sections, _facts(engines, sent, time.monotonic() - start))


async def _send(engines: Sequence[Engine], *, seed: int, requests: int, leaving: int = 0) -> Ledgers:
    """The mix, then bursts until each engine has refused some; every engine gets the same, at the same time."""

    async def send(engine: Engine) -> Counts:
        traffic = make_traffic(seed, requests, leaving=leaving, wrong=max(1, requests // 40))
        parts = [await send_all(engine.base_url, traffic, concurrency=CONCURRENCY)]
        for burst in range(BURSTS_AT_MOST):
            parts.append(await send_all(engine.base_url, make_burst(seed * 100 + burst, BURST), concurrency=BURST))
            if parts[-1].of("rejected"):
                break
        return merge(parts)

    ledgers = await asyncio.gather(*map(send, engines))
    by_name = {engine.name: counts for engine, counts in zip(engines, ledgers, strict=True)}
    # What is seen from inside an engine was sent to that engine.
    inside = {engine.inside.name: by_name[engine.name] for engine in engines if engine.inside is not None}
    return by_name | inside


def _compare_increases(engines: Sequence[Engine], collector: Collector, patient: Ledgers) -> list[Section]:
    """What the collector watched until now, while no client left: nearly all of it is exact."""
    increases, figures = Section("Increases in the store while no client left", []), Section(FIGURES_TITLE, [])
    for engine in engines:
        name = engine.name
        increases.claims.extend(
            claims.claim_increases(name, patient[name], collector.stored_increases(name, claims.STORED))
        )
        figures.claims.extend(claims.claim_figures(name, patient[name], collector.latest(name)))
        figures.claims.extend(claims.claim_history(name, BURST, collector.figures(name)["concurrent_requests"]))
    return [increases, figures]


def _compare_totals(engines: Sequence[Engine], collector: Collector, sent: Ledgers) -> list[Section]:
    """Everything since the engines started, with clients that left."""
    totals, targets = collector.totals(), collector.targets()
    counted, covered = Section("Totals on /metrics, with clients that left", []), Section("Coverage", [])
    for engine in engines:
        name, own = engine.name, totals[engine.name]
        counted.claims.extend(claims.claim_totals(name, sent[name], own))
        counted.claims.extend(claims.claim_order(name, own))
        collected = [target for target in targets if target["identity"]["deployment_id"] == name]
        covered.claims.extend(claim_coverage(name, collected, own))
        for target in engine.targets:
            covered.claims.extend(claim_inspection(name, target, collected))
    if PLUGIN in totals:
        beside = claims.claim_plugin(totals[PLUGIN], totals["vllm"])
        return [counted, Section("The plugin beside vLLM's own /metrics", beside), covered]
    return [counted, covered]


def _hold(engines: Sequence[Engine], collector: Collector, seconds: float) -> None:
    """Go on with light traffic, so that a person can look at the collector."""
    end = time.monotonic() + seconds
    if seconds:
        print(f"collector {collector.url}, store {collector.store}; light traffic for {seconds:.0f} s", flush=True)
    for seed in range(1000, 2000):
        if time.monotonic() > end:
            return
        asyncio.run(_send_lightly(engines, seed))


async def _send_lightly(engines: Sequence[Engine], seed: int) -> None:
    await asyncio.gather(*(send_all(engine.base_url, make_traffic(seed, 6), concurrency=2) for engine in engines))


def _facts(engines: Sequence[Engine], sent: Ledgers, seconds: float) -> dict[str, str]:
    targets = sum(len(engine.targets) + (engine.inside is not None) for engine in engines)
    return {
        "Run": describe_run(seconds),
        "Engines": ", ".join(f"{engine.name} {engine.version}" for engine in engines),
        "Collected": f"{targets} targets every {SCRAPE_SECONDS} s by `servescope collect`",
        **{
            f"Requests to {engine.name}, as its client saw them": _tell_outcomes(sent[engine.name])
            for engine in engines
        },
    }


def _tell_outcomes(counts: Counts) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.outcomes().items()))


def _conclude(arguments: argparse.Namespace, sections: Sequence[Section], facts: dict[str, str]) -> int:
    for section in sections:
        print_claims(section)
    return conclude(arguments.report, facts, sections)


if __name__ == "__main__":
    sys.exit(main())
