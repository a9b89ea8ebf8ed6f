"""Manifests as kustomize renders them: read, checked by published schemas, and laid out to run outside a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

from tests.support.waiting import deadline_seconds
from tests.tools import MANIFESTS, kubernetes_schema

Document = dict[str, Any]

APPLIED = ("prometheus-operator", "victoria-metrics-operator", "standalone", "judge", "customers", "keda")
"""What one applies; the component `sidecar` is rendered with the engines of somebody's own."""

# The packages' own validators: they know enums, patterns and formats, and no field that should not be there.
_VALIDATORS = """
import { text } from "node:stream/consumers";
for (const { path, kind, named, document } of JSON.parse(await text(process.stdin))) {
  const model = new (await import(path))[kind](document);
  try { model.validate() } catch (error) { console.log(`${named}: ${error.message}`) }
}
"""


def write_kustomization(folder: Path, resources: Sequence[Document | Path], components: Sequence[Path]) -> Path:
    """A kustomization of somebody's own in a folder: resources of theirs, or folders of ours, and our components."""
    names = []
    for number, each in enumerate(resources):
        if isinstance(each, Path):
            names.append(os.path.relpath(each.resolve(), folder.resolve()))
        else:
            names.append(f"resource-{number}.yaml")
            (folder / names[-1]).write_text(json.dumps(each), encoding="utf-8")
    used = [os.path.relpath(each.resolve(), folder.resolve()) for each in components]
    said = {"kind": "Kustomization", "namespace": "llm", "resources": names, "components": used}
    (folder / "kustomization.yaml").write_text(json.dumps(said), encoding="utf-8")
    return folder


ENGINES: Document = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat", "labels": {"servescope/translate": "sidecar"}},
    "spec": {
        "selector": {"matchLabels": {"app": "chat"}},
        "template": {
            "metadata": {"labels": {"app": "chat", "servescope/deployment-id": "chat", "servescope/engine": "vllm"}},
            "spec": {
                "containers": [{"name": "engine", "image": "vllm/vllm-openai:v0.13.0"}],
                "volumes": [{"name": "model", "emptyDir": {}}],
            },
        },
    },
}
"""Somebody's engines, to which the component `sidecar` adds a translator."""


@cache
def render(kustomize: Path, folder: Path) -> tuple[Document, ...]:
    """What `kustomize build` makes of a folder; raises AssertionError with what it prints."""
    done = subprocess.run(
        [kustomize, "build", folder], capture_output=True, text=True, check=False, timeout=deadline_seconds()
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.load_all(done.stdout, yaml.CSafeLoader))


def named(document: Mapping[str, Any]) -> str:
    """Kind and name."""
    return f"{document['kind']} {document['metadata']['name']}"


def only(documents: Sequence[Document], kind: str, name: str) -> Document:
    """The only one of this kind and name."""
    (found,) = [each for each in documents if named(each) == f"{kind} {name}"]
    return found


def package_of(document: Mapping[str, Any]) -> str | None:
    """The npm package with this document's schema, or None."""
    path = _path(document)
    return next((package for package, paths in MANIFESTS.items() if path in paths), None)


def problems(schemas: Path, documents: Sequence[Document]) -> list[str]:
    """What is wrong with documents that have a schema: unknown fields, missing ones, values of another form."""
    return sorted({*_by_schemas(schemas, documents), *_by_validators(schemas, documents)})


def _path(document: Mapping[str, Any]) -> str:
    return f"{document['apiVersion']}/{document['kind']}"


def _by_schemas(schemas: Path, documents: Sequence[Document]) -> Iterator[str]:
    for document in documents:
        package = package_of(document)
        assert package is not None, f"no schema of {named(document)}"
        for error in _validator(schemas / kubernetes_schema(package)).iter_errors({_path(document): document}):
            yield f"{named(document)}: {error.json_path}: {error.message}"


@cache
def _validator(schema: Path) -> Draft7Validator:
    return Draft7Validator(json.loads(schema.read_text(encoding="utf-8")))


def _by_validators(schemas: Path, documents: Sequence[Document]) -> Iterator[str]:
    models = [
        {
            "path": f"{package_of(each)}/{_path(each)}",
            "kind": each["kind"],
            "named": named(each),
            "document": each,
        }
        for each in documents
    ]
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", _VALIDATORS],
        cwd=schemas,
        input=json.dumps(models),
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline_seconds(),
    )
    assert done.returncode == 0, done.stderr
    yield from done.stdout.splitlines()


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod, its pod, and the manifest that has it."""

    owner: Document
    pod: Document
    said: Document

    def __str__(self) -> str:
        return f"{self.owner['metadata']['name']}/{self.said['name']}"

    @property
    def command(self) -> list[str]:
        """Its arguments, with the variables that Kubernetes puts in."""
        variables = self.environment
        return [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in self.said["args"]]

    @property
    def environment(self) -> dict[str, str]:
        """Its own variables."""
        return {each["name"]: each["value"] for each in self.said.get("env", [])}

    @property
    def ends(self) -> bool:
        """Whether it prepares something for the containers after it, and ends."""
        return self.said in self.pod.get("initContainers", []) and self.said.get("restartPolicy") != "Always"

    def port(self, name: str) -> int:
        """The port of this name."""
        (found,) = [each["containerPort"] for each in self.said["ports"] if each["name"] == name]
        return int(found)

    def health_url(self, probe: str) -> str:
        """The URL that a probe asks inside the pod."""
        asked = self.said[probe]["httpGet"]
        return f"http://127.0.0.1:{self.port(asked['port'])}{asked['path']}"

    def volume(self, name: str) -> Document:
        """The volume of this name."""
        claims: list[Document] = [
            {**each, "name": each["metadata"]["name"]} for each in self.owner["spec"].get("volumeClaimTemplates", [])
        ]
        volumes: list[Document] = [*self.pod.get("volumes", []), *claims]
        (found,) = [each for each in volumes if each["name"] == name]
        return found


def containers(documents: Sequence[Document]) -> list[Container]:
    """Every container of ours in the pods that the documents start, those beside somebody's engines included."""
    found = []
    for document in documents:
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for said in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            if said["name"] != "engine":
                found.append(Container(document, pod, said))
    return found


def lay_out(documents: Sequence[Document], folder: Path, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The containers that do not end as a Compose file has them, with their ConfigMaps and Secrets in a folder.

    A container is the service `OWNER.servescope.svc`, the name by which others reach it in the cluster; of two in one
    pod the second has its own name in front.
    """
    services: dict[str, Any] = {}
    for container in containers(documents):
        if container.ends:
            continue
        name = f"{container.owner['metadata']['name']}.servescope.svc"
        services[f"{container.said['name']}.{name}" if name in services else name] = {
            "command": container.command,
            "volumes": [
                _mount(container, mount, documents, folder, secrets) for mount in container.said["volumeMounts"]
            ],
            "healthcheck": {"test": [container.health_url("livenessProbe")]},
        }
    return services


def _mount(
    container: Container,
    mount: Document,
    documents: Sequence[Document],
    folder: Path,
    secrets: Mapping[str, Mapping[str, str]],
) -> str:
    volume = container.volume(mount["name"])
    target = mount["mountPath"]
    if "configMap" in volume:
        content = only(documents, "ConfigMap", volume["configMap"]["name"])["data"]
    elif "secret" in volume:
        content = secrets[volume["secret"]["secretName"]]
    else:
        shared = mount["name"] if "metadata" in volume else f"{container.said['name']}-{mount['name']}"
        return f"{container.owner['metadata']['name']}-{shared}:{target}"
    place = folder / "mounted" / container.owner["metadata"]["name"] / mount["name"]
    place.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (place / name).write_text(text, encoding="utf-8")
    return f"./{place.relative_to(folder)}:{target}:ro"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector fits."""
    equal = all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
    return equal and all(_holds(each, labels.get(each["key"])) for each in selector.get("matchExpressions", []))


@dataclass(frozen=True, slots=True)
class Peer:
    """What a pod may want to reach: a port of another pod, by its namespace and labels, or of an address."""

    port: int
    protocol: str = "TCP"
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""

    def is_among(self, rule: Document) -> bool:
        """Whether one `egress` rule of a NetworkPolicy admits it."""
        port = {"protocol": self.protocol, "port": self.port}
        return port in rule["ports"] and any(self._is_one_of(each) for each in rule["to"])

    def _is_one_of(self, to: Document) -> bool:
        if "ipBlock" in to:
            networks = [to["ipBlock"]["cidr"], *to["ipBlock"].get("except", [])]
            within = [bool(self.address) and ip_address(self.address) in ip_network(each) for each in networks]
            return within[0] and not any(within[1:])
        namespace = {"kubernetes.io/metadata.name": self.namespace}
        inside = bool(self.namespace) and selects(to["namespaceSelector"], namespace)
        return inside and selects(to.get("podSelector", {}), self.labels)


def may_reach(documents: Sequence[Document], pod: Mapping[str, str], peer: Peer) -> bool:
    """Whether the NetworkPolicies admit what a pod with these labels sends to a peer."""
    policies = [each["spec"] for each in documents if each["kind"] == "NetworkPolicy"]
    rules = [rule for each in policies if selects(each["podSelector"], pod) for rule in each.get("egress", [])]
    return any(peer.is_among(rule) for rule in rules)


def _holds(requirement: Mapping[str, Any], value: str | None) -> bool:
    match requirement["operator"]:
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "In":
            return value in requirement["values"]
        case "NotIn":
            return value not in requirement["values"]
        case unknown:
            raise AssertionError(f"no operator of a selector: {unknown}")


@dataclass(frozen=True, slots=True)
class Pod:
    """A running pod, as a scraper discovers it: an entry for each of its containers' ports, `(name, port)`."""

    name: str
    address: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    ports: Sequence[tuple[str, int]]
    namespace: str = "llm"

    def discovered(self) -> list[Document]:
        """The entries in the format of `file_sd`, with Kubernetes' meta labels."""
        meta = {
            "namespace": self.namespace,
            "pod_name": self.name,
            "pod_phase": "Running",
            "pod_container_name": "engine",
        }
        for kind, values in (("label", self.labels), ("annotation", self.annotations)):
            meta |= {f"pod_{kind}_{_sanitized(name)}": value for name, value in values.items()}
        return [
            {
                "targets": [f"{self.address}:{port}"],
                "labels": {
                    f"__meta_kubernetes_{key}": value
                    for key, value in (
                        meta | {"pod_container_port_name": name, "pod_container_port_number": str(port)}
                    ).items()
                },
            }
            for name, port in self.ports
        ]


def _sanitized(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


# What the operator itself writes in front of a monitor's rules.
_OPERATORS_OWN = (
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
)


def scrape_jobs(monitors: Sequence[Document], pods: Sequence[Pod], folder: Path, seen_at: str = "") -> list[Document]:
    """The jobs that an operator makes of PodMonitors or VMPodScrapes, with these pods in place of Kubernetes'.

    The pods are listed in files in the folder, which the scraper has at `seen_at`.
    """
    jobs = []
    for monitor in monitors:
        name = f"podMonitor/{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"]):
            listed = folder / f"{monitor['metadata']['name']}-{number}.json"
            entries = [
                entry for pod in pods if selects(monitor["spec"]["selector"], pod.labels) for entry in pod.discovered()
            ]
            listed.write_text(json.dumps(entries), encoding="utf-8")
            rules: list[Document] = [*_OPERATORS_OWN, {"target_label": "job", "replacement": name}]
            if "port" in endpoint:
                kept = {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"]}
                rules += [kept | {"action": "keep"}, {"target_label": "endpoint", "replacement": endpoint["port"]}]
            own = endpoint.get("relabelings", endpoint.get("relabelConfigs", []))
            jobs.append(
                {
                    "job_name": f"{name}/{number}",
                    "metrics_path": endpoint["path"],
                    "scrape_interval": endpoint["interval"],
                    "scrape_timeout": endpoint.get("scrapeTimeout", endpoint["interval"]),
                    "honor_labels": endpoint.get("honorLabels", False),
                    "file_sd_configs": [{"files": [f"{seen_at or folder}/{listed.name}"]}],
                    "relabel_configs": rules + [{_snake(key): value for key, value in rule.items()} for rule in own],
                }
            )
    return jobs


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)
