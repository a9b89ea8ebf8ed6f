"""Many targets past one machine, while a scraper, a translator and what stores are killed in turn.

For each of the systems of `deploy/prometheus/` and `deploy/victoriametrics/`, over loopback: while each part is dead,
one deployment of twenty engines fails. Each failure has to page, nothing else may, and of all other deployments every
ratio that is recorded has to stay that of their pages; every total too, unless the health of the targets names those
that are missing. Targets are scraped less often, and of the agents time passes faster, as far as two cores can serve,
translate, store and evaluate all of it: 25 minutes for the agents, 50 for VictoriaMetrics.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from servescope.alerting.monitoring.blindness import FLEET_UNSEEN
from servescope.errors import UsageError
from tests.proofs.outages.figures import Compared, compare, read_recorded
from tests.proofs.outages.systems import SYSTEMS, WAIT_SECONDS, Running, Scale, now_ms
from tests.support.markers import Markers
from tests.support.past_one_machine import ROOT, kill
from tests.support.proofs import run_in_folder
from tests.support.recorded_targets import RecordedTargets, Recording, serving_recordings
from tests.support.waiting import wait_for

PAGE = ROOT / "docs" / "scale.md"
_CAPTURE = "vllm-0.32.0-1"
_SPEEDS = 20
SCALES: Final[Mapping[str, Scale]] = {
    "agents": Scale(targets=2000, replicas=20, interval_seconds=30, times=2),
    "victoria": Scale(targets=2000, replicas=20, interval_seconds=60, times=1),
}
_LEVEL = 0.1
"""So much may rates that are level differ."""
_ALERT, _BESIDE = "ServescopeDeploymentDown", "ServescopeNoActiveReplica"


@dataclass(frozen=True, slots=True)
class Killed:
    """A part: seconds of the clock until its death was seen, and from another deployment's failure to the page.

    `blind_seconds` are those until it paged that too few targets are seen, None where enough are.
    """

    name: str
    seen_seconds: float
    paged_seconds: float
    blind_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What one system did."""

    system: str
    scale: Scale
    killed: Sequence[Killed]
    compared: Sequence[Compared]
    problems: Sequence[str]


def main() -> int:
    """0 when no figure was wrong and no alert was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.outages", description=__doc__)
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="one alone, or several; all by default")
    parser.add_argument("--targets", type=int, metavar="N", help="in place of the system's own number")
    parser.add_argument("--write", action="store_true", help="put the result into docs/scale.md")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and data")
    arguments = parser.parse_args()
    return run_in_folder("tests.proofs.outages", lambda folder: _prove(folder, arguments), keep=arguments.keep)


def _prove(folder: Path, arguments: argparse.Namespace) -> int:
    scales = {
        name: replace(SCALES[name], targets=arguments.targets or SCALES[name].targets)
        for name in arguments.system or SYSTEMS
    }
    for scale in scales.values():
        if scale.targets % scale.replicas or scale.targets < 5 * scale.replicas:
            raise UsageError(f"--targets is {scale.targets}, expected five or more times {scale.replicas}")
    reference = Path(os.environ.get("SERVESCOPE_REFERENCE", ROOT.parent / "shared"))
    capture = reference / "captures" / f"{_CAPTURE}.txt"
    if not capture.exists():
        raise UsageError(f"{capture} not found: set SERVESCOPE_REFERENCE to the folder of the reference data")
    problems: list[str] = []
    for name, scale in scales.items():
        result = _run(name, capture, folder / name, scale)
        print(render(result), flush=True)
        # Before the next one runs: a report of half an hour is not lost with that.
        if arguments.write:
            markers(result.system).write(PAGE, f"{render(result)}\n")
        problems += [f"{name}: {problem}" for problem in result.problems]
    for problem in problems:
        print(f"not as it should be: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _run(system: str, capture: Path, folder: Path, scale: Scale) -> Result:
    folder.mkdir()
    recordings = [Recording(str(capture), 1 + number % _SPEEDS / 100) for number in range(scale.targets)]
    with (
        serving_recordings(recordings, folder) as targets,
        SYSTEMS[system](_groups(targets, scale), folder / "stack", scale) as running,
    ):
        failing = [f"chat-{number}" for number in range(len(running.parts))]
        judged = [f"chat-{number}" for number in range(len(failing), scale.targets // scale.replicas)]
        _wait_until_level(running, judged, scale)
        began_ms = now_ms()
        truth = {name: read_recorded(running, name, began_ms) for name in judged}
        killed = [
            _kill(running, number, targets, failing[number], scale) for number in range(len(running.parts))
        ]  # fmt: skip
        _wait_until_level(running, judged, scale)
        ended_ms = now_ms()
        compared = [compare(running, name, truth[name], scale, began_ms, ended_ms) for name in judged]
        pages = running.system.notified("page")
        blind = [(part, each) for part, each in zip(running.parts, killed, strict=True) if part.blinds]
    expected = {(_ALERT, name) for name in failing} | {(FLEET_UNSEEN, "") for _ in blind}
    strays = pages - expected - {(_BESIDE, name) for name in failing}
    problems = [line for each in compared for line in each.wrong]
    problems += [
        f"no page that the targets of the {each.name} are not seen" for _, each in blind if not each.blind_seconds
    ]
    return Result(
        system, scale, killed, compared, [*problems, *(f"page {alert} of {name}" for alert, name in sorted(strays))]
    )


def _kill(running: Running, number: int, targets: RecordedTargets, failing: str, scale: Scale) -> Killed:
    """Kill a part, let a deployment fail while it is dead, wait for the page, and bring the part back."""
    part = running.parts[number]
    began = _say(f"{part.name} is killed")
    kill(part.program)
    part.wait_until_seen()
    failed = _say(f"{failing} fails")
    targets.cut_off(range((number + 1) * scale.replicas))
    if part.evaluates:
        part.bring_back()
    page = (_ALERT, failing)
    wait_for(lambda: page in running.system.notified("page"), f"the page on {failing}", seconds=WAIT_SECONDS)
    paged = _say(f"{failing} paged")
    if not part.evaluates:
        part.bring_back()
    blind = _unseen(running, "firing", began)
    if part.blinds and blind:
        # So that the page of the next part is one of its own.
        wait_for(lambda: _unseen(running, "resolved", began), "the end of the page on targets", seconds=WAIT_SECONDS)
    return Killed(part.name, failed - began, paged - failed, min(blind, default=None))


def _unseen(running: Running, status: str, began: float) -> list[float]:
    """How long after a moment notifications said that too few targets are seen, or enough again."""
    return [
        sent.at - began
        for sent in running.system.receivers.sent()
        for alert in sent.alerts
        if alert["labels"]["alertname"] == FLEET_UNSEEN and alert["status"] == status and sent.at > began
    ]


def _wait_until_level(running: Running, judged: Sequence[str], scale: Scale) -> None:
    """Wait until every target was scraped all the window long, and the recorded rates have been level."""
    selector, window = f'deployment_id=~"{"|".join(judged)}"', round(scale.window_seconds)
    often = window // scale.interval_seconds - 1
    scraped = f"count(sum_over_time(servescope_probe_success{{{selector}}}[{window}s]) >= {often})"
    wanted = [float(len(judged) * scale.replicas)]
    wait_for(lambda: running.values(scraped) == wanted, "targets that are scraped", seconds=WAIT_SECONDS)
    steady = f"deployment:requests:rate5m{{{selector}}}[{window}s]"
    running.wait_for(
        f"min(min_over_time({steady}) / max_over_time({steady})) > {1 - _LEVEL} and min(count_over_time({steady})) > 3",
        "level rates",
    )


def _groups(targets: RecordedTargets, scale: Scale) -> list[dict[str, Any]]:
    return [
        {
            "targets": list(targets.addresses[first : first + scale.replicas]),
            "labels": {
                "model_name": f"model-{number % 5}", "deployment_id": f"chat-{number}", "inference_stack": "v2",
                "environment": "live", "__param_source": "vllm",
            },
        }
        for number, first in enumerate(range(0, scale.targets, scale.replicas))
    ]  # fmt: skip


def _say(line: str) -> float:
    """Print where the run is; the seconds of a clock that does not jump."""
    print(f"{time.strftime('%X')}  {line}", flush=True)
    return time.monotonic()


# --- The report -------------------------------------------------------------------------------------------------------


def render(result: Result) -> str:
    """What was killed, how soon it was seen and paged, and what was recorded meanwhile, as Markdown."""
    scale, compared = result.scale, result.compared
    ratios, totals = (max(each) for each in zip(*((one.ratio_off, one.total_off) for one in compared), strict=True))
    return "\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {scale.targets:,} engines of vLLM 0.32, each "
            f"scraped every {scale.interval_seconds} s, time passing {scale.times} × as fast; seconds are the clock's:",
            "",
            "| killed | seen after | too few targets seen: paged after | a deployment's failure paged after |",
            "|---|---:|---:|---:|",
            *(
                f"| {each.name} | {each.seen_seconds:.0f} s | "
                f"{'–' if each.blind_seconds is None else f'{each.blind_seconds:.0f} s'} | {each.paged_seconds:.0f} s |"
                for each in result.killed
            ),
            "",
            f"{sum(each.values for each in compared):,} values recorded meanwhile of all other deployments; ratios off "
            f"by at most {ratios:.2%}, totals without a missing target by {totals:.1%}; failures: "
            f"{len(result.problems) or 'none'}.",
        ]
    )


def markers(system: str) -> Markers:
    """Before and after a system's report in the page."""
    command = f"python -m tests.proofs.outages --system {system} --write"
    return Markers(f"<!-- outages of {system}: written by `{command}`, do not edit -->", f"<!-- end of {system} -->")


if __name__ == "__main__":
    sys.exit(main())
