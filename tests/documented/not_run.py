"""The commands that no test runs, by the reason: each of them by name, or by how it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.documented.pages import Command

NOT_RUN: Final[Mapping[str, tuple[str, ...]]] = {
    "needs Docker; tests/deploy checks the files": ("docker ",),
    "needs a cluster, or changes manifests for one; tests/deploy checks them": (
        "kubectl ", "kustomize ", "(cd deploy/kubernetes/",
    ),
    "needs root and systemd; tests/deploy checks the units": (
        "useradd ", "python3 -m venv /opt/", "/opt/servescope/", "cp deploy/systemd/", "systemctl ",
    ),
    "needs real engines, which take gigabytes and minutes to install": (
        "make real", "make capture", "python -m tests.proofs.real",
        "SERVESCOPE_DEPLOYMENT_ID=chat-v2 SERVESCOPE_PORT=9101 vllm ",
    ),
    "needs a program that is on no test machine: mimirtool, Thanos": ("mimirtool ", "thanos "),
    "starts agents and databases of several machines; tests/deploy starts each with its flags": (
        "for number in ", "prometheus --agent ", "prometheus $(", "victoria-metrics ", "vmauth ", "vmalert ",
    ),
    "needs a collector with TLS and a token on another machine; tests/collector asks one": (
        'curl -s -H "Authorization: Bearer $(cat token)" https://collector',
    ),
    "is the whole of a test run, of a measurement or of an installation, of minutes to hours": (
        "make demo", "make test", "make check", "make generate", "make live", "python -m tests.proofs.live",
        "python -m tests.tools", "pytest ", "python -m tests.kills", "python -m tests.support.busy",
        "python -m benchmarks",
    ),
}  # fmt: skip


def why_not(command: Command) -> str | None:
    """Why a command is not run; None where it is."""
    text = command.text.removeprefix(".venv/bin/")
    return next((reason for reason, starts in NOT_RUN.items() if text.startswith(starts)), None)


def starts_without_a_command(commands: list[Command]) -> list[str]:
    """What is listed and begins no command of the pages any more."""
    texts = [command.text.removeprefix(".venv/bin/") for command in commands]
    listed = [start for starts in NOT_RUN.values() for start in starts]
    return [start for start in listed if not any(text.startswith(start) for text in texts)]
