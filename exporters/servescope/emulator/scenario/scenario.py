"""A scenario: deployments, their traffic and what goes wrong, in one TOML file that is read whole or refused whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.faults.faults import FAULT_SETTINGS, Fault, parse_faults
from servescope.emulator.scenario.deployment_settings import DEPLOYMENT_SETTINGS, DescribedDeployment, parse_deployment
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import TrafficPlan, parse_own_mix, parse_traffic
from servescope.errors import ConfigurationError
from servescope.settings.tables import REQUIRED, Setting, Table, located, read_document
from servescope.settings.values import parse_duration

SHARE_SETTINGS: Final = (
    Setting("deployment", REQUIRED),
    Setting("share", REQUIRED),
    Setting("start", REQUIRED),
    Setting("follow", ""),
)
"""The keys of one `[[shares]]` table."""


@dataclass(frozen=True, slots=True)
class ShareChange:
    """A deployment gets this share of conversations from `start_seconds` of the stack's clock on.

    Those under way follow within `follow_seconds`; with None they stay where they began.
    """

    deployment: str
    share: float
    start_seconds: float
    follow_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario file says: deployments, the traffic, its split and when that changes, faults with their times.

    `mixes` are of the deployments whose conversations have a mix of their own.
    """

    deployments: tuple[DescribedDeployment, ...]
    traffic: TrafficPlan
    mixes: Mapping[str, Mix]
    shares: tuple[ShareChange, ...]
    faults: tuple[Fault, ...]
    seed: int
    origin: str

    def reporting_together(self) -> Scenario:
        """The same with engines that report alike steps together: less to do, and another inter-token latency."""
        return replace(
            self,
            deployments=tuple(
                each._replace(plan=replace(each.plan, engine=replace(each.plan.engine, reports_together=True)))
                for each in self.deployments
            ),
        )

    def build(self, *, epoch: float | None = None, quiet: bool = False) -> EmulatedStack:
        """The stack at its beginning, its faults not scheduled yet; quiet, it has no traffic of its own.

        `epoch` is when it begins, in Unix seconds, for a stack that lives in a time of its own. Raises
        ConfigurationError for what cannot be.
        """
        with located(self.origin):
            stack = EmulatedStack.of(
                self.deployments, traffic=self.traffic, mixes=self.mixes, seed=self.seed, epoch=epoch, quiet=quiet
            )
        for each in self.shares:
            change = partial(stack.traffic.split.set_share, each.deployment, each.share, each.follow_seconds)
            stack.clock.schedule_at(each.start_seconds, change)
        return stack


def read_scenario(path: Path) -> Scenario:
    """The scenario in a TOML file; paths in it are relative to the file.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    return make_scenario(read_document(path, "scenario"), origin=str(path), directory=path.resolve().parent)


def make_scenario(document: Mapping[str, object], *, origin: str, directory: Path) -> Scenario:
    """The scenario from a parsed document; `origin` is what errors call it."""
    root = Table(document, origin, "")
    root.check_keys(("seed", "traffic", "deployments", "shares", "faults"))
    tables = root.tables("deployments", DEPLOYMENT_SETTINGS)
    if not tables:
        raise ConfigurationError(f"{origin}: no deployments; expected at least one [[deployments]] table")
    deployments = tuple(parse_deployment(table, directory=directory) for table in tables)
    names = [described.plan.identity.deployment_id for described in deployments]
    traffic = parse_traffic(_traffic_table(root), folder=directory)
    scenario = Scenario(
        deployments=deployments,
        traffic=traffic,
        mixes={
            name: parse_own_mix(_traffic_table(table), traffic)
            for name, table in zip(names, tables, strict=True)
            if "traffic" in table.values
        },
        shares=tuple(_parse_share(table, names) for table in root.tables("shares", SHARE_SETTINGS)),
        faults=tuple(parse_faults(root.tables("faults", FAULT_SETTINGS))),
        seed=_seed(root),
        origin=origin,
    )
    _check_faults(scenario, names)
    return scenario


def _traffic_table(table: Table) -> Table:
    values = table.values.get("traffic", {})
    if not isinstance(values, Mapping):
        raise table.wrong("traffic", f"a table [{table.key('traffic')}]")
    return Table(values, table.origin, table.key("traffic"))


def _parse_share(table: Table, names: Sequence[str]) -> ShareChange:
    deployment, share = table.string("deployment", None), table.values["share"]
    if deployment not in names:
        raise table.wrong("deployment", f"one of {', '.join(names)}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise table.wrong("share", "a number from 0 to 1")
    if len(names) == 1 and share != 1:
        raise table.wrong("share", "1: there is no other deployment")
    return ShareChange(
        deployment,
        float(share),
        table.parsed("start", parse_duration, 0, "a duration such as '0s', '90m', '2d'") / 1000,
        table.duration("follow", 1) / 1000 if "follow" in table.values else None,
    )


def _seed(root: Table) -> int:
    value = root.values.get("seed", 1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise root.wrong("seed", "a whole number")
    return value


def _check_faults(scenario: Scenario, names: Sequence[str]) -> None:
    """Refuse faults in deployments that there are not; replicas come and go."""
    for number, fault in enumerate(scenario.faults):
        if fault.deployment and fault.deployment not in names:
            raise ConfigurationError(
                f"{scenario.origin}: faults[{number}].deployment: unknown deployment {fault.deployment!r}, "
                f"known: {', '.join(names)}"
            )
