"""Allow-lists of claims: which targets may be of a deployment, whoever writes their lists, and where names may lead."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from aiohttp.abc import ResolveResult

from servescope.collector.discovery.targets import Discovery, check_targets
from servescope.collector.targets.claims import Claim, Claims, ScrapedAt
from servescope.contract.identity import Deployment
from servescope.errors import ConfigurationError
from servescope.settings.addresses import read_address, read_pattern
from servescope.web.resolver import Resolver
from tests.collector.support.discovered import configure, urls
from tests.support.answering import Handler, answering
from tests.support.collect_command import collecting, get, wait_until
from tests.support.commands import run
from tests.support.prometheus import free_port

CHAT = 'deployment_id = "chat"\nmodel_name = "llama"\ninference_stack = "v2"\n'
SEARCH = CHAT.replace("chat", "search")
OURS = 'claims = { targets = ["10.0.1.0/24:8000", "*.chat.svc:8000"] }\n'
THEIRS = 'claims = { targets = ["10.0.2.0/24:8000"] }\n'
REFUSED = "its address is not among claims.targets of model_name='llama', deployment_id='search'"
OTHERS = "its address is among claims.targets of model_name='llama', deployment_id='chat'"


def two(chat: str = OURS, search: str = THEIRS, listed: str = 'file_sd = [{ files = ["search.json"] }]\n') -> str:
    """Two deployments, of which the second has a list."""
    return (
        f'[[deployments]]\n{CHAT}{chat}[[deployments.targets]]\nurl = "http://10.0.1.9:8000"\n'
        f"[[deployments]]\n{SEARCH}{search}{listed}"
    )


def write_list(folder: Path, *addresses: str, **labels: str) -> None:
    (folder / "search.json").write_text(json.dumps([{"targets": addresses, "labels": labels}]), encoding="utf-8")


OWN_TARGET = "http://10.0.1.9:8000/metrics"


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("10.0.1.7:8000", REFUSED),
        ("10.0.3.7:8000", REFUSED),
        ("10.0.2.7:8001", REFUSED),
        ("engine.chat.svc:8000", REFUSED),
        ("[::ffff:10.0.1.7]:8000", REFUSED),
        # Without an allow-list of its own a deployment may have what is on no other's.
        ("-10.0.1.7:8000", OTHERS),
        ("-[::ffff:10.0.1.7]:8000", OTHERS),
        ("-ENGINE.chat.svc.:8000", OTHERS),
        ("-167772423:8000", "cannot be compared with the claims of deployments"),
        ("-0xa000107:8000", "cannot be compared with the claims of deployments"),
    ],
)
def test_a_list_names_no_address_of_another_deployment(tmp_path: Path, address: str, problem: str) -> None:
    """However it is written; the list is refused by name, and what it named before stays."""
    own = THEIRS if not address.startswith("-") else ""
    write_list(tmp_path, "10.0.2.7:8000")
    discovery = Discovery(configure(tmp_path, two(search=own)))
    assert urls(discovery) == [OWN_TARGET, "http://10.0.2.7:8000/metrics"]
    write_list(tmp_path, "10.0.2.8:8000", address.removeprefix("-"))
    discovery.refresh()

    assert urls(discovery) == [OWN_TARGET, "http://10.0.2.7:8000/metrics"]
    (said,) = discovery.problems
    assert str(tmp_path / "search.json") in said
    assert problem in said


def test_an_answer_of_http_sd_names_no_address_of_another_deployment(tmp_path: Path) -> None:
    """Nor do rules that change the address."""
    listed = 'http_sd = [{ url = "http://inventory.example/" }]\n'
    rule = '[[deployments.relabel]]\ntarget_label = "__address__"\nreplacement = "10.0.1.7:8000"\n'
    for text, address in ((two(listed=listed), "10.0.1.7:8000"), (two(listed=listed + rule), "10.0.2.7:8000")):
        discovery = Discovery(configure(tmp_path, text))
        (key,) = discovery.http_lists()
        body = json.dumps([{"targets": [address]}]).encode()
        discovery.commit(key, discovery.read_answer(key, body))
        discovery.refresh()

        assert urls(discovery) == [OWN_TARGET]
        (said,) = discovery.problems
        assert "http_sd 'http://inventory.example/'" in said
        assert REFUSED in said


def test_a_list_of_many_deployments_names_each_ones_addresses(tmp_path: Path) -> None:
    """Where labels are not fixed, a target is compared with the deployment that it claims."""
    write_list(tmp_path, "10.0.1.7:8000", deployment_id="chat")
    assert len(Discovery(configure(tmp_path, two())).targets) == 2
    write_list(tmp_path, "10.0.2.7:8000", deployment_id="chat")
    assert urls(Discovery(configure(tmp_path, two()))) == [OWN_TARGET]


def test_claims_that_are_there_from_now_on_apply_to_lists_that_were_read(tmp_path: Path) -> None:
    """As after a reload: the file did not change."""
    write_list(tmp_path, "10.0.1.7:8000")
    former = Discovery(configure(tmp_path, two("", "")))
    assert len(former.targets) == 2
    discovery = Discovery(configure(tmp_path, two(search="")), former)

    assert urls(discovery) == [OWN_TARGET]
    assert OTHERS in " ".join(discovery.problems)


def test_a_written_target_is_on_the_allow_list_of_its_deployment(tmp_path: Path) -> None:
    """And on no other's: the configuration is refused."""
    for url, problem in (("http://10.0.3.7:8000", REFUSED), ("http://10.0.1.7:8000", REFUSED)):
        listed = f'[[deployments.targets]]\nurl = "{url}"\n'
        with pytest.raises(ConfigurationError, match=problem.replace(".", r"\.")):
            check_targets(configure(tmp_path, two(listed=listed)))
    with pytest.raises(ConfigurationError, match=OTHERS.replace(".", r"\.")):
        check_targets(configure(tmp_path, two(search="", listed=listed)))


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ("{}", r"deployments\[0\]\.claims: lists nothing; expected targets, collectors, jobs, namespaces or clusters"),
        ("{ targets = [] }", "lists nothing"),
        ('{ targets = ["10.0.1.0/24"] }', r"claims\.targets: '10\.0\.1\.0/24' is wrong, expected HOST:PORT"),
        ('{ namespace = ["a"] }', "unknown key 'deployments.*claims.namespace'; did you mean 'namespaces'"),
        ('{ jobs = "a" }', r"claims\.jobs: 'a' is wrong, expected a list of strings"),
    ],
)
def test_a_wrong_allow_list_is_refused_with_file_key_and_value(tmp_path: Path, claims: str, message: str) -> None:
    """One that lists nothing would allow everything."""
    with pytest.raises(ConfigurationError, match=message):
        configure(tmp_path, two(f"claims = {claims}\n"))


GROUPS = {name: Deployment("llama", name, "v2") for name in ("chat", "search")}
CLAIMS = Claims(
    [
        (GROUPS["chat"], Claim((read_pattern("10.0.1.0/24:8000"), read_pattern("*.chat.svc:8000")))),
        (GROUPS["search"], Claim((read_pattern("*.search.svc:8000"),))),
    ]
)


@pytest.mark.parametrize(
    ("host", "port", "address", "refused"),
    [
        ("engine.chat.svc", 8000, "10.0.1.7", False),
        ("engine.chat.svc", 8000, "10.0.9.7", False),
        ("engine.search.svc", 8000, "10.0.1.7", True),
        ("engine.search.svc", 8000, "::ffff:10.0.1.7", True),
        ("engine.search.svc", 8001, "10.0.1.7", False),
        ("other.example", 8000, "10.0.1.7", True),
        ("167772423", 8000, "10.0.1.7", True),
        ("other.example", 8000, "fd00::7", False),
    ],
)
def test_a_name_leads_to_no_address_of_another_deployment(host: str, port: int, address: str, refused: bool) -> None:
    """One that the same deployment lists may; what nobody lists may lead to what nobody lists."""
    assert bool(CLAIMS.refuse_lead(host, port, address)) is refused


def test_a_name_that_leads_astray_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up fails with the address and whose it is; others of its addresses are used."""
    found = ["10.0.1.7", "10.0.9.7"]

    async def find(self: Resolver, host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=6, flags=0)
            for each in found
        ]

    monkeypatch.setattr(Resolver, "_find", find)
    resolver = Resolver(CLAIMS.refuse_lead)
    assert [each["host"] for each in asyncio.run(resolver.resolve("other.example", 8000))] == ["10.0.9.7"]
    found.pop()
    with pytest.raises(OSError, match=r"it leads to 10\.0\.1\.7, which is among claims\.targets of .*'chat'"):
        asyncio.run(resolver.resolve("other.example", 8000))


@pytest.mark.slow
def test_a_collector_connects_to_no_address_of_another_deployment(tmp_path: Path) -> None:
    """A list names it by a name, which nobody has: the scrape fails with what is wrong, and nothing is asked."""
    asked: list[str] = []

    def answer(handler: Handler) -> None:
        asked.append(handler.path)
        handler.reply(200, "requests_total 1\n", Content_Type="text/plain")

    with answering(answer) as url:
        port = url.rpartition(":")[2]
        listen = f"127.0.0.1:{free_port()}"
        own = f'claims = {{ targets = ["127.0.0.1:{port}"] }}\n'
        written = two(own, "").replace("10.0.1.9:8000", f"127.0.0.1:{port}/own")
        collector = f'[collector]\nlisten = "{listen}"\nscrape_interval = "1s"\n'
        (tmp_path / "servescope.toml").write_text(f"{collector}{written}", encoding="utf-8")
        write_list(tmp_path, f"localhost:{port}")
        with collecting(folder=tmp_path):

            def errors() -> list[str] | None:
                found = json.loads(get(f"http://{listen}/api/v1/targets"))["targets"]
                return sorted(str(each["error"]) for each in found) if asked and "leads" in json.dumps(found) else None

            wait_until(errors, tmp_path / "collect.log")
            found = errors()

    assert found is not None
    assert (
        "it leads to 127.0.0.1, which is among claims.targets of model_name='llama', deployment_id='chat'" in found[-1]
    )
    assert set(asked) == {"/own"}


def scraped(address: str, job: str = "", namespace: str = "", cluster: str = "") -> ScrapedAt:
    return ScrapedAt(read_address(address), job, namespace, cluster)


def test_every_restriction_of_a_claim_has_to_fit() -> None:
    """And what it does not restrict may be anything."""
    claim = Claim((read_pattern("10.0.1.0/24:8000"),), (), frozenset({"engines"}), frozenset({"chat"}))

    assert claim.admits_target(scraped("10.0.1.7:8000", "engines", "chat"))
    assert claim.admits_target(scraped("10.0.1.7:8000", "engines", "chat", "any"))
    for other in (
        scraped("10.0.2.7:8000", "engines", "chat"),
        scraped("10.0.1.7:8000", "others", "chat"),
        scraped("10.0.1.7:8000", "engines", "search"),
        scraped("10.0.1.7:8000", "engines"),
        ScrapedAt(None, "engines", "chat"),
    ):
        assert not claim.admits_target(other)


def test_a_collector_is_trusted_with_series_and_is_no_target() -> None:
    """Its page has the series of many deployments, which a list could otherwise claim."""
    claim = Claim(collectors=(read_pattern("collector.svc:9900"),))

    assert claim.admits_series(scraped("collector.svc:9900"))
    assert not claim.admits_target(scraped("collector.svc:9900"))
    assert not claim.admits_series(scraped("engine.svc:8000"))


_T1, _T2, _BOTH = ("10.0.1.0/24:*",), ("10.0.2.0/24:*",), ("10.0.0.0/16:*",)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ({"targets": _T1}, {"targets": _T2}, False),
        ({"targets": _T1}, {"targets": _BOTH}, True),
        ({"targets": _T1, "namespaces": ["a"]}, {"targets": _BOTH, "namespaces": ["b"]}, False),
        ({"targets": _T1, "namespaces": ["a"]}, {"targets": _BOTH}, True),
        ({"namespaces": ["a"]}, {"clusters": ["b"]}, True),
        ({"jobs": ["a"]}, {"jobs": ["b"]}, False),
        ({"jobs": ["a", "c"]}, {"jobs": ["b", "c"]}, True),
        ({"targets": _T1, "collectors": ["c:9900"]}, {"targets": _T2, "collectors": ["c:9900"]}, False),
        ({"targets": _T1}, {"targets": _T2, "collectors": ["10.0.1.5:9900"]}, True),
        ({"namespaces": ["a"]}, {"collectors": ["c:9900"]}, True),
    ],
)
def test_claims_overlap_where_something_fits_both(
    one: dict[str, list[str]], other: dict[str, list[str]], overlap: bool
) -> None:
    """But a collector that both trust, which keeps their targets apart."""
    first, second = (
        Claim(
            tuple(map(read_pattern, each.get("targets", ()))),
            tuple(map(read_pattern, each.get("collectors", ()))),
            *(frozenset(each.get(name, ())) for name in ("jobs", "namespaces", "clusters")),
        )
        for each in (one, other)
    )
    assert (first.overlaps(second), second.overlaps(first)) == (overlap, overlap)


def test_an_import_leaves_out_what_may_not_claim_its_deployment(tmp_path: Path) -> None:
    """Its samples would be stored as the deployment's, and exported as such from the store."""
    labels = {"model_name": "llama", "deployment_id": "chat", "inference_stack": "v2", "role": "aggregated"}
    series = [
        {"__name__": "requests_total", "replica": "r0", "job": "engines", "instance": instance, **labels}
        for instance in ("10.0.1.7:8000", "10.0.2.7:8000")
    ]

    def answer(handler: Handler) -> None:
        listed = series if handler.path.endswith("/series") else {"resultType": "matrix", "result": []}
        handler.reply(200, json.dumps({"status": "success", "data": listed}))

    config = tmp_path / "servescope.toml"
    config.write_text(two(), encoding="utf-8")
    with answering(answer) as url:
        done = run("import", "--from", url, "--config", str(config), "--store", str(tmp_path / "s.db"), "--start", "1h")

    assert done.returncode == 0, done.stderr
    assert "left out: target instance='10.0.2.7:8000', job='engines'" in done.stdout
    assert "10.0.1.7" not in done.stdout
