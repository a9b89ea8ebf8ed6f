"""Segments in what customers are sent: the sum of all by default, and each where the policy lists the label."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series
from servescope.customers.points.points import HistogramValue
from servescope.customers.points.projection import Projector
from servescope.customers.points.totals import Totals
from servescope.customers.policy.policy import Policy
from tests.support.customer_edges import Seen, fleet, histogram, series, target

TTFT = "time_to_first_token_seconds"
SUMMED = Policy(
    "acme", frozenset({Deployment("llama", "chat", "v2", "prod")}), metrics=("requests_total", TTFT),
    labels=("deployment_id",),
)  # fmt: skip
ENGINE = Identity("llama", "chat", "v2", "prod", replica="pod-1")


def of_segment(segment: str, counts: tuple[int, ...]) -> dict[Series, Seen]:
    """A histogram of one segment."""
    return {
        Series(each.name, tuple(sorted((*each.labels, ("segment", segment))))): seen
        for each, seen in histogram(TTFT, (0.5,), counts, counts).items()
    }


SEEN = {
    series("requests_total", outcome="ok", segment="globex"): Seen(10, 1),
    series("requests_total", outcome="ok", segment="acme"): Seen(20, 2),
    **of_segment("globex", (4, 1)),
    **of_segment("acme", (2, 0)),
}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("deployment_id",), {"requests_total": [("", 3.0)], TTFT: [("", 7)]}),
        (("deployment_id", "segment"), {"requests_total": [("acme", 2.0), ("globex", 1.0)],
                                        TTFT: [("acme", 2), ("globex", 5)]}),
    ],
)  # fmt: skip
def test_segments_leave_only_where_the_policy_lists_them(
    labels: tuple[str, ...], expected: dict[str, list[tuple[str, float]]]
) -> None:
    """Without that nobody learns the name of another tenant, and the sums have everything."""
    projection = Projector(replace(SUMMED, labels=labels)).project(fleet(target(ENGINE, SEEN)), "cumulative", Totals())
    found: dict[str, list[tuple[str, float | None]]] = {}
    for point in projection.points:
        segment = dict(point.stream.attributes).get("segment", "")
        value = point.value
        number = float(sum(value.counts)) if isinstance(value, HistogramValue) else value
        found.setdefault(point.stream.metric.name, []).append((segment, number))

    assert {name: sorted(each) for name, each in found.items()} == expected
