"""A tiny engine with the instruments in it: `python -m examples.engine`, and open the page it prints meanwhile.

One thread steps through batches, as engines do. The numbers are random; what matters is where each call is made.
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from dataclasses import dataclass
from urllib.request import urlopen

from servescope import EngineInstruments, Identity, serve
from servescope.instruments.request import Request
from servescope.instruments.resources import ResourceMeter

BATCH = 8
KV_TOKENS = 20_000
DRAFT_LENGTH = 4
STEP_SECONDS = 0.005


@dataclass(slots=True)
class Running:
    """A request as the engine keeps it, with our instrument for it."""

    request: Request
    prompt_tokens: int
    wanted_tokens: int
    made_tokens: int = 0


class TinyEngine:
    """Prefills one waiting request per step and decodes all others, with speculation."""

    def __init__(self, instruments: EngineInstruments, seed: int = 0) -> None:
        self._instruments = instruments
        self._random = random.Random(seed)
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []

    def submit(self, prompt_tokens: int, wanted_tokens: int) -> None:
        """A request arrives; any thread may submit."""
        request = self._instruments.start_request(input_tokens=prompt_tokens)
        if prompt_tokens > KV_TOKENS:
            request.finish("rejected")
            return
        self._waiting.append(Running(request, prompt_tokens, wanted_tokens))

    def step(self) -> None:
        """One batch: reads a prompt, generates tokens for every running sequence, retires the finished ones."""
        self._admit()
        drafted, accepted_by_position = 0, [0] * DRAFT_LENGTH
        for sequence in self._running:
            if sequence.made_tokens == 0:
                sequence.request.first_token()
                sequence.made_tokens = 1
                continue
            accepted = self._verify_draft()
            drafted += DRAFT_LENGTH
            for position in range(accepted):
                accepted_by_position[position] += 1
            # The accepted drafts and the model's own token, but no more than were asked for.
            emitted = min(accepted + 1, sequence.wanted_tokens - sequence.made_tokens)
            sequence.request.tokens(emitted)
            sequence.made_tokens += emitted
        if drafted:
            # Once per step, summed over the batch: with as many positions as `draft_length` it costs least.
            self._instruments.record_speculation(drafted, accepted_by_position)
        self._retire()
        self._report_state()

    @property
    def busy(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._waiting or self._running)

    def _admit(self) -> None:
        if self._waiting and len(self._running) < BATCH:
            self._running.append(self._waiting.popleft())

    def _verify_draft(self) -> int:
        accepted = 0
        while accepted < DRAFT_LENGTH and self._random.random() < 0.7:
            accepted += 1
        return accepted

    def _retire(self) -> None:
        for sequence in self._running:
            if sequence.made_tokens >= sequence.wanted_tokens:
                # Stop and length are ok; a client that disconnected would be "client_abort", a fault of ours "error".
                sequence.request.finish("ok")
        self._running = [each for each in self._running if each.made_tokens < each.wanted_tokens]

    def _report_state(self) -> None:
        held = sum(each.prompt_tokens + each.made_tokens for each in self._running)
        self._instruments.set_queued_requests(len(self._waiting))
        self._instruments.set_kv_cache_usage(min(held / KV_TOKENS, 1.0))


def run(requests: int, *, port: int = 0, step_seconds: float = STEP_SECONDS) -> bytes:
    """Serve so many requests with the page open, and return the page as a scraper gets it at the end."""
    identity = Identity("tiny-1b", "example", "examples", replica="engine-0")
    instruments = EngineInstruments(identity, draft_length=DRAFT_LENGTH, resources=ResourceMeter())
    engine, generator = TinyEngine(instruments), random.Random(1)
    with serve(instruments, port=port) as server:
        print(f"metrics at {server.url}", flush=True)
        for _ in range(requests):
            engine.submit(generator.randint(10, 2000), generator.randint(2, 60))
        while engine.busy:
            engine.step()
            time.sleep(step_seconds)
        with urlopen(server.url) as page:
            body: bytes = page.read()
            return body


if __name__ == "__main__":
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 500, port=9101).decode())
