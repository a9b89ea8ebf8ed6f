"""The containers of the manifests, all outside a cluster: their own commands, on what their ConfigMaps hold."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.conftest import ROOT
from tests.deploy.support.compose import Composition, Outside
from tests.deploy.support.manifests import (
    ENGINES,
    Container,
    Document,
    Pod,
    containers,
    lay_out,
    only,
    render,
    scrape_jobs,
    write_kustomization,
)
from tests.support.answering import answering
from tests.support.authorities import Authority
from tests.support.otlp_receiver import Receiver
from tests.support.programs import answers
from tests.support.prometheus import Prometheus, free_port
from tests.support.waiting import deadline_seconds, wait_for

_FOLDER = ROOT / "deploy" / "kubernetes"
_PROMETHEUS = "prometheus-operated.monitoring.svc"
_TRANSLATE = "servescope-translate.servescope.svc"
_JUDGE = "servescope-judge.servescope.svc"
_SERVESCOPE = Path(sys.executable).with_name("servescope")
_CUSTOMERS = "servescope-customers.servescope.svc"
_TOKENS = {"acme-push.token": "push-0123456789abcdef", "acme-pull.token": "pull-0123456789abcdef0123456789"}
_SECRETS = {"servescope-judge": {"token": "0123456789abcdef0123456789abcdef"}, "servescope-customers": _TOKENS}
# The tests' engine listens on a free port of 127.0.0.1, the customer has one of its deployments, and nobody waits for a
# rhythm.
_CHANGED = (
    ('"10.0.0.0/8:8000"', '"127.0.0.1:*"'),
    ('"15s"', '"1s"'),
    ('"30s"', '"1s"'),
    ('"10s"', '"1s"'),
    ('deployment_id = "chat"', 'deployment_id = "chat-v2"'),
    ('namespaces = ["chat"]', 'namespaces = ["llm"]'),
    ('name = "acme"', 'name = "acme"\ninterval = "10s"'),
    ('acme-pull.token"', 'acme-pull.token"\nrequests_per_minute = 6000'),
)
_IDENTITY = {
    "model_name": "meta-llama/Llama-3.3-70B-Instruct",
    "deployment_id": "chat-v1",
    "inference_stack": "v1",
    "environment": "production",
    "replica": "chat-v1-0",
    "role": "aggregated",
}


@dataclass(frozen=True, slots=True)
class Running:
    """Containers while they run outside a cluster, by the services that they are."""

    containers: Mapping[str, Container]
    composition: Composition
    outside: Outside
    engine: str
    backend: Receiver
    page: str
    authority: Path

    def url(self, service: str, url: str) -> str:
        """Where a URL as the service knows it leads."""
        return self.outside.url_of(self.composition.services[service], url)

    @property
    def prometheus(self) -> Prometheus:
        """The Prometheus that has the jobs and the rules of the operator's objects."""
        return Prometheus(int(self.url(_PROMETHEUS, "http://127.0.0.1:9090").rpartition(":")[2]))

    def labels_of(self, expression: str) -> list[dict[str, str]]:
        """The labels of what Prometheus has now."""
        answer = self.prometheus.answer("/api/v1/query", query=expression)
        return [each["metric"] for each in answer["data"]["result"]]


@contextmanager
def _running(kustomize: Path, prometheus: Path, captures: Path, folder: Path, *applied: Path) -> Iterator[Running]:
    """The containers of these folders, and a Prometheus with what its operator would make of the manifests."""
    documents = tuple(each for one in applied for each in render(kustomize, one))
    page = (captures / "vllm-0.32.0-1.txt").read_text(encoding="utf-8")
    authority = Authority(folder)
    issued = authority.ca.issue_cert("127.0.0.1")
    certificate = {"tls.crt": issued.cert_chain_pems[0], "tls.key": issued.private_key_pem}
    with (
        answering(lambda handler: handler.reply(200, page, Content_Type="text/plain; version=0.0.4")) as engine,
        Receiver() as backend,
    ):
        monitored = render(kustomize, _FOLDER / "prometheus-operator")
        tls = {name: each.bytes().decode() for name, each in certificate.items()}
        ours = lay_out(documents, folder, {**_SECRETS, "servescope-customers-tls": tls})
        services = {_PROMETHEUS: _lay_out_prometheus(monitored, engine, folder), **ours}
        composition = Composition({"services": services}, folder)
        pull = f"127.0.0.1:{free_port()}"
        changed = (*_CHANGED, ("0.0.0.0:9921", pull), ("https://otlp.acme.example/v1/metrics", backend.url))
        outside = composition.outside(folder / "outside", *changed)
        long = [each for each in containers(documents) if not each.ends]
        executables = {name: _SERVESCOPE for name in ours if name != _JUDGE}
        with outside.running({**executables, _PROMETHEUS: prometheus}):
            started = dict(zip(ours, long, strict=True))
            address = engine.removeprefix("http://")
            yield Running(started, composition, outside, address, backend, f"https://{pull}", authority.path)


def _lay_out_prometheus(documents: tuple[Document, ...], engine: str, folder: Path) -> Document:
    """The service, and its configuration: the jobs of the PodMonitors and the figures' rules."""
    place = folder / "prometheus"
    place.mkdir()
    pods = [
        Pod(
            f"{deployment}-0",
            "127.0.0.1",
            {"servescope/deployment-id": deployment, "servescope/engine": "vllm"},
            {
                "servescope/model-name": _IDENTITY["model_name"],
                "servescope/inference-stack": deployment.rpartition("-")[2],
                "servescope/environment": "production",
            },
            [("http", 8000)],
        )
        for deployment in ("chat-v1", "chat-v2")
    ]
    translator = {"app.kubernetes.io/name": "servescope-translate"}
    pods.append(Pod(_TRANSLATE, _TRANSLATE, translator, {}, [("translate", 9905)]))
    monitors = [each for each in documents if each["kind"] == "PodMonitor"]
    jobs = scrape_jobs(monitors, pods, place, "/etc/prometheus")
    for listed in place.glob("servescope-targets-*.json"):
        # Of the engine's address alone: its container's port is the one that is kept.
        text = listed.read_text(encoding="utf-8").replace('"127.0.0.1:8000"', f'"{engine.removeprefix("http://")}"')
        listed.write_text(text, encoding="utf-8")
    (figures, *_) = only(documents, "PrometheusRule", "servescope")["spec"]["groups"]
    (place / "rules.json").write_text(json.dumps({"groups": [figures]}), encoding="utf-8")
    configuration = {"rule_files": ["/etc/prometheus/rules.json"], "scrape_configs": jobs}
    (place / "prometheus.json").write_text(json.dumps(configuration), encoding="utf-8")
    return {
        "command": [
            "--config.file=/etc/prometheus/prometheus.json",
            "--storage.tsdb.path=/prometheus",
            "--web.listen-address=0.0.0.0:9090",
        ],
        "volumes": ["./prometheus:/etc/prometheus:ro", "prometheus:/prometheus"],
        "healthcheck": {"test": ["http://127.0.0.1:9090/-/ready"]},
    }


@pytest.mark.proof
def test_every_container_starts_and_passes_its_probes(
    kustomize: Path, prometheus: Path, any_captures: Path, tmp_path: Path
) -> None:
    """Translators, collector, judge, export and both consoles run as their manifests say, and answer their probes."""
    (tmp_path / "engines").mkdir()
    sidecar = write_kustomization(tmp_path / "engines", [ENGINES], [_FOLDER / "sidecar"])
    applied = [*(_FOLDER / name for name in ("prometheus-operator", "standalone", "judge", "customers")), sidecar]
    with _running(kustomize, prometheus, any_captures, tmp_path, *applied) as running:
        wait_for(lambda: running.labels_of("concurrent_requests"), "something to judge")
        _prepare_judge(running, render(kustomize, _FOLDER / "judge"))
        with running.outside.running({_JUDGE: _SERVESCOPE}):
            assert len(running.containers) == 7
            for service, container in running.containers.items():
                for probe in {"startupProbe", "livenessProbe", "readinessProbe"} & container.said.keys():
                    url = running.url(service, container.health_url(probe))
                    wait_for(partial(answers, url), f"the {probe} of {container}")
            # A pod that is started again has its run, also while the metrics store is away.
            _prepare_judge(running, render(kustomize, _FOLDER / "judge"), PROMETHEUS_URL="http://127.0.0.1:1")


def _prepare_judge(running: Running, documents: tuple[Document, ...], **changed: str) -> None:
    """What the judge's pod runs before the judge."""
    (start,) = [each for each in containers(documents) if each.ends]
    service = running.composition.services[_JUDGE]
    variables = {name: running.url(_JUDGE, value) for name, value in start.environment.items()}
    path = f"{_SERVESCOPE.parent}:{os.environ['PATH']}"
    subprocess.run(
        [*start.said["command"], *(running.outside.rewrite(service, word) for word in start.command)],
        env={**os.environ, **variables, **changed, "PATH": path},
        check=True,
        capture_output=True,
        timeout=deadline_seconds(),
    )


@pytest.mark.proof
def test_a_customer_is_pushed_to_and_scrapes_its_page(
    kustomize: Path, prometheus: Path, any_captures: Path, tmp_path: Path
) -> None:
    """The export reads Prometheus, sends with the Secret's token, and answers over TLS who has the page's own."""
    applied = [_FOLDER / "translate", _FOLDER / "customers"]
    with _running(kustomize, prometheus, any_captures, tmp_path, *applied) as running:
        wait_for(lambda: running.backend.requests, "what is pushed")
        assert running.backend.headers[0]["Authorization"] == f"Bearer {_TOKENS['acme-push.token']}"
        assert {"queued_requests", "requests_total"} <= running.backend.metrics().keys()

        url = f"{running.page}/customers/acme/metrics"
        context = ssl.create_default_context(cafile=running.authority)
        asked = Request(url, headers={"Authorization": f"Bearer {_TOKENS['acme-pull.token']}"})
        page = wait_for(partial(_read, asked, context), "the customer's page", ignoring=(HTTPError,))
        assert re.search(r'^queued_requests\{.*deployment_id="chat-v2"', page, re.MULTILINE)
        assert "chat-v1" not in page
        with pytest.raises(HTTPError, match="401"):
            _read(Request(url), context)
        own = running.url(_CUSTOMERS, "http://127.0.0.1:9920/metrics")
        with urlopen(own, timeout=deadline_seconds()) as answer:
            assert "servescope_customer_" in answer.read().decode()


def _read(asked: Request, context: ssl.SSLContext) -> str:
    with urlopen(asked, timeout=deadline_seconds(), context=context) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_prometheus_has_a_pods_figures_by_its_identity(
    kustomize: Path, prometheus: Path, any_captures: Path, tmp_path: Path
) -> None:
    """The pod is scraped through the translator, with the labels that its own labels and annotations say."""
    with _running(kustomize, prometheus, any_captures, tmp_path, _FOLDER / "translate") as running:
        wait_for(lambda: running.labels_of('concurrent_requests{deployment_id="chat-v1"}'), "the contract's series")
        (found,) = running.labels_of('concurrent_requests{deployment_id="chat-v1"}')
        scraped = {"job": "servescope-targets", "instance": running.engine, "namespace": "llm"}
        assert found.items() >= (_IDENTITY | scraped).items()
        assert not {"pod", "container", "endpoint"} & found.keys()
        figure = 'deployment:concurrent_requests:sum{deployment_id="chat-v1"}'
        wait_for(lambda: running.labels_of(figure), "a recorded figure")
        assert running.labels_of('servescope_probe_success{job="servescope-targets"} == 1')
        wait_for(lambda: running.labels_of('up{job="servescope-translate"} == 1'), "the translator's own page")
