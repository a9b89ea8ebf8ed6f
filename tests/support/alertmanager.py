"""A real Alertmanager on loopback for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import answers, program
from tests.support.prometheus import free_port
from tests.support.waiting import wait_for

NOTIFIES_NOBODY = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


@contextmanager
def running_alertmanager(binary: Path, folder: Path, configuration: str, *options: str) -> Iterator[str]:
    """The `host:port` of an Alertmanager that is ready; its log is `folder / "alertmanager.log"`."""
    config, log = folder / "alertmanager.yml", folder / "alertmanager.log"
    config.write_text(configuration, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(binary), f"--config.file={config}", f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=warn", *options,
    ]  # fmt: skip
    with program(command, log) as process:
        wait_for(lambda: answers(f"http://{address}/-/ready"), "Alertmanager", process=process, log=log)
        yield address
