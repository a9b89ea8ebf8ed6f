"""The files that are migrated: found in folders, and no link followed that leads out of its folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from servescope.errors import UsageError
from servescope.migration.document.document import DocumentError
from servescope.migration.report import FileReport

NAMES: Final = ("config.yaml", "config.yml")
"""The files that are migrated in a folder."""


class Found(NamedTuple):
    """A file, and the folder that it is of: a link may lead anywhere within that one."""

    path: Path
    folder: Path


def find_configs(paths: Iterable[Path]) -> Iterator[Found | FileReport]:
    """The files that were named, and those of the folders that were, hidden folders left out, in order.

    What cannot be read of a folder, and folders outside that links lead to, are reports of their own. Raises UsageError
    for a folder without such a file, of which nothing would be checked.
    """
    for path in paths:
        if not _is_folder(path):
            yield Found(path, path.parent)
            continue
        found = list(_walk(path))
        if not found:
            raise UsageError(f"{path}: has no {' or '.join(NAMES)} in it")
        yield from found


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # which is reported when it is read
        return False


def _walk(root: Path) -> Iterator[Found | FileReport]:
    unread: list[OSError] = []
    for at, folders, files in os.walk(root, onerror=unread.append):
        folder = Path(at)
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Found(folder / name, root) for name in sorted(set(files) & set(NAMES)))
        for name in folders:
            if (folder / name).is_symlink() and (why := find_leak(folder / name, root)):
                yield FileReport((folder / name).as_posix(), "unchanged", note=why)
    for error in unread:
        name = Path(error.filename).as_posix()
        yield FileReport(name, "error", error=f"{name}: cannot be read: {error.strerror or error}")


def follow(path: Path, folder: Path) -> Path:
    """The file that a path leads to; raises DocumentError where that is out of the folder."""
    if why := find_leak(path, folder):
        raise DocumentError(path.as_posix(), 0, 0, why)
    return Path(os.path.realpath(path))


def find_leak(path: Path, folder: Path) -> str:
    """Why a path is not followed, "" where it leads to a place in the folder."""
    real, home = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return "" if real.is_relative_to(home) else f"is a link to {real}, out of {home}: it is not followed"
