"""The thread by which a process belongs to a group: it sends its state to the keeper, or becomes the keeper."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from dataclasses import dataclass

from servescope.contract.samples import make_labels
from servescope.instruments.aggregation import Families, OwnState, read_layout
from servescope.instruments.instrument import Instruments
from servescope.instruments.keeper import (
    ASK,
    BYE,
    FETCH,
    GOODBYE_SECONDS,
    HELLO,
    LAYOUT,
    PAGE,
    REFUSE,
    RETRY_SECONDS,
    SNAPSHOT,
    STATE,
    Contribution,
    Keeper,
    PageRequest,
    round_head,
    start_of,
)
from servescope.instruments.wire import Sockets, Wire, unpack_blobs

_logger = logging.getLogger("servescope")

_PROTOCOL = 1
_STANDBYS_FIRST_SECONDS = 0.3
# The thread bounds each of its waits: this is for a machine that does not run it.
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Membership:
    """The settings of a process in its group, as ProcessGroup has them."""

    group: str
    role: str
    interval_seconds: float
    wait_seconds: float


class Member:
    """The thread; its state belongs to it alone, other threads pass readings through a queue and wake it.

    `joined` is set once it follows a keeper, is one, or was refused; `refused` is the keeper's reason for refusing it,
    else empty.
    """

    def __init__(self, membership: Membership, instruments: tuple[Instruments, ...]) -> None:
        self.refused = ""
        self.joined = threading.Event()
        self.address = f"\0servescope/{_PROTOCOL}/{os.geteuid()}/{membership.group}"
        self._membership = membership
        self._sockets = Sockets(self.address)
        deployment = dict(instruments[0].identity.deployment().labels())
        self._part = Contribution(
            token=uuid.uuid4().hex,
            started=start_of(os.getpid()) or "",
            deployment=deployment,
            group_labels=make_labels({**deployment, "group": membership.group}),
            interval_seconds=membership.interval_seconds,
            wait_seconds=membership.wait_seconds,
            own_state=OwnState(instruments),
            sockets=self._sockets,
            warn=self._warn_once,
        )
        self._keeper = Keeper(self._part)
        self._warned = False
        self._left = False
        self._abandoned = False
        # What this process would go on with as the keeper, and when it may become it.
        self._snapshot: list[bytes] | None = None
        self._snapshot_at = -float("inf")
        self._keep_after = 0.0
        self._thread = threading.Thread(target=self._run, name="servescope-group", daemon=True)
        self._thread.start()

    # --- called by other threads --------------------------------------------------------------------------------------

    def read(self, seconds: float) -> Families | None:
        """The group's page; None when it did not come in that time."""
        reading = PageRequest()
        self._part.asked.append(reading)
        self._sockets.wake()
        reading.done.wait(seconds)
        return reading.families

    def close(self) -> None:
        """Hand over the last state and end the thread."""
        self._part.closing = True
        self._sockets.wake()
        self._thread.join(_END_SECONDS)

    def abandon(self) -> None:
        """Close what a forked child has of its parent's; the thread does not run there, unless it is gevent's."""
        self._abandoned = self._warned = self._part.closing = True
        self._sockets.abandon()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._part.closing:
            self._try_to_participate()
        if self._abandoned:
            # gevent reports it as an error when a thread ends in a child that was forked after it began.
            threading.Event().wait()
        # It may be closed before it followed a keeper, or between two: the next connection hands over what it counted.
        until = time.monotonic() + GOODBYE_SECONDS
        while not self._left and not self.refused and time.monotonic() < until:
            self._try_to_participate()
        self._sockets.end()
        for reading in self._part.asked:
            reading.done.set()

    def _try_to_participate(self) -> None:
        try:
            self._participate()
        except Exception as error:
            # An internal error must not end the group's page for the life of the process; the state is kept.
            self._warn_once(f"failed and starts again: {error!r}")
            time.sleep(RETRY_SECONDS)
        finally:
            self._sockets.close_all()
            self._keeper.disconnect()

    def _participate(self) -> None:
        """Follow the keeper when there is one, else be it."""
        wire = self._sockets.connect()
        if wire is not None:
            self._follow(wire)
            now = time.monotonic()
            recent = now - self._snapshot_at < 2 * self._part.interval_seconds + _STANDBYS_FIRST_SECONDS
            self._keep_after = now if recent else now + _STANDBYS_FIRST_SECONDS
            return
        keeps = self._membership.role == "auto" and not self._part.closing
        if keeps and time.monotonic() >= self._keep_after:
            listener = self._sockets.listen()
            if listener is not None:
                snapshot, self._snapshot = self._snapshot, None
                if snapshot is not None:
                    self._keeper.restore(snapshot)
                self.joined.set()
                self._keeper.keep(listener)
                self._left = True
                return
        self._sockets.poll({}, RETRY_SECONDS)

    def _follow(self, wire: Wire) -> None:
        """Send this process's state to the keeper until one of the two ends."""
        part = self._part
        if wire.uid != os.geteuid():
            self._leave_refused(f"its address is held by user {wire.uid}")
            return
        hello = {"token": part.token, "deployment": part.deployment, "standby": self._membership.role == "auto"}
        wire.send(HELLO, json.dumps(hello).encode())
        sent_layout = self._send_state(wire, 0, b"")
        self.joined.set()
        due = time.monotonic() + part.interval_seconds
        fetched: dict[bytes, tuple[float, PageRequest]] = {}
        # What this process may have kept before, another keeps now.
        self._keeper = Keeper(part)
        while not part.closing:
            self._sockets.poll({wire.socket.fileno(): wire}, due - time.monotonic())
            wire.flush()
            for kind, body in wire.receive():
                if kind == ASK:
                    self.refused = ""
                    sent_layout = self._send_state(wire, round_head.unpack(body)[0], sent_layout)
                elif kind == PAGE:
                    _complete(fetched, body)
                elif kind == SNAPSHOT:
                    self._snapshot, self._snapshot_at = unpack_blobs(body), time.monotonic()
                elif kind == REFUSE:
                    self._leave_refused(body.decode(errors="replace"))
                    return
            if wire.lost:
                break
            self._fetch(wire, fetched)
            if time.monotonic() >= due:
                due = time.monotonic() + part.interval_seconds
                if not wire.busy:
                    sent_layout = self._send_state(wire, 0, sent_layout)
        # Readings that still wait ask the next keeper.
        part.asked.extendleft(reading for _, reading in fetched.values())
        if not wire.lost:
            self._send_state(wire, 0, sent_layout)
            wire.send(BYE)
            self._sockets.flush([wire], GOODBYE_SECONDS)
            self._left = not wire.lost

    def _send_state(self, wire: Wire, number: int, sent_layout: bytes) -> bytes:
        state, layout = self._part.own_state.read()
        if layout != sent_layout:
            wire.send(LAYOUT, layout)
        wire.send(STATE, round_head.pack(number), state.packed_values())
        return layout

    def _fetch(self, wire: Wire, fetched: dict[bytes, tuple[float, PageRequest]]) -> None:
        """Ask the keeper for the page of every reading, and forget those that no longer wait."""
        now = time.monotonic()
        for key in [key for key, (since, _) in fetched.items() if now - since > 2 * self._part.wait_seconds]:
            del fetched[key]
        while self._part.asked and not wire.lost:
            key = os.urandom(8)
            fetched[key] = now, self._part.asked.popleft()
            wire.send(FETCH, key)

    def _leave_refused(self, reason: str) -> None:
        """The group does not admit this process; it tries again, since the other may end."""
        self.refused = reason
        self.joined.set()
        self._warn_once(reason)
        self._sockets.poll({}, 1.0)

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning("process group %r: %s (further problems are not logged)", self._membership.group, reason)


def _complete(fetched: dict[bytes, tuple[float, PageRequest]], body: bytes) -> None:
    """Give a page that came to the reading that asked for it."""
    key, layout, packed = unpack_blobs(body)
    if key in fetched:
        _, reading = fetched.pop(key)
        reading.families = read_layout(layout).with_values(packed).samples()
        reading.done.set()
