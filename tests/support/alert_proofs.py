"""What every alert is proven with: values at which it fires, and beside each boundary values at which it is silent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from servescope.alerting.alerts import ALERTS
from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND, SPECULATION_BAND
from servescope.contract.bounds import (
    ABORTS_MORE,
    ABORTS_MOST,
    ABORTS_TRAFFIC,
    ACTIVE_REPLICAS,
    ALL_BAD,
    ALL_BAD_REQUESTS,
    ANSWERS_CUT,
    ANSWERS_GROWN,
    ANSWERS_KEPT,
    ANSWERS_TRAFFIC,
    BAD_REQUESTS,
    BUSY_OTHERS,
    CLIENT_ERRORS_MORE,
    CLOCK_OFF,
    COMPARED_TRAFFIC,
    DRAFT_TRAFFIC,
    ENDED_KEPT,
    FAILED_NOTIFICATIONS,
    FAILED_PROBES,
    FAILED_SHARE,
    FAILING_RULES,
    GROWN_TIMES,
    HANGING_FLOOR,
    HANGING_SHARE,
    HANGING_TIMES,
    HIT_RATE_KEPT,
    HOT_SHARE,
    IN_FLIGHT_GROWN,
    JUDGEMENT_AGE,
    KV_FULL,
    KV_TRANSFER_TIME,
    LANE_FAILING,
    LANE_LAG,
    LOOP_LAG,
    MISSED_EVALUATIONS,
    PREEMPTED_SHARE,
    PROMPT_TRAFFIC,
    QUEUE_FLOOR,
    QUEUE_SHARE,
    QUEUE_SHORT,
    QUEUE_USUAL,
    REQUESTED_KEPT,
    RESTARTS,
    SAME_TRAFFIC,
    SCRAPE_AGE,
    SERVING_AGE,
    SLOW_TIMES,
    SLOW_TRAFFIC,
    SPLIT_MARGIN,
    STEADY_SHARE,
    STEADY_TRAFFIC,
    STORE_QUEUE_AGE,
    TARGETS_DOWN,
    UNANSWERED_DURATION,
    UNANSWERED_RATE,
    UNANSWERED_REQUESTS,
    UNSENT_ALERTS,
    WORSE_ERRORS,
    WORSE_SPEED,
    WORSE_TIMES,
)
from servescope.contract.figures import FIGURES
from servescope.contract.identity import NEW_STACK, OLD_STACK
from servescope.contract.objectives import BURN_WINDOWS, OBJECTIVES, record_ended
from servescope.contract.own_metrics import (
    AGENTS_JOB,
    ALERTMANAGER_RELOADED,
    ALERTS_SENT,
    ALERTS_UNSENT,
    CLOCK_OFFSET_SERIES,
    COLLECTOR_JOB,
    NOTIFICATIONS_FAILED,
    NOTIFICATIONS_TRIED,
    PROMETHEUS_RELOADED,
    RULE_EVALUATIONS,
    RULE_FAILURES,
    RULES_MISSED,
    SCRAPED_UP,
    TARGET_UNDERSTOOD,
    TRANSLATE_JOB,
)
from tests.support.alert_stories import (
    DEPLOYMENT,
    ROUTER,
    STALE,
    TARGET,
    Changed,
    Proof,
    absent_test,
    figure,
    metric,
    own,
    promtool_tests,
    series,
)

# Beyond a threshold by one part in a hundred: a threshold shifted by five is noticed.
_HAIR = 1.01
# As many replicas by the minute as are ordered when the load comes back.
_FROM_NONE = " ".join(["0"] + ["1"] * 60)

_TUNE = SPECULATION_BAND.steps[0].start
_MISSED, _, _, _CHURN = (step.start for step in SKEW_BAND.steps)
_EFFICIENT = EFFICIENCY_BAND.steps[0].start

_DRAFTED = metric("spec_decode_num_draft_tokens_total")
_ELIGIBLE = metric("kv_cache_eligible_tokens_total")
_RATE = figure("speculation_rate")
_SKEW = figure("kv_cache_hit_rate_skew")
_EFFICIENCY = figure("kv_cache_hit_rate_efficiency")
_HIT_RATE = figure("kv_cache_hit_rate")
_WANTED = figure("autoscaler_desired_scale")
_SENT = figure("autoscaler_rounded_desired_scale")
_LEAST, _MOST, _LAST_START = map(
    figure, ("autoscaler_min_replicas", "autoscaler_max_replicas", "replica_start_time_seconds")
)
_ACTIVE, _STARTING, _FAILED, _DRAINING = (
    figure("replica_count_by_status", status=status) for status in ("active", "starting", "failed", "draining")
)
_QUEUED = figure("queued_requests")
_REQUESTS = figure("request_rate")
_REQUESTS_HERE, _WRITTEN = figure("concurrent_requests"), figure("output_tokens_per_second")
_TOKENS = figure("autoscaler_in_flight_tokens")
_ABORTED, _UNENDED, _DURATION = map(figure, ("client_abort_share", "request_unended_share", "request_duration_mean"))
_LENGTH, _INVALID, _TOKEN_TIME = map(
    figure, ("output_tokens_per_request", "client_error_share", "time_per_output_token_mean")
)
_USUAL, _YOUNG = (figure("client_abort_share", deployment_id=each) for each in ("usual", "young"))
_USUAL_REQUESTS, _YOUNG_REQUESTS = (figure("request_rate", deployment_id=each) for each in ("usual", "young"))
_IN_FLIGHT, _OUTPUT, _INPUT = (
    metric(name, replica="r0") for name in ("concurrent_requests", "output_tokens_total", "input_tokens_total")
)
_HANGS = {_IN_FLIGHT: 1.0, _OUTPUT: 0.0, _INPUT: 0.0}
_UP = series("servescope_target_up", TARGET)
# Of 40 minutes up in the first, then not listed: the half hour before the next start does not show it.
_UP_BEFORE = " ".join(["1"] * 6 + [STALE] + ["_"] * 33)
# Of 40 minutes up in the last, for the first time.
_UP_SINCE = " ".join([STALE] + ["_"] * 24 + ["1"] * 15)
_UP_IN_PHASE = series("servescope_target_up", {**TARGET, "rollout_phase": "stable"})
_LOST = series("servescope_target_unseen", {**TARGET, "why": "translator"})
_MISSING = series("servescope_target_missing_metrics", TARGET)
_UNDERSTOOD = series(TARGET_UNDERSTOOD, TARGET)


_ROUTER_UP = series("servescope_target_up", ROUTER)
_SECOND_UP = series("servescope_target_up", {**TARGET, "replica": "r1"})
_LAG, _DROPPED = "servescope_event_loop_lag_seconds", "servescope_dropped_samples_total"
_PROBES = {
    outcome: own("servescope_probe_requests_total", instance="c", outcome=outcome)
    for outcome in ("ok", "timeout", "translator")
}
_COLLECTOR = series("servescope_build_info", {"version": "1"})
_AGES = "servescope_target_scrape_age_seconds"
_AGE, _ROUTER_AGE = series(_AGES, TARGET), series(_AGES, ROUTER)
_SECOND_AGE = series(_AGES, {**TARGET, "replica": "r1"})
_QUEUE_AGE = own("servescope_store_queue_age_seconds", instance="c")
_RELOADED = own("servescope_configuration_reload_success", instance="c")
_JUDGED = "servescope_judgement_age_seconds"
_OF_LANE = {"customer": "acme", "destination": "push"}
_LANE_LAG, _LANE_FAILING, _LANE_SERIES = (
    own(f"servescope_customer_{name}", **_OF_LANE) for name in ("lag_seconds", "failing_seconds", "exported_series")
)
_LANE_GAPS = own("servescope_customer_recent_gap_seconds", **_OF_LANE)
_LANES_NAME = "servescope_customer_lanes"
_LANES = own(_LANES_NAME, job="x", instance="a")
_OF_PLAN = {"plan": "p", **DEPLOYMENT}
_JUDGED_AGE = own(_JUDGED, **_OF_PLAN)
_CONFIGURED = [
    own("servescope_configured_traffic_ratio", model_name="m", environment="e", inference_stack=stack)
    for stack in (OLD_STACK, NEW_STACK, "v0")
]


_SHARE = _CONFIGURED[1]
"""What the deployment's stack is to have of the traffic."""
_SECOND_ROUTER = {**ROUTER, "replica": "router-1"}
_SECOND_ROUTER_UP, _SECOND_ROUTER_AGE = series("servescope_target_up", _SECOND_ROUTER), series(_AGES, _SECOND_ROUTER)
_NO_ROUTER = dict.fromkeys((_ROUTER_UP, _SECOND_ROUTER_UP, _ROUTER_AGE, _SECOND_ROUTER_AGE))
_DIES_THEN_VANISHES = " ".join(["0"] * 8 + ["_"] * 60)
_VANISHES = " ".join(["15"] * 8 + ["_"] * 60)


_OLD_STACK = {"deployment_id": "a", "inference_stack": OLD_STACK}
_SERVED_OLD, _SERVED_NEW = figure("request_rate", **_OLD_STACK), _REQUESTS
_BUSY_OLD, _BUSY = figure("concurrent_requests", **_OLD_STACK), _REQUESTS_HERE
_NONE_SERVED = dict.fromkeys((_SERVED_OLD, _SERVED_NEW, _BUSY_OLD, _BUSY), 0.0)
_OTHER_MODEL = figure("request_rate", model_name="n")
_AGE_OF_ANOTHER = series(_AGES, {**TARGET, "model_name": "n", "replica": "r2"})
_AGE_OF_OLD, _UP_OF_OLD = (series(name, {**TARGET, **_OLD_STACK}) for name in (_AGES, "servescope_target_up"))
_SENT_OLD = figure("autoscaler_rounded_desired_scale", **_OLD_STACK)

_GPU = [metric("gpu_memory_usage", replica="r0", gpu=gpu) for gpu in ("0", "1")]
_PREEMPTIONS, _USED = figure("preemptions_rate"), figure("kv_cache_usage")
_OK, _REJECTED = (metric("requests_total", outcome=outcome, replica="r0") for outcome in ("ok", "rejected"))
_PENDING, _MOVED, _TRANSFER = (
    figure(name) for name in ("kv_transfers_pending", "kv_transfer_bytes_per_second", "kv_transfer_p95")
)
_PREFILL, _SECOND_PREFILL, _DECODE, _SECOND_DECODE = (
    series("servescope_target_up", {**DEPLOYMENT, "replica": replica, "role": role})
    for replica, role in (("p0", "prefill"), ("p1", "prefill"), ("d0", "decode"), ("d1", "decode"))
)

_FLEET = [
    series(_AGES, {**TARGET, "deployment_id": f"d{number}", **({"inference_stack": "v0"} if number > 38 else {})})
    for number in range(41)
]
"""The ages of the scrapes of 41 deployments, the last two of a stack of their own."""
_FLEET_UP = [each.replace(_AGES, "servescope_target_up") for each in _FLEET]
"""Whether the engines of the same deployments are up."""
_OTHERS_ABSENT: dict[str, tuple[None, None]] = dict.fromkeys(_FLEET_UP, (None, None))
_UP_OF_ROUTER = series("servescope_target_up", {**ROUTER, "deployment_id": "d0"})
_UP_OF_SECOND = series("servescope_target_up", {**TARGET, "deployment_id": "d0", "replica": "r1"})


_REPLICAS = [series("servescope_target_up", {**TARGET, "replica": f"r{number}"}) for number in range(13)]
"""Whether the engines of the deployment are up."""
_ALSO_ASKED = series("servescope_target_up", {**TARGET, "replica": "r12", "instance": "collector that cannot reach it"})
_VANISHED = dict.fromkeys((_UP, _SECOND_UP, _AGE, _SECOND_AGE, _REPLICAS[2]))
"""No engine of the deployment is listed."""
_COUNTED, _COUNTED_DOWN = (series("servescope_targets", {**DEPLOYMENT, "health": each}) for each in ("up", "down"))


def _of_other(count: int, up: int, *, role: str = "aggregated", **labels: str) -> Changed:
    """Whether the targets of another deployment are up, of which so many stay so."""
    other = {**DEPLOYMENT, "deployment_id": "other", **labels, "role": role}
    return {
        series("servescope_target_up", {**other, "replica": f"{role}-{number}"}): (1.0, float(number < up))
        for number in range(count)
    }


def _lost(why: str, numbers: Iterable[int]) -> Changed:
    """That nothing says of these engines whether they are up."""
    return {
        series("servescope_target_unseen", {**TARGET, "replica": f"r{number}", "why": why}): (STALE, 1.0)
        for number in numbers
    }


_ONE_STARTS: Changed = {_UP.replace('"r0"', '"r13"'): (None, 0.0)}
_THREE_FAIL: Changed = {**dict.fromkeys(_REPLICAS[:3], 0.0), _COUNTED: 10.0}
_TWO_FAIL: Changed = {
    **dict.fromkeys(_REPLICAS[:2], 0.0), **dict.fromkeys(_REPLICAS[2:7], (None, None)), _SENT: (8.0, 8.0),
    _COUNTED: (8.0, 6.0),
}  # fmt: skip
_THREE_GONE: Changed = {**dict.fromkeys(_REPLICAS[:3]), _COUNTED: 10.0}
_THREE_GONE_TWO_FAIL: Changed = {
    **_THREE_GONE, **_lost("agent", (0, 1, 2)), **dict.fromkeys(_REPLICAS[3:5], 0.0), _COUNTED: 8.0
}  # fmt: skip
_OTHER_SENT, _OTHER_COUNTED = (each.replace('"d"', '"other"') for each in (_SENT, _COUNTED))
_SCALED_DOWN: Changed = {**_of_other(5, 1), _OTHER_SENT: (5.0, 1.0), _OTHER_COUNTED: (5.0, 1.0)}
_ROUTER_ALONE = series(_AGES, {**ROUTER, "deployment_id": "without engines"})


def _vanished(count: int) -> dict[str, float | str | None]:
    return dict.fromkeys(_FLEET[:count])


def _down(count: int) -> dict[str, float | str | None]:
    return dict.fromkeys(_FLEET_UP[:count], 0.0)


def _scaled_to_zero(*numbers: int) -> dict[str, float | str | None]:
    name = FIGURES["autoscaler_rounded_desired_scale"].record()
    return {series(name, {**DEPLOYMENT, "deployment_id": f"d{number}"}): 0.0 for number in numbers}


def _judged(verdict: str) -> str:
    return own("servescope_judgement", **_OF_PLAN, verdict=verdict)


def _ended(old: float, new: float, other: float) -> dict[str, float | str]:
    """Requests that end a second on three stacks of a model; the new one has two deployments."""
    shared = {"a": (OLD_STACK, old), "c": ("v0", other), "d": (NEW_STACK, new * 0.75), "d2": (NEW_STACK, new * 0.25)}
    return {
        metric("requests_total", outcome="ok", deployment_id=deployment, inference_stack=stack, replica="r0"): value
        for deployment, (stack, value) in shared.items()
    }


_DAY = 1400
"""Minutes of traffic before it ends, an hour less than a day ago included."""


def _of_today(value: float) -> str:
    """A value of the last minutes of `_DAY`, absent at this time of the day before."""
    return " ".join(["_"] * 200 + [str(value)] * (_DAY - 200))


def _first(minutes: int, value: str, then: str) -> str:
    """A value for the first minutes of `_DAY`, then another; each may be several that take turns."""
    words = value.split()
    return " ".join([*words * (minutes // len(words)), *[then] * (_DAY - minutes)])


def _served_until(value: float | str) -> Changed:
    """Both deployments of the model serve as many requests a second each, and then none."""
    return {**_NONE_SERVED, _SERVED_OLD: (value, 0.0), _SERVED_NEW: (value, 0.0)}


def _changed(before: float, after: float, minutes: int) -> str:
    """As `_of_today`, an hour and more of one rate and then these minutes of another."""
    return " ".join(["_"] * (_DAY - 90 - minutes) + [str(before)] * 90 + [str(after)] * minutes)


def _on_two_days(first: int, second: int) -> str:
    """A queue at about the same time of two days, and none for the rest of the 2,950 minutes."""
    return " ".join([*["0"] * 60, *[str(first)] * 70, *["0"] * 1370, *[str(second)] * 70, *["0"] * 1380])


def _begun(*times: int | None, each: int = 10) -> str:
    """When a process began, each for so many minutes and the last for good; None while there is none."""
    return " ".join(
        ["_" if time is None else str(time) for time in times for _ in range(each)] + [str(times[-1])] * 200
    )


_NONE_THE_DAY_BEFORE: Mapping[str, Changed] = {
    "none at this time of the day before": _served_until(" ".join(["5"] * 5 + ["0"] * 1200 + ["5"] * 195)),
    "hardly any at this time of the day before": _served_until(_first(1200, str(STEADY_TRAFFIC.value * 0.49), "5")),
}


_EACH = [metric("concurrent_requests", replica=f"r{number}") for number in range(3)]
_ALONE: dict[str, tuple[None, None]] = dict.fromkeys(_EACH[1:], (None, None))
_ENGINES = [metric("concurrent_requests", replica=f"r{number}", role="aggregated") for number in range(3)]
_BEGAN = metric("replica_start_time_seconds", replica="r0", role="aggregated")
_ENDED_HERE = metric("requests_total", replica="r0", role="aggregated", outcome="ok")
_CUT = figure("answer_truncated_share")
_CUT_HERE, _OK_HERE = (
    metric("answers_truncated_total", replica="r0"),
    metric("requests_total", replica="r0", outcome="ok"),
)
_LENGTHS = [series(f"output_tokens_per_request_{part}", {**DEPLOYMENT, "replica": "r0"}) for part in ("sum", "count")]
_NONE_ENDS: Changed = {_REQUESTS: 0.0, _DURATION: STALE}
_GREEN = figure("request_rate", deployment_id="green")
_BLUE = figure("request_rate", deployment_id="d0")
_OTHER_MODEL_THERE = figure("request_rate", deployment_id="green", model_name="n")
_HOT: Changed = {_EACH[0]: 200 * HOT_SHARE.value * _HAIR, _EACH[1]: 200 * (1 - HOT_SHARE.value * _HAIR), _EACH[2]: 0.0}
_FEWER: Changed = {_REQUESTS: 2.0, _REQUESTS_HERE: 200.0}
_ENDS = " ".join(["5"] * 5 + [STALE] * 100)
"""A recorded rate after the last scrape of what it is made of."""
_SHORT = 100 * ANSWERS_KEPT.value / _HAIR
# Few enough for answers that shrink once the last minutes have no others.
_FEW = 60.0
_FALLS_LATER = " ".join(["5"] * 20 + ["1"] * 200)
_TIMES = [series(f"time_per_output_token_seconds_{part}", {**DEPLOYMENT, "replica": "r0"}) for part in ("sum", "count")]


def _idle_until_gone(rate: float) -> str:
    """A deployment's last recorded request rates, until a window of five minutes has a single scrape."""
    return " ".join([str(rate)] * 4 + [STALE] * 300)


def _then(minutes: int, value: str, more: int, other: str) -> str:
    """One value for so many minutes, and another one after that."""
    return " ".join([value] * minutes + [other] * more)


def _fewer_since(rate: float) -> tuple[str, float]:
    """Five requests a second until a quarter of an hour before minute 130, then fewer; half of their average is 2.3."""
    return " ".join(["5"] * 115 + [str(rate)] * 15), rate


def _answers(cut: float, length: float) -> dict[str, float]:
    """A replica's answers: the share that ends at a limit, and their tokens, of two requests a second."""
    return {_CUT_HERE: 2 * cut, _OK_HERE: 2.0, **dict(zip(_LENGTHS, (2 * length, 2.0), strict=True))}


def _counter(*stretches: tuple[int, float]) -> str:
    """A counter that increases by so much a minute, for so many minutes."""
    steps = [increase for minutes, increase in stretches for _ in range(minutes)]
    return " ".join(f"{total:g}" for total in accumulate(steps))


_LATER_ALL = {_CUT: _then(25, "0.1", 200, "1")}
"""While what was before is known the replica is alone, and then all are like it."""
_ENDLESS = _answers(ANSWERS_CUT.value * _HAIR, 200 * SLOW_TIMES.value * _HAIR)


def _slow(times: float, requests: float = 1.0) -> Changed:
    """A replica takes as many times the mean of its deployment, 2 s, for an output token."""
    return {_TIMES[0]: (2 * requests, 2 * requests * times), _TIMES[1]: (requests, requests)}


def _without_traffic(
    usual: float | str, silent: Mapping[str, Changed], also: Mapping[str, tuple[Changed, float]] = MappingProxyType({})
) -> Proof:
    """A model of two deployments is served by neither; each has as many requests a second as `usual` before."""
    is_new = " ".join(["_"] * (_DAY - 65) + ["5"] * 65)
    dips = " ".join(["_"] * 200 + ["5"] * (_DAY - 235) + ["0.01"] + ["5"] * 34)
    floor = STEADY_TRAFFIC.value
    swapped: Changed = {**_NONE_SERVED, _OTHER_MODEL: (None, 0.5)}
    unlisted: Changed = {_AGE: None, _AGE_OF_OLD: None}
    none_wanted: Changed = {_SENT: 0.0, _SENT_OLD: 0.0, _UP: 0.0, _UP_OF_OLD: 0.0}
    return Proof(
        {
            _SERVED_OLD: usual, _SERVED_NEW: usual, _BUSY_OLD: 3.0, _BUSY: 3.0, _AGE: 15.0, _AGE_OF_OLD: 15.0,
            _AGE_OF_ANOTHER: 15.0, _UP: 1.0, _UP_OF_OLD: 1.0,
            _ROUTER_UP: 1.0, _SENT: 4.0, _SENT_OLD: 4.0,
        },
        _NONE_SERVED, 0.0,
        {
            "a cutover drains the old stack": {_SERVED_OLD: 0.0, _BUSY_OLD: 0.0},
            "hardly any traffic is left": {**_NONE_SERVED, _SERVED_NEW: 0.001},
            "one long request is in flight": {**_NONE_SERVED, _BUSY: 1.0},
            "hardly any traffic before": _served_until(floor * 0.49 if usual == 5.0 else _of_today(floor * 0.49)),
            "new": _served_until(is_new),
            "not steady": _served_until(dips),
            "no longer scraped": dict.fromkeys(_NONE_SERVED),
            "its deployment serves another model": swapped,
            "its deployment serves another model, whose rate fell to 0 before": {
                **_NONE_SERVED, _OTHER_MODEL: (None, "0 0 0 0 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5")
            },
            "no longer listed": {**_NONE_SERVED, **unlisted},
            "scaled to zero": {**_NONE_SERVED, **none_wanted},
            **silent,
        },
        also={
            "traffic at its floor": (_served_until(floor / 2 if usual == 5.0 else _of_today(floor / 2)), 0.0),
            "another deployment serves another model": (
                {**_NONE_SERVED, figure("request_rate", model_name="n", deployment_id="e"): 5.0}, 0.0
            ),
            "one deployment is listed": ({**_NONE_SERVED, _AGE: None}, 0.0),
            "one is scaled to zero, and nothing is up": (
                {**_NONE_SERVED, _SENT_OLD: 0.0, _UP: 0.0, _UP_OF_OLD: 0.0}, 0.0
            ),
            "one is scaled to zero, and the other has no autoscaler": (
                {**_NONE_SERVED, _SENT_OLD: 0.0, _UP_OF_OLD: 0.0, _SENT: (None, None)}, 0.0
            ),
            "never listed": ({**_NONE_SERVED, _AGE: (None, None), _AGE_OF_OLD: (None, None)}, 0.0),
            **also,
        },
        ends={
            "requests end between scrapes": {**_NONE_SERVED, _SERVED_NEW: 0.5},
            "a request is in flight": {**_NONE_SERVED, _BUSY: 1.0},
            "its deployment serves another model": {**dict.fromkeys(_NONE_SERVED), _OTHER_MODEL: 5.0},
            "no longer listed": {**_NONE_SERVED, _AGE: STALE, _AGE_OF_OLD: STALE},
            "scaled to zero": {**_NONE_SERVED, **none_wanted},
        },
        labels={label: DEPLOYMENT[label] for label in ("model_name", "environment")},
        after={_SERVED_OLD: 5.0, _SERVED_NEW: 5.0}, lead=_DAY, stays=60,
    )  # fmt: skip


def _alternating(one: int, other: int, *, each: int) -> str:
    """One value for so many minutes, then the other for as many."""
    return " ".join([str(one)] * each + [str(other)] * each)


# In a loop of crashes, the minute of the third change: with the fourth the replicas begin to fail repeatedly.
_THIRD = 14


def _crash_loop(number: int, *, apart: int = 9) -> str:
    """So many replicas fail for 5 minutes, which is too short for the alert, and are replaced for `apart` minutes."""
    return " ".join([str(number)] * 5 + ["0"] * apart)


def _two_crashes(number: int) -> str:
    """So many replicas fail as in a loop, but twice: it is forgotten when the deployment is as small as before."""
    return " ".join([_crash_loop(number)] * 2 + ["0"] * 60)


def _restarts(number: int) -> str:
    """As many start as do not fail in such a loop."""
    return " ".join(["0"] * 5 + [str(number)] * 9)


def _fail(number: int) -> str:
    """So many replicas fail from `_THIRD` on, but for a minute: with the end, as many changes as those of a loop."""
    return " ".join(["0"] * _THIRD + [str(number)] * 10 + ["0"] + [str(number)] * 60)


def _with_status(status: str) -> dict[str, str]:
    return {**DEPLOYMENT, "status": status}


def _burning(name: str, severity: str) -> Proof:
    """Just over and just under each row's factor, over both of its windows and over one of them."""
    objective = OBJECTIVES[name]
    records = {
        window: series(objective.record(window), DEPLOYMENT) for row in BURN_WINDOWS for window in (row.short, row.long)
    }
    rows = [row for row in BURN_WINDOWS if row.severity == severity]
    ended_in = {row.long: series(record_ended(row.long), DEPLOYMENT) for row in rows}
    fires: list[tuple[Mapping[str, float | str | None], float]] = []
    silent: dict[str, Mapping[str, float | str | None]] = {}
    for row in rows:
        at = round(row.factor * objective.budget, 12)
        fires.append(({records[row.short]: at * _HAIR, records[row.long]: at * _HAIR}, at * _HAIR))
        silent[f"at {row.factor:g} times"] = {records[row.short]: at, records[row.long]: at}
        silent[f"the short window at {row.factor:g} times"] = {records[row.short]: at, records[row.long]: at * 2}
        silent[f"the long window at {row.factor:g} times"] = {records[row.short]: at * 2, records[row.long]: at}
    also: dict[str, tuple[Mapping[str, float | str | None], float]] = {
        "the second row": fires[1],
        "all of a sudden": ({**fires[0][0], records[rows[0].short]: 0.97}, 0.97),
    }
    for number, row in enumerate(rows):
        ended, both = ended_in[row.long], (records[row.short], records[row.long])
        enough, every = BAD_REQUESTS.value, ALL_BAD_REQUESTS.value
        half, nearly, whole = (dict.fromkeys(both, each) for each in (0.5, ALL_BAD, 1.0))
        also[f"as many bad as suffice {number}"] = ({**half, ended: 2 * enough}, 0.5)
        silent[f"one fewer {number}"] = {**half, ended: 2 * enough - 1}
        also[f"all of those that suffice {number}"] = ({**whole, ended: every}, 1.0)
        silent[f"all of fewer {number}"] = {**whole, ended: every - 1}
        # Counts are extrapolated, so that all are not exactly all.
        also[f"nearly all {number}"] = ({**nearly, ended: enough}, ALL_BAD)
        silent[f"one good among few {number}"] = {**dict.fromkeys(both, ALL_BAD / _HAIR), ended: enough}
    return Proof(
        {**dict.fromkeys(records.values(), 0.0), **dict.fromkeys(ended_in.values(), 1e6)},
        *fires[0], silent, also=also,
    )  # fmt: skip


def _slower(name: str) -> Proof:
    """The new stack takes more than so many times as long as the old one."""
    at = WORSE_TIMES.value
    return _beside(name, 1.0, 0.5, at=at, beyond=at * _HAIR, far=9.0)


def _beside(name: str, worst: float, better: float, *, at: float, beyond: float, far: float) -> Proof:
    """Two deployments of the old stack, of which the worst counts, one of the new, one of another; `far` is too bad."""
    recorded = FIGURES[name].record()
    old, older, new, other = (
        series(recorded, {**DEPLOYMENT, "deployment_id": stack[0], "inference_stack": stack[1]})
        for stack in (("a", OLD_STACK), ("b", OLD_STACK), ("d", NEW_STACK), ("c", "v0"))
    )
    busy, before, idle = (each.replace(recorded, FIGURES["request_rate"].record()) for each in (other, old, older))
    return Proof(
        {old: worst, older: better, new: worst, other: worst, busy: 5.0, before: 5.0, idle: 0.0, _REQUESTS: 5.0,
        }, {new: beyond}, beyond,
        {
            "at the boundary": {new: at},
            "another stack is worse": {other: far},
            "the old stack is worse": {old: far},
            "nothing to compare with": {new: far, old: None, older: None},
            "hardly any traffic": {new: far, _REQUESTS: COMPARED_TRAFFIC.value * 0.99},
            "hardly any traffic on the old stack": {new: far, before: COMPARED_TRAFFIC.value * 0.99},
        },
        also={
            "traffic at its floor": ({new: far, _REQUESTS: COMPARED_TRAFFIC.value}, far),
            "traffic on the old stack at its floor": ({new: far, before: COMPARED_TRAFFIC.value}, far),
        },
    )  # fmt: skip


_LASTS = {"instance": "c"}
# What happens once is over when the window of ten minutes has passed, before the alert would fire.
_ONCE = " ".join(["0"] * 22 + ["50"] * 80)


_CLOCK = own(CLOCK_OFFSET_SERIES, instance="c", job="j")


def _process_down(job: str) -> Proof:
    """A process of a job does not answer, and one of another job."""
    ours, others = own(SCRAPED_UP, instance="c", job=job), own(SCRAPED_UP, instance="c", job="other")
    return Proof(
        {ours: 1.0, others: 1.0}, {ours: 0.0}, 0.0, {"another job": {others: 0.0}}, labels={"instance": "c", "job": job}
    )


def _probed(failed: float) -> dict[str, float | str | None]:
    """A hundred probes a second, of which a share fails: ten by the translator's own mistake."""
    return {_PROBES["ok"]: 100 * (1 - failed), _PROBES["timeout"]: 100 * failed - 10}


def _keeps_increasing(name: str, **labels: str) -> Proof:
    """A counter that increases within each ten minutes, and one that does so once."""
    counter = own(name, **_LASTS, **labels)
    return Proof(
        {counter: 0.0}, {counter: 1 / 1200}, 0.0, {"none": {}, "a single event": {counter: _ONCE}},
        labels={**_LASTS, **labels}, late=10,
    )  # fmt: skip


def _fails_too_often(
    failed: str, tried: str, at: float, foreign: Mapping[str, str] | None = None, **labels: str
) -> Proof:
    """A share of what is tried fails, all of it for a while, and in a group of somebody else."""
    wrong, total = own(failed, **_LASTS, **labels), own(tried, **_LASTS, **labels)
    silent: dict[str, Mapping[str, Any]] = {
        "at the boundary": {wrong: 100 * at},
        "a single event": {wrong: _ONCE},
        "none is tried": {wrong: None, total: None},
    }
    if foreign:
        others = {**_LASTS, **foreign}
        silent["of others"] = {own(failed, **others): 1.0, own(tried, **others): 1.0}
    return Proof(
        {wrong: 0.0, total: 100.0},
        {wrong: 100 * at * _HAIR},
        at * _HAIR,
        silent,
        labels={**_LASTS, **labels},
        lag=9,
        late=0,
    )


def _refused(name: str) -> Proof:
    """The last reload of one instance failed."""
    reloaded = own(name, instance="one")
    return Proof(
        {reloaded: 1.0, own(name, instance="two"): 1.0}, {reloaded: 0.0}, 0.0, {"reloaded": {}},
        labels={"instance": "one"},
    )  # fmt: skip


def _any_of(proofs: Mapping[str, Proof]) -> Proof:
    """An alert on several causes, each of which has the proof of an alert on it alone."""
    first, *others = (replace(each, labels={**each.labels, "cause": cause}) for cause, each in proofs.items())
    return replace(first, beside=(*others,))


LONG = frozenset(
    {
        "ServescopeMostDeploymentsDown",
        "ServescopeMostDeploymentsGone",
        "ServescopeFleetUnseen",
        "ServescopeTrafficGone",
        "ServescopeTrafficStopped",
        "ServescopeRouterHotSpot",
    }
) | {
    f"Servescope{objective}BudgetBurns{fast}"
    for objective in ("TimeToFirstToken", "InterTokenLatency", "TimePerOutputToken")
    for fast in ("", "Fast")
}
"""Their stories have so many series, or are so many, that they take long; the budget of requests burns as others do."""
PROOFS: Mapping[str, Proof] = {
    "ServescopeSpeculationBelowBreakEven": Proof(
        {_RATE: 0.9, _DRAFTED: 100.0}, {_RATE: _TUNE / _HAIR}, _TUNE / _HAIR,
        {
            "at the boundary": {_RATE: _TUNE},
            "hardly anything drafted": {_RATE: 0.1, _DRAFTED: DRAFT_TRAFFIC.value * 0.99},
            "speculation off": {_RATE: None},
        },
        also={"traffic at its floor": ({_RATE: 0.1, _DRAFTED: DRAFT_TRAFFIC.value}, 0.1)},
    ),
    "ServescopeCacheChurn": Proof(
        {_SKEW: 0.1, _ELIGIBLE: 1000.0}, {_SKEW: _CHURN * _HAIR}, _CHURN * _HAIR,
        {
            "at the boundary": {_SKEW: _CHURN},
            "as far on the other side": {_SKEW: -_CHURN * _HAIR},
            "hardly any prompts": {_SKEW: 0.5, _ELIGIBLE: PROMPT_TRAFFIC.value * 0.99},
        },
        also={"traffic at its floor": ({_SKEW: 0.5, _ELIGIBLE: PROMPT_TRAFFIC.value}, 0.5)},
    ),
    "ServescopeCacheEventsMissed": Proof(
        {
            _SKEW: 0.1, _ELIGIBLE: 1000.0, figure("router_event_gap_rate"): 0.0,
            metric("router_index_state", state="exact", replica="r0"): 1.0,
            metric("router_index_state", state="degraded", replica="r0"): 0.0,
            metric("router_index_state", state="degraded", replica="r1"): 0.0,
        },
        {_SKEW: _MISSED * _HAIR}, _MISSED * _HAIR,
        {
            "at the boundary": {_SKEW: _MISSED},
            "as far on the other side": {_SKEW: -_MISSED * _HAIR},
            "hardly any prompts": {_SKEW: -0.5, _ELIGIBLE: PROMPT_TRAFFIC.value * 0.99},
            "a single gap": {figure("router_event_gap_rate"): "0.01 0.01 0.01 0.01 0.01 0 0 0 0 0 0 0"},
            "recovering": {
                metric("router_index_state", state="exact", replica="r0"): 0.0,
                metric("router_index_state", state="recovering", replica="r0"): 1.0,
            },
        },
        also={"traffic at its floor": ({_SKEW: -0.5, _ELIGIBLE: PROMPT_TRAFFIC.value}, -0.5)},
        elsewhere={
            "gaps": ({figure("router_event_gap_rate"): 0.01}, 0.01, {**DEPLOYMENT, "cause": "gaps"}),
            "degraded": (
                {metric("router_index_state", state="degraded", replica="r1"): 1.0}, 1.0,
                {**DEPLOYMENT, "cause": "degraded"},
            ),
        },
        labels={**DEPLOYMENT, "cause": "hits"},
    ),
    "ServescopeRoutingInefficient": Proof(
        {_EFFICIENCY: 0.97, _ELIGIBLE: 1000.0}, {_EFFICIENCY: _EFFICIENT / _HAIR}, _EFFICIENT / _HAIR,
        {
            "at the boundary": {_EFFICIENCY: _EFFICIENT},
            "hardly any prompts": {_EFFICIENCY: 0.5, _ELIGIBLE: PROMPT_TRAFFIC.value * 0.99},
        },
        also={"traffic at its floor": ({_EFFICIENCY: 0.5, _ELIGIBLE: PROMPT_TRAFFIC.value}, 0.5)},
    ),
    "ServescopeCacheHitRateDropped": Proof(
        {_HIT_RATE: 0.5, _ELIGIBLE: 1000.0}, {_HIT_RATE: 0.5 * HIT_RATE_KEPT.value / _HAIR},
        0.5 * HIT_RATE_KEPT.value / _HAIR,
        {
            "at the boundary": {_HIT_RATE: 0.5 * HIT_RATE_KEPT.value},
            "hardly any prompts": {_HIT_RATE: 0.1, _ELIGIBLE: PROMPT_TRAFFIC.value * 0.99},
            "low all along": {_HIT_RATE: 0.5},
        },
        also={
            "traffic at its floor": ({_HIT_RATE: 0.1, _ELIGIBLE: PROMPT_TRAFFIC.value}, 0.1),
            "a scale-down": ({_HIT_RATE: 0.1, _ACTIVE: (5.0, 4.0), _DRAINING: (0.0, 9.0)}, 0.1),
        },
        lead=100, stays=10,
    ),
    "ServescopeAutoscalerPinned": Proof(
        {_WANTED: 2.5, _SENT: 3.0}, {_WANTED: 4.2, _SENT: 4.0}, 4.2,
        {
            "at the bound": {_WANTED: 4.0, _SENT: 4.0},
            "no autoscaler": {_SENT: None, _WANTED: 4.0},
            "of a fixed size": {_WANTED: 4.2, _SENT: 4.0, _LEAST: 4.0, _MOST: 4.0},
            "of a fixed size, with a fault": {_WANTED: 4.2, _SENT: 3.0, _LEAST: 4.0, _MOST: 3.0},
        },
        also={"between bounds": ({_WANTED: 4.2, _SENT: 4.0, _LEAST: 1.0, _MOST: 4.0}, 4.2)},
    ),
    "ServescopeReplicasBelowDesired": Proof(
        {_ACTIVE: 4.0, _STARTING: 0.0, _FAILED: 9.0, _SENT: 4.0}, {_SENT: 5.0}, 4.0,
        {
            "as many": {_SENT: 4.0},
            "more": {_SENT: 3.0},
            "no autoscaler": {_SENT: None},
            "at the share": {_ACTIVE: 100 * REQUESTED_KEPT.value, _SENT: 100.0},
            "three of thousands": {_ACTIVE: 1997.0, _SENT: 2000.0},
        },
        also={
            "one of two": ({_ACTIVE: 1.0, _SENT: 2.0}, 1.0),
            "one of twenty": ({_ACTIVE: 19.0, _SENT: 20.0}, 19.0),
            "a tenth of thousands": ({_ACTIVE: 1800.0, _SENT: 2000.0}, 1800.0),
            "below the share": ({_ACTIVE: 95.0, _SENT: 100.0}, 95.0),
        },
    ),
    "ServescopeAutoscalerInactive": _any_of({
        "silent": Proof(
            {_SENT: 4.0, _REQUESTS_HERE: 2.0}, {_SENT: None}, 4.0,
            {"nothing is left": {_SENT: None, _REQUESTS_HERE: None}, "sends none": {_SENT: 0.0}},
            also={"idle": ({_SENT: None, _REQUESTS_HERE: 0.0}, 4.0)},
            lag=5, open_lag=4,
        ),
        "frozen": Proof(
            {_TOKENS: "100 200", _REQUESTS_HERE: 2.0, _WRITTEN: 50.0}, {_TOKENS: 150.0}, 0.0,
            {
                "idle": {_TOKENS: 0.0, _REQUESTS_HERE: 0.0, _WRITTEN: 0.0},
                "requests with breaks between them": {_TOKENS: 0.0, _REQUESTS_HERE: 0.0},
                "requests that hang": {_TOKENS: 150.0, _WRITTEN: 0.0},
                "now and then a change": {_TOKENS: _alternating(100, 200, each=12)},
            },
            also={"hardly any requests": ({_TOKENS: 150.0, _REQUESTS_HERE: 1.0, _WRITTEN: 1.0}, 0.0)},
            # The last change leaves a window of fifteen minutes when it is as old.
            lag=15, open_lag=14,
        ),
    }),
    "ServescopeReplicasFailed": Proof(
        {_FAILED: 0.0, _ACTIVE: 4.0}, {_FAILED: _crash_loop(1)}, 1.0,
        {
            "one starts": {_STARTING: 1.0},
            "once": {_FAILED: " ".join(["1"] * 4 + ["0"] * 60)},
            "seldom": {_FAILED: _crash_loop(1, apart=21)},
            "others come and go": {_ACTIVE: _alternating(4, 3, each=4)},
            "one of thousands": {_ACTIVE: 1999.0, _FAILED: 1.0},
            "three of thousands": {_ACTIVE: 1997.0, _FAILED: 3.0},
            "now and then one of thousands": {_ACTIVE: 1999.0, _FAILED: _two_crashes(1)},
            "at the share": {_ACTIVE: 960.0, _FAILED: 1000 * FAILED_SHARE.value},
            "at the share, repeatedly": {_ACTIVE: 960.0, _FAILED: _two_crashes(40), _STARTING: _restarts(40)},
        },
        also={
            "one of two": ({_ACTIVE: 1.0, _FAILED: _fail(1)}, 1.0),
            "one of four": ({_FAILED: _fail(1)}, 1.0),
            "one of twenty": ({_ACTIVE: 19.0, _FAILED: _fail(1)}, 1.0),
            "one of twenty, repeatedly": ({_ACTIVE: 19.0, _FAILED: _crash_loop(1)}, 1.0),
            "a tenth of thousands": ({_ACTIVE: 1800.0, _FAILED: _fail(200)}, 200.0),
            "above the share": ({_ACTIVE: 959.0, _FAILED: _fail(41)}, 41.0),
            "above the share, repeatedly": (
                {_ACTIVE: 959.0, _FAILED: _crash_loop(41), _STARTING: _restarts(41)}, 41.0
            ),
        },
        lag=_THIRD, late=10, open_late=9,
    ),
    "ServescopeColdStartSlow": Proof(
        {_STARTING: 0.0, _ACTIVE: 4.0}, {_STARTING: 1.0}, 1.0,
        {
            "one after the other, with a break": {_STARTING: "1 1 1 1 1 1 1 1 1 1 0"},
            # A rolling update, of four, five and four; and one in which an old replica is gone at once.
            "one after the other": {_STARTING: 1.0, _ACTIVE: "4 4 4 4 4 4 4 4 4 5"},
            "one in place of another": {
                _STARTING: 1.0, _LAST_START: " ".join(str(1000 + 600 * (minute // 10)) for minute in range(60)),
            },
        },
        also={
            "while others fail": ({_STARTING: 1.0, _ACTIVE: 3.0}, 1.0),
            "nothing began lately": ({_STARTING: 1.0, _LAST_START: 1000.0}, 1.0),
        },
        labels=_with_status("starting"), lag=5, open_lag=4,
        beside=(
            Proof(
                {_STARTING: 0.0, _ACTIVE: 0.0}, {_STARTING: _alternating(1, 0, each=4)}, 1.0,
                {
                    "three changes in half an hour": {_STARTING: _alternating(1, 0, each=10)},
                    "one was active in between": {
                        _STARTING: _alternating(1, 0, each=4), _ACTIVE: " ".join(["0"] * 24 + ["1"]),
                    },
                },
                labels=_with_status("starting"), lag=12, late=20, open_late=19,
            ),
        ),
    ),
    "ServescopeNoActiveReplica": Proof(
        {_ACTIVE: 4.0, _FAILED: 0.0, _SENT: 4.0, _SHARE: 0.5}, {_ACTIVE: 0.0}, 0.0,
        {
            "one": {_ACTIVE: ACTIVE_REPLICAS.value},
            "retired": {_ACTIVE: 0.0, _SHARE: 0.0},
            "given up on purpose": {_ACTIVE: 0.0, _SENT: 0.0},
            "the first one after none starts": {_ACTIVE: 0.0, _SENT: _FROM_NONE},
            "the first ones of a new deployment start": {_ACTIVE: (None, 0.0)},
        },
        also={
            "no autoscaler is known": ({_ACTIVE: 0.0, _SENT: None}, 0.0),
            "one is ordered": ({_ACTIVE: 0.0, _SENT: 1.0}, 0.0),
            "had some before": ({_ACTIVE: (_UP_BEFORE, 0.0)}, 0.0),
            "soon after the first start": ({_ACTIVE: (_UP_SINCE, 0.0)}, 0.0),
        },
        labels=_with_status("active"), lead=40,
    ),
    "ServescopeUpButNotServing": _any_of({
        "hung": Proof(
            {_IN_FLIGHT: 3.0, _OUTPUT: 100.0, _INPUT: 400.0, _AGE: 15.0}, _HANGS, 1.0,
            {
                "idle": {_IN_FLIGHT: 0.0, _OUTPUT: 0.0, _INPUT: 0.0},
                "reads prompts": {_OUTPUT: 0.0},
                "writes tokens": {_INPUT: 0.0},
                "counters that were not read": {**_HANGS, _AGE: SERVING_AGE.value + 1},
                "scraped every eight minutes": {**_HANGS, _AGE: "0 60 120 180 240 300 360 420"},
                "counters that were not read, with a router of that name": {
                    **_HANGS, _AGE: 9000.0, series(_AGES, {**ROUTER, "replica": "r0"}): 15.0
                },
            },
            also={
                "counters just read": ({**_HANGS, _AGE: SERVING_AGE.value}, 1.0),
                "scraped by no collector": ({**_HANGS, _AGE: None}, 1.0),
                "another of that name was not read": (
                    {**_HANGS, series(_AGES, {**TARGET, "role": "prefill"}): 9000.0}, 1.0
                ),
            },
            # The last increase leaves a window of five minutes when it is as old.
            labels={**DEPLOYMENT, "replica": "r0"}, lag=4, open_lag=3,
        ),
        "unanswered": Proof(
            {_REQUESTS_HERE: UNANSWERED_REQUESTS.value, _REQUESTS: 5.0, _DURATION: 4.0},
            _NONE_ENDS, UNANSWERED_REQUESTS.value,
            {
                "left from before": {
                    **_NONE_ENDS, _REQUESTS_HERE: (UNANSWERED_REQUESTS.value * _HAIR, UNANSWERED_REQUESTS.value),
                },
                "fewer than an hour ago, and more than since": {
                    _REQUESTS: _then(18, "0", 200, "5"), _REQUESTS_HERE: (_then(70, "9", 60, "1"), 3.0),
                },
                "slow ones": {**_NONE_ENDS, _REQUESTS_HERE: (1.0, UNANSWERED_REQUESTS.value - 1)},
                "now and then few": {**_NONE_ENDS, _REQUESTS_HERE: (1.0, "9 9 9 9 9 9 9 2")},
                "one ends": {_REQUESTS: "0 0 0 0 0 0 0 0.01"},
                "hardly any before": {**_NONE_ENDS, _REQUESTS: (UNANSWERED_RATE.value / _HAIR, 0.0)},
                "only lately": {
                    _REQUESTS: (_then(118, "0", 12, "5"), _then(20, "0", 200, "5")),
                    _REQUESTS_HERE: (0.0, UNANSWERED_REQUESTS.value),
                },
                "they took long until an hour ago": {
                    _DURATION: (_then(70, "1500", 60, "4"), STALE), _REQUESTS: _then(20, "0", 200, "5"),
                },
                "they take long": {_REQUESTS: 0.0, _DURATION: (UNANSWERED_DURATION.value, STALE)},
            },
            also={
                "traffic at its floor": (
                    {**_NONE_ENDS, _REQUESTS: (UNANSWERED_RATE.value * _HAIR, 0.0)}, UNANSWERED_REQUESTS.value
                ),
                "they took nearly as long": (
                    {_REQUESTS: 0.0, _DURATION: (UNANSWERED_DURATION.value - 0.5, STALE)}, UNANSWERED_REQUESTS.value
                ),
            },
            ends={
                "one ends": {_REQUESTS: 0.001, _DURATION: STALE},
                "few are left": {**_NONE_ENDS, _REQUESTS_HERE: UNANSWERED_REQUESTS.value - 1},
            },
            lead=130, lag=8, open_lag=7, stays=100,
        ),
    }),
    "ServescopeQueueGrowing": Proof(
        {_QUEUED: 0.0, _REQUESTS_HERE: 200.0}, {_QUEUED: " ".join(str(length) for length in range(21, 71))},
        lambda since: 21.0 + since,
        {
            "grows, and is short beside those that are served": {
                _QUEUED: " ".join(str(length) for length in range(21, 71)),
                _REQUESTS_HERE: 71 / QUEUE_SHORT.value,
            },
            "as long as before, beside as many that are served": {_QUEUED: 500.0, _REQUESTS_HERE: 1000.0},
            "as long as before, and nobody knows beside how many": {_QUEUED: 500.0, _REQUESTS_HERE: None},
            "few, and nobody else": {_QUEUED: QUEUE_FLOOR.value - 1, _REQUESTS_HERE: 0.0},
            "grows as those that are served": {
                _QUEUED: " ".join(str(length) for length in range(21, 71)),
                _REQUESTS_HERE: " ".join(f"{length / QUEUE_SHORT.value:g}" for length in range(21, 71)),
            },
            "short": {_QUEUED: " ".join(f"{QUEUE_FLOOR.value - 1 + place / 100:g}" for place in range(50))},
        },
        also={
            "by steps": ({_QUEUED: " ".join(str(30 + at // 8) for at in range(60))}, lambda since: 30.0 + since // 8),
            "just enough, and nobody else": (
                {_QUEUED: QUEUE_FLOOR.value, _REQUESTS_HERE: QUEUE_FLOOR.value}, QUEUE_FLOOR.value
            ),
            "as long all the time": ({_QUEUED: 800.0, _REQUESTS_HERE: 800.0 / QUEUE_SHARE.value / _HAIR}, 800.0),
        },
        beside=(
            Proof(
                {_QUEUED: _on_two_days(400, 400), _REQUESTS_HERE: 200.0},
                {_QUEUED: 400 * QUEUE_USUAL.value * _HAIR}, 400 * QUEUE_USUAL.value * _HAIR,
                {"as on the days before": {_QUEUED: 400 * QUEUE_USUAL.value}},
                also={
                    "shorter the day before": ({_QUEUED: (_on_two_days(800, 200), 800.0)}, 800.0),
                    "hardly longer than two days before": ({_QUEUED: (_on_two_days(400, 800), 801.0)}, 801.0),
                    "hardly longer than the day before": ({_QUEUED: (_on_two_days(800, 400), 801.0)}, 801.0),
                },
                after={_QUEUED: 0.0},
                lead=2950,
            ),
        ),
    ),
    "ServescopeClientAbortsHigh": Proof(
        {_ABORTED: 0.0, _REQUESTS: 5.0, _USUAL: 0.45, _YOUNG_REQUESTS: 0.0, _USUAL_REQUESTS: 5.0},
        {_ABORTED: ABORTS_MORE.value * _HAIR}, ABORTS_MORE.value * _HAIR,
        {
            "at the boundary": {_ABORTED: ABORTS_MORE.value},
            "hardly any requests": {_ABORTED: 0.9, _REQUESTS: ABORTS_TRAFFIC.value * 0.99},
            "many as always": {_USUAL: 0.6},
            "a young one, at the boundary": {_YOUNG: ABORTS_MOST.value, _YOUNG_REQUESTS: 5.0},
        },
        also={"traffic at its floor": ({_ABORTED: 0.9, _REQUESTS: ABORTS_TRAFFIC.value}, 0.9)},
        elsewhere={
            "a young one": (
                {_YOUNG: ABORTS_MOST.value * _HAIR, _YOUNG_REQUESTS: 5.0}, ABORTS_MOST.value * _HAIR,
                {**DEPLOYMENT, "deployment_id": "young"},
            ),
        },
        lead=100,
    ),
    "ServescopeRequestsHang": Proof(
        # Ten are in flight on average if all end: five a second, each for two seconds.
        {_REQUESTS_HERE: 20.0, _UNENDED: 0.0, _REQUESTS: 5.0, _DURATION: 2.0},
        {_REQUESTS_HERE: 10 * HANGING_TIMES.value * _HAIR, _UNENDED: HANGING_SHARE.value * _HAIR},
        10 * HANGING_TIMES.value * _HAIR,
        {
            "as many as those that end account for": {_REQUESTS_HERE: 10 * HANGING_TIMES.value, _UNENDED: 0.5},
            "all end": {_REQUESTS_HERE: 10 * HANGING_TIMES.value * _HAIR},
            "nearly all end": {_REQUESTS_HERE: 10 * HANGING_TIMES.value * _HAIR, _UNENDED: HANGING_SHARE.value},
            "few": {_REQUESTS_HERE: HANGING_FLOOR.value * 0.99, _UNENDED: 0.5, _REQUESTS: 1.0},
            "not many times those of before": {_REQUESTS_HERE: 20 * GROWN_TIMES.value},
            "as many as once before": {_REQUESTS_HERE: ("20 " * 19 + "70", 70.0), _UNENDED: None},
        },
        also={
            "as few as suffice": (
                {_REQUESTS_HERE: HANGING_FLOOR.value, _UNENDED: 0.5, _REQUESTS: 1.0}, HANGING_FLOOR.value
            ),
            "many times those of before": (
                {_REQUESTS_HERE: 20 * GROWN_TIMES.value * _HAIR, _UNENDED: None}, 20 * GROWN_TIMES.value * _HAIR
            ),
            "none ends": ({_REQUESTS_HERE: 15.0, _UNENDED: 1.0, _REQUESTS: 0.0, _DURATION: None}, 15.0),
        },
        lead=100, lag=15, open_lag=14,
    ),
    **{
        f"Servescope{camel}Budget{'BurnsFast' if severity == 'critical' else 'Burns'}": _burning(name, severity)
        for name, camel in (
            ("time_to_first_token", "TimeToFirstToken"),
            ("time_per_output_token", "TimePerOutputToken"),
            ("inter_token_latency", "InterTokenLatency"),
            ("requests", "Requests"),
        )
        for severity in ("critical", "warning")
    },
    "ServescopeNewStackWorse": _any_of({
        "first token": _slower("time_to_first_token_p95"),
        "tokens": _slower("time_per_output_token_p95"),
        "errors": _beside(
            "request_error_share", 0.02, 0.01, at=0.02 + WORSE_ERRORS.value, beyond=0.02 + WORSE_ERRORS.value * _HAIR,
            far=0.9,
        ),
        "speed": _beside(
            "tps_per_request", 50.0, 60.0, at=50.0 * WORSE_SPEED.value, beyond=50.0 * WORSE_SPEED.value / _HAIR,
            far=1.0,
        ),
    }),
    "ServescopeTrafficSplitNotAsConfigured": Proof(
        {**_ended(2.5, 5.0, 2.5), **dict(zip(_CONFIGURED, (0.25, 0.5, 0.25), strict=True))},
        _ended(2.0, 5.0 + 10 * SPLIT_MARGIN.value * _HAIR, 1.99), 0.5 + SPLIT_MARGIN.value * _HAIR,
        {
            "at the upper boundary": _ended(2.0, 5.0 + 10 * SPLIT_MARGIN.value, 2.0),
            "at the lower boundary": _ended(3.0, 5.0 - 10 * SPLIT_MARGIN.value, 3.0),
            "hardly any traffic": _ended(0.1, 0.79, 0.1),
            "nothing is configured": {**_ended(0.1, 9.8, 0.1), **dict.fromkeys(_CONFIGURED)},
        },
        also={
            "traffic at its floor": (_ended(0.1875, 0.625, 0.1875), 0.625),
            "too few": (
                _ended(3.0, 5.0 - 10 * SPLIT_MARGIN.value * _HAIR, 3.01), 0.5 - SPLIT_MARGIN.value * _HAIR
            ),
        },
        labels={label: DEPLOYMENT[label] for label in ("model_name", "environment", "inference_stack")},
        # The share is another when the last request of before has left the window.
        lag=4, open_lag=3,
    ),
    "ServescopeCutoverDegraded": Proof(
        {_judged("DEGRADED"): 0.0, _judged("HEALTHY"): 1.0}, {_judged("DEGRADED"): 1.0, _judged("HEALTHY"): 0.0}, 1.0,
        {"not proven": {_judged("HEALTHY"): 0.0, _judged("INCONCLUSIVE"): 1.0}},
        elsewhere={
            "v2 is several deployments": (
                {own("servescope_judgement", plan="p", verdict="DEGRADED"): (0.0, 1.0)}, 1.0,
                {"plan": "p", "verdict": "DEGRADED"},
            ),
        },
        labels={**_OF_PLAN, "verdict": "DEGRADED"},
    ),
    "ServescopeCutoverNoData": Proof(
        {_judged("NO DATA"): 0.0, _judged("HEALTHY"): 1.0}, {_judged("NO DATA"): 1.0, _judged("HEALTHY"): 0.0}, 1.0,
        {
            "not proven": {_judged("HEALTHY"): 0.0, _judged("INCONCLUSIVE"): 1.0},
            "data come and go": {_judged("NO DATA"): "1 1 1 0", _judged("HEALTHY"): "0 0 0 1"},
        },
        labels={**_OF_PLAN, "verdict": "NO DATA"},
    ),
    "ServescopeJudgeGone": Proof(
        {_JUDGED_AGE: 15.0}, {_JUDGED_AGE: JUDGEMENT_AGE.value + 1}, JUDGEMENT_AGE.value + 1,
        {
            "at the boundary": {_JUDGED_AGE: JUDGEMENT_AGE.value},
            "a new run of the plan is of another deployment": {
                _JUDGED_AGE: STALE, own(_JUDGED, **_OF_PLAN | {"deployment_id": "e"}): 15.0
            },
            "it runs elsewhere": {_JUDGED_AGE: STALE, own(_JUDGED, **_OF_PLAN, instance="b"): 15.0},
        },
        elsewhere={
            "gone": ({_JUDGED_AGE: STALE}, 15.0, {**_OF_PLAN, "cause": "gone"}),
            "gone, another plan is judged": (
                {_JUDGED_AGE: STALE, own(_JUDGED, **_OF_PLAN | {"plan": "q"}): 15.0}, 15.0,
                {**_OF_PLAN, "cause": "gone"},
            ),
        },
        labels={**_OF_PLAN, "cause": "late"},
    ),
    "ServescopeCustomerExportFails": _any_of({
        "refused": Proof(
            {_LANE_FAILING: 0.0}, {_LANE_FAILING: LANE_FAILING.value + 1}, LANE_FAILING.value + 1,
            {
                "at the boundary": {_LANE_FAILING: LANE_FAILING.value},
                "it accepts every now and then": {_LANE_FAILING: "900 0"},
            },
            also={
                "which is why it is late, too": (
                    {_LANE_FAILING: LANE_FAILING.value + 1, _LANE_LAG: LANE_LAG.value + 1}, LANE_FAILING.value + 1
                )
            },
            labels=_OF_LANE,
        ),
        "late": Proof(
            {_LANE_LAG: 60.0, _LANE_FAILING: 0.0}, {_LANE_LAG: LANE_LAG.value + 1}, LANE_LAG.value + 1,
            {
                "at the boundary": {_LANE_LAG: LANE_LAG.value},
            },
            also={"single requests fail": ({_LANE_LAG: 1000.0, _LANE_FAILING: LANE_FAILING.value}, 1000.0)},
            labels=_OF_LANE,
        ),
    }),
    "ServescopeCustomerGetsNothing": Proof(
        {_LANE_SERIES: 12.0}, {_LANE_SERIES: 0.0}, 0.0,
        {"one is left": {_LANE_SERIES: 1.0}, "for a moment": {_LANE_SERIES: "12 12 0"}}, labels=_OF_LANE,
    ),
    "ServescopeCustomerExportGap": Proof(
        {_LANE_GAPS: 0.0}, {_LANE_GAPS: 300.0}, 300.0, {"none": {}},
        also={"of half a second": ({_LANE_GAPS: 0.5}, 0.5)}, labels=_OF_LANE,
    ),
    "ServescopeCustomersExportGone": Proof(
        {_LANES: 3.0}, {_LANES: None}, 3.0,
        {
            "none is configured": {_LANES: 0.0},
            "it runs elsewhere": {_LANES: None, own(_LANES_NAME, job="x", instance="b"): 3.0},
        },
        labels={"job": "x", "instance": "a"}, lag=5, open_lag=4,
    ),
    "ServescopeTargetDown": Proof(
        {_UP: 1.0}, {_UP: 0.0}, 0.0,
        {
            "one miss": {_UP: "0 1"}, "another one starts": {_SECOND_UP: (None, 0.0)},
            "one of many, at the boundary": {_UP: 0.0, _COUNTED: 10.0, _COUNTED_DOWN: 10 * TARGETS_DOWN.value},
        },
        also={
            "one more of many": ({_UP: 0.0, _COUNTED: 10.0, _COUNTED_DOWN: 10 * TARGETS_DOWN.value * _HAIR}, 0.0),
            "listed again": ({_UP: (_UP_BEFORE, 0.0)}, 0.0),
            "soon after its first start": ({_UP: (_UP_SINCE, 0.0)}, 0.0),
        },
        elsewhere={
            "in another phase": ({_UP: STALE, _UP_IN_PHASE: (None, 0.0)}, 0.0, {**TARGET, "rollout_phase": "stable"})
        },
        after={_UP_IN_PHASE: STALE}, labels=TARGET, lead=40,
        beside=(
            # One of many that does not come back.
            Proof(
                {_UP: 1.0, _COUNTED: 19.0, _COUNTED_DOWN: 0.0}, {_UP: 0.0, _COUNTED_DOWN: 1.0}, 0.0,
                {"restarted": {_UP: "0 " * 20 + "1", _COUNTED_DOWN: "1 " * 20 + "0"}},
                labels=TARGET, lag=30, open_lag=29,
            ),
        ),
    ),
    "ServescopeTelemetryStale": Proof(
        {_AGE: 15.0, _UP: 1.0}, {_AGE: SCRAPE_AGE.value + 1}, SCRAPE_AGE.value + 1,
        {"at the boundary": {_AGE: SCRAPE_AGE.value}, "its scrapes fail": {_AGE: 9000.0, _UP: 0.0},
         "nothing answers for it": {_AGE: 9000.0, _UP: None, _LOST: 1.0}},
        labels=TARGET,
    ),
    "ServescopeDeploymentDown": Proof(
        {
            _UP: 1.0, _SECOND_UP: 1.0, _ROUTER_UP: 1.0, _AGE: 15.0, _SECOND_AGE: 15.0, _ROUTER_AGE: 15.0,
            _SENT: 4.0, _SHARE: 0.5,
        },
        {_UP: 0.0, _SECOND_UP: 0.0}, 0.0,
        {
            "one answers": {_UP: 0.0},
            "given up on purpose": {_UP: 0.0, _SECOND_UP: 0.0, _SENT: 0.0},
            "the first one after none starts": {_UP: 0.0, _SECOND_UP: 0.0, _SENT: _FROM_NONE},
            "retired": {_UP: 0.0, _SECOND_UP: 0.0, _SHARE: 0.0},
            "its first engines start": {
                **dict.fromkeys((_UP, _SECOND_UP), (None, 0.0)), **dict.fromkeys((_AGE, _SECOND_AGE), (None, 15.0)),
            },
            "gone without having been down": {_UP: None, _SECOND_UP: None, _AGE: None, _SECOND_AGE: None},
        },
        also={
            "no autoscaler is known": ({_UP: 0.0, _SECOND_UP: 0.0, _SENT: None}, 0.0),
            "one is ordered": ({_UP: 0.0, _SECOND_UP: 0.0, _SENT: 1.0}, 0.0),
            "no split is configured": ({_UP: 0.0, _SECOND_UP: 0.0, _SHARE: None}, 0.0),
            "listed again": (
                {
                    _UP: (_UP_BEFORE, 0.0), _AGE: (_UP_BEFORE, 15.0), _SECOND_UP: (None, None),
                    _SECOND_AGE: (None, None),
                }, 0.0,
            ),
            "soon after its first start": (
                {
                    **dict.fromkeys((_UP, _SECOND_UP), (_UP_SINCE, 0.0)),
                    **dict.fromkeys((_AGE, _SECOND_AGE), (_UP_SINCE, 15.0)),
                }, 0.0,
            ),
            "replaced by one that does not come up": (
                {**dict.fromkeys((_UP, _SECOND_UP, _AGE, _SECOND_AGE), STALE), _REPLICAS[2]: (None, 0.0)}, 0.0
            ),
            "then gone from the lists": (
                {
                    _UP: _DIES_THEN_VANISHES, _SECOND_UP: _DIES_THEN_VANISHES, _AGE: _VANISHES, _SECOND_AGE: _VANISHES
                }, 0.0,
            ),
        },
        ends={
            "one is back": {_SECOND_UP: 0.0, _REPLICAS[2]: None},
            "given up on purpose": {**_VANISHED, _SENT: 0.0},
            "retired": {**_VANISHED, _SHARE: 0.0},
        },
        after={_REPLICAS[2]: 1.0}, lead=40,
    ),
    "ServescopeRouterDown": Proof(
        {
            _ROUTER_UP: 1.0, _SECOND_ROUTER_UP: 1.0, _ROUTER_AGE: 15.0, _SECOND_ROUTER_AGE: 15.0, _UP: 1.0, _AGE: 15.0,
            _SENT: 4.0, _SHARE: 0.5,
        },
        {_ROUTER_UP: 0.0, _SECOND_ROUTER_UP: 0.0}, 0.0,
        {
            "one of two answers": {_ROUTER_UP: 0.0},
            "an engine is down": {_UP: 0.0},
            "no router is there": _NO_ROUTER,
            "given up on purpose": {_ROUTER_UP: 0.0, _SECOND_ROUTER_UP: 0.0, _SENT: 0.0},
            "the first one after none starts": {_ROUTER_UP: 0.0, _SECOND_ROUTER_UP: 0.0, _SENT: _FROM_NONE},
            "retired": {_ROUTER_UP: 0.0, _SECOND_ROUTER_UP: 0.0, _SHARE: 0.0},
            "the first ones start": {
                **dict.fromkeys((_ROUTER_UP, _SECOND_ROUTER_UP), (None, 0.0)),
                **dict.fromkeys((_ROUTER_AGE, _SECOND_ROUTER_AGE), (None, 15.0)),
            },
        },
        also={
            "listed again": (
                {
                    _ROUTER_UP: (_UP_BEFORE, 0.0), _ROUTER_AGE: (_UP_BEFORE, 15.0),
                    _SECOND_ROUTER_UP: (None, None), _SECOND_ROUTER_AGE: (None, None),
                },
                0.0,
            ),
            "soon after their first start": (dict.fromkeys((_ROUTER_UP, _SECOND_ROUTER_UP), (_UP_SINCE, 0.0)), 0.0),
            "no autoscaler is known": ({_ROUTER_UP: 0.0, _SECOND_ROUTER_UP: 0.0, _SENT: None}, 0.0),
            "one is ordered": ({_ROUTER_UP: 0.0, _SECOND_ROUTER_UP: 0.0, _SENT: 1.0}, 0.0),
            "then gone from the lists": (
                {
                    _ROUTER_UP: _DIES_THEN_VANISHES, _SECOND_ROUTER_UP: _DIES_THEN_VANISHES, _ROUTER_AGE: _VANISHES,
                    _SECOND_ROUTER_AGE: _VANISHES,
                }, 0.0,
            ),
        },
        ends={
            "one is back": {_SECOND_ROUTER_UP: 0.0},
            "given up on purpose": {**_NO_ROUTER, _SENT: 0.0},
            "retired": {**_NO_ROUTER, _SHARE: 0.0},
        },
        after={_SECOND_ROUTER_UP: 1.0}, lead=40,
    ),
    "ServescopeGpuGone": Proof(
        {**dict.fromkeys(_GPU, 4e10), _IN_FLIGHT: 3.0}, {_GPU[1]: STALE}, 4e10,
        {
            "the whole replica is gone": dict.fromkeys((*_GPU, _IN_FLIGHT), STALE),
            "it has none": {**dict.fromkeys(_GPU, (None, None)), _IN_FLIGHT: 3.0},
        },
        also={"idle": ({_GPU[1]: STALE, _IN_FLIGHT: 0.0}, 4e10)},
        labels={**DEPLOYMENT, "replica": "r0", "gpu": "1"},
    ),
    "ServescopeKvCacheFull": _any_of({
        "preempted": Proof(
            {_PREEMPTIONS: 0.0, _REQUESTS: 5.0, _OK: 5.0, _REJECTED: 50.0},
            {_PREEMPTIONS: 5 * PREEMPTED_SHARE.value * _HAIR},
            PREEMPTED_SHARE.value * _HAIR,
            {
                "at the boundary": {_PREEMPTIONS: 5 * PREEMPTED_SHARE.value},
                "hardly any traffic": {_PREEMPTIONS: 1.0, _REQUESTS: COMPARED_TRAFFIC.value * 0.99},
            },
            also={
                "traffic at its floor": ({_PREEMPTIONS: 1.0, _REQUESTS: COMPARED_TRAFFIC.value}, 0.2),
                "of the two causes this one": (
                    {_USED: 1.0, _QUEUED: 50.0, _PREEMPTIONS: 5 * PREEMPTED_SHARE.value * _HAIR},
                    PREEMPTED_SHARE.value * _HAIR,
                ),
                "of the two causes this one, and traffic at its floor": (
                    {_USED: 1.0, _QUEUED: 50.0, _PREEMPTIONS: 1.0, _REQUESTS: COMPARED_TRAFFIC.value}, 0.2
                ),
            },
        ),
        "waiting": Proof(
            {_USED: 0.5, _QUEUED: 0.0, _PREEMPTIONS: 0.0, _REQUESTS: 5.0, _OK: 5.0, _REJECTED: 50.0},
            {_USED: KV_FULL.value, _QUEUED: QUEUE_FLOOR.value}, KV_FULL.value,
            {
                "almost": {_USED: KV_FULL.value / _HAIR, _QUEUED: 50.0},
                "hardly anything waits": {_USED: 1.0, _QUEUED: QUEUE_FLOOR.value * 0.99},
            },
            also={
                "some are preempted": ({_USED: 1.0, _QUEUED: 50.0, _PREEMPTIONS: 5 * PREEMPTED_SHARE.value}, 1.0),
                "preempted without traffic": (
                    {_USED: 1.0, _QUEUED: 50.0, _PREEMPTIONS: 1.0, _REQUESTS: COMPARED_TRAFFIC.value * 0.99}, 1.0
                ),
            },
            lag=5, open_lag=4,
        ),
    }),
    "ServescopePhaseDown": Proof(
        {
            _PREFILL: 1.0, _SECOND_PREFILL: 1.0, _DECODE: 1.0, _SECOND_DECODE: 1.0, _ROUTER_UP: 1.0, _SENT: 4.0,
            _SHARE: 0.5,
        },
        {_DECODE: 0.0, _SECOND_DECODE: 0.0}, 0.0,
        {
            "one answers": {_DECODE: 0.0},
            "all engines are down": dict.fromkeys((_PREFILL, _SECOND_PREFILL, _DECODE, _SECOND_DECODE), 0.0),
            "the router is down": {_ROUTER_UP: 0.0},
            "the first one after none starts": {_DECODE: 0.0, _SECOND_DECODE: 0.0, _SENT: _FROM_NONE},
            "retired": {_DECODE: 0.0, _SECOND_DECODE: 0.0, _SHARE: 0.0},
            "aggregated": {_UP: 0.0},
            "the first ones start": dict.fromkeys((_DECODE, _SECOND_DECODE), (None, 0.0)),
        },
        also={
            "listed again": ({_DECODE: (_UP_BEFORE, 0.0), _SECOND_DECODE: (None, None)}, 0.0),
            "soon after their first start": (dict.fromkeys((_DECODE, _SECOND_DECODE), (_UP_SINCE, 0.0)), 0.0),
            "one of the other phase is down too": ({_DECODE: 0.0, _SECOND_DECODE: 0.0, _PREFILL: 0.0}, 0.0),
            "no autoscaler is known": ({_DECODE: 0.0, _SECOND_DECODE: 0.0, _SENT: None}, 0.0),
            "one is ordered": ({_DECODE: 0.0, _SECOND_DECODE: 0.0, _SENT: 1.0}, 0.0),
        },
        elsewhere={
            "prefill": ({_PREFILL: 0.0, _SECOND_PREFILL: 0.0}, 0.0, {**DEPLOYMENT, "role": "prefill"})
        },
        labels={**DEPLOYMENT, "role": "decode"}, lead=40,
    ),
    "ServescopeKvTransfersStuck": Proof(
        {_PENDING: 0.0, _MOVED: 1e6}, {_PENDING: 1.0, _MOVED: 0.0}, 1.0,
        {"slow": {_PENDING: 9.0, _MOVED: 0.1}, "idle": {_MOVED: 0.0}, "one at a time": {_PENDING: "1 0", _MOVED: 0.0}},
    ),
    "ServescopeKvTransfersDegraded": _any_of({
        "slow": Proof(
            {_TRANSFER: 0.01, _REQUESTS: 5.0},
            {_TRANSFER: KV_TRANSFER_TIME.value * _HAIR}, KV_TRANSFER_TIME.value * _HAIR,
            {
                "at the boundary": {_TRANSFER: KV_TRANSFER_TIME.value},
                "hardly any traffic": {_TRANSFER: 9.0, _REQUESTS: COMPARED_TRAFFIC.value * 0.99},
            },
            also={"traffic at its floor": ({_TRANSFER: 9.0, _REQUESTS: COMPARED_TRAFFIC.value}, 9.0)},
        ),
        "none": Proof(
            {_MOVED: 1e6, _REQUESTS: 5.0}, {_MOVED: 0.0}, 0.0,
            {
                "little": {_MOVED: 1.0},
                "now and then": {_MOVED: "0 0 0 0 0 0 0 0 0 1"},
                "none before": {_MOVED: (0.0, 0.0)},
                "fewer requests": {
                    _MOVED: " ".join(["0"] * 30 + ["1"] * 200), _REQUESTS: 5.0 * SAME_TRAFFIC.value / _HAIR
                },
                "hardly any requests": {_MOVED: 0.0, _REQUESTS: (0.1, COMPARED_TRAFFIC.value * 0.99)},
            },
            also={
                "hardly any KV before": ({_MOVED: (0.5, 0.0)}, 0.0),
                "just as many requests": ({_MOVED: 0.0, _REQUESTS: 5.0 * SAME_TRAFFIC.value}, 0.0),
                "traffic at its floor": ({_MOVED: 0.0, _REQUESTS: (COMPARED_TRAFFIC.value,) * 2}, 0.0),
            },
            ends={"again": {_MOVED: 1.0}},
            lead=130, lag=10, open_lag=9,
        ),
    }),
    "ServescopeTrafficGone": _without_traffic(
        5.0,
        {
            "no day before is known": _served_until(_of_today(5.0)),
            "hardly any in the hour before": _served_until(_first(200, "5", str(STEADY_TRAFFIC.value * 0.49))),
            "not steady in the hour before": _served_until(" ".join(["5"] * (_DAY - 35) + ["0.01"] + ["5"] * 34)),
            "again since an hour": _served_until(" ".join(["5"] * 200 + ["_"] * (_DAY - 265) + ["5"] * 65)),
            "not steady the day before": _served_until(_first(200, "0.01 5 5 5 5 5 5 5 5 5", "5")),
            **_NONE_THE_DAY_BEFORE,
        },
    ),
    "ServescopeTrafficStopped": _without_traffic(
        _of_today(5.0),
        {
            "steady the day before": _served_until(5.0),
            "it declined before": _served_until(_changed(5.0, 5 * STEADY_SHARE.value / _HAIR, 30)),
            "hardly any in the last half hour": _served_until(_changed(0.1, STEADY_TRAFFIC.value * 0.49, 30)),
            **_NONE_THE_DAY_BEFORE,
        },
        {
            "it hardly declined": (_served_until(_changed(5.0, 5 * STEADY_SHARE.value, 30)), 0.0),
            "a burst before it stopped": (_served_until(_changed(0.1, 5.0, 3)), 0.0),
        },
    ),
    "ServescopeRequestsNotExposed": Proof(
        {_REQUESTS: 5.0, _BUSY: 3.0, _UP: 1.0, _ROUTER_UP: 1.0, _SHARE: 0.5}, {_REQUESTS: _ENDS}, 5.0,
        {
            "idle": {_BUSY: (0.0, 0.0), _REQUESTS: _ENDS},
            "they are exposed": {_REQUESTS: 0.0},
            "hardly any before": {_REQUESTS: (STEADY_TRAFFIC.value * 0.99, STALE)},
            "of another model": {_REQUESTS: _ENDS, _OTHER_MODEL: 5.0},
            "its engines are down": {_REQUESTS: _ENDS, _UP: 0.0},
            "its engines are gone": {_REQUESTS: _ENDS, _UP: None},
            "retired": {_REQUESTS: _ENDS, _SHARE: 0.0},
            "idle, and of another model": {
                _REQUESTS: _ENDS, _BUSY: STALE, figure("concurrent_requests", model_name="n"): (0.0, 0.0)
            },
        },
        also={
            "traffic at its floor": (
                {_REQUESTS: (STEADY_TRAFFIC.value, _ENDS.replace("5", str(STEADY_TRAFFIC.value)))}, STEADY_TRAFFIC.value
            ),
            "nothing is exposed": ({_REQUESTS: _ENDS, _BUSY: STALE}, 5.0),
            "some in flight now and then": ({_REQUESTS: _ENDS, _BUSY: "0 0 0 0 0 0 0 1"}, 5.0),
            "hardly anything in flight": ({_REQUESTS: _ENDS, _BUSY: 0.5}, 5.0),
            "another deployment is up": (
                {_REQUESTS: _ENDS, series("servescope_target_up", {**TARGET, "deployment_id": "e"}): 0.0}, 5.0
            ),
            "traffic now and then": ({_REQUESTS: ("0 0 0 0 0 5 5 5 5 5", _ENDS)}, 5.0),
            "one engine is up": ({_REQUESTS: _ENDS, _UP: 0.0, _SECOND_UP: 1.0}, 5.0),
        },
        ends={"another model's are exposed": {_REQUESTS: _ENDS, _OTHER_MODEL: 5.0}},
        lead=60, lag=5,
    ),
    "ServescopeAnswerLengthChanged": _any_of({
        "short": Proof(
            {_LENGTH: 100.0, _WRITTEN: 500.0, _REQUESTS: 5.0},
            {_LENGTH: 5.0, _WRITTEN: _FEW}, 5.0,
            {
                "at the boundary": {_LENGTH: 100 * ANSWERS_KEPT.value, _WRITTEN: _FEW},
                "a short one among others": {_LENGTH: 1.0, _WRITTEN: 500 * ANSWERS_KEPT.value},
                "as many tokens, of more requests": {_LENGTH: 1.0, _WRITTEN: 500 * SAME_TRAFFIC.value, _REQUESTS: 50.0},
                "other requests": {_LENGTH: 1.0, _WRITTEN: 5.0, _REQUESTS: 1.5},
                "just fewer requests": {
                    _LENGTH: " ".join(["1"] * 10 + [STALE] * 200), _WRITTEN: 5.0, _REQUESTS: _fewer_since(2.14)
                },
                "hardly any requests": {
                    _LENGTH: 1.0, _WRITTEN: 0.1, _REQUESTS: (ANSWERS_TRAFFIC.value, ANSWERS_TRAFFIC.value * 0.99)
                },
                "short all along": {_LENGTH: (1.0, 1.0), _WRITTEN: 5.0},
                "none are answered": {_LENGTH: None, _WRITTEN: 0.0},
            },
            also={
                "just short enough": (
                    {_LENGTH: _SHORT, _WRITTEN: 500 * ANSWERS_KEPT.value / _HAIR}, _SHORT
                ),
                "empty": ({_LENGTH: 0.0, _WRITTEN: _FEW}, 0.0),
                "nearly as many tokens": (
                    {_LENGTH: 1.0, _WRITTEN: 500 * SAME_TRAFFIC.value / _HAIR, _REQUESTS: 50.0}, 1.0
                ),
                "just as many requests": ({_LENGTH: 1.0, _WRITTEN: 5.0, _REQUESTS: _fewer_since(2.29)}, 1.0),
                "traffic at its floor": (
                    {_LENGTH: 1.0, _WRITTEN: 0.1, _REQUESTS: (ANSWERS_TRAFFIC.value, ANSWERS_TRAFFIC.value)}, 1.0
                ),
                "traffic that falls later": ({_LENGTH: 1.0, _WRITTEN: _FEW, _REQUESTS: _FALLS_LATER}, 1.0),
            },
            ends={"long enough": {_LENGTH: 100 * ANSWERS_KEPT.value, _REQUESTS: 0.5}},
            lead=130, lag=8, open_lag=7, stays=100,
        ),
        "long": Proof(
            {_LENGTH: 100.0, _CUT: 0.25, _REQUESTS: 5.0},
            {_LENGTH: 100 * ANSWERS_GROWN.value * _HAIR, _CUT: 0.25 + ANSWERS_CUT.value * _HAIR},
            100 * ANSWERS_GROWN.value * _HAIR,
            {
                "at the boundary": {_LENGTH: 100 * ANSWERS_GROWN.value, _CUT: 1.0},
                "few more end at a limit": {_LENGTH: 2000.0, _CUT: 0.25 + ANSWERS_CUT.value},
                "they end by themselves": {_LENGTH: 2000.0},
                "short ones are cut": {_CUT: 1.0},
                "fewer requests": {_LENGTH: " ".join(["2000"] * 10 + [STALE] * 200), _CUT: 1.0, _REQUESTS: 2.4},
                # Of 5 requests 3.75 end by themselves, and of 15 half as many.
                "others beside them": {
                    _LENGTH: _then(20, "2000", 200, "100"), _CUT: _then(20, "0.875", 200, "0.25"),
                    _REQUESTS: _then(20, "15", 200, "5"),
                },
                "hardly any requests": {
                    _LENGTH: 2000.0, _CUT: 1.0, _REQUESTS: (ANSWERS_TRAFFIC.value, ANSWERS_TRAFFIC.value * 0.99)
                },
            },
            also={
                "just fewer beside others": ({_LENGTH: 2000.0, _CUT: 0.875, _REQUESTS: 15 / _HAIR}, 2000.0),
                "just as many requests": ({_LENGTH: 2000.0, _CUT: 1.0, _REQUESTS: 2.5}, 2000.0),
                "traffic at its floor": (
                    {_LENGTH: 2000.0, _CUT: 1.0, _REQUESTS: (ANSWERS_TRAFFIC.value, ANSWERS_TRAFFIC.value)}, 2000.0
                ),
            },
            ends={
                "short enough": {_LENGTH: 100 * ANSWERS_GROWN.value, _CUT: 1.0},
                "they end by themselves": {_LENGTH: 2000.0, _CUT: 0.25 + ANSWERS_CUT.value},
            },
            lead=130, stays=100,
        ),
    }),
    "ServescopeClientErrorsHigh": Proof(
        {_INVALID: 0.0, _REQUESTS: 5.0}, {_INVALID: CLIENT_ERRORS_MORE.value * _HAIR}, CLIENT_ERRORS_MORE.value * _HAIR,
        {
            "at the boundary": {_INVALID: CLIENT_ERRORS_MORE.value},
            "hardly any requests": {_INVALID: 0.9, _REQUESTS: ANSWERS_TRAFFIC.value * 0.99},
            "many as always": {_INVALID: (0.5, 0.5)},
            "no day before": {_INVALID: (None, 0.5)},
        },
        also={"traffic at its floor": ({_INVALID: 0.9, _REQUESTS: ANSWERS_TRAFFIC.value}, 0.9)},
        lead=100,
    ),
    "ServescopeRouterHotSpot": Proof(
        {**dict.fromkeys(_EACH, 20.0), _REQUESTS: 8.0, _REQUESTS_HERE: 60.0}, {**_HOT, **_FEWER},
        200 * HOT_SHARE.value * _HAIR,
        {
            "at the boundary": {
                _EACH[0]: 200 * HOT_SHARE.value, _EACH[1]: 200 * (1 - HOT_SHARE.value), _EACH[2]: 0.0, **_FEWER
            },
            "few": {**dict.fromkeys(_EACH, 0.0), _EACH[0]: HANGING_FLOOR.value * 0.99, **_FEWER},
            "as many end as suffice": {**_HOT, **_FEWER, _REQUESTS: 8 * ENDED_KEPT.value},
            "few more are in flight": {**_HOT, **_FEWER, _REQUESTS_HERE: 60 * IN_FLIGHT_GROWN.value},
            "a single replica": {_EACH[0]: (60.0, 200.0), **_ALONE, **_FEWER},
            "a decode worker among prefill workers": {
                **dict.fromkeys(_EACH, (None, None)),
                **{metric("concurrent_requests", replica=f"p{number}", role="prefill"): 1.0 for number in range(2)},
                metric("concurrent_requests", replica="d0", role="decode"): 200.0, **_FEWER,
            },
        },
        also={
            "few suffice": (
                {**dict.fromkeys(_EACH, 0.0), _EACH[0]: HANGING_FLOOR.value, **_FEWER}, HANGING_FLOOR.value
            ),
            "few fewer end": (
                {**_HOT, **_FEWER, _REQUESTS: 8 * ENDED_KEPT.value / _HAIR}, 200 * HOT_SHARE.value * _HAIR
            ),
            "few more in flight suffice": (
                {**_HOT, **_FEWER, _REQUESTS_HERE: 60 * IN_FLIGHT_GROWN.value * _HAIR}, 200 * HOT_SHARE.value * _HAIR
            ),
        },
        ends={
            "divided again": dict.fromkeys(_EACH, 60.0),
            "at the boundary": {
                **_FEWER, _EACH[0]: 200 * HOT_SHARE.value, _EACH[1]: 200 * (1 - HOT_SHARE.value), _EACH[2]: 0.0
            },
            "few": {**_FEWER, **dict.fromkeys(_EACH, 0.0), _EACH[0]: HANGING_FLOOR.value * 0.99},
            "the others are gone": {**_FEWER, **dict.fromkeys(_EACH, STALE), _EACH[0]: 200.0},
        },
        labels={**DEPLOYMENT, "replica": "r0"}, lead=100, stays=100,
    ),
    "ServescopeReplicaDiffers": _any_of({
        "slow": Proof(
            {_TIMES[0]: 2.0, _TIMES[1]: 1.0, _TOKEN_TIME: 2.0},
            _slow(SLOW_TIMES.value * _HAIR), 2 * SLOW_TIMES.value * _HAIR,
            {
                "at the boundary": _slow(SLOW_TIMES.value / _HAIR),
                "all alike": {**_slow(4.0), _TOKEN_TIME: 8.0},
                "hardly any requests": _slow(2.0, SLOW_TRAFFIC.value * 0.99),
            },
            also={
                "few requests suffice": (
                    _slow(SLOW_TIMES.value * _HAIR, SLOW_TRAFFIC.value), 2 * SLOW_TIMES.value * _HAIR
                ),
            },
            labels={**DEPLOYMENT, "replica": "r0"}, lag=4, open_lag=3,
        ),
        "idle": Proof(
            dict.fromkeys(_ENGINES, 10.0), {_ENGINES[0]: 0.0}, 0.0,
            {
                "it has a request": {_ENGINES[0]: 1.0},
                "the others have few": {**dict.fromkeys(_ENGINES, BUSY_OTHERS.value * 1.5 * 0.99), _ENGINES[0]: 0.0},
                "all have none": dict.fromkeys(_ENGINES, 0.0),
                "it is not there": {_ENGINES[0]: None},
                "one of two routers": {
                    metric("concurrent_requests", replica="router-0", role="router"): 0.0,
                    metric("concurrent_requests", replica="router-1", role="router"): 30.0,
                },
                "workers of another phase": {
                    metric("concurrent_requests", replica=f"p{number}", role="prefill"): 0.0 for number in range(2)
                },
            },
            also={
                "the others have enough": (
                    {**dict.fromkeys(_ENGINES, BUSY_OTHERS.value * 1.5), _ENGINES[0]: 0.0}, 0.0
                ),
                "the others get bursts": (
                    {**dict.fromkeys(_ENGINES, " ".join(["0 0 0 0 0 0 0 30"] * 12)), _ENGINES[0]: 0.0}, 0.0
                ),
            },
            labels={**DEPLOYMENT, "replica": "r0", "role": "aggregated"},
        ),
        "holding": Proof(
            {**dict.fromkeys(_ENGINES, 8.0), _ENDED_HERE: 2.0, _DURATION: 4.0},
            {_ENGINES[0]: 35 * _HAIR, _ENGINES[1]: 12.5, _ENGINES[2]: 12.5}, 35 * _HAIR,
            {
                "at the boundary": {_ENGINES[0]: 35.0, _ENGINES[1]: 12.5, _ENGINES[2]: 12.5},
                "few": {
                    **dict.fromkeys(_ENGINES, 1.0), _ENGINES[0]: HANGING_FLOOR.value * 0.99, _ENDED_HERE: (0.1, 0.1),
                },
                "they end": {_ENGINES[0]: 72.0, _ENDED_HERE: (2.0 * HANGING_TIMES.value, 2.0 * HANGING_TIMES.value)},
                "just as many end": {_ENGINES[0]: 2 * 4 * HANGING_TIMES.value, _ENGINES[1]: 1.0},
                "all take long": {**dict.fromkeys(_ENGINES, 70.0)},
                "one of two routers": {
                    metric("concurrent_requests", replica="router-0", role="router"): 0.0,
                    metric("concurrent_requests", replica="router-1", role="router"): 90.0,
                },
            },
            also={
                "few suffice": (
                    {
                        **dict.fromkeys(_ENGINES, 1.0), _ENGINES[0]: HANGING_FLOOR.value, _ENDED_HERE: (0.1, 0.1),
                    },
                    HANGING_FLOOR.value,
                ),
                "none end": ({_ENGINES[0]: 70.0, _ENDED_HERE: (0.0, 0.0)}, 70.0),
                "just too many": (
                    {_ENGINES[0]: 2 * 4 * HANGING_TIMES.value * _HAIR, _ENGINES[1]: 1.0},
                    2 * 4 * HANGING_TIMES.value * _HAIR,
                ),
            },
            labels={**DEPLOYMENT, "replica": "r0", "role": "aggregated"},
        ),
        "restarting": Proof(
            {_BEGAN: 1000.0}, {_BEGAN: _begun(2000, 3000, 4000)}, RESTARTS.value,
            {
                "twice": {_BEGAN: _begun(2000, 4000)},
                "its workers answer in turn": {_BEGAN: (_alternating(5000, 6000, each=1),) * 2},
                "listed lately": {_BEGAN: (None, _begun(2000, 3000, 4000))},
                "one after the other": {
                    metric("replica_start_time_seconds", replica=f"r{number}", role="aggregated"): _begun(4000)
                    for number in range(1, 5)
                },
            },
            also={"down between": ({_BEGAN: _begun(2000, None, 3000, None, 4000, each=5)}, RESTARTS.value)},
            after={_BEGAN: 4000.0},
            # Until a sample of before is more than two hours old.
            lead=100, lag=20, late=61, open_late=60,
            labels={**DEPLOYMENT, "replica": "r0", "role": "aggregated"},
        ),
        "cut": Proof(
            {**_answers(0.0, 200.0), _TIMES[1]: 2.0, _CUT: 0.28},
            _ENDLESS, ANSWERS_CUT.value * _HAIR,
            {
                "at the boundary": _answers(ANSWERS_CUT.value, 2000.0),
                "cut for some minutes before": {
                    **_ENDLESS, _CUT_HERE: (_counter((70, 0), (10, 120 * 0.1), (50, 0)), 2 * 0.55), **_LATER_ALL,
                },
                "long for some minutes before": {
                    **_ENDLESS, **_LATER_ALL,
                    _LENGTHS[0]: (_counter((70, 120 * 200), (10, 120 * 400), (50, 120 * 200)), 2 * 400.0),
                },
                "not longer": _answers(1.0, 200 * SLOW_TIMES.value),
                "cut all along": {**_answers(0.69, 2000.0), _CUT_HERE: (2 * 0.2, 2 * 0.69)},
                "all are": {**_answers(1.0, 2000.0), _CUT: 1 / SLOW_TIMES.value},
                "hardly any requests": {**_answers(1.0, 2000.0), _TIMES[1]: SLOW_TRAFFIC.value * 0.99},
            },
            also={
                "nearly all are": (
                    {**_ENDLESS, _CUT: ANSWERS_CUT.value / SLOW_TIMES.value}, ANSWERS_CUT.value * _HAIR
                ),
                "few requests suffice": (
                    {**_ENDLESS, _TIMES[1]: SLOW_TRAFFIC.value}, ANSWERS_CUT.value * _HAIR
                ),
            },
            ends={"all are": {**_ENDLESS, _CUT: ANSWERS_CUT.value * _HAIR**2 / SLOW_TIMES.value}},
            # A minute earlier with left-open ranges, too, but for its counter that begins at 0: before that no increase
            # is extrapolated.
            labels={**DEPLOYMENT, "replica": "r0"}, lead=130, lag=4, stays=100,
        ),
    }),
    "ServescopeDeploymentGone": Proof(
        {
            _AGE: 15.0, _SECOND_AGE: 15.0, _ROUTER_AGE: 15.0, _SENT: 4.0, _COLLECTOR: 1.0, _SHARE: 0.5,
            _ROUTER_ALONE: 15.0,
        },
        {_AGE: None, _SECOND_AGE: None}, 15.0,
        {
            "one is left": {_AGE: None},
            "they are down": {_AGE: 9000.0, _SECOND_AGE: 9000.0},
            "given up on purpose": {_AGE: None, _SECOND_AGE: None, _SENT: 0.0},
            "retired": {_AGE: None, _SECOND_AGE: None, _SHARE: 0.0},
            "in another phase": {
                _AGE: None, _SECOND_AGE: None, series(_AGES, {**TARGET, "rollout_phase": "stable"}): 15.0
            },
            "no collector": {_AGE: None, _SECOND_AGE: None, _COLLECTOR: None},
            "replaced": {_AGE: None, _SECOND_AGE: None, _REQUESTS: _idle_until_gone(0), _GREEN: 5.0},
            "a router without engines is gone": {_ROUTER_ALONE: None},
        },
        also={
            "no autoscaler is known": ({_AGE: None, _SECOND_AGE: None, _SENT: None}, 15.0),
            "one is ordered": ({_AGE: None, _SECOND_AGE: None, _SENT: 1.0}, 15.0),
            "no split is configured": ({_AGE: None, _SECOND_AGE: None, _SHARE: None}, 15.0),
            "it had requests": (
                {_AGE: None, _SECOND_AGE: None, _REQUESTS: _idle_until_gone(0.1), _GREEN: 5.0}, 15.0
            ),
            "its model has no other": ({_AGE: None, _SECOND_AGE: None, _REQUESTS: _idle_until_gone(0)}, 15.0),
            "another model has": (
                {_AGE: None, _SECOND_AGE: None, _REQUESTS: _idle_until_gone(0), _OTHER_MODEL_THERE: 5.0}, 15.0
            ),
        },
        lead=40, lag=5, open_lag=4, stays=120,
    ),
    "ServescopeMostDeploymentsGone": Proof(
        {**dict.fromkeys(_FLEET, 15.0), _ROUTER_ALONE: 15.0, _COLLECTOR: 1.0, _CONFIGURED[1]: 0.9, _CONFIGURED[2]: 0.1},
        _vanished(21), 21 / 41,
        {
            "fewer than half": _vanished(20),
            "half of those that are wanted": {**_vanished(20), **_scaled_to_zero(30)},
            "of these one was given up": {**_vanished(21), **_scaled_to_zero(0)},
            "retired": {**_vanished(19), _FLEET[39]: None, _FLEET[40]: None, _CONFIGURED[2]: 0.0},
            "no collector": {**_vanished(41), _COLLECTOR: None},
            "they are down": dict.fromkeys(_FLEET, 9000.0),
            "of these one had no engines": {**_vanished(20), _ROUTER_ALONE: None},
            "of these one was replaced": {**_vanished(21), _BLUE: _idle_until_gone(0), _GREEN: 5.0},
        },
        also={
            "one had requests": ({**_vanished(21), _BLUE: _idle_until_gone(0.1), _GREEN: 5.0}, 21 / 41),
            "the model of one has no other": ({**_vanished(21), _BLUE: _idle_until_gone(0)}, 21 / 41),
            "all": (_vanished(41), 1.0),
            "a router stayed": ({**_vanished(21), series(_AGES, {**ROUTER, "deployment_id": "d0"}): 15.0}, 21 / 41),
            "others were given up": ({**_vanished(20), **_scaled_to_zero(30, 31)}, 20 / 39),
            "others are retired": ({**_vanished(20), _CONFIGURED[2]: 0.0}, 20 / 39),
        },
        labels={}, lead=40, lag=5, open_lag=4, stays=60,
    ),
    "ServescopeMostDeploymentsDown": Proof(
        {**dict.fromkeys(_FLEET_UP, 1.0), _CONFIGURED[1]: 0.9, _CONFIGURED[2]: 0.1},
        _down(21), 21 / 41,
        {
            "fewer than half": _down(20),
            "half of those that are wanted": {**_down(20), **_scaled_to_zero(30)},
            "of these one was given up": {**_down(21), **_scaled_to_zero(0)},
            "retired": {**_down(19), _FLEET_UP[39]: 0.0, _FLEET_UP[40]: 0.0, _CONFIGURED[2]: 0.0},
            "one engine is up": {**_down(21), _UP_OF_SECOND: 1.0},
            "two of two": {**_OTHERS_ABSENT, **_down(2)},
            "three, of which one was given up": {**_OTHERS_ABSENT, **_down(3), **_scaled_to_zero(0)},
            "three, of which one is retired": {
                **_OTHERS_ABSENT, **_down(2), _FLEET_UP[40]: 0.0, _CONFIGURED[2]: 0.0
            },
            "three, of which one has an engine that is up": {**_OTHERS_ABSENT, **_down(3), _UP_OF_SECOND: 1.0},
            "of these one starts, behind a router": {
                **_down(21), _FLEET_UP[0]: (None, 0.0), _UP_OF_ROUTER: (1.0, 1.0)
            },
            "three, of which one starts, behind a router": {
                **_OTHERS_ABSENT, **_down(3), _FLEET_UP[0]: (None, 0.0), _UP_OF_ROUTER: (1.0, 1.0)
            },
        },
        also={
            "all": (_down(41), 1.0),
            "three of three": ({**_OTHERS_ABSENT, **_down(3)}, 1.0),
            "three soon after their first start": (
                {**_OTHERS_ABSENT, **dict.fromkeys(_FLEET_UP[:3], (_UP_SINCE, 0.0))}, 1.0
            ),
            "three that are listed again": (
                {**_OTHERS_ABSENT, **dict.fromkeys(_FLEET_UP[:3], (_UP_BEFORE, 0.0))}, 1.0
            ),
            "three of three, and a router is up": ({**_OTHERS_ABSENT, **_down(3), _UP_OF_ROUTER: 1.0}, 1.0),
            "a router is up": ({**_down(21), _UP_OF_ROUTER: 1.0}, 21 / 41),
            "a router without engines is up": (
                {**_down(21), _UP_OF_ROUTER.replace('"d0"', '"without engines"'): 1.0}, 21 / 41
            ),
            "others were given up": ({**_down(20), **_scaled_to_zero(30, 31)}, 20 / 39),
            "others are retired": ({**_down(20), _CONFIGURED[2]: 0.0}, 20 / 39),
        },
        labels={}, lead=40,
    ),
    "ServescopeFleetUnseen": Proof(
        {
            _ALSO_ASKED: 0.0, **dict.fromkeys(_REPLICAS, 1.0), _SENT: 13.0, _COUNTED: 13.0, _CONFIGURED[1]: 0.9,
            _CONFIGURED[2]: 0.1,
        },
        _THREE_FAIL, 10 / 13,
        {
            "at the boundary": {**_THREE_FAIL, **_of_other(2, 2)},
            "two of eight": _TWO_FAIL,
            "two of eight, and one starts": {**_TWO_FAIL, **_ONE_STARTS},
            "two of eight, beside a deployment that is down": {**_TWO_FAIL, **_of_other(5, 0)},
            "two of eight, beside one that is down whose router is up": {
                **_TWO_FAIL, **_of_other(5, 0), **_of_other(1, 1, role="router")
            },
            "two of eight, beside a retired deployment": {
                **_TWO_FAIL, **_of_other(5, 1, inference_stack="v0"), _CONFIGURED[2]: 0.0
            },
            "two of eight, beside a deployment that was scaled down": {**_TWO_FAIL, **_SCALED_DOWN},
            "they left the lists": _THREE_GONE,
            "another collector reaches them": {
                **_THREE_FAIL, **{each.replace("}", ', instance="b"}'): 1.0 for each in _REPLICAS[:3]}
            },
            "no more are wanted": {**_THREE_FAIL, _SENT: 10.0},
            "fewer are wanted": {**_THREE_FAIL, _SENT: 9.0},
            "a deployment that is down": _of_other(5, 0),
            "a deployment that is down, and its router is up": {**_of_other(5, 0), **_of_other(1, 1, role="router")},
            "a retired deployment": {**_of_other(5, 1, inference_stack="v0"), _CONFIGURED[2]: 0.0},
            "a deployment that was scaled down": _SCALED_DOWN,
            "three start": {**_THREE_FAIL, **dict.fromkeys(_REPLICAS[:3], (None, 0.0))},
        },
        also={
            "three soon after their first start": (
                {**_THREE_FAIL, **dict.fromkeys(_REPLICAS[:3], (_UP_SINCE, 0.0))}, 10 / 13
            ),
            "three that are listed again": (
                {**_THREE_FAIL, **dict.fromkeys(_REPLICAS[:3], (_UP_BEFORE, 0.0))}, 10 / 13
            ),
            "one starts": ({**_THREE_FAIL, **_ONE_STARTS}, 10 / 13),
            "three are gone, two fail and one starts": ({**_THREE_GONE_TWO_FAIL, **_ONE_STARTS}, 8 / 11),
            "one more is wanted": ({**_THREE_FAIL, _SENT: 11.0}, 10 / 13),
            "no autoscaler": ({**_THREE_FAIL, _SENT: None}, 10 / 13),
            "all routers": (_of_other(4, 0, role="router"), 13 / 17),
            "their agent is gone": ({**_THREE_GONE, **_lost("agent", (0, 1, 2))}, 10 / 13),
            "their agent is gone, and their last samples are there": (_lost("agent", (0, 1, 2)), 10 / 13),
            "one fails and three are gone": ({**_THREE_GONE, _REPLICAS[3]: 0.0, **_lost("agent", (0, 1, 2))}, 9 / 12),
            "three fail and one is gone": ({**_THREE_FAIL, _REPLICAS[3]: None, **_lost("collector", (3,))}, 9 / 13),
            "three are gone and two fail, beside a deployment that is down": (
                {**_THREE_GONE_TWO_FAIL, **_of_other(5, 0)}, 8 / 11
            ),
            "three are gone and two fail, beside one that is down whose router is up": (
                {**_THREE_GONE_TWO_FAIL, **_of_other(5, 0), **_of_other(1, 1, role="router")}, 9 / 12
            ),
            "three are gone and two fail, beside a retired deployment": (
                {**_THREE_GONE_TWO_FAIL, **_of_other(5, 1, inference_stack="v0"), _CONFIGURED[2]: 0.0}, 9 / 12
            ),
            "three are gone and two fail, beside a deployment that was scaled down": (
                {**_THREE_GONE_TWO_FAIL, **_SCALED_DOWN}, 9 / 12
            ),
            "one of two is gone": (
                {
                    **dict.fromkeys(_REPLICAS[2:], (None, None)), _ALSO_ASKED: (None, None), _REPLICAS[0]: None,
                    **_lost("agent", (0,)),
                },
                0.5,
            ),
            "for two reasons": (
                {**_THREE_GONE, **_lost("agent", (0, 1, 2)), **_lost("collector", (0, 1, 2))}, 10 / 13
            ),
            "nothing is seen": ({**dict.fromkeys(_REPLICAS), **_lost("translator", range(13)), _COUNTED: None}, 0.0),
            "beside a deployment that is down": ({**_THREE_FAIL, **_of_other(5, 0)}, 10 / 13),
            "beside a deployment that is down, whose router is up": (
                {**_THREE_FAIL, **_of_other(5, 0), **_of_other(1, 1, role="router")}, 11 / 14
            ),
            "beside a retired deployment": (
                {**_THREE_FAIL, **_of_other(5, 1, inference_stack="v0"), _CONFIGURED[2]: 0.0}, 11 / 14
            ),
            "beside a deployment that was scaled down": ({**_THREE_FAIL, **_SCALED_DOWN}, 11 / 14),
        },
        labels={}, lead=40,
    ),
    "ServescopeMetricsMissing": Proof(
        {_MISSING: 0.0, _UNDERSTOOD: 1.0}, {_MISSING: 1.0}, 1.0,
        {
            "one scrape": {_MISSING: "1 0"}, "one scrape of another page": {_UNDERSTOOD: "0 1"},
            "down": {_MISSING: None, _UNDERSTOOD: None, _UP: 0.0},
        },
        also={
            "no source map reads it any more": ({_UNDERSTOOD: 0.0}, 0.0),
            "no source map ever read it": ({_MISSING: None, _UNDERSTOOD: 0.0}, 0.0),
        },
        labels=TARGET,
    ),
    "ServescopeCollectorGone": Proof(
        {own("servescope_build_info"): 1.0}, {own("servescope_build_info"): None}, 1.0,
        {"it is there": {}}, labels={}, lag=5, open_lag=4,
    ),
    "ServescopeInternalErrors": _keeps_increasing("servescope_internal_errors_total", stage="scrape"),
    "ServescopeDiscoveryFails": Proof(
        {own("servescope_discovery_problems", instance="c"): 0.0},
        {own("servescope_discovery_problems", instance="c"): 1.0}, 1.0,
        {"read again at the next look": {own("servescope_discovery_problems", instance="c"): "1 0"}},
        labels={"instance": "c"},
    ),
    "ServescopeStoreBehind": Proof(
        {_QUEUE_AGE: 1.0},
        {_QUEUE_AGE: STORE_QUEUE_AGE.value + 1}, STORE_QUEUE_AGE.value + 1,
        {"at the boundary": {_QUEUE_AGE: STORE_QUEUE_AGE.value}}, labels={"instance": "c"},
    ),
    "ServescopeConfigurationRefused": Proof(
        {_RELOADED: 1.0}, {_RELOADED: 0.0},
        0.0, {"reloaded": {}}, labels={"instance": "c"},
    ),
    "ServescopeCollectorDown": _process_down(COLLECTOR_JOB),
    "ServescopeAgentDown": _process_down(AGENTS_JOB),
    "ServescopeClockOff": Proof(
        {_CLOCK: -2.0}, {_CLOCK: -CLOCK_OFF.value * _HAIR}, -CLOCK_OFF.value * _HAIR,
        {"at the boundary": {_CLOCK: -CLOCK_OFF.value}, "ahead, at the boundary": {_CLOCK: CLOCK_OFF.value}},
        also={"ahead": ({_CLOCK: CLOCK_OFF.value * _HAIR}, CLOCK_OFF.value * _HAIR)},
        labels={"instance": "c", "job": "j"},
    ),
    "ServescopeTranslatorDown": _process_down(TRANSLATE_JOB),
    "ServescopeProbesFail": Proof(
        {_PROBES["ok"]: 100.0, _PROBES["timeout"]: 10.0, _PROBES["translator"]: 10.0},
        _probed(FAILED_PROBES.value * _HAIR), FAILED_PROBES.value * _HAIR,
        {"at the boundary": _probed(FAILED_PROBES.value), "none is asked for": dict.fromkeys(_PROBES.values(), 0.0)},
        also={
            "in another way": (
                {
                    **_probed(FAILED_PROBES.value * _HAIR), _PROBES["timeout"]: 10.0,
                    _PROBES["translator"]: 100 * FAILED_PROBES.value * _HAIR - 10,
                },
                FAILED_PROBES.value * _HAIR,
            )
        },
        labels={"instance": "c"}, lag=9, open_lag=8,
    ),
    "ServescopeProbesRefused": _keeps_increasing("servescope_probe_refused_total", reason="target"),
    "ServescopeEventLoopLags": Proof(
        {own(f"{_LAG}_sum", instance="c"): 0.001, own(f"{_LAG}_count", instance="c"): 1.0},
        {own(f"{_LAG}_sum", instance="c"): LOOP_LAG.value * _HAIR}, LOOP_LAG.value * _HAIR,
        {"at the boundary": {own(f"{_LAG}_sum", instance="c"): LOOP_LAG.value}},
        labels={"instance": "c"}, lag=9,
    ),
    "ServescopeSamplesDropped": Proof(
        {
            **{own(_DROPPED, instance="c", reason=reason): 0.0 for reason in ("series_limit", "store")},
            own(_DROPPED, instance="c", reason="duplicate"): 1.0,
        },
        {own(_DROPPED, instance="c", reason="series_limit"): 1 / 1200}, 0.0,
        {"left out anyway": {}, "once": {own(_DROPPED, instance="c", reason="series_limit"): _ONCE}},
        elsewhere={
            "the store": (
                {own(_DROPPED, instance="c", reason="store"): 1 / 1200}, 0.0, {"instance": "c", "reason": "store"}
            )
        },
        labels={"instance": "c", "reason": "series_limit"}, late=10,
    ),
    "ServescopeRuleEvaluationFails": _any_of({
        "errors": _fails_too_often(
            RULE_FAILURES, RULE_EVALUATIONS, FAILING_RULES.value, {"rule_group": "r.yml;others"},
            rule_group="r.yml;servescope-figures",
        ),
        "missed": _fails_too_often(
            RULES_MISSED, RULE_EVALUATIONS, MISSED_EVALUATIONS.value, {"rule_group": "r.yml;others"},
            rule_group="r.yml;servescope-figures",
        ),
    }),
    "ServescopeNotificationsFail": _any_of({
        "alertmanager": _fails_too_often(
            NOTIFICATIONS_FAILED, NOTIFICATIONS_TRIED, FAILED_NOTIFICATIONS.value, integration="webhook"
        ),
        "prometheus": _fails_too_often(
            ALERTS_UNSENT, ALERTS_SENT, UNSENT_ALERTS.value, alertmanager="http://one:9093/api/v2/alerts"
        ),
    }),
    "ServescopeAlertingConfigurationRefused": _any_of({
        "prometheus": _refused(PROMETHEUS_RELOADED),
        "alertmanager": _refused(ALERTMANAGER_RELOADED),
    }),
    "ServescopeWatchdog": Proof({}, {}, 1.0, {}, labels={}, is_always=True),
}  # fmt: skip

assert PROOFS.keys() <= ALERTS.keys(), PROOFS.keys() - ALERTS.keys()


def stories_of(name: str, *, is_left_open: bool = False) -> list[dict[str, Any]]:
    """promtool's tests of an alert; the ranges of Prometheus 3 are left-open."""
    alert, proof = ALERTS[name], PROOFS[name]
    tests = list(promtool_tests(alert, proof, is_left_open=is_left_open))
    # Of these two, that nothing is there is what they fire at, or nothing to them.
    return tests if name in ("ServescopeCollectorGone", "ServescopeWatchdog") else [*tests, absent_test(alert, proof)]
