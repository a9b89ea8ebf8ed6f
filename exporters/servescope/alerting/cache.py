"""The alerts on the KV cache, and on the router that places requests by it."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import band_start, bound, waited
from servescope.alerting.records import (
    NUMBER,
    PERCENT,
    WHO,
    Alert,
    All,
    Compare,
    Measured,
    Over,
    Runbook,
    Scaled,
    Shown,
)
from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND
from servescope.contract.bounds import EVENT_GAPS, HIT_RATE_KEPT, PROMPT_TRAFFIC
from servescope.contract.expressions import Level, rate

_SKEW: Final = Shown("kv_cache_hit_rate_skew")
_BEHIND: Final = band_start("kv_cache_hit_rate_skew", 0)
_CHURN: Final = band_start("kv_cache_hit_rate_skew", -1)
_EFFICIENT: Final = band_start("kv_cache_hit_rate_efficiency", 0)
_HIT_RATE: Final = Shown("kv_cache_hit_rate")
_KEPT: Final = bound(HIT_RATE_KEPT)
_ACTIVE: Final = Shown("replica_count_by_status", (("status", ("active",)),))
_PROMPTS: Final = Compare(Measured(rate("kv_cache_eligible_tokens_total")), ">=", bound(PROMPT_TRAFFIC))
_DROPPED: Final = Compare(_HIT_RATE, "<", Scaled(Over("avg", _HIT_RATE, "1d", before="30m"), _KEPT))

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
            "Requests are routed to workers that no longer hold their prefix: the time to first token grows, and "
            "prompts are computed twice.",
            "Check the KV cache usage and preemptions: a cache that is nearly full evicts blocks. If there is room, "
            "check the router for event gaps and dropped events.",
            SKEW_BAND.steps[-1].verdict.advice,
            "While many replicas are new or were restarted, their caches are empty before the router knows.",
        ),
        "cache", "kv_cache_hit_rate_skew", keep="10m",
    ),
    Alert(
        "ServescopeCacheEventsMissed", "warning", "router", "cache",
        All((Compare(_SKEW, "<", _BEHIND), _PROMPTS)),
        "Workers serve many more cache hits than the router predicts.",
        f"The router of {WHO} predicts fewer cache hits than workers serve: the difference is {PERCENT} of the prompt "
        f"tokens. Below {_BEHIND:+%} the router misses cache events.",
        Runbook(
            f"The predicted hit rate is more than {-_BEHIND:%} of the prompt tokens below the actual one: the "
            "router's index does not receive all cache events of the workers.",
            "Requests are not routed to the workers that hold their prefix, so possible cache hits are missed.",
            "Check event gaps, dropped events and the state of the router's index, then the network between workers "
            "and router.",
            SKEW_BAND.lowest.advice,
            "Right after the start of a router without a snapshot its index is empty and still filling.",
        ),
        "cache", "kv_cache_hit_rate_skew", keep="10m",
    ),
    Alert(
        "ServescopeCacheEventGaps", "warning", "router", "cache",
        Compare(Shown("router_event_gap_rate"), ">", bound(EVENT_GAPS)),
        "Cache events of workers do not reach the router.",
        f"The router of {WHO} misses {NUMBER} cache events per second.",
        Runbook(
            "The sequence numbers of the workers' cache events have gaps: some events were lost in transit.",
            "The router's index is wrong until it recovers: it misses cached prefixes, or predicts hits that do not "
            "exist.",
            "Find the worker whose events are missing. Check the messaging between workers and router for full buffers "
            "and packet loss.",
            "Fix the transport. If the index does not recover, restart the router from a snapshot.",
            "A worker that restarts can leave a single gap, which is over before this alert fires.",
        ),
        "cache", "router_event_gap_rate", keep="10m",
    ),
    Alert(
        "ServescopeRouterIndexDegraded", "warning", "router", "cache",
        Compare(Measured(Level("router_index_state", "max", (("state", ("degraded",)),))), ">", 0.0),
        "The router's index of the workers' caches is degraded.",
        f"The router index of {WHO} has been degraded for {waited()}: its predictions are unreliable.",
        Runbook(
            "The router reports that its index does not match the workers' caches.",
            "Requests are routed with little regard to cached prefixes: the time to first token grows.",
            "Check event gaps and dropped events, and whether recoveries are attempted and fail.",
            "Fix the event stream; restart the router from a snapshot.",
            "None known: the router itself reports this state.",
        ),
        "cache", "router_event_gap_rate", keep="5m",
    ),
    Alert(
        "ServescopeRoutingInefficient", "warning", "router", "cache",
        All((Compare(Shown("kv_cache_hit_rate_efficiency"), "<", _EFFICIENT), _PROMPTS)),
        "The router misses cache hits that are possible.",
        f"The workers of {WHO} serve {PERCENT} of the cache hits that the best placement would; {_EFFICIENT:%} and "
        "above is normal.",
        Runbook(
            f"Less than {_EFFICIENT:%} of the possible cache hits are served: requests go to workers other than the "
            "one with their longest cached prefix, or the prefix was evicted before they arrived.",
            "Prompts are computed that are cached elsewhere: the time to first token and the load grow.",
            "Check the hit-rate skew first; if it is large, follow the alerts on it. Otherwise compare the load of the "
            "workers: the router avoids a saturated one.",
            EFFICIENCY_BAND.lowest.advice,
            "At saturation a router gives up cache hits to balance the load, which is correct.",
        ),
        "cache", "kv_cache_hit_rate_efficiency", wait="30m", keep="15m",
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
            "The time to first token grows, and the same load needs more replicas.",
            "Check the best possible hit rate: if it dropped too, the traffic changed; if not, routing or the caches "
            "did. Look for restarts and scale-downs at that time.",
            "Nothing for new traffic. Otherwise follow the alerts on skew and efficiency, and slow down scale-downs.",
            "Another mix of prompts, as of a batch at night.",
        ),
        "cache", "kv_cache_hit_rate", wait="15m",
    ),
    Alert(
        "ServescopeScaleDownLosesCache", "warning", "autoscaler", "cache",
        All((Compare(_ACTIVE, "<", Over("max", _ACTIVE, "30m")), _DROPPED, _PROMPTS)),
        "A scale-down lowered the KV cache hit rate.",
        f"{WHO} has {NUMBER} active replicas, fewer than 30 minutes ago, and its hit rate is below {_KEPT:%} of its "
        "average over the last day.",
        Runbook(
            "Replicas were removed and the hit rate dropped with them: their caches held prefixes that are still in "
            "use.",
            "The time to first token grows until the other replicas have cached the same prefixes. Often the load "
            "brings the replicas back.",
            "Compare the time of the scale-down with the drop of the hit rate.",
            "Increase scale_down_half_life_seconds and scale_down_delay.",
            "Replicas that left for another reason while the traffic changed.",
        ),
        "cache", "kv_cache_hit_rate",
    ),
)  # fmt: skip
