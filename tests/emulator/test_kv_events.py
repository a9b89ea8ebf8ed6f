"""Cache events on the wire, read by a decoder that is not ours."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgpack
import pytest
import zmq

from servescope.emulator.block_contents import BlockContents
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.stack import MODEL, EmulatedStack
from servescope.emulator.faults.faults import Faults, parse_fault
from servescope.emulator.openai import api as openai_api
from servescope.emulator.openai.api import OpenAiSettings
from servescope.emulator.server import server
from servescope.emulator.server.kv_events import Endpoint, KvEvents, parse_endpoint
from servescope.emulator.tokens import tokenize_conversation
from servescope.emulator.workload.blocks import BLOCKS_PER_STREAM
from servescope.errors import UsageError
from tests.support.waiting import deadline_seconds

pytestmark = pytest.mark.slow

ANY = Endpoint("127.0.0.1", 0)


class Subscriber:
    """Follows one engine's events, as vLLM's consumers do."""

    def __init__(self, endpoint: str) -> None:
        self.context: Any = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, "")
        self.socket.connect(endpoint)
        self.topics: set[bytes] = set()
        self.sequences: list[int] = []
        self.ranks: set[int] = set()
        self.events: list[dict[str, Any]] = []

    def read(self, seconds: float = 1.0) -> None:
        """Take all that comes until nothing does for so long."""
        while self.socket.poll(round(seconds * 1000)):
            topic, sequence, payload = self.socket.recv_multipart()
            _, events, rank = msgpack.unpackb(payload)
            assert len(sequence) == 8
            self.topics.add(topic)
            self.sequences.append(int.from_bytes(sequence, "big"))
            self.ranks.add(rank)
            self.events += events

    def cached(self) -> set[int]:
        """The blocks that are cached, as the events report."""
        blocks: set[int] = set()
        for event in self.events:
            if event["type"] == "AllBlocksCleared":
                blocks.clear()
            elif event["type"] == "BlockRemoved":
                blocks -= set(event["block_hashes"])
            else:
                blocks |= set(event["block_hashes"])
        return blocks

    def close(self) -> None:
        """Close the sockets."""
        self.context.destroy(linger=0)


@pytest.fixture
def stack() -> EmulatedStack:
    """A stack at its beginning."""
    return EmulatedStack()


@pytest.fixture
def events(stack: EmulatedStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[KvEvents]:
    """Its events, which can be replayed; the socket reports a subscription that has arrived, as a PUB does not."""
    monkeypatch.setattr(zmq, "PUB", zmq.XPUB)
    made = KvEvents(stack.deployments, ANY, replay=ANY, topic="kv")
    yield made
    made.close()


def follow(events: KvEvents, deployment: EmulatedDeployment, replica: str) -> Subscriber:
    """A subscriber of one replica, connected."""
    (found,) = [
        one
        for one in events.describe()
        if (one["deployment_id"], one["replica"]) == (deployment.plan.identity.deployment_id, replica)
    ]
    subscriber = Subscriber(found["endpoint"])
    (publishing,) = [
        channel.publishing for channel in events._channels.values() if channel.address == found["endpoint"]
    ]
    assert publishing is not None
    assert publishing.poll(round(1000 * deadline_seconds())), "the subscription did not arrive"
    return subscriber


def test_events_report_what_each_cache_holds(stack: EmulatedStack, events: KvEvents) -> None:
    """Whoever follows an engine's events knows its cache; the numbers have no gap, each engine has its own rank."""
    deployment = stack.deployments[1]
    subscribers = {name: follow(events, deployment, name) for name in deployment.replicas}
    stack.clock.run_until(120.0)
    for name, subscriber in subscribers.items():
        subscriber.read()
        assert subscriber.sequences == list(range(len(subscriber.sequences)))
        assert len(subscriber.sequences) > 100
        assert subscriber.topics == {b"kv"}
        assert subscriber.cached() == deployment.replicas[name].engine.cache.cached_blocks()
        assert {event["type"] for event in subscriber.events} == {"BlockStored", "BlockRemoved"}
        subscriber.close()
    assert sorted(rank for one in subscribers.values() for rank in one.ranks) == [3, 4, 5]


def test_a_churning_cache_says_nothing_of_what_it_lost(stack: EmulatedStack, events: KvEvents) -> None:
    """With the fault, who follows a cache believes it to hold what is gone; without it, never."""
    deployment = stack.deployments[1]
    subscriber = follow(events, deployment, "engine-0")
    cache = deployment.replicas["engine-0"].engine.cache
    stack.clock.run_until(8.0)
    subscriber.read()
    assert subscriber.cached() == cache.cached_blocks()
    Faults(stack).switch_on(parse_fault("cache-churn@chat-v2"))
    stack.clock.run_until(16.0)
    subscriber.read()
    assert subscriber.cached() > cache.cached_blocks()
    assert subscriber.sequences == list(range(len(subscriber.sequences)))
    assert cache.parents is not None
    assert cache.parents.keys() == cache.cached_blocks()
    subscriber.close()


def test_stored_blocks_name_their_parent(stack: EmulatedStack, events: KvEvents) -> None:
    """Each event is a run of blocks with its tokens, behind a block that is cached; the same block is the same text."""
    deployment = stack.deployments[1]
    subscriber = follow(events, deployment, "engine-0")
    stack.clock.run_until(60.0)
    subscriber.read()
    cached: set[int] = set()
    texts: dict[int, list[int]] = {}
    for event in subscriber.events:
        if event["type"] == "BlockRemoved":
            cached -= set(event["block_hashes"])
            continue
        assert event["block_size"] == 32
        assert event["parent_block_hash"] is None or event["parent_block_hash"] in cached
        assert len(event["token_ids"]) == 32 * len(event["block_hashes"])
        # Generated traffic numbers the blocks of a conversation one by one.
        first = 0 if event["parent_block_hash"] is None else event["parent_block_hash"] % BLOCKS_PER_STREAM + 1
        places = [block % BLOCKS_PER_STREAM for block in event["block_hashes"]]
        assert places == list(range(first, first + len(places)))
        for place, block in enumerate(event["block_hashes"]):
            tokens = event["token_ids"][place * 32 : place * 32 + 32]
            assert texts.setdefault(block, tokens) == tokens
        cached |= set(event["block_hashes"])
    assert any(event.get("parent_block_hash") for event in subscriber.events)
    subscriber.close()


def test_missed_batches_can_be_had_again(stack: EmulatedStack, events: KvEvents) -> None:
    """The replay socket sends what came from a sequence number on, and then the number -1."""
    deployment = stack.deployments[0]
    subscriber = follow(events, deployment, "engine-1")
    stack.clock.run_until(30.0)
    subscriber.read()
    (found,) = [one for one in events.describe() if (one["deployment_id"], one["replica"]) == ("chat-v1", "engine-1")]
    assert found["next_sequence"] == len(subscriber.sequences)
    context: Any = zmq.Context()
    asking = context.socket(zmq.DEALER)
    asking.connect(found["replay_endpoint"])
    asking.send_multipart((b"", (7).to_bytes(8, "big")))
    numbers, again = [], []
    while True:
        assert asking.poll(5000)
        _, topic, sequence, payload = asking.recv_multipart()
        if int.from_bytes(sequence, "big", signed=True) == -1:
            break
        assert topic == b"kv"
        numbers.append(int.from_bytes(sequence, "big"))
        again += msgpack.unpackb(payload)[1]
    assert numbers == list(range(7, len(subscriber.sequences)))
    assert again == subscriber.events[-len(again) :]
    asking.send_multipart((b"", b"what?"))
    asking.send_multipart((b"", (10**6).to_bytes(8, "big")))
    assert asking.poll(5000)
    assert int.from_bytes(asking.recv_multipart()[2], "big", signed=True) == -1
    context.destroy(linger=0)
    subscriber.close()


def test_restarted_engine_begins_anew(stack: EmulatedStack, events: KvEvents) -> None:
    """A restarted process publishes that its blocks are gone, and numbers from 0 at the same address."""
    deployment = stack.deployments[1]
    subscriber = follow(events, deployment, "engine-0")
    stack.clock.run_until(30.0)
    deployment.restart("engine-0")
    stack.clock.run_until(60.0)
    subscriber.read()
    second = subscriber.sequences.index(0, 1)
    assert subscriber.sequences[second:] == list(range(len(subscriber.sequences) - second))
    assert {"type": "AllBlocksCleared"} in subscriber.events
    assert subscriber.cached() == deployment.replicas["engine-0"].engine.cache.cached_blocks()
    subscriber.close()


def test_clients_text_is_told_token_by_token(tmp_path: Path) -> None:
    """The blocks of a real request have its tokens."""
    stack, contents = EmulatedStack(quiet=True), BlockContents()
    events = KvEvents(stack.deployments, ANY, contents=contents)
    subscribers = [Subscriber(one["endpoint"]) for one in events.describe()]

    def add(application: Any, emulator: server.RunningEmulator) -> None:
        openai_api.add_routes(application, emulator, OpenAiSettings(contents=contents))

    running = server.start(tmp_path, stack=stack, warm_up_seconds=1.0, add_routes=[add, events.add_routes])
    try:
        messages = [{"role": "user", "content": "the same old story " * 40}]
        body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 1}).encode()
        with urlopen(Request(f"{running.url}/v1/chat/completions", body), timeout=deadline_seconds()) as answer:
            assert answer.status == 200
        with urlopen(f"{running.url}/kv-events", timeout=deadline_seconds()) as answer:
            assert [one["rank"] for one in json.load(answer)] == [0, 1, 2, 3, 4, 5]
        for subscriber in subscribers:
            subscriber.read(0.2)
        (event,) = [event for subscriber in subscribers for event in subscriber.events]
        ids = tokenize_conversation(messages)
        assert event["parent_block_hash"] is None
        assert event["token_ids"] == ids[: len(ids) // 32 * 32]
    finally:
        running.close()
        events.close()
        for subscriber in subscribers:
            subscriber.close()


def test_address_in_use_is_refused(stack: EmulatedStack) -> None:
    """An address that somebody else listens on is named."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot publish KV events at tcp://127.0.0.1:{port}"):
            KvEvents(stack.deployments, Endpoint("127.0.0.1", port))


@pytest.mark.parametrize("text", ["5557", "tcp://127.0.0.1", "tcp://h:99999", "udp://127.0.0.1:1", "tcp://a b:1", ""])
def test_endpoint_that_is_none(text: str) -> None:
    """What is no address is refused with the value and an example."""
    with pytest.raises(UsageError, match=r"--kv-events is '.*', expected tcp://HOST:PORT"):
        parse_endpoint("--kv-events", text)
