"""The last judgement of a run, and what may still be believed of it: one that grows old is no longer health."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from servescope.contract.own_metrics import JUDGEMENT_AGE_SECONDS
from servescope.cutover.judgement import Judgement, StageState
from servescope.judge.journal.runs import CutoverRun
from servescope.judge.report.text import duration
from servescope.settings.clock import AHEAD_MS

_NOT_YET: Final = "nothing was judged yet"


class Latest:
    """The last judgement of a run. Not thread safe: it belongs to the event loop."""

    def __init__(self, run: CutoverRun, now_ms: int) -> None:
        self.run = run
        self._judgement: Judgement | None = None
        self._since_ms = now_ms
        self._problem = ""

    def succeed(self, judgement: Judgement, run: CutoverRun) -> None:
        """Keep a new judgement, and the run as it was judged."""
        self._judgement, self.run, self._problem = judgement, run, ""

    def fail(self, problem: str) -> None:
        """Keep why the last attempt to judge failed; the judgement before it stays until it is too old."""
        self._problem = problem

    def age_seconds(self, now_ms: int) -> float:
        """The time since the last judgement, or since the judge began; until then, where that is later than now."""
        judged_ms = self._since_ms if self._judgement is None else self._judgement.at_ms
        return abs(now_ms - judged_ms) / 1000

    def judgement(self, now_ms: int) -> Judgement:
        """The last judgement; NO DATA before there is one and when it is not of now, but harm stays proven."""
        if self._judgement is None:
            return self._blank(now_ms)
        age, is_ahead = self.age_seconds(now_ms), self._judgement.at_ms > now_ms + AHEAD_MS
        if (age <= JUDGEMENT_AGE_SECONDS and not is_ahead) or self._judgement.verdict == "DEGRADED":
            return self._judgement
        old = f"of {duration(age)} later than now, as the clock was set back" if is_ahead else f"{duration(age)} old"
        reason = f"The last judgement is {old}{self._because()}."
        return replace(
            self._judgement,
            verdict="NO DATA",
            reason=reason,
            advice="hold",
            metrics=tuple(
                replace(metric, verdict="NO DATA", cause="stale", reason=reason) for metric in self._judgement.metrics
            ),
        )

    def _blank(self, now_ms: int) -> Judgement:
        plan = self.run.frozen.plan
        since_ms = next((each.at_ms for each in reversed(self.run.decisions) if each.stage is not None), now_ms)
        stage = plan.stages[self.run.stage]
        earliest_ms = since_ms + round(stage.least_hours * 3_600_000)
        return Judgement(
            verdict="NO DATA",
            reason=f"{_NOT_YET.capitalize()}{self._because()}.",
            at_ms=now_ms,
            plan=plan.name,
            plan_hash=self.run.frozen.hash(),
            stage=StageState(self.run.stage, len(plan.stages), stage.share, None, False, since_ms, earliest_ms),
            metrics=(),
            advice="hold",
        )

    def _because(self) -> str:
        return f": {self._problem}" if self._problem else ""
