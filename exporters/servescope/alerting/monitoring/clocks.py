"""The alert on a wrong clock: of a collector, of an agent, or of a host that sends samples with times of its own."""

from __future__ import annotations

from typing import Final

from servescope.alerting.rules import records
from servescope.alerting.rules.choices import bound
from servescope.contract.bounds import CLOCK_OFF
from servescope.contract.own_metrics import CLOCK_OFFSET_SERIES

_OFFSET: Final = records.SelfMetric(CLOCK_OFFSET_SERIES, ("job", "instance"))
_MOST: Final = bound(CLOCK_OFF)

CLOCK_ALERTS: Final = (
    records.Alert(
        "ServescopeClockOff", "warning", "collector", "servescope",
        records.Any((
            records.Compare(_OFFSET, "<", -_MOST), records.Compare(_OFFSET, ">", _MOST)
        )),
        "A clock is wrong: samples have the wrong time.",
        "The clock of {{ $labels.instance }} ({{ $labels.job }}) is {{ $value | humanizeDuration }} from that of "
        "Prometheus; behind it if negative.",
        records.Runbook(
            f"A collector or an agent has a time that is more than {_MOST:g} seconds from that of Prometheus; or the "
            "newest samples of a target are as old again and again, which whatever scrapes or sends them gave another "
            "time than Prometheus'. Of clocks that are ahead only collectors and Prometheus agents are known. A wrong "
            "clock of Prometheus itself makes all others look wrong.",
            "Nothing by itself. Rates of samples that are behind lack the last minutes, and read a fraction of what "
            "happens; from five minutes on these targets are in no figure at all, and no alert on them fires. Alerts "
            "of a collector whose clock is behind can count as over when they arrive.",
            "Compare `date -u` on the host with that of the host of Prometheus, and ask its time service: `timedatectl "
            "timesync-status`, or `chronyc tracking`. All instances at once: the clock of Prometheus. Targets "
            "alone: the host of the agent that scrapes them, or their own if they send samples themselves, such as "
            "by OTLP. If its clock is right, samples are sent late: see its queue.",
            "Have the time service set the clock, and restart the agent or collector afterwards. Until then "
            "distrust totals of these targets.",
            "Samples that an agent sends late for hours, as it catches up after its receiver was away.",
            records.FirstCheck(
                _OFFSET,
                "level, far from 0: a clock that is wrong. Rising or falling: samples that are sent late.",
                "near 0, or no line.",
            ),
            (),
            "Do not restart engines: they are healthy. Do not set the clock of Prometheus back by hand: what it has "
            "stored since would be in its future.",
            "Whoever owns the host, in the morning; now if most targets are affected.",
            "The line is near 0 for 5 minutes, after which windows of rates are whole.",
        ),
        "health", CLOCK_OFFSET_SERIES, for_="15m", keep_firing_for="10m",
    ),
)  # fmt: skip
