"""Receivers that misbehave over real sockets cost only their own notifications, and get those once they recover."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import tracemalloc
from collections import defaultdict
from pathlib import Path

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import Active
from servescope.collector.paging import notifier as notifying
from servescope.collector.paging.notifier import Batch, Notifier
from servescope.collector.paging.payloads import AlertPayload
from servescope.collector.paging.settings import AlertingSettings, ReceiverSettings
from servescope.collector.paging.states import AlertInstance
from servescope.collector.scrapes.fetch import HttpFetch
from servescope.collector.telemetry import Telemetry
from servescope.settings.access import Access
from servescope.web.connections import open_session
from tests.support.echoes import echoes, shows
from tests.support.faulty_servers import (
    Serve,
    answering,
    chunk,
    endless,
    endless_slowly,
    head,
    repeating,
    reset,
    sending,
    whole,
)
from tests.support.waiting import deadline_seconds, wait_for_async

START = 1_800_000_000_000
TOKEN = "t0ken-of-the-tests"
_CHUNKED = "Transfer-Encoding: chunked"
_BOMB = gzip.compress(b"\0" * (100 << 20), compresslevel=1)
_NO_ANSWER = "no answer within 0.3 s"
_ACCEPTS = repeating(whole(b""))

REFUSING: dict[str, tuple[Serve, str]] = {
    "silent": (sending(then_hang=True), _NO_ANSWER),
    "trickling head": (endless_slowly(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"), _NO_ANSWER),
    "half a head": (sending(b"HTTP/1.1 200 OK\r\nX-Long: x", then_hang=True), _NO_ANSWER),
    "closing": (sending(), "connection lost"),
    "resetting": (reset, "connection lost"),
    "interim responses without end": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000), "interim responses"),
    "headers without end": (endless(b"HTTP/1.1 200 OK\r\n", b"X-More: again\r\n" * 100), "not HTTP: "),
    "status line without end": (endless(b"HTTP/1.1 500 ", b"x" * 10_000), "not HTTP: "),
    "long reason": (sending(whole(b"", status=f"500 {'x' * 8_000}")), "HTTP status 500 xxx"),
    "error with a body without end": (
        endless(head(_CHUNKED, status="500 Internal Server Error"), chunk(b"x" * 10_000)), "HTTP status 500",
    ),
    "no HTTP": (sending(b"SSH-2.0-OpenSSH_9.6\r\n"), "not HTTP: "),
    "switching protocols": (
        sending(head("Connection: upgrade", "Upgrade: h2c", status="101 Switching Protocols"), then_hang=True), "101",
    ),
    "429 for ever": (
        sending(whole(b"", f"Retry-After: {'9' * 300}", status="429 Too Many Requests")), "HTTP status 429",
    ),
    "503 until 9999": (
        sending(whole(b"", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", status="503 Service Unavailable")),
        "HTTP status 503",
    ),
}  # fmt: skip
"""Receivers that accept nothing, with the problem that is shown for them."""

ACCEPTING: dict[str, Serve] = {
    "a body without end": endless(head(_CHUNKED), chunk(b"x" * 10_000)),
    "a body that never comes": sending(head("Content-Length: 1000000000000"), then_hang=True),
    "a compressed body of 100 MB": sending(whole(_BOMB, "Content-Encoding: gzip")),
    "answers to questions nobody asked": sending(whole(b"") * 1_000),
}
"""Receivers that accept a notification and send what nobody reads."""


class Receivers:
    """One receiver that does what `serve` says, with a token, and a healthy one; alerts that each accepted, by URL."""

    def __init__(self, folder: Path, serve: Serve = _ACCEPTS, *, redirect: str = "") -> None:
        (folder / "token").write_text(TOKEN)
        self.access = Access(bearer_token_file="token", directory=str(folder))
        self.serve, self.redirect = serve, redirect
        self.accepted: defaultdict[str, list[str]] = defaultdict(list)
        self.elsewhere = 0

    async def hostile(self, writer: asyncio.StreamWriter) -> None:
        await self.serve(writer)

    async def count(self, writer: asyncio.StreamWriter) -> None:
        self.elsewhere += 1
        await _ACCEPTS(writer)

    async def play(self, problem: str) -> None:
        """Three evaluations, each with one alert more, then one after the hostile receiver has recovered."""
        async with (
            answering(self.hostile) as hostile,
            answering(_ACCEPTS) as healthy,
            answering(self.count) as elsewhere,
            open_session() as session,
        ):
            fetch = HttpFetch(session)
            if self.redirect:
                self.serve = sending(whole(b"", f"Location: {elsewhere}/", status=self.redirect))

            async def post(url: str, access: Access, body: bytes, _: float, /) -> None:
                is_hanging = url == hostile and problem == _NO_ANSWER and self.serve is not _ACCEPTS
                await fetch.post(url, access, body, 0.3 if is_hanging else deadline_seconds())
                self.accepted[url] += [each["labels"]["replica"] for each in json.loads(body)["alerts"]]

            settings = AlertingSettings(
                webhooks=(ReceiverSettings(hostile, self.access), ReceiverSettings(healthy, repeat_ms=1))
            )
            notifier = Notifier(settings, post, Telemetry(), lambda: None)
            try:
                for count in (1, 2, 3):
                    notifier.send(_batch(count))
                    await wait_for_async(lambda: f"chat-{count}" in self.accepted[healthy], f"alert {count}")  # noqa: B023
                if problem:
                    await wait_for_async(lambda: any(notifier.problems().values()), "a problem")
                    (shown,) = filter(None, notifier.problems().values())
                    assert problem in shown
                    assert len(shown) < 300
                    assert TOKEN not in shown
                self.serve = _ACCEPTS
                notifier.send(_batch(4))
                for url in (hostile, healthy):
                    await wait_for_async(
                        lambda: set(self.accepted[url]) == {f"chat-{number}" for number in range(1, 5)},  # noqa: B023
                        f"all alerts at {url}",
                    )
                await wait_for_async(lambda: not any(notifier.problems().values()), "no problem any more")
            finally:
                await notifier.close()


def _batch(count: int) -> Batch:
    """The alerts of the replicas `chat-1` to `chat-COUNT` of a deployment, all firing."""
    instances = tuple(
        AlertInstance(
            "ServescopeReplicasFailed",
            (("deployment_id", "chat"), ("replica", f"chat-{number}")),
            Active(1.0, START, START),
        )
        for number in range(1, count + 1)
    )
    return Batch(START + 15_000 * count, START + 240_000 + 15_000 * count, instances, _payload)


def _payload(instance: AlertInstance) -> AlertPayload:
    labels = {**ALERTS[instance.alert].labels, **dict(instance.labels)}
    return AlertPayload(instance.key, labels, {}, instance.active.fired_ms or 0, None)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(notifying, "_LONGEST_PAUSE_SECONDS", 0.01)


@pytest.mark.parametrize("name", REFUSING)
def test_a_receiver_that_accepts_nothing_costs_only_itself(tmp_path: Path, name: str) -> None:
    """Another receiver gets every alert at once; this one gets all of them once it recovers."""
    serve, problem = REFUSING[name]
    asyncio.run(Receivers(tmp_path, serve).play(problem))


@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_to_another_server_is_not_followed(tmp_path: Path, status: str) -> None:
    """Neither the notification nor the token leaves for another server."""
    receivers = Receivers(tmp_path, redirect=status)

    asyncio.run(receivers.play(f"HTTP status {status}"))

    assert receivers.elsewhere == 0


@pytest.mark.parametrize("name", ACCEPTING)
def test_what_a_receiver_sends_after_its_status_is_not_read(tmp_path: Path, name: str) -> None:
    """The notification is accepted; the body takes neither time nor memory."""
    tracemalloc.start()
    try:
        asyncio.run(Receivers(tmp_path, ACCEPTING[name]).play(""))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 20_000_000


@pytest.mark.slow
async def test_no_receiver_that_sends_back_what_it_was_sent_has_it_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of its access, of its path, and of its query: in the problem that is shown, and in the log."""
    (tmp_path / "password").write_text("hunter2/of-Acme+~")
    access = Access(basic_auth_username="joe", basic_auth_password_file="password", directory=str(tmp_path))
    sent, hook = f"Basic {base64.b64encode(b'joe:hunter2/of-Acme+~').decode()}", "T024BE7LD-B8G4H2-XXyyzz"
    lines = [f"/services/{hook}?key=k3y-0f-acme", hook.lower(), hook.encode().hex(), "K3Y-0F-ACME", *echoes(sent)]
    left = iter(lines)

    async def serve(writer: asyncio.StreamWriter) -> None:
        await sending(whole(b"", status=f"500 {' '.join(next(left, 'enough').split())}"))(writer)

    async with answering(serve) as url, open_session() as session:
        receiver = ReceiverSettings(f"{url}/services/{hook}?key=k3y-0f-acme", access)
        settings = AlertingSettings(webhooks=(receiver,))
        notifier = Notifier(settings, HttpFetch(session).post, Telemetry(), lambda: None)
        notifier.send(_batch(1))
        await wait_for_async(lambda: "500 enough" in str(notifier.problems()), "every answer")
        await notifier.close()
    shown = caplog.text.casefold()
    assert "notification failed, will retry: http status 500 [secret]" in shown
    assert not shows(shown, sent)
    assert not [each for each in (hook, hook.encode().hex(), "k3y-0f-acme") if each.casefold() in shown]


async def test_a_server_that_stalls_in_the_handshake_costs_only_itself(tmp_path: Path) -> None:
    """Of TLS; the healthy receiver gets the alert meanwhile."""
    async with (
        answering(sending(then_hang=True)) as stalling,
        answering(_ACCEPTS) as healthy,
        open_session() as session,
    ):
        fetch, accepted = HttpFetch(session), list[str]()

        async def post(url: str, access: Access, body: bytes, _: float, /) -> None:
            await fetch.post(url, access, body, 0.3 if url.startswith("https") else deadline_seconds())
            accepted.append(url)

        tls = ReceiverSettings(stalling.replace("http:", "https:"))
        settings = AlertingSettings(webhooks=(tls, ReceiverSettings(healthy)))
        notifier = Notifier(settings, post, Telemetry(), lambda: None)
        notifier.send(_batch(1))
        await wait_for_async(lambda: accepted == [healthy], "the healthy receiver")
        await wait_for_async(lambda: any(notifier.problems().values()), "a problem")
        assert list(filter(None, notifier.problems().values())) == [_NO_ANSWER]
        await notifier.close()


async def test_a_slow_alertmanager_is_sent_alerts_that_have_not_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where evaluations go on while requests are sent, later requests carry the end of the latest one."""
    monkeypatch.setattr(notifying, "MAX_ALERTS_PER_REQUEST", 1)
    ends: list[str] = []

    async def post(_: str, __: Access, body: bytes, ___: float, /) -> None:
        ends.append(json.loads(body)[0]["endsAt"])
        if len(ends) == 1:
            notifier.send(_batch(20))

    settings = AlertingSettings(alertmanagers=(ReceiverSettings("http://am:9093"),))
    notifier = Notifier(settings, post, Telemetry(), lambda: None)
    notifier.send(_batch(2))
    await wait_for_async(lambda: len(ends) >= 2, "two requests")
    await notifier.close()
    assert ends[:2] == ["2027-01-15T08:04:30.000Z", "2027-01-15T08:09:00.000Z"]
