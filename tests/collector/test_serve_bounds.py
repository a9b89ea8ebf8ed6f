"""The bounds on each client of the collector: another client is served meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from servescope.web.bounds import Bounds
from servescope.web.gate import Reads
from tests.collector.support.api_door import LIMITS, Door, Held, bounds, door, ended, fill
from tests.conftest import ROOT
from tests.support.waiting import wait_for_async


def test_the_bounds_are_documented() -> None:
    """docs/api.md has every number as the code has it."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    real = Bounds()
    for row in (
        f"| connections | {real.connections} |",
        f"silent or trickling | {real.idle_seconds:g} s |",
        f"| TLS handshake | {real.handshake_seconds:g} s |",
        f"| {real.line_bytes >> 10} KiB · {real.header_bytes >> 10} KiB · {real.headers} |",
        f"| {real.unanswered_bytes >> 10} KiB | 431 · closed |",
        f"| requests at once | {real.requests} |",
        f"| {real.reads} · {real.waiting_reads} |",
        f"| time to make an answer | {real.answer_seconds:g} s |",
        f"| numbers in one answer | {real.answer_values:,} |".replace(",", " "),
        f"| time to take {real.piece_bytes >> 10} KiB of an answer · all of it | {real.piece_seconds:g} s · "
        f"{real.sending_seconds:g} s |",
        f"| answers on their way | {real.sending_bytes // 1_000_000} MB |",
        f"within {real.page_seconds:g} s, and within nine times",
    ):
        assert row in page, row
    assert real.page_share == 9.0


@pytest.mark.slow
async def test_a_request_that_trickles_is_cut_off(tmp_path: Path) -> None:
    """A client that sends a header byte by byte is cut off as a silent one is; others are answered meanwhile."""
    async with door(tmp_path, bounds(idle_seconds=0.5)) as opened:
        reader, writer = await opened.send(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n")

        ending = asyncio.create_task(ended(reader))
        statuses: set[int] = set()
        while not ending.done():
            writer.write(b"X")
            statuses.add((await opened.ask("/api/v1/targets"))[0])
        writer.close()
        assert (statuses, await ending) == ({200}, b"")


@pytest.mark.slow
async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    """After its answer, and before its first request; one that keeps sending requests stays open."""
    async with door(tmp_path, bounds(idle_seconds=1.5)) as opened:
        silent, first = await opened.connect()
        reader, writer = await opened.send(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        busy, asking = await opened.connect()
        others = asyncio.gather(ended(silent), ended(reader))
        while not others.done():
            asking.write(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 OK" in await busy.readuntil(b"ok\n")
        for each in (first, writer, asking):
            each.close()
        nothing, answer = await others
    assert nothing == b""
    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_the_longest_idle_connection_makes_way(tmp_path: Path) -> None:
    """However many connect and send nothing, the next one is served; each closed connection is counted."""
    async with door(tmp_path, bounds(connections=4)) as opened:
        silent = [await opened.connect() for _ in range(8)]
        status, *_ = await opened.ask("/api/v1/targets")
        first = await ended(silent[0][0])
        refused = await opened.refused("connections")
        for _, writer in silent:
            writer.close()
    assert (status, first) == (200, b"")
    assert refused >= 5


async def test_connections_that_are_all_busy_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is served; the connection that has waited longest for its answer is closed."""
    async with door(tmp_path, bounds(connections=4)) as opened:
        held = Held(monkeypatch, opened.scene.collector.recorder.history)
        asked, busy = asked_reads(monkeypatch), []
        for count in range(1, 5):
            busy.append(await opened.send(b"GET /api/v1/deployments HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            await until(lambda count=count: len(asked) == count)  # type: ignore[misc]  # the default is no part of the type
        status = (await opened.ask("/-/healthy"))[0]
        first = await ended(busy[0][0])
        others_wait = not any(reader.at_eof() for reader, _ in busy[1:])
        held.let_go()
        for _, writer in busy:
            writer.close()
        assert (status, first, others_wait) == (200, b"", True)


async def test_what_is_sent_behind_a_request_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests behind one that waits for its answer end the connection when they grow large; others are answered."""
    async with door(tmp_path, bounds(unanswered_bytes=100_000)) as opened:
        held = Held(monkeypatch, opened.scene.collector.recorder.history)
        reader, writer = await opened.send(b"GET /api/v1/deployments HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: held.begun == 1)
        behind = b"GET /api/v1/catalog HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + b"x" * 5_000 + b"\r\n\r\n"
        writer.write(behind * 10)
        # The answer to somebody else, who came later.
        assert (await opened.ask("/api/v1/targets"))[0] == 200
        still_there = not reader.at_eof()
        writer.write(behind * 20)
        cut_off = await ended(reader)
        writer.close()
        served = (await opened.ask("/api/v1/targets"))[0]
        held.let_go()
        assert (cut_off, served, still_there) == (b"", 200, True)


@pytest.mark.slow
async def test_a_body_without_end_is_not_waited_for(tmp_path: Path) -> None:
    """The request is answered, and its connection closed."""
    async with door(tmp_path, LIMITS) as opened:
        head = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await opened.send(head)
        for _ in range(300):
            writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        answer = await ended(reader)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("request_head", "status", "message"),
    [
        (b"GET /?" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "path and query of more than 8192"),
        (b"GET /?" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "path and query of more than 8192"),
        (b"GET / HTTP/1.1\r\nX-Long: " + b"y" * 20_000 + b"\r\n\r\n", 431, "a header of more than 16384 bytes"),
        (b"GET / HTTP/1.1\r\nX-Long: " + b"y" * 100_000 + b"\r\n\r\n", 431, "a header of more than 16384 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"y" * 100_000 + b": long\r\n\r\n", 431, "a header of more than 16384 bytes"),
        (
            b"GET /api/v1/targets HTTP/1.1\r\nHost: localhost\r\n"
            + b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1_000) for number in range(150))
            + b"\r\n",
            431,
            "more than 128 headers",
        ),
        (
            b"GET /api/v1/targets HTTP/1.1\r\nHost: localhost\r\n"
            + b"".join(b"X-%d: %s\r\n" % (number, b"y" * 4_000) for number in range(100))
            + b"\r\n",
            431,
            "headers of more than 262144 bytes in all",
        ),
    ],
)
async def test_requests_of_undue_size_are_refused(
    tmp_path: Path, request_head: bytes, status: int, message: str
) -> None:
    """414 and 431, in JSON, with the limit; then the connection is closed."""
    async with door(tmp_path, LIMITS) as opened:
        reader, writer = await opened.send(request_head)
        answer = await ended(reader)
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"%d" % status
    assert b"aiohttp" not in head
    assert json.loads(body)["error"].startswith(message)


async def test_what_is_not_http_is_answered_and_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """400, and no line in the log that strangers could fill it with."""
    async with door(tmp_path, LIMITS) as opened:
        reader, writer = await opened.send(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        answer = await ended(reader)
        writer.close()
        assert answer.startswith(b"HTTP/1.0 400 ")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


ODD_REQUESTS = (
    b"GET /api/v1/figures?deployment_id=v1&name=request_rate HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /-/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://elsewhere/api/v1/targets HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/v1/targets HTTP/1.0\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    b"GET /api/v1/samples?name=%ff%fe&deployment_id=%00%ed%a0%80 HTTP/1.1\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
    b"GET /%2e%2e/api/v1/targets HTTP/1.1\r\nHost: [::1\r\n\r\n",
    b"GET /api/v1/targets HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nExpect: \xf0\x9f\r\n\r\n",
    b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: \xf0\x9f\r\nAccept-Encoding: gzip;q=1e9\r\n\r\n",
)


def mutated(request: bytes, chance: random.Random) -> bytes:
    """The request with a few bytes changed, taken out, put in, or its end cut off."""
    data = bytearray(request)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                del data[at : at + chance.randrange(1, 9)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case _:
                del data[at:]
    return bytes(data)


@pytest.mark.slow
async def test_odd_requests_cost_only_themselves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is sent, and whenever the client leaves: no 5xx, no error in the log, and the next is served."""
    chance = random.Random(11)
    # aiohttp answers 500 to an Expect header that is no text, before us, where there is no page.
    changeable = [each for each in ODD_REQUESTS if b"Expect" not in each]
    requests = [*ODD_REQUESTS, *(mutated(chance.choice(changeable), chance) for _ in range(600))]
    async with door(tmp_path, bounds(idle_seconds=0.2)) as opened:

        async def send(request: bytes, *, stay: bool) -> bytes:
            reader, writer = await opened.send(request)
            if not stay:
                writer.write_eof()
            answer = await ended(reader)
            writer.close()
            return answer[9:12]

        await opened.scene.step()
        statuses: set[bytes] = set()
        for start in range(0, len(requests), 50):
            batch = requests[start : start + 50]
            statuses |= set(await asyncio.gather(*(send(one, stay=len(one) % 3 > 0) for one in batch)))
        served = (await opened.ask("/api/v1/targets"))[0]
    assert served == 200
    assert {b"200", b"400", b"404"} <= statuses
    assert {status for status in statuses if status.startswith(b"5")} == set()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def until(condition: Callable[[], bool]) -> None:
    await wait_for_async(condition, "the requests")


def asked_reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is read from the store from now on, from the moment that a request needs it."""
    asked: list[object] = []
    run = Reads.run

    async def counted(reads: Reads, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        asked.append(read)
        return await run(reads, read, *args, **kwargs)

    monkeypatch.setattr(Reads, "run", counted)
    return asked


async def test_reads_of_the_store_wait_in_a_short_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the line 503 with Retry-After; pages that read no store are served; then all who waited are."""
    async with door(tmp_path, bounds(reads=1, waiting_reads=2)) as opened:
        held = Held(monkeypatch, opened.scene.collector.recorder.history)
        asked = asked_reads(monkeypatch)
        waiting = [asyncio.create_task(opened.ask("/api/v1/deployments")) for _ in range(3)]
        await until(lambda: held.begun == 1 and len(asked) == 3)
        turned_away = await opened.ask("/api/v1/status")
        others = [(await opened.ask(path))[0] for path in ("/api/v1/catalog", "/metrics", "/-/healthy")]
        held.let_go()
        served = [(await each)[0] for each in waiting]
        after = (await opened.ask("/api/v1/status"))[0]
    assert turned_away[0] == 503
    assert turned_away[1] == {"error": "3 reads of the store are under way, ask again"}
    assert turned_away[2]["Retry-After"] == "1"
    assert (others, after, served) == ([200, 200, 200], 200, [200, 200, 200])


@pytest.mark.slow
async def test_an_answer_that_takes_too_long_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 after the bound; the read counts as one under way until it has ended, so that reads do not pile up."""
    async with door(tmp_path, bounds(answer_seconds=0.8, reads=1, waiting_reads=0)) as opened:
        held = Held(monkeypatch, opened.scene.collector.recorder.history)
        first = (await opened.ask("/api/v1/deployments"))[:2]
        second = (await opened.ask("/api/v1/status"))[:2]
        held.let_go()
        await opened.until_answered("/api/v1/deployments", 200)
        first, second = [first, second]
    assert first == (503, {"error": "no answer within 0.8 s; ask for less, or again"})
    assert second == (503, {"error": "1 reads of the store are under way, ask again"})


async def test_requests_at_once_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request too many is answered with 503, a health check is not; those accepted before are answered."""
    async with door(tmp_path, bounds(requests=2)) as opened:
        held = Held(monkeypatch, opened.scene.collector.recorder.history)
        waiting = [asyncio.create_task(opened.ask("/api/v1/deployments")) for _ in range(2)]
        await until(lambda: held.begun == 2)
        refused, healthy = (await opened.ask("/api/v1/catalog"))[0], (await opened.ask("/-/healthy"))[0]
        held.let_go()
        assert (refused, healthy, [(await each)[0] for each in waiting]) == (503, 200, [200, 200])


@pytest.mark.parametrize(
    ("query", "less"),
    [
        ("figures?deployment_id=v1", "fewer figures (name), fewer points (max_points), or a shorter time"),
        ("samples?deployment_id=v1&name=output_tokens_per_request", "fewer metrics (name), or a shorter time"),
    ],
)
async def test_an_answer_that_would_be_too_large_is_refused(tmp_path: Path, query: str, less: str) -> None:
    """400, with what to ask for instead; less than that is answered."""
    async with door(tmp_path, bounds(answer_values=200)) as opened:
        await fill(opened.scene)
        less_of = query.replace("output_tokens_per_request", "requests_total") + "&name=request_rate"
        less_of = less_of if "figures" in query else less_of.removesuffix("&name=request_rate")
        end_ms = opened.scene.collector.clock.now_ms
        refused, narrowed = (
            (await opened.ask(f"/api/v1/{query}"))[:2],
            (await opened.ask(f"/api/v1/{less_of}&start_ms={end_ms - 60_000}&end_ms={end_ms}"))[0],
        )
    assert refused == (400, {"error": f"the answer would hold more than 200 numbers; ask for {less}"})
    assert narrowed == 200


async def test_samples_that_are_too_many_to_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400, as less can be asked for; the store is not at fault."""
    monkeypatch.setattr("servescope.store.embedded.MOST_NUMBERS", 20)
    async with door(tmp_path, bounds()) as opened:
        await fill(opened.scene)
        status, answer = (await opened.ask("/api/v1/samples?deployment_id=v1&name=requests_total"))[:2]
    assert status == 400
    assert answer["error"].endswith("too many to be read at once; ask for fewer names or a shorter time")


async def test_deployments_of_one_name_are_counted_together(tmp_path: Path) -> None:
    """Each alone is within the bound, both together are not."""

    async def act(opened: Door) -> list[int]:
        await fill(opened.scene, 5)
        queries = ("&inference_stack=v1", "&inference_stack=v2", "")
        return [
            (await opened.ask(f"/api/v1/figures?deployment_id=chat&name=request_rate{query}"))[0] for query in queries
        ]

    async with door(tmp_path, bounds(answer_values=15), deployment_id="chat") as opened:
        assert await act(opened) == [200, 200, 400]


@pytest.mark.slow
async def test_who_does_not_take_the_answer_is_cut_off(tmp_path: Path) -> None:
    """Connections whose client never reads are closed; other clients are answered meanwhile."""
    async with door(tmp_path, bounds(piece_seconds=0.4)) as opened:
        await opened.scene.step()
        request = b"GET /api/v1/catalog HTTP/1.1\r\nHost: localhost\r\n\r\n"
        stuck = []
        for _ in range(6):
            reader, writer = await opened.connect(reads=False)
            writer.write(request * 400)
            stuck.append((reader, writer))
        statuses: set[int] = set()
        while (cut_off := await opened.refused("slow_reader")) < len(stuck):
            statuses.add((await opened.ask("/api/v1/targets"))[0])
        connections = opened.scene.collector.telemetry.api_connections._value.get()
        for _, writer in stuck:
            writer.close()
        connections = int(connections)
    assert statuses == {200}
    assert cut_off == 6
    assert connections <= 2


@pytest.mark.slow
async def test_answers_on_their_way_are_bounded_together(tmp_path: Path) -> None:
    """While the bound is used up by answers that slow clients do not read, others get 503; afterwards 200."""
    async with door(tmp_path, bounds(sending_bytes=10_000, piece_seconds=1.5)) as opened:
        _, writer = await opened.connect(reads=False)
        writer.write(b"GET /api/v1/catalog HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        await opened.until_answered("/api/v1/targets", 503)
        healthy, *_ = await opened.ask("/-/healthy")
        await opened.until_answered("/api/v1/targets", 200)
        writer.close()
        assert healthy == 200


@pytest.mark.slow
async def test_who_takes_the_answer_by_drops_is_cut_off(tmp_path: Path) -> None:
    """A client that reads a little now and then is cut off when its answer is not read whole within the bound."""
    async with door(tmp_path, bounds(piece_bytes=16_384, piece_seconds=60.0, sending_seconds=0.6)) as opened:
        reader, writer = await opened.connect(reads=False)
        writer.write(b"GET /api/v1/catalog HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        while not (cut_off := await opened.refused("slow_reader")):
            with suppress(ConnectionError):
                await reader.read(64)
        writer.close()
        assert cut_off == 1
