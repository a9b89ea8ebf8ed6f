"""Which probes are in progress: so many at once, few of one target, and of those that answer before others.

A target that hangs holds its slot until its time is over. Where no slot is free, the probe that has waited longest ends
for another one: at once for a target that is more likely to answer, else past half of its time. So targets that
answered when they were last asked find a slot however many hang, and those that hang are asked again, for less time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Final, TypeVar

from servescope.web.answers import BusyError
from servescope.web.connections import FetchError

T = TypeVar("T")

BUSY: Final = "busy"
"""The outcome of a probe that ended for another one."""

_HUNG: Final = ("timeout", BUSY)
_SLOW_SECONDS: Final = 1.0
"""A failure after so long held a slot as a target that hangs does: a gateway's 504, a host that is gone."""
_MOST_TARGETS: Final = 50_000
_RETRY_SECONDS: Final = 1


class LastTime(IntEnum):
    """What a target did when it was last asked, the best first; one that is not remembered was not asked."""

    ANSWERED = 0
    UNASKED = 1
    HUNG = 2


class Slot:
    """The place of one probe among those in progress."""

    def __init__(self, target: str, last_time: LastTime, seconds: float, clock: Callable[[], float]) -> None:
        self.target, self.last_time = target, last_time
        self._began, self._seconds, self._clock = clock(), seconds, clock
        self._deadline: asyncio.Timeout | None = None
        self.hung = False

    async def wait_for(self, fetched: Awaitable[T]) -> T:
        """What is fetched; raises FetchError when the probe ends for another one."""
        try:
            async with asyncio.timeout(None) as self._deadline:
                return await fetched
        except TimeoutError:
            waited = self._clock() - self._began
            raise FetchError(BUSY, f"no answer within {waited:.1f} s, and others wait for a slot") from None
        finally:
            self._deadline = None

    def yields_to(self, last_time: LastTime) -> bool:
        """Whether its probe, of which nothing was fetched yet, may end for a target that did this last time."""
        if self._deadline is None or self.last_time < last_time:
            return False
        return self.last_time > last_time or self._clock() - self._began > self._seconds / 2

    def note(self, outcome: str) -> None:
        """Notice how its probe ended."""
        is_slow = self._clock() - self._began >= _SLOW_SECONDS
        self.hung = outcome in _HUNG or (outcome != "ok" and is_slow)

    def end(self) -> None:
        """Have its probe end without an answer."""
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time())


class Slots:
    """The probes in progress, at most so many, and what their targets did last time. Not for several threads."""

    def __init__(self, most: int, most_of_target: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.most_of_target, self._clock = most, most_of_target, clock
        self._held: list[Slot] = []
        self._last_times: OrderedDict[str, LastTime] = OrderedDict()

    def __len__(self) -> int:
        """How many are in progress."""
        return len(self._held)

    def take(self, target: str, seconds: float) -> Slot:
        """A slot for a probe that may take so long; raises BusyError."""
        own = sum(slot.target == target for slot in self._held)
        if own >= self.most_of_target:
            raise _refuse(f"{own} probes of this target are in progress (max_probes_per_target)")
        slot = Slot(target, self._last_times.get(target, LastTime.UNASKED), seconds, self._clock)
        if len(self._held) >= self.most:
            self._make_room(slot.last_time)
        self._held.append(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        """End a slot, and remember what its target did."""
        if slot in self._held:
            self._held.remove(slot)
        self._last_times[slot.target] = LastTime.HUNG if slot.hung else LastTime.ANSWERED
        self._last_times.move_to_end(slot.target)
        if len(self._last_times) > _MOST_TARGETS:
            self._last_times.popitem(last=False)

    def _make_room(self, last_time: LastTime) -> None:
        """End the probe that is least likely to be answered, and of these the one that has waited longest."""
        yielding = [slot for slot in self._held if slot.yields_to(last_time)]
        if not yielding:
            raise _refuse(f"{len(self._held)} probes are in progress (max_probes)")
        longest = max(yielding, key=lambda slot: slot.last_time)  # the first of them, which began first
        self._held.remove(longest)
        longest.end()


def _refuse(why: str) -> BusyError:
    return BusyError(f"{why}, ask again", retry_seconds=_RETRY_SECONDS)
