"""The recording rules of histograms: how fast each bucket of a deployment fills, over all its replicas.

A percentile over several deployments cannot be had from theirs, and over the raw buckets of two hundred replicas a day
of one costs thirty million samples. Over these it costs a few thousand, and is the same number.
"""

from __future__ import annotations

from typing import Any

import yaml

from alerts.recording import HEADER, INTERVAL
from servescope.catalog import DEFAULT_WINDOW, RECORDED_HISTOGRAMS, record_buckets
from servescope.expressions import Rate, promql
from servescope.identity import DEPLOYMENT_LABELS


def render_histogram_rules() -> str:
    """The rule file that records the buckets."""
    return HEADER + yaml.safe_dump({"groups": [histogram_group()]}, sort_keys=False, width=10_000)


def histogram_group() -> dict[str, Any]:
    """The group of the buckets' rates."""
    rules = [
        {
            "record": record_buckets(name),
            "expr": promql(Rate(f"{name}_bucket"), window=DEFAULT_WINDOW, by=(*DEPLOYMENT_LABELS, "le")),
        }
        for name in RECORDED_HISTOGRAMS
    ]
    return {"name": "servescope-histograms", "interval": INTERVAL, "rules": rules}
