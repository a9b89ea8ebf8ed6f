"""Since when each deployment belongs to whom: nothing from before leaves to its owner."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from servescope.contract.identity import Deployment, Group
from servescope.customers.policy.policy import Policy

NOBODY: Final = ""
NOT_YET_MS: Final = 253_402_214_400_000
"""From the last day of the year 9999 on: until the clock is right, and the same is passed on again."""


class Ownership(NamedTuple):
    """Whose a deployment is from `since_ms` on, which may be `NOBODY`; to `free_ms` it was another's, 0 for never."""

    customer: str
    since_ms: int
    free_ms: int = 0


Ownerships = Mapping[Group, Ownership]
"""By deployment, which is its owner's in each phase of a rollout."""


def pass_on(
    known: Ownerships, policies: Iterable[Policy], waiting: Collection[str], now_ms: int, *, is_behind: bool = False
) -> Ownerships:
    """Whose each deployment is when these policies apply from now on.

    It is the customer's from now on where that is new, or from when its policy says, but never from a time at which it
    was another's. What belongs to customers that are `waiting`, whose policies cannot be used now, stays theirs.

    A clock that `is_behind` has shown a later time: it was ahead, or is wrong now. What changes hands is then free
    `NOT_YET`, and what did is not from earlier on: by the right clock it may be the other's still.
    """
    freed_ms = NOT_YET_MS if is_behind else now_ms
    claims = {each.group: policy for policy in policies for each in policy.deployments}
    passed: dict[Group, Ownership] = {}
    for group in {*known, *claims}:
        before = _not_ahead(known.get(group, Ownership(NOBODY, 0)), now_ms, freed_ms)
        policy = claims.get(group)
        if policy is not None:
            is_free = before.customer in (policy.name, NOBODY)
            free_ms = before.free_ms if is_free else freed_ms
            passed[group] = _owned_by(policy, policy.since_ms.get(group), before, max(now_ms, free_ms), free_ms)
        elif before.customer in (NOBODY, *waiting):
            passed[group] = before
        else:
            passed[group] = Ownership(NOBODY, freed_ms, freed_ms)
    return passed


def _owned_by(policy: Policy, chosen_ms: int | None, before: Ownership, from_ms: int, free_ms: int) -> Ownership:
    if chosen_ms is not None:
        return Ownership(policy.name, max(chosen_ms, free_ms), free_ms)
    return before if before.customer == policy.name else Ownership(policy.name, from_ms, free_ms)


def _not_ahead(ownership: Ownership, now_ms: int, freed_ms: int) -> Ownership:
    """The same, at the latest from now on, or from when it was free: a clock that was ahead noted a time to come."""
    free_ms = min(ownership.free_ms, freed_ms)
    return Ownership(ownership.customer, min(ownership.since_ms, max(now_ms, free_ms)), free_ms)


def since_of(policy: Policy, ownerships: Ownerships) -> dict[Deployment, int]:
    """Since when each deployment of a policy is its customer's."""
    return {each: ownerships[each.group].since_ms for each in policy.deployments}
