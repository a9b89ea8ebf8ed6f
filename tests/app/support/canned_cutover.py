"""A cutover as the pages get it, without a store: judgements with every kind of metric, and evidence of both arms."""

from __future__ import annotations

import math

import numpy as np

from app.cutovers.judging import CutoverView, make_view
from servescope.contract.events import Event
from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Series, format_edge, make_labels
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.folding import fold
from servescope.cutover.judgement import (
    ArmFigures,
    Cause,
    EdgeJudgement,
    Judgement,
    MetricJudgement,
    StageState,
    Verdict,
    VerdictChange,
)
from servescope.cutover.plan.files import preset_metrics
from servescope.cutover.plan.plan import Arm, CutoverPlan, FrozenPlan, Stage
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements
from servescope.judge.journal.journal import JournalEntry
from servescope.judge.journal.runs import CutoverRun
from tests.support.judgements import AT_MS, judgement

NOW_MS = AT_MS
HOUR_MS = 3_600_000
START_MS = NOW_MS - 9 * HOUR_MS
STAGES = (Stage(0.01, 1.0), Stage(0.05, 2.0), Stage(0.25, 3.0), Stage(0.5, 3.0), Stage(0.95, 6.0))
V1, V2 = Arm("v1", ({"deployment_id": "chat-v1"},)), Arm("v2", ({"deployment_id": "chat-v2"},))
PLAN = CutoverPlan("chat", V1, V2, STAGES, preset_metrics())
FROZEN = FrozenPlan(PLAN, START_MS, {})
DECISIONS = (
    Decision("start", START_MS, "anna", "as agreed on Thursday", stage=0),
    Decision("advance", START_MS + int(2.5 * HOUR_MS), "anna", "stage settled", stage=1),
    Decision("acknowledge", START_MS + int(4.4 * HOUR_MS), "ben", "one bad node, drained"),
    Decision("advance", START_MS + 6 * HOUR_MS, "anna", "stage settled", stage=2),
)
RUN = CutoverRun(
    1,
    FROZEN,
    tuple(
        JournalEntry(number, each.at_ms, each.at_ms, "chat", 1, each.kind, each.by, each.reason, {"stage": each.stage})
        for number, each in enumerate(DECISIONS, start=1)
    ),
)


def make_target(arm: str, replica: int, *, seed: int) -> TargetIncrements:
    """Ten hours of one replica: requests that follow the stages' shares, and their first tokens and durations."""
    random = np.random.default_rng(seed)
    blocks = np.arange(START_MS - HOUR_MS, NOW_MS, BLOCK_MS) // BLOCK_MS * BLOCK_MS
    shares = np.zeros(len(blocks))
    for decision in DECISIONS:
        if decision.stage is not None:
            shares[blocks >= decision.at_ms] = STAGES[decision.stage].share
    wanted = 1500.0 * (shares / 2 if arm == "v2" else (1 - shares) / 6)
    requests = random.poisson(wanted).astype(float)
    rows: list[Series] = [Series("requests_total", make_labels({"outcome": "ok"}))]
    gains = [requests]
    for metric, median in (("time_to_first_token_seconds", 0.35), ("request_duration_seconds", 6.0)):
        edges = METRICS[metric].edges or ()
        median = median * (0.96 if arm == "v2" else 1.0)
        for edge in (*edges, math.inf):
            below = 0.5 * (1 + math.erf(math.log(edge / median) / (0.7 * math.sqrt(2)))) if edge < math.inf else 1.0
            rows.append(Series(f"{metric}_bucket", make_labels({"le": format_edge(edge)})))
            gains.append(np.round(requests * below))
        rows += [Series(f"{metric}_sum", ()), Series(f"{metric}_count", ())]
        gains += [requests * median * math.exp(0.7**2 / 2), requests]
    counts = np.full(len(blocks), 20)
    none = np.zeros(len(blocks), dtype=np.int64)
    return TargetIncrements(
        f"chat-{arm}/{replica}", Identity("llama-3.3-70b", f"chat-{arm}", arm, replica=str(replica)), blocks,
        tuple(rows), np.array(gains), (), np.zeros((0, len(blocks))), np.zeros((0, len(blocks))),
        np.full(len(blocks), np.nan), Tallies(counts, none, none, none, none), "vllm", "0.32", "engine",
    )  # fmt: skip


EVIDENCE = Evidence(
    tuple(make_target(arm, replica, seed=replica) for arm, count in (("v1", 6), ("v2", 2)) for replica in range(count)),
    NOW_MS,
    15_000,
    events=(
        Event(START_MS + int(1.2 * HOUR_MS), "deploy", make_labels({"deployment_id": "chat-v2"}), "v2 at image 7c1f"),
        Event(
            START_MS + int(3.6 * HOUR_MS), "alert_fired", make_labels({"alertname": "RequestErrorsHigh"}),
            "Errors above 1 % in chat-v2",
        ),
        Event(
            START_MS + int(4.1 * HOUR_MS), "alert_resolved", make_labels({"alertname": "RequestErrorsHigh"}),
            "Errors above 1 % in chat-v2",
        ),
    ),
)  # fmt: skip

FOLDED = fold(PLAN, EVIDENCE.targets, START_MS - HOUR_MS, NOW_MS)


def _metric(
    name: str, title: str, unit: str, verdict: Verdict, cause: Cause, reason: str, ratio: float | None = None,
    low: float | None = None, high: float | None = None, **rest: object,
) -> MetricJudgement:  # fmt: skip
    given = {"better": "lower", "required": True, "margin": 0.10, "floor": 0.02, **rest}
    return MetricJudgement(
        name,
        title,
        unit,
        verdict=verdict,
        cause=cause,
        reason=reason,
        ratio=ratio,
        low=low,
        high=high,
        **given,  # type: ignore[arg-type] # fields of MetricJudgement
    )


METRICS_JUDGED = (
    _metric(
        "tps_per_request", "Tokens per second per request", "tokens/s", "HEALTHY", "better",
        "v2 is proven faster: 1.21 × v1 or more in each look since 11:05.", 1.27, 1.21, 1.34, better="higher",
        v1=ArmFigures(48.2, 61_200), v2=ArmFigures(61.3, 20_410), information=2_900.0, information_wanted=900.0,
        flips="a lower limit below 0.91",
    ),
    _metric(
        "time_to_first_token_seconds", "Time to first token", "seconds", "INCONCLUSIVE", "needs data",
        "v2 is between 4 % faster and 12 % slower; the margin of 10 % worse is not excluded yet.", 1.037, 0.962, 1.118,
        v1=ArmFigures(0.412, 61_200), v2=ArmFigures(0.427, 20_410), information=1_120.0, information_wanted=1_800.0,
        eta_seconds=4_700.0, flips="an upper limit below 10 %, or a lower one above 2 %",
        edges=(EdgeJudgement(0.5, 0.281, 0.294, 0.013, -0.004, 0.03, harmful=False),),
    ),
    _metric(
        "request_duration_seconds", "Request duration", "seconds", "HEALTHY", "not worse",
        "v2 takes at most 1 % longer.", 0.93, 0.86, 1.01,
        v1=ArmFigures(7.1, 61_200), v2=ArmFigures(6.6, 20_410), information=2_000.0, information_wanted=1_200.0,
        notes=("proven at the load seen; the evening peak is still to come",),
    ),
    _metric(
        "request_error_share", "Errors", "ratio", "INCONCLUSIVE", "needs data",
        "19 errors of 20 410 on v2, 52 of 61 200 on v1: twice as many are not excluded yet.", 1.09, 0.58, 2.31,
        margin=1.0, floor=0.0, v1=ArmFigures(0.00085, 61_200, 52), v2=ArmFigures(0.00093, 20_410, 19),
        information=42.0, information_wanted=64.0, eta_seconds=9_400.0,
    ),
    _metric(
        "kv_cache_hit_rate_skew", "Hit rate skew", "ratio", "HEALTHY", "in band", "v2 is within its band.",
        better=None, required=False, margin=None, floor=None, band=(-0.05, 0.15), v2=ArmFigures(0.08, 4.1e7),
    ),
    _metric(
        "in_flight_tokens_per_worker", "In-flight tokens per worker", "tokens", "DEGRADED", "out of band",
        "v2 holds 171 k tokens per worker: target_in_flight_tokens is set too high.", better=None, required=False,
        margin=None, floor=None, band=(50_000.0, 150_000.0), v2=ArmFigures(171_000.0, 36),
    ),
    _metric(
        "speculation_rate", "Speculation rate", "ratio", "NO DATA", "metric absent",
        "v2 reports no draft tokens: speculation is off.", better=None, required=False, margin=None, floor=None,
        band=(0.4, None),
    ),
)  # fmt: skip


WORSE = _metric(
    "time_to_first_token_seconds", "Time to first token", "seconds", "DEGRADED", "beyond margin",
    "v2 is at least 18 % slower.", 1.34, 1.18, 1.52, v1=ArmFigures(0.412, 61_200), v2=ArmFigures(0.55, 20_410),
)  # fmt: skip
CHANGES = (
    VerdictChange(START_MS, 0, "INCONCLUSIVE", "nothing gathered yet"),
    VerdictChange(START_MS + int(1.9 * HOUR_MS), 0, "HEALTHY", "no required metric is worse than its margin"),
    VerdictChange(START_MS + int(2.5 * HOUR_MS), 1, "INCONCLUSIVE", "a new stage began"),
    VerdictChange(START_MS + int(3.7 * HOUR_MS), 1, "DEGRADED", "errors are at least 2.4 × those of v1"),
    VerdictChange(START_MS + int(4.4 * HOUR_MS), 1, "INCONCLUSIVE", "acknowledged"),
    VerdictChange(START_MS + int(5.5 * HOUR_MS), 1, "HEALTHY", "no required metric is worse than its margin"),
    VerdictChange(START_MS + 6 * HOUR_MS, 2, "INCONCLUSIVE", "a new stage began"),
)


def _metrics(verdict: Verdict) -> tuple[MetricJudgement, ...]:
    if verdict == "HEALTHY":
        return tuple(each for each in METRICS_JUDGED if each.verdict == "HEALTHY")
    if verdict == "DEGRADED":
        return (METRICS_JUDGED[0], WORSE, *METRICS_JUDGED[2:])
    if verdict == "NO DATA":
        return tuple(
            _metric(each.name, each.title, each.unit, verdict, "stale", "v2 was last scraped 12 min ago.")
            for each in METRICS_JUDGED[:4]
        )
    return METRICS_JUDGED


def make_judgement(verdict: Verdict = "INCONCLUSIVE") -> Judgement:
    """The judgement of the third of five stages with this verdict."""
    return judgement(
        verdict,
        stage=StageState(2, 5, 0.25, 0.247, differs=False, since_ms=START_MS + 6 * HOUR_MS, earliest_end_ms=NOW_MS),
        metrics=_metrics(verdict),
        live="INCONCLUSIVE" if verdict == "DEGRADED" else None,
        changes=CHANGES,
        incomparable={
            "inter_token_latency_seconds": "v1 observes each engine step, v2 each token",
            "speculation_rate": "v1 speculates by lookahead, which reports nothing",
        },
        missed=((START_MS + 8 * HOUR_MS, START_MS + 8 * HOUR_MS + 2 * BLOCK_MS, "the collector did not scrape"),),
    )


JUDGEMENT = make_judgement()
"""A judgement with every kind of metric in it."""


def make_cutover_view(verdict: Verdict = "INCONCLUSIVE") -> CutoverView:
    """The run as the pages get it."""
    return make_view(FROZEN, DECISIONS, FOLDED, EVIDENCE.events, make_judgement(verdict))
