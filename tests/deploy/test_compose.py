"""What the Compose file says, by itself and beside the files it mounts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft201909Validator

from alerts.__main__ import render_deployed
from alerts.alertmanager import configuration
from servescope.customers.config import read_policies
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.server.server import format_configuration
from tests.conftest import ROOT
from tests.deploy.support.compose import Service, read_compose
from tests.support.promtool import run

COMPOSITION = read_compose(ROOT / "docker-compose.yml")
SERVICES = COMPOSITION.services
EVERY_SERVICE = pytest.mark.parametrize("service", SERVICES.values(), ids=str)

_GRAFANA = ROOT / "deploy" / "grafana" / "provisioning"
# https://grafana.com/docs/grafana/latest/administration/provisioning/
_DATASOURCE_KEYS = {"name", "uid", "type", "access", "orgId", "url", "isDefault", "editable", "jsonData", "version"}
_PROVIDER_KEYS = {
    "name", "orgId", "folder", "folderUid", "type", "disableDeletion", "allowUiUpdates", "updateIntervalSeconds",
    "options",
}  # fmt: skip


def test_file_keeps_to_the_compose_specification(compose_schema: Path) -> None:
    """The file is valid against the schema of the Compose specification."""
    schema = json.loads(compose_schema.read_text(encoding="utf-8"))
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))

    Draft201909Validator(schema).validate(document)


def test_every_service_that_is_promised_is_there() -> None:
    """Collector, console, emulated stacks, Prometheus, Alertmanager, Grafana, the export and a customer's backend."""
    assert set(SERVICES) == {
        "stacks", "collector", "console", "prometheus", "alertmanager", "grafana", "customers", "backend",
    }  # fmt: skip


@EVERY_SERVICE
def test_service_is_held_tight(service: Service) -> None:
    """No root, no capability, nothing writable but volumes and /tmp, bounded memory and processes, a health check."""
    said = service.said

    assert re.fullmatch(r"[1-9]\d*:\d+", said["user"])
    assert said["read_only"] is True
    assert said["cap_drop"] == ["ALL"]
    assert said["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "pids_limit", "healthcheck", "restart", "logging"} <= set(said)
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices"} & set(said)


@EVERY_SERVICE
def test_service_is_reached_from_its_own_machine_alone(service: Service) -> None:
    """Each published port is on 127.0.0.1, and is the one its health check asks, or one that it exposes."""
    ports = service.said.get("expose", [str(service.port)])
    for published in service.said.get("ports", []):
        assert re.fullmatch(rf"127\.0\.0\.1:\d+:({'|'.join(ports)})", published)


@EVERY_SERVICE
def test_image_is_pinned(service: Service) -> None:
    """Each image names a full version."""
    assert re.search(r":v?\d+\.\d+\.\d+$", service.said["image"])


def test_base_image_is_pinned() -> None:
    """So do the images that ours is made from, and they are the same one."""
    bases = set(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))

    assert len(bases) == 1
    assert re.search(r":\d+\.\d+\.\d+-", bases.pop())


def test_own_image_is_of_this_version() -> None:
    """Our own image bears the version of the package, and the Dockerfile's user is the one the services run as."""
    from servescope import __version__

    ours = [service for service in SERVICES.values() if "build" in service.said]
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    assert {service.said["image"] for service in ours} == {f"servescope:{__version__}"}
    assert {service.said["user"] for service in ours} == set(re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE))


@EVERY_SERVICE
def test_every_mounted_file_exists(service: Service) -> None:
    """What a service mounts from the checkout is there, is more than an empty folder, and is mounted read-only."""
    for mount in service.mounts:
        if not mount.is_volume:
            source = ROOT / mount.source
            assert source.is_file() or any(source.iterdir()), f"{mount.source} is not there"
            assert mount.read_only


def test_volumes_and_networks_are_declared_and_used() -> None:
    """Every volume and network that a service names is declared, and none is declared for nothing."""
    named = {mount.source for service in SERVICES.values() for mount in service.mounts if mount.is_volume}
    joined = {network for service in SERVICES.values() for network in service.said["networks"]}

    assert named == set(COMPOSITION.said["volumes"])
    assert joined == set(COMPOSITION.said["networks"])


@EVERY_SERVICE
def test_services_that_talk_share_a_network(service: Service) -> None:
    """Every service that another one's command or files name by host and port can be reached by it."""
    for other in COMPOSITION.named_by(service):
        assert set(service.said["networks"]) & set(other.said["networks"]), f"{service} cannot reach {other}"


def test_collector_reaches_the_targets_by_the_name_in_their_lists() -> None:
    """The emulator advertises its own service's name, and whoever mounts its lists is on a network with it."""
    stacks = SERVICES["stacks"]
    command = stacks.said["command"]
    (lists,) = [mount.source for mount in stacks.mounts]
    readers = [service for service in SERVICES.values() if lists in {mount.source for mount in service.mounts}]

    assert command[command.index("--advertise") + 1] == "stacks"
    assert all(set(reader.said["networks"]) & set(stacks.said["networks"]) for reader in readers)
    assert SERVICES["collector"] in readers


def test_emulated_deployments_are_those_collected() -> None:
    """The collector's configuration names the deployments that the emulator runs, with its labels and its lists."""
    import tomllib

    emulated = tomllib.loads(format_configuration(EmulatedStack().deployments))["deployments"]
    collected = tomllib.loads((ROOT / "deploy" / "servescope.toml").read_text(encoding="utf-8"))["deployments"]
    folder = "/var/lib/emulated/"
    for deployment in emulated:
        deployment["fixed_labels"] = True
        deployment["claims"] = {"targets": ["stacks:*"]}
        deployment["file_sd"] = [{"files": [folder + name for name in deployment["file_sd"][0]["files"]]}]

    assert collected == emulated


def test_grafanas_datasource_is_the_prometheus_service() -> None:
    """Grafana's datasource has the form that Grafana documents, and leads to the port Prometheus listens on."""
    document = _provisioned("datasources")
    (datasource,) = document["datasources"]

    assert set(datasource) <= _DATASOURCE_KEYS
    assert (datasource["type"], datasource["access"]) == ("prometheus", "proxy")
    assert datasource["url"] == f"http://prometheus:{SERVICES['prometheus'].port}"


def test_grafanas_dashboards_come_from_a_folder_that_is_mounted() -> None:
    """The provider has the form that Grafana documents, and its path is one of Grafana's mounts."""
    document = _provisioned("dashboards")
    (provider,) = document["providers"]

    assert set(provider) <= _PROVIDER_KEYS
    assert provider["type"] == "file"
    (source,) = [mount.source for mount in SERVICES["grafana"].mounts if mount.target == provider["options"]["path"]]
    assert list((ROOT / source).glob("*.json"))


def test_customers_backend_is_the_collector_of_opentelemetry() -> None:
    """The customer's destination is where the backend receives OTLP over HTTP, and its deployments are collected."""
    (policy,) = read_policies(ROOT / "deploy" / "customers.toml")
    (push,) = policy.push
    backend = SERVICES["backend"]
    (mount,) = backend.mounts
    document = yaml.safe_load((ROOT / mount.source).read_text(encoding="utf-8"))

    assert backend.said["command"] == [f"--config={mount.target}"]
    endpoint = document["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert (push.protocol, push.url) == ("otlp-http", f"http://backend:{endpoint.rpartition(':')[2]}/v1/metrics")
    exposed = [endpoint, document["exporters"]["prometheus"]["endpoint"]]
    assert [each.rpartition(":")[2] for each in exposed] == backend.said["expose"]
    # Each component that a pipeline names is there, and none is there for nothing.
    (pipeline,) = document["service"]["pipelines"].values()
    for kind in ("receivers", "exporters"):
        assert set(pipeline[kind]) == set(document[kind])


def _provisioned(kind: str) -> Any:
    """The only file that Grafana finds in its folder of this kind."""
    (path,) = (_GRAFANA / kind).iterdir()
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["apiVersion"] == 1
    assert set(document) == {"apiVersion", {"dashboards": "providers"}.get(kind, kind)}
    return document


@pytest.mark.slow
def test_prometheus_accepts_its_configuration(promtool: Path, tmp_path: Path) -> None:
    """`promtool check config` finds the configuration, the rules it names and their expressions right."""
    outside = COMPOSITION.outside(tmp_path)
    path = outside.path_of(SERVICES["prometheus"], "/etc/prometheus/prometheus.yml")
    done = run(promtool, ["check", "config", path], tmp_path)

    assert done.returncode == 0, done.stdout
    assert re.search(r"SUCCESS: [1-9]\d* rule files found", done.stdout)


@pytest.mark.slow
def test_alertmanager_accepts_its_configuration(amtool: Path, tmp_path: Path) -> None:
    """`amtool check-config` finds the configuration right, and the templates it names."""
    outside = COMPOSITION.outside(tmp_path)
    path = outside.path_of(SERVICES["alertmanager"], "/etc/alertmanager/alertmanager.yml")
    done = run(amtool, ["check-config", path], tmp_path)

    assert done.returncode == 0, done.stdout
    assert "1 templates" in done.stdout


def test_alertmanager_has_the_generated_routes_and_needs_no_secret() -> None:
    """The file is what `python -m alerts` makes of deploy/alerts.toml; it routes as ours does, and notifies nobody."""
    text = (ROOT / "deploy" / "alertmanager.yml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    ours = configuration()

    assert text == render_deployed()
    assert {key: document[key] for key in ("route", "inhibit_rules")} == {
        key: ours[key] for key in ("route", "inhibit_rules")
    }
    assert document["receivers"] == [{"name": each["name"]} for each in ours["receivers"]]
    assert "_file" not in text
