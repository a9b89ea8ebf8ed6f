"""The emulator as the official client of OpenAI's API meets it."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from servescope.emulator.deployment.stack import MODEL, V1, V2, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.faults.faults import Faults, make_fault
from servescope.emulator.openai import api as openai_api
from servescope.emulator.openai.api import OpenAiSettings
from servescope.emulator.openai.requests import ApiLimits
from servescope.emulator.server import server
from servescope.emulator.server.server import RunningEmulator
from servescope.emulator.tokens import tokenize
from servescope.emulator.workload.plans import GeneratedTraffic
from tests.support.waiting import deadline_seconds, wait_for

if TYPE_CHECKING:
    import openai
    from openai import OpenAI

pytestmark = pytest.mark.slow

# How long a client waits that then hangs up, for an answer that takes minutes.
PATIENCE_SECONDS = 0.3
QUESTION: Any = [{"role": "user", "content": "What does the river say?"}]


def make_stack(**changes: Any) -> EmulatedStack:
    """A stack whose engines do not fail by themselves, and which serves nobody but the clients of the test."""
    engine = {"error_share": 0.0, "max_queue": 64, **changes}
    return EmulatedStack(
        quiet=True,
        v1=replace(V1, engine=replace(V1.engine, **engine)),
        v2=replace(V2, engine=replace(V2.engine, **engine)),
    )


def start(directory: Path, stack: EmulatedStack, settings: OpenAiSettings | None = None) -> RunningEmulator:
    """An emulator with the API."""

    def add(application: Any, emulator: RunningEmulator) -> None:
        openai_api.add_routes(application, emulator, settings or OpenAiSettings())

    return server.start(directory, stack=stack, warm_up_seconds=1.0, speed_up=5.0, add_routes=[add])


def serving(
    directory: Path, stack: EmulatedStack, settings: OpenAiSettings | None = None
) -> AbstractContextManager[RunningEmulator]:
    """An emulator with the API, until the end of the block."""
    return closing(start(directory, stack, settings))


def asking(url: str, key: str = "none") -> OpenAI:
    """The official client, which tries nothing twice."""
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """The client is imported where these tests run alone: every worker collects them, and that takes a second."""
    global openai
    import openai


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEmulator]:
    """An emulator with the API, five times as fast as the wall clock."""
    with serving(tmp_path_factory.mktemp("openai"), make_stack()) as running:
        yield running


@pytest.fixture
def client(emulator: RunningEmulator) -> Iterator[OpenAI]:
    """The official client, of v2 alone."""
    with asking(f"{emulator.url}/chat-v2/v1") as made:
        yield made


def chat(client: OpenAI, **changes: Any) -> Any:
    """A chat completion of the question."""
    return client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "max_tokens": 24, **changes})


def scrape(emulator: RunningEmulator, deployment: str = "chat-v2") -> dict[str, float]:
    """The sum of each series over all targets of a deployment, labels but the outcome left out."""
    sums: dict[str, float] = {}
    with urlopen(emulator.url, timeout=deadline_seconds()) as answer:
        urls = [url for url in answer.read().decode().split() if f"/{deployment}/" in url]
    for url in urls:
        with urlopen(url, timeout=deadline_seconds()) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line and line[0] != "#"]
        for line in lines:
            series, value = line.rsplit(" ", 1)
            name = series.partition("{")[0]
            if 'outcome="' in series:
                name += "/" + series.partition('outcome="')[2].partition('"')[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def gained(emulator: RunningEmulator, before: dict[str, float], name: str) -> float:
    """How much a series of v2 has gained."""
    return scrape(emulator).get(name, 0.0) - before.get(name, 0.0)


def test_models_are_listed(client: OpenAI) -> None:
    """The model is listed, and can be asked for; one that is not there is not found."""
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-9")
    assert error.value.code == "model_not_found"
    assert MODEL in error.value.message


def test_chat_is_answered(client: OpenAI, emulator: RunningEmulator) -> None:
    """An answer has as many tokens as asked for and says so; the engine counted what the client did."""
    before = scrape(emulator)
    answer = chat(client)
    assert answer.object == "chat.completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant"
    assert len(tokenize(answer.choices[0].message.content)) == answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert gained(emulator, before, "requests_total/ok") == gained(emulator, before, "answers_truncated_total") == 1
    assert gained(emulator, before, "input_tokens_total") == answer.usage.prompt_tokens
    assert gained(emulator, before, "output_tokens_total") == 24


def test_same_question_gets_the_same_answer(client: OpenAI) -> None:
    """The answer follows from the question and the seed; choices differ from each other."""
    first, second = chat(client, n=2), chat(client, n=2)
    assert first.choices == second.choices
    assert first.choices[0].message.content != first.choices[1].message.content
    assert first.choices != chat(client, n=2, seed=7).choices
    assert first.usage.completion_tokens == 48


def test_answer_ends_by_itself(client: OpenAI, emulator: RunningEmulator) -> None:
    """Without a limit an answer ends as models end, of its own; with `ignore_eos` it goes on to the limit."""
    before = scrape(emulator)
    answer = chat(client, max_tokens=None)
    assert gained(emulator, before, "answers_truncated_total") == 0
    assert answer.choices[0].finish_reason == "stop"
    assert 20 < answer.usage.completion_tokens < 1000
    more = chat(client, max_tokens=1100, extra_body={"ignore_eos": True})
    assert (more.choices[0].finish_reason, more.usage.completion_tokens) == ("length", 1100)


def test_stop_ends_an_answer_before_it(client: OpenAI) -> None:
    """The text ends before the stop sequence, streamed or not, and no more is generated than up to its end."""
    full = chat(client, max_tokens=40)
    text = full.choices[0].message.content
    stop = text[60:67]
    cut = chat(client, max_tokens=40, stop=["no such thing", stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens < 40
    streamed = chat(client, max_tokens=40, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == cut.choices[0].message.content


def test_stream_comes_piece_by_piece(client: OpenAI, emulator: RunningEmulator) -> None:
    """Chunks come while the engine generates, put together they are the answer, and the usage ends them."""
    whole = chat(client, max_tokens=60)
    chunks = list(chat(client, max_tokens=60, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 60)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    with chat(client, max_tokens=7000, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        assert scrape(emulator)["concurrent_requests"] == 1
    wait_for(lambda: scrape(emulator)["concurrent_requests"] == 0, "the end of the stream")


def test_stream_of_several_choices(client: OpenAI) -> None:
    """Each choice is streamed in order, whatever the others do."""
    whole = chat(client, n=3)
    texts = ["", "", ""]
    for chunk in chat(client, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_completions_take_texts_and_tokens(client: OpenAI) -> None:
    """A batch of prompts has an answer each; tokens are a prompt as their text is."""
    prompt = "Once upon a time there was"
    answer = client.completions.create(model=MODEL, prompt=[prompt, "And then"], max_tokens=5)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    tokens = client.completions.create(model=MODEL, prompt=tokenize(prompt), max_tokens=5)
    assert tokens.choices[0].text == answer.choices[0].text
    streamed = client.completions.create(model=MODEL, prompt=prompt, max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text
    short = client.completions.create(model=MODEL, prompt=prompt)
    assert short.usage is not None
    assert short.usage.completion_tokens == 16


def test_shared_prefix_is_found_in_the_cache(client: OpenAI, emulator: RunningEmulator) -> None:
    """A conversation that goes on finds all its full blocks, its answer included; another prompt finds none."""
    before = scrape(emulator)
    system = {"role": "system", "content": "Be brief, kind and exact. " * 100}
    first = chat(client, messages=[system, *QUESTION], max_tokens=64)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    answered = {"role": "assistant", "content": first.choices[0].message.content}
    second = chat(client, messages=[system, *QUESTION, answered, {"role": "user", "content": "Go on, please. " * 8}])
    known = first.usage.prompt_tokens + 63
    assert second.usage.prompt_tokens_details.cached_tokens == known // 32 * 32
    other = chat(client, messages=[{"role": "system", "content": "Be long. " * 100}, *QUESTION])
    assert other.usage.prompt_tokens_details.cached_tokens == 0
    assert gained(emulator, before, "kv_cache_reused_tokens_total") == known // 32 * 32


def test_embeddings(client: OpenAI, emulator: RunningEmulator) -> None:
    """Each text has a vector, the same one in either encoding, of as many dimensions as asked for."""
    before = scrape(emulator)
    answer = client.embeddings.create(model=MODEL, input=["one text", "another"], dimensions=8)
    assert [len(each.embedding) for each in answer.data] == [8, 8]
    assert answer.data[0].embedding != answer.data[1].embedding
    assert answer.usage.prompt_tokens == 4
    plain = client.embeddings.create(model=MODEL, input="one text", dimensions=8, encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(answer.data[0].embedding, rel=1e-6)
    packed = client.embeddings.with_raw_response.create(
        model=MODEL, input=tokenize("one text"), dimensions=8, encoding_format="base64"
    )
    text = json.loads(packed.text)["data"][0]["embedding"]
    assert struct.unpack("<8f", base64.b64decode(text)) == pytest.approx(plain.data[0].embedding, rel=1e-6)
    assert len(client.embeddings.create(model=MODEL, input="x").data[0].embedding) == 1024
    assert gained(emulator, before, "requests_total/ok") == 5


def test_client_that_hangs_up_is_an_abort(
    client: OpenAI, emulator: RunningEmulator, caplog: pytest.LogCaptureFixture
) -> None:
    """Leaving a stream, or an answer that is waited for, frees the engine; both are aborts, and nobody's mistake."""
    before = scrape(emulator)
    endless: dict[str, Any] = {"max_tokens": 7000, "extra_body": {"ignore_eos": True}}
    with chat(client, stream=True, **endless) as stream:
        next(iter(stream))
    with pytest.raises(openai.APITimeoutError):
        chat(client, timeout=PATIENCE_SECONDS, **endless)
    wait_for(lambda: gained(emulator, before, "requests_total/client_abort") == 2, "both aborts")
    assert gained(emulator, before, "requests_total/ok") == 0
    assert scrape(emulator)["concurrent_requests"] == 0
    assert caplog.records == []


async def test_async_clients_share_a_batch(emulator: RunningEmulator) -> None:
    """Many at once are all answered, and those who cancel do not hold up the others."""
    async with openai.AsyncOpenAI(base_url=f"{emulator.url}/chat-v1/v1", api_key="none", max_retries=0) as client:
        begun = asyncio.Event()

        async def count(tokens: int) -> int:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=QUESTION,
                max_tokens=tokens,
                stream=True,
                stream_options={"include_usage": True},
            )
            if tokens == 4000:
                begun.set()
            return sum([chunk.usage.completion_tokens async for chunk in stream if chunk.usage])

        asking = [asyncio.create_task(count(tokens)) for tokens in range(5, 25)]
        leaving = asyncio.create_task(count(4000))
        await begun.wait()
        leaving.cancel()
        counts = await asyncio.gather(*asking)
        vectors = await client.embeddings.create(model=MODEL, input="one")
        assert (counts, len(vectors.data)) == (list(range(5, 25)), 1)
    wait_for(lambda: scrape(emulator, "chat-v1")["concurrent_requests"] == 0, "the end of the cancelled request")


def test_traffic_is_split_by_share(emulator: RunningEmulator) -> None:
    """Without a deployment in the path, requests are spread over those that have the model."""
    with asking(f"{emulator.url}/v1") as client:
        raw = [
            client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=1)
            for _ in range(24)
        ]
    served = [answer.headers["x-servescope-deployment"] for answer in raw]
    assert {"chat-v1", "chat-v2"} == set(served)
    assert 4 <= served.count("chat-v1") <= 20


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"temperature": 3}, "decimal_above_max_value", "temperature"),
        ({"top_p": -0.5}, "decimal_below_min_value", "top_p"),
        ({"n": 99}, "integer_above_max_value", "n"),
        ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"max_tokens": "many"}, "invalid_type", "max_tokens"),
        ({"messages": []}, "empty_array", "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid_value",
         "messages[0].content[0].type"),
        ({"stop": ["a"] * 5}, "array_above_max_length", "stop"),
        ({"logprobs": True}, "unsupported_parameter", "logprobs"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
        ({"tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
        ({"stream_options": {"include_usage": True}}, None, "stream_options"),
        ({"extra_body": {"temprature": 1}}, "unknown_parameter", "temprature"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(client: OpenAI, changes: dict[str, Any], code: str | None, param: str) -> None:
    """What is wrong is refused with its name and OpenAI's code for it."""
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, **changes)
    assert (error.value.code, error.value.param, error.value.type) == (code, param, "invalid_request_error")


def test_harmless_parameters_are_taken(client: OpenAI) -> None:
    """What clients send and an emulator cannot heed is no error."""
    answer = chat(client, temperature=0.5, top_p=1, user="me", tools=[], logprobs=False, presence_penalty=0.1,
                  response_format={"type": "text"},
                  extra_body={"top_k": 5, "min_tokens": 3, "bad_words": ["a"]})  # fmt: skip
    assert answer.usage.completion_tokens == 24


def test_too_long_a_context(client: OpenAI, emulator: RunningEmulator) -> None:
    """A prompt, or an answer, that does not fit is refused with the numbers, and counted as the client's error."""
    before = scrape(emulator)
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, messages=[{"role": "user", "content": "far too long " * 5000}])
    assert error.value.code == "context_length_exceeded"
    assert "8192 tokens" in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, max_tokens=9000, stream=True)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt=["it fits", "far too long " * 5000])
    wait_for(lambda: gained(emulator, before, "requests_total/client_error") == 3, "the requests to be counted")
    assert gained(emulator, before, "requests_started_total") == 3


def test_tokens_are_those_that_a_completion_counts(client: OpenAI, emulator: RunningEmulator) -> None:
    """As vLLM answers it to routers: of a text and of a conversation, whose answer then counts as many."""

    def tokenized(**body: Any) -> dict[str, Any]:
        request = Request(f"{emulator.url}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=deadline_seconds()) as response:
            found: dict[str, Any] = json.load(response)
        return found

    text = tokenized(model=MODEL, prompt="What does the river say?")
    assert text["tokens"] == tokenize("What does the river say?")
    assert (text["count"], text["max_model_len"]) == (len(text["tokens"]), V2.engine.max_seq_len)
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2)
    assert answer.usage is not None
    assert tokenized(messages=QUESTION)["count"] == answer.usage.prompt_tokens
    for wrong, status in (({"model": MODEL}, 400), ({"model": "none", "prompt": "a"}, 404)):
        with pytest.raises(HTTPError) as refused:
            tokenized(**wrong)
        with refused.value:
            assert refused.value.code == status


def test_what_routers_add_is_ignored(client: OpenAI) -> None:
    """SGLang's and vLLM's routers send these with each request; refusals would open their circuit breakers."""
    added = {"no_stop_trim": False, "return_hidden_states": False, "separate_reasoning": True, "stream_reasoning": True}
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2, extra_body=added)
    assert answer.choices[0].finish_reason == "length"


def test_unknown_model_and_path(client: OpenAI, emulator: RunningEmulator) -> None:
    """Another model is not found, and neither is another path or deployment."""
    with pytest.raises(openai.NotFoundError) as error:
        chat(client, model="gpt-9")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    for path in ("/v1/moderations", "/chat-v9/v1/models", "/chat-v2/v1/"):
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{emulator.url}{path}", timeout=deadline_seconds())
        assert refused.value.code == 404
        assert json.load(refused.value)["error"]["code"] == "unknown_url"
        refused.value.close()
    with pytest.raises(openai.NotFoundError) as error:
        chat(client.with_options(base_url=emulator.url))
    assert error.value.code == "unknown_url"


def post(emulator: RunningEmulator, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Status and error of a chat completion with this body."""
    url = f"{emulator.url}/v1/chat/completions"
    try:
        with urlopen(Request(url, body, headers or {}), timeout=deadline_seconds()) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"{'a': 1}", b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b"1" * 5000, b"null"],
)  # fmt: skip
def test_body_that_is_no_object(emulator: RunningEmulator, body: bytes) -> None:
    """What is no JSON object is refused as OpenAI refuses it."""
    status, error = post(emulator, body)
    assert status == 400
    assert error["message"].startswith("We could not parse the JSON body of your request.")
    assert error["type"] == "invalid_request_error"


def test_body_that_is_not_encoded_as_it_says(emulator: RunningEmulator, caplog: pytest.LogCaptureFixture) -> None:
    """It is the client's mistake, not ours: 400, and nothing in the log."""
    status, error = post(emulator, b"no gzip", {"Content-Encoding": "gzip"})
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert "it did not come whole, or is not encoded as it says" in error["message"]
    assert caplog.records == []


def test_any_text_is_taken(emulator: RunningEmulator) -> None:
    """Signs of any script, and halves of them, are a prompt."""
    messages = [{"role": "user", "content": "\u6c34 \ud800 \x00 \U0001f701 na\u00efve \ufdfa"}]
    status, answer = post(emulator, json.dumps({"model": MODEL, "messages": messages, "max_tokens": 3}).encode())
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)


def test_limits_and_key(tmp_path: Path) -> None:
    """Too large a body, too many messages or requests at once, and whoever has no key, are refused."""
    limits = ApiLimits(body_bytes=5000, messages=3, concurrent_requests=1)
    with serving(tmp_path, make_stack(), OpenAiSettings(api_key="s3cret", limits=limits)) as running:
        base = f"{running.url}/v1"
        assert post(running, b"{}")[0] == 401
        assert post(running, b"{}", {"Authorization": "Bearer "})[0] == 401
        with asking(base, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as wrong:
                client.models.list()
            assert wrong.value.code == "invalid_api_key"
            assert "wrong" not in wrong.value.message
        with asking(base, "s3cret") as client:
            assert chat(client).usage.completion_tokens == 24
            with pytest.raises(openai.APIStatusError) as large:
                chat(client, messages=[{"role": "user", "content": "x" * 6000}])
            assert large.value.status_code == 413
            with pytest.raises(openai.BadRequestError) as many:
                chat(client, messages=QUESTION * 4)
            assert many.value.code == "array_above_max_length"
            with chat(client, stream=True, max_tokens=5000, extra_body={"ignore_eos": True}):
                with pytest.raises(openai.RateLimitError) as limited:
                    chat(client)
                assert limited.value.code == "rate_limit_exceeded"


def test_full_queue_is_a_429(tmp_path: Path) -> None:
    """A request that the engines of v1 reject is answered with Retry-After, and counted as rejected."""
    with (
        serving(tmp_path, make_stack(max_batch_size=1, max_queue=0)) as running,
        asking(f"{running.url}/chat-v1/v1") as client,
    ):
        with pytest.raises(openai.RateLimitError) as error:
            chat(client, n=12)
        assert (error.value.code, error.value.type) == ("rate_limit_exceeded", "requests")
        assert error.value.response.headers["retry-after"] == "1"
        wait_for(lambda: scrape(running, "chat-v1")["concurrent_requests"] == 0, "the requests to be counted")
        sums = scrape(running, "chat-v1")
        assert sums["requests_total/rejected"] >= 1
        assert sums["requests_started_total"] == 12


def test_failure_of_the_engine_is_a_500(tmp_path: Path) -> None:
    """A request that fails before its first token is a 500, one that fails later ends its stream with the error."""
    with serving(tmp_path, make_stack(error_share=1.0)) as running, asking(f"{running.url}/chat-v2/v1") as client:
        with pytest.raises(openai.InternalServerError) as error:
            chat(client, max_tokens=50)
        assert error.value.type == "server_error"
        with pytest.raises(openai.APIError, match="The server had an error"):
            for _ in chat(client, max_tokens=400, stream=True, extra_body={"ignore_eos": True}):
                pass


def test_answers_that_end_early_are_shown_as_they_are(tmp_path: Path) -> None:
    """Text, tokens and reason are those of what was generated, in one piece and streamed."""
    stack = make_stack()
    running = start(tmp_path, stack)
    try:
        with openai.OpenAI(base_url=f"{running.url}/chat-v2/v1", api_key="x", max_retries=0) as client:
            whole = chat(client, max_tokens=40, seed=1)
            fault = make_fault("answers-short", 0.25)
            running.runner.call(lambda: Faults(stack).switch_on(fault)).result(deadline_seconds())
            short = chat(client, max_tokens=40, seed=1)
            pieces = [chunk.choices[0] for chunk in chat(client, max_tokens=40, seed=1, stream=True)]
            fault = make_fault("answers-truncated", 1.0)
            running.runner.call(lambda: Faults(stack, [fault])).result(deadline_seconds())
            cut = chat(client, max_tokens=None, seed=1)
    finally:
        running.close()
    text = short.choices[0].message.content
    assert (whole.usage.completion_tokens, short.usage.completion_tokens) == (40, 10)
    assert (whole.choices[0].finish_reason, short.choices[0].finish_reason) == ("length", "stop")
    assert whole.choices[0].message.content.startswith(text)
    assert text == "".join(piece.delta.content or "" for piece in pieces)
    assert pieces[-1].finish_reason == "stop"
    assert cut.choices[0].finish_reason == "length"


def test_emulation_that_breaks_fails_those_who_wait(tmp_path: Path) -> None:
    """When the emulation breaks down, nobody waits for ever."""
    stack = make_stack()
    with serving(tmp_path, stack) as running:
        stack.clock.schedule(5.0, lambda: 1 / 0)
        with asking(f"{running.url}/v1") as client:
            for _ in range(2):
                with pytest.raises(openai.InternalServerError):
                    chat(client, max_tokens=7000, extra_body={"ignore_eos": True})


def test_end_of_the_server_ends_its_streams(tmp_path: Path) -> None:
    """A server that ends while it answers ends those answers with an error, and does not wait for them."""
    with serving(tmp_path, make_stack()) as running, asking(f"{running.url}/v1") as client:
        stream = chat(client, max_tokens=7000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        running.close()
        with pytest.raises(Exception, match=r"server had an error|peer closed|incomplete"):
            for _ in stream:
                pass


def test_disaggregated_deployment_answers_alike(tmp_path: Path) -> None:
    """An answer that is begun by one worker and ended by another is one answer, counted once."""
    stack = EmulatedStack.of([(V2_DISAGGREGATED, 1.0)], traffic=GeneratedTraffic(), quiet=True)
    with serving(tmp_path, stack) as running:
        deployment = V2_DISAGGREGATED.identity.deployment_id
        with asking(f"{running.url}/v1") as client:
            whole = chat(client, max_tokens=40)
            streamed = chat(client, max_tokens=40, stream=True)
            assert "".join(each.choices[0].delta.content or "" for each in streamed) == whole.choices[0].message.content
        wait_for(lambda: scrape(running, deployment).get("requests_total/ok") == 2, "the requests to be counted")
        sums = scrape(running, deployment)
        assert sums["input_tokens_total"] == 2 * whole.usage.prompt_tokens
        assert sums["output_tokens_total"] == 80
