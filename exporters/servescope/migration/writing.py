"""Files replaced and created in one step: each is whole, or as it was before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from servescope.migration.document import DocumentError
from servescope.migration.report import NewFile


def replace_file(path: Path, before: str, after: str, suffix: str) -> Path:
    """Replace a file, and keep the old one beside it with a suffix; returns the path of that copy.

    Raises DocumentError where such a copy is there with another content, or the file changed since it was read: then
    nothing was written.
    """
    target = path.resolve()
    kept = target.with_name(f"{target.name}.{suffix}")
    old = before.encode()
    try:
        if target.read_bytes() != old:
            raise DocumentError(path.as_posix(), 0, 0, "changed while it was migrated; nothing was written")
        if kept.exists() and kept.read_bytes() != old:
            what = f"would be kept as {kept.name}, which is there already; nothing was written"
            raise DocumentError(path.as_posix(), 0, 0, what)
        mode = target.stat().st_mode
        is_new = not kept.exists()
        _replace(kept, old, mode)
        try:
            _replace(target, after.encode(), mode)
        except OSError:
            if is_new:
                kept.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DocumentError(path.as_posix(), 0, 0, f"cannot be written: {error.strerror or error}") from error
    return kept


def create_files(path: Path, before: str, new_files: Sequence[NewFile]) -> None:
    """Write all files made from one, or none; that one stays.

    Raises DocumentError where one of another content is there, or the file changed since it was read.
    """
    origin = path.as_posix()
    for each in new_files:
        if each.before not in (None, each.text):
            raise DocumentError(
                each.name, 0, 0, f"is there already, and not what {path.name} becomes; nothing was written"
            )
    made: list[Path] = []
    try:
        if path.read_bytes() != before.encode():
            raise DocumentError(origin, 0, 0, "changed while it was migrated; nothing was written")
        mode = path.stat().st_mode
        for each in new_files:
            if each.before is None:
                _replace(Path(each.name), each.text.encode(), mode)
                made.append(Path(each.name))
    except OSError as error:
        for each_made in made:
            each_made.unlink(missing_ok=True)
        raise DocumentError(origin, 0, 0, f"cannot be written: {error.strerror or error}") from error


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Give a file its new content, or leave it as it is."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(mode & 0o7777)
        partial.replace(path)
    except BaseException:  # an interrupt as well
        partial.unlink(missing_ok=True)
        raise
