"""The alerts on one replica of several: it gets all requests, or does not serve as the others do."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.failures import HANG
from servescope.alerting.playbooks.latency import OUTPUT_TOKENS
from servescope.alerting.playbooks.routing import ROUTER
from servescope.alerting.rules import records
from servescope.alerting.rules.choices import bound
from servescope.alerting.rules.listing import ENGINES
from servescope.contract import bounds
from servescope.contract.expressions import Level, level, rate

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

_TIMES: Final = bound(bounds.SLOW_TIMES)
_TIME: Final = records.FigureRef("time_per_output_token_mean")
_TIME_HERE: Final = records.by_replica("time_per_output_token_mean")
_OBSERVED_HERE: Final = records.AdHocExpression(rate("time_per_output_token_seconds_count"), ("replica",))
_SLOW: Final = records.All((
    records.Compare(_TIME_HERE, ">", records.Scaled(_TIME, _TIMES)),
    records.Compare(_OBSERVED_HERE, ">=", bound(bounds.SLOW_TRAFFIC)),
))  # fmt: skip

# Of two routers, one may be there for the day that the other fails.
_ON_ENGINE: Final = records.AdHocExpression(Level("concurrent_requests", "sum", ENGINES), ("role", "replica"))
_ON_EACH: Final = records.AdHocExpression(Level("concurrent_requests", "avg", ENGINES), ("role",))
_BUSY: Final = bound(bounds.BUSY_OTHERS)
_IDLE: Final = records.All((
    records.Compare(_ON_ENGINE, "==", 0.0),
    # Bursts have pauses, in which nobody has many.
    records.Compare(records.Subquery("max", _ON_EACH, "15m", every="1m"), ">=", _BUSY),
))  # fmt: skip

_HOLDING: Final = bound(bounds.HANGING_TIMES)
_ACCOUNTED_FOR: Final = records.Product(
    records.AdHocExpression(rate("requests_total"), ("replica",)), records.FigureRef("request_duration_mean")
)
"""As many are in flight on a replica on average if each ends after as long as those of the deployment."""
_HOLDS: Final = records.All((
    records.Compare(_ON_ENGINE, ">=", _FLOOR),
    records.Compare(_ON_ENGINE, ">", records.Scaled(_ON_EACH, _TIMES)),
    records.Compare(_ON_ENGINE, ">", records.Scaled(_ACCOUNTED_FOR, _HOLDING)),
))  # fmt: skip

_RESTARTS: Final = bound(bounds.RESTARTS)
# Of several processes of a replica the last one counts: they begin one after the other.
_BEGAN: Final = records.AdHocExpression(Level("replica_start_time_seconds", "max"), ("role", "replica"))
_RESTARTED: Final = records.All((
    records.Compare(records.Subquery("changes", _BEGAN, "2h"), ">=", _RESTARTS),
    # Workers that answer scrapes in turn have begun at times that come again.
    records.Compare(records.Subquery("min", _BEGAN, "1h"), ">=", records.Subquery("max", _BEGAN, "1h", before="1h")),
))  # fmt: skip

_LENGTH_HERE: Final = records.by_replica("output_tokens_per_request")
_CUT: Final = records.FigureRef("answer_truncated_share")
_CUT_HERE: Final = records.by_replica("answer_truncated_share")
_CUT_MORE: Final = bound(bounds.ANSWERS_CUT)
_IS_CUT: Final = records.Compare(_CUT_HERE, ">", records.Scaled(_CUT, _TIMES))


def _its_hour_ago(term: records.AdHocExpression) -> records.Subquery:
    """Its maximum over the hour that ended 30 minutes ago."""
    return records.Subquery("max", term, "1h", before="30m")


_ENDLESS: Final = records.All((
    _IS_CUT,
    records.Compare(_OBSERVED_HERE, ">=", bound(bounds.SLOW_TRAFFIC)),
    # A client that is always served here may always be cut, and one that wants a single token always gets it.
    records.Compare(_CUT_HERE, ">", records.Shifted(_its_hour_ago(_CUT_HERE), _CUT_MORE)),
    records.Compare(_LENGTH_HERE, ">", records.Scaled(_its_hour_ago(_LENGTH_HERE), _TIMES)),
))  # fmt: skip


BALANCE_ALERTS: Final = (
    records.Alert(
        "ServescopeRouterHotSpot", "critical", "router", "serving",
        records.All((
            _HOT,
            records.Compare(_ENDED, "<", records.Scaled(records.an_hour_ago(_ENDED), _FEWER)),
            records.Compare(_IN_FLIGHT, ">", records.Scaled(records.an_hour_ago(_IN_FLIGHT), _GROWN)),
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
        "ServescopeReplicaDiffers", "warning", "engine", "serving",
        records.Any((
            records.Because("slow", _SLOW, "Replica slow"),
            records.Because("idle", _IDLE, "Replica idle"),
            records.Because("holding", _HOLDS, "Replica holding"),
            records.Because("restarting", _RESTARTED, "Replica restarting"),
            records.Because("cut", _ENDLESS, "Replica cut"),
        )),
        "A replica does not serve as the others do.",
        f"Replica {{{{ $labels.replica }}}} of {records.WHO} " + records.by_cause({
            "slow": f"takes {records.NUMBER} s for an output token, more than {_TIMES:g} times the mean of all "
            "replicas.",
            "idle": f"has no request in flight, while the replicas of its role have had {_BUSY:g} or more on average.",
            "holding": f"has {records.NUMBER} requests in flight, more than {_TIMES:g} times as many as the others, "
            "and most of them do not end.",
            "restarting": f"began anew {records.NUMBER} times within two hours.",
            "cut": f"ends {records.PERCENT} of its answers only at a limit of their length, and the others do not.",
        }),
        records.Runbook(
            f"`slow`: the mean time per output token of one replica is more than {_TIMES:g} times that of its "
            f"deployment, with {bound(bounds.SLOW_TRAFFIC):g} requests per second or more. It is a part of that mean "
            "itself: of eight replicas one that is half as fast as the others is found, and of two one at a seventh. "
            f"`idle`: an engine has no request in flight, while those of its role had {_BUSY:g} or more each on "
            "average at some time of the last 15 minutes. "
            f"`holding`: an engine has {_FLOOR:g} requests in flight or more, more than {_TIMES:g} times the average "
            f"of its role, and more than {_HOLDING:g} times as many as the rate at which its requests end and the "
            "duration of all requests account for: some of them do not end, as those whose clients have left. "
            f"`restarting`: its process began {_RESTARTS:g} times anew within two hours. "
            f"`cut`: the share of its answers that end at a limit of their length is more than {_TIMES:g} times that "
            f"of the deployment, and more than {_CUT_MORE:%} of all above what it was in the hour that ended 30 "
            f"minutes ago, and they are more than {_TIMES:g} times as long as then.",
            "`slow`: the users whose requests it gets read along slowly. `idle`: the others do its work, and are full "
            "at a load that all of them together would serve. `holding`: what it holds takes batch and KV cache from "
            "requests that somebody waits for. `restarting`: whoever it serves is cut off, again and again, and its "
            "cache is cold. `cut`: its answers are most likely no text. No objective is violated for hours.",
            "`slow`: compare its requests in flight with those of the others: if it has many more, the router prefers "
            "it. If not, on its machine: `nvidia-smi -q -d PERFORMANCE` shows throttling, `dmesg | grep -i xid` "
            "errors, `nvidia-smi` whether another program is on the GPU. `idle`: send it a request. If it answers "
            "with an error, its server runs and its engine does not, and what it refuses is counted nowhere. If it "
            "serves, compare the router's list of workers and their health checks with the engines that run: was it "
            "restarted, or did it get another address? "
            "`holding`: compare its requests in flight with the connections to it, and search its log for requests "
            "that were aborted and go on. `restarting`: read the last lines that it logged before it ended, and the "
            "reason that the orchestrator has for it: out of memory, a liveness probe, a device error. `cut`: send it "
            "a request yourself, and read the answer: one token again and again, as of logits that are no numbers?",
            "`slow`: take the replica out of routing, and have its machine drained and examined. Start one elsewhere "
            "in its place. `idle`: take one that answers with errors out of routing, and restart it; register one that "
            "serves with the router again, or restart a router that does not find it. "
            "`holding`: take it out of routing, and restart it once the others have its requests. `restarting`: drain "
            "its machine if the others run the same version, else roll back. `cut`: take it out of routing, and "
            "restart it.",
            "Replicas on GPUs of different kinds; a replica that gets all requests with a long context, or a batch of "
            "them; a replica that is kept in reserve or was taken out of routing, or restarted several times, by hand.",
            records.FirstCheck(
                _IN_FLIGHT,
                "one replica is unlike the others, and the requests in flight of all are about as before.",
                "all replicas are alike, or no request is in flight.",
                records.by_replica("concurrent_requests"),
                "One line is far above the others, is at 0 while they are not, or breaks off again and again. All "
                "alike: compare their times per output token.",
            ),
            (OUTPUT_TOKENS, ROUTER, HANG),
            "Do not restart a slow replica on the same machine: a GPU that is throttled stays so. Do not add replicas "
            "while the router does not use those there are.",
            "Whoever owns the machines or the router, in the morning.",
            "The replica's requests in flight and time per output token are about those of the others.",
        ),
        "requests", "concurrent_requests", for_="20m", keep_firing_for="10m", panel="Replicas side by side",
        lasts=records.Because("cut", _IS_CUT),
    ),
)  # fmt: skip
