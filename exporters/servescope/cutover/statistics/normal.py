"""The normal distribution over arrays: numpy has none, and a call for each number is slow.

Cody's rational approximations of the complementary error function (W. J. Cody, Rational Chebyshev approximations for
the error function, Math. Comp. 23, 1969), to about 3e-14 of each value.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_NEAR: Final = 0.46875
_FAR: Final = 4.0
_NEAR_ABOVE: Final = (
    1.85777706184603153e-1, 3.16112374387056560e00, 1.13864154151050156e02, 3.77485237685302021e02,
    3.20937758913846947e03,
)  # fmt: skip
_NEAR_BELOW: Final = (
    1.0, 2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03,
)  # fmt: skip
_MIDDLE_ABOVE: Final = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e01,
    2.98635138197400131e02, 8.81952221241769090e02, 1.71204761263407058e03, 2.05107837782607147e03,
    1.23033935479799725e03,
)  # fmt: skip
_MIDDLE_BELOW: Final = (
    1.0, 1.57449261107098347e01, 1.17693950891312499e02, 5.37181101862009858e02, 1.62138957456669019e03,
    3.29079923573345963e03, 4.36261909014324716e03, 3.43936767414372164e03, 1.23033935480374942e03,
)  # fmt: skip
_FAR_ABOVE: Final = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
    1.60837851487422766e-2, 6.58749161529837803e-4,
)  # fmt: skip
_FAR_BELOW: Final = (
    1.0, 2.56852019228982242e00, 1.87295284992346047e00, 5.27905102951428412e-1, 6.05183413124413191e-2,
    2.33520497626869185e-3,
)  # fmt: skip


def normal_probability(score: ArrayLike) -> NDArray[np.float64]:
    """The probability that a standard normal variable is below each score."""
    return 0.5 * _erfc(np.asarray(score, dtype=float) / -math.sqrt(2.0))


def _erfc(x: NDArray[np.float64]) -> NDArray[np.float64]:
    size = np.abs(x)
    if ((size > _NEAR) & (size <= _FAR)).all():
        # As nearly always: to choose takes as long as to compute.
        above = _erfc_middle(size)
        return np.asarray(np.where(x < 0.0, 2.0 - above, above))
    above = np.where(np.isnan(size), np.nan, 0.0)
    for part, inside in (
        (_erfc_near, size <= _NEAR), (_erfc_middle, (size > _NEAR) & (size <= _FAR)), (_erfc_far, size > _FAR),
    ):  # fmt: skip
        if inside.any():
            above[inside] = part(size[inside])
    return np.asarray(np.where(x < 0.0, 2.0 - above, above))


def _erfc_near(size: NDArray[np.float64]) -> NDArray[np.float64]:
    square = np.square(size)
    return 1.0 - size * _polynomial(_NEAR_ABOVE, square) / _polynomial(_NEAR_BELOW, square)


def _erfc_middle(size: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.square(size)) * _polynomial(_MIDDLE_ABOVE, size) / _polynomial(_MIDDLE_BELOW, size)


def _erfc_far(size: NDArray[np.float64]) -> NDArray[np.float64]:
    inverse = 1.0 / np.square(size)
    tail = inverse * _polynomial(_FAR_ABOVE, inverse) / _polynomial(_FAR_BELOW, inverse)
    return np.exp(-np.square(size)) / size * (1.0 / math.sqrt(math.pi) - tail)


def _polynomial(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """By Horner's rule, the highest power first."""
    value = coefficients[0] * x + coefficients[1]
    for coefficient in coefficients[2:]:
        value *= x
        value += coefficient
    return value
