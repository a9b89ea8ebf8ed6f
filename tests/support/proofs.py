"""What commands that run real programs for minutes have in common."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from servescope.errors import ServescopeError


def run_in_folder(program: str, prove: Callable[[Path], int], *, keep: bool) -> int:
    """What `prove` returns, given a folder that is gone afterwards unless `keep`; 1 for an error, which it prints.

    SIGTERM ends it as Ctrl-C does, so that it ends what it started.
    """
    signal.signal(signal.SIGTERM, _end)
    folder = Path(tempfile.mkdtemp(prefix=f"servescope-{program.rpartition('.')[2]}-"))
    try:
        return prove(folder)
    except (ServescopeError, subprocess.TimeoutExpired) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if keep:
            print(f"logs and what else there was are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
