"""Several processes of one engine as one page: data-parallel ranks, API servers, pre-forked workers.

    engine = EngineInstruments(identity)
    group = ProcessGroup("chat-v2-engine-0", engine)     # in every process
    serve(group, port=9100)                              # in those that are scraped

One process of the group keeps the others' states; when it dies, another takes over. They meet at an abstract Unix
socket, which leaves nothing behind. `docs/processes.md` and ADR 4 say why it is built so.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import logging
import math
import os
import re
import select
import socket
import struct
import sys
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Series, format_series, format_value, make_labels
from servescope.contract.types import Metric
from servescope.errors import ServescopeError, UsageError
from servescope.instruments.aggregation import (
    GROUP_PROCESSES_ENDED,
    Families,
    FormatError,
    State,
    add_up,
    keep_counts,
    read_instruments,
    read_layout,
    settle,
    state_of,
)
from servescope.instruments.instrument import Exposed, Instruments, require_positive
from servescope.instruments.ledger import Exemplars
from servescope.instruments.wire import Wire, pack_blobs, unpack_blobs

_logger = logging.getLogger("servescope")

GROUP_PROCESSES = Metric(
    "servescope_group_processes",
    "gauge",
    "workers",
    "engine",
    "Processes of the group that are connected, the one that answers included.",
    labels=("group",),
)
GROUP_STATE_AGE = Metric(
    "servescope_group_state_age_seconds",
    "gauge",
    "seconds",
    "engine",
    "Age of the oldest process state on this page; it grows while a process hangs.",
    labels=("group",),
)

_PROTOCOL = 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_PEERS = 1024
_HEIRS = 2

# What waits for an answer longer than this hangs, and is not waited for again until it answers.
_HANGS_SECONDS = 1.0
_HEIRS_FIRST_SECONDS = 0.3
_RETRY_SECONDS = 0.05
_GOODBYE_SECONDS = 0.5

_round_head = struct.Struct("<I")
_HELLO, _LAYOUT, _STATE, _BYE, _FETCH = b"H", b"L", b"S", b"B", b"F"  # to the keeper
_ASK, _PAGE, _ESTATE, _REFUSE = b"A", b"P", b"E", b"R"  # from the keeper

_fork_lock = threading.Lock()
"""Held while a socket is opened, so that a forked child knows all it has to close."""


class ProcessGroup(Exposed):
    """The processes of one group, added up; any of them can be read, and shows all.

    `name` is what the processes of a group have in common and no other group of this machine (or pod) has: 1 to 64
    letters, digits, `.`, `_`, `-`. `instruments` are this process's; all of a group are of one deployment. With the
    role `member` a process never keeps the others' states; with `auto` the first to come does. States are sent every
    `interval_seconds`: what a killed process recorded within the last of them is lost. A reading asks every process
    and waits for `wait_seconds` at most; then the last state known is used, and its age shown.

    Any thread may read; recording is not touched. A forked child joins by itself. A process stays in the group until it
    closes it or ends. The constructor raises UsageError,
    and ServescopeError where there are no abstract sockets, which is outside Linux; a reading raises ServescopeError
    when nothing is known of the group yet.
    """

    def __init__(
        self,
        name: str,
        *instruments: Instruments,
        role: str = "auto",
        interval_seconds: float = 1.0,
        wait_seconds: float = 0.25,
    ) -> None:
        if sys.platform != "linux":
            raise ServescopeError("a process group needs Linux: elsewhere give each process a replica label of its own")
        if not _NAME.fullmatch(str(name)):
            raise UsageError(f"group name is {name!r}, expected 1 to 64 letters, digits, '.', '_' or '-'")
        if role not in ("auto", "member"):
            raise UsageError(f"unknown role {role!r}, supported: auto, member")
        self.name = name
        self._instruments = _require_instruments(instruments)
        self._role = role
        self._interval_seconds = require_positive("interval_seconds", interval_seconds)
        self._wait_seconds = require_positive("wait_seconds", wait_seconds)
        self._last: tuple[float, Families] | None = None
        for one in instruments:
            one._added_up = True
        _groups.add(self)
        self._start()
        # So that the first to come keeps the states, and not a child it forks at once.
        self._agent.taking_part.wait(self._wait_seconds)

    def identities(self) -> tuple[Identity, ...]:
        """The identities of this process's instruments."""
        return tuple(one.identity for one in self._instruments)

    def samples(self) -> list[Sample]:
        """Every sample of the group; everything that living processes have observed before is in it."""
        return [sample for _, samples in self.families() for sample in samples]

    def families(self) -> Families:
        """The group's samples by metric. Raises ServescopeError when nothing is known of the group yet."""
        families = self._agent.read(2 * self._wait_seconds)
        if families is not None:
            self._last = time.monotonic(), families
            return families
        if self._last is None:
            reason = self._agent.refused or "no process of it answered in time"
            raise ServescopeError(f"process group {self.name!r} cannot be read: {reason}")
        read_at, families = self._last
        return _aged(families, time.monotonic() - read_at)

    def text(self) -> list[tuple[Metric, list[bytes]]]:
        """The lines of the group's exposition by metric. Raises ServescopeError as `families` does."""
        return [(metric, ["".join(map(_line, samples)).encode()]) for metric, samples in self.families() if samples]

    def openmetrics(self) -> list[tuple[Metric, list[bytes]]]:
        """The same: exemplars stay with the process that has them."""
        return self.text()

    def exemplified(self) -> list[tuple[Metric, list[Sample], Exemplars]]:
        """The families, without exemplars: those stay with the process that has them."""
        return [(metric, samples, {}) for metric, samples in self.families()]

    def close(self) -> None:
        """Leave the group: the last state is handed over, what was counted stays in the group's sums."""
        _groups.discard(self)
        self._agent.close()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        self._agent = _Agent(self)
        if "multiprocessing" in sys.modules:
            # A child of multiprocessing ends without atexit, and forgets the finalizers it was forked with.
            from multiprocessing import util

            util.register_after_fork(self, _close_with_multiprocessing)
            _close_with_multiprocessing(self)

    def _join_in_child(self) -> None:
        self._agent.abandon()
        self._last = None
        self._start()


# --- what the keeper knows --------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Process:
    """Another process of the group; `wire` None when it is not connected, though it may still live."""

    token: str
    pid: int
    started: str
    heir: bool = False
    wire: Wire | None = None
    layout: bytes = b""
    blank: State = field(default_factory=State)
    packed: bytes = b""
    at: float = -math.inf
    asked: int = 0
    answered: int = 0
    waiting_since: float = math.inf
    left: bool = False

    def state(self) -> State:
        return self.blank.with_values(self.packed) if self.packed else State()

    def ended(self) -> bool:
        return self.left or _started(self.pid) != self.started

    def hangs(self, now: float) -> bool:
        return now - self.waiting_since > _HANGS_SECONDS


@dataclass(slots=True, eq=False)
class _Reading:
    """A thread of this process that wants the group's page."""

    done: threading.Event = field(default_factory=threading.Event)
    families: Families | None = None


@dataclass(slots=True, eq=False)
class _Round:
    """One question to every process, answered when all have, or when the time is up."""

    number: int
    until: float
    waiting: set[str]
    readings: list[_Reading] = field(default_factory=list)
    fetchers: list[tuple[Wire, bytes]] = field(default_factory=list)


class _Agent:
    """The thread by which a process takes part in its group: it keeps the others' states, or sends its own.

    All state belongs to that one thread; others hand it readings through a queue and wake it up.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.refused = ""
        self.taking_part = threading.Event()
        self._instruments = group._instruments
        self._role = group._role
        self._interval = group._interval_seconds
        self._wait = group._wait_seconds
        self._address = f"\0servescope/{_PROTOCOL}/{os.geteuid()}/{group.name}"
        self._deployment = dict(group._instruments[0].identity.deployment().labels())
        self._group_labels = make_labels({**self._deployment, "group": group.name})
        self._token = uuid.uuid4().hex
        self._sockets: set[socket.socket] = set()
        # A signal handler may read while the thread it interrupts does: it may take the lock again.
        self._awake_lock = threading.RLock()
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asked: deque[_Reading] = deque(maxlen=_MAX_PEERS)
        self._closing = False
        self._told = False
        # What this process would take over, and when it may.
        self._estate: list[bytes] | None = None
        self._estate_at = -math.inf
        self._keep_after = 0.0
        # What this process keeps.
        self._processes: dict[str, _Process] = {}
        self._wires: dict[int, tuple[Wire, _Process | None]] = {}
        self._remainder = State()
        self._rounds: list[_Round] = []
        self._rounds_begun = 0
        self._own_layout: tuple[State, bytes] = (State(), State().layout())
        self._thread = threading.Thread(target=self._run, name="servescope-group", daemon=True)
        self._thread.start()

    # --- called by other threads --------------------------------------------------------------------------------------

    def read(self, seconds: float) -> Families | None:
        """The group's page; None when it did not come in that time."""
        reading = _Reading()
        self._asked.append(reading)
        self._wake()
        reading.done.wait(seconds)
        return reading.families

    def close(self) -> None:
        """Hand over the last state and end the thread."""
        self._closing = True
        self._wake()
        self._thread.join(2 * _GOODBYE_SECONDS)

    def abandon(self) -> None:
        """Close what a forked child has of its parent's; the thread is not there."""
        for one in self._sockets:
            one.close()
        with contextlib.suppress(OSError):
            os.close(self._awake)
        self._awake = -1

    def _wake(self) -> None:
        with self._awake_lock:
            if self._awake >= 0:
                os.eventfd_write(self._awake, 1)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            try:
                self._take_part()
            except Exception as error:
                # A mistake of ours must not end the group's page for the life of the process; the state is kept.
                self._tell(f"failed and starts again: {error!r}")
                time.sleep(_RETRY_SECONDS)
            finally:
                self._drop_sockets()
        with self._awake_lock:
            awake, self._awake = self._awake, -1
            os.close(awake)
        for reading in self._asked:
            reading.done.set()

    def _take_part(self) -> None:
        """Follow the keeper when there is one, else be it."""
        wire = self._connect()
        if wire is not None:
            self._follow(wire)
            now = time.monotonic()
            knows = now - self._estate_at < 2 * self._interval + _HEIRS_FIRST_SECONDS
            self._keep_after = now if knows else now + _HEIRS_FIRST_SECONDS
            return
        if self._role == "auto" and time.monotonic() >= self._keep_after:
            listener = self._listen()
            if listener is not None:
                self._keep(listener)
                return
        self._poll({}, _RETRY_SECONDS)

    def _connect(self) -> Wire | None:
        """A connection to the keeper; None when there is none."""
        connection = self._open_socket()
        try:
            connection.connect(self._address)
        except OSError:
            self._close_socket(connection)
            return None
        return Wire(connection)

    def _listen(self) -> socket.socket | None:
        """A listening socket at the group's address; None when another process was quicker."""
        listener = self._open_socket()
        try:
            listener.bind(self._address)
            listener.listen(128)
        except OSError as error:
            self._close_socket(listener)
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        return listener

    def _open_socket(self) -> socket.socket:
        with _fork_lock:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._sockets.add(opened)
        return opened

    def _close_socket(self, closed: socket.socket) -> None:
        # In this order: a child forked in between closes it again, and does not miss it.
        closed.close()
        self._sockets.discard(closed)

    def _drop_sockets(self) -> None:
        for one in list(self._sockets):
            self._close_socket(one)
        self._wires.clear()
        for process in self._processes.values():
            process.wire = None

    def _poll(self, wires: dict[int, Wire], seconds: float, listener: socket.socket | None = None) -> set[int]:
        """The descriptors there is something to do for, at most that many seconds from now."""
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

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            name = self._address.rpartition("/")[2]
            _logger.warning("process group %r: %s (further troubles are not logged)", name, reason)

    def _own_state(self) -> tuple[State, bytes]:
        """This process's state now, and its layout as bytes."""
        state = read_instruments(self._instruments)
        if not state.same_layout(self._own_layout[0]):
            self._own_layout = state, state.layout()
        return state, self._own_layout[1]

    # --- as a follower ------------------------------------------------------------------------------------------------

    def _follow(self, wire: Wire) -> None:
        """Send this process's state to the keeper until one of the two ends."""
        if wire.uid != os.geteuid():
            self._refuse_self(f"its address is held by user {wire.uid}")
            return
        hello = {"token": self._token, "deployment": self._deployment, "heir": self._role == "auto"}
        wire.send(_HELLO, json.dumps(hello).encode())
        sent_layout = self._send_state(wire, 0, b"")
        self.taking_part.set()
        due = time.monotonic() + self._interval
        fetched: dict[bytes, tuple[float, _Reading]] = {}
        # What this process may have kept before, another keeps now.
        self._processes, self._remainder, self._rounds = {}, State(), []
        while not wire.lost and not self._closing:
            self._poll({wire.socket.fileno(): wire}, due - time.monotonic())
            wire.flush()
            for kind, body in wire.receive():
                if kind == _ASK:
                    self.refused = ""
                    sent_layout = self._send_state(wire, _round_head.unpack(body)[0], sent_layout)
                elif kind == _PAGE:
                    self._answer_fetched(fetched, body)
                elif kind == _ESTATE:
                    self._estate, self._estate_at = unpack_blobs(body), time.monotonic()
                elif kind == _REFUSE:
                    self._refuse_self(body.decode(errors="replace"))
                    return
            self._fetch(wire, fetched)
            if time.monotonic() >= due:
                due = time.monotonic() + self._interval
                if not wire.busy:
                    sent_layout = self._send_state(wire, 0, sent_layout)
        # Whoever still waits asks the next keeper.
        self._asked.extendleft(reading for _, reading in fetched.values())
        if not wire.lost:
            self._send_state(wire, 0, sent_layout)
            wire.send(_BYE)
            self._flush_all([wire])

    def _send_state(self, wire: Wire, number: int, sent_layout: bytes) -> bytes:
        state, layout = self._own_state()
        if layout != sent_layout:
            wire.send(_LAYOUT, layout)
        wire.send(_STATE, _round_head.pack(number), state.packed_values())
        return layout

    def _fetch(self, wire: Wire, fetched: dict[bytes, tuple[float, _Reading]]) -> None:
        now = time.monotonic()
        for key in [key for key, (since, _) in fetched.items() if now - since > 2 * self._wait]:
            del fetched[key]
        while self._asked and not wire.lost:
            key = os.urandom(8)
            fetched[key] = now, self._asked.popleft()
            wire.send(_FETCH, key)

    def _answer_fetched(self, fetched: dict[bytes, tuple[float, _Reading]], body: bytes) -> None:
        key, layout, packed = unpack_blobs(body)
        if key in fetched:
            _, reading = fetched.pop(key)
            reading.families = read_layout(layout).with_values(packed).samples()
            reading.done.set()

    def _refuse_self(self, reason: str) -> None:
        """This process is not taken into the group; it tries again, since the other may end."""
        self.refused = reason
        self._tell(reason)
        self._poll({}, 1.0)

    # --- as the keeper ------------------------------------------------------------------------------------------------

    def _keep(self, listener: socket.socket) -> None:
        """Keep the other processes' states and answer who asks, until this process leaves."""
        self._take_over()
        self.taking_part.set()
        due = time.monotonic() + self._interval
        while not self._closing:
            wires = {descriptor: wire for descriptor, (wire, _) in self._wires.items()}
            ready = self._poll(wires, self._patience(due), listener)
            if listener.fileno() in ready:
                self._accept(listener)
            for descriptor in ready & wires.keys():
                self._attend(descriptor)
            while self._asked:
                self._begin_round().readings.append(self._asked.popleft())
            self._end_rounds()
            self._settle_ended()
            if time.monotonic() >= due:
                due = time.monotonic() + self._interval
                self._send_estate()
        self._close_socket(listener)
        self._leave_estate()

    def _patience(self, due: float) -> float:
        """How long there is nothing to do by itself, in seconds."""
        now = time.monotonic()
        until = min([due, *(one.until for one in self._rounds)])
        if any(one.wire is None for one in self._processes.values()):
            until = min(until, now + _RETRY_SECONDS)
        return until - now

    def _accept(self, listener: socket.socket) -> None:
        with _fork_lock, contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._sockets.add(connection)
            self._wires[connection.fileno()] = Wire(connection), None
            if len(self._wires) > _MAX_PEERS:
                self._hang_up(connection.fileno())

    def _attend(self, descriptor: int) -> None:
        wire, _ = self._wires[descriptor]
        wire.flush()
        try:
            for kind, body in wire.receive():
                self._take_frame(descriptor, kind, body)
                if descriptor not in self._wires:
                    return
        except Exception as error:  # whatever another process sends, this one goes on
            self._tell(f"process {wire.pid} sent what cannot be read: {error!r}")
            wire.lost = True
        if wire.lost:
            self._hang_up(descriptor)

    def _hang_up(self, descriptor: int) -> None:
        wire, process = self._wires.pop(descriptor)
        self._close_socket(wire.socket)
        if process is not None:
            process.wire = None

    def _take_frame(self, descriptor: int, kind: bytes, body: bytes) -> None:
        wire, process = self._wires[descriptor]
        if kind == _HELLO:
            self._welcome(descriptor, wire, json.loads(body))
        elif process is None:
            raise FormatError("it did not introduce itself")
        elif kind == _LAYOUT:
            process.blank = read_layout(body)
            process.layout = body
            process.packed = b""
        elif kind == _STATE:
            self._take_state(process, body)
        elif kind == _BYE:
            process.left = True
        elif kind == _FETCH:
            self._begin_round().fetchers.append((wire, body))

    def _welcome(self, descriptor: int, wire: Wire, hello: dict[str, Any]) -> None:
        """Take a process into the group, or tell it why not."""
        reason = self._why_not(wire, hello)
        if reason:
            wire.send(_REFUSE, reason.encode())
            self._hang_up(descriptor)
            return
        token = str(hello["token"])
        process = self._processes.get(token)
        if process is None:
            process = self._processes[token] = _Process(token, wire.pid, _started(wire.pid) or "")
        process.wire = wire
        process.heir = hello["heir"] is True
        process.waiting_since = math.inf
        self._wires[descriptor] = wire, process
        self._ask(process)

    def _why_not(self, wire: Wire, hello: dict[str, Any]) -> str:
        if wire.uid != os.geteuid():
            return f"user {wire.uid} is not user {os.geteuid()}, whose group it is"
        if wire.pid == 0:
            return "its processes are of different PID namespaces, share one (in Kubernetes: shareProcessNamespace)"
        if hello["deployment"] != self._deployment:
            return f"it is of another deployment, {self._deployment!r}: name the groups differently"
        return ""

    def _take_state(self, process: _Process, body: bytes) -> None:
        process.blank.with_values(memoryview(body)[_round_head.size :])
        process.packed = body[_round_head.size :]
        process.at = time.monotonic()
        process.answered = max(process.answered, _round_head.unpack_from(body)[0])
        if process.answered == process.asked:
            process.waiting_since = math.inf
        for one in self._rounds:
            if process.answered >= one.number:
                one.waiting.discard(process.token)

    def _begin_round(self) -> _Round:
        """Ask every process that does not hang for its state now."""
        now = time.monotonic()
        self._rounds_begun += 1
        living = {token for token, process in self._processes.items() if not process.hangs(now) and not process.left}
        begun = _Round(self._rounds_begun, now + self._wait, living)
        self._rounds.append(begun)
        for process in self._processes.values():
            self._ask(process)
        return begun

    def _ask(self, process: _Process) -> None:
        now = time.monotonic()
        if process.waiting_since == math.inf:
            process.waiting_since = now
        if process.wire is not None and not process.wire.busy and not process.hangs(now):
            process.asked = self._rounds_begun
            process.wire.send(_ASK, _round_head.pack(process.asked))

    def _end_rounds(self) -> None:
        now = time.monotonic()
        ended = [one for one in self._rounds if not one.waiting or now >= one.until]
        if not ended:
            return
        self._rounds = [one for one in self._rounds if one not in ended]
        own, _ = self._own_state()
        families = self._page(own)
        # What a page has shown is never taken back, though this process be killed right after it.
        self._send_estate()
        state = state_of(families) if any(one.fetchers for one in ended) else State()
        for one in ended:
            for reading in one.readings:
                reading.families = families
                reading.done.set()
            for wire, key in one.fetchers:
                if not wire.busy and not wire.lost:
                    wire.send(_PAGE, pack_blobs(key, state.layout(), state.packed_values()))

    def _page(self, own: State) -> Families:
        """All processes added up: those that live with their gauges, those that have ended with their counts."""
        now = time.monotonic()
        living = [process for process in self._processes.values() if process.packed]
        oldest = max((now - process.at for process in living), default=0.0)
        connected = 1 + sum(process.wire is not None for process in self._processes.values())
        about: Families = [
            (GROUP_PROCESSES, [Sample(GROUP_PROCESSES.name, self._group_labels, float(connected))]),
            (GROUP_STATE_AGE, [Sample(GROUP_STATE_AGE.name, self._group_labels, max(0.0, oldest))]),
            (GROUP_PROCESSES_ENDED, [Sample(GROUP_PROCESSES_ENDED.name, self._group_labels, 0.0)]),
        ]
        return add_up([own, *(process.state() for process in living), self._remainder, state_of(about)])

    def _settle_ended(self) -> None:
        """Fold what has ended into the remainder; a process that is only cut off may come back."""
        ended = [one for one in self._processes.values() if one.wire is None and one.ended()]
        # A fork that Python was not told of can hold a dead process's connection open.
        ended += [
            one
            for one in self._processes.values()
            if one.wire is not None and one.hangs(time.monotonic()) and one.ended()
        ]
        for one in ended:
            del self._processes[one.token]
            if one.wire is not None:
                self._hang_up(one.wire.socket.fileno())
            self._remainder = keep_counts(self._remainder, settle(one.state(), self._ended_series()))
            for begun in self._rounds:
                begun.waiting.discard(one.token)
        if ended:
            self._send_estate()
            self._end_rounds()

    def _ended_series(self) -> Series:
        return Series(GROUP_PROCESSES_ENDED.name, self._group_labels)

    # --- handing over -------------------------------------------------------------------------------------------------

    def _send_estate(self) -> None:
        """Tell the heirs all there is to know, should this process die."""
        heirs = [wire for wire in self._heirs() if not wire.busy][:_HEIRS]
        if heirs:
            estate = self._describe_estate(left=False)
            for wire in heirs:
                wire.send(_ESTATE, estate)

    def _heirs(self) -> list[Wire]:
        return [one.wire for one in self._processes.values() if one.wire is not None and one.heir and not one.left]

    def _leave_estate(self) -> None:
        """Hand over on leaving: this process then counts as ended."""
        heirs = self._heirs()[:_HEIRS]
        estate = self._describe_estate(left=True)
        for wire in heirs:
            wire.send(_ESTATE, estate)
        self._flush_all(heirs)

    def _describe_estate(self, *, left: bool) -> bytes:
        own, layout = self._own_state()
        index: list[list[object]] = [["", 0, "", True], [self._token, os.getpid(), _started(os.getpid()) or "", left]]
        blobs = [self._remainder.layout(), self._remainder.packed_values(), layout, own.packed_values()]
        for one in self._processes.values():
            index.append([one.token, one.pid, one.started, one.left])
            blobs += [one.layout or State().layout(), one.packed]
        return pack_blobs(json.dumps(index).encode(), *blobs)

    def _take_over(self) -> None:
        """Begin with what the keeper before this one knew; its processes will connect again, or have ended."""
        if self._estate is None:
            return
        index, *blobs = self._estate
        self._estate = None
        for (token, pid, started, left), layout, packed in zip(json.loads(index), blobs[::2], blobs[1::2], strict=True):
            blank = read_layout(layout)
            if not token:
                self._remainder = blank.with_values(packed)
            elif token != self._token:
                process = _Process(token, pid, started, layout=layout, blank=blank, packed=packed, left=left)
                process.at = process.waiting_since = time.monotonic()
                self._processes[token] = process
        self._settle_ended()

    def _flush_all(self, wires: list[Wire]) -> None:
        until = time.monotonic() + _GOODBYE_SECONDS
        while time.monotonic() < until:
            waiting = {wire.socket.fileno(): wire for wire in wires if wire.busy and not wire.lost}
            if not waiting:
                return
            self._poll(waiting, until - time.monotonic())
            for wire in waiting.values():
                wire.flush()


def _started(pid: int) -> str | None:
    """When a living process began, in the kernel's ticks: with its id it is unique; None when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name, in parentheses, may hold anything; the state is first after it, the beginning twentieth.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _require_instruments(instruments: tuple[Instruments, ...]) -> tuple[Instruments, ...]:
    if not instruments:
        raise UsageError("no instruments given, expected at least one")
    for one in instruments:
        if not isinstance(one, Instruments):
            raise UsageError(f"{one!r} are no instruments, expected engine, router or autoscaler instruments")
        if one._added_up:
            raise UsageError(f"{type(one).__name__} are in a group already, expected instruments of one group")
    deployments = {one.identity.deployment() for one in instruments}
    if len(deployments) > 1:
        raise UsageError(f"the instruments of one group are of {len(deployments)} deployments, expected one")
    if len({one.identity for one in instruments}) < len(instruments):
        raise UsageError("two instruments of one process have one identity: give each a replica of its own")
    return instruments


def _aged(families: Families, seconds: float) -> Families:
    """A page read before, its states older by that many seconds."""
    return [
        (
            metric,
            [sample._replace(value=sample.value + seconds) for sample in samples]
            if metric.name == GROUP_STATE_AGE.name
            else samples,
        )
        for metric, samples in families
    ]


def _line(sample: Sample) -> str:
    value = sample.value
    whole = abs(value) < 1e15 and value == int(value)
    return f"{format_series(sample.name, sample.labels)} {int(value) if whole else format_value(value)}\n"


# --- the process ------------------------------------------------------------------------------------------------------

_groups: set[ProcessGroup] = set()


def _close_all() -> None:
    for group in list(_groups):
        group.close()


def _close_with_multiprocessing(group: ProcessGroup) -> None:
    from multiprocessing import util

    util.Finalize(None, group.close, exitpriority=0)


atexit.register(_close_all)


def _before_fork() -> None:
    _fork_lock.acquire(timeout=1.0)


def _after_fork_in_parent() -> None:
    with contextlib.suppress(RuntimeError):
        _fork_lock.release()


def _after_fork_in_child() -> None:
    global _fork_lock
    _fork_lock = threading.Lock()
    for group in list(_groups):
        try:
            group._join_in_child()
        except Exception as error:
            _logger.warning("process group %r cannot be joined by a forked process: %r", group.name, error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
