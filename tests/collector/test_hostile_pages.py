"""A collector whose targets answer pages that no engine should: what can be read is read, and the rest is named."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from servescope.store.records import TargetStatus
from tests.support.stepped_collector import World, page, vllm_page, write_targets

SGLANG = "sglang:num_running_reqs 2\nsglang:num_queue_reqs 1\nsglang:generation_tokens_total {}\n"

TWO_READINGS = """
[[deployments]]
deployment_id = "{name}"
model_name = "llama"
inference_stack = "v1"
[[deployments.targets]]
url = "http://both:80/metrics"
replica = "{name}"
source = "{name}"
"""


def status(world: World, replica: str) -> TargetStatus:
    return next(each.status for each in world.collector.fleet.watched if each.target.identity.replica == replica)


async def test_two_engines_on_one_page_are_both_read_by_two_deployments(tmp_path: Path) -> None:
    """Alone, the one with more names is read with a warning; with `source` each is, and nothing warns."""
    for name in ("vllm", "sglang"):
        with (tmp_path / "more.toml").open("a") as file:
            file.write(TWO_READINGS.format(name=name))
    world = World(tmp_path, settings='window = "1m"\n')
    (tmp_path / "servescope.toml").write_text(
        (tmp_path / "servescope.toml").read_text() + (tmp_path / "more.toml").read_text()
    )
    await world.aclose()
    world.open()
    write_targets(tmp_path, "alone")
    world.answers = dict.fromkeys(("alone", "vllm", "sglang"), 0)
    world.pages = dict.fromkeys(world.answers, lambda count: vllm_page(count) + SGLANG.format(2 * count))
    async with aclosing(world):
        for count in range(6):
            await world.step(count * 15)
        evaluation = world.collector.evaluating.evaluate(world.collector.clock.now_ms)
        rates = {
            one.deployment_id: found.figures["output_tokens_per_second"]
            for one, found in evaluation.deployments.items()
        }

        assert {name: round(rate, 6) for name, rate in rates.items()} == {"chat": 1.0, "vllm": 1.0, "sglang": 2.0}
        (warning,) = status(world, "alone").warnings
        assert "also those of 'sglang' (SGLang)" in warning
        assert "in a deployment of its own with source = 'sglang'" in warning
        assert [status(world, name).warnings for name in ("vllm", "sglang")] == [[], []]


async def test_a_flood_of_one_engine_leaves_the_others_alone(tmp_path: Path) -> None:
    """Its scrape fails and names the family; the other replica's figures go on, and it is back when the bug is gone."""
    world = World(tmp_path, "a", "b", settings="max_series = 100\n")
    flood = "".join(f'vllm:debug{{request="{number}"}} 1\n' for number in range(120))
    async with aclosing(world):
        seen = []
        for count in range(8):
            world.pages["a"] = (lambda count: flood + page(count)) if 2 <= count < 6 else page
            figures = await world.step(count * 15)
            seen.append((status(world, "a").healthy, round(figures.get("queued_requests", 0))))
            if count == 4:
                assert "more samples than the limit of 100 (max_series), 100 of these are of 'vllm:debug'" in str(
                    status(world, "a").error
                )
    assert seen[1] == (True, 4)
    assert set(seen[2:6]) == {(False, 2)}
    assert seen[7] == (True, 4)


async def test_half_a_page_leaves_what_it_has_and_names_the_rest(tmp_path: Path) -> None:
    """A page that ends at a line's end, as no length was announced: its source stays, and what is missing is listed."""
    world = World(tmp_path, "a")
    bucket = 'vllm:e2e_request_latency_seconds_bucket{le="1.0"} 3\n'
    async with aclosing(world):
        world.pages["a"] = vllm_page
        await world.step(15)
        world.pages["a"] = lambda count: "".join(vllm_page(count).splitlines(keepends=True)[:4]) + bucket
        figures = await world.step(30)

        assert (status(world, "a").source, status(world, "a").healthy) == ("vllm", True)
        assert figures["queued_requests"] == 5
        missing, cut = status(world, "a").warnings
        assert "metrics that were exposed are missing" in missing
        assert "kv_cache_reused_tokens_total (was vllm:prefix_cache_hits_total)" in missing
        assert "ends with a bucket of 'vllm:e2e_request_latency_seconds'" in cut
