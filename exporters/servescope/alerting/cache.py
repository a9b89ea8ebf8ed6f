"""The alerts on speculation, on the KV cache, and on the router that places requests by it."""

from __future__ import annotations

from servescope.alerting.choices import Choices, share, signed_share
from servescope.alerting.records import (
    NUMBER,
    PERCENT,
    WHO,
    Alert,
    All,
    Compare,
    Measured,
    Over,
    Quotient,
    Runbook,
    Scaled,
    Shown,
)
from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND, SPECULATION_BAND
from servescope.contract.bounds import DRAFT_TRAFFIC, EVENT_GAPS, HIT_RATE_KEPT, LATE_POSITION, PROMPT_TRAFFIC
from servescope.contract.expressions import Level, rate

_SPECULATION_RATE = Shown("speculation_rate")
_POSITIONS = "spec_decode_accepted_tokens_per_second"
_FIRST_POSITION = Shown(_POSITIONS, (("position", ("0",)),))
_SKEW = Shown("kv_cache_hit_rate_skew")
_HIT_RATE = Shown("kv_cache_hit_rate")
_ACTIVE = Shown("replica_count_by_status", (("status", ("active",)),))


def speculation_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on speculation."""
    tune, aligned = its.band("speculation_rate").steps
    drafts = Compare(Measured(rate("spec_decode_num_draft_tokens_total")), ">=", its.value(DRAFT_TRAFFIC))
    return (
        Alert(
            "ServescopeSpeculationBelowBreakEven", "warning", "engine", "speculation",
            All((Compare(_SPECULATION_RATE, "<", tune.start), drafts)),
            "Speculative decoding costs more than it saves.",
            f"The main model of {WHO} accepts {PERCENT} of the draft's tokens; below {share(tune.start)} drafting is "
            "lost.",
            Runbook(
                f"Fewer than {share(tune.start)} of the drafted tokens are accepted. The work of drafting and of "
                "verifying "
                "them is greater than what the accepted ones save.",
                "Tokens come more slowly than without speculation, and the GPUs serve fewer requests.",
                "Compare the rate by draft position: when all fell together, draft and model no longer fit, as after "
                "new "
                "weights on one side; when only late ones did, see ServescopeDraftCollapsesLate. Look whether the "
                "traffic "
                "changed at the same time.",
                SPECULATION_BAND.lowest.advice,
                "A new kind of traffic, such as code where there was prose, lowers the rate for as long as it lasts.",
            ),
            "speculation", "speculation_rate", keep="10m",
        ),
        Alert(
            "ServescopeSpeculationNeedsTuning", "info", "engine", "speculation",
            All((
                Compare(_SPECULATION_RATE, ">=", tune.start),
                Compare(_SPECULATION_RATE, "<", aligned.start),
                drafts,
            )),
            "The draft agrees with the model less than it could.",
            f"The main model of {WHO} accepts {PERCENT} of the draft's tokens; "
            f"from {share(aligned.start)} it is well aligned.",
            Runbook(
                f"Between {share(tune.start)} and {share(aligned.start)} of the drafted tokens are accepted: "
                "drafting pays, "
                "and could pay more.",
                "None that users notice; the GPUs do more than they need to.",
                "Compare the rate by draft position, and between deployments of the same model.",
                tune.verdict.advice,
                "Many models and kinds of traffic allow no more than this; then silence it.",
            ),
            "speculation", "speculation_rate", wait="30m", keep="30m",
        ),
        Alert(
            "ServescopeDraftCollapsesLate", "warning", "engine", "speculation",
            All((
                Compare(Quotient(Shown(_POSITIONS), _FIRST_POSITION), "<", its.value(LATE_POSITION)),
                Compare(_FIRST_POSITION, ">=", its.value(DRAFT_TRAFFIC)),
            )),
            "Late positions of the draft are hardly ever accepted.",
            f"Draft position {{{{ $labels.position }}}} of {WHO} is accepted {PERCENT} as often as the first; "
            f"below {share(its.value(LATE_POSITION))} it costs more than it brings.",
            Runbook(
                "The first draft position is accepted as ever, later ones are not: drafts are longer than the draft is "
                f"good for. Told for each position accepted less than {share(its.value(LATE_POSITION))} as often as "
                "the first.",
                "Time is spent on drafting and verifying tokens that are thrown away.",
                "Look from which position on the rate falls.",
                "Shorten the draft (max_draft_len) to the positions that are accepted.",
                "A draft length chosen on purpose for rare, very regular output.",
            ),
            "speculation", _POSITIONS, keep="10m",
        ),
    )  # fmt: skip


def cache_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on the KV cache and the router."""
    behind, *_, churn = its.band("kv_cache_hit_rate_skew").steps
    efficient = its.band("kv_cache_hit_rate_efficiency").steps[0]
    prompts = Compare(Measured(rate("kv_cache_eligible_tokens_total")), ">=", its.value(PROMPT_TRAFFIC))
    kept = its.value(HIT_RATE_KEPT)
    dropped = Compare(_HIT_RATE, "<", Scaled(Over("avg", _HIT_RATE, "1h", before="30m"), kept))
    return (
        Alert(
            "ServescopeCacheChurn", "warning", "router", "cache",
            All((Compare(_SKEW, ">", churn.start), prompts)),
            "Workers lose cached blocks that the router counts on.",
            f"The router of {WHO} predicts {PERCENT} of the prompt tokens more than workers reuse; "
            f"beyond {signed_share(churn.start)} the caches churn.",
            Runbook(
                f"Of all prompt tokens more than {share(churn.start)} are predicted as cached and gone when the "
                "request is served: blocks are evicted in between, or the router does not hear that they were.",
                "Requests are sent where their prefix is no more: first tokens come later, and prompts are computed "
                "twice.",
                "Look at KV cache use and preemptions: near full, blocks are evicted for want of room. If there is "
                "room, "
                "look for event gaps and drops at the router.",
                churn.verdict.advice,
                "While many replicas are new or were restarted, their caches are empty before the router knows.",
            ),
            "cache", "kv_cache_hit_rate_skew", keep="10m",
        ),
        Alert(
            "ServescopeCacheEventsMissed", "warning", "router", "cache",
            All((Compare(_SKEW, "<", behind.start), prompts)),
            "Workers reuse far more than the router knows of.",
            f"The router of {WHO} predicts less than workers reuse: the difference is {PERCENT} of the prompt tokens; "
            f"below {signed_share(behind.start)} it misses cache events.",
            Runbook(
                f"Workers reuse more than {share(abs(behind.start))} of the prompt tokens without the router having "
                "predicted it: its index does not get their events, or not all.",
                "Requests are not sent where their prefix is cached: hits that are there are missed.",
                "Look at event gaps, drops and the index's state; at the network between workers and router.",
                SKEW_BAND.lowest.advice,
                "Right after a router without a snapshot starts, its index is empty and fills up.",
            ),
            "cache", "kv_cache_hit_rate_skew", keep="10m",
        ),
        Alert(
            "ServescopeCacheEventGaps", "warning", "router", "cache",
            Compare(Shown("router_event_gap_rate"), ">", its.value(EVENT_GAPS)),
            "Cache events of workers do not reach the router.",
            f"The router of {WHO} misses {NUMBER} cache events a second.",
            Runbook(
                "The sequence numbers of the workers' cache events have gaps: some were lost on the way.",
                "The index is wrong until it is mended: prefixes are missed, or counted on in vain.",
                "Look which worker's events are missing, and at the messaging between workers and router: full "
                "buffers, "
                "a network that drops.",
                "Mend the transport; restart the router from a snapshot when its index does not recover.",
                "A worker that restarts can leave a single gap, which is over before this is told.",
            ),
            "cache", "router_event_gap_rate", keep="10m",
        ),
        Alert(
            "ServescopeRouterIndexDegraded", "warning", "router", "cache",
            Compare(Measured(Level("router_index_state", "max", (("state", ("degraded",)),))), ">", 0.0),
            "The router's index of the workers' caches is degraded.",
            f"The index of {WHO} has been degraded for ten minutes: the router predicts by guesswork.",
            Runbook(
                "The router says that its index does not show the workers' caches.",
                "Requests are placed with little regard to cached prefixes: first tokens come later.",
                "Look at event gaps and drops, and whether recoveries are tried and fail.",
                "Mend the event stream; restart the router from a snapshot.",
                "None known: the state is the router's own word.",
            ),
            "cache", "router_event_gap_rate", keep="5m",
        ),
        Alert(
            "ServescopeRoutingInefficient", "warning", "router", "cache",
            All((Compare(Shown("kv_cache_hit_rate_efficiency"), "<", efficient.start), prompts)),
            "The router takes fewer cache hits than there are.",
            f"Workers of {WHO} reuse {PERCENT} of what the best placed ones have cached; "
            f"from {share(efficient.start)} that is normal.",
            Runbook(
                f"Of what the best placed workers have cached less than {share(efficient.start)} is reused: requests "
                "go to others than those with their longest prefix, or find less there than was cached.",
                "Prompts are computed that were cached elsewhere: first tokens come later, at a higher load.",
                "Look at the skew first: if that is large, see its alerts. Otherwise compare the load of the "
                "workers: one "
                "that is saturated is passed over.",
                EFFICIENCY_BAND.lowest.advice,
                "At saturation a router gives up hits for balance, and rightly so.",
            ),
            "cache", "kv_cache_hit_rate_efficiency", wait="30m", keep="15m",
        ),
        Alert(
            "ServescopeCacheHitRateDropped", "warning", "router", "cache",
            All((dropped, prompts)),
            "Fewer prompt tokens are served from cache than before.",
            f"The hit rate of {WHO} is {PERCENT}, below {share(its.value(HIT_RATE_KEPT))} of what it was an hour ago.",
            Runbook(
                f"The hit rate is below {share(its.value(HIT_RATE_KEPT))} of its own average over the hour that "
                "ended half an "
                "hour ago. Its level says nothing, its change does.",
                "First tokens come later, and the same load needs more replicas.",
                "Look at the best possible hit rate: if it fell too, the traffic changed; if not, routing or the "
                "caches "
                "did. Look for restarts and scaling down at that time.",
                "For new traffic nothing; otherwise see the alerts on skew and efficiency, and slow down scaling down.",
                "Another mix of prompts, as between day and night.",
            ),
            "cache", "kv_cache_hit_rate", wait="15m",
        ),
        Alert(
            "ServescopeScaleDownLosesCache", "warning", "autoscaler", "cache",
            All((
                Compare(_ACTIVE, "<", Over("max", _ACTIVE, "30m")),
                dropped,
                prompts,
            )),
            "Scaling down has cost cached prefixes.",
            f"{WHO} has {NUMBER} active replicas, fewer than half an hour ago, and its hit rate is below "
            f"{share(its.value(HIT_RATE_KEPT))} of what it was.",
            Runbook(
                "Replicas were taken away, and the hit rate fell with them: their caches held what is asked for.",
                "First tokens come later, until the others have cached the same; often the load then brings replicas "
                "back.",
                "Compare the time of scaling down with the fall of the hit rate.",
                "Lengthen scale_down_half_life_seconds and scale_down_delay.",
                "Replicas that left for another reason, at the moment the traffic changed.",
            ),
            "cache", "kv_cache_hit_rate",
        ),
    )  # fmt: skip
