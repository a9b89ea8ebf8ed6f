"""The requests sent to an engine: shared prefixes, streamed or not, patient or not, valid or not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tests.proofs.real.engines import MODEL_NAME

Kind = Literal["complete", "leave", "unknown_model", "malformed", "too_long", "burst"]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

DOCUMENTS = 6
LONGER_THAN_ANY_CONTEXT = 5000
BURST_PROMPT_TOKENS = 1600
TOO_MANY_TO_WAIT_FOR = 1500


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send.

    `leave_after` chunks, or `leave_seconds` after sending, the client goes away; None lets it finish. `prompt_tokens`
    is given where the prompt is made of token ids, so that its size is known whatever becomes of the request.
    """

    kind: Kind
    path: str
    payload: bytes
    stream: bool = False
    max_tokens: int = 0
    leave_after: int | None = None
    leave_seconds: float | None = None
    prompt_tokens: int | None = None


def make_traffic(seed: int, requests: int, *, leaving: int = 0, wrong: int = 0) -> list[Job]:
    """A shuffled mix: `requests` to be finished, so many whose client leaves, and so many times each that is wrong."""
    generator = random.Random(seed)
    jobs = [*_complete(generator, requests), *_leaving(generator, leaving), *_wrong(generator, wrong)]
    generator.shuffle(jobs)
    return jobs


def make_burst(seed: int, requests: int) -> list[Job]:
    """Long prompts that share nothing, to be sent all at once: more than the engine takes."""
    generator = random.Random(seed)
    jobs = []
    for _ in range(requests):
        prompt = _token_ids(generator, BURST_PROMPT_TOKENS)
        payload = _payload({"prompt": prompt, "max_tokens": 16, "temperature": 0})
        jobs.append(Job("burst", COMPLETIONS, payload, max_tokens=16, prompt_tokens=len(prompt)))
    return jobs


def make_streams(seed: int, requests: int) -> list[Job]:
    """Streams over one shared prefix, all to be finished."""
    generator = random.Random(seed)
    document = _words(generator, 120)
    payloads = (
        _payload({"prompt": f"{document} {_words(generator, 5)}", "max_tokens": 40, "ignore_eos": True}, stream=True)
        for _ in range(requests)
    )
    return [Job("complete", COMPLETIONS, payload, stream=True, max_tokens=40) for payload in payloads]


def _complete(generator: random.Random, count: int) -> Iterator[Job]:
    # The same in every mix: what one has cached, the next may reuse.
    library = random.Random(0)
    documents = [_words(library, library.randint(80, 200)) for _ in range(DOCUMENTS)]
    for _ in range(count):
        question = _words(generator, generator.randint(3, 30))
        text = f"{generator.choice(documents)} {question}"
        stream = generator.random() < 0.6
        max_tokens = generator.choice((1, 8, 24, 48, 64))
        sampling = {
            "max_tokens": max_tokens,
            "temperature": 0 if generator.random() < 0.6 else 0.7,
            "ignore_eos": generator.random() < 0.9,
        }
        if generator.random() < 0.25:
            body = {"messages": [{"role": "user", "content": text}], **sampling}
            yield Job("complete", CHAT, _payload(body, stream), stream, max_tokens)
        else:
            yield Job("complete", COMPLETIONS, _payload({"prompt": text, **sampling}, stream), stream, max_tokens)


def _leaving(generator: random.Random, count: int) -> Iterator[Job]:
    for index in range(count):
        stream = index % 3 != 0
        prompt = _token_ids(generator, generator.randint(50, 300))
        # So hot that nothing repeats and no draft fits: it takes seconds, and none is done before its client has left.
        body = {"prompt": prompt, "max_tokens": TOO_MANY_TO_WAIT_FOR, "temperature": 2, "ignore_eos": True}
        yield Job(
            "leave", COMPLETIONS, _payload(body, stream), stream, TOO_MANY_TO_WAIT_FOR,
            leave_after=generator.randint(1, 20) if stream else None,
            leave_seconds=None if stream else 0.4,
            prompt_tokens=len(prompt),
        )  # fmt: skip


def _wrong(generator: random.Random, count: int) -> Iterator[Job]:
    too_long = _token_ids(generator, LONGER_THAN_ANY_CONTEXT)
    for _ in range(count):
        yield Job("malformed", COMPLETIONS, b'{"model":')
        yield Job("malformed", COMPLETIONS, _payload({"max_tokens": 4}))
        yield Job("malformed", COMPLETIONS, _payload({"prompt": "warm", "temperature": 9}))
        yield Job("unknown_model", COMPLETIONS, _payload({"prompt": "who", "model": "nobody"}))
        yield Job("too_long", COMPLETIONS, _payload({"prompt": too_long, "max_tokens": 4}), prompt_tokens=len(too_long))


def _payload(body: dict[str, Any], stream: bool = False) -> bytes:
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return json.dumps({"model": MODEL_NAME, **body, **streaming}).encode()


def _words(generator: random.Random, count: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(generator.choices(letters, k=generator.randint(2, 7))) for _ in range(count))


def _token_ids(generator: random.Random, count: int) -> list[int]:
    # Above the special tokens and the single bytes, below the vocabulary.
    return generator.choices(range(300, 1000), k=count)
