"""A/A trials on recordings of the emulated stack: two days each, of which the first shows the noise.

A recording is of one deployment of twelve replicas, which is divided at random into two stacks, or of two identical
deployments of six. Whatever the judge proves of such stacks is wrong. The divisions of one recording share its traffic,
so that results are clustered by recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from benchmarks._judge_requests import BLOCKS_PER_DAY, BLOCKS_PER_HOUR
from benchmarks._judge_traffic import Harm, cut, truncate
from benchmarks._judge_trials import CACHE, MetricTrial, causes, judge_evidence, metric_trials, one_stage, version, when
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.evidence.folding import read_families
from servescope.cutover.plan.plan import FrozenPlan
from servescope.cutover.verdict.tracks import DEGRADED, HEALTHY
from servescope.emulator.scenario.recording import START_MS, record
from servescope.emulator.scenario.scenario import Scenario, make_scenario
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.store.embedded import Store

Kind = Literal["one", "two"]

RECORDINGS: Final[tuple[tuple[Kind, int], ...]] = (
    *(("one", seed) for seed in range(14)), *(("two", seed) for seed in range(100, 108)),
)  # fmt: skip
"""Each is independent of the others: its seed decides requests, paces of replicas and everything else by chance."""

DIVISIONS: Final[tuple[tuple[int, int], ...]] = ((3, 24), (6, 12))
"""How many of a deployment's twelve replicas are v2, and in how many ways they are drawn."""

_HOURS: Final = 48
_BUSY: Final = 4
"""The first recordings of each kind have twice the requests of the others."""
_REPLICAS: Final = 12
_SCRAPE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """One day of watching two like stacks; times are minutes, None where something never happened."""

    kind: Kind
    recording: int
    share: float
    division: int
    degraded: float | None
    healthy: float | None
    cause: str
    metrics: dict[str, MetricTrial]


def record_missing() -> None:
    """Record what is not there yet, which takes minutes for each; a recording that is interrupted begins anew."""
    for kind, seed in RECORDINGS:
        path = _path(kind, seed)
        if path.exists():
            continue
        with making(path) as begun:
            recorded = record(_scenario(kind, seed), begun, hours=_HOURS, seed=seed, scrape_seconds=_SCRAPE_SECONDS)
        print(f"recorded {path.name}: {recorded.requests} requests", flush=True)


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Where a file is made that gets its name once it is whole; what an interrupted run left there is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_suffix(".part")
    for left in path.parent.glob(f"{begun.name}*"):
        left.unlink()
    yield begun
    begun.replace(path)


def recorded() -> list[tuple[Kind, int]]:
    """The recordings that are there."""
    return [each for each in RECORDINGS if _path(*each).exists()]


def run_recorded(kind: Kind, seed: int) -> Iterator[RecordedTrial]:
    """The trials on one recording; those that were made before are read."""
    path = CACHE / version() / f"recorded-{kind}-{seed}.json"
    if path.exists():
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        for row in rows:
            yield RecordedTrial(
                **{**row, "metrics": {name: MetricTrial(**each) for name, each in row["metrics"].items()}}
            )
        return
    trials = list(_make(kind, seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(trial) for trial in trials]), encoding="utf-8")
    yield from trials


def _make(kind: Kind, seed: int) -> Iterator[RecordedTrial]:
    targets = _read(_path(kind, seed))
    if kind == "two":
        for turn, exchanged in enumerate((False, True)):
            stacks = [_rename(each, exchanged) for each in targets]
            yield _trial(kind, seed, 0.5, turn, _freeze(0.5, stacks), stacks)
        return
    rng = np.random.default_rng([3, seed])
    for replicas, divisions in DIVISIONS:
        share, frozen = replicas / len(targets), None
        for number in range(divisions):
            chosen = set(rng.permutation(len(targets))[:replicas].tolist())
            stacks = [part for place, each in enumerate(targets) for part in _divide(each, v2=place in chosen)]
            # The day before is v1's alone, however its replicas are divided later.
            frozen = frozen or _freeze(share, stacks)
            yield _trial(kind, seed, share, number, frozen, stacks)


def _freeze(share: float, stacks: Sequence[TargetIncrements]) -> FrozenPlan:
    before = [truncate(each, _stage_ms()) for each in stacks]
    return freeze(one_stage(share, calibration="1d"), _evidence(before, _stage_ms()), _stage_ms())


def _trial(
    kind: Kind, seed: int, share: float, division: int, frozen: FrozenPlan, stacks: Sequence[TargetIncrements]
) -> RecordedTrial:
    _, stage = judge_evidence(frozen, _evidence(stacks, _stage_ms() + BLOCKS_PER_DAY * BLOCK_MS), None)
    degraded, healthy = when(stage.codes == DEGRADED), when(stage.codes == HEALTHY)
    return RecordedTrial(kind, seed, share, division, degraded, healthy, causes(stage), metric_trials(stage, Harm()))


def _stage_ms() -> int:
    return START_MS + _HOURS // 2 * BLOCKS_PER_HOUR * BLOCK_MS


def _evidence(targets: Sequence[TargetIncrements], until_ms: int) -> Evidence:
    return Evidence(
        tuple(targets), until_ms, round(_SCRAPE_SECONDS * 1000), {each.target_id: until_ms for each in targets}
    )


def _divide(target: TargetIncrements, *, v2: bool) -> Iterator[TargetIncrements]:
    """A replica of v1, which is v2's from two hours before the stage on where it is chosen."""
    from_ms = _stage_ms() - 2 * BLOCKS_PER_HOUR * BLOCK_MS
    if not v2:
        yield target
        return
    yield truncate(target, from_ms)
    identity = replace(target.identity, deployment_id="chat-v2", inference_stack="v2")
    yield replace(cut(target, from_ms), identity=identity, target_id=identity.target_id)


def _rename(target: TargetIncrements, exchanged: bool) -> TargetIncrements:
    if not exchanged:
        return target
    other = "v1" if target.identity.deployment_id == "chat-v2" else "v2"
    identity = replace(target.identity, deployment_id=f"chat-{other}", inference_stack=other)
    return replace(target, identity=identity, target_id=identity.target_id)


def _read(path: Path) -> list[TargetIncrements]:
    """The replicas of a recording with what a judge reads of them."""
    with Store(path, read_only=True) as store:
        start_ms, end_ms = START_MS, START_MS + _HOURS * 3_600_000
        names = read_families(one_stage(0.5))
        found = [
            each
            for deployment in store.deployments()
            for each in store.read_increments(deployment, names, start_ms, end_ms)
        ]
    return sorted((each for each in found if each.identity.role == "aggregated"), key=lambda each: each.target_id)


def _path(kind: Kind, seed: int) -> Path:
    return CACHE / "recordings" / f"{kind}-{seed}.db"


def _scenario(kind: Kind, seed: int) -> Scenario:
    """Chat of short prompts and answers over a day, twenty or forty requests a minute; replicas differ by 2 %."""
    per_minute = 40 if seed % 100 < _BUSY else 20
    stacks = ("v1",) if kind == "one" else ("v1", "v2")
    replicas = _REPLICAS // len(stacks)
    document = {
        "traffic": {
            "preset": "chat-diurnal", "requests_per_second": per_minute / 60, "message_tokens": 400,
            "output_tokens": 100,
            "output_range": [20, 300], "system_tokens": [100, 400], "prompt_limit": 3000,
        },
        "deployments": [
            {
                "model_name": "llama-3.3-70b", "deployment_id": f"chat-{stack}", "inference_stack": "v1",
                "share": 1 / len(stacks),
                "engine": {"pace_spread": 0.02},
                "autoscaling": {"min_replica": replicas, "max_replica": replicas, "concurrency_target": 16},
            }
            for stack in stacks
        ],
    }  # fmt: skip
    return make_scenario(document, origin="recording", directory=Path())
