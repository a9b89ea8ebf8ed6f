"""What the pages read from the store, and how values read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="the console needs the extra 'console'")

import itertools
import math

import numpy as np
import pandas as pd

from app.charts.charts import lonely_points, value_domain
from app.data import queries
from app.elements import display
from app.selection import PRESETS, TimeRange, default_range, parse_range
from servescope.contract.figures import FIGURES
from servescope.contract.identity import Deployment
from servescope.errors import UsageError
from servescope.store.embedded import Store
from servescope.store.records import RecordedSettings

ONE = Deployment("m", "chat", "v2")
SPAN = TimeRange(0, 600_000, live=False)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ratio", "–"),
        (math.nan, "seconds", "–"),
        (0.0, "ratio", "0 %"),
        (0.00004, "ratio", "0.004 %"),
        (0.0042, "ratio", "0.42 %"),
        (0.81, "ratio", "81.0 %"),
        (-0.09, "ratio", "−9.0 %"),
        (1.0, "ratio", "100 %"),
        (0.0, "seconds", "0 s"),
        (0.00031, "seconds", "310 µs"),
        (0.1824, "seconds", "182 ms"),
        (1.2449, "seconds", "1.24 s"),
        (300.0, "seconds", "5 min"),
        (999.7, "tokens/s", "1 k tokens/s"),
        (12_345.0, "tokens", "12.3 k tokens"),
        (1_500_000.0, "tokens", "1.5 M tokens"),
        (71.5e9, "bytes", "71.5 GB"),
        (0.0, "requests", "0 requests"),
        (0.00386, "decisions/s", "0.00386 decisions/s"),
    ],
)
def test_values_read_as_people_say_them(value: float | None, unit: str, text: str) -> None:
    """A value has three significant digits and its unit; no value is an en dash."""
    assert display.format_value(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "now"), (12, "12 s"), (90, "90 s"), (150, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_ages_are_short(seconds: float, text: str) -> None:
    """An age is one number and one unit."""
    assert display.format_age(seconds) == text


def test_band_ranges_cover_every_value() -> None:
    """The stretches of a band follow each other from below to above, without holes."""
    band = FIGURES["kv_cache_hit_rate_skew"].band
    assert band is not None
    stretches = display.band_ranges(band)

    assert stretches[0][0] == -math.inf
    assert stretches[-1][1] == math.inf
    assert all(left[1] == right[0] for left, right in itertools.pairwise(stretches))


def test_hole_in_the_store_breaks_the_line(tmp_path: Path) -> None:
    """Where nothing was written for a while the history has a row without values."""
    with Store(tmp_path / "s.db") as store:
        for time_ms in (0, 15_000, 30_000, 45_000, 300_000, 315_000):
            store.append_figures(ONE, time_ms, {"request_rate": 1.0})
        history = queries.read_history(store, ONE, SPAN)

    assert history["request_rate"].isna().to_list() == [False] * 4 + [True] + [False] * 2


def test_steady_history_has_no_holes(tmp_path: Path) -> None:
    """Regular writing, with the jitter of scrapes, leaves the line whole."""
    with Store(tmp_path / "s.db") as store:
        for number in range(20):
            store.append_figures(ONE, number * 15_000 + number % 3 * 900, {"request_rate": 1.0})
        history = queries.read_history(store, ONE, SPAN)

    assert len(history) == 20


def test_history_is_bounded(tmp_path: Path) -> None:
    """However long the range, no more points are read than a chart can show."""
    with Store(tmp_path / "s.db") as store, store.transaction():
        for number in range(2_000):
            store.append_figures(ONE, number * 300, {"request_rate": 1.0})
    with Store(tmp_path / "s.db", read_only=True) as store:
        assert len(queries.read_history(store, ONE, SPAN, max_points=100)) <= 100


def test_past_range_shows_the_figures_of_then(tmp_path: Path) -> None:
    """The fleet of a range that has ended is that of its end, not of now."""
    with Store(tmp_path / "s.db") as store:
        store.append_figures(ONE, 590_000, {"request_rate": 1.0})
        store.append_figures(ONE, 900_000, {"request_rate": 2.0})
        shown = list(queries.list_deployments(store).values())
        fleet = queries.read_fleet(store, shown, SPAN)

    assert fleet.loc["chat", "request_rate"] == 1.0


def test_live_range_does_not_show_the_future(tmp_path: Path) -> None:
    """What a clock that was ahead left is no figure of now, packed or not; seconds are no matter between two clocks."""
    live = TimeRange(0, 600_000, live=True)
    fleets = []
    with Store(tmp_path / "s.db") as written, Store(tmp_path / "s.db", read_only=True, now_ms=lambda: 600_000) as store:
        written.append_figures(ONE, 590_000, {"request_rate": 1.0})
        for number in range(240):
            written.append_figures(ONE, 900_000 + number * 15_000, {"request_rate": 2.0})
        shown = list(queries.list_deployments(store).values())
        fleets = [queries.read_fleet(store, shown, live)]
        written.pack_idle(10**9)
        fleets.append(queries.read_fleet(store, shown, live))
        written.append_figures(ONE, 604_000, {"request_rate": 3.0})
        fleets.append(queries.read_fleet(store, shown, live))
        assert store.time_range() == (590_000, 590_000)

    assert [fleet.loc["chat", "request_rate"] for fleet in fleets] == [1.0, 1.0, 3.0]


def test_only_rates_and_levels_are_averaged() -> None:
    """Rates and levels are averaged over time, absent values left out; ratios and quantiles are not."""
    left = pd.DataFrame({"request_rate": [1.0, 3.0, 2.0], "queued_requests": [0.0, np.nan, 1.0]})
    right = pd.DataFrame({"request_rate": [4.0, 4.0, 4.0], "speculation_rate": [0.8, np.nan, 0.9]})
    right["time_to_first_token_p95"] = [0.4, 0.5, 0.6]
    table = {row["figure"]: row for row in queries.records(queries.read_levels(left, right))}

    assert [table["request_rate"][name] for name in ("left", "right")] == [2.0, 4.0]
    assert table["queued_requests"]["left"] == 0.5
    assert math.isnan(table["queued_requests"]["right"])
    assert not {"speculation_rate", "time_to_first_token_p95", "kv_cache_hit_rate"} & set(table)


def test_value_between_two_gaps_is_a_dot() -> None:
    """A value whose neighbours are missing is found, others are left to the line."""
    times = pd.Series([0, 1, 2, 3, 4, 5])
    values = pd.Series([1.0, np.nan, 2.0, np.nan, 3.0, 4.0])

    assert lonely_points(times, values) == [(0, 1.0), (2, 2.0)]


def test_axis_starts_at_zero_and_holds_the_band() -> None:
    """The axis holds 0, the values and the band's edges; one of zeros has a height."""
    band = FIGURES["speculation_rate"].band
    low, high = value_domain(pd.DataFrame({"time_ms": [0], "y0": [0.5]}), band, "ratio")
    flat = value_domain(pd.DataFrame({"time_ms": [0], "y0": [0.0]}), None, "requests")

    assert low == 0.0
    assert high > 0.8
    assert flat[1] > 0.0


def test_absolute_range_is_read_in_utc() -> None:
    """A time without a zone means the same to every reader."""
    span = parse_range({"range": "custom", "from": "1970-01-01T00:00:00", "to": "1970-01-01T01:00:00+00:00"}, 0)

    assert (span.start_ms, span.end_ms, span.live) == (0, 3_600_000, False)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_ends_now(name: str) -> None:
    """A preset is as long as it says and ends now, to the step in which live pages move."""
    span = parse_range({"range": name}, 1_000_001)

    assert span.end_ms - span.start_ms == PRESETS[name] * 1000
    assert 0 <= span.end_ms - 1_000_001 < 5_000


@pytest.mark.parametrize(("held", "name"), [(None, "15m"), ((0, 600_000), "15m"), ((0, 7_200_000), "1h")])
def test_young_store_is_shown_closer(held: tuple[int, int] | None, name: str) -> None:
    """A store that has just begun fills the charts; later the last hour is shown."""
    assert default_range(held) == name


def test_half_an_absolute_range_is_refused() -> None:
    """A range without its end is refused by the name of what is missing."""
    with pytest.raises(UsageError, match="to '' is not a time"):
        parse_range({"range": "custom", "from": "2026-01-01T00:00:00Z"}, 0)


def test_the_window_is_what_the_collector_recorded(tmp_path: Path) -> None:
    """A comparison names the window its figures cover; what is usual when nothing was recorded."""
    with Store(tmp_path / "servescope.db") as store:
        usual = queries.describe_window(store, 1_000)
        store.record_settings(5_000, RecordedSettings(120_000, 15_000, 15_000, "closed"))
        store.record_settings(9_000, RecordedSettings(90_000, 15_000, 15_000, "closed"))

        assert usual == "the collector's own window (5 minutes by default)"
        assert [queries.describe_window(store, time_ms) for time_ms in (1_000, 6_000, 9_000)] == [
            "2 min",
            "2 min",
            "90 s",
        ]
