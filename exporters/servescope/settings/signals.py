"""The signals that end a command that serves."""

from __future__ import annotations

import asyncio
import signal


def stop_at_signals() -> asyncio.Event:
    """What is set once SIGINT or SIGTERM comes, for the running loop."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
