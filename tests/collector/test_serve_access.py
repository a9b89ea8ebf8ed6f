"""Who may ask the collector: bearer tokens, TLS, client certificates, and what a browser is kept from."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from servescope.collector.api.openapi import describe
from servescope.collector.command import collect
from servescope.collector.config import make_configuration
from servescope.errors import ConfigurationError
from servescope.web.settings import ApiSettings
from tests.collector.support.api_door import LIMITS, bounds, door, ended, fill
from tests.support.authorities import Authority
from tests.support.prometheus import Point
from tests.support.prometheus import running as running_prometheus
from tests.support.waiting import wait_for

FIRST, SECOND = "f1rst-t0ken", "sec0nd/t0ken=="  # the tests' own
PATHS = ("/", *(path for path in describe()["paths"] if path.startswith(("/metrics", "/api"))))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path: Path) -> ApiSettings:
    path = tmp_path / "tokens"
    path.write_text(f"{FIRST}\n")
    return ApiSettings(bearer_token_file=path)


async def test_everything_but_health_needs_the_token(tmp_path: Path, tokens: ApiSettings) -> None:
    """401 says how to send one, also where there is no page; the health pages need none; with one, all is answered."""
    async with door(tmp_path, LIMITS, tokens) as opened:
        await opened.scene.step()
        await opened.scene.written()
        query = "?deployment_id=v1&name=requests_total"
        asked = [
            f"{path}{query}" if "samples" in path else path.replace("figures", "figures?deployment_id=v1")
            for path in PATHS
        ]
        without = [await opened.ask(path) for path in (*asked, "/api/v1/nothing")]
        health = [(await opened.ask(path))[0] for path in ("/-/healthy", "/-/ready")]
        admitted = [(await opened.ask(path, bearer(FIRST)))[0] for path in asked]
    for status, answer, headers in without:
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="servescope"')
        assert answer == {"error": "a bearer token is needed: send 'Authorization: Bearer TOKEN'"}
    assert health == [200, 200]
    assert admitted == [200 for _ in PATHS]


@pytest.mark.parametrize(
    "header",
    [
        f"Bearer {FIRST}x", f"Bearer {FIRST[:-1]}", f"Basic {FIRST}", FIRST, "Bearer", "Bearer ",
        f"Bearer {FIRST},{FIRST}",
    ],
)  # fmt: skip
async def test_wrong_tokens_are_refused(tmp_path: Path, tokens: ApiSettings, header: str) -> None:
    """As invalid, without a word of what would have been right; the refusal is counted."""
    async with door(tmp_path, LIMITS, tokens) as opened:
        status, answer, headers = await opened.ask("/api/v1/targets", {"Authorization": header})
        page = (await opened.ask("/metrics", bearer(FIRST)))[1]
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="servescope", error="invalid_token"')
    assert FIRST not in json.dumps(answer)
    assert 'servescope_api_refused_total{reason="token"} 1.0\n' in page


async def test_tokens_rotate(tmp_path: Path, tokens: ApiSettings, caplog: pytest.LogCaptureFixture) -> None:
    """A new token is accepted beside the former until that is removed from the file; a broken file changes nothing."""
    path = tmp_path / "tokens"
    seen: list[tuple[int, int]] = []

    caplog.set_level(logging.INFO)
    async with door(tmp_path, LIMITS, tokens) as opened:
        for text in (f"{FIRST}\n", f"{FIRST}\n\n{SECOND}\n", "", "two words\n", f"{SECOND}\n", None):
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
            seen.append(((await opened.ask("/", bearer(FIRST)))[0], (await opened.ask("/", bearer(SECOND)))[0]))
    assert seen == [(200, 401), (200, 200), (200, 200), (200, 200), (401, 200), (401, 200)]
    lines_logged = [
        record.message for record in caplog.records if record.levelno >= logging.WARNING and "token" in record.message
    ]
    assert lines_logged == [
        f"bearer_token_file '{path}' is empty, expected a token a line; what it held before stays in force",
        f"bearer_token_file '{path}' line 1 is no bearer token, expected letters, digits and -._~+/ with = at the end; "
        "what it held before stays in force",
        f"bearer_token_file '{path}' cannot be read: No such file or directory; what it held before stays in force",
    ]
    assert not [record for record in caplog.records if FIRST in record.getMessage() or SECOND in record.getMessage()]


async def test_a_token_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the file."""
    monkeypatch.setenv("COLLECTOR_TOKEN", FIRST)
    async with door(tmp_path, LIMITS, ApiSettings(bearer_token_env="COLLECTOR_TOKEN")) as opened:
        assert [(await opened.ask("/", headers))[0] for headers in ({}, bearer(FIRST))] == [401, 200]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (None, 200), ("localhost", 200), ("localhost:9900", 200), ("127.0.0.1:9900", 200), ("[::1]:9900", 200),
        ("10.0.0.7", 200),
        ("rebound.example", 421), ("rebound.example:9900", 421), ("127.0.0.1.example", 421), ("", 421),
        ("127.0.0.1:9900@rebound.example", 421), ("localhost:9900x", 421), ("[::1]:x", 421),
    ],
)  # fmt: skip
async def test_names_that_may_be_rebound_are_refused_without_a_token(
    tmp_path: Path, host: str | None, status: int
) -> None:
    """A page of the web cannot have the browser of somebody who works here read from the collector."""
    async with door(tmp_path, LIMITS) as opened:
        # Without a Host only HTTP 1.0 is HTTP.
        head = "HTTP/1.0" if host is None else f"HTTP/1.1\r\nHost: {host}\r\nConnection: close"
        reader, writer = await opened.send(f"GET /api/v1/targets {head}\r\n\r\n".encode())
        answer = await ended(reader)
        writer.close()
        assert answer.split()[1] == str(status).encode()


async def test_any_name_will_do_with_a_token(tmp_path: Path, tokens: ApiSettings) -> None:
    """Which a page of the web has not."""
    async with door(tmp_path, LIMITS, tokens) as opened:
        assert (await opened.ask("/api/v1/targets", {"Host": "collector.internal", **bearer(FIRST)}))[0] == 200


async def test_pages_of_the_web_cannot_reload(tmp_path: Path) -> None:
    """A POST that a browser marks with its origin is refused, the same without is done; no answer allows an origin."""
    async with door(tmp_path, LIMITS) as opened:
        url, answers = f"http://127.0.0.1:{opened.port}/-/reload", []
        async with aiohttp.ClientSession() as session:
            for headers in ({"Origin": "https://page.example"}, {}):
                async with session.post(url, headers=headers) as response:
                    answers.append((response.status, dict(response.headers)))
        (refused, headers), (done, _) = answers
    assert (refused, done) == (403, 200)
    assert not [name for name in headers if name.startswith("Access-Control")]


class Served(Authority):
    """An authority that gives out files for servers of this machine as well."""

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for this machine, and its key."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}-key.pem"
        issued = self.ca.issue_cert("127.0.0.1", common_name=name)
        issued.private_key_pem.write_to_path(key)
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        return certificate, key


def client(authority: Path, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


async def ask_securely(port: int, context: ssl.SSLContext, headers: Mapping[str, str] | None = None) -> int | str:
    """The status of an answer over TLS, or why there was none."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://127.0.0.1:{port}/api/v1/targets", ssl=context, headers=headers) as response,
        ):
            return response.status
    except (aiohttp.ClientError, ssl.SSLError) as error:
        return type(error).__name__


async def test_tls_with_a_token(tmp_path: Path) -> None:
    """Over TLS 1.2 and newer; nothing is answered in the clear, nor to who trusts another authority."""
    authority, other = Served(tmp_path, "one"), Served(tmp_path, "other")
    certificate, key = authority.issue("collector")
    (tmp_path / "tokens").write_text(FIRST)
    api = ApiSettings(bearer_token_file=tmp_path / "tokens", tls_cert_file=certificate, tls_key_file=key)

    async with door(tmp_path, LIMITS, api) as opened:
        old = client(authority.path)
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLS"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        reader, writer = await opened.send(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        clear = await ended(reader)
        writer.close()
        answers = [
            await ask_securely(opened.port, client(authority.path), bearer(FIRST)),
            await ask_securely(opened.port, client(authority.path)),
            await ask_securely(opened.port, client(other.path), bearer(FIRST)),
            await ask_securely(opened.port, old, bearer(FIRST)),
            b"HTTP" in clear,
        ]
    assert answers[:3] == [200, 401, "ClientConnectorCertificateError"]
    assert isinstance(answers[3], str)
    assert answers[4] is False


async def test_clients_show_a_certificate(tmp_path: Path) -> None:
    """Of the authority that is configured; another one's, or none, is not let in."""
    ours, theirs = Served(tmp_path, "ours"), Served(tmp_path, "theirs")
    certificate, key = ours.issue("collector")
    api = ApiSettings(tls_cert_file=certificate, tls_key_file=key, tls_client_ca_file=ours.path)
    async with door(tmp_path, LIMITS, api) as opened:
        known, stranger, nobody = [
            await ask_securely(opened.port, client(ours.path, shown))
            for shown in (ours.issue("grafana"), theirs.issue("stranger"), None)
        ]
    assert known == 200
    assert isinstance(stranger, str)
    assert isinstance(nobody, str)


async def test_certificates_rotate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next connection has the new one; one without its key, as half-way through, changes nothing."""
    old, new = Served(tmp_path, "old"), Served(tmp_path, "new")
    certificate, key = old.issue("collector")
    api = ApiSettings(tls_cert_file=certificate, tls_key_file=key)
    refused = "ClientConnectorCertificateError"
    async with door(tmp_path, LIMITS, api) as opened:

        async def trusted() -> tuple[int | str, int | str]:
            return (
                await ask_securely(opened.port, client(old.path)),
                await ask_securely(opened.port, client(new.path)),
            )

        seen = [await trusted()]
        fresh, fresh_key = new.issue("fresh")
        certificate.write_bytes(fresh.read_bytes())
        seen.append(await trusted())
        key.write_bytes(fresh_key.read_bytes())
        assert [*seen, await trusted()] == [(200, refused), (200, refused), (refused, 200)]
    assert [record.message for record in caplog.records if "cannot be used together" in record.message] != []


@pytest.mark.slow
async def test_a_handshake_that_hangs_is_cut_off(tmp_path: Path) -> None:
    """Connections that never speak TLS keep nobody out, and do not stay."""
    authority = Served(tmp_path, "one")
    certificate, key = authority.issue("collector")
    api = ApiSettings(tls_cert_file=certificate, tls_key_file=key)
    async with door(tmp_path, bounds(connections=4, handshake_seconds=0.5), api) as opened:
        silent = [await opened.connect() for _ in range(6)]
        served = await ask_securely(opened.port, client(authority.path))
        rest = b"".join([await ended(reader) for reader, _ in silent])
        for _, writer in silent:
            writer.close()
        assert (served, rest) == (200, b"")


# What changes from one page to the next by itself.
CHANGING = ("servescope_api_", "servescope_render_", "servescope_store_", "servescope_event_loop_", "process_")


@pytest.mark.slow
async def test_a_real_prometheus_scrapes_with_token_and_certificates(tmp_path: Path, prometheus: Path) -> None:
    """It asks for OpenMetrics, is let in, and holds every sample of the page under its own name and value."""
    authority = Served(tmp_path, "ours")
    certificate, key = authority.issue("collector")
    shown, shown_key = authority.issue("prometheus")
    (tmp_path / "tokens").write_text(FIRST)
    api = ApiSettings(
        bearer_token_file=tmp_path / "tokens", tls_cert_file=certificate, tls_key_file=key,
        tls_client_ca_file=authority.path,
    )  # fmt: skip
    async with door(tmp_path, LIMITS, api) as opened:
        await fill(opened.scene, 8)
        job = {
            "job_name": "collector", "scheme": "https", "scrape_interval": "1s",
            "static_configs": [{"targets": [f"127.0.0.1:{opened.port}"]}],
            "authorization": {"credentials_file": str(tmp_path / "tokens")},
            "tls_config": {
                "ca_file": str(authority.path), "cert_file": str(shown), "key_file": str(shown_key),
            },
        }  # fmt: skip
        held = await asyncio.to_thread(scrape_once, prometheus, tmp_path / "prometheus", job)
        context = client(authority.path, (shown, shown_key))
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://127.0.0.1:{opened.port}/metrics", ssl=context, headers=bearer(FIRST)) as response,
        ):
            text = await response.text()
        page = {
            sample_text(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.startswith(CHANGING)
        }
    assert len(page) > 100
    assert page - held == set()


def scrape_once(binary: Path, folder: Path, job: dict[str, Any]) -> set[str]:
    """The samples that a Prometheus holds of the one target of a job, as soon as it has any."""
    with running_prometheus(binary, folder, {"scrape_configs": [job]}) as server:

        def scraped() -> list[Point] | None:
            points = server.query('{job="collector"}', at_ms=time.time_ns() // 1_000_000)
            return points if any(dict(point.labels)["__name__"] == "request_rate" for point in points) else None

        points = wait_for(scraped, "a scrape")
    samples = set()
    for point in points:
        labels = {name: value for name, value in point.labels if name not in ("job", "instance")}
        samples.add(sample_text(labels.pop("__name__"), labels, point.value))
    return samples


def sample_text(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{name}{sorted(labels.items())} {value!r}"


def configure(folder: Path, **api: str) -> Any:
    deployment = {
        "deployment_id": "v1", "model_name": "m", "inference_stack": "v1", "targets": [{"url": "http://127.0.0.1:1"}],
    }  # fmt: skip
    document = {"collector": {"listen": "127.0.0.1:0"}, "api": api, "deployments": [deployment]}
    return make_configuration(document, origin="servescope.toml", directory=folder)


def test_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    """As everywhere in it."""
    (tmp_path / "tokens").write_text(FIRST)

    assert configure(tmp_path, bearer_token_file="tokens").api == ApiSettings(bearer_token_file=tmp_path / "tokens")
    assert configure(tmp_path).api == ApiSettings()


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ({"token": "x"}, "unknown key 'api.token'; "),
        ({"bearer_token_file": "nowhere"}, "api: bearer_token_file '{}/nowhere' cannot be read: No such file"),
        ({"bearer_token_file": "empty"}, "api: bearer_token_file '{}/empty' is empty, expected a token a line"),
        ({"bearer_token_file": "wrong"}, "api: bearer_token_file '{}/wrong' line 2 is no bearer token, expected "),
        ({"bearer_token_env": "NO_SUCH_TOKEN"}, "api: bearer_token_env: environment variable 'NO_SUCH_TOKEN' is not"),
        ({"bearer_token_file": "wrong", "bearer_token_env": "X"},
         "api: bearer_token_env and bearer_token_file are both set, expected one of them"),
        ({"tls_cert_file": "c.pem"}, "api: tls_cert_file and tls_key_file go together, expected both of them or none"),
        ({"tls_client_ca_file": "ca.pem"}, "api: tls_client_ca_file is set without tls_cert_file and tls_key_file"),
        ({"tls_cert_file": "c.pem", "tls_key_file": "k.pem"}, "api: TLS file '{}/c.pem' cannot be read: No such file"),
        ({"tls_cert_file": "wrong", "tls_key_file": "wrong"},
         "api: tls_cert_file '{0}/wrong' and tls_key_file '{0}/wrong' cannot be used together: "),
    ],
)  # fmt: skip
def test_wrong_access_is_refused_at_the_start(tmp_path: Path, api: dict[str, str], error: str) -> None:
    """With the file and the reason, never the token."""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "wrong").write_text("right\nnot a t0ken\n")

    with pytest.raises(ConfigurationError) as caught:
        configure(tmp_path, **api)
    assert str(caught.value).startswith(f"servescope.toml: {error.format(tmp_path)}")
    assert "not a t0ken" not in str(caught.value)


@pytest.mark.slow
async def test_openness_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Loudly when everybody may read, and when tokens travel in the clear; not on this machine alone."""
    (tmp_path / "tokens").write_text(FIRST)

    async def warnings(host: str, **api: str) -> list[str]:
        configuration = configure(tmp_path, **api)
        collector = replace(configuration.collector, listen=(host, 0))
        caplog.clear()
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, stop.set)
        await collect(replace(configuration, collector=collector), stop)
        return [record.message for record in caplog.records if record.name.endswith("command") and record.levelno > 20]

    assert await warnings("127.0.0.1") == []
    assert [text[:26] for text in await warnings("0.0.0.0")] == ["ANYBODY WHO REACHES 0.0.0."]
    assert [text[:20] for text in await warnings("0.0.0.0", bearer_token_file="tokens")] == ["bearer tokens travel"]
