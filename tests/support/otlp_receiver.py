"""A receiver of OTLP/HTTP on loopback, which decodes what it is sent with OpenTelemetry's own protobuf classes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics


class Receiver:
    """`requests` are those it acknowledged; the next `failing` ones are answered with 400, which is not retried."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.failing = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, request: ExportMetricsServiceRequest) -> None:
        """Keep a request that is acknowledged."""
        self.requests.append(request)

    def resources(self, request: int = -1) -> list[ResourceMetrics]:
        """The resources of one acknowledged request."""
        return list(self.requests[request].resource_metrics)

    def metrics(self, request: int = -1, resource: int = 0) -> dict[str, Metric]:
        """One resource's metrics, by name."""
        return {metric.name: metric for metric in self._metrics(self.resources(request)[resource])}

    def _metrics(self, resource: ResourceMetrics) -> Iterator[Metric]:
        for scope in resource.scope_metrics:
            yield from scope.metrics

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.failing:
                    receiver.failing -= 1
                    self._answer(400, b"")
                    return
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
                receiver.headers.append(dict(self.headers))
                receiver.take(ExportMetricsServiceRequest.FromString(body))
                self._answer(200, ExportMetricsServiceResponse().SerializeToString())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def attributes(holder: Any) -> dict[str, str]:
    """The attributes of a resource or a point, as text."""
    return {pair.key: pair.value.string_value for pair in holder.attributes}
