"""A receiver of Prometheus remote write on loopback, which knows version 2.0, or only 1.0."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from cramjam import snappy

from servescope.contract.samples import Labels
from servescope.customers.transports.remote_write_messages import Request, WriteRequest
from tests.customers.support.otlp_backends import HttpFault
from tests.support.loopback import running

Knows = Literal["2.0", "1.0", "1.0 that refuses others", "1.0 that accepts nothing of others"]
WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"


@dataclass(slots=True)
class RemoteWriteReceiver:
    """`series` are the samples of each, as (time, value, start), NaN as its bits; `faults` answer what comes next."""

    knows: Knows
    series: dict[Labels, list[tuple[int, float | str, int]]] = field(default_factory=lambda: defaultdict(list))
    metadata: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    faults: deque[HttpFault] = field(default_factory=deque)
    broken: list[str] = field(default_factory=list)
    url: str = ""
    refusing_samples: int = 0

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Store a request."""
        body = await request.read()
        version = request.headers["X-Prometheus-Remote-Write-Version"]
        self.versions.append(version)
        assert request.headers["Content-Encoding"] == "snappy"
        if self.faults:
            return await self.faults.popleft()(request)
        data = bytes(snappy.decompress_raw(body))
        if version == "2.0.0" and self.knows == "2.0":
            assert request.headers["Content-Type"] == "application/x-protobuf;proto=io.prometheus.write.v2.Request"
            count = self._take_2(Request.FromString(data)) - self.refusing_samples
            status = 400 if self.refusing_samples else 204
            return web.Response(status=status, headers={WRITTEN: str(count)}, text="" if status == 204 else "too old")
        if version == "2.0.0" and self.knows == "1.0 that refuses others":
            return web.Response(status=415)
        if version == "2.0.0" and self.knows == "1.0 that accepts nothing of others":
            return web.Response(status=400, text="no timeseries")
        assert request.headers["Content-Type"].startswith("application/x-protobuf")
        self._take_1(WriteRequest.FromString(data))
        return web.Response(status=204)

    def _take_1(self, request: Any) -> None:
        for metadata in request.metadata:
            self.metadata[metadata.metric_family_name] = (metadata.type, metadata.help, metadata.unit)
        for series in request.timeseries:
            labels = tuple((label.name, label.value) for label in series.labels)
            self._store(labels, [(sample.timestamp, sample.value, 0) for sample in series.samples])

    def _take_2(self, request: Any) -> int:
        self._require(request.symbols[0] == "", "the first symbol is not empty")
        self._require(len(set(request.symbols)) == len(request.symbols), "a symbol occurs twice")
        count = 0
        for series in request.timeseries:
            texts = [request.symbols[number] for number in series.labels_refs]
            labels = tuple(zip(texts[::2], texts[1::2], strict=True))
            metadata = series.metadata
            self.metadata[dict(labels)["__name__"]] = (
                metadata.type, request.symbols[metadata.help_ref], request.symbols[metadata.unit_ref],
            )  # fmt: skip
            self._store(labels, [(sample.timestamp, sample.value, sample.start_timestamp) for sample in series.samples])
            count += len(series.samples)
        return count

    def _store(self, labels: Labels, samples: list[tuple[int, float, int]]) -> None:
        self._require(list(labels) == sorted(set(labels)), f"labels are not sorted: {labels}")
        for time_ms, value, start in samples:
            before = self.series[labels]
            self._require(not before or before[-1][0] < time_ms, f"{labels}: {time_ms} is not after {before[-1:]}")
            bits = value if value == value else struct.pack(">d", value).hex()
            before.append((time_ms, bits, start))

    def _require(self, holds: bool, broken: str) -> None:
        if not holds:
            self.broken.append(broken)


@asynccontextmanager
async def remote_write_receiver(knows: Knows = "2.0") -> AsyncIterator[RemoteWriteReceiver]:
    """A receiver on a free port."""
    receiver = RemoteWriteReceiver(knows)
    application = web.Application(client_max_size=1 << 28)
    application.router.add_post("/api/v1/write", receiver.take)
    async with running(application) as base:
        receiver.url = f"{base}/api/v1/write"
        yield receiver
