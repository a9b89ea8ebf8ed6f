"""The console's door, asked by raw requests: other origins, frames, what is closed before a sign-in, and its log."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from servescope.store.embedded import Store
from tests import pictures
from tests.support.answering import serving
from tests.support.console_requests import STREAM, UPGRADE, ask, exchange, status
from tests.support.waiting import deadline_seconds

pytestmark = pytest.mark.slow

HOST = "localhost"
# Beside each page of the frontend's own: what is open before a sign-in, and what is not.
OPEN = ("/", "/plan", "/static/none.js", "/static/media/none.woff2", "/_stcore/health", "/_stcore/host-config", STREAM)
CLOSED = ("/_stcore/metrics", "/media/none.csv", "/component/none/a.js", "/_stcore/bidi-components/a/b",
          "/_stcore/upload_file/a/b", "/_stcore/agent/openapi.json", "/_stcore/script-health-check", "/_stcore/none",
          "/%5fstcore/metrics", "/media/../_stcore/metrics")  # fmt: skip
HANDSHAKES = 20
# A frame that ends a WebSocket with a code, by its first two bytes.
CLOSE = b"\x88\x02"


@contextmanager
def outside() -> Iterator[tuple[str, list[str]]]:
    """A proxy to the world outside, in which nothing answers; gives its address, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_CONNECT = do_GET  # noqa: N815 - the name of the method

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url, asked


@contextmanager
def served(folder: Path, *words: str, **variables: str) -> Iterator[int]:
    """The port of a console on an empty store, whose standard error is in `folder / "console.log"`."""
    Store(folder / "servescope.db").close()
    log = folder / "console.log"
    with pictures.serve_console(folder / "servescope.db", *words, variables=variables, log=log) as address:
        yield int(urlsplit(address).port or 0)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a console without a sign-in."""
    with served(tmp_path_factory.mktemp("open")) as opened:
        yield opened


# --- Other origins ----------------------------------------------------------------------------------------------------


def origins_of_others(port: int) -> Sequence[str]:
    """Origins that are not that of `http://localhost:{port}`, each as the headers of a request."""
    others = (
        "http://localhost:9999", "http://localhost", "https://localhost", "http://127.0.0.1:9999",
        f"http://127.0.0.1:{port}", f"http://[::1]:{port}", f"http://0.0.0.0:{port}", "http://evil.example",
        f"http://evil.example:{port}", f"http://localhost:{port}.evil.example", f"http://localhost.evil.example:{port}",
        f"http://evil@localhost:{port}", f"ftp://localhost:{port}", f"//localhost:{port}", f"localhost:{port}", "null",
        "", "file://",
    )  # fmt: skip
    own = f"http://localhost:{port}"
    return [
        *(f"Origin: {origin}\r\n" for origin in others),
        f"Origin: {own}, http://evil.example\r\n",
        f"Origin: {own}\r\nOrigin: http://evil.example\r\n",
        f"Origin: http://evil.example\r\nOrigin: {own}\r\n",
    ]


def test_a_page_of_another_origin_is_refused(tmp_path: Path) -> None:
    """Neither a WebSocket, over which decisions are written, nor a request; and nothing outside is asked about it."""
    with outside() as (proxy, asked), served(tmp_path, http_proxy=proxy, https_proxy=proxy) as port:
        for origin in origins_of_others(port):
            for path in (STREAM, "/", "/_stcore/health", "/_stcore/upload_file/a/b", "/static/none.js"):
                # Of two Origin headers the handshake of a WebSocket is none already.
                refused = (400, 403) if path == STREAM and origin.count("Origin") == 2 else (403,)
                assert status(ask(port, path, f"{HOST}:{port}", headers=origin)) in refused, (path, origin)
    written = (tmp_path / "console.log").read_text()

    assert asked == []
    assert "the console refused a request of another origin" in written
    assert len(written.splitlines()) == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "192.0.2.7"])
def test_its_own_pages_are_served(port: int, host: str) -> None:
    """A page of the console opens its WebSocket by HTTP, and behind a proxy that speaks TLS; so does a program."""
    for named in (host, f"{host}:{port}"):
        for headers in (f"Origin: http://{named}\r\n", f"Origin: https://{named}\r\n", ""):
            assert status(ask(port, STREAM, named, headers=headers)) == 101
            assert status(ask(port, "/", named, headers=headers)) == 200


def test_the_frontend_takes_messages_of_no_other_page(port: int) -> None:
    """By default Streamlit's frontend does what pages of its cloud post to it."""
    assert f'{{"allowedOrigins":["http://127.0.0.1:{port}"]' in ask(port, "/_stcore/host-config", HOST)


# --- Frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "host", "method", "wanted"),
    [
        ("/", HOST, "GET", 200), ("/plan", HOST, "GET", 200), ("/", HOST, "HEAD", 200), ("/", HOST, "POST", 405),
        ("/static/none.js", HOST, "GET", 200), ("/favicon.png", HOST, "GET", 200), ("/media/none", HOST, "GET", 404),
        ("/_stcore/health", HOST, "GET", 200), ("/_stcore/metrics", HOST, "GET", 200),
        ("/_stcore/upload_file/a/b", HOST, "PUT", 403), ("/component/none/x", HOST, "GET", 404),
        ("/auth/login", HOST, "GET", 302), ("/\\evil", HOST, "GET", 400), ("/", "evil.example", "GET", 421),
        (STREAM, "evil.example", "GET", 421),
    ],
)  # fmt: skip
def test_no_answer_can_be_framed(port: int, path: str, host: str, method: str, wanted: int) -> None:
    """Pages, files, redirections and errors forbid to be framed, in the header of now and in that of old browsers, and
    to load anything from another host.
    """
    answer = ask(port, path, host, method=method).lower()

    assert status(answer) == wanted
    assert answer.count("x-frame-options: deny\r\n") == 1
    assert answer.count("content-security-policy: frame-ancestors 'none'; default-src 'self' 'unsafe-inline'; ") == 1


# --- The sign-in ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a console whose readers sign in at a proxy on this machine."""
    words = ("--auth", "proxy", "--auth-proxy", "127.0.0.1", "--auth-header", "X-User")
    with served(tmp_path_factory.mktemp("signing"), *words) as opened:
        yield opened


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "DELETE"])
def test_metrics_and_files_ask_for_the_sign_in(signing: int, path: str, method: str) -> None:
    """What shows who uses the console, and what they downloaded or upload, is closed to who has not signed in."""
    refused = [
        ask(signing, path, HOST, headers=headers, method=method)
        for headers in ("", "X-User: \r\n", "X-User: anna\r\nX-User: anna\r\n", "X-Forwarded-Email: anna\r\n")
    ]

    assert [status(answer) for answer in refused] == [401] * len(refused)
    assert status(ask(signing, path, HOST, headers="X-User: anna\r\n", method=method)) != 401


@pytest.mark.parametrize("path", OPEN)
def test_the_page_that_asks_for_the_sign_in_is_open(signing: int, path: str) -> None:
    """Health for probes, and what the browser loads before somebody has signed in."""
    assert status(ask(signing, path, HOST)) in (101, 200)


def test_without_a_sign_in_nothing_asks_for_one(port: int) -> None:
    """A console on this machine alone serves its metrics to it."""
    assert "active_sessions" in ask(port, "/_stcore/metrics", HOST)


# --- The log ----------------------------------------------------------------------------------------------------------


def frames(*payloads: bytes, code: int = 0x82) -> bytes:
    """Frames of a WebSocket with these payloads, masked by zeros."""
    return b"".join(bytes([code, 0x80 | len(payload)]) + bytes(4) + payload for payload in payloads)


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        ((frames(b"hello", code=0x81), frames(b"\xff\xff\xff"), frames(b"")), "a message that is none of a page"),
        ((frames(*[b"\x88\x01\x01"] * 120),), "a session with more than 5 messages a second"),
    ],
)
def test_a_flood_is_a_line_a_minute(tmp_path: Path, garbage: Sequence[bytes], reason: str) -> None:
    """Messages that no page sends end their WebSocket, what is no HTTP is refused; the log has one line of each."""
    with served(tmp_path) as port:
        for number in range(HANDSHAKES):
            send_to_the_end(port, garbage[number % len(garbage)])
            assert status(exchange(port, b"\x16\x03\x01 garbage\r\n\r\n")) == 400
        assert status(ask(port, "/_stcore/health", HOST)) == 200
    written = (tmp_path / "console.log").read_text().splitlines()

    assert written == [
        f"servescope: the console refused {reason} (1 times), last from 127.0.0.1", "Invalid HTTP request received.",
    ]  # fmt: skip


def send_to_the_end(port: int, sent: bytes) -> None:
    """Send to a WebSocket that the console ends for it."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(deadline_seconds())
        connection.sendall(ask_to_upgrade(port))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 101 ")
        connection.sendall(sent)
        received = b""
        while CLOSE not in received and (piece := connection.recv(65_536)):
            received += piece
        assert CLOSE in received


def ask_to_upgrade(port: int) -> bytes:
    """The request of a page of the console for its WebSocket."""
    host = f"{HOST}:{port}"
    return f"GET {STREAM} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n{UPGRADE}\r\n".encode()
