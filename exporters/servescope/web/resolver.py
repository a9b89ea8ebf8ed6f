"""Looks up host names: a name server that hangs delays those alone who ask it, and none leads where it may not."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

from aiohttp.abc import AbstractResolver, ResolveResult

_MOST_LOOKUPS = 256

Refuse = Callable[[str, int, str], str | None]
"""Why a host's port may not lead to an address; None where it may."""


class Resolver(AbstractResolver):
    """Looks up each host name in a thread of its own, and once at a time.

    A name server that does not answer delays only the targets whose names it is asked for: not other names, not other
    work in threads, not the end of the program. It leads to no address that `refuse` has something against, which may
    be replaced at any time.
    """

    def __init__(self, refuse: Refuse = lambda _host, _port, _address: None) -> None:
        self.refuse = refuse
        self._pending: dict[tuple[str, int, int], asyncio.Future[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host; raises OSError, also where it may lead to none of them."""
        found = await self._find(host, port, family)
        refused = {each["host"]: why for each in found if (why := self.refuse(host, port, each["host"])) is not None}
        permitted = [each for each in found if each["host"] not in refused]
        if refused and not permitted:
            raise OSError(None, "; ".join(f"it leads to {address}, {why}" for address, why in refused.items()))
        return permitted

    async def _find(self, host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        key = (host, port, int(family))
        future = self._pending.get(key)
        if future is None:
            if len(self._pending) >= _MOST_LOOKUPS:
                raise OSError(None, f"{_MOST_LOOKUPS} other names are being looked up without an answer")
            loop = asyncio.get_running_loop()
            future = self._pending[key] = loop.create_future()
            future.add_done_callback(lambda done: self._forget(key, done))
            threading.Thread(target=_look_up, args=(*key, loop, future), name=f"look up {host}", daemon=True).start()
        # A caller may give up; the look-up continues for the next one who asks.
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Nothing to wait for."""

    def _forget(self, key: tuple[str, int, int], done: asyncio.Future[list[ResolveResult]]) -> None:
        self._pending.pop(key, None)
        if not done.cancelled():
            done.exception()  # mark it as retrieved: nobody may be waiting for it


def _look_up(
    host: str, port: int, family: int, loop: asyncio.AbstractEventLoop, future: asyncio.Future[list[ResolveResult]]
) -> None:
    found: list[ResolveResult] | OSError
    try:
        found = [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in socket.getaddrinfo(
                host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
        ]
    except (OSError, UnicodeError) as error:
        found = error if isinstance(error, OSError) else OSError(None, f"not a valid host name: {error}")

    def settle() -> None:
        if future.done():
            return
        if isinstance(found, OSError):
            future.set_exception(found)
        else:
            future.set_result(found)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the event loop has ended, and with it all callers
