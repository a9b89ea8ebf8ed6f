"""The alerts on a cutover that is judged, and on the judge itself. A Prometheus evaluates them, as it scrapes both."""

from __future__ import annotations

from typing import Final

from servescope.alerting.rules.choices import bound, waited
from servescope.alerting.rules.records import (
    WHO,
    Alert,
    Any,
    Because,
    Compare,
    Disappeared,
    FirstCheck,
    Runbook,
    SelfMetric,
    by_cause,
)
from servescope.contract.bounds import JUDGEMENT_AGE
from servescope.contract.identity import GROUP_LABELS
from servescope.contract.own_metrics import JUDGED_LABELS

# A plan may name several deployments for v2; then only the labels that they share are on its series.
_PLAN: Final = "{{ $labels.plan }} to {{ if $labels.deployment_id }}" + WHO + "{{ else }}several deployments{{ end }}"
_AGE: Final = SelfMetric("servescope_judgement_age_seconds", JUDGED_LABELS)
_LIMIT: Final = bound(JUDGEMENT_AGE)
_OF_PLANS: Final = SelfMetric("servescope_judgement", (*JUDGED_LABELS, "verdict"))


def _verdict(verdict: str) -> SelfMetric:
    return SelfMetric("servescope_judgement", (*JUDGED_LABELS, "verdict"), (("verdict", (verdict,)),))


JUDGE_ALERTS: Final = (
    Alert(
        "ServescopeCutoverDegraded", "critical", "judge", "cutover",
        Compare(_verdict("DEGRADED"), "==", 1.0),
        "A cutover is judged DEGRADED.",
        f"The cutover {_PLAN} is judged DEGRADED: v2 is proven to be worse than v1 beyond what the plan allows to be "
        "immaterial.",
        Runbook(
            "A metric of v2 is proven to be worse than on v1 by more than its floor, at the confidence of the plan, "
            "however often one looked. The verdict stays until somebody acknowledges it.",
            "Users of v2 are served worse; the share of requests on v2 is the share of users affected.",
            "`servescope judge explain` names the metric, its interval and margin; the cutover page of the console "
            "shows since when, beside deploys and other alerts. Then open the runbook of that metric's alert: late "
            "first tokens, slow tokens or failing requests have switches of their own on each engine.",
            "Beyond the margin: move the traffic back to v1, and record it by `servescope judge decide rollback`. "
            "Probable: keep the share, find the cause. Acknowledge the verdict once it is dealt with. The weights are "
            "those of the gateway in front of both stacks: vLLM, SGLang, TensorRT-LLM and Dynamo have none.",
            "The plan bounds the probability of a false one, for a whole cutover. A deploy on one stack alone is no "
            "noise: exclude its time with a reason.",
            FirstCheck(
                _OF_PLANS,
                "the line of `DEGRADED` is at its top, and the deploys on the page explain nothing.",
                "another verdict; or a `DEGRADED` that somebody has acknowledged already.",
            ),
            (),
            "Do not raise the share to get more data. Do not acknowledge it to silence it: the verdict is proven.",
            "The owner of the cutover, now: whether to move traffic back is theirs to decide. Without an answer within "
            "minutes, move it back: that harms nobody.",
            "The verdict is acknowledged and another one takes its place, or the traffic is on v1 again.",
        ),
        "cutover", "servescope_judgement", for_="1m", keep_firing_for="10m", panel="Verdict",
        waits_less="a verdict is already certain at the confidence of the plan, and stays until it is acknowledged",
    ),
    Alert(
        "ServescopeCutoverNoData", "warning", "judge", "servescope",
        Compare(_verdict("NO DATA"), "==", 1.0),
        "A cutover cannot be judged for lack of data.",
        f"The cutover {_PLAN} has been judged NO DATA for {waited()}: samples that its plan requires are missing.",
        Runbook(
            "An arm of the plan has no targets, no traffic or too few scrapes, or a required metric is absent.",
            "Nothing by itself; but harm to users of v2 would not be noticed. No data is never taken for health: the "
            "gates stay closed.",
            "`servescope judge explain` names what is missing for each metric; the Sources page of the console shows "
            "failing targets.",
            "Fix the scrapes or the selectors of the plan's arms. Until then watch the alerts on the new stack, which "
            "compare the two without the judge.",
            "A stage that has just begun, before v2 gets its first requests.",
            FirstCheck(
                _OF_PLANS,
                "`NO DATA` since a change of targets, labels or the plan.",
                "another verdict; or `NO DATA` since v2 has no traffic by plan.",
            ),
            (),
            "Do not raise the share meanwhile.",
            "The owner of the cutover, in the morning; if other targets are missing, whoever runs the collectors.",
            "Another verdict takes its place.",
        ),
        "cutover", "servescope_judgement", for_="15m", panel="Verdict",
    ),
    Alert(
        "ServescopeJudgeGone", "warning", "judge", "servescope",
        Any((
            Because("late", Compare(_AGE, ">", _LIMIT)),
            Because("gone", Disappeared(_AGE, "6h", GROUP_LABELS, at_any_time=True)),
        )),
        "Nobody judges a cutover any more.",
        f"The cutover {_PLAN} " + by_cause({
            "late": "was last judged {{ $value | humanizeDuration }} ago.",
            "gone": "was judged within the last 6 hours, and its judge is not scraped any more.",
        }),
        Runbook(
            f"`late`: the judge runs and has not judged for more than {_LIMIT:g} seconds, as its attempts fail or take "
            "too long. `gone`: `servescope judge watch` of this plan does not run, or Prometheus cannot scrape it.",
            "Nothing by itself. Nobody watches the cutover: harm to users of v2 is not reported, the verdict shown is "
            "an old one, and the gates answer that they do not know, or not at all.",
            "Check whether it runs, and the targets page of Prometheus. If it runs, `servescope_judgement_errors_total`"
            " counts attempts that failed, and its log has the cause: the store or the Prometheus does not answer, or "
            "the journal is damaged.",
            "Fix what the log names, or start it with the same plan and journal: it goes on from samples and journal, "
            "and reports what it missed.",
            "A cutover that is over: the alert resolves 6 hours after its judge was stopped.",
            FirstCheck(
                _AGE,
                "the age rises evenly, or the line of the plan ends.",
                f"the line goes on, and the age stays below {_LIMIT:g} seconds.",
            ),
            (),
            "Do not delete the journal: it has the decisions and what was looked at so far. Do not raise the share of "
            "v2 while nobody judges it.",
            "The owner of the cutover, if a stage is under way or about to begin.",
            "The plan's judgement has an age again, of a few seconds.",
        ),
        "cutover", "servescope_judgement_age_seconds", for_="5m", panel="Age of the judgement",
    ),
)  # fmt: skip
