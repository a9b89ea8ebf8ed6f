"""What a plan can settle, said beforehand: how long, how small a harm, and what never."""

import math
from dataclasses import replace

import numpy as np
import pytest

from servescope.cutover.comparison.freezing import freeze_from
from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.forecast.duration import MetricForecast, StageForecast, forecast_stages
from servescope.cutover.plan.plan import FrozenPlan, Stage
from servescope.cutover.statistics.effects import inflation, mean_effects
from servescope.cutover.statistics.sequences import accumulate, split_alpha
from tests.support.cutover_evidence import Side, Story, evidence_of, plan_of

STORY = Story(past_hours=26, hours=0, v1=Side(replicas=8), v2=Side(replicas=0))
SHARES = (0.05, 0.25, 0.5, 1.0)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """A day of v1, without any v2."""
    return evidence_of(STORY)


@pytest.fixture(scope="module")
def frozen(evidence: Evidence) -> FrozenPlan:
    """The least plan with four stages."""
    return freeze_from(plan_of(*SHARES), evidence, STORY.started_ms)


@pytest.fixture(scope="module")
def stages(evidence: Evidence, frozen: FrozenPlan) -> tuple[StageForecast, ...]:
    """What it is expected to settle."""
    return forecast_stages(frozen, evidence)


def _metric(stage: StageForecast, name: str) -> MetricForecast:
    return next(each for each in stage.metrics if each.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["time_to_first_token_seconds", "tps_per_request", "request_error_share"])
def test_more_traffic_settles_sooner_and_finds_less(stages: tuple[StageForecast, ...], name: str) -> None:
    """From 5 % to half of the requests, of every kind of metric."""
    small, half = _metric(stages[0], name), _metric(stages[2], name)
    assert small.healthy_seconds is not None
    assert half.healthy_seconds is not None
    assert small.detectable is not None
    assert half.detectable is not None
    assert half.healthy_seconds <= small.healthy_seconds
    assert half.detectable < small.detectable


@pytest.mark.slow
def test_no_harm_below_the_floor_is_said_to_be_found(stages: tuple[StageForecast, ...]) -> None:
    """What is worse by less than 2 % is never DEGRADED, however much data shows it."""
    assert all(
        each.detectable is None or each.detectable > 0.02
        for stage in stages
        for each in stage.metrics
        if each.name in {"time_to_first_token_seconds", "tps_per_request", "time_per_output_token_seconds"}
    )


def test_a_young_deployment_has_no_forecast() -> None:
    """Three hours of past do not show the noise, so that nobody is promised a quarter of an hour."""
    young = replace(STORY, past_hours=3)
    evidence = evidence_of(young)
    (stage,) = forecast_stages(freeze_from(plan_of(0.25), evidence, young.started_ms), evidence)
    speed = _metric(stage, "tps_per_request")
    assert (speed.healthy_seconds, speed.detectable, speed.known) == (None, None, False)
    assert stage.seconds is None
    assert "25 % on v2: cannot be forecast. " in stage.sentence
    assert "Time to first token" in stage.sentence
    assert "the noise is not known yet" in stage.sentence


def test_a_stage_lasts_as_long_as_its_slowest_required_metric(stages: tuple[StageForecast, ...]) -> None:
    """Which the sentence names: the errors, as rare as they are."""
    waits = [each.healthy_seconds or 0.0 for each in stages[1].metrics if each.required]
    assert stages[1].seconds == max(waits)
    assert stages[1].sentence.startswith("stage 2, 25 % on v2: about ")
    assert "longest for Errors; with 30 min for fresh replicas of v2 to warm up" in stages[1].sentence
    assert "warm up; as long with 1 h 30 min, where they start slowly or have cold caches" in stages[1].sentence
    assert stages[1].v2_pods == 2
    assert stages[1].requests_per_hour == pytest.approx(36_000, rel=0.01)


def test_a_slow_start_or_a_cold_cache_has_a_duration_of_its_own(stages: tuple[StageForecast, ...]) -> None:
    """It delays what takes time by an hour more than fresh replicas do, and leaves what is counted as it is."""
    for name, more in (("time_to_first_token_seconds", 3600.0), ("request_error_share", 0.0)):
        metric = _metric(stages[1], name)
        assert metric.healthy_seconds is not None
        assert metric.cold_seconds == pytest.approx(metric.healthy_seconds + more)


def test_a_stage_lasts_as_long_as_the_plan_wants(evidence: Evidence, frozen: FrozenPlan) -> None:
    """Though all of its metrics are settled before."""
    lasting = replace(frozen.plan, stages=tuple(Stage(each, 12.0) for each in SHARES))
    stage = forecast_stages(replace(frozen, plan=lasting), evidence)[1]

    assert stage.seconds == stage.cold_seconds == 43_200.0
    assert ": about 12 h, as the plan wants it to last; with 30 min " in stage.sentence


@pytest.mark.parametrize(("share", "shown"), [(0.0001, "0.01 %"), (0.125, "12.5 %")])
def test_a_share_is_written_as_it_was_planned(evidence: Evidence, frozen: FrozenPlan, share: float, shown: str) -> None:
    """Whatever the number of its digits: a ten-thousandth is not nothing."""
    plan = replace(frozen.plan, stages=(Stage(share),))
    (stage,) = forecast_stages(replace(frozen, plan=plan), evidence)

    assert stage.sentence.startswith(f"stage 1, {shown} on v2: ")


def test_a_multiple_of_no_events_is_not_known(stages: tuple[StageForecast, ...]) -> None:
    """Which is said beside the dash: v1's past has no rejections."""
    metric = _metric(stages[1], "request_rejected_share")

    assert (metric.detectable, metric.reason) == (None, "v1's past has none, so that no multiple of its rate is known")


def test_a_v2_that_has_served_nothing_is_expected_to_report(evidence: Evidence) -> None:
    """Its engines are up before the stage begins, and expose a series once they have something to count."""
    (idle,) = [
        replace(
            each, target_id="v2-0", identity=replace(each.identity, deployment_id="chat-v2", replica="v2-0"),
            series=(), gains=each.gains[:0],
        )
        for each in evidence.targets[:1]
    ]  # fmt: skip
    both = replace(evidence, targets=(*evidence.targets, idle))
    frozen = freeze_from(plan_of(0.25), both, STORY.started_ms)

    assert forecast_stages(frozen, both)[0].seconds is not None
    assert "request_error_share" not in frozen.unobservable


def test_replicas_that_were_replaced_count_once(frozen: FrozenPlan, evidence: Evidence) -> None:
    """A deployment of eight has eight, however many names it has had."""
    begun, middle = evidence.targets[:2], evidence.targets[0].blocks[150]
    renamed = [
        replace(
            each.at(slice(150, None)),
            target_id=f"{each.target_id}-new",
            identity=replace(each.identity, replica=f"{each.identity.replica}-new"),
        )
        for each in begun
    ]
    replaced = [each.at(slice(0, 150)) for each in begun]
    assert int(replaced[0].blocks[-1]) < middle
    stages = forecast_stages(frozen, replace(evidence, targets=(*replaced, *renamed, *evidence.targets[2:])))

    assert stages[2].v2_pods == 4


def test_without_a_control_nothing_is_settled(stages: tuple[StageForecast, ...]) -> None:
    """At 100 % the sentence asks for a part of the requests on v1."""
    assert stages[3].seconds is None
    assert all(each.healthy_seconds is None and each.detectable is None for each in stages[3].metrics)
    assert "cannot be proven healthy here" in stages[3].sentence
    assert stages[3].sentence.count("keep a part of the requests on v1") == 1


def test_replicas_that_differ_too_much_are_said_beforehand(evidence: Evidence, frozen: FrozenPlan) -> None:
    """With how many it would take, since no waiting helps."""
    name = "time_to_first_token_seconds"
    noise = {**frozen.noise, name: replace(frozen.noise[name], pod_tau2=0.01)}
    found = _metric(forecast_stages(replace(frozen, noise=noise), evidence)[1], name)
    assert found.healthy_seconds is None
    assert "replicas differ too much for good: it needs about" in found.reason
    assert found.detectable is not None
    assert found.detectable > 0.10


def test_too_little_traffic_is_said_beforehand() -> None:
    """A request every two minutes is a matter of more than a week."""
    story = replace(STORY, requests_per_minute=0.5)
    evidence = evidence_of(story)
    stage = forecast_stages(freeze_from(plan_of(0.05), evidence, story.started_ms), evidence)[0]
    assert stage.seconds is None
    assert all(each.reason for each in stage.metrics if each.healthy_seconds is None)


def test_the_forecast_is_what_the_judge_needs(stages: tuple[StageForecast, ...], frozen: FrozenPlan) -> None:
    """Of sixty equal cutovers at 5 %, half are settled within the time that was forecast, give or take a third."""
    name = "time_to_first_token_seconds"
    forecast = _metric(stages[0], name).healthy_seconds
    assert forecast is not None
    warm_up = stages[0].warm_up_seconds
    random = np.random.default_rng(1)
    noise = replace(frozen.noise[name], tau2=0.0, least_tau2=0.0, pod_tau2=0.0)
    sampled = _metric(
        forecast_stages(replace(frozen, noise={**frozen.noise, name: noise}), evidence_of(STORY))[0], name
    ).healthy_seconds
    alpha = frozen.plan.alpha_health * split_alpha(SHARES)[0]
    waits = []
    for _ in range(60):
        n1, n2 = random.poisson(2850.0, 150).astype(float), random.poisson(150.0, 150).astype(float)
        s1 = n1 + random.normal(size=150) * np.sqrt(n1 * noise.cv2)
        s2 = n2 + random.normal(size=150) * np.sqrt(n2 * noise.cv2)
        blocks = mean_effects(n1, s1, n2, s2, noise.cv2)
        path = accumulate(blocks.effects, blocks.variances(0.0, inflation(blocks, 0.0)))
        waits.append(int(np.argmax(path.limits((alpha, alpha), noise.information_wanted)[1] < math.log(1.1))) + 1)
    assert sampled is not None
    assert sampled <= forecast
    assert float(np.median(waits)) * 300.0 == pytest.approx(sampled - warm_up, rel=0.35)
