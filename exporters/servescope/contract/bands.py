"""The bands of figures: which values are good, which call for a warning, and what to do about them."""

from __future__ import annotations

from servescope.contract.bounds import DRAFT_TRAFFIC, PROMPT_TRAFFIC
from servescope.contract.filling import DEFAULT_WINDOW_MS
from servescope.contract.types import Band, LeastEvidence, Rating, Step

# What the alerts on the same bands ask for as a rate, as a count in the default window.
_SECONDS = DEFAULT_WINDOW_MS / 1000
# Of 300 draft tokens a share of 40 % is known to within 6 %, which is a seventh of the band "tune".
DRAFT_EVIDENCE = LeastEvidence("spec_decode_draft_tokens_per_second", DRAFT_TRAFFIC.value * _SECONDS, "draft tokens")
# Some thirty requests of a thousand tokens: of fewer, one long prompt decides what share was reused.
PROMPT_EVIDENCE = LeastEvidence("kv_cache_eligible_tokens_per_second", PROMPT_TRAFFIC.value * _SECONDS, "prompt tokens")


def request_evidence(share: float) -> LeastEvidence:
    """The least requests to judge a quantile by, or a share of requests, of which this share (above 0) lies beyond it.

    One of them has to lie beyond a quantile: below that it is the slowest request. Never fewer than ten are judged.
    """
    return LeastEvidence("request_rate", max(10.0, round(1.0 / share)), "requests")


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
    evidence=DRAFT_EVIDENCE,
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
    evidence=PROMPT_EVIDENCE,
)  # fmt: skip

EFFICIENCY_BAND = Band(
    lowest=Rating(
        "warning", "hits traded for balance",
        "The router passes over cached prefixes: check saturation, router_overlap_score_weight and router_temperature.",
    ),
    steps=(Step(0.90, True, Rating("good", "normal", "The router takes nearly every hit there is.")),),
    evidence=PROMPT_EVIDENCE,
)  # fmt: skip
