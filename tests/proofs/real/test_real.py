"""The parts of the proof on real engines that need no engine: its ledger, its claims, its page, its environments."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from servescope.errors import ServescopeError
from tests.proofs.real import environments
from tests.proofs.real import load as load_generator
from tests.proofs.real.__main__ import main
from tests.proofs.real.claims import Claim, claim_totals
from tests.proofs.real.client import Counts, Exchange, send_all
from tests.proofs.real.report import MARKERS, Section, render
from tests.proofs.real.traffic import CHAT, COMPLETIONS, Job, make_traffic

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


def test_traffic_is_the_same_for_a_seed_and_holds_every_kind() -> None:
    """Both engines get the same requests."""
    jobs = make_traffic(5, 40, leaving=6, wrong=2)
    assert jobs == make_traffic(5, 40, leaving=6, wrong=2)
    assert {job.kind for job in jobs} == {"complete", "leave", "malformed", "unknown_model", "too_long"}
    assert {job.stream for job in jobs if job.kind == "leave"} == {True, False}
    assert all(job.leave_after is None and job.leave_seconds is None for job in make_traffic(5, 40, wrong=2))


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


def test_absent_is_a_value_of_its_own() -> None:
    """What must be absent may not be 0, and what must be 0 may not be absent."""
    assert Claim("vllm", "x", None, None, None).holds
    assert not Claim("vllm", "x", 0.0, None, None).holds
    assert not Claim("vllm", "x", None, 0.0, 0.0).holds


def test_results_replace_the_former_ones_and_nothing_else(tmp_path: Path) -> None:
    """The page's own text stays; a value that is wrong is marked."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKERS.begin}\nold\n{MARKERS.end}\nafter\n", encoding="utf-8")
    MARKERS.write(
        page, render({"Run": "today"}, [Section("Totals", [Claim("vllm", "input_tokens_total", 2.0, 1.0, 1.0)])])
    )
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| vllm | `input_tokens_total` | 2 **wrong** | = 1 |  |" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engines", "sglang"], "unknown engine 'sglang', supported: vllm, dynamo"),
        (["--requests", "3"], "--requests is 3, expected 20 or more"),
        (["--report", "missing.md"], "missing.md does not exist"),
        (["--engines", "vllm", "--pictures", "p"], "--pictures shows vllm and dynamo side by side"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, with the value and what was expected."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_complete_environment_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker's versions decide; with others it is built anew, and one that then does not work is refused."""
    built = []

    def install(environment: Path) -> None:
        built.append(environment.name)

    monkeypatch.setattr(environments, "_run", lambda *command: None)
    recipe = environments.Recipe("there", {"servescope-no-such-thing": "1"}, (), install)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / environments.MARKER).write_text('{"servescope-no-such-thing": "1"}', encoding="utf-8")
    assert environments.ensure_environment(tmp_path, recipe) == tmp_path / "there"
    assert built == []
    (tmp_path / "there" / environments.MARKER).write_text('{"servescope-no-such-thing": "0"}', encoding="utf-8")
    with pytest.raises(ServescopeError, match=r"built, but .* does not exist"):
        environments.ensure_environment(tmp_path, recipe)
    assert built == ["there"]


def test_the_load_is_what_was_answered(tmp_path: Path) -> None:
    """Tokens and seconds are summed over the answered requests; the cancelled are counted, a failed one is an error."""
    metrics = {
        "usage_prompt_tokens": {"value": 30, "unit": "tokens"},
        "usage_completion_tokens": {"value": 3, "unit": "tokens"},
        "usage_prompt_cache_read_tokens": {"value": 16, "unit": "tokens"},
        "time_to_first_token": {"value": 250.0, "unit": "ms"},
        "request_latency": {"value": 1000.0, "unit": "ms"},
    }
    answered = {"metadata": {"was_cancelled": False}, "metrics": metrics, "error": None}
    cancelled = {"metadata": {"was_cancelled": True}, "metrics": {}, "error": {"type": "cancelled"}}
    export = tmp_path / "profile_export.jsonl"
    export.write_text("".join(json.dumps(each) + "\n" for each in (answered, cancelled, answered)))

    load = load_generator.read_load(export)

    assert (load.answered, load.cancelled) == (2, 1)
    assert (load.prompt_tokens, load.output_tokens, load.cached_tokens) == (60, 6, 32)
    assert (load.first_token_seconds, load.latency_seconds) == (0.5, 2.0)
    export.write_text(json.dumps({**answered, "error": {"type": "server"}}) + "\n")
    with pytest.raises(ServescopeError, match="1 of aiperf's requests failed"):
        load_generator.read_load(export)


@pytest.mark.parametrize("words", [["--requests", "3"], ["--concurrency", "0"], ["--report", "no/such.md"]])
def test_the_load_refuses_what_cannot_be(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments end with 2 and their value, before anything is started."""
    with pytest.raises(SystemExit) as ended:
        load_generator.main(words)
    assert ended.value.code == 2
    assert words[1] in capsys.readouterr().err
