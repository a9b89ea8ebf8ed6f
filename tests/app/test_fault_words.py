"""The names, units and alerts of faults that the console shows."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from app.cutovers.fault_words import WORDS, dose_of
from servescope.alerting.alerts import ALERTS
from servescope.emulator.faults.kinds import KINDS
from tests.proofs.live.episodes import EPISODES


def test_every_fault_has_a_readable_name_of_its_own() -> None:
    """No kind is without a name, and none is called as another or as a program would call it."""
    assert WORDS.keys() == KINDS.keys()
    assert len({words.title for words in WORDS.values()}) == len(WORDS)
    assert not [words.title for words in WORDS.values() if "-" in words.title or not words.title[0].isupper()]


def test_every_intensity_has_a_unit() -> None:
    """An intensity is shown as a percentage, a factor, seconds or replicas."""
    shown = {
        kind.name: dose_of(kind.intensity.meaning).describe(kind.intensity.default)
        for kind in KINDS.values() if kind.intensity is not None
    }  # fmt: skip

    assert shown["draft-misaligned"] == "70 %"
    assert shown["bad-replica"] == "4 ×"
    assert shown["clock-skew"] == "-300 s"
    assert shown["autoscaler-pinned"] == "1 replicas"


def test_expected_alerts_are_those_of_the_running_stack() -> None:
    """Each alert exists, and is one that the fault causes in the running stack, where that has the fault."""
    caused: dict[str, set[str]] = {}
    for episode in EPISODES:
        for kind in re.findall(r"`([a-z-]+)[:`@]", episode.how):
            caused.setdefault(kind, set()).update(name.partition("@")[0] for name in (*episode.alerts, *episode.muted))
    for kind, words in WORDS.items():
        assert set(words.alerts) <= set(ALERTS), kind
        if kind in caused:
            assert set(words.alerts) <= caused[kind], kind
