"""Judgements made by hand: one of each verdict, with every part of it filled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servescope.cutover.judgement import (
    ArmFigures,
    ArmState,
    Cause,
    EdgeJudgement,
    Efficiency,
    Incidents,
    Judgement,
    MetricJudgement,
    OverallRatio,
    PromptMix,
    SegmentJudgement,
    SegmentMetricJudgement,
    StageState,
    Verdict,
    VerdictChange,
)

START_MS = 1_795_000_200_000
AT_MS = START_MS + 7_200_000
HASH = "1f" * 32

_ADVICE: dict[Verdict, Any] = {
    "HEALTHY": "go on", "DEGRADED": "roll back", "INCONCLUSIVE": "hold", "NO DATA": "hold",
}  # fmt: skip
_CAUSES: dict[Verdict, Cause] = {
    "HEALTHY": "not worse", "DEGRADED": "beyond margin", "INCONCLUSIVE": "needs data", "NO DATA": "arm missing",
}  # fmt: skip
_REASONS: dict[Verdict, str] = {
    "HEALTHY": "Each of the 3 required metrics is proven not worse than v1 by its margin.",
    "DEGRADED": "Time to first token is 1.31 × v1's (1.22–1.41), proven beyond the margin of 10 % worse.",
    "INCONCLUSIVE": "Time to first token is 1.02 × v1's (0.93–1.12); 40 more minutes settle 10 % at this share.",
    "NO DATA": "v2 served no requests in the last 15 minutes.",
}
_INTERVALS: dict[Verdict, tuple[float | None, float | None, float | None]] = {
    "HEALTHY": (1.01, 0.96, 1.06), "DEGRADED": (1.31, 1.22, 1.41), "INCONCLUSIVE": (1.02, 0.93, 1.12),
    "NO DATA": (None, None, None),
}  # fmt: skip


def judgement(verdict: Verdict = "HEALTHY", **changes: Any) -> Judgement:
    """A judgement of the second of four stages, two hours after its start."""
    ratio, low, high = _INTERVALS[verdict]
    first = MetricJudgement(
        name="time_to_first_token_seconds", title="Time to first token", unit="seconds", better="lower", required=True,
        verdict=verdict, cause=_CAUSES[verdict], reason=_REASONS[verdict], ratio=ratio, low=low, high=high,
        margin=0.1, floor=0.02, information=1200.0, information_wanted=1800.0,
        eta_seconds=2400.0 if verdict == "INCONCLUSIVE" else None,
        v1=ArmFigures(0.42, 31_000, covered=0.999, rejected=0.0),
        v2=ArmFigures(0.43, 10_200, covered=0.998, rejected=0.001) if ratio else None,
        edges=(EdgeJudgement(1.0, 0.05, 0.06, 0.01, -0.01, 0.03, False),) if ratio else (),
        flips="DEGRADED when the lower end exceeds 1.02; INCONCLUSIVE when the upper end exceeds 1.10.",
        notes=("The first 20 minutes of replica chat-v2-3 are left out: it was warming up.",),
        overall=OverallRatio(1.12, 1.04, 1.21) if ratio else None,
    )  # fmt: skip
    errors = MetricJudgement(
        name="request_error_share", title="Errors", unit="ratio", better="lower", required=True,
        verdict="HEALTHY" if ratio else "NO DATA", cause="not worse" if ratio else "arm missing",
        reason="Errors are 0.9 × v1's (0.4–1.7)." if ratio else _REASONS["NO DATA"],
        ratio=0.9 if ratio else None, low=0.4 if ratio else None, high=1.7 if ratio else None,
        margin=1.0, floor=0.0, information=70.0,
        v1=ArmFigures(0.002, 31_000, 62.0, Incidents(51, 144, 6, 6)),
        v2=ArmFigures(0.0018, 10_200, 18.0, Incidents(3, 48, 1, 2)) if ratio else None,
        overall=OverallRatio(0.8, 0.0, None) if ratio else None,
        flips="DEGRADED when the lower end exceeds 1.",
    )  # fmt: skip
    tokens = MetricJudgement(
        name="autoscaler_avg_in_flight_tokens", title="In-flight tokens per worker", unit="tokens", better=None,
        required=False, verdict="INCONCLUSIVE", cause="out of band",
        reason="In-flight tokens per worker are 31 000, below the range of 50 000–150 000.",
        band=(50_000.0, 150_000.0), v2=ArmFigures(31_000.0, 24.0), flips="HEALTHY from 50 000 on.",
    )  # fmt: skip
    shown = Judgement(
        verdict=verdict, reason=_REASONS[verdict], at_ms=AT_MS, plan="chat", plan_hash=HASH,
        stage=StageState(1, 4, 0.25, 0.247 if ratio else None, False, START_MS, START_MS + 3_600_000),
        metrics=(first, errors, tokens), advice=_ADVICE[verdict],
        severity="beyond margin" if verdict == "DEGRADED" else None,
        live=verdict if verdict == "DEGRADED" else None,
        latched_since_ms=AT_MS - 900_000 if verdict == "DEGRADED" else None,
        v1=_arm("chat-v1", 6, 31_000.0), v2=_arm("chat-v2", 2, 10_200.0) if ratio else None,
        mix=PromptMix(0.012, False, False, False, "the prompts of both arms are alike"),
        efficiency=(
            Efficiency("tokens_per_gpu_second", 310.0, 440.0, 1.42, 1.35, 1.49,
                       "v2 serves 1.42 × (1.35–1.49) the tokens per GPU."),
        ) if ratio else (),
        changes=(
            VerdictChange(START_MS, 1, "INCONCLUSIVE", _REASONS["INCONCLUSIVE"]),
            VerdictChange(AT_MS - 900_000, 1, verdict, _REASONS[verdict]),
        ),
        missed=((START_MS + 600_000, START_MS + 900_000, "the judge and the collector were down"),),
        incomparable={"inter_token_latency_seconds": "v1 observes per output event, v2 per token."},
        notes=("v1's noise was calibrated on 48 hours.",),
        segments=(
            SegmentJudgement(
                "tenant a", "no harm found", 30_000.0, 9_900.0, 0.968, 0.97,
                (SegmentMetricJudgement("tps_per_request", "Token speed", "higher", 0.97, 0.9, 1.04, harmful=False),),
            ),
            SegmentJudgement("tenant b", "no data", 1_000.0, 0.0, 0.032, 0.0),
        ) if ratio else (),
    )  # fmt: skip
    return replace(shown, **changes)


def _arm(deployment: str, replicas: int, requests: float) -> ArmState:
    return ArmState(
        (deployment,), replicas, 480 * replicas, 480 * replicas, 0, 0, 0, 0, requests, True, 1200.0, 0.02,
        requests / replicas / 7200, AT_MS - 5_000, 0.998, 0.001,
    )  # fmt: skip
