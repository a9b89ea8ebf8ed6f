"""The split of conversations over deployments, and how those under way follow a new one."""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Collection, Mapping
from itertools import accumulate

from servescope.emulator.clock import VirtualClock
from servescope.errors import UsageError

LONGEST_FOLLOW_SECONDS = 86_400.0 * 365


class Seat:
    """Where a conversation is served: `deployment`, by its place among all conversations.

    `place` and `delay` are numbers from 0 to 1, drawn once: which share it falls into, and how soon it follows a new
    split. `split` counts the changes of the split that it has followed.
    """

    __slots__ = ("delay", "deployment", "place", "split")

    def __init__(self, place: float, delay: float, deployment: str, split: int) -> None:
        self.place = place
        self.delay = delay
        self.deployment = deployment
        self.split = split


class Split:
    """The share of conversations that each deployment gets, by its id; together they are 1.

    New conversations are seated by the shares as they are. Those under way stay where they began, unless a change says
    within how many seconds they follow it: each then moves at a moment of its own, if the shares changed around its
    place, so that no more conversations move than have to.
    """

    def __init__(self, known: Collection[str], shares: Mapping[str, float], *, clock: VirtualClock, seed: int) -> None:
        self._shares = _normalise(known, shares)
        self._clock = clock
        self._random = random.Random(f"split-{seed}")
        self._delays = random.Random(f"follow-{seed}")
        self._changes = 0
        self._changed_at = clock.now
        self._follow_seconds: float | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The share of each deployment; a copy."""
        return dict(self._shares)

    def set_share(self, deployment_id: str, share: float, follow_seconds: float | None = None) -> None:
        """Give a deployment this share, and the rest to the others; raises UsageError.

        These keep their proportions, or get equal parts when they had nothing. Conversations under way follow within
        `follow_seconds`, each at its next turn after a moment of its own; with None they stay where they began.
        """
        if deployment_id not in self._shares:
            known = ", ".join(sorted(self._shares))
            raise UsageError(f"unknown deployment {deployment_id!r}, known: {known}")
        if not 0 <= share <= 1:
            raise UsageError(f"share of {deployment_id!r} is {share!r}, expected a share in [0, 1]")
        if follow_seconds is not None and not 0 <= follow_seconds <= LONGEST_FOLLOW_SECONDS:
            raise UsageError(f"follow_seconds is {follow_seconds!r}, expected 0 to {LONGEST_FOLLOW_SECONDS:g}")
        others = {name: kept for name, kept in self._shares.items() if name != deployment_id}
        if not others and share != 1:
            raise UsageError(f"share of {deployment_id!r} is {share!r}, expected 1: there is no other deployment")
        total = sum(others.values())
        for name, kept in others.items():
            self._shares[name] = (1 - share) * (kept / total if total > 0 else 1 / len(others))
        self._shares[deployment_id] = float(share)
        self._changes += 1
        self._changed_at = self._clock.now
        self._follow_seconds = follow_seconds

    def seat(self) -> Seat:
        """The seat of a new conversation."""
        place = self._random.random()
        return Seat(place, self._delays.random(), self._deployment_at(place), self._changes)

    def follow(self, seat: Seat) -> str:
        """The deployment of a conversation under way at its next turn, its seat being up to date afterwards."""
        moves = seat.split != self._changes and self._follow_seconds is not None
        if moves and self._clock.now - self._changed_at >= seat.delay * (self._follow_seconds or 0.0):
            seat.deployment, seat.split = self._deployment_at(seat.place), self._changes
        return seat.deployment

    def _deployment_at(self, place: float) -> str:
        names = list(self._shares)
        ends = list(accumulate(self._shares.values()))
        # As `random.choices` would: beyond the last end, which rounding may leave below 1, is the last deployment.
        return names[bisect(ends, place * ends[-1], 0, len(names) - 1)]


def _normalise(known: Collection[str], shares: Mapping[str, float]) -> dict[str, float]:
    if set(known) != shares.keys():
        raise UsageError(f"the traffic split is of {sorted(shares)}, expected of {sorted(known)}")
    for name, share in shares.items():
        if not 0 <= share < math.inf:
            raise UsageError(f"share of {name!r} is {share!r}, expected 0 or more")
    total = sum(shares.values())
    if not total > 0:
        raise UsageError("the shares of the traffic split are all 0, expected one above 0")
    return {name: shares[name] / total for name in known}
