"""An emulated v1 that was recorded, for everything that is computed of the traffic it served."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from servescope.emulator.workload.mixes import Mix
from tests.support.served_traffic import EmulatedPast, kept_past

SERVED_MIX = Mix(requests_per_second=1.5)


@pytest.fixture(scope="session")
def served_past() -> EmulatedPast:
    """Seventy minutes of an emulated v1, to be read only."""
    return kept_past("served-past", minutes=70, mix=SERVED_MIX)


def fill_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let a disk be full after so many files were written to it."""
    done_before = [None] * after

    def full(_: int) -> None:
        if not done_before:
            raise OSError(28, "No space left on device")
        done_before.pop()

    monkeypatch.setattr(os, "fsync", full)


def names_in(folder: Path) -> list[str]:
    """The names of the files there, hidden ones included."""
    return sorted(path.name for path in folder.iterdir())
