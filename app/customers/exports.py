"""The export to customers, as the console was started for it: who is configured, and what was delivered to whom."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal
from urllib.parse import urlsplit

import streamlit as st

from app import selection
from app.selection import TimeRange
from servescope.console import CURSORS_VARIABLE, CUSTOMERS_VARIABLE
from servescope.contract.bounds import LANE_LAG
from servescope.customers.config import read_usable_policies
from servescope.customers.documents.explaining import Explanation, explain_policy
from servescope.customers.documents.statements import LaneStatus, Statement, read_statement, read_statuses
from servescope.customers.lanes.claimed_past import claim_past
from servescope.customers.lanes.cursors import CursorFile, LaneId, lanes_of
from servescope.customers.policy.policy import Policy, Pull, Push
from servescope.errors import ServescopeError
from servescope.store.history import History

State = Literal["late", "behind", "waiting", "unlisted", "current"]
STATES: Final[tuple[State, ...]] = ("late", "behind", "waiting", "unlisted", "current")
"""How a destination is, the worst first."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination, how it is now, and what it received of the range; without a policy it is no longer configured."""

    status: LaneStatus
    statement: Statement
    policy: Policy | None
    to: Push | Pull | None

    @property
    def lane(self) -> LaneId:
        """The customer's name and that of the destination."""
        return self.status.lane

    @property
    def is_failing(self) -> bool:
        """Whether its last problem is newer than all that it accepted."""
        problem = self.status.problem
        return problem is not None and (self.status.boundary_ms is None or problem[0] > self.status.boundary_ms)

    @property
    def state(self) -> State:
        """How it is. Two intervals behind is usual just before a delivery; beyond the alert's bound it is late."""
        if self.policy is None:
            return "unlisted"
        lag = self.status.lag_seconds
        if lag is not None and lag > LANE_LAG.value:
            return "late"
        if lag is None or self.status.boundary_ms is None:
            return "waiting"
        return "behind" if lag > 2 * self.policy.interval_ms / 1000 else "current"

    @property
    def points(self) -> int:
        """How many points were sent of the range."""
        return sum(each.points for each in self.statement.deliveries)

    @property
    def gap_seconds(self) -> float:
        """How much of the range is within gaps; times that two gaps have in common count once."""
        covered_ms, until_ms = 0, self.statement.start_ms
        for gap in self.statement.gaps:
            end_ms = min(gap.end_ms, self.statement.end_ms)
            covered_ms += max(end_ms - max(gap.start_ms, until_ms), 0)
            until_ms = max(until_ms, end_ms)
        return covered_ms / 1000


@dataclass(frozen=True, slots=True)
class Exports:
    """All destinations, the policies by customer, and the customers that were removed with the time of it.

    Those that are `unended` may still be delivered to: the export has not confirmed that it ended their lanes.

    `problems` are what is wrong with the configuration, whose other customers are read all the same; `begun` is whether
    anything was ever delivered.
    """

    destinations: tuple[Destination, ...]
    policies: Mapping[str, Policy]
    removed: Mapping[str, int]
    unended: Collection[str]
    problems: tuple[str, ...]
    begun: bool

    def customers(self) -> list[str]:
        """Everybody who is configured, has a cursor, or was removed."""
        return sorted({*self.policies, *self.removed, *(each.lane.customer for each in self.destinations)})

    def of(self, customer: str) -> list[Destination]:
        """The destinations of a customer."""
        return [each for each in self.destinations if each.lane.customer == customer]


def config_path() -> Path:
    """The configuration of the customers that the console was started for."""
    return Path(os.environ[CUSTOMERS_VARIABLE])


def cursors_path() -> Path:
    """The file with what was delivered to them."""
    return Path(os.environ[CURSORS_VARIABLE])


def read_exports(span: TimeRange) -> Exports:
    """The destinations, those that need somebody first; raises CursorError for a file of cursors that is damaged."""
    policies, problems = _read_policies()
    known = {lane: (policy, to) for policy in policies.values() for lane, to in lanes_of(policy).items()}
    if not cursors_path().exists():
        return Exports((), policies, MappingProxyType({}), (), problems, begun=False)
    with CursorFile(cursors_path()) as cursors:
        removed, unended = cursors.removed(), cursors.unended()
        wanted = [lane for lane in known if lane.customer not in removed]
        lanes = [*wanted, *(lane for lane in cursors.lanes() if lane not in known)]
        found = [
            Destination(
                status, read_statement(cursors, status.lane, span.start_ms, span.end_ms),
                *known.get(status.lane, (None, None)),
            )
            for status in read_statuses(cursors, lanes, selection.now_ms())
        ]  # fmt: skip
    return Exports(tuple(sorted(found, key=_by_need)), policies, removed, unended, problems, begun=True)


def _read_policies() -> tuple[Mapping[str, Policy], tuple[str, ...]]:
    """The policies that can be used, and what is wrong with the others."""
    try:
        policies, problems = read_usable_policies(config_path())
    except ServescopeError as error:
        return {}, (str(error),)
    return {policy.name: policy for policy in policies}, tuple(map(str, problems.values()))


def _by_need(destination: Destination) -> tuple[int, bool, str, str]:
    lane = destination.lane
    return STATES.index(destination.state), not destination.statement.gaps, lane.customer, lane.destination


def count_rows(customer: str) -> int:
    """How many rows the file of cursors has of a customer, apart from that of its removal."""
    with CursorFile(cursors_path()) as cursors:
        return cursors.rows_of(customer)


def address_of(to: Push | Pull | None, customer: str) -> str:
    """Scheme, host and port that are sent to, as path and query may hold a token; or the page that is scraped."""
    if to is None:
        return ""
    if isinstance(to, Pull):
        return f"/customers/{customer}/metrics"
    parts = urlsplit(to.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def explain(store: History, policy: Policy, now_ms: int) -> Explanation:
    """What a customer receives of what was stored last, and what not; raises ServescopeError."""
    spanned = store.time_range()
    newest_ms = now_ms if spanned is None else min(now_ms, spanned[1])
    return _explain_boundary(policy, repr(policy), newest_ms // policy.interval_ms * policy.interval_ms, store)


@st.cache_resource(max_entries=8, show_spinner="Reading what is exported …")
def _explain_boundary(_policy: Policy, policy: str, boundary_ms: int, _store: History) -> Explanation:
    return explain_policy(_policy, claim_past(_store, config_path(), (_policy,)), boundary_ms)
