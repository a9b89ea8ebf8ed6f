"""Fetching and posting over HTTP within bounds.

Whatever a server does ends in an answer or in a FetchError that says what it was: never later than the timeout, never
with more than the bytes that are allowed, and with nothing of one server's that another would wait for.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final, NamedTuple

import aiohttp
from yarl import URL

from servescope import __version__
from servescope.settings.access import Access, AccessError
from servescope.web.connections import Connections, FetchError, bad_status, failure, quoted

AGENT: Final = f"servescope/{__version__}"
_POST_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": AGENT}
_OPENMETRICS: Final = "application/openmetrics-text"
_END_BYTES = 64  # the end is within these, with blank lines and spaces after it
_MAX_REDIRECTS = 5
_CHUNK_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_REDIRECTS = (301, 302, 303, 307, 308)


class AnswerBounds(NamedTuple):
    """What one answer may cost; `named` is what an error calls the bound of its size."""

    seconds: float
    max_bytes: int
    named: str


class HttpClient:
    """Fetches over HTTP; one session for all servers, owned by the caller.

    Redirects within an origin are followed, at most `redirects` of them.
    """

    def __init__(self, session: aiohttp.ClientSession, *, redirects: int = _MAX_REDIRECTS) -> None:
        self._session, self._connections, self._redirects = session, Connections(), redirects

    async def get(self, url: str, access: Access, headers: dict[str, str], bounds: AnswerBounds) -> bytes:
        """The body of an answer of 200, decompressed; raises FetchError."""
        try:
            async with asyncio.timeout(bounds.seconds):
                return await self._get(URL(url), access, headers, bounds)
        except AccessError as error:
            raise FetchError("credentials", str(error)) from error
        except TimeoutError:
            raise FetchError("timeout", f"no complete answer within {bounds.seconds:g} s") from None
        except zlib.error as error:
            raise FetchError("malformed", f"not gzip, as its Content-Encoding says: {error}") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise failure(error) from error

    async def post(self, url: str, access: Access, body: bytes, seconds: float, /) -> None:
        """Post JSON and have it taken, anything else than a status of 200 … 299 raises FetchError; follows nowhere."""
        try:
            headers = dict(_POST_HEADERS)
            way = self._connections.prepare(URL(url).origin(), access, headers)
            async with (
                asyncio.timeout(seconds),
                self._session.post(url, data=body, headers=headers, allow_redirects=False, **way) as response,
            ):
                if not 200 <= response.status < 300:
                    raise bad_status(response)
        except AccessError as error:
            raise FetchError("credentials", str(error)) from error
        except TimeoutError:
            raise FetchError("timeout", f"no answer within {seconds:g} s") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise failure(error) from error

    async def _get(self, url: URL, access: Access, headers: dict[str, str], bounds: AnswerBounds) -> bytes:
        origin = url.origin()
        way = self._connections.prepare(origin, access, headers)
        for _ in range(self._redirects + 1):
            async with self._session.get(
                url, headers=headers, allow_redirects=False, auto_decompress=False, **way
            ) as response:
                if response.status not in _REDIRECTS:
                    return await _read_body(response, bounds)
                url = _follow(url, response.headers.get("Location"), origin)
        if self._redirects == 0:
            raise FetchError("redirect", f"redirects to {quoted(url)}, and no redirect is followed here")
        raise FetchError("redirect", f"more than {self._redirects} redirects, the last to {quoted(url)}")


def _follow(url: URL, location: str | None, origin: URL) -> URL:
    if not location:
        raise FetchError("redirect", f"{quoted(url)} redirects without a Location")
    try:
        target = url.join(URL(location))
        # Headers may hold secrets of this origin, so they are sent to no other.
        stays = target.scheme in ("http", "https") and target.origin() == origin
    except ValueError:
        raise FetchError("redirect", f"redirects to {quoted(location)}, which is not a URL") from None
    if not stays:
        raise FetchError("redirect", f"redirects to another origin, {quoted(target)}; configure that URL if intended")
    return target


async def _read_body(response: aiohttp.ClientResponse, bounds: AnswerBounds) -> bytes:
    if response.status != 200:
        raise bad_status(response)
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("gzip", "identity"):
        raise FetchError("malformed", f"unknown Content-Encoding {quoted(encoding)}, supported: gzip, identity")
    if (response.content_length or 0) > bounds.max_bytes:
        raise _too_large(bounds)
    body = _Body(bounds, compressed=encoding == "gzip")
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body.add(chunk)
    return _check_end(body.finish(), response.content_type)


def _check_end(body: bytes, content_type: str) -> bytes:
    if content_type == _OPENMETRICS and not body[-_END_BYTES:].rstrip().endswith(b"# EOF"):
        raise FetchError("truncated", "the answer ended early: its Content-Type is OpenMetrics, and no '# EOF' ends it")
    return body


class _Body:
    """A body as it comes in, never larger than allowed, whatever a small part of it would expand to."""

    def __init__(self, bounds: AnswerBounds, *, compressed: bool) -> None:
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
            raise FetchError("truncated", "the answer ended early: incomplete gzip")
        body = b"".join(self._parts)
        if self._inflate is None and body.startswith(_GZIP_MAGIC):
            raise FetchError("malformed", "gzip, which its Content-Encoding does not say")
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


def _too_large(bounds: AnswerBounds) -> FetchError:
    return FetchError("too_large", f"the answer exceeds {bounds.max_bytes} bytes ({bounds.named})")
