"""The alerts on a cutover: the new stack compared with the one it replaces, and the traffic split with the plan.

Plain comparisons of figures, each with a margin from the catalog; none is a verdict on the cutover.
"""

from __future__ import annotations

from typing import Final, Literal

from servescope.alerting.choices import Name, bound
from servescope.alerting.records import (
    NUMBER,
    PERCENT,
    WHO,
    Alert,
    All,
    Any,
    Compare,
    Condition,
    Extreme,
    Measured,
    Own,
    Quotient,
    Runbook,
    Scaled,
    Shifted,
    Shown,
)
from servescope.contract.bounds import (
    COMPARED_TRAFFIC,
    SPLIT_MARGIN,
    SPLIT_TRAFFIC,
    WORSE_ERRORS,
    WORSE_SPEED,
    WORSE_TIMES,
)
from servescope.contract.expressions import rate

_MODEL_LABELS: Final = ("model_name", "environment")
_OLD: Final = Name("old_stack")
_NEW: Final = Name("new_stack")
_FLOOR: Final = bound(COMPARED_TRAFFIC)
_MARGIN: Final = bound(SPLIT_MARGIN)
_TIMES: Final = bound(WORSE_TIMES)
_ERRORS: Final = bound(WORSE_ERRORS)
_SPEED: Final = bound(WORSE_SPEED)


def _new(figure: str) -> Shown:
    return Shown(figure, (("inference_stack", (_NEW,)),))


def _old(figure: str, worst: Literal["max", "min"]) -> Extreme:
    """The figure of the old stack's worst deployment of the same model in the same environment."""
    return Extreme(worst, Shown(figure, (("inference_stack", (_OLD,)),)), _MODEL_LABELS)


def _compared(is_worse: Condition) -> All:
    """A difference with enough traffic on both stacks, as a few requests differ by chance."""
    return All((
        is_worse,
        Compare(Shown("request_rate"), ">=", _FLOOR),
        Compare(_old("request_rate", "max"), ">=", _FLOOR),
    ))  # fmt: skip


_COMPARISON: Final = (
    f"{_OLD}, for the same model in the same environment; of several deployments of {_OLD} the worst one counts. This "
    "is a plain comparison of two figures and no verdict on the cutover."
)
_IMPACT: Final = "Users who were moved to the new stack get worse service."
_MITIGATION: Final = "Pause the cutover, or route traffic back, until the cause is known."
_FALSE_POSITIVES: Final = "A larger share of long prompts on one stack, or caches of the new stack that are still cold."


def _slower(name: str, figure: str, latency: str) -> Alert:
    """The new stack's latency is a multiple of the old one's."""
    return Alert(
        name, "warning", "cutover", "cutover",
        _compared(Compare(_new(figure), ">", Scaled(_old(figure, "max"), _TIMES))),
        f"The {latency} is higher on the new stack than on the old one.",
        f"The {latency} of {WHO} has a 95th percentile of {{{{ $value | humanizeDuration }}}}, more than {_TIMES:g} "
        f"times that of {_OLD}.",
        Runbook(
            f"The 95th percentile of {_NEW} is more than {_TIMES:g} times that of {_COMPARISON}",
            _IMPACT,
            "Compare the two deployments: load per replica, prompt lengths, cache hits, queue.",
            _MITIGATION,
            _FALSE_POSITIVES,
        ),
        "cutover", figure, wait="15m", keep="10m",
    )  # fmt: skip


# Ended requests, since not every engine reports started ones.
_ENDED: Final = rate("requests_total")
_SPLIT: Final = Quotient(
    Measured(_ENDED, ("inference_stack",), level=_MODEL_LABELS), Measured(_ENDED, level=_MODEL_LABELS)
)
_CONFIGURED: Final = Own("servescope_configured_traffic_ratio", (*_MODEL_LABELS, "inference_stack"))

CUTOVER_ALERTS: Final = (
    Alert(
        "ServescopeTrafficSplitNotAsConfigured", "warning", "cutover", "cutover",
        All((
            Any((
                Compare(_SPLIT, ">", Shifted(_CONFIGURED, _MARGIN)),
                Compare(_SPLIT, "<", Shifted(_CONFIGURED, -_MARGIN)),
            )),
            Compare(Measured(_ENDED, level=_MODEL_LABELS), ">=", bound(SPLIT_TRAFFIC)),
        )),
        "The traffic split between the stacks differs from the configured one.",
        f"Stack {{{{ $labels.inference_stack }}}} gets {PERCENT} of the requests of {{{{ $labels.model_name }}}}, more "
        f"than {_MARGIN:%} of all requests away from the configured traffic split.",
        Runbook(
            "A stack gets more or fewer of a model's requests than `[[traffic_split]]` of the collector's "
            f"configuration sets, by more than {_MARGIN:%} of all requests.",
            "More users than planned are on the new stack, or fewer, and then the cutover does not progress.",
            "Compare the request rates of the stacks; read the weights that the gateway in front of them uses now.",
            "Set the gateway's weights; or change `[[traffic_split]]` if the plan changed.",
            "A cutover step whose weights changed before `[[traffic_split]]` did.",
        ),
        "cutover", "servescope_configured_traffic_ratio", wait="15m", keep="5m",
    ),
    _slower("ServescopeNewStackFirstTokenSlower", "time_to_first_token_p95", "time to first token"),
    _slower("ServescopeNewStackTokensSlower", "time_per_output_token_p95", "time per output token"),
    Alert(
        "ServescopeNewStackErrorsMore", "warning", "cutover", "cutover",
        _compared(Compare(
            _new("request_error_share"), ">", Shifted(_old("request_error_share", "max"), _ERRORS)
        )),
        "More requests fail on the new stack than on the old one.",
        f"{PERCENT} of the requests of {WHO} fail. That is more than on {_OLD} by over {_ERRORS:%} of all requests.",
        Runbook(
            f"The share of failed requests of {_NEW} is higher by more than {_ERRORS:%} of all requests than that of "
            f"{_COMPARISON}",
            _IMPACT,
            "Compare the replicas of the new stack: is it one, or all? Check its log, and which requests fail: their "
            "length, their parameters, features that only one of the stacks has.",
            _MITIGATION,
            _FALSE_POSITIVES,
        ),
        "cutover", "request_error_share", wait="15m", keep="10m",
    ),
    Alert(
        "ServescopeNewStackSpeedLower", "warning", "cutover", "cutover",
        _compared(Compare(_new("tps_per_request"), "<", Scaled(_old("tps_per_request", "min"), _SPEED))),
        "Requests get fewer tokens per second on the new stack than on the old one.",
        f"A request on {WHO} gets {NUMBER} tokens per second, less than {_SPEED:%} of what it gets on {_OLD}.",
        Runbook(
            f"The tokens per second per request of {_NEW} are below {_SPEED:%} of those of {_COMPARISON}",
            _IMPACT,
            "Compare the speculation rate and the batch size: a draft that no longer matches the model, or more "
            "requests per replica than before.",
            _MITIGATION,
            _FALSE_POSITIVES,
        ),
        "cutover", "tps_per_request", wait="15m", keep="10m",
    ),
)  # fmt: skip
