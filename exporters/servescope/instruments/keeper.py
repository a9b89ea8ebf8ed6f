"""The process of a group that keeps the others' states: it asks them, adds them up, and replicates what it knows."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servescope.contract.samples import Labels, Sample, Series
from servescope.instruments.aggregation import (
    GROUP_PROCESSES,
    GROUP_PROCESSES_ENDED,
    GROUP_STATE_AGE,
    Families,
    FormatError,
    OwnState,
    State,
    add_up,
    keep_counts,
    read_layout,
    settle,
    state_of,
)
from servescope.instruments.wire import Sockets, Wire, pack_blobs

HELLO, LAYOUT, STATE, BYE, FETCH = b"H", b"L", b"S", b"B", b"F"  # to the keeper
ASK, PAGE, SNAPSHOT, REFUSE = b"A", b"P", b"E", b"R"  # from the keeper
"""Kinds of frames."""

round_head = struct.Struct("<I")
"""The number of the round that a state answers, 0 for none."""

MAX_PEERS = 1024
RETRY_SECONDS = 0.05
GOODBYE_SECONDS = 0.5

_STANDBYS = 2
# A process that does not answer for longer hangs, and is not waited for again until it answers.
_HANGS_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class PageRequest:
    """A thread of this process that wants the group's page."""

    done: threading.Event = field(default_factory=threading.Event)
    families: Families | None = None


@dataclass(slots=True, eq=False)
class Contribution:
    """What a process brings to its group, whether it keeps the others' states or sends its own."""

    token: str
    started: str
    deployment: dict[str, str]
    group_labels: Labels
    interval_seconds: float
    wait_seconds: float
    own_state: OwnState
    sockets: Sockets
    warn: Callable[[str], None]
    asked: deque[PageRequest] = field(default_factory=lambda: deque(maxlen=MAX_PEERS))
    closing: bool = False


@dataclass(slots=True, eq=False)
class _Process:
    """Another process of the group; `wire` None when it is not connected, though it may still run."""

    token: str
    pid: int
    started: str
    standby: bool = False
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
        try:
            return self.left or start_of(self.pid) != self.started
        except OSError:
            return False  # no descriptor is free to look: one that is said to have ended, and has not, counts twice

    def hangs(self, now: float) -> bool:
        return now - self.waiting_since > _HANGS_SECONDS


@dataclass(slots=True, eq=False)
class _Round:
    """One question to every process, complete when all have answered, or when the time is up."""

    number: int
    until: float
    waiting: set[str]
    readings: list[PageRequest] = field(default_factory=list)
    fetchers: list[tuple[Wire, bytes]] = field(default_factory=list)


class Keeper:
    """The states of the other processes; used by one thread."""

    def __init__(self, part: Contribution) -> None:
        self._part = part
        self._processes: dict[str, _Process] = {}
        self._wires: dict[int, tuple[Wire, _Process | None]] = {}
        self._remainder = State()
        self._rounds: list[_Round] = []
        self._rounds_begun = 0

    def keep(self, listener: socket.socket) -> None:
        """Keep the other processes' states and answer readings, until this process leaves."""
        part = self._part
        due = time.monotonic() + part.interval_seconds
        while not part.closing:
            wires = {descriptor: wire for descriptor, (wire, _) in self._wires.items()}
            ready = part.sockets.poll(wires, self._idle_seconds(due), listener)
            if listener.fileno() in ready:
                self._accept(listener)
            for descriptor in ready & wires.keys():
                self._read_frames(descriptor)
            while part.asked:
                self._begin_round().readings.append(part.asked.popleft())
            self._end_rounds()
            self.settle_ended()
            if time.monotonic() >= due:
                due = time.monotonic() + part.interval_seconds
                self._send_snapshot()
        part.sockets.close(listener)
        self._hand_over()

    def disconnect(self) -> None:
        """Forget the connections, which are closed; the processes may connect again."""
        self._wires.clear()
        for process in self._processes.values():
            process.wire = None

    def restore(self, snapshot: list[bytes]) -> None:
        """Begin with what the previous keeper knew; its processes will connect again, or have ended."""
        index, *blobs = snapshot
        for (token, pid, started, left), layout, packed in zip(json.loads(index), blobs[::2], blobs[1::2], strict=True):
            blank = read_layout(layout)
            if not token:
                self._remainder = blank.with_values(packed)
            elif token != self._part.token:
                process = _Process(token, pid, started, layout=layout, blank=blank, packed=packed, left=left)
                process.at = process.waiting_since = time.monotonic()
                self._processes[token] = process
        self.settle_ended()

    # --- connections --------------------------------------------------------------------------------------------------

    def _idle_seconds(self, due: float) -> float:
        """How long there is nothing to do unless a frame comes."""
        now = time.monotonic()
        until = min([due, *(one.until for one in self._rounds)])
        if any(one.wire is None for one in self._processes.values()):
            until = min(until, now + RETRY_SECONDS)
        return until - now

    def _accept(self, listener: socket.socket) -> None:
        wire = self._part.sockets.accept(listener)
        if wire is not None:
            self._wires[wire.socket.fileno()] = wire, None
            if len(self._wires) > MAX_PEERS:
                self._hang_up(wire.socket.fileno())

    def _hang_up(self, descriptor: int) -> None:
        wire, process = self._wires.pop(descriptor)
        self._part.sockets.close(wire.socket)
        if process is not None:
            process.wire = None

    def _read_frames(self, descriptor: int) -> None:
        wire, _ = self._wires[descriptor]
        wire.flush()
        try:
            for kind, body in wire.receive():
                self._handle_frame(descriptor, kind, body)
                if descriptor not in self._wires:
                    return
        except Exception as error:  # whatever another process sends, this one goes on
            self._part.warn(f"process {wire.pid} sent what cannot be read: {error!r}")
            wire.lost = True
        if wire.lost:
            self._hang_up(descriptor)

    def _handle_frame(self, descriptor: int, kind: bytes, body: bytes) -> None:
        wire, process = self._wires[descriptor]
        if kind == HELLO:
            self._admit(descriptor, wire, json.loads(body))
        elif process is None:
            raise FormatError("it did not introduce itself")
        elif kind == LAYOUT:
            process.blank = read_layout(body)
            process.layout = body
            process.packed = b""
        elif kind == STATE:
            self._store_state(process, body)
        elif kind == BYE:
            process.left = True
        elif kind == FETCH:
            self._begin_round().fetchers.append((wire, body))

    def _admit(self, descriptor: int, wire: Wire, hello: dict[str, Any]) -> None:
        """Add a process to the group, or send it the reason why not."""
        reason = self._refusal(wire, hello)
        if reason:
            wire.send(REFUSE, reason.encode())
            self._hang_up(descriptor)
            return
        token = str(hello["token"])
        process = self._processes.get(token)
        if process is None:
            process = self._processes[token] = _Process(token, wire.pid, start_of(wire.pid) or "")
        process.wire = wire
        process.standby = hello["standby"] is True
        process.waiting_since = math.inf
        self._wires[descriptor] = wire, process
        self._ask(process)

    def _refusal(self, wire: Wire, hello: dict[str, Any]) -> str:
        if wire.uid != os.geteuid():
            return f"user {wire.uid} is not user {os.geteuid()}, whose group it is"
        if wire.pid == 0:
            return "its processes are of different PID namespaces, share one (in Kubernetes: shareProcessNamespace)"
        if hello["deployment"] != self._part.deployment:
            return f"it is of another deployment, {self._part.deployment!r}: name the groups differently"
        return ""

    def _store_state(self, process: _Process, body: bytes) -> None:
        process.blank.with_values(memoryview(body)[round_head.size :])  # raises for what is no state
        process.packed = body[round_head.size :]
        process.at = time.monotonic()
        process.answered = max(process.answered, round_head.unpack_from(body)[0])
        if process.answered == process.asked:
            process.waiting_since = math.inf
        for one in self._rounds:
            if process.answered >= one.number:
                one.waiting.discard(process.token)

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _begin_round(self) -> _Round:
        """Ask every process that does not hang for its state now."""
        now = time.monotonic()
        self._rounds_begun += 1
        living = {token for token, process in self._processes.items() if not process.hangs(now) and not process.left}
        begun = _Round(self._rounds_begun, now + self._part.wait_seconds, living)
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
            process.wire.send(ASK, round_head.pack(process.asked))

    def _end_rounds(self) -> None:
        now = time.monotonic()
        ended = [one for one in self._rounds if not one.waiting or now >= one.until]
        if not ended:
            return
        self._rounds = [one for one in self._rounds if one not in ended]
        own, _ = self._part.own_state.read()
        families = self._page(own)
        # What a page has shown is never lost, even if this process is killed right after it.
        self._send_snapshot()
        state = state_of(families) if any(one.fetchers for one in ended) else State()
        for one in ended:
            for reading in one.readings:
                reading.families = families
                reading.done.set()
            for wire, key in one.fetchers:
                if not wire.busy and not wire.lost:
                    wire.send(PAGE, pack_blobs(key, state.layout(), state.packed_values()))

    def _page(self, own: State) -> Families:
        """All processes added up: living ones with their gauges, ended ones with their counts."""
        now = time.monotonic()
        labels = self._part.group_labels
        living = [process for process in self._processes.values() if process.packed]
        oldest = max((now - process.at for process in living), default=0.0)
        connected = 1 + sum(process.wire is not None for process in self._processes.values())
        about: Families = [
            (GROUP_PROCESSES, [Sample(GROUP_PROCESSES.name, labels, float(connected))]),
            (GROUP_STATE_AGE, [Sample(GROUP_STATE_AGE.name, labels, max(0.0, oldest))]),
            (GROUP_PROCESSES_ENDED, [Sample(GROUP_PROCESSES_ENDED.name, labels, 0.0)]),
        ]
        return add_up([own, *(process.state() for process in living), self._remainder, state_of(about)])

    def settle_ended(self) -> None:
        """Fold processes that have ended into the remainder; one that is only disconnected may come back."""
        ended = [one for one in self._processes.values() if one.wire is None and one.ended()]
        # A fork outside Python's control can hold a dead process's connection open.
        ended += [
            one
            for one in self._processes.values()
            if one.wire is not None and one.hangs(time.monotonic()) and one.ended()
        ]
        for one in ended:
            del self._processes[one.token]
            if one.wire is not None:
                self._hang_up(one.wire.socket.fileno())
            counted = Series(GROUP_PROCESSES_ENDED.name, self._part.group_labels)
            self._remainder = keep_counts(self._remainder, settle(one.state(), counted))
            for begun in self._rounds:
                begun.waiting.discard(one.token)
        if ended:
            self._send_snapshot()
            self._end_rounds()

    # --- replication --------------------------------------------------------------------------------------------------

    def _send_snapshot(self) -> None:
        """Send the standbys all that is known, in case this process dies."""
        standbys = [wire for wire in self._standbys() if not wire.busy][:_STANDBYS]
        if standbys:
            snapshot = self._snapshot(left=False)
            for wire in standbys:
                wire.send(SNAPSHOT, snapshot)

    def _standbys(self) -> list[Wire]:
        return [one.wire for one in self._processes.values() if one.wire is not None and one.standby and not one.left]

    def _hand_over(self) -> None:
        """Send the last snapshot on leaving: this process then counts as ended."""
        standbys = self._standbys()[:_STANDBYS]
        snapshot = self._snapshot(left=True)
        for wire in standbys:
            wire.send(SNAPSHOT, snapshot)
        self._part.sockets.flush(standbys, GOODBYE_SECONDS)

    def _snapshot(self, *, left: bool) -> bytes:
        own, layout = self._part.own_state.read()
        index: list[list[object]] = [["", 0, "", True], [self._part.token, os.getpid(), self._part.started, left]]
        blobs = [self._remainder.layout(), self._remainder.packed_values(), layout, own.packed_values()]
        for one in self._processes.values():
            index.append([one.token, one.pid, one.started, one.left])
            blobs += [one.layout or State().layout(), one.packed]
        return pack_blobs(json.dumps(index).encode(), *blobs)


def start_of(pid: int) -> str | None:
    """When a living process began, in the kernel's ticks: unique together with its id; None when it has ended.

    Raises OSError when that cannot be looked up.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name, in parentheses, may hold anything; the state is the first field after it, the start the 20th.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
