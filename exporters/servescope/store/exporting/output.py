"""The file that an export writes, which is either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from servescope.errors import ServescopeError, UsageError


class ExportError(ServescopeError):
    """The file cannot be written; the text names it and the reason."""


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file beside the path, and move it there when all of it is written.

    A file that is at the path stays until then, and stays when it fails. Raises UsageError when the path cannot be that
    of a file, ExportError when it cannot be written.
    """
    if not path.parent.is_dir():
        problem = "is not a directory" if path.parent.exists() else "does not exist"
        raise UsageError(f"--out {str(path)!r}: directory {str(path.parent)!r} {problem}")
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "not a regular file"
        raise UsageError(f"--out {str(path)!r} is {kind}, expected the path of a file")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        file = partial.open("wb")
    except OSError as error:
        raise ExportError(
            f"--out {str(path)!r}: the temporary file {partial.name!r} beside it cannot be created: "
            f"{error.strerror or error}"
        ) from error
    try:
        with file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise ExportError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
