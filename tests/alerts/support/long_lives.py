"""What fires in the life of a fleet too large for promtool's tests, by the expressions of the rules in a Prometheus.

Recording rules are computed over the past by promtool, conditions by range queries; from these, `advance` says when an
alert fires, which is compared with Prometheus elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import Active, advance
from servescope.contract.expressions import Vector
from servescope.contract.samples import Labels
from servescope.store.prometheus.client import Prometheus
from tests.alerts.support.incidents import Stretches, on_deployments, rule_groups
from tests.alerts.support.ordinary import Life
from tests.support.filled_prometheus import RETENTION, START_SECONDS, fill
from tests.support.prometheus import running
from tests.support.waiting import deadline_seconds

_MINUTE_MS: Final = 60_000
_EVERY_MINUTES: Final = 2
# A series that ends has no mark of it in a past that is written; of a scrape a minute, this is as good.
_OPTIONS: Final = ("--query.lookback-delta=90s",)


def fired_in_life(life: Life, *, prometheus: Path, promtool: Path, folder: Path) -> dict[str, set[Labels]]:
    """Which alerts on deployments and targets fire, and for which labels, with a scrape a minute."""
    groups = rule_groups(on_deployments(), f"{_EVERY_MINUTES}m")
    recording = [{**group, "rules": [rule for rule in group["rules"] if "record" in rule]} for group in groups]
    file = folder / "recording.json"
    file.write_text(json.dumps({"groups": [group for group in recording if group["rules"]]}), encoding="utf-8")
    fill(
        prometheus, promtool, folder, _lines(life.series()),
        seconds=60 * life.minutes, interval="60s", files=[file], options=_OPTIONS,
    )  # fmt: skip
    with running(prometheus, folder, {}, options=(*RETENTION, *_OPTIONS)) as server:
        client = Prometheus(f"http://127.0.0.1:{server.port}", timeout_seconds=deadline_seconds())
        rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
        return {rule["alert"]: found for rule in rules if (found := _fired(client, rule, life.minutes))}


def _lines(given: Mapping[str, Stretches]) -> Iterator[bytes]:
    for key, stretches in given.items():
        is_counter = key.split("{")[0].endswith(("_total", "_sum", "_count"))
        # OpenMetrics has no empty braces, and no space after a comma.
        written = key.removesuffix("{}").replace('", ', '",')
        total = 0.0
        values = chain.from_iterable(repeat(value, length) for length, value in stretches)
        for minute, value in enumerate(values):
            if value is None:
                total = 0.0
                continue
            shown = total if is_counter else value
            yield f"{written} {shown!r} {START_SECONDS + 60 * minute}\n".encode()
            total += value * 60


def _fired(client: Prometheus, rule: Mapping[str, Any], minutes: int) -> set[Labels]:
    start_ms, end_ms = START_SECONDS * 1000, START_SECONDS * 1000 + minutes * _MINUTE_MS
    alert = ALERTS[rule["alert"]]
    instants: dict[int, Vector] = {}
    # A value that is infinite is one that holds, too.
    for track in client.query_range(
        f"sgn({rule['expr']})",
        start_ms=start_ms,
        end_ms=end_ms,
        step_ms=_EVERY_MINUTES * _MINUTE_MS,
    ):
        for at_ms, value in zip(track.times.tolist(), track.values.tolist(), strict=True):
            instants.setdefault(at_ms, {})[track.labels] = value
    fired: set[Labels] = set()
    states: dict[Labels, Active] = {}
    for at_ms in range(start_ms, end_ms + 1, _EVERY_MINUTES * _MINUTE_MS):
        states = advance(alert, states, instants.get(at_ms, {}), at_ms)
        fired |= {labels for labels, each in states.items() if each.fired_ms is not None}
    return fired
