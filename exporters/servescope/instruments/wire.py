"""Frames between processes on one machine, over Unix sockets that never block and that a fork does not leak."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator

from servescope.instruments.aggregation import FormatError

_MAX_FRAME = 32 * 2**20

_frame_head = struct.Struct("<cI")
_length = struct.Struct("<I")

_fork_lock = threading.Lock()
"""Held while a socket is opened, so that a forked child knows every socket it has to close."""


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
        """Send a frame, as far as the other side receives it now."""
        self._outgoing += _frame_head.pack(kind, sum(map(len, parts)))
        for part in parts:
            self._outgoing += part
        self.flush()

    def flush(self) -> None:
        """Send what still waits, as far as the other side receives it now."""
        try:
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.lost = True

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """The frames that have come, the last ones too when the other side is gone.

        Raises FormatError for anything else.
        """
        while True:
            was_lost = self.lost
            self._read()
            yield from self._take_frames()
            # An answer to a frame may have found the other side gone, with more frames behind that one.
            if was_lost or not self.lost:
                return

    def _read(self) -> None:
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

    def _take_frames(self) -> Iterator[tuple[bytes, bytes]]:
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


class Sockets:
    """The sockets of one thread at an abstract address, and the event by which other threads wake it.

    Only `wake` may be called from other threads, and `abandon` in a forked child.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: set[socket.socket] = set()
        # A signal handler may read while the thread it interrupts does: it may acquire the lock again.
        self._awake_lock = threading.RLock()
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Make a `poll` that waits return."""
        with self._awake_lock:
            if self._awake >= 0:
                os.eventfd_write(self._awake, 1)

    def connect(self) -> Wire | None:
        """A connection to who listens at the address; None when nobody does."""
        connection = self._new()
        try:
            connection.connect(self._address)
        except OSError:
            self.close(connection)
            return None
        return Wire(connection)

    def listen(self) -> socket.socket | None:
        """A listening socket at the address; None when another process has it."""
        listener = self._new()
        try:
            listener.bind(self._address)
            listener.listen(128)
        except OSError as error:
            self.close(listener)
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        return listener

    def accept(self, listener: socket.socket) -> Wire | None:
        """A connection that came in; None when it is gone already."""
        with _fork_lock, contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._open.add(connection)
            return Wire(connection)
        return None

    def poll(self, wires: dict[int, Wire], seconds: float, listener: socket.socket | None = None) -> set[int]:
        """The descriptors that are ready, at most that many seconds from now."""
        poller = select.poll()
        poller.register(self._awake, select.POLLIN)
        if listener is not None:
            poller.register(listener, select.POLLIN)
        for descriptor, wire in wires.items():
            poller.register(descriptor, select.POLLIN | (select.POLLOUT if wire.busy else 0))
        ready = {descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000 + 1)}
        if self._awake in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._awake)
        return ready

    def flush(self, wires: Iterable[Wire], seconds: float) -> None:
        """Send what still waits on these connections, for that many seconds at most."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            waiting = {wire.socket.fileno(): wire for wire in wires if wire.busy and not wire.lost}
            if not waiting:
                return
            self.poll(waiting, until - time.monotonic())
            for wire in waiting.values():
                wire.flush()

    def close(self, closed: socket.socket) -> None:
        """Close one socket."""
        # In this order: a child forked in between closes it again, and does not miss it.
        closed.close()
        self._open.discard(closed)

    def close_all(self) -> None:
        """Close every socket; the thread can still be woken."""
        for one in list(self._open):
            self.close(one)

    def end(self) -> None:
        """Close the event too: the thread ends."""
        with self._awake_lock:
            awake, self._awake = self._awake, -1
            os.close(awake)

    def abandon(self) -> None:
        """Close what a forked child has of its parent's."""
        for one in self._open:
            one.close()
        with contextlib.suppress(OSError):
            os.close(self._awake)
        self._awake = -1

    def _new(self) -> socket.socket:
        with _fork_lock:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # Not by SOCK_NONBLOCK: gevent's sockets wait in spite of it.
            opened.setblocking(False)
            self._open.add(opened)
        return opened


def pack_blobs(*blobs: bytes) -> bytes:
    """Several texts as one, each after its length."""
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


def _before_fork() -> None:
    _fork_lock.acquire(timeout=1.0)


def _after_fork_in_parent() -> None:
    with contextlib.suppress(RuntimeError):
        _fork_lock.release()


def _after_fork_in_child() -> None:
    global _fork_lock
    _fork_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
