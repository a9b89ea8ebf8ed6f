"""What a verdict covers and what it cannot see, in sentences: HEALTHY means no more than what was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from servescope.cutover.judgement import MetricJudgement, Scope
from servescope.cutover.plan.plan import FrozenPlan

_EMPTY: Final = frozenset({"metric absent", "too few", "incomparable", "never run"})
"""Causes for which nothing is known of a metric that others of the plan do not wait for."""


def scope_of(frozen: FrozenPlan, metrics: Sequence[MetricJudgement], incomparable: Mapping[str, str]) -> Scope:
    """The scope of a judgement: of its plan, and of what its sources report.

    `incomparable` is why metrics cannot be compared, by name. Which load was seen is in a judgement's notes.
    """
    required = [each.title for each in metrics if each.decides]
    seen = [each for each in metrics if not each.decides and each.cause not in _EMPTY]
    covers = [f"proven within their margins before it is HEALTHY: {_list(required)}"]
    guards = [each.title for each in seen if each.guard]
    if guards:
        covers.append(f"looked at for harm, without a proof of health: {_list(guards)}")
    unseen = ["whether answers are right, safe or as good as v1's: their words are not read"]
    blind = [each for each in metrics if not each.decides and each.cause in _EMPTY]
    unseen += [f"{each.title}: {incomparable.get(each.name) or 'no data of it in this stage'}" for each in blind]
    layers = {frozen.layers.get("requests_total", ("", ""))[side] for side in (0, 1)} - {""}
    if layers:
        unseen.append(f"requests that fail before they are counted, at the {' and the '.join(sorted(layers))}")
    unseen.append("tenants, routes and prompts one by one, but for segments that both stacks report")
    return Scope(tuple(covers), tuple(unseen))


def _list(titles: Sequence[str]) -> str:
    return ", ".join(titles) or "nothing"
