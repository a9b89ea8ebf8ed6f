"""What clients ask for, read from the bodies of their requests and checked: prompts as tokens, and how to answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from servescope.emulator.openai import errors
from servescope.emulator.openai.errors import ApiError
from servescope.emulator.tokens import HIGHEST_ID, ROLES, tokenize, tokenize_conversation

# Parameters whose values are read below.
_SHARED = {
    "model",
    "n",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "stop",
    "seed",
    "stream",
    "stream_options",
    "priority",
}
_CHAT = {"messages", "max_completion_tokens", "tools", "tool_choice", "response_format", "logprobs", "top_logprobs"}
_COMPLETION = {"prompt", "logprobs", "echo", "suffix", "best_of"}
_EMBEDDING = {"model", "input", "dimensions", "encoding_format"}
_TOKENIZE = {"model", "prompt", "messages", "tools"}

# Bounded numbers that change what a model says, and nothing of an answer that means nothing.
_BOUNDED = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
# Parameters without a meaning here that clients send: OpenAI's, those of vLLM and similar servers, and what the routers
# of SGLang and vLLM add to each request.
_IGNORED = {
    "user", "metadata", "store", "service_tier", "logit_bias", "parallel_tool_calls", "reasoning_effort", "verbosity",
    "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "prediction", "modalities",
    "top_k", "repetition_penalty", "length_penalty", "stop_token_ids", "include_stop_str_in_output",
    "skip_special_tokens", "spaces_between_special_tokens", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "chat_template_kwargs", "return_tokens_as_token_ids", "request_id", "truncate_prompt_tokens",
    "cache_salt", "detokenize", "return_token_ids", "bad_words", "allowed_token_ids",
    "no_stop_trim", "return_hidden_states", "separate_reasoning", "stream_reasoning", "include_reasoning",
}  # fmt: skip

_LOWEST_SEED, _HIGHEST_SEED = -(2**63), 2**63 - 1
# As OpenAI's completions, which are older than their chat, have it.
_COMPLETION_TOKENS = 16
_HIGHEST_DIMENSIONS = 4096
_DIMENSIONS = 1024


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Limits: bytes of a body, entries of its lists, and requests answered at once."""

    body_bytes: int = 8 << 20
    messages: int = 2048
    prompts: int = 128
    inputs: int = 2048
    choices: int = 16
    stop_sequences: int = 4
    tools: int = 128
    concurrent_requests: int = 1024


@dataclass(frozen=True, slots=True)
class Generation:
    """What to generate: `choices` answers to each of `prompts`, which are tokens.

    `most_tokens` is None when the client leaves the length to the model.
    """

    model: str
    prompts: tuple[tuple[int, ...], ...]
    choices: int
    most_tokens: int | None
    fewest_tokens: int
    stop: tuple[str, ...]
    ignores_end: bool
    seed: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    priority: int


@dataclass(frozen=True, slots=True)
class Embedding:
    """What to embed: texts as tokens, into vectors of so many `dimensions`; `base64` asks for packed floats."""

    model: str
    inputs: tuple[tuple[int, ...], ...]
    dimensions: int
    base64: bool


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Raises ApiError."""
    try:
        parsed = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise errors.bad_body("it is nested too deeply") from None
    except ValueError as error:
        raise errors.bad_body(str(error)) from None
    if not isinstance(parsed, dict):
        raise errors.bad_body(f"it is {errors.kind_of(parsed)}")
    return parsed


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_chat(body: Mapping[str, Any], limits: ApiLimits) -> Generation:
    """What a chat completion asks for. Raises ApiError."""
    fields = _Fields(body, _SHARED | _CHAT)
    prompt = _read_conversation(fields, limits)
    if fields.flag("logprobs") or fields.whole("top_logprobs", 0, 20):
        raise errors.unsupported("logprobs", "The answers of an emulator have no probabilities.")
    _check_format(fields)
    _check_tool_choice(fields)
    most = fields.whole("max_completion_tokens", 1)
    if most is None:
        most = fields.whole("max_tokens", 1)
    return _read_generation(fields, (prompt,), most, limits)


def read_tokens(body: Mapping[str, Any], limits: ApiLimits) -> tuple[str | None, tuple[int, ...]]:
    """The tokens of a text or conversation, and of which model they are to be, None for any. Raises ApiError."""
    fields = _Fields(body, _TOKENIZE)
    model = fields.text("model")
    if fields.value("messages") is not None:
        return model, _read_conversation(fields, limits)
    text = fields.text("prompt")
    if text is None:
        raise errors.missing("prompt")
    return model, _read_text("prompt", text)


def read_completion(body: Mapping[str, Any], limits: ApiLimits) -> Generation:
    """What a completion asks for. Raises ApiError."""
    fields = _Fields(body, _SHARED | _COMPLETION)
    if body.get("logprobs") is not None:
        raise errors.unsupported("logprobs", "The answers of an emulator have no probabilities.")
    if fields.flag("echo"):
        raise errors.unsupported("echo", "The emulator keeps tokens of the prompt, not its text.")
    if fields.text("suffix"):
        raise errors.unsupported("suffix", "The emulator does not insert text.")
    most = fields.whole("max_tokens", 1)
    generation = _read_generation(
        fields,
        _read_texts(fields, "prompt", limits.prompts),
        _COMPLETION_TOKENS if most is None else most,
        limits,
    )
    best_of = fields.whole("best_of", 1, limits.choices)
    if best_of is not None and best_of != generation.choices:
        raise errors.unsupported(
            "best_of", "The emulator has no answer that is better than others: expected the same as 'n'."
        )
    return generation


def read_embedding(body: Mapping[str, Any], limits: ApiLimits) -> Embedding:
    """What a request for embeddings asks for. Raises ApiError."""
    fields = _Fields(body, _EMBEDDING)
    model = fields.model()
    encoding = fields.choice("encoding_format", ("float", "base64")) or "float"
    dimensions = fields.whole("dimensions", 1, _HIGHEST_DIMENSIONS) or _DIMENSIONS
    return Embedding(model, _read_texts(fields, "input", limits.inputs), dimensions, encoding == "base64")


def _read_conversation(fields: _Fields, limits: ApiLimits) -> tuple[int, ...]:
    messages = fields.array("messages", limits.messages)
    tools = fields.array("tools", limits.tools, required=False)
    conversation = [_read_message(f"messages[{index}]", message) for index, message in enumerate(messages)]
    return tuple(tokenize_conversation(conversation, tools=tools))


def _read_generation(
    fields: _Fields, prompts: tuple[tuple[int, ...], ...], most: int | None, limits: ApiLimits
) -> Generation:
    stream = fields.flag("stream")
    options = fields.object("stream_options")
    if options is not None and not stream:
        raise ApiError(
            400, "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    within = _Fields(
        options or {}, {"include_usage", "include_obfuscation", "continuous_usage_stats"}, "stream_options."
    )
    fewest = fields.whole("min_tokens", 0) or 0
    if most is not None and fewest > most:
        raise errors.out_of_range("min_tokens", fewest, high=most)
    return Generation(
        model=fields.model(),
        prompts=prompts,
        choices=fields.whole("n", 1, limits.choices) or 1,
        most_tokens=most,
        fewest_tokens=fewest,
        stop=_read_stop(fields, limits.stop_sequences),
        ignores_end=fields.flag("ignore_eos"),
        seed=fields.whole("seed", _LOWEST_SEED, _HIGHEST_SEED),
        stream=stream,
        include_usage=within.flag("include_usage"),
        continuous_usage=within.flag("continuous_usage_stats"),
        priority=fields.whole("priority", -(2**31), 2**31 - 1) or 0,
    )


def _check_format(fields: _Fields) -> None:
    asked = fields.object("response_format")
    if asked is None:
        return
    kind = asked.get("type")
    if kind in ("json_object", "json_schema"):
        raise errors.unsupported("response_format", "The answers of an emulator mean nothing, and are no JSON.")
    if kind != "text":
        raise errors.wrong_value("response_format.type", kind, ("text",))


def _check_tool_choice(fields: _Fields) -> None:
    choice = fields.value("tool_choice")
    if choice is not None and choice not in ("none", "auto"):
        raise errors.unsupported("tool_choice", "The emulator calls no tools: expected 'none' or 'auto'.")


def _read_message(place: str, message: object) -> dict[str, str]:
    if not isinstance(message, dict):
        raise errors.wrong_type(place, "an object", message)
    role = message.get("role")
    if role is None:
        raise errors.missing(f"{place}.role")
    if role not in ROLES:
        raise errors.wrong_value(f"{place}.role", role, ROLES)
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise errors.wrong_type(f"{place}.name", "a string", name)
    text = _read_content(f"{place}.content", message.get("content"), optional=role == "assistant")
    # The calls of an assistant are in its context as well.
    calls = message.get("tool_calls")
    if calls:
        text += json.dumps(calls, sort_keys=True, ensure_ascii=False)
    return {"role": role, "content": text, "name": name or ""}


def _read_content(place: str, content: object, *, optional: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if optional:
            return ""
        raise errors.missing(place)
    if not isinstance(content, list):
        raise errors.wrong_type(place, "one of a string or array of objects", content)
    return "".join(_read_part(f"{place}[{index}]", part) for index, part in enumerate(content))


def _read_part(place: str, part: object) -> str:
    if not isinstance(part, dict):
        raise errors.wrong_type(place, "an object", part)
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise errors.wrong_value(f"{place}.type", kind, ("text", "refusal"))
    text = part.get(kind)
    if not isinstance(text, str):
        raise errors.wrong_type(f"{place}.{kind}", "a string", text)
    return text


def _read_texts(fields: _Fields, name: str, most: int) -> tuple[tuple[int, ...], ...]:
    """Texts or tokens: one of either, or an array of one kind."""
    value = fields.value(name)
    if value is None:
        raise errors.missing(name)
    if isinstance(value, str):
        return (_read_text(name, value),)
    if not isinstance(value, list):
        raise errors.wrong_type(name, "one of a string or array", value)
    if not value:
        raise errors.wrong_length(name, 0, low=1)
    if isinstance(value[0], int) and not isinstance(value[0], bool):
        return (_read_text(name, value),)
    if len(value) > most:
        raise errors.wrong_length(name, len(value), high=most)
    return tuple(_read_text(f"{name}[{index}]", one) for index, one in enumerate(value))


def _read_text(place: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        if not value:
            raise ApiError(400, f"Invalid '{place}': input cannot be an empty string.", param=place)
        return tuple(tokenize(value))
    if not isinstance(value, list):
        raise errors.wrong_type(place, "one of a string or array of integers", value)
    if not value:
        raise errors.wrong_length(place, 0, low=1)
    for index, one in enumerate(value):
        if type(one) is not int:
            raise errors.wrong_type(f"{place}[{index}]", "an integer", one)
        if one < 0:
            raise errors.out_of_range(f"{place}[{index}]", one, low=0)
        if one > HIGHEST_ID:
            raise errors.out_of_range(f"{place}[{index}]", one, high=HIGHEST_ID)
    return tuple(value)


def _read_stop(fields: _Fields, most: int) -> tuple[str, ...]:
    value = fields.value("stop")
    if value is None:
        return ()
    sequences = value if isinstance(value, list) else [value]
    if len(sequences) > most:
        raise errors.wrong_length("stop", len(sequences), high=most)
    for sequence in sequences:
        if not isinstance(sequence, str):
            raise errors.wrong_type("stop", "a string or array of strings", sequence)
        if not sequence:
            raise ApiError(400, "Invalid 'stop': expected strings of at least one character.", param="stop")
    return tuple(sequences)


class _Fields:
    """The parameters of a request, each read as what it must be; null is as if it were not there."""

    def __init__(self, body: Mapping[str, Any], known: set[str], place: str = "") -> None:
        self._body = body
        self._place = place
        for name in body:
            if name not in known and (place or not (name in _BOUNDED or name in _IGNORED)):
                raise errors.unknown_parameter(f"{place}{name}")
        if not place:
            for name, (low, high) in _BOUNDED.items():
                self._check_number(name, low, high)

    def value(self, name: str) -> Any:
        return self._body.get(name)

    def model(self) -> str:
        model = self.text("model")
        if model is None:
            raise ApiError(400, "you must provide a model parameter", param="model", code="missing_required_parameter")
        return model

    def text(self, name: str) -> str | None:
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise errors.wrong_type(f"{self._place}{name}", "a string", value)
        return value

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise errors.wrong_type(f"{self._place}{name}", "a boolean", value)
        return bool(value)

    def whole(self, name: str, low: int, high: int | None = None) -> int | None:
        value = self.value(name)
        if value is None:
            return None
        if type(value) is not int:
            raise errors.wrong_type(name, "an integer", value)
        if value < low:
            raise errors.out_of_range(name, value, low=low)
        if high is not None and value > high:
            raise errors.out_of_range(name, value, high=high)
        return value

    def choice(self, name: str, supported: tuple[str, ...]) -> str | None:
        value = self.value(name)
        if value is not None and value not in supported:
            raise errors.wrong_value(name, value, supported)
        return value  # type: ignore[no-any-return]

    def object(self, name: str) -> dict[str, Any] | None:
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            raise errors.wrong_type(name, "an object", value)
        return value

    def array(self, name: str, most: int, *, required: bool = True) -> list[Any]:
        value = self.value(name)
        if value is None:
            if required:
                raise errors.missing(name)
            return []
        if not isinstance(value, list):
            raise errors.wrong_type(name, "an array", value)
        if required and not value:
            raise errors.wrong_length(name, 0, low=1)
        if len(value) > most:
            raise errors.wrong_length(name, len(value), high=most)
        return value

    def _check_number(self, name: str, low: int, high: int) -> None:
        value = self.value(name)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise errors.wrong_type(name, "a number", value)
        # To OpenAI it is a decimal also where it is a whole number.
        if value < low:
            raise errors.out_of_range(name, value, low=low, number="decimal")
        if value > high:
            raise errors.out_of_range(name, value, high=high, number="decimal")
