"""Writes a store in the middle of a cutover by stages, with its plan and its journal, as the console is started on.

`python -m tests.support.cutover_store FOLDER` writes one to look at, and prints the command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from servescope.contract.samples import make_labels
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.files import parse_plan
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements
from servescope.judge.case import freeze_plan, judge_case
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import start_run, summarise, write_decision
from servescope.settings.clock import CLOCK_VARIABLE, EmulatedTime
from servescope.settings.tables import read_document
from servescope.store.embedded import Store
from servescope.store.records import KeptAlert, RecordedSettings, TargetStatus
from tests.support.cutover_evidence import HOUR, INTERVAL_MS, Side, Story, evidence_of

V1_REPLICAS = 12
HOUR_MS = HOUR * BLOCK_MS


@dataclass(frozen=True)
class Step:
    """A stage as it went: v2's share, its replicas and how it did, and for how many hours."""

    share: float
    side: Side
    hours: int


STEPS = (
    Step(0.08, Side(replicas=1, first_token=0.9, slower=0.95), 4),
    Step(0.25, Side(replicas=4, first_token=0.9, slower=0.95), 5),
)
STAGES = (0.08, 0.25, 0.5, 0.95)
PLAN = """# From chat-v1 to chat-v2, as agreed.
[arms]
v1 = { deployment_id = "chat-v1" }
v2 = { deployment_id = "chat-v2" }
""" + "".join(f"\n[[stages]]\nshare = {share}\nleast_hours = 2\n" for share in STAGES)


@dataclass(frozen=True)
class CutoverStore:
    """The files of a cutover, when each of its steps began, and the time at which it is looked at."""

    store: Path
    plan: Path
    journal: Path
    begins_ms: tuple[int, ...]
    now_ms: int

    def words(self) -> tuple[str, ...]:
        """What `servescope console` is started with beside the store."""
        return "--plan", str(self.plan), "--journal", str(self.journal)

    def clock(self, wall_seconds: float, at_ms: int | None = None) -> dict[str, str]:
        """The variable that stops the clock of the pages, nearly, at a time of the cutover, its end by default."""
        seconds = (self.now_ms if at_ms is None else at_ms) / 1000
        path = self.store.with_name(f"clock at {seconds:.0f}")
        EmulatedTime(wall_seconds, seconds, 1e-3).write(path)
        return {CLOCK_VARIABLE: str(path)}


def write_cutover(
    folder: Path, *, steps: tuple[Step, ...] = STEPS, past_hours: int = 48, advanced: bool = True
) -> CutoverStore:
    """A store, a plan and a journal in a folder: v1's past, then each step, of which the last has not ended.

    The journal has the start, and where it is `advanced` the decision that began each step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    story = Story(
        past_hours=past_hours, hours=sum(step.hours for step in steps), requests_per_minute=1200.0,
        v1=Side(replicas=V1_REPLICAS),
    )  # fmt: skip
    now_ms = story.end_ms + 60_000
    begins = tuple(_begins(story, steps))
    files = CutoverStore(folder / "cutover.db", folder / "chat.toml", folder / "chat.journal.db", begins, now_ms)
    files.plan.write_text(PLAN, encoding="utf-8")
    with Store(files.store) as store:
        write_targets(store, make_targets(story, steps), now_ms)
        store.write_alerts(list(_alerts(now_ms)))
    with Store(files.store, read_only=True) as past, CutoverJournal(files.journal) as journal:
        plan = parse_plan(read_document(files.plan, "plan"), files.plan.name)
        run = start_run(journal, freeze_plan(past, plan, story.started_ms), by="anna", reason="as agreed on Thursday")
        for stage, begun_ms in enumerate(begins[1:] if advanced else (), start=1):
            evidence = summarise(judge_case(past, run.frozen, run.decisions, begun_ms + 60_000))
            advance = Decision("advance", begun_ms, "anna", "stage settled", stage)
            run = write_decision(journal, run, advance, evidence)
    return files


def _begins(story: Story, steps: tuple[Step, ...]) -> list[int]:
    """When each step began."""
    hours = np.cumsum([0, *(step.hours for step in steps[:-1])])
    return [story.started_ms + int(hour) * HOUR_MS for hour in hours]


def make_targets(story: Story, steps: tuple[Step, ...]) -> list[TargetIncrements]:
    """The increments of both arms: the past of v1, then both with the share, the replicas and the ways of each step."""
    parts: dict[str, list[TargetIncrements]] = {}
    begins = _begins(story, steps)
    for number, (step, begun_ms) in enumerate(zip(steps, begins, strict=True)):
        stepped = replace(story, share=step.share, v2=step.side, seed=story.seed + number)
        first_ms = 0 if number == 0 else begun_ms
        end_ms = begun_ms + step.hours * HOUR_MS
        for target in evidence_of(stepped).targets:
            kept = (target.blocks >= first_ms) & (target.blocks < end_ms)
            if target.identity.inference_stack == "v2":
                kept &= target.blocks >= begun_ms
            parts.setdefault(target.target_id, []).append(target.at(kept))
    return [_joined(pieces) for pieces in parts.values()]


def _joined(pieces: list[TargetIncrements]) -> TargetIncrements:
    names = ("scrapes", "failed", "torn", "resets", "gaps")
    return replace(
        pieces[0],
        blocks=np.concatenate([each.blocks for each in pieces]),
        gains=np.concatenate([each.gains for each in pieces], axis=1),
        levels=np.concatenate([each.levels for each in pieces], axis=1),
        above=np.concatenate([each.above for each in pieces], axis=1),
        started_ms=np.concatenate([each.started_ms for each in pieces]),
        tallies=Tallies(*(np.concatenate([getattr(each.tallies, name) for each in pieces]) for name in names)),
    )


def write_targets(store: Store, targets: list[TargetIncrements], now_ms: int) -> None:
    """Write targets and their increments, as if each was scraped until just before `now_ms`."""
    store.record_settings(
        int(min(target.blocks[0] for target in targets)), RecordedSettings(BLOCK_MS, INTERVAL_MS, INTERVAL_MS, "closed")
    )
    with store.transaction():
        for target in targets:
            store.set_target(target_status(target, now_ms))
            store.append_increments(target)
    while store.pack_idle(now_ms):
        pass


def target_status(target: TargetIncrements, now_ms: int) -> TargetStatus:
    """The status of a target that was scraped just before `now_ms`."""
    last_ms = now_ms - 4_000
    return TargetStatus(
        target.target_id, f"http://{target.identity.replica}.example:8000/metrics", target.identity,
        source="servescope", versions="0.1", healthy=True, last_scrape_ms=last_ms, last_success_ms=last_ms,
        duration_seconds=0.004, samples=412, layer=target.layer,
    )  # fmt: skip


def _alerts(now_ms: int) -> Iterator[KeptAlert]:
    labels = make_labels({"deployment_id": "chat-v2", "model_name": "llama", "inference_stack": "v2"})
    yield KeptAlert(
        "ServescopeSpeculationBelowBreakEven", labels, now_ms - 900_000, now_ms - 300_000, None, None, value=0.31
    )
    yield KeptAlert("ServescopeQueueGrowing", labels, now_ms - 120_000, None, None, None, value=40.0)


def main() -> None:
    """Write one to look at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    files = write_cutover(parser.parse_args().folder)
    print(f"servescope console --store {files.store} {' '.join(files.words())}")


if __name__ == "__main__":
    main()
