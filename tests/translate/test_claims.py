"""Whose a target is: a translator asks none for a deployment that it may not claim, and none of others for nobody."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.abc import ResolveResult

from servescope.errors import ConfigurationError
from servescope.translate.config import read_probe_configuration
from servescope.web.resolver import Resolver
from tests.support.translating import Answered, answers, translating

PAGE = "".join(
    f'vllm:{name}{{engine="0",model_name="m",namespace="chat",cluster="eu",job="x"}} 1.0\n'
    for name in ("num_requests_running", "generation_tokens_total", "kv_cache_usage_perc", "prefix_cache_queries_total",
                 "inter_token_latency_seconds_count")
)  # fmt: skip
CHAT = {"model_name": "llama", "deployment_id": "chat", "inference_stack": "v2"}
SEARCH = CHAT | {"deployment_id": "search"}
OTHER = CHAT | {"deployment_id": "other"}
COLLECTOR = """
[[deployments]]
model_name = "llama"
deployment_id = "chat"
inference_stack = "v2"
claims = {chat}
[[deployments]]
model_name = "llama"
deployment_id = "search"
inference_stack = "v2"
claims = {search}
[[deployments]]
model_name = "llama"
deployment_id = "other"
inference_stack = "v2"
"""
CONFIGURATION = '[translate]\ntargets = ["TARGET"]\ncollector = "servescope.toml"\n'


async def probed(
    folder: Path,
    asked: Mapping[str, str],
    *,
    chat: str = '{ targets = ["127.0.0.1:1-65535"] }',
    search: str = '{ targets = ["10.0.2.0/24:8000"] }',
    configuration: str = CONFIGURATION,
) -> tuple[Answered, list[str], Mapping[str, float]]:
    """What is answered of the one target, how often it was asked, and what the translator counted as refused."""
    written = COLLECTOR.replace("{chat}", chat).replace("{search}", search)
    (folder / "servescope.toml").write_text(written, encoding="utf-8")
    fetched: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        fetched.append(request.host)
        return web.Response(text=PAGE)

    async with translating(folder, {"/metrics": answer}, configuration) as stage:
        answered = await stage.get("/probe", None, target=stage.target, **asked)
        own = await stage.get("/metrics")
    refused = {
        dict(labels)["reason"]: value
        for (name, labels), value in own.samples().items()
        if name == "servescope_probe_refused_total" and value
    }
    return answered, fetched, refused


async def test_a_target_may_claim_the_deployment_that_lists_it(tmp_path: Path) -> None:
    """Whatever else the request says."""
    answered, fetched, refused = await probed(tmp_path, CHAT | {"job": "engines", "namespace": "a", "cluster": "eu"})

    assert (answered.status, len(fetched), refused) == (200, 1, {})
    assert answered.value("output_tokens_total") == 1.0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (SEARCH, "may not claim the deployment model_name='llama', deployment_id='search', inference_stack='v2'"),
        (OTHER,
         "claims the deployment model_name='llama', deployment_id='other', inference_stack='v2', and is among the"),
        ({}, "claims no deployment, and is among the claims of model_name='llama', deployment_id='chat'"),
        # A part of an identity is another one.
        ({"deployment_id": "chat"}, "claims the deployment deployment_id='chat', and is among the claims of"),
        (CHAT | {"environment": "test"}, "claims the deployment .*environment='test', and is among the claims of"),
        (CHAT | {"deployment_id": "CHAT"}, "claims the deployment .*'CHAT'.*, and is among the claims of"),
    ],
)  # fmt: skip
async def test_a_target_that_claims_what_is_anothers_is_refused_by_name(
    tmp_path: Path, asked: Mapping[str, str], message: str
) -> None:
    """With 403, without asking it, and counted."""
    answered, fetched, refused = await probed(tmp_path, asked)

    assert (answered.status, fetched, refused) == (403, [], {"claim": 1.0})
    assert re.search(message, json.loads(answered.text)["error"]), answered.text


@pytest.mark.parametrize(
    ("claims", "asked", "status"),
    [
        # What the scraper does not say fits no restriction.
        ('{ namespaces = ["chat"] }', CHAT | {"namespace": "chat"}, 200),
        ('{ namespaces = ["chat"] }', CHAT | {"namespace": "evil"}, 403),
        ('{ namespaces = ["chat"] }', CHAT, 403),
        ('{ namespaces = ["chat"], jobs = ["engines"] }', CHAT | {"namespace": "chat", "job": "others"}, 403),
        ('{ clusters = ["eu"] }', CHAT | {"cluster": "eu"}, 200),
        ('{ targets = ["127.0.0.1:*"], clusters = ["eu"] }', CHAT | {"cluster": "us"}, 403),
        # A collector's page is no target.
        ('{ collectors = ["127.0.0.1:*"] }', CHAT, 403),
        # The job says who asks, and not whose the target is.
        ('{ targets = ["127.0.0.1:*"], jobs = ["engines"] }', OTHER | {"job": "others"}, 403),
        ('{ targets = ["127.0.0.1:*"], jobs = ["engines"] }', {"job": "others"}, 403),
        ('{ targets = ["127.0.0.1:*"], clusters = ["eu"] }', OTHER, 403),
        # In another cluster, or namespace, it is another machine.
        ('{ targets = ["127.0.0.1:*"], clusters = ["eu"] }', OTHER | {"cluster": "us"}, 200),
        ('{ targets = ["127.0.0.1:*"], namespaces = ["chat"] }', {"namespace": "others"}, 200),
    ],
)
async def test_every_restriction_has_to_fit_what_the_scraper_says(
    tmp_path: Path, claims: str, asked: Mapping[str, str], status: int
) -> None:
    """Of the deployment's own target, and of one that claims another deployment or none."""
    answered, fetched, _ = await probed(tmp_path, asked, chat=claims)
    assert (answered.status, len(fetched)) == (status, int(status == 200))


async def test_labels_that_the_configuration_adds_claim_as_well(tmp_path: Path) -> None:
    """Unless the scraper's are others, which then are those of the series."""
    configuration = (
        '[translate]\ncollector = "servescope.toml"\n[[targets]]\nmatch = ["TARGET"]\n'
        'labels = { model_name = "llama", deployment_id = "chat", inference_stack = "v2" }\n'
    )
    assert (await probed(tmp_path, {}, configuration=configuration))[0].status == 200
    assert (await probed(tmp_path, {"deployment_id": ""}, configuration=configuration))[0].status == 200
    assert (await probed(tmp_path, {"deployment_id": "search"}, configuration=configuration))[0].status == 403


async def test_without_a_list_every_target_may_claim_what_it_says(tmp_path: Path) -> None:
    """As where there are no customers: the parameters of the scrape jobs change nothing."""
    answered, _, _ = await probed(tmp_path, SEARCH, configuration='[translate]\ntargets = ["TARGET"]\n')
    assert answered.value("output_tokens_total") == 1.0


def test_a_file_without_any_list_is_refused(tmp_path: Path) -> None:
    """It was named to compare targets with."""
    (tmp_path / "servescope.toml").write_text(COLLECTOR.replace("claims = ", "# "), encoding="utf-8")
    path = tmp_path / "translate.toml"
    path.write_text(CONFIGURATION.replace("TARGET", "127.0.0.1:1"), encoding="utf-8")

    with pytest.raises(ConfigurationError, match=r"translate\.collector: 'servescope\.toml' is wrong, expected a conf"):
        read_probe_configuration(path)


async def test_a_name_that_leads_to_anothers_target_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is allowed, and claims what it may; its address is another's."""

    async def find(self: Resolver, host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=6, flags=0)]

    monkeypatch.setattr(Resolver, "_find", find)
    written = COLLECTOR.replace("{chat}", '{ targets = ["127.0.0.1:*"] }')
    written = written.replace("{search}", '{ targets = ["*.search.svc:*"] }')
    (tmp_path / "servescope.toml").write_text(written, encoding="utf-8")
    configuration = CONFIGURATION.replace('"TARGET"', '"*.search.svc:*"') + 'networks = ["127.0.0.0/8"]\n'
    async with translating(tmp_path, {"/metrics": answers(PAGE)}, configuration) as stage:
        target = f"engine.search.svc:{stage.target.rpartition(':')[2]}"
        answered = await stage.get("/probe", None, target=target, **SEARCH)

    assert answered.failure() == "dns"
    assert "it leads to 127.0.0.1, which is among claims.targets of model_name='llama', deployment_id='chat'" in (
        answered.text
    )


async def test_a_page_cannot_say_where_it_was_scraped(tmp_path: Path) -> None:
    """Its labels of that name are others, of native series too: allow-lists are compared with the scraper's."""
    answered, _, _ = await probed(tmp_path, CHAT | {"native": "1"})
    labels = [dict(labels) for name, labels in answered.samples() if "requests" in name or "tokens" in name]

    assert len(labels) >= 3
    assert not any({"namespace", "cluster", "job", "instance"} & each.keys() for each in labels)
    assert any(each.get("exported_namespace") == "chat" for each in labels)
