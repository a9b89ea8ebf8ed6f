"""The same numbers from traffic from a store, and from a Prometheus that was filled with what the store exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servescope.settings.values import format_instant
from tests.support.commands import run
from tests.support.either_past import EitherPast, close, either_past

pytestmark = [pytest.mark.slow, pytest.mark.proof]


def numbers(past: EitherPast, *words: str) -> Any:
    """The numbers from traffic."""
    done = run("migrate", *words, "--at", format_instant(past.end_ms), "--past", "70m", "--format", "json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)["traffic"]


def test_store_and_prometheus_give_the_same_numbers(prometheus: Path, promtool: Path, tmp_path: Path) -> None:
    """Every size, band and simulation; what a Prometheus does not hold is noted."""
    with either_past(prometheus, promtool, tmp_path) as past:
        stored, queried = numbers(past, "--store", str(past.store)), numbers(past, "--prometheus", past.url)
    assert set(stored.pop("notes")) <= set(queried.pop("notes"))
    assert stored["sizes"]["input_tokens_per_request"]["count"] > 0
    assert close(queried, stored), (queried, stored)
