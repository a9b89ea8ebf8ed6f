"""A Prometheus whose clock was ahead: it holds samples of the future, and has none of the present until then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from tests.support.past import INTERVAL_MS, Scraped, a_day_ago, remembering, write_blocks

pytestmark = pytest.mark.slow

CHAT = Deployment("llama", "chat", "v1")
IDENTITY = Identity("llama", "chat", "v1", replica="r0")
MINUTE = 60_000


def page(tokens: float) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in IDENTITY.labels())
    return f"output_tokens_total{{{labels}}} {tokens}\nqueued_requests{{{labels}}} 2\n"


@pytest.fixture(scope="module")
def history(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusHistory]:
    """It scraped for twenty minutes, and then for a minute with a clock ten minutes ahead; now it is two minutes later.

    What it would scrape now it refuses, as older than what it has.
    """
    start_ms = a_day_ago()
    truth = [*range(0, 20 * MINUTE, INTERVAL_MS)]
    ahead = [30 * MINUTE + after for after in range(0, MINUTE, INTERVAL_MS)]
    attached = {"job": "instruments", "instance": "r0:9000"}
    scrapes = [Scraped(start_ms + at, attached, page(at / 1000)) for at in truth]
    scrapes += [Scraped(start_ms + at, attached, page(at / 1000 - 600)) for at in ahead]
    folder = tmp_path_factory.mktemp("ahead")
    write_blocks(scrapes, promtool, folder)
    with remembering(prometheus, folder) as running:
        client = Prometheus(f"http://127.0.0.1:{running.port}")
        yield PrometheusHistory(client, clock=lambda: start_ms / 1000 + 22 * 60)


def test_what_is_later_than_now_is_not_read(history: PrometheusHistory) -> None:
    """Whatever time is asked for."""
    now_ms, start_ms = history._now_ms, history._now_ms - 22 * MINUTE
    assert history.deployments() == [CHAT]
    held = history.time_range()
    assert held is not None
    assert held[1] <= now_ms
    (window,) = history.read_samples(CHAT, ["output_tokens_total"], start_ms, now_ms + 60 * MINUTE)
    assert window.times[-1] == start_ms + 20 * MINUTE - INTERVAL_MS
    figures = history.read_figures(CHAT, start_ms, now_ms + 60 * MINUTE, names=["output_tokens_per_second"])
    assert figures.times[-1] <= now_ms + 5_000
    increments = history.read_increments(CHAT, ["output_tokens_total"], start_ms, now_ms + 60 * MINUTE)
    assert all(each.blocks[-1] + 300_000 <= now_ms for each in increments)
    assert all(event.time_ms <= now_ms + 5_000 for event in history.read_events(start_ms, now_ms + 60 * MINUTE))


def test_it_has_nothing_of_now(history: PrometheusHistory) -> None:
    """Which is what its readers get: no figures once the last are five minutes old, and no target that answers."""
    later = PrometheusHistory(history.prometheus, clock=lambda: history._now_ms / 1000 + 4 * 60)
    assert later.latest_figures() == {}
    assert [(each.healthy, each.last_success_ms) for each in later.targets() if each.healthy] == []
