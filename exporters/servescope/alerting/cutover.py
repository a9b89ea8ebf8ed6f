"""The alerts on a cutover: the new stack compared with the one it replaces, and the traffic split with the plan.

Plain comparisons of figures, each with a margin from the catalog; none is a verdict on the cutover.
"""

from __future__ import annotations

from typing import Final, Literal

from servescope.alerting.choices import Name, bound
from servescope.alerting.playbooks.failures import ERRORS
from servescope.alerting.playbooks.families import Playbook
from servescope.alerting.playbooks.latency import FIRST_TOKEN, OUTPUT_TOKENS, SPECULATION
from servescope.alerting.records import (
    NUMBER,
    PERCENT,
    WHO,
    AdHocExpression,
    Alert,
    All,
    Any,
    Compare,
    Condition,
    Extreme,
    FigureRef,
    FirstCheck,
    Quotient,
    Runbook,
    Scaled,
    SelfMetric,
    Shifted,
    by_replica,
)
from servescope.contract import bounds
from servescope.contract.expressions import rate

_MODEL_LABELS: Final = ("model_name", "environment")
_OLD: Final = Name("old_stack")
_NEW: Final = Name("new_stack")
_FLOOR: Final = bound(bounds.COMPARED_TRAFFIC)
_MARGIN: Final = bound(bounds.SPLIT_MARGIN)
_TIMES: Final = bound(bounds.WORSE_TIMES)
_ERRORS: Final = bound(bounds.WORSE_ERRORS)
_SPEED: Final = bound(bounds.WORSE_SPEED)


def _new(figure: str) -> FigureRef:
    return FigureRef(figure, (("inference_stack", (_NEW,)),))


def _old(figure: str, worst: Literal["max", "min"]) -> Extreme:
    """The figure of the old stack's worst deployment of the same model in the same environment."""
    return Extreme(worst, FigureRef(figure, (("inference_stack", (_OLD,)),)), _MODEL_LABELS)


def _compared(is_worse: Condition) -> All:
    """A difference with enough traffic on both stacks, as a few requests differ by chance."""
    return All((
        is_worse,
        Compare(FigureRef("request_rate"), ">=", _FLOOR),
        Compare(_old("request_rate", "max"), ">=", _FLOOR),
    ))  # fmt: skip


_COMPARISON: Final = (
    f"{_OLD}, for the same model in the same environment; of several deployments of {_OLD} the worst one counts. This "
    "is a plain comparison of two figures and no verdict on the cutover."
)
_MITIGATION: Final = (
    "Pause the cutover. If it gets worse, move traffic back to the old stack at the gateway in front of both: no "
    "engine has these weights."
)
_AVOID: Final = (
    "Do not raise the share of the new stack. Do not change both stacks at once: they could not be compared."
)
_CALL: Final = "The owner of the cutover, in the morning; at once if an alert on an objective pages too."
_FALSE_POSITIVES: Final = "A larger share of long prompts on one stack, or caches of the new stack that are still cold."


def _looks(figure: str, bad: str, *, lowest: bool = False) -> FirstCheck:
    """The figure of both stacks, and of the replicas of each."""
    return FirstCheck(
        FigureRef(figure),
        f"the line of {_NEW} {bad} that of {_OLD}, and stays there.",
        "both lines are close together, or apart only while the share of the traffic changes.",
        by_replica(figure),
        f"All replicas of {_NEW} alike: its version, its arguments or its hardware. A single one: take that replica "
        "out of routing, and go on with the cutover.",
        lowest,
    )


def _slower(name: str, figure: str, latency: str, notice: str, playbook: Playbook) -> Alert:
    """The new stack's latency is a multiple of the old one's."""
    return Alert(
        name, "warning", "cutover", "cutover",
        _compared(Compare(_new(figure), ">", Scaled(_old(figure, "max"), _TIMES))),
        f"The {latency} is higher on the new stack than on the old one.",
        f"The {latency} of {WHO} has a 95th percentile of {{{{ $value | humanizeDuration }}}}, more than {_TIMES:g} "
        f"times that of {_OLD}.",
        Runbook(
            f"The 95th percentile of {_NEW} is more than {_TIMES:g} times that of {_COMPARISON}",
            f"Users who were moved to the new stack {notice}.",
            "Compare the two deployments: load per replica, prompt lengths, cache hits, queue.",
            _MITIGATION,
            _FALSE_POSITIVES,
            _looks(figure, "is above"), (playbook,), _AVOID, _CALL,
            f"The {latency} of both stacks is about the same again, at the same share of the traffic.",
        ),
        "cutover", figure, for_="15m", keep_firing_for="10m",
    )  # fmt: skip


# Ended requests, since not every engine reports started ones.
_ENDED: Final = rate("requests_total")
_SPLIT: Final = Quotient(
    AdHocExpression(_ENDED, ("inference_stack",), level=_MODEL_LABELS), AdHocExpression(_ENDED, level=_MODEL_LABELS)
)
_CONFIGURED: Final = SelfMetric("servescope_configured_traffic_ratio", (*_MODEL_LABELS, "inference_stack"))

CUTOVER_ALERTS: Final = (
    Alert(
        "ServescopeTrafficSplitNotAsConfigured", "warning", "cutover", "cutover",
        All((
            Any((
                Compare(_SPLIT, ">", Shifted(_CONFIGURED, _MARGIN)),
                Compare(_SPLIT, "<", Shifted(_CONFIGURED, -_MARGIN)),
            )),
            Compare(AdHocExpression(_ENDED, level=_MODEL_LABELS), ">=", bound(bounds.SPLIT_TRAFFIC)),
        )),
        "The traffic split between the stacks differs from the configured one.",
        f"Stack {{{{ $labels.inference_stack }}}} gets {PERCENT} of the requests of {{{{ $labels.model_name }}}}, more "
        f"than {_MARGIN:%} of all requests away from the configured traffic split.",
        Runbook(
            "A stack gets more or fewer of a model's requests than `[[traffic_split]]` of the collector's "
            f"configuration sets, by more than {_MARGIN:%} of all requests.",
            "Nothing by itself. More users than planned are on the new stack, or fewer, and then the cutover does not "
            "progress.",
            "Read the weights that the gateway in front of the stacks uses now. If they are right, requests of one "
            "stack fail before they are counted, or one large client stays on one stack.",
            "Set the gateway's weights; or change `[[traffic_split]]` if the plan changed. vLLM, SGLang, TensorRT-LLM "
            "and Dynamo have no weights between stacks.",
            "A cutover step whose weights changed before `[[traffic_split]]` did.",
            FirstCheck(
                _SPLIT,
                "a stack's share is elsewhere than in the plan, since a change of the gateway.",
                "the share moves towards the plan's: a step has just begun.",
            ),
            (),
            "Do not stop replicas of a stack to move its traffic: requests would fail.",
            "The owner of the cutover, now if more users than planned are on the new stack.",
            "The share is within the margin of the plan.",
        ),
        "cutover", "servescope_configured_traffic_ratio", for_="15m", keep_firing_for="5m",
    ),
    _slower(
        "ServescopeNewStackFirstTokenSlower", "time_to_first_token_p95", "time to first token",
        "wait longer for the first word of an answer", FIRST_TOKEN,
    ),
    _slower(
        "ServescopeNewStackTokensSlower", "time_per_output_token_p95", "time per output token",
        "get their answers more slowly", OUTPUT_TOKENS,
    ),
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
            "Users who were moved to the new stack get errors that they did not get before.",
            "Check the new stack's log, and which requests fail: their length, their parameters, features that only "
            "one of the stacks has.",
            _MITIGATION,
            "Clients that send requests which only the old stack accepts.",
            _looks("request_error_share", "is above"), (ERRORS,), _AVOID,
            "The owner of the cutover now: errors are the plainest harm there is.",
            "The shares of both stacks are about the same again.",
        ),
        "cutover", "request_error_share", for_="15m", keep_firing_for="10m",
    ),
    Alert(
        "ServescopeNewStackSpeedLower", "warning", "cutover", "cutover",
        _compared(Compare(_new("tps_per_request"), "<", Scaled(_old("tps_per_request", "min"), _SPEED))),
        "Requests get fewer tokens per second on the new stack than on the old one.",
        f"A request on {WHO} gets {NUMBER} tokens per second, less than {_SPEED:%} of what it gets on {_OLD}.",
        Runbook(
            f"The tokens per second per request of {_NEW} are below {_SPEED:%} of those of {_COMPARISON}",
            "Users who were moved to the new stack see their answers being written more slowly.",
            "Compare the speculation rate and the batch size: a draft that no longer matches the model, or more "
            "requests per replica than before.",
            _MITIGATION,
            "Longer prompts, or more requests per replica, on the new stack alone.",
            _looks("tps_per_request", "is below", lowest=True), (SPECULATION, OUTPUT_TOKENS), _AVOID, _CALL,
            "A request gets about as many tokens per second on both stacks.",
        ),
        "cutover", "tps_per_request", for_="15m", keep_firing_for="10m",
    ),
)  # fmt: skip
