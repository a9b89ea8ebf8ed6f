"""The alerts on engines that do not keep up."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.failures import HANG
from servescope.alerting.playbooks.latency import QUEUE
from servescope.alerting.rules.choices import bound
from servescope.alerting.rules.listing import ENGINES, scrape_age
from servescope.alerting.rules.records import (
    NUMBER,
    WHO,
    AdHocExpression,
    Alert,
    All,
    Any,
    Because,
    Compare,
    Except,
    Extreme,
    FigureRef,
    FirstCheck,
    OverTime,
    Runbook,
    Scaled,
    an_hour_ago,
    by_cause,
    by_replica,
)
from servescope.contract.bounds import (
    QUEUE_FLOOR,
    QUEUE_SHARE,
    QUEUE_SHORT,
    QUEUE_USUAL,
    SERVING_AGE,
    UNANSWERED_DURATION,
    UNANSWERED_RATE,
    UNANSWERED_REQUESTS,
)
from servescope.contract.expressions import level, rate
from servescope.contract.identity import DEPLOYMENT_LABELS

_FRESH: Final = bound(SERVING_AGE)
_HUNG: Final = Except(
    All((
        Compare(AdHocExpression(level("concurrent_requests"), ("replica",)), ">", 0.0),
        Compare(AdHocExpression(rate("output_tokens_total"), ("replica",)), "==", 0.0),
        Compare(AdHocExpression(rate("input_tokens_total"), ("replica",)), "==", 0.0),
    )),
    # Counters that are not read do not move either.
    Compare(Extreme("min", scrape_age(ENGINES), (*DEPLOYMENT_LABELS, "replica")), ">", _FRESH),
)  # fmt: skip
_IN_FLIGHT: Final = FigureRef("concurrent_requests")
_ENDED: Final = FigureRef("request_rate")
_SEVERAL: Final = bound(UNANSWERED_REQUESTS)
_LEAST: Final = OverTime("min", _IN_FLIGHT, "8m")
_NONE_ENDS: Final = All((Compare(_LEAST, ">=", _SEVERAL), Compare(OverTime("max", _ENDED, "8m"), "==", 0.0)))
_UNANSWERED: Final = All((
    *_NONE_ENDS.conditions,
    # What a front end counts as in flight for ever is less than that with the traffic that has stopped.
    Compare(_LEAST, ">=", an_hour_ago(_IN_FLIGHT)),
    Compare(an_hour_ago(_ENDED), ">=", bound(UNANSWERED_RATE)),
    # A batch of long ones ends as it began: together.
    Compare(an_hour_ago(FigureRef("request_duration_mean")), "<", bound(UNANSWERED_DURATION)),
))  # fmt: skip

_QUEUED: Final = FigureRef("queued_requests")
_FLOOR: Final = bound(QUEUE_FLOOR)
_SHARE: Final = bound(QUEUE_SHARE)
_SHORT: Final = bound(QUEUE_SHORT)
_USUAL: Final = bound(QUEUE_USUAL)


def _as_before(before: str) -> Compare:
    """The queue was about as long at some time of the two hours that ended `before` ago."""
    return Compare(Scaled(OverTime("max", _QUEUED, "2h", before=before), _USUAL), ">=", _QUEUED)


# Of one day alone it is not known whether harm began then.
_EVERY_DAY: Final = All((_as_before("23h"), _as_before("47h")))

SERVING_ALERTS: Final = (
    Alert(
        "ServescopeUpButNotServing", "critical", "engine", "serving",
        Any((Because("hung", _HUNG), Because("unanswered", _UNANSWERED, "No request ends"))),
        "Requests are accepted, and no tokens processed or none answered.",
        by_cause({
            "hung": f"Replica {{{{ $labels.replica }}}} of {WHO} has {NUMBER} requests in flight and processes no "
            "tokens.",
            "unanswered": f"{WHO} has had {NUMBER} requests or more in flight for 8 minutes, and none has ended.",
        }),
        Runbook(
            "`hung`: the replica answers scrapes and health checks and has requests in flight, but reads no prompt "
            f"tokens and writes no output tokens. It is judged only by scrapes of the last {_FRESH:g} seconds: a "
            "target that is scraped more seldom, as by a limit of scrapes per minute, cannot fire it. `unanswered`: "
            f"for 8 minutes and a window of rates {_SEVERAL:g} requests or more have been in flight in the deployment "
            "and none has ended; in the hour that ended 30 minutes ago there were no more in flight, and "
            f"{bound(UNANSWERED_RATE):g} per second or more ended, after less than {bound(UNANSWERED_DURATION):g} "
            "seconds on average. The alert stays active while none ends.",
            "Requests hang until they time out. `hung`: those of this replica, and the router keeps sending it more. "
            "`unanswered`: all.",
            "Send the replica a request of a few tokens. If it is answered, the replica serves, and shows requests "
            "whose clients left all at once, as vLLM may until its next request: that ends the alert. If not, on the "
            "replica's machine: `nvidia-smi` for a lost GPU, `dmesg | grep -i xid` for its errors, its log for a "
            "collective operation that waits for another GPU. `unanswered`: is one request computed that does not "
            "end, while the others wait? Its log names its id and its limit of tokens.",
            "Take the replica out of routing first. Then save its stacks (`py-spy dump --pid`), then restart it. Abort "
            "a request that does not end, and set a limit of tokens for all.",
            "An engine that reports its tokens only at the end of a request, on requests longer than 10 minutes; one "
            "that still counts requests whose clients have left, once the others have ended: ServescopeReplicaDiffers "
            "(`holding`) names it before, and a restart ends it. "
            "`unanswered`: a batch of requests that are far longer than those of an hour ago.",
            FirstCheck(
                FigureRef("output_tokens_per_second"),
                "fallen, while as many requests are in flight as before; 0 if no other replica serves.",
                "as before: the others serve what this one does not.",
                by_replica("output_tokens_per_second"),
                "The replica of the alert is at 0 and the others are not. If several are at 0, they share a GPU, a "
                "machine or a network.",
                lowest=True,
            ),
            (HANG,),
            "Do not restart the other replicas: they serve. Do not restart this one before its stacks are saved, or "
            "nobody will find out why.",
            "Whoever owns the GPUs and the network, now, if several replicas hang at once or the same one hangs again.",
            "The replica's output tokens per second are above 0, and requests end.",
        ),
        "requests", "concurrent_requests", for_="5m", keep_firing_for="5m", panel="Up but not serving",
        lasts=Because("unanswered", _NONE_ENDS),
    ),
    Alert(
        "ServescopeQueueGrowing", "warning", "engine", "serving",
        Except(
            All((
                Compare(_QUEUED, ">=", _FLOOR),
                Any((
                    Except(
                        Compare(_QUEUED, ">", OverTime("avg", _QUEUED, "5m", before="10m")),
                        # Of more requests more wait for a moment.
                        Compare(_QUEUED, "<=", Scaled(FigureRef("concurrent_requests"), _SHORT)),
                    ),
                    # A queue that has stopped growing is as long as before, and everybody waits for all of it.
                    Compare(_QUEUED, ">", Scaled(FigureRef("concurrent_requests"), _SHARE)),
                )),
            )),
            _EVERY_DAY,
        ),
        "Requests arrive faster than they are served.",
        f"{WHO} has {NUMBER} queued requests: more than 10 minutes ago, or more than {_SHARE:%} of all in flight.",
        Runbook(
            f"The queue has {_FLOOR:g} requests or more. It keeps growing and is more than {_SHORT:%} of all requests "
            f"in flight, or it is more than {_SHARE:%} of them, so that it does not drain. A queue that was at least "
            f"1/{_USUAL:g} as long at this time of each of the two days before does not count, as of a batch of every "
            "night.",
            "Users wait longer and longer for the first word, until requests are refused or time out.",
            "Is it the router that has the queue, while engines have room? Then it holds requests back: it knows fewer "
            "engines than run, takes them for full by figures that it no longer reads, or is at a limit of its own. If "
            "not, compare the request rate and the input tokens per request with earlier: is there more to do? Else "
            "the engines do less: compare the active replicas, the KV cache in use and the preemptions.",
            "Add replicas; follow the alerts on the autoscaler if it does not. If no more can be had, limit the client "
            "that sends most, or route part of the traffic to the other stack. A router that holds requests back: "
            "restart it; more replicas do not help.",
            "A batch of offline requests sent at once, for the first two days. Dynamo's frontend counts a request as "
            "queued until its first token: prompts that take longer than their answers look like a queue there; raise "
            "queue_share.",
            FirstCheck(
                _QUEUED,
                "rising, or level and long.",
                "falling: it drains, wait for it.",
                by_replica("queued_requests"),
                "One replica alone has the queue: it is slow, or the router prefers it. All have one: there is too "
                "little capacity. A router's line is its own queue.",
            ),
            (QUEUE,),
            "Do not restart replicas: they lose their caches, and the queue gets longer. Do not raise the batch beyond "
            "what fits into the KV cache.",
            "Whoever owns the capacity, if the queue is still there when all replicas that the autoscaler may request "
            "are active.",
            f"The queue stays below {_FLOOR:g} requests.",
        ),
        "requests", "queued_requests", for_="15m", keep_firing_for="5m",
    ),
)  # fmt: skip
