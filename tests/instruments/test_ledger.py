"""Series as samples and as text: what is kept of a page is never older than the series."""

from __future__ import annotations

import numpy as np

from servescope.contract.metrics import METRICS
from servescope.contract.samples import Sample, format_series, format_value
from servescope.instruments.ledger import Distribution, Exemplar, Ledger, Scalar

SECONDS = METRICS["request_duration_seconds"]


def lines(series: Scalar | Distribution) -> dict[str, float]:
    """The text's values by series."""
    pairs = (line.rsplit(b" ", 1) for line in series.text().splitlines())
    return {name.decode(): float(number) for name, number in pairs}


def flat(samples: list[Sample]) -> dict[str, float]:
    """The samples' values by series, as a page writes it."""
    return {format_series(sample.name, sample.labels): sample.value for sample in samples}


def test_a_histogram_shows_what_was_observed_since_its_last_text() -> None:
    """The text is made once for many readers, and anew after each observation."""
    series = Ledger((("replica", "r0"),)).distribution(SECONDS, shown=False)
    assert series.text() == b""
    for values in ([0.2, 3.0], [1e6], [0.25, 0.5]):
        series.observe(np.array(values))
        assert lines(series) == flat(series.samples())
        assert series.text() is series.text()


def test_a_scalar_shows_its_value_of_now() -> None:
    """Present, changed, the same again, absent, and back."""
    series = Ledger((("replica", "%d"),)).scalar(METRICS["kv_cache_usage"])
    for share in (None, 0.5, 0, 0.0, 0.25, 0.5, None, 0.25, 1e20):
        series.value = share
        assert lines(series) == flat(series.samples())


def test_every_bucket_has_its_latest_exemplar_and_the_last_is_above_all_edges() -> None:
    """A value on an edge belongs to the bucket below it, as in the counts."""
    series = Ledger(()).distribution(SECONDS)
    assert SECONDS.edges is not None
    assert series.exemplars() == [None] * (len(SECONDS.edges) + 1)
    values = np.array([0.3, 0.3, 1e6])
    series.observe(values)
    series.exemplify(values, [("a", 1.0), ("b", 2.0), ("c", 3.0)])
    found = series.exemplars()
    assert found[SECONDS.edges.index(0.3)] == Exemplar("b", 0.3, 2.0)
    assert found[-1] == Exemplar("c", 1e6, 3.0)
    assert sum(one is not None for one in found) == 2
    assert lines(series)[f'request_duration_seconds_bucket{{le="{format_value(0.3)}"}}'] == 2
