"""The judge on emulated cutovers, end to end: what is healthy, each harm, and what cannot be known."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.files import parse_plan
from servescope.emulator.scenario.recording import START_MS, record
from servescope.emulator.scenario.scenario import make_scenario
from servescope.judge.case import freeze_plan, judge_case
from servescope.store.embedded import Store
from tests.judge.support.small_stacks import DEPLOYMENT, TRAFFIC

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("end_to_end")]

PAST_HOURS: Final = 24
HOURS: Final = 5
IDLE_SHARE: Final = 0.015

_DEPLOYMENT = f"{DEPLOYMENT}pace_spread = 0.01\n"
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
ALONE: Final = "one-slow-replica"
UNSEEN: Final = {"crashing": ("replica-crash-loop", 1.0), "restarting": ("counters-reset", 60.0)}
BLIND: Final = {"unreachable": "target-unreachable", "renamed": "metric-renamed"}
FROZEN: Final = {"frozen": "engine-frozen"}
ALIKE: Final = {"healthy": None, "other-prompts": "prompt-mix-shift"}
ENGINES: Final = {"as-good": None, "worse": ("latency-regression", 0.3)}
"""Two v2 that are shown as SGLang, beside a v1 that is shown as vLLM."""
Arms = Mapping[str, tuple[str, float] | str | None]
"""The fault of each v2, with an intensity where it has one."""


def scenario_text(arms: Arms, more: str = "") -> str:
    """A v1 of six replicas and v2 of two each, all equally loaded."""
    rate = 1.5 + 0.5 * len(arms) + (IDLE_SHARE if more else 0.0)
    parts = [TRAFFIC.format(rate=rate), _DEPLOYMENT.format(name="v1-old", share=1.5, replicas=6)]
    parts += [_DEPLOYMENT.format(name=name, share=0.5, replicas=2) for name in arms]
    parts.append(more)
    for name, fault in arms.items():
        if fault is not None:
            kind, intensity = (fault, 0.0) if isinstance(fault, str) else fault
            text = _FAULT.format(kind=kind, intensity=intensity, name=name, hours=PAST_HOURS)
            parts.append(text if intensity else text.replace("intensity = 0.0\n", ""))
    return "".join(parts)


@contextmanager
def recording(folder: Path, arms: Arms, more: str = "", *, faces: Sequence[str] = ()) -> Iterator[Store]:
    """The store of a day of these arms, and the hours with their faults, in the names that `faces` say."""
    scenario = make_scenario(tomllib.loads(scenario_text(arms, more)), origin="end_to_end.toml", directory=Path())
    record(scenario, folder / "recorded.db", hours=PAST_HOURS + HOURS, scrape_seconds=60.0, faces=faces)
    with Store(folder / "recorded.db", read_only=True) as store:
        yield store


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Each harm in a v2 of its own."""
    with recording(tmp_path_factory.mktemp("harmed"), HARMS) as store:
        yield store


@pytest.fixture(scope="module")
def unobserved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """What no figure shows, or no scrape reads, each in a v2 of its own."""
    with recording(tmp_path_factory.mktemp("unobserved"), {**UNSEEN, **BLIND, **FROZEN}) as store:
        yield store


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Two v2 that are as good as v1, one without traffic, and one that is idle."""
    more = _DEPLOYMENT.format(name="no-traffic", share=0, replicas=2)
    more += _DEPLOYMENT.format(name="idle", share=IDLE_SHARE, replicas=1)
    with recording(tmp_path_factory.mktemp("alike"), ALIKE, more) as store:
        yield store


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A cutover from one engine to another, each read in its own names."""
    with recording(tmp_path_factory.mktemp("engines"), ENGINES, faces=["v1-old=vllm", "sglang"]) as store:
        yield store


def judge_arm(store: Store, name: str, hours: float, share: float = 0.25) -> Judgement:
    """The judgement of one v2 so long after its faults began, by a plan frozen then."""
    plan = parse_plan(tomllib.loads(_PLAN.format(name=name, share=share)), f"{name}.toml")
    started_ms = START_MS + PAST_HOURS * 3_600_000
    frozen = freeze_plan(store, plan, started_ms)
    return judge_case(store, frozen, (Decision("start", started_ms),), started_ms + round(hours * 3_600_000))


@pytest.mark.parametrize("name", sorted(HARMS.keys() - {ALONE}))
def test_each_harm_is_caught(harmed: Store, name: str) -> None:
    """Within five hours at 25 %, and is never called healthy before."""
    verdicts = [judge_arm(harmed, name, hours).verdict for hours in (0.5, 1, 2, 3, 4, HOURS)]
    assert "HEALTHY" not in verdicts
    assert verdicts[-1] == "DEGRADED"


def test_a_replica_that_alone_is_slow_is_named(harmed: Store) -> None:
    """It is no harm of v2, and v2 is never healthy with it."""
    judgements = [judge_arm(harmed, ALONE, hours) for hours in (0.5, 1, 2, 3, 4, HOURS)]
    assert {"HEALTHY", "DEGRADED"}.isdisjoint(each.verdict for each in judgements)
    named = [metric.reason for metric in judgements[-1].metrics if metric.cause == "one replica"]
    assert named
    assert all("slower than the others of v2" in reason for reason in named)


def test_what_is_the_same_is_healthy(alike: Store) -> None:
    """A v2 like v1 is proven to be, and never called degraded before."""
    verdicts = [judge_arm(alike, "healthy", hours).verdict for hours in (0.5, 1, 2, 3, 4, HOURS)]
    assert "DEGRADED" not in verdicts
    assert verdicts[-1] == "HEALTHY"


@pytest.mark.parametrize(
    ("name", "last", "never"), [("as-good", "HEALTHY", "DEGRADED"), ("worse", "DEGRADED", "HEALTHY")]
)
def test_a_cutover_between_engines_is_judged_as_one_of_our_own(
    engines: Store, name: str, last: str, never: str
) -> None:
    """From vLLM's page to SGLang's, whose edges differ: the same verdicts within the same hours."""
    verdicts = [judge_arm(engines, name, hours).verdict for hours in (0.5, 1, 2, 3, 4, HOURS)]
    assert never not in verdicts
    assert verdicts[-1] == last


@pytest.mark.parametrize("name", BLIND)
def test_what_is_not_observed_is_no_data(unobserved: Store, name: str) -> None:
    """Targets that do not answer, and a metric that was renamed."""
    assert judge_arm(unobserved, name, 2).verdict == "NO DATA"


def test_a_v2_without_traffic_is_no_data(alike: Store) -> None:
    """Nobody asks it anything."""
    assert judge_arm(alike, "no-traffic", 2).verdict == "NO DATA"


def test_an_idle_replica_says_nothing(alike: Store) -> None:
    """At one percent of the traffic it is nearly idle, which is said, and is not healthy."""
    judgement = judge_arm(alike, "idle", HOURS, share=0.01)
    causes = {metric.name: metric.cause for metric in judgement.metrics}
    assert judgement.verdict == "INCONCLUSIVE"
    assert causes["time_to_first_token_seconds"] == "load"
    assert "load not matched" in judgement.reason


def test_other_prompts_are_not_compared(alike: Store) -> None:
    """A v2 whose clients ask other questions, and get longer answers, is not healthy: what prompts move says why."""
    judgement = judge_arm(alike, "other-prompts", 3)
    causes = {metric.name: metric.cause for metric in judgement.metrics}
    assert judgement.verdict != "HEALTHY"
    assert judgement.mix is not None
    assert judgement.mix.refused
    assert {causes[name] for name in ("time_to_first_token_seconds", "tps_per_request")} == {"mix"}


@pytest.mark.parametrize("name", [*FROZEN, *UNSEEN])
def test_what_no_counter_shows_is_never_healthy(unobserved: Store, name: str) -> None:
    """Requests that never end, and those that die with the process that counted them: no figure has them."""
    verdicts = [judge_arm(unobserved, name, hours).verdict for hours in (0.5, 1, 2, 3, 4, HOURS)]
    assert "HEALTHY" not in verdicts
