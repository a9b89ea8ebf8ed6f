"""What the store costs: bytes a sample, writing and packing a round, reading one figure of a day.

The samples are those of the emulated stack, an hour of it repeated with its counters going on, and, when
`SERVESCOPE_REFERENCE` names the captured pages of real engines, those pages under invented traffic. The ratios are to
the form of one deflated row a scrape, and to the blocks Prometheus' own tools make of the same samples when they are
here.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Sample, Series, Snapshot, format_series
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.exposition.rendering import render
from servescope.sources.page import DEFAULT_LIMITS
from servescope.sources.parse import ParseError, parse_exposition
from servescope.sources.reader import Reader, ReadError
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from servescope.store.writer import WriteBatch
from tests.tools import promtool_binary

_NOW = 1_800_000_000_000
_STEP_MS = 15_000
_HOUR = 240
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY
_DEPLOYMENT = Deployment("llama-3.3-70b", "chat-v2", "v2", environment="production")
_FIGURES = 60
_FAMILY = "spec_decode_num_accepted_tokens_per_pos_total"
_HISTOGRAM = "time_to_first_token_seconds"


Target = tuple[tuple[Series, ...], NDArray[np.float64]]
"""What a target showed: its series, and the values, (series, instants)."""


def run() -> None:
    """Print what the store costs in bytes and in time, beside others."""
    hour = emulate_hour()
    with tempfile.TemporaryDirectory(prefix="servescope-storing-") as folder:
        _print_day(hour, Path(folder))
        _print_week(hour, Path(folder))
        _print_load(hour, Path(folder))
        _print_peers(hour, Path(folder))
        _print_captures(Path(folder))


def emulate_hour() -> list[Target]:
    """An hour of the emulated engines that lived all of it."""
    stack = EmulatedStack(seed=3)
    readers: dict[str, Reader] = {}
    seen: dict[str, list[Snapshot]] = {}
    for step in range(1, _HOUR + 1):
        stack.clock.run_until(step * _STEP_MS / 1000)
        for each in stack.targets():
            if each.path not in readers:
                readers[each.path] = Reader(each.identity, "servescope")
            snapshot, *_ = readers[each.path].read(render(each.instruments), DEFAULT_LIMITS)
            seen.setdefault(each.path, []).append(snapshot)
    return [
        (each[0].series, np.stack([snapshot.values for snapshot in each], axis=1))
        for path, each in seen.items()
        if "/engine-" in path and len(each) == _HOUR and all(one.series is each[0].series for one in each)
    ]


def fleet(hour: Sequence[Target], replicas: int, series: int | None = None) -> list[Target]:
    """As many replicas, each with an emulated one's hour and its own name."""
    made = []
    for number in range(replicas):
        shown, values = hour[number % len(hour)]
        named = tuple(
            Series(name, tuple((label, f"engine-{number}" if label == "replica" else value) for label, value in labels))
            for name, labels in shown[:series]
        )
        made.append((named, values[:series]))
    return made


def column(values: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    """The values of an instant when the hour is repeated, counters going on from where they were."""
    cycle, within = divmod(step, values.shape[1])
    return np.asarray(values[:, within] + cycle * growth(values))


def growth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each series gains in the hour, 0 for one that falls."""
    gained: NDArray[np.float64] = np.where((np.diff(values, axis=1) >= 0).all(axis=1), values[:, -1], 0.0)
    return gained


def status(number: int) -> TargetStatus:
    """The status of one replica."""
    identity = Identity(
        _DEPLOYMENT.model_name, _DEPLOYMENT.deployment_id, _DEPLOYMENT.inference_stack, _DEPLOYMENT.environment, "",
        f"engine-{number}",
    )  # fmt: skip
    return TargetStatus(
        f"chat-v2/engine-{number}", "http://x/metrics", identity, "servescope", "", True, _NOW, _NOW, 0.01, 203, None
    )


def write(store: Store, targets: Sequence[Target], steps: int) -> tuple[float, float]:
    """Write rounds as the collector does, one transaction, then a little packing: the seconds of either."""
    appending = packing = 0.0
    with store.transaction():
        for number in range(len(targets)):
            store.set_target(status(number))
    growing = [growth(values) for _, values in targets]
    for step in range(steps):
        cycle, within = divmod(step, _HOUR)
        snapshots = [
            Snapshot(series, values[:, within] + cycle * each)
            for (series, values), each in zip(targets, growing, strict=True)
        ]
        started = time.perf_counter()
        with store.transaction():
            for number, snapshot in enumerate(snapshots):
                jitter = (step * 7 + number) % 5
                store.append_scrape(f"chat-v2/engine-{number}", _NOW + step * _STEP_MS + 10 * number + jitter, snapshot)
        appending += time.perf_counter() - started
        started = time.perf_counter()
        while store.pack_due():
            pass
        packing += time.perf_counter() - started
    return appending, packing


def write_figures(store: Store, steps: int) -> None:
    """Figures of a deployment: a third whole numbers, the others ratios that wander."""
    rng = np.random.default_rng(6)
    ratios = np.cumsum(rng.normal(0, 0.01, (2 * _FIGURES // 3, steps)), axis=1)
    whole = np.cumsum(rng.integers(-1, 2, (_FIGURES // 3, steps)), axis=1)
    table = np.vstack([ratios, whole])
    for start in range(0, steps, _HOUR):
        with store.transaction():
            for step in range(start, min(start + _HOUR, steps)):
                values = {f"figure_{number:02}": float(value) for number, value in enumerate(table[:, step])}
                store.append_figures(_DEPLOYMENT, _NOW + step * _STEP_MS, values)
        while store.pack_due():
            pass


def file_bytes(store: Store) -> int:
    """The size of the store's file with everything in it."""
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store.path.stat().st_size


def _figure_bytes(store: Store) -> int:
    """The bytes of all figures: packed, and as they wait for it."""
    packed = "SELECT sum(length(body)) FROM chunks JOIN runs ON runs.id = chunks.id >> 16 WHERE kind = 1"
    recent = "SELECT ifnull(sum(length(body)), 0) FROM recent_figures"
    return sum(int(store._connection.execute(query).fetchone()[0]) for query in (packed, recent))


def _print_day(hour: Sequence[Target], folder: Path) -> None:
    targets = fleet(hour, 20)
    with Store(folder / "day.db") as store:
        appending, packing = write(store, targets, _DAY)
        samples = sum(len(series) for series, _ in targets) * _DAY
        size = file_bytes(store)
        print(f"a day of 20 replicas × {len(targets[0][0])} series at 15 s: {samples / 1e6:.1f} M samples")
        print(f"  {size / samples:.2f} bytes a sample, the whole file of {size / 1e6:.1f} MB")
        print(f"  writing a round of 20: {appending / _DAY * 1e3:.2f} ms, packing {packing / _DAY * 1e3:.2f} ms")
        write_figures(store, _DAY)
        figures = _figure_bytes(store)
        print(
            f"  {_FIGURES} figures of the deployment: {figures / 1e6:.2f} MB, "
            f"{figures / _FIGURES / _DAY:.2f} bytes each"
        )
    end_ms = _NOW + _DAY * _STEP_MS
    with Store(folder / "day.db", read_only=True) as reader:
        questions: dict[str, Callable[[], object]] = {
            "one figure": lambda: reader.read_figures(_DEPLOYMENT, _NOW, end_ms, names=["figure_07"]),
            "all figures, 240 points": lambda: reader.read_figures(_DEPLOYMENT, _NOW, end_ms, max_points=240),
            f"{_FAMILY}, every replica": lambda: reader.read_samples(_DEPLOYMENT, [_FAMILY], _NOW, end_ms),
            f"{_HISTOGRAM}, every replica": lambda: reader.read_samples(_DEPLOYMENT, [_HISTOGRAM], _NOW, end_ms),
        }
        for name, question in questions.items():
            first, best = _timed(question), min(_timed(question) for _ in range(5))
            print(f"  read over the day: {best * 1e3:6.1f} ms (at first {first * 1e3:.1f})  {name}")
    (folder / "day.db").unlink()


def _print_week(hour: Sequence[Target], folder: Path, hours: int = 5) -> None:
    targets = fleet(hour, 200, 150)
    with Store(folder / "week.db") as store:
        write(store, targets, hours * _HOUR)
        size = file_bytes(store)
    with Store(folder / "week.db", read_only=True) as reader:
        recent, pages = (
            reader._connection.execute(query).fetchone()[0]
            for query in ("SELECT sum(length(body)) FROM recent_scrapes", "PRAGMA freelist_count")
        )
    packed = size - recent - pages * 16_384
    samples = 200 * 150 * hours * _HOUR
    week = 200 * 150 * _WEEK
    open_samples = recent / 8
    per_packed = packed / (samples - open_samples)
    print(f"200 replicas × 150 series: {hours} h are {samples / 1e6:.0f} M samples in {size / 1e6:.0f} MB")
    print(f"  of which {recent / 1e6:.0f} MB wait to be packed, and {per_packed:.2f} bytes a sample are packed")
    print(
        f"  7 days: {week / 1e6:.0f} M samples × {per_packed:.2f} + {recent / 1e6:.0f} MB = "
        f"{(week * per_packed + recent) / 1e9:.2f} GB (target 3)"
    )
    (folder / "week.db").unlink()


def _print_load(hour: Sequence[Target], folder: Path) -> None:
    """1000 targets of 400 series at 15 s: what each scrape costs when it is a transaction of its own."""
    series, values = hour[0]
    twice = (*series, *(Series(f"also_{name}", labels) for name, labels in series))[:400]
    shown = np.vstack([values, values])[:400]
    growing = growth(shown)
    appending, packing, rounds = 0.0, 0.0, 4 * _HOUR
    with Store(folder / "load.db") as store:
        for number in range(8):
            store.set_target(status(number))
        for step in range(rounds):
            for number in range(8):
                snapshot = Snapshot(twice, shown[:, step % _HOUR] + step // _HOUR * growing)
                round_ = WriteBatch(scrapes=[(f"chat-v2/engine-{number}", _NOW + step * _STEP_MS, snapshot)])
                started = time.process_time()
                with store.transaction():
                    round_.write(store)
                appending += time.process_time() - started
            started = time.process_time()
            while store.pack_due():
                pass
            packing += time.process_time() - started
        started = time.process_time()
        with store.transaction():
            WriteBatch(targets=[status(number) for number in range(1000)]).write(store)
        first = time.process_time() - started
        started = time.process_time()
        with store.transaction():
            WriteBatch(
                targets=[status(number) for number in range(1000)],
                listed=frozenset(status(number).target_id for number in range(1000)),
            ).write(store)
        statuses = time.process_time() - started
    scrape = (appending + packing) / rounds / 8
    share = scrape * 1000 / 15 + statuses / 15
    print("1000 targets × 400 series at 15 s, each scrape its own transaction:")
    print(f"  append {appending / rounds / 8 * 1e6:.0f} µs, packing {packing / rounds / 8 * 1e6:.0f} µs a scrape")
    print(f"  statuses of 1000 targets {statuses * 1e3:.1f} ms an evaluation (at first {first * 1e3:.1f})")
    print(f"  of one core: {100 * share:.1f} % (target 8)")
    (folder / "load.db").unlink()


def _print_peers(hour: Sequence[Target], folder: Path) -> None:
    targets = fleet(hour, 4)
    steps = 6 * _HOUR
    rows = sum(
        len(one_row_a_scrape(column(values, step))) + 20 for _, values in targets for step in range(0, steps, 24)
    )
    samples = sum(len(series) for series, _ in targets)
    former = rows / (samples * len(range(0, steps, 24)))
    with Store(folder / "peers.db") as store:
        write(store, targets, steps)
        while store.pack_idle(_NOW * 2):
            pass
        store._connection.execute("VACUUM")
        whole_file = file_bytes(store) / (samples * steps)
        (bodies,) = store._connection.execute("SELECT sum(length(body)) FROM chunks").fetchone()
        own = bodies / (samples * steps)
    print(
        f"6 h of {len(targets)} replicas, all packed: {own:.2f} bytes a sample, {whole_file:.2f} with all of the file"
    )
    print(f"  one deflated row a scrape: {former:.2f}, {former / own:.1f} times as much")
    promtool = promtool_binary()
    if promtool is None:
        print("  no promtool found: Prometheus' blocks are left out; python -m tests.tools gets one")
    else:
        chunks, whole = _prometheus_bytes(promtool, targets, steps, folder)
        print(
            f"  Prometheus' blocks: {chunks / samples / steps:.2f} their chunks, "
            f"{whole / samples / steps:.2f} with the index"
        )
    (folder / "peers.db").unlink()


def one_row_a_scrape(values: NDArray[np.float64]) -> bytes:
    """A scrape as a row of its own: neighbours XORed, bytes grouped by place, deflated."""
    bits = values.view("<u8").copy()
    bits[1:] ^= values.view("<u8")[:-1]
    return zlib.compress(bits.view(np.uint8).reshape(len(values), 8).T.tobytes(), 6)


def _prometheus_bytes(promtool: Path, targets: Sequence[Target], steps: int, folder: Path) -> tuple[int, int]:
    """The bytes of the chunks, and of all, in the blocks that promtool makes of the same samples."""
    # Prometheus' own rhythm: blocks begin at multiples of two hours.
    start = _NOW // 7_200_000 * 7_200
    with (folder / "samples.om").open("w") as text:
        for series, values in targets:
            columns = np.stack([column(values, step) for step in range(steps)], axis=1)
            for (name, labels), row in zip(series, columns.tolist(), strict=True):
                shown = format_series(name, labels)
                text.writelines(f"{shown} {value!r} {start + 15 * step}\n" for step, value in enumerate(row))
        text.write("# EOF\n")
    blocks = folder / "blocks"
    command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(folder / "samples.om"), str(blocks)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    files = [path for path in blocks.rglob("*") if path.is_file()]
    return (
        sum(path.stat().st_size for path in files if path.parent.name == "chunks"),
        sum(path.stat().st_size for path in files),
    )


def _print_captures(folder: Path) -> None:
    captures = Path(os.environ.get("SERVESCOPE_REFERENCE", "")) / "captures"
    if "SERVESCOPE_REFERENCE" not in os.environ or not captures.is_dir():
        print("captured pages are left out: SERVESCOPE_REFERENCE does not name them")
        return
    hours, path = 24, folder / "captures.db"
    print(f"captured pages under invented traffic, {hours} h of one replica each, all in one store:")
    counts: dict[int, tuple[str, int]] = {}
    with Store(path) as store:
        for number, (name, snapshot) in enumerate(_read_captures(captures)):
            store.set_target(status(number))
            for hour in range(hours):
                with store.transaction():
                    for step, values in enumerate(traffic(snapshot, _HOUR, seed=hour), hour * _HOUR):
                        shown = Snapshot(snapshot.series, values)
                        store.append_scrape(f"chat-v2/engine-{number}", _NOW + step * _STEP_MS, shown)
                while store.pack_due():
                    pass
                snapshot = shown
            counts[store._owners.known_target(f"chat-v2/engine-{number}")] = name, len(snapshot.series) * hours * _HOUR
        samples = sum(count for _, count in counts.values())
        print(f"  {file_bytes(store) / samples:.2f} bytes a sample, the whole file; packed, per page:")
        for owner, (name, count) in counts.items():
            chunks = "SELECT sum(length(body)) FROM chunks JOIN runs ON runs.id = chunks.id >> 16 WHERE owner = ?"
            rows = "SELECT sum(count) FROM runs WHERE owner = ?"
            size, packed = (store._connection.execute(query, (owner,)).fetchone()[0] for query in (chunks, rows))
            share = packed / (hours * _HOUR)
            print(f"  {size / (count * share):5.2f}  {count // hours // _HOUR:4} series  {name}")


def _read_captures(captures: Path) -> Iterator[tuple[str, Snapshot]]:
    """Each page translated, or, where no source map reads it, with its own series."""
    for capture in sorted(captures.glob("*.txt")):
        identity = Identity("m", "d", "s", replica="engine-0")
        body = capture.read_bytes()
        try:
            snapshot, *_ = Reader(identity).read(body, DEFAULT_LIMITS)
            yield capture.stem, snapshot
        except ReadError:
            try:
                native = parse_exposition(body).samples
            except ParseError:
                continue
            finite = {(each.name, each.labels): each for each in native if math.isfinite(each.value)}
            yield f"{capture.stem}, native series", Snapshot.of([Sample(*each) for each in finite.values()])


def traffic(snapshot: Snapshot, steps: int, *, seed: int) -> Iterator[NDArray[np.float64]]:
    """A page's values scrape by scrape, while some requests a second are served.

    Requests fall into the buckets of a histogram log-normally around its middle, its sum grows by what they took, other
    counters by whole numbers or, in seconds, by fractions; gauges that are whole wander by ones, the others freely.
    """
    rng = np.random.default_rng(seed)
    values = snapshot.values.copy()
    histograms: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, list[int]]] = {}
    for place, (name, labels) in enumerate(snapshot.series):
        stem, _, ending = name.rpartition("_")
        if ending in ("bucket", "sum", "count"):
            own = tuple(label for label in labels if label[0] != "le")
            histograms.setdefault((stem, own), {"bucket": [], "sum": [], "count": []})[ending].append(place)
    whole = {key: parts for key, parts in histograms.items() if parts["bucket"] and parts["count"]}
    taken = {place for parts in whole.values() for places in parts.values() for place in places}
    edges = {
        key: np.array([float(dict(snapshot.series[place].labels)["le"]) for place in parts["bucket"]])
        for key, parts in whole.items()
    }
    rest = np.array([place for place in range(len(values)) if place not in taken], dtype=int)
    is_counter = np.array([snapshot.series[place].name.endswith("_total") for place in rest], dtype=bool)
    is_whole = np.array([values[place] == np.rint(values[place]) for place in rest], dtype=bool)
    for _ in range(steps):
        requests = rng.poisson(40)
        for key, parts in whole.items():
            finite = edges[key][np.isfinite(edges[key]) & (edges[key] > 0)]
            middle = math.sqrt(finite[0] * finite[-1]) if len(finite) else 1.0
            drawn = middle * np.exp(rng.normal(0, 0.8, requests))
            for place, edge in zip(parts["bucket"], edges[key], strict=True):
                values[place] += np.count_nonzero(drawn <= edge)
            values[parts["count"]] += requests
            values[parts["sum"]] += drawn.sum()
        steps_of_rest = np.where(
            is_counter,
            np.where(is_whole, rng.poisson(requests * 3, len(rest)), rng.random(len(rest)) * requests),
            np.where(is_whole, rng.integers(-1, 2, len(rest)), rng.normal(0, 0.01, len(rest))),
        )
        values[rest] += steps_of_rest
        yield values.copy()


def _timed(question: Callable[[], object]) -> float:
    started = time.perf_counter()
    question()
    return time.perf_counter() - started


if __name__ == "__main__":
    run()
