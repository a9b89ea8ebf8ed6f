"""Harm that no finished request shows: each incident is reported in time, and ordinary life beside it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.incidents import Stretches, firing, of_replica

pytestmark = pytest.mark.slow

_AGE, _UP = "servescope_target_scrape_age_seconds", "servescope_target_up"
_HOURS = 3 * 60
_DAY = 26 * 60
EACH_INTERVAL = pytest.mark.parametrize(
    "scrape_seconds", [60, pytest.param(30, marks=pytest.mark.proof), pytest.param(15, marks=pytest.mark.proof)]
)
"""The usual intervals of scrapes."""


def _requests(*stretches: tuple[int, float | None], model: str = "m") -> dict[str, Stretches]:
    """A replica of a model that is listed and up, with so many requests a second; of none it is not known."""
    flight = [(minutes, value if value is None else 2.0 * (value > 0)) for minutes, value in stretches]
    known = [(minutes, None if value is None else 1.0) for minutes, value in stretches]
    return {
        of_replica("requests_total", outcome="ok", model_name=model): stretches,
        of_replica("concurrent_requests", model_name=model): flight,
        of_replica(_UP, model_name=model): known,
        of_replica(_AGE, model_name=model): known,
    }


# --- Traffic that is gone ---------------------------------------------------------------------------------------------

_GONE, _STOPPED = "ServescopeTrafficGone", "ServescopeTrafficStopped"


def test_a_model_that_is_swapped_is_not_gone(promtool: Path, tmp_path: Path) -> None:
    """Drained for six minutes, then another model under the same deployment_id: neither page nor ticket."""
    given = {**_requests((_HOURS, 5.0), (6, 0.0), (194, None)), **_requests((_HOURS + 6, None), (194, 5.0), model="n")}
    quiet = dict.fromkeys(range(_HOURS, _HOURS + 190, 2), False)

    assert firing(promtool, tmp_path, given, {_GONE: quiet, _STOPPED: quiet}) == {}


def test_a_model_that_left_the_lists_is_not_missed_for_a_day(promtool: Path, tmp_path: Path) -> None:
    """A ticket while it is listed without requests; it ends when the model is removed."""
    given = _requests((_HOURS, 5.0), (60, 0.0), (60, None))
    minutes = {_HOURS - 1: False, _HOURS + 15: True, _HOURS + 55: True, _HOURS + 75: False}

    assert firing(promtool, tmp_path, given, {_STOPPED: minutes}) == {}


@pytest.mark.proof
def test_traffic_that_ends_every_evening_is_no_page(promtool: Path, tmp_path: Path) -> None:
    """An office tool from 8 to 18 o'clock: a ticket on its first evening, and nothing from then on."""
    given = _requests(*((600, 5.0), (840, 0.0)) * 3)
    evenings = [600, 600 + 1440, 600 + 2880]
    quiet = dict.fromkeys((minute for evening in evenings for minute in range(evening, evening + 120, 5)), False)
    first = {evenings[0] + 30: True, **dict.fromkeys(range(evenings[1], evenings[1] + 120, 5), False)}

    assert firing(promtool, tmp_path, given, {_GONE: quiet, _STOPPED: first}) == {}


@pytest.mark.proof
@EACH_INTERVAL
def test_a_gateway_that_dies_is_a_page_where_a_day_is_known(
    promtool: Path, tmp_path: Path, scrape_seconds: int
) -> None:
    """After a day of traffic it ends: a page within a quarter of an hour."""
    given = _requests((_DAY, 5.0), (120, 0.0))
    minutes = {_DAY: False, _DAY + 15: True, _DAY + 110: True}

    assert firing(promtool, tmp_path, given, {_GONE: minutes}, scrape_seconds=scrape_seconds) == {}
