"""Files that rotate: read again when they change; the former content stays in force while the new one is invalid."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from servescope.errors import ServescopeError
from servescope.settings.signature import Signature, sign_file

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Reread(Generic[T]):
    """What `load` makes of the files, as of now; raises what `load` raises the first time. Not thread safe."""

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        self._paths, self._load = paths, load
        # Taken before the files are read: a change in between is then seen at the next look.
        self._signatures = _sign(paths)
        self._value = load()

    def now(self) -> T:
        """The value of the files now, or the former one while they are invalid, which is logged."""
        signatures = _sign(self._paths)
        if signatures != self._signatures:
            self._signatures = signatures
            try:
                self._value = self._load()
            except ServescopeError as error:
                _logger.warning("%s; what it held before stays in force", error)
            else:
                _logger.info("%s was read anew", ", ".join(map(str, self._paths)))
        return self._value


def _sign(paths: Sequence[Path]) -> list[Signature | None]:
    return [_sign_if_there(path) for path in paths]


def _sign_if_there(path: Path) -> Signature | None:
    try:
        return sign_file(path)
    except OSError:
        return None
