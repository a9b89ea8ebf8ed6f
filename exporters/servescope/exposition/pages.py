"""The instruments' page as an answer to a request: negotiated, compressed, and rendered once for many scrapers.

The server and the apps to mount differ only in how they read a request and write what is answered here.
"""

from __future__ import annotations

import gzip
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

from servescope.errors import UsageError
from servescope.exposition.negotiation import OPENMETRICS, TEXT, wants_gzip, wants_openmetrics

CACHE_SECONDS = 0.1
"""How old a page may be: scrapers together cost at most ten renderings a second, and none sees yesterday's figures."""

METHODS = ("GET", "HEAD")

_PLAIN = "text/plain; charset=utf-8"
# Level 1 is four times as quick as 6, and on a page full of repeated labels loses little.
_COMPRESSION = 1

_logger = logging.getLogger("servescope")


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer: status, headers, and the body, which is not to be sent for HEAD."""

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...]
    body: bytes


class _Form(NamedTuple):
    content_type: str
    compressed: bool


class _Rendered(NamedTuple):
    until: float
    body: bytes


class Pages:
    """The pages that `render` gives, by content type; each is kept for `cache_seconds`.

    With a `cache_share` it is kept for at least so many times as long as it took to render, so that rendering never
    takes more than its part of a core, however large the page and however often it is asked for. Any thread may ask.
    While one renders the others wait for it, and share what it made. Raises UsageError when `cache_seconds` are none.
    """

    def __init__(
        self, render: Mapping[str, Callable[[], bytes]], cache_seconds: float, *, cache_share: float = 0.0
    ) -> None:
        self._render = render
        self._cache_seconds = _require_seconds(cache_seconds)
        self._cache_share = cache_share
        self._begin()

    def answer(self, accept: str | None, accept_encoding: str | None) -> Answer:
        """The page that the headers ask for, rendered by the caller's thread when there is no fresh one.

        Never raises: a page that cannot be rendered is logged, and answered with 500.
        """
        if os.getpid() != self._process:
            self._begin()  # the lock may have been held when the process forked
        form = _form(accept, accept_encoding)
        try:
            with self._lock:
                return _page(form, self._fresh(form) or self._make(form))
        except Exception:
            _logger.exception("the metrics page could not be rendered")
            return plain_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "the page could not be rendered, see the log")

    def kept_answer(self, accept: str | None, accept_encoding: str | None) -> Answer | None:
        """The same when a fresh page is kept, at once; None when it would have to be rendered."""
        form = _form(accept, accept_encoding)
        kept = self._fresh(form) if os.getpid() == self._process else None
        return None if kept is None else _page(form, kept)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._kept: dict[_Form, _Rendered] = {}

    def _fresh(self, form: _Form) -> _Rendered | None:
        kept = self._kept.get(form)
        return kept if kept is not None and time.monotonic() < kept.until else None

    def _make(self, form: _Form) -> _Rendered:
        if form.compressed:
            bare = _Form(form.content_type, compressed=False)
            page = self._fresh(bare) or self._make(bare)
            page = _Rendered(page.until, gzip.compress(page.body, _COMPRESSION, mtime=0))
        else:
            # The page is as old as the moment rendering began: what came later may not be in it.
            began = time.monotonic()
            body = self._render[form.content_type]()
            took = time.monotonic() - began
            page = _Rendered(began + max(self._cache_seconds, took * (1 + self._cache_share)), body)
        self._kept[form] = page
        return page


def refusal(method: str, *, found: bool, where: str) -> Answer | None:
    """What to answer instead of the page: 404 when it is elsewhere, 405 for a method that does not read; else None."""
    if not found:
        return plain_answer(HTTPStatus.NOT_FOUND, f"not found; metrics are at {where}")
    if method not in METHODS:
        allowed = ", ".join(METHODS)
        return plain_answer(
            HTTPStatus.METHOD_NOT_ALLOWED, f"method not allowed; supported: {allowed}", ("Allow", allowed)
        )
    return None


def plain_answer(status: HTTPStatus, message: str, *headers: tuple[str, str]) -> Answer:
    """An answer of one line."""
    body = f"{message}\n".encode()
    return Answer(status, (("Content-Type", _PLAIN), ("Content-Length", str(len(body))), *headers), body)


def _require_seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"cache_seconds is {value!r}, expected seconds from 0")
    return float(value)


def _form(accept: str | None, accept_encoding: str | None) -> _Form:
    return _Form(OPENMETRICS if wants_openmetrics(accept) else TEXT, wants_gzip(accept_encoding))


def _page(form: _Form, page: _Rendered) -> Answer:
    headers = [("Content-Type", form.content_type), ("Content-Length", str(len(page.body)))]
    if form.compressed:
        headers.append(("Content-Encoding", "gzip"))
    headers.append(("Vary", "Accept, Accept-Encoding"))
    return Answer(HTTPStatus.OK, tuple(headers), page.body)
