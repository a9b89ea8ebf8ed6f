"""Which failures and recoveries are logged: at first each one, then fewer and fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from servescope.collector.scrapes.pacing import format_instant

_FIRST_QUIET_MS = 60_000
_LONGEST_QUIET_MS = 3_600_000


class LapseReport(NamedTuple):
    """What to log now: whether it fails, and how many failures since an instant were not logged."""

    is_wrong: bool
    more: int
    since_ms: int

    def counted(self, what: str = "") -> str:
        """The end of a line, with how often something happened without being logged; empty when it did not."""
        if not self.more:
            return ""
        times = "once more" if self.more == 1 else f"{self.more} more times"
        return f"; {what}{times} since {format_instant(self.since_ms)}"


class Lapses:
    """Named conditions that may fail, such as that a target answers. Not thread safe.

    The first failure is logged, and its recovery. Failures within the next minute are only counted, and logged with
    that count after it; then the interval is two minutes, then four, up to an hour. It is a minute again once an
    interval has passed without a failure.
    """

    def __init__(self) -> None:
        self._lapses: dict[str, _Lapse] = {}

    def __iter__(self) -> Iterator[str]:
        """The names of those that fail now, or failed within their interval."""
        return iter(tuple(self._lapses))

    def __len__(self) -> int:
        return len(self._lapses)

    def note(self, name: str, now_ms: int, *, is_wrong: bool) -> LapseReport | None:
        """Note whether something is wrong now; returns what to log, None for nothing."""
        lapse = self._lapses.get(name)
        if lapse is None:
            if not is_wrong:
                return None
            lapse = self._lapses[name] = _Lapse()
        report = lapse.note(now_ms, is_wrong=is_wrong)
        if lapse.is_over:
            del self._lapses[name]
        return report


class _Lapse:
    def __init__(self) -> None:
        self._is_wrong = self._is_logged = False
        self._unlogged, self._unlogged_since_ms = 0, 0
        self._quiet_ms, self._quiet_since_ms = 0, 0

    @property
    def is_over(self) -> bool:
        """Whether it can be forgotten: it does not fail, and its interval has passed."""
        return not (self._is_wrong or self._unlogged or self._quiet_ms)

    def note(self, now_ms: int, *, is_wrong: bool) -> LapseReport | None:
        began, self._is_wrong = is_wrong and not self._is_wrong, is_wrong
        if self._is_logged and not is_wrong:
            self._is_logged, self._quiet_since_ms = False, now_ms
            return LapseReport(is_wrong=False, more=0, since_ms=now_ms)
        # By the absolute difference: a clock that was ahead must not suppress the log for that long.
        is_quiet = abs(now_ms - self._quiet_since_ms) < self._quiet_ms
        if began and is_quiet:
            self._unlogged_since_ms = self._unlogged_since_ms if self._unlogged else now_ms
            self._unlogged += 1
        if is_quiet or self._is_logged:
            return None
        if is_wrong or self._unlogged:
            return self._report(now_ms, began=began)
        self._quiet_ms = 0
        return None

    def _report(self, now_ms: int, *, began: bool) -> LapseReport:
        # The failure that is logged now is not one of those that were only counted.
        more = self._unlogged - (self._is_wrong and not began)
        report = LapseReport(self._is_wrong, more, self._unlogged_since_ms)
        self._is_logged, self._unlogged = self._is_wrong, 0
        self._quiet_ms = min(max(2 * self._quiet_ms, _FIRST_QUIET_MS), _LONGEST_QUIET_MS)
        self._quiet_since_ms = now_ms
        return report
