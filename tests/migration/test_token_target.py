"""`servescope migrate` with the traffic that v1 served: the report, the JSON, the body, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from servescope.contract.identity import Deployment
from servescope.emulator.scenario.recording import START_MS
from servescope.errors import UsageError
from servescope.increments.blocks import BLOCK_MS
from servescope.migration.report import migration_schema
from servescope.migration.traffic.token_target import TargetOptions, measure_targets
from servescope.migration.traffic.traffic import ServedHistogram, ServedTraffic
from servescope.settings.values import format_instant
from tests.support.commands import Done, run
from tests.support.served_traffic import EmulatedPast

pytestmark = pytest.mark.slow

CONFIG = """\
model_name: mine
resources: {accelerator: "H100:2"}
trt_llm:
  build:
    base_model: decoder
    checkpoint_repository: {source: HF, repo: a/b}
    max_batch_size: 32
    tensor_parallel_count: 2
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def migrate(past: EmulatedPast, *words: str) -> Done:
    """Migrate with the recorded traffic of the past hour and ten minutes."""
    return run("migrate", *words, "--store", str(past.store), "--at", format_instant(past.end_ms), "--past", "71m")


def numbers(past: EmulatedPast, *words: str) -> dict[str, Any]:
    """The numbers from traffic as JSON, which its schema describes."""
    done = migrate(past, *words, "--format", "json")
    found = json.loads(done.stdout)
    jsonschema.validate(found, migration_schema())
    assert isinstance(found["traffic"], dict), done.stderr
    return found["traffic"]


def made(tokens: float = 100.0, hours: int = 24, **changes: Any) -> ServedTraffic:
    """A steady day of two replicas: 40 requests in flight for 10 s each, prompts of so many tokens, 20 out."""
    blocks = np.arange(hours * 12, dtype=np.int64) * BLOCK_MS + START_MS
    ended = 40 * 300 / 10

    def histogram(value: float) -> ServedHistogram:
        counts = np.zeros((3, blocks.size))
        counts[1] = ended
        return ServedHistogram((value / 2, value), counts, np.full(blocks.size, ended * value))

    traffic = ServedTraffic(
        deployments=(Deployment("llama", "chat-v1", "v1"),),
        blocks=blocks,
        replicas=np.full(blocks.size, 2.0),
        concurrency=np.full(blocks.size, 40.0),
        queued=np.zeros(blocks.size),
        cache_usage=np.full(blocks.size, np.nan),
        requests=np.full(blocks.size, ended),
        histograms={
            "input_tokens_per_request": histogram(tokens),
            "output_tokens_per_request": histogram(20),
            "request_duration_seconds": histogram(10),
        },
        counters={},
        gpus_per_replica=None,
    )
    return replace(traffic, **changes)


def test_report_shows_what_was_served_and_recommends_a_target(served_past: EmulatedPast) -> None:
    """Without a configuration the numbers alone: traffic, the band and why, targets with their costs, one of them."""
    done = migrate(served_past)
    assert done.returncode == 0, done.stderr
    assert "What llama-3.3-70b/chat-v1 served from 2026-01-01T00:00:00Z" in done.stdout
    assert "documented: 50,000 to 150,000" in done.stdout
    assert "v1 was" in done.stdout
    assert "which sizes had which durations" in done.stdout
    assert "Recommended: " in done.stdout
    assert "1.2 hours of traffic are known, less than a day" in done.stdout
    assert "(--max-replica)" in done.stdout


def test_json_has_the_blocks_for_a_plot(served_past: EmulatedPast) -> None:
    """Every simulation has its replicas by block; the real tokens in flight lie in the band of each block."""
    found = numbers(served_past, "--targets", "2000,8000")
    blocks = found["blocks"]
    assert len(blocks["start"]) == 14
    for low, truth, high in zip(
        blocks["in_flight_tokens"]["low"], served_past.tokens, blocks["in_flight_tokens"]["high"], strict=True
    ):
        assert low <= truth <= high
    assert [each["target"] for each in found["simulations"]] == [2000, 8000]
    assert all(len(each["replicas"]) == 14 for each in found["simulations"])
    assert found["recommended"]["target"] in (2000, 8000)
    assert found["served"]["gpu_hours"] == pytest.approx(found["served"]["replica_hours"])


def test_configuration_says_what_a_replica_carries(served_past: EmulatedPast, config: Path) -> None:
    """Its largest batch and its GPUs count, and options win over them."""
    assert numbers(served_past, str(config))["capacity"] | {"tokens": None} == {
        "requests": 32, "tokens": None, "start_seconds": 120, "gpus": 2,
    }  # fmt: skip
    given = numbers(served_past, str(config), "--requests-per-replica", "8", "--start-seconds", "0")["capacity"]
    assert (given["requests"], given["start_seconds"]) == (8, 0)


def test_body_gets_the_target_that_is_asked_for(served_past: EmulatedPast, config: Path) -> None:
    """The recommended one by --measured-target, else that of the formula by measured tokens; none without a word."""

    def made_body(*words: str) -> tuple[Any, Any]:
        found = json.loads(migrate(served_past, str(config), *words, "--format", "json").stdout)
        return found["traffic"], found["files"][0]["management_api"]

    traffic, api = made_body("--measured-target")
    target = {"target_in_flight_tokens": traffic["recommended"]["target"]}
    assert api["body"]["autoscaling_settings"] == target
    traffic, api = made_body("--concurrency-target", "10")
    formula = traffic["documented"]["formula"]
    assert api["body"]["autoscaling_settings"] == {"target_in_flight_tokens": formula["target"]}
    assert formula["target"] == round(10 * traffic["tokens_per_request"])
    assert formula["low"] < formula["target"] < formula["high"]
    assert made_body()[1] is None


def test_a_measured_target_outside_of_the_documented_range_is_a_warning(
    served_past: EmulatedPast, config: Path
) -> None:
    """In the report, beside the call, and as JSON; strictly it is an error."""
    words = (str(config), "--measured-target")
    said = migrate(served_past, *words).stdout
    target = json.loads(migrate(served_past, *words, "--format", "json").stdout)["traffic"]["recommended"]["target"]
    warning = (
        f"autoscaling_settings.target_in_flight_tokens is {target}, outside of the documented 50000 to 150000 tokens"
    )
    assert f"    warning: {warning}" in said
    assert f"  note: {target:,} is outside of the documented 50,000 to 150,000 tokens" in said
    done = migrate(served_past, *words, "--strict")
    assert (done.returncode, warning in done.stderr) == (2, True)


def test_a_maximum_beyond_one_router_is_noted() -> None:
    """Fifty workers are what one router serves."""
    many = measure_targets(made(), TargetOptions(max_replica=51)).notes
    assert any(note.startswith("max_replica is 51: a single router is a bottleneck above about 50") for note in many)
    few = measure_targets(made(), TargetOptions(max_replica=50)).notes
    assert not any("bottleneck" in note for note in few)


def test_settings_of_the_body_are_those_that_are_simulated(served_past: EmulatedPast, tmp_path: Path) -> None:
    """min_replica and max_replica of the Management API's body bound the replicas of every simulation."""
    given = tmp_path / "body.json"
    given.write_text('{"llm_config": {}, "autoscaling_settings": {"min_replica": 3, "max_replica": 4}}')
    found = numbers(served_past, "--llm-config", str(given), "--targets", "100,1000000")
    assert [(min(each["replicas"]), max(each["replicas"])) for each in found["simulations"]] == [(3, 4), (3, 3)]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--deployment", "other"], "--deployment other: is not there, expected one of: model_name=llama-3.3-70b"),
        (["--deployment", "pod=1"], "--deployment has the label 'pod'"),
        (["--past", "5m"], "--past is '5m', expected a duration from 1h to 35d"),
        (["--targets", "many"], "--targets is 'many'"),
        (["--max-replica", "0"], "--max-replica is 0"),
        (["--start-seconds", "-1"], "--start-seconds is -1"),
        (["--concurrency-target", "0"], "--concurrency-target is 0"),
        (["--measured-target", "--target-in-flight-tokens", "5"], "beside --measured-target"),
        (["--prometheus", "http://127.0.0.1:1"], "--store and --prometheus are both given"),
        (["a.yaml", "b.yaml"], "expected one configuration beside it"),
        (["--at", "2025-06-01T00:00:00Z"], "nothing was scraped from 2025-05-31T22:49:00Z to 2025-06-01T00:00:00Z"),
    ],
)
def test_what_cannot_be_is_refused(served_past: EmulatedPast, words: list[str], error: str) -> None:
    """Options that are wrong, or do not go together, and times without traffic: exit code 2 and the reason."""
    at = [] if "--at" in words else ["--at", format_instant(served_past.end_ms)]
    past = [] if "--past" in words else ["--past", "71m"]
    done = run("migrate", *words, "--store", str(served_past.store), *at, *past)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr


def test_options_of_traffic_need_traffic(config: Path) -> None:
    """Alone they would have no effect, so they are refused."""
    done = run("migrate", str(config), "--targets", "50000")
    assert (done.returncode, done.stderr) == (
        2,
        "servescope: error: --targets goes with --deployment, --store or --prometheus\n",
    )
    assert "no CONFIG is given" in run("migrate").stderr


def test_less_than_an_hour_is_too_short() -> None:
    """Nothing is computed of minutes: of this hour a quarter is not known."""
    traffic = made(hours=1)
    concurrency = traffic.concurrency.copy()
    concurrency[:3] = np.nan
    with pytest.raises(UsageError, match="45 minutes of traffic are known, expected an hour at least"):
        measure_targets(replace(traffic, concurrency=concurrency), TargetOptions())


def test_gaps_and_what_is_not_reported_are_noted() -> None:
    """A gap with its times; no GPUs, no use of the cache, and requests in flight that durations contradict."""
    traffic = made()
    replicas = traffic.replicas.copy()
    replicas[12:24] = np.nan
    notes = measure_targets(replace(traffic, replicas=replicas), TargetOptions()).notes
    assert any("23.0 hours of traffic are known" in note for note in notes)
    assert any("from 2026-01-01T01:00:00Z to 2026-01-01T02:00:00Z: left out" in note for note in notes)
    assert any(note.startswith("GPUs of a replica are not known") for note in notes)
    assert any(note.startswith("the use of the KV cache is not reported") for note in notes)
    odd = measure_targets(replace(traffic, concurrency=traffic.concurrency * 2), TargetOptions()).notes
    assert any("80.0 requests are reported to be in flight, and 40.0 follow" in note for note in odd)
    assert not any("follow from" in note for note in notes)


def test_no_traffic_has_no_target() -> None:
    """A day without a request in flight is an error, and no target of 0."""
    traffic = made()
    with pytest.raises(UsageError, match="no request was in flight"):
        measure_targets(replace(traffic, concurrency=np.zeros(traffic.blocks.size)), TargetOptions())


def test_target_of_a_steady_day() -> None:
    """Two replicas with 20 requests of at least 100 tokens each: the target is what each of them held."""
    found = measure_targets(made(), TargetOptions(concurrency_target=20))
    assert found.formula is not None
    assert found.formula.target == 20 * 120
    assert found.per_replica[0.95].estimate == pytest.approx(20 * 105, rel=0.2)
    assert found.recommendation.is_met
    assert found.served.replica_hours == pytest.approx(48)
    chosen = next(each for each in found.simulations if each.target == found.recommendation.target)
    assert chosen.replica_hours == pytest.approx(48, rel=0.05)
