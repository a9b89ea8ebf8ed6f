"""A scenario: deployments, their traffic and what goes wrong, in one TOML file that is read whole or refused whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from servescope.emulator.deployment_settings import DEPLOYMENT_SETTINGS, DescribedDeployment, parse_deployment
from servescope.emulator.faults import FAULT_SETTINGS, Fault, parse_faults
from servescope.emulator.stack import EmulatedStack
from servescope.emulator.workload.plans import TrafficPlan, parse_traffic
from servescope.errors import ConfigurationError
from servescope.settings.tables import Table, located, read_document

_INTEGERS: Final = 2**63


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario file says: the deployments, the traffic and its split, and the faults with their times."""

    deployments: tuple[DescribedDeployment, ...]
    traffic: TrafficPlan
    faults: tuple[Fault, ...]
    seed: int
    origin: str

    def build(self, *, quiet: bool = False) -> EmulatedStack:
        """The stack at its beginning, its faults not scheduled yet; quiet, it has no traffic of its own.

        Raises ConfigurationError for what cannot be.
        """
        with located(self.origin):
            return EmulatedStack.of(self.deployments, traffic=self.traffic, seed=self.seed, quiet=quiet)


def read_scenario(path: Path) -> Scenario:
    """The scenario in a TOML file; paths in it are relative to the file.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    document = read_document(path, "scenario")
    _check_integers(document, str(path), "")
    return make_scenario(document, origin=str(path), directory=path.resolve().parent)


def make_scenario(document: Mapping[str, object], *, origin: str, directory: Path) -> Scenario:
    """The scenario from a parsed document; `origin` is what errors call it."""
    root = Table(document, origin, "")
    root.check_keys(("seed", "traffic", "deployments", "faults"))
    traffic = document.get("traffic", {})
    if not isinstance(traffic, Mapping):
        raise root.wrong("traffic", "a table [traffic]")
    tables = root.tables("deployments", DEPLOYMENT_SETTINGS)
    if not tables:
        raise ConfigurationError(f"{origin}: no deployments; expected at least one [[deployments]] table")
    scenario = Scenario(
        deployments=tuple(parse_deployment(table, directory=directory) for table in tables),
        traffic=parse_traffic(Table(traffic, origin, "traffic"), folder=directory),
        faults=tuple(parse_faults(root.tables("faults", FAULT_SETTINGS))),
        seed=_seed(root),
        origin=origin,
    )
    _check_faults(scenario)
    return scenario


def _check_integers(value: object, origin: str, place: str) -> None:
    """Refuse whole numbers that TOML does not have; Python reads them, and cannot compute with them as with others."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_integers(each, origin, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _check_integers(each, origin, f"{place}[{number}]")
    elif isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS:
        raise ConfigurationError(f"{origin}: {place}: a number beyond the 64 bits that TOML's whole numbers have")


def _seed(root: Table) -> int:
    value = root.values.get("seed", 1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise root.wrong("seed", "a whole number")
    return value


def _check_faults(scenario: Scenario) -> None:
    """Refuse faults in deployments that there are not; replicas come and go."""
    names = [described.plan.identity.deployment_id for described in scenario.deployments]
    for number, fault in enumerate(scenario.faults):
        if fault.deployment and fault.deployment not in names:
            raise ConfigurationError(
                f"{scenario.origin}: faults[{number}].deployment: unknown deployment {fault.deployment!r}, "
                f"known: {', '.join(names)}"
            )
