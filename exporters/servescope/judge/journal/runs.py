"""The runs of plans in a journal: begun with a frozen plan, moved from stage to stage, ended by a rollback."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement, VerdictChange
from servescope.cutover.plan.plan import CutoverPlan, FrozenPlan, PlanChangedError
from servescope.errors import ServescopeError
from servescope.judge.journal.bodies import BodyError, check_body, read_start
from servescope.judge.journal.journal import CutoverJournal, JournalDamagedError, JournalEntry
from servescope.settings.values import format_instant

_MOST_DIFFERENCES: Final = 6


class RunError(ServescopeError):
    """What was to be written down does not fit the run as it is."""


@dataclass(frozen=True, slots=True)
class CutoverRun:
    """One run of a plan: its number in the journal, from 1, its frozen plan, and its entries from the start on.

    `ended` is how it ended, "" while it is under way.
    """

    number: int
    frozen: FrozenPlan
    entries: tuple[JournalEntry, ...]
    ended: str = ""

    @property
    def plan(self) -> str:
        """The name of its plan."""
        return self.frozen.plan.name

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided, the start included, in the order it was written down."""
        return tuple(_decision(entry) for entry in self.entries if entry.kind != "judgement")

    @property
    def changes(self) -> tuple[JournalEntry, ...]:
        """The changes of the judgement that were written down."""
        return tuple(entry for entry in self.entries if entry.kind == "judgement")

    @property
    def stage(self) -> int:
        """The index of the stage that the last `advance` began, 0 before there is one."""
        return next((each.stage for each in reversed(self.decisions) if each.stage is not None), 0)


def list_runs(journal: CutoverJournal, plan: str | None = None) -> list[CutoverRun]:
    """The runs of a plan, or of all plans, in the order they were begun; raises JournalError."""
    return _group(journal, journal.entries(), plan)


def current_run(journal: CutoverJournal, plan: str) -> CutoverRun | None:
    """The last run of a plan, ended or not; None before its first."""
    runs = list_runs(journal, plan)
    return runs[-1] if runs else None


def start_run(
    journal: CutoverJournal, frozen: FrozenPlan, *, by: str = "", reason: str = "", replace: bool = False
) -> CutoverRun:
    """Begin a run of a frozen plan; a run that is under way is ended only with `replace`. Raises RunError."""
    with journal.appending() as appender:
        former = _group(journal, appender.entries, frozen.plan.name)
        if former and not former[-1].ended and not replace:
            since = format_instant(former[-1].frozen.started_ms)
            raise RunError(
                f"run {former[-1].number} of plan {frozen.plan.name!r} is under way since {since}: end it with "
                "`servescope judge decide rollback`, or with `start --replace`"
            )
        number = 1 + max((entry.run for entry in appender.entries), default=0)
        appender.append(
            "start", at_ms=frozen.started_ms, plan=frozen.plan.name, run=number, by=by, reason=reason,
            body={"frozen": frozen.to_json()},
        )  # fmt: skip
        return _group(journal, appender.entries, frozen.plan.name)[-1]


def write_decision(
    journal: CutoverJournal,
    run: CutoverRun,
    decision: Decision,
    evidence: Mapping[str, Any] | None = None,
    *,
    changes: Sequence[VerdictChange] = (),
    force: bool = False,
) -> CutoverRun:
    """Append a decision to a run, with the judgement it was made on; returns the run with it. Raises RunError.

    With `force`, a span is excluded although harm was proven since it began, by the journal or by the `changes` of the
    judgement.
    """
    if not decision.by.strip() or not decision.reason.strip():
        done = "roll back" if decision.kind == "rollback" else decision.kind
        raise RunError(f"a decision to {done} needs who decided (by) and why (reason)")
    with journal.appending() as appender:
        now = _group(journal, appender.entries, run.plan)[-1]
        if now.number != run.number or now.ended:
            raise RunError(f"run {run.number} of plan {run.plan!r} has ended: {now.ended or 'another was started'}")
        _check(now, decision)
        if decision.kind == "exclude" and not force:
            _check_harmless(now, decision, changes)
        body = {
            key: value
            for key, value in asdict(decision).items()
            if key in ("stage", "start_ms", "end_ms") and value is not None
        }
        if force:
            body["force"] = True
        if evidence is not None:
            body["judgement"] = dict(evidence)
        appender.append(
            decision.kind, at_ms=decision.at_ms, plan=run.plan, run=run.number, by=decision.by,
            reason=decision.reason, body=body,
        )  # fmt: skip
        return _group(journal, appender.entries, run.plan)[-1]


def write_changes(journal: CutoverJournal, run: CutoverRun, judgement: Judgement) -> CutoverRun:
    """Append the changes of the judgement that the journal does not have yet; several judges may watch one run."""
    with journal.appending() as appender:
        now = _group(journal, appender.entries, run.plan)[-1]
        if now.number != run.number or now.ended:
            return now
        # One that is later than now was judged by a clock that was ahead.
        known = max((entry.at_ms for entry in now.changes if entry.at_ms <= judgement.at_ms), default=0)
        for change in judgement.changes:
            if change.at_ms > known:
                appender.append(
                    "judgement", at_ms=change.at_ms, plan=run.plan, run=run.number, body=_summarise(change, judgement)
                )
        return _group(journal, appender.entries, run.plan)[-1]


def next_stage(run: CutoverRun) -> int:
    """The index of the stage that an `advance` would begin; raises RunError at the last."""
    stages = run.frozen.plan.stages
    if run.stage + 1 >= len(stages):
        raise RunError(
            f"plan {run.plan!r} is at its last stage, {run.stage + 1} of {len(stages)} "
            f"({100 * stages[-1].share:g} % on v2): there is none to advance to"
        )
    return run.stage + 1


def summarise(judgement: Judgement) -> dict[str, Any]:
    """A judgement as a decision keeps it: its verdict, and each metric's with interval and counts."""
    shown = judgement.to_json()
    kept = ("name", "verdict", "reason", "required", "ratio", "low", "high", "margin", "information", "v1", "v2")
    top = ("verdict", "reason", "at", "plan_hash", "advice", "severity", "latched_since", "stage")
    return {key: shown[key] for key in top} | {
        "metrics": [{key: metric[key] for key in kept} for metric in shown["metrics"]]
    }


def check_unchanged(plan: CutoverPlan, run: CutoverRun, origin: str) -> None:
    """Raise PlanChangedError, naming what differs, when a plan is not the one that its run has frozen."""
    if plan.hash() == run.frozen.plan.hash():
        return
    differences = list(_differences(asdict(run.frozen.plan), asdict(plan), ""))
    shown = "; ".join(differences[:_MOST_DIFFERENCES])
    more = f"; and {len(differences) - _MOST_DIFFERENCES} more" if len(differences) > _MOST_DIFFERENCES else ""
    raise PlanChangedError(
        f"{origin}: plan {plan.name!r} was edited after run {run.number} froze it at "
        f"{format_instant(run.frozen.started_ms)}: {shown}{more}. Restore it, or end the run and start another"
    )


# --- Entries ----------------------------------------------------------------------------------------------------------


def _group(journal: CutoverJournal, entries: Iterable[JournalEntry], plan: str | None) -> list[CutoverRun]:
    by_run: dict[int, list[JournalEntry]] = {}
    for entry in entries:
        if plan is None or entry.plan == plan:
            by_run.setdefault(entry.run, []).append(entry)
    runs = [_make_run(journal, number, tuple(found)) for number, found in by_run.items()]
    later = {run.plan: run for run in runs}
    return [
        run if run.ended or later[run.plan] is run else CutoverRun(run.number, run.frozen, run.entries, "replaced")
        for run in runs
    ]


def _make_run(journal: CutoverJournal, number: int, entries: tuple[JournalEntry, ...]) -> CutoverRun:
    entry = entries[0]
    try:
        frozen = read_start(entry)
        for entry in entries[1:]:
            check_body(entry, frozen)
    except BodyError as error:
        raise JournalDamagedError(journal.path, [f"entry {entry.number} ({entry.kind}): {error}"]) from error
    return CutoverRun(number, frozen, entries, "rolled back" if entries[-1].kind == "rollback" else "")


def _decision(entry: JournalEntry) -> Decision:
    if entry.kind == "judgement":
        raise ValueError(f"entry {entry.number} is no decision")
    body = entry.body
    stage = 0 if entry.kind == "start" else body.get("stage")
    return Decision(
        entry.kind, entry.at_ms, entry.by, entry.reason, stage, body.get("start_ms"), body.get("end_ms")
    )  # fmt: skip


def _check(run: CutoverRun, decision: Decision) -> None:
    last = run.decisions[-1]
    if decision.kind == "start":
        raise RunError(f"run {run.number} of plan {run.plan!r} was started already")
    # One can always go back, also where a clock was ahead.
    if decision.at_ms < last.at_ms and decision.kind != "rollback":
        raise RunError(
            f"a decision of {format_instant(decision.at_ms)} cannot follow the {last.kind} of "
            f"{format_instant(last.at_ms)}"
        )
    if decision.kind == "advance" and decision.stage != next_stage(run):
        raise RunError(f"stage {run.stage + 1} advances to {next_stage(run) + 1}, not to {(decision.stage or 0) + 1}")
    if decision.kind == "exclude":
        if decision.start_ms is None or decision.end_ms is None:
            raise RunError("to exclude a span needs when it begins (--from) and when it ends (--to)")
        if decision.start_ms >= decision.end_ms:
            raise RunError(
                f"the excluded span ends at {format_instant(decision.end_ms)}, not after it begins at "
                f"{format_instant(decision.start_ms)}"
            )


def _check_harmless(run: CutoverRun, decision: Decision, changes: Sequence[VerdictChange]) -> None:
    """Raise RunError where harm was proven since an excluded span began, or was proven when it did."""
    begin_ms = decision.start_ms or 0
    written = [(each.at_ms, str(each.body.get("verdict")), str(each.body.get("reason"))) for each in run.changes]
    judged = [(each.at_ms, str(each.verdict), each.reason) for each in changes]
    for found in (written, judged):
        ends = [*(at_ms for at_ms, _, _ in found[1:]), math.inf]
        for (at_ms, verdict, reason), end_ms in zip(found, ends, strict=False):
            if verdict == "DEGRADED" and end_ms > begin_ms:
                raise RunError(
                    f"harm was proven at {format_instant(at_ms)}: {reason}. To exclude a span that begins at "
                    f"{format_instant(begin_ms)} needs --force. It does not end the latch, which `acknowledge` does, "
                    "and is shown beside the verdict until the run ends"
                )


def _summarise(change: VerdictChange, judgement: Judgement) -> dict[str, Any]:
    """A change as it is written down; the last one with all that was judged."""
    body: dict[str, Any] = {"verdict": change.verdict, "reason": change.reason, "stage": change.stage}
    return body | ({"judgement": summarise(judgement)} if change == judgement.changes[-1] else {})


def _differences(frozen: Any, edited: Any, path: str) -> Iterable[str]:
    if isinstance(frozen, Mapping) and isinstance(edited, Mapping):
        for key in dict.fromkeys((*frozen, *edited)):
            yield from _differences(frozen.get(key), edited.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(frozen, list | tuple) and isinstance(edited, list | tuple) and _are_tables((*frozen, *edited)):
        for index in range(max(len(frozen), len(edited))):
            one, other = (side[index] if index < len(side) else None for side in (frozen, edited))
            yield from _differences(one, other, f"{path}[{index}]")
    elif frozen != edited:
        yield f"{path} is {_show(edited)}, frozen {_show(frozen)}"


def _are_tables(values: tuple[Any, ...]) -> bool:
    return all(isinstance(each, Mapping) for each in values)


def _show(value: Any) -> str:
    if value is None:
        return "absent"
    return "a table" if isinstance(value, Mapping) else repr(value)
