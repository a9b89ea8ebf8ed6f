"""What the manifests under deploy/kubernetes say, rendered by kustomize and checked by published schemas."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from alerts.rules import render_bundle
from servescope import __version__
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.own_metrics import OWN_METRICS
from servescope.generating.rules import Format
from servescope.translate.config import SETTINGS
from servescope.translate.prober import CLAIMED
from tests.conftest import ROOT
from tests.deploy.support.manifests import (
    APPLIED,
    ENGINES,
    Document,
    Pod,
    containers,
    named,
    only,
    package_of,
    problems,
    render,
    scrape_jobs,
    write_kustomization,
)
from tests.support.documents import read_yaml
from tests.support.promtool import Suite, failures, unit_test
from tests.support.waiting import deadline_seconds

_FOLDER = ROOT / "deploy" / "kubernetes"
EVERY_ONE = pytest.mark.parametrize("name", [*APPLIED, "sidecar"])

_LARGEST = 1024 * 1024  # what Kubernetes lets a ConfigMap hold
_LARGEST_ANNOTATIONS = 262_144


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engines of somebody's own, in a kustomization that uses the component."""
    return write_kustomization(tmp_path_factory.mktemp("engines"), [ENGINES], [_FOLDER / "sidecar"])


@pytest.fixture
def rendered(name: str, kustomize: Path, sidecar: Path) -> tuple[Document, ...]:
    """The documents of one folder; of the component with the engines that it is used for."""
    return render(kustomize, sidecar if name == "sidecar" else _FOLDER / name)


@pytest.fixture
def monitored(kustomize: Path) -> tuple[Document, ...]:
    """What is applied for the Prometheus operator."""
    return render(kustomize, _FOLDER / "prometheus-operator")


def _of_kind(documents: tuple[Document, ...], *kinds: str) -> list[Document]:
    return [each for each in documents if each["kind"] in kinds]


@pytest.mark.slow
def test_manifests_keep_to_the_published_schemas(kustomize: Path, sidecar: Path, kubernetes_schemas: Path) -> None:
    """Every document is valid, but for those of VictoriaMetrics' operator, whose schemas are in no package."""
    folders = [*(_FOLDER / name for name in APPLIED), sidecar]
    documents = {json.dumps(each): each for folder in folders for each in render(kustomize, folder)}
    without = {each["kind"] for each in documents.values() if package_of(each) is None}

    assert without == {"VMPodScrape", "VMRule"}
    assert problems(kubernetes_schemas, [each for each in documents.values() if package_of(each)]) == []


@EVERY_ONE
def test_containers_are_held_tight(rendered: tuple[Document, ...], name: str) -> None:
    """No root, no capability, a read-only filesystem, bounded memory and cores, probes, and nothing of the host."""
    for container in containers(rendered):
        said, pod = container.said, container.pod
        security = {**pod.get("securityContext", {}), **said.get("securityContext", {})}

        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert set(said["resources"]["limits"]) == set(said["resources"]["requests"]) == {"cpu", "memory"}
        assert container.ends or "livenessProbe" in said
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not any("hostPort" in port for port in said.get("ports", []))
        assert not any("hostPath" in volume for volume in pod["volumes"])
        # In the sidecar's pod the engine decides what it asks of the Kubernetes API.
        assert name == "sidecar" or pod["automountServiceAccountToken"] is False


def test_there_is_something_to_hold(kustomize: Path, sidecar: Path) -> None:
    """The containers that are checked are those that are promised."""
    folders = [*(_FOLDER / name for name in APPLIED), sidecar]
    found = {str(container) for folder in folders for container in containers(render(kustomize, folder))}

    assert found == {
        "servescope-translate/translate",
        "servescope-console/console",
        "servescope-collector/collector",
        "servescope-collector/console",
        "servescope-judge/start",
        "servescope-judge/judge",
        "servescope-customers/customers",
        "chat/translate",
    }


@EVERY_ONE
def test_image_is_of_this_version(rendered: tuple[Document, ...]) -> None:
    """Every container runs our image by its version, and as the user that the image has."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    assert {each.said["image"] for each in containers(rendered)} <= {f"servescope:{__version__}"}
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)


@EVERY_ONE
def test_nobody_has_rights_in_the_cluster(rendered: tuple[Document, ...]) -> None:
    """Each workload has an account of its own, without a token, and no role is bound to any."""
    accounts = _of_kind(rendered, "ServiceAccount")

    assert not [each for each in rendered if "Role" in each["kind"]]
    assert all(each["automountServiceAccountToken"] is False for each in accounts)
    used = [each.pod["serviceAccountName"] for each in containers(rendered) if "serviceAccountName" in each.pod]
    assert set(used) == {each["metadata"]["name"] for each in accounts}


@pytest.mark.parametrize("name", APPLIED)
def test_every_pod_has_a_network_policy_and_what_it_names_exists(rendered: tuple[Document, ...]) -> None:
    """Each pod is limited in both directions; policies, budgets, services and autoscalers select what is there."""
    workloads = _of_kind(rendered, "Deployment", "StatefulSet")
    pods = [each["spec"]["template"]["metadata"]["labels"].items() for each in workloads]
    policies = _of_kind(rendered, "NetworkPolicy")
    selectors = [each["spec"]["podSelector"]["matchLabels"].items() for each in policies]
    others = [
        each["spec"]["selector"].get("matchLabels", each["spec"]["selector"]).items()
        for each in _of_kind(rendered, "Service", "PodDisruptionBudget", "Deployment", "StatefulSet")
    ]

    assert all(any(selector <= labels for labels in pods) for selector in [*selectors, *others])
    for labels in pods:
        chosen = [each["spec"] for each in policies if each["spec"]["podSelector"]["matchLabels"].items() <= labels]
        assert {kind for each in chosen for kind in each["policyTypes"]} == {"Ingress", "Egress"}
    for scaler in _of_kind(rendered, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        assert "replicas" not in only(list(rendered), target["kind"], target["name"])["spec"]


def test_translators_scale_on_slots_in_use(monitored: tuple[Document, ...]) -> None:
    """By a series of their own that is below what one has, under the labels by which an adapter finds its pod."""
    scaler = only(monitored, "HorizontalPodAutoscaler", "servescope-translate")["spec"]
    (metric,) = [each["pods"] for each in scaler["metrics"] if each["type"] == "Pods"]
    (endpoint,) = only(monitored, "PodMonitor", "servescope-translate")["spec"]["podMetricsEndpoints"]

    assert OWN_METRICS[metric["metric"]["name"]].kind == "gauge"
    slots = int(dict(SETTINGS["translate"])["max_probes"])
    assert metric["target"] == {"type": "AverageValue", "averageValue": str(slots // 2)}
    assert not any(each.get("action") == "labeldrop" for each in endpoint["relabelings"])


def test_translators_end_after_nodes_forgot_them(monitored: tuple[Document, ...]) -> None:
    """A pod that ends at once refuses the scrapes that nodes send it until they know."""
    pod = only(monitored, "Deployment", "servescope-translate")["spec"]["template"]["spec"]
    command, seconds = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert 3 <= int(seconds) < pod.get("terminationGracePeriodSeconds", 30) - 5


def test_translators_reach_the_metrics_ports_alone(monitored: tuple[Document, ...]) -> None:
    """Its NetworkPolicy, its configuration and the scrape jobs name the same ports, and only private networks."""
    policy = only(monitored, "NetworkPolicy", "servescope-translate")["spec"]
    (egress,), (ingress,) = policy["egress"], policy["ingress"]
    (to,), (from_,) = egress["to"], ingress["from"]
    kept = only(monitored, "PodMonitor", "servescope-targets")["spec"]["podMetricsEndpoints"][0]["relabelings"][0]
    (configuration,) = [each for each in monitored if re.fullmatch(r"ConfigMap servescope-translate-\w+", named(each))]
    targets = tomllib.loads(configuration["data"]["translate.toml"])["translate"]["targets"]
    networks = {ipaddress.ip_network(each.rpartition(":")[0]) for each in targets}

    assert kept["action"] == "keep"
    ports = {int(each.partition(";")[2]) for each in kept["regex"].split("|")}
    assert {each["port"] for each in egress["ports"]} == ports
    assert sorted(targets) == sorted(f"{network}:{port}" for network in networks for port in ports)
    assert all(network.is_private for network in networks)
    assert to["podSelector"]["matchExpressions"] == [{"key": "servescope/deployment-id", "operator": "Exists"}]
    assert from_ == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


@pytest.fixture
def beside_victoria_metrics(kustomize: Path, tmp_path: Path) -> tuple[Document, ...]:
    """Judge and export in a kustomization of somebody's own, with the component for VictoriaMetrics."""
    write_kustomization(tmp_path, [_FOLDER / "judge", _FOLDER / "customers"], [_FOLDER / "victoria-metrics"])
    return render(kustomize, tmp_path)


def test_what_reads_the_metrics_store_may_reach_it(
    kustomize: Path, beside_victoria_metrics: tuple[Document, ...]
) -> None:
    """Each address of the store that console, judge and export are given is one that their NetworkPolicy allows."""
    applied = [render(kustomize, _FOLDER / name) for name in APPLIED]
    stores = set()
    for documents in (*applied, beside_victoria_metrics):
        for container in (each for each in containers(documents) if each.environment):
            store = urlsplit(container.environment["PROMETHEUS_URL"])
            policy = only(documents, "NetworkPolicy", container.owner["metadata"]["name"])["spec"]
            (rule,) = [each for each in policy["egress"] if each["to"][0].keys() == {"namespaceSelector"}]
            assert rule["ports"] == [{"protocol": "TCP", "port": store.port}]
            assert rule["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] in store.netloc
            stores.add(store.hostname)

    assert stores == {"prometheus-operated.monitoring.svc", "vmsingle-servescope.monitoring.svc"}
    assert [each["kind"] for each in beside_victoria_metrics if each["kind"].startswith(("PodM", "VMPod"))] == [
        "VMPodScrape"
    ] * 2


def test_sidecar_asks_its_own_pod_alone(sidecar: Path, kustomize: Path) -> None:
    """The component adds a container that is restarted by itself, and leaves the engine's pod as it is."""
    documents = render(kustomize, sidecar)
    (configuration,) = _of_kind(documents, "ConfigMap")
    pod = only(documents, "Deployment", "chat")["spec"]["template"]
    (container,) = pod["spec"]["initContainers"]

    targets = tomllib.loads(configuration["data"]["translate.toml"])["translate"]["targets"]
    assert {each.rpartition(":")[0] for each in targets} == {"127.0.0.1"}
    assert container["restartPolicy"] == "Always"
    assert pod["metadata"]["labels"].items() >= ENGINES["spec"]["template"]["metadata"]["labels"].items()
    assert pod["metadata"]["labels"]["servescope/translate"] == "sidecar"
    assert {"name": "model", "emptyDir": {}} in pod["spec"]["volumes"]


@pytest.mark.parametrize(
    ("name", "form"), [("prometheus-operator", "prometheusrule"), ("victoria-metrics-operator", "vmrule")]
)
def test_operators_get_every_rule_as_it_is(rendered: tuple[Document, ...], form: Format) -> None:
    """Both have all the groups of the rule files, in their own language, with no text changed on the way."""
    (found,) = _of_kind(rendered, "PrometheusRule", "VMRule")
    said = read_yaml(render_bundle(form))

    assert found["kind"] == said["kind"]

    assert found["spec"] == said["spec"]
    assert found["metadata"]["namespace"] == "servescope"


@pytest.mark.parametrize("name", ["prometheus-operator", "victoria-metrics-operator"])
def test_boards_are_what_grafanas_sidecar_looks_for(rendered: tuple[Document, ...]) -> None:
    """Every generated dashboard is in a ConfigMap with the label of Grafana's chart, byte for byte."""
    boards = [each for each in rendered if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    held = {name: text for each in boards for name, text in each["data"].items()}

    assert held == {
        path.name: path.read_text(encoding="utf-8") for path in (ROOT / "dashboards" / "generated").glob("*.json")
    }


@EVERY_ONE
def test_no_document_is_too_large(rendered: tuple[Document, ...]) -> None:
    """Each fits into Kubernetes."""
    assert max(len(json.dumps(each)) for each in rendered) < _LARGEST


def test_page_applies_what_fits_into_no_annotation_on_the_server(monitored: tuple[Document, ...]) -> None:
    """A dashboard is larger than what kubectl may keep in an annotation, so every command has `--server-side`."""
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    commands = re.findall(r"^kubectl.* apply .*$", page, re.MULTILINE)

    assert max(len(json.dumps(json.dumps(each))) for each in monitored) > _LARGEST_ANNOTATIONS
    assert len(commands) == 3
    assert all("--server-side" in command for command in commands)


_CHAT = Pod(
    "chat-7f-x2",
    "10.1.0.7",
    {"servescope/deployment-id": "chat", "servescope/engine": "vllm"},
    {
        "servescope/model-name": "meta-llama/Llama-3.3-70B",
        "servescope/inference-stack": "v1",
        "servescope/environment": "production",
        "servescope/rollout-phase": "stable",
    },
    [("http", 8000), ("events", 5557)],
)
_WORKER = Pod(
    "graph-worker-0",
    "10.1.0.8",
    {"servescope/deployment-id": "graph", "servescope/engine": "dynamo-worker"},
    {"servescope/model-name": "qwen", "servescope/inference-stack": "v2", "servescope/role": "decode"},
    [("system", 9090), ("http", 8000)],
)
_FRONTEND = Pod(
    "graph-frontend-0",
    "10.1.0.9",
    {"servescope/deployment-id": "graph", "servescope/engine": "dynamo-frontend"},
    {"servescope/model-name": "qwen", "servescope/inference-stack": "v2", "servescope/source": "dynamo-frontend"},
    [("http", 8000)],
)
_BESIDE = Pod(
    "code-0",
    "10.1.0.10",
    {"servescope/deployment-id": "code", "servescope/engine": "sglang", "servescope/translate": "sidecar"},
    {"servescope/model-name": "qwen", "servescope/inference-stack": "v1"},
    [("http", 30000), ("translate", 9905)],
)
_STRANGER = Pod("web-0", "10.1.0.11", {"app": "web"}, {}, [("http", 8000)])


def _scraped(promtool: Path, folder: Path, documents: tuple[Document, ...], name: str) -> list[dict[str, str]]:
    """The labels of the targets that Prometheus keeps of all pods, for one monitor."""
    pods = [_CHAT, _WORKER, _FRONTEND, _BESIDE, _STRANGER]
    monitors = [only(documents, "PodMonitor", name)]
    (job,) = scrape_jobs(monitors, pods, folder)
    (folder / "prometheus.json").write_text(json.dumps({"scrape_configs": [job]}), encoding="utf-8")
    check = ["check", "service-discovery", "--timeout=1s", "prometheus.json", job["job_name"]]
    done = subprocess.run(
        [promtool, *check], cwd=folder, capture_output=True, text=True, check=True, timeout=deadline_seconds()
    )
    found = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("[\n") :])[0]
    return [each["labels"] for each in found if each["labels"]]


def test_pods_are_scraped_through_the_translators(
    monitored: tuple[Document, ...], promtool: Path, tmp_path: Path
) -> None:
    """Prometheus itself makes of each pod one target with its identity, asked through the translators' Service."""
    found = {each["replica"]: each for each in _scraped(promtool, tmp_path, monitored, "servescope-targets")}

    assert {name: each["__param_target"] for name, each in found.items()} == {
        "chat-7f-x2": "10.1.0.7:8000",
        "graph-worker-0": "10.1.0.8:9090",
        "graph-frontend-0": "10.1.0.9:8000",
    }
    for each in found.values():
        assert each["__address__"] == "servescope-translate.servescope.svc:9905"
        assert each["__metrics_path__"] == "/probe"
        assert each["instance"] == each["__tmp_hash"] == each["__param_target"]
        assert {name for name in each if not name.startswith("__")} <= {
            *IDENTITY_LABELS,
            "job",
            "instance",
            "namespace",
        }
        assert (each["job"], each["namespace"]) == ("servescope-targets", "llm")
        claimed = {name for name in CLAIMED if name in each}
        assert {name: each[f"__param_{name}"] for name in claimed} == {name: each[name] for name in claimed}
    chat = found["chat-7f-x2"]
    assert [chat[name] for name in IDENTITY_LABELS] == [
        "meta-llama/Llama-3.3-70B", "chat", "v1", "production", "stable", "chat-7f-x2", "aggregated",
    ]  # fmt: skip
    assert {name: each.get("__param_behind") for name, each in found.items()} == {
        "chat-7f-x2": None, "graph-worker-0": "frontend", "graph-frontend-0": None,
    }  # fmt: skip
    assert [found[name]["role"] for name in ("graph-worker-0", "graph-frontend-0")] == ["decode", "router"]
    assert found["graph-frontend-0"]["__param_source"] == "dynamo-frontend"


def test_sidecars_are_scraped_in_their_pods(monitored: tuple[Document, ...], promtool: Path, tmp_path: Path) -> None:
    """A pod with a translator of its own is one target at that, which asks for the engine's page at 127.0.0.1."""
    (found,) = _scraped(promtool, tmp_path, monitored, "servescope-sidecars")

    assert found["__address__"] == found["instance"] == "10.1.0.10:9905"
    assert found["__param_target"] == "127.0.0.1:30000"
    assert (found["deployment_id"], found["replica"], found["job"]) == ("code", "code-0", "servescope-targets")


@pytest.mark.parametrize("name", ["victoria-metrics-operator"])
def test_vmagent_and_vmalert_accept_what_their_operator_gets(
    rendered: tuple[Document, ...], monitored: tuple[Document, ...], victoria_metrics: Path, tmp_path: Path
) -> None:
    """VMPodScrapes have the PodMonitors' rules, vmagent reads them as a job's, and vmalert the groups of the VMRule."""
    scrapes = _of_kind(rendered, "VMPodScrape")
    assert scrape_jobs(scrapes, [_CHAT], tmp_path) == scrape_jobs(_of_kind(monitored, "PodMonitor"), [_CHAT], tmp_path)
    assert not [key for each in scrapes for key in each["spec"]["podMetricsEndpoints"][0] if key == "relabelings"]

    (tmp_path / "scrape.json").write_text(
        json.dumps({"scrape_configs": scrape_jobs(scrapes, [_CHAT], tmp_path)}), encoding="utf-8"
    )
    (rules,) = _of_kind(rendered, "VMRule")
    (tmp_path / "rules.json").write_text(json.dumps(rules["spec"]), encoding="utf-8")
    checks = {
        "vmagent": ["-dryRun", "-promscrape.config=scrape.json", "-promscrape.config.strictParse"],
        "vmalert": ["-dryRun", "-rule=rules.json"],
    }
    libraries = [str(path) for path in victoria_metrics.parents[1].glob("lib/*-linux-gnu")]
    for program, arguments in checks.items():
        done = subprocess.run(
            [victoria_metrics.parent / program, *arguments],
            cwd=tmp_path,
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)},
            capture_output=True,
            text=True,
            check=False,
            timeout=deadline_seconds(),
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"


def _tokens(promtool: Path, folder: Path, query: str, series: dict[str, str], expected: float | None) -> dict[str, str]:
    samples = [] if expected is None else [{"labels": "{}", "value": expected}]
    check = {"expr": query, "eval_time": "2m", "exp_samples": samples}
    given = {f'{name}{{deployment_id="chat"}}': text for name, text in series.items()}
    return failures(promtool, folder, {"keda": Suite([unit_test(given, [check])])})


@pytest.mark.parametrize("name", ["keda"])
def test_keda_scales_on_tokens_in_flight(rendered: tuple[Document, ...], promtool: Path, tmp_path: Path) -> None:
    """KEDA gets one number: the autoscaler's, else the estimate by requests in flight, 0 when idle, else nothing."""
    (scaled,) = _of_kind(rendered, "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    estimate = {
        "deployment:concurrent_requests:sum": "8 8 8",
        "deployment:input_tokens_per_request:mean_rate5m": "4000 4000 4000",
        "deployment:output_tokens_per_request:mean_rate5m": "1000 1000 1000",
    }

    recorded = set(re.findall(r"record: (\S+)", (ROOT / "alerts/generated/recording.rules.yml").read_text("utf-8")))
    assert set(re.findall(r"deployment:\w+:\w+", query)) <= recorded
    for series, expected in (
        (estimate, 36_000.0),
        ({**estimate, "deployment:autoscaler_avg_in_flight_tokens:max": "70 80 90"}, 90.0),
        ({"deployment:concurrent_requests:sum": "0 0 0"}, 0.0),
        ({"deployment:concurrent_requests:sum": "3 3 3"}, None),
        ({}, None),
    ):
        assert _tokens(promtool, tmp_path, query, series, expected) == {}
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert scaled["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert scaled["spec"]["minReplicaCount"] >= 1
