"""Connections to servers over HTTP: with what is configured for access, and with a name for whatever fails."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_parser import RawResponseMessage
from yarl import URL

from servescope.errors import ServescopeError
from servescope.settings.access import SPEAKS_TLS, Access, Tls, describe_tls
from servescope.settings.credentials import ClientCertificates, Keyring
from servescope.web.resolver import Resolver

# Connections are kept for longer than most targets' intervals, so that a scrape rarely opens one.
_KEEP_ALIVE_SECONDS = 75.0
_MOST_KEYRINGS = 10_000
# aiohttp's own timeouts would cost timers for every request; the one around the whole request is enough.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_LONGEST_RETRY_SECONDS = 3600.0
_MOST_INTERIM = 16
_MOST_SHOWN = 160  # characters of what a server sent, in an error


class FetchError(ServescopeError):
    """A request that brought nothing; `outcome` names why, as `OUTCOMES` of scrapes do.

    `retry_after_seconds` is how long the server asks to be left alone, None where it does not.
    """

    def __init__(self, outcome: str, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.retry_after_seconds = retry_after_seconds


@asynccontextmanager
async def open_session(
    resolver: Resolver | None = None, *, decompresses: bool = True
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for all fetches: no cookies are kept, and no name look-up delays another server.

    Connections are bounded by one scrape per target. A `resolver` of one's own may refuse addresses. A session that
    `decompresses` fails where a body is not what `Content-Encoding` says.
    """
    connector = _Connector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS, resolver=resolver or Resolver())
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=_NO_TIMEOUT, auto_decompress=decompresses
    ) as session:
        yield session


class _Connector(aiohttp.TCPConnector):
    """Opens connections on which interim responses are counted, those of proxies included."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(_Handler, loop=self._loop))


class _Handler(ResponseHandler):
    """Fails a request that is answered with too many interim responses (1xx).

    aiohttp skips any number of them without returning to the event loop, where the deadline would be noticed.
    """

    _interim = 0

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        is_interim = 100 <= data[0].code < 200
        self._interim = self._interim + 1 if is_interim else 0
        if self._interim <= _MOST_INTERIM:
            super().feed_data(data, size)
        elif self.exception() is None:
            self.set_exception(
                FetchError("protocol", f"more than {_MOST_INTERIM} interim responses (1xx) before an answer")
            )
            if self.transport is not None:
                self.transport.abort()


class Connections:
    """How servers are reached: their secrets and certificates, which are read again only when they change."""

    def __init__(self) -> None:
        self._keyrings: dict[Access, Keyring] = {}
        self._certificates: dict[tuple[Tls, str], ClientCertificates] = {}

    def _keyring(self, access: Access) -> Keyring:
        keyring = self._keyrings.get(access)
        if keyring is None:
            if len(self._keyrings) >= _MOST_KEYRINGS:
                self._keyrings.clear()
            keyring = self._keyrings[access] = Keyring(access)
        return keyring

    def _ssl_context(self, access: Access) -> ssl.SSLContext:
        """The context of all servers with the same certificates, whatever else they are shown."""
        key = (replace(access.tls, server_name=None), access.directory)
        certificates = self._certificates.get(key)
        if certificates is None:
            if len(self._certificates) >= _MOST_KEYRINGS:
                self._certificates.clear()
            certificates = self._certificates[key] = ClientCertificates(access)
        return certificates.ssl_context()

    def prepare(self, origin: URL, access: Access, headers: dict[str, str]) -> dict[str, Any]:
        """Add the secrets to a request's headers; returns how aiohttp is to reach the server, by TLS and proxy.

        Raises AccessError.
        """
        keyring = self._keyring(access)
        headers.update(keyring.headers())
        way: dict[str, Any] = {}
        if origin.scheme == "https" and access.tls != Tls():
            way["ssl"] = self._ssl_context(access)
            way["server_hostname"] = access.tls.server_name
        proxy = keyring.proxy(origin.scheme, origin.host or "", origin.port or 0)
        if proxy is not None:
            url, authorization = proxy
            way["proxy"] = URL(url)
            if authorization and origin.scheme == "https":
                # The tunnel is asked for with it; inside, the target is not shown it.
                way["proxy_headers"] = {"Proxy-Authorization": authorization}
            elif authorization:
                headers["Proxy-Authorization"] = authorization
        return way


def bad_status(response: aiohttp.ClientResponse) -> FetchError:
    """The error of an answer that has no success."""
    message = f"HTTP status {response.status} {shortened(response.reason or '')}".rstrip()
    if response.status == 400 and response.url.scheme == "http":
        message += f"; {SPEAKS_TLS}"
    retry = retry_after(response.headers)
    if response.status == 429 or (response.status == 503 and retry is not None):
        return FetchError("rate_limited", message, retry_after_seconds=retry)
    return FetchError("status", message)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of `Retry-After`, a number or an HTTP date; bounded, None when there is none that can be read."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:12])
    else:
        moment, now = _http_date(text), _http_date(headers.get("Date", ""))
        if moment is None:
            return None
        # By the server's own clock where it sends its Date: the two clocks may differ.
        seconds = moment - (time.time() if now is None else now)
    return bounded_retry(seconds)


def bounded_retry(seconds: float) -> float:
    """How long a server that asks for so much is left alone: an hour at most."""
    return min(max(seconds, 0.0), _LONGEST_RETRY_SECONDS)


def _http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def failure(error: Exception) -> FetchError:
    """The outcome and the cause of what aiohttp, or the system below it, raised."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return FetchError("dns", f"cannot find host {error.host!r}: {_os_cause(error.os_error)}")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return FetchError("proxy", f"cannot connect to the proxy: {_os_cause(error.os_error)}")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return FetchError(
            "proxy", f"the proxy answers with HTTP status {error.status} {shortened(error.message)}".rstrip()
        )
    tls = _tls_cause(error)
    if tls is not None:
        return FetchError("tls", tls)
    if isinstance(error, aiohttp.ClientConnectorError):
        return FetchError("unreachable", f"cannot connect: {_os_cause(error.os_error)}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return FetchError("truncated", f"the answer ended early: {shortened(str(error))}")
    if isinstance(error, aiohttp.ClientResponseError):
        return FetchError("protocol", f"not HTTP: {shortened(error.message)}")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return FetchError("unreachable", "connection lost: closed before the head of an answer was complete")
    if isinstance(error, OSError):
        return FetchError("unreachable", f"connection lost: {_os_cause(error)}")
    return FetchError("unreachable", f"{type(error).__name__}: {shortened(str(error))}")


def _tls_cause(error: BaseException) -> str | None:
    """What is wrong with TLS, None when it is not TLS; the cause may be some exceptions down."""
    found: BaseException | None = error
    for _ in range(5):
        if isinstance(found, aiohttp.ClientConnectorCertificateError):
            found = found.certificate_error
        elif isinstance(found, aiohttp.ClientConnectorError):
            found = found.os_error
        if isinstance(found, ssl.SSLError):
            return describe_tls(found)
        if found is None:
            return None
        found = found.__cause__
    return None


def _os_cause(error: OSError) -> str:
    # asyncio puts its own text into strerror; the numbers of a failed look-up are negative.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error) or type(error).__name__


def quoted(sent: object) -> str:
    """What a server sent, in quotes and shortened."""
    return repr(shortened(str(sent)))


def shortened(text: str) -> str:
    """The beginning of what a server sent, in one line, without what a terminal would act on."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= _MOST_SHOWN else line[:_MOST_SHOWN] + "…"
