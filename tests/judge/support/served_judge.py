"""The HTTP gate of a judge on a free port, with a clock and judgements of the test's own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from servescope.cutover.plan.plan import FrozenPlan
from servescope.judge.gate import make_application
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import CutoverRun, start_run
from servescope.judge.report.latest import Latest
from servescope.judge.telemetry import JudgeTelemetry
from servescope.settings.clock import ProgramClock
from servescope.web.settings import ApiSettings
from tests.support.cutover_plans import frozen_plan
from tests.support.judgements import AT_MS
from tests.support.loopback import running


class SetClock(ProgramClock):
    """A clock that is set by hand; it begins five seconds after the judgements."""

    now_is_ms = AT_MS + 5_000

    def now_ms(self) -> int:
        return self.now_is_ms


class JudgeScene:
    """A judge's gate, its clock, and what it last judged."""

    def __init__(self, run: CutoverRun) -> None:
        SetClock.now_is_ms = AT_MS + 5_000
        self.clock = SetClock()
        self.run = run
        self.latest = Latest(run, SetClock.now_is_ms)
        self.telemetry = JudgeTelemetry(self.latest, self.clock)
        self.url = ""
        self.session: aiohttp.ClientSession

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        SetClock.now_is_ms += round(seconds * 1000)

    async def ask(self, path: str, *, method: str = "GET", **options: Any) -> tuple[int, str]:
        async with self.session.request(method, f"{self.url}{path}", **options) as answer:
            return answer.status, await answer.text()

    async def ask_json(self, path: str, **options: Any) -> tuple[int, Any]:
        status, text = await self.ask(path, **options)
        return status, json.loads(text)


@asynccontextmanager
async def serving_judge(
    folder: Path,
    *,
    api: ApiSettings | None = None,
    frozen: FrozenPlan | None = None,
) -> AsyncIterator[JudgeScene]:
    """A judge's gate that is served."""
    with CutoverJournal(folder / "journal.db") as journal:
        scene = JudgeScene(start_run(journal, frozen or frozen_plan()))
    application = make_application(scene.latest, scene.telemetry, scene.clock, host="127.0.0.1", api=api)
    async with running(application) as scene.url, aiohttp.ClientSession() as scene.session:
        yield scene
