"""`servescope judge verify`: whether a journal is whole, and what is kept of a run is what its samples say."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.folding import ArmArrays, ArmFold
from servescope.cutover.evidence.windows import compacted
from servescope.errors import UsageError
from servescope.judge.arguments import find_journal, open_run, read_plan
from servescope.judge.case import fold_case, restore_case
from servescope.judge.checkpoints.checkpoints import Checkpoint, CheckpointError, KeptPart
from servescope.judge.checkpoints.fold_codec import encode
from servescope.judge.journal.journal import CutoverJournal, JournalDamagedError
from servescope.judge.journal.runs import CutoverRun, list_runs
from servescope.settings.json_text import print_json
from servescope.settings.values import format_instant
from servescope.store.history import History
from servescope.store.opening import open_history, read_time


def verify(arguments: argparse.Namespace) -> int:
    """Check the journal; with a plan and a history also what is kept of its run. Returns 1 where something is wrong."""
    path = find_journal(arguments)
    if not path.exists():
        raise UsageError(f"no journal at {str(path)!r}")
    problems, entries, head = _check_journal(arguments)
    shown: dict[str, Any] = {
        "journal": str(path), "entries": entries, "head": head, "problems": [f"{path}: {each}" for each in problems],
    }  # fmt: skip
    lines = [] if problems else [f"{path} is whole: {entries} entries, the last has the hash {head}"]
    if not problems and (arguments.store is not None or arguments.prometheus is not None):
        if arguments.plan is None:
            raise UsageError("--store and --prometheus go with --plan, whose run is checked against the samples")
        proof = _prove(arguments)
        shown["problems"] = list(proof.problems)
        shown["checkpoint"] = {"file": str(proof.checkpoint.path), "parts": proof.parts, "unproven": proof.unproven}
        lines.append(proof.sentence)
    if arguments.format == "json":
        print_json(shown)
    else:
        sys.stdout.writelines(f"{line}\n" for line in shown["problems"] or lines)
    return 1 if shown["problems"] else 0


def _check_journal(arguments: argparse.Namespace) -> tuple[list[str], int, str | None]:
    """What is wrong with the journal, how many entries it has, and the hash of the last."""
    with CutoverJournal(find_journal(arguments)) as journal:
        problems = journal.verify()
        entries = () if problems else journal.entries()
        if not problems:
            try:
                list_runs(journal)
            except JournalDamagedError as error:
                problems = list(error.problems)
    if arguments.head is not None and not problems and arguments.head not in {entry.hash for entry in entries}:
        problems = [f"no entry has the hash {arguments.head}: the journal was cut off, or it is another one"]
    return problems, len(entries), entries[-1].hash if entries else None


# --- What is kept of a run --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Proof:
    """What a checkpoint is, held against the samples; `unproven` are the parts whose samples are not held any more."""

    checkpoint: Checkpoint
    parts: int
    unproven: int
    problems: tuple[str, ...]

    @property
    def sentence(self) -> str:
        if not self.parts:
            return f"{self.checkpoint.path}: nothing is kept of this run yet, all of it is judged from the samples"
        if self.unproven:
            return (
                f"{self.checkpoint.path}: {self.parts - self.unproven} of {self.parts} parts are what the samples say; "
                f"the samples of {self.unproven} are not all held any more, so that these, and the judgement, are not "
                "proven"
            )
        return (
            f"{self.checkpoint.path}: {self.parts} parts are what the samples say, and the judgement from them is that "
            "from all samples"
        )


def _prove(arguments: argparse.Namespace) -> _Proof:
    plan = read_plan(arguments.plan)
    (_, run), at_ms = open_run(arguments, plan), read_time("--at", arguments.at)
    checkpoint = Checkpoint(find_journal(arguments), run.entries[0].hash)
    with open_history(arguments) as history:
        return prove_checkpoint(history, run, checkpoint, at_ms)


def prove_checkpoint(history: History, run: CutoverRun, checkpoint: Checkpoint, at_ms: int) -> _Proof:
    """Fold all samples of a run again, compare each part that is kept, and the judgements from both."""
    comparison = _Comparison(checkpoint.path, checkpoint.read())
    problems: list[str] = comparison.problems
    try:
        whole = fold_case(history, run.frozen, run.decisions, at_ms, keep=comparison.compare)
        comparison.read_rest()
        if comparison.parts and not problems and not comparison.unproven:
            known = restore_case(run.frozen, run.decisions, at_ms, checkpoint)
            resumed = fold_case(history, run.frozen, run.decisions, at_ms, known)
            one, other = (each.judge(run.frozen, run.decisions, at_ms) for each in (whole, resumed))
            if one.to_json() != other.to_json() or one.changes != other.changes:
                problems.append(f"{checkpoint.path}: the judgement from it is not that from all samples")
    except CheckpointError as error:
        if error.is_away:
            return _Proof(checkpoint, comparison.parts, comparison.unproven, (str(error),))
        problems.append(str(error))
    problems = [f"{each}; remove the file, and all is read from the samples again" for each in problems]
    if comparison.parts and comparison.unproven == comparison.parts:
        problems.append(
            f"{checkpoint.path}: of none of its {comparison.parts} parts all samples are held: another store?"
        )
    return _Proof(checkpoint, comparison.parts, comparison.unproven, tuple(problems))


class _Comparison:
    """Compares the parts that are kept, one by one, with those that are folded from the samples."""

    def __init__(self, path: Path, kept: Iterator[KeptPart]) -> None:
        self._path, self._kept = path, kept
        self.parts = self.unproven = 0
        self.problems: list[str] = []

    def read_rest(self) -> None:
        """Read what is kept of later; raises CheckpointError where it is damaged."""
        for _ in self._kept:
            pass

    def compare(self, parts: Sequence[ArmArrays], interval_ms: int) -> None:
        """Compare with the next that are kept; raises CheckpointError where these are damaged."""
        for part in (each for each in parts if each.blocks.size):
            kept = next(self._kept, None)
            if kept is None:
                return
            self.parts += 1
            if encode(kept.folded) == encode(compacted(part)) and kept.interval_ms == interval_ms:
                continue
            if _lacks(part, kept.folded):
                self.unproven += 1
            else:
                first, last = (format_instant(int(kept.folded.blocks[place])) for place in (0, -1))
                self.problems.append(f"{self._path}: part {self.parts}, {first} to {last}, is not what the samples say")


def _lacks(part: ArmArrays, kept: ArmArrays) -> bool:
    """Whether all that a part lacks is the beginning of its replicas, as samples are held for some time only."""
    if not np.array_equal(part.blocks, kept.blocks):
        return False
    lacking = [
        _lacking(_scrapes(one, replica), _scrapes(other, replica))
        for one, other in ((part.v1, kept.v1), (part.v2, kept.v2))
        for replica in dict.fromkeys((*one.replicas, *other.replicas))
    ]
    return any(lacking) and None not in lacking


def _lacking(held: NDArray[np.float64], kept: NDArray[np.float64]) -> bool | None:
    """Whether the scrapes of a replica lack a beginning, None where they differ otherwise; (B,) each."""
    first = int((held > 0.0).argmax()) if held.any() else held.size
    # Of the first block that is held a part may be.
    if (
        not np.array_equal(held[first + 1 :], kept[first + 1 :])
        or (held[first : first + 1] > kept[first : first + 1]).any()
    ):
        return None
    return bool((held[: first + 1] < kept[: first + 1]).any())


def _scrapes(arm: ArmFold, replica: str) -> NDArray[np.float64]:
    found = arm.scrapes[arm.replicas.index(replica)] if replica in arm.replicas else np.zeros(arm.blocks.size)
    return np.asarray(found, dtype=float)
