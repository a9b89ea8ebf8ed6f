"""The two systems of `deploy/` with many targets, and the parts of each that are killed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from servescope.contract.own_metrics import AGENTS_JOB, TRANSLATE_JOB
from servescope.errors import UsageError
from tests import tools
from tests.proofs.live.receivers import Receivers
from tests.proofs.live.stack import Program
from tests.support.past_one_machine import past_one_machine, unsent_seconds
from tests.support.prometheus import Prometheus
from tests.support.victoria_cluster import FLAG_FILES, program_of, victoria_cluster
from tests.support.waiting import wait_for

WAIT_SECONDS: Final = 900.0
"""At most so long, at usual speed, until what has to happen has happened."""
Groups = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Scale:
    """So many targets in deployments of `replicas`, each scraped every so many seconds of the clock.

    Durations of files and rules are divided by `times`.
    """

    targets: int
    replicas: int
    interval_seconds: int
    times: int

    @property
    def window_seconds(self) -> float:
        """The five minutes of the rules."""
        return 300 / self.times

    @property
    def evaluation_seconds(self) -> float:
        """Between evaluations of the rules: a mark may be so much newer than what another group records."""
        return 15 / self.times

    @property
    def scrape_interval(self) -> str:
        """Between scrapes, as it would be written in the files."""
        return f"{self.interval_seconds * self.times}s"


class _System(Protocol):
    receivers: Receivers

    def notified(self, receiver: str) -> set[tuple[str, str]]:
        """The alerts that a receiver of Alertmanager was notified of so far, with their deployments."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is killed: what waits until that is seen, and brings it back.

    While one that `evaluates` is dead no alert fires. One that `blinds` leaves so few targets seen that it pages.
    """

    name: str
    program: Program
    wait_until_seen: Callable[[], object]
    bring_back: Callable[[], None]
    evaluates: bool = False
    blinds: bool = False


@dataclass(slots=True)
class Running:
    """One of the systems with its targets: what answers queries, and its parts."""

    system: _System
    reader: Prometheus
    parts: Sequence[Part] = ()

    def values(self, expression: str) -> list[float]:
        """What an expression is now."""
        return [point.value for point in self.reader.query(expression, at_ms=now_ms())]

    def wait_for(self, expression: str, what: str) -> None:
        """Wait until an expression has a result."""
        wait_for(lambda: self.values(expression), what, seconds=WAIT_SECONDS)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return round(time.time() * 1000)


@contextmanager
def agents(groups: Groups, folder: Path, scale: Scale) -> Iterator[Running]:
    """Prometheus agents with a translator each, and the receiver they write to."""
    with past_one_machine(
        folder,
        groups,
        prometheus=_needed(tools.prometheus_binary(), "prometheus"),
        receiver=_needed(tools.prometheus_3_binary(), "prometheus 3"),
        alertmanager=_needed(tools.alertmanager_binary(), "alertmanager"),
        times=scale.times,
        scrape_interval=scale.scrape_interval,
    ) as system:
        running = Running(system, system.prometheus)

        def is_waited_for() -> bool:
            return min(map(unsent_seconds, system.agents)) > 2 * scale.interval_seconds

        agent, translator, receiver = system.agents[1], system.translators[2], system.receiver
        running.parts = [
            Part("agent", agent, _fires(running, "ServescopeAgentDown"), _starter(agent), blinds=True),
            Part(
                "translator", translator, _fires(running, "ServescopeTranslatorDown"), _starter(translator), blinds=True
            ),
            Part(
                "receiver",
                receiver,
                lambda: wait_for(is_waited_for, "samples that wait in the agents", seconds=WAIT_SECONDS),
                _starter(receiver),
                evaluates=True,
            ),
        ]
        yield running


@contextmanager
def victoria(groups: Groups, folder: Path, scale: Scale) -> Iterator[Running]:
    """vmagents with a translator and a vmauth each, two storage nodes and vmalert."""
    for name in FLAG_FILES:
        _needed(program_of(name), FLAG_FILES[name])
    with victoria_cluster(
        folder,
        groups,
        alertmanager=_needed(tools.alertmanager_binary(), "alertmanager"),
        times=scale.times,
        scrape_interval=scale.scrape_interval,
    ) as system:
        running = Running(system, system.reader)
        vmagent, translator, storage = system.vmagents[0], system.translators[1], system.storages[0]

        def start_storage() -> None:
            system.read_first(1)
            _starter(storage)()

        running.parts = [
            Part("vmagent", vmagent, _is_down(running, AGENTS_JOB), _starter(vmagent)),
            Part("translator", translator, _is_down(running, TRANSLATE_JOB), _starter(translator)),
            Part("storage node", storage, _is_down(running, "victoria-metrics"), start_storage),
        ]
        yield running


SYSTEMS: Final = {"agents": agents, "victoria": victoria}


def _needed(binary: Path | None, name: str) -> Path:
    if binary is None:
        raise UsageError(f"{name} not found: `python -m tests.tools` prepares it or says why it is not available")
    return binary


def _fires(running: Running, alert: str) -> Callable[[], None]:
    return lambda: running.wait_for(f'ALERTS{{alertname="{alert}",alertstate="firing"}}', alert)


def _is_down(running: Running, job: str) -> Callable[[], None]:
    return lambda: running.wait_for(f'up{{job="{job}"}} == 0', f"a dead one of {job}")


def _starter(program: Program) -> Callable[[], None]:
    def start() -> None:
        program.start()
        program.wait_until_ready()

    return start
