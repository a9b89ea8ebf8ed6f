"""What a browser may send through a WebSocket of the console: messages of the pages, and not too many of them."""

from __future__ import annotations

import asyncio
from typing import Final

from google.protobuf.message import DecodeError
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from streamlit.proto.BackMsg_pb2 import BackMsg

from app.door.refusals import Refusals

MOST_SESSIONS: Final = 100
"""WebSockets at once: each costs descriptors, also for the two minutes in which a browser may come back to it."""
AT_ONCE, PER_SECOND = 100, 5.0
"""Messages of one WebSocket: so many at once, and so many a second in the long run."""
LARGEST: Final = 16 << 20
"""Bytes of a message."""

# A message that serves whoever develops a Streamlit app is passed over: it clears what all readers share, asks for the
# repository's state, or writes files.
_OF_PAGES: Final = frozenset({"rerun_script", "stop_script", "app_heartbeat", "file_urls_request"})
_OPERATIONS: Final = frozenset({"deferred_file", "dataframe_chunk"})

_PROTOCOL_ERROR, _POLICY_VIOLATION, _TOO_BIG = 1002, 1008, 1009


class MessageCheck:
    """ASGI middleware that ends a WebSocket at a message that no page sends, and refuses one beyond `MOST_SESSIONS`."""

    def __init__(self, app: ASGIApp, refusals: Refusals) -> None:
        self._app, self._refusals = app, refusals
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with what is checked of its messages."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        if self._open >= MOST_SESSIONS:
            self._refusals.note(f"a session beyond {MOST_SESSIONS}", scope)
            await WebSocketClose()(scope, receive, send)
            return
        checked = _Conversation(scope, receive, send, self._refusals)
        self._open += 1
        try:
            await self._app(scope, checked.receive, checked.send)
        finally:
            self._open -= 1


class _Conversation:
    """A WebSocket between a browser and Streamlit, which sees the browser leave where a message is refused."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, refusals: Refusals) -> None:
        self._scope, self._receive, self._send, self._refusals = scope, receive, send, refusals
        self._left, self._at = float(AT_ONCE), asyncio.get_running_loop().time()
        self._ended = False

    async def receive(self) -> Message:
        while True:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                return message
            refused = self._refusal(message)
            if refused is not None:
                code, what = refused
                self._refusals.note(what, self._scope)
                await self._send({"type": "websocket.close", "code": code})
                self._ended = True
                return {"type": "websocket.disconnect", "code": code}
            if _kind(message["bytes"]) in _OF_PAGES | _OPERATIONS:
                return message

    async def send(self, message: Message) -> None:
        """Pass on what Streamlit answers; raises OSError when this side has ended the conversation."""
        if self._ended:
            raise OSError("a message of the browser was refused")
        await self._send(message)

    def _refusal(self, message: Message) -> tuple[int, str] | None:
        now = asyncio.get_running_loop().time()
        self._left = min(AT_ONCE, self._left + PER_SECOND * (now - self._at)) - 1
        self._at = now
        data = message.get("bytes")
        if self._left < 0:
            return _POLICY_VIOLATION, f"a session with more than {PER_SECOND:g} messages a second"
        if data is not None and len(data) > LARGEST:
            return _TOO_BIG, f"a message of more than {LARGEST} bytes"
        if data is None or _kind(data) is None:
            return _PROTOCOL_ERROR, "a message that is none of a page"
        return None


def _kind(data: bytes) -> str | None:
    """What a message asks for; None for one that is not Streamlit's."""
    message = BackMsg()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    kind = message.WhichOneof("type")
    return message.backend_operation_request.WhichOneof("payload") if kind == "backend_operation_request" else kind
