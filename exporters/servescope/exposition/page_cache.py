"""A page of metrics as the response to a request: negotiated, compressed, and rendered once for many scrapers.

The server and the apps to mount differ only in how they read a request and write the response made here.
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
"""Greatest age of a page: all scrapers together cost at most ten renderings a second."""

METHODS = ("GET", "HEAD")

_PLAIN = "text/plain; charset=utf-8"
# Level 1 is four times as fast as 6, and compresses a page full of repeated labels nearly as well.
_COMPRESSION = 1

_logger = logging.getLogger("servescope")


@dataclass(frozen=True, slots=True)
class Response:
    """Status, headers, and the body, which is not sent for HEAD."""

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...]
    body: bytes


class _Form(NamedTuple):
    content_type: str
    compressed: bool


class _Rendered(NamedTuple):
    until: float
    body: bytes


class PageCache:
    """The pages made by the functions in `render`, by content type; each is kept for `cache_seconds`.

    With a `cache_share` a page is kept at least that many times as long as it took to render, which bounds the share
    of a core that rendering uses, however large the page and however often it is scraped. Any thread may ask. While
    one renders, the others wait for it and share its page. Raises UsageError for invalid `cache_seconds`.
    """

    def __init__(
        self, render: Mapping[str, Callable[[], bytes]], cache_seconds: float, *, cache_share: float = 0.0
    ) -> None:
        self._render = render
        self._cache_seconds = _require_seconds(cache_seconds)
        self._cache_share = cache_share
        self._begin()

    def response(self, accept: str | None, accept_encoding: str | None) -> Response:
        """The page that the headers ask for, rendered in the caller's thread when no fresh one is cached.

        Never raises: a page that cannot be rendered is logged, and the response is 500.
        """
        if os.getpid() != self._process:
            self._begin()  # the lock may have been held when the process forked
        form = _form(accept, accept_encoding)
        try:
            with self._lock:
                return _page(form, self._fresh(form) or self._make(form))
        except Exception:
            _logger.exception("the metrics page could not be rendered")
            return plain_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the page could not be rendered, see the log")

    def cached_response(self, accept: str | None, accept_encoding: str | None) -> Response | None:
        """The same from the cache; None when the page would have to be rendered."""
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


def refusal(method: str, *, found: bool, where: str) -> Response | None:
    """The response instead of the page: 404 on another path, 405 for a method that does not read; else None."""
    if not found:
        return plain_response(HTTPStatus.NOT_FOUND, f"not found; metrics are at {where}")
    if method not in METHODS:
        allowed = ", ".join(METHODS)
        return plain_response(
            HTTPStatus.METHOD_NOT_ALLOWED, f"method not allowed; supported: {allowed}", ("Allow", allowed)
        )
    return None


def plain_response(status: HTTPStatus, message: str, *headers: tuple[str, str]) -> Response:
    """A response of one line."""
    body = f"{message}\n".encode()
    return Response(status, (("Content-Type", _PLAIN), ("Content-Length", str(len(body))), *headers), body)


def _require_seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"cache_seconds is {value!r}, expected seconds from 0")
    return float(value)


def _form(accept: str | None, accept_encoding: str | None) -> _Form:
    return _Form(OPENMETRICS if wants_openmetrics(accept) else TEXT, wants_gzip(accept_encoding))


def _page(form: _Form, page: _Rendered) -> Response:
    headers = [("Content-Type", form.content_type), ("Content-Length", str(len(page.body)))]
    if form.compressed:
        headers.append(("Content-Encoding", "gzip"))
    headers.append(("Vary", "Accept, Accept-Encoding"))
    return Response(HTTPStatus.OK, tuple(headers), page.body)
