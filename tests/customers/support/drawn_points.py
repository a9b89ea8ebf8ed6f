"""Points that Hypothesis draws: any kind, texts of any script, numbers of any size."""

from __future__ import annotations

from hypothesis import strategies as st

from servescope.contract.samples import make_labels
from servescope.customers.points.points import Descriptor, HistogramValue, Stream, StreamPoint
from tests.customers.support.customer_points import point

_TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
_LABELS = st.dictionaries(_TEXTS, _TEXTS, max_size=5).map(make_labels)
_METRICS = st.builds(
    Descriptor, _TEXTS, _TEXTS, _TEXTS, _TEXTS, st.sampled_from(["counter", "gauge", "histogram"]), st.booleans()
)


@st.composite
def points(draw: st.DrawFn) -> StreamPoint:
    """One point."""
    metric = draw(_METRICS)
    of = Stream(metric, draw(_LABELS), draw(_LABELS), draw(_LABELS))
    if metric.kind != "histogram":
        return point(of, draw(st.floats(0, 2**62)))
    edges = sorted(draw(st.sets(st.floats(0, 1e9), max_size=20)))
    size = len(edges) + 1
    counts = draw(st.lists(st.integers(0, 2**40), min_size=size, max_size=size))
    return point(of, HistogramValue(tuple(edges), tuple(counts), draw(st.floats(0, 1e12))))
