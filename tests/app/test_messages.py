"""What a browser may send through a WebSocket of the console, and what the log has of the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from streamlit.proto.BackMsg_pb2 import BackMsg

from app.door.messages import AT_ONCE, LARGEST, MOST_SESSIONS, MessageCheck
from app.door.refusals import EVERY_SECONDS, LogLimit, Refusals

Make = Callable[[BackMsg], object]
SCOPE: Scope = {"type": "websocket", "headers": [], "client": ("192.0.2.1", 4711)}


def message_of(make: Make) -> bytes:
    """A message as the frontend sends it."""
    message = BackMsg()
    make(message)
    return bytes(message.SerializeToString())


def rerun(message: BackMsg) -> None:
    """Ask for a run of the page's script."""
    message.rerun_script.query_string = "range=1h"


RERUN = message_of(rerun)


def received_of(*sent: bytes | str) -> tuple[list[bytes], list[Message]]:
    """What Streamlit receives when a browser sends this, and what the browser gets; both until it leaves."""
    received: list[bytes] = []
    answers: list[Message] = []
    coming: list[Message] = [
        {"type": "websocket.connect"},
        *({"type": "websocket.receive", "bytes" if isinstance(each, bytes) else "text": each} for each in sent),
        {"type": "websocket.disconnect", "code": 1001},
    ]

    async def streamlit(scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        await websocket.accept()
        async for data in websocket.iter_bytes():
            received.append(data)

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        answers.append(message)

    asyncio.run(MessageCheck(streamlit, Refusals())(SCOPE, receive, send))
    return received, answers


@pytest.mark.parametrize(
    "make",
    [
        rerun,
        lambda message: setattr(message, "stop_script", True),
        lambda message: setattr(message, "app_heartbeat", True),
        lambda message: message.file_urls_request.file_names.append("config.yaml"),
        lambda message: setattr(message.backend_operation_request.deferred_file, "file_id", "a"),
    ],
)
def test_messages_of_a_page_pass(make: Make) -> None:
    """A run, its end, the heartbeat, an upload and a download."""
    sent = message_of(make)

    assert received_of(sent, sent) == ([sent, sent], [{"type": "websocket.accept", "subprotocol": None, "headers": []}])


@pytest.mark.parametrize(
    "make",
    [
        lambda message: setattr(message, "clear_cache", True),
        lambda message: setattr(message, "load_git_info", True),
        lambda message: setattr(message, "set_run_on_save", True),
        lambda message: setattr(message, "debug_shutdown_runtime", True),
        lambda message: setattr(message, "debug_disconnect_websocket", True),
        lambda message: message.backend_operation_request.install_skills.SetInParent(),
        lambda message: message.backend_operation_request.dismiss_skills_nudge.SetInParent(),
    ],
)
def test_messages_of_a_developer_are_passed_over(make: Make) -> None:
    """Nobody clears what all readers share, reads the repository's state, or writes files; the page goes on."""
    received, answers = received_of(message_of(make), RERUN)

    assert (received, len(answers)) == ([RERUN], 1)


@pytest.mark.parametrize(
    ("sent", "code"),
    [("hello", 1002), (b"", 1002), (b"\xff\xff", 1002), (RERUN[:-2], 1002), (b"\x42\x00" * (LARGEST // 2 + 1), 1009)],
)
def test_what_is_no_message_ends_the_session(sent: bytes | str, code: int) -> None:
    """Text, nothing, garbage, half a message and one that is too large reach nobody, and nothing behind them does."""
    received, answers = received_of(RERUN, sent, RERUN)

    assert received == [RERUN]
    assert answers[-1] == {"type": "websocket.close", "code": code}


def test_messages_of_a_session_are_bounded() -> None:
    """A browser that sends more than a page can ends its session; what it sent behind that is dropped."""
    received, answers = received_of(*[RERUN] * (AT_ONCE + 20))

    assert AT_ONCE <= len(received) < AT_ONCE + 20
    assert answers[-1] == {"type": "websocket.close", "code": 1008}


async def test_streamlit_cannot_answer_a_session_that_was_ended() -> None:
    """What it sends then fails as for a browser that left, which it expects, and never reaches the browser."""
    answers: list[Message] = []

    async def streamlit(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"
        with pytest.raises(OSError, match="refused"):
            await send({"type": "websocket.send", "bytes": b"page"})

    coming = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "hello"}])

    async def receive() -> Message:
        return next(coming)

    async def send(message: Message) -> None:
        answers.append(message)

    await MessageCheck(streamlit, Refusals())(SCOPE, receive, send)
    assert [answer["type"] for answer in answers] == ["websocket.accept", "websocket.close"]


async def test_sessions_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Past the bound a WebSocket is refused, and counted; when one has ended another one may come."""
    opened: list[Scope] = []
    ends: list[asyncio.Event] = []

    async def streamlit(scope: Scope, receive: Receive, send: Send) -> None:
        opened.append(scope)
        ends.append(asyncio.Event())
        await ends[-1].wait()

    answers: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nobody listens")

    async def send(message: Message) -> None:
        answers.append(message)

    check = MessageCheck(streamlit, Refusals())
    sessions = [asyncio.create_task(_run(check(SCOPE, receive, send))) for _ in range(MOST_SESSIONS + 3)]
    await asyncio.sleep(0)
    assert len(opened) == MOST_SESSIONS
    ends[0].set()
    await asyncio.gather(sessions[0], *sessions[-3:])
    sessions.append(asyncio.create_task(_run(check(SCOPE, receive, send))))
    await asyncio.sleep(0)
    assert len(opened) == MOST_SESSIONS + 1
    for end in ends:
        end.set()
    await asyncio.gather(*sessions)

    assert [answer["type"] for answer in answers] == ["websocket.close"] * 3
    assert caplog.messages == [
        f"servescope: the console refused a session beyond {MOST_SESSIONS} (1 times), last from 192.0.2.1"
    ]


async def _run(session: Awaitable[None]) -> None:
    await session


# --- The log ----------------------------------------------------------------------------------------------------------


async def test_refusals_are_a_line_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is written at once, the others counted by kind; a minute without one writes nothing."""
    due: list[tuple[float, Callable[[], None]]] = []

    def call_later(seconds: float, then: Callable[[], None]) -> object:
        due.append((seconds, then))
        return then

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    refusals = Refusals()
    for _ in range(1000):
        refusals.note("this", SCOPE)
    refusals.note("that", {"type": "http", "client": None})
    assert len(caplog.messages) == 1
    for _ in range(3):
        if due:
            seconds, write = due.pop()
            assert seconds == EVERY_SECONDS
            write()
    refusals.note("this", SCOPE)

    assert caplog.messages == [
        "servescope: the console refused this (1 times), last from 192.0.2.1",
        "servescope: the console refused this (999 times), that (1 times), last from an unknown peer",
        "servescope: the console refused this (1 times), last from 192.0.2.1",
    ]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> logging.Logger:
    """A logger with the limit of the console's server."""
    logger = logging.Logger("streamlit.limited")
    logger.addFilter(LogLimit())
    logger.addHandler(caplog.handler)
    return logger


def test_one_place_logs_once_a_minute(
    limited: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs between its texts makes no difference; the next minute says how often it was left out."""
    now_s = 1000.0
    monkeypatch.setattr("app.door.refusals.time.monotonic", lambda: now_s)
    for number in range(500):
        limited.error("cannot read %s", number)
        if number < 3:
            limited.warning("another place")
        now_s += 0.2

    assert caplog.messages == ["cannot read 0", "another place", "cannot read 300 (and 299 times before)"]


def test_a_warning_is_one_line(limited: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names its exception without a traceback; an error, which is a bug, keeps it."""
    try:
        raise ValueError("frame 7")
    except ValueError:
        limited.warning("cannot read a frame", exc_info=True)
        limited.exception("cannot read a frame")

    assert [record.exc_info is None for record in caplog.records] == [True, False]
    assert caplog.messages == ["cannot read a frame ValueError: frame 7", "cannot read a frame"]
