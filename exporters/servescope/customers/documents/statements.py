"""What was delivered: the state of each destination, a statement for a span, and the proof of an offboarding."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from servescope.customers.lanes.cursors import CursorFile, Delivery, Gap, LaneId
from servescope.errors import ServescopeError
from servescope.settings.values import format_instant

_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """How one destination is, and its last problem.

    `begun_ms` is when it began, None for one that has not; `edge_ms` was acknowledged last, None before the first. It
    lags by the time since the later of the two, and where that `is_ahead` of the clock by how far.
    """

    lane: LaneId
    boundary_ms: int | None
    lag_seconds: float | None
    gaps: int
    problem: tuple[int, str] | None
    begun_ms: int | None = None
    is_ahead: bool = False

    def describe_lag(self, seconds: str) -> str:
        """How far behind it is, or ahead, of so many seconds as text; empty before it began."""
        return "" if self.lag_seconds is None else f"{seconds} {'ahead of the clock' if self.is_ahead else 'behind'}"

    def to_json(self) -> dict[str, Any]:
        """As JSON; times as text."""
        return {
            "customer": self.lane.customer,
            "destination": self.lane.destination,
            "begun": None if self.begun_ms is None else format_instant(self.begun_ms),
            "acknowledged": None if self.boundary_ms is None else format_instant(self.boundary_ms),
            "lag_seconds": self.lag_seconds,
            "gaps": self.gaps,
            "problem": None
            if self.problem is None
            else {"at": format_instant(self.problem[0]), "text": self.problem[1]},
        }


def read_statuses(cursors: CursorFile, lanes: Iterable[LaneId], now_ms: int) -> list[LaneStatus]:
    """The status of lanes, of those that have not begun as well."""
    found = []
    for lane in lanes:
        begun_ms, boundary_ms = cursors.begun_ms(lane), cursors.boundary_ms(lane)
        reached_ms = begun_ms if boundary_ms is None else boundary_ms
        lag = None if reached_ms is None else abs(now_ms - reached_ms) / 1000
        is_ahead = reached_ms is not None and reached_ms > now_ms
        gaps, problem = len(cursors.gaps(lane)), cursors.problem(lane)
        found.append(LaneStatus(lane, boundary_ms, lag, gaps, problem, begun_ms, is_ahead))
    return found


def describe_statuses(statuses: Iterable[LaneStatus]) -> str:
    """A line for each destination, and below it the last problem."""
    lines = []
    for each in statuses:
        name = f"{each.lane.customer}  {each.lane.destination}"
        reached = (
            f"until {format_instant(each.boundary_ms)}" if each.boundary_ms is not None else "nothing delivered yet"
        )
        gaps = f"{each.gaps} gap{'s' if each.gaps != 1 else ''}" if each.gaps else ""
        how = (reached, each.describe_lag(f"{each.lag_seconds or 0:.0f} s"), gaps)
        lines.append(f"{name}  {', '.join(part for part in how if part)}")
        if each.problem is not None:
            lines.append(f"    {format_instant(each.problem[0])}: {each.problem[1]}")
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Statement:
    """What a destination received of a span: by the hour, and which times are missing.

    Of what is after `reached_ms` nothing has been delivered yet; it is None for a destination that has not begun.
    """

    lane: LaneId
    start_ms: int
    end_ms: int
    deliveries: tuple[Delivery, ...]
    gaps: tuple[Gap, ...]
    reached_ms: int | None = None

    @property
    def waiting_from_ms(self) -> int | None:
        """From when on of the span is still to be delivered; None when all is."""
        if self.reached_ms is None or self.reached_ms >= self.end_ms:
            return None
        return max(self.reached_ms, self.start_ms)

    def to_json(self) -> dict[str, Any]:
        """As JSON; times as text."""
        return {
            "customer": self.lane.customer,
            "destination": self.lane.destination,
            "from": format_instant(self.start_ms),
            "to": format_instant(self.end_ms),
            "points": sum(each.points for each in self.deliveries),
            "rejected": sum(each.rejected for each in self.deliveries),
            "requests": sum(each.requests for each in self.deliveries),
            "hours": [
                {
                    "from": format_instant(each.first_ms),
                    "to": format_instant(each.last_ms),
                    "edges": each.boundaries,
                    "points": each.points,
                    "rejected": each.rejected,
                    "requests": each.requests,
                }
                for each in self.deliveries
            ],
            "gaps": [
                {
                    "from": format_instant(gap.start_ms),
                    "to": format_instant(gap.end_ms),
                    "reason": gap.reason,
                    "points": gap.points,
                }
                for gap in self.gaps
            ],
            "waiting_from": None if self.waiting_from_ms is None else format_instant(self.waiting_from_ms),
        }


def read_statement(cursors: CursorFile, lane: LaneId, start_ms: int, end_ms: int) -> Statement:
    """The statement of a lane for a span."""
    return Statement(
        lane,
        start_ms,
        end_ms,
        tuple(cursors.deliveries(lane, start_ms, end_ms)),
        tuple(cursors.gaps(lane, start_ms, end_ms)),
        cursors.boundary_ms(lane) or cursors.begun_ms(lane),
    )


def describe_statement(statement: Statement) -> str:
    """The statement as text."""
    points = sum(each.points for each in statement.deliveries)
    rejected = sum(each.rejected for each in statement.deliveries)
    requests = sum(each.requests for each in statement.deliveries)
    span = f"{format_instant(statement.start_ms)} to {format_instant(statement.end_ms)}"
    lines = [
        f"{statement.lane.customer}  {statement.lane.destination}  {span}",
        f"  {points:,} points in {requests:,} requests, {rejected:,} of them rejected",
    ]
    lines += [
        f"  {format_instant(each.first_ms)} to {format_instant(each.last_ms)}: {each.boundaries:,} intervals, "
        f"{each.points:,} points"
        for each in statement.deliveries
    ]
    lines += [
        f"  missing: {format_instant(gap.start_ms)} to {format_instant(gap.end_ms)} ({gap.reason}"
        f"{f', {gap.points:,} points' if gap.points else ''})"
        for gap in statement.gaps
    ] or ["  nothing is missing"]
    if statement.waiting_from_ms is not None:
        lines.append(
            f"  not delivered yet: {format_instant(statement.waiting_from_ms)} to {format_instant(statement.end_ms)}"
        )
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Removal:
    """What was deleted of a customer, as it was found afterwards."""

    customer: str
    rows: int
    left: int
    keys: tuple[Path, ...]

    def describe(self) -> str:
        """The proof: what was there, and that it is not any more."""
        lines = [
            f"customer {self.customer}: nothing is sent any more; {self.rows} rows of cursors, deliveries, gaps and "
            f"problems deleted and overwritten, {self.left} left"
        ]
        lines += [f"key {path}: overwritten and deleted" for path in self.keys]
        return "".join(f"{line}\n" for line in lines)


def remove_customer(
    cursors: CursorFile, customer: str, keys: Iterable[Path], now_ms: int, *, patience_seconds: float = 30.0
) -> Removal:
    """Forget a customer, wait until nothing is sent to it any more, and delete its keys.

    Raises ServescopeError when anything of it is left, or when an export that runs does not confirm that it ended.
    """
    rows = cursors.remove(customer, now_ms)
    _await_end(cursors, customer, patience_seconds)
    deleted = tuple(path for path in keys if _delete_key(path))
    left = cursors.rows_of(customer)
    if left or any(path.exists() for path in deleted):
        raise ServescopeError(f"customer {customer!r}: {left} rows are left in {cursors.path}; remove it again")
    return Removal(customer, rows, left, deleted)


def _await_end(cursors: CursorFile, customer: str, patience_seconds: float) -> None:
    """Wait for the process that delivers; where there is none, none will begin to deliver to this customer."""
    deadline = time.monotonic() + patience_seconds
    while cursors.is_delivering():
        if customer not in cursors.unended():
            return
        if time.monotonic() > deadline:
            raise ServescopeError(
                f"customer {customer!r}: its cursors are deleted, but `servescope customers run` has not confirmed "
                f"within {patience_seconds:g} s that it sends nothing more: end it, then remove the customer again"
            )
        time.sleep(_LOOK_SECONDS)
    cursors.set_ended(customer)


def _delete_key(path: Path) -> bool:
    """Overwrite and delete a file; False when there is none."""
    try:
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.write(b"\0" * size)
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ServescopeError(f"key {path}: cannot be deleted: {error.strerror}; the rest is removed") from error
    return True
