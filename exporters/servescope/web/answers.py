"""The answers that all pages share: JSON, and errors that name what is supported."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

from servescope.errors import ServescopeError


class RequestError(ServescopeError):
    """A request that is answered with an error; `status` is HTTP's."""

    status = 400

    def __init__(self, message: str, *, headers: Mapping[str, str] | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.headers = dict(headers or {})
        self.status = status if status is not None else self.status


class UnknownError(RequestError):
    """The requested object does not exist."""

    status = 404


class BusyError(RequestError):
    """The bounds on work in progress are reached; a later request may succeed."""

    status = 503

    def __init__(self, message: str, *, retry_seconds: int) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_seconds)})


async def expect_nothing(_: web.Request) -> None:
    """What to do with an Expect header: answer all the same; a client sends its body though nobody asked for it."""


def json_bytes(value: object) -> bytes:
    """The value as JSON; raises ValueError for what JSON has no word for, such as NaN."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def json_answer(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON document as an answer."""
    shown = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
    return web.Response(body=body, status=status, headers=shown)


def error_answer(message: str, *, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    """An error as an answer: `{"error": …}`."""
    return json_answer(json_bytes({"error": message}), status=status, headers=headers)
