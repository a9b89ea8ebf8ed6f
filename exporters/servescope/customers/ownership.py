"""Since when each deployment belongs to whom: nothing from before leaves to its owner."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from servescope.contract.identity import Deployment, Group
from servescope.customers.policy import Policy

NOBODY: Final = ""


class Ownership(NamedTuple):
    """Whose a deployment is from `since_ms` on, which may be `NOBODY`; to `free_ms` it was another's, 0 for never."""

    customer: str
    since_ms: int
    free_ms: int = 0


Ownerships = Mapping[Group, Ownership]
"""By deployment, which is its owner's in each phase of a rollout."""


def pass_on(known: Ownerships, policies: Iterable[Policy], waiting: Collection[str], now_ms: int) -> Ownerships:
    """Whose each deployment is when these policies apply from now on.

    It is the customer's from now on where that is new, or from when its policy says, but never from a time at which it
    was another's. What belongs to customers that are `waiting`, whose policies cannot be used now, stays theirs.
    """
    claims = {each.group: policy for policy in policies for each in policy.deployments}
    passed: dict[Group, Ownership] = {}
    for group in {*known, *claims}:
        before = _not_ahead(known.get(group, Ownership(NOBODY, 0)), now_ms)
        policy = claims.get(group)
        if policy is not None:
            passed[group] = _owned_by(policy, policy.since_ms.get(group), before, now_ms)
        elif before.customer in (NOBODY, *waiting):
            passed[group] = before
        else:
            passed[group] = Ownership(NOBODY, now_ms, now_ms)
    return passed


def _owned_by(policy: Policy, chosen_ms: int | None, before: Ownership, now_ms: int) -> Ownership:
    is_same = before.customer == policy.name
    free_ms = before.free_ms if is_same or before.customer == NOBODY else now_ms
    if chosen_ms is not None:
        return Ownership(policy.name, max(chosen_ms, free_ms), free_ms)
    return before if is_same else Ownership(policy.name, now_ms, free_ms)


def _not_ahead(ownership: Ownership, now_ms: int) -> Ownership:
    """The same, at the latest from now on: a clock that was ahead noted a time that has not come yet."""
    return Ownership(ownership.customer, min(ownership.since_ms, now_ms), min(ownership.free_ms, now_ms))


def since_of(policy: Policy, ownerships: Ownerships) -> dict[Deployment, int]:
    """Since when each deployment of a policy is its customer's."""
    return {each: ownerships[each.group].since_ms for each in policy.deployments}
