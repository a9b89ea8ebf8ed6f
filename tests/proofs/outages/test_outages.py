"""What the proof counts as wrong, without the systems: canned answers in place of a query API."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from servescope.contract.samples import Labels, make_labels
from servescope.errors import ServescopeError
from tests.proofs.outages.__main__ import PAGE, Killed, Result, markers, write
from tests.proofs.outages.figures import Compared, compare
from tests.proofs.outages.systems import SYSTEMS, Running, Scale
from tests.support.prometheus import Prometheus, Range

SCALE = Scale(targets=10, replicas=2, interval_seconds=30, times=2)
RATE, RATIO = "deployment:requests:rate5m", "deployment:speculation_rate:ratio_rate5m"
TRUTH = {RATE: 10.0, RATIO: 0.8}


class _Canned(Prometheus):
    """What was recorded, by name; the ages of two targets' scrapes beside it."""

    def __init__(self, recorded: dict[str, list[float]], ages: list[float], covered: list[float]) -> None:
        super().__init__(0)
        self._recorded, self._ages, self._covered = recorded, ages, covered

    def read_samples(self, selector: str, *, end_ms: int, range_ms: int) -> list[Range]:
        del end_ms, range_ms
        if selector.startswith("servescope_target_up"):
            return [_series("servescope_target_up", [1.0] * len(self._ages), replica=name) for name in "ab"]
        if selector.startswith("servescope_target_scrape_age_seconds"):
            fresh = [5.0] * len(self._ages)
            return [_series("age", ages, replica=name) for name, ages in (("a", self._ages), ("b", fresh))]
        if selector.startswith("servescope_window_coverage_ratio"):
            return [_series("covered", self._covered)]
        return [_series(name, values) for name, values in self._recorded.items()]


def _labels(name: str, **more: str) -> Labels:
    return make_labels({"__name__": name, "deployment_id": "chat-5", **more})


def _series(name: str, values: list[float], **more: str) -> Range:
    return Range(_labels(name, **more), [300_000 * (number + 1) for number in range(len(values))], values)


def compared(recorded: dict[str, list[float]], ages: list[float], covered: float = 1.0) -> Compared:
    """What two recorded figures are beside the truth, while one of two targets was scraped so many seconds ago.

    `covered` is the share of their windows that there is.
    """
    running = Running(cast("Any", None), _Canned(recorded, ages, [covered] * len(ages)))
    truth = {_labels(name): value for name, value in TRUTH.items()}
    return compare(running, "chat-5", truth, SCALE, 0, 1_000_000)


def test_what_stays_the_same_is_right() -> None:
    """Within a hundredth of a ratio, and within a scrape interval of a total's window, a fifth here."""
    found = compared({RATE: [10.0, 8.5, 11.2], RATIO: [0.8, 0.804, 0.8]}, [5.0, 20.0, 35.0])

    assert found.wrong == []
    assert found.values == 6
    assert found.ratio_off == pytest.approx(0.005)
    assert found.total_off == pytest.approx(0.15)


def test_a_total_may_be_low_while_what_is_missing_is_named() -> None:
    """At the moment at which the age of a scrape was recorded, and never too high."""
    assert compared({RATE: [5.0], RATIO: [0.8]}, [90.0]).wrong == []
    (low,) = compared({RATE: [5.0], RATIO: [0.8]}, [5.0]).wrong
    assert low == f"chat-5 {RATE} 5 in place of 10 at 300000, missing named: False"
    (high,) = compared({RATE: [13.0], RATIO: [0.8]}, [90.0]).wrong
    assert "13 in place of 10" in high


def test_a_total_may_be_low_while_its_window_is_marked() -> None:
    """As not whole, at that moment; a ratio of such a window is held to what it always is."""
    assert compared({RATE: [7.2], RATIO: [0.8]}, [5.0], covered=0.72).wrong == []
    assert len(compared({RATE: [7.2], RATIO: [0.8]}, [5.0], covered=0.95).wrong) == 1
    assert len(compared({RATE: [7.2], RATIO: [0.6]}, [5.0], covered=0.72).wrong) == 1


def test_a_ratio_may_be_wrong_at_no_time() -> None:
    """Whoever is missing, those that are there have the same ratio, to a hundredth; three while somebody is."""
    for off, ages in ((0.78, [5.0]), (0.7, [90.0])):
        (wrong,) = compared({RATE: [10.0], RATIO: [off]}, ages).wrong
        assert f"{off} in place of 0.8" in wrong
    assert compared({RATE: [10.0], RATIO: [0.78]}, [90.0]).wrong == []


def test_an_absent_figure_is_wrong() -> None:
    """One that was recorded before anything was killed."""
    assert compared({RATE: [10.0]}, [5.0]).wrong == [f"chat-5 {RATIO} is absent"]


def test_the_report_is_written_between_its_markers(tmp_path: Path) -> None:
    """That of its system alone; a page without the markers is refused."""
    result = Result(
        "agents",
        SCALE,
        [Killed("receiver", 61.2, 204.4), Killed("agent", 170.0, 205.0, 190.2)],
        [Compared(1200, 0.0021, 0.062, [])],
        [],
    )
    for system in SYSTEMS:
        assert all(marker in PAGE.read_text(encoding="utf-8") for marker in markers(system))
    page = tmp_path / "scale.md"
    page.write_text("\n".join(f"{{}}\nrun before of {name}\n{{}}".format(*markers(name)) for name in SYSTEMS))

    write(result, page)

    text = page.read_text(encoding="utf-8")
    assert "10 engines of vLLM 0.32, each scraped every 30 s, time passing 2 × as fast" in text
    assert "| receiver | 61 s | – | 204 s |" in text
    assert "| agent | 170 s | 190 s | 205 s |" in text
    assert "1,200 values recorded meanwhile of all other deployments; ratios off by at most 0.21%, " in text
    assert "totals without a missing target by 6.2%; failures: none" in text
    assert "run before of agents" not in text
    assert "run before of victoria" in text
    page.write_text("before\n", encoding="utf-8")
    with pytest.raises(ServescopeError, match="expected the markers"):
        write(result, page)
