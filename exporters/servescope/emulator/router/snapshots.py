"""A router's index on disk, so that a restarted process does not begin with nothing."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from servescope.errors import ServescopeError

logger = logging.getLogger(__name__)

FORMAT = "servescope-router-index"
VERSION = 1


class WorkerSnapshot(NamedTuple):
    """What one worker had cached after the event `sequence` of its `stream`, which names one process of it."""

    stream: str
    sequence: int
    block_ids: Collection[int]


@dataclass(frozen=True, slots=True)
class IndexSnapshot:
    """What all workers had cached, by their names."""

    workers: Mapping[str, WorkerSnapshot]


class SnapshotError(ServescopeError):
    """A file is not a snapshot of this router's index."""


class SnapshotFile:
    """The snapshot of one router at one path; `router` and `block_tokens` are those it is for.

    Neither call raises for what the disk does: it is logged, and the router continues without.
    """

    def __init__(self, path: Path, *, router: str, block_tokens: int) -> None:
        self.path = path
        self._router = router
        self._block_tokens = block_tokens
        self._written = False

    def write(self, snapshot: IndexSnapshot) -> None:
        """Replace the file in one move: a reader finds the old snapshot or the new one."""
        unfinished = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(encode(snapshot, router=self._router, block_tokens=self._block_tokens))
            unfinished.replace(self.path)
            self._written = True
        except OSError as error:
            logger.warning("cannot write the index snapshot %r: %s; the last one stays", str(self.path), error.strerror)

    def read(self) -> IndexSnapshot | None:
        """The last snapshot; None when there is none, or none that is whole and this router's.

        One that an earlier emulation left there is not: its workers had the same event numbers and other blocks.
        """
        if not self._written:
            return None
        try:
            return decode(self.path.read_bytes(), router=self._router, block_tokens=self._block_tokens)
        except FileNotFoundError:
            return None
        except (OSError, SnapshotError) as error:
            logger.warning("index snapshot %r is refused: %s; the index begins empty", str(self.path), error)
            return None


def encode(snapshot: IndexSnapshot, *, router: str, block_tokens: int) -> bytes:
    """A line that says what the file is, then the index."""
    workers = {
        name: {"stream": worker.stream, "sequence": worker.sequence, "blocks": sorted(worker.block_ids)}
        for name, worker in snapshot.workers.items()
    }
    body = json.dumps(workers, separators=(",", ":")).encode()
    head = {
        "format": FORMAT,
        "version": VERSION,
        "router": router,
        "block_tokens": block_tokens,
        "crc32": zlib.crc32(body),
    }
    return json.dumps(head).encode() + b"\n" + body + b"\n"


def decode(content: bytes, *, router: str, block_tokens: int) -> IndexSnapshot:
    """The snapshot in a file's content. Raises SnapshotError with what is wrong with it."""
    first, _, rest = content.partition(b"\n")
    head = _parse(first, "its first line")
    expected = {"format": FORMAT, "version": VERSION, "router": router, "block_tokens": block_tokens}
    for name, value in expected.items():
        if head.get(name) != value:
            raise SnapshotError(f"{name} is {head.get(name)!r}, expected {value!r}")
    body = rest.removesuffix(b"\n")
    if head.get("crc32") != zlib.crc32(body):
        raise SnapshotError("its checksum is wrong: it is damaged, or was cut off")
    return IndexSnapshot({name: _decode_worker(name, worker) for name, worker in _parse(body, "its index").items()})


def _parse(text: bytes, what: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise SnapshotError(f"{what} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise SnapshotError(f"{what} is {type(parsed).__name__}, expected an object")
    return parsed


def _decode_worker(name: str, worker: object) -> WorkerSnapshot:
    match worker:
        case {"stream": str(stream), "sequence": int(sequence), "blocks": list(blocks)} if all(
            isinstance(block, int) for block in blocks
        ):
            return WorkerSnapshot(stream, sequence, blocks)
    raise SnapshotError(f"worker {name!r} has no stream, sequence and blocks")
