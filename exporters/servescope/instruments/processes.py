"""Several processes of one engine as one page: data-parallel ranks, API servers, pre-forked workers.

    engine = EngineInstruments(identity)
    group = ProcessGroup("chat-v2-engine-0", engine)     # in every process
    serve(group, port=9100)                              # in those that are scraped

One process of the group keeps the others' states; when it dies, another replaces it. They meet at an abstract Unix
socket, which leaves nothing behind. `docs/processes.md` and ADR 4 give the reasons for this design.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import time

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, format_series, format_value
from servescope.contract.types import Metric
from servescope.errors import ServescopeError, UsageError
from servescope.instruments.aggregation import GROUP_STATE_AGE, Families
from servescope.instruments.instrument import Exposed, Instruments
from servescope.instruments.ledger import Exemplars
from servescope.instruments.member import Member, Membership
from servescope.instruments.values import require_positive
from servescope.settings.closing import Closing

__all__ = ["ProcessGroup"]

_logger = logging.getLogger("servescope")

# It takes milliseconds: this is for a machine that does not run the thread.
_JOIN_SECONDS = 10.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class ProcessGroup(Exposed, Closing):
    """The processes of one group, added up; any of them can be read, and shows all.

    `name` identifies the group on this machine (or in this pod): 1 to 64 letters, digits, `.`, `_`, `-`. `instruments`
    are this process's; all of a group are of one deployment. With the role `member` a process never keeps the others'
    states; with `auto` the first one does. States are sent every `interval_seconds`: a killed process loses what it
    recorded since the last time. A reading asks every process and waits for `wait_seconds` at most; then it uses the
    last known state, and shows its age.

    Any thread may read; recording is not slowed. A forked child joins by itself. A process stays in the group until it
    closes it or ends. The constructor raises UsageError, and ServescopeError outside Linux, which alone has abstract
    sockets; a reading raises ServescopeError when nothing is known of the group yet.
    """

    def __init__(
        self,
        name: str,
        *instruments: Instruments,
        role: str = "auto",
        interval_seconds: float = 1.0,
        wait_seconds: float = 0.25,
    ) -> None:
        if sys.platform != "linux":
            raise ServescopeError("a process group needs Linux: elsewhere give each process a replica label of its own")
        if not _NAME.fullmatch(str(name)):
            raise UsageError(f"group name is {name!r}, expected 1 to 64 letters, digits, '.', '_' or '-'")
        if role not in ("auto", "member"):
            raise UsageError(f"unknown role {role!r}, supported: auto, member")
        self.name = name
        self._instruments = _require_instruments(instruments)
        self._membership = Membership(
            name,
            role,
            require_positive("interval_seconds", interval_seconds),
            require_positive("wait_seconds", wait_seconds),
        )
        self._last: tuple[float, Families] | None = None
        for one in instruments:
            one._added_up = True
        _groups.add(self)
        self._start()
        # So that the first process keeps the states, and not a child that it forks at once; a member may be the first.
        self._member.joined.wait(_JOIN_SECONDS if role == "auto" else wait_seconds)

    def identities(self) -> tuple[Identity, ...]:
        """The identities of this process's instruments."""
        return tuple(one.identity for one in self._instruments)

    def samples(self) -> list[Sample]:
        """Every sample of the group, with everything that living processes have observed before."""
        return [sample for _, samples in self.families() for sample in samples]

    def families(self) -> Families:
        """The group's samples by metric. Raises ServescopeError when nothing is known of the group yet."""
        families = self._member.read(2 * self._membership.wait_seconds)
        if families is not None:
            self._last = time.monotonic(), families
            return families
        if self._last is None:
            reason = self._member.refused or "no process of it answered in time"
            raise ServescopeError(f"process group {self.name!r} cannot be read: {reason}")
        read_at, families = self._last
        return _aged(families, time.monotonic() - read_at)

    def text(self) -> list[tuple[Metric, list[bytes]]]:
        """The lines of the group's exposition by metric. Raises ServescopeError as `families` does."""
        return [(metric, ["".join(map(_line, samples)).encode()]) for metric, samples in self.families() if samples]

    def openmetrics(self) -> list[tuple[Metric, list[bytes]]]:
        """The same as `text`: exemplars stay with the process that has them."""
        return self.text()

    def exemplified(self) -> list[tuple[Metric, list[Sample], Exemplars]]:
        """The families, without exemplars, which stay with the process that has them."""
        return [(metric, samples, {}) for metric, samples in self.families()]

    def close(self) -> None:
        """Leave the group: the last state is sent, and what was counted stays in the group's sums."""
        _groups.discard(self)
        self._member.close()

    def _start(self) -> None:
        self._member = Member(self._membership, self._instruments)
        if "multiprocessing" in sys.modules:
            # A child of multiprocessing ends without atexit, and drops the finalizers it was forked with.
            from multiprocessing import util

            util.register_after_fork(self, _close_with_multiprocessing)
            _close_with_multiprocessing(self)

    def _join_in_child(self) -> None:
        self._member.abandon()
        self._last = None
        self._start()


def _require_instruments(instruments: tuple[Instruments, ...]) -> tuple[Instruments, ...]:
    if not instruments:
        raise UsageError("no instruments given, expected at least one")
    for one in instruments:
        if not isinstance(one, Instruments):
            raise UsageError(f"{one!r} are no instruments, expected engine, router or autoscaler instruments")
        if one._added_up:
            raise UsageError(f"{type(one).__name__} are in a group already, expected instruments of one group")
    deployments = {one.identity.deployment() for one in instruments}
    if len(deployments) > 1:
        raise UsageError(f"the instruments of one group are of {len(deployments)} deployments, expected one")
    if len({one.identity for one in instruments}) < len(instruments):
        raise UsageError("two instruments of one process have one identity: give each a replica of its own")
    return instruments


def _aged(families: Families, seconds: float) -> Families:
    """A page read before, with its states older by that many seconds."""
    return [
        (
            metric,
            [sample._replace(value=sample.value + seconds) for sample in samples]
            if metric.name == GROUP_STATE_AGE.name
            else samples,
        )
        for metric, samples in families
    ]


def _line(sample: Sample) -> str:
    value = sample.value
    whole = abs(value) < 1e15 and value == int(value)
    return f"{format_series(sample.name, sample.labels)} {int(value) if whole else format_value(value)}\n"


_groups: set[ProcessGroup] = set()


def _close_all() -> None:
    for group in list(_groups):
        group.close()


def _close_with_multiprocessing(group: ProcessGroup) -> None:
    from multiprocessing import util

    util.Finalize(None, group.close, exitpriority=0)


atexit.register(_close_all)


def _after_fork_in_child() -> None:
    for group in list(_groups):
        try:
            group._join_in_child()
        except Exception as error:
            _logger.warning("process group %r cannot be joined by a forked process: %r", group.name, error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
