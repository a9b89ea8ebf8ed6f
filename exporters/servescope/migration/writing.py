"""Files replaced and created in one step: each is whole, or as it was before, at whatever moment the run is killed."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from servescope.migration.document.document import DocumentError
from servescope.migration.report import NewFile

_PREFIX: Final = ".servescope-migrate-"
_PARTIAL: Final = re.compile(rf"{re.escape(_PREFIX)}[0-9a-f]{{16}}")
"""The name of a file that is being written, by a run that holds its lock; what nobody holds, a killed run left."""


def remove_leftovers(folder: Path) -> None:
    """Remove from a folder what killed runs left there of the files that they were writing."""
    with suppress(OSError):  # what is wrong with the folder is an error where it is written
        for each in [each for each in folder.iterdir() if _PARTIAL.fullmatch(each.name)]:
            _remove_leftover(each)


def _remove_leftover(partial: Path) -> None:
    with suppress(OSError):  # another user's, or another run's, which writes it now
        handle = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()


def replace_file(path: Path, target: Path, before: str, after: str, suffix: str) -> Path:
    """Replace `target`, which `path` leads to, and keep the old one beside it with a suffix; returns that copy's path.

    Both have the owner, the mode and the attributes of the old file. Raises DocumentError, and nothing is written,
    where these cannot be kept, where such a copy is there with another content, where the file is read-only or has
    other names, and where it changed since it was read.
    """
    kept, old = target.with_name(f"{target.name}.{suffix}"), before.encode()
    try:
        _check_writable(path, target)
        is_kept = os.path.lexists(kept)
        if is_kept and (kept.is_symlink() or not kept.is_file() or kept.read_bytes() != old):
            _refuse(path, f"would be kept as {kept.name}, which is there already: move that away first")
        with _writing(target.parent, after.encode()) as new, _writing(target.parent, old) as copy:
            for partial in (new, copy):
                _take_attributes(path, partial, target)
            os.utime(new)
            # Last of all, so that nobody's change is lost.
            _check_unchanged(path, target, old)
            if not is_kept:
                copy.rename(kept)
            try:
                new.replace(target)
            except OSError:
                if not is_kept:
                    kept.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise DocumentError(path.as_posix(), 0, 0, f"cannot be written: {error.strerror or error}") from error
    return kept


def create_files(path: Path, target: Path, before: str, new_files: Sequence[NewFile]) -> None:
    """Write all files made from `target`, which `path` leads to, or none; that one stays.

    Raises DocumentError where one of another content is there, or the file changed since it was read.
    """
    for each in new_files:
        if each.before not in (None, each.text):
            _refuse(Path(each.name), f"is there already, and not what {path.name} becomes")
    made: list[Path] = []
    try:
        with ExitStack() as partials:
            written: list[tuple[Path, Path]] = []
            for each in new_files:
                if each.before is None:
                    place = Path(each.name)
                    written.append((partials.enter_context(_writing(place.parent, each.text.encode())), place))
            for partial, _ in written:
                shutil.copymode(target, partial)
            _check_unchanged(path, target, before.encode())
            for partial, place in written:
                if os.path.lexists(place):
                    _refuse(place, "was made meanwhile by somebody else")
                partial.rename(place)
                made.append(place)
    except (OSError, DocumentError) as error:
        for place in made:
            place.unlink(missing_ok=True)
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(path.as_posix(), 0, 0, f"cannot be written: {error.strerror or error}") from error


def _check_writable(path: Path, target: Path) -> None:
    found = target.stat()
    if (names := found.st_nlink) > 1:
        _refuse(path, f"is one of {names} names of a file (hard links), of which the others would keep the old content")
    # Root may write all the same.
    if not found.st_mode & 0o222 or not os.access(target, os.W_OK):
        _refuse(path, "is read-only")


def _check_unchanged(path: Path, target: Path, before: bytes) -> None:
    if target.read_bytes() != before:
        _refuse(path, "changed while it was migrated")


def _take_attributes(path: Path, partial: Path, target: Path) -> None:
    """Give a file the owner, the mode, the times and the extended attributes of another one."""
    wanted, made = target.stat(), partial.stat()
    if (wanted.st_uid, wanted.st_gid) != (made.st_uid, made.st_gid):
        try:
            os.chown(partial, wanted.st_uid, wanted.st_gid)
        except PermissionError:
            owner = f"user {wanted.st_uid} and group {wanted.st_gid}"
            _refuse(path, f"belongs to {owner}, and only root can give a new file to them")
    shutil.copystat(target, partial)


def _refuse(path: Path, what: str) -> NoReturn:
    raise DocumentError(path.as_posix(), 0, 0, f"{what}; nothing was written")


@contextmanager
def _writing(folder: Path, data: bytes) -> Iterator[Path]:
    """A new file in a folder with this content, on the disk and locked; removed unless it is renamed."""
    partial = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            yield partial
    finally:
        partial.unlink(missing_ok=True)
