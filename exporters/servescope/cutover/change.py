"""Evidence that is as sharp for a late regression as for one from the start (4.11).

A sequence from the start of a stage averages a late regression away. So evidence is gathered from the start of each
stage and again every two hours, and mixed: the weighted mean of e-values, each of which counts one before it begins, is
an e-value. It exceeds what splitting alpha by the same weights would find.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servescope.cutover.effects import BlockEffects
from servescope.cutover.sequences import Floats, log_evidence, tuned

RESTART_BLOCKS = 24
"""Five-minute blocks between two restarts."""
_STAGE_PART = 0.6
"""The part of the weight that sequences from the starts of the stages have; restarts share the rest."""
_EQUAL_RESTARTS = 12
"""Restarts, a day of them, with equal weights; later ones have ever less, so that all weights sum to one."""


def restart_weights(count: int) -> Floats:
    """The weights of the first restarts: a day of equal ones with half of the sum, and then ever smaller ones."""
    ordinal = np.arange(count)
    late = np.maximum(ordinal, _EQUAL_RESTARTS)
    return np.where(ordinal < _EQUAL_RESTARTS, 0.5 / _EQUAL_RESTARTS, 0.5 * _EQUAL_RESTARTS / (late * (late + 1.0)))


def schedule(blocks: int, *, stage_weight: float = 1.0) -> tuple[NDArray[np.int64], Floats]:
    """Where the sequences of one stage of `blocks` five-minute blocks begin, and their weights: (J,) each.

    `stage_weight` is the part of the whole that this stage has (`sequences.split_alpha`). What is missing to that are
    the restarts to come.
    """
    starts = np.arange(0, max(blocks, 1), RESTART_BLOCKS, dtype=np.int64)
    weights = (1.0 - _STAGE_PART) * restart_weights(starts.size)
    weights[0] += _STAGE_PART
    return starts, stage_weight * weights


def log_mixed(parts: Floats, weights: Floats) -> Floats:
    """The logarithm of the weighted mean of e-values: (J, K) of theirs to (K,); weight below one is kept as one."""
    rest = max(0.0, 1.0 - float(weights.sum()))
    whole = np.concatenate([parts, np.zeros((1, parts.shape[1]))])
    with np.errstate(divide="ignore"):
        logs = whole + np.log(np.append(weights, rest))[:, None]
    highest = logs.max(axis=0)
    return np.asarray(highest + np.log(np.exp(logs - highest).sum(axis=0)))


def log_evidence_of_harm(blocks: BlockEffects, variances: Floats, *, bound: float, alpha: float, wanted: float,
                         starts: NDArray[np.int64], weights: Floats,
                         persistent: ArrayLike = 0.0) -> Floats:  # fmt: skip
    """The evidence after each block that effects exceed `bound`, from any of the starts on: (K,) logarithms.

    `variances` are those of the blocks, (K,), infinite where one is left out; `starts`, (J,), are indices of five
    minute blocks from which sequences begin, with their `weights`, (J,). The first is tuned to `wanted`, the
    others to a third of it: what two hours gather where it is meant for six. `persistent` is as in `accumulate`.
    """
    known = np.isfinite(variances)
    precision = np.where(known, 1.0 / np.where(known, variances, 1.0), 0.0)
    information = np.concatenate([[0.0], np.cumsum(precision)])
    total = np.concatenate([[0.0], np.cumsum(np.where(known, precision * (blocks.effects - bound), 0.0))])
    # A merged block that began before a restart belongs to the sequences before it alone.
    before = np.searchsorted(blocks.last - blocks.merged + 1, starts, side="left")
    gathered = np.maximum(information[None, 1:] - information[before][:, None], 0.0)
    drift = np.where(gathered > 0.0, total[None, 1:] - total[before][:, None], 0.0)
    kept = 1.0 / (1.0 + gathered * np.asarray(persistent, dtype=float))
    rhos = tuned(wanted, alpha) * np.where(np.arange(starts.size) == 0, 1.0, 1.0 / 3.0)
    return log_mixed(log_evidence(drift * kept, gathered * kept, rhos[:, None]), weights)
