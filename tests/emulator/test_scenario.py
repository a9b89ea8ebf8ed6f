"""Scenario files: what they make, and how what they cannot make is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from servescope import cli
from servescope.emulator.deployment.disaggregation import Disaggregation
from servescope.emulator.deployment.replica import ColdStart, HealthCheck
from servescope.emulator.faults.faults import Faults
from servescope.emulator.router.configuration import KvRouterParameters
from servescope.emulator.scenario.scenario import Scenario, make_scenario, read_scenario
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.errors import ConfigurationError
from servescope.exposition.rendering import render
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling
from tests.conftest import ROOT

EXAMPLES = sorted((ROOT / "examples" / "scenarios").glob("*.toml"))

WHOLE = """
seed = 5
[traffic]
preset = "agents"
requests_per_second = 3
[[deployments]]
model_name = "m"
deployment_id = "new"
environment = "production"
rollout_phase = "promoting"
share = 3
drain = "1m"
[deployments.engine]
hardware = "h100"
max_queue = 9
acceptance = [0.9, 0.8]
[deployments.runtime]
tensor_parallel_size = 2
max_batch_size = 48
[deployments.llm_config]
is_disaggregated = true
b10_disagg_config = { prefill_workers_per_replica = 1, decode_workers_per_replica = 2 }
b10_routing_config = { router_temperature = 0.2, router_queue_policy = "wspt" }
speculative_config = { decoding_type = "eagle", speculative_model_dir = "/eagle", max_draft_len = 2 }
b10_autoscaling_config = { scale_down_half_life_seconds = 600 }
[deployments.autoscaling]
min_replica = 2
max_replica = 5
autoscaling_window = "2m"
scale_down_delay = "90s"
target_in_flight_tokens = 40000
prefill_target_in_flight_tokens = 20000
[deployments.router]
replicas = 2
event_delay = "50ms"
[deployments.cold_start]
image_pull = "0s"
weights_load = "90s"
[deployments.health_check]
stalled = "40s"
[[deployments]]
model_name = "m"
deployment_id = "old"
inference_stack = "v1"
[deployments.speculator]
speculative_decoding_mode = "LOOKAHEAD_DECODING"
lookahead_windows_size = 3
lookahead_ngram_size = 4
lookahead_verification_set_size = 3
[deployments.autoscaling]
concurrency_target = 8
target_utilization_percentage = 50
[[faults]]
kind = "draft-misaligned"
deployment = "new"
start = "1m"
end = "2m"
"""


def scenario(text: str) -> Scenario:
    """What a file with this text says."""
    return make_scenario(tomllib.loads(text), origin="s.toml", directory=Path())


def test_every_table_says_what_it_should() -> None:
    """Documented fields, durations and names arrive in the plans; what is left out is as documented."""
    made = scenario(WHOLE)
    (new, new_share), (old, old_share) = made.deployments
    assert (new_share, old_share, made.seed) == (3.0, 1.0, 5)
    assert isinstance(made.traffic, GeneratedTraffic)
    assert made.traffic.mix.requests_per_second == 3
    assert new.identity.labels() == (
        ("deployment_id", "new"), ("environment", "production"), ("inference_stack", "v2"), ("model_name", "m"),
        ("rollout_phase", "promoting"),
    )  # fmt: skip
    assert new.disaggregation == Disaggregation(1, 2)
    assert new.routing == KvRouterParameters(router_temperature=0.2, router_queue_policy="wspt")
    assert new.scaling == TokenScaling(
        target_in_flight_tokens=40_000, min_replica=2, initial_replicas=2, max_replica=5, autoscaling_window=120,
        scale_down_delay=90, scale_down_half_life_seconds=600, prefill_target_in_flight_tokens=20_000,
    )  # fmt: skip
    assert new.engine.speculation is not None
    assert new.engine.speculation.acceptance == (0.9, 0.8)
    assert (new.engine.max_batch_size, new.engine.max_queue) == (48, 9)
    assert new.kv_transfer.bytes_per_token == new.engine.cache_bytes_per_token
    assert new.cold_start == ColdStart(0.0, 90.0, 10.0, 5.0)
    assert new.health_check == HealthCheck(stalled_seconds=40.0)
    assert (new.router.replicas, new.event_seconds, new.drain_seconds) == (2, 0.05, 60.0)
    assert old.routing is None
    assert old.scaling == ConcurrencyScaling(concurrency_target=8, target_utilization_percentage=50)
    assert old.engine.speculation is not None
    assert old.engine.speculation.decoding_type == "lookahead"
    (fault,) = made.faults
    assert (fault.kind.name, fault.deployment, fault.start_seconds, fault.end_seconds) == (
        "draft-misaligned", "new", 60.0, 120.0,
    )  # fmt: skip


def test_least_is_a_model_and_a_name() -> None:
    """With nothing else it is a v2 deployment with a KV-aware router, scaled on tokens."""
    ((plan, share),) = scenario('[[deployments]]\nmodel_name = "m"\ndeployment_id = "d"').deployments
    assert share == 1.0
    assert plan.routing == KvRouterParameters()
    assert plan.scaling == TokenScaling()
    assert plan.disaggregation is None


def test_shares_are_the_traffic_split() -> None:
    """Each share is one of their sum, and can be changed while it runs."""
    stack = scenario(WHOLE).build()
    assert stack.traffic.split.shares == {"new": 0.75, "old": 0.25}


def test_shares_change_at_their_times() -> None:
    """At each time, and conversations follow within the time that is given."""
    text = """
[[shares]]
deployment = "new"
share = 0.01
start = "0s"
[[shares]]
deployment = "new"
share = 0.25
start = "1h"
follow = "5m"
"""
    stack = scenario(WHOLE + text).build(quiet=True)
    seen = []
    for seconds in (1.0, 3599.0, 3601.0):
        stack.clock.run_until(seconds)
        seen.append(stack.traffic.split.shares["new"])

    assert seen == [0.01, 0.01, 0.25]


def test_a_deployment_can_open_later() -> None:
    """Until then it has no targets; then its replicas start, and are cold."""
    document = tomllib.loads(WHOLE)
    document["deployments"][1] |= {
        "start": "10m", "traffic": {"message_tokens": 2000}, "engine": {"cold_slowdown": 0.8, "pace_spread": 0.1},
    }  # fmt: skip
    described = make_scenario(document, origin="s.toml", directory=Path())
    stack = described.build(quiet=True)
    old = stack.deployments[1]
    stack.clock.run_until(599.0)
    before = old.targets()
    stack.clock.run_until(605.0)
    starting = old.count_replicas()["starting"]
    stack.clock.run_until(700.0)

    assert before == []
    assert starting == 1
    assert [target.identity.role for target in old.targets()] == ["aggregated", "router", "autoscaler"]
    assert described.mixes["old"].message_tokens == 2000
    assert described.mixes["old"].requests_per_second == 3


def change(path: str, value: object) -> Mapping[str, object]:
    """The whole scenario with another value at a path such as `deployments.0.engine.hardware`; None takes it away."""
    document = tomllib.loads(WHOLE)
    *parents, last = path.split(".")
    place: Any = document
    for part in parents:
        place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("seeds", 1, "s.toml: unknown key 'seeds'; did you mean 'seed'?"),
        ("seed", "1", "s.toml: seed: '1' is wrong, expected a whole number"),
        ("deployments.1.deployment_id", "../../x", "deployment_id: '../../x' is wrong, expected letters, digits"),
        ("deployments.1.deployment_id", "v1", "deployment_id: 'v1' is wrong, expected letters, digits"),
        ("traffic", 3, "s.toml: traffic: 3 is wrong, expected a table"),
        ("traffic.preset", "chatt", "s.toml: traffic.preset: 'chatt' is wrong, expected one of"),
        ("deployments", [], "s.toml: no deployments; expected at least one"),
        ("deployments.0.model_name", None, "s.toml: deployments[0]: 'model_name' is missing"),
        ("deployments.0.rollout_phase", "later", "s.toml: deployments[0]: unknown rollout_phase 'later'"),
        ("deployments.0.share", -1, "deployments[0].share: -1 is wrong, expected a number of 0 or more"),
        ("deployments.0.engine.hardware", "h1000", "deployments[0].engine: unknown hardware 'h1000', supported: "),
        ("deployments.0.engine.gpu", "h100", "unknown key 'deployments[0].engine.gpu'"),
        ("deployments.0.engine.max_queue", True, "deployments[0].engine.max_queue: True is wrong"),
        ("deployments.0.runtime.max_batch_size", 0,
         "runtime.max_batch_size: 0 is wrong, expected a whole number from 1"),
        ("deployments.0.llm_config.is_disaggregated", False, "deployments[0].llm_config.b10_disagg_config needs is_"),
        ("deployments.0.llm_config.b10_disagg_config",
         {"prefill_workers_per_replica": 0, "decode_workers_per_replica": 1},
         "prefill_workers_per_replica is 0, expected a whole number of 1 or more"),
        ("deployments.0.llm_config.b10_routing_config", {"router_temprature": 1},
         "deployments[0].llm_config.b10_routing_config.router_temprature is an unknown field, did you mean"),
        ("deployments.0.llm_config.speculative_config", {"decoding_type": "medusa"},
         "speculative_config.decoding_type is 'medusa', expected one of: Eagle, MTP, NGram"),
        ("deployments.0.autoscaling.min_replica", 0, "deployments[0].autoscaling.min_replica: 0 is wrong"),
        ("deployments.0.autoscaling.max_replica", 1,
         "deployments[0]: min_replica 2, initial_replicas 2, max_replica 1"),
        ("deployments.0.autoscaling.autoscaling_window", 60, "autoscaling_window: 60 is wrong, expected a duration"),
        ("deployments.0.autoscaling.concurrency_target", 9, "llm_config.b10_autoscaling_config"),
        ("deployments.0.router.kind", "random", "deployments[0].router.kind: 'random' is wrong, expected one of kv, "),
        ("deployments.0.router.kind", "least-load", "b10_routing_config: a table is wrong, expected none beside"),
        ("deployments.0.router.max_queued", 2.5,
         "router.max_queued: 2.5 is wrong, expected a whole number of 0 or more"),
        ("deployments.0.autoscaling.min_replica", 9,
         "deployments[0]: min_replica 9, initial_replicas 9, max_replica 5"),
        ("deployments.0.autoscaling.max_replica", 10**30,
         "max_replica is 1000000000000000000000000000000, expected 1000"),
        ("deployments.0.autoscaling.target_in_flight_tokens", 10**400, "expected a number above 0"),
        ("deployments.0.autoscaling.target_in_flight_tokens", float("nan"), "nan is wrong, expected a number above 0"),
        ("deployments.0.engine.cache_blocks", 10**400, "cache_blocks is above 1e+12, expected 1 to 1e+12"),
        ("deployments.0.llm_config.b10_disagg_config",
         {"prefill_workers_per_replica": 10**9, "decode_workers_per_replica": 1},
         "prefill_workers_per_replica is 1000000000, expected 64 at most"),
        ("deployments.0.router.replicas", 1000, "deployments[0].router: replicas of the router are 1000"),
        ("deployments.0.health_check.period", "0s", "deployments[0].health_check: period_seconds is 0.0"),
        ("deployments.0.speculator", {}, "deployments[0].speculator: a table is wrong, expected it in a v1 deployment"),
        ("deployments.1.llm_config", {}, "deployments[1].llm_config: a table is wrong, expected none in a v1"),
        ("deployments.1.router", {"kind": "kv"}, "deployments[1].router.kind: 'kv' is wrong, expected 'least-load'"),
        ("deployments.1.autoscaling.target_utilization_percentage", 120, "120 is wrong, expected a number above 0, at"),
        ("deployments.1.autoscaling.prefill_target_in_flight_tokens", 1, "unknown key 'deployments[1].autoscaling.pre"),
        ("faults.0.kind", "gremlins", "gremlins"),
        ("deployments.0.start", "soon", "deployments[0].start: 'soon' is wrong, expected a duration"),
        ("deployments.0.engine.pace_spread", 2, "engine.pace_spread: 2 is wrong, expected a number from 0 to 1"),
        ("deployments.0.traffic", {"day_seconds": 9}, "deployments[0].traffic.day_seconds: 9 is wrong, expected none"),
        ("deployments.0.traffic", {"turns": 0}, "deployments[0].traffic: turns is 0.0, expected 1 or more"),
        ("shares", [{"deployment": "new", "share": 0.1}], "shares[0]: 'start' is missing"),
        ("shares", [{"deployment": "v3", "share": 0.1, "start": "1h"}],
         "shares[0].deployment: 'v3' is wrong, expected one of new, old"),
        ("shares", [{"deployment": "new", "share": 25, "start": "1h"}],
         "shares[0].share: 25 is wrong, expected a number from 0 to 1"),
        ("faults.0.deployment", "newer", "faults[0].deployment: unknown deployment 'newer', known: new, old"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_place(path: str, value: object, message: str) -> None:
    """Unknown keys, wrong types, values out of range and settings that exclude each other name file and key."""
    with pytest.raises(ConfigurationError) as caught:
        make_scenario(change(path, value), origin="s.toml", directory=Path())
    assert message in str(caught.value)
    assert str(caught.value).startswith("s.toml: ")


def test_phase_targets_are_for_phases() -> None:
    """A target of prefill alone in a deployment without prefill workers is refused."""
    text = '[[deployments]]\nmodel_name = "m"\ndeployment_id = "d"\n[deployments.autoscaling]\n'
    with pytest.raises(ConfigurationError, match="expected it in a disaggregated deployment only"):
        scenario(f"{text}prefill_target_in_flight_tokens = 5")


def test_deployments_differ() -> None:
    """Two of one name, or of different block sizes, make no stack."""
    text = '[[deployments]]\nmodel_name = "m"\ndeployment_id = "d"\n'
    with pytest.raises(ConfigurationError, match=r"s.toml: deployment ids are d, d, expected each of them once"):
        scenario(text * 2).build()
    other = text.replace('"d"', '"e"')
    with pytest.raises(ConfigurationError, match=r"s.toml: block sizes are 32 and 64 tokens"):
        scenario(f"{text}{other}[deployments.engine]\nblock_tokens = 64\n").build()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no scenario file"),
        (b"seed = ", "not TOML"),
        (b"seed = 9223372036854775808", "seed: an integer of more than 64 bits"),
        (b"\xff", "cannot be read: is not UTF-8 text$"),
    ],
)
def test_files_that_are_none_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    """A missing file, one that is not TOML and one that is not text are named."""
    path = tmp_path / "scenario.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        read_scenario(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path) -> None:
    """Each example is read, runs with its faults, and serves requests; the same file gives the same pages."""
    pages = []
    for _ in range(2):
        described = read_scenario(path)
        stack = described.build(epoch=1_700_000_000)
        Faults(stack, described.faults)
        stack.clock.run_until(20.0)
        shares = stack.traffic.split.shares
        served = [each for each in stack.deployments if shares[each.plan.identity.deployment_id] > 0]
        assert all(deployment.outcomes["ok"] > 0 for deployment in served)
        pages.append([render(target.instruments) for target in stack.targets()])
    assert pages[0] == pages[1]


def test_there_are_examples() -> None:
    """A disaggregated deployment, a large fleet, a cutover with a fault, one by stages, and two of the same."""
    assert [path.stem for path in EXAMPLES] == ["cutover", "disaggregated", "large-fleet", "stages", "twins"]


def test_scenario_says_what_arguments_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An argument that the file has is refused beside it, and so is a file that is not there."""
    words = ["emulate", "--directory", str(tmp_path), "--scenario"]
    assert cli.main([*words, str(EXAMPLES[0]), "--seed", "3"]) == 2
    assert "--seed is given beside --scenario, expected it in the file" in capsys.readouterr().err
    assert cli.main([*words, str(tmp_path / "none.toml")]) == 2
    assert "no scenario file" in capsys.readouterr().err
