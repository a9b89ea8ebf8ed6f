"""Both stacks' distributions: at the bucket edges that both have, and nothing in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from app.charts.charts import HEIGHT, Chart, axis_label
from app.elements import display
from app.elements.colors import V1, V2
from servescope.contract.metrics import METRICS
from servescope.cutover.evidence.folding import ArmArrays

# A share that no line can be distinguished by from 0.
_NOTHING = 0.001


@dataclass(frozen=True, slots=True)
class EdgeShares:
    """The share of a metric's observations above each edge that both arms have, (e,) each, and how many there were."""

    metric: str
    edges: tuple[float, ...]
    v1: tuple[float, ...]
    v2: tuple[float, ...]
    observed: tuple[float, float]


def compare_distributions(metric: str, folded: ArmArrays, since_ms: int) -> EdgeShares | None:
    """The distribution of a histogram in both arms over the blocks from an instant on; None where either has none."""
    arms = [arm.distributions.get(metric) for arm in (folded.v1, folded.v2)]
    known = [each for each in arms if each is not None]
    if len(known) < len(arms):
        return None
    within = folded.blocks >= since_ms
    counts = [np.nansum(each.counts[:, within], axis=1) for each in known]
    shared = sorted(set(known[0].edges) & set(known[1].edges))
    totals = [float(each.sum()) for each in counts]
    if not shared or not all(totals):
        return None
    above = [
        tuple(1.0 - float(arm[: each.edges.index(edge) + 1].sum()) / total for edge in shared)
        for each, arm, total in zip(known, counts, totals, strict=True)
    ]
    return EdgeShares(metric, tuple(shared), above[0], above[1], (totals[0], totals[1]))


def draw_distribution(distribution: EdgeShares) -> Chart:
    """The share above each shared edge, both arms, on a logarithmic scale; steps are not drawn where nobody counted."""
    metric = METRICS[distribution.metric]
    shown = _telling_edges(distribution)
    rows = [
        {"edge": edge, "share": share, "arm": arm, "text": display.format_share(share)}
        for arm, shares in (("v1", distribution.v1), ("v2", distribution.v2))
        for edge, share in zip(distribution.edges, shares, strict=True)
        if edge in shown
    ]
    x = {
        "field": "edge",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False},
        "axis": {"title": None, "grid": False, "labelExpr": axis_label(metric.unit), "labelOverlap": True,
                 "values": shown},
    }  # fmt: skip
    y = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 1]},
        "axis": {
            "title": "share above", "titleFontWeight": "normal", "labelExpr": axis_label("ratio"), "tickCount": 4,
            "domain": False, "ticks": False,
        },
    }  # fmt: skip
    arm = {"field": "arm", "type": "nominal"}
    legend = {"title": None, "orient": "top", "offset": 2, "symbolSize": 60}
    encoding = {
        "x": x,
        "y": y,
        "color": {**arm, "scale": {"domain": ["v1", "v2"], "range": [V1, V2]}, "legend": legend},
    }
    dashes = {**arm, "scale": {"domain": ["v1", "v2"], "range": [[1, 0], [6, 3]]}, "legend": None}
    shapes = {**arm, "scale": {"domain": ["v1", "v2"], "range": ["circle", "triangle-up"]}, "legend": legend}
    tooltip = [
        {"field": "arm", "type": "nominal", "title": "stack"},
        {"field": "edge", "type": "quantitative", "title": f"edge, {metric.unit}"},
        {"field": "text", "type": "nominal", "title": "share above"},
    ]
    title = TITLES.get(distribution.metric, distribution.metric)
    spec = {
        "title": {"text": title, "anchor": "start", "fontSize": 13, "offset": 8},
        "height": HEIGHT,
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.7}, "encoding": {**encoding, "strokeDash": dashes}},
            {
                "mark": {"type": "point", "filled": True, "size": 30, "opacity": 1},
                "encoding": {**encoding, "shape": shapes, "tooltip": tooltip},
            },
        ],
        "config": {"view": {"stroke": None}},
    }
    return Chart(f"distribution of {distribution.metric}", pd.DataFrame(rows), spec)


def _telling_edges(distribution: EdgeShares) -> list[float]:
    """The edges from the last below which there is nothing to the first above which there is nothing."""
    places = [place for place, edge in enumerate(distribution.edges) if edge > 0.0]
    inside = [
        place for place in places
        if any(_NOTHING < arm[place] < 1.0 - _NOTHING for arm in (distribution.v1, distribution.v2))
    ]  # fmt: skip
    if not inside:
        return [distribution.edges[place] for place in places]
    return [distribution.edges[place] for place in places if inside[0] - 1 <= place <= inside[-1] + 1]


TITLES: Final = {
    "time_to_first_token_seconds": "Time to first token",
    "time_per_output_token_seconds": "Time per output token",
    "request_duration_seconds": "Request duration",
    "tps_per_request": "Tokens per second of a request",
    "input_tokens_per_request": "Prompt tokens of a request",
    "output_tokens_per_request": "Output tokens of a request",
}
"""The histograms that are drawn, in this order."""
