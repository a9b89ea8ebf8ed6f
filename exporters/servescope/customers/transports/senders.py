"""One sender for each destination, by its protocol."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Protocol

from servescope.customers.points.points import Accepted, StreamPoint
from servescope.customers.policy.policy import Push


class Sender(Protocol):
    """Sends points to one destination, one request at a time."""

    def split(self, points: Sequence[StreamPoint]) -> list[Sequence[StreamPoint]]:
        """The points, in their order, in requests of a size that the destination takes.

        What was refused as too large is split smaller the next time.
        """

    async def send(self, batch: Sequence[StreamPoint]) -> Accepted:
        """Send one request of `split`; raises SendError."""

    async def close(self) -> None:
        """Close the connections."""


def make_sender(push: Push, executor: Executor) -> Sender:
    """The sender to a destination; it connects when it first sends, and encodes in threads of `executor`."""
    # Each protocol has dependencies of its own, and a program whose customers use one loads only these.
    if push.protocol == "remote-write":
        from servescope.customers.transports.remote_write_sender import RemoteWriteSender

        return RemoteWriteSender(push, executor)
    if push.protocol == "otlp-grpc":
        # It writes each failed handshake to stderr by itself; the lane logs it.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from servescope.customers.transports.otlp_grpc import OtlpGrpcSender

        return OtlpGrpcSender(push, executor)
    from servescope.customers.transports.otlp_http import OtlpHttpSender

    return OtlpHttpSender(push, executor)
