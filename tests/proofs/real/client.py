"""A client that keeps its own counts: what became of each request, as the client saw it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.proofs.real.traffic import Job, Kind

REQUEST_SECONDS = 120.0
INTERNAL_ERROR = 500
REFUSALS = (408, 429, 503, 529)
"""What "come back later" looks like: vLLM says 503, Dynamo 529, routers with a full queue 408 or 503."""


@dataclass(slots=True)
class Exchange:
    """What the client saw of one request; token counts are the response's own `usage`, zero where it had none.

    `status` is that of the answer, 0 where the client left before there was one. `outcome` is one of the contract's, or
    `broken` of an answer that ended before it was complete. `drafted` and `accepted` are draft tokens, where the answer
    has them. Seconds are on the client's clock from sending; None where that moment was not reached or cannot be seen.
    """

    job: Job
    outcome: str = "client_abort"
    status: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    chunks: int = 0
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    duration_seconds: float = 0.0


@dataclass(slots=True)
class Counts:
    """The client's ledger of one engine."""

    exchanges: list[Exchange] = field(default_factory=list)

    def of(self, outcome: str, *kinds: Kind) -> list[Exchange]:
        """The exchanges that ended so, of those kinds, or of any."""
        return [
            exchange
            for exchange in self.exchanges
            if exchange.outcome == outcome and (not kinds or exchange.job.kind in kinds)
        ]

    def with_status(self, *statuses: int) -> list[Exchange]:
        """The exchanges whose answer had one of these statuses."""
        return [exchange for exchange in self.exchanges if exchange.status in statuses]

    def outcomes(self) -> Counter[str]:
        """Requests by outcome."""
        return Counter(exchange.outcome for exchange in self.exchanges)

    def timed(self) -> list[Exchange]:
        """Finished streams of two tokens or more: those whose decoding the client could time."""
        return [
            exchange
            for exchange in self.of("ok")
            if exchange.job.stream and exchange.output_tokens > 1 and exchange.first_token_seconds is not None
        ]


async def send_all(base_url: str, jobs: Sequence[Job], *, concurrency: int) -> Counts:
    """Send every job, at most `concurrency` at once; returns when all have ended."""
    turn = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    # A connection for each: on one that is kept, a request may meet a server that is just closing it.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(base_url, timeout=timeout, connector=connector) as session:

        async def send_in_turn(job: Job) -> Exchange:
            async with turn:
                return await _send(session, job)

        return Counts(list(await asyncio.gather(*map(send_in_turn, jobs))))


async def _send(session: aiohttp.ClientSession, job: Job) -> Exchange:
    exchange = Exchange(job)
    start = time.perf_counter()
    try:
        async with asyncio.timeout(job.leave_seconds):
            await _exchange(session, job, exchange, start)
    except aiohttp.ClientError:
        exchange.outcome = "broken"
    except TimeoutError:
        if job.leave_seconds is None:
            raise
    exchange.duration_seconds = time.perf_counter() - start
    return exchange


async def _exchange(session: aiohttp.ClientSession, job: Job, exchange: Exchange, start: float) -> None:
    headers = {"content-type": "application/json"}
    async with session.post(job.path, data=job.payload, headers=headers) as response:
        exchange.status = response.status
        if response.status != 200:
            await response.read()
            exchange.outcome = _outcome(response.status)
        elif job.stream:
            await _read_stream(response, exchange, start)
        else:
            _note_counts(exchange, await response.json())
            exchange.outcome = "ok"


def _outcome(status: int) -> str:
    if status in REFUSALS:
        return "rejected"
    return "client_error" if 400 <= status < 500 else "error"


async def _read_stream(response: aiohttp.ClientResponse, exchange: Exchange, start: float) -> None:
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            exchange.outcome = "ok"
            return
        chunk = json.loads(data)
        if "error" in chunk:
            # The status was sent before the engine refused.
            exchange.outcome = _outcome(int(chunk["error"].get("code") or INTERNAL_ERROR))
            return
        if chunk["choices"]:
            exchange.chunks += 1
            exchange.last_token_seconds = time.perf_counter() - start
            exchange.first_token_seconds = exchange.first_token_seconds or exchange.last_token_seconds
        if chunk.get("usage"):
            _note_counts(exchange, chunk)
        if exchange.job.leave_after is not None and exchange.chunks >= exchange.job.leave_after:
            response.close()
            return
    exchange.outcome = "broken"


def _note_counts(exchange: Exchange, answer: dict[str, Any]) -> None:
    usage, timings = answer["usage"], answer.get("timings") or {}
    details = usage.get("prompt_tokens_details") or {}
    assert isinstance(details, dict)
    exchange.prompt_tokens = _count(usage["prompt_tokens"])
    exchange.output_tokens = _count(usage["completion_tokens"])
    exchange.cached_tokens = _count(details.get("cached_tokens") or 0)
    exchange.drafted = _count(timings.get("draft_n") or 0)
    exchange.accepted = _count(timings.get("draft_n_accepted") or 0)


def _count(value: object) -> int:
    assert isinstance(value, int), value
    return value


def merge(parts: Iterable[Counts]) -> Counts:
    """One ledger of several."""
    return Counts([exchange for part in parts for exchange in part.exchanges])
