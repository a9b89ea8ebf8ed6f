"""Disaggregated serving: what a replication unit is made of, and how KV gets from prefill to decode workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from servescope.emulator.clock import VirtualClock
from servescope.errors import UsageError
from servescope.migration.fields.llm_config import DISAGGREGATION, check_disaggregation, require

WorkerRole = Literal["aggregated", "prefill", "decode"]

_MOST_WORKERS = 64  # of each role in one unit: no document bounds it, but each is emulated whole


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """The workers of one replication unit, as `b10_disagg_config` names them; each count 1 or more."""

    prefill_workers_per_replica: int
    decode_workers_per_replica: int

    def __post_init__(self) -> None:
        require(DISAGGREGATION.check, asdict(self), "")
        for name, count in asdict(self).items():
            if count > _MOST_WORKERS:
                raise UsageError(f"{name} is {count!r}, expected {_MOST_WORKERS} at most")

    @property
    def roles(self) -> tuple[WorkerRole, ...]:
        """The role of each worker of a unit."""
        counts: dict[WorkerRole, int] = {
            "prefill": self.prefill_workers_per_replica,
            "decode": self.decode_workers_per_replica,
        }
        return tuple(role for role, count in counts.items() for _ in range(count))


def parse_disaggregation(llm_config: Mapping[str, object], where: str = "llm_config") -> Disaggregation | None:
    """What `is_disaggregated` and `b10_disagg_config` of an `llm_config` say; None when it is not disaggregated.

    Refused as documented, with `where` in the error: a `b10_disagg_config` without `is_disaggregated = true`, and
    `is_disaggregated = true` without both counts, each a whole number of 1 or more; and what has another type or name.
    """
    require(check_disaggregation, llm_config, where)
    config: Any = llm_config.get("b10_disagg_config")
    if config is None:
        return None
    try:
        return Disaggregation(**config)
    except UsageError as error:
        raise UsageError(f"{where}.b10_disagg_config.{error}") from error


class Transfer:
    """One transfer, waiting, under way or over; `done` is called at its end with seconds waited and taken."""

    __slots__ = ("ask_at", "begun_at", "done", "left", "over", "receiver", "sender", "since", "timer")

    def __init__(
        self, sender: str, receiver: str, seconds: float, now: float, done: Callable[[float, float], None]
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.left = seconds
        self.ask_at = now
        self.begun_at: float | None = None
        self.since = now
        self.timer = 0
        self.over = False
        self.done = done


class KvNetwork:
    """The links between workers: each has one, on which one transfer goes at a time.

    A transfer needs the sender's and the receiver's. Those that wait go first come, first served, past one whose other
    end is busy.
    """

    def __init__(self, *, clock: VirtualClock) -> None:
        self._clock = clock
        self._factor = 1.0
        self._waiting: dict[Transfer, None] = {}
        self._going: dict[Transfer, None] = {}
        self._busy: set[str] = set()

    def send(self, sender: str, receiver: str, seconds: float, done: Callable[[float, float], None]) -> Transfer:
        """Send for so many seconds once both links are free; `done` is called with the seconds it waited and took."""
        transfer = Transfer(sender, receiver, seconds, self._clock.now, done)
        self._waiting[transfer] = None
        self._begin_all()
        return transfer

    def cancel(self, transfer: Transfer) -> None:
        """Cancel a transfer; without effect when it is over."""
        if not transfer.over:
            self._close(transfer)
            self._begin_all()

    def set_factor(self, factor: float) -> None:
        """Make transfers take `factor` times as long from now on; above 0."""
        for transfer in self._going:
            transfer.left -= (self._clock.now - transfer.since) / self._factor
        self._factor = factor
        for transfer in self._going:
            self._set_timer(transfer)

    def _begin_all(self) -> None:
        for transfer in [*self._waiting]:
            if transfer.sender not in self._busy and transfer.receiver not in self._busy:
                del self._waiting[transfer]
                self._going[transfer] = None
                self._busy |= {transfer.sender, transfer.receiver}
                transfer.begun_at = self._clock.now
                self._set_timer(transfer)

    def _set_timer(self, transfer: Transfer) -> None:
        transfer.timer += 1
        transfer.since = self._clock.now
        timer = transfer.timer

        def ring() -> None:
            if not transfer.over and timer == transfer.timer:
                self._end(transfer)

        self._clock.schedule(transfer.left * self._factor, ring)

    def _end(self, transfer: Transfer) -> None:
        begun_at = transfer.begun_at if transfer.begun_at is not None else self._clock.now
        self._close(transfer)
        transfer.done(begun_at - transfer.ask_at, self._clock.now - begun_at)
        self._begin_all()

    def _close(self, transfer: Transfer) -> None:
        transfer.over = True
        if transfer in self._going:
            del self._going[transfer]
            self._busy -= {transfer.sender, transfer.receiver}
        else:
            self._waiting.pop(transfer, None)
