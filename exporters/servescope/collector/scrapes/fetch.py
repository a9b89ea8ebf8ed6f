"""Fetching a target's text, or a list of targets, over HTTP."""

from __future__ import annotations

from typing import Final

from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.deployments import HttpDiscoverySettings
from servescope.collector.targets.target import Target
from servescope.collector.targets.target_groups import MOST_LIST_BYTES
from servescope.web.fetch import AGENT, AnswerBounds, HttpClient

_SCRAPE_HEADERS: Final = {
    "Accept": "text/plain;version=0.0.4,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": AGENT,
}
_LIST_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": AGENT}
_LIST_SECONDS = 10.0


class HttpFetch(HttpClient):
    """Fetches what the collector reads; `post` notifies its receivers."""

    async def __call__(self, target: Target, limits: Limits, /) -> bytes:
        """The body of the target's answer, decompressed; raises FetchError."""
        timeout = limits.timeout_seconds
        headers = {**_SCRAPE_HEADERS, "X-Prometheus-Scrape-Timeout-Seconds": f"{timeout:g}"}
        bounds = AnswerBounds(timeout, limits.max_body_bytes, "max_body_bytes")
        return await self.get(target.url, target.access, headers, bounds)

    async def list_targets(self, settings: HttpDiscoverySettings, /) -> bytes:
        """The body of an http_sd's answer; raises FetchError."""
        interval = settings.refresh_interval_ms / 1000
        headers = {**_LIST_HEADERS, "X-Prometheus-Refresh-Interval-Seconds": f"{interval:g}"}
        bounds = AnswerBounds(min(interval, _LIST_SECONDS), MOST_LIST_BYTES, "the most a list may have")
        return await self.get(settings.url, settings.list_access, headers, bounds)
