"""What a translator refuses, and what it says of a target that cannot be read."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import socket
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import ResolveResult

from servescope import __version__
from servescope.errors import ConfigurationError
from servescope.sources.map_files import load_sources
from servescope.translate.config import read_probe_configuration
from servescope.web.resolver import Resolver
from tests.support.echoes import echoes, shows
from tests.support.loopback import Handler
from tests.support.translating import Answered, answers, translating

PAGE = "".join(
    f'vllm:{name}{{engine="0",model_name="m"}} {value}\n'
    for name, value in (
        ("num_requests_running", 1.0),
        ("generation_tokens_total", 7.0),
        ("kv_cache_usage_perc", 0.5),
        ("prefix_cache_queries_total", 0.0),
        ("inter_token_latency_seconds_count", 0.0),
    )
)


def error(answered: Answered) -> str:
    text: str = json.loads(answered.text)["error"]
    return text


async def test_a_request_that_is_wrong_is_refused_by_name(tmp_path: Path) -> None:
    """Nothing is fetched, and each refusal is counted by what was wrong."""
    fetched = []

    async def answer(_: web.Request) -> web.Response:
        fetched.append(1)
        return web.Response(text=PAGE)

    async with translating(tmp_path, {"/metrics": answer}) as stage:
        wrong = [
            await stage.probe(target="10.0.0.1:8000"),
            await stage.probe(target="http://x:1@y"),
            await stage.get("/probe"),
            await stage.probe(source="nobody"),
            await stage.probe(behind="frontend,gateway"),
            await stage.probe(native="yes"),
            await stage.probe(module="http_2xx"),
            await stage.probe(select="v2"),
            await stage.probe({"X-Prometheus-Scrape-Timeout-Seconds": "soon"}),
        ]
        twice = await stage.get(f"/probe?target={stage.target}&target={stage.target}")
        elsewhere, own = (await stage.get("/probes"), await stage.get("/metrics"))
    assert [each.status for each in wrong] == [403, 400, 400, 400, 400, 400, 400, 400, 400]
    assert [error(each) for each in wrong] == [
        "target '10.0.0.1:8000' is not allowed by the configuration",
        "the target is wrong, expected HOST:PORT such as '10.0.0.7:8000'",
        "parameter 'target' is missing, expected target=HOST:PORT",
        f"unknown source 'nobody', supported: {', '.join(load_sources())}",
        "unknown behind 'gateway', supported: frontend, router, instruments, baseten, dynamo-frontend, epp, litellm, "
        "ray-serve, sglang-router, vllm-router",
        "native 'yes' is wrong, expected 0 or 1",
        "unknown parameter 'module', supported: target, source, behind, native, select, translator, model_name, "
        "deployment_id, inference_stack, environment, job, namespace, cluster",
        "select 'v2' is wrong, expected LABEL=VALUE such as model=v2",
        "X-Prometheus-Scrape-Timeout-Seconds 'soon' is no number above 0",
    ]
    assert (twice.status, error(twice)) == (400, "parameter 'target' is given twice")
    assert elsewhere.status == 404
    assert fetched == []
    refused = {
        dict(labels)["reason"]: value
        for (name, labels), value in own.samples().items()
        if name == "servescope_probe_refused_total"
    }
    assert refused == {"target": 3, "claim": 0, "source": 1, "behind": 1, "parameter": 5, "busy": 0}


async def _redirect(request: web.Request) -> web.Response:
    raise web.HTTPFound("/metrics?again")


async def _never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


FAILURES: dict[str, tuple[Handler, str]] = {
    "status": (answers("no", status=500), "HTTP status 500 Internal Server Error"),
    "redirect": (_redirect, "redirects to .*, and no redirect is followed here"),
    "too_large": (answers(PAGE * 100), r"the answer exceeds 20000 bytes \(max_body_bytes\)"),
    "too_many_series": (answers("".join(f"x{number} 1\n" for number in range(101))), "max_series"),
    "line_too_long": (answers(f'x{{a="{"b" * 2000}"}} 1\n'), "max_line_bytes"),
    "malformed": (answers("<html>hello</html>\n"), "line 1"),
    "truncated": (answers("x 1.5"), "the last line has no end"),
    "empty": (answers("# nothing\n"), "no samples in the answer"),
    "unknown_source": (answers("trtllm_request_success_total 1.0\n"), "TensorRT-LLM"),
    "timeout": (_never, "no complete answer within 0.1 s"),
}
LIMITED = """
[translate]
targets = ["TARGET"]
scrape_timeout = "100ms"
max_body_bytes = 20000
max_series = 100
max_line_bytes = 1000
"""


@pytest.mark.parametrize("reason", FAILURES)
async def test_a_target_that_cannot_be_read_is_a_page_that_says_why(tmp_path: Path, reason: str) -> None:
    """200, with the collector's word for it and no series of the contract; the next probe is none the worse."""
    handler, message = FAILURES[reason]
    configuration = LIMITED if reason == "timeout" else LIMITED.replace('"100ms"', '"10s"')
    translated = answers(PAGE)
    failing = True

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (handler if failing else translated)(request)

    async with translating(tmp_path, {"/metrics": answer}, configuration) as stage:
        text = await stage.probe()
        openmetrics = await stage.probe({"Accept": "application/openmetrics-text"})
        failing = False
        after = await stage.probe()
    assert (text.status, text.failure()) == (200, reason)
    assert {name for name, _ in text.samples()} == {
        "servescope_probe_success", "servescope_probe_failed", "servescope_probe_duration_seconds",
    }  # fmt: skip
    assert text.value("servescope_probe_success") == 0.0
    comment = text.text.splitlines()[0]
    assert comment.startswith("# http://127.0.0.1:")
    assert re.search(message, comment)
    assert openmetrics.text.startswith("# HELP")
    assert openmetrics.text.endswith("# EOF\n")
    if reason != "timeout":  # with its hundred milliseconds a busy machine may need more
        assert after.value("output_tokens_total") == 7.0


async def test_nobody_listens(tmp_path: Path) -> None:
    """A target that is allowed and not there."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    configuration = f'[translate]\ntargets = ["{address}"]\n'
    async with translating(tmp_path, {}, configuration) as stage:
        assert (await stage.probe(target=address)).failure() == "unreachable"


async def test_a_name_that_leads_elsewhere_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a name is allowed, it leads to no address that is not: nothing connects to it."""
    fetched: list[str] = []

    async def find(self: Resolver, host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=6, flags=0)]

    async def answer(request: web.Request) -> web.Response:
        fetched.append(request.host)
        return web.Response(text=PAGE)

    monkeypatch.setattr(Resolver, "_find", find)
    async with translating(tmp_path, {"/metrics": answer}, '[translate]\ntargets = ["engine.example:*"]\n') as stage:
        port = stage.target.rpartition(":")[2]
        refused = await stage.probe(target=f"engine.example:{port}")
        networks = tmp_path / "networks.toml"
        networks.write_text('[translate]\ntargets = ["engine.example:*"]\nnetworks = ["127.0.0.0/8"]\n')
        stage.prober.apply(read_probe_configuration(networks))
        permitted = await stage.probe(target=f"engine.example:{port}")
    assert refused.failure() == "dns"
    assert "it leads to 127.0.0.1, which the configuration does not allow" in refused.text
    assert permitted.value("output_tokens_total") == 7.0
    assert len(fetched) == 1


async def test_a_translator_of_another_version_translates_nothing(tmp_path: Path) -> None:
    """Two versions that answer in turn could count the same thing differently; the figure is absent instead."""
    async with translating(tmp_path, {"/metrics": answers(PAGE)}) as stage:
        other, own = await stage.probe(translator="0.0.9"), await stage.probe(translator=__version__)
    assert other.failure() == "translator"
    assert f"translator 0.0.9 is wanted, and this is {__version__}" in other.text
    assert own.value("output_tokens_total") == 7.0


async def test_what_the_scraper_allows_is_the_time_of_the_target(tmp_path: Path) -> None:
    """Less the offset, and never more than configured."""
    seen: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(float(request.headers["X-Prometheus-Scrape-Timeout-Seconds"]))
        return web.Response(text=PAGE)

    async with translating(tmp_path, {"/metrics": answer}) as stage:
        for allowed in ("5", "0.8", "60"):
            await stage.probe({"X-Prometheus-Scrape-Timeout-Seconds": allowed})
        await stage.probe()
    assert seen == [4.5, 0.4, 10.0, 10.0]


async def test_secrets_are_sent_and_never_shown(tmp_path: Path) -> None:
    """A target's token by its rule; a target that sends it back is answered without it."""
    secret = "t0ken-of-the-engines"
    (tmp_path / "token").write_text(secret)
    configuration = f"""
[[targets]]
match = ["TARGET"]
metrics_path = "/engine/metrics"
params = {{ format = "prometheus" }}
source = "vllm"
labels = {{ deployment_id = "chat", replica = "r0" }}
bearer_token_file = "{tmp_path / "token"}"
"""
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.headers["Authorization"], request.query_string))
        return web.Response(text=PAGE if len(seen) == 1 else f"{secret}!\n")

    async with translating(tmp_path, {"/engine/metrics": answer}, configuration) as stage:
        read, failed = await stage.probe(), await stage.probe()
    assert seen[0] == (f"Bearer {secret}", "format=prometheus")
    labels = {"deployment_id": "chat", "replica": "r0"}
    assert {name for name, shown in read.samples() if labels.items() <= dict(shown).items()} >= {
        "output_tokens_total", "servescope_target_info", "servescope_probe_success",
    }  # fmt: skip
    assert failed.failure() == "malformed"
    assert secret not in failed.text


async def test_no_spelling_of_a_secret_that_is_sent_back_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the page of a failed probe, and by the log."""
    caplog.set_level("DEBUG")
    sent = f"Basic {base64.b64encode(b'joe:hunter2/of-Acme+~').decode()}"
    (tmp_path / "password").write_text("hunter2/of-Acme+~")
    configuration = f"""
[[targets]]
match = ["TARGET"]
basic_auth_username = "joe"
basic_auth_password_file = "{tmp_path / "password"}"
"""
    lines = list(islice(echoes(sent), 0, None, 5))
    left = iter(lines)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=f"{next(left)}\n")

    async with translating(tmp_path, {"/metrics": answer}, configuration) as stage:
        for line in lines:
            failed = await stage.probe()
            assert failed.failure()
            assert not shows(failed.text, sent), (line, failed.text)
    assert not shows(caplog.text, sent)


async def test_gzip_on_both_sides(tmp_path: Path) -> None:
    """A target that compresses, and a scraper that accepts it."""
    compressed = answers(gzip.compress(PAGE.encode()), headers={"Content-Encoding": "gzip"})
    async with translating(tmp_path, {"/metrics": compressed}) as stage:
        answered = await stage.probe({"Accept-Encoding": "gzip"})
    assert answered.headers["Content-Encoding"] == "gzip"
    assert answered.value("output_tokens_total") == 7.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no target is allowed; expected translate.targets"),
        ('[translate]\ntargets = ["10.0.0.1"]', "translate.targets: '10.0.0.1' is wrong, expected HOST:PORT"),
        ('[translate]\ntarget = ["10.0.0.1:80"]', "unknown key 'translate.target'; did you mean 'targets'?"),
        ('[translate]\ntargets = ["a:1"]\nnetworks = ["10.0.0.1/8"]', "translate.networks: '10.0.0.1/8' is wrong"),
        ('[[targets]]\nmatch = ["a:1"]\nsource = "nobody"', "targets[0].source: 'nobody' is wrong, expected one of"),
        ('[[targets]]\nmatch = ["a:1"]\nbehind = "x"', "targets[0].behind: 'x' is wrong, expected names of frontend"),
        ('[[targets]]\nmatch = ["a:1"]\nlabels = { pod = "x" }', "targets[0].labels: unknown label 'pod'"),
        ('[[targets]]\nmatch = ["a:1"]\nproxy_url = "http://p:1"', "unknown key 'targets[0].proxy_url'"),
        ('[[targets]]\nmatch = ["a:1"]\nmetrics_path = "metrics"', "a path that begins with /"),
        ('[[behind]]\nname = "router"\nmetrics = ["requests_total"]', "none of frontend, router, instruments"),
        ('[[behind]]\nname = "mine"\nmetrics = ["request_total"]', "'request_total' is no metric of the contract"),
        ('[api]\nbearer_token_file = "nowhere"\n[translate]\ntargets = ["a:1"]', "cannot be read"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    """With the file, the key, the value and what was expected."""
    path = tmp_path / "translate.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        read_probe_configuration(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)
