"""How much one client, or all of them, may cost the collector: every number of it in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the collector grants those who ask. Sizes in bytes."""

    connections: int = 256
    """Connections at once; one more ends the one that has been idle, or else busy, for longest."""
    idle_seconds: float = 30.0
    """After which a connection is closed that has sent no whole request, whether it is silent or trickles."""
    handshake_seconds: float = 10.0
    """For a TLS handshake."""

    line_bytes: int = 8_192
    """Path and query of a request."""
    header_bytes: int = 16_384
    """One header of a request."""
    headers: int = 128
    """Headers of a request."""
    unanswered_bytes: int = 262_144
    """Sent by a client, on one connection, while a request of its waits for its answer."""

    requests: int = 64
    """Requests at once, health apart, until their answers are taken."""
    reads: int = 2
    """Reads of the store at once."""
    waiting_reads: int = 32
    """Reads that wait for their turn."""
    answer_seconds: float = 30.0
    """To make an answer, waiting included."""
    answer_values: int = 500_000
    """Numbers in one answer."""

    page_seconds: float = 0.1
    """For which one rendering of `/metrics` is shown to all who ask."""
    page_share: float = 9.0
    """And for so many times as long as it took: a tenth of a core is spent on rendering at most."""

    piece_bytes: int = 131_072
    """Of an answer that are handed to a connection at once; what it does not take stays where it was made."""
    piece_seconds: float = 10.0
    """For a client to take one piece."""
    sending_seconds: float = 60.0
    """For a client to take a whole answer."""
    sending_bytes: int = 64_000_000
    """Of answers on their way; nothing new is begun above it."""
    retry_seconds: int = 1
    """After which a client that is refused because of others may ask again."""
