"""`servescope export`: Parquet that pandas reads, and OpenMetrics that a real Prometheus takes as its past."""

from __future__ import annotations

import errno
import math
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="Parquet needs the extra 'export'")
pytest.importorskip("pandas")

import pandas as pd
import pyarrow.parquet as pq

from alerts.recording import recording_rule
from servescope.collector.figures.derive import count_targets, derive_figures
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.collector.targets.target import Target
from servescope.contract.expressions import Level
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import IDENTITY_LABELS, Deployment, Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Sample, Snapshot, format_edge, make_labels
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from servescope.store.exporting import openmetrics, parquet
from servescope.store.exporting.openmetrics import write_openmetrics
from servescope.store.exporting.output import ExportError
from servescope.store.exporting.parquet import write_figures, write_samples
from servescope.store.exporting.selection import Selection
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.prometheus.targets import TARGET_INFO, TARGET_UP
from servescope.store.records import StoreError, TargetStatus
from tests.support import commands, past
from tests.support.fake_targets import FakeTarget, Incident

pytestmark = pytest.mark.slow

CHAT = Deployment("llama-70b", "chat-v2", "v2", "production")
COUNT = 60
_TARGETS = (
    FakeTarget("r0", Identity("llama-70b", "chat-v2", "v2", "production", replica="r0"), 1, (
        Incident(300, 400, missing="spec_decode*"), Incident(500, 501, restart=True),
    )),
    FakeTarget("r1", Identity("llama-70b", "chat-v2", "v2", "production", replica='r"1\\'), 2, (
        Incident(400, 520, answer="500"),
    )),
    FakeTarget("router", Identity("llama-70b", "chat-v2", "v2", "production", replica="x", role="router"), 3),
)  # fmt: skip

_READERS = {target.name: Reader(target.identity) for target in _TARGETS}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quarter of an hour of a deployment, as a collector would have stored it."""
    path = tmp_path_factory.mktemp("store") / "s.db"
    start_ms = past.a_day_ago()
    recents = {target.name: RecentScrapes(300_000, 60_000) for target in _TARGETS}
    with Store(path) as store, store.transaction():
        for target in _TARGETS:
            store.set_target(_status(target))
        for time_ms in range(start_ms, start_ms + COUNT * past.INTERVAL_MS, past.INTERVAL_MS):
            healthy = [_scrape(store, target, recents[target.name], time_ms, time_ms - start_ms) for target in _TARGETS]
            derived = derive_figures(
                [recent.window() for recent in recents.values()], at_ms=time_ms, window_ms=300_000,
                counted=count_targets(CHAT, healthy[:2]),
            )  # fmt: skip
            store.append_figures(CHAT, time_ms, derived.stored)
    return path


def _target(target: FakeTarget) -> Target:
    return Target(f"http://{target.name}/metrics", target.identity)


def _status(target: FakeTarget) -> TargetStatus:
    known = _target(target)
    return TargetStatus(known.target_id, known.url, known.identity, "vllm", "0.13", True, layer="engine")


def _scrape(store: Store, target: FakeTarget, recent: RecentScrapes, time_ms: int, elapsed_ms: int) -> bool:
    elapsed = elapsed_ms / 1000
    # Each target at an instant of its own within the interval, as a collector scrapes them.
    at_ms = time_ms - 1_000 * (1 + _TARGETS.index(target))
    text = None if target.failure(elapsed) else target.exposition(elapsed)
    snapshot = None if text is None else _READERS[target.name].read(text.encode()).snapshot
    recent.append(at_ms, snapshot)
    store.append_scrape(_target(target).target_id, at_ms, snapshot)
    return snapshot is not None


def export(store: Path, out: Path, *arguments: str) -> commands.Done:
    return commands.run("export", "--store", str(store), "--out", str(out), *arguments)


def span(path: Path) -> tuple[int, int]:
    with Store(path, read_only=True) as store:
        held = store.time_range()
        assert held is not None
        return held


def test_samples_are_one_row_each_with_their_labels_in_columns(store: Path, tmp_path: Path) -> None:
    """Every sample of the store is a row: identity and contract labels are columns, the edge a number."""
    assert export(store, tmp_path / "samples.parquet", "--format", "parquet").returncode == 0
    frame = pd.read_parquet(tmp_path / "samples.parquet")
    rows = {}
    for row in frame.to_dict("records"):
        columns = (*IDENTITY_LABELS, *parquet.CONTRACT_LABELS)
        labels = {str(name): row[name] for name in columns if isinstance(row[name], str)}
        if not math.isnan(row["le"]):
            labels["le"] = format_edge(row["le"])
        rows[row["time"].value // 1_000_000, row["metric"], make_labels(labels)] = row["value"]
    start_ms, end_ms = span(store)
    with Store(store, read_only=True) as opened:
        stored = {}
        for target in _TARGETS:
            for time_ms, snapshot in opened.read_scrapes(_target(target).target_id, start_ms - 60_000, end_ms):
                for name, own, value in snapshot.samples() if snapshot else ():
                    stored[time_ms, name, own] = value
    assert rows == stored
    assert frame["time"].dt.tz is not None


def test_a_store_without_figures_is_exported_too(tmp_path: Path) -> None:
    """Before the first evaluation, what was scraped is all there is."""
    path = tmp_path / "store.db"
    with Store(path) as store, store.transaction():
        store.set_target(_status(_TARGETS[0]))
        series = [Sample("cpu_usage", make_labels(_TARGETS[0].identity.labels()), value) for value in (2.5,)]
        for time_ms in (1_000_000, 90_000_000):
            store.append_scrape(_target(_TARGETS[0]).target_id, time_ms, Snapshot.of(series))
        assert (store.time_range(), store.held_range()) == (None, (1_000_000, 90_000_000))
    done = export(path, tmp_path / "past.txt", "--format", "openmetrics")

    # Up, what was scraped, and what the target is, each twice.
    assert "6 samples" in done.stderr, done.stderr
    assert [line.split()[-2:] for line in (tmp_path / "past.txt").read_text().splitlines() if "cpu_usage{" in line] == [
        ["2.5", "1000.000"], ["2.5", "90000.000"],
    ]  # fmt: skip


def test_native_labels_without_a_column_are_in_a_map(store: Path, tmp_path: Path) -> None:
    """What an engine adds of its own stays with the sample."""
    path = tmp_path / "own.db"
    labels = make_labels({**dict(_TARGETS[0].identity.labels()), "engine": "7"})
    with Store(path) as own, own.transaction():
        own.set_target(_status(_TARGETS[0]))
        own.append_scrape(_target(_TARGETS[0]).target_id, 1_000_000, Snapshot.of([Sample("cpu_usage", labels, 2.5)]))
    assert export(path, tmp_path / "own.parquet", "--format", "parquet").returncode == 0
    (row,) = pd.read_parquet(tmp_path / "own.parquet").to_dict("records")
    assert list(row["labels"]) == [("engine", "7")]
    assert row["value"] == 2.5


def test_figures_are_one_row_each(store: Path, tmp_path: Path) -> None:
    """Every value of every figure is a row, the label of a figure that has one in a column."""
    assert export(store, tmp_path / "f.parquet", "--format", "parquet", "--table", "figures").returncode == 0
    frame = pd.read_parquet(tmp_path / "f.parquet")
    start_ms, end_ms = span(store)
    with Store(store, read_only=True) as opened:
        table = opened.read_figures(CHAT, start_ms, end_ms)
    assert len(frame) == sum(int(np.isfinite(values).sum()) for values in table.values.values())
    by_position = frame[(frame["figure"] == "spec_decode_accepted_tokens_per_second") & (frame["position"] == "1")]
    key = figure_key("spec_decode_accepted_tokens_per_second", {"position": "1"})
    assert by_position["value"].tolist() == [value for value in table.values[key].tolist() if value == value]


def test_a_part_can_be_chosen(store: Path, tmp_path: Path) -> None:
    """By deployment, metric and time; what is unknown is refused with what there is."""
    start_ms, _ = span(store)
    since = pd.Timestamp(start_ms + 300_000, unit="ms", tz="UTC")
    arguments = [
        "--format",
        "parquet",
        "--metric",
        "cpu_usage",
        "--deployment",
        "chat-v2",
        "--start",
        since.isoformat(),
    ]
    assert export(store, tmp_path / "p.parquet", *arguments).returncode == 0
    frame = pd.read_parquet(tmp_path / "p.parquet")
    assert set(frame["metric"]) == {"cpu_usage"}
    assert frame["time"].min() >= since
    refused = export(store, tmp_path / "q.parquet", "--format", "parquet", "--metric", "cpu_usages")
    assert refused.returncode == 2
    assert "cpu_usage" in refused.stderr
    refused = export(store, tmp_path / "q.parquet", "--format", "parquet", "--deployment", "chat-v9")
    assert "unknown deployment 'chat-v9'; did you mean 'chat-v2'?" in refused.stderr
    assert not (tmp_path / "q.parquet").exists()


def test_row_groups_are_bounded(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row group, and so no piece held in memory, is larger than it may be."""
    monkeypatch.setattr("servescope.store.exporting.parquet.ROWS", 500)
    start_ms, end_ms = span(store)
    selection = Selection((CHAT,), ("time_to_first_token_seconds",), start_ms - 60_000, end_ms)
    with Store(store, read_only=True) as opened:
        written = write_samples(opened, selection, tmp_path / "g.parquet")
    metadata = pq.ParquetFile(tmp_path / "g.parquet").metadata
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert sum(sizes) == written > 1_000
    assert max(sizes) <= 500


@pytest.mark.parametrize("write", [write_samples, write_openmetrics])
def test_a_store_too_large_to_be_read_at_once_is_exported_in_parts(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., int]
) -> None:
    """The file has the same in it, failed scrapes included."""
    start_ms, end_ms = span(store)
    selection = Selection((CHAT,), ("time_to_first_token_seconds", "cpu_usage"), start_ms - 60_000, end_ms)
    with Store(store, read_only=True) as opened:
        whole = write(opened, selection, tmp_path / "whole")
        monkeypatch.setattr("servescope.store.embedded.MOST_NUMBERS", 1_500)
        with pytest.raises(StoreError, match="too many to be read at once"):
            opened.read_samples(CHAT, list(METRICS), start_ms, end_ms)
        assert write(opened, selection, tmp_path / "parts") == whole > 1_000
    if write is write_openmetrics:
        texts = [sorted((tmp_path / name).read_text().splitlines()) for name in ("whole", "parts")]
    else:
        texts = [sorted(map(repr, pq.read_table(tmp_path / name).to_pylist())) for name in ("whole", "parts")]
    assert texts[0] == texts[1]


FORMS = pytest.mark.parametrize(
    "form",
    [("parquet",), ("parquet", "--table", "figures"), ("openmetrics",)],
    ids=["samples", "figures", "openmetrics"],
)


@pytest.mark.parametrize("write", [write_samples, write_figures, write_openmetrics])
def test_a_failed_export_leaves_the_former_file(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., int]
) -> None:
    """A file that is there is whole: only another whole one replaces it, and nothing is left beside it."""
    out = tmp_path / "out"
    out.write_text("former", encoding="utf-8")
    start_ms, end_ms = span(store)
    names = ("request_rate",) if write is write_figures else ("cpu_usage", "memory_usage")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(openmetrics, "_write_health", fail)
    monkeypatch.setattr(parquet, "_tables_of", fail)
    with (
        Store(store, read_only=True) as opened,
        pytest.raises(ExportError, match=r"out' cannot be written: Input/output error"),
    ):
        write(opened, Selection((CHAT,), names, start_ms, end_ms), out)
    assert out.read_text(encoding="utf-8") == "former"
    assert list(tmp_path.iterdir()) == [out]


@FORMS
def test_an_export_that_does_not_fit_on_the_disk_is_an_error(
    store: Path, tmp_path: Path, form: tuple[str, ...]
) -> None:
    """It names the file and the reason and ends with code 1; the file is not there, not even a part of it."""
    out = tmp_path / "out"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A store that is open elsewhere has its files already; the limit is on what the export writes.
    with Store(store, read_only=True) as opened:
        opened.targets()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
        try:
            done = export(store, out, "--format", *form)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    assert (done.returncode, done.stderr) == (1, f"servescope: error: {str(out)!r} cannot be written: File too large\n")
    assert list(tmp_path.iterdir()) == []


@FORMS
def test_a_place_that_cannot_be_written_is_an_error(store: Path, tmp_path: Path, form: tuple[str, ...]) -> None:
    """A directory, a device and a missing directory are wrong usage; a file system that refuses is an error."""
    (tmp_path / "file").touch()
    for out, problem in (
        (tmp_path, " is a directory, expected the path of a file"),
        (Path("/dev/null"), " is not a regular file, expected the path of a file"),
        (tmp_path / "nowhere" / "out", f": directory {str(tmp_path / 'nowhere')!r} does not exist"),
        (tmp_path / "file" / "out", f": directory {str(tmp_path / 'file')!r} is not a directory"),
    ):
        refused = export(store, out, "--format", *form)
        assert refused.returncode == 2
        assert refused.stderr == f"servescope: error: --out {str(out)!r}{problem}\n"
    # Nobody may create a file there, whatever the permissions of who tries.
    unwritable = Path("/proc/self") / "out"
    refused = export(store, unwritable, "--format", *form)
    assert refused.returncode == 1
    assert re.match(
        rf"servescope: error: --out {str(unwritable)!r}: "
        r"the temporary file 'out\.\d+\.partial' beside it cannot be created: ",
        refused.stderr,
    )
    assert len(refused.stderr.splitlines()) == 1


def test_openmetrics_is_read_by_the_reference_parser(store: Path, tmp_path: Path) -> None:
    """prometheus_client reads the text, finds each family once with its type, and every time stamp."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

    # Not histograms: it takes the buckets of a second point for duplicates of the first one's.
    plain = sorted(name for name in _exported_names(store) if METRICS[name].kind != "histogram")
    chosen = [word for name in plain for word in ("--metric", name)]
    assert export(store, tmp_path / "o.txt", "--format", "openmetrics", *chosen).returncode == 0
    text = (tmp_path / "o.txt").read_text(encoding="utf-8")
    families = list(parse(text))  # type: ignore[no-untyped-call]
    assert len({family.name for family in families}) == len(families)
    assert {family.name: family.type for family in families} == {
        METRICS[name].documented: METRICS[name].kind for name in plain
    } | {TARGET_UP: "gauge", TARGET_INFO: "gauge"}
    infos = next(family for family in families if family.name == TARGET_INFO).samples
    assert len(infos) == COUNT * len(_TARGETS)
    assert {(info.labels["source"], info.labels["version"], info.labels["layer"]) for info in infos} == {
        ("vllm", "0.13", "engine")
    }
    health = next(family for family in families if family.name == TARGET_UP)
    assert len(health.samples) == COUNT * len(_TARGETS)
    assert sum(sample.value == 0 for sample in health.samples) == 8
    assert all(sample.timestamp is not None for family in families for sample in family.samples)


def _exported_names(store: Path) -> set[str]:
    start_ms, end_ms = span(store)
    with Store(store, read_only=True) as opened:
        return {
            name
            for name in METRICS
            if any(window.series for window in opened.read_samples(CHAT, [name], start_ms - 60_000, end_ms))
        }


def test_figures_are_not_written_as_openmetrics(store: Path, tmp_path: Path) -> None:
    """Their names would be taken for metrics; the recording rules derive them there."""
    refused = export(store, tmp_path / "o.txt", "--format", "openmetrics", "--table", "figures")
    assert refused.returncode == 2
    assert "recording rules" in refused.stderr


def test_a_prometheus_derives_the_same_figures_and_gives_the_same_store_back(
    store: Path, tmp_path: Path, prometheus: Path, promtool: Path
) -> None:
    """store → OpenMetrics → promtool → Prometheus: its rules give our figures; importing it gives the store again."""
    assert export(store, tmp_path / "past.txt", "--format", "openmetrics").returncode == 0
    past.make_blocks(tmp_path / "past.txt", promtool, tmp_path / "prometheus")
    start_ms, end_ms = span(store)
    again = tmp_path / "again.db"
    with past.remembering(prometheus, tmp_path / "prometheus") as running, Store(store, read_only=True) as opened:
        table = opened.read_figures(CHAT, start_ms, end_ms)
        compared = 0
        for figure in FIGURES.values():
            # Counters alone: the text has no stale markers, behind which a gauge would end.
            if isinstance(figure.expression, Level):
                continue
            rule = str(recording_rule(figure, "5m")["expr"])
            for track in running.query_range(rule, start_ms=start_ms, end_ms=end_ms, step_ms=past.INTERVAL_MS):
                compared += past.compare_figure(figure, table, track)
        assert compared > 1_000
        history = PrometheusHistory(Prometheus(f"http://127.0.0.1:{running.port}"))
        read = history.read_increments(CHAT, list(METRICS), start_ms, end_ms)
        assert {(each.source, each.versions, each.layer) for each in read} == {("vllm", "0.13", "engine")}
        command = ["import", "--from", f"http://127.0.0.1:{running.port}", "--store", str(again)]
        # The store's figures begin at the first evaluation, its scrapes up to three seconds earlier.
        from servescope.store.prometheus.selectors import format_time

        times = ["--start", format_time(start_ms - 10_000), "--end", format_time(end_ms)]
        done = commands.run(*command, *times)
        assert done.returncode == 0, done.stderr
    assert _content(again, start_ms, end_ms) == _content(store, start_ms, end_ms)


def _content(path: Path, start_ms: int, end_ms: int) -> tuple[object, object]:
    with Store(path, read_only=True) as store:
        scrapes = {
            _target(target).target_id: [
                (time_ms, None if snapshot is None else sorted(snapshot.samples()))
                for time_ms, snapshot in store.read_scrapes(_target(target).target_id, start_ms - 60_000, end_ms)
            ]
            for target in _TARGETS
        }
        table = store.read_figures(CHAT, start_ms, end_ms)
        figures = {
            (key, time_ms): value
            for key, values in table.values.items()
            for time_ms, value in zip(table.times.tolist(), values.tolist(), strict=True)
            if value == value
        }
    return scrapes, {key: pytest.approx(value, rel=1e-12) for key, value in figures.items()}
