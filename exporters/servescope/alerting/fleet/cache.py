"""The alerts on the KV cache, and on the router that places requests by it."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.capacity import KV_MEMORY, SCALING
from servescope.alerting.playbooks.routing import CACHE_EVENTS, PREFIX_CACHE
from servescope.alerting.rules.choices import band_start, bound, waited
from servescope.alerting.rules.records import (
    NUMBER,
    PERCENT,
    WHO,
    AdHocExpression,
    Alert,
    All,
    Any,
    Because,
    Compare,
    FigureRef,
    FirstCheck,
    OverTime,
    Runbook,
    Scaled,
    by_cause,
    by_replica,
)
from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND
from servescope.contract.bounds import EVENT_GAPS, HIT_RATE_KEPT, PROMPT_TRAFFIC
from servescope.contract.expressions import Level, rate

_SKEW: Final = FigureRef("kv_cache_hit_rate_skew")
_BEHIND: Final = band_start("kv_cache_hit_rate_skew", 0)
_CHURN: Final = band_start("kv_cache_hit_rate_skew", -1)
_EFFICIENT: Final = band_start("kv_cache_hit_rate_efficiency", 0)
_HIT_RATE: Final = FigureRef("kv_cache_hit_rate")
_KEPT: Final = bound(HIT_RATE_KEPT)
_PROMPTS: Final = Compare(AdHocExpression(rate("kv_cache_eligible_tokens_total")), ">=", bound(PROMPT_TRAFFIC))
_ACTIVE: Final = FigureRef("replica_count_by_status", (("status", ("active",)),))
FEWER_REPLICAS: Final = Compare(_ACTIVE, "<", OverTime("max", _ACTIVE, "30m"))
_DROPPED: Final = Compare(_HIT_RATE, "<", Scaled(OverTime("avg", _HIT_RATE, "1d", before="30m"), _KEPT))

_DEGRADED: Final = Level("router_index_state", "max", (("state", ("degraded",)),))

CACHE_ALERTS: Final = (
    Alert(
        "ServescopeCacheChurn", "warning", "router", "cache",
        All((Compare(_SKEW, ">", _CHURN), _PROMPTS)),
        "Workers evict cached blocks that the router counts on.",
        f"The router of {WHO} predicts more cache hits than workers serve: the difference is {PERCENT} of the prompt "
        f"tokens. Above {_CHURN:+%} cached blocks are evicted too early.",
        Runbook(
            f"More than {_CHURN:%} of the prompt tokens are predicted as cached but are gone when the request is "
            "served. Blocks are evicted in between, or the router misses their eviction events.",
            "Users wait longer for the first word: requests go to workers that no longer hold their prefix, and "
            "prompts are computed twice.",
            "A cache that is nearly full evicts blocks. If there is room, check the router for event gaps and dropped "
            "events.",
            SKEW_BAND.steps[-1].rating.advice,
            "While many replicas are new or were restarted, their caches are empty before the router knows.",
            FirstCheck(
                _SKEW,
                f"above {_CHURN:+%}, and level.",
                "falling: new caches are being filled.",
                by_replica("kv_cache_usage"),
                "Replicas at the top evict. If none is near full, events of evictions are lost.",
            ),
            (KV_MEMORY, CACHE_EVENTS),
            "Do not restart workers to clean their caches: the router would be wrong about all of them.",
            "Nobody at night, unless an alert on first tokens pages too.",
            f"The difference is below {_CHURN:+%}.",
        ),
        "cache", "kv_cache_hit_rate_skew", keep_firing_for="10m",
    ),
    Alert(
        "ServescopeCacheEventsMissed", "warning", "router", "cache",
        Any((
            Because("hits", All((Compare(_SKEW, "<", _BEHIND), _PROMPTS))),
            Because("gaps", Compare(FigureRef("router_event_gap_rate"), ">", bound(EVENT_GAPS))),
            Because("degraded", Compare(AdHocExpression(_DEGRADED), ">", 0.0), "Router index degraded"),
        )),
        "The router misses cache events of the workers.",
        f"The router of {WHO} " + by_cause({
            "hits": f"predicts fewer cache hits than workers serve: the difference is {PERCENT} of the prompt tokens. "
            f"Below {_BEHIND:+%} it misses cache events.",
            "gaps": f"misses {NUMBER} cache events per second.",
            "degraded": f"has reported a degraded index for {waited()}: its predictions are unreliable.",
        }),
        Runbook(
            f"The router's index does not match the workers' caches, by one of three signs. `hits`: the predicted hit "
            f"rate is more than {-_BEHIND:%} of the prompt tokens below the actual one. `gaps`: the sequence numbers "
            "of the workers' cache events have gaps. `degraded`: the router itself reports it.",
            "Users wait longer for the first word: the router misses cached prefixes, or predicts hits that do not "
            "exist, until its index recovers.",
            "Find the worker whose events are missing: the router's log names it. Check dropped events and the state "
            "of the index, then the messaging between workers and router for full buffers and packet loss.",
            f"Fix the transport. {SKEW_BAND.lowest.advice} If the index does not recover, restart the router from a "
            "snapshot.",
            "Right after the start of a router without a snapshot its index is empty and still filling. A worker that "
            "restarts can leave a single gap, which is over before this alert fires.",
            FirstCheck(
                FigureRef("router_event_gap_rate"),
                "above zero all the time.",
                "a peak that is over: a worker was restarted; or no gap, and the difference of the hit rates rises "
                "towards zero: the index is being filled.",
                by_replica("router_event_gap_rate"),
                "One router alone: its subscription, its connection or its CPU. All routers: a worker that publishes "
                "nothing, or the transport.",
            ),
            (CACHE_EVENTS, PREFIX_CACHE),
            "Do not restart the workers, nor all routers at the same time, nor one without a snapshot: its index would "
            "be empty.",
            "Whoever owns the router and the messaging, in the morning; now if an alert on first tokens pages too.",
            f"There are no gaps any more, the index is `exact`, and the difference is above {_BEHIND:+%}.",
        ),
        "cache", "kv_cache_hit_rate_skew", keep_firing_for="10m",
    ),
    Alert(
        "ServescopeRoutingInefficient", "warning", "router", "cache",
        All((Compare(FigureRef("kv_cache_hit_rate_efficiency"), "<", _EFFICIENT), _PROMPTS)),
        "The router misses cache hits that are possible.",
        f"The workers of {WHO} serve {PERCENT} of the cache hits that the best placement would; {_EFFICIENT:%} and "
        "above is normal.",
        Runbook(
            f"Less than {_EFFICIENT:%} of the possible cache hits are served: requests go to workers other than the "
            "one with their longest cached prefix, or the prefix was evicted before they arrived.",
            "Users wait somewhat longer for the first word: prompts are computed that are cached elsewhere.",
            "Check the hit-rate skew first; if it is large, follow the alerts on it. Otherwise compare the load of the "
            "workers: the router avoids a saturated one.",
            EFFICIENCY_BAND.lowest.advice,
            "At saturation a router gives up cache hits to balance the load, which is correct.",
            FirstCheck(
                FigureRef("kv_cache_hit_rate_efficiency"),
                f"below {_EFFICIENT:%}, at a usual load.",
                "low only while the load is high: the router balances.",
                by_replica("concurrent_requests"),
                "Some replicas hold far more than the others: the router spreads the load for them. All hold the same: "
                "its weights ignore the caches.",
                lowest=False,
            ),
            (PREFIX_CACHE,),
            "Do not raise the weight of cached prefixes while replicas are saturated: the fullest would get more.",
            "Nobody at night. In the morning whoever owns the router's configuration.",
            f"The efficiency is {_EFFICIENT:%} or more at a usual load.",
        ),
        "cache", "kv_cache_hit_rate_efficiency", for_="30m", keep_firing_for="15m",
    ),
    Alert(
        "ServescopeCacheHitRateDropped", "warning", "router", "cache",
        All((_DROPPED, _PROMPTS)),
        "The KV cache hit rate dropped.",
        f"The hit rate of {WHO} is {PERCENT}, less than {_KEPT:%} of its average over the last day.",
        Runbook(
            f"The hit rate is below {_KEPT:%} of its own average over the day that ended 30 minutes ago. The alert is "
            "on the change, because a normal level depends on the traffic. While a drop lasts it becomes part of that "
            "average: after half a day at half the rate, the alert takes it as normal.",
            "Users wait longer for the first word, and the same load needs more replicas.",
            "Check the best possible hit rate: if it dropped too, the traffic changed; if not, routing or the caches "
            "did. Look for restarts and scale-downs at that time: the caches of replicas that left held prefixes that "
            "are still in use.",
            "Nothing for new traffic, nor tonight after a scale-down: the caches fill by themselves. Then increase "
            "scale_down_half_life_seconds and scale_down_delay. Otherwise follow the alerts on skew and efficiency.",
            "Another mix of prompts, as of a batch at night.",
            FirstCheck(
                _HIT_RATE,
                "a step downwards at the time of a restart, a scale-down or a change of the router.",
                "a slope downwards together with the best possible hit rate: other prompts.",
                by_replica("kv_cache_usage"),
                "Replicas that are nearly empty were restarted: their caches fill again. All full: prefixes are "
                "evicted; after a scale-down, scale up again.",
                lowest=True,
            ),
            (PREFIX_CACHE, SCALING),
            "Do not restart anything: empty caches are what it is about. Do not scale down further by hand.",
            "Nobody at night, unless an alert on first tokens pages too.",
            f"The hit rate is above {_KEPT:%} of its average over the last day.",
        ),
        "cache", "kv_cache_hit_rate", for_="15m",
    ),
)  # fmt: skip
