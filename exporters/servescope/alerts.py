"""The alerts: what is told to people of a deployment, of its telemetry, and of servescope itself.

Every number here that a value is compared with is the catalog's. What users feel is critical; what explains it, or will
be felt later, is a warning; what only wants tuning is information and calls nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.alerting import (
    NUMBER,
    PERCENT,
    WHO,
    Alert,
    All,
    Any,
    Compare,
    Condition,
    Except,
    Measured,
    Over,
    Present,
    Quotient,
    Runbook,
    Scaled,
    Shown,
    burns,
)
from servescope.alerts_cutover import CUTOVER_ALERTS, ENOUGH_REQUESTS
from servescope.alerts_telemetry import SELF_ALERTS, TELEMETRY_ALERTS
from servescope.catalog import (
    ACTIVE_REPLICAS,
    BURN_WINDOWS,
    DRAFT_TRAFFIC,
    EFFICIENCY_BAND,
    EVENT_GAPS,
    FAILURES_REPEATED,
    HIT_RATE_KEPT,
    LATE_POSITION,
    OBJECTIVES,
    PROMPT_TRAFFIC,
    QUEUE_FLOOR,
    SCALE_CHANGES,
    SKEW_BAND,
    SPECULATION_BAND,
    Objective,
)
from servescope.expressions import Level, level, rate

_WHO, _PERCENT, _NUMBER = WHO, PERCENT, NUMBER

_TUNE, _ALIGNED = SPECULATION_BAND.steps
_BEHIND, _NORMAL_SKEW, _SOME_CHURN, _CHURN = SKEW_BAND.steps
_EFFICIENT = EFFICIENCY_BAND.steps[0]


def _replicas(status: str) -> Shown:
    return Shown("replica_count_by_status", (("status", (status,)),))


_SPECULATION_RATE = Shown("speculation_rate")
_POSITIONS = "spec_decode_accepted_tokens_per_second"
_FIRST_POSITION = Shown(_POSITIONS, (("position", ("0",)),))
_SKEW = Shown("kv_cache_hit_rate_skew")
_HIT_RATE = Shown("kv_cache_hit_rate")
_WANTED = Shown("autoscaler_desired_scale")
_SENT = Shown("autoscaler_rounded_desired_scale")
_QUEUED = Shown("queued_requests")

_DRAFTS = Compare(Measured(rate("spec_decode_num_draft_tokens_total")), ">=", DRAFT_TRAFFIC.value)
_PROMPTS = Compare(Measured(rate("kv_cache_eligible_tokens_total")), ">=", PROMPT_TRAFFIC.value)
_HIT_RATE_DROPPED = Compare(
    _HIT_RATE, "<", Scaled(Over("avg", _HIT_RATE, "1h", before="30m"), HIT_RATE_KEPT.value)
)  # fmt: skip


_SPECULATION = (
    Alert(
        "ServescopeSpeculationBelowBreakEven", "warning", "engine", "speculation",
        All((Compare(_SPECULATION_RATE, "<", _TUNE.start), _DRAFTS)),
        "Speculative decoding costs more than it saves.",
        f"The main model of {_WHO} accepts {_PERCENT} of the draft's tokens; below {_TUNE.start:.0%} drafting is lost.",
        Runbook(
            f"Fewer than {_TUNE.start:.0%} of the drafted tokens are accepted. The work of drafting and of verifying "
            "them is greater than what the accepted ones save.",
            "Tokens come more slowly than without speculation, and the GPUs serve fewer requests.",
            "Compare the rate by draft position: when all fell together, draft and model no longer fit, as after new "
            "weights on one side; when only late ones did, see ServescopeDraftCollapsesLate. Look whether the traffic "
            "changed at the same time.",
            SPECULATION_BAND.lowest.advice,
            "A new kind of traffic, such as code where there was prose, lowers the rate for as long as it lasts.",
        ),
        "speculation", "speculation_rate", keep="10m",
    ),
    Alert(
        "ServescopeSpeculationNeedsTuning", "info", "engine", "speculation",
        All((
            Compare(_SPECULATION_RATE, ">=", _TUNE.start),
            Compare(_SPECULATION_RATE, "<", _ALIGNED.start),
            _DRAFTS,
        )),
        "The draft agrees with the model less than it could.",
        f"The main model of {_WHO} accepts {_PERCENT} of the draft's tokens; "
        f"from {_ALIGNED.start:.0%} it is well aligned.",
        Runbook(
            f"Between {_TUNE.start:.0%} and {_ALIGNED.start:.0%} of the drafted tokens are accepted: drafting pays, "
            "and could pay more.",
            "None that users notice; the GPUs do more than they need to.",
            "Compare the rate by draft position, and between deployments of the same model.",
            _TUNE.verdict.advice,
            "Many models and kinds of traffic allow no more than this; then silence it.",
        ),
        "speculation", "speculation_rate", wait="30m", keep="30m",
    ),
    Alert(
        "ServescopeDraftCollapsesLate", "warning", "engine", "speculation",
        All((
            Compare(Quotient(Shown(_POSITIONS), _FIRST_POSITION), "<", LATE_POSITION.value),
            Compare(_FIRST_POSITION, ">=", DRAFT_TRAFFIC.value),
        )),
        "Late positions of the draft are hardly ever accepted.",
        f"Draft position {{{{ $labels.position }}}} of {_WHO} is accepted {_PERCENT} as often as the first; "
        f"below {LATE_POSITION.value:.0%} it costs more than it brings.",
        Runbook(
            "The first draft position is accepted as ever, later ones are not: drafts are longer than the draft is "
            f"good for. Told for each position accepted less than {LATE_POSITION.value:.0%} as often as the first.",
            "Time is spent on drafting and verifying tokens that are thrown away.",
            "Look from which position on the rate falls.",
            "Shorten the draft (max_draft_len) to the positions that are accepted.",
            "A draft length chosen on purpose for rare, very regular output.",
        ),
        "speculation", _POSITIONS, keep="10m",
    ),
)  # fmt: skip

_CACHE = (
    Alert(
        "ServescopeCacheChurn", "warning", "router", "cache",
        All((Compare(_SKEW, ">", _CHURN.start), _PROMPTS)),
        "Workers lose cached blocks that the router counts on.",
        f"The router of {_WHO} predicts {_PERCENT} of the prompt tokens more than workers reuse; "
        f"beyond {_CHURN.start:+.0%} the caches churn.",
        Runbook(
            "What the router predicts as cached is gone when the request is served: blocks are evicted in between, or "
            "the router does not hear that they were.",
            "Requests are sent where their prefix is no more: first tokens come later, and prompts are computed twice.",
            "Look at KV cache use and preemptions: near full, blocks are evicted for want of room. If there is room, "
            "look for event gaps and drops at the router.",
            _CHURN.verdict.advice,
            "While many replicas are new or were restarted, their caches are empty before the router knows.",
        ),
        "cache", "kv_cache_hit_rate_skew", keep="10m",
    ),
    Alert(
        "ServescopeCacheEventsMissed", "warning", "router", "cache",
        All((Compare(_SKEW, "<", _BEHIND.start), _PROMPTS)),
        "Workers reuse far more than the router knows of.",
        f"The router of {_WHO} predicts {_PERCENT} of the prompt tokens beyond what workers reuse; "
        f"below {_BEHIND.start:+.0%} it misses cache events.",
        Runbook(
            "The router's index knows less than the workers have: it does not get their events, or not all.",
            "Requests are not sent where their prefix is cached: hits that are there are missed.",
            "Look at event gaps, drops and the index's state; at the network between workers and router.",
            SKEW_BAND.lowest.advice,
            "Right after a router without a snapshot starts, its index is empty and fills up.",
        ),
        "cache", "kv_cache_hit_rate_skew", keep="10m",
    ),
    Alert(
        "ServescopeCacheEventGaps", "warning", "router", "cache",
        Compare(Shown("router_event_gap_rate"), ">", EVENT_GAPS.value),
        "Cache events of workers do not reach the router.",
        f"The router of {_WHO} misses {_NUMBER} cache events a second.",
        Runbook(
            "The sequence numbers of the workers' cache events have gaps: some were lost on the way.",
            "The index is wrong until it is mended: prefixes are missed, or counted on in vain.",
            "Look which worker's events are missing, and at the messaging between workers and router: full buffers, "
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
        f"The index of {_WHO} has been degraded for ten minutes: the router predicts by guesswork.",
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
        All((Compare(Shown("kv_cache_hit_rate_efficiency"), "<", _EFFICIENT.start), _PROMPTS)),
        "The router takes fewer cache hits than there are.",
        f"Workers of {_WHO} reuse {_PERCENT} of what the best placed ones have cached; "
        f"from {_EFFICIENT.start:.0%} that is normal.",
        Runbook(
            "Requests go to workers other than those with their longest prefix, or find less there than was cached.",
            "Prompts are computed that were cached elsewhere: first tokens come later, at a higher load.",
            "Look at the skew first: if that is large, see its alerts. Otherwise compare the load of the workers: one "
            "that is saturated is passed over.",
            EFFICIENCY_BAND.lowest.advice,
            "At saturation a router gives up hits for balance, and rightly so.",
        ),
        "cache", "kv_cache_hit_rate_efficiency", wait="30m", keep="15m",
    ),
    Alert(
        "ServescopeCacheHitRateDropped", "warning", "router", "cache",
        All((_HIT_RATE_DROPPED, _PROMPTS)),
        "Fewer prompt tokens are served from cache than before.",
        f"The hit rate of {_WHO} is {_PERCENT}, below {HIT_RATE_KEPT.value:.0%} of what it was an hour ago.",
        Runbook(
            f"The hit rate is below {HIT_RATE_KEPT.value:.0%} of its own average over the hour that ended half an "
            "hour ago. Its level says nothing, its change does.",
            "First tokens come later, and the same load needs more replicas.",
            "Look at the best possible hit rate: if it fell too, the traffic changed; if not, routing or the caches "
            "did. Look for restarts and scaling down at that time.",
            "For new traffic nothing; otherwise see the alerts on skew and efficiency, and slow down scaling down.",
            "Another mix of prompts, as between day and night.",
        ),
        "cache", "kv_cache_hit_rate", wait="15m",
    ),
    Alert(
        "ServescopeScaleDownLosesCache", "warning", "autoscaler", "cache",
        All((
            Compare(_replicas("active"), "<", Over("max", _replicas("active"), "30m")),
            _HIT_RATE_DROPPED,
            _PROMPTS,
        )),
        "Scaling down has cost cached prefixes.",
        f"{_WHO} has {_NUMBER} active replicas, fewer than half an hour ago, and its hit rate is below "
        f"{HIT_RATE_KEPT.value:.0%} of what it was.",
        Runbook(
            "Replicas were taken away, and the hit rate fell with them: their caches held what is asked for.",
            "First tokens come later, until the others have cached the same; often the load then brings replicas back.",
            "Compare the time of scaling down with the fall of the hit rate.",
            "Lengthen scale_down_half_life_seconds and scale_down_delay.",
            "Replicas that left for another reason, at the moment the traffic changed.",
        ),
        "cache", "kv_cache_hit_rate",
    ),
)  # fmt: skip

_AUTOSCALING = (
    Alert(
        "ServescopeAutoscalerPinned", "warning", "autoscaler", "scaling",
        Compare(_WANTED, ">", _SENT),
        "The load asks for more replicas than the bound allows.",
        f"The load of {_WHO} asks for {_NUMBER} replicas, more than the autoscaler may order.",
        Runbook(
            "The raw desired scale is above what is sent to the orchestrator, which only the upper bound can do: "
            "rounding goes up, and scaling up does not wait.",
            "Requests queue, and first tokens come later, for as long as the load lasts.",
            "Compare raw and sent scale; look whether the tokens in flight are those of traffic or of requests stuck.",
            "Raise max_replica, or target_in_flight_tokens if latency allows; otherwise limit the traffic.",
            "A bound that is meant as a budget; then silence it.",
        ),
        "scale", "autoscaler_desired_scale", keep="5m",
    ),
    Alert(
        "ServescopeReplicasBelowDesired", "warning", "autoscaler", "scaling",
        Compare(_replicas("active"), "<", _SENT),
        "Fewer replicas serve than the autoscaler ordered.",
        f"{_WHO} has {_NUMBER} active replicas, fewer than ordered, for fifteen minutes.",
        Runbook(
            "The orchestrator has not brought what was ordered: no room, no GPU, replicas that fail or start slowly.",
            "The load meets too few replicas: requests queue.",
            "Look at the replicas by status: `starting` is slow, `failed` is broken, neither means nobody started any.",
            "Free or add capacity; mend the image or the volume that replicas start from.",
            "A cold start that always takes longer than fifteen minutes.",
        ),
        "scale", "replica_count_by_status", wait="15m", keep="5m", panel="Replicas",
    ),
    Alert(
        "ServescopeReplicasAboveDesired", "info", "autoscaler", "scaling",
        Compare(_replicas("active"), ">", _SENT),
        "More replicas serve than the autoscaler ordered.",
        f"{_WHO} has {_NUMBER} active replicas, more than ordered, for fifteen minutes.",
        Runbook(
            "Replicas that the autoscaler gave up are still there and take requests.",
            "None that users notice; it costs GPUs.",
            "Look whether replicas drain, and which long requests keep them.",
            "Tell the orchestrator; look for a second one who scales by hand.",
            "Replicas added by hand on purpose.",
        ),
        "scale", "replica_count_by_status", wait="15m", keep="5m", panel="Replicas",
    ),
    Alert(
        "ServescopeAutoscalerOvershoots", "warning", "autoscaler", "scaling",
        All((
            Compare(_replicas("starting"), ">", 0.0),
            Compare(_replicas("active"), ">", _WANTED),
        )),
        "Replicas are starting that the load no longer asks for.",
        f"{_NUMBER} replicas of {_WHO} are starting, and the active ones alone are more than the load asks for.",
        Runbook(
            "While new workers started, the load passed, or its average still counted a queue that is gone: more is "
            "on the way than is needed.",
            "None that users notice now; scaling down again costs caches.",
            "Compare tokens in flight with their average, and the time a replica takes to start.",
            "Lengthen autoscaling_window, or raise min_replica if bursts are usual.",
            "A short burst that is over before its replicas are there.",
        ),
        "scale", "autoscaler_desired_scale", wait="5m",
    ),
    Alert(
        "ServescopeAutoscalerFlapping", "warning", "autoscaler", "scaling",
        Compare(Over("changes", _SENT, "1h"), ">=", SCALE_CHANGES.value),
        "The autoscaler changes its mind again and again.",
        f"The scale sent for {_WHO} changed {SCALE_CHANGES.value:g} times or more within the hour.",
        Runbook(
            f"The ordered number of replicas changed {SCALE_CHANGES.value:g} times or more within an hour.",
            "Caches are lost and filled again; cold starts are paid for capacity that soon goes.",
            "Compare the changes with the traffic: without a tide in it, the windows are too short for its noise.",
            "Lengthen autoscaling_window, scale_down_delay and scale_down_half_life_seconds.",
            "A steep rise of the traffic, in as many steps upwards.",
        ),
        "scale", "autoscaler_rounded_desired_scale", wait="5m",
    ),
    Alert(
        "ServescopeAutoscalerInactive", "warning", "autoscaler", "scaling",
        Except(All((Present(Over("max", _SENT, "6h")), Present(Shown("concurrent_requests")))), Present(_SENT)),
        "An autoscaler reports no more.",
        f"The autoscaler of {_WHO} sent {_NUMBER} replicas at most within six hours, and reports nothing now.",
        Runbook(
            "The deployment had an autoscaler within the last six hours and is still seen, but no desired scale is: "
            "its target fails, has left the lists, or shows it no more.",
            "Nobody adds replicas when the load grows, and the alerts on scaling are blind.",
            "Look at the targets of the role autoscaler, then at its log and at its leader election.",
            "Restart it; set the replicas by hand for as long as it is gone.",
            "A deployment whose autoscaler was taken away on purpose: over six hours later.",
        ),
        "scale", "autoscaler_rounded_desired_scale", keep="5m",
    ),
    Alert(
        "ServescopeAutoscalerFrozen", "warning", "autoscaler", "scaling",
        All((
            Compare(Over("changes", Shown("autoscaler_in_flight_tokens"), "15m"), "==", 0.0),
            Compare(Over("min", Shown("concurrent_requests"), "15m"), ">", 0.0),
            Compare(Shown("output_tokens_per_second"), ">", 0.0),
        )),
        "An autoscaler no longer sees the load.",
        f"The tokens in flight that the autoscaler of {_WHO} reports have not changed for fifteen minutes, while "
        "requests are served.",
        Runbook(
            "Requests are in flight without a break and write tokens, which changes the tokens in flight all the time; "
            "the autoscaler's gauge of them stands still.",
            "It decides by what was: no replicas when the load grows, too many when it falls.",
            "Look at the autoscaler's log, and whether it still reaches the workers it counts.",
            "Restart it; set the replicas by hand until it follows the load.",
            "None known.",
        ),
        "scale", "autoscaler_in_flight_tokens", keep="5m",
    ),
)  # fmt: skip

_REPLICAS = (
    Alert(
        "ServescopeReplicasFailed", "warning", "autoscaler", "replicas",
        Compare(_replicas("failed"), ">", 0.0),
        "Replicas have failed.",
        f"{_NUMBER} replicas of {_WHO} have failed.",
        Runbook(
            "Replicas ended in failure and have not come back.",
            "Less capacity, and the requests they had are lost.",
            "Read the last log of a failed replica: memory of the GPU, a device error, a missing file.",
            "Let the orchestrator replace it; drain the machine when all of its replicas fail.",
            "None known.",
        ),
        "scale", "replica_count_by_status", wait="5m", keep="5m",
    ),
    Alert(
        "ServescopeReplicaCrashLoop", "warning", "autoscaler", "replicas",
        Compare(Over("changes", _replicas("failed"), "30m"), ">=", FAILURES_REPEATED.value),
        "Replicas fail, are started again, and fail again.",
        f"Failed replicas of {_WHO} came or went {FAILURES_REPEATED.value:g} times or more within half an hour.",
        Runbook(
            f"The number of failed replicas changed {FAILURES_REPEATED.value:g} times or more within half an hour.",
            "Every failure loses the requests of its replica; what it had cached is gone.",
            "Read why they ended: right after their start it is the image or its configuration, later the load.",
            "Go back to the last version that ran; take the machine out when all of it is on one.",
            "Replicas that are ended one by one on purpose, by hand.",
        ),
        "scale", "replica_count_by_status", wait="5m", keep="15m",
    ),
    Alert(
        "ServescopeColdStartSlow", "warning", "autoscaler", "replicas",
        Compare(Over("min", _replicas("starting"), "5m"), ">", 0.0),
        "Replicas take long until they serve.",
        f"{_NUMBER} replicas of {_WHO} or more have been starting for over twenty minutes.",
        Runbook(
            "There has been a starting replica for twenty minutes without a break.",
            "Capacity that was ordered is not there: requests queue while the load is high.",
            "Look at what the start waits for: image, weights, compilation, health check.",
            "Keep weights near, or raise min_replica so that bursts do not wait for a start.",
            "Replicas that start one after the other without a break, each fast enough.",
        ),
        "scale", "replica_count_by_status", wait="15m", keep="5m",
    ),
    Alert(
        "ServescopeNoActiveReplica", "critical", "autoscaler", "replicas",
        Except(
            Compare(_replicas("active"), "<", ACTIVE_REPLICAS.value),
            Compare(_SENT, "==", 0.0),
        ),
        "No replica serves.",
        f"{_WHO} has no active replica, and its autoscaler did not ask for that.",
        Runbook(
            "No replica is active, though none was given up on purpose.",
            "Every request fails or waits.",
            "Look at the replicas by status, and at the last change of the deployment.",
            "Go back to the last version that ran; send the traffic to the other stack.",
            "A deployment taken down by hand while its autoscaler still orders replicas.",
        ),
        "scale", "replica_count_by_status", wait="5m", keep="5m",
    ),
)  # fmt: skip

_SERVING = (
    Alert(
        "ServescopeUpButNotServing", "critical", "engine", "serving",
        All((
            Compare(Measured(level("concurrent_requests"), ("replica",)), ">", 0.0),
            Compare(Measured(rate("output_tokens_total"), ("replica",)), "==", 0.0),
            Compare(Measured(rate("input_tokens_total"), ("replica",)), "==", 0.0),
        )),
        "A replica takes requests and computes nothing.",
        f"Replica {{{{ $labels.replica }}}} of {_WHO} has {_NUMBER} requests in flight and no token comes of it.",
        Runbook(
            "The replica answers scrapes and health checks and has requests, but neither reads prompts nor writes "
            "tokens.",
            "Its requests hang until they time out, and the router goes on sending more.",
            "Look at its log and its GPU: a collective that waits, a device that fell off, a deadlock.",
            "Take it out of routing and restart it; keep a dump of its stacks.",
            "An engine that books its tokens only at a request's end, on requests of more than ten minutes.",
        ),
        "requests", "concurrent_requests", wait="5m", keep="5m", panel="Up but not serving",
    ),
    Alert(
        "ServescopeQueueGrowing", "warning", "engine", "serving",
        All((
            Compare(_QUEUED, ">", Over("avg", _QUEUED, "5m", before="10m")),
            Compare(_QUEUED, ">=", QUEUE_FLOOR.value),
        )),
        "Requests arrive faster than they are served.",
        f"{_NUMBER} requests of {_WHO} are queued, more than ten minutes ago.",
        Runbook(
            f"The queue has {QUEUE_FLOOR.value:g} requests or more and keeps growing.",
            "First tokens come later and later, until requests are refused or time out.",
            "Compare the requests a second with before, and the batch and the KV cache in use: more traffic, or "
            "engines that serve less?",
            "Add replicas; see the alerts on the autoscaler when it does not.",
            "A batch of offline requests sent at once.",
        ),
        "requests", "queued_requests", wait="15m", keep="5m",
    ),
)  # fmt: skip


def _burning(objective: Objective, severity: str) -> Alert:
    rows = [row for row in BURN_WINDOWS if row.severity == severity]
    condition: Condition = Any(tuple(burns(objective, row, ENOUGH_REQUESTS) for row in rows))
    camel = "".join(word.capitalize() for word in objective.name.split("_"))
    quick = severity == "critical"
    table = " or ".join(f"{row.factor:g} times over {row.long} and {row.short}" for row in rows)
    return Alert(
        f"Servescope{camel}Budget{'BurnsFast' if quick else 'Burns'}",
        "critical" if quick else "warning", "slo", f"slo-{objective.name.replace('_', '-')}",
        condition,
        f"{objective.title}: the error budget burns {'fast' if quick else 'away'}.",
        f"{_PERCENT} of what {_WHO} serves breaks its promise: {objective.promise}.",
        Runbook(
            f"The promise is that {objective.promise}. The budget of {objective.budget:.1%} bad ones in 30 days burns "
            f"faster than it bears: {table}.",
            "Users feel it." if quick else "Users feel it now and then; the budget is gone before the month is.",
            "Compare replicas: is it one, or all? Compare with the last change, the queue and the KV cache in use.",
            "Undo the last change; take a bad replica out; add replicas when the queue is the cause.",
            "Requests that are slow by their nature, such as very long prompts, in a new share of the traffic.",
        ),
        "requests", _SLO_FIGURES[objective.name], wait="2m" if quick else "15m", keep="10m",
        waits_less="both windows must burn, the longer one for an hour or more" if quick else "",
    )  # fmt: skip


_SLO_FIGURES = {
    "time_to_first_token": "time_to_first_token_p95",
    "time_per_output_token": "time_per_output_token_p95",
    "requests": "request_error_share",
}
_OBJECTIVES = tuple(_burning(each, severity) for each in OBJECTIVES.values() for severity in ("critical", "warning"))


_ALL = (
    *_SPECULATION, *_CACHE, *_AUTOSCALING, *_REPLICAS, *_SERVING, *_OBJECTIVES, *CUTOVER_ALERTS, *TELEMETRY_ALERTS,
    *SELF_ALERTS,
)  # fmt: skip

ALERTS: Mapping[str, Alert] = MappingProxyType({alert.name: alert for alert in _ALL})
"""Every alert by name."""
