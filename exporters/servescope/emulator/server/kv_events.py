"""The events of the engines' caches as vLLM 0.32 publishes them over ZeroMQ.

A message has three frames: topic, sequence number (8 bytes, big-endian, from 0), and a batch in MessagePack: the time,
the events, and the rank of the publisher. The ranks of one vLLM server have consecutive ports, and so have the engines
here, from the configured port on. A subscriber that missed batches sends the first sequence number it wants to the
replay socket, and gets the batches that are still kept, and at the end one whose number is -1.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from socket import socketpair
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
from aiohttp import web

from servescope.emulator.block_contents import BlockContents
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.replica import Replica
from servescope.emulator.engine.cache import CacheChanges
from servescope.emulator.engine.engine import Engine
from servescope.errors import UsageError

if TYPE_CHECKING:
    from servescope.emulator.server.server import RunningEmulator

_logger = logging.getLogger(__name__)

_KEPT_BATCHES = 10_000
_MOST_WAITING = 100_000
_HIGH_WATER = 100_000
_HIGHEST_PORT = 65_535
_END = (-1).to_bytes(8, "big", signed=True)
_ENDPOINT = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:]+\]|[^:/\s]+):(?P<port>\d{1,5})")


class _Event(msgspec.Struct, tag=True, omit_defaults=True):
    """An event is a map that names its kind as `type`."""


class BlockStored(_Event):
    """Blocks of one sequence, one behind the other, came into the cache behind their parent."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(_Event):
    """Blocks left the cache."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(_Event):
    """The cache is empty."""


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where ZeroMQ listens: a host, and the port of rank 0; port 0 lets the system choose each."""

    host: str
    port: int

    def of(self, rank: int) -> str:
        """The address of a rank."""
        return f"tcp://{self.host}:{self.port + rank if self.port else 0}"


def parse_endpoint(option: str, text: str) -> Endpoint:
    """The endpoint of a command line. Raises UsageError."""
    found = _ENDPOINT.fullmatch(text)
    if found is None or int(found["port"]) > _HIGHEST_PORT:
        raise UsageError(f"{option} is {text!r}, expected tcp://HOST:PORT, such as tcp://127.0.0.1:5557")
    return Endpoint(found["host"], int(found["port"]))


@dataclass(slots=True)
class _Waiting:
    """The changes of one step, from the thread of the stack to the publisher."""

    channel: _Channel
    sequence: int
    time: float
    stored: Sequence[tuple[int, int | None]] = ()
    removed: Sequence[int] = ()
    cleared: bool = False


@dataclass(slots=True, eq=False)
class _Channel:
    """One engine's way out. Its sockets are the publisher's."""

    rank: int
    deployment: EmulatedDeployment
    replica: Replica
    engine: Engine
    block_tokens: int
    next_sequence: int = 0
    kept: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_KEPT_BATCHES))
    publishing: zmq.Socket[bytes] | None = None
    replaying: zmq.Socket[bytes] | None = None
    address: str | None = None
    replay_address: str | None = None

    @property
    def is_gone(self) -> bool:
        return self.deployment.replicas.get(self.replica.name) is not self.replica


class KvEvents:
    """Publishes what the caches of all engines of a stack hold, from its making until `close`.

    An engine that is new takes the lowest rank whose engine is gone. One that was started again says first that all
    its blocks are gone, and counts its batches from 0, as a new process does. Raises UsageError when an address cannot
    be had; later on, an engine whose address is taken publishes nothing, which is logged.
    """

    def __init__(
        self,
        deployments: Iterable[EmulatedDeployment],
        endpoint: Endpoint,
        *,
        replay: Endpoint | None = None,
        topic: str = "",
        contents: BlockContents | None = None,
    ) -> None:
        self._endpoint, self._replay = endpoint, replay
        self._topic = topic.encode()
        self._contents = contents or BlockContents()
        self._channels: dict[int, _Channel] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._waiting: SimpleQueue[_Waiting | tuple[_Channel, bool, Future[None]]] = SimpleQueue()
        self._dropped = False
        self._closing = False
        self._woken, self._waking = socketpair()
        self._waking.setblocking(False)
        self._encode = msgspec.msgpack.Encoder().encode
        self._thread = threading.Thread(target=self._run, name="servescope-emulator-kv-events", daemon=True)
        self._thread.start()
        try:
            for deployment in deployments:
                for replica in deployment.replicas.values():
                    self._open(deployment, replica).result()
                deployment.watch_engines(lambda replica, of=deployment: self._meet(of, replica))  # type: ignore[misc]  # the default is no part of the type
        except UsageError:
            self.close()
            raise

    def add_routes(self, application: web.Application, emulator: RunningEmulator) -> None:
        """Answer `GET /kv-events` with where each engine publishes."""

        async def answer(_: web.Request) -> web.Response:
            return web.json_response(await emulator.call(self.describe))

        application.router.add_get("/kv-events", answer)

    def describe(self) -> list[dict[str, Any]]:
        """Each engine's addresses, and the sequence number of its next batch."""
        return [
            {
                "deployment_id": channel.replica.identity.deployment_id,
                "replica": channel.replica.name,
                "rank": channel.rank,
                "endpoint": channel.address,
                "replay_endpoint": channel.replay_address,
                "next_sequence": channel.next_sequence,
            }
            for channel in self._channels.values()
            if not channel.is_gone
        ]

    def close(self) -> None:
        """Publish what waits, and nothing more."""
        self._closing = True
        self._wake()
        self._thread.join()
        self._context.destroy(linger=0)
        self._woken.close()
        self._waking.close()

    # --- in the thread of the stack -----------------------------------------------------------------------------------

    def _meet(self, deployment: EmulatedDeployment, replica: Replica) -> None:
        known = [channel for channel in self._channels.values() if channel.replica is replica]
        if not known:
            self._open(deployment, replica)
            return
        (channel,) = known
        channel.next_sequence = 0
        self._watch(channel, replica.engine)
        self._send(channel, cleared=True)

    def _open(self, deployment: EmulatedDeployment, replica: Replica) -> Future[None]:
        for gone in [channel for channel in self._channels.values() if channel.is_gone]:
            del self._channels[gone.rank]
            self._waiting.put((gone, False, Future()))
        rank = next(rank for rank in range(len(self._channels) + 1) if rank not in self._channels)
        block_tokens = replica.engine.parameters.block_tokens
        channel = _Channel(rank, deployment, replica, replica.engine, block_tokens)
        self._channels[rank] = channel
        opened: Future[None] = Future()
        self._waiting.put((channel, True, opened))
        self._wake()
        self._watch(channel, replica.engine)
        return opened

    def _watch(self, channel: _Channel, engine: Engine) -> None:
        channel.engine = engine
        engine.cache.parents = {}
        engine.watch_changes(lambda changes: self._changed(channel, engine, changes))

    def _changed(self, channel: _Channel, engine: Engine, changes: CacheChanges) -> None:
        # The last step of a process that died is not published.
        if channel.engine is not engine:
            return
        parents = engine.cache.parents or {}
        stored = [(block, parents.get(block)) for block in changes.stored]
        self._send(channel, stored=stored, removed=changes.removed)

    def _send(
        self,
        channel: _Channel,
        *,
        stored: Sequence[tuple[int, int | None]] = (),
        removed: Sequence[int] = (),
        cleared: bool = False,
    ) -> None:
        sequence = channel.next_sequence
        channel.next_sequence += 1
        if self._waiting.qsize() >= _MOST_WAITING:
            # Subscribers see the gap in the numbers, as with any lost batch.
            if not self._dropped:
                _logger.warning("KV events come faster than they can be published; batches are lost")
            self._dropped = True
            return
        self._waiting.put(_Waiting(channel, sequence, time.time(), stored, removed, cleared))
        self._wake()

    def _wake(self) -> None:
        # When no more can be sent, it has been woken often enough.
        with suppress(BlockingIOError):
            self._waking.send(b"\0")

    # --- in the publisher's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        while not self._closing or not self._waiting.empty():
            for ready, _ in poller.poll():
                if ready == self._woken.fileno():
                    self._woken.recv(65_536)
                elif isinstance(ready, zmq.Socket):
                    self._answer_replay(ready)
            self._handle_waiting(poller)

    def _handle_waiting(self, poller: zmq.Poller) -> None:
        while True:
            try:
                waiting = self._waiting.get_nowait()
            except Empty:
                return
            if isinstance(waiting, _Waiting):
                self._publish(waiting)
                continue
            channel, opens, done = waiting
            try:
                if opens:
                    self._bind(channel, poller)
                else:
                    self._unbind(channel, poller)
            except UsageError as error:
                self._unbind(channel, poller)
                _logger.warning("%s publishes no KV events: %s", channel.replica.name, error)
                done.set_exception(error)
            else:
                done.set_result(None)

    def _bind(self, channel: _Channel, poller: zmq.Poller) -> None:
        channel.publishing = self._context.socket(zmq.PUB)
        channel.publishing.set_hwm(_HIGH_WATER)
        channel.address = _bind(channel.publishing, self._endpoint.of(channel.rank))
        if self._replay is not None:
            channel.replaying = self._context.socket(zmq.ROUTER)
            channel.replay_address = _bind(channel.replaying, self._replay.of(channel.rank))
            poller.register(channel.replaying, zmq.POLLIN)

    def _unbind(self, channel: _Channel, poller: zmq.Poller) -> None:
        if channel.replaying is not None and channel.replaying in poller:
            poller.unregister(channel.replaying)
        for socket in (channel.publishing, channel.replaying):
            if socket is not None:
                socket.close(linger=0)
        channel.publishing = channel.replaying = channel.address = channel.replay_address = None

    def _publish(self, waiting: _Waiting) -> None:
        channel = waiting.channel
        if channel.publishing is None:
            return
        payload = self._encode(_Batch(waiting.time, list(self._events(waiting)), channel.rank))
        if waiting.sequence == 0:
            channel.kept.clear()
        channel.kept.append((waiting.sequence, payload))
        channel.publishing.send_multipart((self._topic, waiting.sequence.to_bytes(8, "big"), payload))

    def _events(self, waiting: _Waiting) -> Iterable[BlockStored | BlockRemoved | AllBlocksCleared]:
        if waiting.cleared:
            yield AllBlocksCleared()
        if waiting.removed:
            yield BlockRemoved(list(waiting.removed), "GPU")
        block_tokens = waiting.channel.block_tokens
        for run in _runs(waiting.stored):
            tokens = [token for block, _ in run for token in self._contents.tokens(block, block_tokens)]
            yield BlockStored([block for block, _ in run], run[0][1], tokens, block_tokens, None, "GPU", None)

    def _answer_replay(self, socket: zmq.Socket[bytes]) -> None:
        frames = socket.recv_multipart()
        found = [channel for channel in self._channels.copy().values() if channel.replaying is socket]
        if len(frames) != 3 or len(frames[2]) != 8 or not found:
            _logger.warning("a request for KV events is not a sequence number of 8 bytes; it is not answered")
            return
        client, _, start = frames
        for sequence, payload in found[0].kept:
            if sequence >= int.from_bytes(start, "big"):
                socket.send_multipart((client, b"", self._topic, sequence.to_bytes(8, "big"), payload))
        socket.send_multipart((client, b"", b"", _END, b""))


def _runs(stored: Sequence[tuple[int, int | None]]) -> list[list[tuple[int, int | None]]]:
    """The blocks, in runs of which each is the parent of the next."""
    runs: list[list[tuple[int, int | None]]] = []
    for block, parent in stored:
        if runs and runs[-1][-1][0] == parent:
            runs[-1].append((block, parent))
        else:
            runs.append([(block, parent)])
    return runs


def _bind(socket: zmq.Socket[bytes], address: str) -> str:
    """Bind a socket; the address with the port that the system chose. Raises UsageError."""
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise UsageError(f"cannot publish KV events at {address}: {error}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
