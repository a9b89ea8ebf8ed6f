"""When the pods of the manifests are started and moved, what they look up and reach, and what secrets they read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from servescope.contract.own_metrics import CUSTOMERS_JOB, JUDGE_JOB
from servescope.customers.config import read_claims
from servescope.customers.policy.policy import Policy
from servescope.customers.policy.secrecy import files_of
from servescope.customers.running import read_startable
from tests.conftest import ROOT
from tests.deploy.support.manifests import APPLIED, Container, Document, Peer, containers, may_reach, only, render

_FOLDER = ROOT / "deploy" / "kubernetes"
_PAGE = ROOT / "docs" / "kubernetes.md"
_NAMES = {"servescope-console", "servescope-collector", "servescope-judge", "servescope-customers"}
"""The workloads that are given names; the translators are given addresses."""


@pytest.fixture
def applied(kustomize: Path) -> list[Document]:
    """All that can be applied, each object once."""
    documents = [each for name in APPLIED for each in render(kustomize, _FOLDER / name)]
    return list({(each["kind"], each["metadata"]["name"]): each for each in documents}.values())


@pytest.fixture
def export(kustomize: Path) -> tuple[Document, ...]:
    """The export to customers."""
    return render(kustomize, _FOLDER / "customers")


def _labels(documents: Sequence[Document]) -> dict[str, dict[str, str]]:
    return {each.owner["metadata"]["name"]: each.owner["spec"]["template"]["metadata"]["labels"]
            for each in containers(documents)}  # fmt: skip


def test_names_are_looked_up_in_the_cluster_or_at_a_cache_on_the_node(applied: list[Document]) -> None:
    """The cluster's DNS, NodeLocal DNSCache and that of Cilium, by UDP and TCP; translators look nothing up."""
    system = Peer(53, namespace="kube-system")
    servers = [
        replace(system, labels={"k8s-app": "kube-dns"}),
        replace(system, labels={"k8s-app": "node-local-dns"}),
        Peer(53, address="169.254.20.10"),
    ]
    others = [
        replace(system, labels={"k8s-app": "metrics-server"}),
        replace(system, namespace="llm", labels={"k8s-app": "kube-dns"}),
        Peer(53, address="169.254.169.254"),
        Peer(53, address="203.0.113.7"),
    ]
    for name, labels in _labels(applied).items():
        for protocol in ("UDP", "TCP"):
            found = [may_reach(applied, labels, replace(each, protocol=protocol)) for each in servers]
            assert found == [name in _NAMES] * len(servers), name
            assert not any(may_reach(applied, labels, replace(each, protocol=protocol)) for each in others)


def test_only_the_export_reaches_the_internet_and_no_private_network(applied: list[Document]) -> None:
    """Backends at the port of HTTPS; neither the cluster's own networks nor the node's metadata."""
    backends = ["203.0.113.7", "2001:db8::7"]
    inside = [
        "10.1.0.7",
        "172.20.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "127.0.0.1",
        "fd00::1",
        "fe80::1",
    ]
    for name, labels in _labels(applied).items():
        reached = [may_reach(applied, labels, Peer(443, address=each)) for each in backends]
        assert reached == [name == "servescope-customers"] * len(backends), name
        assert not any(may_reach(applied, labels, Peer(port, address=each)) for each in inside for port in (80, 443))
        assert not any(may_reach(applied, labels, Peer(80, address=each)) for each in backends)


def test_containers_are_probed_once_they_have_started(applied: list[Document]) -> None:
    """A start may take two minutes, that on a store five; no other probe begins before, and none waits a fixed time."""
    for container in (each for each in containers(applied) if not each.ends):
        probes = {name: container.said[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
        starting = probes["startupProbe"]

        assert not any("initialDelaySeconds" in each for each in probes.values())
        assert container.health_url("startupProbe") == container.health_url("livenessProbe")
        seconds = starting["periodSeconds"] * starting["failureThreshold"]
        assert seconds == (300 if str(container) == "servescope-collector/collector" else 120)


def test_engine_does_not_wait_for_its_sidecar() -> None:
    """Kubernetes starts an engine only after the startup probe of a sidecar in front of it: that one has none."""
    text = (_FOLDER / "sidecar" / "sidecar.yaml").read_text(encoding="utf-8")
    assert "livenessProbe:" in text
    assert not re.search(r"^\s*(startupProbe|readinessProbe):", text, re.MULTILINE)


def test_what_is_alone_is_not_evicted_but_for_being_ill(applied: list[Document]) -> None:
    """Collector and judge wait for somebody; translators go one by one; console and export lose nothing by moving."""
    budgets = {each["metadata"]["name"]: each["spec"] for each in applied if each["kind"] == "PodDisruptionBudget"}

    assert {name: each["maxUnavailable"] for name, each in budgets.items()} == {
        "servescope-translate": 1,
        "servescope-collector": 0,
        "servescope-judge": 0,
    }
    assert {each["unhealthyPodEvictionPolicy"] for each in budgets.values()} == {"AlwaysAllow"}


def test_export_has_one_pod_with_its_cursors_on_a_volume_of_its_own(export: tuple[Document, ...]) -> None:
    """A StatefulSet ends a pod before it starts the next one, as a file of cursors has one writer."""
    workload = only(export, "StatefulSet", "servescope-customers")["spec"]
    (container,) = containers(export)
    (claim,) = workload["volumeClaimTemplates"]
    cursors = container.command[container.command.index("--cursors") + 1]

    assert workload["replicas"] == 1
    assert str(Path(cursors).parent) in [
        each["mountPath"] for each in container.said["volumeMounts"] if each["name"] == claim["metadata"]["name"]
    ]
    assert "--store" not in container.command


def _start(export: tuple[Document, ...], folder: Path) -> tuple[tuple[Policy, ...], Container]:
    """The policies of the ConfigMap beside the Secret that the page makes, with the mounts' paths in a folder."""
    (container,) = containers(export)
    (configuration,) = [each for each in export if each["kind"] == "ConfigMap"]
    for name, text in configuration["data"].items():
        (folder / name).write_text(text.replace("/etc/servescope-customers", str(folder)), encoding="utf-8")
    for number, name in enumerate(_keys_made("generic servescope-customers")):
        (folder / name).write_text(f"{number}-0123456789abcdef0123456789abcdef\n", encoding="utf-8")
    policies, problems = read_startable(folder / "customers.toml")
    assert problems == ()
    assert read_claims(folder / "customers.toml", policies)
    return policies, container


def _keys_made(secret: str) -> set[str]:
    """The keys of a Secret that a command of the page creates."""
    (command,) = re.findall(rf"create secret {secret} (.*)", _PAGE.read_text(encoding="utf-8"))
    return set(re.findall(r"--from-(?:file|literal)=(?:(\S+?)=)", command))


def test_page_creates_every_secret_that_the_export_reads(export: tuple[Document, ...], tmp_path: Path) -> None:
    """No file is missing and none is made for nothing; they are readable by the container's group, and nobody else."""
    policies, container = _start(export, tmp_path)

    named = {path.name for policy in policies for path in files_of(policy)}
    assert named == _keys_made("generic servescope-customers")
    assert "create secret tls servescope-customers-tls " in _PAGE.read_text(encoding="utf-8")
    for volume in ("secrets", "certificate"):
        secret = container.volume(volume)["secret"]
        assert secret["defaultMode"] == 0o440
        assert secret["secretName"].startswith("servescope-customers")
    assert container.pod["securityContext"]["fsGroup"] == 10001


def test_customers_reach_their_pages_and_scrapers_its_own(export: tuple[Document, ...]) -> None:
    """The Service has the page's port alone; the page that names every customer is for the scrapers' namespace."""
    (service,) = only(export, "Service", "servescope-customers")["spec"]["ports"]
    policy = only(export, "NetworkPolicy", "servescope-customers")["spec"]
    own, pull = policy["ingress"]

    assert service["targetPort"] == "pull"
    assert [each["ports"][0]["port"] for each in (own, pull)] == ["customers", "pull"]
    assert own["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert pull["from"][0]["namespaceSelector"]["matchExpressions"] == [
        {"key": "servescope/customers", "operator": "Exists"}
    ]


@pytest.mark.parametrize(("name", "job"), [("judge", JUDGE_JOB), ("customers", CUSTOMERS_JOB)])
def test_series_have_the_job_that_the_alerts_ask_for(kustomize: Path, name: str, job: str) -> None:
    """Whatever the operator would call it."""
    (monitor,) = [each for each in render(kustomize, _FOLDER / name) if each["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    assert {"targetLabel": "job", "replacement": job} in endpoint["relabelings"]
