"""Evidence that is as sharp for a late regression as for one from the start.

A sequence from the start of a stage averages a late regression away. So evidence is gathered from the start of each
stage and again every two hours, and mixed: the weighted mean of e-values, each of which counts one before it begins, is
an e-value. It exceeds what splitting alpha by the same weights would find. The formulas are in
docs/judge-method.md#changes-within-a-stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servescope.cutover.statistics.effects import BlockEffects
from servescope.cutover.statistics.pieces import Piece, compute_pieces
from servescope.cutover.statistics.sequences import Floats, log_evidence, tuned

RESTART_BLOCKS = 24
"""Five-minute blocks between two restarts."""
_STAGE_PART = 0.6
"""The part of the weight that sequences from the starts of the stages have; restarts share the rest."""
_EQUAL_RESTARTS = 12
"""Restarts, a day of them, with equal weights; later ones have ever less, so that all weights sum to one."""
RESTART_LIFE = 14 * 288
"""Five-minute blocks, fourteen days, for which a restarted sequence counts. After them its e-value is taken as nothing,
which leaves the mean one, so that the work for a block does not grow with the age of its stage."""
_AT_ONCE = 96
"""Blocks of which evidence is mixed together."""


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


def log_mixed(parts: Floats, weights: Floats, rest: float | None = None) -> Floats:
    """The logarithm of the weighted mean of e-values: (J, K) of theirs to (K,); weight below one is kept as one.

    `rest` is the weight that is kept where the others' are not all of it.
    """
    rest = max(0.0, 1.0 - float(weights.sum())) if rest is None else rest
    whole = np.concatenate([parts, np.zeros((1, parts.shape[1]))])
    with np.errstate(divide="ignore"):
        logs = whole + np.log(np.append(weights, rest))[:, None]
    highest = logs.max(axis=0)
    # One after another: numpy adds the numbers of one block alone in another order than those of several.
    return np.asarray(highest + np.log(np.cumsum(np.exp(logs - highest), axis=0)[-1]))


def log_evidence_of_harm(blocks: BlockEffects, variances: Floats, *, bound: ArrayLike, alpha: float, wanted: float,
                         starts: NDArray[np.int64], weights: Floats,
                         persistent: ArrayLike = 0.0) -> Floats:  # fmt: skip
    """The evidence after each block that effects exceed `bound`, from any of the starts on: (K,) logarithms, or (N, K)
    for N bounds.

    `variances` are those of the blocks, (K,), infinite where one is left out; `starts`, (J,), are indices of five
    minute blocks from which sequences begin, with their `weights`, (J,). The first is tuned to `wanted`, the
    others to a third of it: what two hours gather where it is meant for six. `persistent` is as in `accumulate`.
    """
    known = np.isfinite(variances)
    precision = np.where(known, 1.0 / np.where(known, variances, 1.0), 0.0)
    information = np.concatenate([[0.0], np.cumsum(precision)])
    beyond = blocks.effects - np.atleast_1d(np.asarray(bound, dtype=float))[:, None]
    moved = np.cumsum(np.where(known, precision * beyond, 0.0), axis=1)
    total = np.concatenate([np.zeros((moved.shape[0], 1)), moved], axis=1)
    # A merged block that began before a restart belongs to the sequences before it alone.
    before = np.searchsorted(blocks.last - blocks.merged + 1, starts, side="left")
    rhos = tuned(wanted, alpha) * np.where(np.arange(starts.size) == 0, 1.0, 1.0 / 3.0)
    lasting = np.broadcast_to(np.asarray(persistent, dtype=float), variances.shape)

    def sequences(rows: slice, columns: slice) -> Floats:
        gathered = information[None, 1:][:, columns] - information[before[rows]][:, None]
        logs = np.zeros((total.shape[0], *gathered.shape))
        row, column = np.nonzero(gathered > 0.0)
        gathered = gathered[row, column]
        drift = total[:, 1:][:, columns][:, column] - total[:, before[rows]][:, row]
        kept = 1.0 / (1.0 + gathered * lasting[columns][column])
        logs[:, row, column] = log_evidence(drift * kept, gathered * kept, rhos[rows][row])
        return logs

    # Where sequences begin follows from which blocks are merged.
    inputs = (information[1:], total[:, 1:], lasting, blocks.merged)
    mixed = log_mixture(sequences, before, weights, inputs, ("effects", rhos[0]), blocks.last)
    return mixed if np.ndim(bound) else mixed[0]


def log_mixture(
    sequences: Callable[[slice, slice], Floats],
    begins: NDArray[np.int64],
    weights: Floats,
    inputs: Sequence[NDArray[Any]],
    parameters: object,
    last: NDArray[np.int64] | None = None,
) -> Floats:
    """`log_mixed` of J sequences after each of K blocks, N times: (N, K). In pieces: all may be gigabytes.

    `sequences` gives the logarithms of some of them at some of the blocks, (N, j, k), from the `inputs`, (..., K) each,
    up to these and the `parameters`. They begin at the blocks `begins`, (J,), ascending: before, their e-values are
    one. `last` are the five-minute blocks that each block ends with, (K,), the blocks themselves when None. A sequence
    but the first counts for `RESTART_LIFE` of them.
    """
    size = inputs[0].shape[-1]
    ends = np.arange(size) if last is None else last
    inside = begins < size
    began = np.array([np.bincount(begins[inside], each, size) for each in (weights[inside], None)])

    def compute(columns: slice, _: object) -> Piece:
        whole = sequences(slice(0, 1), columns)
        if columns.stop == columns.start:
            return Piece(whole[:, 0], None)
        begun = max(1, int(np.searchsorted(begins, columns.stop - 1, side="right")))
        since = ends[begins[:begun]]
        first = max(1, int(np.searchsorted(since, ends[columns.start] - RESTART_LIFE, side="right")))
        later = sequences(slice(first, begun), columns)
        later[:, ends[None, columns] - since[first:, None] >= RESTART_LIFE] = -np.inf
        parts = np.concatenate([whole, later], axis=1)
        chosen = np.concatenate([weights[:1], weights[first:begun]])
        to_come = max(0.0, 1.0 - float(weights[:begun].sum()))
        return Piece(np.array([log_mixed(each, chosen, to_come) for each in parts]), None)

    return compute_pieces(compute, (*inputs, ends, began), parameters, _AT_ONCE)
