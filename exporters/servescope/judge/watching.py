"""`servescope judge watch`: judge after every scrape until Ctrl-C, keep the changes, and serve the gate."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from typing import Final

from servescope.cutover.judgement import Judgement
from servescope.errors import ServescopeError, UsageError
from servescope.judge.arguments import open_run, read_plan
from servescope.judge.case import WatchedCase
from servescope.judge.checkpoints.checkpoints import Checkpoint
from servescope.judge.ending import Worker
from servescope.judge.gate import make_application
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import CutoverRun, current_run, write_changes
from servescope.judge.journal.written import with_written_harm
from servescope.judge.report.latest import Latest
from servescope.judge.report.text import moment
from servescope.judge.telemetry import JudgeTelemetry
from servescope.settings.clock import ProgramClock, program_clock
from servescope.settings.command_line import cannot_listen, read_listen
from servescope.settings.signals import stop_at_signals
from servescope.settings.values import is_loopback
from servescope.store.history import History
from servescope.store.opening import open_history
from servescope.web.listening import Listener
from servescope.web.settings import ApiSettings, read_api_options

_PERIOD_SECONDS: Final = 15.0
"""How often it is judged, in seconds of the program's clock: as often as is usually scraped."""
_LEAST_PAUSE_SECONDS: Final = 0.5
"""And at most this often on the machine's clock, whatever the speed of an emulation."""

_logger = logging.getLogger(__name__)


def watch(arguments: argparse.Namespace) -> int:
    """Judge and serve until SIGINT or SIGTERM; raises ServescopeError when it cannot begin."""
    if arguments.at is not None:
        raise UsageError("--at does not go with `watch`, which judges the present")
    host, port = read_listen(arguments)
    api = read_api_options(arguments, "gate")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    journal, run = open_run(arguments, read_plan(arguments.plan))
    with open_history(arguments) as history, journal:
        watcher = Watcher(history, journal, run, program_clock())
        watch_until_signalled(watcher, host, port, api)
    return 0


def watch_until_signalled(watcher: Watcher, host: str, port: int, api: ApiSettings) -> None:
    """Judge and serve; a judgement that is in progress at the signal may be left undone, and the process ended."""
    asyncio.run(_serve_until_signalled(watcher, host, port, api))
    watcher.worker.leave()


class Watcher:
    """Judges the current run of a plan again and again; `latest` is what it found last."""

    def __init__(self, history: History, journal: CutoverJournal, run: CutoverRun, clock: ProgramClock) -> None:
        self._journal, self._plan, self.clock = journal, run.plan, clock
        self._case = WatchedCase(history)
        self.latest = Latest(run, clock.now_ms())
        self.telemetry = JudgeTelemetry(self.latest, clock)
        self.worker = Worker()
        self._shown = self._problem = ""
        self._resumed = False

    async def run(self) -> None:
        """Judge until cancelled."""
        pause = max(_PERIOD_SECONDS, _LEAST_PAUSE_SECONDS * self.clock.speed)
        while True:
            await self.judge()
            await self.clock.sleep(pause)

    async def judge(self) -> None:
        """Judge once; what fails is logged, counted, and no reason to end."""
        started = time.perf_counter()
        failed = False
        try:
            judgement, run = await self.worker.call(self._judge)
        except ServescopeError as error:
            failed = True
            self._report(str(error))
        except Exception as error:  # a mistake of ours must not end it: the gate closes as the judgement grows old
            failed = True
            _logger.exception("the cutover could not be judged")
            self._report(f"internal error: {error!r}")
        else:
            self._publish(judgement, run)
        self.telemetry.count_judgement(time.perf_counter() - started, failed=failed)

    def _judge(self) -> tuple[Judgement, CutoverRun]:
        run = current_run(self._journal, self._plan)
        if run is None:
            raise ServescopeError(f"plan {self._plan!r} has no run in {self._journal.path} any more")
        checkpoint = Checkpoint(self._journal.path, run.entries[0].hash)
        judgement = with_written_harm(self._case.judge(run.frozen, run.decisions, self.clock.now_ms(), checkpoint), run)
        return judgement, write_changes(self._journal, run, judgement)

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            _logger.error("the cutover could not be judged: %s", problem)
        self._problem = problem
        self.latest.fail(problem)

    def _publish(self, judgement: Judgement, run: CutoverRun) -> None:
        former = self.latest.run
        if not self._resumed:
            _logger.info("%s", describe_resumption(former, judgement))
        shown = f"{judgement.verdict} in stage {judgement.stage.index + 1}"
        if shown != self._shown:
            _logger.info("%s: %s", shown, judgement.reason)
        if self._problem:
            _logger.info("the cutover is judged again")
        self._shown, self._problem, self._resumed = shown, "", True
        self.latest.succeed(judgement, run)


def describe_resumption(run: CutoverRun, judgement: Judgement) -> str:
    """What a judge has missed that was not running: nothing that was scraped, as it is judged from the samples."""
    known = [entry.at_ms for entry in run.changes if entry.at_ms <= judgement.at_ms]
    if not known:
        return f"run {run.number} of plan {run.plan!r} is judged from its start on, {moment(run.frozen.started_ms)}"
    since_ms = max(known)
    gaps = [(start, end, why) for start, end, why in judgement.missed if end > since_ms]
    resumed = f"run {run.number} of plan {run.plan!r} is resumed; the journal's last judgement is of {moment(since_ms)}"
    if not gaps:
        return f"{resumed}: everything since is judged from the samples, nothing was missed"
    missed = "; ".join(f"{moment(start)} to {moment(end)} ({why})" for start, end, why in gaps)
    return f"{resumed}: all since is judged from the samples but {missed}"


# --- Serving ----------------------------------------------------------------------------------------------------------


async def _serve_until_signalled(watcher: Watcher, host: str, port: int, api: ApiSettings) -> None:
    await serve(watcher, host, port, api, stop_at_signals())


async def serve(watcher: Watcher, host: str, port: int, api: ApiSettings, stop: asyncio.Event) -> None:
    """Judge, and serve the gate on an address, until `stop` is set; raises ServescopeError when it is taken."""
    application = make_application(watcher.latest, watcher.telemetry, watcher.clock, host=host, api=api)
    listener = Listener(application, certificates=api.certificates())
    try:
        await listener.start(host, port)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    scheme = "http" if api.tls_cert_file is None else "https"
    for address in listener.addresses:
        _logger.info("serving %s://%s:%d/judgement", scheme, *address)
    if not is_loopback(host) and not api.tokens().required:
        _logger.warning("anybody who reaches %s can read the judgement; --gate-token-file asks for a token", host)
    judging = asyncio.create_task(watcher.run())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((judging, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (judging, stopping):
            task.cancel()
        await asyncio.gather(judging, stopping, return_exceptions=True)
        await listener.close()
