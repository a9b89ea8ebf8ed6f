"""Events over HTTP: what the log shows, and deploys that are reported with a token and never without."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from servescope.collector.api.events import MOST_BODY_BYTES
from servescope.web.settings import ApiSettings
from tests.collector.support.api_door import LIMITS, Door, door

TOKEN = "ev3nts-t0ken"  # the tests' own
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HASH = "0a" * 32
DEPLOY = {"text": "chat 1.4 → 1.5", "by": "ci", "labels": {"deployment_id": "v2"}, "configuration": HASH}


@pytest.fixture
def tokens(tmp_path: Path) -> ApiSettings:
    path = tmp_path / "tokens"
    path.write_text(f"{TOKEN}\n")
    return ApiSettings(bearer_token_file=path)


async def report(opened: Door, body: bytes, headers: Mapping[str, str] = BEARER) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{opened.port}/api/v1/events"
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as response:
        return response.status, await response.json()


async def test_a_deploy_is_reported_and_read(tmp_path: Path, tokens: ApiSettings) -> None:
    """Beside what the collector noticed itself: its targets appeared."""
    async with door(tmp_path, LIMITS, tokens) as opened:
        at_ms = opened.scene.collector.clock.now_ms - 60_000
        status, accepted = await report(opened, json.dumps({**DEPLOY, "time_ms": at_ms}).encode())
        await opened.scene.step()
        await opened.scene.written()
        _, then, _ = await opened.ask(f"/api/v1/events?start_ms={at_ms}&end_ms={at_ms}", BEARER)
        _, lately, _ = await opened.ask("/api/v1/events", BEARER)
        assert accepted["time_ms"] == at_ms
        then, lately = (then["events"], lately["events"])
    shown = [accepted[name] for name in ("kind", "labels", "text", "detail")]
    assert shown == ["deploy", DEPLOY["labels"], DEPLOY["text"], {"by": "ci", "configuration": HASH}]
    assert (status, then) == (202, [accepted])
    assert "target_appeared" in {each["kind"] for each in lately}


async def test_a_deploy_without_a_token_is_refused(tmp_path: Path, tokens: ApiSettings) -> None:
    """Where tokens are configured with 401, where none are, and all else is open, with 403; nothing is written."""
    for api, refused in ((tokens, 401), (None, 403)):
        async with door(tmp_path, LIMITS, api) as opened:
            status, _ = await report(opened, json.dumps(DEPLOY).encode(), {})
            await opened.scene.step()
            await opened.scene.written()
            events = opened.scene.collector.recorder.history.read_events(0, 1 << 41)
            assert (status, [each for each in events if each.kind == "deploy"]) == (refused, [])


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"", 400, "the body is no JSON"),
        (b"[1]", 400, "the body is no object"),
        (b'{"text": "a", "by": "b", "x": 1}', 400,
         "unknown key 'x', supported: text, by, labels, time_ms, configuration"),
        (b'{"text": "a", "by": "b", "configuration": "0A"}', 400, "expected a hash of 64 hexadecimal digits"),
        (b'{"text": "a"}', 400, "by is wrong, expected 1 to 1024 characters"),
        (b'{"text": "a\\n", "by": "b"}', 400, "text is wrong"),
        (b'{"text": "\\ud800", "by": "b"}', 400, "text is wrong"),
        (b'{"text": "a", "by": "b", "time_ms": -1}', 400, "time_ms is wrong, expected a whole number from 0"),
        (b'{"text": "a", "by": "b", "time_ms": 4000000000000}', 400,
         "time_ms is wrong, 2096-10-02T07:06:40Z is later than now, 2027-01-15T08:"),
        (b'{"text": "a", "by": "b", "labels": {"pod": "1"}}', 400, "labels is wrong, expected an object of some of"),
        (b" " * (MOST_BODY_BYTES + 1), 413, "the body has more than 16384 bytes"),
    ],
)  # fmt: skip
async def test_a_wrong_report_is_named(
    tmp_path: Path, tokens: ApiSettings, body: bytes, status: int, error: str
) -> None:
    async with door(tmp_path, LIMITS, tokens) as opened:
        found, answer = await report(opened, body)
    assert found == status
    assert error in answer["error"]
