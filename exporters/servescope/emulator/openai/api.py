"""The emulated stack as clients of OpenAI's API meet it; what they send is routed, cached and batched as all else is.

A request goes to one of the deployments that serve its model, by the traffic split, or to the one that its
path begins with: `/chat-v2/v1/chat/completions`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

from servescope.emulator.block_contents import BlockContents
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.openai import answers, errors, requests
from servescope.emulator.openai.answers import ChatShape, CompletionShape, Shape
from servescope.emulator.openai.errors import ApiError
from servescope.emulator.openai.flights import Choice, ChoiceProgress, ChoicesInFlight, plan_choices, plan_inputs
from servescope.emulator.server.server import RunningEmulator
from servescope.emulator.tokens import embed

_logger = logging.getLogger(__name__)

_BODY_SECONDS = 30.0
_DEPLOYMENT_HEADER = "X-Servescope-Deployment"

_Read = Callable[[Mapping[str, Any], requests.ApiLimits], requests.Generation]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class OpenAiSettings:
    """How the API is served.

    `api_key` is what clients must send, None for nothing. The same seed gives the same answers. `contents` records
    which tokens the blocks of the requests hold.
    """

    api_key: str | None = None
    seed: int = 1
    limits: requests.ApiLimits = field(default_factory=requests.ApiLimits)
    contents: BlockContents | None = None


def add_routes(application: web.Application, emulator: RunningEmulator, settings: OpenAiSettings) -> None:
    """Let the emulator's server answer OpenAI's API, for all deployments at `/v1/…`, for one at `/DEPLOYMENT/v1/…`."""
    api = _Api(emulator, settings)
    application.router.add_get("/health", api.health)
    for prefix in ("", "/{deployment}"):
        for path, handler in (
            ("chat/completions", api.chat),
            ("completions", api.completion),
            ("embeddings", api.embeddings),
        ):
            application.router.add_post(f"{prefix}/v1/{path}", api.answering(handler))
        application.router.add_get(f"{prefix}/v1/models", api.answering(api.models))
        application.router.add_get(f"{prefix}/v1/models/{{model:.+}}", api.answering(api.model))
        application.router.add_route("*", f"{prefix}/v1/{{rest:.*}}", api.answering(api.nothing))
        application.router.add_post(f"{prefix}/tokenize", api.answering(api.tokenize))
    # Clients whose base URL lacks the /v1 are to read why, in the shape that they know.
    application.router.add_post("/{rest:.*}", api.answering(api.nothing))


class _Api:
    def __init__(self, emulator: RunningEmulator, settings: OpenAiSettings) -> None:
        self._emulator = emulator
        self._settings = settings
        self._limits = settings.limits
        self._random = random.Random(f"api-{settings.seed}")
        self._numbers = count(1)
        self._answering = 0

    # --- what every request goes through ------------------------------------------------------------------------------

    def answering(self, handler: _Handler) -> _Handler:
        """The handler behind authorization; its errors are answered in OpenAI's shape."""

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                self._authorize(request)
                return await handler(request)
            except ApiError as error:
                headers = {"Retry-After": "1"} if error.status == 429 else {}
                return web.json_response(error.body, status=error.status, headers=headers)
            except web.HTTPInternalServerError:
                return web.json_response(errors.failed().body, status=500)
            except (ConnectionError, web.HTTPException):
                raise
            except Exception:
                # Our own mistake: the client is to get an error of the shape it knows, and we to read of it.
                _logger.exception("%s %s failed", request.method, request.path)
                return web.json_response(errors.failed().body, status=500)

        return answer

    def _authorize(self, request: web.Request) -> None:
        key = self._settings.api_key
        if key is None:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise errors.unauthorized(None)
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode()):
            raise errors.unauthorized(given)

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[None]:
        """A place among the requests that are answered at once."""
        if self._answering >= self._limits.concurrent_requests:
            raise errors.refused(f"At most {self._limits.concurrent_requests} requests are answered at once.")
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1

    async def _read(self, request: web.Request) -> bytes:
        limit = self._limits.body_bytes
        if request.content_length is not None and request.content_length > limit:
            raise errors.too_large(limit)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for piece in request.content.iter_any():
                    body += piece
                    if len(body) > limit:
                        raise errors.too_large(limit)
        except TimeoutError:
            raise ApiError(408, f"The request body did not come within {_BODY_SECONDS:g} s.") from None
        except web.RequestPayloadError as error:
            raise errors.bad_body("it did not come whole, or is not encoded as it says") from error
        except (web.HTTPException, ValueError) as error:
            raise errors.bad_body(str(error)) from error
        return bytes(body)

    def _choose(self, request: web.Request, model: str) -> EmulatedDeployment:
        """The deployment that serves a request. Raises ApiError when none has the model."""
        serving = self._deployments(request)
        able = [one for one in serving if one.plan.identity.model_name == model]
        if not able:
            raise errors.unknown_model(model, tuple(dict.fromkeys(one.plan.identity.model_name for one in serving)))
        split = self._emulator.stack.traffic.split.shares
        weights = [split[one.plan.identity.deployment_id] for one in able]
        # Deployments without a share of the traffic serve a model that no other has.
        return self._random.choices(able, weights if sum(weights) > 0 else None)[0]

    def _deployments(self, request: web.Request) -> list[EmulatedDeployment]:
        name = request.match_info.get("deployment")
        every = self._emulator.stack.deployments
        found = [one for one in every if name in (None, one.plan.identity.deployment_id)]
        if not found:
            raise errors.unknown_url(request.method, request.path)
        return found

    # --- what there is ------------------------------------------------------------------------------------------------

    async def health(self, _: web.Request) -> web.StreamResponse:
        await self._emulator.call(lambda: None)
        return web.Response()

    async def models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": list(self._models(request).values())})

    async def model(self, request: web.Request) -> web.StreamResponse:
        models, name = self._models(request), request.match_info["model"]
        if name not in models:
            raise errors.unknown_model(name, tuple(models))
        return web.json_response(models[name])

    def _models(self, request: web.Request) -> dict[str, dict[str, Any]]:
        longest: dict[str, int] = {}
        for deployment in self._deployments(request):
            name, tokens = deployment.plan.identity.model_name, deployment.plan.engine.max_seq_len
            longest[name] = min(tokens, longest.get(name, tokens))
        return {name: answers.describe_model(name, tokens) for name, tokens in longest.items()}

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """As vLLM answers it, whom routers that predict cache hits ask for the tokens of a prompt."""
        async with self._taken():
            body = await self._read(request)
            model, tokens = await asyncio.to_thread(
                lambda: requests.read_tokens(requests.parse_body(body), self._limits)
            )
            models = self._models(request)
            if model is not None and model not in models:
                raise errors.unknown_model(model, tuple(models))
            longest = models[model or next(iter(models))]["max_model_len"]
            return web.json_response({"count": len(tokens), "max_model_len": longest, "tokens": list(tokens)})

    async def nothing(self, request: web.Request) -> web.StreamResponse:
        raise errors.unknown_url(request.method, request.path)

    # --- generating ---------------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, requests.read_chat, ChatShape)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, requests.read_completion, CompletionShape)

    async def _generate(
        self, request: web.Request, read: _Read, make_shape: Callable[[int, str], Shape]
    ) -> web.StreamResponse:
        async with self._taken():
            body = await self._read(request)
            # Long prompts take a while to read, and others wait for their tokens meanwhile.
            generation = await asyncio.to_thread(lambda: read(requests.parse_body(body), self._limits))
            deployment = self._choose(request, generation.model)
            settings = self._settings
            choices = await asyncio.to_thread(
                plan_choices, generation, deployment, seed=settings.seed, contents=settings.contents
            )
            shape = make_shape(next(self._numbers), generation.model)
            follow = generation.stream
            async with ChoicesInFlight(
                self._emulator, deployment, choices, source=shape.source, follow=follow
            ) as flight:
                if generation.stream:
                    return await self._stream(request, flight, shape, generation)
                while not flight.ended:
                    await flight.follow()
                generated = sum(choice.output_tokens for choice in flight.choices)
                usage = answers.count_usage(flight.choices, flight.cached_tokens, generated)
                return web.json_response(shape.whole(flight.choices, usage), headers=_headers(deployment))

    async def _stream(
        self, request: web.Request, flight: ChoicesInFlight, shape: Shape, generation: requests.Generation
    ) -> web.StreamResponse:
        # Until something is generated, an error is reported by the status.
        first = await flight.follow()
        response = web.StreamResponse(headers={"Cache-Control": "no-cache", **_headers(flight.deployment)})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        stream = _Stream(response, flight, shape, generation)
        # A client that hangs up during a write is handled as one that hangs up between writes.
        with suppress(ConnectionError):
            try:
                await stream.run(first)
            except ApiError as error:
                await response.write(answers.event(error.body))
        return response

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        async with self._taken():
            body = await self._read(request)
            embedding = await asyncio.to_thread(
                lambda: requests.read_embedding(requests.parse_body(body), self._limits)
            )
            deployment = self._choose(request, embedding.model)
            choices = await asyncio.to_thread(plan_inputs, embedding, deployment, contents=self._settings.contents)
            async with ChoicesInFlight(self._emulator, deployment, choices, source="input") as flight:
                while not flight.ended:
                    await flight.follow()
            vectors = await asyncio.to_thread(_embed_all, choices, embedding.dimensions)
            tokens = sum(len(choice.ids) for choice in choices)
            answer = answers.describe_embeddings(vectors, model=embedding.model, tokens=tokens, packed=embedding.base64)
            return web.json_response(answer, headers=_headers(deployment))


class _Stream:
    def __init__(
        self, response: web.StreamResponse, flight: ChoicesInFlight, shape: Shape, generation: requests.Generation
    ) -> None:
        self._response = response
        self._flight = flight
        self._shape = shape
        self._includes_usage = generation.include_usage
        self._usage_in_each = generation.continuous_usage
        self._generated = [0] * len(flight.choices)

    async def run(self, progress: ChoiceProgress) -> None:
        for chunk in self._shape.begin(len(self._flight.choices)):
            await self._write(chunk)
        while True:
            await self._send(progress)
            if self._flight.ended:
                break
            progress = await self._flight.follow()
        if self._includes_usage:
            await self._response.write(answers.event(self._shape.usage(self._usage())))
        await self._response.write(answers.DONE)

    async def _send(self, progress: ChoiceProgress) -> None:
        index = progress.choice
        choice: Choice = self._flight.choices[index]
        if progress.outcome is not None:
            await self._write(self._shape.end(index, choice))
        elif choice.answer is not None:
            before = self._generated[index]
            self._generated[index] += progress.tokens
            text = choice.answer.text_of(before, self._generated[index])
            if text:
                await self._write(self._shape.piece(index, text))

    async def _write(self, chunk: dict[str, Any]) -> None:
        if self._usage_in_each:
            chunk["usage"] = self._usage()
        elif self._includes_usage:
            chunk["usage"] = None
        await self._response.write(answers.event(chunk))

    def _usage(self) -> dict[str, Any]:
        return answers.count_usage(self._flight.choices, self._flight.cached_tokens, sum(self._generated))


def _embed_all(choices: list[Choice], dimensions: int) -> list[list[float]]:
    return [embed(choice.ids, dimensions) for choice in choices]


def _headers(deployment: EmulatedDeployment) -> dict[str, str]:
    return {_DEPLOYMENT_HEADER: deployment.plan.identity.deployment_id}
