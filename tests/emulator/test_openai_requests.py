"""Whatever a client sends is read or refused, with an error of OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.emulator.openai.errors import ApiError
from servescope.emulator.openai.requests import (
    ApiLimits,
    Embedding,
    Generation,
    parse_body,
    read_chat,
    read_completion,
    read_embedding,
)

LIMITS = ApiLimits(messages=4, prompts=3, inputs=3)
NAMES = (
    "model", "messages", "prompt", "input", "n", "max_tokens", "max_completion_tokens", "min_tokens", "stop", "seed",
    "stream", "stream_options", "temperature", "top_p", "logprobs", "top_logprobs", "response_format", "tools",
    "tool_choice", "echo", "suffix", "best_of", "dimensions", "encoding_format", "priority", "ignore_eos", "zebra",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "name", "tool_calls", "include_usage"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)
BODIES = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "messages": st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": JSON}), max_size=5) | JSON,
        "prompt": JSON,
        "input": JSON,
    },
)
READERS = (read_chat, read_completion, read_embedding)


def attempt(read: Callable[[], Any]) -> Any:
    """What is read, or the refusal."""
    try:
        return read()
    except ApiError as error:
        return error


@pytest.mark.slow
@given(BODIES, st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3), st.sampled_from(READERS))
def test_any_object_is_read_or_refused(body: dict[str, Any], more: dict[str, Any], read: Any) -> None:
    """No object breaks a reader; what is read is within the limits, what is refused names why."""
    sent = json.dumps({**body, **more}).encode()
    asked = attempt(lambda: read(parse_body(sent), LIMITS))
    if isinstance(asked, ApiError):
        assert asked.status == 400
        assert set(asked.body["error"]) == {"message", "type", "param", "code"}
        assert asked.body["error"]["message"]
        assert json.dumps(asked.body)
    elif isinstance(asked, Generation):
        assert 1 <= len(asked.prompts) <= LIMITS.prompts
        assert all(asked.prompts)
        assert 1 <= asked.choices <= LIMITS.choices
        assert asked.most_tokens is None or asked.most_tokens >= max(asked.fewest_tokens, 1)
    else:
        assert isinstance(asked, Embedding)
        assert 1 <= len(asked.inputs) <= LIMITS.inputs
        assert all(asked.inputs)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    """Bytes that are no JSON object are refused, never more."""
    read = attempt(lambda: parse_body(body))
    assert isinstance(read, dict) or read.status == 400


@pytest.mark.parametrize("read", READERS)
def test_model_is_needed(read: Any) -> None:
    """Without a model nothing is asked of anybody."""
    with pytest.raises(ApiError) as error:
        read({"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}, LIMITS)
    assert error.value.status == 400
