"""Harm that a journal has and the samples do not show any more: it is known until somebody acknowledges it.

A store holds samples for some time only, and what was folded of a run may be lost, or of another release.
"""

from __future__ import annotations

from dataclasses import replace

from servescope.cutover.judgement import Judgement, Verdict, VerdictChange
from servescope.judge.journal.journal import JournalEntry
from servescope.judge.journal.runs import CutoverRun


def with_written_harm(judgement: Judgement, run: CutoverRun | None) -> Judgement:
    """The judgement, DEGRADED where the journal has harm of a time of which no samples are held, not acknowledged."""
    written = [] if run is None else [each for each in run.entries if each.at_ms <= judgement.at_ms]
    harm = _latched(written)
    if harm is None or judgement.latched_since_ms is not None or not _is_missed(judgement, harm.at_ms):
        return judgement
    reason = str(harm.body.get("reason", ""))
    return replace(
        judgement,
        verdict="DEGRADED",
        reason=f"harm was proven and nobody has acknowledged it: {reason}; the samples of it are not held any more, "
        f"now it would be {judgement.live}: {judgement.reason}",
        advice="hold" if judgement.advice == "go on" else judgement.advice,
        severity=judgement.severity or "probable",
        latched_since_ms=harm.at_ms,
        changes=tuple(_change(each) for each in written if each.kind == "judgement"),
    )


def _latched(entries: list[JournalEntry]) -> JournalEntry | None:
    """The change to DEGRADED that the last of the changes still is of, unless it was acknowledged since."""
    found = None
    for entry in entries:
        if entry.kind == "acknowledge":
            found = None
        elif entry.kind == "judgement":
            is_harm = entry.body.get("verdict") == "DEGRADED"
            found = (found or entry) if is_harm else None
    return found


def _is_missed(judgement: Judgement, at_ms: int) -> bool:
    return any(start_ms < at_ms <= end_ms for start_ms, end_ms, _ in judgement.missed)


def _change(entry: JournalEntry) -> VerdictChange:
    # A journal is read only where each of its entries has these.
    verdict: Verdict = entry.body["verdict"]
    return VerdictChange(entry.at_ms, int(entry.body.get("stage", 0)), verdict, str(entry.body.get("reason", "")))
