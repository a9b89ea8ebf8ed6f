"""The bodies that OpenAI's clients get: whole answers, the chunks of streamed ones, models and embeddings."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from struct import pack
from typing import Any

from servescope.emulator.openai.flights import Choice

_FINGERPRINT = "fp_servescope"
DONE = b"data: [DONE]\n\n"


def event(body: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def count_usage(choices: Sequence[Choice], cached_tokens: Sequence[int], generated: int) -> dict[str, Any]:
    """The usage of a request: each prompt once, however many answers it got, and all tokens `generated`."""
    firsts: dict[int, int] = {}
    for number, choice in enumerate(choices):
        firsts.setdefault(choice.prompt, number)
    prompt = sum(len(choices[number].ids) for number in firsts.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(cached_tokens[number] for number in firsts.values())},
    }


class ChatShape:
    """How a chat completion is answered."""

    source = "messages"

    def __init__(self, number: int, model: str) -> None:
        self._head = {"id": f"chatcmpl-{number:024x}", "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[Choice], usage: Mapping[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""
        listed = [
            {
                "index": index,
                "message": {"role": "assistant", "content": _text(choice), "refusal": None},
                "logprobs": None,
                "finish_reason": _finish(choice),
            }
            for index, choice in enumerate(choices)
        ]
        return {**self._head, "object": "chat.completion", "choices": listed, "usage": usage,
                "system_fingerprint": _FINGERPRINT}  # fmt: skip

    def begin(self, count: int) -> Iterator[dict[str, Any]]:
        """What comes before the first token of each choice."""
        for index in range(count):
            yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """More text of a choice."""
        return self._chunk(index, {"content": text})

    def end(self, index: int, choice: Choice) -> dict[str, Any]:
        """The end of a choice."""
        return self._chunk(index, {}, _finish(choice))

    def usage(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The last chunk, for clients that asked for the usage."""
        return {**self._chunk(0, {}), "choices": [], "usage": usage}

    def _chunk(self, index: int, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "object": "chat.completion.chunk", "system_fingerprint": _FINGERPRINT,
                "choices": [choice]}  # fmt: skip


class CompletionShape:
    """How a completion is answered."""

    source = "prompt"

    def __init__(self, number: int, model: str) -> None:
        self._head = {"id": f"cmpl-{number:024x}", "object": "text_completion", "created": int(time.time()),
                      "model": model, "system_fingerprint": _FINGERPRINT}  # fmt: skip

    def whole(self, choices: Sequence[Choice], usage: Mapping[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""
        listed = [_completion(index, _text(choice), _finish(choice)) for index, choice in enumerate(choices)]
        return {**self._head, "choices": listed, "usage": usage}

    def begin(self, count: int) -> Iterator[dict[str, Any]]:
        """Nothing comes before the first token of a choice."""
        yield from ()

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """More text of a choice."""
        return {**self._head, "choices": [_completion(index, text, None)]}

    def end(self, index: int, choice: Choice) -> dict[str, Any]:
        """The end of a choice."""
        return {**self._head, "choices": [_completion(index, "", _finish(choice))]}

    def usage(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The last chunk, for clients that asked for the usage."""
        return {**self._head, "choices": [], "usage": usage}


Shape = ChatShape | CompletionShape


def _completion(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def _text(choice: Choice) -> str:
    return choice.answer.text if choice.answer else ""


def _finish(choice: Choice) -> str:
    return choice.answer.finish if choice.answer else "length"


def describe_embeddings(vectors: Sequence[Sequence[float]], *, model: str, tokens: int, packed: bool) -> dict[str, Any]:
    """The answer to a request for embeddings; `packed` has each as little-endian 32-bit floats in base 64."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(pack(f"<{len(vector)}f", *vector)).decode() if packed else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def describe_model(name: str, most_tokens: int) -> dict[str, Any]:
    """A model as `/v1/models` lists it, with its longest context as vLLM names it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "servescope", "max_model_len": most_tokens}
