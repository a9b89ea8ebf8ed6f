"""Drafts of a cutover's files: what the real readers read in them, for whatever configuration was migrated."""

from __future__ import annotations

import json
import random
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.collector.config import make_configuration
from servescope.contract.identity import Identity
from servescope.cutover.plan.files import check_arms, parse_plan
from servescope.cutover.plan.plan import CutoverPlan
from servescope.judge.drafting import draft_collector, draft_plan
from servescope.migration.moves import Move
from servescope.migration.translation.checklist import make_checklist
from tests.support.configurations import draw_configuration
from tests.support.drawing import examples
from tests.support.migrations import V1, move_of


def plan_of(move: Move) -> CutoverPlan:
    """The drafted plan as the judge reads it."""
    return parse_plan(tomllib.loads(draft_plan(move)), "draft.toml")


def test_the_drafted_plan_is_one_of_the_judge() -> None:
    """Arms by model and stack, ascending stages, the documented margins, and what is configured."""
    move = move_of(V1)
    plan = plan_of(move)

    assert plan.name == "mine-70b"
    check_arms(plan, [Identity("Mine 70B", "any", "v1"), Identity("Mine 70B", "other", "v2")])
    assert [stage.share for stage in plan.stages] == [0.01, 0.05, 0.25, 0.5, 0.95]
    required = {metric.name: metric.margin for metric in plan.metrics if metric.required}
    assert required["tps_per_request"] == 0.1
    assert required["request_error_share"] == 1.0
    assert plan.configurations == move.configurations
    assert {*plan.configurations} == {"v1", "v2"}
    assert plan.checklist == tuple(make_checklist(move.changes, move.llm_config).lines())


def test_the_draft_says_what_this_configuration_changes() -> None:
    """Beside the metric that shows it: an end of speculation, and of the default length of answers."""
    text = draft_plan(move_of(V1))

    assert "v1 ended answers at 100 tokens by default" in text
    assert text.count("v1 speculates by lookahead, and this v2 does not speculate") == 2
    assert "Not judged, as this v2 is not configured to have it: speculation_rate." in text


def test_what_was_decided_is_judged() -> None:
    """Speculation by n-grams has its band, and an unusual token target one of its own."""
    move = move_of(V1, n_gram=True, target=10_000)
    metrics = {metric.name: metric for metric in plan_of(move).metrics}

    assert metrics["speculation_rate"].low == 0.4
    assert (metrics["in_flight_tokens_per_worker"].low, metrics["in_flight_tokens_per_worker"].high) == (5e3, 20e3)
    assert "management_api" in plan_of(move).configurations
    assert "does not speculate" not in draft_plan(move)


def test_the_drafted_configuration_is_one_of_the_collector() -> None:
    """Both deployments with the labels of the plan's arms, and the split of the first stage."""
    move = move_of(V1)
    found = make_configuration(tomllib.loads(draft_collector(move)), origin="draft.toml", directory=Path("/"))

    deployments = [each.deployment for each in found.deployments]
    assert [each.deployment_id for each in deployments] == ["mine-70b-v1", "mine-70b-v2"]
    check_arms(
        plan_of(move), [Identity(each.model_name, each.deployment_id, each.inference_stack) for each in deployments]
    )
    assert [(each.inference_stack, each.ratio) for each in found.traffic_split] == [("v1", 0.99), ("v2", 0.01)]


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**6), st.text(min_size=1, max_size=200))
def test_every_draft_can_be_read(seed: int, name: str) -> None:
    """Of generated configurations, with names of any characters."""
    config = draw_configuration(random.Random(seed))
    text = yaml.safe_dump({**config, "model_name": name}, allow_unicode=bool(seed % 2))
    move = move_of(text)

    assert plan_of(move).configurations == move.configurations
    make_configuration(tomllib.loads(draft_collector(move)), origin="draft.toml", directory=Path("/"))


def test_no_secret_is_in_a_draft() -> None:
    """Not even where a model is called like one."""
    text = V1.replace("Mine 70B", "hf_ABCDEFGHIJKLMNOPQRSTUVWX") + "secrets: {a: hunter2hunter2}\n"
    move = replace(move_of(text), origin="x")

    for draft in (draft_plan(move), draft_collector(move)):
        assert "hunter2" not in draft
        assert "ABCDEFGHIJ" not in draft


@pytest.mark.parametrize("name", ["  ", "\N{PILE OF POO}", "..", "\x7f"])
def test_a_name_without_letters_becomes_an_id_all_the_same(name: str) -> None:
    """A plan and a deployment have to be called something."""
    assert move_of(V1.replace("Mine 70B", json.dumps(name))).slug == "model"
