"""Whether what a process counts agrees with itself: requests that started, that ended, and that its histograms have.

Counters of one process are of the same requests, so that where some of them lack what others have, one has been lost on
the way: an answer that was thinned, emptied or exchanged. Which of them it is cannot be known, so the block is torn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import SPEED, Part
from servescope.cutover.statistics.sequences import Floats
from servescope.increments.batches import HistogramGains, Processes, TargetBatch, sum_counters, sum_gauges
from servescope.increments.blocks import BLOCK_MS
from servescope.sources.map_files import metric_map

TOLERANCE: Final = 0.25
"""The part of its requests by which the counters of a process may differ in a block."""
LEAST: Final = 10.0
"""Requests by which they may differ in any case."""
IN_FLIGHT: Final = 3.0
"""By how many times the requests in flight on average they may differ further: these end in another block."""

MOST_RESETS: Final = 2.0
"""How often counters may begin anew in a block without their process, as where an engine sleeps."""

DURATION: Final = "request_duration_seconds"
FIRST_TOKEN: Final = "time_to_first_token_seconds"  # noqa: S105  # a metric, and no secret
PER_TOKEN: Final = "time_per_output_token_seconds"  # noqa: S105  # likewise
HANDING_OVER: Final = frozenset({"prefill", "decode"})
"""Roles whose requests start in one process and end in another."""

_ENDED: Final = (Part("requests_total"),)
_OK: Final = (Part("requests_total", (("outcome", ("ok",)),)),)
_STARTED: Final = (Part("requests_started_total"),)


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """Of T targets and n blocks, (T, n) each: where a block is `torn`, and the most requests that any counter has.

    `short` are by histogram the blocks in which it alone lacks requests that others have. `served` is NaN where nothing
    says how many there were, and 0 where nothing was in flight at any scrape.
    """

    torn: NDArray[np.bool_]
    short: Mapping[str, NDArray[np.bool_]]
    served: Floats


def agree(
    batch: TargetBatch,
    blocks: NDArray[np.int64],
    processes: Processes,
    histograms: Mapping[str, HistogramGains],
    required: Set[str],
) -> Agreement:
    """How the counters of a batch agree, of whose histograms those that are `required` may tear whole `blocks`, (n,).

    No histogram has more requests than there were. Of what fails, sources observe the one or not, so that outcomes but
    ok are between.
    """
    nothing = np.full((len(batch.targets), batch.columns.size), np.nan)

    def counted(parts: tuple[Part, ...]) -> Floats:
        found = sum_counters(batch, parts, processes)
        return nothing if found is None else found

    counts = {name: each.count for name, each in histograms.items()}
    ended, ok, started = counted(_ENDED), counted(_OK), counted(_STARTED)
    lasted = histograms[DURATION].total / (BLOCK_MS / 1000) if DURATION in histograms else nothing
    slack = LEAST + IN_FLIGHT * np.nan_to_num(np.fmax(_level(batch, ("concurrent_requests",)), lasted))
    most = np.fmax(ended, started)
    # What counters had that begin anew at every scrape is lost in part.
    torn = _impossible(batch) | ((batch.tallies["resets"] > MOST_RESETS) & (batch.started <= blocks))
    if batch.targets[0].identity.role not in HANDING_OVER:
        torn |= _exceeds(started, ended, slack) | _exceeds(ended, started, slack)
    served = most
    for name in required & counts.keys():
        torn |= _exceeds(counts[name], most, slack)
        served = np.fmax(served, counts[name])
    peers = {name: counts[name] for name in required & counts.keys()}
    least = {name: peer_of(name, {batch.targets[0].source}, peers, ok) for name in counts}
    short = {name: _exceeds(peer, counts[name], slack) for name, peer in least.items() if peer is not None}
    idle = _level(batch, ("concurrent_requests", "queued_requests")) == 0.0
    return Agreement(torn, short, np.where(np.isnan(served) & idle, 0.0, served))


def peer_of(name: str, sources: Collection[str], counts: Mapping[str, Floats], ok: Floats) -> Floats | None:
    """What a histogram has at least, as its processes count it otherwise; None where nothing of theirs says that.

    The duration of every request that was ok is observed, and so is its first token. Both histograms of the pace of
    tokens have the requests of two tokens or more. Where a source observes otherwise, its map says so.
    """
    observed = {found.observes for source in sources if (found := metric_map(source, name)) is not None}
    if "some" in observed:
        return None
    if name in {DURATION, FIRST_TOKEN} or "every" in observed:
        return ok
    return counts.get({PER_TOKEN: SPEED, SPEED: PER_TOKEN}.get(name, ""))


def _exceeds(one: Floats, other: Floats, slack: Floats) -> NDArray[np.bool_]:
    """Where one has more than the other by more than may be; nowhere where either is not known."""
    with np.errstate(invalid="ignore"):
        return np.asarray(one - other > TOLERANCE * one + slack)


def _impossible(batch: TargetBatch) -> NDArray[np.bool_]:
    """Where a counter of requests gained what none can."""
    rows = [row for part in (*_ENDED, *_STARTED) for row in batch.rows.of(part)]
    gains = batch.gains[:, rows]
    return np.asarray(((gains < 0.0) | (gains == np.inf)).any(axis=1))


def _level(batch: TargetBatch, names: tuple[str, ...]) -> Floats:
    found = sum_gauges(batch, tuple(Part(name) for name in names))
    return np.full((len(batch.targets), batch.columns.size), np.nan) if found is None else found
