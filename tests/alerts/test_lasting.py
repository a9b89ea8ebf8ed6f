"""Alerts that last as long as what they are about: a queue that stays, a hit rate that stays low."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from alerts.rules import alert_groups
from servescope.alerting.alerts import ALERTS
from tests.support.alert_stories import figure, metric, notation
from tests.support.promtool import Suite, check_firing, failures, unit_test

pytestmark = pytest.mark.slow
_QUEUED, _IN_FLIGHT = figure("queued_requests"), figure("concurrent_requests")
_HIT_RATE, _ELIGIBLE = figure("kv_cache_hit_rate"), metric("kv_cache_eligible_tokens_total")


def _active(
    promtool: Path, folder: Path, name: str, given: Mapping[str, Sequence[float]], minutes: Mapping[int, bool]
) -> dict[str, str]:
    """What promtool finds otherwise than given: at which minutes the alert fires."""
    checks = [check_firing(name, minute, fires) for minute, fires in minutes.items()]
    test = unit_test({key: notation(values) for key, values in given.items()}, checks)
    return failures(promtool, folder, {name: Suite([test], alert_groups([ALERTS[name]]))})


def test_a_queue_that_stays_is_reported_until_it_is_gone(promtool: Path, tmp_path: Path) -> None:
    """It grows to 800 within twenty minutes and stays so for four hours, beside 256 requests that are served."""
    queue = [*(40.0 * minute for minute in range(20)), *[800.0] * 240, *[0.0] * 20]
    given = {_QUEUED: queue, _IN_FLIGHT: [256 + length for length in queue]}
    fires = {10: False, 30: True, 60: True, 120: True, 259: True, 279: False}

    assert _active(promtool, tmp_path, "ServescopeQueueGrowing", given, fires) == {}


@pytest.mark.parametrize("hours", [3, 24])
def test_a_hit_rate_that_stays_halved_is_reported_for_hours(promtool: Path, tmp_path: Path, hours: int) -> None:
    """As long as it was well before, in a young deployment, and for half a day in another."""
    lasts = min(hours, 12)
    rates = [*[0.6] * hours * 60, *[0.3] * lasts * 60, *[0.6] * 60]
    given = {_HIT_RATE: rates, _ELIGIBLE: [60_000.0 * minute for minute in range(len(rates))]}
    began, ended = hours * 60, (hours + lasts) * 60
    fires = {began: False, began + 20: True, began + 50: True, began + 90: True, ended - 1: True, ended + 30: False}

    assert _active(promtool, tmp_path, "ServescopeCacheHitRateDropped", given, fires) == {}
