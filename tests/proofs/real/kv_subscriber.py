"""Reads cache events with vLLM's own classes; run with the Python of an environment that holds vLLM.

Takes the endpoints as arguments, says `ready`, follows all until its input ends and nothing has come for a second, and
prints what it read as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import msgspec
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch


def main(endpoints: list[str]) -> None:
    """Follow the endpoints."""
    context: Any = zmq.Context()
    sockets: dict[Any, dict[str, Any]] = {}
    poller = zmq.Poller()
    for endpoint in endpoints:
        socket = context.socket(zmq.SUB)
        socket.setsockopt_string(zmq.SUBSCRIBE, "")
        socket.connect(endpoint)
        poller.register(socket, zmq.POLLIN)
        sockets[socket] = {"batches": 0, "gaps": 0, "events": 0, "blocks": set(), "ranks": set(), "next": None}
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    print("ready", flush=True)
    decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
    while True:
        ready = poller.poll(1000)
        if not ready and ended.is_set():
            break
        for socket, _ in ready:
            take(sockets[socket], *socket.recv_multipart(), decoder=decoder)
    seen = [
        {**{name: seen[name] for name in ("batches", "gaps", "events")}, "cached": len(seen["blocks"]),
         "ranks": sorted(seen["ranks"])}
        for seen in sockets.values()
    ]  # fmt: skip
    print(json.dumps(seen), flush=True)


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def take(seen: dict[str, Any], _: bytes, sequence: bytes, payload: bytes, *, decoder: Any) -> None:
    """Book one batch; raises when vLLM's classes do not take it."""
    number = int.from_bytes(sequence, "big")
    seen["gaps"] += seen["next"] is not None and number != seen["next"]
    seen["next"] = number + 1
    batch = decoder.decode(payload)
    seen["batches"] += 1
    seen["ranks"].add(batch.data_parallel_rank)
    for event in batch.events:
        seen["events"] += 1
        if isinstance(event, BlockStored):
            assert len(event.token_ids) == event.block_size * len(event.block_hashes)
            assert event.parent_block_hash is None or event.parent_block_hash in seen["blocks"]
            seen["blocks"].update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            seen["blocks"].difference_update(event.block_hashes)
        else:
            assert isinstance(event, AllBlocksCleared)
            seen["blocks"].clear()


if __name__ == "__main__":
    main(sys.argv[1:])
