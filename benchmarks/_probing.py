"""What one probe of `servescope translate` costs beside the collector's scrape of the same pages.

Both read the same simulated engines over kept connections, one after the other. Of the translator the CPU of its whole
process is taken, the request and the answer included; of the scrape that of fetching and reading.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks import _fleet
from benchmarks._pages import SAMPLES
from benchmarks._processes import Measured, serving
from servescope.collector.scrapes.fetch import HttpFetch
from servescope.collector.scrapes.scrape import Limits, scrape_target
from servescope.collector.targets.target import Target
from servescope.contract.identity import Identity
from servescope.sources.cache import SeriesCache
from servescope.sources.reader import Reader
from servescope.web.connections import open_session
from tests.support.prometheus import free_port

_TARGETS = 200
_ROUNDS = 15
_LIMITS = Limits(10.0, 16_000_000)


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """Seconds of CPU of one probe and of one scrape, and bytes that the translator holds, for so many targets."""

    targets: int
    probe_seconds: float
    probe_gzip_seconds: float
    native_seconds: float
    scrape_seconds: float
    resident_bytes: int
    page_bytes: int


def run() -> None:
    """Print the milliseconds of CPU of a probe, and the ratio to a scrape of the same pages."""
    cost = measure()
    print(f"probing {cost.targets} vLLM-like engines of {SAMPLES} samples through one translator, CPU of one probe")
    for name, seconds in (
        ("the collector's scrape", cost.scrape_seconds),
        ("a probe", cost.probe_seconds),
        ("a probe, compressed", cost.probe_gzip_seconds),
        ("a probe with native=1", cost.native_seconds),
    ):
        print(f"  {name:<24} {seconds * 1e3:6.2f} ms  {seconds / cost.scrape_seconds:5.2f} x the scrape")
    print(
        f"  (a page of {cost.page_bytes / 1000:.0f} KB; the translator holds {cost.resident_bytes / 1e6:.0f} MB, and "
        f"one core carries {15 / cost.probe_gzip_seconds:.0f} targets every 15 s)"
    )


def measure(targets: int = _TARGETS) -> ProbeCost:
    """What a probe of each of so many engines costs, and a scrape."""
    with TemporaryDirectory(prefix="servescope-probing-") as name, _fleet.serving(targets, Path(name)) as fleet:
        addresses = [
            target
            for path in fleet.lists
            for group in json.loads(Path(path).read_text(encoding="utf-8"))
            for target in group["targets"]
        ]
        configuration, port = Path(name) / "translate.toml", free_port()
        configuration.write_text('[translate]\ntargets = ["127.0.0.0/8:*"]\n', encoding="utf-8")
        command = [
            sys.executable, "-m", "servescope.cli", "translate", "--config", str(configuration),
            "--listen", f"127.0.0.1:{port}",
        ]  # fmt: skip
        with serving(command, port, Path(name) / "translate.log") as translator:
            return asyncio.run(_measure(translator, addresses))


async def _measure(translator: Measured, addresses: list[str]) -> ProbeCost:
    scrape = await _scrape_cpu(addresses)
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def probe(address: str, native: str, encoding: str) -> int:
            query, headers = {"target": address, "native": native}, {"Accept-Encoding": encoding}
            async with session.get(f"{translator.url}/probe", params=query, headers=headers) as response:
                body = await response.read()
                assert response.status == 200, body
                return len(body)

        async def cpu(native: str, encoding: str) -> float:
            for address in addresses:
                await probe(address, native, encoding)
            before = translator.cpu_seconds()
            for _ in range(_ROUNDS):
                for address in addresses:
                    await probe(address, native, encoding)
            return (translator.cpu_seconds() - before) / (_ROUNDS * len(addresses))

        plain, compressed = await cpu("0", "identity"), await cpu("0", "gzip")
        resident = translator.resident_bytes()
        size = await probe(addresses[0], "0", "identity")
        return ProbeCost(len(addresses), plain, compressed, await cpu("1", "identity"), scrape, resident, size)


async def _scrape_cpu(addresses: list[str]) -> float:
    cache = SeriesCache()
    targets = [
        Target(f"http://{address}/metrics", Identity("m", "d", "s", replica=address), None) for address in addresses
    ]
    readers = [Reader(target.identity, cache=cache) for target in targets]
    async with open_session() as session:
        fetch = HttpFetch(session)

        async def scrape() -> None:
            for target, reader in zip(targets, readers, strict=True):
                found = await scrape_target(target, reader, fetch, _LIMITS, clock=time.time)
                assert found.error is None, found.error

        await scrape()
        before = time.process_time()
        for _ in range(_ROUNDS):
            await scrape()
        return (time.process_time() - before) / (_ROUNDS * len(addresses))
