"""What is kept of a run beside its journal: judging from it is judging from all samples, and `verify` proves it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.folding import ArmArrays
from servescope.cutover.evidence.windows import compacted, expanded, map_arrays
from servescope.cutover.plan.plan import FrozenPlan
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.case import WatchedCase, fold_case, freeze_plan, judge_case
from servescope.judge.checkpoints.checkpoints import Checkpoint
from servescope.judge.checkpoints.fold_codec import decode, encode
from tests.support.commands import run
from tests.support.cutover_evidence import Side, Story, plan_of
from tests.support.cutover_past import MadePast, given, made_past
from tests.support.cutover_plans import LEAST_PLAN

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
STORY = Story(past_hours=26, hours=12, v2=Side(replicas=3, slower=1.2))
TWO_METRICS = ("time_to_first_token_seconds", "request_error_share")
JOURNAL = "chat.journal.db"
AT_MS = STORY.started_ms + 11 * HOUR_MS
ADVANCED_MS = STORY.started_ms + 5 * HOUR_MS + 120_000
DECISIONS = (
    Decision("start", STORY.started_ms, stage=0),
    Decision("acknowledge", STORY.started_ms + 4 * HOUR_MS, "ada", "a known regression"),
    Decision("advance", ADVANCED_MS, "ada", "go on", stage=1),
)


@pytest.fixture(autouse=True, scope="module")
def short() -> Iterator[None]:
    """Parts of an hour that are final two hours later, stages that are judged with an hour before: days take long."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("servescope.judge.case._READ_MS", HOUR_MS + 3 * BLOCK_MS)
        patched.setattr("servescope.judge.case.FINAL_MS", 2 * HOUR_MS)
        patched.setattr("servescope.cutover.evidence.windows.LEAD_MS", HOUR_MS)
        patched.setattr("servescope.judge.checkpoints.folds._WORTHWHILE", 3)
        yield


@dataclass
class Case:
    """A run of two stages, the past it is judged from, and what is kept of it."""

    past: MadePast
    frozen: FrozenPlan
    checkpoint: Checkpoint

    def judge(self, at_ms: int, *, kept: bool) -> Any:
        """The judgement at a time, from what is kept or from all samples."""
        self.past.now_ms = at_ms
        made = tuple(each for each in DECISIONS if each.at_ms <= at_ms)
        return judge_case(self.past, self.frozen, made, at_ms, self.checkpoint if kept else None)


@cache
def _frozen_past(required: tuple[str, ...] | None) -> tuple[Evidence, FrozenPlan]:
    """What is observed, with a replica that comes late and one that leaves, and the plan of it."""
    past = made_past(STORY)
    targets = {target.identity.replica: target for target in past.evidence.targets}
    late, left = targets["v2-2"], targets["v1-2"]
    targets["v2-2"] = late.at(late.blocks >= STORY.started_ms + 7 * HOUR_MS)
    targets["v1-2"] = left.at(left.blocks < STORY.started_ms + 6 * HOUR_MS)
    past.evidence = replace(past.evidence, targets=tuple(targets.values()))
    past.now_ms = STORY.started_ms
    return past.evidence, freeze_plan(past, plan_of(0.25, 0.26, required=required), STORY.started_ms)


def _case(folder: Path, required: tuple[str, ...] | None = None) -> Case:
    evidence, frozen = _frozen_past(required)
    return Case(MadePast(evidence, STORY.started_ms), frozen, Checkpoint(folder / JOURNAL, "ab" * 32))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """At its start."""
    return _case(tmp_path)


@pytest.fixture
def small_case(tmp_path: Path) -> Case:
    """The same with two metrics."""
    return _case(tmp_path, TWO_METRICS)


@pytest.fixture(scope="module")
def judged_once(tmp_path_factory: pytest.TempPathFactory, short: None) -> tuple[Case, Any]:
    """The same with two metrics, after 11 hours, and the judgement of then."""
    case = _case(tmp_path_factory.mktemp("judged"), TWO_METRICS)
    return case, case.judge(AT_MS, kept=True)


@pytest.fixture
def judged(judged_once: tuple[Case, Any], tmp_path: Path) -> tuple[Case, Any]:
    """The same, with a copy of what is kept of it."""
    case, whole = judged_once
    copy = Checkpoint(tmp_path / JOURNAL, "ab" * 32)
    shutil.copyfile(case.checkpoint.path, copy.path)
    return replace(case, checkpoint=copy), whole


@pytest.fixture(params=[pytest.param(28 * 24, marks=pytest.mark.proof), 2])
def sections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections of a stage that are longer than it, and such of two hours with one of those before."""
    monkeypatch.setattr("servescope.cutover.evidence.stages.SECTION_MS", request.param * HOUR_MS)
    monkeypatch.setattr("servescope.cutover.evidence.stages.OVERLAP_MS", HOUR_MS)


@pytest.mark.usefixtures("sections")
def test_judging_from_what_is_kept_is_judging_from_all_samples(case: Case) -> None:
    """At any hour of a run of two stages, whatever of it is kept already, bit for bit."""
    for hours in (1, 6, 11):
        at_ms = STORY.started_ms + hours * HOUR_MS + 60_000
        assert case.judge(at_ms, kept=True) == case.judge(at_ms, kept=False), hours


def test_what_is_kept_is_not_read_again(judged: tuple[Case, Any]) -> None:
    """Only what is not final, and only from the current stage is anything held in memory."""
    case, _ = judged
    case.past.reads.clear()
    again = Checkpoint(case.checkpoint.path.with_name(JOURNAL), "ab" * 32)
    assert again.path == case.checkpoint.path
    judge_case(case.past, case.frozen, DECISIONS, AT_MS, again)

    assert min(start_ms for _, start_ms, _ in case.past.reads) >= AT_MS - 4 * HOUR_MS
    folded = fold_case(case.past, case.frozen, DECISIONS, AT_MS).folded
    assert ADVANCED_MS - 2 * HOUR_MS <= folded.blocks[0] <= ADVANCED_MS - HOUR_MS
    assert "v1-2" in " ".join(folded.v1.replicas)


@pytest.mark.parametrize(
    "blocks",
    [
        (40, 45, 75, 80, 90),
        pytest.param(range(5, STORY.hours * 12, 5), marks=pytest.mark.proof),
    ],
)
@pytest.mark.usefixtures("sections")
def test_a_watched_run_is_judged_from_what_is_kept(
    case: Case, blocks: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a judge that goes on and by one that begins anew in the middle."""
    monkeypatch.setattr("servescope.judge.case._AFRESH_BLOCKS", 6)
    watched = WatchedCase(case.past)
    for block in blocks:
        if block == 75:
            watched = WatchedCase(case.past)
        at_ms = STORY.started_ms + block * BLOCK_MS + 60_000
        case.past.now_ms = at_ms
        made = tuple(each for each in DECISIONS if each.at_ms <= at_ms)
        assert watched.judge(case.frozen, made, at_ms, case.checkpoint) == case.judge(at_ms, kept=False), block


def test_what_is_held_of_a_long_stage_is_bounded(small_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose stage was never moved on is judged by the blocks of its latest section and of what goes before."""
    monkeypatch.setattr("servescope.cutover.evidence.stages.SECTION_MS", 2 * HOUR_MS)
    monkeypatch.setattr("servescope.cutover.evidence.stages.OVERLAP_MS", HOUR_MS)
    watched = WatchedCase(small_case.past)
    for hours in (5, 10, 11):
        small_case.past.now_ms = STORY.started_ms + hours * HOUR_MS
        watched.judge(small_case.frozen, DECISIONS[:1], small_case.past.now_ms, small_case.checkpoint)
        assert watched.folded is not None
        assert watched.folded.blocks.size <= (2 + 1 + 1) * 12 + 1


def test_a_span_excluded_from_an_ended_stage_is_left_out_of_it(small_case: Case) -> None:
    """Though what it left was known: it is judged again, and harm that was proven stays known."""
    small_case.past.now_ms = AT_MS
    watched = WatchedCase(small_case.past)
    before = watched.judge(small_case.frozen, DECISIONS, AT_MS, small_case.checkpoint)
    excluded = Decision(
        "exclude", AT_MS, "ada", "a deploy", start_ms=STORY.started_ms, end_ms=STORY.started_ms + 3 * HOUR_MS
    )
    after = watched.judge(small_case.frozen, (*DECISIONS, excluded), AT_MS, small_case.checkpoint)

    assert after == judge_case(small_case.past, small_case.frozen, (*DECISIONS, excluded), AT_MS)
    assert after.changes == before.changes
    assert [each.by for each in after.excluded_harm] == ["ada"]
    assert any(why == "a deploy" for _, _, why in after.missed)
    assert [each.overall for each in after.metrics] != [each.overall for each in before.metrics]


@pytest.mark.parametrize("statement", [
    "UPDATE parts SET body = zeroblob(500) WHERE number = 3",
    "UPDATE parts SET interval_ms = 'x' WHERE number = 0",
    "DELETE FROM parts WHERE number = 2",
    "UPDATE parts SET body = NULL, hash = '' WHERE number = 4",
    "DROP TABLE parts",
])  # fmt: skip
def test_what_was_changed_is_read_from_the_samples_again(
    judged: tuple[Case, Any], statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With all after it; the judgement is the same, and the file is whole again."""
    case, whole = judged
    kept = [each.hash for each in case.checkpoint.read()]
    _execute(case.checkpoint.path, statement.replace("NULL", "''"))
    assert case.judge(AT_MS, kept=True) == whole
    assert "the samples are read again" in caplog.text

    assert [each.hash for each in case.checkpoint.read()] == kept


@pytest.mark.parametrize("order", [(0, 1, 1, 2), (0, 2), (1, 2)], ids=["repeated", "missing", "beheaded"])
def test_parts_that_do_not_follow_one_another_are_read_again(
    judged: tuple[Case, Any], order: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Though each has the hash of those before, as somebody may write them who computes it."""
    case, whole = judged
    parts = list(case.checkpoint.read())
    case.checkpoint.path.unlink()
    for number in order:
        case.checkpoint.append([parts[number].folded], parts[number].interval_ms)

    assert case.judge(AT_MS, kept=True) == whole
    assert "does not follow what is before it" in caplog.text


def test_a_file_that_another_process_has_locked_keeps_what_it_has(
    judged: tuple[Case, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The judgement is the same, and waits for the lock twice at most: what is kept may be of samples that are gone."""
    monkeypatch.setattr("servescope.judge.checkpoints.checkpoints._BUSY_SECONDS", 0.0)
    case, whole = judged
    kept = [each.hash for each in case.checkpoint.read()]
    other = sqlite3.connect(case.checkpoint.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert case.judge(AT_MS, kept=True) == whole
    assert caplog.text.count("is not kept") == 1
    assert "database is locked; from there on the samples are read again" in caplog.text

    # It may answer again at any time.
    monkeypatch.setattr("servescope.judge.checkpoints.checkpoints._logger.warning", lambda *_: other.close())
    assert list(case.checkpoint.sound(0)) == []
    assert [each.hash for each in case.checkpoint.read()] == kept


def test_what_could_not_be_kept_is_kept_later(judged: tuple[Case, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With what follows it, so that no part is missing between others."""
    monkeypatch.setattr("servescope.judge.checkpoints.checkpoints._PAUSE_SECONDS", 0.0)
    case, _ = judged
    parts = list(case.checkpoint.read())
    case.checkpoint.path.unlink()
    again = Checkpoint(case.checkpoint.path.with_name(JOURNAL), "ab" * 32)

    case.checkpoint.path.mkdir()
    again.append([parts[0].folded], parts[0].interval_ms)
    case.checkpoint.path.rmdir()
    again.append([parts[1].folded], parts[1].interval_ms)
    assert [each.hash for each in again.read()] == [each.hash for each in parts[:2]]


def test_a_file_that_is_no_database_is_replaced(judged: tuple[Case, Any]) -> None:
    """A text in its place."""
    case, whole = judged
    case.checkpoint.path.write_text("not a database" * 100)

    assert case.judge(AT_MS, kept=True) == whole
    assert list(case.checkpoint.read())


def test_verify_proves_what_is_kept(tmp_path: Path) -> None:
    """The parts by the samples, and the judgement by all samples; what differs is named by its part and times."""
    with given(made_past(STORY)) as past:
        past.now_ms = STORY.started_ms
        plan = tmp_path / "cutover.toml"
        plan.write_text(f"{LEAST_PLAN}\n[[stages]]\nshare = 0.5\n", encoding="utf-8")
        words = ("--plan", str(plan))
        assert run("judge", "start", *words, "--by", "ada", "--reason", "why").returncode == 0
        past.now_ms = STORY.started_ms + 6 * HOUR_MS
        assert run("judge", "verify", *words, "--store", "x").stdout.endswith("judged from the samples\n")
        assert run("judge", "run", *words).returncode in {0, 10, 11}

        proven = run("judge", "verify", *words, "--store", "x")
        assert proven.returncode == 0, proven.stdout
        assert "5 parts are what the samples say, and the judgement from them is that from all samples" in proven.stdout

        (kept,) = tmp_path.glob("*.folds.db")
        _execute(kept, "INSERT INTO parts SELECT run, 5, interval_ms, body, hash FROM parts WHERE number = 4")
        more = run("judge", "verify", *words, "--store", "x")
        assert more.returncode == 1
        assert "part 5 is not what was written" in more.stdout
        _execute(kept, "DELETE FROM parts WHERE number = 5")

        targets = past.evidence.targets
        past.evidence = replace(
            past.evidence, targets=(replace(targets[0], gains=targets[0].gains + 1.0), *targets[1:])
        )
        other = run("judge", "verify", *words, "--store", "x")
        assert other.returncode == 1
        assert "part 1, " in other.stdout
        assert "is not what the samples say; remove the file" in other.stdout

        kept_ms = STORY.started_ms + 2 * HOUR_MS
        past.evidence = replace(past.evidence, targets=tuple(each.at(each.blocks >= kept_ms) for each in targets))
        gone = run("judge", "verify", *words, "--store", "x")
        assert gone.returncode == 0, gone.stdout
        assert "2 of 5 parts are what the samples say; the samples of 3 are not all held any more" in gone.stdout

        past.evidence = replace(past.evidence, targets=())
        none = run("judge", "verify", *words, "--store", "x")
        assert none.returncode == 1
        assert "of none of its 5 parts all samples are held: another store?" in none.stdout

        # In the middle of what is held nothing is dropped by age.
        scrapes = targets[0].tallies.scrapes.copy()
        scrapes[(targets[0].blocks >= kept_ms) & (targets[0].blocks < kept_ms + 2 * BLOCK_MS)] -= 1
        fewer = replace(targets[0], tallies=replace(targets[0].tallies, scrapes=scrapes))
        past.evidence = replace(past.evidence, targets=(fewer, *targets[1:]))
        changed = run("judge", "verify", *words, "--store", "x")
        assert changed.returncode == 1
        assert "is not what the samples say" in changed.stdout


def test_folded_blocks_are_the_same_after_writing_and_reading(case: Case) -> None:
    """Whatever is in them, and however small they are kept."""
    case.past.now_ms = STORY.started_ms + 8 * HOUR_MS
    folded = fold_case(case.past, case.frozen, DECISIONS, case.past.now_ms).folded
    small = compacted(folded)

    pairs = list(zip(_arrays(expanded(small)), _arrays(folded), strict=True))
    assert len(pairs) > 100
    assert all(np.array_equal(one, other, equal_nan=one.dtype == np.float64) for one, other in pairs)
    assert encode(decode(encode(small))) == encode(small)
    assert len(encode(small)) < len(encode(folded)) / 2
    other: Any = 1
    for damaged in (encode(small)[:50], encode(replace(small, v2=other))):
        with pytest.raises(ValueError, match="no folded blocks"):
            decode(damaged)


def _arrays(folded: ArmArrays) -> list[NDArray[Any]]:
    found: list[NDArray[Any]] = []

    def collect(values: NDArray[Any], *, is_by_replica: bool) -> NDArray[Any]:
        found.append(values)
        return values

    map_arrays(folded, collect)
    return found


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
