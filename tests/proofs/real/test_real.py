"""The parts of the proof on real engines that need no engine: its ledger, its claims, its page, its environments."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.proofs.real.claims import claim_totals
from tests.proofs.real.client import Counts, Exchange, send_all
from tests.proofs.real.traffic import CHAT, COMPLETIONS, Job

USAGE = {"prompt_tokens": 30, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}


async def _answer(request: web.Request) -> web.StreamResponse:
    """Refuses what is no JSON, and says no to those who ask for nothing; else three tokens."""
    try:
        body = await request.json()
    except json.JSONDecodeError:
        return web.json_response({}, status=400)
    if body["model"] == "nobody":
        return web.json_response({}, status=404)
    if len(body.get("prompt", "")) > 1000:
        return web.json_response({}, status=529)
    if not body.get("stream"):
        return web.json_response({"usage": USAGE})
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(3):
        await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
    await response.write(b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def _count(jobs: list[Job]) -> Counts:
    application = web.Application()
    application.router.add_post(COMPLETIONS, _answer)
    application.router.add_post(CHAT, _answer)
    async with TestServer(application) as server:
        return await send_all(str(server.make_url("")), jobs, concurrency=3)


def test_the_client_counts_what_it_is_told() -> None:
    """Tokens are those of the answers' usage, refusals count by status, and a client that leaves gets no usage."""
    jobs = [
        Job("complete", COMPLETIONS, b'{"model": "tiny", "prompt": "a"}'),
        Job("complete", CHAT, b'{"model": "tiny", "stream": true}', stream=True),
        Job("leave", COMPLETIONS, b'{"model": "tiny", "stream": true}', stream=True, leave_after=2, prompt_tokens=9),
        Job("malformed", COMPLETIONS, b'{"model":'),
        Job("unknown_model", COMPLETIONS, b'{"model": "nobody"}'),
        Job("burst", COMPLETIONS, json.dumps({"model": "tiny", "prompt": "a" * 2000}).encode()),
    ]
    counts = asyncio.run(_count(jobs))
    assert counts.outcomes() == {"ok": 2, "client_abort": 1, "client_error": 2, "rejected": 1}
    assert [each.output_tokens for each in counts.of("ok")] == [3, 3]
    assert [each.cached_tokens for each in counts.of("ok")] == [16, 16]
    (left,) = counts.of("client_abort")
    assert (left.chunks, left.output_tokens, left.job.prompt_tokens) == (2, 0, 9)


def _ledger() -> Counts:
    job = Job("complete", COMPLETIONS, b"", stream=True)
    finished = Exchange(job, "ok", 30, 3, 16, 3, 0.1, 0.3, 0.3)
    return Counts([finished, finished, Exchange(Job("malformed", COMPLETIONS, b""), "client_error")])


READ = {
    'requests_total{outcome="ok"}': 2.0,
    'requests_total{outcome="client_error"}': 1.0,
    "input_tokens_total": 60.0,
    "output_tokens_total": 6.0,
    "kv_cache_reused_tokens_total": 32.0,
}


@pytest.mark.parametrize("what", READ)
def test_a_count_that_is_off_by_one_is_seen(what: str) -> None:
    """Without clients that left a value must be the client's, neither more nor less."""
    for wrong in (-1, 0, 1):
        claims = {claim.what: claim for claim in claim_totals("vllm", _ledger(), {**READ, what: READ[what] + wrong})}
        assert claims[what].holds is (wrong == 0)
