"""One scrape: fetch a target's text within bounds, and have it read.

Whatever a target does costs only its own scrape: every failure has an outcome, and names target, line and cause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from servescope.collector.targets.target import Target
from servescope.contract.samples import Snapshot
from servescope.sources.page import PageLimits
from servescope.sources.reader import ParsedText, Reader, ReadError, Reading
from servescope.web.connections import FetchError

_logger = logging.getLogger(__name__)

# A text of so many bytes takes some 50 ms when its series are new, for which other scrapes need not wait.
_LARGE_BYTES = 262_144

OUTCOMES = (
    "ok", "unreachable", "timeout", "status", "redirect", "truncated", "too_large", "malformed", "too_many_series",
    "unknown_source", "credentials", "clock", "internal", "dns", "tls", "proxy", "protocol", "rate_limited",
    "empty", "too_many_labels", "label_too_long", "line_too_long",
)  # fmt: skip
"""How a scrape can end."""


@dataclass(frozen=True, slots=True)
class Limits(PageLimits):
    """What one scrape may cost: seconds, bytes after decompression, and what the text may hold as `PageLimits` says."""

    timeout_seconds: float
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape brought; `snapshot` is None when it failed, and `error` then says why."""

    time_ms: int
    duration_seconds: float
    outcome: str
    snapshot: Snapshot | None = None
    error: str | None = None
    native_samples: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    retry_after_seconds: float | None = None


class Fetch(Protocol):
    """Gets the text of a target; raises FetchError."""

    async def __call__(self, target: Target, limits: Limits, /) -> bytes:
        """The body of the target's answer."""


async def scrape_target(
    target: Target, reader: Reader, fetch: Fetch, limits: Limits, *, clock: Callable[[], float]
) -> Scrape:
    """One scrape of a target, stamped with the wall clock at its start; never raises FetchError."""
    return (await scrape_page([(target, reader)], fetch, limits, clock=clock))[0]


async def scrape_page(
    parts: Sequence[tuple[Target, Reader]], fetch: Fetch, limits: Limits, *, clock: Callable[[], float]
) -> list[Scrape]:
    """One scrape of a page for all targets that are parts of it, fetched and parsed once; a result for each."""
    time_ms, started = round(clock() * 1000), time.perf_counter()
    page = _Page(fetch, parts[0][0], limits)
    return [await _read(target, reader, page, time_ms, started) for target, reader in parts]


class _Page:
    """A text that is fetched once and parsed once, however many readers it has; what went wrong is raised for each."""

    def __init__(self, fetch: Fetch, target: Target, limits: Limits) -> None:
        self._fetching = asyncio.ensure_future(fetch(target, limits))
        self._limits = limits
        self._parsed: ParsedText | None = None

    async def read(self, reader: Reader) -> Reading:
        body = await self._fetching
        if len(body) < _LARGE_BYTES:
            parsed = reader.parse(body, self._limits, parsed=self._parsed)
        else:
            parsed = await asyncio.to_thread(reader.parse, body, self._limits, parsed=self._parsed)
        self._parsed = self._parsed or parsed
        return reader.commit(parsed)


async def _read(target: Target, reader: Reader, page: _Page, time_ms: int, started: float) -> Scrape:
    try:
        snapshot, native, dropped = await page.read(reader)
    except ReadError as error:
        duration, message = time.perf_counter() - started, f"{target.url}: {target.access.conceal(str(error))}"
        return Scrape(time_ms, duration, error.outcome, error=message)
    except FetchError as error:
        duration, message = time.perf_counter() - started, f"{target.url}: {target.access.conceal(str(error))}"
        retry = error.retry_after_seconds
        return Scrape(time_ms, duration, error.outcome, error=message, retry_after_seconds=retry)
    except Exception as error:
        # A mistake of ours on one target's text must not stop the others.
        fault = target.access.conceal_fault()
        _logger.error(  # noqa: TRY400  the traceback is in the text, concealed
            "%s: %s: scrape failed inside the collector\n%s", target.target_id, target.url, fault
        )
        cause = target.access.conceal(f"{type(error).__name__}: {error}")
        message = f"{target.url}: a fault in the collector: {cause}"
        return Scrape(time_ms, time.perf_counter() - started, "internal", error=message)
    return Scrape(time_ms, time.perf_counter() - started, "ok", snapshot, None, native, dropped)
