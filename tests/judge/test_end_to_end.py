"""The judge on emulated cutovers, end to end: what is healthy, each harm, and what cannot be known.

One recording has a v1 and many v2 like it, each with its own fault from the end of a day on; each pair is a cutover.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from servescope.cutover.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan_files import parse_plan
from servescope.emulator.recording import START_MS, record
from servescope.emulator.scenario import make_scenario
from servescope.judge.case import freeze_plan, judge_case
from servescope.store.embedded import Store

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("end_to_end")]

PAST_HOURS: Final = 24
HOURS: Final = 5

_TRAFFIC = """
seed = 3
[traffic]
requests_per_second = {rate}
output_tokens = 60
output_range = [8, 300]
burst_factor = 1
day_seconds = 86400
day_amplitude = 0.3
oversized_share = 0
"""
_DEPLOYMENT = """
[[deployments]]
model_name = "m"
deployment_id = "{name}"
inference_stack = "v1"
share = {share}
[deployments.engine]
block_tokens = 128
cache_blocks = 1000
pace_spread = 0.01
[deployments.runtime]
max_batch_size = 10
max_num_tokens = 2048
[deployments.autoscaling]
min_replica = {replicas}
max_replica = {replicas}
"""
_FAULT = """
[[faults]]
kind = "{kind}"
intensity = {intensity}
deployment = "{name}"
start = "{hours}h"
"""
_PLAN = """
name = "{name}"
calibration = "1d"
arms = {{ v1 = {{ deployment_id = "v1-old" }}, v2 = {{ deployment_id = "{name}" }} }}
stages = [{{ share = {share} }}]
[[metrics]]
name = "request_error_share"
margin = 3.0
"""

HARMS: Final = {
    "errors": ("error-burst", 0.02),
    "many-errors": ("error-burst", 0.2),
    "slower": ("latency-regression", 0.3),
    "much-slower": ("latency-regression", 1.0),
    "one-slow-replica": ("bad-replica", 4.0),
    "small-batches": ("throughput-regression", 0.9),
}
UNSEEN: Final = {
    "crashing": ("replica-crash-loop", 1.0),
    "restarting": ("counters-reset", 60.0),
}
BLIND: Final = {"unreachable": "target-unreachable", "renamed": "metric-renamed"}
OTHER: Final = {"healthy": None, "other-prompts": "prompt-mix-shift", "frozen": "engine-frozen"}


def scenario_text() -> str:
    """A v1 of six replicas and v2 of two each, all equally loaded; one v2 without traffic, one of which is idle."""
    arms = [*HARMS, *UNSEEN, *BLIND, *OTHER]
    rate = 1.5 + 0.5 * len(arms) + 0.015
    parts = [_TRAFFIC.format(rate=rate), _DEPLOYMENT.format(name="v1-old", share=1.5, replicas=6)]
    parts += [_DEPLOYMENT.format(name=name, share=0.5, replicas=2) for name in arms]
    parts += [
        _DEPLOYMENT.format(name="no-traffic", share=0, replicas=2),
        _DEPLOYMENT.format(name="idle", share=0.015, replicas=1),
    ]
    for name, (kind, intensity) in {**HARMS, **UNSEEN}.items():
        parts.append(_FAULT.format(kind=kind, intensity=intensity, name=name, hours=PAST_HOURS))
    for name, plain in {**BLIND, **OTHER}.items():
        if plain is not None:
            text = _FAULT.format(kind=plain, intensity=0, name=name, hours=PAST_HOURS)
            parts.append(text.replace("intensity = 0\n", ""))
    return "".join(parts)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = tmp_path_factory.mktemp("end_to_end") / "recorded.db"
    scenario = make_scenario(tomllib.loads(scenario_text()), origin="end_to_end.toml", directory=Path())
    record(scenario, path, hours=PAST_HOURS + HOURS, scrape_seconds=30.0)
    with Store(path, read_only=True) as store:
        yield store


def judge_arm(store: Store, name: str, hours: float, share: float = 0.25) -> Judgement:
    """The judgement of one v2 so long after its faults began, by a plan frozen then."""
    plan = parse_plan(tomllib.loads(_PLAN.format(name=name, share=share)), f"{name}.toml")
    started_ms = START_MS + PAST_HOURS * 3_600_000
    frozen = freeze_plan(store, plan, started_ms)
    return judge_case(store, frozen, (Decision("start", started_ms),), started_ms + round(hours * 3_600_000))


@pytest.mark.parametrize("name", HARMS)
def test_each_harm_is_caught(recorded: Store, name: str) -> None:
    """Within five hours at 25 %, and is never called healthy before."""
    verdicts = [judge_arm(recorded, name, hours).verdict for hours in (0.5, 1, 2, 3, 4, HOURS)]
    assert "HEALTHY" not in verdicts
    assert verdicts[-1] == "DEGRADED"


def test_what_is_the_same_is_healthy(recorded: Store) -> None:
    """A v2 like v1 is proven to be, and never called degraded before."""
    verdicts = [judge_arm(recorded, "healthy", hours).verdict for hours in (0.5, 1, 2, 3, 4, HOURS)]
    assert "DEGRADED" not in verdicts
    assert verdicts[-1] == "HEALTHY"


@pytest.mark.parametrize("name", [*BLIND, "no-traffic"])
def test_what_is_not_observed_is_no_data(recorded: Store, name: str) -> None:
    """Targets that do not answer, a metric that was renamed, and a v2 that nobody asks."""
    assert judge_arm(recorded, name, 2).verdict == "NO DATA"


def test_an_idle_replica_says_nothing(recorded: Store) -> None:
    """At one percent of the traffic it is nearly idle, which is said, and is not healthy."""
    judgement = judge_arm(recorded, "idle", HOURS, share=0.01)
    causes = {metric.name: metric.cause for metric in judgement.metrics}
    assert judgement.verdict == "INCONCLUSIVE"
    assert causes["time_to_first_token_seconds"] == "load"
    assert "load not matched" in judgement.reason


def test_other_prompts_are_no_harm(recorded: Store) -> None:
    """A v2 whose clients ask other questions is neither degraded nor healthy: the prompts are said to differ."""
    judgement = judge_arm(recorded, "other-prompts", 3)
    assert judgement.verdict == "INCONCLUSIVE"
    assert judgement.mix is not None
    assert judgement.mix.differs


@pytest.mark.parametrize("name", ["frozen", *UNSEEN])
def test_what_no_counter_shows_is_never_healthy(recorded: Store, name: str) -> None:
    """Requests that never end, and those that die with the process that counted them: no figure has them."""
    verdicts = {judge_arm(recorded, name, hours).verdict for hours in (0.5, 1, 2, 3, 4, HOURS)}
    assert verdicts <= {"INCONCLUSIVE", "NO DATA"}
