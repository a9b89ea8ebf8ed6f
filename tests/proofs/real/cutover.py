"""A cutover between two real engines, judged: `python -m tests.proofs.real.cutover`, or `--help`.

Real vLLM is v1 and real Dynamo v2. All requests go to vLLM at first, then a quarter of them to Dynamo, while the real
collector watches both; then the judge is asked as a user asks it. What the two engines report differently is what this
shows: the judge has to name it, and may not call the cutover healthy by it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from servescope.increments.blocks import BLOCK_MS
from tests.proofs.real.claims import Claim
from tests.proofs.real.client import Counts, merge, send_all
from tests.proofs.real.collector import SCRAPE_SECONDS, run_collector
from tests.proofs.real.engines import Engine, run_dynamo, run_vllm
from tests.proofs.real.report import MARKERS, Section, print_claims, render
from tests.proofs.real.traffic import Job, make_traffic
from tests.support.proofs import make_parser, parse, run_in_folder

SHARE = 0.25
REQUESTS_PER_MINUTE = 40
LEAST_BLOCKS = 2
VERDICT_CODES = {"HEALTHY": 0, "DEGRADED": 10, "INCONCLUSIVE": 11, "NO DATA": 12}

PLAN = f"""\
name = "vllm to dynamo"

[arms]
v1 = {{ deployment_id = "vllm" }}
v2 = {{ deployment_id = "dynamo" }}

[[stages]]
share = {SHARE}
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the cutover as the arguments ask; 0 when every claim holds."""
    parser = make_parser("tests.proofs.real.cutover", __doc__)
    parser.add_argument("--before", type=int, default=2, metavar="N", help="5-minute blocks on vLLM alone")
    parser.add_argument("--blocks", type=int, default=3, metavar="N", help="5-minute blocks with both")
    arguments = parse(parser, words, MARKERS, before=LEAST_BLOCKS, blocks=LEAST_BLOCKS)
    return run_in_folder("tests.proofs.real.cutover", lambda folder: _prove(arguments, folder), keep=arguments.keep)


def _prove(arguments: argparse.Namespace, folder: Path) -> int:
    start = time.monotonic()
    with ExitStack() as stack:
        vllm = replace(stack.enter_context(run_vllm(arguments.environments, folder)), inside=None)
        dynamo = stack.enter_context(run_dynamo(arguments.environments, folder))
        collector = stack.enter_context(run_collector([vllm, dynamo], folder))
        asyncio.run(_send(vllm, dynamo, share=0.0, blocks=arguments.before, seed=1))
        since_ms = time.time() * 1000
        sent = asyncio.run(_send(vllm, dynamo, share=SHARE, blocks=arguments.blocks, seed=2))
        collector.wait_for_scrapes()
        claims, said = _judge(folder, collector.store, since_ms, sent)
    section = Section("The judge on vLLM as v1 and Dynamo as v2", claims)
    print_claims(section)
    failed = sum(not claim.holds for claim in claims)
    if arguments.report is not None:
        facts = _facts([vllm, dynamo], sent, time.monotonic() - start)
        MARKERS.write(arguments.report, f"{render(facts, [section])}\n```\n{said.strip()}\n```\n")
    print(f"\n{len(claims) - failed} of {len(claims)} claims hold")
    return 1 if failed else 0


async def _send(vllm: Engine, dynamo: Engine, *, share: float, blocks: int, seed: int) -> dict[str, Counts]:
    """Requests at random moments until that many blocks have closed, each to Dynamo with a probability of `share`."""
    generator = random.Random(seed)
    block_seconds = BLOCK_MS / 1000
    end = (time.time() // block_seconds + blocks + 1) * block_seconds
    jobs = iter(_endless(seed))
    flights: list[tuple[str, asyncio.Task[Counts]]] = []
    while time.time() < end:
        engine = dynamo if generator.random() < share else vllm
        job = next(jobs)
        flights.append((engine.name, asyncio.create_task(send_all(engine.base_url, [job], concurrency=1))))
        await asyncio.sleep(generator.expovariate(REQUESTS_PER_MINUTE / 60))
    for _, flight in flights:
        await flight
    return {
        engine.name: merge([flight.result() for name, flight in flights if name == engine.name])
        for engine in (vllm, dynamo)
    }


def _endless(seed: int) -> Any:
    while True:
        jobs: list[Job] = make_traffic(seed, 50)
        yield from jobs
        seed += 1000


def _judge(folder: Path, store: Path, since_ms: float, sent: Mapping[str, Counts]) -> tuple[list[Claim], str]:
    """Ask the judge for JSON, for people, and for the report."""
    plan, report = folder / "cutover.toml", folder / "report.html"
    plan.write_text(PLAN, encoding="utf-8")
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    asked = ["--plan", str(plan), "--store", str(store), "--since", since]
    answer = _run("run", *asked, "--format", "json")
    judgement = json.loads(answer.stdout)
    explained = _run("explain", *asked)
    reported = _run("report", *asked, "--out", str(report))
    verdict, metrics = judgement["verdict"], {metric["name"]: metric for metric in judgement["metrics"]}
    print(explained.stdout)
    claims = [
        _claim("exit code of judge run", answer.returncode, VERDICT_CODES[verdict]),
        _claim(f"is HEALTHY (it is {verdict})", verdict == "HEALTHY", 0),
        _claim("exit code of judge explain", explained.returncode, 0),
        _claim("exit code of judge report", reported.returncode, 0),
        _claim("the report is a page", report.exists() and "<html" in report.read_text(encoding="utf-8"), 1),
        *(
            _claim(f"says why `{name}` is incomparable", bool(judgement["incomparable"].get(name)), 1)
            # Dynamo's frontend measures gaps between tokens, vLLM requests.
            for name in ("time_per_output_token_seconds",)
        ),
        *(
            _claim(f"`{name}` has a reason", bool(metric["reason"]), 1)
            for name, metric in metrics.items()
        ),
        *(
            _claim(f"HEALTHY though incomparable: `{name}`", metrics[name]["verdict"] == "HEALTHY", 0)
            for name in judgement["incomparable"]
            if name in metrics
        ),
        *_claim_counts(judgement, sent),
    ]  # fmt: skip
    return claims, explained.stdout


def _claim_counts(judgement: Mapping[str, Any], sent: Mapping[str, Counts]) -> list[Claim]:
    """The requests that were judged are among those that the client sent, nearly all of which are in closed blocks."""
    return [
        Claim(name, "requests judged", judgement[arm]["requests"], 0.3 * total, total, "not of the block in progress")
        for arm, name in (("v1", "vllm"), ("v2", "dynamo"))
        for total in [sum(sent[name].outcomes().values())]
    ]


def _claim(what: str, read: float, value: float) -> Claim:
    return Claim("judge", what, float(read), value, value)


def _run(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("servescope")), "judge", verb, *words]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if answer.stderr:
        print(answer.stderr, file=sys.stderr)
    return answer


def _facts(engines: Sequence[Engine], sent: Mapping[str, Counts], seconds: float) -> dict[str, str]:
    return {
        "Run": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds:.0f} s, {os.cpu_count()} cores, {platform.machine()}",
        "Engines": ", ".join(f"{engine.name} {engine.version}" for engine in engines),
        "Collected": f"every {SCRAPE_SECONDS} s by `servescope collect`",
        **{
            f"Requests to {name} while both served": str(sum(counts.outcomes().values()))
            for name, counts in sent.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
