"""The parts of the proof on real engines that need no engine: its ledger, its claims, its page, its environments."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.proofs.real.claims import Ledger, claim_totals
from tests.proofs.real.client import Counts, Exchange, send_all
from tests.proofs.real.programs import litellm, llamacpp, ray_serve, sglang_router, vllm_router
from tests.proofs.real.programs.network import own_network
from tests.proofs.real.programs.program import UnavailableError
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
    if body.get("prompt") == "wait":
        return web.json_response({}, status=408)
    if not body.get("stream"):
        return web.json_response({"usage": USAGE, "timings": {"draft_n": 4, "draft_n_accepted": 3}})
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(3):
        await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
    if body.get("prompt") == "break":
        return response
    if body.get("prompt") == "fail":
        await response.write(b'data: {"error": {"message": "no", "code": null}}\n\n')
        return response
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


def test_the_client_knows_how_an_answer_ended() -> None:
    """A stream that breaks, or ends with an error, began well; a full queue says so by its status."""
    jobs = [
        Job("complete", COMPLETIONS, b'{"model": "tiny", "prompt": "a"}'),
        Job("complete", COMPLETIONS, b'{"model": "tiny", "prompt": "break", "stream": true}', stream=True),
        Job("complete", COMPLETIONS, b'{"model": "tiny", "prompt": "fail", "stream": true}', stream=True),
        Job("complete", COMPLETIONS, b'{"model": "tiny", "prompt": "wait"}'),
    ]
    counts = asyncio.run(_count(jobs))
    assert counts.outcomes() == {"ok": 1, "broken": 1, "error": 1, "rejected": 1}
    assert (len(counts.with_status(200)), len(counts.with_status(408))) == (3, 1)
    assert [(each.drafted, each.accepted) for each in counts.of("ok")] == [(4, 3)]


def _ledger() -> Counts:
    job = Job("complete", COMPLETIONS, b"", stream=True)
    finished = Exchange(
        job, "ok", 200, 30, 3, 16, chunks=3, first_token_seconds=0.1, last_token_seconds=0.3, duration_seconds=0.3
    )
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


@pytest.mark.parametrize(
    "program", [litellm, ray_serve, sglang_router, vllm_router], ids=lambda program: program.__name__
)
@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_a_request_that_a_program_forgets_is_seen(program: ModuleType, outcome: str) -> None:
    """Where all clients stay, each outcome of a router, proxy or gateway has one right count."""
    job = Job("complete", COMPLETIONS, b"")
    counts = Counts([Exchange(job, "ok", 200, 30, 3), Exchange(job, "ok", 200, 30, 3), Exchange(job, "error", 500)])
    low, high, _ = program.claim(Ledger(counts), counts)[f'requests_total{{outcome="{outcome}"}}']
    assert low == high == len(counts.of(outcome))


def test_tokens_that_are_missing_are_seen() -> None:
    """Where all clients stay, tokens and drafts have one right count each."""
    exchange = Exchange(Job("complete", COMPLETIONS, b""), "ok", 200, 30, 3, 16, drafted=4, accepted=3)
    claims = llamacpp.claim(Ledger(Counts([exchange])), Counts([exchange]))
    exact = {
        "input_tokens_total": 30, "output_tokens_total": 3, "kv_cache_reused_tokens_total": 16,
        "spec_decode_num_draft_tokens_total": 4, "spec_decode_num_accepted_tokens_total": 3,
    }  # fmt: skip
    assert {name: claims[name][:2] for name in exact} == {name: (value, value) for name, value in exact.items()}


def test_a_network_of_its_own_is_not_had_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that needs one is skipped then, with the reason."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="root"), own_network():
        pass
