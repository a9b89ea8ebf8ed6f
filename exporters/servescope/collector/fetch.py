"""Fetching over HTTP within bounds: a target's text, a list of targets.

Whatever a server does ends in an answer or in a ScrapeError that says what it was: never later than the timeout, never
with more than the bytes that are allowed, and with nothing of one server's that another would wait for.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, NamedTuple, cast

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_parser import RawResponseMessage
from yarl import URL

from servescope import __version__
from servescope.collector.deployments import HttpDiscoverySettings
from servescope.collector.resolver import Resolver
from servescope.collector.scrape import Limits, ScrapeError
from servescope.collector.target import Target
from servescope.collector.target_groups import MOST_LIST_BYTES
from servescope.settings.access import Access, AccessError, Tls
from servescope.settings.credentials import ClientCertificates, Keyring

_AGENT: Final = f"servescope/{__version__}"
_SCRAPE_HEADERS: Final = {
    "Accept": "text/plain;version=0.0.4,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": _AGENT,
}
_LIST_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": _AGENT}
_POST_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": _AGENT}
_LIST_SECONDS = 10.0
_OPENMETRICS: Final = "application/openmetrics-text"
_END_BYTES = 64  # the end is within these, with blank lines and spaces after it
_MAX_REDIRECTS = 5
_CHUNK_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_REDIRECTS = (301, 302, 303, 307, 308)
# Connections are kept for longer than most targets' intervals, so that a scrape rarely opens one.
_KEEP_ALIVE_SECONDS = 75.0
_MOST_KEYRINGS = 10_000
# aiohttp's own timeouts would cost timers for every request; the one around the whole scrape is enough.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_LONGEST_RETRY_SECONDS = 3600.0
_MOST_INTERIM = 16
_MOST_SHOWN = 160  # characters of what a server sent, in an error


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session for all fetches: no cookies are kept, and no name look-up delays another server.

    Connections are bounded by one scrape per target.
    """
    connector = _Connector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS, resolver=Resolver())
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=_NO_TIMEOUT
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
                ScrapeError("protocol", f"more than {_MOST_INTERIM} interim responses (1xx) before an answer")
            )
            if self.transport is not None:
                self.transport.abort()


class _Bounds(NamedTuple):
    """What one answer may cost; `named` is what an error calls the bound of its size."""

    seconds: float
    max_bytes: int
    named: str


class HttpFetch:
    """Fetches over HTTP; one session for all servers, owned by the caller."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._keyrings: dict[Access, Keyring] = {}
        self._certificates: dict[tuple[Tls, str], ClientCertificates] = {}

    async def __call__(self, target: Target, limits: Limits, /) -> bytes:
        """The body of the target's answer, decompressed; raises ScrapeError."""
        timeout = limits.timeout_seconds
        headers = {**_SCRAPE_HEADERS, "X-Prometheus-Scrape-Timeout-Seconds": f"{timeout:g}"}
        bounds = _Bounds(timeout, limits.max_body_bytes, "max_body_bytes")
        return await self._fetch(target.url, target.access, headers, bounds)

    async def list_targets(self, settings: HttpDiscoverySettings, /) -> bytes:
        """The body of an http_sd's answer; raises ScrapeError."""
        interval = settings.refresh_interval_ms / 1000
        headers = {**_LIST_HEADERS, "X-Prometheus-Refresh-Interval-Seconds": f"{interval:g}"}
        bounds = _Bounds(min(interval, _LIST_SECONDS), MOST_LIST_BYTES, "the most a list may have")
        return await self._fetch(settings.url, settings.list_access, headers, bounds)

    async def post(self, url: str, access: Access, body: bytes, seconds: float, /) -> None:
        """Post JSON and have it taken, anything else than a status of 200 … 299 raises ScrapeError; follows nowhere."""
        try:
            keyring = self._keyring(access)
            headers = {**_POST_HEADERS, **keyring.headers()}
            way = self._way_to(URL(url).origin(), access, keyring, headers)
            async with (
                asyncio.timeout(seconds),
                self._session.post(url, data=body, headers=headers, allow_redirects=False, **way) as response,
            ):
                if not 200 <= response.status < 300:
                    raise _bad_status(response)
        except AccessError as error:
            raise ScrapeError("credentials", str(error)) from error
        except TimeoutError:
            raise ScrapeError("timeout", f"no answer within {seconds:g} s") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise _failure(error) from error

    async def _fetch(self, url: str, access: Access, headers: dict[str, str], bounds: _Bounds) -> bytes:
        try:
            keyring = self._keyring(access)
            headers.update(keyring.headers())
            async with asyncio.timeout(bounds.seconds):
                return await self._get(URL(url), access, keyring, headers, bounds)
        except AccessError as error:
            raise ScrapeError("credentials", str(error)) from error
        except TimeoutError:
            raise ScrapeError("timeout", f"no complete answer within {bounds.seconds:g} s") from None
        except zlib.error as error:
            raise ScrapeError("malformed", f"not gzip, as its Content-Encoding says: {error}") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise _failure(error) from error

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

    async def _get(self, url: URL, access: Access, keyring: Keyring, headers: dict[str, str], bounds: _Bounds) -> bytes:
        origin = url.origin()
        way = self._way_to(origin, access, keyring, headers)
        for _ in range(_MAX_REDIRECTS + 1):
            async with self._session.get(
                url, headers=headers, allow_redirects=False, auto_decompress=False, **way
            ) as response:
                if response.status not in _REDIRECTS:
                    return await _read_body(response, bounds)
                url = _follow(url, response.headers.get("Location"), origin)
        raise ScrapeError("redirect", f"more than {_MAX_REDIRECTS} redirects, the last to {_quoted(url)}")

    def _way_to(self, origin: URL, access: Access, keyring: Keyring, headers: dict[str, str]) -> dict[str, Any]:
        """How aiohttp is to reach a server: TLS and proxy, whose authorization may have to be among the headers."""
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


def _follow(url: URL, location: str | None, origin: URL) -> URL:
    if not location:
        raise ScrapeError("redirect", f"{_quoted(url)} redirects without a Location")
    try:
        target = url.join(URL(location))
        # Headers may hold secrets of this origin, so they are sent to no other.
        stays = target.scheme in ("http", "https") and target.origin() == origin
    except ValueError:
        raise ScrapeError("redirect", f"redirects to {_quoted(location)}, which is not a URL") from None
    if not stays:
        raise ScrapeError("redirect", f"redirects to another origin, {_quoted(target)}; configure that URL if intended")
    return target


async def _read_body(response: aiohttp.ClientResponse, bounds: _Bounds) -> bytes:
    if response.status != 200:
        raise _bad_status(response)
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("gzip", "identity"):
        raise ScrapeError("malformed", f"unknown Content-Encoding {_quoted(encoding)}, supported: gzip, identity")
    if (response.content_length or 0) > bounds.max_bytes:
        raise _too_large(bounds)
    body = _Body(bounds, compressed=encoding == "gzip")
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body.add(chunk)
    return _check_end(body.finish(), response.content_type)


def _check_end(body: bytes, content_type: str) -> bytes:
    if content_type == _OPENMETRICS and not body[-_END_BYTES:].rstrip().endswith(b"# EOF"):
        raise ScrapeError(
            "truncated", "the answer ended early: its Content-Type is OpenMetrics, and no '# EOF' ends it"
        )
    return body


class _Body:
    """A body as it comes in, never larger than allowed, whatever a small part of it would expand to."""

    def __init__(self, bounds: _Bounds, *, compressed: bool) -> None:
        self._bounds, self._room = bounds, bounds.max_bytes
        self._parts: list[bytes] = []
        self._inflate = zlib.decompressobj(wbits=31) if compressed else None

    def add(self, chunk: bytes) -> None:
        if self._inflate is None:
            self._keep(chunk)
        else:
            self._expand(chunk, self._inflate)

    def finish(self) -> bytes:
        if self._inflate is not None and not self._inflate.eof:
            raise ScrapeError("truncated", "the answer ended early: incomplete gzip")
        body = b"".join(self._parts)
        if self._inflate is None and body.startswith(_GZIP_MAGIC):
            raise ScrapeError("malformed", "gzip, which its Content-Encoding does not say")
        return body

    def _expand(self, chunk: bytes, inflate: Any) -> None:
        while chunk:
            if inflate.eof:
                # gzip may consist of several members, one behind the other.
                inflate = self._inflate = zlib.decompressobj(wbits=31)
            # One byte more than is allowed shows that there is too much.
            self._keep(inflate.decompress(chunk, self._room + 1))
            chunk = inflate.unused_data if inflate.eof else b""

    def _keep(self, part: bytes) -> None:
        self._room -= len(part)
        if self._room < 0:
            raise _too_large(self._bounds)
        self._parts.append(part)


def _too_large(bounds: _Bounds) -> ScrapeError:
    return ScrapeError("too_large", f"the answer exceeds {bounds.max_bytes} bytes ({bounds.named})")


def _bad_status(response: aiohttp.ClientResponse) -> ScrapeError:
    message = f"HTTP status {response.status} {_shortened(response.reason or '')}".rstrip()
    retry = _retry_after(response.headers)
    if response.status == 429 or (response.status == 503 and retry is not None):
        return ScrapeError("rate_limited", message, retry_after_seconds=retry)
    return ScrapeError("status", message)


def _retry_after(headers: Mapping[str, str]) -> float | None:
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
    return min(max(seconds, 0.0), _LONGEST_RETRY_SECONDS)


def _http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


# --- What went wrong --------------------------------------------------------------------------------------------------


def _failure(error: Exception) -> ScrapeError:
    """The outcome and the cause of what aiohttp, or the system below it, raised."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ScrapeError("dns", f"cannot find host {error.host!r}: {_os_cause(error.os_error)}")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return ScrapeError("proxy", f"cannot connect to the proxy: {_os_cause(error.os_error)}")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ScrapeError(
            "proxy", f"the proxy answers with HTTP status {error.status} {_shortened(error.message)}".rstrip()
        )
    tls = _tls_cause(error)
    if tls is not None:
        return ScrapeError("tls", tls)
    if isinstance(error, aiohttp.ClientConnectorError):
        return ScrapeError("unreachable", f"cannot connect: {_os_cause(error.os_error)}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return ScrapeError("truncated", f"the answer ended early: {_shortened(str(error))}")
    if isinstance(error, aiohttp.ClientResponseError):
        return ScrapeError("protocol", f"not HTTP: {_shortened(error.message)}")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ScrapeError("unreachable", "connection lost: closed before the head of an answer was complete")
    if isinstance(error, OSError):
        return ScrapeError("unreachable", f"connection lost: {_os_cause(error)}")
    return ScrapeError("unreachable", f"{type(error).__name__}: {_shortened(str(error))}")


def _tls_cause(error: BaseException) -> str | None:
    """What is wrong with TLS, None when it is not TLS; the cause may be some exceptions down."""
    found: BaseException | None = error
    for _ in range(5):
        if isinstance(found, aiohttp.ClientConnectorCertificateError):
            found = found.certificate_error
        elif isinstance(found, aiohttp.ClientConnectorError):
            found = found.os_error
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"certificate refused: {found.verify_message}"
        if isinstance(found, ssl.SSLError):
            return f"TLS failed: {(found.reason or str(found)).replace('_', ' ').lower()}"
        if found is None:
            return None
        found = found.__cause__
    return None


def _os_cause(error: OSError) -> str:
    # asyncio puts its own text into strerror; the numbers of a failed look-up are negative.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error) or type(error).__name__


def _quoted(sent: object) -> str:
    return repr(_shortened(str(sent)))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else line[:_MOST_SHOWN] + "…"
