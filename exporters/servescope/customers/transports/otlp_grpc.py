"""OTLP over gRPC: one channel to a destination, and what the status of a call means."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import cache
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from yarl import URL

from servescope import __version__
from servescope.customers.points.points import Accepted, StreamPoint
from servescope.customers.policy.policy import Push
from servescope.customers.transports.batches import BatchLimit
from servescope.customers.transports.otlp import count_bytes, encode
from servescope.settings.access import Access, AccessError, Pems
from servescope.settings.credentials import Keyring
from servescope.web.connections import bounded_retry, shortened
from servescope.web.posting import SendError

_EXPORT: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_DETAILS: Final = "grpc-status-details-bin"
# An odd number, by which our own limit is known in an error from a limit of the receiver's.
_MOST_ANSWER_BYTES: Final = (1 << 20) + 1
_MOST_METADATA_BYTES: Final = 1 << 20
_TOO_LONG: Final = re.compile(
    rf"(Stream removed \()?CLIENT: Received message larger than max \(\d+ vs\. {_MOST_ANSWER_BYTES}\)+"
)
_OPTIONS: Final = (
    ("grpc.primary_user_agent", f"servescope/{__version__}"),
    # The lane retries, and backs off.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Connections are shared with no other customer's channel.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _MOST_ANSWER_BYTES),
    # What is said of an error is in the trailers; of longer ones nothing is read, not even the status.
    ("grpc.max_metadata_size", _MOST_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MOST_METADATA_BYTES),
)
_Code = grpc.StatusCode
_REASONS: Final = {
    _Code.UNAUTHENTICATED: "credentials",
    _Code.PERMISSION_DENIED: "credentials",
    _Code.DEADLINE_EXCEEDED: "timeout",
    _Code.UNIMPLEMENTED: "protocol",
    # These OTLP has retried, and with them what a proxy answers when the receiver behind it is away.
    _Code.UNAVAILABLE: "unavailable",
    _Code.CANCELLED: "unavailable",
    _Code.ABORTED: "unavailable",
    _Code.OUT_OF_RANGE: "unavailable",
    _Code.DATA_LOSS: "unavailable",
    _Code.INTERNAL: "unavailable",
    _Code.UNKNOWN: "unavailable",
}
# What gRPC itself says where it has no connection; other texts of UNAVAILABLE are the receiver's.
_NO_CONNECTION = re.compile(
    r"failed to connect to all addresses; last error: (?:\w+: )?(.*)|((?:errors resolving|DNS resolution failed) .*)"
)
_NO_TLS = re.compile(r"OPENSSL_internal:(\w+)(?:: (?:Invalid certificate verification context|OK)\b)*(: [\w ]+)?")


class OtlpGrpcSender:
    """Sends to one destination; requests are encoded in a thread of `executor`."""

    def __init__(self, push: Push, executor: Executor) -> None:
        self._push, self._executor = push, executor
        self._url = URL(push.url)
        self._keyring = Keyring(push.access)
        self._limit = BatchLimit(push.most_bytes, count_bytes)
        self.split = self._limit.split
        self._compression = grpc.Compression.Gzip if push.gzip else grpc.Compression.NoCompression
        self._channel: grpc.aio.Channel | None = None
        self._channel_as_of: object = None

    async def send(self, batch: Sequence[StreamPoint]) -> Accepted:
        """Send one request; raises SendError."""
        body = await asyncio.get_running_loop().run_in_executor(self._executor, self._encode, batch)
        try:
            # As bytes: gRPC makes a failure of an answer that it cannot parse.
            export = (await self._connect()).unary_unary(_EXPORT)
            metadata = tuple((name.lower(), value) for name, value in self._keyring.headers().items())
        except AccessError as error:
            raise SendError(str(error), reason="credentials") from None
        try:
            answer = await export(
                body, timeout=self._push.timeout_seconds, metadata=metadata, compression=self._compression
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is _Code.RESOURCE_EXHAUSTED and _TOO_LONG.fullmatch(error.details() or ""):
                # Only a receiver that took the request has an answer.
                return Accepted.in_part(len(batch), 0, "the answer is too long: it is not read", sent_bytes=len(body))
            raise self._explain(batch, error) from None
        try:
            partial = ExportMetricsServiceResponse.FromString(answer).partial_success
        except DecodeError:
            return Accepted.in_part(len(batch), 0, "the answer is not OTLP's: it is not read", sent_bytes=len(body))
        message = shortened(self._push.conceal(partial.error_message))
        return Accepted.in_part(len(batch), partial.rejected_data_points, message, sent_bytes=len(body))

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _encode(self, batch: Sequence[StreamPoint]) -> bytes:
        body: bytes = encode(batch, self._push.temporality).SerializeToString()
        return body

    async def _connect(self) -> grpc.aio.Channel:
        """The channel; another one when a certificate or the proxy changed. Raises AccessError."""
        host, port = self._url.host or "", self._url.port or 0
        pems = self._push.access.read_certificates()
        proxy = self._keyring.proxy(self._url.scheme, host, port)
        if self._channel is None or (pems, proxy) != self._channel_as_of:
            await self.close()
            target = f"dns:///[{host}]:{port}" if ":" in host else f"dns:///{host}:{port}"
            options = (*_OPTIONS, *_proxy_options(proxy), *_name_options(self._push.access))
            if self._url.scheme == "https":
                credentials = grpc.ssl_channel_credentials(pems.ca or _system_roots(), _key(pems), pems.cert)
                self._channel = grpc.aio.secure_channel(target, credentials, options)
            else:
                self._channel = grpc.aio.insecure_channel(target, options)
            self._channel_as_of = (pems, proxy)
        return self._channel

    def _explain(self, batch: Sequence[StreamPoint], error: grpc.aio.AioRpcError) -> SendError:
        code, details = error.code(), self._push.conceal(error.details() or "")
        message, after = f"gRPC status {code.name}: {shortened(details)}", _retry_seconds(error)
        if code is _Code.RESOURCE_EXHAUSTED and "received metadata size exceeds" in details:
            return SendError("the headers of the answer are too long to be read", reason="unavailable")
        if code is _Code.RESOURCE_EXHAUSTED:
            if "larger than max" in details:
                return self._limit.lower(batch, message)
            # By the protocol it may be retried only where the receiver says when.
            return SendError(message, reason="throttled", retryable=after is not None, after_seconds=after)
        reason = _REASONS.get(code, "refused")
        if code is _Code.DEADLINE_EXCEEDED:
            message = f"no complete answer within {self._push.timeout_seconds:g} s"
        elif code is _Code.UNIMPLEMENTED:
            message += "; is this an OTLP endpoint for metrics?"
        elif code is _Code.UNAVAILABLE and (failed := _NO_CONNECTION.search(details)):
            reason, message = "unreachable", f"cannot connect: {shortened(failed[1] or failed[2])}"
            if refused := _NO_TLS.search(details):
                reason, message = "tls", f"TLS failed: {refused[1].replace('_', ' ').lower()}{refused[2] or ''}"
        return SendError(message, reason=reason, retryable=reason != "refused", after_seconds=after)


def _key(pems: Pems) -> bytes | None:
    """The key, which may be in the certificate's file, as an SSL context takes it."""
    return pems.key or pems.cert


def _proxy_options(proxy: tuple[str, str | None] | None) -> tuple[tuple[str, Any], ...]:
    if proxy is None:
        return (("grpc.enable_http_proxy", 0),)
    url, authorization = URL(proxy[0]), proxy[1]
    if url.scheme != "http":
        raise AccessError("the proxy is an https URL, which is not possible with OTLP over gRPC")
    user = ""
    if authorization is not None:
        name, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        user = f"{quote(name, safe='')}:{quote(password, safe='')}@"
    return (("grpc.http_proxy", f"http://{user}{url.host}:{url.port}"),)


def _name_options(access: Access) -> tuple[tuple[str, str], ...]:
    name = access.tls.server_name
    return () if name is None else (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))


@cache
def _system_roots() -> bytes | None:
    """The authorities that are trusted by HTTPS as well; None, which is gRPC's own list, where the system has none."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(ssl.DER_cert_to_PEM_cert(each) for each in found).encode() or None


def _retry_seconds(error: grpc.aio.AioRpcError) -> float | None:
    """The delay that a RetryInfo among the status's details asks for."""
    for name, value in error.trailing_metadata() or ():
        if name == _DETAILS:
            info = RetryInfo()
            try:
                for detail in Status.FromString(value).details:
                    if detail.Unpack(info):
                        return bounded_retry(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
            except DecodeError:
                return None
    return None
