"""The requests sent to an engine: shared prefixes, streamed or not, patient or not, valid or not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tests.proofs.real.engines import MODEL_NAME

Kind = Literal["complete", "leave", "unknown_model", "malformed", "incomplete", "invalid", "too_long", "burst", "dying"]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

DOCUMENTS = 6
LONGER_THAN_ANY_CONTEXT = 5000
BURST_PROMPT_TOKENS = 1600
TOO_MANY_TO_WAIT_FOR = 1500
MANY_FOR_EMULATED = 500


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


def make_traffic(seed: int, requests: int, *, leaving: int = 0, wrong: int = 0, as_text: bool = False) -> list[Job]:
    """A shuffled mix: `requests` to be finished, so many whose client leaves, and so many times each that is wrong.

    `as_text` is for programs in front of a model that is emulated: no prompts of token ids, which some refuse, and
    clients leave chats too.
    """
    generator = random.Random(seed)
    jobs = [
        *_complete(generator, requests),
        *_leaving(generator, leaving, as_text=as_text),
        *_wrong(generator, wrong, as_text=as_text),
    ]
    generator.shuffle(jobs)
    return jobs


def make_burst(seed: int, requests: int, *, as_text: bool = False) -> list[Job]:
    """Long prompts that share nothing, to be sent all at once: more than the engine takes."""
    generator = random.Random(seed)
    jobs = []
    for _ in range(requests):
        prompt, prompt_tokens = _prompt(generator, BURST_PROMPT_TOKENS, as_text=as_text)
        payload = _payload({"prompt": prompt, "max_tokens": 16, "temperature": 0})
        jobs.append(Job("burst", COMPLETIONS, payload, max_tokens=16, prompt_tokens=prompt_tokens))
    return jobs


def make_streams(seed: int, requests: int, *, max_tokens: int = 40) -> list[Job]:
    """Streams over one shared prefix, all to be finished."""
    generator = random.Random(seed)
    document = _words(generator, 120)
    payloads = (
        _payload(
            {"prompt": f"{document} {_words(generator, 5)}", "max_tokens": max_tokens, "ignore_eos": True}, stream=True
        )
        for _ in range(requests)
    )
    return [Job("complete", COMPLETIONS, payload, stream=True, max_tokens=max_tokens) for payload in payloads]


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


def _leaving(generator: random.Random, count: int, *, as_text: bool) -> Iterator[Job]:
    for index in range(count):
        stream = index % 3 != 0
        prompt, prompt_tokens = _prompt(generator, generator.randint(50, 300), as_text=as_text)
        # So hot that nothing repeats and no draft fits: it takes seconds, and none is done before its client has left.
        most = MANY_FOR_EMULATED if as_text else TOO_MANY_TO_WAIT_FOR
        chat = as_text and index % 2 == 0
        asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        body = {**asked, "max_tokens": most, "temperature": 2, "ignore_eos": True}
        yield Job(
            "leave", CHAT if chat else COMPLETIONS, _payload(body, stream), stream, most,
            leave_after=generator.randint(1, 20) if stream else None,
            leave_seconds=None if stream else 0.4,
            prompt_tokens=prompt_tokens,
        )  # fmt: skip


def _wrong(generator: random.Random, count: int, *, as_text: bool) -> Iterator[Job]:
    too_long = _token_ids(generator, LONGER_THAN_ANY_CONTEXT)
    for _ in range(count):
        yield Job("malformed", COMPLETIONS, b'{"model":')
        yield Job("incomplete", COMPLETIONS, _payload({"max_tokens": 4}))
        yield Job("invalid", COMPLETIONS, _payload({"prompt": "warm", "max_tokens": 4, "temperature": 9}))
        yield Job("unknown_model", COMPLETIONS, _payload({"prompt": "who", "max_tokens": 4, "model": "nobody"}))
        if not as_text:
            payload = _payload({"prompt": too_long, "max_tokens": 4})
            yield Job("too_long", COMPLETIONS, payload, prompt_tokens=len(too_long))


def _payload(body: dict[str, Any], stream: bool = False) -> bytes:
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return json.dumps({"model": MODEL_NAME, **body, **streaming}).encode()


def _words(generator: random.Random, count: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(generator.choices(letters, k=generator.randint(2, 7))) for _ in range(count))


def _prompt(generator: random.Random, count: int, *, as_text: bool) -> tuple[str | list[int], int | None]:
    """So many words, or token ids and their number, which is that of the prompt's tokens."""
    if as_text:
        return _words(generator, count), None
    return _token_ids(generator, count), count


def _token_ids(generator: random.Random, count: int) -> list[int]:
    # Above the special tokens and the single bytes, below the vocabulary.
    return generator.choices(range(300, 1000), k=count)
