"""The sentences of a judgement: the change of the metric itself, the direction that harms, values in their units."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from servescope.contract.judged import JUDGED
from servescope.cutover.comparison.paths import ArmSums
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import MetricJudgement
from servescope.cutover.plan.files import preset_metrics
from servescope.cutover.verdict.judge import judge
from servescope.cutover.verdict.tracks import DEGRADED, HEALTHY, MetricTrack
from servescope.cutover.verdict.wording import explain
from tests.support.cutover_evidence import Side, Story, evidence_of, frozen_of

STORY = Story(past_hours=26, hours=3, v1=Side(replicas=6), v2=Side(replicas=2))


def judged(v2: Side, *, minutes: int = 180) -> dict[str, MetricJudgement]:
    """Each metric of a cutover to this v2, after so many minutes."""
    story = replace(STORY, v2=v2)
    evidence = evidence_of(story)
    frozen = frozen_of(story)
    at_ms = story.started_ms + minutes * 60_000
    found = judge(frozen, evidence, (Decision("start", story.started_ms, stage=0),), at_ms)
    return {each.name: each for each in found.metrics}


def banded(name: str, value: float, *, inside: bool) -> MetricTrack:
    """A level after one block, within its band or not."""
    plan = next(each for each in preset_metrics() if each.name == name)
    code, cause = (HEALTHY, "in band") if inside else (DEGRADED, "out of band")
    sums = ArmSums(np.zeros((1, 1)), np.zeros((1, 1)))
    causes = np.array([cause], dtype=object)
    return MetricTrack(plan, JUDGED[name], None, sums, sums, None, np.array([code]), causes, np.array([value]))


def change(ratio: float | None) -> str:
    """A ratio of v2 to v1 as a change."""
    assert ratio is not None
    return f"{'+' if ratio > 1 else '−'}{100 * abs(ratio - 1):.0f} %"


@pytest.mark.slow
@pytest.mark.parametrize("slower", [0.25, 1.5])
def test_a_sentence_has_the_change_of_the_metric_itself(slower: float) -> None:
    """Of a metric whose higher values are better, too, and in the ratio's order."""
    metrics = judged(Side(replicas=2, slower=slower))

    for name in ("tps_per_request", "time_per_output_token_seconds"):
        ends = dict.fromkeys((change(metrics[name].low), change(metrics[name].high)))
        assert f"{' to '.join(ends)}" in metrics[name].reason


def test_a_fall_of_what_should_be_high_is_worse() -> None:
    """The sentence says both, and its margin is the fall that it allows."""
    metrics = judged(Side(replicas=2, slower=1.5))

    assert re.search(r"is worse: 3\d % lower than on v1 \(−", metrics["tps_per_request"].reason)
    assert "beyond the margin of 10 % worse (a fall of 9.1 %)" in metrics["tps_per_request"].reason
    slower = metrics["time_per_output_token_seconds"].reason
    assert re.search(r"is worse: [45]\d % higher than on v1 \(\+", slower)
    assert slower.endswith("beyond the margin of 10 % worse")


@pytest.mark.slow
def test_what_would_change_a_verdict_is_in_the_ratio_of_the_metric() -> None:
    """Health of a metric whose higher values are better needs a lower limit, not an upper one."""
    metric = judged(Side(replicas=2), minutes=10)["tps_per_request"]

    assert metric.verdict == "INCONCLUSIVE"
    assert metric.flips.startswith("a lower limit above −9.1 %, or an upper one below −2.0 %")


@pytest.mark.parametrize(
    ("name", "value", "inside", "sentence"),
    [
        ("speculation_rate", 0.8321, True, "is 83.2 % over the last hour, and at least 40 % is expected"),
        ("speculation_rate", 0.3, False, "is 30 % over the last hour, but at least 40 % is expected"),
        ("kv_cache_hit_rate_skew", -0.02, True, "is −2 % over the last hour, and −5 % to 15 % is expected"),
        ("kv_cache_hit_rate_skew", -0.00004, True, "is 0 % over the last hour, and −5 % to 15 % is expected"),
        (
            "in_flight_tokens_per_worker", 2065.0, False,
            "is 2 065 tokens over the last hour, but 50 000 to 150 000 tokens are expected",
        ),
    ],
)  # fmt: skip
def test_a_band_is_in_its_unit(name: str, value: float, inside: bool, sentence: str) -> None:
    """The level as people read it, and what is expected."""
    said = explain(banded(name, value, inside=inside), 0).replace("\N{NO-BREAK SPACE}", " ")

    assert said == f"{JUDGED[name].title} {sentence}"


def test_rare_events_are_in_percent() -> None:
    """Counts in groups of three, the rate with a space before its sign."""
    assert re.search(
        r"0 of \d\d\s\d{3} on v2, proven rarer than 0\.1 %", judged(Side(replicas=2))["preemptions_per_request"].reason
    )
