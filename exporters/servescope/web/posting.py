"""Posts to one destination over HTTP, and what its answers mean: taken, to be retried, or refused for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Final

import aiohttp
from yarl import URL

from servescope import __version__
from servescope.errors import ServescopeError
from servescope.settings.access import Access, AccessError
from servescope.web.connections import Connections, failure, open_session, retry_after, shortened

_AGENT: Final = f"servescope/{__version__}"
_MOST_ANSWER_BYTES = 1 << 16
# Of a success all is read that may be an answer: what is taken for a failure is sent again.
_MOST_SUCCESS_BYTES = 1 << 20
_MOST_HEADERS = 10_000
# Clocks that differ by less explain no refusal; `Date` has whole seconds.
_NOTABLE_SKEW_SECONDS = 60.0

_REASON_OF_OUTCOME = {"tls": "tls", "timeout": "timeout", "protocol": "protocol"}
_UNRETRYABLE_REASON = "refused"
_REASONS_OF_STATUS = {401: "credentials", 403: "credentials", 407: "credentials", 408: "timeout", 429: "throttled"}
# Not an answer about the data but about the endpoint: a wrong path, or a server that speaks something else.
_WRONG_ENDPOINT = (300, 301, 302, 303, 304, 305, 306, 307, 308, 404, 405, 406, 410, 411, 415, 421, 426)


REASONS = (
    "unreachable",
    "timeout",
    "tls",
    "credentials",
    "throttled",
    "unavailable",
    "refused",
    "too_large",
    "protocol",
)
"""Why sending failed.

No connection; no answer; a certificate; a token; 429; 5xx; data that is refused; its size; anything else.
"""


class SendError(ServescopeError):
    """A request failed.

    `retryable` says whether the same request may succeed later, not before `after_seconds` when the receiver named
    that. `reason` is one of `REASONS` and names the failure in series and alerts; the text is for people, and has no
    secret in it.
    """

    def __init__(
        self, message: str, *, reason: str, retryable: bool = True, after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason, self.retryable, self.after_seconds = reason, retryable, after_seconds


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of a destination: its body, and its clock less ours, None without `Date`.

    A longer body than 64 KiB, or 1 MiB of a success, is cut off there: then it `is_whole` no more.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    skew_seconds: float | None
    is_whole: bool = True

    @property
    def is_success(self) -> bool:
        """Whether the request was taken."""
        return _is_success(self.status)

    @property
    def content_type(self) -> str:
        """The media type without its parameters, in lower case."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def is_page(self) -> bool:
        """Whether it is a page of HTML, which is a proxy's or another server's; some mark an empty text as HTML too."""
        return self.content_type == "text/html" and self.body.lstrip().startswith(b"<")


class Poster:
    """Posts to one destination over connections of its own; nothing is shared with others.

    `conceal` removes the secrets that the destination was sent from a text.
    """

    def __init__(self, url: str, access: Access, timeout_seconds: float, conceal: Callable[[str], str]) -> None:
        self._url, self._access, self._seconds, self._conceal = URL(url), access, timeout_seconds, conceal
        self._connections = Connections()
        self._resources = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def post(self, sent_body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """The answer to one request, whatever its status; raises SendError where there is none, or a page of HTML."""
        access, seconds = self._access, self._seconds
        try:
            if self._session is None:
                self._session = await self._resources.enter_async_context(open_session(decompresses=False))
            sent = {"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers}
            way = self._connections.prepare(self._url.origin(), access, sent)
            async with (
                asyncio.timeout(seconds),
                self._session.post(
                    self._url,
                    data=BytesIO(sent_body),
                    headers=sent,
                    allow_redirects=False,
                    max_line_size=_MOST_SUCCESS_BYTES,
                    max_field_size=_MOST_SUCCESS_BYTES,
                    max_headers=_MOST_HEADERS,
                    **way,
                ) as response,
            ):
                answered = time.time()
                most_bytes = _MOST_SUCCESS_BYTES if _is_success(response.status) else _MOST_ANSWER_BYTES
                body, is_whole = await _read(response, most_bytes)
                skew = _skew(response.headers, answered)
                answer = HttpAnswer(response.status, response.headers, body, skew, is_whole)
        except AccessError as error:
            raise SendError(str(error), reason="credentials") from None
        except TimeoutError:
            raise SendError(f"no complete answer within {seconds:g} s", reason="timeout") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            found = failure(error)
            reason = _REASON_OF_OUTCOME.get(found.outcome, "unreachable")
            raise SendError(self._conceal(str(found)), reason=reason) from None
        if answer.is_success and answer.is_page:
            raise self.refusal(answer, "the answer is a page of HTML; is this an endpoint for metrics?")
        return answer

    def refusal(self, answer: HttpAnswer, said: str) -> SendError:
        """The error that an answer without success is; `said` is the receiver's own text."""
        status = answer.status
        parts = [f"HTTP status {status}"]
        if said:
            parts.append(self.conceal(said))
        if status in _WRONG_ENDPOINT:
            parts.append(f"is the path {self._url.path!r} right?")
        if "Location" in answer.headers:
            parts.append("redirects are not followed; configure the URL where it leads")
        if answer.skew_seconds is not None and abs(answer.skew_seconds) >= _NOTABLE_SKEW_SECONDS:
            ahead = "ahead of" if answer.skew_seconds > 0 else "behind"
            parts.append(f"the receiver's clock is {abs(answer.skew_seconds):.0f} s {ahead} ours")
        reason = _reason(answer)
        retry = retry_after(answer.headers) if reason in ("throttled", "unavailable") else None
        is_retryable = reason != _UNRETRYABLE_REASON
        return SendError("; ".join(parts), reason=reason, retryable=is_retryable, after_seconds=retry)

    def conceal(self, text: str) -> str:
        """A text of the receiver, in one line, without the secrets that it was sent."""
        return shortened(self._conceal(text))

    async def close(self) -> None:
        """Close the connections."""
        await self._resources.aclose()


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _reason(answer: HttpAnswer) -> str:
    status = answer.status
    if status >= 500:
        return "unavailable"
    if status in _WRONG_ENDPOINT or status < 300:
        return "protocol"
    return _REASONS_OF_STATUS.get(status, "protocol" if answer.is_page else _UNRETRYABLE_REASON)


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> tuple[bytes, bool]:
    """The body, and whether that is all of it; the rest of a longer one is not waited for."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            response.close()
            return bytes(body[:most_bytes]), False
    return bytes(body), True


def _skew(headers: Mapping[str, str], answered: float) -> float | None:
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp() - answered
    except (KeyError, ValueError, OverflowError):
        return None
