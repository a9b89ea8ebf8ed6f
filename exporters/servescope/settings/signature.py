"""Whether a file changed since it was read: secrets, certificates, lists of targets."""

from __future__ import annotations

import os
from typing import NamedTuple


class Signature(NamedTuple):
    """A file's time of modification, length and inode; equal while the file is unchanged.

    A file that is written again at once, with the same length, may keep its signature.
    """

    written_ns: int
    length: int
    inode: int


def sign_file(path: str | os.PathLike[str]) -> Signature:
    """The signature of the file at a path; raises OSError. Sign before reading, so that no later change is missed."""
    status = os.stat(path)  # noqa: PTH116 - called for every scrape, and Path costs more than stat
    return Signature(status.st_mtime_ns, status.st_size, status.st_ino)
