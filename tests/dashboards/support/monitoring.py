"""What watches a stack, running: a collector of emulated deployments, a Prometheus with our rules, an Alertmanager."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from alerts.__main__ import GENERATED as RULES
from tests.support.alertmanager import NOTIFIES_NOBODY, running_alertmanager
from tests.support.otlp_receiver import Receiver
from tests.support.programs import answers, program
from tests.support.prometheus import Prometheus, free_port, running
from tests.support.waiting import wait_for

SCRAPE_INTERVAL: Final = "5s"
# So that not all is well: one target of several cannot be scraped.
FAULT: Final = "target-unreachable@chat-v2/engine-0"
_CUSTOMERS: Final = """
collector = "fixed.toml"

[[customers]]
name = "acme"
metrics = ["engine"]
figures = ["latency"]
labels = ["deployment_id", "replica", "outcome"]
replica_key_file = "acme.key"
resolution = "replica"
interval = "10s"
[customers.quotas]
series = 60
[[customers.deployments]]
deployment_id = "chat-v1"
model_name = "llama-3.3-70b"
inference_stack = "v1"
environment = "production"
[[customers.push]]
protocol = "otlp-http"
url = "{url}"

[[customers]]
name = "globex"
metrics = ["requests_total"]
labels = ["deployment_id", "outcome"]
interval = "10s"
[[customers.deployments]]
deployment_id = "chat-v2"
model_name = "llama-3.3-70b"
inference_stack = "v2"
environment = "production"
[[customers.push]]
protocol = "otlp-http"
url = "http://127.0.0.1:{closed}/v1/metrics"
temporality = "delta"
"""
"""Of two customers the backend of one does not answer."""
_SERVESCOPE: Final = (sys.executable, "-m", "servescope.cli")


@contextmanager
def running_monitoring(prometheus: Path, alertmanager: Path, folder: Path, *options: str) -> Iterator[Prometheus]:
    """The Prometheus, with more command-line options where given; it scrapes the collector, Alertmanager and itself."""
    shutil.copytree(RULES, folder / "prometheus" / "rules", ignore=shutil.ignore_patterns("runbooks"))
    with ExitStack() as started:
        addresses = {
            "servescope": _start_collector(folder, started),
            "servescope-customers": _start_export(folder, started),
            "alertmanager": started.enter_context(running_alertmanager(alertmanager, folder, NOTIFIES_NOBODY)),
        }
        configuration = {
            "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
            "rule_files": ["rules/*.rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [addresses["alertmanager"]]}]}]},
            "scrape_configs": [
                *(
                    {"job_name": job, "static_configs": [{"targets": [address]}]}
                    for job, address in addresses.items()
                ),
                # Its own port is known when it runs.
                {"job_name": "prometheus", "file_sd_configs": [{"files": [str(folder / "itself.json")]}]},
            ],
        }  # fmt: skip
        server = started.enter_context(running(prometheus, folder / "prometheus", configuration, options=options))
        (folder / "itself.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{server.port}"]}]), encoding="utf-8")
        yield server


def _start_collector(folder: Path, started: ExitStack) -> str:
    """The address of a collector over an emulated v1 and v2, a replica of which cannot be scraped."""
    emulated = folder / "emulated"
    command = [*_SERVESCOPE, "emulate", "--directory", str(emulated), "--fault", FAULT]
    log = folder / "emulate.log"
    process = started.enter_context(program(command, log))
    # Written last: then the lists of targets are there.
    wait_for((emulated / "servescope.toml").exists, "the emulator's configuration", process=process, log=log)
    written = (emulated / "servescope.toml").read_text(encoding="utf-8")
    # Whose a deployment is may not be said by lists, if it is exported to a customer.
    fixed = written.replace("[[deployments]]\n", "[[deployments]]\nfixed_labels = true\n")
    fixed = re.sub(r'\[\[deployments\.file_sd\]\]\nfiles = \["(.+?)"\]', partial(_write_targets, emulated), fixed)
    (emulated / "fixed.toml").write_text(fixed, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [*_SERVESCOPE, "collect", "--config", str(emulated / "fixed.toml"), "--listen", address]
    log = folder / "collect.log"
    process = started.enter_context(program(command, log))
    wait_for(lambda: answers(f"http://{address}/-/ready"), "the collector", process=process, log=log)
    return address


def _write_targets(folder: Path, listed: re.Match[str]) -> str:
    """The targets of a list as those of the configuration: at one address, no allow-list tells deployments apart."""
    groups = json.loads((folder / listed[1]).read_text(encoding="utf-8"))
    return "\n".join(
        f'[[deployments.targets]]\nurl = "http://{group["targets"][0]}{group["labels"]["__metrics_path__"]}"\n'
        f'replica = "{group["labels"]["replica"]}"\nrole = "{group["labels"]["role"]}"'
        for group in groups
    )


def _start_export(folder: Path, started: ExitStack) -> str:
    """The address of an export to two customers, from the collector's store."""
    emulated = folder / "emulated"
    receiver = started.enter_context(Receiver())
    text = _CUSTOMERS.replace("{url}", receiver.url).replace("{closed}", str(free_port()))
    (emulated / "customers.toml").write_text(text, encoding="utf-8")
    (emulated / "acme.key").write_text("a" * 40 + "\n", encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        *_SERVESCOPE, "customers", "run", "--config", str(emulated / "customers.toml"),
        "--store", str(emulated / "servescope.db"), "--listen", address, "--pull-listen", f"127.0.0.1:{free_port()}",
    ]  # fmt: skip
    log = folder / "customers.log"
    process = started.enter_context(program(command, log))
    wait_for(lambda: answers(f"http://{address}/healthz"), "the export to customers", process=process, log=log)
    return address
