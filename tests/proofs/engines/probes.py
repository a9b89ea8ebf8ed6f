"""The same captures through `servescope translate`: what a Prometheus stores that scrapes them without a collector."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from servescope.contract.identity import Identity
from servescope.contract.samples import Labels, format_series, format_value, make_labels
from tests.proofs.engines.captures import Captured, Engine, grow, read_capture
from tests.support.filled_prometheus import SCRAPE_SECONDS, SECONDS, START_SECONDS
from tests.support.translating import Translating, translating

_OUTER = "frontend,router"
"""What is in front of all targets of a deployment but the first."""


def probed(engine: Engine) -> Engine:
    """The same engine as a deployment that is probed."""
    return replace(engine, name=f"{engine.name}-probed")


def probe(engines: Sequence[Engine], captures: Path, folder: Path) -> list[bytes]:
    """The pages of probes of these engines, as lines of OpenMetrics with their times and a scraper's labels."""
    return asyncio.run(_probe(engines, captures, folder))


async def _probe(engines: Sequence[Engine], captures: Path, folder: Path) -> list[bytes]:
    elapsed, lines = 0, list[bytes]()
    async with AsyncExitStack() as resources:
        asked: list[tuple[Engine, Captured, str, Translating]] = []
        for engine in engines:
            for number, target in enumerate(engine.targets):
                text = read_capture(captures, target)

                async def answer(_: web.Request, text: str = text) -> web.Response:
                    return web.Response(text=grow(text, elapsed / SECONDS))

                own = folder / f"{engine.name}-{number}"
                own.mkdir(parents=True)
                stage = await resources.enter_async_context(translating(own, {"/metrics": answer}))
                asked.append((engine, target, _OUTER if number else "", stage))
        for elapsed in range(SCRAPE_SECONDS, SECONDS + 1, SCRAPE_SECONDS):
            for engine, target, behind, stage in asked:
                answered = await stage.probe(behind=behind)
                assert answered.value("servescope_probe_success") == 1.0, answered.text
                samples = {**answered.samples(), ("up", ()): 1.0}
                lines += _stamped(samples, _attached(engine, target), START_SECONDS + elapsed)
    return lines


def _attached(engine: Engine, target: Captured) -> dict[str, str]:
    of = engine.deployment
    identity = Identity(
        of.model_name,
        of.deployment_id,
        of.inference_stack,
        of.environment,
        of.rollout_phase,
        target.capture,
        target.role,
    )
    return {**dict(identity.labels()), "job": "servescope-targets", "instance": target.capture}


def _stamped(samples: Mapping[tuple[str, Labels], float], attached: Mapping[str, str], seconds: int) -> Iterator[bytes]:
    for (name, labels), value in samples.items():
        series = format_series(name, make_labels({**dict(labels), **attached}))
        yield f"{series} {format_value(value)} {seconds}\n".encode()
