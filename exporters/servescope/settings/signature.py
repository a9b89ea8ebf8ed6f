"""What tells whether a file changed since it was read: secrets, certificates, lists of targets."""

from __future__ import annotations

import os
from typing import NamedTuple


class Signature(NamedTuple):
    """When a file was written last, how long it is, and which file it is; equal while it stays the same.

    One that is written again at once, to the same length, may keep its signature.
    """

    written_ns: int
    length: int
    inode: int


def sign_file(path: str | os.PathLike[str]) -> Signature:
    """The signature of the file at a path now; raises OSError. Take it before reading: what changes meanwhile shows."""
    status = os.stat(path)  # noqa: PTH116 - asked for every scrape, and Path costs more than the answer
    return Signature(status.st_mtime_ns, status.st_size, status.st_ino)
