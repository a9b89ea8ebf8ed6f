"""OTLP over HTTP with protobuf: requests, and answers in full, in part, or not."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from concurrent.futures import Executor

from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)

from servescope.customers.points.points import Accepted, StreamPoint
from servescope.customers.policy.policy import Push
from servescope.customers.transports.batches import BatchLimit
from servescope.customers.transports.otlp import count_bytes, encode
from servescope.web.posting import HttpAnswer, Poster

_PROTOBUF = "application/x-protobuf"
_ANSWERED_AS = (_PROTOBUF, "application/protobuf")  # the protocol's own name, and the registered one
_TOO_LARGE = 413
_GZIP_LEVEL = 4  # beyond it, time grows faster than size shrinks


class OtlpHttpSender:
    """Sends to one destination; requests are encoded in a thread of `executor`."""

    def __init__(self, push: Push, executor: Executor) -> None:
        self._push, self._executor = push, executor
        self._poster = Poster(push.url, push.access, push.timeout_seconds, push.conceal)
        self._limit = BatchLimit(push.most_bytes, count_bytes)
        self.split = self._limit.split
        self._headers = {"Content-Type": _PROTOBUF} | ({"Content-Encoding": "gzip"} if push.gzip else {})

    async def send(self, batch: Sequence[StreamPoint]) -> Accepted:
        """Send one request; raises SendError."""
        body = await asyncio.get_running_loop().run_in_executor(self._executor, self._encode, batch)
        answer = await self._poster.post(body, self._headers)
        if answer.status == _TOO_LARGE:
            raise self._limit.lower(batch, str(self._poster.refusal(answer, "")))
        if not answer.is_success:
            raise self._poster.refusal(answer, _error_text(answer))
        partial = self._read(answer).partial_success
        return Accepted.in_part(
            len(batch),
            partial.rejected_data_points,
            self._poster.conceal(partial.error_message),
            sent_bytes=len(body),
            skew_seconds=answer.skew_seconds,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._poster.close()

    def _encode(self, batch: Sequence[StreamPoint]) -> bytes:
        body = encode(batch, self._push.temporality).SerializeToString()
        return gzip.compress(body, _GZIP_LEVEL, mtime=0) if self._push.gzip else body

    def _read(self, answer: HttpAnswer) -> ExportMetricsServiceResponse:
        """The response; one without a body, with a text, or that cannot be read, says that all was taken."""
        kind, unread = answer.content_type, ""
        response = ExportMetricsServiceResponse()
        try:
            if not answer.is_whole:
                unread = f"the answer has more than {len(answer.body)} bytes: it is not read"
            elif kind in _ANSWERED_AS:
                response.ParseFromString(answer.body)
            elif kind == "application/json" and answer.body.strip():
                Parse(answer.body, response, ignore_unknown_fields=True)
        except (DecodeError, ParseError, UnicodeDecodeError, RecursionError):
            unread = f"the answer is not OTLP's, as its Content-Type {kind} says: it is not read"
        if unread:
            return ExportMetricsServiceResponse(partial_success=ExportMetricsPartialSuccess(error_message=unread))
        return response


def _error_text(answer: HttpAnswer) -> str:
    """What the receiver says of its refusal: OTLP has a Status for it, others write text."""
    if answer.content_type in _ANSWERED_AS:
        try:
            return str(Status.FromString(answer.body).message)
        except DecodeError:
            return ""
    return answer.body.decode(errors="replace")
