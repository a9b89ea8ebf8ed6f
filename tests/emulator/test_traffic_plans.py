"""Traffic as a scenario's `[traffic]` describes it."""

from __future__ import annotations

import argparse
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from servescope.emulator.deployment.sizing import fit_to_trace
from servescope.emulator.deployment.stack import V1, V2, EmulatedStack
from servescope.emulator.traffic_arguments import configure_traffic, plan_traffic
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic, ReplayedTraffic, TrafficPlan, parse_traffic
from servescope.emulator.workload.presets import PRESETS
from servescope.emulator.workload.traces import survey_trace
from servescope.errors import ConfigurationError, UsageError
from servescope.settings.tables import Table


def parse(text: str) -> TrafficPlan:
    """What a table `[traffic]` of that text means, in a file next to the traces."""
    return parse_traffic(Table(tomllib.loads(text), "scenario.toml", "traffic"), folder=Path("/traces"))


def test_traffic_is_a_chat_unless_something_is_said() -> None:
    """An empty table is the preset `chat`; fields change it, and keep their kind."""
    assert parse("") == GeneratedTraffic(Mix())
    assert parse('preset = "agents"') == GeneratedTraffic(PRESETS["agents"])
    changed = parse('preset = "agents"\nrequests_per_second = 3\nsystem_tokens = [10, 20]\nkeeps_output = false')
    assert isinstance(changed, GeneratedTraffic)
    assert (changed.mix.requests_per_second, changed.mix.system_tokens, changed.mix.keeps_output) == (
        3.0,
        (10, 20),
        False,
    )
    assert changed.mix.turns == PRESETS["agents"].turns


def test_traffic_is_a_replay_when_a_trace_is_named() -> None:
    """A trace is found beside the scenario, with what shall be done to it."""
    assert parse('trace = "conv.jsonl"') == ReplayedTraffic(Path("/traces/conv.jsonl"))
    assert parse('trace = "/elsewhere/conv.jsonl"\nspeed = 2\nscale = 0.5\nrepeat = 3\njitter_seconds = 0') == (
        ReplayedTraffic(Path("/elsewhere/conv.jsonl"), speed=2.0, scale=0.5, repeat=3, jitter_seconds=0.0)
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("present = 1", "scenario.toml: unknown key 'traffic.present'; did you mean 'preset'?"),
        ('preset = "chatty"', "traffic.preset: 'chatty' is wrong, expected one of agents, chat, chat-bursty"),
        ("requests_per_second = 0", "scenario.toml: traffic: requests_per_second is 0.0, expected above 0"),
        ('requests_per_second = "8"', "traffic.requests_per_second: '8' is wrong, expected a number"),
        ("requests_per_second = true", "traffic.requests_per_second: True is wrong, expected a number"),
        ("requests_per_second = nan", "traffic: requests_per_second is nan, expected above 0"),
        ("applications = 2.5", "traffic.applications: 2.5 is wrong, expected a whole number"),
        ("system_tokens = 400", "traffic.system_tokens: 400 is wrong, expected a range of two whole numbers"),
        ("system_tokens = [400]", "traffic.system_tokens: [400] is wrong, expected a range"),
        ("system_tokens = [400, 300]", "traffic: system_tokens is (400, 300), expected a range of token counts"),
        ("system_tokens = [0, 6000]", "traffic: prompt_limit is 6000, expected above 6000, what the longest"),
        ("documents = 2\ndocuments_per_prompt = 3", "documents_per_prompt is 3, expected at most documents = 2"),
        ('arrivals = "weekly"', "traffic: arrivals is 'weekly', expected one of poisson, pareto"),
        ("pareto_shape = 1", "traffic: pareto_shape is 1.0, expected above 1"),
        ("speed = 2.0", "traffic.speed: 2.0 is wrong, expected it beside `trace` only"),
        ('trace = "a"\npreset = "chat"',
         "traffic.preset: 'chat' is wrong, expected none beside a trace, which takes speed"),
        ('trace = ""', "traffic.trace: '' is wrong, expected a string that is not empty"),
        ('trace = "a"\nrepeat = 1.5', "traffic.repeat: 1.5 is wrong, expected a whole number"),
        ('trace = "a"\nscale = 65', "scenario.toml: traffic: scale is 65.0, expected above 0, at most 64"),
    ],
)  # fmt: skip
def test_wrong_traffic_is_refused(text: str, complaint: str) -> None:
    """Unknown keys, wrong types and impossible values are refused with their place and what was expected."""
    with pytest.raises(ConfigurationError) as raised:
        parse(text)
    assert complaint in str(raised.value)


def plan(*words: str) -> TrafficPlan:
    """The traffic those arguments of `servescope emulate` ask for."""
    parser = argparse.ArgumentParser()
    configure_traffic(parser)
    return plan_traffic(parser.parse_args(words))


def test_arguments_ask_for_a_preset_or_a_trace() -> None:
    """Without arguments the traffic is a chat; a preset has a rate, a trace what is done to it."""
    assert plan() == GeneratedTraffic(Mix())
    assert plan("--requests-per-second", "2") == GeneratedTraffic(Mix(requests_per_second=2.0))
    assert plan("--preset", "agents") == GeneratedTraffic(PRESETS["agents"])
    assert plan("--trace", "a.csv", "--trace-speed", "2", "--trace-repeat", "3") == (
        ReplayedTraffic(Path("a.csv"), speed=2.0, repeat=3)
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--preset", "nope"], "unknown preset 'nope', known: agents"),
        (["--trace", "a", "--preset", "chat"], "--preset has no meaning beside --trace"),
        (["--trace", "a", "--requests-per-second", "1"], "--requests-per-second has no meaning beside --trace"),
        (["--trace-jitter", "1"], "--trace-jitter has no meaning without --trace"),
        (["--trace", "a", "--trace-scale", "0"], r"scale is 0\.0, expected above 0"),
    ],
)
def test_arguments_that_contradict_are_refused(words: list[str], complaint: str) -> None:
    """What has no meaning together is refused by name."""
    with pytest.raises(UsageError, match=complaint):
        plan(*words)


def test_engines_are_sized_for_a_trace() -> None:
    """A deployment that gets a trace can take its longest request, and keeps its bounds and its speculation."""
    survey = survey_trace(Path(__file__).parent / "traces" / "mooncake.jsonl")
    longest = replace(survey, longest_tokens=200_000)
    for before in (V1, V2):
        after = fit_to_trace(before, longest)
        assert after.engine.block_tokens == 512
        assert after.engine.cache_blocks * 512 > 200_000 + after.engine.tokens_per_decode
        assert after.engine.max_seq_len >= 200_000
        assert after.engine.speculation == before.engine.speculation
        assert after.scaling.max_replica == before.scaling.max_replica


def test_a_trace_is_served_by_the_emulated_stack() -> None:
    """All requests of a trace are served by v1 and v2, each by its share."""
    trace = ReplayedTraffic(Path(__file__).parent / "traces" / "mooncake.jsonl", repeat=10)
    survey = survey_trace(trace.trace)
    stack = EmulatedStack(traffic=trace, v1=fit_to_trace(V1, survey), v2=fit_to_trace(V2, survey))
    while not stack.traffic.ended or any(deployment.in_flight for deployment in stack.deployments):
        stack.clock.run_until(stack.clock.now + 10.0)
    outcomes = [deployment.outcomes for deployment in stack.deployments]
    assert sum(map(Counter.total, outcomes)) == stack.traffic.requests_sent == 120
    assert all(each["ok"] > 20 for each in outcomes)
    assert sum(each["ok"] + each["error"] for each in outcomes) == 120
