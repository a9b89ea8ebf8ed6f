"""Whether a metric means the same on both stacks: its layer, its definition, and whether each reports it at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from servescope.contract.judged import GPU_COST, JUDGED, REPLICA_COST, JudgedMetric
from servescope.contract.metrics import METRICS
from servescope.cutover.evidence.folding import ArmArrays, ArmFold, MeasuredLayer
from servescope.sources.map_files import metric_map

Finding = Literal["absent", "never run", "incomparable", "note"]


@dataclass(frozen=True, slots=True)
class Comparability:
    """What keeps a metric from being compared, or qualifies it; `reason` is a sentence."""

    finding: Finding
    reason: str


_TIMED: Final = ("seconds", "tokens/s")


def compare(metric: JudgedMetric, folded: ArmArrays) -> Comparability | None:
    """What is to be said of a metric on both stacks; None where both report the same thing."""
    families = sorted(metric.families)
    if is_replaced(metric, folded):
        return Comparability("absent", f"{JUDGED[GPU_COST].title} are compared, as both show their GPUs")
    arms = {"v2": folded.v2} if metric.kind == "band" else {"v1": folded.v1, "v2": folded.v2}
    for family in families:
        for name, arm in arms.items():
            if family not in arm.layers and arm.replicas:
                return Comparability("absent", f"{name}{_sources(arm)} does not report {family}: {_absence(family)}")
    found = unproven(metric, folded)
    if found is not None or metric.kind == "band":
        return found
    for family in families:
        found = _compare_family(metric, family, folded.v1.layers.get(family), folded.v2.layers.get(family))
        if found is not None:
            return found
    return None


def unproven(metric: JudgedMetric, folded: ArmArrays) -> Comparability | None:
    """Why a metric is not judged: a source that it is taken from was never run, so that its map may be wrong."""
    arms = {"v2": folded.v2} if metric.kind == "band" else {"v1": folded.v1, "v2": folded.v2}
    for name, arm in arms.items():
        for family in sorted(metric.families & arm.layers.keys()):
            sources = arm.layers[family].never_run
            if sources:
                return Comparability(
                    "never run",
                    f"{family} of {name} is read by {', '.join(sources)}, a map of a program that was never run: it is "
                    "shown, and not judged",
                )
    return None


def is_replaced(metric: JudgedMetric, folded: ArmArrays) -> bool:
    """Whether another metric is compared in its place: the cost by GPUs where both arms show theirs."""
    return metric.name == REPLICA_COST and all("gpu_usage" in arm.layers for arm in (folded.v1, folded.v2))


def _absence(family: str) -> str:
    return METRICS[family].absent


def _sources(arm: ArmFold) -> str:
    found = sorted({source for layer in arm.layers.values() for source in layer.sources})
    return f" ({', '.join(found)})" if found else ""


def _compare_family(
    metric: JudgedMetric, family: str, v1: MeasuredLayer | None, v2: MeasuredLayer | None
) -> Comparability | None:
    if v1 is None or v2 is None:
        return None
    if "frontend" in {v1.name, v2.name} and v1.name != v2.name:
        outer = "v1" if v1.name == "frontend" else "v2"
        if metric.unit in _TIMED:
            return Comparability(
                "incomparable",
                f"{family} of v1 is measured at its {v1.name} and that of v2 at its {v2.name}: what happens between "
                f"them is in {outer}'s figure alone",
            )
        if outer == "v1":
            return Comparability(
                "incomparable",
                f"{family} of v1 is counted at its frontend and that of v2 at its {v2.name}, which does not see what "
                "fails before it",
            )
        return Comparability("note", f"{family} of v1 is counted at its {v1.name} and that of v2 at its frontend")
    maps = [[metric_map(source, family) for source in layer.sources or ("",)] for layer in (v1, v2)]
    kinds = [{None if each is None else each.definition for each in both} for both in maps]
    if len({each.kind if each else "" for both in kinds for each in both}) > 1:
        differing = next(
            (name, each) for name, both in zip(("v1", "v2"), kinds, strict=True) for each in both if each is not None
        )
        return Comparability(
            "incomparable", f"{family} of {differing[0]} is {differing[1].kind}: {differing[1].reason}"
        )
    if v1.name != v2.name:
        return Comparability("note", f"{family} comes from v1's {v1.name} and from v2's {v2.name}")
    return None


def shared_edges(histogram: str, folded: ArmArrays) -> tuple[float, ...]:
    """The bucket edges that both arms have of a histogram, ascending."""
    arms = [arm.distributions.get(histogram) for arm in (folded.v1, folded.v2)]
    if any(arm is None for arm in arms):
        return ()
    return tuple(sorted(set.intersection(*(set(arm.edges) for arm in arms if arm is not None))))


def unreported(metrics: Iterable[JudgedMetric], folded: ArmArrays) -> Mapping[str, str]:
    """By metric what one of the stacks does not report, or reports otherwise.

    One that has served nothing may report more once it does.
    """
    folded = replace(folded, v1=_if_it_served(folded.v1), v2=_if_it_served(folded.v2))
    found = ((metric.name, compare(metric, folded)) for metric in metrics)
    return {name: each.reason for name, each in found if each is not None}


def _if_it_served(arm: ArmFold) -> ArmFold:
    """An arm, without its replicas where none of them has counted anything."""
    counted = (arm.traffic["requests"], *(each.below for each in arm.metrics.values()))
    return arm if any(np.nansum(each) > 0.0 for each in counted) else replace(arm, replicas=())
