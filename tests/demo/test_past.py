"""The demo's past: blocks of days that are made of what a few minutes of the emulation were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from servescope.demo.past import PastLoad, write_past
from servescope.emulator.deployment.stack import V1, V2, EmulatedStack
from servescope.emulator.faults.faults import Faults
from servescope.emulator.scenario.recording import START_MS, StackRecorder
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.store.embedded import Store

pytestmark = pytest.mark.slow

MINUTES = 5
BLOCKS = START_MS + BLOCK_MS * np.arange(-24, 0)
TWICE = np.repeat([1.0, 2.0], 12)
LATE = np.repeat([0.0, 1.0], 12)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two hours of the past of v1, whose load doubles, and of v2, which comes after the first."""
    path = tmp_path_factory.mktemp("past") / "past.db"
    stack = EmulatedStack(epoch=START_MS / 1000, v1=V1, v2=V2)
    with Store.begin(path) as store:
        recorder = StackRecorder(stack, Faults(stack), store, start_ms=START_MS, interval_ms=60_000)
        recorder.run_until(MINUTES * 60)
        emulated = recorder.windows(START_MS + 120_000)
        recorder.finish()
        loads = {
            "chat-v1": PastLoad(TWICE, TWICE, 0.1, START_MS - 86_400_000),
            "chat-v2": PastLoad(LATE, LATE, 0.0, int(BLOCKS[12])),
        }
        write_past(store, emulated, loads, BLOCKS, seed=1)
    return path


def read(path: Path, name: str) -> list[TargetIncrements]:
    with Store(path, read_only=True) as store:
        deployment = next(each for each in store.deployments() if each.deployment_id == name)
        names = ("requests_total", "time_to_first_token_seconds", "input_tokens_per_request", "concurrent_requests")
        found = store.read_increments(deployment, names, int(BLOCKS[0]), START_MS)
    return [each for each in found if each.identity.role == "aggregated"]


def gained(targets: list[TargetIncrements], name: str, **labels: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rows = [
        each.gains[row]
        for each in targets
        for row, series in enumerate(each.series)
        if series.name == name and labels.items() <= dict(series.labels).items()
    ]
    total: np.ndarray[tuple[int], np.dtype[np.float64]] = np.sum(rows, axis=0)
    return total


def test_blocks_have_the_load_of_their_time(past: Path) -> None:
    """Twice as many requests where the load is twice as high, and none before a deployment was there."""
    old, new = read(past, "chat-v1"), read(past, "chat-v2")
    requests = gained(old, "requests_total")

    assert len(old) == 3
    assert requests[12:].mean() == pytest.approx(2 * requests[:12].mean(), rel=0.25)
    assert old[0].blocks.tolist() == BLOCKS.tolist()
    assert new[0].blocks.tolist() == BLOCKS[12:].tolist()
    assert new[0].started_ms[0] == BLOCKS[12]


def test_what_was_rare_is_drawn_anew(past: Path) -> None:
    """Errors have the rate that is given; prompts are of the same sizes in both deployments."""
    old, new = read(past, "chat-v1"), read(past, "chat-v2")
    errors = gained(old, "requests_total", outcome="error").sum()
    means = [
        gained(each, "input_tokens_per_request_sum").sum() / gained(each, "input_tokens_per_request_count").sum()
        for each in (old, new)
    ]

    assert errors / gained(old, "requests_total").sum() == pytest.approx(0.1, rel=0.15)
    assert gained(new, "requests_total", outcome="error").sum() == 0
    assert means[0] == pytest.approx(means[1], rel=0.05)


def test_histograms_fit_together(past: Path) -> None:
    """Buckets do not fall, and the last one is the count."""
    (target, *_) = read(past, "chat-v1")
    for histogram in ("time_to_first_token_seconds", "input_tokens_per_request"):
        buckets = [
            target.gains[row]
            for row, series in sorted(
                enumerate(target.series), key=lambda each: float(dict(each[1].labels).get("le", "nan"))
            )
            if series.name == f"{histogram}_bucket"
        ]
        assert (np.diff(buckets, axis=0) >= 0).all()
        np.testing.assert_array_equal(buckets[-1], gained([target], f"{histogram}_count"))


def test_figures_are_those_of_the_increments(past: Path) -> None:
    """The rate of requests at the end of a block is what its targets gained in it; figures by label are there, too."""
    old = read(past, "chat-v1")
    with Store(past, read_only=True) as store:
        deployment = next(each for each in store.deployments() if each.deployment_id == "chat-v1")
        table = store.read_figures(deployment, int(BLOCKS[0]), START_MS)
        sums = list(store.read_sums(until_ms=START_MS))

    np.testing.assert_allclose(table.values["request_rate"], gained(old, "requests_total") / 300)
    assert np.nanmean(table.values["time_to_first_token_p50"]) > 0
    assert len(set(table.values['replica_count_by_status{status="active"}'].tolist())) == 1
    assert len(sums) == len(BLOCKS)
