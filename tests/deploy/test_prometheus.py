"""Agents that divide targets and write to one Prometheus: the files of `deploy/prometheus/`, and what they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servescope.contract.identity import IDENTITY_LABELS, Identity
from servescope.sources.map_files import load_sources
from servescope.sources.maps import LAYERS
from tests.support.past_one_machine import AGENTS, DEPLOYED, agent_text
from tests.support.promtool import run

LISTS = sorted((DEPLOYED / "targets").glob("*.json"))


@pytest.mark.parametrize("program", ["promtool", "promtool_3"])
def test_prometheus_accepts_both_configurations(program: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each agent's, with its number filled in, and the receiver's, of Prometheus 2 and 3."""
    promtool: Path = request.getfixturevalue(program)
    for number in range(AGENTS):
        (tmp_path / f"agent-{number}.yml").write_text(agent_text(number), encoding="utf-8")
    agents = [f"agent-{number}.yml" for number in range(AGENTS)]

    for options in (["--agent", *agents], ["--syntax-only", str(DEPLOYED / "receiver.yml")]):
        done = run(promtool, ["check", "config", *options], tmp_path)
        assert done.returncode == 0, done.stdout


def test_agent_without_its_number_is_refused(promtool: Path, tmp_path: Path) -> None:
    """A file that nobody has filled in would scrape nothing; Prometheus names what is to be replaced."""
    done = run(promtool, ["check", "config", "--agent", DEPLOYED / "agent.yml"], tmp_path)

    assert done.returncode != 0
    assert "AGENTS" in done.stdout


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_lists_of_targets_name_what_exists(path: Path) -> None:
    """Their labels are those of an identity, their sources and layers those that the translator knows."""
    for group in json.loads(path.read_text(encoding="utf-8")):
        labels = dict(group["labels"])
        assert labels.pop("__param_source") in load_sources()
        assert labels.pop("__param_behind", LAYERS[0]) in LAYERS
        assert set(labels) <= set(IDENTITY_LABELS)
        Identity(**labels)
