"""What the collector logs of the targets that it reads for the first time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from servescope.collector.scrapes.findings import MOST_NAMED
from tests.conftest import ROOT
from tests.support.answering import Handler, answering
from tests.support.collect_command import collecting, wait_until
from tests.support.prometheus import free_port
from tests.support.stepped_collector import World, vllm_page, write_targets


def test_a_command_without_a_configuration_says_what_it_found_and_where_to_see_it(tmp_path: Path) -> None:
    """The engine with its version, its address, its model; what is not understood, with the nearest; the console."""
    page = (ROOT / "tests" / "pages" / "vllm-0.32.0-1.txt").read_text(encoding="utf-8")

    def answer(handler: Handler) -> None:
        handler.reply(200, page if handler.path == "/metrics" else "trtllm_x 1\n")

    log = tmp_path / "collect.log"
    with answering(answer) as url, answering(answer) as other:
        words = ["--target", f"v1={url}", "--target", f"v2={other}/other", "--listen", f"127.0.0.1:{free_port()}"]
        with collecting(*words, "--store", "my store.db", folder=tmp_path) as process:
            wait_until(lambda: all(each in log.read_text() for each in ("found vLLM", "no source map")), log)
            process.terminate()
            process.wait()
    text = log.read_text()
    assert f"found vLLM (newer than 0.13, read up to 0.32) at {url}/metrics, model tiny, deployment v1\n" in text
    assert "the nearest is 'TensorRT-LLM'" in text
    assert "to see it: servescope console --store 'my store.db', at http://localhost:8501\n" in text
    assert "default" not in text


async def test_each_target_is_named_once_and_many_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the first ten, by what they are; no target has a second line, whatever becomes of it."""
    caplog.set_level(logging.INFO)
    world = World(tmp_path)
    names = [f"r{number}" for number in range(MOST_NAMED + 25)]
    world.answers = dict.fromkeys(names, 1.0)
    world.pages = dict.fromkeys(names[:-5], vllm_page)
    write_targets(tmp_path, *names)
    for count in range(3):
        await world.step(count)
        world.collector.scraping.findings.log_rest()
    world.answers["r0"] = None
    await world.step()
    world.answers["r0"] = 9.0
    await world.step()
    world.collector.scraping.findings.log_rest()

    found = [each.getMessage() for each in caplog.records if each.getMessage().startswith("found ")]
    assert len(found) == MOST_NAMED + 1
    assert found[0] == "found vLLM (about 0.13) at http://r0:80/metrics, model llama, deployment chat"
    assert found[-1] == (
        "found 25 more targets, which /api/v1/targets lists: 20 × vLLM (about 0.13); "
        "5 × servescope instruments (every release)"
    )
    await world.aclose()
