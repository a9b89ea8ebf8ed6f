"""The page over HTTP: server, ASGI app and WSGI app give the same, and only what was asked for."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from wsgiref.validate import validator

import pytest
import uvicorn
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from starlette.applications import Starlette
from starlette.routing import Mount

from servescope.contract.identity import Identity
from servescope.errors import UsageError
from servescope.exposition.rendering import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE, render, render_openmetrics
from servescope.exposition.serving import MetricsServer, serve
from servescope.exposition.web import AsgiApp, WsgiApp, make_asgi_app, make_wsgi_app
from servescope.instruments.engine import EngineInstruments
from tests.support.waiting import deadline_seconds, wait_for, wait_for_async

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


Ask = Callable[..., Answer]
"""`ask(path, method, **headers)` of one of the three ways."""


@pytest.fixture
def engine() -> EngineInstruments:
    engine = EngineInstruments(Identity("llama-70b", "chat-v2", "v2", replica="engine-0"))
    engine.record_request(
        outcome="ok", input_tokens=100, output_tokens=11, time_to_first_token=0.5, duration=2.5, decode_seconds=2.0
    )
    return engine


def ask_server(server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str) -> Answer:
    url = server.url.removesuffix("/metrics") + path
    try:
        answer = urlopen(Request(url, method=method, headers=_names(headers)), timeout=deadline_seconds())
    except HTTPError as error:
        answer = error
    with answer:
        return Answer(answer.status, dict(answer.headers), answer.read())


def ask_asgi(app: AsgiApp, path: str = "/metrics", method: str = "GET", mount: str = "", **headers: str) -> Answer:
    scope = {
        "type": "http", "method": method, "path": path, "root_path": mount,
        "headers": [(name.lower().encode(), value.encode()) for name, value in _names(headers).items()],
    }  # fmt: skip
    sent = asyncio.run(_collect(app, scope))
    given = {name.decode().title(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], given, sent[1]["body"])


def ask_wsgi(app: WsgiApp, path: str = "/metrics", method: str = "GET", mount: str = "", **headers: str) -> Answer:
    from wsgiref.util import setup_testing_defaults

    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, "SCRIPT_NAME": mount, "QUERY_STRING": ""}
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in _names(headers).items()}
    setup_testing_defaults(environ)
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
        started.extend((status, headers))
        return lambda data: None

    # The standard library's validator fails on what the WSGI standard does not allow.
    body = validator(app)(environ, start_response)
    content = b"".join(body)
    body.close()  # type: ignore[attr-defined]  # the validator's iterator has it, and demands it
    return Answer(int(started[0].split()[0]), dict(started[1]), content)


async def _collect(app: AsgiApp, scope: dict[str, Any], *received: dict[str, Any]) -> list[Any]:
    sent: list[Any] = []
    messages = iter(received)

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-").title(): value for name, value in headers.items()}


@pytest.fixture(params=["server", "asgi", "wsgi"])
def ask(request: pytest.FixtureRequest, engine: EngineInstruments) -> Iterator[Ask]:
    """Each way in turn, over one engine."""
    if request.param == "server":
        with serve(engine) as server:
            yield lambda *words, **named: ask_server(server, *words, **named)
    elif request.param == "asgi":
        app = make_asgi_app(engine)
        yield lambda *words, **named: ask_asgi(app, *words, **named)
    else:
        wsgi = make_wsgi_app(engine)
        yield lambda *words, **named: ask_wsgi(wsgi, *words, **named)


def test_text_is_given_to_who_asks_for_nothing(ask: Ask, engine: EngineInstruments) -> None:
    """The page of `render`, with its content type and length."""
    answer = ask()
    assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"
    assert answer.body == render(engine)
    assert int(answer.headers["Content-Length"]) == len(answer.body)


def test_openmetrics_is_given_to_who_prefers_it(ask: Ask, engine: EngineInstruments) -> None:
    """The page of `render_openmetrics`, which prometheus_client's strict parser takes."""
    answer = ask(accept=f"{OPENMETRICS}, text/plain;q=0.5")
    assert (answer.status, answer.headers["Content-Type"]) == (200, OPENMETRICS_CONTENT_TYPE)
    assert answer.body == render_openmetrics(engine)
    assert list(parse_openmetrics(answer.body.decode()))  # type: ignore[no-untyped-call]


def test_the_page_is_compressed_for_who_accepts_gzip(ask: Ask, engine: EngineInstruments) -> None:
    """Much smaller, and the same unpacked."""
    answer = ask(accept_encoding="deflate, gzip;q=0.5")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert int(answer.headers["Content-Length"]) == len(answer.body) < len(render(engine)) / 5
    assert gzip.decompress(answer.body) == render(engine)


def test_head_has_the_headers_and_no_body(ask: Ask, engine: EngineInstruments) -> None:
    """As for GET, the length included."""
    answer = ask(method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) == len(render(engine))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_a_method_that_does_not_read_is_405(ask: Ask, method: str) -> None:
    """With the methods there are."""
    answer = ask(method=method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert b"supported: GET, HEAD" in answer.body


def test_another_path_is_404(ask: Ask) -> None:
    """With where the metrics are."""
    answer = ask("/metric")
    assert answer.status == 404
    assert answer.body.startswith(b"not found; metrics are at ")
    assert answer.body.endswith(b"/metrics\n")


@pytest.mark.parametrize("ask_app", [ask_asgi, ask_wsgi])
@pytest.mark.parametrize(("path", "status"), [("", 200), ("/", 200), ("/metrics", 200), ("/x", 404)])
def test_a_mounted_app_answers_at_its_mount_point(
    ask_app: Ask, engine: EngineInstruments, path: str, status: int
) -> None:
    """With or without a slash, at `/metrics` below it, and nowhere else."""
    app = make_asgi_app(engine) if ask_app is ask_asgi else make_wsgi_app(engine)
    asked = f"/watch{path}" if ask_app is ask_asgi else path  # ASGI's path includes the mount point, WSGI's does not
    assert ask_app(app, asked, mount="/watch").status == status


@pytest.mark.parametrize(("path", "status"), [("/watch", 200), ("/watch/", 200), ("/watch/x", 404), ("/tch", 404)])
def test_a_mounted_app_answers_behind_a_proxy_that_takes_off_a_prefix(
    engine: EngineInstruments, path: str, status: int
) -> None:
    """As `FastAPI(root_path="/api")` has it: the mount point has the prefix, and the path does not."""
    assert ask_asgi(make_asgi_app(engine), path, mount="/api/watch").status == status


def test_a_page_that_fails_is_a_500(
    ask: Ask, engine: EngineInstruments, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The cause is in the log, not on the wire, and the next page is good again."""
    with monkeypatch.context() as broken:
        broken.setattr(engine, "text", lambda: 1 / 0)
        answer = ask()
    assert (answer.status, answer.body) == (500, b"the page could not be rendered, see the log\n")
    assert "ZeroDivisionError" in caplog.text
    assert ask().status == 200


@pytest.mark.parametrize("way", [serve, make_asgi_app, make_wsgi_app])
def test_a_page_is_kept_for_no_time_below_zero(way: Callable[..., object], engine: EngineInstruments) -> None:
    with pytest.raises(UsageError, match=r"cache_seconds is -1, expected seconds from 0"):
        way(engine, cache_seconds=-1)


@dataclass
class Slow:
    """An engine whose pages are not rendered before `release` is set, and the threads that render them."""

    engine: EngineInstruments
    threads: list[str]
    rendering: threading.Event
    release: threading.Event


@pytest.fixture
def slow(engine: EngineInstruments, monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow, text = Slow(engine, [], threading.Event(), threading.Event()), engine.text

    def slowly() -> Any:
        slow.threads.append(threading.current_thread().name)
        slow.rendering.set()
        if not slow.release.wait(deadline_seconds()):
            slow.release.set()
            pytest.fail("the rendering was not released: it blocks what would release it")
        return text()

    monkeypatch.setattr(engine, "text", slowly)
    return slow


def test_the_event_loop_runs_while_a_page_renders(slow: Slow) -> None:
    """Twenty scrapers at once wait for one rendering, in a thread of its own; the loop runs meanwhile."""
    app = make_asgi_app(slow.engine, cache_seconds=60)
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}

    async def scrape() -> None:
        scrapes = [asyncio.create_task(_collect(app, scope)) for _ in range(20)]
        # Were the page rendered on the loop, this would come too late to release it.
        await wait_for_async(slow.rendering.is_set, "a rendering")
        assert not any(scrape.done() for scrape in scrapes)
        slow.release.set()
        sent = await asyncio.gather(*scrapes)
        assert len({messages[1]["body"] for messages in sent}) == 1

    asyncio.run(scrape())
    assert len(slow.threads) == 1
    assert slow.threads[0].startswith("servescope-metrics")


def test_many_scrapers_cost_the_server_one_rendering(slow: Slow) -> None:
    """Threads that come while a page is made wait for it and share it."""
    with serve(slow.engine, cache_seconds=60) as server:
        threads = [threading.Thread(target=ask_server, args=(server,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        wait_for(lambda: _serving() == len(threads), "six requests that are served at once")
        slow.release.set()
        for thread in threads:
            thread.join()
    assert len(slow.threads) == 1


def _serving() -> int:
    """Requests that the server has a thread for."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_a_page_is_kept_for_a_moment_only(engine: EngineInstruments) -> None:
    """Within the moment it is the same; without one, each request sees what was recorded before it."""
    kept, fresh = make_wsgi_app(engine, cache_seconds=60), make_wsgi_app(engine, cache_seconds=0)
    first = ask_wsgi(kept).body
    assert ask_wsgi(fresh).body == first
    engine.count_preemptions(7)
    assert ask_wsgi(kept).body == first
    assert b"preemptions_total" in ask_wsgi(fresh).body
    assert ask_wsgi(fresh).body == render(engine) != first


def test_a_fork_that_came_while_rendering_does_not_hold_up_the_child(engine: EngineInstruments) -> None:
    """The child begins with a lock of its own and nothing kept."""
    app = make_wsgi_app(engine, cache_seconds=60)
    ask_wsgi(app)
    with app._pages._lock:
        child = os.fork()
        if not child:
            os._exit(0 if ask_wsgi(app).status == 200 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_lifespan_is_answered(engine: EngineInstruments) -> None:
    """A server that starts and ends the app goes on."""
    events = ({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    sent = asyncio.run(_collect(make_asgi_app(engine), {"type": "lifespan"}, *events))
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_websocket_is_closed(engine: EngineInstruments) -> None:
    """It is closed, not left waiting."""
    sent = asyncio.run(_collect(make_asgi_app(engine), {"type": "websocket", "path": "/metrics"}))
    assert sent == [{"type": "websocket.close", "code": 1000}]


@pytest.mark.slow
def test_the_app_works_mounted_under_starlette_and_uvicorn(engine: EngineInstruments) -> None:
    """As an embedder mounts it, with the slash and, by the framework's redirect, without."""
    app = Starlette(routes=[Mount("/metrics", make_asgi_app(engine))])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "uvicorn to start")
        port = server.servers[0].sockets[0].getsockname()[1]
        for path in ("/metrics", "/metrics/"):
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=deadline_seconds()) as answer:
                assert answer.read() == render(engine)
        with pytest.raises(HTTPError, match="404") as error:
            urlopen(f"http://127.0.0.1:{port}/metrics/more", timeout=deadline_seconds())
        error.value.close()
    finally:
        server.should_exit = True
        thread.join(deadline_seconds())
