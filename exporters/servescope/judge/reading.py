"""The evidence of a plan, read from a store or a Prometheus: only its arms, and only what judging them needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from servescope.contract.events import Event
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment, Identity
from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.evidence.folding import ArmArrays, read_families
from servescope.cutover.plan.plan import Arm, CutoverPlan
from servescope.errors import ServescopeError
from servescope.increments.accumulation import block_of
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.store.history import History
from servescope.store.records import TargetStatus

USUAL_INTERVAL_MS: Final = 15_000
"""The scrape interval where nothing was scraped from which it could be seen."""
_SETTLING_INTERVALS: Final = 2
_WRITING_MS: Final = 5_000


def read_evidence(
    history: History, plan: CutoverPlan, start_ms: int, at_ms: int, *, events_from_ms: int | None = None
) -> Evidence:
    """What was observed of both arms from `start_ms` on and was known at `at_ms`.

    A block is closed when every target had time to be scraped again, so that the evidence of a time is the same
    whenever it is read. What keeps the history from answering is among the `problems` of the evidence, and never
    raised. Events are read from `events_from_ms` on where that is given.
    """
    problems: list[str] = []
    try:
        statuses = [status for status in history.targets() if _is_of(plan, status.identity)]
        deployments = [each for each in history.deployments() if _may_hold((plan.v1, plan.v2), each)]
    except ServescopeError as error:
        return Evidence((), at_ms, USUAL_INTERVAL_MS, problems=(str(error),))
    names, targets = read_families(plan), []
    for deployment in deployments:
        try:
            # In a replay the block that `at_ms` lies in shows who was scraped then.
            read = history.read_increments(deployment, names, start_ms, at_ms + BLOCK_MS)
        except ServescopeError as error:
            problems.append(f"deployment {deployment.deployment_id!r}: {error}")
        else:
            targets += [target for target in read if _is_of(plan, target.identity)]
    interval_ms = _interval_ms(history, targets, at_ms)
    until_ms = max(start_ms, closed_until(at_ms, interval_ms))
    closed = [cut for target in targets if (cut := _closed(target, until_ms)).blocks.size]
    events, warnings = _read_events(history, start_ms if events_from_ms is None else events_from_ms, at_ms)
    return Evidence(
        targets=tuple(closed),
        observed_until_ms=until_ms,
        scrape_interval_ms=interval_ms,
        last_scrape_ms=_last_scrapes(targets, statuses, at_ms),
        events=events,
        warnings=(*history.remarks(), *warnings),
        problems=tuple(problems),
    )


def refresh_evidence(
    history: History, plan: CutoverPlan, evidence: Evidence, events_from_ms: int, at_ms: int
) -> Evidence:
    """The evidence as it is known at a later time at which no more block is closed: last scrapes, and events."""
    try:
        statuses = [status for status in history.targets() if _is_of(plan, status.identity)]
    except ServescopeError as error:
        return replace(evidence, problems=(str(error),))
    events, warnings = _read_events(history, events_from_ms, at_ms)
    return replace(
        evidence,
        observed_until_ms=closed_until(at_ms, evidence.scrape_interval_ms),
        last_scrape_ms=evidence.last_scrape_ms | _last_scrapes((), statuses, at_ms),
        events=events,
        warnings=(*history.remarks(), *warnings),
    )


def closed_until(at_ms: int, interval_ms: int) -> int:
    """Up to when blocks are closed at a time: every target had time to be scraped again, and that to be stored."""
    return at_ms - _SETTLING_INTERVALS * interval_ms - _WRITING_MS


def last_scraped(folded: ArmArrays) -> dict[str, int]:
    """When each target of what was folded was last scraped, to the block."""
    found: dict[str, int] = {}
    for arm in (folded.v1, folded.v2):
        seen = arm.scrapes > 0.0
        ever = np.flatnonzero(seen.any(axis=1))
        if ever.size:
            ends = arm.blocks[::-1][seen[ever, ::-1].argmax(axis=1)] + BLOCK_MS
            found |= {arm.replicas[replica]: end for replica, end in zip(ever.tolist(), ends.tolist(), strict=True)}
    return found


def find_identities(history: History, evidence: Evidence) -> set[Identity]:
    """Every target that was observed, or is a target now, of whatever arm."""
    return {target.identity for target in evidence.targets} | {status.identity for status in history.targets()}


def _is_of(plan: CutoverPlan, identity: Identity) -> bool:
    return plan.v1.selects(identity) or plan.v2.selects(identity)


def _may_hold(arms: Iterable[Arm], deployment: Deployment) -> bool:
    """Whether a target of the deployment could be in one of the arms."""
    return any(
        all(getattr(deployment, label) == value for label, value in selector.items() if label in DEPLOYMENT_LABELS)
        for arm in arms
        for selector in arm.selectors
    )


def _interval_ms(history: History, targets: Sequence[TargetIncrements], at_ms: int) -> int:
    """The scrape interval: as it is recorded, or else as it shows in the blocks."""
    settings = history.settings_at(at_ms)
    if settings is not None:
        return settings.scrape_interval_ms
    counts = [target.tallies.scrapes + target.tallies.failed for target in targets]
    made = np.concatenate(counts) if counts else np.zeros(0)
    usual = float(np.median(made[made > 0])) if (made > 0).any() else BLOCK_MS / USUAL_INTERVAL_MS
    return round(BLOCK_MS / max(usual, 1.0))


def _closed(target: TargetIncrements, until_ms: int) -> TargetIncrements:
    closed = int(np.searchsorted(target.blocks, until_ms - BLOCK_MS, side="right"))
    return target if closed == target.blocks.size else target.at(slice(0, closed))


def _last_scrapes(targets: Sequence[TargetIncrements], statuses: Sequence[TargetStatus], at_ms: int) -> dict[str, int]:
    """When each target was last scraped before `at_ms`: exactly by its status, in a replay to the block.

    A target that was scraped since may have been missed just before: the block in progress says whether it was, once
    it is closed.
    """
    begun_ms = block_of(at_ms)
    found = {
        status.target_id: min(success_ms, at_ms)
        for status in statuses
        if (success_ms := status.last_success_ms) is not None and success_ms < begun_ms + 2 * BLOCK_MS
    }
    for target in targets:
        if target.target_id not in found and (seen := target.blocks[target.tallies.scrapes > 0]).size:
            found[target.target_id] = min(int(seen[-1]) + BLOCK_MS, at_ms)
    return found


def _read_events(history: History, start_ms: int, end_ms: int) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    """Events, and why there are none where they cannot be read: no verdict depends on them."""
    try:
        return tuple(history.read_events(start_ms, end_ms)), ()
    except ServescopeError as error:
        return (), (f"events could not be read: {error}",)
