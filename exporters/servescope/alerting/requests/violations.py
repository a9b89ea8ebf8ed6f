"""The runbooks of objectives: what users notice of a violation, where its cause shows, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from servescope.alerting.playbooks.failures import ERRORS
from servescope.alerting.playbooks.families import Playbook
from servescope.alerting.playbooks.latency import FIRST_TOKEN, OUTPUT_TOKENS, SPECULATION
from servescope.alerting.playbooks.routing import PREFIX_CACHE
from servescope.alerting.rules.choices import bound
from servescope.alerting.rules.records import AdHocExpression, BadRatio, FirstCheck, Runbook
from servescope.contract.bounds import ALL_BAD_REQUESTS, BAD_REQUESTS
from servescope.contract.expressions import describe_selector
from servescope.contract.types import BurnWindow, Objective

_ENOUGH: Final = bound(BAD_REQUESTS)
_ALL: Final = bound(ALL_BAD_REQUESTS)
_MANY: Final = "Many are affected now."
_FEW: Final = "Few are affected; the budget runs out within the month."


@dataclass(frozen=True, slots=True)
class _Violation:
    """What is to be said of one objective, whether its budget burns fast or slowly."""

    notice: str
    apart: str
    cause: str
    now: str
    avoid: str
    by_nature: str
    playbooks: tuple[Playbook, ...]


_VIOLATIONS: Mapping[str, _Violation] = MappingProxyType(
    {
        "time_to_first_token": _Violation(
            notice="Users wait longer for the first word of their answers; the impatient ones give up.",
            apart="All replicas alike: the load, the prompts, or the last change. A single one: its machine, or a "
            "cache that is empty since its restart. A router alone: requests wait there, and not in the engines.",
            cause="Is there a queue? Then there is too little capacity: more traffic, longer prompts, or fewer "
            "replicas. Is there none? Then prompts take longer: they are longer, or fewer of them are cached since a "
            "restart or a change of the router.",
            now="A single slow replica: take it out of routing. A queue: add replicas, or limit the client that sends "
            "most; where a router alone has it, restart that. Neither: roll back the last change of engine, model or "
            "router.",
            avoid="Do not restart all replicas: their caches would be empty, and every prompt takes longer still.",
            by_nature="A new share of requests that are slow by nature, such as very long prompts.",
            playbooks=(FIRST_TOKEN, PREFIX_CACHE),
        ),
        "time_per_output_token": _Violation(
            notice="Answers begin in time and are then written more slowly than users read.",
            apart="All replicas alike: larger batches, or the last change. A single one: a GPU that is throttled or "
            "shared.",
            cause="Compare the requests in flight by replica with before: are the batches larger? Are requests "
            "preempted? Did the speculation rate fall? On a slow machine `nvidia-smi -q -d PERFORMANCE` shows "
            "throttling.",
            now="A single slow replica: take it out of routing. Larger batches: add replicas. Batches as before: roll "
            "back the last change of engine, model or draft.",
            avoid="Do not raise the batch to shorten a queue: every token of everybody gets slower.",
            by_nature="More requests with a long context, of which each token takes longer.",
            playbooks=(OUTPUT_TOKENS, SPECULATION),
        ),
        "inter_token_latency": _Violation(
            notice="Answers stop and go: words come in bursts, with pauses between them.",
            apart="All workers alike: the frontend, or prompts that interrupt all of them. A single one: its engine or "
            "its machine. A line of a frontend has the gaps of all its workers.",
            cause="Compare with the tokens per second per request. If the speed is as before, single gaps grew: long "
            "prompts of others between two tokens, preemptions, or a frontend that is out of CPU. If the speed fell, "
            "every token is slower: larger batches, or the last change.",
            now="A frontend out of CPU: add one. Gaps while long prompts arrive: move those to another deployment, or "
            "add workers. A single worker: take it out of routing. Otherwise roll back the last change.",
            avoid="Do not restart the frontend first: every answer that is being written would break off.",
            by_nature="Speculative decoding sends several tokens at once: longer gaps, and no slower answers.",
            playbooks=(OUTPUT_TOKENS,),
        ),
        "requests": _Violation(
            notice="Users get an error or a refusal instead of an answer.",
            apart="A single replica fails: take it out of routing at once. All fail alike: the last change, the "
            "model, or what they share. A line of a router has the failures of all behind it.",
            cause="Which outcome is it? `error` failed in the stack, `rejected` was refused for lack of capacity: the "
            "panel *Requests by outcome* shows them apart. Then read the log of what fails: one kind of request, or "
            "any?",
            now="Errors of one replica: take it out of routing, then restart it. Errors of all since a change: roll it "
            "back, or route the traffic to the other stack. Refusals: add replicas, or limit the client that sends "
            "most.",
            avoid="Do not raise retries at the gateway or at clients: they multiply the load on what fails. Do not "
            "restart all replicas at once.",
            by_nature="A single client whose requests the stack refuses for good reason. Requests that are invalid, or "
            "whose client left, do not count.",
            playbooks=(ERRORS,),
        ),
    }
)


def _promised(objective: Objective) -> str:
    others = (f"; of {describe_selector(each.where)}, that {each.promise}" for each in objective.others)
    return objective.promise + "".join(others)


def violation_runbook(objective: Objective, rows: Sequence[BurnWindow], *, is_fast: bool) -> Runbook:
    """The runbook of an alert on an objective whose budget burns in one of these ways."""
    violation = _VIOLATIONS[objective.name]
    short = min(rows, key=lambda row: row.factor).factor * objective.budget
    limit = f"{short * 100:.6g}%"
    burn_rates = " or ".join(f"above {row.factor:g} over {row.long} and {row.short}" for row in rows)
    return Runbook(
        f"The objective is that {_promised(objective)}. The error budget of {objective.budget * 100:.6g}% over 30 days "
        f"burns too fast: its burn rate is {burn_rates}.",
        f"{violation.notice} {_MANY if is_fast else _FEW}",
        violation.cause,
        violation.now if is_fast else f"{violation.now} None of it has to be done at night.",
        f"{violation.by_nature} A few bad requests among few do not suffice: over the longer window there are "
        f"{_ENOUGH:g} or more, or at least {_ALL:g} and no good one.",
        FirstCheck(
            BadRatio(objective, rows[0].short),
            f"above {limit}, level or rising.",
            "falling below that: the alert is about the time before.",
            AdHocExpression(objective.bad, ("replica",)),
            violation.apart,
        ),
        violation.playbooks,
        violation.avoid,
        "The owner of the deployment, now, if no single replica is to blame and a rollback is not yours to do."
        if is_fast
        else "Nobody at night. In the morning the owner of the deployment.",
        f"The share of bad {objective.counts} is below {limit}, and then over the shorter window too.",
    )
