"""Prometheus remote write to one destination: version 2.0 where the receiver takes it, else 1.0."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Literal

from cramjam import snappy

from servescope.customers.points.points import Accepted, StreamPoint
from servescope.customers.policy.policy import Push
from servescope.customers.transports.batches import BatchLimit
from servescope.customers.transports.remote_write import count_bytes, count_samples, encode_1, encode_2
from servescope.web.posting import HttpAnswer, Poster

_HEADERS = {
    "1.0": {
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    },
    "2.0": {
        "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "2.0.0",
    },
}
_WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
_BAD_REQUEST, _TOO_LARGE, _UNSUPPORTED = 400, 413, 415


class RemoteWriteSender:
    """Sends to one destination; requests are encoded in a thread of `executor`.

    The first requests are of version 2.0. A receiver that confirms one, by the header that counts what it wrote, gets
    2.0 from then on; one that does not is sent the same points again in 1.0, and 1.0 until this sender is closed.
    """

    def __init__(self, push: Push, executor: Executor) -> None:
        self._executor = executor
        self._poster = Poster(push.url, push.access, push.timeout_seconds, push.conceal)
        self._limit = BatchLimit(push.most_bytes, count_bytes)
        self.split = self._limit.split
        self._version: Literal["1.0", "2.0"] = "2.0"
        self._is_confirmed = False

    @property
    def version(self) -> str:
        """The version of the next request."""
        return self._version

    async def send(self, batch: Sequence[StreamPoint]) -> Accepted:
        """Send one request, twice where it shows that the receiver knows only version 1.0; raises SendError."""
        answer, sent_bytes = await self._post(batch)
        if self._version == "2.0":
            if _WRITTEN in answer.headers:
                self._is_confirmed = True
            elif _knows_only_1(answer) and (answer.status == _UNSUPPORTED or not self._is_confirmed):
                self._version = "1.0"
                answer, again_bytes = await self._post(batch)
                sent_bytes += again_bytes
        if answer.status == _TOO_LARGE:
            raise self._limit.lower(batch, str(self._poster.refusal(answer, "")))
        rejected = self._count_rejected(batch, answer)
        said = answer.body.decode(errors="replace")
        if not answer.is_success and rejected in (0, len(batch)):
            raise self._poster.refusal(answer, said)
        message = self._poster.conceal(said) if rejected else ""
        return Accepted.in_part(len(batch), rejected, message, sent_bytes=sent_bytes, skew_seconds=answer.skew_seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._poster.close()

    async def _post(self, batch: Sequence[StreamPoint]) -> tuple[HttpAnswer, int]:
        body = await asyncio.get_running_loop().run_in_executor(self._executor, _encode, batch, self._version)
        return await self._poster.post(body, _HEADERS[self._version]), len(body)

    def _count_rejected(self, batch: Sequence[StreamPoint], answer: HttpAnswer) -> int:
        """The points that were not written, where the receiver counts samples; a part of them was when it is fewer."""
        if self._version == "1.0" or not (answer.is_success or answer.status == _BAD_REQUEST):
            return 0
        sent = count_samples(batch)
        written = _number(answer.headers.get(_WRITTEN, "0"), sent if answer.is_success else 0)
        missing = max(sent - written, 0)
        return -(-missing * len(batch) // sent)


def _encode(batch: Sequence[StreamPoint], version: str) -> bytes:
    request = encode_1(batch) if version == "1.0" else encode_2(batch)
    return bytes(snappy.compress_raw(request.SerializeToString()))


def _knows_only_1(answer: HttpAnswer) -> bool:
    """Whether an answer without the header that counts is one of a receiver that does not know version 2.0.

    Such a one reads the request as an empty one and accepts it, or refuses it as no request at all.
    """
    return answer.is_success or (answer.status in (_BAD_REQUEST, _UNSUPPORTED) and not answer.is_page)


def _number(text: str, otherwise: int) -> int:
    return int(text[:18]) if text.isascii() and text.isdigit() else otherwise
