"""A tiny KV-aware router with the instruments in it: `python -m examples.router`.

It chooses among workers by an index of the prompt blocks they hold, which their cache events keep up to date. What the
index says, what the best worker would have held, and what the chosen one really reused make the router's four ratios.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Iterator

from servescope import Identity, RouterInstruments
from servescope.exposition.rendering import render

BLOCK = 16
WORKER_BLOCKS = 200
LOST_EVENTS = 0.01

Prompt = tuple[int, ...]
Event = tuple[int, str, Prompt]
"""A sequence number, `stored` or `evicted`, and the prefix that ends with the block."""


class TinyWorker:
    """Caches the blocks of the latest prompts, and publishes an event for each one it stores or evicts."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Prompt, None] = OrderedDict()
        self._events: list[Event] = []
        self._sequence = 0

    def serve(self, prompt: Prompt) -> int:
        """Serve a prompt; returns how many of its tokens came from the cache, as an engine reports it."""
        reused = overlap(prompt, self._blocks)
        for prefix in prefixes(prompt):
            if prefix not in self._blocks:
                self._publish("stored", prefix)
            self._blocks[prefix] = None
            self._blocks.move_to_end(prefix)
        while len(self._blocks) > WORKER_BLOCKS:
            self._publish("evicted", self._blocks.popitem(last=False)[0])
        return reused

    def events(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def _publish(self, what: str, prefix: Prompt) -> None:
        self._events.append((self._sequence, what, prefix))
        self._sequence += 1


class TinyRouter:
    """Sends each prompt to the worker that has most of it cached; to a random one when none has any."""

    def __init__(self, instruments: RouterInstruments, workers: list[TinyWorker], seed: int = 0) -> None:
        self._instruments = instruments
        self._workers = workers
        self._index: list[dict[Prompt, None]] = [{} for _ in workers]
        self._expected = [0] * len(workers)
        self._random = random.Random(seed)
        instruments.set_index_state("exact")
        instruments.count_event_gaps(0)  # gaps are counted, so the series is exposed at 0

    def handle(self, prompt: Prompt) -> None:
        """Route one prompt and wait for the worker's report."""
        overlaps = [overlap(prompt, blocks) for blocks in self._index]
        best = max(overlaps)
        chosen = overlaps.index(best) if best else self._random.randrange(len(self._workers))
        attempt = self._instruments.route(
            eligible_tokens=len(prompt),
            predicted_tokens=overlaps[chosen],
            best_tokens=best,
            candidates=len(self._workers),
            fallback_reason=None if best else "nothing_cached",
        )
        try:
            reused = self._workers[chosen].serve(prompt)
        except ConnectionError:
            attempt.abandon()  # no report will come
            raise
        attempt.report(reused)
        self._apply(chosen, self._workers[chosen].events())

    def _apply(self, worker: int, events: list[Event]) -> None:
        for sequence, what, prefix in events:
            if self._random.random() < LOST_EVENTS:
                continue  # the network lost it
            if sequence != self._expected[worker]:
                self._instruments.count_event_gaps(sequence - self._expected[worker])
                self._instruments.set_index_state("degraded")
            self._expected[worker] = sequence + 1
            if what == "stored":
                self._index[worker][prefix] = None
            else:
                self._index[worker].pop(prefix, None)


def prefixes(prompt: Prompt) -> Iterator[Prompt]:
    """The prompt's whole blocks, each with all before it: that is what a KV block depends on."""
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        yield prompt[:end]


def overlap(prompt: Prompt, blocks: dict[Prompt, None] | OrderedDict[Prompt, None]) -> int:
    """Tokens of the prompt in blocks that are held, from its start without a gap."""
    held = 0
    for prefix in prefixes(prompt):
        if prefix not in blocks:
            break
        held = len(prefix)
    return held


def run(requests: int) -> bytes:
    """Route so many prompts over four workers, and return the router's page."""
    identity = Identity("tiny-1b", "example", "examples", replica="router-0", role="router")
    instruments = RouterInstruments(identity)
    router, generator = TinyRouter(instruments, [TinyWorker() for _ in range(4)]), random.Random(1)
    documents = [tuple(generator.choices(range(1000), k=generator.randint(64, 320))) for _ in range(12)]
    for _ in range(requests):
        question = tuple(generator.choices(range(1000), k=generator.randint(4, 40)))
        router.handle(generator.choice(documents) + question)
    return render(instruments)


if __name__ == "__main__":
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1000).decode())
