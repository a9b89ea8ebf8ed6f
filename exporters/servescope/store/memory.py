"""Memory that was freed, returned to the system."""

from __future__ import annotations

import ctypes

# Not there where the C library is another than glibc.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def release_freed_memory() -> None:
    """Have the C library return free pages to the system; without effect where it is not glibc.

    The memory of a scrape is freed between blocks that live for long, which leaves holes that only this returns. It
    needs milliseconds, during which other threads run.
    """
    if _trim is not None:
        _trim(0)
