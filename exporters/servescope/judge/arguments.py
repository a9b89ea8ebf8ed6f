"""What the arguments of a verb choose: the plan, the history, the journal, the time, and the run that is judged."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.files import parse_plan
from servescope.cutover.plan.plan import CutoverPlan, FrozenPlan, Stage
from servescope.errors import UsageError
from servescope.judge.case import check_decisions, freeze_plan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import CutoverRun, check_unchanged, current_run
from servescope.judge.journal.written import with_written_harm
from servescope.settings.tables import read_document
from servescope.settings.values import format_instant
from servescope.store.history import History
from servescope.store.opening import read_time
from servescope.store.spans import read_instant


def read_plan(path: Path) -> CutoverPlan:
    """The plan in a TOML file; raises ConfigurationError."""
    return parse_plan(read_document(path, "plan"), str(path))


def find_journal(arguments: argparse.Namespace) -> Path:
    """The path of the journal: as it is given, or beside the plan."""
    if arguments.journal is not None:
        return Path(arguments.journal)
    if arguments.plan is None:
        raise UsageError("neither --journal nor --plan is given, expected one of them")
    return Path(arguments.plan).with_suffix(".journal.db")


@dataclass(frozen=True, slots=True)
class Judged:
    """What is judged: a frozen plan, what was decided, when, and the run with its journal where there is one.

    `alone` is the index of the only stage that is judged, and the stages of its plan.
    """

    frozen: FrozenPlan
    decisions: tuple[Decision, ...]
    at_ms: int
    run: CutoverRun | None = None
    journal: CutoverJournal | None = None
    alone: tuple[int, tuple[Stage, ...]] | None = None

    def shown(self, judgement: Judgement) -> Judgement:
        """A judgement of this case as it is shown: with the harm that the journal has, and the stage of the plan."""
        if self.alone is not None:
            index, stages = self.alone
            changes = tuple(replace(each, stage=index) for each in judgement.changes)
            stage = replace(judgement.stage, index=index, count=len(stages))
            judgement = replace(judgement, stage=stage, changes=changes)
        return with_written_harm(judgement, self.run)

    def shown_plan(self) -> FrozenPlan:
        """The plan as it is shown: with all its stages."""
        if self.alone is None:
            return self.frozen
        return replace(self.frozen, plan=replace(self.frozen.plan, stages=self.alone[1]))


def find_case(arguments: argparse.Namespace, history: History) -> Judged:
    """The run of the plan in the journal, or with `--since` one stage of the plan without a journal."""
    plan, at_ms = read_plan(arguments.plan), read_time("--at", arguments.at)
    if arguments.since is None:
        if arguments.stage is not None:
            raise UsageError("--stage goes with --since; a run's stage is that of its last `advance`")
        journal, run = open_run(arguments, plan)
        check_decisions(run.decisions, read_time("--at", None))
        return Judged(run.frozen, run.decisions, at_ms, run, journal)
    if arguments.journal is not None:
        raise UsageError("--journal and --since are both given: with --since one stage is judged without a journal")
    since_ms, stage = read_instant("--since", arguments.since, at_ms), arguments.stage or 1
    if since_ms >= at_ms:
        raise UsageError(f"--since {arguments.since!r} is not before {format_instant(at_ms)}, when it is judged")
    if not 1 <= stage <= len(plan.stages):
        raise UsageError(f"--stage {stage} is not one of the plan's, 1 to {len(plan.stages)}")
    alone = replace(plan, stages=(plan.stages[stage - 1],))
    frozen = freeze_plan(history, alone, since_ms)
    return Judged(frozen, (Decision("start", since_ms, stage=0),), at_ms, alone=(stage - 1, plan.stages))


def open_run(
    arguments: argparse.Namespace, plan: CutoverPlan, *, edited: bool = False
) -> tuple[CutoverJournal, CutoverRun]:
    """The journal and the current run of a plan; what is read of the journal now is not read again.

    Raises UsageError where there is no run, PlanChangedError for a plan that was changed since, unless `edited`.
    """
    path = find_journal(arguments)
    with CutoverJournal(path) as journal:
        run = current_run(journal, plan.name)
    if run is None:
        raise UsageError(
            f"plan {plan.name!r} has no run in the journal {str(path)!r}: begin one with `servescope judge start`, or "
            "judge one stage with --since TIME"
        )
    if not edited:
        check_unchanged(plan, run, str(arguments.plan))
    return journal, run
