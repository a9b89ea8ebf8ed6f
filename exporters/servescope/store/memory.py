"""Memory that was freed, given back to the system."""

from __future__ import annotations

import ctypes

# Not there where the C library is another than glibc.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def release_freed_memory() -> None:
    """Have the C library return the pages that nothing is on any more; without effect where it is not glibc.

    What a scrape takes is freed between what lives for long, which leaves holes that only this empties. It takes
    milliseconds, in which other threads go on.
    """
    if _trim is not None:
        _trim(0)
