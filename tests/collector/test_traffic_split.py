"""The configured traffic split: read, refused when it is wrong, exposed, applied by a reload."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.targets.traffic_split import ConfiguredTraffic
from servescope.errors import ConfigurationError, ServescopeError
from tests.collector.support.reloaded_collector import World

TARGETS = "".join(
    f"""
[[deployments]]
deployment_id = "chat-{stack}-{environment}"
model_name = "llama"
inference_stack = "{stack}"
environment = "{environment}"

[[deployments.targets]]
url = "http://{stack}-{environment}:80"
"""
    for stack, environment in (("v1", "live"), ("v2", "live"), ("v1", "test"))
)


def split(stacks: str, environment: str = "live", model_name: str = "llama") -> str:
    return f'\n[[traffic_split]]\nmodel_name = "{model_name}"\nenvironment = "{environment}"\nstacks = {stacks}\n'


def read(folder: Path, text: str) -> tuple[ConfiguredTraffic, ...]:
    path = folder / "servescope.toml"
    path.write_text(TARGETS + text, encoding="utf-8")
    return read_configuration(path).traffic_split


def test_a_split_is_read_by_stack(tmp_path: Path) -> None:
    """One for each stack of each table; a ratio may be 0 or 1, and thirds are near enough."""
    assert read(tmp_path, "") == ()
    assert read(tmp_path, split("{ v1 = 1, v2 = 0.0 }") + split("{ v1 = 1.0 }", "test")) == (
        ConfiguredTraffic("llama", "live", "v1", 1.0),
        ConfiguredTraffic("llama", "live", "v2", 0.0),
        ConfiguredTraffic("llama", "test", "v1", 1.0),
    )
    assert len(read(tmp_path, split("{ v1 = 0.3333333, v2 = 0.6666667 }"))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (split("{ v1 = 0.9, v2 = 0.2 }"), "traffic_split[0].stacks: { v1 = 0.9, v2 = 0.2 } is wrong, expected "
         "ratios that sum to 1, not to 1.1"),
        (split("{ v1 = 1.5, v2 = -0.5 }"), "traffic_split[0].stacks.v1: 1.5 is wrong, expected a number from 0 to 1"),
        (split("{ v1 = true }"), "traffic_split[0].stacks.v1: True is wrong, expected a number from 0 to 1"),
        (split("{ v1 = nan }"), "traffic_split[0].stacks.v1: nan is wrong, expected a number from 0 to 1"),
        (split("{ v1 = 0.5, v3 = 0.5 }"), "traffic_split[0].stacks.v3: no deployment of this model has the "
         "inference_stack 'v3', expected one of v1, v2"),
        (split("{}"), "traffic_split[0].stacks: a table is wrong, expected a ratio by inference stack"),
        (split("0.5"), "traffic_split[0].stacks: 0.5 is wrong, expected a ratio by inference stack"),
        (split("{ v1 = 1 }", "liv"), "traffic_split[0].environment: 'liv' is wrong, expected one of "
         "[[deployments]]: 'live', 'test'"),
        (split("{ v1 = 1 }", model_name="lama"), "traffic_split[0].model_name: 'lama' is wrong, expected one of "
         "[[deployments]]: 'llama'"),
        (split("{ v1 = 1 }") + split("{ v2 = 1 }"), "traffic_split[1].model_name: 'llama' is wrong, expected one "
         "[[traffic_split]] table for each model_name and environment"),
        (split("{ v1 = 1 }") + "stack = 1\n", "unknown key 'traffic_split[0].stack'; did you mean 'stacks'?"),
        ('\n[[traffic_split]]\nmodel_name = "llama"\n', "traffic_split[0]: 'stacks' is missing"),
    ],
)  # fmt: skip
def test_a_wrong_split_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the file, the key, the value and what was expected."""
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)

    assert str(caught.value).startswith(f"{tmp_path / 'servescope.toml'}: {message}")


async def test_a_split_is_exposed_and_applied_by_a_reload(tmp_path: Path) -> None:
    """A cutover's next step is a reload; a wrong one leaves the step before."""

    def shown(collector: Collector) -> dict[str, float]:
        (gauges,) = (each for each in collector.own.gauges() if each.name == "servescope_configured_traffic_ratio")
        return {dict(labels)["inference_stack"]: value for labels, value in gauges.values}

    world = World(tmp_path, TARGETS + split("{ v1 = 0.9, v2 = 0.1 }"))
    await world.collector.discovering.discover()
    seen = [shown(world.collector)]
    world.write(TARGETS + split("{ v1 = 0.5, v2 = 0.5 }"))
    await world.collector.reload()
    seen.append(shown(world.collector))
    world.write(TARGETS + split("{ v1 = 0.5, v2 = 0.6 }"))
    with pytest.raises(ServescopeError, match=r"not to 1\.1"):
        await world.collector.reload()
    seen.append(shown(world.collector))
    await asyncio.to_thread(world.collector.close)
    assert seen == [{"v1": 0.9, "v2": 0.1}, {"v1": 0.5, "v2": 0.5}, {"v1": 0.5, "v2": 0.5}]
