"""The bounds on requests and answers, of each client and of all together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds, with their defaults. Sizes in bytes."""

    connections: int = 256
    """Connections at once; for one more the longest idle one is closed, or else the longest busy one."""
    idle_seconds: float = 30.0
    """After which a connection without a complete request is closed."""
    handshake_seconds: float = 10.0
    """For a TLS handshake."""

    line_bytes: int = 8_192
    """Path and query of a request."""
    header_bytes: int = 16_384
    """One header of a request."""
    headers: int = 128
    """Headers of a request."""
    unanswered_bytes: int = 262_144
    """Sent on one connection behind a request that is not answered yet."""

    requests: int = 64
    """Requests at once until their answers have been read, health checks excluded."""
    reads: int = 2
    """Reads of the store at once."""
    waiting_reads: int = 32
    """Reads that wait for a thread."""
    answer_seconds: float = 30.0
    """To make an answer, waiting included."""
    answer_values: int = 500_000
    """Numbers in one answer."""

    page_seconds: float = 0.1
    """For which one rendering of `/metrics` is reused."""
    page_share: float = 9.0
    """And for this many times as long as it took, so that rendering uses at most a tenth of a core."""

    piece_bytes: int = 131_072
    """Of an answer that are written to a connection at once."""
    piece_seconds: float = 10.0
    """For a client to read one piece."""
    sending_seconds: float = 60.0
    """For a client to read a whole answer."""
    sending_bytes: int = 64_000_000
    """Of answers being sent to all clients; above it new requests are refused."""
    retry_seconds: int = 1
    """The Retry-After of a request that is refused because of others."""
