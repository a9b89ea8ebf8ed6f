"""Prometheus agents that divide targets, their translators, and the Prometheus they write to: all over loopback."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import yaml

from alerts.alertmanager import RECEIVERS
from servescope.contract import own_metrics
from tests.proofs.live.compression import compress_rules, compress_waited, divided
from tests.proofs.live.receivers import Receivers, listening
from tests.proofs.live.stack import Program, make_alertmanager
from tests.support.documents import read_yaml
from tests.support.prometheus import Prometheus, Range
from tests.support.waiting import deadline_seconds

ROOT: Final = Path(__file__).parent.parent.parent
DEPLOYED: Final = ROOT / "deploy" / "prometheus"
RULES: Final = ROOT / "alerts" / "generated"
TARGETS_JOB, TRANSLATE_JOB = own_metrics.PROBED_JOB, own_metrics.TRANSLATE_JOB
AGENTS: Final = 3
_LOOKBACK = "5m"
# What passes until samples have arrived is the programs' own time, which is not divided.
_OWN_OFFSET = "3s"
# Below those that Linux gives to connections.
_PORTS: Final = (15_000, 32_000)


@dataclass(slots=True)
class PastOneMachine:
    """The running parts; agent number i asks translator number i."""

    folder: Path
    times: int
    translators: Sequence[Program]
    agents: Sequence[Program]
    receiver: Program
    prometheus: Prometheus
    receivers: Receivers

    def firing(self) -> set[tuple[str, str]]:
        """The alerts that fire in the receiver now, with their deployments."""
        alerts = self.prometheus.answer("/api/v1/alerts")["data"]["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("deployment_id", ""))
            for alert in alerts
            if alert["state"] == "firing"
        }

    def notified(self, receiver: str) -> set[tuple[str, str]]:
        """The alerts that a receiver of Alertmanager was notified of so far, with their deployments."""
        return notified(self.receivers, receiver)


def kill(program: Program) -> None:
    """End a program as a machine that fails does, without a chance to finish anything."""
    assert program.process is not None
    program.process.kill()
    program.end()


def unsent_seconds(agent: Program) -> float:
    """How much older the newest sample that an agent has sent is than the newest that it has read."""
    with urlopen(agent.ready_url.replace("/-/ready", "/metrics"), timeout=deadline_seconds()) as answer:
        lines = answer.read().decode().splitlines()
    newest = {
        line.partition("{")[0].partition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("prometheus_remote_storage_") and "timestamp" in line
    }
    return (
        newest["prometheus_remote_storage_highest_timestamp_in_seconds"]
        - newest["prometheus_remote_storage_queue_highest_sent_timestamp_seconds"]
    )


def agent_text(number: int) -> str:
    """The configuration of one of the agents, filled in as its first lines say."""
    text = (DEPLOYED / "agent.yml").read_text(encoding="utf-8")
    return text.replace("AGENTS", str(AGENTS)).replace("NUMBER", str(number))


def notified(receivers: Receivers, receiver: str) -> set[tuple[str, str]]:
    """The alerts that one of the receivers was notified of so far, with their deployments."""
    return {
        (alert["labels"]["alertname"], alert["labels"].get("deployment_id", ""))
        for sent in receivers.sent()
        if sent.receiver == receiver
        for alert in sent.alerts
        if alert["status"] == "firing"
    }


def agent_of(address: str) -> int:
    """The number of the agent that scrapes a target, by Prometheus' `hashmod` of its address."""
    digest = hashlib.md5(address.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "big") % AGENTS


@contextmanager
def past_one_machine(
    folder: Path,
    groups: Sequence[Mapping[str, Any]],
    *,
    prometheus: Path,
    alertmanager: Path,
    receiver: Path | None = None,
    times: int = 1,
    scrape_interval: str = "",
) -> Iterator[PastOneMachine]:
    """Three agents with a translator each, a receiver and an Alertmanager, all ready, for the length of the block.

    `groups` are the targets as `file_sd` lists them. A `scrape_interval`, undivided, may replace that of the files.
    `prometheus` is a Prometheus 2, for the agents and, where no Prometheus 3 is given for it, for the receiver.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "targets").mkdir()
    (folder / "targets" / "all.json").write_text(json.dumps(groups), encoding="utf-8")
    with ExitStack() as started:
        receivers = started.enter_context(listening({name: f"token-of-{name}" for name in RECEIVERS.values()}))
        manager, manager_url = make_alertmanager(folder, times, alertmanager, receivers)
        started.callback(manager.end)
        manager.start()
        translators = [make_translator(folder, number) for number in range(AGENTS)]
        places = {f"agent-{number}:9090": free_address() for number in range(AGENTS)}
        places |= {"receiver:9090": free_address(), "alertmanager:9093": manager_url.removeprefix("http://")}
        setting = _Setting(folder, times, scrape_interval, prometheus, receiver, places)
        receiving = _receiver(setting, [address_of(each) for each in translators])
        agents = [_agent(setting, number, address_of(translator)) for number, translator in enumerate(translators)]
        for program in (*translators, receiving, *agents):
            started.callback(program.end)
            program.start()
        for program in (manager, *translators, receiving, *agents):
            program.wait_until_ready()
        port = int(address_of(receiving).rpartition(":")[2])
        yield PastOneMachine(folder, times, translators, agents, receiving, Prometheus(port), receivers)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the deployed files are changed to: durations, and by the addresses they name those that exist here."""

    folder: Path
    times: int
    scrape_interval: str
    binary: Path
    newer: Path | None
    places: Mapping[str, str]

    def read(self, text: str, **more: str) -> dict[str, Any]:
        """A deployed configuration as it is here."""
        for named, here in {**self.places, **more}.items():
            text = text.replace(named, here)
        document: dict[str, Any] = read_yaml(text)
        interval = divided(self.scrape_interval or document["global"]["scrape_interval"], self.times)
        # A machine that is busy with all of it at once may take as long as there is.
        document["global"] |= {"scrape_interval": interval, "scrape_timeout": interval}
        return document

    def write(self, name: str, document: Mapping[str, Any]) -> Path:
        """The file of a configuration."""
        path = self.folder / f"{name}.yml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return path


def make_translator(folder: Path, number: int) -> Program:
    """A translator that may ask whatever is on loopback."""
    configuration = folder / "translate.toml"
    configuration.write_text('[translate]\ntargets = ["127.0.0.1:1-65535"]\n', encoding="utf-8")
    address = free_address()
    command = [sys.executable, "-m", "servescope.cli", "translate", "--config", str(configuration), "--listen", address]
    return Program(f"translate-{number}", command, folder, f"http://{address}/-/ready")


def _agent(setting: _Setting, number: int, translator: str) -> Program:
    document = setting.read(
        agent_text(number), **{"translate:9905": translator, "/etc/prometheus": str(setting.folder)}
    )
    (write,) = document["remote_write"]
    queue = write["queue_config"]
    queue["batch_send_deadline"] = divided(queue["batch_send_deadline"], setting.times)
    path = setting.write(f"agent-{number}", document)
    options = [
        f"--config.file={path}", "--enable-feature=agent", f"--storage.agent.path={setting.folder / path.stem}"
    ]  # fmt: skip
    return _prometheus(setting, setting.binary, path, setting.places[f"agent-{number}:9090"], options)


def _receiver(setting: _Setting, translators: Sequence[str]) -> Program:
    write_rules(setting.folder / "rules", setting.times)
    text = (DEPLOYED / "receiver.yml").read_text(encoding="utf-8")
    own = setting.places["receiver:9090"]
    document = setting.read(text, **{"localhost:9090": own, "/etc/prometheus": str(setting.folder)})
    document["global"]["evaluation_interval"] = divided(document["global"]["evaluation_interval"], setting.times)
    offset = document["global"].pop("rule_query_offset")
    if setting.newer:
        document["global"]["rule_query_offset"] = _OWN_OFFSET if setting.times > 1 else offset
    for job in document["scrape_configs"]:
        if job["job_name"] == TRANSLATE_JOB:
            job["static_configs"] = [{"targets": list(translators)}]
    path = setting.write("receiver", document)
    options = [_receivers_flag(flag, path, setting.times) for flag in read_flags("receiver")]
    options.append(f"--query.lookback-delta={divided(_LOOKBACK, setting.times)}")
    return _prometheus(setting, setting.newer or setting.binary, path, own, options)


def _receivers_flag(flag: str, path: Path, times: int) -> str:
    key, _, value = flag.partition("=")
    if key in ("--config.file", "--storage.tsdb.path"):
        return f"{key}={path if key == '--config.file' else path.with_suffix('')}"
    return f"{key}={divided(value, times)}" if key.startswith("--rules.alert.") else flag


def read_flags(name: str) -> list[str]:
    """The flags of a file, one a line, in its order."""
    lines = (DEPLOYED / f"{name}.flags").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("-")]


def _prometheus(setting: _Setting, binary: Path, path: Path, address: str, options: Sequence[str]) -> Program:
    command = [
        str(binary), f"--web.listen-address={address}", "--log.level=warn", *options,
    ]  # fmt: skip
    return Program(path.stem, command, setting.folder, f"http://{address}/-/ready")


def write_rules(folder: Path, times: int) -> None:
    """The generated rules in a new folder, with their durations divided."""
    folder.mkdir()
    for path in RULES.glob("*.rules.yml"):
        document = hastened(compress_rules(read_yaml(path.read_text(encoding="utf-8")), times), times)
        (folder / path.name).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def hastened(document: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Rules whose durations are divided, which also wait as much shorter for agents."""
    groups = [
        {**group, "rules": [_hastened_rule(rule, times) for rule in group["rules"]]} for group in document["groups"]
    ]
    return {"groups": groups}


def _hastened_rule(rule: Mapping[str, Any], times: int) -> Mapping[str, Any]:
    is_waiting = rule.get("record") == own_metrics.UNSEEN_SERIES
    return {**rule, "expr": compress_waited(rule["expr"], times)} if is_waiting else rule


def free_address() -> str:
    """An address that nothing listens on; of a port that no connection is given, so that a restart finds it free."""
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"


def address_of(program: Program) -> str:
    """Where it listens, as `HOST:PORT`."""
    return program.ready_url.split("/")[2]


def find_named(ages: Sequence[Range], healthy: Sequence[Range], targets: int, recent_seconds: float) -> list[int]:
    """When fewer targets than there are were up, or had a recent scrape, as it was recorded then."""
    fresh: Counter[int] = Counter()
    up: Counter[int] = Counter()
    for each in ages:
        fresh.update({at: int(age <= recent_seconds) for at, age in zip(each.times, each.values, strict=True)})
    for each in healthy:
        up.update({at: int(value) for at, value in zip(each.times, each.values, strict=True)})
    return sorted(at for at in fresh.keys() | up.keys() if min(fresh[at], up[at]) < targets)
