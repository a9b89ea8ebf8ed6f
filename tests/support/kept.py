"""What several test modules make alike is made once, and kept in `.cache/made/` as long as the code is the same."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "made"
_SOURCES = ("exporters/servescope", "alerts", "tests/support", "tests/*/support", "tests/documented")
_ENDINGS = {".py", ".toml", ".json", ".yml"}


def kept(name: str, make: Callable[[Path], None], *of: object) -> Path:
    """The folder of this name that `make` filled; what is in it may be read and copied, never written to.

    `make` runs once for all processes, and again when the package, the alerts, the test support, a locked version or
    what it is made `of`, by its `repr`, has changed.
    """
    folder = FOLDER / name / hashlib.sha256(f"{_code_hash()} {of!r}".encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            for old in folder.parent.glob("*/"):
                shutil.rmtree(old)
            unfinished = folder.parent / "unfinished"
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


@cache
def _code_hash() -> str:
    digest = hashlib.sha256((ROOT / "requirements-dev.lock").read_bytes())
    for source in _SOURCES:
        for path in sorted(ROOT.glob(f"{source}/**/*")):
            if path.suffix in _ENDINGS and path.is_file():
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
