"""What stands in files that rotate: read again when they change, and kept when what they hold now is of no use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from servescope.errors import ServescopeError

_logger = logging.getLogger(__name__)

T = TypeVar("T")
_Signature = tuple[tuple[int, ...] | None, ...]


class Reread(Generic[T]):
    """What `load` makes of the files, as of now; raises what `load` raises the first time. Not thread safe."""

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        self._paths, self._load = paths, load
        # Taken before the files are read: a change in between is then seen at the next look.
        self._signature = _sign(paths)
        self._value = load()

    def now(self) -> T:
        """The value of the files as they stand, or the former one while they cannot be used, which the log says."""
        signature = _sign(self._paths)
        if signature != self._signature:
            self._signature = signature
            try:
                self._value = self._load()
            except ServescopeError as error:
                _logger.warning("%s; what it held before stays in force", error)
            else:
                _logger.info("%s was read anew", ", ".join(map(str, self._paths)))
        return self._value


def _sign(paths: Sequence[Path]) -> _Signature:
    return tuple(_sign_one(path) for path in paths)


def _sign_one(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
