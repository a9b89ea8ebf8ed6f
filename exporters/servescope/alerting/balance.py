"""The alerts on one replica of several: it gets all requests, or is slower than the others."""

from __future__ import annotations

from typing import Final

from servescope.alerting import records
from servescope.alerting.choices import bound
from servescope.alerting.playbooks.latency import OUTPUT_TOKENS
from servescope.alerting.playbooks.routing import ROUTER
from servescope.contract import bounds
from servescope.contract.expressions import level, rate

_HERE: Final = records.AdHocExpression(level("concurrent_requests"), ("role", "replica"))
_OF_ROLE: Final = records.AdHocExpression(level("concurrent_requests"), ("role",))
_AVERAGE: Final = records.AdHocExpression(level("concurrent_requests", "avg"), ("role",))
_IN_FLIGHT: Final = records.FigureRef("concurrent_requests")
_ENDED: Final = records.FigureRef("request_rate")
_SHARE: Final = bound(bounds.HOT_SHARE)
_FLOOR: Final = bound(bounds.HANGING_FLOOR)
_FEWER: Final = bound(bounds.ENDED_KEPT)
_GROWN: Final = bound(bounds.IN_FLIGHT_GROWN)

_HOT: Final = records.All((
    records.Compare(_HERE, ">=", _FLOOR),
    records.Compare(_HERE, ">", records.Scaled(_OF_ROLE, _SHARE)),
    # There are others.
    records.Compare(_AVERAGE, "<", _OF_ROLE),
))  # fmt: skip

_SLOW: Final = bound(bounds.SLOW_TIMES)
_TIME: Final = records.FigureRef("time_per_output_token_mean")
_TIME_HERE: Final = records.by_replica("time_per_output_token_mean")
_OBSERVED_HERE: Final = records.AdHocExpression(rate("time_per_output_token_seconds_count"), ("replica",))


def _before(shown: records.FigureRef) -> records.OverTime:
    """Its average over the hour that ended 30 minutes ago."""
    return records.OverTime("avg", shown, "1h", before="30m")


BALANCE_ALERTS: Final = (
    records.Alert(
        "ServescopeRouterHotSpot", "critical", "router", "serving",
        records.All((
            _HOT,
            records.Compare(_ENDED, "<", records.Scaled(_before(_ENDED), _FEWER)),
            records.Compare(_IN_FLIGHT, ">", records.Scaled(_before(_IN_FLIGHT), _GROWN)),
        )),
        "One replica gets the requests of several.",
        f"Replica {{{{ $labels.replica }}}} of {records.WHO} has {records.NUMBER} requests in flight, many times those "
        "of the others; fewer requests end than an hour ago, and more are in flight.",
        records.Runbook(
            f"One replica has more than {_SHARE:%} of the requests in flight of all replicas of its role; fewer than "
            f"{_FEWER:%} as many requests end as in the hour that ended 30 minutes ago, and there are more than "
            f"{_GROWN:g} times as many in flight. Objectives count requests that end, so they look better than it is. "
            "The alert stays active while one replica has so many.",
            "Most requests wait for one replica, until they time out; the other replicas are idle.",
            "How does the router choose? By prefix or session: has everything the same prefix, such as a new system "
            "prompt? By load: does it still see the load of all replicas, and are all of them healthy for it? At 0 "
            "output tokens per second the replica hangs, and holds its requests.",
            "Switch the router to round robin or to the least load, or restart it. If it knows one healthy replica "
            "alone, restore its list or its health checks. If the replica hangs, take it out of routing.",
            "A replica whose requests hang while the others serve: it is found by its tokens per second.",
            records.FirstCheck(
                _IN_FLIGHT,
                "rising, while the request rate has fallen.",
                "falling: the requests are divided again.",
                records.by_replica("concurrent_requests"),
                "One line is far above the others, which are near 0.",
            ),
            (ROUTER,),
            "Do not add replicas: the router would not use them either. Do not restart the engines: the caches of the "
            "idle ones would be lost.",
            "Whoever owns the router, now.",
            "The replicas have about as many requests in flight each.",
        ),
        "requests", "concurrent_requests", for_="5m", keep_firing_for="5m", panel="Router hot spot",
        lasts=_HOT,
    ),
    records.Alert(
        "ServescopeReplicaSlow", "warning", "engine", "serving",
        records.All((
            records.Compare(_TIME_HERE, ">", records.Scaled(_TIME, _SLOW)),
            records.Compare(_OBSERVED_HERE, ">=", bound(bounds.SLOW_TRAFFIC)),
        )),
        "A replica is slower than the others.",
        f"Replica {{{{ $labels.replica }}}} of {records.WHO} takes {records.NUMBER} s for an output token, more than "
        f"{_SLOW:g} times the mean of all replicas.",
        records.Runbook(
            f"The mean time per output token of one replica is more than {_SLOW:g} times that of its deployment, with "
            f"{bound(bounds.SLOW_TRAFFIC):g} requests per second or more. It is a part of that mean itself: of "
            "eight replicas one that is half as fast as the others is found, and of two one at a seventh.",
            "The users whose requests it gets read along slowly. Those of the others notice nothing, so that no "
            "objective is violated for hours.",
            "Compare its requests in flight with those of the others: if it has many more, the router prefers it. If "
            "not, on its machine: `nvidia-smi -q -d PERFORMANCE` shows throttling, `dmesg | grep -i xid` errors, "
            "`nvidia-smi` whether another program is on the GPU.",
            "Take the replica out of routing, and have its machine drained and examined. Start one elsewhere in its "
            "place.",
            "Replicas on GPUs of different kinds; a replica that gets all requests with a long context.",
            records.FirstCheck(
                _TIME,
                "little above what it was: one replica is a small part of it.",
                "rising for all replicas: see the objective.",
                _TIME_HERE,
                "One line is far above the others, and stays there.",
            ),
            (OUTPUT_TOKENS,),
            "Do not restart it on the same machine: a GPU that is throttled stays so.",
            "Whoever owns the machines, in the morning.",
            "The time per output token of the replica is about that of the others.",
        ),
        "requests", "time_per_output_token_mean", for_="20m", keep_firing_for="10m", panel="Replica slow",
    ),
)  # fmt: skip
