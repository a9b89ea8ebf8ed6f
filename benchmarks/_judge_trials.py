"""Trials of the judge on synthetic cutovers, kept under `.cache` so that a run of hours can be resumed.

A trial is one day of one stage: what the judge says of it after every block, and what its rivals say. Trials are kept
by the text of the judge and of the generator: a change to any of them begins anew.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks._judge_rivals import judge_by_rivals, observe, usual_p95
from benchmarks._judge_traffic import (
    CLEAN,
    LEAD_BLOCKS,
    OF_GUARDS,
    PAST_BLOCKS,
    Confounder,
    Harm,
    World,
    draw_cutover,
    draw_past,
    show,
    show_past,
)
from servescope import cutover
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.folding import ArmArrays
from servescope.cutover.evidence.stages import course_of
from servescope.cutover.plan.files import parse_plan
from servescope.cutover.plan.plan import CutoverPlan, FrozenPlan
from servescope.cutover.verdict.judge import fold_evidence
from servescope.cutover.verdict.stage import StageTrack, judge_stage
from servescope.cutover.verdict.tracks import CODES, DEGRADED, HEALTHY, INCONCLUSIVE, NO_DATA, MetricTrack
from servescope.increments.blocks import BLOCK_MS

CACHE: Final = Path(__file__).parent.parent / ".cache" / "judge"
BLOCK_MINUTES: Final = BLOCK_MS // 60_000
PLAIN: Final = Confounder()


@dataclass(frozen=True, slots=True)
class MetricTrial:
    """When a metric was DEGRADED and HEALTHY first, in minutes, None where it never was.

    `missed` is when its interval did not hold the truth first, below (`low`) or above it; `known` is whether the truth
    is one number that an interval can hold.
    """

    degraded: float | None
    healthy: float | None
    missed_low: float | None
    missed_high: float | None
    known: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """One day of one stage. Times are minutes since the stage began, None where something never happened.

    `hour` is the hour of the day at which it began, `cause` why it was DEGRADED first, or is what it is at the end.
    `looks` are the shares of the day's looks at which no verdict was given, by the verdict and its first cause.
    `guards` are when harm of each guard was proven first, and `last` is the verdict at the end.
    """

    share: float
    past: int
    seed: int
    hour: int
    harm: Harm
    confounder: Confounder
    degraded: float | None
    healthy: float | None
    cause: str
    metrics: Mapping[str, MetricTrial]
    rivals: Mapping[str, float | None] = field(default_factory=dict)
    world: str = CLEAN.name
    looks: Mapping[str, float] = field(default_factory=dict)
    guards: Mapping[str, float] = field(default_factory=dict)
    last: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """Trials wanted of each past: so many days, each with every one of these harms; rivals where asked for."""

    days: int
    harms: tuple[Harm, ...]
    confounder: Confounder = PLAIN
    rivals: bool = False


def one_stage(share: float, **settings: object) -> CutoverPlan:
    """The least plan there is with these settings, and everything else as documented."""
    arms = {"v1": {"deployment_id": "chat-v1"}, "v2": {"deployment_id": "chat-v2"}}
    return parse_plan({"arms": arms, "stages": [{"share": share}], **settings}, "trial")


def run_trials(share: float, past_seed: int, orders: Sequence[Order], world: World = CLEAN) -> Iterator[Trial]:
    """The trials of one past, each once; those that were made before are read, the others made and kept."""
    path = CACHE / version() / f"{world.name}-{share:g}-{past_seed}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {_key(trial): trial for trial in _read(path)}
    wanted: dict[tuple[int, Confounder], dict[Harm, bool]] = {}
    for order in orders:
        for seed in range(order.days):
            harms = wanted.setdefault((seed, order.confounder), {})
            harms |= {harm: order.rivals or harms.get(harm, False) for harm in order.harms}
    missing = {
        day: {harm: rivals for harm, rivals in harms.items() if not _is_known(known.get((*day, harm)), rivals=rivals)}
        for day, harms in wanted.items()
    }
    with path.open("a", encoding="utf-8") as file:
        for trial in _make(world, share, past_seed, {day: harms for day, harms in missing.items() if harms}):
            known[_key(trial)] = trial
            file.write(json.dumps(asdict(trial)) + "\n")
            file.flush()
    yield from (known[*day, harm] for day, harms in wanted.items() for harm in harms)


def _is_known(trial: Trial | None, *, rivals: bool) -> bool:
    return trial is not None and (bool(trial.rivals) or not rivals)


def _key(trial: Trial) -> tuple[int, Confounder, Harm]:
    return trial.seed, trial.confounder, trial.harm


@functools.cache
def version() -> str:
    """A digest of everything that a trial depends on, as it was when the run began."""
    folder = Path(cutover.__file__).parent
    texts = [*sorted(folder.rglob("*.py")), folder.parent / "contract" / "judged.py"]
    names = ("requests", "counting", "traffic", "worlds", "rivals", "trials")
    own = [Path(__file__).with_name(f"_judge_{name}.py") for name in names]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*texts, *own)))
    return digest.hexdigest()[:12]


def _read(path: Path) -> Iterator[Trial]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        values: dict[str, Any] = json.loads(line)
        confounder = values["confounder"]
        yield Trial(
            **{
                **values,
                "harm": Harm(**values["harm"]),
                "confounder": Confounder(**{**confounder, "saturated": tuple(confounder["saturated"])}),
                "metrics": {name: MetricTrial(**each) for name, each in values["metrics"].items()},
            }
        )


def _make(
    world: World, share: float, past_seed: int, wanted: Mapping[tuple[int, Confounder], Mapping[Harm, bool]]
) -> Iterator[Trial]:
    if not wanted:
        return
    past = draw_past(past_seed, share, world=world)
    started_ms = past.start_ms + (PAST_BLOCKS + LEAD_BLOCKS) * BLOCK_MS
    usual = usual_p95(past)
    frozen: FrozenPlan | None = None
    for (seed, confounder), harms in wanted.items():
        cutover = draw_cutover(past, seed, confounder)
        if frozen is None:
            # The noise is v1's alone, so that any day of this past freezes the same plan.
            frozen = freeze(one_stage(share), show_past(cutover), started_ms)
        minutes = observe(cutover, cutover.v1) if any(harms.values()) else None
        folded: ArmArrays | None = None
        for harm, rivalled in harms.items():
            # A harm is in v2 alone: v1 is folded once.
            folded, stage = judge_evidence(frozen, show(cutover, harm), folded)
            rivals = judge_by_rivals(cutover, harm, minutes, usual) if rivalled and minutes is not None else {}
            yield replace(_trial(stage, share, past_seed, seed, harm, confounder, rivals), world=world.name)


def judge_evidence(frozen: FrozenPlan, evidence: Evidence, former: ArmArrays | None) -> tuple[ArmArrays, StageTrack]:
    """Every block of the one stage; `former` is what v1 was folded to before, where it is the same."""
    decisions = [Decision("start", frozen.started_ms, stage=0)]
    at_ms = evidence.observed_until_ms
    if former is not None:
        v2 = tuple(each for each in evidence.targets if frozen.plan.v2.selects(each.identity))
        fresh = fold_evidence(frozen, replace(evidence, targets=v2), decisions, at_ms)
        folded = ArmArrays(former.v1, fresh.v2, former.edges)
    else:
        folded = fold_evidence(frozen, evidence, decisions, at_ms)
    course = course_of(frozen.plan, frozen.started_ms, decisions, at_ms)
    return folded, judge_stage(frozen, folded, evidence, course, course.stages[-1])


def _trial(
    stage: StageTrack,
    share: float,
    past_seed: int,
    seed: int,
    harm: Harm,
    confounder: Confounder,
    rivals: Mapping[str, float | None],
) -> Trial:
    return Trial(
        share=share, past=past_seed, seed=seed, hour=int(stage.blocks[0] // 3_600_000 % 24), harm=harm,
        confounder=confounder, degraded=when(stage.codes == DEGRADED), healthy=when(stage.codes == HEALTHY),
        cause=causes(stage), metrics=metric_trials(stage, harm), rivals=rivals, looks=_looks(stage),
        guards={name: found for name, track in stage.tracks.items() if track.plan.role == "guard"
                and (found := when(track.codes == DEGRADED)) is not None},
        last=CODES[int(stage.codes[-1])],
    )  # fmt: skip


def causes(stage: StageTrack) -> str:
    """What the verdict rests on when the stage was DEGRADED first, or at the end where it never was."""
    degraded = np.flatnonzero(stage.codes == DEGRADED)
    block = int(degraded[0]) if degraded.size else stage.codes.size - 1
    return "; ".join(
        f"{name}: {track.causes[block]}"
        for name, track in stage.tracks.items()
        if track.plan.required and track.codes[block] == stage.codes[block]
    )


def _looks(stage: StageTrack) -> dict[str, float]:
    required = [track for track in stage.tracks.values() if track.plan.required]
    found: dict[str, float] = {}
    for block, code in enumerate(stage.codes):
        if code in (INCONCLUSIVE, NO_DATA):
            cause = next((track.causes[block] for track in required if track.codes[block] == code), "unsettled")
            spelled = f"{CODES[code]}: {cause}"
            found[spelled] = found.get(spelled, 0.0) + 1 / stage.codes.size
    return {name: round(each, 4) for name, each in found.items()}


def metric_trials(stage: StageTrack, harm: Harm) -> dict[str, MetricTrial]:
    """What became of each metric that is compared."""
    return {name: _metric(track, harm, name) for name, track in stage.tracks.items() if track.path is not None}


def _metric(track: MetricTrack, harm: Harm, name: str) -> MetricTrial:
    truth = true_cost(harm, name)
    path = track.path
    low = high = None
    if truth is not None and path is not None:
        low, high = when(path.low > truth), when(path.high < truth)
    return MetricTrial(when(track.codes == DEGRADED), when(track.codes == HEALTHY), low, high, known=truth is not None)


def true_cost(harm: Harm, metric: str) -> float | None:
    """The logarithm by which a harm makes a metric worse, None where that is not one number all day."""
    speed = ("tps_per_request", "time_per_output_token_seconds")
    touched = {
        "errors": ("request_error_share",), "tps": (*speed, "request_duration_seconds"),
    }.get(harm.kind, ("time_to_first_token_seconds", "request_duration_seconds"))  # fmt: skip
    if harm.kind in OF_GUARDS and metric != "request_error_share":
        return None
    if harm.kind == "none" or metric not in touched:
        return 0.0
    # One replica alone is left out, so that no truth is of all replicas.
    if harm.kind in ("drift", "step", "one pod") or metric == "request_duration_seconds":
        return None
    return -math.log1p(-harm.size) if harm.kind == "tps" else math.log1p(harm.size)


def when(found: NDArray[np.bool_]) -> float | None:
    """Minutes until the end of the first block that has it."""
    return float((int(np.argmax(found)) + 1) * BLOCK_MINUTES) if found.any() else None
