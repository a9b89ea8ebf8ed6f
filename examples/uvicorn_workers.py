"""Several uvicorn workers with one page for all: `python -m examples.uvicorn_workers`, then scrape /metrics.

    curl http://127.0.0.1:8000/complete?prompt=three+words+long
    curl http://127.0.0.1:8000/metrics

Each worker calls `make_app`, records into instruments of its own and joins the group of its server. Whichever worker
responds to a scrape, the page shows the sums over all of them, those that have died included.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from servescope import EngineInstruments, Identity
from servescope.exposition.web import make_asgi_app
from servescope.instruments.processes import ProcessGroup

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

IDENTITY = Identity("tiny-1b", "example", "examples", replica="engine-0")


def make_app() -> App:
    """The app of one worker; uvicorn calls this once in each."""
    engine = EngineInstruments(IDENTITY)
    # All workers of one server have the same parent, and no other server has it.
    metrics = make_asgi_app(ProcessGroup(f"uvicorn-{os.getppid()}", engine), cache_seconds=0)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/complete":
            await complete(engine, scope, send)
        else:
            await metrics(scope, receive, send)

    return app


async def complete(engine: EngineInstruments, scope: Message, send: Send) -> None:
    """Generate a token for each word of the prompt; the response is the id of the process that did it."""
    prompt = parse_qs(scope["query_string"].decode()).get("prompt", [""])[0].split()
    request = engine.start_request(input_tokens=len(prompt))
    for _ in prompt:
        request.tokens(1)
    request.finish("ok")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})


def main() -> None:
    """Serve on port 8000 until Ctrl-C; raises SystemExit where uvicorn is not installed."""
    try:
        import uvicorn
    except ImportError:
        raise SystemExit("this example needs uvicorn: pip install uvicorn") from None
    uvicorn.run("examples.uvicorn_workers:make_app", factory=True, workers=2, port=8000)


if __name__ == "__main__":
    main()
