"""The statistics beside independent implementations of the same: scipy and statsmodels.

Both are imported by the tests: by itself each takes as long as the files of a room do, in every worker.
"""

import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.cutover.comparison.calibration import long_run_variance, student_factor
from servescope.cutover.statistics.counts import EventCounts
from servescope.cutover.statistics.sequences import Floats
from servescope.cutover.statistics.several import holm
from servescope.cutover.statistics.slow_fractions import slow_fractions

pytestmark = pytest.mark.slow


@given(hnp.arrays(np.float64, 60, elements=st.floats(-5.0, 5.0)), st.integers(1, 20))
def test_long_run_variance_is_newey_and_wests(values: Floats, lags: int) -> None:
    """The variance of a mean by statsmodels' HAC covariance, times the number of values."""
    from statsmodels.regression.linear_model import OLS

    fitted = OLS(values, np.ones(values.size)).fit(cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False})
    assert long_run_variance(values, lags) == pytest.approx(float(fitted.cov_params()[0, 0]) * values.size, abs=1e-9)


@given(hnp.arrays(np.int64, (4, 2, 2), elements=st.integers(1, 60)))
def test_slow_fractions_are_cochran_mantel_and_haenszels(tables: np.ndarray) -> None:
    """The sum of the excess, squared, over that of the variance is the statistic of the test."""
    from statsmodels.stats.contingency_tables import StratifiedTable

    (x2, fast2), (x1, fast1) = (tables[:, arm].T.astype(float) for arm in (0, 1))
    strata = slow_fractions(x1 + fast1, x1, x2 + fast2, x2)
    expected = StratifiedTable(np.moveaxis(tables, 0, -1)).test_null_odds(correction=False).statistic
    assert strata.excess.sum() ** 2 / strata.variance.sum() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_holm_is_holms() -> None:
    """The adjusted p-values of statsmodels."""
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(1).random((6, 4)) ** 4
    expected = np.array([multipletests(each, method="holm")[1] for each in p.T]).T
    np.testing.assert_allclose(np.exp(holm(np.log(p))), expected, rtol=1e-9)


@given(st.integers(0, 30), st.integers(0, 30), st.floats(0.01, 0.99), st.floats(0.1, 10.0))
def test_the_likelihood_of_counts_is_binomial(e1: int, e2: int, share: float, ratio: float) -> None:
    """Up to what does not depend on the ratio."""
    counts = EventCounts(*(np.array([value]) for value in (float(e1), 1.0 - share, float(e2), share)))
    logs = counts.eventful.spread(counts.eventful.likelihoods(np.array([1.0, ratio])))[:, 0]
    shares = [share * each / (1.0 - share + share * each) for each in (1.0, ratio)]
    expected = [float(scipy.stats.binom.logpmf(e2, e1 + e2, each)) for each in shares]
    assert logs[1] - logs[0] == pytest.approx(expected[1] - expected[0], abs=1e-8)


@pytest.mark.parametrize(("freedom", "score"), [(2.0, 1.645), (3.0, 1.645), (11.0, 1.645), (5.0, 3.0), (24.0, 3.0)])
def test_students_factor_is_never_too_small(freedom: float, score: float) -> None:
    """Within a tenth of scipy's quantiles, mostly above."""
    exact = (float(scipy.stats.t.isf(scipy.stats.norm.sf(score), freedom)) / score) ** 2
    assert 0.98 * exact <= student_factor(freedom, score) <= 1.12 * exact
    assert math.isfinite(student_factor(1.0, 1.645))
