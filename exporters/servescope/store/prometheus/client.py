"""A client of Prometheus' HTTP API, or of anything that speaks it: Thanos, Mimir, VictoriaMetrics.

It needs the standard library alone, so that the console, which has no HTTP client of its own, can use it as well.
Every answer is bounded in size and time. Numbers that are NaN or infinite are left out: absent is not a number.
"""

from __future__ import annotations

import json
import math
import re
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import Labels
from servescope.errors import ServescopeError, UsageError
from servescope.settings.access import SPEAKS_TLS, Access, AccessError, Tls, describe_failure
from servescope.store.prometheus.selectors import format_time

TIMEOUT_SECONDS: Final = 60.0
MAX_BYTES: Final = 32_000_000
"""The largest answer by default, in bytes; as numbers it needs about six times as much memory while it is read."""
MAX_STEPS: Final = 11_000
"""The steps a Prometheus gives one range query at most."""

MAX_WARNINGS: Final = 20

_CHUNK_BYTES = 1 << 16
_ERROR_BYTES = 100_000
_SHOWN = 300
_SHOWN_OF_PAGE = 60
_SAMPLES = b'"values":[['
# What is left of samples without their numbers.
_NUMBER, _PAIRS = b"0123456789.+-eEaINfn \n", b',""],['
_CREDENTIALS = re.compile(r"//[^/?#]*@")
# Prometheus 3 warns of expressions, too.
_REMARKS = ("PromQL warning:", "PromQL info:")
# How Prometheus, Thanos, Mimir and VictoriaMetrics word that a query would read or answer more than they allow.
_TOO_MUCH = re.compile(
    r"too many|exceed|too large|too long|timed out|timeout|cannot select more|not enough memory|limit", re.IGNORECASE
)
_HOW_TO_ENTER = (
    "the access is refused; it is given by --bearer-token-file, --username with --password-file, or --header, such as "
    "X-Scope-OrgID=TENANT"
)


class PrometheusError(ServescopeError):
    """A Prometheus could not be queried; the text names the URL, the status and the reason it gave.

    `status` is None when no answer came.
    """

    def __init__(self, url: str, reason: str, status: int | None = None) -> None:
        super().__init__(f"Prometheus at {url}: {reason}")
        self.url, self.reason, self.status = url, reason, status


class NotPrometheusError(PrometheusError):
    """The server at the URL is not a Prometheus."""


class AccessRefusedError(PrometheusError):
    """The server refuses the token, the password or the tenant of the request."""


class TooMuchError(PrometheusError):
    """The answer would have been larger, or have taken longer, than this client or the server allows."""


class LateError(TooMuchError):
    """No answer, or not all of it, within the client's time; the same question may be answered no sooner in parts."""


class PartialError(PrometheusError):
    """The answer lacks a part of what was asked for, as its warnings say, and only a whole one was wanted."""


@dataclass(frozen=True, slots=True)
class Point:
    """One element of an instant vector; a series' name is among the labels as `__name__`."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One series over time: `times` in milliseconds, ascending, and the finite `values` there."""

    labels: Labels
    times: NDArray[np.int64]
    values: NDArray[np.float64]


class Prometheus:
    """The query API below `url`, such as `http://10.0.0.5:9090` or `https://mimir.example/prometheus`.

    `access` gives the headers of every request, read anew each time, and the certificates that are trusted. Safe from
    several threads. Raises UsageError when the URL is none, AccessError; its methods raise PrometheusError.
    """

    def __init__(
        self,
        url: str,
        access: Access | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.url = check_base_url(url)
        self._access = access or Access()
        self._timeout_seconds, self._max_bytes = timeout_seconds, max_bytes
        self._opener = make_opener(self._access, self.url)
        self._method = "POST"
        self._only_whole = False
        self.warnings: dict[str, None] = {}
        """What answers warned of so far, each text once, at most `MAX_WARNINGS`."""
        self._partial: dict[str, float] = {}

    def only_whole(self) -> Prometheus:
        """The same API, with warnings of its own, whose answers raise PartialError where a part of them is missing."""
        whole = copy(self)
        whole._only_whole, whole.warnings, whole._partial = True, {}, {}
        return whole

    def partial_since(self, moment: float) -> tuple[str, ...]:
        """What answers said of missing parts since a moment of `time.monotonic`, at most `MAX_WARNINGS` texts."""
        return tuple(text for text, said in list(self._partial.items()) if said >= moment)

    def query(self, expression: str, *, at_ms: int) -> list[Point]:
        """The elements of an instant vector."""
        result = self._vector("query", "vector", query=expression, time=format_time(at_ms))
        points = [Point(self._labels(each), self._number(each)) for each in result]
        return [point for point in points if math.isfinite(point.value)]

    def query_range(self, expression: str, *, start_ms: int, end_ms: int, step_ms: int) -> list[Track]:
        """The expression at every step from start to end; at most `MAX_STEPS` steps."""
        bounds = {"start": format_time(start_ms), "end": format_time(end_ms), "step": f"{step_ms / 1000:.3f}"}
        return self._tracks(self._vector("query_range", "matrix", query=expression, **bounds))

    def read_samples(self, selector: str, *, start_ms: int, end_ms: int) -> list[Track]:
        """The samples as they are stored, from start to end, both included.

        The API returns no stale markers. A Prometheus 3 leaves out the first instant of a range, so the range is one
        millisecond longer.
        """
        expression = f"{selector}[{end_ms - start_ms + 1}ms]"
        elements = self._vector("query", "matrix", query=expression, time=format_time(end_ms))
        return [track for track in self._tracks(elements, start_ms) if len(track.times)]

    def series(self, selectors: Sequence[str], *, start_ms: int, end_ms: int, by: Sequence[str] = ()) -> list[Labels]:
        """The labels of every series that a selector matches and that has samples between start and end.

        With `by`, one series for each combination of values of these labels.
        """
        parameters = [("match[]", each) for each in selectors]
        parameters += [("start", format_time(start_ms)), ("end", format_time(end_ms))]
        found = self._list("series", parameters)
        return [self._labels({"metric": each}) for each in (self._first_of_each(found, by) if by else found)]

    def _first_of_each(self, found: Sequence[Any], by: Sequence[str]) -> Iterable[Any]:
        # Before labels are made of them, which takes longer.
        first: dict[tuple[str, ...], Any] = {}
        try:
            for each in found:
                first.setdefault(tuple([each.get(name, "") for name in by]), each)
        except (AttributeError, TypeError):
            raise self._malformed(found) from None
        return first.values()

    def label_values(self, label: str, selectors: Sequence[str], *, start_ms: int, end_ms: int) -> list[str]:
        """The values of a label of the series that a selector matches, with samples between start and end, sorted."""
        parameters = [("match[]", each) for each in selectors]
        parameters += [("start", format_time(start_ms)), ("end", format_time(end_ms))]
        return sorted(str(each) for each in self._list(f"label/{label}/values", parameters, method="GET"))

    def metric_names(self, selectors: Sequence[str], *, start_ms: int, end_ms: int) -> list[str]:
        """The names of the series that a selector matches and that have samples between start and end, sorted."""
        return self.label_values("__name__", selectors, start_ms=start_ms, end_ms=end_ms)

    def _list(self, path: str, parameters: Sequence[tuple[str, str]], method: str | None = None) -> list[Any]:
        data = self._ask(path, parameters, method)
        if not isinstance(data, list):
            self._not_prometheus(path)
        return data

    def _vector(self, path: str, kind: str, **parameters: str) -> list[Any]:
        data = self._ask(path, tuple(parameters.items()))
        if not isinstance(data, dict) or not isinstance(data.get("result"), list):
            self._not_prometheus(path)
        if data.get("resultType") != kind:
            given = self._shown(repr(data.get("resultType")))
            raise PrometheusError(self.url, f"{path} gave a {given}, expected a {kind!r}")
        return list(data["result"])

    def _labels(self, element: Any) -> Labels:
        try:
            return tuple(sorted([(name, str(value)) for name, value in element["metric"].items() if value != ""]))
        except (KeyError, TypeError, AttributeError):
            raise self._malformed(element) from None

    def _number(self, element: Any) -> float:
        try:
            return float(element["value"][1])
        except (KeyError, TypeError, IndexError, ValueError):
            raise self._malformed(element) from None

    def _tracks(self, elements: Sequence[Any], start_ms: int | None = None) -> list[Track]:
        samples = [self._samples(each) for each in elements]
        # All at once, as numpy takes longer to begin with a series than to go through it.
        every = np.concatenate([np.zeros((0, 2)), *samples])
        times, values = np.rint(every[:, 0] * 1000).astype(np.int64), every[:, 1].copy()
        kept = np.isfinite(values) if start_ms is None else np.isfinite(values) & (times >= start_ms)
        tracks, end = [], 0
        for each, own in zip(elements, samples, strict=True):
            span = slice(end, end := end + len(own))
            tracks.append(Track(self._labels(each), times[span][kept[span]], values[span][kept[span]]))
        return tracks

    def _samples(self, element: Any) -> NDArray[np.float64]:
        try:
            # A series of native histograms has no 'values'.
            samples = element.get("values", [])
            if isinstance(samples, np.ndarray):
                return samples
            return np.array([(moment, value) for moment, value in samples], dtype=np.float64).reshape(-1, 2)
        except (AttributeError, TypeError, ValueError):
            raise self._malformed(element) from None

    def _malformed(self, element: object) -> PrometheusError:
        shown = self._shown(repr(element))
        return PrometheusError(self.url, f"an answer with an element that is none: {shown}")

    # --- Transport ----------------------------------------------------------------------------------------------------

    def _shown(self, text: str) -> str:
        """What answered, in one line, shortened: a proxy before a Prometheus may return what it was sent."""
        line = " ".join(self._access.conceal(text).split())
        return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"

    def _ask(self, path: str, parameters: Sequence[tuple[str, str]], method: str | None = None) -> Any:
        usual = self._method
        status, body = self._request(path, parameters, method or usual)
        if status in (405, 501) and method is None and usual == "POST":
            # Some proxies let reading through by GET alone.
            self._method = "GET"
            status, body = self._request(path, parameters, "GET")
        answer = _parse(body)
        if answer is None or answer.get("status") not in ("success", "error"):
            self._refuse_answer(path, status, body)
        if answer["status"] == "error":
            self._raise_reported(path, status, answer)
        self._note_warnings(path, answer)
        return answer.get("data")

    def _note_warnings(self, path: str, answer: Mapping[str, Any]) -> None:
        """Keep the warnings of an answer, and refuse it where a part is missing and only whole ones are wanted.

        Prometheus warns of a remote storage that could not be read, Thanos of a store; VictoriaMetrics marks the
        answer. Remarks on an expression say nothing about what is missing.
        """
        said = answer.get("warnings")
        warnings = [self._shown(str(each)) for each in said] if isinstance(said, list) else []
        if answer.get("isPartial") is True:
            warnings.append("the answer is partial")
        for warning in warnings:
            if len(self.warnings) < MAX_WARNINGS:
                self.warnings[warning] = None
        missing = [warning for warning in warnings if not warning.startswith(_REMARKS)]
        for warning in missing:
            if warning in self._partial or len(self._partial) < MAX_WARNINGS:
                self._partial[warning] = time.monotonic()
        if missing and self._only_whole:
            raise PartialError(self.url, f"a partial answer to {path}: {'; '.join(missing)}")

    def _request(self, path: str, parameters: Sequence[tuple[str, str]], method: str) -> tuple[int, bytes]:
        url, encoded = f"{self.url}/api/v1/{path}", urlencode(parameters)
        deadline = time.monotonic() + self._timeout_seconds
        request = self._make_request(url, encoded, method)
        try:
            with self._open(request) as response:
                failed = response.status >= 300
                return response.status, self._read(response, deadline, _ERROR_BYTES if failed else self._max_bytes)
        except TimeoutError:
            raise LateError(self.url, f"no answer to {path} within {self._timeout_seconds:g} s") from None
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise PrometheusError(self.url, f"no connection within {self._timeout_seconds:g} s") from None
            raise PrometheusError(
                self.url, f"cannot be reached: {self._shown(describe_failure(error, self.url))}"
            ) from error
        except (OSError, HTTPException) as error:
            raise PrometheusError(
                self.url, f"the answer to {path} ended early: {self._shown(describe_failure(error, self.url))}"
            ) from error

    def _open(self, request: Request) -> Any:
        try:
            return self._opener.open(request, timeout=self._timeout_seconds)
        except HTTPError as error:
            # An answer like any other: Prometheus says in it what was wrong.
            return error

    def _make_request(self, url: str, encoded: str, method: str) -> Request:
        try:
            headers = {"Accept": "application/json", "Accept-Encoding": "gzip", **self._access.request_headers()}
        except AccessError as error:
            raise PrometheusError(self.url, str(error)) from error
        if method == "GET":
            return Request(f"{url}?{encoded}", headers=headers)  # noqa: S310  the scheme is checked
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        return Request(url, encoded.encode(), headers=headers, method="POST")  # noqa: S310  the scheme is checked

    def _read(self, response: Any, deadline: float, max_bytes: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            for chunk in _inflated(response, max_bytes):
                size += len(chunk)
                chunks.append(chunk)
                if size > max_bytes:
                    raise TooMuchError(self.url, f"an answer of more than {max_bytes} bytes", response.status)
                if time.monotonic() > deadline:
                    raise LateError(self.url, f"no complete answer within {self._timeout_seconds:g} s")
        except (zlib.error, EOFError) as error:
            raise PrometheusError(self.url, f"the answer is no whole gzip: {error}") from error
        return b"".join(chunks)

    def _raise_reported(self, path: str, status: int, answer: Mapping[str, Any]) -> NoReturn:
        reason = f"{answer.get('errorType', 'error')}: {answer.get('error', 'no reason given')}"
        shown = self._shown(reason)
        self._check_access(path, status, shown)
        # 429 is about the number of requests: to ask for less in more of them would not help.
        kind = TooMuchError if _TOO_MUCH.search(reason) and status != 429 else PrometheusError
        raise kind(self.url, f"HTTP status {status} to {path}: {shown}", status)

    def _check_access(self, path: str, status: int, text: str) -> None:
        if status in (401, 403) or "no org id" in text:
            raise AccessRefusedError(
                self.url, f"HTTP status {status} to {path}: {text or 'without a word'} ({_HOW_TO_ENTER})", status
            )

    def _refuse_answer(self, path: str, status: int, body: bytes) -> NoReturn:
        text = self._shown(body.decode("utf-8", "replace"))
        self._check_access(path, status, text)
        if status == 200 and body.lstrip()[:1] == b"{":
            raise PrometheusError(self.url, f"the answer to {path} is no whole JSON: {text}", status)
        if status in (200, 404, 405) or 300 <= status < 400:
            self._not_prometheus(path, status, text)
        kind = TooMuchError if status in (413, 504) else PrometheusError
        hint = f"; {SPEAKS_TLS}" if status == 400 and self.url.lower().startswith("http:") else ""
        raise kind(self.url, f"HTTP status {status} to {path}: {text or 'without a word'}{hint}", status)

    def _not_prometheus(self, path: str, status: int = 200, text: str = "") -> NoReturn:
        shown = f" ({_name_page(text) or text})" if text else ""
        raise NotPrometheusError(
            self.url,
            f"no Prometheus answers there: /api/v1/{path} gave HTTP status {status}, not Prometheus' JSON{shown}; "
            "expected the base URL such as 'http://127.0.0.1:9090', with its path prefix where there is one; an engine "
            "itself keeps no past: `servescope collect --target URL` scrapes it",
            status,
        )


def check_base_url(url: str) -> str:
    """The base URL of a Prometheus without its last slash; raises UsageError saying what is wrong."""
    match = re.fullmatch(r"(https?://[^/?#\s]+)(/[^?#\s]*)?", url)
    if _CREDENTIALS.search(url):
        # The value is not shown: it holds a password.
        raise UsageError("the Prometheus URL carries credentials; give them by --username and --password-file")
    if not match or not url.isprintable():
        raise UsageError(f"{url!r} is no URL of a Prometheus, expected one such as 'http://127.0.0.1:9090'")
    return f"{match[1]}{(match[2] or '').rstrip('/').removesuffix('/api/v1')}"


class _NoRedirect(HTTPRedirectHandler):
    """Follows none: headers may be secrets of this origin, and a Prometheus' API has no need to send elsewhere."""

    def http_error_302(self, *_: object, **__: object) -> None:
        """Follow none, and read no Location, which may be no URL: the redirect is the answer."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def make_opener(access: Access, url: str) -> OpenerDirector:
    """What opens the URLs below one, with its certificates; follows no redirect."""
    # The proxies are those of the environment, as in other command line tools.
    handlers: list[BaseHandler] = [ProxyHandler(), _NoRedirect()]
    # Reading the system's certificates takes longer than most queries.
    if url.startswith("https:") or access.tls != Tls():
        handlers.append(HTTPSHandler(context=access.make_ssl_context()))
    return build_opener(*handlers)


def _name_page(text: str) -> str:
    """An HTML page by its title or its first words; empty for another text."""
    if not re.match(r"<(!doctype|html|head)", text, re.IGNORECASE):
        return ""
    title = re.search(r"<title>(.*?)</title>", text, re.IGNORECASE)
    words = " ".join((title[1] if title else re.sub(r"<[^>]*>?", " ", text)).split())
    return f"an HTML page, {words[:_SHOWN_OF_PAGE]!r}" if words else "an HTML page"


def _inflated(response: Any, max_bytes: int) -> Iterator[bytes]:
    """The body in pieces as they arrive, none larger than one byte more than is allowed."""
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    inflate = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    # read1 gives what has arrived; read would wait for the whole chunk, however slowly it drips.
    while chunk := response.read1(_CHUNK_BYTES):
        yield inflate.decompress(chunk, max_bytes + 1) if inflate else chunk
    if inflate and not inflate.eof:
        raise EOFError("the answer ended early")


def _parse(body: bytes) -> dict[str, Any] | None:
    rest, samples = _take_samples(body)
    try:
        # An answer with a NaN of its own, which is no JSON, asks for more samples than there are.
        answer = json.loads(rest, parse_constant=lambda _: samples.popleft())
    except (ValueError, IndexError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _take_samples(body: bytes) -> tuple[bytes, deque[NDArray[np.float64]]]:
    """The body with NaN, which is no JSON, in place of the samples of each series, and these, (n, 2) each.

    Samples are most of an answer, and numpy reads them in a third of the time. What it does not read, as another
    server may write it, stays in the body.
    """
    rest: list[bytes] = []
    samples = deque[NDArray[np.float64]]()
    end = 0
    # Within a string a quote follows a backslash, so that no label has this text.
    while (begin := body.find(_SAMPLES, end)) >= 0 and (close := body.find(b"]]", begin)) >= 0:
        text = body[begin + len(_SAMPLES) : close]
        count = text.count(b"[") + 1
        try:
            numbers = np.fromstring(text.translate(None, b'[]"'), sep=",").reshape(count, 2)
        except ValueError:
            return body, deque()
        if text.translate(None, _NUMBER) != (_PAIRS * count)[:-3]:
            return body, deque()
        rest += body[end : begin + len(_SAMPLES) - 2], b"NaN"
        samples.append(numbers)
        end = close + 2
    return b"".join((*rest, body[end:])), samples
