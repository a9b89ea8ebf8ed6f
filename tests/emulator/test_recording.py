"""Recordings: what an emulated stack did, in a store, by virtual clock."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from servescope import cli
from servescope.emulator.scenario.recording import START_MS, record
from servescope.emulator.scenario.scenario import Scenario, make_scenario
from servescope.errors import UsageError
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.store.embedded import Store

SMALL = """
seed = 4
[traffic]
requests_per_second = 1
output_tokens = 30
output_range = [8, 60]
burst_factor = 1
[[deployments]]
model_name = "m"
deployment_id = "old"
inference_stack = "v1"
[deployments.autoscaling]
min_replica = 2
max_replica = 2
[[deployments]]
model_name = "m"
deployment_id = "new"
share = 0
start = "10m"
[deployments.autoscaling]
max_replica = 1
[[shares]]
deployment = "new"
share = 0.5
start = "12m"
follow = "1m"
[[faults]]
kind = "target-unreachable"
deployment = "old"
replica = "engine-1"
start = "16m"
end = "18m"
[[faults]]
kind = "counters-reset"
intensity = 150
deployment = "old"
replica = "engine-0"
start = "22m"
end = "23m"
"""

HOURS = 0.5
METRICS = ("requests_total", "requests_started_total", "time_to_first_token_seconds", "queued_requests")


def small() -> Scenario:
    return make_scenario(tomllib.loads(SMALL), origin="s.toml", directory=Path())


def read(path: Path, deployment: str) -> dict[str, TargetIncrements]:
    """The increments of a deployment's engines, by replica."""
    with Store(path, read_only=True) as store:
        found = next(each for each in store.deployments() if each.deployment_id == deployment)
        increments = store.read_increments(found, METRICS, START_MS, START_MS + round(HOURS * 3_600_000))
    return {each.identity.replica: each for each in increments if each.identity.role == "aggregated"}


def read_events(path: Path) -> list[tuple[int, str, str]]:
    """The minute, kind and text of every event."""
    with Store(path, read_only=True) as store:
        events = store.read_events(START_MS, START_MS + round(HOURS * 3_600_000))
    return [((each.time_ms - START_MS) // 60_000, each.kind, each.text) for each in events]


def gained(increments: TargetIncrements, name: str) -> NDArray[np.float64]:
    rows = [row for row, series in enumerate(increments.series) if series.name == name]
    added: NDArray[np.float64] = np.nansum(increments.gains[rows], axis=0)
    return added


@pytest.mark.slow
def test_recording_holds_what_the_stack_did(tmp_path: Path) -> None:
    """Every block of every target, with gains that add up to its requests, and what happened to its scrapes."""
    recording = record(small(), tmp_path / "r.db", hours=HOURS)
    old, new = (read(tmp_path / "r.db", name) for name in ("old", "new"))
    blocks = [START_MS + number * BLOCK_MS for number in range(6)]
    started = sum(gained(each, "requests_started_total").sum() for each in (*old.values(), *new.values()))

    assert recording.end_ms == START_MS + 1_800_000
    assert recording.requests == pytest.approx(1800, rel=0.25)
    assert old.keys() == {"engine-0", "engine-1"}
    assert new.keys() == {"engine-0"}
    assert old["engine-1"].blocks.tolist() == blocks
    assert new["engine-0"].blocks.tolist() == blocks[2:]
    # What came between the last scrape and a reset, and before the first scrape of a new replica, nobody saw.
    assert recording.requests - 40 <= started <= recording.requests
    assert old["engine-1"].tallies.failed.tolist() == [0, 0, 0, 4, 0, 0]
    assert (old["engine-0"].tallies.resets > 0).tolist() == [False] * 4 + [True, False]
    last = [gained(each, "requests_started_total")[-1] for each in (old["engine-0"], old["engine-1"], new["engine-0"])]
    assert last[2] / sum(last) == pytest.approx(0.5, abs=0.12)
    assert [event for event in read_events(tmp_path / "r.db") if event[0] > 0 and "router" not in event[2]] == [
        (10, "target_appeared", "new/autoscaler-0 appeared"),
        (11, "target_appeared", "new/engine-0 appeared"),
        (12, "traffic_split", "old is to get 0.5 of the requests"),
        (12, "traffic_split", "new is to get 0.5 of the requests"),
    ]
    assert old["engine-1"].started_ms.tolist() == [START_MS] * 6
    assert new["engine-0"].started_ms[-1] == START_MS + 600_000


@pytest.mark.slow
def test_one_seed_gives_one_recording(tmp_path: Path) -> None:
    """The same seed the same increments, another one others; a file that exists is not overwritten."""
    for name, seed in (("a", 4), ("b", None), ("c", 5)):
        record(small(), tmp_path / name, hours=0.25, seed=seed)
    first, again, other = (read(tmp_path / name, "old")["engine-0"].gains for name in "abc")

    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    with pytest.raises(UsageError, match="exists, expected a path for a new store"):
        record(small(), tmp_path / "a", hours=0.25)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hours": 0}, "hours are 0, expected a number above 0"),
        ({"start_ms": 7}, "start is 7 ms, expected a multiple of 300000"),
        ({"scrape_seconds": 7.0}, "scrape interval is 7.0 s, expected a divisor of 300"),
    ],
)
def test_times_that_cannot_be_are_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    """With the value and what was expected, before there is a file."""
    with pytest.raises(UsageError, match=message):
        record(small(), tmp_path / "r.db", **{"hours": 1, **given})
    assert not (tmp_path / "r.db").exists()


@pytest.mark.slow
def test_command_records_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As another engine that its map reads, and says what it recorded; what has no meaning beside it is refused."""
    (tmp_path / "s.toml").write_text(SMALL)
    words = ["emulate", "--scenario", str(tmp_path / "s.toml"), "--record", str(tmp_path / "r.db")]

    assert cli.main([*words, "--hours", "0.1", "--speed-up", "5"]) == 2
    assert "--speed-up is given beside --record" in capsys.readouterr().err
    assert cli.main(["emulate", "--record", str(tmp_path / "r.db")]) == 2
    assert "--record goes with --scenario" in capsys.readouterr().err
    assert cli.main(["emulate", "--hours", "2"]) == 2
    assert "--hours has no meaning without --record" in capsys.readouterr().err
    assert cli.main([*words, "--metrics", "sglang", "--hours", "0.1"]) == 0
    with Store(tmp_path / "r.db", read_only=True) as store:
        assert {(each.source, each.identity.role) for each in store.targets()} == {("sglang", "aggregated")}
    printed = capsys.readouterr()
    assert "from 2026-01-01T00:00:00Z to 2026-01-01T00:06:00Z" in printed.out
    progress = printed.err.splitlines()
    assert len(progress) == 20
    assert progress[4].startswith("servescope: 0.025 h of 0.1 h are recorded, about ")
