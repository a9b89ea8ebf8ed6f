"""Requests of a made-up cutover that fail when a test wants them to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from servescope.contract.samples import Series, make_labels
from servescope.cutover.evidence.evidence import Evidence
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from tests.support.cutover_evidence import Story

Fails = Callable[[str, int, int], float]
"""The part of its requests that fails, by stack, number of the replica and block since the cutover began."""


def with_failures(evidence: Evidence, story: Story, fails: Fails) -> Evidence:
    """The evidence in which so many of the requests that succeeded fail."""
    replicas = {each.target_id: int(each.identity.replica.rsplit("-", 1)[1]) for each in evidence.targets}
    return replace(
        evidence, targets=tuple(_failing(each, replicas[each.target_id], story, fails) for each in evidence.targets)
    )


def _failing(target: TargetIncrements, replica: int, story: Story, fails: Fails) -> TargetIncrements:
    gains = np.array(target.gains)
    ok, error = (
        target.series.index(Series("requests_total", make_labels({"outcome": outcome}))) for outcome in ("ok", "error")
    )
    for column, since in enumerate((target.blocks - story.started_ms) // BLOCK_MS):
        part = fails(target.identity.inference_stack, replica, int(since)) if since >= 0 else 0.0
        failing = np.round(part * gains[ok, column])
        gains[ok, column] -= failing
        gains[error, column] += failing
    return replace(target, gains=gains)
