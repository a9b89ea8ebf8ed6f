"""The bands of figures: which values are good, which call for a warning, and what to do about them."""

from __future__ import annotations

from servescope.contract.types import Band, Rating, Step

SPECULATION_BAND = Band(
    lowest=Rating("critical", "costs more than it saves", "Disable speculation, or shorten the draft (max_draft_len)."),
    steps=(
        Step(0.40, True, Rating("warning", "tune", "Tune the draft model, or change the decoding type.")),
        Step(
            0.80,
            True,
            Rating("good", "well aligned", "Nothing to do: the draft agrees with the main model."),
        ),
    ),
)

SKEW_BAND = Band(
    lowest=Rating(
        "critical", "missed cache events",
        "Workers reuse far more than the router knows of: check the event stream for gaps and the index's state.",
    ),
    steps=(
        Step(
            -0.15, True,
            Rating("warning", "behind the caches", "The router's index lags: watch event gaps and drops."),
        ),
        Step(-0.05, True, Rating("good", "normal", "The router predicts what workers reuse.")),
        Step(
            0.15, False,
            Rating("warning", "some churn", "Blocks are evicted between prediction and service: watch KV cache use."),
        ),
        Step(
            0.30, False,
            Rating(
                "critical", "cache churn",
                "Workers lose what the router counts on: add replicas or KV cache, or lower concurrency.",
            ),
        ),
    ),
)  # fmt: skip

EFFICIENCY_BAND = Band(
    lowest=Rating(
        "warning", "hits traded for balance",
        "The router passes over cached prefixes: check saturation, router_overlap_score_weight and router_temperature.",
    ),
    steps=(Step(0.90, True, Rating("good", "normal", "The router takes nearly every hit there is.")),),
)  # fmt: skip
