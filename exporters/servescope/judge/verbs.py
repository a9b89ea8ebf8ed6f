"""The verbs of `servescope judge`: what each does, prints and returns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Final, get_args

from servescope.cutover.evidence.evidence import Decision, DecisionKind
from servescope.cutover.judgement import Judgement, Verdict
from servescope.cutover.verdict.context import uncalibrated_of
from servescope.errors import ServescopeError, UsageError, require_extra, suggest
from servescope.judge.arguments import (
    Judged,
    find_case,
    find_journal,
    open_run,
    read_plan,
)
from servescope.judge.case import forecast_case, freeze_plan, judge_case, resume_case
from servescope.judge.checkpoints.checkpoints import Checkpoint
from servescope.judge.journal import runs
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.written import with_written_harm
from servescope.judge.report import text
from servescope.judge.report.report import Recorded, render_report
from servescope.judge.verifying import verify
from servescope.settings.json_text import print_json
from servescope.store.opening import DEFAULT_STORE, open_history, read_time

EXIT_CODES: Final[Mapping[Verdict, int]] = MappingProxyType(
    {"HEALTHY": 0, "DEGRADED": 10, "INCONCLUSIVE": 11, "NO DATA": 12}
)
"""The exit codes of `run`."""


# --- The verbs --------------------------------------------------------------------------------------------------------


def _plan(arguments: argparse.Namespace) -> int:
    plan = read_plan(arguments.plan)
    with open_history(arguments) as history:
        stages = forecast_case(history, plan, read_time("--at", arguments.at))
    if arguments.format == "json":
        shown = [{**asdict(stage), "seconds": stage.seconds, "sentence": stage.sentence} for stage in stages]
        print_json({"plan": plan.name, "stages": shown})
    else:
        print(text.describe_forecast(stages), end="")
    return 0


def _start(arguments: argparse.Namespace) -> int:
    plan, at_ms = read_plan(arguments.plan), read_time("--at", arguments.at)
    if arguments.replace and not (arguments.by and arguments.reason):
        raise UsageError("--replace ends a run: it needs --by NAME and --reason TEXT")
    with open_history(arguments) as history, CutoverJournal(find_journal(arguments)) as journal:
        frozen = freeze_plan(history, plan, at_ms)
        run = runs.start_run(journal, frozen, by=arguments.by, reason=arguments.reason, replace=arguments.replace)
    if arguments.format == "json":
        print_json({"run": run.number, "journal": str(journal.path), "frozen": frozen.to_json()})
        return 0
    print(
        f"run {run.number} of plan {plan.name!r} begins at {text.moment(at_ms)} with stage 1 of {len(plan.stages)}, "
        f"{text.share(plan.stages[0].share)} on v2\nfrozen plan {frozen.hash()}\njournal {journal.path}"
    )
    for name, found in plan.configurations.items():
        print(f"configuration of {text.CONFIGURED[name]} {found}")
    uncalibrated = uncalibrated_of(frozen)
    if uncalibrated:
        print(f"not calibrated, as v1's past is too short or has one replica: {', '.join(uncalibrated)}")
    for name, why in frozen.unobservable.items():
        print(f"not observable, {name}: {why}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    case, judgement = _judge(arguments)
    _write_changes(arguments, case, judgement)
    if arguments.format == "json":
        print_json(judgement.to_json())
    else:
        print(text.describe_judgement(judgement), end="")
    return EXIT_CODES[judgement.verdict]


def _judge(arguments: argparse.Namespace) -> tuple[Judged, Judgement]:
    """What the arguments choose, and the judgement of it as it is shown."""
    with open_history(arguments) as history:
        case = find_case(arguments, history)
        judgement = judge_case(history, case.frozen, case.decisions, case.at_ms, _checkpoint(arguments, case.run))
    return case, case.shown(judgement)


def _checkpoint(arguments: argparse.Namespace, run: runs.CutoverRun | None) -> Checkpoint | None:
    """What is kept of a run that is judged now; None where another time is judged, or no run."""
    if run is None or arguments.at is not None:
        return None
    return Checkpoint(find_journal(arguments), run.entries[0].hash)


def _write_changes(arguments: argparse.Namespace, case: Judged, judgement: Judgement) -> None:
    """Keep the changes of a run's judgement in its journal, unless an earlier time was judged."""
    if case.run is not None and case.journal is not None and arguments.at is None:
        with case.journal as journal:
            runs.write_changes(journal, case.run, judgement)


def _explain(arguments: argparse.Namespace) -> int:
    case, judgement = _judge(arguments)
    known = [metric.name for metric in judgement.metrics]
    if arguments.metric not in (None, *known):
        hint = suggest(arguments.metric, known) or f"it has: {', '.join(known)}"
        raise UsageError(f"the plan has no metric {arguments.metric!r}; {hint}")
    if arguments.format == "json":
        print_json({"judgement": judgement.to_json(), "frozen": case.frozen.to_json()})
    else:
        print(text.explain_judgement(judgement, case.frozen, arguments.metric), end="")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    with open_history(arguments) as history:
        case = find_case(arguments, history)
        observed = resume_case(history, case.frozen, case.decisions, case.at_ms, _checkpoint(arguments, case.run))
    judgement = case.shown(observed.judge(case.frozen, case.decisions, case.at_ms))
    recorded = None
    if case.run is not None and case.journal is not None:
        with case.journal as journal:
            head = journal.entries()[-1].hash
        recorded = Recorded(case.run.number, _decided_on(case.run), str(find_journal(arguments)), head)
    page = render_report(judgement, case.shown_plan(), observed.evidence.events, recorded)
    try:
        arguments.out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ServescopeError(f"the report cannot be written to {str(arguments.out)!r}: {error.strerror}") from error
    print(f"servescope: {judgement.verdict}, report in {arguments.out}, {len(page.encode())} bytes", file=sys.stderr)
    return 0


def _decided_on(run: runs.CutoverRun) -> list[tuple[Decision, str]]:
    entries = [entry for entry in run.entries if entry.kind != "judgement"]
    verdicts = [str(entry.body.get("judgement", {}).get("verdict", "")) for entry in entries]
    return list(zip(run.decisions, verdicts, strict=True))


def _decide(arguments: argparse.Namespace) -> int:
    plan, at_ms = read_plan(arguments.plan), read_time("--at", arguments.at)
    # Whatever was done to the plan, one can always go back.
    journal, run = open_run(arguments, plan, edited=arguments.kind == "rollback")
    decision = _read_decision(arguments, run, at_ms)
    judgement, problem = _judge_now(arguments, run, at_ms)
    evidence = {"problem": problem} if judgement is None else runs.summarise(judgement)
    with journal:
        known = () if judgement is None else judgement.changes
        run = runs.write_decision(journal, run, decision, evidence, changes=known, force=arguments.force)
    if problem:
        print(f"servescope: decided without a judgement: {problem}", file=sys.stderr)
    if arguments.format == "json":
        entry = run.entries[-1]
        print_json({"run": run.number, "entry": entry.number, "hash": entry.hash, "judgement": evidence})
        return 0
    on = f", on {judgement.verdict}: {judgement.reason}" if judgement is not None else ""
    print(f"run {run.number} of plan {plan.name!r}: {decision.kind} by {decision.by}{on}")
    stage = plan.stages[run.stage]
    if decision.kind == "advance":
        print(f"stage {run.stage + 1} of {len(plan.stages)} begins: {text.share(stage.share)} on v2")
        if stage.share > 1.0 - plan.holdback:
            print(f"v1 keeps less than {text.share(plan.holdback)}: without a control nothing can be proven")
    return 0


def _read_decision(arguments: argparse.Namespace, run: runs.CutoverRun, at_ms: int) -> Decision:
    kind: DecisionKind = next(each for each in get_args(DecisionKind) if each == arguments.kind)
    bounds = [None if each is None else read_time(name, each) for name, each in
              (("--from", arguments.from_), ("--to", arguments.to))]  # fmt: skip
    if kind != "exclude" and bounds != [None, None]:
        raise UsageError(f"--from and --to go with `exclude`, not with `{kind}`")
    if kind != "exclude" and arguments.force:
        raise UsageError(f"--force goes with `exclude`, not with `{kind}`")
    if kind == "exclude" and arguments.at is not None:
        # Harm that is known by now would not have been known then.
        raise UsageError("--at does not go with `exclude`: what is known now stays known, so that it is decided now")
    stage = runs.next_stage(run) if kind == "advance" else None
    return Decision(kind, at_ms, arguments.by, arguments.reason, stage, *bounds)


def _judge_now(arguments: argparse.Namespace, run: runs.CutoverRun, at_ms: int) -> tuple[Judgement | None, str]:
    """The judgement that a decision is made on, or why there is none: one has to be able to decide all the same."""
    try:
        with open_history(arguments) as history:
            judgement = judge_case(history, run.frozen, run.decisions, at_ms, _checkpoint(arguments, run))
            return with_written_harm(judgement, run), ""
    except UsageError:
        if arguments.store is not None or arguments.prometheus is not None:
            raise
        return None, f"neither --store nor --prometheus was given, and there is no {DEFAULT_STORE} here"
    except ServescopeError as error:
        return None, str(error)


def _watch(arguments: argparse.Namespace) -> int:
    require_extra("collector", "aiohttp")
    from servescope.judge.watching import watch

    return watch(arguments)


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = MappingProxyType(
    {
        "plan": _plan,
        "start": _start,
        "run": _run,
        "watch": _watch,
        "explain": _explain,
        "report": _report,
        "decide": _decide,
        "verify": verify,
    }
)
"""The verbs by their names; each returns its exit code."""
