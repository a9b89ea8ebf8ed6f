"""The alerts on requests that no histogram of latencies counts: their clients leave, or they do not end."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.failures import ABORTS, HANG
from servescope.alerting.rules.choices import bound
from servescope.alerting.rules.records import (
    NUMBER,
    PERCENT,
    WHO,
    Alert,
    All,
    Any,
    Compare,
    Except,
    FigureRef,
    FirstCheck,
    OverTime,
    Present,
    Product,
    Runbook,
    Scaled,
    Shifted,
    by_replica,
)
from servescope.contract import bounds

_ABORTED: Final = FigureRef("client_abort_share")
_ABORTED_BEFORE: Final = OverTime("avg", _ABORTED, "1d", before="1h")
_MORE: Final = bound(bounds.ABORTS_MORE)
_MOST: Final = bound(bounds.ABORTS_MOST)

_IN_FLIGHT: Final = FigureRef("concurrent_requests")
_FEWEST: Final = OverTime("min", _IN_FLIGHT, "15m")
_TIMES: Final = bound(bounds.HANGING_TIMES)
_SHARE: Final = bound(bounds.HANGING_SHARE)
_FLOOR: Final = bound(bounds.HANGING_FLOOR)
_GROWN: Final = bound(bounds.GROWN_TIMES)
_ACCOUNTED_FOR: Final = Product(
    OverTime("avg", FigureRef("request_rate"), "15m"), OverTime("avg", FigureRef("request_duration_mean"), "15m")
)
"""As many are in flight on average if each ends: the rate at which they end, times how long they took."""

UNANSWERED_ALERTS: Final = (
    Alert(
        "ServescopeClientAbortsHigh", "warning", "engine", "serving",
        All((
            Any((
                Compare(_ABORTED, ">", Shifted(_ABORTED_BEFORE, _MORE)),
                Except(
                    Compare(OverTime("avg", _ABORTED, "15m"), ">", _MOST), Present(_ABORTED_BEFORE)
                ),
            )),
            Compare(FigureRef("request_rate"), ">=", bound(bounds.ABORTS_TRAFFIC)),
        )),
        "Many clients hang up before they are answered.",
        f"{PERCENT} of the requests of {WHO} end because their client goes away, far more than over the day before.",
        Runbook(
            f"The share of requests whose client went away is more than {_MORE:%} of all requests above its average "
            f"over the day before; of a deployment without a day before, more than {_MOST:%}. Such requests are in no "
            "histogram of latencies and are no errors of the stack.",
            "Users, or the applications they use, give up: their requests take longer than they wait, or answer in "
            "vain. The work for them is lost.",
            "Compare the time to first token and the request duration with the time limits of the clients and of the "
            "gateway before them. Find out whether all clients leave or those of one application.",
            "If requests became slow, follow the alerts on latency and on the queue. If a client or a gateway got a "
            "shorter time limit, raise it.",
            "An application that stops answers on purpose, as a completion while somebody types: after a day it is the "
            "usual share. vLLM does not count a client that leaves before its answer is whole in every version.",
            FirstCheck(
                _ABORTED,
                "up by a step, and level since: a change of a client, a gateway or the stack.",
                "a short peak that is over: one application was restarted.",
                by_replica("client_abort_share"),
                "One replica alone: its users leave because it is slow or hangs; take it out of routing. All: clients, "
                "the gateway or the load.",
            ),
            (ABORTS,),
            "Do not restart engines for it: an engine ends these requests in order.",
            "Whoever owns the gateway or the application whose requests these are, in the morning; at once if users "
            "complain.",
            "The share is about what it was over the day before.",
        ),
        "requests", "client_abort_share", keep_firing_for="10m",
    ),
    Alert(
        "ServescopeRequestsHang", "warning", "engine", "serving",
        Except(
            All((
                Compare(_IN_FLIGHT, ">=", _FLOOR),
                Any((
                    Compare(OverTime("min", FigureRef("request_unended_share"), "15m"), ">", _SHARE),
                    All((
                        Compare(_FEWEST, ">", Scaled(OverTime("avg", _IN_FLIGHT, "1d", before="1h"), _GROWN)),
                        # The average of a day with a long night is far below what every morning brings.
                        Compare(_FEWEST, ">", OverTime("max", _IN_FLIGHT, "1d", before="1h")),
                    )),
                )),
            )),
            Compare(_IN_FLIGHT, "<=", Scaled(_ACCOUNTED_FOR, _TIMES)),
        ),
        "Requests are started and do not end.",
        f"{WHO} has {NUMBER} requests in flight, many more than end: some of them hang.",
        Runbook(
            f"For longer than 15 minutes more than {_SHARE:%} of the requests that started did not end, or the "
            f"requests in flight are more than {_GROWN:g} times as many as on average over the day before, and more "
            f"than ever in it; and they are more than {_TIMES:g} times as many as the rate at which requests end and "
            "their duration account for. A request that hangs is in no histogram of latencies and is no error.",
            "Some users wait until a time limit ends their request. What hangs also holds its part of the batch and of "
            "the KV cache, so that others wait longer.",
            "Look at the tokens per second and the queue of the replica that holds them, and in its log for a blocked "
            "transfer of KV, a lost worker or a client that reads nothing.",
            "Take the replica that holds them out of routing, save its stacks (`py-spy dump --pid`) and restart it: "
            "what hangs ends with the process. Of Dynamo restart the worker, not the frontend. Restart a router whose "
            "list of workers has one that no longer runs.",
            "A batch of requests that take far longer than all others, until the first of them end; a load of many "
            "times what the engines serve, which ServescopeQueueGrowing reports.",
            FirstCheck(
                _IN_FLIGHT,
                "rising steadily, while the request rate does not.",
                "rising with the request rate: there is more traffic, see the queue.",
                by_replica("concurrent_requests"),
                "One replica holds far more than the others: it hangs. All hold more: what they share hangs, such as "
                "the KV transfer. A router holds more, and the engines behind it do not: it sends requests to one that "
                "is gone.",
            ),
            (ABORTS, HANG),
            "Do not add replicas: new requests would hang there, too, if their cause is shared.",
            "Whoever owns the engines, if requests hang on all replicas.",
            "The requests in flight are as many as before at the same request rate.",
        ),
        "requests", "concurrent_requests", for_="15m", keep_firing_for="5m",
    ),
)  # fmt: skip
