"""Text as tokens, blocks and answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.emulator.tokens import (
    HIGHEST_ID,
    chain_blocks,
    compose_answer,
    embed,
    tokenize,
    tokenize_conversation,
)


@given(st.text())
def test_any_text_has_tokens(text: str) -> None:
    """Every text is cut without a rest, none into more tokens than characters; the ids are in their range."""
    ids = tokenize(text)
    assert (len(ids) == 0) == (text == "")
    assert len(ids) <= len(text)
    assert all(0 <= one <= HIGHEST_ID for one in ids)


def test_english_has_about_four_characters_a_token() -> None:
    """A sentence of English has as many tokens as common tokenizers find, within a fifth."""
    text = "The quick brown fox jumps over the lazy dog, and nobody in the village remembers why it did so."
    assert 3.6 <= len(text) / len(tokenize(text)) <= 5.2


@pytest.mark.parametrize("key", ["a", "b", "c"])
@pytest.mark.parametrize("count", [1, 11, 12, 13, 250])
def test_answer_is_cut_into_the_tokens_it_was_made_of(key: str, count: int) -> None:
    """The text of an answer has exactly its tokens, so that it hits the cache when it comes back."""
    answer = compose_answer(key, natural=count, limit=count)
    assert len(answer.tokens) == count
    assert tokenize(answer.text) == list(answer.tokens)
    assert "".join(answer.text_of(index, index + 1) for index in range(count)) == answer.text


def test_answer_ends_at_its_limit_or_by_itself() -> None:
    """An answer that is cut says `length`, one that ends says `stop`."""
    cut, whole = compose_answer("a", natural=20, limit=5), compose_answer("a", natural=5, limit=5)
    assert (len(cut.tokens), cut.finish) == (5, "length")
    assert (len(whole.tokens), whole.finish) == (5, "stop")
    assert cut.text == whole.text


@given(st.data())
def test_answer_ends_before_what_stops_it(data: st.DataObject) -> None:
    """No stop sequence is in the text, not even when it is put together piece by piece; the tokens reach to its end."""
    full = compose_answer("key", natural=40, limit=40)
    begin = data.draw(st.integers(0, len(full.text) - 1))
    stop = full.text[begin : begin + data.draw(st.integers(1, 9))]
    answer = compose_answer("key", natural=40, limit=40, stop=["never there", stop])
    at = full.text.index(stop)
    assert answer.text == full.text[:at]
    assert answer.finish == "stop"
    assert "".join(answer.text_of(index, index + 1) for index in range(len(answer.tokens))) == answer.text
    assert full.tokens[: len(answer.tokens)] == answer.tokens


def test_nothing_stops_an_answer_before_its_fewest_tokens() -> None:
    """As in vLLM, whose `min_tokens` that is: a stop sequence counts where it begins behind them."""
    full = compose_answer("key", natural=40, limit=40)
    answer = compose_answer("key", natural=40, limit=40, fewest=13, stop=["."])
    assert answer.text == full.text[: full.text.index(".", full.text.index(".") + 1)]
    assert (len(answer.tokens), answer.finish) == (24, "stop")


def test_conversation_that_goes_on_begins_as_it_did() -> None:
    """With the answer and the next question behind it, a conversation begins with the tokens it had."""
    messages = [{"role": "system", "content": "You are kind. "}, {"role": "user", "content": " Hello"}]
    before = tokenize_conversation(messages)
    answer = compose_answer("k", natural=30, limit=30)
    after = tokenize_conversation(
        [*messages, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "Go on"}]
    )
    assert after[: len(before) + 30] == [*before, *answer.tokens]


def test_text_cannot_forge_a_message() -> None:
    """Two messages are not the one message that holds both texts."""
    two = tokenize_conversation([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert two != tokenize_conversation([{"role": "user", "content": "ab"}])
    assert two != tokenize_conversation([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}])


@given(st.lists(st.integers(0, HIGHEST_ID), max_size=40), st.integers(0, 39), st.integers(0, HIGHEST_ID))
def test_blocks_are_shared_up_to_the_first_difference(ids: list[int], place: int, other: int) -> None:
    """Two sequences have the ids of the full blocks before their first difference in common, and none behind it."""
    changed = [other if index == place else one for index, one in enumerate(ids)]
    first, second = chain_blocks(ids, 4), chain_blocks(changed, 4)
    assert len(first) == len(ids) // 4
    shared = len(ids) // 4 if changed == ids else min(place // 4, len(ids) // 4)
    assert [a == b for a, b in zip(first, second, strict=True)] == [index < shared for index in range(len(first))]


def test_embedding_is_a_direction() -> None:
    """The same tokens give the same vector of length 1, other tokens another one."""
    vector = embed([1, 2, 3], 64)
    assert vector == embed([1, 2, 3], 64)
    assert vector != embed([1, 2, 4], 64)
    assert sum(value * value for value in vector) == pytest.approx(1.0)
