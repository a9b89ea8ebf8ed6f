"""vmagents as a cluster, two storage nodes, vmalert and vmauth, with translators and an Alertmanager, over loopback."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.alertmanager import RECEIVERS
from alerts.options import DEFAULTS
from alerts.rules import render_bundle
from dashboards import options as shared
from tests import tools
from tests.proofs.live.compression import compress_rules, divided
from tests.proofs.live.receivers import Receivers, listening
from tests.proofs.live.stack import Program, make_alertmanager
from tests.support.documents import read_yaml
from tests.support.past_one_machine import address_of, free_address, hastened, make_translator, notified
from tests.support.prometheus import Prometheus

ROOT: Final = Path(__file__).parent.parent.parent
DEPLOYED: Final = ROOT / "deploy" / "victoriametrics"
VMAGENTS, STORAGES = 3, 2
FLAG_FILES: Final[Mapping[str, str]] = {
    "vmagent": "vmagent", "storage": "victoria-metrics", "vmalert": "vmalert", "vmauth": "vmauth",
}  # fmt: skip
"""The files of flags by their stems, each with the program that it is for."""

_DIVIDED: Final = (
    "-evaluationInterval", "-rule.resendDelay", "-rule.maxResolveDuration", "-datasource.queryStep",
)  # fmt: skip
# What passes until samples can be queried is the programs' own time, which is not divided.
_OWN_TIME: Final = ("-search.latencyOffset", "-rule.evalDelay")
OWN_SECONDS: Final = 5


@dataclass(slots=True)
class VictoriaCluster:
    """The running parts; vmauth number i is beside vmagent number i. `reader` is what the first answers."""

    folder: Path
    times: int
    translators: Sequence[Program]
    vmagents: Sequence[Program]
    storages: Sequence[Program]
    vmalert: Program
    vmauths: Sequence[Program]
    reader: Prometheus
    receivers: Receivers

    def notified(self, receiver: str) -> set[tuple[str, str]]:
        """The alerts that a receiver of Alertmanager was notified of so far, with their deployments."""
        return notified(self.receivers, receiver)

    def read_first(self, number: int) -> None:
        """Let every vmauth read from this storage node as long as it is up, as before one starts that was away."""
        first = address_of(self.storages[number])
        for vmauth in self.vmauths:
            path = self.folder / vmauth.name / "vmauth.yml"
            document = read_yaml(path.read_text(encoding="utf-8"))
            read = document["unauthorized_user"]["url_map"][-1]
            read["url_prefix"].sort(key=lambda url: not url.endswith(first))
            path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
            vmauth.signal(signal.SIGHUP)


def read_flags(name: str) -> list[str]:
    """The flags of a file, one a line, in its order."""
    lines = (DEPLOYED / f"{name}.flags").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("-")]


def program_of(name: str) -> Path | None:
    """The program that a file of flags is for, or None where it is not available."""
    return tools.victoria_metrics_binary(FLAG_FILES[name])


@contextmanager
def victoria_cluster(
    folder: Path,
    groups: Sequence[Mapping[str, Any]],
    *,
    alertmanager: Path,
    times: int = 1,
    scrape_interval: str = "",
) -> Iterator[VictoriaCluster]:
    """All of it ready, for the length of the block; `groups` are the targets as `file_sd` lists them.

    A `scrape_interval`, undivided, may replace that of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "targets").mkdir()
    (folder / "targets" / "all.json").write_text(json.dumps(groups), encoding="utf-8")
    _write_rules(folder / "rules", times, scrape_interval)
    with ExitStack() as started:
        receivers = started.enter_context(listening({name: f"token-of-{name}" for name in RECEIVERS.values()}))
        manager, manager_url = make_alertmanager(folder, times, alertmanager, receivers)
        started.callback(manager.end)
        manager.start()
        translators = [make_translator(folder, number) for number in range(VMAGENTS)]
        setting = _Setting(folder, times, scrape_interval, _places(translators, manager_url))
        storages = [setting.make_program("storage", number) for number in range(STORAGES)]
        vmagents = [setting.make_program("vmagent", number) for number in range(VMAGENTS)]
        vmauths = [setting.make_program("vmauth", number) for number in range(VMAGENTS)]
        vmalert = setting.make_program("vmalert")
        programs = (*translators, *storages, *vmauths, *vmagents, vmalert)
        for program in programs:
            started.callback(program.end)
            program.start()
        for program in (manager, *programs):
            program.wait_until_ready()
        reader = Prometheus(int(address_of(vmauths[0]).rpartition(":")[2]))
        yield VictoriaCluster(
            folder, times, translators, vmagents, storages, vmalert, vmauths, reader, receivers
        )  # fmt: skip


def _write_rules(folder: Path, times: int, scrape_interval: str) -> None:
    text = (DEPLOYED / "servescope.rules.yml").read_text(encoding="utf-8")
    if scrape_interval:
        text = render_bundle(
            "victoriametrics", replace(DEFAULTS, common=shared.Options(scrape_interval=scrape_interval))
        )
    # The seconds of a window that an increase is divided by.
    text = re.sub(r"(?<=\]\) / )\d+", lambda found: f"{int(found[0]) / times:g}", text)
    folder.mkdir()
    (folder / "servescope.rules.yml").write_text(
        yaml.safe_dump(hastened(compress_rules(read_yaml(text), times), times), sort_keys=False),
        encoding="utf-8",
    )


def _places(translators: Sequence[Program], manager_url: str) -> dict[str, str]:
    """By the address that the files name: where it is here."""
    vmauths = [free_address() for _ in range(VMAGENTS)]
    return {
        **{f"vmagent-{number}:8427": address for number, address in enumerate(vmauths)},
        "vmauth:8427": vmauths[0],
        **{f"vmagent-{number}:9905": address_of(each) for number, each in enumerate(translators)},
        **{f"vmagent-{number}:8429": free_address() for number in range(VMAGENTS)},
        **{f"storage-{number}:8428": free_address() for number in range(STORAGES)},
        "vmalert:8880": free_address(),
        "alertmanager:9093": manager_url.removeprefix("http://"),
    }


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the deployed files are changed to: durations, and by the addresses they name those that exist here."""

    folder: Path
    times: int
    scrape_interval: str
    places: Mapping[str, str]

    def make_program(self, name: str, number: int | None = None) -> Program:
        """A program with the flags of its file and the configuration that they name."""
        called = name if number is None else f"{name}-{number}"
        own = self.folder / called
        own.mkdir()
        (binary, listen) = program_of(name), self._own_address(called)
        assert binary is not None, f"{FLAG_FILES[name]} not found: `python -m tests.tools` prepares it"
        flags = [self._flag(flag, own, listen, number) for flag in read_flags(name)]
        if name == "vmagent":
            self._write_scrapes(own / "scrape.yml")
        if name == "vmauth":
            (own / "vmauth.yml").write_text(self._placed((DEPLOYED / "vmauth.yml").read_text("utf-8")), "utf-8")
        limits = ["-memory.allowedBytes=1GB"] if name in ("storage", "vmagent") else []
        command = [str(binary), *flags, *limits, "-loggerLevel=WARN"]
        return Program(called, command, self.folder, f"http://{listen}/health")

    def _own_address(self, called: str) -> str:
        if called.startswith("vmauth-"):
            return self.places[f"{called.replace('vmauth', 'vmagent')}:8427"]
        ports = {"storage": 8428, "vmagent": 8429, "vmalert": 8880}
        return self.places[f"{called}:{ports[called.partition('-')[0]]}"]

    def _flag(self, flag: str, own: Path, listen: str, number: int | None) -> str:
        key, _, value = flag.partition("=")
        if key == "-httpListenAddr":
            value = listen
        elif key in _OWN_TIME and self.times > 1:
            value = f"{OWN_SECONDS}s"
        elif key == "-dedup.minScrapeInterval":
            value = divided(self.scrape_interval or value, self.times)
        elif key in _DIVIDED:
            value = divided(value, self.times)
        elif key in ("-storageDataPath", "-remoteWrite.tmpDataPath"):
            value = str(own / "data")
        else:
            value = self._placed(value).replace("NUMBER", str(number))
            value = value.replace("/etc/vmalert/rules", str(self.folder / "rules"))
            value = value.replace("/etc/vmagent", str(own)).replace("/etc/vmauth", str(own))
        return f"{key}={value}" if value else key

    def _placed(self, text: str) -> str:
        for named, here in self.places.items():
            text = text.replace(named, here)
        return text

    def _write_scrapes(self, path: Path) -> None:
        text = (DEPLOYED / "scrape.yml").read_text(encoding="utf-8")
        text = text.replace("/etc/vmagent/targets", str(self.folder / "targets"))
        document: dict[str, Any] = read_yaml(self._placed(text))
        interval = divided(self.scrape_interval or document["global"]["scrape_interval"], self.times)
        # A machine that is busy with all of it at once may take as long as there is.
        document["global"] |= {"scrape_interval": interval, "scrape_timeout": interval}
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
