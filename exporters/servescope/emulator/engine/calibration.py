"""An engine's cost from points measured on a real one: a CSV file of steps, and the seconds each took.

The first line names the columns. `seconds` is what a step took; of the others, which say what was computed in it, those
that are there get a cost of their own, and those that are not cost nothing:

    prefill_tokens,decoding,context_tokens,seconds
    512,0,0,0.0331
    0,8,16384,0.0112
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from servescope.emulator.engine.costs import StepCost
from servescope.errors import UsageError
from servescope.settings.values import format_percent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Floats = NDArray[np.float64]

SECONDS = "seconds"

_COSTS = {
    "prefill_tokens": "per_prefill_token",
    "prefill_pairs": "per_prefill_pair",
    "decoding": "per_decoding_sequence",
    "draft_tokens": "per_draft_token",
    "context_tokens": "per_context_token",
}

COLUMNS = (*_COSTS, SECONDS)
"""The columns a file of points may have: prompt tokens, pairs of a prompt token and one it attends to, sequences that
decode, draft tokens of all of them, tokens of context of all of them, and the seconds of the step, which must be there
beside one other."""

_MOST_POINTS = 1_000_000


class _Point(NamedTuple):
    line: int
    amounts: list[float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The cost that fits measured points best, and how well: shares of a step's measured seconds.

    `residual_ratio` is the root of the mean square of the errors, `worst_ratio` the largest error, which is that of
    `worst_line` of the file. `unused` are the columns that the points show to cost nothing.
    """

    cost: StepCost
    points: int
    residual_ratio: float
    worst_ratio: float
    worst_line: int
    unused: tuple[str, ...]

    def describe(self) -> str:
        """The same in a sentence, for people."""
        free = f"; {', '.join(self.unused)} cost nothing" if self.unused else ""
        return (
            f"calibrated on {self.points} points: off by {format_percent(self.residual_ratio, 1)} (root mean square), "
            f"at most by {format_percent(self.worst_ratio, 1)} (line {self.worst_line}){free}"
        )


def calibrate(path: Path) -> Calibration:
    """The cost by which the steps in the file take what they took, by least squares of the relative errors.

    No part of the cost is below zero. Raises UsageError, naming file, line and column, for a file that cannot be read,
    and for points that leave a part of the cost open.
    """
    columns, points = _read(path)
    _check_determined(path, columns, points)
    import numpy as np

    measured = np.array([point.seconds for point in points])
    # Divided by what was measured, so that a short step counts as much as a long one.
    amounts = np.array([[1.0, *point.amounts] for point in points]) / measured[:, None]
    coefficients = _fit(amounts)
    errors = np.abs(amounts @ coefficients - 1.0)
    worst = int(errors.argmax())
    fixed, *parts = (float(each) for each in coefficients)
    # What is not a column costs nothing: a default would be of another engine.
    costs = dict.fromkeys(_COSTS.values(), 0.0) | {
        _COSTS[column]: part for column, part in zip(columns, parts, strict=True)
    }
    return Calibration(
        cost=StepCost(weights=fixed, **costs),
        points=len(points),
        residual_ratio=float(np.sqrt(np.mean(errors**2))),
        worst_ratio=float(errors[worst]),
        worst_line=points[worst].line,
        unused=tuple(column for column, part in zip(columns, parts, strict=True) if part == 0),
    )


def _fit(amounts: _Floats) -> _Floats:
    """The coefficients, none negative, that bring every row nearest to 1.

    Of the subsets of columns the best whose own least squares are all positive is the answer; there are 64 at most.
    """
    import numpy as np

    target = np.ones(len(amounts))
    best, least = np.zeros(amounts.shape[1]), math.inf
    for size in range(amounts.shape[1], 0, -1):
        for chosen in combinations(range(amounts.shape[1]), size):
            part = amounts[:, chosen]
            solution = np.linalg.lstsq(part / _norms(part), target, rcond=None)[0] / _norms(part)
            error = float(np.sum((part @ solution - target) ** 2))
            # A column more that brings nothing but rounding is none.
            if (solution >= 0).all() and error < least * (1 - 1e-9):
                best, least = np.zeros(amounts.shape[1]), error
                best[list(chosen)] = solution
    return best


def _check_determined(path: Path, columns: Sequence[str], points: Sequence[_Point]) -> None:
    import numpy as np

    names = ("the fixed part", *(f"{column!r}" for column in columns))
    if len(points) < len(names):
        raise UsageError(
            f"{path}: {len(points)} points for {len(names)} parts of the cost ({', '.join(names)}), expected "
            f"{len(names)} or more"
        )
    matrix = np.array([[1.0, *point.amounts] for point in points])
    matrix = matrix / _norms(matrix)
    rank = int(np.linalg.matrix_rank(matrix, tol=1e-6))
    if rank == len(names):
        return
    # A column without which the rest says as much is one that the others imply.
    open_ = [
        name
        for at, name in enumerate(names)
        if int(np.linalg.matrix_rank(np.delete(matrix, at, axis=1), tol=1e-6)) == rank
    ]
    raise UsageError(
        f"{path}: the points do not determine the cost: {', '.join(open_)} cannot be distinguished, expected points in "
        "which they vary independently, or fewer columns"
    )


def _norms(matrix: _Floats) -> _Floats:
    import numpy as np

    norms: _Floats = np.linalg.norm(matrix, axis=0)
    norms[norms == 0] = 1.0
    return norms


def _read(path: Path) -> tuple[list[str], list[_Point]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            _check_header(path, header)
            points = []
            for row in rows:
                if row:
                    points.append(_parse(path, rows.line_num, header, row))
                if len(points) > _MOST_POINTS:
                    raise UsageError(f"{path}: more than {_MOST_POINTS} points")
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a CSV file in UTF-8: {error}") from error
    return [name for name in header if name != SECONDS], points


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not any(header):
        raise UsageError(f"{path}: empty, expected a first line of columns, of {', '.join(COLUMNS)}")
    for name in header:
        if name not in COLUMNS:
            raise UsageError(f"{path}: line 1: unknown column {name!r}, supported: {', '.join(COLUMNS)}")
        if header.count(name) > 1:
            raise UsageError(f"{path}: line 1: column {name!r} is there twice")
    if SECONDS not in header or len(header) < 2:
        raise UsageError(f"{path}: line 1: expected the column {SECONDS!r} and one or more of {', '.join(_COSTS)}")


def _parse(path: Path, line: int, header: Sequence[str], row: Sequence[str]) -> _Point:
    if len(row) != len(header):
        raise UsageError(f"{path}: line {line}: {len(row)} values, expected {len(header)}: {', '.join(header)}")
    values = {}
    for name, text in zip(header, row, strict=True):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (value > 0 if name == SECONDS else value >= 0) or math.isinf(value):
            expected = "seconds above 0" if name == SECONDS else "a number of 0 or more"
            raise UsageError(f"{path}: line {line}: {name} is {text.strip()!r}, expected {expected}")
        values[name] = value
    return _Point(line, [values[name] for name in header if name != SECONDS], values[SECONDS])
