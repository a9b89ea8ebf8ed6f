"""The model of a deployment that is configured without one: what its pages say, and no second deployment beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from servescope.collector.config import configure_targets, make_configuration, read_configuration
from servescope.collector.importing.command import name_model
from servescope.collector.importing.tables import EngineMatch
from servescope.contract.identity import Deployment
from servescope.errors import ConfigurationError
from servescope.store.embedded import Store
from servescope.store.prometheus.client import Prometheus
from tests.support.answering import Handler, answering
from tests.support.stepped_collector import World, dynamo_page, vllm_page, write_targets

UNNAMED = """
[collector]
listen = "127.0.0.1:0"
[[deployments]]
deployment_id = "chat"
inference_stack = "v1"
[[deployments.file_sd]]
files = ["targets.json"]
"""
WAITING_FRONTEND = "dynamo_frontend_disconnected_clients 0\nprocess_start_time_seconds 5\n"
UNLABELLED = vllm_page(4).replace(',model_name="m"', "")


def chat(model_name: str) -> Deployment:
    return Deployment(model_name, "chat", "v1")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A collector of one deployment without a model, whose targets a test names."""
    made = World(tmp_path)
    (tmp_path / "servescope.toml").write_text(UNNAMED)
    return made


async def restart(world: World) -> None:
    await world.aclose()
    world.open()


async def begin(world: World, **pages: Callable[[float], str]) -> None:
    """A collector that has scraped nothing yet, and targets that answer with these pages."""
    await restart(world)
    world.answers, world.pages = dict.fromkeys(pages, 0.0), pages
    write_targets(world.folder, *pages)


async def scrape(world: World, times: int = 3) -> None:
    """Scrape every target so many times, whose counters rise meanwhile."""
    for count in range(times):
        await world.step(150.0 * count)


async def stored(world: World) -> tuple[set[str], dict[str, str]]:
    """The models of the deployments in the store, and those of its targets by replica, once all is written."""
    await world.aclose()
    with Store(world.folder / "servescope.db", read_only=True, now_ms=lambda: round(world.seconds * 1000)) as store:
        found = (
            {each.model_name for each in store.deployments()},
            {each.identity.replica: each.identity.model_name for each in store.targets()},
        )
    world.open()
    return found


def models(world: World) -> dict[str, str]:
    return {each.target.identity.replica: each.target.identity.model_name for each in world.collector.fleet.watched}


async def test_the_model_is_the_one_that_the_page_names(world: World) -> None:
    """From the first scrape on, on every series, under no other name before."""
    await begin(world, a=vllm_page)
    await scrape(world, 5)

    last = world.collector.evaluating.last
    assert last is not None
    assert set(last.deployments) == {chat("m")}
    assert last.deployments[chat("m")].figures["output_tokens_per_second"] == pytest.approx(2.0)
    assert {dict(each.labels).get("exported_model_name") for each in last.deployments[chat("m")].exposed} == {None}
    assert await stored(world) == ({"m"}, {"a": "m"})
    await world.aclose()


async def test_a_target_that_does_not_answer_at_first_leaves_no_deployment_behind(world: World) -> None:
    """While nothing is known it is shown as failing, of a model that is unknown; later only its model is left."""
    await restart(world)
    world.answers, world.pages = {"a": None}, {"a": vllm_page}
    write_targets(world.folder, "a")
    for _ in range(3):
        await world.step()
    assert await stored(world) == ({"unknown"}, {"a": "unknown"})

    world.answers = {"a": 0.0}
    await scrape(world)
    assert await stored(world) == ({"m"}, {"a": "m"})
    await world.aclose()


async def test_a_restart_goes_on_under_the_model_that_was_known(world: World) -> None:
    """Also of a target that is down by then: its deployment is the same, with a replica that fails."""
    await begin(world, a=vllm_page)
    await scrape(world)
    await restart(world)
    world.answers = {"a": None}
    for _ in range(3):
        await world.step()

    last = world.collector.evaluating.last
    assert last is not None
    assert set(last.deployments) == {chat("m")}
    assert last.deployments[chat("m")].figures['replica_count_by_status{status="unhealthy"}'] == 1.0
    assert await stored(world) == ({"m"}, {"a": "m"})
    await world.aclose()


@pytest.mark.parametrize("first", ["front", "worker"])
async def test_a_frontend_and_its_workers_are_of_one_model(world: World, first: str) -> None:
    """Whichever is scraped first, in whatever letters they write it, and before the frontend has a worker."""
    await restart(world)
    world.pages = {
        "front": lambda count: dynamo_page(count).replace('model="m"', 'model="qwen"'),
        "worker": lambda count: vllm_page(count).replace('model_name="m"', 'model_name="Qwen"'),
    }
    world.answers = {name: 0.0 if name == first else None for name in world.pages}
    write_targets(world.folder, "front", "worker")
    await world.step(0.0)
    world.answers = dict.fromkeys(world.pages, 0.0)
    await scrape(world, 4)

    name = "qwen" if first == "front" else "Qwen"
    assert await stored(world) == ({name}, {"front": name, "worker": name})
    await world.aclose()


async def test_a_frontend_without_workers_waits_for_the_name(world: World) -> None:
    """It answers, and is healthy; nothing of it is kept under another name."""
    await begin(world, front=lambda _: WAITING_FRONTEND)
    for _ in range(4):
        await world.step()
    (watched,) = world.collector.fleet.watched
    assert watched.status.state == "up"
    assert await stored(world) == (set(), {})

    world.pages = {"front": dynamo_page}
    await scrape(world)
    assert await stored(world) == ({"m"}, {"front": "m"})
    await world.aclose()


async def test_a_page_that_never_names_a_model_is_of_an_unknown_one(world: World) -> None:
    """Its figures are kept all the same, from the second scrape on."""
    await begin(world, a=lambda _: UNLABELLED)
    for _ in range(3):
        await world.step()
    (watched,) = world.collector.fleet.watched
    assert len(watched.recent) > 0
    assert await stored(world) == ({"unknown"}, {"a": "unknown"})
    await world.aclose()


async def test_a_page_that_names_no_model_is_of_that_of_the_others(world: World) -> None:
    """Though it is scraped first."""
    await begin(world, a=lambda _: UNLABELLED, b=vllm_page)
    await scrape(world)
    assert await stored(world) == ({"m"}, {"a": "m", "b": "m"})
    await world.aclose()


async def test_several_models_on_one_page_are_one_deployment(world: World) -> None:
    """Its figures are of all of them, which no single name would say; each series keeps its own."""
    both = vllm_page(3) + vllm_page(4).replace('model_name="m"', 'model_name="n"')
    await begin(world, a=lambda _: both)
    for _ in range(3):
        await world.step()
    (watched,) = world.collector.fleet.watched
    exported = {dict(each.labels).get("exported_model_name") for each in watched.recent.latest()[0]}
    assert exported == {"m", "n"}
    assert await stored(world) == ({"several"}, {"a": "several"})
    await world.aclose()


async def test_an_engine_that_is_started_with_another_model_is_another_deployment(world: World) -> None:
    """What was of the former stays, as that of a target that is no longer listed."""
    await begin(world, a=vllm_page)
    await scrape(world)
    world.pages = {"a": lambda count: vllm_page(count).replace('model_name="m"', 'model_name="n"')}
    await scrape(world)
    assert models(world) == {"a": "n"}
    assert await stored(world) == ({"m", "n"}, {"a": "n"})
    await world.aclose()


async def test_a_model_that_is_configured_is_not_replaced(world: World) -> None:
    """What the page says is kept beside it."""
    named = UNNAMED.replace('stack = "v1"', 'stack = "v1"\nmodel_name = "mine"')
    (world.folder / "servescope.toml").write_text(named)
    await begin(world, a=vllm_page)
    await scrape(world)
    (watched,) = world.collector.fleet.watched
    assert {dict(each.labels).get("exported_model_name") for each in watched.recent.latest()[0]} == {"m"}
    assert await stored(world) == ({"mine"}, {"a": "mine"})
    await world.aclose()


async def test_no_page_names_itself_into_a_deployment_with_fixed_labels(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A target of a list may carry another deployment's id; its page does not complete that deployment's labels."""
    fixed = """
[[deployments]]
deployment_id = "customer"
model_name = "m"
inference_stack = "v1"
fixed_labels = true
targets = [{ url = "http://customer-0:80" }]
"""
    (world.folder / "servescope.toml").write_text(UNNAMED + fixed)
    await restart(world)
    world.answers, world.pages = {"a": 0.0}, {"a": vllm_page}
    write_targets(world.folder, "a", labels={"deployment_id": "customer"})
    await scrape(world)
    assert models(world)["a"] == "unknown"
    assert "names the model 'm': its labels are those of deployment 'customer', which has fixed_labels" in caplog.text
    await world.aclose()


def test_the_command_line_and_a_configuration_may_leave_the_model_out(tmp_path: Path) -> None:
    """It is named by the pages then; what says whose labels these are needs it."""
    (deployment,) = configure_targets(["v1=127.0.0.1:8000"]).deployments
    assert deployment.deployment.model_name == "unknown"
    (tmp_path / "servescope.toml").write_text(UNNAMED)
    (deployment,) = read_configuration(tmp_path / "servescope.toml").deployments
    assert deployment.deployment.model_name == "unknown"

    targets = [{"url": "http://a:1"}]
    unnamed = {"deployment_id": "d", "inference_stack": "v1", "targets": targets}
    for more, message in (
        ([{**unnamed, "fixed_labels": True}], "model_name is missing: fixed_labels says whose labels these are"),
        ([unnamed, {**unnamed, "model_name": "m"}], "labels that differ in model_name alone, and one has none"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make_configuration({"deployments": more}, origin="test", directory=tmp_path)


@pytest.mark.parametrize(
    ("values", "model"),
    [
        ({"model_name": ["tiny"]}, "tiny"), ({"model": ["qwen"], "model_name": ["Qwen"]}, "qwen"),
        ({"model_name": ["a", "b"]}, "several"), ({}, "unknown"),
    ],
)  # fmt: skip
def test_an_import_takes_the_model_that_the_series_of_the_past_name(values: dict[str, list[str]], model: str) -> None:
    """Of those that the selector matches, so that the past is of the deployment which the collector goes on with."""
    asked = []

    def answer(request: Handler) -> None:
        label = request.path.removeprefix("/api/v1/label/").partition("/")[0]
        asked.append(request.parameters["match[]"])
        request.reply(200, json.dumps({"status": "success", "data": values.get(label, [])}))

    with answering(answer) as url:
        wanted = EngineMatch('{job="vllm"}', Deployment("unknown", "chat", "v1"))
        assert name_model(Prometheus(url), wanted, 0, 1000) == chat(model)
    assert asked == [['{job="vllm"}']] * 2
    configured = EngineMatch('{job="vllm"}', chat("mine"))
    assert name_model(Prometheus("http://127.0.0.1:9"), configured, 0, 1000) == chat("mine")
