"""The alerts on a cutover: the new stack beside the one it replaces, and the shares of the traffic beside those wanted.

Plain comparisons of figures, each beyond a margin of the catalog's; none is a verdict on the cutover.
"""

from __future__ import annotations

from typing import Literal

from servescope.alerting import (
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
from servescope.catalog import (
    NEW_STACK,
    OLD_STACK,
    REQUEST_TRAFFIC,
    SHARE_MARGIN,
    SHARE_TRAFFIC,
    WORSE_ERRORS,
    WORSE_SPEED,
    WORSE_TIMES,
)
from servescope.expressions import rate

ENOUGH_REQUESTS = Compare(Shown("request_rate"), ">=", REQUEST_TRAFFIC.value)
"""Enough traffic for a share or a latency to say something."""

_MODEL_LABELS = ("model_name", "environment")


def _new(figure: str) -> Shown:
    return Shown(figure, (("inference_stack", (NEW_STACK,)),))


def _old(figure: str, worst: Literal["max", "min"]) -> Extreme:
    """The figure of the old stack's worst deployment of the same model in the same environment."""
    return Extreme(worst, Shown(figure, (("inference_stack", (OLD_STACK,)),)), _MODEL_LABELS)


def _worse(
    name: str, figure: str, is_worse: Condition, *, summary: str, description: str, meaning: str, diagnosis: str
) -> Alert:
    return Alert(
        name, "warning", "cutover", "cutover",
        All((is_worse, ENOUGH_REQUESTS)),
        summary,
        description,
        Runbook(
            f"{meaning} {OLD_STACK}, for the same model in the same environment; of several deployments of {OLD_STACK} "
            "the worst counts. A plain comparison of two figures; it is no verdict on the cutover.",
            "Whoever is moved is served worse.",
            diagnosis,
            "Hold the cutover where it is, or move traffic back, until the cause is known.",
            "Another share of long prompts on one side, or caches of the new side that are still cold.",
        ),
        "cutover", figure, wait="15m", keep="10m",
    )  # fmt: skip


def _slower(name: str, figure: str, what: str) -> Alert:
    """The new stack's latency is a multiple of the old one's."""
    return _worse(
        name, figure,
        Compare(_new(figure), ">", Scaled(_old(figure, "max"), WORSE_TIMES.value)),
        summary=f"{what} on the new stack than on the old one.",
        description=f"{what} on {WHO}: its 95th percentile is {{{{ $value | humanizeDuration }}}}, "
        f"more than {WORSE_TIMES.value:g} times that of {OLD_STACK}.",
        meaning=f"The 95th percentile of {NEW_STACK} is more than {WORSE_TIMES.value:g} times that of",
        diagnosis="Compare the two deployments side by side: load per replica, prompt lengths, cache hits, queue.",
    )  # fmt: skip


_STARTED = rate("requests_started_total")
_SHARE = Quotient(
    Measured(_STARTED, ("inference_stack",), level=_MODEL_LABELS), Measured(_STARTED, level=_MODEL_LABELS)
)
_CONFIGURED = Own("servescope_configured_share", (*_MODEL_LABELS, "inference_stack"))

CUTOVER_ALERTS = (
    Alert(
        "ServescopeSharesNotAsConfigured", "warning", "cutover", "cutover",
        All((
            Any((
                Compare(_SHARE, ">", Shifted(_CONFIGURED, SHARE_MARGIN.value)),
                Compare(_SHARE, "<", Shifted(_CONFIGURED, -SHARE_MARGIN.value)),
            )),
            Compare(Measured(_STARTED, level=_MODEL_LABELS), ">=", SHARE_TRAFFIC.value),
        )),
        "The traffic is not shared between the stacks as configured.",
        "Stack {{ $labels.inference_stack }} gets " + PERCENT + " of the requests of {{ $labels.model_name }}, more "
        f"than {SHARE_MARGIN.value:.0%} of all off its configured share.",
        Runbook(
            f"Of the requests started on a model, a stack gets a share that is more than {SHARE_MARGIN.value:.0%} of "
            "all away from the share that `[[shares]]` of the collector's configuration gives it.",
            "More users than planned meet the new stack, or fewer, and then the cutover does not go on.",
            "Compare the requests a second of each stack; read the weights that the gateway in front of them has now.",
            "Set the gateway's weights; or `[[shares]]`, when it was the plan that changed.",
            "A cutover step whose weights changed before `[[shares]]` did.",
        ),
        "cutover", "servescope_configured_share", wait="15m", keep="5m",
    ),
    _slower("ServescopeNewStackFirstTokenSlower", "time_to_first_token_p95", "First tokens come later"),
    _slower("ServescopeNewStackTokensSlower", "time_per_output_token_p95", "Tokens come more slowly"),
    _worse(
        "ServescopeNewStackErrorsMore", "request_error_share",
        Compare(_new("request_error_share"), ">", Shifted(_old("request_error_share", "max"), WORSE_ERRORS.value)),
        summary="More requests fail on the new stack than on the old one.",
        description=f"{PERCENT} of the requests of {WHO} fail, over {WORSE_ERRORS.value:.0%} of all more than on "
        f"{OLD_STACK}.",
        meaning=f"The share of failed requests of {NEW_STACK} is higher by more than {WORSE_ERRORS.value:.0%} of all "
        "than that of",
        diagnosis="Compare the replicas of the new stack: one, or all? Read its log, and which requests fail: their "
        "length, their parameters, features that only one of the stacks has.",
    ),
    _worse(
        "ServescopeNewStackSpeedLower", "tps_per_request",
        Compare(_new("tps_per_request"), "<", Scaled(_old("tps_per_request", "min"), WORSE_SPEED.value)),
        summary="Requests get fewer tokens per second on the new stack than on the old one.",
        description=f"A request on {WHO} gets {{{{ $value | humanize }}}} tokens per second, below "
        f"{WORSE_SPEED.value:.0%} of what it gets on {OLD_STACK}.",
        meaning=f"The tokens per second per request of {NEW_STACK} are below {WORSE_SPEED.value:.0%} of those of",
        diagnosis="Compare the speculation rate and the batch: a draft that no longer fits, or more requests to a "
        "replica than before.",
    ),
)  # fmt: skip
"""The alerts on a cutover."""
