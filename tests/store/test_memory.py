"""Memory that was freed goes back to the system, though something behind it is still held."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
from pathlib import Path
from servescope.store.memory import release_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

blocks = [bytes(1000) for _ in range(100_000)]
blocks[:-1] = []
before = resident()
release_freed_memory()
print(before - resident())
"""


def test_holes_between_what_is_held_are_given_back() -> None:
    """Of 100 MB that were freed below something that was not, most is no longer the process's."""
    printed = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True).stdout
    assert int(printed) > 80_000_000
