"""When a target was scraped, by what a Prometheus, or what answers in its place, returns."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from servescope.contract.identity import Identity
from servescope.contract.samples import make_labels
from servescope.store.prometheus.client import Prometheus, Track
from servescope.store.prometheus.scrapes import scrape_times
from servescope.store.prometheus.targets import ScrapedTarget
from tests.support.answering import Handler, answering

INTERVAL_MS = 15_000
START_MS = 1_800_000_007_123
TARGET = ScrapedTarget(
    Identity("llama", "chat", "v2", replica="r0"), make_labels({"instance": "r0:8000"}), "contract", has_up=True
)


def _milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize("aligns", [False, True])
def test_a_pause_in_which_the_target_did_not_leave_is_a_pause(aligns: bool) -> None:
    """Also where steps are answered at multiples of their length, as by VictoriaMetrics and Thanos' query frontend."""

    def answer(request: Handler) -> None:
        start, end, step = (request.parameters[name][0] for name in ("start", "end", "step"))
        first, last, step_ms = _milliseconds(start), _milliseconds(end), round(float(step) * 1000)
        first -= first % step_ms if aligns else 0
        values = [[time_ms / 1000, "1"] for time_ms in range(first, last + 1, step_ms)]
        data = {"resultType": "matrix", "result": [{"metric": {"__name__": "up"}, "values": values}]}
        request.reply(200, json.dumps({"status": "success", "data": data}))

    end_ms = START_MS + 80 * INTERVAL_MS
    paused = {10, 11, 12, 60, 61, 62}
    times = [START_MS + number * INTERVAL_MS for number in range(81) if number not in paused]
    up = Track(TARGET.attached, np.array(times, dtype=np.int64), np.ones(len(times)))
    with answering(answer) as url:
        found = scrape_times(Prometheus(url), TARGET, [up], [], START_MS, end_ms)
    assert found == dict.fromkeys(times, True)


def test_a_scrape_that_was_not_understood_brought_nothing() -> None:
    """Though the target is up: the judge must not take the page for one without requests."""
    collected = replace(TARGET, form="collected")
    times = [START_MS + number * INTERVAL_MS for number in range(5)]
    at = np.array(times, dtype=np.int64)
    page = Track(TARGET.attached, at, np.ones(5))
    up = Track(make_labels({"__name__": "servescope_target_up"}), at, np.array([1.0, 1.0, 1.0, 0.0, 1.0]))
    understood = Track(
        make_labels({"__name__": "servescope_target_understood"}), at[[0, 1, 2, 4]], np.array([1.0, 0.0, 1.0, 1.0])
    )

    def answer(request: Handler) -> None:
        request.reply(200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}))

    with answering(answer) as url:
        # Prometheus of before that series was there: up alone counts.
        for health, expected in (
            ([up, understood], [True, False, True, False, True]),
            ([understood, up], [True, False, True, False, True]),
            ([up], [True, True, True, False, True]),
        ):
            found = scrape_times(Prometheus(url), collected, [page], health, START_MS, times[-1])
            assert found == dict(zip(times, expected, strict=True))
