"""The numbers that alerts compare with and no band has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.contract.own_metrics import JUDGEMENT_AGE_SECONDS
from servescope.contract.types import Bound

DRAFT_TRAFFIC = Bound("draft_traffic", 1.0, "tokens/s", "fewer draft tokens do not suffice to judge the draft")
PROMPT_TRAFFIC = Bound("prompt_traffic", 100.0, "tokens/s", "fewer prompt tokens do not suffice to judge the caches")
HIT_RATE_KEPT = Bound(
    "hit_rate_kept", 0.70, "ratio", "a hit rate below this share of what it was has dropped", most=1.0
)
EVENT_GAPS = Bound("event_gaps", 0.0, "events/s", "a gap that stays leaves the router's index wrong")
FAILED_SHARE = Bound(
    "failed_share",
    0.04,
    "ratio",
    "if no more than this share of a deployment's replicas has failed, the others serve its load",
    most=1.0,
)
REQUESTED_KEPT = Bound(
    "requested_kept",
    0.96,
    "ratio",
    "if a smaller share of the requested replicas is active, capacity is missing",
    most=1.0,
)
FAILURES_REPEATED = Bound(
    "failures_repeated",
    4.0,
    "events",
    "as many changes of the failed replicas within half an hour are a crash loop",
    least=1.0,
)
ACTIVE_REPLICAS = Bound("active_replicas", 1.0, "replicas", "fewer active replicas serve no requests", least=1.0)
QUEUE_FLOOR = Bound("queue_floor", 10.0, "requests", "a shorter queue is harmless")
QUEUE_SHARE = Bound(
    "queue_share", 0.5, "ratio", "a queue of more than this share of the requests in flight does not drain", most=1.0
)
QUEUE_USUAL = Bound(
    "queue_usual",
    2.0,
    "ratio",
    "a queue at most as many times as long as at this time of each of the two days before is usual there",
    least=1.0,
)
QUEUE_SHORT = Bound(
    "queue_short", 0.1, "ratio", "a queue of no more than this share of the requests in flight may grow", most=1.0
)
ABORTS_MORE = Bound(
    "aborts_more",
    0.2,
    "ratio",
    "a share of aborts higher by this than that of the day before is not the clients' usual behavior",
    most=1.0,
)
ABORTS_MOST = Bound(
    "aborts_most", 0.5, "ratio", "so many aborts are too many where there is no day before to compare with", most=1.0
)
ABORTS_TRAFFIC = Bound(
    "aborts_traffic", 0.05, "requests/s", "fewer requests do not suffice to judge how many clients hang up"
)
HANGING_FLOOR = Bound("hanging_floor", 10.0, "requests", "fewer requests in flight need not be a pattern", least=1.0)
HANGING_TIMES = Bound(
    "hanging_times",
    3.0,
    "ratio",
    "as many times the requests in flight that those that end account for: some do not end",
    least=1.0,
)
HANGING_SHARE = Bound(
    "hanging_share", 0.05, "ratio", "if more than this share of the started requests does not end, some hang", most=1.0
)
GROWN_TIMES = Bound(
    "grown_times", 2.0, "ratio", "as many times the requests in flight of the day before are unusual", least=1.0
)
BAD_REQUESTS = Bound(
    "bad_requests", 10.0, "requests", "fewer requests that violate an objective do not suffice to alert", least=1.0
)
ALL_BAD_REQUESTS = Bound(
    "all_bad_requests", 3.0, "requests", "as many suffice if they were all the requests there were", least=1.0
)
ALL_BAD = 0.99
"""From this share of requests on, all of them are bad; extrapolated counts are no whole numbers."""
STEADY_TRAFFIC = Bound(
    "steady_traffic", 0.1, "requests/s", "traffic that never fell below this for an hour does not end by chance"
)
STEADY_SHARE = Bound(
    "steady_share",
    0.05,
    "ratio",
    "traffic that fell below this share of its hour's highest before it stopped declined",
    most=1.0,
)
ANSWERS_KEPT = Bound(
    "answers_kept", 0.2, "ratio", "answers below this share of their length an hour ago are cut off or empty", most=1.0
)
SAME_TRAFFIC = Bound(
    "same_traffic",
    0.5,
    "ratio",
    "a smaller share of the usual requests, or a larger one of the output tokens, is other traffic",
    most=1.0,
)
ANSWERS_TRAFFIC = Bound(
    "answers_traffic", 0.1, "requests/s", "fewer requests do not suffice to judge what they are answered with"
)
CLIENT_ERRORS_MORE = Bound(
    "client_errors_more",
    0.1,
    "ratio",
    "a share of invalid requests higher by this than that of the day before is not the clients' usual behavior",
    most=1.0,
)
HOT_SHARE = Bound(
    "hot_share",
    0.7,
    "ratio",
    "a replica of several with a larger share of the requests in flight is preferred",
    most=1.0,
)
ENDED_KEPT = Bound(
    "ended_kept", 0.7, "ratio", "if a smaller share of the requests of an hour ago ends, capacity is missing", most=1.0
)
IN_FLIGHT_GROWN = Bound(
    "in_flight_grown",
    1.5,
    "ratio",
    "as many times the requests in flight of an hour ago do not end for lack of traffic",
    least=1.0,
)
SLOW_TIMES = Bound(
    "slow_times",
    1.75,
    "ratio",
    "a replica that takes, or holds, as many times the mean of the others differs from them",
    least=1.0,
)
SLOW_TRAFFIC = Bound("slow_traffic", 0.05, "requests/s", "fewer requests do not suffice to judge how fast a replica is")
BUSY_OTHERS = Bound(
    "busy_others",
    5.0,
    "requests",
    "where replicas have as many requests in flight on average, one without any gets none",
    least=1.0,
)
RESTARTS = Bound(
    "restarts",
    3.0,
    "events",
    "a replica whose process begins anew as many times within two hours does not stay up",
    least=2.0,
)
ANSWERS_GROWN = Bound(
    "answers_grown", 2.0, "ratio", "answers as many times as long as an hour ago are other answers", least=1.0
)
ANSWERS_CUT = Bound(
    "answers_cut",
    0.5,
    "ratio",
    "a share of answers that end at a limit higher by this than an hour ago does not end by itself",
    most=1.0,
)
UNANSWERED_REQUESTS = Bound(
    "unanswered_requests",
    3.0,
    "requests",
    "as many requests that are in flight all the time while none ends are not a slow one",
    least=1.0,
)
UNANSWERED_RATE = Bound(
    "unanswered_rate", 0.05, "requests/s", "as many requests as this, an hour ago, do not all end later by chance"
)
UNANSWERED_DURATION = Bound(
    "unanswered_duration", 150.0, "seconds", "requests that took longer than this an hour ago may end together"
)
SERVING_AGE = Bound(
    "serving_age", 150.0, "seconds", "counters of an older scrape stay the same for most of a rate's window"
)
MOST_GONE = Bound(
    "most_gone", 0.5, "ratio", "if a larger share of the deployments is gone or down they have one cause", most=1.0
)
SEVERAL_DOWN = Bound(
    "several_down", 3.0, "deployments", "if fewer deployments are down at once, each has a page of its own", least=2.0
)
TARGETS_DOWN = Bound(
    "targets_down",
    0.1,
    "ratio",
    "if no more targets are down for each that is up, the others serve until those are restarted",
)
SEEN_SHARE = Bound(
    "seen_share",
    0.8,
    "ratio",
    "if a smaller share of the targets is seen, totals are wrong and alerts stay silent",
    most=1.0,
)
FAILING_TARGETS = Bound(
    "failing_targets",
    3.0,
    "replicas",
    "if the scrapes of fewer targets fail, each has a ticket, however few there are",
    least=1.0,
)
CLOCK_OFF = Bound(
    "clock_off", 90.0, "seconds", "samples whose time is wrong by more are too few in a window of rates", least=90.0
)
KV_FULL = Bound("kv_full", 0.95, "ratio", "a KV cache with less room than this takes hardly any request", most=1.0)
PREEMPTED_SHARE = Bound(
    "preempted_share", 0.1, "ratio", "preemptions for each request beyond this cost more than the room they make"
)
KV_TRANSFER_TIME = Bound("kv_transfer_time", 1.0, "seconds", "users notice a longer pause after the first token")
FAILING_RULES = Bound("failing_rules", 0.5, "events", "if more rules fail at most evaluations, one of them always does")
MISSED_EVALUATIONS = Bound(
    "missed_evaluations", 0.1, "ratio", "if a larger share is missed, alerts fire late and figures have gaps", most=1.0
)
UNSENT_ALERTS = Bound(
    "unsent_alerts",
    0.01,
    "ratio",
    "requests that fail for each alert sent; a request has up to 64 alerts, so a few in a hundred are most requests",
    most=1.0,
)
FAILED_NOTIFICATIONS = Bound(
    "failed_notifications", 0.1, "ratio", "if a larger share of notifications fails, people miss some", most=1.0
)
STORE_QUEUE_AGE = Bound(
    "store_queue_age", 60.0, "seconds", "scrapes that wait longer for the store would be lost with the process"
)
WORSE_TIMES = Bound(
    "worse_times", 1.2, "ratio", "a latency as many times that of the stack it replaces is worse", least=1.0
)
WORSE_ERRORS = Bound(
    "worse_errors",
    0.01,
    "ratio",
    "a share of errors higher by this than that of the stack it replaces is worse",
    most=1.0,
)
WORSE_SPEED = Bound(
    "worse_speed",
    0.8,
    "ratio",
    "tokens per second per request below this share of the replaced stack's are worse",
    most=1.0,
)
COMPARED_TRAFFIC = Bound(
    "compared_traffic", 0.1, "requests/s", "fewer requests of either stack do not suffice to compare the two"
)
SPLIT_MARGIN = Bound(
    "split_margin",
    0.10,
    "ratio",
    "a stack whose traffic differs from the configured split by more than this ratio of all requests is not as "
    "configured",
    most=1.0,
)
SPLIT_TRAFFIC = Bound("split_traffic", 1.0, "requests/s", "the split of fewer requests differs by chance")
SCRAPE_AGE = Bound("scrape_age", 300.0, "seconds", "an older scrape is out of date")
JUDGEMENT_AGE = Bound(
    "judgement_age", JUDGEMENT_AGE_SECONDS, "seconds", "an older judgement does not say whether a cutover is healthy"
)
LANE_LAG = Bound(
    "lane_lag", 900.0, "seconds", "points that are later than this are of no use to a customer's own alerts"
)
LANE_FAILING = Bound(
    "lane_failing", 600.0, "seconds", "a destination that accepts nothing for so long does not recover by itself"
)
FAILED_PROBES = Bound(
    "failed_probes", 0.5, "ratio", "if a larger share of a translator's probes fails, it is not single targets"
)
LOOP_LAG = Bound("loop_lag", 0.1, "seconds", "an event loop that wakes later on average is overloaded")

BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        bound.name: bound
        for bound in (
            DRAFT_TRAFFIC,
            PROMPT_TRAFFIC,
            HIT_RATE_KEPT,
            EVENT_GAPS,
            FAILED_SHARE,
            REQUESTED_KEPT,
            FAILURES_REPEATED,
            ACTIVE_REPLICAS,
            QUEUE_FLOOR,
            QUEUE_SHARE,
            QUEUE_SHORT,
            QUEUE_USUAL,
            ABORTS_MORE,
            ABORTS_MOST,
            ABORTS_TRAFFIC,
            HANGING_FLOOR,
            HANGING_TIMES,
            HANGING_SHARE,
            GROWN_TIMES,
            BAD_REQUESTS,
            ALL_BAD_REQUESTS,
            STEADY_TRAFFIC,
            STEADY_SHARE,
            ANSWERS_KEPT,
            SAME_TRAFFIC,
            ANSWERS_TRAFFIC,
            CLIENT_ERRORS_MORE,
            HOT_SHARE,
            ENDED_KEPT,
            IN_FLIGHT_GROWN,
            SLOW_TIMES,
            SLOW_TRAFFIC,
            BUSY_OTHERS,
            RESTARTS,
            ANSWERS_GROWN,
            ANSWERS_CUT,
            UNANSWERED_REQUESTS,
            UNANSWERED_RATE,
            UNANSWERED_DURATION,
            SERVING_AGE,
            MOST_GONE,
            SEVERAL_DOWN,
            TARGETS_DOWN,
            SEEN_SHARE,
            FAILING_TARGETS,
            CLOCK_OFF,
            KV_FULL,
            PREEMPTED_SHARE,
            KV_TRANSFER_TIME,
            FAILING_RULES,
            MISSED_EVALUATIONS,
            UNSENT_ALERTS,
            FAILED_NOTIFICATIONS,
            STORE_QUEUE_AGE,
            WORSE_TIMES,
            WORSE_ERRORS,
            WORSE_SPEED,
            COMPARED_TRAFFIC,
            SPLIT_MARGIN,
            SPLIT_TRAFFIC,
            SCRAPE_AGE,
            JUDGEMENT_AGE,
            LANE_LAG,
            LANE_FAILING,
            FAILED_PROBES,
            LOOP_LAG,
        )
    }
)
