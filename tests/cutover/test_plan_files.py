"""Plans as TOML: what the least one means, and what is refused, by file, key and value."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from servescope.contract.identity import Identity
from servescope.contract.judged import JUDGED
from servescope.cutover.plan.files import check_arms, parse_plan
from servescope.cutover.plan.plan import CutoverPlan, FrozenPlan, PlanChangedError
from servescope.errors import ConfigurationError, UsageError

LEAST = """
[arms]
v1 = { deployment_id = "chat-v1" }
v2 = { deployment_id = "chat-v2" }

[[stages]]
share = 0.25
"""


def parsed(text: str) -> CutoverPlan:
    """The plan in this text."""
    return parse_plan(tomllib.loads(text), "plan.toml")


def test_the_least_plan_has_the_documented_expectations() -> None:
    """Margin 10 %, floor 2 %, errors × 2; token speed, latencies, errors and rejections are required."""
    plan = parsed(LEAST)
    metrics = {each.name: each for each in plan.metrics}

    assert plan.name == "plan"
    assert [(stage.share, stage.least_hours) for stage in plan.stages] == [(0.25, 0.0)]
    assert {name for name, each in metrics.items() if each.required} == {
        "tps_per_request", "time_to_first_token_seconds", "time_per_output_token_seconds", "request_duration_seconds",
        "request_error_share", "request_rejected_share",
    }  # fmt: skip
    assert (metrics["tps_per_request"].margin, metrics["tps_per_request"].floor) == (0.10, 0.02)
    assert metrics["request_error_share"].margin == 1.0
    assert (metrics["in_flight_tokens_per_worker"].low, metrics["in_flight_tokens_per_worker"].high) == (50e3, 150e3)
    assert not metrics["kv_cache_hit_rate_skew"].required


def test_a_plan_says_what_it_wants_otherwise() -> None:
    """Several deployments in an arm, stages with hours, a metric's margin and edges, a band of its own."""
    plan = parsed(
        """
        name = "chat to v2"
        holdback = 0.02
        calibration = "1d"

        [arms]
        v1 = [{ deployment_id = "chat-a" }, { deployment_id = "chat-b", environment = "production" }]
        v2 = { inference_stack = "v2" }

        [[stages]]
        share = 0.05
        least_hours = 4
        [[stages]]
        share = 0.5

        [[metrics]]
        name = "time_to_first_token_seconds"
        margin = 0.2
        floor = 0.05
        edges = [0.5, 2.5]
        [[metrics]]
        name = "in_flight_tokens_per_worker"
        low = 20_000
        required = true
        [[metrics]]
        name = "request_rejected_share"
        required = false
        """
    )
    metrics = {each.name: each for each in plan.metrics}

    assert (plan.name, plan.holdback, plan.calibration_hours) == ("chat to v2", 0.02, 24.0)
    assert plan.v1.selects(Identity("llama", "chat-b", "v1", environment="production"))
    assert not plan.v1.selects(Identity("llama", "chat-b", "v1"))
    assert [(stage.share, stage.least_hours) for stage in plan.stages] == [(0.05, 4.0), (0.5, 0.0)]
    assert metrics["time_to_first_token_seconds"].edges == (0.5, 2.5)
    assert (metrics["in_flight_tokens_per_worker"].low, metrics["in_flight_tokens_per_worker"].high) == (20e3, 150e3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan.toml: 'arms' is missing, expected [arms] with v1"),
        ("[arms]\nv1 = { deployment_id = 'a' }\n[[stages]]\nshare = 1", "plan.toml: arms: 'v2' is missing"),
        (LEAST.replace("chat-v2", "chat-v1"), "v1 and v2 overlap: what has { deployment_id = \"chat-v1\" } is in both"),
        (LEAST.replace("deployment_id", "deployment", 1), "unknown key 'arms.v1.deployment'; did you mean"),
        (LEAST.replace("0.25", "0"), "stages[0].share: 0 is wrong, expected a number above 0 to 1"),
        (LEAST.replace("0.25", "25"), "stages[0].share: 25 is wrong"),
        (LEAST + "[[stages]]\nshare = 0.1", "stages[1].share: 0.1 is wrong, expected a share above that of the stage"),
        (LEAST + "[configurations]\nv2 = 'abc'", "configurations.v2: 'abc' is wrong, expected a hash of 64"),
        (LEAST + "[configurations]\nv3 = 'abc'", "unknown key 'configurations.v3'"),
        (LEAST + "[[metrics]]\nname = 'time_to_first_token'", "metrics[0].name: 'time_to_first_token' is wrong"),
        (LEAST + "[[metrics]]\nname = 'tps_per_request'\nmargin = -0.1", "metrics[0].margin: -0.1 is wrong"),
        (LEAST + "[[metrics]]\nname = 'tps_per_request'\nmargin = 0.1\nfloor = 0.2", "a fraction below the margin"),
        (LEAST + "[[metrics]]\nname = 'tps_per_request'\nlow = 1", "has a margin, and only metrics of v2 alone"),
        (LEAST + "[[metrics]]\nname = 'speculation_rate'\nmargin = 0.1", "is judged by its band"),
        (LEAST + "[[metrics]]\nname = 'speculation_rate'\nlow = 0.9\nhigh = 0.5", "low below high"),
        (LEAST + "".join(map("[[metrics]]\nname = '{}'\nrequired = true\n".format, JUDGED)), "metrics are required"),
        (LEAST + "[[metrics]]\nname = 'client_abort_share'\nrequired = true\nguard = true", "guard: True is wrong"),
        ("preset = 'none'\n" + LEAST, "no metric is required"),
        ("alpha_harm = 0\n" + LEAST, "alpha_harm: 0 is wrong"),
        ("coverage = 95\n" + LEAST, "coverage: 95 is wrong, expected a number from 0 to 1"),
        ("margin = 0.1\n" + LEAST, "unknown key 'margin'"),
        (LEAST + "[[stages]]\nshare = 0.5\n" * 100, "101 stages, expected at most 100"),
        (LEAST.replace('{ deployment_id = "chat-v1" }', f"[{'{a = 1}, ' * 1001}]"), "arms.v1: 1001 sets of labels"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_refused_by_name(text: str, message: str) -> None:
    """File, key and value, and what was expected."""
    with pytest.raises(ConfigurationError) as caught:
        parsed(text)

    assert str(caught.value).startswith("plan.toml: ")
    assert message in str(caught.value)


def test_arms_that_select_nothing_are_refused() -> None:
    """With the deployments that there are."""
    plan = parsed(LEAST)
    known = [Identity("llama", "chat-v1", "v1"), Identity("llama", "chatv2", "v2")]

    with pytest.raises(UsageError, match=r"arm v2 of plan 'plan' selects nothing: .*'chat-v1', 'chatv2'"):
        check_arms(plan, known)


def test_arms_that_overlap_are_refused() -> None:
    """By the target that is in both."""
    plan = parsed(LEAST.replace('deployment_id = "chat-v2"', 'inference_stack = "v1"'))

    with pytest.raises(UsageError, match=r"overlap: target .* is in v1 and in v2"):
        check_arms(plan, [Identity("llama", "chat-v1", "v1")])


def test_the_hashes_of_configurations_are_frozen_with_the_plan() -> None:
    """They survive the journal, and another one is another plan."""
    plan = parsed(f'{LEAST}\n[configurations]\nv1 = "{"0a" * 32}"\nmanagement_api = "{"0b" * 32}"\n')

    assert FrozenPlan.from_json(FrozenPlan(plan, 0, {}).to_json()).plan.configurations == {
        "v1": "0a" * 32, "management_api": "0b" * 32,
    }  # fmt: skip
    assert plan.hash() != parsed(LEAST).hash()


def test_a_plan_without_a_coverage_asks_for_95_percent() -> None:
    """So those in journals do, whose values lack the key; another one survives the journal."""
    values = FrozenPlan(parsed(LEAST), 0, {}).to_json()
    asked = FrozenPlan(parsed(f"coverage = 0.9\n{LEAST}"), 0, {})

    assert "coverage" not in values["plan"]
    assert FrozenPlan.from_json(values).plan.coverage == 0.95
    assert FrozenPlan.from_json(asked.to_json()) == asked


def test_an_edited_plan_is_refused() -> None:
    """A frozen plan whose margin was widened is not the one that was frozen."""
    plan = parsed(LEAST)
    values = FrozenPlan(plan, 0, {}).to_json()
    values["plan"]["metrics"][0]["margin"] = 0.5

    with pytest.raises(PlanChangedError, match="was edited after it was frozen"):
        FrozenPlan.from_json(values)


def test_the_same_plan_has_the_same_hash() -> None:
    """And another margin another."""
    plan = parsed(LEAST)

    assert parsed(LEAST + "\n").hash() == plan.hash()
    assert plan.hash() == parsed(f"coverage = 0.95\n{LEAST}").hash()
    # That of plans which were frozen before there was a key for the coverage, and before there were guards.
    speed = parsed(f"preset = 'none'\n{LEAST}[[metrics]]\nname = 'tps_per_request'")
    assert speed.hash() == "ded6589240fd162f"
    assert parsed(f"coverage = 0.9\n{LEAST}").hash() != plan.hash()
    assert replace(plan, alpha_harm=0.01).hash() != plan.hash()
