"""Raw requests to a console, and what its door sees of them."""

from __future__ import annotations

import socket

from tests.support.waiting import deadline_seconds

STREAM = "/_stcore/stream"
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def ask(port: int, path: str, *hosts: str, headers: str = "", method: str = "GET") -> str:
    """The answer, head and body, to a request with these Host headers; of a WebSocket that is accepted the head."""
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    headers += UPGRADE if path == STREAM else "Connection: close\r\n"
    return exchange(port, f"{method} {path} HTTP/1.1\r\n{lines}{headers}\r\n".encode())


def exchange(port: int, request: bytes) -> str:
    """The answer to these bytes, until the console closes the connection or accepts a WebSocket."""
    with socket.create_connection(("127.0.0.1", port), timeout=deadline_seconds()) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
            if answer.startswith(b"HTTP/1.1 101 "):
                break
    return answer.decode("latin-1")


def status(answer: str) -> int:
    """The status of an answer."""
    return int(answer.split()[1])
