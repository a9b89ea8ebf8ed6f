"""The translator as it is served: who may ask, how many at once, what it counts of itself, its end and its reload."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from servescope import __version__
from servescope.contract.own_metrics import OWN_METRICS, UNTRANSLATED
from servescope.translate.config import read_probe_configuration
from servescope.translate.serve import apply_configuration
from tests.conftest import ROOT
from tests.pages.writing import COUNTED
from tests.proofs.engines.captures import Captured, read_capture
from tests.support.answering import Handler, answering
from tests.support.programs import answers as is_answered
from tests.support.programs import program
from tests.support.prometheus import Prometheus, free_port, running
from tests.support.translating import answers, translating
from tests.support.waiting import deadline_seconds, wait_for


async def test_everything_but_health_needs_the_token(tmp_path: Path) -> None:
    """As the collector's API."""
    (tmp_path / "tokens").write_text("f1rst-t0ken\n")
    configuration = f'[translate]\ntargets = ["TARGET"]\n[api]\nbearer_token_file = "{tmp_path / "tokens"}"\n'
    paths = (f"/probe?target={'x'}", "/metrics", "/", "/-/healthy", "/-/ready")
    async with translating(tmp_path, {"/metrics": answers("")}, configuration) as stage:
        token = {"Authorization": "Bearer f1rst-t0ken"}
        without, admitted = (
            [(await stage.get(path)).status for path in paths],
            [(await stage.get(path, token)).status for path in paths],
        )
    assert without == [401, 401, 401, 200, 200]
    assert admitted == [400, 200, 200, 200, 200]


async def test_one_probe_too_many_is_refused(tmp_path: Path) -> None:
    """With 503, which is about the translator; its own page is answered all the same."""
    arrived, go = asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        arrived.set()
        await go.wait()
        return web.Response(text="x 1\n")

    async with translating(
        tmp_path, {"/metrics": answer}, '[translate]\ntargets = ["TARGET"]\nmax_probes = 1\n'
    ) as stage:
        probing = asyncio.create_task(stage.probe())
        await arrived.wait()
        refused, own = await stage.probe(), await stage.get("/metrics")
        go.set()
        first, after = await probing, await stage.probe()
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert refused.text == '{"error":"1 probes are in progress (max_probes), ask again"}'
    assert own.value("servescope_probe_in_progress") == 1.0
    assert [each.failure() for each in (first, after)] == ["unknown_source", "unknown_source"]


async def test_more_probes_are_taken_after_a_reload(tmp_path: Path) -> None:
    """As many as the configuration then says, whatever it said at the start."""
    go, arrived = asyncio.Event(), []

    async def answer(_: web.Request) -> web.Response:
        arrived.append(1)
        await go.wait()
        return web.Response(text="x 1\n")

    configuration = '[translate]\ntargets = ["TARGET"]\nmax_probes = 1\n'
    async with translating(tmp_path, {"/metrics": answer}, configuration) as stage:
        path = tmp_path / "more.toml"
        path.write_text(f'[translate]\ntargets = ["{stage.target}"]\nmax_probes = 40\nmax_probes_per_target = 40\n')
        apply_configuration(stage.prober, stage.application, read_probe_configuration(path))
        probes = [asyncio.create_task(stage.probe()) for _ in range(40)]
        await asyncio.to_thread(
            wait_for, lambda: len(arrived) + sum(probe.done() for probe in probes) == 40, "each was taken or refused"
        )
        go.set()
        assert [probe.status for probe in await asyncio.gather(*probes)] == [200] * 40


async def test_connections_of_a_scraper_end_now_and_then(tmp_path: Path) -> None:
    """So that its next one may lead to a translator that was added behind the same name."""
    async with translating(tmp_path, {"/metrics": answers("x 1\n")}) as stage:
        ended = [(await stage.probe()).headers.get("Connection") == "close" for _ in range(120)]
    assert ended.count(True) == 2


async def test_a_probe_in_progress_is_answered_before_the_end(tmp_path: Path) -> None:
    """The listener closes when the answer was read."""
    arrived, go = asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        arrived.set()
        await go.wait()
        return web.Response(text="x 1\n")

    async with translating(tmp_path, {"/metrics": answer}) as stage:
        probe = asyncio.create_task(stage.probe())
        await arrived.wait()
        closing = asyncio.create_task(stage.listener.close())
        # Asked while it is closed, a socket has no address any more.
        await asyncio.to_thread(
            wait_for, lambda: not stage.listener.addresses, "it accepts no more connections", ignoring=(OSError,)
        )
        pending = not probe.done()
        go.set()
        await closing
        answered = await probe
    assert pending
    assert answered.failure() == "unknown_source"


async def test_it_counts_what_its_records_say(tmp_path: Path) -> None:
    """Every series of the catalog that is a translator's own, with its labels, and no other beside the API's."""
    async with translating(tmp_path, {"/metrics": answers("x 1\n")}) as stage:
        await stage.probe()
        own = await stage.get("/metrics")
    records = {name for name, metric in OWN_METRICS.items() if metric.absent == UNTRANSLATED}
    shown = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in own.samples()}
    assert records <= shown
    assert {name for name in shown - records if not name.startswith(("servescope_api_", "process_"))} == set()
    outcomes = {
        dict(labels)["outcome"]: value
        for (name, labels), value in own.samples().items()
        if name == "servescope_probe_requests_total"
    }
    assert {outcome for outcome, value in outcomes.items() if value} == {"unknown_source"}
    assert own.samples()["servescope_probe_build_info", (("version", __version__),)] == 1.0


@pytest.mark.slow
def test_a_prometheus_scrapes_by_the_documented_job(tmp_path: Path, any_captures: Path, prometheus: Path) -> None:
    """The page's scrape configuration, a Prometheus 2.42, the command itself; SIGHUP reloads, SIGTERM ends it."""
    capture = read_capture(any_captures, Captured("vllm-0.32.0-1")).encode()
    asked: list[str] = []

    def answer(request: Handler) -> None:
        asked.append(request.path)
        request.reply(200, capture)

    configuration, port = tmp_path / "translate.toml", free_port()
    configuration.write_text('[translate]\ntargets = ["10.0.0.0/8:8000"]\n')
    command = [
        sys.executable, "-m", "servescope.cli", "translate", "--config", str(configuration),
        "--listen", f"127.0.0.1:{port}",
    ]  # fmt: skip
    with answering(answer) as base, program(command, tmp_path / "log") as process:
        wait_for(lambda: is_answered(f"http://127.0.0.1:{port}/-/ready"), "the translator answers")
        target = base.removeprefix("http://")
        configuration.write_text(f'[translate]\ntargets = ["{target}", "127.0.0.1:1"]\n')
        process.send_signal(signal.SIGHUP)
        with running(prometheus, tmp_path / "prometheus", _documented(port, target)) as server:
            # A busy machine may miss a scrape of a second now and then.
            _found(server, "servescope_probe_success == 1")
            _found(server, 'servescope_probe_failed{reason="unreachable"} == 1')
            _found(server, 'count(up{job="servescope-targets"} == 1) == 2')
            (found,) = _found(server, "output_tokens_total")
            (own,) = _found(server, "servescope_probe_build_info")
        process.terminate()
        assert process.wait(deadline_seconds()) == 0
    assert set(asked) == {"/metrics"}
    assert own["metric"]["job"] == "servescope-translate"
    assert found["value"][1] == f"{COUNTED:g}"
    assert {"engine": "0"} | found["metric"] == {
        "__name__": "output_tokens_total", "job": "servescope-targets", "instance": target, "replica": target,
        "deployment_id": "chat-v2", "model_name": "llama-3.3-70b", "inference_stack": "v2",
        "environment": "production", "role": "aggregated", "engine": "0", "exported_model_name": "tiny",
    }  # fmt: skip
    log = (tmp_path / "log").read_text()
    assert "reloaded" in log
    assert log.rstrip().endswith("stopping")


def _found(server: Prometheus, query: str) -> list[dict[str, Any]]:
    """The series that a query finds, once it finds any."""
    return wait_for(lambda: server.answer("/api/v1/query", query=query)["data"]["result"] or None, query)


def _documented(port: int, target: str) -> dict[str, object]:
    """The scrape configuration of the page, with a target that answers, one that does not, and a short interval."""
    page = (ROOT / "docs" / "translate.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    text = text.replace("translate:9905", f"127.0.0.1:{port}")
    text = text.replace("10.0.0.7:8000", target).replace("10.0.0.8:8000", "127.0.0.1:1")
    document: dict[str, object] = yaml.safe_load(text)
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, **document}


def test_a_wrong_configuration_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it listens; `--check` reads it and ends."""
    from servescope.cli import main

    path = tmp_path / "translate.toml"
    path.write_text("[translate]\n")
    former = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["translate", "--config", str(path), "--check"]) == 2
        path.write_text('[translate]\ntargets = ["127.0.0.1:8000"]\n')
        assert main(["translate", "--config", str(path), "--check"]) == 0
        assert main(["translate", "--config", str(path), "--listen", "here"]) == 2
    finally:
        signal.signal(signal.SIGTERM, former)
    assert "no target is allowed" in capsys.readouterr().err
