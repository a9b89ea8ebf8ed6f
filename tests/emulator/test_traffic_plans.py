"""Traffic as a scenario's `[traffic]` describes it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from servescope.collector.tables import Table
from servescope.emulator.workload import PRESETS, GeneratedTraffic, Mix, ReplayedTraffic, TrafficPlan, parse_traffic
from servescope.errors import ConfigurationError


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
        (
            'trace = "a"\npreset = "chat"',
            "traffic.preset: 'chat' is wrong, expected none beside a trace, which takes speed",
        ),
        ('trace = ""', "traffic.trace: '' is wrong, expected a string that is not empty"),
        ('trace = "a"\nrepeat = 1.5', "traffic.repeat: 1.5 is wrong, expected a whole number"),
        ('trace = "a"\nscale = 65', "scenario.toml: traffic: scale is 65.0, expected above 0, at most 64"),
    ],
)
def test_wrong_traffic_is_refused(text: str, complaint: str) -> None:
    """Unknown keys, wrong types and impossible values are refused with their place and what was expected."""
    with pytest.raises(ConfigurationError) as raised:
        parse(text)
    assert complaint in str(raised.value)
