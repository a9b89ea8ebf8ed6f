"""A network of its own for a program that listens on more than loopback: only loopback is in it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.proofs.real.programs.program import UnavailableError

_CLONE_NEWNET = 0x40000000
_OURS = Path("/proc/thread-self/ns/net")


@contextmanager
def own_network() -> Iterator[None]:
    """Within, this thread and what it starts have a network namespace of their own.

    Raises UnavailableError where this process may not make one.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise UnavailableError("it needs a network namespace of its own, so root and the program `ip`")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open(_OURS, os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise UnavailableError(f"no network namespace can be made here: {os.strerror(ctypes.get_errno())}")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10)
            yield
        finally:
            if libc.setns(before, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "this thread could not leave its network namespace")
    finally:
        os.close(before)
