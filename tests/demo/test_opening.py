"""What the demo opens on, and what its verdict does in the three hours after, which are three minutes of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.demo.opening import INTERVAL_SECONDS, JOURNAL, STORE, Opening, open_cutover, put_files
from servescope.emulator.faults.faults import make_fault
from servescope.emulator.scenario.recording import StackRecorder
from servescope.judge.case import judge_case
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import current_run, write_decision
from servescope.store.embedded import Store

OPENS_AT = 1_792_926_000.0


@dataclass
class OpenedCutover:
    """The demo's cutover, whose time is passed by hand."""

    folder: Path
    opening: Opening
    recorder: StackRecorder
    store: Store
    hours: float = 0.0

    def pass_hours(self, hours: float) -> None:
        """Let time pass."""
        self.hours += hours
        self.recorder.run_until(self.opening.opened_seconds + self.hours * 3600)
        self.recorder.write()

    def advance(self, stage: int, share: float) -> None:
        """Move to a stage, as the console's slider does."""
        self.opening.stack.traffic.split.set_share("chat-v2", share, 300.0)
        at_ms = round((OPENS_AT + self.hours * 3600) * 1000)
        with CutoverJournal(self.folder / JOURNAL) as journal:
            run = current_run(journal, "chat")
            assert run is not None
            write_decision(journal, run, Decision("advance", at_ms, by="ada", reason="proven so far", stage=stage))

    def judge(self) -> Judgement:
        """The judgement now, as the console has it."""
        with CutoverJournal(self.folder / JOURNAL) as journal:
            run = current_run(journal, "chat")
        assert run is not None
        at_ms = round((OPENS_AT + self.hours * 3600) * 1000)
        return judge_case(self.store, run.frozen, run.decisions, at_ms)


@contextmanager
def opened(folder: Path) -> Iterator[OpenedCutover]:
    put_files(folder, OPENS_AT)
    opening = open_cutover(folder, OPENS_AT)
    with Store(folder / STORE) as store:
        start_ms = round((OPENS_AT - opening.opened_seconds) * 1000)
        recorder = StackRecorder(
            opening.stack, opening.faults, store,
            start_ms=start_ms, interval_ms=INTERVAL_SECONDS * 1000, from_ms=round(OPENS_AT * 1000),
        )  # fmt: skip
        yield OpenedCutover(folder, opening, recorder, store)


@pytest.mark.slow
def test_demo_opens_on_a_healthy_cutover(tmp_path: Path) -> None:
    """At its second stage, with every required metric proven; a plain fault shows within a quarter of an hour."""
    with opened(tmp_path) as cutover:
        at_first = cutover.judge()
        cutover.opening.faults.switch_on(make_fault("error-burst", 0.2, deployment="chat-v2"))
        cutover.pass_hours(1 / 4)
        later = cutover.judge()

    assert not [each for each in at_first.notes if "configured" in each], "nobody would say of another share later"
    assert at_first.verdict == "HEALTHY"
    assert at_first.stage.index == 1
    assert [each.name for each in at_first.metrics if each.required and each.verdict != "HEALTHY"] == []
    assert later.verdict == "DEGRADED"
    assert "Errors" in later.reason
    with CutoverJournal(tmp_path / JOURNAL) as journal:
        run = current_run(journal, "chat")
    assert run is not None
    assert all(entry.reason for entry in run.entries)
    assert [entry.body["judgement"]["verdict"] for entry in run.entries if entry.kind == "advance"] == ["INCONCLUSIVE"]


@pytest.mark.proof
def test_a_healthy_demo_stays_healthy(tmp_path: Path) -> None:
    """Over three hours, with a replica more or less."""
    with opened(tmp_path) as cutover:
        verdicts = []
        for _ in range(6):
            cutover.pass_hours(0.5)
            verdicts.append(cutover.judge().verdict)

    assert set(verdicts) == {"HEALTHY"}


@pytest.mark.proof
def test_a_healthy_migration_ends_healthy(tmp_path: Path) -> None:
    """Each further stage is proven anew, once the replicas of both have followed the share; none is degraded."""
    with opened(tmp_path) as cutover:
        for stage, share in ((2, 0.5), (3, 0.9)):
            cutover.advance(stage, share)
            verdicts: list[str] = []
            while "HEALTHY" not in verdicts and len(verdicts) < 14:
                cutover.pass_hours(0.5)
                verdicts.append(cutover.judge().verdict)
            assert verdicts[-1] == "HEALTHY"
            assert "DEGRADED" not in verdicts


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "intensity"),
    [
        ("latency-regression", None), ("error-burst", None), ("latency-regression", 1.5), ("latency-regression", 3.0),
        ("throughput-regression", 0.9),
    ],
)  # fmt: skip
def test_a_fault_is_followed_by_its_verdict(tmp_path: Path, kind: str, intensity: float | None) -> None:
    """Within three hours, though v2 was better than v1 for six; without an intensity that of the page's switch."""
    if intensity is None:
        emulated = pytest.importorskip("app.cutovers.emulated", reason="the console needs the extra 'console'")
        intensity = emulated.FAULTS[kind]
    with opened(tmp_path) as cutover:
        cutover.opening.faults.switch_on(make_fault(kind, intensity, deployment="chat-v2"))
        verdicts = []
        while "DEGRADED" not in verdicts and cutover.hours < 3:
            cutover.pass_hours(0.5)
            verdicts.append(cutover.judge().verdict)

    assert verdicts[-1] == "DEGRADED"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "intensity", "hours"),
    [
        ("answers-short", 0.5, 2.0), ("answers-truncated", 0.1, 6.0), ("requests-lost", 0.03, 3.0),
        ("client-cuts", 0.1, 2.0), ("gpu-waste", 2.0, 2.0), ("tail-slow", 0.3, 2.0), ("restarts", 6.0, 16.0),
        ("kv-creep", 0.03, 12.0),
    ],
)  # fmt: skip
def test_quiet_harm_is_not_healthy(tmp_path: Path, kind: str, intensity: float, hours: float) -> None:
    """Harm that no mean and no error shows: found within some hours, though v2 was HEALTHY before.

    Three requests of ten are slow, as v1 has ten times as many of them as v2.
    """
    with opened(tmp_path) as cutover:
        cutover.opening.faults.switch_on(make_fault(kind, intensity, deployment="chat-v2"))
        found: list[str] = []
        while cutover.hours < hours and not found:
            cutover.pass_hours(0.5)
            judgement = cutover.judge()
            found = [each.name for each in judgement.metrics if each.verdict == "DEGRADED"]

    assert found
    assert judgement.verdict != "HEALTHY"
