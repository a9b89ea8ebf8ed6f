"""A past for a real Prometheus: scrapes of long ago, made into its blocks by promtool."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from servescope.contract.figures import figure_key
from servescope.contract.samples import Labels, format_series, format_value, make_labels
from servescope.contract.types import Figure
from servescope.sources.cache import SeriesCache
from servescope.sources.page import LearnedPage
from servescope.sources.parse import learn_page
from servescope.store.records import FigureTable
from tests.support.prometheus import Prometheus, Range, running
from tests.support.promtool import run

INTERVAL_MS = 15_000
# Each scrape of a target has the lines of the one before.
_SERIES = SeriesCache()
_PAGES: dict[Labels, tuple[LearnedPage, list[str]]] = {}


@dataclass(frozen=True, slots=True)
class Scraped:
    """One scrape of one target: the labels Prometheus attached, and the text; None where it failed."""

    time_ms: int
    attached: Mapping[str, str]
    text: str | None


def a_day_ago() -> int:
    """An instant of yesterday on a full hour, less ten minutes: what begins there crosses a stretch of an import."""
    return (time.time_ns() // 3_600_000_000_000 - 24) * 3_600_000 - 600_000


def write_blocks(scrapes: Sequence[Scraped], promtool: Path, folder: Path) -> None:
    """Write the scrapes into a Prometheus' data folder, with the `up` of each."""
    text = folder / "past.txt"
    folder.mkdir(parents=True, exist_ok=True)
    with text.open("w", encoding="utf-8") as file:
        for scrape in sorted(scrapes, key=lambda scrape: scrape.time_ms):
            file.writelines(f"{line} {scrape.time_ms / 1000:.3f}\n" for line in _lines(scrape))
        file.write("# EOF\n")
    make_blocks(text, promtool, folder)


def make_blocks(text: Path, promtool: Path, folder: Path) -> None:
    """Have promtool make blocks of an OpenMetrics text in a Prometheus' data folder."""
    folder.mkdir(parents=True, exist_ok=True)
    done = run(promtool, ["tsdb", "create-blocks-from", "openmetrics", text, folder / "data"], folder)
    assert done.returncode == 0, done.stdout


def _lines(scrape: Scraped) -> Iterator[str]:
    attached = make_labels(scrape.attached)
    yield f"{format_series('up', attached)} {0 if scrape.text is None else 1}"
    body = (scrape.text or "").encode()
    page, stored = _PAGES.get(attached, (None, []))
    values = None if page is None else page.read(body)
    if values is None:
        page, values = learn_page(body, _SERIES)
        stored = [_stored_series(name, labels, attached) for name, labels in page.series]
        _PAGES[attached] = page, stored
    for series, value in zip(stored, values.tolist(), strict=True):
        if math.isfinite(value):
            yield f"{series} {format_value(value)}"


@cache
def _stored_series(name: str, own: Labels, attached: Labels) -> str:
    """A series as a Prometheus stores it: labels that it attached have precedence."""
    taken = dict(attached)
    renamed = {f"exported_{label}" if label in taken else label: text for label, text in own}
    return format_series(name, make_labels({**renamed, **taken}))


def in_milliseconds(path: Path) -> Iterator[str]:
    """The samples of an OpenMetrics text as a VictoriaMetrics imports them."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            sample, _, seconds = line.rpartition(" ")
            yield f"{sample} {round(float(seconds) * 1000)}\n"


@contextmanager
def remembering(binary: Path, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes nothing and holds what is in the folder's data."""
    with running(binary, folder, {"scrape_configs": []}, options=["--storage.tsdb.retention.time=10y"]) as prometheus:
        yield prometheus


def compare_figure(figure: Figure, table: FigureTable, track: Range) -> int:
    """A figure of a store has each value of a track that a Prometheus computed; how many those are."""
    extra = {name: value for name, value in track.labels if name in figure.by}
    ours = dict(zip(table.times.tolist(), table.values[figure_key(figure.name, extra)].tolist(), strict=True))
    for time_ms, value in zip(track.times, track.values, strict=True):
        assert math.isclose(ours[time_ms], value, rel_tol=1e-9, abs_tol=1e-12), (figure.name, time_ms)
    return len(track.times)
