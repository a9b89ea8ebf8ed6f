"""Frames between processes on one machine, over sockets that never block."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from servescope.instruments.aggregation import FormatError

_MAX_FRAME = 32 * 2**20

_frame_head = struct.Struct("<cI")
_length = struct.Struct("<I")


class Wire:
    """Frames over a socket that never blocks; `lost` once the other side is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.lost = False
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.pid, self.uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )

    @property
    def busy(self) -> bool:
        """Whether something waits to be sent: the other side does not keep up."""
        return bool(self._outgoing)

    def send(self, kind: bytes, *parts: bytes) -> None:
        """Send a frame, as far as the other side takes it now."""
        self._outgoing += _frame_head.pack(kind, sum(map(len, parts)))
        for part in parts:
            self._outgoing += part
        self.flush()

    def flush(self) -> None:
        """Send what still waits, as far as the other side takes it now."""
        try:
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.lost = True

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """The frames that have come. Raises FormatError for what is none."""
        try:
            while chunk := self.socket.recv(2**18):
                self._incoming += chunk
                if len(self._incoming) > 2 * _MAX_FRAME:
                    raise FormatError("a frame is too long")
            self.lost = True
        except BlockingIOError:
            pass
        except OSError:
            self.lost = True
        while len(self._incoming) >= _frame_head.size:
            kind, length = _frame_head.unpack_from(self._incoming)
            if length > _MAX_FRAME:
                raise FormatError(f"a frame of {length} bytes is too long")
            end = _frame_head.size + length
            if len(self._incoming) < end:
                return
            body = bytes(self._incoming[_frame_head.size : end])
            del self._incoming[:end]
            yield kind, body


def pack_blobs(*blobs: bytes) -> bytes:
    """Several texts as one, each behind its length."""
    return b"".join(part for blob in blobs for part in (_length.pack(len(blob)), blob))


def unpack_blobs(raw: bytes) -> list[bytes]:
    """The texts that were packed. Raises FormatError for what `pack_blobs` did not make."""
    blobs, at = [], 0
    while at < len(raw):
        (length,) = _length.unpack_from(raw, at)
        at += _length.size + length
        blobs.append(raw[at - length : at])
    if at != len(raw):
        raise FormatError("a frame is cut off")
    return blobs
