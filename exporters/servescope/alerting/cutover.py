"""The alerts on a cutover: the new stack beside the one it replaces, and the shares of the traffic beside those wanted.

Plain comparisons of figures, each beyond a margin of the catalog's; none is a verdict on the cutover.
"""

from __future__ import annotations

from typing import Literal

from servescope.alerting.choices import Choices, share
from servescope.alerting.records import (
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
    SHARE_MARGIN,
    SHARE_TRAFFIC,
    WORSE_ERRORS,
    WORSE_SPEED,
    WORSE_TIMES,
)
from servescope.contract.expressions import rate

_MODEL_LABELS = ("model_name", "environment")


def _new(its: Choices, figure: str) -> Shown:
    return Shown(figure, (("inference_stack", (its.new_stack,)),))


def _old(its: Choices, figure: str, worst: Literal["max", "min"]) -> Extreme:
    """The figure of the old stack's worst deployment of the same model in the same environment."""
    return Extreme(worst, Shown(figure, (("inference_stack", (its.old_stack,)),)), _MODEL_LABELS)


def _worse(
    its: Choices,
    name: str,
    figure: str,
    is_worse: Condition,
    *,
    summary: str,
    description: str,
    meaning: str,
    diagnosis: str,
) -> Alert:
    floor = its.value(COMPARED_TRAFFIC)
    return Alert(
        name, "warning", "cutover", "cutover",
        All((
            is_worse,
            Compare(Shown("request_rate"), ">=", floor),
            # What is left on a stack that is nearly given up, or comes first to a new one, compares by chance.
            Compare(_old(its, "request_rate", "max"), ">=", floor),
        )),
        summary,
        description,
        Runbook(
            f"{meaning} {its.old_stack}, for the same model in the same environment; of several deployments of "
            f"{its.old_stack} the worst counts. A plain comparison of two figures; it is no verdict on the cutover.",
            "Whoever is moved is served worse.",
            diagnosis,
            "Hold the cutover where it is, or move traffic back, until the cause is known.",
            "Another share of long prompts on one side, or caches of the new side that are still cold.",
        ),
        "cutover", figure, wait="15m", keep="10m",
    )  # fmt: skip


def _slower(its: Choices, name: str, figure: str, what: str) -> Alert:
    """The new stack's latency is a multiple of the old one's."""
    return _worse(
        its, name, figure,
        Compare(_new(its, figure), ">", Scaled(_old(its, figure, "max"), its.value(WORSE_TIMES))),
        summary=f"{what} on the new stack than on the old one.",
        description=f"{what} on {WHO}: its 95th percentile is {{{{ $value | humanizeDuration }}}}, "
        f"more than {its.value(WORSE_TIMES):g} times that of {its.old_stack}.",
        meaning=f"The 95th percentile of {its.new_stack} is more than {its.value(WORSE_TIMES):g} times that of",
        diagnosis="Compare the two deployments side by side: load per replica, prompt lengths, cache hits, queue.",
    )  # fmt: skip


# Ended ones: not every engine shows how many began.
_ENDED = rate("requests_total")
_SHARE = Quotient(Measured(_ENDED, ("inference_stack",), level=_MODEL_LABELS), Measured(_ENDED, level=_MODEL_LABELS))
_CONFIGURED = Own("servescope_configured_share", (*_MODEL_LABELS, "inference_stack"))


def cutover_alerts(its: Choices) -> tuple[Alert, ...]:
    """The alerts on a cutover."""
    return (
        Alert(
            "ServescopeSharesNotAsConfigured", "warning", "cutover", "cutover",
            All((
                Any((
                    Compare(_SHARE, ">", Shifted(_CONFIGURED, its.value(SHARE_MARGIN))),
                    Compare(_SHARE, "<", Shifted(_CONFIGURED, -its.value(SHARE_MARGIN))),
                )),
                Compare(Measured(_ENDED, level=_MODEL_LABELS), ">=", its.value(SHARE_TRAFFIC)),
            )),
            "The traffic is not shared between the stacks as configured.",
            "Stack {{ $labels.inference_stack }} gets " + PERCENT + " of the requests of {{ $labels.model_name }}, "
            f"more than {share(its.value(SHARE_MARGIN))} of all off its configured share.",
            Runbook(
                "Of the requests of a model that end, a stack gets a share that is more than "
                f"{share(its.value(SHARE_MARGIN))} of "
                "all away from the share that `[[shares]]` of the collector's configuration gives it.",
                "More users than planned meet the new stack, or fewer, and then the cutover does not go on.",
                "Compare the requests a second of each stack; read the weights that the gateway in front of them has "
                "now.",
                "Set the gateway's weights; or `[[shares]]`, when it was the plan that changed.",
                "A cutover step whose weights changed before `[[shares]]` did.",
            ),
            "cutover", "servescope_configured_share", wait="15m", keep="5m",
        ),
        _slower(its, "ServescopeNewStackFirstTokenSlower", "time_to_first_token_p95", "First tokens come later"),
        _slower(its, "ServescopeNewStackTokensSlower", "time_per_output_token_p95", "Tokens come more slowly"),
        _worse(
            its, "ServescopeNewStackErrorsMore", "request_error_share",
            Compare(
                _new(its, "request_error_share"), ">",
                Shifted(_old(its, "request_error_share", "max"), its.value(WORSE_ERRORS)),
            ),
            summary="More requests fail on the new stack than on the old one.",
            description=f"{PERCENT} of the requests of {WHO} fail, over {share(its.value(WORSE_ERRORS))} of all more "
            "than on "
            f"{its.old_stack}.",
            meaning=f"The share of failed requests of {its.new_stack} is higher by more than "
            f"{share(its.value(WORSE_ERRORS))} of all "
            "than that of",
            diagnosis="Compare the replicas of the new stack: one, or all? Read its log, and which requests fail: "
            "their "
            "length, their parameters, features that only one of the stacks has.",
        ),
        _worse(
            its, "ServescopeNewStackSpeedLower", "tps_per_request",
            Compare(
                _new(its, "tps_per_request"), "<",
                Scaled(_old(its, "tps_per_request", "min"), its.value(WORSE_SPEED)),
            ),
            summary="Requests get fewer tokens per second on the new stack than on the old one.",
            description=f"A request on {WHO} gets {{{{ $value | humanize }}}} tokens per second, below "
            f"{share(its.value(WORSE_SPEED))} of what it gets on {its.old_stack}.",
            meaning=f"The tokens per second per request of {its.new_stack} are below {share(its.value(WORSE_SPEED))} "
            "of those of",
            diagnosis="Compare the speculation rate and the batch: a draft that no longer fits, or more requests to a "
            "replica than before.",
        ),
    )  # fmt: skip
