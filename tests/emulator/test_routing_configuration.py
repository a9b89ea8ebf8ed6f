"""`b10_routing_config`: its three fields, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.router.configuration import KvRouterParameters, parse_routing
from servescope.emulator.scenario.scenario import make_scenario
from servescope.errors import ConfigurationError, UsageError


def test_an_empty_table_means_the_documented_defaults() -> None:
    """Weight 3.5, temperature 0.05, first come first served."""
    assert parse_routing({}) == KvRouterParameters(3.5, 0.05, "fcfs")


def test_every_documented_field_is_read() -> None:
    """Whole numbers will do where numbers are documented."""
    table = {"router_queue_policy": "wspt", "router_overlap_score_weight": 2, "router_temperature": 0}
    assert parse_routing(table) == KvRouterParameters(2, 0, "wspt")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"router_temprature": 0.1}, "router_temprature is an unknown field, did you mean 'router_temperature'?"),
        ({"replicas": 2},
         "replicas is an unknown field, expected one of: router_queue_policy, router_overlap_score_weight, "),
        ({"router_queue_policy": "lifo"}, "router_queue_policy is 'lifo', expected one of: fcfs, wspt"),
        ({"router_queue_policy": 3}, "router_queue_policy is 3, expected one of: fcfs, wspt"),
        ({"router_queue_policy": ["fcfs"]}, "router_queue_policy is a list, expected one of: fcfs, wspt"),
        ({"router_temperature": -0.1}, "router_temperature is -0.1, expected a number of 0 or more"),
        ({"router_temperature": "0.1"}, "router_temperature is '0.1', expected a number of 0 or more"),
        ({"router_temperature": True}, "router_temperature is true, expected a number of 0 or more"),
        ({"router_temperature": float("nan")}, "router_temperature is nan, expected a number of 0 or more"),
        ({"router_overlap_score_weight": float("inf")}, "router_overlap_score_weight is inf, expected a number"),
        ({"router_overlap_score_weight": None}, "router_overlap_score_weight is null, expected a number"),
        ({"router_overlap_score_weight": 1e308}, "router_overlap_score_weight is above 1e.100, expected a number"),
        ({"router_temperature": 10**400}, "router_temperature is above 1e.100, expected a number of 0 to 1e.100"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place_and_the_alternatives(table: Mapping[str, object], expected: str) -> None:
    """The error has the field, its value and what was expected."""
    with pytest.raises(UsageError, match=f"^deployments.0..llm_config.b10_routing_config.{expected}"):
        parse_routing(table, "deployments[0].llm_config.b10_routing_config")


@pytest.mark.parametrize("table", [None, 3, "fcfs", [("router_temperature", 1)]])
def test_only_a_table_is_a_configuration(table: object) -> None:
    """Anything else is refused, and shown."""
    with pytest.raises(UsageError, match=r"b10_routing_config is .*, expected a mapping"):
        parse_routing(table)


def scenario(**router: object) -> DeploymentPlan:
    """The plan of a scenario's only deployment, with these keys of `[deployments.router]`."""
    deployment = {"model_name": "m", "deployment_id": "d", "router": router}
    made = make_scenario({"deployments": [deployment]}, origin="s.toml", directory=Path("/scenarios"))
    return made.deployments[0].plan


def test_scenario_says_where_and_how_often_snapshots_are_written() -> None:
    """The folder is beside the scenario; without one nothing is written."""
    recovery = scenario(snapshots="index", snapshot_every="30s").router.recovery
    assert (recovery.snapshot_directory, recovery.snapshot_seconds) == (Path("/scenarios/index"), 30.0)
    assert scenario().router.recovery.snapshot_directory is None


@pytest.mark.parametrize("router", [{"snapshots": ""}, {"snapshots": 3}, {"snapshots": "a", "snapshot_every": "0s"}])
def test_snapshots_nowhere_or_without_end_are_refused(router: dict[str, object]) -> None:
    """An empty folder, something else, or an interval of nothing."""
    with pytest.raises(ConfigurationError, match=r"s.toml: .*snapshot"):
        scenario(**router)
