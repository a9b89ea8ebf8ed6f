"""Small pages of real programs, as the tests of the source maps read them."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

from tests.proofs.real.client import Counts, send_all
from tests.proofs.real.engines import Engine
from tests.proofs.real.processes import read_page
from tests.proofs.real.programs.program import Program, Running
from tests.proofs.real.traffic import make_traffic

REQUESTS, LEAVING = 20, 3


def write_page(program: Program, started: Running, folder: Path) -> Counts:
    """Send a little, and write what the program exposes then; what the client counted is its first line.

    Without effect of a program that has no page. The values that the tests expect of the page are to be put beside it.
    """
    if program.page is None:
        return Counts()
    engine = started.engine
    jobs = make_traffic(9, REQUESTS, leaving=LEAVING, wrong=1, as_text=program.as_text)
    counts = asyncio.run(send_all(engine.base_url, jobs, concurrency=1))
    if started.workers is not None:
        started.workers.wait_until_idle()
    time.sleep(max(2.0, program.refresh_seconds))
    body = read_page(engine.targets[0].url)
    head = _describe(engine, counts, behind=" in front of emulated workers" if started.workers else "")
    kept = _keep_families(body.decode(), program.page_families)
    (folder / f"{program.page}.txt").write_text(f"{head}\n{kept}", encoding="utf-8")
    return counts


def _describe(engine: Engine, counts: Counts, *, behind: str) -> str:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.outcomes().items()))
    ok = counts.of("ok")
    tokens = (
        f"{sum(each.prompt_tokens for each in ok)} prompt tokens of those that ended well, of which "
        f"{sum(each.cached_tokens for each in ok)} were reused, and {sum(each.output_tokens for each in ok)} of answers"
    )
    return f"# Captured from {engine.stack}{behind}, after {len(counts.exchanges)} requests: {outcomes}; {tokens}."


def _keep_families(text: str, prefixes: tuple[str, ...]) -> str:
    """The lines of families whose names begin so, with their types."""
    lines = text.splitlines()
    named = (re.match(r"(?:# (?:HELP|TYPE) )?(\w[\w:]*)", line) for line in lines)
    kept = [line for line, name in zip(lines, named, strict=True) if name and name[1].startswith(prefixes)]
    return "\n".join(kept) + "\n"
