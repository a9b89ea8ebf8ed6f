"""Increments per block from a Prometheus: the same as a collector's store has, where both hold the same samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.contract.metrics import REPLICA_START_TIME
from servescope.contract.samples import format_series, make_labels
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from servescope.store.exporting.openmetrics import write_openmetrics
from servescope.store.exporting.selection import Selection
from servescope.store.prometheus.client import Prometheus, Track
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.records import TargetStatus
from tests.support.fake_targets import FakeTarget, Incident
from tests.support.past import INTERVAL_MS, Scraped, a_day_ago, make_blocks, remembering, write_blocks

pytestmark = pytest.mark.slow

CHAT = Deployment("llama-70b", "chat-v2", "v2", "production")
BARE = Identity("llama-70b", "bare", "v2")
SHARED = Identity("llama-70b", "shared", "v1", replica="r0")
MINUTES = 65
TORN_MS = (300_000, 735_000)
"""Into the bare processes' past: at the edge of a block, and within one."""
NAMES = (
    "requests_total", "output_tokens_total", "decode_seconds_total", "preemptions_total", "time_to_first_token_seconds",
    "request_duration_seconds", "input_tokens_per_request", "kv_cache_reused_tokens_total",
    "kv_cache_eligible_tokens_total", "queued_requests", "kv_cache_usage", "concurrent_requests", "gpu_usage",
    "autoscaler_avg_in_flight_tokens", "autoscaler_avg_num_workers",
)  # fmt: skip


def _identity(replica: str, role: str = "aggregated") -> Identity:
    return Identity(**dict(CHAT.labels()), replica=replica, role=role)


def _targets() -> list[FakeTarget]:
    return [
        FakeTarget("calm", _identity("calm"), 1),
        FakeTarget("restarts", _identity("restarts"), 2, (
            Incident(700, restart=True), Incident(2_395, restart=True), Incident(2_410, restart=True),
        )),
        FakeTarget("fails", _identity("fails"), 3, (
            Incident(580, 640, answer="500"), Incident(1_300, 1_330, answer="500"),
            Incident(1_900, 2_900, answer="500"), Incident(3_000, 3_800, answer="500", share=0.1),
        )),
        FakeTarget("late", _identity("late"), 4, known=((1_000, 3_321),)),
        FakeTarget("partial", _identity('par"tial\\'), 5, (
            Incident(900, 960, missing="requests_total"), Incident(2_500, 2_800, missing="time_to_first*"),
            Incident(3_000, 3_600, missing="output_tokens_total", share=0.3), Incident(1_700, 2_300, idle=True),
        )),
        FakeTarget("router", _identity("router", "router"), 6),
        FakeTarget("autoscaler", _identity("autoscaler", "autoscaler"), 7),
    ]  # fmt: skip


@dataclass(frozen=True)
class Past:
    """A store, and a Prometheus that was filled with what it exported and with pages, which are here by replica."""

    store: Path
    history: PrometheusHistory
    start_ms: int
    end_ms: int
    pages: dict[str, list[str]]

    def values(self, replica: str, name: str) -> list[float]:
        """The values of a series on each of a replica's pages."""
        found = (re.findall(rf"^{name}\S* (\S+)", page, re.MULTILINE) for page in self.pages[replica])
        return [float(first) for first, *_ in found]


@pytest.fixture(scope="module")
def past(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """An hour of targets that come, go, fail, restart, and leave metrics out."""
    folder = tmp_path_factory.mktemp("past")
    start_ms = a_day_ago() // BLOCK_MS * BLOCK_MS
    end_ms = start_ms + MINUTES * 60_000
    _fill(folder / "s.db", start_ms, end_ms)
    with Store(folder / "s.db", read_only=True) as store:
        selection = Selection(tuple(store.deployments()), (*NAMES, REPLICA_START_TIME), start_ms, end_ms)
        assert write_openmetrics(store, selection, folder / "past.om") > 65_000
    make_blocks(folder / "past.om", promtool, folder / "prometheus")
    pages: dict[str, list[str]] = {}
    write_blocks([*_bare(start_ms, pages), *_by_two_collectors(start_ms, pages)], promtool, folder / "prometheus")
    with remembering(prometheus, folder / "prometheus") as running:
        history = PrometheusHistory(Prometheus(f"http://127.0.0.1:{running.port}"), clock=lambda: end_ms / 1000 + 60)
        yield Past(folder / "s.db", history, start_ms, end_ms, pages)


def _fill(path: Path, start_ms: int, end_ms: int) -> None:
    targets = _targets()
    readers = {target.name: Reader(target.identity) for target in targets}
    with Store(path) as store:
        with store.transaction():
            for target in targets:
                status = TargetStatus(target.identity.target_id, "http://x", target.identity, "servescope")
                store.set_target(status)
            for time_ms in range(start_ms, end_ms, INTERVAL_MS):
                for number, target in enumerate(targets):
                    elapsed = (time_ms - start_ms) / 1000
                    if not target.is_known(elapsed):
                        continue
                    text = None if target.failure(elapsed) else target.exposition(elapsed)
                    snapshot = None if text is None else readers[target.name].read(text.encode()).snapshot
                    # Each at an instant of its own within the interval, the first at the edges of blocks.
                    store.append_scrape(target.identity.target_id, time_ms + 1_000 * number, snapshot)
        store.close_blocks(end_ms + BLOCK_MS)


def _bare(start_ms: int, pages: dict[str, list[str]]) -> Iterator[Scraped]:
    """Two processes with our instruments and no replica of their own, which a Prometheus scraped itself."""
    fakes = {name: FakeTarget(name, BARE, seed) for seed, name in enumerate(("10.0.0.1:8000", "10.0.0.2:8000"))}
    for time_ms in range(start_ms, start_ms + 30 * 60_000, INTERVAL_MS):
        for instance, fake in fakes.items():
            text = fake.exposition((time_ms - start_ms) / 1000)
            pages.setdefault(instance, []).append(text)
            if time_ms - start_ms in TORN_MS:
                text = _tear(text)
            yield Scraped(time_ms, {"job": "engines", "instance": instance}, text)


def _tear(page: str) -> str:
    """The page with a histogram whose count is ahead of its buckets."""
    return re.sub(r"(request_duration_seconds_count\S* )(\S+)", lambda found: f"{found[1]}{float(found[2]) + 1}", page)


def _by_two_collectors(start_ms: int, pages: dict[str, list[str]]) -> Iterator[Scraped]:
    """A target that a collector exposes in one half of the time, and another in the other half and before."""
    fake = FakeTarget("r0", SHARED, 9)
    for time_ms in range(start_ms, start_ms + 40 * 60_000, INTERVAL_MS):
        text = fake.exposition((time_ms - start_ms) / 1000)
        pages.setdefault("r0", []).append(text)
        labels = format_series("", SHARED.labels())
        info = format_series("servescope_target_info", make_labels({
            **dict(SHARED.labels()), "source": "vllm", "version": "0.32" if time_ms < start_ms + 600_000 else "0.33",
            "layer": "engine",
        }))  # fmt: skip
        page = f"servescope_target_up{labels} 1\n{info} 1\n{text}"
        minutes = (time_ms - start_ms) // 60_000
        if minutes < 20:
            yield Scraped(time_ms, {"job": "servescope", "instance": "a:9900"}, page)
        if minutes >= 10:
            yield Scraped(time_ms, {"job": "servescope", "instance": "b:9900"}, page)


def _from_store(past: Past, start_ms: int, end_ms: int) -> list[TargetIncrements]:
    with Store(past.store, read_only=True) as store:
        return sorted(store.read_increments(CHAT, NAMES, start_ms, end_ms), key=lambda each: each.identity)


def assert_same(theirs: Sequence[TargetIncrements], ours: Sequence[TargetIncrements]) -> int:
    """Compare what both know of the metrics that were asked for; returns how many values."""
    assert [each.identity for each in theirs] == [each.identity for each in ours]
    compared = 0
    for their, our in zip(theirs, ours, strict=True):
        assert their.blocks.tolist() == our.blocks.tolist(), our.target_id
        for name in ("scrapes", "failed"):
            assert getattr(their.tallies, name).tolist() == getattr(our.tallies, name).tolist(), (our.target_id, name)
        for name in ("torn", "resets", "gaps"):
            # A store counts those of all metrics, a Prometheus those of the metrics that are read.
            assert (getattr(their.tallies, name) <= getattr(our.tallies, name)).all(), (our.target_id, name)
        np.testing.assert_array_equal(their.started_ms, our.started_ms)
        for kind, field in (("series", "gains"), ("gauges", "levels"), ("gauges", "above")):
            rows = dict(zip(getattr(our, kind), getattr(our, field), strict=True))
            assert {series for series in rows if np.isfinite(rows[series]).any()} <= set(getattr(their, kind))
            for series, row in zip(getattr(their, kind), getattr(their, field), strict=True):
                np.testing.assert_allclose(row, rows[series], rtol=1e-9, atol=1e-9, err_msg=f"{our.target_id} {series}")
                compared += int(np.isfinite(row).sum())
    return compared


def test_increments_are_those_of_the_store_that_was_exported(past: Past) -> None:
    """Resets, gaps, failed scrapes, late joiners and metrics left out included."""
    theirs = past.history.read_increments(CHAT, NAMES, past.start_ms, past.end_ms)
    ours = _from_store(past, past.start_ms, past.end_ms)
    assert assert_same(theirs, ours) > 5_000
    assert sum(int(each.tallies.resets.sum() > 0) for each in theirs) == 1
    assert sum(int(each.tallies.gaps.sum() > 0) for each in theirs) == 3
    assert sum(int(each.tallies.failed.sum() > 0) for each in theirs) == 1


def test_a_part_of_the_time_has_the_same_increments(past: Past) -> None:
    """From within a block on: the blocks that lie between, from what happened before them as well."""
    start_ms, end_ms = past.start_ms + 2_123_000, past.start_ms + 3_601_000
    theirs = past.history.read_increments(CHAT, NAMES, start_ms, end_ms)
    assert assert_same(theirs, _from_store(past, start_ms, end_ms)) > 1_500
    assert {int(block) for each in theirs for block in each.blocks} == set(
        range(past.start_ms + 2_400_000, past.start_ms + 3_600_000, BLOCK_MS)
    )
    assert past.history.read_increments(CHAT, NAMES, start_ms, start_ms + 400_000) == []


def test_what_is_plain_is_not_read_scrape_by_scrape(past: Past) -> None:
    """Once all outcomes of a target were seen, and nothing happened to it, no counter's samples are read."""
    asked = _count_samples(past.history)
    found = past.history.read_increments(CHAT, NAMES, past.start_ms + 3 * BLOCK_MS, past.end_ms)
    assert len(found) == len(_targets())
    calm = [wanted for wanted in asked if 'replica="calm"' in wanted and "output_tokens_total" in wanted]
    assert not calm
    assert any('replica="restarts"' in wanted and "output_tokens_total" in wanted for wanted in asked)


def test_processes_that_prometheus_scraped_itself_are_named_by_their_instance(past: Past) -> None:
    """Bare series of our instruments; a torn histogram is dropped from its scrape, wherever in a block that is."""
    found = past.history.read_increments(BARE.deployment(), NAMES, past.start_ms, past.start_ms + 1_800_000)
    assert [each.identity.replica for each in found] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert {(each.source, each.layer) for each in found} == {("servescope", "process")}
    tokens = past.values("10.0.0.1:8000", "output_tokens_total")
    (row,) = [row for row, series in enumerate(found[0].series) if series.name == "output_tokens_total"]
    expected = [tokens[last] - tokens[last - 20] for last in range(40, 120, 20)]
    assert found[0].gains[row, 1:-1].tolist() == pytest.approx(expected)
    # The block that lies before the edge with the torn scrape, and the one with the other.
    assert found[0].tallies.torn.tolist() == [1, 0, 1, 0, 0, 0]
    counts = past.values("10.0.0.1:8000", "request_duration_seconds_count")
    (row,) = [row for row, series in enumerate(found[0].series) if series.name == "request_duration_seconds_count"]
    # The scrape at 300 s is torn, so what came between 285 s and 315 s is in the second block.
    assert found[0].gains[row, 1:4].tolist() == pytest.approx(
        [counts[40] - counts[19], counts[60] - counts[40], counts[80] - counts[60]]
    )


def test_a_target_of_two_collectors_counts_once(past: Past) -> None:
    """Each block from one that had it; the latest version is that of the target."""
    (found,) = past.history.read_increments(SHARED.deployment(), NAMES, past.start_ms, past.start_ms + 2_400_000)
    assert found.blocks.tolist() == list(
        range(past.start_ms - BLOCK_MS + BLOCK_MS, past.start_ms + 2_400_000, BLOCK_MS)
    )
    assert (found.source, found.versions, found.layer) == ("vllm", "0.33", "engine")
    tokens = past.values("r0", "output_tokens_total")
    (row,) = [row for row, series in enumerate(found.series) if series.name == "output_tokens_total"]
    expected = [tokens[last] - tokens[last - 20] for last in range(40, 160, 20)]
    assert found.gains[row, 1:-1].tolist() == pytest.approx(expected)


def _count_samples(history: PrometheusHistory) -> list[str]:
    asked: list[str] = []
    client = history._whole
    read = client.read_samples

    def counted(selector: str, *, start_ms: int, end_ms: int) -> list[Track]:
        asked.append(selector)
        return read(selector, start_ms=start_ms, end_ms=end_ms)

    client.read_samples = counted  # type: ignore[method-assign]
    return asked
