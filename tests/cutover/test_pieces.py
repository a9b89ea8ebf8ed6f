"""What is computed in pieces is what is computed at once, whatever is known of earlier ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servescope.cutover.statistics import change, counts, pieces
from servescope.cutover.statistics.effects import mean_effects
from servescope.cutover.statistics.pieces import Piece, compare_pieces, compute_pieces

LENGTH = 700


def evidence(random: np.random.Generator, length: int) -> list[np.ndarray[Any, Any]]:
    """Everything that is computed in pieces, of so many blocks of drawn traffic."""
    requests = [random.poisson(mean, LENGTH)[:length].astype(float) for mean in (200, 60)]
    events = [random.poisson(mean, LENGTH)[:length].astype(float) for mean in (4, 2)]
    sums = [each * random.gamma(9.0, 0.1, LENGTH)[:length] for each in requests]
    blocks = mean_effects(requests[0], sums[0], requests[1], sums[1], 0.8)
    starts, weights = change.schedule(length, stage_weight=0.6)
    harm = change.log_evidence_of_harm(
        blocks, blocks.variances(0.001), bound=(0.0, 0.05), alpha=0.05, wanted=400.0, starts=starts, weights=weights,
    )  # fmt: skip
    happened = counts.EventCounts(events[0], requests[0], events[1], requests[1])
    above = counts.log_evidence_above(happened, 1.0, dispersion=1.2, starts=starts, weights=weights)
    return [harm, above, np.array(counts.ratio_interval(happened, 0.025, 0.01))]


@pytest.mark.parametrize("length", [1, 95, 96, 97, 289, LENGTH])
def test_as_blocks_come_nothing_changes(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: with what earlier judgements left, and with nothing known."""
    evidence(np.random.default_rng(3), length - length // 3)
    known = evidence(np.random.default_rng(3), length)
    monkeypatch.setattr(pieces, "_known", type(pieces._known)())
    anew = evidence(np.random.default_rng(3), length)

    for one, other in zip(known, anew, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_change_of_the_past_is_computed_anew() -> None:
    """From the piece on that has it, and nothing before; other parameters are another series."""
    computed: list[int] = []

    def compute(columns: slice, state: float) -> Piece:
        computed.append(columns.start)
        total = state + np.cumsum(values[columns])
        return Piece(total[None], float(total[-1]))

    def running(parameter: str) -> np.ndarray[Any, Any]:
        computed.clear()
        found = compute_pieces(compute, [values], parameter, 10, 0.0)
        return np.asarray(found[0])

    values = np.arange(45.0)
    for parameter, expected in (("one", [0, 10, 20, 30, 40]), ("one", [40]), ("other", [0, 10, 20, 30, 40])):
        np.testing.assert_array_equal(running(parameter), np.cumsum(values))
        assert computed == expected
    values[25] = -1.0
    np.testing.assert_array_equal(running("one"), np.cumsum(values))
    assert computed == [20, 30, 40]


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not asked for is forgotten first."""
    monkeypatch.setattr(pieces, "_known", type(pieces._known)())
    monkeypatch.setattr(pieces, "_MOST_KNOWN", 3)
    for number in range(5):
        compute_pieces(lambda columns, _: Piece(np.zeros((1, columns.stop - columns.start)), None),
                       [np.zeros(8)], number, 4)  # fmt: skip

    assert len(pieces._known) == 3


def test_an_old_restart_counts_nothing_and_a_young_one_all() -> None:
    """A harm that begins late in a long stage is found as soon as in one that has just begun."""
    length, begun = change.RESTART_LIFE + 2000, change.RESTART_LIFE + 1000
    counted = np.full(length, 100.0)
    sums = np.where(np.arange(length) >= begun, 115.0, 100.0)
    blocks = mean_effects(counted, counted, counted, sums, 0.5)
    starts, weights = change.schedule(length)
    found = change.log_evidence_of_harm(
        blocks, blocks.variances(0.0), bound=0.0, alpha=0.05, wanted=400.0, starts=starts, weights=weights
    )

    assert found[begun - 1] < 0.0
    assert found[begun + 60] > 10.0
    assert np.isfinite(found).all()


def test_what_was_compared_is_known() -> None:
    """Of inputs that are kept, complete pieces are computed once, and all anew where anything of them has changed."""
    computed: list[int] = []

    def compute(columns: slice, state: float) -> tuple[list[float], float]:
        computed.append(columns.start)
        total = state + np.cumsum(values[0, columns])
        return total.tolist(), float(total[-1])

    def running(size: int) -> list[float]:
        computed.clear()
        pieces = compare_pieces(compute, (values[:, :size],), "compared", 10, 0.0)
        return [each for piece in pieces for each in piece]

    values = np.arange(45.0)[None]
    for size, expected in ((1, [0]), (25, [0, 10, 20]), (31, [20, 30]), (45, [30, 40]), (45, [40]), (7, [0])):
        assert running(size) == np.cumsum(values[0, :size]).tolist()
        assert computed == expected
    values = values.copy()
    values[0, 33] = 0.5
    assert running(45) == np.cumsum(values[0]).tolist()
    assert computed == [0, 10, 20, 30, 40]
