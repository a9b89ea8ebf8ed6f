"""The alerts on a cutover: the new stack compared with the one it replaces, and the traffic split with the plan.

Plain comparisons of figures, each with a margin from the catalog; none is a verdict on the cutover.
"""

from __future__ import annotations

from typing import Final, Literal

from servescope.alerting.playbooks.failures import ERRORS
from servescope.alerting.playbooks.latency import FIRST_TOKEN, OUTPUT_TOKENS, SPECULATION
from servescope.alerting.rules.choices import Name, bound
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
    Condition,
    Extreme,
    FigureRef,
    FirstCheck,
    Quotient,
    Runbook,
    Scaled,
    SelfMetric,
    Shifted,
    by_cause,
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


_FIRST_P95: Final = "time_to_first_token_p95"
_OUTPUT_P95: Final = "time_per_output_token_p95"
_FAILED: Final = "request_error_share"
_PER_REQUEST: Final = "tps_per_request"
_COMPARISON: Final = (
    f"{_OLD}, for the same model in the same environment; of several deployments of {_OLD} the worst one counts. This "
    "is a plain comparison of two figures and no verdict on the cutover."
)
_WORSE: Final = Any((
    Because(
        "first token",
        _compared(Compare(_new(_FIRST_P95), ">", Scaled(_old(_FIRST_P95, "max"), _TIMES))),
        "New stack first token slower",
    ),
    Because(
        "tokens", _compared(Compare(_new(_OUTPUT_P95), ">", Scaled(_old(_OUTPUT_P95, "max"), _TIMES))),
        "New stack tokens slower",
    ),
    Because(
        "errors", _compared(Compare(_new(_FAILED), ">", Shifted(_old(_FAILED, "max"), _ERRORS))),
        "New stack errors more",
    ),
    Because(
        "speed", _compared(Compare(_new(_PER_REQUEST), "<", Scaled(_old(_PER_REQUEST, "min"), _SPEED))),
        "New stack speed lower",
    ),
))  # fmt: skip

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
    Alert(
        "ServescopeNewStackWorse", "warning", "cutover", "cutover",
        _WORSE,
        "The new stack is worse than the old one.",
        f"{WHO}: " + by_cause({
            "first token": "the time to first token has a 95th percentile of {{ $value | humanizeDuration }}, more "
            f"than {_TIMES:g} times that of {_OLD}.",
            "tokens": "the time per output token has a 95th percentile of {{ $value | humanizeDuration }}, more than "
            f"{_TIMES:g} times that of {_OLD}.",
            "errors": f"{PERCENT} of the requests fail. That is more than on {_OLD} by over {_ERRORS:%} of all "
            "requests.",
            "speed": f"a request gets {NUMBER} tokens per second, less than {_SPEED:%} of what it gets on {_OLD}.",
        }),
        Runbook(
            f"{_NEW} is worse by one of four figures. `first token` and `tokens`: its 95th percentile is more than "
            f"{_TIMES:g} times as long. `errors`: more of its requests fail, by over {_ERRORS:%} of all requests. "
            f"`speed`: a request gets less than {_SPEED:%} of the tokens per second. It is compared with "
            f"{_COMPARISON}",
            "Users who were moved to the new stack wait longer for the first word, get their answers more slowly, or "
            "get errors that they did not get before.",
            "Compare the two deployments: load per replica, prompt lengths, cache hits, queue. `errors`: the new "
            "stack's log, and which requests fail, by length, parameters and features that only one of the stacks "
            "has. `tokens` and `speed`: the speculation rate and the batch size, as of a draft that no longer matches "
            "the model, or of more requests per replica than before.",
            "Pause the cutover. If it gets worse, move traffic back to the old stack at the gateway in front of both: "
            "no engine has these weights.",
            "A larger share of long prompts on one stack, caches of the new stack that are still cold, or clients that "
            "send requests which only the old stack accepts.",
            FirstCheck(
                FigureRef(_FIRST_P95),
                f"the line of {_NEW} is above that of {_OLD}, and stays there.",
                "both lines are close together, or apart only while the share of the traffic changes.",
                by_replica(_FIRST_P95),
                f"All replicas of {_NEW} alike: its version, its arguments or its hardware. A single one: take that "
                "replica out of routing, and go on with the cutover.",
            ),
            (FIRST_TOKEN, OUTPUT_TOKENS, SPECULATION, ERRORS),
            "Do not raise the share of the new stack. Do not change both stacks at once: they could not be compared.",
            "The owner of the cutover: now for `errors`, which are the plainest harm there is, or if an alert on an "
            "objective pages too, else in the morning.",
            "The figures of both stacks are about the same again, at the same share of the traffic.",
        ),
        "cutover", _FIRST_P95, for_="15m", keep_firing_for="10m", panel="New stack first token slower",
    ),
)  # fmt: skip
