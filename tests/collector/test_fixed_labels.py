"""Deployments with fixed labels: no list and no rule moves a target out of them, or into them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servescope.collector.discovery.targets import Discovery
from servescope.collector.targets.deployments import read_collected
from servescope.contract.identity import Deployment
from servescope.errors import ConfigurationError
from tests.collector.support.discovered import configure, urls

CHAT = 'deployment_id = "chat"\nmodel_name = "llama"\ninference_stack = "v2"\n'
SEARCH = CHAT.replace("chat", "search")
FIXED = "fixed_labels = true\n"


def deployments(chat: str, search: str) -> str:
    """Two deployments with lists of their own."""
    return (
        f'[[deployments]]\n{CHAT}{chat}file_sd = [{{ files = ["chat.json"] }}]\n'
        f'[[deployments]]\n{SEARCH}{search}file_sd = [{{ files = ["search.json"] }}]\n'
    )


def write_list(folder: Path, name: str, **labels: str) -> None:
    group = {"targets": [f"{name}:1"], "labels": labels}
    (folder / f"{name}.json").write_text(json.dumps([group]), encoding="utf-8")


@pytest.mark.parametrize("name", ["deployment_id", "model_name", "inference_stack", "environment", "rollout_phase"])
def test_a_list_cannot_move_a_target_out_of_a_deployment(tmp_path: Path, name: str) -> None:
    """Its replica and its role are its own; the other list goes on."""
    write_list(tmp_path, "search", replica="r0", role="decode")
    write_list(tmp_path, "chat", **{name: "stable"})
    discovery = Discovery(configure(tmp_path, deployments(FIXED, FIXED)))

    assert urls(discovery) == ["http://search:1/metrics"]
    (problem,) = discovery.problems
    assert f"label '{name}' is 'stable', and the deployment has fixed_labels" in problem


def test_a_list_cannot_move_a_target_into_a_deployment(tmp_path: Path) -> None:
    """Whatever its phase: a deployment is the same in each."""
    write_list(tmp_path, "chat")
    write_list(tmp_path, "search", deployment_id="chat", rollout_phase="promoting")
    discovery = Discovery(configure(tmp_path, deployments(FIXED, "")))

    assert urls(discovery) == ["http://chat:1/metrics"]
    (problem,) = discovery.problems
    assert "its labels are those of deployment 'chat', which has fixed_labels" in problem


def test_a_deployment_without_fixed_labels_has_what_its_list_says(tmp_path: Path) -> None:
    """So that one list can be of many deployments."""
    write_list(tmp_path, "chat", deployment_id="other")
    write_list(tmp_path, "search")

    assert len(Discovery(configure(tmp_path, deployments("", FIXED))).targets) == 2


def test_a_rule_cannot_move_a_written_target(tmp_path: Path) -> None:
    """The configuration is refused."""
    rule = '[[deployments.relabel]]\ntarget_label = "environment"\nreplacement = "prod"\n'
    targets = '[[deployments.targets]]\nurl = "http://a:1"\n'

    with pytest.raises(ConfigurationError, match="label 'environment' is 'prod', and the deployment has fixed_labels"):
        Discovery(configure(tmp_path, f"[[deployments]]\n{CHAT}{FIXED}{targets}{rule}"))


def test_labels_that_are_fixed_from_now_on_apply_to_lists_that_were_read(tmp_path: Path) -> None:
    """As after a reload: the file did not change."""
    write_list(tmp_path, "chat")
    write_list(tmp_path, "search", deployment_id="chat")
    former = Discovery(configure(tmp_path, deployments("", "")))
    assert len(former.targets) == 2
    discovery = Discovery(configure(tmp_path, deployments(FIXED, "")), former)

    assert urls(discovery) == ["http://chat:1/metrics"]
    assert len(discovery.problems) == 1


def test_which_labels_are_fixed_is_read_without_any_secret(tmp_path: Path) -> None:
    """The targets' tokens are for the collector alone."""
    target = '[[deployments.targets]]\nurl = "http://a:1"\nbearer_token_file = "missing"\n'
    path = tmp_path / "servescope.toml"
    path.write_text(f"[[deployments]]\n{CHAT}{FIXED}{target}[[deployments]]\n{SEARCH}{target}", encoding="utf-8")

    assert [(each.deployment, each.fixed_labels) for each in read_collected(path)] == [
        (Deployment("llama", "chat", "v2"), True),
        (Deployment("llama", "search", "v2"), False),
    ]
