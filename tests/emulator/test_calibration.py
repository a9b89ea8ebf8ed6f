"""Costs from measured points."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.emulator.engine.calibration import COLUMNS, calibrate
from servescope.emulator.engine.costs import StepCost
from servescope.errors import UsageError
from tests.support.drawing import examples

HEADER = "prefill_tokens,decoding,context_tokens,seconds"


def write(directory: Path, text: str) -> Path:
    """A file of points."""
    path = directory / "points.csv"
    path.write_text(text, encoding="utf-8")
    return path


def measure(cost: StepCost, *, points: int = 40, noise: float = 0.0, seed: int = 1) -> str:
    """Points as an engine of this cost would give, each off by up to `noise` of it."""
    draw = random.Random(f"points-{seed}")
    lines = [HEADER]
    for _ in range(points):
        prefill, decoding = draw.choice([0, 512, 2048]), draw.randrange(1, 65)
        context = decoding * draw.randrange(100, 4000)
        seconds = cost.weights + cost.per_prefill_token * prefill
        seconds += cost.per_decoding_sequence * decoding + cost.per_context_token * context
        lines.append(f"{prefill},{decoding},{context},{seconds * (1 + noise * draw.uniform(-1, 1))!r}")
    return "\n".join(lines) + "\n"


costs = st.builds(
    StepCost,
    weights=st.floats(1e-3, 0.1),
    per_prefill_token=st.floats(1e-6, 1e-3),
    per_decoding_sequence=st.floats(1e-6, 1e-3),
    per_context_token=st.floats(1e-9, 1e-6),
)


@settings(max_examples=examples(40), deadline=None)
@given(cost=costs)
def test_exact_points_give_the_cost_back(tmp_path_factory: pytest.TempPathFactory, cost: StepCost) -> None:
    """Whatever cost the points were made with is found again, and the residual is nil."""
    found = calibrate(write(tmp_path_factory.mktemp("points"), measure(cost)))
    for name in ("weights", "per_prefill_token", "per_decoding_sequence", "per_context_token"):
        assert getattr(found.cost, name) == pytest.approx(getattr(cost, name), rel=1e-3, abs=1e-12)
    assert found.residual_ratio < 1e-6
    assert found.points == 40


def test_noise_is_reported(tmp_path: Path) -> None:
    """Points off by up to a tenth give a cost a few percent off, and say how far they lie from it."""
    cost = StepCost(0.02, 1e-4, 0.0, 3e-4, 0.0, 2e-7)
    found = calibrate(write(tmp_path, measure(cost, points=300, noise=0.1)))
    assert found.cost.weights == pytest.approx(cost.weights, rel=0.1)
    assert found.cost.per_prefill_token == pytest.approx(cost.per_prefill_token, rel=0.05)
    assert 0.03 < found.residual_ratio < 0.09
    assert found.residual_ratio < found.worst_ratio < 0.2
    assert 2 <= found.worst_line <= 301
    assert "calibrated on 300 points" in found.describe()


def test_column_that_costs_nothing_is_said(tmp_path: Path) -> None:
    """No part of a cost is negative: what does not make steps longer costs nothing, and is named."""
    lines = [HEADER] + [f"0,{n},{c},{0.02 + 0.001 * n - 1e-7 * c!r}" for n in (1, 5, 9) for c in (100, 5000)]
    lines += ["100,1,100,0.03"]
    found = calibrate(write(tmp_path, "\n".join(lines)))
    assert found.cost.per_context_token == 0
    assert found.unused == ("context_tokens",)
    assert "context_tokens cost nothing" in found.describe()


def test_columns_left_out_cost_nothing(tmp_path: Path) -> None:
    """A part of the cost that nobody measured is none, not another engine's."""
    found = calibrate(write(tmp_path, "decoding,seconds\n1,0.011\n3,0.013\n"))
    assert (found.cost.weights, found.cost.per_decoding_sequence) == pytest.approx((0.010, 0.001))
    assert found.cost.per_prefill_token == found.cost.per_context_token == found.cost.per_draft_token == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty, expected a first line of columns"),
        ("decoding,latency\n1,2\n", "line 1: unknown column 'latency', supported: prefill_tokens"),
        ("decoding,decoding,seconds\n1,1,2\n", "line 1: column 'decoding' is there twice"),
        ("decoding\n1\n", "line 1: expected the column 'seconds'"),
        ("seconds\n1\n", "line 1: expected the column 'seconds' and one or more of prefill_tokens"),
        (HEADER + "\n1,2,3,0.1\n\n1,x,3,0.1\n", "line 4: decoding is 'x', expected a number of 0 or more"),
        (HEADER + "\n1,2,-3,0.1\n", "line 2: context_tokens is '-3'"),
        (HEADER + "\n1,2,3,nan\n", "line 2: seconds is 'nan', expected seconds above 0"),
        (HEADER + "\n1,2,3,0\n", "line 2: seconds is '0', expected seconds above 0"),
        (HEADER + "\n1,2,inf,1\n", "line 2: context_tokens is 'inf'"),
        (HEADER + "\n1,2,1\n", "line 2: 3 values, expected 4: prefill_tokens"),
        (HEADER + "\n1,2,3,0.1\n", "1 points for 4 parts of the cost .*expected 4 or more"),
        (HEADER + "\n0,1,100,0.1\n0,2,200,0.2\n0,3,300,0.3\n5,4,400,0.4\n5,5,500,0.4\n",
         "do not determine the cost: 'decoding', 'context_tokens' cannot be distinguished"),
        ("decoding,seconds\n4,0.1\n4,0.2\n", "the fixed part, 'decoding' cannot be distinguished"),
        ('decoding,seconds\n"1,0.1\n', "not a CSV file"),
    ],
)  # fmt: skip
def test_wrong_points_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """What is wrong is named with its line and column; points that leave the cost open say what they leave open."""
    with pytest.raises(UsageError, match=message):
        calibrate(write(tmp_path, text))


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A file that cannot be read is named; bytes that are no text are, too."""
    with pytest.raises(UsageError, match=r"cannot read .*nowhere"):
        calibrate(tmp_path / "nowhere.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00decoding")
    with pytest.raises(UsageError, match="not a CSV file in UTF-8"):
        calibrate(tmp_path / "binary.csv")


def test_points_of_a_spreadsheet_are_taken(tmp_path: Path) -> None:
    """A byte order mark, Windows line ends and spaces are no trouble."""
    path = tmp_path / "points.csv"
    path.write_bytes("\ufeffdecoding, seconds\r\n1, 0.011\r\n3, 0.013\r\n".encode())
    assert calibrate(path).cost.weights == pytest.approx(0.010)
    assert COLUMNS[-1] == "seconds"
