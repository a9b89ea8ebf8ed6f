"""A small Ray Serve application: `python ray_application.py HTTP_PORT METRICS_PORT FOLDER`, with Ray's environment.

Two replicas answer like a model would, with words and their number. They fail when asked to, refuse what they have no
room for, and die of a request for no word at all. Ends with all of Ray's processes at SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import ray  # type: ignore[import-not-found]  # in an environment of its own
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

REPLICAS, ONGOING, QUEUED = 2, 4, 4
TOKEN_SECONDS = 0.02


class Answers:
    """Answers each request with as many words as it asks for."""

    async def __call__(self, request: Request) -> Response:
        """An answer, whole or streamed; raises where it is asked to."""
        try:
            asked = json.loads(await request.body())
        except ValueError:
            return JSONResponse({}, 400)
        if asked.get("model") != "tiny":
            return JSONResponse({}, 404)
        if not asked.get("prompt") and not asked.get("messages"):
            return JSONResponse({}, 422)
        if asked.get("temperature", 0) > 2:
            raise ValueError("asked to fail")
        tokens = asked["max_tokens"]
        if not tokens:
            os._exit(1)
        usage = {"prompt_tokens": 1, "completion_tokens": tokens}
        if asked.get("stream"):
            return StreamingResponse(_stream(tokens, usage), media_type="text/event-stream")
        await asyncio.sleep(tokens * TOKEN_SECONDS)
        return JSONResponse({"usage": usage})


async def _stream(tokens: int, usage: dict[str, int]) -> AsyncIterator[str]:
    for _ in range(tokens):
        await asyncio.sleep(TOKEN_SECONDS)
        yield _event({"choices": [{"text": "word "}]})
    yield _event({"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def main(http_port: int, metrics_port: int, folder: str) -> None:
    """Serve until SIGTERM."""
    ended = {signal.SIGTERM, signal.SIGINT}
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        _metrics_export_port=metrics_port,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": http_port})
    deploy = serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=ONGOING, max_queued_requests=QUEUED)
    serve.run(deploy(Answers).bind(), route_prefix="/")
    print("\nserving", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)
    signal.sigwait(ended)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
