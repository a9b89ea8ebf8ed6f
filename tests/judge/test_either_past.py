"""The same judgement from a store, and from a Prometheus that was filled with what the store exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servescope.settings.values import format_instant
from tests.support.commands import run
from tests.support.cutover_plans import LEAST_PLAN
from tests.support.either_past import close, either_past

pytestmark = [pytest.mark.slow, pytest.mark.proof]

SINCE_MINUTES = 35


@dataclass(frozen=True)
class Pasts:
    """A store, the address of a Prometheus with the same samples, a plan, and when to judge."""

    store: Path
    url: str
    plan: Path
    since_ms: int
    at_ms: int

    def judge(self, *past: str) -> tuple[int, Any]:
        """The exit code and the judgement."""
        done = run(
            "judge", "run", "--plan", str(self.plan), "--since", format_instant(self.since_ms), "--at",
            format_instant(self.at_ms), "--format", "json", *past,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def pasts(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pasts]:
    """Seventy minutes of both stacks, and a plan."""
    folder = tmp_path_factory.mktemp("pasts")
    plan = folder / "cutover.toml"
    plan.write_text(f'calibration = "30m"\n{LEAST_PLAN}', encoding="utf-8")
    with either_past(prometheus, promtool, folder) as past:
        yield Pasts(past.store, past.url, plan, past.start_ms + SINCE_MINUTES * 60_000, past.end_ms - 60_000)


def test_store_and_prometheus_give_one_judgement(pasts: Pasts) -> None:
    """Each verdict, reason, ratio and limit, and what each arm did; what a Prometheus lacks is noted."""
    code, stored = pasts.judge("--store", str(pasts.store))
    other_code, queried = pasts.judge("--prometheus", pasts.url)

    assert code == other_code
    assert stored["v2"]["resets"] > 0
    assert stored["v2"]["failed"] > 0
    assert set(stored["notes"]) < set(queried["notes"])
    for judgement in (stored, queried):
        del judgement["notes"]
        for arm in ("v1", "v2"):
            # A store counts these over all series, a Prometheus over those that are judged.
            del judgement[arm]["resets"], judgement[arm]["gaps"], judgement[arm]["torn"]
    assert close(queried, stored), (queried, stored)
