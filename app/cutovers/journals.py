"""The journal in HTML and as files: runs of plans, and who decided what on which evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

import pandas as pd

from app.cutovers import verdicts
from app.cutovers.timeline import DECISION_WORDS
from app.elements import display
from app.elements.markup import cell, element, grid, heading
from app.elements.plain import escape
from servescope.contract.judged import JUDGED
from servescope.cutover.judgement import Verdict
from servescope.judge.journal.journal import JournalEntry
from servescope.judge.journal.runs import CutoverRun
from servescope.settings.values import format_instant

Decided = tuple[CutoverRun, JournalEntry]
"""A decision and the run that it belongs to."""


class JudgedRun(NamedTuple):
    """The verdict on a run as it is now, which the journal of a run that nobody watches does not have."""

    run: int
    verdict: Verdict
    reason: str


def draw_runs(runs: Sequence[CutoverRun], zone: tzinfo, now: JudgedRun | None) -> str:
    """The runs, the newest first, with the verdict `now` on the one it is of."""
    titles = (("Run", "plan"), ("Started", "by"), ("Stage reached",), ("Verdict", "reason"), ("State",))
    heads = [heading(*lines) for lines in titles]
    return grid("runs", heads, [_run_row(run, zone, now) for run in reversed(runs)])


def _run_row(run: CutoverRun, zone: tzinfo, now: JudgedRun | None) -> str:
    start, stages = run.entries[0], run.frozen.plan.stages
    last = now if now is not None and now.run == run.number else _last_judged(run)
    chip = verdicts.verdict_chip(last.verdict) if last else element("span", "not recorded", "quiet")
    ended = escape(run.ended or "under way")
    by = run.decisions[-1].by if run.decisions[-1].kind == "rollback" else ""
    cells = [
        cell("Run", element("strong", str(run.number)), escape(f"{run.plan} · {run.frozen.hash()[:12]}")),
        cell("Started", escape(display.format_time(start.at_ms, zone)), escape(start.by or display.ABSENT)),
        cell("Stage reached", f"{run.stage + 1} of {len(stages)}", display.format_planned(stages[run.stage].share)),
        cell(
            "Verdict",
            chip,
            escape(display.as_sentence(display.in_zone(last.reason, start.at_ms, zone))) if last else "",
        ),
        cell("State", element("span", ended, "quiet" if run.ended else "value good"), escape(f"by {by}") if by else ""),
    ]
    return element("tr", "".join(cells))


def _last_judged(run: CutoverRun) -> JudgedRun | None:
    """The last verdict that the journal has of a run, written down as a change or with a decision."""
    for entry in reversed(run.entries):
        judged = entry.body if entry.kind == "judgement" else entry.body.get("judgement") or {}
        if "verdict" in judged:
            return JudgedRun(run.number, judged["verdict"], str(judged.get("reason", "")))
    return None


def list_runs(runs: Sequence[CutoverRun]) -> pd.DataFrame:
    """The runs for a file."""
    return pd.DataFrame(
        [
            {
                "run": run.number, "plan": run.plan, "plan_hash": run.frozen.hash(),
                "started": format_instant(run.frozen.started_ms), "by": run.entries[0].by,
                "stage": run.stage + 1, "ended": run.ended,
            }
            for run in runs
        ]
    )  # fmt: skip


def draw_decisions(rows: Sequence[Decided], zone: tzinfo) -> str:
    """The decisions in the order given, each with the judgement it was made on."""
    heads = [heading("When", "run"), heading("Decision", "by"), heading("Reason"), heading("Judgement at that time")]
    return grid("decisions", heads, [_row(run, entry, zone) for run, entry in rows])


def _row(run: CutoverRun, entry: JournalEntry, zone: tzinfo) -> str:
    body = entry.body
    what, share = DECISION_WORDS[entry.kind] if entry.kind != "judgement" else "", ""
    if entry.kind in ("start", "advance"):
        stage = int(body.get("stage", 0))
        share = f"{display.format_planned(run.frozen.plan.stages[stage].share)} on v2 · "
        what = f"{what} {'with' if entry.kind == 'start' else 'to'} stage {stage + 1}"
    if entry.kind == "exclude":
        ends = " – ".join(display.format_time(body[end], zone) for end in ("start_ms", "end_ms"))
        what = f"{what}{', over proven harm' if body.get('force') else ''}: {ends}"
    cells = [
        cell("When", escape(display.format_time(entry.at_ms, zone)), f"run {run.number}"),
        cell("Decision", element("strong", escape(what)), escape(f"{share}{entry.by or display.ABSENT}")),
        cell("Reason", escape(entry.reason or display.ABSENT)),
        cell("Judgement", *_evidence(entry, zone)),
    ]
    return element("tr", "".join(cells))


def _evidence(entry: JournalEntry, zone: tzinfo) -> tuple[str, str]:
    judgement: Mapping[str, Any] | None = entry.body.get("judgement")
    if not judgement:
        why = "nothing is judged before the start" if entry.kind == "start" else "not recorded"
        return element("span", why, "quiet"), ""
    if "problem" in judgement:
        return escape(f"no judgement: {judgement['problem']}"), ""
    settled = "; ".join(
        f"{_title(metric['name'])} × {metric['ratio']:.2f}{_recorded_interval(metric)}"
        for metric in judgement["metrics"]
        if metric["required"] and metric["ratio"] is not None
    )
    reason = display.in_zone(str(judgement.get("reason", "")), entry.at_ms, zone)
    return f"{verdicts.verdict_chip(judgement['verdict'])} {escape(reason)}", escape(settled)


def _title(metric: str) -> str:
    """The title of a metric; its name where it is of another release."""
    return JUDGED[metric].title if metric in JUDGED else metric


def _recorded_interval(metric: Mapping[str, Any]) -> str:
    """The interval that was written down; what earlier rules of the judge wrote may be of other blocks than the
    estimate, which then lies outside of it."""
    low, high = metric["low"], metric["high"]
    if None in (low, high):
        return ""
    if not low <= metric["ratio"] <= high:
        return " (its interval was recorded of other blocks)"
    return f" ({low:.2f} – {high:.2f})" if low else f" (0 – {high:.2f})"


def list_decisions(rows: Sequence[Decided]) -> pd.DataFrame:
    """The decisions for a file, one row each."""
    return pd.DataFrame(
        [
            {
                "run": run.number, "at": format_instant(entry.at_ms), "kind": entry.kind, "by": entry.by,
                "reason": entry.reason, "stage": entry.body.get("stage"),
                "verdict": (entry.body.get("judgement") or {}).get("verdict"), "hash": entry.hash,
            }
            for run, entry in rows
        ],
        columns=["run", "at", "kind", "by", "reason", "stage", "verdict", "hash"],
    )  # fmt: skip


def export_runs(runs: Sequence[CutoverRun]) -> str:
    """Every entry of the runs as JSON, with the hashes that chain them."""
    return json.dumps(
        [
            {
                "run": run.number,
                "plan": run.plan,
                "plan_hash": run.frozen.hash(),
                "ended": run.ended or None,
                "entries": [
                    {
                        "number": entry.number, "at": format_instant(entry.at_ms), "kind": entry.kind, "by": entry.by,
                        "reason": entry.reason, "body": dict(entry.body), "previous": entry.previous,
                        "hash": entry.hash,
                    }
                    for entry in run.entries
                ],
            }
            for run in runs
        ],
        indent=2,
    )  # fmt: skip
